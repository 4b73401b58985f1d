//! Batches of look-ups compared with single look-ups, in millions a second.

use crate::Bench;
use std::hint::black_box;
use tessera_bench_accel::report::Row;
use tessera_bench_accel::roofs::Roof;
use tessera_bench_accel::timing::noise;
use tessera_hashgpu::lookup::{BlockedBloom, Sorted};

const QUERIES: usize = 1 << 16;

/// Sorted arrays that fit a cache and arrays that do not; a filter.
pub fn all(bench: &Bench) {
    let queries: Vec<u64> = words(QUERIES + 1).split_off(1);
    for keys in [1 << 12, 1 << 20, 1 << 23] {
        let name = format!("find in {keys} keys, M/s, vs one by one");
        if !bench.wants(&name) {
            continue;
        }
        let mut sorted = words(keys);
        sorted.sort_unstable();
        sorted.dedup();
        let sorted = Sorted::new(&sorted).expect("sorted");
        let mut ours = || {
            black_box(sorted.lower_bounds(black_box(&queries)));
        };
        let mut theirs = || {
            black_box(sorted.lower_bounds_reference(black_box(&queries)));
        };
        race(bench, &name, &queries, 8 * keys, &mut ours, &mut theirs);
    }
    let name = "filter of 8388608 keys, M/s, vs one by one";
    if bench.wants(name) {
        let mut filter = BlockedBloom::new(1 << 23, 8).expect("memory");
        filter.insert(&words(1 << 23));
        let mut ours = || {
            black_box(filter.may_hold(black_box(&queries)));
        };
        let mut theirs = || {
            black_box(filter.may_hold_reference(black_box(&queries)));
        };
        race(bench, name, &queries, 1 << 23, &mut ours, &mut theirs);
    }
}

fn words(len: usize) -> Vec<u64> {
    noise(8 * len).chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes"))).collect()
}

/// The upper bound: one line of memory per query, at a random place in as many bytes, with no query waiting for
/// another.
fn race(bench: &Bench, name: &str, queries: &[u64], bytes: usize, ours: &mut dyn FnMut(), theirs: &mut dyn FnMut()) {
    let memory = words(bytes / 8);
    let mut lines = || {
        black_box(queries.iter().fold(0, |sum, q| sum ^ memory[(*q >> 20) as usize & (memory.len() - 1)]));
    };
    // Counting a query as a thousand bytes turns GB/s into millions a second.
    let rates = bench.timing.compare(1000 * queries.len(), &mut [ours, theirs, &mut lines]);
    bench.row(Row {
        name: name.to_owned(),
        ours: rates.of(0),
        peer: Some(rates.of(1)),
        ratio: Some(rates.ratio(0, 1)),
        spread: Some(rates.ratio_quartiles(0, 1)),
        roof: Roof::memory(rates.of(2)),
        goal: None,
    });
}
