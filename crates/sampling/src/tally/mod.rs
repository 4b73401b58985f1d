//! What a thread keeps of the units that it went through.
//!
//! Of a sample these are the moments of each group in each stratum. Where everything is read nothing is estimated, so a
//! group has only its sums, in one stratum. Start at [`Tally::unit`]; `keys` has the table of groups, `groups` adds up
//! the tallies of all threads.

mod closed;
mod groups;
mod keys;

pub use groups::{Group, Totals};

use self::closed::{ClosedUnits, List};
use self::keys::{Batch, KeyTable};
use crate::estimate::{GroupMoments, Moments, StratumSample, UnitValues};
use crate::layout::{Layout, Stratum};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Values of a sampled unit that are kept for quantiles; of more, a random part is kept.
const UNIT_VALUES: usize = 256;

/// A key, as it is counted.
pub type Key = Vec<u8>;

#[derive(Debug, Clone)]
struct StratumTally {
    sample: StratumSample,
    /// Moments of all records.
    all: GroupMoments,
}

/// A unit that was gone through, or is.
#[derive(Debug, Clone, Copy)]
struct CountedUnit {
    stratum: u32,
    size: f64,
}

/// What is counted of a key where everything is read.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// The last unit that contains the key, and 1.
    unit1: u32,
    /// Units that contain the key.
    units: u32,
    records: u64,
    sum: f64,
}

/// What is counted of a key in a sampled unit, and the list of what was counted before.
#[derive(Debug, Clone, Copy, Default)]
struct OpenUnit {
    /// The unit; it means nothing without records.
    unit: u32,
    records: u32,
    sum: f64,
    squares: f64,
    list: List,
}

#[derive(Debug, Clone)]
enum Groups {
    Whole(KeyTable<Sums>),
    Sample(KeyTable<OpenUnit>, ClosedUnits),
}

#[derive(Debug)]
enum Values {
    None,
    /// Of each unit, all or a random part.
    Sampled {
        units: Vec<UnitValues>,
        rng: Box<StdRng>,
    },
    All(Vec<f64>),
}

/// What one thread counted.
#[derive(Debug)]
pub struct Tally {
    strata: Vec<StratumTally>,
    units: Vec<CountedUnit>,
    groups: Groups,
    batch: Batch,
    values: Values,
}

/// Receives the records of one unit. They are counted when it is dropped, at the latest.
pub struct UnitTally<'a> {
    tally: &'a mut Tally,
    unit: u32,
    /// Of all records.
    open: Moments,
}

impl Moments {
    #[inline(always)]
    fn add_record(&mut self, value: f64) {
        *self += Moments { count: 1.0, sum: value, squares: value * value };
    }
}

impl Sums {
    #[inline(always)]
    fn add(&mut self, unit1: u32, value: f64) {
        self.units += u32::from(self.unit1 != unit1);
        self.unit1 = unit1;
        self.records += 1;
        self.sum += value;
    }

    /// Without squares and products, which only variances need.
    fn moments(&self) -> GroupMoments {
        let total = Moments { count: self.records as f64, sum: self.sum, squares: 0.0 };
        GroupMoments { units: u64::from(self.units), total, ..Default::default() }
    }
}

impl OpenUnit {
    /// What `read` reads for the stratum of another unit than `unit`, which will be closed.
    #[inline(always)]
    fn touched(&self, unit: u32, read: impl Fn(u32) -> u32, units: &[CountedUnit]) -> u32 {
        if self.unit != unit && self.records > 0 { read(units[self.unit as usize].stratum) } else { 0 }
    }

    #[inline(always)]
    fn add(&mut self, unit: u32, value: f64, units: &[CountedUnit], closed: &mut ClosedUnits) {
        if self.unit != unit && self.records > 0 {
            self.close(units, closed);
        }
        self.unit = unit;
        self.records += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// The unit is complete: its sums become a point of the sample.
    fn close(&mut self, units: &[CountedUnit], closed: &mut ClosedUnits) {
        let (unit, moments) = (units[self.unit as usize], self.moments());
        closed.add(&mut self.list, (self.unit, unit.stratum), moments, unit.size);
        *self = OpenUnit { list: self.list, ..Default::default() };
    }

    fn moments(&self) -> Moments {
        Moments { count: f64::from(self.records), sum: self.sum, squares: self.squares }
    }
}

impl UnitTally<'_> {
    /// Counts a record of `key`. A count alone takes 1 as its value.
    #[inline]
    pub fn add(&mut self, key: &[u8], value: f64) {
        if self.tally.batch.push(key, value) {
            self.count_batch();
        }
        self.keep(value);
    }

