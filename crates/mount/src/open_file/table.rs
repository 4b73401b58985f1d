//! The table of open files.

use super::{OpenFile, State};
use crate::backend::Backend;
use crate::mount::Mount;
use crate::spool::log::Log;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Open files by inode.
pub struct Files<B: Backend>(Mutex<BTreeMap<u64, Slot<B>>>);

struct Slot<B: Backend> {
    file: Arc<OpenFile<B>>,
    handles: usize,
    writers: usize,
}

impl<B: Backend> Default for Files<B> {
    fn default() -> Files<B> {
        Files(Mutex::default())
    }
}

impl<B: Backend> Files<B> {
    /// Whether a handle of the file is open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// Whether a handle is open for writing.
    pub fn has_writers(&self, ino: u64) -> bool {
        self.0.lock().get(&ino).is_some_and(|slot| slot.writers > 0)
    }

    /// Whether exactly one handle is open.
    pub fn is_open_once(&self, ino: u64) -> bool {
        self.0.lock().get(&ino).is_some_and(|slot| slot.handles == 1)
    }

    /// Whether no file is open.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Number of open files, and number of those with uncommitted changes.
    pub async fn count(&self) -> (u64, u64) {
        let changed = self.filter(async |file| file.size().await.1).await;
        (self.0.lock().len() as u64, changed.len() as u64)
    }

    /// The file, if a handle of it is open.
    pub fn get(&self, ino: u64) -> Option<Arc<OpenFile<B>>> {
        self.0.lock().get(&ino).map(|slot| slot.file.clone())
    }

    /// Adds a handle. `size_bytes`: the file's length, used if no handle is open yet.
    pub fn open(&self, ino: u64, size_bytes: u64, writes: bool, now_ns: i64) -> Arc<OpenFile<B>> {
        let mut files = self.0.lock();
        let slot = files.entry(ino).or_insert_with(|| Slot {
            file: Arc::new(OpenFile::new(State::new(ino, size_bytes))),
            handles: 0,
            writers: 0,
        });
        slot.handles += 1;
        slot.writers += usize::from(writes);
        if writes {
            slot.file.meter.lock().opened(now_ns);
        }
        slot.file.clone()
    }

    /// Drops a handle. The last handle, and the last one that writes, commits what is left.
    pub async fn release(&self, mount: &Mount<B>, file: &OpenFile<B>, writes: bool) {
        let leaves = |slot: &mut Slot<B>| {
            slot.handles -= 1;
            slot.writers -= usize::from(writes);
            slot.handles == 0 || (writes && slot.writers == 0)
        };
        // The handle is counted off before the commit: if two close at once, exactly one is the last.
        if !self.0.lock().get_mut(&file.ino).is_some_and(leaves) {
            return;
        }
        // Flush already reported failures to the program that closed. A program that opens the file meanwhile shares
        // and keeps this `OpenFile`.
        let _ = file.close_session(mount).await;
        if self.remove_unused(file.ino) {
            mount.namespace.closed(file.ino).await;
        }
    }

    /// Adds the spool's handle: a file that waits in the spool stays open.
    pub(super) fn hold_spooled(&self, ino: u64) {
        if let Some(slot) = self.0.lock().get_mut(&ino) {
            slot.handles += 1;
        }
    }

    /// Drops the spool's handle.
    pub(super) fn release_spooled(&self, ino: u64) {
        if let Some(slot) = self.0.lock().get_mut(&ino) {
            slot.handles -= 1;
        }
        self.remove_unused(ino);
    }

    /// Removes a file without handles. Returns whether none is left, also if the file was removed before.
    fn remove_unused(&self, ino: u64) -> bool {
        let mut files = self.0.lock();
        if files.get(&ino).is_some_and(|slot| slot.handles == 0) {
            files.remove(&ino);
        }
        !files.contains_key(&ino)
    }

    /// Opens a file whose log was found at the start of the mount. The spool holds the handle.
    pub fn adopt(&self, ino: u64, log: Log) -> Arc<OpenFile<B>> {
        let file = Arc::new(OpenFile::with_log(ino, log));
        self.0.lock().insert(ino, Slot { file: file.clone(), handles: 1, writers: 0 });
        file
    }

    /// Files that wait in the spool.
    pub async fn spooled(&self) -> Vec<Arc<OpenFile<B>>> {
        self.filter(async |file| file.state.lock().await.waits_in_spool()).await
    }

    /// All open files that are not safe in the spool.
    pub async fn unsafe_now(&self) -> Vec<Arc<OpenFile<B>>> {
        self.filter(async |file| !file.is_safe().await).await
    }

    async fn filter(&self, wanted: impl AsyncFn(&OpenFile<B>) -> bool) -> Vec<Arc<OpenFile<B>>> {
        let all: Vec<_> = self.0.lock().values().map(|slot| slot.file.clone()).collect();
        let mut found = Vec::new();
        for file in all {
            if wanted(&file).await {
                found.push(file);
            }
        }
        found
    }
}
