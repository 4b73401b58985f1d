//! Times two or more ways of doing the same work in turns, so that changes of the clock or of the load affect all of
//! them.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// How long each comparison may take.
#[derive(Clone, Copy)]
pub struct Timing {
    /// Time for all ways of one comparison together.
    pub budget: Duration,
    /// Use the best sample of each way instead of the median: the code's rate on a machine that is otherwise busy.
    pub best: bool,
    /// What a sample is timed with.
    pub clock: Clock,
}

/// A clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Real time.
    Wall,
    /// The time that this thread ran: other programs that share the processor do not count, nor does waiting for a device.
    Thread,
}

impl Clock {
    fn now(self) -> Duration {
        let id = match self {
            Clock::Wall => ClockId::Monotonic,
            Clock::Thread => ClockId::ThreadCPUTime,
        };
        clock_gettime(id).try_into().expect("clocks do not go below zero")
    }
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
                let start = self.clock.now();
                (0..calls).for_each(|_| way());
                rates.push((bytes * calls) as f64 / (self.clock.now() - start).as_secs_f64() / 1e9);
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

    /// First and third quartile of way `way`.
    pub fn quartiles(&self, way: usize) -> [f64; 2] {
        quartiles(self.rounds[way].clone())
    }

    /// Ratio of the rates of way `way` and way `other`: the median of the ratios within a round, whose samples were
    /// taken one after the other. With `best`, the ratio of the best samples.
    pub fn ratio(&self, way: usize, other: usize) -> f64 {
        if self.best {
            return self.of(way) / self.of(other);
        }
        median(self.ratios(way, other))
    }

    /// First and third quartile of the ratios within a round.
    pub fn ratio_quartiles(&self, way: usize, other: usize) -> [f64; 2] {
        quartiles(self.ratios(way, other))
    }

    fn ratios(&self, way: usize, other: usize) -> Vec<f64> {
        self.rounds[way].iter().zip(&self.rounds[other]).map(|(a, b)| a / b).collect()
    }
}

fn quartiles(mut rates: Vec<f64>) -> [f64; 2] {
    rates.sort_by(f64::total_cmp);
    let last = rates.len() - 1;
    [rates[last / 4], rates[last - last / 4]]
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Reproducible numbers without patterns (SplitMix64).
pub struct Noise(u64);

impl Default for Noise {
    fn default() -> Noise {
        Noise(0x7e55_e7a0)
    }
}

impl Noise {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.word() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// Reproducible bytes.
pub fn noise(len: usize) -> Vec<u8> {
    let mut noise = Noise::default();
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&noise.word().to_le_bytes());
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
        assert_eq!(rates.ratio_quartiles(0, 1), [2.0, 2.0]);
        assert_eq!(Rates { rounds, best: true }.of(0), 30.0);
    }

    #[test]
    fn a_new_thread_has_run_for_less_time_than_the_machine() {
        let ran = std::thread::spawn(|| Clock::Thread.now()).join().expect("the thread ends");
        assert!(ran < Clock::Wall.now());
    }

    #[test]
    fn a_quarter_of_the_samples_lies_outside_each_quartile() {
        let rates = Rates { rounds: vec![vec![9.0, 1.0, 5.0, 3.0, 7.0]], best: false };
        assert_eq!((rates.of(0), rates.quartiles(0)), (5.0, [3.0, 7.0]));
    }
}
