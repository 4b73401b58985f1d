//! [`Vector`] with AVX2 and AVX-512.
#![allow(unsafe_code)]

use super::{MAX_LANES, Vector};
use std::arch::x86_64::*;

/// 32 bytes. Needs AVX2.
#[derive(Clone, Copy)]
pub struct Avx2(__m256i);

/// 64 bytes. Needs AVX-512F and BW.
#[derive(Clone, Copy)]
pub struct Avx512(pub __m512i);

/// The methods that differ between the sets only in the names of intrinsics.
macro_rules! plain {
    ($vector:ident, $splat:ident, $load:ident, $store:ident, $broadcast:ident, $unpacks:tt) => {
        #[inline(always)]
        unsafe fn splat(x: u32) -> Self {
            // SAFETY: the instruction set, by the contract.
            $vector(unsafe { $splat(x as i32) })
        }

        #[inline(always)]
        unsafe fn load<T>(from: *const T) -> Self {
            // SAFETY: a readable vector, by the contract.
            $vector(unsafe { $load(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store<T>(self, to: *mut T) {
            // SAFETY: a writable vector, by the contract.
            unsafe { $store(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn table(entries: &[u8; 16]) -> Self {
            // SAFETY: the instruction set, by the contract; sixteen bytes are read from sixteen.
            $vector(unsafe { $broadcast(_mm_loadu_si128(entries.as_ptr().cast())) })
        }

        #[inline(always)]
        fn prefetch(at: *const u8) {
            // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }

        #[inline(always)]
        unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16] {
            // SAFETY: the instruction set and 64 readable bytes at each pointer, by the contract.
            unsafe {
                let mut words = [Self::splat(0); 16];
                for piece in 0..4 {
                    let mut rows = [Self::splat(0); 4];
                    for (r, row) in rows.iter_mut().enumerate() {
                        *row = $vector::row(at, r, offset + 16 * piece);
                    }
                    plain!(@unpack $vector, $unpacks, rows, words, 4 * piece);
                }
                words
            }
        }
    };
    // Pairs of words, then all four, in all groups of four lanes alike.
    (@unpack $vector:ident, ($low_32:ident, $high_32:ident, $low_64:ident, $high_64:ident), $rows:ident, $words:ident, $at:expr) => {
        let (a, b) = ($low_32($rows[0].0, $rows[1].0), $high_32($rows[0].0, $rows[1].0));
        let (c, d) = ($low_32($rows[2].0, $rows[3].0), $high_32($rows[2].0, $rows[3].0));
        $words[$at] = $vector($low_64(a, c));
        $words[$at + 1] = $vector($high_64(a, c));
        $words[$at + 2] = $vector($low_64(b, d));
        $words[$at + 3] = $vector($high_64(b, d));
    };
}

// SAFETY: every method uses AVX2 alone and touches only what its contract names.
unsafe impl Vector for Avx2 {
    type Table = Avx2;
    const LEN: usize = 32;

    plain!(
        Avx2,
        _mm256_set1_epi32,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_broadcastsi128_si256,
        (_mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64)
    );

    methods! {
        add(self, other) = Avx2(_mm256_add_epi32(self.0, other.0));
        xor(self, other) = Avx2(_mm256_xor_si256(self.0, other.0));
        and(self, other) = Avx2(_mm256_and_si256(self.0, other.0));
        or(self, other) = Avx2(_mm256_or_si256(self.0, other.0));
        look_up(self, table) = Avx2(_mm256_shuffle_epi8(table.0, self.0));
        swap_bytes(self) = Avx2(_mm256_shuffle_epi8(self.0, lanes(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203)));
    }

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
}

impl Avx2 {
    /// Sixteen bytes of lanes r and r + 4. A load into one half uses no shuffle unit.
    ///
    /// # Safety
    /// AVX2; the bytes are readable.
    #[inline(always)]
    unsafe fn row(at: &[*const u8; MAX_LANES], r: usize, offset: usize) -> Avx2 {
        // SAFETY: AVX2 and readable bytes, by the contract.
        unsafe {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(at[r].add(offset).cast()));
            Avx2(_mm256_inserti128_si256::<1>(low, _mm_loadu_si128(at[r + 4].add(offset).cast())))
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

const _: () = assert!(<Avx2 as Vector>::LANES <= MAX_LANES && <Avx512 as Vector>::LANES <= MAX_LANES);

/// Truth tables of `VPTERNLOG`: the index's bits are (first, second, third operand).
const XOR3: i32 = 0x96;
const CHOOSE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;
const XOR_OR_NOT: i32 = 0xf0 ^ (0xcc | (0xff ^ 0xaa));

// SAFETY: every method uses AVX-512F and BW alone and touches only what its contract names.
unsafe impl Vector for Avx512 {
    type Table = Avx512;
    const LEN: usize = 64;

    plain!(
        Avx512,
        _mm512_set1_epi32,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_broadcast_i32x4,
        (_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64)
    );

    methods! {
        add(self, other) = Avx512(_mm512_add_epi32(self.0, other.0));
        xor(self, other) = Avx512(_mm512_xor_si512(self.0, other.0));
        and(self, other) = Avx512(_mm512_and_si512(self.0, other.0));
        or(self, other) = Avx512(_mm512_or_si512(self.0, other.0));
        look_up(self, table) = Avx512(_mm512_shuffle_epi8(table.0, self.0));
        swap_bytes(self) = Avx512(_mm512_shuffle_epi8(self.0, quarters(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203)));
        xor3(self, a, b) = Avx512(_mm512_ternarylogic_epi32::<XOR3>(self.0, a.0, b.0));
        choose(self, a, b) = Avx512(_mm512_ternarylogic_epi32::<CHOOSE>(self.0, a.0, b.0));
        majority(self, a, b) = Avx512(_mm512_ternarylogic_epi32::<MAJORITY>(self.0, a.0, b.0));
        xor_or_not(self, a, b) = Avx512(_mm512_ternarylogic_epi32::<XOR_OR_NOT>(self.0, a.0, b.0));
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        // SAFETY: len < 64 readable bytes, by the contract; masked-out bytes are not touched.
        Avx512(unsafe { _mm512_maskz_loadu_epi8((1 << len) - 1, from.cast()) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: len < 64 writable bytes, by the contract; masked-out bytes are not touched.
        unsafe { _mm512_mask_storeu_epi8(to.cast(), (1 << len) - 1, self.0) }
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
    unsafe fn pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: AVX-512F and 32 readable words, by the contract.
        unsafe {
            let (first, second) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast()));
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
            (
                Avx512(_mm512_permutex2var_epi32(first, even, second)),
                Avx512(_mm512_permutex2var_epi32(first, odd, second)),
            )
        }
    }
}

impl Avx512 {
    /// Sixteen bytes of lanes r, r + 4, r + 8 and r + 12. A load into one quarter uses no shuffle unit, and there is
    /// only one such unit.
    ///
    /// # Safety
    /// AVX-512F; the bytes are readable.
    #[inline(always)]
    unsafe fn row(at: &[*const u8; MAX_LANES], r: usize, offset: usize) -> Avx512 {
        // SAFETY: AVX-512F and readable bytes, by the contract.
        unsafe {
            let row = _mm512_castsi128_si512(_mm_loadu_si128(at[r].add(offset).cast()));
            let row = _mm512_inserti32x4::<1>(row, _mm_loadu_si128(at[r + 4].add(offset).cast()));
            let row = _mm512_inserti32x4::<2>(row, _mm_loadu_si128(at[r + 8].add(offset).cast()));
            Avx512(_mm512_inserti32x4::<3>(row, _mm_loadu_si128(at[r + 12].add(offset).cast())))
        }
    }
}
