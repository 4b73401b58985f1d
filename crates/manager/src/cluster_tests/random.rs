//! Random scenarios, and the mistakes (failpoints) that they must catch.

use super::members::a_node_returns_after_it_was_given_up;
use super::repair::{
    a_commit_behind_the_cursor_of_a_move_is_caught_up, a_commit_during_a_batch_of_a_move_is_caught_up,
    acknowledgements_under_an_old_epoch_do_not_count,
};
use super::upkeep::garbage_waits_for_older_sessions;
use super::*;

/// A writer that has put its fragments and not yet committed.
struct QueueItem {
    opened: OpenWriteReply,
    acks: Vec<ChunkAck>,
    name: String,
}

/// Numbers for a random scenario.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = crate::placement::layout::mix(self.0);
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Puts the fragments that a commit needs; `None` if a disk that takes puts is unreachable.
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

/// Commits, and repeats puts of an old epoch; returns whether the commit succeeded.
fn commit(fake: &mut Fake, mut writer: QueueItem) -> bool {
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

/// P3 to P6, P11, P12 over random writes, deletions, losses, returns, drains, joins, corruption and restarts of the manager.
/// At most two nodes are damaged at a time. After every step the manager must not have lowered redundancy.
fn random_scenario(seed: u64, steps: usize) {
    let mut rng = Rng(seed);
    let mut fake = Fake::new(9, 1);
    let (mut files, mut next, mut waiting) = (Vec::<String>::new(), 0u64, Vec::<QueueItem>::new());
    let (mut damage, mut draining) = (0, None::<usize>);
    for _ in 0..steps {
        match rng.below(14) {
            0..=3 => {
                next += 1;
                let seeds: Vec<u64> =
                    (0..1 + rng.below(3)).map(|_| rng.below(400) as u64).collect::<BTreeSet<_>>().into_iter().collect();
                let name = format!("r{next}");
                let class = ["ec:4+2", "replica:3", "copy+ec:4+2"][rng.below(3)];
                if let Ok(opened) = fake.open(&name, class, &seeds) {
                    let answers = opened.allocated.clone().unwrap().answers;
                    match put_all(&mut fake, &answers) {
                        Some(acks) => waiting.push(QueueItem { opened, acks, name }),
                        None => _ = fake.command(&CloseSession { session_id: opened.session_id }).unwrap(),
                    }
                }
                while waiting.len() > rng.below(4) {
                    let writer = waiting.remove(rng.below(waiting.len()));
                    let name = writer.name.clone();
                    if commit(&mut fake, writer) {
                        files.push(name);
                    }
                }
            }
            4 if !files.is_empty() => {
                let name = files.swap_remove(rng.below(files.len()));
                fake.unlink(&name);
            }
            5 | 6 => {
                if fake.is_whole() {
                    damage = fake.nodes.iter().filter(|n| !n.alive).count();
                }
                let victim = rng.below(fake.nodes.len());
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
                    None => (false, rng.below(fake.nodes.len())),
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
                let node = rng.below(fake.nodes.len());
                fake.nodes[node].lazy = !fake.nodes[node].lazy;
            }
            _ => {}
        }
        let pause = 500 * (1 + rng.below(8) as i64);
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
    assert_eq!(audit::recount(&fake.db).unwrap(), Vec::<String>::new(), "seed {seed}");
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
    assert_eq!(audit::recount(&fake.db).unwrap(), Vec::<String>::new(), "seed {seed}");
    fake.check_replay();
}

#[test]
fn random_scenarios_keep_the_promises() {
    for seed in 0..8 {
        random_scenario(seed, 40);
    }
}

/// The scenarios above catch every failpoint of the table: the random ones within a few seeds, or the one made for it.
#[test]
fn mistakes_are_caught() {
    let caught = |name: &str, scenario: &dyn Fn()| {
        let _guard = failpoint::activate(name);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(scenario)).is_err()
    };
    let random = || (0..12).for_each(|seed| random_scenario(seed, 40));
    let table: [(&str, &dyn Fn()); 6] = [
        ("manager.no_grace", &garbage_waits_for_older_sessions),
        ("manager.stale_epoch_counts", &acknowledgements_under_an_old_epoch_do_not_count),
        ("manager.move_ends_early", &a_commit_behind_the_cursor_of_a_move_is_caught_up),
        ("manager.passed_chunks_forgotten", &a_commit_during_a_batch_of_a_move_is_caught_up),
        ("manager.returns_unlisted", &a_node_returns_after_it_was_given_up),
        ("manager.shared_host", &random),
    ];
    for (name, scenario) in table {
        assert!(caught(name, scenario), "failpoint {name} is active and no check fails");
    }
    assert!(caught("manager.no_grace", &random), "no grace, random scenarios");
}
