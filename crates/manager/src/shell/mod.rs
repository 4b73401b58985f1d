//! The manager on the network: one thread owns it, connection threads bring requests, a few threads send.
//!
//! The manager's thread never touches a socket and runs no long read. It takes all waiting events, begins a group commit, hands the entry to the senders,
//! and syncs its own log while the entry travels. The binary handles SIGTERM: it calls [`ManagerServer::stop`], which hands leadership
//! to another manager if there is one.

mod new_paths;
mod reading;
mod restore;
mod room;
mod run;
mod service;
mod start;
#[cfg(test)]
mod tests;

pub use restore::{PlannedRestore, RestoreOptions, survey};
pub use start::{ServeError, ServeOptions};

use crate::core::Event;
#[cfg(test)]
use crate::db::readers::DbReaders;
use crate::group::{DigestDone, GroupError, SnapshotDone};
use crate::inbox::Inbox;
use crate::metrics::Metrics;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tessera_net::{Connection, Dialer, End, Endpoint, Server};
use tessera_wire::{Code, Error, Kind, Role};

/// Release named in greetings.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

enum In {
    Event(Event),
    /// A connection is gone. It takes its turn behind the requests that came on it.
    Closed {
        connection: u64,
        end: End,
        /// The client that greeted on it; 0: the peer was no client.
        client_id: u64,
    },
    /// A request of another peer of the group.
    Peer {
        connection: u64,
        request_id: u64,
        kind: Kind,
        body: Bytes,
        payload: Bytes,
    },
    Snapshot(Result<SnapshotDone, GroupError>),
    Digest(DigestDone),
    Stop,
    #[cfg(test)]
    Run(Box<dyn FnOnce() + Send>),
}

/// Work for a sender: it writes to a socket or dials.
type Job = Box<dyn FnOnce(&Arc<Shared>, &Dialer) + Send>;

/// State that connection threads and senders share.
struct Shared {
    /// Set once the directory is open.
    cluster_id: OnceLock<[u8; 16]>,
    inbox: Arc<Inbox<In>>,
    /// Addresses of the members of the group.
    members: Mutex<Vec<String>>,
    greeted: Arc<GreetedConnections>,
}

/// Connections that have greeted, with their role.
type GreetedConnections = Mutex<HashMap<u64, Greeted>>;

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
    #[cfg(test)]
    readers: DbReaders,
}

impl ManagerServer {
    /// Opens the connections of long reads.
    #[cfg(test)]
    pub(crate) fn readers(&self) -> &DbReaders {
        &self.readers
    }

    /// The addresses it listens on, with the ports chosen.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.server.as_ref().map_or(&[], Server::endpoints)
    }

    /// Cluster id.
    pub fn cluster_id(&self) -> [u8; 16] {
        self.shared.cluster_id.get().copied().unwrap_or_default()
    }

    /// Metrics, at most one tick old.
    pub fn metrics(&self) -> Metrics {
        self.metrics.lock().clone()
    }

    /// Whether the manager has stopped by itself (its database or its log failed); then call [`ManagerServer::stop`].
    pub fn is_finished(&self) -> bool {
        self.core.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops after the group commit under way. Returns the reason if the manager had stopped by itself.
    pub fn stop(mut self) -> Option<Error> {
        self.end()
    }

    fn end(&mut self) -> Option<Error> {
        self.shared.inbox.push(None, In::Stop);
        let panicked = || Some(Error::new(Code::Internal, "the manager's thread panicked; its log says where"));
        let why = self.core.take().and_then(|core| core.join().unwrap_or_else(|_| panicked()));
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

fn spawn<T: Send + 'static>(name: String, run: impl FnOnce() -> T + Send + 'static) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name).spawn(run)
}
