//! A file's log while it is brought into the store ([`crate::spool::push`]): which state to push, and what the file
//! becomes once the push succeeded, failed for good, or is no longer needed.

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
    /// The right to bring the log into the store; one holder at a time.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// The state to push, if the file was closed and not written since.
    pub fn closed_view(&self) -> Option<View> {
        let state = self.state.lock();
        state.log.as_ref().filter(|log| log.owes() && log.closed().is_some()).map(Log::view)
    }

    /// The log's state if something acknowledged is in no version; includes later writes.
    pub fn owed_view(&self) -> Option<View> {
        self.state.lock().log.as_ref().filter(|log| log.owes()).map(Log::view)
    }

    /// Whether every write was acknowledged from the spool, so that the next mount recovers it.
    pub fn is_safe(&self) -> bool {
        self.state.lock().log.as_ref().is_some_and(|log| log.owes() && log.closed().is_some())
    }

    /// The view's last close is about to be committed. Returns the name for its content; 0: the log is gone.
    pub fn is_pushed(&self, view: &View) -> u64 {
        self.state.lock().log.as_mut().filter(|log| log.gave(view)).map_or(0, |log| log.is_pushed(view))
    }

    /// Whether the store's version `attr` comes from this log and not from another client. Then the log is done, or
    /// moves over to that version.
    pub fn knows(&self, store: &Store, attr: &Attr, view: &View) -> bool {
        let mut state = self.state.lock();
        let Some(log) = state.log.as_mut().filter(|log| log.gave(view)) else {
            // The whole log was committed here meanwhile.
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

    /// The store has the state of `view` as `version`, whose content is named `content`.
    pub fn stored(&self, store: &Store, version: u64, content: u64, view: &View) {
        let mut state = self.state.lock();
        // An fsync that did not wait for the push may have committed a later version.
        if version > state.version {
            (state.version, state.content) = (version, content);
        }
        state.made = None;
        if state.log.as_mut().is_some_and(|log| log.gave(view) && log.stored(version, content, view)) {
            state.replaced = false;
            state.drop_log(store, self.ino);
        }
        // Only sessions keep a file without a name: open the new one before dropping the old.
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

    /// Commits a file of incremental writes that was closed. Waits for the session to drain without the file's lock, so
    /// that a request for the file's length does not wait.
    pub fn finish_staged(&self, store: &Store) {
        let waits_for = {
            let mut state = self.state.lock();
            // The writer that opened the file again will close it again.
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

    /// The file was removed, so its log is dropped.
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

    /// The log cannot be read: its content is lost, and every later caller gets `EIO`.
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

    /// Another mount's version stands; the log's content was kept under another name.
    pub fn gives_way(&self, store: &Store, attr: &Attr, view: &View) {
        let mut state = self.state.lock();
        // Bytes that were written after `view` belong to the log's state, not to the other version: the log then stays,
        // and a later push keeps all of it beside the file. The kernel may set a time at any moment; a time alone does
        // not count.
        if state.log.as_ref().is_some_and(|log| log.has_bytes_of(view)) {
            (state.version, state.content, state.size_bytes) = (attr.version, attr.content, attr.size_bytes);
            (state.base, state.replaced) = (None, false);
            state.drop_log(store, self.ino);
            state.gave_way = Some((attr.version, attr.size_bytes));
        }
        drop(state);
        store.namespace.with(|core, _| core.forget(&[self.ino]));
    }

    /// If the file gave way to another version, shows that version to the programs that have the file open. Waits for
    /// the kernel.
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

    /// Leaves the programs that have the file open with the replaced content until they open it again. Returns whether
    /// the file gave way.
    pub fn keeps_showing_ours(&self) -> bool {
        self.state.lock().gave_way.take().is_some()
    }
}
