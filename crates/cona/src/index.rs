//! The index and the filter of a cell: they find the page of a key with about a byte of memory per key. Built while the
//! cell is written.
//!
//! **Fences.** Pages are grouped into blocks of up to [`BLOCK_PAGES`]. Each block stores one *separator* as bytes: the
//! shortest prefix of its first key that is above the last key before it. Within the block, the prefix that its keys
//! share is dropped, and the rest is read as a number whose base is the range of bytes that occur there. The numbers
//! are shifted right as far as three of four page boundaries stay distinct. One number per page is stored in the
//! Elias-Fano encoding. The mapping from keys to numbers is monotonic but not injective: if a key's number equals a
//! fence, the page before it is a candidate too. So fences of random keys take about `2 + log2(keys a page) + 4` bits a
//! page whatever the keys' length, and ordered scans remain possible.
//!
//! **Filter.** For each page, the filter stores `filter_bits` bits of each key's hash, in buckets (quotienting). Other
//! bits of the hash choose the bucket, and there are as many buckets as keys in the page. A lookup therefore compares
//! one fragment on average instead of all of the page's: `filter_bits + 2` bits a key give the false-positive rate of
//! `filter_bits` bits.
//!
//! Start reading at [`PageIndex::candidates`]; docs/formats.md, section 5, draws the bytes.

use tessera_disk::layout;
use tessera_disk::record::Field;

use crate::bits::{BitWriter, Sorted, low_bits_for};

/// Maximum number of pages in a block.
pub(crate) const BLOCK_PAGES: usize = 64;
/// Mean number of pages a block must have before its eight-byte head pays for itself.
const HEAD_PAGES: usize = 8;
/// Bytes after the common prefix that always suffice to tell fences apart: 256^8 numbers fit 64 bits.
const WINDOW_BYTES: usize = 8;
/// Encoded bytes per block.
const BLOCK_BYTES: usize = 24;
/// Encoded bytes before the blocks.
const HEADER_BYTES: usize = 32;
const _: () = assert!(BLOCK_BYTES >= 3 * 4 + 10 && HEADER_BYTES >= 4 * 4 + 8 + 4, "docs/formats.md, section 5.3");
const _: () = assert!(BLOCK_PAGES <= u8::MAX as usize, "a block counts its pages in 8 bits");
const _: () = assert!(SYMBOLS[256] == 8 && SYMBOLS[2] == 64, "256^8 and 2^64 numbers fit 64 bits");
/// Maximum number of hash bits per key in a filter.
pub const FILTER_BITS_MAX: u32 = 16;

/// For each base, how many symbols fit 64 bits.
const SYMBOLS: [u8; 257] = {
    let mut table = [0; 257];
    let mut base = 2;
    while base <= 256 {
        let (mut count, mut power) = (0, 1_u128);
        while power * base as u128 <= 1 << 64 {
            power *= base as u128;
            count += 1;
        }
        table[base] = count;
        base += 1;
    }
    table
};

/// The 64-bit hash of a key, which filter and index use.
pub(crate) fn hash_key(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

fn fragment(hash: u64, keys: u64, filter_bits: u32) -> u64 {
    let bucket = ((hash & 0xffff_ffff) * keys) >> 32;
    (bucket << filter_bits) | ((hash >> 40) & ((1 << filter_bits) - 1))
}

/// Length of the common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The eight bytes after the first `skip`, as a number, for comparing keys that share those first bytes. Equal heads
/// decide nothing.
pub(crate) fn head(key: &[u8], skip: usize) -> u64 {
    let tail = key.get(skip..).unwrap_or(&[]);
    let mut bytes = [0; 8];
    let len = tail.len().min(8);
    bytes[..len].copy_from_slice(&tail[..len]);
    u64::from_be_bytes(bytes)
}

layout! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Block {
        /// Offset of its separator.
        separator_at: u32 = 0,
        /// Its first word of bits.
        words_at: u32 = 4,
        /// Its first page in the file.
        first_page: u32 = 8,
        pages: u8 = 12,
        /// Bytes that all its fences share.
        prefix: u8 = 13,
        /// Smallest and largest byte that tells fences apart.
        lo: u8 = 14,
        hi: u8 = 15,
        /// Number of bytes after the prefix that make the number, and the shift.
        symbols: u8 = 16,
        shift: u8 = 17,
        fence_low: u8 = 18,
        fence_buckets: u8 = 19,
        count_low: u8 = 20,
        count_buckets: u8 = 21,
    }
}

