//! The manager as a state machine: events and a time in, actions out.
//!
//! The core answers reads at once, or hands them out if they may take long ([`reading`]). Commands wait until the group asks for them: [`ManagerCore::begin_entry`] applies them in one
//! transaction and returns the log entry; [`ManagerCore::finish_batch`] commits the transaction once the group has committed the
//! entry. Answers that are given in between wait for the commit, because they may show what it changes (P7).
//!
//! After a database failure that leaves the state on disk unknown, the core refuses everything until it is restarted (never
//! retry a failed sync).

/// A [`View`] of the core.
macro_rules! view {
    ($core:expr) => {
        View {
            now_ns: $core.clock.time.now_ns,
            wall_ns: $core.clock.time.wall_ns,
            db: &$core.db,
            meta: &$core.meta,
            caches: &$core.caches,
            soft: &mut $core.soft,
            config: &$core.config,
            counts: None,
            proposals: Vec::new(),
        }
    };
}

mod batching;
mod limits;
mod locking;
pub mod reading;
mod requests;
pub(crate) mod room;
mod ticks;

use crate::clock::{Clock, Time};
use crate::coherence::leases::{self, GrantedNames, LeaseGrants, LeaseTarget, Leases, Recall};
use crate::coherence::locks::Lockers;
use crate::coherence::locks::table::Ticket;
use crate::config::{Config, ns};
use crate::ctx::{Live, View};
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::error::{Failure, Result};
use crate::files::expiry;
use crate::internal::*;
use crate::log::batch::{self, AppliedBatch, QueuedCommand, Tables};
use crate::log::registry::{self, Command, ReadReply};
use crate::log::reply_cache::{Answer, ReplyCache};
use crate::metrics::Metrics;
use crate::nodes::plan;
use crate::soft::SoftState;
use crate::soft::sessions::SoftSessions;
use bytes::Bytes;
use prost::Message;
use reading::{ReadDone, ReadJob};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use tessera_consensus::Room;
use tessera_failpoint as failpoint;
use tessera_net::End;
use tessera_wire::meta::{CloseSession, CommitReply, Entry, WaitReason};
use tessera_wire::rpc::{self, Call, Peer};
use tessera_wire::{Ack, Code, Error, Kind, Role};

/// An input of the manager.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request arrived.
    Request {
        /// Connection it came on.
        connection: u64,
        /// The peer's role, from its greeting.
        role: Role,
        /// The peer's id, from its greeting.
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
        /// A client that ended it has dropped all it cached under leases. One that was reset may still use it.
        end: End,
        /// The client whose last connection this was; 0: the client has other connections, or the peer was no client.
        client_gone: u64,
    },
    /// A node of another cluster greeted and was rejected.
    RejectedNode {
        /// The cluster it belongs to.
        cluster_id: Vec<u8>,
        /// Its host label.
        host: String,
    },
    /// The reply to a call.
    Answer(rpc::Answer),
    /// A read is done.
    Read(ReadDone),
    /// Time passes; the shell sends this about every 100 ms.
    Tick,
}

/// Whether a reply waits until the group has confirmed that its manager leads (P7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirm {
    /// It tells of a commit, or of nothing: it is true whoever leads by now.
    No,
    /// It shows state, and somebody waits for it.
    Now,
    /// It lets a node at rest go on as it does.
    Soon,
}

/// An output of the manager.
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
        /// The encoded reply, or the error.
        result: Result<Bytes, Error>,
        /// Whether the manager must make sure that it still leads before the reply leaves.
        confirm: Confirm,
    },
    /// Ask a node or (recalling a lease) a client.
    Call(Call),
    /// Run this beside the core.
    Read(ReadJob),
}

/// Where a reply goes.
#[derive(Debug, Clone, Copy)]
struct Origin {
    connection: u64,
    request_id: u64,
    kind: Kind,
    role: Role,
}

/// A command that waits for a group commit, or for leases to be recalled.
struct AdmittedCommand {
    queued: QueuedCommand,
    /// `None`: the manager itself.
    origin: Option<Origin>,
    /// Meanwhile no lease on these targets is granted.
    changes: Vec<LeaseTarget>,
}

#[allow(clippy::large_enum_variant, reason = "nearly all that waits are commands")]
enum QueueItem {
    Command(AdmittedCommand),
    /// The reply waits for the proposals queued ahead of it.
    Composed {
        origin: Origin,
        body: Bytes,
    },
}

impl QueueItem {
    fn is_report(&self) -> bool {
        matches!(self, QueueItem::Composed { .. })
    }

    /// Where its reply goes, if it owes one.
    fn into_origin(self) -> Option<Origin> {
        match self {
            QueueItem::Command(command) => command.origin,
            QueueItem::Composed { origin, .. } => Some(origin),
        }
    }
}

