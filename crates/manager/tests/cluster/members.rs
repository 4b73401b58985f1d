//! Nodes and disks are lost, return, drain and join; these tests check what moves.

use super::*;
use tessera_stripe::ClassLayout;
use tessera_testkit::Chunk;

/// P6, P12: two of eight nodes are lost for good. Every chunk is rebuilt evenly on the rest, and redundancy never falls.
#[test]
fn two_lost_nodes_are_rebuilt_on_the_rest() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 40);
    cluster.until(20, "settled", |f| f.is_whole());
    cluster.kill(1);
    cluster.kill(5);
    cluster.until(40, "both out", |f| f.status().nodes.iter().filter(|n| n.health() == Health::Out).count() == 2);
    let during = cluster.status();
    assert!(during.chunks_reduced > 0 && during.chunks_lost == 0, "{during:?}");
    assert!(during.fragments_to_repair > 0);
    // Writes continue meanwhile.
    write_files(&mut cluster, 100, 5);
    cluster.until(200, "repaired", |f| f.is_whole());
    let after = cluster.status();
    assert_eq!((after.chunks_full, after.chunks_reduced, after.chunks_lost), (after.chunks, 0, 0));
    assert_eq!((after.fragments_to_repair, after.members_backfilling), (0, 0));
    assert!(after.fragments_repaired > 0);
    for node in [1, 5] {
        assert_eq!(disk_members(&cluster, cluster.nodes[node].disks[0]), 0, "a lost disk holds no member any more");
    }
    assert_eq!(recount(cluster.db().conn()).unwrap(), Vec::<String>::new());
    cluster.check_replay();
}

/// P6: rebuild work spreads over all remaining nodes.
#[test]
fn rebuilds_spread_over_all_survivors() {
    let mut cluster = Cluster::new(12, 1);
    write_files(&mut cluster, 0, 100);
    cluster.kill(3);
    let before: Vec<usize> = cluster.nodes.iter().map(|n| cluster.disks[&n.disks[0]].held.len()).collect();
    cluster.until(300, "repaired", |f| f.status().nodes[3].health() == Health::Out && f.is_whole());
    let got: Vec<usize> = cluster
        .nodes
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != 3)
        .map(|(i, n)| cluster.disks[&n.disks[0]].held.len() - before[i])
        .collect();
    let mean = got.iter().sum::<usize>() as f64 / got.len() as f64;
    assert!(mean >= 3.0);
    assert!(got.iter().all(|g| (*g as f64) < 2.5 * mean + 4.0), "{got:?}");
    assert!(got.iter().filter(|g| **g > 0).count() >= 8, "{got:?}");
}

/// A short absence moves nothing.
#[test]
fn a_node_that_is_down_for_a_moment_moves_nothing() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 10);
    cluster.kill(2);
    cluster.until(10, "down", |f| f.status().nodes[2].health() == Health::Down);
    assert!(cluster.status().chunks_reduced > 0);
    let epochs = |f: &Cluster| -> Vec<u64> { (1..f.meta().next_pg).map(|p| f.epoch(p)).collect() };
    let before = epochs(&cluster);
    cluster.restart(2);
    cluster.run(1_000);
    let status = cluster.status();
    assert_eq!(status.nodes[2].health(), Health::Up);
    assert_eq!(status.chunks_full, status.chunks);
    assert_eq!(epochs(&cluster)[..before.len()], before[..]);
}

