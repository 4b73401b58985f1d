//! The short measurement that routing uses: each primitive, small and large, on the CPU and on every device. It is also
//! a known-answer test: a device whose bytes differ from the CPU's is retired before it does any real work (P10).

use super::operations::{FindCandidates, HashBatch, Multiply, Verify, XorFragments};
use super::routing::{CPU, Cost};
use super::{Buffer, Calibration, Fault, Operation, Runtime, Target};
use crate::boundaries::Params;
use crate::coder::Coder;
use crate::erasure::{Code, Matrix};
use crate::xorcode::{Technique, XorCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Input size for the CPU: a fraction of a millisecond for each primitive.
const CPU_BYTES: usize = 1 << 20;
/// A small job is this many times smaller than a large one.
const SMALLER: usize = 16;
/// Measurements per primitive; the quickest counts.
const TIMES: usize = 3;

impl Runtime {
    /// Measures every primitive on the CPU and on every device, for [`Target::Auto`]. Takes some milliseconds per
    /// device. Retires devices whose bytes differ from the CPU's.
    pub fn calibrate(&self) -> Calibration {
        let mut measured = Calibration::default();
        for (name, index, bytes) in self.places() {
            for (small, large) in self.samples(bytes / SMALLER).into_iter().zip(self.samples(bytes)) {
                let times = (self.measure(&small, index), self.measure(&large, index));
                if let (Some(t0), Some(t1)) = times {
                    let line = Cost::through((small.input_bytes(), t0), (large.input_bytes(), t1));
                    measured.set(&name, small.primitive(), line);
                }
            }
        }
        self.set_calibration(measured.clone());
        measured
    }

    /// Runs only the known-answer test: every primitive, small, on every device. Retires devices whose bytes differ.
    pub(super) fn test_devices(&self) {
        for (_, index, bytes) in self.places().into_iter().filter(|(_, index, _)| index.is_some()) {
            for sample in self.samples(bytes / SMALLER) {
                let _ = self.measure(&sample, index);
            }
        }
    }

    /// Whether `calibration` covers everything that [`Runtime::calibrate`] measures on the CPU.
    pub(super) fn is_covered_by(&self, calibration: &Calibration) -> bool {
        self.samples(CPU_BYTES).iter().all(|sample| calibration.cost(CPU, sample.primitive()).is_some())
    }

    fn samples(&self, bytes: usize) -> Vec<Arc<dyn Operation>> {
        (self.options.samples)(bytes)
    }

    /// (name, device index or `None` for the CPU, input bytes for the measurement).
    fn places(&self) -> Vec<(String, Option<usize>, usize)> {
        let mut places = vec![(CPU.to_owned(), None, CPU_BYTES)];
        let devices = self.backends.iter().enumerate();
        places.extend(devices.map(|(i, b)| (b.name().to_owned(), Some(i), b.calibration_bytes())));
        places
    }

    /// The quickest of a few runs, as a caller with the data in its own memory sees them: on a device with the copies into
    /// and out of the runtime's buffers, on the CPU without another thread. `None` if the device is not in use.
    fn measure(&self, sample: &Arc<dyn Operation>, index: Option<usize>) -> Option<Duration> {
        let (input, expected) = (self.input_of(sample)?, self.expected(sample)?);
        let mut result = vec![0; expected.len()];
        let mut best = None;
        for _ in 0..TIMES {
            let took = match index {
                None => self.run_on_cpu(sample, &input)?,
                Some(index) => self.run_on_device(sample, &input, index, &mut result, &expected)?,
            };
            best = best.into_iter().chain([took]).min();
        }
        best
    }

    fn run_on_cpu(&self, sample: &Arc<dyn Operation>, input: &[u8]) -> Option<Duration> {
        let mut output = self.buffer(sample.output_bytes()).ok()?;
        let start = Instant::now();
        sample.on_cpu(self.options.isa, input, &mut output).ok()?;
        Some(start.elapsed())
    }

    fn run_on_device(
        &self,
        sample: &Arc<dyn Operation>,
        bytes: &[u8],
        index: usize,
        result: &mut [u8],
        expected: &[u8],
    ) -> Option<Duration> {
        if !self.central.is_alive(index) {
            return None;
        }
        let start = Instant::now();
        let mut input = self.buffer(bytes.len()).ok()?;
        input.copy_from_slice(bytes);
        let done = self.submit(sample.clone(), input, Target::Device(index)).ok()?.wait().ok()?;
        let fitting = result.len().min(done.output.len());
        result[..fitting].copy_from_slice(&done.output[..fitting]);
        let took = start.elapsed();
        if !sample.outputs_equal(&done.output, expected) {
            let device = self.backends[index].name().to_owned();
            self.central.retire(index, Fault::WrongBytes { device, primitive: sample.primitive() });
            return None;
        }
        Some(took)
    }

    fn expected(&self, sample: &Arc<dyn Operation>) -> Option<Buffer> {
        let input = self.input_of(sample)?;
        let mut output = self.buffer(sample.output_bytes()).ok()?;
        sample.on_cpu(self.options.isa, &input, &mut output).ok()?;
        Some(output)
    }

    fn input_of(&self, sample: &Arc<dyn Operation>) -> Option<Buffer> {
        let mut buffer = self.buffer(sample.input_bytes()).ok()?;
        fill_sample(sample.as_ref(), &mut buffer);
        Some(buffer)
    }
}

/// Fills `input`, which has the operation's length, with valid bytes that have no short period.
pub fn fill_sample(sample: &dyn Operation, input: &mut [u8]) {
    assert_eq!(input.len(), sample.input_bytes(), "input of {}", sample.primitive());
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for slot in input.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        slot.copy_from_slice(&state.to_le_bytes()[..slot.len()]);
    }
    sample.make_valid(input);
}

