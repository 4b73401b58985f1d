//! Compression functions of Merkle–Damgård hashes, lane by lane: the interface, and MD5.
#![allow(unsafe_code, clippy::needless_range_loop)] // Steps and words are indexes.

use crate::simd::{BLOCK_BYTES, Vector};

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
    unsafe fn compress<V: Vector>(state: &mut [V; MAX_STATE], block: &mut [V; 16]);
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
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501, 0x698098d8,
    0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340,
    0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8, 0x21e1cde6, 0xc33707d6, 0xf4d50d87,
    0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c,
    0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039,
    0xe6db99e5, 0x1fa27cf8, 0xc4ac5665, 0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92,
    0xffeff47d, 0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb,
    0xeb86d391,
];

const MD5_START: [u32; 4] = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476];

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
    unsafe fn compress<V: Vector>(state: &mut [V; MAX_STATE], block: &mut [V; 16]) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            let [mut a, mut b, mut c, mut d, ..] = *state;
            // Step i adds word `factor` · i + `offset`; `mix` is the round's function of b, c and d, `l` the rotation.
            macro_rules! step {
                ($i:expr, $factor:literal $offset:literal, $mix:expr, $l:literal) => {{
                    let word = block[($factor * ($i) + $offset) % 16];
                    let sum = a.add($mix).add(V::splat(MD5_SINES[$i])).add(word);
                    (a, d, c) = (d, c, b);
                    b = b.add(sum.rotate::<$l, { 32 - $l }>());
                }};
            }
            macro_rules! round {
                ($first:literal, $factor:literal $offset:literal, $mix:expr, $l0:literal $l1:literal $l2:literal $l3:literal) => {
                    for quad in 0..4 {
                        let i = $first + 4 * quad;
                        step!(i, $factor $offset, $mix, $l0);
                        step!(i + 1, $factor $offset, $mix, $l1);
                        step!(i + 2, $factor $offset, $mix, $l2);
                        step!(i + 3, $factor $offset, $mix, $l3);
                    }
                };
            }
            round!(0, 1 0, b.choose(c, d), 7 12 17 22);
            round!(16, 5 1, d.choose(b, c), 5 9 14 20);
            round!(32, 3 5, b.xor3(c, d), 4 11 16 23);
            round!(48, 7 0, c.xor_or_not(b, d), 6 10 15 21);
            for (sum, x) in state.iter_mut().zip([a, b, c, d]) {
                *sum = sum.add(x);
            }
        }
    }
}
