//! Populations of records on disks, with their truth.

#![allow(dead_code, reason = "each test uses a part")]

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tessera_sampling::layout::{Layout, Run};
use tessera_sampling::schedule::Issue;
use tessera_sampling::tally::{Key, Tally};

/// How records lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Law {
    /// Keys and values have the same distribution everywhere.
    Shuffled,
    /// Each file has its own frequent keys and its own mean, and they drift within it.
    FilesDiffer,
    /// Keys follow Zipf's law with exponent 1.2, and come in bursts.
    Zipf,
    /// Each disk has its own keys and values.
    DisksDiffer,
}

/// Totals of all records.
#[derive(Debug, Default)]
pub struct Truth {
    pub counts: Vec<f64>,
    pub sums: Vec<f64>,
    pub count: f64,
    pub sum: f64,
}

/// Units and their records (key, value).
pub struct Population {
    pub layout: Layout,
    pub keys: Vec<Key>,
    pub truth: Truth,
    /// By file, then by unit.
    units: Vec<Vec<Vec<(usize, f64)>>>,
    sorted: Vec<f64>,
}

const DISKS: u32 = 4;
const FILES: u32 = 24;
const UNITS: u64 = 100;
const RECORDS: usize = 40;
const KEYS: usize = 100;
const UNIT_BYTES: u64 = 100;

impl Population {
    pub fn new(law: Law) -> Population {
        let mut rng = StdRng::seed_from_u64(7);
        let zipf: Vec<f64> = (1..=KEYS).map(|rank| 1.0 / (rank as f64).powf(1.2)).collect();
        let mut units = Vec::new();
        for file in 0..FILES {
            let shift = match law {
                Law::FilesDiffer => rng.random_range(0..4),
                Law::DisksDiffer => (file % DISKS) as usize,
                _ => 0,
            };
            let drift = if law == Law::FilesDiffer { rng.random_range(0.0..8.0) } else { 0.0 };
            let unit = |u: u64| unit_records(law, &zipf, shift, drift * (u as f64 / 40.0).sin(), &mut rng);
            units.push((0..UNITS).map(unit).collect::<Vec<_>>());
        }
        let run = |file| Run { file, offset: 0, len_bytes: UNITS * UNIT_BYTES, disk: file % DISKS, rows: None };
        let layout = Layout::new(&(0..FILES).map(run).collect::<Vec<_>>(), DISKS as usize, UNIT_BYTES);
        let mut truth = Truth { counts: vec![0.0; KEYS], sums: vec![0.0; KEYS], ..Default::default() };
        let mut sorted = Vec::new();
        for (key, value) in units.iter().flatten().flatten() {
            truth.counts[*key] += 1.0;
            truth.sums[*key] += value;
            truth.count += 1.0;
            truth.sum += value;
            sorted.push(*value);
        }
        sorted.sort_by(f64::total_cmp);
        let keys = (0..KEYS).map(|key| format!("key {key}").into_bytes()).collect();
        Population { layout, keys, truth, units, sorted }
    }

    pub fn quantile(&self, q: f64) -> f64 {
        self.sorted[((q * self.sorted.len() as f64).ceil() as usize).saturating_sub(1)]
    }

    /// The files as CSV with the header `key,value`.
    pub fn csv(&self) -> Vec<Vec<u8>> {
        let record = |(key, value): &(usize, f64)| format!("key {key},{value}\n");
        let file = |units: &Vec<Vec<_>>| {
            let records = units.iter().flatten().map(record);
            std::iter::once("key,value\n".to_string()).chain(records).collect::<String>().into_bytes()
        };
        self.units.iter().map(file).collect()
    }

    /// Tallies the records of a unit, by key and together.
    pub fn read(&self, issue: &Issue, tally: &mut Tally) {
        let unit = &self.units[issue.unit.file as usize][(issue.unit.offset / UNIT_BYTES) as usize];
        let mut records = tally.unit(issue.stratum, issue.unit.size as f64);
        for (key, value) in unit {
            records.add(&self.keys[*key], *value);
        }
    }
}

fn unit_records(law: Law, zipf: &[f64], shift: usize, drift: f64, rng: &mut StdRng) -> Vec<(usize, f64)> {
    let draw = |rng: &mut StdRng| {
        let mut left = rng.random_range(0.0..zipf.iter().sum::<f64>());
        let rank = zipf.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        (rank.unwrap_or(0) + shift) % KEYS
    };
    let burst = draw(rng);
    let base = 50.0 + 20.0 * shift as f64 + drift;
    (0..rng.random_range(RECORDS - 15..RECORDS + 15))
        .map(|_| {
            let key = if law == Law::Zipf && rng.random_bool(0.3) { burst } else { draw(rng) };
            (key, base + (key % 7) as f64 + rng.random_range(-10.0..10.0))
        })
        .collect()
}
