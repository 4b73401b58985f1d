//! Vectors of the instruction sets behind one trait, so that each kernel's loop is written once, and the choice of the
//! vectors that a loop runs on ([`on_vectors`]). Kernels over vectors are `#[inline(always)]`: the function here that
//! enables the instruction set must take them in whole.
//!
//! A vector is a row of bytes, or of 32-bit words with a *lane* for each of several messages that are hashed side by
//! side.
#![allow(unsafe_code)]

/// Methods of [`Vector`] whose value is one expression.
macro_rules! methods {
    ($($name:ident($self:ident $(, $x:ident)*) = $value:expr;)*) => {$(
        /// # Safety
        /// The instruction set.
        #[inline(always)]
        unsafe fn $name($self $(, $x: Self)*) -> Self {
            // SAFETY: the instruction set, by the contract.
            unsafe { $value }
        }
    )*};
}

#[cfg(target_arch = "aarch64")]
mod neon;
mod one;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "aarch64")]
use neon::Neon;
use one::One;
#[cfg(target_arch = "x86_64")]
use x86::Avx2;
#[cfg(target_arch = "x86_64")]
pub use x86::Avx512;

use crate::isa::{Isa, Level};

/// Bytes of the widest vector.
const MAX_LEN: usize = 64;

/// Lanes of the widest vector.
pub const MAX_LANES: usize = MAX_LEN / size_of::<u32>();

/// Bytes in a block of every hash function here: sixteen words.
pub const BLOCK_BYTES: usize = 64;

const _: () = assert!(BLOCK_BYTES == 16 * size_of::<u32>() && MAX_LANES.is_power_of_two());

/// A vector.
///
/// # Safety
/// Every method may only be called where the CPU has the implementor's instruction set. The methods need no other, and
/// touch only the memory that their contract names.
pub unsafe trait Vector: Copy {
    /// Sixteen bytes to look up.
    type Table: Copy;

    /// Bytes in a vector, at most 64.
    const LEN: usize;

    /// Words in a vector, at most [`MAX_LANES`].
    const LANES: usize = Self::LEN / size_of::<u32>();

    /// `x` in every lane.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn splat(x: u32) -> Self;

    /// The `LEN` bytes at `from`, which need no alignment.
    ///
    /// # Safety
    /// The instruction set; `LEN` bytes are readable.
    unsafe fn load<T>(from: *const T) -> Self;

    /// Writes the vector at `to`, which needs no alignment.
    ///
    /// # Safety
    /// The instruction set; `LEN` bytes are writable.
    unsafe fn store<T>(self, to: *mut T);

