//! The command log: acknowledged commands are on enough nodes, replicas catch up, old managers are fenced, and a restore
//! from replicas gives the same database (P7, P11).

use crate::config::Config;
use crate::core::{Event, ManagerCore};
use crate::db::Db;
use crate::db::cache::Caches;
use crate::log::batch;
use crate::log::restore::{Restore, RestoreError, Restored};
use crate::rig::{self, ALICE, MS, Rig, chunk};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use tessera_wire::log::*;
use tessera_wire::meta::*;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error, Extent, Kind, Role};

/// A node's log replica in memory, as docs/formats.md specifies it.
#[derive(Default, Clone)]
struct Replica {
    term: u64,
    entries: BTreeMap<u64, (u64, Bytes)>,
    /// (seq, its term, image).
    snapshot: Option<(u64, u64, Vec<u8>)>,
    building: Vec<u8>,
    dead: bool,
}

impl Replica {
    fn state(&self) -> AppendLogReply {
        let snapshot_seq = self.snapshot.as_ref().map_or(0, |s| s.0);
        let snapshot_term = self.snapshot.as_ref().map_or(0, |s| s.1);
        let last = self.entries.last_key_value().filter(|(seq, _)| **seq > snapshot_seq);
        let (last_seq, last_term) = last.map_or((snapshot_seq, snapshot_term), |(&seq, (term, _))| (seq, *term));
        AppendLogReply { term: self.term, last_seq, snapshot_seq, last_term }
    }

    fn serve(&mut self, kind: Kind, body: &Bytes, payload: &[Bytes]) -> Result<(Bytes, Bytes), Error> {
        if self.dead {
            return Err(Error::new(Code::Unavailable, "dead"));
        }
        let payload = Bytes::from(payload.concat());
        match kind {
            Kind::AppendLog => self.append(&AppendLog::decode(body.clone()).unwrap(), payload),
            Kind::PutSnapshot => self.put(&PutSnapshot::decode(body.clone()).unwrap(), payload),
            Kind::ReadLog => self.read(&ReadLog::decode(body.clone()).unwrap()),
            Kind::GetSnapshot => {
                let get = GetSnapshot::decode(body.clone()).unwrap();
                let (_, _, image) = self.snapshot.as_ref().unwrap();
                let end = (get.offset as usize + 10_000).min(image.len());
                let reply =
                    GetSnapshotReply { total_bytes: image.len() as u64, hash: blake3::hash(image).as_bytes().to_vec() };
                Ok((reply.encode_to_vec().into(), Bytes::copy_from_slice(&image[get.offset as usize..end])))
            }
            other => panic!("{other:?}"),
        }
    }

    fn fence(&mut self, term: u64) -> Result<(), Error> {
        if term < self.term {
            return Err(Error { current: self.term, ..Error::new(Code::Fenced, "stale term") });
        }
        self.term = term;
        Ok(())
    }

    fn append(&mut self, request: &AppendLog, payload: Bytes) -> Result<(Bytes, Bytes), Error> {
        self.fence(request.term)?;
        let state = self.state();
        let before = request.first_seq - 1;
        let at_snapshot = self.snapshot.as_ref().filter(|s| s.0 == before).map(|s| s.1);
        let held = at_snapshot.or(self.entries.get(&before).map(|e| e.0));
        if request.prev_term != 0 && held.is_some_and(|term| term != request.prev_term) {
            let reply = AppendLogReply { last_seq: before - 1, last_term: 0, ..state };
            return Ok((reply.encode_to_vec().into(), Bytes::new()));
        }
        if request.first_seq <= state.last_seq + 1 {
            let mut at = 0;
            for ((seq, &term), &len) in (request.first_seq..).zip(&request.terms).zip(&request.lengths) {
                let bytes = payload.slice(at..at + len as usize);
                at += len as usize;
                if seq <= state.snapshot_seq || self.entries.get(&seq).is_some_and(|held| held.0 == term) {
                    continue;
                }
                self.entries.split_off(&seq);
                self.entries.insert(seq, (term, bytes));
            }
        }
        if let Some((seq, ..)) = self.snapshot {
            self.entries = self.entries.split_off(&(request.drop_to_seq.min(seq) + 1));
        }
        Ok((self.state().encode_to_vec().into(), Bytes::new()))
    }

