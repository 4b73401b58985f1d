//! Proves that bytes are a part of the chunk of a name, without the rest of the chunk (P2).
//!
//! The chunk's group hashes lead to its name, and each group of the part has its hash. Where the part begins or ends within a
//! group, as slices of `xor` do, the sender adds the chaining values of that group's leaves ([`edge_leaves`]): they lead to
//! the group's hash, and each leaf of the part has its value.

use std::ops::Range;
use tessera_accel::hash::{
    GROUP_BYTES, HASH_BYTES, Hash, LEAF_BYTES, chunk_hash, group_count, group_values, join, join_to_name, leaf_values,
    verify_groups,
};

const GROUP: u64 = GROUP_BYTES as u64;
const LEAF: u64 = LEAF_BYTES as u64;

type Values<'a> = &'a [[u8; HASH_BYTES]];

/// Why bytes are not shown to be a part of the chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// The part is not within the chunk, or begins or ends within a leaf.
    #[error("{len} bytes at {offset} are no part of a chunk of {chunk_len} bytes that can be checked")]
    Bounds {
        /// Position in the chunk.
        offset: u64,
        /// Length of the part.
        len: u64,
        /// Length of the chunk.
        chunk_len: u64,
    },
    /// The hashes that came with the part do not lead to the name.
    #[error("the group hashes do not lead to the chunk's name")]
    Hashes,
    /// The bytes do not have the hashes.
    #[error("the bytes are not those of the chunk at this place")]
    Bytes,
}

/// The groups of a chunk that `range` covers in part.
fn edges(chunk_len: u64, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let group = |at: u64| at / GROUP * GROUP..(at / GROUP * GROUP + GROUP).min(chunk_len);
    let covered = range.clone();
    let partly = move |it: &Range<u64>| it.start < covered.start || it.end > covered.end;
    let (first, last) = (group(range.start), group(range.end.saturating_sub(1)));
    let second = (last != first).then_some(last);
    let edges = [Some(first), second].into_iter().flatten().filter(partly);
    edges.take(if range.is_empty() { 0 } else { 2 })
}

/// Chaining values of the leaves of the groups that `range` of the chunk covers in part, in order; mostly none.
pub fn edge_leaves(chunk: &[u8], range: Range<u64>) -> Vec<[u8; HASH_BYTES]> {
    let of = |group: Range<u64>| leaf_values(group.start / LEAF, &chunk[group.start as usize..group.end as usize]);
    edges(chunk.len() as u64, &range).flat_map(of).collect()
}

/// Checks that `bytes` are those at `offset` of the chunk called `name`, which has `chunk_len` bytes and these group hashes.
/// `leaves`: what [`edge_leaves`] gave the sender.
///
/// # Errors
/// They are not, or the hashes do not show it.
pub fn check_part(
    name: &Hash,
    chunk_len: u64,
    groups: Values<'_>,
    leaves: Values<'_>,
    offset: u64,
    bytes: &[u8],
) -> Result<(), PartError> {
    let len = bytes.len() as u64;
    let end = offset.checked_add(len).filter(|end| *end <= chunk_len);
    let is_cut = |at: u64| at.is_multiple_of(LEAF) || at == chunk_len;
    let Some(end) = end.filter(|end| is_cut(*end) && is_cut(offset)) else {
        return Err(PartError::Bounds { offset, len, chunk_len });
    };
    if len == chunk_len && group_count(chunk_len) == 0 {
        return if chunk_hash(bytes) == *name { Ok(()) } else { Err(PartError::Bytes) };
    }
    verify_groups(name, chunk_len, groups).map_err(|_| PartError::Hashes)?;
    let (mut at, mut leaves) = (offset, leaves);
    for edge in edges(chunk_len, &(offset..end)) {
        let count = (edge.end - edge.start).div_ceil(LEAF) as usize;
        let (of_edge, rest) = leaves.split_at_checked(count).ok_or(PartError::Hashes)?;
        leaves = rest;
        if !lead_to(name, groups, &edge, of_edge) {
            return Err(PartError::Hashes);
        }
        // The whole groups before this edge.
        check_groups(groups, at, &bytes[(at - offset) as usize..(edge.start.max(at) - offset) as usize])?;
        let part = edge.start.max(offset)..edge.end.min(end);
        let first = ((part.start - edge.start) / LEAF) as usize;
        let found =
            leaf_values(part.start / LEAF, &bytes[(part.start - offset) as usize..(part.end - offset) as usize]);
        if of_edge.get(first..first + found.len()) != Some(&found) {
            return Err(PartError::Bytes);
        }
        at = part.end;
    }
    check_groups(groups, at, &bytes[(at - offset) as usize..])
}

