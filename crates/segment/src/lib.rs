//! Stores the fragments that a node keeps on one disk, in append-only segments.
//!
//! The crate holds the segment format (docs/formats.md, section 2) and [`SegmentStore`], which appends, finds, reads,
//! deletes, compacts and scrubs fragments. It knows no sockets, threads, clocks, current groups or epochs, and accesses
//! files only through `tessera_disk::Disk` (P9). It starts no thread: the caller decides when to sync, compact and
//! scrub, and on which thread.
//!
//! Start reading at `store.rs` (the public API and the locks), then `format.rs` (bytes), `writer.rs` (append, delete,
//! sync), `publish.rs` and `ledger.rs` (how records reach the index, which are live), `open.rs` and `resume.rs`
//! (recovery), `compact.rs`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod compact;
mod cona_index;
mod config;
mod error;
mod format;
mod handle;
mod index;
mod index_rows;
mod ledger;
mod open;
mod publish;
mod rebuild;
mod resume;
mod scan;
mod scrub;
mod segment;
mod store;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod tombstones;
mod writer;

pub use compact::CompactReport;
pub use cona_index::{ConaIndex, INDEX_DIR};
pub use config::Options;
pub use error::{Damage, Finding, OpenError, StoreError};
pub use format::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordMeta, SEGMENT_HEADER_BYTES, SEGMENT_VERSION, SegmentHeader,
};
pub use handle::FragmentHandle;
pub use index::{Changes, Entry, FragmentId, Index, IndexError, IndexState, Point, SegmentRow, Tombstone};
pub use open::{OpenProgress, OpenReport, TornTail};
pub use scrub::{ScrubCursor, ScrubReport};
pub use store::{AppendOutcome, DeleteOrder, DeleteOutcome, Record, SegmentStore, Stats};
#[cfg(any(test, feature = "testing"))]
pub use testing::MemIndex;
