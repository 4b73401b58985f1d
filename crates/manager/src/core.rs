//! The manager as a state machine: events and a time in, actions out.
//!
//! Requests that change nothing are answered at once from the committed state. The others wait as commands until the shell asks for a
//! group commit: [`ManagerCore::begin_batch`] applies what waits in one transaction and hands out the calls that carry
//! the log entry to its replicas; [`ManagerCore::finish_batch`] syncs the transaction. So both syncs go on at the same time.
//! Answers to clients, reads included, leave once every entry they may have seen is held by enough replicas
//! (P7); answers to nodes leave at once, for a node that waits for its heartbeat's answer could not hold the log.
//!
//! Once the database has failed in a way that leaves doubt about what is on disk, the core refuses everything until it is
//! started anew (never retry a failed sync).

use crate::answers::{Answer, Answers};
use crate::batch::{self, Applied, Queued, Tables};
use crate::cache::Caches;
use crate::cluster;
use crate::command::Command;
use crate::command_log::{CommandLog, Heard, Snapshot};
use crate::config::{Config, ns};
use crate::db::{Db, DbError};
use crate::error::{Failure, Outcome};
use crate::leases;
use crate::meta::Meta;
use crate::metrics::Metrics;
use crate::planted::{self, Bug};
use crate::reads::{self, Asker, Read};
use crate::sessions::SoftSessions;
use crate::state::{Internal, Proposal, Soft, View};
use crate::upkeep::*;
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, VecDeque};
use tessera_wire::meta::{CloseSession, RecallLease};
use tessera_wire::rpc::{self, Call, Peer};
use tessera_wire::{Ack, Code, Error, Kind, Role};
use thiserror::Error as ThisError;

/// What happens to the manager.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request arrived.
    Request {
        /// Connection it came on.
        connection: u64,
        /// The asker's greeting: what it is.
        role: Role,
        /// The asker's greeting: its life.
        client_id: u64,
        /// Number of the request on its connection.
        request_id: u64,
        /// Its kind.
        kind: Kind,
        /// The encoded message.
        body: Bytes,
    },
    /// A connection is gone.
    ConnectionClosed {
        /// Its number.
        connection: u64,
    },
    /// A node of another cluster greeted, and was refused.
    Stranger {
        /// The cluster it belongs to.
        cluster_id: Vec<u8>,
        /// Its host label.
        host: String,
    },
    /// What came of a call.
    Answer(rpc::Answer),
    /// Time passes; to be sent every 100 ms or so.
    Tick,
}

/// What the manager wants done.
#[derive(Debug, Clone)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// Connection it came on.
        connection: u64,
        /// Its number.
        request_id: u64,
        /// Its kind.
        kind: Kind,
        /// The encoded reply, or why not.
        result: Result<Bytes, Error>,
    },
    /// Ask a node or (recalling a lease) a client.
    Call(Call),
}

/// Why a manager could not start.
#[derive(Debug, ThisError)]
pub enum StartError {
    /// Opening the database.
    #[error(transparent)]
    Open(#[from] DbError),
    /// Reading or writing it.
    #[error("the manager's database: {0}")]
    Database(#[from] rusqlite::Error),
    /// Something in it, or in the configuration, is not as it must be.
    #[error("{0}")]
    Refused(Error),
}

impl From<Failure> for StartError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) => StartError::Refused(error),
            Failure::Database(error) => StartError::Database(error),
        }
    }
}

/// Where an answer goes.
#[derive(Debug, Clone, Copy)]
struct Origin {
    connection: u64,
    request_id: u64,
    kind: Kind,
    /// Nodes' answers do not wait for log replicas.
    role: Role,
}

enum Waiting {
    Command {
        queued: Queued,
        origin: Option<Origin>,
        /// Inodes nobody gets a lease on meanwhile.
        changes: Vec<u64>,
    },
    /// Its proposals are before it: the answer is composed once they are committed.
    Composed { origin: Origin, body: Bytes },
}

/// A command that waits for leases to be given back.
struct Parked {
    queued: Queued,
    origin: Origin,
    changes: Vec<u64>,
    not_before_ns: i64,
}

