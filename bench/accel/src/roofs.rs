//! What this machine's memory allows: the roofs that figures are held against.

use crate::timing::{Timing, noise};
use std::hint::black_box;

/// Memory rates of one thread over a working set of a given size, in GB/s.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Reading alone.
    pub read: f64,
    /// `memcpy`, counting each byte once.
    pub copy: f64,
}

impl Memory {
    /// Measures over `bytes` of memory (read), half of it copied to the other half (copy).
    pub fn measure(timing: Timing, bytes: usize) -> Memory {
        let mut pool = noise(bytes);
        let read = timing.compare(
            bytes,
            &mut [&mut || {
                black_box(sum(black_box(&pool)));
            }],
        )[0];
        let (source, target) = pool.split_at_mut(bytes / 2);
        let half = source.len().min(target.len());
        let copy = timing.compare(
            half,
            &mut [&mut || {
                target[..half].copy_from_slice(black_box(&source[..half]));
                black_box(&mut *target);
            }],
        )[0];
        Memory { read, copy }
    }

    /// GB/s of data of a code that reads each of k fragments once and writes m, if computing cost nothing: a
    /// byte read costs 1/read, a byte written what a copied one costs beyond that.
    pub fn code(&self, k: usize, m: usize) -> f64 {
        let (k, m) = (k as f64, m as f64);
        k / (k / self.read + m * (1.0 / self.copy - 1.0 / self.read).max(0.0))
    }
}

/// XOR of all words, eight at a time: reads as fast as memory delivers.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in bytes.chunks_exact(128) {
        for (sum, word) in sums.iter_mut().zip(chunk.chunks_exact(8)) {
            *sum ^= u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}
