//! The loops of the matrix product, once for all instruction sets: blocks that the first-level cache holds of all
//! sources, up to six rows a pass, two vectors a step. A leaf says what a vector is and how it is multiplied.
#![allow(unsafe_code, clippy::needless_range_loop)] // Rows and vectors of a pass are indexes, side by side.

use super::dispatch::{Coefficients, Source, Target, block_bytes};
use crate::simd::Bytes;
use std::ops::Range;

/// How vectors of bytes are multiplied by constants of GF(2^8).
///
/// # Safety
/// The vector's instruction set is all that the methods need, but for what the leaf enables beside it; `factors`
/// has an entry for every column of the row.
pub unsafe trait Factors {
    /// The vectors.
    type Vector: Bytes;
    /// What multiplication by one coefficient takes, as [`Coefficients`] keeps it.
    type Entry;
    /// That, in registers.
    type Factor: Copy;
    /// A vector, prepared to be multiplied by several.
    type Operand: Copy;

    /// Rows in one pass: as many as registers hold the sums of.
    const ROWS: usize;

    /// The entries of a row, by column.
    fn factors(coefficients: &Coefficients, row: usize) -> &[Self::Entry];

    /// # Safety
    /// The instruction set.
    unsafe fn prepare(x: Self::Vector) -> Self::Operand;

    /// # Safety
    /// The instruction set.
    unsafe fn factor(entry: &Self::Entry) -> Self::Factor;

    /// `sum` + `factor` · `x`.
    ///
    /// # Safety
    /// The instruction set.
    unsafe fn add_product(sum: Self::Vector, factor: Self::Factor, x: Self::Operand) -> Self::Vector;
}

/// [`super::dispatch::multiply`] as `F` multiplies.
///
/// # Safety
/// The instruction set of `F`; all sources and targets have the same length.
#[inline(always)]
pub unsafe fn multiply<F: Factors>(coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    let len = targets.first().map_or(0, |t| t.bytes.len());
    let block = block_bytes(sources.len());
    for start in (0..len).step_by(block) {
        let range = start..len.min(start + block);
        for rows in targets.chunks_mut(F::ROWS) {
            // SAFETY: the caller vouches for the set and the lengths; `range` lies in 0..len.
            unsafe {
                match rows {
                    [row] if coefficients.is_ones(row.row) => xor::<F::Vector>(sources, row, range.clone()),
                    [_] => pass::<F, 1>(coefficients, sources, rows, range.clone()),
                    [_, _] => pass::<F, 2>(coefficients, sources, rows, range.clone()),
                    [_, _, _] => pass::<F, 3>(coefficients, sources, rows, range.clone()),
                    [_, _, _, _] => pass::<F, 4>(coefficients, sources, rows, range.clone()),
                    [_, _, _, _, _] => pass::<F, 5>(coefficients, sources, rows, range.clone()),
                    _ => pass::<F, 6>(coefficients, sources, rows, range.clone()),
                }
            }
        }
    }
}

