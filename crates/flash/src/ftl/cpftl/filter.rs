//! A Bloom filter over logical pages, with the smallest and the largest of them.

/// Bits for each logical page.
const BITS: usize = 10;
/// Bits that a logical page sets.
const HASHES: u32 = 5;
/// Share of other logical pages that a filter takes for its own: (1 − e^(−5/10))^5.
pub const FALSE_POSITIVES: f64 = 0.0094;

/// A filter.
#[derive(Debug)]
pub struct Filter {
    min: u32,
    max: u32,
    words: Vec<u64>,
}

/// Bytes of the filter of so many logical pages, its smallest and largest included.
pub fn bytes(entries: usize) -> u64 {
    8 + 8 * (entries * BITS).div_ceil(64) as u64
}

impl Filter {
    /// The filter of some logical pages, at least one.
    pub fn new(lpns: impl ExactSizeIterator<Item = u32>) -> Self {
        let words = vec![0; (lpns.len() * BITS).div_ceil(64)];
        let mut filter = Filter { min: u32::MAX, max: 0, words };
        for lpn in lpns {
            (filter.min, filter.max) = (filter.min.min(lpn), filter.max.max(lpn));
            for bit in filter.bits(lpn) {
                filter.words[bit / 64] |= 1 << (bit % 64);
            }
        }
        filter
    }

    fn bits(&self, lpn: u32) -> impl Iterator<Item = usize> + use<> {
        let hash = (u64::from(lpn) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let (first, step, len) = ((hash >> 32) as u32, hash as u32 | 1, self.words.len() as u64 * 64);
        (0..HASHES).map(move |i| ((u64::from(first.wrapping_add(i.wrapping_mul(step))) * len) >> 32) as usize)
    }

    /// Whether a logical page may be one of them; never false for one that is.
    pub fn may_contain(&self, lpn: u32) -> bool {
        (self.min..=self.max).contains(&lpn) && self.bits(lpn).all(|bit| self.words[bit / 64] >> (bit % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_all_its_pages_and_few_others() {
        let own: Vec<u32> = (0..512).map(|i| 1_000 + i * 97).collect();
        let filter = Filter::new(own.iter().copied());
        assert!(own.iter().all(|lpn| filter.may_contain(*lpn)));
        let (min, max) = (own[0], own[511]);
        assert!(!(0..min).chain(max + 1..100_000).any(|lpn| filter.may_contain(lpn)));
        let others: Vec<u32> = (min..max).filter(|lpn| (lpn - 1_000) % 97 != 0).collect();
        let wrong = others.iter().filter(|lpn| filter.may_contain(**lpn)).count() as f64 / others.len() as f64;
        assert!((wrong / FALSE_POSITIVES - 1.0).abs() < 0.25, "{wrong}");
        assert_eq!(bytes(512), 8 + filter.words.len() as u64 * 8);
    }
}