    fn put(&mut self, request: &PutSnapshot, payload: Bytes) -> Result<(Bytes, Bytes), Error> {
        self.fence(request.term)?;
        if request.offset == 0 {
            self.building.clear();
        }
        assert_eq!(request.offset, self.building.len() as u64);
        self.building.extend_from_slice(&payload);
        if self.building.len() as u64 == request.total_bytes {
            assert_eq!(blake3::hash(&self.building).as_bytes()[..], request.hash[..]);
            let image = std::mem::take(&mut self.building);
            if self.snapshot.as_ref().is_none_or(|s| s.0 <= request.seq) {
                self.snapshot = Some((request.seq, request.seq_term, image));
            }
            if self.entries.get(&request.seq).is_some_and(|e| e.0 != request.seq_term) {
                self.entries.clear();
            }
        }
        Ok((self.state().encode_to_vec().into(), Bytes::new()))
    }

    fn read(&self, request: &ReadLog) -> Result<(Bytes, Bytes), Error> {
        let entries: Vec<_> = match request.max_bytes {
            0 => Vec::new(),
            _ => self.entries.range(request.from_seq..).take(3).collect(),
        };
        let reply = ReadLogReply {
            state: Some(self.state()),
            first_seq: entries.first().map_or(0, |e| *e.0),
            lengths: entries.iter().map(|e| e.1.1.len() as u32).collect(),
            cluster_id: vec![7; 16],
        };
        let payload: Vec<u8> = entries.iter().flat_map(|e| e.1.1.to_vec()).collect();
        Ok((reply.encode_to_vec().into(), payload.into()))
    }
}

/// A rig whose nodes hold the log.
struct Logged {
    rig: Rig,
    replicas: BTreeMap<u64, Replica>,
}

fn config() -> Config {
    Config { log_copies: 2, log_retry_ms: 10, ..rig::config() }
}

impl Logged {
    fn new(config: Config) -> Logged {
        let mut logged = Logged {
            rig: Rig::with(Db::in_memory([7; 16]).unwrap(), config, 0),
            replicas: (1..=4).map(|node| (node, Replica::default())).collect(),
        };
        for node in 1..=4 {
            logged.rig.register(node);
        }
        logged.carry();
        logged
    }

    /// Delivers calls to replicas until none are left.
    fn carry(&mut self) {
        self.rig.settle();
        while let Some(call) = self.rig.calls.pop_front() {
            self.carry_one(call);
            self.rig.settle();
        }
    }

    fn carry_one(&mut self, call: Call) {
        let Peer::Node(node) = call.peer else { panic!("{:?}", call.peer) };
        let result = self.replicas.get_mut(&node).unwrap().serve(call.kind, &call.body, &call.payload);
        self.rig.core.handle(self.rig.now_ns, Event::Answer(Answer { token: call.token, result }));
        self.rig.drain();
    }

    /// Sends a MakeDir; returns its request id.
    fn mkdir(&mut self, name: &str) -> u64 {
        let op_id = self.rig.op();
        let request = MakeDir { op_id, parent: 1, name: name.into(), ..Default::default() };
        let id = self.rig.send(Role::Client, ALICE, &request);
        self.rig.settle();
        id
    }

    fn is_answered(&self, id: u64) -> bool {
        self.rig.replies.contains_key(&id)
    }

    /// Advances time and delivers calls, for a few rounds.
    fn rounds(&mut self) {
        for _ in 0..20 {
            self.rig.tick(20);
            self.carry();
        }
    }

    fn restart(self, config: Config) -> Logged {
        Logged { rig: self.rig.restart_with(config), replicas: self.replicas }
    }

