//! Bytes that are new every time, and what the compute kernels reach alone: ceilings of the write path.

use crate::Reply;
use std::time::Instant;

/// Fills `out` from a counter through SplitMix64 (Steele, Lea, Flood 2014), by two threads.
///
/// Different seeds give different bytes, so that nothing deduplicates and nothing compresses.
pub fn fill(out: &mut [u8], seed: u64) {
    let half = (out.len() / 2).next_multiple_of(8).min(out.len());
    let (low, high) = out.split_at_mut(half);
    let start = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    std::thread::scope(|scope| {
        scope.spawn(|| fill_part(low, start));
        fill_part(high, start.wrapping_add(1 << 62));
    });
}

fn fill_part(out: &mut [u8], start: u64) {
    let mut state = start;
    for piece in out.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        piece.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..piece.len()]);
    }
}

/// Bytes of the source that the kernels are tried on.
const SAMPLE_BYTES: usize = 64 << 20;

/// Rates of the kernels of the data path on one thread, in bytes a second of input.
pub fn kernels(source: &[u8]) -> Reply {
    let sample = &source[..source.len().min(SAMPLE_BYTES)];
    if sample.is_empty() {
        return Err("nothing is prepared: say prepare BYTES SEED first".into());
    }
    let crc = rate(sample, || u64::from(tessera_accel::checksum::crc32c(sample)));
    Ok(format!("crc32c={crc:.0}"))
}

/// Bytes a second of the best of five runs.
fn rate(sample: &[u8], work: impl Fn() -> u64) -> f64 {
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(work());
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    sample.len() as f64 / best
}
