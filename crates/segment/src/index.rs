//! Where each fragment is: the index's interface and its in-memory form.
//!
//! The index is a cache of the segments and holds only what is durable: an entry appears when its
//! record was synced, and goes when the delete record was. Losing it costs a scan.
//!
//! An index that survives a restart keeps, beside the entries, what else a scan would tell: the *graves*, the *segments*, and the *point* up to
//! which records were taken in. All of a [`Changes`] becomes durable at once or not at all, and in order; so whatever a crash leaves of
//! such an index is what a scan up to its point would have made, and opening goes on from there.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;

use parking_lot::RwLock;
use tessera_disk::Identity;

use crate::format::{RECORD_HEADER_BYTES, record_bytes};

/// Which fragment: never issued twice.
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

/// Why an index did not answer. What it is of, the segments, is not touched.
#[derive(Clone, Debug, thiserror::Error)]
pub enum IndexError {
    /// Its files are damaged, gone, or cannot be read or written.
    #[error("index: {0}")]
    Files(#[from] tessera_cona::Error),
    /// A record in it has a form that no release of this format wrote.
    #[error("index: a {what} of {len_bytes} bytes, which none has")]
    Malformed {
        /// What kind of record.
        what: &'static str,
        /// Its length.
        len_bytes: usize,
    },
    /// What it says of a segment cannot be, together with the records that were read.
    #[error("index: more than all of segment {segment:016x} is dead")]
    Contradicts {
        /// Segment number.
        segment: u64,
    },
    /// An earlier failure left none.
    #[error("index: there is none; it is made anew when the disk is opened")]
    Gone,
}

impl IndexError {
    /// True if there is no room for it on the disk: what was changed is kept in memory.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, IndexError::Files(e) if e.is_no_space())
    }

    /// True if what it holds is not what was written: it has to be made anew.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            IndexError::Files(e) => e.is_damage(),
            IndexError::Malformed { .. } | IndexError::Contradicts { .. } | IndexError::Gone => true,
        }
    }
}

/// What is known of a fragment of which dead records are on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grave {
    /// Dead fragment records.
    pub copies: u32,
    /// The delete record, if the fragment is deleted.
    pub tombstone: Option<Entry>,
}

/// What is known of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRow {
    /// Where its records end; the point's offset if it is the point's segment.
    pub end: u64,
    /// Bytes of living records.
    pub live_bytes: u64,
    /// Some stretch of it could not be understood.
    pub damaged: bool,
    /// It takes no more records, though it may be the last one.
    pub sealed: bool,
}

/// Records before this place are taken in, and were durable.
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
    /// Graves.
    pub graves: BTreeMap<FragmentId, Option<Grave>>,
    /// Segments.
    pub segments: BTreeMap<u64, Option<SegmentRow>>,
    /// The new point.
    pub point: Option<Point>,
}

impl Changes {
    /// True if there is nothing to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.graves.is_empty() && self.segments.is_empty() && self.point.is_none()
    }
}

/// What an index brings from an earlier life, beside the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Where a scan has to go on.
    pub point: Point,
    /// All segments up to the point.
    pub segments: BTreeMap<u64, SegmentRow>,
    /// All graves.
    pub graves: HashMap<FragmentId, Grave>,
}

/// An index in numbers; counts are since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexFigures {
    /// Memory that leads to the page of an entry, bytes.
    pub fences_bytes: u64,
    /// Memory of the filters, bytes.
    pub filter_bytes: u64,
    /// Memory of what is not on the disk yet, bytes.
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
    /// [`IndexError`]: it cannot be told whether there is one.
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

    /// Applies changes, all at once. They count from now on whatever is returned.
    ///
    /// # Errors
    /// They could not be written, and are kept in memory until they can be. A full disk is no error here.
    fn apply(&self, changes: &Changes) -> Result<(), IndexError>;

    /// Number of entries.
    fn len(&self) -> u64;

    /// Bytes of memory it takes, roughly.
    fn memory_bytes(&self) -> u64;

    /// True if something in it could not be read: it has to be made anew.
    fn failed(&self) -> bool {
        false
    }

    /// Figures, where it has files.
    fn figures(&self) -> IndexFigures {
        IndexFigures::default()
    }

    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it brings from an earlier life on the same disk; `None` if that is nothing.
    ///
    /// # Errors
    /// [`IndexError`]: it must not be used before [`Index::reset`].
    fn recover(&self, identity: &Identity) -> Result<Option<Recovered>, IndexError>;

    /// Forgets everything, for a disk of this identity.
    ///
    /// # Errors
    /// [`IndexError`]: nothing can be kept.
    fn reset(&mut self, identity: &Identity) -> Result<(), IndexError>;

    /// Makes durable what was applied, if it survives at all: at once if `wait`, else in the background.
    ///
    /// # Errors
    /// [`IndexError`]; what was applied counts all the same.
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

    fn recover(&self, _: &Identity) -> Result<Option<Recovered>, IndexError> {
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
