//! Log heads: each disk has one file that only grows, and a count of what was queued for it.

use super::partition::Place;
use super::persist::damaged;
use crate::error::Error;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The log head of a disk. One thread appends at a time; any number reads.
pub trait DiskLog: Send + Sync {
    /// Name of the file, for [`Place::Disk`].
    fn file(&self) -> &str;

    /// Appends bytes; returns where they start. After an error nothing more is appended.
    ///
    /// # Errors
    /// The bytes cannot be stored, all of them.
    fn append(&self, bytes: &[u8]) -> io::Result<u64>;

    /// Returns once everything that was appended would survive a crash.
    ///
    /// # Errors
    /// It would not.
    fn sync(&self) -> io::Result<()>;

    /// Reads bytes that were appended.
    ///
    /// # Errors
    /// They cannot be read, all of them.
    fn read(&self, offset: u64, len_bytes: u64) -> io::Result<Vec<u8>>;
}

/// A log head in a directory: a new file `.ldd-N.log`, so that processes do not write one file. It is hidden, so that a
/// source of the directory leaves it out.
pub struct DirectoryLog {
    path: PathBuf,
    name: String,
    file: File,
    len_bytes: Mutex<u64>,
}

impl DirectoryLog {
    /// Makes the file.
    ///
    /// # Errors
    /// The directory does not exist or is not writable.
    pub fn create(directory: &Path) -> io::Result<DirectoryLog> {
        let mut number = 0u32;
        loop {
            let path = directory.join(format!(".ldd-{number}.log"));
            match OpenOptions::new().read(true).append(true).create_new(true).open(&path) {
                Ok(file) => {
                    let name = path.display().to_string();
                    return Ok(DirectoryLog { path, name, file, len_bytes: Mutex::new(0) });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

impl DiskLog for DirectoryLog {
    fn file(&self) -> &str {
        &self.name
    }

    fn append(&self, bytes: &[u8]) -> io::Result<u64> {
        let mut len = self.len_bytes.lock();
        io::Write::write_all(&mut &self.file, bytes)?;
        let offset = *len;
        *len += bytes.len() as u64;
        Ok(offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        // A file that was unlinked can be synced and is lost all the same.
        let (open, named) = (self.file.metadata()?, self.path.metadata()?);
        if (open.dev(), open.ino()) != (named.dev(), named.ino()) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the log was replaced by another file"));
        }
        Ok(())
    }

    fn read(&self, offset: u64, len_bytes: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes as usize];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// What a disk's write queue has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteUse {
    /// Partitions written.
    pub writes: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Most writes that were queued or under way at once.
    pub longest_queue: usize,
}

/// A partition that was written.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) disk: usize,
    offset: u64,
    len_bytes: u64,
    checksum: u64,
    pub(super) place: Place,
}

struct Disk {
    name: Arc<str>,
    file: Arc<str>,
    log: Box<dyn DiskLog>,
    used: Mutex<WriteUse>,
    /// A write or sync failed: what was appended since may be incomplete.
    failed: Mutex<bool>,
}

/// The disks that persisted sets are written to.
pub struct Logs {
    disks: Vec<Disk>,
}

impl Logs {
    /// One log head in each directory; the directory is the disk's name.
    ///
    /// # Errors
    /// Names the directory in which no file can be made.
    pub fn in_directories(directories: &[PathBuf]) -> Result<Arc<Logs>, Error> {
        let mut disks: Vec<(String, Box<dyn DiskLog>)> = Vec::new();
        for directory in directories {
            let name = directory.display().to_string();
            let log = DirectoryLog::create(directory).map_err(|error| disk_error(&name, error))?;
            disks.push((name, Box::new(log)));
        }
        Logs::new(disks)
    }

    /// Log heads with the names of their disks. A disk of a source that has the same name is the same disk.
    ///
    /// # Errors
    /// There is none, or two have one name.
    pub fn new(disks: Vec<(String, Box<dyn DiskLog>)>) -> Result<Arc<Logs>, Error> {
        if disks.is_empty() {
            return Err(Error::Question("a set is persisted to disks: name one at least".to_string()));
        }
        for (i, (name, _)) in disks.iter().enumerate() {
            if disks[..i].iter().any(|(other, _)| other == name) {
                return Err(Error::Question(format!("the disk `{name}` is named twice; each has one log head")));
            }
        }
        let disk = |(name, log): (String, Box<dyn DiskLog>)| Disk {
            name: name.into(),
            file: log.file().into(),
            log,
            used: Mutex::new(WriteUse::default()),
            failed: Mutex::new(false),
        };
        Ok(Arc::new(Logs { disks: disks.into_iter().map(disk).collect() }))
    }

    /// What each disk's write queue has seen.
    pub fn used(&self) -> Vec<WriteUse> {
        self.disks.iter().map(|disk| disk.used.lock().clone()).collect()
    }

    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.disks.iter().map(|disk| disk.name.clone()).collect()
    }

    /// A write was queued, as one of `queue` now.
    pub(super) fn queued(&self, disk: usize, queue: usize) {
        let mut used = self.disks[disk].used.lock();
        used.longest_queue = used.longest_queue.max(queue);
    }

    /// Appends a partition to a disk's log; a disk that failed once is not written again.
    pub(super) fn append(&self, number: usize, bytes: &[u8]) -> Result<Stored, Error> {
        let disk = &self.disks[number];
        // Held during the write: nobody appends behind a part of a partition.
        let mut failed = disk.failed.lock();
        if *failed {
            return Err(disk_error(&disk.name, "an earlier write failed"));
        }
        let offset = disk.log.append(bytes).map_err(|error| {
            *failed = true;
            disk_error(&disk.name, error)
        })?;
        let len_bytes = bytes.len() as u64;
        let mut used = disk.used.lock();
        used.writes += 1;
        used.bytes += len_bytes;
        let place = Place::Disk { disk: disk.name.clone(), file: disk.file.clone(), offset, len_bytes };
        Ok(Stored { disk: number, offset, len_bytes, checksum: xxh3_64(bytes), place })
    }

    /// Syncs all disks at the same time.
    pub(super) fn sync(&self) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let sync = |disk| scope.spawn(move || Logs::sync_disk(disk));
            let threads: Vec<_> = self.disks.iter().map(sync).collect();
            let ended = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::Panic { message: "a sync panicked".to_string() }))
            });
            ended.fold(Ok(()), Result::and)
        })
    }

    fn sync_disk(disk: &Disk) -> Result<(), Error> {
        disk.log.sync().map_err(|error| {
            *disk.failed.lock() = true;
            disk_error(&disk.name, error)
        })
    }

    /// Reads a partition back, from where it was stored.
    pub(super) fn read(&self, stored: &Stored) -> Result<Vec<u8>, Error> {
        let disk = &self.disks[stored.disk];
        let read = disk.log.read(stored.offset, stored.len_bytes);
        let bytes = read.map_err(|error| Error::io(&disk.file, error))?;
        if xxh3_64(&bytes) == stored.checksum { Ok(bytes) } else { Err(damaged(&stored.place)) }
    }
}

fn disk_error(disk: &str, error: impl std::fmt::Display) -> Error {
    Error::Disk { disk: disk.to_string(), message: error.to_string() }
}
