//! The formats: how each is recognized and read.

use super::blkparse::Blkparse;
use super::columns::{self, Msr, Plain};
use super::fio::{self, Iolog};
use super::writing::{self, Writer};
use super::{LineParser, Request};

/// A format of traces.
#[derive(Debug)]
pub struct Format {
    /// Name in commands.
    pub name: &'static str,
    /// Fields of a line.
    pub about: &'static str,
    /// Whether a line that is no heading has this form, as far as the form tells formats apart.
    fits: fn(&str) -> bool,
    /// Makes a reader for a trace with these first lines.
    make: fn(&[&str]) -> Box<dyn LineParser>,
    /// How it is written, if it can be.
    pub writer: Option<Writer>,
    /// An earlier format with the same lines, which mean the same.
    same_as: Option<&'static str>,
}

/// Every format.
pub const FORMATS: &[Format] = &[
    Format {
        name: "fio",
        about: "iolog of fio, versions 2 and 3",
        fits: |line| fio::version(line).is_some(),
        make: |_| Box::new(Iolog::default()),
        writer: Some(Writer { line: writing::iolog, is_iolog: true }),
        same_as: None,
    },
    Format {
        name: "vscsi",
        about: "CloudPhysics: version,time_s,opcode,bytes,block",
        fits: |line| {
            line.starts_with("version,") || is_fields(line, ',', &[is_version, is_time, is_hex2, is_number, is_number])
        },
        make: |_| Box::new(Plain(columns::vscsi)),
        writer: None,
        same_as: None,
    },
    Format {
        name: "msr",
        about: "MSR Cambridge: time_100ns,host,disk,Read|Write,offset,bytes,response",
        fits: |line| {
            is_fields(
                line,
                ',',
                &[is_number, |_| true, is_number, |t| t.len() > 1 && is_letters(t), is_number, is_number],
            )
        },
        make: |_| Box::<Msr>::default(),
        writer: writer(writing::msr),
        same_as: None,
    },
    Format {
        name: "spc",
        about: "SPC (UMass): ASU,LBA,bytes,R|W,time_s",
        fits: |line| is_fields(line, ',', &[is_number, is_number, is_number, is_letter, is_time]),
        make: |_| Box::new(Plain(columns::spc)),
        writer: writer(writing::spc),
        same_as: None,
    },
    Format {
        name: "tencent",
        about: "Tencent CBS: time_s,sector,sectors,0 read|1 write,volume",
        fits: |line| is_fields(line, ',', &[is_number, is_number, is_number, is_bit, is_number]),
        make: |_| Box::new(Plain(columns::tencent)),
        writer: None,
        same_as: None,
    },
    Format {
        name: "blkparse",
        about: "text of blkparse: major,minor cpu seq seconds pid action rwbs sector + sectors",
        fits: |line| {
            let is_device = |t: &str| t.split_once(',').is_some_and(|(a, b)| is_number(a) && is_number(b));
            is_fields(line, ' ', &[is_device, is_number, is_number, is_time, is_number, is_letters])
        },
        make: |head| Box::new(Blkparse::new(head)),
        writer: None,
        same_as: None,
    },
    Format {
        name: "disksim",
        about: "DiskSim ASCII: time_ms device block blocks flags (1 read)",
        fits: |line| is_fields(line, ' ', &[is_time, is_number, is_number, is_number, is_hex]),
        make: |_| Box::new(Plain(columns::disksim)),
        writer: writer(writing::disksim),
        same_as: None,
    },
    Format {
        name: "ssdsim",
        about: "SSDSim: time_ns device sector sectors 0 write|1 read",
        fits: |line| is_fields(line, ' ', &[is_number, is_number, is_number, is_number, is_bit]),
        make: |_| Box::new(Plain(columns::ssdsim)),
        writer: writer(writing::ssdsim),
        same_as: None,
    },
    Format {
        name: "mqsim",
        about: "MQSim: the same fields as SSDSim",
        fits: |line| is_fields(line, ' ', &[is_number, is_number, is_number, is_number, is_bit]),
        make: |_| Box::new(Plain(columns::ssdsim)),
        writer: writer(writing::ssdsim),
        same_as: Some("ssdsim"),
    },
];

const fn writer(line: fn(&Request) -> Option<String>) -> Option<Writer> {
    Some(Writer { line, is_iolog: false })
}

type Test = fn(&str) -> bool;

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_time(text: &str) -> bool {
    text.split_once('.').map_or_else(|| is_number(text), |(a, b)| is_number(a) && is_number(b))
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A SCSI opcode.
fn is_hex2(text: &str) -> bool {
    text.len() == 2 && is_hex(text)
}

/// A version of CloudPhysics' lines. Without it, lines of Tencent's with sizes of two digits would fit.
fn is_version(text: &str) -> bool {
    matches!(text, "1" | "2")
}

/// A read or a write as a number.
fn is_bit(text: &str) -> bool {
    matches!(text, "0" | "1")
}

/// A read or a write as a letter.
fn is_letter(text: &str) -> bool {
    text.len() == 1 && is_letters(text)
}

fn is_letters(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic())
}

/// Whether a line begins with fields of these kinds.
fn is_fields(line: &str, separator: char, kinds: &[Test]) -> bool {
    let mut fields = line.split(|c: char| c == separator || (separator == ' ' && c == '\t')).filter(|f| !f.is_empty());
    kinds.iter().all(|is| fields.next().is_some_and(|field| is(field.trim())))
}

/// Lines of DiskSim whose times are whole numbers are lines of SSDSim, with times in ms instead of ns. A mean time between requests
/// of 1 s or more is too long for a disk; one below 1 us is too short, and could be either.
const SLOW_GAP: u64 = 1000;

/// Mean difference of the whole numbers that lines begin with; that of one line is from 0.
fn mean_gap(head: &[&str]) -> u64 {
    let times = || head.iter().filter_map(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    let (first, last, count) = (times().min().unwrap_or(0), times().max().unwrap_or(0), times().count() as u64);
    if count < 2 { last } else { (last - first) / (count - 1) }
}

impl Format {
    /// A reader for a trace with these first lines.
    pub fn parser(&self, head: &[&str]) -> Box<dyn LineParser> {
        (self.make)(head)
    }

    /// The formats that most of these first lines have, and at least half. Of those whose lines mean the same, the first.
    pub fn detect(head: &[&str]) -> Vec<&'static Format> {
        let Some(first) = head.first() else { return Vec::new() };
        let by_heading =
            FORMATS.iter().take(2).find(|f| !first.starts_with(|c: char| c.is_ascii_digit()) && (f.fits)(first));
        if let Some(format) = by_heading {
            return vec![format];
        }
        let lines = |f: &Format| head.iter().filter(|line| (f.fits)(line)).count();
        let candidates = || FORMATS.iter().filter(|f| f.same_as.is_none());
        let most = candidates().map(lines).max().unwrap_or(0);
        let mut found: Vec<&Format> = candidates().filter(|f| lines(f) == most && 2 * most >= head.len()).collect();
        if found.iter().any(|f| f.name == "ssdsim") && mean_gap(head) >= SLOW_GAP {
            found.retain(|f| f.name != "disksim");
        }
        found
    }

    /// The names of all formats whose lines mean the same: lines cannot tell them apart.
    pub fn names(&self) -> Vec<&'static str> {
        let is_it = |f: &&Format| f.name == self.name || f.same_as == Some(self.name);
        FORMATS.iter().filter(is_it).map(|f| f.name).collect()
    }
}

/// Finds a format by its name.
pub fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}
