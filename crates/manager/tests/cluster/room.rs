//! Nearly full disks: what repair and drains may use, and what they must leave alone.

use super::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

/// All disks report this many free bytes. The reserve of these disks is 1 GiB.
fn leave_free(cluster: &mut Cluster, bytes: u64) {
    cluster.disks.values_mut().for_each(|disk| disk.free_bytes = Some(bytes));
    cluster.run(5_000);
}

fn drain(cluster: &mut Cluster, node: usize) {
    let (op_id, node_id) = (cluster.op(), cluster.nodes[node].node_id);
    cluster.ask(&Drain { op_id, node_id, ..Drain::default() }).unwrap();
}

/// P6: disks that are too full for new chunks take members of lost and draining disks, down to half of the reserve.
#[test]
fn p6_repair_and_drains_use_the_first_half_of_the_reserve() {
    let mut cluster = Cluster::new(9, 1);
    write_files(&mut cluster, 0, 20);
    leave_free(&mut cluster, 600 * MIB);
    assert_eq!(cluster.open("new", "replica:3", &[7_000]).unwrap_err().code(), Code::NoSpace);
    cluster.kill(1);
    cluster.until(100, "rebuilt", |c| c.status().nodes[1].health() == Health::Out && c.is_whole());
    drain(&mut cluster, 5);
    cluster.until(100, "drained", |c| c.status().nodes[5].health() == Health::Drained && c.is_whole());
    for node in [1, 5] {
        assert_eq!(disk_members(&cluster, cluster.nodes[node].disks[0]), 0);
    }
    cluster.check_replay();
}

/// The second half of the reserve is for compaction.
#[test]
fn repair_leaves_half_of_the_reserve_alone() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 20);
    let lost = cluster.nodes[1].disks[0];
    leave_free(&mut cluster, 512 * MIB);
    let members = disk_members(&cluster, lost);
    cluster.kill(1);
    cluster.run(30_000);
    assert_eq!(disk_members(&cluster, lost), members);
    assert_eq!(cluster.status().members_waiting, [waiting(lost, WaitReason::NoRoom, members)]);
    leave_free(&mut cluster, 600 * MIB);
    cluster.until(100, "rebuilt", |c| c.is_whole());
    assert_eq!(cluster.status().members_waiting, []);
}

fn waiting(disk_id: u64, reason: WaitReason, members: usize) -> MembersWaiting {
    MembersWaiting { disk_id, reason: reason as i32, members: members as u64 }
}

/// P14: what cannot be repaired or drained is counted with the reason.
#[test]
fn p14_members_that_wait_for_another_disk_say_why() {
    let mut cluster = Cluster::new(6, 1);
    cluster.write("coded", "ec:4+2", &[1, 2, 3]);
    cluster.write("copies", "replica:2", &[4, 5, 6]);
    leave_free(&mut cluster, 0);
    let lost = cluster.nodes[3].disks[0];
    let drained = cluster.nodes[4].disks[0];
    let members = |c: &Cluster, disk: u64, width: usize| {
        let here = rows::members_on(c.db(), disk).unwrap().into_iter();
        here.filter(|m| c.members_of(m.pg_id).len() == width).count()
    };
    cluster.kill(3);
    cluster.until(60, "out", |c| c.status().nodes[3].health() == Health::Out);
    cluster.run(5_000);
    let expected = [
        waiting(lost, WaitReason::NoRoom, members(&cluster, lost, 2)),
        waiting(lost, WaitReason::NoHost, members(&cluster, lost, 6)),
    ];
    assert_eq!(cluster.status().members_waiting, expected);
    cluster.join(1);
    cluster.until(60, "rebuilt", |c| disk_members(c, lost) == 0 && c.is_whole());
    assert_eq!(cluster.status().members_waiting, []);
    cluster.join(1);
    leave_free(&mut cluster, 0);
    cluster.until(60, "settled", |c| c.is_whole());
    drain(&mut cluster, 4);
    cluster.run(10_000);
    let waits = cluster.status().members_waiting;
    assert_eq!(waits.iter().map(|it| it.members).sum::<u64>(), disk_members(&cluster, drained) as u64);
    assert!(!waits.is_empty() && waits.iter().all(|it| it.disk_id == drained), "{waits:?}");
}

