//! Garbage, inventories, registrations, groups, heartbeats.

use super::*;
use tessera_testkit::Stored;

/// P3, P5: deleted fragments leave every disk, even one that was down, and never come back.
#[test]
fn deleted_files_leave_no_fragment() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 12);
    cluster.kill(7);
    cluster.run(1_000);
    for f in 0..12 {
        cluster.unlink(&format!("f{f}"));
    }
    cluster.until(20, "collected", |f| f.status().garbage_chunks == 0);
    cluster.restart(7);
    cluster.until(60, "all gone", |f| f.disks.values().all(|d| d.held.is_empty()) && f.status().deletes_pending == 0);
    let status = cluster.status();
    assert_eq!((status.chunks, status.unique_bytes, status.stored_bytes), (0, 0, 0));
    assert_eq!(recount(cluster.db().conn()).unwrap(), Vec::<String>::new());
    cluster.check_replay();
}

/// P4: a session older than the deletion protects the chunks it may have learned of.
#[test]
pub(super) fn garbage_waits_for_older_sessions() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 1, 1);
    // A writer learns that the chunks exist (it sends no bytes), then the only file that names them is deleted.
    cluster.now_ns += MS;
    let opened = cluster.open("copy", "ec:4+2", &[100, 101, 102]).unwrap();
    let answers = opened.allocated.clone().unwrap().answers;
    assert!(answers.iter().all(|a| a.state == ChunkState::Durable as i32));
    cluster.now_ns += MS;
    cluster.unlink("f1");
    cluster.run(2_000);
    let request = cluster.commit_request(&opened, vec![]);
    let reply: CommitReply = cluster.ask(&request).unwrap();
    assert!(reply.version > 0, "the chunks are still there");
    cluster.unlink("copy");
    cluster.until(20, "collected", |f| f.status().chunks == 0);
}

/// P4, P5: an open reader, without a row or with one, pins the version that it reads and nothing else.
#[test]
pub(super) fn a_reader_keeps_its_version_and_nothing_else() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 6);
    cluster.now_ns += MS;
    let request = OpenRead { parent: 1, name: "f1".into(), len_bytes: u64::MAX, ..OpenRead::default() };
    let opened = cluster.ask(&request).unwrap();
    let extents = opened.extents.clone().unwrap();
    let pinned: BTreeSet<u64> = extents.chunks.iter().map(|chunk| chunk.chunk_id).collect();
    assert!(!pinned.is_empty());
    cluster.now_ns += MS;
    (0..6).for_each(|f| cluster.unlink(&format!("f{f}")));
    let session_id = opened.session_id;
    let renew = |cluster: &mut Cluster| {
        cluster.run(500);
        cluster.ask(&RenewSession { session_id, ..RenewSession::default() }).unwrap();
        cluster.chunks().iter().map(|chunk| chunk.chunk_id).collect::<BTreeSet<u64>>()
    };
    // Longer than a reader's session stays without a row.
    let left: Vec<BTreeSet<u64>> = (0..20).map(|_| renew(&mut cluster)).collect();
    assert_eq!(left.last(), Some(&pinned), "the garbage of others goes, the version that is read stays");
    let again = ListExtents { session_id, len_bytes: u64::MAX, ..ListExtents::default() };
    assert_eq!(cluster.ask(&again).unwrap().extents, extents.extents);
    cluster.ask(&CloseSession { session_id, ..Default::default() }).unwrap();
    cluster.until(30, "collected", |f| f.status().chunks == 0);
}

/// P5: a writer that stays open delays garbage for a bounded time.
#[test]
fn a_writer_delays_garbage_for_a_bounded_time() {
    let mut cluster = Cluster::with_config(8, 1, Config { garbage_hold_ms: 10_000, ..config() });
    write_files(&mut cluster, 0, 1);
    cluster.now_ns += MS;
    let session_id = cluster.open("slow", "ec:4+2", &[]).unwrap().session_id;
    cluster.now_ns += MS;
    cluster.unlink("f0");
    let mut run = |seconds: i64| {
        for _ in 0..seconds {
            cluster.run(1_000);
            cluster.ask(&RenewSession { session_id, ..RenewSession::default() }).unwrap();
        }
        cluster.status().chunks
    };
    assert!(run(5) > 0, "a writer may know the chunks");
    assert_eq!(run(10), 0, "garbage goes although a writer stays open");
}

