//! Fills a manager's directory with the metadata of a large store, as a manager would have written it: every row comes from the
//! requests of a client that stores files. No data is stored, so the nodes that it names never answer.
//!
//! ```text
//! cargo run --release -p tessera-manager --example large_store -- DIR CHUNKS
//! ```
//!
//! `bench/size.py` starts managers on the directory. Chunks are 1 MiB, files 1 GiB, the class is `ec:4+2`. In the end it computes the
//! digests that managers compare, part by part, and says how long their read transactions are.

use bytes::Bytes;
use prost::Message;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tessera_consensus::PeerConfig;
use tessera_disk::RealDisk;
use tessera_manager::config::Config;
use tessera_manager::core::{Action, Event};
use tessera_manager::db::{Db, FILE_NAME, part, rows};
use tessera_manager::group::{DbHome, GroupAction, Manager, Setup};
use tessera_stripe::StoredFragment;
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::meta::{
    ChunkAck, ChunkName, Commit, CommitMode, MakeDir, OpenWrite, OpenWriteReply, RegisterNode, TablePosition,
};
use tessera_wire::{DiskInfo, Error, Extent, NodeInfo, Request, Role};

const CHUNK_BYTES: u64 = 1 << 20;
const CHUNKS_OF_FILE: u64 = 1024;
const FILES_OF_DIRECTORY: u64 = 1000;
const NODES: u64 = 12;
const CLIENT: u64 = 1;
/// Key of the receipts of all nodes.
const KEY: [u8; 32] = [1; 32];

/// A manager that leads a group of its own, and the disks of the placement groups that it has named.
struct Store {
    manager: Manager,
    disks: HashMap<u64, Vec<u64>>,
    next_op: u64,
    next_chunk: u64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory"));
    let chunks: u64 = args.next().map_or(30_000_000, |a| a.parse().expect("CHUNKS is a number"));
    let mut store = Store { manager: found(&dir), disks: HashMap::new(), next_op: 0, next_chunk: 0 };
    while store.manager.core().is_none() {
        store.tick();
    }
    (1..=NODES).for_each(|node| store.register(node));
    let began = Instant::now();
    let files = chunks.div_ceil(CHUNKS_OF_FILE);
    let mut parent = 1;
    for file in 0..files {
        if file % FILES_OF_DIRECTORY == 0 {
            parent = store.mkdir(&format!("run{}", file / FILES_OF_DIRECTORY));
        }
        store.put(parent, &format!("checkpoint{file}"), CHUNKS_OF_FILE.min(chunks - file * CHUNKS_OF_FILE));
        store.tick();
        if file % 256 == 255 || file + 1 == files {
            let seconds = began.elapsed().as_secs_f64();
            let done = (file + 1) as f64 / files as f64;
            eprint!("\r{} of {files} files, {:.0} s left ", file + 1, seconds / done - seconds);
        }
    }
    eprintln!();
    let meta = store.manager.core().expect("it leads").meta();
    println!("{} chunks in {} files, {:.0} s", meta.chunks, meta.files, began.elapsed().as_secs_f64());
    compute_digests(&dir);
}

/// Reads all tables as a comparison of managers does, without its pauses.
fn compute_digests(dir: &Path) {
    const PART_BYTES: u64 = 4 << 20;
    let (mut from, mut times) = (Some(TablePosition::default()), Vec::new());
    while let Some(position) = from {
        let began = Instant::now();
        let (conn, _) = Db::snapshot_of(&dir.join(FILE_NAME)).expect("a database");
        from = part(&conn, &position, PART_BYTES).expect("a database").end;
        times.push(began.elapsed().as_secs_f64());
    }
    let (sum, longest) = (times.iter().sum::<f64>(), times.iter().copied().fold(0.0, f64::max));
    println!("digests of {} parts in {sum:.1} s, the longest {:.0} ms", times.len(), longest * 1e3);
}

/// A new group in an empty directory.
fn found(dir: &Path) -> Manager {
    let lock = Db::lock(dir).expect("a directory");
    let db = Db::create_with(dir, lock.clone(), *b"a large store ..").expect("an empty directory");
    db.rely_on_log().expect("a database");
    let (host, address) = ("m1".to_string(), "127.0.0.1:1".to_string());
    let member = Member { id: 1, kind: PeerKind::Manager as i32, name: "m1".into(), host, address };
    let setup = Setup {
        home: DbHome::in_dir(dir, lock),
        disk: Arc::new(RealDisk::open(dir).expect("the directory")),
        config: Config { down_after_ms: 1 << 40, out_after_ms: 1 << 41, ..Config::default() },
        peer: PeerConfig::new(member, 1),
    };
    Manager::found(db, setup).expect("a group")
}

/// The time of day in ns.
fn now() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}

