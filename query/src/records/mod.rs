//! Files as columns: what a table's columns are, and how the records of a unit become them.
//!
//! `tessera_sampling` cuts files into units and finds the records of each; here they become columns of the SQL engine.
//! Types of CSV and JSON are those of the first records of each file.

mod blank_lines;
mod infer;
mod parquet;
mod zeros;

use crate::args::RecordFormat;
use crate::error::Error;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringBuilder};
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;
use tessera_sampling::Error as SamplingError;
use tessera_sampling::format::{Block, Csv, CsvOptions, Format, JsonLines, Text};
use tessera_sampling::plain;
use tessera_sampling::question::{Aggregate, Bound, Question};
use tessera_sampling::source::Source;
use tessera_sampling::words::FileFormat;

pub use self::parquet::Parquet;

/// Rows that become columns at once.
const BATCH_ROWS: usize = 8192;

/// How the files of a query are read, unless their names say so.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// The format of all files.
    pub format: Option<RecordFormat>,
    /// Columns that are text.
    pub text: Vec<String>,
    /// What separates the fields of CSV.
    pub delimiter: Option<u8>,
    /// Warnings are JSON.
    pub json: bool,
}

/// The records of a table's files.
pub struct Records {
    /// The files.
    pub source: Arc<dyn Source>,
    /// All columns.
    pub schema: SchemaRef,
    kind: Kind,
}

enum Kind {
    Text,
    Csv { delimiter: u8, cut: Arc<Csv> },
    Json,
    Parquet(Arc<Parquet>),
}

/// Reads some columns of a table's records.
pub struct Reader {
    /// Columns that are read, of the table's schema.
    columns: Vec<usize>,
    /// What is given of these.
    schema: SchemaRef,
    read_schema: SchemaRef,
    records: Arc<Records>,
    cut: Arc<dyn Format>,
}

/// A question of no fields: the formats only cut records then.
fn no_question() -> Bound {
    Question { aggregate: Aggregate::Count, key: None, value: None, filter: None }.bind()
}

impl Records {
    /// Finds the columns of files.
    ///
    /// # Errors
    /// Files are not of their format, or have different columns.
    pub fn open(source: Arc<dyn Source>, options: &ReadOptions) -> Result<Records, Error> {
        let format = options.format.map_or_else(|| FileFormat::of_files(&*source), |format| Ok(format.into()))?;
        let warning = if format == FileFormat::Parquet { None } else { plain::check(&*source)? };
        if let Some(warning) = warning {
            match options.json {
                true => eprintln!("{}", serde_json::json!({ "warning": warning })),
                false => eprintln!("tessera: warning: {warning}"),
            }
        }
        let (schema, kind) = match format {
            FileFormat::Text => (infer::text(), Kind::Text),
            FileFormat::Json => (infer::json(&*source, &options.text)?, Kind::Json),
            FileFormat::Csv => {
                let is_tsv = source.files()[0].name.to_ascii_lowercase().ends_with(".tsv");
                let delimiter = options.delimiter.unwrap_or(if is_tsv { b'\t' } else { b',' });
                let cut = Csv::open(&*source, no_question(), CsvOptions { delimiter: Some(delimiter), header: true })?;
                // Types are those of some files, and fields are found by their places.
                if let Some((first, other)) = cut.differing_files() {
                    return Err(Error::Usage(format!(
                        "`{}` and `{}` have different columns; give them to tables of their own",
                        source.files()[first as usize].name,
                        source.files()[other as usize].name
                    )));
                }
                (infer::csv(&*source, &cut, delimiter, &options.text)?, Kind::Csv { delimiter, cut: Arc::new(cut) })
            }
            FileFormat::Parquet => {
                let parquet = Parquet::open(&*source)?;
                (parquet.schema(), Kind::Parquet(Arc::new(parquet)))
            }
        };
        refuse_odd_columns(&*source, &schema)?;
        Ok(Records { source, schema, kind })
    }

    /// A reader of the columns `projection`; none: of all.
    ///
    /// # Errors
    /// A column does not exist, which the engine has checked.
    pub fn reader(self: &Arc<Self>, projection: Option<&Vec<usize>>) -> Result<Reader, Error> {
        let all = || (0..self.schema.fields().len()).collect();
        let wanted = projection.map_or_else(all, Clone::clone);
        let schema = Arc::new(self.schema.project(&wanted).map_err(engine)?);
        // Records are counted by some column.
        let columns = if wanted.is_empty() { vec![0] } else { wanted };
        let read_schema = Arc::new(self.schema.project(&columns).map_err(engine)?);
        let cut: Arc<dyn Format> = match &self.kind {
            Kind::Text => Arc::new(Text::new(no_question())?),
            Kind::Json => Arc::new(JsonLines::new(no_question())),
            Kind::Csv { cut, .. } => cut.clone(),
            Kind::Parquet(parquet) => Arc::new(parquet.of_columns(&columns)),
        };
        Ok(Reader { columns, schema, read_schema, records: self.clone(), cut })
    }
}

