//! Managers and a voter in one thread: what was answered survives every change of leader (P7, P8).

mod catching_up;
mod comparing;
mod displaced;
mod restoring;
mod room;

use super::*;
use crate::core::reading::{KnownCounts, ReadJob};
use crate::db::FailPoint;
use crate::rig::{ALICE, MS};
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use tessera_consensus::PeerConfig;
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::log::{Base, Log, LogIdentity, LogOptions};
use tessera_disk::{CrashKind, Disk, Fault, SimDisk};
use tessera_wire::consensus::{ChangeKind, JoinGroup, Member, MemberChange, Membership, MembershipChange, PeerKind};
use tessera_wire::meta::{Entry, Lookup, MakeDir};
use tessera_wire::rpc::{Answer, Call, Peer as Address};
use tessera_wire::{Request, Role};

#[allow(clippy::large_enum_variant)]
enum Running {
    Manager(Manager),
    Voter(Peer),
    Nothing,
}

struct Host {
    disk: SimDisk,
    running: Running,
    /// Managers that are stopped keep their database.
    db: Option<Db>,
    home: DbHome,
    is_cut: bool,
}

impl Host {
    fn new(disk: SimDisk, running: Running) -> Host {
        Host { disk, running, db: None, home: DbHome::Memory, is_cut: false }
    }
}

/// A group whose frames arrive at once.
struct Group {
    hosts: Vec<Host>,
    config: Config,
    now_ns: i64,
    replies: HashMap<u64, Result<Bytes, Error>>,
    next: u64,
    /// Jobs that read a digest.
    digests: usize,
    /// Reports of digests do not arrive.
    loses_reports: bool,
}

fn member(at: usize, kind: PeerKind) -> Member {
    let name = format!("h{at}");
    Member { id: at as u64 + 1, kind: kind as i32, host: name.clone(), address: name.clone(), name }
}

fn candidate(member: Member) -> Candidate {
    Candidate { member, is_up: true, must_go: false }
}

fn config() -> Config {
    Config { snapshot_log_bytes: 4_000, snapshot_log_percent: 0, ..crate::rig::config() }
}

fn setup(disk: Arc<dyn Disk>, peer: PeerConfig) -> Setup {
    Setup { home: DbHome::Memory, disk, config: config(), peer }
}

impl Group {
    /// The first host founds the group; the others wait to be found.
    fn new(kinds: &[PeerKind]) -> Group {
        Group::with(kinds, config())
    }

    fn with(kinds: &[PeerKind], config: Config) -> Group {
        let (now_ns, replies) = (1_000_000 * MS, HashMap::new());
        let mut group = Group { hosts: Vec::new(), config, now_ns, replies, next: 0, digests: 0, loses_reports: false };
        for (at, &kind) in kinds.iter().enumerate() {
            let disk = SimDisk::new(at as u64 + 7);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            let peer = PeerConfig::new(member(at, kind), at as u64);
            let db = Db::in_memory([7; 16]).unwrap();
            let running = match (kind, at) {
                (PeerKind::Manager, 0) => Running::Manager(Manager::found(db, group.setup(shared, peer)).unwrap()),
                (PeerKind::Manager, _) => Running::Manager(Manager::join(db, group.setup(shared, peer)).unwrap()),
                _ => {
                    let identity = LogIdentity { cluster_id: [7; 16], peer_id: peer.member.id };
                    let options = LogOptions::default();
                    let empty = Membership::default();
                    let log = Log::create(shared.clone(), LOG_DIR, identity, options, Base::default(), empty).unwrap();
                    let files = SnapshotFiles::open(shared, LOG_DIR).unwrap();
                    Running::Voter(Peer::start(log, files, 0, peer).unwrap())
                }
            };
            group.hosts.push(Host::new(disk, running));
        }
        for host in &mut group.hosts {
            let candidates = kinds.iter().enumerate().map(|(at, &kind)| candidate(member(at, kind)));
            match &mut host.running {
                Running::Manager(manager) => manager.set_candidates(candidates),
                Running::Voter(peer) => peer.set_candidates(candidates),
                Running::Nothing => {}
            }
        }
        group
    }

