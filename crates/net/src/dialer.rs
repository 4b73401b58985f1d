//! Connections to peers: opened and greeted on first use, shared, and replaced when they break.
//!
//! Every call gets exactly one result. After a failure the dialer does not try the peer again for
//! [`RETRY_AFTER`], so calls to a dead node fail at once.
//!
//! All peers are of one cluster (P14): the one in the greeting, or else the one that [`Dialer::settle_cluster`] names once. A
//! peer of another cluster gets no call from then on. What each peer said about itself is kept ([`Dialer::identity`]).

use crate::buffer::BufferPool;
use crate::connection::{Callback, Connection, Service, wait_for};
use crate::endpoint::{Endpoint, Stream};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error, Hello, HelloReply, Kind, Request, Role};

/// Longest wait for a connection, and for the answer to the greeting, unless the maker of a dialer sets another.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// So many members are kept of those that a peer names.
const MEMBERS_MAX: usize = 64;
/// Time after a failure before the peer is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Why [`Dialer::attempt`] got no reply.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The peer's error, or [`Code::Unavailable`], [`Code::Timeout`].
    pub error: Error,
    /// Whether the request may have reached the peer. If not, the connection could not be opened.
    pub is_sent: bool,
}

/// Receives the result of an attempt, as [`Callback`] that of a call.
pub type AttemptCallback = Box<dyn FnOnce(Result<(Bytes, Bytes), Failure>) + Send>;
/// Receives how a greeting ended.
pub type GreetingCallback = Box<dyn FnOnce(Result<(), Unreached>) + Send>;

/// Why a greeting failed.
#[derive(Debug, Clone)]
pub struct Unreached {
    /// As of a call.
    pub error: Error,
    /// Somebody took the connection at that address.
    pub is_taken: bool,
}

/// What a peer says about itself in its answer to the greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its role, as it said last.
    pub role: Role,
    /// Its cluster, as it said last; empty if it named none. Once it has named the cluster of the dialer, that stays.
    pub cluster_id: Vec<u8>,
    /// Of a manager: members of its group, itself among them, as it said last.
    pub members: Vec<Endpoint>,
}

/// What waits for a connection.
enum Waiter {
    Call(QueuedCall),
    Greeting(GreetingCallback),
}

struct QueuedCall {
    kind: Kind,
    body: Bytes,
    payload: Vec<Bytes>,
    timeout: Duration,
    callback: OnResult,
}

enum OnResult {
    Call(Callback),
    Attempt(AttemptCallback),
}

enum Line {
    Connecting(Vec<Waiter>),
    Open(Arc<Connection>),
    Failed(Instant, Unreached),
}

struct Inner {
    hello: Hello,
    timeout: Duration,
    /// Never changes once it is known.
    cluster_id: OnceLock<Vec<u8>>,
    service: Arc<dyn Service>,
    pool: BufferPool,
    lines: Mutex<HashMap<Endpoint, Line>>,
    /// Of all peers that have answered a greeting, those of other clusters too.
    identities: Mutex<HashMap<Endpoint, Identity>>,
}

/// The reading thread of a connection holds it: without this, it would stay open when no dialer can use it any more.
impl Drop for Inner {
    fn drop(&mut self) {
        for line in self.lines.get_mut().values() {
            if let Line::Open(connection) = line {
                connection.close();
            }
        }
    }
}

/// Connections to any number of peers. Cloning shares them; they are closed with the last clone.
#[derive(Clone)]
pub struct Dialer(Arc<Inner>);

impl Dialer {
    /// A dialer that greets peers with `hello`; `service` serves their requests. Without a cluster id in it, the dialer
    /// takes peers of any cluster until one is settled.
    pub fn new(hello: Hello, service: Arc<dyn Service>, pool: BufferPool) -> Self {
        Dialer::with_timeout(hello, service, pool, CONNECT_TIMEOUT)
    }

    /// As [`Dialer::new`]. A peer has `timeout` to take a connection, and as long to answer the greeting.
    pub fn with_timeout(hello: Hello, service: Arc<dyn Service>, pool: BufferPool, timeout: Duration) -> Self {
        let cluster_id = OnceLock::new();
        if !hello.cluster_id.is_empty() {
            let _ = cluster_id.set(hello.cluster_id.clone());
        }
        let (lines, identities) = (Mutex::default(), Mutex::default());
        Dialer(Arc::new(Inner { hello, timeout, cluster_id, service, pool, lines, identities }))
    }

    /// Calls `endpoint`; `callback` runs exactly once, on a connection's thread or on this one.
    pub fn call(
        &self,
        endpoint: &Endpoint,
        kind: Kind,
        body: Bytes,
        payload: Vec<Bytes>,
        timeout: Duration,
        callback: Callback,
    ) {
        let call = QueuedCall { kind, body, payload, timeout, callback: OnResult::Call(callback) };
        self.start(endpoint, Waiter::Call(call));
    }

