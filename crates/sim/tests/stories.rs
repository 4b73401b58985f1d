//! Whole clusters from seeds: all promises hold, the same seed is the same story, and planted bugs are noticed.
//!
//! `SIM_SEEDS=N` runs N seeds instead of the few that fit an everyday run; `SIM_FROM` says where to start.

use std::sync::atomic::{AtomicU64, Ordering};
use tessera_sim::oracle::Violation;
use tessera_sim::plan::Plan;
use tessera_sim::planted::Planted;
use tessera_sim::world::{Report, World};

/// Seeds that once broke a promise, or a simulator.
const OLD_FAILURES: &[u64] = &[3, 13, 15, 18, 31, 47, 50, 53, 62, 97, 104, 346, 371, 466, 176, 338, 429, 555, 1021];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn story(seed: u64, planted: Planted) -> Report {
    World::new(Plan::survivable(seed), planted, false).run()
}

/// Runs seeds on two threads until one breaks a promise; that seed and the promise.
fn first_broken(seeds: &[u64], planted: Planted) -> Option<(u64, Violation)> {
    let next = AtomicU64::new(0);
    let found = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    if found.lock().unwrap().is_some() {
                        return;
                    }
                    if let Some(violation) = story(seed, planted).violation {
                        found.lock().unwrap().get_or_insert((seed, violation));
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// P1, P2, P3, P4, P5, P6, P7, P8, P11, P12, as `oracle.rs` and `world.rs` judge them.
#[test]
fn no_seed_breaks_a_promise() {
    let from = number("SIM_FROM", 1);
    let fresh = from..from + number("SIM_SEEDS", 150);
    let seeds: Vec<u64> = OLD_FAILURES.iter().copied().chain(fresh).collect();
    if let Some((seed, violation)) = first_broken(&seeds, Planted::Nothing) {
        panic!("seed {seed}: {} {}", violation.promise, violation.fact);
    }
}

#[test]
fn the_same_seed_is_the_same_story() {
    for seed in [7, 8] {
        let (one, two) = (story(seed, Planted::Nothing), story(seed, Planted::Nothing));
        assert_eq!((one.trace, one.events), (two.trace, two.events), "seed {seed}");
    }
}

/// A simulator that notices nothing proves nothing. At most 2,000 seeds a bug (docs/promises.md); fewer suffice.
#[test]
fn every_planted_bug_is_noticed() {
    let seeds: Vec<u64> = (1..=2_000).collect();
    for bug in Planted::ALL {
        let found = first_broken(&seeds, *bug);
        assert!(found.is_some(), "{bug:?} was not noticed within {} seeds", seeds.len());
        let (seed, violation) = found.unwrap();
        println!("{bug:?}: seed {seed}, {}", violation.promise);
    }
}
