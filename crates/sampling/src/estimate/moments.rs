//! Sums over the units of a stratum, from which every estimate follows.

use std::ops::AddAssign;

/// Relative error of a sum for each root of its number of terms, at most.
pub(super) const ROUNDED_DIGITS: f64 = 16.0 * f64::EPSILON;

/// What a unit contributes to a group: a point of the sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    /// Records of the group (Σ over the unit's records of 1).
    pub count: f64,
    /// Sum of their values.
    pub sum: f64,
    /// Sum of the squares of their values.
    pub squares: f64,
}

impl AddAssign for Moments {
    fn add_assign(&mut self, other: Moments) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }
}

/// Sums and products over the units of one stratum that contain a group; units without it add nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupMoments {
    /// Units that contain the group.
    pub units: u64,
    /// Sum of their moments.
    pub total: Moments,
    /// Σ count².
    pub count_count: f64,
    /// Σ sum².
    pub sum_sum: f64,
    /// Σ count³.
    pub count_cubed: f64,
    /// Σ sum³.
    pub sum_cubed: f64,
    /// Σ count · sum.
    pub count_sum: f64,
    /// Σ count² · sum.
    pub count_count_sum: f64,
    /// Σ count · sum².
    pub count_sum_sum: f64,
    /// Σ count · size of the unit.
    pub count_size: f64,
    /// Σ sum · size of the unit.
    pub sum_size: f64,
}

impl GroupMoments {
    /// Adds a unit of `size` that contains the group.
    pub fn add_unit(&mut self, unit: Moments, size: f64) {
        self.units += 1;
        self.total += unit;
        self.count_count += unit.count * unit.count;
        self.sum_sum += unit.sum * unit.sum;
        self.count_cubed += unit.count.powi(3);
        self.sum_cubed += unit.sum.powi(3);
        self.count_sum += unit.count * unit.sum;
        self.count_count_sum += unit.count * unit.count * unit.sum;
        self.count_sum_sum += unit.count * unit.sum * unit.sum;
        self.count_size += unit.count * size;
        self.sum_size += unit.sum * size;
    }

    /// Sums of the residuals sum − `mean` · count of units: what a unit adds to the error of a mean.
    pub(super) fn residuals(&self, mean: f64) -> ResidualSums {
        let cubes = [
            self.sum_cubed,
            -3.0 * mean * self.count_sum_sum,
            3.0 * mean * mean * self.count_count_sum,
            -mean.powi(3) * self.count_cubed,
        ];
        let squares = [self.sum_sum, -2.0 * mean * self.count_sum, mean * mean * self.count_count];
        ResidualSums {
            sum: self.total.sum - mean * self.total.count,
            square: squares.iter().sum(),
            square_terms: squares.iter().map(|term| term.abs()).sum(),
            cube: cubes.iter().sum(),
            cube_terms: cubes.iter().map(|term| term.abs()).sum(),
        }
    }
}

impl AddAssign<&GroupMoments> for GroupMoments {
    fn add_assign(&mut self, other: &GroupMoments) {
        self.units += other.units;
        self.total += other.total;
        self.count_count += other.count_count;
        self.sum_sum += other.sum_sum;
        self.count_cubed += other.count_cubed;
        self.sum_cubed += other.sum_cubed;
        self.count_sum += other.count_sum;
        self.count_count_sum += other.count_count_sum;
        self.count_sum_sum += other.count_sum_sum;
        self.count_size += other.count_size;
        self.sum_size += other.sum_size;
    }
}

/// Sums over units of powers of their residuals.
pub(super) struct ResidualSums {
    /// Σ residual.
    pub sum: f64,
    /// Σ residual².
    pub square: f64,
    /// Sum of the sizes of the terms that make up `square`.
    pub square_terms: f64,
    /// Σ residual³.
    pub cube: f64,
    /// Sum of the sizes of the terms that make up `cube`.
    pub cube_terms: f64,
}

/// What a group has in the units of one stratum that arrived, without what variances need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupTotal {
    /// The stratum.
    pub stratum: usize,
    /// Units that contain the group.
    pub units: u64,
    /// Sum of their moments.
    pub total: Moments,
}

/// What is known of a stratum: all of it, and the units that arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StratumSample {
    /// Units in the stratum (N).
    pub units: u64,
    /// Size of all of them, in bytes or rows.
    pub size: f64,
    /// They are units of several small files, which share a stratum.
    pub of_several_files: bool,
    /// Units that arrived (n).
    pub sampled: u64,
    /// Σ size over these.
    pub sampled_size: f64,
    /// Σ size² over these.
    pub size_size: f64,
}

impl StratumSample {
    /// Adds a unit that arrived.
    pub fn add_unit(&mut self, size: f64) {
        self.sampled += 1;
        self.sampled_size += size;
        self.size_size += size * size;
    }

