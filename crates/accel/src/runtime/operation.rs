//! What one job computes: [`Operation`]. Each knows its sizes, the CPU's way, and the kernels' way, and nothing
//! of queues and streams.

use super::{Buffer, NoMemory};
use crate::isa::Isa;
use crate::kernels::Launch;
use std::fmt;

/// Where a job's memory lies on the device. Each address is aligned to 256.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// What [`Operation::tables`] gave.
    pub tables: u64,
    /// The input.
    pub input: u64,
    /// What will be downloaded, [`Operation::output_bytes`]; scratch memory follows at once.
    pub result: u64,
}

/// A computation from one buffer to another, the same bytes wherever it runs (P10).
pub trait Operation: Send + Sync + fmt::Debug {
    /// The primitive it belongs to, as usage, calibration and routing name it.
    fn primitive(&self) -> &'static str;

    /// Bytes its input must have.
    fn input_bytes(&self) -> usize;

    /// Bytes of its output, or room for it where [`Operation::finish`] decides.
    fn output_bytes(&self) -> usize;

    /// Computes on the CPU. `input` has [`Operation::input_bytes`], `output` has [`Operation::output_bytes`] of any
    /// content and may be made larger, which is what there can be no memory for.
    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory>;

    /// What the kernels need besides the input.
    fn tables(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Device memory behind the result that the kernels use between them.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Bytes at the result's start that must be zero before the first kernel.
    fn cleared_bytes(&self) -> usize {
        0
    }

    /// The kernels, in order.
    fn launches(&self, at: &Places) -> Vec<Launch>;

    /// Puts what a device left in `output` into the form that the CPU gives. False if it did not fit there: the
    /// CPU then does the job.
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
