//! Lines that are written: the reverse of the parsers.

use super::columns::HOST_DISKS;
use super::fields::SECTOR;
use super::{Request, fio};
use crate::device::Ns;
use crate::ssd::Op;
use std::collections::BTreeSet;

/// How a format is written.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    /// A request as a line; `None` where the format cannot say it: TRIM, or what is no whole number of sectors.
    pub(super) line: fn(&Request) -> Option<String>,
    /// Whether it is fio's iolog: a line names the version, each file is opened, and no line is a comment.
    pub(super) is_iolog: bool,
}

impl Writer {
    /// Begins a trace; `label` says what it is, a line each.
    pub fn begin(self, label: &[String]) -> TraceLines {
        TraceLines { writer: self, label: label.to_vec(), opened: BTreeSet::new(), last: 0 }
    }
}

/// The lines of a trace, one after the other. None of them ends with a newline.
#[derive(Debug)]
pub struct TraceLines {
    writer: Writer,
    label: Vec<String>,
    /// Devices that an iolog has opened.
    opened: BTreeSet<u64>,
    /// Time of the last request.
    last: Ns,
}

impl TraceLines {
    /// The lines before the first request.
    pub fn heading(&self) -> Vec<String> {
        match self.writer.is_iolog {
            true => vec![fio::VERSION.into()],
            false => self.label.iter().map(|line| format!("# {line}")).collect(),
        }
    }

    /// A request; what an iolog needs before it comes first. Empty where the format cannot say the request.
    pub fn request(&mut self, request: &Request) -> Vec<String> {
        let Some(line) = (self.writer.line)(request) else { return Vec::new() };
        let mut lines = self.open(request.device);
        self.last = request.at;
        lines.push(line);
        lines
    }

    /// Opens a device where the format asks for it, once.
    ///
    /// fio takes the delay of a request from the line before it, so these lines have the time of the last request. fio reads no more than
    /// three fields of `add`, so the label can stand behind them.
    pub fn open(&mut self, device: u64) -> Vec<String> {
        if !self.writer.is_iolog || !self.opened.insert(device) {
            return Vec::new();
        }
        let label = std::mem::take(&mut self.label);
        let label = if label.is_empty() { String::new() } else { format!(" # {}", label.join("; ")) };
        let line = |action: &str| fio::line(self.last, device, action);
        vec![line("add") + &label, line("open")]
    }
}

/// Offset and bytes in sectors.
fn sectors(request: &Request) -> Option<(u64, u64)> {
    let is_whole = request.offset.is_multiple_of(SECTOR) && request.bytes.is_multiple_of(SECTOR);
    is_whole.then_some((request.offset / SECTOR, request.bytes / SECTOR))
}

/// The word for a read or a write.
fn either<T>(op: Op, read: T, write: T) -> Option<T> {
    match op {
        Op::Read => Some(read),
        Op::Write => Some(write),
        Op::Trim => None,
    }
}

pub(super) fn spc(r: &Request) -> Option<String> {
    let (letter, (s, ns)) = (either(r.op, 'R', 'W')?, (r.at / 1_000_000_000, r.at % 1_000_000_000));
    let sector = r.offset.is_multiple_of(SECTOR).then_some(r.offset / SECTOR)?;
    Some(format!("{},{sector},{},{letter},{s}.{ns:09}", r.device, r.bytes))
}

pub(super) fn msr(r: &Request) -> Option<String> {
    let word = either(r.op, "Read", "Write").filter(|_| r.device < HOST_DISKS)?;
    Some(format!("{},trace,{},{word},{},{},0", r.at / 100, r.device, r.offset, r.bytes))
}

pub(super) fn disksim(r: &Request) -> Option<String> {
    let (flag, (sector, count)) = (either(r.op, 1, 0)?, sectors(r)?);
    Some(format!("{}.{:06} {} {sector} {count} {flag}", r.at / 1_000_000, r.at % 1_000_000, r.device))
}

pub(super) fn ssdsim(r: &Request) -> Option<String> {
    let (flag, (sector, count)) = (either(r.op, 1, 0)?, sectors(r)?);
    Some(format!("{} {} {sector} {count} {flag}", r.at, r.device))
}

pub(super) fn iolog(r: &Request) -> Option<String> {
    let action = ["read", "write", "trim"][r.op as usize];
    Some(fio::line(r.at, r.device, &format!("{action} {} {}", r.offset, r.bytes)))
}
