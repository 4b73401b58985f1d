//! Sums of samples hold the truth as often as they claim, at both levels and with stragglers dropped.

use crate::Disks;
use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tessera_sampling::error::Error;
use tessera_sampling::ldd::{Ldd, Lines, PartitionSampling};
use tessera_sampling::schedule::Shares;
use tessera_sampling::source::{Contents, FileIndex, LocalFiles, Source};

const SEEDS: u64 = 200;

/// Numbers whose mean differs by disk and drifts along each file, so that those of a partition resemble each other.
fn numbers(disks: &Disks, lines: usize) -> f64 {
    let mut rng = StdRng::seed_from_u64(42);
    let mut truth = 0;
    for disk in 0..disks.directories.len() {
        let mut text = String::new();
        for i in 0..lines * (disk + 1) {
            let along = 60 * i / (lines * (disk + 1));
            let mean = 100 + 40 * disk as u32 + 30 * ((i / 50) % 5) as u32 + along as u32;
            let value = mean + rng.random_range(0..100);
            truth += u64::from(value);
            text += &format!("{value}\n");
        }
        disks.write(disk, "numbers", &text);
    }
    truth as f64
}

/// Not a sum of what `collect` gives: that is of the sample alone.
fn covered(truth: f64, sample: impl Fn(u64) -> Ldd<String>) -> u64 {
    let value = |line: &String| line.parse::<f64>().unwrap();
    let holds = |seed: &u64| {
        let sum = sample(*seed).with_threads(2).sum(value, 0.95).unwrap();
        assert!(sum.claimed && sum.standard_error > 0.0);
        sum.low <= truth && truth <= sum.high
    };
    (0..SEEDS).filter(holds).count() as u64
}

fn assert_coverage(level: &str, covered: u64) {
    assert!((SEEDS * 90 / 100..=SEEDS * 99 / 100).contains(&covered), "{level}: {covered} of {SEEDS}");
}

#[test]
fn sampled_sums_cover_the_truth_at_both_levels() {
    let disks = Disks::new(3);
    let truth = numbers(&disks, 2500);
    let lines = Ldd::read(disks.shared(), 256, Lines).unwrap();
    assert_eq!(lines.sum(|line| line.parse().unwrap(), 0.95).unwrap().value, truth);
    assert_coverage("partitions", covered(truth, |seed| lines.sample_partitions(0.3, seed).unwrap()));
    assert_coverage("records", covered(truth, |seed| lines.sample(0.2, seed).unwrap()));
    let both = |seed| lines.sample_partitions(0.3, seed).unwrap().sample(0.2, seed).unwrap();
    assert_coverage("both", covered(truth, both));
}

#[test]
fn a_filtered_sample_estimates_the_sum_of_what_the_filter_keeps() {
    let disks = Disks::new(2);
    numbers(&disks, 2000);
    let lines = Ldd::read(disks.shared(), 256, Lines).unwrap();
    let even = |line: &String| line.ends_with(['0', '2', '4', '6', '8']);
    let truth = lines.filter(even).sum(|line| line.parse().unwrap(), 0.95).unwrap().value;
    let sample = |seed| lines.sample_partitions(0.4, seed).unwrap().sample(0.4, seed).unwrap().filter(even);
    assert_coverage("filtered", covered(truth, sample));
}

#[test]
fn nothing_is_estimated_from_merged_records_of_a_sample() {
    let numbers = Ldd::in_memory((0..1000u64).map(|v| (v % 7, v)).collect(), 50);
    let sample = numbers.sample(0.5, 1).unwrap();
    for merged in [sample.reduce_by_key(|a, b| a + b), sample.reduce_by_key_partitions(|a, b| a + b)] {
        assert!(matches!(merged.sum(|(_, v)| *v as f64, 0.95), Err(Error::Question(_))));
        assert!(merged.count().unwrap() > 0);
    }
    let exact = numbers.reduce_by_key(|a, b| a + b).sum(|(_, v)| *v as f64, 0.95).unwrap();
    assert_eq!((exact.value, exact.standard_error), (499_500.0, 0.0));
    // Whole partitions keep their totals.
    let partitions = numbers.sample_partitions(0.6, 1).unwrap().reduce_by_key_partitions(|a, b| a + b);
    let sum = partitions.sum(|(_, v)| *v as f64, 0.95).unwrap();
    assert!(sum.low <= 499_500.0 && 499_500.0 <= sum.high && sum.standard_error > 0.0);
}

/// Disk 0 gives `first` units at once and no further one before `open`.
struct Straggler {
    files: LocalFiles,
    state: Mutex<(u32, bool)>,
    opened: Condvar,
}

impl Source for Straggler {
    fn contents(&self) -> &Contents {
        self.files.contents()
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.files.check_unchanged()
    }

    fn read_at(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        if file == 0 {
            let mut state = self.state.lock();
            while state.0 == 0 && !state.1 {
                if self.opened.wait_for(&mut state, Duration::from_secs(60)).timed_out() {
                    return Err(Error::io("disk 0", "the sample waited for a straggler"));
                }
            }
            state.0 = state.0.saturating_sub(1);
        }
        self.files.read_at(file, offset, out)
    }
}

#[test]
fn stragglers_are_dropped_and_the_sum_stays_right() {
    let disks = Disks::new(3);
    let truth = numbers(&disks, 9000);
    let mut covered = 0;
    for seed in 0..SEEDS {
        let state = Mutex::new((30, false));
        let source = Arc::new(Straggler { files: disks.source(), state, opened: Condvar::new() });
        let lines = Ldd::read(source.clone(), 256, Lines).unwrap().with_threads(2);
        let sampling = PartitionSampling { ratio: 0.3, shares: Shares::Sizes, drop: 0.2, seed };
        let sample = lines.sample_partitions_with(&sampling).unwrap();
        let sum = sample.sum(|line| line.parse().unwrap(), 0.95).unwrap();
        let needed = (lines.partitions().len() as f64 * 0.3).ceil() as u64;
        assert!(sum.units_seen >= needed && sum.units_seen < sample.partitions().len() as u64);
        covered += u64::from(sum.low <= truth && truth <= sum.high);
        source.state.lock().1 = true;
        source.opened.notify_all();
    }
    assert_coverage("dropped", covered);
}

#[test]
fn a_merge_over_partitions_of_which_some_are_dropped_ends() {
    let disks = Disks::new(3);
    numbers(&disks, 9000);
    let source = Arc::new(Straggler { files: disks.source(), state: Mutex::new((30, false)), opened: Condvar::new() });
    let lines = Ldd::read(source.clone(), 256, Lines).unwrap().with_threads(2);
    let sampling = PartitionSampling { ratio: 0.3, shares: Shares::Sizes, drop: 0.2, seed: 1 };
    let sample = lines.sample_partitions_with(&sampling).unwrap();
    let lengths = sample.map(|line| (line.len(), 1u64)).reduce_by_key(|a, b| a + b);
    let counted: u64 = lengths.collect().unwrap().into_iter().map(|(_, count)| count).sum();
    source.state.lock().1 = true;
    source.opened.notify_all();
    let (all, selected) = (lines.count().unwrap(), sample.partitions().len() as f64 / lines.partitions().len() as f64);
    let share = counted as f64 / all as f64;
    assert!(share > 0.28 && share < selected - 0.005, "{share} of {selected}");
}