    /// Counts a record whose key is `bytes[start..end]`; faster than [`UnitTally::add`] where bytes follow the key.
    #[inline]
    pub fn add_within(&mut self, bytes: &[u8], start: usize, end: usize, value: f64) {
        if self.tally.batch.push_within(bytes, start, end, value) {
            self.count_batch();
        }
        self.keep(value);
    }

    /// Counts a record where there are no groups.
    #[inline]
    pub fn add_ungrouped(&mut self, value: f64) {
        self.open.add_record(value);
        self.keep(value);
    }

    #[inline]
    fn keep(&mut self, value: f64) {
        match &mut self.tally.values {
            Values::None => {}
            Values::All(values) => values.push(value),
            Values::Sampled { units, rng } => {
                let unit = units.last_mut().expect("a unit begins with its values");
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

    fn count_batch(&mut self) {
        let Tally { groups, batch, units, .. } = &mut *self.tally;
        batch.values().iter().for_each(|value| self.open.add_record(*value));
        let unit = self.unit;
        match groups {
            Groups::Whole(keys) => {
                let places = keys.find(batch);
                let counted = places.iter().zip(batch.values());
                counted.for_each(|(place, value)| keys.counts(*place).add(unit + 1, *value));
            }
            Groups::Sample(keys, closed) => {
                let places = keys.find(batch);
                let places = &places[..batch.values().len()];
                keys.touch(places, |open| open.touched(unit, |stratum| closed.touch_index(open.list, stratum), units));
                keys.touch(places, |open| open.touched(unit, |stratum| closed.touch(open.list, stratum), units));
                let counted = places.iter().zip(batch.values());
                counted.for_each(|(place, value)| keys.counts(*place).add(unit, *value, units, closed));
            }
        }
        batch.clear();
    }
}

impl Drop for UnitTally<'_> {
    fn drop(&mut self) {
        self.count_batch();
        let unit = self.tally.units[self.unit as usize];
        if self.open.count > 0.0 {
            self.tally.strata[unit.stratum as usize].all.add_unit(self.open, unit.size);
        }
    }
}

impl Tally {
    /// Of a sample, nothing counted yet. `keep_values`: for quantiles.
    pub fn new(layout: &Layout, keep_values: bool, seed: u64) -> Tally {
        let values = match keep_values {
            true => Values::Sampled { units: Vec::new(), rng: Box::new(StdRng::seed_from_u64(seed)) },
            false => Values::None,
        };
        let strata = layout.strata.iter().map(Stratum::unsampled);
        Tally::with(strata, Groups::Sample(KeyTable::new(), ClosedUnits::new()), values)
    }

    /// Of everything. Strata make no difference then.
    pub fn whole(layout: &Layout, keep_values: bool) -> Tally {
        let values = if keep_values { Values::All(Vec::new()) } else { Values::None };
        let size = layout.strata.iter().map(|stratum| stratum.size).sum::<u64>() as f64;
        let all = StratumSample { units: layout.units(), size, ..StratumSample::default() };
        Tally::with(std::iter::once(all), Groups::Whole(KeyTable::new()), values)
    }

    fn with(strata: impl Iterator<Item = StratumSample>, groups: Groups, values: Values) -> Tally {
        let stratum = |sample| StratumTally { sample, all: GroupMoments::default() };
        Tally { strata: strata.map(stratum).collect(), units: Vec::new(), groups, batch: Batch::new(), values }
    }

    /// A tally that goes on from here by itself, of one that keeps no values.
    pub fn fork(&self) -> Tally {
        assert!(matches!(self.values, Values::None), "values are kept once");
        let Tally { strata, units, groups, batch, .. } = self;
        Tally {
            strata: strata.clone(),
            units: units.clone(),
            groups: groups.clone(),
            batch: batch.clone(),
            values: Values::None,
        }
    }

    /// A unit of `size` of a stratum begins.
    pub fn unit(&mut self, stratum: usize, size: f64) -> UnitTally<'_> {
        let stratum = if matches!(self.groups, Groups::Whole(_)) { 0 } else { stratum };
        self.strata[stratum].sample.add_unit(size);
        if let Values::Sampled { units, .. } = &mut self.values {
            units.push(UnitValues { stratum, records: 0, values: Vec::new() });
        }
        self.units.push(CountedUnit { stratum: stratum as u32, size });
        UnitTally { unit: self.units.len() as u32 - 1, tally: self, open: Moments::default() }
    }

    /// The unit in which a key was seen last, as a point of the sample.
    fn open_unit(&self, open: &OpenUnit) -> Option<(usize, GroupMoments)> {
        let unit = self.units.get(open.unit as usize).filter(|_| open.records > 0)?;
        let mut moments = GroupMoments::default();
        moments.add_unit(open.moments(), unit.size);
        Some((unit.stratum as usize, moments))
    }
}

#[cfg(test)]
mod tests;
