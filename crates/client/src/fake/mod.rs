//! A cluster in memory for the tests of this crate: a manager and nodes that answer calls, and take damage.
//!
//! It keeps the contracts that the cores rely on (op ids, epochs, dedup answers, stale acknowledgements) and is
//! otherwise as simple as possible. It is not the manager: `crates/sim` runs the real one.

mod drive;
mod manager;
mod nodes;

pub(crate) use drive::{Drive, read_all, write_all};
pub(crate) use nodes::Stored;

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tessera_stripe::{ClassLayout, describe};
use tessera_wire::meta::ClusterMap;
use tessera_wire::rpc::{Call, Peer};
use tessera_wire::{ClassInfo, DiskInfo, Error, Health, Kind, NodeInfo, PgInfo, PgMember};

/// See the module.
pub(crate) struct Fake {
    pub nodes: BTreeMap<u64, Node>,
    pub pgs: BTreeMap<u64, PgInfo>,
    pub classes: BTreeMap<u32, ClassInfo>,
    pub chunks: BTreeMap<u64, FakeChunk>,
    pub files: BTreeMap<u64, File>,
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
    pub sessions: BTreeMap<u64, Session>,
    pub ops: HashMap<u64, Result<Bytes, Error>>,
    pub reports: Vec<tessera_wire::meta::FragmentRef>,
    pub completed: Vec<tessera_wire::meta::FragmentRef>,
    pub policy: Vec<(String, String)>,
    pub next_id: u64,
    pub map_version: u64,
    /// Calls seen, by kind.
    pub calls: BTreeMap<&'static str, u64>,
    /// Number of coming answers to lose, by kind of manager call; the call still takes effect.
    pub lose_answers: HashMap<Kind, u32>,
    /// Number of extents in one answer.
    pub page: usize,
    /// Hooks that run once, before the next call of their kind.
    pub hooks: Vec<(Kind, Hook)>,
}

pub(crate) type Hook = Box<dyn FnOnce(&mut Fake) + Send>;

#[derive(Default)]
pub(crate) struct Node {
    pub info: NodeInfo,
    pub disk_id: u64,
    pub stored: BTreeMap<(u64, u32), Stored>,
    /// The node does not answer: calls fail as if the connection broke.
    pub down: bool,
    /// Every put gets this error.
    pub refuse_puts: Option<Error>,
    /// Extra time to answer, ns.
    pub delay_ns: i64,
}

pub(crate) struct FakeChunk {
    pub hash: Bytes,
    pub len_bytes: u64,
    pub class_id: u32,
    pub pg_id: u64,
    pub committed: bool,
    pub missing: BTreeSet<u32>,
}

#[derive(Default)]
pub(crate) struct File {
    pub attr: tessera_wire::Attr,
    pub versions: Vec<(tessera_wire::meta::VersionInfo, Vec<tessera_wire::Extent>)>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(Default)]
pub(crate) struct Session {
    pub parent: u64,
    pub name: Vec<u8>,
    pub ino: u64,
    pub version: u64,
    pub staged: Vec<tessera_wire::Extent>,
    pub acks: BTreeMap<u64, tessera_wire::meta::ChunkAck>,
    pub reserved_bytes: u64,
}

impl Fake {
    /// `hosts` nodes with one disk each; every node is its own host.
    pub fn new(hosts: u64) -> Self {
        let node = |node_id| Node {
            info: NodeInfo {
                node_id,
                name: format!("n{node_id}"),
                host: format!("h{node_id}"),
                health: Health::Up as i32,
                incarnation: 1,
                ..Default::default()
            },
            disk_id: node_id * 10,
            ..Default::default()
        };
        let root = tessera_wire::Attr { ino: 1, kind: tessera_wire::InodeKind::Directory as i32, ..Default::default() };
        Fake {
            nodes: (1..=hosts).map(|id| (id, node(id))).collect(),
            pgs: BTreeMap::new(),
            classes: BTreeMap::new(),
            chunks: BTreeMap::new(),
            files: [(1, File { attr: root, ..Default::default() })].into(),
            names: BTreeMap::new(),
            sessions: BTreeMap::new(),
            ops: HashMap::new(),
            reports: Vec::new(),
            completed: Vec::new(),
            policy: Vec::new(),
            next_id: 100,
            map_version: 1,
            calls: BTreeMap::new(),
            lose_answers: HashMap::new(),
            page: 1000,
            hooks: Vec::new(),
        }
    }

