//! Totals and means of groups over stratified clusters.
//!
//! A total is the expanded total corrected by regression on the size of units (Cochran, chapter 7): where larger units
//! hold more of a group, the error that comes from having drawn larger or smaller units than average is taken out. With
//! equal units it is the plain Horvitz–Thompson estimate, equation 1.1 of ApproxSSD with all records of a unit read. A
//! mean is the ratio of two totals (Cochran, chapter 6). Degrees of freedom follow Satterthwaite, since strata have
//! unequal variances.

use super::{Estimate, GroupMoments, RARE_UNITS, StratumSample, t_quantile};

/// What is estimated of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Number of records.
    Count,
    /// Sum of values.
    Sum,
    /// Mean of values.
    Mean,
}

/// The strata, and how sure intervals shall be.
#[derive(Debug, Clone)]
pub struct Population<'a> {
    strata: &'a [StratumSample],
    confidence: f64,
    /// Expanded size less the true size.
    size_error: f64,
    size_variance: f64,
    /// Records of the sample, for design effects.
    sampled_records: f64,
    /// Estimated number of all records.
    records: f64,
}

/// Σ over strata of the variances of their expanded totals, and of their squares by degrees of freedom.
#[derive(Default)]
struct VarianceSum {
    variance: f64,
    satterthwaite: f64,
}

impl VarianceSum {
    fn add(&mut self, stratum: &StratumSample, variance_of_units: f64) {
        let variance = stratum.variance_factor() * variance_of_units.max(0.0);
        self.variance += variance;
        if variance > 0.0 {
            self.satterthwaite += variance * variance / (stratum.sampled - 1).max(1) as f64;
        }
    }

    fn degrees_of_freedom(&self) -> f64 {
        if self.satterthwaite > 0.0 { self.variance * self.variance / self.satterthwaite } else { f64::MAX }
    }
}

