//! Parquet: the unit is a row group, of which only the columns of the question are read.
//!
//! Columns of lists and maps have no single value in a row and are refused; a field of a structure is a path such as
//! `user.name`. Decoding is that of the crate `parquet`.

mod column;

use self::column::{Column, Values};
use super::{Block, Format, bad_record};
use crate::error::Error;
use crate::layout::{Run, Unit};
use crate::question::{Bound, FieldValue};
use crate::source::{FileIndex, Source};
use crate::tally::UnitTally;
use bytes::{Buf, Bytes};
use hashbrown::HashMap;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use std::sync::Arc;

/// Rows that are decoded at once.
const BATCH_ROWS: usize = 8192;

/// Parquet files of which a question is asked.
pub struct Parquet {
    question: Bound,
    files: Vec<File>,
}

struct File {
    meta: ParquetMetaData,
    /// For each field of the question its column.
    columns: Vec<usize>,
    /// Row groups by where they start.
    groups: HashMap<u64, usize>,
}

impl Parquet {
    /// Reads the footers of all files.
    ///
    /// # Errors
    /// A file is no Parquet, or lacks a field.
    pub fn open(source: &dyn Source, question: Bound) -> Result<Parquet, Error> {
        let open = |file| File::open(source, file, &question);
        let files = (0..source.files().len() as FileIndex).map(open).collect::<Result<_, _>>()?;
        Ok(Parquet { question, files })
    }
}

impl File {
    fn open(source: &dyn Source, file: FileIndex, question: &Bound) -> Result<File, Error> {
        let info = &source.files()[file as usize];
        let reader = SourceReader { source, file };
        let meta = ParquetMetaDataReader::new().parse_and_finish(&reader);
        let meta = meta.map_err(|error| bad_record(&info.name, info.len_bytes, format!("no Parquet file: {error}")))?;
        let schema = meta.file_metadata().schema_descr();
        let names: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
        let place = |field: &String| {
            let at = names.iter().position(|name| name == field);
            let at = at.ok_or_else(|| super::no_field(info, field, &names))?;
            match schema.column(at).max_rep_level() {
                0 => Ok(at),
                _ => Err(Error::Question(format!(
                    "field `{field}` of `{}` is a list, which has no single value in a row",
                    info.name
                ))),
            }
        };
        let columns = question.fields.iter().map(place).collect::<Result<_, _>>()?;
        let groups = meta.row_groups().iter().enumerate().map(|(i, group)| (group_range(group).0, i)).collect();
        Ok(File { meta, columns, groups })
    }

    fn group(&self, unit: &Unit) -> &RowGroupMetaData {
        self.meta.row_group(self.groups[&unit.offset])
    }
}

/// Where a row group starts, and its length: that of all columns.
fn group_range(group: &RowGroupMetaData) -> (u64, u64) {
    let ranges = || group.columns().iter().map(|column| column.byte_range());
    let start = ranges().map(|(start, _)| start).min().unwrap_or(0);
    let end = ranges().map(|(start, len)| start.saturating_add(len)).max().unwrap_or(0);
    (start, end - start)
}

impl Format for Parquet {
    fn runs(&self, source: &dyn Source) -> Vec<Run> {
        let on_disks = source.runs();
        let mut runs = Vec::new();
        for (file, content) in self.files.iter().enumerate() {
            let file = file as FileIndex;
            for group in content.meta.row_groups().iter().filter(|group| group.num_rows() > 0) {
                let (offset, len_bytes) = group_range(group);
                // A row group may span disks; it counts for the one on which it begins.
                let after = on_disks.partition_point(|run| (run.file, run.offset) <= (file, offset));
                let disk = on_disks[..after].last().map_or(0, |run| run.disk);
                runs.push(Run { file, offset, len_bytes, disk, rows: Some(group.num_rows() as u64) });
            }
        }
        runs
    }

    fn load_into(&self, source: &dyn Source, unit: Unit, mut bytes: Vec<u8>) -> Result<Block, Error> {
        let file = &self.files[unit.file as usize];
        let group = file.group(&unit);
        bytes.clear();
        for column in &file.columns {
            let (start, len) = group.column(*column).byte_range();
            let read = source.read_vec(unit.file, start, len)?;
            if read.len() as u64 != len {
                return Err(bad_record(
                    &source.files()[unit.file as usize].name,
                    start,
                    "a column ends behind the end of the file",
                ));
            }
            bytes.extend_from_slice(&read);
        }
        let end = bytes.len();
        Ok(Block { unit, offset: unit.offset, bytes, records: 0..end })
    }

    fn tally(&self, block: &Block, name: &str, tally: &mut UnitTally<'_>) -> Result<(), Error> {
        let file = &self.files[block.unit.file as usize];
        let group = file.group(&block.unit);
        let fail = |message: String| bad_record(name, block.unit.offset, message);
        let mut at = 0;
        let mut columns = Vec::new();
        for column in &file.columns {
            let (start, len) = group.column(*column).byte_range();
            let bytes = Bytes::copy_from_slice(&block.bytes[at..at + len as usize]);
            at += len as usize;
            let reader = ColumnBytes { start, bytes };
            columns.push(Column::open(Arc::new(reader), group, *column).map_err(|error| fail(error.to_string()))?);
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

/// A file of a source, for the footer.
struct SourceReader<'a> {
    source: &'a dyn Source,
    file: FileIndex,
}

impl Length for SourceReader<'_> {
    fn len(&self) -> u64 {
        self.source.files()[self.file as usize].len_bytes
    }
}

impl ChunkReader for SourceReader<'_> {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let left = self.len().saturating_sub(start);
        Ok(self.get_bytes(start, left as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let read = self.source.read_vec(self.file, start, length as u64);
        let read = read.map_err(|error| ParquetError::External(Box::new(error)))?;
        match read.len() == length {
            true => Ok(read.into()),
            false => Err(ParquetError::EOF(format!("{length} bytes at {start}"))),
        }
    }
}

/// The bytes of a column of a row group, at their place in the file.
struct ColumnBytes {
    start: u64,
    bytes: Bytes,
}

impl Length for ColumnBytes {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for ColumnBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let left = self.len().saturating_sub(start);
        Ok(self.get_bytes(start, left as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let from = start.checked_sub(self.start).map(|from| from as usize);
        let range = from.and_then(|from| Some(from..from.checked_add(length)?));
        match range.filter(|range| range.end <= self.bytes.len()) {
            Some(range) => Ok(self.bytes.slice(range)),
            None => Err(ParquetError::EOF(format!("{length} bytes at {start} are outside of the column"))),
        }
    }
}
