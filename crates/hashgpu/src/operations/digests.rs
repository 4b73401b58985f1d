//! MD5, SHA-1 and SHA-256 on a device: batches of buffers, HashGPU's direct hashing of segments, and its sliding
//! windows.

use crate::digest::{Digest, Function, batch_on, segmented_on};
use tessera_accel::Isa;
use tessera_accel::kernels::{DigestMessage, Digests, Kernel, Launch};
use tessera_accel::runtime::{Buffer, NoMemory, Operation, Places, padded};

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
    lens: Vec<usize>,
    starts: Vec<usize>,
    input_bytes: usize,
}

impl DigestBatch {
    /// Digests of buffers of these lengths. `None` for BLAKE3 (use [`tessera_accel::runtime::operations::HashBatch`]),
    /// or beyond 2^31 buffers.
    pub fn new(function: Function, lens: &[usize]) -> Option<DigestBatch> {
        let kernel = kernel_of(function)?;
        let (mut starts, mut end) = (Vec::with_capacity(lens.len()), 0usize);
        for len in lens {
            starts.push(end);
            end = end.checked_add(len.checked_next_multiple_of(16)?)?;
        }
        let fits = lens.len() < 1 << 31;
        fits.then(|| DigestBatch { function, kernel, lens: lens.to_vec(), starts, input_bytes: end })
    }

    /// Copies a buffer to its place in the input.
    pub fn pack(&self, index: usize, bytes: &[u8], input: &mut [u8]) {
        assert_eq!(bytes.len(), self.lens[index], "length of buffer {index}");
        let start = self.starts[index];
        input[start..start + bytes.len()].copy_from_slice(bytes);
        input[start + bytes.len()..start + padded(bytes.len())].fill(0);
    }

    /// Reads the digests.
    pub fn read(&self, output: &[u8]) -> Vec<Digest> {
        assert_eq!(output.len(), self.output_bytes(), "digests of {} buffers", self.lens.len());
        output.chunks_exact(self.function.digest_bytes()).take(self.lens.len()).map(Digest::new).collect()
    }
}

impl Operation for DigestBatch {
    fn primitive(&self) -> &'static str {
        self.function.name()
    }

    fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    fn output_bytes(&self) -> usize {
        self.lens.len() * self.function.digest_bytes()
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        let buffers: Vec<&[u8]> = self.starts.iter().zip(&self.lens).map(|(at, len)| &input[*at..at + len]).collect();
        let digests = batch_on(isa, self.function, &buffers);
        for (room, digest) in output.chunks_exact_mut(self.function.digest_bytes()).zip(digests) {
            room.copy_from_slice(digest.as_bytes());
        }
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        let messages = self.starts.iter().zip(&self.lens);
        messages.flat_map(|(at, len)| DigestMessage { offset: *at as u64, bytes: *len as u64 }.to_bytes()).collect()
    }

    fn launches(&self, at: &Places) -> Vec<Launch> {
        let argument = Digests {
            data: at.input,
            messages: at.tables,
            out: at.result,
            count: self.lens.len() as u64,
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

impl Operation for Segmented {
    fn primitive(&self) -> &'static str {
        "segmented"
    }

    fn input_bytes(&self) -> usize {
        self.len
    }

    fn output_bytes(&self) -> usize {
        self.function.digest_bytes()
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        // `new` has refused segments of no bytes.
        if let Ok(digest) = segmented_on(isa, self.function, input, self.segment) {
            output.copy_from_slice(digest.as_bytes());
        }
        Ok(())
    }

    /// The segments' digests, after the result.
    fn scratch_bytes(&self) -> usize {
        padded(self.output_bytes()) + self.segments() * self.function.digest_bytes()
    }

    fn launches(&self, at: &Places) -> Vec<Launch> {
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
