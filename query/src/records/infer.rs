//! The columns of text, CSV and JSON lines, from the first records of the files.

use super::{no_question, nullable};
use crate::error::Error;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::csv::reader::Format as CsvFormat;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json;
use datafusion::arrow::json::reader::infer_json_schema;
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;
use tessera_sampling::Error as SamplingError;
use tessera_sampling::format::{Block, Csv, Format, JsonLines, ONE_OBJECT};
use tessera_sampling::layout::Unit;
use tessera_sampling::source::{FileIndex, Source};

/// So much of each file is looked at.
const HEAD_BYTES: u64 = 256 << 10;
/// Of so many files, spread over all.
const MAX_FILES: usize = 32;

/// The columns of text.
pub fn text() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8, true)]))
}

/// The columns of CSV.
///
/// # Errors
/// Files have different columns, or one of `text` is none.
pub fn csv(source: &dyn Source, cut: &Csv, delimiter: u8, text: &[String]) -> Result<SchemaRef, Error> {
    let format = CsvFormat::default().with_header(true).with_delimiter(delimiter);
    // The header, and the records.
    let head = |block: &Block| 0..block.records.end;
    infer(source, cut, text, (true, head), |head| {
        format.infer_schema(Cursor::new(head), None).map(|(schema, _)| schema).map_err(|error| error.to_string())
    })
}

/// The columns of JSON lines.
///
/// # Errors
/// As [`csv`].
pub fn json(source: &dyn Source, text: &[String]) -> Result<SchemaRef, Error> {
    let head = |block: &Block| block.records.clone();
    infer(source, &JsonLines::new(no_question()), text, (false, head), |records| {
        infer_json_schema(Cursor::new(records), None).map(|(schema, _)| schema).map_err(|error| error.to_string())
    })
}

/// The records of JSON lines as columns of `schema`.
///
/// # Errors
/// They are malformed, or not of these types.
pub fn read_json(records: &[u8], schema: &SchemaRef, batch_rows: usize) -> Result<Vec<RecordBatch>, ArrowError> {
    // Arrow's reader cuts off what stands behind the point where a whole number is expected; its cast refuses that.
    let as_text: Vec<FieldRef> = schema.fields().iter().map(with_whole_numbers_as_text).collect();
    let reader = json::ReaderBuilder::new(Arc::new(Schema::new(as_text)))
        .with_batch_size(batch_rows)
        // Numbers are text where some records have text.
        .with_coerce_primitive(true)
        .build(Cursor::new(records))?;
    let strict = CastOptions { safe: false, ..Default::default() };
    let typed = |batch: RecordBatch| {
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns.map(|(column, field)| cast_with_options(column, field.data_type(), &strict));
        RecordBatch::try_new(schema.clone(), columns.collect::<Result<_, _>>()?)
    };
    reader.map(|batch| typed(batch?)).collect()
}

fn with_whole_numbers_as_text(field: &FieldRef) -> FieldRef {
    let of_type = match field.data_type() {
        DataType::Int64 => DataType::Utf8,
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(with_whole_numbers_as_text).collect()),
        DataType::List(of_list) => DataType::List(with_whole_numbers_as_text(of_list)),
        _ => return field.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(of_type))
}

/// The way out, if the line with which JSON begins is no object.
pub fn way_out_of_json(records: &[u8]) -> Option<&'static str> {
    let line = records.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).is_ok();
    (!is_object).then_some(ONE_OBJECT)
}

/// `quoted`: line breaks in quotes end no record. `head`: what is looked at of a block.
fn infer(
    source: &dyn Source,
    cut: &dyn Format,
    text: &[String],
    (quoted, head): (bool, impl Fn(&Block) -> Range<usize>),
    schema_of: impl Fn(&[u8]) -> Result<Schema, String>,
) -> Result<SchemaRef, Error> {
    let files: Vec<FileIndex> = (0..).zip(source.files()).filter(|(_, f)| f.len_bytes > 0).map(|(i, _)| i).collect();
    let step = files.len().div_ceil(MAX_FILES).max(1);
    let mut common: Option<Schema> = None;
    for file in files.iter().step_by(step) {
        let info = &source.files()[*file as usize];
        let len_bytes = info.len_bytes.min(HEAD_BYTES);
        let block = cut.load(source, Unit { file: *file, offset: 0, len_bytes, size: len_bytes })?;
        let (start, records) = (head(&block).start, &block.bytes[head(&block)]);
        let with_common = |records: &[u8]| match &common {
            None => schema_of(records),
            Some(common) => merged(common, &schema_of(records)?),
        };
        let bad = |error: String| {
            let at = super::find_bad_record(records, quoted, |part| with_common(part).is_ok());
            let way_out = if quoted { None } else { way_out_of_json(&records[at..]) };
            let message = way_out.map_or(error.clone(), |way_out| format!("{error}; {way_out}"));
            SamplingError::Record { file: info.name.clone(), offset: block.offset + (start + at) as u64, message }
        };
        let schema = with_common(records).map_err(bad)?;
        common = Some(schema);
    }
    let schema = common.ok_or_else(|| Error::Usage(format!("`{}` is empty", source.files()[0].name)))?;
    if let Some(unknown) = text.iter().find(|name| schema.field_with_name(name).is_err()) {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        return Err(Error::Usage(format!("--text {unknown}: there is no such column; there is {}", names.join(", "))));
    }
    Ok(nullable(&with_text(&schema, text)))
}

