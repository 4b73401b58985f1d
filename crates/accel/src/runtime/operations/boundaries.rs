//! Chunk boundary candidates of one slice.
#![allow(unsafe_code)]

use crate::boundaries::{Candidate, Params, WINDOW_BYTES, candidates_on};
use crate::isa::Isa;
use crate::kernels::{BoundaryCandidates, Kernel, Launch};
use crate::runtime::operation::{Addresses, Operation, Sizes};
use crate::runtime::{Buffer, NoMemory};

/// Positions that a block decides: BOUNDARY_TILE words of four positions.
const TILE_POSITIONS: usize = 4096;
/// The densest real data has one candidate in about 150 positions (docs/chunking.md, section 1.4).
const POSITIONS_PER_ENTRY: usize = 128;

/// [`crate::boundaries::candidates`] of `bytes` after `context` bytes.
///
/// Input: the context, then the bytes. Output: a count, then that many entries, each 2 · position + strong; all u32.
#[derive(Debug, Clone)]
pub struct FindCandidates {
    params: Params,
    context: usize,
    bytes: usize,
}

impl FindCandidates {
    /// Maximum bytes of one job.
    pub const MAX_BYTES: usize = (1 << 30) - WINDOW_BYTES;

    /// The search of `bytes` bytes after `context` bytes, of which only the last 63 matter. `None` if there are more
    /// than [`FindCandidates::MAX_BYTES`].
    pub fn new(params: &Params, context: usize, bytes: usize) -> Option<FindCandidates> {
        let context = context.min(WINDOW_BYTES - 1);
        (bytes <= FindCandidates::MAX_BYTES).then_some(FindCandidates { params: *params, context, bytes })
    }

    /// Fills the input.
    pub fn pack(&self, context: &[u8], data: &[u8], input: &mut [u8]) {
        let context = &context[context.len().saturating_sub(self.context)..];
        input[..self.context].copy_from_slice(context);
        input[self.context..self.context + self.bytes].copy_from_slice(data);
    }

    /// Reads the output.
    pub fn read(&self, output: &[u8], found: &mut Vec<Candidate>) {
        let count = words(output).next().unwrap_or(0) as usize;
        assert!(4 + 4 * count <= output.len(), "{count} entries in {} bytes", output.len());
        let entries = words(output).skip(1).take(count);
        found.extend(entries.map(|e| Candidate { position: (e / 2) as usize, strong: e % 2 == 1 }));
    }

    fn capacity(&self) -> usize {
        self.bytes / POSITIONS_PER_ENTRY + 64
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for FindCandidates {
    fn primitive(&self) -> &'static str {
        "candidates"
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: self.context + self.bytes, output: 4 + 4 * self.capacity(), cleared: 4, ..Sizes::default() }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        let (context, data) = input.split_at(self.context);
        let mut found = Vec::new();
        candidates_on(isa, &self.params, context, data, &mut found);
        output.resize(4 + 4 * found.len().max(self.capacity()))?;
        output[..4].copy_from_slice(&(found.len() as u32).to_ne_bytes());
        for (slot, c) in output[4..].chunks_exact_mut(4).zip(&found) {
            slot.copy_from_slice(&(2 * c.position as u32 + u32::from(c.strong)).to_ne_bytes());
        }
        Ok(())
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let bytes = self.context + self.bytes;
        if bytes < WINDOW_BYTES {
            return Vec::new();
        }
        let argument = BoundaryCandidates {
            data: at.input,
            found: at.result,
            any_below: self.params.any_below,
            strong_below: self.params.strong_below,
            bytes: bytes as u32,
            context: self.context as u32,
            capacity: self.capacity() as u32,
            above: i32::from(self.params.above),
        };
        let kernel = Kernel::BoundaryCandidates;
        let threads = bytes.div_ceil(TILE_POSITIONS) * kernel.threads() as usize;
        Launch::new(kernel, threads, 1, argument.to_bytes()).into_iter().collect()
    }

    /// Compares the count and the entries; the bytes after them are arbitrary.
    fn outputs_equal(&self, a: &[u8], b: &[u8]) -> bool {
        let [mut x, mut y] = [Vec::new(), Vec::new()];
        self.read(a, &mut x);
        self.read(b, &mut y);
        x == y
    }

    /// Entries come in any order. Data where nearly every survivor of the prefilter is a candidate can have more
    /// entries than the output has room for.
    fn finish(&self, output: &mut [u8]) -> bool {
        let count = words(output).next().unwrap_or(0) as usize;
        if count > self.capacity() {
            return false;
        }
        let mut entries: Vec<u32> = words(output).skip(1).take(count).collect();
        entries.sort_unstable();
        for (slot, entry) in output[4..].chunks_exact_mut(4).zip(entries) {
            slot.copy_from_slice(&entry.to_ne_bytes());
        }
        true
    }
}
