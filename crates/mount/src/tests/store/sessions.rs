//! What a client has open: sessions that write a file, and versions that it reads.

use super::{Client, Store};
use crate::backend::{Reader, Writer};
use crate::tests::tasks::pause;
use std::ops::Range;
use std::rc::Rc;
use tessera_client::{Cause, FileError, Opened, Times, WriteDone};
use tessera_wire::meta::*;
use tessera_wire::{Code, Error};

/// A write session of a [`Client`].
pub struct Session {
    store: Rc<Store>,
    ino: u64,
    /// The file as the session knows it.
    bytes: Vec<u8>,
    /// What to do to the current version at a commit; none: the session's bytes replace it.
    patch: Option<Vec<Change>>,
    if_version: Option<u64>,
    /// The store's number when the session was opened.
    ended_sessions: u32,
    /// Number of the chunks that it has written.
    chunks: u64,
}

/// What a session does to a file.
#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Grow(usize),
    SetLen(usize),
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Change::Write(start, bytes) => {
                let end = start + bytes.len();
                file.resize(file.len().max(end), 0);
                file[*start..end].copy_from_slice(bytes);
            }
            Change::Grow(len) => file.resize(file.len().max(*len), 0),
            Change::SetLen(len) => file.resize(*len, 0),
        }
    }
}

impl Client {
    pub(super) fn begin_session(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<Session, FileError> {
        self.store.entry(ino).map_err(|error| failed(Cause::Refused(error)))?;
        let bytes = if patch { self.store.current(ino).bytes } else { Vec::new() };
        let patch = patch.then(Vec::new);
        let ended_sessions = self.store.ended_sessions.get();
        Ok(Session { store: self.store.clone(), ino, bytes, patch, if_version, chunks: 0, ended_sessions })
    }
}

impl Session {
    fn check(&self) -> Result<(), FileError> {
        if self.ended_sessions != self.store.ended_sessions.get() {
            return Err(failed(Cause::Refused(Error::new(Code::SessionExpired, "the session is over"))));
        }
        if !self.store.files.borrow().contains_key(&self.ino) {
            return Err(failed(Cause::Refused(Error::new(Code::NotFound, "no such inode"))));
        }
        match self.store.is_full.get() {
            true => Err(failed(Cause::Refused(Error::new(Code::NoSpace, "no room")))),
            false => Ok(()),
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.bytes);
        self.patch.iter_mut().for_each(|changes| changes.push(change.clone()));
    }
}

pub(super) fn failed(cause: Cause) -> FileError {
    cause.of("a file of the test")
}

impl Writer for Session {
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.check()?;
        self.chunks += 1;
        self.change(Change::Write(offset as usize, bytes.to_vec()));
        Ok(())
    }

    async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        self.write_at(range.start, &vec![0; (range.end - range.start) as usize]).await
    }

    async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        self.change(Change::Grow(offset as usize));
        Ok(())
    }

    // As the client's, commits the bytes that it has before it changes the length.
    async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        let has_bytes = self.patch.iter().flatten().any(|change| matches!(change, Change::Write(..)));
        if has_bytes && size_bytes != self.len_bytes() {
            self.sync(Times::default(), 0).await?;
        }
        self.change(Change::SetLen(size_bytes as usize));
        Ok(())
    }

    fn set_lock_fence(&mut self, _: Option<LockFence>) {}

    async fn sync(&mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        self.check()?;
        self.store.times.set(times);
        for _ in 0..self.store.commit_waits.get() {
            pause().await;
        }
        let current = self.store.current(self.ino).id;
        if let Some(expected) = self.if_version.filter(|expected| *expected != current) {
            return Err(failed(Cause::VersionConflict { expected, current }));
        }
        if let Some(changes) = self.patch.replace(Vec::new()) {
            self.bytes = self.store.current(self.ino).bytes;
            changes.iter().for_each(|change| change.apply(&mut self.bytes));
        }
        let version = self.store.commit(self.ino, &self.bytes, content);
        self.if_version = self.if_version.map(|_| version);
        for _ in 0..self.store.commit_rounds.get() {
            pause().await;
        }
        if let Some(left) = self.store.lost_answers.get().checked_sub(1) {
            self.store.lost_answers.set(left);
            return Err(failed(Cause::ManagerSilent { request: "Commit", waited_ms: 1, last: "lost".into() }));
        }
        let entry = self.store.entry(self.ino).ok().map(Box::new);
        let number = self.store.versions(self.ino) as u64;
        self.store.most_chunks.set(self.store.most_chunks.get().max(self.chunks));
        Ok(WriteDone { ino: self.ino, version, number, entry, chunks: self.chunks, ..WriteDone::default() })
    }

    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A version that a [`Client`] has open.
pub struct OpenVersion {
    pub(super) opened: Opened,
    pub(super) bytes: Vec<u8>,
    pub(super) is_in_memory: bool,
}

impl Reader for OpenVersion {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FileError> {
        let there = &self.bytes[(offset as usize).min(self.bytes.len())..];
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }

    fn opened(&self) -> &Opened {
        &self.opened
    }

    fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }
}
