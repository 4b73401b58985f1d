//! Estimates as a table, in the place of the aggregate.

use super::groups::Groups;
use super::plan::{Estimable, interval_names, unqualified};
use crate::error::Error;
use crate::spans;
use datafusion::arrow::array::{Array, ArrayRef, Float64Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Column;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use std::sync::Arc;
use tessera_sampling::estimate::{Estimate, Quantity};

/// A plan with the columns of the aggregate, and the ends of the interval of each estimate.
///
/// # Errors
/// The engine refuses a column.
pub fn plan(query: &Estimable, groups: &Groups) -> Result<LogicalPlan, Error> {
    let schema = &query.aggregate().schema;
    let (mut columns, mut names) = (groups.keys.clone(), schema.columns());
    let estimates = names.split_off(query.keys());
    let types = schema.fields()[query.keys()..].iter().map(|field| field.data_type());
    for (((asked, name), of_type), estimates) in query.asked.iter().zip(estimates).zip(types).zip(&groups.estimates) {
        columns.extend(columns_of(&name.name, estimates, of_type, asked.quantity)?);
        let [low, high] = interval_names(&name.name);
        let relation = name.relation.clone();
        names.extend([name, Column::new(relation.clone(), low), Column::new(relation, high)]);
    }
    let field = |(i, column): (usize, &ArrayRef)| Field::new(format!("c{i}"), column.data_type().clone(), true);
    let fields: Vec<Field> = columns.iter().enumerate().map(field).collect();
    let inner = Arc::new(Schema::new(fields));
    let options = RecordBatchOptions::new().with_row_count(Some(groups.len()));
    let batch = RecordBatch::try_new_with_options(inner.clone(), columns, &options);
    let batch = batch.map_err(|error| Error::Engine(error.to_string()))?;
    let table = provider_as_source(Arc::new(MemTable::try_new(inner, vec![vec![batch]])?));
    let renamed = names
        .into_iter()
        .enumerate()
        .map(|(i, name)| unqualified(&format!("c{i}")).alias_qualified(name.relation.clone(), name.name));
    Ok(LogicalPlanBuilder::scan("estimates", table, None)?.project(renamed)?.build()?)
}

/// The estimates, and the lower and upper ends of their intervals, which are null where none is claimed. Whole numbers, decimals
/// and durations are rounded, the ends away from the estimate. Where no value was met there is no estimate: a number of 0 is one only
/// if everything was read.
///
/// # Errors
/// An estimate does not fit `of_type`; an end that does not is null.
fn columns_of(
    name: &str,
    estimates: &[Estimate],
    of_type: &DataType,
    quantity: Quantity,
) -> Result<[ArrayRef; 3], Error> {
    // How many there are of the smallest difference in 1.
    let steps = match of_type {
        of_type if of_type.is_integer() || spans::is_span(of_type) => Some(1.0),
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => Some(10f64.powi(i32::from(*scale))),
        _ => None,
    };
    let has_value = |estimate: &Estimate| estimate.units_seen > 0 || (quantity == Quantity::Count && estimate.claimed);
    let given = |estimate: &Estimate, number: f64| if has_value(estimate) { number } else { f64::NAN };
    let end = |estimate: &Estimate, number: f64| given(estimate, if estimate.claimed { number } else { f64::NAN });
    let rounded = |number: f64, round: fn(f64) -> f64| steps.map_or(number, |steps: f64| round(number * steps) / steps);
    let values: Vec<f64> = estimates.iter().map(|e| given(e, rounded(e.value, f64::round))).collect();
    // A sum of floating-point numbers may be NaN or infinite, as in the exact answer. A group without a value has none.
    let has = |(estimate, value): (&Estimate, &f64)| {
        (has_value(estimate) && (value.is_finite() || of_type.is_floating())).then_some(*value)
    };
    let there: Vec<Option<f64>> = estimates.iter().zip(&values).map(has).collect();
    let absent = there.iter().filter(|value| value.is_none()).count();
    let found = optional_column(there, of_type)?;
    if found.null_count() > absent {
        return Err(spans::too_long(name, of_type));
    }
    Ok([
        found,
        column(estimates.iter().map(|e| end(e, rounded(e.low, f64::floor))), of_type)?,
        column(estimates.iter().map(|e| end(e, rounded(e.high, f64::ceil))), of_type)?,
    ])
}

/// A column of values in the type of an aggregate; null is what is not finite, or does not fit the type.
fn column(values: impl Iterator<Item = f64>, of_type: &DataType) -> Result<ArrayRef, Error> {
    optional_column(values.map(|value| value.is_finite().then_some(value)).collect(), of_type)
}

fn optional_column(values: Vec<Option<f64>>, of_type: &DataType) -> Result<ArrayRef, Error> {
    let floats: Float64Array = values.into_iter().collect();
    cast(&floats, of_type).map_err(|error| Error::Engine(error.to_string()))
}
