//! The short measurement behind routing: each primitive, small and large, on the CPU and on every device. It is a
//! known-answer test too: a device whose bytes differ from the CPU's is retired before it does any real work (P10).

use super::operations::{FindCandidates, HashBatch, Multiply};
use super::routing::{CPU, Cost};
use super::{Buffer, Calibration, Fault, Operation, Request, Runtime, Target};
use crate::boundaries::Params;
use crate::erasure::{Code, Matrix};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the CPU calibrates with: a fraction of a millisecond each.
const CPU_BYTES: usize = 1 << 20;
/// A small job is this many times smaller than a large one.
const SMALLER: usize = 16;
/// Measurements of each, of which the quickest counts.
const TIMES: usize = 3;

impl Runtime {
    /// Measures every primitive on the CPU and on every device, for [`Target::Auto`]. Takes some milliseconds a
    /// device. Devices that give other bytes than the CPU are retired.
    pub fn calibrate(&self) -> Calibration {
        let mut measured = Calibration::default();
        for (name, index, bytes) in self.places() {
            for (small, large) in samples(bytes / SMALLER).into_iter().zip(samples(bytes)) {
                let times = (self.measure(&*small, index), self.measure(&*large, index));
                if let (Some(t0), Some(t1)) = times {
                    let line = Cost::through((small.input_bytes(), t0), (large.input_bytes(), t1));
                    measured.set(&name, small.primitive(), line);
                }
            }
        }
        self.set_calibration(measured.clone());
        measured
    }

    /// The known-answer test alone: every primitive, small, on every device. Those that give other bytes are retired.
    pub(super) fn test_devices(&self) {
        for (_, index, bytes) in self.places().into_iter().filter(|(_, index, _)| index.is_some()) {
            for sample in samples(bytes / SMALLER) {
                let _ = self.measure(&*sample, index);
            }
        }
    }

    /// (name, device or the CPU, bytes to measure with).
    fn places(&self) -> Vec<(String, Option<usize>, usize)> {
        let mut places = vec![(CPU.to_owned(), None, CPU_BYTES)];
        let devices = self.backends.iter().enumerate();
        places.extend(devices.map(|(i, b)| (b.name().to_owned(), Some(i), b.calibration_bytes())));
        places
    }

    /// The quickest of a few runs; none if the device is not, or no longer, in use.
    fn measure(&self, sample: &dyn Sample, index: Option<usize>) -> Option<Duration> {
        let target = index.map_or(Target::Cpu, Target::Device);
        let expected = self.expected(sample)?;
        let mut best = None;
        for _ in 0..TIMES {
            if index.is_some_and(|i| !self.central.is_alive(i)) {
                return None;
            }
            let input = self.painted(sample.input_bytes())?;
            let start = Instant::now();
            let done = self.submit(sample.shared(), input, Request { target, deadline: None }).ok()?.wait().ok()?;
            let took = start.elapsed();
            if let Some(index) = index.filter(|_| !sample.equal(&done.output, &expected)) {
                let device = self.backends[index].name().to_owned();
                self.central.retire(index, Fault::WrongBytes { device, primitive: sample.primitive() });
                return None;
            }
            best = best.into_iter().chain([took]).min();
        }
        best
    }

    fn expected(&self, sample: &dyn Sample) -> Option<Buffer> {
        let input = self.painted(sample.input_bytes())?;
        let mut output = self.buffer(sample.output_bytes()).ok()?;
        sample.on_cpu(self.options.isa, &input, &mut output);
        Some(output)
    }

    /// Bytes without a short period.
    fn painted(&self, len: usize) -> Option<Buffer> {
        let mut buffer = self.buffer(len).ok()?;
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for slot in buffer.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            slot.copy_from_slice(&state.to_le_bytes()[..slot.len()]);
        }
        Some(buffer)
    }
}

/// An operation that calibration measures.
trait Sample: Operation {
    fn shared(&self) -> Arc<dyn Operation>;

    /// Whether two outputs mean the same.
    fn equal(&self, a: &[u8], b: &[u8]) -> bool {
        a == b
    }
}

impl Sample for HashBatch {
    fn shared(&self) -> Arc<dyn Operation> {
        Arc::new(self.clone())
    }
}

impl Sample for Multiply {
    fn shared(&self) -> Arc<dyn Operation> {
        Arc::new(self.clone())
    }
}

impl Sample for FindCandidates {
    fn shared(&self) -> Arc<dyn Operation> {
        Arc::new(self.clone())
    }

    fn equal(&self, a: &[u8], b: &[u8]) -> bool {
        let [mut x, mut y] = [Vec::new(), Vec::new()];
        self.read(a, &mut x);
        self.read(b, &mut y);
        x == y
    }
}

/// Every primitive on about `bytes` of input, always in the same order.
fn samples(bytes: usize) -> Vec<Box<dyn Sample>> {
    const CHUNKS: usize = 4;
    let lens = [bytes / CHUNKS; CHUNKS];
    let mut samples: Vec<Box<dyn Sample>> = Vec::new();
    samples.extend(HashBatch::names(&lens).map(|s| Box::new(s) as Box<dyn Sample>));
    samples.extend(HashBatch::trees(&lens).map(|s| Box::new(s) as Box<dyn Sample>));
    if let Ok(code) = Code::new(4, 2, Matrix::Cauchy1) {
        samples.push(Box::new(Multiply::encode(&code, bytes / 4, 1)));
        let rebuilt = Multiply::reconstruct(&code, &[1, 2, 3, 5], &[0, 4], bytes / 4, 1);
        samples.extend(rebuilt.map(|s| Box::new(s) as Box<dyn Sample>));
    }
    if let Ok(params) = Params::new(4096, 65536) {
        samples.extend(FindCandidates::new(&params, 63, bytes).map(|s| Box::new(s) as Box<dyn Sample>));
    }
    samples
}
