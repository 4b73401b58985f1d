//! The table of open files.

use super::{OpenFile, State};
use crate::backend::Backend;
use crate::mount::Mount;
use crate::race::race;
use crate::spool::log::Log;
use crate::under_way::{Counted, UnderWay};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tessera_failpoint as failpoint;
use tokio::sync::Notify;

/// Longest wait for the kernel to release handles that programs have closed. A handle that looks closed may stay: a
/// program that shares it with another one has closed its own descriptor.
pub const RELEASE_WITHIN: Duration = Duration::from_millis(100);
/// The same for a removal: the kernel lets nobody else change the directory meanwhile, and takes a fraction of a millisecond as a rule.
pub const REMOVAL_WITHIN: Duration = Duration::from_millis(3);

/// Open files by inode.
pub struct Files<B: Backend> {
    slots: Mutex<BTreeMap<u64, Slot<B>>>,
    /// Requests that remove a name.
    removals: UnderWay,
    /// Requests that set a length.
    pub(super) cuts: UnderWay,
    /// A handle is open or gone.
    changed: Notify,
}

struct Slot<B: Backend> {
    file: Arc<OpenFile<B>>,
    handles: usize,
    writers: usize,
    /// Handles that the kernel does not have yet.
    opening: usize,
    /// Handles that programs have closed, and the kernel has not released.
    closed: usize,
    /// Those of them that write.
    closed_writers: usize,
    /// Handles of the spool.
    spooled: usize,
    /// Handles through which the kernel fills its pages.
    fillers: usize,
}

impl<B: Backend> Slot<B> {
    fn new(file: OpenFile<B>) -> Slot<B> {
        let (handles, writers, opening, closed, closed_writers, spooled, fillers) = Default::default();
        Slot { file: Arc::new(file), handles, writers, opening, closed, closed_writers, spooled, fillers }
    }

    /// Whether no program uses the file.
    fn is_idle(&self) -> bool {
        self.handles == self.opening + self.closed
    }
}

/// A handle is being opened until this is dropped.
pub struct Opening<'a, B: Backend>(&'a Files<B>, u64);

impl<B: Backend> Drop for Opening<'_, B> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.slots.lock().get_mut(&self.1) {
            slot.opening -= 1;
        }
        self.0.changed.notify_waiters();
    }
}

/// A name of the file is being removed until this is dropped. Until then a commit keeps a session open, as for a file without names.
pub struct Removal<'a, B: Backend>(&'a Files<B>, Counted<'a>);

impl<B: Backend> Removal<'_, B> {
    /// The file's last name may be gone: from now on it always has a session that keeps it, if it is open.
    pub async fn done(self) {
        if let Some(file) = self.0.get(self.1.ino()) {
            file.set_unlinked().await;
        }
    }
}

/// Whether a program has closed a handle and nobody has used it since.
#[derive(Default)]
pub struct IsClosed(AtomicBool);

impl<B: Backend> Default for Files<B> {
    fn default() -> Files<B> {
        Files {
            slots: Mutex::default(),
            removals: UnderWay::default(),
            cuts: UnderWay::default(),
            changed: Notify::new(),
        }
    }
}

