//! The loops of the matrix product, once for all instruction sets: blocks that let the first-level cache hold all
//! sources, up to six rows a pass, two or four vectors a step. [`Factors`] is how vectors are multiplied: [`Shuffle`] on every set,
//! `gfni` where the CPU has it.
#![allow(unsafe_code, clippy::needless_range_loop)] // Rows and vectors of a pass are indexes, side by side.

use super::dispatch::{Coefficients, Source, Target, block_bytes};
use crate::isa::Isa;
use crate::simd::{OnVectors, Vector, load, on_vectors, prefetch, store};
use std::marker::PhantomData;
use std::ops::Range;

/// Fragments from this length on are long: the CPU's own prefetchers have time to find their streams.
const LONG_BYTES: usize = 64 << 10;

/// How a call reads its sources, a stream each.
#[derive(Clone, Copy)]
struct Reading {
    /// Prefetch distance in bytes.
    ahead: usize,
    /// Four vectors a step instead of two, where the registers hold the sums.
    long_steps: bool,
}

impl Reading {
    /// Chosen by measurements on a Zen 5 core, of fragments in memory that are allocated one after the other, each in
    /// pages of its own, or at random (`bench/accel`). CPUs prefetch about a dozen streams by themselves, but stop at the
    /// end of each page. Of few long streams they keep too few lines under way. Up to a dozen they do well: far
    /// prefetches, and those of targets, are in their way. Of more they lose some, and longer runs of each stream help.
    fn of(sources: &[Source<'_>]) -> Reading {
        let long = sources.first().is_some_and(|source| source.bytes.len() >= LONG_BYTES);
        let (ahead, long_steps) = match (sources.len(), long) {
            (..=6, false) => (1024, false),
            (_, false) => (512, false),
            (..=6, true) => (1536, true),
            (..=12, true) => (384, false),
            (_, true) => (1024, true),
        };
        Reading { ahead, long_steps }
    }
}

/// How vectors of bytes are multiplied by constants of GF(2^8).
///
/// # Safety
/// The methods need only the vector's instruction set, and the extensions that the leaf enables with it; `factors` has
/// an entry for every column of the row.
pub unsafe trait Factors {
    /// The vectors.
    type Vector: Vector;
    /// Multiplication data of one coefficient, as [`Coefficients`] stores it.
    type Entry;
    /// An entry, loaded into registers.
    type Factor: Copy;
    /// A vector, prepared for several multiplications.
    type Operand: Copy;

    /// Rows in one pass: as many as there are registers for their sums.
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

/// Products by two look-ups: each byte's two nibbles look up their products (Plank, Greenan, Miller, FAST 2013).
struct Shuffle<V>(PhantomData<V>);

// SAFETY: the vector's instruction set alone; `nibbles` has a table for every column.
unsafe impl<V: Vector> Factors for Shuffle<V> {
    type Vector = V;
    type Entry = [[u8; 16]; 2];
    type Factor = (V::Table, V::Table);
    type Operand = (V, V);
    /// AVX2 has sixteen registers: eight sums, two operands in two halves, a factor in two halves, the mask. The other
    /// sets have 32.
    const ROWS: usize = if V::LEN == 32 { 4 } else { 6 };

    #[inline(always)]
    fn factors(coefficients: &Coefficients, row: usize) -> &[Self::Entry] {
        coefficients.nibbles(row)
    }

    #[inline(always)]
    unsafe fn prepare(x: V) -> Self::Operand {
        // SAFETY: the instruction set, by the contract.
        unsafe { x.nibbles() }
    }

    #[inline(always)]
    unsafe fn factor([low, high]: &Self::Entry) -> Self::Factor {
        // SAFETY: the instruction set, by the contract.
        unsafe { (V::table(low), V::table(high)) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: V, (low_table, high_table): Self::Factor, (low, high): Self::Operand) -> V {
        // SAFETY: the instruction set, by the contract.
        unsafe { sum.xor3(low.look_up(low_table), high.look_up(high_table)) }
    }
}

/// [`super::dispatch::multiply`] by [`Shuffle`]; dispatch has checked lengths, rows and columns.
pub fn multiply_by_look_ups(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    on_vectors(isa, LookUps { coefficients, sources, targets });
}

/// The arguments of [`multiply`], with slices of equal length.
struct LookUps<'a, 's, 't> {
    coefficients: &'a Coefficients,
    sources: &'a [Source<'s>],
    targets: &'a mut [Target<'t>],
}

impl OnVectors for LookUps<'_, '_, '_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the instruction set, by the contract; the lengths, by the type's.
        unsafe { multiply::<Shuffle<V>>(self.coefficients, self.sources, self.targets) }
    }
}

