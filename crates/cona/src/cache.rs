//! A cache of records read from cells.
//!
//! A lookup asks the buffers, then this cache, then the cells. So the cache must agree with the cells. The cells change
//! only when a flush turns a buffer into a cell. The flush first rejects insertions by readers of older states, then
//! removes its keys from the cache, and only then publishes the new state. The eviction policy (Clock-PRO) is
//! `quick_cache`'s.

use parking_lot::RwLock;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::Arc;

/// Longest value that the cache keeps.
const VALUE_BYTES_MAX: usize = 4096;
/// Memory per entry besides key and value.
const ENTRY_BYTES: u64 = 96;

#[derive(Clone)]
struct ByBytes;

impl Weighter<Box<[u8]>, Arc<[u8]>> for ByBytes {
    fn weight(&self, key: &Box<[u8]>, value: &Arc<[u8]>) -> u64 {
        key.len() as u64 + value.len() as u64 + ENTRY_BYTES
    }
}

type Records = Cache<Box<[u8]>, Arc<[u8]>, ByBytes>;

/// The record cache of a store.
pub(crate) struct RecordCache {
    cache: Option<Records>,
    /// Only readers of this state may insert.
    version: RwLock<u64>,
}

impl RecordCache {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let cache = (capacity_bytes > 0)
            .then(|| Cache::with_weighter((capacity_bytes / 300).max(16) as usize, capacity_bytes, ByBytes));
        RecordCache { cache, version: RwLock::new(0) }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        self.cache.as_ref()?.get(key)
    }

    /// Inserts a record that a reader of state `version` found in the cells.
    pub(crate) fn insert(&self, version: u64, key: &[u8], value: &[u8]) {
        let Some(cache) = self.cache.as_ref().filter(|_| value.len() <= VALUE_BYTES_MAX) else { return };
        let now = self.version.read();
        if *now == version {
            cache.insert(key.into(), value.into());
        }
    }

    /// From now on only readers of state `version` may insert.
    pub(crate) fn begin(&self, version: u64) {
        *self.version.write() = version;
    }

    pub(crate) fn remove(&self, key: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.remove(key);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |c| c.weight())
    }
}
