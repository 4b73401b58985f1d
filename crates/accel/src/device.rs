//! The [`Device`] interface that upper crates call, and the [`Cpu`] behind it.
//!
//! Calls are synchronous and run on the caller's thread; a caller that wants two cores calls from two threads.
//! Primitives take batches, because a GPU's latency pays off only for many buffers at once. All devices give equal
//! bytes (P10). [`crate::Accelerated`] puts GPUs behind the same trait. A device that fails hands its jobs to [`Cpu`],
//! so no method here fails because of a device.

use crate::boundaries::{self, Candidate, Params};
use crate::checksum;
use crate::coder::Coder;
use crate::erasure::CoderError;
use crate::hash::{self, Hash, Tree};
use crate::isa::Isa;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// One chunk to encode: arguments of [`crate::erasure::Code::encode`].
#[derive(Debug)]
pub struct EncodeJob<'a> {
    /// The k data slices, each at most `frag_len` bytes.
    pub data: Vec<&'a [u8]>,
    /// Bytes in a fragment.
    pub frag_len: usize,
    /// Buffers for the m parity fragments, each exactly `frag_len` bytes.
    pub parity: Vec<&'a mut [u8]>,
}

/// One chunk to rebuild fragments of: arguments of [`crate::erasure::Code::reconstruct`].
#[derive(Debug)]
pub struct ReconstructJob<'a> {
    /// Bytes in a fragment.
    pub frag_len: usize,
    /// Present fragments: number and bytes.
    pub present: Vec<(usize, &'a [u8])>,
    /// Numbers of the fragments to rebuild.
    pub wanted: Vec<usize>,
    /// Buffers for them, in the same order.
    pub out: Vec<&'a mut [u8]>,
}

/// One chunk whose parity is updated after a data fragment changed: arguments of [`crate::erasure::Code::update_on`].
#[derive(Debug)]
pub struct UpdateJob<'a> {
    /// Number of the data fragment.
    pub index: usize,
    /// Its old bytes, or any range of them.
    pub old: &'a [u8],
    /// The new bytes of the same range.
    pub new: &'a [u8],
    /// The same range of the m parity fragments: the old parity, replaced by the new.
    pub parity: Vec<&'a mut [u8]>,
}

/// One chunk whose parity is checked: arguments of [`crate::erasure::Code::verify_on`].
#[derive(Debug)]
pub struct VerifyJob<'a> {
    /// The k data slices, each at most `frag_len` bytes.
    pub data: Vec<&'a [u8]>,
    /// Bytes in a fragment.
    pub frag_len: usize,
    /// The m parity fragments.
    pub parity: Vec<&'a [u8]>,
}

impl UpdateJob<'_> {
    /// Bytes that the job reads.
    fn bytes(&self) -> usize {
        self.old.len() + self.new.len() + self.parity.iter().map(|p| p.len()).sum::<usize>()
    }
}

/// A processor of bytes.
pub trait Device: Send + Sync {
    /// The name in `status`: `cpu (avx2)`, `cuda:0 + cpu (avx2)`.
    fn name(&self) -> &str;

    /// Names of chunks.
    fn hash(&self, chunks: &[&[u8]]) -> Vec<Hash>;

    /// Name of the chunk that these parts form in this order.
    fn hash_parts(&self, parts: &[&[u8]]) -> Hash;

    /// Names and group hashes of chunks.
    fn tree(&self, chunks: &[&[u8]]) -> Vec<Tree>;

    /// CRC-32C of buffers.
    fn crc32c(&self, buffers: &[&[u8]]) -> Vec<u32>;

