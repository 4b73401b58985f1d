//! Scenarios of membership, repair and garbage against a fake cluster (fake_cluster.rs).

use crate::config::ns;
use crate::fake_cluster::*;
use crate::internal::{AdvanceFill, CollectGarbage, FinishFill, FinishFills, Move, MoveMembers};
use crate::planted::{self, Bug};
use crate::state::Internal;
use crate::{garbage, rows};
use std::collections::BTreeSet;
use tessera_wire::meta::*;
use tessera_wire::{Code, Health};

fn write_files(fake: &mut Fake, from: u64, files: u64) {
    for f in from..from + files {
        let seeds: Vec<u64> = (0..3).map(|c| f * 100 + c).collect();
        fake.write(&format!("f{f}"), if f % 3 == 0 { "replica:3" } else { "ec:4+2" }, &seeds);
    }
}

fn disk_members(fake: &Fake, disk: u64) -> usize {
    rows::members_on(fake.db.conn(), disk).unwrap().len()
}

/// P6, P12: two of eight nodes lost for good; everything is rebuilt on the rest, evenly, and nothing fell on the way.
#[test]
fn two_lost_nodes_are_rebuilt_on_the_rest() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 40);
    fake.run(1_000);
    assert!(fake.is_whole());
    fake.kill(1);
    fake.kill(5);
    fake.until(40, "both out", |f| f.status().nodes.iter().filter(|n| n.health() == Health::Out).count() == 2);
    let during = fake.status();
    assert!(during.chunks_reduced > 0 && during.chunks_lost == 0, "{during:?}");
    assert!(during.fragments_to_repair > 0);
    // Writing goes on meanwhile.
    write_files(&mut fake, 100, 5);
    fake.until(200, "repaired", |f| f.is_whole());
    let after = fake.status();
    assert_eq!((after.chunks_full, after.chunks_reduced, after.chunks_lost), (after.chunks, 0, 0));
    assert_eq!((after.fragments_to_repair, after.members_filling), (0, 0));
    assert!(after.fragments_repaired > 0);
    for node in [1, 5] {
        assert_eq!(disk_members(&fake, fake.nodes[node].disks[0]), 0, "a lost disk holds no member any more");
    }
    assert_eq!(garbage::recount(&fake.db).unwrap(), Vec::<String>::new());
    fake.check_replay();
}

/// P6: rebuild work spreads over all that are left.
#[test]
fn rebuilds_spread_over_all_survivors() {
    let mut fake = Fake::new(12, 1);
    write_files(&mut fake, 0, 100);
    fake.kill(3);
    let before: Vec<usize> = fake.nodes.iter().map(|n| fake.disks[&n.disks[0]].held.len()).collect();
    fake.until(300, "repaired", |f| f.status().nodes[3].health() == Health::Out && f.is_whole());
    let got: Vec<usize> = fake
        .nodes
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != 3)
        .map(|(i, n)| fake.disks[&n.disks[0]].held.len() - before[i])
        .collect();
    let mean = got.iter().sum::<usize>() as f64 / got.len() as f64;
    assert!(mean >= 3.0);
    assert!(got.iter().all(|g| (*g as f64) < 2.5 * mean + 4.0), "{got:?}");
    assert!(got.iter().filter(|g| **g > 0).count() >= 8, "{got:?}");
}

/// A short absence moves nothing.
#[test]
fn a_node_that_is_down_for_a_moment_moves_nothing() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 10);
    fake.kill(2);
    fake.until(10, "down", |f| f.status().nodes[2].health() == Health::Down);
    assert!(fake.status().chunks_reduced > 0);
    let epochs = |f: &Fake| -> Vec<u64> {
        (1..f.meta.next_pg).map(|p| rows::pg_info(f.db.conn(), p).unwrap().unwrap().epoch).collect()
    };
    let before = epochs(&fake);
    fake.restart(2);
    fake.run(1_000);
    let status = fake.status();
    assert_eq!(status.nodes[2].health(), Health::Up);
    assert_eq!(status.chunks_full, status.chunks);
    assert_eq!(epochs(&fake)[..before.len()], before[..]);
}

