//! Footers of Parquet files, and the bytes of columns. The unit is a row group.

use crate::error::Error;
use crate::format::bad_record;
use crate::layout::{Run, Unit};
use crate::source::{FileIndex, Source};
use bytes::{Buf, Bytes};
use hashbrown::HashMap;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use std::sync::Arc;

/// The footers of all files of a source.
pub struct Footers(Vec<Footer>);

struct Footer {
    meta: Arc<ParquetMetaData>,
    /// Row groups by where they start.
    groups: HashMap<u64, usize>,
}

impl Footers {
    /// Reads them.
    ///
    /// # Errors
    /// A file is no Parquet.
    pub fn open(source: &dyn Source) -> Result<Footers, Error> {
        let open = |file| Footer::open(source, file);
        (0..source.files().len() as FileIndex).map(open).collect::<Result<_, _>>().map(Footers)
    }

    /// What the footer of each file says.
    pub fn files(&self) -> impl Iterator<Item = &Arc<ParquetMetaData>> {
        self.0.iter().map(|footer| &footer.meta)
    }

    /// The number of a unit's row group in its file.
    ///
    /// # Panics
    /// The unit is none of [`Footers::runs`].
    pub fn number(&self, unit: &Unit) -> usize {
        self.0[unit.file as usize].groups[&unit.offset]
    }

    /// The row group of a unit.
    ///
    /// # Panics
    /// As [`Footers::number`].
    pub fn group(&self, unit: &Unit) -> &RowGroupMetaData {
        self.0[unit.file as usize].meta.row_group(self.number(unit))
    }

    /// The row groups that have rows. One that spans disks counts for that on which it begins.
    pub fn runs(&self, source: &dyn Source) -> Vec<Run> {
        let on_disks = source.runs();
        let mut runs = Vec::new();
        for (file, footer) in (0..).zip(&self.0) {
            for group in footer.meta.row_groups().iter().filter(|group| group.num_rows() > 0) {
                let (offset, len_bytes) = group_range(group);
                let after = on_disks.partition_point(|run| (run.file, run.offset) <= (file, offset));
                let disk = on_disks[..after].last().map_or(0, |run| run.disk);
                runs.push(Run { file, offset, len_bytes, disk, rows: Some(group.num_rows() as u64) });
            }
        }
        runs
    }

    /// Reads columns of a unit, one behind the other, in place of what `bytes` holds.
    ///
    /// # Errors
    /// The file cannot be read, or ends before a column does, which may be compressed as none that is read.
    pub fn read(
        &self,
        source: &dyn Source,
        unit: Unit,
        columns: impl Iterator<Item = usize>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Error> {
        bytes.clear();
        for column in columns {
            let meta = self.group(&unit).column(column);
            check_codec(meta.compression()).map_err(|message| {
                bad_record(&source.files()[unit.file as usize].name, meta.byte_range().0, message)
            })?;
            let (start, len) = meta.byte_range();
            let read = source.read_vec(unit.file, start, len)?;
            if read.len() as u64 != len {
                let name = &source.files()[unit.file as usize].name;
                return Err(bad_record(name, start, "a column ends behind the end of the file"));
            }
            bytes.extend_from_slice(&read);
        }
        Ok(())
    }

    /// The columns that [`Footers::read`] has read, each with its place in the file.
    pub fn split(&self, unit: &Unit, columns: impl Iterator<Item = usize>, bytes: &[u8]) -> Vec<ColumnBytes> {
        let mut at = 0;
        let cut = |column| {
            let (start, len) = self.group(unit).column(column).byte_range();
            let bytes = Bytes::copy_from_slice(&bytes[at..at + len as usize]);
            at += len as usize;
            ColumnBytes { start, bytes }
        };
        columns.map(cut).collect()
    }
}

impl Footer {
    fn open(source: &dyn Source, file: FileIndex) -> Result<Footer, Error> {
        let info = &source.files()[file as usize];
        let meta = ParquetMetaDataReader::new().parse_and_finish(&SourceReader { source, file });
        let meta = meta.map_err(|error| bad_record(&info.name, info.len_bytes, format!("no Parquet file: {error}")))?;
        let groups = meta.row_groups().iter().enumerate().map(|(i, group)| (group_range(group).0, i)).collect();
        Ok(Footer { meta: Arc::new(meta), groups })
    }
}

fn check_codec(codec: Compression) -> Result<(), String> {
    match codec {
        Compression::BROTLI(_) | Compression::LZO => {
            let name = codec.to_string().split('(').next().unwrap_or_default().to_ascii_lowercase();
            Err(format!(
                "a column is compressed with {name}, which is not read; write the file anew with zstd, snappy, gzip or lz4"
            ))
        }
        _ => Ok(()),
    }
}

/// Where a row group starts, and its length: that of all columns.
fn group_range(group: &RowGroupMetaData) -> (u64, u64) {
    let ranges = || group.columns().iter().map(|column| column.byte_range());
    let start = ranges().map(|(start, _)| start).min().unwrap_or(0);
    let end = ranges().map(|(start, len)| start.saturating_add(len)).max().unwrap_or(0);
    (start, end - start)
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
pub struct ColumnBytes {
    start: u64,
    bytes: Bytes,
}

impl ColumnBytes {
    /// Bytes of the column, if all of them are.
    pub fn slice(&self, start: u64, length: usize) -> Option<Bytes> {
        let from = usize::try_from(start.checked_sub(self.start)?).ok()?;
        let range = from..from.checked_add(length)?;
        (range.end <= self.bytes.len()).then(|| self.bytes.slice(range))
    }

    /// Offset behind the column.
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Length for ColumnBytes {
    fn len(&self) -> u64 {
        self.end()
    }
}

impl ChunkReader for ColumnBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let left = self.end().saturating_sub(start);
        Ok(self.get_bytes(start, left as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let outside = || ParquetError::EOF(format!("{length} bytes at {start} are outside of the column"));
        self.slice(start, length).ok_or_else(outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_that_is_not_read_is_named_with_those_that_are() {
        let refused = check_codec(Compression::BROTLI(Default::default())).unwrap_err();
        assert!(refused.contains("with brotli,") && refused.contains("zstd, snappy"), "{refused}");
        assert!(check_codec(Compression::LZO).unwrap_err().contains("with lzo,"));
        for read in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default())] {
            assert_eq!(check_codec(read), Ok(()));
        }
    }
}
