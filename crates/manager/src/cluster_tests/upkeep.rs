//! Garbage, inventories, registrations, groups, heartbeats.

use super::*;

/// P3, P5: deleted fragments leave every disk, even one that was down, and never come back.
#[test]
fn deleted_files_leave_no_fragment() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 12);
    fake.kill(7);
    fake.run(1_000);
    for f in 0..12 {
        fake.unlink(&format!("f{f}"));
    }
    fake.until(20, "collected", |f| f.status().garbage_chunks == 0);
    fake.restart(7);
    fake.until(60, "all gone", |f| f.disks.values().all(|d| d.held.is_empty()) && f.status().deletes_pending == 0);
    let status = fake.status();
    assert_eq!((status.chunks, status.unique_bytes, status.stored_bytes), (0, 0, 0));
    assert_eq!(audit::recount(&fake.db).unwrap(), Vec::<String>::new());
    fake.check_replay();
}

/// P4: a session older than the deletion protects the chunks it may have learned of. If a failpoint removes the grace
/// period from `before_ns`, the session's row still protects them; for a reader without a row, this test's check fails.
#[test]
pub(super) fn garbage_waits_for_older_sessions() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 1);
    // A writer learns that the chunks exist (it sends no bytes), then the only file that names them is deleted.
    fake.now_ns += MS;
    let opened = fake.open("copy", "ec:4+2", &[100, 101, 102]).unwrap();
    let answers = opened.allocated.clone().unwrap().answers;
    assert!(answers.iter().all(|a| a.state == ChunkState::Durable as i32));
    fake.now_ns += MS;
    fake.unlink("f1");
    let none = CollectGarbage { before_ns: i64::MAX, limit: 100 };
    let (session_before, now) = (fake.soft.sessions.oldest_start(fake.now_ns + 10 * MS), fake.now_ns);
    assert!(session_before < now);
    fake.now_ns += 10 * MS;
    fake.run(2_000);
    fake.propose(vec![none.propose()]);
    let request = fake.commit_request(&opened, vec![]);
    let reply: CommitReply = fake.command(&request).unwrap();
    assert!(reply.version > 0, "the chunks are still there");
    fake.unlink("copy");
    fake.until(20, "collected", |f| f.status().chunks == 0);
}

/// P4: the failpoint "no grace" loses chunks that a young reader (memory only) still reads, and the check detects it.
#[test]
fn collecting_without_grace_is_caught() {
    for planted in [false, true] {
        let mut fake = Fake::new(8, 1);
        write_files(&mut fake, 1, 1);
        fake.now_ns += MS;
        let reader = crate::soft::sessions::Reader {
            client_id: 1,
            ino: 2,
            version: 1,
            number: 1,
            size_bytes: 0,
            started_ns: fake.now_ns,
            used_ns: fake.now_ns,
            persisted: false,
        };
        fake.soft.sessions.open_reader(1, reader);
        let pinned: Vec<u64> = fake.chunks().iter().map(|c| c.0).collect();
        fake.now_ns += MS;
        fake.unlink("f1");
        fake.now_ns += MS;
        // Drop the references even if the version's row waits for the reader: this test is about the chunks.
        fake.db.conn().execute("UPDATE chunks SET refs = 0, zero_since_ns = ?1", [fake.now_ns - MS]).unwrap();
        let before_ns = match planted {
            true => fake.now_ns,
            false => fake.soft.sessions.oldest_start(fake.now_ns),
        };
        fake.propose(vec![CollectGarbage { before_ns, limit: 100 }.propose()]);
        let left: i64 = fake.db.conn().query_row("SELECT count(*) FROM chunks", [], |r| r.get(0)).unwrap();
        let lost = left < pinned.len() as i64;
        assert_eq!(lost, planted, "a reader's chunks must outlive it, and the check must see when they do not");
    }
}

