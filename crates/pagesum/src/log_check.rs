//! Finds a write-ahead log that lost transactions in its middle.
//!
//! SQLite's recovery reads the log up to the first frame whose checksum does not match, and takes that for the place where a
//! crash cut the log (<https://www.sqlite.org/fileformat2.html#the_write_ahead_log>). A bit that rotted in the middle therefore
//! removes everything behind it, without an error; and where a checkpoint had begun, pages of the database may be of later commits.
//! This check tells the two apart: if a commit at or behind the break has a successor that continues its checksum, the break was no
//! crash. With `synchronous = NORMAL` a loss of power may leave the same picture; the database then counts as damaged too.

use crate::page::PAGE_BYTES;
use crate::watch::{FRAME_BYTES, FRAME_HEADER_BYTES, LOG_HEADER_BYTES, with_suffix};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// A running checksum of the log.
type Sums = (u32, u32);

struct Frame {
    is_commit: bool,
    salts: [u8; 8],
    /// As stored.
    sums: Sums,
    /// Of the frame's bytes, continuing the stored sums of the frame before (of the header).
    continues: bool,
}

/// Checks the write-ahead log beside a database that no process has open. Returns the number of the first damaged frame,
/// from 1; 0: the log's header.
///
/// # Errors
/// The system's.
pub fn first_damaged_frame(database: &Path) -> io::Result<Option<u64>> {
    let file = match File::open(with_suffix(database, "-wal")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut log = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; LOG_HEADER_BYTES as usize];
    if !fill(&mut log, &mut header)? {
        return Ok(None);
    }
    let big_endian = header[3] & 1 == 1;
    let salts: [u8; 8] = header[16..24].try_into().unwrap_or_default();
    let mut last = sums_at(&header, 24);
    let whole =
        advance((0, 0), &header[..24], big_endian) == last && header[8..12] == (PAGE_BYTES as u32).to_be_bytes();
    let (mut broken_at, mut after_commit) = (None, false);
    let mut bytes = vec![0; FRAME_BYTES as usize];
    for number in 1.. {
        if !fill(&mut log, &mut bytes)? {
            break;
        }
        let frame = read(&bytes, last, big_endian);
        let intact = frame.salts == salts && frame.continues;
        if !whole && number == 1 {
            // An intact frame continues the header as it was written: the header has changed since.
            return Ok(frame.continues.then_some(0));
        }
        match broken_at {
            None if !intact => broken_at = Some(number),
            Some(at) if intact && after_commit => return Ok(Some(at)),
            _ => {}
        }
        after_commit = broken_at.is_some() && frame.is_commit && frame.salts == salts;
        last = frame.sums;
    }
    Ok(None)
}

/// Fills the buffer; false at the end of the file.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

fn read(bytes: &[u8], before: Sums, big_endian: bool) -> Frame {
    let sums = sums_at(bytes, 16);
    let found = advance(before, &bytes[..8], big_endian);
    let found = advance(found, &bytes[FRAME_HEADER_BYTES as usize..], big_endian);
    Frame {
        is_commit: bytes[4..8] != [0; 4],
        salts: bytes[8..16].try_into().unwrap_or_default(),
        sums,
        continues: found == sums,
    }
}

fn sums_at(bytes: &[u8], at: usize) -> Sums {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
    (word(at), word(at + 4))
}

/// The checksum of the file format, section 4.2.
fn advance((mut a, mut b): Sums, bytes: &[u8], big_endian: bool) -> Sums {
    let word = |bytes: &[u8]| {
        let bytes = bytes.try_into().unwrap_or_default();
        if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks_exact(8) {
        a = a.wrapping_add(word(&pair[..4])).wrapping_add(b);
        b = b.wrapping_add(word(&pair[4..])).wrapping_add(a);
    }
    (a, b)
}
