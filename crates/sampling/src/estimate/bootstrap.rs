//! Intervals by bootstrap over units, for any statistic of a weighted sample.
//!
//! The bootstrap draws units, not records, within each stratum, and scales their weights so that its variance is the
//! right one for small strata and large sampled shares (Rao, Wu and Yue, Survey Methodology 18, 1992; Cochran's
//! finite-population correction inside the scale). The ends of the interval are percentiles of the replicates
//! (ArchSampler, section on bootstrap error estimation).

use super::{Estimate, RARE_UNITS, StratumSample, t_quantile};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Replicates of the bootstrap.
const REPLICATES: usize = 200;

/// Estimates `statistic`, which gets a factor for the weight of each unit: 1 for all gives the estimate. Unit `i` is of
/// stratum `stratum_of[i]`; units of one stratum follow each other. `None` if the statistic of the sample is `None`.
pub fn bootstrap(
    strata: &[StratumSample],
    stratum_of: &[usize],
    confidence: f64,
    seed: u64,
    statistic: impl Fn(&[f64]) -> Option<f64>,
) -> Option<Estimate> {
    assert!(stratum_of.is_sorted(), "units of one stratum follow each other");
    let value = statistic(&vec![1.0; stratum_of.len()])?;
    let units_seen = stratum_of.len() as u64;
    if strata.iter().all(|stratum| stratum.sampled == stratum.units) {
        return Some(Estimate::exact(value, units_seen));
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let mut found: Vec<f64> =
        (0..REPLICATES).filter_map(|_| statistic(&replicate(strata, stratum_of, &mut rng))).collect();
    if found.is_empty() {
        return None;
    }
    found.sort_by(f64::total_cmp);
    // The percentiles are those of a normal law; few units need Student's.
    let freedom: u64 = strata.iter().map(|stratum| stratum.sampled.saturating_sub(1)).sum();
    let widen = t_quantile(confidence, freedom as f64) / t_quantile(confidence, 1e9);
    let percentile = |p: f64| found[((found.len() - 1) as f64 * p).round() as usize];
    let low = value - (value - percentile((1.0 - confidence) / 2.0)) * widen;
    let high = value + (percentile((1.0 + confidence) / 2.0) - value) * widen;
    let mean = found.iter().sum::<f64>() / found.len() as f64;
    let standard_error = (found.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / found.len() as f64).sqrt();
    let claimed = units_seen >= RARE_UNITS;
    Some(Estimate { low, high, standard_error, claimed, ..Estimate::exact(value, units_seen) })
}

/// Factors of the units' weights in one replicate.
fn replicate(strata: &[StratumSample], stratum_of: &[usize], rng: &mut StdRng) -> Vec<f64> {
    let mut factors = vec![0.0; stratum_of.len()];
    let mut from = 0;
    for of_stratum in stratum_of.chunk_by(|a, b| a == b) {
        let stratum = &strata[of_stratum[0]];
        let n = of_stratum.len();
        let root = (1.0 - stratum.fraction()).sqrt();
        factors[from..from + n].fill(if n > 1 { 1.0 - root } else { 1.0 });
        for _ in 1..n {
            factors[from + rng.random_range(0..n)] += root * n as f64 / (n - 1) as f64;
        }
        from += n;
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variance_of_a_mean_is_the_one_of_the_textbook() {
        // N = 20, n = 10, y = 0 to 9: s² = 55/6, V = (1 − n/N) s²/n.
        let strata = [StratumSample { units: 20, sampled: 10, ..Default::default() }];
        let mean = |factors: &[f64]| {
            let weight: f64 = factors.iter().sum();
            Some(factors.iter().enumerate().map(|(y, factor)| y as f64 * factor).sum::<f64>() / weight)
        };
        let errors = (0..20).map(|seed| bootstrap(&strata, &[0; 10], 0.95, seed, mean).unwrap().standard_error.powi(2));
        let variance = errors.sum::<f64>() / 20.0;
        let expected = 0.5 * 55.0 / 6.0 / 10.0;
        assert!((variance / expected - 1.0).abs() < 0.05, "{variance} of {expected}");
    }
}