/// The reply that an applied command owes, and the leases it changes or grants.
struct PendingReply {
    /// `None`: the manager itself.
    origin: Option<Origin>,
    changes: Vec<LeaseTarget>,
    grants: LeaseGrants,
}

struct Open {
    applied: AppliedBatch,
    due: Vec<PendingReply>,
    composed: Vec<(Origin, Bytes)>,
}

/// The manager.
pub struct ManagerCore {
    config: Config,
    db: Db,
    meta: Meta,
    caches: Caches,
    pub(crate) soft: SoftState,
    reply_cache: ReplyCache,
    queue: VecDeque<QueueItem>,
    /// Commands that wait for leases to be recalled, not before these times.
    parked: Vec<(AdmittedCommand, i64)>,
    /// Clients without a connection; some of their commands may still wait.
    clients_gone: BTreeSet<u64>,
    open: Option<Open>,
    /// Replies that wait for the commit of the open batch.
    held: Vec<Action>,
    actions: VecDeque<Action>,
    clock: Clock,
    next_token: u64,
    recalls: HashMap<u64, Recall>,
    /// Requests that wait for a lock, each with the end of its wait.
    lock_waits: HashMap<Ticket, (Origin, i64)>,
    /// Requests about locks whose answer waits for the return of a delegation.
    held_tests: Vec<locking::HeldTest>,
    /// Until then, nothing that clients may have cached is changed.
    leases_end_ns: i64,
    lease_noted: bool,
    /// There is something for the head of a batch, and nothing else may wait for one.
    head_due: bool,
    /// A batch found no room: until then the manager proposes nothing of its own that can wait.
    no_room_until_ns: i64,
    last_prune_ns: i64,
    last_expiry_ns: i64,
    stopped: Option<Error>,
    /// The database could not take a batch that the group has committed.
    is_full: bool,
    /// The disk lacks room: how much, and what refused requests are told.
    lack: Option<(Room, Error)>,
    metrics: Metrics,
}

impl ManagerCore {
    /// A core that leads in `term`, which is above all that the database has seen. Its first batch records the term. `shell_ns` is the
    /// shell's time, `wall_ns` the wall clock.
    ///
    /// # Errors
    /// The configuration is invalid, the wall clock is implausible (see `Clock::resume`), or the database fails.
    pub fn lead(db: Db, config: Config, shell_ns: i64, wall_ns: i64, term: u64) -> Result<ManagerCore> {
        crate::placement::groups::check_config(&config)?;
        let meta = db.meta()?;
        let last = Time { now_ns: meta.last_now_ns, wall_ns: meta.last_wall_ns };
        let last = Some(last).filter(|last| last.now_ns != 0);
        let clock = Clock::resume(last, shell_ns, wall_ns, ns(config.max_clock_jump_ms)).map_err(Failure::Refused)?;
        let now_ns = clock.time.now_ns;
        let sessions = SoftSessions::load(&db, now_ns, &config)?;
        let knows_leases = meta.leases_granted == 1 && !failpoint::is_active("manager.leases_forgotten");
        let leases_end_ns = if knows_leases { now_ns.saturating_add(ns(config.lease_entry_ms)) } else { 0 };
        let mut core = ManagerCore {
            soft: SoftState { started_ns: now_ns, sessions, committed_seq: meta.log_seq, ..Default::default() },
            reply_cache: ReplyCache::load(&db)?,
            queue: VecDeque::new(),
            parked: Vec::new(),
            clients_gone: BTreeSet::new(),
            open: None,
            held: Vec::new(),
            actions: VecDeque::new(),
            clock,
            // An answer to a call of an earlier term must not pass for one of this.
            next_token: term << 32 | 1,
            recalls: HashMap::new(),
            lock_waits: HashMap::new(),
            held_tests: Vec::new(),
            leases_end_ns,
            lease_noted: false,
            head_due: true,
            no_room_until_ns: i64::MIN,
            last_prune_ns: now_ns,
            last_expiry_ns: now_ns,
            stopped: None,
            is_full: false,
            lack: None,
            metrics: Metrics::default(),
            caches: Caches::default(),
            config,
            meta,
            db,
        };
        core.soft.cluster.stats.awake_ns = now_ns;
        assert!(term > core.meta.term, "term {term} after {}", core.meta.term);
        let mut lockers = crate::coherence::locks::noted(&core.db)?;
        if failpoint::is_active("manager.lockers_forgotten") {
            lockers.clear();
        }
        // The clients of one term have tables of several numbers.
        core.soft.locks = Lockers::start(term << 32, lockers, now_ns, &core.config);
        // Task numbers contain the manager's own term.
        core.soft.cluster.tasks.term = term;
        Ok(core)
    }

