//! Files that are written to the spool. While a file has a log, writes go to the log, and reads come from the log and
//! the version below it. A log begins with the first change after a version. It ends when the store has its content:
//! pushed in the background after a close ([`crate::spool::push`]), or at once for fsync, for a lock, or when the spool
//! is full.

use super::pending::{NextLength, Released};
use super::{Below, FIRST_EXTENTS_BYTES, OpenFile, State, read_base};
use crate::backend::{Backend, Writer};
use crate::errno::{Errno, Outcome, failed};
use crate::mount::Mount;
use crate::spool::log::{Log, LogError};
use crate::spool::push::{pour, push_acknowledged};
use crate::spool::replay::LogOrigin;
use crate::spool::speed::WriteSpeed;
use futures_util::lock::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use tessera_client::Times;
use tessera_failpoint as failpoint;
use tessera_policy::{Durability, Policy, WriteMode};
use tessera_wire::Attr;

/// Unsynced bytes of a log above which a close syncs it before taking the file's lock.
const SYNC_AHEAD_BYTES: u64 = 1 << 20;
/// Attempts to commit while rewrites of the same content change the version in between.
const ATTEMPTS: u32 = 4;

/// Measures how long a file is open for writing, and how many bytes are written. Times are monotonic, ns.
#[derive(Debug, Default)]
pub struct Meter {
    since_ns: Option<i64>,
    bytes: u64,
    closed_ns: Option<i64>,
}

fn between(from_ns: i64, to_ns: i64) -> Duration {
    Duration::from_nanos(to_ns.saturating_sub(from_ns).max(0) as u64)
}

impl Meter {
    /// A handle was opened for writing.
    pub fn opened(&mut self, now_ns: i64) {
        self.since_ns.get_or_insert(now_ns);
    }

    /// Counts written bytes.
    pub fn wrote(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Time since the last close.
    pub(super) fn since_closed(&self, now_ns: i64) -> Option<Duration> {
        self.closed_ns.map(|closed_ns| between(closed_ns, now_ns))
    }

    /// The file was closed. Returns bytes and time since the open, if anything was written.
    fn closes(&mut self, now_ns: i64) -> Option<(u64, Duration)> {
        self.closed_ns = Some(now_ns);
        let since_ns = self.since_ns.filter(|_| self.bytes > 0)?;
        Some((self.bytes, between(since_ns, now_ns)))
    }

    /// The last handle that writes is gone.
    pub fn ends(&mut self) {
        (self.since_ns, self.bytes) = (None, 0);
    }
}

/// What to do once the state that was acknowledged earlier is in the store.
#[derive(Clone, Copy)]
pub(super) enum AfterPush {
    /// Commit everything.
    Commit,
    /// Pour the log into a session: the spool cannot take more.
    LeaveSpool,
}

impl<B: Backend> OpenFile<B> {
    pub(super) fn new(state: State<B>) -> OpenFile<B> {
        OpenFile {
            ino: state.ino,
            turn: Mutex::default(),
            writes: Mutex::default(),
            meter: Default::default(),
            dropping: Mutex::default(),
            fills_pages: AtomicBool::new(false),
            mode_changes: AtomicU64::new(0),
            unprivileged_since: AtomicU64::new(u64::MAX),
            state: Mutex::new(state),
        }
    }

    /// A file whose log an earlier mount left.
    pub(super) fn with_log(ino: u64, log: Log) -> OpenFile<B> {
        let mut state = State::new(ino, log.size_bytes());
        (state.below, state.mode) = (Below::Kept, WriteMode::CompleteLocal);
        state.pending.spool(log);
        OpenFile::new(state)
    }

    /// Times of what is in no version yet; one that is 0 will be the time of its commit.
    pub async fn unsaved_times(&self) -> Times {
        let state = self.state.lock().await;
        state.times.or(state.pending.log().and_then(Log::closed).unwrap_or_default())
    }

