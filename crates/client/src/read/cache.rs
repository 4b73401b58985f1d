//! Verified chunks, and verified group hashes, kept for reads to come. Keyed by chunk id, which is never reused,
//! so nothing in here can be outdated.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// One cache for all read handles of a client.
pub type SharedCache = Arc<Mutex<ChunkCache>>;

/// See the module.
#[derive(Debug)]
pub struct ChunkCache {
    chunks: Lru<Vec<Bytes>>,
    groups: Lru<Bytes>,
}

impl ChunkCache {
    /// Keeps at most `limit_bytes` of chunks, and a sixty-fourth of that of group hashes.
    pub fn shared(limit_bytes: u64) -> SharedCache {
        Arc::new(Mutex::new(ChunkCache { chunks: Lru::new(limit_bytes), groups: Lru::new(limit_bytes / 64) }))
    }

    pub(crate) fn chunk(&mut self, chunk_id: u64) -> Option<Vec<Bytes>> {
        self.chunks.get(chunk_id)
    }

    pub(crate) fn has_chunk(&self, chunk_id: u64) -> bool {
        self.chunks.entries.contains_key(&chunk_id)
    }

    pub(crate) fn keep_chunk(&mut self, chunk_id: u64, parts: &[Bytes]) {
        let len = parts.iter().map(|p| p.len() as u64).sum();
        self.chunks.put(chunk_id, parts.to_vec(), len);
    }

    /// Bytes of chunks kept now.
    #[cfg(test)]
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunks.bytes
    }

    /// Lets go of a chunk before its time.
    pub(crate) fn forget_chunk(&mut self, chunk_id: u64) {
        self.chunks.remove(chunk_id);
    }

    pub(crate) fn groups(&mut self, chunk_id: u64) -> Option<Bytes> {
        self.groups.get(chunk_id)
    }

    pub(crate) fn keep_groups(&mut self, chunk_id: u64, groups: &Bytes) {
        // A copy, so that a few hashes do not keep a whole received frame alive.
        self.groups.put(chunk_id, Bytes::copy_from_slice(groups), groups.len() as u64);
    }
}

/// Least recently used goes first.
#[derive(Debug)]
struct Lru<T> {
    entries: HashMap<u64, Entry<T>>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    bytes: u64,
    limit_bytes: u64,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    bytes: u64,
    used: u64,
}

impl<T: Clone> Lru<T> {
    fn remove(&mut self, key: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    fn new(limit_bytes: u64) -> Self {
        Lru { entries: HashMap::new(), by_use: BTreeMap::new(), clock: 0, bytes: 0, limit_bytes }
    }

    fn get(&mut self, key: u64) -> Option<T> {
        let entry = self.entries.get_mut(&key)?;
        self.clock += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.clock;
        self.by_use.insert(self.clock, key);
        Some(entry.value.clone())
    }

    fn put(&mut self, key: u64, value: T, bytes: u64) {
        if bytes > self.limit_bytes || self.get(key).is_some() {
            return;
        }
        while self.bytes + bytes > self.limit_bytes {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |e| e.bytes);
        }
        self.clock += 1;
        self.by_use.insert(self.clock, key);
        self.entries.insert(key, Entry { value, bytes, used: self.clock });
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first_and_the_limit_holds() {
        let mut lru = Lru::new(10);
        for key in 1..=3 {
            lru.put(key, key, 3);
        }
        assert_eq!(lru.get(1), Some(1));
        lru.put(4, 4, 3);
        assert_eq!((lru.get(1), lru.get(2), lru.get(3), lru.get(4)), (Some(1), None, Some(3), Some(4)));
        lru.put(5, 5, 11);
        assert_eq!((lru.get(5), lru.bytes), (None, 9));
        lru.remove(1);
        lru.remove(5);
        assert_eq!((lru.get(1), lru.bytes, lru.by_use.len()), (None, 6, 2));
    }
}
