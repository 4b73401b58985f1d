//! The manager's side: requests, time, heartbeats, restarts.

use crate::nodes::{Node, Stored};
use crate::{CAPACITY, Cluster, MS, registration, uuid, with_receipts};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tessera_manager::config::Config;
use tessera_manager::core::reading::KnownCounts;
use tessera_manager::core::{Action, Event, ManagerCore};
use tessera_manager::db::Db;
use tessera_manager::db::meta::Meta;
use tessera_wire::log::LogEntry;
use tessera_wire::meta::{ClusterStatus, FragmentRef, GetStatus, Heartbeat, RegisterNode, RegisterNodeReply};
use tessera_wire::rpc::{Answer, Peer};
use tessera_wire::{Ack, DiskInfo, Error, Health, Kind, Request, Role};

/// The client, and its connection.
const CLIENT: u64 = 0xa11ce;

impl Cluster {
    fn core(&mut self) -> &mut ManagerCore {
        self.core.as_mut().expect("the manager runs")
    }

    /// The manager's database.
    pub fn db(&self) -> &Db {
        self.core.as_ref().expect("the manager runs").db()
    }

    /// The manager's counters.
    pub fn meta(&self) -> &Meta {
        self.core.as_ref().expect("the manager runs").meta()
    }

    /// The manager's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sends a request to the manager, from a client or a node as its kind asks. The acknowledgements of a commit get the
    /// receipts that they lack.
    ///
    /// # Errors
    /// The manager's refusal.
    pub fn ask<R: Request>(&mut self, request: &R) -> Result<R::Reply, Error> {
        let of_nodes = matches!(R::KIND, Kind::RegisterNode | Kind::Heartbeat | Kind::Inventory);
        let role = if of_nodes { Role::Node } else { Role::Client };
        let body = match R::KIND {
            Kind::Commit => with_receipts(self.db().conn(), &request.encode_to_vec()).expect("the database"),
            _ => request.encode_to_vec(),
        };
        let body = self.request(role, R::KIND, body.into())?;
        Ok(R::Reply::decode(body).expect("an encoded reply"))
    }

    pub(crate) fn request(&mut self, role: Role, kind: Kind, body: Bytes) -> Result<Bytes, Error> {
        self.offer(role, kind, body).expect("every request is answered")
    }

    /// Sends an encoded request, valid or not. `None`: the answer waits, for a lock.
    pub fn offer(&mut self, role: Role, kind: Kind, body: Bytes) -> Option<Result<Bytes, Error>> {
        let (now_ns, request_id) = (self.now_ns, self.op());
        self.offered.push((kind, body.clone()));
        let event = Event::Request { connection: CLIENT, role, client_id: CLIENT, request_id, kind, body };
        self.core().handle(now_ns, event);
        self.settle().remove(&request_id)
    }

    /// All requests to the manager since the last call of this function, encoded.
    pub fn take_offered(&mut self) -> Vec<(Kind, Bytes)> {
        std::mem::take(&mut self.offered)
    }

    /// Commits what waits; returns the answers.
    pub(crate) fn settle(&mut self) -> BTreeMap<u64, Result<Bytes, Error>> {
        let now_ns = self.now_ns;
        let core = self.core.as_mut().expect("the manager runs");
        let mut answers = BTreeMap::new();
        loop {
            while let Some(action) = core.poll() {
                match action {
                    Action::Reply { request_id, result, .. } => _ = answers.insert(request_id, result),
                    Action::Read(job) => {
                        let done = job.run(core.db(), core.config(), &mut KnownCounts::default());
                        core.handle(now_ns, Event::Read(done));
                    }
                    Action::Call(call) => {
                        assert!(matches!(call.peer, Peer::Connection(_)), "only leases are recalled: {call:?}");
                        let result = Ok((Ack {}.encode_to_vec().into(), Bytes::new()));
                        core.handle(now_ns, Event::Answer(Answer { token: call.token, result }));
                    }
                }
            }
            if !core.wants_commit() {
                return answers;
            }
            let entry = core.commit_batch(now_ns);
            self.log.extend(entry.map(|entry| LogEntry::decode(entry).expect("an encoded entry")));
        }
    }

