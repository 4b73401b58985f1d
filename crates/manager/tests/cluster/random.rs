//! Random scenarios, and the mistakes (failpoints) that they must catch.

use super::members::a_node_returns_after_it_was_given_up;
use super::repair::{
    a_commit_behind_the_cursor_of_a_move_is_caught_up, a_commit_during_a_batch_of_a_move_is_caught_up,
    acknowledgements_under_an_old_epoch_do_not_count,
};
use super::upkeep::{a_reader_keeps_its_version_and_nothing_else, garbage_waits_for_older_sessions};
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
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Puts the fragments that a commit needs; `None` if a disk that takes puts is unreachable.
fn put_all(cluster: &mut Cluster, opened: &OpenWriteReply) -> Option<Vec<ChunkAck>> {
    let new = opened.allocated.iter().flat_map(|a| &a.answers).filter(|a| a.state != ChunkState::Durable as i32);
    let mut disks = new.flat_map(|a| cluster.members_of(a.pg_id)).map(|m| m.put_disk()).collect::<Vec<_>>().into_iter();
    let all_up = disks.all(|disk| !cluster.node_of(disk).down);
    all_up.then(|| cluster.put_all(opened))
}

/// Commits, and repeats puts of an old epoch; returns whether the commit succeeded.
fn commit(cluster: &mut Cluster, mut writer: QueueItem) -> bool {
    for _ in 0..4 {
        let request = cluster.commit_request(&writer.opened, writer.acks.clone());
        let reply = cluster.ask(&request).unwrap_or_else(|e| panic!("{}: {e}", writer.name));
        if reply.stale.is_empty() {
            cluster.check();
            return true;
        }
        let Some(acks) = put_all(cluster, &writer.opened) else { break };
        writer.acks = acks;
    }
    cluster.ask(&CloseSession { session_id: writer.opened.session_id, ..Default::default() }).unwrap();
    false
}

/// P3 to P6, P11, P12 over random writes, deletions, losses, returns, drains, joins, corruption and restarts of the manager.
/// At most two nodes are damaged at a time. After every step the manager must not have lowered redundancy.
fn random_scenario(seed: u64, steps: usize) {
    let mut rng = Rng(seed);
    let mut cluster = Cluster::new(9, 1);
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
                if let Ok(opened) = cluster.open(&name, class, &seeds) {
                    match put_all(&mut cluster, &opened) {
                        Some(acks) => waiting.push(QueueItem { opened, acks, name }),
                        None => {
                            _ = cluster
                                .ask(&CloseSession { session_id: opened.session_id, ..Default::default() })
                                .unwrap()
                        }
                    }
                }
                while waiting.len() > rng.below(4) {
                    let writer = waiting.remove(rng.below(waiting.len()));
                    let name = writer.name.clone();
                    if commit(&mut cluster, writer) {
                        files.push(name);
                    }
                }
            }
            4 if !files.is_empty() => {
                let name = files.swap_remove(rng.below(files.len()));
                cluster.unlink(&name);
            }
            5 | 6 => {
                if cluster.is_whole() {
                    damage = cluster.nodes.iter().filter(|n| n.down).count();
                }
                let victim = rng.below(cluster.nodes.len());
                if damage < 2 && !cluster.nodes[victim].down {
                    cluster.kill(victim);
                    damage += 1;
                }
            }
            7 => {
                if let Some(dead) = cluster.nodes.iter().position(|n| n.down) {
                    cluster.restart(dead);
                }
            }
            8 => {
                let op_id = cluster.op();
                let (undo, node) = match draining.take() {
                    Some(node) => (true, node),
                    None => (false, rng.below(cluster.nodes.len())),
                };
                let request = Drain { op_id, node_id: cluster.nodes[node].node_id, undo, ..Drain::default() };
                if cluster.ask(&request).is_ok() && !undo {
                    draining = Some(node);
                }
            }
            9 if cluster.nodes.len() < 12 => _ = cluster.join(1),
            10 => {
                cluster.restart_manager(config());
            }
            11 => {
                let node = rng.below(cluster.nodes.len());
                cluster.nodes[node].lazy = !cluster.nodes[node].lazy;
            }
            _ => {}
        }
        for writer in &waiting {
            cluster.ask(&RenewSession { session_id: writer.opened.session_id, ..RenewSession::default() }).unwrap();
        }
        let pause = 500 * (1 + rng.below(8) as i64);
        cluster.run(pause);
    }
    for writer in waiting {
        cluster.ask(&CloseSession { session_id: writer.opened.session_id, ..Default::default() }).unwrap();
    }
    for node in 0..cluster.nodes.len() {
        cluster.nodes[node].lazy = false;
        if cluster.nodes[node].down {
            cluster.restart(node);
        }
    }
    if let Some(node) = draining {
        let request =
            Drain { op_id: cluster.op(), node_id: cluster.nodes[node].node_id, undo: true, ..Drain::default() };
        cluster.ask(&request).unwrap();
    }
    cluster.until(400, &format!("seed {seed}: whole"), |f| f.is_whole());
    cluster.run(2_000);
    let status = cluster.status();
    assert_eq!((status.chunks_full, status.chunks_lost), (status.chunks, 0), "seed {seed}");
    assert_eq!(recount(cluster.db().conn()).unwrap(), Vec::<String>::new(), "seed {seed}");
    for name in files {
        cluster.unlink(&name);
    }
    // A restarted manager waits for readers that it may not know.
    cluster.until(100, &format!("seed {seed}: collected"), |f| f.status().garbage_chunks == 0);
    // Each second one disk is told to list its fragments; the interval is long enough for all of them.
    cluster.restart_manager(Config { inventory_every_ms: 20_000, ..config() });
    cluster.until(100, &format!("seed {seed}: nothing left"), |f| {
        f.disks.values().all(|d| d.held.is_empty()) && f.status().deletes_pending == 0
    });
    let status = cluster.status();
    assert_eq!((status.chunks, status.unique_bytes, status.stored_bytes), (0, 0, 0), "seed {seed}");
    assert_eq!(recount(cluster.db().conn()).unwrap(), Vec::<String>::new(), "seed {seed}");
    cluster.check_replay();
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
    let table: [(&str, &dyn Fn()); 8] = [
        ("manager.no_grace", &garbage_waits_for_older_sessions),
        ("manager.readers_hold_garbage", &a_reader_keeps_its_version_and_nothing_else),
        ("manager.readers_pin_nothing", &a_reader_keeps_its_version_and_nothing_else),
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
