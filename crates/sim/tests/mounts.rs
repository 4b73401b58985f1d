//! Several mounts over one manager, from seeds (ARCHITECTURE.md, "How it is tested").
//!
//! `SIM_SEEDS=N` runs N seeds instead of the everyday number, `SIM_FROM` is the first. `SIM_LOG=1` prints the trace.
//! `SIM_THEME=Spool` runs plans of one theme only. `SIM_MISTAKE` names the only mistake to look for.

use std::time::Instant;
use tessera_failpoint::activate;
use tessera_sim::mount_host::host::MountHost;
use tessera_sim::mount_world::plan::{Plan, Theme};
use tessera_sim::mount_world::{MountWorld, Report};
use tessera_sim::mutants::OF_MOUNTS;

/// Seeds of an everyday run.
const SEEDS: u64 = 150;
/// Within so many seeds each mutant is caught.
const MUTANT_SEEDS: u64 = 2_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn world(plan: Plan) -> MountWorld<MountHost> {
    MountWorld::new(plan, std::env::var_os("SIM_LOG").is_some())
}

fn run(seed: u64) -> Report {
    world(Plan::new(seed)).run()
}

/// The plan of a seed, of the theme that was asked for.
fn plan(seed: u64) -> Plan {
    let Ok(wanted) = std::env::var("SIM_THEME") else { return Plan::new(seed) };
    let theme = Theme::ALL.into_iter().find(|theme| format!("{theme:?}") == wanted);
    Plan::themed(seed, theme.unwrap_or_else(|| panic!("no theme is called {wanted}: {:?}", Theme::ALL)))
}

#[test]
fn no_seed_breaks_a_promise() {
    let (from, seeds) = (number("SIM_FROM", 1), number("SIM_SEEDS", SEEDS));
    let (started, mut answers, mut versions) = (Instant::now(), 0, 0);
    for seed in from..from + seeds {
        let report = world(plan(seed)).run();
        report.log.iter().for_each(|line| println!("{line}"));
        if let Some(violation) = report.violation {
            let again =
                format!("SIM_LOG=1 SIM_FROM={seed} SIM_SEEDS=1 cargo test -p tessera-sim --test mounts no_seed");
            panic!("seed {seed}: {} {}{:?}\nagain: {again}", violation.promise, violation.fact, plan(seed));
        }
        answers += report.checked;
        versions += report.versions;
    }
    println!("{seeds} seeds from {from}: {answers} answers, {versions} versions, {:?}", started.elapsed());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 4, 5, 6] {
        let (one, two) = (run(seed), run(seed));
        assert_eq!((one.trace, one.events, one.checked), (two.trace, two.events, two.checked), "seed {seed}");
    }
}

/// The first seed within [`MUTANT_SEEDS`] whose run breaks a promise with the mistake, and none without it.
fn caught(mutant: &str, mistaken: impl Fn(u64) -> Report, plan: impl Fn(u64) -> Plan) -> Option<u64> {
    let (seed, violation) = (1..=MUTANT_SEEDS).find_map(|seed| {
        let violation = mistaken(seed).violation?;
        world(plan(seed)).run().violation.is_none().then_some((seed, violation))
    })?;
    let fact = violation.fact.lines().next().unwrap_or_default();
    println!("{mutant}: seed {seed}, {} {fact}", violation.promise);
    Some(seed)
}

#[test]
fn every_mutant_is_caught() {
    let is_missed = |(name, theme): &&(&str, _)| {
        let plan = |seed| Plan::themed(seed, *theme);
        let mistaken = |seed| {
            let _mistake = activate(name);
            world(plan(seed)).run()
        };
        caught(name, mistaken, plan).is_none()
    };
    let only = std::env::var("SIM_MISTAKE").ok();
    let wanted = OF_MOUNTS.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name));
    assert!(wanted.clone().next().is_some(), "no mistake of mounts is called {only:?}");
    let missed: Vec<_> = wanted.filter(is_missed).collect();
    assert!(missed.is_empty(), "not caught within {MUTANT_SEEDS} seeds: {missed:?}");
}

#[test]
fn a_repeated_request_with_another_op_id_is_caught() {
    let mistaken = |seed| world(Plan::new(seed)).with_fresh_op_ids().run();
    assert!(caught("another op id", mistaken, Plan::new).is_some());
}
