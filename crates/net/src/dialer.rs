//! Connections to peers: opened and greeted on first use, shared, and replaced when they break.
//!
//! Every call gets exactly one result. After a failure the dialer does not try the peer again for
//! `retry_after`, so calls to a dead node fail at once.

use crate::buffer::BufferPool;
use crate::connection::{Callback, Connection, Service, wait_for};
use crate::endpoint::{Endpoint, Stream};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error, Hello, Kind, Request};

/// Options of a [`Dialer`].
#[derive(Debug, Clone)]
pub struct DialerOptions {
    /// Connections to one endpoint; calls take them in turn.
    pub connections_per_peer: usize,
    /// Longest wait for a connection and for the greeting.
    pub connect_timeout: Duration,
    /// Time after a failure before the peer is tried again.
    pub retry_after: Duration,
}

impl Default for DialerOptions {
    fn default() -> Self {
        DialerOptions {
            connections_per_peer: 1,
            connect_timeout: Duration::from_secs(2),
            retry_after: Duration::from_millis(200),
        }
    }
}

struct QueuedCall {
    kind: Kind,
    body: Bytes,
    payload: Vec<Bytes>,
    timeout: Duration,
    callback: Callback,
}

enum Line {
    Connecting(Vec<QueuedCall>),
    Open(Arc<Connection>),
    Failed(Instant, Error),
}

struct Inner {
    hello: Hello,
    service: Arc<dyn Service>,
    pool: BufferPool,
    options: DialerOptions,
    lines: Mutex<HashMap<(Endpoint, usize), Line>>,
    turn: std::sync::atomic::AtomicUsize,
}

/// Connections to any number of peers. Cloning shares them.
#[derive(Clone)]
pub struct Dialer(Arc<Inner>);

impl Dialer {
    /// A dialer that greets peers with `hello`; `service` serves their requests.
    pub fn new(hello: Hello, service: Arc<dyn Service>, pool: BufferPool, options: DialerOptions) -> Self {
        Dialer(Arc::new(Inner { hello, service, pool, options, lines: Mutex::default(), turn: Default::default() }))
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
        let turn = self.0.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let key = (endpoint.clone(), turn % self.0.options.connections_per_peer.max(1));
        let call = QueuedCall { kind, body, payload, timeout, callback };
        let mut lines = self.0.lines.lock();
        match lines.get_mut(&key) {
            Some(Line::Open(connection)) if !connection.is_closed() => {
                let connection = connection.clone();
                drop(lines);
                call.send(&connection);
            }
            Some(Line::Connecting(queue)) => queue.push(call),
            Some(Line::Failed(when, error)) if when.elapsed() < self.0.options.retry_after => {
                let error = error.clone();
                drop(lines);
                (call.callback)(Err(error));
            }
            _ => {
                lines.insert(key.clone(), Line::Connecting(vec![call]));
                drop(lines);
                self.connect_in_background(key);
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

    /// Closes all connections.
    pub fn close(&self) {
        for (_, line) in self.0.lines.lock().drain() {
            if let Line::Open(connection) = line {
                connection.close();
            }
        }
    }

    fn connect_in_background(&self, key: (Endpoint, usize)) {
        let dialer = self.clone();
        let line = key.clone();
        let spawned = std::thread::Builder::new().name("dial".into()).spawn(move || {
            let opened = dialer.open(&line.0);
            dialer.connected(&line, opened);
        });
        if let Err(error) = spawned {
            self.connected(
                &key,
                Err(Error::new(Code::Unavailable, format!("cannot start a thread to dial {}: {error}", key.0))),
            );
        }
    }

    fn open(&self, endpoint: &Endpoint) -> Result<Arc<Connection>, Error> {
        let options = &self.0.options;
        let unreachable =
            |error: std::io::Error| Error::new(Code::Unavailable, format!("cannot reach {endpoint}: {error}"));
        let stream = Stream::connect(endpoint, options.connect_timeout).map_err(unreachable)?;
        let connection = Connection::start(stream, self.0.service.clone(), self.0.pool.clone()).map_err(unreachable)?;
        let greeted = connection.call_wait(&self.0.hello, Vec::new(), options.connect_timeout);
        greeted.inspect_err(|_| connection.close())?;
        Ok(connection)
    }

    fn connected(&self, key: &(Endpoint, usize), opened: Result<Arc<Connection>, Error>) {
        let line = match &opened {
            Ok(connection) => Line::Open(connection.clone()),
            Err(error) => Line::Failed(Instant::now(), error.clone()),
        };
        let before = self.0.lines.lock().insert(key.clone(), line);
        let Some(Line::Connecting(queue)) = before else { return };
        for call in queue {
            match &opened {
                Ok(connection) => call.send(connection),
                Err(error) => (call.callback)(Err(error.clone())),
            }
        }
    }
}

impl QueuedCall {
    fn send(self, connection: &Connection) {
        connection.call(self.kind, &self.body, self.payload, self.timeout, self.callback);
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
