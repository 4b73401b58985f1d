//! Files that are written to the spool. While a file has a log, writes go to the log, and reads come from the log and
//! the version below it. A log begins with the first change after a version. It ends when the store has its content:
//! pushed in the background after a close ([`crate::spool::push`]), or at once for fsync, for a lock, or when the spool
//! is full.

use super::{FIRST_EXTENTS_BYTES, Files, OpenFile, Slot, State, failed, read_base};
use crate::mount::Store;
use crate::spool::Base;
use crate::spool::log::{Log, LogError};
use crate::spool::push::{make_way, pour};
use crate::spool::staged::Writes;
use fuser::Errno;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tessera_client::WriteHandle;
use tessera_mount::attr::nanoseconds;
use tessera_mount::spool::speed::WriteSpeed;
use tessera_policy::{Durability, Policy, WriteMode};
use tessera_wire::{Attr, Code};

/// Unsynced bytes of a log above which a close syncs it before taking the file's lock.
const SYNC_AHEAD_BYTES: u64 = 1 << 20;
/// Attempts to commit while rewrites of the same content change the version in between.
const ATTEMPTS: u32 = 4;

/// Measures how long a file is open for writing, and how many bytes are written.
#[derive(Debug, Default)]
pub struct Meter {
    since: Option<Instant>,
    bytes: u64,
    closed: Option<Instant>,
}

impl Meter {
    /// A handle was opened for writing.
    pub fn opened(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Counts written bytes.
    pub fn wrote(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Time since the last close.
    pub(super) fn since_closed(&self) -> Option<Duration> {
        self.closed.map(|closed| closed.elapsed())
    }

    /// The file was closed. Returns bytes and time since the open, if anything was written.
    fn closes(&mut self) -> Option<(u64, Duration)> {
        self.closed = Some(Instant::now());
        let since = self.since.filter(|_| self.bytes > 0)?;
        Some((self.bytes, since.elapsed()))
    }

    /// The last handle that writes is gone.
    pub fn ends(&mut self) {
        (self.since, self.bytes) = (None, 0);
    }
}

impl Files {
    /// Opens a file whose log was found at the start of the mount. The spool holds the handle.
    pub fn adopt(&self, ino: u64, log: Log) -> Arc<OpenFile> {
        let file = Arc::new(OpenFile::new(ino, log.size_bytes()));
        {
            let mut state = file.state.lock();
            (state.changed, state.replaced, state.log) = (true, false, Some(log));
            state.mode = WriteMode::CompleteLocal;
        }
        self.0.lock().insert(ino, Slot { file: file.clone(), handles: 1, writers: 0 });
        file
    }

    /// Files that wait in the spool.
    pub fn spooled(&self) -> Vec<Arc<OpenFile>> {
        let all: Vec<Arc<OpenFile>> = self.0.lock().values().map(|slot| slot.file.clone()).collect();
        let waits = |state: &State| state.log.is_some() || state.owes_commit;
        all.into_iter().filter(|file| waits(&file.state.lock())).collect()
    }
}

impl OpenFile {
    pub(super) fn new(ino: u64, size_bytes: u64) -> OpenFile {
        let state = Mutex::new(State::new(size_bytes));
        OpenFile { ino, turn: Mutex::default(), meter: Mutex::default(), state }
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Modification time of the state that waits in the spool, ns since 1970.
    pub fn mtime_ns(&self) -> Option<i64> {
        let state = self.state.lock();
        let of_log = state.log.as_ref().and_then(Log::closed);
        of_log.or_else(|| state.owes_commit.then_some(state.mtime_ns))
    }

    /// A program closes the file: acknowledges the writes from the spool, or commits them.
    ///
    /// # Errors
    /// Those of the commit or of the log.
    pub fn close(&self, store: &Store) -> Result<(), Errno> {
        self.sync_ahead();
        let (waits, mode, done) = {
            let (state, done) = self.acknowledge(store, self.state.lock());
            (state.log.is_some() || state.owes_commit, state.mode, done)
        };
        if done.is_ok()
            && let Some((bytes, observed)) = self.meter.lock().closes()
        {
            let achieved = (!waits).then_some(observed);
            store.speeds.lock().closed(self.ino, WriteSpeed { mode, bytes, observed, achieved });
        }
        done
    }

    /// Acknowledges the writes: from the log, or by a commit.
    pub(super) fn acknowledge<'a>(
        &'a self,
        store: &Store,
        mut state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, Result<(), Errno>) {
        let error = match state.close(store, self.ino) {
            Ok(done) => return (state, done),
            Err(error) => error,
        };
        self.without_spool(store, state, &error, |state, _| state.commit(store, self.ino))
    }

    /// The length was changed. If the file has no writer (it waits in the spool and was truncated by name), no close
    /// will follow, so this acknowledges the change and queues the push.
    pub(super) fn truncated_log(&self, store: &Store, state: MutexGuard<'_, State>) -> Result<(), Errno> {
        let Some(spool) = store.spool.as_ref().filter(|_| !store.files.has_writers(self.ino)) else { return Ok(()) };
        let (_state, done) = self.acknowledge(store, state);
        spool.push(self.ino);
        done
    }

    /// The spool is full: pours the log into a session, and commits at once what was acknowledged from it. A failure is
    /// recorded, because the writes that follow are lost. If another mount's version replaced the acknowledged state,
    /// that state is kept beside it, and the write gets `ESTALE`.
    pub(super) fn go_on_without_log<'a>(
        &'a self,
        store: &Store,
        state: MutexGuard<'a, State>,
        error: &LogError,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        let (mut state, done) = self.without_spool(store, state, error, |state, gave_way| match gave_way {
            true => Err(Errno::ESTALE),
            false => state.fall_back(store, self.ino),
        });
        state.note(done)?;
        Ok(state)
    }

    /// As [`OpenFile::in_turn`], after an error of the log.
    fn without_spool<'a>(
        &'a self,
        store: &Store,
        state: MutexGuard<'a, State>,
        error: &LogError,
        commit: impl FnMut(&mut State, bool) -> Result<(), Errno>,
    ) -> (MutexGuard<'a, State>, Result<(), Errno>) {
        drop(state);
        if let Some(spool) = &store.spool {
            spool.falls_back(self.ino, error);
        }
        self.in_turn(store, commit)
    }

