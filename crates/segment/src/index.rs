//! Where each fragment is: the index's interface and its in-memory form.
//!
//! The index is a cache of the segments and holds only what is durable: an entry appears when its
//! record was synced, and goes when the delete record was. Losing it costs a scan.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use parking_lot::RwLock;

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

/// (chunk id, fragment number) → entry. Calls come from many threads at once; one thread writes.
pub trait Index: Send + Sync {
    /// The entry of a fragment.
    fn get(&self, id: FragmentId) -> Option<Entry>;
    /// Sets the entry of `entry.id`; gives the one it replaces.
    fn insert(&self, entry: Entry) -> Option<Entry>;
    /// Removes an entry and gives it.
    fn remove(&self, id: FragmentId) -> Option<Entry>;
    /// Up to `limit` entries behind `after` (from the first on if `None`), in order of their ids.
    fn list(&self, after: Option<FragmentId>, limit: usize) -> Vec<Entry>;
    /// Number of entries.
    fn len(&self) -> u64;
    /// Bytes of memory it takes, roughly.
    fn memory_bytes(&self) -> u64;
    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The index in memory: about 100 bytes a fragment.
#[derive(Debug, Default)]
pub struct MemIndex(RwLock<BTreeMap<FragmentId, Entry>>);

impl Index for MemIndex {
    fn get(&self, id: FragmentId) -> Option<Entry> {
        self.0.read().get(&id).copied()
    }

    fn insert(&self, entry: Entry) -> Option<Entry> {
        self.0.write().insert(entry.id, entry)
    }

    fn remove(&self, id: FragmentId) -> Option<Entry> {
        self.0.write().remove(&id)
    }

    fn list(&self, after: Option<FragmentId>, limit: usize) -> Vec<Entry> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.read().range((from, Bound::Unbounded)).take(limit).map(|(_, e)| *e).collect()
    }

    fn len(&self) -> u64 {
        self.0.read().len() as u64
    }

    fn memory_bytes(&self) -> u64 {
        self.len() * 100
    }
}