    /// The stratum, of which nothing has arrived.
    pub fn unsampled(&self) -> StratumSample {
        StratumSample { sampled: 0, sampled_size: 0.0, size_size: 0.0, ..*self }
    }

    /// Takes over the units that another thread counted of the same stratum.
    pub fn merge(&mut self, other: &StratumSample) {
        assert_eq!((self.units, self.size), (other.units, other.size), "parts of one stratum");
        self.sampled += other.sampled;
        self.sampled_size += other.sampled_size;
        self.size_size += other.size_size;
    }

    /// Factor from the sum over the sample to the total (N/n).
    pub(crate) fn expansion(&self) -> f64 {
        if self.sampled == 0 { 0.0 } else { self.units as f64 / self.sampled as f64 }
    }

    /// Factor from the variance between units to that of the expanded total: N(N − n)/n, with the finite-population
    /// correction (ApproxSSD, first term of equation 1.3).
    pub(super) fn variance_factor(&self) -> f64 {
        if self.sampled == 0 { 0.0 } else { self.expansion() * (self.units - self.sampled) as f64 }
    }

    /// Covariance between two quantities of units from their sums and the sum of their products.
    pub(super) fn covariance(&self, sum_a: f64, sum_b: f64, product: f64) -> f64 {
        if self.sampled < 2 {
            return 0.0;
        }
        let n = self.sampled as f64;
        (product - sum_a * sum_b / n) / (n - 1.0)
    }

    /// What rounding may make of a variance, where `terms` is the size of what is added up to the sum of squares.
    pub(super) fn rounded_variance(&self, terms: f64) -> f64 {
        let n = self.sampled as f64;
        if self.sampled < 2 { 0.0 } else { ROUNDED_DIGITS * n.sqrt() * terms / (n - 1.0) }
    }

    /// Third cumulant of a quantity of units (k₃), from the sums of its powers; 0 if rounding may make up most of it.
    /// `cube_terms` is the size of what was added up to `cube`.
    pub(super) fn third_cumulant(&self, sum: f64, square: f64, cube: f64, cube_terms: f64) -> f64 {
        if self.sampled < 3 {
            return 0.0;
        }
        let (n, mean) = (self.sampled as f64, sum / self.sampled as f64);
        let central = cube - 3.0 * mean * square + 3.0 * mean * mean * sum - n * mean.powi(3);
        if central.abs() < ROUNDED_DIGITS * n.sqrt() * cube_terms {
            return 0.0;
        }
        n / ((n - 1.0) * (n - 2.0)) * central
    }

    /// Factor from the third cumulant of units to that of the expanded total: N³/n² (1 − f)(1 − 2f), the latter being
    /// the finite-population correction.
    pub(super) fn third_factor(&self) -> f64 {
        let left = (1.0 - self.fraction()) * (1.0 - 2.0 * self.fraction()).max(0.0);
        self.expansion().powi(2) * self.units as f64 * left
    }

    /// Variance of the sizes of units.
    pub(super) fn size_variance(&self) -> f64 {
        self.covariance(self.sampled_size, self.sampled_size, self.size_size).max(0.0)
    }

    /// Expanded size less the true size; known exactly, so that it can be corrected.
    pub(super) fn size_error(&self) -> f64 {
        if self.sampled == 0 { 0.0 } else { self.expansion() * self.sampled_size - self.size }
    }

    /// Sampled share (n/N).
    pub(super) fn fraction(&self) -> f64 {
        if self.units == 0 { 1.0 } else { self.sampled as f64 / self.units as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residuals_are_those_of_units_one_by_one() {
        let units = [(1.0, 5.0), (4.0, -2.0), (3.0, 30.0), (2.0, 0.5)];
        let (mut first, mut second) = (GroupMoments::default(), GroupMoments::default());
        for (i, (count, sum)) in units.into_iter().enumerate() {
            let of = if i < 2 { &mut first } else { &mut second };
            of.add_unit(Moments { count, sum, squares: sum * sum }, 1.0);
        }
        first += &second;
        let mean = 3.35;
        let power = |k| units.iter().map(|(count, sum)| (sum - mean * count).powi(k)).sum::<f64>();
        let found = first.residuals(mean);
        for (found, expected) in [(found.sum, power(1)), (found.square, power(2)), (found.cube, power(3))] {
            assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
        }
    }

    #[test]
    fn a_third_cumulant_that_is_rounded_away_is_0() {
        let stratum = StratumSample { units: 9, sampled: 4, ..Default::default() };
        // 1, 2, 3 and 10: the mean is 4, Σ (y − 4)³ = 180, k₃ = 4 / 6 · 180.
        assert!((stratum.third_cumulant(16.0, 114.0, 1036.0, 1036.0) - 120.0).abs() < 1e-9);
        assert_eq!(stratum.third_cumulant(16.0, 114.0, 1036.0, 1e18), 0.0);
    }
}
