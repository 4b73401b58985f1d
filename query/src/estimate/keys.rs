//! Columns of a group as the bytes of one key, and back.

use crate::error::Error;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, LargeStringBuilder, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::utils::normalize_float_zero;

/// The key of a text that is null: no text has this byte.
const NULL_TEXT: &[u8] = &[0xff];

/// How the columns of a group become a key. Equal groups have equal keys, whichever converter made them.
pub enum Keys {
    /// There are no groups.
    None,
    /// One column of text: its bytes, which are a third shorter than a row.
    Text(DataType),
    /// The engine's rows, of columns of these types.
    Rows(RowConverter, Vec<DataType>),
}

/// The keys of a batch.
pub enum Encoded {
    /// There are no groups.
    None,
    /// One column of text.
    Text(StringArray),
    /// The engine's rows.
    Rows(Rows),
}

fn engine(error: ArrowError) -> Error {
    Error::Engine(error.to_string())
}

impl Keys {
    /// For columns of these types.
    ///
    /// # Errors
    /// The engine cannot group by values of such a type.
    pub fn new(types: &[DataType]) -> Result<Keys, Error> {
        match types {
            [] => Ok(Keys::None),
            [text @ (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)] => Ok(Keys::Text(text.clone())),
            _ => {
                let converter = RowConverter::new(types.iter().cloned().map(SortField::new).collect());
                Ok(Keys::Rows(converter.map_err(engine)?, types.to_vec()))
            }
        }
    }

    /// The keys of columns.
    ///
    /// # Errors
    /// The columns have other types, or the texts of a batch more than 2 GiB.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<Encoded, Error> {
        match self {
            Keys::None => Ok(Encoded::None),
            Keys::Text(_) => {
                let text = cast(&columns[0], &DataType::Utf8).map_err(engine)?;
                Ok(Encoded::Text(text.as_string::<i32>().clone()))
            }
            Keys::Rows(converter, _) => {
                // As where the engine groups: in rows the zeros would differ.
                let columns: Vec<ArrayRef> = columns.iter().map(normalize_float_zero).collect();
                converter.convert_columns(&columns).map(Encoded::Rows).map_err(engine)
            }
        }
    }

    /// The columns of keys.
    ///
    /// # Errors
    /// They do not fit their types, as texts of more than 2 GiB together.
    pub fn decode<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Result<Vec<ArrayRef>, Error> {
        match self {
            Keys::None => Ok(Vec::new()),
            Keys::Text(of_type) => {
                let mut texts = LargeStringBuilder::new();
                for key in keys {
                    match key {
                        NULL_TEXT => texts.append_null(),
                        _ => texts.append_value(std::str::from_utf8(key).expect("it was encoded from text")),
                    }
                }
                Ok(vec![cast(&texts.finish(), of_type).map_err(engine)?])
            }
            Keys::Rows(converter, types) => {
                let parser = converter.parser();
                let columns = converter.convert_rows(keys.map(|key| parser.parse(key))).map_err(engine)?;
                // Of a dictionary rows have the values.
                columns.iter().zip(types).map(|(column, of_type)| cast(column, of_type).map_err(engine)).collect()
            }
        }
    }
}

impl Encoded {
    /// The key of a row.
    pub fn key(&self, row: usize) -> &[u8] {
        match self {
            Encoded::None => &[],
            Encoded::Text(texts) if texts.is_null(row) => NULL_TEXT,
            Encoded::Text(texts) => texts.value(row).as_bytes(),
            Encoded::Rows(rows) => rows.row(row).data(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{DictionaryArray, Float64Array, Int64Array, LargeStringArray, StringViewArray};
    use datafusion::arrow::datatypes::{Float64Type, Int32Type};
    use std::sync::Arc;

    fn round_trip(columns: &[ArrayRef]) {
        let types: Vec<DataType> = columns.iter().map(|column| column.data_type().clone()).collect();
        let keys = Keys::new(&types).unwrap();
        let encoded = keys.encode(columns).unwrap();
        let decoded = keys.decode((0..columns[0].len()).map(|row| encoded.key(row))).unwrap();
        assert_eq!(decoded, columns);
    }

    #[test]
    fn columns_come_back_with_nulls_and_empty_texts() {
        let texts = [Some("a"), None, Some(""), Some("ÿ\u{0}"), Some("a text that is longer than a slot of a table")];
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-1), Some(i64::MIN), Some(0)]));
        let view: ArrayRef = Arc::new(StringViewArray::from_iter(texts));
        for text in
            [Arc::new(StringArray::from_iter(texts)) as ArrayRef, Arc::new(LargeStringArray::from_iter(texts)), view]
        {
            round_trip(&[text.clone()]);
            round_trip(&[numbers.clone(), text]);
        }
        round_trip(&[numbers]);
        let dictionary: DictionaryArray<Int32Type> = texts.into_iter().collect();
        round_trip(&[Arc::new(dictionary)]);
    }

    #[test]
    fn negative_zero_is_zero() {
        let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN]));
        let keys = Keys::new(&[DataType::Float64]).unwrap();
        let encoded = keys.encode(&[zeros]).unwrap();
        assert!(encoded.key(0) == encoded.key(1) && encoded.key(0) != encoded.key(2));
        let decoded = keys.decode([encoded.key(1)].into_iter()).unwrap();
        assert!(decoded[0].as_primitive::<Float64Type>().value(0).is_sign_positive());
    }
}
