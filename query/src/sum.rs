//! `sum` of whole numbers as a decimal number, as PostgreSQL has it: the engine's own sum has 64 bits and wraps without an error.

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::common::types::{
    NativeType, logical_float64, logical_int8, logical_int16, logical_int32, logical_int64, logical_uint8,
    logical_uint16, logical_uint32, logical_uint64,
};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Coercion, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature,
    TypeSignature, TypeSignatureClass, Volatility,
};

/// Digits of a number with 64 bits. A sum has ten more, so it is right for 10^10 rows of the largest ones.
const DIGITS: u8 = 20;

/// See the module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct WideSum {
    inner: Sum,
    signature: Signature,
}

impl WideSum {
    /// The aggregate.
    pub fn new() -> WideSum {
        let native = TypeSignatureClass::Native;
        let whole = [
            logical_int8(),
            logical_int16(),
            logical_int32(),
            logical_int64(),
            logical_uint8(),
            logical_uint16(),
            logical_uint32(),
            logical_uint64(),
        ];
        let whole = whole.into_iter().map(native).collect();
        let kinds = [
            Coercion::new_exact(TypeSignatureClass::Decimal),
            Coercion::new_implicit(TypeSignatureClass::Decimal, whole, NativeType::Decimal(DIGITS, 0)),
            Coercion::new_implicit(native(logical_float64()), vec![TypeSignatureClass::Float], NativeType::Float64),
            Coercion::new_exact(TypeSignatureClass::Duration),
            Coercion::new_exact(TypeSignatureClass::Interval),
        ];
        let kinds = kinds.into_iter().map(|kind| TypeSignature::Coercible(vec![kind])).collect();
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

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.inner.create_sliding_accumulator(args)
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