    /// A program closes the file: acknowledges the writes from the spool, or commits them.
    ///
    /// # Errors
    /// Those of the commit or of the log.
    pub async fn close(&self, mount: &Mount<B>) -> Outcome {
        self.sync_ahead().await;
        let (waits, mode, done) = {
            let (state, done) = self.acknowledge(mount, self.state.lock().await).await;
            (state.waits_in_spool(), state.mode, done)
        };
        if done.is_ok()
            && let Some((bytes, observed)) = self.meter.lock().closes(mount.backend.now_ns())
        {
            let achieved = (!waits).then_some(observed);
            mount.speeds.lock().closed(self.ino, WriteSpeed { mode, bytes, observed, achieved });
        }
        done
    }

    /// Acknowledges the writes: from the log, or by a commit. Where a program holds a lock on the file, another mount may write other
    /// ranges of it: what is committed goes over its version, what the log acknowledged is kept beside it. What cannot be committed waits
    /// in the log, and the program gets the error, unless the file was removed.
    pub(super) async fn acknowledge<'a>(
        &'a self,
        mount: &Mount<B>,
        mut state: MutexGuard<'a, State<B>>,
    ) -> (MutexGuard<'a, State<B>>, Outcome) {
        if state.pending.log().is_some() && mount.locks.is_locked(self.ino) {
            drop(state);
            let committed;
            (state, committed) = self.in_turn(mount, AfterPush::Commit).await;
            if committed.is_ok() || state.pending.log().is_none() || state.close(mount).await.is_err() {
                return (state, committed);
            }
            return (state, if committed == Err(Errno::ENOENT) { Ok(()) } else { committed });
        }
        let error = match state.close(mount).await {
            Ok(done) => return (state, done),
            Err(error) => error,
        };
        self.without_spool(mount, state, &error, AfterPush::Commit).await
    }

    /// What was written under a lock that goes could not be committed. In the log it counts as closed from now on: if another mount makes a
    /// version, it is kept beside that.
    pub async fn keep_in_spool(&self, mount: &Mount<B>) {
        let mut state = self.state.lock().await;
        if state.pending.log().is_none() || state.pending.check().is_err() {
            return;
        }
        if let Err(error) = state.close(mount).await {
            tracing::error!(ino = self.ino, %error, "what was written under a lock can neither be stored nor kept");
            state.pending.fail(Errno::EIO);
        }
    }

