//! The matrix product with AVX2: each byte's two nibbles look up their products with `VPSHUFB`
//! (Plank, Greenan, Miller, FAST 2013).
#![allow(unsafe_code)]

use super::dispatch::{Coefficients, Source, Target};
use super::frame::{self, Factors};
use crate::isa::{Isa, Level};
use crate::simd::Avx2;
use std::arch::x86_64::*;

/// See [`super::dispatch::multiply`].
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    assert!(isa.level() >= Level::Avx2);
    // SAFETY: an Isa of this level exists only if the CPU has AVX2; dispatch has checked the lengths.
    unsafe { enabled(coefficients, sources, targets) }
}

/// # Safety
/// AVX2; all sources and targets have the same length.
#[target_feature(enable = "avx2")]
unsafe fn enabled(coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    // SAFETY: the caller's contract is the frame's.
    unsafe { frame::multiply::<Shuffle>(coefficients, sources, targets) }
}

/// Products by two look-ups.
struct Shuffle;

// SAFETY: AVX2 alone; `nibbles` has a table for every column.
unsafe impl Factors for Shuffle {
    type Vector = Avx2;
    type Entry = [u8; 32];
    type Factor = (__m256i, __m256i);
    type Operand = (__m256i, __m256i);
    /// Sixteen registers: eight sums, two operands in two halves, a factor in two halves, the mask.
    const ROWS: usize = 4;

    #[inline(always)]
    fn factors(coefficients: &Coefficients, row: usize) -> &[[u8; 32]] {
        coefficients.nibbles(row)
    }

    #[inline(always)]
    unsafe fn prepare(x: Avx2) -> Self::Operand {
        // SAFETY: AVX2, by the contract.
        unsafe {
            let low_nibble = _mm256_set1_epi8(15);
            (_mm256_and_si256(x.0, low_nibble), _mm256_and_si256(_mm256_srli_epi64::<4>(x.0), low_nibble))
        }
    }

    #[inline(always)]
    unsafe fn factor(entry: &[u8; 32]) -> Self::Factor {
        let table: *const __m128i = entry.as_ptr().cast();
        // SAFETY: AVX2, by the contract; two halves of 16 bytes are read from 32.
        unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table)),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1))),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_product(sum: Avx2, (low_table, high_table): Self::Factor, (low, high): Self::Operand) -> Avx2 {
        // SAFETY: AVX2, by the contract.
        unsafe {
            let product = _mm256_xor_si256(_mm256_shuffle_epi8(low_table, low), _mm256_shuffle_epi8(high_table, high));
            Avx2(_mm256_xor_si256(sum.0, product))
        }
    }
}
