//! A majority is lost, and the group is restored from the rest.

use super::*;
use crate::group::restore::{Ask, Restore, RestoreError, Restored, Survey};
use crate::group::{Found, disk_of, resume};
use std::cell::{Cell, RefCell};
use std::path::Path;
use tessera_consensus::PeerError;
use tessera_wire::meta::{ChunkName, Commit, CommitMode, OpenWrite, RegisterNode};
use tessera_wire::{DiskInfo, Extent, NodeInfo};

/// Speaks to a group, up to a number of calls.
struct Wire<'a> {
    group: &'a RefCell<Group>,
    left: Cell<usize>,
}

impl<'a> Wire<'a> {
    fn to(group: &'a RefCell<Group>) -> Wire<'a> {
        Wire { group, left: Cell::new(usize::MAX) }
    }
}

impl Ask for Wire<'_> {
    fn ask<R: Request>(&self, address: &str, request: &R) -> Result<(R::Reply, Bytes), Error> {
        let at: usize = address[1..].parse().unwrap();
        let mut group = self.group.borrow_mut();
        let unavailable = || Err(Error::new(Code::Unavailable, "no answer"));
        if group.hosts[at].is_cut || self.left.get() == 0 {
            return unavailable();
        }
        self.left.set(self.left.get() - 1);
        let call = Call::new(Address::Address(address.into()), 0, request, Vec::new(), 1_000);
        let (body, payload) = group.deliver(at, &call)?;
        Ok((R::Reply::decode(body).unwrap(), payload))
    }
}

/// Number of the host that a restored manager becomes.
const NEW: usize = 5;

fn restore<'a, 'b>(wire: &'a Wire<'b>, dir: &Path) -> Restore<'a, Wire<'b>> {
    let member = Member { id: 77, ..member(NEW, MANAGER) };
    Restore { ask: wire, dir: dir.to_path_buf(), member, state_of: None, force: false }
}

fn run(restore: &Restore<'_, Wire<'_>>, from: &[&str], id: u64) -> Result<Restored, RestoreError> {
    let addresses: Vec<String> = from.iter().map(ToString::to_string).collect();
    let survey = Survey::make(restore.ask, &addresses)?;
    restore.run(Db::lock(&restore.dir).unwrap(), survey, id)
}

/// Five hosts with a manager on the first; each says that it is cut off.
fn five() -> RefCell<Group> {
    let mut group = Group::new(&[MANAGER, VOTER, VOTER, VOTER, VOTER]);
    let leader = group.settle_leader();
    group.ticks(100);
    assert_eq!(group.manager(leader).peer().membership().voters.len(), 5);
    RefCell::new(group)
}

fn cut(group: &RefCell<Group>, hosts: &[usize]) {
    hosts.iter().for_each(|&at| group.borrow_mut().hosts[at].is_cut = true);
}

/// Serves a directory that was restored; returns the group when it leads.
fn serve(group: RefCell<Group>, dir: &Path) -> Group {
    let mut group = group.into_inner();
    let lock = Db::lock(dir).unwrap();
    let home = DbHome::in_dir(dir, lock.clone());
    let peer = PeerConfig::new(member(NEW, MANAGER), 3);
    let setup = Setup { home, disk: disk_of(dir, &lock).unwrap(), config: config(), peer };
    let Ok(Found::Manager(manager)) = resume(dir, setup) else { panic!("a manager is there") };
    let running = Running::Manager(*manager);
    group.hosts.push(Host::new(SimDisk::new(1), running));
    for _ in 0..50 {
        group.tick();
        if group.manager(NEW).core().is_some() {
            return group;
        }
    }
    panic!("the restored manager does not lead");
}

