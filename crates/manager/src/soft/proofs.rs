//! Which chunks nodes are proving, and which come next: soft state of [`crate::repair::proof`].

use crate::soft::tasks::retry_at;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Most chunks under way.
const MAX_CHUNKS: usize = 1_024;
/// A pass that an operator asked for gives a chunk up after this many tries.
const TRIES_OF_PASS: u32 = 3;

/// A fragment to be compared with what the chunk's other fragments give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProofItem {
    /// Chunk.
    pub chunk_id: u64,
    /// Fragment number.
    pub fragment: u32,
    /// Group of the chunk.
    pub pg_id: u64,
}

/// A chunk under way.
#[derive(Debug)]
struct OpenProof {
    /// Its `proof_epoch` when the proof began.
    proof_epoch: u64,
    /// Fragments that are not proven yet.
    left: BTreeSet<u32>,
}

/// Proofs under way. A pass goes through the unproven chunks from the newest to the oldest.
#[derive(Debug, Default)]
pub struct Proofs {
    /// Fragments that wait for a task, by the disk that holds them.
    queued: BTreeMap<u64, VecDeque<ProofItem>>,
    /// Chunks under way.
    open: BTreeMap<u64, OpenProof>,
    /// Chunks that could not be proven: (not before, tries).
    backoff: HashMap<u64, (i64, u32)>,
    /// The pass has looked at the chunks from this id on; 0: a pass starts.
    below: u64,
    /// An operator asked for a pass: it includes the newest chunks, and nodes do not spare their disks.
    pub hurry: bool,
    /// That pass ends before this chunk, the next one when it began: under steady writes it would never end otherwise.
    until: u64,
    /// Chunks that were older than the configured age at the last look, and the next such look.
    old: (i64, u64, u64),
    /// Wrong fragments that were found and replaced.
    pub replaced: u64,
}

impl Proofs {
    /// Starts a pass on behalf of an operator, over the chunks before `next_chunk`.
    pub fn start_pass(&mut self, next_chunk: u64) {
        (self.hurry, self.below, self.until) = (true, 0, next_chunk);
        self.backoff.clear();
    }

    /// Whether more chunks may be looked at.
    pub fn has_room(&self) -> bool {
        self.open.len() < MAX_CHUNKS / 2
    }

    /// Chunks that may be looked at now have ids below this one. `next_chunk`: the next id; `age_ns`: chunks must be this old.
    pub fn bound(&mut self, now_ns: i64, next_chunk: u64, age_ns: i64) -> u64 {
        let (seen_ns, seen, _) = self.old;
        if now_ns.saturating_sub(seen_ns) >= age_ns {
            self.old = (now_ns, next_chunk, seen);
        }
        let newest = if self.hurry { self.until } else { self.old.2 };
        if self.below == 0 { newest } else { newest.min(self.below) }
    }

    /// The pass goes on below this id; 0: it has looked at all chunks.
    pub fn looked_at(&mut self, below: u64, now_ns: i64) {
        self.below = below;
        if below == 0 {
            // Chunks that are gone by now would stay here for good.
            self.backoff.retain(|chunk, (at, _)| *at > now_ns || self.open.contains_key(chunk));
        }
        let tries_again = self.backoff.values().any(|(_, tries)| *tries < TRIES_OF_PASS);
        self.hurry &= below != 0 || !self.open.is_empty() || tries_again;
    }

    /// Whether the chunk is under way, or must wait.
    pub fn waits(&self, chunk_id: u64, now_ns: i64) -> bool {
        self.open.contains_key(&chunk_id) || self.backoff.get(&chunk_id).is_some_and(|(at, _)| *at > now_ns)
    }

    /// Queues fragments, (disk, fragment), of a chunk with this proof epoch.
    pub fn add(&mut self, (chunk_id, proof_epoch): (u64, u64), pg_id: u64, fragments: &[(u64, u32)]) {
        assert!(
            !fragments.is_empty() && !self.open.contains_key(&chunk_id),
            "chunk {chunk_id}: proven twice at a time"
        );
        let left = fragments.iter().map(|(_, fragment)| *fragment).collect();
        self.open.insert(chunk_id, OpenProof { proof_epoch, left });
        for &(disk_id, fragment) in fragments {
            self.queued.entry(disk_id).or_default().push_back(ProofItem { chunk_id, fragment, pg_id });
        }
    }

    /// The next fragments of a disk that share group and number, at most `limit`.
    pub fn take(&mut self, disk_id: u64, limit: usize) -> Vec<ProofItem> {
        let Some(queue) = self.queued.get_mut(&disk_id) else { return Vec::new() };
        queue.retain(|item| self.open.get(&item.chunk_id).is_some_and(|proof| proof.left.contains(&item.fragment)));
        let Some(first) = queue.front().copied() else { return Vec::new() };
        let same = |item: &ProofItem| (item.pg_id, item.fragment) == (first.pg_id, first.fragment);
        let taken: Vec<ProofItem> = queue.iter().copied().filter(same).take(limit).collect();
        queue.retain(|item| !taken.contains(item));
        taken
    }

    /// A fragment is proven. If it was the chunk's last, returns the chunk's proof epoch when the proof began.
    pub fn done(&mut self, chunk_id: u64, fragment: u32) -> Option<u64> {
        let proof = self.open.get_mut(&chunk_id)?;
        proof.left.remove(&fragment);
        if !proof.left.is_empty() {
            return None;
        }
        self.backoff.remove(&chunk_id);
        self.open.remove(&chunk_id).map(|proof| proof.proof_epoch)
    }

    /// A chunk cannot be proven now; it is tried again later.
    pub fn failed(&mut self, chunk_id: u64, now_ns: i64) {
        self.open.remove(&chunk_id);
        let tries = self.backoff.get(&chunk_id).map_or(1, |(_, tries)| tries + 1);
        self.backoff.insert(chunk_id, (retry_at(now_ns, tries), tries));
    }

    /// The work on a chunk is void; a later look plans it again.
    pub fn forget(&mut self, chunk_id: u64) {
        self.open.remove(&chunk_id);
    }

    /// Forgets the work that waits for a disk.
    pub fn forget_disk(&mut self, disk_id: u64) {
        for item in self.queued.remove(&disk_id).unwrap_or_default() {
            self.open.remove(&item.chunk_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P13: a read that failed for a moment does not end a scrub, and a chunk that can never be proven does.
    #[test]
    fn a_pass_tries_again_what_failed_and_ends() {
        let mut proofs = Proofs::default();
        proofs.start_pass(8);
        for tries in 1..=TRIES_OF_PASS {
            assert!(proofs.hurry, "after {tries} tries");
            proofs.add((7, 0), 1, &[(3, 2)]);
            proofs.failed(7, 0);
            proofs.looked_at(0, 0);
        }
        assert!(!proofs.hurry);
        proofs.start_pass(8);
        proofs.add((7, 0), 1, &[(3, 2)]);
        proofs.failed(7, 0);
        proofs.looked_at(0, 0);
        proofs.add((7, 0), 1, &[(3, 2)]);
        assert_eq!(proofs.done(7, 2), Some(0));
        proofs.looked_at(0, 0);
        assert!(!proofs.hurry, "all is proven");
    }

    /// P12: chunks that are written while an operator's pass runs wait for the next one.
    #[test]
    fn a_pass_ends_while_chunks_are_written() {
        let mut proofs = Proofs::default();
        proofs.start_pass(8);
        let bounds: Vec<u64> = (8..20).map(|next_chunk| proofs.bound(0, next_chunk, 1_000)).collect();
        assert_eq!(bounds, [8; 12]);
    }
}
