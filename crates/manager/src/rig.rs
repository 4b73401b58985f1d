//! A core on an in-memory database for tests: it takes requests, commits batches and returns answers. Registered nodes
//! hold no fragments and serve only as placement targets.

use crate::config::Config;
use crate::core::reading::KnownCounts;
use crate::core::{Action, Event, ManagerCore};
use crate::db::Db;
use crate::error::Failure;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use tessera_wire::log::LogEntry;
use tessera_wire::meta::*;
use tessera_wire::rpc::{self, Call};
use tessera_wire::{DiskInfo, Error, Extent, Kind, NodeInfo, Request, Role};

pub const MS: i64 = 1_000_000;
/// A client.
pub const ALICE: u64 = 0xa11ce;
/// Another client.
pub const BOB: u64 = 0xb0b;

pub struct Rig {
    pub core: ManagerCore,
    pub now_ns: i64,
    pub calls: VecDeque<Call>,
    pub replies: BTreeMap<u64, Result<Bytes, Error>>,
    /// All that was committed.
    pub log: Vec<LogEntry>,
    next: u64,
}

/// How long leases last in these tests, in ms.
pub const LEASE_MS: u64 = 2_000;

pub fn config() -> Config {
    Config { down_after_ms: 1 << 40, out_after_ms: 1 << 41, lease_entry_ms: LEASE_MS, ..Default::default() }
}

/// A core in the term after the last one of the database, and the entry that begins the term.
pub fn start(db: Db, config: Config, now_ns: i64) -> Result<(ManagerCore, LogEntry), Failure> {
    let term = db.meta()?.term + 1;
    let mut core = ManagerCore::lead(db, config, now_ns, now_ns, term)?;
    let entry = core.commit_batch(now_ns);
    match (core.stopped().cloned(), entry) {
        (None, Some(entry)) => Ok((core, LogEntry::decode(entry).unwrap())),
        (why, _) => Err(Failure::Refused(why.unwrap_or_default())),
    }
}

impl Rig {
    /// A core with `nodes` nodes of one disk each, on distinct hosts.
    pub fn new(nodes: u64) -> Rig {
        Rig::with(Db::in_memory([7; 16]).unwrap(), config(), nodes)
    }

    pub fn with(db: Db, config: Config, nodes: u64) -> Rig {
        let now_ns = 1_000_000 * MS;
        let (core, entry) = start(db, config, now_ns).unwrap();
        let mut rig = Rig { core, now_ns, calls: VecDeque::new(), replies: BTreeMap::new(), log: vec![entry], next: 1 };
        for node in 1..=nodes {
            rig.register(node);
        }
        rig
    }

    pub fn register(&mut self, node: u64) {
        self.register_disk_of(node, 1 << 50);
    }

    /// Registers a node whose disk has `bytes` bytes, all free.
    pub fn register_disk_of(&mut self, node: u64, bytes: u64) {
        let op_id = self.op();
        let disk = DiskInfo {
            uuid: vec![node as u8; 16],
            capacity_bytes: bytes,
            free_bytes: bytes,
            path: format!("disk{node}"),
            ..Default::default()
        };
        let info = NodeInfo {
            name: format!("n{node}"),
            host: format!("h{node}"),
            address: format!("127.0.0.1:{node}"),
            ..Default::default()
        };
        self.ask_as(
            Role::Node,
            0,
            &RegisterNode {
                op_id,
                node: Some(info),
                disks: vec![disk],
                receipt_key: vec![node as u8; 32],
                check_only: false,
            },
        )
        .unwrap();
    }

