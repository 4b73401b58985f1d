//! A scripted manager over real sockets.
#![allow(dead_code)]

use parking_lot::{Condvar, Mutex};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tessera_disk::{Disk, RealDisk};
use tessera_net::{BufferPool, Connection, Dialer, Endpoint, Limits, Server, Service, dialer::NoService};
use tessera_node::{NodeOptions, NodeServer};
use tessera_wire::data::{PutFragments, PutItem};
use tessera_wire::frame::decode_message;
use tessera_wire::meta::*;
use tessera_wire::{
    ClassInfo, Code, DiskInfo, Error, Frame, Health, Hello, HelloReply, Kind, NodeInfo, PROTOCOL_VERSION, Role,
};

pub const CLUSTER: [u8; 16] = [7; 16];

/// What the manager knows and answers.
#[derive(Default)]
pub struct State {
    pub nodes: Vec<NodeInfo>,
    pub disks: Vec<DiskInfo>,
    pub registrations: u64,
    pub heartbeats: u64,
    /// Heartbeats are not answered.
    pub silent: bool,
    pub must_register: Option<u64>,
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    pub log_seq: u64,
    /// Tasks for a node's next heartbeat.
    pub tasks: Vec<(u64, Task)>,
    pub deletes: Vec<(u64, FragmentRef)>,
    pub results: Vec<TaskResult>,
    pub deleted: Vec<FragmentRef>,
    pub bad: Vec<FragmentRef>,
    pub reported_bad: Vec<FragmentRef>,
    pub failed_disks: Vec<u64>,
    pub inventories: Vec<Inventory>,
    pub remove: Vec<FragmentRef>,
}

pub struct Manager {
    pub state: Arc<(Mutex<State>, Condvar)>,
    pub server: Server,
    /// If it does not lead: the address that it names.
    stands_by: Arc<Mutex<Option<String>>>,
}

struct Desk(Arc<(Mutex<State>, Condvar)>, Arc<Mutex<Option<String>>>);

impl Manager {
    pub fn start() -> Manager {
        let state = State { lease_ms: 10_000, heartbeat_ms: 20, log_seq: 5, ..State::default() };
        Manager::of(Arc::new((Mutex::new(state), Condvar::new())))
    }

    /// Another manager of the same cluster.
    pub fn start_beside(&self) -> Manager {
        Manager::of(self.state.clone())
    }

    fn of(state: Arc<(Mutex<State>, Condvar)>) -> Manager {
        let stands_by = Arc::default();
        let desk = Arc::new(Desk(state.clone(), Arc::clone(&stands_by)));
        let endpoint = Endpoint::Tcp("127.0.0.1:0".into());
        let server = Server::start(&[endpoint], desk, BufferPool::new(1 << 20), Limits::default()).unwrap();
        Manager { state, server, stands_by }
    }

    /// Leaves the lead to `leader`.
    pub fn stand_by(&self, leader: &Manager) {
        *leader.stands_by.lock() = None;
        *self.stands_by.lock() = Some(leader.endpoint().to_string());
    }

    pub fn endpoint(&self) -> Endpoint {
        self.server.endpoints()[0].clone()
    }

    /// Reads or changes the state.
    pub fn with<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        body(&mut self.state.0.lock())
    }

    /// Waits for a condition; fails after a minute.
    pub fn wait(&self, what: &str, mut is_so: impl FnMut(&mut State) -> bool) {
        let mut state = self.state.0.lock();
        while !is_so(&mut state) {
            let late = self.state.1.wait_for(&mut state, Duration::from_secs(60)).timed_out();
            assert!(!late, "waited in vain for: {what}");
        }
    }
}

