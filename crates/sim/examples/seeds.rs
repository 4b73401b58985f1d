//! Runs seeds and prints broken promises.
//!
//! `cargo run --release -p tessera-sim --example seeds -- FROM COUNT [MUTANT]`; `SIM_LOG=1` prints the events, `SIM_FAMILY` names the
//! plans: `survivable`, `beyond`, `differing`, `rotten`, `rotting`, `slow` or `mounts`; `SIM_MISTAKE` activates a failpoint. The last line is for
//! `bench/soak.py`, too.

use tessera_failpoint::activate;
use tessera_sim::mount_host::host::MountHost;
use tessera_sim::mount_world::MountWorld;
use tessera_sim::mount_world::plan::Plan as MountPlan;
use tessera_sim::mutants::{Mutant, OF_MOUNTS};
use tessera_sim::oracle::Violation;
use tessera_sim::plan::Plan;
use tessera_sim::world::World;

struct Outcome {
    events: u64,
    log: Vec<String>,
    violation: Option<Violation>,
}

fn run(family: &str, seed: u64, mutant: Mutant, keep_log: bool) -> Outcome {
    let plan = match family {
        "survivable" => Plan::survivable(seed),
        "beyond" => Plan::beyond(seed),
        "differing" => Plan::differing_managers(seed),
        "rotten" => Plan::rotten_metadata(seed),
        "rotting" => Plan::rotting(seed),
        "slow" => Plan::one_slow(seed),
        "mounts" => {
            let report = MountWorld::<MountHost>::new(MountPlan::new(seed), keep_log).run();
            return Outcome { events: report.events, log: report.log, violation: report.violation };
        }
        other => panic!("{other}: no such family"),
    };
    let report = World::new(plan, mutant, keep_log).run();
    let errors = report.errors.iter().filter(|_| keep_log).map(|line| format!("error: {line}"));
    Outcome { events: report.events, log: report.log.into_iter().chain(errors).collect(), violation: report.violation }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let from: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let count: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(100);
    let name = args.next().unwrap_or_default();
    let mutant = [Mutant::ALL, Mutant::BEYOND, Mutant::ROTTING, Mutant::SLOW]
        .concat()
        .into_iter()
        .chain(Mutant::LIES.iter().map(|(lie, _)| *lie))
        .find(|p| format!("{p:?}") == name)
        .unwrap_or(Mutant::None);
    let _mistake = OF_MOUNTS.iter().find(|(of_mounts, _)| *of_mounts == name).map(|(name, _)| activate(name));
    let keep_log = std::env::var_os("SIM_LOG").is_some();
    let family = std::env::var("SIM_FAMILY").unwrap_or_else(|_| "survivable".into());
    let _mistake = std::env::var("SIM_MISTAKE").ok().map(|name| tessera_failpoint::activate(&name));
    let (mut broken, mut events) = (0, 0);
    let started = std::time::Instant::now();
    for seed in from..from + count {
        let outcome = run(&family, seed, mutant, keep_log);
        events += outcome.events;
        outcome.log.iter().for_each(|line| println!("{line}"));
        if let Some(violation) = outcome.violation {
            broken += 1;
            println!("seed {seed}: {} {}", violation.promise, violation.fact);
        }
    }
    let rate = count as f64 / started.elapsed().as_secs_f64();
    println!("{count} seeds, {broken} broken, {events} events, {rate:.1} seeds a second");
}