    /// Commits the log after the push that is under way, because the two commits would reject each other. `commit`
    /// learns whether another mount's version replaced the acknowledged state. The commit is retried if a version came
    /// in between that only stores the same content in another form.
    pub(super) fn in_turn<'a>(
        &'a self,
        store: &Store,
        mut commit: impl FnMut(&mut State, bool) -> Result<(), Errno>,
    ) -> (MutexGuard<'a, State>, Result<(), Errno>) {
        let _turn = self.turn();
        let (mut gave_way, mut attempts) = (false, 0);
        loop {
            match make_way(store, self) {
                Ok(theirs) => gave_way |= theirs,
                Err(error) => {
                    return (self.state.lock(), Err(failed("push", self.ino, error.code(), &error)));
                }
            }
            let mut state = self.state.lock();
            let done = commit(&mut state, gave_way);
            attempts += 1;
            if done != Err(Errno::ESTALE) || state.log.is_none() || attempts == ATTEMPTS {
                return (state, done);
            }
        }
    }

    /// Syncs most of the log without holding the file's lock.
    fn sync_ahead(&self) {
        let log = {
            let state = self.state.lock();
            let synced = |log: &&Log| !state.optimistic && log.unsynced_bytes() > SYNC_AHEAD_BYTES;
            state.log.as_ref().filter(synced).map(Log::file)
        };
        // The log remembers a failure and returns it at its next close.
        let _ = log.map(|log| log.sync());
    }
}

/// Reads through a log. Written records do not change, so the lock is released before the disk is read.
pub(super) fn read(
    mut state: MutexGuard<'_, State>,
    store: &Store,
    ino: u64,
    offset: u64,
    out: &mut [u8],
) -> Result<(), Errno> {
    let Some(log) = &state.log else { return Ok(()) };
    let kept = log.kept_bytes().saturating_sub(offset).min(out.len() as u64) as usize;
    let (pieces, file) = log.view_of(offset, out.len() as u64);
    if kept > 0 && state.base.is_none() {
        let version = log.base_version();
        state.base = Some(open_version(store, ino, version).or_else(|_| open_version(store, ino, 0))?);
    }
    let base = state.base.clone();
    drop(state);
    if let Some(base) = base {
        read_base(&base, offset, &mut out[..kept])?;
    }
    for piece in pieces {
        let at = (piece.offset - offset) as usize;
        file.read(&piece, &mut out[at..at + piece.len_bytes as usize]).map_err(|error| {
            tracing::error!(ino, %error, "what is in the spool cannot be read");
            Errno::EIO
        })?;
    }
    Ok(())
}

