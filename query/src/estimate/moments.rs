//! The sums of units, group by group, and what is estimated from them.

use super::Terms;
use super::plan::Estimable;
use crate::error::Error;
use datafusion::arrow::array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::cast::{as_float64_array, as_int64_array, as_uint64_array};
use std::collections::HashMap;
use tessera_sampling::estimate::{
    Estimate, GroupMoments, Moments as UnitMoments, Population, Quantity, RARE_UNITS, StratumSample,
};
use tessera_sampling::layout::{Layout, Stratum, Unit};

/// Moments of one aggregate, for each stratum in which it was seen, by number. Most groups of many were seen in one.
type Parts = Vec<(usize, GroupMoments)>;

/// The moments of a stratum.
fn part_of(parts: &mut Parts, stratum: usize) -> &mut GroupMoments {
    let place = parts.binary_search_by_key(&stratum, |(of, _)| *of).unwrap_or_else(|place| {
        // Vec would make room for four.
        if parts.is_empty() {
            parts.reserve_exact(1);
        }
        parts.insert(place, (stratum, GroupMoments::default()));
        place
    });
    &mut parts[place].1
}

/// What was counted of a sample.
pub struct Moments {
    quantities: Vec<Quantity>,
    keys: RowConverter,
    key_count: usize,
    strata: Vec<StratumSample>,
    /// For each aggregate all records together, for each stratum.
    all: Vec<Vec<GroupMoments>>,
    /// For each group its parts, for each aggregate.
    groups: HashMap<Box<[u8]>, Vec<Parts>>,
}

/// The estimates of all groups.
pub struct Groups {
    /// The columns of the groups.
    pub keys: Vec<ArrayRef>,
    /// For each aggregate the estimates of the groups; NaN is no value.
    pub estimates: Vec<Vec<Estimate>>,
}

impl Groups {
    /// Number of groups.
    pub fn len(&self) -> usize {
        self.estimates.first().map_or(0, Vec::len)
    }

    /// Groups of which no estimate has an interval.
    pub fn without_intervals(&self) -> usize {
        self.count(|group| !self.estimates.iter().any(|of_all| of_all[group].claimed))
    }

    /// Groups of which some estimate has no interval.
    pub fn lacking_intervals(&self) -> usize {
        self.count(|group| self.estimates.iter().any(|of_all| !of_all[group].claimed))
    }

    fn count(&self, is_of: impl Fn(usize) -> bool) -> usize {
        (0..self.len()).filter(|group| is_of(*group)).count()
    }
}

fn engine(error: ArrowError) -> Error {
    Error::Engine(error.to_string())
}

impl Moments {
    /// Nothing is counted yet.
    ///
    /// # Errors
    /// The engine cannot group by values of such a type.
    pub fn new(query: &Estimable, layout: &Layout) -> Result<Moments, Error> {
        let fields = query.aggregate().schema.fields();
        let types = fields[..query.keys()].iter().map(|field| SortField::new(field.data_type().clone()));
        let quantities: Vec<Quantity> = query.asked.iter().map(|asked| asked.quantity).collect();
        let of_one = vec![GroupMoments::default(); layout.strata.len()];
        Ok(Moments {
            all: vec![of_one; quantities.len()],
            quantities,
            keys: RowConverter::new(types.collect()).map_err(engine)?,
            key_count: query.keys(),
            strata: layout.strata.iter().map(Stratum::unsampled).collect(),
            groups: HashMap::new(),
        })
    }

    /// The strata, and what arrived of them.
    pub fn strata(&self) -> &[StratumSample] {
        &self.strata
    }

    /// Adds the units of a step. `batches` are what [`Estimable::of_units`] gives; its units are numbered from `first`
    /// on, in the order of `arrived`.
    ///
    /// # Errors
    /// The engine gave other columns than it was asked for.
    pub fn add(&mut self, batches: &[RecordBatch], arrived: &[(Unit, usize)], first: usize) -> Result<(), Error> {
        for (unit, stratum) in arrived {
            self.strata[*stratum].add_unit(unit.size as f64);
        }
        // A unit has several groups; of all records together it is one point of the sample.
        let mut of_units = vec![vec![UnitMoments::default(); self.quantities.len()]; arrived.len()];
        for batch in batches {
            self.add_batch(batch, arrived, first, &mut of_units)?;
        }
        for ((unit, stratum), of_unit) in arrived.iter().zip(of_units) {
            for (all, moments) in self.all.iter_mut().zip(of_unit) {
                if moments.count > 0.0 {
                    all[*stratum].add_unit(moments, unit.size as f64);
                }
            }
        }
        Ok(())
    }

    fn add_batch(
        &mut self,
        batch: &RecordBatch,
        arrived: &[(Unit, usize)],
        first: usize,
        of_units: &mut [Vec<UnitMoments>],
    ) -> Result<(), Error> {
        let keys = self.keys.convert_columns(&batch.columns()[..self.key_count]).map_err(engine)?;
        let numbers: &UInt64Array = as_uint64_array(batch.column(self.key_count))?;
        let sums = self.sums(batch)?;
        for row in 0..batch.num_rows() {
            let place = numbers.value(row) as usize - first;
            let (unit, stratum) = arrived[place];
            let key: &[u8] = if self.key_count == 0 { &[] } else { keys.row(row).data() };
            if !self.groups.contains_key(key) {
                self.groups.insert(key.into(), vec![Parts::new(); self.quantities.len()]);
            }
            let parts = self.groups.get_mut(key).expect("it was added");
            for (i, (counts, values)) in sums.iter().enumerate() {
                let sum = values.filter(|values| values.is_valid(row)).map_or(0.0, |values| values.value(row));
                let count = counts.value(row) as f64;
                let moments = UnitMoments { count, sum: if values.is_some() { sum } else { count }, squares: 0.0 };
                of_units[place][i] += moments;
                if count > 0.0 {
                    part_of(&mut parts[i], stratum).add_unit(moments, unit.size as f64);
                }
            }
        }
        Ok(())
    }

