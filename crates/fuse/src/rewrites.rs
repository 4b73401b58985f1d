//! Rewriting in the background: a hint about how a file is stored, set on a file that is there, takes effect for what it holds.
//!
//! One thread, one file at a time. Hints that are set one after the other are waited for, so that a file is rewritten once; a file that has
//! something to be committed comes later. What is on its way, and how far, `user.tessera.state` shows. Unmounting gives the rest up: the files are
//! whole, stored as they were.

use crate::mount::Store;
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_client::{Cancel, Progress};

/// More hints may follow within this time.
const SETTLE: Duration = Duration::from_millis(500);

/// How far a rewriting has come, in bytes of the file; total 0: it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rewriting {
    /// Rewritten.
    pub done_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// See the module.
pub struct Rewrites {
    /// In the queue, each once. A file leaves it before its hints are read: what is set from then on puts it in again.
    waiting: Mutex<BTreeSet<u64>>,
    running: Mutex<Option<(u64, Rewriting)>>,
    wanted: Sender<u64>,
    cancel: Cancel,
}

impl Rewrites {
    /// Nothing to do yet, and where it will hear of work.
    pub fn new() -> (Rewrites, Receiver<u64>) {
        let (wanted, work) = unbounded();
        (Rewrites { waiting: Mutex::default(), running: Mutex::default(), wanted, cancel: Cancel::default() }, work)
    }

    /// A hint of a file was set or taken away.
    pub fn hint_changed(&self, ino: u64, hint: &str) {
        if tessera_policy::affects_stored_bytes(hint) && self.waiting.lock().insert(ino) {
            let _ = self.wanted.send(ino);
        }
    }

    /// How far the rewriting of a file is, if there is one.
    pub fn of(&self, ino: u64) -> Option<Rewriting> {
        let running = self.running.lock().filter(|(file, _)| *file == ino).map(|(_, rewriting)| rewriting);
        running.or_else(|| self.waiting.lock().contains(&ino).then(Rewriting::default))
    }

    /// Gives up what is under way.
    pub fn stop(&self) {
        self.cancel.cancel();
    }
}

/// Works until the mount is gone or told to stop.
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
    let running = &store.rewrites.running;
    *running.lock() = Some((ino, Rewriting::default()));
    store.rewrites.waiting.lock().remove(&ino);
    let mut hear = |p: Progress| {
        let rewriting = Rewriting { done_bytes: p.done, total_bytes: p.total.unwrap_or(p.done) };
        *running.lock() = Some((ino, rewriting));
    };
    let done = store.client.inodes().rewrite(ino, &mut hear, &store.rewrites.cancel);
    *running.lock() = None;
    match done {
        Ok(done) if done.version != 0 => {
            tracing::info!(ino, new_bytes = done.new_bytes, "rewritten as its hints ask now");
            store.names.forget(Some(&[ino]));
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(ino, %error, "not rewritten; `tessera rewrite` tries again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_is_set_while_a_file_is_rewritten_has_it_rewritten_once_more() {
        let (rewrites, work) = Rewrites::new();
        rewrites.hint_changed(7, "lifetime");
        assert_eq!((rewrites.of(7), work.len()), (None, 0));
        rewrites.hint_changed(7, "redundancy");
        rewrites.hint_changed(7, "placement");
        assert_eq!((rewrites.of(7), work.len()), (Some(Rewriting::default()), 1), "waits once");
        // As `rewrite` begins.
        let half = Rewriting { done_bytes: 5, total_bytes: 10 };
        *rewrites.running.lock() = Some((7, half));
        rewrites.waiting.lock().remove(&7);
        rewrites.hint_changed(7, "chunking");
        assert_eq!((rewrites.of(7), work.len()), (Some(half), 2));
        *rewrites.running.lock() = None;
        assert_eq!(rewrites.of(7), Some(Rewriting::default()), "and waits for that");
    }
}