/// P3, P11: a node that was out must register, its disk is listed before it serves again, what was deleted or rebuilt
/// meanwhile is removed from it.
#[test]
fn a_node_returns_after_it_was_given_up() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 20);
    let disk = fake.nodes[4].disks[0];
    let held_before = fake.disks[&disk].held.clone();
    assert!(!held_before.is_empty());
    fake.kill(4);
    fake.until(200, "repaired without it", |f| f.status().nodes[4].health() == Health::Out && f.is_whole());
    fake.unlink("f1");
    fake.run(2_000);
    // Its heartbeats do not count: it is told to register, and nothing else.
    fake.nodes[4].alive = true;
    let reply = fake.ask(&fake.heartbeat(4)).unwrap();
    assert!(reply.must_register && reply.lease_ms == 0 && reply.tasks.is_empty() && reply.deletes.is_empty());
    let late =
        Inventory { node_id: fake.nodes[4].node_id, incarnation: 1, disk_id: disk, last: true, ..Inventory::default() };
    assert_eq!(fake.ask(&late).unwrap_err().kind(), Code::NotRegistered);
    let incarnation = fake.nodes[4].incarnation;
    fake.restart(4);
    assert!(fake.nodes[4].incarnation > incarnation);
    let row = rows::disk(fake.db.conn(), disk).unwrap().unwrap();
    assert!(row.own_health == Health::Down && row.inventory_wanted > 0, "listed before anything else");
    fake.until(50, "listed and clean", |f| {
        let d = f.status().disks.iter().find(|d| d.disk_id == disk).unwrap().health();
        d == Health::Up && f.disks[&disk].held.is_empty()
    });
    assert!(fake.is_whole());
    fake.check_replay();
}

/// P12: more than m nodes are out, so nothing can be rebuilt; when they return with what they held, all is well again.
#[test]
fn chunks_beyond_repair_come_back_with_their_disks() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 2);
    for node in 0..4 {
        fake.kill(node);
    }
    fake.until(60, "out", |f| f.status().nodes.iter().filter(|n| n.health() == Health::Out).count() == 4);
    assert!(fake.status().chunks_lost > 0);
    fake.run(10_000);
    assert!(fake.status().chunks_lost > 0, "nothing was invented");
    for node in 0..4 {
        fake.restart(node);
    }
    fake.until(300, "whole again", |f| f.is_whole());
    let status = fake.status();
    assert_eq!((status.chunks_full, status.chunks_lost), (status.chunks, 0));
    fake.check_replay();
}

/// A failed disk is replaced although its node lives.
#[test]
fn a_failed_disk_is_rebuilt_elsewhere() {
    let mut fake = Fake::new(8, 2);
    write_files(&mut fake, 0, 20);
    let disk = fake.nodes[0].disks[1];
    fake.disks.get_mut(&disk).unwrap().failed = true;
    fake.damaged();
    fake.until(200, "rebuilt", |f| disk_members(f, disk) == 0 && f.is_whole());
    let status = fake.status();
    assert_eq!(status.nodes[0].health(), Health::Up);
    assert_eq!(status.disks.iter().find(|d| d.disk_id == disk).unwrap().health(), Health::Out);
}

/// P6: a drain moves everything, redundancy never falls ([`Fake::check`]), and can be taken back.
#[test]
fn a_drained_node_is_empty_and_may_be_switched_off() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 30);
    let (node_id, disk) = (fake.nodes[6].node_id, fake.nodes[6].disks[0]);
    let op_id = fake.op();
    fake.command(&Drain { op_id, node_id, ..Drain::default() }).unwrap();
    assert_eq!(fake.status().nodes[6].health(), Health::Draining);
    write_files(&mut fake, 100, 5);
    fake.until(200, "drained", |f| f.status().nodes[6].health() == Health::Drained);
    assert_eq!(disk_members(&fake, disk), 0);
    assert!(fake.is_whole());
    fake.kill(6);
    fake.run(20_000);
    assert!(fake.is_whole());
    // It comes back, the drain is taken back: it serves again once what it still holds has been removed.
    fake.restart(6);
    let op_id = fake.op();
    fake.command(&Drain { op_id, node_id, undo: true, ..Drain::default() }).unwrap();
    fake.until(60, "clean", |f| f.disks[&disk].held.is_empty());
    assert_eq!(fake.status().nodes[6].health(), Health::Up);
    fake.check_replay();
}

