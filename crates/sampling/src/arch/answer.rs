//! What follows from the rows that were read: totals and means with intervals.
//!
//! Rows are clusters of elements. In a balanced selection each bank is a stratum; a random selection has one. Banks are
//! sampled independently and weighted by their rows, so unequal shares bias nothing.

use super::file::Architecture;
use super::partition::Partitions;
use super::select::{Assignment, Selection};
use super::threads::fold;
use crate::Error;
use crate::estimate::{Estimate, GroupMoments, Moments, Population, Quantity, StratumSample, bootstrap};

/// What a row contributed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledRow {
    /// Its stratum: the bank, or 0.
    pub stratum: usize,
    /// Its number in the data.
    pub row: u64,
    /// Elements in it.
    pub elements: u64,
    /// Its moments.
    pub moments: Moments,
}

/// A sample of rows.
#[derive(Debug, Clone)]
pub struct RowSample {
    strata: Vec<StratumSample>,
    all: Vec<GroupMoments>,
    rows: Vec<SampledRow>,
}

impl RowSample {
    /// Reads the selected rows by the selection's threads. `measure` says what a row contributes.
    ///
    /// # Errors
    /// The selection is no random sample.
    pub fn read<T: Sync>(
        data: &[T],
        partitions: &Partitions,
        memory: &Architecture,
        selection: &Selection,
        measure: impl Fn(&[T]) -> Moments + Sync,
    ) -> Result<RowSample, Error> {
        let read = fold(data, partitions, memory, selection, Vec::new, |rows, row, elements| {
            rows.push((row, elements.len() as u64, measure(elements)));
        });
        RowSample::of(partitions, selection, read.into_iter().flatten())
    }

    /// A sample from rows that were read: (row, elements, moments).
    ///
    /// # Errors
    /// The selection is no random sample.
    pub fn of(
        partitions: &Partitions,
        selection: &Selection,
        read: impl Iterator<Item = (u64, u64, Moments)>,
    ) -> Result<RowSample, Error> {
        if selection.assignment == Assignment::Worst {
            return Err(Error::Question(
                "the worst case reads one bank only, which is no random sample; choose another assignment".into(),
            ));
        }
        let balanced = selection.assignment.is_balanced();
        let mut strata = strata(partitions, balanced);
        let mut all = vec![GroupMoments::default(); strata.len()];
        let sampled = |(row, elements, moments)| {
            let stratum = if balanced { partitions.bank(row) } else { 0 };
            SampledRow { stratum, row, elements, moments }
        };
        let mut rows: Vec<SampledRow> = read.map(sampled).collect();
        // The order must not depend on threads: the bootstrap draws by index.
        rows.sort_by_key(|row| (row.stratum, row.row));
        for row in &rows {
            strata[row.stratum].add_unit(row.elements as f64);
            all[row.stratum].add_unit(row.moments, row.elements as f64);
        }
        Ok(RowSample { strata, all, rows })
    }

    /// Number, sum or mean of what the rows contributed, over all rows of the data.
    pub fn estimate(&self, quantity: Quantity, confidence: f64) -> Estimate {
        let group: Vec<_> = self.all.iter().copied().enumerate().filter(|(_, moments)| moments.units > 0).collect();
        Population::new(&self.strata, &self.all, confidence).estimate(quantity, &group)
    }

    /// As [`RowSample::estimate`] for a mean, with an interval by bootstrap over rows within banks.
    pub fn bootstrap_mean(&self, confidence: f64, seed: u64) -> Option<Estimate> {
        self.bootstrap(confidence, seed, |rows, weights| {
            let sum = |part: fn(&Moments) -> f64| -> f64 {
                rows.iter().zip(weights).map(|(row, weight)| weight * part(&row.moments)).sum()
            };
            let count = sum(|moments| moments.count);
            (count > 0.0).then(|| sum(|moments| moments.sum) / count)
        })
    }

