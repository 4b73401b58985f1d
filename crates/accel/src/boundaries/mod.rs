//! Chunk boundaries: fixed sizes, content-defined boundaries in two phases, or stdchk's rule (`cbch`). docs/chunking.md
//! is the contract, precise enough for another implementation.
//!
//! Phase 1 ([`candidates`]) is position-pure: whether a position may be cut, and how strongly, depends only on the
//! [`WINDOW_BYTES`] bytes before it. Any device can search any slice, in any order, given the bytes just before it.
//! Phase 2 ([`Cutter`]) walks the candidates in order and applies minimum, normal size and maximum.
//!
//! Start at [`Rule`] and [`Cutter`]; `params` derives the numbers, `reference` defines phase 1.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cbch;
mod cutter;
mod dispatch;
#[cfg(target_arch = "aarch64")]
mod neon;
mod params;
mod portable;
mod reference;

#[cfg(test)]
mod tests;

use crate::isa::Isa;
pub use cbch::Cbch;
pub use cutter::Cutter;
pub use params::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, Params, ParamsError, Rule};

/// Bytes before a position that decide whether it is a candidate.
pub const WINDOW_BYTES: usize = 64;

/// A position where a chunk may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Candidate {
    /// Bytes of the searched data before the cut: a cut here ends a chunk with `data[position - 1]`.
    pub position: usize,
    /// Strong candidates may cut from the minimum on, others only from the normal size on.
    pub strong: bool,
}

/// Phase 1: appends to `out` every candidate whose last window byte lies in `data`, in rising order.
///
/// `context` holds the bytes before `data` in the stream; only its last [`WINDOW_BYTES`] − 1 bytes matter. If it has
/// fewer (at the start of a stream), positions without a full window are not candidates.
pub fn candidates(params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>) {
    dispatch::candidates(Isa::best(), params, context, data, out);
}

/// [`candidates`] by the kernels of `isa`; the result is the same (P10).
pub fn candidates_on(isa: Isa, params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>) {
    dispatch::candidates(isa, params, context, data, out);
}