/// A drain that is taken back half way leaves the members where they were.
#[test]
fn a_drain_is_taken_back() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 30);
    let (node_id, disk) = (fake.nodes[6].node_id, fake.nodes[6].disks[0]);
    let members = disk_members(&fake, disk);
    for node in fake.nodes.iter_mut() {
        node.lazy = true;
    }
    let op_id = fake.op();
    fake.command(&Drain { op_id, node_id, ..Drain::default() }).unwrap();
    fake.run(2_000);
    let moving = rows::members_filling(fake.db.conn()).unwrap().len();
    assert!(moving > 0);
    let op_id = fake.op();
    fake.command(&Drain { op_id, node_id, undo: true, ..Drain::default() }).unwrap();
    assert_eq!(rows::members_filling(fake.db.conn()).unwrap().len(), 0);
    for node in fake.nodes.iter_mut() {
        node.lazy = false;
    }
    let kept = disk_members(&fake, disk);
    assert!(kept > members / 2 && kept <= members, "{kept} of {members}: only groups without chunks had moved");
    fake.until(60, "settled", |f| f.is_whole());
}

/// P14: a drain that cannot end is refused with the way out.
#[test]
fn a_drain_without_enough_other_hosts_is_refused() {
    let mut fake = Fake::new(6, 1);
    write_files(&mut fake, 1, 1);
    let (op_id, node_id) = (fake.op(), fake.nodes[0].node_id);
    let error = fake.command(&Drain { op_id, node_id, ..Drain::default() }).unwrap_err();
    assert_eq!(error.kind(), Code::TooFewHosts);
    assert!(error.message.contains("add nodes"), "{error}");
    let op_id = fake.op();
    assert_eq!(fake.command(&Drain { op_id, node_id: 99, ..Drain::default() }).unwrap_err().kind(), Code::NotFound);
}

/// P6: a node that joins takes members over from the others until the load is even.
#[test]
fn a_joining_node_takes_its_share() {
    let mut fake = Fake::new(7, 1);
    write_files(&mut fake, 0, 60);
    let new = fake.join(1);
    let disk = fake.nodes[new].disks[0];
    fake.until(400, "balanced", |f| f.disks[&disk].held.len() >= 20 && f.is_whole());
    fake.run(60_000);
    fake.until(20, "settled", |f| f.is_whole());
    let held: Vec<u64> = fake.nodes.iter().map(|n| fake.bytes_on(n.disks[0])).collect();
    let mean = held.iter().sum::<u64>() as f64 / held.len() as f64;
    assert!(held.iter().all(|h| (*h as f64) < 1.4 * mean && (*h as f64) > 0.6 * mean), "{held:?}, mean {mean}");
    // New chunks come here too.
    let before = fake.disks[&disk].held.len();
    write_files(&mut fake, 200, 20);
    assert!(fake.disks[&disk].held.len() > before);
    fake.check_replay();
}

/// P11: acknowledgements that a disk gave before it was declared out do not count at commit.
#[test]
fn acknowledgements_under_an_old_epoch_do_not_count() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 1);
    let opened = fake.open("late", "ec:4+2", &[7_000]).unwrap();
    let answer = opened.allocated.clone().unwrap().answers[0].clone();
    let epoch = fake.put(&answer);
    let members = rows::members(fake.db.conn(), answer.pg_id).unwrap();
    let lost = fake.nodes.iter().position(|n| n.disks[0] == members[2].disk_id).unwrap();
    fake.kill(lost);
    fake.until(60, "replaced", |f| rows::member(f.db.conn(), answer.pg_id, 2).unwrap().unwrap().since_epoch > 1);
    let ack = ChunkAck { chunk_id: answer.chunk_id, epoch, missing: vec![] };
    let request = fake.commit_request(&opened, vec![ack.clone()]);
    let reply: CommitReply = fake.command(&request).unwrap();
    assert_eq!(reply.version, 0);
    assert_eq!(reply.stale.len(), 1);
    assert_eq!(reply.stale[0].fragments, vec![2], "only the lost member's fragment is to be put again");
    fake.until(60, "a new disk takes puts", |f| {
        let m = rows::member(f.db.conn(), answer.pg_id, 2).unwrap().unwrap();
        m.put_disk() != members[2].disk_id
    });
    let epoch = fake.put(&answer);
    let request = fake.commit_request(&opened, vec![ChunkAck { epoch, ..ack }]);
    let reply: CommitReply = fake.command(&request).unwrap();
    assert!(reply.version > 0 && reply.stale.is_empty());
    fake.until(100, "whole", |f| f.is_whole());
    fake.check_replay();
}

