//! Compression functions of Merkle–Damgård hashes, lane by lane: the interface, and MD5.
#![allow(unsafe_code, clippy::needless_range_loop)] // Steps and words are indexes.

use crate::simd::words::{BLOCK_BYTES, Words};

/// Words of the widest state.
pub const MAX_STATE: usize = 8;

/// Bytes of the longest digest.
pub const MAX_DIGEST_BYTES: usize = 4 * MAX_STATE;

/// A Merkle–Damgård hash function over blocks of sixteen 32-bit words.
pub trait Compression {
    /// Words in the state, and in the digest; at most [`MAX_STATE`].
    const STATE: usize;
    /// Whether words and the message's length are written with the high byte first.
    const BIG_ENDIAN: bool;
    /// State before the first block.
    const START: [u32; MAX_STATE];

    /// The digest of one message, then zeros: the definition (P10).
    fn reference(message: &[u8]) -> [u8; MAX_DIGEST_BYTES];

    /// Adds a block, whose words are in the function's byte order, to the state.
    ///
    /// # Safety
    /// The instruction set of `V`.
    unsafe fn compress<V: Words>(state: &mut [V; MAX_STATE], block: &mut [V; 16]);
}

/// The digest in lane `lane`, then zeros, from the words of a state.
pub fn digest_of_lane<H: Compression, const LANES: usize>(
    state: &[[u32; LANES]; MAX_STATE],
    lane: usize,
) -> [u8; MAX_DIGEST_BYTES] {
    const { assert!(H::STATE <= MAX_STATE) };
    let mut digest = [0; MAX_DIGEST_BYTES];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(&state[..H::STATE]) {
        bytes.copy_from_slice(&if H::BIG_ENDIAN { word[lane].to_be_bytes() } else { word[lane].to_le_bytes() });
    }
    digest
}

/// The padding of messages with `rest` bytes modulo a block: a one bit, zeros, and `len` in bits; and its number of
/// blocks. The caller writes the message's last `rest` bytes before it.
pub fn padding<H: Compression>(rest: usize, len: usize) -> ([u8; 2 * BLOCK_BYTES], usize) {
    assert!(rest < BLOCK_BYTES && rest == len % BLOCK_BYTES, "{rest} bytes at the end of a message of {len}");
    let blocks = if rest + 9 <= BLOCK_BYTES { 1 } else { 2 };
    let mut end = [0; 2 * BLOCK_BYTES];
    end[rest] = 0x80;
    let bits = (len as u64).wrapping_mul(8);
    let bits = if H::BIG_ENDIAN { bits.to_be_bytes() } else { bits.to_le_bytes() };
    end[blocks * BLOCK_BYTES - 8..blocks * BLOCK_BYTES].copy_from_slice(&bits);
    (end, blocks)
}

/// RFC 1321.
#[derive(Debug)]
pub struct Md5;

/// ⌊2^32 · |sin(i + 1)|⌋ (RFC 1321, §3.4).
const MD5_SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

const MD5_START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl Compression for Md5 {
    const STATE: usize = 4;
    const BIG_ENDIAN: bool = false;
    const START: [u32; MAX_STATE] = [MD5_START[0], MD5_START[1], MD5_START[2], MD5_START[3], 0, 0, 0, 0];

    fn reference(message: &[u8]) -> [u8; MAX_DIGEST_BYTES] {
        let mut digest = [0; MAX_DIGEST_BYTES];
        digest[..16].copy_from_slice(&<md5::Md5 as md5::Digest>::digest(message));
        digest
    }

    #[inline(always)]
    unsafe fn compress<V: Words>(state: &mut [V; MAX_STATE], block: &mut [V; 16]) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            let [mut a, mut b, mut c, mut d, ..] = *state;
            // One step; `mix` is the round's function of b, c and d, `L` and `R` its rotation.
            macro_rules! step {
                ($i:expr, $word:expr, $mix:expr, $l:literal) => {{
                    let sum = a.add($mix).add(V::splat(MD5_SINES[$i])).add(block[$word % 16]);
                    (a, d, c) = (d, c, b);
                    b = b.add(sum.rotate::<$l, { 32 - $l }>());
                }};
            }
            macro_rules! round {
                ($first:literal, $word:expr, $mix:expr, $l0:literal $l1:literal $l2:literal $l3:literal) => {
                    for quad in 0..4 {
                        let i = $first + 4 * quad;
                        step!(i, $word(i), $mix(b, c, d), $l0);
                        step!(i + 1, $word(i + 1), $mix(b, c, d), $l1);
                        step!(i + 2, $word(i + 2), $mix(b, c, d), $l2);
                        step!(i + 3, $word(i + 3), $mix(b, c, d), $l3);
                    }
                };
            }
            round!(0, word_1, mix_1::<V>, 7 12 17 22);
            round!(16, word_2, mix_2::<V>, 5 9 14 20);
            round!(32, word_3, mix_3::<V>, 4 11 16 23);
            round!(48, word_4, mix_4::<V>, 6 10 15 21);
            for (sum, x) in state.iter_mut().zip([a, b, c, d]) {
                *sum = sum.add(x);
            }
        }
    }
}

#[inline(always)]
fn word_1(i: usize) -> usize {
    i
}

#[inline(always)]
fn word_2(i: usize) -> usize {
    5 * i + 1
}

#[inline(always)]
fn word_3(i: usize) -> usize {
    3 * i + 5
}

#[inline(always)]
fn word_4(i: usize) -> usize {
    7 * i
}

/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn mix_1<V: Words>(b: V, c: V, d: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { b.choose(c, d) }
}

/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn mix_2<V: Words>(b: V, c: V, d: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { d.choose(b, c) }
}

/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn mix_3<V: Words>(b: V, c: V, d: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { b.xor3(c, d) }
}

/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn mix_4<V: Words>(b: V, c: V, d: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { c.xor_or_not(b, d) }
}
