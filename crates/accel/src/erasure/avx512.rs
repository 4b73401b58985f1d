//! The matrix product with AVX-512BW: as `avx2`, on vectors of 64 bytes.
#![allow(unsafe_code)]

use super::dispatch::{Coefficients, Source, Target};
use super::frame::{self, Factors};
use crate::isa::{Isa, Level};
use crate::simd::{Avx512, Bytes};
use std::arch::x86_64::*;

/// See [`super::dispatch::multiply`].
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    assert!(isa.level() >= Level::Avx512);
    // SAFETY: an Isa of this level exists only if the CPU has AVX-512F, BW and VL; dispatch has checked the lengths.
    unsafe { enabled(coefficients, sources, targets) }
}

/// # Safety
/// AVX-512F and BW; all sources and targets have the same length.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn enabled(coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    // SAFETY: the caller's contract is the frame's.
    unsafe { frame::multiply::<Shuffle>(coefficients, sources, targets) }
}

/// Products by two look-ups.
struct Shuffle;

// SAFETY: AVX-512F and BW alone; `nibbles` has a table for every column.
unsafe impl Factors for Shuffle {
    type Vector = Avx512;
    type Entry = [u8; 32];
    type Factor = (__m512i, __m512i);
    type Operand = (__m512i, __m512i);
    const ROWS: usize = 6;

    #[inline(always)]
    fn factors(coefficients: &Coefficients, row: usize) -> &[[u8; 32]] {
        coefficients.nibbles(row)
    }

    #[inline(always)]
    unsafe fn prepare(x: Avx512) -> Self::Operand {
        // SAFETY: AVX-512F, by the contract.
        unsafe {
            let low_nibble = _mm512_set1_epi8(15);
            (_mm512_and_si512(x.0, low_nibble), _mm512_and_si512(_mm512_srli_epi64::<4>(x.0), low_nibble))
        }
    }

    #[inline(always)]
    unsafe fn factor(entry: &[u8; 32]) -> Self::Factor {
        let table: *const __m128i = entry.as_ptr().cast();
        // SAFETY: AVX-512F, by the contract; two halves of 16 bytes are read from 32.
        unsafe {
            (_mm512_broadcast_i32x4(_mm_loadu_si128(table)), _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(1))))
        }
    }

    #[inline(always)]
    unsafe fn add_product(sum: Avx512, (low_table, high_table): Self::Factor, (low, high): Self::Operand) -> Avx512 {
        // SAFETY: AVX-512BW, by the contract.
        unsafe {
            let low_product = Avx512(_mm512_shuffle_epi8(low_table, low));
            sum.xor3(low_product, Avx512(_mm512_shuffle_epi8(high_table, high)))
        }
    }
}
