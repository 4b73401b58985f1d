//! What the peers of a server may take: connections by role, bytes and time before the greeting, memory.
//!
//! Nodes, managers and clients have a share each, so that none of them can keep the others out. Connections that have not
//! greeted have a share, too; one too many ends the oldest of them. A greeted connection is never ended for being idle:
//! TCP's keepalive finds peers that are gone.

use crate::connection::Connection;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tessera_wire::frame::MAX_PAYLOAD_BYTES;
use tessera_wire::{Code, Error, Role};

/// Limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections of clients; configuration key `max_client_connections`.
    pub clients: usize,
    /// Connections of nodes; configuration key `max_node_connections`.
    pub nodes: usize,
    /// Connections of managers.
    pub managers: usize,
    /// Connections that have not greeted.
    pub greeting: usize,
    /// Time to the greeting, in ms.
    pub greeting_ms: u64,
    /// A peer that took no byte of what waits for it, or sent none of a frame that it began, for this long is dropped.
    pub stall_ms: u64,
    /// Longest payload that is accepted from a client.
    pub client_payload_bytes: u32,
    /// The server reads no further request of a connection while its requests without an answer
    /// ([`crate::Service::cost_bytes`]) and its unsent answers exceed this.
    pub outstanding_bytes: usize,
    /// A connection with more unsent bytes than this is dropped. Exceeds `outstanding_bytes` by a frame at least.
    pub outbox_bytes: usize,
    /// As `outstanding_bytes`, for all connections together. Beyond it the connection that took nothing for longest is
    /// dropped.
    pub total_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            clients: 4096,
            nodes: 1024,
            managers: 64,
            greeting: 1024,
            greeting_ms: 5_000,
            stall_ms: STALL.as_millis() as u64,
            client_payload_bytes: MAX_PAYLOAD_BYTES,
            outstanding_bytes: 16 << 20,
            outbox_bytes: 128 << 20,
            total_bytes: 1 << 30,
        }
    }
}

/// Longest frame before the greeting, body and payload together.
pub(crate) const GREETING_BYTES: usize = 64 << 10;
/// [`Limits::stall_ms`] of connections that this side opened.
pub(crate) const STALL: Duration = Duration::from_secs(30);
/// A connection that took bytes within this time is not dropped in favour of others.
const SHED_AFTER: Duration = Duration::from_secs(1);
/// One connection at most is dropped in this time.
const SHED_EVERY: Duration = Duration::from_millis(50);

/// Whose share a connection counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Clients,
    Nodes,
    Managers,
}

impl Share {
    fn of(role: Role) -> Share {
        match role {
            Role::Node => Share::Nodes,
            Role::Manager => Share::Managers,
            Role::Client | Role::Unknown => Share::Clients,
        }
    }

    fn limit(self, limits: &Limits) -> usize {
        match self {
            Share::Clients => limits.clients,
            Share::Nodes => limits.nodes,
            Share::Managers => limits.managers,
        }
    }

    /// The error for one connection too many.
    fn exhausted(self, limits: &Limits) -> Error {
        let limit = self.limit(limits);
        let text = match self {
            Share::Clients => format!(
                "{limit} clients are connected, as many as it accepts; end some, or raise max_client_connections there"
            ),
            Share::Nodes => {
                format!("{limit} nodes are connected, as many as it accepts; raise max_node_connections there")
            }
            Share::Managers => format!("{limit} managers are connected, as many as it accepts"),
        };
        Error::new(Code::Unavailable, text)
    }
}

/// The connections of a server, and what they take.
pub(crate) struct Admissions {
    pub limits: Limits,
    /// Unanswered requests and unsent answers of all connections, in bytes.
    outstanding_bytes: AtomicUsize,
    table: Mutex<Table>,
    last_shed: Mutex<Instant>,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, (Arc<Connection>, Option<Share>)>,
    /// Ids of those that have not greeted. Ids grow, so the first is the oldest.
    greeting: BTreeSet<u64>,
    shares: [usize; 3],
}

impl Admissions {
    pub fn new(limits: Limits) -> Arc<Admissions> {
        let last_shed = Mutex::new(Instant::now());
        Arc::new(Admissions { limits, outstanding_bytes: AtomicUsize::new(0), table: Mutex::default(), last_shed })
    }

