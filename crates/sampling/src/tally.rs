//! What a thread keeps of the units that it went through: the moments of each group in each stratum.

use crate::estimate::{GroupMoments, Moments, StratumSample, UnitValues};
use crate::layout::Layout;
use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Values of a unit that are kept for quantiles; of more, a random part is kept.
const UNIT_VALUES: usize = 256;

/// A key as it stands in the file.
pub type Key = Vec<u8>;

#[derive(Debug, Default)]
struct Group {
    /// The unit that `open` belongs to.
    unit: u64,
    open: Moments,
    closed: GroupMoments,
}

#[derive(Debug)]
struct StratumTally {
    sample: StratumSample,
    /// Sizes of the units that `Group::open` may still belong to are needed when they are closed.
    sizes: Vec<f64>,
    all: Group,
}

/// A key's groups, one for each stratum where it was seen, in their order. A key is stored and looked up once, not once
/// for each stratum: totals of many strata would take longer than the reads at the end of a small sample.
#[derive(Debug, Default)]
struct Strata {
    groups: Vec<(usize, Group)>,
    /// Where the last record belonged: the next one is mostly of the same unit.
    recent: usize,
}

/// Moments of all groups, by stratum, of the units that one thread went through.
#[derive(Debug)]
pub struct Tally {
    strata: Vec<StratumTally>,
    groups: HashMap<Key, Strata>,
    values: Option<Values>,
}

#[derive(Debug)]
struct Values {
    units: Vec<UnitValues>,
    rng: StdRng,
}

/// Receives the records of one unit.
pub struct UnitTally<'a> {
    index: usize,
    stratum: &'a mut StratumTally,
    groups: &'a mut HashMap<Key, Strata>,
    unit: u64,
    values: Option<(&'a mut UnitValues, &'a mut StdRng)>,
}

impl Group {
    fn add(&mut self, unit: u64, sizes: &[f64], record: Moments) {
        if self.unit != unit {
            self.close(sizes);
            self.unit = unit;
        }
        self.open += record;
    }

    /// The unit is complete: its sums become a point of the sample.
    fn close(&mut self, sizes: &[f64]) {
        if self.open.count > 0.0 {
            self.closed.add_unit(self.open, sizes[self.unit as usize]);
            self.open = Moments::default();
        }
    }
}

impl Strata {
    fn group(&mut self, stratum: usize) -> &mut Group {
        if self.groups.get(self.recent).is_none_or(|(recent, _)| *recent != stratum) {
            self.recent = match self.groups.binary_search_by_key(&stratum, |(stratum, _)| *stratum) {
                Ok(at) => at,
                Err(at) => {
                    self.groups.insert(at, (stratum, Group::default()));
                    at
                }
            };
        }
        &mut self.groups[self.recent].1
    }
}

impl UnitTally<'_> {
    /// Counts a record of `key`. A count alone takes 1 as its value.
    pub fn add(&mut self, key: &[u8], value: f64) {
        let record = Moments { count: 1.0, sum: value, squares: value * value };
        let group = self.groups.entry_ref(key).or_default().group(self.index);
        group.add(self.unit, &self.stratum.sizes, record);
        self.add_ungrouped(value);
    }

    /// Counts a record where there are no groups.
    pub fn add_ungrouped(&mut self, value: f64) {
        let record = Moments { count: 1.0, sum: value, squares: value * value };
        self.stratum.all.add(self.unit, &self.stratum.sizes, record);
        if let Some((unit, rng)) = &mut self.values {
            unit.records += 1;
            // Reservoir sampling (Vitter's algorithm R): each value of the unit is kept with equal chance.
            if unit.values.len() < UNIT_VALUES {
                unit.values.push(value);
            } else if let Some(kept) = unit.values.get_mut(rng.random_range(0..unit.records) as usize) {
                *kept = value;
            }
        }
    }
}

impl Tally {
    /// Nothing counted yet. `keep_values`: for quantiles.
    pub fn new(layout: &Layout, keep_values: bool, seed: u64) -> Tally {
        let stratum = |s: &crate::layout::Stratum| StratumTally {
            sample: StratumSample { units: s.units, size: s.size as f64, ..Default::default() },
            sizes: Vec::new(),
            all: Group::default(),
        };
        let values = keep_values.then(|| Values { units: Vec::new(), rng: StdRng::seed_from_u64(seed) });
        Tally { strata: layout.strata.iter().map(stratum).collect(), groups: HashMap::new(), values }
    }

    /// A unit of `size` of a stratum begins.
    pub fn unit(&mut self, stratum: usize, size: f64) -> UnitTally<'_> {
        let of = &mut self.strata[stratum];
        let unit = of.sizes.len() as u64;
        of.sizes.push(size);
        of.sample.add_unit(size);
        let values = self.values.as_mut().map(|values| {
            values.units.push(UnitValues { stratum, records: 0, values: Vec::new() });
            (values.units.last_mut().expect("pushed above"), &mut values.rng)
        });
        UnitTally { index: stratum, stratum: of, groups: &mut self.groups, unit, values }
    }

    /// Groups that were seen, counted once for each stratum.
    pub fn group_count(&self) -> usize {
        self.groups.values().map(|strata| strata.groups.len()).sum()
    }
}

