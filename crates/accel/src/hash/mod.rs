//! BLAKE3 names of chunks, and the part of BLAKE3's tree that lets a reader verify 16 KiB of a chunk without reading
//! the rest (P2).
//!
//! A chunk's name is its standard BLAKE3-256 digest, which `b3sum` also computes. BLAKE3 is a binary Merkle tree over
//! 1,024-byte leaves (BLAKE3 paper, §2.1). Tessera keeps the chaining values of the subtrees that cover 16 KiB each,
//! called *groups*. With them a reader recomputes the name ([`verify_groups`]) and then checks any group alone
//! ([`verify_group`]).
//!
//! | chunk length L | groups kept |
//! |---|---|
//! | L ≤ 16,384 | none: the chunk is one group, and its name verifies it |
//! | L > 16,384 | ⌈L / 16,384⌉ chaining values of 32 bytes, in order; the last group may be short |

mod batch;
mod lanes;
mod reference;

#[cfg(test)]
mod tests;

use crate::isa::Isa;
use blake3::hazmat::{self, HasherExt, Mode};
use std::fmt;
use std::str::FromStr;

pub use batch::{batch, batch_on};

/// Bytes that one group covers (the last group of a chunk may cover fewer).
pub const GROUP_BYTES: usize = 16 * 1024;

/// Bytes in a name or a chaining value.
pub const HASH_BYTES: usize = 32;

/// Bytes of a leaf of the tree (the last leaf of a chunk may have fewer).
pub const LEAF_BYTES: usize = reference::LEAF_BYTES;

// Groups are whole subtrees of BLAKE3's tree, and digests have the length that the `blake3` crate gives.
const _: () = assert!(GROUP_BYTES.is_power_of_two() && GROUP_BYTES.is_multiple_of(reference::LEAF_BYTES));
const _: () = assert!(HASH_BYTES == blake3::OUT_LEN && reference::LEAF_BYTES == blake3::CHUNK_LEN);
const _: () = assert!(reference::BLOCK_BYTES == blake3::BLOCK_LEN && 2 * HASH_BYTES == reference::BLOCK_BYTES);

/// BLAKE3-256 digest: the name of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash(pub [u8; HASH_BYTES]);

impl Hash {
    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; HASH_BYTES] {
        &self.0
    }
}

impl From<[u8; HASH_BYTES]> for Hash {
    fn from(bytes: [u8; HASH_BYTES]) -> Hash {
        Hash(bytes)
    }
}

impl TryFrom<&[u8]> for Hash {
    type Error = HashParseError;
    fn try_from(bytes: &[u8]) -> Result<Hash, HashParseError> {
        let got = bytes.len();
        Ok(Hash(bytes.try_into().map_err(|_| HashParseError::Length { got })?))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

impl FromStr for Hash {
    type Err = HashParseError;
    /// Reads 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Hash, HashParseError> {
        let hash = blake3::Hash::from_hex(text).map_err(|_| HashParseError::Hex { got: text.to_owned() })?;
        Ok(Hash(*hash.as_bytes()))
    }
}

/// Why a value is not a [`struct@Hash`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HashParseError {
    /// Not 32 bytes.
    #[error("a chunk name has 32 bytes, got {got}")]
    Length {
        /// Bytes given.
        got: usize,
    },
    /// Not 64 hexadecimal digits.
    #[error("a chunk name is written as 64 hexadecimal digits, got {got:?}")]
    Hex {
        /// Text given.
        got: String,
    },
}

/// A chunk's name and the chaining values of its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The chunk's standard BLAKE3 digest.
    pub root: Hash,
    /// One chaining value per group; empty when the chunk has at most [`GROUP_BYTES`].
    pub groups: Vec<[u8; HASH_BYTES]>,
}

