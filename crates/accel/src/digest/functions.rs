//! The compression functions of MD5, SHA-1 and SHA-256, lane by lane.
#![allow(unsafe_code, clippy::needless_range_loop)] // Steps and words are indexes.

use crate::simd::words::Words;

/// Words of the widest state.
pub const MAX_STATE: usize = 8;

/// A Merkle–Damgård hash function over blocks of sixteen 32-bit words.
pub trait Compression {
    /// Words in the state, and in the digest.
    const STATE: usize;
    /// Whether words and the message's length are written with the high byte first.
    const BIG_ENDIAN: bool;
    /// State before the first block.
    const START: [u32; MAX_STATE];

    /// Adds a block, whose words are in the function's byte order, to the state.
    ///
    /// # Safety
    /// The instruction set of `V`.
    unsafe fn compress<V: Words>(state: &mut [V; MAX_STATE], block: &mut [V; 16]);
}

/// RFC 1321.
pub struct Md5;

/// FIPS 180-4, §6.1.
pub struct Sha1;

/// FIPS 180-4, §6.2.
pub struct Sha256;

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

/// First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, §4.2.2).
const SHA256_ROOTS: [u32; 64] = [
    0x428a_2f98,
    0x7137_4491,
    0xb5c0_fbcf,
    0xe9b5_dba5,
    0x3956_c25b,
    0x59f1_11f1,
    0x923f_82a4,
    0xab1c_5ed5,
    0xd807_aa98,
    0x1283_5b01,
    0x2431_85be,
    0x550c_7dc3,
    0x72be_5d74,
    0x80de_b1fe,
    0x9bdc_06a7,
    0xc19b_f174,
    0xe49b_69c1,
    0xefbe_4786,
    0x0fc1_9dc6,
    0x240c_a1cc,
    0x2de9_2c6f,
    0x4a74_84aa,
    0x5cb0_a9dc,
    0x76f9_88da,
    0x983e_5152,
    0xa831_c66d,
    0xb003_27c8,
    0xbf59_7fc7,
    0xc6e0_0bf3,
    0xd5a7_9147,
    0x06ca_6351,
    0x1429_2967,
    0x27b7_0a85,
    0x2e1b_2138,
    0x4d2c_6dfc,
    0x5338_0d13,
    0x650a_7354,
    0x766a_0abb,
    0x81c2_c92e,
    0x9272_2c85,
    0xa2bf_e8a1,
    0xa81a_664b,
    0xc24b_8b70,
    0xc76c_51a3,
    0xd192_e819,
    0xd699_0624,
    0xf40e_3585,
    0x106a_a070,
    0x19a4_c116,
    0x1e37_6c08,
    0x2748_774c,
    0x34b0_bcb5,
    0x391c_0cb3,
    0x4ed8_aa4a,
    0x5b9c_ca4f,
    0x682e_6ff3,
    0x748f_82ee,
    0x78a5_636f,
    0x84c8_7814,
    0x8cc7_0208,
    0x90be_fffa,
    0xa450_6ceb,
    0xbef9_a3f7,
    0xc671_78f2,
];

const MD5_START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl Compression for Md5 {
    const STATE: usize = 4;
    const BIG_ENDIAN: bool = false;
    const START: [u32; MAX_STATE] = [MD5_START[0], MD5_START[1], MD5_START[2], MD5_START[3], 0, 0, 0, 0];

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

impl Compression for Sha1 {
    const STATE: usize = 5;
    const BIG_ENDIAN: bool = true;
    const START: [u32; MAX_STATE] = [MD5_START[0], MD5_START[1], MD5_START[2], MD5_START[3], 0xc3d2_e1f0, 0, 0, 0];

    #[inline(always)]
    unsafe fn compress<V: Words>(state: &mut [V; MAX_STATE], w: &mut [V; 16]) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            let [mut a, mut b, mut c, mut d, mut e, ..] = *state;
            macro_rules! step {
                ($i:expr, $mix:expr, $constant:literal) => {{
                    let i = $i % 16;
                    if $i >= 16 {
                        let older = w[(i + 13) % 16].xor3(w[(i + 8) % 16], w[(i + 2) % 16]);
                        w[i] = older.xor(w[i]).rotate::<1, 31>();
                    }
                    let sum = a.rotate::<5, 27>().add($mix(b, c, d)).add(e).add(V::splat($constant)).add(w[i]);
                    (e, d, c, b, a) = (d, c, b.rotate::<30, 2>(), a, sum);
                }};
            }
            for i in 0..16 {
                step!(i, mix_1::<V>, 0x5a82_7999);
            }
            for i in 16..20 {
                step!(i, mix_1::<V>, 0x5a82_7999);
            }
            for i in 20..40 {
                step!(i, mix_3::<V>, 0x6ed9_eba1);
            }
            for i in 40..60 {
                step!(i, majority::<V>, 0x8f1b_bcdc);
            }
            for i in 60..80 {
                step!(i, mix_3::<V>, 0xca62_c1d6);
            }
            for (sum, x) in state.iter_mut().zip([a, b, c, d, e]) {
                *sum = sum.add(x);
            }
        }
    }
}

/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn majority<V: Words>(b: V, c: V, d: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { b.majority(c, d) }
}

impl Compression for Sha256 {
    const STATE: usize = 8;
    const BIG_ENDIAN: bool = true;
    const START: [u32; MAX_STATE] =
        [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

    #[inline(always)]
    unsafe fn compress<V: Words>(state: &mut [V; MAX_STATE], w: &mut [V; 16]) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
            for quarter in 0..4 {
                for i in 0..16 {
                    if quarter > 0 {
                        let (x, y) = (w[(i + 1) % 16], w[(i + 14) % 16]);
                        let small_0 = x.rotate::<25, 7>().xor3(x.rotate::<14, 18>(), x.shift_right::<3>());
                        let small_1 = y.rotate::<15, 17>().xor3(y.rotate::<13, 19>(), y.shift_right::<10>());
                        w[i] = w[i].add(small_0).add(w[(i + 9) % 16]).add(small_1);
                    }
                    let big_1 = e.rotate::<26, 6>().xor3(e.rotate::<21, 11>(), e.rotate::<7, 25>());
                    let constant = V::splat(SHA256_ROOTS[16 * quarter + i]);
                    let sum_1 = h.add(big_1).add(e.choose(f, g)).add(constant).add(w[i]);
                    let big_0 = a.rotate::<30, 2>().xor3(a.rotate::<19, 13>(), a.rotate::<10, 22>());
                    let sum_2 = big_0.add(a.majority(b, c));
                    (h, g, f, e, d, c, b, a) = (g, f, e, d.add(sum_1), c, b, a, sum_1.add(sum_2));
                }
            }
            for (sum, x) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
                *sum = sum.add(x);
            }
        }
    }
}