/// P6: what is committed behind the cursor of a moving member, to its old disk, is not lost when the new disk takes over.
#[test]
fn a_commit_behind_the_cursor_of_a_move_is_caught_up() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 2);
    // A pending chunk, put to the disk that is going to be relieved.
    let opened = fake.open("slow", "ec:4+2", &[9_000]).unwrap();
    let answer = opened.allocated.clone().unwrap().answers[0].clone();
    let epoch = fake.put(&answer);
    let m = rows::member(fake.db.conn(), answer.pg_id, 0).unwrap().unwrap();
    let used: BTreeSet<u64> = rows::members(fake.db.conn(), answer.pg_id).unwrap().iter().map(|m| m.disk_id).collect();
    let free = fake.nodes.iter().map(|n| n.disks[0]).find(|d| !used.contains(d)).unwrap();
    let change = Move { pg_id: answer.pg_id, position: 0, disk_id: m.disk_id, incoming_was: 0, incoming: free };
    fake.propose(vec![MoveMembers { moves: vec![change] }.propose()]);
    // The fill passes everything, the pending chunk too.
    let to = fake.meta.next_chunk;
    let done: Vec<u64> = fake.chunks().iter().filter(|c| c.1 == answer.pg_id).map(|c| c.0).collect();
    for chunk in &done {
        fake.disks.get_mut(&free).unwrap().held.insert((*chunk, 0));
    }
    let advance = AdvanceFill { pg_id: answer.pg_id, position: 0, incoming: free, from: 0, to, done };
    fake.propose(vec![advance.propose()]);
    // Now it is committed under the epoch it was put with: the old disk still takes puts, so that counts.
    let request = fake.commit_request(&opened, vec![ChunkAck { chunk_id: answer.chunk_id, epoch, missing: vec![] }]);
    let reply: CommitReply = fake.command(&request).unwrap();
    assert!(reply.version > 0, "{reply:?}");
    let finish = FinishFills { fills: vec![FinishFill { pg_id: answer.pg_id, position: 0, incoming: free }] };
    fake.propose(vec![finish.propose()]);
    let m = rows::member(fake.db.conn(), answer.pg_id, 0).unwrap().unwrap();
    assert_eq!(m.disk_id, used.iter().copied().find(|d| *d == m.disk_id).unwrap(), "must not take over yet");
    fake.check();
    fake.until(60, "caught up", |f| {
        f.is_whole() && rows::member(f.db.conn(), answer.pg_id, 0).unwrap().unwrap().disk_id == free
    });
    assert!(fake.disks[&free].held.contains(&(answer.chunk_id, 0)));
    fake.check_replay();
}

/// A manager that forgets everything soft in the middle of repair goes on where the rows stand.
#[test]
fn repair_survives_a_restart_of_the_manager() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 40);
    fake.kill(0);
    fake.until(40, "filling", |f| f.status().members_filling > 0);
    fake.run(1_000);
    fake.restart_manager();
    fake.until(200, "repaired", |f| f.is_whole());
}

/// A node that dies with tasks, and one that never works on them, hold nothing up for ever.
#[test]
fn tasks_of_a_dead_node_are_planned_anew() {
    let mut fake = Fake::new(9, 1);
    write_files(&mut fake, 0, 40);
    fake.kill(0);
    fake.nodes[1].lazy = true;
    fake.until(60, "node 1 has tasks", |f| !f.nodes[1].tasks.is_empty());
    fake.kill(1);
    fake.until(300, "repaired", |f| f.is_whole());
    fake.check_replay();
}

