//! Hashes of one buffer and of batches compared with crates that hash one message at a time; the search for boundaries.

use crate::Bench;
use std::hint::black_box;
use tessera_accel::Isa;
use tessera_accel::boundaries::{self, Cutter, Params, Rule};
use tessera_accel::hash;
use tessera_bench_accel::report::Row;
use tessera_bench_accel::roofs::{self, Roof};
use tessera_bench_accel::timing::noise;
use tessera_hashgpu::digest::{self, Function, SEGMENT_BYTES};
use tessera_hashgpu::windows::Windows;

const TOTAL_BYTES: usize = 2 << 20;

/// Two ways to process the same bytes.
struct Race<'a> {
    name: &'a str,
    data: &'a [u8],
    goal: Option<f64>,
    compute: Option<Roof>,
}

impl Race<'_> {
    /// Times `ours`, `theirs` and reading the same bytes in turns, and prints the row.
    fn run(self, bench: &Bench, ours: &mut dyn FnMut(), theirs: &mut dyn FnMut()) {
        let mut read = || roofs::read(self.data);
        let rates = bench.timing.compare(self.data.len(), &mut [ours, theirs, &mut read]);
        bench.row(Row {
            name: self.name.to_owned(),
            ours: rates.of(0),
            peer: Some(rates.of(1)),
            ratio: Some(rates.ratio(0, 1)),
            roof: Roof::lower(self.compute, Roof::memory(rates.of(2))),
            goal: self.goal,
        });
    }
}

/// BLAKE3 of one buffer compared with the crate.
pub fn one_buffer(bench: &Bench) {
    let data = noise(TOTAL_BYTES);
    for len in [64 << 10, TOTAL_BYTES] {
        let name = format!("blake3 of {} KiB vs blake3 crate", len >> 10);
        if bench.wants(&name) {
            let data = &data[..len];
            let compute = bench.vectors.and_then(|v| v.digest("blake3", len));
            let mut ours = || {
                black_box(hash::chunk_hash(black_box(data)));
            };
            let mut theirs = || {
                black_box(blake3::hash(black_box(data)));
            };
            Race { name: &name, data, goal: Some(1.0), compute }.run(bench, &mut ours, &mut theirs);
        }
    }
}

/// The search for boundaries by each instruction set compared with `memcpy` of the same bytes.
pub fn search(bench: &Bench) {
    let params = Params::new(256 << 10, 4 << 20).expect("valid sizes");
    for len in [256 << 10, TOTAL_BYTES] {
        let (data, mut copy) = (noise(len), vec![0u8; len]);
        for isa in Isa::supported().into_iter().skip(2) {
            let name = format!("boundaries of {} KiB, {}, vs memcpy", len >> 10, isa.name());
            if !bench.wants(&name) {
                continue;
            }
            let mut found = Vec::new();
            let mut ours = || {
                found.clear();
                boundaries::candidates_on(isa, &params, &[], black_box(&data), &mut found);
                black_box(&found);
            };
            let mut theirs = || {
                copy.copy_from_slice(black_box(&data));
                black_box(&mut copy);
            };
            let compute = bench.vectors.filter(|_| isa == Isa::best()).and_then(|v| v.boundaries());
            // 12 GB/s where memcpy reaches 32 in the second-level cache and 16 beyond it.
            let goal = Some(if len > 1 << 20 { 0.75 } else { 0.375 });
            Race { name: &name, data: &data, goal, compute }.run(bench, &mut ours, &mut theirs);
        }
    }
}

