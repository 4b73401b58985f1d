//! Bit fields in 64-bit words, and sorted numbers in the Elias-Fano encoding.
//!
//! A run of `n` sorted numbers is stored as `buckets` unary counts followed by `n` fields of `low_bits` each. The count
//! of a value of the high bits is one 1-bit per number that has it, then a 0-bit. (P. Elias, "Efficient storage and
//! retrieval by content and address of static files", J. ACM 21(2), 1974; R. Fano, MIT Project MAC memo 61, 1971.) The
//! same encoding serves fences, counts of keys, and the key fragments of a page. Reading never panics, whatever the
//! bits are.

/// Appends bit fields.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    words: Vec<u64>,
    len_bits: u64,
}

impl BitWriter {
    pub(crate) fn len_bits(&self) -> u64 {
        self.len_bits
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.capacity() * 8
    }

    /// Appends the lowest `width` bits of `value`.
    pub(crate) fn push(&mut self, value: u64, width: u32) {
        assert!(width <= 64, "a field of {width} bits");
        if width == 0 {
            return;
        }
        let value = if width == 64 { value } else { value & ((1 << width) - 1) };
        let (word, shift) = ((self.len_bits / 64) as usize, (self.len_bits % 64) as u32);
        if word == self.words.len() {
            self.words.push(0);
        }
        self.words[word] |= value << shift;
        if shift + width > 64 {
            self.words.push(value >> (64 - shift));
        }
        self.len_bits += u64::from(width);
    }

    /// Appends sorted numbers; the highest must be below `buckets << low_bits`.
    pub(crate) fn push_sorted(&mut self, numbers: &[u64], buckets: u64, low_bits: u32) {
        assert!(numbers.is_sorted(), "numbers are out of order");
        assert!(
            numbers.last().is_none_or(|last| last >> low_bits < buckets),
            "{numbers:?} need more than {buckets} buckets"
        );
        let mut bucket = 0;
        for &number in numbers {
            while bucket < number >> low_bits {
                self.push(0, 1);
                bucket += 1;
            }
            self.push(1, 1);
        }
        for _ in bucket..buckets {
            self.push(0, 1);
        }
        for &number in numbers {
            self.push(number, low_bits);
        }
    }

    /// Pads with zeros to the next word.
    pub(crate) fn align(&mut self) {
        self.len_bits = self.words.len() as u64 * 64;
    }

    pub(crate) fn into_words(mut self) -> Vec<u64> {
        self.words.shrink_to_fit();
        self.words
    }
}

/// The width of the low bits that gives the shortest encoding of `n` sorted numbers up to `max`.
pub(crate) fn low_bits_for(n: u64, max: u64) -> u32 {
    if n == 0 || max / n == 0 { 0 } else { (max / n).ilog2() }
}

/// Reads a field of up to 64 bits; bits past the end read as zeros.
pub(crate) fn field(words: &[u64], at: u64, width: u32) -> u64 {
    if width == 0 {
        return 0;
    }
    let (word, shift) = ((at / 64) as usize, (at % 64) as u32);
    let mut value = words.get(word).copied().unwrap_or(0) >> shift;
    if shift + width > 64 {
        value |= words.get(word + 1).copied().unwrap_or(0) << (64 - shift);
    }
    if width == 64 { value } else { value & ((1 << width) - 1) }
}

/// A run of sorted numbers in `words`, starting at bit `at`.
#[derive(Clone, Copy)]
pub(crate) struct Sorted<'a> {
    pub(crate) words: &'a [u64],
    pub(crate) at: u64,
    pub(crate) n: u64,
    pub(crate) buckets: u64,
    pub(crate) low_bits: u32,
}

/// Position of the `nth` set bit of `word`, counted from 0. `word` must have more than `nth` set bits. Finds the byte
/// by counting the bits of all bytes at once (S. Vigna, "Broadword implementation of rank/select queries", WEA 2008),
/// then the bit within it one by one.
fn select_in(word: u64, nth: u32) -> u32 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let pairs = word - ((word >> 1) & (ONES * 0x55));
    let nibbles = (pairs & (ONES * 0x33)) + ((pairs >> 2) & (ONES * 0x33));
    let bytes = (nibbles + (nibbles >> 4)) & (ONES * 0x0f);
    // Byte i: the number of bits set in bytes 0 to i.
    let upto = bytes.wrapping_mul(ONES);
    let enough = ((upto | (ONES * 0x80)) - ONES * u64::from(nth + 1)) & (ONES * 0x80);
    let place = enough.trailing_zeros() & 0x38;
    let before = ((upto << 8) >> place) & 0xff;
    let mut byte = word >> place;
    for _ in before..u64::from(nth) {
        byte &= byte - 1;
    }
    place + byte.trailing_zeros()
}

