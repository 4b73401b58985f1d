//! The database's files: what must hold before SQLite opens them, and how a new database gets its name.

use super::error::{describe, io};
use super::schema::APPLICATION_ID;
use super::{DbError, FILE_NAME, LOCK_NAME, LOG_DIR, RESTORING_NAME};
use std::path::{Path, PathBuf};
use tessera_pagesum::page::{self, Format};
use tessera_pagesum::{Damage, log_check, unsynced};

/// Bytes of the header of an SQLite database, and where it has the application id.
const HEADER_BYTES: usize = 100;
const APPLICATION_ID_AT: usize = 68;

/// The path of the database in `dir`.
///
/// # Errors
/// There is none; a write-ahead log without its database is refused by name.
pub(super) fn find(dir: &Path) -> Result<PathBuf, DbError> {
    let path = dir.join(FILE_NAME);
    match path.exists() {
        true => Ok(path),
        false => {
            refuse_log_alone(&path)?;
            Err(DbError::Absent(path.display().to_string()))
        }
    }
}

fn log_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", path.display()))
}

/// Refuses a write-ahead log whose database is gone: SQLite would take what it finds there for a database.
pub(super) fn refuse_log_alone(path: &Path) -> Result<(), DbError> {
    let log = log_of(path);
    match log.exists() && !path.exists() {
        true => Err(DbError::LogAlone(log.display().to_string())),
        false => Ok(()),
    }
}

/// Checks the files of a database before SQLite opens them; changes nothing but after a failed sync.
pub(super) fn check(path: &Path) -> Result<(), DbError> {
    let name = || path.display().to_string();
    if unsynced::is_marked(path) {
        tracing::warn!(database = name(), "a sync failed: reading the database from the disk itself");
        unsynced::reread(path).map_err(|source| DbError::Unsynced { path: name(), source })?;
    }
    let mut header = [0; HEADER_BYTES];
    let read = std::fs::File::open(path).and_then(|mut file| fill(&mut file, &mut header)).map_err(io(path))?;
    let header = &header[..read];
    match page::format_of(header) {
        Format::Summed => {}
        Format::Unsummed if header[APPLICATION_ID_AT..].starts_with(&(APPLICATION_ID as u32).to_be_bytes()) => {
            return Err(DbError::NoSums(name()));
        }
        Format::Unsummed | Format::Foreign => return Err(DbError::NotManagerDb(name())),
    }
    match log_check::first_damaged_frame(path).map_err(io(path))? {
        Some(number) => {
            let file = log_of(path).display().to_string();
            Err(DbError::Damaged(describe(&Damage::Page { file, number })))
        }
        None => Ok(()),
    }
}

fn fill(from: &mut impl std::io::Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

pub(super) fn make_directory(dir: &Path) -> Result<(), DbError> {
    match tessera_disk::create_dir_durably(dir) {
        Err(_) if dir.exists() && !dir.is_dir() => Err(DbError::NoDirectory(dir.display().to_string())),
        made => made.map_err(io(dir)),
    }
}

/// Rejects a directory with other files: it is probably a mistake (P14).
pub(super) fn refuse_foreign(dir: &Path) -> Result<(), DbError> {
    for entry in std::fs::read_dir(dir).map_err(io(dir))? {
        let name = entry.map_err(io(dir))?.file_name().to_string_lossy().into_owned();
        let is_own =
            name == LOCK_NAME || name == LOG_DIR || [FILE_NAME, RESTORING_NAME].iter().any(|own| name.starts_with(own));
        if !is_own && name != "lost+found" {
            return Err(DbError::Foreign { dir: dir.display().to_string(), name });
        }
    }
    Ok(())
}

pub(super) fn lock(dir: &Path) -> Result<std::fs::File, DbError> {
    let path = dir.join(LOCK_NAME);
    loop {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path).map_err(io(&path))?;
        match file.try_lock() {
            Ok(()) if is_at(&file, &path).map_err(io(&path))? => return Ok(file),
            // Whoever had locked it has removed it: the next process locks another file.
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(DbError::Locked(path.display().to_string())),
            Err(std::fs::TryLockError::Error(source)) => return Err(io(&path)(source)),
        }
    }
}

/// Whether the path still leads to the open file.
fn is_at(file: &std::fs::File, path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let id = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    match std::fs::metadata(path) {
        Ok(found) => Ok(id(found) == id(file.metadata()?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a database and the files that SQLite keeps next to it, the write-ahead log first: what a crash leaves is a whole database.
pub(super) fn remove_database(path: &Path) -> Result<(), DbError> {
    for suffix in ["-wal", "-shm", "-journal", "", "-damaged"] {
        let file = PathBuf::from(format!("{}{suffix}", path.display()));
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(&file)(e)),
            _ => {}
        }
    }
    Ok(())
}

/// Syncs `building`, renames it to `path` and syncs the directory.
pub(super) fn publish(dir: &Path, building: &Path, path: &Path) -> Result<(), DbError> {
    std::fs::File::open(building).and_then(|f| f.sync_all()).map_err(io(building))?;
    std::fs::rename(building, path).map_err(io(path))?;
    std::fs::File::open(dir).and_then(|d| d.sync_all()).map_err(io(dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// P11: a start that fails removes the lock file that it has made. Whoever has opened that file before locks nothing with it.
    #[test]
    fn a_lock_file_that_is_removed_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let is_held = AtomicBool::new(false);
        let contend = || {
            for _ in 0..20_000 {
                let Ok(_lock) = lock(dir.path()) else { continue };
                assert!(!is_held.swap(true, Ordering::SeqCst), "two hold the lock");
                is_held.store(false, Ordering::SeqCst);
                std::fs::remove_file(dir.path().join(LOCK_NAME)).unwrap();
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(contend)));
    }
}
