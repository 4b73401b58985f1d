//! GB/s of hashes, checksums, boundaries and Reed–Solomon codes on one thread, beside memcpy: `cargo bench -p tessera-accel`.
//!
//! Each figure is the median of repeated passes over input that fits the last-level cache but not the first;
//! GB = 10^9 bytes of input data. Arguments filter by name; `--seconds N` sets the time per figure.

use std::hint::black_box;
use std::time::{Duration, Instant};
use tessera_accel::boundaries::{Cutter, Params, Rule, candidates_on};
use tessera_accel::erasure::{Code, Matrix, data_slice, fragment_len};
use tessera_accel::{Isa, checksum, hash};

const MIB: usize = 1 << 20;

struct Bench {
    filters: Vec<String>,
    time: Duration,
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let mut time = Duration::from_millis(400);
    if let Some(at) = arguments.iter().position(|a| a == "--seconds") {
        let seconds = arguments.get(at + 1).and_then(|s| s.parse::<f64>().ok()).filter(|s| *s > 0.0 && *s < 1e6);
        let Some(seconds) = seconds else {
            eprintln!("--seconds takes a number above 0");
            std::process::exit(2);
        };
        time = Duration::from_secs_f64(seconds);
        arguments.drain(at..at + 2);
    }
    let bench = Bench { filters: arguments, time };
    println!("instruction sets: {:?}", Isa::supported());
    println!("{:<44} {:>8} {:>8} {:>8}", "primitive", "median", "best", "worst");
    memory(&bench);
    hashes(&bench);
    checksums(&bench);
    boundaries(&bench);
    for isa in Isa::supported().into_iter().skip(1) {
        for (k, m) in [(1, 1), (4, 2), (8, 3), (10, 4), (16, 2), (17, 3)] {
            for kib in [256, 1024] {
                erasure(&bench, isa, Matrix::Cauchy1, k, m, kib << 10);
            }
        }
        erasure(&bench, isa, Matrix::Vandermonde, 4, 1, 256 << 10);
        erasure(&bench, isa, Matrix::Vandermonde, 4, 2, 256 << 10);
    }
}

fn memory(bench: &Bench) {
    let source = noise(8 * MIB);
    let mut target = vec![0u8; 8 * MIB];
    for len in [MIB, 8 * MIB] {
        bench.run(&format!("memcpy {} MiB", len / MIB), len, || {
            target[..len].copy_from_slice(black_box(&source[..len]));
            black_box(&mut target);
        });
    }
}

fn hashes(bench: &Bench) {
    let data = noise(MIB);
    for len in [4 << 10, 64 << 10, MIB] {
        let input = &data[..len];
        bench.run(&format!("blake3::hash {} KiB", len >> 10), len, || {
            black_box(hash::chunk_hash(black_box(input)));
        });
        bench.run(&format!("tree {} KiB", len >> 10), len, || {
            black_box(hash::tree(black_box(input)));
        });
    }
}

fn checksums(bench: &Bench) {
    let data = noise(MIB);
    for len in [4 << 10, 256 << 10, MIB] {
        bench.run(&format!("crc32c {} KiB", len >> 10), len, || {
            black_box(checksum::crc32c(black_box(&data[..len])));
        });
    }
}

fn boundaries(bench: &Bench) {
    let data = noise(8 * MIB);
    let params = Params::new(256 << 10, 4 << 20).expect("valid sizes");
    let text: Vec<u8> = data.iter().map(|b| b"etaoin shrdlu cmfwyp"[(*b as usize * *b as usize * 20) >> 16]).collect();
    for isa in Isa::supported().into_iter().skip(1) {
        for (kind, data) in [
            ("random", &data[..]),
            ("random 512 KiB", &data[..MIB / 2]),
            ("text", &text),
            ("zeros", &vec![0u8; 8 * MIB]),
        ] {
            let mut found = Vec::new();
            bench.run(&format!("candidates {kind} [{}]", isa.name()), data.len(), || {
                found.clear();
                candidates_on(isa, &params, &[], black_box(data), &mut found);
                black_box(&found);
            });
            bench.run(&format!("cutter {kind} [{}]", isa.name()), data.len(), || {
                let mut cutter = Cutter::new_on(isa, Rule::Cdc(params));
                let mut cuts = Vec::new();
                cutter.feed(black_box(data), &mut cuts);
                black_box(&cuts);
            });
        }
    }
}

fn erasure(bench: &Bench, isa: Isa, matrix: Matrix, k: usize, m: usize, frag_len: usize) {
    let code = Code::new(k, m, matrix).expect("valid code");
    let chunk = noise(k * frag_len);
    assert_eq!(fragment_len(chunk.len(), k), frag_len);
    let data: Vec<&[u8]> = (0..k).map(|i| data_slice(&chunk, k, i)).collect();
    let mut parity = vec![vec![0u8; frag_len]; m];
    let label = format!("{k}+{m} {matrix} {} KiB [{}]", frag_len >> 10, isa.name());
    bench.run(&format!("encode {label}"), chunk.len(), || {
        let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.encode_on(isa, black_box(&data), frag_len, &mut room).expect("valid call");
        black_box(&mut room);
    });
    let lost = m.min(k);
    let wanted: Vec<usize> = (0..lost).collect();
    let mut present: Vec<(usize, &[u8])> = (lost..k).map(|i| (i, data[i])).collect();
    present.extend(parity.iter().enumerate().map(|(i, p)| (k + i, p.as_slice())));
    let mut out = vec![vec![0u8; frag_len]; lost];
    bench.run(&format!("decode {lost} of {label}"), chunk.len(), || {
        let mut room: Vec<&mut [u8]> = out.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.reconstruct_on(isa, frag_len, black_box(&present), &wanted, &mut room).expect("valid call");
        black_box(&mut room);
    });
}

impl Bench {
    fn run(&self, name: &str, bytes: usize, mut work: impl FnMut()) {
        if !self.filters.iter().all(|f| name.contains(f.as_str())) {
            return;
        }
        work();
        let mut rates = Vec::new();
        let begin = Instant::now();
        while rates.len() < 5 || (begin.elapsed() < self.time && rates.len() < 10_000) {
            // Several calls a sample, so that the clock's own cost does not show.
            let calls = (MIB / bytes).max(1);
            let start = Instant::now();
            (0..calls).for_each(|_| work());
            rates.push((bytes * calls) as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
        rates.sort_by(f64::total_cmp);
        let (worst, best) = (rates[rates.len() / 20], rates[rates.len() - 1]);
        println!("{name:<44} {:>8.2} {best:>8.2} {worst:>8.2}", rates[rates.len() / 2]);
    }
}

/// Reproducible bytes without patterns (SplitMix64).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x7e55_e7a0_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
