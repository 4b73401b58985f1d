//! Reads the pages of a database that nobody asks for, past the page cache where the file system can.
//!
//! What the write-ahead log holds of a page does not count here, so the file must have been complete once: call
//! `PRAGMA wal_checkpoint(TRUNCATE)` after opening. From then on a page of the file is wrong only while a checkpoint writes it.

use crate::page::{self, PAGE_BYTES};
use crate::unsynced::DirectReader;
use rustix::fs::Advice;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How often a page that does not match is read again, before it counts as damaged; the caller waits in between.
const TRIES: u32 = 20;

enum Reader {
    Direct(DirectReader),
    Cached(File, Vec<u8>),
}

/// One pass over a database.
pub struct Scrub {
    reader: Reader,
    at: u64,
    tries: u32,
}

/// What a step of a pass found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There are more pages.
    More,
    /// A page does not match; the next step reads it again.
    Again,
    /// All pages match; their number.
    Done(u64),
    /// This page is damaged.
    Damaged(u32),
}

impl Scrub {
    /// Starts a pass.
    ///
    /// # Errors
    /// The system's.
    pub fn start(path: &Path) -> io::Result<Scrub> {
        let reader = match DirectReader::open(path) {
            Ok(direct) => Reader::Direct(direct),
            Err(_) => Reader::Cached(File::open(path)?, vec![0; 1 << 20]),
        };
        Ok(Scrub { reader, at: 0, tries: 0 })
    }

    /// Reads up to 1 MiB. What cannot be read counts as damaged, too.
    pub fn step(&mut self) -> Step {
        let read = match &mut self.reader {
            Reader::Direct(reader) => reader.read(self.at),
            Reader::Cached(file, buffer) => read_cached(file, buffer, self.at),
        };
        let bytes = read.unwrap_or(&[0]);
        let mut pages = bytes.chunks_exact(PAGE_BYTES);
        let number = page::number_at(self.at);
        let sound =
            (number..).zip(&mut pages).take_while(|(number, page)| page::is_sound(page, *number)).count() as u64;
        self.at += sound * PAGE_BYTES as u64;
        let read = bytes.len() as u64;
        if sound > 0 {
            self.tries = 0;
        }
        match sound * PAGE_BYTES as u64 == read {
            true if read == 0 => Step::Done(self.at / PAGE_BYTES as u64),
            true => Step::More,
            false if self.tries < TRIES => {
                self.tries += 1;
                Step::Again
            }
            false => Step::Damaged(page::number_at(self.at)),
        }
    }
}

fn read_cached<'a>(file: &File, buffer: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
    let len = std::num::NonZeroU64::new(buffer.len() as u64);
    rustix::fs::fadvise(file, offset, len, Advice::DontNeed)?;
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64)? {
            0 => break,
            n => got += n,
        }
    }
    Ok(&buffer[..got])
}