/// The engine has no room for a table without columns, or with two of one name.
fn refuse_odd_columns(source: &dyn Source, schema: &Schema) -> Result<(), Error> {
    let file = &source.files()[0].name;
    if schema.fields().is_empty() {
        return Err(Error::Usage(format!(
            "`{file}` has no columns in its first records; --format text reads its lines"
        )));
    }
    let mut places = HashMap::new();
    for (place, field) in (1..).zip(schema.fields()) {
        if let Some(first) = places.insert(field.name(), place) {
            return Err(Error::Usage(format!(
                "`{file}` names the column `{}` twice, as columns {first} and {place}; give one of them another name in the file",
                field.name()
            )));
        }
    }
    Ok(())
}

fn engine(error: ArrowError) -> Error {
    Error::Engine(error.to_string())
}

impl Reader {
    /// What it gives.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Cuts the files into units and reads them.
    pub fn cut(&self) -> &Arc<dyn Format> {
        &self.cut
    }

    /// The records of a unit as columns.
    ///
    /// # Errors
    /// A record is malformed, or not of the type of the first ones.
    pub fn decode(&self, block: &Block) -> Result<Vec<RecordBatch>, SamplingError> {
        let batches = match &self.records.kind {
            Kind::Parquet(parquet) => parquet.decode(&self.columns, block),
            _ => self.decode_records(block.records()),
        };
        let given = batches.and_then(|batches: Vec<RecordBatch>| match self.schema.fields().is_empty() {
            true => batches.iter().map(|batch| batch.project(&[])).collect(),
            false => batches.into_iter().map(zeros::without_negative_zeros).collect(),
        });
        given.map_err(|error| {
            let at = self.find_bad_record(block.records());
            SamplingError::Record {
                file: self.records.source.files()[block.unit.file as usize].name.clone(),
                offset: block.offset + (block.records.start + at) as u64,
                message: self.explained(&error, &block.records()[at..]),
            }
        })
    }

    fn explained(&self, error: &ArrowError, bad: &[u8]) -> String {
        let of_types = "types are those of the first records: --text COLUMN takes a column for text";
        match &self.records.kind {
            Kind::Parquet(_) => error.to_string(),
            Kind::Json => format!("{error}; {}", infer::way_out_of_json(bad).unwrap_or(of_types)),
            _ => format!("{error}; {of_types}"),
        }
    }

    /// Of text, CSV and JSON lines.
    fn decode_records(&self, records: &[u8]) -> Result<Vec<RecordBatch>, ArrowError> {
        match &self.records.kind {
            Kind::Text => lines(records, &self.read_schema).map(|batch| vec![batch]),
            Kind::Csv { delimiter, .. } => csv::ReaderBuilder::new(self.records.schema.clone())
                .with_delimiter(*delimiter)
                .with_header(false)
                .with_batch_size(BATCH_ROWS)
                .with_projection(self.columns.clone())
                .build_buffered(Cursor::new(self.with_blank_lines(records)))
                .and_then(Iterator::collect),
            Kind::Json => infer::read_json(records, &self.read_schema, BATCH_ROWS),
            Kind::Parquet(_) => Ok(Vec::new()),
        }
    }

    /// In a file of one column a blank line is a null, which the engine's reader would leave out.
    fn with_blank_lines<'a>(&self, records: &'a [u8]) -> Cow<'a, [u8]> {
        match self.records.schema.fields().len() {
            1 => blank_lines::quoted(records),
            _ => Cow::Borrowed(records),
        }
    }

    /// Where the first record begins that cannot be decoded; 0 if there is none. The engine's readers do not say it.
    fn find_bad_record(&self, records: &[u8]) -> usize {
        let quoted = matches!(self.records.kind, Kind::Csv { .. });
        find_bad_record(records, quoted, |part| self.decode_records(part).is_ok())
    }
}

/// Where the first record begins with which `records` are not good any more; 0 if there is none.
fn find_bad_record(records: &[u8], quoted: bool, is_good: impl Fn(&[u8]) -> bool) -> usize {
    let ends = ends_of_records(records, quoted);
    let good = ends.partition_point(|end| is_good(&records[..*end]));
    let start = match good {
        0 => 0,
        good if good == ends.len() => return 0,
        good => ends[good - 1],
    };
    start + records[start..].iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count()
}

/// Where lines end; `quoted`: outside of quotes.
fn ends_of_records(records: &[u8], quoted: bool) -> Vec<usize> {
    let (mut ends, mut in_quotes) = (Vec::new(), false);
    for (at, byte) in records.iter().enumerate() {
        match byte {
            b'"' => in_quotes = quoted && !in_quotes,
            b'\n' if !in_quotes => ends.push(at + 1),
            _ => {}
        }
    }
    if ends.last() != Some(&records.len()) {
        ends.push(records.len());
    }
    ends
}

/// The lines of a text; bytes that are no UTF-8 are replaced.
fn lines(text: &[u8], schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let mut lines = StringBuilder::new();
    let ended = text.strip_suffix(b"\n").unwrap_or(text);
    if !text.is_empty() {
        for line in ended.split(|byte| *byte == b'\n') {
            lines.append_value(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)));
        }
    }
    RecordBatch::try_new(schema.clone(), vec![Arc::new(lines.finish()) as ArrayRef])
}

/// A schema, whose fields may all be null.
fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