    /// Computes the parity of chunks. Jobs before a refused one are done.
    ///
    /// # Errors
    /// The first invalid job's error; the same holds for the next three methods.
    fn encode(&self, coder: &Coder, jobs: &mut [EncodeJob<'_>]) -> Result<(), CoderError>;

    /// Rebuilds lost fragments of chunks. Jobs before a refused one are done.
    ///
    /// # Errors
    /// See [`Device::encode`].
    fn reconstruct(&self, coder: &Coder, jobs: &mut [ReconstructJob<'_>]) -> Result<(), CoderError>;

    /// Updates parity after changes of data fragments. Jobs before a refused one are done.
    ///
    /// # Errors
    /// See [`Device::encode`].
    fn update(&self, coder: &Coder, jobs: &mut [UpdateJob<'_>]) -> Result<(), CoderError>;

    /// For each job, the parity fragments (0..m) that differ from what its data gives.
    ///
    /// # Errors
    /// See [`Device::encode`].
    fn verify(&self, coder: &Coder, jobs: &[VerifyJob<'_>]) -> Result<Vec<Vec<usize>>, CoderError>;

    /// Chunk boundary candidates of one slice; see [`boundaries::candidates`].
    fn candidates(&self, params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>);

    /// Whether a call of `primitive` with `bytes` bytes leaves the caller's thread. If not, a caller that works on
    /// small pieces in the cache calls this crate's functions directly and reports the work with [`Device::note`].
    fn takes(&self, primitive: &str, bytes: usize) -> bool;

    /// Counts work that a caller did directly on the CPU.
    fn note(&self, primitive: &str, work: Work);

    /// Work done since this device was made, by each device that took part; the CPU is the last.
    fn usage_by_device(&self) -> Vec<(String, Usage)>;

    /// The same work of all devices together.
    fn usage(&self) -> Usage {
        let mut all = Usage(Vec::new());
        let each = self.usage_by_device().into_iter().flat_map(|(_, usage)| usage.0);
        each.for_each(|(name, work)| all.add(name, work));
        all
    }
}

static DEVICE: OnceLock<Box<dyn Device>> = OnceLock::new();

/// The device that upper crates use: the one of [`set_device`], or the CPU.
pub fn device() -> &'static dyn Device {
    DEVICE.get_or_init(|| Box::new(Cpu::new())).as_ref()
}

/// Work of this process's devices since it started: (device, primitive, work), without zeros.
pub fn work_done() -> Vec<(String, &'static str, Work)> {
    let of =
        |(device, usage): (String, Usage)| usage.0.into_iter().map(move |(name, work)| (device.clone(), name, work));
    device().usage_by_device().into_iter().flat_map(of).filter(|(_, _, work)| work.jobs > 0).collect()
}

/// Sets, once and before the first call of [`device`], the device that upper crates use. False if it is too late.
pub fn set_device(device: Box<dyn Device>) -> bool {
    DEVICE.set(device).is_ok()
}

/// Work done by one primitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Buffers or chunks.
    pub jobs: u64,
    /// Input bytes.
    pub bytes: u64,
}

/// Work done by a device, per primitive, in a fixed order: (name, work).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage(pub Vec<(&'static str, Work)>);

impl Usage {
    /// Work done by the primitive called `name`; zero if there is no such primitive.
    pub fn of(&self, name: &str) -> Work {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, work)| *work).unwrap_or_default()
    }

    /// Adds work of the primitive called `name`.
    pub(crate) fn add(&mut self, name: &'static str, work: Work) {
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, sum)) => *sum = Work { jobs: sum.jobs + work.jobs, bytes: sum.bytes + work.bytes },
            None => self.0.push((name, work)),
        }
    }
}

/// The CPU that this process runs on.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    name: String,
    counters: [Counter; PRIMITIVES.len()],
}

const PRIMITIVES: [&str; 8] = ["hash", "tree", "crc32c", "encode", "reconstruct", "update", "verify", "candidates"];

#[derive(Debug, Default)]
struct Counter {
    jobs: AtomicU64,
    bytes: AtomicU64,
}

impl Cpu {
    /// The CPU with the best instruction set it has.
    pub fn new() -> Cpu {
        Cpu::with(Isa::best())
    }

    /// The CPU restricted to the reference implementations, which other devices are compared with.
    pub fn reference() -> Cpu {
        Cpu::with(Isa::REFERENCE)
    }

    /// The CPU with one of [`Isa::supported`].
    pub fn with(isa: Isa) -> Cpu {
        Cpu { isa, name: format!("cpu ({})", isa.name()), counters: Default::default() }
    }

    fn count(&self, primitive: &str, jobs: usize, bytes: usize) {
        self.note(primitive, Work { jobs: jobs as u64, bytes: bytes as u64 });
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::new()
    }
}

impl Device for Cpu {
    fn name(&self) -> &str {
        &self.name
    }

    fn hash(&self, chunks: &[&[u8]]) -> Vec<Hash> {
        self.count("hash", chunks.len(), total(chunks));
        hash::batch_on(self.isa, chunks)
    }

    fn hash_parts(&self, parts: &[&[u8]]) -> Hash {
        self.count("hash", 1, total(parts));
        hash::chunk_hash_parts(parts.iter().copied())
    }

    fn tree(&self, chunks: &[&[u8]]) -> Vec<Tree> {
        self.count("tree", chunks.len(), total(chunks));
        chunks.iter().map(|chunk| hash::tree_on(self.isa, chunk)).collect()
    }