impl Store {
    fn op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op
    }

    fn ask<R: Request>(&mut self, role: Role, request: &R) -> R::Reply {
        let (connection, client_id, request_id) = (CLIENT, CLIENT, 1);
        let body: Bytes = request.encode_to_vec().into();
        self.manager.handle(now(), Event::Request { connection, role, client_id, request_id, kind: R::KIND, body });
        let mut reply = self.carry_out();
        while reply.is_none() {
            match self.manager.wants_commit() {
                true => {
                    self.manager.begin(now());
                    self.manager.complete(now());
                    reply = self.carry_out();
                }
                false => reply = self.tick(),
            }
        }
        R::Reply::decode(reply.expect("a reply").expect("the request is valid")).expect("a reply")
    }

    fn tick(&mut self) -> Option<Result<Bytes, Error>> {
        self.manager.handle(now(), Event::Tick);
        self.carry_out()
    }

    /// Carries out what the manager wants; returns a reply, if one is there.
    fn carry_out(&mut self) -> Option<Result<Bytes, Error>> {
        let mut reply = None;
        while let Some(action) = self.manager.poll() {
            match action {
                GroupAction::Core(Action::Reply { result, .. }) => reply = Some(result),
                GroupAction::Snapshot(job) => self.manager.snapshot_done(job.run()),
                _ => {}
            }
        }
        reply
    }

    fn register(&mut self, node: u64) {
        let uuid = vec![node as u8; 16];
        let disk = DiskInfo { uuid, capacity_bytes: 1 << 50, free_bytes: 1 << 50, ..DiskInfo::default() };
        let (name, host, address) = (format!("gone{node}"), format!("gone{node}"), format!("127.0.0.1:{node}"));
        let info = NodeInfo { name, host, address, ..NodeInfo::default() };
        let op_id = self.op();
        let receipt_key = KEY.to_vec();
        let request = RegisterNode { op_id, node: Some(info), disks: vec![disk], receipt_key, check_only: false };
        self.ask(Role::Node, &request);
    }

    fn mkdir(&mut self, name: &str) -> u64 {
        let request = MakeDir { op_id: self.op(), parent: 1, name: name.into(), mode: 0o755, ..MakeDir::default() };
        self.ask(Role::Client, &request).attr.expect("a directory").ino
    }

    fn put(&mut self, parent: u64, name: &str, count: u64) {
        let names: Vec<ChunkName> = (0..count).map(|_| self.draw()).collect();
        let size_bytes = count * CHUNK_BYTES;
        let open = OpenWrite {
            op_id: self.op(),
            parent,
            name: name.into(),
            size_hint_bytes: size_bytes,
            chunks: names.clone(),
            redundancy: "ec:4+2".into(),
            ..OpenWrite::default()
        };
        let opened = self.ask(Role::Client, &open);
        let acks = self.acks(&opened, &names);
        let extent = |(at, ack): (usize, &ChunkAck)| {
            Extent::of_chunk(at as u64 * CHUNK_BYTES, CHUNK_BYTES, ack.chunk_id, &names[at].hash, 0)
        };
        let commit = Commit {
            op_id: self.op(),
            session_id: opened.session_id,
            mode: CommitMode::Replace as i32,
            size_bytes,
            extents: acks.iter().enumerate().map(extent).collect(),
            acks,
            ..Commit::default()
        };
        let reply = self.ask(Role::Client, &commit);
        assert!(reply.stale.is_empty(), "all chunks are acknowledged");
    }

    /// A name like a hash of content: no two are equal.
    fn draw(&mut self) -> ChunkName {
        self.next_chunk += 1;
        let mut words = [0; 4];
        for (at, word) in words.iter_mut().enumerate() {
            let mut mixed = (self.next_chunk << 2 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^= mixed >> 32;
            *word = mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
        let hash: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        ChunkName { hash: hash.into(), len_bytes: CHUNK_BYTES, region: 0 }
    }

    /// Acknowledgements of all fragments, with the receipts that nodes would have given.
    fn acks(&mut self, opened: &OpenWriteReply, names: &[ChunkName]) -> Vec<ChunkAck> {
        let allocated = opened.allocated.as_ref().expect("an answer for each chunk");
        let class = allocated.class.clone().expect("a class");
        let mut acks = Vec::with_capacity(names.len());
        for (answer, name) in allocated.answers.iter().zip(names) {
            let members =
                || rows::members(self.manager.db().expect("its database"), answer.pg_id).expect("the schema is ours");
            let put_disks = || members().iter().map(rows::Member::put_disk).collect();
            let disks = self.disks.entry(answer.pg_id).or_insert_with(put_disks);
            let chunk = (answer.chunk_id, &name.hash[..], name.len_bytes);
            let receipt = |(fragment, disk): (u32, &u64)| {
                StoredFragment::expected(&class, chunk, fragment, (*disk, answer.epoch))
                    .expect("a fragment")
                    .receipt(&KEY)
            };
            let receipts: Vec<u64> = (0..).zip(disks.iter()).map(receipt).collect();
            let stored = (0..receipts.len() as u32).collect();
            let (chunk_id, epochs) = (answer.chunk_id, vec![answer.epoch; receipts.len()]);
            acks.push(ChunkAck { chunk_id, epochs, stored, receipts, ..ChunkAck::default() });
        }
        acks
    }
}