impl Desk {
    fn answer(&self, kind: Kind, body: &[u8]) -> Result<Vec<u8>, Error> {
        fn decode<M: Message + Default>(kind: Kind, body: &[u8]) -> M {
            decode_message(kind as u16, body).unwrap()
        }
        if let Some(leader) = self.1.lock().clone().filter(|_| kind != Kind::Hello) {
            return Err(Error { leader, ..Error::new(Code::NotLeader, "it stands by") });
        }
        let mut state = self.0.0.lock();
        let reply = match kind {
            Kind::Hello => {
                let hello: Hello = decode(kind, body);
                hello.check(&CLUSTER)?;
                HelloReply {
                    members: Vec::new(),
                    protocol_version: PROTOCOL_VERSION,
                    cluster_id: CLUSTER.to_vec(),
                    release: "test".into(),
                    role: Role::Manager as i32,
                }
                .encode_to_vec()
            }
            Kind::RegisterNode => register(&mut state, &decode(kind, body)).encode_to_vec(),
            Kind::Heartbeat => heartbeat(&mut state, decode(kind, body))?.encode_to_vec(),
            Kind::Inventory => {
                let page: Inventory = decode(kind, body);
                state.inventories.push(page);
                let remove = std::mem::take(&mut state.remove);
                InventoryReply { remove, term: 1, log_seq: state.log_seq }.encode_to_vec()
            }
            Kind::ReportBad => {
                state.reported_bad.extend(decode::<ReportBad>(kind, body).fragments);
                Vec::new()
            }
            other => return Err(Error::new(Code::Unsupported, other.name())),
        };
        self.0.1.notify_all();
        Ok(reply)
    }
}

impl Service for Desk {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        let kind = Kind::from_number(frame.header.kind).unwrap();
        if kind == Kind::Hello {
            connection.admit(Role::Node).unwrap();
        }
        let result = self.answer(kind, &frame.body);
        if matches!(&result, Err(e) if e.message == "silence") {
            return;
        }
        connection.reply(frame.header.kind, frame.header.request_id, result.map(|body| (body.into(), Vec::new())));
    }
}

fn register(state: &mut State, message: &RegisterNode) -> RegisterNodeReply {
    if message.check_only {
        return RegisterNodeReply { cluster_id: CLUSTER.to_vec(), ..RegisterNodeReply::default() };
    }
    state.registrations += 1;
    let about = message.node.clone().unwrap();
    let known = state.nodes.iter().position(|n| n.name == about.name);
    let at = known.unwrap_or(state.nodes.len());
    let node_id = at as u64 + 1;
    let incarnation = known.map_or(0, |at| state.nodes[at].incarnation) + 1;
    let node = NodeInfo { node_id, incarnation, health: Health::Up as i32, ..about };
    match known {
        Some(at) => state.nodes[at] = node,
        None => state.nodes.push(node),
    }
    let disk_ids = message.disks.iter().map(|disk| {
        let known = state.disks.iter().position(|d| d.uuid == disk.uuid);
        let at = known.unwrap_or(state.disks.len());
        let disk = DiskInfo { disk_id: at as u64 + 101, node_id, health: Health::Up as i32, ..disk.clone() };
        match known {
            Some(at) => state.disks[at] = disk,
            None => state.disks.push(disk),
        }
        at as u64 + 101
    });
    RegisterNodeReply {
        node_id,
        incarnation,
        disk_ids: disk_ids.collect(),
        heartbeat_ms: state.heartbeat_ms,
        lease_ms: state.lease_ms,
        cluster_id: CLUSTER.to_vec(),
        term: 1,
        log_seq: state.log_seq,
        receipt_key: message.receipt_key.clone(),
    }
}

