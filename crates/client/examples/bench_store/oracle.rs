//! A device of infinite compute: it knows boundaries and digests in advance and answers at once, as the oracle of
//! MosaStore's evaluation does (Al-Kiswany, Gharaibeh, Ripeanu: section 4.4 of the paper). What a write costs on it is
//! what is left when naming chunks is free; all else is the CPU's.
//!
//! It is told about one buffer, by address: the bytes that are written next. Nobody but this benchmark can have it.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use tessera_accel::boundaries::{Candidate, Params};
use tessera_accel::device::{Usage, Work};
use tessera_accel::{Coder, CoderError, Cpu, Device, EncodeJob, Hash, ReconstructJob, Tree, UpdateJob, VerifyJob};

/// See the module; clones share what is known.
#[derive(Clone, Default)]
pub struct Oracle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    cpu: Cpu,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// Where the buffer begins.
    address: usize,
    params: Option<Params>,
    candidates: Vec<Candidate>,
    /// By address and length.
    trees: HashMap<(usize, usize), Tree>,
}

impl Oracle {
    /// Learns all there is to know of a buffer that is cut at `ends`; `params`: of a content-defined rule.
    pub fn foresee(&self, buffer: &[u8], params: Option<Params>, ends: &[u64]) {
        let mut known = Known { address: buffer.as_ptr() as usize, params, ..Known::default() };
        if let Some(params) = &params {
            self.0.cpu.candidates(params, &[], buffer, &mut known.candidates);
        }
        let mut from = 0;
        for end in ends {
            let chunk = &buffer[from..*end as usize];
            let tree = self.0.cpu.tree(&[chunk]).pop().expect("one for one");
            known.trees.insert((chunk.as_ptr() as usize, chunk.len()), tree);
            from = *end as usize;
        }
        *self.0.known.write().expect("nobody panics") = known;
    }

    /// Bytes that were searched and hashed after all: nothing of them was known.
    pub fn computed_bytes(&self) -> u64 {
        let usage = self.0.cpu.usage();
        usage.of("candidates").bytes + usage.of("tree").bytes
    }
}

impl Device for Oracle {
    fn name(&self) -> &str {
        "oracle"
    }

    fn tree(&self, chunks: &[&[u8]]) -> Vec<Tree> {
        let known = self.0.known.read().expect("nobody panics");
        let find = |chunk: &&[u8]| known.trees.get(&(chunk.as_ptr() as usize, chunk.len())).cloned();
        chunks.iter().map(|chunk| find(chunk).unwrap_or_else(|| self.0.cpu.tree(&[chunk]).remove(0))).collect()
    }

    fn takes(&self, primitive: &str, _bytes: usize) -> bool {
        primitive == "candidates"
    }

    fn candidates(&self, params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>) {
        let known = self.0.known.read().expect("nobody panics");
        let from = (data.as_ptr() as usize).wrapping_sub(known.address);
        if known.params != Some(*params) || from > isize::MAX as usize {
            return self.0.cpu.candidates(params, context, data, out);
        }
        // Those that end a chunk with a byte of this slice.
        let upto = |end: usize| known.candidates.partition_point(|c| c.position <= end);
        let here = &known.candidates[upto(from)..upto(from + data.len())];
        out.extend(here.iter().map(|c| Candidate { position: c.position - from, ..*c }));
    }

    fn hash(&self, chunks: &[&[u8]]) -> Vec<Hash> {
        self.0.cpu.hash(chunks)
    }

    fn hash_parts(&self, parts: &[&[u8]]) -> Hash {
        self.0.cpu.hash_parts(parts)
    }

    fn crc32c(&self, buffers: &[&[u8]]) -> Vec<u32> {
        self.0.cpu.crc32c(buffers)
    }

    fn encode(&self, coder: &Coder, jobs: &mut [EncodeJob<'_>]) -> Result<(), CoderError> {
        self.0.cpu.encode(coder, jobs)
    }

    fn reconstruct(&self, coder: &Coder, jobs: &mut [ReconstructJob<'_>]) -> Result<(), CoderError> {
        self.0.cpu.reconstruct(coder, jobs)
    }

    fn update(&self, coder: &Coder, jobs: &mut [UpdateJob<'_>]) -> Result<(), CoderError> {
        self.0.cpu.update(coder, jobs)
    }

    fn verify(&self, coder: &Coder, jobs: &[VerifyJob<'_>]) -> Result<Vec<Vec<usize>>, CoderError> {
        self.0.cpu.verify(coder, jobs)
    }

    fn note(&self, primitive: &str, work: Work) {
        self.0.cpu.note(primitive, work);
    }

    fn usage_by_device(&self) -> Vec<(String, Usage)> {
        self.0.cpu.usage_by_device()
    }
}