layout! {
    /// What precedes the blocks in the file.
    struct Header {
        filter_bits: u32 = 0,
        blocks: u32 = 4,
        separator_bytes: u32 = 8,
        words: u32 = 12,
        keys: u64 = 16,
        pages: u32 = 24,
    }
}

/// Reads bytes as a number in base `hi - lo + 1`. Keeps the order; different bytes may give equal numbers.
fn number(bytes: &[u8], lo: u8, hi: u8, symbols: u8) -> u64 {
    let base = u64::from(hi.saturating_sub(lo)).max(1) + 1;
    let symbols = symbols.min(SYMBOLS[base as usize]);
    let (mut value, mut rest) = (0_u64, None);
    for i in 0..usize::from(symbols) {
        let digit = match (rest, bytes.get(i)) {
            (Some(digit), _) => digit,
            (None, Some(&byte)) if byte >= lo && byte <= hi => u64::from(byte - lo),
            // After the first byte out of range, later bytes must not count, or the order would be lost.
            (None, byte) => *rest.insert(if byte.is_some_and(|&b| b > hi) { base - 1 } else { 0 }),
        };
        value = value.wrapping_mul(base).wrapping_add(digit);
    }
    value
}

impl Block {
    fn number(&self, key: &[u8], separator: &[u8]) -> u64 {
        let prefix = usize::from(self.prefix);
        let own = separator.get(..prefix).unwrap_or(separator);
        match key.get(..prefix).unwrap_or(key).cmp(own) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Greater => u64::MAX,
            std::cmp::Ordering::Equal => {
                let base = number(separator.get(prefix..).unwrap_or(&[]), self.lo, self.hi, self.symbols);
                let this = number(key.get(prefix..).unwrap_or(&[]), self.lo, self.hi, self.symbols);
                this.saturating_sub(base) >> self.shift.min(63)
            }
        }
    }

    fn fences<'a>(&self, words: &'a [u64]) -> Sorted<'a> {
        Sorted {
            words,
            at: u64::from(self.words_at) * 64,
            n: u64::from(self.pages).saturating_sub(1),
            buckets: u64::from(self.fence_buckets),
            low_bits: u32::from(self.fence_low).min(63),
        }
    }

    fn counts<'a>(&self, words: &'a [u64]) -> Sorted<'a> {
        let fences = self.fences(words);
        Sorted {
            words,
            at: fences.at + fences.len_bits(),
            n: u64::from(self.pages),
            buckets: u64::from(self.count_buckets),
            low_bits: u32::from(self.count_low).min(63),
        }
    }
}

/// Pages of one block that may hold a key: `from..=to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    pub(crate) block: usize,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// The index and filter of one cell, in memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PageIndex {
    filter_bits: u32,
    keys: u64,
    pages: u32,
    blocks: Vec<Block>,
    separators: Vec<u8>,
    words: Vec<u64>,
    /// Length of the prefix that all separators share.
    skip: usize,
    /// The eight bytes of each separator after `skip`, side by side, so that most of a search touches nothing else.
    /// Empty if blocks are small and heads would cost too much memory.
    heads: Vec<u64>,
}

impl PageIndex {
    /// Computes the fields that are not stored.
    fn with_heads(mut self) -> Self {
        let last = self.blocks.len().saturating_sub(1);
        self.skip = if last == 0 { 0 } else { common_prefix(self.separator(0), self.separator(last)) };
        let paying = self.blocks.len() <= self.pages as usize / HEAD_PAGES;
        let heads = (0..if paying { self.blocks.len() } else { 0 }).map(|block| head(self.separator(block), self.skip));
        self.heads = heads.collect();
        self
    }

