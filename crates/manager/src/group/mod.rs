//! A manager as a member of the group: it applies what the group commits, and serves while it leads.
//!
//! [`Manager`] holds a [`Peer`] and either a standby's database or, while the peer leads, a [`ManagerCore`]. The leader applies a batch
//! in an open transaction, proposes it as one entry with its recorded choices, and commits the transaction once the group has
//! committed the entry; if it is deposed first, it rolls back. A standby replays entries ([`backlog`]). So a database holds committed state only.
//!
//! Replies that show state, rather than tell of a commit, leave once a majority has confirmed that this manager still led when it
//! made them (P7). One round of messages confirms all that wait.

mod backlog;
mod compare;
mod home;
mod inspect;
mod members;
mod replies;
pub mod restore;
mod room;
mod snapshots;
mod start;
#[cfg(test)]
pub(crate) mod tests;

use crate::db::LOCK_NAME;
pub use crate::db::LOG_DIR;
pub use compare::{DigestDone, DigestJob};
pub use home::{DbHome, SnapshotDone, SnapshotJob};
pub(crate) use start::{Found, disk_of, resume};
pub use start::{Setup, StartError};

use crate::config::Config;
use crate::core::room::asks_again;
use crate::core::{Action, Confirm, Event, ManagerCore};
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::db::readers::DbReaders;
use crate::metrics::Metrics;
use backlog::Backlog;
use bytes::Bytes;
use compare::{Comparisons, OwnState, REPORT_TOKEN};
use members::not_leading;
use replies::Unconfirmed;
use room::DiskRoom;
use std::collections::VecDeque;
use std::path::PathBuf;
use tessera_consensus::plan::Candidate;
use tessera_consensus::{Input, Output, Peer, Standing};
use tessera_failpoint as failpoint;
use tessera_pagesum::Displaced;
use tessera_wire::consensus::{Member, PeerKind, SnapshotInfo};
use tessera_wire::{Code, Error, Kind};

/// Ticks between two looks at the length of the log, and at the nodes.
const CHORE_TICKS: u64 = 2;

/// Ticks between two campaigns of the only manager.
const CAMPAIGN_TICKS: u64 = 5;

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
    /// A file could not be used.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The database was to be rebuilt from the snapshot beside it, which is no better.
    #[error(
        "the database has to be rebuilt from the snapshot in {LOG_DIR}/, which cannot be used either ({0}); move the directory away and \
         start this manager with --join ADDR, where ADDR is a manager or node that runs, or with --restore if a majority of them is lost"
    )]
    Rebuild(Box<GroupError>),
}

impl GroupError {
    /// The error of a rebuild from the snapshot beside the database. Where the disk is only full, the snapshot is still good.
    fn while_rebuilding(self) -> GroupError {
        if self.is_full() { self } else { GroupError::Rebuild(Box::new(self)) }
    }

    /// Whether more room on the disk would help.
    #[must_use]
    pub fn is_full(&self) -> bool {
        use tessera_consensus::log::LogOpenError;
        match self {
            GroupError::Open(LogOpenError::Disk(error)) => error.is_no_space(),
            GroupError::Log(error) => error.is_no_space(),
            GroupError::Db(error) => error.is_full(),
            GroupError::Sql(error) => crate::db::is_full(error),
            GroupError::File { source, .. } => crate::db::is_full_file(source),
            GroupError::Rebuild(error) => error.is_full(),
            GroupError::Open(_) | GroupError::Peer(_) => false,
        }
    }
}

/// What a manager wants done.
#[derive(Debug)]
pub enum GroupAction {
    /// An action of the serving core, or a call to another peer.
    Core(Action),
    /// Runs this beside the manager, and passes the result to [`Manager::snapshot_done`].
    Snapshot(SnapshotJob),
    /// Runs this beside the manager, and passes the result to [`Manager::digest_done`].
    Digest(DigestJob),
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
    /// Index and term of the entry that the open batch becomes.
    proposed: Option<(u64, u64)>,
    unconfirmed: Unconfirmed,
    actions: VecDeque<GroupAction>,
    backlog: Backlog,
    /// The wall clock minus the shell's time.
    wall_ahead_ns: i64,
    ticks: u64,
    /// A [`SnapshotJob`] is under way.
    copies: bool,
    comparisons: Comparisons,
    own: OwnState,
    room: DiskRoom,
    /// A snapshot failed: none is taken before this tick.
    no_snapshot_before: u64,
    /// Why it serves no more.
    failed: Option<Error>,
}