/// P5: the fragments of a dead writer are collected once its session has ended.
#[test]
fn pending_chunks_of_dead_writers_are_collected() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 1);
    let opened = fake.open("never", "ec:4+2", &[500, 501]).unwrap();
    for answer in &opened.allocated.clone().unwrap().answers {
        fake.put(answer);
    }
    fake.run(3_000);
    assert_eq!(fake.status().garbage_chunks, 2);
    let op = CloseSession { session_id: opened.session_id };
    fake.command(&op).unwrap();
    fake.until(30, "collected", |f| f.status().garbage_chunks == 0 && f.status().deletes_pending == 0);
    let held: usize = fake.disks.values().map(|d| d.held.len()).sum();
    assert_eq!(held, 3 * 6, "only the written file is left");
}

/// P6: an inventory finds missing fragments although a writer has been active since before it.
#[test]
fn inventories_look_beyond_chunks_that_are_pending() {
    let mut fake = Fake::new(8, 1);
    let early = fake.open("early", "ec:4+2", &[700]).unwrap().allocated.unwrap().answers[0].chunk_id;
    write_files(&mut fake, 1, 4);
    let disk = fake.nodes[0].disks[0];
    let held = &mut fake.disks.get_mut(&disk).unwrap().held;
    let lost = *held.iter().find(|(chunk, _)| *chunk > early).unwrap();
    held.remove(&lost);
    fake.damaged();
    fake.propose(vec![crate::internal::SetInventory { want: vec![disk], done_disk_id: 0, done_wanted: 0 }.propose()]);
    fake.until(30, "put right", |f| f.disks[&disk].held.contains(&lost));
    let noted = "SELECT count(*) FROM missing_fragments WHERE chunk_id = ?1";
    let noted: i64 = fake.db.conn().query_row(noted, [early as i64], |row| row.get(0)).unwrap();
    assert_eq!(noted, 0, "nothing was promised of what is pending");
}

/// P3, P5: an inventory removes fragments of dropped chunks, leaves unknown ids, and records absent fragments as missing.
#[test]
fn inventories_remove_orphans_and_note_what_lacks() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 4);
    let gone = fake.open("gone", "ec:4+2", &[800]).unwrap().allocated.unwrap().answers[0].chunk_id;
    fake.write("last", "ec:4+2", &[801]);
    let session = fake.meta.next_session - 2;
    fake.command(&CloseSession { session_id: session }).unwrap();
    fake.until(20, "collected", |f| f.status().garbage_chunks == 0);
    let disk = fake.nodes[0].disks[0];
    let future = fake.meta.next_chunk + 100;
    let lost = {
        let held = &mut fake.disks.get_mut(&disk).unwrap().held;
        let lost = *held.iter().next().unwrap();
        held.remove(&lost);
        held.insert((gone, 5)); // A late put of a dead writer.
        held.insert((future, 0));
        lost
    };
    fake.damaged();
    fake.propose(vec![crate::internal::SetInventory { want: vec![disk], done_disk_id: 0, done_wanted: 0 }.propose()]);
    fake.until(30, "put right", |f| {
        let held = &f.disks[&disk].held;
        !held.contains(&(gone, 5)) && held.contains(&lost)
    });
    assert!(fake.disks[&disk].held.contains(&(future, 0)), "an id from the future is left alone");
    fake.until(10, "listed", |f| rows::disk(f.db.conn(), disk).unwrap().unwrap().inventory_wanted == 0);
    assert!(fake.is_whole());
}

