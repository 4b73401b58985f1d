//! Why a database cannot be served.

use super::{FILE_NAME, SCHEMA_VERSION};
use std::path::Path;
use tessera_pagesum::Damage;
use thiserror::Error;

/// Whether SQLite failed because the disk is full. It tells so of its own files, but not of the memory that connections share.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    let extended = error.sqlite_error().map(|error| error.extended_code);
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
        || extended == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

/// Whether a file could not be written because the disk, or a quota on it, is full.
pub(crate) fn is_full_file(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

impl DbError {
    /// Whether more room on the disk would help.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            DbError::Sqlite { source, .. } => is_full(source),
            DbError::Io { source, .. } => is_full_file(source),
            _ => false,
        }
    }

    /// Whether the file is there and is not, or cannot be known to be, the database that was written. The log beside it has all that it held.
    pub(crate) fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match self {
            DbError::Damaged(_) | DbError::Unsynced { .. } | DbError::NotManagerDb(_) => true,
            DbError::Sqlite { source, .. } => {
                matches!(source.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
            }
            _ => false,
        }
    }
}

/// Why a database could not be opened, created or copied.
#[derive(Debug, Error)]
pub enum DbError {
    /// Written by a later release.
    #[error(
        "{path}: schema version {got} was written by a later release, this one knows up to {SCHEMA_VERSION}; \
         run that release, or move the directory away and start this manager with --join ADDR (a manager or node that runs)"
    )]
    LaterSchema {
        /// The database.
        path: String,
        /// Its version.
        got: i64,
    },
    /// The file at this path is a database of another application.
    #[error("{0}: is not a database of a Tessera manager; point --dir at the manager's own directory")]
    NotManagerDb(String),
    /// There is no database to open at this path.
    #[error("{0}: there is no manager database; create a cluster first, or join one with --join ADDR")]
    Absent(String),
    /// A database exists already at this path.
    #[error("{0}: exists already; a new cluster needs a directory without one")]
    Exists(String),
    /// The directory for a new database holds other files.
    #[error("{dir}: holds {name:?} and no manager database; give the manager an empty directory of its own (--dir)")]
    Foreign {
        /// The directory.
        dir: String,
        /// A file in it.
        name: String,
    },
    /// This path is not a directory.
    #[error("{0}: is not a directory; name one, or a path that does not exist yet (--dir)")]
    NoDirectory(String),
    /// Another process serves the directory; the path of its lock.
    #[error("{0}: another manager serves this directory; stop it first")]
    Locked(String),
    /// The write-ahead log of a database that is gone: what it holds is the end of a history whose beginning is lost.
    #[error(
        "{0}: the write-ahead log of a database that is gone; put {FILE_NAME} back beside it, or remove this file: the database is then \
         rebuilt from the log of the group beside it"
    )]
    LogAlone(String),
    /// A database without page checksums.
    #[error(
        "{0}: its pages have no checksums, an earlier build wrote it; move the directory away and start this manager with --join ADDR \
         (a manager or node that runs)"
    )]
    NoSums(String),
    /// A page is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// After a failed sync: the disk itself cannot be read.
    #[error(
        "{path}: the disk failed to sync it, and what the disk holds cannot be read past the system's cache ({source}); move the \
         directory to a disk that is well, or start this manager there with an empty one and --join ADDR (a manager or node that runs)"
    )]
    Unsynced {
        /// The database.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// SQLite failed.
    #[error("{path}: {source}")]
    Sqlite {
        /// The database.
        path: String,
        /// Cause.
        source: rusqlite::Error,
    },
    /// The file system failed.
    #[error("{path}: {source}")]
    Io {
        /// File.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
}

/// What to tell about damage that SQLite's files show.
pub(crate) fn describe(damage: &Damage) -> String {
    let way_out = match damage {
        Damage::Page { .. } => "start the manager again: it then rebuilds the database from the log beside it",
        Damage::Unsynced { .. } => "check the disk and start the manager again: it then reads what the disk holds",
    };
    format!("{damage}; {way_out}")
}

pub(super) fn sqlite<P: std::fmt::Display + ?Sized>(path: &P) -> impl FnOnce(rusqlite::Error) -> DbError {
    let path = path.to_string();
    move |source| DbError::Sqlite { path, source }
}

pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> DbError {
    let path = path.display().to_string();
    move |source| DbError::Io { path, source }
}
