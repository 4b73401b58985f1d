//! Named encoding matrices, and the rows that compute missing fragments from k surviving ones.

use super::galois::Galois;
use super::{CodeError, field, named};
use crate::named_enum;

named_enum! {
    /// A named construction of the m parity rows over k data columns. The name is part of a redundancy class, so its
    /// meaning never changes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum Matrix (CodeError = |name| CodeError::UnknownMatrix { name }) {
        /// `cauchy1`: entry (i, j) is 1 / ((k + i) xor j) for parity row i < m and data column j < k. ISA-L's
        /// `gf_gen_cauchy1_matrix`. Every square part of a Cauchy matrix is invertible, so any k and m with
        /// k + m ≤ 255 can lose any m fragments.
        #[default]
        Cauchy1 = "cauchy1",
        /// `vandermonde`: entry (i, j) is 2^(i·j). ISA-L's `gf_gen_rs_matrix`. Row 0 is all ones, so one parity is plain
        /// XOR and two are RAID-6's P and Q. Only safe for some k and m; [`super::Code::new`] refuses the others.
        Vandermonde = "vandermonde",
        /// `reed_sol_van`: the systematic Vandermonde matrix of Jerasure's `reed_sol_vandermonde_coding_matrix`. Its
        /// first row is all ones. Any k + m ≤ 255.
        ReedSolVan = "reed_sol_van",
        /// `cauchy_orig`: entry (i, j) is 1 / (i xor (m + j)). Jerasure's `cauchy_original_coding_matrix`.
        CauchyOrig = "cauchy_orig",
        /// `cauchy_good`: `cauchy_orig` scaled to few ones as a bit matrix; row 0 is all ones. Jerasure's
        /// `cauchy_good_general_coding_matrix`.
        CauchyGood = "cauchy_good",
    }
}

impl Matrix {
    /// Parity rows, m × k, row by row.
    pub(super) fn parity_rows(self, k: usize, m: usize) -> Vec<u8> {
        let rows = |entry: fn(usize, usize, usize) -> u8| -> Vec<u8> {
            (0..m).flat_map(|i| (0..k).map(move |j| entry(k, i, j))).collect()
        };
        // Elements of GF(2^8) fit a byte.
        let narrow = |elements: Vec<u32>| elements.into_iter().map(|x| x as u8).collect();
        match (self, Galois::new(8)) {
            (Matrix::ReedSolVan, Some(gf)) => narrow(named::reed_sol_van(gf, k, m)),
            (Matrix::CauchyOrig, Some(gf)) => narrow(named::cauchy_orig(gf, k, m)),
            (Matrix::CauchyGood, Some(gf)) => narrow(named::cauchy_good(gf, k, m, 8)),
            (Matrix::Vandermonde, _) => rows(|_, i, j| field::power(2, (i * j % 255) as u32)),
            _ => rows(|k, i, j| field::inverse(((k + i) ^ j) as u8)),
        }
    }

    /// Whether any k of the k + m fragments determine the rest. For `vandermonde`: the ranges that ISA-L's
    /// documentation of `gf_gen_rs_matrix` gives as safe.
    pub(super) fn any_k_suffice(self, k: usize, m: usize) -> bool {
        match self {
            Matrix::Cauchy1 | Matrix::ReedSolVan | Matrix::CauchyOrig | Matrix::CauchyGood => true,
            Matrix::Vandermonde => m <= 3 || k <= 3 || (k == 4 && m <= 21) || (k == 5 && m <= 5) || (k <= 21 && m == 4),
        }
    }
}

