//! Files that are written to the spool: while a file has a log, all that is written goes there, and all that is read comes from there and
//! from the version below. A log begins with the first change after a version, and ends when the store has what it says: pushed in the background after
//! the file was closed ([`crate::spool::push`]), or at once for fsync, for a lock, or when the spool can take no more.

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

/// What a log has more than this that is not on the disk goes there before the file is closed.
const SYNC_AHEAD_BYTES: u64 = 1 << 20;
/// Versions of others may come between so often.
const ATTEMPTS: u32 = 4;

/// How long a file has been written, and how much.
#[derive(Debug, Default)]
pub struct Meter {
    since: Option<Instant>,
    bytes: u64,
    closed: Option<Instant>,
}

impl Meter {
    /// Somebody opened it for writing.
    pub fn opened(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Something was written.
    pub fn wrote(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Time since it was closed last.
    pub(super) fn since_closed(&self) -> Option<Duration> {
        self.closed.map(|closed| closed.elapsed())
    }

    /// It was closed: bytes and time until now, if something was written.
    fn closes(&mut self) -> Option<(u64, Duration)> {
        self.closed = Some(Instant::now());
        let since = self.since.filter(|_| self.bytes > 0)?;
        Some((self.bytes, since.elapsed()))
    }

    /// Nobody has it open for writing any more.
    pub fn ends(&mut self) {
        (self.since, self.bytes) = (None, 0);
    }
}

impl Files {
    /// Opens a file whose log was found; the spool has it open.
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

    /// Its inode.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Modification time of what waits in the spool, ns since 1970.
    pub fn mtime_ns(&self) -> Option<i64> {
        let state = self.state.lock();
        let of_log = state.log.as_ref().and_then(Log::closed);
        of_log.or_else(|| state.owes_commit.then_some(state.mtime_ns))
    }

    /// A program closes it: what was written is committed, or acknowledged from the spool.
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

    /// Acknowledges what was written: from the log, or by a commit.
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

    /// The length was changed: by the file's name, while it only waits, nobody will close it.
    pub(super) fn truncated_log(&self, store: &Store, state: MutexGuard<'_, State>) -> Result<(), Errno> {
        let Some(spool) = store.spool.as_ref().filter(|_| !store.files.has_writers(self.ino)) else { return Ok(()) };
        let (_state, done) = self.acknowledge(store, state);
        spool.push(self.ino);
        done
    }

    /// The spool takes no more: what is in it goes into a session, and what was acknowledged of it into a version at once. A failure is remembered:
    /// what is to be written then is lost. Where another's version stands, it is not written on: what came before is kept beside.
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

    /// As [`OpenFile::in_turn`], because of an error of the log's.
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

    /// Commits what the log has once what is on its way into the store already is there: this commit and that one would refuse each other. `commit`
    /// hears whether another's version stands instead. It is done again where one came between that only stores the same bytes anew.
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

    /// The local disk gets most of what was written while nobody who looks at the file has to wait for it.
    fn sync_ahead(&self) {
        let log = {
            let state = self.state.lock();
            let synced = |log: &&Log| !state.optimistic && log.unsynced_bytes() > SYNC_AHEAD_BYTES;
            state.log.as_ref().filter(synced).map(Log::file)
        };
        // A failure is remembered, and heard of when the log is closed.
        let _ = log.map(|log| log.sync());
    }
}

/// Reads through a log. What it holds cannot change, so nobody is kept waiting.
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
    /// Whether what is written now goes into a log; one begins where nothing waits yet and the file's policy asks for it.
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
        // What is acknowledged from the spool is of a file that the manager knows.
        if self.mode != WriteMode::CompleteLocal || store.settle(ino).is_err() {
            return false;
        }
        if self.version == 0 {
            // Nobody looked at it here before: both are of one answer.
            (self.version, self.size_bytes) = (attr.version, attr.size_bytes);
        }
        let content = match &attr {
            attr if attr.version == self.version => attr.content,
            // It was stored anew while somebody had it open.
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

    /// See [`OpenFile::go_on_without_log`], which has the turn.
    fn fall_back(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        self.mode = WriteMode::SlidingWindow;
        let owes = self.log.as_ref().is_some_and(Log::owes);
        let done = self.pour_log(store, ino).and_then(|()| if owes { self.sync_poured(store, ino) } else { Ok(()) });
        match done {
            Ok(()) => self.drop_poured(store, ino),
            Err(_) => drop(self.take_log_back()),
        }
        if owes {
            // It commits over that version alone, and what follows need not.
            self.session = None;
        }
        done
    }

    /// Commits what the log has, its length as well.
    fn sync_poured(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        self.cut = false;
        self.sync_session(store, ino)
    }

    /// See [`OpenFile::acknowledge`]; an error of the log's leaves it to be done without the spool.
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

    /// All that was written is in local files, or in the session; the rest follows.
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

    /// The session that a file is written through.
    pub(super) fn staged(&self, store: &Store, ino: u64, session: WriteHandle) -> Result<Box<dyn Writes>, Errno> {
        match &store.spool {
            Some(spool) if self.mode == WriteMode::Incremental => {
                let staged = spool.stage(ino, session).map_err(|error| failed("stage", ino, Code::Io, &error))?;
                Ok(Box::new(staged))
            }
            _ => Ok(Box::new(session)),
        }
    }

    /// Nobody writes it any more.
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

    /// A modification time that was set after the file was closed.
    pub(super) fn time_log(&mut self) {
        let Some(log) = self.log.as_mut().filter(|log| log.closed().is_some()) else { return };
        match log.close(self.mtime_ns, false) {
            Ok(()) => self.mtime_ns = 0,
            Err(error) => tracing::warn!(%error, "a modification time is set when the file is pushed or closed"),
        }
    }

    /// Hands over to a session what the log has.
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
        // What was acknowledged earlier is not to go over what others committed since.
        let session = match owes {
            true => self.open_session(store, ino, Some(view.origin.base_version))?,
            false => self.session(store, ino)?,
        };
        let below = session.handle.len_bytes();
        pour(&view, &mut *session.handle).map_err(|e| failed("push", ino, e.code(), &e))?;
        session.handle.set_content(content);
        session.position = size_bytes;
        session.uncommitted = Some(0..size_bytes);
        // The session is told, but nothing is committed: a write behind the end would bring back what was there.
        self.cut = size_bytes < below;
        Ok(())
    }

    /// What was handed over did not get into a version: the log has it still. Whether there is one.
    pub(super) fn take_log_back(&mut self) -> bool {
        let Some(log) = self.poured.take() else { return false };
        self.session = None;
        self.log = Some(log);
        true
    }

    /// What was written is in a version.
    pub(super) fn is_committed(&mut self, store: &Store, ino: u64) {
        self.drop_poured(store, ino);
        if std::mem::replace(&mut self.owes_commit, false) {
            store.files.let_go(ino);
        }
    }

    /// What was handed over need not be kept.
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

    /// What the file asks for, and how it is in the store.
    fn asked(&self, store: &Store, ino: u64) -> Option<(Policy, Attr)> {
        let known = match store.namespace.attr(ino).or_else(|| self.made.clone()) {
            Some(known) => known,
            None => store.namespace.get(&store.client, ino).ok()?,
        };
        Some((known.policy()?, known.attr))
    }
}
