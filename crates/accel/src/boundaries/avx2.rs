//! Phase 1 with AVX2: the prefilter of 32 positions at a time. The tables fit `VPSHUFB`, and the values 16 and 32 bytes
//! back are already in registers.
#![allow(unsafe_code)]

use super::Params;
use super::dispatch::{Masks, groups_from};
use super::reference::{FAR, MIDDLE, NEAR, TARGET};
use std::arch::x86_64::*;

const VECTOR: usize = 32;
/// Positions in a mask.
const GROUP: usize = 2 * VECTOR;

/// State that later positions need.
#[derive(Clone, Copy)]
struct Before {
    near: __m256i,
    middle: __m256i,
}

struct Tables {
    near: __m256i,
    middle: __m256i,
    far: __m256i,
}

/// Prefilters positions from `next` on in whole groups, and returns the number of groups.
///
/// # Safety
/// AVX2.
#[target_feature(enable = "avx2")]
pub unsafe fn scan_groups(params: &Params, bytes: &[u8], first: usize, masks: &mut Masks) -> usize {
    let groups = groups_from(bytes, first);
    if groups == 0 {
        return 0;
    }
    let table = |t: &[u8; 16]| {
        // SAFETY: sixteen bytes are read from an array of sixteen.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(t.as_ptr().cast()) })
    };
    let tables = Tables { near: table(&NEAR), middle: table(&MIDDLE), far: table(&FAR) };
    let target = _mm256_set1_epi8(TARGET as i8);
    let above = _mm256_set1_epi8(params.above);
    // SAFETY: the newest byte of position p is p − 1 ≥ 63; the look back is 64 + 3 less a half vector.
    let mut before = unsafe { warm_up(&tables, bytes.as_ptr().add(first - 1)) };
    let mut some = 0;
    for (i, passed) in masks.passed[..groups].iter_mut().enumerate() {
        super::dispatch::prefetch(bytes, first + i * GROUP);
        let mut halves = [0u32; 2];
        for (j, half) in halves.iter_mut().enumerate() {
            // SAFETY: the vector ends with byte first − 1 + 64·i + 32·(j + 1) − 1 ≤ first + 64·groups − 2 < len.
            let near = unsafe { near(&tables, bytes.as_ptr().add(first - 1 + i * GROUP + j * VECTOR)) };
            let near_16_back = _mm256_permute2x128_si256::<0x21>(before.near, near);
            let middle = _mm256_add_epi8(near, _mm256_shuffle_epi8(tables.middle, near_16_back));
            let sum = _mm256_add_epi8(middle, _mm256_shuffle_epi8(tables.far, before.middle));
            let hit = _mm256_and_si256(_mm256_cmpeq_epi8(sum, target), _mm256_cmpgt_epi8(before.near, above));
            *half = _mm256_movemask_epi8(hit) as u32;
            before = Before { near, middle };
        }
        *passed = u64::from(halves[0]) | u64::from(halves[1]) << 32;
        some |= u64::from(*passed != 0) << i;
    }
    masks.some = some;
    groups
}

/// The state after the vector before the one at `at`.
///
/// # Safety
/// AVX2; bytes from 51 before `at` to `at` are readable.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn warm_up(tables: &Tables, at: *const u8) -> Before {
    // SAFETY: a half vector at 48 before, less three, and a whole one at 32 before.
    unsafe {
        let half = |d: usize| _mm_loadu_si128(at.sub(48 + d).cast());
        let index = _mm_avg_epu8(half(1), half(2));
        let looked_up = _mm_shuffle_epi8(_mm256_castsi256_si128(tables.near), index);
        let near_48_back = _mm_add_epi8(_mm_add_epi8(half(0), half(3)), looked_up);
        let near_32_back = near(tables, at.sub(32));
        let back =
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(near_48_back), _mm256_castsi256_si128(near_32_back));
        let middle = _mm256_add_epi8(near_32_back, _mm256_shuffle_epi8(tables.middle, back));
        Before { near: near_32_back, middle }
    }
}

/// `near` of the 32 positions whose newest bytes begin at `at`.
///
/// # Safety
/// AVX2; bytes from 3 before `at` to 32 after are readable.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn near(tables: &Tables, at: *const u8) -> __m256i {
    // SAFETY: the caller vouches for the bytes.
    let x = |d: usize| unsafe { _mm256_loadu_si256(at.sub(d).cast()) };
    let index = _mm256_avg_epu8(x(1), x(2));
    _mm256_add_epi8(_mm256_add_epi8(x(0), x(3)), _mm256_shuffle_epi8(tables.near, index))
}
