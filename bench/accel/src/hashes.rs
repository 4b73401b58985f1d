//! Hashes of one buffer and of batches compared with crates that hash one message at a time; the search for boundaries.

use crate::Bench;
use mincdc::{MinCdcHash4, SliceChunker};
use std::hint::black_box;
use tessera_accel::Isa;
use tessera_accel::boundaries::{self, Cutter, Params, Rule};
use tessera_accel::hash;
use tessera_bench_accel::report::Row;
use tessera_bench_accel::roofs::{self, Roof};
use tessera_bench_accel::rotation::{Place, Rotation};
use tessera_bench_accel::timing::noise;
use tessera_hashgpu::digest::{self, Function, SEGMENT_BYTES};
use tessera_hashgpu::windows::Windows;

const TOTAL_BYTES: usize = 2 << 20;

/// Bytes to hash, as one message or in parts.
struct Input<'a> {
    bytes: &'a [u8],
    parts: Vec<&'a [u8]>,
}

/// As many copies of noise as take turns in `place`.
fn copies(place: Place, len: usize) -> Vec<Vec<u8>> {
    vec![noise(len); place.sets(len)]
}

/// The first `len` bytes of each copy, in parts of `part_len`.
fn inputs(copies: &[Vec<u8>], len: usize, part_len: usize) -> Rotation<Input<'_>> {
    copies.iter().map(|bytes| Input { bytes: &bytes[..len], parts: bytes[..len].chunks(part_len).collect() }).collect()
}

/// Processes an input.
type Way<'a> = &'a mut dyn FnMut(&Input<'_>);

/// Two ways to process the same bytes.
struct Race<'a> {
    name: &'a str,
    inputs: Rotation<Input<'a>>,
    goal: Option<f64>,
    compute: Option<Roof>,
}

impl Race<'_> {
    /// Times `ours`, `theirs` and reading the same bytes in turns, and prints the row.
    fn run(self, bench: &Bench, ours: Way<'_>, theirs: Way<'_>) {
        let mut by_us = || ours(black_box(self.inputs.turn()));
        let mut by_them = || theirs(black_box(self.inputs.turn()));
        let mut read = || roofs::read(self.inputs.turn().bytes);
        let bytes = self.inputs.sets()[0].bytes.len();
        let rates = bench.timing.compare(bytes, &mut [&mut by_us, &mut by_them, &mut read]);
        bench.row(Row {
            name: self.name.to_owned(),
            ours: rates.of(0),
            peer: Some(rates.of(1)),
            ratio: Some(rates.ratio(0, 1)),
            spread: Some(rates.ratio_quartiles(0, 1)),
            roof: Roof::lower(self.compute, Roof::memory(rates.of(2))),
            goal: self.goal,
        });
    }
}

/// BLAKE3 of one buffer compared with the crate.
pub fn one_buffer(bench: &Bench) {
    for place in Place::BOTH {
        for len in [64 << 10, TOTAL_BYTES] {
            let name = format!("blake3 of {} KiB vs blake3 crate{}", len >> 10, place.suffix());
            if bench.wants(&name) {
                let copies = copies(place, len);
                let compute = bench.vectors.and_then(|v| v.digest("blake3", len));
                let mut ours = |input: &Input<'_>| {
                    black_box(hash::chunk_hash(input.bytes));
                };
                let mut theirs = |input: &Input<'_>| {
                    black_box(blake3::hash(input.bytes));
                };
                let race = Race { name: &name, inputs: inputs(&copies, len, len), goal: Some(1.0), compute };
                race.run(bench, &mut ours, &mut theirs);
            }
        }
    }
}

/// The search for boundaries by each instruction set compared with `memcpy` of the same bytes.
pub fn search(bench: &Bench) {
    for len in [256 << 10, TOTAL_BYTES] {
        for place in Place::BOTH {
            for isa in Isa::supported().into_iter().skip(2) {
                let name = format!("boundaries of {} KiB, {}, vs memcpy{}", len >> 10, isa.name(), place.suffix());
                if bench.wants(&name) {
                    search_on(bench, isa, len, place, &name);
                }
            }
        }
    }
}

