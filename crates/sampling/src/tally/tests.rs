//! Tallies against maps: moments of samples, and sums of everything.

use super::*;
use crate::layout::Run;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Moments2 = BTreeMap<Key, Vec<(usize, GroupMoments)>>;

fn layout(files: u32) -> Layout {
    let run = |file| Run { file, offset: 0, len_bytes: 640, disk: 0, rows: None };
    Layout::new(&(0..files).map(run).collect::<Vec<_>>(), 1, 10)
}

fn found(tallies: &[Tally]) -> Moments2 {
    Totals::of(tallies).groups().collect()
}

/// Units: the stratum, the thread, and the keys of the records.
fn units() -> impl Strategy<Value = Vec<(usize, usize, Vec<Key>)>> {
    let key = prop_oneof![
        4 => prop::collection::vec(0u8..3, 0..3),
        1 => prop::collection::vec(0u8..2, 22..28),
    ];
    prop::collection::vec((0usize..7, 0usize..3, prop::collection::vec(key, 0..150)), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Units of strata in any order, on three threads, with totals in between: each key has the moments that its units
    /// have one by one, in the order of strata.
    #[test]
    fn keys_have_the_moments_of_their_units(units in units(), look: bool) {
        let layout = layout(7);
        let mut tallies: Vec<Tally> = (0..3).map(|seed| Tally::new(&layout, false, seed)).collect();
        let mut expected: BTreeMap<Key, BTreeMap<usize, GroupMoments>> = BTreeMap::new();
        for (stratum, thread, keys) in &units {
            let mut unit = tallies[*thread].unit(*stratum, 10.0);
            let mut of_unit: BTreeMap<Key, Moments> = BTreeMap::new();
            for key in keys {
                unit.add(key, 2.0);
                *of_unit.entry(key.clone()).or_default() += Moments { count: 1.0, sum: 2.0, squares: 4.0 };
            }
            drop(unit);
            for (key, moments) in of_unit {
                expected.entry(key).or_default().entry(*stratum).or_default().add_unit(moments, 10.0);
            }
            if look {
                found(&tallies);
            }
        }
        let expected: Moments2 = expected.into_iter().map(|(key, strata)| (key, strata.into_iter().collect())).collect();
        let totals = Totals::of(&tallies);
        for (key, moments) in &expected {
            prop_assert_eq!(&totals.group(key), moments);
        }
        let units_of = |found: &mut Vec<_>, group: &Group<'_>| {
            let mut parts = Vec::new();
            group.totals(&mut parts);
            found.push((group.key.to_vec(), parts.iter().map(|part| (part.stratum, part.units, part.total)).collect()));
        };
        let parts: BTreeMap<Key, Vec<_>> = totals.fold_groups(Vec::new, units_of).into_iter().flatten().collect();
        let of_moments = expected.iter().map(|(key, strata)| {
            (key.clone(), strata.iter().map(|(h, moments)| (*h, moments.units, moments.total)).collect())
        });
        prop_assert_eq!(parts, of_moments.collect::<BTreeMap<Key, Vec<_>>>());
        prop_assert_eq!(found(&tallies), expected);
    }

    #[test]
    fn sums_of_everything_are_those_of_all_units(units in units()) {
        let layout = layout(7);
        let mut tallies: Vec<Tally> = (0..3).map(|_| Tally::whole(&layout, true)).collect();
        let mut expected: BTreeMap<Key, (u64, f64, f64)> = BTreeMap::new();
        for (number, (stratum, thread, keys)) in units.iter().enumerate() {
            let mut unit = tallies[*thread].unit(*stratum, 10.0);
            keys.iter().for_each(|key| unit.add(key, number as f64));
            for key in keys {
                let (_, count, sum) = expected.entry(key.clone()).or_default();
                (*count, *sum) = (*count + 1.0, *sum + number as f64);
            }
            keys.iter().collect::<std::collections::BTreeSet<_>>().into_iter().for_each(|key| expected.get_mut(key).unwrap().0 += 1);
        }
        let sums = |(key, strata): (Key, Vec<(usize, GroupMoments)>)| {
            let [(0, moments)] = strata[..] else { panic!("one stratum: {strata:?}") };
            (key, (moments.units, moments.total.count, moments.total.sum))
        };
        prop_assert_eq!(found(&tallies).into_iter().map(sums).collect::<BTreeMap<_, _>>(), expected);
        let totals = Totals::of(&tallies);
        let records: usize = units.iter().map(|(_, _, keys)| keys.len()).sum();
        prop_assert_eq!((totals.all_values().len(), totals.units()), (records, units.len() as u64));
        prop_assert_eq!(totals.all[0].total.count, records as f64);
    }
}

#[test]
fn many_keys_of_several_threads_are_found_once_each() {
    let layout = layout(2);
    let mut tallies: Vec<Tally> = (0..3).map(|seed| Tally::new(&layout, false, seed)).collect();
    for (thread, tally) in tallies.iter_mut().enumerate() {
        let mut unit = tally.unit(thread % 2, 10.0);
        (0..40_000 * (thread as u64 + 1)).for_each(|key| unit.add(format!("key {}", key * 3).as_bytes(), 1.0));
    }
    let totals = Totals::of(&tallies);
    let counts =
        totals.fold_groups(|| (0, 0), |(keys, units), group| (*keys, *units) = (*keys + 1, *units + group.units()));
    assert!(counts.len() == 3, "three threads");
    assert_eq!(counts.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1)), (120_000, 240_000));
    assert_eq!(totals.group(b"key 3").len(), 2);
    assert_eq!(totals.group(b"key 1"), []);
}

#[test]
fn threads_together_count_what_one_would() {
    let layout = layout(2);
    let mut rng = StdRng::seed_from_u64(4);
    let (mut one, mut two) =
        (Tally::new(&layout, true, 1), [Tally::new(&layout, true, 1), Tally::new(&layout, true, 2)]);
    for unit in 0..100 {
        let (stratum, size) = (unit % 2, 10.0 + (unit % 5) as f64);
        let other = &mut two[unit % 3 % 2];
        let (mut a, mut b) = (one.unit(stratum, size), other.unit(stratum, size));
        for _ in 0..rng.random_range(0..20) {
            let (key, value) = ([rng.random_range(b'a'..b'f')], rng.random_range(0..100) as f64);
            a.add(&key, value);
            b.add_within(&[b"..", &key[..], b"and what follows it in the file"].concat(), 2, 3, value);
        }
    }
    let grouped = |tallies: &[Tally]| found(tallies);
    assert_eq!(grouped(std::slice::from_ref(&one)), grouped(&two));
    let (one, two) = (Totals::of([&one]), Totals::of(&two));
    assert_eq!((&one.strata, &one.all), (&two.strata, &two.all));
    assert_eq!(one.unit_values().len(), 100);
    assert_eq!(one.units(), 100);
    let sum: f64 = one.groups().flat_map(|(_, strata)| strata).map(|(_, moments)| moments.total.count).sum();
    assert_eq!(one.all.iter().map(|m| m.total.count).sum::<f64>(), sum);
}
