//! The matrix product that all of erasure coding comes down to, and the choice of who computes it.

use super::reference;
use crate::isa::{Isa, Level};

/// A matrix of coefficients, row by row.
#[derive(Debug)]
pub struct Coefficients {
    columns: usize,
    values: Vec<u8>,
}

impl Coefficients {
    /// `values` has a whole number of rows of `columns`.
    pub fn new(columns: usize, values: Vec<u8>) -> Coefficients {
        debug_assert!(columns > 0 && values.len().is_multiple_of(columns));
        Coefficients { columns, values }
    }

    /// Coefficient in `row` for `column`.
    pub fn get(&self, row: usize, column: usize) -> u8 {
        self.values[row * self.columns + column]
    }

    /// All values, row by row.
    pub fn values(&self) -> &[u8] {
        &self.values
    }
}

/// A fragment that is read: which column of the matrix it is, and its bytes.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Column of the matrix.
    pub column: usize,
    /// Bytes, as long as those of every other source and target of the call.
    pub bytes: &'a [u8],
}

/// A fragment that is written: which row of the matrix it is, and its room.
pub struct Target<'a> {
    /// Row of the matrix.
    pub row: usize,
    /// Room, as long as those of every other source and target of the call.
    pub bytes: &'a mut [u8],
}

/// Sets each target to its row times the sources, where sources and targets may differ in length: a source
/// counts as zeros beyond its end, a target gets only as much as it has room for.
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
        multiply(isa, coefficients, &active, &mut room);
        start = end;
    }
}

fn multiply(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    debug_assert!(sources.iter().all(|s| targets.iter().all(|t| t.bytes.len() == s.bytes.len())));
    match isa.level() {
        Level::Portable => reference::multiply(coefficients, sources, targets),
        #[cfg(target_arch = "x86_64")]
        _ => reference::multiply(coefficients, sources, targets),
    }
}
