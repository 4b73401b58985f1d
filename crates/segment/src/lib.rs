//! The fragments that a node keeps on one disk, in append-only segments.
//!
//! What lives here: the segment format (docs/formats.md, section 2), [`SegmentStore`] that appends,
//! finds, reads, deletes, compacts and scrubs fragments. What may not:
//! sockets, threads, clocks, groups and epochs in force, or any file access that does not go through
//! `tessera_disk::Disk` (P9). This crate starts no thread; its caller decides when to sync, compact and
//! scrub, and in which thread.
//!
//! Start reading at `store.rs` (the public face and the locks), then `format.rs` (bytes),
//! `writer.rs` (append, sync), `publish.rs` (how records reach the index), `open.rs` (what a restart makes of the bytes), `compact.rs`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod compact;
mod cona_index;
mod config;
mod error;
mod format;
mod graves;
mod handle;
mod index;
mod index_rows;
mod open;
mod publish;
mod remake;
mod resume;
mod scan;
mod scrub;
mod segment;
mod store;
mod writer;

pub use compact::CompactReport;
pub use cona_index::{ConaIndex, INDEX_DIR};
pub use config::Options;
pub use error::{Damage, Finding, OpenError, StoreError};
pub use format::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordMeta, SEGMENT_HEADER_BYTES, SEGMENT_VERSION, SegmentHeader,
};
pub use handle::FragmentHandle;
pub use index::{
    Changes, Entry, FragmentId, Grave, Index, IndexError, IndexFigures, MemIndex, Point, Recovered, SegmentRow,
};
pub use open::{OpenProgress, OpenReport, TornTail};
pub use scrub::{ScrubCursor, ScrubReport};
pub use store::{Appended, DeleteOrder, Deleted, Record, SegmentStore, Stats};
