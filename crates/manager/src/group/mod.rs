//! A manager as a member of the group: it applies what the group commits, and serves while it leads.
//!
//! [`Manager`] holds a [`Peer`] and either a standby's database or, while the peer leads, a [`ManagerCore`]. The leader applies a batch
//! in an open transaction, proposes it as one entry with its recorded choices, and commits the transaction once the group has
//! committed the entry; if it is deposed first, it rolls back. A standby replays entries. So a database holds committed state only.
//!
//! Replies that show state, rather than tell of a commit, leave once a majority has confirmed that this manager still led when it
//! made them (P7). One round of messages confirms all that wait.

mod home;
mod replies;
#[cfg(test)]
mod tests;

pub use home::DbHome;

use crate::config::Config;
use crate::core::{Action, Event, ManagerCore};
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::log::batch;
use bytes::Bytes;
use prost::Message;
use replies::Unconfirmed;
use std::collections::VecDeque;
use std::sync::Arc;
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::log::{Base, Log, LogIdentity, LogOptions};
use tessera_consensus::plan::Candidate;
use tessera_consensus::{Input, Output, Peer, PeerConfig, Standing};
use tessera_disk::Disk;
use tessera_wire::consensus::{Membership, SnapshotInfo};
use tessera_wire::log::LogEntry;
use tessera_wire::{Code, Error, Kind};

/// Directory of the log within the manager's directory.
pub const LOG_DIR: &str = "log";
/// Ticks between two looks at the length of the log.
const SNAPSHOT_TICKS: u64 = 5;

