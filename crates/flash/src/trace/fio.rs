//! fio's iolog, versions 2 and 3. After the line with the version, version 2 has `file action [offset length]`, and
//! version 3 puts the time in us before it. In version 2 only `wait` advances time: its offset is the time in us since
//! the `wait` before it. Files that are written here have the names `deviceN`, and get their numbers back.

use super::columns::Names;
use super::fields::{FieldError, Fields, request};
use super::{LineParser, Request};
use crate::device::Ns;
use crate::ssd::Op;
use std::collections::BTreeSet;

const US: u64 = 1_000;

/// Reads an iolog.
#[derive(Default)]
pub struct Iolog {
    version: u8,
    files: Files,
    now: Ns,
}

/// The first line of what is written here.
pub const VERSION: &str = "fio version 3 iolog";

/// A line of version 3: an action, or an action with offset and length.
pub fn line(at: Ns, device: u64, action: &str) -> String {
    format!("{} device{device} {action}", at / US)
}

/// Numbers of files: that in a name of the form [`line`] writes, else the lowest that no other file has.
#[derive(Default)]
struct Files {
    names: Names,
    taken: BTreeSet<u64>,
    lowest: u64,
}

impl Files {
    fn number(&mut self, name: &str) -> Result<u64, FieldError> {
        let Files { names, taken, lowest } = self;
        names.number(name, || {
            let named = name.strip_prefix("device").and_then(|digits| digits.parse::<u64>().ok());
            let number = named.filter(|number| !taken.contains(number)).unwrap_or_else(|| {
                while taken.contains(lowest) {
                    *lowest += 1;
                }
                *lowest
            });
            taken.insert(number);
            number
        })
    }
}

/// The version that a first line names.
pub fn version(line: &str) -> Option<u8> {
    let number = line.trim().strip_prefix("fio version ")?.strip_suffix(" iolog")?;
    number.parse().ok().filter(|version| (2..=3).contains(version))
}

impl LineParser for Iolog {
    fn parse(&mut self, line: &str) -> Result<Option<Request>, FieldError> {
        if self.version == 0 {
            let expected = "`fio version 2 iolog` or `fio version 3 iolog`";
            self.version = version(line).ok_or_else(|| FieldError::new("version", Some(line), expected))?;
            return Ok(None);
        }
        let mut fields = Fields::by_spaces(line);
        if self.version == 3 {
            self.now = fields.scaled("timestamp", US)?;
        }
        let file = fields.text("file")?;
        let op = match fields.text("action")? {
            "read" => Op::Read,
            "write" => Op::Write,
            "trim" => Op::Trim,
            "wait" if self.version == 2 => {
                self.now = self.now.saturating_add(fields.scaled("offset", US)?);
                return Ok(None);
            }
            "add" | "open" | "close" | "sync" | "datasync" | "sync_file_range" | "wait" => return Ok(None),
            other => {
                let expected = "read, write, trim, wait, sync, datasync, add, open or close";
                return Err(FieldError::new("action", Some(other), expected));
            }
        };
        let offset = fields.number("offset")?;
        request(self.now, op, self.files.number(file)?, offset, fields.number("length")?)
    }
}
