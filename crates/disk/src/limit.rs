//! A limit below the size of the file system ([`crate::RealDisk::with_limit`]).
//!
//! It works through [`crate::Disk::space`], which the segment store calls before every append. Used bytes are counted
//! from the files a few times a second. A burst may exceed the limit by what it writes between two counts; the store's
//! `reserve_bytes` covers that.

use crate::disk::Space;
use parking_lot::Mutex;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// A count is used for this long.
const COUNT_EVERY: Duration = Duration::from_millis(50);
/// The directories of a disk that hold data (docs/formats.md, section 1).
const DIRECTORIES: [&str; 2] = ["segments", "log"];

pub(crate) struct Limit {
    capacity_bytes: u64,
    counted: Mutex<Option<(Instant, u64)>>,
}

impl Limit {
    pub fn new(capacity_bytes: u64) -> Self {
        Limit { capacity_bytes, counted: Mutex::new(None) }
    }

    /// The part of `space` that the disk at `root` may use.
    pub fn apply(&self, root: &Path, space: Space) -> io::Result<Space> {
        let mut counted = self.counted.lock();
        let (_, used) = match *counted {
            Some(recent @ (when, _)) if when.elapsed() < COUNT_EVERY => recent,
            _ => {
                let used = count(root)?;
                *counted.insert((Instant::now(), used))
            }
        };
        Ok(Space {
            capacity_bytes: space.capacity_bytes.min(self.capacity_bytes),
            free_bytes: space.free_bytes.min(self.capacity_bytes.saturating_sub(used)),
            ..space
        })
    }
}

/// Bytes of the files that hold data. A directory may not exist yet; compaction may remove a file meanwhile.
fn count(root: &Path) -> io::Result<u64> {
    let found = |error: &io::Error| error.kind() != io::ErrorKind::NotFound;
    let mut bytes = 0;
    for directory in DIRECTORIES {
        let files = match fs::read_dir(root.join(directory)) {
            Err(error) if !found(&error) => continue,
            files => files?,
        };
        for file in files {
            match file?.metadata() {
                Err(error) if !found(&error) => {}
                meta => bytes += meta?.len(),
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use crate::{Disk, OpenMode, RealDisk};

    #[test]
    fn what_is_used_counts_against_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path()).unwrap().with_limit(1000);
        assert_eq!(disk.space().unwrap().free_bytes, 1000, "no directory holds data yet");
        disk.create_dir("segments").unwrap();
        disk.open("segments/1.seg", OpenMode::Create).unwrap().write_at(0, &[1; 300]).unwrap();
        let disk = disk.with_limit(1000);
        let space = disk.space().unwrap();
        assert_eq!((space.capacity_bytes, space.free_bytes), (1000, 700));
        assert_eq!(disk.with_limit(100).space().unwrap().free_bytes, 0);
    }
}