    /// Handles one event. The core's time never runs backwards, even if the shell's clock is set back.
    pub fn handle(&mut self, now_ns: i64, event: Event) {
        self.clock.advance(now_ns);
        match event {
            Event::Request { connection, role, client_id, request_id, kind, body } => {
                let origin = Origin { connection, request_id, kind, role };
                self.metrics.request(kind);
                self.request(origin, client_id, body);
            }
            Event::ConnectionClosed { connection, end, client_gone } => {
                self.connection_closed(connection, end == End::ByPeer);
                if client_gone != 0 {
                    if end != End::Broken {
                        self.soft.locks.orphan(self.clock.time.now_ns, client_gone, &self.config);
                    }
                    self.clients_gone.insert(client_gone);
                    self.release_reservations();
                }
            }
            Event::RejectedNode { cluster_id, host } => {
                self.soft.rejected_nodes.note(self.clock.time.wall_ns, &self.meta.cluster_id, cluster_id, host);
            }
            Event::Answer(answer) => self.answer(answer),
            Event::Read(done) => self.read_done(done),
            Event::Tick => self.tick(),
        }
        self.stop_if_damaged();
    }

    /// The wall clock was read at `now_ns`; files are dated by it.
    pub fn note_wall(&mut self, now_ns: i64, wall_ns: i64) {
        self.clock.note_wall(now_ns, wall_ns);
    }

    /// The next action, if any.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The database, for inspection (tests, the simulator's checkers).
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The database, to copy it between two batches.
    pub(crate) fn db_mut(&mut self) -> &mut Db {
        assert!(self.open.is_none(), "a batch is open");
        &mut self.db
    }

    /// Returns the database, e.g. to start again with it (the simulator's restarts).
    pub fn into_db(self) -> Db {
        self.db
    }

    /// The nodes and their disks.
    pub(crate) fn node_map(&self) -> rusqlite::Result<std::sync::Arc<crate::db::node_map::NodeMap>> {
        self.caches.node_map(&self.db)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counters and totals.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The term in which it leads.
    pub(crate) fn term(&self) -> u64 {
        self.soft.cluster.tasks.term
    }

    /// Why the manager has stopped serving, if it has.
    pub fn stopped(&self) -> Option<&Error> {
        self.stopped.as_ref()
    }

    /// Whether it has stopped because its disk could not take what the group has committed.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Numbers for `/metrics`.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.metrics.clone();
        metrics.gauges = vec![
            ("term", self.meta.term),
            ("log_seq", self.meta.log_seq),
            ("map_version", self.meta.map_version),
            ("sessions", self.soft.sessions.len() as u64),
            ("reserved_bytes", self.soft.sessions.reserved_bytes()),
            ("leases", self.soft.leases.len() as u64),
            ("locks", self.soft.locks.stats().0 as u64),
            ("locks_waiting", self.soft.locks.stats().1 as u64),
            ("lock_clients", self.soft.locks.stats().2 as u64),
            ("answers_kept", self.reply_cache.len() as u64),
            ("requests_waiting", (self.queue.len() + self.parked.len() + self.held.len()) as u64),
            ("files", self.meta.files),
            ("directories", self.meta.directories),
            ("versions", self.meta.versions),
            ("logical_bytes", self.meta.logical_bytes),
            ("chunks", self.meta.chunks),
            ("unique_bytes", self.meta.unique_bytes),
            ("stored_bytes", self.meta.stored_bytes),
            ("inlined_bytes", self.meta.inlined_bytes),
            ("members_waiting_for_room", self.soft.cluster.waiting(WaitReason::NoRoom)),
            ("members_waiting_for_host", self.soft.cluster.waiting(WaitReason::NoHost)),
            ("metadata_compared_ms", self.soft.comparison.last.ended_ns.max(0) as u64 / 1_000_000),
            ("metadata_managers_compared", u64::from(self.soft.comparison.last.managers)),
            ("metadata_managers_differing", self.soft.comparison.last.differing.len() as u64),
        ];
        metrics
    }
}

impl AdmittedCommand {
    /// The connection it came on; 0: the manager itself.
    fn requester(&self) -> u64 {
        self.origin.as_ref().map_or(0, |origin| origin.connection)
    }
}

impl Origin {
    fn reply(self, result: Answer) -> Action {
        let Origin { connection, request_id, kind, .. } = self;
        Action::Reply { connection, request_id, kind, result, confirm: Confirm::Now }
    }
}

fn queued(proposal: &Proposal) -> Result<QueuedCommand> {
    QueuedCommand::decode(proposal.kind, &proposal.body, 0)
}
