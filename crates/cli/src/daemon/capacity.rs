//! A disk that may use only a given number of bytes of its file system (`--capacity`).
//!
//! The limit works through [`Disk::space`], which the segment store calls before every append. Used bytes are counted
//! from the files a few times a second. A burst may exceed the limit by what it writes between two counts; the store's
//! `reserve_bytes` covers that.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_disk::{Disk, DiskError, DiskFile, DiskLock, OpenMode, Space};

/// A count is used for this long.
const COUNT_EVERY: Duration = Duration::from_millis(50);
/// The directories of a disk that hold data (docs/formats.md, section 1).
const DIRECTORIES: [&str; 2] = ["segments", "log"];

/// A disk with a limit.
pub struct CappedDisk {
    inner: Arc<dyn Disk>,
    capacity_bytes: u64,
    used: Mutex<Option<(Instant, u64)>>,
}

impl CappedDisk {
    /// `inner`, using at most `capacity_bytes`.
    pub fn new(inner: Arc<dyn Disk>, capacity_bytes: u64) -> Self {
        CappedDisk { inner, capacity_bytes, used: Mutex::new(None) }
    }

    fn used(&self) -> Result<u64, DiskError> {
        let mut used = self.used.lock();
        match *used {
            Some((when, bytes)) if when.elapsed() < COUNT_EVERY => Ok(bytes),
            _ => {
                let bytes = self.count()?;
                *used = Some((Instant::now(), bytes));
                Ok(bytes)
            }
        }
    }

    fn count(&self) -> Result<u64, DiskError> {
        let mut bytes = 0;
        for directory in DIRECTORIES {
            let names = match self.inner.list(directory) {
                Err(DiskError::NotFound { .. }) => continue,
                names => names?,
            };
            for name in names {
                match self.inner.open(&format!("{directory}/{name}"), OpenMode::Existing) {
                    Ok(file) => bytes += file.len()?,
                    // Compaction removed the file meanwhile.
                    Err(DiskError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(bytes)
    }
}

impl Disk for CappedDisk {
    fn space(&self) -> Result<Space, DiskError> {
        let space = self.inner.space()?;
        let left = self.capacity_bytes.saturating_sub(self.used()?);
        Ok(Space {
            capacity_bytes: space.capacity_bytes.min(self.capacity_bytes),
            free_bytes: space.free_bytes.min(left),
        })
    }

    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.inner.open(path, mode)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.inner.list(dir)
    }

    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.inner.list_dirs(dir)
    }

    fn create_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.inner.create_dir(dir)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.inner.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.rename(from, to)
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.inner.sync_dir(dir)
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.inner.lock()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_disk::SimDisk;

    #[test]
    fn what_is_used_counts_against_the_limit() {
        let inner: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
        inner.create_dir("segments").unwrap();
        inner.open("segments/1.seg", OpenMode::Create).unwrap().write_at(0, &[1; 300]).unwrap();
        let disk = CappedDisk::new(inner.clone(), 1000);
        let space = disk.space().unwrap();
        assert_eq!((space.capacity_bytes, space.free_bytes), (1000, 700));
        let full = CappedDisk::new(inner, 100);
        assert_eq!(full.space().unwrap().free_bytes, 0);
    }
}
