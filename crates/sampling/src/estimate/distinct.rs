//! How many distinct keys there are.
//!
//! No sample can tell this well: keys that lie in unread units only leave no trace (Charikar et al., PODS 2000, prove
//! it). What can be said follows from the keys that were seen in one sampled unit only. A key that lies in K units of a
//! stratum, of which each is sampled with chance f, is unseen with (1 − f)^K and seen in exactly one unit with
//! K·f·(1 − f)^(K − 1). So the expected number of unseen keys is at most (1 − f)/f times that of keys seen in one unit,
//! with equality for keys that lie in one unit. The interval goes from what was seen to that bound; the estimate is the
//! guaranteed-error one of Charikar et al., with units for rows. The bound varies as the number of such keys does between
//! units: where a few units have most of them, it depends on how many of those were drawn.

use super::{Estimate, RARE_UNITS, StratumSample, every_stratum_is_seen};

/// Keys that were seen in one unit only, of a stratum.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OnceSeen {
    /// Their number.
    pub keys: f64,
    /// Sum over the units of the square of the number in a unit.
    pub squares: f64,
}

impl OnceSeen {
    /// Adds a unit with so many of them.
    pub fn add_unit(&mut self, keys: u64) {
        self.keys += keys as f64;
        self.squares += (keys as f64).powi(2);
    }
}

/// Estimates the number of distinct keys. `seen` keys were seen; `once[h]` of them in one unit only, of stratum h.
pub fn distinct(seen: u64, once: &[OnceSeen], strata: &[StratumSample], confidence: f64) -> Estimate {
    assert_eq!(once.len(), strata.len(), "a number for each stratum");
    let (mut likely, mut bound, mut variance, mut most) = (0.0, 0.0, 0.0, 0f64);
    for (once, stratum) in once.iter().zip(strata) {
        let fraction = stratum.fraction();
        if fraction == 0.0 || fraction == 1.0 {
            continue;
        }
        most = most.max(1.0 / fraction);
        let unseen = (1.0 - fraction) / fraction;
        likely += once.keys * ((1.0 / fraction).sqrt() - 1.0);
        bound += once.keys * unseen;
        // A number of rare events varies as Poisson's law does, at least.
        let between = stratum.variance_factor() * stratum.covariance(once.keys, once.keys, once.squares);
        variance += between.max(once.keys * unseen / fraction);
    }
    let sampled: u64 = strata.iter().map(|stratum| stratum.sampled).sum();
    let freedom: u64 = strata.iter().map(|stratum| stratum.sampled.saturating_sub(1)).sum();
    let low = seen as f64;
    // The variance is that of the number that was seen, which may be less than was to be expected. So the bound is the
    // largest one from which it differs by t standard errors (Wilson's interval): it says something where none was seen.
    let t = super::t_quantile(confidence, freedom as f64);
    let more = t * t * most / 2.0;
    let high = low + bound + more + (t * t * variance + more * more).sqrt();
    let value = low + likely;
    Estimate {
        high,
        standard_error: f64::NAN,
        claimed: strata.iter().all(|stratum| stratum.sampled == stratum.units)
            || (sampled >= RARE_UNITS && every_stratum_is_seen(strata)),
        low,
        ..Estimate::exact(value, sampled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeMap;

    #[test]
    fn nothing_unseen_where_everything_was_read() {
        let strata = [StratumSample { units: 9, sampled: 9, ..Default::default() }];
        let all = distinct(77, &[OnceSeen { keys: 40.0, squares: 1600.0 }], &strata, 0.95);
        assert_eq!((all.low, all.value, all.high, all.claimed), (77.0, 77.0, 77.0, true));
    }

    #[test]
    fn nothing_is_claimed_where_a_stratum_gave_no_unit() {
        let strata = [
            StratumSample { units: 100, sampled: 40, ..Default::default() },
            StratumSample { units: 100, sampled: 0, ..Default::default() },
        ];
        assert!(!distinct(77, &[OnceSeen::default(); 2], &strata, 0.95).claimed);
    }

    /// A few keys lie in one unit each, and most samples meet none of these units.
    #[test]
    fn the_interval_holds_where_few_keys_are_rare() {
        for rare in [0u64, 1, 5, 20, 60] {
            let mut covered = 0;
            for seed in 0..200 {
                let mut rng = StdRng::seed_from_u64(seed);
                let mut once = OnceSeen::default();
                let units = rand::seq::index::sample(&mut rng, 500, 50);
                units.iter().filter(|unit| (*unit as u64) < rare).for_each(|_| once.add_unit(1));
                let strata = [StratumSample { units: 500, sampled: 50, ..Default::default() }];
                let found = distinct(100 + once.keys as u64, &[once], &strata, 0.95);
                covered += u32::from(found.low <= (100 + rare) as f64 && (100 + rare) as f64 <= found.high);
            }
            assert!(covered >= 188, "{rare} rare keys: {covered} of 200");
        }
    }

    #[test]
    fn the_interval_holds_for_keys_that_lie_in_one_unit_and_in_many() {
        // The third number: one of so many units has keys.
        for (keys_of_unit, spread, burst) in [(20u64, 0u64, 1), (20, 50, 1), (3, 4000, 1), (20, 0, 5)] {
            let mut covered = 0;
            for seed in 0..200 {
                let mut rng = StdRng::seed_from_u64(seed);
                let units: Vec<Vec<u64>> = (0..500)
                    .map(|unit| {
                        (0..if unit % burst == 0 { keys_of_unit } else { 0 })
                            .map(|k| if spread == 0 { unit * keys_of_unit + k } else { rng.random_range(0..spread) })
                            .collect()
                    })
                    .collect();
                let truth = units.iter().flatten().collect::<std::collections::BTreeSet<_>>().len() as f64;
                let mut units_of: BTreeMap<u64, std::collections::BTreeSet<usize>> = BTreeMap::new();
                for i in rand::seq::index::sample(&mut rng, 500, 50) {
                    for key in &units[i] {
                        units_of.entry(*key).or_default().insert(i);
                    }
                }
                let mut once_of: BTreeMap<usize, u64> = BTreeMap::new();
                for units in units_of.values().filter(|units| units.len() == 1) {
                    units.iter().for_each(|unit| *once_of.entry(*unit).or_default() += 1);
                }
                let mut once = OnceSeen::default();
                once_of.values().for_each(|keys| once.add_unit(*keys));
                let strata = [StratumSample { units: 500, sampled: 50, ..Default::default() }];
                let found = distinct(units_of.len() as u64, &[once], &strata, 0.95);
                covered += u32::from(found.low <= truth && truth <= found.high);
            }
            assert!(covered >= 188, "{keys_of_unit} of {spread}, bursts of {burst}: {covered} of 200");
        }
    }
}