    /// Any statistic of the weighted rows, with an interval by bootstrap. A weight is the number of rows of the data
    /// for which a row stands.
    pub fn bootstrap(
        &self,
        confidence: f64,
        seed: u64,
        statistic: impl Fn(&[SampledRow], &[f64]) -> Option<f64>,
    ) -> Option<Estimate> {
        let stratum_of: Vec<usize> = self.rows.iter().map(|row| row.stratum).collect();
        let expansion: Vec<f64> = stratum_of.iter().map(|stratum| self.strata[*stratum].expansion()).collect();
        bootstrap(&self.strata, &stratum_of, confidence, seed, |factors| {
            let weights: Vec<f64> = factors.iter().zip(&expansion).map(|(factor, weight)| factor * weight).collect();
            statistic(&self.rows, &weights)
        })
    }

    /// The rows, by stratum and number.
    pub fn rows(&self) -> &[SampledRow] {
        &self.rows
    }
}

fn strata(partitions: &Partitions, balanced: bool) -> Vec<StratumSample> {
    let stratum = |units: u64, elements: u64| StratumSample { units, size: elements as f64, ..Default::default() };
    if !balanced {
        return vec![stratum(partitions.rows(), partitions.elements())];
    }
    (0..partitions.banks()).map(|bank| stratum(partitions.rows_of(bank), partitions.elements_of(bank))).collect()
}

/// Moments of values, for [`RowSample::read`].
pub fn moments(values: impl Iterator<Item = f64>) -> Moments {
    let mut all = Moments::default();
    values.for_each(|value| all += Moments { count: 1.0, sum: value, squares: value * value });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::partition::Placement;
    use crate::arch::select::select;
    use crate::arch::threads::place;

    fn memory() -> Architecture {
        let mut memory = Architecture::preset("pcm").unwrap();
        (memory.banks, memory.row_bytes) = (8, 256);
        memory.bank_weights = vec![1.0; 8];
        memory
    }

    #[test]
    fn what_was_read_whole_is_exact() {
        let memory = memory();
        let data = place(&memory, 10_001, |i| (i % 17) as u32).unwrap();
        let rows = Partitions::of(&data, &memory, Placement::Domain(0)).unwrap();
        let selection = select(&rows, &memory, u64::MAX, Assignment::ContentionFree, 2, 1).unwrap();
        let measure = |row: &[u32]| moments(row.iter().map(|value| f64::from(*value)));
        let sample = RowSample::read(&data, &rows, &memory, &selection, measure).unwrap();
        let truth = data.iter().map(|value| f64::from(*value)).sum::<f64>();
        let sum = sample.estimate(Quantity::Sum, 0.95);
        assert_eq!((sum.low, sum.high, sum.claimed), (sum.value, sum.value, true));
        assert!((sum.value - truth).abs() < 1e-6);
        let mean = sample.bootstrap_mean(0.95, 1).unwrap();
        assert!((mean.value - truth / 10_001.0).abs() < 1e-9 && mean.standard_error == 0.0);
    }

    #[test]
    fn weighted_banks_bias_nothing() {
        // Each bank has its own value; bank 7 gets half of the sample.
        let mut memory = memory();
        memory.bank_weights = vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 7.0];
        let data = vec![0u8; 256 * 8 * 50];
        let rows = Partitions::of(&data, &memory, Placement::Domain(0)).unwrap();
        let selection = select(&rows, &memory, 140, Assignment::LoadBalanced, 2, 1).unwrap();
        assert_eq!(selection.by_bank(&rows)[7], 50.max(selection.by_bank(&rows)[7]));
        let read = selection.threads.iter().flatten().map(|row| {
            let elements = rows.range(*row).len() as u64;
            (*row, elements, moments((0..elements).map(|_| rows.bank(*row) as f64)))
        });
        let sample = RowSample::of(&rows, &selection, read).unwrap();
        let truth = (0..8).map(|bank| bank as f64 * rows.elements_of(bank) as f64).sum::<f64>() / data.len() as f64;
        let mean = sample.estimate(Quantity::Mean, 0.95);
        assert!((mean.value - truth).abs() < 0.02 * truth, "{} of {truth}", mean.value);
    }

    #[test]
    fn nothing_is_estimated_from_the_worst_case() {
        let memory = memory();
        let rows = Partitions::at(0, 1, 100_000, &memory, Placement::Domain(0)).unwrap();
        let selection = select(&rows, &memory, 20, Assignment::Worst, 2, 1).unwrap();
        let refused = RowSample::of(&rows, &selection, std::iter::empty()).unwrap_err().to_string();
        assert!(refused.contains("no random sample"), "{refused}");
    }
}
