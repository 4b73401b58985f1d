//! Reed–Solomon on fragments: rows of a matrix times stripes of fragments.
#![allow(unsafe_code)]

use super::coding::{Coding, Layout};
use crate::erasure::{Code, Coefficients, FRAGMENT_ALIGN_BYTES, field, multiply_equal};
use crate::isa::Isa;
use crate::kernels::{GfMultiply, Kernel, Launch};
use crate::runtime::operation::{Addresses, Operation, Sizes, padded};
use crate::runtime::{Buffer, NoMemory};
use std::sync::Arc;

/// Rows that a block computes together; GF_ROWS in the kernel.
const ROWS_PER_BLOCK: usize = 4;
const PIECE_BYTES: usize = 16;
const _: () = assert!(FRAGMENT_ALIGN_BYTES.is_multiple_of(PIECE_BYTES));

/// Coefficient rows times fragments, for a batch of chunks.
///
/// Input: for each chunk its source fragments one after the other, each padded with zeros to a multiple of 16. Output:
/// for each chunk one fragment per row, padded likewise.
#[derive(Debug, Clone)]
pub struct Multiply {
    primitive: &'static str,
    rows: Arc<Coefficients>,
    layout: Layout,
}

impl Multiply {
    fn new(primitive: &'static str, rows: Arc<Coefficients>, len: usize, chunks: usize) -> Multiply {
        let layout = Layout { sources: rows.columns(), targets: rows.rows(), fragment: padded(len), chunks };
        Multiply { primitive, rows, layout }
    }

    /// Parity of `chunks` chunks with fragments of `frag_len` bytes.
    pub fn encode(code: &Code, frag_len: usize, chunks: usize) -> Multiply {
        Multiply::new("encode", code.parity.clone(), frag_len, chunks)
    }

    /// Fragments `wanted` of `chunks` chunks, from the k fragments `sources` of `frag_len` bytes each. `None` if these
    /// sources do not determine them.
    pub fn reconstruct(
        code: &Code,
        sources: &[usize],
        wanted: &[usize],
        frag_len: usize,
        chunks: usize,
    ) -> Option<Multiply> {
        Some(Multiply::new("reconstruct", code.decode_rows(sources, wanted)?, frag_len, chunks))
    }

    /// The parity of `chunks` chunks after data fragment `index` of each has changed. Sources: the old fragment, the
    /// new fragment, and the m old parity fragments, all `len` bytes. They may be any equal range of the fragments.
    /// `None` if there is no such data fragment.
    pub fn update(code: &Code, index: usize, len: usize, chunks: usize) -> Option<Multiply> {
        Some(Multiply::new("update", code.update_rows(index)?, len, chunks))
    }

    /// For each parity fragment, its expected value plus its actual value. Sources: all k + m fragments.
    pub(super) fn differences(code: &Code, frag_len: usize, chunks: usize) -> Multiply {
        Multiply::new("verify", code.check_rows(), frag_len, chunks)
    }
}

impl Coding for Multiply {
    fn layout(&self) -> Layout {
        self.layout
    }
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for Multiply {
    fn primitive(&self) -> &'static str {
        self.primitive
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: self.layout.input_bytes(), output: self.layout.output_bytes(), ..Sizes::default() }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        for (sources, mut targets) in self.layout.chunks(input, output) {
            multiply_equal(isa, &self.rows, &sources, &mut targets);
        }
        Ok(())
    }

    /// Eight words per coefficient: products of bits 0–2 (two words), 3–5 (two), 6–7 (one), three unused.
    fn tables(&self) -> Vec<u8> {
        let mut tables = Vec::with_capacity(self.rows.values().len() * 32);
        for &c in self.rows.values() {
            tables.extend((0..8).map(|x| field::multiply(c, x)));
            tables.extend((0..8).map(|x| field::multiply(c, x << 3)));
            tables.extend((0..4).map(|x| field::multiply(c, x << 6)));
            tables.extend([0; 12]);
        }
        assert_eq!(tables.len(), 32 * self.rows.values().len(), "eight words a coefficient");
        tables
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let Layout { sources, targets, fragment, chunks } = self.layout;
        let pieces = fragment / PIECE_BYTES;
        let argument = GfMultiply {
            sources: at.input,
            targets: at.result,
            tables: at.tables,
            source_stripe: (sources * fragment) as u64,
            source_column: fragment as u64,
            target_stripe: (targets * fragment) as u64,
            target_row: fragment as u64,
            pieces: pieces as u64,
            stripes: chunks as u32,
            rows: targets as u32,
            columns: sources as u32,
            unused: 0,
        };
        let rows = targets.div_ceil(ROWS_PER_BLOCK);
        Launch::new(Kernel::GfMultiply, pieces * chunks, rows, argument.to_bytes()).into_iter().collect()
    }
}
