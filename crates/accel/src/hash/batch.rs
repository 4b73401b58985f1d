//! Standard BLAKE3 digests of many buffers at once. One message of a few KiB has too few leaves to fill a vector's
//! lanes; the leaves of a batch do, and then its parents, level by level.

use super::lanes::{Node, compress_all, lanes};
use super::reference::{self, LEAF_BYTES, PARENT, ROOT};
use super::{HASH_BYTES, Hash, chunk_hash};
use crate::isa::Isa;

/// From this length on a message fills the lanes by itself: the `blake3` crate does.
const ALONE_BYTES: usize = 64 * 1024;

/// Leaves whose chaining values are kept at a time.
const LEAVES_AT_ONCE: usize = 4096;

/// [`chunk_hash`] of every buffer, in order; several times as fast where buffers are small.
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
    for (i, bytes) in buffers.iter().enumerate() {
        if bytes.len() >= ALONE_BYTES {
            digests[i] = chunk_hash(bytes);
            continue;
        }
        group.push(i);
        leaves += leaf_count(bytes);
        if leaves >= LEAVES_AT_ONCE {
            hash_group(isa, buffers, &mut group, &mut digests);
            leaves = 0;
        }
    }
    hash_group(isa, buffers, &mut group, &mut digests);
    digests
}

fn leaf_count(bytes: &[u8]) -> usize {
    bytes.len().div_ceil(LEAF_BYTES).max(1)
}

/// Digests of the buffers that `group` numbers, which is emptied.
fn hash_group(isa: Isa, buffers: &[&[u8]], group: &mut Vec<usize>, digests: &mut [Hash]) {
    let leaves: usize = group.iter().map(|i| leaf_count(buffers[*i])).sum();
    if leaves < lanes(isa) / 4 || group.len() == 1 {
        group.drain(..).for_each(|i| digests[i] = chunk_hash(buffers[i]));
        return;
    }
    // Messages of equal length stand together, so that lanes end together.
    group.sort_by_key(|i| buffers[*i].len());
    // `trees[t]` = (message, values it still has); its values lie one after another in `values`.
    let mut trees: Vec<(usize, usize)> = group.drain(..).map(|i| (i, leaf_count(buffers[i]))).collect();
    let mut values = leaf_values(isa, buffers, &trees);
    loop {
        let mut at = 0;
        trees.retain(|&(message, count)| {
            if count == 1 {
                digests[message] = Hash(values[at]);
            }
            at += count;
            count > 1
        });
        if trees.is_empty() {
            return;
        }
        values = parent_values(isa, &values, &mut trees);
    }
}

/// Chaining values of all leaves; of a message of one leaf, its digest.
fn leaf_values(isa: Isa, buffers: &[&[u8]], trees: &[(usize, usize)]) -> Vec<[u8; HASH_BYTES]> {
    let mut nodes = Vec::with_capacity(trees.iter().map(|t| t.1).sum());
    for &(message, count) in trees {
        let flags = if count == 1 { ROOT } else { 0 };
        let bytes = buffers[message];
        for counter in 0..count {
            let bytes = &bytes[counter * LEAF_BYTES..bytes.len().min((counter + 1) * LEAF_BYTES)];
            nodes.push(Node { bytes, counter: counter as u64, leaf: true, flags });
        }
    }
    let mut values = vec![[0; HASH_BYTES]; nodes.len()];
    compress_all(isa, &nodes, &mut values);
    values
}

/// One level up: neighbours become their parent, an odd last value stays as it is (which gives the tree of the BLAKE3
/// paper, §2.1: every left subtree is full). `values` begins with those of trees that are done, of one value each.
fn parent_values(isa: Isa, values: &[[u8; HASH_BYTES]], trees: &mut [(usize, usize)]) -> Vec<[u8; HASH_BYTES]> {
    let total: usize = trees.iter().map(|t| t.1).sum();
    let mut rest = &values[values.len() - total..];
    let mut nodes = Vec::with_capacity(total / 2);
    let mut above = Vec::with_capacity(total / 2 + trees.len());
    let mut is_node = Vec::with_capacity(total / 2 + trees.len());
    for (_, count) in trees.iter_mut() {
        let (mine, others) = rest.split_at(*count);
        rest = others;
        let flags = if *count == 2 { PARENT | ROOT } else { PARENT };
        for pair in mine.chunks(2) {
            is_node.push(pair.len() == 2);
            above.push(pair[0]);
            if pair.len() == 2 {
                nodes.push(Node { bytes: pair.as_flattened(), counter: 0, leaf: false, flags });
            }
        }
        *count = count.div_ceil(2);
    }
    let mut computed = vec![[0; HASH_BYTES]; nodes.len()];
    compress_all(isa, &nodes, &mut computed);
    let mut computed = computed.into_iter();
    for (value, _) in above.iter_mut().zip(is_node).filter(|(_, is_node)| *is_node) {
        *value = computed.next().unwrap_or_default();
    }
    above
}
