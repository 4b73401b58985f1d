//! The matrix product that all erasure coding uses, and the choice of the instruction set that computes it.

#[cfg(target_arch = "x86_64")]
use super::gfni;
use super::{field, frame, reference};
use crate::isa::{Isa, Level};

/// A matrix of coefficients, row by row, with the tables that the leaves need to multiply by each.
#[derive(Debug)]
pub struct Coefficients {
    columns: usize,
    values: Vec<u8>,
    /// Per coefficient c: c·x for x = 0..16, then c·(16x): the tables of the byte-shuffle kernels.
    nibbles: Vec<[[u8; 16]; 2]>,
    /// Per coefficient: multiplication by it as an 8 × 8 bit matrix, in the layout of `GF2P8AFFINEQB`.
    #[cfg(target_arch = "x86_64")]
    affine: Vec<u64>,
    /// Per row: whether it is all ones and so a plain XOR.
    ones: Vec<bool>,
}

impl Coefficients {
    /// `values` has a whole number of rows of `columns`.
    pub fn new(columns: usize, values: Vec<u8>) -> Coefficients {
        assert!(
            columns > 0 && values.len().is_multiple_of(columns),
            "{} coefficients, {columns} columns",
            values.len()
        );
        Coefficients {
            columns,
            nibbles: values.iter().map(|c| nibble_tables(*c)).collect(),
            #[cfg(target_arch = "x86_64")]
            affine: values.iter().map(|c| affine_matrix(*c)).collect(),
            ones: values.chunks(columns).map(|row| row.iter().all(|c| *c == 1)).collect(),
            values,
        }
    }

    /// Coefficient in `row` for `column`.
    pub fn get(&self, row: usize, column: usize) -> u8 {
        self.values[row * self.columns + column]
    }

    /// Number of columns: source fragments.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Number of rows: target fragments.
    pub fn rows(&self) -> usize {
        self.ones.len()
    }

    /// All values, row by row.
    pub fn values(&self) -> &[u8] {
        &self.values
    }

    /// Whether the row is a plain XOR.
    pub fn is_ones(&self, row: usize) -> bool {
        self.ones[row]
    }

    /// Shuffle tables of a row, by column.
    pub fn nibbles(&self, row: usize) -> &[[[u8; 16]; 2]] {
        &self.nibbles[row * self.columns..][..self.columns]
    }

    /// Bit matrices of a row, by column.
    #[cfg(target_arch = "x86_64")]
    pub fn affine(&self, row: usize) -> &[u64] {
        &self.affine[row * self.columns..][..self.columns]
    }
}

fn nibble_tables(c: u8) -> [[u8; 16]; 2] {
    [0, 4].map(|shift| std::array::from_fn(|x| field::multiply(c, (x as u8) << shift)))
}

#[cfg(any(target_arch = "x86_64", test))]
fn affine_matrix(c: u8) -> u64 {
    let mut matrix = 0u64;
    for out_bit in 0..8 {
        for in_bit in 0..8 {
            let set = field::multiply(c, 1 << in_bit) >> out_bit & 1;
            matrix |= u64::from(set) << (8 * (7 - out_bit) + in_bit);
        }
    }
    matrix
}

/// A fragment that is read: its column of the matrix and its bytes.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Column of the matrix.
    pub column: usize,
    /// Bytes, as long as those of every other source and target of the call.
    pub bytes: &'a [u8],
}

/// A fragment that is written: its row of the matrix and its buffer.
pub struct Target<'a> {
    /// Row of the matrix.
    pub row: usize,
    /// Buffer, as long as the bytes of every other source and target of the call.
    pub bytes: &'a mut [u8],
}

/// Sets each target to its row times the sources. Sources and targets may differ in length: a source counts as zeros
/// beyond its end, and a target gets the bytes that fit.
pub fn multiply_ragged(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    let mut edges: Vec<usize> = sources.iter().map(|s| s.bytes.len()).collect();
    edges.extend(targets.iter().map(|t| t.bytes.len()));
    edges.sort_unstable();
    edges.dedup();
    let mut start = 0;
    for end in edges {
        if start == end {
            continue;
        }
        let active: Vec<Source<'_>> = sources
            .iter()
            .filter(|s| s.bytes.len() >= end)
            .map(|s| Source { column: s.column, bytes: &s.bytes[start..end] })
            .collect();
        let mut room: Vec<Target<'_>> = targets
            .iter_mut()
            .filter(|t| t.bytes.len() >= end)
            .map(|t| Target { row: t.row, bytes: &mut t.bytes[start..end] })
            .collect();
        if room.is_empty() {
            break; // Edges rise: no target reaches further.
        }
        multiply(isa, coefficients, &active, &mut room);
        start = end;
    }
}

/// [`multiply_ragged`] for sources and targets of equal length.
pub fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    let len = targets.first().map_or(0, |t| t.bytes.len());
    assert!(sources.iter().all(|s| s.bytes.len() == len) && targets.iter().all(|t| t.bytes.len() == len));
    // The leaves read tables by column without checks.
    assert!(
        sources.iter().all(|s| s.column < coefficients.columns)
            && targets.iter().all(|t| t.row < coefficients.ones.len())
    );
    match isa.level() {
        Level::Reference | Level::Portable => reference::multiply(coefficients, sources, targets),
        #[cfg(target_arch = "x86_64")]
        Level::Gfni => gfni::multiply(isa, coefficients, sources, targets),
        #[allow(unreachable_patterns)] // On CPUs without vectors.
        _ => frame::multiply_by_look_ups(isa, coefficients, sources, targets),
    }
}

/// Bytes of each source that a leaf should read before it goes on to the next rows: the share of the first-level cache
/// for each source, in whole vectors.
pub fn block_bytes(sources: usize) -> usize {
    const FIRST_LEVEL_BYTES: usize = 24 * 1024;
    (FIRST_LEVEL_BYTES / sources.max(1) / 256 * 256).max(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `GF2P8AFFINEQB` by its definition, so that the matrices are also checked on CPUs without the instruction.
    fn affine(matrix: u64, x: u8) -> u8 {
        (0..8).fold(0, |y, i| {
            let row = (matrix >> (8 * (7 - i))) as u8;
            y | (((row & x).count_ones() & 1) as u8) << i
        })
    }

    #[test]
    fn tables_and_bit_matrices_multiply() {
        for c in 0..=255u8 {
            let (nibbles, matrix) = (nibble_tables(c), affine_matrix(c));
            for x in 0..=255u8 {
                let product = field::multiply(c, x);
                assert_eq!(nibbles[0][usize::from(x & 15)] ^ nibbles[1][usize::from(x >> 4)], product);
                assert_eq!(affine(matrix, x), product);
            }
        }
    }
}
