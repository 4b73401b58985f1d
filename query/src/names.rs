//! Names of columns that the engine has no room for twice.
//!
//! The engine refuses a SELECT in which two columns have one name, also where nobody has named them: `count(*), count(*)`, and
//! `a, CAST(a AS DOUBLE)`, because a cast does not show in a name. Where it has refused a query so, [`plan`] names such columns
//! as the engine itself does in other places (`count(*):1`), and shows casts. A name that the user gave stays.

use crate::error::Error;
use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, ScalarValue, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::builder::validate_unique_names;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, CastKind, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, ObjectName,
    Select, SelectItem, Value, VisitMut, VisitorMut,
};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Name of the function [`CastAs`].
const CAST_AS: &str = "cast_as";

/// The plan of a query.
///
/// # Errors
/// The query is not valid.
pub async fn plan(context: &SessionContext, statement: Statement) -> Result<LogicalPlan, Error> {
    let state = context.state();
    let refused = match state.statement_to_plan(statement.clone()).await.and_then(refuse_equal_names) {
        Err(error) if is_about_names(&error) => error,
        done => return Ok(done?),
    };
    let mut statement = statement;
    if let ControlFlow::Break(name) = rename(&mut statement) {
        return Err(two_columns(&name));
    }
    state.statement_to_plan(statement).await.map_err(|error| match error.find_root() {
        DataFusionError::SchemaError(inner, _) => match &**inner {
            SchemaError::AmbiguousReference { field } if field.relation.is_some() => two_columns(&field.name),
            _ => refused.into(),
        },
        _ if is_about_names(&error) => refused.into(),
        _ => error.into(),
    })
}

fn two_columns(name: &str) -> Error {
    Error::Usage(format!(
        "two columns are named `{name}`: name one of them otherwise, as with AS {name}_2; * EXCLUDE ({name}) leaves out that of a \
         table"
    ))
}

fn is_about_names(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::SchemaError(error, _) => !matches!(**error, SchemaError::FieldNotFound { .. }),
        DataFusionError::Plan(text) => text.contains("require unique expression names"),
        _ => false,
    }
}

/// The engine's optimizer refuses keys and aggregates of equal names, which its planner has let pass.
fn refuse_equal_names(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.apply_with_subqueries(|plan| {
        if let LogicalPlan::Aggregate(aggregate) = plan {
            validate_unique_names("Aggregates", aggregate.group_expr.iter().chain(&aggregate.aggr_expr))?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(plan)
}

/// Gives columns different names. Breaks with one that the user gave to two columns.
fn rename(statement: &mut Statement) -> ControlFlow<String> {
    match statement {
        Statement::Statement(statement) => statement.visit(&mut Renaming),
        Statement::Explain(explain) => rename(&mut explain.statement),
        _ => ControlFlow::Continue(()),
    }
}

struct Renaming;

impl VisitorMut for Renaming {
    type Break = String;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<String> {
        let is_wildcard =
            |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        let has_wildcard = select.projection.iter().any(is_wildcard);
        let (mut seen, mut given) = (HashMap::<String, usize>::new(), HashSet::new());
        for item in &mut select.projection {
            let expr = match item {
                SelectItem::ExprWithAlias { alias, .. } if !given.insert(folded(alias)) => {
                    return ControlFlow::Break(folded(alias));
                }
                SelectItem::UnnamedExpr(expr) => expr,
                _ => continue,
            };
            let column = column_name(expr);
            // A column is among all those of its table, too.
            let before = usize::from(column.is_some() && has_wildcard);
            let name = column.unwrap_or_else(|| expr.to_string().to_lowercase());
            let times = seen.entry(name.clone()).or_insert(before);
            if *times > 0 {
                let alias = Ident::with_quote('"', format!("{name}:{times}"));
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
            *times += 1;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<String> {
        if let ast::Expr::Cast { kind, data_type, .. } = expr {
            let function = if *kind == CastKind::TryCast { "TRY_CAST" } else { "CAST" };
            let (function, of_type) = (function.to_string(), data_type.to_string());
            *expr = cast_as(expr.clone(), function, of_type);
        }
        ControlFlow::Continue(())
    }
}

/// A name without quotes is one of small letters.
fn folded(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_lowercase() }
}

/// The name of a column, without its table.
fn column_name(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Identifier(name) => Some(folded(name)),
        ast::Expr::CompoundIdentifier(names) => names.last().map(folded),
        _ => None,
    }
}

fn cast_as(cast: ast::Expr, function: String, of_type: String) -> ast::Expr {
    let text = |text: String| ast::Expr::value(Value::SingleQuotedString(text));
    let args = [cast, text(function), text(of_type)].map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    ast::Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(CAST_AS)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args.to_vec(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// `cast_as(CAST(x AS INT), 'CAST', 'INT')` is its first argument, with a name in which the cast shows. It stays in the plan: the
/// engine takes casts of its own and those of the query for one expression, and then misses one of two windows.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct CastAs {
    signature: Signature,
}

impl CastAs {
    /// The function.
    pub fn new() -> CastAs {
        CastAs { signature: Signature::any(3, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for CastAs {
    fn name(&self) -> &str {
        CAST_AS
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let text = |arg: &Expr| match arg {
            Expr::Literal(ScalarValue::Utf8(Some(text)), _) => text.clone(),
            other => other.schema_name().to_string(),
        };
        Ok(format!("{}({} AS {})", text(&args[1]), args[0].schema_name(), text(&args[2])))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args[0].clone())
    }
}

/// Columns of an answer with different names: joined tables may have columns of one name.
///
/// # Errors
/// None that is expected: only names change.
pub fn unique(batches: Vec<RecordBatch>, schema: &SchemaRef) -> Result<(Vec<RecordBatch>, SchemaRef)> {
    let mut taken: HashSet<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    if taken.len() == schema.fields().len() {
        return Ok((batches, schema.clone()));
    }
    let mut seen = HashSet::new();
    let names: Vec<String> = schema.fields().iter().map(|field| another(field.name(), &mut seen, &mut taken)).collect();
    let renamed = |schema: &Schema| -> SchemaRef {
        let fields = schema.fields().iter().zip(&names).map(|(field, name)| field.as_ref().clone().with_name(name));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    };
    let rename = |batch: RecordBatch| {
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(renamed(&batch.schema()), batch.columns().to_vec(), &options)
    };
    let batches = batches.into_iter().map(rename).collect::<Result<_, _>>()?;
    Ok((batches, renamed(schema)))
}

/// The name itself, or where it was seen one that is not taken.
fn another(name: &str, seen: &mut HashSet<String>, taken: &mut HashSet<String>) -> String {
    if seen.insert(name.to_string()) {
        return name.to_string();
    }
    let numbered = (1..).map(|number| format!("{name}:{number}"));
    let free = numbered.into_iter().find(|free| taken.insert(free.clone()));
    free.unwrap_or_else(|| name.to_string())
}