/// One pass of `R` rows over `range` of all sources.
///
/// # Safety
/// The instruction set; `rows` has `R` entries; all slices have the same length and `range` lies inside.
#[inline(always)]
unsafe fn pass<F: Factors, const R: usize>(
    coefficients: &Coefficients,
    sources: &[Source<'_>],
    rows: &mut [Target<'_>],
    range: Range<usize>,
) {
    let entries: [&[F::Entry]; R] = std::array::from_fn(|r| F::factors(coefficients, rows[r].row));
    let out: [*mut u8; R] = std::array::from_fn(|r| rows[r].bytes.as_mut_ptr());
    // SAFETY: what a step is asked for lies in `range`, so in every slice; rows have an entry for each column.
    for_each_step(range, F::Vector::LEN, 2, |at, vectors, part| unsafe {
        match (vectors, part) {
            (2, _) => step::<F, R, 2>(&entries, &out, sources, at, F::Vector::LEN),
            (_, part) => step::<F, R, 1>(&entries, &out, sources, at, part),
        }
    });
}

/// Walks `range` in steps of `unroll` vectors, then of one, then of what is left: `step(at, vectors, bytes)`.
#[inline(always)]
fn for_each_step(range: Range<usize>, vector: usize, unroll: usize, mut step: impl FnMut(usize, usize, usize)) {
    let mut at = range.start;
    while at + unroll * vector <= range.end {
        step(at, unroll, vector);
        at += unroll * vector;
    }
    while at < range.end {
        step(at, 1, vector.min(range.end - at));
        at += vector;
    }
}

/// `R` rows of `N` vectors at offset `at`; of a single vector only the first `part` bytes.
///
/// # Safety
/// The instruction set; what is asked for at `at` lies in every source and target; rows have an entry for each
/// column.
#[inline(always)]
unsafe fn step<F: Factors, const R: usize, const N: usize>(
    entries: &[&[F::Entry]; R],
    out: &[*mut u8; R],
    sources: &[Source<'_>],
    at: usize,
    part: usize,
) {
    // SAFETY: the caller vouches for the set, the bytes and the columns.
    unsafe {
        let mut sums = [[F::Vector::zero(); N]; R];
        for source in sources {
            let bytes = source.bytes.as_ptr().add(at);
            let x: [F::Operand; N] = std::array::from_fn(|n| F::prepare(load::<F::Vector, N>(bytes, n, part)));
            for r in 0..R {
                let factor = F::factor(entries[r].get_unchecked(source.column));
                for n in 0..N {
                    sums[r][n] = F::add_product(sums[r][n], factor, x[n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                store::<F::Vector, N>(sums[r][n], out[r].add(at), n, part);
            }
        }
    }
}

/// Vector `n` of `N` at `from`; of a single one only the first `part` bytes.
///
/// # Safety
/// The instruction set; those bytes are readable.
#[inline(always)]
unsafe fn load<V: Bytes, const N: usize>(from: *const u8, n: usize, part: usize) -> V {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe { if N > 1 || part == V::LEN { V::load(from.add(n * V::LEN)) } else { V::load_part(from, part) } }
}

/// Writes vector `n` of `N` at `to`; of a single one only the first `part` bytes.
///
/// # Safety
/// The instruction set; those bytes are writable.
#[inline(always)]
unsafe fn store<V: Bytes, const N: usize>(x: V, to: *mut u8, n: usize, part: usize) {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe { if N > 1 || part == V::LEN { x.store(to.add(n * V::LEN)) } else { x.store_part(to, part) } }
}

/// A row of ones: the XOR of the sources.
///
/// # Safety
/// The instruction set; all slices have the same length and `range` lies inside.
#[inline(always)]
unsafe fn xor<V: Bytes>(sources: &[Source<'_>], row: &mut Target<'_>, range: Range<usize>) {
    let out = row.bytes.as_mut_ptr();
    // SAFETY: what a step is asked for lies in `range`, so in every slice.
    for_each_step(range, V::LEN, 4, |at, vectors, part| unsafe {
        match (vectors, part) {
            (4, _) => xor_step::<V, 4>(sources, out, at, V::LEN),
            (_, part) => xor_step::<V, 1>(sources, out, at, part),
        }
    });
}

/// # Safety
/// The instruction set; what is asked for at `at` lies in every source and in `out`.
#[inline(always)]
unsafe fn xor_step<V: Bytes, const N: usize>(sources: &[Source<'_>], out: *mut u8, at: usize, part: usize) {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe {
        let mut sums = [V::zero(); N];
        for source in sources {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(load::<V, N>(source.bytes.as_ptr().add(at), n, part));
            }
        }
        for (n, sum) in sums.into_iter().enumerate() {
            store::<V, N>(sum, out.add(at), n, part);
        }
    }
}