/// A move that only evens out disks leaves the whole reserve for repair.
#[test]
fn balance_leaves_the_reserve_alone() {
    let mut cluster = Cluster::new(7, 1);
    write_files(&mut cluster, 0, 60);
    let new = cluster.join(1);
    let disk = cluster.nodes[new].disks[0];
    leave_free(&mut cluster, 1_000 * MIB);
    cluster.until(100, "settled", |c| c.is_whole());
    let members = disk_members(&cluster, disk);
    cluster.run(60_000);
    assert_eq!(disk_members(&cluster, disk), members);
    leave_free(&mut cluster, 1_100 * MIB);
    cluster.until(400, "balanced", |c| c.disks[&disk].held.len() >= 20 && c.is_whole());
}

/// Members that are on their way to a disk count there in every round of planning, for all widths: a node refuses what exceeds its room.
#[test]
fn no_more_is_planned_onto_a_disk_than_it_has_room_for() {
    const ROOM: u64 = 8 * MIB;
    let mut cluster = Cluster::new(8, 1);
    for file in 0..60 {
        let redundancy = if file % 2 == 0 { "replica:3" } else { "replica:2" };
        cluster.write(&format!("f{file}"), redundancy, &[file * 10, file * 10 + 1, file * 10 + 2, file * 10 + 3]);
    }
    leave_free(&mut cluster, 512 * MIB + ROOM);
    cluster.nodes.iter_mut().for_each(|node| node.lazy = true);
    drain(&mut cluster, 2);
    cluster.run(30_000);
    let mut planned: BTreeMap<u64, u64> = BTreeMap::new();
    for m in rows::members_backfilling(cluster.db()).unwrap() {
        let of_group = cluster.chunks().into_iter().filter(|chunk| chunk.pg_id == m.pg_id);
        *planned.entry(m.incoming).or_default() += of_group.map(|chunk| chunk.len_bytes).sum::<u64>();
    }
    assert!(!planned.is_empty(), "there is room for some");
    assert!(planned.values().all(|bytes| *bytes < ROOM), "{planned:?}");
    cluster.nodes.iter_mut().for_each(|node| node.lazy = false);
    leave_free(&mut cluster, 600 * MIB);
    cluster.until(200, "drained", |c| c.status().nodes[2].health() == Health::Drained);
}

/// A manager that has just begun to lead does not know how full the disks are. It plans no move before their nodes have reported.
#[test]
fn a_new_leader_plans_no_moves_onto_full_disks() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 6);
    leave_free(&mut cluster, 0);
    let lost = cluster.nodes[1].disks[0];
    cluster.kill(1);
    cluster.until(60, "out", |c| c.status().nodes[1].health() == Health::Out);
    cluster.restart_manager(config());
    (0..5).for_each(|_| cluster.tick());
    cluster.run(2_000);
    let members = disk_members(&cluster, lost);
    assert_eq!(rows::members_backfilling(cluster.db()).unwrap(), []);
    assert_eq!(cluster.status().members_waiting, [waiting(lost, WaitReason::NoRoom, members)]);
}

/// A class of whole copies and a coded class share the groups of one width. A member of a coded group holds half of its bytes,
/// also where one file of copies was.
#[test]
fn members_of_coded_chunks_need_no_more_room_than_they_hold() {
    for (copies, removed) in [(false, false), (true, false), (true, true)] {
        let mut cluster = Cluster::new(7, 1);
        for file in 0..40 {
            cluster.write(&format!("f{file}"), "ec:2+1", &[file * 10, file * 10 + 1, file * 10 + 2, file * 10 + 3]);
        }
        if copies {
            cluster.write("one", "replica:3", &[9_999]);
        }
        if removed {
            cluster.unlink("one");
            cluster.run(60_000);
        }
        let lost = cluster.nodes[1].disks[0];
        let members = rows::members_on(cluster.db(), lost).unwrap();
        let of_group =
            |pg_id| cluster.chunks().into_iter().filter(|c| c.pg_id == pg_id).map(|c| c.len_bytes).sum::<u64>();
        let largest = members.iter().map(|m| of_group(m.pg_id)).max().unwrap();
        cluster.kill(1);
        leave_free(&mut cluster, 512 * MIB + largest * 3 / 4);
        cluster.run(120_000);
        assert_eq!(cluster.status().members_waiting, [], "copies {copies}, removed {removed}");
        assert!(cluster.is_whole(), "copies {copies}, removed {removed}");
    }
}
