//! The matrix product with GFNI on AVX-512 vectors: `VGF2P8AFFINEQB` multiplies 64 bytes by a constant of any
//! field, written as an 8 × 8 bit matrix, so the nibble tables of `avx512` become one instruction.
#![allow(unsafe_code, clippy::needless_range_loop)] // Rows and vectors of a pass are indexes, side by side.

use super::avx512::{load, store, xor};
use super::dispatch::{Coefficients, Source, Target, block_bytes};
use crate::isa::{Isa, Level};
use std::arch::x86_64::*;
use std::ops::Range;

const VECTOR: usize = 64;
const ALL: __mmask64 = !0;

/// See [`super::dispatch::multiply`].
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    assert!(isa.level() >= Level::Gfni);
    let len = targets.first().map_or(0, |t| t.bytes.len());
    assert!(sources.iter().all(|s| s.bytes.len() == len) && targets.iter().all(|t| t.bytes.len() == len));
    let block = block_bytes(sources.len());
    for start in (0..len).step_by(block) {
        let range = start..len.min(start + block);
        for rows in targets.chunks_mut(6) {
            // SAFETY: an Isa of this level exists only if the CPU has GFNI and AVX-512F, BW and VL. All slices
            // are `len` long and `range` lies in 0..len.
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
/// GFNI, AVX-512F and BW; `rows` has `R` entries; all slices have the same length and `range` lies inside.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn pass<const R: usize>(
    coefficients: &Coefficients,
    sources: &[Source<'_>],
    rows: &mut [Target<'_>],
    range: Range<usize>,
) {
    let matrices: [*const u64; R] = std::array::from_fn(|r| coefficients.affine(rows[r].row).as_ptr());
    let out: [*mut u8; R] = std::array::from_fn(|r| rows[r].bytes.as_mut_ptr());
    let mut at = range.start;
    while at + 2 * VECTOR <= range.end {
        // SAFETY: [at, at + 128) lies in every slice.
        unsafe { step::<R, 2>(&matrices, &out, sources, at, ALL) };
        at += 2 * VECTOR;
    }
    while at < range.end {
        let mask = ALL >> (VECTOR - VECTOR.min(range.end - at));
        // SAFETY: the masked bytes at `at` lie in every slice.
        unsafe { step::<R, 1>(&matrices, &out, sources, at, mask) };
        at += VECTOR;
    }
}

/// `R` rows of `V` vectors at offset `at`; of the last vector only the bytes in `mask`.
///
/// # Safety
/// GFNI, AVX-512F and BW; what is asked for at `at` lies in every source and target; matrices are indexed by
/// the sources' columns.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
#[inline]
unsafe fn step<const R: usize, const V: usize>(
    matrices: &[*const u64; R],
    out: &[*mut u8; R],
    sources: &[Source<'_>],
    at: usize,
    mask: __mmask64,
) {
    let mut sums = [[_mm512_setzero_si512(); V]; R];
    for source in sources {
        let mut x = [_mm512_setzero_si512(); V];
        for (v, x) in x.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the bytes.
            *x = unsafe { load::<V>(source.bytes.as_ptr().add(at), v, mask) };
        }
        for r in 0..R {
            // SAFETY: a row has a matrix for each column.
            let matrix = _mm512_set1_epi64(unsafe { *matrices[r].add(source.column) } as i64);
            for v in 0..V {
                let products = _mm512_gf2p8affine_epi64_epi8::<0>(x[v], matrix);
                sums[r][v] = _mm512_xor_si512(sums[r][v], products);
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