    /// The spool is full: pours the log into a session, and commits at once what was acknowledged from it. A failure is
    /// recorded, because the writes that follow are lost. If another mount's version replaced the acknowledged state,
    /// that state is kept beside it, and the write gets `ESTALE`.
    pub(super) async fn go_on_without_log<'a>(
        &'a self,
        mount: &Mount<B>,
        (writes, state): (MutexGuard<'a, ()>, MutexGuard<'a, State<B>>),
        error: &LogError,
    ) -> Outcome<MutexGuard<'a, State<B>>> {
        // The one that has the turn may wait for it.
        drop(writes);
        let (mut state, done) = self.without_spool(mount, state, error, AfterPush::LeaveSpool).await;
        state.note(done)?;
        Ok(state)
    }

    /// As [`OpenFile::in_turn`], after an error of the log.
    async fn without_spool<'a>(
        &'a self,
        mount: &Mount<B>,
        state: MutexGuard<'a, State<B>>,
        error: &LogError,
        then: AfterPush,
    ) -> (MutexGuard<'a, State<B>>, Outcome) {
        drop(state);
        if let Some(spool) = &mount.spool {
            spool.falls_back(self.ino, error);
        }
        self.in_turn(mount, then).await
    }

    /// Commits the log after the push that is under way, because the two commits would reject each other. The commit is
    /// retried if a version came in between that only stores the same content in another form.
    pub(super) async fn in_turn<'a>(
        &'a self,
        mount: &Mount<B>,
        then: AfterPush,
    ) -> (MutexGuard<'a, State<B>>, Outcome) {
        let _turn = self.turn.lock().await;
        let (mut replaced, mut attempts) = (false, 0);
        loop {
            match push_acknowledged(mount, self).await {
                Ok(was_replaced) => replaced |= was_replaced,
                Err(error) => {
                    return (self.state.lock().await, Err(failed("push", self.ino, error.code(), &error)));
                }
            }
            let mut state = self.state.lock().await;
            let done = match then {
                AfterPush::Commit => state.commit(mount).await,
                AfterPush::LeaveSpool if replaced => Err(Errno::ESTALE),
                AfterPush::LeaveSpool => state.fall_back(mount).await,
            };
            attempts += 1;
            if done != Err(Errno::ESTALE) || state.pending.log().is_none() || attempts == ATTEMPTS {
                return (state, done);
            }
        }
    }

    /// Until this is dropped the log takes no write and no length. The caller has the turn.
    pub async fn hold_writes(&self) -> MutexGuard<'_, ()> {
        self.writes.lock().await
    }

    /// Syncs most of the log without holding the file's lock.
    async fn sync_ahead(&self) {
        let log = {
            let state = self.state.lock().await;
            let synced = |log: &&Log| !state.optimistic && log.unsynced_bytes() > SYNC_AHEAD_BYTES;
            state.pending.log().filter(synced).map(|log| log.file.clone())
        };
        // The log remembers a failure and returns it at its next close.
        let _ = log.map(|log| log.sync());
    }
}

