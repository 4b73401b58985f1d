//! CONA, a cache-oblivious no-lookahead array: a sorted key-value store for flash with little more than a byte of
//! memory per key and one read per lookup. It descends from the COLA (Bender et al., "Cache-oblivious streaming
//! B-trees", SPAA 2007), without the pointers.
//!
//! The crate holds insert buffers, a write-ahead log, immutable sorted cells with a succinct index and filter,
//! background merges, snapshots, scans and backups. It knows nothing of fragments, chunks or networks. It accesses
//! files only through `tessera_disk::Disk` (P9), and checks the checksum of all stored bytes it reads (P2).
//!
//! ```
//! # fn main() -> Result<(), tessera_cona::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! use tessera_cona::{Options, Store};
//! let store = Store::open(dir.path(), Options::default())?;
//! store.put(b"mosaic", b"tessera")?;
//! assert_eq!(store.get(b"mosaic")?.as_deref(), Some(&b"tessera"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! Start reading at `store.rs` (the public API), then `state.rs` (what a reader holds; the path of a lookup),
//! `commit.rs` (the path of a write), `merge_job.rs` (flushes and merges), `publish.rs` (new cells), `plan.rs` (which
//! cells are merged, and when), `relocation.rs` (which values are written anew), `index.rs` (fences and filter),
//! `cell.rs`, `page.rs`, `values.rs`, `log.rs`, `manifest.rs` (formats; docs/formats.md, section 5), `open.rs` (recovery).

mod backup;
mod bits;
mod buffer;
mod cache;
mod cell;
mod cell_writer;
mod commit;
mod error;
#[cfg(test)]
mod forged_tests;
mod index;
mod log;
mod manifest;
mod merge;
mod merge_job;
mod open;
mod options;
mod page;
mod plan;
mod publish;
mod relocation;
mod snapshot;
mod state;
mod stats;
mod store;
#[cfg(test)]
mod trie_tests;
mod values;

pub use backup::VerifyReport;
pub use error::Error;
pub use index::FILTER_BITS_MAX;
pub use options::{
    BATCH_BYTES_MAX, Background, Durability, FilterBits, KEY_BYTES_MAX, Options, Shape, VALUE_BYTES_MAX,
};
pub use snapshot::{Record, Scan, Snapshot};
pub use stats::{Compaction, Stats};
pub use store::{Batch, Pair, Store};
