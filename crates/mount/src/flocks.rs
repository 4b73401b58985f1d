//! Which handle locks a file as which owner of a `flock`.
//!
//! The kernel names such an owner by its open file, and gives the number of one that is closed to the next at once. It reports a close
//! after `close` has returned; if many requests are in the background, even after a lock request of the next open. What the mount gives
//! up with the handle that is closed must not be the lock of the next one.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// See the module.
#[derive(Default)]
pub(crate) struct Flocks {
    /// Handles by file and owner.
    handles: Mutex<BTreeMap<(u64, u64), u64>>,
    /// A handle is released.
    released: Notify,
}

impl Flocks {
    /// A handle locks as this owner from now on. Waits until another one that did is released.
    pub async fn begin(&self, ino: u64, owner: u64, handle: u64) {
        loop {
            // Made before the look, so that no release is missed.
            let released = self.released.notified();
            if *self.handles.lock().entry((ino, owner)).or_insert(handle) == handle {
                return;
            }
            released.await;
        }
    }

    /// A handle of the file is released, and its lock given up.
    pub fn released(&self, ino: u64, handle: u64) {
        let mut handles = self.handles.lock();
        let owners = handles.range((ino, 0)..=(ino, u64::MAX)).filter(|(_, by)| **by == handle);
        let owners: Vec<_> = owners.map(|(key, _)| *key).collect();
        for key in owners {
            handles.remove(&key);
        }
        drop(handles);
        self.released.notify_waiters();
    }
}
