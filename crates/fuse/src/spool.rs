//! The directory of a mount's spool ([`tessera_mount::spool`]): made, checked and locked before the mount begins.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tessera_disk::RealDisk;
use thiserror::Error;

/// Where a mount spools, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolOptions {
    /// The directory; created if missing.
    pub dir: PathBuf,
    /// Limit of the bytes of all files in the spool.
    pub limit_bytes: u64,
}

/// Why there is no spool.
#[derive(Debug, Error)]
pub enum SpoolError {
    /// The system refuses.
    #[error("spool {dir}: {error}")]
    Io {
        /// The spool.
        dir: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The spool would be inside the mount.
    #[error("spool {dir} is in the mount itself; give a directory on a local disk")]
    InMount {
        /// The spool.
        dir: PathBuf,
    },
    /// Other users may read it.
    #[error(
        "spool {dir} is not this user's alone (owner {uid}, mode {mode:o}); it holds files of all users: chown it, and chmod 700"
    )]
    NotPrivate {
        /// The spool.
        dir: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: u32,
    },
    /// Another mount uses it.
    #[error("spool {dir} is another mount's; give each mount its own")]
    InUse {
        /// The spool.
        dir: PathBuf,
    },
}

/// A spool's directory. No other mount can use it while this value lives.
pub struct SpoolDirectory {
    /// The directory as a disk.
    pub disk: RealDisk,
    _lock: File,
}

impl SpoolDirectory {
    /// Opens the directory for a mount at `mount`.
    ///
    /// # Errors
    /// [`SpoolError`].
    pub fn open(options: &SpoolOptions, mount: &Path) -> Result<SpoolDirectory, SpoolError> {
        let failed = |error| SpoolError::Io { dir: options.dir.clone(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(&options.dir).map_err(failed)?;
        let dir = options.dir.canonicalize().map_err(failed)?;
        if dir.starts_with(mount) {
            return Err(SpoolError::InMount { dir });
        }
        let meta = dir.metadata().map_err(failed)?;
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            return Err(SpoolError::NotPrivate { dir, uid: meta.uid(), mode: meta.mode() & 0o7777 });
        }
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock")).map_err(failed)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SpoolError::InUse { dir }),
            done => done.map_err(|error| failed(error.into()))?,
        }
        let disk = RealDisk::open(&dir).map_err(|error| failed(io::Error::other(error)))?;
        Ok(SpoolDirectory { disk, _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory that cannot be used is refused, with the way out, and left as it is (P14).
    #[test]
    fn a_spool_is_one_mounts_own_private_directory_elsewhere() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let options = |name: &str| SpoolOptions { dir: place.join(name), limit_bytes: 1000 };
        let open = |name: &str| SpoolDirectory::open(&options(name), &place.join("mnt"));
        let first = open("a/b").unwrap();
        assert_eq!(place.join("a/b").metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(open("a/b"), Err(SpoolError::InUse { .. })));
        drop(first);
        open("a/b").unwrap();
        std::fs::create_dir(place.join("mnt")).unwrap();
        assert!(matches!(open("mnt/x"), Err(SpoolError::InMount { .. })));
        std::fs::create_dir(place.join("open")).unwrap();
        std::fs::set_permissions(place.join("open"), PermissionsExt::from_mode(0o750)).unwrap();
        let said = open("open").err().unwrap().to_string();
        assert!(said.contains("750") && said.contains("chmod 700"), "{said}");
        std::fs::write(place.join("file"), b"").unwrap();
        assert!(matches!(open("file"), Err(SpoolError::Io { .. })));
    }
}