/// Snapshots that the shell takes beside the core.
#[derive(Default)]
struct Snapshots {
    /// It does; else the core takes them itself (a database in memory).
    elsewhere: bool,
    wanted: bool,
    under_way: bool,
    /// Taken, and of entries that not enough replicas hold yet.
    waiting: Option<Snapshot>,
}

struct Open {
    applied: Applied,
    origins: Vec<(Option<Origin>, Vec<u64>)>,
    composed: Vec<(Origin, Bytes)>,
}

/// The manager.
pub struct ManagerCore {
    config: Config,
    db: Db,
    meta: Meta,
    caches: Caches,
    soft: Soft,
    answers: Answers,
    log: CommandLog,
    queue: VecDeque<Waiting>,
    parked: Vec<Parked>,
    open: Option<Open>,
    /// Answers that wait until this entry is held by enough replicas.
    held: VecDeque<(u64, Action)>,
    actions: VecDeque<Action>,
    now_ns: i64,
    /// What is added to the shell's time: a clock that was set back must not stop ours (P6, P12).
    ahead_ns: i64,
    next_token: u64,
    recalls: HashMap<u64, (u64, Vec<u64>)>,
    /// Nothing that clients may have cached is changed before.
    leases_end_ns: i64,
    lease_noted: bool,
    /// Last entry that a client can have seen.
    visible_seq: u64,
    map_version_seen: u64,
    last_prune_ns: i64,
    drop_log_to: Option<u64>,
    snapshots: Snapshots,
    needs_term: bool,
    stopped: Option<Error>,
    metrics: Metrics,
}

macro_rules! view {
    ($core:expr) => {
        View {
            now_ns: $core.now_ns,
            db: &$core.db,
            meta: &$core.meta,
            caches: &$core.caches,
            soft: &mut $core.soft,
            config: &$core.config,
        }
    };
}

impl ManagerCore {
    /// Takes a database into service: raises the term durably, then serves.
    ///
    /// # Errors
    /// What is wrong with the database.
    pub fn start(db: Db, config: Config, now_ns: i64) -> Result<ManagerCore, StartError> {
        ManagerCore::start_with(db, config, now_ns, 0, false)
    }

    /// As [`ManagerCore::start`], with a term above `above_term`; `restored` when the database was rebuilt from log replicas.
    pub fn start_with(
        db: Db,
        config: Config,
        now_ns: i64,
        above_term: u64,
        restored: bool,
    ) -> Result<ManagerCore, StartError> {
        crate::placement::check_config(&config).map_err(StartError::Refused)?;
        let meta = db.meta()?;
        let ahead_ns = meta.last_now_ns.saturating_sub(now_ns).max(0);
        let now_ns = now_ns.saturating_add(ahead_ns);
        let sessions = SoftSessions::load(&db, now_ns, &config)?;
        let leases_end_ns = if meta.leases_granted == 1 { now_ns + ns(config.lease_entry_ms) } else { 0 };
        let mut core = ManagerCore {
            soft: Soft { started_ns: now_ns, sessions, ..Default::default() },
            answers: Answers::load(&db)?,
            log: CommandLog::load(&db, meta.term, meta.log_seq)?,
            queue: VecDeque::new(),
            parked: Vec::new(),
            open: None,
            held: VecDeque::new(),
            actions: VecDeque::new(),
            now_ns,
            ahead_ns,
            next_token: 1,
            recalls: HashMap::new(),
            leases_end_ns,
            lease_noted: false,
            visible_seq: meta.log_seq,
            map_version_seen: u64::MAX,
            last_prune_ns: now_ns,
            drop_log_to: None,
            snapshots: Snapshots::default(),
            needs_term: false,
            stopped: None,
            metrics: Metrics::default(),
            caches: Caches::default(),
            config,
            meta,
            db,
        };
        let term = core.meta.term.max(above_term) + 1;
        core.propose(NewTerm { term, restored }.propose());
        core.commit_batch(now_ns - ahead_ns);
        cluster::after_start(&mut view!(core));
        match core.stopped.clone() {
            Some(error) => Err(StartError::Refused(error)),
            None => Ok(core),
        }
    }

