//! Rewrites files in the background when a hint about their stored bytes changes.
//!
//! One thread rewrites one file at a time. It waits a moment for further hints, so that a file is rewritten once; a
//! file with uncommitted writes comes later. `user.tessera.state` shows the files that wait and the progress of the
//! running rewrite. Unmounting abandons the rest: those files stay as they were stored.

use crate::mount::Store;
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_client::{Cancel, Progress};
use tessera_mount::rewrite_queue::{RewriteProgress, RewriteQueue};

/// Wait for further hints on a file.
const SETTLE: Duration = Duration::from_millis(500);

/// See the module.
pub struct Rewrites {
    queue: Mutex<RewriteQueue>,
    wanted: Sender<u64>,
    cancel: Cancel,
}

impl Rewrites {
    /// An empty queue, and the receiver for [`work`].
    pub fn new() -> (Rewrites, Receiver<u64>) {
        let (wanted, work) = unbounded();
        (Rewrites { queue: Mutex::default(), wanted, cancel: Cancel::default() }, work)
    }

    /// A hint of a file was set or removed.
    pub fn hint_changed(&self, ino: u64, hint: &str) {
        if self.queue.lock().hint_changed(ino, hint) {
            let _ = self.wanted.send(ino);
        }
    }

    /// Progress of a file's rewrite, if it waits or runs.
    pub fn get(&self, ino: u64) -> Option<RewriteProgress> {
        self.queue.lock().get(ino)
    }

    /// Abandons the running rewrite and all that wait.
    pub fn stop(&self) {
        self.cancel.cancel();
    }
}

/// Rewrites files until the mount is gone or [`Rewrites::stop`] is called.
pub fn work(store: &Weak<Store>, wanted: &Receiver<u64>) {
    for ino in wanted {
        std::thread::sleep(SETTLE);
        let Some(store) = store.upgrade() else { return };
        if store.rewrites.cancel.is_cancelled() {
            return;
        }
        if store.files.get(ino).is_some_and(|file| file.size().1) {
            let _ = store.rewrites.wanted.send(ino);
            continue;
        }
        rewrite(&store, ino);
    }
}

fn rewrite(store: &Arc<Store>, ino: u64) {
    let queue = &store.rewrites.queue;
    queue.lock().begin(ino);
    let mut hear = |p: Progress| {
        queue.lock().progress(RewriteProgress { done_bytes: p.done, total_bytes: p.total.unwrap_or(p.done) });
    };
    let done = store.client.inodes().rewrite(ino, &mut hear, &store.rewrites.cancel);
    queue.lock().end();
    match done {
        Ok(done) if done.version != 0 => {
            tracing::info!(ino, new_bytes = done.new_bytes, "rewrote a file as its hints ask");
            store.namespace.with(|core, _| core.forget(&[ino]));
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(ino, %error, "cannot rewrite a file; `tessera rewrite` tries again"),
    }
}