/// Rows, over the k fragments `sources`, that give the fragments `wanted` (row by row, `wanted.len()` × k).
///
/// Solves only for the missing data: with data columns E missing and as many parity rows R among the sources,
/// P[R,E]·x_E = parity_R − P[R,D]·x_D. So it inverts an e × e matrix, not a k × k one.
///
/// `None` if that matrix is singular, which [`Matrix::any_k_suffice`] rules out.
pub(super) fn decode_rows(parity: &[u8], k: usize, sources: &[usize], wanted: &[usize]) -> Option<Vec<u8>> {
    let column_of = |fragment: usize| sources.iter().position(|s| *s == fragment);
    let lost: Vec<usize> = (0..k).filter(|j| column_of(*j).is_none()).collect();
    let rows: Vec<usize> = sources.iter().filter(|s| **s >= k).map(|s| s - k).collect();
    let coefficient = |row: usize, column: usize| parity[row * k + column];

    let square: Vec<u8> = rows.iter().flat_map(|r| lost.iter().map(|j| coefficient(*r, *j))).collect();
    let inverse = invert(square, lost.len())?;

    // `data[j]` = row over the sources that gives data fragment j.
    let mut data = vec![vec![0u8; sources.len()]; k];
    for (column, &source) in sources.iter().enumerate().filter(|(_, s)| **s < k) {
        data[source][column] = 1;
    }
    for (e, &j) in lost.iter().enumerate() {
        for (r, &row) in rows.iter().enumerate() {
            let scale = inverse[e * lost.len() + r];
            for (column, &source) in sources.iter().enumerate() {
                let known = if source < k { coefficient(row, source) } else { u8::from(source == k + row) };
                data[j][column] ^= field::multiply(scale, known);
            }
        }
    }

    let mut result = Vec::with_capacity(wanted.len() * sources.len());
    for &fragment in wanted {
        if fragment < k {
            result.extend_from_slice(&data[fragment]);
            continue;
        }
        let mut row = vec![0u8; sources.len()];
        for (j, data_row) in data.iter().enumerate() {
            let scale = &field::PRODUCTS[coefficient(fragment - k, j) as usize];
            row.iter_mut().zip(data_row).for_each(|(sum, x)| *sum ^= scale[*x as usize]);
        }
        result.extend_from_slice(&row);
    }
    Some(result)
}

/// Inverse of an n × n matrix by Gauss–Jordan elimination.
fn invert(mut a: Vec<u8>, n: usize) -> Option<Vec<u8>> {
    let mut inverse: Vec<u8> = (0..n * n).map(|i| u8::from(i / n == i % n)).collect();
    for column in 0..n {
        let pivot = (column..n).find(|row| a[row * n + column] != 0)?;
        for j in 0..n {
            a.swap(pivot * n + j, column * n + j);
            inverse.swap(pivot * n + j, column * n + j);
        }
        let scale = field::inverse(a[column * n + column]);
        for j in 0..n {
            a[column * n + j] = field::multiply(scale, a[column * n + j]);
            inverse[column * n + j] = field::multiply(scale, inverse[column * n + j]);
        }
        for row in (0..n).filter(|row| *row != column) {
            let factor = &field::PRODUCTS[a[row * n + column] as usize];
            for j in 0..n {
                let (x, y) = (a[column * n + j], inverse[column * n + j]);
                a[row * n + j] ^= factor[x as usize];
                inverse[row * n + j] ^= factor[y as usize];
            }
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parity rows computed by hand from the definition: 1/4, 1/5, … in GF(2^8)/0x11d.
    #[test]
    fn cauchy1_rows_are_the_documented_ones() {
        let rows = Matrix::Cauchy1.parity_rows(4, 2);
        let inverse_of = [4u8, 5, 6, 7, 5, 4, 7, 6];
        for (entry, x) in rows.iter().zip(inverse_of) {
            assert_eq!(field::multiply(*entry, x), 1);
        }
        assert_eq!(rows, [71, 167, 122, 186, 167, 71, 186, 122]);
    }

    #[test]
    fn vandermonde_rows_are_the_documented_ones() {
        assert_eq!(Matrix::Vandermonde.parity_rows(4, 3), [1, 1, 1, 1, 1, 2, 4, 8, 1, 4, 16, 64]);
    }

    #[test]
    fn an_inverse_times_its_matrix_is_the_identity_and_a_singular_one_has_none() {
        let n = 9;
        let a = Matrix::Cauchy1.parity_rows(n, n);
        let b = invert(a.clone(), n).unwrap();
        for i in 0..n {
            for j in 0..n {
                let dot = (0..n).fold(0, |sum, x| sum ^ field::multiply(a[i * n + x], b[x * n + j]));
                assert_eq!(dot, u8::from(i == j));
            }
        }
        assert_eq!(invert(vec![1, 2, 1, 2], 2), None);
    }
}
