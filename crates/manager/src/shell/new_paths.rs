//! What a start makes in a new directory, and removes again if it fails.

use crate::db::{DbError, DirLock, LOCK_NAME, LOG_DIR};
use std::path::{Path, PathBuf};

/// The lock file, the directory of the log, and the directory with those above it, as far as they did not exist before; the inner ones
/// first. They are removed when this is dropped, unless they hold something by then.
///
/// Must be dropped before the lock: another process could lock the file that is removed.
pub(super) struct NewPaths(Vec<PathBuf>);

impl NewPaths {
    pub(super) fn before_locking(dir: &Path) -> NewPaths {
        let lock = dir.join(LOCK_NAME);
        let log = Some(dir.join(LOG_DIR)).filter(|log| !log.exists());
        let above = lock.ancestors().take_while(|path| !path.exists()).map(Path::to_path_buf);
        NewPaths(log.into_iter().chain(above).collect())
    }

    /// Goes with the lock, which was taken, or not, after these paths were noted. The lock is dropped last.
    pub(super) fn locked(self, lock: Result<DirLock, DbError>) -> Result<(DirLock, NewPaths), DbError> {
        match lock {
            Ok(lock) => Ok((lock, self)),
            // Another process has made what is there by now.
            Err(error @ DbError::Locked(_)) => {
                self.keep();
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The start has not failed.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewPaths {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;

    /// P11: two processes start in a new directory at once. The one that finds it locked removes nothing: a third could lock a new file.
    #[test]
    fn a_start_that_finds_the_directory_locked_removes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new");
        let second = NewPaths::before_locking(&dir);
        let _first = Db::lock(&dir).unwrap();
        std::fs::create_dir(dir.join(LOG_DIR)).unwrap();
        assert!(second.locked(Db::lock(&dir)).is_err());
        assert!(Db::lock(&dir).is_err(), "the first one holds the lock");
        assert!(dir.join(LOG_DIR).exists());
    }
}
