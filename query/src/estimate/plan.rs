//! Which queries can be estimated, and how they are split at their aggregate.
//!
//! A query can be estimated if it is one aggregate over one table of files, with filters and projections below, and
//! projections, filters, sorts and limits above; if each aggregate is `count`, `sum` or `avg` of an expression of a row;
//! and if nothing above computes with an estimate, whose interval would then be unknown. Everything else is executed
//! exactly, and the user is told why.

use crate::records::Records;
use crate::tables::{FileTable, SampledTable};
use crate::units::{Sample, UNIT_COLUMN};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, DFSchema};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{
    Aggregate, Cast, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias, TableScan, cast,
    col, lit, when,
};
use std::collections::HashMap;
use std::sync::Arc;
use tessera_sampling::estimate::Quantity;

/// Why a query is executed exactly.
pub type Reason = String;

/// An aggregate that is estimated.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// What is estimated.
    pub quantity: Quantity,
    /// The number of its measure.
    pub measure: usize,
}

/// What is counted of a row. Several aggregates may have one measure, as the sum and the mean of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// All rows are counted.
    Rows,
    /// The rows where this is not null are counted.
    Count(Expr),
    /// These numbers are added up, and counted where they are not null.
    Values(Expr),
}

/// A query that can be estimated.
pub struct Estimable {
    top: LogicalPlan,
    aggregate: Aggregate,
    records: Arc<Records>,
    /// Its aggregates, in their order.
    pub asked: Vec<Asked>,
    /// Their measures.
    pub measures: Vec<Measure>,
}

/// Looks for the parts of a query that can be estimated.
///
/// # Errors
/// Why it cannot be.
pub fn recognize(top: &LogicalPlan) -> Result<Estimable, Reason> {
    refuse_subqueries(top)?;
    let mut at = top;
    let aggregate = loop {
        match at {
            LogicalPlan::Aggregate(aggregate) => break aggregate.clone(),
            LogicalPlan::Projection(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::SubqueryAlias(_) => at = at.inputs()[0],
            LogicalPlan::TableScan(_) => return Err("it has no aggregate".to_string()),
            other => return Err(format!("it has {}", named(other))),
        }
        refuse_subqueries(at)?;
    };
    if aggregate.group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
        return Err("it has grouping sets".to_string());
    }
    let (mut asked, mut measures) = (Vec::new(), Vec::new());
    for expr in &aggregate.aggr_expr {
        let (quantity, measure) = measured(expr, aggregate.input.schema())?;
        let known = measures.iter().position(|known| *known == measure);
        asked.push(Asked { quantity, measure: known.unwrap_or(measures.len()) });
        measures.extend(known.is_none().then_some(measure));
    }
    if asked.is_empty() {
        return Err("it has no aggregate but the list of groups, of which a sample misses some".to_string());
    }
    let records = table_below(&aggregate.input)?;
    let estimates = estimates_of(&aggregate);
    computes_with(top, &estimates)?;
    Ok(Estimable { top: top.clone(), aggregate, records, asked, measures })
}

fn named(plan: &LogicalPlan) -> String {
    let name = match plan {
        LogicalPlan::Join(_) => "a join",
        LogicalPlan::Union(_) => "a union",
        LogicalPlan::Window(_) => "a window",
        LogicalPlan::Distinct(_) => "a DISTINCT",
        LogicalPlan::Unnest(_) => "an unnest",
        LogicalPlan::Aggregate(_) => "an aggregate of an aggregate",
        LogicalPlan::Limit(_) => "a limit below the aggregate",
        LogicalPlan::Sort(_) => "a sort below the aggregate",
        _ => "what a sample says nothing about",
    };
    name.to_string()
}

fn refuse_subqueries(plan: &LogicalPlan) -> Result<(), Reason> {
    let has = |expr: &Expr| {
        use datafusion::common::tree_node::TreeNode;
        let is = |expr: &Expr| matches!(expr, Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_));
        expr.exists(|expr| Ok(is(expr))).unwrap_or(true)
    };
    if plan.expressions().iter().any(has) { Err("it has a subquery in an expression".to_string()) } else { Ok(()) }
}

/// What an aggregate estimates, and of what.
fn measured(expr: &Expr, input: &DFSchema) -> Result<(Quantity, Measure), Reason> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = expr.clone().unalias() else {
        return Err(format!("{expr} is no aggregate"));
    };
    let quantity = match func.name() {
        _ if params.distinct => return Err("a sample only bounds distinct values".to_string()),
        "count" => Quantity::Count,
        "sum" => Quantity::Sum,
        "avg" => Quantity::Mean,
        other => return Err(format!("{other} cannot be estimated")),
    };
    match <[Expr; 1]>::try_from(params.args) {
        Ok([argument]) if quantity != Quantity::Count && is_interval(&argument, input) => {
            Err(format!("a {} of intervals cannot be estimated: months and days have no fixed length", func.name()))
        }
        Ok([argument]) => measure(quantity, uncast(argument, input), params.filter.map(|filter| *filter))
            .map(|measure| (quantity, measure))
            .map_err(|error| error.to_string()),
        Err(_) => Err(format!("{} of several columns cannot be estimated", func.name())),
    }
}

