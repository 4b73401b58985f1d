//! A cluster for tests: the manager's own functions on an in-memory database, and nodes that are maps of fragments.
//!
//! Writers use the real commands (OpenWrite, Commit), nodes the real messages (RegisterNode, Heartbeat, Inventory).
//! There is no core, no socket and no clock but [`Fake::now_ns`]. After every step [`Fake::check`] compares the manager's
//! rows with the fragments on the fake disks.

use crate::config::Config;
use crate::ctx::View;
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::db::rows;
use crate::internal::{Internal, NewTerm, Proposal};
use crate::log::batch::{self, QueuedCommand, Tables};
use crate::log::registry;
use crate::log::reply_cache::ReplyCache;
use crate::nodes::{plan, status};
use crate::soft::SoftState;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tessera_stripe::ClassLayout;
use tessera_wire::log::LogEntry;
use tessera_wire::meta::*;
use tessera_wire::{DiskInfo, Error, Extent, NodeInfo, PgMember, Request};

pub const MS: i64 = 1_000_000;
pub const CAPACITY: u64 = 1 << 40;
const CHUNK_BYTES: u64 = 1 << 20;

/// A disk that exists in the test.
#[derive(Debug, Default, Clone)]
pub struct FakeDisk {
    pub uuid: Vec<u8>,
    /// Fragments held: (chunk, fragment).
    pub held: BTreeSet<(u64, u32)>,
    /// Held fragments with corrupt bytes.
    pub rotten: BTreeSet<(u64, u32)>,
    /// Number of future scrubs that end before they find anything.
    pub scrubs_cut_short: u32,
    pub failed: bool,
}

/// A node that exists in the test.
#[derive(Debug, Default, Clone)]
pub struct FakeNode {
    pub name: String,
    pub node_id: u64,
    pub incarnation: u64,
    pub number: u64,
    pub alive: bool,
    pub known_map: u64,
    /// Disk ids that the manager assigned.
    pub disks: Vec<u64>,
    pub tasks: Vec<Task>,
    pub results: Vec<TaskResult>,
    pub deleted: Vec<FragmentRef>,
    pub bad: Vec<FragmentRef>,
    /// Does not work on tasks; they stay unfinished.
    pub lazy: bool,
}

/// The cluster.
pub struct Fake {
    pub db: Db,
    pub meta: Meta,
    pub caches: Caches,
    pub soft: SoftState,
    pub config: Config,
    pub answers: ReplyCache,
    pub now_ns: i64,
    pub nodes: Vec<FakeNode>,
    pub disks: BTreeMap<u64, FakeDisk>,
    pub log: Vec<LogEntry>,
    /// Readable fragments of each chunk after the last step; cleared by damage.
    reachable: BTreeMap<u64, usize>,
    next_op: u64,
}

impl Fake {
    /// Registers `nodes` nodes with `disks` disks each.
    pub fn new(nodes: usize, disks: usize) -> Fake {
        let db = Db::in_memory([7; 16]).unwrap();
        let meta = db.meta().unwrap();
        let config = Config {
            heartbeat_ms: 500,
            node_lease_ms: 2_000,
            down_after_ms: 2_000,
            out_after_ms: 3_000,
            inventory_every_ms: 0,
            scrub_every_ms: 0,
            task_chunks: 4,
            ..Config::default()
        };
        let mut fake = Fake {
            db,
            meta,
            caches: Caches::default(),
            soft: SoftState { started_ns: 1_000 * MS, replicated_seq: u64::MAX, ..SoftState::default() },
            config,
            answers: ReplyCache::default(),
            now_ns: 1_000 * MS,
            nodes: Vec::new(),
            disks: BTreeMap::new(),
            log: Vec::new(),
            reachable: BTreeMap::new(),
            next_op: 1,
        };
        for _ in 0..nodes {
            fake.join(disks);
        }
        fake
    }

    /// Adds and registers a node.
    pub fn join(&mut self, disks: usize) -> usize {
        let index = self.nodes.len();
        let node = FakeNode { name: format!("n{index}"), alive: true, ..FakeNode::default() };
        let uuids = (0..disks).map(|d| uuid(index, d)).collect::<Vec<_>>();
        self.nodes.push(node);
        self.register(index, &uuids).unwrap();
        index
    }