    /// The manager's status.
    pub fn status(&mut self) -> ClusterStatus {
        self.ask(&GetStatus {}).expect("the status")
    }

    /// Lets the manager notice the time.
    pub fn tick(&mut self) {
        let now_ns = self.now_ns;
        self.core().handle(now_ns, Event::Tick);
        self.settle();
    }

    /// Advances time by half seconds: the manager ticks, every node that is up sends heartbeats and works. Checks after each
    /// step ([`Cluster::check`]).
    pub fn run(&mut self, ms: i64) {
        for _ in 0..(ms / 500).max(1) {
            self.now_ns += 500 * MS;
            self.tick();
            self.check();
            for node in 0..self.nodes.len() {
                self.beat(node);
                self.check();
                self.work(node);
            }
        }
    }

    /// Runs until `done`, for at most `steps` half seconds.
    pub fn until(&mut self, steps: usize, what: &str, mut done: impl FnMut(&mut Cluster) -> bool) {
        for _ in 0..steps {
            if done(self) {
                return;
            }
            self.run(500);
        }
        panic!("{what}: not after {steps} steps: {:#?}", self.status());
    }

    /// Restarts the manager with a configuration: a new term, without soft state.
    pub fn restart_manager(&mut self, config: Config) {
        let db = self.core.take().expect("the manager runs").into_db();
        self.config = config.clone();
        let term = db.meta().expect("the schema is ours").term + 1;
        let core = ManagerCore::lead(db, config, self.now_ns, self.now_ns, term).expect("a valid configuration");
        self.core = Some(core);
        self.settle();
    }

    /// Adds and registers a node; returns its index.
    pub fn join(&mut self, disks: usize) -> usize {
        let index = self.nodes.len();
        self.nodes.push(Node { name: format!("n{index}"), ..Node::default() });
        let uuids = (0..disks).map(|d| uuid(index, d)).collect::<Vec<_>>();
        self.register(index, &uuids).expect("a new node");
        index
    }

    /// Registers a node with disks of these uuids.
    ///
    /// # Errors
    /// The manager's refusal.
    pub fn register(&mut self, index: usize, uuids: &[Vec<u8>]) -> Result<RegisterNodeReply, Error> {
        let request = RegisterNode { op_id: self.op(), ..registration(&self.nodes[index].name, uuids) };
        let reply = self.ask(&request)?;
        let node = &mut self.nodes[index];
        (node.node_id, node.incarnation, node.number) = (reply.node_id, reply.incarnation, 0);
        node.disks.clone_from(&reply.disk_ids);
        node.tasks.clear();
        node.results.clear();
        for (id, uuid) in reply.disk_ids.iter().zip(uuids) {
            self.disks.entry(*id).or_default().uuid.clone_from(uuid);
        }
        Ok(reply)
    }

    fn uuids(&self, index: usize) -> Vec<Vec<u8>> {
        self.nodes[index].disks.iter().map(|d| self.disks[d].uuid.clone()).collect()
    }