/// P3, P11: a node that was out must register. Its disk is listed before it serves again, and loses the fragments that
/// were deleted or rebuilt meanwhile.
#[test]
pub(super) fn a_node_returns_after_it_was_given_up() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 20);
    let disk = cluster.nodes[4].disks[0];
    let held_before = cluster.disks[&disk].held.clone();
    assert!(!held_before.is_empty());
    cluster.kill(4);
    cluster.until(200, "repaired without it", |f| f.status().nodes[4].health() == Health::Out && f.is_whole());
    cluster.unlink("f1");
    cluster.run(2_000);
    // Its heartbeats do not count: the reply only tells it to register.
    cluster.nodes[4].down = false;
    let reply = cluster.ask(&cluster.heartbeat(4)).unwrap();
    assert!(reply.must_register && reply.lease_ms == 0 && reply.tasks.is_empty() && reply.deletes.is_empty());
    let late = Inventory {
        node_id: cluster.nodes[4].node_id,
        incarnation: 1,
        disk_id: disk,
        last: true,
        ..Inventory::default()
    };
    assert_eq!(cluster.ask(&late).unwrap_err().code(), Code::NotRegistered);
    let incarnation = cluster.nodes[4].incarnation;
    cluster.restart(4);
    assert!(cluster.nodes[4].incarnation > incarnation);
    let row = rows::disk(cluster.db(), disk).unwrap().unwrap();
    assert!(row.own_health == Health::Down && row.inventory_wanted > 0, "listed before anything else");
    cluster.until(50, "listed and clean", |f| {
        let d = f.status().disks.iter().find(|d| d.disk_id == disk).unwrap().health();
        d == Health::Up && f.disks[&disk].held.is_empty()
    });
    assert!(cluster.is_whole());
    cluster.check_replay();
}

/// P12: more than m nodes are out, so nothing can be rebuilt. When they return with their fragments, all chunks are full.
#[test]
fn chunks_beyond_repair_come_back_with_their_disks() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 1, 2);
    for node in 0..4 {
        cluster.kill(node);
    }
    cluster.until(60, "out", |f| f.status().nodes.iter().filter(|n| n.health() == Health::Out).count() == 4);
    assert!(cluster.status().chunks_lost > 0);
    cluster.run(10_000);
    assert!(cluster.status().chunks_lost > 0, "nothing was invented");
    for node in 0..4 {
        cluster.restart(node);
    }
    cluster.until(300, "whole again", |f| f.is_whole());
    let status = cluster.status();
    assert_eq!((status.chunks_full, status.chunks_lost), (status.chunks, 0));
    cluster.check_replay();
}

/// P12: while the copy lives, nothing is lost and all slices and parities are rebuilt; without the copy, k of them suffice.
#[test]
fn a_copy_brings_all_pieces_back() {
    let mut cluster = Cluster::new(10, 1);
    for f in 0..4 {
        cluster.write(&format!("f{f}"), "copy+ec:4+2", &[f * 2, f * 2 + 1]);
    }
    // The last chunk's copy and one other fragment remain.
    let pg = cluster.committed().last().unwrap().pg_id;
    let members = cluster.members_of(pg);
    let index_of = |cluster: &Cluster, disk: u64| cluster.nodes.iter().position(|n| n.disks.contains(&disk)).unwrap();
    let gone: Vec<usize> = members[2..].iter().map(|m| index_of(&cluster, m.disk_id)).collect();
    gone.iter().for_each(|node| cluster.kill(*node));
    cluster.until(60, "out", |f| f.status().nodes.iter().filter(|n| n.health() == Health::Out).count() == 4);
    let is_lost = |chunk: &Chunk| {
        let members = cluster.members_of(chunk.pg_id);
        let there = members.iter().filter(|m| !gone.contains(&index_of(&cluster, m.disk_id))).map(|m| m.position);
        let there: Vec<u32> = there.collect();
        !there.contains(&0) && there.len() < 4
    };
    let lost = cluster.committed().iter().filter(|chunk| is_lost(chunk)).count() as u64;
    let status = cluster.status();
    assert_eq!((status.chunks_lost, status.chunks), (lost, 8));
    cluster.until(300, "what can be rebuilt is", |f| f.status().chunks_full + lost == 8);
    gone.iter().for_each(|node| cluster.restart(*node));
    cluster.until(300, "whole again", |f| f.is_whole());
    assert_eq!(cluster.status().chunks_full, 8);
    cluster.check_replay();
}

/// A failed disk is replaced although its node lives.
#[test]
fn a_failed_disk_is_rebuilt_elsewhere() {
    let mut cluster = Cluster::new(8, 2);
    write_files(&mut cluster, 0, 20);
    let disk = cluster.nodes[0].disks[1];
    cluster.disks.get_mut(&disk).unwrap().failed = true;
    cluster.damaged();
    cluster.until(200, "rebuilt", |f| disk_members(f, disk) == 0 && f.is_whole());
    let status = cluster.status();
    assert_eq!(status.nodes[0].health(), Health::Up);
    assert_eq!(status.disks.iter().find(|d| d.disk_id == disk).unwrap().health(), Health::Out);
}