/// P13: rot that a scrub or a reader finds is verified, noted and rebuilt.
#[test]
fn rot_is_found_and_rebuilt() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 10);
    let rot = |f: &mut Fake, node: usize| {
        let disk = f.nodes[node].disks[0];
        let key = *f.disks[&disk].held.iter().next().unwrap();
        f.disks.get_mut(&disk).unwrap().rotten.insert(key);
        f.damaged();
        (disk, key)
    };
    let (disk, _) = rot(&mut fake, 0);
    // Where a record's header has rotted the disk does not even know what it lacks.
    let silent = fake.nodes[1].disks[0];
    let unknown = fake.disks.get_mut(&silent).unwrap().held.pop_first().unwrap();
    fake.damaged();
    let reply = fake.ask(&Maintain { what: Upkeep::Scrub as i32, start: true }).unwrap();
    assert!(reply.running);
    fake.until(60, "scrubbed and rebuilt", |f| {
        f.disks[&disk].rotten.is_empty() && f.disks[&silent].held.contains(&unknown) && f.is_whole()
    });
    fake.run(1_000);
    let reply = fake.ask(&Maintain { what: Upkeep::Scrub as i32, start: false }).unwrap();
    assert_eq!(reply.counters.iter().find(|c| c.name == "rot_found").unwrap().value, 1);
    // A reader's word alone changes nothing; the node that holds it looks.
    let (disk, key) = rot(&mut fake, 3);
    let sound = fragment(*fake.disks[&fake.nodes[5].disks[0]].held.iter().next().unwrap(), fake.nodes[5].disks[0]);
    fake.ask(&ReportBad { fragments: vec![fragment(key, disk), sound] }).unwrap();
    let missing = |f: &Fake| -> i64 {
        f.db.conn().query_row("SELECT count(*) FROM missing_fragments", [], |r| r.get(0)).unwrap()
    };
    assert_eq!(missing(&fake), 0);
    fake.until(60, "rebuilt", |f| f.disks[&disk].rotten.is_empty() && f.is_whole());
    fake.run(2_000);
    assert_eq!(missing(&fake), 0);
    assert!(!fake.ask(&Maintain { what: Upkeep::Scrub as i32, start: false }).unwrap().running);
}

/// P3, P5: what is deleted goes from every disk, also from one that was down, and nothing brings it back.
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
    assert_eq!(garbage::recount(&fake.db).unwrap(), Vec::<String>::new());
    fake.check_replay();
}

/// P4: a session that is older than the deletion holds what it may have been told of; `before_ns` of a planted bug (no
/// grace at all) is caught by the row of the session, and for a reader without a row by this test's own check.
#[test]
fn garbage_waits_for_older_sessions() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 1);
    // A writer is told that the chunks exist (it will send nothing), then the only file that names them goes.
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

