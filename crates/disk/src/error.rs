//! Why a disk operation failed: facts as fields, the way out in the text.

use std::fmt;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Opening or creating a file.
    Open,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making a file's bytes durable.
    Sync,
    /// Making a directory's entries durable.
    SyncDir,
    /// Changing a file's length.
    Truncate,
    /// Listing a directory.
    List,
    /// Creating a directory.
    CreateDir,
    /// Removing a file.
    Remove,
    /// Renaming a file.
    Rename,
    /// Asking for free space.
    Space,
    /// Taking the lock.
    Lock,
}

impl fmt::Display for DiskOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskOp::Open => "open",
            DiskOp::Read => "read",
            DiskOp::Write => "write",
            DiskOp::Sync => "sync",
            DiskOp::SyncDir => "sync of the directory",
            DiskOp::Truncate => "truncate",
            DiskOp::List => "list",
            DiskOp::CreateDir => "create directory",
            DiskOp::Remove => "remove",
            DiskOp::Rename => "rename",
            DiskOp::Space => "free space",
            DiskOp::Lock => "lock",
        })
    }
}

/// Why a [`crate::Disk`] operation failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// No file of that name.
    #[error("{path}: no such file on this disk")]
    NotFound {
        /// Path below the disk's root.
        path: String,
    },
    /// The file for [`crate::OpenMode::CreateNew`] already exists.
    #[error("{path}: already exists on this disk")]
    Exists {
        /// Path below the disk's root.
        path: String,
    },
    /// A path that is absolute or empty, or that leaves the root.
    #[error("path {path:?} is not allowed: use names separated by '/', none empty, '.' or '..'")]
    BadPath {
        /// The path as given.
        path: String,
    },
    /// The disk is full. Part of the write may be in the file: truncate it away.
    #[error("{path} at {offset}: the disk is full, {len} more bytes do not fit; free space on it")]
    NoSpace {
        /// Path below the disk's root.
        path: String,
        /// Offset of the write.
        offset: u64,
        /// Bytes to write.
        len: u64,
    },
    /// The file ended before all requested bytes.
    #[error("{path} at {offset}: expected {expected} bytes, got {got}; the file is shorter than its index says")]
    ShortRead {
        /// Path below the disk's root.
        path: String,
        /// Offset of the read.
        offset: u64,
        /// Bytes requested.
        expected: u64,
        /// Bytes available.
        got: u64,
    },
    /// An earlier sync failed, so bytes written since the last good sync may be lost. The disk takes no writes until it
    /// is reopened and scanned.
    #[error(
        "disk refuses to write since the sync of {path} failed; reopen it (unsynced bytes may be lost) or replace it"
    )]
    Poisoned {
        /// The file or directory whose sync failed.
        path: String,
    },
    /// The disk's path does not lead to the directory that was opened any more, or the file that locks it was deleted. A
    /// restart would not find what is written there, so the disk takes no writes until it is opened again.
    #[error(
        "{disk}: the directory that was opened is not there any more (moved, deleted, emptied, unmounted or covered by a mount): nothing \
         more is written to it; put it back and start again, or start with an empty directory in its place"
    )]
    Gone {
        /// The disk, as it describes itself.
        disk: String,
    },
    /// Another daemon serves this disk.
    #[error("{disk}: another daemon already serves this disk (its lock is held); stop it first")]
    Locked {
        /// The disk, as it describes itself.
        disk: String,
    },
    /// The operating system returned an error.
    #[error("{path} at {offset}: {op} failed: {source}")]
    Io {
        /// Path below the disk's root.
        path: String,
        /// The failed operation.
        op: DiskOp,
        /// Offset in the file (0 if the operation has none).
        offset: u64,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl DiskError {
    /// True if a later retry can succeed without repair: only for a full disk.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, DiskError::NoSpace { .. })
    }

    /// True if the disk must be reopened before it takes writes.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        matches!(self, DiskError::Poisoned { .. } | DiskError::Gone { .. })
    }

    pub(crate) fn io(path: &str, op: DiskOp, offset: u64, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::NotFound => DiskError::NotFound { path: path.into() },
            std::io::ErrorKind::AlreadyExists => DiskError::Exists { path: path.into() },
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                DiskError::NoSpace { path: path.into(), offset, len: 0 }
            }
            _ => DiskError::Io { path: path.into(), op, offset, source },
        }
    }
}
