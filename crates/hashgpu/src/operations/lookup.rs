//! Look-ups on a device: keys in levels of sorted arrays, hashes in a blocked Bloom filter. The searched data is part
//! of the input; [`crate::ResidentLevels`] keeps levels on the device.
#![allow(unsafe_code)]

use crate::lookup::{BlockedBloom, KeyPosition, Levels, block_of, mask};
use std::sync::Arc;
use tessera_accel::Isa;
use tessera_accel::kernels::{BloomQuery, Kernel, Launch, LookupLevels};
use tessera_accel::runtime::{Addresses, Buffer, NoMemory, Operation, Sizes};

fn words(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
    bytes.chunks_exact(8).map(word)
}

fn word(b: &[u8]) -> u64 {
    u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

/// For each query the newest level that has it, and its position there.
///
/// Input: the levels' keys, newest level first, each strictly rising; then the queries; all u64. Output: a u64 for each
/// query, level · 2^32 + index, or all ones.
#[derive(Debug, Clone)]
pub struct FindInLevels {
    lens: Vec<usize>,
    keys: usize,
    queries: usize,
}

impl FindInLevels {
    /// Levels of these lengths, and `queries` queries. `None` if there are more than 2^32 − 1 keys in all.
    pub fn new(lens: &[usize], queries: usize) -> Option<FindInLevels> {
        let keys = lens.iter().try_fold(0usize, |sum, len| sum.checked_add(*len))?;
        let fits = u32::try_from(keys).is_ok() && queries < 1 << 31 && lens.len() < 1 << 16;
        fits.then(|| FindInLevels { lens: lens.to_vec(), keys, queries })
    }

    /// Fills the input with levels of these lengths and with the queries.
    pub fn pack(&self, levels: &Levels<'_, u64>, queries: &[u64], input: &mut [u8]) {
        assert!(
            levels.levels().iter().map(|level| level.keys().len()).eq(self.lens.iter().copied()),
            "lengths of levels"
        );
        assert_eq!(queries.len(), self.queries, "queries");
        let all = levels.levels().iter().flat_map(|level| level.keys()).chain(queries);
        input.chunks_exact_mut(8).zip(all).for_each(|(room, key)| room.copy_from_slice(&key.to_ne_bytes()));
    }

    /// Reads the output: the place of each query.
    pub fn read(&self, output: &[u8]) -> Vec<Option<KeyPosition>> {
        read(output)
    }

    /// Where each level begins, and where the last ends.
    fn firsts(&self) -> Vec<u32> {
        let ends = self.lens.iter().scan(0, |end, len| {
            *end += *len as u32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }
}

fn read(output: &[u8]) -> Vec<Option<KeyPosition>> {
    let found = |at: u64| KeyPosition { level: (at >> 32) as u16, index: at as u32 };
    words(output).map(|at| (at != u64::MAX).then(|| found(at))).collect()
}

/// Computes what the kernel answers, one query and one level after another.
fn find_all(keys: &[u64], firsts: &[u32], queries: impl Iterator<Item = u64>, output: &mut [u8]) {
    for (room, query) in output.chunks_exact_mut(8).zip(queries) {
        let levels = firsts.windows(2).enumerate();
        let found = levels.map(|(level, ends)| (level, &keys[ends[0] as usize..ends[1] as usize]));
        let found = found.filter_map(|(level, keys)| Some((level, keys.binary_search(&query).ok()?))).next();
        let found = found.map_or(u64::MAX, |(level, index)| (level as u64) << 32 | index as u64);
        room.copy_from_slice(&found.to_ne_bytes());
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for FindInLevels {
    fn primitive(&self) -> &'static str {
        "lookup"
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: 8 * (self.keys + self.queries), output: 8 * self.queries, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        let all: Vec<u64> = words(input).collect();
        let (keys, queries) = all.split_at(self.keys);
        find_all(keys, &self.firsts(), queries.iter().copied(), output);
        Ok(())
    }

    /// As many rising keys as queries; about half of the queries are found.
    fn make_valid(&self, random: &mut [u8]) {
        let keys = self.keys as u64;
        for (i, slot) in (0..).zip(random.chunks_exact_mut(8)) {
            let key = if i < keys { 2 * i } else { word(slot) % (2 * keys).max(1) };
            slot.copy_from_slice(&key.to_ne_bytes());
        }
    }

    fn tables(&self) -> Vec<u8> {
        self.firsts().into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let argument = LookupLevels {
            keys: at.input,
            firsts: at.tables,
            queries: at.input + 8 * self.keys as u64,
            found: at.result,
            query_count: self.queries as u64,
            level_count: self.lens.len() as u32,
            unused: 0,
        };
        Launch::new(Kernel::LookupLevels, self.queries, 1, argument.to_bytes()).into_iter().collect()
    }
}

/// Levels in the layout of a device that keeps them, which the CPU can also search.
#[derive(Debug)]
pub(crate) struct HostLevels {
    keys: Vec<u64>,
    firsts: Vec<u32>,
}

impl HostLevels {
    /// A copy of the levels; `None` if there are more keys than positions can number.
    pub fn new(levels: &Levels<'_, u64>) -> Option<HostLevels> {
        let lens: Vec<usize> = levels.levels().iter().map(|level| level.keys().len()).collect();
        let firsts = FindInLevels::new(&lens, 0)?.firsts();
        let keys = levels.levels().iter().flat_map(|level| level.keys()).copied().collect();
        Some(HostLevels { keys, firsts })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        8 * self.keys.len() + 4 * self.firsts.len()
    }

    /// Fills the device's copy: the keys, then the start of each level.
    pub fn pack(&self, room: &mut [u8]) {
        let (keys, firsts) = room.split_at_mut(8 * self.keys.len());
        keys.chunks_exact_mut(8).zip(&self.keys).for_each(|(room, key)| room.copy_from_slice(&key.to_ne_bytes()));
        firsts.chunks_exact_mut(4).zip(&self.firsts).for_each(|(room, at)| room.copy_from_slice(&at.to_ne_bytes()));
    }
}

/// [`FindInLevels`] in levels at `address` of a device. The caller must target that device.
///
/// Input: the queries. Output: as for [`FindInLevels`].
#[derive(Debug, Clone)]
pub(crate) struct FindInResident {
    levels: Arc<HostLevels>,
    address: u64,
    queries: usize,
}

impl FindInResident {
    pub fn new(levels: Arc<HostLevels>, address: u64, queries: usize) -> FindInResident {
        FindInResident { levels, address, queries }
    }

    pub fn read(&self, output: &[u8]) -> Vec<Option<KeyPosition>> {
        read(output)
    }
}

// SAFETY: its kernel touches only its own memory and the levels, which `ResidentLevels` keeps until its jobs have ended.
unsafe impl Operation for FindInResident {
    fn primitive(&self) -> &'static str {
        "lookup"
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: 8 * self.queries, output: 8 * self.queries, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        find_all(&self.levels.keys, &self.levels.firsts, words(input), output);
        Ok(())
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let argument = LookupLevels {
            keys: self.address,
            firsts: self.address + 8 * self.levels.keys.len() as u64,
            queries: at.input,
            found: at.result,
            query_count: self.queries as u64,
            level_count: self.levels.firsts.len() as u32 - 1,
            unused: 0,
        };
        Launch::new(Kernel::LookupLevels, self.queries, 1, argument.to_bytes()).into_iter().collect()
    }
}

/// For each hash, whether a blocked Bloom filter may hold its key. Block and bits of a hash are those of the Apache
/// Parquet specification's split block filter; the block is (high half · blocks) / 2^32.
///
/// Input: the filter's blocks of eight u32, then the hashes, u64. Output: a byte for each hash, 1 or 0.
#[derive(Debug, Clone)]
pub struct AskBloom {
    blocks: usize,
    queries: usize,
}

const BLOCK_BYTES: usize = 32;
const _: () = assert!(BLOCK_BYTES == size_of::<[u32; 8]>());
impl AskBloom {
    /// A filter of `blocks` blocks, and `queries` hashes. `None` without a block, or beyond 2^32 blocks.
    pub fn new(blocks: usize, queries: usize) -> Option<AskBloom> {
        let fits = blocks > 0 && u32::try_from(blocks).is_ok() && queries < 1 << 31;
        fits.then_some(AskBloom { blocks, queries })
    }

    /// Fills the input with a filter of that many blocks, and the hashes.
    pub fn pack(&self, filter: &BlockedBloom, hashes: &[u64], input: &mut [u8]) {
        assert!(filter.blocks().len() == self.blocks && hashes.len() == self.queries, "blocks and hashes");
        let (blocks, room) = input.split_at_mut(BLOCK_BYTES * self.blocks);
        let words = filter.blocks().iter().flatten();
        blocks.chunks_exact_mut(4).zip(words).for_each(|(room, word)| room.copy_from_slice(&word.to_ne_bytes()));
        room.chunks_exact_mut(8).zip(hashes).for_each(|(room, hash)| room.copy_from_slice(&hash.to_ne_bytes()));
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for AskBloom {
    fn primitive(&self) -> &'static str {
        "bloom"
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: BLOCK_BYTES * self.blocks + 8 * self.queries, output: self.queries, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        let (filter, hashes) = input.split_at(BLOCK_BYTES * self.blocks);
        for (passes, hash) in output.iter_mut().zip(words(hashes)) {
            let words = filter[BLOCK_BYTES * block_of(hash, self.blocks)..].chunks_exact(4);
            let word = |b: &[u8]| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
            *passes = u8::from(words.zip(mask(hash)).all(|(bytes, bit)| word(bytes) & bit != 0));
        }
        Ok(())
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let argument = BloomQuery {
            blocks: at.input,
            hashes: at.input + (BLOCK_BYTES * self.blocks) as u64,
            passes: at.result,
            block_count: self.blocks as u64,
            query_count: self.queries as u64,
        };
        Launch::new(Kernel::BloomQuery, self.queries, 1, argument.to_bytes()).into_iter().collect()
    }
}