/// P4: the planted bug "no grace" loses what a young reader (memory only) still reads, and the check sees it.
#[test]
fn collecting_without_grace_is_caught() {
    for planted in [false, true] {
        let mut fake = Fake::new(8, 1);
        write_files(&mut fake, 1, 1);
        fake.now_ns += MS;
        let reader = crate::sessions::Reader {
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
        // References are taken off whether or not the version's row waits for the reader; the chunks are the point.
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

/// P5: what a writer that died has put is collected once its session has ended.
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

/// P3, P5: an inventory removes what was issued and dropped, leaves what it does not know, and notes what lacks.
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

/// P14: registrations that cannot be true are refused, and change nothing.
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

/// Too few hosts, no room: errors that say numbers and the way out (P14).
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
    for figures in fake.soft.cluster.figures.disks.values_mut() {
        figures.free_bytes = 0;
    }
    fake.soft.cluster.figures.generation += 1;
    let error = fake.open("full", "replica:3", &[4]).unwrap_err();
    assert_eq!(error.kind(), Code::NoSpace);
    assert!(error.message.contains("tessera gc"), "{error}");
}

/// Groups are opened for new disks, and closed when they are full.
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

/// What heartbeats bring: the lease, the map when it changed, tasks again until they are known to run.
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

/// A writer that has put its fragments and not yet committed.
struct Waiting {
    opened: OpenWriteReply,
    acks: Vec<ChunkAck>,
    name: String,
}

/// Numbers for a random scenario.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = crate::layout::mix(self.0);
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Puts what a commit needs where it goes now; None when a disk that takes puts is away.
fn put_all(fake: &mut Fake, answers: &[ChunkAnswer]) -> Option<Vec<ChunkAck>> {
    let mut acks = Vec::new();
    for answer in answers.iter().filter(|a| a.state != ChunkState::Durable as i32) {
        let members = rows::members(fake.db.conn(), answer.pg_id).unwrap();
        let up = |d: u64| fake.nodes.iter().any(|n| n.alive && n.disks.contains(&d));
        if !members.iter().all(|m| up(m.put_disk())) {
            return None;
        }
        let epoch = fake.put(answer);
        acks.push(ChunkAck { chunk_id: answer.chunk_id, epoch, missing: vec![] });
    }
    Some(acks)
}

/// Commits, putting again what came under an old epoch; whether it came through.
fn commit(fake: &mut Fake, mut writer: Waiting) -> bool {
    for _ in 0..4 {
        let request = fake.commit_request(&writer.opened, writer.acks.clone());
        let reply = fake.command(&request).unwrap_or_else(|e| panic!("{}: {e}", writer.name));
        if reply.stale.is_empty() {
            fake.check();
            return true;
        }
        let answers = writer.opened.allocated.clone().unwrap().answers;
        let Some(acks) = put_all(fake, &answers) else { break };
        writer.acks = acks;
    }
    fake.command(&CloseSession { session_id: writer.opened.session_id }).unwrap();
    false
}

/// P3 to P6, P11, P12 over random writes, deletions, losses, returns, drains, joins, rot and restarts of the manager. At
/// most two nodes' worth of damage at a time; after every step redundancy must not have fallen by itself.
fn random_scenario(seed: u64, steps: usize) {
    let mut dice = Dice(seed);
    let mut fake = Fake::new(9, 1);
    let (mut files, mut next, mut waiting) = (Vec::<String>::new(), 0u64, Vec::<Waiting>::new());
    let (mut damage, mut draining) = (0, None::<usize>);
    for _ in 0..steps {
        match dice.below(14) {
            0..=3 => {
                next += 1;
                let seeds: Vec<u64> = (0..1 + dice.below(3))
                    .map(|_| dice.below(400) as u64)
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect();
                let name = format!("r{next}");
                let class = ["ec:4+2", "replica:3", "ec:2+1"][dice.below(2)];
                if let Ok(opened) = fake.open(&name, class, &seeds) {
                    let answers = opened.allocated.clone().unwrap().answers;
                    match put_all(&mut fake, &answers) {
                        Some(acks) => waiting.push(Waiting { opened, acks, name }),
                        None => _ = fake.command(&CloseSession { session_id: opened.session_id }).unwrap(),
                    }
                }
                while waiting.len() > dice.below(4) {
                    let writer = waiting.remove(dice.below(waiting.len()));
                    let name = writer.name.clone();
                    if commit(&mut fake, writer) {
                        files.push(name);
                    }
                }
            }
            4 if !files.is_empty() => {
                let name = files.swap_remove(dice.below(files.len()));
                fake.unlink(&name);
            }
            5 | 6 => {
                if fake.is_whole() {
                    damage = fake.nodes.iter().filter(|n| !n.alive).count();
                }
                let victim = dice.below(fake.nodes.len());
                if damage < 2 && fake.nodes[victim].alive {
                    fake.kill(victim);
                    damage += 1;
                }
            }
            7 => {
                if let Some(dead) = fake.nodes.iter().position(|n| !n.alive) {
                    fake.restart(dead);
                }
            }
            8 => {
                let op_id = fake.op();
                let (undo, node) = match draining.take() {
                    Some(node) => (true, node),
                    None => (false, dice.below(fake.nodes.len())),
                };
                let request = Drain { op_id, node_id: fake.nodes[node].node_id, undo, ..Drain::default() };
                if fake.command(&request).is_ok() && !undo {
                    draining = Some(node);
                }
            }
            9 if fake.nodes.len() < 12 => _ = fake.join(1),
            10 => {
                fake.restart_manager();
            }
            11 => {
                let node = dice.below(fake.nodes.len());
                fake.nodes[node].lazy = !fake.nodes[node].lazy;
            }
            _ => {}
        }
        let pause = 500 * (1 + dice.below(8) as i64);
        fake.run(pause);
    }
    for writer in waiting {
        fake.command(&CloseSession { session_id: writer.opened.session_id }).unwrap();
    }
    for node in 0..fake.nodes.len() {
        fake.nodes[node].lazy = false;
        if !fake.nodes[node].alive {
            fake.restart(node);
        }
    }
    if let Some(node) = draining {
        let request = Drain { op_id: fake.op(), node_id: fake.nodes[node].node_id, undo: true, ..Drain::default() };
        fake.command(&request).unwrap();
    }
    fake.until(400, &format!("seed {seed}: whole"), |f| f.is_whole());
    fake.run(2_000);
    let status = fake.status();
    assert_eq!((status.chunks_full, status.chunks_lost), (status.chunks, 0), "seed {seed}");
    assert_eq!(garbage::recount(&fake.db).unwrap(), Vec::<String>::new(), "seed {seed}");
    for name in files {
        fake.unlink(&name);
    }
    fake.until(40, &format!("seed {seed}: collected"), |f| f.status().garbage_chunks == 0);
    let want: Vec<u64> = fake.disks.keys().copied().collect();
    let list = crate::internal::SetInventory { want, done_disk_id: 0, done_wanted: 0 };
    fake.propose(vec![list.propose()]);
    fake.until(60, &format!("seed {seed}: nothing left"), |f| {
        f.disks.values().all(|d| d.held.is_empty()) && f.status().deletes_pending == 0
    });
    let status = fake.status();
    assert_eq!((status.chunks, status.unique_bytes, status.stored_bytes), (0, 0, 0), "seed {seed}");
    assert_eq!(garbage::recount(&fake.db).unwrap(), Vec::<String>::new(), "seed {seed}");
    fake.check_replay();
}

#[test]
fn random_scenarios_keep_the_promises() {
    for seed in 0..8 {
        random_scenario(seed, 40);
    }
}

/// The scenarios above can fail: every bug of the table is caught, by the random ones within a few seeds or by the one that
/// is made for it.
#[test]
fn planted_bugs_are_caught() {
    let caught = |bug: Bug, scenario: &dyn Fn()| {
        planted::plant(Some(bug));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scenario));
        planted::plant(None);
        outcome.is_err()
    };
    let random = || (0..12).for_each(|seed| random_scenario(seed, 40));
    let table: [(Bug, &dyn Fn()); 6] = [
        (Bug::NoGrace, &garbage_waits_for_older_sessions),
        (Bug::StaleEpochCounts, &acknowledgements_under_an_old_epoch_do_not_count),
        (Bug::MoveEndsEarly, &a_commit_behind_the_cursor_of_a_move_is_caught_up),
        (Bug::PassedChunksForgotten, &a_commit_during_a_batch_of_a_move_is_caught_up),
        (Bug::ReturnsUnlisted, &a_node_returns_after_it_was_given_up),
        (Bug::SharedHost, &random),
    ];
    for (bug, scenario) in table {
        assert!(caught(bug, scenario), "{bug:?} was planted and nothing noticed");
    }
    assert!(caught(Bug::NoGrace, &random), "no grace, random scenarios");
}