    fn holders(&self) -> Vec<u64> {
        let seq = self.rig.core.meta().log_seq;
        self.replicas.iter().filter(|(_, r)| r.state().last_seq == seq).map(|(&n, _)| n).collect()
    }

    fn restore(&self, without_missing: bool) -> Result<ManagerCore, RestoreError> {
        let restored = self.restored(without_missing)?;
        let above = restored.highest_term;
        let db = restored.into_db(None, &mut |_, _| ())?;
        Ok(ManagerCore::start_with(db, config(), self.rig.now_ns, above, true).unwrap())
    }

    fn restored(&self, without_missing: bool) -> Result<Restored, RestoreError> {
        let mut replicas = self.replicas.clone();
        let addresses = replicas.keys().map(u64::to_string).collect();
        let mut restore = Restore::new(addresses, without_missing, &config());
        loop {
            let call = restore.poll().expect("a call or an end");
            let Peer::Address(address) = &call.peer else { panic!() };
            let replica = replicas.get_mut(&address.parse::<u64>().unwrap()).unwrap();
            let result = replica.serve(call.kind, &call.body, &call.payload);
            if let Some(restored) = restore.handle(Answer { token: call.token, result })? {
                return Ok(restored);
            }
        }
    }
}

#[test]
pub(super) fn an_answer_waits_for_as_many_replicas_as_there_must_be() {
    let mut logged = Logged::new(config());
    let id = logged.mkdir("d");
    assert!(!logged.is_answered(id));
    // A later read may have seen it, and waits too.
    let request = Lookup { parent: 1, name: b"d".to_vec(), want_lease: false };
    let read = logged.rig.send(Role::Client, ALICE, &request);
    logged.rig.settle();
    assert!(!logged.is_answered(read));
    let call = logged.rig.calls.pop_front().unwrap();
    logged.carry_one(call);
    assert!(!logged.is_answered(id), "one of two");
    logged.carry();
    assert!(logged.is_answered(id) && logged.is_answered(read));
    assert_eq!(logged.holders(), [1, 2]);
}

#[test]
fn entries_go_to_replicas_before_the_local_sync() {
    let mut logged = Logged::new(config());
    let op_id = logged.rig.op();
    let request = MakeDir { op_id, parent: 1, name: b"d".to_vec(), ..Default::default() };
    logged.rig.send(Role::Client, ALICE, &request);
    assert!(logged.rig.core.begin_batch(logged.rig.now_ns));
    logged.rig.drain();
    assert_eq!(logged.rig.calls.len(), 2, "both replicas are asked while the transaction is open");
    logged.rig.core.finish_batch();
}

#[test]
fn a_dead_replica_is_replaced_when_its_node_is_down() {
    let mut logged = Logged::new(Config { down_after_ms: 5_000, out_after_ms: 600_000, ..config() });
    logged.replicas.get_mut(&1).unwrap().dead = true;
    let id = logged.mkdir("d");
    logged.carry();
    assert!(!logged.is_answered(id), "one copy is not enough");
    // After a few failed calls the manager chooses another node.
    for _ in 0..10 {
        logged.rig.tick(20);
        logged.carry();
    }
    assert!(logged.is_answered(id));
    let holders = logged.holders();
    assert!(holders.len() >= 2 && !holders.contains(&1), "{holders:?}");
}

#[test]
fn a_lagging_replica_catches_up_by_entries() {
    let mut logged = Logged::new(Config { log_call_bytes: 200, ..config() });
    logged.replicas.get_mut(&2).unwrap().dead = true;
    let ids: Vec<u64> = (0..30).map(|i| logged.mkdir(&format!("d{i}"))).collect();
    logged.replicas.get_mut(&2).unwrap().dead = false;
    logged.carry();
    logged.rig.tick(100);
    logged.carry();
    assert!(ids.iter().all(|id| logged.is_answered(*id)));
    assert!(logged.holders().contains(&1));
}

