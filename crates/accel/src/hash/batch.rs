//! Standard BLAKE3 digests of many buffers at once. A message of a few KiB has too few leaves to fill a vector's lanes.
//! The leaves of a batch fill them, and so do its parents, level by level.

use super::lanes::{self, Leaf, Pair, Values};
use super::reference::{self, LEAF_BYTES, PARENT, ROOT};
use super::{Hash, chunk_hash};
use crate::isa::Isa;

/// A message of at least this length fills the lanes alone, so the `blake3` crate hashes it.
const ALONE_BYTES: usize = 16 * 1024;

/// Leaves whose chaining values are kept at a time: enough to fill the lanes for several levels, few enough for the
/// first-level cache.
const LEAVES_AT_ONCE: usize = 256;

/// [`chunk_hash`] of every buffer, in order; several times as fast for small buffers.
pub fn batch(buffers: &[&[u8]]) -> Vec<Hash> {
    batch_on(Isa::best(), buffers)
}

/// [`batch`] by the kernels of `isa`; the digests are the same (P10).
pub fn batch_on(isa: Isa, buffers: &[&[u8]]) -> Vec<Hash> {
    if isa == Isa::REFERENCE {
        return buffers.iter().map(|bytes| reference::tree(bytes).root).collect();
    }
    let mut digests = vec![Hash::default(); buffers.len()];
    let mut group: Vec<usize> = Vec::new();
    let mut leaves = 0;
    let mut scratch = Scratch::default();
    for (i, bytes) in buffers.iter().enumerate() {
        if bytes.len() >= ALONE_BYTES {
            digests[i] = chunk_hash(bytes);
            continue;
        }
        group.push(i);
        leaves += leaf_count(bytes);
        if leaves >= LEAVES_AT_ONCE {
            scratch.hash_group(isa, buffers, &mut group, &mut digests);
            leaves = 0;
        }
    }
    scratch.hash_group(isa, buffers, &mut group, &mut digests);
    digests
}

fn leaf_count(bytes: &[u8]) -> usize {
    bytes.len().div_ceil(LEAF_BYTES).max(1)
}

/// Memory that is reused from group to group.
#[derive(Default)]
struct Scratch<'a> {
    /// (Message, number of its remaining values); the values of all messages lie one after another.
    trees: Vec<(usize, usize)>,
    leaves: Vec<Leaf<'a>>,
    pairs: Vec<Pair>,
    values: Values,
    above: Values,
}

impl<'a> Scratch<'a> {
    /// Computes the digests of the buffers that `group` lists, and empties `group`.
    fn hash_group(&mut self, isa: Isa, buffers: &[&'a [u8]], group: &mut Vec<usize>, digests: &mut [Hash]) {
        let leaves: usize = group.iter().map(|i| leaf_count(buffers[*i])).sum();
        if leaves < lanes::count(isa) / 4 || group.len() == 1 {
            group.drain(..).for_each(|i| digests[i] = chunk_hash(buffers[i]));
            return;
        }
        // Messages of equal length are neighbours, so that lanes end together.
        group.sort_by_key(|i| buffers[*i].len());
        self.list_leaves(buffers, group);
        lanes::compress_leaves(isa, &self.leaves, &mut self.values);
        while self.list_pairs(digests) {
            lanes::compress_pairs(isa, &self.values, &self.pairs, &mut self.above);
            std::mem::swap(&mut self.values, &mut self.above);
        }
    }

    fn list_leaves(&mut self, buffers: &[&'a [u8]], group: &mut Vec<usize>) {
        self.leaves.clear();
        self.trees.clear();
        for message in group.drain(..) {
            let bytes = buffers[message];
            let count = leaf_count(bytes);
            self.trees.push((message, count));
            if count == 1 {
                self.leaves.push(Leaf { bytes, counter: 0, flags: ROOT });
                continue;
            }
            let leaves = bytes.chunks(LEAF_BYTES).zip(0..);
            self.leaves.extend(leaves.map(|(bytes, counter)| Leaf { bytes, counter, flags: 0 }));
        }
    }

    /// Takes the digests of messages that have one value left, and pairs the values of the others; returns whether
    /// there are any. An odd last value stays as it is, which gives the tree of the BLAKE3 paper, §2.1 (every left
    /// subtree is full).
    fn list_pairs(&mut self, digests: &mut [Hash]) -> bool {
        let mut at = 0;
        self.pairs.clear();
        self.trees.retain_mut(|(message, count)| {
            let first = at;
            at += *count as u32;
            if *count == 1 {
                digests[*message] = Hash(self.values.get(first as usize));
                return false;
            }
            let flags = if *count == 2 { PARENT | ROOT } else { PARENT };
            self.pairs.extend((first..at - 1).step_by(2).map(|left| Pair { left, flags }));
            if !count.is_multiple_of(2) {
                self.pairs.push(Pair { left: at - 1, flags: 0 });
            }
            *count = count.div_ceil(2);
            true
        });
        !self.trees.is_empty()
    }
}