/// Columns that were null so far, and those of `text`, are text.
fn with_text(schema: &Schema, text: &[String]) -> Schema {
    let typed = |field: &Arc<Field>| match text.contains(field.name()) || field.data_type() == &DataType::Null {
        true => Field::new(field.name(), DataType::Utf8, true),
        false => field.as_ref().clone(),
    };
    Schema::new(schema.fields().iter().map(typed).collect::<Vec<_>>())
}

/// The columns of both: a number where both have numbers, else text. CSV has the same columns in each file, in the same
/// order; JSON may lack some.
fn merged(a: &Schema, b: &Schema) -> Result<Schema, String> {
    let mut fields: Vec<Field> = a.fields().iter().map(|field| field.as_ref().clone()).collect();
    for field in b.fields() {
        match fields.iter_mut().find(|known| known.name() == field.name()) {
            None => fields.push(field.as_ref().clone()),
            Some(known) => {
                let of_both = common_type(known.data_type(), field.data_type())
                    .ok_or_else(|| format!("column `{}` is of another type than in the files before", field.name()))?;
                known.set_data_type(of_both);
            }
        }
    }
    Ok(Schema::new(fields))
}

fn common_type(a: &DataType, b: &DataType) -> Option<DataType> {
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (DataType::Null, other) | (other, DataType::Null) => Some(other.clone()),
        (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => Some(DataType::Float64),
        (a, b) if a.is_nested() || b.is_nested() => None,
        _ => Some(DataType::Utf8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Array, AsArray};

    fn schema(fields: &[(&str, DataType)]) -> Schema {
        Schema::new(fields.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect::<Vec<_>>())
    }

    #[test]
    fn types_of_files_widen() {
        let a = schema(&[("n", DataType::Int64), ("s", DataType::Int64), ("e", DataType::Null)]);
        let b = schema(&[("n", DataType::Float64), ("s", DataType::Boolean), ("e", DataType::Date32)]);
        let both = merged(&a, &b).unwrap();
        let expected = schema(&[("n", DataType::Float64), ("s", DataType::Utf8), ("e", DataType::Date32)]);
        assert_eq!(both, expected);
        let nested = schema(&[("n", DataType::Struct(Vec::<Field>::new().into()))]);
        assert!(merged(&a, &nested).unwrap_err().contains("`n`"));
    }

    #[test]
    fn a_fraction_is_no_whole_number() {
        let one = DataType::Int64;
        let list = DataType::List(Arc::new(Field::new("item", one.clone(), true)));
        let inner = DataType::Struct(vec![Field::new("x", one.clone(), true)].into());
        let whole = Arc::new(schema(&[("n", one), ("l", list), ("s", inner)]));
        let read = |text: &str| read_json(text.as_bytes(), &whole, 10);
        let rows =
            read("{\"n\":9223372036854775807,\"l\":[1,null,-2],\"s\":{\"x\":3}}\n{\"l\":null}\n{\"s\":{}}\n").unwrap();
        assert_eq!(rows[0].num_rows(), 3);
        let numbers = rows[0].column(0).as_primitive::<datafusion::arrow::datatypes::Int64Type>();
        assert_eq!((numbers.value(0), numbers.null_count()), (i64::MAX, 2));
        for text in ["{\"n\":1.9}", "{\"l\":[1,2.5]}", "{\"s\":{\"x\":0.1}}", "{\"n\":1e30}", "{\"n\":true}"] {
            assert!(read(text).is_err(), "{text}: {:?}", read(text));
        }
    }

    #[test]
    fn what_is_always_null_is_text() {
        let typed = with_text(&schema(&[("e", DataType::Null), ("n", DataType::Int64)]), &["n".to_string()]);
        assert_eq!(typed, schema(&[("e", DataType::Utf8), ("n", DataType::Utf8)]));
    }
}
