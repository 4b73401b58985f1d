//! Lines that are written: the reverse of the parsers.

use super::Request;
use super::fields::SECTOR;
use crate::ssd::Op;

/// How a format is written.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    /// The first line, if the format has one.
    pub heading: Option<&'static str>,
    /// A request as a line; `None` where the format cannot say it: TRIM, or what is no whole number of sectors.
    pub line: fn(&Request) -> Option<String>,
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
    let word = either(r.op, "Read", "Write")?;
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

pub(super) fn fio(r: &Request) -> Option<String> {
    let action = ["read", "write", "trim"][r.op as usize];
    Some(format!("{} device{} {action} {} {}", r.at / 1_000, r.device, r.offset, r.bytes))
}
