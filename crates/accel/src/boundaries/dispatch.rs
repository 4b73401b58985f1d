//! Joins data with the bytes before it, and chooses the instruction set that scans.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
use super::neon;
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
        #[cfg(target_arch = "aarch64")]
        // SAFETY: an Isa of this level exists only if the CPU has NEON.
        Level::Neon => {
            scan_in_groups(params, bytes, out, |next, masks| unsafe { neon::scan_groups(params, bytes, next, masks) })
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this level exists only if the CPU has AVX2.
        Level::Avx2 => {
            scan_in_groups(params, bytes, out, |next, masks| unsafe { avx2::scan_groups(params, bytes, next, masks) })
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of these levels exists only if the CPU has AVX-512F, BW and VL.
        Level::Avx512 | Level::Gfni => {
            scan_in_groups(params, bytes, out, |next, masks| unsafe { avx512::scan_groups(params, bytes, next, masks) })
        }
    }
}

/// Positions that a kernel prefilters at a time, one bit each.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub struct Masks {
    /// The positions that passed.
    pub passed: [u64; 64],
    /// Bit i: whether some position of `passed[i]` passed.
    pub some: u64,
}

/// Prefetches the bytes a page behind those at `at`: the CPU's own prefetchers stop at the end of a page. Without this the
/// kernel's loads wait for the second-level cache, or for memory.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch(bytes: &[u8], at: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    const AHEAD_BYTES: usize = 4096;
    // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at + AHEAD_BYTES).cast()) };
}

/// Whole groups of 64 positions from `first` on that a kernel prefilters at a time.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn groups_from(bytes: &[u8], first: usize) -> usize {
    assert!(first >= WINDOW_BYTES);
    ((bytes.len() + 1).saturating_sub(first) / 64).min(64)
}

/// Scans with a kernel that prefilters whole groups of 64 positions. `kernel(next, masks)` starts at position `next`,
/// fills masks for the whole groups (bit b of mask i: position next + 64·i + b) and returns the number of groups. A last
/// group that overlaps the one before covers the rest.
///
/// Survivors are judged afterwards, because a branch in every group would be mispredicted at each survivor.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn scan_in_groups(
    params: &Params,
    bytes: &[u8],
    out: &mut Vec<Candidate>,
    kernel: impl Fn(usize, &mut Masks) -> usize,
) {
    if bytes.len() < WINDOW_BYTES + 64 {
        return reference::scan(params, bytes, out);
    }
    let mut masks = Masks { passed: [0; 64], some: 0 };
    let mut next = WINDOW_BYTES;
    loop {
        let groups = kernel(next, &mut masks);
        if groups == 0 {
            break;
        }
        judge_survivors(params, bytes, next, &masks, out);
        next += 64 * groups;
    }
    if next <= bytes.len() {
        // Positions before `next` are done.
        let last = bytes.len() + 1 - 64;
        kernel(last, &mut masks);
        masks.passed[0] &= !0 << (next - last);
        judge_survivors(params, bytes, last, &masks, out);
    }
}

/// Appends the candidates among the positions from `first` on that passed the prefilter.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn judge_survivors(params: &Params, bytes: &[u8], first: usize, masks: &Masks, out: &mut Vec<Candidate>) {
    let mut some = masks.some;
    while some != 0 {
        let i = some.trailing_zeros() as usize;
        let mut passed = masks.passed[i];
        while passed != 0 {
            let position = first + 64 * i + passed.trailing_zeros() as usize;
            reference::judge(params, &bytes[position - WINDOW_BYTES..position], position, out);
            passed &= passed - 1;
        }
        some &= some - 1;
    }
}
