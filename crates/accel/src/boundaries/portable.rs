//! Phase 1 in plain Rust for CPUs without a leaf: the reference's sums, each computed once per position instead of once
//! per window.

use super::reference::{FAR, MIDDLE, NEAR, TARGET, look_up};
use super::{Candidate, Params, WINDOW_BYTES, reference};

/// Positions per step; their sums fit the first-level cache.
const BLOCK: usize = 4096;
/// How far sums look back: `near` 48 positions, `middle` 32.
const BACK: usize = 48;

/// See [`reference::scan`].
pub fn scan(params: &Params, bytes: &[u8], out: &mut Vec<Candidate>) {
    let tables = [&NEAR, &MIDDLE, &FAR].map(|t| -> [u8; 256] { std::array::from_fn(|v| look_up(t, v as u8)) });
    let mut first = WINDOW_BYTES;
    while first <= bytes.len() {
        let count = BLOCK.min(bytes.len() + 1 - first);
        scan_block(params, &tables, bytes, first, count, out);
        first += count;
    }
}

/// Scans positions `first` to `first + count`.
fn scan_block(
    params: &Params,
    [near_table, middle_table, far_table]: &[[u8; 256]; 3],
    bytes: &[u8],
    first: usize,
    count: usize,
    out: &mut Vec<Candidate>,
) {
    // Entry i belongs to position first + i − BACK, whose newest byte is the one before it.
    let mut near = [0u8; BLOCK + BACK];
    let mut middle = [0u8; BLOCK + BACK];
    let source = &bytes[first - BACK - 4..first + count - 1];
    for (sum, x) in near.iter_mut().zip(source.windows(4)) {
        let average = (u16::from(x[1]) + u16::from(x[2])).div_ceil(2) as usize;
        *sum = x[3].wrapping_add(x[0]).wrapping_add(near_table[average & 255]);
    }
    for i in 16..BACK + count {
        middle[i] = near[i].wrapping_add(middle_table[usize::from(near[i - 16])]);
    }
    for i in BACK..BACK + count {
        let sum = middle[i].wrapping_add(far_table[usize::from(middle[i - 32])]);
        if sum == TARGET && near[i - 32] as i8 > params.above {
            let position = first + i - BACK;
            reference::judge(params, &bytes[position - WINDOW_BYTES..position], position, out);
        }
    }
}
