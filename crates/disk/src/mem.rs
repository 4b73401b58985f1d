//! [`MemDisk`]: files in memory; the only failure is a full disk. For tests and benchmarks. For crashes and faults use
//! [`crate::SimDisk`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::disk::{Disk, DiskFile, DiskLock, OpenMode, Space};
use crate::error::DiskError;
use crate::path;

/// A disk in memory. Clones share its content.
#[derive(Clone)]
pub struct MemDisk {
    shared: Arc<Shared>,
}

struct Shared {
    names: Mutex<Names>,
    capacity_bytes: u64,
    used_bytes: AtomicU64,
    locked: AtomicBool,
}

#[derive(Default)]
struct Names {
    files: BTreeMap<String, Arc<Content>>,
    dirs: BTreeSet<String>,
}

struct Content {
    bytes: RwLock<Vec<u8>>,
    shared: std::sync::Weak<Shared>,
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.used_bytes.fetch_sub(self.bytes.get_mut().len() as u64, Ordering::Relaxed);
        }
    }
}

struct MemFile {
    path: String,
    content: Arc<Content>,
    shared: Arc<Shared>,
}

struct Unlock(Arc<Shared>);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

impl Default for MemDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemDisk {
    /// An empty disk with unlimited capacity.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(u64::MAX / 2)
    }

    /// An empty disk of `capacity_bytes`.
    #[must_use]
    pub fn with_capacity(capacity_bytes: u64) -> Self {
        MemDisk {
            shared: Arc::new(Shared {
                names: Mutex::default(),
                capacity_bytes,
                used_bytes: AtomicU64::new(0),
                locked: AtomicBool::new(false),
            }),
        }
    }
}

impl Shared {
    /// Reserves `more` bytes of the capacity, or returns [`DiskError::NoSpace`].
    fn reserve(&self, path: &str, offset: u64, more: u64) -> Result<(), DiskError> {
        let taken = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|&sum| sum <= self.capacity_bytes)
        });
        match taken {
            Ok(_) => Ok(()),
            Err(_) => Err(DiskError::NoSpace { path: path.into(), offset, len: more }),
        }
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        path::check(path)?;
        let mut names = self.shared.names.lock();
        let content = match (names.files.get(path), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(DiskError::Exists { path: path.into() }),
            (Some(content), _) => content.clone(),
            (None, OpenMode::Existing) => return Err(DiskError::NotFound { path: path.into() }),
            (None, _) => {
                let dir = path::parent(path);
                if !dir.is_empty() && !names.dirs.contains(dir) {
                    return Err(DiskError::NotFound { path: path.into() });
                }
                let content = Arc::new(Content { bytes: RwLock::default(), shared: Arc::downgrade(&self.shared) });
                names.files.insert(path.into(), content.clone());
                content
            }
        };
        Ok(Arc::new(MemFile { path: path.into(), content, shared: self.shared.clone() }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        path::check_dir(dir)?;
        let names = self.shared.names.lock();
        if !dir.is_empty() && !names.dirs.contains(dir) {
            return Err(DiskError::NotFound { path: dir.into() });
        }
        Ok(names.files.keys().filter_map(|p| path::name_in(dir, p)).map(str::to_owned).collect())
    }

    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        path::check_dir(dir)?;
        let names = self.shared.names.lock();
        Ok(names.dirs.iter().filter_map(|p| path::name_in(dir, p)).map(str::to_owned).collect())
    }

    fn create_dir(&self, dir: &str) -> Result<(), DiskError> {
        path::check(dir)?;
        let mut names = self.shared.names.lock();
        let mut at = dir;
        while !at.is_empty() {
            names.dirs.insert(at.into());
            at = path::parent(at);
        }
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        path::check(path)?;
        match self.shared.names.lock().files.remove(path) {
            Some(_) => Ok(()),
            None => Err(DiskError::NotFound { path: path.into() }),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        path::check(from)?;
        path::check(to)?;
        let mut names = self.shared.names.lock();
        match names.files.remove(from) {
            Some(content) => {
                names.files.insert(to.into(), content);
                Ok(())
            }
            None => Err(DiskError::NotFound { path: from.into() }),
        }
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        path::check_dir(dir)
    }

    fn space(&self) -> Result<Space, DiskError> {
        let used = self.shared.used_bytes.load(Ordering::Relaxed);
        assert!(used <= self.shared.capacity_bytes, "{used} bytes on a disk of {}", self.shared.capacity_bytes);
        Ok(Space { capacity_bytes: self.shared.capacity_bytes, free_bytes: self.shared.capacity_bytes - used })
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        if self.shared.locked.swap(true, Ordering::Acquire) {
            return Err(DiskError::Locked { disk: self.describe() });
        }
        Ok(DiskLock::new(Unlock(self.shared.clone())))
    }

    fn describe(&self) -> String {
        "memory disk".into()
    }

    fn is_poisoned(&self) -> bool {
        false
    }
}

impl DiskFile for MemFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let bytes = self.content.bytes.read();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let got = (bytes.len() - start).min(buf.len());
        if got < buf.len() {
            return Err(DiskError::ShortRead {
                path: self.path.clone(),
                offset,
                expected: buf.len() as u64,
                got: got as u64,
            });
        }
        buf.copy_from_slice(&bytes[start..start + got]);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let mut bytes = self.content.bytes.write();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(len);
        self.shared.reserve(&self.path, offset, end.saturating_sub(bytes.len()) as u64)?;
        if bytes.len() < start {
            bytes.resize(start, 0);
        }
        let mut at = start;
        for slice in slices {
            let overwritten = slice.len().min(bytes.len() - at);
            bytes[at..at + overwritten].copy_from_slice(&slice[..overwritten]);
            bytes.extend_from_slice(&slice[overwritten..]);
            at += slice.len();
        }
        assert!(at == end && bytes.len() >= end, "{}: wrote up to {at}, not {end}", self.path);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.content.bytes.read().len() as u64)
    }

    fn truncate(&self, len: u64) -> Result<(), DiskError> {
        let mut bytes = self.content.bytes.write();
        let old = bytes.len() as u64;
        self.shared.reserve(&self.path, len, len.saturating_sub(old))?;
        bytes.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        self.shared.used_bytes.fetch_sub(old.saturating_sub(len), Ordering::Relaxed);
        Ok(())
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn path(&self) -> &str {
        &self.path
    }
}
