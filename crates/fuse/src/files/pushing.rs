//! What becomes of a file's log while it is brought into the store ([`crate::spool::push`]): what is to be pushed, and what the file is once that is
//! done, was not possible, or is no longer wanted.

use super::OpenFile;
use super::local::open_version;
use crate::mount::Store;
use crate::spool::log::{Log, LogError};
use crate::spool::logfile::View;
use fuser::Errno;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use tessera_wire::Attr;

impl OpenFile {
    /// For whoever brings the log into the store; nobody else does meanwhile.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// What is to be pushed, if it was closed and not written since.
    pub fn closed_view(&self) -> Option<View> {
        let state = self.state.lock();
        state.log.as_ref().filter(|log| log.owes() && log.closed().is_some()).map(Log::view)
    }

    /// What was acknowledged from the spool is in this, and what was written since.
    pub fn owed_view(&self) -> Option<View> {
        self.state.lock().log.as_ref().filter(|log| log.owes()).map(Log::view)
    }

    /// Whether all that was written was acknowledged from the spool: the next mount finds it.
    pub fn is_safe(&self) -> bool {
        self.state.lock().log.as_ref().is_some_and(|log| log.owes() && log.closed().is_some())
    }

    /// What was closed last in the view is about to be committed: what its content is to be called.
    pub fn is_pushed(&self, view: &View) -> u64 {
        self.state.lock().log.as_mut().filter(|log| log.gave(view)).map_or(0, |log| log.is_pushed(view))
    }

    /// Whether another version than the one below the log is nobody else's: the log is done with, or is over that one now.
    pub fn knows(&self, store: &Store, attr: &Attr, view: &View) -> bool {
        let mut state = self.state.lock();
        let Some(log) = state.log.as_mut().filter(|log| log.gave(view)) else {
            // It was committed here meanwhile, all of it.
            return true;
        };
        if attr.content != 0 && attr.content == log.base_content() {
            log.rebase(attr.version);
            (state.version, state.content) = (attr.version, attr.content);
            return true;
        }
        let Some(closed_end) = log.pushed_as(attr.content) else { return false };
        drop(state);
        self.stored(store, attr.version, attr.content, &view.closed_at(closed_end));
        true
    }

    /// What a log said is in the store now, as `version`, whose content is called so.
    pub fn stored(&self, store: &Store, version: u64, content: u64, view: &View) {
        let mut state = self.state.lock();
        // Who could not wait for the push may have committed a later one.
        if version > state.version {
            (state.version, state.content) = (version, content);
        }
        state.made = None;
        if state.log.as_mut().is_some_and(|log| log.gave(view) && log.stored(version, content, view)) {
            state.replaced = false;
            state.drop_log(store, self.ino);
        }
        // A file without a name lives by its sessions: the new one first.
        let newest = if state.unlinked { open_version(store, self.ino, version).ok() } else { None };
        state.base = newest;
        store.namespace.with(|core, _| core.forget(&[self.ino]));
        store.kernel.lock().holds(self.ino, version, state.size_bytes);
        drop(state);
        self.count_pushed(store);
    }

    fn count_pushed(&self, store: &Store) {
        if let Some(spool) = &store.spool {
            spool.counts.pushed.fetch_add(1, Ordering::Relaxed);
        }
        let since_closed = self.meter.lock().since_closed();
        if let Some(speed) = since_closed.and_then(|after| store.speeds.lock().stored(self.ino, after)) {
            tracing::info!(ino = self.ino, speed = %speed.to_json(), "pushed from the spool");
        }
    }

    /// Commits what was written incrementally, and closed; nobody who asks for the file's length waits while it is pushed.
    pub fn finish_staged(&self, store: &Store) {
        let waits_for = {
            let mut state = self.state.lock();
            // Whoever writes it again closes it again.
            if !state.owes_commit || store.files.has_writers(self.ino) {
                return;
            }
            state.session.as_mut().and_then(|session| session.handle.drained())
        };
        if let Some(drained) = waits_for {
            drained.wait();
        }
        let mut state = self.state.lock();
        if !state.owes_commit {
            return;
        }
        let done = state.commit(store, self.ino);
        if done.is_err() {
            tracing::error!(ino = self.ino, "a file that was closed could not be stored; the version before stands");
            state.owes_commit = false;
            state.changed = false;
            store.files.let_go(self.ino);
        }
        state.session = None;
        drop(state);
        if done.is_ok() {
            self.count_pushed(store);
        }
    }

    /// The file was removed: nobody wants what its log has.
    pub fn spool_is_gone(&self, store: &Store, view: &View) {
        let mut state = self.state.lock();
        if state.log.as_ref().is_some_and(|log| log.gave(view)) {
            tracing::debug!(ino = self.ino, "a file was removed before it was pushed");
            if let Some(spool) = &store.spool {
                spool.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
            state.drop_log(store, self.ino);
        }
    }

    /// The log cannot be read: what it has is lost, and everybody hears of it.
    pub fn spool_is_lost(&self, store: &Store, error: &LogError) {
        let mut state = self.state.lock();
        if let Some(log) = state.log.take() {
            let aside = log.set_aside();
            tracing::error!(ino = self.ino, %error, aside = %aside.display(), "a file that was closed cannot be pushed");
            if let Some(spool) = &store.spool {
                spool.counts.set_aside.fetch_add(1, Ordering::Relaxed);
            }
            state.failed = Some(Errno::EIO);
            state.changed = false;
            store.files.let_go(self.ino);
        }
    }

    /// Another mount's version stands; what the log said is kept elsewhere.
    pub fn gives_way(&self, store: &Store, attr: &Attr, view: &View) {
        let mut state = self.state.lock();
        // What was written since is of ours, not of theirs: it is kept beside, too, all of it. The kernel may set a time at any moment.
        if state.log.as_ref().is_some_and(|log| log.has_bytes_of(view)) {
            (state.version, state.content, state.size_bytes) = (attr.version, attr.content, attr.size_bytes);
            (state.base, state.replaced) = (None, false);
            state.drop_log(store, self.ino);
            state.gave_way = Some((attr.version, attr.size_bytes));
        }
        drop(state);
        store.namespace.with(|core, _| core.forget(&[self.ino]));
    }

    /// Has programs that have the file open see the version it gave way to, if it did. Waits for the kernel.
    pub fn show_theirs(&self, store: &Store) {
        let gave_way = self.state.lock().gave_way.take();
        let Some((version, size_bytes)) = gave_way.filter(|_| store.files.is_open(self.ino)) else { return };
        match store.beside.refresh(self.ino, size_bytes) {
            Ok(()) => store.kernel.lock().holds(self.ino, version, size_bytes),
            Err(error) => {
                tracing::warn!(ino = self.ino, %error, "programs that have the file open see what was written here")
            }
        }
    }

    /// They see it when they open it anew. Whether it did.
    pub fn keeps_showing_ours(&self) -> bool {
        self.state.lock().gave_way.take().is_some()
    }
}
