//! Systematic Reed–Solomon codes over GF(2^8): k data fragments, m parity fragments, any k rebuild the rest (P1).
//!
//! Fragment i < k is the plain slice [i·F, (i+1)·F) of the chunk; fragments k.. are parity. F is [`fragment_len`]. A
//! chunk is never copied to pad it: data slices may be shorter than F, even empty, and count as zeros beyond their end.
//! The code works position by position, so every function here also works on equal byte ranges of the fragments.
//!
//! Start at [`Code`]. Reading order inside: `field`, `matrix`, `named`, `code`, `dispatch`, `reference`, `frame`, then
//! leaves. Source: Plank, "A tutorial on Reed-Solomon coding for fault-tolerance in RAID-like systems", 1997, with the
//! matrices of ISA-L; SIMD multiplication after Plank, Greenan, Miller, "Screaming fast Galois field arithmetic using
//! Intel SIMD instructions", FAST 2013.

pub(crate) mod cache;
mod code;
mod dispatch;
mod errors;
pub mod field;
mod frame;
pub(crate) mod galois;
#[cfg(target_arch = "x86_64")]
mod gfni;
mod matrix;
pub(crate) mod named;
mod parity;
mod reference;
mod rows;

#[cfg(test)]
mod tests;

pub use code::Code;
pub(crate) use dispatch::Coefficients;
pub use errors::{CodeError, CoderError};
pub(crate) use errors::{check_count, check_numbers};
pub use matrix::Matrix;
pub(crate) use parity::add;
pub(crate) use rows::multiply_equal;

/// Fragment lengths are multiples of this, so that fragments start on cache lines.
pub const FRAGMENT_ALIGN_BYTES: usize = 64;

/// Most fragments a chunk can have: k + m ≤ 255.
pub const MAX_FRAGMENTS: usize = 255;

// Fragments start on cache lines and on the 16-byte blocks of kernels; fragment numbers fit a byte.
const _: () = assert!(FRAGMENT_ALIGN_BYTES.is_power_of_two() && FRAGMENT_ALIGN_BYTES.is_multiple_of(16));
const _: () = assert!(MAX_FRAGMENTS <= u8::MAX as usize);

/// Length F of every fragment of a chunk: ⌈chunk_len / k⌉ rounded up to [`FRAGMENT_ALIGN_BYTES`]; 0 for an
/// empty chunk. `k` = 0 counts as 1.
pub fn fragment_len(chunk_len: usize, k: usize) -> usize {
    let part = chunk_len.div_ceil(k.max(1));
    // Not next_multiple_of: a length within 63 bytes of usize::MAX saturates instead of overflowing.
    part.checked_next_multiple_of(FRAGMENT_ALIGN_BYTES).unwrap_or(usize::MAX - (FRAGMENT_ALIGN_BYTES - 1))
}

/// The bytes of a chunk that data fragment `index` holds; shorter than F at the chunk's end, even empty.
pub fn data_slice(chunk: &[u8], k: usize, index: usize) -> &[u8] {
    slice_of(chunk, fragment_len(chunk.len(), k), index)
}

/// The bytes of data fragment `index` of `len` bytes, as far as the chunk has them.
pub(crate) fn slice_of(chunk: &[u8], len: usize, index: usize) -> &[u8] {
    let start = index.saturating_mul(len).min(chunk.len());
    &chunk[start..start.saturating_add(len).min(chunk.len())]
}
