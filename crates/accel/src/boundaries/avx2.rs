//! Phase 1 with AVX2: the prefilter of 32 positions at a time. The tables fit `VPSHUFB`, and what lies 16 and
//! 32 bytes back is in registers already.
#![allow(unsafe_code)]

use super::reference::{FAR, MIDDLE, NEAR, TARGET};
use super::{Candidate, Params, WINDOW_BYTES};
use crate::isa::{Isa, Level};
use std::arch::x86_64::*;

const VECTOR: usize = 32;
/// Positions between two looks at the results: survivors are rare, and a look costs a branch.
const GROUP: usize = 4 * VECTOR;

/// See [`super::reference::scan`].
pub fn scan(isa: Isa, params: &Params, bytes: &[u8], out: &mut Vec<Candidate>) {
    assert!(isa.level() >= Level::Avx2);
    // SAFETY: an Isa of this level exists only if the CPU has AVX2.
    super::dispatch::scan_in_groups(params, bytes, GROUP, out, |next, bytes, survivors| unsafe {
        scan_groups(params, bytes, next, survivors)
    });
}

/// The state that later positions look back to.
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

/// Prefilters positions from `next` on in whole groups, and returns the first one not looked at.
///
/// # Safety
/// AVX2.
#[target_feature(enable = "avx2")]
unsafe fn scan_groups(params: &Params, bytes: &[u8], mut next: usize, survivors: &mut dyn FnMut(usize, u64)) -> usize {
    assert!(next >= WINDOW_BYTES);
    if next + GROUP > bytes.len() + 1 {
        return next;
    }
    let table = |t: &[u8; 16]| {
        // SAFETY: sixteen bytes are read from an array of sixteen.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(t.as_ptr().cast()) })
    };
    let tables = Tables { near: table(&NEAR), middle: table(&MIDDLE), far: table(&FAR) };
    let target = _mm256_set1_epi8(TARGET as i8);
    let above = _mm256_set1_epi8(params.above());
    // SAFETY: the newest byte of position p is p − 1 ≥ 63; the look back is 64 + 3 less a half vector.
    let mut before = unsafe { warm_up(&tables, bytes.as_ptr().add(next - 1)) };
    while next + GROUP <= bytes.len() + 1 {
        let mut passed = [0u64; 2];
        for i in 0..4 {
            // SAFETY: the vector ends with byte next − 1 + 32·(i + 1) − 1 ≤ next + GROUP − 2 < len.
            let near = unsafe { near(&tables, bytes.as_ptr().add(next - 1 + i * VECTOR)) };
            let near_16_back = _mm256_permute2x128_si256::<0x21>(before.near, near);
            let middle = _mm256_add_epi8(near, _mm256_shuffle_epi8(tables.middle, near_16_back));
            let sum = _mm256_add_epi8(middle, _mm256_shuffle_epi8(tables.far, before.middle));
            let hit = _mm256_and_si256(_mm256_cmpeq_epi8(sum, target), _mm256_cmpgt_epi8(before.near, above));
            passed[i / 2] |= u64::from(_mm256_movemask_epi8(hit) as u32) << (32 * (i % 2));
            before = Before { near, middle };
        }
        if passed[0] | passed[1] != 0 {
            survivors(next, passed[0]);
            survivors(next + 64, passed[1]);
        }
        next += GROUP;
    }
    next
}

/// State as if the vector before the one at `at` had been seen.
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
