//! Where each fragment is: the index's interface and its in-memory form.
//!
//! The index is a cache of the segments and holds only what is durable: an entry appears when its record was synced, and goes
//! when its delete record was. Losing the index costs a scan.
//!
//! An index that survives a restart also keeps what else a scan finds: the *tombstones*, the *segments*, and the *point* up to which
//! records were entered. A [`Changes`] becomes durable as a whole or not at all, and in order. So a crash leaves an index as a scan up
//! to its point would make it, and opening resumes there. The point never goes back.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;

use parking_lot::RwLock;
use tessera_disk::Identity;

use crate::format::{RECORD_HEADER_BYTES, record_bytes};

/// Identity of a fragment; never issued twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentId {
    /// Chunk id, as the manager issued it.
    pub chunk_id: u64,
    /// Fragment number within the chunk.
    pub fragment: u16,
}

impl fmt::Display for FragmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.chunk_id, self.fragment)
    }
}

/// Where a fragment's record is, and what is needed to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which fragment.
    pub id: FragmentId,
    /// Its placement group.
    pub pg_id: u64,
    /// Sequence of the record: the higher one decides.
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

/// Why an index did not answer. The segments are as they were.
#[derive(Clone, Debug, thiserror::Error)]
pub enum IndexError {
    /// Its files are damaged, gone, or cannot be read or written.
    #[error("index: {0}")]
    Files(#[from] tessera_cona::Error),
    /// A row has a length that no release wrote.
    #[error("index: a {what} of {len_bytes} bytes, a length that no release wrote")]
    Malformed {
        /// What kind of record.
        what: &'static str,
        /// Its length.
        len_bytes: usize,
    },
    /// Its row of a segment does not fit the records that were read.
    #[error("index: the live bytes of segment {segment:016x} do not fit its records")]
    Contradicts {
        /// Segment number.
        segment: u64,
    },
    /// It names a place for a fragment, but describes another record than the one there.
    #[error("index: its entry of fragment {id} is not the record in segment {segment:016x} at {offset}")]
    Disagrees {
        /// The fragment.
        id: FragmentId,
        /// Segment number.
        segment: u64,
        /// Offset of the record.
        offset: u64,
    },
    /// Lost in an earlier failure.
    #[error("index: lost; it is rebuilt when the disk is opened")]
    Gone,
}

impl IndexError {
    /// True if the disk has no room for it: changes stay in memory.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, IndexError::Files(e) if e.is_no_space())
    }

    /// True if the index holds other bytes than were written: it must be rebuilt.
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

/// A fragment whose dead records are on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tombstone {
    /// Dead records of its puts.
    pub dead_copies: u32,
    /// The delete record, if the fragment is deleted.
    pub delete: Option<Entry>,
}

/// A segment, as the index knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRow {
    /// End of its records; the point's offset in the point's segment.
    pub end: u64,
    /// Bytes of living records.
    pub live_bytes: u64,
    /// Some stretch of it is no record.
    pub damaged: bool,
    /// It takes no more records, even as the last segment.
    pub sealed: bool,
}

/// A place in the sequence of all records: those before are durable and entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Segment number; 0: nothing yet.
    pub segment: u64,
    /// Offset in it.
    pub offset: u64,
    /// Sequences of the records before are below this one.
    pub next_sequence: u64,
}

impl Default for Point {
    fn default() -> Self {
        Point { segment: 0, offset: 0, next_sequence: 1 }
    }
}

/// Changes that belong together. `None` is a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Entries.
    pub entries: BTreeMap<FragmentId, Option<Entry>>,
    /// How many more entries there are than before.
    pub added: i64,
    /// Tombstones.
    pub tombstones: BTreeMap<FragmentId, Option<Tombstone>>,
    /// Segments.
    pub segments: BTreeMap<u64, Option<SegmentRow>>,
    /// The new point.
    pub point: Option<Point>,
}

impl Changes {
    /// True if there is nothing to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.tombstones.is_empty() && self.segments.is_empty() && self.point.is_none()
    }
}

/// State that an index kept over a restart, beside the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexState {
    /// Where the scan resumes.
    pub point: Point,
    /// All segments up to the point.
    pub segments: BTreeMap<u64, SegmentRow>,
    /// All tombstones.
    pub tombstones: HashMap<FragmentId, Tombstone>,
}

