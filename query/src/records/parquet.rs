//! Parquet: the unit is a row group, of which only the wanted columns are read.

use crate::error::Error;
use bytes::{Buf, Bytes};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tessera_sampling::Error as SamplingError;
use tessera_sampling::format::{Block, Format};
use tessera_sampling::layout::{Run, Unit};
use tessera_sampling::source::{FileIndex, Source};
use tessera_sampling::tally::UnitTally;

/// The footers of Parquet files.
pub struct Parquet {
    files: Arc<Vec<File>>,
}

struct File {
    meta: ArrowReaderMetadata,
    /// Row groups by where they start.
    groups: HashMap<u64, usize>,
}

/// Reads some columns of row groups.
struct Columns {
    files: Arc<Vec<File>>,
    columns: Vec<usize>,
}

impl Parquet {
    /// Reads the footers of all files.
    ///
    /// # Errors
    /// A file is no Parquet, or has other columns than the first.
    pub fn open(source: &dyn Source) -> Result<Parquet, Error> {
        let open = |file| File::open(source, file);
        let files = (0..source.files().len() as FileIndex).map(open).collect::<Result<Vec<File>, SamplingError>>()?;
        let differs = |file: &&(usize, &File)| file.1.meta.schema().fields() != files[0].meta.schema().fields();
        match files.iter().enumerate().find(|file| differs(&file)) {
            Some((other, _)) => Err(Error::Usage(format!(
                "`{}` and `{}` have different columns; give them to tables of their own",
                source.files()[0].name,
                source.files()[other].name
            ))),
            None => Ok(Parquet { files: Arc::new(files) }),
        }
    }

    /// The columns of all files.
    pub fn schema(&self) -> SchemaRef {
        super::nullable(self.files[0].meta.schema())
    }

    /// A format that reads these columns.
    pub fn of_columns(&self, columns: &[usize]) -> impl Format + use<> {
        Columns { files: self.files.clone(), columns: columns.to_vec() }
    }

    /// The rows of a row group that [`Parquet::of_columns`] has read.
    ///
    /// # Errors
    /// It is malformed.
    pub fn decode(&self, columns: &[usize], block: &Block) -> Result<Vec<RecordBatch>, ArrowError> {
        let file = &self.files[block.unit.file as usize];
        let group = file.groups[&block.unit.offset];
        let mut at = 0;
        let mut pieces = Vec::new();
        let bytes = Bytes::copy_from_slice(&block.bytes);
        for range in file.ranges(group, columns) {
            let len = (range.end - range.start) as usize;
            pieces.push((range.start, bytes.slice(at..at + len)));
            at += len;
        }
        let pieces = Pieces { pieces, end: block.unit.end() };
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(pieces, file.meta.clone())
            .with_row_groups(vec![group])
            .with_batch_size(super::BATCH_ROWS)
            .with_projection(file.mask(columns))
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
}

impl File {
    fn open(source: &dyn Source, file: FileIndex) -> Result<File, SamplingError> {
        let info = &source.files()[file as usize];
        // Nothing that an engine has noted down counts: columns are what the file says.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let meta = ArrowReaderMetadata::load(&SourceReader { source, file }, options);
        let meta = meta.map_err(|error| SamplingError::Record {
            file: info.name.clone(),
            offset: info.len_bytes,
            message: format!("no Parquet file: {error}"),
        })?;
        let groups = meta.metadata().row_groups().iter().enumerate().map(|(i, g)| (group_range(g).0, i)).collect();
        Ok(File { meta, groups })
    }

    fn mask(&self, columns: &[usize]) -> ProjectionMask {
        ProjectionMask::roots(self.meta.parquet_schema(), columns.iter().copied())
    }

    /// Where the columns of a row group lie, as far as they are wanted.
    fn ranges(&self, group: usize, columns: &[usize]) -> Vec<Range<u64>> {
        let mask = self.mask(columns);
        let leaves = self.meta.metadata().row_group(group).columns().iter().enumerate();
        let wanted = leaves.filter(|(leaf, _)| mask.leaf_included(*leaf));
        let range = |(start, len): (u64, u64)| start..start.saturating_add(len);
        wanted.map(|(_, column)| range(column.byte_range())).collect()
    }
}

/// Where a row group starts, and its length: that of all columns.
fn group_range(group: &RowGroupMetaData) -> (u64, u64) {
    let ranges = || group.columns().iter().map(|column| column.byte_range());
    let start = ranges().map(|(start, _)| start).min().unwrap_or(0);
    let end = ranges().map(|(start, len)| start.saturating_add(len)).max().unwrap_or(0);
    (start, end - start)
}

impl Format for Columns {
    fn runs(&self, source: &dyn Source) -> Vec<Run> {
        let on_disks = source.runs();
        let mut runs = Vec::new();
        for (file, content) in (0..).zip(self.files.iter()) {
            for group in content.meta.metadata().row_groups().iter().filter(|group| group.num_rows() > 0) {
                let (offset, len_bytes) = group_range(group);
                // A row group may span disks; it counts for the one on which it begins.
                let after = on_disks.partition_point(|run| (run.file, run.offset) <= (file, offset));
                let disk = on_disks[..after].last().map_or(0, |run| run.disk);
                runs.push(Run { file, offset, len_bytes, disk, rows: Some(group.num_rows() as u64) });
            }
        }
        runs
    }

    fn load_into(&self, source: &dyn Source, unit: Unit, mut bytes: Vec<u8>) -> Result<Block, SamplingError> {
        let file = &self.files[unit.file as usize];
        bytes.clear();
        for range in file.ranges(file.groups[&unit.offset], &self.columns) {
            let read = source.read_vec(unit.file, range.start, range.end - range.start)?;
            if read.len() as u64 != range.end - range.start {
                return Err(SamplingError::Record {
                    file: source.files()[unit.file as usize].name.clone(),
                    offset: range.start,
                    message: "a column ends behind the end of the file".to_string(),
                });
            }
            bytes.extend_from_slice(&read);
        }
        let end = bytes.len();
        Ok(Block { unit, offset: unit.offset, bytes, records: 0..end })
    }

    fn tally(&self, _: &Block, _: &str, _: &mut UnitTally<'_>) -> Result<(), SamplingError> {
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

/// Columns of a row group, at their places in the file.
struct Pieces {
    pieces: Vec<(u64, Bytes)>,
    end: u64,
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        self.end
    }
}

impl Pieces {
    /// What is there from a place on, of one column.
    fn from(&self, start: u64) -> parquet::errors::Result<Bytes> {
        let holder = self.pieces.iter().find(|(at, bytes)| (*at..*at + bytes.len() as u64).contains(&start));
        let (at, bytes) =
            holder.ok_or_else(|| ParquetError::EOF(format!("byte {start} is in no column that was read")))?;
        Ok(bytes.slice((start - at) as usize..))
    }
}

impl ChunkReader for Pieces {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.from(start)?;
        match length <= bytes.len() {
            true => Ok(bytes.slice(..length)),
            false => Err(ParquetError::EOF(format!("{length} bytes at {start} reach out of their column"))),
        }
    }
}
