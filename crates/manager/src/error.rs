//! How a command, a read or the database fails.

use tessera_wire::{Code, Error};
use thiserror::Error;

/// Why a request failed. A refusal changes nothing; a database failure undoes the whole batch.
#[derive(Debug, Error)]
pub enum Failure {
    /// The request is wrong, or the state of the cluster does not allow it: the error in the reply.
    #[error("{0}")]
    Refused(#[from] Error),
    /// SQLite failed.
    #[error("the manager's database: {0}")]
    Database(rusqlite::Error),
}

/// A row that is damaged, by a disk or by a bug.
#[derive(Debug, Error)]
#[error(
    "{row} of the manager's database is damaged: {why}; stop the manager, move its directory away and start it with --join"
)]
pub struct CorruptRow {
    /// Table and key.
    pub row: String,
    /// What is wrong.
    pub why: String,
}

/// The error for a damaged row, as a [`rusqlite::Error`]; a request that meets it gets [`Code::Corrupt`].
pub fn corrupt_row(row: impl Into<String>, why: impl Into<String>) -> rusqlite::Error {
    let cause = CorruptRow { row: row.into(), why: why.into() };
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Null, Box::new(cause))
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match &error {
            rusqlite::Error::FromSqlConversionFailure(_, _, cause) if cause.is::<CorruptRow>() => {
                Failure::refused(Code::Corrupt, cause.to_string())
            }
            _ => Failure::Database(error),
        }
    }
}

/// Result of applying or answering something.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A refusal with `code` saying `message`.
    pub fn refused(code: Code, message: impl Into<String>) -> Self {
        Failure::Refused(Error::new(code, message))
    }

    /// The error for the reply.
    pub fn into_wire(self) -> Error {
        match self {
            Failure::Refused(error) => error,
            Failure::Database(error) => Error::new(Code::Io, format!("the manager's database failed: {error}")),
        }
    }
}

/// Shorthand: a refusal because the request itself is wrong (P14).
///
/// # Errors
/// Always.
pub fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure::refused(Code::Invalid, message))
}

/// Shorthand: a refusal with any code.
///
/// # Errors
/// Always.
pub fn refuse<T>(code: Code, message: impl Into<String>) -> Result<T> {
    Err(Failure::refused(code, message))
}
