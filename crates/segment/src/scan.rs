//! Scans a segment's records in order, and finds the next record after a bad stretch.
//!
//! In a bad stretch, every multiple of 8 bytes may begin the next record. A record's checksum covers its place, so
//! bytes inside a fragment's data do not pass for a record. Sequences must increase, so leftovers of an earlier write
//! do not pass for later records.

use tessera_disk::record::{RecordPlace, read_blocks};
use tessera_disk::{DiskError, DiskFile};

use crate::error::Damage;
use crate::format::{ALIGN, RECORD_HEADER_BYTES, RECORD_MAGIC, RecordHeader};

/// Bytes per read while records are small. After a large record, only the header of the next record is read.
const WINDOW_BYTES: u64 = 64 << 10;
const HEADER_WINDOW_BYTES: u64 = 4 << 10;

/// The next item that a scan finds.
#[derive(Debug)]
pub(crate) enum Item {
    /// A valid header whose record fits into the file. Groups and data are not verified yet.
    Record { offset: u64, header: RecordHeader },
    /// No record begins in `from..to`.
    Gap { from: u64, to: u64, damage: Damage },
}

pub(crate) struct Scanner<'a> {
    file: &'a dyn DiskFile,
    place: RecordPlace,
    at: u64,
    end: u64,
    last_sequence: u64,
    window: Vec<u8>,
    window_at: u64,
    /// The error of the last unreadable block in the current gap.
    unreadable: Option<String>,
    /// Bytes read so far.
    pub(crate) bytes_read: u64,
}

impl<'a> Scanner<'a> {
    /// Scans `from..end` of a segment whose earlier sequences are at most `after_sequence`.
    pub(crate) fn new(file: &'a dyn DiskFile, place: RecordPlace, from: u64, end: u64, after_sequence: u64) -> Self {
        Scanner {
            file,
            place,
            at: from,
            end,
            last_sequence: after_sequence,
            window: Vec::new(),
            window_at: 0,
            unreadable: None,
            bytes_read: 0,
        }
    }

    /// Offset of the next item.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// Reads the next item; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, DiskError> {
        if self.at >= self.end {
            return Ok(None);
        }
        if let Some(header) = self.header_at(self.at)? {
            let offset = self.at;
            self.at += header.total_bytes();
            assert!(self.at <= self.end.next_multiple_of(ALIGN), "a record passes the end at {}", self.end);
            assert!(header.sequence > self.last_sequence, "sequences grow");
            self.last_sequence = header.sequence;
            return Ok(Some(Item::Record { offset, header }));
        }
        let from = self.at;
        let mut to = from + ALIGN;
        while to < self.end && self.header_at(to)?.is_none() {
            to += ALIGN;
        }
        self.at = to.min(self.end);
        let damage = match self.unreadable.take() {
            Some(reason) => Damage::Unreadable { reason },
            None => Damage::Header,
        };
        Ok(Some(Item::Gap { from, to: self.at, damage }))
    }

    /// The header at `at`, if it is valid, its sequence may follow, and its record lies within the file.
    fn header_at(&mut self, at: u64) -> Result<Option<RecordHeader>, DiskError> {
        let Some(rest) = self.end.checked_sub(at + RECORD_HEADER_BYTES) else { return Ok(None) };
        self.fill(at)?;
        let bytes = &self.window[(at - self.window_at) as usize..];
        if bytes[..4] != RECORD_MAGIC {
            return Ok(None);
        }
        Ok(RecordHeader::decode(bytes, self.place, at).filter(|header| {
            header.total_bytes() - RECORD_HEADER_BYTES <= rest && header.sequence > self.last_sequence
        }))
    }

    /// Reads at least a header's bytes at `at` into the window.
    fn fill(&mut self, at: u64) -> Result<(), DiskError> {
        assert!(at + RECORD_HEADER_BYTES <= self.end, "no header fits at {at} before {}", self.end);
        let have = self.window_at..self.window_at + self.window.len() as u64;
        if have.contains(&at) && at + RECORD_HEADER_BYTES <= have.end {
            return Ok(());
        }
        // After a large record, the next one is probably large too.
        let jump = !have.is_empty() && at > have.end + WINDOW_BYTES;
        let want = if jump { HEADER_WINDOW_BYTES } else { WINDOW_BYTES };
        let len = want.min(self.end - at) as usize;
        self.window.resize(len, 0);
        self.window_at = at;
        self.bytes_read += len as u64;
        if let Some(e) = read_blocks(self.file, at, &mut self.window)? {
            self.unreadable = Some(e.to_string());
        }
        Ok(())
    }
}

/// Compares groups and data of a record with their checksums; `None` if they match. A record that cannot be read in two
/// attempts is damaged.
pub(crate) fn check_payload(
    file: &dyn DiskFile,
    offset: u64,
    header: &RecordHeader,
    buf: &mut Vec<u8>,
) -> Option<Damage> {
    let groups_at = offset + RECORD_HEADER_BYTES;
    let data_at = groups_at + u64::from(header.groups_len);
    let parts = [(groups_at, header.groups_len, header.groups_crc), (data_at, header.data_len, header.data_crc)];
    for (part, (at, len, expected)) in parts.into_iter().enumerate() {
        let got = match crc_of(file, at, u64::from(len), buf) {
            Ok(got) => got,
            Err(e) => return Some(Damage::Unreadable { reason: e.to_string() }),
        };
        if got != expected {
            return Some(if part == 0 { Damage::Groups { expected, got } } else { Damage::Data { expected, got } });
        }
    }
    None
}

/// crc32c of a stretch of a file, read in pieces of at most 1 MiB.
fn crc_of(file: &dyn DiskFile, mut at: u64, len: u64, buf: &mut Vec<u8>) -> Result<u32, DiskError> {
    let end = at + len;
    let mut crc = 0;
    while at < end {
        buf.resize((end - at).min(1 << 20) as usize, 0);
        file.read_twice(at, buf)?;
        crc = tessera_accel::checksum::crc32c_append(crc, buf);
        at += buf.len() as u64;
    }
    Ok(crc)
}
