//! Arithmetic of whole numbers that fails where a result does not fit its type. The engine's own +, - and * wrap without an error.
//!
//! [`CheckedArithmetic`] replaces these operators after the engine has coerced their types, so constants, conditions, keys and
//! joins are all covered. Names of columns stay as they are.

use crate::error::Error;
use datafusion::arrow::array::{ArrayRef, Datum};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;

/// Characters of an expression that an error shows.
const SHOWN_CHARS: usize = 80;

/// See the module.
#[derive(Debug)]
pub struct CheckedArithmetic;

impl AnalyzerRule for CheckedArithmetic {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| {
            let schema = merge_schema(&plan.inputs());
            // FILTER of an aggregate stands in its name with the function.
            let names = NamePreserver::new(&plan);
            let rewritten = plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let rewritten = expr.transform_up(|expr| checked(expr, &schema))?;
                Ok(if rewritten.transformed { rewritten.update_data(|expr| name.restore(expr)) } else { rewritten })
            })?;
            match rewritten.transformed {
                true => rewritten.map_data(LogicalPlan::recompute_schema),
                false => Ok(rewritten),
            }
        })
        .map(|plan| plan.data)
    }

    fn name(&self) -> &str {
        "checked_arithmetic"
    }
}

fn checked(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (operation, of_type) = match &expr {
        Expr::BinaryExpr(BinaryExpr { left, op, .. }) => {
            let operation = match op {
                Operator::Plus => Operation::Add,
                Operator::Minus => Operation::Subtract,
                Operator::Multiply => Operation::Multiply,
                _ => return Ok(Transformed::no(expr)),
            };
            (operation, type_of(left, schema)?)
        }
        Expr::Negative(inner) => (Operation::Negate, type_of(inner, schema)?),
        _ => return Ok(Transformed::no(expr)),
    };
    // A date less a date is a whole number, but no arithmetic of whole numbers.
    if !of_type.is_integer() {
        return Ok(Transformed::no(expr));
    }
    let text = text_of(&expr);
    let args = match expr {
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) => vec![*left, *right],
        Expr::Negative(inner) => vec![*inner],
        other => return Ok(Transformed::no(other)),
    };
    let signature = Signature::any(args.len(), Volatility::Immutable);
    let function = ScalarUDF::from(Checked { operation, of_type, text, signature });
    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(function.into(), args))))
}

/// The operator that an expression was, if the rule has replaced it.
fn as_checked(expr: &Expr) -> Option<&Checked> {
    let Expr::ScalarFunction(ScalarFunction { func, .. }) = expr else { return None };
    (func.inner().as_ref() as &dyn std::any::Any).downcast_ref()
}

/// A long chain of operators would be followed to its end from each of them.
fn type_of(expr: &Expr, schema: &DFSchema) -> Result<DataType> {
    as_checked(expr).map_or_else(|| expr.get_type(schema), |known| Ok(known.of_type.clone()))
}

/// An expression as the user may have written it, or its beginning.
fn text_of(expr: &Expr) -> String {
    let text = match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => format!("{} {op} {}", operand(left), operand(right)),
        Expr::Negative(inner) => format!("-{}", operand(inner)),
        Expr::Column(column) => column.name.clone(),
        Expr::Literal(value, _) => value.to_string(),
        Expr::Cast(Cast { expr, .. }) => text_of(expr),
        other => as_checked(other).map_or_else(|| other.schema_name().to_string(), |known| known.text.clone()),
    };
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn operand(expr: &Expr) -> String {
    let is_computed = match expr {
        Expr::Cast(Cast { expr, .. }) => matches!(**expr, Expr::BinaryExpr(_)) || as_checked(expr).is_some(),
        expr => matches!(expr, Expr::BinaryExpr(_)) || as_checked(expr).is_some(),
    };
    if is_computed { format!("({})", text_of(expr)) } else { text_of(expr) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Negate,
}

/// An operator of whole numbers of one type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    operation: Operation,
    of_type: DataType,
    /// The expression, for errors.
    text: String,
    signature: Signature,
}

impl Checked {
    fn compute(&self, args: &[ColumnarValue]) -> Result<ColumnarValue> {
        let of_two = |kernel: fn(&dyn Datum, &dyn Datum) -> Result<ArrayRef, ArrowError>| match args {
            [left, right] => apply(left, right, kernel),
            _ => Err(DataFusionError::Internal(format!("{} has two operands", self.name()))),
        };
        match self.operation {
            Operation::Add => of_two(numeric::add),
            Operation::Subtract => of_two(numeric::sub),
            Operation::Multiply => of_two(numeric::mul),
            Operation::Negate => match args {
                [ColumnarValue::Array(array)] => Ok(ColumnarValue::Array(numeric::neg(array)?)),
                [ColumnarValue::Scalar(scalar)] => {
                    let negated = numeric::neg(&scalar.to_array()?)?;
                    Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&negated, 0)?))
                }
                _ => Err(DataFusionError::Internal(format!("{} has one operand", self.name()))),
            },
        }
    }

    /// The error of the kernel in the words of the query.
    fn explain(&self, error: DataFusionError) -> DataFusionError {
        let DataFusionError::ArrowError(inner, _) = &error else { return error };
        let ArrowError::ArithmeticOverflow(said) = &**inner else { return error };
        let numbers = said.rsplit(": ").next().unwrap_or_default();
        let bits = 8 * self.of_type.primitive_width().unwrap_or_default();
        Error::Engine(format!(
            "overflow: `{}` does not fit {bits} bits ({numbers}); cast an operand: CAST(x AS DECIMAL(38, 0)) is wider",
            self.text
        ))
        .into()
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.operation {
            Operation::Add => "checked_add",
            Operation::Subtract => "checked_subtract",
            Operation::Multiply => "checked_multiply",
            Operation::Negate => "checked_negate",
        }
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let sign = match self.operation {
            Operation::Add => Operator::Plus,
            Operation::Subtract => Operator::Minus,
            Operation::Multiply => Operator::Multiply,
            Operation::Negate => return Ok(format!("(- {})", args[0].schema_name())),
        };
        Ok(format!("{} {sign} {}", args[0].schema_name(), args[1].schema_name()))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.of_type.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.compute(&args.args).map_err(|error| self.explain(error))
    }
}
