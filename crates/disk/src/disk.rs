//! The traits. They are synchronous and object safe: the caller provides the threads, and a simulation calls the same
//! code in one thread.

use std::any::Any;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::DiskError;

/// What [`Disk::open`] requires of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist.
    Existing,
    /// Opens the file, or creates it empty.
    Create,
    /// The file must not exist.
    CreateNew,
}

/// The space of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Total capacity in bytes.
    pub capacity_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Bytes that the file system takes: more than `free_bytes` if the disk has a limit.
    pub writable_bytes: u64,
}

/// The lock that a daemon holds while it serves a disk. Dropping it releases the disk.
pub struct DiskLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl DiskLock {
    /// Wraps a value that releases the lock when dropped.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        DiskLock { _held: Box::new(held) }
    }
}

/// A directory of files that one daemon owns. A node stores all its bytes through this trait (P9).
///
/// Paths are relative to the disk's root, `/`-separated, and may not leave it. Bytes of a file are durable after
/// [`DiskFile::sync_data`]. A file's name is durable after [`Disk::sync_dir`] of its directory. After a failed sync of
/// either kind, every later write, truncation, sync, creation, rename and removal fails with [`DiskError::Poisoned`]
/// until the disk is reopened. A disk whose directory is gone refuses the same operations with [`DiskError::Gone`]; a sync
/// and [`Disk::space`] notice that. So what a sync confirmed was in the directory to which the disk's path leads.
pub trait Disk: Send + Sync {
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] or [`DiskError::Exists`] as `mode` requires, [`DiskError::BadPath`], or the system's.
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError>;

    /// Returns the names of the files (not directories) directly in `dir`, sorted; `""` is the root.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] if there is no such directory, [`DiskError::BadPath`], or the system's.
    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError>;

    /// Returns the names of the directories directly in `dir`, sorted.
    ///
    /// # Errors
    /// As for [`Disk::list`].
    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError>;

    /// Creates a directory and its missing parents durably. Does nothing if it exists.
    ///
    /// # Errors
    /// [`DiskError::BadPath`], [`DiskError::Poisoned`], or the system's.
    fn create_dir(&self, dir: &str) -> Result<(), DiskError>;

    /// Removes a file's name. Open handles stay readable. Durable after `sync_dir`.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], [`DiskError::Poisoned`], or the system's.
    fn remove(&self, path: &str) -> Result<(), DiskError>;

    /// Renames a file, replacing `to` atomically. Durable after `sync_dir`.
    ///
    /// # Errors
    /// As for [`Disk::remove`].
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Makes all creations, renames and removals in `dir` durable.
    ///
    /// # Errors
    /// [`DiskError::Poisoned`], or the system's, which poisons the disk.
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError>;

    /// Returns the space of this disk.
    ///
    /// # Errors
    /// [`DiskError::Gone`], or the system's.
    fn space(&self) -> Result<Space, DiskError>;

    /// Locks the disk for this process.
    ///
    /// # Errors
    /// [`DiskError::Locked`] if another process holds it, or the system's.
    fn lock(&self) -> Result<DiskLock, DiskError>;

    /// The disk's name for messages, such as its directory.
    fn describe(&self) -> String;

    /// True after a failed sync, or once the directory is gone: see [`DiskError::Poisoned`] and [`DiskError::Gone`].
    fn is_poisoned(&self) -> bool;

    /// Renames a file durably.
    ///
    /// # Errors
    /// As for [`Disk::rename`] and [`Disk::sync_dir`].
    fn rename_durable(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.rename(from, to)?;
        let (from_dir, to_dir) = (crate::path::parent(from), crate::path::parent(to));
        self.sync_dir(to_dir)?;
        if from_dir == to_dir { Ok(()) } else { self.sync_dir(from_dir) }
    }

    /// Writes a small file atomically and durably: writes a temporary file, syncs it and renames it.
    ///
    /// # Errors
    /// As for the steps; `path` then has its old or its new content.
    fn write_durable(&self, path: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let tmp = format!("{path}.tmp");
        let file = self.open(&tmp, OpenMode::Create)?;
        file.truncate(0)?;
        file.write_at(0, bytes)?;
        file.sync_data()?;
        self.rename_durable(&tmp, path)
    }
}

/// An open file. Any number of threads may read while one writes. The caller orders writes to the same bytes.
pub trait DiskFile: Send + Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`DiskError::ShortRead`] if the file ends first, or the system's.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError>;

    /// Like [`DiskFile::read_at`], with one retry: a read may be retried, a sync never.
    ///
    /// # Errors
    /// As for [`DiskFile::read_at`].
    fn read_twice(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.read_at(offset, buf).or_else(|_| self.read_at(offset, buf))
    }

    /// Writes all of `bytes` at `offset`, growing the file if needed.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`], [`DiskError::Poisoned`], or the system's. Any part of the bytes may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_vectored_at(offset, &[IoSlice::new(bytes)])
    }

    /// Writes the slices back to back at `offset`, without copying them into one buffer first.
    ///
    /// # Errors
    /// As for [`DiskFile::write_at`].
    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError>;

    /// Makes the file's bytes and length durable (`fdatasync`).
    ///
    /// # Errors
    /// [`DiskError::Poisoned`], [`DiskError::Gone`], or the system's, which poisons the disk.
    fn sync_data(&self) -> Result<(), DiskError>;

    /// Length in bytes.
    ///
    /// # Errors
    /// The system's.
    fn len(&self) -> Result<u64, DiskError>;

    /// True if the length is 0.
    ///
    /// # Errors
    /// As for [`DiskFile::len`].
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Shortens the file, or grows it with zeros, to `len` bytes. Durable after `sync_data`.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`], [`DiskError::Poisoned`], or the system's.
    fn truncate(&self, len: u64) -> Result<(), DiskError>;

    /// The descriptor for `sendfile`, which sends bytes to a socket without copying them through the process. `None` if
    /// there is no descriptor.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks the system to drop its cache of this range, so that the next read reaches the medium. This is advice for a
    /// scrubber; correctness does not depend on it.
    fn drop_cache(&self, _offset: u64, _len: u64) {}

    /// Tells the system that this range is read soon, so that it begins now. Advice only.
    fn will_read(&self, _offset: u64, _len: u64) {}

    /// Tells the system that a read says nothing of the next one, so that it reads what is asked for and no more. Advice
    /// only.
    fn expect_random_reads(&self) {}

    /// The file's path below the disk's root, for messages.
    fn path(&self) -> &str;
}
