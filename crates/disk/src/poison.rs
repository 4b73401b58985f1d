//! A failed sync is never retried: the kernel has marked the pages clean, so a second sync would succeed without
//! writing them. The whole disk rejects writes from then on.

use std::sync::OnceLock;

use crate::DiskError;

#[derive(Debug, Default)]
pub(crate) struct Poison(OnceLock<String>);

impl Poison {
    /// Remembers the first sync that failed.
    pub(crate) fn set(&self, path: &str) {
        let _ = self.0.set(path.to_owned());
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns an error if a sync has failed.
    pub(crate) fn check(&self) -> Result<(), DiskError> {
        match self.0.get() {
            None => Ok(()),
            Some(path) => Err(DiskError::Poisoned { path: path.clone() }),
        }
    }
}
