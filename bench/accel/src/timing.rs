//! Timing two or more ways of doing the same work in turns, so that a machine whose clock or neighbours change
//! changes them alike.

use std::time::{Duration, Instant};

/// How long each comparison may take.
#[derive(Clone, Copy)]
pub struct Timing {
    /// Time for all ways of one comparison together.
    pub budget: Duration,
    /// The best sample of each way instead of the median: what the code can do on a machine that is busy otherwise.
    pub best: bool,
}

impl Timing {
    /// Median (or best) GB/s, 10^9 bytes of `bytes` a call, of each way; the ways take turns.
    pub fn compare(&self, bytes: usize, ways: &mut [&mut dyn FnMut()]) -> Vec<f64> {
        // Small work is repeated so that the clock's own cost does not show.
        let calls = (256 * 1024 / bytes).max(1);
        let mut rates = vec![Vec::new(); ways.len()];
        ways.iter_mut().for_each(|way| way());
        let begin = Instant::now();
        while rates[0].len() < 5 || (begin.elapsed() < self.budget && rates[0].len() < 10_000) {
            for (way, rates) in ways.iter_mut().zip(&mut rates) {
                let start = Instant::now();
                (0..calls).for_each(|_| way());
                rates.push((bytes * calls) as f64 / start.elapsed().as_secs_f64() / 1e9);
            }
        }
        rates.into_iter().map(|rates| if self.best { maximum(&rates) } else { median(rates) }).collect()
    }
}

fn maximum(rates: &[f64]) -> f64 {
    rates.iter().fold(0.0, |most, rate| rate.max(most))
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
