//! The write session of an open file: how bytes reach it, and its commits.

use super::{Below, HOLD_BYTES, STREAM_FROM_BYTES, State};
use crate::backend::{Backend, Writer};
use crate::errno::{Errno, Outcome, failed};
use crate::mount::Mount;
use crate::namespace::Namespace;
use crate::spool::staged::Staged;
use std::ops::Range;
use tessera_client::{FileError, Times, WriteDone};
use tessera_failpoint as failpoint;
use tessera_policy::WriteMode;
use tessera_wire::Code;
use tessera_wire::meta::LockFence;

/// The longest that a session may be idle, ns. The manager ends a session from which it hears nothing for long, and a mount that is cut
/// off does not learn of it.
const IDLE_MAX_NS: i64 = 1_000_000_000;

/// A session that has written more chunks than this is replaced after its next commit. The client knows them all until then, and looks through them
/// at each commit: a log file may stay open for months, and be synced after each line.
const SESSION_CHUNKS: u64 = 1_024;

/// An open write session.
pub(super) struct Session<W> {
    pub handle: SessionWriter<W>,
    /// When the manager was asked last to open it or to commit, and did.
    pub used_ns: i64,
    /// Another one takes its place once nothing in it waits for a commit. Not earlier: a file that another mount removed has nothing else
    /// that keeps it.
    pub is_outdated: bool,
    /// Offset of the next byte of the stream.
    pub position: u64,
    /// Range that covers everything handed over since the last commit.
    pub uncommitted: Option<Range<u64>>,
    /// True: the session patches. False: it replaces the file and can only go forward.
    pub patches: bool,
    /// Name of the content of the next commit; 0: the store chooses it.
    pub content: u64,
}

/// A write session, or local files before one.
pub(super) enum SessionWriter<W> {
    Direct(W),
    Staged(Staged),
}

macro_rules! either {
    ($writer:expr, $inner:ident => $call:expr) => {
        match $writer {
            SessionWriter::Direct($inner) => $call,
            SessionWriter::Staged($inner) => $call,
        }
    };
}

impl<W: Writer> Writer for SessionWriter<W> {
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        either!(self, writer => writer.write_at(offset, bytes).await)
    }

    async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        either!(self, writer => writer.clear(range).await)
    }

    async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        either!(self, writer => writer.skip_to(offset).await)
    }

    async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        either!(self, writer => writer.set_len(size_bytes).await)
    }

    fn set_lock_fence(&mut self, fence: Option<LockFence>) {
        either!(self, writer => writer.set_lock_fence(fence))
    }

    async fn sync(&mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        either!(self, writer => writer.sync(times, content).await)
    }

    fn len_bytes(&self) -> u64 {
        either!(self, writer => writer.len_bytes())
    }
}

impl<B: Backend> State<B> {
    /// Hands over bytes that continue the stream without copying them, then the buffered bytes that follow.
    pub(super) async fn stream(&mut self, mount: &Mount<B>, offset: u64, bytes: &[u8]) -> Outcome {
        self.hand_over(mount, offset, bytes).await?;
        while let Some((at, piece)) = self.next_in_stream() {
            self.hand_over(mount, at, &piece).await?;
        }
        Ok(())
    }

    /// Hands over buffered bytes while [`STREAM_FROM_BYTES`] or more wait; with `all`, every byte. Bytes that continue
    /// the stream go first.
    pub(super) async fn feed(&mut self, mount: &Mount<B>, all: bool) -> Outcome {
        while all || self.pending.write().buffer.len_bytes() >= STREAM_FROM_BYTES {
            let follows = self.next_in_stream();
            let written = self.pending.write();
            // The kernel writes the pages of one flush in any order. A session that replaces must begin with byte 0: to
            // go back it would have to commit, and other clients would see the part.
            let begins = written.session.is_none() && (self.below == Below::Kept || written.buffer.first() == Some(0));
            let jumps = all || begins || written.buffer.len_bytes() > HOLD_BYTES;
            let next = match follows {
                None if jumps => written.buffer.pop_first(),
                follows => follows,
            };
            let Some((offset, bytes)) = next else { return Ok(()) };
            self.hand_over(mount, offset, &bytes).await?;
        }
        Ok(())
    }

    /// The buffered bytes that continue the stream.
    fn next_in_stream(&mut self) -> Option<(u64, Vec<u8>)> {
        let written = self.pending.write();
        let at = written.session.as_ref()?.position;
        Some((at, written.buffer.take_at(at)?))
    }

