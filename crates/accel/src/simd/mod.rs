//! Vectors of the instruction sets behind traits, so that each kernel's loop is written once. [`Bytes`] moves and XORs;
//! the kernel families add what they need. Kernels over vectors are `#[inline(always)]`, and a leaf's function that
//! enables the instruction set calls them.
//!
//! Nothing here chooses a set: `isa` and each family's `dispatch` do.
#![allow(unsafe_code)]
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

#[cfg(target_arch = "aarch64")]
mod neon;
pub mod words;
#[cfg(target_arch = "x86_64")]
mod words_x86;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// A vector of bytes.
///
/// # Safety
/// Every method may only be called where the CPU has the implementor's instruction set.
pub unsafe trait Bytes: Copy {
    /// Bytes in a vector.
    const LEN: usize;

    /// All zeros.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn zero() -> Self;

    /// The vector at `from`.
    ///
    /// # Safety
    /// The instruction set; `LEN` bytes are readable.
    unsafe fn load(from: *const u8) -> Self;

    /// Writes the vector at `to`.
    ///
    /// # Safety
    /// The instruction set; `LEN` bytes are writable.
    unsafe fn store(self, to: *mut u8);

    /// The first `len` < `LEN` bytes at `from`, then zeros.
    ///
    /// # Safety
    /// The instruction set; `len` bytes are readable.
    unsafe fn load_part(from: *const u8, len: usize) -> Self;

    /// Writes the first `len` < `LEN` bytes at `to`.
    ///
    /// # Safety
    /// The instruction set; `len` bytes are writable.
    unsafe fn store_part(self, to: *mut u8, len: usize);

    /// Bitwise XOR.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn xor(self, other: Self) -> Self;

    /// Prefetches the cache line at `at`, which need not be readable.
    #[inline(always)]
    fn prefetch(_at: *const u8) {}

    /// `self` xor `a` xor `b`, in one instruction where the set has one.
    ///
    /// # Safety
    /// The instruction set.
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { self.xor(a).xor(b) }
    }
}

/// Prefetches `bytes` at `from`, in lines of 64 bytes.
#[inline(always)]
pub fn prefetch<V: Bytes>(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        V::prefetch(from.wrapping_add(at));
    }
}

/// Vector `n` of `N` at `from`; of a single one only the first `part` bytes.
///
/// # Safety
/// The instruction set; those bytes are readable.
#[inline(always)]
pub unsafe fn load<V: Bytes, const N: usize>(from: *const u8, n: usize, part: usize) -> V {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe { if N > 1 || part == V::LEN { V::load(from.add(n * V::LEN)) } else { V::load_part(from, part) } }
}

/// Writes vector `n` of `N` at `to`; of a single one only the first `part` bytes.
///
/// # Safety
/// The instruction set; those bytes are writable.
#[inline(always)]
pub unsafe fn store<V: Bytes, const N: usize>(x: V, to: *mut u8, n: usize, part: usize) {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe { if N > 1 || part == V::LEN { x.store(to.add(n * V::LEN)) } else { x.store_part(to, part) } }
}
