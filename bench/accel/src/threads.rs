//! Two threads compared with one: what a second core brings, with memory of its own for each.

use crate::Bench;
use std::hint::black_box;
use tessera_accel::boundaries::{self, Params};
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::hash;
use tessera_bench_accel::report::Row;
use tessera_bench_accel::roofs::{self, Roof};
use tessera_bench_accel::timing::noise;

/// Bytes that a thread processes; starting a thread takes 50 µs.
const BYTES: usize = 40 << 20;
/// Each pass processes the same part of this size, which stays in a core's own cache.
const PART_BYTES: usize = 10 * (32 << 10);

/// A thread's work on its own bytes.
type Work<'a> = &'a (dyn Fn(&[u8]) + Sync);

/// Encoding, boundaries and BLAKE3, by one thread and by two, of bytes that stay in each core's cache.
pub fn all(bench: &Bench) {
    let data = [noise(PART_BYTES), noise(PART_BYTES)];
    let code = Code::new(10, 4, Matrix::Cauchy1).expect("valid code");
    let encode = |bytes: &[u8]| {
        let fragment = bytes.len() / 10;
        let mut parity = vec![vec![0u8; fragment]; 4];
        let slices: Vec<&[u8]> = bytes.chunks(fragment).collect();
        let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.encode(black_box(&slices), fragment, &mut room).expect("valid call");
    };
    let params = Params::new(256 << 10, 4 << 20).expect("valid sizes");
    let search = |bytes: &[u8]| {
        let mut found = Vec::new();
        boundaries::candidates(&params, &[], black_box(bytes), &mut found);
        black_box(found);
    };
    let name = |bytes: &[u8]| {
        black_box(hash::chunk_hash(black_box(bytes)));
    };
    let works: [(&str, Work<'_>); 3] = [("rs encode 10+4", &encode), ("boundaries", &search), ("blake3", &name)];
    for (what, work) in works {
        let name = format!("{what}: two threads vs one");
        if bench.wants(&name) {
            race(bench, &name, &data, work);
        }
    }
}

/// The upper bound: the gain of two threads that add numbers in registers and share at most a core.
fn race(bench: &Bench, name: &str, data: &[Vec<u8>; 2], work: Work<'_>) {
    let repeated = |bytes: &[u8]| (0..BYTES / PART_BYTES).for_each(|_| work(bytes));
    let spin = |_: &[u8]| roofs::registers_only(2_000_000);
    let by_two = |work: Work<'_>| {
        std::thread::scope(|scope| {
            data.iter().for_each(|bytes| {
                scope.spawn(|| work(bytes));
            })
        })
    };
    let (mut one, mut two) = (|| repeated(&data[0]), || by_two(&repeated));
    let (mut spin_one, mut spin_two) = (|| spin(&data[0]), || by_two(&spin));
    let ways: &mut [&mut dyn FnMut()] = &mut [&mut two, &mut one, &mut spin_two, &mut spin_one];
    let rates = bench.timing.compare(BYTES, ways);
    bench.row(Row {
        name: name.to_owned(),
        ours: 2.0 * rates.of(0),
        peer: Some(rates.of(1)),
        ratio: Some(2.0 * rates.ratio(0, 1)),
        spread: Some(rates.ratio_quartiles(0, 1).map(|ratio| 2.0 * ratio)),
        roof: Some(Roof { rate: 2.0 * rates.ratio(2, 3) * rates.of(1), by: "the second thread's share of a core" }),
        goal: Some(1.9),
    });
}