fn search_on(bench: &Bench, isa: Isa, len: usize, place: Place, name: &str) {
    let params = Params::new(256 << 10, 4 << 20).expect("valid sizes");
    let (copies, mut copy) = (copies(place, len), vec![0u8; len]);
    let mut found = Vec::new();
    let mut ours = |input: &Input<'_>| {
        found.clear();
        boundaries::candidates_on(isa, &params, &[], input.bytes, &mut found);
        black_box(&found);
    };
    let mut theirs = |input: &Input<'_>| {
        copy.copy_from_slice(input.bytes);
        black_box(&mut copy);
    };
    let compute = bench.vectors.filter(|_| isa == Isa::best()).and_then(|v| v.boundaries());
    // 12 GB/s where memcpy reaches 32 in the second-level cache and 16 beyond it.
    let goal = Some(if len > 1 << 20 || place == Place::Memory { 0.75 } else { 0.375 });
    Race { name, inputs: inputs(&copies, len, len), goal, compute }.run(bench, &mut ours, &mut theirs);
}

/// Whole streams cut into chunks, compared with the `mincdc` crate at the same minimum and mean: its boundaries are the
/// least hash of four bytes between minimum and maximum, so its mean is half of their sum.
pub fn cuts(bench: &Bench) {
    for place in Place::BOTH {
        for (min, max) in [(16 << 10, 256 << 10), (256 << 10, 4 << 20)] {
            let name = format!("cdc:{}K..{}K vs mincdc of equal mean{}", min >> 10, max >> 10, place.suffix());
            if bench.wants(&name) {
                cut(bench, &name, place, Params::new(min, max).expect("valid sizes"));
            }
        }
    }
}

fn cut(bench: &Bench, name: &str, place: Place, params: Params) {
    let peers_max = 2 * params.mean() - params.min();
    let by_us = |bytes: &[u8]| {
        let (mut cutter, mut cuts) = (Cutter::new(Rule::Cdc(params)), Vec::new());
        cutter.feed(bytes, &mut cuts);
        cuts.len()
    };
    let by_them = |bytes: &[u8]| SliceChunker::new(bytes, params.min(), peers_max, MinCdcHash4::new()).count();
    let long = noise(128 * params.mean());
    let (ours, theirs) = (by_us(&long), by_them(&long));
    assert!(ours.abs_diff(theirs) <= 16, "{name}: {ours} and {theirs} chunks in {} bytes", long.len());
    let len = 8 * params.mean().max(TOTAL_BYTES / 8);
    let copies = copies(place, len);
    let mut ours = |input: &Input<'_>| {
        black_box(by_us(input.bytes));
    };
    let mut theirs = |input: &Input<'_>| {
        black_box(by_them(input.bytes));
    };
    let race = Race { name, inputs: inputs(&copies, len, len), goal: Some(1.0), compute: None };
    race.run(bench, &mut ours, &mut theirs);
}

/// BLAKE3, MD5, SHA-1 and SHA-256 of 2 MiB in buffers of one size.
pub fn batches(bench: &Bench) {
    for place in Place::BOTH {
        let copies = copies(place, TOTAL_BYTES);
        for len in [64, 256, 1024, 4096, 16384, 65536] {
            blake3_batch(bench, &copies, len, place);
            for function in [Function::Md5, Function::Sha1, Function::Sha256] {
                digest_batch(bench, &copies, len, place, function);
            }
        }
    }
}