    /// The first `len` < `LEN` bytes at `from`, then zeros.
    ///
    /// # Safety
    /// The instruction set; `len` bytes are readable.
    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        let mut whole = [0u8; MAX_LEN];
        // SAFETY: `len` readable bytes, by the contract, and a whole vector of them here.
        unsafe {
            std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), len);
            Self::load(whole.as_ptr())
        }
    }

    /// Writes the first `len` < `LEN` bytes at `to`.
    ///
    /// # Safety
    /// The instruction set; `len` bytes are writable.
    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        let mut whole = [0u8; MAX_LEN];
        // SAFETY: a whole vector here, of which `len` bytes are copied to as many writable ones, by the contract.
        unsafe {
            self.store(whole.as_mut_ptr());
            std::ptr::copy_nonoverlapping(whole.as_ptr(), to, len);
        }
    }

    /// Prefetches the cache line at `at`, which need not be readable.
    #[inline(always)]
    fn prefetch(_at: *const u8) {}

    /// Loads a table for [`Vector::look_up`].
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn table(entries: &[u8; 16]) -> Self::Table;

    /// For each byte, which is below 16, its entry in `table`.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn look_up(self, table: Self::Table) -> Self;

    /// The low and the high four bits of each byte.
    ///
    /// # Safety
    /// The instruction set.
    #[inline(always)]
    unsafe fn nibbles(self) -> (Self, Self) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            let low = Self::splat(0x0f0f_0f0f);
            (self.and(low), self.shift_right::<4>().and(low))
        }
    }

    /// Sums of words modulo 2^32.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn add(self, other: Self) -> Self;

    /// # Safety
    /// The instruction set.
    unsafe fn xor(self, other: Self) -> Self;

    /// # Safety
    /// The instruction set.
    unsafe fn and(self, other: Self) -> Self;

    /// # Safety
    /// The instruction set.
    unsafe fn or(self, other: Self) -> Self;

    /// Rotates each word left by `L` bits, which is right by `R` = 32 − `L`.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn rotate<const L: i32, const R: i32>(self) -> Self;

    /// Shifts each word right by `R` bits.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn shift_right<const R: i32>(self) -> Self;

    /// Reverses the bytes of each word.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn swap_bytes(self) -> Self;

    /// Word i of the result holds, lane by lane, little-endian word i of the 64 bytes at `at[lane]` + `offset`.
    ///
    /// # Safety
    /// The instruction set; 64 bytes are readable there for each of the first `LANES` pointers.
    unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16];

    /// The words at `from` + 2 · lane, and the words at `from` + 2 · lane + 1.
    ///
    /// # Safety
    /// The instruction set; 2 · `LANES` words are readable.
    unsafe fn pairs(from: *const u32) -> (Self, Self);

    /// `self` xor `a` xor `b`, in one instruction where the set has one.
    ///
    /// # Safety
    /// The instruction set.
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { self.xor(a).xor(b) }
    }

    /// Bit by bit, `a` where `self` is one and `b` where it is zero.
    ///
    /// # Safety
    /// The instruction set.
    #[inline(always)]
    unsafe fn choose(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { self.and(a.xor(b)).xor(b) }
    }

    /// For each bit, the value that at least two of the three have.
    ///
    /// # Safety
    /// The instruction set.
    #[inline(always)]
    unsafe fn majority(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { self.and(a).or(b.and(self.or(a))) }
    }

    /// `self` xor (`a` or not `b`).
    ///
    /// # Safety
    /// The instruction set.
    #[inline(always)]
    unsafe fn xor_or_not(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { self.xor(a.or(b.xor(Self::splat(!0)))) }
    }
}

/// Work that is written once for all vectors.
pub trait OnVectors {
    /// Does the work. Implementations are `#[inline(always)]`, and no closure in them may surround a vector's method:
    /// the compiler would build it without the instruction set, and call the method instead of inlining it, at a tenth
    /// of the speed.
    ///
    /// # Safety
    /// The instruction set of `V`.
    unsafe fn run<V: Vector>(self);
}

/// Does `work` on the vectors of `isa`; on single words where it has none.
pub fn on_vectors(isa: Isa, work: impl OnVectors) {
    match isa.level() {
        // SAFETY: a plain word needs no instruction set.
        Level::Reference | Level::Portable => unsafe { work.run::<One>() },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: an Isa of this level exists only if the CPU has NEON.
        Level::Neon => unsafe { on_neon(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this level exists only if the CPU has AVX2.
        Level::Avx2 => unsafe { on_avx2(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of these levels exists only if the CPU has AVX-512F, BW and VL.
        Level::Avx512 | Level::Gfni => unsafe { on_avx512(work) },
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn on_neon(work: impl OnVectors) {
    // SAFETY: NEON is enabled here.
    unsafe { work.run::<Neon>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn on_avx2(work: impl OnVectors) {
    // SAFETY: AVX2 is enabled here.
    unsafe { work.run::<Avx2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn on_avx512(work: impl OnVectors) {
    // SAFETY: AVX-512F and BW are enabled here.
    unsafe { work.run::<Avx512>() }
}

/// Prefetches `bytes` at `from`, in lines of 64 bytes.
#[inline(always)]
pub fn prefetch<V: Vector>(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        V::prefetch(from.wrapping_add(at));
    }
}

/// Vector `n` of `N` at `from`; of a single one only the first `part` bytes.
///
/// # Safety
/// The instruction set; those bytes are readable.
#[inline(always)]
pub unsafe fn load<V: Vector, const N: usize>(from: *const u8, n: usize, part: usize) -> V {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe { if N > 1 || part == V::LEN { V::load(from.add(n * V::LEN)) } else { V::load_part(from, part) } }
}

/// Writes vector `n` of `N` at `to`; of a single one only the first `part` bytes.
///
/// # Safety
/// The instruction set; those bytes are writable.
#[inline(always)]
pub unsafe fn store<V: Vector, const N: usize>(x: V, to: *mut u8, n: usize, part: usize) {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe { if N > 1 || part == V::LEN { x.store(to.add(n * V::LEN)) } else { x.store_part(to, part) } }
}