    fn setup(&self, disk: Arc<dyn Disk>, peer: PeerConfig) -> Setup {
        Setup { config: self.config.clone(), ..setup(disk, peer) }
    }

    fn tick(&mut self) {
        self.now_ns += 100 * MS;
        for at in 0..self.hosts.len() {
            match &mut self.hosts[at].running {
                Running::Manager(manager) => manager.handle(self.now_ns, Event::Tick),
                Running::Voter(peer) => peer.handle(self.now_ns, Input::Tick),
                Running::Nothing => {}
            }
            self.carry(at);
        }
    }

    fn ticks(&mut self, count: usize) {
        (0..count).for_each(|_| self.tick());
    }

    /// Carries out what a host wants, and what follows from it elsewhere.
    fn carry(&mut self, at: usize) {
        loop {
            let now_ns = self.now_ns;
            let action = match &mut self.hosts[at].running {
                Running::Manager(manager) => match manager.poll() {
                    Some(action) => Some(action),
                    None if manager.wants_commit() => {
                        if manager.begin(now_ns) {
                            self.carry_actions(at);
                            if let Running::Manager(manager) = &mut self.hosts[at].running {
                                manager.complete(now_ns);
                            }
                        }
                        continue;
                    }
                    None => None,
                },
                Running::Voter(peer) => peer.poll().map(|output| match output {
                    Output::Call(call) => GroupAction::Core(Action::Call(call)),
                    _ => GroupAction::Answer { token: 0, result: Err(Error::default()) },
                }),
                Running::Nothing => None,
            };
            match action {
                Some(action) => self.act(at, action),
                None => return,
            }
        }
    }

    fn carry_actions(&mut self, at: usize) {
        while let Running::Manager(manager) = &mut self.hosts[at].running {
            let Some(action) = manager.poll() else { return };
            self.act(at, action);
        }
    }

    fn act(&mut self, at: usize, action: GroupAction) {
        match action {
            GroupAction::Core(Action::Reply { request_id, result, .. }) => _ = self.replies.insert(request_id, result),
            GroupAction::Core(Action::Call(call)) => self.call(at, call),
            GroupAction::Core(Action::Read(job)) => self.read(at, job),
            GroupAction::Digest(job) => self.read_digest(at, job),
            GroupAction::Answer { .. } | GroupAction::Snapshot(_) => {}
        }
    }

    fn read_digest(&mut self, at: usize, job: DigestJob) {
        let now_ns = self.now_ns;
        self.digests += 1;
        self.manager_mut(at).digest_done(now_ns, job.run());
    }

    fn read(&mut self, at: usize, job: ReadJob) {
        let now_ns = self.now_ns;
        let Running::Manager(manager) = &mut self.hosts[at].running else { return };
        let Some(db) = manager.db() else { return };
        let done = job.run(db, manager.config(), &mut KnownCounts::default());
        manager.handle(now_ns, Event::Read(done));
    }

    fn call(&mut self, from: usize, call: Call) {
        let Address::Address(address) = &call.peer else { return };
        let to: usize = address[1..].parse().unwrap();
        let is_lost = self.loses_reports && call.kind == Kind::ReportDigest;
        let result = match is_lost || self.hosts[from].is_cut || self.hosts[to].is_cut {
            true => Err(Error::new(Code::Unavailable, "cut")),
            false => self.deliver(to, &call),
        };
        let answer = Answer { token: call.token, result };
        match &mut self.hosts[from].running {
            Running::Manager(manager) => manager.handle(self.now_ns, Event::Answer(answer)),
            Running::Voter(peer) => peer.handle(self.now_ns, Input::Answer(answer)),
            Running::Nothing => {}
        }
    }

