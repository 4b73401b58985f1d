//! A plain word as a vector of one lane, which runs everywhere.
#![allow(unsafe_code)]

use super::{MAX_LANES, Vector};

/// One word.
#[derive(Clone, Copy)]
pub struct One(u32);

#[allow(unused_unsafe)] // Its arithmetic is safe.
// SAFETY: plain Rust that touches only what the contracts name.
unsafe impl Vector for One {
    type Table = [u8; 16];
    const LEN: usize = size_of::<u32>();

    methods! {
        add(self, other) = One(self.0.wrapping_add(other.0));
        xor(self, other) = One(self.0 ^ other.0);
        and(self, other) = One(self.0 & other.0);
        or(self, other) = One(self.0 | other.0);
        swap_bytes(self) = One(self.0.swap_bytes());
    }

    #[inline(always)]
    unsafe fn table(entries: &[u8; 16]) -> [u8; 16] {
        *entries
    }

    #[inline(always)]
    unsafe fn look_up(self, table: [u8; 16]) -> Self {
        One(u32::from_ne_bytes(self.0.to_ne_bytes().map(|index| table[usize::from(index & 15)])))
    }

    #[inline(always)]
    unsafe fn splat(x: u32) -> Self {
        One(x)
    }

    #[inline(always)]
    unsafe fn load<T>(from: *const T) -> Self {
        // SAFETY: a readable word, by the contract.
        One(unsafe { from.cast::<u32>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store<T>(self, to: *mut T) {
        // SAFETY: a writable word, by the contract.
        unsafe { to.cast::<u32>().write_unaligned(self.0) }
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
