//! The core on the network: one thread owns it, connection threads bring requests, a few threads send replies.
//!
//! The core's thread never touches a socket. It takes all waiting events, begins a group commit, hands the log's entries to the
//! senders, and syncs the transaction while the entries travel. The binary handles SIGTERM: it calls
//! [`ManagerServer::stop`], which returns after the group commit under way.

use crate::config::Config;
use crate::core::{Action, Event, ManagerCore};
use crate::db::{Db, DbError};
use crate::error::Failure;
use crate::inbox::{Inbox, connection_of};
use crate::log::replicate::Snapshot;
use crate::log::restore::{Restore, RestoreError, Restored};
use crate::metadata_scrub::MetadataScrub;
use crate::metrics::Metrics;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tessera_net::{BufferPool, Connection, Dialer, Endpoint, Limits, Server, ServerError, Service};
use tessera_wire::frame::decode_message;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error, Frame, Hello, HelloReply, Kind, PROTOCOL_VERSION, Role, hex};
use thiserror::Error as ThisError;

/// Release named in greetings.
const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Interval of ticks.
const TICK: Duration = Duration::from_millis(100);
/// Threads that write to sockets, beside the core's. None of them waits for a peer.
const SENDERS: usize = 4;
/// Most events handled before a group commit, …
const EVENTS_AT_ONCE: usize = 4096;
/// … and the longest time that commands wait for one because of them.
const COMMIT_AFTER: Duration = Duration::from_millis(5);
/// What an answer that may list thousands of entries takes, roughly.
const LONG_ANSWER_BYTES: usize = 1 << 20;

