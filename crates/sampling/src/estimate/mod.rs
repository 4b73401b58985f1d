//! From the units that arrived to totals, means, quantiles and numbers of distinct keys, with intervals.
//!
//! Units are clusters of records: records of one unit resemble each other, so an interval that takes records for
//! independent is too narrow. Here the unit is what was drawn, strata are disks and files, and the variance is that
//! between units of a stratum (Cochran, Sampling Techniques, 3rd edition, chapters 5, 7 and 9; ApproxSSD, equations 1.1
//! to 1.3).

mod bootstrap;
mod distinct;
mod moments;
mod quantile;
mod total;
mod two_stage;

pub use bootstrap::bootstrap;
pub use distinct::{OnceSeen, distinct};
pub use moments::{GroupMoments, GroupTotal, Moments, StratumSample};
pub use quantile::{UnitValues, quantile, quantile_of_all};
pub use total::{Population, Quantity};
pub use two_stage::{PartitionSample, two_stage_total};
pub(crate) use two_stage::{is_whole, rounded_variance};

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Units in which a group must have been seen before an interval is claimed for it. The distribution of fewer is too
/// skewed for the normal law; coverage at this number is tested.
pub const RARE_UNITS: u64 = 30;

/// Degrees of freedom from which on Student's distribution is the normal one to six digits.
const NORMAL_FREEDOM: f64 = 1e5;

/// An estimate with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Standard error.
    pub standard_error: f64,
    /// Variance compared with that of as many records drawn one by one: 1 if the records of a unit do not resemble each
    /// other. NaN where there is no variance.
    pub design_effect: f64,
    /// Units in which the group was seen.
    pub units_seen: u64,
    /// The interval is claimed: the group was seen in enough units, or everything was read.
    pub claimed: bool,
}

impl Estimate {
    /// What is known exactly.
    pub fn exact(value: f64, units_seen: u64) -> Estimate {
        Estimate {
            value,
            low: value,
            high: value,
            standard_error: 0.0,
            design_effect: f64::NAN,
            units_seen,
            claimed: true,
        }
    }

    /// What follows from a part that is not random: a value, and nothing about its error.
    pub fn unclaimed(value: f64, units_seen: u64) -> Estimate {
        Estimate { standard_error: f64::NAN, claimed: false, ..Estimate::exact(value, units_seen) }
    }

    /// The wider side of the interval, relative to the estimate; infinite at 0.
    pub fn relative_error(&self) -> f64 {
        let side = (self.high - self.value).max(self.value - self.low);
        if side == 0.0 { 0.0 } else { side / self.value.abs() }
    }

    /// By what factor the sample must grow so that the interval is claimed, and so narrow on each side.
    pub fn needed_factor(&self, relative_error: f64) -> f64 {
        if self.standard_error == 0.0 && self.claimed {
            return 0.0;
        }
        let precise = (self.relative_error() / relative_error).powi(2);
        let seen = RARE_UNITS as f64 / (self.units_seen as f64).max(1.0);
        if self.claimed { precise } else { precise.max(seen).max(1.01) }
    }
}

/// Something arrived of each stratum. Of one that gave nothing, as when a sample is interrupted early, nothing is known.
fn every_stratum_is_seen(strata: &[StratumSample]) -> bool {
    strata.iter().all(|stratum| stratum.sampled > 0 || stratum.units == 0)
}

/// The quantile of Student's distribution that a two-sided interval of `confidence` needs.
pub fn t_quantile(confidence: f64, degrees_of_freedom: f64) -> f64 {
    assert!((0.0..1.0).contains(&confidence), "a confidence of {confidence}");
    if degrees_of_freedom > NORMAL_FREEDOM {
        return Normal::standard().inverse_cdf(0.5 + confidence / 2.0);
    }
    let law = StudentsT::new(0.0, 1.0, degrees_of_freedom.max(1.0)).expect("at least one degree of freedom");
    law.inverse_cdf(0.5 + confidence / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wider_side_of_an_interval_counts() {
        let estimate = |value, low, high| Estimate { value, low, high, ..Estimate::unclaimed(value, 60) };
        for (low, high) in [(99.0, 108.0), (92.0, 101.0), (92.0, 108.0), (100.0, 108.0)] {
            let of = estimate(100.0, low, high);
            assert!((of.relative_error() - 0.08).abs() < 1e-12, "{low} to {high}");
            let claimed = Estimate { claimed: true, ..of };
            assert!(claimed.needed_factor(0.0799) > 1.0 && claimed.needed_factor(0.0801) < 1.0, "{low} to {high}");
            assert_eq!(estimate(-100.0, -high, -low).relative_error(), of.relative_error());
        }
        assert_eq!(estimate(0.0, 0.0, 0.0).relative_error(), 0.0);
        assert!(estimate(f64::NAN, f64::NAN, f64::NAN).relative_error().is_nan());
    }

    #[test]
    fn t_quantiles_are_those_of_the_tables() {
        for (df, expected) in [(1.0, 12.706), (2.0, 4.303), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (1e6, 1.960)] {
            let found = t_quantile(0.95, df);
            assert!((found - expected).abs() < 0.001, "{df}: {found}, not {expected}");
        }
        assert!((t_quantile(0.99, 10.0) - 3.169).abs() < 0.001);
    }
}
