//! [`NodeServer`]: runs the core with sockets, threads, disks and a clock.
//!
//! Each event enters the core under one lock, for a few microseconds; payloads pass as handles. Disk operations are
//! queued under the same lock, so a disk sees them in the order the core decided. All other actions run after the lock
//! is released. Start at [`NodeServer::start`], then `shared.rs`; threads are in `threads`, requests in `service`.

mod clock;
mod error;
mod join;
mod open;
mod service;
mod shared;
mod threads;
mod voter;

pub use error::StartError;

use crate::config::NodeConfig;
use crate::core::{Event, ManagerMark, NodeCore, NodeDescription, NodeMetrics};
use crate::voter::Voter;
use clock::Clock;
use crossbeam_channel::{Receiver, unbounded};
use parking_lot::{Mutex, RwLock};
use service::NodeService;
use shared::Shared;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tessera_disk::{Disk, DiskLock};
use tessera_net::dialer::NoService;
use tessera_net::{BufferPool, Dialer, Endpoint, Limits, ManagerList, Managers, Server};
use tessera_segment::{Options, SegmentStore};
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::{Error, Hello, NodeInfo, PROTOCOL_VERSION, Role};
use threads::{COMPUTE_THREADS, DiskQueue, Queue, READERS_PER_DISK};
use voter::VoterLine;

/// Bytes of idle payload buffers to keep.
const POOL_BYTES: usize = 64 << 20;

/// Options of a node.
#[derive(Clone)]
pub struct NodeOptions {
    /// Addresses of the managers.
    pub managers: ManagerList,
    /// `HOST:PORT` to listen on; port 0 chooses a free port.
    pub listen: String,
    /// Address at which other nodes and clients reach this node; `None`: the one it listens on.
    pub advertise: Option<String>,
    /// Unix socket for clients on this host.
    pub unix_socket: Option<PathBuf>,
    /// The node's name, for users.
    pub name: String,
    /// Host label: fragments of a chunk are on distinct hosts.
    pub host: String,
    /// Address of `/metrics`, reported to the manager; empty if not served.
    pub metrics_address: String,
    /// The node's disks. New ones (empty directories) join the cluster of the other disks, or the manager's.
    pub disks: Vec<Arc<dyn Disk>>,
    /// How long to wait for the manager to name its cluster. Needed only with new disks.
    pub join_timeout: Duration,
    /// Knobs of the node.
    pub config: NodeConfig,
    /// Knobs of its segment stores.
    pub segments: Options,
}

impl NodeOptions {
    /// Default options for a node of these managers with these disks.
    pub fn new(managers: impl Into<ManagerList>, listen: &str, disks: Vec<Arc<dyn Disk>>) -> Self {
        NodeOptions {
            managers: managers.into(),
            listen: listen.to_string(),
            advertise: None,
            unix_socket: None,
            name: "node".into(),
            host: "localhost".into(),
            metrics_address: String::new(),
            disks,
            join_timeout: Duration::from_secs(60),
            config: NodeConfig::default(),
            segments: Options::default(),
        }
    }
}

/// A running node. Dropping it stops the node.
pub struct NodeServer {
    shared: Arc<Shared>,
    server: Server,
    threads: Vec<JoinHandle<()>>,
    locks: Vec<DiskLock>,
    fatal: Receiver<Error>,
}