fn blake3_batch(bench: &Bench, copies: &[Vec<u8>], len: usize, place: Place) {
    let name = format!("blake3 batch of {len} B vs blake3 crate{}", place.suffix());
    if !bench.wants(&name) {
        return;
    }
    let goal = [(1024, 3.0), (4096, 1.7)].into_iter().find(|(at, _)| *at == len).map(|(_, goal)| goal);
    let compute = bench.vectors.and_then(|v| v.digest("blake3", len));
    let mut ours = |input: &Input<'_>| {
        black_box(hash::batch(&input.parts));
    };
    let mut theirs = |input: &Input<'_>| {
        input.parts.iter().for_each(|b| {
            black_box(blake3::hash(black_box(b)));
        })
    };
    let race = Race { name: &name, inputs: inputs(copies, TOTAL_BYTES, len), goal, compute };
    race.run(bench, &mut ours, &mut theirs);
}

fn digest_batch(bench: &Bench, copies: &[Vec<u8>], len: usize, place: Place, function: Function) {
    let name = format!("{function} batch of {len} B vs rustcrypto{}", place.suffix());
    if !bench.wants(&name) {
        return;
    }
    let mut ours = |input: &Input<'_>| {
        black_box(digest::batch(function, &input.parts));
    };
    let mut theirs = |input: &Input<'_>| {
        input.parts.iter().for_each(|b| {
            black_box(digest::digest(function, black_box(b)));
        })
    };
    let compute = bench.vectors.and_then(|v| v.digest(&function.to_string(), len));
    let race = Race { name: &name, inputs: inputs(copies, TOTAL_BYTES, len), goal: None, compute };
    race.run(bench, &mut ours, &mut theirs);
}

/// HashGPU's direct hashing of one buffer, compared with hashing it as one chain.
pub fn segmented(bench: &Bench) {
    for place in Place::BOTH {
        let copies = copies(place, TOTAL_BYTES);
        for function in [Function::Md5, Function::Sha1, Function::Sha256] {
            let name = format!("{function} of 2 MiB in {SEGMENT_BYTES} B segments{}", place.suffix());
            if !bench.wants(&name) {
                continue;
            }
            let mut ours = |input: &Input<'_>| {
                black_box(digest::segmented(function, input.bytes, SEGMENT_BYTES).expect("segments have bytes"));
            };
            let mut theirs = |input: &Input<'_>| {
                black_box(digest::digest(function, input.bytes));
            };
            let compute = bench.vectors.and_then(|v| v.digest(&function.to_string(), SEGMENT_BYTES));
            let inputs = inputs(&copies, TOTAL_BYTES, TOTAL_BYTES);
            Race { name: &name, inputs, goal: None, compute }.run(bench, &mut ours, &mut theirs);
        }
    }
}

/// HashGPU's sliding windows, and stdchk's rule on them, compared with hashing one window after another. They do not
/// reach a hundredth of memory's rate: where the bytes lie does not matter.
pub fn windows(bench: &Bench) {
    let copies = copies(Place::Cache, TOTAL_BYTES / 8);
    let input = || inputs(&copies, TOTAL_BYTES / 8, TOTAL_BYTES / 8);
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
        let mut ours = |input: &Input<'_>| {
            black_box(windows.hash(input.bytes));
        };
        let mut theirs = |input: &Input<'_>| {
            black_box(windows.hash_on(Isa::REFERENCE, input.bytes));
        };
        let race = Race { name: &name, inputs: input(), goal: None, compute: compute(window, step) };
        race.run(bench, &mut ours, &mut theirs);
    }
    for (m, k, p) in [(20, 14, 20), (20, 14, 1)] {
        let name = format!("cbch:{m},{k},{p} vs one window by one");
        if !bench.wants(&name) {
            continue;
        }
        let rule = Rule::cbch(m, k, p).expect("valid rule");
        let cut = |isa, bytes: &[u8]| {
            let mut cuts = Vec::new();
            Cutter::new_on(isa, rule).feed(bytes, &mut cuts);
            black_box(cuts);
        };
        let mut ours = |input: &Input<'_>| cut(Isa::best(), input.bytes);
        let mut theirs = |input: &Input<'_>| cut(Isa::REFERENCE, input.bytes);
        let race = Race { name: &name, inputs: input(), goal: None, compute: compute(m, p) };
        race.run(bench, &mut ours, &mut theirs);
    }
}
