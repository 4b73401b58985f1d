//! After a failed write or sync.
//!
//! Linux reports a failed write-back once and then takes the pages for clean: the page cache holds bytes that the disk does
//! not, and a later process that reads them believes that they are stored (<https://lwn.net/Articles/752063/>). So a failure
//! leaves a file beside the database ([`mark`]), and the next start reads database and write-ahead log from the disk itself
//! ([`reread`]), writes what it read to new files, syncs them and puts them in place. What the disk acknowledged before the
//! failure is there; of what was under way SQLite's recovery keeps whole transactions, whose replies nobody got.
//!
//! The mark need not reach the disk: only a process that shares the page cache of the failed write must see it, and that
//! process shares the page cache of the mark. After a reboot the page cache is empty, and the mark is not needed.

use crate::watch::with_suffix;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Buffers of direct reads start at a multiple of this, and have such a length.
const ALIGN_BYTES: usize = 4096;
const BUFFER_BYTES: usize = 1 << 20;

fn mark_of(database: &Path) -> PathBuf {
    with_suffix(database, "-unsynced")
}

/// Whether the last process met a failed write or sync of this database.
pub fn is_marked(database: &Path) -> bool {
    mark_of(database).exists()
}

/// Marks the database. Best effort: see the module.
pub(crate) fn mark(database: &Path) {
    let made = File::create(mark_of(database)).and_then(|file| file.sync_all());
    let _ = made.and_then(|()| sync_parent(database));
}

/// Replaces database and write-ahead log by what the disk holds of them, and removes the mark.
///
/// # Errors
/// A file cannot be read from the disk itself (the file system has no direct reads, or the disk fails), or cannot be written.
pub fn reread(database: &Path) -> io::Result<()> {
    for file in [database.to_path_buf(), with_suffix(database, "-wal")] {
        if file.exists() {
            let fresh = with_suffix(&file, "-reread");
            copy(&file, &fresh)?;
            std::fs::rename(&fresh, &file)?;
        }
    }
    sync_parent(database)?;
    std::fs::remove_file(mark_of(database))?;
    sync_parent(database)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut reader = DirectReader::open(from)?;
    let out = File::create(to)?;
    let mut at = 0;
    loop {
        let piece = reader.read(at)?;
        if piece.is_empty() {
            return out.sync_all();
        }
        out.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
}

/// Syncs the directory that holds a file.
///
/// # Errors
/// The system's.
pub fn sync_parent(file: &Path) -> io::Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Reads a file past the page cache.
pub(crate) struct DirectReader {
    file: File,
    buffer: Vec<u8>,
    start: usize,
}

impl DirectReader {
    /// # Errors
    /// The system's; `InvalidInput` if the file system has no direct reads.
    pub fn open(path: &Path) -> io::Result<DirectReader> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let buffer = vec![0; BUFFER_BYTES + ALIGN_BYTES];
        let start = buffer.as_ptr().align_offset(ALIGN_BYTES);
        Ok(DirectReader { file, buffer, start })
    }

    /// Up to 1 MiB from `offset` on, a multiple of 4 KiB; empty at the end of the file.
    pub fn read(&mut self, offset: u64) -> io::Result<&[u8]> {
        let buffer = &mut self.buffer[self.start..self.start + BUFFER_BYTES];
        let mut got = 0;
        // A read that ends within a block has met the end of the file.
        while got < BUFFER_BYTES && got.is_multiple_of(ALIGN_BYTES) {
            match self.file.read_at(&mut buffer[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(&buffer[..got])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of the test lie on the file system of the build: a temporary directory may be in memory.
    #[test]
    fn a_marked_database_is_written_anew_from_the_disk() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let database = dir.path().join("d.db");
        let (pages, log) = (vec![7; 3 * BUFFER_BYTES / 2], vec![9; 5000]);
        std::fs::write(&database, &pages).unwrap();
        std::fs::write(with_suffix(&database, "-wal"), &log).unwrap();
        mark(&database);
        assert!(is_marked(&database));
        let before = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&database).unwrap());
        reread(&database).unwrap();
        assert!(!is_marked(&database));
        assert_ne!(std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&database).unwrap()), before);
        assert!(std::fs::read(&database).unwrap() == pages);
        assert!(std::fs::read(with_suffix(&database, "-wal")).unwrap() == log);
    }
}
