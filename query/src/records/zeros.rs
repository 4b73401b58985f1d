//! Negative zeros become zeros. The engine compares floating-point numbers by their bits in places (`IN`, `DISTINCT`, `nullif`,
//! partitions of windows), where −0 would be another number than 0.

use datafusion::arrow::array::{ArrayData, ArrayRef, ArrowPrimitiveType, AsArray, RecordBatch, make_array};
use datafusion::arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::arrow::error::ArrowError;
use std::ops::Add;
use std::sync::Arc;

/// The batch with 0 for each −0, in structures and lists, too.
///
/// # Errors
/// None that is expected: the parts of a structure stay of their types.
pub fn without_negative_zeros(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(|column| has_floats(column.data_type())) {
        return Ok(batch);
    }
    let changed = |column: &ArrayRef| match has_floats(column.data_type()) {
        true => changed(column.to_data()).map(make_array),
        false => Ok(column.clone()),
    };
    let columns = batch.columns().iter().map(changed).collect::<Result<_, _>>()?;
    RecordBatch::try_new(batch.schema(), columns)
}

fn has_floats(kind: &DataType) -> bool {
    match kind {
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) | DataType::Map(of, _) => {
            has_floats(of.data_type())
        }
        kind => kind.is_floating(),
    }
}

fn changed(data: ArrayData) -> Result<ArrayData, ArrowError> {
    match data.data_type() {
        DataType::Float16 => Ok(plus_zero::<Float16Type>(data)),
        DataType::Float32 => Ok(plus_zero::<Float32Type>(data)),
        DataType::Float64 => Ok(plus_zero::<Float64Type>(data)),
        kind if has_floats(kind) => {
            let children = data.child_data().iter().cloned().map(changed).collect::<Result<_, _>>()?;
            data.into_builder().child_data(children).build()
        }
        _ => Ok(data),
    }
}

/// −0 + 0 is 0, and any other number stays itself.
fn plus_zero<T>(data: ArrayData) -> ArrayData
where
    T: ArrowPrimitiveType,
    T::Native: Add<Output = T::Native>,
{
    let numbers: ArrayRef = make_array(data);
    let numbers = numbers.as_primitive::<T>();
    let sum: ArrayRef = Arc::new(numbers.unary::<_, T>(|number| number + T::Native::default()));
    sum.to_data()
}
