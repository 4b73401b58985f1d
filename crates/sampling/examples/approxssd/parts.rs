//! Figures 1.10, 1.11 and 1.13, and a straggler: what each part of the design gives, by the clock.

use crate::data::{App, DISKS, Data, top};
use crate::strategy::{Job, Outcome, SPEED, Strategy};
use crate::timed::{SLOW, interleaved, of};
use serde_json::{Value, json};
use std::collections::HashMap;
use tessera_sampling::source::DiskSpeed;
use tessera_sampling::tally::Key;

/// The files of these jobs are repeated so many times, and a tenth is read: figure 1.13's ratio.
const REPEATS: u64 = 4;
const RATIO: f64 = 0.1;
/// Equal parts of a run, for latency over time.
const WINDOWS: usize = 10;

fn job(data: &Data, repeats: u64) -> Job<'_> {
    Job::new(data, App::WordCount, repeats, RATIO)
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn latency(mut seconds: Vec<f64>) -> Value {
    seconds.sort_by(f64::total_cmp);
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    json!({"mean_s": mean, "p50_s": percentile(&seconds, 0.5), "p95_s": percentile(&seconds, 0.95), "p99_s": percentile(&seconds, 0.99), "most_s": percentile(&seconds, 1.0)})
}

/// Weights of disks, of which one has more than the others, such that the mean is this share of the largest.
fn weights(balance: f64) -> Vec<f64> {
    let other = (DISKS as f64 * balance - 1.0) / (DISKS as f64 - 1.0);
    (0..DISKS).map(|disk| if disk == 0 { 1.0 } else { other }).collect()
}

/// Figures 1.10 and 1.11: the same selections, read by threads that are dealt tasks and by threads that own disks.
pub fn scheduling(data: &Data, quick: bool) -> Value {
    let (job, mut rows, mut windows) = (job(data, REPEATS), Vec::new(), Vec::new());
    for balance in [0.5, 0.6, 0.7, 0.8, 0.9, 1.0] {
        let weights = weights(balance);
        let strategies = [Strategy::Dealt(weights.clone()), Strategy::Own(weights, 0.0)];
        let found = interleaved(&job, &strategies, if quick { 1 } else { 3 });
        for (name, outcomes) in ["dealt", "own disk"].iter().zip(&found) {
            let all = outcomes.iter().flat_map(Outcome::latencies).map(|(_, latency)| latency).collect();
            let per_s = |run: &Outcome| run.reads.iter().map(Vec::len).sum::<usize>() as f64 / run.seconds;
            rows.push(json!({"balance": balance, "strategy": name, "reads_per_s": of(outcomes, per_s), "latency": latency(all)}));
            if balance == 1.0 {
                windows.extend(over_time(name, &outcomes[0]));
            }
        }
    }
    json!({"rows": rows, "windows": windows, "disks_reads_per_s": DISKS as f64 / (job.floor_s() / job.needed().div_ceil(DISKS as u64) as f64)})
}

fn over_time(name: &str, run: &Outcome) -> Vec<Value> {
    let window = run.seconds / WINDOWS as f64;
    let mut found = vec![Vec::new(); WINDOWS];
    for (at, latency) in run.latencies() {
        found[((at / window) as usize).min(WINDOWS - 1)].push(latency);
    }
    let windows = found.into_iter().enumerate().filter(|(_, latencies)| !latencies.is_empty());
    windows.map(|(i, latencies)| json!({"strategy": name, "window": i, "latency": latency(latencies)})).collect()
}

/// Figure 1.13: one part after the other, on disks that are slow from time to time.
pub fn breakdown(data: &Data, quick: bool) -> Value {
    let mut job = job(data, REPEATS);
    let mut rows = Vec::new();
    let names = ["random", "balanced", "balanced, own disk", "drop 10 %", "drop 20 %", "drop 50 %"];
    let mut strategies = vec![Strategy::Random, Strategy::balanced()];
    strategies.extend([0.0, 0.1, 0.2, 0.5].map(Strategy::tessera));
    for unstable in [true, false] {
        job.slow = unstable.then_some(SLOW);
        let runs = match (quick, unstable) {
            (true, _) => 1,
            (_, true) => 6,
            (_, false) => 3,
        };
        let found = interleaved(&job, &strategies, runs);
        for (i, (name, outcomes)) in names.iter().zip(&found).enumerate() {
            let simulated: Vec<f64> = (0..20).map(|seed| job.simulate(&strategies[i], seed).seconds).collect();
            rows.push(json!({
                "parts": name, "unstable": unstable, "simulated_s": simulated, "seconds": of(outcomes, |run| run.seconds), "balance": of(outcomes, Outcome::balance),
            }));
        }
    }
    json!({"rows": rows, "floor_s": job.floor_s()})
}

