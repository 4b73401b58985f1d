//! Joins data with what came before it, and picks who scans.

use super::{Candidate, Params, WINDOW_BYTES, portable, reference};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::isa::{Isa, Level};

/// See [`super::candidates`].
pub fn candidates(isa: Isa, params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>) {
    const OVERLAP: usize = WINDOW_BYTES - 1;
    // Windows that begin in the context lie in a small copy of the seam; all others lie in `data` alone.
    let context = &context[context.len().saturating_sub(OVERLAP)..];
    let head = &data[..data.len().min(OVERLAP)];
    let mut seam = [0u8; 2 * OVERLAP];
    seam[..context.len()].copy_from_slice(context);
    seam[context.len()..context.len() + head.len()].copy_from_slice(head);
    let first = out.len();
    reference::scan(params, &seam[..context.len() + head.len()], out);
    out[first..].iter_mut().for_each(|c| c.position -= context.len());
    scan(isa, params, data, out);
}

/// Appends every candidate among the positions of `bytes` that have a full window inside it.
pub fn scan(isa: Isa, params: &Params, bytes: &[u8], out: &mut Vec<Candidate>) {
    match isa.level() {
        Level::Reference => reference::scan(params, bytes, out),
        Level::Portable => portable::scan(params, bytes, out),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::scan(isa, params, bytes, out),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Gfni => avx512::scan(isa, params, bytes, out),
    }
}

/// Scans with a kernel that prefilters whole groups of `group` positions: `kernel(next, bytes, survivors)`
/// starts at position `next`, reports (position of bit 0, mask of positions that passed) and returns the first
/// position it did not look at. A last group that overlaps the one before does the rest.
#[cfg(target_arch = "x86_64")]
pub fn scan_in_groups(
    params: &Params,
    bytes: &[u8],
    group: usize,
    out: &mut Vec<Candidate>,
    kernel: impl Fn(usize, &[u8], &mut dyn FnMut(usize, u64)) -> usize,
) {
    if bytes.len() < WINDOW_BYTES + group {
        return reference::scan(params, bytes, out);
    }
    let mut take = |not_before: usize, at: usize, mut passed: u64| {
        while passed != 0 {
            let position = at + passed.trailing_zeros() as usize;
            if position >= not_before {
                reference::judge(params, &bytes[position - WINDOW_BYTES..position], position, out);
            }
            passed &= passed - 1;
        }
    };
    let done = kernel(WINDOW_BYTES, bytes, &mut |at, passed| take(0, at, passed));
    if done <= bytes.len() {
        kernel(bytes.len() + 1 - group, bytes, &mut |at, passed| take(done, at, passed));
    }
}
