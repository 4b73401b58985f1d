//! Upper bounds of this machine for the figures. Memory bounds are measured with the row, over the row's own bytes.
//! Bounds of the vector units come from a loop that touches registers alone, and from counting instructions.

use crate::timing::Rates;
use std::hint::black_box;
use std::time::Instant;
use tessera_accel::Isa;

/// The highest possible rate of a row, and its cause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof {
    /// GB/s of data, or the row's own unit.
    pub rate: f64,
    /// The resource that is exhausted at that rate.
    pub by: &'static str,
}

impl Roof {
    /// An upper bound by memory.
    pub fn memory(rate: f64) -> Option<Roof> {
        Some(Roof { rate, by: "memory" })
    }

    /// The lower of two.
    pub fn lower(a: Option<Roof>, b: Option<Roof>) -> Option<Roof> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if a.rate <= b.rate { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

/// GB/s of data of a code that reads k fragments once and writes m, if computing cost nothing: a byte read costs
/// 1/read, a byte written the extra cost of a copied byte. `read` and `copy` are indexes of ways in `rates`, in the
/// same GB/s.
pub fn coded(rates: &Rates, read: usize, copy: usize, k: usize, m: usize) -> Option<Roof> {
    let (read, copy) = (rates.of(read), rates.of(copy));
    let (k, m) = (k as f64, m as f64);
    Roof::memory(k / (k / read + m * (1.0 / copy - 1.0 / read).max(0.0)))
}

/// XOR of all words, eight at a time, with prefetches: reads as fast as memory delivers.
pub fn read(bytes: &[u8]) {
    let mut sums = [0u64; 16];
    for chunk in black_box(bytes).chunks_exact(128) {
        ask_for(chunk, 1024, 128);
        for (sum, word) in sums.iter_mut().zip(chunk.chunks_exact(8)) {
            *sum ^= u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        }
    }
    black_box(sums.iter().fold(0, |a, b| a ^ b));
}

/// Copies, with prefetches of both sides.
pub fn copy(from: &[u8], to: &mut [u8]) {
    for (from, to) in black_box(from).chunks(1024).zip(to.chunks_mut(1024)) {
        ask_for(from, 1024, 1024);
        ask_for(to, 1024, 1024);
        to.copy_from_slice(from);
    }
    black_box(to);
}

/// Prefetches `len` bytes that begin `ahead` after the start of `bytes`.
#[inline(always)]
fn ask_for(bytes: &[u8], ahead: usize, len: usize) {
    for at in (ahead..ahead + len).step_by(64) {
        // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast())
        };
        let _ = (bytes, at);
    }
}

/// The vector units of one core.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// Bytes in a vector of the best instruction set.
    pub bytes: usize,
    /// Additions of vectors per nanosecond, over all units that add.
    pub per_ns: f64,
}

impl Vectors {
    /// Measures the units; `None` if the best set has no supported vectors.
    pub fn measure() -> Option<Vectors> {
        let (bytes, add) = adder()?;
        const ROUNDS: usize = 200_000;
        // The fastest of many samples, because an upper bound excludes the load of other programs.
        let sample = |_| {
            let start = Instant::now();
            add(ROUNDS);
            (ROUNDS * ADDITIONS) as f64 / start.elapsed().as_nanos() as f64
        };
        Some(Vectors { bytes, per_ns: (0..200).map(sample).fold(0.0, f64::max) })
    }

    fn wide(&self) -> bool {
        self.bytes == 64
    }

    fn roof(&self, instructions: f64, bytes: f64) -> Option<Roof> {
        Some(Roof { rate: self.per_ns * bytes / instructions, by: "vector units" })
    }

    /// The upper bound of a digest of one of the families, by message length: compressions of 64 bytes, one per lane,
    /// and for BLAKE3 the parents. Instructions of a compression are counted from the functions' definitions. AVX2 has
    /// no rotation and no three-operand logic, and needs more shuffles to turn words into lanes.
    pub fn digest(&self, name: &str, message: usize) -> Option<Roof> {
        let instructions = match (name, self.wide()) {
            ("blake3", true) => 7 * 8 * 14 + 8 + 64,
            ("blake3", false) => 7 * 8 * 18 + 8 + 48,
            ("md5", true) => 64 * 7 + 4 + 64,
            ("md5", false) => 64 * 11 + 4 + 48,
            ("sha1", true) => 80 * 7 + 64 * 3 + 5 + 80,
            ("sha1", false) => 80 * 12 + 64 * 6 + 5 + 64,
            ("sha256", true) => 64 * 17 + 48 * 11 + 8 + 80,
            ("sha256", false) => 64 * 33 + 48 * 21 + 8 + 64,
            _ => return None,
        };
        let compressions = match name {
            "blake3" => message.div_ceil(64) + message.div_ceil(1024) - 1,
            _ => (message + 9).div_ceil(64),
        };
        let lanes = self.bytes / 4;
        self.roof((compressions * instructions) as f64, (message * lanes) as f64)
    }