#[test]
fn snapshots_shorten_the_log_and_serve_new_replicas() {
    let small = Config { snapshot_log_bytes: 400, snapshot_log_percent: 0, snapshot_piece_bytes: 20_000, ..config() };
    let mut logged = Logged::new(small);
    for i in 0..40 {
        logged.mkdir(&format!("d{i}"));
        logged.carry();
        logged.rig.tick(100);
        logged.carry();
    }
    let entries = |rig: &Rig| {
        rig.core.db().conn().query_row("SELECT count(*) FROM command_log", [], |r| r.get::<_, i64>(0)).unwrap()
    };
    assert!(logged.replicas[&1].snapshot.is_some());
    assert!(entries(&logged.rig) < 30, "{} entries are kept", entries(&logged.rig));
    assert!(logged.replicas[&1].entries.len() < 30);
    // Node 3 joins the replicas when node 1 fails, and can only start from a snapshot.
    logged.replicas.get_mut(&1).unwrap().dead = true;
    let id = logged.mkdir("late");
    for _ in 0..20 {
        logged.rig.tick(20);
        logged.carry();
    }
    assert!(logged.is_answered(id));
    assert!(logged.replicas[&3].snapshot.is_some());
    let restored = logged.restore(true).unwrap();
    let without = ["command_log", "ops", "meta", "pgs"];
    assert_eq!(dump(restored.db(), &without), dump(logged.rig.core.db(), &without));
}

#[test]
fn p7_a_restarted_manager_makes_a_snapshot_for_a_replica_far_behind() {
    let small = Config {
        log_copies: 3,
        snapshot_log_bytes: 400,
        snapshot_log_percent: 0,
        snapshot_piece_bytes: 20_000,
        ..config()
    };
    let mut logged = Logged::new(small.clone());
    logged.mkdir("first");
    logged.carry();
    let held_by_1 = logged.replicas[&1].state().last_seq;
    assert!(held_by_1 > 0);
    logged.replicas.get_mut(&1).unwrap().dead = true;
    for i in 0..20 {
        logged.mkdir(&format!("d{i}"));
        logged.rounds();
    }
    let oldest = "SELECT min(seq) FROM command_log";
    let oldest = logged.rig.core.db().conn().query_row(oldest, [], |r| r.get::<_, i64>(0)).unwrap() as u64;
    assert!(oldest > held_by_1 + 1, "kept from {oldest} on, node 1 holds up to {held_by_1}");
    // The restarted manager chooses node 1 again and has no image. It acknowledges nothing without node 1.
    logged.replicas.get_mut(&1).unwrap().dead = false;
    let mut logged = logged.restart(Config { snapshot_log_bytes: 1 << 30, ..small });
    let write = logged.mkdir("late");
    let status = logged.rig.send(Role::Client, ALICE, &GetStatus {});
    logged.carry();
    assert!(!logged.is_answered(write) && !logged.is_answered(status));
    logged.rounds();
    assert!(logged.is_answered(write) && logged.is_answered(status));
    assert_eq!(logged.holders(), [1, 2, 3]);
    (2..=4).for_each(|node| logged.replicas.get_mut(&node).unwrap().dead = true);
    let restored = logged.restore(true).unwrap();
    let without = ["command_log", "ops", "meta", "pgs"];
    assert_eq!(dump(restored.db(), &without), dump(logged.rig.core.db(), &without));
}

