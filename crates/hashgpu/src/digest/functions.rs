//! The compression functions of SHA-1 and SHA-256, lane by lane. MD5's is [`tessera_accel::windows::Md5`].
#![allow(unsafe_code, clippy::needless_range_loop)] // Steps and words are indexes.

use tessera_accel::simd::Vector;
use tessera_accel::windows::{Compression, MAX_DIGEST_BYTES, MAX_STATE};

/// FIPS 180-4, §6.1.
pub struct Sha1;

/// FIPS 180-4, §6.2.
pub struct Sha256;

/// First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, §4.2.2).
const SHA256_ROOTS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
];

impl Compression for Sha1 {
    const STATE: usize = 5;
    const BIG_ENDIAN: bool = true;
    const START: [u32; MAX_STATE] = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0, 0, 0, 0];

    fn reference(message: &[u8]) -> [u8; MAX_DIGEST_BYTES] {
        let mut digest = [0; MAX_DIGEST_BYTES];
        digest[..20].copy_from_slice(&<sha1::Sha1 as sha1::Digest>::digest(message));
        digest
    }

    #[inline(always)]
    unsafe fn compress<V: Vector>(state: &mut [V; MAX_STATE], w: &mut [V; 16]) {
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
                    let sum = a.rotate::<5, 27>().add($mix).add(e).add(V::splat($constant)).add(w[i]);
                    (e, d, c, b, a) = (d, c, b.rotate::<30, 2>(), a, sum);
                }};
            }
            for i in 0..16 {
                step!(i, b.choose(c, d), 0x5a82_7999);
            }
            for i in 16..20 {
                step!(i, b.choose(c, d), 0x5a82_7999);
            }
            for i in 20..40 {
                step!(i, b.xor3(c, d), 0x6ed9_eba1);
            }
            for i in 40..60 {
                step!(i, b.majority(c, d), 0x8f1b_bcdc);
            }
            for i in 60..80 {
                step!(i, b.xor3(c, d), 0xca62_c1d6);
            }
            for (sum, x) in state.iter_mut().zip([a, b, c, d, e]) {
                *sum = sum.add(x);
            }
        }
    }
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
    unsafe fn compress<V: Vector>(state: &mut [V; MAX_STATE], w: &mut [V; 16]) {
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
