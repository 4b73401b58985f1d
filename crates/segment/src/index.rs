//! The index maps fragments to their records: its interface and its in-memory implementation.
//!
//! The index is a cache of the segments and holds only durable records. An entry appears once its record is synced, and
//! disappears once its delete record is. Losing the index costs a scan.
//!
//! An index that survives a restart also keeps the other results of a scan: the *tombstones*, the *segments*, and the
//! *point* up to which records are entered. Each [`Changes`] becomes durable atomically, and in order. So a crash
//! leaves the index as a scan up to its point would make it, and opening resumes there. The point never moves back.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use tessera_cona::Stats;
use tessera_disk::{Identity, layout};

use crate::format::{RECORD_HEADER_BYTES, record_bytes};

/// Identity of a fragment; never issued twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentId {
    /// Chunk id, issued by the manager.
    pub chunk_id: u64,
    /// Fragment number within the chunk.
    pub fragment: u16,
}

impl fmt::Display for FragmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.chunk_id, self.fragment)
    }
}

/// The place of a fragment's record, and the facts needed to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The fragment's identity.
    pub id: FragmentId,
    /// Its placement group.
    pub pg_id: u64,
    /// Sequence of the record. Of several records, the highest sequence decides.
    pub sequence: u64,
    /// Segment number.
    pub segment: u64,
    /// Offset of the record in the segment file.
    pub offset: u64,
    /// Length of the group hashes in bytes.
    pub groups_len: u32,
    /// Length of the data in bytes.
    pub data_len: u32,
    /// crc32c of the groups.
    pub groups_crc: u32,
    /// crc32c of the data.
    pub data_crc: u32,
}

impl Entry {
    /// Offset of the group hashes in the segment file.
    #[must_use]
    pub fn groups_offset(&self) -> u64 {
        self.offset + RECORD_HEADER_BYTES
    }

    /// Offset of the data in the segment file.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.groups_offset() + u64::from(self.groups_len)
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        record_bytes(u64::from(self.groups_len), u64::from(self.data_len))
    }
}

/// Why the index did not answer. The segments are unchanged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum IndexError {
    /// The index's files are damaged, missing, unreadable or not writable.
    #[error("index: {0}")]
    Files(#[from] tessera_cona::Error),
    /// A row of invalid length.
    #[error("index: a {what} of {len_bytes} bytes, a length that no release wrote")]
    Malformed {
        /// Kind of the row.
        what: &'static str,
        /// Its length.
        len_bytes: usize,
    },
    /// The live bytes in a segment's row do not match the records read.
    #[error("index: the live bytes of segment {segment:016x} do not fit its records")]
    Contradicts {
        /// Segment number.
        segment: u64,
    },
    /// An entry names a place whose record is another one.
    #[error("index: its entry of fragment {id} is not the record in segment {segment:016x} at {offset}")]
    Disagrees {
        /// The fragment.
        id: FragmentId,
        /// Segment number.
        segment: u64,
        /// Offset of the record.
        offset: u64,
    },
    /// An earlier failure lost the index.
    #[error("index: lost; it is rebuilt when the disk is opened")]
    Gone,
}

impl IndexError {
    /// True if the disk lacks space for the index. Changes then stay in memory.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, IndexError::Files(e) if e.is_no_space())
    }

    /// True if the index's bytes are damaged: it must be rebuilt.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            IndexError::Files(e) => e.is_damage(),
            IndexError::Malformed { .. }
            | IndexError::Contradicts { .. }
            | IndexError::Disagrees { .. }
            | IndexError::Gone => true,
        }
    }
}

/// The tombstone of a fragment: its dead records on the disk and its delete record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tombstone {
    /// Number of dead put records.
    pub dead_copies: u32,
    /// The delete record, if the fragment is deleted.
    pub delete: Option<Entry>,
}

/// The row of a segment in the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRow {
    /// End of its records. For the point's segment, the point's offset.
    pub end: u64,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Some stretch holds no valid record.
    pub damaged: bool,
    /// The segment takes no more records, even if it is the last.
    pub sealed: bool,
}

layout! {
    /// A place in the sequence of all records. All records before it are durable and entered in the index.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Point {
        /// Segment number; 0 before the first record.
        pub segment: u64 = 0,
        /// Offset in the segment.
        pub offset: u64 = 8,
        /// All records before the point have sequences below this one.
        pub next_sequence: u64 = 16,
    }
}

impl Default for Point {
    fn default() -> Self {
        Point { segment: 0, offset: 0, next_sequence: 1 }
    }
}

/// Changes that are applied atomically. `None` is a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Entries.
    pub entries: BTreeMap<FragmentId, Option<Entry>>,
    /// Change of the number of entries.
    pub added: i64,
    /// Tombstones.
    pub tombstones: BTreeMap<FragmentId, Option<Tombstone>>,
    /// Segments.
    pub segments: BTreeMap<u64, Option<SegmentRow>>,
    /// The new point.
    pub point: Option<Point>,
}

impl Changes {
    /// True if there is no change to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.tombstones.is_empty() && self.segments.is_empty() && self.point.is_none()
    }
}

/// State that an index kept over a restart, besides the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexState {
    /// The point where the scan resumes.
    pub point: Point,
    /// All segments up to the point.
    pub segments: BTreeMap<u64, SegmentRow>,
    /// All tombstones.
    pub tombstones: HashMap<FragmentId, Tombstone>,
}

/// (chunk id, fragment number) → entry. Many threads read at once; one thread writes.
pub trait Index: Send + Sync {
    /// Returns the entry of a fragment.
    ///
    /// # Errors
    /// [`IndexError`]: the index cannot answer.
    fn get(&self, id: FragmentId) -> Result<Option<Entry>, IndexError>;

    /// Returns the entries of several fragments, in the order of `ids`.
    ///
    /// # Errors
    /// As for [`Index::get`].
    fn get_many(&self, ids: &[FragmentId]) -> Result<Vec<Option<Entry>>, IndexError> {
        ids.iter().map(|&id| self.get(id)).collect()
    }

    /// Returns up to `limit` entries after `after` (from the first on if `None`), in order of their ids.
    ///
    /// # Errors
    /// As for [`Index::get`].
    fn list(&self, after: Option<FragmentId>, limit: usize) -> Result<Vec<Entry>, IndexError>;

    /// Applies changes atomically. They are in effect from now on, even if this returns an error.
    ///
    /// # Errors
    /// The changes could not be written; they stay in memory until they can be. A full disk is not an error here.
    fn apply(&self, changes: &Changes) -> Result<(), IndexError>;

    /// Number of entries.
    fn len(&self) -> u64;

    /// Approximate bytes of memory in use.
    fn memory_bytes(&self) -> u64;

    /// True if the index failed to read its own files: it must be rebuilt.
    fn failed(&self) -> bool {
        false
    }

    /// Statistics of the index's files; zeros if it has none.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// True if the index has no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the state kept over the restart; `None` if there is none.
    ///
    /// # Errors
    /// [`IndexError`]: call [`Index::reset`] before using the index.
    fn recover(&self, identity: &Identity) -> Result<Option<IndexState>, IndexError>;

    /// Clears the index, for a disk of this identity.
    ///
    /// # Errors
    /// [`IndexError`]: the index cannot keep anything.
    fn reset(&mut self, identity: &Identity) -> Result<(), IndexError>;

    /// Makes the applied changes durable, if the index has files: before it returns if `wait`, else in the background.
    ///
    /// # Errors
    /// [`IndexError`]; the applied changes remain in effect.
    fn persist(&self, wait: bool) -> Result<(), IndexError>;
}
