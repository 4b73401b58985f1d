//! A disk that gets full while a manager runs, and has room again (P12, P14).

use super::*;
use tessera_disk::OpenMode;
use tessera_wire::meta::{FragmentRef, GetStatus, Heartbeat, HoldLocks, RegisterNode, Unlink};
use tessera_wire::{DiskInfo, NodeInfo};

/// Room below which growth is refused in these tests. With a quarter of it nothing is proposed any more.
const MIN_BYTES: u64 = 64 << 10;
const PLENTY: u64 = 1 << 40;

impl Group {
    fn on_small_disks(kinds: &[PeerKind]) -> Group {
        let group = Group::with(kinds, Config { min_free_bytes: MIN_BYTES, ..config() });
        for host in &group.hosts {
            // The share of `min_free_bytes` that counts depends on the size of the disk.
            host.disk.open("ballast", OpenMode::Create).unwrap().truncate(32 * MIN_BYTES).unwrap();
        }
        group
    }

    /// Leaves so many bytes free on a host's disk.
    fn leave_free(&mut self, at: usize, bytes: u64) {
        let disk = &self.hosts[at].disk;
        disk.set_capacity(u64::MAX);
        let space = disk.space().unwrap();
        disk.set_capacity(space.capacity_bytes - space.free_bytes + bytes);
        self.ticks(2);
    }

    fn remove(&mut self, at: usize, name: &str) -> Result<Entry, Error> {
        self.next += 1;
        self.ask(at, &Unlink { op_id: self.next, parent: 1, name: name.into(), directory: true })
    }

    fn term(&self, at: usize) -> u64 {
        self.manager(at).peer().standing().term
    }

    fn assert_alike(&mut self, managers: &[usize]) {
        self.ticks(50);
        managers.iter().for_each(|at| {
            assert!(self.manager(*at).failed().is_none());
            assert_eq!(self.dump(*at), self.dump(managers[0]));
        });
    }
}

#[test]
fn p12_a_manager_whose_disk_is_nearly_full_serves_what_needs_no_room() {
    let mut group = Group::on_small_disks(&[MANAGER, VOTER, VOTER]);
    let at = group.settle_leader();
    group.ticks(60);
    group.mkdir(at, "a").unwrap();
    group.mkdir(at, "b").unwrap();
    let term = group.term(at);
    group.leave_free(at, MIN_BYTES / 2);
    let said = |group: &mut Group| group.ask(at, &GetStatus {}).unwrap().no_room;
    assert!(said(&mut group).contains("free space"), "status tells it, too");
    let error = group.mkdir(at, "c").unwrap_err();
    assert!(error.code() == Code::NoSpace && error.message.contains("free space"), "{error}");
    assert!(error.message.contains(&MIN_BYTES.to_string()), "{error}");
    group.lookup(at, "a").unwrap();
    group.remove(at, "a").unwrap();
    group.leave_free(at, 100);
    for _ in 0..5 {
        assert_eq!(group.remove(at, "b").unwrap_err().code(), Code::NoSpace);
        group.lookup(at, "b").unwrap();
        group.ticks(60);
    }
    assert_eq!(group.term(at), term, "it went on leading");
    group.leave_free(at, PLENTY);
    group.mkdir(at, "c").unwrap();
    group.remove(at, "b").unwrap();
}

/// What the log keeps for peers that lag is given back first.
#[test]
fn a_log_is_cut_to_its_snapshot_while_there_is_little_room() {
    let mut group = Group::on_small_disks(&[MANAGER, VOTER, VOTER]);
    let at = group.settle_leader();
    for i in 0..400 {
        group.mkdir(at, &format!("d{i}")).unwrap();
        group.ticks(2);
    }
    let held = |group: &Group| group.manager(at).peer().files().held().unwrap().index;
    let base = |group: &Group| group.manager(at).peer().log().base().index;
    assert!(base(&group) < held(&group), "{} entries are in the snapshot", held(&group));
    group.leave_free(at, MIN_BYTES / 2);
    group.ticks(10);
    assert_eq!(base(&group), held(&group));
    group.leave_free(at, PLENTY);
    group.mkdir(at, "more").unwrap();
}

/// The request of a client that begins to hold locks.
fn begins_to_lock(group: &Group, at: usize) -> HoldLocks {
    let next_table = group.manager(at).core().map_or(0, |core| core.soft.locks.next_table());
    HoldLocks { next_table, ..HoldLocks::default() }
}