/// P14: impossible registrations are refused and change nothing.
#[test]
fn false_registrations_are_refused() {
    let mut fake = Fake::new(3, 1);
    let state = |fake: &Fake| (rows::nodes(fake.db.conn()).unwrap(), rows::disks(fake.db.conn()).unwrap());
    let before = state(&fake);
    let refuse = |fake: &mut Fake, mut request: RegisterNode, words: &str| {
        request.op_id = fake.op();
        let error = fake.command(&request).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert_eq!(state(fake), before);
    };
    let with = |name: &str, address: &str, uuids: &[Vec<u8>]| {
        let mut request = registration(name, uuids);
        request.node.as_mut().unwrap().address = address.to_string();
        request
    };
    refuse(&mut fake, with("n0", "127.0.0.1:1", &[uuid(0, 0)]), "is alive");
    refuse(&mut fake, with("other", "127.0.0.1:1", &[uuid(0, 0)]), "127.0.0.1:1");
    refuse(&mut fake, with("n1", "127.0.0.1:1", &[uuid(0, 0)]), "belongs to node");
    refuse(&mut fake, with("new", "127.0.0.1:1", &[uuid(0, 0), uuid(1, 0)]), "two nodes");
    refuse(&mut fake, with("new", "127.0.0.1:1", &[uuid(9, 0), uuid(9, 0)]), "named twice");
    refuse(&mut fake, with("new", "127.0.0.1:1", &[vec![1, 2]]), "no valid identity");
    refuse(&mut fake, with("new", "127.0.0.1:1", &[]), "--disk");
    refuse(&mut fake, with("", "127.0.0.1:1", &[uuid(9, 0)]), "name");
}

/// Errors about too few hosts or no room give numbers and the way out (P14).
#[test]
fn refusals_name_numbers_and_the_way_out() {
    let mut fake = Fake::new(5, 1);
    let error = fake.open("x", "ec:4+2", &[1]).unwrap_err();
    assert_eq!(error.kind(), Code::TooFewHosts);
    assert!(error.message.starts_with("ec:4+2 needs 6 hosts, 5 are up"), "{error}");
    fake.write("y", "replica:3", &[2]);
    fake.kill(0);
    fake.kill(1);
    fake.kill(2);
    fake.run(3_000);
    let error = fake.open("z", "replica:3", &[3]).unwrap_err();
    assert_eq!(error.kind(), Code::TooFewHosts);
    assert!(error.message.contains("2 are up") && error.message.contains("host-n0"), "{error}");
    for n in 0..3 {
        fake.restart(n);
    }
    fake.run(1_000);
    fake.write("z", "replica:3", &[3]);
    for stats in fake.soft.cluster.stats.disks.values_mut() {
        stats.free_bytes = 0;
    }
    fake.soft.cluster.stats.generation += 1;
    let error = fake.open("full", "replica:3", &[4]).unwrap_err();
    assert_eq!(error.kind(), Code::NoSpace);
    assert!(error.message.contains("tessera gc"), "{error}");
}

/// Groups open for new disks and close when they are full.
#[test]
fn groups_open_and_close() {
    let mut fake = Fake::new(8, 1);
    fake.config.pg_cap_bytes = 3 << 20;
    write_files(&mut fake, 0, 60);
    fake.run(3_000);
    let (open, all): (i64, i64) = fake
        .db
        .conn()
        .query_row("SELECT sum(open), count(*) FROM pgs WHERE width = 6", [], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert!(all > open && open >= 8, "{open} open of {all}");
    write_files(&mut fake, 100, 10);
    assert!(fake.is_whole());
    fake.check_replay();
}

/// Heartbeat replies carry the lease, the map when it changed, and tasks until the node reports that they run.
#[test]
fn heartbeats_bring_what_changed() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 1);
    fake.beat(0);
    let reply = fake.ask(&fake.heartbeat(0)).unwrap();
    assert_eq!(reply.lease_ms, fake.config.node_lease_ms);
    assert!(reply.map.is_none() && reply.pgs.is_empty(), "it has the newest map");
    let stranger = Heartbeat { known_map_version: 0, ..fake.heartbeat(0) };
    let reply = fake.ask(&stranger).unwrap();
    assert_eq!(reply.map.unwrap().nodes.len(), 8);
    assert!(!reply.pgs.is_empty());
    let disk = fake.nodes[0].disks[0];
    fake.soft.cluster.tasks.scrub_wanted.insert(disk);
    let first = fake.ask(&fake.heartbeat(0)).unwrap().tasks;
    let again = fake.ask(&fake.heartbeat(0)).unwrap().tasks;
    assert_eq!((first.len(), &first), (1, &again), "an answer that was lost is repeated");
    let running = Heartbeat { running_tasks: vec![first[0].task_id], ..fake.heartbeat(0) };
    assert!(fake.ask(&running).unwrap().tasks.is_empty());
    assert!(ns(1) == MS);
}

