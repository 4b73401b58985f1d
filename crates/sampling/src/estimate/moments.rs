//! Sums over the units of a stratum, from which every estimate follows.

use std::ops::AddAssign;

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
        self.count_size += unit.count * size;
        self.sum_size += unit.sum * size;
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
        self.count_size += other.count_size;
        self.sum_size += other.sum_size;
    }
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

    /// Third cumulant of a quantity of units (k₃), from the sums of its powers.
    pub(super) fn third_cumulant(&self, sum: f64, square: f64, cube: f64) -> f64 {
        if self.sampled < 3 {
            return 0.0;
        }
        let (n, mean) = (self.sampled as f64, sum / self.sampled as f64);
        let central = cube - 3.0 * mean * square + 3.0 * mean * mean * sum - n * mean.powi(3);
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
