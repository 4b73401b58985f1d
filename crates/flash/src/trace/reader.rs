//! Reads a trace line by line.

use super::{FieldError, Format, LineParser, Request};
use crate::device::Ns;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};

/// The longest line, in bytes.
pub const LINE_MAX: usize = 64 << 10;

/// Lines by which a format is recognized.
const HEAD_LINES: usize = 64;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read or decompressed.
    #[error("line {line}: {error}")]
    Io {
        /// The line that was being read, from 1.
        line: u64,
        /// What the system or the decompressor says.
        error: std::io::Error,
    },
    /// A line is wrong.
    #[error("line {line}: {error}; `--skip-bad` leaves such lines out and counts them")]
    Field {
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        error: FieldError,
    },
    /// No format fits.
    #[error("the format of the trace is not recognized; name it with --format ({known})")]
    Unknown {
        /// Names of the formats.
        known: String,
    },
    /// Several formats fit, and mean different requests.
    #[error("the first lines of the trace may be {names}; name the format with --format")]
    Ambiguous {
        /// Names of the formats.
        names: String,
    },
}

/// What some programs put before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads the requests of a trace.
pub struct Reader<R> {
    input: BufReader<R>,
    /// What was read to recognize the format, and how much of it was used.
    head: Vec<u8>,
    head_used: usize,
    parser: Box<dyn LineParser>,
    format: &'static Format,
    line: Vec<u8>,
    line_number: u64,
    skip_bad: bool,
    has_checksum: bool,
    skipped: u64,
    reordered: u64,
    first: Option<Ns>,
    last: Ns,
    devices: BTreeSet<u64>,
    last_device: Option<u64>,
}

/// The most devices of a trace: each takes memory where they are laid end to end.
const DEVICES_MAX: usize = 1 << 20;

/// The longest time from the first request to another, ns: 146 years. What a simulated device then takes still fits. (Traces of MSR
/// Cambridge count from the year 1601.)
const LONGEST: Ns = 1 << 62;

/// Reads the first lines, by which a format is recognized.
fn read_head<R: Read>(input: &mut BufReader<R>) -> Result<Vec<u8>, TraceError> {
    let mut head = Vec::new();
    for line in 1..=HEAD_LINES as u64 {
        let before = head.len();
        let mut limited = input.by_ref().take(LINE_MAX as u64);
        limited.read_until(b'\n', &mut head).map_err(|error| TraceError::Io { line, error })?;
        if head.len() == before || head.len() > LINE_MAX {
            break;
        }
    }
    Ok(head)
}

/// The format of a trace with these first lines.
fn recognize(lines: &[&str]) -> Result<&'static Format, TraceError> {
    let names = |formats: &[&Format], between| formats.iter().map(|f| f.name).collect::<Vec<_>>().join(between);
    match Format::detect(lines)[..] {
        [] => Err(TraceError::Unknown { known: names(&super::FORMATS.iter().collect::<Vec<_>>(), ", ") }),
        [format] => Ok(format),
        ref several => Err(TraceError::Ambiguous { names: names(several, " or ") }),
    }
}

impl<R: Read> Reader<R> {
    /// A reader of a text that is not compressed. Without `format` it is recognized by the first lines.
    ///
    /// # Errors
    /// The input cannot be read, or no format fits, or several do.
    pub fn new(input: R, format: Option<&'static Format>, skip_bad: bool) -> Result<Self, TraceError> {
        Reader::with_checksum(input, format, skip_bad, false)
    }