    fn deliver(&mut self, to: usize, call: &Call) -> Result<(Bytes, Bytes), Error> {
        let (now_ns, payload) = (self.now_ns, Bytes::from(call.payload.concat()));
        let away = Err(Error::new(Code::Unavailable, "away"));
        let mut answered = None;
        let mut later = Vec::new();
        match &mut self.hosts[to].running {
            Running::Manager(manager) => {
                manager.request(now_ns, 9, call.kind, call.body.clone(), payload);
                while let Some(action) = manager.poll() {
                    match action {
                        GroupAction::Answer { token: 9, result } => answered = Some(result),
                        action => later.push(action),
                    }
                }
            }
            Running::Voter(peer) => {
                peer.handle(now_ns, Input::Request { token: 9, kind: call.kind, body: call.body.clone(), payload });
                while let Some(output) = peer.poll() {
                    match output {
                        Output::Answer { result, .. } => answered = Some(result),
                        Output::Call(call) => later.push(GroupAction::Core(Action::Call(call))),
                        _ => {}
                    }
                }
            }
            Running::Nothing => return away,
        }
        later.into_iter().for_each(|action| self.act(to, action));
        answered.map_or(away, |result| result.map(|(body, payload)| (body, payload.concat().into())))
    }

    fn manager_mut(&mut self, at: usize) -> &mut Manager {
        match &mut self.hosts[at].running {
            Running::Manager(manager) => manager,
            _ => panic!("host {at} runs no manager"),
        }
    }

    fn manager(&self, at: usize) -> &Manager {
        if let Running::Manager(manager) = &self.hosts[at].running {
            manager
        } else {
            panic!("host {at} runs no manager")
        }
    }

    /// The manager that serves.
    fn leader(&self) -> Option<usize> {
        let leads = |host: &Host| matches!(&host.running, Running::Manager(m) if !host.is_cut && m.core().is_some());
        self.hosts.iter().position(leads)
    }

