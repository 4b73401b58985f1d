//! The version below what was written here: which of its bytes belong to the file, and what another mount's version changes.

use super::pending::NextLength;
use super::{State, spooled};
use crate::backend::{Backend, Reader};
use crate::errno::{Errno, Outcome};
use crate::mount::Mount;
use bytes::Bytes;
use std::sync::Arc;
use tessera_failpoint as failpoint;

/// Which bytes of the version below belong to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Below {
    /// Those over which nothing was written.
    Kept,
    /// It had none when this mount opened it. What other mounts write meanwhile stays, as in [`Below::Kept`].
    Empty,
    /// None: this mount truncated the file to length 0.
    Dropped,
}

impl Below {
    /// What a version of this length is to a file that was not written here.
    pub fn of(size_bytes: u64) -> Below {
        if size_bytes == 0 { Below::Empty } else { Below::Kept }
    }
}

/// Opens the current version, which the manager must know, in a session that keeps it.
pub(super) async fn open_base<B: Backend>(mount: &Mount<B>, ino: u64) -> Outcome<Arc<B::Reader>> {
    mount.settle(ino).await?;
    if let Some(recent) = mount.recent.current(mount, ino, true) {
        return Ok(recent);
    }
    open_current(mount, ino).await
}

/// As [`open_base`]; the version may also be in memory.
pub(super) async fn open_to_read<B: Backend>(mount: &Mount<B>, ino: u64) -> Outcome<Arc<B::Reader>> {
    mount.settle(ino).await?;
    if let Some(recent) = mount.recent.current(mount, ino, false) {
        return Ok(recent);
    }
    match mount.content_ahead(ino).await {
        Some(version) => Ok(version),
        None => open_current(mount, ino).await,
    }
}

async fn open_current<B: Backend>(mount: &Mount<B>, ino: u64) -> Outcome<Arc<B::Reader>> {
    let asked_ns = mount.backend.now_ns();
    let opened = spooled::open_version(mount, ino, 0).await?;
    mount.recent.keep(ino, &opened, asked_ns);
    Ok(opened)
}

impl<B: Backend> State<B> {
    /// The version below. If none is open, opens the current one; for a file with a log, the version over which the log began. If another
    /// mount committed the current one, the length changes too.
    pub(super) async fn base(&mut self, mount: &Mount<B>) -> Outcome<Arc<B::Reader>> {
        if let Some(base) = &self.base {
            return Ok(base.clone());
        }
        if let Some(version) = self.pending.log().map(|log| log.origin.base_version) {
            let base = spooled::open_below(mount, self.ino, version).await?;
            return Ok(self.base.insert(base).clone());
        }
        let base = open_base(mount, self.ino).await?;
        if base.opened().version.version != self.version {
            self.lies_over(mount, &base);
        }
        Ok(self.base.insert(base).clone())
    }

    /// The content of the version below without an open, if it is in memory and a lease says that it is the current one.
    pub(super) fn known_current(&self, mount: &Mount<B>) -> Option<Bytes> {
        let known = self.known_below().filter(|_| self.base.is_none())?;
        let is_current = || mount.namespace.attr(self.ino).is_some_and(|entry| entry.attr.version == self.version);
        (failpoint::is_active("mount.known_content_is_not_compared") || is_current()).then_some(known)
    }

    /// A version that is open has a session from now on: nothing else keeps it in the store, and the file if its last name goes.
    ///
    /// # Errors
    /// As the open of a version. What is in memory can be read all the same.
    pub(super) async fn keep_base(&mut self, mount: &Mount<B>) -> Outcome {
        if let Some(base) = self.base.as_ref().filter(|base| base.is_in_memory()) {
            let version = base.opened().version.version;
            self.base = Some(spooled::open_version(mount, self.ino, version).await?);
        }
        Ok(())
    }

    /// Whether only a session keeps the file: it has no name on this mount, or none in a moment.
    pub(super) fn needs_session(&self, mount: &Mount<B>) -> bool {
        self.unlinked || mount.files.is_being_removed(self.ino)
    }

    /// Whether a version must be open as soon as it is the one below: nothing else keeps it for the programs that have the file open.
    /// Those that read through the kernel's pages may ask for bytes of it after another mount has cut the file off.
    pub(super) fn keeps_base(&self, mount: &Mount<B>) -> bool {
        self.needs_session(mount) || mount.fills_pages_of(self.ino)
    }

    /// To be called before a commit. A program has truncated a file that was empty already, so there is nothing to commit: what another
    /// mount has written since is cut off now, and what it writes later stays.
    pub(super) async fn end_truncate(&mut self, mount: &Mount<B>) -> Outcome {
        if self.below != Below::Dropped || self.pending.is_unsaved() {
            return Ok(());
        }
        match open_base(mount, self.ino).await {
            Ok(base) if base.len_bytes() == 0 => self.take_over(mount, base),
            Ok(_) => self.pending.write().length = NextLength::Exact,
            // Another mount has removed it, and it is as empty.
            Err(Errno::ENOENT) => self.below = Below::Empty,
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// What was written here lies over another version than it began with.
    fn lies_over(&mut self, mount: &Mount<B>, base: &Arc<B::Reader>) {
        if self.below == Below::Dropped {
            // Nothing of it belongs to the file.
            return;
        }
        if self.pending.is_clean() {
            return self.take_over(mount, base.clone());
        }
        // As a commit gives it. Version and number stay: a commit over them is one that another mount came before.
        self.below = Below::Kept;
        if self.pending.length() == NextLength::AtLeast {
            self.show_length(mount, base.len_bytes().max(self.pending.end()));
        }
    }

    /// The file is this version.
    pub(super) fn take_over(&mut self, mount: &Mount<B>, base: Arc<B::Reader>) {
        self.show_length(mount, base.len_bytes());
        if base.opened().version.version != self.version {
            // Another client changed the file; the session builds on the old version.
            self.pending.drop_session();
            self.version = base.opened().version.version;
        }
        self.number = base.opened().version.number;
        let attr = &base.opened().attr;
        self.content = if attr.version == self.version { attr.content } else { 0 };
        self.below = Below::of(self.size_bytes);
        self.base = Some(base);
    }

    /// Offset behind the bytes from `from` on that are those of the version below.
    pub(super) fn kept_until(&self, from: u64) -> u64 {
        if let Some(log) = self.pending.log() {
            return log.kept_until(from);
        }
        if self.below != Below::Kept {
            return 0;
        }
        let Some(written) = self.pending.written() else { return u64::MAX };
        let in_session = written.session.as_ref().and_then(|session| session.uncommitted.as_ref());
        let in_session = in_session.filter(|range| range.end > from).map_or(u64::MAX, |range| range.start);
        written.buffer.next(from).map_or(in_session, |at| at.min(in_session))
    }

    /// Takes over the length of a version with another mount's changes. To be called while the version below is the one before.
    pub(super) fn show_length(&mut self, mount: &Mount<B>, size_bytes: u64) {
        self.keep_uncut(mount, size_bytes);
        if self.has_length && size_bytes > self.size_bytes {
            self.note_old_end(self.size_bytes);
        }
        (self.size_bytes, self.has_length) = (size_bytes, true);
    }

    /// The kernel may have pages with something else from this byte on.
    pub(super) fn note_old_end(&mut self, from_bytes: u64) {
        self.old_end = Some(self.old_end.map_or(from_bytes, |end| end.min(from_bytes)));
    }
}
