//! Errors by operation: facts as fields, the way out in the text.

use tessera_disk::DiskError;

use crate::index::{Entry, FragmentId, IndexError};

/// Kind of damage in a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The segment's header is damaged. Its records carry their own checksums.
    #[error("segment header is damaged")]
    SegmentHeader,
    /// No valid record begins where one must.
    #[error("no valid record header")]
    Header,
    /// The group hashes fail their checksum.
    #[error("groups: checksum {got:#010x}, expected {expected:#010x}")]
    Groups {
        /// crc32c in the record.
        expected: u32,
        /// crc32c of the stored bytes.
        got: u32,
    },
    /// The data fail their checksum.
    #[error("data: checksum {got:#010x}, expected {expected:#010x}")]
    Data {
        /// crc32c in the record.
        expected: u32,
        /// crc32c of the stored bytes.
        got: u32,
    },
    /// The disk returned an error instead of bytes.
    #[error("unreadable: {reason}")]
    Unreadable {
        /// The disk's error.
        reason: String,
    },
}

/// A damaged stretch of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("segment {segment:016x} at {offset}, {len_bytes} bytes: {damage}; rebuild the fragment")]
pub struct Finding {
    /// Segment number.
    pub segment: u64,
    /// Offset of the damaged stretch.
    pub offset: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The fragment, if known.
    pub id: Option<FragmentId>,
    /// Its placement group, if known.
    pub pg_id: Option<u64>,
    /// True if this record is live: the fragment must be rebuilt. False for a dead record or an unknown fragment.
    pub live: bool,
    /// The damage.
    pub damage: Damage,
}

impl Finding {
    /// A damaged stretch whose fragments are unknown.
    pub(crate) fn of_stretch(segment: u64, offset: u64, len_bytes: u64, damage: Damage) -> Self {
        Finding { segment, offset, len_bytes, id: None, pg_id: None, live: false, damage }
    }

    /// A damaged record.
    pub(crate) fn of_record(entry: &Entry, live: bool, damage: Damage) -> Self {
        let (id, pg_id) = (Some(entry.id), Some(entry.pg_id));
        Finding { id, pg_id, live, ..Self::of_stretch(entry.segment, entry.offset, entry.record_bytes(), damage) }
    }
}

/// Why the segments of a disk cannot be opened. None of these cases changes the disk.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk's identity file is missing or unreadable.
    #[error(transparent)]
    Identity(#[from] tessera_disk::IdentityError),
    /// A newer release wrote the segment.
    #[error("segment {segment:016x}: format version {found}, but this program knows {supported}; use a newer release")]
    Version {
        /// Segment number.
        segment: u64,
        /// The version in the file.
        found: u32,
        /// The version this code reads.
        supported: u32,
    },
    /// The segment was written on another disk or under another number.
    #[error(
        "segment {segment:016x}: {field} is {found}, expected {expected}; the file comes from another disk; move it away"
    )]
    Foreign {
        /// Segment number in the file name.
        segment: u64,
        /// The field that differs.
        field: &'static str,
        /// The value of this disk.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// The index cannot be built.
    #[error("{0}; make the disk writable")]
    Index(#[from] IndexError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why an operation on an open store failed. Fragments that were held are still held.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No space for fragments; deletes and compaction still work.
    #[error(
        "{disk}: {free_bytes} bytes free, {reserve_bytes} of them reserved; no room for {needed_bytes} bytes: free space or add a disk"
    )]
    Full {
        /// The disk.
        disk: String,
        /// Free bytes.
        free_bytes: u64,
        /// Bytes reserved for deletes and compaction.
        reserve_bytes: u64,
        /// Bytes of the batch.
        needed_bytes: u64,
    },
    /// Dead bytes are left, but each segment that has some has more live bytes than there is room to copy.
    #[error(
        "{disk}: {dead_bytes} bytes are dead, but {needed_bytes} must be free to copy the live ones beside them, and {free_bytes} are: free space on the file system, or delete more, for a segment without live bytes needs no room"
    )]
    NoRoomToCompact {
        /// The disk.
        disk: String,
        /// Free bytes of its file system.
        free_bytes: u64,
        /// Bytes that must be free to compact the segment with the fewest live bytes.
        needed_bytes: u64,
        /// Dead bytes of the segments that wait.
        dead_bytes: u64,
    },
    /// A record too long for the format: over 4 GiB, or with group hashes that are not a multiple of 32 bytes.
    #[error("fragment {id}: {what} has {len_bytes} bytes, which no record can hold")]
    BadRecord {
        /// The fragment.
        id: FragmentId,
        /// `data` or `groups`.
        what: &'static str,
        /// Its length.
        len_bytes: u64,
    },
    /// A range beyond the fragment's end.
    #[error("fragment {id}: {len_bytes} bytes at {offset} pass its end at {data_len_bytes}")]
    Range {
        /// The fragment.
        id: FragmentId,
        /// The requested offset.
        offset: u64,
        /// The requested length.
        len_bytes: u64,
        /// Length of the fragment.
        data_len_bytes: u64,
    },
    /// Stored bytes are damaged.
    #[error(transparent)]
    Damaged(#[from] Finding),
    /// The index cannot answer. The segments are unchanged.
    #[error(
        "{0}; the fragments are safe: the node rebuilds the index from the segments, at the latest when it restarts"
    )]
    Index(#[from] IndexError),
    /// The segments cannot be reopened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl StoreError {
    /// True if the store lacks space. It still reads, deletes and compacts.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        match self {
            StoreError::Full { .. } | StoreError::NoRoomToCompact { .. } => true,
            StoreError::Disk(e) => e.is_no_space(),
            StoreError::Index(e) => e.is_no_space(),
            _ => false,
        }
    }
}
