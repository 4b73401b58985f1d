//! Counts the rows of a sample, unit by unit, in the tables of `tessera_sampling::tally`.

use super::keys::{Encoded, Keys};
use super::plan::{Estimable, Measure};
use crate::error::Error;
use crate::units::Sample;
use datafusion::arrow::array::{Array, Float64Array, RecordBatch, UInt64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::common::cast::{as_float64_array, as_uint64_array};
use datafusion::execution::SendableRecordBatchStream;
use futures_util::StreamExt;
use std::sync::Arc;
use tessera_sampling::layout::{Layout, Unit};
use tessera_sampling::tally::{Tally, UnitTally};

/// Counts the rows of one stream, step after step. All rows of a unit come in one stream, with no others in between.
pub struct Counter {
    keys: Keys,
    key_count: usize,
    measures: Vec<Measure>,
    tallies: Vec<Tally>,
    /// For each measure the number of its tally. One that only counts uses that of the [`Self::leader`] until it has other
    /// rows: most tables have no nulls, and a tally is most of the memory and of the time.
    places: Vec<usize>,
    /// Rows that have no value of any measure.
    without_values: Tally,
    /// Numbers of the units that had rows in this step.
    units: Vec<u64>,
    /// The last one, of which more rows may come, and those that came.
    open: Option<(u64, Vec<RecordBatch>)>,
}

impl Counter {
    /// Nothing is counted yet.
    ///
    /// # Errors
    /// The engine cannot group by values of such a type.
    pub fn new(query: &Estimable, layout: &Layout) -> Result<Counter, Error> {
        let key_types = query.key_types();
        let measures = query.measures.clone();
        let (leader, mut tallies) = (leader(&measures), 1);
        let place = |(number, measure): (usize, &Measure)| match measure {
            Measure::Values(_) if number != leader => {
                tallies += 1;
                tallies - 1
            }
            _ => 0,
        };
        let places = measures.iter().enumerate().map(place).collect();
        let tally = || Tally::new(layout, false, 0);
        Ok(Counter {
            key_count: key_types.len(),
            keys: Keys::new(&key_types)?,
            measures,
            tallies: (0..tallies).map(|_| tally()).collect(),
            places,
            without_values: tally(),
            units: Vec::new(),
            open: None,
        })
    }

    /// The number of the tally of a measure.
    pub fn place(&self, measure: usize) -> usize {
        self.places[measure]
    }

    /// What was counted of a measure. Of one that only counts, the sums mean nothing.
    pub fn tally(&self, measure: usize) -> &Tally {
        &self.tallies[self.places[measure]]
    }

    /// The rows that have no value of any measure.
    pub fn without_values(&self) -> &Tally {
        &self.without_values
    }

    /// Counts what [`Estimable::of_rows`] gives.
    ///
    /// # Errors
    /// A file cannot be read, or the engine fails.
    pub async fn count(mut self, mut rows: SendableRecordBatchStream, sample: Arc<Sample>) -> Result<Counter, Error> {
        while let Some(batch) = rows.next().await {
            self.add(&batch?, &sample)?;
        }
        self.close(&sample)?;
        Ok(self)
    }

    /// A batch may have the rows of several units, or a part of those of one.
    fn add(&mut self, batch: &RecordBatch, sample: &Sample) -> Result<(), Error> {
        let numbers: &UInt64Array = as_uint64_array(batch.column(self.key_count))?;
        let mut start = 0;
        for of_unit in numbers.values().chunk_by(|a, b| a == b) {
            let unit = of_unit[0];
            if self.open.as_ref().is_none_or(|(open, _)| *open != unit) {
                self.close(sample)?;
            }
            let (_, batches) = self.open.get_or_insert_with(|| (unit, Vec::new()));
            batches.push(batch.slice(start, of_unit.len()));
            start += of_unit.len();
        }
        Ok(())
    }

    /// Counts the rows of the unit that is open.
    fn close(&mut self, sample: &Sample) -> Result<(), Error> {
        let Some((number, batches)) = self.open.take() else { return Ok(()) };
        let unit = sample.unit(number);
        let (unit, stratum) = unit.ok_or_else(|| Error::Engine(format!("unit {number} has not arrived")))?;
        self.units.push(number);
        let of_unit: Vec<Columns> =
            batches.iter().map(|batch| Columns::of(batch, self.key_count, &self.measures)).collect::<Result<_, _>>()?;
        self.part(&of_unit);
        let size = unit.size as f64;
        let mut open: Vec<UnitTally<'_>> = self.tallies.iter_mut().map(|tally| tally.unit(stratum, size)).collect();
        let mut without_values = self.without_values.unit(stratum, size);
        for (batch, columns) in batches.iter().zip(&of_unit) {
            let keys = self.keys.encode(&batch.columns()[..self.key_count])?;
            let mut is_counted = vec![false; batch.num_rows()];
            for (place, open) in open.iter_mut().enumerate() {
                // Of measures with one tally the leader comes first, or all count the same.
                let of_place = (0..self.places.len()).filter(|measure| self.places[*measure] == place);
                let measure = of_place.min_by_key(|measure| *measure != leader(&self.measures));
                let values = measure.and_then(|measure| columns.0[measure].as_ref());
                count_values(values, &keys, &mut is_counted, open);
            }
            if self.key_count > 0 {
                let rest = (0..batch.num_rows()).filter(|row| !is_counted[*row]);
                rest.for_each(|row| without_values.add(keys.key(row), 1.0));
            }
        }
        Ok(())
    }

    /// Gives measures that count other rows than the leader a tally of their own, from this unit on.
    fn part(&mut self, of_unit: &[Columns]) {
        let leader = leader(&self.measures);
        for measure in 0..self.measures.len() {
            let shares = measure != leader && self.places[measure] == self.places[leader];
            if shares && of_unit.iter().any(|columns| columns.nulls(measure) != columns.nulls(leader)) {
                self.tallies.push(self.tallies[self.places[leader]].fork());
                self.places[measure] = self.tallies.len() - 1;
            }
        }
    }

    /// Adds units of which no row arrived: they are points of the sample, too.
    fn add_empty(&mut self, units: impl Iterator<Item = (Unit, usize)>) {
        for (unit, stratum) in units {
            let tallies = self.tallies.iter_mut().chain([&mut self.without_values]);
            tallies.for_each(|tally| drop(tally.unit(stratum, unit.size as f64)));
        }
    }
}

/// The step has ended: `arrived` are its units, numbered from `first` on.
pub fn end_step(counters: &mut [Counter], arrived: &[(Unit, usize)], first: usize) {
    let mut has_rows = vec![false; arrived.len()];
    for number in counters.iter_mut().flat_map(|counter| counter.units.drain(..)) {
        let before = std::mem::replace(&mut has_rows[number as usize - first], true);
        assert!(!before, "the rows of unit {number} came in two parts, which are no two points of the sample");
    }
    let empty = arrived.iter().zip(&has_rows).filter(|(_, has_rows)| !**has_rows);
    if let Some(counter) = counters.first_mut() {
        counter.add_empty(empty.map(|(unit, _)| *unit));
    }
}

/// The first measure with values; the first one, if all only count.
fn leader(measures: &[Measure]) -> usize {
    measures.iter().position(|measure| matches!(measure, Measure::Values(_))).unwrap_or(0)
}

/// The columns of the measures of a batch; none for all rows.
struct Columns(Vec<Option<Float64Array>>);

impl Columns {
    fn of(batch: &RecordBatch, key_count: usize, measures: &[Measure]) -> Result<Columns, Error> {
        let mut columns = batch.columns()[key_count + 1..].iter();
        let mut of = |measure: &Measure| match measure {
            Measure::Rows => Ok(None),
            Measure::Count(_) | Measure::Values(_) => {
                let column = columns.next().ok_or_else(|| Error::Engine("a column is missing".to_string()))?;
                Ok(Some(as_float64_array(column)?.clone()))
            }
        };
        measures.iter().map(&mut of).collect::<Result<_, Error>>().map(Columns)
    }

    fn nulls(&self, measure: usize) -> Option<&NullBuffer> {
        self.0[measure].as_ref()?.nulls().filter(|nulls| nulls.null_count() > 0)
    }
}

fn count_values(values: Option<&Float64Array>, keys: &Encoded, is_counted: &mut [bool], open: &mut UnitTally<'_>) {
    for (row, is_counted) in is_counted.iter_mut().enumerate() {
        if values.is_some_and(|values| values.is_null(row)) {
            continue;
        }
        *is_counted = true;
        let value = values.map_or(1.0, |values| values.value(row));
        match keys {
            Encoded::None => open.add_ungrouped(value),
            _ => open.add(keys.key(row), value),
        }
    }
}
