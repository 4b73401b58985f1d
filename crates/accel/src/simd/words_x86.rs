//! [`Words`] with AVX2 (eight lanes) and AVX-512 (sixteen).
#![allow(unsafe_code, clippy::needless_range_loop)] // Lanes and words are indexes, side by side.

use super::words::{MAX_LANES, Words};
use super::{Avx2, Avx512};
use std::arch::x86_64::*;

/// The methods that differ between the sets only in the names of intrinsics.
macro_rules! plain {
    ($vector:ident: $splat:ident, $load:ident, $store:ident, $($name:ident by $two:ident),*) => {
        #[inline(always)]
        unsafe fn splat(x: u32) -> Self {
            // SAFETY: the instruction set, by the contract.
            $vector(unsafe { $splat(x as i32) })
        }

        #[inline(always)]
        unsafe fn load(from: *const u32) -> Self {
            // SAFETY: LANES readable words, by the contract.
            $vector(unsafe { $load(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u32) {
            // SAFETY: LANES writable words, by the contract.
            unsafe { $store(to.cast(), self.0) }
        }

        $(#[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: the instruction set, by the contract.
            $vector(unsafe { $two(self.0, other.0) })
        })*

        #[inline(always)]
        fn prefetch(at: &[*const u8; MAX_LANES], offset: usize) {
            for pointer in &at[..Self::LANES] {
                // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(offset).cast()) };
            }
        }
    };
}

// SAFETY: every method uses AVX2 alone and touches only what its contract names.
unsafe impl Words for Avx2 {
    const LANES: usize = 8;

    plain!(Avx2: _mm256_set1_epi32, _mm256_loadu_si256, _mm256_storeu_si256,
        add by _mm256_add_epi32, xor by _mm256_xor_si256, and by _mm256_and_si256, or by _mm256_or_si256);

    #[inline(always)]
    unsafe fn rotate<const L: i32, const R: i32>(self) -> Self {
        // SAFETY: AVX2, by the contract. One shuffle instead of two shifts moves whole bytes.
        Avx2(unsafe {
            match L {
                16 => _mm256_shuffle_epi8(self.0, lanes(0x0d0c_0f0e_0908_0b0a, 0x0504_0706_0100_0302)),
                24 => _mm256_shuffle_epi8(self.0, lanes(0x0c0f_0e0d_080b_0a09, 0x0407_0605_0003_0201)),
                _ => _mm256_or_si256(_mm256_slli_epi32::<L>(self.0), _mm256_srli_epi32::<R>(self.0)),
            }
        })
    }

    #[inline(always)]
    unsafe fn shift_right<const R: i32>(self) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_srli_epi32::<R>(self.0) })
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_shuffle_epi8(self.0, lanes(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203)) })
    }

    #[inline(always)]
    unsafe fn pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: AVX2 and sixteen readable words, by the contract.
        unsafe {
            let first = _mm256_castsi256_ps(_mm256_loadu_si256(from.cast()));
            let second = _mm256_castsi256_ps(_mm256_loadu_si256(from.add(8).cast()));
            // Within halves: 0 2 8 10 | 4 6 12 14; then the quarters in order.
            let even = _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(first, second));
            let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0xdd>(first, second));
            (Avx2(_mm256_permute4x64_epi64::<0xd8>(even)), Avx2(_mm256_permute4x64_epi64::<0xd8>(odd)))
        }
    }

    #[inline(always)]
    unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16] {
        // SAFETY: AVX2 and 64 readable bytes at each pointer, by the contract.
        unsafe {
            let mut words = [Avx2(_mm256_setzero_si256()); 16];
            for piece in 0..4 {
                // Sixteen bytes of lanes r and r + 4. A load into one half uses no shuffle unit.
                let mut rows = [_mm256_setzero_si256(); 4];
                for r in 0..4 {
                    let from = |lane: usize| _mm_loadu_si128(at[lane].add(offset + 16 * piece).cast());
                    rows[r] = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(from(r)), from(r + 4));
                }
                // Pairs of words, then all four, in both halves alike.
                let (a, b) = (_mm256_unpacklo_epi32(rows[0], rows[1]), _mm256_unpackhi_epi32(rows[0], rows[1]));
                let (c, d) = (_mm256_unpacklo_epi32(rows[2], rows[3]), _mm256_unpackhi_epi32(rows[2], rows[3]));
                words[4 * piece] = Avx2(_mm256_unpacklo_epi64(a, c));
                words[4 * piece + 1] = Avx2(_mm256_unpackhi_epi64(a, c));
                words[4 * piece + 2] = Avx2(_mm256_unpacklo_epi64(b, d));
                words[4 * piece + 3] = Avx2(_mm256_unpackhi_epi64(b, d));
            }
            words
        }
    }
}

