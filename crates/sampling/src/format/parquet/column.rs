//! The values of a column, batch by batch.

use super::ColumnBytes;
use crate::question::FieldValue;
use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::Result;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::Field;
use parquet::schema::types::ColumnDescPtr;
use std::sync::Arc;

/// A column of a row group that is being read.
pub(super) struct Column {
    reader: ColumnReader,
    descriptor: ColumnDescPtr,
}

/// Values of a batch of rows.
pub(super) struct Values {
    /// For each row its value's number, if it has one; nothing if all rows have one.
    present: Option<Vec<u32>>,
    data: Data,
}

enum Data {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bytes(Vec<ByteArray>),
    /// As the crate shows them: dates, times, decimals.
    Texts(Vec<String>),
}

const NULL: u32 = u32::MAX;

impl Values {
    /// The value of a row.
    pub fn get(&self, row: usize) -> FieldValue<'_> {
        let at = match &self.present {
            None => row,
            Some(present) if present[row] == NULL => return FieldValue::Null,
            Some(present) => present[row] as usize,
        };
        match &self.data {
            Data::Integers(values) => FieldValue::Integer(values[at]),
            Data::Floats(values) => FieldValue::Float(values[at]),
            Data::Bytes(values) => FieldValue::Text(values[at].data()),
            Data::Texts(values) => FieldValue::Text(values[at].as_bytes()),
        }
    }
}

impl Column {
    /// Opens a column, which must not repeat.
    pub fn open(bytes: Arc<ColumnBytes>, group: &RowGroupMetaData, column: usize) -> Result<Column> {
        let meta = group.column(column);
        let pages = SerializedPageReader::new(bytes, meta, group.num_rows() as usize, None)?;
        let descriptor = meta.column_descr_ptr();
        Ok(Column { reader: get_column_reader(descriptor.clone(), Box::new(pages)), descriptor })
    }

    /// Reads the next `rows` rows.
    pub fn read(&mut self, rows: usize) -> std::result::Result<Values, String> {
        let descriptor = self.descriptor.clone();
        let is_plain = is_plain(&descriptor);
        let texts = |field: Field| text_of(&field);
        let (present, data) = match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => {
                read(reader, &descriptor, rows, |values| Data::Texts(values.iter().map(bool::to_string).collect()))?
            }
            ColumnReader::Int32ColumnReader(reader) => read(reader, &descriptor, rows, |values| match is_plain {
                true => Data::Integers(values.into_iter().map(i64::from).collect()),
                false => Data::Texts(values.into_iter().map(|v| texts(Field::convert_int32(&descriptor, v))).collect()),
            })?,
            ColumnReader::Int64ColumnReader(reader) => read(reader, &descriptor, rows, |values| match is_plain {
                true => Data::Integers(values),
                false => Data::Texts(values.into_iter().map(|v| texts(Field::convert_int64(&descriptor, v))).collect()),
            })?,
            ColumnReader::Int96ColumnReader(reader) => read(reader, &descriptor, rows, |values| {
                Data::Texts(values.into_iter().map(|v| texts(Field::convert_int96(&descriptor, v))).collect())
            })?,
            ColumnReader::FloatColumnReader(reader) => {
                read(reader, &descriptor, rows, |values| Data::Floats(values.into_iter().map(f64::from).collect()))?
            }
            ColumnReader::DoubleColumnReader(reader) => read(reader, &descriptor, rows, Data::Floats)?,
            ColumnReader::ByteArrayColumnReader(reader) => {
                read(reader, &descriptor, rows, |values| bytes_of(values, is_decimal(&descriptor), &descriptor))?
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => read(reader, &descriptor, rows, |values| {
                let values = values.into_iter().map(ByteArray::from).collect();
                bytes_of(values, !is_plain, &descriptor)
            })?,
        };
        Ok(Values { present, data })
    }
}

/// Reads rows of a column of one type.
fn read<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    descriptor: &ColumnDescPtr,
    rows: usize,
    convert: impl FnOnce(Vec<T::T>) -> Data,
) -> std::result::Result<(Option<Vec<u32>>, Data), String> {
    let most = descriptor.max_def_level();
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let mut got = 0;
    while got < rows {
        let def_levels = (most > 0).then_some(&mut levels);
        let (records, ..) =
            reader.read_records(rows - got, def_levels, None, &mut values).map_err(|error| error.to_string())?;
        if records == 0 {
            return Err(format!("column `{}` ends after {got} of {rows} rows", descriptor.path()));
        }
        got += records;
    }
    let present = (most > 0).then(|| {
        let mut next = 0;
        let number = |level: &i16| {
            if *level < most {
                return NULL;
            }
            next += 1;
            next - 1
        };
        levels.iter().map(number).collect::<Vec<u32>>()
    });
    let needed = present.as_ref().map_or(rows, |present| present.iter().filter(|at| **at != NULL).count());
    if values.len() < needed || present.as_ref().is_some_and(|present| present.len() < rows) {
        return Err(format!("column `{}` has {} values for {needed}", descriptor.path(), values.len()));
    }
    Ok((present, convert(values)))
}

fn bytes_of(values: Vec<ByteArray>, is_converted: bool, descriptor: &ColumnDescPtr) -> Data {
    if !is_converted {
        return Data::Bytes(values);
    }
    let text = |value| {
        Field::convert_byte_array(descriptor, value).map_or_else(|error| error.to_string(), |field| text_of(&field))
    };
    Data::Texts(values.into_iter().map(text).collect())
}

/// Signed whole numbers, strings and bytes are taken as they are.
fn is_plain(descriptor: &ColumnDescPtr) -> bool {
    match descriptor.physical_type() {
        Type::FIXED_LEN_BYTE_ARRAY => {
            descriptor.logical_type_ref().is_none() && descriptor.converted_type() == ConvertedType::NONE
        }
        _ => {
            let signed = [
                ConvertedType::NONE,
                ConvertedType::INT_8,
                ConvertedType::INT_16,
                ConvertedType::INT_32,
                ConvertedType::INT_64,
            ];
            let logical = match descriptor.logical_type_ref() {
                None => true,
                Some(LogicalType::Integer(integer)) => integer.is_signed,
                Some(_) => false,
            };
            logical && signed.contains(&descriptor.converted_type())
        }
    }
}

fn is_decimal(descriptor: &ColumnDescPtr) -> bool {
    descriptor.converted_type() == ConvertedType::DECIMAL
        || matches!(descriptor.logical_type_ref(), Some(LogicalType::Decimal(_)))
}

/// A value as the crate shows it, without the quotes of strings.
fn text_of(field: &Field) -> String {
    match field {
        Field::Str(text) => text.clone(),
        other => other.to_string(),
    }
}