impl NodeServer {
    /// Opens the disks, starts listening, and registers with the manager in the background. Returns once requests are
    /// served.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start(options: NodeOptions) -> Result<NodeServer, StartError> {
        let clock = Clock::new();
        let locked = open::lock_all(options.disks.clone())?;
        let of_disks = open::cluster_of(&locked)?;
        let cluster_id = of_disks.map_or_else(|| join::ask_cluster(&options), Ok)?;
        let pool = BufferPool::new(POOL_BYTES);
        let service = Arc::new(NodeService::default());
        let mut listen = vec![Endpoint::Tcp(options.listen.clone())];
        listen.extend(options.unix_socket.clone().map(Endpoint::Unix));
        let limits = Limits {
            clients: options.config.max_client_connections,
            nodes: options.config.max_node_connections,
            ..Limits::default()
        };
        let server = Server::start(&listen, service.clone(), pool.clone(), limits)?;
        let address = public_address(&options, &server)?;
        if of_disks.is_none() {
            join::ask_admission(&options, cluster_id, &address, &locked)?;
        }
        let first = locked[0].disk.clone();
        let disks = open::open_all(locked, cluster_id, clock.now_ms(), &options.segments)?;
        let voter = open_voter(first, cluster_id, &address, &options)?;
        let mark = ManagerMark { term: voter.term_min(), log_seq: 0 };
        let me = NodeDescription { mark, ..describe(&options, cluster_id, &address) };
        let hello = hello(cluster_id, &options.host);
        let dialer = Dialer::new(hello, Arc::new(NoService), pool.clone());
        let managers = Managers::new(dialer.clone(), options.managers.clone());
        let (voter, voter_thread) = VoterLine::start(voter, disks[0].store.clone(), dialer.clone())
            .map_err(|source| StartError::Thread { source })?;
        let (sender, fatal) = unbounded();
        let stores = disks.iter().map(|d| d.store.clone()).collect();
        let queues = disks.iter().map(|_| DiskQueue::new()).collect();
        let (about, locks) = disks.into_iter().map(|d| (d.about, d.lock)).unzip();
        let shared = Arc::new(Shared {
            cluster_id,
            clock,
            core: Mutex::new(NodeCore::new(options.config.clone(), me, about)),
            options,
            queues,
            stores,
            disk_ids: RwLock::default(),
            voter,
            requests: Mutex::default(),
            next_request: AtomicU64::new(1),
            computing: Queue::new(),
            dialer,
            managers,
            machine: tessera_net::machine(),
            deadline_ns: AtomicI64::new(i64::MIN),
            asleep_until_ns: AtomicI64::new(i64::MIN),
            timer: OnceLock::new(),
            stopping: AtomicBool::new(false),
            fatal: sender,
            traffic: Mutex::default(),
        });
        let mut node = NodeServer { shared, server, threads: vec![voter_thread], locks, fatal };
        service.open(node.shared.clone());
        let started = threads::start(&node.shared, &pool, &mut node.threads);
        started.map_err(|source| StartError::Thread { source })?;
        node.shared.drive([Event::Tick]);
        Ok(node)
    }

    /// The addresses it listens on, with the actual ports.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.server.endpoints()
    }

    /// Receives the error if the node cannot continue in this cluster. The node still serves reads then; stop it.
    pub fn fatal(&self) -> &Receiver<Error> {
        &self.fatal
    }

    /// The stores, in the order of the disks, for tools and tests.
    pub fn stores(&self) -> &[Arc<SegmentStore>] {
        &self.shared.stores
    }

    /// The node's metrics.
    pub fn metrics(&self) -> NodeMetrics {
        self.shared.metrics()
    }

    /// Stops listening, lets the disks finish their queues, syncs and closes them. Acknowledges nothing that is not
    /// durable; the connections of waiting clients close.
    pub fn stop(&mut self) {
        if !self.shared.begin_stop() {
            return;
        }
        self.server.stop();
        self.shared.managers.close();
        self.shared.dialer.close();
        self.shared.voter.stop();
        for disk in &self.shared.queues {
            disk.writes.stop(1);
            disk.reads.stop(READERS_PER_DISK);
        }
        self.shared.computing.stop(COMPUTE_THREADS);
        self.shared.wake_timer();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.requests.lock().clear();
        self.locks.clear();
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open_voter(
    disk: Arc<dyn Disk>,
    cluster_id: [u8; 16],
    address: &str,
    options: &NodeOptions,
) -> Result<Voter, StartError> {
    let (host, name, address) = (options.host.clone(), options.name.clone(), address.to_string());
    let member = Member { id: 0, kind: PeerKind::Voter as i32, host, address, name };
    let seeds = options.managers.endpoints().iter().map(Endpoint::to_string).collect();
    let path = disk.describe();
    Voter::open(disk, cluster_id, member, seeds, rand::random())
        .map_err(|source| StartError::Voter { disk: path, source })
}

/// What a node says about itself.
fn node_info(options: &NodeOptions, address: &str) -> NodeInfo {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
    NodeInfo {
        name: options.name.clone(),
        host: options.host.clone(),
        address: address.to_string(),
        unix_socket: options.unix_socket.as_ref().map_or(String::new(), absolute),
        metrics_address: options.metrics_address.clone(),
        machine: tessera_net::machine(),
        ..NodeInfo::default()
    }
}

fn describe(options: &NodeOptions, cluster_id: [u8; 16], address: &str) -> NodeDescription {
    NodeDescription {
        cluster_id: cluster_id.to_vec(),
        info: node_info(options, address),
        device: tessera_accel::device().name().to_string(),
        seed: rand::random(),
        receipt_key: rand::random(),
        mark: ManagerMark::default(),
    }
}

fn hello(cluster_id: [u8; 16], host: &str) -> Hello {
    let known = cluster_id != [0; 16];
    Hello {
        protocol_version: PROTOCOL_VERSION,
        role: Role::Node as i32,
        cluster_id: if known { cluster_id.to_vec() } else { Vec::new() },
        release: env!("CARGO_PKG_VERSION").into(),
        client_id: 0,
        host: host.to_string(),
    }
}

/// The address that the node announces.
fn public_address(options: &NodeOptions, server: &Server) -> Result<String, StartError> {
    let bound = server.endpoints().iter().find_map(|e| match e {
        Endpoint::Tcp(address) => Some(address.clone()),
        Endpoint::Unix(_) | Endpoint::Near { .. } => None,
    });
    let listen = bound.unwrap_or_else(|| options.listen.clone());
    match &options.advertise {
        Some(address) => Ok(address.clone()),
        None if listen.parse::<std::net::SocketAddr>().is_ok_and(|a| a.ip().is_unspecified()) => {
            Err(StartError::Advertise { listen })
        }
        None => Ok(listen),
    }
}