    /// As [`Dialer::call`]; the error says whether the request was sent.
    pub fn attempt(
        &self,
        endpoint: &Endpoint,
        kind: Kind,
        body: Bytes,
        payload: Vec<Bytes>,
        timeout: Duration,
        callback: AttemptCallback,
    ) {
        let call = QueuedCall { kind, body, payload, timeout, callback: OnResult::Attempt(callback) };
        self.start(endpoint, Waiter::Call(call));
    }

    /// Opens a connection to `endpoint` unless one is open; `callback` runs exactly once, on a thread of the dialer or on this
    /// one. The error is that of a call.
    pub fn greet(&self, endpoint: &Endpoint, callback: GreetingCallback) {
        self.start(endpoint, Waiter::Greeting(callback));
    }

    /// The cluster of all peers, if it is known.
    #[must_use]
    pub fn cluster_id(&self) -> Option<Vec<u8>> {
        self.0.cluster_id.get().cloned()
    }

    /// All peers are of this cluster from now on, unless another one is known already. Closes the connections to others.
    pub fn settle_cluster(&self, cluster_id: &[u8]) {
        let _ = self.0.cluster_id.set(cluster_id.to_vec());
        let peers: Vec<Endpoint> = self.0.lines.lock().keys().cloned().collect();
        let is_other =
            |peer: &&Endpoint| self.identity(peer).is_some_and(|it| self.check_cluster(&it.cluster_id).is_err());
        peers.iter().filter(is_other).for_each(|peer| self.hang_up(peer));
    }

    /// What the peer at `endpoint` has said about itself; `None`: it has answered no greeting.
    #[must_use]
    pub fn identity(&self, endpoint: &Endpoint) -> Option<Identity> {
        self.0.identities.lock().get(endpoint).cloned()
    }

    fn start(&self, endpoint: &Endpoint, waiter: Waiter) {
        let mut lines = self.0.lines.lock();
        match lines.get_mut(endpoint) {
            Some(Line::Open(connection)) if !connection.is_closed() => {
                let connection = connection.clone();
                drop(lines);
                waiter.go(&connection);
            }
            Some(Line::Connecting(queue)) => queue.push(waiter),
            Some(Line::Failed(when, why)) if when.elapsed() < RETRY_AFTER => {
                let why = why.clone();
                drop(lines);
                waiter.refuse(why);
            }
            _ => {
                lines.insert(endpoint.clone(), Line::Connecting(vec![waiter]));
                drop(lines);
                self.connect_in_background(endpoint);
            }
        }
    }

