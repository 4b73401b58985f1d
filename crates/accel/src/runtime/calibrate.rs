//! The short measurement behind routing: each primitive, small and large, on the CPU and on every device. It is a
//! known-answer test too: a device whose bytes differ from the CPU's is retired before it does any real work (P10).

use super::operations::{
    AskBloom, DigestBatch, FindCandidates, FindInLevels, HashBatch, HashWindows, Multiply, Segmented, Verify,
    XorFragments,
};
use super::routing::{CPU, Cost};
use super::{Buffer, Calibration, Fault, Operation, Request, Runtime, Target};
use crate::boundaries::Params;
use crate::digest::{Function, SEGMENT_BYTES};
use crate::erasure::{Code, Matrix};
use crate::windows::Windows;
use crate::xorcode::{Technique, XorCode};
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
            for (small, large) in shapes(bytes / SMALLER).into_iter().zip(shapes(bytes)) {
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
            for sample in shapes(bytes / SMALLER) {
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
    fn measure(&self, sample: &dyn Shape, index: Option<usize>) -> Option<Duration> {
        let target = index.map_or(Target::Cpu, Target::Device);
        let expected = self.expected(sample)?;
        let mut best = None;
        for _ in 0..TIMES {
            if index.is_some_and(|i| !self.central.is_alive(i)) {
                return None;
            }
            let input = self.painted(sample)?;
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

    fn expected(&self, sample: &dyn Shape) -> Option<Buffer> {
        let input = self.painted(sample)?;
        let mut output = self.buffer(sample.output_bytes()).ok()?;
        sample.on_cpu(self.options.isa, &input, &mut output).ok()?;
        Some(output)
    }

    fn painted(&self, sample: &dyn Shape) -> Option<Buffer> {
        let mut buffer = self.buffer(sample.input_bytes()).ok()?;
        paint(sample, &mut buffer);
        Some(buffer)
    }
}

/// Makes `input` one that the operation may be given, of bytes without a short period.
fn paint(shape: &dyn Shape, input: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for slot in input.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        slot.copy_from_slice(&state.to_le_bytes()[..slot.len()]);
    }
    shape.fill(input);
}

/// An operation that calibration measures.
trait Shape: Operation {
    fn shared(&self) -> Arc<dyn Operation>;

    /// Makes painted bytes an input that the operation may be given.
    fn fill(&self, _painted: &mut [u8]) {}

    /// Whether two outputs mean the same.
    fn equal(&self, a: &[u8], b: &[u8]) -> bool {
        a == b
    }
}

/// Operations that take any bytes, and have one output.
macro_rules! plain_samples {
    ($($operation:ty),*) => {$(
        impl Shape for $operation {
            fn shared(&self) -> Arc<dyn Operation> {
                Arc::new(self.clone())
            }
        }
    )*};
}

plain_samples!(HashBatch, Multiply, XorFragments, DigestBatch, Segmented, HashWindows, AskBloom, Verify);

impl Shape for FindCandidates {
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

impl Shape for FindInLevels {
    fn shared(&self) -> Arc<dyn Operation> {
        Arc::new(self.clone())
    }

    /// As many rising keys as queries, of which about half are found.
    fn fill(&self, painted: &mut [u8]) {
        let keys = (painted.len() / 16) as u64;
        for (i, slot) in (0..).zip(painted.chunks_exact_mut(8)) {
            let random = u64::from_ne_bytes([slot[0], slot[1], slot[2], slot[3], slot[4], slot[5], slot[6], slot[7]]);
            let key = if i < keys { 2 * i } else { random % (2 * keys) };
            slot.copy_from_slice(&key.to_ne_bytes());
        }
    }
}

/// A job of one primitive that stands for all of them.
#[derive(Debug)]
pub struct Sample {
    /// The job.
    pub operation: Arc<dyn Operation>,
    shape: Box<dyn Shape>,
}

impl Sample {
    /// Makes `input`, which has the operation's length, one that says something about its cost: keys rise, half of the
    /// queries are found, bytes have no short period.
    pub fn paint(&self, input: &mut [u8]) {
        paint(self.shape.as_ref(), input);
    }
}

/// A job of each primitive on about `bytes` of input, always in the same order: what [`Runtime::calibrate`] measures,
/// and whoever else measures them all. Those that cannot be so large are left out.
pub fn samples(bytes: usize) -> Vec<Sample> {
    shapes(bytes).into_iter().map(|shape| Sample { operation: shape.shared(), shape }).collect()
}

/// One shape stands for all of a primitive: costs are for choosing, and a device and the CPU share what shapes change.
fn shapes(bytes: usize) -> Vec<Box<dyn Shape>> {
    const CHUNKS: usize = 4;
    let lens = [bytes / CHUNKS; CHUNKS];
    let mut samples: Vec<Box<dyn Shape>> = Vec::new();
    add(&mut samples, HashBatch::names(&lens));
    add(&mut samples, HashBatch::trees(&lens));
    if let Ok(code) = Code::new(4, 2, Matrix::Cauchy1).map(Arc::new) {
        add(&mut samples, Some(Multiply::encode(&code, bytes / 4, 1)));
        add(&mut samples, Multiply::reconstruct(&code, &[1, 2, 3, 5], &[0, 4], bytes / 4, 1));
        add(&mut samples, Multiply::update(&code, 1, bytes / 4, 1));
        add(&mut samples, Some(Verify::rs(&code, bytes / 6, 1)));
    }
    if let Ok(params) = Params::new(4096, 65536) {
        add(&mut samples, FindCandidates::new(&params, 63, bytes));
    }
    // The packets of the store's own classes, unless there is too little for a few stripes of them.
    let packet = if bytes < 32 << 10 { 64 } else { 1024 };
    if let Ok(code) = XorCode::new(Technique::Liberation, 3, 2, 3, packet).map(Arc::new) {
        let len = |fragments: usize| bytes / fragments / code.stripe_bytes() * code.stripe_bytes();
        add(&mut samples, XorFragments::encode(&code, len(3), 1));
        add(&mut samples, XorFragments::reconstruct(&code, &[2, 3, 4], &[0, 1], len(3), 1));
        add(&mut samples, XorFragments::update(&code, 1, len(4), 1));
        add(&mut samples, Verify::xor(&code, len(5), 1));
    }
    let message = (bytes / 16).clamp(64, SEGMENT_BYTES);
    for function in [Function::Md5, Function::Sha1, Function::Sha256] {
        add(&mut samples, DigestBatch::new(function, &vec![message; bytes / message]));
    }
    add(&mut samples, Segmented::new(Function::Sha1, bytes, message));
    let windows = Windows::new(Function::Md5, 20, 20, 8);
    add(&mut samples, windows.ok().and_then(|windows| HashWindows::new(windows, bytes)));
    let words = bytes / 16;
    add(&mut samples, FindInLevels::new(&[words / 2, words - words / 2], words));
    add(&mut samples, AskBloom::new((bytes / 64).max(1), words));
    samples
}

fn add(samples: &mut Vec<Box<dyn Shape>>, sample: Option<impl Shape + 'static>) {
    samples.extend(sample.map(|s| Box::new(s) as Box<dyn Shape>));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::{Levels, Sorted};
    use std::collections::BTreeSet;

    /// Nothing that a device does is left out of calibration, nor measured twice.
    #[test]
    fn each_primitive_has_one_sample_and_look_ups_find_half() {
        let all = samples(16 << 10);
        let names: BTreeSet<&str> = all.iter().map(|sample| sample.operation.primitive()).collect();
        assert_eq!((names.len(), all.len()), (18, 18), "{names:?}");
        assert!(all.iter().all(|sample| sample.operation.input_bytes() > 12 << 10), "{all:?}");

        let sample = all.iter().find(|sample| sample.operation.primitive() == "lookup").unwrap();
        let mut input = vec![0; sample.operation.input_bytes()];
        sample.paint(&mut input);
        let words: Vec<u64> = input.chunks(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).collect();
        let (keys, queries) = words.split_at(words.len() / 2);
        let found = Levels::new(vec![Sorted::new(keys).unwrap()]).unwrap().find(queries);
        let found = found.iter().flatten().count();
        assert!((queries.len() / 3..queries.len() * 2 / 3).contains(&found), "{found} of {}", queries.len());
    }
}
