//! The matrix product with AVX2: each byte's two nibbles look up their products with `VPSHUFB`
//! (Plank, Greenan, Miller, FAST 2013), up to four rows a pass.
#![allow(unsafe_code, clippy::needless_range_loop)] // Rows and vectors of a pass are indexes, side by side.

use super::dispatch::{Coefficients, Source, Target, block_bytes};
use super::reference;
use crate::isa::{Isa, Level};
use std::arch::x86_64::*;
use std::ops::Range;

const VECTOR: usize = 32;

/// See [`super::dispatch::multiply`].
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    assert!(isa.level() >= Level::Avx2);
    let len = targets.first().map_or(0, |t| t.bytes.len());
    assert!(sources.iter().all(|s| s.bytes.len() == len) && targets.iter().all(|t| t.bytes.len() == len));
    if len < VECTOR {
        return reference::multiply(coefficients, sources, targets);
    }
    let block = block_bytes(sources.len());
    for start in (0..len).step_by(block) {
        let range = start..len.min(start + block);
        for rows in targets.chunks_mut(4) {
            // SAFETY: an Isa of this level exists only if the CPU has AVX2. All slices are `len` long, which is
            // at least a vector, and `range` lies in 0..len.
            unsafe {
                match rows {
                    [row] if coefficients.is_ones(row.row) => xor(sources, row, range.clone()),
                    [_] => pass::<1>(coefficients, sources, rows, range.clone()),
                    [_, _] => pass::<2>(coefficients, sources, rows, range.clone()),
                    [_, _, _] => pass::<3>(coefficients, sources, rows, range.clone()),
                    _ => pass::<4>(coefficients, sources, rows, range.clone()),
                }
            }
        }
    }
}

/// One pass of `R` rows over `range` of all sources.
///
/// # Safety
/// AVX2; `rows` has `R` entries; all slices have the same length, at least 32, and `range` lies inside.
#[target_feature(enable = "avx2")]
unsafe fn pass<const R: usize>(
    coefficients: &Coefficients,
    sources: &[Source<'_>],
    rows: &mut [Target<'_>],
    range: Range<usize>,
) {
    let tables: [*const [u8; 32]; R] = std::array::from_fn(|r| coefficients.nibbles(rows[r].row).as_ptr());
    let out: [*mut u8; R] = std::array::from_fn(|r| rows[r].bytes.as_mut_ptr());
    let mut at = range.start;
    while at + 2 * VECTOR <= range.end {
        // SAFETY: [at, at + 64) lies in every slice.
        unsafe { step::<R, 2>(&tables, &out, sources, at) };
        at += 2 * VECTOR;
    }
    while at < range.end {
        // The last vector ends with the range and may do bytes twice: each is computed from the sources alone.
        // It may begin before the range, but never before the slice, which is at least a vector long.
        at = at.min(range.end.max(VECTOR) - VECTOR);
        // SAFETY: [at, at + 32) lies in every slice.
        unsafe { step::<R, 1>(&tables, &out, sources, at) };
        at += VECTOR;
    }
}

/// `R` rows of `V` vectors at offset `at`.
///
/// # Safety
/// AVX2; `V` vectors at `at` lie in every source and target; tables are indexed by the sources' columns.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn step<const R: usize, const V: usize>(
    tables: &[*const [u8; 32]; R],
    out: &[*mut u8; R],
    sources: &[Source<'_>],
    at: usize,
) {
    let low_nibble = _mm256_set1_epi8(15);
    let mut sums = [[_mm256_setzero_si256(); V]; R];
    for source in sources {
        let (mut low, mut high) = ([_mm256_setzero_si256(); V], [_mm256_setzero_si256(); V]);
        for v in 0..V {
            // SAFETY: the caller vouches for `V` vectors at `at`.
            let x = unsafe { _mm256_loadu_si256(source.bytes.as_ptr().add(at + v * VECTOR).cast()) };
            low[v] = _mm256_and_si256(x, low_nibble);
            high[v] = _mm256_and_si256(_mm256_srli_epi64::<4>(x), low_nibble);
        }
        for r in 0..R {
            // SAFETY: a row has a table of 32 bytes for each column.
            let (low_table, high_table) = unsafe {
                let table: *const __m128i = tables[r].add(source.column).cast();
                (
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(table)),
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1))),
                )
            };
            for v in 0..V {
                let products =
                    _mm256_xor_si256(_mm256_shuffle_epi8(low_table, low[v]), _mm256_shuffle_epi8(high_table, high[v]));
                sums[r][v] = _mm256_xor_si256(sums[r][v], products);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            // SAFETY: the caller vouches for `V` vectors at `at`.
            unsafe { _mm256_storeu_si256(out[r].add(at + v * VECTOR).cast(), sums[r][v]) };
        }
    }
}

/// A row of ones: the XOR of the sources.
///
/// # Safety
/// AVX2; all slices have the same length, at least 32, and `range` lies inside.
#[target_feature(enable = "avx2")]
unsafe fn xor(sources: &[Source<'_>], row: &mut Target<'_>, range: Range<usize>) {
    let out = row.bytes.as_mut_ptr();
    let mut at = range.start;
    while at + 4 * VECTOR <= range.end {
        // SAFETY: [at, at + 128) lies in every slice.
        unsafe { xor_step::<4>(sources, out, at) };
        at += 4 * VECTOR;
    }
    while at < range.end {
        // As in `pass`, the last vector may do bytes twice.
        at = at.min(range.end.max(VECTOR) - VECTOR);
        // SAFETY: [at, at + 32) lies in every slice.
        unsafe { xor_step::<1>(sources, out, at) };
        at += VECTOR;
    }
}

/// # Safety
/// AVX2; `V` vectors at `at` lie in every source and in `out`.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn xor_step<const V: usize>(sources: &[Source<'_>], out: *mut u8, at: usize) {
    let mut sums = [_mm256_setzero_si256(); V];
    for source in sources {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the bytes.
            let x = unsafe { _mm256_loadu_si256(source.bytes.as_ptr().add(at + v * VECTOR).cast()) };
            *sum = _mm256_xor_si256(*sum, x);
        }
    }
    for (v, sum) in sums.iter().enumerate() {
        // SAFETY: the caller vouches for the bytes.
        unsafe { _mm256_storeu_si256(out.add(at + v * VECTOR).cast(), *sum) };
    }
}
