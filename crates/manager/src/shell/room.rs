//! What a manager says that does not start because its disk is full.

use super::start::ServeError;
use crate::db::{DbError, LOG_DIR};
use crate::group::{GroupError, StartError};
use std::path::Path;
use tessera_disk::{Disk, RealDisk};

/// A new log and database, and what SQLite keeps beside it.
const START_BYTES: u64 = 8 << 20;
/// With less than this, an error of the system means that the disk is full, whatever its code: SQLite does not tell them all apart.
const NOTHING_BYTES: u64 = 256 << 10;

/// The same error, or what to do about the full disk that is its cause.
pub(super) fn explain(dir: &Path, error: ServeError) -> ServeError {
    let ServeError::Start(StartError::Group(cause)) = &error else { return error };
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    // A directory that could not be created is on the disk of the one above it.
    let free_bytes = dir.ancestors().find_map(free_bytes).unwrap_or(0);
    let is_full = cause.is_full() || is_of_files(cause) && free_bytes < NOTHING_BYTES;
    if !is_full {
        return error;
    }
    let needed_bytes = START_BYTES + snapshot_bytes(&dir.join(LOG_DIR));
    tracing::info!(error = %cause, "the start fails");
    ServeError::Full { dir: dir.display().to_string(), free_bytes, needed_bytes }
}

fn is_of_files(error: &GroupError) -> bool {
    use rusqlite::ErrorCode::{CannotOpen, SystemIoFailure};
    let code = match error {
        GroupError::File { .. } | GroupError::Db(DbError::Io { .. }) => return true,
        GroupError::Db(DbError::Sqlite { source, .. }) | GroupError::Sql(source) => source.sqlite_error_code(),
        _ => None,
    };
    matches!(code, Some(CannotOpen | SystemIoFailure))
}

fn free_bytes(dir: &Path) -> Option<u64> {
    Some(RealDisk::open(dir).ok()?.space().ok()?.free_bytes)
}

/// A database that has to be rebuilt is as long as the snapshot.
fn snapshot_bytes(log: &Path) -> u64 {
    let files = std::fs::read_dir(log).into_iter().flatten().flatten();
    let snapshots = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "snap"));
    snapshots.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}