impl Sorted<'_> {
    /// Length of the whole run in bits.
    pub(crate) fn len_bits(&self) -> u64 {
        self.n + self.buckets + self.n * u64::from(self.low_bits)
    }

    /// Position, relative to `at`, of the `nth` one (or zero); `limit` if there is none before `limit`.
    fn select(&self, nth: u64, ones: bool, limit: u64) -> u64 {
        let (mut left, mut pos) = (nth, 0);
        while pos < limit {
            let width = 64.min(limit - pos) as u32;
            let word = field(self.words, self.at + pos, width);
            let word = if ones { word } else { !word & (u64::MAX >> (64 - width)) };
            let here = u64::from(word.count_ones());
            if left < here {
                return pos + u64::from(select_in(word, left as u32));
            }
            left -= here;
            pos += u64::from(width);
        }
        limit
    }

    /// Indices of the numbers whose high bits are `bucket`.
    fn bucket(&self, bucket: u64) -> (u64, u64) {
        if bucket >= self.buckets {
            return (self.n, self.n);
        }
        let unary = self.n + self.buckets;
        let from = if bucket == 0 { 0 } else { self.select(bucket - 1, false, unary) + 1 };
        let mut to = from;
        while to < unary {
            let width = 64.min(unary - to) as u32;
            let ones = field(self.words, self.at + to, width).trailing_ones().min(width);
            to += u64::from(ones);
            if ones < width {
                break;
            }
        }
        (from.saturating_sub(bucket).min(self.n), to.saturating_sub(bucket).min(self.n))
    }

    fn low(&self, index: u64) -> u64 {
        field(self.words, self.at + self.n + self.buckets + index * u64::from(self.low_bits), self.low_bits)
    }

    /// The number at `index`; 0 past the end.
    pub(crate) fn get(&self, index: u64) -> u64 {
        if index >= self.n {
            return 0;
        }
        let high = self.select(index, true, self.n + self.buckets).saturating_sub(index);
        (high << self.low_bits) | self.low(index)
    }

    /// How many numbers are below `number`, and how many are at most `number`.
    pub(crate) fn ranks(&self, number: u64) -> (u64, u64) {
        let (from, to) = self.bucket(number >> self.low_bits);
        let low = if self.low_bits == 0 { 0 } else { number & ((1 << self.low_bits) - 1) };
        let below = (from..to).take_while(|&i| self.low(i) < low).count() as u64;
        let equal = (from + below..to).take_while(|&i| self.low(i) == low).count() as u64;
        (from + below, from + below + equal)
    }

    /// True if the run holds `number`.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let (from, to) = self.bucket(number >> self.low_bits);
        let low = if self.low_bits == 0 { 0 } else { number & ((1 << self.low_bits) - 1) };
        (from..to).any(|i| self.low(i) == low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(numbers: &[u64], lead: u32) -> (Vec<u64>, u64, u32) {
        let max = numbers.last().copied().unwrap_or(0);
        let low_bits = low_bits_for(numbers.len() as u64, max);
        let buckets = (max >> low_bits) + 1;
        let mut bits = BitWriter::default();
        bits.push(0x5a5a, lead);
        bits.push_sorted(numbers, buckets, low_bits);
        bits.push(u64::MAX, 7);
        (bits.into_words(), buckets, low_bits)
    }

    #[test]
    fn sorted_numbers_come_back_and_rank() {
        let mut seed = 7_u64;
        for round in 0..400_u64 {
            let n = round % 130;
            let mut numbers: Vec<u64> = (0..n)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 20) % (1 + (1 << (round % 40)))
                })
                .collect();
            numbers.sort_unstable();
            let lead = (round % 60) as u32;
            let (words, buckets, low_bits) = pack(&numbers, lead);
            let run = Sorted { words: &words, at: u64::from(lead), n, buckets, low_bits };
            for (i, &number) in numbers.iter().enumerate() {
                assert_eq!(run.get(i as u64), number);
                assert!(run.contains(number));
            }
            for probe in numbers.iter().flat_map(|&x| [x.saturating_sub(1), x, x + 1]).chain([0, u64::MAX]) {
                let below = numbers.partition_point(|&x| x < probe) as u64;
                let upto = numbers.partition_point(|&x| x <= probe) as u64;
                assert_eq!(run.ranks(probe), (below, upto), "{probe} in {numbers:?}");
                assert_eq!(run.contains(probe), upto > below);
            }
        }
    }

    #[test]
    fn every_set_bit_is_found_by_its_rank() {
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..3000_u64 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            // Sparse, dense and in between, with the extremes.
            let thin = word & word.rotate_left(17) & word.rotate_left(40);
            for word in [word, thin, !thin, u64::MAX, 1 << (round % 64)] {
                let set: Vec<u32> = (0..64).filter(|&bit| word >> bit & 1 == 1).collect();
                set.iter()
                    .enumerate()
                    .for_each(|(nth, &bit)| assert_eq!(select_in(word, nth as u32), bit, "{word:#x}"));
            }
        }
    }

    #[test]
    fn damaged_bits_never_panic() {
        for seed in 0..200_u64 {
            let words: Vec<u64> = (0..seed % 5).map(|i| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) << i).collect();
            let run = Sorted { words: &words, at: seed % 90, n: seed % 70, buckets: seed % 33, low_bits: 9 };
            let _ = (run.get(3), run.ranks(seed << 5), run.contains(seed), run.ranks(u64::MAX));
        }
    }
}
