//! The thread that owns the manager.

use super::reading::Reading;
use super::{GreetedConnections, In, Job, Shared, spawn};
use crate::core::{Action, Event};
use crate::db::readers::DbReaders;
use crate::group::{DigestJob, GroupAction, Manager, SnapshotJob};
use crate::inbox::Inbox;
use crate::metadata_scrub::MetadataScrub;
use crate::metrics::Metrics;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tessera_net::{Dialer, Endpoint, Part, boot_ns};
use tessera_pagesum::{Displaced, FileId, Watch};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error, Kind};

/// Interval of ticks.
const TICK: Duration = Duration::from_millis(100);
/// A directory that is gone for so many ticks was moved or removed.
const MISSING_TICKS: u32 = 5;
/// Most events handled before a group commit, …
const EVENTS_AT_ONCE: usize = 4096;
/// … and the longest time that commands, ticks and frames of the group wait because of them.
const TURN: Duration = Duration::from_millis(5);
/// Limit of the time that leadership takes to move when a manager stops.
const HAND_OVER: Duration = Duration::from_secs(2);

/// A request of a peer that waits for its answer.
struct PeerRequest {
    connection: u64,
    request_id: u64,
    kind: Kind,
}

/// A thread that reads the database beside the core, and what ends it.
struct Beside {
    thread: JoinHandle<()>,
    stop: Box<dyn Fn() + Send>,
}

impl Beside {
    fn end(self) {
        while !self.thread.is_finished() {
            (self.stop)();
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.thread.join();
    }
}

pub(super) struct CoreLoop {
    manager: Manager,
    inbox: Arc<Inbox<In>>,
    greeted: Arc<GreetedConnections>,
    /// Works on a snapshot, or did.
    snapshot: Option<JoinHandle<()>>,
    /// Computes a digest, or did.
    digest: Option<Beside>,
    reading: Reading,
    outboxes: Vec<Sender<Job>>,
    metrics: Arc<Mutex<Metrics>>,
    /// Reads the pages of this database file.
    scrub: Option<(Arc<Watch>, MetadataScrub)>,
    /// Addresses of nodes, as of a map version.
    addresses: (u64, HashMap<u64, Endpoint>),
    /// The lock, and the directory of the log. Both are open.
    held: [(PathBuf, FileId); 2],
    /// Ticks since the database, the lock or the log is gone from its place.
    missing_ticks: u32,
    /// Connections are greeted with the members as of this entry.
    told_index: u64,
    /// Requests of peers, by token.
    asked: HashMap<u64, PeerRequest>,
    next_token: u64,
    next_tick: Instant,
    /// Until then leadership may move before the thread ends.
    ends: Option<Instant>,
}

impl CoreLoop {
    pub(super) fn new(
        mut manager: Manager,
        inbox: Arc<Inbox<In>>,
        greeted: Arc<GreetedConnections>,
        outboxes: Vec<Sender<Job>>,
        metrics: Arc<Mutex<Metrics>>,
    ) -> std::io::Result<CoreLoop> {
        manager.note_wall(boot_ns(), wall_ns());
        let readers = manager.readers().expect("a manager that serves has its database in a directory");
        let [lock, log] = manager.held_paths().expect("as its log");
        let held = [(lock.clone(), FileId::at(&lock)?), (log.clone(), FileId::at(&log)?)];
        let reading = Reading::start(readers.clone(), manager.config().clone(), inbox.clone())?;
        Ok(CoreLoop {
            manager,
            inbox,
            greeted,
            snapshot: None,
            digest: None,
            reading,
            outboxes,
            metrics,
            scrub: None,
            addresses: (u64::MAX, HashMap::new()),
            held,
            missing_ticks: 0,
            told_index: 0,
            asked: HashMap::new(),
            next_token: 0,
            next_tick: Instant::now(),
            ends: None,
        })
    }