/// P1, P7: the newest state counts, with entries that no majority has confirmed to the one who reads them.
#[test]
fn p1_the_newest_state_is_taken_with_its_tail() {
    let group = five();
    for i in 0..40 {
        group.borrow_mut().mkdir(0, &format!("d{i}")).unwrap();
    }
    cut(&group, &[4]);
    for i in 40..80 {
        group.borrow_mut().mkdir(0, &format!("d{i}")).unwrap();
    }
    // Only host 3 gets this one.
    cut(&group, &[1, 2]);
    let request = MakeDir { op_id: 999, parent: 1, name: "tail".into(), mode: 0o755, ..MakeDir::default() };
    group.borrow_mut().send(0, &request);
    group.borrow_mut().hosts[4].is_cut = false;
    cut(&group, &[0]);
    let dir = tempfile::tempdir().unwrap();
    let wire = Wire::to(&group);
    let restored = run(&restore(&wire, dir.path()), &["h4"], 1).unwrap();
    assert_eq!(restored.from.name, "h3");
    assert!(matches!(run(&restore(&wire, dir.path()), &["h3"], 2), Err(RestoreError::Occupied { .. })));
    let mut group = serve(group, dir.path());
    for name in (0..80).map(|i| format!("d{i}")).chain(["tail".into()]) {
        group.lookup(NEW, &name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // A repetition of what was under way finds its effect.
    let tail = group.ask(NEW, &request).unwrap().attr.unwrap().ino;
    // Numbers that lost entries may have given away are passed over.
    assert!(group.mkdir(NEW, "after").unwrap().attr.unwrap().ino > tail + (1 << 19));
    group.ticks(50);
    for at in [3, 4] {
        let Running::Voter(peer) = &group.hosts[at].running else { panic!("a voter") };
        assert!(matches!(peer.stopped(), Some(PeerError::Replaced { .. })), "{:?}", peer.stopped());
    }
}

/// P1, P11: what lost entries did to fragments, and named, is not taken for what the restored state says. No chunk answers a dedup query
/// before the inventories of its disks, and no group, disk or class gets a number that nodes and mounts may know.
#[test]
fn p1_what_lost_entries_may_have_done_is_looked_for() {
    let group = five();
    let before = {
        let group = group.borrow();
        let Running::Manager(manager) = &group.hosts[0].running else { panic!("a manager") };
        *manager.core().unwrap().meta()
    };
    group.borrow_mut().mkdir(0, "a").unwrap();
    let disk = DiskInfo { uuid: vec![1; 16], capacity_bytes: 1 << 40, free_bytes: 1 << 40, ..DiskInfo::default() };
    let (name, host, address) = ("n".to_string(), "h".to_string(), "127.0.0.1:1".to_string());
    let node = Some(NodeInfo { name, host, address, ..NodeInfo::default() });
    let request =
        RegisterNode { op_id: 998, node, disks: vec![disk], receipt_key: vec![1; 32], ..RegisterNode::default() };
    group.borrow_mut().ask_as(0, Role::Node, &request).unwrap();
    let chunks = vec![ChunkName { hash: vec![1; 32].into(), len_bytes: 100, region: 0 }];
    let redundancy = "none".into();
    let open = OpenWrite { op_id: 999, parent: 1, name: "f".into(), chunks, redundancy, ..OpenWrite::default() };
    group.borrow_mut().ask(0, &open).unwrap();
    cut(&group, &[0, 1, 2]);
    let dir = tempfile::tempdir().unwrap();
    run(&restore(&Wire::to(&group), dir.path()), &["h3", "h4"], 1).unwrap();
    let group = serve(group, dir.path());
    let core = group.manager(NEW).core().unwrap();
    let after = core.meta();
    let jumped = |from: u64, to: u64| to >= from + (1 << 19);
    assert!(jumped(before.next_pg, after.next_pg) && jumped(before.next_node, after.next_node), "{after:?}");
    assert!(jumped(before.next_disk, after.next_disk) && jumped(before.next_class, after.next_class), "{after:?}");
    assert!(jumped(before.map_version, after.map_version) && after.leases_granted == 1, "{after:?}");
    let sql = "SELECT min(m.since_epoch = p.epoch) FROM pg_members m JOIN pgs p ON p.pg_id = m.pg_id";
    assert_eq!(core.db().conn().query_row(sql, [], |row| row.get(0)), Ok(Some(true)), "no receipt of before counts");
    let node_map = core.node_map().unwrap();
    assert!(
        !node_map.disks.is_empty()
            && node_map.disks.values().all(|disk| disk.inventory_wanted > 0 && disk.unlisted == 1)
    );
}

/// P1: lost entries may have staged parts of a file, which the writer does not send again. Its commit must not make a version without
/// them.
#[test]
fn p1_a_writer_of_before_the_restore_writes_again() {
    let group = five();
    let open = |op_id| OpenWrite { op_id, parent: 1, name: "f".into(), ..OpenWrite::default() };
    let session_id = group.borrow_mut().ask(0, &open(901)).unwrap().session_id;
    let commit = |op_id, session_id, mode: CommitMode, extent| {
        let (mode, extents) = (mode as i32, vec![extent]);
        Commit { op_id, session_id, mode, size_bytes: 100, extents, ..Commit::default() }
    };
    group.borrow_mut().ask(0, &commit(902, session_id, CommitMode::Replace, Extent::hole(0, 100))).unwrap();
    let session_id = group.borrow_mut().ask(0, &open(903)).unwrap().session_id;
    group.borrow_mut().ticks(10);
    cut(&group, &[3, 4]);
    let part = Commit { partial: true, ..commit(904, session_id, CommitMode::Patch, Extent::hole(0, 10)) };
    group.borrow_mut().ask(0, &part).unwrap();
    cut(&group, &[0, 1, 2]);
    [3, 4].into_iter().for_each(|at: usize| group.borrow_mut().hosts[at].is_cut = false);
    let dir = tempfile::tempdir().unwrap();
    run(&restore(&Wire::to(&group), dir.path()), &["h3", "h4"], 1).unwrap();
    let mut group = serve(group, dir.path());
    let rest = commit(905, session_id, CommitMode::Patch, Extent::hole(50, 10));
    assert_eq!(group.ask(NEW, &rest).unwrap_err().code(), Code::SessionExpired);
    let session_id = group.ask(NEW, &open(906)).unwrap().session_id;
    group.ask(NEW, &commit(907, session_id, CommitMode::Replace, Extent::hole(0, 100))).unwrap();
}

/// P7, P11: the old group's majority was only cut off. When it comes back it stops for ever.
#[test]
fn p7_a_majority_that_comes_back_stops() {
    let group = five();
    group.borrow_mut().mkdir(0, "a").unwrap();
    cut(&group, &[0, 1, 2]);
    let dir = tempfile::tempdir().unwrap();
    run(&restore(&Wire::to(&group), dir.path()), &["h3", "h4"], 1).unwrap();
    let mut group = serve(group, dir.path());
    group.mkdir(NEW, "b").unwrap();
    group.hosts.iter_mut().for_each(|host| host.is_cut = false);
    group.ticks(100);
    assert!(group.manager(0).failed().is_some() && group.manager(0).core().is_none());
    for at in 1..NEW {
        let Running::Voter(peer) = &group.hosts[at].running else { panic!("a voter") };
        assert!(matches!(peer.stopped(), Some(PeerError::Replaced { .. })), "host {at}: {:?}", peer.stopped());
    }
    group.lookup(NEW, "b").unwrap();
    // The manager's fence outlives it.
    group.kill(0);
    group.restart(0);
    group.ticks(100);
    assert!(group.manager(0).core().is_none());
    assert!(group.manager(0).peer().fence().is_some());
}

/// P9: a restore that ends anywhere is run again in the same directory, and until then the directory is not served.
#[test]
fn p9_an_interrupted_restore_is_run_again() {
    let group = five();
    for i in 0..30 {
        group.borrow_mut().mkdir(0, &format!("d{i}")).unwrap();
    }
    cut(&group, &[0, 1, 2]);
    let dir = tempfile::tempdir().unwrap();
    let mut interrupted = 0;
    for calls in 0.. {
        let wire = Wire { group: &group, left: Cell::new(calls) };
        let result = run(&restore(&wire, dir.path()), &["h3", "h4"], 100 + calls as u64);
        if result.is_ok() {
            break;
        }
        if dir.path().join("restoring").exists() {
            interrupted += 1;
            let lock = Db::lock(dir.path()).unwrap();
            let home = DbHome::in_dir(dir.path(), lock.clone());
            let peer = PeerConfig::new(member(NEW, MANAGER), 3);
            let setup = Setup { home, disk: disk_of(dir.path(), &lock).unwrap(), config: config(), peer };
            let refused = resume(dir.path(), setup).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("interrupted") && refused.contains("--restore"), "{refused}");
        }
    }
    assert!(interrupted >= 3, "{interrupted} interruptions");
    let mut group = serve(group, dir.path());
    (0..30).for_each(|i| _ = group.lookup(NEW, &format!("d{i}")).unwrap());
}

/// P14: what is refused, and what `force` allows.
#[test]
fn p14_restores_that_would_lose_something_are_refused() {
    let group = five();
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let wire = Wire::to(&group);
    cut(&group, &[3]);
    let refused = run(&restore(&wire, first.path()), &["h1"], 1).unwrap_err();
    assert!(matches!(refused, RestoreError::Majority { up: 4, voters: 5, .. }), "{refused}");
    assert!(refused.to_string().contains("--join"), "{refused}");
    for i in 0..10 {
        group.borrow_mut().mkdir(0, &format!("d{i}")).unwrap();
    }
    group.borrow_mut().hosts[3].is_cut = false;
    cut(&group, &[0, 1, 2]);
    let refused = run(&restore(&wire, first.path()), &["h0", "h1"], 1).unwrap_err();
    assert!(matches!(refused, RestoreError::NoPeer { .. }), "{refused}");
    let older = Restore { state_of: Some("h3".into()), ..restore(&wire, first.path()) };
    let refused = run(&older, &["h3"], 1).unwrap_err();
    assert!(matches!(refused, RestoreError::Older { .. }), "{refused}");
    assert!(refused.to_string().contains("h4") && refused.to_string().contains("--force"), "{refused}");
    let nobody = Restore { state_of: Some("h9".into()), ..restore(&wire, first.path()) };
    assert!(matches!(run(&nobody, &["h3"], 1), Err(RestoreError::NoSuchPeer { .. })));
    // The peers are fenced for the first directory.
    let refused = run(&restore(&wire, second.path()), &["h3"], 2).unwrap_err();
    assert!(matches!(refused, RestoreError::Fenced { .. }), "{refused}");
    let forced = Restore { force: true, state_of: Some("h3".into()), ..restore(&wire, second.path()) };
    assert_eq!(run(&forced, &["h3"], 2).unwrap().from.name, "h3");
    let mut group = serve(group, second.path());
    assert!(group.lookup(NEW, "d9").is_err(), "the older state was taken");
}

/// P14: a newest state that cannot be read is named, and an older one is taken only by force.
#[test]
fn p14_a_damaged_newest_state_is_not_passed_over() {
    let group = five();
    cut(&group, &[3]);
    for i in 0..10 {
        group.borrow_mut().mkdir(0, &format!("d{i}")).unwrap();
    }
    group.borrow_mut().hosts[3].is_cut = false;
    cut(&group, &[0, 1, 2]);
    /// Damages the entries of host 4.
    struct Damaged<'a>(Wire<'a>);
    impl Ask for Damaged<'_> {
        fn ask<R: Request>(&self, address: &str, request: &R) -> Result<(R::Reply, Bytes), Error> {
            let (reply, payload) = self.0.ask(address, request)?;
            match R::KIND == Kind::GetEntries && address == "h4" {
                true => Ok((reply, payload.slice(1..))),
                false => Ok((reply, payload)),
            }
        }
    }
    let (dir, wire) = (tempfile::tempdir().unwrap(), Damaged(Wire::to(&group)));
    let plain = Wire::to(&group);
    let Restore { dir: at, member, .. } = restore(&plain, dir.path());
    let mut restore = Restore { ask: &wire, dir: at, member, state_of: None, force: false };
    let survey = || Survey::make(&wire, &["h3".to_string()]).unwrap();
    let refused = restore.run(Db::lock(dir.path()).unwrap(), survey(), 1).unwrap_err();
    assert!(
        matches!(&refused, RestoreError::Older { taken, newest, .. } if taken.contains("h3") && newest.contains("h4")),
        "{refused}"
    );
    restore.force = true;
    assert_eq!(restore.run(Db::lock(dir.path()).unwrap(), survey(), 1).unwrap().from.name, "h3");
}