#[test]
fn p7_a_snapshot_of_another_history_is_no_copy_of_ours() {
    // Its position, from our last.
    for offset in [-3, -1, 0, 1, 5] {
        let mut logged = Logged::new(config());
        (0..6).for_each(|i| _ = logged.mkdir(&format!("a{i}")));
        logged.carry();
        let seq = logged.rig.core.meta().log_seq.checked_add_signed(offset).unwrap();
        // A manager whose disk was lost left it on node 3, which now takes the place of node 1.
        logged.replicas.get_mut(&3).unwrap().snapshot = Some((seq, 99, b"another history".to_vec()));
        logged.replicas.get_mut(&1).unwrap().dead = true;
        let ids: Vec<u64> = (0..8).map(|i| logged.mkdir(&format!("b{i}"))).collect();
        logged.rounds();
        assert!(ids.iter().all(|id| logged.is_answered(*id)), "{offset}");
        let (_, term, _) = logged.replicas[&3].snapshot.as_ref().unwrap();
        assert_ne!(*term, 99, "{offset}");
        logged.replicas.get_mut(&2).unwrap().dead = true;
        let restored = logged.restore(true).unwrap();
        let without = ["command_log", "ops", "meta", "pgs"];
        assert_eq!(dump(restored.db(), &without), dump(logged.rig.core.db(), &without), "{offset}");
    }
}

#[test]
fn p11_an_older_manager_is_fenced() {
    let mut logged = Logged::new(config());
    logged.mkdir("d");
    logged.carry();
    // Another manager, restored from the replicas, raises their term.
    let mut newer = logged.restore(false).unwrap();
    let mut calls = Vec::new();
    newer.handle(logged.rig.now_ns, Event::Tick);
    while let Some(action) = newer.poll() {
        if let crate::core::Action::Call(call) = action {
            calls.push(call);
        }
    }
    assert!(!calls.is_empty());
    for call in calls {
        let Peer::Node(node) = call.peer else { panic!() };
        logged.replicas.get_mut(&node).unwrap().serve(call.kind, &call.body, &call.payload).unwrap();
    }
    let id = logged.mkdir("too late");
    logged.carry();
    assert_eq!(logged.rig.replies[&id].as_ref().unwrap_err().code(), Code::Fenced);
    assert!(logged.rig.core.stopped().is_some());
}

#[test]
fn entries_that_were_never_acknowledged_are_overruled() {
    let mut logged = Logged::new(config());
    logged.mkdir("a");
    logged.carry();
    // The entry reaches one replica, the local commit fails, and the manager continues under a new term.
    let op_id = logged.rig.op();
    let request = MakeDir { op_id, parent: 1, name: b"lost".to_vec(), ..Default::default() };
    let id = logged.rig.send(Role::Client, ALICE, &request);
    assert!(logged.rig.core.begin_batch(logged.rig.now_ns));
    logged.rig.drain();
    let call = logged.rig.calls.pop_front().unwrap();
    let Peer::Node(node) = call.peer else { panic!() };
    logged.replicas.get_mut(&node).unwrap().serve(call.kind, &call.body, &call.payload).unwrap();
    let late = Answer { token: call.token, result: Err(Error::new(Code::Timeout, "late")) };
    logged.rig.core.db().fail_next_commit(crate::db::FailPoint::CommitFull);
    logged.rig.core.finish_batch();
    logged.rig.drain();
    assert_eq!(logged.rig.replies[&id].as_ref().unwrap_err().code(), Code::NoSpace);
    logged.rig.core.handle(logged.rig.now_ns, Event::Answer(late));
    let id = logged.mkdir("b");
    for _ in 0..5 {
        logged.rig.tick(20);
        logged.carry();
    }
    assert!(logged.is_answered(id));
    let restored = logged.restore(false).unwrap();
    assert_eq!(crate::namespace::inodes::lookup(restored.db(), 1, b"lost").unwrap(), None);
    assert!(crate::namespace::inodes::lookup(restored.db(), 1, b"b").unwrap().is_some());
}

/// Position and term identify an entry: after a failed commit that began a term, that term is not used again.
#[test]
fn each_failed_commit_costs_a_term() {
    let mut rig = Rig::new(4);
    let before = rig.core.meta().term;
    for _ in 0..3 {
        rig.core.db().fail_next_commit(crate::db::FailPoint::CommitFull);
        let op_id = rig.op();
        rig.ask(&MakeDir { op_id, parent: 1, name: b"d".to_vec(), ..Default::default() }).unwrap_err();
    }
    rig.mkdir(1, "d");
    assert_eq!(rig.core.meta().term, before + 3, "the first failed entry is of the old term, two began one");
}