/// Why part of a chunk was not verified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The list has the wrong length for the chunk.
    #[error("a chunk of {chunk_len} bytes has {expected} group hashes, got {got}; fetch them from another fragment")]
    GroupCount {
        /// Length of the chunk in bytes.
        chunk_len: u64,
        /// Hashes that such a chunk has.
        expected: u64,
        /// Hashes given.
        got: usize,
    },
    /// The group hashes do not lead to the chunk's name.
    #[error("group hashes lead to {got}, the chunk's name is {expected}; fetch them from another fragment")]
    Root {
        /// The chunk's name.
        expected: Hash,
        /// The name computed from the group hashes.
        got: Hash,
    },
    /// The chunk has no group of this index.
    #[error("group {index} asked for, a chunk of {chunk_len} bytes has {groups}")]
    Index {
        /// Index asked for.
        index: u64,
        /// Groups that the chunk has.
        groups: u64,
        /// Length of the chunk in bytes.
        chunk_len: u64,
    },
    /// The bytes are not as long as the group.
    #[error("group {index} of a chunk of {chunk_len} bytes has {expected} bytes, got {got}")]
    GroupLength {
        /// Index of the group.
        index: u64,
        /// Length of the chunk in bytes.
        chunk_len: u64,
        /// Bytes that the group covers.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// The bytes differ from those that were hashed.
    #[error("group {index}: the bytes do not have the group's hash; read the fragment from another node")]
    Group {
        /// Index of the group.
        index: u64,
    },
}

/// Standard BLAKE3-256 digest of a chunk.
pub fn chunk_hash(chunk: &[u8]) -> Hash {
    Hash(*blake3::hash(chunk).as_bytes())
}

/// [`chunk_hash`] of a chunk that lies in several slices, without joining them.
pub fn chunk_hash_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    Hash(*hasher.finalize().as_bytes())
}

/// [`chunk_hash`] on `isa`: [`Isa::REFERENCE`] is the reference (P10). All others use the `blake3` crate, which detects
/// instruction sets itself.
pub fn chunk_hash_on(isa: Isa, chunk: &[u8]) -> Hash {
    if isa == Isa::REFERENCE { reference::tree(chunk).root } else { chunk_hash(chunk) }
}

/// [`tree`] on `isa`, as in [`chunk_hash_on`].
pub fn tree_on(isa: Isa, chunk: &[u8]) -> Tree {
    if isa == Isa::REFERENCE { reference::tree(chunk) } else { tree(chunk) }
}

/// Number of group hashes of a chunk of `chunk_len` bytes (0 when it is a single group).
pub fn group_count(chunk_len: u64) -> u64 {
    if chunk_len <= GROUP_BYTES as u64 { 0 } else { chunk_len.div_ceil(GROUP_BYTES as u64) }
}

/// Digest of a chunk and the chaining values of its groups, in one pass over the bytes.
pub fn tree(chunk: &[u8]) -> Tree {
    if chunk.len() <= GROUP_BYTES {
        return Tree { root: chunk_hash(chunk), groups: Vec::new() };
    }
    let groups = group_values(0, chunk);
    Tree { root: root_of(&groups), groups }
}

/// Chaining values of the groups in `bytes`, which lie `first_group` groups into a longer chunk. The last group may be
/// short.
pub fn group_values(first_group: u64, bytes: &[u8]) -> Vec<[u8; HASH_BYTES]> {
    bytes.chunks(GROUP_BYTES).zip(first_group..).map(|(bytes, index)| group_chaining_value(index, bytes)).collect()
}

/// Chaining values of the leaves in `bytes`, which lie `first_leaf` leaves into a longer chunk. The last leaf may be short.
pub fn leaf_values(first_leaf: u64, bytes: &[u8]) -> Vec<[u8; HASH_BYTES]> {
    let value = |(leaf, index): (&[u8], u64)| {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(index * LEAF_BYTES as u64);
        hasher.update(leaf);
        hasher.finalize_non_root()
    };
    bytes.chunks(LEAF_BYTES).zip(first_leaf..).map(value).collect()
}

/// BLAKE3 of `bytes` under a key: only who knows the key can compute it.
pub fn keyed_hash(key: &[u8; HASH_BYTES], bytes: &[u8]) -> Hash {
    Hash(*blake3::keyed_hash(key, bytes).as_bytes())
}