/// P5, P14: a writer whose chunks were removed before its commit learns which key is too small.
#[test]
fn a_commit_of_removed_chunks_names_the_key() {
    let mut cluster = Cluster::with_config(8, 1, Config { garbage_hold_ms: 10_000, ..config() });
    let opened = cluster.open("slow", "ec:4+2", &[500]).unwrap();
    let acks = cluster.put_all(&opened);
    let commit = cluster.commit_request(&opened, acks);
    for _ in 0..15 {
        cluster.run(1_000);
        let renewal = RenewSession { session_id: opened.session_id, ..RenewSession::default() };
        cluster.ask(&renewal).unwrap();
    }
    let error = cluster.ask(&commit).unwrap_err();
    assert!(error.message.contains("raise garbage_hold_ms"), "{error}");
}

/// P5, P14: a garbage collection ends although a full disk carries out no deletes; they are done once there is room.
#[test]
fn gc_ends_although_a_disk_is_full() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 4);
    cluster.nodes[2].full = true;
    (0..4).for_each(|f| cluster.unlink(&format!("f{f}")));
    let job = |start| Maintain { what: MaintenanceJob::Gc as i32, start };
    cluster.ask(&job(true)).unwrap();
    cluster.run(3_000);
    assert!(cluster.ask(&job(false)).unwrap().running, "deletes are under way");
    cluster.until(60, "gc ends", |c| !c.ask(&job(false)).unwrap().running);
    let left = cluster.status().deletes_pending;
    assert!(left > 0, "the full disk has carried out none");
    cluster.nodes[2].full = false;
    cluster.until(30, "deleted", |c| c.status().deletes_pending == 0);
}

/// P5: the fragments of a dead writer are collected once its session has ended.
#[test]
fn pending_chunks_of_dead_writers_are_collected() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 1, 1);
    let opened = cluster.open("never", "ec:4+2", &[500, 501]).unwrap();
    for answer in &opened.allocated.clone().unwrap().answers {
        cluster.put(answer);
    }
    cluster.run(3_000);
    assert_eq!(cluster.status().garbage_chunks, 2);
    let op = CloseSession { session_id: opened.session_id, ..Default::default() };
    cluster.ask(&op).unwrap();
    cluster.until(30, "collected", |f| f.status().garbage_chunks == 0 && f.status().deletes_pending == 0);
    let held: usize = cluster.disks.values().map(|d| d.held.len()).sum();
    assert_eq!(held, 3 * 6, "only the written file is left");
}

/// P6: an inventory finds missing fragments although a writer has been active since before it.
#[test]
fn inventories_look_beyond_chunks_that_are_pending() {
    let mut cluster = Cluster::with_config(8, 1, Config { inventory_every_ms: 20_000, ..config() });
    let early = cluster.open("early", "ec:4+2", &[700]).unwrap().allocated.unwrap().answers[0].chunk_id;
    write_files(&mut cluster, 1, 4);
    let disk = cluster.nodes[0].disks[0];
    let held = &mut cluster.disks.get_mut(&disk).unwrap().held;
    let lost = *held.keys().find(|(chunk, _)| *chunk > early).unwrap();
    held.remove(&lost);
    cluster.damaged();
    cluster.until(70, "put right", |f| f.disks[&disk].held.contains_key(&lost));
    let noted = "SELECT count(*) FROM missing_fragments WHERE chunk_id = ?1";
    let noted: i64 = cluster.db().conn().query_row(noted, [early as i64], |row| row.get(0)).unwrap();
    assert_eq!(noted, 0, "nothing was promised of what is pending");
}