/// P6: a chunk that is committed to the old disk while a batch of a move is under way is not in the batch, and is noted.
#[test]
fn a_commit_during_a_batch_of_a_move_is_caught_up() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 2);
    let opened = fake.open("slow", "ec:4+2", &[9_000]).unwrap();
    let answer = opened.allocated.clone().unwrap().answers[0].clone();
    let epoch = fake.put(&answer);
    let members = rows::members(fake.db.conn(), answer.pg_id).unwrap();
    let free = fake.nodes.iter().map(|n| n.disks[0]).find(|d| !members.iter().any(|m| m.disk_id == *d)).unwrap();
    let change =
        Move { pg_id: answer.pg_id, position: 0, disk_id: members[0].disk_id, incoming_was: 0, incoming: free };
    fake.propose(vec![MoveMembers { moves: vec![change] }.propose()]);
    let done: Vec<u64> = fake.chunks().iter().filter(|c| c.1 == answer.pg_id).map(|c| c.0).collect();
    done.iter().for_each(|chunk| _ = fake.disks.get_mut(&free).unwrap().held.insert((*chunk, 0)));
    // Committed before the cursor moves: no row of its own commit says that the incoming disk lacks it.
    let request = fake.commit_request(&opened, vec![ChunkAck { chunk_id: answer.chunk_id, epoch, missing: vec![] }]);
    assert!(fake.command(&request).unwrap().version > 0);
    let to = fake.meta.next_chunk;
    fake.propose(vec![
        AdvanceFill { pg_id: answer.pg_id, position: 0, incoming: free, from: 0, to, done }.propose(),
        FinishFills { fills: vec![FinishFill { pg_id: answer.pg_id, position: 0, incoming: free }] }.propose(),
    ]);
    assert_eq!(rows::member(fake.db.conn(), answer.pg_id, 0).unwrap().unwrap().disk_id, members[0].disk_id);
    fake.until(60, "caught up", |f| {
        f.is_whole() && rows::member(f.db.conn(), answer.pg_id, 0).unwrap().unwrap().disk_id == free
    });
    fake.check_replay();
}