/// [`super::dispatch::multiply`] with the multiplication of `F`.
///
/// # Safety
/// The instruction set of `F`; all sources and targets have the same length.
#[inline(always)]
pub unsafe fn multiply<F: Factors>(coefficients: &Coefficients, sources: &[Source<'_>], targets: &mut [Target<'_>]) {
    let len = targets.first().map_or(0, |t| t.bytes.len());
    let (block, reading) = (block_bytes(sources.len()), Reading::of(sources));
    for start in (0..len).step_by(block) {
        let range = start..len.min(start + block);
        for rows in targets.chunks_mut(F::ROWS) {
            // SAFETY: the caller vouches for the set and the lengths; `range` lies in 0..len.
            unsafe {
                match rows {
                    [row] if coefficients.is_ones(row.row) => xor::<F::Vector>(sources, row, range.clone()),
                    [_] => pass::<F, 1>(coefficients, sources, rows, range.clone(), reading),
                    [_, _] => pass::<F, 2>(coefficients, sources, rows, range.clone(), reading),
                    [_, _, _] => pass::<F, 3>(coefficients, sources, rows, range.clone(), reading),
                    [_, _, _, _] => pass::<F, 4>(coefficients, sources, rows, range.clone(), reading),
                    [_, _, _, _, _] => pass::<F, 5>(coefficients, sources, rows, range.clone(), reading),
                    _ => pass::<F, 6>(coefficients, sources, rows, range.clone(), reading),
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
    reading: Reading,
) {
    let entries: [&[F::Entry]; R] = std::array::from_fn(|r| F::factors(coefficients, rows[r].row));
    let out: [*mut u8; R] = std::array::from_fn(|r| rows[r].bytes.as_mut_ptr());
    let (mut at, ahead) = (range.start, reading.ahead);
    // Four times four sums, four operands and a factor fit the 32 registers of the widest vectors.
    if reading.long_steps && F::Vector::LEN == 64 && R <= 4 {
        while at + 4 * F::Vector::LEN <= range.end {
            // SAFETY: four vectors at `at` lie in `range`, so in every slice; rows have an entry for each column.
            unsafe { step::<F, R, 4>(&entries, &out, sources, at, F::Vector::LEN, ahead) };
            at += 4 * F::Vector::LEN;
        }
    }
    while at + 2 * F::Vector::LEN <= range.end {
        // SAFETY: two vectors at `at` lie in `range`, so in every slice; rows have an entry for each column.
        unsafe { step::<F, R, 2>(&entries, &out, sources, at, F::Vector::LEN, ahead) };
        at += 2 * F::Vector::LEN;
    }
    while at < range.end {
        // SAFETY: as above, for the bytes up to the end.
        unsafe { step::<F, R, 1>(&entries, &out, sources, at, F::Vector::LEN.min(range.end - at), ahead) };
        at += F::Vector::LEN;
    }
}

/// `R` rows of `N` vectors at offset `at`; of a single vector only the first `part` bytes.
///
/// # Safety
/// The instruction set; the bytes from `at` on lie in every source and target; rows have an entry for each column.
#[inline(always)]
unsafe fn step<F: Factors, const R: usize, const N: usize>(
    entries: &[&[F::Entry]; R],
    out: &[*mut u8; R],
    sources: &[Source<'_>],
    at: usize,
    part: usize,
    ahead: usize,
) {
    // SAFETY: the caller vouches for the set, the bytes and the columns.
    unsafe {
        let mut sums = [[F::Vector::splat(0); N]; R];
        for source in sources {
            let bytes = source.bytes.as_ptr().add(at);
            if N > 1 {
                prefetch::<F::Vector>(bytes.wrapping_add(ahead), N * F::Vector::LEN);
            }
            let mut x = [F::prepare(F::Vector::splat(0)); N];
            for n in 0..N {
                x[n] = F::prepare(load::<F::Vector, N>(bytes, n, part));
            }
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

/// A row of ones: the XOR of the sources.
///
/// # Safety
/// The instruction set; all slices have the same length and `range` lies inside.
#[inline(always)]
unsafe fn xor<V: Vector>(sources: &[Source<'_>], row: &mut Target<'_>, range: Range<usize>) {
    let out = row.bytes.as_mut_ptr();
    let mut at = range.start;
    while at + 4 * V::LEN <= range.end {
        // SAFETY: four vectors at `at` lie in `range`, so in every slice.
        unsafe { xor_step::<V, 4>(sources, out, at, V::LEN) };
        at += 4 * V::LEN;
    }
    while at < range.end {
        // SAFETY: as above, for the bytes up to the end.
        unsafe { xor_step::<V, 1>(sources, out, at, V::LEN.min(range.end - at)) };
        at += V::LEN;
    }
}

/// # Safety
/// The instruction set; the bytes from `at` on lie in every source and in `out`.
#[inline(always)]
unsafe fn xor_step<V: Vector, const N: usize>(sources: &[Source<'_>], out: *mut u8, at: usize, part: usize) {
    // SAFETY: the caller vouches for the set and the bytes.
    unsafe {
        let mut sums = [V::splat(0); N];
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
