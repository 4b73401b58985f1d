//! Intervals hold where the last unit of a file is short, whether or not it was drawn: its size is known.

use tessera_sampling::estimate::{Estimate, Population, Quantity};
use tessera_sampling::layout::{Layout, Run};
use tessera_sampling::schedule::{Issue, Schedule, Shares};
use tessera_sampling::tally::{Tally, Totals};

const SEEDS: u64 = 200;
const UNIT_BYTES: u64 = 16 << 10;
const FILES: u64 = 8;
const VALUE: f64 = 0.25;

/// Files of one key each, whose records have the same length.
struct Files {
    layout: Layout,
    /// Of a record, by file.
    lens_bytes: Vec<u64>,
    records: Vec<u64>,
}

impl Files {
    fn new(len_bytes: impl Fn(u64) -> u64) -> Files {
        let lens_bytes: Vec<u64> = (0..FILES).map(len_bytes).collect();
        let records: Vec<u64> = (0..FILES).map(|file| (40_000 + 700 * file) * 40 / lens_bytes[file as usize]).collect();
        let run = |file: u64| {
            let len_bytes = records[file as usize] * lens_bytes[file as usize];
            Run { file: file as u32, offset: 0, len_bytes, disk: 0, rows: None }
        };
        let layout = Layout::new(&(0..FILES).map(run).collect::<Vec<_>>(), 1, UNIT_BYTES);
        Files { layout, lens_bytes, records }
    }

    /// A record belongs to the unit in which it begins.
    fn read(&self, issue: &Issue, tally: &mut Tally) {
        let (unit, record) = (&issue.unit, self.lens_bytes[issue.unit.file as usize]);
        let mut records = tally.unit(issue.stratum, unit.size as f64);
        for _ in unit.offset.div_ceil(record)..(unit.offset + unit.size).div_ceil(record) {
            records.add(format!("host {}", unit.file).as_bytes(), VALUE);
        }
    }

    /// A random half.
    fn sample(&self, seed: u64) -> Tally {
        let mut schedule = Schedule::new(self.layout.clone(), Shares::Equal, seed);
        schedule.need(self.layout.units() / 2, 0.0);
        let mut tally = Tally::new(&self.layout, false, seed);
        while !schedule.is_complete() {
            let issue = schedule.next(0).expect("there is more to read");
            self.read(&issue, &mut tally);
            schedule.arrived(issue.stratum);
        }
        tally
    }
}

/// How many of the intervals that are claimed hold, and how wide they are at most relative to the truth.
#[derive(Debug, Default)]
struct Held {
    claimed: u64,
    held: u64,
    widest: f64,
}

impl Held {
    fn see(&mut self, found: &Estimate, truth: f64) {
        if found.claimed {
            self.claimed += 1;
            self.held += u64::from(found.low <= truth && truth <= found.high);
            self.widest = self.widest.max((found.high - found.low) / truth);
        }
    }

    fn check(&self, of: &str) {
        println!("{of}: {self:?}");
        assert!(self.claimed >= SEEDS * 9 / 10, "{of}: {self:?}");
        assert!(self.held as f64 >= 0.9 * self.claimed as f64, "{of}: {self:?}");
        assert!(self.widest < 0.005, "{of}: {self:?}");
    }
}

fn check(files: &Files) {
    let (mut counts, mut sums, mut all_counts) = (Held::default(), Held::default(), Held::default());
    for seed in 0..SEEDS {
        let tally = files.sample(seed);
        let totals = Totals::of([&tally]);
        let population = Population::new(&totals.strata, &totals.all, 0.95);
        for (file, records) in files.records.iter().enumerate() {
            let group = totals.group(format!("host {file}").as_bytes());
            counts.see(&population.estimate(Quantity::Count, &group), *records as f64);
            sums.see(&population.estimate(Quantity::Sum, &group), *records as f64 * VALUE);
        }
        let all: Vec<_> = totals.all.iter().copied().enumerate().collect();
        let found = population.estimate(Quantity::Count, &all);
        all_counts.see(&found, files.records.iter().sum::<u64>() as f64);
    }
    counts.check("counts of files");
    sums.check("sums of files");
    all_counts.check("count of all");
}

#[test]
fn intervals_hold_of_groups_that_lie_in_one_file() {
    check(&Files::new(|_| 40));
}

/// What a byte holds differs between the strata.
#[test]
fn intervals_hold_where_records_of_files_differ_in_length() {
    check(&Files::new(|file| 30 + 11 * file));
}