/// The tallies of all threads together.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// The strata and their samples.
    pub strata: Vec<StratumSample>,
    /// Moments of all records, by stratum.
    pub all: Vec<GroupMoments>,
    /// Moments of each group in the strata where it was seen, in their order.
    pub groups: HashMap<Key, Vec<(usize, GroupMoments)>>,
    /// Values for quantiles, by stratum.
    pub values: Vec<UnitValues>,
}

impl Totals {
    /// Adds up tallies of the same layout. They can go on counting afterwards.
    pub fn of<'a>(tallies: impl IntoIterator<Item = &'a mut Tally>) -> Totals {
        let mut totals = Totals::default();
        for tally in tallies {
            totals.add(tally);
        }
        totals.values.sort_by_key(|unit| unit.stratum);
        totals
    }

    fn add(&mut self, tally: &mut Tally) {
        if self.strata.is_empty() {
            self.strata = tally
                .strata
                .iter()
                .map(|s| StratumSample { units: s.sample.units, size: s.sample.size, ..Default::default() })
                .collect();
            self.all = vec![GroupMoments::default(); self.strata.len()];
        }
        for (h, stratum) in tally.strata.iter_mut().enumerate() {
            self.strata[h].merge(&stratum.sample);
            stratum.all.close(&stratum.sizes);
            self.all[h] += &stratum.all.closed;
        }
        self.groups.reserve(tally.groups.len().saturating_sub(self.groups.len()));
        for (key, strata) in &mut tally.groups {
            for (h, group) in &mut strata.groups {
                group.close(&tally.strata[*h].sizes);
            }
            let own = strata.groups.iter().map(|(h, group)| (*h, group.closed));
            match self.groups.entry_ref(key) {
                EntryRef::Vacant(entry) => {
                    entry.insert(own.collect());
                }
                EntryRef::Occupied(mut entry) => merge(entry.get_mut(), own),
            }
        }
        self.values.extend(tally.values.iter().flat_map(|values| values.units.iter().cloned()));
    }
}

/// Adds moments to others, both in the order of their strata.
fn merge(into: &mut Vec<(usize, GroupMoments)>, own: impl ExactSizeIterator<Item = (usize, GroupMoments)>) {
    let mut others = std::mem::replace(into, Vec::with_capacity(into.len() + own.len())).into_iter().peekable();
    for (h, mut moments) in own {
        while let Some(other) = others.next_if(|(other, _)| *other < h) {
            into.push(other);
        }
        if let Some((_, other)) = others.next_if(|(other, _)| *other == h) {
            moments += &other;
        }
        into.push((h, moments));
    }
    into.extend(others);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Run;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Units of strata in any order, on three threads, with totals in between: each key has the moments that its units
        /// have one by one, in the order of strata.
        #[test]
        fn keys_have_the_moments_of_their_units(units in prop::collection::vec((0usize..7, 0usize..3, prop::collection::vec(0u8..5, 0..6)), 0..60), look: bool) {
            let run = |file| Run { file, offset: 0, len_bytes: 640, disk: 0, rows: None };
            let layout = Layout::new(&(0..7).map(run).collect::<Vec<_>>(), 1, 10);
            let mut tallies: Vec<Tally> = (0..3).map(|seed| Tally::new(&layout, false, seed)).collect();
            let mut expected: BTreeMap<Key, BTreeMap<usize, GroupMoments>> = BTreeMap::new();
            for (stratum, thread, keys) in &units {
                let mut unit = tallies[*thread].unit(*stratum, 10.0);
                let mut of_unit: BTreeMap<Key, Moments> = BTreeMap::new();
                for key in keys {
                    unit.add(&[*key], 2.0);
                    *of_unit.entry(vec![*key]).or_default() += Moments { count: 1.0, sum: 2.0, squares: 4.0 };
                }
                for (key, moments) in of_unit {
                    expected.entry(key).or_default().entry(*stratum).or_default().add_unit(moments, 10.0);
                }
                if look {
                    Totals::of(&mut tallies);
                }
            }
            prop_assert_eq!(tallies.iter().map(Tally::group_count).sum::<usize>() == 0, expected.is_empty());
            let totals = Totals::of(&mut tallies);
            let found: BTreeMap<Key, Vec<(usize, GroupMoments)>> = totals.groups.into_iter().collect();
            let expected = expected.into_iter().map(|(key, strata)| (key, strata.into_iter().collect()));
            prop_assert_eq!(found, expected.collect::<BTreeMap<Key, Vec<_>>>());
        }
    }

    #[test]
    fn threads_together_count_what_one_would() {
        let run = |file| Run { file, offset: 0, len_bytes: 640, disk: 0, rows: None };
        let layout = Layout::new(&[run(0), run(1)], 1, 10);
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
                b.add(&key, value);
            }
        }
        let (one, two) = (Totals::of([&mut one]), Totals::of(&mut two));
        assert_eq!((&one.strata, &one.all, &one.groups), (&two.strata, &two.all, &two.groups));
        assert_eq!(one.values.len(), 100);
        assert_eq!(one.strata.iter().map(|s| s.sampled).sum::<u64>(), 100);
        let grouped: f64 = one.groups.values().flatten().map(|(_, m)| m.total.count).sum();
        assert_eq!(one.all.iter().map(|m| m.total.count).sum::<f64>(), grouped);
    }
}
