//! Rebuilds, and which acknowledgements count during them.

use super::*;

/// P11: acknowledgements from before a disk was declared out do not count at commit.
#[test]
pub(super) fn acknowledgements_under_an_old_epoch_do_not_count() {
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

/// P6: a chunk committed to a moving member's old disk, behind the cursor, is not lost when the new disk takes over.
#[test]
pub(super) fn a_commit_behind_the_cursor_of_a_move_is_caught_up() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 1, 2);
    // A pending chunk, put to the disk that the member will leave.
    let opened = fake.open("slow", "ec:4+2", &[9_000]).unwrap();
    let answer = opened.allocated.clone().unwrap().answers[0].clone();
    let epoch = fake.put(&answer);
    let m = rows::member(fake.db.conn(), answer.pg_id, 0).unwrap().unwrap();
    let used: BTreeSet<u64> = rows::members(fake.db.conn(), answer.pg_id).unwrap().iter().map(|m| m.disk_id).collect();
    let free = fake.nodes.iter().map(|n| n.disks[0]).find(|d| !used.contains(d)).unwrap();
    let change = Move { pg_id: answer.pg_id, position: 0, disk_id: m.disk_id, incoming_was: 0, incoming: free };
    fake.propose(vec![MoveMembers { moves: vec![change] }.propose()]);
    // The backfill passes everything, the pending chunk too.
    let to = fake.meta.next_chunk - 1;
    let done: Vec<u64> = fake.chunks().iter().filter(|c| c.1 == answer.pg_id).map(|c| c.0).collect();
    for chunk in &done {
        fake.disks.get_mut(&free).unwrap().held.insert((*chunk, 0));
    }
    let advance = AdvanceBackfill { pg_id: answer.pg_id, position: 0, incoming: free, from: 0, to, done };
    fake.propose(vec![advance.propose()]);
    // The commit uses the epoch of the puts. It counts, because the old disk still takes puts.
    let request = fake.commit_request(&opened, vec![ChunkAck { chunk_id: answer.chunk_id, epoch, missing: vec![] }]);
    let reply: CommitReply = fake.command(&request).unwrap();
    assert!(reply.version > 0, "{reply:?}");
    let finish = FinishBackfills { fills: vec![FinishBackfill { pg_id: answer.pg_id, position: 0, incoming: free }] };
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

/// A manager that loses its soft state during repair continues from its rows.
#[test]
fn repair_survives_a_restart_of_the_manager() {
    let mut fake = Fake::new(8, 1);
    write_files(&mut fake, 0, 40);
    fake.kill(0);
    fake.until(40, "filling", |f| f.status().members_backfilling > 0);
    fake.run(1_000);
    fake.restart_manager();
    fake.until(200, "repaired", |f| f.is_whole());
}

/// A node that dies with tasks, or never works on them, does not block repair for ever.
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

/// P13: corruption that a scrub or a reader finds is verified, recorded and rebuilt.
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
    // If a record's header is corrupt, the disk does not know which fragment it lacks.
    let silent = fake.nodes[1].disks[0];
    let unknown = fake.disks.get_mut(&silent).unwrap().held.pop_first().unwrap();
    fake.damaged();
    // An interrupted scrub restarts.
    fake.disks.get_mut(&disk).unwrap().scrubs_cut_short = 2;
    let reply = fake.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start: true }).unwrap();
    assert!(reply.running);
    fake.until(60, "scrubbed and rebuilt", |f| {
        f.disks[&disk].rotten.is_empty() && f.disks[&silent].held.contains(&unknown) && f.is_whole()
    });
    fake.run(1_000);
    let reply = fake.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start: false }).unwrap();
    assert_eq!(reply.counters.iter().find(|c| c.name == "rot_found").unwrap().value, 1);
    // A reader's report alone changes nothing; the node that holds the fragment verifies it.
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
    assert!(!fake.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start: false }).unwrap().running);
}

/// P6: a chunk committed to the old disk during a batch of a move is not in the batch, and gets a missing row.
#[test]
pub(super) fn a_commit_during_a_batch_of_a_move_is_caught_up() {
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
    // Committed before the cursor moves: the commit writes no missing row for the incoming disk.
    let request = fake.commit_request(&opened, vec![ChunkAck { chunk_id: answer.chunk_id, epoch, missing: vec![] }]);
    assert!(fake.command(&request).unwrap().version > 0);
    let to = fake.meta.next_chunk - 1;
    fake.propose(vec![
        AdvanceBackfill { pg_id: answer.pg_id, position: 0, incoming: free, from: 0, to, done }.propose(),
        FinishBackfills { fills: vec![FinishBackfill { pg_id: answer.pg_id, position: 0, incoming: free }] }.propose(),
    ]);
    assert_eq!(rows::member(fake.db.conn(), answer.pg_id, 0).unwrap().unwrap().disk_id, members[0].disk_id);
    fake.until(60, "caught up", |f| {
        f.is_whole() && rows::member(f.db.conn(), answer.pg_id, 0).unwrap().unwrap().disk_id == free
    });
    fake.check_replay();
}