impl<'a> Population<'a> {
    /// Prepares estimates. `all` are the moments of all records together, for each stratum.
    pub fn new(strata: &'a [StratumSample], all: &[GroupMoments], confidence: f64) -> Population<'a> {
        assert_eq!(strata.len(), all.len(), "moments for each stratum");
        let mut population =
            Population { strata, confidence, size_error: 0.0, size_variance: 0.0, sampled_records: 0.0, records: 0.0 };
        for (stratum, all) in strata.iter().zip(all) {
            population.size_error += stratum.expansion() * stratum.sampled_size - stratum.size;
            population.size_variance += stratum.variance_factor() * size_variance(stratum);
            population.sampled_records += all.total.count;
            population.records += stratum.expansion() * all.total.count;
        }
        population
    }

    /// Everything was read.
    pub fn is_whole(&self) -> bool {
        self.strata.iter().all(|stratum| stratum.sampled == stratum.units)
    }

    /// Estimates a quantity of a group from its moments in the strata where it was seen.
    pub fn estimate(&self, quantity: Quantity, group: &[(usize, GroupMoments)]) -> Estimate {
        let units_seen = group.iter().map(|(_, moments)| moments.units).sum();
        let mut estimate = match quantity {
            Quantity::Count => self.total(group, |m| m.total.count, |m| m.count_count, |m| m.count_size),
            Quantity::Sum => self.total(group, |m| m.total.sum, |m| m.sum_sum, |m| m.sum_size),
            Quantity::Mean => self.mean(group),
        };
        estimate.units_seen = units_seen;
        estimate.claimed = self.is_whole() || units_seen >= RARE_UNITS;
        if quantity == Quantity::Count {
            // What was seen is there.
            let seen: f64 = group.iter().map(|(_, m)| m.total.count).sum();
            estimate.low = estimate.low.max(seen);
            estimate.high = estimate.high.max(seen);
        }
        estimate.design_effect = estimate.standard_error.powi(2) / self.variance_of_single_records(quantity, group);
        estimate
    }

    fn total(
        &self,
        group: &[(usize, GroupMoments)],
        sum: impl Fn(&GroupMoments) -> f64,
        square: impl Fn(&GroupMoments) -> f64,
        by_size: impl Fn(&GroupMoments) -> f64,
    ) -> Estimate {
        let mut expanded = 0.0;
        let mut with_size = 0.0;
        for (h, moments) in group {
            let stratum = &self.strata[*h];
            expanded += stratum.expansion() * sum(moments);
            with_size +=
                stratum.variance_factor() * stratum.covariance(sum(moments), stratum.sampled_size, by_size(moments));
        }
        let slope = if self.size_variance > 0.0 { with_size / self.size_variance } else { 0.0 };
        let mut found = VarianceSum::default();
        let mut seen_in = group.iter().peekable();
        for (h, stratum) in self.strata.iter().enumerate() {
            let moments =
                seen_in.next_if(|(seen, _)| *seen == h).map_or(GroupMoments::default(), |(_, moments)| *moments);
            let own = stratum.covariance(sum(&moments), sum(&moments), square(&moments));
            let both = stratum.covariance(sum(&moments), stratum.sampled_size, by_size(&moments));
            found.add(stratum, own - 2.0 * slope * both + slope * slope * size_variance(stratum));
        }
        assert!(seen_in.peek().is_none(), "moments are in the order of strata");
        self.interval(expanded - slope * self.size_error, found, 1.0)
    }

    fn mean(&self, group: &[(usize, GroupMoments)]) -> Estimate {
        let (mut count, mut sum) = (0.0, 0.0);
        for (h, moments) in group {
            count += self.strata[*h].expansion() * moments.total.count;
            sum += self.strata[*h].expansion() * moments.total.sum;
        }
        let mean = sum / count;
        let mut found = VarianceSum::default();
        for (h, m) in group {
            let residual = m.total.sum - mean * m.total.count;
            let square = m.sum_sum - 2.0 * mean * m.count_sum + mean * mean * m.count_count;
            let stratum = &self.strata[*h];
            found.add(stratum, stratum.covariance(residual, residual, square));
        }
        self.interval(mean, found, count)
    }

    fn interval(&self, value: f64, found: VarianceSum, divisor: f64) -> Estimate {
        let standard_error = found.variance.sqrt() / divisor;
        let half = if standard_error > 0.0 {
            t_quantile(self.confidence, found.degrees_of_freedom()) * standard_error
        } else {
            0.0
        };
        let (low, high) = (value - half, value + half);
        Estimate { low, high, standard_error, ..Estimate::exact(value, 0) }
    }

    /// The variance that as many records would give if each were drawn for itself: the naive one.
    pub fn variance_of_single_records(&self, quantity: Quantity, group: &[(usize, GroupMoments)]) -> f64 {
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for (h, m) in group {
            let expansion = self.strata[*h].expansion();
            count += expansion * m.total.count;
            sum += expansion * m.total.sum;
            squares += expansion * m.total.squares;
        }
        let left = 1.0 - self.sampled_records / self.records;
        let of_mean =
            |all: f64, sum: f64, squares: f64, sampled: f64| left * (squares / all - (sum / all).powi(2)) / sampled;
        match quantity {
            Quantity::Count => self.records.powi(2) * of_mean(self.records, count, count, self.sampled_records),
            Quantity::Sum => self.records.powi(2) * of_mean(self.records, sum, squares, self.sampled_records),
            Quantity::Mean => of_mean(count, sum, squares, count * self.sampled_records / self.records),
        }
    }
}

fn size_variance(stratum: &StratumSample) -> f64 {
    stratum.covariance(stratum.sampled_size, stratum.sampled_size, stratum.size_size).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Moments;

    /// Cochran's formula computed by hand: N = 10, n = 4, y = 3, 5, 4, 8, equal sizes.
    #[test]
    fn a_total_of_one_stratum_equals_arithmetic() {
        let mut stratum = StratumSample { units: 10, size: 100.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for y in [3.0, 5.0, 4.0, 8.0] {
            stratum.add_unit(10.0);
            group.add_unit(Moments { count: y, sum: y, squares: y }, 10.0);
        }
        let strata = [stratum];
        let population = Population::new(&strata, &[group], 0.95);
        let total = population.estimate(Quantity::Count, &[(0, group)]);
        assert!((total.value - 50.0).abs() < 1e-9);
        // s² = 14/3; V = 10·6/4·14/3 = 70; t(3) = 3.1824.
        assert!((total.standard_error - 70f64.sqrt()).abs() < 1e-9);
        assert!((total.high - (50.0 + 3.182446 * 70f64.sqrt())).abs() < 1e-3);
        assert!(!total.claimed, "four units are few");
    }

    #[test]
    fn totals_in_proportion_to_size_have_no_error() {
        let mut stratum = StratumSample { units: 6, size: 21.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for size in [1.0, 4.0, 6.0] {
            stratum.add_unit(size);
            group.add_unit(Moments { count: 3.0 * size, ..Default::default() }, size);
        }
        let strata = [stratum];
        let total = Population::new(&strata, &[group], 0.95).estimate(Quantity::Count, &[(0, group)]);
        assert!((total.value - 63.0).abs() < 1e-9 && total.standard_error < 1e-6, "{total:?}");
    }

    #[test]
    fn what_was_read_whole_is_exact() {
        let mut stratum = StratumSample { units: 2, size: 2.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for y in [3.0, 5.0] {
            stratum.add_unit(1.0);
            group.add_unit(Moments { count: 1.0, sum: y, squares: y * y }, 1.0);
        }
        let strata = [stratum];
        let population = Population::new(&strata, &[group], 0.95);
        let mean = population.estimate(Quantity::Mean, &[(0, group)]);
        assert_eq!((mean.value, mean.low, mean.high, mean.claimed), (4.0, 4.0, 4.0, true));
    }
}
