//! [`RealDisk`]: a directory of the operating system.
//!
//! After a failed sync the kernel keeps the lost bytes in its cache, marked clean. A restarted process would read and
//! trust them, and lose them with the next power failure (Rebello et al., "Can Applications Recover from fsync
//! Failures?", USENIX ATC 2020). So a failed sync creates a file `poisoned`. The file need not be durable: it matters
//! only while that cache lives. The next opening of the directory drops the cache before it reads the first byte.
//!
//! Open files outlive their names: in a directory that was moved, deleted or unmounted, writes and syncs would succeed,
//! and the next start would find nothing of them. So a sync succeeds only if the path still leads to the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, FlockOperation};

use crate::disk::{Disk, DiskFile, DiskLock, OpenMode, Space};
use crate::error::{DiskError, DiskOp};
use crate::limit::Limit;
use crate::path;
use crate::poison::Poison;

/// Created by a failed sync; removed once the disk has been reopened.
const POISONED_FILE: &str = "poisoned";
/// The file locked with `flock` while a daemon serves the disk.
const LOCK_FILE: &str = "lock";
/// Maximum number of slices that Linux takes in one `pwritev` (`IOV_MAX`).
const SLICES_MAX: usize = 1024;
const _: () = assert!(SLICES_MAX > 0 && SLICES_MAX <= 1024, "IOV_MAX of Linux");

/// A disk that is a directory. Cheap to clone; a failed sync poisons all clones.
#[derive(Clone)]
pub struct RealDisk {
    shared: Arc<Shared>,
    limit: Option<Arc<Limit>>,
}

struct Shared {
    root: PathBuf,
    /// The directory to which `root` led. Open, so that no other directory gets its inode number.
    directory: File,
    directory_id: FileId,
    /// The lock file, once locked.
    lock_id: OnceLock<FileId>,
    poison: Poison,
}

/// Device and inode number.
type FileId = (u64, u64);

struct RealFile {
    path: String,
    file: File,
    shared: Arc<Shared>,
}

impl RealDisk {
    /// Opens an existing directory as a disk.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] if the path does not exist, [`DiskError::Io`] if it is not a directory.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, DiskError> {
        let root = root.as_ref().to_path_buf();
        let shown = root.display().to_string();
        let meta = fs::metadata(&root).map_err(|e| DiskError::io(&shown, DiskOp::Open, 0, e))?;
        if !meta.is_dir() {
            let source = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(DiskError::io(&shown, DiskOp::Open, 0, source));
        }
        let (directory, directory_id) = File::open(&root)
            .and_then(|directory| directory.metadata().map(|meta| (directory, file_id(&meta))))
            .map_err(|e| DiskError::io(&shown, DiskOp::Open, 0, e))?;
        let (lock_id, poison) = (OnceLock::new(), Poison::default());
        let shared = Shared { root, directory, directory_id, lock_id, poison };
        let disk = RealDisk { shared: Arc::new(shared), limit: None };
        disk.forget_lost_pages()?;
        Ok(disk)
    }

    /// The same disk, using at most `capacity_bytes` of its file system.
    #[must_use]
    pub fn with_limit(self, capacity_bytes: u64) -> Self {
        RealDisk { limit: Some(Arc::new(Limit::new(capacity_bytes))), ..self }
    }

    /// The same disk, whose lock file the caller holds: once another file or none is at its path, the disk is gone.
    ///
    /// # Errors
    /// The system's.
    pub fn with_lock(self, held: &File) -> Result<Self, DiskError> {
        let meta = held.metadata().map_err(|e| DiskError::io(LOCK_FILE, DiskOp::Lock, 0, e))?;
        self.shared.lock_id.get_or_init(|| file_id(&meta));
        Ok(self)
    }

    /// Creates the directory if it is missing, then opens it.
    ///
    /// # Errors
    /// As for [`RealDisk::open`], or the system's.
    pub fn create(root: impl AsRef<Path>) -> Result<Self, DiskError> {
        let shown = root.as_ref().display().to_string();
        create_dir_durably(root.as_ref()).map_err(|e| DiskError::io(&shown, DiskOp::CreateDir, 0, e))?;
        Self::open(root)
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// After a failed sync of an earlier process, drops all cached pages, so that reads return what the medium holds.
    fn forget_lost_pages(&self) -> Result<(), DiskError> {
        let marker = self.shared.root.join(POISONED_FILE);
        if !marker.exists() {
            return Ok(());
        }
        forget_dir(&self.shared.root).map_err(|e| DiskError::io("", DiskOp::Read, 0, e))?;
        fs::remove_file(&marker).map_err(|e| DiskError::io(POISONED_FILE, DiskOp::Remove, 0, e))
    }
}

