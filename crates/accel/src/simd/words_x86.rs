//! [`Words`] with AVX2 (eight lanes) and AVX-512 (sixteen).
#![allow(unsafe_code, clippy::needless_range_loop)] // Lanes and words are indexes, side by side.

use super::words::{MAX_LANES, Words};
use super::{Avx2, Avx512};
use std::arch::x86_64::*;

// SAFETY: every method uses AVX2 alone and touches only what its contract names.
unsafe impl Words for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: u32) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_set1_epi32(x as i32) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: eight readable words, by the contract.
        Avx2(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: eight writable words, by the contract.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_and_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_or_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn rotate<const L: i32, const R: i32>(self) -> Self {
        // SAFETY: AVX2, by the contract. Whole bytes are moved by one shuffle instead of two shifts.
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
    fn prefetch(at: &[*const u8; MAX_LANES], offset: usize) {
        for pointer in &at[..Self::LANES] {
            // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(offset).cast()) };
        }
    }

    #[inline(always)]
    unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16] {
        // SAFETY: AVX2 and 64 readable bytes at each pointer, by the contract.
        unsafe {
            let mut words = [Avx2(_mm256_setzero_si256()); 16];
            for half in 0..2 {
                let mut rows = [_mm256_setzero_si256(); 8];
                for lane in 0..8 {
                    rows[lane] = _mm256_loadu_si256(at[lane].add(offset + 32 * half).cast());
                }
                // Pairs of words, pairs of pairs, then halves.
                let (mut two, mut four) = (rows, rows);
                for i in 0..4 {
                    two[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                    two[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
                }
                for i in 0..2 {
                    let t = 4 * i;
                    four[t] = _mm256_unpacklo_epi64(two[t], two[t + 2]);
                    four[t + 1] = _mm256_unpackhi_epi64(two[t], two[t + 2]);
                    four[t + 2] = _mm256_unpacklo_epi64(two[t + 1], two[t + 3]);
                    four[t + 3] = _mm256_unpackhi_epi64(two[t + 1], two[t + 3]);
                }
                for i in 0..4 {
                    words[8 * half + i] = Avx2(_mm256_permute2x128_si256::<0x20>(four[i], four[i + 4]));
                    words[8 * half + i + 4] = Avx2(_mm256_permute2x128_si256::<0x31>(four[i], four[i + 4]));
                }
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

/// Truth tables of `VPTERNLOG`: the index's bits are (first, second, third operand).
const XOR3: i32 = 0x96;
const CHOOSE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;
const XOR_OR_NOT: i32 = 0xf0 ^ (0xcc | (0xff ^ 0xaa));

// SAFETY: every method uses AVX-512F and BW alone and touches only what its contract names.
unsafe impl Words for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: u32) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_set1_epi32(x as i32) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: sixteen readable words, by the contract.
        Avx512(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: sixteen writable words, by the contract.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_and_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_or_si512(self.0, other.0) })
    }

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
    fn prefetch(at: &[*const u8; MAX_LANES], offset: usize) {
        for pointer in &at[..Self::LANES] {
            // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(offset).cast()) };
        }
    }

    #[inline(always)]
    unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16] {
        // SAFETY: AVX-512F and 64 readable bytes at each pointer, by the contract.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); 16];
            for lane in 0..16 {
                rows[lane] = _mm512_loadu_si512(at[lane].add(offset).cast());
            }
            // Pairs of words, pairs of pairs: then quarter q of four[4g + i] holds word 4q + i of lanes 4g..4g+4.
            let (mut two, mut four) = (rows, rows);
            for i in 0..8 {
                two[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                two[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
            }
            for g in 0..4 {
                let t = 4 * g;
                four[t] = _mm512_unpacklo_epi64(two[t], two[t + 2]);
                four[t + 1] = _mm512_unpackhi_epi64(two[t], two[t + 2]);
                four[t + 2] = _mm512_unpacklo_epi64(two[t + 1], two[t + 3]);
                four[t + 3] = _mm512_unpackhi_epi64(two[t + 1], two[t + 3]);
            }
            let mut words = [Avx512(rows[0]); 16];
            for i in 0..4 {
                // Quarters 0, 2 and 1, 3 of two groups; then of all four.
                let (a, b, c, d) = (four[i], four[i + 4], four[i + 8], four[i + 12]);
                let (ab_02, ab_13) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
                let (cd_02, cd_13) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
                words[i] = Avx512(_mm512_shuffle_i32x4::<0x88>(ab_02, cd_02));
                words[i + 4] = Avx512(_mm512_shuffle_i32x4::<0x88>(ab_13, cd_13));
                words[i + 8] = Avx512(_mm512_shuffle_i32x4::<0xdd>(ab_02, cd_02));
                words[i + 12] = Avx512(_mm512_shuffle_i32x4::<0xdd>(ab_13, cd_13));
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