/// P6: a drain moves every fragment, never lowers redundancy ([`Cluster::check`]), and can be cancelled.
#[test]
fn a_drained_node_is_empty_and_may_be_switched_off() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 30);
    let (node_id, disk) = (cluster.nodes[6].node_id, cluster.nodes[6].disks[0]);
    let op_id = cluster.op();
    cluster.ask(&Drain { op_id, node_id, ..Drain::default() }).unwrap();
    assert_eq!(cluster.status().nodes[6].health(), Health::Draining);
    write_files(&mut cluster, 100, 5);
    cluster.until(200, "drained", |f| f.status().nodes[6].health() == Health::Drained);
    assert_eq!(disk_members(&cluster, disk), 0);
    assert!(cluster.is_whole());
    cluster.kill(6);
    cluster.run(20_000);
    assert!(cluster.is_whole());
    // The node returns and the drain is cancelled: it serves again once its remaining fragments have been removed.
    cluster.restart(6);
    let op_id = cluster.op();
    cluster.ask(&Drain { op_id, node_id, undo: true, ..Drain::default() }).unwrap();
    cluster.until(60, "clean", |f| f.disks[&disk].held.is_empty());
    assert_eq!(cluster.status().nodes[6].health(), Health::Up);
    cluster.check_replay();
}

/// A drain that is cancelled half way leaves the members in place.
#[test]
fn a_drain_is_taken_back() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 30);
    let (node_id, disk) = (cluster.nodes[6].node_id, cluster.nodes[6].disks[0]);
    let members = disk_members(&cluster, disk);
    for node in cluster.nodes.iter_mut() {
        node.lazy = true;
    }
    let op_id = cluster.op();
    cluster.ask(&Drain { op_id, node_id, ..Drain::default() }).unwrap();
    cluster.run(2_000);
    let moving = rows::members_backfilling(cluster.db()).unwrap().len();
    assert!(moving > 0);
    let op_id = cluster.op();
    cluster.ask(&Drain { op_id, node_id, undo: true, ..Drain::default() }).unwrap();
    assert_eq!(rows::members_backfilling(cluster.db()).unwrap().len(), 0);
    for node in cluster.nodes.iter_mut() {
        node.lazy = false;
    }
    let kept = disk_members(&cluster, disk);
    assert!(kept > members / 2 && kept <= members, "{kept} of {members}: only groups without chunks had moved");
    cluster.until(60, "settled", |f| f.is_whole());
}

/// P14: a drain that cannot end is refused, and the error names the way out.
#[test]
fn a_drain_without_enough_other_hosts_is_refused() {
    let mut cluster = Cluster::new(6, 1);
    write_files(&mut cluster, 1, 1);
    let (op_id, node_id) = (cluster.op(), cluster.nodes[0].node_id);
    let error = cluster.ask(&Drain { op_id, node_id, ..Drain::default() }).unwrap_err();
    assert_eq!(error.code(), Code::TooFewHosts);
    assert!(error.message.contains("add nodes"), "{error}");
    let op_id = cluster.op();
    assert_eq!(cluster.ask(&Drain { op_id, node_id: 99, ..Drain::default() }).unwrap_err().code(), Code::NotFound);
}

/// Nodes fail while a drain is under way: `node drain --follow` may still follow it.
#[test]
fn a_drain_that_has_begun_is_not_refused() {
    let mut cluster = Cluster::new(7, 1);
    write_files(&mut cluster, 1, 5);
    let node_id = cluster.nodes[0].node_id;
    cluster.nodes.iter_mut().for_each(|node| node.lazy = true);
    for other in [None, Some(1)] {
        if let Some(other) = other {
            cluster.kill(other);
            cluster.run(20_000);
        }
        let op_id = cluster.op();
        cluster.ask(&Drain { op_id, node_id, ..Drain::default() }).unwrap();
        assert_eq!(cluster.status().nodes[0].health(), Health::Draining);
    }
}