pub(super) fn open_version(store: &Store, ino: u64, version: u64) -> Result<Arc<tessera_client::ReadHandle>, Errno> {
    let opened = store.client.inodes().open_read(ino, version, 0..FIRST_EXTENTS_BYTES);
    Ok(Arc::new(opened.map_err(|e| failed("open", ino, e.code(), &e))?))
}

impl State {
    /// Whether writes go to a log. Begins one if nothing waits to be committed and the policy asks for it.
    pub(super) fn begin_log(&mut self, store: &Store, ino: u64) -> bool {
        if self.log.is_some() {
            return true;
        }
        let Some(spool) = &store.spool else { return false };
        if self.changed || self.unlinked || self.failed.is_some() {
            return false;
        }
        let Some((policy, attr)) = self.asked(store, ino) else { return false };
        (self.mode, self.optimistic) = (policy.write_mode, policy.durability == Durability::Optimistic);
        // The manager must know a file before the spool acknowledges anything of it.
        if self.mode != WriteMode::CompleteLocal || store.settle(ino).is_err() {
            return false;
        }
        if self.version == 0 {
            // First use of the file on this mount: take version and length from one answer.
            (self.version, self.size_bytes) = (attr.version, attr.size_bytes);
        }
        let content = match &attr {
            attr if attr.version == self.version => attr.content,
            // The same content was rewritten as another version while the file was open.
            attr if attr.content != 0 && attr.content == self.content => {
                self.version = attr.version;
                attr.content
            }
            _ => 0,
        };
        match spool.begin(store, ino, Base { version: self.version, len_bytes: self.size_bytes, content }) {
            Ok(log) => {
                self.session = None;
                self.log = Some(log);
                store.files.hold(ino);
                true
            }
            Err(error) => {
                spool.falls_back(ino, &error);
                self.mode = WriteMode::SlidingWindow;
                false
            }
        }
    }

