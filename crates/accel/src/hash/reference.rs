//! BLAKE3 written from the paper, one block at a time: the definition that every faster path must equal (P10).
//!
//! Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere", 2020, §2.1 (tree), §2.2
//! (compression function), table 1 (initial value), table 2 (permutation).

use super::{GROUP_BYTES, HASH_BYTES, Hash, Tree};

pub const LEAF_BYTES: usize = 1024;
pub const BLOCK_BYTES: usize = 64;
pub const CHUNK_START: u32 = 1;
pub const CHUNK_END: u32 = 2;
pub const PARENT: u32 = 4;
pub const ROOT: u32 = 8;

pub const IV: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
pub const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];

/// [`super::chunk_hash`] and [`super::tree`], slowly.
pub fn tree(chunk: &[u8]) -> Tree {
    let mut groups = Vec::new();
    if chunk.len() > GROUP_BYTES {
        collect_groups(chunk, 0, &mut groups);
    }
    Tree { root: Hash(subtree(chunk, 0, ROOT)), groups }
}

fn collect_groups(bytes: &[u8], first_leaf: u64, groups: &mut Vec<[u8; HASH_BYTES]>) {
    if bytes.len() <= GROUP_BYTES {
        groups.push(subtree(bytes, first_leaf, 0));
        return;
    }
    let (left, right) = bytes.split_at(left_len(bytes.len()));
    collect_groups(left, first_leaf, groups);
    collect_groups(right, first_leaf + (left.len() / LEAF_BYTES) as u64, groups);
}

/// Chaining value of the subtree over `bytes`, whose first leaf has index `first_leaf` in the chunk.
fn subtree(bytes: &[u8], first_leaf: u64, flags: u32) -> [u8; HASH_BYTES] {
    if bytes.len() <= LEAF_BYTES {
        return leaf(bytes, first_leaf, flags);
    }
    let (left, right) = bytes.split_at(left_len(bytes.len()));
    let mut block = [0u8; BLOCK_BYTES];
    block[..HASH_BYTES].copy_from_slice(&subtree(left, first_leaf, 0));
    block[HASH_BYTES..].copy_from_slice(&subtree(right, first_leaf + (left.len() / LEAF_BYTES) as u64, 0));
    to_bytes(&compress(&IV, &block, 0, BLOCK_BYTES, PARENT | flags))
}

/// The largest power of two of leaves that leaves at least one byte to the right.
fn left_len(len: usize) -> usize {
    let leaves = (len - 1) / LEAF_BYTES;
    LEAF_BYTES << leaves.ilog2()
}

fn leaf(bytes: &[u8], index: u64, flags: u32) -> [u8; HASH_BYTES] {
    let count = bytes.len().div_ceil(BLOCK_BYTES).max(1);
    let mut value = IV;
    for i in 0..count {
        let part = &bytes[i * BLOCK_BYTES..bytes.len().min((i + 1) * BLOCK_BYTES)];
        let mut block = [0u8; BLOCK_BYTES];
        block[..part.len()].copy_from_slice(part);
        let mut block_flags = 0;
        if i == 0 {
            block_flags |= CHUNK_START;
        }
        if i + 1 == count {
            block_flags |= CHUNK_END | flags;
        }
        value = compress(&value, &block, index, part.len(), block_flags);
    }
    to_bytes(&value)
}

fn compress(value: &[u32; 8], block: &[u8; BLOCK_BYTES], counter: u64, len: usize, flags: u32) -> [u32; 8] {
    let mut m: [u32; 16] = std::array::from_fn(|i| {
        u32::from_le_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]])
    });
    let mut v = [0u32; 16];
    v[..8].copy_from_slice(value);
    v[8..12].copy_from_slice(&IV[..4]);
    v[12..].copy_from_slice(&[counter as u32, (counter >> 32) as u32, len as u32, flags]);
    for round in 0..7 {
        if round > 0 {
            m = PERMUTATION.map(|i| m[i]);
        }
        for (i, [a, b, c, d]) in [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]].into_iter().enumerate()
        {
            quarter(&mut v, a, b, c, d, m[2 * i], m[2 * i + 1]);
        }
        for (i, [a, b, c, d]) in [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]].into_iter().enumerate()
        {
            quarter(&mut v, a, b, c, d, m[8 + 2 * i], m[9 + 2 * i]);
        }
    }
    std::array::from_fn(|i| v[i] ^ v[i + 8])
}

fn quarter(v: &mut [u32; 16], a: usize, b: usize, c: usize, d: usize, x: u32, y: u32) {
    v[a] = v[a].wrapping_add(v[b]).wrapping_add(x);
    v[d] = (v[d] ^ v[a]).rotate_right(16);
    v[c] = v[c].wrapping_add(v[d]);
    v[b] = (v[b] ^ v[c]).rotate_right(12);
    v[a] = v[a].wrapping_add(v[b]).wrapping_add(y);
    v[d] = (v[d] ^ v[a]).rotate_right(8);
    v[c] = v[c].wrapping_add(v[d]);
    v[b] = (v[b] ^ v[c]).rotate_right(7);
}

fn to_bytes(words: &[u32; 8]) -> [u8; HASH_BYTES] {
    let mut bytes = [0u8; HASH_BYTES];
    for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
