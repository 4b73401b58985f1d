//! Formats: how the records of a unit are found and read.
//!
//! [`Format::load_into`] runs on a disk's thread and does all reads; [`Format::tally`] runs on a computing thread and does
//! none. A record belongs to exactly one unit, whatever the cuts are: that in which the line break before it lies.

mod csv;
mod csv_records;
mod csv_start;
mod json;
pub(crate) mod lines;
pub mod parquet;
mod separators;
mod text;

pub use csv::{Csv, CsvOptions};
pub use json::{JsonLines, ONE_OBJECT};
pub use parquet::Parquet;
pub(crate) use separators::stretches;
pub use text::Text;

use crate::error::Error;
use crate::layout::{Run, Unit};
use crate::source::{Source, SourceFile};
use crate::tally::UnitTally;
use std::ops::Range;

/// The bytes of a unit, with the records that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The unit.
    pub unit: Unit,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The bytes that were read.
    pub bytes: Vec<u8>,
    /// Whole records, as a range of `bytes`.
    pub records: Range<usize>,
}

impl Block {
    /// The records.
    pub fn records(&self) -> &[u8] {
        &self.bytes[self.records.clone()]
    }
}

/// A reader of records that knows the question.
pub trait Format: Send + Sync {
    /// The stretches from which units are cut: those of the source, unless the format has its own units.
    fn runs(&self, source: &dyn Source) -> Vec<Run> {
        source.runs().to_vec()
    }

    /// Reads a unit, and what is needed beyond it to have whole records. The block takes the memory of `buffer`, whose
    /// content is lost.
    ///
    /// # Errors
    /// The file cannot be read, or no record ends within [`MAX_RECORD_BYTES`].
    fn load_into(&self, source: &dyn Source, unit: Unit, buffer: Vec<u8>) -> Result<Block, Error>;

    /// As [`Format::load_into`], into new memory.
    ///
    /// # Errors
    /// As [`Format::load_into`].
    fn load(&self, source: &dyn Source, unit: Unit) -> Result<Block, Error> {
        self.load_into(source, unit, Vec::new())
    }

    /// Counts the records of a block.
    ///
    /// # Errors
    /// A record is malformed.
    fn tally(&self, block: &Block, file: &str, tally: &mut UnitTally<'_>) -> Result<(), Error>;
}

/// The longest record that is read. A longer one is an error: memory stays bounded.
pub const MAX_RECORD_BYTES: u64 = 16 << 20;

fn bad_record(file: &str, offset: u64, message: impl Into<String>) -> Error {
    Error::Record { file: file.to_string(), offset, message: message.into() }
}

fn no_field(file: &SourceFile, field: &str, names: &[String]) -> Error {
    let mut known = names.iter().take(20).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > 20 {
        known += ", …";
    }
    Error::Question(format!("`{}` has no field `{field}`; it has {known}", file.name))
}
