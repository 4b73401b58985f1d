//! Hashes of sliding windows: the digest of every window of W bytes at steps of S bytes, cut to some width.
//!
//! Window i covers bytes [i·S, i·S + W) of a buffer. n ≥ W bytes have ⌊(n − W) / S⌋ + 1 windows; fewer bytes have none.
//! Every window is a separate message. Vectors hash as many side by side as they have lanes, and read them in place.
//! The reference hashes one after another with RustCrypto's crates.
//!
//! The boundary rule `cbch` needs MD5 of windows, so only that function is here. `tessera-hashgpu` adds SHA-1, SHA-256
//! and streams through [`Compression`].
//!
//! Source: Al-Kiswany et al., "StoreGPU", HPDC 2008.

mod compression;
mod lanes;

#[cfg(test)]
mod tests;

pub use compression::{Compression, MAX_DIGEST_BYTES, MAX_STATE, Md5, digest_of_lane, padding};

use crate::isa::Isa;

/// Which windows of a buffer are hashed, and how much of each digest is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowShape {
    window_bytes: usize,
    step_bytes: usize,
    width_bytes: usize,
}

impl WindowShape {
    /// Windows of `window_bytes` at steps of `step_bytes`, with the first `width_bytes` of each digest. `None` if one
    /// of them is 0, or the width is above [`MAX_DIGEST_BYTES`].
    pub fn new(window_bytes: usize, step_bytes: usize, width_bytes: usize) -> Option<WindowShape> {
        let is_valid = window_bytes > 0 && step_bytes > 0 && (1..=MAX_DIGEST_BYTES).contains(&width_bytes);
        is_valid.then_some(WindowShape { window_bytes, step_bytes, width_bytes })
    }

    /// Bytes in a window.
    pub fn window_bytes(&self) -> usize {
        self.window_bytes
    }

    /// Bytes from the start of one window to the start of the next.
    pub fn step_bytes(&self) -> usize {
        self.step_bytes
    }

    /// Bytes in a result.
    pub fn width_bytes(&self) -> usize {
        self.width_bytes
    }

    /// Windows in a buffer of `len` bytes.
    pub fn count(&self, len: usize) -> usize {
        len.checked_sub(self.window_bytes).map_or(0, |room| room / self.step_bytes + 1)
    }

    /// The windows of `buffer`.
    pub fn slices<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let (window, step) = (self.window_bytes, self.step_bytes);
        (0..self.count(buffer.len())).map(move |i| &buffer[i * step..i * step + window])
    }

    /// Appends the results of all windows of `buffer` to `out`, by the kernels of `isa`; the bytes are the same for every
    /// set (P10).
    ///
    /// # Panics
    /// If a result is wider than a digest of `H`.
    pub fn append<H: Compression>(&self, isa: Isa, buffer: &[u8], out: &mut Vec<u8>) {
        assert!(self.width_bytes <= 4 * H::STATE, "{} bytes of digests of {}", self.width_bytes, 4 * H::STATE);
        let count = self.count(buffer.len());
        if count == 0 {
            return;
        }
        let before = out.len();
        out.reserve(count * self.width_bytes);
        if isa == Isa::REFERENCE {
            let results = self.slices(buffer).map(H::reference);
            results.for_each(|digest| out.extend_from_slice(&digest[..self.width_bytes]));
        } else {
            lanes::append::<H>(isa, self, buffer, out);
        }
        assert_eq!(out.len() - before, count * self.width_bytes, "a result for each of {count} windows");
    }
}