    pub fn op(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn send<R: Request>(&mut self, role: Role, client_id: u64, request: &R) -> u64 {
        self.send_raw(role, client_id, R::KIND, request.encode_to_vec().into())
    }

    pub fn send_raw(&mut self, role: Role, client_id: u64, kind: Kind, body: Bytes) -> u64 {
        let request_id = self.op();
        let body = match kind {
            Kind::Commit => tessera_testkit::with_receipts(self.core.db().conn(), &body).unwrap().into(),
            _ => body,
        };
        let event = Event::Request { connection: client_id, role, client_id, request_id, kind, body };
        self.core.handle(self.now_ns, event);
        request_id
    }

    pub fn settle(&mut self) {
        while self.core.wants_commit() && self.core.stopped().is_none() {
            let entry = self.core.commit_batch(self.now_ns);
            self.log.extend(entry.map(|entry| LogEntry::decode(entry).unwrap()));
        }
        self.drain();
    }

    pub fn drain(&mut self) {
        while let Some(action) = self.core.poll() {
            match action {
                Action::Reply { request_id, result, .. } => _ = self.replies.insert(request_id, result),
                Action::Call(call) => self.calls.push_back(call),
                Action::Read(job) => {
                    let done = job.run(self.core.db(), self.core.config(), &mut KnownCounts::default());
                    self.core.handle(self.now_ns, Event::Read(done));
                }
            }
        }
    }

    pub fn answer(&mut self, token: u64, result: Result<Bytes, Error>) {
        let result = result.map(|body| (body, Bytes::new()));
        self.core.handle(self.now_ns, Event::Answer(rpc::Answer { token, result }));
        self.drain();
    }

    pub fn ask_as<R: Request>(&mut self, role: Role, client_id: u64, request: &R) -> Result<R::Reply, Error> {
        let id = self.send(role, client_id, request);
        self.settle();
        let reply = self.replies.remove(&id).expect("every request is answered");
        reply.map(|body| R::Reply::decode(body).unwrap())
    }

    pub fn ask<R: Request>(&mut self, request: &R) -> Result<R::Reply, Error> {
        self.ask_as(Role::Client, ALICE, request)
    }

    /// Time passes, in steps that the cluster clock counts in full.
    pub fn tick(&mut self, ms: i64) {
        let mut left_ms = ms;
        loop {
            let step_ms = left_ms.min(10_000);
            left_ms -= step_ms;
            self.now_ns += step_ms * MS;
            self.core.handle(self.now_ns, Event::Tick);
            self.settle();
            if left_ms <= 0 {
                return;
            }
        }
    }

    /// Stops the core and starts another on the same database.
    pub fn restart(self) -> Rig {
        self.restart_with(config())
    }

    pub fn restart_with(self, config: Config) -> Rig {
        let Rig { core, now_ns, next, mut log, .. } = self;
        let (core, entry) = start(core.into_db(), config, now_ns).unwrap();
        log.push(entry);
        Rig { core, now_ns, calls: VecDeque::new(), replies: BTreeMap::new(), log, next }
    }

    pub fn dump(&self, without: &[&str]) -> String {
        let dump = tessera_testkit::dump(self.core.db().conn()).unwrap();
        let keep = |line: &&str| !without.contains(&line.split(' ').next().unwrap_or(""));
        dump.lines().filter(keep).map(|line| format!("{line}\n")).collect()
    }

    pub fn mkdir(&mut self, parent: u64, name: &str) -> u64 {
        let op_id = self.op();
        let request = MakeDir { op_id, parent, name: name.into(), mode: 0o755, ..Default::default() };
        self.ask(&request).unwrap().attr.unwrap().ino
    }

    pub fn open_write(&mut self, parent: u64, name: &str, hints: &[(&str, &str)]) -> Result<OpenWriteReply, Error> {
        let op_id = self.op();
        let hints =
            hints.iter().map(|(n, v)| tessera_wire::Hint { name: n.to_string(), value: v.to_string() }).collect();
        self.ask(&OpenWrite { op_id, parent, name: name.into(), hints, ..Default::default() })
    }

    pub fn allocate(&mut self, session_id: u64, chunks: &[ChunkName]) -> Result<AllocateChunksReply, Error> {
        let op_id = self.op();
        let request = AllocateChunks {
            op_id,
            session_id,
            redundancy: "ec:2+1".into(),
            chunks: chunks.to_vec(),
            ..Default::default()
        };
        self.ask(&request)
    }

    /// Stores a file and commits it. Each byte of `content` stands for a 100-byte chunk.
    pub fn put(&mut self, parent: u64, name: &str, content: &[u8]) -> Result<CommitReply, Error> {
        let session = self.open_write(parent, name, &[])?.session_id;
        let request = self.replacing(session, content)?;
        self.ask(&request)
    }

    pub fn replacing(&mut self, session_id: u64, content: &[u8]) -> Result<Commit, Error> {
        let names: Vec<ChunkName> = content.iter().map(|&c| chunk(c)).collect();
        let answers = self.allocate(session_id, &names)?.answers;
        let extents: Vec<Extent> = (0u64..)
            .zip(answers.iter().zip(content))
            .map(|(i, (answer, &c))| Extent::of_chunk(i * 100, 100, answer.chunk_id, &chunk(c).hash, 0))
            .collect();
        Ok(Commit {
            op_id: self.op(),
            session_id,
            mode: CommitMode::Replace as i32,
            size_bytes: extents.len() as u64 * 100,
            extents,
            acks: acks(&answers),
            ..Default::default()
        })
    }

    /// The receipts that nodes would give for all fragments of a chunk.
    pub fn receipts(&self, ack: &ChunkAck) -> Vec<u64> {
        let ack = ChunkAck { chunk_id: ack.chunk_id, epochs: ack.epochs.clone(), ..Default::default() };
        let commit = Commit { acks: vec![ack], ..Default::default() }.encode_to_vec();
        let given = tessera_testkit::with_receipts(self.core.db().conn(), &commit).unwrap();
        Commit::decode(&given[..]).unwrap().acks.remove(0).receipts
    }

    pub fn read(&mut self, parent: u64, name: &str) -> Result<OpenReadReply, Error> {
        self.ask(&OpenRead { parent, name: name.into(), len_bytes: u64::MAX, ..Default::default() })
    }

    pub fn audit(&self) {
        assert_eq!(tessera_testkit::recount(self.core.db().conn()).unwrap(), Vec::<String>::new());
    }
}

/// A chunk of 100 bytes named after one byte.
pub fn chunk(c: u8) -> ChunkName {
    ChunkName { hash: Bytes::from(vec![c; 32]), len_bytes: 100, region: 0 }
}

/// Acknowledgements of all requested chunks of three fragments, each chunk once.
pub fn acks(answers: &[ChunkAnswer]) -> Vec<ChunkAck> {
    let mut acks: BTreeMap<u64, ChunkAck> = BTreeMap::new();
    for answer in answers.iter().filter(|a| a.state != ChunkState::Durable as i32) {
        acks.insert(
            answer.chunk_id,
            ChunkAck { chunk_id: answer.chunk_id, epochs: vec![answer.epoch; 3], ..ChunkAck::default() },
        );
    }
    acks.into_values().collect()
}
