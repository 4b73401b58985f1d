//! Phase 1 with AVX-512BW: as `avx2`, 64 positions at a time.
#![allow(unsafe_code)]

use super::Params;
use super::dispatch::{Masks, groups_from};
use super::reference::{FAR, MIDDLE, NEAR, TARGET};
use std::arch::x86_64::*;

/// Positions in a vector, and in a mask.
const VECTOR: usize = 64;

struct Tables {
    near: __m512i,
    middle: __m512i,
    far: __m512i,
}

/// Prefilters positions from `next` on in whole groups, and returns the number of groups.
///
/// # Safety
/// AVX-512F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn scan_groups(params: &Params, bytes: &[u8], first: usize, masks: &mut Masks) -> usize {
    let groups = groups_from(bytes, first);
    if groups == 0 {
        return 0;
    }
    let table = |t: &[u8; 16]| {
        // SAFETY: sixteen bytes are read from an array of sixteen.
        _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(t.as_ptr().cast()) })
    };
    let tables = Tables { near: table(&NEAR), middle: table(&MIDDLE), far: table(&FAR) };
    let target = _mm512_set1_epi8(TARGET as i8);
    let above = _mm512_set1_epi8(params.above);
    // SAFETY: the newest byte of position p is p − 1 ≥ 63; masked loads look back 51 bytes from there.
    let (mut near_before, mut middle_before) = unsafe { warm_up(&tables, bytes.as_ptr().add(first - 1)) };
    let mut some = 0;
    for (i, passed) in masks.passed[..groups].iter_mut().enumerate() {
        // SAFETY: the vector ends with byte first − 1 + 64·(i + 1) − 1 ≤ first + 64·groups − 2 < len.
        let near = unsafe { near(&tables, bytes.as_ptr().add(first - 1 + i * VECTOR), !0) };
        super::dispatch::prefetch(bytes, first + i * VECTOR);
        let near_16_back = _mm512_alignr_epi64::<6>(near, near_before);
        let near_32_back = _mm512_alignr_epi64::<4>(near, near_before);
        let middle = _mm512_add_epi8(near, _mm512_shuffle_epi8(tables.middle, near_16_back));
        let middle_32_back = _mm512_alignr_epi64::<4>(middle, middle_before);
        let sum = _mm512_add_epi8(middle, _mm512_shuffle_epi8(tables.far, middle_32_back));
        *passed = _mm512_mask_cmpgt_epi8_mask(_mm512_cmpeq_epi8_mask(sum, target), near_32_back, above);
        some |= u64::from(*passed != 0) << i;
        (near_before, middle_before) = (near, middle);
    }
    masks.some = some;
    groups
}

/// `near` and `middle` after the vector before the one at `at`, as far as later positions look back.
///
/// # Safety
/// AVX-512F and BW; bytes from 51 before `at` to `at` are readable.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn warm_up(tables: &Tables, at: *const u8) -> (__m512i, __m512i) {
    // SAFETY: the mask leaves out the first sixteen bytes: the loads begin 48 before `at`, less three.
    let near = unsafe { near(tables, at.wrapping_sub(VECTOR), !0 << 16) };
    let near_16_back = _mm512_alignr_epi64::<6>(near, _mm512_setzero_si512());
    (near, _mm512_add_epi8(near, _mm512_shuffle_epi8(tables.middle, near_16_back)))
}

/// `near` of the 64 positions whose newest bytes begin at `at`, for the positions in `mask` alone.
///
/// # Safety
/// AVX-512F and BW; the masked bytes from `at`, and the three before each, are readable.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn near(tables: &Tables, at: *const u8, mask: __mmask64) -> __m512i {
    // SAFETY: the caller vouches for the bytes in the mask; others are not touched.
    let x = |d: usize| unsafe { _mm512_maskz_loadu_epi8(mask, at.wrapping_sub(d).cast()) };
    let index = _mm512_avg_epu8(x(1), x(2));
    _mm512_add_epi8(_mm512_add_epi8(x(0), x(3)), _mm512_shuffle_epi8(tables.near, index))
}
