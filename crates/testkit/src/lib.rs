//! A small cluster in one thread for tests: the real manager core on a database in memory, and nodes that keep fragments in
//! maps.
//!
//! A test talks to it as a client does ([`Cluster::call`], [`Cluster::ask`]), advances its time ([`Cluster::run`]) and does
//! damage: nodes are down, late or refuse puts, fragments rot or vanish, answers get lost. It reads the result through the
//! manager's own database ([`Cluster::chunks`], [`Cluster::check_all_stored`]). There is no socket and no clock.
//!
//! What does not live here: client cores (their tests bring them), the node's core and the network (`crates/sim` runs those).
//! Other crates use this one in their tests only; the simulator takes [`recount`] from here.

mod audit;
pub mod commands;
mod files;
mod manager;
mod nodes;
mod receipts;
mod rows;

pub use audit::{dump, recount};
pub use files::{chunk_name, fragment, registration, uuid};
pub use nodes::{Disk, Node, Stored};
pub use receipts::with_receipts;
pub use rows::Chunk;
pub use tessera_manager::config::Config;

use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use tessera_manager::core::ManagerCore;
use tessera_manager::db::Db;
use tessera_wire::log::LogEntry;
use tessera_wire::meta::{CompleteFragments, SetXattr};
use tessera_wire::rpc::{Call, Peer};
use tessera_wire::{Code, Error, Kind, Request, Role};

/// A millisecond in ns.
pub const MS: i64 = 1_000_000;
/// Capacity of each disk.
pub const CAPACITY: u64 = 1 << 40;

const CLUSTER_ID: [u8; 16] = [7; 16];

/// Runs before a call.
pub type Hook = Box<dyn FnOnce(&mut Cluster) + Send>;
/// Result of a call: encoded reply and payload, or the error.
pub type Outcome = Result<(Bytes, Bytes), Error>;

/// See the crate.
pub struct Cluster {
    /// `None` only while the manager restarts.
    core: Option<ManagerCore>,
    /// All that it committed.
    log: Vec<LogEntry>,
    config: Config,
    /// The manager's time.
    pub now_ns: i64,
    /// The nodes, in order of registration.
    pub nodes: Vec<Node>,
    /// Their disks, by id.
    pub disks: BTreeMap<u64, Disk>,
    /// Number of calls, by name of their kind.
    pub calls: BTreeMap<&'static str, u64>,
    requests: Vec<(Kind, Bytes)>,
    /// Requests of clients and nodes that reached the manager.
    offered: Vec<(Kind, Bytes)>,
    /// Number of coming answers of the manager to lose, by kind; the call still takes effect.
    pub lose_answers: HashMap<Kind, u32>,
    hooks: Vec<(Kind, Hook)>,
    /// Readable fragments of each chunk after the last step; cleared by damage.
    reachable: BTreeMap<u64, usize>,
    next_number: u64,
}

/// The configuration of a cluster unless a test brings another: short times, no periodic maintenance.
pub fn config() -> Config {
    Config {
        session_ms: 30_000,
        lease_entry_ms: 10_000,
        heartbeat_ms: 500,
        node_lease_ms: 2_000,
        down_after_ms: 2_000,
        out_after_ms: 3_000,
        inventory_every_ms: 0,
        scrub_every_ms: 0,
        task_chunks: 4,
        ..Config::default()
    }
}

impl Cluster {
    /// A cluster of `nodes` nodes with `disks` disks each, every node on its own host.
    pub fn new(nodes: usize, disks: usize) -> Cluster {
        Cluster::with_config(nodes, disks, config())
    }

    /// As [`Cluster::new`], with a configuration.
    pub fn with_config(nodes: usize, disks: usize, config: Config) -> Cluster {
        let now_ns = 1_000_000 * MS;
        // A copy of a fresh database: to create the schema takes longer than all that most tests do.
        static FRESH: OnceLock<Vec<u8>> = OnceLock::new();
        let fresh = || Db::in_memory(CLUSTER_ID).expect("a database").image().expect("an image");
        let db = Db::from_image(FRESH.get_or_init(fresh)).expect("an image");
        let core = ManagerCore::lead(db, config.clone(), now_ns, now_ns, 1).expect("a valid configuration");
        let mut cluster = Cluster {
            core: Some(core),
            log: Vec::new(),
            config,
            now_ns,
            nodes: Vec::new(),
            disks: BTreeMap::new(),
            calls: BTreeMap::new(),
            requests: Vec::new(),
            offered: Vec::new(),
            lose_answers: HashMap::new(),
            hooks: Vec::new(),
            reachable: BTreeMap::new(),
            next_number: 1,
        };
        cluster.settle();
        for _ in 0..nodes {
            cluster.join(disks);
        }
        cluster
    }

    /// With a hint for all new files ([`Cluster::set_hint`]).
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Cluster {
        self.set_hint(name, value);
        self
    }

    /// Sets a hint of the root directory, which new files inherit.
    pub fn set_hint(&mut self, name: &str, value: &str) {
        let (name, value) = (format!("user.tessera.{name}"), value.into());
        let request = SetXattr { op_id: self.op(), ino: 1, name, value, ..SetXattr::default() };
        self.ask(&request).expect("a valid hint");
    }

    /// A number for a request that the manager answers once (P8).
    pub fn op(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The node with this id.
    pub fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.iter_mut().find(|n| n.node_id == id).expect("the id of a node")
    }

    /// The node of a disk.
    pub fn node_of(&mut self, disk_id: u64) -> &mut Node {
        self.nodes.iter_mut().find(|n| n.disks.contains(&disk_id)).expect("the id of a disk")
    }

    /// Runs `hook` before the next call of this kind; of several hooks, one before each call.
    pub fn before(&mut self, kind: Kind, hook: impl FnOnce(&mut Cluster) + Send + 'static) {
        self.hooks.push((kind, Box::new(hook)));
    }

    /// Number of calls of a kind.
    pub fn count(&self, kind: &str) -> u64 {
        self.calls.get(kind).copied().unwrap_or(0)
    }

    /// All calls of a client to the manager of this kind, decoded.
    pub fn asked<R: Request + Default>(&self) -> Vec<R> {
        let of_kind = self.requests.iter().filter(|(kind, _)| *kind == R::KIND);
        of_kind.map(|(_, body)| R::decode(&body[..]).expect("decoded before")).collect()
    }

    /// Carries out a call of a client.
    pub fn call(&mut self, call: &Call) -> Outcome {
        *self.calls.entry(call.kind.name()).or_default() += 1;
        if let Some(at) = self.hooks.iter().position(|(kind, _)| *kind == call.kind) {
            let (_, hook) = self.hooks.remove(at);
            hook(self);
        }
        match &call.peer {
            Peer::Node(id) => self.node_call(*id, call),
            _ => self.manager_call(call),
        }
    }

    fn manager_call(&mut self, call: &Call) -> Outcome {
        let request = (call.kind, call.body.clone());
        if call.kind == Kind::CompleteFragments && !self.requests.contains(&request) {
            self.check_completed(&CompleteFragments::decode(&call.body[..]).expect("an encoded request"));
        }
        self.requests.push(request);
        let answer = self.request(Role::Client, call.kind, call.body.clone());
        if let (Kind::Commit, Ok(reply)) = (call.kind, &answer) {
            self.check_commit(&call.body, reply);
        }
        if let Some(left) = self.lose_answers.get_mut(&call.kind).filter(|left| **left > 0) {
            *left -= 1;
            return Err(Error::new(Code::Unavailable, "the answer was lost"));
        }
        answer.map(|body| (body, Bytes::new()))
    }
}
