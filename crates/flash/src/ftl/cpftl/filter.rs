//! A Bloom filter over logical pages, with the smallest and the largest of them.

use std::f64::consts::LN_2;

/// Wrong guesses that all filters together may make for a logical page that none of them has.
const WRONG_MAX: f64 = 0.1;
/// Bits for each logical page: fewer make too many mistakes, more save next to none.
const BITS: std::ops::RangeInclusive<u32> = 8..=32;

/// A filter.
#[derive(Debug)]
pub struct Filter {
    min: u32,
    max: u32,
    hashes: u32,
    words: Vec<u64>,
}

/// Bits for each logical page that keep the wrong guesses of so many filters below one in ten.
pub fn bits_for(filters: u64) -> u32 {
    let suffices = |bits: &u32| filters as f64 * false_positives(*bits) < WRONG_MAX;
    BITS.clone().find(suffices).unwrap_or(*BITS.end())
}

/// Bits that a logical page sets.
fn hashes(bits: u32) -> u32 {
    (f64::from(bits) * LN_2).round() as u32
}

/// Share of other logical pages that a filter with so many bits for each of its own takes for one of them: (1 − e^(−k/b))^k.
pub fn false_positives(bits: u32) -> f64 {
    let set = f64::from(hashes(bits));
    (1.0 - (-set / f64::from(bits)).exp()).powf(set)
}

fn words(entries: usize, bits: u32) -> usize {
    (entries * bits as usize).div_ceil(64)
}

/// Bytes of the filter of so many logical pages, its smallest and largest included.
pub fn bytes(entries: usize, bits: u32) -> u64 {
    8 + 8 * words(entries, bits) as u64
}

impl Filter {
    /// The filter of some logical pages, at least one, with so many bits for each.
    pub fn new(lpns: impl ExactSizeIterator<Item = u32>, bits: u32) -> Self {
        let words = vec![0; words(lpns.len(), bits)];
        let mut filter = Filter { min: u32::MAX, max: 0, hashes: hashes(bits), words };
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
        (0..self.hashes).map(move |i| ((u64::from(first.wrapping_add(i.wrapping_mul(step))) * len) >> 32) as usize)
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
        for bits in [8, 10, 16] {
            let own: Vec<u32> = (0..512).map(|i| 1_000 + i * 997).collect();
            let filter = Filter::new(own.iter().copied(), bits);
            assert!(own.iter().all(|lpn| filter.may_contain(*lpn)));
            let (min, max) = (own[0], own[511]);
            assert!(!(0..min).chain(max + 1..max + 100_000).any(|lpn| filter.may_contain(lpn)));
            let others: Vec<u32> = (min..max).filter(|lpn| (lpn - 1_000) % 997 != 0).collect();
            let wrong = others.iter().filter(|lpn| filter.may_contain(**lpn)).count() as f64 / others.len() as f64;
            assert!((wrong / false_positives(bits) - 1.0).abs() < 0.3, "{bits} bits: {wrong}");
            assert_eq!(bytes(512, bits), 8 + filter.words.len() as u64 * 8);
        }
    }

    #[test]
    fn more_filters_get_more_bits_so_that_a_guess_is_seldom_wrong() {
        for filters in [1, 10, 110, 1_000, 10_000] {
            let bits = bits_for(filters);
            let wrong = |bits| filters as f64 * false_positives(bits);
            assert!(wrong(bits) < 0.1 && (bits == 8 || wrong(bits - 1) >= 0.1), "{filters}: {bits} bits");
        }
    }
}
