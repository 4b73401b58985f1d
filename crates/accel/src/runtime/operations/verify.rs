//! Checks parity against its data, for codes of both families.

use super::{Multiply, XorFragments};
use crate::coder::Coder;
use crate::erasure::Code;
use crate::isa::Isa;
use crate::kernels::{Kernel, Launch, MarkNonzero};
use crate::runtime::operation::{Operation, Places, padded};
use crate::runtime::{Buffer, NoMemory};
use crate::xorcode::XorCode;
use std::ops::Range;
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
    differences: Differences,
    k: usize,
    m: usize,
    chunks: usize,
}

/// Expected parity plus actual parity: zero everywhere if they are equal.
#[derive(Debug, Clone)]
enum Differences {
    Rs { operation: Multiply, code: Arc<Code>, frag_len: usize },
    Xor { operation: XorFragments, code: Arc<XorCode> },
}

impl Differences {
    fn operation(&self) -> &dyn Operation {
        match self {
            Differences::Rs { operation, .. } => operation,
            Differences::Xor { operation, .. } => operation,
        }
    }

    /// Bytes of a fragment in the input, with its padding.
    fn fragment_bytes(&self) -> usize {
        match self {
            Differences::Rs { operation, .. } => operation.fragment_bytes(),
            Differences::Xor { operation, .. } => operation.fragment_bytes(),
        }
    }
}

impl Verify {
    /// Checks `chunks` chunks with fragments of `frag_len` bytes. `None` if the code does not support this length.
    pub fn new(coder: &Coder, frag_len: usize, chunks: usize) -> Option<Verify> {
        match coder {
            Coder::Rs(code) => Some(Verify::rs(code, frag_len, chunks)),
            Coder::Xor(code) => Verify::xor(code, frag_len, chunks),
        }
    }

    /// Checks `chunks` chunks with fragments of `frag_len` bytes, by a Reed–Solomon code.
    pub fn rs(code: &Arc<Code>, frag_len: usize, chunks: usize) -> Verify {
        let operation = Multiply::differences(code, frag_len, chunks);
        let (k, m) = (code.k(), code.m());
        Verify { differences: Differences::Rs { operation, code: code.clone(), frag_len }, k, m, chunks }
    }

    /// Checks `chunks` chunks by a code of XOR alone. `None` if `fragment` bytes are not whole stripes.
    pub fn xor(code: &Arc<XorCode>, fragment: usize, chunks: usize) -> Option<Verify> {
        let operation = XorFragments::differences(code, fragment, chunks)?;
        let (k, m) = (code.k(), code.m());
        Some(Verify { differences: Differences::Xor { operation, code: code.clone() }, k, m, chunks })
    }

    /// Range in the input for fragment `number` (0..k+m) of a chunk.
    pub fn source_range(&self, chunk: usize, number: usize) -> Range<usize> {
        let fragment = self.differences.fragment_bytes();
        let start = (chunk * (self.k + self.m) + number) * fragment;
        start..start + fragment
    }

    /// Copies a fragment to its place in the input; a shorter one counts as zeros beyond its end.
    pub fn pack(&self, chunk: usize, number: usize, bytes: &[u8], input: &mut [u8]) {
        let room = &mut input[self.source_range(chunk, number)];
        room[..bytes.len()].copy_from_slice(bytes);
        room[bytes.len()..].fill(0);
    }

    /// The parity fragments (0..m) of a chunk that differ; empty if none do.
    pub fn read(&self, output: &[u8], chunk: usize) -> Vec<usize> {
        assert_eq!(output.len(), self.output_bytes(), "flags of {} chunks", self.chunks);
        let flag = |row: usize| &output[(chunk * self.m + row) * FLAG_BYTES..][..FLAG_BYTES];
        (0..self.m).filter(|row| flag(*row).iter().any(|b| *b != 0)).collect()
    }

    fn wrong_on_cpu(&self, isa: Isa, fragments: &[&[u8]]) -> Vec<usize> {
        let (data, parity) = fragments.split_at(self.k);
        // Counts and lengths are those that the operation was made with.
        match &self.differences {
            Differences::Rs { code, frag_len, .. } => {
                let data: Vec<&[u8]> = data.iter().map(|f| &f[..*frag_len]).collect();
                let parity: Vec<&[u8]> = parity.iter().map(|f| &f[..*frag_len]).collect();
                code.verify_on(isa, &data, *frag_len, &parity).expect("a checked call")
            }
            Differences::Xor { code, .. } => code.verify_on(isa, data, parity).expect("a checked call"),
        }
    }
}

impl Operation for Verify {
    fn primitive(&self) -> &'static str {
        self.differences.operation().primitive()
    }

    fn input_bytes(&self) -> usize {
        self.differences.operation().input_bytes()
    }

    fn output_bytes(&self) -> usize {
        padded(self.chunks * self.m * FLAG_BYTES)
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        output.fill(0);
        for chunk in 0..self.chunks {
            let fragments: Vec<&[u8]> = (0..self.k + self.m).map(|f| &input[self.source_range(chunk, f)]).collect();
            for row in self.wrong_on_cpu(isa, &fragments) {
                output[(chunk * self.m + row) * FLAG_BYTES..][..FLAG_BYTES].copy_from_slice(&1u32.to_ne_bytes());
            }
        }
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        self.differences.operation().tables()
    }

    fn scratch_bytes(&self) -> usize {
        self.differences.operation().output_bytes()
    }

    fn cleared_bytes(&self) -> usize {
        self.output_bytes()
    }

    fn launches(&self, at: &Places) -> Vec<Launch> {
        let differences = at.result + self.output_bytes() as u64;
        let mut launches = self.differences.operation().launches(&Places { result: differences, ..*at });
        let pieces = self.differences.fragment_bytes() / PIECE_BYTES;
        let count = self.chunks * self.m;
        if launches.is_empty() || pieces * count == 0 {
            return Vec::new();
        }
        let argument = MarkNonzero { data: differences, flags: at.result, pieces: pieces as u64, count: count as u64 };
        launches.extend(Launch::new(Kernel::MarkNonzero, pieces * count, 1, argument.to_bytes()));
        launches
    }
}
