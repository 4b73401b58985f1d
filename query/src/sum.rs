//! `sum` of whole numbers and decimals that does not wrap. The engine's own sum has the bits of its argument and wraps without an
//! error. Sums of whole numbers are decimals, as PostgreSQL has them, and decimals have ten more digits than what is added up.
//! Durations and intervals keep their type: [`spans`] adds them up, and their means.

use crate::spans::{self, Computed, DistinctSpanSum, SpanSum};
use datafusion::arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, DataType::*, FieldRef,
};
use datafusion::common::types::{NativeType, logical_float64};
use datafusion::common::{Result, plan_err};
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Coercion, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature,
    TypeSignature, TypeSignatureClass, Volatility,
};

/// Digits of a number with 64 bits.
const WHOLE_DIGITS: u8 = 20;
/// A sum has so many more digits than its values, so it is right for 10^10 rows of the largest ones.
const MORE_DIGITS: u8 = 10;

/// See the module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct WideSum {
    inner: Sum,
    signature: Signature,
}

impl WideSum {
    /// The aggregate.
    pub fn new() -> WideSum {
        let float = TypeSignatureClass::Native(logical_float64());
        let kinds = [
            Coercion::new_implicit(float, vec![TypeSignatureClass::Float], NativeType::Float64),
            Coercion::new_exact(TypeSignatureClass::Duration),
            Coercion::new_exact(TypeSignatureClass::Interval),
        ];
        let kinds = kinds.into_iter().map(|kind| TypeSignature::Coercible(vec![kind]));
        let kinds = std::iter::once(TypeSignature::UserDefined).chain(kinds).collect();
        WideSum { inner: Sum::new(), signature: Signature::one_of(kinds, Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for WideSum {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [of_type] => wide(of_type).map(|wide| vec![wide]),
            _ => plan_err!("sum has one argument"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match &types[0] {
            Decimal256(digits, scale) if digits + MORE_DIGITS > DECIMAL256_MAX_PRECISION => plan_err!(
                "a sum of decimals of {digits} digits may have more than {DECIMAL256_MAX_PRECISION}; CAST(x AS DECIMAL({}, {scale})) \
                 has few enough",
                DECIMAL256_MAX_PRECISION - MORE_DIGITS
            ),
            _ => self.inner.return_type(types),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if !spans::is_span(args.return_type()) {
            return self.inner.accumulator(args);
        }
        let sum = SpanSum::new(&args, Computed::Sum);
        match args.is_distinct {
            true => Ok(Box::new(DistinctSpanSum::new(self.inner.accumulator(args)?, sum))),
            false => Ok(Box::new(sum)),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        match spans::is_span(args.return_type()) && !args.is_distinct {
            true => Ok(spans::state_fields(&args)),
            false => self.inner.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        !spans::is_span(args.return_type()) && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match spans::is_span(args.return_type()) && !args.is_distinct {
            true => self.accumulator(args),
            false => self.inner.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_expr()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn set_monotonicity(&self, of_type: &DataType) -> SetMonotonicity {
        self.inner.set_monotonicity(of_type)
    }
}

/// `avg` whose sum of durations does not wrap.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct WideAvg {
    inner: Avg,
}

impl WideAvg {
    /// The aggregate.
    pub fn new() -> WideAvg {
        WideAvg { inner: Avg::new() }
    }
}

impl AggregateUDFImpl for WideAvg {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match spans::is_span(args.return_type()) && !args.is_distinct {
            true => Ok(Box::new(SpanSum::new(&args, Computed::Mean))),
            false => self.inner.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        match spans::is_span(args.return_type()) && !args.is_distinct {
            true => Ok(spans::state_fields(&args)),
            false => self.inner.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        !spans::is_span(args.return_type()) && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_expr()
    }
}

/// The type as which whole numbers and decimals are added up.
fn wide(of_type: &DataType) -> Result<DataType> {
    match of_type {
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => Ok(Decimal128(WHOLE_DIGITS, 0)),
        Decimal32(digits, scale) | Decimal64(digits, scale) | Decimal128(digits, scale)
            if digits + MORE_DIGITS <= DECIMAL128_MAX_PRECISION =>
        {
            Ok(Decimal128(*digits, *scale))
        }
        Decimal128(digits, scale) | Decimal256(digits, scale) if digits + MORE_DIGITS <= DECIMAL256_MAX_PRECISION => {
            Ok(Decimal256(*digits, *scale))
        }
        Decimal256(..) => Ok(of_type.clone()),
        Dictionary(_, of_values) => wide(of_values),
        _ => plan_err!("{of_type} is neither a whole number nor a decimal"),
    }
}
