//! [`ConaIndex`]: the index on flash, with about a byte of memory a fragment.
//!
//! It is a cache of the segments like any other index: made anew when the disk is opened, never logged or synced. So its writes
//! cannot poison the disk, and a crash leaves nothing to repair. Entries that cannot be written (the disk is full) stay in memory until they are
//! replaced or removed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use tessera_cona::{Background, Error, Options, Snapshot, Store};
use tessera_disk::Disk;

use crate::index::{Entry, FragmentId, Index};

/// The index's directory on the disk.
pub const INDEX_DIR: &str = "index";
/// Bytes of one of its two insert buffers.
const BUFFER_BYTES: u64 = 4 << 20;
const KEY_BYTES: usize = 10;
const VALUE_BYTES: usize = 48;

/// An index on the disk that it is of.
pub struct ConaIndex {
    store: Store,
    /// What could not be written; `None` is a removal.
    unwritten: RwLock<BTreeMap<FragmentId, Option<Entry>>>,
    len: AtomicU64,
}

fn key_of(id: FragmentId) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&id.chunk_id.to_be_bytes());
    key[8..].copy_from_slice(&id.fragment.to_be_bytes());
    key
}

fn encode(entry: &Entry) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    let long = [entry.pg_id, entry.sequence, entry.segment, entry.offset];
    value.chunks_exact_mut(8).zip(long).for_each(|(to, from)| to.copy_from_slice(&from.to_le_bytes()));
    let short = [entry.groups_len, entry.data_len, entry.groups_crc, entry.data_crc];
    value[32..].chunks_exact_mut(4).zip(short).for_each(|(to, from)| to.copy_from_slice(&from.to_le_bytes()));
    value
}

fn decode(key: &[u8], value: &[u8]) -> Entry {
    // Both were written by this process and passed CONA's checksums.
    assert!(key.len() == KEY_BYTES && value.len() == VALUE_BYTES, "an entry of the index has another length");
    let long = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap_or_default());
    let short = |at: usize| u32::from_le_bytes(value[at..at + 4].try_into().unwrap_or_default());
    Entry {
        id: FragmentId {
            chunk_id: u64::from_be_bytes(key[..8].try_into().unwrap_or_default()),
            fragment: u16::from_be_bytes(key[8..].try_into().unwrap_or_default()),
        },
        pg_id: long(0),
        sequence: long(8),
        segment: long(16),
        offset: long(24),
        groups_len: short(32),
        data_len: short(36),
        groups_crc: short(40),
        data_crc: short(44),
    }
}

/// An index that cannot be read must not pass for one that has nothing: the thread ends, the disk counts as failed, and the next
/// opening makes the index anew.
fn readable<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|e| {
        panic!("the index of this disk cannot be read ({e}); restart the node: it is made anew from the segments")
    })
}

impl ConaIndex {
    /// An empty index in directory [`INDEX_DIR`] of `disk`; what an earlier one left there is removed. It has one thread of its own.
    ///
    /// # Errors
    /// CONA's.
    pub fn create(disk: Arc<dyn Disk>) -> Result<Self, Error> {
        Self::with_options(disk, Options { buffer_bytes: BUFFER_BYTES, cache_bytes: 0, ..Options::default() })
    }

    /// Like [`ConaIndex::create`], merging on the caller's thread. For simulations.
    ///
    /// # Errors
    /// CONA's.
    pub fn create_inline(disk: Arc<dyn Disk>, buffer_bytes: u64) -> Result<Self, Error> {
        let background = Background::Inline;
        Self::with_options(disk, Options { buffer_bytes, cache_bytes: 0, background, ..Options::default() })
    }

    fn with_options(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let store = Store::open_on(disk, INDEX_DIR, Options { volatile: true, lock: false, ..options })?;
        Ok(ConaIndex { store, unwritten: RwLock::default(), len: AtomicU64::new(0) })
    }

    /// CONA's figures.
    #[must_use]
    pub fn stats(&self) -> tessera_cona::Stats {
        self.store.stats()
    }

    /// Waits until buffers are written and no merge is due.
    ///
    /// # Errors
    /// CONA's.
    pub fn settle(&self) -> Result<(), Error> {
        self.store.flush()?;
        self.store.settle()
    }

    fn set(&self, id: FragmentId, entry: Option<Entry>) {
        let key = key_of(id);
        let written = match &entry {
            Some(entry) => self.store.put(&key, &encode(entry)),
            None => self.store.delete(&key),
        };
        if written.is_err() || !self.unwritten.read().is_empty() {
            let mut unwritten = self.unwritten.write();
            if written.is_ok() {
                unwritten.remove(&id)
            } else {
                unwritten.insert(id, entry)
            };
        }
    }

    fn list_written(&self, snapshot: &Snapshot, after: Option<FragmentId>, limit: usize) -> Vec<Entry> {
        let after = after.map(key_of);
        let from = after.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let scan = readable(snapshot.range((from, Bound::Unbounded)));
        scan.take(limit).map(readable).map(|(key, value)| decode(&key, &value)).collect()
    }
}

impl Index for ConaIndex {
    fn get(&self, id: FragmentId) -> Option<Entry> {
        if let Some(unwritten) = self.unwritten.read().get(&id) {
            return *unwritten;
        }
        let key = key_of(id);
        readable(self.store.get(&key)).map(|value| decode(&key, &value))
    }

    fn insert(&self, entry: Entry) -> Option<Entry> {
        let old = self.get(entry.id);
        self.set(entry.id, Some(entry));
        self.len.fetch_add(u64::from(old.is_none()), Ordering::Relaxed);
        old
    }

    fn remove(&self, id: FragmentId) -> Option<Entry> {
        let old = self.get(id)?;
        self.set(id, None);
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(old)
    }

    fn list(&self, after: Option<FragmentId>, limit: usize) -> Vec<Entry> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let unwritten = self.unwritten.read();
        let snapshot = self.store.snapshot();
        if unwritten.is_empty() {
            return self.list_written(&snapshot, after, limit);
        }
        // Each unwritten removal hides at most one of those written.
        let written = self.list_written(&snapshot, after, limit.saturating_add(unwritten.len()));
        let mut all: BTreeMap<FragmentId, Entry> = written.into_iter().map(|e| (e.id, e)).collect();
        let beyond = if all.len() < limit { None } else { all.last_key_value().map(|(id, _)| *id) };
        for (id, entry) in unwritten.range((from, Bound::Unbounded)).filter(|(id, _)| beyond.is_none_or(|b| **id <= b))
        {
            match entry {
                Some(entry) => all.insert(*id, *entry),
                None => all.remove(id),
            };
        }
        all.into_values().take(limit).collect()
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    fn memory_bytes(&self) -> u64 {
        let stats = self.store.stats();
        let unwritten = self.unwritten.read().len() as u64 * 100;
        stats.index_bytes + stats.filter_bytes + stats.buffer_bytes + stats.merge_bytes + unwritten
    }
}
