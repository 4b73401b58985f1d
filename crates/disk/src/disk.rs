//! The traits. Synchronous and object safe: concurrency belongs to the caller's threads, and a
//! simulation calls the same code in one thread.

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

/// How much room a disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes the disk can hold in all.
    pub capacity_bytes: u64,
    /// Bytes that may still be written.
    pub free_bytes: u64,
}

/// Held while a daemon serves a disk; dropping it lets the next one in.
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
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError>;

    /// The names of the files (not directories) directly in `dir`, sorted; `""` is the root.
    /// A directory that does not exist is [`DiskError::NotFound`].
    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError>;

    /// The names of the directories directly in `dir`, sorted.
    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError>;

    /// Makes a directory (and those above it) durably; does nothing if it is there.
    fn create_dir(&self, dir: &str) -> Result<(), DiskError>;

    /// Removes a file's name. Handles that are open stay readable. Not durable before `sync_dir`.
    fn remove(&self, path: &str) -> Result<(), DiskError>;

    /// Renames a file, replacing `to` atomically. Not durable before `sync_dir`.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Makes the names in `dir` durable: creations, renames and removals so far.
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError>;

    /// Room on this disk.
    fn space(&self) -> Result<Space, DiskError>;

    /// Takes the disk for this process, or fails with [`DiskError::Locked`].
    fn lock(&self) -> Result<DiskLock, DiskError>;

    /// The disk's name for messages, such as its directory.
    fn describe(&self) -> String;

    /// True once a sync failed: see [`DiskError::Poisoned`].
    fn is_poisoned(&self) -> bool;

    /// Renames and makes it durable.
    fn rename_durable(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.rename(from, to)?;
        let (from_dir, to_dir) = (crate::path::parent(from), crate::path::parent(to));
        self.sync_dir(to_dir)?;
        if from_dir == to_dir { Ok(()) } else { self.sync_dir(from_dir) }
    }

    /// Writes a small file whole or not at all: a temporary file, synced, renamed, directory synced.
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
    /// Fills `buf` from `offset`, or fails with [`DiskError::ShortRead`] where the file ends first.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError>;

    /// Writes all of `bytes` at `offset`, growing the file if needed. On an error any part of it
    /// may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_vectored_at(offset, &[IoSlice::new(bytes)])
    }

    /// Writes the slices back to back at `offset`, without gathering them in a buffer first.
    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError>;

    /// Makes the file's bytes and length durable (`fdatasync`). A failure poisons the disk.
    fn sync_data(&self) -> Result<(), DiskError>;

    /// Length in bytes.
    fn len(&self) -> Result<u64, DiskError>;

    /// True if the length is 0.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Cuts or grows (with zeros) the file to `len` bytes. Not durable before `sync_data`.
    fn truncate(&self, len: u64) -> Result<(), DiskError>;

    /// The descriptor to hand to `sendfile` with an offset and a length, so that bytes reach a
    /// socket without being copied through the process. `None` where there is no descriptor.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks that cached copies of this range be forgotten, so that the next read asks the medium.
    /// Advice only: a scrubber wants it, nothing depends on it.
    fn drop_cache(&self, _offset: u64, _len: u64) {}

    /// The file's path below the disk's root, for messages.
    fn path(&self) -> &str;
}
