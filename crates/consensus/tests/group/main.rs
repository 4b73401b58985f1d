//! Whole groups of peers from one seed: crashes, power losses, rolled back directories, full disks, cut and slow networks, members
//! that come and go. What the group promised must hold at every step, and it must serve again once all is well.
//!
//! `SIM_FROM=K SIM_SEEDS=N cargo test -p tessera-consensus --test group` runs other seeds; `SIM_LOG=1` prints a trace.

mod host;
mod oracle;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs a seed; an error says what went wrong.
fn run(seed: u64) -> Result<oracle::Counts, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
    })
}

#[test]
fn groups_keep_what_they_promise() {
    let (from, count) = (number("SIM_FROM", 1), number("SIM_SEEDS", 120));
    let mut all = oracle::Counts::default();
    for seed in from..from + count {
        match run(seed) {
            Ok(counts) => all.add(&counts),
            Err(why) => panic!("seed {seed}: {why}; SIM_LOG=1 SIM_FROM={seed} SIM_SEEDS=1 replays it"),
        }
    }
    println!("{count} groups: {all:?}");
    if count >= 100 {
        all.assert_reached();
    }
}

#[test]
fn hosts_that_all_moved_find_each_other() {
    for seed in 1..=40 {
        World::new(seed).run_moved();
    }
}

#[test]
fn a_seed_replays_itself() {
    for seed in [3, 5, 8] {
        let trace = |_| {
            let mut world = World::new(seed);
            world.trace = Some(Vec::new());
            world.advance_to(60_000);
            world.trace.take().unwrap_or_default()
        };
        let (once, again) = (trace(0), trace(1));
        assert!(once.len() > 100, "seed {seed} does something");
        assert_eq!(once, again, "seed {seed}");
    }
}

/// Mistakes that this test must catch within 2,000 seeds, each with a seed shortly before one that does: a search from 1 takes minutes.
const MISTAKES: [(&str, u64); 7] = [
    ("consensus.acknowledges_before_sync", 1),
    ("consensus.asks_nobody", 1_120),
    ("consensus.confirms_at_once", 165),
    ("consensus.drops_too_much", 40),
    ("consensus.forgets_votes", 1),
    ("consensus.keeps_torn_tail", 35),
    ("consensus.skips_snapshot_hash", 45),
];

#[test]
fn mistakes_are_caught() {
    for (mistake, near) in MISTAKES {
        let _guard = tessera_failpoint::activate(mistake);
        let from = number("SIM_FROM", near);
        let caught = (from..from + 2_000).find(|&seed| run(seed).is_err());
        let caught = caught.unwrap_or_else(|| panic!("{mistake} is not caught within 2,000 seeds"));
        println!("{mistake}: seed {caught}");
    }
}