/// New chunks go to disks with room and short queues, not to a disk where the writer has just failed.
#[test]
fn groups_are_chosen_by_room_and_queue() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 1);
    let crowded = fake.nodes[0].disks[0];
    let count = |fake: &mut Fake, avoid: &[u64], from: u64| -> (usize, usize) {
        let opened = fake.open(&format!("w{from}"), "replica:3", &[from]).unwrap();
        let request = AllocateChunks {
            op_id: fake.op(),
            session_id: opened.session_id,
            redundancy: "replica:3".into(),
            chunks: (0..400).map(|i| chunk_name(from + 1 + i)).collect(),
            avoid_pgs: avoid.to_vec(),
            known_map_version: 0,
        };
        let answers = fake.command(&request).unwrap().answers;
        fake.command(&CloseSession { session_id: opened.session_id }).unwrap();
        let on = |pg: u64| rows::members(fake.db.conn(), pg).unwrap().iter().any(|m| m.disk_id == crowded);
        (answers.iter().filter(|a| on(a.pg_id)).count(), answers.iter().filter(|a| avoid.contains(&a.pg_id)).count())
    };
    let even = count(&mut fake, &[], 10_000).0 as f64 / 400.0;
    assert!((0.25..0.5).contains(&even), "3 of 8 disks: {even}");
    let stats = |fake: &mut Fake, free: u64, queue: u32| {
        let disk = fake.soft.cluster.stats.disks.get_mut(&crowded).unwrap();
        (disk.free_bytes, disk.queue_len) = (free, queue);
        fake.soft.cluster.stats.generation += 1;
    };
    stats(&mut fake, CAPACITY / 8, 0);
    let full = count(&mut fake, &[], 20_000).0 as f64 / 400.0;
    stats(&mut fake, CAPACITY, 64);
    let busy = count(&mut fake, &[], 30_000).0 as f64 / 400.0;
    assert!(full < even / 2.0 && busy < even / 2.0, "even {even}, full {full}, busy {busy}");
    stats(&mut fake, CAPACITY, 0);
    let pgs: Vec<u64> = (1..fake.meta.next_pg).collect();
    let (avoid, _) = pgs.split_at(pgs.len() / 2);
    assert_eq!(count(&mut fake, avoid, 40_000).1, 0, "other groups are there");
    assert_eq!(count(&mut fake, &pgs, 50_000).1, 400, "better a group that failed than none (P12)");
}

/// The last report of each node counts, reports of clients add up, and implausible values are dropped (P14).
#[test]
fn status_tells_what_devices_computed() {
    let mut fake = Fake::new(2, 1);
    let work = |node_id, device: &str, jobs| DeviceWork {
        node_id,
        device: device.into(),
        primitive: "encode".into(),
        jobs,
        bytes: jobs.saturating_mul(10),
    };
    for jobs in [3, 4] {
        let long = work(0, &"x".repeat(201), 1);
        let beat = Heartbeat { device_work: vec![work(77, "cuda:0", jobs), long.clone()], ..fake.heartbeat(1) };
        fake.nodes[1].number += 1;
        fake.ask(&beat).unwrap();
        fake.ask(&ReportWork { device_work: vec![work(9, "cpu", jobs), long] }).unwrap();
    }
    let node_id = fake.nodes[1].node_id;
    assert_eq!(fake.status().device_work, [work(0, "cpu", 7), work(node_id, "cuda:0", 4)]);
    for i in 0..100 {
        fake.ask(&ReportWork { device_work: vec![work(0, &format!("device {i}"), u64::MAX)] }).unwrap();
    }
    fake.ask(&ReportWork { device_work: vec![work(0, "device 3", u64::MAX)] }).unwrap();
    assert_eq!(fake.status().device_work.len(), 65);
}
