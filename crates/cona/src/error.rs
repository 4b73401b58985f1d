//! Why an operation failed: facts as fields, the way out in the text (P14).

use tessera_disk::record::{HeaderFault, HeaderFormat};
use tessera_disk::{DiskError, DiskOp};

use crate::options::{BATCH_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why a store operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An empty key.
    #[error("the key is empty; keys have 1 to {KEY_BYTES_MAX} bytes")]
    EmptyKey,
    /// A key that is too long.
    #[error("the key has {len_bytes} bytes, at most {KEY_BYTES_MAX} are allowed; store a hash of it")]
    KeyTooLong {
        /// Its length.
        len_bytes: usize,
    },
    /// A value that is too long.
    #[error("the value has {len_bytes} bytes, at most {VALUE_BYTES_MAX} are allowed; split it")]
    ValueTooLong {
        /// Its length.
        len_bytes: usize,
    },
    /// A batch that is too long for a frame of the log.
    #[error("the batch has {len_bytes} bytes or more, at most {BATCH_BYTES_MAX} are allowed; split it")]
    BatchTooLong {
        /// Bytes of its changes up to the first that is too many.
        len_bytes: u64,
    },
    /// An option outside its range.
    #[error("option {option} is {value}, allowed is {allowed}")]
    BadOption {
        /// Its name.
        option: &'static str,
        /// The value given.
        value: u64,
        /// The allowed range.
        allowed: &'static str,
    },
    /// The directory holds no store, and none may be created.
    #[error("{dir}: no CONA store (no file MANIFEST); check the path, or allow that it is created")]
    NotAStore {
        /// The directory.
        dir: String,
    },
    /// The directory already holds a store.
    #[error("{dir}: already holds a CONA store; choose an empty directory")]
    AlreadyThere {
        /// The directory.
        dir: String,
    },
    /// The directory is not writable.
    #[error("{dir}: cannot be written ({reason}); a store needs a directory that it may write")]
    ReadOnly {
        /// The directory.
        dir: String,
        /// The system's error.
        reason: String,
    },
    /// Another process (or another part of this one) has the store open.
    #[error("{dir}: the store is open already; close it there first")]
    Locked {
        /// The directory.
        dir: String,
    },
    /// A file written by a newer release.
    #[error("{file}: format version {found}, but this program knows {supported}; use a newer release")]
    NewerFormat {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
        /// The newest version that this code reads.
        supported: u32,
    },
    /// Stored bytes that are malformed or fail their checksum.
    #[error("{file} at {offset}: {what}; restore it from a backup (`cona verify` lists all damage)")]
    Damaged {
        /// The file.
        file: String,
        /// Offset of the damaged unit.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The disk is full.
    #[error("{what}: no space left; free space, then go on (nothing that was acknowledged is lost)")]
    NoSpace {
        /// What was being written.
        what: String,
    },
    /// An earlier sync failed. The store takes no writes until it is reopened.
    #[error("the store takes no more writes since {reason}; close and open it again")]
    Stopped {
        /// The first failure.
        reason: String,
    },
    /// Another disk error.
    #[error("{0}")]
    Disk(std::sync::Arc<DiskError>),
}

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::NoSpace { path, .. } => Error::NoSpace { what: path },
            DiskError::Locked { disk } => Error::Locked { dir: disk },
            other => Error::Disk(std::sync::Arc::new(other)),
        }
    }
}

impl Error {
    pub(crate) fn damaged(file: &str, offset: u64, what: impl Into<String>) -> Self {
        Error::Damaged { file: file.into(), offset, what: what.into() }
    }

    /// The error of an invalid header (or footer) of a file.
    pub(crate) fn of_header(fault: HeaderFault, what: &str, format: &HeaderFormat, file: &str, offset: u64) -> Self {
        match fault {
            HeaderFault::Magic => {
                let magic = String::from_utf8_lossy(&format.magic);
                Self::damaged(file, offset, format!("the {what} does not begin with {magic}"))
            }
            HeaderFault::Checksum { expected, got } => {
                let what = format!("checksum of the {what} is {got:#010x}, expected {expected:#010x}");
                Self::damaged(file, offset, what)
            }
            HeaderFault::Version(found) => Error::NewerFormat { file: file.into(), found, supported: format.version },
        }
    }

    /// The file that is damaged or of which the disk could not read a part, if that is what failed.
    pub(crate) fn unreadable_file(&self) -> Option<&str> {
        match self {
            Error::Damaged { file, .. } => Some(file),
            Error::Disk(error) => match &**error {
                DiskError::Io { path, op: DiskOp::Read, .. } => Some(path),
                _ => None,
            },
            _ => None,
        }
    }

    /// True if a retry can succeed once space is free.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace { .. })
    }

    /// True if stored bytes are damaged.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Damaged { .. })
    }
}
