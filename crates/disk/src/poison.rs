//! A failed sync is never retried: the kernel has marked the pages clean, so a second sync would succeed without
//! writing them. The whole disk rejects writes from then on. So does a disk whose directory is gone: no restart would
//! find what is written there.

use std::sync::OnceLock;

use crate::DiskError;

#[derive(Debug, Default)]
pub(crate) struct Poison(OnceLock<Cause>);

#[derive(Debug)]
enum Cause {
    /// The sync of this file or directory failed.
    Sync(String),
    /// The directory of this disk is gone.
    Gone(String),
}

impl Poison {
    /// Remembers the first sync that failed.
    pub(crate) fn set(&self, path: &str) {
        let _ = self.0.set(Cause::Sync(path.to_owned()));
    }

    /// Remembers that the directory is gone; returns the error.
    pub(crate) fn set_gone(&self, disk: String) -> DiskError {
        let _ = self.0.set(Cause::Gone(disk.clone()));
        DiskError::Gone { disk }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns an error if a sync has failed, or the directory is gone.
    pub(crate) fn check(&self) -> Result<(), DiskError> {
        match self.0.get() {
            None => Ok(()),
            Some(Cause::Sync(path)) => Err(DiskError::Poisoned { path: path.clone() }),
            Some(Cause::Gone(disk)) => Err(DiskError::Gone { disk: disk.clone() }),
        }
    }
}
