//! Rewrites files in the background when a hint about their stored bytes changes.
//!
//! One task rewrites one file at a time. It waits a moment for further hints, so that a file is rewritten once; a
//! file with uncommitted writes comes later. `user.tessera.state` shows the files that wait and the progress of the
//! running rewrite. Unmounting abandons the rest: those files stay as they were stored.

use crate::backend::Backend;
use crate::mount::{Mount, Queue};
use crate::rewrite_queue::{RewriteProgress, RewriteQueue};
use parking_lot::Mutex;
use std::sync::Weak;
use std::time::Duration;
use tessera_client::{Cancel, Progress};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Wait for further hints on a file.
const SETTLE: Duration = Duration::from_millis(500);

/// See the module.
pub struct Rewrites {
    pub(crate) queue: Mutex<RewriteQueue>,
    requests: UnboundedSender<u64>,
    /// Abandons the running rewrite and all that wait.
    pub(crate) cancel: Cancel,
}

impl Rewrites {
    /// An empty queue, and the receiver for [`work`].
    pub fn new() -> (Rewrites, UnboundedReceiver<u64>) {
        let (requests, queued) = unbounded_channel();
        (Rewrites { queue: Mutex::default(), requests, cancel: Cancel::default() }, queued)
    }

    /// A hint of a file was set or removed.
    pub fn hint_changed(&self, ino: u64, hint: &str) {
        if self.queue.lock().hint_changed(ino, hint) {
            let _ = self.requests.send(ino);
        }
    }
}

/// Rewrites files until the mount is gone or [`Mount::stop_rewrites`] is called.
pub async fn work<B: Backend>(mount: Weak<Mount<B>>, queue: Queue) {
    while let Some(ino) = queue.next().await {
        let Some(backend) = mount.upgrade().map(|mount| mount.backend.clone()) else { return };
        backend.sleep(SETTLE).await;
        let Some(mount) = mount.upgrade() else { return };
        if mount.rewrites.cancel.is_cancelled() {
            return;
        }
        if let Some(file) = mount.files.get(ino)
            && file.size().await.is_some_and(|(_, changed)| changed)
        {
            let _ = mount.rewrites.requests.send(ino);
            continue;
        }
        rewrite(&mount, ino).await;
    }
}

async fn rewrite<B: Backend>(mount: &Mount<B>, ino: u64) {
    let queue = &mount.rewrites.queue;
    queue.lock().begin(ino);
    let mut report = |p: Progress| {
        queue.lock().progress(RewriteProgress { done_bytes: p.done, total_bytes: p.total.unwrap_or(p.done) });
    };
    let done = mount.backend.rewrite(ino, &mut report, &mount.rewrites.cancel).await;
    queue.lock().end();
    match done {
        Ok(done) if done.version != 0 => {
            tracing::info!(ino, new_bytes = done.new_bytes, "rewrote a file as its hints ask");
            mount.namespace.forget(&[ino]);
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(ino, %error, "cannot rewrite a file; `tessera rewrite` tries again"),
    }
}
