//! Runs seeds and prints broken promises.
//!
//! `cargo run --release -p tessera-sim --example seeds -- FROM COUNT [MUTANT]`; `SIM_LOG=1` prints the events,
//! `SIM_BEYOND=1` runs plans beyond redundancy, `SIM_DIFFERING=1` those in which a manager comes to differ from the others.

use tessera_sim::mutants::Mutant;
use tessera_sim::plan::Plan;
use tessera_sim::world::World;

fn main() {
    let mut args = std::env::args().skip(1);
    let from: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let count: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(100);
    let name = args.next().unwrap_or_default();
    let mutant = Mutant::ALL
        .iter()
        .chain(Mutant::BEYOND)
        .chain(Mutant::LIES.iter().map(|(lie, _)| lie))
        .copied()
        .find(|p| format!("{p:?}") == name)
        .unwrap_or(Mutant::None);
    let keep_log = std::env::var_os("SIM_LOG").is_some();
    let is_set = |name| std::env::var_os(name).is_some();
    let family = match (is_set("SIM_BEYOND"), is_set("SIM_DIFFERING")) {
        (true, _) => Plan::beyond,
        (_, true) => Plan::differing_managers,
        _ => Plan::survivable,
    };
    let (mut broken, mut events) = (0, 0);
    let started = std::time::Instant::now();
    for seed in from..from + count {
        let report = World::new(family(seed), mutant, keep_log).run();
        events += report.events;
        report.log.iter().for_each(|line| println!("{line}"));
        if keep_log {
            report.errors.iter().for_each(|line| println!("error: {line}"));
        }
        if let Some(violation) = report.violation {
            broken += 1;
            println!("seed {seed}: {} {}", violation.promise, violation.fact);
        }
    }
    let rate = count as f64 / started.elapsed().as_secs_f64();
    println!("{count} seeds, {broken} broken, {events} events, {rate:.0} seeds a second");
}
