//! The errors that programs see (docs/mount.md lists them).

use tessera_wire::{Code, Error};

/// An error number of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, clippy::upper_case_acronyms, reason = "the names are those of errno(3)")]
pub enum Errno {
    EPERM = 1,
    ENOENT = 2,
    EINTR = 4,
    EIO = 5,
    EBADF = 9,
    EAGAIN = 11,
    EACCES = 13,
    EEXIST = 17,
    ENOTDIR = 20,
    EISDIR = 21,
    EINVAL = 22,
    ENOSPC = 28,
    EROFS = 30,
    EDEADLK = 35,
    ENAMETOOLONG = 36,
    ENOLCK = 37,
    ENOTEMPTY = 39,
    ENODATA = 61,
    EOPNOTSUPP = 95,
    ETIMEDOUT = 110,
    ESTALE = 116,
}

/// The result of an operation.
pub type Outcome<T = ()> = Result<T, Errno>;

/// The errno for an error of the store.
impl From<Code> for Errno {
    fn from(code: Code) -> Errno {
        match code {
            Code::NotFound => Errno::ENOENT,
            Code::Exists => Errno::EEXIST,
            Code::NotEmpty => Errno::ENOTEMPTY,
            Code::NotDirectory => Errno::ENOTDIR,
            Code::IsDirectory => Errno::EISDIR,
            Code::NameTooLong => Errno::ENAMETOOLONG,
            Code::Invalid => Errno::EINVAL,
            Code::Permission => Errno::EACCES,
            Code::NoSpace => Errno::ENOSPC,
            Code::Unsupported => Errno::EOPNOTSUPP,
            Code::VersionConflict => Errno::ESTALE,
            Code::Unavailable | Code::Timeout | Code::NotLeader | Code::TooFewHosts => Errno::ETIMEDOUT,
            _ => Errno::EIO,
        }
    }
}

/// The errno for an error of the manager. Logs the error: an errno alone says little.
pub(crate) fn explained(what: &str, ino: u64, error: &Error) -> Errno {
    if !matches!(error.code(), Code::NotFound | Code::Exists | Code::NotEmpty) {
        tracing::warn!(what, ino, %error, "the store refuses");
    }
    error.code().into()
}

/// The errno for an error of a read or write. Logs the error.
pub(crate) fn failed(what: &str, ino: u64, code: Code, error: &dyn std::fmt::Display) -> Errno {
    tracing::warn!(what, ino, %error, "failed");
    code.into()
}
