//! Whole clusters from seeds: all promises hold, the same seed gives the same trace, and mutants are detected.
//!
//! `SIM_SEEDS=N` runs N seeds, and N/4 of the family beyond, instead of the everyday number. `SIM_FROM` is the first seed;
//! `SIM_FROM=fresh` draws it. A failure prints the command that repeats it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_sim::mutants::{Mutant, OF_MOUNTS, OF_ONE_TEST};
use tessera_sim::oracle::Violation;
use tessera_sim::plan::{Fault, Plan};
use tessera_sim::world::{Report, Waits, World};

/// Seeds that once broke a promise or the simulator. The plans have changed since; a bug that such a seed found in the
/// product has its own test beside the code.
#[rustfmt::skip]
const OLD_FAILURES: &[u64] = &[
    3, 13, 15, 18, 31, 47, 50, 53, 62, 75, 97, 104, 346, 371, 466,
    176, 338, 429, 555, 1021, 500074, 710252, 710301, 711412, 712170, 712459, 904626, 907645, 2808, 1000199, 551790116480, 1965,
];
const OLD_FAILURES_BEYOND: &[u64] = &[1032, 500038, 700624];

/// Seeds of an everyday run, of each family.
const SURVIVABLE_SEEDS: u64 = 200;
const BEYOND_SEEDS: u64 = 60;
const ROTTEN_SEEDS: u64 = 40;
const DIFFERING_SEEDS: u64 = 20;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// The first seed: 1, or `SIM_FROM`, or with `SIM_FROM=fresh` a random one.
///
/// The everyday run does not draw: about one fresh seed in some thousands still breaks a promise, and a test that fails by
/// chance teaches people to ignore it. `make soak` draws.
fn first_seed() -> u64 {
    match std::env::var("SIM_FROM").as_deref() {
        Ok("fresh") => 1_000_000 + std::hash::RandomState::new().build_hasher().finish() % 1_000_000_000_000,
        _ => number("SIM_FROM", 1),
    }
}

type Family = fn(u64) -> Plan;

fn simulate(family: Family, seed: u64, mutant: Mutant) -> Report {
    World::new(family(seed), mutant, false).run()
}