    /// Adds the connection that `start` returns. If too many have not greeted, ends the oldest of them.
    ///
    /// # Errors
    /// That of `start`.
    pub fn enter(&self, start: impl FnOnce() -> std::io::Result<Arc<Connection>>) -> std::io::Result<()> {
        let oldest = {
            // Locked while it starts: its thread may call `admit` and `leave` at once.
            let mut table = self.table.lock();
            let connection = start()?;
            let id = connection.id();
            let before = table.open.insert(id, (connection, None));
            assert!(before.is_none(), "two connections have one number");
            table.greeting.insert(id);
            let oldest = if table.greeting.len() > self.limits.greeting { table.greeting.pop_first() } else { None };
            oldest.and_then(|id| table.open.get(&id)).map(|(connection, _)| connection.clone())
        };
        if let Some(oldest) = oldest {
            let text = format!("{} connections have not greeted; greet sooner", self.limits.greeting);
            oldest.dismiss(&Error::new(Code::Unavailable, text));
        }
        Ok(())
    }

    /// Counts a connection that has greeted in the share of its role.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if the share is exhausted; [`Code::Invalid`] if it greeted as another role before.
    pub fn admit(&self, id: u64, role: Role) -> Result<(), Error> {
        let mut table = self.table.lock();
        let Table { open, greeting, shares } = &mut *table;
        let Some((_, share)) = open.get_mut(&id) else {
            return Err(Error::new(Code::Unavailable, "the connection has ended"));
        };
        let wanted = Share::of(role);
        match *share {
            Some(now) if now == wanted => return Ok(()),
            Some(_) => return Err(Error::new(Code::Invalid, "this connection has greeted as another role")),
            None => {}
        }
        if shares[wanted as usize] >= wanted.limit(&self.limits) {
            let error = wanted.exhausted(&self.limits);
            tracing::warn!(%error, "connection refused");
            return Err(error);
        }
        shares[wanted as usize] += 1;
        *share = Some(wanted);
        greeting.remove(&id);
        Ok(())
    }

    /// Forgets a connection that has ended.
    pub fn leave(&self, id: u64) {
        let mut table = self.table.lock();
        table.greeting.remove(&id);
        if let Some((_, Some(share))) = table.open.remove(&id) {
            assert!(table.shares[share as usize] > 0, "more connections end than were admitted");
            table.shares[share as usize] -= 1;
        }
    }

    pub fn connection(&self, id: u64) -> Option<Arc<Connection>> {
        self.table.lock().open.get(&id).map(|(connection, _)| connection.clone())
    }

    /// All connections.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.table.lock().open.values().map(|(connection, _)| connection.clone()).collect()
    }

    /// Replaces what a connection takes.
    pub fn account(&self, before_bytes: usize, now_bytes: usize) {
        match now_bytes >= before_bytes {
            true => self.outstanding_bytes.fetch_add(now_bytes - before_bytes, Ordering::Relaxed),
            false => self.outstanding_bytes.fetch_sub(before_bytes - now_bytes, Ordering::Relaxed),
        };
    }

    pub fn outstanding_bytes(&self) -> usize {
        self.outstanding_bytes.load(Ordering::Relaxed)
    }

    /// Whether all connections together take more than they may.
    pub fn is_exhausted(&self) -> bool {
        self.outstanding_bytes() > self.limits.total_bytes
    }

    /// If all connections together take more than they may, drops the one that took nothing of what waits for it for
    /// longest.
    pub fn shed(&self) {
        let now = Instant::now();
        // Every connection that is held back comes here, again and again.
        let Some(mut last) = self.last_shed.try_lock().filter(|_| self.is_exhausted()) else { return };
        if now.saturating_duration_since(*last) < SHED_EVERY {
            return;
        }
        *last = now;
        let idle = |c: Arc<Connection>| c.unsent_since().map(|since| (now.saturating_duration_since(since), c));
        let slowest = self.connections().into_iter().filter_map(idle).max_by_key(|(idle, _)| *idle);
        if let Some((idle, connection)) = slowest.filter(|(idle, _)| *idle >= SHED_AFTER) {
            tracing::warn!(
                peer = connection.peer(),
                ?idle,
                "connection dropped: it does not read, and memory is short"
            );
            connection.close();
        }
    }
}