/// Why a manager did not start as a member.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The log could not be opened.
    #[error(transparent)]
    Open(#[from] tessera_consensus::log::LogOpenError),
    /// The log or a snapshot could not be written or read.
    #[error(transparent)]
    Log(#[from] tessera_consensus::log::LogError),
    /// The log does not belong to the database, or has lost something.
    #[error(transparent)]
    Peer(#[from] tessera_consensus::PeerError),
    /// The database failed.
    #[error(transparent)]
    Db(#[from] crate::db::DbError),
    /// A statement failed.
    #[error("the database failed: {0}")]
    Sql(#[from] rusqlite::Error),
}

/// What a manager wants done.
#[derive(Debug)]
pub enum GroupAction {
    /// An action of the serving core, or a call to another peer.
    Core(Action),
    /// Answers a frame or a request for a piece of a snapshot.
    Answer {
        /// As passed to [`Manager::request`].
        token: u64,
        /// Encoded reply and payload.
        result: Result<(Bytes, Vec<Bytes>), Error>,
    },
}

#[allow(clippy::large_enum_variant, reason = "there is one")]
enum State {
    Standby {
        db: Db,
        meta: Meta,
        caches: Caches,
    },
    Leading(ManagerCore),
    /// Between two of the above, or after a failure.
    Nothing,
}

/// A manager.
pub struct Manager {
    config: Config,
    home: DbHome,
    peer: Peer,
    state: State,
    /// Index of the entry that the open batch becomes.
    proposed: Option<u64>,
    unconfirmed: Unconfirmed,
    actions: VecDeque<GroupAction>,
    ticks: u64,
    /// Why it serves no more.
    failed: Option<Error>,
}

impl Manager {
    /// Founds a group of one on a fresh database.
    ///
    /// # Errors
    /// The disk or the database fails.
    pub fn found(
        db: Db,
        home: DbHome,
        disk: Arc<dyn Disk>,
        config: Config,
        peer: PeerConfig,
    ) -> Result<Manager, GroupError> {
        let mut meta = db.meta()?;
        let base = Base { index: 1, term: 1 };
        (meta.log_seq, meta.term) = (base.index, base.term);
        db.begin()?;
        meta.store(&db)?;
        db.commit()?;
        let member = peer.member.clone();
        let membership =
            Membership { index: 1, voters: vec![member.id], members: vec![member], ..Membership::default() };
        let identity = LogIdentity { cluster_id: meta.cluster_id, peer_id: peer.member.id };
        let log = Log::create(disk.clone(), LOG_DIR, identity, LogOptions::default(), base, membership.clone())?;
        let files = SnapshotFiles::open(disk, LOG_DIR)?;
        let mut manager = Manager::assemble(db, home, log, files, config, peer)?;
        let info = SnapshotInfo { index: 1, term: 1, membership: Some(membership), ..SnapshotInfo::default() };
        manager.make_snapshot(info)?;
        Ok(manager)
    }

    /// Joins a group from an empty directory: it waits until a leader makes it a member. `db` is any database of the cluster; the
    /// group's snapshot replaces it.
    ///
    /// # Errors
    /// As [`Manager::found`].
    pub fn join(
        db: Db,
        home: DbHome,
        disk: Arc<dyn Disk>,
        config: Config,
        peer: PeerConfig,
    ) -> Result<Manager, GroupError> {
        let identity = LogIdentity { cluster_id: db.meta()?.cluster_id, peer_id: peer.member.id };
        let empty = Membership::default();
        let log = Log::create(disk.clone(), LOG_DIR, identity, LogOptions::default(), Base::default(), empty)?;
        let files = SnapshotFiles::open(disk, LOG_DIR)?;
        Manager::assemble(db, home, log, files, config, peer)
    }

    /// Starts again on a database and the log beside it. `peer` gives everything but the peer's id.
    ///
    /// # Errors
    /// [`GroupError`]; also if the log or the database lost what the other holds.
    pub fn restart(
        mut db: Db,
        home: DbHome,
        disk: Arc<dyn Disk>,
        config: Config,
        mut peer: PeerConfig,
    ) -> Result<Option<Manager>, GroupError> {
        let Some(log) = Log::open(disk.clone(), LOG_DIR, LogOptions::default())? else { return Ok(None) };
        let files = SnapshotFiles::open(disk, LOG_DIR)?;
        peer.member.id = log.identity().peer_id;
        // SQLite does not sync every commit: what it lost the log has, or the snapshot that the log begins with.
        let lags = db.meta()?.log_seq < log.base().index;
        if let Some(held) = files.held().cloned().filter(|_| lags) {
            db = home.restore(db, &files, &held)?;
        }
        Manager::assemble(db, home, log, files, config, peer).map(Some)
    }

    fn assemble(
        db: Db,
        home: DbHome,
        log: Log,
        files: SnapshotFiles,
        config: Config,
        peer: PeerConfig,
    ) -> Result<Manager, GroupError> {
        let meta = db.meta()?;
        let peer = Peer::start(log, files, meta.log_seq, peer)?;
        Ok(Manager {
            config,
            home,
            peer,
            state: State::Standby { db, meta, caches: Caches::default() },
            proposed: None,
            unconfirmed: Unconfirmed::default(),
            actions: VecDeque::new(),
            ticks: 0,
            failed: None,
        })
    }

    /// Its part in the group.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The serving core, while this manager leads.
    #[must_use]
    pub fn core(&self) -> Option<&ManagerCore> {
        if let State::Leading(core) = &self.state { Some(core) } else { None }
    }

    /// The database; `None` after a failure.
    #[must_use]
    pub fn db(&self) -> Option<&Db> {
        match &self.state {
            State::Standby { db, .. } => Some(db),
            State::Leading(core) => Some(core.db()),
            State::Nothing => None,
        }
    }

    /// Why it serves no more, if so.
    #[must_use]
    pub fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Gives the database back, e.g. to start again with it. An open batch is rolled back.
    #[must_use]
    pub fn into_db(self) -> Option<Db> {
        match self.state {
            State::Standby { db, .. } => Some(db),
            State::Leading(core) => Some(core.depose(not_leading(None)).0),
            State::Nothing => None,
        }
    }

    /// Tells which peers run in node daemons; see [`Peer::set_candidates`].
    pub fn set_candidates(&mut self, candidates: impl IntoIterator<Item = Candidate>) {
        self.peer.set_candidates(candidates);
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<GroupAction> {
        self.actions.pop_front()
    }

    /// Handles an event of a connection, an answer to a call, or a tick.
    pub fn handle(&mut self, now_ns: i64, event: Event) {
        match event {
            Event::Answer(answer) if answer.token & tessera_consensus::peer::TOKEN_BIT != 0 => {
                self.peer.handle(now_ns, Input::Answer(answer));
            }
            Event::Request { connection, request_id, kind, .. } if self.core().is_none() => {
                let error = self.failed.clone().unwrap_or_else(|| not_leading(self.peer.leader()));
                let reply = Action::Reply { connection, request_id, kind, result: Err(error), is_settled: true };
                return self.actions.push_back(GroupAction::Core(reply));
            }
            event => {
                let is_tick = matches!(event, Event::Tick);
                if is_tick {
                    self.tick(now_ns);
                }
                if let State::Leading(core) = &mut self.state {
                    core.handle(now_ns, event);
                }
            }
        }
        self.settle(now_ns);
    }

    /// Handles a request of another peer.
    pub fn request(&mut self, now_ns: i64, token: u64, kind: Kind, body: Bytes, payload: Bytes) {
        self.peer.handle(now_ns, Input::Request { token, kind, body, payload });
        self.settle(now_ns);
    }

    /// Whether commands wait, and none are on their way through the group.
    #[must_use]
    pub fn wants_commit(&self) -> bool {
        self.proposed.is_none() && self.core().is_some_and(|core| core.wants_commit() && core.stopped().is_none())
    }

    /// Applies the commands that wait and proposes them. If it returns true, the caller carries out the actions so far, which take the
    /// entry to the other peers, and then calls [`Manager::complete`], which writes it here.
    pub fn begin(&mut self, now_ns: i64) -> bool {
        let index = self.peer.log().last_index() + 1;
        let State::Leading(core) = &mut self.state else { return false };
        assert!(self.proposed.is_none(), "one entry at a time");
        let entry = core.begin_entry(now_ns, index);
        let proposed = match entry {
            None => false,
            Some(entry) => match self.peer.propose(entry) {
                Ok(at) => {
                    assert_eq!(at, index, "the entry has the index that its rows name");
                    self.proposed = Some(index);
                    true
                }
                Err(_) => {
                    self.depose();
                    false
                }
            },
        };
        self.settle(now_ns);
        proposed
    }

    /// Writes what [`Manager::begin`] proposed.
    pub fn complete(&mut self, now_ns: i64) {
        self.peer.complete();
        self.settle(now_ns);
    }

    fn tick(&mut self, now_ns: i64) {
        self.peer.handle(now_ns, Input::Tick);
        self.ticks += 1;
        let is_alone = self.peer.membership().voters == [self.peer.id()];
        if is_alone && self.peer.standing().leader.is_none() {
            self.peer.campaign();
        }
        if self.core().is_some() && self.ticks.is_multiple_of(SNAPSHOT_TICKS) {
            self.shorten_log();
        }
    }

    /// Takes in what peer and core want, until both are quiet.
    fn settle(&mut self, now_ns: i64) {
        loop {
            self.collect();
            let Some(output) = self.peer.poll() else { break };
            self.output(now_ns, output);
        }
    }

    /// Sorts the core's actions: replies that show state wait for a confirmation.
    fn collect(&mut self) {
        let State::Leading(core) = &mut self.state else { return };
        while let Some(action) = core.poll() {
            match action {
                Action::Reply { is_settled: false, .. } => self.unconfirmed.hold(action),
                action => self.actions.push_back(GroupAction::Core(action)),
            }
        }
        if let Some(round) = self.unconfirmed.next_round() {
            self.peer.confirm(round);
        }
        let stopped = core.stopped().cloned();
        if let Some(error) = stopped {
            // Its database failed: another manager serves until this one is started again.
            self.fail(error);
        }
    }

    fn output(&mut self, now_ns: i64, output: Output) {
        match output {
            Output::Call(call) => self.actions.push_back(GroupAction::Core(Action::Call(call))),
            Output::Answer { token, result } => self.actions.push_back(GroupAction::Answer { token, result }),
            Output::Committed { index, term, data } => self.committed(now_ns, index, term, data),
            Output::Restore(info) => self.restore(&info),
            Output::Standing(standing) => self.standing(standing),
            Output::Confirmed(round) => {
                let ready = self.unconfirmed.confirmed(round);
                self.actions.extend(ready.into_iter().map(GroupAction::Core));
                if let Some(round) = self.unconfirmed.next_round() {
                    self.peer.confirm(round);
                }
            }
            Output::Members => {}
            Output::Stopped(error) => {
                let error = Error::new(Code::Unavailable, error.to_string());
                self.fail(error);
            }
        }
    }

    fn committed(&mut self, now_ns: i64, index: u64, term: u64, data: Bytes) {
        if let State::Leading(core) = &mut self.state {
            if self.proposed == Some(index) {
                self.proposed = None;
                core.finish_batch();
            }
            return;
        }
        if !data.is_empty() {
            return self.replay(index, &data);
        }
        let standing = self.peer.standing();
        if standing.leads && standing.term == term {
            self.lead(now_ns, term);
        }
    }

    /// The first entry of this peer's term is committed, so everything before it is applied: serve.
    fn lead(&mut self, now_ns: i64, term: u64) {
        let State::Standby { db, .. } = std::mem::replace(&mut self.state, State::Nothing) else { return };
        match ManagerCore::lead(db, self.config.clone(), now_ns, term) {
            Ok(core) => {
                tracing::info!(term, "this manager leads");
                self.state = State::Leading(core);
            }
            Err(failure) => self.fail(failure.into_wire()),
        }
    }

    fn standing(&mut self, standing: Standing) {
        if !standing.leads && self.core().is_some() {
            tracing::info!(term = standing.term, "this manager leads no more");
            self.depose();
        }
    }

    /// Rolls back what the group has not committed, and becomes a standby.
    fn depose(&mut self) {
        let State::Leading(core) = std::mem::replace(&mut self.state, State::Nothing) else { return };
        let error = not_leading(self.peer.leader());
        let (db, actions) = core.depose(error.clone());
        self.proposed = None;
        let held = self.unconfirmed.refuse(&error);
        self.actions.extend(actions.into_iter().chain(held).map(GroupAction::Core));
        match db.meta() {
            Ok(meta) => self.state = State::Standby { db, meta, caches: Caches::default() },
            Err(why) => self.fail(Error::new(Code::Unavailable, format!("the manager's database failed ({why})"))),
        }
    }

    /// Applies a committed entry to a standby's database.
    fn replay(&mut self, index: u64, data: &[u8]) {
        let State::Standby { db, meta, caches } = &mut self.state else { return };
        if index <= meta.log_seq {
            return; // Applied before a restart.
        }
        let applied = LogEntry::decode(data).map_err(|error| error.to_string()).and_then(|entry| {
            assert_eq!(entry.seq, index, "an entry knows its index");
            batch::replay_committed(db, meta, caches, &entry).map_err(|error| error.to_string())
        });
        if let Err(why) = applied {
            self.fail(Error::new(Code::Unavailable, format!("entry {index} cannot be applied: {why}")));
        }
    }

    /// Replaces a standby's database by the snapshot held.
    fn restore(&mut self, info: &SnapshotInfo) {
        let State::Standby { db, .. } = std::mem::replace(&mut self.state, State::Nothing) else { return };
        let restored = self.home.restore(db, self.peer.files(), info).and_then(|db| Ok((db.meta()?, db)));
        match restored {
            Ok((meta, db)) => {
                assert_eq!(meta.log_seq, info.index, "a snapshot holds what it says");
                self.state = State::Standby { db, meta, caches: Caches::default() };
            }
            Err(error) => self.fail(Error::new(Code::Unavailable, format!("a snapshot cannot be used: {error}"))),
        }
    }

    /// Serves no more, and lets another manager lead. A restart finds out what is on disk.
    fn fail(&mut self, error: Error) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!(%error, "this manager cannot go on");
        self.peer.set_may_lead(false);
        self.failed = Some(error.clone());
        self.proposed = None;
        if let State::Leading(core) = std::mem::replace(&mut self.state, State::Nothing) {
            let (_, actions) = core.depose(error.clone());
            self.actions.extend(actions.into_iter().map(GroupAction::Core));
        }
        let held = self.unconfirmed.refuse(&error);
        self.actions.extend(held.into_iter().map(GroupAction::Core));
    }

    /// Makes a snapshot if the log has grown, or a peer needs one.
    fn shorten_log(&mut self) {
        let Some(held) = self.peer.files().held().map(|held| (held.index, held.len_bytes)) else { return };
        let grown = self.peer.log().bytes_after(held.0);
        let share = held.1.saturating_mul(self.config.snapshot_log_percent) / 100;
        let wanted = self.peer.take_lacks_snapshot() || grown > self.config.snapshot_log_bytes.max(share);
        let at = self.db().and_then(|db| db.meta().ok()).map_or(0, |meta| meta.log_seq);
        if !wanted || self.proposed.is_some() || at <= held.0 {
            return;
        }
        let made = self.peer.snapshot_at(at).map(|info| self.make_snapshot(info));
        if let Some(Err(error)) = made {
            tracing::error!(%error, "taking a snapshot");
        }
    }

    fn make_snapshot(&mut self, info: SnapshotInfo) -> Result<(), GroupError> {
        let db = match &mut self.state {
            State::Standby { db, .. } => db,
            State::Leading(core) => core.db_mut(),
            State::Nothing => return Ok(()),
        };
        let info = self.home.make_snapshot(db, self.peer.log(), self.peer.files(), info)?;
        Ok(self.peer.adopt(info)?)
    }
}

/// The error that sends a client to the leader.
fn not_leading(leader: Option<&tessera_wire::consensus::Member>) -> Error {
    let text = match leader {
        Some(leader) => format!("this manager does not lead; the one at {} does", leader.address),
        None => "no manager leads at the moment: fewer than a majority of the peers can be reached, or an election is under way".into(),
    };
    let leader = leader.map(|leader| leader.address.clone()).unwrap_or_default();
    Error { leader, ..Error::new(Code::NotLeader, text) }
}