    /// Stops a node.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].down = true;
        self.nodes[index].tasks.clear();
        self.damaged();
    }

    /// Starts a stopped node again, with the fragments on its disks.
    pub fn restart(&mut self, index: usize) {
        self.nodes[index].down = false;
        self.register(index, &self.uuids(index)).expect("a known node");
    }

    /// Stops a node and waits until the manager knows.
    pub fn declare_down(&mut self, node_id: u64) {
        let index = self.nodes.iter().position(|n| n.node_id == node_id).expect("the id of a node");
        self.kill(index);
        self.until(10, "down", |c| c.status().nodes[index].health() == Health::Down);
    }

    /// A disk fails, and the manager gives its place in every group to another disk, which lacks all fragments.
    pub fn fail_disk(&mut self, disk_id: u64) {
        let index = self.nodes.iter().position(|n| n.disks.contains(&disk_id)).expect("the id of a disk");
        self.disks.get_mut(&disk_id).expect("the id of a disk").failed = true;
        self.damaged();
        self.beat(index);
        let replaced = |c: &Cluster| c.members().iter().all(|m| m.disk_id != disk_id || m.incoming != 0);
        for _ in 0..20 {
            if replaced(self) {
                return;
            }
            self.now_ns += 100 * MS;
            self.tick();
        }
        panic!("disk {disk_id} failed, and nothing takes its place: {:?}", self.members());
    }

    /// A disk loses a fragment, and its node tells the manager.
    pub fn lose_fragment(&mut self, chunk_id: u64, fragment: u32) {
        let pg_id = self.chunk(chunk_id).expect("a chunk").pg_id;
        let disk_id = self.members_of(pg_id)[fragment as usize].put_disk();
        let index = self.nodes.iter().position(|n| n.disks.contains(&disk_id)).expect("the id of a disk");
        let disk = self.disks.get_mut(&disk_id).expect("the id of a disk");
        disk.held.remove(&(chunk_id, fragment)).expect("a fragment that was put");
        self.damaged();
        self.nodes[index].number += 1;
        let bad = vec![FragmentRef { chunk_id, fragment, epoch: 0, disk_id }];
        self.ask(&Heartbeat { bad, ..self.heartbeat(index) }).expect("a heartbeat is answered");
    }

    /// Sends one heartbeat of a node, if it is up.
    pub fn beat(&mut self, index: usize) {
        if self.nodes[index].down {
            return;
        }
        let reply = self.ask(&self.heartbeat(index)).expect("a heartbeat is answered");
        let node = &mut self.nodes[index];
        node.number += 1;
        node.results.clear();
        node.deleted.clear();
        if reply.must_register {
            self.register(index, &self.uuids(index)).expect("a known node");
            return;
        }
        if let Some(map) = &reply.map {
            node.known_map = map.version;
        }
        let known: BTreeSet<u64> = node.tasks.iter().map(|t| t.task_id).collect();
        node.tasks.extend(reply.tasks.into_iter().filter(|t| !known.contains(&t.task_id)));
        let deletes = if node.full { Vec::new() } else { reply.deletes };
        for delete in deletes {
            let disk = self.disks.get_mut(&delete.disk_id).expect("a disk of the node");
            disk.held.remove(&(delete.chunk_id, delete.fragment));
            node.deleted.push(delete);
        }
    }

    /// The next heartbeat of a node.
    pub fn heartbeat(&self, index: usize) -> Heartbeat {
        let node = &self.nodes[index];
        Heartbeat {
            node_id: node.node_id,
            incarnation: node.incarnation,
            disks: node.disks.iter().map(|id| self.disk_info(*id)).collect(),
            scrubbed_bytes: node.disks.iter().map(|id| self.disks[id].scrubbed_bytes).collect(),
            results: node.results.clone(),
            deleted: node.deleted.clone(),
            failed_disks: node.disks.iter().copied().filter(|d| self.disks[d].failed).collect(),
            number: node.number + 1,
            running_tasks: node.tasks.iter().map(|t| t.task_id).collect(),
            known_map_version: node.known_map,
            ..Heartbeat::default()
        }
    }

    fn disk_info(&self, disk_id: u64) -> DiskInfo {
        let disk = &self.disks[&disk_id];
        let used_bytes: u64 = disk.held.values().map(Stored::room_bytes).sum();
        DiskInfo {
            disk_id,
            uuid: disk.uuid.clone(),
            capacity_bytes: CAPACITY,
            free_bytes: disk.free_bytes.unwrap_or(CAPACITY - used_bytes),
            fragments: disk.held.len() as u64,
            queue_len: disk.queue_len,
            used_bytes,
            ..DiskInfo::default()
        }
    }
}