    /// Calls and waits for the reply.
    ///
    /// # Errors
    /// The peer's error, or [`Code::Unavailable`], [`Code::Timeout`].
    pub fn call_wait<R: Request>(
        &self,
        endpoint: &Endpoint,
        message: &R,
        payload: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<(R::Reply, Bytes), Error> {
        wait_for::<R>(|callback| {
            self.call(endpoint, R::KIND, message.encode_to_vec().into(), payload, timeout, callback);
        })
    }

    /// Closes the connection to `endpoint`, if one is open: its calls end with [`Code::Unavailable`].
    pub fn hang_up(&self, endpoint: &Endpoint) {
        let mut lines = self.0.lines.lock();
        let open = match lines.get(endpoint) {
            Some(Line::Open(connection)) => connection.clone(),
            _ => return,
        };
        lines.remove(endpoint);
        drop(lines);
        open.close();
    }

    /// Closes all connections. Calls that wait for one end with [`Code::Unavailable`].
    pub fn close(&self) {
        // The callbacks may call again, so nothing is locked then.
        let lines: Vec<Line> = self.0.lines.lock().drain().map(|(_, line)| line).collect();
        for line in lines {
            match line {
                Line::Open(connection) => connection.close(),
                Line::Connecting(queue) => {
                    let error = Error::new(Code::Unavailable, "the connections of this process were closed");
                    let closed = Unreached { error, is_taken: false };
                    queue.into_iter().for_each(|waiter| waiter.refuse(closed.clone()));
                }
                Line::Failed(..) => {}
            }
        }
    }

    fn connect_in_background(&self, endpoint: &Endpoint) {
        let (dialer, peer) = (self.clone(), endpoint.clone());
        let spawned = std::thread::Builder::new().name("dial".into()).spawn(move || {
            let opened = dialer.open(&peer);
            dialer.connected(peer, opened);
        });
        if let Err(error) = spawned {
            let message = format!("cannot start a thread to dial {endpoint}: {error}");
            let error = Error::new(Code::Unavailable, message);
            self.connected(endpoint.clone(), Err(Unreached { error, is_taken: false }));
        }
    }

    /// Connects and greets; returns the connection and the cluster that the peer named.
    fn open(&self, endpoint: &Endpoint) -> Result<(Arc<Connection>, Vec<u8>), Unreached> {
        let unreachable = |error: std::io::Error| Unreached {
            error: Error::new(Code::Unavailable, format!("cannot reach {endpoint}: {error}")),
            is_taken: false,
        };
        let stream = Stream::connect(endpoint, self.0.timeout).map_err(unreachable)?;
        let connection = Connection::start(stream, self.0.service.clone(), self.0.pool.clone()).map_err(unreachable)?;
        let greeted = connection.call_wait(&self.0.hello, Vec::new(), self.0.timeout);
        let refused = |error| {
            connection.close();
            Unreached { error, is_taken: true }
        };
        let (reply, _) = greeted.map_err(refused)?;
        self.note(endpoint, &reply);
        connection.note_greeting();
        Ok((connection, reply.cluster_id))
    }

    /// Keeps what a peer said about itself.
    fn note(&self, endpoint: &Endpoint, reply: &HelloReply) {
        let mut identities = self.0.identities.lock();
        let known = self.0.cluster_id.get();
        let confirmed = known.filter(|known| identities.get(endpoint).is_some_and(|it| it.cluster_id == **known));
        let cluster_id = confirmed.unwrap_or(&reply.cluster_id).clone();
        let members = reply.members.iter().take(MEMBERS_MAX).filter_map(|address| address.parse().ok()).collect();
        identities.insert(endpoint.clone(), Identity { role: reply.role(), cluster_id, members });
    }

    /// Refuses a peer that named another cluster than the known one.
    fn check_cluster(&self, cluster_id: &[u8]) -> Result<(), Error> {
        match self.0.cluster_id.get() {
            Some(known) if !cluster_id.is_empty() => {
                Hello { cluster_id: known.clone(), ..self.0.hello.clone() }.check(cluster_id)
            }
            _ => Ok(()),
        }
    }

    fn connected(&self, endpoint: Endpoint, opened: Result<(Arc<Connection>, Vec<u8>), Unreached>) {
        let mut lines = self.0.lines.lock();
        if !matches!(lines.get(&endpoint), Some(Line::Connecting(_))) {
            drop(lines);
            // The dialer was closed meanwhile.
            return opened.iter().for_each(|(connection, _)| connection.close());
        }
        // With the lines locked: a cluster that is settled later closes what is open by then.
        let mut refused = None;
        let opened = opened.and_then(|(connection, cluster_id)| match self.check_cluster(&cluster_id) {
            Ok(()) => Ok(connection),
            Err(error) => {
                refused = Some(connection);
                Err(Unreached { error, is_taken: true })
            }
        });
        let line = match &opened {
            Ok(connection) => Line::Open(connection.clone()),
            Err(why) => Line::Failed(Instant::now(), why.clone()),
        };
        let before = lines.insert(endpoint, line);
        drop(lines);
        // Who hears of it may begin a call at once.
        refused.iter().for_each(|connection| connection.close());
        let Some(Line::Connecting(queue)) = before else { return };
        for waiter in queue {
            match &opened {
                Ok(connection) => waiter.go(connection),
                Err(why) => waiter.refuse(why.clone()),
            }
        }
    }
}

impl Waiter {
    /// The connection is open and greeted.
    fn go(self, connection: &Connection) {
        match self {
            Waiter::Call(call) => call.send(connection),
            Waiter::Greeting(callback) => callback(Ok(())),
        }
    }

    /// There is no connection.
    fn refuse(self, why: Unreached) {
        match self {
            Waiter::Call(call) => call.refuse(why.error),
            Waiter::Greeting(callback) => callback(Err(why)),
        }
    }
}

impl QueuedCall {
    fn send(self, connection: &Connection) {
        let callback = match self.callback {
            OnResult::Call(callback) => callback,
            OnResult::Attempt(callback) => Box::new(move |result: Result<_, Error>| {
                callback(result.map_err(|error| Failure { error, is_sent: true }))
            }),
        };
        connection.call(self.kind, &self.body, self.payload, self.timeout, callback);
    }

    fn refuse(self, error: Error) {
        match self.callback {
            OnResult::Call(callback) => callback(Err(error)),
            OnResult::Attempt(callback) => callback(Err(Failure { error, is_sent: false })),
        }
    }
}

/// The service of a client: it refuses every request.
pub struct NoService;

impl Service for NoService {
    fn request(&self, connection: &Arc<Connection>, frame: tessera_wire::Frame) {
        let error = Error::new(Code::Unsupported, "this side serves no requests");
        connection.reply(frame.header.kind, frame.header.request_id, Err(error));
    }
}
