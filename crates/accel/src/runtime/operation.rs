//! What one job computes: [`Operation`]. Each knows its sizes, its CPU code and its kernels, and nothing of queues and
//! streams.

use super::{Buffer, NoMemory};
use crate::isa::Isa;
use crate::kernels::Launch;
use std::fmt;

/// Where a job's memory lies on the device. Each address is aligned to 256.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The bytes of [`Operation::tables`].
    pub tables: u64,
    /// The input.
    pub input: u64,
    /// The part that will be downloaded, [`Operation::output_bytes`]; scratch memory follows directly.
    pub result: u64,
}

/// A computation from one buffer to another that gives the same bytes on every device (P10).
pub trait Operation: Send + Sync + fmt::Debug {
    /// The primitive it belongs to; usage, calibration and routing use this name.
    fn primitive(&self) -> &'static str;

    /// Exact length of its input in bytes.
    fn input_bytes(&self) -> usize;

    /// Length of its output in bytes; an upper bound where [`Operation::finish`] decides.
    fn output_bytes(&self) -> usize;

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

    /// Bytes of device memory after the result that kernels use for intermediate values.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Bytes at the start of the result that must be zero before the first kernel.
    fn cleared_bytes(&self) -> usize {
        0
    }

    /// The kernels, in order.
    fn launches(&self, at: &Places) -> Vec<Launch>;

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
