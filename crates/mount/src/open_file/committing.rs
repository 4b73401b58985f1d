//! What was written becomes a version.

use super::below::Below;
use super::pending::NextLength;
use super::{Known, State, read_base};
use crate::backend::{Backend, Reader, Writer};
use crate::errno::{Errno, Outcome, failed};
use crate::mount::Mount;
use crate::namespace::{Namespace, Stamp};
use crate::write_buffer::WriteBuffer;
use bytes::Bytes;
use tessera_client::inodes::OnlyIf;
use tessera_client::{FileError, Times, WriteDone};
use tessera_failpoint as failpoint;
use tessera_wire::Code;
use tessera_wire::meta::LockFence;

/// The content of a version that this mount made, or has read for a commit, is kept if it is no longer than this. A few bytes more are then
/// committed in one request, with the rest of the file.
const KNOWN_BYTES: usize = 64 << 10;

/// The content of the next version.
struct Whole {
    bytes: Bytes,
    /// What was written of it over a version that is known; none: all of it was.
    over_known: Option<WriteBuffer>,
}

impl<B: Backend> State<B> {
    pub(super) async fn commit(&mut self, mount: &Mount<B>) -> Outcome {
        self.pending.check()?;
        self.end_truncate(mount).await?;
        if self.pending.is_unsaved() {
            if self.unlinked && failpoint::is_active("mount.unlinked_not_committed") {
                return Ok(());
            }
            // Taken before the look, which it covers: the manager refuses the commit if the lock is lost from here on.
            let fence = mount.locks.fence(self.ino);
            if mount.locks.are_lost(self.ino).await && !failpoint::is_active("mount.lost_locks_count") {
                tracing::error!(ino = self.ino, "what was written under a lock that was lost is not committed");
                return self.note(Err(Errno::EIO));
            }
            let done = match mount.namespace.check(self.ino) {
                Ok(()) => self.commit_changes(mount, fence).await,
                lost => lost,
            };
            if done.is_err() && fence.is_some() && mount.locks.look_for_loss(self.ino).await {
                self.pending.pour_back();
                return self.note(Err(Errno::EIO));
            }
            if done.is_err() && self.pending.pour_back() {
                return done;
            }
            return self.note(done);
        }
        mount.settle(self.ino).await
    }

    async fn commit_changes(&mut self, mount: &Mount<B>, fence: Option<LockFence>) -> Outcome {
        self.pour_log(mount).await?;
        self.learn_below(mount).await;
        if let Some(Whole { bytes, over_known }) = self.whole() {
            let (done, stamp) = self.commit_whole(mount, &bytes, fence).await;
            match done {
                // Another mount committed meanwhile: only what was written here goes over its version.
                Err(error) if error.code() == Code::VersionConflict && stamp.is_some() => {
                    let buffer = &mut self.pending.write().buffer;
                    match over_known {
                        Some(written) => *buffer = written,
                        None => buffer.write(0, &bytes),
                    }
                    self.below = Below::Kept;
                }
                Err(error) => {
                    let errno = failed("commit", self.ino, error.code(), &error);
                    return Err(mount.namespace.check(self.ino).err().unwrap_or(errno));
                }
                Ok(done) => {
                    let written = self.pending.write();
                    (written.length, written.grown_bytes) = (NextLength::AtLeast, 0);
                    let attr = done.entry.as_ref().and_then(|entry| entry.attr.clone());
                    self.known = (bytes.len() <= KNOWN_BYTES).then_some(Known { version: done.version, bytes, attr });
                    return self.committed(mount, &done, stamp).await;
                }
            }
        }
        let (ino, size_bytes, is_exact) = (self.ino, self.size_bytes, self.has_exact_length());
        let cannot = |error: FileError| failed("set the length", ino, error.code(), &error);
        self.feed(mount, true).await?;
        // Another mount may have made the file shorter than it is here: that stays, unless a program set the length.
        let end = if is_exact { size_bytes } else { self.pending.write().grown_bytes };
        let session = self.session(mount).await?;
        // A session that stays open over commits does not know that another mount has made the file shorter.
        let is_unsure = session.patches && !is_exact && session.uncommitted.as_ref().map_or(0, |r| r.end) < end;
        if is_unsure || session.handle.len_bytes() < end {
            session.handle.skip_to(end).await.map_err(cannot)?;
            session.position = end;
        }
        if is_exact && session.patches {
            // It holds even if another mount makes the file longer before the commit.
            session.handle.set_len(size_bytes).await.map_err(cannot)?;
        }
        let written = self.pending.write();
        (written.length, written.grown_bytes) = (NextLength::AtLeast, 0);
        self.sync_session(mount).await
    }

    /// Whether the next version gets the length that is shown here, over any version below.
    pub(super) fn has_exact_length(&self) -> bool {
        self.pending.length() != NextLength::AtLeast && !failpoint::is_active("mount.cut_is_forgotten")
    }

