//! What a thread keeps of the units that it went through: the moments of each group in each stratum.

use crate::estimate::{GroupMoments, Moments, StratumSample, UnitValues};
use crate::layout::Layout;
use hashbrown::HashMap;
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
    groups: HashMap<Key, Group>,
    all: Group,
}

/// Moments of all groups, by stratum, of the units that one thread went through.
#[derive(Debug)]
pub struct Tally {
    strata: Vec<StratumTally>,
    values: Option<Values>,
}

#[derive(Debug)]
struct Values {
    units: Vec<UnitValues>,
    rng: StdRng,
}

/// Receives the records of one unit.
pub struct UnitTally<'a> {
    stratum: &'a mut StratumTally,
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

impl UnitTally<'_> {
    /// Counts a record of `key`. A count alone takes 1 as its value.
    pub fn add(&mut self, key: &[u8], value: f64) {
        let record = Moments { count: 1.0, sum: value, squares: value * value };
        let stratum = &mut *self.stratum;
        stratum.groups.entry_ref(key).or_default().add(self.unit, &stratum.sizes, record);
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
            groups: HashMap::new(),
            all: Group::default(),
        };
        let values = keep_values.then(|| Values { units: Vec::new(), rng: StdRng::seed_from_u64(seed) });
        Tally { strata: layout.strata.iter().map(stratum).collect(), values }
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
        UnitTally { stratum: of, unit, values }
    }

    /// Groups that were seen, counted once for each stratum.
    pub fn group_count(&self) -> usize {
        self.strata.iter().map(|stratum| stratum.groups.len()).sum()
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
        for strata in totals.groups.values_mut() {
            strata.sort_by_key(|(stratum, _)| *stratum);
        }
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
            for (key, group) in &mut stratum.groups {
                group.close(&stratum.sizes);
                let strata = self.groups.entry_ref(key).or_default();
                match strata.iter_mut().find(|(stratum, _)| *stratum == h) {
                    Some((_, moments)) => *moments += &group.closed,
                    None => strata.push((h, group.closed)),
                }
            }
        }
        self.values.extend(tally.values.iter().flat_map(|values| values.units.iter().cloned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Run;

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