/// Chaining value above those of neighbouring groups, or of equally large parts of a chunk, the last of which may be
/// smaller. It is correct where the joined part begins at a multiple of its size rounded up to a power of two. `None`
/// if `values` is empty.
pub fn join(values: &[[u8; HASH_BYTES]]) -> Option<[u8; HASH_BYTES]> {
    (!values.is_empty()).then(|| subtree(values))
}

/// The name of a chunk that consists of two or more parts: its groups, or [`join`]ed parts of a power of two of groups
/// each. `None` if there are fewer than two.
pub fn join_to_name(values: &[[u8; HASH_BYTES]]) -> Option<Hash> {
    (values.len() >= 2).then(|| root_of(values))
}

/// Checks that `groups` are the group hashes of the chunk named `root`, which has `chunk_len` bytes.
///
/// Afterwards every group that [`verify_group`] accepts is part of that chunk. For a chunk of at most [`GROUP_BYTES`]
/// there is nothing to check: [`chunk_hash`] verifies its bytes.
///
/// # Errors
/// The number of groups is wrong for `chunk_len`, or they do not give `root`.
pub fn verify_groups(root: &Hash, chunk_len: u64, groups: &[[u8; HASH_BYTES]]) -> Result<(), TreeError> {
    check_count(chunk_len, groups)?;
    if groups.is_empty() {
        return Ok(());
    }
    let got = root_of(groups);
    if got == *root { Ok(()) } else { Err(TreeError::Root { expected: *root, got }) }
}

/// Checks that `bytes` are group `index` of a chunk whose `groups` have passed [`verify_groups`].
///
/// A chunk of at most [`GROUP_BYTES`] has no group 0: compare its [`chunk_hash`] with its name.
///
/// # Errors
/// There is no such group, or the length or content of `bytes` is wrong.
pub fn verify_group(index: u64, chunk_len: u64, groups: &[[u8; HASH_BYTES]], bytes: &[u8]) -> Result<(), TreeError> {
    check_count(chunk_len, groups)?;
    let Some(wanted) = usize::try_from(index).ok().and_then(|i| groups.get(i)) else {
        return Err(TreeError::Index { index, groups: groups.len() as u64, chunk_len });
    };
    let expected = (chunk_len - index * GROUP_BYTES as u64).min(GROUP_BYTES as u64) as usize;
    if bytes.len() != expected {
        return Err(TreeError::GroupLength { index, chunk_len, expected, got: bytes.len() });
    }
    if group_chaining_value(index, bytes) == *wanted { Ok(()) } else { Err(TreeError::Group { index }) }
}

fn check_count(chunk_len: u64, groups: &[[u8; HASH_BYTES]]) -> Result<(), TreeError> {
    let expected = group_count(chunk_len);
    if groups.len() as u64 == expected {
        Ok(())
    } else {
        Err(TreeError::GroupCount { chunk_len, expected, got: groups.len() })
    }
}

/// Chaining value of a whole non-empty group; `bytes` has at most [`GROUP_BYTES`].
fn group_chaining_value(index: u64, bytes: &[u8]) -> [u8; HASH_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(index * GROUP_BYTES as u64);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// Digest above two or more group hashes. A node's left child is the largest power of two of groups that
/// leaves at least one to the right (BLAKE3 paper, §2.1).
fn root_of(groups: &[[u8; HASH_BYTES]]) -> Hash {
    let (left, right) = groups.split_at(left_count(groups.len()));
    Hash(*hazmat::merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes())
}

fn subtree(groups: &[[u8; HASH_BYTES]]) -> [u8; HASH_BYTES] {
    if let [one] = groups {
        return *one;
    }
    let (left, right) = groups.split_at(left_count(groups.len()));
    hazmat::merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
}

fn left_count(count: usize) -> usize {
    debug_assert!(count >= 2);
    count.div_ceil(2).next_power_of_two()
}