/// P6: a node that joins takes over members from other nodes until the load is even.
#[test]
fn a_joining_node_takes_its_share() {
    let mut cluster = Cluster::new(7, 1);
    write_files(&mut cluster, 0, 60);
    let new = cluster.join(1);
    let disk = cluster.nodes[new].disks[0];
    cluster.until(400, "balanced", |f| f.disks[&disk].held.len() >= 20 && f.is_whole());
    cluster.run(60_000);
    cluster.until(20, "settled", |f| f.is_whole());
    let classes = cluster.classes();
    let room_bytes = |(id, fragment): &(u64, u32)| {
        let chunk = cluster.chunk(*id);
        chunk.map_or(0, |chunk| classes[&chunk.class_id].room_bytes(chunk.len_bytes, *fragment))
    };
    let bytes_on = |disk: u64| cluster.disks[&disk].held.keys().map(room_bytes).sum();
    let held: Vec<u64> = cluster.nodes.iter().map(|n| bytes_on(n.disks[0])).collect();
    let mean = held.iter().sum::<u64>() as f64 / held.len() as f64;
    assert!(held.iter().all(|h| (*h as f64) < 1.4 * mean && (*h as f64) > 0.6 * mean), "{held:?}, mean {mean}");
    // New chunks go to this node too.
    let before = cluster.disks[&disk].held.len();
    write_files(&mut cluster, 200, 20);
    assert!(cluster.disks[&disk].held.len() > before);
    cluster.check_replay();
}

/// P11: no node is declared out while its lease may run, even with the shortest delay and a repair job.
#[test]
fn no_node_is_given_up_while_its_lease_may_run() {
    let mut cluster = Cluster::with_config(8, 1, Config { down_after_ms: 700, out_after_ms: 2_501, ..config() });
    write_files(&mut cluster, 1, 2);
    cluster.kill(3);
    let silent_from = cluster.now_ns;
    for _ in 0..20 {
        cluster.ask(&Maintain { what: MaintenanceJob::Repair as i32, start: true }).unwrap();
        cluster.run(500);
        if cluster.status().nodes[3].health() == Health::Out {
            assert!(
                cluster.now_ns - silent_from > cluster.config().node_lease_ms as i64 * MS,
                "out before its lease had ended"
            );
            cluster.until(100, "repaired", |f| f.is_whole());
            assert!(!cluster.ask(&Maintain { what: MaintenanceJob::Repair as i32, start: false }).unwrap().running);
            return;
        }
    }
    panic!("never given up");
}

/// P6: a manager that was stopped for an hour does not count that hour as silence of the nodes.
#[test]
fn a_manager_that_slept_gives_no_node_up() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 1, 2);
    cluster.run(1_000);
    cluster.now_ns += 3_600_000 * MS;
    for _ in 0..3 {
        // Ticks come before the heartbeats that waited.
        cluster.tick();
        cluster.now_ns += 100 * MS;
    }
    assert!(cluster.status().nodes.iter().all(|n| n.health() == Health::Up));
    cluster.run(1_000);
    // Silence counts again from here.
    cluster.kill(2);
    cluster.until(20, "down", |f| f.status().nodes[2].health() == Health::Down);
}

/// P6: a node that returns with another disk says that the old one is gone. It is rebuilt on long before a silent disk would
/// be, and at once if an operator asks for repair.
#[test]
fn a_replaced_disk_is_rebuilt_on() {
    let patient = Config { out_after_ms: 600_000, disk_gone_after_ms: 20_000, ..config() };
    for asked in [false, true] {
        let mut cluster = Cluster::with_config(8, 1, patient.clone());
        write_files(&mut cluster, 0, 6);
        let old = cluster.nodes[3].disks[0];
        cluster.kill(3);
        cluster.run(1_000);
        cluster.nodes[3].down = false;
        cluster.register(3, &[uuid(3, 9)]).unwrap();
        cluster.damaged();
        assert_ne!(cluster.nodes[3].disks[0], old, "a new uuid is a new disk");
        cluster.run(10_000);
        assert!(!cluster.is_whole(), "a disk that is not mounted gets a moment");
        if asked {
            cluster.ask(&Maintain { what: MaintenanceJob::Repair as i32, start: true }).unwrap();
        }
        cluster.until(if asked { 12 } else { 40 }, "rebuilt", |c| c.is_whole());
        let health = |c: &mut Cluster| c.status().disks.iter().find(|d| d.disk_id == old).unwrap().health();
        assert_eq!(health(&mut cluster), Health::Out);
        cluster.check_replay();
    }
}
