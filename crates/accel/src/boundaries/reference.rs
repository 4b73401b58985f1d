//! Phase 1, one position at a time: the definition that every kernel must equal (P10).
//!
//! A position is a candidate if its 64-byte window passes two tests. The *prefilter* is a linear form over
//! sixteen of the bytes, in 16-bit arithmetic, that one position in 256 passes; it is what SIMD and GPU
//! kernels compute for every position. The *mix* is a 64-bit hash of the whole window, computed only for the
//! survivors.

use super::{Candidate, Params, WINDOW_BYTES};

/// The prefilter passes 2^−PREFILTER_SHIFT of all random windows.
pub const PREFILTER_SHIFT: u32 = 8;

/// Multipliers of the prefilter; see [`prefilter`].
pub const NEAR: u16 = 0x9E37;
/// See [`NEAR`].
pub const MIDDLE: u16 = 0x79B1;
/// See [`NEAR`].
pub const FAR: u16 = 0x85EB;
/// A window passes when the prefilter, as a signed number, is above this.
pub const ABOVE: i16 = i16::MAX - (1 << (16 - PREFILTER_SHIFT));

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
        if prefilter(window) > ABOVE {
            judge(params, window, i + WINDOW_BYTES, out);
        }
    }
}

/// Appends the position if its window, which has passed the prefilter, mixes to a candidate.
pub fn judge(params: &Params, window: &[u8], position: usize, out: &mut Vec<Candidate>) {
    let mixed = mix(window);
    if mixed < params.any_below() {
        out.push(Candidate { position, strong: mixed < params.strong_below() });
    }
}

/// The linear form. With w(d) the little-endian 16-bit number in the two bytes that end d bytes before the
/// position, f(d) = NEAR·(w(d) − w(d+2)) and g(d) = f(d) + MIDDLE·f(d+16), it is g(0) + FAR·g(32), modulo 2^16,
/// read as signed. Equal bytes give 0, which does not pass: a run of one byte has no candidates.
pub fn prefilter(window: &[u8]) -> i16 {
    let w = |d: usize| {
        let end = WINDOW_BYTES - d;
        u16::from_le_bytes([window[end - 2], window[end - 1]])
    };
    let f = |d: usize| NEAR.wrapping_mul(w(d).wrapping_sub(w(d + 2)));
    let g = |d: usize| f(d).wrapping_add(MIDDLE.wrapping_mul(f(d + 16)));
    g(0).wrapping_add(FAR.wrapping_mul(g(32))) as i16
}

/// 64-bit hash of a window: its eight little-endian words, keyed, multiplied in pairs to 128 bits and folded;
/// the four results summed, keyed and folded once more.
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
