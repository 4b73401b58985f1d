//! The trace that is written: fio's iolog, version 3, which can say TRIM and flush.

use crate::device::Ns;
use crate::ssd::Op;
use crate::trace::{Request, TraceLines, find, iolog_line};
use std::fmt::Write as _;
use std::io;

/// Bytes of lines that are kept before they are written.
const BUFFER_BYTES: usize = 64 << 10;
/// Lines are written at latest with the first one that comes so long after the last time.
const WRITE_EVERY: Ns = 1_000_000_000;

/// What is told that the trace cannot be written, once.
pub type OnFailure = Box<dyn FnOnce(&io::Error) + Send>;

/// Lines of a trace on their way into a file. Whole lines are written, so that what is there can be read after a kill.
pub struct Log {
    out: Box<dyn io::Write + Send>,
    format: TraceLines,
    lines: String,
    written_at: Ns,
    /// `None` once it was called: then the trace ends.
    on_failure: Option<OnFailure>,
}

impl Log {
    pub fn new(out: Box<dyn io::Write + Send>, on_failure: OnFailure) -> Log {
        let writer = find("fio").and_then(|format| format.writer).expect("fio's iolog can be written");
        let format = writer.begin(&[]);
        let lines = format.heading().join("\n") + "\n";
        Log { out, format, lines, written_at: 0, on_failure: Some(on_failure) }
    }

    /// Whether the trace has ended because it could not be written.
    pub fn has_failed(&self) -> bool {
        self.on_failure.is_none()
    }

    pub fn request(&mut self, request: &Request) {
        let lines = self.format.request(request);
        assert!(!lines.is_empty(), "an iolog can say every request");
        self.push(request.at, &lines);
    }

    /// Names a device of the trace.
    pub fn open(&mut self, at: Ns, device: u64) {
        let lines = self.format.open(device);
        self.push(at, &lines);
    }

    /// A flush; its offset and length mean nothing.
    pub fn flush(&mut self, at: Ns, device: u64) {
        self.push(at, &[iolog_line(at, device, "datasync 0 0")]);
    }

    fn push(&mut self, at: Ns, lines: &[String]) {
        for line in lines {
            let _ = writeln!(self.lines, "{line}");
        }
        if self.lines.len() >= BUFFER_BYTES || at >= self.written_at + WRITE_EVERY {
            self.written_at = at;
            self.write();
        }
    }

    /// Writes what is kept.
    pub fn write(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let written = self.out.write_all(self.lines.as_bytes()).and_then(|()| self.out.flush());
        self.lines.clear();
        if let Err(error) = written
            && let Some(tell) = self.on_failure.take()
        {
            tell(&error);
        }
    }
}

/// What was asked for of some files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that were written to files, before they were made pages.
    pub stored_bytes: u64,
    /// Requests by [`Op`].
    pub requests: [u64; 3],
    /// Their bytes.
    pub bytes: [u64; 3],
    /// Syncs of files and of directories.
    pub flushes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, op: Op, bytes: u64) {
        self.requests[op as usize] += 1;
        self.bytes[op as usize] += bytes;
    }
}