/// A whole number without the cast to a wider type that the engine's `sum` and `avg` each have: their measure is one.
fn uncast(argument: Expr, input: &DFSchema) -> Expr {
    match argument {
        Expr::Cast(Cast { expr, field })
            if is_of_whole_number(&expr, input) && holds_whole_numbers(field.data_type()) =>
        {
            *expr
        }
        other => other,
    }
}

fn is_of_whole_number(expr: &Expr, input: &DFSchema) -> bool {
    expr.get_type(input).is_ok_and(|of_type| of_type.is_integer())
}

fn holds_whole_numbers(of_type: &DataType) -> bool {
    matches!(of_type, DataType::Float64 | DataType::Decimal128(20.., 0))
}

fn measure(quantity: Quantity, argument: Expr, filter: Option<Expr>) -> Result<Measure> {
    let value = match (quantity, &argument) {
        (Quantity::Count, Expr::Literal(value, _)) if !value.is_null() && filter.is_none() => return Ok(Measure::Rows),
        (Quantity::Count, _) => when(argument.is_not_null(), lit(1.0)).end()?,
        _ => cast(argument, DataType::Float64),
    };
    let value = match filter {
        Some(filter) => when(filter, value).end()?,
        None => value,
    };
    Ok(if quantity == Quantity::Count { Measure::Count(value) } else { Measure::Values(value) })
}

fn is_interval(argument: &Expr, input: &DFSchema) -> bool {
    matches!(argument.get_type(input), Ok(DataType::Interval(_)))
}

/// The table below an aggregate, with nothing but filters and projections in between.
fn table_below(plan: &LogicalPlan) -> Result<Arc<Records>, Reason> {
    refuse_subqueries(plan)?;
    match plan {
        LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            table_below(plan.inputs()[0])
        }
        LogicalPlan::TableScan(scan) => records_of(scan).ok_or_else(|| "its table is not one of files".to_string()),
        other => Err(format!("it has {}", named(other))),
    }
}

fn records_of(scan: &TableScan) -> Option<Arc<Records>> {
    let provider = source_as_provider(&scan.source).ok()?;
    provider.downcast_ref::<FileTable>().map(|table| table.records.clone())
}

/// The columns of an aggregate that are estimates.
fn estimates_of(aggregate: &Aggregate) -> Vec<Column> {
    let columns = aggregate.schema.columns();
    columns[aggregate.group_expr.len()..].to_vec()
}

/// The column that an output expression passes on, if it computes nothing.
fn passed(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Alias(alias) => passed(&alias.expr),
        _ => None,
    }
}

/// Follows estimates from the aggregate to the top, and refuses to compute with them. Conditions and orders may use
/// them: they choose groups.
fn computes_with(plan: &LogicalPlan, estimates: &[Column]) -> Result<Vec<Column>, Reason> {
    if let LogicalPlan::Aggregate(_) = plan {
        return Ok(estimates.to_vec());
    }
    let below = computes_with(plan.inputs()[0], estimates)?;
    match plan {
        LogicalPlan::Projection(projection) => {
            let mut above = Vec::new();
            for (expr, column) in projection.expr.iter().zip(projection.schema.columns()) {
                match passed(expr) {
                    Some(from) if below.contains(from) => above.push(column),
                    Some(_) => {}
                    None if expr.column_refs().iter().any(|used| below.contains(used)) => {
                        return Err(format!(
                            "`{}` computes with an estimate, whose interval it would lose",
                            column.name
                        ));
                    }
                    None => {}
                }
            }
            Ok(above)
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let inner = alias.input.schema().columns();
            let places = below.iter().filter_map(|column| inner.iter().position(|of_inner| of_inner == column));
            Ok(places.map(|place| alias.schema.columns()[place].clone()).collect())
        }
        _ => Ok(below),
    }
}

impl Estimable {
    /// The table's records.
    pub fn records(&self) -> &Arc<Records> {
        &self.records
    }

    /// The aggregate, which estimates replace.
    pub fn aggregate(&self) -> &Aggregate {
        &self.aggregate
    }

    /// Number of columns that make a group.
    pub fn keys(&self) -> usize {
        self.aggregate.group_expr.len()
    }

    /// Their types.
    pub fn key_types(&self) -> Vec<DataType> {
        self.aggregate.schema.fields()[..self.keys()].iter().map(|field| field.data_type().clone()).collect()
    }