    fn crc32c(&self, buffers: &[&[u8]]) -> Vec<u32> {
        self.count("crc32c", buffers.len(), total(buffers));
        buffers.iter().map(|b| checksum::crc32c(b)).collect()
    }

    fn encode(&self, coder: &Coder, jobs: &mut [EncodeJob<'_>]) -> Result<(), CoderError> {
        for job in jobs {
            coder.encode_on(self.isa, &job.data, job.frag_len, &mut job.parity)?;
            self.count("encode", 1, total(&job.data));
        }
        Ok(())
    }

    fn reconstruct(&self, coder: &Coder, jobs: &mut [ReconstructJob<'_>]) -> Result<(), CoderError> {
        for job in jobs {
            coder.reconstruct_on(self.isa, job)?;
            self.count("reconstruct", 1, job.present.iter().map(|(_, bytes)| bytes.len()).sum());
        }
        Ok(())
    }

    fn update(&self, coder: &Coder, jobs: &mut [UpdateJob<'_>]) -> Result<(), CoderError> {
        for job in jobs {
            coder.update_on(self.isa, job)?;
            self.count("update", 1, job.bytes());
        }
        Ok(())
    }

    fn verify(&self, coder: &Coder, jobs: &[VerifyJob<'_>]) -> Result<Vec<Vec<usize>>, CoderError> {
        let check = |job: &VerifyJob<'_>| {
            let wrong = coder.verify_on(self.isa, job)?;
            self.count("verify", 1, total(&job.data) + total(&job.parity));
            Ok(wrong)
        };
        jobs.iter().map(check).collect()
    }

    fn candidates(&self, params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>) {
        self.count("candidates", 1, data.len());
        boundaries::candidates_on(self.isa, params, context, data, out);
    }

    fn takes(&self, _primitive: &str, _bytes: usize) -> bool {
        false
    }

    fn note(&self, primitive: &str, work: Work) {
        // Statistics alone: they order nothing.
        if let Some(i) = PRIMITIVES.iter().position(|p| *p == primitive) {
            self.counters[i].jobs.fetch_add(work.jobs, Ordering::Relaxed);
            self.counters[i].bytes.fetch_add(work.bytes, Ordering::Relaxed);
        }
    }

    fn usage_by_device(&self) -> Vec<(String, Usage)> {
        let load = |c: &Counter| Work { jobs: c.jobs.load(Ordering::Relaxed), bytes: c.bytes.load(Ordering::Relaxed) };
        let usage = PRIMITIVES.into_iter().zip(&self.counters).map(|(name, counter)| (name, load(counter)));
        vec![(self.name.clone(), Usage(usage.collect()))]
    }
}

fn total(buffers: &[&[u8]]) -> usize {
    buffers.iter().map(|b| b.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::erasure::{Code, Matrix};
    use crate::testing::test_bytes;

    #[test]
    fn every_instruction_set_gives_the_reference_bytes_through_the_device() {
        let chunk = test_bytes(7, 300_000);
        let code = Coder::from(Code::new(4, 2, Matrix::Cauchy1).unwrap());
        let params = Params::new(4096, 65536).unwrap();
        let run = |cpu: Cpu| {
            let data: Vec<&[u8]> = (0..4).map(|i| crate::erasure::data_slice(&chunk, 4, i)).collect();
            let frag_len = crate::erasure::fragment_len(chunk.len(), 4);
            let mut parity = vec![vec![1u8; frag_len]; 2];
            let room = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
            cpu.encode(&code, &mut [EncodeJob { data: data.clone(), frag_len, parity: room }]).unwrap();
            let mut rebuilt = vec![9u8; frag_len];
            let present = vec![(1, data[1]), (2, data[2]), (3, data[3]), (5, &parity[1][..])];
            let job = ReconstructJob { frag_len, present, wanted: vec![0], out: vec![&mut rebuilt] };
            cpu.reconstruct(&code, &mut [job]).unwrap();
            assert_eq!(rebuilt, data[0]);
            let mut found = Vec::new();
            cpu.candidates(&params, &[], &chunk, &mut found);
            assert!(!found.is_empty());
            assert_eq!(cpu.usage().of("encode"), Work { jobs: 1, bytes: 300_000 });
            assert_eq!(cpu.usage().of("candidates"), Work { jobs: 1, bytes: 300_000 });
            (parity, found, cpu.hash(&[&chunk, b""]), cpu.tree(&[&chunk]), cpu.crc32c(&[&chunk]))
        };
        let expected = run(Cpu::reference());
        for isa in Isa::supported() {
            assert_eq!(run(Cpu::with(isa)), expected, "{isa:?}");
        }
    }
}