    /// Bytes of memory of the index and of the filter.
    pub(crate) fn memory_bytes(&self) -> (u64, u64) {
        let heads = self.heads.len() * 8;
        let all = self.blocks.len() * size_of::<Block>() + heads + self.separators.len() + self.words.len() * 8;
        let filter = if self.filter_bits == 0 { 0 } else { self.keys * u64::from(self.filter_bits + 2) / 8 };
        ((all as u64).saturating_sub(filter), filter)
    }

    /// Pages of the cell.
    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// Records of the cell.
    pub(crate) fn keys(&self) -> u64 {
        self.keys
    }

    fn separator(&self, block: usize) -> &[u8] {
        let from = self.blocks[block].separator_at as usize;
        let to = self.blocks.get(block + 1).map_or(self.separators.len(), |b| b.separator_at as usize);
        self.separators.get(from..to).unwrap_or(&[])
    }

    /// How many blocks begin at or before a key.
    fn blocks_upto(&self, key: &[u8]) -> usize {
        if self.skip > 0 {
            let shared = self.separator(0).get(..self.skip).unwrap_or(&[]);
            match key.get(..self.skip).unwrap_or(key).cmp(shared) {
                std::cmp::Ordering::Less => return 0,
                std::cmp::Ordering::Greater => return self.blocks.len(),
                std::cmp::Ordering::Equal => {}
            }
        }
        let wanted = head(key, self.skip);
        let mut low = self.heads.partition_point(|&head| head < wanted);
        let mut high = low + self.heads[low..].partition_point(|&head| head == wanted);
        if self.heads.is_empty() {
            high = self.blocks.len();
        }
        while low < high {
            let middle = (low + high) / 2;
            if self.separator(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The pages that may hold a key. `None` only if there are no pages.
    pub(crate) fn candidates(&self, key: &[u8]) -> Option<Candidates> {
        let index = self.blocks_upto(key).saturating_sub(1);
        let block = self.blocks.get(index)?;
        if block.pages <= 1 {
            return Some(Candidates { block: index, from: 0, to: 0 });
        }
        let (below, upto) = block.fences(&self.words).ranks(block.number(key, self.separator(index)));
        Some(Candidates { block: index, from: below as u32, to: upto as u32 })
    }

    /// The number of the page in the file.
    pub(crate) fn physical(&self, block: usize, page: u32) -> u32 {
        self.blocks[block].first_page.saturating_add(page)
    }

    /// False if the page certainly holds no key with this hash.
    pub(crate) fn may_hold(&self, block: usize, page: u32, hash: u64) -> bool {
        if self.filter_bits == 0 {
            return true;
        }
        let counts = self.blocks[block].counts(&self.words);
        let before = if page == 0 { 0 } else { counts.get(u64::from(page) - 1) };
        let keys = counts.get(u64::from(page)).saturating_sub(before);
        let filters_at = counts.at + counts.len_bits();
        let at = filters_at.saturating_add(before.saturating_mul(u64::from(self.filter_bits + 2)));
        if keys > u64::from(u16::MAX) || at > self.words.len() as u64 * 64 {
            // Only a damaged filter says this. Reading the page decides.
            return true;
        }
        let run = Sorted { words: &self.words, at, n: keys, buckets: keys, low_bits: self.filter_bits };
        keys > 0 && run.contains(fragment(hash, keys, self.filter_bits))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let header = Header {
            filter_bits: self.filter_bits,
            blocks: self.blocks.len() as u32,
            separator_bytes: self.separators.len() as u32,
            words: self.words.len() as u32,
            keys: self.keys,
            pages: self.pages,
        };
        let mut bytes = vec![0; HEADER_BYTES + self.blocks.len() * BLOCK_BYTES];
        header.put(&mut bytes);
        let table = bytes[HEADER_BYTES..].chunks_exact_mut(BLOCK_BYTES);
        table.zip(&self.blocks).for_each(|(bytes, block)| block.put(bytes));
        bytes.extend_from_slice(&self.separators);
        bytes.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    /// Decodes the output of [`PageIndex::encode`]; `Err` names what is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let header = bytes.get(..HEADER_BYTES).ok_or("the index is shorter than its header")?;
        let Header { filter_bits, blocks, separator_bytes, words, keys, pages } = Header::take(header);
        let (blocks, separators) = (blocks as usize, separator_bytes as usize);
        let expected =
            HEADER_BYTES as u64 + blocks as u64 * BLOCK_BYTES as u64 + separators as u64 + u64::from(words) * 8;
        if expected != bytes.len() as u64 {
            return Err("the index's parts do not add up to its length");
        }
        if filter_bits > FILTER_BITS_MAX {
            return Err("the filter has more bits than this program knows");
        }
        let (table, rest) = bytes[HEADER_BYTES..].split_at(blocks * BLOCK_BYTES);
        let blocks: Vec<Block> = table.chunks_exact(BLOCK_BYTES).map(Block::take).collect();
        let (separators, rest) = rest.split_at(separators);
        let words = rest.chunks_exact(8).map(u64::take).collect();
        let ordered = |a: &Block, b: &Block| a.separator_at <= b.separator_at && a.first_page < b.first_page;
        if !blocks.is_sorted_by(ordered) || blocks.iter().any(|b| b.pages == 0 || b.first_page >= pages) {
            return Err("the index's blocks are out of order");
        }
        let separators = separators.to_vec();
        let index = PageIndex { filter_bits, keys, pages, blocks, separators, words, ..PageIndex::default() };
        Ok(index.with_heads())
    }
}

struct Pending {
    first_key: Vec<u8>,
    /// The last key of the previous page.
    last_before: Vec<u8>,
    common: usize,
    keys: u64,
}

/// Builds the index page by page.
#[derive(Default)]
pub(crate) struct IndexBuilder {
    /// What is complete, but for the words.
    index: PageIndex,
    bits: BitWriter,
    pending: Vec<Pending>,
    fragments: Vec<u64>,
    first_page: u32,
    /// The longest separator of the pending pages except the first.
    longest: usize,
}

impl IndexBuilder {
    pub(crate) fn new(filter_bits: u32) -> Self {
        let index = PageIndex { filter_bits: filter_bits.min(FILTER_BITS_MAX), ..PageIndex::default() };
        IndexBuilder { index, ..Self::default() }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let PageIndex { separators, blocks, .. } = &self.index;
        self.bits.heap_bytes() + separators.capacity() + blocks.capacity() * size_of::<Block>()
    }

    /// Adds the next page: its first key, the last key of the page before, the hashes of its keys, and the number of
    /// file pages it takes (more than one only for a record that is longer than a page).
    pub(crate) fn page(&mut self, first_key: &[u8], last_before: &[u8], hashes: &[u64], file_pages: u32) {
        assert!(!hashes.is_empty() && file_pages > 0, "an empty page");
        assert!(self.index.pages == 0 || first_key > last_before, "pages are out of order");
        let common = common_prefix(first_key, last_before);
        if let Some(first) = self.pending.first() {
            let shared = common_prefix(&first.first_key, first_key).min(255);
            let longest = self.longest.max(common + 1);
            // Fences that differ too far after their common prefix could not be told apart in one block.
            if longest > shared + WINDOW_BYTES || self.pending.len() == BLOCK_PAGES || file_pages > 1 {
                self.close_block();
            } else {
                self.longest = longest;
            }
        }
        if self.pending.is_empty() {
            self.first_page = self.index.pages;
            self.longest = 0;
        }
        let keys = hashes.len() as u64;
        if self.index.filter_bits > 0 {
            let from = self.fragments.len();
            self.fragments.extend(hashes.iter().map(|&h| fragment(h, keys, self.index.filter_bits)));
            self.fragments[from..].sort_unstable();
        }
        let (first_key, last_before) = (first_key.to_vec(), last_before.to_vec());
        self.pending.push(Pending { first_key, last_before, common, keys });
        self.index.pages += file_pages;
        self.index.keys += keys;
        if file_pages > 1 {
            self.close_block();
        }
    }

    fn close_block(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let (Some(first), Some(last)) = (pending.first(), pending.last()) else { return };
        let shared = if pending.len() == 1 { 0 } else { common_prefix(&first.first_key, &last.first_key).min(255) };
        let keep = shared.max(first.common + 1).min(first.first_key.len());
        let mut block = Block {
            separator_at: self.index.separators.len() as u32,
            words_at: (self.bits.len_bits() / 64) as u32,
            first_page: self.first_page,
            pages: pending.len() as u8,
            prefix: shared as u8,
            ..Block::default()
        };
        let separator = &first.first_key[..keep];
        self.index.separators.extend_from_slice(separator);
        let numbers = choose_numbers(&mut block, &pending, separator, if self.index.filter_bits == 0 { 20 } else { 4 });
        self.push_sorted(&numbers, |low, buckets| (block.fence_low, block.fence_buckets) = (low, buckets));
        let mut sum = 0;
        let counts: Vec<u64> = pending.iter().map(|p| (sum += p.keys, sum).1).collect();
        self.push_sorted(&counts, |low, buckets| (block.count_low, block.count_buckets) = (low, buckets));
        if self.index.filter_bits > 0 {
            let mut from = 0;
            for page in &pending {
                let to = from + page.keys as usize;
                self.bits.push_sorted(&self.fragments[from..to], page.keys, self.index.filter_bits);
                from = to;
            }
        }
        self.bits.align();
        self.fragments.clear();
        self.index.blocks.push(block);
    }

    fn push_sorted(&mut self, numbers: &[u64], describe: impl FnOnce(u8, u8)) {
        let max = numbers.last().copied().unwrap_or(0);
        let low_bits = low_bits_for(numbers.len() as u64, max);
        let buckets = if numbers.is_empty() { 0 } else { (max >> low_bits) + 1 };
        self.bits.push_sorted(numbers, buckets, low_bits);
        describe(low_bits as u8, buckets as u8);
    }

    pub(crate) fn finish(mut self) -> PageIndex {
        self.close_block();
        let mut index = self.index;
        index.blocks.shrink_to_fit();
        index.separators.shrink_to_fit();
        index.words = self.bits.into_words();
        index.with_heads()
    }
}

/// Chooses alphabet, window and shift of a block so that all but one in `blurred` boundaries stay distinct. Returns the
/// fences' numbers.
fn choose_numbers(block: &mut Block, pending: &[Pending], separator: &[u8], blurred: usize) -> Vec<u64> {
    let prefix = usize::from(block.prefix);
    let fences = || pending[1..].iter().map(|p| (&p.first_key[..(p.common + 1).min(p.first_key.len())], p));
    let tails = || fences().flat_map(|(fence, _)| fence.get(prefix..).unwrap_or(&[]));
    block.lo = tails().copied().min().unwrap_or(0);
    block.hi = tails().copied().max().unwrap_or(0).max(block.lo.saturating_add(1));
    block.lo = block.lo.min(block.hi - 1);
    let most = SYMBOLS[usize::from(block.hi - block.lo) + 1];
    let mut needs: Vec<usize> = fences().map(|(fence, _)| fence.len().saturating_sub(prefix)).collect();
    needs.sort_unstable();
    let need = needs.get((needs.len().saturating_sub(1)) * 9 / 10).copied().unwrap_or(1);
    block.symbols = (need + 1).min(usize::from(most)) as u8;
    let of = |key: &[u8]| number(key.get(prefix..).unwrap_or(&[]), block.lo, block.hi, block.symbols);
    let base = of(separator);
    let exact: Vec<u64> = fences().map(|(fence, _)| of(fence).saturating_sub(base)).collect();
    let mut shifts: Vec<u32> = fences()
        .zip(&exact)
        .map(|((_, page), &fence)| (fence ^ of(&page.last_before).saturating_sub(base)).checked_ilog2().unwrap_or(0))
        .collect();
    shifts.sort_unstable();
    let shift = shifts.get(shifts.len() / blurred).copied().unwrap_or(0);
    block.shift = shift as u8;
    exact.into_iter().map(|n| n >> shift).collect()
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
