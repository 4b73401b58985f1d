//! The traits. They are synchronous and object safe: the caller's threads make the concurrency, and a simulation calls the same code in
//! one thread.

use std::any::Any;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::DiskError;

/// How [`Disk::open`] treats a file that is or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// It must exist.
    Existing,
    /// Open it, or create it empty.
    Create,
    /// It must not exist yet.
    CreateNew,
}

/// Space on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes the disk can hold in all.
    pub capacity_bytes: u64,
    /// Bytes that may still be written.
    pub free_bytes: u64,
}

/// Held while a daemon serves a disk; dropping it releases the disk.
pub struct DiskLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl DiskLock {
    /// Wraps whatever releases the lock when it is dropped.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        DiskLock { _held: Box::new(held) }
    }
}

/// A directory of files that one daemon owns. All bytes a node keeps pass through here (P9).
///
/// Paths are relative to the disk's root, `/`-separated, and may not leave it. Nothing is durable
/// until it was synced: a file's bytes by [`DiskFile::sync_data`], its name by [`Disk::sync_dir`] of
/// the directory it is in. After a failed sync of either kind every later write, truncation, sync,
/// creation, rename and removal fails with [`DiskError::Poisoned`] until the disk is opened anew.
pub trait Disk: Send + Sync {
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] or [`DiskError::Exists`] by `mode`, [`DiskError::BadPath`], or the system's.
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError>;

    /// The names of the files (not directories) directly in `dir`, sorted; `""` is the root.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] if there is no such directory, [`DiskError::BadPath`], or the system's.
    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError>;

    /// The names of the directories directly in `dir`, sorted.
    ///
    /// # Errors
    /// As for [`Disk::list`].
    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError>;

    /// Makes a directory (and those above it) durably; does nothing if it is there.
    ///
    /// # Errors
    /// [`DiskError::BadPath`], [`DiskError::Poisoned`], or the system's.
    fn create_dir(&self, dir: &str) -> Result<(), DiskError>;

    /// Removes a file's name. Open handles stay readable. Not durable before `sync_dir`.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], [`DiskError::Poisoned`], or the system's.
    fn remove(&self, path: &str) -> Result<(), DiskError>;

    /// Renames a file, replacing `to` atomically. Not durable before `sync_dir`.
    ///
    /// # Errors
    /// As for [`Disk::remove`].
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Makes the names in `dir` durable: creations, renames and removals so far.
    ///
    /// # Errors
    /// [`DiskError::Poisoned`], or the system's, which poisons the disk.
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError>;

    /// Space on this disk.
    ///
    /// # Errors
    /// The system's.
    fn space(&self) -> Result<Space, DiskError>;

    /// Takes the disk for this process.
    ///
    /// # Errors
    /// [`DiskError::Locked`] if another process holds it, or the system's.
    fn lock(&self) -> Result<DiskLock, DiskError>;

    /// The disk's name for messages, such as its directory.
    fn describe(&self) -> String;

    /// True once a sync failed: see [`DiskError::Poisoned`].
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

    /// Writes a small file whole or not at all: a temporary file is written, synced and renamed.
    ///
    /// # Errors
    /// As for the steps; `path` is as it was, or new.
    fn write_durable(&self, path: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let tmp = format!("{path}.tmp");
        let file = self.open(&tmp, OpenMode::Create)?;
        file.truncate(0)?;
        file.write_at(0, bytes)?;
        file.sync_data()?;
        self.rename_durable(&tmp, path)
    }
}

/// An open file. Any number of threads may read while one writes; writers of the same bytes are
/// the caller's to order.
pub trait DiskFile: Send + Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`DiskError::ShortRead`] if the file ends first, or the system's.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError>;

    /// Writes all of `bytes` at `offset`, growing the file if needed.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`], [`DiskError::Poisoned`], or the system's. Any part of the bytes may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_vectored_at(offset, &[IoSlice::new(bytes)])
    }

    /// Writes the slices back to back at `offset`, without gathering them in a buffer first.
    ///
    /// # Errors
    /// As for [`DiskFile::write_at`].
    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError>;

    /// Makes the file's bytes and length durable (`fdatasync`).
    ///
    /// # Errors
    /// [`DiskError::Poisoned`], or the system's, which poisons the disk.
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

    /// Cuts or grows (with zeros) the file to `len` bytes. Not durable before `sync_data`.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`], [`DiskError::Poisoned`], or the system's.
    fn truncate(&self, len: u64) -> Result<(), DiskError>;

    /// The descriptor to hand to `sendfile` with an offset and a length, so that bytes reach a
    /// socket without being copied through the process. `None` where there is no descriptor.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks the system to drop its cache of this range, so that the next read reads the medium. Advice for a scrubber; nothing depends on
    /// it.
    fn drop_cache(&self, _offset: u64, _len: u64) {}

    /// The file's path below the disk's root, for messages.
    fn path(&self) -> &str;
}