/// What was queued when the disk got full is answered, too.
#[test]
fn p14_no_request_waits_for_room() {
    let mut group = Group::on_small_disks(&[MANAGER]);
    let at = group.settle_leader();
    group.hosts[at].disk.set_capacity(33 * MIN_BYTES);
    let space = group.hosts[at].disk.space().unwrap();
    group.hosts[at].disk.set_capacity(space.capacity_bytes - space.free_bytes + 100);
    assert_eq!(group.mkdir(at, "a").unwrap_err().code(), Code::NoSpace);
}

/// Reports of which something is to be logged are refused, too, and come again. What is to be logged waits once, however often they do.
#[test]
fn p14_no_report_waits_for_room() {
    let mut group = Group::on_small_disks(&[MANAGER]);
    let at = group.settle_leader();
    let disk = DiskInfo { uuid: vec![1; 16], capacity_bytes: PLENTY, free_bytes: PLENTY, ..DiskInfo::default() };
    let node = NodeInfo { name: "n1".into(), host: "h1".into(), address: "127.0.0.1:1".into(), ..NodeInfo::default() };
    let register =
        RegisterNode { op_id: 1, node: Some(node), disks: vec![disk], receipt_key: vec![1; 32], ..Default::default() };
    let known = group.ask_as(at, Role::Node, &register).unwrap();
    let (node_id, incarnation) = (known.node_id, known.incarnation);
    let bad = vec![FragmentRef { chunk_id: 1, disk_id: known.disk_ids[0], ..FragmentRef::default() }];
    let idle = Heartbeat { node_id, incarnation, ..Heartbeat::default() };
    let beat = Heartbeat { bad, ..idle.clone() };
    let waiting = |group: &Group| {
        let gauges = group.manager(at).core().unwrap().metrics().gauges;
        gauges.iter().find(|(name, _)| *name == "requests_waiting").unwrap().1
    };
    // The disk gets full while they wait.
    group.hosts[at].disk.set_capacity(33 * MIN_BYTES);
    let space = group.hosts[at].disk.space().unwrap();
    group.hosts[at].disk.set_capacity(space.capacity_bytes - space.free_bytes + 100);
    for _ in 0..20 {
        assert_eq!(group.ask_as(at, Role::Node, &beat).unwrap_err().code(), Code::Unavailable);
        assert_eq!(group.ask(at, &begins_to_lock(&group, at)).unwrap_err().code(), Code::Unavailable);
        group.ask_as(at, Role::Node, &idle).unwrap();
        group.ticks(5);
        assert!(waiting(&group) <= 3, "{} requests wait", waiting(&group));
    }
    group.leave_free(at, PLENTY);
    group.ask_as(at, Role::Node, &beat).unwrap();
    group.ask(at, &begins_to_lock(&group, at)).unwrap();
    assert_eq!(waiting(&group), 0);
}

#[test]
fn p12_a_leader_whose_disk_is_nearly_full_leaves_the_lead_to_a_manager_with_room() {
    for bytes in [MIN_BYTES / 2, 100] {
        let mut group = Group::on_small_disks(&[MANAGER, MANAGER, VOTER]);
        let first = group.settle_leader();
        group.ticks(60);
        group.leave_free(first, bytes);
        group.ticks(150);
        let second = group.settle_leader();
        assert_ne!(second, first, "{bytes} bytes are left");
        group.mkdir(second, "a").unwrap();
        // Nobody has room: the one that leads serves reads.
        group.leave_free(second, bytes);
        for _ in 0..10 {
            group.ticks(60);
            assert_eq!(group.leader(), Some(second));
            group.lookup(second, "a").unwrap();
            assert_eq!(group.mkdir(second, "b").unwrap_err().code(), Code::NoSpace);
        }
        group.leave_free(first, PLENTY);
        group.ticks(150);
        assert_eq!(group.settle_leader(), first);
        group.mkdir(first, "b").unwrap();
        group.leave_free(second, PLENTY);
        group.assert_alike(&[first, second]);
    }
}

