//! Errors, one enum per operation, with the facts as fields (P14).

use crate::path::PathError;
use tessera_wire::{Code, Error as WireError};
use thiserror::Error;

/// Why a write did not become a version. No part of it is visible then.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum WriteError {
    /// The redundancy class needs more hosts than are up.
    #[error("{file}: {message}")]
    TooFewHosts {
        /// The file.
        file: String,
        /// The manager's message: what is needed, what there is, what to do.
        message: String,
    },
    /// The cluster is full.
    #[error("{file}: no space: {message}")]
    NoSpace {
        /// The file.
        file: String,
        /// The component that reports it, and its message.
        message: String,
    },
    /// The current version is not the one that the write was to replace.
    #[error("{file}: version {current} is current, expected {expected}; read it again, then write")]
    VersionConflict {
        /// The file.
        file: String,
        /// Expected version id.
        expected: u64,
        /// Current version id.
        current: u64,
    },
    /// The session ended (the client was cut off or stopped for too long).
    #[error("{file}: the write session ended before the commit ({message}); write the file again")]
    SessionExpired {
        /// The file.
        file: String,
        /// The manager's message.
        message: String,
    },
    /// The manager refused.
    #[error("{file}: {error}")]
    Refused {
        /// The file.
        file: String,
        /// Its error.
        error: WireError,
    },
    /// The manager did not answer.
    #[error(
        "{file}: the manager did not answer {request} for {waited_ms} ms ({last}); check that it runs, then write again"
    )]
    ManagerSilent {
        /// The file.
        file: String,
        /// The request.
        request: &'static str,
        /// For how long it was repeated.
        waited_ms: u64,
        /// The last failure.
        last: String,
    },
    /// No node took a fragment.
    #[error(
        "{file}: fragment {fragment} of the chunk at {offset} was not stored by anyone for {waited_ms} ms ({last})"
    )]
    NotStored {
        /// The file.
        file: String,
        /// Where the chunk starts in the file.
        offset: u64,
        /// Number of the fragment.
        fragment: u32,
        /// For how long it was tried.
        waited_ms: u64,
        /// The last failure.
        last: String,
    },
    /// A chunk that had to be sent again could not be read back.
    #[error("{file}: the chunk at {offset} had to be sent again and could not be read back: {error}")]
    Lost {
        /// The file.
        file: String,
        /// Where the chunk starts in the file.
        offset: u64,
        /// Why.
        error: ReadError,
    },
    /// This build does not understand the policy in effect.
    #[error("{file}: {message}")]
    Policy {
        /// The file.
        file: String,
        /// What is wrong.
        message: String,
    },
    /// The input failed.
    #[error("{file}: reading the input failed: {message}")]
    Source {
        /// The file.
        file: String,
        /// The system's message.
        message: String,
    },
    /// The caller asked to stop.
    #[error("{file}: cancelled")]
    Cancelled {
        /// The file.
        file: String,
    },
}

/// Why a read did not return its bytes. A read never returns other bytes (P2).
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ReadError {
    /// Fewer fragments than needed could be read.
    #[error(
        "{file}: chunk {chunk_id} needs {needed} of its fragments, {got} can be read; {missing}; start the nodes or disks that are missing"
    )]
    TooFewFragments {
        /// The file.
        file: String,
        /// The chunk.
        chunk_id: u64,
        /// Fragments needed.
        needed: u32,
        /// Fragments at hand.
        got: u32,
        /// What was missing and why, one clause a fragment.
        missing: String,
    },
    /// There are enough fragments, but no combination of them gives the chunk's hash.
    #[error(
        "{file}: chunk {chunk_id}: more fragments are corrupt than its redundancy can replace ({bad}); restore the file from elsewhere"
    )]
    Corrupt {
        /// The file.
        file: String,
        /// The chunk.
        chunk_id: u64,
        /// What is known about the fragments.
        bad: String,
    },
    /// The manager refused.
    #[error("{file}: {error}")]
    Refused {
        /// The file.
        file: String,
        /// Its error.
        error: WireError,
    },
    /// The manager did not answer.
    #[error("{file}: the manager did not answer {request} for {waited_ms} ms ({last}); check that it runs")]
    ManagerSilent {
        /// The file.
        file: String,
        /// The request.
        request: &'static str,
        /// For how long it was repeated.
        waited_ms: u64,
        /// The last failure.
        last: String,
    },
    /// The manager's reply contradicts itself.
    #[error("{file}: the manager's answer makes no sense: {message}")]
    Nonsense {
        /// The file.
        file: String,
        /// What does not fit.
        message: String,
    },
    /// The output failed.
    #[error("{file}: writing the output failed: {message}")]
    Sink {
        /// The file.
        file: String,
        /// The system's message.
        message: String,
    },
    /// The caller asked to stop.
    #[error("{file}: cancelled")]
    Cancelled {
        /// The file.
        file: String,
    },
}

