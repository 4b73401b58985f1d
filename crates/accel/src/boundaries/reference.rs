//! Phase 1, one position at a time: the definition that every kernel must equal (P10).
//!
//! A position is a candidate if the 64-byte window before it passes two tests. The *prefilter* is a nonlinear sum over
//! sixteen of the bytes, in 8-bit arithmetic. One random position in 512 or 1,024 passes it, and SIMD and GPU kernels
//! compute it for every position. The *mix* is a 64-bit hash of the whole window, computed only for the survivors.

use super::{Candidate, Params, WINDOW_BYTES};

/// Tables of the prefilter. A search chose them so that text, code, numbers and small alphabets pass about as often as
/// random bytes, and runs of one byte never.
pub const NEAR: [u8; 16] =
    [0x7a, 0xdf, 0x18, 0xa8, 0x43, 0x84, 0x0a, 0xb1, 0x3f, 0x26, 0xb7, 0xf5, 0x7f, 0x62, 0x02, 0xa1];
/// See [`NEAR`].
pub const MIDDLE: [u8; 16] =
    [0x99, 0xea, 0xea, 0x51, 0x46, 0xb7, 0x30, 0x94, 0x72, 0x31, 0xa7, 0x99, 0x88, 0xff, 0xe2, 0x58];
/// See [`NEAR`].
pub const FAR: [u8; 16] =
    [0x92, 0xe8, 0xba, 0x94, 0x2e, 0xf3, 0x03, 0xcd, 0x9f, 0x32, 0x34, 0x2c, 0xe7, 0xd1, 0x68, 0x1a];
/// Value of the prefilter's sum for windows that pass.
pub const TARGET: u8 = 0x0f;

/// Keys of the mix: the first 640 bits of π's fraction, as in Blowfish's P-array.
pub const KEYS: [u64; 10] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
    0x9216_d5d9_8979_fb1b,
    0xd131_0ba6_98df_b5ac,
];

/// Appends every candidate among the positions of `bytes` that have a full window inside it, in rising order.
pub fn scan(params: &Params, bytes: &[u8], out: &mut Vec<Candidate>) {
    for (i, window) in bytes.windows(WINDOW_BYTES).enumerate() {
        if prefilter(params, window) {
            judge(params, window, i + WINDOW_BYTES, out);
        }
    }
}

/// Appends the position if its window, which has passed the prefilter, mixes to a candidate.
#[inline]
pub fn judge(params: &Params, window: &[u8], position: usize, out: &mut Vec<Candidate>) {
    let mixed = mix(window);
    if mixed < params.any_below {
        out.push(Candidate { position, strong: mixed < params.strong_below });
    }
}

/// Whether a window passes. With x(d) the byte d before the newest, and T\[v\] = T's entry for the low four bits
/// of v, or 0 if v ≥ 128 (as `PSHUFB` has it), all sums modulo 256:
///
/// near(d) = x(d) + x(d+3) + NEAR\[⌈(x(d+1) + x(d+2)) / 2⌉\],
/// middle(d) = near(d) + MIDDLE\[near(d+16)\],
/// and the window passes if middle(0) + FAR\[middle(32)\] = TARGET and near(32), as a signed byte, is above
/// `params.above`.
pub fn prefilter(params: &Params, window: &[u8]) -> bool {
    let x = |d: usize| window[WINDOW_BYTES - 1 - d];
    let near = |d: usize| {
        let average = (u16::from(x(d + 1)) + u16::from(x(d + 2))).div_ceil(2) as u8;
        x(d).wrapping_add(x(d + 3)).wrapping_add(look_up(&NEAR, average))
    };
    let middle = |d: usize| near(d).wrapping_add(look_up(&MIDDLE, near(d + 16)));
    middle(0).wrapping_add(look_up(&FAR, middle(32))) == TARGET && near(32) as i8 > params.above
}

/// The entry of `table` for `v`, by the rule of `PSHUFB`.
pub fn look_up(table: &[u8; 16], v: u8) -> u8 {
    if v < 128 { table[usize::from(v & 15)] } else { 0 }
}

/// 64-bit hash of a window: its eight little-endian words, keyed, multiplied in pairs to 128 bits and folded;
/// the four results summed, keyed and folded once more.
#[inline]
pub fn mix(window: &[u8]) -> u64 {
    let word = |i: usize| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&window[8 * i..8 * i + 8]);
        u64::from_le_bytes(bytes) ^ KEYS[i]
    };
    let sum = (0..4).fold(0u64, |sum, i| sum.wrapping_add(fold(word(2 * i), word(2 * i + 1))));
    fold(sum ^ KEYS[8], KEYS[9])
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
