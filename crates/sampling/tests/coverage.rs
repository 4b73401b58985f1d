//! Intervals cover the truth as often as they claim: samples of populations whose truth is known.
//!
//! 200 fixed seeds by default, 90 to 99 % of intervals of 95 % must cover; `COVERAGE_RUNS=1000` for the committed table
//! (`COVERAGE_TABLE` names its file), 93 to 97 %. The populations differ in how records lie: shuffled, in files that differ, with keys of Zipf's law, and
//! with disks that differ; each is sampled with all disks equally fast, and with one that is ten times slower and
//! dropped early.

mod populations;

use populations::{Law, Population};
use std::fmt::Write;
use tessera_sampling::estimate::{Quantity, quantile};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::tally::{Tally, Totals};

const CONFIDENCE: f64 = 0.95;

const HEAD: &str = "\
# How often intervals of samples hold

`make soak` writes this page (crates/sampling/tests/coverage.rs). Four disks, 24 files, 96,000 records in units of about 40; a
sample has 15 % of the units. \"Shuffled\": records lie anywhere. \"FilesDiffer\": each file has its own frequent keys, and its values
drift. \"Zipf\": keys follow Zipf's law with exponent 1.2 and come in bursts. \"DisksDiffer\": each disk has its own keys and
values. With a slow disk, one of four is ten times slower, 20 % more is selected than is needed, and the last are dropped. Naive
intervals take each record for drawn by itself.
";

/// Reads a sample whose disks have the given speeds (units per tick), and stops when enough has arrived.
fn sample(population: &Population, seed: u64, ratio: f64, drop: f64, slow: bool) -> Tally {
    let mut schedule = Schedule::new(population.layout.clone(), Shares::Equal, seed);
    schedule.need((population.layout.units() as f64 * ratio) as u64, drop);
    let mut tally = Tally::new(&population.layout, true, seed);
    let mut tick = 0;
    while !schedule.is_complete() {
        for disk in 0..population.layout.disks as u32 {
            if slow && disk == 0 && tick % 10 != 0 {
                continue;
            }
            if let Some(issue) = schedule.next(disk) {
                population.read(&issue, &mut tally);
                schedule.arrived(issue.stratum);
            }
        }
        tick += 1;
    }
    tally
}

/// For each question: how many of the runs covered, and how many a naive interval over single records would have.
fn coverage(law: Law, runs: u64, slow: bool) -> Vec<(&'static str, u64, u64)> {
    use tessera_sampling::estimate::Population as Estimator;
    let population = Population::new(law);
    let (ratio, drop) = (0.15, if slow { 0.2 } else { 0.0 });
    let mut covered = vec![
        ("count of a frequent key", 0, 0),
        ("count of a middling key", 0, 0),
        ("sum of a key", 0, 0),
        ("sum", 0, 0),
        ("mean", 0, 0),
        ("median", 0, 0),
        ("9th decile", 0, 0),
    ];
    for seed in 0..runs {
        let tally = sample(&population, seed, ratio, drop, slow);
        let totals = Totals::of([&tally]);
        let estimator = Estimator::new(&totals.strata, &totals.all, CONFIDENCE);
        let all: Vec<_> = totals.all.iter().copied().enumerate().collect();
        let group = |key: usize| totals.group(&population.keys[key]);
        let questions = [
            (Quantity::Count, group(0), population.truth.counts[0]),
            (Quantity::Count, group(6), population.truth.counts[6]),
            (Quantity::Sum, group(1), population.truth.sums[1]),
            (Quantity::Sum, all.clone(), population.truth.sum),
            (Quantity::Mean, all, population.truth.sum / population.truth.count),
        ];
        for (i, (quantity, group, truth)) in questions.iter().enumerate() {
            let found = estimator.estimate(*quantity, group);
            assert!(found.claimed, "{law:?}, {}: seen in {} units", covered[i].0, found.units_seen);
            covered[i].1 += u64::from(found.low <= *truth && *truth <= found.high);
            let naive = 1.96 * estimator.variance_of_single_records(*quantity, group).sqrt();
            covered[i].2 += u64::from((found.value - truth).abs() <= naive);
        }
        for (i, q) in [(5, 0.5), (6, 0.9)] {
            let found = quantile(q, &totals.strata, &totals.unit_values(), CONFIDENCE, seed).unwrap();
            let truth = population.quantile(q);
            covered[i].1 += u64::from(found.low <= truth && truth <= found.high);
        }
    }
    covered
}

#[test]
fn intervals_cover_as_often_as_they_claim() {
    let runs = std::env::var("COVERAGE_RUNS").map_or(200, |runs| runs.parse().expect("a number of runs"));
    let (least, most) = if runs >= 1000 { (0.93, 0.97) } else { (0.90, 0.99) };
    let mut table = String::from(
        "| records | question | covered | with a slow disk dropped | naive intervals |\n|---|---|---|---|---|\n",
    );
    let mut wrong = String::new();
    for law in [Law::Shuffled, Law::FilesDiffer, Law::Zipf, Law::DisksDiffer] {
        let (even, slow) = (coverage(law, runs, false), coverage(law, runs, true));
        for (even, slow) in even.iter().zip(&slow) {
            let share = |n: u64| n as f64 / runs as f64;
            let naive = if even.2 == 0 && even.0.contains('d') && !even.0.contains("key") {
                "".into()
            } else {
                format!("{:.1} %", 100.0 * share(even.2))
            };
            writeln!(
                table,
                "| {law:?} | {} | {:.1} % | {:.1} % | {naive} |",
                even.0,
                100.0 * share(even.1),
                100.0 * share(slow.1)
            )
            .unwrap();
            for (kind, found) in [("", share(even.1)), (" with drops", share(slow.1))] {
                if !(least..=most).contains(&found) {
                    writeln!(wrong, "{law:?}, {}{kind}: {:.1} %", even.0, 100.0 * found).unwrap();
                }
            }
        }
    }
    println!("{table}");
    if let Ok(path) = std::env::var("COVERAGE_TABLE") {
        std::fs::write(path, format!("{HEAD}\n{runs} samples of each population; intervals of 95 %.\n\n{table}"))
            .unwrap();
    }
    assert!(wrong.is_empty(), "intervals of 95 % covered\n{wrong}\n{table}");
}