    /// A column of the query that has the name of an end of an interval: the column and the estimate.
    pub fn name_taken(&self) -> Option<(String, String)> {
        let estimates = estimates_of(&self.aggregate);
        let mut at = &self.top;
        while !matches!(at, LogicalPlan::Aggregate(_)) {
            let columns = at.schema().columns();
            for estimate in computes_with(at, &estimates).unwrap_or_default() {
                let ends = interval_names(&estimate.name);
                if let Some(taken) = columns.iter().find(|column| ends.contains(&column.name)) {
                    return Some((taken.name.clone(), estimate.name));
                }
            }
            at = at.inputs()[0];
        }
        None
    }

    /// The plan that gives of each row of a sample the columns of its group, its unit, and the measures, but not that of all rows.
    pub fn of_rows(&self, sample: &Arc<Sample>) -> Result<LogicalPlan> {
        let table = Arc::new(SampledTable { sample: sample.clone() });
        let input = carry(&self.aggregate.input, &table)?;
        let unit = Expr::Column(unit_of(&input)?);
        let values = self.measures.iter().filter_map(|measure| match measure {
            Measure::Rows => None,
            Measure::Count(value) | Measure::Values(value) => Some(value.clone()),
        });
        let keys = self.aggregate.group_expr.iter().cloned();
        let columns = keys.chain([unit]).chain(values).enumerate();
        let named = columns.map(|(i, expr)| expr.alias(format!("__tessera_{i}")));
        LogicalPlanBuilder::from(input).project(named.collect::<Vec<_>>())?.build()
    }

    /// The query above its aggregate, over `estimates`, with two more columns for each estimate that it gives.
    ///
    /// `estimates` has the columns of the aggregate, and `NAME_lo` and `NAME_hi` for each estimate.
    pub fn above(&self, estimates: LogicalPlan) -> Result<LogicalPlan> {
        let intervals = estimates_of(&self.aggregate).into_iter().map(|column| (column.clone(), interval_of(&column)));
        replace(&self.top, estimates, intervals.collect()).map(|(plan, _)| plan)
    }
}

/// Names of the columns with the interval of an estimate.
pub fn interval_names(name: &str) -> [String; 2] {
    [format!("{name}_lo"), format!("{name}_hi")]
}

fn interval_of(column: &Column) -> [Column; 2] {
    interval_names(&column.name).map(|name| Column::new(column.relation.clone(), name))
}

type Intervals = HashMap<Column, [Column; 2]>;

/// Puts `estimates` into the place of the aggregate. Returns the columns of estimates, and where their intervals are.
fn replace(plan: &LogicalPlan, estimates: LogicalPlan, intervals: Intervals) -> Result<(LogicalPlan, Intervals)> {
    if let LogicalPlan::Aggregate(_) = plan {
        return Ok((estimates, intervals));
    }
    let (input, below) = replace(plan.inputs()[0], estimates, intervals)?;
    match plan {
        LogicalPlan::Projection(projection) => {
            let (mut exprs, mut above) = (Vec::new(), Intervals::new());
            for (expr, column) in projection.expr.iter().zip(projection.schema.columns()) {
                exprs.push(expr.clone());
                let Some(interval) = passed(expr).and_then(|from| below.get(from)) else { continue };
                let names = interval_names(&column.name);
                for (end, name) in interval.iter().zip(&names) {
                    exprs.push(Expr::Column(end.clone()).alias_qualified(column.relation.clone(), name));
                }
                above.insert(column.clone(), interval_of(&column));
            }
            Ok((LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?), above))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let renamed = SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?;
            let of_alias = |column: &Column| Column::new(Some(alias.alias.clone()), column.name.clone());
            let above = below.iter().map(|(column, ends)| (of_alias(column), [of_alias(&ends[0]), of_alias(&ends[1])]));
            let above = above.collect();
            Ok((LogicalPlan::SubqueryAlias(renamed), above))
        }
        other => Ok((other.with_new_exprs(other.expressions(), vec![input])?, below)),
    }
}

/// The plan below an aggregate over a sampled table, whose unit every node passes on.
fn carry(plan: &LogicalPlan, table: &Arc<SampledTable>) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let source = provider_as_source(table.clone());
            LogicalPlanBuilder::scan(scan.table_name.clone(), source, None)?.build()
        }
        LogicalPlan::Projection(projection) => {
            let input = carry(&projection.input, table)?;
            let unit = Expr::Column(unit_of(&input)?);
            let exprs = projection.expr.iter().cloned().chain([unit]).collect();
            Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let input = Arc::new(carry(&alias.input, table)?);
            Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(input, alias.alias.clone())?))
        }
        other => {
            let input = carry(other.inputs()[0], table)?;
            other.with_new_exprs(other.expressions(), vec![input])
        }
    }
}

/// The column with the unit.
fn unit_of(plan: &LogicalPlan) -> Result<Column> {
    let found = plan.schema().columns().into_iter().find(|column| column.name == UNIT_COLUMN);
    Ok(found.unwrap_or_else(|| Column::from_name(UNIT_COLUMN)))
}

/// A column by its name alone.
pub fn unqualified(name: &str) -> Expr {
    col(Column::from_name(name))
}
