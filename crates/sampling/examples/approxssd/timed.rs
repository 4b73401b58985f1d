//! Figures 1.6, 1.8, 1.9 and 1.12: both strategies against ratios and sizes of partitions, by the clock.

use crate::data::{App, Data};
use crate::strategy::{Job, Outcome, SPEED, Strategy, UNIT_BYTES};
use serde_json::{Value, json};
use std::time::Duration;
use tessera_sampling::source::SlowPhases;

/// What the paper drops.
pub const DROP: f64 = 0.1;

/// A tenth of the time a disk is ten times slower.
pub const SLOW: SlowPhases =
    SlowPhases { period: Duration::from_secs(1), lasts: Duration::from_millis(100), factor: 10.0, seed: 7 };

/// Ratios, with how many times the files are repeated, so that a sample has 240 to 2,400 units, and the number of runs.
const RATIOS: [(f64, u64, u64); 5] = [(1.0, 1, 1), (0.1, 4, 3), (0.01, 32, 3), (0.001, 320, 3), (0.0001, 1000, 15)];

pub fn of(outcomes: &[Outcome], what: impl Fn(&Outcome) -> f64) -> Vec<f64> {
    outcomes.iter().map(what).collect()
}

/// Runs of several strategies in turn, so that what else the machine does meets all of them.
pub fn interleaved(job: &Job<'_>, strategies: &[Strategy], runs: u64) -> Vec<Vec<Outcome>> {
    let mut found: Vec<Vec<Outcome>> = strategies.iter().map(|_| Vec::new()).collect();
    for seed in 0..runs {
        for (strategy, outcomes) in strategies.iter().zip(&mut found) {
            outcomes.push(job.run(strategy, seed));
        }
    }
    found
}

pub fn times(data: &Data, quick: bool) -> Value {
    let mut rows = Vec::new();
    for app in App::ALL {
        for (ratio, repeats, runs) in RATIOS {
            let mut job = Job::new(data, app, repeats, ratio);
            for unstable in [false, true] {
                if unstable && ratio > 0.0001 {
                    continue;
                }
                job.slow = unstable.then_some(SLOW);
                let strategies = [Strategy::Random, Strategy::tessera(DROP)];
                let found = interleaved(&job, &strategies, if quick { 2 } else { runs });
                for (i, (name, outcomes)) in ["random", "tessera"].iter().zip(&found).enumerate() {
                    let simulated: Vec<_> = (0..20).map(|seed| job.simulate(&strategies[i], seed)).collect();
                    rows.push(json!({
                        "app": app.name(), "ratio": ratio, "repeats": repeats, "units": job.needed(), "unstable": unstable,
                        "floor_s": job.floor_s(), "strategy": name, "seconds": of(outcomes, |run| run.seconds),
                        "balance": of(outcomes, Outcome::balance), "waiting": of(outcomes, Outcome::waiting),
                        "idle": of(outcomes, Outcome::idle), "answer_s": of(outcomes, |run| run.answer_s),
                        "simulated_s": simulated.iter().map(|run| run.seconds).collect::<Vec<_>>(),
                        "simulated_waiting": simulated.iter().map(|run| run.waiting).collect::<Vec<_>>(),
                        "reads": of(outcomes, |run| run.reads.iter().map(Vec::len).sum::<usize>() as f64),
                    }));
                }
            }
        }
    }
    json!({
        "rows": rows, "latency_ms": SPEED.latency.as_secs_f64() * 1e3, "bytes_per_s": SPEED.bytes_per_s, "drop": DROP,
        "unit_bytes": UNIT_BYTES, "slow": {"period_s": SLOW.period.as_secs_f64(), "lasts_s": SLOW.lasts.as_secs_f64(), "factor": SLOW.factor},
    })
}

/// Figure 1.12: links of 1 %, in partitions of different sizes. What is read by the clock is a seventh of what is
/// simulated, of which errors are measured.
pub fn sizes(data: &Data, quick: bool) -> Value {
    let strategies = [Strategy::Random, Strategy::tessera(DROP)];
    let mut rows = Vec::new();
    for kib in [2, 4, 8, 16, 32, 64, 128, 256] {
        let job = |repeats| Job { unit_bytes: kib << 10, ..Job::new(data, App::PageRank, repeats, 0.01) };
        let (job, clocked) = (job(280), job(40));
        let found = match kib {
            2 | 8 | 32 => interleaved(&clocked, &strategies, if quick { 1 } else { 2 }),
            _ => strategies.iter().map(|_| Vec::new()).collect(),
        };
        let errors = crate::errors::mean_errors(&job, if quick { 1 } else { 4 });
        for (i, (name, outcomes)) in ["random", "tessera"].iter().zip(&found).enumerate() {
            let simulated: Vec<f64> = (0..10).map(|seed| job.simulate(&strategies[i], seed).seconds).collect();
            rows.push(json!({
                "kib": kib, "units": job.needed(), "strategy": name, "floor_s": job.floor_s(), "simulated_s": simulated,
                "clock_floor_s": clocked.floor_s(), "seconds": of(outcomes, |run| run.seconds), "errors": errors[i],
            }));
        }
    }
    json!({"rows": rows})
}
