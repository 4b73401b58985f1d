//! Which handles a lock owner has locked a file by. What an owner still holds when the last of them is released is given up.
//!
//! - The owner of an `fcntl` lock is a process. It closes the file (`flush`) before its handle is released, so nothing is left then.
//! - The owner of a `flock`, or of a lock of an open file description (`F_OFD_SETLK`), is an open file; the kernel says nothing of such a
//!   lock when it is closed. It gives the number of an owner that is gone to the next at once, and reports a close after `close` has
//!   returned; if many requests are in the background, even after a lock request of the next open. What is given up with the handle
//!   that is closed must not be the lock of the next one: a `flock` waits until that handle is released.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::Notify;

/// See the module.
#[derive(Default)]
pub(crate) struct Lockers {
    /// Handles by file and owner.
    handles: Mutex<BTreeMap<(u64, u64), BTreeSet<u64>>>,
    /// A handle is released.
    released: Notify,
}

impl Lockers {
    /// A handle locks as this owner from now on, beside others.
    pub fn add(&self, ino: u64, owner: u64, handle: u64) {
        self.handles.lock().entry((ino, owner)).or_default().insert(handle);
    }

    /// A handle locks as this owner from now on. Waits until another one that did is released.
    pub async fn add_alone(&self, ino: u64, owner: u64, handle: u64) {
        loop {
            // Made before the look, so that no release is missed.
            let released = self.released.notified();
            {
                let mut handles = self.handles.lock();
                let of_owner = handles.entry((ino, owner)).or_default();
                if of_owner.iter().all(|other| *other == handle) {
                    of_owner.insert(handle);
                    return;
                }
            }
            released.await;
        }
    }

    /// A process closes the file: it has no lock there any more, unless a request of another thread is under way.
    pub fn forget(&self, ino: u64, owner: u64) {
        let was_locker = self.handles.lock().remove(&(ino, owner)).is_some();
        if was_locker {
            self.released.notify_waiters();
        }
    }

    /// Whether a handle has locked the file as this owner.
    pub fn has(&self, ino: u64, owner: u64, handle: u64) -> bool {
        self.handles.lock().get(&(ino, owner)).is_some_and(|by| by.contains(&handle))
    }

    /// The owners that have locked the file by a handle.
    pub fn owners(&self, ino: u64, handle: u64) -> Vec<u64> {
        let handles = self.handles.lock();
        let of_file = handles.range((ino, 0)..=(ino, u64::MAX));
        of_file.filter(|(_, by)| by.contains(&handle)).map(|((_, owner), _)| *owner).collect()
    }

    /// A handle of the file is released. `give_up` gets the owners that have no other one; until it returns, none begins.
    pub fn released(&self, ino: u64, handle: u64, give_up: impl FnOnce(&[u64])) {
        let mut handles = self.handles.lock();
        let mut gone = Vec::new();
        for ((_, owner), by) in handles.range_mut((ino, 0)..=(ino, u64::MAX)) {
            if by.remove(&handle) && by.is_empty() {
                gone.push(*owner);
            }
        }
        gone.iter().for_each(|owner| drop(handles.remove(&(ino, *owner))));
        give_up(&gone);
        drop(handles);
        self.released.notify_waiters();
    }
}