/// Statistics of an index; counts are since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Memory of the fences, which lead to the page of an entry, bytes.
    pub fences_bytes: u64,
    /// Memory of the filters, bytes.
    pub filter_bytes: u64,
    /// Memory of entries that are not on the disk yet, bytes.
    pub buffer_bytes: u64,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Files.
    pub files: u64,
    /// Bytes written to them.
    pub written_bytes: u64,
    /// Look-ups.
    pub lookups: u64,
    /// Pages read for them.
    pub page_reads: u64,
}

/// (chunk id, fragment number) → entry. Calls come from many threads at once; one thread writes.
pub trait Index: Send + Sync {
    /// The entry of a fragment.
    ///
    /// # Errors
    /// [`IndexError`]: the index cannot tell.
    fn get(&self, id: FragmentId) -> Result<Option<Entry>, IndexError>;

    /// The entries of several fragments, in their order.
    ///
    /// # Errors
    /// As for [`Index::get`].
    fn get_many(&self, ids: &[FragmentId]) -> Result<Vec<Option<Entry>>, IndexError> {
        ids.iter().map(|&id| self.get(id)).collect()
    }

    /// Up to `limit` entries behind `after` (from the first on if `None`), in order of their ids.
    ///
    /// # Errors
    /// As for [`Index::get`].
    fn list(&self, after: Option<FragmentId>, limit: usize) -> Result<Vec<Entry>, IndexError>;

    /// Applies changes, all at once. They count from now on, whatever this returns.
    ///
    /// # Errors
    /// The changes could not be written and stay in memory until they can. A full disk is not an error here.
    fn apply(&self, changes: &Changes) -> Result<(), IndexError>;

    /// Number of entries.
    fn len(&self) -> u64;

    /// Bytes of memory it takes, roughly.
    fn memory_bytes(&self) -> u64;

    /// True if it could not read something of itself: it must be rebuilt.
    fn failed(&self) -> bool {
        false
    }

    /// Statistics of its files, where it has files.
    fn stats(&self) -> IndexStats {
        IndexStats::default()
    }

    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state that it kept over the restart; `None` if it kept none.
    ///
    /// # Errors
    /// [`IndexError`]: it must not be used before [`Index::reset`].
    fn recover(&self, identity: &Identity) -> Result<Option<IndexState>, IndexError>;

    /// Forgets everything, for a disk of this identity.
    ///
    /// # Errors
    /// [`IndexError`]: nothing can be kept.
    fn reset(&mut self, identity: &Identity) -> Result<(), IndexError>;

    /// Makes the applied changes durable, if the index has files: at once if `wait`, else in the background.
    ///
    /// # Errors
    /// [`IndexError`]; the applied changes count all the same.
    fn persist(&self, wait: bool) -> Result<(), IndexError>;
}

/// The index in memory, for tests and simulations: about 100 bytes a fragment, and a scan at each opening.
#[derive(Debug, Default)]
pub struct MemIndex(RwLock<BTreeMap<FragmentId, Entry>>);

impl Index for MemIndex {
    fn get(&self, id: FragmentId) -> Result<Option<Entry>, IndexError> {
        Ok(self.0.read().get(&id).copied())
    }

    fn list(&self, after: Option<FragmentId>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(self.0.read().range((from, Bound::Unbounded)).take(limit).map(|(_, e)| *e).collect())
    }

    fn apply(&self, changes: &Changes) -> Result<(), IndexError> {
        let mut map = self.0.write();
        for (id, entry) in &changes.entries {
            match entry {
                Some(entry) => map.insert(*id, *entry),
                None => map.remove(id),
            };
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.0.read().len() as u64
    }

    fn memory_bytes(&self) -> u64 {
        self.len() * 100
    }

    fn recover(&self, _: &Identity) -> Result<Option<IndexState>, IndexError> {
        Ok(None)
    }

    fn reset(&mut self, _: &Identity) -> Result<(), IndexError> {
        self.0.get_mut().clear();
        Ok(())
    }

    fn persist(&self, _: bool) -> Result<(), IndexError> {
        Ok(())
    }
}
