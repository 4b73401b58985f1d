//! Quantiles, with intervals by bootstrap over units.

use super::{Estimate, RARE_UNITS, StratumSample, bootstrap, every_stratum_is_seen};

/// Units that must have a value at a quantile or beyond it, on both sides, before an interval is claimed. No sample of the
/// bootstrap has a value beyond the outermost one, but the truth may well lie there.
const TAIL_UNITS: usize = 10;

/// Values of a unit that arrived: all of them, or a random part.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitValues {
    /// The unit's stratum.
    pub stratum: usize,
    /// Records of the unit that have a value.
    pub records: u64,
    /// Their values, or those of a random part of them.
    pub values: Vec<f64>,
}

/// All values in their order, each with its unit.
struct Sorted {
    values: Vec<(f64, u32)>,
    /// For each unit: what one of its values stands for, and all of them.
    weights: Vec<(f64, f64)>,
}

/// The quantile `q` (0 to 1) of all values: the smallest one at or below which a share of at least `q` lies. `None` of none.
pub fn quantile_of_all(q: f64, mut values: Vec<f64>) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    // Rounding must not push the last one out of reach.
    let rank = (q * values.len() as f64 * (1.0 - 1e-12)).ceil() as usize;
    let (_, value, _) = values.select_nth_unstable_by(rank.saturating_sub(1).min(last), f64::total_cmp);
    Some(*value)
}

/// The quantile `q` (0 to 1) of the values of all records, from a sample. `None` if no record has one. Nothing is
/// claimed if all units were read but not all of their values kept: units then tell nothing about the error.
pub fn quantile(
    q: f64,
    strata: &[StratumSample],
    units: &[&UnitValues],
    confidence: f64,
    seed: u64,
) -> Option<Estimate> {
    let sorted = Sorted::of(strata, units);
    let value = sorted.at(q, &vec![1.0; units.len()])?;
    let units_seen = units.iter().filter(|unit| !unit.values.is_empty()).count() as u64;
    if strata.iter().all(|s| s.sampled == s.units) {
        let are_all_kept = units.iter().all(|unit| unit.values.len() as u64 == unit.records);
        let found = if are_all_kept { Estimate::exact } else { Estimate::unclaimed };
        return Some(found(value, units_seen));
    }
    let stratum_of: Vec<usize> = units.iter().map(|unit| unit.stratum).collect();
    let strata = of_two_stages(strata, units);
    let found = bootstrap(&strata, &stratum_of, confidence, seed, |factors| sorted.at(q, factors))?;
    let has_tails = [f64::le, f64::ge].iter().all(|is_beyond| {
        let has = |unit: &&&UnitValues| unit.values.iter().any(|of_unit| is_beyond(of_unit, &value));
        units.iter().filter(has).count() >= TAIL_UNITS
    });
    let claimed = units_seen >= RARE_UNITS && has_tails && every_stratum_is_seen(&strata);
    Some(Estimate { units_seen, claimed, ..found })
}

/// Strata whose sampled share is that of values, not of units: where a part of a unit's values is kept, the rest is as
/// unknown as that of an unread unit. Where values of a unit are as different as any, V = (1 − f₁f₂) s²/n with the share f₁ of
/// units and f₂ of their values (Cochran, 10.3); where they resemble each other it is less.
fn of_two_stages(strata: &[StratumSample], units: &[&UnitValues]) -> Vec<StratumSample> {
    let mut values = vec![(0u64, 0u64); strata.len()];
    for unit in units {
        let (kept, records) = &mut values[unit.stratum];
        (*kept, *records) = (*kept + unit.values.len() as u64, *records + unit.records);
    }
    let of_values = |(stratum, (kept, records)): (&StratumSample, (u64, u64))| match kept < records {
        true => StratumSample {
            units: (stratum.units as f64 * records as f64 / kept.max(1) as f64).ceil() as u64,
            ..*stratum
        },
        false => *stratum,
    };
    strata.iter().zip(values).map(of_values).collect()
}