/// Why an operation on a path failed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PathOpError {
    /// The text is not a store path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The manager refused, or did not answer.
    #[error("{operation} {path}: {error}")]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The path.
        path: String,
        /// The error in the reply.
        error: WireError,
    },
    /// A hint is invalid.
    #[error("{path}: {message}")]
    Hint {
        /// The path.
        path: String,
        /// What is wrong, and what is allowed.
        message: String,
    },
    /// The caller asked to stop.
    #[error("{operation} {path}: cancelled")]
    Cancelled {
        /// The operation.
        operation: &'static str,
        /// The path.
        path: String,
    },
}

/// Any failure of the client library.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Error {
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An operation on a path failed.
    #[error(transparent)]
    PathOp(#[from] PathOpError),
    /// Connecting to the cluster failed.
    #[error("manager {address}: {error}")]
    Connect {
        /// The address.
        address: String,
        /// Why.
        error: WireError,
    },
    /// A request about the whole cluster, or a node, failed.
    #[error(transparent)]
    Cluster(WireError),
    /// The device that should compute failed.
    #[error(transparent)]
    Device(#[from] tessera_accel::DeviceError),
}

impl From<PathError> for Error {
    fn from(error: PathError) -> Self {
        Error::PathOp(error.into())
    }
}

impl Error {
    /// The code of this failure in the wire format: programs match on it, and exit codes derive from it.
    pub fn code(&self) -> Code {
        match self {
            Error::Write(e) => e.code(),
            Error::Read(e) => e.code(),
            Error::PathOp(PathOpError::Path(PathError::NameTooLong { .. })) => Code::NameTooLong,
            Error::PathOp(PathOpError::Path(_) | PathOpError::Hint { .. }) => Code::Invalid,
            Error::PathOp(PathOpError::Refused { error, .. }) | Error::Connect { error, .. } => error.kind(),
            Error::Cluster(error) => error.kind(),
            Error::PathOp(PathOpError::Cancelled { .. }) => Code::Timeout,
            Error::Device(
                tessera_accel::DeviceError::NoSuchDevice { .. } | tessera_accel::DeviceError::NoCuda { .. },
            ) => Code::NotFound,
            Error::Device(_) => Code::Invalid,
        }
    }
}

impl WriteError {
    /// See [`Error::code`].
    pub fn code(&self) -> Code {
        match self {
            WriteError::TooFewHosts { .. } => Code::TooFewHosts,
            WriteError::NoSpace { .. } => Code::NoSpace,
            WriteError::VersionConflict { .. } => Code::VersionConflict,
            WriteError::SessionExpired { .. } => Code::SessionExpired,
            WriteError::Refused { error, .. } => error.kind(),
            WriteError::ManagerSilent { .. } => Code::Unavailable,
            WriteError::NotStored { .. } => Code::Unavailable,
            WriteError::Lost { error, .. } => error.code(),
            WriteError::Policy { .. } => Code::Invalid,
            WriteError::Source { .. } => Code::Io,
            WriteError::Cancelled { .. } => Code::Timeout,
        }
    }
}

impl ReadError {
    /// See [`Error::code`].
    pub fn code(&self) -> Code {
        match self {
            ReadError::TooFewFragments { .. } => Code::TooFewFragments,
            ReadError::Corrupt { .. } => Code::Corrupt,
            ReadError::Refused { error, .. } => error.kind(),
            ReadError::ManagerSilent { .. } => Code::Unavailable,
            ReadError::Nonsense { .. } => Code::Internal,
            ReadError::Sink { .. } => Code::Io,
            ReadError::Cancelled { .. } => Code::Timeout,
        }
    }
}

// Callers that only pass errors on do not need to know which operation failed.
impl From<WriteError> for std::io::Error {
    fn from(error: WriteError) -> Self {
        std::io::Error::other(error)
    }
}

impl From<ReadError> for std::io::Error {
    fn from(error: ReadError) -> Self {
        std::io::Error::other(error)
    }
}

/// Rewords a refusal for a caller that named a path: the manager knows inodes only.
pub(crate) fn by_name(error: WireError) -> WireError {
    match error.kind() {
        Code::NotDirectory => WireError::new(Code::NotDirectory, "a name in this path is not a directory"),
        _ => error,
    }
}
