//! A random order of the numbers below a bound, without memory: a Feistel network over the next power of four, walked until it
//! comes back into the range (J. Black, P. Rogaway: "Ciphers with arbitrary finite domains", CT-RSA 2002).

use tessera_disk::SplitMix64;

const ROUNDS: usize = 4;

/// A permutation of `0..count`.
#[derive(Debug, Clone)]
pub(crate) struct Permutation {
    count: u64,
    /// Bits of each half.
    bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of a seed.
    pub fn new(count: u64, seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
        Permutation { count, bits, keys: [(); ROUNDS].map(|()| rng.next_u64()) }
    }

    /// The number at a place.
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.count, "place {place} of {}", self.count);
        let mut number = self.pass(place);
        while number >= self.count {
            number = self.pass(number);
        }
        number
    }

    fn pass(&self, number: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        let halves = (number >> self.bits, number & mask);
        let (high, low) = self.keys.iter().fold(halves, |(high, low), key| {
            let mixed = SplitMix64::new(low ^ key).next_u64();
            (low, (high ^ mixed) & mask)
        });
        high << self.bits | low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once_and_neighbours_part() {
        for count in [1, 2, 3, 64, 65, 1000, 4097] {
            let order = Permutation::new(count, 3);
            let mut numbers: Vec<u64> = (0..count).map(|place| order.at(place)).collect();
            let neighbours = numbers.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
            assert!(neighbours < 20, "{neighbours} of {count}");
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..count), "{count}");
        }
        let (one, other) = (Permutation::new(1000, 1), Permutation::new(1000, 2));
        assert!((0..1000).any(|place| one.at(place) != other.at(place)));
    }
}