/// BLAKE3, MD5, SHA-1 and SHA-256 of 2 MiB in buffers of one size.
pub fn batches(bench: &Bench) {
    let data = noise(TOTAL_BYTES);
    for len in [64, 256, 1024, 4096, 16384, 65536] {
        let buffers: Vec<&[u8]> = data.chunks(len).collect();
        let name = format!("blake3 batch of {len} B vs blake3 crate");
        if bench.wants(&name) {
            let goal = [(1024, 3.0), (4096, 1.7)].into_iter().find(|(at, _)| *at == len).map(|(_, goal)| goal);
            let compute = bench.vectors.and_then(|v| v.digest("blake3", len));
            let mut ours = || {
                black_box(hash::batch(black_box(&buffers)));
            };
            let mut theirs = || {
                buffers.iter().for_each(|b| {
                    black_box(blake3::hash(black_box(b)));
                })
            };
            Race { name: &name, data: &data, goal, compute }.run(bench, &mut ours, &mut theirs);
        }
        for function in [Function::Md5, Function::Sha1, Function::Sha256] {
            let name = format!("{function} batch of {len} B vs rustcrypto");
            if !bench.wants(&name) {
                continue;
            }
            let mut ours = || {
                black_box(digest::batch(function, black_box(&buffers)));
            };
            let mut theirs = || {
                buffers.iter().for_each(|b| {
                    black_box(digest::digest(function, black_box(b)));
                })
            };
            let compute = bench.vectors.and_then(|v| v.digest(&function.to_string(), len));
            Race { name: &name, data: &data, goal: None, compute }.run(bench, &mut ours, &mut theirs);
        }
    }
}

/// HashGPU's direct hashing of one buffer, compared with hashing it as one chain.
pub fn segmented(bench: &Bench) {
    let data = noise(TOTAL_BYTES);
    for function in [Function::Md5, Function::Sha1, Function::Sha256] {
        let name = format!("{function} of 2 MiB in {SEGMENT_BYTES} B segments");
        if !bench.wants(&name) {
            continue;
        }
        let mut ours = || {
            black_box(digest::segmented(function, black_box(&data), SEGMENT_BYTES).expect("segments have bytes"));
        };
        let mut theirs = || {
            black_box(digest::digest(function, black_box(&data)));
        };
        let compute = bench.vectors.and_then(|v| v.digest(&function.to_string(), SEGMENT_BYTES));
        Race { name: &name, data: &data, goal: None, compute }.run(bench, &mut ours, &mut theirs);
    }
}

/// HashGPU's sliding windows, and stdchk's rule on them, compared with hashing one window after another.
pub fn windows(bench: &Bench) {
    let data = noise(TOTAL_BYTES / 8);
    // Each window is a separate message, but counts only the bytes up to the next window's start.
    let compute = |window: usize, step: usize| {
        let whole = bench.vectors.and_then(|v| v.digest("md5", window))?;
        Some(Roof { rate: whole.rate * step as f64 / window as f64, ..whole })
    };
    for (window, step) in [(20, 20), (20, 4), (48, 1)] {
        let name = format!("md5 of {window} B windows each {step} B vs one by one");
        if !bench.wants(&name) {
            continue;
        }
        let windows = Windows::new(Function::Md5, window, step, 4).expect("valid windows");
        let mut ours = || {
            black_box(windows.hash(black_box(&data)));
        };
        let mut theirs = || {
            black_box(windows.hash_on(Isa::REFERENCE, black_box(&data)));
        };
        let race = Race { name: &name, data: &data, goal: None, compute: compute(window, step) };
        race.run(bench, &mut ours, &mut theirs);
    }
    for (m, k, p) in [(20, 14, 20), (20, 14, 1)] {
        let name = format!("cbch:{m},{k},{p} vs one window by one");
        if !bench.wants(&name) {
            continue;
        }
        let rule = Rule::cbch(m, k, p).expect("valid rule");
        let cut = |isa| {
            let mut cuts = Vec::new();
            Cutter::new_on(isa, rule).feed(black_box(&data), &mut cuts);
            black_box(cuts);
        };
        let (mut ours, mut theirs) = (|| cut(Isa::best()), || cut(Isa::REFERENCE));
        let race = Race { name: &name, data: &data, goal: None, compute: compute(m, p) };
        race.run(bench, &mut ours, &mut theirs);
    }
}
