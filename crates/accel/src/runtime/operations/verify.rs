//! Checks parity against its data, for codes of both families.
#![allow(unsafe_code)]

use super::coding::{Coding, Layout, differences};
use crate::coder::Coder;
use crate::device::VerifyJob;
use crate::isa::Isa;
use crate::kernels::{Kernel, Launch, MarkNonzero};
use crate::runtime::operation::{Addresses, Operation, Sizes, padded};
use crate::runtime::{Buffer, NoMemory};
use std::sync::Arc;

const FLAG_BYTES: usize = 4;
const PIECE_BYTES: usize = 8;

/// Finds the parity fragments of a batch of chunks that differ from what the data gives.
///
/// Input: for each chunk its k data fragments and its m parity fragments, each padded with zeros as in the code's other
/// operations. Output: a word for each parity fragment, 1 where it differs, and zeros up to a multiple of 16. The
/// computed parity stays on the device: a few bytes come back, not m fragments.
#[derive(Debug, Clone)]
pub struct Verify {
    /// Computes expected parity plus actual parity: zero everywhere if they are equal.
    differences: Arc<dyn Coding>,
    layout: Layout,
    coder: Coder,
}

impl Verify {
    /// Checks `chunks` chunks with fragments of `frag_len` bytes. `None` if the code does not support this length.
    pub fn new(coder: &Coder, frag_len: usize, chunks: usize) -> Option<Verify> {
        let differences = differences(coder, frag_len, chunks)?;
        Some(Verify { layout: differences.layout(), differences, coder: coder.clone() })
    }

    /// Copies fragment `number` (0..k+m) to its place in the input; a shorter one counts as zeros beyond its end.
    pub fn pack(&self, chunk: usize, number: usize, bytes: &[u8], input: &mut [u8]) {
        self.layout.pack(chunk, number, bytes, input);
    }

    /// The parity fragments (0..m) of a chunk that differ; empty if none do.
    pub fn read(&self, output: &[u8], chunk: usize) -> Vec<usize> {
        assert_eq!(output.len(), self.output_bytes(), "flags of {} chunks", self.layout.chunks);
        let m = self.coder.m();
        let flag = |row: usize| &output[(chunk * m + row) * FLAG_BYTES..][..FLAG_BYTES];
        (0..m).filter(|row| flag(*row).iter().any(|b| *b != 0)).collect()
    }
}

// SAFETY: its kernels touch only its own memory; the differences' result lies in its scratch memory.
unsafe impl Operation for Verify {
    fn primitive(&self) -> &'static str {
        self.differences.primitive()
    }

    fn sizes(&self) -> Sizes {
        let Sizes { input, output: scratch, .. } = self.differences.sizes();
        let output = padded(self.layout.chunks * self.layout.targets * FLAG_BYTES);
        Sizes { input, output, scratch, cleared: output }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        output.fill(0);
        let (k, m, frag_len) = (self.coder.k(), self.coder.m(), self.layout.fragment);
        for chunk in 0..self.layout.chunks {
            let fragment = |number| &input[self.layout.source_range(chunk, number)];
            let (data, parity) = ((0..k).map(fragment).collect(), (k..k + m).map(fragment).collect());
            // Counts and lengths are those that the operation was made with.
            let wrong = self.coder.verify_on(isa, &VerifyJob { data, frag_len, parity }).expect("a checked call");
            for row in wrong {
                output[(chunk * m + row) * FLAG_BYTES..][..FLAG_BYTES].copy_from_slice(&1u32.to_ne_bytes());
            }
        }
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        self.differences.tables()
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let differences = at.result + self.output_bytes() as u64;
        let mut launches = self.differences.launches(&Addresses { result: differences, ..*at });
        let pieces = self.layout.fragment / PIECE_BYTES;
        let count = self.layout.chunks * self.layout.targets;
        if launches.is_empty() || pieces * count == 0 {
            return Vec::new();
        }
        let argument = MarkNonzero { data: differences, flags: at.result, pieces: pieces as u64, count: count as u64 };
        launches.extend(Launch::new(Kernel::MarkNonzero, pieces * count, 1, argument.to_bytes()));
        launches
    }
}