/// P3, P5: an inventory removes fragments of dropped chunks, leaves unknown ids, and records absent fragments as missing.
#[test]
fn inventories_remove_orphans_and_note_what_lacks() {
    let mut cluster = Cluster::with_config(8, 1, Config { inventory_every_ms: 20_000, ..config() });
    write_files(&mut cluster, 1, 4);
    let opened = cluster.open("gone", "ec:4+2", &[800]).unwrap();
    let gone = opened.allocated.unwrap().answers[0].chunk_id;
    cluster.write("last", "ec:4+2", &[801]);
    cluster.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
    cluster.until(20, "collected", |f| f.status().garbage_chunks == 0);
    let disk = cluster.nodes[0].disks[0];
    let future = cluster.meta().next_chunk + 100;
    let lost = {
        let held = &mut cluster.disks.get_mut(&disk).unwrap().held;
        let lost = *held.keys().next().unwrap();
        held.remove(&lost);
        held.insert((gone, 5), Stored::default()); // A late put of a dead writer.
        held.insert((future, 0), Stored::default());
        lost
    };
    cluster.damaged();
    cluster.until(70, "put right", |f| {
        let held = &f.disks[&disk].held;
        !held.contains_key(&(gone, 5)) && held.contains_key(&lost)
    });
    assert!(cluster.disks[&disk].held.contains_key(&(future, 0)), "an id from the future is left alone");
    cluster.until(10, "listed", |f| rows::disk(f.db(), disk).unwrap().unwrap().inventory_wanted == 0);
    assert!(cluster.is_whole());
}

/// P6: what a node no longer holds after its daemon restarted is found and stored again, without a day's wait.
#[test]
fn a_node_that_restarts_without_some_of_its_files_is_found_out() {
    finds_lost_files(false);
}

/// P6: the database says so, not only the memory of the manager that leads.
#[test]
fn a_new_leader_knows_which_disks_were_not_listed_since_their_node_restarted() {
    finds_lost_files(true);
}

fn finds_lost_files(manager_restarts: bool) {
    let config = Config { inventory_every_ms: 86_400_000, ..config() };
    let mut cluster = Cluster::with_config(8, 1, config.clone());
    write_files(&mut cluster, 1, 4);
    cluster.run(3_000);
    cluster.kill(0);
    let disk = cluster.nodes[0].disks[0];
    let held = &mut cluster.disks.get_mut(&disk).unwrap().held;
    let lost: Vec<_> = std::mem::take(held).into_keys().collect();
    assert!(!lost.is_empty());
    cluster.damaged();
    cluster.restart(0);
    if manager_restarts {
        cluster.restart_manager(config);
    }
    cluster.until(30, "put right", |f| lost.iter().all(|fragment| f.disks[&disk].held.contains_key(fragment)));
    cluster.until(10, "listed", |f| rows::disk(f.db(), disk).unwrap().unwrap().inventory_wanted == 0);
    assert!(cluster.is_whole());
}

/// P14: impossible registrations are refused and change nothing.
#[test]
fn false_registrations_are_refused() {
    let mut cluster = Cluster::new(3, 1);
    let state = |cluster: &Cluster| {
        let sql = "SELECT group_concat(health_since_ns) FROM nodes";
        let since: String = cluster.db().conn().query_row(sql, [], |row| row.get(0)).unwrap();
        (since, rows::nodes(cluster.db()).unwrap(), rows::disks(cluster.db()).unwrap())
    };
    let before = state(&cluster);
    let refuse = |cluster: &mut Cluster, mut request: RegisterNode, words: &str| {
        request.op_id = cluster.op();
        let error = cluster.ask(&request).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert_eq!(state(cluster), before);
    };
    let with = |name: &str, address: &str, uuids: &[Vec<u8>]| {
        let mut request = registration(name, uuids);
        request.node.as_mut().unwrap().address = address.to_string();
        request
    };
    refuse(&mut cluster, with("n0", "127.0.0.1:1", &[uuid(0, 0)]), "is alive");
    refuse(&mut cluster, with("other", "127.0.0.1:1", &[uuid(0, 0)]), "127.0.0.1:1");
    refuse(&mut cluster, with("n1", "127.0.0.1:1", &[uuid(0, 0)]), "belongs to node");
    refuse(&mut cluster, with("new", "127.0.0.1:1", &[uuid(0, 0), uuid(1, 0)]), "two nodes");
    refuse(&mut cluster, with("new", "127.0.0.1:1", &[uuid(9, 0), uuid(9, 0)]), "named twice");
    refuse(&mut cluster, with("new", "127.0.0.1:1", &[vec![1, 2]]), "no valid identity");
    refuse(&mut cluster, with("new", "127.0.0.1:1", &[]), "--disk");
    refuse(&mut cluster, with("", "127.0.0.1:1", &[uuid(9, 0)]), "name");
}