    /// Sets a hint for all files.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.policy.push((name.into(), value.into()));
        self
    }

    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Carries out a call: encoded reply and payload, or the error.
    pub fn call(&mut self, call: &Call) -> Result<(Bytes, Bytes), Error> {
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

    pub fn count(&self, kind: &str) -> u64 {
        self.calls.get(kind).copied().unwrap_or(0)
    }

    /// The whole map.
    pub fn map(&self) -> ClusterMap {
        let disk = |n: &Node| DiskInfo {
            disk_id: n.disk_id,
            node_id: n.info.node_id,
            health: n.info.health,
            ..Default::default()
        };
        ClusterMap {
            version: self.map_version,
            nodes: self.nodes.values().map(|n| n.info.clone()).collect(),
            disks: self.nodes.values().map(disk).collect(),
            pgs: self.pgs.values().cloned().collect(),
            classes: self.classes.values().cloned().collect(),
        }
    }

    /// The class of this spec; made at first use.
    pub fn class_of(&mut self, spec: &str) -> ClassInfo {
        if let Some(known) = self.classes.values().find(|c| c.spec == spec) {
            return known.clone();
        }
        let class_id = self.classes.len() as u32 + 1;
        let info = describe(class_id, spec.parse().unwrap());
        self.classes.insert(class_id, info.clone());
        info
    }

    /// The node of a disk.
    pub fn node_of(&mut self, disk_id: u64) -> &mut Node {
        self.nodes.values_mut().find(|n| n.disk_id == disk_id).unwrap()
    }

    /// The cluster map now says that a node is down.
    pub fn declare_down(&mut self, node_id: u64) {
        self.map_version += 1;
        let node = self.nodes.get_mut(&node_id).unwrap();
        node.down = true;
        node.info.health = Health::Down as i32;
    }

    /// Member `number` of a group is lost, and `node_id` takes its place without fragments.
    pub fn replace_member(&mut self, pg_id: u64, number: usize, node_id: u64) {
        let disk_id = self.nodes[&node_id].disk_id;
        self.map_version += 1;
        let pg = self.pgs.get_mut(&pg_id).unwrap();
        pg.epoch += 1;
        pg.members[number] = PgMember {
            disk_id: pg.members[number].disk_id,
            incoming_disk_id: disk_id,
            since_epoch: pg.epoch,
            put_to_incoming: true,
        };
    }

    /// A node outside the group.
    pub fn outsider(&self, pg_id: u64) -> u64 {
        let pg = &self.pgs[&pg_id];
        let used = |n: &&Node| pg.members.iter().any(|m| m.disk_id == n.disk_id || m.incoming_disk_id == n.disk_id);
        self.nodes.values().find(|n| !used(n) && !n.down).unwrap().info.node_id
    }

    /// Fragment `number` of a chunk on its member, to inspect or damage.
    pub fn fragment(&mut self, chunk_id: u64, number: u32) -> Option<&mut Stored> {
        let pg = self.chunks[&chunk_id].pg_id;
        let disk_id = self.pgs[&pg].members[number as usize].put_disk_id();
        self.node_of(disk_id).stored.get_mut(&(chunk_id, number))
    }

    /// Checks that every committed chunk has all its fragments on its members, with the right bytes.
    pub fn check_all_stored(&mut self) {
        let committed: Vec<u64> = self.chunks.iter().filter(|(_, c)| c.committed).map(|(id, _)| *id).collect();
        for chunk_id in committed {
            let count = self.classes[&self.chunks[&chunk_id].class_id].fragments();
            for number in 0..count {
                let at = self.fragment(chunk_id, number);
                let stored = at.unwrap_or_else(|| panic!("chunk {chunk_id} lacks fragment {number}"));
                assert_eq!(tessera_accel::checksum::crc32c(&stored.bytes), stored.crc32c);
            }
        }
    }
}