/// P7, P8: what the group has committed and no disk of a manager could take is applied once there is room, without a restart.
#[test]
fn p8_a_manager_alone_applies_what_found_no_room_and_serves_again() {
    for kinds in [&[MANAGER][..], &[MANAGER, VOTER, VOTER]] {
        let mut group = Group::on_small_disks(kinds);
        let at = group.settle_leader();
        group.ticks(60);
        group.manager(at).db().unwrap().fail_next_commit(FailPoint::CommitFull);
        let request = MakeDir { op_id: 5, parent: 1, name: b"d".to_vec(), ..MakeDir::default() };
        let error = group.ask(at, &request).unwrap_err();
        assert!(error.is_retryable(), "{error}");
        let error = group.lookup(at, "d").unwrap_err();
        assert!(error.code() == Code::NoSpace && error.message.contains("free space"), "{error}");
        let error = group.ask(at, &begins_to_lock(&group, at)).unwrap_err();
        assert!(error.is_retryable(), "a client would take it for the loss of its locks: {error}");
        group.manager(at).db().unwrap().fail_next_commit(FailPoint::CommitFull);
        group.ticks(30);
        assert_eq!(group.settle_leader(), at);
        let entry = group.ask(at, &request).unwrap();
        assert_eq!(group.lookup(at, "d").unwrap().attr, entry.attr);
        assert!(group.manager(at).failed().is_none());
    }
}

#[test]
fn p8_a_standby_applies_what_found_no_room() {
    let mut group = Group::on_small_disks(&[MANAGER, MANAGER, VOTER]);
    let leader = group.settle_leader();
    group.ticks(60);
    let standby = 1 - leader;
    for name in ["a", "b", "c"] {
        group.manager(standby).db().unwrap().fail_next_commit(FailPoint::CommitFull);
        group.mkdir(leader, name).unwrap();
        group.ticks(1);
        assert_ne!(group.dump(leader), group.dump(standby));
    }
    group.assert_alike(&[leader, standby]);
    assert_eq!(group.leader(), Some(leader));
}

/// P12: a node's voter whose disk stays full makes room for one that can take entries; the leader's status names it until then.
#[test]
fn p12_a_voter_whose_disk_is_full_is_replaced_where_there_is_another_host() {
    for spare in [false, true] {
        let mut group =
            Group::on_small_disks(if spare { &[MANAGER, VOTER, VOTER, VOTER] } else { &[MANAGER, VOTER, VOTER] });
        let at = group.settle_leader();
        group.ticks(100);
        let voters = |group: &Group| group.manager(at).peer().membership().voters.clone();
        let full = *voters(&group).iter().find(|id| **id != at as u64 + 1).unwrap();
        group.leave_free(full as usize - 1, 10);
        let mut is_named = false;
        for i in 0..60 {
            group.mkdir(at, &format!("d{i}")).unwrap();
            group.ticks(10);
            assert_eq!(voters(&group).len(), 3);
            let peers = &group.manager(at).core().unwrap().soft.peers;
            is_named |= peers.iter().any(|peer| peer.is_full && peer.member.as_ref().unwrap().id == full);
        }
        assert!(is_named);
        assert_eq!(voters(&group).contains(&full), !spare);
    }
}

/// P12: a spare whose disk is full, too, says so, and another one takes the place of the full voter.
#[test]
fn p12_a_spare_without_room_keeps_no_other_from_taking_a_place() {
    let mut group = Group::on_small_disks(&[MANAGER, VOTER, VOTER, VOTER, VOTER, VOTER, VOTER]);
    let at = group.settle_leader();
    group.ticks(100);
    let voters = |group: &Group| group.manager(at).peer().membership().voters.clone();
    let full = *voters(&group).iter().find(|id| **id != at as u64 + 1).unwrap();
    let spares: Vec<u64> = (1..=7).filter(|id| !voters(&group).contains(id)).collect();
    assert_eq!(spares.len(), 2);
    group.leave_free(full as usize - 1, 10);
    // Entries have room here, a snapshot has none.
    group.leave_free(spares[0] as usize - 1, MIN_BYTES);
    for i in 0..100 {
        group.mkdir(at, &format!("d{i}")).unwrap();
        group.ticks(10);
        assert_eq!(voters(&group).len(), 5);
    }
    assert!(!voters(&group).contains(&full) && voters(&group).contains(&spares[1]), "{:?}", voters(&group));
    assert!(group.manager(at).peer().membership().learners.is_empty());
}
