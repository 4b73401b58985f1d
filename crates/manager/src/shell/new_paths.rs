//! What a start makes in a new directory, and removes again if it fails.

use crate::db::{LOCK_NAME, LOG_DIR};
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
