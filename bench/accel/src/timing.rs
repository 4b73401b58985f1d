//! Times two or more ways of doing the same work in turns, so that changes of the clock or of the load affect all of
//! them.

use std::time::{Duration, Instant};

/// How long each comparison may take.
#[derive(Clone, Copy)]
pub struct Timing {
    /// Time for all ways of one comparison together.
    pub budget: Duration,
    /// Use the best sample of each way instead of the median: the code's rate on a machine that is otherwise busy.
    pub best: bool,
}

/// GB/s, 10^9 bytes a second, of every way: one list per way, one sample per round.
pub struct Rates {
    rounds: Vec<Vec<f64>>,
    best: bool,
}

impl Timing {
    /// Times every way, with `bytes` per call; the ways take turns.
    pub fn compare(&self, bytes: usize, ways: &mut [&mut dyn FnMut()]) -> Rates {
        // Small work is repeated, so that the cost of reading the clock is negligible.
        let calls = (256 * 1024 / bytes).max(1);
        let mut rounds = vec![Vec::new(); ways.len()];
        ways.iter_mut().for_each(|way| way());
        let begin = Instant::now();
        while rounds[0].len() < 5 || (begin.elapsed() < self.budget && rounds[0].len() < 10_000) {
            for (way, rates) in ways.iter_mut().zip(&mut rounds) {
                let start = Instant::now();
                (0..calls).for_each(|_| way());
                rates.push((bytes * calls) as f64 / start.elapsed().as_secs_f64() / 1e9);
            }
        }
        Rates { rounds, best: self.best }
    }
}

impl Rates {
    /// Median (or best) of way `way`.
    pub fn of(&self, way: usize) -> f64 {
        let rates = &self.rounds[way];
        if self.best { rates.iter().fold(0.0, |most, rate| rate.max(most)) } else { median(rates.clone()) }
    }

    /// Ratio of the rates of way `way` and way `other`: the median of the ratios within a round, whose samples were
    /// taken one after the other. With `best`, the ratio of the best samples.
    pub fn ratio(&self, way: usize, other: usize) -> f64 {
        if self.best {
            return self.of(way) / self.of(other);
        }
        median(self.rounds[way].iter().zip(&self.rounds[other]).map(|(a, b)| a / b).collect())
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Reproducible bytes without patterns (SplitMix64).
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x7e55_e7a0_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_taken_within_rounds() {
        // Both ways slow down to a third after the first round; the ratio of each round stays.
        let rounds = vec![vec![30.0, 10.0, 10.0], vec![15.0, 5.0, 5.0]];
        let rates = Rates { rounds: rounds.clone(), best: false };
        assert_eq!((rates.of(0), rates.of(1), rates.ratio(0, 1)), (10.0, 5.0, 2.0));
        assert_eq!(Rates { rounds, best: true }.of(0), 30.0);
    }
}
