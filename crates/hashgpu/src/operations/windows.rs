//! Sliding-window hashing on a device.
#![allow(unsafe_code)]

use super::digests::{kernel_of, launch};
use crate::windows::Windows;
use tessera_accel::Isa;
use tessera_accel::kernels::{Digests, Kernel, Launch};
use tessera_accel::runtime::{Addresses, Buffer, NoMemory, Operation, Sizes};

/// [`Windows::hash`] of one buffer: the first bytes of the digest of each window, one after the other.
#[derive(Debug, Clone)]
pub struct HashWindows {
    windows: Windows,
    kernel: Kernel,
    len: usize,
}

impl HashWindows {
    /// The windows of a buffer of `len` bytes. `None` for BLAKE3, or beyond 2^31 windows.
    pub fn new(windows: Windows, len: usize) -> Option<HashWindows> {
        let kernel = kernel_of(windows.function())?;
        let fits = windows.count(len) < 1 << 31;
        fits.then_some(HashWindows { windows, kernel, len })
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for HashWindows {
    fn primitive(&self) -> &'static str {
        "windows"
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: self.len, output: self.windows.count(self.len) * self.windows.width_bytes(), ..Sizes::default() }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        output.copy_from_slice(&self.windows.hash_on(isa, input));
        Ok(())
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let argument = Digests {
            data: at.input,
            out: at.result,
            step: self.windows.step_bytes() as u64,
            window: self.windows.window_bytes() as u64,
            total: self.len as u64,
            count: self.windows.count(self.len) as u64,
            width: self.windows.width_bytes() as u32,
            ..Digests::default()
        };
        launch(self.kernel, argument).into_iter().collect()
    }
}