    /// Commits the whole content in one request, if the version below is the one that this mount knows or does not
    /// matter. Returns the request's stamp, too, unless the namespace has the answer.
    async fn commit_whole(
        &self,
        mount: &Mount<B>,
        bytes: &Bytes,
        lock_fence: Option<LockFence>,
    ) -> (Result<WriteDone, FileError>, Option<Stamp>) {
        // The cached policy may be outdated: the manager rejects a wrong one, and the client then asks for the current
        // one.
        let policy = mount.namespace.attr(self.ino).or_else(|| self.created.clone()).and_then(|known| known.policy());
        let stamp = mount.namespace.with(Namespace::stamp);
        if let Some(done) = mount.namespace.first_commit(self.ino, self.times, bytes).await {
            return (done, None);
        }
        let if_version = (self.below != Below::Dropped).then_some(self.version);
        let if_version = if_version.filter(|_| !failpoint::is_active("mount.whole_replaces"));
        let only_if = OnlyIf { version: if_version, lock_fence };
        (mount.backend.write_whole(self.ino, bytes.clone(), policy, self.times, only_if).await, Some(stamp))
    }

    /// The whole content, if it is known here and no session was opened. Takes the buffer.
    fn whole(&mut self) -> Option<Whole> {
        let (size_bytes, known) = (self.size_bytes, self.known_below());
        let pending = self.pending.write();
        if pending.session.is_some() || pending.length == NextLength::Cut {
            return None;
        }
        let all_written = if size_bytes == 0 { Some(Vec::new()) } else { pending.buffer.take_whole(size_bytes) };
        if let Some(bytes) = all_written {
            return Some(Whole { bytes: bytes.into(), over_known: None });
        }
        let mut bytes = known?.to_vec();
        bytes.resize(size_bytes as usize, 0);
        let written = std::mem::take(&mut pending.buffer);
        written.overlay(0, &mut bytes);
        Some(Whole { bytes: bytes.into(), over_known: Some(written) })
    }

    /// Reads the version below of a small file whose session has made a version already, as a database's has: from now on each version
    /// takes one request.
    async fn learn_below(&mut self, mount: &Mount<B>) {
        let has_committed = self.pending.session().is_some_and(|session| session.uncommitted.is_none());
        let is_small = self.size_bytes <= KNOWN_BYTES as u64 && self.below == Below::Kept;
        if !has_committed || !is_small || self.pending.log().is_some() || self.pending.length() == NextLength::Cut {
            return;
        }
        let Ok(base) = self.base(mount).await else { return };
        let len_bytes = base.len_bytes() as usize;
        if base.opened().version.version != self.version || len_bytes > KNOWN_BYTES {
            return;
        }
        let mut bytes = vec![0; len_bytes];
        if read_base(&*base, 0, &mut bytes).await.is_ok() {
            let attr = Some(base.opened().attr.clone());
            self.known = Some(Known { version: self.version, bytes: bytes.into(), attr });
            self.pending.drop_session();
        }
    }

    /// The content of the version below, if it is known here and the file is small.
    pub(super) fn known_below(&self) -> Option<Bytes> {
        let Known { version, bytes, .. } = self.known.as_ref()?;
        let is_current = *version == self.version || failpoint::is_active("mount.known_content_is_stale");
        let is_small = self.size_bytes <= KNOWN_BYTES as u64;
        (is_current && is_small && self.below == Below::Kept).then(|| bytes.clone())
    }

    /// Updates the state after a commit. `stamp`: the request's, unless the namespace already has the answer.
    pub(super) async fn committed(&mut self, mount: &Mount<B>, done: &WriteDone, stamp: Option<Stamp>) -> Outcome {
        let below = std::mem::replace(&mut self.version, done.version);
        let attr = done.entry.as_ref().and_then(|entry| entry.attr.as_ref());
        let attr = attr.filter(|attr| attr.version == done.version);
        self.content = attr.map_or(0, |attr| attr.content);
        if let Some(attr) = attr.filter(|_| self.pending.length() == NextLength::AtLeast) {
            // What another mount wrote behind the end, or cut off, belongs to the version, too.
            self.show_length(mount, attr.size_bytes.max(self.pending.end()));
        }
        self.created = None;
        self.times = Times::default();
        self.below = Below::Kept;
        match (stamp, &done.entry) {
            (Some(stamp), Some(entry)) => mount.namespace.with(|core, _| _ = core.cache.changed_here(stamp, entry)),
            (Some(_), None) => mount.namespace.forget(&[self.ino]),
            (None, _) => {}
        }
        // A patch over another mount's version shows bytes that the kernel's pages do not have. Nor do they have those of a version
        // for which an open has not made the kernel drop them yet.
        let kernel_has_below = mount.kernel.lock().has_version(self.ino, below);
        let follows =
            done.number == self.number + 1 && kernel_has_below || failpoint::is_active("mount.patch_keeps_pages");
        self.number = done.number;
        mount.kernel.lock().committed(self.ino, done.version, self.size_bytes, follows);
        let had_log = self.release(mount);
        // Only sessions keep a file without a name: open the new one before dropping the old.
        let _before = self.base.take();
        if self.keeps_base(mount)
            && let Err(errno) = self.base(mount).await
            && self.needs_session(mount)
        {
            return Err(errno);
        }
        if had_log && let Some(session) = self.pending.session_mut() {
            // It may commit only over the version that it has made. What is written around the spool needs no such condition.
            session.is_outdated = true;
        }
        Ok(())
    }
}
