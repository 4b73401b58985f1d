//! Devices with kernels behind the [`Device`] interface. Batches that are large enough become jobs of a [`Runtime`];
//! the CPU does the rest on the caller's thread.
//!
//! No call fails because of a device: if a device fails, or the call is invalid, the CPU does the work, with the same
//! bytes (P10) or its typed error (P14).

mod coding;

use crate::boundaries::{Candidate, Params};
use crate::coder::Coder;
use crate::device::{Cpu, Device, EncodeJob, ReconstructJob, UpdateJob, Usage, VerifyJob, Work};
use crate::erasure::CoderError;
use crate::hash::{Hash, Tree};
use crate::runtime::operations::{FindCandidates, HashBatch};
use crate::runtime::{Buffer, Job, JobError, JobOutput, Operation, Runtime, SubmitError, Target};
use std::ops::Range;
use std::sync::Arc;

/// Input bytes of one job. Large batches are split, so that one job's transfers overlap another's kernels.
const JOB_BYTES: usize = 16 << 20;

/// Why an operation gave no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The job was refused.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The job ended without a result.
    #[error(transparent)]
    Job(#[from] JobError),
}

/// A runtime's devices and the CPU as one [`Device`].
#[derive(Debug)]
pub struct Accelerated {
    runtime: Runtime,
    target: Target,
    cpu: Cpu,
    name: String,
    job_bytes: usize,
}

impl Accelerated {
    /// Jobs go to `target`; for [`Target::Auto`] the runtime's calibration decides for each batch.
    pub fn new(runtime: Runtime, target: Target, cpu: Cpu) -> Accelerated {
        let names: Vec<String> = runtime.devices().iter().map(|d| d.name.to_string()).collect();
        let name = [names, vec![cpu.name().to_owned()]].concat().join(" + ");
        Accelerated { runtime, target, cpu, name, job_bytes: JOB_BYTES }
    }

