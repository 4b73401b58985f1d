//! The plain product of a matrix over GF(2^8) with columns of bytes. It runs everywhere; every leaf must equal it
//! (P10).

use super::dispatch::{Coefficients, Source, Target};
use super::field::PRODUCTS;

/// Sets each target to the sum over the sources of coefficient(row, column) · source. Sources and targets all
/// have the same length.
pub fn multiply(coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    for target in targets {
        target.bytes.fill(0);
        for source in sources {
            let products = &PRODUCTS[coefficients.get(target.row, source.column) as usize];
            for (sum, x) in target.bytes.iter_mut().zip(source.bytes) {
                *sum ^= products[*x as usize];
            }
        }
    }
}
