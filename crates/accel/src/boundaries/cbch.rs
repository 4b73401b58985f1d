//! stdchk's boundaries by content (`cbch:m,k,p`): a window of m bytes moves from the start of a chunk in steps of p
//! bytes, and the chunk ends with the first window whose MD5 has its low k bits zero. (The digest is read as a
//! little-endian number: its first byte holds the lowest bits.) The next chunk's windows start after it. With p = m
//! windows do not overlap; with p = 1 there is a window at every position.
//!
//! Source: Al-Kiswany et al., "stdchk: a checkpoint storage system for desktop grid computing", ICDCS 2008, where the
//! rule is called content-based compare-by-hash. The paper leaves open the hash and the start of windows at each chunk;
//! Tessera defines them. After a boundary that two versions share, their windows are aligned again.

use super::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, ParamsError};
use crate::isa::Isa;
use crate::windows::{Md5, WindowShape};

/// Maximum window size.
const MAX_WINDOW_BYTES: usize = 64 * 1024;

/// Windows hashed before the results are checked: enough to fill the lanes, few enough to waste little at a boundary.
const WINDOWS_AT_ONCE: usize = 256;

/// m, k and p of the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cbch {
    windows: WindowShape,
    low_bits: u32,
}

impl Cbch {
    /// The rule `cbch:m,k,p`; 1 ≤ m ≤ 65,536, 1 ≤ p, and k such that the mean chunk size lies between
    /// [`MIN_CHUNK_BYTES`] and [`MAX_CHUNK_BYTES`].
    ///
    /// # Errors
    /// A parameter is outside these limits.
    pub fn new(window_bytes: usize, low_bits: u32, advance_bytes: usize) -> Result<Cbch, ParamsError> {
        let refused = ParamsError::Cbch { window_bytes, low_bits, advance_bytes };
        let windows = WindowShape::new(window_bytes, advance_bytes, 8).ok_or_else(|| refused.clone())?;
        let rule = Cbch { windows, low_bits };
        let sensible = window_bytes <= MAX_WINDOW_BYTES && low_bits < usize::BITS;
        match rule.mean() {
            Some(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES) if sensible => Ok(rule),
            _ => Err(refused),
        }
    }

    /// Mean chunk size on random data, ignoring [`MAX_CHUNK_BYTES`]: one window in 2^k ends a chunk.
    fn mean(&self) -> Option<usize> {
        let windows = 1usize.checked_shl(self.low_bits)?;
        (windows - 1).checked_mul(self.windows.step_bytes())?.checked_add(self.windows.window_bytes())
    }

    /// Mean chunk size on random data.
    pub fn mean_bytes(&self) -> usize {
        self.mean().unwrap_or(MAX_CHUNK_BYTES)
    }

    /// Bytes in a window (m).
    pub fn window_bytes(&self) -> usize {
        self.windows.window_bytes()
    }

    /// Bytes that a window advances (p).
    pub fn advance_bytes(&self) -> usize {
        self.windows.step_bytes()
    }

    /// Looks for the end of a chunk in `bytes`, which begin where the next window starts, `into` bytes after the
    /// chunk's start. Returns the position in `bytes` where the chunk ends, or where the window after the last complete
    /// one starts (possibly beyond the end of `bytes`).
    pub(super) fn search(&self, isa: Isa, bytes: &[u8], into: usize) -> Search {
        let (window, step) = (self.window_bytes(), self.advance_bytes());
        // A window beyond the maximum does not end the chunk; the maximum does.
        let limit = MAX_CHUNK_BYTES.saturating_sub(into);
        let reachable = &bytes[..bytes.len().min(limit)];
        let count = self.windows.count(reachable.len());
        let mask = (1u64 << self.low_bits) - 1;
        let mut hashes = Vec::new();
        for first in (0..count).step_by(WINDOWS_AT_ONCE) {
            let last = count.min(first + WINDOWS_AT_ONCE) - 1;
            hashes.clear();
            self.windows.append::<Md5>(isa, &reachable[first * step..last * step + window], &mut hashes);
            let zero = hashes.chunks_exact(8).position(|hash| {
                let low = hash.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
                low & mask == 0
            });
            if let Some(i) = zero {
                return Search::End((first + i) * step + window);
            }
        }
        if bytes.len() >= limit { Search::End(limit) } else { Search::Next(count * step) }
    }
}

/// Result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Search {
    /// The chunk ends here.
    End(usize),
    /// No end found; the next window starts here.
    Next(usize),
}
