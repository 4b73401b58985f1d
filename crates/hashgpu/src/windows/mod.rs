//! Sliding-window hashing: the hash of every window of W bytes at steps of S bytes, as in HashGPU's interface.
//!
//! Window i covers bytes [i·S, i·S + W) of the stream. There are ⌊(n − W) / S⌋ + 1 of them in n ≥ W bytes, none in
//! fewer. Each result is the first `width_bytes` of the window's digest. [`Windows::hash`] takes a whole buffer; a
//! [`Stream`] takes pieces and includes the windows that straddle two of them.
//!
//! Every window is a separate message; lanes hash windows side by side and read them in place. The reference hashes one
//! slice after another. stdchk's boundary rule ([`tessera_accel::boundaries`]) uses the same windows.
//!
//! Source: Al-Kiswany et al., "StoreGPU", HPDC 2008.

mod stream;

#[cfg(test)]
mod tests;

use crate::digest::functions::{Sha1, Sha256};
use crate::digest::{self, Function};
use tessera_accel::Isa;
use tessera_accel::windows::{Md5, WindowShape};

pub use stream::Stream;

/// Windows hashed at once where they are passed on as slices.
const SLICES_AT_ONCE: usize = 4096;

/// Which windows are hashed, with which function, and how much of each hash is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    function: Function,
    shape: WindowShape,
}

/// Why sliding windows are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WindowsError {
    /// Windows of no bytes.
    #[error("windows of 0 bytes: a window has at least 1 byte")]
    Window,
    /// Steps of no bytes.
    #[error("steps of 0 bytes: windows advance by at least 1 byte")]
    Step,
    /// More bytes than the digest has, or none.
    #[error("{got} bytes of each digest: {function} has {most}, and at least 1 is kept")]
    Width {
        /// The hash function.
        function: Function,
        /// Bytes of its digest.
        most: usize,
        /// Bytes asked for.
        got: usize,
    },
}

impl Windows {
    /// The first `width_bytes` of `function` of every window of `window_bytes` at steps of `step_bytes`.
    ///
    /// # Errors
    /// A window or a step has no bytes, or the digest does not have `width_bytes`.
    pub fn new(
        function: Function,
        window_bytes: usize,
        step_bytes: usize,
        width_bytes: usize,
    ) -> Result<Windows, WindowsError> {
        if window_bytes == 0 {
            return Err(WindowsError::Window);
        }
        let most = function.digest_bytes();
        if width_bytes == 0 || width_bytes > most {
            return Err(WindowsError::Width { function, most, got: width_bytes });
        }
        let shape = WindowShape::new(window_bytes, step_bytes, width_bytes).ok_or(WindowsError::Step)?;
        Ok(Windows { function, shape })
    }

    /// The hash function.
    pub fn function(&self) -> Function {
        self.function
    }

    /// Bytes in a window.
    pub fn window_bytes(&self) -> usize {
        self.shape.window_bytes()
    }

    /// Bytes from the start of one window to the start of the next.
    pub fn step_bytes(&self) -> usize {
        self.shape.step_bytes()
    }

    /// Bytes in a result.
    pub fn width_bytes(&self) -> usize {
        self.shape.width_bytes()
    }

    /// Windows in a buffer of `len` bytes.
    pub fn count(&self, len: usize) -> usize {
        self.shape.count(len)
    }

    /// Results of all windows of `buffer`, one after another: [`Windows::count`] times [`Windows::width_bytes`] bytes.
    pub fn hash(&self, buffer: &[u8]) -> Vec<u8> {
        self.hash_on(Isa::best(), buffer)
    }

    /// [`Windows::hash`] by the kernels of `isa`; the bytes are the same (P10).
    pub fn hash_on(&self, isa: Isa, buffer: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.append(isa, buffer, &mut out);
        out
    }

    /// Appends the results of all windows of `buffer` to `out`.
    fn append(&self, isa: Isa, buffer: &[u8], out: &mut Vec<u8>) {
        match self.function {
            Function::Md5 => self.shape.append::<Md5>(isa, buffer, out),
            Function::Sha1 => self.shape.append::<Sha1>(isa, buffer, out),
            Function::Sha256 => self.shape.append::<Sha256>(isa, buffer, out),
            Function::Blake3 => self.append_slices(isa, buffer, out),
        }
    }

    fn append_slices(&self, isa: Isa, buffer: &[u8], out: &mut Vec<u8>) {
        let mut slices = self.shape.slices(buffer);
        loop {
            let some: Vec<&[u8]> = slices.by_ref().take(SLICES_AT_ONCE).collect();
            if some.is_empty() {
                return;
            }
            for one in digest::batch_on(isa, self.function, &some) {
                out.extend_from_slice(&one.as_bytes()[..self.width_bytes()]);
            }
        }
    }
}
