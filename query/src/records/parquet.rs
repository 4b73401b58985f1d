//! Parquet: the unit is a row group, of which only the wanted columns are read.

use crate::error::Error;
use bytes::{Buf, Bytes};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use std::sync::Arc;
use tessera_sampling::Error as SamplingError;
use tessera_sampling::format::parquet::{ColumnBytes, Footers};
use tessera_sampling::format::{Block, Format};
use tessera_sampling::layout::{Run, Unit};
use tessera_sampling::source::{FileIndex, Source};
use tessera_sampling::tally::UnitTally;

/// Parquet files with the same columns.
pub struct Parquet {
    footers: Footers,
    /// What each footer says, as Arrow has it.
    files: Vec<ArrowReaderMetadata>,
}

/// Reads some columns of row groups.
struct Columns {
    all: Arc<Parquet>,
    columns: Vec<usize>,
}

impl Parquet {
    /// Reads the footers of all files.
    ///
    /// # Errors
    /// A file is no Parquet, or has other columns than the first.
    pub fn open(source: &dyn Source) -> Result<Parquet, Error> {
        let footers = Footers::open(source)?;
        let mut files = Vec::new();
        for (info, meta) in source.files().iter().zip(footers.files()) {
            // Nothing that an engine has noted down counts: columns are what the file says.
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let meta = ArrowReaderMetadata::try_new(meta.clone(), options);
            files.push(meta.map_err(|error| SamplingError::Record {
                file: info.name.clone(),
                offset: info.len_bytes,
                message: format!("no Parquet file: {error}"),
            })?);
        }
        let differs = |meta: &ArrowReaderMetadata| meta.schema().fields() != files[0].schema().fields();
        match files.iter().position(differs) {
            Some(other) => Err(Error::Usage(format!(
                "`{}` and `{}` have different columns; give them to tables of their own",
                source.files()[0].name,
                source.files()[other].name
            ))),
            None => Ok(Parquet { footers, files }),
        }
    }

    /// The columns of all files.
    pub fn schema(&self) -> SchemaRef {
        super::nullable(self.files[0].schema())
    }

    /// A format that reads these columns.
    pub fn of_columns(self: &Arc<Self>, columns: &[usize]) -> impl Format + use<> {
        Columns { all: self.clone(), columns: columns.to_vec() }
    }

    /// The rows of a row group that [`Parquet::of_columns`] has read.
    ///
    /// # Errors
    /// It is malformed.
    pub fn decode(&self, columns: &[usize], block: &Block) -> Result<Vec<RecordBatch>, ArrowError> {
        let unit = &block.unit;
        let pieces = self.footers.split(unit, self.leaves(unit.file, columns), &block.bytes);
        let meta = self.files[unit.file as usize].clone();
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(Pieces(pieces), meta)
            .with_row_groups(vec![self.footers.number(unit)])
            .with_batch_size(super::BATCH_ROWS)
            .with_projection(self.mask(unit.file, columns))
            .build()?;
        let read: Vec<RecordBatch> = reader.collect::<Result<_, _>>()?;
        // A reader gives columns in the order of the file; the table's order is that of the query.
        let mut sorted = columns.to_vec();
        sorted.sort_unstable();
        let order: Vec<usize> = columns.iter().filter_map(|column| sorted.binary_search(column).ok()).collect();
        let nullable = Arc::new(self.schema().project(columns)?);
        let given =
            |batch: RecordBatch| RecordBatch::try_new(nullable.clone(), batch.project(&order)?.columns().to_vec());
        read.into_iter().map(given).collect()
    }

    fn mask(&self, file: FileIndex, columns: &[usize]) -> ProjectionMask {
        ProjectionMask::roots(self.files[file as usize].parquet_schema(), columns.iter().copied())
    }

    /// The columns of the file that make up these of the table: a structure has several.
    fn leaves(&self, file: FileIndex, columns: &[usize]) -> impl Iterator<Item = usize> + use<> {
        let (mask, leaves) = (self.mask(file, columns), self.files[file as usize].parquet_schema().num_columns());
        (0..leaves).filter(move |leaf| mask.leaf_included(*leaf))
    }
}

impl Format for Columns {
    fn runs(&self, source: &dyn Source) -> Vec<Run> {
        self.all.footers.runs(source)
    }

    fn load_into(&self, source: &dyn Source, unit: Unit, mut bytes: Vec<u8>) -> Result<Block, SamplingError> {
        self.all.footers.read(source, unit, self.all.leaves(unit.file, &self.columns), &mut bytes)?;
        let end = bytes.len();
        Ok(Block { unit, offset: unit.offset, bytes, records: 0..end })
    }

    fn tally(&self, _: &Block, _: &str, _: &mut UnitTally<'_>) -> Result<(), SamplingError> {
        Ok(())
    }
}

/// Columns of a row group, at their places in the file.
struct Pieces(Vec<ColumnBytes>);

impl Length for Pieces {
    fn len(&self) -> u64 {
        self.0.iter().map(ColumnBytes::end).max().unwrap_or(0)
    }
}

impl ChunkReader for Pieces {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let piece = self.0.iter().find(|piece| piece.slice(start, 1).is_some());
        let left = piece.map_or(0, |piece| piece.end() - start);
        Ok(self.get_bytes(start, left as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let outside =
            || ParquetError::EOF(format!("{length} bytes at {start} are outside of the columns that were read"));
        self.0.iter().find_map(|piece| piece.slice(start, length)).ok_or_else(outside)
    }
}
