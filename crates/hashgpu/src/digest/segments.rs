//! Direct hashing: the digest of the digests of a buffer's segments.
//!
//! `segmented(f, buffer, S)` = f(f(segment 0) ‖ f(segment 1) ‖ …). Segments have S bytes; the last one may be shorter.
//! An empty buffer has no segments: its hash is f of nothing. A buffer of one segment is f(f(buffer)). The result
//! depends on S, so S is part of a hash's definition; the default is [`SEGMENT_BYTES`].

use super::{Digest, Function, batch_on, digest};
use tessera_accel::Isa;

/// Default segment size: a page, as in HashGPU's evaluation.
pub const SEGMENT_BYTES: usize = 4096;

/// Segments hashed at once; limits the memory that a large buffer needs.
const SEGMENTS_AT_ONCE: usize = 4096;

/// Why a segmented hash is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// Segments of no bytes.
    #[error("segments of 0 bytes: a segment has at least 1 byte; {SEGMENT_BYTES} is usual")]
    Empty,
}

/// HashGPU's hash of a large buffer, whose segments are hashed side by side.
///
/// # Errors
/// `segment_bytes` is 0.
pub fn segmented(function: Function, buffer: &[u8], segment_bytes: usize) -> Result<Digest, SegmentError> {
    segmented_on(Isa::best(), function, buffer, segment_bytes)
}

/// [`segmented`] by the kernels of `isa`; the hash is the same (P10).
///
/// # Errors
/// As [`segmented`].
pub fn segmented_on(isa: Isa, function: Function, buffer: &[u8], segment_bytes: usize) -> Result<Digest, SegmentError> {
    if segment_bytes == 0 {
        return Err(SegmentError::Empty);
    }
    let mut digests = Vec::with_capacity(buffer.len().div_ceil(segment_bytes) * function.digest_bytes());
    let mut segments = buffer.chunks(segment_bytes);
    loop {
        let some: Vec<&[u8]> = segments.by_ref().take(SEGMENTS_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(digest(function, &digests));
        }
        for one in batch_on(isa, function, &some) {
            digests.extend_from_slice(one.as_bytes());
        }
    }
}
