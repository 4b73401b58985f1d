//! Parquet: the unit is a row group, of which only the columns of the question are read.
//!
//! Columns of lists and maps have no single value in a row and are refused; a field of a structure is a path such as
//! `user.name`. Decoding is that of the crate `parquet`.

mod column;
mod footers;

pub use self::footers::{ColumnBytes, Footers};

use self::column::{Column, Values};
use super::{Block, Format, bad_record};
use crate::error::Error;
use crate::layout::{Run, Unit};
use crate::question::{Bound, FieldValue};
use crate::source::{FileIndex, Source, SourceFile};
use crate::tally::UnitTally;
use parquet::file::metadata::ParquetMetaData;
use std::sync::Arc;

/// Rows that are decoded at once.
const BATCH_ROWS: usize = 8192;

/// Parquet files of which a question is asked.
pub struct Parquet {
    question: Bound,
    footers: Footers,
    /// By file, for each field of the question its column.
    columns: Vec<Vec<usize>>,
}

impl Parquet {
    /// Reads the footers of all files.
    ///
    /// # Errors
    /// A file is no Parquet, or lacks a field.
    pub fn open(source: &dyn Source, question: Bound) -> Result<Parquet, Error> {
        let footers = Footers::open(source)?;
        let wanted = source.files().iter().zip(footers.files()).map(|(file, meta)| columns(file, meta, &question));
        let columns = wanted.collect::<Result<_, _>>()?;
        Ok(Parquet { question, footers, columns })
    }

    fn columns(&self, file: FileIndex) -> impl Iterator<Item = usize> {
        self.columns[file as usize].iter().copied()
    }
}

/// The column of each field of the question.
fn columns(file: &SourceFile, meta: &ParquetMetaData, question: &Bound) -> Result<Vec<usize>, Error> {
    let schema = meta.file_metadata().schema_descr();
    let names: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    let place = |field: &String| {
        let at = names.iter().position(|name| name == field);
        let at = at.ok_or_else(|| super::no_field(file, field, &names))?;
        match schema.column(at).max_rep_level() {
            0 => Ok(at),
            _ => Err(Error::Question(format!(
                "field `{field}` of `{}` is a list, which has no single value in a row",
                file.name
            ))),
        }
    };
    question.fields.iter().map(place).collect()
}

impl Format for Parquet {
    fn runs(&self, source: &dyn Source) -> Vec<Run> {
        self.footers.runs(source)
    }

    fn load_into(&self, source: &dyn Source, unit: Unit, mut bytes: Vec<u8>) -> Result<Block, Error> {
        self.footers.read(source, unit, self.columns(unit.file), &mut bytes)?;
        let end = bytes.len();
        Ok(Block { unit, offset: unit.offset, bytes, records: 0..end })
    }

    fn tally(&self, block: &Block, name: &str, tally: &mut UnitTally<'_>) -> Result<(), Error> {
        let group = self.footers.group(&block.unit);
        let fail = |message: String| bad_record(name, block.unit.offset, message);
        let wanted = || self.columns(block.unit.file);
        let pieces = self.footers.split(&block.unit, wanted(), &block.bytes);
        let mut columns = Vec::new();
        for (column, bytes) in wanted().zip(pieces) {
            columns.push(Column::open(Arc::new(bytes), group, column).map_err(|error| fail(error.to_string()))?);
        }
        let mut left = group.num_rows() as usize;
        while left > 0 {
            let rows = left.min(BATCH_ROWS);
            let batch: Result<Vec<Values>, String> = columns.iter_mut().map(|column| column.read(rows)).collect();
            self.batch(&batch.map_err(fail)?, rows, tally).map_err(fail)?;
            left -= rows;
        }
        Ok(())
    }
}

impl Parquet {
    fn batch(&self, batch: &[Values], rows: usize, tally: &mut UnitTally<'_>) -> Result<(), String> {
        let mut fields = vec![FieldValue::Null; batch.len()];
        for row in 0..rows {
            for (field, values) in fields.iter_mut().zip(batch) {
                *field = values.get(row);
            }
            self.question.record(&fields, tally)?;
        }
        Ok(())
    }
}
