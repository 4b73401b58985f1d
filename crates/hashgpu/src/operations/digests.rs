//! MD5, SHA-1 and SHA-256 on a device: batches of buffers, HashGPU's direct hashing of segments, and its sliding
//! windows.
#![allow(unsafe_code)]

use crate::digest::{Digest, Function, batch_on, segmented_on};
use tessera_accel::Isa;
use tessera_accel::kernels::{DigestMessage, Digests, Kernel, Launch};
use tessera_accel::runtime::{Addresses, Buffer, NoMemory, Operation, Packed, Sizes, padded};

/// The kernel of a function; BLAKE3 has operations of its own.
pub(super) fn kernel_of(function: Function) -> Option<Kernel> {
    match function {
        Function::Md5 => Some(Kernel::Md5Batch),
        Function::Sha1 => Some(Kernel::Sha1Batch),
        Function::Sha256 => Some(Kernel::Sha256Batch),
        Function::Blake3 => None,
    }
}

pub(super) fn launch(kernel: Kernel, argument: Digests) -> Option<Launch> {
    Launch::new(kernel, argument.count as usize, 1, argument.to_bytes())
}

/// [`crate::digest::batch`] of buffers.
///
/// Input: the buffers, each beginning at a multiple of 16. Output: their digests, one after the other.
#[derive(Debug, Clone)]
pub struct DigestBatch {
    function: Function,
    kernel: Kernel,
    buffers: Packed,
}

impl DigestBatch {
    /// Digests of buffers of these lengths. `None` for BLAKE3 (use [`tessera_accel::runtime::operations::HashBatch`]),
    /// or beyond 2^31 buffers.
    pub fn new(function: Function, lens: &[usize]) -> Option<DigestBatch> {
        let kernel = kernel_of(function)?;
        let buffers = Packed::new(lens)?;
        (lens.len() < 1 << 31).then_some(DigestBatch { function, kernel, buffers })
    }

    /// Copies a buffer to its place in the input.
    pub fn pack(&self, index: usize, bytes: &[u8], input: &mut [u8]) {
        self.buffers.pack(index, bytes, input);
    }

    /// Reads the digests.
    pub fn read(&self, output: &[u8]) -> Vec<Digest> {
        assert_eq!(output.len(), self.output_bytes(), "digests of {} buffers", self.buffers.count());
        output.chunks_exact(self.function.digest_bytes()).take(self.buffers.count()).map(Digest::new).collect()
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for DigestBatch {
    fn primitive(&self) -> &'static str {
        self.function.name()
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            input: self.buffers.bytes,
            output: self.buffers.count() * self.function.digest_bytes(),
            ..Sizes::default()
        }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        let buffers: Vec<&[u8]> = self.buffers.buffers(input).collect();
        let digests = batch_on(isa, self.function, &buffers);
        for (room, digest) in output.chunks_exact_mut(self.function.digest_bytes()).zip(digests) {
            room.copy_from_slice(digest.as_bytes());
        }
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        let message = |(at, len)| DigestMessage { offset: at as u64, bytes: len as u64 }.to_bytes();
        self.buffers.ranges().flat_map(message).collect()
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let argument = Digests {
            data: at.input,
            messages: at.tables,
            out: at.result,
            count: self.buffers.count() as u64,
            width: self.function.digest_bytes() as u32,
            ..Digests::default()
        };
        launch(self.kernel, argument).into_iter().collect()
    }
}

/// [`crate::digest::segmented`]: the digest of the digests of a buffer's segments.
#[derive(Debug, Clone)]
pub struct Segmented {
    function: Function,
    kernel: Kernel,
    len: usize,
    segment: usize,
}

impl Segmented {
    /// A buffer of `len` bytes in segments of `segment`. `None` if that is 0, for BLAKE3, or beyond 2^31 segments.
    pub fn new(function: Function, len: usize, segment: usize) -> Option<Segmented> {
        let kernel = kernel_of(function)?;
        let fits = segment > 0 && len.div_ceil(segment) < 1 << 31;
        fits.then_some(Segmented { function, kernel, len, segment })
    }

    /// Reads the hash.
    pub fn read(&self, output: &[u8]) -> Digest {
        Digest::new(&output[..self.function.digest_bytes()])
    }

    fn segments(&self) -> usize {
        self.len.div_ceil(self.segment)
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for Segmented {
    fn primitive(&self) -> &'static str {
        "segmented"
    }

    fn sizes(&self) -> Sizes {
        let output = self.function.digest_bytes();
        // The segments' digests, after the result.
        let scratch = padded(output) + self.segments() * output;
        Sizes { input: self.len, output, scratch, ..Sizes::default() }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        // `new` has refused segments of no bytes.
        if let Ok(digest) = segmented_on(isa, self.function, input, self.segment) {
            output.copy_from_slice(digest.as_bytes());
        }
        Ok(())
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let width = self.function.digest_bytes();
        let digests = at.result + padded(width) as u64;
        let (step, total) = (self.segment as u64, self.len as u64);
        let count = self.segments() as u64;
        let first = Digests {
            data: at.input,
            out: digests,
            step,
            window: step,
            total,
            count,
            width: width as u32,
            ..Digests::default()
        };
        let all = count * width as u64;
        let second = Digests { data: digests, out: at.result, step: 0, window: all, total: all, count: 1, ..first };
        [launch(self.kernel, first), launch(self.kernel, second)].into_iter().flatten().collect()
    }
}