    /// Sets smaller jobs, so that tests get several jobs from little data.
    #[cfg(test)]
    pub(crate) fn with_job_bytes(self, job_bytes: usize) -> Accelerated {
        Accelerated { job_bytes, ..self }
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs any operation where this device's jobs go, and waits for it. `fill` writes its input.
    ///
    /// # Errors
    /// The job was refused, or ended without a result.
    pub fn run(
        &self,
        operation: &(impl Operation + Clone + 'static),
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<JobOutput, RunError> {
        let mut input = self.runtime.buffer(operation.input_bytes()).map_err(JobError::NoMemory)?;
        fill(&mut input);
        Ok(self.start(operation, input)?.wait()?)
    }

    /// [`Accelerated::run`] without waiting, with an input that is ready in a buffer of the runtime.
    ///
    /// # Errors
    /// The job was refused.
    pub fn start(&self, operation: &(impl Operation + Clone + 'static), input: Buffer) -> Result<Job, RunError> {
        Ok(self.runtime.submit(Arc::new(operation.clone()), input, self.target)?)
    }

    /// Whether a batch goes to a device.
    fn is_for_device(&self, primitive: &str, bytes: usize) -> bool {
        let somewhere = || self.runtime.devices().iter().any(|d| d.retired.is_none());
        match self.target {
            Target::Cpu => false,
            Target::Auto => self.runtime.explain(primitive, bytes).on_device,
            Target::AnyDevice | Target::Device(_) => bytes > 0 && somewhere(),
        }
    }

    /// Submits an operation whose input `fill` writes.
    fn submit(&self, operation: Arc<dyn Operation>, fill: impl FnOnce(&mut [u8])) -> Option<Job> {
        let mut input = self.runtime.buffer(operation.input_bytes()).ok()?;
        fill(&mut input);
        // The decision for the batch holds: `auto` would decide again, for the size of a part.
        let target = if self.target == Target::Auto { Target::AnyDevice } else { self.target };
        self.runtime.submit(operation, input, target).ok()
    }

    /// Hashes on devices, if they take `primitive` on so many bytes, in jobs of about [`JOB_BYTES`]; `read` reads a job's
    /// results.
    fn hash_on_devices<T>(
        &self,
        primitive: &str,
        chunks: &[&[u8]],
        make: impl Fn(&[usize]) -> Option<HashBatch>,
        read: impl Fn(&HashBatch, &[u8]) -> Vec<T>,
    ) -> Option<Vec<T>> {
        let lens: Vec<usize> = chunks.iter().map(|c| c.len()).collect();
        if !self.is_for_device(primitive, lens.iter().sum()) {
            return None;
        }
        let mut jobs = Vec::new();
        for range in parts(&lens, self.job_bytes) {
            let operation = Arc::new(make(&lens[range.clone()])?);
            let pack = |input: &mut [u8]| {
                chunks[range.clone()].iter().enumerate().for_each(|(i, chunk)| operation.pack(i, chunk, input));
            };
            jobs.push((self.submit(operation.clone(), pack)?, operation));
        }
        let mut results = Vec::with_capacity(chunks.len());
        for (job, operation) in jobs {
            results.extend(read(&operation, &job.wait().ok()?.output));
        }
        Some(results)
    }

    fn candidates_on_device(
        &self,
        params: &Params,
        context: &[u8],
        data: &[u8],
    ) -> Option<(Arc<FindCandidates>, JobOutput)> {
        let operation = Arc::new(FindCandidates::new(params, context.len(), data.len())?);
        let job = self.submit(operation.clone(), |input| operation.pack(context, data, input))?;
        Some((operation, job.wait().ok()?))
    }
}

/// Splits a list of sizes into runs of about `job_bytes` each.
fn parts(sizes: &[usize], job_bytes: usize) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0usize);
    for (i, size) in sizes.iter().enumerate() {
        if i > start && bytes.saturating_add(*size) > job_bytes {
            parts.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(*size);
    }
    if start < sizes.len() {
        parts.push(start..sizes.len());
    }
    parts
}

impl Device for Accelerated {
    fn name(&self) -> &str {
        &self.name
    }

    fn hash(&self, chunks: &[&[u8]]) -> Vec<Hash> {
        let done = self.hash_on_devices("hash", chunks, HashBatch::names, HashBatch::read_names);
        done.unwrap_or_else(|| self.cpu.hash(chunks))
    }

    fn hash_parts(&self, parts: &[&[u8]]) -> Hash {
        let bytes = parts.iter().map(|p| p.len()).sum();
        let done = || {
            let operation = Arc::new(HashBatch::names(&[bytes])?);
            let job = self.submit(operation.clone(), |input| {
                let mut room = &mut input[..];
                for part in parts {
                    let (now, later) = room.split_at_mut(part.len());
                    now.copy_from_slice(part);
                    room = later;
                }
                room.fill(0);
            })?;
            operation.read_names(&job.wait().ok()?.output).pop()
        };
        let worth_it = self.is_for_device("hash", bytes);
        worth_it.then(done).flatten().unwrap_or_else(|| self.cpu.hash_parts(parts))
    }

    fn tree(&self, chunks: &[&[u8]]) -> Vec<Tree> {
        let done = self.hash_on_devices("tree", chunks, HashBatch::trees, HashBatch::read_trees);
        done.unwrap_or_else(|| self.cpu.tree(chunks))
    }

    fn crc32c(&self, buffers: &[&[u8]]) -> Vec<u32> {
        self.cpu.crc32c(buffers) // Runs at memory speed on the CPU, so no device would be faster.
    }

    fn encode(&self, coder: &Coder, jobs: &mut [EncodeJob<'_>]) -> Result<(), CoderError> {
        self.encode_jobs(coder, jobs)
    }

    fn reconstruct(&self, coder: &Coder, jobs: &mut [ReconstructJob<'_>]) -> Result<(), CoderError> {
        self.reconstruct_jobs(coder, jobs)
    }

    fn update(&self, coder: &Coder, jobs: &mut [UpdateJob<'_>]) -> Result<(), CoderError> {
        self.update_jobs(coder, jobs)
    }

    fn verify(&self, coder: &Coder, jobs: &[VerifyJob<'_>]) -> Result<Vec<Vec<usize>>, CoderError> {
        self.verify_jobs(coder, jobs)
    }

    fn candidates(&self, params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>) {
        let worth_it = self.is_for_device("candidates", data.len());
        match worth_it.then(|| self.candidates_on_device(params, context, data)).flatten() {
            Some((operation, done)) => operation.read(&done.output, out),
            None => self.cpu.candidates(params, context, data, out),
        }
    }

    fn takes(&self, primitive: &str, bytes: usize) -> bool {
        self.is_for_device(primitive, bytes)
    }

    fn note(&self, primitive: &str, work: Work) {
        self.cpu.note(primitive, work);
    }

    /// For devices counts jobs and packed bytes; for the CPU, chunks and their bytes.
    fn usage_by_device(&self) -> Vec<(String, Usage)> {
        let devices = self.runtime.devices().into_iter();
        let mut all: Vec<_> = devices.map(|d| (d.name.to_string(), Usage(d.done.into_iter().collect()))).collect();
        let mut cpu = self.cpu.usage();
        self.runtime.done_on_cpu().into_iter().for_each(|(name, work)| cpu.add(name, work));
        all.push((self.cpu.name().to_owned(), cpu));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;
    use crate::emulated::Emulated;
    use crate::erasure::{Code, Matrix};
    use crate::runtime::Options;
    use crate::testing::test_bytes;
    use crate::xorcode::{Technique, XorCode};

    fn emulated(count: usize) -> Accelerated {
        let (runtime, target) =
            Spec::Emulated(count).runtime(Options { cpu_threads: 1, ..Options::default() }).unwrap();
        Accelerated::new(runtime, target, Cpu::new())
    }

    /// P10 through the interface that upper crates use: batches with every unusual input a caller may pass.
    #[test]
    fn a_device_behind_the_interface_gives_the_reference_bytes() {
        let (device, cpu) = (emulated(2), Cpu::reference());
        let chunks = [test_bytes(1, 40_000), Vec::new(), test_bytes(2, 1), test_bytes(3, 17_000)];
        let slices: Vec<&[u8]> = chunks.iter().map(|c| c.as_slice()).collect();
        assert_eq!(device.hash(&slices), cpu.hash(&slices));
        assert_eq!(device.tree(&slices), cpu.tree(&slices));
        // Parts of any lengths form one chunk; no parts form the empty chunk.
        for parts in [&[][..], &[&chunks[0][..70], &[], &chunks[0][70..]], &slices] {
            assert_eq!(device.hash_parts(parts), cpu.hash(&[&parts.concat()])[0]);
            assert_eq!(cpu.hash_parts(parts), cpu.hash(&[&parts.concat()])[0]);
        }
        assert_eq!(device.crc32c(&slices), cpu.crc32c(&slices));
        let params = Params::new(4096, 65536).unwrap();
        let [mut found, mut expected] = [Vec::new(), Vec::new()];
        device.candidates(&params, &chunks[0][..70], &chunks[0][70..], &mut found);
        cpu.candidates(&params, &chunks[0][..70], &chunks[0][70..], &mut expected);
        assert_eq!(found, expected);
        assert_eq!(device.usage().of("hash").jobs, 4);
        assert!(
            device
                .usage_by_device()
                .iter()
                .any(|(name, usage)| name.starts_with("emulated") && usage.of("tree").jobs == 1)
        );
    }

    #[test]
    fn codes_behind_the_interface_with_short_slices_and_mixed_jobs() {
        let (device, cpu) = (emulated(1), Cpu::reference());
        let code = Coder::from(Code::new(4, 2, Matrix::Cauchy1).unwrap());
        let bytes = test_bytes(4, 2_000);
        let encode = |device: &dyn Device, third: usize| {
            let mut parity = vec![vec![9u8; 256]; 6];
            let data: [[&[u8]; 4]; 3] = [
                [&bytes[..256], &bytes[1..257], &bytes[..7], &[]],
                [&bytes[256..512], &bytes[..256], &bytes[..256], &bytes[5..200]],
                [&bytes[..third], &bytes[..1], &bytes[..2], &bytes[..3]],
            ];
            let targets = parity.chunks_mut(2);
            let mut jobs: Vec<EncodeJob<'_>> = targets
                .zip(data)
                .map(|(room, data)| EncodeJob {
                    data: data.to_vec(),
                    frag_len: 256,
                    parity: room.iter_mut().map(|p| p.as_mut_slice()).collect(),
                })
                .collect();
            let result = device.encode(&code, &mut jobs);
            (result, parity)
        };
        assert_eq!(encode(&device, 100), encode(&cpu, 100));
        assert!(encode(&device, 100).0.is_ok());
        // The third job is wrong: the first two are done, and the error is the CPU's (P14).
        assert_eq!(encode(&device, 300), encode(&cpu, 300));
        assert!(encode(&device, 300).0.is_err());

        let (_, parity) = encode(&cpu, 100);
        let rebuild = |device: &dyn Device, present: &[usize], wanted: &[usize], room: usize| {
            let all: [&[u8]; 6] = [&bytes[..256], &bytes[1..257], &bytes[..7], &[], &parity[0], &parity[1]];
            let mut out = vec![vec![1u8; room]; wanted.len()];
            let job = ReconstructJob {
                frag_len: 256,
                present: present.iter().map(|i| (*i, all[*i])).collect(),
                wanted: wanted.to_vec(),
                out: out.iter_mut().map(|o| o.as_mut_slice()).collect(),
            };
            let result = device.reconstruct(&code, &mut [job]);
            (result, out)
        };
        for (present, wanted, room) in [
            (&[0, 1, 2, 3][..], &[4, 5][..], 256),
            (&[5, 2, 1, 4], &[3, 0], 256),
            (&[1, 4, 3, 5, 2], &[0], 256),
            (&[1, 2, 3, 5], &[0], 10),
            (&[1, 2, 3, 5], &[0, 1], 256),
            (&[1, 2, 3], &[0], 256),
            (&[1, 2, 3, 3], &[0], 256),
            (&[1, 2, 3, 5], &[4], 10),
            (&[1, 2, 3, 5], &[9], 256),
            (&[1, 2, 3, 5], &[], 256),
        ] {
            assert_eq!(
                rebuild(&device, present, wanted, room),
                rebuild(&cpu, present, wanted, room),
                "{present:?} {wanted:?}"
            );
        }
        assert!(device.usage_by_device()[0].1.of("reconstruct").jobs >= 4);
    }

    /// Work that a device hands over counts for the CPU, also for primitives that only devices name.
    #[test]
    fn work_that_is_handed_over_is_counted_on_the_cpu() {
        let tiny = Emulated::new(0).with_memory(256);
        let runtime = Runtime::new(vec![Arc::new(tiny)], Options { cpu_threads: 1, ..Options::default() }).unwrap();
        let device = Accelerated::new(runtime, Target::AnyDevice, Cpu::new());
        let code = Coder::from(XorCode::new(Technique::Liberation, 2, 2, 3, 8).unwrap());
        let (data, mut p, mut q) = (test_bytes(1, 48), [0; 24], [0; 24]);
        let (data, parity) = (vec![&data[..24], &data[24..]], vec![&mut p[..], &mut q]);
        device.encode(&code, &mut [EncodeJob { data, frag_len: 24, parity }]).unwrap();
        let used = device.usage_by_device();
        let work = |i: usize| used[i].1.of("xor-encode");
        assert_eq!((work(0), work(1)), (Work::default(), Work { jobs: 1, bytes: 48 }), "{used:?}");
    }

    #[test]
    fn large_batches_become_several_jobs() {
        assert_eq!(parts(&[], 64), []);
        assert_eq!(parts(&[128, 1], 64), [0..1, 1..2]);
        assert_eq!(parts(&[1, 64, usize::MAX, 5], 64), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(parts(&[32; 5], 64), [0..2, 2..4, 4..5]);
    }
}
