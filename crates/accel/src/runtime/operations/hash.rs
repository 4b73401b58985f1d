//! BLAKE3 of a batch of buffers, with or without the hashes of their 16 KiB groups.
#![allow(unsafe_code)]

use crate::hash::{GROUP_BYTES, HASH_BYTES, Hash, Tree, chunk_hash_on, group_count, group_values, tree_on};
use crate::isa::Isa;
use crate::kernels::{Blake3Buffer, Blake3Item, Blake3Leaves, Blake3Parents, Kernel, Launch};
use crate::runtime::operation::{Addresses, Operation, Packed, Sizes, padded};
use crate::runtime::{Buffer, NoMemory};

const LEAF_BYTES: usize = 1024;
const GROUP_LEAVES: u32 = (GROUP_BYTES / LEAF_BYTES) as u32;
/// Chaining values that one warp joins at once.
const JOINED: u32 = 64;
/// Threads of a warp.
const WARP: usize = 32;

// A warp joins values in pairs, so it takes two per thread, and all values of a group at once.
const _: () = assert!(JOINED as usize == 2 * WARP && GROUP_LEAVES.is_power_of_two() && GROUP_LEAVES <= JOINED);

/// Names (and group hashes) of a batch of buffers, or the group values of a part of longer data.
///
/// Input: the buffers, each at a multiple of 16. Output: a digest for each buffer (none for a part), then, if
/// requested, the group hashes of the first buffer, the second, and so on. Each entry has 32 bytes.
#[derive(Debug, Clone)]
pub struct HashBatch {
    with_groups: bool,
    /// For a part of longer data: the number of groups before it.
    part_of: Option<u64>,
    buffers: Packed,
    plan: Plan,
}

impl HashBatch {
    /// Names of buffers of these lengths. `None` if the batch has more than 2^31 leaves of 1 KiB.
    pub fn names(lens: &[usize]) -> Option<HashBatch> {
        HashBatch::new(lens, false)
    }

    /// Names and group hashes of buffers of these lengths. `None` as for [`HashBatch::names`].
    pub fn trees(lens: &[usize]) -> Option<HashBatch> {
        HashBatch::new(lens, true)
    }

    fn new(lens: &[usize], with_groups: bool) -> Option<HashBatch> {
        let buffers = Packed::new(lens)?;
        if lens.iter().map(|len| len / LEAF_BYTES + 1).sum::<usize>() >= 1 << 31 {
            return None;
        }
        let plan = Plan::new(&buffers);
        Some(HashBatch { with_groups, part_of: None, buffers, plan })
    }

    /// The group values of `len` bytes that start `first_group` groups into longer data, which is hashed part by part.
    /// `None` if the part is empty, is the whole data and a single leaf, or ends beyond 2^31 leaves of 1 KiB.
    pub fn part(first_group: u64, len: usize) -> Option<HashBatch> {
        let first_leaf = first_group.checked_mul(u64::from(GROUP_LEAVES))?;
        let leaves = len.div_ceil(LEAF_BYTES) as u64;
        if leaves == 0 || first_leaf == 0 && leaves == 1 || first_leaf.checked_add(leaves)? >= 1 << 31 {
            return None;
        }
        let plan = Plan::part(first_leaf as u32, len, leaves as u32);
        Some(HashBatch { with_groups: true, part_of: Some(first_group), buffers: Packed::new(&[len])?, plan })
    }

    /// Reads the group values of a part.
    pub fn read_part(&self, output: &[u8]) -> Vec<[u8; HASH_BYTES]> {
        assert_eq!(output.len(), self.output_bytes(), "output of a part");
        output.chunks_exact(HASH_BYTES).take(self.group_total()).map(value).collect()
    }

    /// Copies a buffer to its place in the input.
    pub fn pack(&self, index: usize, bytes: &[u8], input: &mut [u8]) {
        self.buffers.pack(index, bytes, input);
    }

    /// Reads the names.
    pub fn read_names(&self, output: &[u8]) -> Vec<Hash> {
        assert_eq!(output.len(), self.output_bytes(), "output of {} buffers", self.buffers.count());
        output.chunks_exact(HASH_BYTES).take(self.buffers.count()).map(|b| Hash(value(b))).collect()
    }

    /// Reads names and group hashes.
    pub fn read_trees(&self, output: &[u8]) -> Vec<Tree> {
        let mut groups = output.chunks_exact(HASH_BYTES).skip(self.buffers.count()).map(value);
        let names = self.read_names(output).into_iter().zip(self.buffers.ranges());
        names.map(|(root, (_, len))| Tree { root, groups: groups.by_ref().take(groups_of(len)).collect() }).collect()
    }

    fn group_total(&self) -> usize {
        // A part may be a single group, which has a value unlike that of whole data.
        let count =
            |(_, len): (usize, usize)| if self.part_of.is_some() { len.div_ceil(GROUP_BYTES) } else { groups_of(len) };
        self.buffers.ranges().map(count).sum()
    }
}

fn groups_of(len: usize) -> usize {
    group_count(len as u64) as usize
}

fn value(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let mut value = [0; HASH_BYTES];
    value.copy_from_slice(bytes);
    value
}

/// Where each chaining value goes. Values are numbered: names, groups, then intermediate values.
#[derive(Debug, Clone, Default)]
struct Plan {
    buffers: Vec<Blake3Buffer>,
    leaf_count: u32,
    /// What to join, level by level; a level needs all results of the one before.
    levels: Vec<Vec<Blake3Item>>,
    next: u32,
}