/// Checks whole groups, the first of which begins at `at` of the chunk.
fn check_groups(groups: Values<'_>, at: u64, bytes: &[u8]) -> Result<(), PartError> {
    let first = (at / GROUP) as usize;
    let found = group_values(at / GROUP, bytes);
    match found.is_empty() || groups.get(first..first + found.len()) == Some(&found) {
        true => Ok(()),
        false => Err(PartError::Bytes),
    }
}

/// Whether the leaves of a group lead to its hash, or to the name of a chunk of one group.
fn lead_to(name: &Hash, groups: Values<'_>, group: &Range<u64>, leaves: Values<'_>) -> bool {
    match groups.get((group.start / GROUP) as usize) {
        Some(hash) => join(leaves).as_ref() == Some(hash),
        None => join_to_name(leaves).as_ref() == Some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::tests::class;
    use crate::layout::ClassLayout;
    use tessera_accel::hash::{Tree, tree};

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * i % 251) as u8 ^ (i / 777) as u8).collect()
    }

    struct Part {
        tree: Tree,
        chunk_len: u64,
        leaves: Vec<[u8; HASH_BYTES]>,
        offset: u64,
        bytes: Vec<u8>,
    }

    impl Part {
        fn check(&self) -> Result<(), PartError> {
            let Part { tree, chunk_len, leaves, offset, bytes } = self;
            check_part(&tree.root, *chunk_len, &tree.groups, leaves, *offset, bytes)
        }
    }

    /// Every plain fragment of a chunk of `len` bytes.
    fn parts(spec: &str, len: usize) -> Vec<Part> {
        let (class, chunk, chunk_len) = (class(spec), bytes(len), len as u64);
        let part = |fragment| {
            let offset = class.plain_offset(chunk_len, fragment)?;
            let range = offset..offset + class.fragment_bytes(chunk_len, fragment)?;
            let bytes = chunk[range.start as usize..range.end as usize].to_vec();
            Some(Part { tree: tree(&chunk), chunk_len, leaves: edge_leaves(&chunk, range), offset, bytes })
        };
        (0..class.fragments()).filter_map(part).collect()
    }

    const SPECS: [&str; 6] = ["ec:4+2", "copy+ec:3+2", "raid6:4+2", "raid6:9+2", "replica:3", "ec:1+1"];
    const LENGTHS: [usize; 11] = [1, 1_024, 1_025, 7_168, 10_000, 16_384, 16_385, 40_000, 65_536, 100_003, 300_000];

    /// Every copy and slice of every family, at all edge lengths, is shown to be a part of its chunk; slices of whole groups
    /// need no leaves.
    #[test]
    fn every_plain_fragment_is_proven() {
        for (spec, len) in SPECS.into_iter().flat_map(|spec| LENGTHS.map(|len| (spec, len))) {
            for part in parts(spec, len) {
                assert_eq!(part.check(), Ok(()), "{spec} {len} at {}", part.offset);
                assert!(part.leaves.is_empty() || spec.starts_with("raid6"), "{spec} {len}");
            }
        }
    }

    /// P2: a flipped bit, another place, other hashes, another name: none of it passes.
    #[test]
    fn nothing_else_is_proven() {
        for (spec, len) in SPECS.into_iter().flat_map(|spec| LENGTHS.map(|len| (spec, len))) {
            for (number, part) in parts(spec, len).into_iter().enumerate().filter(|(_, part)| !part.bytes.is_empty()) {
                let refused = |change: &dyn Fn(&mut Part)| {
                    let mut part = Part {
                        tree: part.tree.clone(),
                        leaves: part.leaves.clone(),
                        bytes: part.bytes.clone(),
                        ..part
                    };
                    change(&mut part);
                    assert!(part.check().is_err(), "{spec} {len} fragment {number}");
                };
                for at in [0, part.bytes.len() / 2, part.bytes.len() - 1] {
                    refused(&|part| part.bytes[at] ^= 1);
                }
                refused(&|part| part.tree.root.0[31] ^= 1);
                refused(&|part| part.offset += LEAF);
                refused(&|part| part.offset = u64::MAX);
                // What ends with a leaf is a part, too; that a fragment has its whole length, its receipt says.
                if !(part.offset + part.bytes.len() as u64 - 1).is_multiple_of(LEAF) {
                    refused(&|part| _ = part.bytes.pop());
                }
                refused(&|part| part.bytes.push(0));
                for group in 0..part.tree.groups.len() {
                    refused(&|part| part.tree.groups[group][0] ^= 1);
                }
                for leaf in 0..part.leaves.len() {
                    refused(&|part| part.leaves[leaf][0] ^= 1);
                }
                if !part.leaves.is_empty() {
                    refused(&|part| _ = part.leaves.pop());
                }
            }
        }
    }
}
