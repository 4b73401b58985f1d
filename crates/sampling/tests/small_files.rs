//! Intervals hold where a sample has two units of each of many strata: thousands of small files of different lengths.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tessera_sampling::estimate::{Population, Quantity};
use tessera_sampling::layout::{Layout, Run};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::tally::{Tally, Totals};

const SEEDS: u64 = 200;
const FILES: usize = 2_000;
const UNIT_BYTES: u64 = 16 << 10;
const HEADER_BYTES: u64 = 5;

/// Files of CSV with a running number and a value: a line is longer the further down it is.
struct Files {
    layout: Layout,
    rows: Vec<Vec<f64>>,
}

impl Files {
    fn new(seed: u64) -> Files {
        let mut rng = StdRng::seed_from_u64(seed);
        let rows: Vec<Vec<f64>> = (0..FILES)
            .map(|_| {
                let rows = [20, 50, 200, 600][rng.random_range(0..4)];
                (0..rows).map(|_| rng.random_range(0.0..100.0)).collect()
            })
            .collect();
        let len_bytes = |rows: &[f64]| {
            let lines = (0..).zip(rows).map(|(at, value): (u64, &f64)| format!("{at},{value:.2}\n").len() as u64);
            HEADER_BYTES + lines.sum::<u64>()
        };
        let run = |(file, rows): (usize, &Vec<f64>)| Run {
            file: file as u32,
            offset: 0,
            len_bytes: len_bytes(rows),
            disk: 0,
            rows: None,
        };
        let runs: Vec<Run> = rows.iter().enumerate().map(run).collect();
        assert!(runs.iter().all(|run| run.len_bytes <= UNIT_BYTES), "each file is one unit");
        Files { layout: Layout::new(&runs, 1, UNIT_BYTES), rows }
    }

    fn sample(&self, units: u64, seed: u64) -> Tally {
        let mut schedule = Schedule::new(self.layout.clone(), Shares::Equal, seed);
        schedule.need(units, 0.0);
        let mut tally = Tally::new(&self.layout, false, seed);
        while !schedule.is_complete() {
            let issue = schedule.next(0).expect("there is more to read");
            let mut records = tally.unit(issue.stratum, issue.unit.size as f64);
            self.rows[issue.unit.file as usize].iter().for_each(|value| records.add(b"all", *value));
            schedule.arrived(issue.stratum);
        }
        tally
    }
}

#[test]
fn two_units_of_each_stratum_give_no_bias() {
    let files = Files::new(7);
    let all = || files.rows.iter().flatten();
    let truths = [(Quantity::Count, all().count() as f64), (Quantity::Sum, all().sum::<f64>())];
    for units in [64, 100, 400, 1_000] {
        for (quantity, truth) in truths {
            let (mut held, mut error) = (0, 0.0);
            for seed in 0..SEEDS {
                let tally = files.sample(units, seed);
                let totals = Totals::of([&tally]);
                let population = Population::new(&totals.strata, &totals.all, 0.95);
                let found = population.estimate(quantity, &totals.group(b"all"));
                assert!(found.claimed, "{units} {quantity:?}: {found:?}");
                held += u64::from(found.low <= truth && truth <= found.high);
                error += (found.value / truth - 1.0) / SEEDS as f64;
            }
            println!("{units} units, {quantity:?}: {held} of {SEEDS} hold, mean error {error:+.5}");
            assert!(held as f64 >= 0.9 * SEEDS as f64, "{units} units, {quantity:?}: {held} of {SEEDS} hold");
            assert!(error.abs() < 0.004, "{units} units, {quantity:?}: the mean error is {error:+.5}");
        }
    }
}