impl Plan {
    fn new(buffers: &Packed) -> Plan {
        let names = buffers.count() as u32;
        let groups: usize = buffers.ranges().map(|(_, len)| groups_of(len)).sum();
        let mut plan = Plan { next: names + groups as u32, ..Plan::default() };
        let mut group = names;
        for (index, (start, len)) in buffers.ranges().enumerate() {
            let leaves = len.div_ceil(LEAF_BYTES).max(1) as u32;
            let first = if leaves == 1 { index as u32 } else { plan.take(leaves) };
            let first_leaf = plan.leaf_count;
            let (offset, bytes) = (start as u64, len as u64);
            plan.buffers.push(Blake3Buffer { offset, bytes, first_leaf, value: first });
            plan.leaf_count += leaves;
            if leaves > GROUP_LEAVES {
                let groups = leaves.div_ceil(GROUP_LEAVES);
                plan.join_all(0, first, leaves, GROUP_LEAVES, group);
                plan.join_to_root(1, group, groups, index as u32);
                group += groups;
            } else if leaves > 1 {
                plan.join_to_root(0, first, leaves, index as u32);
            }
        }
        plan
    }

    /// Treats the part as the end of the whole data: leaves, byte positions and value numbers are counted from the
    /// beginning of the whole. All these numbers wrap around; the kernel's additions undo the wrapping.
    fn part(first_leaf: u32, len: usize, leaves: u32) -> Plan {
        let before = u64::from(first_leaf) * LEAF_BYTES as u64;
        let groups = leaves.div_ceil(GROUP_LEAVES);
        let mut plan = Plan { next: groups, leaf_count: leaves, ..Plan::default() };
        let first = plan.take(leaves);
        plan.buffers.push(Blake3Buffer {
            offset: 0u64.wrapping_sub(before),
            bytes: before + len as u64,
            first_leaf: 0u32.wrapping_sub(first_leaf),
            value: first.wrapping_sub(first_leaf),
        });
        plan.join_all(0, first, leaves, GROUP_LEAVES, 0);
        plan
    }

    fn take(&mut self, count: u32) -> u32 {
        let first = self.next;
        self.next += count;
        first
    }

    fn push(&mut self, level: usize, item: Blake3Item) {
        self.levels.resize_with(self.levels.len().max(level + 1), Vec::new);
        self.levels[level].push(item);
    }

    /// Joins `count` values from `from` on, `by` at a time, to values from `to` on.
    fn join_all(&mut self, level: usize, from: u32, count: u32, by: u32, to: u32) {
        for i in 0..count.div_ceil(by) {
            let item = Blake3Item { from: from + i * by, count: by.min(count - i * by), to: to + i, root: 0 };
            self.push(level, item);
        }
    }

    fn join_to_root(&mut self, mut level: usize, mut from: u32, mut count: u32, to: u32) {
        while count > JOINED {
            let joined = count.div_ceil(JOINED);
            let above = self.take(joined);
            self.join_all(level, from, count, JOINED, above);
            (level, from, count) = (level + 1, above, joined);
        }
        self.push(level, Blake3Item { from, count, to, root: 1 });
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for HashBatch {
    fn primitive(&self) -> &'static str {
        if self.with_groups { "tree" } else { "hash" }
    }

    fn sizes(&self) -> Sizes {
        let groups = if self.with_groups { self.group_total() } else { 0 };
        let names = if self.part_of.is_some() { 0 } else { self.buffers.count() };
        let output = HASH_BYTES * (names + groups);
        // All values numbered after the downloaded ones.
        let scratch = (self.plan.next as usize * HASH_BYTES).saturating_sub(output);
        Sizes { input: self.buffers.bytes, output, scratch, ..Sizes::default() }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        let (names, mut groups) =
            output.split_at_mut(if self.part_of.is_some() { 0 } else { HASH_BYTES * self.buffers.count() });
        let mut put = |values: &[[u8; HASH_BYTES]]| {
            let (room, rest) = std::mem::take(&mut groups).split_at_mut(HASH_BYTES * values.len());
            room.copy_from_slice(values.as_flattened());
            groups = rest;
        };
        if let Some(first_group) = self.part_of {
            self.buffers.buffers(input).for_each(|bytes| put(&group_values(first_group, bytes)));
        }
        for (name, bytes) in names.chunks_exact_mut(HASH_BYTES).zip(self.buffers.buffers(input)) {
            let root = if self.with_groups {
                let tree = tree_on(isa, bytes);
                put(&tree.groups);
                tree.root
            } else {
                chunk_hash_on(isa, bytes)
            };
            name.copy_from_slice(root.as_bytes());
        }
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        let plan = &self.plan;
        let mut tables: Vec<u8> = plan.buffers.iter().flat_map(|b| b.to_bytes()).collect();
        tables.resize(padded(tables.len()), 0);
        tables.extend(plan.levels.iter().flatten().flat_map(|i| i.to_bytes()));
        tables
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let plan = &self.plan;
        if plan.leaf_count == 0 {
            return Vec::new();
        }
        let leaves = Blake3Leaves {
            data: at.input,
            buffers: at.tables,
            values: at.result,
            buffer_count: plan.buffers.len() as u32,
            leaf_count: plan.leaf_count,
        };
        let mut launches = Vec::with_capacity(1 + plan.levels.len());
        launches.extend(Launch::new(Kernel::Blake3Leaves, plan.leaf_count as usize, 1, leaves.to_bytes()));
        let mut items = at.tables + padded(plan.buffers.len() * size_of::<Blake3Buffer>()) as u64;
        for level in &plan.levels {
            let argument = Blake3Parents { values: at.result, items, item_count: level.len() as u32, unused: 0 };
            launches.extend(Launch::new(Kernel::Blake3Parents, level.len() * WARP, 1, argument.to_bytes()));
            items += (size_of::<Blake3Item>() * level.len()) as u64;
        }
        launches
    }
}
