//! The paper's index, for comparison with the one in `index.rs`: an entropy-coded trie over the keys of a block (H. Lim
//! et al., "SILT: a memory-efficient, high-performance key-value store", SOSP 2011, section 3.3; the paper's section
//! 3.1.2).
//!
//! A binary trie over the bits of evenly distributed numbers needs no pointers. A node of n keys stores how many of
//! them go left; that number is close to n / 2 and coded accordingly. Its left subtree follows, then its right one. So
//! a trie gives the exact rank of a key with about three bits per key. But to go right, a lookup must decode the whole
//! left subtree. No store uses it; the measurement in the tests and in README.md shows why.

use crate::bits::{BitWriter, field};

/// A trie of sorted, distinct numbers.
pub(crate) struct Trie {
    words: Vec<u64>,
    /// For each block, its first bit and its first number.
    blocks: Vec<(u64, u64)>,
    block_keys: usize,
    keys: usize,
}

/// Bits of a deviation that are stored plainly, for a node of n keys.
fn plain_bits(n: u64) -> u32 {
    // Half the standard deviation of n coin flips.
    match n {
        0..=15 => 0,
        16..=63 => 1,
        64..=255 => 2,
        _ => 3,
    }
}

/// Writes the deviation from the middle (0, +1, -1, +2, …), in unary and a few plain bits: small deviations are short.
fn put_left(bits: &mut BitWriter, n: u64, left: u64) {
    let middle = n / 2;
    let folded = if left > middle { (left - middle) * 2 - 1 } else { (middle - left) * 2 };
    let (plain, most) = (plain_bits(n), n >> plain_bits(n));
    for _ in 0..folded >> plain {
        bits.push(1, 1);
    }
    if folded >> plain < most {
        bits.push(0, 1);
    }
    bits.push(folded, plain);
}

struct Reader<'w> {
    words: &'w [u64],
    at: u64,
}

impl Reader<'_> {
    fn left(&mut self, n: u64) -> u64 {
        let (middle, plain, most) = (n / 2, plain_bits(n), n >> plain_bits(n));
        let ones = u64::from(field(self.words, self.at, 64).trailing_ones()).min(most);
        self.at += ones + u64::from(ones < most);
        let folded = (ones << plain) | field(self.words, self.at, plain);
        self.at += u64::from(plain);
        if folded & 1 == 1 { (middle + folded.div_ceil(2)).min(n) } else { middle.saturating_sub(folded / 2) }
    }

    /// Skips a subtree.
    fn skip(&mut self, n: u64, depth: u32) {
        if n > 1 && depth < 64 {
            let left = self.left(n);
            self.skip(left, depth + 1);
            self.skip(n - left, depth + 1);
        }
    }
}

fn build(bits: &mut BitWriter, numbers: &[u64], depth: u32) {
    if numbers.len() > 1 && depth < 64 {
        let left = numbers.partition_point(|n| n << depth >> 63 == 0);
        put_left(bits, numbers.len() as u64, left as u64);
        build(bits, &numbers[..left], depth + 1);
        build(bits, &numbers[left..], depth + 1);
    }
}

impl Trie {
    /// Builds the trie over sorted, distinct, evenly distributed numbers, `block_keys` per block.
    pub(crate) fn new(numbers: &[u64], block_keys: usize) -> Self {
        let (mut bits, mut blocks) = (BitWriter::default(), Vec::new());
        for (at, block) in numbers.chunks(block_keys.max(1)).enumerate() {
            blocks.push((bits.len_bits(), block[0]));
            // The bits that all numbers of the block share, up to the next block's first number, cost nothing.
            let next = numbers.get((at + 1) * block_keys.max(1)).map_or(u64::MAX, |next| next - 1);
            build(&mut bits, block, shared_bits(block[0], next));
        }
        Trie { words: bits.into_words(), blocks, block_keys: block_keys.max(1), keys: numbers.len() }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * 8 + self.blocks.len() * 12
    }

    /// Rank of a number in the trie. For any other number, some rank.
    pub(crate) fn rank(&self, number: u64) -> usize {
        let block = self.blocks.partition_point(|(_, first)| *first <= number).saturating_sub(1);
        let Some(&(at, first)) = self.blocks.get(block) else { return 0 };
        let mut n = self.block_keys.min(self.keys - block * self.block_keys) as u64;
        let last = self.blocks.get(block + 1).map_or(u64::MAX, |(_, next)| next - 1);
        let (mut reader, mut rank) = (Reader { words: &self.words, at }, block * self.block_keys);
        let mut depth = shared_bits(first, last);
        while n > 1 && depth < 64 {
            let left = reader.left(n);
            if number << depth >> 63 == 0 {
                n = left;
            } else {
                reader.skip(left, depth + 1);
                rank += left as usize;
                n -= left;
            }
            depth += 1;
        }
        rank
    }
}

fn shared_bits(a: u64, b: u64) -> u32 {
    (a ^ b).leading_zeros().min(63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{IndexBuilder, hash_key};

    fn numbers(n: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..n).map(|i| hash_key(&i.to_le_bytes())).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn ranks_are_exact() {
        for (n, block) in [(1, 64), (2, 64), (1000, 4), (1000, 16), (5000, 64), (5000, 300)] {
            let numbers = numbers(n);
            let trie = Trie::new(&numbers, block);
            numbers.iter().enumerate().for_each(|(rank, &number)| assert_eq!(trie.rank(number), rank));
        }
    }

    /// The figures of README.md: `cargo test --release -p tessera-cona trie -- --nocapture`.
    #[test]
    fn a_trie_takes_what_the_paper_says_and_more_than_fences() {
        let numbers = numbers(100_000);
        let nanoseconds = |begun: std::time::Instant| begun.elapsed().as_nanos() as f64 / numbers.len() as f64;
        let shuffled: Vec<u64> = (0..100_000).map(|i| numbers[(i * 7919) % numbers.len()]).collect();
        for (block, most) in [(4, 5.0), (16, 1.5), (64, 0.7)] {
            let trie = Trie::new(&numbers, block);
            let bytes = trie.memory_bytes() as f64 / numbers.len() as f64;
            let begun = std::time::Instant::now();
            let sum: usize = shuffled.iter().map(|&n| trie.rank(n)).sum();
            println!("trie of {block}: {bytes:.3} B/key, {:.0} ns a look-up ({sum})", nanoseconds(begun));
            assert!(bytes < most, "{block}: {bytes}");
        }
        let mut builder = IndexBuilder::new(0);
        let keys: Vec<[u8; 8]> = numbers.iter().map(|n| n.to_be_bytes()).collect();
        let mut last: &[u8] = &[];
        for page in keys.chunks(18) {
            builder.page(&page[0], last, &[0; 18][..page.len()], 1);
            last = page.last().unwrap();
        }
        let index = builder.finish();
        let bytes = index.memory_bytes().0 as f64 / numbers.len() as f64;
        let begun = std::time::Instant::now();
        let sum: u32 = shuffled.iter().filter_map(|n| index.candidates(&n.to_be_bytes())).map(|c| c.to).sum();
        println!("fences: {bytes:.3} B/key, {:.0} ns a look-up ({sum})", nanoseconds(begun));
        assert!(bytes < 0.2, "{bytes}");
    }
}