/// A job of each primitive of this crate on about `bytes` of input, always in the same order: the default of
/// [`super::Options::samples`]. Leaves out primitives that cannot be so large.
///
/// One shape stands for all of a primitive. Costs serve only to choose a device, and other shapes change the costs of a
/// device and of the CPU alike.
pub fn samples(bytes: usize) -> Vec<Arc<dyn Operation>> {
    const CHUNKS: usize = 4;
    let lens = [bytes / CHUNKS; CHUNKS];
    let mut samples: Vec<Arc<dyn Operation>> = Vec::new();
    add_sample(&mut samples, HashBatch::names(&lens));
    add_sample(&mut samples, HashBatch::trees(&lens));
    if let Ok(code) = Code::new(4, 2, Matrix::Cauchy1).map(Arc::new) {
        add_sample(&mut samples, Some(Multiply::encode(&code, bytes / 4, 1)));
        add_sample(&mut samples, Multiply::reconstruct(&code, &[1, 2, 3, 5], &[0, 4], bytes / 4, 1));
        add_sample(&mut samples, Multiply::update(&code, 1, bytes / 4, 1));
        add_sample(&mut samples, Verify::new(&Coder::Rs(code), bytes / 6, 1));
    }
    if let Ok(params) = Params::new(4096, 65536) {
        add_sample(&mut samples, FindCandidates::new(&params, 63, bytes));
    }
    // The packet size of the store's own classes, unless `bytes` is too small for a few stripes of it.
    let packet = if bytes < 32 << 10 { 64 } else { 1024 };
    if let Ok(code) = XorCode::new(Technique::Liberation, 3, 2, 3, packet).map(Arc::new) {
        let len = |fragments: usize| bytes / fragments / code.stripe_bytes() * code.stripe_bytes();
        add_sample(&mut samples, XorFragments::encode(&code, len(3), 1));
        add_sample(&mut samples, XorFragments::reconstruct(&code, &[2, 3, 4], &[0, 1], len(3), 1));
        add_sample(&mut samples, XorFragments::update(&code, 1, len(4), 1));
        let fragment = len(5);
        add_sample(&mut samples, Verify::new(&Coder::Xor(code), fragment, 1));
    }
    samples
}

/// Adds a sample job, unless its size leaves nothing to do.
pub fn add_sample(samples: &mut Vec<Arc<dyn Operation>>, sample: Option<impl Operation + 'static>) {
    samples.extend(sample.map(|s| Arc::new(s) as Arc<dyn Operation>));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Calibration measures each primitive of a device exactly once.
    #[test]
    fn each_primitive_has_one_sample() {
        let all = samples(16 << 10);
        let names: BTreeSet<&str> = all.iter().map(|sample| sample.primitive()).collect();
        assert_eq!((names.len(), all.len()), (11, 11), "{names:?}");
        assert!(all.iter().all(|sample| sample.input_bytes() > 12 << 10), "{all:?}");
    }
}