/// Why a manager did not start.
#[derive(Debug, ThisError)]
pub enum ServeError {
    /// The database could not be opened or created.
    #[error(transparent)]
    Db(#[from] DbError),
    /// The core did not start.
    #[error(transparent)]
    Start(#[from] Failure),
    /// The server could not listen on an address.
    #[error(transparent)]
    Listen(#[from] ServerError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The database could not be restored from log replicas.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

enum In {
    Event(Event),
    Snapshot(Result<Snapshot, String>),
    Stop,
}

/// Work for a sender: it writes to a socket or dials.
type Job = Box<dyn FnOnce(&Arc<Shared>, &Dialer) + Send>;

/// State that connection threads and senders share.
struct Shared {
    cluster_id: [u8; 16],
    inbox: Arc<Inbox<In>>,
    /// Connections that have greeted, with their role.
    greeted: Mutex<HashMap<u64, Greeted>>,
}

struct Greeted {
    connection: Arc<Connection>,
    role: Role,
    client_id: u64,
}

/// A running manager.
pub struct ManagerServer {
    shared: Arc<Shared>,
    server: Option<Server>,
    core: Option<JoinHandle<Option<Error>>>,
    senders: Vec<JoinHandle<()>>,
    metrics: Arc<Mutex<Metrics>>,
    scrub: Option<MetadataScrub>,
}

impl ManagerServer {
    /// Serves the database in `dir`. If there is none and `create` gives a cluster id, creates it for that new cluster.
    ///
    /// # Errors
    /// The directory, the database or an address cannot be used.
    pub fn start(
        dir: &Path,
        create: Option<[u8; 16]>,
        listen: &[Endpoint],
        config: Config,
    ) -> Result<ManagerServer, ServeError> {
        let there = dir.join(crate::db::FILE_NAME).exists();
        let db = match create.filter(|_| !there) {
            Some(cluster_id) => {
                tessera_net::probe(listen)?;
                let db = Db::create(dir, cluster_id)?;
                tracing::warn!(
                    "{} held no database: this manager serves a new cluster, {}; if it should serve one that exists, stop it, \
                     move the directory away and use --restore",
                    dir.display(),
                    hex(&cluster_id)
                );
                db
            }
            None => Db::open(dir)?,
        };
        let core = ManagerCore::start(db, config, now_ns())?;
        ManagerServer::serve(core, listen)
    }

    /// Rebuilds the database in `dir` from the log replicas at `addresses`, then serves it.
    ///
    /// # Errors
    /// As [`ManagerServer::start`]; also if nothing can be restored.
    pub fn start_restored(
        dir: &Path,
        addresses: &[String],
        without_missing: bool,
        listen: &[Endpoint],
        config: Config,
    ) -> Result<ManagerServer, ServeError> {
        let restored = fetch(addresses, without_missing, &config)?;
        let above = restored.highest_term;
        tracing::info!(from = restored.from, entries = restored.entries.len(), "restoring the manager");
        let mut said = Instant::now();
        let db = restored.into_db(Some(dir), &mut |done, all| {
            if said.elapsed() >= TELL_EVERY {
                said = Instant::now();
                tracing::info!(done, all, "applying entries of the log");
            }
        })?;
        let core = ManagerCore::start_with(db, config, now_ns(), above, true)?;
        ManagerServer::serve(core, listen)
    }

    /// Puts a started core on the network.
    ///
    /// # Errors
    /// An address cannot be used, or a thread cannot start.
    pub fn serve(core: ManagerCore, listen: &[Endpoint]) -> Result<ManagerServer, ServeError> {
        let inbox = Arc::<Inbox<In>>::default();
        let limits = limits(core.config());
        let shared =
            Arc::new(Shared { cluster_id: core.meta().cluster_id, inbox: inbox.clone(), greeted: Mutex::default() });
        let metrics = Arc::new(Mutex::new(core.metrics()));
        let dialer = dialer(&core.meta().cluster_id);
        let mut outboxes = Vec::new();
        let mut senders = Vec::new();
        for i in 0..SENDERS {
            let (outbox, jobs) = channel();
            let (shared, dialer) = (shared.clone(), dialer.clone());
            let send = move || jobs.iter().for_each(|job: Job| job(&shared, &dialer));
            senders.push(spawn(format!("sender-{i}"), send).map_err(ServeError::Thread)?);
            outboxes.push(outbox);
        }
        let watch = core.db().watch().cloned();
        let scrub = watch.map(|watch| MetadataScrub::start(watch, core.config())).transpose();
        let scrub = scrub.map_err(ServeError::Thread)?;
        let core = CoreLoop {
            core,
            inbox,
            snapshot: None,
            outboxes,
            metrics: metrics.clone(),
            addresses: (u64::MAX, HashMap::new()),
            next_tick: Instant::now(),
        };
        let core = Some(spawn("core".into(), move || core.run()).map_err(ServeError::Thread)?);
        // From here on, dropping the server cleans up after a failure.
        let mut manager = ManagerServer { shared: shared.clone(), server: None, core, senders, metrics, scrub };
        manager.server = Some(Server::start(listen, shared, BufferPool::new(16 << 20), limits)?);
        Ok(manager)
    }

    /// The addresses it listens on, with the ports chosen.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.server.as_ref().map_or(&[], Server::endpoints)
    }

    /// Cluster id.
    pub fn cluster_id(&self) -> [u8; 16] {
        self.shared.cluster_id
    }

    /// Metrics, at most one tick old.
    pub fn metrics(&self) -> Metrics {
        self.metrics.lock().clone()
    }

    /// Whether the core has stopped (its database failed, or a newer manager took over); then call [`ManagerServer::stop`].
    pub fn is_finished(&self) -> bool {
        self.core.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops after the group commit under way. Returns the reason if the core had stopped by itself.
    pub fn stop(mut self) -> Option<Error> {
        self.end()
    }

    fn end(&mut self) -> Option<Error> {
        self.scrub = None;
        self.shared.inbox.push(None, In::Stop);
        let why = self.core.take().and_then(|core| core.join().ok()).flatten();
        // The core's outboxes are closed: senders end once these are empty.
        self.senders.drain(..).for_each(|sender| _ = sender.join());
        if let Some(mut server) = self.server.take() {
            server.stop();
        }
        why
    }
}

impl Drop for ManagerServer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn connection(&self, id: u64) -> Option<Arc<Connection>> {
        self.greeted.lock().get(&id).map(|greeted| greeted.connection.clone())
    }

    fn push(&self, event: Event) {
        self.inbox.push(connection_of(&event), In::Event(event));
    }

    fn greet(&self, connection: &Arc<Connection>, hello: &Hello) -> Result<Bytes, Error> {
        let role = Role::try_from(hello.role).unwrap_or(Role::Unknown);
        hello.check(&self.cluster_id).map_err(|error| self.turn_away(hello, role, error))?;
        connection.admit(role)?;
        let greeted = Greeted { connection: connection.clone(), role, client_id: hello.client_id };
        self.greeted.lock().insert(connection.id(), greeted);
        let reply = HelloReply {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: self.cluster_id.to_vec(),
            release: RELEASE.to_string(),
            role: Role::Manager as i32,
        };
        Ok(prost::Message::encode_to_vec(&reply).into())
    }

    /// Rejects a node of another cluster; the error and the log explain what that may mean.
    fn turn_away(&self, hello: &Hello, role: Role, error: Error) -> Error {
        if role != Role::Node || error.code() != Code::WrongCluster {
            return error;
        }
        self.push(Event::RejectedNode { cluster_id: hello.cluster_id.clone(), host: hello.host.clone() });
        Error::new(
            Code::WrongCluster,
            format!(
                "these disks belong to cluster {}, the manager serves cluster {}; check --manager, and if the manager lost its \
                 directory, start it with --restore",
                hex(&hello.cluster_id),
                hex(&self.cluster_id)
            ),
        )
    }

    fn accept(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<Option<Bytes>, Error> {
        let header = &frame.header;
        let Some(kind) = Kind::from_number(header.kind) else {
            let text = format!("no message has number {:#06x} in this release", header.kind);
            return Err(Error::new(Code::Unsupported, text));
        };
        if kind == Kind::Hello {
            let hello = decode_message::<Hello>(header.kind, &frame.body)
                .map_err(|error| Error::new(Code::Invalid, error.to_string()))?;
            return self.greet(connection, &hello).map(Some);
        }
        let (role, client_id) = match self.greeted.lock().get(&connection.id()) {
            Some(greeted) => (greeted.role, greeted.client_id),
            None => return Err(Error::new(Code::Invalid, "the first message on a connection must be Hello")),
        };
        self.push(Event::Request {
            connection: connection.id(),
            role,
            client_id,
            request_id: header.request_id,
            kind,
            body: frame.body.clone(),
        });
        Ok(None)
    }
}

impl Service for Shared {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        match self.accept(connection, &frame) {
            Ok(None) => {}
            Ok(Some(body)) => connection.reply(frame.header.kind, frame.header.request_id, Ok((body, Vec::new()))),
            Err(error) => connection.reply(frame.header.kind, frame.header.request_id, Err(error)),
        }
    }

    fn cost_bytes(&self, frame: &Frame) -> usize {
        let answer = match Kind::from_number(frame.header.kind) {
            Some(Kind::List | Kind::ListExtents | Kind::ListVersions | Kind::GetMap | Kind::GetStatus) => {
                LONG_ANSWER_BYTES
            }
            // A client may wait for many locks, which must not keep it from cancelling one.
            Some(Kind::SetLock) => 0,
            _ => 1 << 10,
        };
        answer + frame.body.len()
    }

    fn closed(&self, connection: &Arc<Connection>) {
        let mut greeted = self.greeted.lock();
        let Some(gone) = greeted.remove(&connection.id()) else { return };
        let another = greeted.values().any(|other| other.client_id == gone.client_id);
        drop(greeted);
        self.push(Event::ConnectionClosed {
            connection: connection.id(),
            by_peer: connection.ended_by_peer(),
            client_gone: if gone.role == Role::Client && !another { gone.client_id } else { 0 },
        });
    }
}

/// The thread that owns the core.
struct CoreLoop {
    core: ManagerCore,
    inbox: Arc<Inbox<In>>,
    snapshot: Option<JoinHandle<()>>,
    outboxes: Vec<Sender<Job>>,
    metrics: Arc<Mutex<Metrics>>,
    /// Addresses of nodes, as of a map version.
    addresses: (u64, HashMap<u64, Endpoint>),
    next_tick: Instant,
}

impl CoreLoop {
    /// Runs until it is told to stop, or the core stops by itself; then returns the core's reason.
    fn run(mut self) -> Option<Error> {
        if self.core.db().file().is_some() {
            self.core.take_snapshots_elsewhere();
        }
        let why = self.serve();
        // The snapshot thread reads the database, which must be closed when this returns.
        self.snapshot.take().into_iter().for_each(|snapshot| _ = snapshot.join());
        why
    }

    /// Starts a thread that copies the database if the core wants a snapshot.
    fn take_snapshot(&mut self) {
        let Some(file) = self.core.db().file().map(Path::to_path_buf) else { return };
        if !self.core.snapshot_wanted() {
            return;
        }
        let inbox = self.inbox.clone();
        let thread = spawn("snapshot".into(), move || {
            let taken = Db::image_of(&file).map(|(meta, image)| Snapshot::new(meta.log_seq, meta.term, image));
            inbox.push(None, In::Snapshot(taken.map_err(|e| e.to_string())));
        });
        match thread {
            Ok(thread) => self.snapshot = Some(thread),
            Err(error) => self.core.snapshot_taken(Err(error.to_string())),
        }
    }

    fn serve(&mut self) -> Option<Error> {
        loop {
            let goes_on = self.take_in();
            if Instant::now() >= self.next_tick {
                self.next_tick = Instant::now() + TICK;
                self.core.handle(now_ns(), Event::Tick);
                *self.metrics.lock() = self.core.metrics();
                self.take_snapshot();
            }
            if self.core.wants_commit() {
                let begun = self.core.begin_batch(now_ns());
                self.carry_out();
                if begun {
                    self.core.finish_batch();
                }
            }
            self.carry_out();
            if let Some(why) = self.core.stopped() {
                return Some(why.clone());
            }
            if !goes_on {
                return None;
            }
        }
    }

    /// Handles waiting events; waits if there is no other work. Returns false to stop.
    fn take_in(&mut self) -> bool {
        let wait = match self.core.wants_commit() {
            true => Duration::ZERO,
            false => self.next_tick.saturating_duration_since(Instant::now()),
        };
        let mut next = self.inbox.take_within(wait);
        let (now_ns, begun) = (now_ns(), Instant::now());
        let mut taken = 0;
        while let Some(event) = next {
            match event {
                In::Event(event) => self.core.handle(now_ns, event),
                In::Snapshot(result) => self.core.snapshot_taken(result),
                In::Stop => return false,
            }
            taken += 1;
            let commit_is_due = taken >= EVENTS_AT_ONCE || self.core.wants_commit() && begun.elapsed() >= COMMIT_AFTER;
            next = if commit_is_due { None } else { self.inbox.take() };
        }
        true
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.core.poll() {
            match action {
                // If the connection is gone, the reply is dropped: its client asks again on another one.
                Action::Reply { connection, request_id, kind, result, .. } => {
                    self.post(connection, move |shared, _| {
                        if let Some(to) = shared.connection(connection) {
                            to.reply(kind as u16, request_id, result.map(|body| (body, Vec::new())));
                        }
                    })
                }
                Action::Call(call) => self.call(call),
            }
        }
    }

    fn call(&mut self, call: Call) {
        let (token, timeout) = (call.token, Duration::from_millis(call.timeout_ms));
        let failed = match call.peer {
            Peer::Connection(id) => {
                return self.post(id, move |shared, _| match shared.connection(id) {
                    Some(to) => to.call(call.kind, &call.body, call.payload, timeout, answer_to(shared, token)),
                    None => shared.push(unavailable(token, "the connection is gone".into())),
                });
            }
            Peer::Node(node) => match self.address(node) {
                Some(endpoint) => {
                    return self.post(node, move |shared, dialer| {
                        let callback = answer_to(shared, token);
                        dialer.call(&endpoint, call.kind, call.body, call.payload, timeout, callback);
                    });
                }
                None => format!("node {node} has no address"),
            },
            _ => "a manager calls nodes and clients only".into(),
        };
        self.core.handle(now_ns(), unavailable(token, failed));
    }

    fn post(&self, key: u64, job: impl FnOnce(&Arc<Shared>, &Dialer) + Send + 'static) {
        let _ = self.outboxes[key as usize % self.outboxes.len()].send(Box::new(job));
    }

    fn address(&mut self, node: u64) -> Option<Endpoint> {
        let version = self.core.meta().map_version;
        if self.addresses.0 != version {
            match self.core.db().all::<(u64, String), Vec<_>>("SELECT node_id, address FROM nodes", []) {
                Ok(rows) => {
                    let addresses = rows.into_iter().map(|(id, address)| (id, Endpoint::Tcp(address)));
                    self.addresses = (version, addresses.collect());
                }
                Err(error) => tracing::error!(%error, "reading the nodes' addresses"),
            }
        }
        self.addresses.1.get(&node).cloned()
    }
}

/// What the manager lets its peers take. No request to it has a payload.
fn limits(config: &Config) -> Limits {
    Limits {
        clients: config.max_client_connections,
        nodes: config.max_node_connections,
        payload_bytes: 0,
        ..Limits::default()
    }
}

fn unavailable(token: u64, why: String) -> Event {
    Event::Answer(Answer { token, result: Err(Error::new(Code::Unavailable, why)) })
}

fn spawn<T: Send + 'static>(name: String, run: impl FnOnce() -> T + Send + 'static) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name).spawn(run)
}