    /// As [`Reader::new`], for a text that a decompressor checks: if a line is wrong, the rest is read first, so that a damaged
    /// file is not taken for wrong lines.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn with_checksum(
        input: R,
        format: Option<&'static Format>,
        skip_bad: bool,
        has_checksum: bool,
    ) -> Result<Self, TraceError> {
        let mut input = BufReader::with_capacity(LINE_MAX, input);
        let head = read_head(&mut input)?;
        let head_used = if head.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let text = String::from_utf8_lossy(&head[head_used..]);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| is_content(l)).collect();
        let format = match format.map_or_else(|| recognize(&lines), Ok) {
            Err(_) if has_checksum => {
                read_rest(&mut input, 1)?;
                recognize(&lines)?
            }
            found => found?,
        };
        let parser = format.parser(&lines);
        Ok(Reader {
            input,
            head,
            head_used,
            parser,
            format,
            line: Vec::new(),
            line_number: 0,
            skip_bad,
            has_checksum,
            skipped: 0,
            reordered: 0,
            first: None,
            last: 0,
            devices: BTreeSet::new(),
            last_device: None,
        })
    }

    /// The format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// The line of the last request, from 1.
    pub fn line(&self) -> u64 {
        self.line_number
    }

    /// Lines that were left out.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Requests whose time was before that of one that precedes them; they count as arriving with it.
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Reads the next line into `self.line`, without its end; false at the end of the trace.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.line.clear();
        self.line_number += 1;
        let rest = &self.head[self.head_used..];
        let from_head = rest.iter().position(|b| *b == b'\n').map_or(rest.len(), |end| end + 1);
        self.line.extend_from_slice(&rest[..from_head]);
        self.head_used += from_head;
        if self.line.last() != Some(&b'\n') {
            let room = (LINE_MAX + 1).saturating_sub(self.line.len()) as u64;
            let read = self.input.by_ref().take(room).read_until(b'\n', &mut self.line);
            read.map_err(|error| TraceError::Io { line: self.line_number, error })?;
        }
        Ok(!self.line.is_empty())
    }

    /// The rest of a line that is too long.
    fn skip_line(&mut self) -> Result<(), TraceError> {
        while !self.line.is_empty() && self.line.last() != Some(&b'\n') {
            self.line.clear();
            let read = self.input.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut self.line);
            read.map_err(|error| TraceError::Io { line: self.line_number, error })?;
        }
        Ok(())
    }

    fn parse_line(&mut self) -> Result<Option<Request>, FieldError> {
        if self.line.len() > LINE_MAX {
            return Err(FieldError::new("line", Some("too long"), "at most 64 KiB"));
        }
        let line = std::str::from_utf8(&self.line).map_err(|_| FieldError::new("line", Some("not UTF-8"), "text"))?;
        let line = line.trim();
        let request = if is_content(line) { self.parser.parse(line)? } else { None };
        match request {
            Some(request) if request.at.saturating_sub(self.first.unwrap_or(request.at)) > LONGEST => {
                let found = format!("{} ns", request.at);
                Err(FieldError::new("time", Some(&found), "at most 2^62 ns after the first"))
            }
            Some(request) => self.check_device(request).map(Some),
            None => Ok(None),
        }
    }

    fn check_device(&mut self, request: Request) -> Result<Request, FieldError> {
        let device = request.device;
        if self.last_device != Some(device) && !self.devices.contains(&device) {
            if self.devices.len() == DEVICES_MAX {
                return Err(FieldError::new("device", Some(&device.to_string()), "one of at most 2^20 devices"));
            }
            self.devices.insert(device);
        }
        self.last_device = Some(device);
        Ok(request)
    }

    /// Counts time from the first request, and never lets it go back.
    fn in_order(&mut self, request: Request) -> Request {
        let first = *self.first.get_or_insert(request.at);
        let at = request.at.saturating_sub(first);
        self.reordered += u64::from(at < self.last || request.at < first);
        self.last = self.last.max(at);
        Request { at: self.last, ..request }
    }

    fn wrong_line(&mut self, error: FieldError) -> TraceError {
        let line = self.line_number;
        let rest = if self.has_checksum { read_rest(&mut self.input, line) } else { Ok(()) };
        rest.err().unwrap_or(TraceError::Field { line, error })
    }

    fn advance(&mut self) -> Result<Option<Request>, TraceError> {
        while self.read_line()? {
            match self.parse_line() {
                Ok(Some(request)) => return Ok(Some(self.in_order(request))),
                Ok(None) => {}
                Err(_) if self.skip_bad => self.skipped += 1,
                Err(error) => return Err(self.wrong_line(error)),
            }
            self.skip_line()?;
        }
        Ok(None)
    }
}

/// Reads up to the end, so that the decompressor checks everything.
fn read_rest(input: &mut impl Read, line: u64) -> Result<(), TraceError> {
    std::io::copy(input, &mut std::io::sink()).map(drop).map_err(|error| TraceError::Io { line, error })
}

fn is_content(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}