/// Errors about too few hosts or no room give numbers and the way out (P14).
#[test]
fn refusals_name_numbers_and_the_way_out() {
    let mut cluster = Cluster::new(5, 1);
    let error = cluster.open("x", "ec:4+2", &[1]).unwrap_err();
    assert_eq!(error.code(), Code::TooFewHosts);
    assert!(error.message.starts_with("ec:4+2 needs 6 hosts, 5 are up"), "{error}");
    cluster.write("y", "replica:3", &[2]);
    cluster.kill(0);
    cluster.kill(1);
    cluster.kill(2);
    cluster.run(3_000);
    let error = cluster.open("z", "replica:3", &[3]).unwrap_err();
    assert_eq!(error.code(), Code::TooFewHosts);
    assert!(error.message.contains("2 are up") && error.message.contains("host-n0"), "{error}");
    for n in 0..3 {
        cluster.restart(n);
    }
    cluster.run(1_000);
    cluster.write("z", "replica:3", &[3]);
    cluster.disks.values_mut().for_each(|disk| disk.free_bytes = Some(0));
    cluster.run(500);
    let error = cluster.open("full", "replica:3", &[4]).unwrap_err();
    assert_eq!(error.code(), Code::NoSpace);
    assert!(error.message.contains("tessera gc"), "{error}");
    // A class that nobody has used yet gets the same answer.
    let with_room: Vec<u64> = cluster.nodes[..3].iter().map(|n| n.disks[0]).collect();
    with_room.iter().for_each(|disk| cluster.disks.get_mut(disk).unwrap().free_bytes = Some(CAPACITY));
    cluster.run(500);
    let error = cluster.open("full", "ec:3+2", &[5]).unwrap_err();
    assert_eq!(error.code(), Code::NoSpace);
    let words = "ec:3+2: a chunk needs room on 5 hosts, 3 have it; full: host-n3, host-n4; delete files";
    assert!(error.message.starts_with(words), "{error}");
}

/// Groups open for new disks and close when they are full.
#[test]
fn groups_open_and_close() {
    let mut cluster = Cluster::with_config(8, 1, Config { pg_cap_bytes: 3 << 20, ..config() });
    write_files(&mut cluster, 0, 60);
    cluster.run(3_000);
    let (open, all): (i64, i64) = cluster
        .db()
        .conn()
        .query_row("SELECT sum(open), count(*) FROM pgs WHERE width = 6", [], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert!(all > open && open >= 8, "{open} open of {all}");
    write_files(&mut cluster, 100, 10);
    assert!(cluster.is_whole());
    cluster.check_replay();
}

/// Heartbeat replies carry the lease, the map when it changed, and tasks until the node reports that they run.
#[test]
fn heartbeats_bring_what_changed() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 1, 1);
    cluster.beat(0);
    let reply = cluster.ask(&cluster.heartbeat(0)).unwrap();
    assert_eq!(reply.lease_ms, cluster.config().node_lease_ms);
    assert!(reply.map.is_none() && reply.pgs.is_empty(), "it has the newest map");
    let stranger = Heartbeat { known_map_version: 0, ..cluster.heartbeat(0) };
    let reply = cluster.ask(&stranger).unwrap();
    assert_eq!(reply.map.unwrap().nodes.len(), 8);
    assert!(!reply.pgs.is_empty());
    cluster.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start: true }).unwrap();
    let first = cluster.ask(&cluster.heartbeat(0)).unwrap().tasks;
    let again = cluster.ask(&cluster.heartbeat(0)).unwrap().tasks;
    assert_eq!((first.len(), &first), (1, &again), "an answer that was lost is repeated");
    let running = Heartbeat { running_tasks: vec![first[0].task_id], ..cluster.heartbeat(0) };
    assert!(cluster.ask(&running).unwrap().tasks.is_empty());
}

