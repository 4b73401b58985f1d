//! This machine's memory: rows against single elements, and the assignments.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::thread;
use std::time::Instant;
use tessera_sampling::arch::answer::moments;
use tessera_sampling::arch::threads::{fold, place};
use tessera_sampling::arch::{Architecture, Assignment, Partitions, Placement, RowSample, Selection, select};
use tessera_sampling::estimate::Quantity;

/// Repetitions, each with another seed.
const RUNS: u64 = 7;
const RATIOS: [f64; 4] = [0.0001, 0.001, 0.01, 0.1];

/// Scatters the bits of a number (the finalizer of SplitMix64): below 1000.
fn scatter(i: usize) -> u32 {
    let mixed = (i as u64 ^ (i as u64 >> 30)).wrapping_add(1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as u32 % 1000
}

/// Values without order, and values whose mean drifts from MiB to MiB.
fn value(clustered: bool, i: usize) -> u32 {
    let base = if clustered { scatter(i >> 18) } else { 0 };
    1000 + base + scatter(i)
}

struct Machine {
    memory: Architecture,
    partitions: Partitions,
    data: Vec<u32>,
    threads: usize,
}

impl Machine {
    fn new(bytes: usize, clustered: bool) -> Machine {
        let memory = Architecture::of_kernel().expect("the kernel reports its nodes");
        let data = place(&memory, bytes / 4, |i| value(clustered, i)).expect("there is data");
        let partitions = Partitions::of(&data, &memory, Placement::Blocks).expect("there is data");
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Machine { memory, partitions, data, threads }
    }

    fn select(&self, ratio: f64, assignment: Assignment, seed: u64) -> Selection {
        let rows = (self.partitions.rows() as f64 * ratio) as u64;
        select(&self.partitions, &self.memory, rows, assignment, self.threads, seed).expect("there are threads")
    }

    /// Seconds, sum and number of elements of the selected rows.
    fn rows(&self, ratio: f64, assignment: Assignment, seed: u64) -> (f64, u64, u64) {
        let start = Instant::now();
        let selection = self.select(ratio, assignment, seed);
        let read = fold(
            &self.data,
            &self.partitions,
            &self.memory,
            &selection,
            || (0, 0),
            |all: &mut (u64, u64), _, row| {
                all.0 += row.iter().map(|value| u64::from(*value)).sum::<u64>();
                all.1 += row.len() as u64;
            },
        );
        let (sum, count) = read.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        (start.elapsed().as_secs_f64(), sum, count)
    }

    /// As many elements at random: at random places, or in the order of addresses with gaps of random size.
    fn elements(&self, ratio: f64, in_order: bool, seed: u64) -> (f64, u64, u64) {
        let start = Instant::now();
        let part = self.data.len().div_ceil(self.threads);
        let read = |(number, data): (usize, &[u32])| {
            let mut rng = StdRng::seed_from_u64(seed * 100 + number as u64);
            if in_order { with_gaps(data, ratio, &mut rng) } else { at_random(data, ratio, &mut rng) }
        };
        let read = &read;
        let sums: Vec<(u64, u64)> = thread::scope(|scope| {
            let running: Vec<_> =
                self.data.chunks(part).enumerate().map(|part| scope.spawn(move || read(part))).collect();
            running.into_iter().map(|thread| thread.join().expect("it only reads")).collect()
        });
        let (sum, count) = sums.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        (start.elapsed().as_secs_f64(), sum, count)
    }
}

/// A generator of a few instructions, so that the memory is measured and not the generator.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, len: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * len as u128) >> 64) as usize
    }
}

fn at_random(data: &[u32], ratio: f64, rng: &mut StdRng) -> (u64, u64) {
    let count = (data.len() as f64 * ratio) as u64;
    let mut places = Xorshift(rng.random_range(1..u64::MAX));
    (0..count).fold((0, count), |all, _| (all.0 + u64::from(data[places.below(data.len())]), count))
}

