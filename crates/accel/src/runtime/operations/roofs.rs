//! Upper bounds of a device as operations: transfers alone, copies inside the device, and other operations without
//! their downloads. Their results have no use; benchmarks compare their times with those of real operations.
#![allow(unsafe_code)]

use crate::isa::Isa;
use crate::kernels::{Kernel, Launch, XorRows};
use crate::runtime::operation::{Addresses, Operation, Sizes};
use crate::runtime::{Buffer, NoMemory};
use std::sync::Arc;

const PIECE_BYTES: usize = 8;

/// Sends bytes to the device and zeros back: the cost of a job whose kernels take no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes to the device.
    pub up_bytes: usize,
    /// Bytes back.
    pub down_bytes: usize,
}

impl Transfer {
    /// The transfers of an operation on data in the host's memory.
    pub fn of(operation: &dyn Operation) -> Transfer {
        Transfer { up_bytes: operation.input_bytes(), down_bytes: operation.output_bytes() }
    }
}

// SAFETY: it launches nothing.
unsafe impl Operation for Transfer {
    fn primitive(&self) -> &'static str {
        "transfer"
    }

    fn sizes(&self) -> Sizes {
        // Cleared, so that no old data comes back. A device clears memory many times as fast as it sends it.
        Sizes { input: self.up_bytes, output: self.down_bytes, cleared: self.down_bytes, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, _: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        output.fill(0);
        Ok(())
    }

    fn launches(&self, _: &Addresses) -> Vec<Launch> {
        Vec::new()
    }
}

/// Copies the input inside the device, which reads and writes that many bytes of its memory; a multiple of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyInside {
    pieces: usize,
}

impl CopyInside {
    /// At most `bytes`, in whole words.
    pub fn up_to(bytes: usize) -> CopyInside {
        CopyInside { pieces: bytes / PIECE_BYTES }
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for CopyInside {
    fn primitive(&self) -> &'static str {
        "copy"
    }

    fn sizes(&self) -> Sizes {
        let bytes = self.pieces * PIECE_BYTES;
        Sizes { input: bytes, output: bytes, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        output.copy_from_slice(input);
        Ok(())
    }

    /// The tables of a code whose one coding word equals its one data word.
    fn tables(&self) -> Vec<u8> {
        [0u32, 1, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let bytes = self.input_bytes() as u64;
        let argument = XorRows {
            sources: at.input,
            targets: at.result,
            firsts: at.tables,
            words: at.tables + 8,
            lists: at.tables + 12,
            source_chunk: bytes,
            target_chunk: bytes,
            fragment: bytes,
            stripes: 1,
            packet: bytes,
            chunks: 1,
            w: 1,
        };
        Launch::new(Kernel::XorRows, self.pieces, 1, argument.to_bytes()).into_iter().collect()
    }
}

/// Repeats an operation's kernels; the result stays on the device. With resident data
/// ([`crate::runtime::Runtime::on_resident`]) a job consists of kernels alone.
#[derive(Debug, Clone)]
pub struct KernelsAlone {
    inner: Arc<dyn Operation>,
    times: usize,
}

impl KernelsAlone {
    /// `inner`, `times` in one job, so that the job's own cost is a small part of its time.
    pub fn new(inner: Arc<dyn Operation>, times: usize) -> KernelsAlone {
        KernelsAlone { inner, times }
    }
}

// SAFETY: the inner operation's kernels touch only their own memory, which is as large here.
unsafe impl Operation for KernelsAlone {
    fn primitive(&self) -> &'static str {
        self.inner.primitive()
    }

    fn sizes(&self) -> Sizes {
        // The result stays on the device.
        let inner = self.inner.sizes();
        Sizes { output: 0, scratch: inner.output + inner.scratch, ..inner }
    }

    // The result stays on the device, so the CPU computes nothing.
    fn on_cpu(&self, _: Isa, _: &[u8], _: &mut Buffer) -> Result<(), NoMemory> {
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        self.inner.tables()
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let once = self.inner.launches(at);
        (0..self.times).flat_map(|_| once.clone()).collect()
    }
}