    /// Runs until it is told to stop, or the manager fails; then returns the reason.
    pub(super) fn run(mut self) -> Option<Error> {
        self.serve();
        // These threads read the database, which must be closed when this returns.
        self.scrub = None;
        self.digest.take().into_iter().for_each(Beside::end);
        for thread in self.snapshot.into_iter().chain([self.reading.end()]) {
            while !thread.is_finished() {
                let _closed = self.manager.readers().map(DbReaders::close);
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = thread.join();
        }
        self.manager.failed().cloned()
    }

    fn serve(&mut self) {
        loop {
            self.take_in();
            if Instant::now() >= self.next_tick {
                self.next_tick = Instant::now() + TICK;
                self.manager.note_wall(boot_ns(), wall_ns());
                self.manager.handle(boot_ns(), Event::Tick);
                *self.metrics.lock() = self.manager.metrics();
                self.look_for_directory();
                self.follow_database();
                self.tell_members();
            }
            if self.manager.is_behind() {
                self.manager.catch_up(boot_ns());
            }
            if self.manager.wants_commit() && self.manager.begin(boot_ns()) {
                self.carry_out();
                self.manager.complete(boot_ns());
            }
            self.carry_out();
            if self.manager.failed().is_some() {
                self.ends.get_or_insert_with(|| Instant::now() + HAND_OVER);
            }
            if self.ends.is_some_and(|ends| Instant::now() >= ends || !self.manager.can_hand_over()) {
                return;
            }
        }
    }

    /// Handles waiting events; waits if there is no other work.
    fn take_in(&mut self) {
        let wait = match self.manager.wants_commit() || self.manager.is_behind() {
            true => Duration::ZERO,
            false => self.next_tick.saturating_duration_since(Instant::now()),
        };
        let mut next = self.inbox.take_within(wait);
        let (now_ns, begun) = (boot_ns(), Instant::now());
        let mut taken = 0;
        while let Some(event) = next {
            match event {
                In::Event(event) => self.manager.handle(now_ns, event),
                In::Closed { connection, end, client_id } => {
                    let client_gone = if self.is_connected(client_id) { 0 } else { client_id };
                    self.manager.handle(now_ns, Event::ConnectionClosed { connection, end, client_gone });
                }
                In::Peer { connection, request_id, kind, body, payload } => {
                    self.next_token += 1;
                    self.asked.insert(self.next_token, PeerRequest { connection, request_id, kind });
                    self.manager.request(now_ns, self.next_token, kind, body, payload);
                }
                In::Snapshot(done) => self.manager.snapshot_done(done),
                In::Digest(done) => self.manager.digest_done(now_ns, done),
                #[cfg(test)]
                In::Run(call) => call(),
                In::Stop => {
                    self.manager.retire();
                    self.ends = Some(Instant::now() + HAND_OVER);
                    return;
                }
            }
            taken += 1;
            let is_due = taken >= EVENTS_AT_ONCE || begun.elapsed() >= TURN;
            next = if is_due { None } else { self.inbox.take() };
        }
    }

    /// Whether a client has a connection now. It may have reconnected since the end of an older one was queued, and requests on the new
    /// connection may have been handled already.
    fn is_connected(&self, client_id: u64) -> bool {
        self.greeted.lock().values().any(|greeted| greeted.client_id == client_id)
    }

    /// Whoever greets this manager learns the members of its group.
    fn tell_members(&mut self) {
        let index = self.manager.peer().membership().index;
        if std::mem::replace(&mut self.told_index, index) != index {
            let members = self.manager.member_addresses();
            self.post(0, move |shared, _| *shared.members.lock() = members);
        }
    }

    /// Ends the manager if somebody took its directory away, or put another one in its place.
    fn look_for_directory(&mut self) {
        let database = || self.manager.db()?.watch()?.displaced();
        let held = || self.held.iter().find_map(|(path, open)| Displaced::find(path, *open));
        let Some(lost) = database().or_else(held) else {
            self.missing_ticks = 0;
            return;
        };
        self.missing_ticks += 1;
        // One that is away may come back. One that was replaced must get nothing of what this manager writes.
        if self.missing_ticks >= MISSING_TICKS || matches!(lost, Displaced::Replaced(_)) {
            self.manager.lose_directory(&lost);
        }
    }

    /// Scrubs the database that is open now: a snapshot may have replaced it.
    fn follow_database(&mut self) {
        let watch = self.manager.db().and_then(|db| db.watch().cloned());
        let is_same = match (&watch, &self.scrub) {
            (Some(watch), Some((scrubbed, _))) => Arc::ptr_eq(watch, scrubbed),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return;
        }
        self.scrub = None;
        let Some(watch) = watch else { return };
        match MetadataScrub::start(watch.clone(), self.manager.config()) {
            Ok(scrub) => self.scrub = Some((watch, scrub)),
            Err(error) => tracing::error!(%error, "cannot start to scrub the database"),
        }
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.manager.poll() {
            match action {
                // If the connection is gone, the reply is dropped: its client asks again on another one.
                GroupAction::Core(Action::Reply { connection, request_id, kind, result, .. }) => {
                    self.reply(connection, request_id, kind, result.map(|body| (body, Vec::new())));
                }
                GroupAction::Core(Action::Call(call)) => self.call(call),
                GroupAction::Core(Action::Read(job)) => self.reading.push(job),
                GroupAction::Answer { token, result } => {
                    if let Some(PeerRequest { connection, request_id, kind }) = self.asked.remove(&token) {
                        self.reply(connection, request_id, kind, result);
                    }
                }
                GroupAction::Snapshot(job) => self.work_on_snapshot(job),
                GroupAction::Digest(job) => self.compute_digest(job),
            }
        }
    }

    fn reply(
        &self,
        connection: u64,
        request_id: u64,
        kind: Kind,
        result: Result<(bytes::Bytes, Vec<bytes::Bytes>), Error>,
    ) {
        self.post(connection, move |shared, _| {
            if let Some(to) = shared.connection(connection) {
                let part =
                    |(body, payload): (_, Vec<bytes::Bytes>)| (body, payload.into_iter().map(Part::Bytes).collect());
                to.reply(kind as u16, request_id, result.map(part));
            }
        });
    }

    fn work_on_snapshot(&mut self, job: SnapshotJob) {
        // The one before has passed on its result.
        self.snapshot.take().into_iter().for_each(|done| _ = done.join());
        let inbox = self.inbox.clone();
        match spawn("snapshot".into(), move || inbox.push(None, In::Snapshot(job.run()))) {
            Ok(thread) => self.snapshot = Some(thread),
            Err(source) => {
                let error = crate::group::GroupError::File { path: "a thread for a snapshot".into(), source };
                self.manager.snapshot_done(Err(error));
            }
        }
    }

    fn compute_digest(&mut self, job: DigestJob) {
        // The one before has passed on its result.
        self.digest.take().into_iter().for_each(|done| _ = done.thread.join());
        let (inbox, stop) = (self.inbox.clone(), job.stop());
        match spawn("metadata-digest".into(), move || inbox.push(None, In::Digest(job.run()))) {
            Ok(thread) => self.digest = Some(Beside { thread, stop: Box::new(stop) }),
            Err(error) => {
                tracing::error!(%error, "a thread for a digest");
                self.manager.digest_failed();
            }
        }
    }

    fn call(&mut self, call: Call) {
        let (token, timeout) = (call.token, Duration::from_millis(call.timeout_ms));
        let (endpoint, key) = match &call.peer {
            Peer::Connection(id) => {
                let id = *id;
                return self.post(id, move |shared, _| match shared.connection(id) {
                    Some(to) => to.call(call.kind, &call.body, call.payload, timeout, answer_to(shared, token)),
                    None => shared.push(unavailable(token, "the connection is gone".into())),
                });
            }
            Peer::Node(node) => match self.address(*node) {
                Some(endpoint) => (endpoint, *node),
                None => return self.refuse(token, format!("node {node} has no address")),
            },
            Peer::Address(address) => match address.parse() {
                Ok(endpoint) => (endpoint, hash(address)),
                Err(why) => return self.refuse(token, why),
            },
            Peer::Manager => return self.refuse(token, "a manager does not call itself".into()),
        };
        self.post(key, move |shared, dialer| {
            let callback = answer_to(shared, token);
            dialer.call(&endpoint, call.kind, call.body, call.payload, timeout, callback);
        });
    }

    fn refuse(&mut self, token: u64, why: String) {
        self.manager.handle(boot_ns(), unavailable(token, why));
    }

    fn post(&self, key: u64, job: impl FnOnce(&Arc<Shared>, &Dialer) + Send + 'static) {
        let _ = self.outboxes[key as usize % self.outboxes.len()].send(Box::new(job));
    }

    fn address(&mut self, node: u64) -> Option<Endpoint> {
        let core = self.manager.core()?;
        let version = core.meta().map_version;
        if self.addresses.0 != version {
            match core.node_map() {
                Ok(map) => {
                    let addresses = map.nodes.values().map(|node| (node.node_id, Endpoint::Tcp(node.address.clone())));
                    self.addresses = (version, addresses.collect());
                }
                Err(error) => tracing::error!(%error, "reading the nodes' addresses"),
            }
        }
        self.addresses.1.get(&node).cloned()
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn unavailable(token: u64, why: String) -> Event {
    Event::Answer(Answer { token, result: Err(Error::new(Code::Unavailable, why)) })
}

fn answer_to(shared: &Arc<Shared>, token: u64) -> tessera_net::Callback {
    let shared = shared.clone();
    Box::new(move |result| shared.push(Event::Answer(Answer { token, result })))
}

fn wall_ns() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_nanos()).unwrap_or(i64::MAX)
}
