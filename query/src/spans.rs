//! Sums and means of durations and intervals that do not wrap. The engine adds them with the bits of their type, and nanoseconds
//! of 64 bits end after 292 years. Here their parts are added with 128 bits; a sum that does not fit its type is an error.

use crate::error::Error;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, ListArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, Int64Type, IntervalDayTime, IntervalDayTimeType, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType, TimeUnit,
};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::Accumulator;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};

/// Months, days, and what is smaller: milliseconds or nanoseconds of an interval, the units of a duration.
type Parts = [i128; 3];

const STATE_DIGITS: u8 = 38;

/// What is computed of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Computed {
    /// Their sum.
    Sum,
    /// Their sum divided by their number, rounded towards zero as the engine does.
    Mean,
}

/// Whether values of a type are added up here.
pub fn is_span(of_type: &DataType) -> bool {
    matches!(of_type, DataType::Duration(_) | DataType::Interval(_))
}

/// The columns of [`SpanSum`]'s state.
pub fn state_fields(args: &StateFieldsArgs<'_>) -> Vec<FieldRef> {
    let part = |name: &str| Field::new(format!("{}[{name}]", args.name), DataType::Decimal128(STATE_DIGITS, 0), true);
    let count = Field::new(format!("{}[count]", args.name), DataType::Int64, true);
    [count, part("months"), part("days"), part("rest")].map(FieldRef::new).to_vec()
}

/// Adds up values of one type.
#[derive(Debug)]
pub struct SpanSum {
    of_type: DataType,
    /// The aggregate, for errors.
    name: String,
    computed: Computed,
    count: i64,
    parts: Parts,
}

impl SpanSum {
    /// Nothing is added yet.
    pub fn new(args: &AccumulatorArgs<'_>, computed: Computed) -> SpanSum {
        let (of_type, name) = (args.return_type().clone(), args.name.to_string());
        SpanSum { of_type, name, computed, count: 0, parts: [0; 3] }
    }

    fn add(&mut self, values: &ArrayRef, sign: i128) -> Result<()> {
        let (count, sum) = match values.data_type() {
            DataType::Duration(_) => {
                let values = cast(values, &DataType::Int64)?;
                added(values.as_primitive::<Int64Type>().iter(), |units| [0, 0, i128::from(units)])
            }
            DataType::Interval(IntervalUnit::YearMonth) => {
                added(values.as_primitive::<IntervalYearMonthType>().iter(), |months| [i128::from(months), 0, 0])
            }
            DataType::Interval(IntervalUnit::DayTime) => {
                let parts = |v: IntervalDayTime| [0, i128::from(v.days), i128::from(v.milliseconds)];
                added(values.as_primitive::<IntervalDayTimeType>().iter(), parts)
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => {
                let parts =
                    |v: IntervalMonthDayNano| [i128::from(v.months), i128::from(v.days), i128::from(v.nanoseconds)];
                added(values.as_primitive::<IntervalMonthDayNanoType>().iter(), parts)
            }
            other => return internal_err!("{other} is no duration"),
        };
        self.count += count * sign as i64;
        self.parts.iter_mut().zip(sum).for_each(|(part, of_values)| *part += sign * of_values);
        Ok(())
    }

    fn value(&self) -> Option<ScalarValue> {
        let divisor = if self.computed == Computed::Mean { i128::from(self.count) } else { 1 };
        let [months, days, rest] = self.parts.map(|part| part / divisor);
        let narrow = |part: i128| i32::try_from(part).ok();
        let wide = |part: i128| i64::try_from(part).ok();
        Some(match &self.of_type {
            DataType::Duration(TimeUnit::Second) => ScalarValue::DurationSecond(Some(wide(rest)?)),
            DataType::Duration(TimeUnit::Millisecond) => ScalarValue::DurationMillisecond(Some(wide(rest)?)),
            DataType::Duration(TimeUnit::Microsecond) => ScalarValue::DurationMicrosecond(Some(wide(rest)?)),
            DataType::Duration(TimeUnit::Nanosecond) => ScalarValue::DurationNanosecond(Some(wide(rest)?)),
            DataType::Interval(IntervalUnit::YearMonth) => ScalarValue::IntervalYearMonth(Some(narrow(months)?)),
            DataType::Interval(IntervalUnit::DayTime) => {
                ScalarValue::IntervalDayTime(Some(IntervalDayTime::new(narrow(days)?, narrow(rest)?)))
            }
            _ => {
                let value = IntervalMonthDayNano::new(narrow(months)?, narrow(days)?, wide(rest)?);
                ScalarValue::IntervalMonthDayNano(Some(value))
            }
        })
    }
}

fn added<T>(values: impl Iterator<Item = Option<T>>, parts: impl Fn(T) -> Parts) -> (i64, Parts) {
    values.flatten().fold((0, [0; 3]), |(count, [months, days, rest]), value| {
        let of_value = parts(value);
        (count + 1, [months + of_value[0], days + of_value[1], rest + of_value[2]])
    })
}

/// The error of a sum or an estimate that its type does not hold.
pub fn too_long(name: &str, of_type: &DataType) -> Error {
    let way_out = match of_type {
        DataType::Duration(_) => "CAST(x AS BIGINT) of its values has no such limit",
        DataType::Interval(_) => "date_part('epoch', x) makes numbers of seconds of its values",
        _ => "CAST(x AS DOUBLE) of its values has no such limit",
    };
    Error::Engine(format!("overflow: `{name}` does not fit its type, {of_type}; {way_out}"))
}

impl Accumulator for SpanSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0], 1)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0], -1)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match self.count {
            0 => ScalarValue::try_from(&self.of_type),
            _ => self.value().ok_or_else(|| too_long(&self.name, &self.of_type).into()),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.name.len()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let part = |part: i128| ScalarValue::Decimal128(Some(part), STATE_DIGITS, 0);
        let [months, days, rest] = self.parts.map(part);
        Ok(vec![ScalarValue::Int64(Some(self.count)), months, days, rest])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.count += states[0].as_primitive::<Int64Type>().iter().flatten().sum::<i64>();
        for (part, state) in self.parts.iter_mut().zip(&states[1..]) {
            *part += state.as_primitive::<Decimal128Type>().iter().flatten().sum::<i128>();
        }
        Ok(())
    }
}

/// Adds up the different values that the engine's own accumulator has found.
#[derive(Debug)]
pub struct DistinctSpanSum {
    /// The engine's, whose state is the list of values.
    found: Box<dyn Accumulator>,
    sum: SpanSum,
}

impl DistinctSpanSum {
    /// `found`: the engine's accumulator of the distinct sum. `sum`: one of nothing yet.
    pub fn new(found: Box<dyn Accumulator>, sum: SpanSum) -> DistinctSpanSum {
        DistinctSpanSum { found, sum }
    }
}

impl Accumulator for DistinctSpanSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.found.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let [ScalarValue::List(found)] = &self.found.state()?[..] else {
            return exec_err!("the different values of `{}` are no list", self.sum.name);
        };
        let found: &ListArray = found;
        (self.sum.count, self.sum.parts) = (0, [0; 3]);
        self.sum.add(found.values(), 1)?;
        self.sum.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.found.size() + self.sum.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.found.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.found.merge_batch(states)
    }
}