/// Creates a directory and what is missing above it; returns once their names are synced, so that a power failure does not
/// take a directory in which files were synced.
///
/// # Errors
/// The system's.
pub fn create_dir_durably(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if dir.is_dir() {
        // A process that stopped before the sync may have created it.
        return File::open(parent).map_or(Ok(()), |parent| parent.sync_all());
    }
    if parent != dir {
        create_dir_durably(parent)?;
    }
    match fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists || !dir.is_dir() => Err(e),
        _ => File::open(parent)?.sync_all(),
    }
}

fn forget_dir(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            forget_dir(&entry.path())?;
        } else if kind.is_file() {
            rustix::fs::fadvise(&File::open(entry.path())?, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

fn file_id(meta: &fs::Metadata) -> FileId {
    (meta.dev(), meta.ino())
}

/// Whether `path` certainly leads to no file or to another one. A path that cannot be followed, e.g. for want of the
/// right, may lead to it.
fn leads_elsewhere(path: &Path, held: FileId) -> bool {
    match fs::metadata(path) {
        Ok(meta) => file_id(&meta) != held,
        Err(e) => matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

impl Shared {
    /// Returns an error if the disk takes no more writes, or the directory is gone.
    fn check(&self) -> Result<(), DiskError> {
        self.poison.check()?;
        self.check_directory()
    }

    /// Poisons the disk if its path leads to the directory no more. In a directory that was emptied the lock is missing.
    fn check_directory(&self) -> Result<(), DiskError> {
        let lock_is_gone = || self.lock_id.get().is_some_and(|held| leads_elsewhere(&self.at(LOCK_FILE), *held));
        if leads_elsewhere(&self.root, self.directory_id) || lock_is_gone() {
            return Err(self.poison.set_gone(self.root.display().to_string()));
        }
        Ok(())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Records a failed sync, in memory and for the next opening.
    fn poison(&self, path: &str) {
        self.poison.set(path);
        let _ = fs::write(self.root.join(POISONED_FILE), path);
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        path::check(path)?;
        if mode != OpenMode::Existing {
            self.shared.check()?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match mode {
            OpenMode::Existing => &mut options,
            OpenMode::Create => options.create(true),
            OpenMode::CreateNew => options.create_new(true),
        };
        let file = options.open(self.shared.at(path)).map_err(|e| DiskError::io(path, DiskOp::Open, 0, e))?;
        Ok(Arc::new(RealFile { path: path.into(), file, shared: self.shared.clone() }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.list_kind(dir, |kind| kind.is_file())
    }

    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.list_kind(dir, |kind| kind.is_dir())
    }

    fn create_dir(&self, dir: &str) -> Result<(), DiskError> {
        path::check(dir)?;
        self.shared.check()?;
        let full = self.shared.at(dir);
        if full.is_dir() {
            return Ok(());
        }
        let parent = path::parent(dir);
        if !parent.is_empty() {
            self.create_dir(parent)?;
        }
        match fs::create_dir(&full) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(DiskError::io(dir, DiskOp::CreateDir, 0, e)),
            _ => self.sync_dir(parent),
        }
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        path::check(path)?;
        self.shared.check()?;
        fs::remove_file(self.shared.at(path)).map_err(|e| DiskError::io(path, DiskOp::Remove, 0, e))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        path::check(from)?;
        path::check(to)?;
        self.shared.check()?;
        fs::rename(self.shared.at(from), self.shared.at(to)).map_err(|e| DiskError::io(from, DiskOp::Rename, 0, e))
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        path::check_dir(dir)?;
        self.shared.check()?;
        let handle = File::open(self.shared.at(dir)).map_err(|e| DiskError::io(dir, DiskOp::SyncDir, 0, e))?;
        handle.sync_all().map_err(|e| {
            self.shared.poison(dir);
            DiskError::io(dir, DiskOp::SyncDir, 0, e)
        })
    }

    fn space(&self) -> Result<Space, DiskError> {
        self.shared.check_directory()?;
        let failed = |e| DiskError::io("", DiskOp::Space, 0, e);
        let stat = rustix::fs::fstatvfs(&self.shared.directory).map_err(|e| failed(e.into()))?;
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        let capacity_bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
        let space = Space { capacity_bytes, free_bytes, writable_bytes: free_bytes };
        self.limit.as_ref().map_or(Ok(space), |limit| limit.apply(&self.shared.root, space).map_err(failed))
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.shared.at(LOCK_FILE))
            .map_err(|e| DiskError::io(LOCK_FILE, DiskOp::Lock, 0, e))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.clone().with_lock(&file)?;
                Ok(DiskLock::new(file))
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DiskError::Locked { disk: self.describe() }),
            Err(e) => Err(DiskError::io(LOCK_FILE, DiskOp::Lock, 0, e.into())),
        }
    }

    fn describe(&self) -> String {
        self.shared.root.display().to_string()
    }

    fn is_poisoned(&self) -> bool {
        self.shared.poison.is_set()
    }
}

impl RealDisk {
    fn list_kind(&self, dir: &str, wanted: impl Fn(&fs::FileType) -> bool) -> Result<Vec<String>, DiskError> {
        path::check_dir(dir)?;
        let failed = |e| DiskError::io(dir, DiskOp::List, 0, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(self.shared.at(dir)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if wanted(&entry.file_type().map_err(failed)?) {
                // Tessera creates no names that are not UTF-8. Such a name is listed, never opened.
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl RealFile {
    fn failed(&self, op: DiskOp, offset: u64, source: io::Error) -> DiskError {
        DiskError::io(&self.path, op, offset, source)
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let mut got = 0;
        while got < buf.len() {
            match self.file.read_at(&mut buf[got..], offset + got as u64) {
                Ok(0) => {
                    return Err(DiskError::ShortRead {
                        path: self.path.clone(),
                        offset,
                        expected: buf.len() as u64,
                        got: got as u64,
                    });
                }
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(DiskOp::Read, offset + got as u64, e)),
            }
        }
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.shared.poison.check()?;
        let total: u64 = slices.iter().map(|s| s.len() as u64).sum();
        let mut rest: Vec<IoSlice<'_>> = slices.iter().map(|s| IoSlice::new(s)).collect();
        let mut rest = rest.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0);
        let mut at = offset;
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(SLICES_MAX)];
            match rustix::io::pwritev(&self.file, some, at) {
                Ok(0) => return Err(self.failed(DiskOp::Write, at, io::ErrorKind::WriteZero.into())),
                Ok(n) => {
                    at += n as u64;
                    assert!(at <= offset + total, "{}: {at} is behind the end of the write", self.path);
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                    return Err(DiskError::NoSpace { path: self.path.clone(), offset, len: total });
                }
                Err(e) => return Err(self.failed(DiskOp::Write, at, e.into())),
            }
        }
        assert!(at == offset + total, "{}: wrote {} of {total} bytes", self.path, at - offset);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.shared.poison.check()?;
        self.file.sync_data().map_err(|e| {
            self.shared.poison(&self.path);
            self.failed(DiskOp::Sync, 0, e)
        })?;
        self.shared.check_directory()
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.file.metadata().map_err(|e| self.failed(DiskOp::Read, 0, e))?.len())
    }

    fn truncate(&self, len: u64) -> Result<(), DiskError> {
        self.shared.poison.check()?;
        self.file.set_len(len).map_err(|e| self.failed(DiskOp::Truncate, len, e))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn drop_cache(&self, offset: u64, len: u64) {
        let _ = rustix::fs::fadvise(&self.file, offset, std::num::NonZeroU64::new(len), Advice::DontNeed);
    }

    fn will_read(&self, offset: u64, len: u64) {
        let _ = rustix::fs::fadvise(&self.file, offset, std::num::NonZeroU64::new(len), Advice::WillNeed);
    }

    fn expect_random_reads(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::Random);
    }

    fn path(&self) -> &str {
        &self.path
    }
}