    /// The columns of counts and sums, for each aggregate.
    fn sums<'a>(&self, batch: &'a RecordBatch) -> Result<Vec<(&'a Int64Array, Option<&'a Float64Array>)>, Error> {
        let mut columns = batch.columns()[self.key_count + 1..].iter();
        let mut next = || columns.next().ok_or_else(|| Error::Engine("a column of sums is missing".to_string()));
        let mut sums = Vec::new();
        for quantity in &self.quantities {
            let counts = as_int64_array(next()?)?;
            let values = match quantity {
                Quantity::Count => None,
                _ => Some(as_float64_array(next()?)?),
            };
            sums.push((counts, values));
        }
        Ok(sums)
    }

    fn population(&self, aggregate: usize, confidence: f64) -> Population<'_> {
        Population::new(&self.strata, &self.all[aggregate], confidence)
    }

    /// Of one group of many, most of which may be rare.
    fn of_group(&self, population: &Population<'_>, aggregate: usize, parts: &Parts) -> Estimate {
        let units_seen = parts.iter().map(|(_, moments)| moments.units).sum();
        match units_seen < RARE_UNITS && !population.is_whole() {
            true => Estimate::unclaimed(population.value(self.quantities[aggregate], parts), units_seen),
            false => self.of_parts(population, aggregate, parts),
        }
    }

    fn of_parts(&self, population: &Population<'_>, aggregate: usize, parts: &Parts) -> Estimate {
        population.estimate(self.quantities[aggregate], parts)
    }

    /// All records together.
    fn total(&self, aggregate: usize, confidence: f64) -> Estimate {
        let parts = self.all[aggregate].iter().copied().enumerate().collect();
        self.of_parts(&self.population(aggregate, confidence), aggregate, &parts)
    }

    /// By what factor the sample must grow so that the totals and the largest groups reach a relative error.
    pub fn needed_factor(&self, error: f64, terms: &Terms) -> f64 {
        let confidence = terms.confidence;
        let needed = |estimate: Estimate| estimate.needed_factor(error);
        let totals = (0..self.quantities.len()).map(|i| needed(self.total(i, confidence)));
        let populations: Vec<Population<'_>> =
            (0..self.quantities.len()).map(|i| self.population(i, confidence)).collect();
        let mut groups: Vec<(f64, &Vec<Parts>)> =
            self.groups.values().map(|parts| (populations[0].value(self.quantities[0], &parts[0]), parts)).collect();
        groups.sort_by(|a, b| b.0.total_cmp(&a.0));
        let largest = groups.iter().take(terms.top).flat_map(|(_, parts)| {
            let of_one = |(i, population)| needed(self.of_parts(population, i, &parts[i]));
            populations.iter().enumerate().map(of_one).collect::<Vec<f64>>()
        });
        // What has no value is not asked for.
        totals.chain(largest).filter(|factor| !factor.is_nan()).fold(0.0, f64::max)
    }

    /// The most units in which one group has a value of an aggregate whose error depends on that: any but a mean. None without
    /// groups, or without such an aggregate.
    pub fn most_units(&self) -> Option<u64> {
        let total = self.quantities.iter().position(|quantity| *quantity != Quantity::Mean)?;
        let units = |parts: &Vec<Parts>| parts[total].iter().map(|(_, moments)| moments.units).sum();
        let most = self.groups.values().map(units).max();
        most.filter(|most| self.key_count > 0 && *most > 0)
    }

    /// The estimates of all groups; without groups, of all records together.
    ///
    /// # Errors
    /// The engine cannot give back the groups.
    pub fn estimate(&self, confidence: f64) -> Result<Groups, Error> {
        let nothing = vec![Parts::new(); self.quantities.len()];
        let mut groups: Vec<(&[u8], &Vec<Parts>)> = self.groups.iter().map(|(key, parts)| (&**key, parts)).collect();
        if self.key_count == 0 && groups.is_empty() {
            groups.push((&[], &nothing));
        }
        groups.sort_unstable_by_key(|(key, _)| *key);
        let of = |i: usize| {
            let population = self.population(i, confidence);
            groups.iter().map(|(_, parts)| self.of_group(&population, i, &parts[i])).collect()
        };
        let parser = self.keys.parser();
        let keys = match self.key_count {
            0 => Vec::new(),
            _ => self.keys.convert_rows(groups.iter().map(|(key, _)| parser.parse(key))).map_err(engine)?,
        };
        Ok(Groups { keys, estimates: (0..self.quantities.len()).map(of).collect() })
    }
}

/// A column of values in the type of an aggregate; null is what is not finite, or does not fit the type.
pub fn column(values: impl Iterator<Item = f64>, of_type: &DataType) -> Result<ArrayRef, Error> {
    let finite = |value: f64| value.is_finite().then_some(value);
    let floats: Float64Array = values.map(finite).collect();
    datafusion::arrow::compute::cast(&floats, of_type).map_err(engine)
}
