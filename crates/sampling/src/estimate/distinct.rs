//! How many distinct keys there are.
//!
//! No sample can tell this well: keys that lie in unread units only leave no trace (Charikar et al., PODS 2000, prove
//! it). What can be said follows from the keys that were seen in one sampled unit only. A key that lies in K units of a
//! stratum, of which each is sampled with chance f, is unseen with (1 − f)^K and seen in exactly one unit with
//! K·f·(1 − f)^(K − 1). So the expected number of unseen keys is at most (1 − f)/f times that of keys seen in one unit,
//! with equality for keys that lie in one unit. The interval goes from what was seen to that bound; the estimate is the
//! guaranteed-error one of Charikar et al., with units for rows.

use super::{Estimate, RARE_UNITS, StratumSample};

/// Estimates the number of distinct keys. `seen` keys were seen; `once[h]` of them in one unit only, of stratum h.
pub fn distinct(seen: u64, once: &[u64], strata: &[StratumSample], confidence: f64) -> Estimate {
    assert_eq!(once.len(), strata.len(), "a number for each stratum");
    let (mut likely, mut bound, mut variance) = (0.0, 0.0, 0.0);
    for (once, stratum) in once.iter().zip(strata) {
        let fraction = stratum.fraction();
        if fraction == 0.0 || *once == 0 {
            continue;
        }
        let unseen = (1.0 - fraction) / fraction;
        likely += *once as f64 * ((1.0 / fraction).sqrt() - 1.0);
        bound += *once as f64 * unseen;
        // A number of rare events varies as Poisson's law does.
        variance += *once as f64 * unseen * unseen;
    }
    let z = super::t_quantile(confidence, 1e9);
    let low = seen as f64;
    let high = low + bound + z * (variance + bound).sqrt();
    let value = low + likely;
    let sampled: u64 = strata.iter().map(|stratum| stratum.sampled).sum();
    Estimate {
        high,
        standard_error: f64::NAN,
        claimed: bound == 0.0 || sampled >= RARE_UNITS,
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
        let all = distinct(77, &[40], &strata, 0.95);
        assert_eq!((all.low, all.value, all.high, all.claimed), (77.0, 77.0, 77.0, true));
    }

    #[test]
    fn the_interval_holds_for_keys_that_lie_in_one_unit_and_in_many() {
        for (keys_of_unit, spread) in [(20u64, 0u64), (20, 50), (3, 4000)] {
            let mut covered = 0;
            for seed in 0..200 {
                let mut rng = StdRng::seed_from_u64(seed);
                let units: Vec<Vec<u64>> = (0..500)
                    .map(|unit| {
                        (0..keys_of_unit)
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
                let once = units_of.values().filter(|units| units.len() == 1).count() as u64;
                let strata = [StratumSample { units: 500, sampled: 50, ..Default::default() }];
                let found = distinct(units_of.len() as u64, &[once], &strata, 0.95);
                covered += u32::from(found.low <= truth && truth <= found.high);
            }
            assert!(covered >= 188, "{keys_of_unit} of {spread}: {covered} of 200");
        }
    }
}
