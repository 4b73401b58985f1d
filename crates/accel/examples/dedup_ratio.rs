//! How much our chunk boundaries deduplicate, beside FastCDC (2020) at the same measured mean chunk size.
//!
//! `cargo run --release -p tessera-accel --example dedup_ratio -- [--edits N] PATH PATH…`
//!
//! Each PATH is one stream: a file, or a directory whose files are joined in the order of their names, each
//! behind a header with its path (as an archive would). With `--edits` each stream is followed by N copies of
//! itself with insertions, deletions and overwrites at random places. Chunks of all streams share one set.
//!
//! For each mean, FastCDC runs at (mean/4, mean, 4·mean); then our sizes (a, 16·a) are chosen so that our mean on
//! the same data is within 0.5 % of what FastCDC's turned out to be.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tessera_accel::boundaries::{Cutter, MAX_CHUNK_BYTES, Rule};
use tessera_accel::hash::chunk_hash;

const KIB: usize = 1024;

/// What chunking a set of streams gave.
struct Outcome {
    chunks: usize,
    total_bytes: u64,
    unique_bytes: u64,
}

impl Outcome {
    fn mean(&self) -> f64 {
        self.total_bytes as f64 / self.chunks as f64
    }

    /// Part of the bytes that need not be stored.
    fn saved(&self) -> f64 {
        1.0 - self.unique_bytes as f64 / self.total_bytes as f64
    }
}

fn main() -> std::io::Result<()> {
    let mut paths: Vec<String> = std::env::args().skip(1).collect();
    let mut copies = 0;
    if paths.first().is_some_and(|p| p == "--edits") {
        copies = paths.get(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        paths.drain(..paths.len().min(2));
    }
    if paths.is_empty() {
        eprintln!("usage: dedup_ratio [--edits N] PATH...");
        std::process::exit(2);
    }
    let mut streams = Vec::new();
    for path in &paths {
        streams.push(read(Path::new(path))?);
        let original = streams.len() - 1;
        for seed in 1..=copies {
            streams.push(edited(&streams[original], seed));
        }
    }
    let total: usize = streams.iter().map(Vec::len).sum();
    println!("{} streams, {:.1} MB", streams.len(), total as f64 / 1e6);
    println!("{:>10} {:>12} {:>12} {:>9} {:>9} {:>8}", "FastCDC", "its mean", "our mean", "saves", "ours", "ratio");
    let mut ratios = Vec::new();
    for mean in [32, 64, 128, 256, 512, 1024].map(|kib| kib * KIB) {
        let theirs = measure(&streams, |data| fastcdc_ends(data, mean));
        if theirs.chunks < 200 {
            break;
        }
        let ours = at_mean(&streams, theirs.mean());
        let ratio = ours.saved() / theirs.saved();
        ratios.push(ratio);
        println!(
            "{:>6} KiB {:>12.0} {:>12.0} {:>8.2}% {:>8.2}% {:>8.4}",
            mean / KIB,
            theirs.mean(),
            ours.mean(),
            100.0 * theirs.saved(),
            100.0 * ours.saved(),
            ratio
        );
    }
    println!("mean ratio {:.4}", ratios.iter().sum::<f64>() / ratios.len() as f64);
    Ok(())
}

fn fastcdc_ends(data: &[u8], mean: usize) -> Vec<usize> {
    fastcdc::v2020::FastCDC::new(data, (mean / 4) as u32, mean as u32, (4 * mean) as u32)
        .map(|chunk| chunk.offset + chunk.length)
        .collect()
}

fn our_ends(data: &[u8], min: usize) -> Vec<usize> {
    let rule = Rule::cdc(min, (16 * min).min(MAX_CHUNK_BYTES)).expect("sizes within the limits");
    let mut cutter = Cutter::new(rule);
    let mut cuts = Vec::new();
    cutter.feed(data, &mut cuts);
    cuts.extend(cutter.finish());
    cuts.into_iter().map(|end| end as usize).collect()
}

/// Our outcome at the sizes whose mean on these streams is closest to `target`.
fn at_mean(streams: &[Vec<u8>], target: f64) -> Outcome {
    let mut min = ((target / 4.0) as usize).clamp(4096, MAX_CHUNK_BYTES / 2);
    let mut outcome = measure(streams, |data| our_ends(data, min));
    for _ in 0..8 {
        if (outcome.mean() / target - 1.0).abs() < 0.005 {
            break;
        }
        min = ((min as f64 * target / outcome.mean()) as usize).clamp(4096, MAX_CHUNK_BYTES / 2);
        outcome = measure(streams, |data| our_ends(data, min));
    }
    outcome
}

fn measure(streams: &[Vec<u8>], ends: impl Fn(&[u8]) -> Vec<usize>) -> Outcome {
    let mut seen = HashSet::new();
    let mut outcome = Outcome { chunks: 0, total_bytes: 0, unique_bytes: 0 };
    for data in streams {
        let mut start = 0;
        for end in ends(data) {
            let chunk = &data[start..end];
            outcome.chunks += 1;
            outcome.total_bytes += chunk.len() as u64;
            if seen.insert(chunk_hash(chunk)) {
                outcome.unique_bytes += chunk.len() as u64;
            }
            start = end;
        }
        assert_eq!(start, data.len());
    }
    outcome
}

/// About one edit per 2 MiB, of 1 to 4,096 bytes: a third each of insertions, deletions and overwrites.
fn edited(data: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut out = Vec::with_capacity(data.len() + data.len() / 64);
    let mut at = 0;
    while at < data.len() {
        let keep = random(4 << 20).min(data.len() - at);
        out.extend_from_slice(&data[at..at + keep]);
        at += keep;
        let (kind, len) = (random(3), 1 + random(4096));
        if kind != 1 {
            out.extend((0..len).map(|_| random(256) as u8));
        }
        if kind != 0 {
            at = data.len().min(at + len);
        }
    }
    out
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if path.is_file() {
        return std::fs::read(path);
    }
    let mut files = Vec::new();
    list(path, &mut files)?;
    files.sort();
    let mut stream = Vec::new();
    for file in files {
        let name = file.strip_prefix(path).unwrap_or(&file).to_string_lossy().into_owned();
        let mut header = name.into_bytes();
        header.resize(header.len().next_multiple_of(512), 0);
        stream.extend_from_slice(&header);
        stream.extend(std::fs::read(&file)?);
        stream.resize(stream.len().next_multiple_of(512), 0);
    }
    Ok(stream)
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}
