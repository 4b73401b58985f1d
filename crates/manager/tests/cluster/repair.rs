//! Rebuilds, and which acknowledgements count during them.

use super::*;

/// P11: acknowledgements from before a disk was declared out do not count at commit.
#[test]
pub(super) fn acknowledgements_under_an_old_epoch_do_not_count() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 1, 1);
    let opened = cluster.open("late", "ec:4+2", &[7_000]).unwrap();
    let answer = opened.allocated.clone().unwrap().answers[0].clone();
    let epoch = cluster.put(&answer);
    let members = cluster.members_of(answer.pg_id);
    let lost = cluster.nodes.iter().position(|n| n.disks[0] == members[2].disk_id).unwrap();
    cluster.kill(lost);
    cluster.until(60, "replaced", |f| f.members_of(answer.pg_id)[2].since_epoch > 1);
    let ack = ChunkAck { chunk_id: answer.chunk_id, epochs: vec![epoch], ..ChunkAck::default() };
    let request = cluster.commit_request(&opened, vec![ack.clone()]);
    let reply: CommitReply = cluster.ask(&request).unwrap();
    assert_eq!(reply.version, 0);
    assert_eq!(reply.stale.len(), 1);
    assert_eq!(reply.stale[0].fragments, vec![2], "only the lost member's fragment is to be put again");
    cluster.until(60, "a new disk takes puts", |f| {
        let m = f.members_of(answer.pg_id)[2];
        m.put_disk() != members[2].disk_id
    });
    let epoch = cluster.put(&answer);
    let request = cluster.commit_request(&opened, vec![ChunkAck { epochs: vec![epoch], ..ack }]);
    let reply: CommitReply = cluster.ask(&request).unwrap();
    assert!(reply.version > 0 && reply.stale.is_empty());
    cluster.until(100, "whole", |f| f.is_whole());
    cluster.check_replay();
}

/// A chunk of a writer that is slow to commit, in a group whose member 0 moves.
struct SlowWriter {
    opened: OpenWriteReply,
    acks: Vec<ChunkAck>,
    chunk: ChunkAnswer,
    /// Disk that the member leaves.
    old: u64,
    /// Disk that it moves to, and the index of its node.
    incoming: u64,
    node: usize,
}

/// A writer puts a chunk; a later chunk of the same group is committed; then the node of the group's member 0 is drained.
fn slow_writer(cluster: &mut Cluster) -> SlowWriter {
    let opened = cluster.open("slow", "ec:4+2", &[9_000]).unwrap();
    let chunk = opened.allocated.clone().unwrap().answers[0].clone();
    let acks = cluster.put_all(&opened);
    for i in 0.. {
        cluster.write(&format!("quick{i}"), "ec:4+2", &[i]);
        if cluster.committed().last().unwrap().pg_id == chunk.pg_id {
            break;
        }
    }
    let old = cluster.members_of(chunk.pg_id)[0].disk_id;
    let drain = Drain { op_id: cluster.op(), node_id: cluster.node_of(old).node_id, ..Drain::default() };
    cluster.ask(&drain).unwrap();
    cluster.now_ns += 500 * MS;
    cluster.tick();
    let incoming = cluster.members_of(chunk.pg_id)[0].incoming;
    let node = cluster.nodes.iter().position(|n| n.disks.contains(&incoming)).unwrap();
    SlowWriter { opened, acks, chunk, old, incoming, node }
}

impl SlowWriter {
    /// Lets the incoming disk's node beat and work until `done` holds right after a heartbeat.
    fn move_until(&self, cluster: &mut Cluster, done: impl Fn(&Cluster) -> bool) {
        for _ in 0..20 {
            cluster.beat(self.node);
            if done(cluster) {
                return;
            }
            cluster.work(self.node);
        }
        panic!("the move stands still: {:?}", cluster.members_of(self.chunk.pg_id));
    }

    /// Commits. The acknowledgement counts, because the old disk still takes puts.
    fn commit(&self, cluster: &mut Cluster) {
        let request = cluster.commit_request(&self.opened, self.acks.clone());
        assert!(cluster.ask(&request).unwrap().version > 0);
    }

    /// The incoming disk takes over once it has the slow writer's chunk too, and not before.
    fn is_caught_up(&self, cluster: &mut Cluster) {
        let member = |c: &Cluster| c.members_of(self.chunk.pg_id)[0];
        assert!(member(cluster).fill_cursor > self.chunk.chunk_id, "the move has passed the chunk");
        cluster.now_ns += 500 * MS;
        cluster.tick();
        assert_eq!(member(cluster).disk_id, self.old, "must not take over yet");
        cluster.check();
        cluster.until(60, "caught up", |c| c.is_whole() && member(c).disk_id == self.incoming);
        assert!(cluster.disks[&self.incoming].held.contains_key(&(self.chunk.chunk_id, 0)));
        cluster.check_replay();
    }
}

/// P6: a chunk committed to a moving member's old disk, behind the cursor, is not lost when the new disk takes over.
#[test]
pub(super) fn a_commit_behind_the_cursor_of_a_move_is_caught_up() {
    let mut cluster = Cluster::new(8, 1);
    let slow = slow_writer(&mut cluster);
    slow.move_until(&mut cluster, |c| c.members_of(slow.chunk.pg_id)[0].fill_cursor > slow.chunk.chunk_id);
    slow.commit(&mut cluster);
    slow.is_caught_up(&mut cluster);
}

