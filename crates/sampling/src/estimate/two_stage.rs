//! ApproxSSD's own estimate of a sum: partitions are sampled, and records inside them.

use super::moments::ROUNDED_DIGITS;
use super::{Estimate, RARE_UNITS, t_quantile};

/// A sampled partition: how many records it has, and those that were looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartitionSample {
    /// Records in the partition (M_i).
    pub records: u64,
    /// Records of it that were sampled (m_i), at least 1.
    pub sampled: u64,
    /// Sum of their values.
    pub sum: f64,
    /// Sum of the squares of their values.
    pub squares: f64,
}

impl PartitionSample {
    /// Estimated sum of the partition: M/m · Σ v.
    fn total(&self) -> f64 {
        self.records as f64 / self.sampled as f64 * self.sum
    }

    /// M(M − m) s²/m, the second term of equation 1.3. (The thesis prints `M(M − i − m)`.)
    fn variance(&self) -> f64 {
        if self.sampled < 2 {
            return 0.0;
        }
        let m = self.sampled as f64;
        let between = at_least_0((self.squares - self.sum * self.sum / m) / (m - 1.0));
        match self.records - self.sampled {
            0 => 0.0,
            left => self.records as f64 * left as f64 * between / m,
        }
    }
}

/// A variance; an unbounded one where squares are beyond floating-point numbers, and cancel to nothing.
pub(super) fn at_least_0(variance: f64) -> f64 {
    if variance.is_nan() { f64::INFINITY } else { variance.max(0.0) }
}

/// Everything of `partitions` partitions was sampled.
pub(crate) fn is_whole(partitions: u64, samples: &[PartitionSample]) -> bool {
    samples.len() as u64 == partitions && samples.iter().all(|s| s.sampled >= s.records)
}

/// What rounding may make of the variance of [`two_stage_total`]. One that is not larger says nothing about what was not
/// sampled.
pub(crate) fn rounded_variance(partitions: u64, samples: &[PartitionSample]) -> f64 {
    let (all, n) = (partitions as f64, samples.len() as f64);
    let rounded = |n: f64, squares: f64, sum: f64| match n < 2.0 {
        true => 0.0,
        false => ROUNDED_DIGITS * n.sqrt() * (squares + sum * sum / n) / (n - 1.0),
    };
    let total = |of: fn(f64) -> f64| samples.iter().map(|s| of(s.total())).sum::<f64>();
    let within = |s: &PartitionSample| {
        let (all, m) = (s.records as f64, s.sampled as f64);
        if all > m { all * (all - m) / m * rounded(m, s.squares, s.sum) } else { 0.0 }
    };
    all * (all - n) / n * rounded(n, total(|y| y * y), total(|y| y)) + all / n * samples.iter().map(within).sum::<f64>()
}

/// Equations 1.1 to 1.3: the sum over `partitions` partitions of which some were sampled, and records inside these.
pub fn two_stage_total(partitions: u64, samples: &[PartitionSample], confidence: f64) -> Estimate {
    assert!(samples.len() as u64 <= partitions, "{} samples of {partitions} partitions", samples.len());
    let (all, n) = (partitions as f64, samples.len() as f64);
    let sum: f64 = samples.iter().map(PartitionSample::total).sum();
    let squares: f64 = samples.iter().map(|s| s.total().powi(2)).sum();
    let between = if samples.len() < 2 { 0.0 } else { at_least_0((squares - sum * sum / n) / (n - 1.0)) };
    let within: f64 = samples.iter().map(PartitionSample::variance).sum();
    let outer = if all > n { all * (all - n) * between / n } else { 0.0 };
    let variance = outer + all / n * within;
    let half = t_quantile(confidence, n - 1.0) * variance.sqrt();
    let value = all / n * sum;
    let is_known = is_whole(partitions, samples) || variance > rounded_variance(partitions, samples);
    let claimed = is_known && variance.is_finite() && samples.len() as u64 >= RARE_UNITS.min(partitions);
    Estimate {
        low: value - half,
        high: value + half,
        standard_error: variance.sqrt(),
        claimed,
        ..Estimate::exact(value, samples.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_claimed_of_values_whose_squares_overflow() {
        let partition = |sum: f64| PartitionSample { records: 10, sampled: 10, sum, squares: sum * sum };
        let samples: Vec<_> = (0..40).map(|i| partition(if i % 3 == 0 { 1e200 } else { -1e200 })).collect();
        assert!(!two_stage_total(100, &samples, 0.95).claimed);
        let whole = two_stage_total(40, &samples, 0.95);
        assert!(whole.claimed && whole.low == whole.high, "{whole:?}");
    }

    #[test]
    fn nothing_is_claimed_where_samples_do_not_differ() {
        let total = |records: u64, all: u64, value: &dyn Fn(u64) -> f64| {
            let partition = |i: u64| {
                let values = (0..10u64).map(|k| value(10 * i + k));
                let (sum, squares) = values.fold((0.0, 0.0), |(sum, squares), v| (sum + v, squares + v * v));
                PartitionSample { records, sampled: 10, sum, squares }
            };
            two_stage_total(all, &(0..40).map(partition).collect::<Vec<_>>(), 0.95)
        };
        for value in [0.0, 0.1, 1e9] {
            assert!(!total(10, 100, &|_| value).claimed && !total(20, 40, &|_| value).claimed, "{value}");
            assert!(total(10, 40, &|_| value).claimed, "everything was sampled");
        }
        assert!(!total(10, 100, &|i| 1.7e12 + (i * 7919 % 1000) as f64).claimed);
        assert!(total(10, 100, &|i| (i % 7) as f64).claimed);
    }

    #[test]
    fn equations_1_1_to_1_3_by_hand() {
        // N = 5, two partitions: M = 4, m = 2, v = 1, 3 (total 8, s² = 2); M = 6, m = 3, v = 2, 2, 5 (total 18, s² = 3).
        let first = PartitionSample { records: 4, sampled: 2, sum: 4.0, squares: 10.0 };
        let second = PartitionSample { records: 6, sampled: 3, sum: 9.0, squares: 33.0 };
        let total = two_stage_total(5, &[first, second], 0.95);
        assert!((total.value - 65.0).abs() < 1e-9);
        // between: s² = 50; 5·3·50/2 = 375. within: 4·2·2/2 + 6·3·3/3 = 26; 5/2·26 = 65.
        assert!((total.standard_error - 440f64.sqrt()).abs() < 1e-9);
    }
}