fn with_gaps(data: &[u32], ratio: f64, rng: &mut StdRng) -> (u64, u64) {
    let mut places = Xorshift(rng.random_range(1..u64::MAX));
    let longest = (2.0 / ratio) as usize;
    let (mut at, mut sum, mut count) = (places.below(longest), 0, 0);
    while at < data.len() {
        sum += u64::from(data[at]);
        count += 1;
        at += 1 + places.below(longest - 1);
    }
    (sum, count)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Half the interval of the mean, from rows and from single elements, in parts of the mean.
fn intervals(machine: &Machine, ratio: f64) -> (f64, f64) {
    let selection = machine.select(ratio, Assignment::ContentionFree, 1);
    let measure = |row: &[u32]| moments(row.iter().map(|value| f64::from(*value)));
    let sample = RowSample::read(&machine.data, &machine.partitions, &machine.memory, &selection, measure);
    let mean = sample.expect("a random sample").estimate(Quantity::Mean, 0.95);
    let elements = mean.relative_error() / mean.design_effect.sqrt();
    (mean.relative_error(), elements)
}

fn measure(machine: &Machine, clustered: bool) -> Vec<Value> {
    let truth = machine.data.iter().map(|value| f64::from(*value)).sum::<f64>() / machine.data.len() as f64;
    let mut rows = Vec::new();
    for ratio in RATIOS {
        let mut found: [Vec<(f64, u64, u64)>; 3] = Default::default();
        for seed in 1..=RUNS {
            found[0].push(machine.rows(ratio, Assignment::ContentionFree, seed));
            found[1].push(machine.elements(ratio, false, seed));
            found[2].push(machine.elements(ratio, true, seed));
        }
        let (of_rows, of_elements) = intervals(machine, ratio);
        for (name, runs) in ["rows", "elements at random", "elements in order"].into_iter().zip(found) {
            let count = median(runs.iter().map(|run| run.2 as f64).collect());
            let error = |run: &(f64, u64, u64)| (run.1 as f64 / run.2 as f64 / truth - 1.0).abs();
            rows.push(json!({
                "data": if clustered { "clustered" } else { "shuffled" }, "ratio": ratio, "sample": name, "elements": count,
                "seconds": median(runs.iter().map(|run| run.0).collect()),
                "half": if name == "rows" { of_rows } else { of_elements },
                "error": runs.iter().map(error).sum::<f64>() / RUNS as f64,
            }));
        }
    }
    rows
}

/// The four assignments at 1 %.
fn assignments(machine: &Machine) -> Vec<Value> {
    let mut seconds: [Vec<f64>; 4] = Default::default();
    for seed in 1..=3 * RUNS {
        for (assignment, seconds) in Assignment::ALL.into_iter().zip(&mut seconds) {
            seconds.push(machine.rows(0.01, assignment, seed).0);
        }
    }
    let named = Assignment::ALL.into_iter().zip(seconds);
    named.map(|(assignment, seconds)| json!({"assignment": assignment.name(), "seconds": median(seconds)})).collect()
}

/// Everything, over `bytes` bytes of 4-byte elements.
pub fn figures(bytes: usize) -> Value {
    let mut machine = Machine::new(bytes, false);
    let mut rows = measure(&machine, false);
    let assignments = assignments(&machine);
    let scan = median((1..=RUNS).map(|seed| machine.rows(1.0, Assignment::ContentionFree, seed).0).collect());
    let (threads, domains, known) = (machine.threads, machine.memory.domains.len(), machine.memory.banks_are_known());
    // The first data is freed before the second is made.
    machine.data = Vec::new();
    machine = Machine::new(bytes, true);
    rows.extend(measure(&machine, true));
    json!({
        "bytes": bytes, "threads": threads, "domains": domains, "banks_are_known": known, "rows": rows,
        "assignments": assignments, "scan_s": scan, "runs": RUNS,
    })
}