#[test]
fn what_was_answered_survives_the_managers_disk() {
    let mut logged = Logged::new(config());
    let mut answered = Vec::new();
    for i in 0..20 {
        let name = format!("d{i}");
        let id = logged.mkdir(&name);
        if i % 3 == 0 {
            logged.carry();
        }
        answered.push((id, name));
    }
    let answered: Vec<String> =
        answered.into_iter().filter(|(id, _)| logged.is_answered(*id)).map(|(_, n)| n).collect();
    assert!(answered.len() > 10);
    // One of the two holders is gone too.
    logged.replicas.get_mut(&1).unwrap().dead = true;
    let Err(error) = logged.restore(false) else { panic!("a silent replica may know more") };
    assert!(matches!(error, RestoreError::Silent { .. }), "{error}");
    let restored = logged.restore(true).unwrap();
    for name in answered {
        assert!(crate::namespace::inodes::lookup(restored.db(), 1, name.as_bytes()).unwrap().is_some(), "{name}");
    }
    assert!(restored.meta().term > logged.rig.core.meta().term);
    assert!(restored.meta().next_incarnation > logged.rig.core.meta().next_incarnation + 1000);
    for replica in logged.replicas.values_mut() {
        replica.dead = true;
    }
    let Err(error) = logged.restore(true) else { panic!("from nothing") };
    assert!(matches!(error, RestoreError::NoReplica { .. }), "{error}");
}