fn answer_to(shared: &Arc<Shared>, token: u64) -> tessera_net::Callback {
    let shared = shared.clone();
    Box::new(move |result| shared.push(Event::Answer(Answer { token, result })))
}

fn dialer(cluster_id: &[u8]) -> Dialer {
    let (cluster_id, release) = (cluster_id.to_vec(), RELEASE.to_string());
    let protocol_version = PROTOCOL_VERSION;
    let hello = Hello { protocol_version, role: Role::Manager as i32, cluster_id, release, ..Hello::default() };
    let service = Arc::new(tessera_net::dialer::NoService);
    Dialer::new(hello, service, BufferPool::new(16 << 20))
}

/// Reads the log from its replicas.
///
/// # Errors
/// No address was given, no replica answers, or the log cannot be restored from those that do.
fn fetch(addresses: &[String], without_missing: bool, config: &Config) -> Result<Restored, RestoreError> {
    if addresses.is_empty() {
        return Err(RestoreError::NoReplica { asked: 0, why: "no address was given".to_string() });
    }
    let dialer = dialer(&[]);
    let mut restore = Restore::new(addresses.to_vec(), without_missing, config);
    let (sender, answers) = channel();
    loop {
        while let Some(call) = restore.poll() {
            let Peer::Address(address) = &call.peer else { continue };
            let (sender, token) = (sender.clone(), call.token);
            let callback = Box::new(move |result| {
                let _ = sender.send(Answer { token, result });
            });
            let timeout = Duration::from_millis(call.timeout_ms);
            dialer.call(&Endpoint::Tcp(address.clone()), call.kind, call.body, call.payload, timeout, callback);
        }
        let Ok(answer) = answers.recv() else {
            return Err(RestoreError::NoReplica { asked: addresses.len(), why: "no answer came".to_string() });
        };
        if let Some(restored) = restore.handle(answer)? {
            dialer.close();
            return Ok(restored);
        }
    }
}

/// The wall clock at process start, advanced by a monotonic clock: setting the clock must not end sessions or declare nodes
/// down at once.
fn now_ns() -> i64 {
    static START: LazyLock<(i64, Instant)> = LazyLock::new(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (i64::try_from(wall.as_nanos()).unwrap_or(0), Instant::now())
    });
    START.0.saturating_add(i64::try_from(START.1.elapsed().as_nanos()).unwrap_or(i64::MAX))
}
