//! The matrix product with NEON: as `avx2`, with `TBL` for the look-ups and half as many bytes a vector.
#![allow(unsafe_code)]

use super::dispatch::{Coefficients, Source, Target};
use super::frame::{self, Factors};
use crate::isa::{Isa, Level};
use crate::simd::Neon;
use std::arch::aarch64::*;

/// See [`super::dispatch::multiply`].
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    assert!(isa.level() >= Level::Neon);
    // SAFETY: an Isa of this level exists only if the CPU has NEON; dispatch has checked the lengths.
    unsafe { enabled(coefficients, sources, targets) }
}

/// # Safety
/// NEON; all sources and targets have the same length.
#[target_feature(enable = "neon")]
unsafe fn enabled(coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    // SAFETY: the caller's contract is the frame's.
    unsafe { frame::multiply::<Table>(coefficients, sources, targets) }
}

/// Products by two look-ups.
struct Table;

// SAFETY: NEON alone; `nibbles` has a table for every column.
unsafe impl Factors for Table {
    type Vector = Neon;
    type Entry = [u8; 32];
    type Factor = (uint8x16_t, uint8x16_t);
    type Operand = (uint8x16_t, uint8x16_t);
    /// Of 32 registers: twelve sums, two operands in two halves, a factor in two halves, the mask.
    const ROWS: usize = 6;

    #[inline(always)]
    fn factors(coefficients: &Coefficients, row: usize) -> &[[u8; 32]] {
        coefficients.nibbles(row)
    }

    #[inline(always)]
    unsafe fn prepare(x: Neon) -> Self::Operand {
        // SAFETY: NEON, by the contract.
        unsafe { (vandq_u8(x.0, vdupq_n_u8(15)), vshrq_n_u8::<4>(x.0)) }
    }

    #[inline(always)]
    unsafe fn factor(entry: &[u8; 32]) -> Self::Factor {
        // SAFETY: NEON, by the contract; two halves of 16 bytes are read from 32.
        unsafe { (vld1q_u8(entry.as_ptr()), vld1q_u8(entry.as_ptr().add(16))) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: Neon, (low_table, high_table): Self::Factor, (low, high): Self::Operand) -> Neon {
        // SAFETY: NEON, by the contract.
        Neon(unsafe { veorq_u8(sum.0, veorq_u8(vqtbl1q_u8(low_table, low), vqtbl1q_u8(high_table, high))) })
    }
}
