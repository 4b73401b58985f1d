//! A file's log while it is brought into the store ([`crate::spool::push`]): which state to push, and what the file
//! becomes once the push succeeded, failed for good, or is no longer needed.

use super::session::SessionWriter;
use super::spooled::open_version;
use super::{Below, OpenFile, State};
use crate::backend::{Backend, Reader};
use crate::errno::Errno;
use crate::mount::Mount;
use crate::spool::log::Log;
use crate::spool::logfile::View;
use tessera_failpoint as failpoint;
use tessera_wire::Attr;

impl<B: Backend> OpenFile<B> {
    /// The state to push, if the file was closed and not written since.
    pub async fn closed_view(&self) -> Option<View> {
        let state = self.state.lock().await;
        state.pending.log().filter(|log| log.owes() && log.closed().is_some()).map(Log::view)
    }

    /// The log's state if something acknowledged is in no version; includes later writes.
    pub async fn owed_view(&self) -> Option<View> {
        self.state.lock().await.pending.log().filter(|log| log.owes()).map(Log::view)
    }

    /// Whether every write was acknowledged from the spool, so that the next mount recovers it.
    pub async fn is_safe(&self) -> bool {
        self.state.lock().await.pending.log().is_some_and(|log| log.owes() && log.closed().is_some())
    }

    /// The view's last close is about to be committed. Returns the name for its content; 0: the log is gone.
    pub async fn is_pushed(&self, mount: &Mount<B>, view: &View) -> u64 {
        let drawn = mount.backend.random();
        self.state
            .lock()
            .await
            .pending
            .log_mut()
            .filter(|log| log.gave(view))
            .map_or(0, |log| log.is_pushed(view, drawn))
    }

    /// Whether the store's version `attr` comes from this log and not from another client. Then the log is done, or
    /// moves over to that version.
    pub async fn recognizes(&self, mount: &Mount<B>, attr: &Attr, view: &View) -> bool {
        let mut state = self.state.lock().await;
        let Some(log) = state.pending.log_mut().filter(|log| log.gave(view)) else {
            // The whole log was committed here meanwhile.
            return true;
        };
        if attr.content != 0 && attr.content == log.origin.base_content {
            log.rebase(attr.version);
            (state.version, state.content) = (attr.version, attr.content);
            return true;
        }
        let pushed_as = log.pushed_as(attr.content).filter(|_| !failpoint::is_active("mount.push_not_recognized"));
        let Some(closed_end) = pushed_as else { return false };
        drop(state);
        let of_version = (attr.content, attr.size_bytes);
        self.stored(mount, attr.version, of_version, &view.closed_at(closed_end)).await;
        true
    }

    /// The store has the state of `view` as `version`, whose content is named `content`, and which is so long.
    pub async fn stored(&self, mount: &Mount<B>, version: u64, (content, size_bytes): (u64, u64), view: &View) {
        let mut state = self.state.lock().await;
        // An fsync that did not wait for the push may have committed a later version.
        let is_newest = version >= state.version;
        if is_newest {
            (state.version, state.content) = (version, content);
        }
        state.created = None;
        let done = state.pending.log_mut().filter(|log| log.gave(view)).is_some_and(|log| {
            log.origin.base_bytes = size_bytes;
            log.stored(version, content, view)
        });
        if done {
            state.below = Below::Kept;
        }
        if done && failpoint::is_active("mount.pushed_file_leaves_early") {
            state.drop_log(mount);
        }
        // Only sessions keep a file without a name: open the new one before dropping the old.
        if is_newest {
            let keeps = state.keeps_base(mount);
            state.base = if keeps { open_version(mount, self.ino, version).await.ok() } else { None };
        }
        mount.namespace.forget(&[self.ino]);
        mount.kernel.lock().committed(self.ino, version, state.size_bytes, true);
        // The file may leave the table of open files here: whoever looks it up from now on must get the new attributes.
        if done {
            state.drop_log(mount);
        }
        drop(state);
        self.count_pushed(mount);
    }

    fn count_pushed(&self, mount: &Mount<B>) {
        mount.count(|counts| counts.pushed += 1);
        let since_closed = self.meter.lock().since_closed(mount.backend.now_ns());
        if let Some(speed) = since_closed.and_then(|after| mount.speeds.lock().stored(self.ino, after)) {
            tracing::info!(ino = self.ino, speed = %speed.to_json(), "pushed from the spool");
        }
    }