impl<B: Backend> Files<B> {
    /// Whether a handle of the file is open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.slots.lock().contains_key(&ino)
    }

    /// Whether a handle is open for writing.
    pub fn has_writers(&self, ino: u64) -> bool {
        self.slots.lock().get(&ino).is_some_and(|slot| slot.writers > 0)
    }

    /// Whether a handle is open for writing that no program has closed.
    pub fn is_written(&self, ino: u64) -> bool {
        self.slots.lock().get(&ino).is_some_and(|slot| slot.writers > slot.closed_writers)
    }

    /// Whether exactly one handle is open for writing that no program has closed.
    pub fn has_one_writer(&self, ino: u64) -> bool {
        self.slots.lock().get(&ino).is_some_and(|slot| slot.writers == slot.closed_writers + 1)
    }

    /// Whether exactly one handle is open.
    pub fn is_open_once(&self, ino: u64) -> bool {
        self.slots.lock().get(&ino).is_some_and(|slot| slot.handles == 1)
    }

    /// A request is about to remove a name of the file.
    pub fn begin_removal(&self, ino: u64) -> Removal<'_, B> {
        Removal(self, self.removals.begin(ino))
    }

    /// Whether a name of the file is being removed.
    pub(super) fn is_being_removed(&self, ino: u64) -> bool {
        self.removals.count(ino) > 0
    }

    /// Whether a request that sets its length is not answered yet.
    pub fn is_being_cut(&self, ino: u64) -> bool {
        self.cuts.count(ino) > 0
    }

    /// A handle of an open file fills the kernel's pages (`fills`), or does not any more.
    pub fn set_fills(&self, ino: u64, fills: bool) {
        if let Some(slot) = self.slots.lock().get_mut(&ino) {
            slot.fillers = if fills { slot.fillers + 1 } else { slot.fillers - 1 };
        }
    }

    /// Whether a handle is open that fills the kernel's pages.
    pub fn has_fillers(&self, ino: u64) -> bool {
        self.slots.lock().get(&ino).is_some_and(|slot| slot.fillers > 0)
    }

    /// Number of open files, number of those with uncommitted changes or a commit under way, and number of those that wait in the
    /// spool. Waits for no file.
    pub fn count(&self) -> (u64, u64, usize) {
        let slots = self.slots.lock();
        let changes = |slot: &&Slot<B>| slot.file.state.try_lock().is_none_or(|state| state.pending.is_unsaved());
        let changed = slots.values().filter(changes).count();
        (slots.len() as u64, changed as u64, slots.values().filter(|slot| slot.spooled > 0).count())
    }

    /// The file, if a handle of it is open.
    pub fn get(&self, ino: u64) -> Option<Arc<OpenFile<B>>> {
        self.slots.lock().get(&ino).map(|slot| slot.file.clone())
    }

    /// Adds a handle that the kernel does not have before the guard is dropped.
    pub fn begin_open(&self, ino: u64, writes: bool, now_ns: i64) -> (Arc<OpenFile<B>>, Opening<'_, B>) {
        (self.add(ino, None, writes, 1, now_ns), Opening(self, ino))
    }

    /// Adds a handle. `size_bytes`: the file's length, used if no handle is open yet.
    pub fn open(&self, ino: u64, size_bytes: u64, writes: bool, now_ns: i64) -> Arc<OpenFile<B>> {
        self.add(ino, Some(size_bytes), writes, 0, now_ns)
    }

    fn add(&self, ino: u64, size_bytes: Option<u64>, writes: bool, opening: usize, now_ns: i64) -> Arc<OpenFile<B>> {
        let state = || size_bytes.map_or_else(|| State::unread(ino), |size_bytes| State::new(ino, size_bytes));
        let mut files = self.slots.lock();
        let slot = files.entry(ino).or_insert_with(|| Slot::new(OpenFile::new(state())));
        slot.handles += 1;
        slot.opening += opening;
        slot.writers += usize::from(writes);
        if writes {
            slot.file.meter.lock().opened(now_ns);
            slot.file.mode_may_change();
        }
        slot.file.clone()
    }

    /// Drops a handle. The last handle, and the last one that writes, commits what is left.
    pub async fn release(&self, mount: &Mount<B>, file: &OpenFile<B>, writes: bool) {
        let leaves = |slot: &mut Slot<B>| {
            slot.handles -= 1;
            slot.writers -= usize::from(writes);
            assert!(
                slot.opening + slot.closed <= slot.handles && slot.closed_writers <= slot.writers,
                "a handle that is released counts as nothing else"
            );
            slot.handles == 0 || (writes && slot.writers == 0)
        };
        // The handle is counted off before the commit: if two close at once, exactly one is the last.
        let is_last = self.slots.lock().get_mut(&file.ino).is_some_and(leaves);
        self.changed.notify_waiters();
        if !is_last {
            return;
        }
        // Flush already reported failures to the program that closed. A program that opens the file meanwhile shares
        // and keeps this `OpenFile`.
        let _ = file.close_session(mount).await;
        let is_gone = self.remove_unused(file.ino);
        self.changed.notify_waiters();
        if is_gone {
            mount.namespace.closed(file.ino).await;
        }
    }

    /// A program closed a handle (`closed`) that `writes` or not, or it is used or released.
    pub fn set_closed(&self, ino: u64, handle: &IsClosed, writes: bool, closed: bool) {
        if handle.0.load(Ordering::Relaxed) == closed {
            return;
        }
        let mut slots = self.slots.lock();
        if handle.0.swap(closed, Ordering::Relaxed) != closed
            && let Some(slot) = slots.get_mut(&ino)
        {
            let add = |count: &mut usize| *count = if closed { *count + 1 } else { *count - 1 };
            add(&mut slot.closed);
            if writes {
                add(&mut slot.closed_writers);
            }
        }
    }

    /// Whether every handle is one that is being opened.
    pub fn is_only_opening(&self, ino: u64) -> bool {
        self.slots.lock().get(&ino).is_some_and(|slot| slot.handles == slot.opening)
    }

    /// If no program uses the file: waits until the kernel has released the handles that programs have closed. It
    /// reports a release after `close` has returned, and keeps its length of the file until then.
    pub async fn until_released(&self, backend: &B, ino: u64, within: Duration) {
        self.wait_while(backend, (ino, within), |slot| slot.is_idle() && slot.closed > 0).await;
    }

    /// As [`Files::until_released`]; also waits until the handles that are being opened are open or gone.
    pub async fn until_decided(&self, backend: &B, ino: u64) {
        self.wait_while(backend, (ino, RELEASE_WITHIN), Slot::is_idle).await;
    }

    async fn wait_while(&self, backend: &B, (ino, within): (u64, Duration), waits: impl Fn(&Slot<B>) -> bool) {
        let gone = async {
            loop {
                // Made before the look, so that no change is missed.
                let changed = self.changed.notified();
                if !self.slots.lock().get(&ino).is_some_and(&waits) || failpoint::is_active("mount.release_not_awaited")
                {
                    return;
                }
                changed.await;
            }
        };
        let _ = race(gone, backend.sleep(within)).await;
    }

    /// Adds the spool's handle: a file that waits in the spool stays open.
    pub(super) fn hold_spooled(&self, ino: u64) {
        if let Some(slot) = self.slots.lock().get_mut(&ino) {
            (slot.handles, slot.spooled) = (slot.handles + 1, slot.spooled + 1);
        }
    }

    /// Drops the spool's handle.
    pub(super) fn release_spooled(&self, ino: u64) {
        if let Some(slot) = self.slots.lock().get_mut(&ino) {
            assert!(slot.spooled > 0, "the spool drops a handle that it has");
            (slot.handles, slot.spooled) = (slot.handles - 1, slot.spooled - 1);
        }
        self.remove_unused(ino);
        self.changed.notify_waiters();
    }

    /// Removes a file without handles. Returns whether none is left, also if the file was removed before.
    fn remove_unused(&self, ino: u64) -> bool {
        let mut files = self.slots.lock();
        if files.get(&ino).is_some_and(|slot| slot.handles == 0) {
            files.remove(&ino);
        }
        !files.contains_key(&ino)
    }

    /// Opens a file whose log was found at the start of the mount. The spool holds the handle.
    pub fn adopt(&self, ino: u64, log: Log) -> Arc<OpenFile<B>> {
        let slot = Slot { handles: 1, spooled: 1, ..Slot::new(OpenFile::with_log(ino, log)) };
        let file = slot.file.clone();
        self.slots.lock().insert(ino, slot);
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
        let all: Vec<_> = self.slots.lock().values().map(|slot| slot.file.clone()).collect();
        let mut found = Vec::new();
        for file in all {
            if wanted(&file).await {
                found.push(file);
            }
        }
        found
    }
}