fn dump(db: &Db, without: &[&str]) -> String {
    let dump = tessera_testkit::dump(db.conn()).unwrap();
    let keep = |line: &&str| !without.contains(&line.split(' ').next().unwrap_or(""));
    dump.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

/// A workload of names, versions, staging, readers, ends of sessions, and refusals.
fn workload(rig: &mut Rig, rounds: u64) {
    for i in 0..rounds {
        let dir = rig.mkdir(1, &format!("dir{i}"));
        let content: Vec<u8> = (0..i % 7).map(|c| (c + i / 3) as u8).collect();
        rig.put(dir, "f", &content).unwrap();
        rig.put(dir, "f", &[&content[..], &[200]].concat()).unwrap();
        let reader = rig.read(dir, "f").unwrap().session_id;
        rig.put(dir, "f", &[201, i as u8]).unwrap();
        rig.tick(if i % 5 == 0 { 2_000 } else { 10 });
        let session =
            rig.open_write(dir, "g", &[("lifetime", "replace:2"), ("durability", "optimistic")]).unwrap().session_id;
        let names: Vec<ChunkName> = (0..3).map(|c| chunk(c + i as u8)).collect();
        let answers = rig.allocate(session, &names).unwrap().answers;
        assert_eq!(answers.len(), 3);
        if i % 4 == 0 {
            rig.ask(&CloseSession { session_id: session }).unwrap();
        }
        let preallocated =
            super::preallocated::draw(rig, 4, super::preallocated::redundancy("ec:2+1")).preallocated.unwrap();
        let small =
            super::preallocated::filling(rig, &format!("small{i}"), &[(i * 7) as u8, 100 + i as u8], &preallocated);
        rig.ask(&small).unwrap();
        let again = super::preallocated::filling(rig, "small", &[1, 2], &preallocated); // used already
        rig.ask(&again).unwrap_err();
        let op_id = rig.op();
        let _ = rig.ask(&Unlink { op_id, parent: 1, name: b"nothing".to_vec(), directory: false });
        if i % 3 == 0 {
            let op_id = rig.op();
            rig.ask(&Unlink { op_id, parent: dir, name: b"f".to_vec(), directory: false }).unwrap();
        }
        if i % 2 == 0 {
            rig.ask(&CloseSession { session_id: reader }).unwrap();
        }
    }
    rig.tick(61_000);
    rig.tick(100);
}

fn logged_entries(db: &Db) -> Vec<LogEntry> {
    let mut rows = db.stmt("SELECT entry FROM command_log ORDER BY seq").unwrap();
    let rows = rows.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    rows.map(|row| LogEntry::decode(&row.unwrap()[..]).unwrap()).collect()
}

#[test]
fn p7_the_log_applied_again_gives_the_same_database() {
    let mut rig = Rig::new(4);
    workload(&mut rig, 25);
    let mut rig = rig.restart();
    workload_again(&mut rig);
    let entries = logged_entries(rig.core.db());
    assert!(entries.len() > 100);
    // From the beginning.
    let db = Db::in_memory([7; 16]).unwrap();
    let (mut meta, caches) = (db.meta().unwrap(), Caches::default());
    let middle = entries.len() / 2;
    let mut image = None;
    for (i, entry) in entries.iter().enumerate() {
        if i == middle {
            let mut copy = Db::from_image(&{
                let mut db = Db::in_memory([7; 16]).unwrap();
                replay_all(&db, &entries[..middle]);
                db.image().unwrap()
            })
            .unwrap();
            image = Some(copy.image().unwrap());
        }
        batch::replay(&db, &mut meta, &caches, entry).unwrap();
    }
    assert_eq!(dump(&db, &[]), dump(rig.core.db(), &[]));
    let digest = crate::db::digest(rig.core.db()).unwrap();
    assert_eq!(crate::db::digest(&db).unwrap(), digest, "a replay has the digest of what ran live");
    db.exec("UPDATE inodes SET mode = mode + 1 WHERE ino = 1", []).unwrap();
    assert_ne!(crate::db::digest(&db).unwrap(), digest);
    // From a snapshot in the middle.
    let db = Db::from_image(&image.unwrap()).unwrap();
    replay_all(&db, &entries[middle..]);
    assert_eq!(dump(&db, &[]), dump(rig.core.db(), &[]));
    assert_eq!(tessera_testkit::recount(db.conn()).unwrap(), Vec::<String>::new());
    // A gap is noticed.
    let db = Db::in_memory([7; 16]).unwrap();
    let mut meta = db.meta().unwrap();
    let error = batch::replay(&db, &mut meta, &Caches::default(), &entries[1]).unwrap_err();
    assert!(matches!(error, batch::ReplayError::Gap { at: 0, got: 2 }), "{error}");
}

/// P7: what a command takes from the configuration is recorded, so a standby with another configuration, and a restore, get the
/// same database. Limits are checked before the log: what one configuration let through, all of them replay.
#[test]
fn p7_the_log_applied_again_depends_on_no_configuration() {
    let odd = Config {
        session_ms: 31_007,
        heartbeat_ms: 503,
        node_lease_ms: 1_999,
        max_commit_extents: 2,
        max_allocate_chunks: 2,
        ..rig::config()
    };
    let mut rig = Rig::new(4);
    workload(&mut rig, 3);
    let mut rig = rig.restart_with(odd.clone());
    (1..=4).for_each(|node| rig.register(node));
    let session = rig.open_write(1, "h", &[]).unwrap().session_id;
    let names: Vec<ChunkName> = (50..53).map(chunk).collect();
    let error = rig.allocate(session, &names).unwrap_err();
    assert!(error.code() == Code::Invalid && error.message.contains("at most 2"), "{error}");
    rig.allocate(session, &names[..2]).unwrap();
    let hole = |offset| Extent { offset, len_bytes: 1, ..Extent::default() };
    let mut commit = Commit {
        op_id: rig.op(),
        session_id: session,
        mode: CommitMode::Replace as i32,
        size_bytes: 3,
        extents: (0..3).map(hole).collect(),
        ..Commit::default()
    };
    let error = rig.ask(&commit).unwrap_err();
    assert!(error.code() == Code::Invalid && error.message.contains("more than 2"), "{error}");
    (commit.op_id, commit.size_bytes) = (rig.op(), 2);
    commit.extents.truncate(2);
    rig.ask(&commit).unwrap();
    let entries = logged_entries(rig.core.db());
    let kept = |ms: u64| entries.iter().flat_map(|e| &e.commands).any(|command| command.decisions.contains(&ms));
    assert!(kept(odd.session_ms) && kept(odd.heartbeat_ms) && kept(odd.node_lease_ms));
    let db = Db::in_memory([7; 16]).unwrap();
    replay_all(&db, &entries);
    assert_eq!(dump(&db, &[]), dump(rig.core.db(), &[]));
    assert_eq!(crate::db::digest(&db).unwrap(), crate::db::digest(rig.core.db()).unwrap());
}

/// P7: an image taken while the manager commits is the state after the entry it names: with the later entries it becomes
/// the same database.
#[test]
fn p7_images_taken_while_commands_go_on_are_of_the_entry_they_name() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(crate::db::FILE_NAME);
    let mut rig = Rig::with(Db::create(dir.path(), [7; 16]).unwrap(), rig::config(), 4);
    let done = AtomicBool::new(false);
    let images = std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut images: Vec<(u64, Vec<u8>)> = Vec::new();
            while images.len() < 3 || !done.load(Ordering::Relaxed) {
                let (meta, image) = Db::image_of(&file).unwrap();
                if images.last().is_none_or(|(seq, _)| *seq < meta.log_seq) || done.load(Ordering::Relaxed) {
                    images.push((meta.log_seq, image));
                }
            }
            images
        });
        workload(&mut rig, 40);
        done.store(true, Ordering::Relaxed);
        taking.join().unwrap()
    });
    let entries = logged_entries(rig.core.db());
    let seqs: Vec<u64> = images.iter().map(|(seq, _)| *seq).collect();
    assert!(seqs.first() < seqs.last(), "nothing was committed meanwhile: {seqs:?}");
    for (seq, image) in images.iter().step_by(images.len().div_ceil(12)) {
        let db = Db::from_image(image).unwrap();
        assert_eq!(db.meta().unwrap().log_seq, *seq);
        let rest: Vec<LogEntry> = entries.iter().filter(|e| e.seq > *seq).cloned().collect();
        replay_all(&db, &rest);
        assert_eq!(dump(&db, &[]), dump(rig.core.db(), &[]), "from entry {seq} on");
    }
}

