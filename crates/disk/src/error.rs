//! Why an operation on a disk failed: facts as fields, the way out in the text.

use std::fmt;

/// The operation that was under way when a disk failed.
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
    /// Making a directory.
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

/// Why an operation on a [`crate::Disk`] failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// No file of that name.
    #[error("{path}: no such file on this disk")]
    NotFound {
        /// Path below the disk's root.
        path: String,
    },
    /// [`crate::OpenMode::CreateNew`] met an existing file.
    #[error("{path}: already exists on this disk")]
    Exists {
        /// Path below the disk's root.
        path: String,
    },
    /// A path that is absolute, empty or leaves the root.
    #[error("path {path:?} is not allowed: use names separated by '/', none empty, '.' or '..'")]
    BadPath {
        /// The path as given.
        path: String,
    },
    /// The disk is full. What was written before the full point may be there: truncate it away.
    #[error("{path} at {offset}: no space left for {len} bytes; free space or add a disk")]
    NoSpace {
        /// Path below the disk's root.
        path: String,
        /// Where the write began.
        offset: u64,
        /// How many bytes it had.
        len: u64,
    },
    /// The file ended before the bytes that were asked for.
    #[error("{path} at {offset}: expected {expected} bytes, got {got}; the file is shorter than its index says")]
    ShortRead {
        /// Path below the disk's root.
        path: String,
        /// Where the read began.
        offset: u64,
        /// Bytes asked for.
        expected: u64,
        /// Bytes there were.
        got: u64,
    },
    /// A sync failed earlier: nothing written since the last good sync may be trusted, so nothing
    /// more is written until the disk is opened anew and scanned.
    #[error(
        "disk refuses to write since the sync of {path} failed; reopen it (unsynced bytes may be lost) or replace it"
    )]
    Poisoned {
        /// The file or directory whose sync failed.
        path: String,
    },
    /// Another daemon serves this disk.
    #[error("{disk}: another daemon already serves this disk (its lock is held); stop it first")]
    Locked {
        /// The disk, as it describes itself.
        disk: String,
    },
    /// The operating system refused.
    #[error("{path} at {offset}: {op} failed: {source}")]
    Io {
        /// Path below the disk's root.
        path: String,
        /// What was tried.
        op: DiskOp,
        /// Where (0 where there is no offset).
        offset: u64,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl DiskError {
    /// True if trying again later can help without repair: only a full disk.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, DiskError::NoSpace { .. })
    }

    /// True once the disk needs to be reopened before it takes writes.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        matches!(self, DiskError::Poisoned { .. })
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