impl Manager {
    /// Its part in the group.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Addresses of the members of its group that it knows.
    pub fn member_addresses(&self) -> Vec<String> {
        let members = self.peer.membership().members.iter();
        members.map(|member| member.address.clone()).filter(|address| !address.is_empty()).collect()
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

    /// Opens further connections to the database; `None`: it is in memory.
    #[must_use]
    pub fn readers(&self) -> Option<&DbReaders> {
        if let DbHome::Dir { readers, .. } = &self.home { Some(readers) } else { None }
    }

    /// The lock and the directory of the log; `None`: it is in memory.
    #[must_use]
    pub fn held_paths(&self) -> Option<[PathBuf; 2]> {
        if let DbHome::Dir { dir, .. } = &self.home {
            Some([LOCK_NAME, LOG_DIR].map(|name| dir.join(name)))
        } else {
            None
        }
    }

    /// Why it serves no more, if so.
    #[must_use]
    pub fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Gives the database back, e.g. to start again with it. An open batch is rolled back. `None` also if the database is to be replaced.
    #[must_use]
    pub fn into_db(self) -> Option<Db> {
        if self.own.is_dropped {
            return None;
        }
        match self.state {
            State::Standby { db, .. } => Some(db),
            State::Leading(core) => Some(core.depose(not_leading(&self.peer)).0),
            State::Nothing => None,
        }
    }

    /// Tells which peers run in node daemons; see [`Peer::set_candidates`].
    pub fn set_candidates(&mut self, candidates: impl IntoIterator<Item = Candidate>) {
        self.peer.set_candidates(candidates);
    }

    /// Peers to which this one introduces itself; see [`Peer::set_seeds`].
    pub fn set_seeds(&mut self, seeds: Vec<String>) {
        self.peer.set_seeds(seeds);
    }

    /// The knobs.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Numbers for `/metrics`: those of the core while this manager leads.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.core().map(ManagerCore::metrics).unwrap_or_default();
        metrics.gauges.extend([
            ("leads", u64::from(self.core().is_some())),
            ("group_term", self.peer.standing().term),
            ("group_log_seq", self.peer.log().last_index()),
            ("group_entries_behind", self.backlog.len() as u64),
            ("group_voters", self.peer.membership().voters.len() as u64),
            ("metadata_differs", u64::from(self.own.differs_since.is_some())),
            ("group_snapshot_seq", self.peer.files().held().map_or(0, |held| held.index)),
        ]);
        metrics
    }

    /// Hands leadership to another manager, and takes it no more.
    pub fn retire(&mut self) {
        self.peer.set_may_lead(false);
    }

