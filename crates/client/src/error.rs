//! Errors: one type for the content of files, one for everything, with the facts as fields (P14).

use crate::path::{PathError, StorePath};
use tessera_accel::DeviceError;
use tessera_wire::{Code, Error as WireError};
use thiserror::Error;

/// Why a file could not be written or read. No part of a failed write is visible; a read never returns other bytes than
/// the file's (P2).
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{file}: {cause}")]
pub struct FileError {
    /// The file.
    pub file: String,
    /// Why.
    pub cause: Cause,
}

/// What failed in a write or a read.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Cause {
    /// The current version is not the one that the write was to replace.
    #[error("version {current} is current, expected {expected}; read it again, then write")]
    VersionConflict {
        /// Expected version id.
        expected: u64,
        /// Current version id.
        current: u64,
    },
    /// The manager refused.
    #[error("{0}")]
    Refused(WireError),
    /// The manager did not answer.
    #[error("the manager did not answer {request} for {waited_ms} ms ({last}); check that it runs, then try again")]
    ManagerSilent {
        /// The request.
        request: &'static str,
        /// For how long it was repeated.
        waited_ms: u64,
        /// The last failure.
        last: String,
    },
    /// No node took a fragment.
    #[error("no node stored fragment {fragment} of the chunk at {offset} for {waited_ms} ms ({last})")]
    NotStored {
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
    #[error("the chunk at {offset} had to be sent again and could not be read back: {cause}")]
    Lost {
        /// Where the chunk starts in the file.
        offset: u64,
        /// Why.
        cause: Box<Cause>,
    },
    /// Fewer fragments than needed could be read.
    #[error(
        "chunk {chunk_id} needs {needed} of its fragments, {got} can be read; {missing}; start the nodes or disks that are missing"
    )]
    TooFewFragments {
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
        "chunk {chunk_id}: more fragments are corrupt than its redundancy can replace ({bad}); restore the file from elsewhere"
    )]
    Corrupt {
        /// The chunk.
        chunk_id: u64,
        /// What is known about the fragments.
        bad: String,
    },
    /// The manager's database names another chunk than the file's writer did.
    #[error(
        "the bytes at {offset} were written as a chunk whose name starts with {written:016x}, and the manager's database says \
         chunk {chunk_id}, {stored:016x}: the database is damaged; stop the manager, move its directory away and \
         start it with --join ADDR (a manager or node that runs)"
    )]
    WrongChunk {
        /// Where the extent starts in the file.
        offset: u64,
        /// The chunk that the manager names; 0: a hole.
        chunk_id: u64,
        /// The first 8 bytes of the chunk's name as the writer gave them.
        written: u64,
        /// The first 8 bytes of the chunk's name in its row.
        stored: u64,
    },
    /// A content of a pack is not what its name says.
    #[error(
        "the store has other bytes than the content {name} where the manager's database says that it lies: its writer has stored it \
         wrongly, or the database is damaged; store the file again"
    )]
    WrongContent {
        /// BLAKE3-256 of the content, as hexadecimal digits.
        name: String,
    },
    /// The manager's reply contradicts itself.
    #[error("the manager's answer makes no sense: {0}")]
    Nonsense(String),
    /// This build does not understand the policy in effect.
    #[error("{0}")]
    Policy(String),
    /// The input failed, with the system's message.
    #[error("reading the input failed: {0}")]
    Input(String),
    /// The output failed, with the system's message.
    #[error("writing the output failed: {0}")]
    Output(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Any failure of the client library.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Error {
    /// A write or a read failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text is not a store path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The manager refused an operation on a path, or did not answer.
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
    /// Connecting to the cluster failed.
    #[error("manager {managers}: {error}")]
    Connect {
        /// The addresses, as the caller named them.
        managers: String,
        /// Why.
        error: WireError,
    },
    /// A request about the whole cluster, or a node, failed.
    #[error(transparent)]
    Cluster(#[from] WireError),
    /// The device that should compute failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Error {
    /// What the manager refused of a path.
    pub fn refused(operation: &'static str, path: &StorePath, error: WireError) -> Error {
        Error::Refused { operation, path: path.brief(), error: by_name(error) }
    }

    /// The code of this failure in the wire format: programs match on it, and exit codes derive from it.
    pub fn code(&self) -> Code {
        match self {
            Error::File(e) => e.code(),
            Error::Path(PathError::NameTooLong { .. }) => Code::NameTooLong,
            Error::Path(_) | Error::Hint { .. } => Code::Invalid,
            Error::Refused { error, .. } | Error::Connect { error, .. } | Error::Cluster(error) => error.code(),
            Error::Device(DeviceError::NoSuchDevice { .. } | DeviceError::NoCuda { .. }) => Code::NotFound,
            Error::Device(_) => Code::Invalid,
        }
    }
}

impl FileError {
    /// See [`Error::code`].
    pub fn code(&self) -> Code {
        self.cause.code()
    }
}

impl Cause {
    fn code(&self) -> Code {
        match self {
            Cause::VersionConflict { .. } => Code::VersionConflict,
            Cause::Refused(error) => error.code(),
            Cause::ManagerSilent { .. } | Cause::NotStored { .. } => Code::Unavailable,
            Cause::Lost { cause, .. } => cause.code(),
            Cause::TooFewFragments { .. } => Code::TooFewFragments,
            Cause::Corrupt { .. } | Cause::WrongChunk { .. } | Cause::WrongContent { .. } => Code::Corrupt,
            Cause::Nonsense(_) => Code::Internal,
            Cause::Policy(_) => Code::Invalid,
            Cause::Input(_) | Cause::Output(_) => Code::Io,
            Cause::Cancelled => Code::Timeout,
        }
    }

    /// This failure of `file`.
    pub fn of(self, file: impl Into<String>) -> FileError {
        FileError { file: file.into(), cause: self }
    }

    /// The failure of a request that the manager did not answer for `waited_ms`, or refused.
    pub(crate) fn of_manager(request: &'static str, error: WireError, waited_ms: u64) -> Cause {
        match error.is_retryable() {
            true => Cause::ManagerSilent { request, waited_ms, last: error.message },
            false => Cause::Refused(by_name(error)),
        }
    }
}

// Callers that only pass errors on do not need to know which operation failed.
impl From<FileError> for std::io::Error {
    fn from(error: FileError) -> Self {
        std::io::Error::other(error)
    }
}

/// Rewords a refusal for a caller that named a path: the manager knows inodes only.
pub(crate) fn by_name(error: WireError) -> WireError {
    match error.code() {
        Code::NotDirectory => WireError::new(Code::NotDirectory, "a name in this path is not a directory"),
        _ => error,
    }
}