/// New chunks go to disks with room and short queues, not to a disk where the writer has just failed.
#[test]
fn groups_are_chosen_by_free_space_and_queue() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 1);
    let crowded = cluster.nodes[0].disks[0];
    let count = |cluster: &mut Cluster, avoid: &[u64], from: u64| -> (usize, usize) {
        let opened = cluster.open(&format!("w{from}"), "replica:3", &[from]).unwrap();
        let request = AllocateChunks {
            op_id: cluster.op(),
            session_id: opened.session_id,
            redundancy: "replica:3".into(),
            chunks: (0..400).map(|i| chunk_name(from + 1 + i)).collect(),
            avoid_pgs: avoid.to_vec(),
            ..Default::default()
        };
        let answers = cluster.ask(&request).unwrap().answers;
        cluster.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
        let on = |pg: u64| cluster.members_of(pg).iter().any(|m| m.disk_id == crowded);
        (answers.iter().filter(|a| on(a.pg_id)).count(), answers.iter().filter(|a| avoid.contains(&a.pg_id)).count())
    };
    let even = count(&mut cluster, &[], 10_000).0 as f64 / 400.0;
    assert!((0.25..0.5).contains(&even), "3 of 8 disks: {even}");
    let stats = |cluster: &mut Cluster, free: u64, queue: u32| {
        let disk = cluster.disks.get_mut(&crowded).unwrap();
        (disk.free_bytes, disk.queue_len) = (Some(free), queue);
        cluster.beat(0);
    };
    stats(&mut cluster, CAPACITY / 8, 0);
    let full = count(&mut cluster, &[], 20_000).0 as f64 / 400.0;
    stats(&mut cluster, CAPACITY, 64);
    let busy = count(&mut cluster, &[], 30_000).0 as f64 / 400.0;
    assert!(full < even / 2.0 && busy < even / 2.0, "even {even}, full {full}, busy {busy}");
    stats(&mut cluster, CAPACITY, 0);
    let pgs: Vec<u64> = (1..cluster.meta().next_pg).collect();
    let (avoid, _) = pgs.split_at(pgs.len() / 2);
    assert_eq!(count(&mut cluster, avoid, 40_000).1, 0, "other groups are there");
    assert_eq!(count(&mut cluster, &pgs, 50_000).1, 400, "better a group that failed than none (P12)");
}

/// The last report of each node counts, reports of clients add up, and implausible values are dropped (P14).
#[test]
fn status_tells_what_devices_computed() {
    let mut cluster = Cluster::new(2, 1);
    let work = |node_id, device: &str, jobs| DeviceWork {
        node_id,
        device: device.into(),
        primitive: "encode".into(),
        jobs,
        bytes: jobs.saturating_mul(10),
    };
    for jobs in [3, 4] {
        let long = work(0, &"x".repeat(201), 1);
        let beat = Heartbeat { device_work: vec![work(77, "cuda:0", jobs), long.clone()], ..cluster.heartbeat(1) };
        cluster.nodes[1].number += 1;
        cluster.ask(&beat).unwrap();
        cluster.ask(&ReportWork { device_work: vec![work(9, "cpu", jobs), long] }).unwrap();
    }
    let node_id = cluster.nodes[1].node_id;
    assert_eq!(cluster.status().device_work, [work(0, "cpu", 7), work(node_id, "cuda:0", 4)]);
    for i in 0..100 {
        cluster.ask(&ReportWork { device_work: vec![work(0, &format!("device {i}"), u64::MAX)] }).unwrap();
    }
    cluster.ask(&ReportWork { device_work: vec![work(0, "device 3", u64::MAX)] }).unwrap();
    assert_eq!(cluster.status().device_work.len(), 65);
}