/// Mean error of the largest groups in what was reported; a group that was not reported has error 1.
fn mean_error(outcome: &Outcome, truth: &[(Key, f64)]) -> f64 {
    let rows: HashMap<&Key, f64> =
        outcome.answer.rows.iter().filter_map(|row| Some((row.key.as_ref()?, row.estimate.value))).collect();
    let error = |(key, truth): &(Key, f64)| rows.get(key).map_or(1.0, |found| (found / truth - 1.0).abs());
    truth.iter().map(error).sum::<f64>() / truth.len() as f64
}

/// How often intervals hold the truth, of all that are reported, and how many of them are claimed.
fn coverage(outcomes: &[Outcome], truth: &[(Key, f64)]) -> Value {
    let (mut reported, mut claimed, mut covered) = (0, 0, 0);
    for outcome in outcomes {
        let rows: HashMap<_, _> =
            outcome.answer.rows.iter().filter_map(|row| Some((row.key.as_ref()?, row.estimate))).collect();
        for (key, truth) in truth {
            if let Some(found) = rows.get(key) {
                reported += 1;
                claimed += u64::from(found.claimed);
                covered += u64::from(found.low <= *truth && *truth <= found.high);
            }
        }
    }
    json!({"reported": reported, "claimed": claimed, "covered": covered})
}

/// One disk is ten times slower than the others. It holds words of its own.
pub fn straggler(data: &Data, quick: bool) -> Value {
    const SLOW_DISK: usize = 3;
    // The sample is large beside the 24 units that the slow disk always gives.
    const REPEATS: u64 = 8;
    let mut job = job(data, REPEATS);
    job.speeds[SLOW_DISK] = DiskSpeed { bytes_per_s: SPEED.bytes_per_s / 10.0, latency: SPEED.latency * 10 };
    let truth = data.truth(App::WordCount, REPEATS);
    let all: f64 = truth.values().sum();
    let top100 = top(&truth, 100);
    // Of the 1,000 words that are reported, so frequent ones are never left out: that would be a bias of its own.
    let of_disk = format!("disk{SLOW_DISK}word");
    let own: Vec<(Key, f64)> =
        top(&truth, 400).into_iter().filter(|(key, _)| key.starts_with(of_disk.as_bytes())).collect();
    let mut rows = Vec::new();
    let cases = [
        ("random", Strategy::Random, 1),
        ("tessera, no drop", Strategy::tessera(0.0), 1),
        ("tessera, drop 20 %", Strategy::tessera(0.2), 20),
    ];
    for (name, strategy, runs) in cases {
        let simulated: Vec<f64> = (0..20).map(|seed| job.simulate(&strategy, seed).seconds).collect();
        let found = &interleaved(&job, &[strategy], if quick { 1 } else { runs })[0];
        let (top100_covered, own_covered) = (coverage(found, &top100), coverage(found, &own));
        rows.push(json!({
            "strategy": name, "simulated_s": simulated, "seconds": of(found, |run| run.seconds), "slow_disk_reads": of(found, |run| run.reads[SLOW_DISK].len() as f64),
            "total_error": of(found, |run| run.answer.total.value / all - 1.0), "error": of(found, |run| mean_error(run, &top100)),
            "own_error": of(found, |run| mean_error(run, &own)),
            "own_bias": of(found, |run| bias(run, &own)), "top": top100_covered, "own": own_covered,
        }));
    }
    json!({"rows": rows, "floor_s": job.floor_s()})
}

/// Signed error of the sum over groups.
fn bias(outcome: &Outcome, truth: &[(Key, f64)]) -> f64 {
    let is_one = |key: &Key| truth.iter().any(|(other, _)| other == key);
    let found: f64 = outcome
        .answer
        .rows
        .iter()
        .filter(|row| row.key.as_ref().is_some_and(is_one))
        .map(|row| row.estimate.value)
        .sum();
    found / truth.iter().map(|(_, value)| value).sum::<f64>() - 1.0
}
