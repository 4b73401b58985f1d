//! What one job computes: [`Operation`]. Each knows its sizes, its CPU code and its kernels, and nothing of queues and
//! streams.
#![allow(unsafe_code)]

use super::{Buffer, NoMemory};
use crate::isa::Isa;
use crate::kernels::Launch;
use std::fmt;

/// Where a job's memory lies on the device. Each address is aligned to 256.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The bytes of [`Operation::tables`].
    pub tables: u64,
    /// The input.
    pub input: u64,
    /// The part that will be downloaded, [`Operation::output_bytes`]; scratch memory follows directly.
    pub result: u64,
}

/// Bytes of a job's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// Exact length of the input.
    pub input: usize,
    /// Length of the output; an upper bound where [`Operation::finish`] decides.
    pub output: usize,
    /// Device memory after the result that kernels use for intermediate values.
    pub scratch: usize,
    /// Bytes at the start of the result that must be zero before the first kernel.
    pub cleared: usize,
}

/// A computation from one buffer to another that gives the same bytes on every device (P10).
///
/// # Safety
/// The kernels of [`Operation::launches`] touch only the memory whose addresses that method gets, with the lengths of
/// [`Operation::tables`] and [`Operation::sizes`] rounded up to a multiple of 16, and memory that outlives the job.
pub unsafe trait Operation: Send + Sync + fmt::Debug {
    /// The primitive it belongs to; usage, calibration and routing use this name.
    fn primitive(&self) -> &'static str;

    /// Bytes of its memory.
    fn sizes(&self) -> Sizes;

    /// Exact length of its input in bytes.
    fn input_bytes(&self) -> usize {
        self.sizes().input
    }

    /// Length of its output in bytes.
    fn output_bytes(&self) -> usize {
        self.sizes().output
    }

    /// Computes on the CPU. `input` has [`Operation::input_bytes`]; `output` has [`Operation::output_bytes`] of
    /// arbitrary content and may grow.
    ///
    /// # Errors
    /// [`NoMemory`] if `output` must grow and cannot.
    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory>;

    /// Constant data that the kernels need besides the input.
    fn tables(&self) -> Vec<u8> {
        Vec::new()
    }

    /// The kernels, in order.
    fn launches(&self, at: &Addresses) -> Vec<Launch>;

    /// Converts a device's `output` into the form that the CPU gives. False if the result did not fit: the CPU then
    /// does the job.
    fn finish(&self, _output: &mut [u8]) -> bool {
        true
    }

    /// Turns random bytes into a valid input, for calibration and benchmarks. Most operations take any bytes.
    fn make_valid(&self, _random: &mut [u8]) {}

    /// Whether two finished outputs mean the same.
    fn outputs_equal(&self, a: &[u8], b: &[u8]) -> bool {
        a == b
    }
}

/// `n` rounded up to a multiple of 16, which every buffer on a device is aligned to.
pub fn padded(n: usize) -> usize {
    n.next_multiple_of(16)
}

/// Buffers of a batch in one input, each at a multiple of 16 and padded with zeros.
#[derive(Debug, Clone)]
pub struct Packed {
    lens: Vec<usize>,
    starts: Vec<usize>,
    /// Bytes in all.
    pub bytes: usize,
}

impl Packed {
    /// Buffers of these lengths; `None` if they are more than memory can address.
    pub fn new(lens: &[usize]) -> Option<Packed> {
        let (mut starts, mut bytes) = (Vec::with_capacity(lens.len()), 0usize);
        for len in lens {
            starts.push(bytes);
            bytes = bytes.checked_add(len.checked_next_multiple_of(16)?)?;
        }
        Some(Packed { lens: lens.to_vec(), starts, bytes })
    }

    /// Number of buffers.
    pub fn count(&self) -> usize {
        self.lens.len()
    }

    /// Start and length of each buffer.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.starts.iter().copied().zip(self.lens.iter().copied())
    }

    /// Copies a buffer to its place in the input.
    pub fn pack(&self, index: usize, bytes: &[u8], input: &mut [u8]) {
        assert_eq!(bytes.len(), self.lens[index], "length of buffer {index}");
        let start = self.starts[index];
        input[start..start + bytes.len()].copy_from_slice(bytes);
        input[start + bytes.len()..start + padded(bytes.len())].fill(0);
    }

    /// The buffers of an input.
    pub fn buffers<'a>(&self, input: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.ranges().map(|(start, len)| &input[start..start + len])
    }
}
