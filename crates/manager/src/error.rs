//! How a command, a read or the database fails.

use tessera_wire::{Code, Error};
use thiserror::Error;

/// Why a request was not carried out. Refusals leave nothing behind; database failures undo the whole batch.
#[derive(Debug, Error)]
pub enum Failure {
    /// The asker's fault or the cluster's state: the answer it gets.
    #[error("{0}")]
    Refused(#[from] Error),
    /// SQLite failed.
    #[error("the manager's database: {0}")]
    Database(#[from] rusqlite::Error),
}

/// Result of applying or answering something.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A refusal with `code` saying `message`.
    pub fn refused(code: Code, message: impl Into<String>) -> Self {
        Failure::Refused(Error::new(code, message))
    }

    /// The error that travels to the asker.
    pub fn into_wire(self) -> Error {
        match self {
            Failure::Refused(error) => error,
            Failure::Database(error) => Error::new(Code::Io, format!("the manager's database failed: {error}")),
        }
    }
}

/// Shorthand: a refusal because the request itself is wrong (P14).
pub fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure::refused(Code::Invalid, message))
}

/// Shorthand: a refusal with any code.
pub fn refuse<T>(code: Code, message: impl Into<String>) -> Result<T> {
    Err(Failure::refused(code, message))
}
