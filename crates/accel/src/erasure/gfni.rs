//! The matrix product with GFNI on AVX-512 vectors: `VGF2P8AFFINEQB` multiplies 64 bytes by a constant of any
//! field, written as an 8 × 8 bit matrix, so the two look-ups of `frame` become one instruction.
#![allow(unsafe_code)]

use super::dispatch::{Coefficients, Source, Target};
use super::frame::{self, Factors};
use crate::isa::{Isa, Level};
use crate::simd::{Avx512, Vector};
use std::arch::x86_64::*;

/// See [`super::dispatch::multiply`].
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    assert!(isa.level() >= Level::Gfni);
    // SAFETY: an Isa of this level exists only if the CPU has GFNI and AVX-512F, BW and VL; dispatch has checked the
    // lengths.
    unsafe { enabled(coefficients, sources, targets) }
}

/// # Safety
/// GFNI, AVX-512F and BW; all sources and targets have the same length.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn enabled(coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    // SAFETY: the caller's contract is the frame's.
    unsafe { frame::multiply::<Affine>(coefficients, sources, targets) }
}

/// Products by bit matrices.
struct Affine;

// SAFETY: GFNI and AVX-512F alone; `affine` has a matrix for every column.
unsafe impl Factors for Affine {
    type Vector = Avx512;
    type Entry = u64;
    type Factor = __m512i;
    type Operand = __m512i;
    const ROWS: usize = 6;

    #[inline(always)]
    fn factors(coefficients: &Coefficients, row: usize) -> &[u64] {
        coefficients.affine(row)
    }

    #[inline(always)]
    unsafe fn prepare(x: Avx512) -> __m512i {
        x.0
    }

    #[inline(always)]
    unsafe fn factor(entry: &u64) -> __m512i {
        // SAFETY: AVX-512F, by the contract.
        unsafe { _mm512_set1_epi64(*entry as i64) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: Avx512, factor: __m512i, x: __m512i) -> Avx512 {
        // SAFETY: GFNI and AVX-512F, by the contract.
        unsafe { sum.xor(Avx512(_mm512_gf2p8affine_epi64_epi8::<0>(x, factor))) }
    }
}