    /// Changes the log, if there is one.
    pub(super) fn change_log(&mut self, change: impl FnOnce(&mut Log) -> Result<(), LogError>) -> Result<(), LogError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        self.changed = true;
        change(log)?;
        self.size_bytes = log.size_bytes();
        Ok(())
    }

    /// See [`OpenFile::go_on_without_log`], which holds the turn.
    fn fall_back(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        self.mode = WriteMode::SlidingWindow;
        let owes = self.log.as_ref().is_some_and(Log::owes);
        let done = self.pour_log(store, ino).and_then(|()| if owes { self.sync_poured(store, ino) } else { Ok(()) });
        match done {
            Ok(()) => self.drop_poured(store, ino),
            Err(_) => drop(self.take_log_back()),
        }
        if owes {
            // This session commits only over the log's base version; the writes that follow need no such condition.
            self.session = None;
        }
        done
    }

    /// Commits the poured content and its length.
    fn sync_poured(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        self.cut = false;
        self.sync_session(store, ino)
    }

    /// See [`OpenFile::acknowledge`]. After an error of the log, the caller commits without the spool.
    fn close(&mut self, store: &Store, ino: u64) -> Result<Result<(), Errno>, LogError> {
        if self.failed.is_some() || (self.changed && store.client.locks().are_lost(ino)) {
            return Ok(self.commit(store, ino));
        }
        if self.changed && self.mode == WriteMode::Incremental && self.optimistic && self.session.is_some() {
            return Ok(self.close_staged(store, ino));
        }
        let Some(log) = &mut self.log else { return Ok(self.commit(store, ino)) };
        let mtime_ns = match (self.mtime_ns, log.closed()) {
            (0, Some(before)) => before,
            (0, None) => nanoseconds(SystemTime::now()),
            (set, _) => set,
        };
        log.close(mtime_ns, !self.optimistic)?;
        self.mtime_ns = 0;
        Ok(Ok(()))
    }

    /// Acknowledges a file of incremental writes: everything is in local files or in the session, and a push commits it
    /// later.
    fn close_staged(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        let handed_over = self.feed(store, ino, true);
        self.note(handed_over)?;
        if self.mtime_ns == 0 {
            self.mtime_ns = nanoseconds(SystemTime::now());
        }
        if !std::mem::replace(&mut self.owes_commit, true) {
            store.files.hold(ino);
        }
        Ok(())
    }

    /// The session to write through, behind local files if the mode is incremental.
    pub(super) fn staged(&self, store: &Store, ino: u64, session: WriteHandle) -> Result<Box<dyn Writes>, Errno> {
        match &store.spool {
            Some(spool) if self.mode == WriteMode::Incremental => {
                let staged = spool.stage(ino, session).map_err(|error| failed("stage", ino, Code::Io, &error))?;
                Ok(Box::new(staged))
            }
            _ => Ok(Box::new(session)),
        }
    }

    /// No handle that writes is left: queues the push.
    pub(super) fn leave_to_spool(&mut self, store: &Store, ino: u64) {
        if self.owes_commit
            && let Some(spool) = &store.spool
        {
            return spool.push(ino);
        }
        let Some(log) = &self.log else { return };
        match (&store.spool, self.failed) {
            (Some(spool), None) => spool.push(ino),
            _ if log.owes() => {
                tracing::error!(ino, log = %log.path().display(), "a file that failed later stays in the spool as it was closed before");
                self.log = None;
                store.files.let_go(ino);
            }
            _ => self.drop_log(store, ino),
        }
    }

    /// Records a modification time that was set after the close.
    pub(super) fn time_log(&mut self) {
        let Some(log) = self.log.as_mut().filter(|log| log.closed().is_some()) else { return };
        match log.close(self.mtime_ns, false) {
            Ok(()) => self.mtime_ns = 0,
            Err(error) => tracing::warn!(%error, "a modification time is set when the file is pushed or closed"),
        }
    }

    /// Pours the log into a session.
    pub(super) fn pour_log(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let (mut view, owes) = (log.view(), log.owes());
        let content = log.is_pushed(&view);
        self.poured = Some(log);
        (self.session, self.cut) = (None, false);
        self.replaced = view.overlay.kept_bytes() == 0;
        if self.mtime_ns == 0 {
            self.mtime_ns = std::mem::take(&mut view.mtime_ns);
        }
        let size_bytes = self.size_bytes;
        // The acknowledged state must not overwrite a version that another client committed since.
        let session = match owes {
            true => self.open_session(store, ino, Some(view.origin.base_version))?,
            false => self.session(store, ino)?,
        };
        let below = session.handle.len_bytes();
        pour(&view, &mut *session.handle).map_err(|e| failed("push", ino, e.code(), &e))?;
        session.handle.set_content(content);
        session.position = size_bytes;
        session.uncommitted = Some(0..size_bytes);
        // The session knows the length, but no version does: a write behind the end would bring the old bytes back.
        self.cut = size_bytes < below;
        Ok(())
    }

    /// The commit failed: the log becomes the file's state again. Returns false if no log was poured.
    pub(super) fn take_log_back(&mut self) -> bool {
        let Some(log) = self.poured.take() else { return false };
        self.session = None;
        self.log = Some(log);
        true
    }

    /// A version has what was written: drops the poured log, and the spool's handle if a commit was owed.
    pub(super) fn is_committed(&mut self, store: &Store, ino: u64) {
        self.drop_poured(store, ino);
        if std::mem::replace(&mut self.owes_commit, false) {
            store.files.let_go(ino);
        }
    }

    /// Removes the poured log.
    fn drop_poured(&mut self, store: &Store, ino: u64) {
        if let Some(log) = self.poured.take() {
            log.remove();
            store.files.let_go(ino);
        }
    }

    pub(super) fn drop_log(&mut self, store: &Store, ino: u64) {
        if let Some(log) = self.log.take() {
            log.remove();
            self.changed = false;
            store.files.let_go(ino);
        }
    }

    /// The file's policy, and its attributes in the store.
    fn asked(&self, store: &Store, ino: u64) -> Option<(Policy, Attr)> {
        let known = match store.namespace.attr(ino).or_else(|| self.made.clone()) {
            Some(known) => known,
            None => store.namespace.get(&store.client, ino).ok()?,
        };
        Some((known.policy()?, known.attr))
    }
}
