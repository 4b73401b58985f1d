//! Preallocated chunks: chunk ids with a group that the manager granted in advance, so that a small file needs one
//! round trip ([`tessera_wire::meta::PreallocatedChunks`]). Plain data; the cores of a client share it through the
//! view.
//!
//! A client that writes small files one after another requests ids along with its other requests, before it runs out; a
//! client that writes a file now and then never does. Ids that are not used soon are given back: the session that keeps
//! them holds up garbage collection. Content is sent under a preallocated id before the client knows whether it is
//! stored already. So the client sends nothing of content that it wrote lately, and asks first about content that follows content
//! which was stored already.

use crate::config::{Options, ms};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tessera_stripe::Class;
use tessera_wire::meta::{ChunkAnswer, PreallocatedChunks as Grant};

/// One chunk. Its session ends when the last chunk of the grant is dropped ([`PreallocatedChunk::release`]).
#[derive(Debug)]
pub struct PreallocatedChunk {
    /// Its id and group.
    pub answer: ChunkAnswer,
    batch: Arc<Batch>,
}

/// Chunks of one grant.
#[derive(Debug)]
struct Batch {
    session_id: u64,
    good_until_ns: i64,
}

/// Preallocated chunks for one file.
#[derive(Debug)]
pub struct PreallocatedSet {
    /// One per chunk.
    pub chunks: Vec<PreallocatedChunk>,
    /// Their class.
    pub class: Arc<Class>,
    /// Their domain.
    pub domain: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct PreallocatedPool {
    pools: HashMap<String, SchemePool>,
    exhausted: Vec<u64>,
    written: HashSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
    /// Some content of the last file was stored already.
    known: bool,
    /// Until then no tiny file is sent to the manager, which refused one.
    inlines_from_ns: i64,
}

#[derive(Debug, Default)]
struct SchemePool {
    ready: Vec<PreallocatedChunk>,
    class: Option<Arc<Class>>,
    domain: u32,
    streak: u32,
    used_ns: i64,
    /// Until then, a request for some is in flight, or lost.
    asked_until_ns: i64,
}

impl PreallocatedChunk {
    /// The session to commit with.
    pub fn session_id(&self) -> u64 {
        self.batch.session_id
    }

    /// Drops it; returns the session if this was its last chunk.
    pub fn release(self) -> Option<u64> {
        Arc::into_inner(self.batch).map(|batch| batch.session_id)
    }
}

impl PreallocatedPool {
    /// Takes preallocated chunks for a file with these chunk hashes, to be written with this scheme: one for each, or
    /// `None`.
    pub fn take(
        &mut self,
        scheme: &str,
        chunks: &[[u8; 32]],
        now_ns: i64,
        options: &Options,
    ) -> Option<PreallocatedSet> {
        let pool = self.pools.entry(scheme.to_string()).or_default();
        let goes_on = now_ns.saturating_sub(pool.used_ns) <= ms(options.preallocate_pause_ms);
        pool.streak = if goes_on { pool.streak.saturating_add(1) } else { 1 };
        pool.used_ns = now_ns;
        let old = pool.ready.extract_if(.., |chunk| chunk.batch.good_until_ns <= now_ns);
        self.exhausted.extend(old.filter_map(PreallocatedChunk::release));
        if self.known || chunks.iter().any(|hash| self.written.contains(hash)) {
            return None;
        }
        let class = pool.class.clone()?;
        let from = pool.ready.len().checked_sub(chunks.len())?;
        assert!(pool.ready.iter().all(|chunk| chunk.batch.good_until_ns > now_ns), "an expired chunk id is handed out");
        Some(PreallocatedSet { chunks: pool.ready.split_off(from), class, domain: pool.domain })
    }

    /// Whether the manager may be given the bytes of a tiny file.
    pub fn may_inline(&self, now_ns: i64) -> bool {
        now_ns >= self.inlines_from_ns
    }

    /// The manager refused the bytes of a tiny file.
    pub fn pause_inlining(&mut self, now_ns: i64, options: &Options) {
        self.inlines_from_ns = now_ns.saturating_add(ms(options.inline_pause_ms));
    }

    /// Whether this client has written all of these lately: the store very likely has them.
    pub fn has_written(&self, chunks: &[[u8; 32]]) -> bool {
        chunks.iter().all(|hash| self.written.contains(hash))
    }

    /// Notes that a file of these chunks was written; `known`: some of them were stored already.
    pub fn note(&mut self, chunks: impl Iterator<Item = [u8; 32]>, known: bool, options: &Options) {
        self.known = known;
        for hash in chunks {
            if self.written.insert(hash) {
                self.order.push_back(hash);
            }
        }
        while self.order.len() > options.remembered_hashes {
            self.order.pop_front().map(|hash| self.written.remove(&hash));
        }
        assert_eq!(self.order.len(), self.written.len(), "each remembered hash has its place in the order");
    }

    /// How many ids to request along with the next request for this scheme.
    pub fn wanted(&mut self, scheme: &str, now_ns: i64, options: &Options) -> u32 {
        let Some(pool) = self.pools.get_mut(scheme) else { return 0 };
        let enough = pool.ready.len() as u32 * 2 > options.preallocate_chunks;
        if pool.streak < options.preallocate_after_files || enough || now_ns < pool.asked_until_ns {
            return 0;
        }
        pool.asked_until_ns = now_ns.saturating_add(ms(options.manager_timeout_ms));
        options.preallocate_chunks
    }

    /// Adds the grant of a request sent at `asked_ns`; the ids are good for half their session's lifetime from then on.
    pub fn put(&mut self, scheme: &str, grant: Grant, class: Arc<Class>, asked_ns: i64) {
        let good_until_ns = asked_ns.saturating_add(ms(grant.session_ms) / 2);
        let batch = Arc::new(Batch { session_id: grant.session_id, good_until_ns });
        let pool = self.pools.entry(scheme.to_string()).or_default();
        pool.asked_until_ns = 0;
        if pool.class.as_ref().is_some_and(|known| known.info() != class.info()) || pool.domain != grant.domain {
            self.exhausted.extend(pool.ready.drain(..).filter_map(PreallocatedChunk::release));
        }
        (pool.class, pool.domain) = (Some(class), grant.domain);
        assert!(grant.chunks.iter().all(|chunk| chunk.chunk_id != 0), "a preallocated chunk has an id");
        pool.ready.extend(grant.chunks.into_iter().map(|answer| PreallocatedChunk { answer, batch: batch.clone() }));
        self.exhausted.extend(Arc::into_inner(batch).map(|batch| batch.session_id));
    }

    /// Sessions to close: all their ids are used or too old.
    pub fn take_exhausted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.exhausted)
    }

    /// Gives up all ids; returns the sessions to close.
    pub fn clear(&mut self) -> Vec<u64> {
        let all = self.pools.drain().flat_map(|(_, pool)| pool.ready).filter_map(PreallocatedChunk::release);
        self.exhausted.extend(all);
        self.take_exhausted()
    }
}