/// Reads through a log. Written records do not change, so the lock is released before the disk is read.
pub(super) async fn read<B: Backend>(
    mut state: MutexGuard<'_, State<B>>,
    mount: &Mount<B>,
    offset: u64,
    out: &mut [u8],
) -> Outcome {
    let ino = state.ino;
    let Some(log) = state.pending.log() else { return Ok(()) };
    let kept = log.kept_bytes().saturating_sub(offset).min(out.len() as u64) as usize;
    let (pieces, file) = log.view_of(offset, out.len() as u64);
    let base = if kept > 0 { Some(state.base(mount).await?) } else { None };
    drop(state);
    if let Some(base) = base {
        read_base(&*base, offset, &mut out[..kept]).await?;
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

/// Opens a version of a file; 0: the current one.
pub async fn open_version<B: Backend>(mount: &Mount<B>, ino: u64, version: u64) -> Outcome<Arc<B::Reader>> {
    let opened = mount.backend.open_read(ino, version, 0..FIRST_EXTENTS_BYTES).await;
    Ok(Arc::new(opened.map_err(|e| failed("open", ino, e.code(), &e))?))
}

/// Opens the version below a log.
pub(super) async fn open_below<B: Backend>(mount: &Mount<B>, ino: u64, version: u64) -> Outcome<Arc<B::Reader>> {
    match open_version(mount, ino, version).await {
        // It no longer exists.
        Err(Errno::ENOENT) => open_version(mount, ino, 0).await,
        opened => opened,
    }
}

/// Removes a log, and the spool's handle with it.
fn release_log<B: Backend>(mount: &Mount<B>, ino: u64, log: Option<Log>) {
    if let Some(log) = log {
        if !failpoint::is_active("mount.pushed_log_stays") {
            log.remove();
        }
        mount.files.release_spooled(ino);
    }
}

impl<B: Backend> State<B> {
    /// Whether writes go to a log. Begins one if nothing waits to be committed and the policy asks for it.
    pub(super) async fn begin_log(&mut self, mount: &Mount<B>) -> bool {
        if self.pending.log().is_some() {
            return true;
        }
        let Some(spool) = &mount.spool else { return false };
        if !self.pending.is_clean() || self.unlinked {
            return false;
        }
        let Some((policy, attr)) = self.asked(mount).await else { return false };
        (self.mode, self.optimistic) = (policy.write_mode, policy.durability == Durability::Optimistic);
        // The manager must know a file before the spool acknowledges anything of it.
        if self.mode != WriteMode::CompleteLocal || mount.settle(self.ino).await.is_err() {
            return false;
        }
        // The log lies over it. What is lost lies under no log, either.
        let _ = self.keep_base(mount).await;
        if self.version == 0 && self.base.is_none() && self.created.is_none() {
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
        let (parent, name) = mount.namespace.with(|core, _| core.cache.last_name(self.ino)).unwrap_or_default();
        let (base_version, base_bytes, base_content) = (self.version, self.size_bytes, content);
        let origin = LogOrigin {
            cluster_id: Vec::new(),
            ino: self.ino,
            parent,
            name,
            base_version,
            base_bytes,
            base_content,
            map_version: 0,
        };
        match spool.begin(mount.backend.random(), origin, self.below == Below::Dropped) {
            Ok(log) => {
                self.pending.spool(log);
                mount.files.hold_spooled(self.ino);
                true
            }
            Err(error) => {
                spool.falls_back(self.ino, &error);
                self.mode = WriteMode::SlidingWindow;
                false
            }
        }
    }

    /// Changes the log, if there is one.
    pub(super) fn change_log(
        &mut self,
        mount: &Mount<B>,
        change: impl FnOnce(&mut Log) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.date_change(mount);
        let Some(log) = self.pending.log_mut() else { return Ok(()) };
        change(log)?;
        self.size_bytes = log.size_bytes();
        Ok(())
    }

    /// See [`OpenFile::go_on_without_log`], which holds the turn.
    async fn fall_back(&mut self, mount: &Mount<B>) -> Outcome {
        self.mode = WriteMode::SlidingWindow;
        let owes = self.pending.log().is_some_and(Log::owes);
        let done = match self.pour_log(mount).await {
            Ok(()) if owes => {
                self.pending.write().length = NextLength::AtLeast;
                self.sync_session(mount).await
            }
            poured => poured,
        };
        match done {
            Ok(()) => {
                let log = self.pending.leave_spool();
                release_log(mount, self.ino, log);
            }
            Err(_) => drop(self.pending.pour_back()),
        }
        if owes {
            // This session commits only over the log's base version; the writes that follow need no such condition.
            self.pending.drop_session();
        }
        done
    }

    /// See [`OpenFile::acknowledge`]. After an error of the log, the caller commits without the spool.
    async fn close(&mut self, mount: &Mount<B>) -> Result<Outcome, LogError> {
        let is_unsaved = self.pending.is_unsaved();
        if self.pending.check().is_err() || (is_unsaved && mount.locks.are_lost(self.ino).await) {
            return Ok(self.commit(mount).await);
        }
        let is_staged = self.mode == WriteMode::Incremental && self.pending.session().is_some();
        if is_unsaved && is_staged && self.optimistic {
            return Ok(self.close_staged(mount).await);
        }
        let Some(log) = self.pending.log_mut() else { return Ok(self.commit(mount).await) };
        let before = log.closed().unwrap_or_else(|| now(&*mount.backend));
        log.close(self.times.or(before), !self.optimistic)?;
        self.times = Times::default();
        Ok(Ok(()))
    }

    /// Acknowledges a file of incremental writes: everything is in local files or in the session, and a push commits it
    /// later.
    async fn close_staged(&mut self, mount: &Mount<B>) -> Outcome {
        // Before a commit on the way, which gives back the spool's handle from the last close: there may be no other.
        mount.files.hold_spooled(self.ino);
        let handed_over = self.feed(mount, true).await;
        let handed_over = self.note(handed_over);
        let is_new = handed_over.is_ok() && {
            self.times = self.times.or(now(&*mount.backend));
            self.pending.drain()
        };
        if !is_new {
            mount.files.release_spooled(self.ino);
        }
        handed_over
    }

    /// No handle that writes is left: queues the push.
    pub(super) fn leave_to_spool(&mut self, mount: &Mount<B>) {
        if self.pending.is_draining()
            && let Some(spool) = &mount.spool
        {
            return spool.push(self.ino);
        }
        let Some(log) = self.pending.log() else { return };
        match (&mount.spool, self.pending.check()) {
            (Some(spool), Ok(())) => spool.push(self.ino),
            _ if log.owes() => {
                tracing::error!(
                    ino = self.ino,
                    log = log.path(),
                    "a file that failed later stays in the spool as it was closed before"
                );
                drop(self.pending.drop_log());
                // What was written after that close is in no version.
                self.pending.write();
                mount.files.release_spooled(self.ino);
            }
            _ => self.drop_log(mount),
        }
    }

    /// Whether the file waits in the spool.
    pub(super) fn waits_in_spool(&self) -> bool {
        self.pending.log().is_some() || self.pending.is_draining()
    }

    /// Records times that were set after the close.
    pub(super) fn time_log(&mut self) {
        let Some(log) = self.pending.log_mut().filter(|log| log.closed().is_some()) else { return };
        match log.close(self.times.or(log.closed().unwrap_or_default()), false) {
            Ok(()) => self.times = Times::default(),
            Err(error) => tracing::warn!(%error, "times are set when the file is pushed or closed"),
        }
    }

    /// Pours the log into a session.
    pub(super) async fn pour_log(&mut self, mount: &Mount<B>) -> Outcome {
        let Some(log) = self.pending.pour() else { return Ok(()) };
        let (mut view, owes, since) = (log.view(), log.owes(), log.stored_end());
        let shortest_set = view.overlay.shortest_set(since);
        let content = log.is_pushed(&view, mount.backend.random());
        self.below = if shortest_set == Some(0) { Below::Dropped } else { Below::Kept };
        self.times = self.times.or(std::mem::take(&mut view.times));
        let (ino, size_bytes) = (self.ino, self.size_bytes);
        // The acknowledged state must not overwrite a version that another client committed since.
        let session = match owes {
            true => self.open_session(mount, Some(view.origin.base_version)).await?,
            false => self.session(mount).await?,
        };
        let below = session.handle.len_bytes();
        pour(&view, since, &mut session.handle).await.map_err(|e| failed("push", ino, e.code(), &e))?;
        session.content = content;
        session.position = size_bytes;
        session.uncommitted = Some(0..size_bytes);
        self.pending.write().length = match shortest_set.is_some() {
            // The session knows the length, but no version does: a write behind the end would bring the old bytes back.
            true if size_bytes < below => NextLength::Cut,
            true => NextLength::Exact,
            false => NextLength::AtLeast,
        };
        Ok(())
    }

    /// A version has what was written: drops the log, and the spool's handle. Returns whether there was a log.
    pub(super) fn release(&mut self, mount: &Mount<B>) -> bool {
        let Released { log, drained } = self.pending.committed();
        let had_log = log.is_some();
        release_log(mount, self.ino, log);
        if drained {
            mount.files.release_spooled(self.ino);
        }
        had_log
    }

    pub(super) fn drop_log(&mut self, mount: &Mount<B>) {
        let log = self.pending.drop_log();
        release_log(mount, self.ino, log);
    }

    /// The file's policy, and its attributes in the store.
    async fn asked(&self, mount: &Mount<B>) -> Option<(Policy, Attr)> {
        let known = match mount.namespace.attr(self.ino).or_else(|| self.created.clone()) {
            Some(known) => known,
            None => mount.namespace.get(self.ino).await.ok()?,
        };
        Some((known.policy()?, known.attr))
    }
}

pub(super) fn now<B: Backend>(backend: &B) -> Times {
    let now_ns = backend.wall_ns();
    Times { mtime_ns: now_ns, ctime_ns: now_ns, ..Times::default() }
}
