//! The compression functions of SHA-1 and SHA-256, lane by lane. MD5's is [`tessera_accel::windows::Md5`].
#![allow(unsafe_code, clippy::needless_range_loop)] // Steps and words are indexes.

use tessera_accel::simd::words::Words;
use tessera_accel::windows::{Compression, MAX_DIGEST_BYTES, MAX_STATE};

/// FIPS 180-4, §6.1.
pub struct Sha1;

/// FIPS 180-4, §6.2.
pub struct Sha256;

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

impl Compression for Sha1 {
    const STATE: usize = 5;
    const BIG_ENDIAN: bool = true;
    const START: [u32; MAX_STATE] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0, 0, 0, 0];

    fn reference(message: &[u8]) -> [u8; MAX_DIGEST_BYTES] {
        let mut digest = [0; MAX_DIGEST_BYTES];
        digest[..20].copy_from_slice(&<sha1::Sha1 as sha1::Digest>::digest(message));
        digest
    }

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
                step!(i, choose::<V>, 0x5a82_7999);
            }
            for i in 16..20 {
                step!(i, choose::<V>, 0x5a82_7999);
            }
            for i in 20..40 {
                step!(i, parity::<V>, 0x6ed9_eba1);
            }
            for i in 40..60 {
                step!(i, majority::<V>, 0x8f1b_bcdc);
            }
            for i in 60..80 {
                step!(i, parity::<V>, 0xca62_c1d6);
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
unsafe fn choose<V: Words>(b: V, c: V, d: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { b.choose(c, d) }
}

/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn parity<V: Words>(b: V, c: V, d: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { b.xor3(c, d) }
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

    fn reference(message: &[u8]) -> [u8; MAX_DIGEST_BYTES] {
        let mut digest = [0; MAX_DIGEST_BYTES];
        digest[..32].copy_from_slice(&<sha2::Sha256 as sha2::Digest>::digest(message));
        digest
    }

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