    /// Takes in one event. Time never runs backwards here: when the shell's is set back, ours goes on from where it was.
    pub fn handle(&mut self, now_ns: i64, event: Event) {
        self.advance(now_ns);
        match event {
            Event::Request { connection, role, client_id, request_id, kind, body } => {
                let origin = Origin { connection, request_id, kind, role };
                self.metrics.request(kind);
                self.request(origin, client_id, body);
            }
            // A client that cannot be asked may still use what it holds: its leases run out by themselves.
            Event::ConnectionClosed { .. } => {}
            Event::Stranger { cluster_id, host } => {
                self.soft.strangers.note(self.now_ns, &self.meta.cluster_id, cluster_id, host);
            }
            Event::Answer(answer) => self.answer(answer),
            Event::Tick => self.tick(),
        }
    }

    fn advance(&mut self, shell_ns: i64) {
        let now_ns = shell_ns.saturating_add(self.ahead_ns);
        self.ahead_ns += self.now_ns.saturating_sub(now_ns).max(0);
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// The next thing to do, if any.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether a group commit has something to do.
    pub fn wants_commit(&self) -> bool {
        !self.queue.is_empty()
    }

    /// A whole group commit.
    pub fn commit_batch(&mut self, now_ns: i64) {
        if self.begin_batch(now_ns) {
            self.finish_batch();
        }
    }

    /// First half of a group commit: applies what waits. If true, the actions that are there now may be carried out while
    /// [`ManagerCore::finish_batch`], which must be called next, syncs.
    pub fn begin_batch(&mut self, now_ns: i64) -> bool {
        self.advance(now_ns);
        if self.stopped.is_some() {
            return false;
        }
        if self.needs_term && !self.queue.is_empty() {
            let term = NewTerm { term: self.meta.term + 1, restored: false };
            if let Ok(queued) = queued(&term.propose()) {
                self.queue.push_front(Waiting::Command { queued, origin: None, changes: Vec::new() });
            }
        }
        let (commands, origins, composed) = self.take_waiting();
        if commands.is_empty() {
            composed.into_iter().for_each(|(origin, body)| self.compose(origin, &body));
            return false;
        }
        let mut tables = Tables {
            db: &self.db,
            meta: &mut self.meta,
            caches: &self.caches,
            soft: &self.soft,
            config: &self.config,
            answers: &self.answers,
        };
        match batch::apply(&mut tables, self.now_ns, &commands).and_then(|applied| self.drop_log().map(|()| applied)) {
            Ok(applied) => {
                self.metrics.batch(commands.len());
                if let Some(entry) = &applied.entry {
                    if entry.term != applied.before.term {
                        self.log.set_term(entry.term);
                    }
                    if entry
                        .commands
                        .iter()
                        .any(|command| command.client_id != 0 || command.kind == RecordRefusal::KIND)
                    {
                        self.visible_seq = entry.seq;
                    }
                    self.log.push(entry.seq, entry.term, applied.encoded.clone());
                    self.pump();
                }
                self.open = Some(Open { applied, origins, composed });
                true
            }
            Err(error) => {
                _ = self.db.rollback();
                self.fail(error, origins, composed);
                false
            }
        }
    }

    fn drop_log(&self) -> rusqlite::Result<()> {
        if let Some(seq) = self.drop_log_to {
            self.db.stmt("DELETE FROM command_log WHERE seq <= ?1")?.execute([seq as i64])?;
        }
        Ok(())
    }

    #[allow(clippy::type_complexity, reason = "three lists that belong together, taken apart at once by both callers")]
    fn take_waiting(&mut self) -> (Vec<Queued>, Vec<(Option<Origin>, Vec<u64>)>, Vec<(Origin, Bytes)>) {
        let (mut commands, mut origins, mut composed) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        while commands.len() < self.config.max_batch_commands && bytes < self.config.max_batch_bytes {
            match self.queue.pop_front() {
                None => break,
                Some(Waiting::Composed { origin, body }) => composed.push((origin, body)),
                Some(Waiting::Command { queued, origin, changes }) => {
                    bytes += queued.body.len();
                    commands.push(queued);
                    origins.push((origin, changes));
                }
            }
        }
        (commands, origins, composed)
    }

    /// Second half: syncs the transaction, then lets answers go as far as the log's replicas allow.
    pub fn finish_batch(&mut self) {
        let Some(Open { applied, origins, composed }) = self.open.take() else { return };
        if let Err(error) = self.db.commit() {
            _ = self.db.rollback();
            self.meta = applied.before;
            self.caches.forget_all();
            if let Some(entry) = &applied.entry {
                self.log.pop(entry.seq);
            }
            return self.fail(error, origins, composed);
        }
        self.needs_term = false;
        self.drop_log_to = None;
        let (seq, now_ns) = (self.meta.log_seq, self.meta.last_now_ns);
        self.answers.remember(seq, now_ns, applied.kept);
        applied.effects.into_iter().for_each(|effect| effect(&mut self.soft));
        for ((origin, changes), answer) in origins.into_iter().zip(applied.answers) {
            self.soft.leases.end_change(&changes);
            if let Some(origin) = origin {
                self.reply(origin, answer);
            }
        }
        composed.into_iter().for_each(|(origin, body)| self.compose(origin, &body));
        self.pump();
        self.release_held();
    }

    /// A batch came to nothing. Unless the disk was merely full, what is on it is in doubt and only a restart tells.
    fn fail(
        &mut self,
        error: rusqlite::Error,
        origins: Vec<(Option<Origin>, Vec<u64>)>,
        composed: Vec<(Origin, Bytes)>,
    ) {
        let full = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
        let answer = match full {
            true => {
                Error::new(Code::NoSpace, "the manager's disk is full: nothing was changed; make room in its directory")
            }
            false => Error::new(
                Code::Io,
                format!("the manager's database failed ({error}); restart the manager to see what is on disk"),
            ),
        };
        tracing::error!(%error, "group commit failed");
        self.metrics.failed_batches += 1;
        // A replica may hold the entry that never was: its position is written again under a new term only.
        self.needs_term = true;
        self.visible_seq = self.visible_seq.min(self.meta.log_seq);
        if !full {
            self.stop(Error::new(Code::Unavailable, answer.message.clone()));
        }
        let composed = composed.into_iter().map(|(origin, _)| (Some(origin), Vec::new()));
        for (origin, changes) in origins.into_iter().chain(composed) {
            self.soft.leases.end_change(&changes);
            if let Some(origin) = origin {
                self.actions.push_back(origin.reply(Err(answer.clone())));
            }
        }
    }

    /// From now on everything is refused with `error`; what waits is, too.
    fn stop(&mut self, error: Error) {
        let waiting = std::mem::take(&mut self.queue);
        for waiting in waiting {
            match waiting {
                Waiting::Command { origin: Some(origin), .. } | Waiting::Composed { origin, .. } => {
                    self.actions.push_back(origin.reply(Err(error.clone())));
                }
                Waiting::Command { origin: None, .. } => {}
            }
        }
        for parked in std::mem::take(&mut self.parked) {
            self.actions.push_back(parked.origin.reply(Err(error.clone())));
        }
        for (_, action) in std::mem::take(&mut self.held) {
            if let Action::Reply { connection, request_id, kind, .. } = action {
                self.actions.push_back(Action::Reply { connection, request_id, kind, result: Err(error.clone()) });
            }
        }
        self.stopped = Some(error);
    }

    fn request(&mut self, origin: Origin, client_id: u64, body: Bytes) {
        if let Some(error) = self.stopped.clone() {
            return self.actions.push_back(origin.reply(Err(error)));
        }
        if let Err(error) = origin.kind.check_role(origin.role) {
            return self.reply(origin, Err(error));
        }
        match Command::from_request(origin.kind, &body) {
            Some(Ok(command)) => {
                self.admit(origin, Queued { command, kind: origin.kind as u32, body, client_id });
            }
            Some(Err(failure)) => self.reply(origin, Err(failure.into_wire())),
            None => self.answer_now(origin, client_id, body),
        }
    }

    /// A command joins the queue, unless it was answered before or must wait for leases.
    fn admit(&mut self, origin: Origin, queued: Queued) {
        if let Some(op_id) = queued.command.op_id() {
            let given = self.answers.get(queued.client_id, op_id).filter(|_| !planted::is(Bug::RepeatsApply)).cloned();
            if let Some(answer) = given {
                return self.reply(origin, answer);
            }
        }
        if self.queue.len() + self.parked.len() >= self.config.max_waiting_requests {
            let text = format!("{} requests wait already; try again shortly", self.config.max_waiting_requests);
            return self.reply(origin, Err(Error::new(Code::Unavailable, text)));
        }
        match &queued.command {
            Command::CloseSession(CloseSession { session_id }) if self.soft.sessions.is_soft_reader(*session_id) => {
                self.soft.sessions.forget(*session_id);
                return self.reply(origin, Ok(Ack {}.encode_to_vec().into()));
            }
            Command::AllocateChunks(r) => _ = self.soft.sessions.renew(r.session_id, self.now_ns, None),
            Command::Commit(r) => _ = self.soft.sessions.renew(r.session_id, self.now_ns, None),
            _ => {}
        }
        let changes = match self.meta.leases_granted {
            0 => Vec::new(),
            _ => match leases::changed_by(&self.db, &queued.command) {
                Ok(changes) => changes,
                Err(failure) => return self.reply(origin, Err(failure.into_wire())),
            },
        };
        self.soft.leases.begin_change(&changes);
        let holders = self.soft.leases.holders(&changes, origin.connection, self.now_ns);
        let holders = if planted::is(Bug::NoRecall) { HashMap::new() } else { holders };
        if holders.is_empty() && (changes.is_empty() || self.now_ns >= self.leases_end_ns) {
            return self.queue.push_back(Waiting::Command { queued, origin: Some(origin), changes });
        }
        for (connection, inos) in holders {
            let token = self.token();
            self.recalls.insert(token, (connection, inos.clone()));
            let recall = RecallLease { inos };
            let call = Call::new(Peer::Connection(connection), token, &recall, Vec::new(), self.config.lease_entry_ms);
            self.actions.push_back(Action::Call(call));
        }
        let not_before_ns = if changes.is_empty() { 0 } else { self.leases_end_ns };
        self.parked.push(Parked { queued, origin, changes, not_before_ns });
    }

    /// Commands whose leases are given back or over join the queue, in the order they came.
    fn unpark(&mut self) {
        let (now_ns, leases) = (self.now_ns, &self.soft.leases);
        let free = |p: &Parked| {
            now_ns >= p.not_before_ns && leases.holders(&p.changes, p.origin.connection, now_ns).is_empty()
        };
        let (ready, parked) = std::mem::take(&mut self.parked).into_iter().partition(free);
        self.parked = parked;
        for Parked { queued, origin, changes, .. } in ready {
            self.queue.push_back(Waiting::Command { queued, origin: Some(origin), changes });
        }
    }

    fn answer_now(&mut self, origin: Origin, client_id: u64, body: Bytes) {
        match origin.kind {
            Kind::GetMap | Kind::GetStatus => {
                self.soft.log_replicas = self.log.up_to_date(self.soft.replicated_seq);
                let result = cluster::read(&mut view!(self), origin.kind, &body);
                self.reply(origin, encoded(result));
            }
            Kind::Heartbeat | Kind::Inventory | Kind::ReportBad | Kind::Maintain => {
                match cluster::take_in(&mut view!(self), origin.kind, &body) {
                    Ok(proposals) if proposals.is_empty() => self.compose(origin, &body),
                    Ok(proposals) => {
                        proposals.into_iter().for_each(|proposal| self.propose(proposal));
                        self.queue.push_back(Waiting::Composed { origin, body });
                    }
                    Err(failure) => self.reply(origin, Err(failure.into_wire())),
                }
            }
            kind => {
                let asker = Asker { connection: origin.connection, client_id };
                let result = match reads::read(&mut view!(self), asker, kind, &body) {
                    Some(Ok(Read::Plain(reply))) => Ok(reply.into()),
                    Some(Ok(Read::Leased(entry, inos))) => Ok(self.lease(origin, entry, &inos)),
                    Some(Err(failure)) => Err(failure.into_wire()),
                    None => Err(Error::new(Code::Unsupported, format!("{} is not for a manager", kind.name()))),
                };
                self.reply(origin, result);
            }
        }
    }

    fn lease(&mut self, origin: Origin, mut entry: tessera_wire::meta::Entry, inos: &[u64]) -> Bytes {
        if self.meta.leases_granted == 0 {
            // That there are leases must be known after a restart before there is the first.
            if !self.lease_noted {
                self.lease_noted = true;
                self.propose(NoteLeases {}.propose());
            }
        } else {
            let until = self.now_ns + ns(self.config.lease_entry_ms);
            if self.soft.leases.grant(inos, origin.connection, until, self.config.max_leases) {
                entry.lease_ms = self.config.lease_entry_ms;
            }
        }
        entry.encode_to_vec().into()
    }

    fn compose(&mut self, origin: Origin, body: &Bytes) {
        let result = cluster::reply(&mut view!(self), origin.kind, body);
        self.reply(origin, encoded(result));
    }

    fn propose(&mut self, proposal: Proposal) {
        match queued(&proposal) {
            Ok(queued) => self.queue.push_back(Waiting::Command { queued, origin: None, changes: Vec::new() }),
            Err(failure) => tracing::error!(%failure, "a proposal of the manager's own"),
        }
    }

    /// Answers once all that the asker may have seen is held by enough replicas; nodes at once.
    fn reply(&mut self, origin: Origin, result: Answer) {
        if result.is_err() {
            self.metrics.refused += 1;
        }
        let action = origin.reply(result);
        let seq = if origin.role == Role::Node { 0 } else { self.visible_seq };
        if seq <= self.soft.replicated_seq || planted::is(Bug::AnswersBeforeReplicas) {
            self.actions.push_back(action);
        } else {
            self.held.push_back((seq, action));
        }
    }

    fn release_held(&mut self) {
        self.soft.replicated_seq =
            self.log.replicated(self.meta.log_seq).max(self.soft.replicated_seq.min(self.meta.log_seq));
        while self.held.front().is_some_and(|(seq, _)| *seq <= self.soft.replicated_seq) {
            self.actions.extend(self.held.pop_front().map(|(_, action)| action));
        }
    }

    /// Sends the log's replicas what they lack.
    fn pump(&mut self) {
        if self.map_version_seen != self.meta.map_version {
            if let Err(error) = self.log.read_nodes(&self.db) {
                tracing::error!(%error, "reading nodes");
            }
            self.map_version_seen = self.meta.map_version;
        }
        let next_token = &mut self.next_token;
        let token = || {
            *next_token += 1;
            *next_token
        };
        match self.log.pump(&self.db, self.now_ns, &self.config, token) {
            Ok(calls) => self.actions.extend(calls.into_iter().map(Action::Call)),
            Err(error) => tracing::error!(%error, "reading the command log"),
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn answer(&mut self, answer: rpc::Answer) {
        if self.stopped.is_some() {
            return;
        }
        if let Some((connection, inos)) = self.recalls.remove(&answer.token) {
            // An answer, even a refusal, comes from a client that has understood; silence waits for the lease's end.
            let heard = !matches!(&answer.result, Err(error) if error.is_retryable());
            if heard {
                self.soft.leases.release(connection, &inos);
            }
            return self.unpark();
        }
        match self.log.hear(&self.db, self.now_ns, &self.config, answer) {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Superseded(term)) => self.stop(Error::new(
                Code::Fenced,
                format!(
                    "a manager of term {term} serves this cluster, this one's term is {}; stop this one",
                    self.meta.term
                ),
            )),
            Err(error) => tracing::error!(%error, "reading the command log"),
        }
        if self.open.is_none() {
            self.pump();
            self.release_held();
        }
    }

    fn tick(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        self.soft.cluster.figures.tick(self.now_ns, cluster::gap_ns(&self.config));
        self.soft.leases.expire(self.now_ns);
        self.unpark();
        self.soft.log_replicas = self.log.up_to_date(self.soft.replicated_seq);
        // Upkeep waits while the queue is long: nothing in it is urgent.
        if self.queue.len() < self.config.max_batch_commands {
            self.tend_sessions();
            self.tend_garbage();
            let proposals = cluster::on_tick(&mut view!(self));
            proposals.into_iter().for_each(|proposal| self.propose(proposal));
        }
        self.tend_log();
        self.pump();
        self.release_held();
    }

    /// What was last used before this has been unused for so long. A clock that was set forward (or a manager that
    /// was stopped) has let nobody use anything in between: nothing is that old before the time has passed again.
    fn unused_before_ns(&self, after_ms: u64) -> i64 {
        let before_ns = self.now_ns.saturating_sub(ns(after_ms));
        if self.soft.cluster.figures.awake_ns > before_ns { i64::MIN } else { before_ns }
    }

    fn tend_sessions(&mut self) {
        let (rows, soft) = self.soft.sessions.expired(self.unused_before_ns(self.config.session_ms));
        soft.into_iter().for_each(|id| self.soft.sessions.forget(id));
        rows.chunks(1024).for_each(|ids| self.propose(EndSessions { session_ids: ids.to_vec() }.propose()));
        let old = self.soft.sessions.take_unpersisted(self.now_ns.saturating_sub(ns(self.config.reader_persist_ms)));
        let readers: Vec<ReaderRow> = old
            .into_iter()
            .map(|(session_id, r)| ReaderRow {
                session_id,
                client_id: r.client_id,
                started_ns: r.started_ns,
                ino: r.ino,
                version: r.version,
                number: r.number,
            })
            .collect();
        readers.chunks(1024).for_each(|readers| self.propose(PersistReaders { readers: readers.to_vec() }.propose()));
        let (trim, release) = self.soft.sessions.take_overdue();
        trim.chunks(256).for_each(|inos| self.propose(TrimVersions { inos: inos.to_vec() }.propose()));
        let release: Vec<u64> = release.into_iter().filter(|&ino| self.is_orphan(ino)).collect();
        release.chunks(256).for_each(|inos| self.propose(ReleaseOrphans { inos: inos.to_vec() }.propose()));
    }

    fn is_orphan(&self, ino: u64) -> bool {
        matches!(crate::inodes::find(&self.db, ino), Ok(Some(inode)) if inode.nlink == 0)
    }

    fn tend_garbage(&mut self) {
        let dropped = self.db.stmt("SELECT 1 FROM dropped_pages LIMIT 1").and_then(|mut rows| rows.exists([]));
        if dropped.unwrap_or(false) {
            self.propose(SweepPages { limit: self.config.sweep_pages }.propose());
        }
        if self.now_ns < self.last_prune_ns {
            self.answers.set_back(self.now_ns);
            self.last_prune_ns = self.now_ns;
        }
        if self.now_ns - self.last_prune_ns >= 1_000_000_000 {
            self.last_prune_ns = self.now_ns;
            if let Some(to_seq) = self.answers.prune(self.unused_before_ns(self.config.answers_ms)) {
                self.propose(PruneAnswers { to_seq }.propose());
            }
        }
    }

    fn tend_log(&mut self) {
        // To shorten the log, a snapshot waits until enough replicas hold all that is in it. For a replica that can go on only
        // from one, it cannot: answers wait for that very replica. Its snapshot then holds entries that were not
        // acknowledged, as its log would; position and term tell them from another history's.
        let (needed, grown) = (self.log.needs_snapshot(), self.log.has_grown(&self.config));
        let replicated_seq = self.soft.replicated_seq;
        if let Some(snapshot) = self.snapshots.waiting.take_if(|s| needed || s.seq <= replicated_seq) {
            self.log.set_snapshot(snapshot);
        } else if self.snapshots.elsewhere {
            let idle = !self.snapshots.under_way && self.snapshots.waiting.is_none();
            self.snapshots.wanted |= idle && (needed || grown);
        } else if self.open.is_none() && (needed || grown && replicated_seq == self.meta.log_seq) {
            match self.db.image() {
                Ok(image) => self.log.set_snapshot(Snapshot::new(self.meta.log_seq, self.meta.term, image)),
                Err(error) => tracing::error!(%error, "taking a snapshot"),
            }
        }
        if let Some(seq) = self.log.droppable() {
            self.drop_log_to = Some(seq);
        }
    }

    /// From now on the shell takes snapshots: it asks [`ManagerCore::snapshot_wanted`] and brings each to
    /// [`ManagerCore::snapshot_taken`]. A copy of a large database would hold up every request for seconds.
    pub fn take_snapshots_elsewhere(&mut self) {
        self.snapshots.elsewhere = true;
    }

    /// Whether a snapshot is to be taken now. Said once; the next after its outcome was brought.
    pub fn snapshot_wanted(&mut self) -> bool {
        let wanted = std::mem::take(&mut self.snapshots.wanted);
        self.snapshots.under_way |= wanted;
        wanted
    }

    /// What came of it. The snapshot is of a state that was committed here, after some entry at or behind which the log
    /// has gone on meanwhile: entries that were committed are never taken back, so it stays right.
    pub fn snapshot_taken(&mut self, result: Result<Snapshot, String>) {
        self.snapshots.under_way = false;
        match result {
            Ok(snapshot) if snapshot.seq <= self.meta.log_seq => self.snapshots.waiting = Some(snapshot),
            Ok(snapshot) => tracing::error!(seq = snapshot.seq, "a snapshot of entries that were never committed"),
            Err(error) => tracing::error!(error, "taking a snapshot"),
        }
    }

    /// The database, for looking at it (tests, the simulator's checkers).
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The database back, e.g. to start again with it (the simulator's restarts).
    pub fn into_db(self) -> Db {
        self.db
    }

    /// Counters and totals.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Soft state, for looking at it.
    pub fn soft(&self) -> &Soft {
        &self.soft
    }

    /// Cluster id, for greetings.
    pub fn cluster_id(&self) -> [u8; 16] {
        self.meta.cluster_id
    }

    /// Why nothing is served any more, if so.
    pub fn stopped(&self) -> Option<&Error> {
        self.stopped.as_ref()
    }

    /// Figures for `/metrics`.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.metrics.clone();
        metrics.gauges = vec![
            ("term", self.meta.term),
            ("log_seq", self.meta.log_seq),
            ("log_replicated_seq", self.soft.replicated_seq),
            ("log_replicas_up_to_date", self.log.up_to_date(self.soft.replicated_seq).len() as u64),
            ("log_snapshot_seq", self.log.snapshot_seq()),
            ("map_version", self.meta.map_version),
            ("sessions", self.soft.sessions.len() as u64),
            ("reserved_bytes", self.soft.sessions.reserved_bytes()),
            ("leases", self.soft.leases.len() as u64),
            ("answers_kept", self.answers.len() as u64),
            ("requests_waiting", (self.queue.len() + self.parked.len() + self.held.len()) as u64),
            ("files", self.meta.files),
            ("directories", self.meta.directories),
            ("versions", self.meta.versions),
            ("logical_bytes", self.meta.logical_bytes),
            ("chunks", self.meta.chunks),
            ("unique_bytes", self.meta.unique_bytes),
            ("stored_bytes", self.meta.stored_bytes),
        ];
        metrics
    }
}

impl Origin {
    fn reply(self, result: Answer) -> Action {
        Action::Reply { connection: self.connection, request_id: self.request_id, kind: self.kind, result }
    }
}

fn queued(proposal: &Proposal) -> Outcome<Queued> {
    let command = Command::decode(proposal.kind, &proposal.body)?;
    Ok(Queued { command, kind: proposal.kind, body: proposal.body.clone(), client_id: 0 })
}

fn encoded(result: Outcome<Vec<u8>>) -> Answer {
    result.map(Bytes::from).map_err(Failure::into_wire)
}