    /// Whether this manager still leads a group that another manager could lead.
    #[must_use]
    pub fn can_hand_over(&self) -> bool {
        self.peer.standing().leads && self.peer.has_other_manager()
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<GroupAction> {
        self.actions.pop_front()
    }

    /// The wall clock was read at `now_ns`.
    pub fn note_wall(&mut self, now_ns: i64, wall_ns: i64) {
        self.wall_ahead_ns = wall_ns.saturating_sub(now_ns);
        if let State::Leading(core) = &mut self.state {
            core.note_wall(now_ns, wall_ns);
        }
    }

    /// Handles an event of a connection, an answer to a call, or a tick.
    pub fn handle(&mut self, now_ns: i64, event: Event) {
        match event {
            Event::Answer(answer) if answer.token & tessera_consensus::peer::TOKEN_BIT != 0 => {
                self.peer.handle(now_ns, Input::Answer(answer));
            }
            Event::Answer(answer) if answer.token == REPORT_TOKEN => self.report_answered(answer),
            Event::Request { connection, role, request_id, kind, .. } if self.core().is_none() => {
                let error = self.refusal(asks_again(role, kind));
                let reply = Action::Reply { connection, request_id, kind, result: Err(error), confirm: Confirm::No };
                return self.actions.push_back(GroupAction::Core(reply));
            }
            Event::Read(done) if self.core().is_none() => {
                let error = self.refusal(false);
                self.actions.push_back(GroupAction::Core(done.refused(error)));
            }
            Event::Request { connection, role, request_id, kind: kind @ Kind::ChangePeer, body, .. } => {
                let result = kind.check_role(role).and_then(|()| self.change_peer(&body));
                let reply = Action::Reply { connection, request_id, kind, result, confirm: Confirm::No };
                self.actions.push_back(GroupAction::Core(reply));
            }
            event => {
                let is_tick = matches!(event, Event::Tick);
                if is_tick {
                    self.unconfirmed.tick(now_ns);
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
        match kind {
            Kind::ReportDigest => {
                let result = self.take_report(&body).map(|reply| (reply, Vec::new()));
                self.actions.push_back(GroupAction::Answer { token, result });
            }
            _ => self.peer.handle(now_ns, Input::Request { token, kind, body, payload }),
        }
        self.settle(now_ns);
    }

    /// Whether commands wait, and none are on their way through the group.
    #[must_use]
    pub fn wants_commit(&self) -> bool {
        self.proposed.is_none()
            && !self.room.is_missing()
            && self.peer.can_propose()
            && self.core().is_some_and(|core| core.wants_commit() && core.stopped().is_none())
    }

    /// Applies the commands that wait and proposes them. If it returns true, the caller carries out the actions so far, which take the
    /// entry to the other peers, and then calls [`Manager::complete`], which writes it here.
    pub fn begin(&mut self, now_ns: i64) -> bool {
        self.peer.complete();
        self.look_at_room();
        if !self.peer.can_propose() || self.room.is_missing() {
            // Leadership moves, or the disk is full: the commands wait.
            self.settle(now_ns);
            return false;
        }
        let (index, term) = (self.peer.log().last_index() + 1, self.peer.standing().term);
        let State::Leading(core) = &mut self.state else { return false };
        assert!(self.proposed.is_none(), "one entry at a time");
        let entry = core.begin_entry(now_ns, index);
        let proposed = match entry {
            None => false,
            Some(entry) => match self.peer.propose(entry) {
                Ok(at) => {
                    assert_eq!(at, index, "the entry has the index that its rows name");
                    self.proposed = Some((index, term));
                    if failpoint::is_active("manager.commits_before_group") {
                        core.finish_batch();
                    }
                    true
                }
                Err(refused) => {
                    self.fail(Error::new(Code::Unavailable, format!("an entry is not taken: {refused}")));
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
        if let State::Standby { db, .. } = &self.state
            && let Some(damage) = db.damage()
        {
            self.fail(Error::new(Code::Unavailable, damage));
        }
        self.peer.handle(now_ns, Input::Tick);
        self.ticks += 1;
        self.retry_for_room();
        self.look_at_room();
        if self.peer.standing().leader.is_none() && self.is_due_alone() {
            self.peer.campaign();
        }
        if self.core().is_none() {
            return self.tend_own();
        }
        self.tend_comparisons(now_ns);
        if self.ticks.is_multiple_of(CHORE_TICKS) {
            self.shorten_log();
            self.follow_nodes();
        }
    }

    /// Whether to campaign now, because no other manager could: alone at once, with voters every few ticks. They refuse as long as they
    /// hear of a leader.
    fn is_due_alone(&self) -> bool {
        let membership = self.peer.membership();
        let is_other = |m: &Member| m.kind() == PeerKind::Manager && m.id != self.peer.id();
        let votes = membership.voters.contains(&self.peer.id());
        let is_alone = membership.voters.len() == 1;
        votes && !membership.members.iter().any(is_other) && (is_alone || self.ticks.is_multiple_of(CAMPAIGN_TICKS))
    }

    /// Takes in what peer and core want, and applies one portion of what is committed.
    fn settle(&mut self, now_ns: i64) {
        self.take_outputs();
        while self.is_behind() {
            self.apply_portion(now_ns);
            self.take_outputs();
            if !self.is_far_behind() || !matches!(self.state, State::Standby { .. }) {
                break;
            }
        }
        if self.backlog.is_empty() {
            self.note_applied();
        }
        self.peer.set_unapplied(self.backlog.len() as u64, self.backlog.bytes());
    }

    /// Takes in what peer and core want, until both are quiet.
    fn take_outputs(&mut self) {
        loop {
            self.collect();
            let Some(output) = self.peer.poll() else { break };
            self.output(output);
        }
    }

    /// Sorts the core's actions: replies that show state wait for a confirmation.
    fn collect(&mut self) {
        let State::Leading(core) = &mut self.state else { return };
        while let Some(action) = core.poll() {
            match action {
                Action::Reply { confirm: confirm @ (Confirm::Now | Confirm::Soon), .. }
                    if !failpoint::is_active("manager.reads_unconfirmed") =>
                {
                    // Alone a manager confirms without a message.
                    let waits = self.peer.membership().voters.len() > 1 && confirm == Confirm::Soon;
                    self.unconfirmed.hold(action, waits);
                }
                action => self.actions.push_back(GroupAction::Core(action)),
            }
        }
        // One whose disk is full is deposed.
        let stopped = core.stopped().filter(|_| !core.is_full()).cloned();
        self.confirm();
        if let Some(error) = stopped {
            // Its database failed: another manager serves until this one is started again.
            self.fail(error);
        }
    }

    /// Begins a round for the replies that wait, if none is under way.
    fn confirm(&mut self) {
        if let Some(round) = self.unconfirmed.next_round()
            && !self.peer.confirm(round)
        {
            // The disk is full: asked again as soon as anything happens.
            self.unconfirmed.take_back();
        }
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Call(call) => self.actions.push_back(GroupAction::Core(Action::Call(call))),
            Output::Answer { token, result } => self.actions.push_back(GroupAction::Answer { token, result }),
            Output::Committed { index, term, data } => self.committed(index, term, data),
            Output::Restore(info) => {
                self.follow_standing();
                // The snapshot holds what waits.
                self.backlog.clear();
                self.restore(&info);
            }
            Output::Standing(standing) => self.standing(standing),
            Output::Confirmed(round) => {
                let ready = self.unconfirmed.confirmed(round);
                self.actions.extend(ready.into_iter().map(GroupAction::Core));
                self.confirm();
            }
            Output::Members => _ = self.surplus_managers().inspect(|text| tracing::warn!("{text}")),
            Output::Stopped(error) => {
                let error = Error::new(Code::Unavailable, error.to_string());
                self.fail(error);
            }
        }
    }

    /// The first entry of this peer's term is committed, so everything before it is applied: serve.
    fn lead(&mut self, now_ns: i64, term: u64) {
        let State::Standby { db, .. } = std::mem::replace(&mut self.state, State::Nothing) else { return };
        let watch = db.watch().cloned();
        let wall_ns = now_ns.saturating_add(self.wall_ahead_ns);
        match ManagerCore::lead(db, self.config.clone(), now_ns, wall_ns, term) {
            Ok(core) => {
                tracing::info!(term, "this manager leads");
                self.state = State::Leading(core);
                self.plan_comparisons(now_ns);
                self.follow_nodes();
            }
            Err(failure) => {
                let is_damaged = watch.and_then(|watch| watch.damage().map(|damage| !damage.is_unsynced()));
                self.note_damage(is_damaged.unwrap_or(false));
                self.fail(failure.into_wire());
            }
        }
    }

    /// Why this manager does not serve, for a request that comes again until there is room, or not.
    fn refusal(&self, asks_again: bool) -> Error {
        let lack = || self.lack().filter(|_| !asks_again);
        self.failed.clone().or_else(lack).unwrap_or_else(|| not_leading(&self.peer))
    }

    /// Notes in the directory that the database is damaged.
    fn note_damage(&self, is_damaged: bool) {
        if let DbHome::Dir { dir, .. } = &self.home
            && is_damaged
            && let Err(error) = Db::mark_damaged(dir)
        {
            tracing::error!(%error, "noting the damage");
        }
    }

    fn standing(&mut self, standing: Standing) {
        if standing.leads && self.core().is_none() && failpoint::is_active("manager.serves_too_early") {
            self.lead(self.peer.now_ns(), standing.term);
        }
        self.follow_standing();
    }

    /// Stops serving if the peer leads no more, or in another term. Its [`Output::Standing`] comes after what it committed.
    fn follow_standing(&mut self) {
        let standing = self.peer.standing();
        if self.core().is_some_and(|core| !standing.leads || core.term() != standing.term) {
            tracing::info!(term = standing.term, "this manager leads no more");
            self.depose();
        }
    }

    /// Rolls back what the group has not committed, and becomes a standby.
    fn depose(&mut self) {
        let State::Leading(core) = std::mem::replace(&mut self.state, State::Nothing) else { return };
        let error = not_leading(&self.peer);
        let (db, actions) = core.depose(error.clone());
        self.proposed = None;
        self.comparisons = Comparisons::default();
        let held = self.unconfirmed.refuse(&error);
        self.actions.extend(actions.into_iter().chain(held).map(GroupAction::Core));
        match db.meta() {
            Ok(meta) => self.state = State::Standby { db, meta, caches: Caches::default() },
            Err(why) => self.fail(Error::new(Code::Unavailable, format!("the manager's database failed ({why})"))),
        }
    }

    /// Replaces a standby's database by the snapshot held.
    fn restore(&mut self, info: &SnapshotInfo) {
        self.end_digest();
        let State::Standby { db, .. } = std::mem::replace(&mut self.state, State::Nothing) else { return };
        let restored = self.home.restore(Some(db), self.peer.files(), info).and_then(|db| Ok((db.meta()?, db)));
        match restored {
            Ok((meta, db)) => {
                assert_eq!(meta.log_seq, info.index, "a snapshot holds what it says");
                self.forget_difference(info.index);
                self.state = State::Standby { db, meta, caches: Caches::default() };
            }
            Err(error) => {
                let code = if error.is_full() { Code::NoSpace } else { Code::Unavailable };
                let way_out =
                    if error.is_full() { "; free space on the manager's disk, and start it again" } else { "" };
                self.fail(Error::new(code, format!("a snapshot cannot be used: {error}{way_out}")));
            }
        }
    }

    /// Somebody moved, removed or replaced the directory while this manager runs: it writes to files that no restart will find. Clients
    /// ask again, because another manager may take over, or this one may be started again.
    pub fn lose_directory(&mut self, lost: &Displaced) {
        let (path, fact, done) = match lost {
            Displaced::Gone(path) => (path, "is gone", "moved or removed"),
            Displaced::Replaced(path) => (path, "is not what this manager has open", "replaced"),
        };
        let text = format!(
            "{} {fact}: its directory was {done} while this manager ran; move the right one back and start this manager again, or start it \
             with an empty directory and --join",
            path.display()
        );
        self.fail(Error::new(Code::Unavailable, text));
    }

    /// Serves no more, and lets another manager lead. A restart finds out what is on disk.
    fn fail(&mut self, error: Error) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!(%error, "this manager cannot go on");
        if let Some(db) = self.db() {
            self.note_damage(db.damage_of_pages());
        }
        self.peer.set_may_lead(false);
        self.failed = Some(error.clone());
        self.proposed = None;
        self.backlog.clear();
        if let State::Leading(core) = std::mem::replace(&mut self.state, State::Nothing) {
            let (_, actions) = core.depose(error.clone());
            self.actions.extend(actions.into_iter().map(GroupAction::Core));
        }
        let held = self.unconfirmed.refuse(&error);
        self.actions.extend(held.into_iter().map(GroupAction::Core));
    }
}