    async fn hand_over(&mut self, mount: &Mount<B>, offset: u64, bytes: &[u8]) -> Outcome {
        let goes_back = self.pending.session().is_some_and(|s| !s.patches && offset < s.position);
        if goes_back {
            // The commit must not show the file without these bytes: it is as long as they make it.
            let written = self.pending.write();
            written.grown_bytes = written.grown_bytes.max(offset + bytes.len() as u64);
            self.sync_session(mount).await?;
        }
        // After the commit above nothing may be unsaved.
        self.pending.write();
        let (ino, size_bytes, is_exact) = (self.ino, self.size_bytes, self.has_exact_length());
        let session = self.session(mount).await?;
        // Before the first bytes: a session that has some commits them before it changes the length.
        if is_exact && session.patches && session.uncommitted.is_none() && session.handle.len_bytes() > size_bytes {
            session.handle.set_len(size_bytes).await.map_err(|e| failed("set the length", ino, e.code(), &e))?;
        }
        session.handle.write_at(offset, bytes).await.map_err(|e| failed("write", ino, e.code(), &e))?;
        session.position = offset + bytes.len() as u64;
        let hull = session.uncommitted.get_or_insert(offset..offset);
        *hull = hull.start.min(offset)..hull.end.max(session.position);
        Ok(())
    }

    /// The write session; opens one if there is none, if the manager may have ended the one there is, or if that is outdated.
    pub(super) async fn session(&mut self, mount: &Mount<B>) -> Outcome<&mut Session<B::Writer>> {
        let now_ns = mount.backend.now_ns();
        let is_old = |s: &Session<_>| s.is_outdated || now_ns - s.used_ns > IDLE_MAX_NS;
        match self.pending.session_mut() {
            None => drop(self.open_session(mount, None).await?),
            Some(session) if session.uncommitted.is_none() && is_old(session) => self.replace_session(mount).await?,
            Some(_) => {}
        }
        self.fence_session(mount)?;
        Ok(self.pending.session_mut().expect("it is open"))
    }

    /// Makes the session's commits name the locks that this mount holds on the file.
    fn fence_session(&mut self, mount: &Mount<B>) -> Outcome {
        if mount.locks.knows_lost(self.ino) && !failpoint::is_active("mount.lost_locks_count") {
            return Err(Errno::EIO);
        }
        let fence = mount.locks.fence(self.ino);
        // Bytes that were handed over under a lock stay under it.
        if let Some(session) = self.pending.session_mut().filter(|s| fence.is_some() || s.uncommitted.is_none()) {
            session.handle.set_lock_fence(fence);
        }
        Ok(())
    }

    /// Opens a session; with `if_version` it commits only over that version.
    pub(super) async fn open_session(
        &mut self,
        mount: &Mount<B>,
        if_version: Option<u64>,
    ) -> Outcome<&mut Session<B::Writer>> {
        mount.settle(self.ino).await?;
        let (patches, used_ns) = (self.below != Below::Dropped, mount.backend.now_ns());
        let opened = mount.backend.open_write(self.ino, patches, if_version).await;
        let handle = opened.map_err(|e| failed("open for writing", self.ino, e.code(), &e))?;
        let handle = self.staged(mount, handle)?;
        let session =
            Session { handle, used_ns, is_outdated: false, position: 0, uncommitted: None, patches, content: 0 };
        Ok(self.pending.write().session.insert(session))
    }

    /// Opens a session in place of one in which nothing waits for a commit. The old one stays if there is no other: only it keeps a file
    /// without a name.
    async fn replace_session(&mut self, mount: &Mount<B>) -> Outcome {
        let before = self.pending.write().session.take();
        let opened = self.open_session(mount, None).await.map(drop);
        if opened.is_err() {
            self.pending.write().session = before;
        }
        if opened == Err(Errno::ENOENT) { Ok(()) } else { opened }
    }

    /// Commits the session's content and keeps the session.
    pub(super) async fn sync_session(&mut self, mount: &Mount<B>) -> Outcome {
        self.fence_session(mount)?;
        let Some(session) = self.pending.session_mut() else { return Ok(()) };
        let (stamp, used_ns) = (mount.namespace.with(Namespace::stamp), mount.backend.now_ns());
        let done = session.handle.sync(self.times, session.content).await;
        let done = done.map_err(|e| failed("commit", self.ino, e.code(), &e))?;
        (session.patches, session.uncommitted, session.content, session.used_ns) = (true, None, 0, used_ns);
        session.is_outdated |= done.chunks > SESSION_CHUNKS;
        self.committed(mount, &done, Some(stamp)).await
    }

    /// The session to write through, behind local files if the mode is incremental.
    fn staged(&self, mount: &Mount<B>, session: B::Writer) -> Outcome<SessionWriter<B::Writer>> {
        match &mount.spool {
            Some(spool) if self.mode == WriteMode::Incremental => {
                let (staged, task) = Staged::new(session, spool.clone(), self.ino);
                mount.backend.start_drain(task).map_err(|error| failed("stage", self.ino, Code::Io, &error))?;
                Ok(SessionWriter::Staged(staged))
            }
            _ => Ok(SessionWriter::Direct(session)),
        }
    }
}
