//! Intervals from rows in memory cover the truth as often as they claim, for balanced and for random selections.
//!
//! 200 fixed seeds; 90 to 99 % of intervals of 95 % must cover. Rows are clusters: elements of a row resemble each other in
//! two of the populations, and in one of them the banks differ.

use tessera_sampling::arch::answer::moments;
use tessera_sampling::arch::file::Domain;
use tessera_sampling::arch::{Architecture, Assignment, Partitions, Placement, RowSample, select};
use tessera_sampling::estimate::{Estimate, Moments, Quantity};

const SEEDS: u64 = 200;
const ROW_ELEMENTS: usize = 64;
const ROWS: usize = 4000;
const BANKS: usize = 8;

fn memory() -> Architecture {
    let mut memory = Architecture::preset("pcm").unwrap();
    (memory.banks, memory.row_bytes) = (BANKS / 2, ROW_ELEMENTS * 4);
    memory.domains = vec![Domain { cpus: vec![] }; 2];
    memory.bank_weights = vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0];
    memory
}

/// Scatters the bits of a number (the finalizer of SplitMix64).
fn scatter(i: usize) -> usize {
    let mixed = (i as u64 ^ (i as u64 >> 30)).wrapping_add(1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as usize
}

/// Elements; the mean of a row is the same everywhere, drifts, or follows the bank.
fn populations() -> [(&'static str, Vec<u32>); 3] {
    let of = |base: fn(usize) -> usize| -> Vec<u32> {
        (0..ROWS * ROW_ELEMENTS).map(|i| (base(i / ROW_ELEMENTS) + scatter(i) % 100) as u32).collect()
    };
    [
        ("shuffled", of(|_| 0)),
        ("clustered", of(|row| row / 40 % 100 + scatter(row) % 100)),
        ("banks differ", of(|row| row % 4 * 300 + scatter(row) % 50)),
    ]
}

/// Of the seeds, how many intervals covered: sum, count of values below 50, mean, mean by bootstrap.
fn coverage(data: &[u32], assignment: Assignment) -> [u64; 4] {
    let memory = memory();
    // A fixed address, so that every run has the same rows and banks.
    let rows = Partitions::at(ROW_ELEMENTS * 4 * 3 + 24, 4, data.len(), &memory, Placement::Blocks).unwrap();
    let sum = data.iter().map(|value| f64::from(*value)).sum::<f64>();
    let small = data.iter().filter(|value| **value % 100 < 50).count() as f64;
    let mut covered = [0; 4];
    for seed in 0..SEEDS {
        let selection = select(&rows, &memory, 160, assignment, 2, seed).unwrap();
        let read = |measure: fn(&[u32]) -> Moments| RowSample::read(data, &rows, &memory, &selection, measure).unwrap();
        let all = read(|row| moments(row.iter().map(|value| f64::from(*value))));
        let below = read(|row| moments(row.iter().filter(|value| **value % 100 < 50).map(|_| 1.0)));
        let mean = sum / data.len() as f64;
        let found: [(Estimate, f64); 4] = [
            (all.estimate(Quantity::Sum, 0.95), sum),
            (below.estimate(Quantity::Count, 0.95), small),
            (all.estimate(Quantity::Mean, 0.95), mean),
            (all.bootstrap_mean(0.95, seed).unwrap(), mean),
        ];
        for (covered, (found, truth)) in covered.iter_mut().zip(found) {
            assert!(found.claimed && found.high > found.low);
            *covered += u64::from(found.low <= truth && truth <= found.high);
        }
    }
    covered
}

#[test]
fn intervals_of_rows_cover_as_often_as_they_claim() {
    for (name, data) in populations() {
        for assignment in [Assignment::ContentionFree, Assignment::LoadBalanced, Assignment::Random] {
            for (question, covered) in ["sum", "count", "mean", "bootstrap"].iter().zip(coverage(&data, assignment)) {
                let least = SEEDS * 90 / 100;
                let most = SEEDS * 99 / 100;
                let found = format!("{name}, {}, {question}: {covered} of {SEEDS}", assignment.name());
                assert!((least..=most).contains(&covered), "{found}");
            }
        }
    }
}
