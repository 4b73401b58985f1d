//! Reed–Solomon on fragments: rows of a matrix times stripes of fragments.

use crate::erasure::{Code, FRAGMENT_ALIGN_BYTES, Rows, field, multiply_equal};
use crate::isa::Isa;
use crate::kernels::{GfMultiply, Kernel, Launch};
use crate::runtime::operation::{Operation, Places, padded};
use crate::runtime::{Buffer, NoMemory};

/// Rows that a block computes together; GF_ROWS in the kernel.
const ROWS_PER_BLOCK: usize = 4;
const PIECE_BYTES: usize = 16;
const _: () = assert!(FRAGMENT_ALIGN_BYTES.is_multiple_of(PIECE_BYTES));

/// Coefficient rows times fragments, for a batch of stripes (chunks).
///
/// Input: for each stripe its source fragments one after the other, each padded with zeros to a multiple of 16. Output:
/// for each stripe one fragment per row, padded likewise.
#[derive(Debug, Clone)]
pub struct Multiply {
    primitive: &'static str,
    rows: Rows,
    fragment: usize,
    stripes: usize,
}

impl Multiply {
    /// Parity of `stripes` chunks with fragments of `frag_len` bytes.
    pub fn encode(code: &Code, frag_len: usize, stripes: usize) -> Multiply {
        Multiply { primitive: "encode", rows: code.parity_rows(), fragment: padded(frag_len), stripes }
    }

    /// Fragments `wanted` of `stripes` chunks, from the k fragments `sources` of `frag_len` bytes each. `None` if these
    /// sources do not determine them.
    pub fn reconstruct(
        code: &Code,
        sources: &[usize],
        wanted: &[usize],
        frag_len: usize,
        stripes: usize,
    ) -> Option<Multiply> {
        let rows = code.decode_rows(sources, wanted)?;
        Some(Multiply { primitive: "reconstruct", rows, fragment: padded(frag_len), stripes })
    }

    /// The parity of `stripes` chunks after data fragment `index` of each has changed. Sources: the old fragment, the
    /// new fragment, and the m old parity fragments, all `len` bytes. They may be any equal range of the fragments.
    /// `None` if there is no such data fragment.
    pub fn update(code: &Code, index: usize, len: usize, stripes: usize) -> Option<Multiply> {
        let rows = code.update_rows(index)?;
        Some(Multiply { primitive: "update", rows, fragment: padded(len), stripes })
    }

    /// For each parity fragment, its expected value plus its actual value. Sources: all k + m fragments.
    pub(super) fn differences(code: &Code, frag_len: usize, stripes: usize) -> Multiply {
        Multiply { primitive: "verify", rows: code.check_rows(), fragment: padded(frag_len), stripes }
    }

    /// Bytes of a fragment with its padding.
    pub(super) fn fragment_bytes(&self) -> usize {
        self.fragment
    }

    /// Range in the input for source `column` of `stripe`; the bytes after a shorter source must be zero.
    pub fn source_range(&self, stripe: usize, column: usize) -> std::ops::Range<usize> {
        let start = (stripe * self.rows.columns() + column) * self.fragment;
        start..start + self.fragment
    }

    /// Copies a source to its place in the input.
    pub fn pack(&self, stripe: usize, column: usize, bytes: &[u8], input: &mut [u8]) {
        let room = &mut input[self.source_range(stripe, column)];
        room[..bytes.len()].copy_from_slice(bytes);
        room[bytes.len()..].fill(0);
    }

    /// Range of target `row` of `stripe` in the output.
    pub fn target_range(&self, stripe: usize, row: usize) -> std::ops::Range<usize> {
        let start = (stripe * self.rows.rows() + row) * self.fragment;
        start..start + self.fragment
    }
}

impl Operation for Multiply {
    fn primitive(&self) -> &'static str {
        self.primitive
    }

    fn input_bytes(&self) -> usize {
        self.stripes * self.rows.columns() * self.fragment
    }

    fn output_bytes(&self) -> usize {
        self.stripes * self.rows.rows() * self.fragment
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        if self.fragment == 0 {
            return Ok(());
        }
        assert!(input.len() == self.input_bytes() && output.len() == self.output_bytes(), "lengths of {self:?}");
        let (columns, rows) = (self.rows.columns(), self.rows.rows());
        let stripes = input.chunks(columns * self.fragment).zip(output.chunks_mut(rows * self.fragment));
        for (sources, targets) in stripes.take(self.stripes) {
            let sources: Vec<&[u8]> = sources.chunks(self.fragment).collect();
            let mut targets: Vec<&mut [u8]> = targets.chunks_mut(self.fragment).collect();
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

    fn launches(&self, at: &Places) -> Vec<Launch> {
        let (rows, columns) = (self.rows.rows(), self.rows.columns());
        let pieces = self.fragment / PIECE_BYTES;
        let argument = GfMultiply {
            sources: at.input,
            targets: at.result,
            tables: at.tables,
            source_stripe: (columns * self.fragment) as u64,
            source_column: self.fragment as u64,
            target_stripe: (rows * self.fragment) as u64,
            target_row: self.fragment as u64,
            pieces: pieces as u64,
            stripes: self.stripes as u32,
            rows: rows as u32,
            columns: columns as u32,
            unused: 0,
        };
        let rows = rows.div_ceil(ROWS_PER_BLOCK);
        Launch::new(Kernel::GfMultiply, pieces * self.stripes, rows, argument.to_bytes()).into_iter().collect()
    }
}
