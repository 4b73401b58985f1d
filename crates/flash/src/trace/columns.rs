//! Formats whose lines are columns of numbers: SPC, MSR Cambridge, DiskSim, SSDSim and MQSim, CloudPhysics, Tencent.

use super::fields::{FieldError, Fields, SECTOR, by_commas, request};
use super::{LineParser, Request};
use crate::ssd::Op;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

type Parsed = Result<Option<Request>, FieldError>;

/// A format that needs no memory of earlier lines.
pub struct Plain(pub fn(&str) -> Parsed);

impl LineParser for Plain {
    fn parse(&mut self, line: &str) -> Parsed {
        (self.0)(line)
    }
}

/// `ASU,LBA,size in bytes,opcode,time in s` (Storage Performance Council; UMass trace repository).
pub fn spc(line: &str) -> Parsed {
    let mut fields = by_commas(line);
    let device = fields.number("ASU")?;
    let offset = fields.scaled("LBA", SECTOR)?;
    let bytes = fields.number("size")?;
    let op = fields.op("opcode", "R or W", &["R"], &["W"])?;
    request(fields.time("timestamp", S)?, op, device, offset, bytes)
}

/// `time in ms device block size in blocks flags`; bit 0 of the hexadecimal flags is a read (DiskSim's manual, ASCII
/// input).
pub fn disksim(line: &str) -> Parsed {
    let mut fields = Fields::by_spaces(line);
    let at = fields.time("time", MS)?;
    let device = fields.number("device")?;
    let offset = fields.scaled("block", SECTOR)?;
    let bytes = fields.scaled("size", SECTOR)?;
    let flags = fields.with("flags", "a hexadecimal number", |text| u32::from_str_radix(text, 16).ok())?;
    request(at, if flags & 1 != 0 { Op::Read } else { Op::Write }, device, offset, bytes)
}

/// `time in ns device sector size in sectors operation`; 1 is a read and 0 a write in both simulators.
pub fn ssdsim(line: &str) -> Parsed {
    let mut fields = Fields::by_spaces(line);
    let at = fields.number("time")?;
    let device = fields.number("device")?;
    let offset = fields.scaled("sector", SECTOR)?;
    let bytes = fields.scaled("size", SECTOR)?;
    request(at, fields.op("operation", "0 (write) or 1 (read)", &["1"], &["0"])?, device, offset, bytes)
}

/// `time in s,sector,size in sectors,0 read or 1 write,volume` (Tencent cloud block storage, SNIA IOTTA).
pub fn tencent(line: &str) -> Parsed {
    let mut fields = by_commas(line);
    let at = fields.time("timestamp", S)?;
    let offset = fields.scaled("offset", SECTOR)?;
    let bytes = fields.scaled("size", SECTOR)?;
    let op = fields.op("IO type", "0 (read) or 1 (write)", &["0"], &["1"])?;
    request(at, op, fields.number("volume")?, offset, bytes)
}

/// `version,time in s,SCSI opcode,size in bytes,block` under a heading (CloudPhysics, vscsiStats). Reads and writes of
/// 6, 10, 12 and 16 bytes and UNMAP are understood; other commands transfer no blocks.
pub fn vscsi(line: &str) -> Parsed {
    if line.starts_with("version,") {
        return Ok(None);
    }
    let mut fields = by_commas(line);
    fields.number("version")?;
    let at = fields.time("time", S)?;
    let opcode = fields.with("op", "a SCSI opcode in two hexadecimal digits", |t| u8::from_str_radix(t, 16).ok())?;
    let bytes = fields.number("size")?;
    let offset = fields.scaled("lbn", SECTOR)?;
    let op = match opcode {
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
        0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
        0x42 => Op::Trim,
        _ => return Ok(None),
    };
    request(at, op, 0, offset, bytes)
}

/// Numbers for names, each given once.
#[derive(Default)]
pub struct Names {
    numbers: HashMap<String, u64, BuildHasherDefault<DefaultHasher>>,
}

/// The most names of a trace.
const NAMES_MAX: usize = 1 << 20;

impl Names {
    /// The number of a name; `new` gives it while there are not too many.
    pub fn number(&mut self, name: &str, new: impl FnOnce() -> u64) -> Result<u64, FieldError> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if self.numbers.len() == NAMES_MAX {
            return Err(FieldError::new("device", Some(name), "one of at most 2^20 devices"));
        }
        let number = new();
        self.numbers.insert(name.into(), number);
        Ok(number)
    }

    fn len(&self) -> u64 {
        self.numbers.len() as u64
    }
}

/// Numbers for the disks of a host.
pub const HOST_DISKS: u64 = 1 << 44;

/// `time in 100 ns,host,disk number,Read or Write,offset,size,response time` (MSR Cambridge, SNIA IOTTA). Each disk of
/// each host is a device; those of the first host have the numbers of its disks, and those of later ones come behind them.
#[derive(Default)]
pub struct Msr {
    hosts: Names,
}

impl LineParser for Msr {
    fn parse(&mut self, line: &str) -> Parsed {
        let mut fields = by_commas(line);
        let at = fields.scaled("Timestamp", 100)?;
        let host = fields.text("Hostname")?;
        let below = |text: &str| text.parse::<u64>().ok().filter(|disk| *disk < HOST_DISKS);
        let disk = fields.with("DiskNumber", "a whole number from 0 below 2^44", below)?;
        let op = fields.op("Type", "Read or Write", &["Read"], &["Write"])?;
        let offset = fields.number("Offset")?;
        let bytes = fields.number("Size")?;
        let next = self.hosts.len();
        let host = self.hosts.number(host, || next)?;
        request(at, op, host * HOST_DISKS + disk, offset, bytes)
    }
}
