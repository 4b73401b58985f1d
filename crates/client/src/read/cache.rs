//! Caches verified chunks and verified group hashes. Keyed by chunk id, which is never reused, so no entry is ever
//! outdated. The eviction (Clock-PRO) is `quick_cache`'s.

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::sync::Arc;

/// One cache for all read handles of a client.
pub type SharedCache = Arc<ChunkCache>;

/// See the module.
#[derive(Debug)]
pub struct ChunkCache {
    pub(super) chunks: Cache<u64, Vec<Bytes>, ByteWeight>,
    pub(super) groups: Cache<u64, Bytes, ByteWeight>,
}

/// Entries weigh their bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteWeight;

impl Weighter<u64, Vec<Bytes>> for ByteWeight {
    fn weight(&self, _: &u64, parts: &Vec<Bytes>) -> u64 {
        parts.iter().map(|part| part.len() as u64).sum::<u64>().max(1)
    }
}

impl Weighter<u64, Bytes> for ByteWeight {
    fn weight(&self, _: &u64, groups: &Bytes) -> u64 {
        groups.len() as u64
    }
}

/// Expected mean length of a chunk, for the size of the first table.
const MEAN_CHUNK_BYTES: u64 = 1 << 20;

/// A cache of `limit_bytes`. It has one shard, because large chunks would not fit into a smaller one. Half of it is for
/// entries that were read once, so that chunks read ahead are not evicted before they are used.
fn cache<V: Clone>(limit_bytes: u64) -> Cache<u64, V, ByteWeight>
where
    ByteWeight: Weighter<u64, V>,
{
    let mut options = OptionsBuilder::new();
    options.shards(1).hot_allocation(0.5).weight_capacity(limit_bytes);
    options.estimated_items_capacity((limit_bytes / MEAN_CHUNK_BYTES).max(64) as usize);
    let options = options.build().expect("both capacities are given");
    Cache::with_options(options, ByteWeight, DefaultHashBuilder::default(), DefaultLifecycle::default())
}

impl ChunkCache {
    /// Keeps at most `limit_bytes` of chunks, and a sixty-fourth of that of group hashes.
    pub fn shared(limit_bytes: u64) -> SharedCache {
        Arc::new(ChunkCache { chunks: cache(limit_bytes), groups: cache(limit_bytes / 64) })
    }

    /// Bytes of chunks kept now.
    #[cfg(test)]
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunks.weight()
    }

    /// Forgets all chunks.
    #[cfg(test)]
    pub(crate) fn clear(&self) {
        self.chunks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk read ahead of a stream is still there when the stream reads it, in a cache full of other chunks.
    #[test]
    fn the_limit_holds_and_new_chunks_stay_for_a_while() {
        let cache = ChunkCache::shared(128 << 20);
        let part = Bytes::from(vec![0; 1 << 20]);
        for id in 0..1000 {
            cache.chunks.insert(id, vec![part.clone()]);
            assert!(cache.chunk_bytes() <= 128 << 20);
            if id >= 16 {
                assert!(cache.chunks.get(&(id - 16)).is_some(), "{id}");
            }
        }
        cache.chunks.insert(1000, vec![part; 129]);
        assert!(!cache.chunks.contains_key(&1000), "longer than the cache");
    }
}