/// P6: a chunk committed to the old disk during a batch of a move is not in the batch, and gets a missing row.
#[test]
pub(super) fn a_commit_during_a_batch_of_a_move_is_caught_up() {
    let mut cluster = Cluster::new(8, 1);
    let slow = slow_writer(&mut cluster);
    let is_of_group =
        |task: &Task| task.rebuild.as_ref().is_some_and(|r| r.pg.as_ref().unwrap().pg_id == slow.chunk.pg_id);
    slow.move_until(&mut cluster, |c| c.nodes[slow.node].tasks.iter().any(is_of_group));
    // Committed before the cursor moves: the commit writes no missing row for the incoming disk.
    slow.commit(&mut cluster);
    cluster.work(slow.node);
    cluster.beat(slow.node);
    slow.is_caught_up(&mut cluster);
}

/// A manager that loses its soft state during repair continues from its rows.
#[test]
fn repair_survives_a_restart_of_the_manager() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 40);
    cluster.kill(0);
    cluster.until(40, "filling", |f| f.status().members_backfilling > 0);
    cluster.run(1_000);
    cluster.restart_manager(config());
    cluster.until(200, "repaired", |f| f.is_whole());
}

/// A node that dies with tasks, or never works on them, does not block repair for ever.
#[test]
fn tasks_of_a_dead_node_are_planned_again() {
    let mut cluster = Cluster::new(9, 1);
    write_files(&mut cluster, 0, 40);
    cluster.kill(0);
    cluster.nodes[1].lazy = true;
    cluster.until(60, "node 1 has tasks", |f| !f.nodes[1].tasks.is_empty());
    cluster.kill(1);
    cluster.until(300, "repaired", |f| f.is_whole());
    cluster.check_replay();
}

/// A disk says how much it has re-read in a cycle before, and reads more than it holds while compaction moves records.
#[test]
fn a_scrub_is_never_further_than_its_end() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 10);
    let used = |c: &Cluster, node: usize| c.disks[&c.nodes[node].disks[0]].held.len() as u64 * (1 << 18);
    let total: u64 = (0..8).map(|node| used(&cluster, node)).sum();
    let say = |c: &mut Cluster, node: usize, bytes| {
        let disk = c.nodes[node].disks[0];
        c.disks.get_mut(&disk).unwrap().scrubbed_bytes = bytes;
    };
    (0..8).for_each(|node| say(&mut cluster, node, 1 << 40));
    cluster.run(2_000);
    cluster.nodes.iter_mut().for_each(|node| node.lazy = true);
    let scrub = |c: &mut Cluster, start| {
        let reply = c.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start }).unwrap();
        (reply.running, reply.done, reply.total)
    };
    assert_eq!(scrub(&mut cluster, true), (true, 0, total));
    (0..8).for_each(|node| say(&mut cluster, node, 1_000));
    cluster.run(2_000);
    assert_eq!(scrub(&mut cluster, false), (true, 8_000, total));
    let twice = 2 * used(&cluster, 0);
    say(&mut cluster, 0, twice);
    cluster.run(2_000);
    assert_eq!(scrub(&mut cluster, false), (true, used(&cluster, 0) + 7_000, total));
    (1..8).for_each(|node| cluster.nodes[node].lazy = false);
    cluster.run(2_000);
    let (running, done, total) = scrub(&mut cluster, false);
    assert!(running && done == total, "one disk is left, and has re-read more than it holds: {done} of {total}");
}

/// P13: corruption that a scrub or a reader finds is verified, recorded and rebuilt.
#[test]
fn rot_is_found_and_rebuilt() {
    let mut cluster = Cluster::new(8, 1);
    write_files(&mut cluster, 0, 10);
    let rot = |f: &mut Cluster, node: usize| {
        let disk = f.nodes[node].disks[0];
        let mut held = f.disks.get_mut(&disk).unwrap().held.first_entry().unwrap();
        held.get_mut().rot(0);
        let key = *held.key();
        f.damaged();
        (disk, key)
    };
    let (disk, _) = rot(&mut cluster, 0);
    // If a record's header is corrupt, the disk does not know which fragment it lacks.
    let silent = cluster.nodes[1].disks[0];
    let unknown = cluster.disks.get_mut(&silent).unwrap().held.pop_first().unwrap().0;
    cluster.damaged();
    // An interrupted scrub restarts.
    cluster.disks.get_mut(&disk).unwrap().scrubs_cut_short = 2;
    let reply = cluster.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start: true }).unwrap();
    assert!(reply.running);
    cluster.until(60, "scrubbed and rebuilt", |f| {
        f.disks[&disk].rotten().is_empty() && f.disks[&silent].held.contains_key(&unknown) && f.is_whole()
    });
    cluster.run(1_000);
    let reply = cluster.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start: false }).unwrap();
    assert_eq!(reply.counters.iter().find(|c| c.name == "rot_found").unwrap().value, 1);
    // A reader's report alone changes nothing; the node that holds the fragment verifies it.
    let (disk, key) = rot(&mut cluster, 3);
    let sound =
        fragment(*cluster.disks[&cluster.nodes[5].disks[0]].held.keys().next().unwrap(), cluster.nodes[5].disks[0]);
    cluster.ask(&ReportBad { fragments: vec![fragment(key, disk), sound], unreadable: vec![] }).unwrap();
    let missing = |f: &Cluster| -> i64 {
        f.db().conn().query_row("SELECT count(*) FROM missing_fragments", [], |r| r.get(0)).unwrap()
    };
    assert_eq!(missing(&cluster), 0);
    cluster.until(60, "rebuilt", |f| f.disks[&disk].rotten().is_empty() && f.is_whole());
    cluster.run(2_000);
    assert_eq!(missing(&cluster), 0);
    assert!(!cluster.ask(&Maintain { what: MaintenanceJob::Scrub as i32, start: false }).unwrap().running);
}
