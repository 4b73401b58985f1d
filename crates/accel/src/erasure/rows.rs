//! Rows of a code as devices need them, and the CPU's product with the same rows.

use super::Code;
use super::dispatch::{Coefficients, Source, Target, multiply};
use crate::isa::Isa;
use std::sync::Arc;

impl Code {
    /// Rows that give the new parity from the old data fragment `index`, the new one, and the m old parity fragments.
    /// `None` if there is no such data fragment.
    pub(crate) fn update_rows(&self, index: usize) -> Option<Arc<Coefficients>> {
        let columns = 2 + self.m();
        let mut values = Vec::with_capacity(self.m() * columns);
        for row in 0..self.m() {
            let c = self.coefficient(row, index)?;
            values.extend([c, c]);
            values.extend((0..self.m()).map(|other| u8::from(other == row)));
        }
        Some(Arc::new(Coefficients::new(columns, values)))
    }

    /// Rows over all k + m fragments that give each parity fragment's expected value plus its actual value: zero when
    /// parity belongs to the data.
    pub(crate) fn check_rows(&self) -> Arc<Coefficients> {
        let columns = self.fragments();
        let mut values = Vec::with_capacity(self.m() * columns);
        for row in 0..self.m() {
            values.extend((0..self.k()).map(|column| self.parity.get(row, column)));
            values.extend((0..self.m()).map(|other| u8::from(other == row)));
        }
        Arc::new(Coefficients::new(columns, values))
    }

    /// Rows that give the fragments `wanted` from the k fragments `sources` (rising). `None` if these are not k
    /// fragments of the code, or do not determine the wanted ones.
    pub(crate) fn decode_rows(&self, sources: &[usize], wanted: &[usize]) -> Option<Arc<Coefficients>> {
        let total = self.fragments();
        let rising = sources.windows(2).all(|pair| pair[0] < pair[1]);
        let known = sources.iter().chain(wanted).all(|i| *i < total);
        if sources.len() != self.k() || !rising || !known {
            return None;
        }
        self.decoder(sources.to_vec(), wanted.to_vec()).ok()
    }
}

/// Sets each target to its row times the sources, all of equal length.
pub(crate) fn multiply_equal(isa: Isa, rows: &Coefficients, sources: &[&[u8]], targets: &mut [&mut [u8]]) {
    let sources: Vec<_> = sources.iter().enumerate().map(|(column, bytes)| Source { column, bytes }).collect();
    let mut targets: Vec<_> = targets.iter_mut().enumerate().map(|(row, bytes)| Target { row, bytes }).collect();
    multiply(isa, rows, &sources, &mut targets);
}