impl Sorted {
    fn of(strata: &[StratumSample], units: &[&UnitValues]) -> Sorted {
        let weight = |unit: &&UnitValues| {
            let all = strata[unit.stratum].expansion() * unit.records as f64;
            (all / unit.values.len().max(1) as f64, all)
        };
        let weights = units.iter().map(weight).collect();
        let of_unit = |(i, unit): (usize, &&UnitValues)| {
            unit.values.iter().map(move |value| (*value, i as u32)).collect::<Vec<_>>()
        };
        let mut values: Vec<(f64, u32)> = units.iter().enumerate().flat_map(of_unit).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        Sorted { values, weights }
    }

    /// The smallest value at or below which a share of at least `q` of the weight lies, with factors for the units.
    fn at(&self, q: f64, factors: &[f64]) -> Option<f64> {
        let all: f64 = self.weights.iter().zip(factors).map(|((_, all), factor)| all * factor).sum();
        // Rounding must not push the last one out of reach.
        let target = q * all * (1.0 - 1e-12);
        let scaled: Vec<f64> = self.weights.iter().zip(factors).map(|((one, _), factor)| one * factor).collect();
        let mut below = 0.0;
        let reached = self.values.iter().find(|(_, unit)| {
            below += scaled[*unit as usize];
            below >= target && below > 0.0
        });
        reached.or(self.values.last()).map(|(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_everything_is_exact() {
        let strata = [StratumSample { units: 2, sampled: 2, ..Default::default() }];
        let unit = |values: &[f64]| UnitValues { stratum: 0, records: values.len() as u64, values: values.to_vec() };
        let units = [&unit(&[5.0, 1.0]), &unit(&[9.0, 2.0, 3.0])];
        let median = quantile(0.5, &strata, &units, 0.95, 1).unwrap();
        assert_eq!((median.value, median.low, median.high), (3.0, 3.0, 3.0));
        assert_eq!(quantile(1.0, &strata, &units, 0.95, 1).unwrap().value, 9.0);
        assert_eq!(quantile(0.0, &strata, &units, 0.95, 1).unwrap().value, 1.0);
        assert!(quantile(0.5, &strata, &[], 0.95, 1).is_none());
    }

    #[test]
    fn units_count_by_their_strata() {
        // Stratum 0 was read whole, stratum 1 by a tenth: its values stand for ten times as many.
        let strata = [
            StratumSample { units: 2, sampled: 2, ..Default::default() },
            StratumSample { units: 20, sampled: 2, ..Default::default() },
        ];
        let unit = |stratum, value| UnitValues { stratum, records: 10, values: vec![value; 10] };
        let units = [&unit(0, 1.0), &unit(0, 1.0), &unit(1, 2.0), &unit(1, 2.0)];
        assert_eq!(quantile(0.05, &strata, &units, 0.95, 1).unwrap().value, 1.0);
        assert_eq!(quantile(0.15, &strata, &units, 0.95, 1).unwrap().value, 2.0);
    }

    #[test]
    fn a_part_of_the_values_of_all_units_is_not_exact() {
        let strata = [StratumSample { units: 1, sampled: 1, ..Default::default() }];
        let unit = UnitValues { stratum: 0, records: 3, values: vec![1.0, 2.0] };
        let median = quantile(0.5, &strata, &[&unit], 0.95, 1).unwrap();
        assert!(!median.claimed && median.standard_error.is_nan(), "{median:?}");
    }

    #[test]
    fn intervals_hold_where_most_units_were_read_and_few_of_their_values_kept() {
        use rand::rngs::StdRng;
        use rand::seq::index::sample;
        use rand::{RngExt, SeedableRng};
        const UNITS: usize = 60;
        let mut rng = StdRng::seed_from_u64(3);
        let all: Vec<Vec<f64>> = (0..UNITS).map(|_| (0..1000).map(|_| rng.random()).collect()).collect();
        let truth = quantile_of_all(0.5, all.concat()).unwrap();
        let strata = [StratumSample { units: UNITS as u64, sampled: 54, ..Default::default() }];
        let mut covered = 0;
        for seed in 0..150 {
            let drawn = sample(&mut rng, UNITS, 54).into_iter().map(|i| &all[i]).collect::<Vec<_>>();
            let of_unit = |all: &&Vec<f64>, rng: &mut StdRng| UnitValues {
                stratum: 0,
                records: 1000,
                values: sample(rng, 1000, 50).into_iter().map(|i| all[i]).collect(),
            };
            let units: Vec<UnitValues> = drawn.iter().map(|unit| of_unit(unit, &mut rng)).collect();
            let found = quantile(0.5, &strata, &units.iter().collect::<Vec<_>>(), 0.95, seed).unwrap();
            covered += u32::from(found.low <= truth && truth <= found.high);
        }
        assert!(covered >= 135, "{covered} of 150 intervals hold");
    }

    /// Of 60 units of 500, with 50 values each: where few units have a value beyond the quantile, nothing is claimed.
    #[test]
    fn claimed_intervals_of_extreme_quantiles_hold() {
        use rand::rngs::StdRng;
        use rand::seq::index::sample;
        use rand::{RngExt, SeedableRng};
        let mut rng = StdRng::seed_from_u64(5);
        let all: Vec<Vec<f64>> = (0..500).map(|_| (0..50).map(|_| rng.random()).collect()).collect();
        let strata = [StratumSample { units: 500, sampled: 60, ..Default::default() }];
        for q in [0.0, 0.001, 0.003, 0.995, 0.997, 0.998, 0.999, 0.9995, 1.0] {
            let truth = quantile_of_all(q, all.concat()).unwrap();
            let (mut claimed, mut covered) = (0, 0);
            for seed in 0..200 {
                let of_unit = |i: usize| UnitValues { stratum: 0, records: 50, values: all[i].clone() };
                let units: Vec<UnitValues> = sample(&mut rng, 500, 60).into_iter().map(of_unit).collect();
                let found = quantile(q, &strata, &units.iter().collect::<Vec<_>>(), 0.95, seed).unwrap();
                claimed += u32::from(found.claimed);
                covered += u32::from(found.claimed && found.low <= truth && truth <= found.high);
            }
            assert!(q > 0.0 && q < 1.0 || claimed == 0, "{q}: the truth may lie beyond all values");
            assert!(covered * 100 >= claimed * 90, "{q}: {covered} of {claimed} intervals hold");
        }
    }

    #[test]
    fn nothing_is_claimed_where_a_stratum_gave_no_unit() {
        let strata = [
            StratumSample { units: 100, sampled: 40, ..Default::default() },
            StratumSample { units: 100, sampled: 0, ..Default::default() },
        ];
        let unit = UnitValues { stratum: 0, records: 2, values: vec![1.0, 2.0] };
        assert!(!quantile(0.5, &strata, &[&unit; 40], 0.95, 1).unwrap().claimed);
    }

    #[test]
    fn quantiles_of_all_values_are_those_of_units_with_all_their_values() {
        let strata = [StratumSample { units: 1, sampled: 1, ..Default::default() }];
        for len in 1..40u32 {
            let values: Vec<f64> = (0..len).map(|i| f64::from(i * 7919 % 23)).collect();
            let unit = UnitValues { stratum: 0, records: values.len() as u64, values: values.clone() };
            for q in [0.0, 0.01, 0.1, 0.25, 1.0 / 3.0, 0.5, 0.9, 0.99, 1.0] {
                let of_units = quantile(q, &strata, &[&unit], 0.95, 1).unwrap().value;
                assert_eq!(quantile_of_all(q, values.clone()), Some(of_units), "{q} of {len} values");
            }
        }
        assert_eq!(quantile_of_all(0.5, Vec::new()), None);
    }
}
