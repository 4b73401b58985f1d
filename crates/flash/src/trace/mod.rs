//! Block traces: what hosts asked of their disks.
//!
//! [`Reader`] reads any format of [`FORMATS`] line by line; its memory does not grow with the trace. [`Span`] lays the
//! devices of a trace end to end, and [`Compact`] leaves out regions that no request touches. Files are opened by the
//! caller, and decompressed there or by [`Bzip2`].

mod blkparse;
mod bzip2;
mod columns;
mod fields;
mod fio;
mod format;
mod reader;
mod span;
mod writing;

pub use bzip2::Bzip2;
pub use fields::FieldError;
pub(crate) use fio::line as iolog_line;
pub use format::{FORMATS, Format, find};
pub use reader::{LINE_MAX, Reader, TraceError};
pub use span::{Compact, REGION_BYTES, Span, TooMuchTouched};
pub use writing::{TraceLines, Writer};

use crate::device::Ns;
use crate::ssd::Op;

/// A request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Arrival. A [`Reader`] counts it from the first request and never lets it go back.
    pub at: Ns,
    /// What it does.
    pub op: Op,
    /// Number of the device.
    pub device: u64,
    /// Byte on the device.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Request {
    /// First byte behind the request.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// What reads the lines of one format.
pub trait LineParser: Send {
    /// Reads a line; a line may hold no request.
    ///
    /// # Errors
    /// A field that is missing or wrong.
    fn parse(&mut self, line: &str) -> Result<Option<Request>, FieldError>;
}