    fn settle_leader(&mut self) -> usize {
        for _ in 0..200 {
            self.tick();
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
        panic!("nobody serves");
    }

    fn send<R: Request>(&mut self, at: usize, request: &R) -> u64 {
        self.send_as(at, Role::Client, request)
    }

    fn send_as<R: Request>(&mut self, at: usize, role: Role, request: &R) -> u64 {
        self.next += 1;
        let (request_id, body) = (self.next, request.encode_to_vec().into());
        let event = Event::Request { connection: 1, role, client_id: ALICE, request_id, kind: R::KIND, body };
        if let Running::Manager(manager) = &mut self.hosts[at].running {
            manager.handle(self.now_ns, event);
        }
        self.carry(at);
        request_id
    }

    fn ask<R: Request>(&mut self, at: usize, request: &R) -> Result<R::Reply, Error> {
        self.ask_as(at, Role::Client, request)
    }

    fn ask_as<R: Request>(&mut self, at: usize, role: Role, request: &R) -> Result<R::Reply, Error> {
        let id = self.send_as(at, role, request);
        for _ in 0..100 {
            if let Some(reply) = self.replies.remove(&id) {
                return reply.map(|body| R::Reply::decode(body).unwrap());
            }
            self.tick();
        }
        panic!("request {id} is not answered");
    }

    fn mkdir(&mut self, at: usize, name: &str) -> Result<Entry, Error> {
        self.next += 1;
        let request = MakeDir { op_id: self.next, parent: 1, name: name.into(), mode: 0o755, ..MakeDir::default() };
        self.ask(at, &request)
    }

    fn lookup(&mut self, at: usize, name: &str) -> Result<Entry, Error> {
        self.ask(at, &Lookup { parent: 1, name: name.into(), ..Lookup::default() })
    }

    fn kill(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if let Running::Manager(manager) = std::mem::replace(&mut host.running, Running::Nothing) {
            host.db = manager.into_db();
        }
        host.disk = host.disk.crash(CrashKind::KeepNone);
    }

    fn restart(&mut self, at: usize) {
        let disk: Arc<dyn Disk> = Arc::new(self.hosts[at].disk.clone());
        let peer = PeerConfig::new(member(at, PeerKind::Manager), at as u64 + 99);
        let setup = Setup { home: self.hosts[at].home.clone(), ..self.setup(disk, peer) };
        let host = &mut self.hosts[at];
        let manager = Manager::restart(host.db.take(), setup).unwrap();
        host.running = Running::Manager(manager.unwrap());
    }

    fn dump(&self, at: usize) -> String {
        tessera_testkit::dump(self.manager(at).db().unwrap().conn()).unwrap()
    }
}

const MANAGER: PeerKind = PeerKind::Manager;
const VOTER: PeerKind = PeerKind::Voter;

/// All managers vote, whatever `max_voters` says: one that does not could not take over. The log says so.
#[test]
fn p14_more_managers_than_max_voters_vote_and_are_named() {
    let mut group = Group::with(&[MANAGER, MANAGER, MANAGER], Config { max_voters: 1, ..config() });
    let leader = group.settle_leader();
    group.ticks(100);
    assert_eq!(group.manager(leader).peer().membership().voters.len(), 3);
    let said = group.manager(leader).surplus_managers().unwrap();
    assert!(said.contains("3 managers vote") && said.contains("tessera manager remove"), "{said}");
    assert_eq!(group.ask(leader, &tessera_wire::meta::GetStatus {}).unwrap().surplus_managers, said);
    let mut enough = Group::new(&[MANAGER, MANAGER, MANAGER]);
    enough.settle_leader();
    enough.ticks(100);
    assert_eq!(enough.manager(0).surplus_managers(), None);
}

#[test]
fn p7_one_manager_alone_serves_as_before() {
    let mut group = Group::new(&[MANAGER]);
    let leader = group.settle_leader();
    group.mkdir(leader, "a").unwrap();
    assert_eq!(group.mkdir(leader, "a").unwrap_err().code(), Code::Exists);
    group.lookup(leader, "a").unwrap();
    group.kill(0);
    group.restart(0);
    let leader = group.settle_leader();
    group.lookup(leader, "a").unwrap();
}

/// A read that comes while an entry is under way may see it, so it is answered once the entry is committed, whatever happens between.
#[test]
pub(crate) fn p7_a_read_waits_for_the_entry_that_it_may_show() {
    let mut core = ManagerCore::lead(Db::in_memory([7; 16]).unwrap(), config(), 1_000 * MS, 1_000 * MS, 2).unwrap();
    let entry = core.begin_entry(1_000 * MS, 1).expect("the first entry of a term");
    assert!(!entry.is_empty());
    let ask = |core: &mut ManagerCore, role| {
        let body = Lookup { parent: 1, name: b"a".to_vec(), ..Lookup::default() }.encode_to_vec().into();
        let (request_id, kind) = (1, Lookup::KIND);
        core.handle(1_001 * MS, Event::Request { connection: 1, role, client_id: ALICE, request_id, kind, body });
    };
    let replies = |core: &mut ManagerCore| {
        std::iter::from_fn(|| core.poll()).filter(|action| matches!(action, Action::Reply { .. })).count()
    };
    ask(&mut core, Role::Client);
    core.handle(1_100 * MS, Event::Tick);
    assert_eq!(replies(&mut core), 0, "the entry is not committed");
    core.finish_batch();
    assert_eq!(replies(&mut core), 1);
    ask(&mut core, Role::Client);
    assert_eq!(replies(&mut core), 1, "without an entry under way it is answered at once");
}

#[test]
fn a_manager_whose_clock_is_wrong_leaves_the_group_to_another() {
    let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
    let first = group.settle_leader();
    group.ticks(60);
    group.mkdir(first, "d").unwrap();
    let now_ns = group.now_ns;
    group.manager_mut(1 - first).note_wall(now_ns, now_ns + 400 * 86_400_000 * MS);
    group.manager_mut(first).peer.transfer(1 - first as u64 + 1);
    group.ticks(100);
    let wrong = group.manager(1 - first);
    assert!(wrong.failed().is_some_and(|why| why.message.contains("max_clock_jump_ms")), "{:?}", wrong.failed());
    assert!(group.manager(first).core().is_some(), "the other one leads again");
}

#[test]
fn p7_a_standby_takes_over_with_everything_that_was_answered() {
    let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
    let first = group.settle_leader();
    group.ticks(60);
    assert_eq!(group.manager(first).peer().membership().voters.len(), 3, "all three vote");
    for i in 0..20 {
        group.mkdir(first, &format!("d{i}")).unwrap();
    }
    let refused = group.mkdir(1 - first, "elsewhere").unwrap_err();
    assert_eq!(refused.code(), Code::NotLeader, "a standby does not serve");
    assert_eq!(refused.leader, group.manager(first).peer().leader().unwrap().address);
    group.kill(first);
    let second = group.settle_leader();
    assert_ne!(second, first);
    for i in 0..20 {
        group.lookup(second, &format!("d{i}")).unwrap();
    }
    group.mkdir(second, "after").unwrap();
    group.restart(first);
    group.ticks(40);
    let second = group.settle_leader();
    group.mkdir(second, "last").unwrap();
    group.ticks(20);
    assert_eq!(group.dump(0), group.dump(1), "both managers hold the same");
}

#[test]
fn p7_a_leader_that_is_cut_off_answers_nothing() {
    let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
    let first = group.settle_leader();
    group.ticks(60);
    group.mkdir(first, "a").unwrap();
    group.hosts[first].is_cut = true;
    group.next += 1;
    let op_id = group.next;
    let request = MakeDir { op_id, parent: 1, name: b"lost".to_vec(), mode: 0o755, ..MakeDir::default() };
    let write = group.send(first, &request);
    let read = group.send(first, &Lookup { parent: 1, name: b"a".to_vec(), ..Lookup::default() });
    assert!(!group.replies.contains_key(&write) && !group.replies.contains_key(&read));
    let second = group.settle_leader();
    assert_ne!(second, first);
    group.mkdir(second, "b").unwrap();
    group.ticks(40);
    // By now it knows: what waited is refused, and its transaction is rolled back.
    assert_eq!(group.replies[&write].as_ref().unwrap_err().code(), Code::Unavailable);
    assert_eq!(group.replies[&read].as_ref().unwrap_err().code(), Code::NotLeader);
    group.hosts[first].is_cut = false;
    group.ticks(40);
    let leader = group.settle_leader();
    assert_eq!(group.lookup(leader, "lost").unwrap_err().code(), Code::NotFound);
    group.lookup(leader, "b").unwrap();
    group.ticks(20);
    assert_eq!(group.dump(0), group.dump(1), "both managers hold the same");
}

/// The test above would notice it.
#[test]
fn p7_a_leader_that_asks_nobody_shows_old_state() {
    let _mistake = tessera_failpoint::activate("manager.reads_unconfirmed");
    let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
    let first = group.settle_leader();
    group.ticks(60);
    group.hosts[first].is_cut = true;
    let read = group.send(first, &Lookup { parent: 1, name: b"a".to_vec(), ..Lookup::default() });
    assert_eq!(group.replies[&read].as_ref().unwrap_err().code(), Code::NotFound);
}

#[test]
fn p8_a_request_repeated_at_another_leader_has_one_effect() {
    let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
    let first = group.settle_leader();
    group.ticks(60);
    group.next += 1;
    let request = MakeDir { op_id: group.next, parent: 1, name: b"a".to_vec(), mode: 0o755, ..MakeDir::default() };
    let once = group.ask(first, &request).unwrap();
    group.kill(first);
    let second = group.settle_leader();
    let again = group.ask(second, &request).unwrap();
    assert_eq!(once.attr.unwrap().ino, again.attr.unwrap().ino);
}

/// P8: what the group has committed took place, although the leader's own database could not take it.
#[test]
fn p8_a_leader_whose_database_fails_refuses_nothing_that_is_committed() {
    for point in [FailPoint::CommitFull, FailPoint::CommitLost] {
        let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
        let first = group.settle_leader();
        group.ticks(60);
        group.manager(first).db().unwrap().fail_next_commit(point);
        let request = MakeDir { op_id: 5, parent: 1, name: b"d".to_vec(), ..MakeDir::default() };
        let error = group.ask(first, &request).unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_eq!(group.manager(first).failed().is_some(), point == FailPoint::CommitLost);
        let second = group.settle_leader();
        assert_ne!(second, first);
        let entry = group.ask(second, &request).unwrap();
        assert_eq!(group.lookup(second, "d").unwrap().attr, entry.attr);
        if point == FailPoint::CommitFull {
            group.ticks(50);
            assert_eq!(group.dump(first), group.dump(second), "it goes on once there is room");
        }
    }
}

#[test]
fn p1_a_manager_that_lost_its_disk_is_brought_up_by_voters_alone() {
    let mut group = Group::new(&[MANAGER, VOTER, VOTER]);
    let first = group.settle_leader();
    group.ticks(60);
    for i in 0..200 {
        group.mkdir(first, &format!("d{i}")).unwrap();
    }
    group.ticks(60);
    let before = group.dump(first);
    group.kill(0);
    // An empty directory joins under a new id.
    let disk = SimDisk::new(77);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut peer = PeerConfig::new(member(0, MANAGER), 5);
    peer.member.id = 100;
    let db = Db::in_memory([7; 16]).unwrap();
    let joining = peer.member.clone();
    let manager = Manager::join(db, setup(shared, peer)).unwrap();
    group.hosts[0] = Host::new(disk, Running::Manager(manager));
    // It asks a voter, which may not lead; a voter that leads makes it a member and hands over.
    for _ in 0..300 {
        group.tick();
        if group.leader().is_some() {
            break;
        }
        for at in [1, 2] {
            let request = JoinGroup { cluster_id: vec![7; 16], member: Some(joining.clone()) };
            let call = Call::new(Address::Address(String::new()), 0, &request, Vec::new(), 1_000);
            group.deliver(at, &call).unwrap();
        }
    }
    let leader = group.leader().expect("the new manager serves");
    assert_eq!(group.manager(leader).peer().id(), 100);
    for i in 0..200 {
        group.lookup(leader, &format!("d{i}")).unwrap();
    }
    assert!(before.contains("d199") || !before.is_empty());
    group.mkdir(leader, "after").unwrap();
}

/// A copy of the snapshot that has rotted is found out by whoever copies it. It must not keep a joiner out while others hold good ones.
#[test]
fn p12_a_joiner_copies_the_snapshot_from_another_peer_if_the_leaders_has_rotted() {
    let mut group = Group::new(&[MANAGER, VOTER, VOTER]);
    let first = group.settle_leader();
    group.ticks(60);
    group.mkdir(first, "a").unwrap();
    group.kill(0);
    let leads = |host: &Host| matches!(&host.running, Running::Voter(peer) if peer.standing().leads);
    while !group.hosts.iter().any(leads) {
        group.tick();
    }
    let leader = group.hosts.iter().position(leads).unwrap();
    let disk = &group.hosts[leader].disk;
    let snapshots: Vec<String> = disk.paths().into_iter().filter(|path| path.ends_with(".snap")).collect();
    assert!(!snapshots.is_empty() && snapshots.iter().all(|path| disk.rot(path, 100, 1)));
    let disk = SimDisk::new(77);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut peer = PeerConfig::new(member(0, MANAGER), 5);
    peer.member.id = 100;
    let mut manager = Manager::join(Db::in_memory([7; 16]).unwrap(), setup(shared, peer)).unwrap();
    manager.set_seeds(vec!["h1".into(), "h2".into()]);
    group.hosts[0] = Host::new(disk, Running::Manager(manager));
    let leader = group.settle_leader();
    group.lookup(leader, "a").unwrap();
}

/// The voter that leads while no manager runs is replaced by another voter, and leads no more: it could propose nothing, and nobody
/// else would, because it still sends heartbeats.
#[test]
fn p12_a_leader_that_is_no_longer_a_member_steps_down() {
    let votes_after = |_mistakes: &[tessera_failpoint::Guard]| {
        let mut group = Group::new(&[MANAGER, VOTER, VOTER, VOTER]);
        let first = group.settle_leader();
        group.ticks(60);
        group.mkdir(first, "a").unwrap();
        group.kill(0);
        let leading = |group: &Group| {
            let peer = |host: &Host| match &host.running {
                Running::Voter(peer) if peer.standing().leads => Some((peer.id(), peer.membership().clone())),
                _ => None,
            };
            group.hosts.iter().filter_map(peer).last()
        };
        while leading(&group).is_none() {
            group.tick();
        }
        let (id, membership) = leading(&group).unwrap();
        let spare = (2..=4).find(|other| !membership.voters.contains(other)).unwrap();
        let change = |kind: ChangeKind, id: u64| MemberChange {
            kind: kind as i32,
            member: Some(member(id as usize - 1, VOTER)),
        };
        let changes = vec![change(ChangeKind::AddVoter, spare), change(ChangeKind::Remove, id)];
        let Running::Voter(peer) = &mut group.hosts[id as usize - 1].running else { panic!("{id} is a voter") };
        peer.propose_change(&MembershipChange { changes }).unwrap();
        group.ticks(200);
        let (id, membership) = leading(&group).expect("somebody leads");
        membership.voters.contains(&id)
    };
    assert!(votes_after(&[]), "the leader votes");
    assert!(!votes_after(&[tessera_failpoint::activate("consensus.leads_others")]), "the test would notice");
}

/// A peer that asked to join and died may not vote: the others would need a majority that counts it.
#[test]
fn p12_a_peer_that_never_answers_does_not_vote() {
    let voters = || {
        let mut group = Group::new(&[MANAGER, VOTER, VOTER, VOTER, VOTER, MANAGER]);
        group.hosts[5].is_cut = true;
        let leader = group.settle_leader();
        group.ticks(60);
        group.mkdir(leader, "a").unwrap();
        group.manager(leader).peer().membership().voters.clone()
    };
    let voted = voters();
    assert!(voted.len() >= 3 && !voted.contains(&6), "{voted:?}");
    let _mistake = tessera_failpoint::activate("consensus.promotes_unheard");
    assert!(voters().contains(&6), "the test would see it");
}

/// The leader lets a silent learner go, and the learner, which never campaigns, would wait for it for ever: it introduces itself again.
#[test]
fn p12_a_member_that_hears_nobody_introduces_itself_even_if_it_cannot_lead() {
    let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
    let leader = group.settle_leader();
    group.ticks(60);
    let now_ns = group.now_ns;
    let standby = group.manager_mut(1 - leader);
    standby.retire();
    let mut introductions = |ticks: std::ops::Range<i64>| {
        let mut calls = Vec::new();
        for tick in ticks {
            standby.handle(now_ns + tick * 100 * MS, Event::Tick);
            calls.extend(std::iter::from_fn(|| standby.poll()));
        }
        let introduces = |action: &GroupAction| matches!(action, GroupAction::Core(Action::Call(call)) if call.kind == Kind::JoinGroup);
        calls.iter().filter(|action| introduces(action)).count()
    };
    assert_eq!(introductions(1..25), 0, "the leader was heard a moment ago");
    assert!(introductions(25..60) >= 2);
}

/// It believes that a leader lives only as long as it hears of it.
#[test]
fn p12_a_manager_that_may_not_lead_votes_for_another() {
    let mut group = Group::new(&[MANAGER, MANAGER, MANAGER]);
    let leader = group.settle_leader();
    group.ticks(60);
    let retired = (leader + 1) % 3;
    group.manager_mut(retired).retire();
    group.kill(leader);
    assert_eq!(group.settle_leader(), (leader + 2) % 3);
}

/// A standby loses power anywhere while it takes in a snapshot: it starts again, and ends up with what the leader has.
#[test]
fn p1_a_crash_while_a_snapshot_arrives_leaves_a_manager_that_starts() {
    let mut crashes = 0;
    for step in 0..30 {
        let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
        let leader = group.settle_leader();
        group.ticks(60);
        let standby = 1 - leader;
        group.hosts[standby].is_cut = true;
        (0..120).for_each(|i| _ = group.mkdir(leader, &format!("d{i}")).unwrap());
        group.ticks(60);
        let disk = group.hosts[standby].disk.clone();
        disk.fail_at(disk.io_count() + step, Fault::PowerLoss);
        group.hosts[standby].is_cut = false;
        for _ in 0..60 {
            group.tick();
            if disk.is_off() {
                group.kill(standby);
                group.restart(standby);
                crashes += 1;
                break;
            }
        }
        group.hosts[standby].disk.set_capacity(1 << 40);
        group.ticks(100);
        let leader = group.settle_leader();
        assert_eq!(group.dump(0), group.dump(1), "step {step}, leader {leader}");
    }
    assert!(crashes > 10, "{crashes} crashes");
}