    /// The upper bound of Reed–Solomon by shuffles: each vector of data is split in nibbles, and each parity takes two
    /// shuffles (which at best half of the units can do) and the sums.
    pub fn reed_solomon(&self, m: usize) -> Option<Roof> {
        let (all, shuffles) = (if self.wide() { 3 + 3 * m } else { 3 + 4 * m }, 2 * m);
        self.roof(all.max(2 * shuffles) as f64, self.bytes as f64)
    }

    /// The upper bound of the search for boundaries: instructions of the prefilter for a vector of positions.
    pub fn boundaries(&self) -> Option<Roof> {
        self.roof(if self.wide() { 15.0 } else { 13.0 }, self.bytes as f64)
    }
}

/// Independent additions of one round.
const ADDITIONS: usize = 12;

#[cfg(target_arch = "x86_64")]
mod registers {
    use super::ADDITIONS;
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// `rounds` of additions of 64 bytes in registers.
    pub fn avx512(rounds: usize) {
        #[target_feature(enable = "avx512f")]
        unsafe fn enabled(rounds: usize) {
            let (one, mut sums) = (_mm512_set1_epi32(1), [_mm512_setzero_si512(); ADDITIONS]);
            for _ in 0..rounds {
                for sum in &mut sums {
                    // SAFETY: touches its operands alone. In assembly, because a compiler would merge the repeated
                    // additions.
                    unsafe {
                        asm!("vpaddd {0}, {0}, {1}", inout(zmm_reg) *sum, in(zmm_reg) one, options(pure, nomem, nostack))
                    };
                }
            }
            std::hint::black_box(sums);
        }
        // SAFETY: the caller has found an Isa with AVX-512F.
        unsafe { enabled(rounds) }
    }

    /// `rounds` of additions of 32 bytes in registers.
    pub fn avx2(rounds: usize) {
        #[target_feature(enable = "avx2")]
        unsafe fn enabled(rounds: usize) {
            let (one, mut sums) = (_mm256_set1_epi32(1), [_mm256_setzero_si256(); ADDITIONS]);
            for _ in 0..rounds {
                for sum in &mut sums {
                    // SAFETY: touches its operands alone. In assembly, because a compiler would merge the repeated
                    // additions.
                    unsafe {
                        asm!("vpaddd {0}, {0}, {1}", inout(ymm_reg) *sum, in(ymm_reg) one, options(pure, nomem, nostack))
                    };
                }
            }
            std::hint::black_box(sums);
        }
        // SAFETY: the caller has found an Isa with AVX2.
        unsafe { enabled(rounds) }
    }
}

/// Additions in registers alone. They show the most that a second thread can bring, because two threads share at most
/// the core.
pub fn registers_only(rounds: usize) {
    if let Some((_, add)) = adder() {
        return add(rounds);
    }
    let mut sum = 0u64;
    for i in 0..rounds as u64 {
        sum = black_box(sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i);
    }
}

/// Bytes in a vector of the best instruction set, and the loop that adds such vectors.
fn adder() -> Option<(usize, fn(usize))> {
    match Isa::best().name() {
        #[cfg(target_arch = "x86_64")]
        "avx2" => Some((32, registers::avx2)),
        #[cfg(target_arch = "x86_64")]
        "avx512" | "avx512+gfni" => Some((64, registers::avx512)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roofs_are_counted() {
        let vectors = Vectors { bytes: 64, per_ns: 5.0 };
        // 856 instructions for sixteen blocks of 64 bytes, and the parents of a message of four leaves.
        let close = |roof: Option<Roof>, rate: f64| (roof.expect("counted").rate / rate - 1.0).abs() < 1e-9;
        assert!(close(vectors.digest("blake3", 1024), 5.0 * 1024.0 / 856.0));
        assert!(close(vectors.digest("blake3", 4096), 5.0 * 1024.0 / 856.0 * 64.0 / 67.0));
        assert!(close(vectors.digest("md5", 64), 5.0 * 1024.0 / 516.0 / 2.0));
        assert!(close(vectors.reed_solomon(2), 5.0 * 64.0 / 9.0));
        assert_eq!(vectors.digest("sha3", 64), None);
        let low = Some(Roof { rate: 1.0, by: "vector units" });
        assert_eq!(Roof::lower(Roof::memory(2.0), low), low);
    }
}
