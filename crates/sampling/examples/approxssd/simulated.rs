//! Figures 1.3, 1.4 and 1.8, computed: how selections load disks, and how often tasks meet on one. No clock.

use crate::data::DISKS;
use crate::strategy::UNIT_BYTES;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tessera_sampling::layout::{Layout, Run};
use tessera_sampling::schedule::{Schedule, Shares};

const RUNS: u64 = 20;
/// Partitions in a sample of 1 %: a few large ones, and up to what 49 GB in partitions of 8 KiB have.
const SAMPLES: [u64; 5] = [32, 80, 320, 2_600, 59_800];
/// Threads of figure 1.4.
const THREADS: usize = 32;
const ROUNDS: usize = 500;

fn balance_of(loads: &[u64]) -> f64 {
    loads.iter().sum::<u64>() as f64 / loads.len() as f64 / *loads.iter().max().expect("disks") as f64
}

fn random(disks: usize, needed: u64, seed: u64) -> Vec<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut loads = vec![0; disks];
    for partition in rand::seq::index::sample(&mut rng, 100 * needed as usize, needed as usize) {
        loads[partition % disks] += 1;
    }
    loads
}

fn tessera(disks: usize, needed: u64, seed: u64) -> Vec<u64> {
    let units = (100 * needed).div_ceil(disks as u64);
    let run = |disk: usize| Run {
        file: disk as u32,
        offset: 0,
        len_bytes: units * UNIT_BYTES,
        disk: disk as u32,
        rows: None,
    };
    let runs: Vec<Run> = (0..disks).map(run).collect();
    let mut schedule = Schedule::new(Layout::new(&runs, disks, UNIT_BYTES), Shares::Equal, seed);
    schedule.need(needed, 0.0);
    (0..disks as u32).map(|disk| std::iter::from_fn(|| schedule.next(disk)).count() as u64).collect()
}

pub fn balance() -> Value {
    let mut rows = Vec::new();
    for disks in 2..=DISKS {
        for partitions in SAMPLES {
            for (name, select) in [("random", random as fn(usize, u64, u64) -> Vec<u64>), ("tessera", tessera)] {
                let loads: Vec<Vec<u64>> = (0..RUNS).map(|seed| select(disks, partitions, seed)).collect();
                let balance: Vec<f64> = loads.iter().map(|loads| balance_of(loads)).collect();
                let selected = loads[0].iter().sum::<u64>();
                rows.push(json!({"disks": disks, "partitions": partitions, "selected": selected, "strategy": name, "balance": balance}));
            }
        }
    }
    json!({"rows": rows, "runs": RUNS})
}

/// Each round the threads take the next tasks, in the order of a striped volume. All but one of the tasks that meet on a
/// disk are blocked.
fn blocked(disks: usize, ratio: f64, seed: u64) -> f64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut partition, mut blocked) = (0, 0);
    for _ in 0..ROUNDS {
        let mut busy = vec![false; disks];
        for _ in 0..THREADS {
            while !rng.random_bool(ratio) {
                partition += 1;
            }
            blocked += usize::from(std::mem::replace(&mut busy[partition % disks], true));
            partition += 1;
        }
    }
    blocked as f64 / (ROUNDS * THREADS) as f64
}

pub fn contention() -> Value {
    let mut rows = Vec::new();
    for disks in [8, 12, 16, 20, 24, 28, 32] {
        for ratio in [1.0, 0.5, 0.2, 0.1, 0.01] {
            rows.push(json!({"disks": disks, "ratio": ratio, "blocked": blocked(disks, ratio, 1)}));
        }
    }
    json!({"rows": rows, "threads": THREADS})
}