/// Runs seeds on two threads until one breaks a promise; that seed and the promise.
fn first_broken(family: Family, seeds: &[u64], mutant: Mutant) -> Option<(u64, Violation)> {
    let next = AtomicU64::new(0);
    let found = std::sync::Mutex::new(None);
    let (next, finding) = (&next, &found);
    std::thread::scope(|scope| {
        for failpoints in [tessera_failpoint::inherit(), tessera_failpoint::inherit()] {
            scope.spawn(move || {
                failpoints.enter();
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    if finding.lock().unwrap().is_some() {
                        return;
                    }
                    if let Some(violation) = simulate(family, seed, mutant).violation {
                        finding.lock().unwrap().get_or_insert((seed, violation));
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// What must happen to the group of peers and between the processes in some of the seeds of an everyday run.
const REACHED: &[&str] = &[
    "elections",
    "voter led",
    "states compared",
    "managers lost",
    "nodes' disks harmed",
    "losses put off",
    "slow processes and disks",
    "names looked up",
    "managers rolled back",
    "damaged managers that join anew",
    "frames held past a lease",
];

/// A simulator that never comes to it proves nothing.
#[test]
fn the_seeds_reach_what_can_happen_to_the_group() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 1..=120 {
        let report = simulate(Plan::survivable, seed, Mutant::None);
        report.counts.into_iter().for_each(|(what, n)| *counts.entry(what).or_default() += n);
    }
    println!("120 seeds: {counts:?}");
    let missing: Vec<_> = REACHED.iter().filter(|what| !counts.contains_key(**what)).collect();
    assert!(missing.is_empty(), "no seed reaches {missing:?}");
}

fn expect_no_violation(family: Family, seeds: &[u64], how: &str) {
    if let Some((seed, Violation { promise, fact })) = first_broken(family, seeds, Mutant::None) {
        panic!(
            "seed {seed}: {promise} {fact}\nagain: SIM_LOG=1 {how}cargo run -p tessera-sim --example seeds -- {seed} 1"
        );
    }
}

/// P1, P2, P3, P4, P5, P6, P7, P8, P11, P12, P13, as `oracle.rs` and `verify.rs` check them.
#[test]
fn no_seed_breaks_a_promise() {
    let from = first_seed();
    let fresh = from..from + number("SIM_SEEDS", SURVIVABLE_SEEDS);
    println!("seeds from {from}");
    let seeds: Vec<u64> = OLD_FAILURES.iter().copied().chain(fresh).collect();
    expect_no_violation(Plan::survivable, &seeds, "");
}

/// P2, P4, P5, P6, P12, P14 when more is destroyed than redundancy can replace: losses are reported, everything else stays.
#[test]
fn what_is_beyond_redundancy_fails_cleanly() {
    let from = first_seed();
    let fresh = from..from + number("SIM_SEEDS", 4 * BEYOND_SEEDS) / 4;
    println!("seeds from {from}");
    let seeds: Vec<u64> = OLD_FAILURES_BEYOND.iter().copied().chain(fresh).collect();
    expect_no_violation(Plan::beyond, &seeds, "SIM_FAMILY=beyond ");
}

/// P2: when the manager's database names other chunks than the writers did, reads fail; without the readers' comparison of
/// names some give another file's bytes.
#[test]
fn rotten_metadata_gives_no_wrong_bytes() {
    let from = first_seed();
    let seeds: Vec<u64> = (from..from + number("SIM_SEEDS", 4 * ROTTEN_SEEDS) / 4).collect();
    expect_no_violation(Plan::rotten_metadata, &seeds, "");
    let _mistake = tessera_failpoint::activate("client.names_not_compared");
    let found = first_broken(Plan::rotten_metadata, &seeds, Mutant::None);
    let promise = found.as_ref().map(|(_, violation)| violation.promise);
    // A log whose extent names another of its chunks shows a record twice: wrong bytes as well.
    assert!(matches!(promise, Some("P2" | "P8")), "without the comparison of names: {found:?}");
}

/// P7: a manager whose database is changed without an entry is found, whatever else happens, and all are equal in the end. The managers
/// of the other families, where nothing changes a database, are never found to differ.
#[test]
fn managers_that_differ_become_equal() {
    let from = first_seed();
    let seeds: Vec<u64> = (from..from + number("SIM_SEEDS", 4 * DIFFERING_SEEDS) / 4).collect();
    expect_no_violation(Plan::differing_managers, &seeds, "SIM_FAMILY=differing ");
    let rebuilt =
        |seed: &u64| simulate(Plan::differing_managers, *seed, Mutant::None).counts.contains_key("databases rebuilt");
    let rebuilt = seeds.iter().take(10).filter(|seed| rebuilt(seed)).count();
    assert!(rebuilt >= 5, "databases are rebuilt in {rebuilt} seeds of 10");
    let _mistake = tessera_failpoint::activate("manager.differences_ignored");
    let found = first_broken(Plan::differing_managers, &seeds, Mutant::None);
    assert!(found.is_some_and(|(_, violation)| violation.promise == "P7"));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for (family, seed) in [(Plan::survivable as Family, 7), (Plan::survivable, 8), (Plan::beyond, 7)] {
        let (one, two) = (simulate(family, seed, Mutant::None), simulate(family, seed, Mutant::None));
        assert_eq!((one.trace, one.events), (two.trace, two.events), "seed {seed}");
    }
}

/// A simulator that detects no mutant proves nothing. At most 2,000 seeds for each (docs/promises.md).
#[test]
fn every_mutant_is_detected() {
    let seeds: Vec<u64> = (1..=2_000).collect();
    let families = [(Plan::survivable as Family, Mutant::ALL), (Plan::beyond, Mutant::BEYOND)];
    for (family, mutant) in families.iter().flat_map(|(family, mutants)| mutants.iter().map(move |m| (*family, m))) {
        let found = first_broken(family, &seeds, *mutant);
        assert!(found.is_some(), "{mutant:?} was not detected within {} seeds", seeds.len());
        let (seed, violation) = found.unwrap();
        println!("{mutant:?}: seed {seed}, {}", violation.promise);
    }
}

/// Mistakes in elections, in the log and in what managers do with it: each within 2,000 seeds, or caught by an assertion of the code.
#[test]
fn every_mistake_of_the_group_is_detected() {
    let chosen = std::env::var("SIM_MISTAKE").ok();
    let mut missed = Vec::new();
    for mistake in Mutant::OF_GROUP.iter().filter(|name| chosen.as_ref().is_none_or(|chosen| chosen == *name)) {
        let started = std::time::Instant::now();
        let _mistake = tessera_failpoint::activate(mistake);
        let broken = |seed| {
            let run = std::panic::AssertUnwindSafe(|| simulate(Plan::survivable, seed, Mutant::None).violation);
            std::panic::catch_unwind(run).map_or(Some(("an assertion", seed)), |found| Some((found?.promise, seed)))
        };
        let found = (1..=2_000).find_map(broken);
        println!("{mistake}: {found:?} in {:?}", started.elapsed());
        missed.extend(found.is_none().then_some(*mistake));
    }
    assert!(missed.is_empty(), "not detected within 2,000 seeds: {missed:?}");
}

/// What one slow node may cost the others, in ms of simulated time: an answer of the leading manager, and an operation. That may first
/// wait for the slow node's answer (1 s) and then chooses another node; a write that is committed already (`durability=optimistic`)
/// offers the slow node its fragment for `late_deadline_ms` (10 s), and leaves it to repair then.
const METADATA_WAIT_MS: u64 = 100;
const OPERATION_WAIT_MS: u64 = 11_000;

/// P12: a node that is slow, has a slow disk or limps delays nobody else, is not given up, and slows no commit although it votes.
#[test]
fn a_slow_node_slows_nobody_else() {
    let slowest = |seeds: std::ops::RangeInclusive<u64>, mutant| {
        let mut slowest = Waits::default();
        for seed in seeds {
            let report = simulate(Plan::one_slow, seed, mutant);
            if let Some(Violation { promise, fact }) = report.violation {
                return Err(format!("seed {seed}: {promise} {fact}"));
            }
            if report.waits.operation_ms > OPERATION_WAIT_MS || report.waits.metadata_ms > METADATA_WAIT_MS {
                println!("seed {seed} of the slow family: {:?}", report.waits);
            }
            slowest.metadata_ms = slowest.metadata_ms.max(report.waits.metadata_ms);
            slowest.operation_ms = slowest.operation_ms.max(report.waits.operation_ms);
        }
        Ok(slowest)
    };
    let found = slowest(1..=number("SIM_SEEDS", 60), Mutant::None).unwrap();
    println!("{found:?}");
    assert!(found.metadata_ms <= METADATA_WAIT_MS && found.operation_ms <= OPERATION_WAIT_MS, "{found:?}");
    for mutant in Mutant::SLOW {
        let found = slowest(1..=2_000, *mutant);
        assert!(found.is_err(), "{mutant:?}: {found:?}");
    }
    let _mistake = tessera_failpoint::activate("consensus.waits_for_all");
    let is_slow = |seed| slowest(seed..=seed, Mutant::None).map_or(true, |found| found.metadata_ms > METADATA_WAIT_MS);
    assert!((1..=2_000).any(is_slow), "no commit waits although leaders wait for the slowest");
}

/// P11: no deadline follows the wall clock. Whatever the wall clocks of managers show, the same seed gives the same trace.
#[test]
fn wall_clocks_change_nothing() {
    let traces = |seed| {
        let trace = |plan: Plan| World::new(plan, Mutant::None, false).run().trace;
        let mut stepped = Plan::survivable(seed);
        stepped.step_walls();
        let mut steady = stepped.clone();
        steady.faults.retain(|(_, fault)| !matches!(fault, Fault::SetWall(..)));
        let steps = stepped.faults.len() - steady.faults.len();
        assert!(steps > 0, "seed {seed} sets no wall clock");
        // Faults count as events, so that both runs have as many.
        steady.faults.extend(stepped.faults.iter().filter_map(|(at, fault)| match fault {
            Fault::SetWall(manager, _) => Some((*at, Fault::SetWall(*manager, 0))),
            _ => None,
        }));
        steady.faults.sort_by_key(|(at, _)| *at);
        (trace(stepped), trace(steady))
    };
    for seed in 1..=20 {
        let (stepped, steady) = traces(seed);
        assert_eq!(stepped, steady, "seed {seed}");
    }
    let _mistake = tessera_failpoint::activate("manager.clock_follows_wall");
    let differs = |(stepped, steady)| stepped != steady;
    assert!((1..=20).any(|seed| differs(traces(seed))), "no clock follows the wall, as it should with the mistake");
}

/// The bugs that the simulator is known to find, and each within 2,000 seeds: the tests here and in `mounts.rs` go through these lists.
#[test]
fn at_least_forty_mistakes_are_caught() {
    let failpoints: Vec<&str> =
        Mutant::OF_GROUP.iter().chain(OF_ONE_TEST).copied().chain(OF_MOUNTS.iter().map(|(name, _)| *name)).collect();
    let known: Vec<&str> = tessera_failpoint::ALL.iter().map(|(name, _)| *name).collect();
    assert!(failpoints.iter().all(|name| known.contains(name)), "{failpoints:?}");
    let mutants: Vec<String> = [Mutant::ALL, Mutant::BEYOND, Mutant::ROTTING, Mutant::SLOW]
        .concat()
        .into_iter()
        .chain(Mutant::LIES.iter().map(|(lie, _)| *lie))
        .map(|mutant| format!("{mutant:?}"))
        .collect();
    let mistakes: BTreeSet<&str> = failpoints.iter().copied().chain(mutants.iter().map(String::as_str)).collect();
    println!("{} mistakes: {mistakes:?}", mistakes.len());
    assert_eq!(mistakes.len(), failpoints.len() + mutants.len(), "one is listed twice");
    assert!(mistakes.len() >= 40, "{}", mistakes.len());
}

/// P5: a reader that stays open for the whole run, in every second plan, shows a manager that keeps garbage for readers.
#[test]
fn garbage_that_stays_for_a_reader_is_detected() {
    let _guard = tessera_failpoint::activate("manager.readers_hold_garbage");
    let found = (1..=40).find_map(|seed| simulate(Plan::survivable, seed, Mutant::None).violation);
    assert_eq!(found.map(|violation| violation.promise), Some("P5"));
}

/// Only plans beyond redundancy detect some mutants.
#[test]
fn hidden_losses_show_only_beyond_redundancy() {
    let seeds: Vec<u64> = (1..=40).collect();
    assert_eq!(first_broken(Plan::survivable, &seeds, Mutant::LossesHidden), None);
    assert!(first_broken(Plan::beyond, &seeds, Mutant::LossesHidden).is_some());
}

/// What a client that lies or miscomputes can do is caught where the checks against it are missing (P2, P13).
#[test]
fn lies_of_clients_are_caught() {
    let seeds: Vec<u64> = (1..=400).collect();
    for (lie, checks) in Mutant::LIES {
        let _unchecked: Vec<_> = checks.iter().map(|check| tessera_failpoint::activate(check)).collect();
        let found = first_broken(Plan::survivable, &seeds, *lie);
        println!("{lie:?} without {checks:?}: {found:?}");
        assert!(found.is_some(), "{lie:?} was not detected without {checks:?}");
    }
}

/// P1, P11: what clients say that they stored before a fragment was lost proves nothing. Such clients harm nobody but themselves: their
/// writes may not end.
#[test]
fn receipts_of_before_a_loss_prove_nothing() {
    let harm =
        |seed| simulate(Plan::rotting, seed, Mutant::OldReceipts).violation.filter(|found| found.promise != "P12");
    for seed in 1..=20 {
        assert_eq!(simulate(Plan::rotting, seed, Mutant::None).violation, None, "seed {seed}");
        assert_eq!(harm(seed), None, "seed {seed}");
    }
    let _mistake = tessera_failpoint::activate("manager.old_receipts_count");
    let found = (1..=2_000).find_map(|seed| Some((seed, harm(seed)?)));
    println!("old receipts count: {found:?}");
    assert_eq!(found.map(|(_, violation)| violation.promise), Some("P6"));
}

/// A client that miscomputes harms nobody: nodes refuse its slices, and a scrub replaces its parity (P2, P13).
#[test]
fn a_client_that_miscomputes_harms_nobody() {
    for lie in [Mutant::DamagedSlices, Mutant::OtherContent, Mutant::WrongParity] {
        for seed in 1..=20 {
            let found = simulate(Plan::survivable, seed, lie).violation;
            // Its own chunks have less redundancy until the scrub; its own write may not end.
            let harm = found.filter(|found| match lie {
                Mutant::WrongParity => found.promise == "P13",
                _ => found.promise != "P12",
            });
            assert_eq!(harm, None, "{lie:?}, seed {seed}");
        }
    }
}

/// P1, P2: what one client stores under a name decides nothing for the others: they share only what nodes have proven.
#[test]
fn a_client_that_lies_harms_no_other() {
    let harm = |lie, seeds: std::ops::RangeInclusive<u64>| {
        seeds.into_iter().find_map(|seed| {
            let world = World::new(Plan::survivable(seed), lie, false).with_one_liar()?;
            world.run().violation.map(|violation| (seed, violation))
        })
    };
    for lie in [Mutant::DamagedSlices, Mutant::OtherContent, Mutant::SwappedFragments] {
        assert_eq!(harm(lie, 1..=20), None, "{lie:?}");
    }
    let _unchecked = tessera_failpoint::activate("node.content_unchecked");
    let found = (501..=900)
        .filter_map(|seed| harm(Mutant::DamagedSlices, seed..=seed))
        .find(|(_, harm)| harm.fact.starts_with("c0-"));
    println!("DamagedSlices by one client without node.content_unchecked: {found:?}");
    assert!(found.is_some(), "an honest client's file cannot be read");
}