    /// Registers a node with disks of these uuids.
    pub fn register(&mut self, index: usize, uuids: &[Vec<u8>]) -> Result<RegisterNodeReply, Error> {
        let request = RegisterNode { op_id: self.op(), ..registration(&self.nodes[index].name, uuids) };
        let reply: RegisterNodeReply = self.command(&request)?;
        let node = &mut self.nodes[index];
        (node.node_id, node.incarnation, node.number) = (reply.node_id, reply.incarnation, 0);
        node.disks = reply.disk_ids.clone();
        node.tasks.clear();
        node.results.clear();
        for (id, uuid) in reply.disk_ids.iter().zip(uuids) {
            self.disks.entry(*id).or_default().uuid = uuid.clone();
        }
        Ok(reply)
    }

    pub fn op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op
    }

    /// Applies one request as a group commit of its own.
    pub fn command<R: Request>(&mut self, request: &R) -> Result<R::Reply, Error> {
        let body: Bytes = request.encode_to_vec().into();
        let queued = QueuedCommand::decode(R::KIND as u32, &body, 1).map_err(|f| f.into_wire())?;
        let answers = self.commit(vec![queued]);
        let reply = answers.into_iter().next().unwrap()?;
        Ok(R::Reply::decode(&reply[..]).unwrap())
    }

    /// Applies the manager's own commands.
    pub fn propose(&mut self, proposals: Vec<Proposal>) {
        if proposals.is_empty() {
            return;
        }
        let queued = |p: Proposal| QueuedCommand::decode(p.kind, &p.body, 0).unwrap_or_else(|f| panic!("{f}"));
        let queued = proposals.into_iter().map(queued).collect();
        for answer in self.commit(queued) {
            answer.expect("internal commands are never refused");
        }
    }

    fn commit(&mut self, commands: Vec<QueuedCommand>) -> Vec<Result<Bytes, Error>> {
        let mut tables = Tables {
            db: &self.db,
            meta: &mut self.meta,
            caches: &self.caches,
            soft: &self.soft,
            config: &self.config,
            answers: &self.answers,
        };
        let applied = batch::apply(&mut tables, self.now_ns, &commands).unwrap();
        self.db.commit().unwrap();
        for effect in applied.effects {
            effect.apply(&mut self.soft);
        }
        self.log.extend(applied.entry);
        applied.answers
    }

    pub fn view<T>(&mut self, f: impl FnOnce(&mut View) -> T) -> T {
        f(&mut View {
            now_ns: self.now_ns,
            db: &self.db,
            meta: &self.meta,
            caches: &self.caches,
            soft: &mut self.soft,
            config: &self.config,
        })
    }

    /// Handles a request that is not a command: commits its proposals, then answers.
    pub fn ask<R: Request>(&mut self, request: &R) -> Result<R::Reply, Error> {
        let body: Bytes = request.encode_to_vec().into();
        let proposals = self.view(|view| registry::take_in(view, R::KIND, &body)).expect("a report");
        self.propose(proposals.map_err(|f| f.into_wire())?);
        let reply = self.view(|view| registry::reply(view, R::KIND, &body)).map_err(|f| f.into_wire())?;
        Ok(R::Reply::decode(&reply[..]).unwrap())
    }

    pub fn status(&mut self) -> ClusterStatus {
        self.view(|view| status::get_status(view)).unwrap_or_else(|f| panic!("{f}"))
    }

    /// Advances time: every living node sends heartbeats and works, the manager ticks. Checks after each step.
    pub fn run(&mut self, ms: i64) {
        for _ in 0..(ms / 500).max(1) {
            self.now_ns += 500 * MS;
            let proposals = self.view(plan::on_tick);
            self.propose(proposals);
            self.check();
            for node in 0..self.nodes.len() {
                self.beat(node);
                self.check();
                self.work(node);
            }
        }
    }

    /// Runs until `done`, for at most `steps` half seconds.
    pub fn until(&mut self, steps: usize, what: &str, mut done: impl FnMut(&mut Fake) -> bool) {
        for _ in 0..steps {
            if done(self) {
                return;
            }
            self.run(500);
        }
        panic!("{what}: not after {steps} steps: {:#?}", self.status());
    }

    /// Sends one heartbeat of a node, if it lives.
    pub fn beat(&mut self, index: usize) {
        if !self.nodes[index].alive {
            return;
        }
        let reply = self.ask(&self.heartbeat(index)).unwrap();
        let node = &mut self.nodes[index];
        node.number += 1;
        node.results.clear();
        node.deleted.clear();
        node.bad.clear();
        if reply.must_register {
            let uuids: Vec<Vec<u8>> = node.disks.iter().map(|d| self.disks[d].uuid.clone()).collect();
            self.register(index, &uuids).unwrap();
            return;
        }
        if let Some(map) = &reply.map {
            node.known_map = map.version;
        }
        let known: BTreeSet<u64> = node.tasks.iter().map(|t| t.task_id).collect();
        node.tasks.extend(reply.tasks.into_iter().filter(|t| !known.contains(&t.task_id)));
        for delete in reply.deletes {
            let disk = self.disks.get_mut(&delete.disk_id).unwrap();
            disk.held.remove(&(delete.chunk_id, delete.fragment));
            self.nodes[index].deleted.push(delete);
        }
    }

    pub fn heartbeat(&self, index: usize) -> Heartbeat {
        let node = &self.nodes[index];
        Heartbeat {
            node_id: node.node_id,
            incarnation: node.incarnation,
            disks: node.disks.iter().map(|id| self.disk_info(*id)).collect(),
            results: node.results.clone(),
            deleted: node.deleted.clone(),
            bad: node.bad.clone(),
            failed_disks: node.disks.iter().copied().filter(|d| self.disks[d].failed).collect(),
            number: node.number + 1,
            running_tasks: node.tasks.iter().map(|t| t.task_id).collect(),
            scrubbed_bytes: Vec::new(),
            known_map_version: node.known_map,
            device_work: Vec::new(),
        }
    }

    fn disk_info(&self, id: u64) -> DiskInfo {
        let disk = &self.disks[&id];
        let used = disk.held.len() as u64 * CHUNK_BYTES / 4;
        DiskInfo {
            disk_id: id,
            uuid: disk.uuid.clone(),
            capacity_bytes: CAPACITY,
            free_bytes: CAPACITY - used,
            fragments: disk.held.len() as u64,
            ..DiskInfo::default()
        }
    }

    /// Lets the node do its tasks.
    fn work(&mut self, index: usize) {
        if !self.nodes[index].alive || self.nodes[index].lazy {
            return;
        }
        for task in std::mem::take(&mut self.nodes[index].tasks) {
            let mut result = TaskResult { task_id: task.task_id, finished: true, ..TaskResult::default() };
            if let Some(rebuild) = &task.rebuild {
                self.rebuild(rebuild, &mut result);
            } else if let Some(inventory) = &task.inventory {
                self.list(index, inventory.disk_id);
            } else if let Some(verify) = &task.verify {
                for f in &verify.fragments {
                    let disk = &self.disks[&f.disk_id];
                    let key = (f.chunk_id, f.fragment);
                    if disk.rotten.contains(&key) || !disk.held.contains(&key) {
                        result.failed.push(*f);
                    }
                }
            } else if let Some(scrub) = &task.scrub {
                let Some(disk) = self.disks.get_mut(&scrub.disk_id) else { continue };
                if disk.scrubs_cut_short > 0 {
                    disk.scrubs_cut_short -= 1;
                    result.reason = "the index had to be made anew".into();
                    self.nodes[index].results.push(result);
                    continue;
                }
                result.failed = disk
                    .rotten
                    .iter()
                    .map(|(chunk_id, fragment)| FragmentRef {
                        chunk_id: *chunk_id,
                        fragment: *fragment,
                        epoch: 0,
                        disk_id: scrub.disk_id,
                    })
                    .collect();
            }
            self.nodes[index].results.push(result);
        }
    }

    fn rebuild(&mut self, task: &RebuildTask, result: &mut TaskResult) {
        let (pg, class) = (task.pg.as_ref().unwrap(), task.class.as_ref().unwrap());
        for chunk in &task.chunks {
            let serves = |(i, m): (u32, &PgMember)| {
                let key = (chunk.chunk_id, i);
                [m.disk_id, m.incoming_disk_id].iter().any(|d| self.serves(*d, key)).then_some(i)
            };
            let readable = class.suffices((0..).zip(&pg.members).filter_map(serves));
            let put = FragmentRef {
                chunk_id: chunk.chunk_id,
                fragment: task.fragment,
                epoch: pg.epoch,
                disk_id: task.disk_id,
            };
            if readable {
                let disk = self.disks.get_mut(&task.disk_id).unwrap();
                disk.held.insert((chunk.chunk_id, task.fragment));
                disk.rotten.remove(&(chunk.chunk_id, task.fragment));
                result.done.push(put);
                result.bytes += class.fragment_bytes(chunk.len_bytes, task.fragment).unwrap();
            } else {
                result.failed.push(put);
            }
        }
    }

    /// Whether a disk can give a good fragment now.
    fn serves(&self, disk_id: u64, key: (u64, u32)) -> bool {
        let alive = self.nodes.iter().any(|n| n.alive && n.disks.contains(&disk_id));
        alive
            && self.disks.get(&disk_id).is_some_and(|d| !d.failed && d.held.contains(&key) && !d.rotten.contains(&key))
    }

    /// Lists a disk in pages of three.
    fn list(&mut self, index: usize, disk_id: u64) {
        let mut after: Option<FragmentRef> = None;
        loop {
            let from = after.as_ref().map(|a| (a.chunk_id, a.fragment));
            let rest: Vec<(u64, u32)> =
                self.disks[&disk_id].held.iter().copied().filter(|k| from.is_none_or(|f| *k > f)).collect();
            let held: Vec<FragmentRef> = rest.iter().take(3).map(|k| fragment(*k, disk_id)).collect();
            let last = held.len() == rest.len();
            let page = Inventory {
                node_id: self.nodes[index].node_id,
                incarnation: self.nodes[index].incarnation,
                disk_id,
                after,
                held: held.clone(),
                last,
            };
            let Ok(reply) = self.ask(&page) else { return };
            for gone in reply.remove {
                self.disks.get_mut(&disk_id).unwrap().held.remove(&(gone.chunk_id, gone.fragment));
            }
            self.check();
            if last {
                return;
            }
            after = held.last().cloned();
        }
    }

    /// Restarts the manager: a new term, without soft state.
    pub fn restart_manager(&mut self) {
        self.soft = SoftState { started_ns: self.now_ns, replicated_seq: u64::MAX, ..SoftState::default() };
        let term = self.meta.term + 1;
        self.propose(vec![NewTerm { term, restored: false }.propose()]);
        self.view(plan::after_start);
    }

    /// Stops a node.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].alive = false;
        self.nodes[index].tasks.clear();
        self.reachable.clear();
    }

    /// Starts a stopped node again, with the fragments on its disks.
    pub fn restart(&mut self, index: usize) {
        self.nodes[index].alive = true;
        let uuids: Vec<Vec<u8>> = self.nodes[index].disks.iter().map(|d| self.disks[d].uuid.clone()).collect();
        self.register(index, &uuids).unwrap();
    }

    /// Forgets which fragments were readable: the test did damage on purpose.
    pub fn damaged(&mut self) {
        self.reachable.clear();
    }

    /// Opens a writer for `name` with new chunks named by `seeds`.
    pub fn open(&mut self, name: &str, redundancy: &str, seeds: &[u64]) -> Result<OpenWriteReply, Error> {
        let request = OpenWrite {
            op_id: self.op(),
            parent: 1,
            name: name.as_bytes().to_vec(),
            chunks: seeds.iter().map(|s| chunk_name(*s)).collect(),
            redundancy: redundancy.to_string(),
            ..OpenWrite::default()
        };
        self.command(&request)
    }

    /// Puts all fragments of a chunk on the disks that take its group's puts; returns the epoch of the puts.
    pub fn put(&mut self, answer: &ChunkAnswer) -> u64 {
        let members = rows::members(self.db.conn(), answer.pg_id).unwrap();
        for m in members {
            let disk = m.put_disk();
            let alive = self.nodes.iter().any(|n| n.alive && n.disks.contains(&disk));
            if alive {
                self.disks.get_mut(&disk).unwrap().held.insert((answer.chunk_id, m.position));
            }
        }
        rows::pg_info(self.db.conn(), answer.pg_id).unwrap().unwrap().epoch
    }

    /// The commit that follows an open and its puts.
    pub fn commit_request(&mut self, opened: &OpenWriteReply, acks: Vec<ChunkAck>) -> Commit {
        let answers = &opened.allocated.as_ref().unwrap().answers;
        let extents = answers
            .iter()
            .enumerate()
            .map(|(i, a)| Extent {
                offset: i as u64 * CHUNK_BYTES,
                len_bytes: CHUNK_BYTES,
                chunk_id: a.chunk_id,
                chunk_offset: 0,
            })
            .collect::<Vec<_>>();
        Commit {
            op_id: self.op(),
            session_id: opened.session_id,
            mode: CommitMode::Replace as i32,
            size_bytes: extents.len() as u64 * CHUNK_BYTES,
            extents,
            acks,
            ..Commit::default()
        }
    }

    /// Writes a file of chunks named by `seeds`; returns the chunk ids.
    pub fn write(&mut self, name: &str, redundancy: &str, seeds: &[u64]) -> Vec<u64> {
        let opened = self.open(name, redundancy, seeds).unwrap();
        let answers = opened.allocated.clone().unwrap().answers;
        let mut acks = Vec::new();
        for answer in answers.iter().filter(|a| a.state != ChunkState::Durable as i32) {
            let epoch = self.put(answer);
            acks.push(ChunkAck { chunk_id: answer.chunk_id, epoch, missing: vec![] });
        }
        let request = self.commit_request(&opened, acks);
        let reply: CommitReply = self.command(&request).unwrap();
        assert_eq!(reply.stale, vec![], "{name}");
        self.check();
        answers.iter().map(|a| a.chunk_id).collect()
    }

    pub fn unlink(&mut self, name: &str) {
        let request = Unlink { op_id: self.op(), parent: 1, name: name.as_bytes().to_vec(), directory: false };
        self.command(&request).unwrap();
    }

    /// Members of all groups.
    fn groups(&self) -> BTreeMap<u64, Vec<rows::Member>> {
        let mut groups: BTreeMap<u64, Vec<rows::Member>> = BTreeMap::new();
        for m in rows::all_members(self.db.conn(), 0).unwrap() {
            groups.entry(m.pg_id).or_default().push(m);
        }
        groups
    }

    /// Number of fragments of a chunk that a reader finds through the map, on a disk that serves the member.
    fn fragments_within_reach(&self, chunk: u64, members: &[rows::Member]) -> usize {
        members
            .iter()
            .filter(|m| {
                let key = (chunk, m.position);
                [m.disk_id, m.incoming].iter().any(|d| *d != 0 && self.serves(*d, key))
            })
            .count()
    }

    /// Bytes of the fragments a disk holds.
    pub fn bytes_on(&self, disk: u64) -> u64 {
        let classes = crate::db::cache::all_classes(self.db.conn()).unwrap();
        let mut class = self.db.conn().prepare("SELECT class_id FROM chunks WHERE chunk_id = ?1").unwrap();
        let mut bytes = |chunk: u64, fragment: u32| {
            let class = class.query_row([chunk as i64], |r| r.get::<_, u32>(0)).ok();
            class.map_or(0, |class| classes[&class].room_bytes(CHUNK_BYTES, fragment))
        };
        self.disks[&disk].held.iter().map(|(chunk, fragment)| bytes(*chunk, *fragment)).sum()
    }

    /// All committed chunks with a reference: (chunk, group, fragments in all).
    pub fn chunks(&self) -> Vec<(u64, u64, usize)> {
        let mut query = self
            .db
            .conn()
            .prepare(
                "SELECT c.chunk_id, c.pg_id, k.k + k.m FROM chunks c JOIN classes k ON k.class_id = c.class_id
                 WHERE c.state = 2 AND c.refs > 0",
            )
            .unwrap();
        let rows = query.query_map([], |r| {
            Ok((r.get::<_, i64>(0)? as u64, r.get::<_, i64>(1)? as u64, r.get::<_, i64>(2)? as usize))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Checks that the manager never lowers redundancy (P6), that a group's disks are on distinct hosts, and that chunks
    /// with status "full" are full.
    pub fn check(&mut self) {
        let mut now = BTreeMap::new();
        let members = self.groups();
        for (chunk, pg, _) in self.chunks() {
            now.insert(chunk, self.fragments_within_reach(chunk, &members[&pg]));
        }
        for (chunk, before) in &self.reachable {
            if let Some(after) = now.get(chunk) {
                assert!(after >= before, "chunk {chunk}: {before} fragments were within reach, now {after} (P6)");
            }
        }
        self.reachable = now;
        let disks: BTreeMap<u64, String> =
            rows::disks(self.db.conn()).unwrap().into_iter().map(|d| (d.disk_id, d.host)).collect();
        let mut groups: BTreeMap<u64, Vec<(&str, u32)>> = BTreeMap::new();
        for m in members.values().flatten() {
            for disk in [m.disk_id, m.incoming].into_iter().filter(|d| *d != 0) {
                groups.entry(m.pg_id).or_default().push((disks[&disk].as_str(), m.position));
            }
        }
        for (pg, hosts) in groups {
            let distinct: BTreeSet<_> = hosts.iter().map(|h| h.0).collect();
            let same_member = hosts.len() - distinct.len();
            let positions: BTreeSet<_> = hosts.iter().map(|h| h.1).collect();
            assert!(
                same_member == 0 || distinct.len() >= positions.len(),
                "group {pg} shares a host between members: {hosts:?} (P6)"
            );
        }
    }

    /// Whether every chunk has all its fragments on its group's disks, and no backfill runs.
    pub fn is_whole(&self) -> bool {
        let groups = self.groups();
        groups.values().flatten().all(|m| m.incoming == 0)
            && self.chunks().iter().all(|(chunk, pg, n)| {
                groups[pg].iter().filter(|m| self.serves(m.disk_id, (*chunk, m.position))).count() == *n
            })
    }

    /// Checks that replaying the log on an empty database gives this database.
    pub fn check_replay(&self) {
        let db = Db::in_memory([7; 16]).unwrap();
        let mut meta = db.meta().unwrap();
        let (caches, config) = (Caches::default(), self.config.clone());
        for entry in &self.log {
            batch::replay(&db, &mut meta, &caches, &config, entry).unwrap();
        }
        let (ours, theirs) = (self.db.dump().unwrap(), db.dump().unwrap());
        for (a, b) in ours.lines().zip(theirs.lines()) {
            assert_eq!(a, b, "replaying the log gave another row");
        }
        assert_eq!(ours.len(), theirs.len());
    }
}

pub fn fragment(key: (u64, u32), disk_id: u64) -> FragmentRef {
    FragmentRef { chunk_id: key.0, fragment: key.1, epoch: 0, disk_id }
}

pub fn chunk_name(seed: u64) -> ChunkName {
    let mut hash = [0u8; 32];
    hash[..8].copy_from_slice(&seed.to_le_bytes());
    ChunkName { hash: Bytes::copy_from_slice(&hash), len_bytes: CHUNK_BYTES, region: 0 }
}

pub fn uuid(node: usize, disk: usize) -> Vec<u8> {
    let mut uuid = vec![1u8; 16];
    (uuid[0], uuid[1]) = (node as u8, disk as u8);
    uuid
}

pub fn registration(name: &str, uuids: &[Vec<u8>]) -> RegisterNode {
    RegisterNode {
        op_id: 0,
        node: Some(NodeInfo {
            name: name.to_string(),
            host: format!("host-{name}"),
            address: format!("127.0.0.1:{}", 1000 + name.len()),
            ..NodeInfo::default()
        }),
        disks: uuids
            .iter()
            .map(|u| DiskInfo {
                uuid: u.clone(),
                capacity_bytes: CAPACITY,
                free_bytes: CAPACITY,
                path: "/d".into(),
                ..DiskInfo::default()
            })
            .collect(),
    }
}
