//! Batches of hashes beside the crates that hash one message at a time.

use crate::Bench;
use std::hint::black_box;
use tessera_accel::boundaries::{Cutter, Rule};
use tessera_accel::digest::{self, Function, SEGMENT_BYTES};
use tessera_accel::hash;
use tessera_accel::windows::Windows;
use tessera_bench_accel::roofs::Memory;
use tessera_bench_accel::timing::noise;

const TOTAL_BYTES: usize = 2 << 20;

/// BLAKE3, MD5, SHA-1 and SHA-256 of 2 MiB in buffers of one size.
pub fn batches(bench: &Bench) {
    let data = noise(TOTAL_BYTES);
    for len in [64, 256, 1024, 4096, 16384, 65536] {
        let buffers: Vec<&[u8]> = data.chunks(len).collect();
        let name = format!("blake3 batch of {len} B vs blake3 crate");
        if bench.wants(&name) {
            let mut ours = || {
                black_box(hash::batch(black_box(&buffers)));
            };
            let mut theirs = || {
                buffers.iter().for_each(|b| {
                    black_box(blake3::hash(black_box(b)));
                })
            };
            let rates = bench.timing.compare(TOTAL_BYTES, &mut [&mut ours, &mut theirs]);
            bench.row(&name, rates[0], Some(rates[1]), Some(Memory::measure(bench.timing, TOTAL_BYTES).read));
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
            let rates = bench.timing.compare(TOTAL_BYTES, &mut [&mut ours, &mut theirs]);
            bench.row(&name, rates[0], Some(rates[1]), None);
        }
    }
}

/// HashGPU's direct hashing of one buffer, beside hashing it as one chain.
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
        let rates = bench.timing.compare(TOTAL_BYTES, &mut [&mut ours, &mut theirs]);
        bench.row(&name, rates[0], Some(rates[1]), None);
    }
}

/// HashGPU's sliding windows, and stdchk's rule on them, beside hashing one window after another.
pub fn windows(bench: &Bench) {
    let data = noise(TOTAL_BYTES / 8);
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
            black_box(windows.hash_on(tessera_accel::Isa::REFERENCE, black_box(&data)));
        };
        let rates = bench.timing.compare(data.len(), &mut [&mut ours, &mut theirs]);
        bench.row(&name, rates[0], Some(rates[1]), None);
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
        let mut ours = || cut(tessera_accel::Isa::best());
        let mut theirs = || cut(tessera_accel::Isa::REFERENCE);
        let rates = bench.timing.compare(data.len(), &mut [&mut ours, &mut theirs]);
        bench.row(&name, rates[0], Some(rates[1]), None);
    }
}
