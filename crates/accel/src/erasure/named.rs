//! The matrices of Jerasure, entry by entry over GF(2^w): m parity rows over k data columns.
//!
//! Sources: Plank and Ding, "Note: correction to the 1997 tutorial on Reed-Solomon coding", 2005 (the systematic
//! Vandermonde matrix); Blömer et al., "An XOR-based erasure-resilient coding scheme", 1995 (Cauchy); Plank and Xu,
//! "Optimizing Cauchy Reed-Solomon codes for fault-tolerant network storage applications", NCA 2006 (Cauchy with few
//! ones). Among equivalent matrices this module builds those of Jerasure 2, and its parity equals Jerasure's.

use super::galois::Galois;

/// `reed_sol_van`: an extended Vandermonde matrix made systematic by column operations, then scaled so that the
/// first parity row and the first parity column are ones. Needs k + m ≤ 2^w.
pub fn reed_sol_van(field: Galois, k: usize, m: usize) -> Vec<u32> {
    let rows = k + m;
    let mut matrix = extended_vandermonde(field, rows, k);
    for i in 1..k {
        make_identity_row(field, &mut matrix, rows, k, i);
    }
    let mut parity = matrix.split_off(k * k);
    make_first_row_ones(field, &mut parity, k);
    for row in parity.chunks_mut(k).skip(1) {
        let scale = field.inverse(row[0]);
        row.iter_mut().for_each(|x| *x = field.multiply(*x, scale));
    }
    parity
}

/// Row 0 is (1, 0, …, 0), the last row (0, …, 0, 1), row i between them (1, i, i², …).
fn extended_vandermonde(field: Galois, rows: usize, columns: usize) -> Vec<u32> {
    let mut matrix = vec![0; rows * columns];
    matrix[0] = 1;
    matrix[rows * columns - 1] = 1;
    for i in 1..rows - 1 {
        let mut power = 1;
        for entry in &mut matrix[i * columns..(i + 1) * columns] {
            *entry = power;
            power = field.multiply(power, i as u32);
        }
    }
    matrix
}

/// Column operations that make row `i` a unit vector, as rows 0..i already are.
fn make_identity_row(field: Galois, matrix: &mut [u32], rows: usize, columns: usize, i: usize) {
    let pivot_row = (i..rows).find(|row| matrix[row * columns + i] != 0).unwrap_or(i);
    if pivot_row != i {
        (0..columns).for_each(|c| matrix.swap(pivot_row * columns + c, i * columns + c));
    }
    let scale = field.inverse(matrix[i * columns + i]);
    (0..rows).for_each(|row| matrix[row * columns + i] = field.multiply(matrix[row * columns + i], scale));
    for column in (0..columns).filter(|c| *c != i) {
        let factor = matrix[i * columns + column];
        if factor != 0 {
            for row in matrix.chunks_mut(columns) {
                row[column] ^= field.multiply(factor, row[i]);
            }
        }
    }
}

/// Scales each column so that its first entry is one.
fn make_first_row_ones(field: Galois, matrix: &mut [u32], columns: usize) {
    for column in 0..columns {
        let scale = field.inverse(matrix[column]);
        matrix.iter_mut().skip(column).step_by(columns).for_each(|x| *x = field.multiply(*x, scale));
    }
}

/// `cauchy_orig`: entry (i, j) is 1 / (i xor (m + j)). Needs k + m ≤ 2^w.
pub fn cauchy_orig(field: Galois, k: usize, m: usize) -> Vec<u32> {
    (0..m).flat_map(|i| (0..k).map(move |j| field.inverse((i ^ (m + j)) as u32))).collect()
}

/// `cauchy_good`: a Cauchy matrix scaled to few ones in its bit matrix. With m = 2 the second row holds the k elements
/// with the fewest ones, smaller elements first among equals. Otherwise the columns of `cauchy_orig` are scaled so that
/// row 0 is all ones, and every further row by the divisor that leaves the fewest ones. Needs k + m ≤ 2^w.
pub fn cauchy_good(field: Galois, k: usize, m: usize, w: usize) -> Vec<u32> {
    if m == 2 {
        let mut elements: Vec<u32> = (1..1 << w).collect();
        elements.sort_by_key(|x| (field.ones(*x), *x));
        return std::iter::repeat_n(1, k).chain(elements.into_iter().take(k)).collect();
    }
    let mut matrix = cauchy_orig(field, k, m);
    make_first_row_ones(field, &mut matrix, k);
    for row in matrix.chunks_mut(k).skip(1) {
        let scaled = |row: &[u32], scale: u32| -> Vec<u32> { row.iter().map(|x| field.multiply(*x, scale)).collect() };
        let ones = |row: &[u32]| -> u32 { row.iter().map(|x| field.ones(*x)).sum() };
        // Dividing by an entry makes that entry one. The first of equally good divisors is taken.
        let candidates = row.iter().filter(|x| **x != 1).map(|x| scaled(row, field.inverse(*x)));
        if let Some(best) = candidates.min_by_key(|row| ones(row)).filter(|best| ones(best) < ones(row)) {
            row.copy_from_slice(&best);
        }
    }
    matrix
}