/// P11: nobody is declared out while a lease may run, however much repair is hurried.
#[test]
fn nobody_is_given_up_while_a_lease_may_run() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 2);
    fake.config.down_after_ms = 700;
    fake.config.out_after_ms = 0;
    fake.kill(3);
    let silent_from = fake.now_ns;
    for _ in 0..20 {
        fake.ask(&Maintain { what: Upkeep::Repair as i32, start: true }).unwrap();
        fake.run(500);
        if fake.status().nodes[3].health() == Health::Out {
            assert!(fake.now_ns - silent_from > ns(fake.config.node_lease_ms), "out before its lease had ended");
            fake.until(100, "repaired", |f| f.is_whole());
            assert!(!fake.ask(&Maintain { what: Upkeep::Repair as i32, start: false }).unwrap().running);
            return;
        }
    }
    panic!("never given up");
}

/// P6: a manager that was stopped for an hour does not take its own silence for the nodes'.
#[test]
fn a_manager_that_slept_gives_nobody_up() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 2);
    fake.run(1_000);
    fake.now_ns += 3_600_000 * MS;
    for _ in 0..3 {
        // Ticks come before the heartbeats that waited.
        let proposals = fake.view(crate::cluster::on_tick);
        fake.propose(proposals);
        fake.now_ns += 100 * MS;
    }
    assert!(fake.status().nodes.iter().all(|n| n.health() == Health::Up));
    fake.run(1_000);
    // The clock of silence runs again from then on.
    fake.kill(2);
    fake.until(20, "down", |f| f.status().nodes[2].health() == Health::Down);
}

/// New chunks go where there is room and queues are short, and not where the writer has just failed.
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
    let figures = |fake: &mut Fake, free: u64, queue: u32| {
        let disk = fake.soft.cluster.figures.disks.get_mut(&crowded).unwrap();
        (disk.free_bytes, disk.queue_len) = (free, queue);
        fake.soft.cluster.figures.generation += 1;
    };
    figures(&mut fake, CAPACITY / 8, 0);
    let full = count(&mut fake, &[], 20_000).0 as f64 / 400.0;
    figures(&mut fake, CAPACITY, 64);
    let busy = count(&mut fake, &[], 30_000).0 as f64 / 400.0;
    assert!(full < even / 2.0 && busy < even / 2.0, "even {even}, full {full}, busy {busy}");
    figures(&mut fake, CAPACITY, 0);
    let pgs: Vec<u64> = (1..fake.meta.next_pg).collect();
    let (avoid, _) = pgs.split_at(pgs.len() / 2);
    assert_eq!(count(&mut fake, avoid, 40_000).1, 0, "other groups are there");
    assert_eq!(count(&mut fake, &pgs, 50_000).1, 400, "better a group that failed than none (P12)");
}
