//! Phase 1 with NEON: the prefilter of 16 positions at a time. The tables fit `TBL`, and the values 16 and 32 bytes
//! back are those of the previous vector and of the one before it.
#![allow(unsafe_code)]

use super::Params;
use super::dispatch::{Masks, groups_from};
use super::reference::{FAR, MIDDLE, NEAR, TARGET};
use std::arch::aarch64::*;

const VECTOR: usize = 16;
/// Positions in a mask.
const GROUP: usize = 4 * VECTOR;
/// The bit of a position in its half's eight bits.
const BIT: [u8; VECTOR] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7];

/// State that later positions need: of the previous vector and of the one before it.
#[derive(Clone, Copy)]
struct Before {
    near: [uint8x16_t; 2],
    middle: [uint8x16_t; 2],
}

/// Values that are the same for all positions.
struct Tables {
    near: uint8x16_t,
    middle: uint8x16_t,
    far: uint8x16_t,
    bit: int8x16_t,
    target: uint8x16_t,
    above: int8x16_t,
}

/// Prefilters positions from `next` on in whole groups, and returns the number of groups.
///
/// # Safety
/// NEON.
#[target_feature(enable = "neon")]
pub unsafe fn scan_groups(params: &Params, bytes: &[u8], first: usize, masks: &mut Masks) -> usize {
    let groups = groups_from(bytes, first);
    if groups == 0 {
        return 0;
    }
    // SAFETY: sixteen bytes are read from arrays of sixteen.
    let load = |t: &[u8; VECTOR]| unsafe { vld1q_u8(t.as_ptr()) };
    let (near, middle, far, bit) = (load(&NEAR), load(&MIDDLE), load(&FAR), vreinterpretq_s8_u8(load(&BIT)));
    let tables = Tables { near, middle, far, bit, target: vdupq_n_u8(TARGET), above: vdupq_n_s8(params.above) };
    // SAFETY: the newest byte of position p is p − 1 ≥ 63; the look back is 48 + 3.
    let mut before = unsafe { warm_up(&tables, bytes.as_ptr().add(first - 1)) };
    let mut some = 0;
    for (i, passed) in masks.passed[..groups].iter_mut().enumerate() {
        // SAFETY: the last vector ends with byte first − 1 + 64·(i + 1) − 1 ≤ first + 64·groups − 2 < len.
        *passed = unsafe {
            let at = bytes.as_ptr().add(first - 1 + i * GROUP);
            let a = hits(&tables, &mut before, at);
            let b = hits(&tables, &mut before, at.add(VECTOR));
            let c = hits(&tables, &mut before, at.add(2 * VECTOR));
            let d = hits(&tables, &mut before, at.add(3 * VECTOR));
            mask([a, b, c, d])
        };
        some |= u64::from(*passed != 0) << i;
    }
    masks.some = some;
    groups
}

/// Which of the 16 positions whose newest bytes begin at `at` pass: −2^[`BIT`] for each that passes, else 0.
///
/// # Safety
/// NEON; bytes from 3 before `at` to 16 after are readable.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn hits(tables: &Tables, before: &mut Before, at: *const u8) -> uint8x16_t {
    // SAFETY: the caller vouches for the bytes.
    let near = unsafe { near(tables, at) };
    let middle = vaddq_u8(near, look_up(tables.middle, before.near[0]));
    let sum = vaddq_u8(middle, look_up(tables.far, before.middle[1]));
    let high = vcgtq_s8(vreinterpretq_s8_u8(before.near[1]), tables.above);
    *before = Before { near: [near, before.near[0]], middle: [middle, before.middle[0]] };
    vshlq_u8(vandq_u8(vceqq_u8(sum, tables.target), high), tables.bit)
}

/// The bits of 64 positions, in order. Three sums of neighbours gather eight positions in a byte, as negative numbers.
/// With positive bits the compiler would see that no two overlap and make three instructions of each sum.
#[target_feature(enable = "neon")]
#[inline]
fn mask([a, b, c, d]: [uint8x16_t; 4]) -> u64 {
    let quarters = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
    let eighths = vreinterpret_s8_u8(vpadd_u8(vget_low_u8(quarters), vget_high_u8(quarters)));
    vget_lane_u64::<0>(vreinterpret_u64_s8(vneg_s8(eighths)))
}

/// The state after the vectors before the one at `at`.
///
/// # Safety
/// NEON; bytes from 51 before `at` to `at` are readable.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn warm_up(tables: &Tables, at: *const u8) -> Before {
    // SAFETY: vectors at 48, 32 and 16 before, less three.
    let [near_48, near_32, near_16] =
        unsafe { [near(tables, at.sub(48)), near(tables, at.sub(32)), near(tables, at.sub(16))] };
    let middle = |near, near_16_back| vaddq_u8(near, look_up(tables.middle, near_16_back));
    Before { near: [near_16, near_32], middle: [middle(near_16, near_32), middle(near_32, near_48)] }
}

/// `near` of the 16 positions whose newest bytes begin at `at`.
///
/// # Safety
/// NEON; bytes from 3 before `at` to 16 after are readable.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn near(tables: &Tables, at: *const u8) -> uint8x16_t {
    // SAFETY: the caller vouches for the bytes.
    let x = |d: usize| unsafe { vld1q_u8(at.sub(d)) };
    let average = vrhaddq_u8(x(1), x(2));
    vaddq_u8(vaddq_u8(x(0), x(3)), look_up(tables.near, average))
}

/// [`super::reference::look_up`]: `TBL` gives 0 for an index of 16 or more, so the index keeps its top bit and drops
/// the three below it.
#[target_feature(enable = "neon")]
#[inline]
fn look_up(table: uint8x16_t, v: uint8x16_t) -> uint8x16_t {
    vqtbl1q_u8(table, vandq_u8(v, vdupq_n_u8(0x8f)))
}
