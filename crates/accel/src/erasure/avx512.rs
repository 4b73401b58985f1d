//! The matrix product with AVX-512BW: as `avx2`, on vectors of 64 bytes, up to six rows a pass; masks do the ends.
#![allow(unsafe_code, clippy::needless_range_loop)] // Rows and vectors of a pass are indexes, side by side.

use super::dispatch::{Coefficients, Source, Target, block_bytes};
use crate::isa::{Isa, Level};
use std::arch::x86_64::*;
use std::ops::Range;

const VECTOR: usize = 64;
const ALL: __mmask64 = !0;

/// See [`super::dispatch::multiply`].
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    assert!(isa.level() >= Level::Avx512);
    let len = targets.first().map_or(0, |t| t.bytes.len());
    assert!(sources.iter().all(|s| s.bytes.len() == len) && targets.iter().all(|t| t.bytes.len() == len));
    let block = block_bytes(sources.len());
    for start in (0..len).step_by(block) {
        let range = start..len.min(start + block);
        for rows in targets.chunks_mut(6) {
            // SAFETY: an Isa of this level exists only if the CPU has AVX-512F, BW and VL. All slices are `len`
            // long and `range` lies in 0..len.
            unsafe {
                match rows {
                    [row] if coefficients.is_ones(row.row) => xor(sources, row, range.clone()),
                    [_] => pass::<1>(coefficients, sources, rows, range.clone()),
                    [_, _] => pass::<2>(coefficients, sources, rows, range.clone()),
                    [_, _, _] => pass::<3>(coefficients, sources, rows, range.clone()),
                    [_, _, _, _] => pass::<4>(coefficients, sources, rows, range.clone()),
                    [_, _, _, _, _] => pass::<5>(coefficients, sources, rows, range.clone()),
                    _ => pass::<6>(coefficients, sources, rows, range.clone()),
                }
            }
        }
    }
}

/// One pass of `R` rows over `range` of all sources.
///
/// # Safety
/// AVX-512F and BW; `rows` has `R` entries; all slices have the same length and `range` lies inside.
#[target_feature(enable = "avx512f,avx512bw")]
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
        // SAFETY: [at, at + 128) lies in every slice.
        unsafe { step::<R, 2>(&tables, &out, sources, at, ALL) };
        at += 2 * VECTOR;
    }
    while at < range.end {
        let mask = ALL >> (VECTOR - VECTOR.min(range.end - at));
        // SAFETY: the masked bytes at `at` lie in every slice.
        unsafe { step::<R, 1>(&tables, &out, sources, at, mask) };
        at += VECTOR;
    }
}

/// `R` rows of `V` vectors at offset `at`; of the last vector only the bytes in `mask`.
///
/// # Safety
/// AVX-512F and BW; what is asked for at `at` lies in every source and target; tables are indexed by the
/// sources' columns.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn step<const R: usize, const V: usize>(
    tables: &[*const [u8; 32]; R],
    out: &[*mut u8; R],
    sources: &[Source<'_>],
    at: usize,
    mask: __mmask64,
) {
    const XOR3: i32 = 0x96;
    let low_nibble = _mm512_set1_epi8(15);
    let mut sums = [[_mm512_setzero_si512(); V]; R];
    for source in sources {
        let (mut low, mut high) = ([_mm512_setzero_si512(); V], [_mm512_setzero_si512(); V]);
        for v in 0..V {
            // SAFETY: the caller vouches for the bytes.
            let x = unsafe { load::<V>(source.bytes.as_ptr().add(at), v, mask) };
            low[v] = _mm512_and_si512(x, low_nibble);
            high[v] = _mm512_and_si512(_mm512_srli_epi64::<4>(x), low_nibble);
        }
        for r in 0..R {
            // SAFETY: a row has a table of 32 bytes for each column.
            let (low_table, high_table) = unsafe {
                let table: *const __m128i = tables[r].add(source.column).cast();
                (_mm512_broadcast_i32x4(_mm_loadu_si128(table)), _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(1))))
            };
            for v in 0..V {
                let low_products = _mm512_shuffle_epi8(low_table, low[v]);
                let high_products = _mm512_shuffle_epi8(high_table, high[v]);
                sums[r][v] = _mm512_ternarylogic_epi64::<XOR3>(sums[r][v], low_products, high_products);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            // SAFETY: the caller vouches for the bytes.
            unsafe { store::<V>(out[r].add(at), v, mask, sums[r][v]) };
        }
    }
}

/// Vector `v` of `V` at `from`; of the last one only the bytes in `mask`, the others 0.
///
/// # Safety
/// AVX-512F and BW; those bytes are readable.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn load<const V: usize>(from: *const u8, v: usize, mask: __mmask64) -> __m512i {
    // SAFETY: the caller vouches for the bytes; masked-out bytes are not touched.
    unsafe {
        let from = from.add(v * VECTOR);
        if V > 1 { _mm512_loadu_si512(from.cast()) } else { _mm512_maskz_loadu_epi8(mask, from.cast()) }
    }
}

/// Writes vector `v` of `V` at `to`; of the last one only the bytes in `mask`.
///
/// # Safety
/// AVX-512F and BW; those bytes are writable.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn store<const V: usize>(to: *mut u8, v: usize, mask: __mmask64, x: __m512i) {
    // SAFETY: the caller vouches for the bytes; masked-out bytes are not touched.
    unsafe {
        let to = to.add(v * VECTOR);
        if V > 1 { _mm512_storeu_si512(to.cast(), x) } else { _mm512_mask_storeu_epi8(to.cast(), mask, x) }
    }
}

/// A row of ones: the XOR of the sources.
///
/// # Safety
/// AVX-512F and BW; all slices have the same length and `range` lies inside.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn xor(sources: &[Source<'_>], row: &mut Target<'_>, range: Range<usize>) {
    let out = row.bytes.as_mut_ptr();
    let mut at = range.start;
    while at + 4 * VECTOR <= range.end {
        // SAFETY: [at, at + 256) lies in every slice.
        unsafe { xor_step::<4>(sources, out, at, ALL) };
        at += 4 * VECTOR;
    }
    while at < range.end {
        let mask = ALL >> (VECTOR - VECTOR.min(range.end - at));
        // SAFETY: the masked bytes at `at` lie in every slice.
        unsafe { xor_step::<1>(sources, out, at, mask) };
        at += VECTOR;
    }
}

/// # Safety
/// AVX-512F and BW; what is asked for at `at` lies in every source and in `out`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn xor_step<const V: usize>(sources: &[Source<'_>], out: *mut u8, at: usize, mask: __mmask64) {
    let mut sums = [_mm512_setzero_si512(); V];
    for source in sources {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the bytes.
            *sum = _mm512_xor_si512(*sum, unsafe { load::<V>(source.bytes.as_ptr().add(at), v, mask) });
        }
    }
    for (v, sum) in sums.iter().enumerate() {
        // SAFETY: the caller vouches for the bytes.
        unsafe { store::<V>(out.add(at), v, mask, *sum) };
    }
}