fn heartbeat(state: &mut State, beat: Heartbeat) -> Result<HeartbeatReply, Error> {
    if state.silent {
        return Err(Error::new(Code::Unavailable, "silence"));
    }
    state.heartbeats += 1;
    state.results.extend(beat.results);
    state.deleted.extend(beat.deleted);
    state.bad.extend(beat.bad);
    state.failed_disks = beat.failed_disks;
    if state.must_register.take_if(|node| *node == beat.node_id).is_some() {
        return Ok(HeartbeatReply { must_register: true, term: 1, log_seq: state.log_seq, ..Default::default() });
    }
    let mine = |node: &u64| *node == beat.node_id;
    let (tasks, others) = std::mem::take(&mut state.tasks).into_iter().partition(|(node, _)| mine(node));
    state.tasks = others;
    let (deletes, others) = std::mem::take(&mut state.deletes).into_iter().partition(|(node, _)| mine(node));
    state.deletes = others;
    let unpair = |pairs: Vec<(u64, Task)>| pairs.into_iter().map(|(_, t)| t).collect();
    let unpair_refs = |pairs: Vec<(u64, FragmentRef)>| pairs.into_iter().map(|(_, t)| t).collect();
    Ok(HeartbeatReply {
        lease_ms: state.lease_ms,
        term: 1,
        log_seq: state.log_seq,
        tasks: unpair(tasks),
        deletes: unpair_refs(deletes),
        map: Some(ClusterMap {
            version: 1,
            nodes: state.nodes.clone(),
            disks: state.disks.clone(),
            ..ClusterMap::default()
        }),
        ..HeartbeatReply::default()
    })
}

/// A node on directories below `dir`.
pub fn node(manager: &Manager, name: &str, dirs: &[&std::path::Path]) -> NodeOptions {
    let disks = dirs.iter().map(|d| Arc::new(RealDisk::create(d).unwrap()) as Arc<dyn Disk>).collect();
    let mut options = NodeOptions::new(manager.endpoint(), "127.0.0.1:0", disks);
    options.name = name.into();
    options.host = name.into();
    options.segments.reserve_bytes = 0;
    options
}

pub fn started(manager: &Manager, name: &str, dirs: &[&std::path::Path]) -> NodeServer {
    let node = NodeServer::start(node(manager, name, dirs)).unwrap();
    manager.wait("a heartbeat of the node", |s| s.nodes.iter().any(|n| n.name == name) && s.heartbeats > 0);
    node
}

/// A client's connections.
pub fn client() -> Dialer {
    peer(Role::Client)
}

/// Connections of a peer that greets as `role`.
pub fn peer(role: Role) -> Dialer {
    let hello = Hello {
        protocol_version: PROTOCOL_VERSION,
        role: role as i32,
        cluster_id: CLUSTER.to_vec(),
        release: "test".into(),
        client_id: 1,
        host: String::new(),
    };
    Dialer::new(hello, Arc::new(NoService), BufferPool::new(64 << 20))
}

/// A put item of a fragment.
pub fn item(chunk: &[u8], chunk_id: u64, disk_id: u64, fragment: u32, data: &[u8]) -> PutItem {
    let tree = tessera_accel::hash::tree(chunk);
    PutItem {
        chunk_id,
        fragment,
        disk_id,
        pg_id: 1,
        epoch: 1,
        domain: 0,
        class_id: 1,
        hash: tree.root.0.to_vec().into(),
        chunk_len_bytes: chunk.len() as u64,
        len_bytes: data.len() as u32,
        crc32c: tessera_accel::checksum::crc32c(data),
        groups: tree.groups.concat().into(),
        offset: None,
        leaves: Default::default(),
    }
}

pub fn put_of(items: Vec<PutItem>) -> PutFragments {
    PutFragments { session_id: 9, items, no_sync: false, hints: vec![] }
}

pub fn ec42() -> ClassInfo {
    ClassInfo {
        class_id: 1,
        spec: "ec:4+2".into(),
        k: 4,
        m: 2,
        code: "rs".into(),
        matrix: "cauchy1".into(),
        ..ClassInfo::default()
    }
}

pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = tessera_disk::SplitMix64::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// The six fragments of a chunk.
pub fn fragments(chunk: &[u8]) -> Vec<Vec<u8>> {
    let class = tessera_stripe::Class::new(ec42()).unwrap();
    let chunk = bytes::Bytes::copy_from_slice(chunk);
    let all: Vec<u32> = (0..6).collect();
    let made = tessera_stripe::encode(&class, &chunk, &all, &BufferPool::new(0));
    made.into_iter().map(|it| it.bytes.to_vec()).collect()
}
