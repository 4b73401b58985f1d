//! Vectors of 32-bit words with a *lane* for each of several messages that are hashed side by side, and a plain word as
//! a vector of one lane, which runs everywhere.
#![allow(unsafe_code)]

/// Lanes of the widest vector.
pub const MAX_LANES: usize = 16;

/// Bytes in a block of every hash function here: sixteen words.
pub const BLOCK_BYTES: usize = 64;

const _: () = assert!(BLOCK_BYTES == 16 * size_of::<u32>() && MAX_LANES.is_power_of_two());

/// A vector of 32-bit words.
///
/// # Safety
/// Every method may only be called where the CPU has the implementor's instruction set.
pub unsafe trait Words: Copy {
    /// Words in a vector, at most [`MAX_LANES`].
    const LANES: usize;

    /// `x` in every lane.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn splat(x: u32) -> Self;

    /// Lane i is the word at `from` + i.
    ///
    /// # Safety
    /// The instruction set; `LANES` words are readable.
    unsafe fn load(from: *const u32) -> Self;

    /// Writes lane i to `to` + i.
    ///
    /// # Safety
    /// The instruction set; `LANES` words are writable.
    unsafe fn store(self, to: *mut u32);

    /// Sum modulo 2^32.
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

    /// Rotates each lane left by `L` bits, which is right by `R` = 32 − `L`.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn rotate<const L: i32, const R: i32>(self) -> Self;

    /// Shifts each lane right by `R` bits.
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

    /// Prefetches the bytes at each pointer + `offset`, which need not be readable.
    #[inline(always)]
    fn prefetch(_at: &[*const u8; MAX_LANES], _offset: usize) {}

    /// `self` xor `a` xor `b`.
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

/// One word: a vector that every CPU supports.
#[derive(Clone, Copy)]
pub struct One(pub u32);

// SAFETY: plain Rust that touches only what the contracts name.
unsafe impl Words for One {
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: u32) -> Self {
        One(x)
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: one readable word, by the contract.
        One(unsafe { from.read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: one writable word, by the contract.
        unsafe { to.write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        One(self.0.wrapping_add(other.0))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        One(self.0 ^ other.0)
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        One(self.0 & other.0)
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        One(self.0 | other.0)
    }

    #[inline(always)]
    unsafe fn rotate<const L: i32, const R: i32>(self) -> Self {
        One(self.0.rotate_left(L as u32))
    }

    #[inline(always)]
    unsafe fn shift_right<const R: i32>(self) -> Self {
        One(self.0 >> R)
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        One(self.0.swap_bytes())
    }

    #[inline(always)]
    unsafe fn pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: two readable words, by the contract.
        unsafe { (Self::load(from), Self::load(from.add(1))) }
    }

    #[inline(always)]
    unsafe fn transposed(at: &[*const u8; MAX_LANES], offset: usize) -> [Self; 16] {
        let mut words = [One(0); 16];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: 64 readable bytes, by the contract.
            *word = One(u32::from_le(unsafe { at[0].add(offset + 4 * i).cast::<u32>().read_unaligned() }));
        }
        words
    }
}