/// The same sixteen bytes in both halves.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn lanes(high: i64, low: i64) -> __m256i {
    // SAFETY: AVX2, by the contract.
    unsafe { _mm256_set_epi64x(high, low, high, low) }
}

/// The same sixteen bytes in all quarters.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn quarters(high: i64, low: i64) -> __m512i {
    // SAFETY: AVX-512F, by the contract.
    unsafe { _mm512_broadcast_i32x4(_mm_set_epi64x(high, low)) }
}

const _: () = assert!(<Avx2 as Words>::LANES <= MAX_LANES && <Avx512 as Words>::LANES <= MAX_LANES);

/// Truth tables of `VPTERNLOG`: the index's bits are (first, second, third operand).
const XOR3: i32 = 0x96;
const CHOOSE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;
const XOR_OR_NOT: i32 = 0xf0 ^ (0xcc | (0xff ^ 0xaa));

// SAFETY: every method uses AVX-512F and BW alone and touches only what its contract names.
unsafe impl Words for Avx512 {
    const LANES: usize = 16;

    plain!(Avx512: _mm512_set1_epi32, _mm512_loadu_si512, _mm512_storeu_si512,
        add by _mm512_add_epi32, xor by _mm512_xor_si512, and by _mm512_and_si512, or by _mm512_or_si512);

    #[inline(always)]
    unsafe fn rotate<const L: i32, const R: i32>(self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_rol_epi32::<L>(self.0) })
    }

    #[inline(always)]
    unsafe fn shift_right<const R: i32>(self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_srl_epi32(self.0, _mm_cvtsi32_si128(R)) })
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        // SAFETY: AVX-512BW, by the contract.
        Avx512(unsafe { _mm512_shuffle_epi8(self.0, quarters(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203)) })
    }

    #[inline(always)]
    unsafe fn pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: AVX-512F and 32 readable words, by the contract.
        unsafe {
            let (first, second) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast()));
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
            let pick = |which| Avx512(_mm512_permutex2var_epi32(first, which, second));
            (pick(even), pick(odd))
        }
    }

    #[inline(always)]
    unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16] {
        // SAFETY: AVX-512F and 64 readable bytes at each pointer, by the contract.
        unsafe {
            let mut words = [Avx512(_mm512_setzero_si512()); 16];
            for piece in 0..4 {
                // Sixteen bytes of lanes r, r + 4, r + 8 and r + 12. A load into one quarter uses no shuffle unit, and
                // there is only one such unit.
                let mut rows = [_mm512_setzero_si512(); 4];
                for r in 0..4 {
                    let from = |lane: usize| _mm_loadu_si128(at[lane].add(offset + 16 * piece).cast());
                    let row = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(from(r)), from(r + 4));
                    rows[r] = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(row, from(r + 8)), from(r + 12));
                }
                // Pairs of words, then all four, in all quarters alike.
                let (a, b) = (_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
                let (c, d) = (_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
                words[4 * piece] = Avx512(_mm512_unpacklo_epi64(a, c));
                words[4 * piece + 1] = Avx512(_mm512_unpackhi_epi64(a, c));
                words[4 * piece + 2] = Avx512(_mm512_unpacklo_epi64(b, d));
                words[4 * piece + 3] = Avx512(_mm512_unpackhi_epi64(b, d));
            }
            words
        }
    }

    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_ternarylogic_epi32::<XOR3>(self.0, a.0, b.0) })
    }

    #[inline(always)]
    unsafe fn choose(self, a: Self, b: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_ternarylogic_epi32::<CHOOSE>(self.0, a.0, b.0) })
    }

    #[inline(always)]
    unsafe fn majority(self, a: Self, b: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_ternarylogic_epi32::<MAJORITY>(self.0, a.0, b.0) })
    }

    #[inline(always)]
    unsafe fn xor_or_not(self, a: Self, b: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_ternarylogic_epi32::<XOR_OR_NOT>(self.0, a.0, b.0) })
    }
}