    /// Commits a file of incremental writes that was closed. Waits for the session to drain without the file's lock, so
    /// that a request for the file's length does not wait.
    pub async fn finish_staged(&self, mount: &Mount<B>) {
        let waits_for = {
            let mut state = self.state.lock().await;
            // The writer that opened the file again will close it again.
            if !state.pending.is_draining() || mount.files.has_writers(self.ino) {
                return;
            }
            match state.pending.session_mut().map(|session| &mut session.handle) {
                Some(SessionWriter::Staged(staged)) => Some(staged.drained().await),
                _ => None,
            }
        };
        if let Some(drained) = waits_for {
            drained.await;
        }
        let mut state = self.state.lock().await;
        if !state.pending.is_draining() {
            return;
        }
        let done = state.commit(mount).await;
        if done.is_err() {
            // Not if only the new version could not be opened: the commit ended the draining.
            if state.pending.give_up_draining() {
                tracing::error!(
                    ino = self.ino,
                    "a file that was closed could not be stored; the version before stands"
                );
                mount.count(|counts| counts.lost += 1);
                mount.forget_unstored(self.ino);
                mount.files.release_spooled(self.ino);
            }
        }
        state.pending.drop_session();
        drop(state);
        if done.is_ok() {
            self.count_pushed(mount);
        }
    }

    /// The file was removed, so its log is dropped.
    pub async fn spool_is_gone(&self, mount: &Mount<B>, view: &View) {
        let mut state = self.state.lock().await;
        if state.pending.log().is_some_and(|log| log.gave(view)) {
            tracing::debug!(ino = self.ino, "a file was removed before it was pushed");
            mount.count(|counts| counts.dropped += 1);
            state.file_is_gone(mount);
        }
    }

    /// The file is gone, and the log's content was kept under another name. Returns false if the log has more by now, or is gone.
    pub async fn spool_is_kept(&self, mount: &Mount<B>, view: &View) -> bool {
        let mut state = self.state.lock().await;
        let is_whole = state.pending.log().is_some_and(|log| log.has_bytes_of(view));
        if is_whole {
            state.file_is_gone(mount);
        }
        is_whole
    }

    /// The log cannot be read, or not be pushed: its content is lost, and every later caller gets `EIO`.
    pub async fn spool_is_lost(&self, mount: &Mount<B>, error: &dyn std::fmt::Display) {
        let mut state = self.state.lock().await;
        if let Some(log) = state.pending.drop_log() {
            let aside = log.set_aside();
            tracing::error!(ino = self.ino, %error, aside, "a file that was closed cannot be pushed");
            mount.count(|counts| counts.set_aside += 1);
            state.pending.fail(Errno::EIO);
            mount.forget_unstored(self.ino);
            mount.files.release_spooled(self.ino);
        }
    }

    /// Another mount's version stands; the log's content was kept under another name. Returns false if the log has more by now, or is
    /// gone.
    pub async fn replaced_by(&self, mount: &Mount<B>, attr: &Attr, view: &View) -> bool {
        mount.namespace.forget(&[self.ino]);
        let mut state = self.state.lock().await;
        // Bytes that were written after `view` belong to the log's state, not to the other version: the log then stays,
        // and a later push keeps all of it beside the file. The kernel may set a time at any moment; a time alone does
        // not count.
        let is_whole = state.pending.log().is_some_and(|log| log.has_bytes_of(view));
        if is_whole {
            (state.version, state.content, state.below) = (attr.version, attr.content, Below::Kept);
            state.show_length(mount, attr.size_bytes);
            let keeps = state.keeps_base(mount);
            state.base = if keeps { open_version(mount, self.ino, attr.version).await.ok() } else { None };
            state.replacement = Some((attr.version, attr.size_bytes));
            match failpoint::is_active("mount.kept_pages_stay") {
                true => mount.kernel.lock().committed(self.ino, attr.version, attr.size_bytes, true),
                false => mount.kernel.lock().holds_uncommitted(self.ino),
            }
            state.drop_log(mount);
        }
        is_whole
    }

    /// If another mount's version replaced the file's content, shows that version to the programs that have the file
    /// open. Waits for the kernel. Programs that write see it when they open the file again: a shorter length would cut
    /// off what they wrote and the kernel has not handed over.
    pub async fn show_replacement(&self, mount: &Mount<B>) {
        let replacement = self.state.lock().await.replacement.take();
        let only_read = mount.files.is_open(self.ino) && !mount.files.has_writers(self.ino);
        let Some((version, size_bytes)) = replacement.filter(|_| only_read) else { return };
        if let Err(error) = mount.refresh_kernel(self.ino, version, size_bytes).await {
            tracing::warn!(ino = self.ino, %error, "programs that have the file open see what was written here");
        }
    }

    /// Leaves the programs that have the file open with the replaced content until they open it again. Returns whether
    /// the content was replaced.
    pub async fn forget_replacement(&self) -> bool {
        self.state.lock().await.replacement.take().is_some()
    }
}

impl<B: Backend> State<B> {
    /// Drops the log. For programs that have the file open, it is what lay below the log. If no session keeps that, they get an error for
    /// each byte of it.
    fn file_is_gone(&mut self, mount: &Mount<B>) {
        let origin_bytes = self.pending.log().map_or(0, |log| log.origin.base_bytes);
        self.drop_log(mount);
        let below_bytes = self.base.as_ref().map_or(origin_bytes, |base| base.len_bytes());
        self.show_length(mount, below_bytes);
        self.below = Below::of(below_bytes);
        mount.kernel.lock().holds_uncommitted(self.ino);
    }
}
