//! [`Vector`] with NEON. There are no prefetches: stable Rust has no intrinsic for them on ARM, and no measurement on ARM
//! shows that they would help.
#![allow(unsafe_code, clippy::needless_range_loop)] // Lanes and words are indexes, side by side.

use super::{MAX_LANES, Vector};
use std::arch::aarch64::*;

/// 16 bytes.
#[derive(Clone, Copy)]
pub struct Neon(uint8x16_t);

impl Neon {
    /// Reinterprets the vector as four words; no instruction.
    #[inline(always)]
    fn words(self) -> uint32x4_t {
        // SAFETY: a value of this type exists only where there is NEON.
        unsafe { vreinterpretq_u32_u8(self.0) }
    }

    /// Makes a vector of four words; no instruction.
    #[inline(always)]
    fn of(words: uint32x4_t) -> Neon {
        // SAFETY: a value of this type exists only where there is NEON.
        Neon(unsafe { vreinterpretq_u8_u32(words) })
    }
}

/// Byte order that rotates each word left by 24 bits.
const BYTES_BY_THREE: [u8; 16] = [1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12];

// SAFETY: every method uses NEON alone and touches only what its contract names.
unsafe impl Vector for Neon {
    type Table = Neon;
    const LEN: usize = 16;

    methods! {
        add(self, other) = Neon::of(vaddq_u32(self.words(), other.words()));
        xor(self, other) = Neon(veorq_u8(self.0, other.0));
        and(self, other) = Neon(vandq_u8(self.0, other.0));
        or(self, other) = Neon(vorrq_u8(self.0, other.0));
        look_up(self, table) = Neon(vqtbl1q_u8(table.0, self.0));
        swap_bytes(self) = Neon(vrev32q_u8(self.0));
        choose(self, a, b) = Neon(vbslq_u8(self.0, a.0, b.0));
        // Where two bits differ the third decides; otherwise either of them does.
        majority(self, a, b) = Neon(vbslq_u8(veorq_u8(self.0, a.0), b.0, a.0));
        xor_or_not(self, a, b) = Neon(veorq_u8(self.0, vornq_u8(a.0, b.0)));
    }

    #[inline(always)]
    unsafe fn splat(x: u32) -> Self {
        // SAFETY: NEON, by the contract.
        Neon::of(unsafe { vdupq_n_u32(x) })
    }

    #[inline(always)]
    unsafe fn load<T>(from: *const T) -> Self {
        // SAFETY: 16 readable bytes, by the contract.
        Neon(unsafe { vld1q_u8(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store<T>(self, to: *mut T) {
        // SAFETY: 16 writable bytes, by the contract.
        unsafe { vst1q_u8(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn table(entries: &[u8; 16]) -> Self {
        // SAFETY: NEON, by the contract.
        unsafe { Self::load(entries.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn nibbles(self) -> (Self, Self) {
        // SAFETY: NEON, by the contract.
        unsafe { (Neon(vandq_u8(self.0, vdupq_n_u8(15))), Neon(vshrq_n_u8::<4>(self.0))) }
    }

    #[inline(always)]
    unsafe fn rotate<const L: i32, const R: i32>(self) -> Self {
        // SAFETY: NEON, by the contract. One instruction instead of two shifts moves whole bytes.
        unsafe {
            match L {
                16 => Neon(vreinterpretq_u8_u16(vrev32q_u16(vreinterpretq_u16_u8(self.0)))),
                24 => Neon(vqtbl1q_u8(self.0, vld1q_u8(BYTES_BY_THREE.as_ptr()))),
                _ => Neon::of(vsriq_n_u32::<R>(vshlq_n_u32::<L>(self.words()), self.words())),
            }
        }
    }

    #[inline(always)]
    unsafe fn shift_right<const R: i32>(self) -> Self {
        // SAFETY: NEON, by the contract.
        Neon::of(unsafe { vshrq_n_u32::<R>(self.words()) })
    }

    #[inline(always)]
    unsafe fn pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: NEON and eight readable words, by the contract.
        unsafe {
            let (first, second) = (Self::load(from).words(), Self::load(from.add(4)).words());
            (Neon::of(vuzp1q_u32(first, second)), Neon::of(vuzp2q_u32(first, second)))
        }
    }

    #[inline(always)]
    unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16] {
        // SAFETY: NEON and 64 readable bytes at each of four pointers, by the contract.
        unsafe {
            let mut words = [Neon(vdupq_n_u8(0)); 16];
            for piece in 0..4 {
                let mut rows = [vdupq_n_u32(0); 4];
                for r in 0..4 {
                    rows[r] = Neon(vld1q_u8(at[r].add(offset + 16 * piece))).words();
                }
                // Words of two lanes side by side, even ones and odd ones; then of all four.
                let pair = |r: usize| {
                    let (even, odd) = (vtrn1q_u32(rows[r], rows[r + 1]), vtrn2q_u32(rows[r], rows[r + 1]));
                    (vreinterpretq_u64_u32(even), vreinterpretq_u64_u32(odd))
                };
                let ((a, b), (c, d)) = (pair(0), pair(2));
                words[4 * piece] = Neon(vreinterpretq_u8_u64(vtrn1q_u64(a, c)));
                words[4 * piece + 1] = Neon(vreinterpretq_u8_u64(vtrn1q_u64(b, d)));
                words[4 * piece + 2] = Neon(vreinterpretq_u8_u64(vtrn2q_u64(a, c)));
                words[4 * piece + 3] = Neon(vreinterpretq_u8_u64(vtrn2q_u64(b, d)));
            }
            words
        }
    }
}