fn replay_all(db: &Db, entries: &[LogEntry]) {
    let (mut meta, caches) = (db.meta().unwrap(), Caches::default());
    for entry in entries {
        batch::replay(db, &mut meta, &caches, entry).unwrap();
    }
}

fn workload_again(rig: &mut Rig) {
    rig.now_ns += 5 * MS;
    let dir = rig.mkdir(1, "after the restart");
    rig.put(dir, "f", b"abcdef").unwrap();
}

/// P9: an interrupted restore leaves no database that looks complete.
#[test]
pub(super) fn a_restore_leaves_a_whole_database_or_none() {
    let mut logged = Logged::new(config());
    for name in ["a", "b", "c"] {
        logged.mkdir(name);
        logged.carry();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("manager.db");
    let mut broken = logged.restored(true).unwrap();
    assert!(broken.entries.len() >= 3);
    broken.entries.last_mut().unwrap().commands[0].body = b"\xff".as_slice().into();
    let mut seen = Vec::new();
    assert!(broken.into_db(Some(dir.path()), &mut |done, all| seen.push((done, all))).is_err());
    assert!(!file.exists() && seen.len() >= 2);
    assert!(Db::open(dir.path()).is_err());

    let whole = logged.restored(true).unwrap().into_db(Some(dir.path()), &mut |_, _| ()).unwrap();
    assert!(file.exists());
    assert_eq!(whole.meta().unwrap().log_seq, logged.rig.core.meta().log_seq);
    drop(whole);
    let again = logged.restored(true).unwrap().into_db(Some(dir.path()), &mut |_, _| ());
    assert!(matches!(again, Err(RestoreError::Db(_))), "what is there is not overwritten");
}
