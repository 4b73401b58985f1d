//! Files that a server makes before it is known whether it starts.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that this process made, or none; a drop removes it.
#[derive(Default)]
pub struct Made(Option<PathBuf>);

impl Made {
    /// Makes an empty file, unless something is there.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path) -> io::Result<Made> {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => Ok(Made(Some(path.into()))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Made(None)),
            Err(error) => Err(error),
        }
    }

    /// Leaves the file where it is.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = self.0.take().map(std::fs::remove_file);
    }
}
