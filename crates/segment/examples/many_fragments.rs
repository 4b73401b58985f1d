//! Measures a node's disk with many small fragments: index memory, pages read per look-up, put latency, and what a
//! restart reads.
//!
//! `cargo run --release -p tessera-segment --example many_fragments -- DIR [--fragments N] [--bytes B] [--keep] [--out FILE.md]`
//!
//! Appends fragments to a store in DIR/many-fragments with the index that nodes use, and continues from what an earlier
//! run with `--keep` left there. Prints the measurements as a table. Removes the directory at the end, unless `--keep`
//! is given.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use tessera_disk::{Disk, Identity, RealDisk, SplitMix64};
use tessera_segment::{ConaIndex, FragmentId, MemIndex, OpenReport, Options, Record, RecordMeta, SegmentStore};

type Failure = Box<dyn std::error::Error>;

/// Fragments per sync while loading.
const BATCH: u64 = 2_000;
/// Number of timed single puts.
const TIMED: u64 = 3_000;
/// Number of counted look-ups.
const LOOKUPS: u64 = 200_000;

struct Args {
    dir: String,
    fragments: u64,
    bytes: usize,
    keep: bool,
    out: Option<String>,
}

fn args() -> Result<Args, Failure> {
    let mut args = Args { dir: String::new(), fragments: 1_000_000, bytes: 64, keep: false, out: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match &word[..] {
            "--fragments" => args.fragments = value()?.parse()?,
            "--bytes" => args.bytes = value()?.parse()?,
            "--out" => args.out = Some(value()?),
            "--keep" => args.keep = true,
            _ => args.dir = word,
        }
    }
    if args.dir.is_empty() {
        return Err("usage: many_fragments DIR [--fragments N] [--bytes B] [--keep] [--out FILE.md]".into());
    }
    Ok(args)
}

/// Id of the `nth` fragment. The disk has only some of a chunk's six fragments, so ids ascend with gaps.
fn id(nth: u64) -> FragmentId {
    FragmentId { chunk_id: 1 + nth / 2 * 3, fragment: (nth % 2 * 4) as u16 }
}

fn absent(nth: u64) -> FragmentId {
    FragmentId { chunk_id: 2 + nth / 2 * 3, fragment: 1 }
}

fn options() -> Options {
    Options { reserve_bytes: 0, ..Options::default() }
}

fn open(disk: &RealDisk) -> Result<(SegmentStore, OpenReport, f64), Failure> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let begun = Instant::now();
    let index = Box::new(ConaIndex::open(disk.clone()));
    let (store, report) = SegmentStore::open_with_index(disk, options(), index, &mut |_| {})?;
    Ok((store, report, begun.elapsed().as_secs_f64()))
}

fn append(store: &SegmentStore, from: u64, to: u64, data: &[u8], data_crc: u32) -> Result<(), Failure> {
    let meta = RecordMeta { pg_id: 7, session_id: 1, epoch: 1, ..RecordMeta::default() };
    let batch: Vec<Record<'_>> =
        (from..to).map(|nth| Record { id: id(nth), meta, groups: &[], data, data_crc }).collect();
    store.append(&batch)?;
    Ok(store.sync()?)
}

/// Bytes of anonymous memory of the process.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Latencies of single, synced puts, in microseconds, sorted.
fn timed_puts(store: &SegmentStore, from: u64, data: &[u8], data_crc: u32) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::new();
    for nth in from..from + TIMED {
        let begun = Instant::now();
        append(store, nth, nth + 1, data, data_crc)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn quantiles(times: &[f64]) -> String {
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    format!("{:.0} / {:.0} / {:.0} µs", at(0.5), at(0.99), at(1.0))
}

/// Pages read per look-up, and microseconds per look-up.
fn lookups(
    store: &SegmentStore,
    fragments: u64,
    id_of: impl Fn(u64) -> FragmentId,
    there: bool,
) -> Result<(f64, f64), Failure> {
    let mut rng = SplitMix64::new(11);
    let before = store.index_stats();
    let begun = Instant::now();
    for _ in 0..LOOKUPS {
        let id = id_of(rng.below(fragments));
        if store.get(id)?.is_some() != there {
            return Err(format!("fragment {id}: held is not {there}").into());
        }
    }
    let us = begun.elapsed().as_secs_f64() * 1e6 / LOOKUPS as f64;
    let after = store.index_stats();
    Ok(((after.page_reads - before.page_reads) as f64 / (after.lookups - before.lookups) as f64, us))
}

fn main() -> Result<(), Failure> {
    let args = args()?;
    let root = std::path::Path::new(&args.dir).join("many-fragments");
    let disk = RealDisk::create(&root)?;
    if Identity::load(&disk)?.is_none() {
        Identity { cluster_id: [1; 16], disk_uuid: [2; 16], created_ms: 0 }.create(&disk)?;
    }
    let data: Vec<u8> = (0..args.bytes).map(|i| (i % 251) as u8).collect();
    let data_crc = tessera_accel::checksum::crc32c(&data);
    let memory_at_start = anonymous_bytes();
    let (store, _, _) = open(&disk)?;
    let held = store.stats().fragments;
    let begun = Instant::now();
    let mut nth = held;
    while nth < args.fragments {
        let to = args.fragments.min(nth + BATCH);
        append(&store, nth, to, &data, data_crc)?;
        nth = to;
        if nth / 1_000_000 > (nth - BATCH.min(nth)) / 1_000_000 {
            eprintln!("{nth} fragments, {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    let load_s = begun.elapsed().as_secs_f64();
    let loaded = args.fragments - held.min(args.fragments);
    // Puts are timed while the buffers and merges of a full index are active, not at rest.
    let puts = timed_puts(&store, nth, &data, data_crc)?;
    drop(store);
    let (store, unclean, unclean_s) = open(&disk)?;
    let fragments = store.stats().fragments;
    store.close()?;
    drop(store);
    let (store, clean, clean_s) = open(&disk)?;
    if !clean.resumed || clean.records > 0 || !unclean.resumed || fragments != store.stats().fragments {
        return Err(format!("a restart did not go on from the index: {unclean:?}, {clean:?}").into());
    }
    let there = lookups(&store, fragments, id, true)?;
    let not_there = lookups(&store, fragments, absent, false)?;
    let memory_bytes = anonymous_bytes().saturating_sub(memory_at_start);
    let figures = store.index_stats();
    let index_bytes = store.stats().index_bytes;
    drop(store);

    let plain = RealDisk::create(root.join("plain"))?;
    Identity { cluster_id: [1; 16], disk_uuid: [3; 16], created_ms: 0 }.create(&plain)?;
    let shared: Arc<dyn Disk> = Arc::new(plain);
    let (store, _) = SegmentStore::open_with_index(shared, options(), Box::<MemIndex>::default(), &mut |_| {})?;
    let plain_puts = timed_puts(&store, 0, &data, data_crc)?;
    drop(store);
    std::fs::remove_dir_all(root.join("plain"))?;

    let per = |bytes: u64| bytes as f64 / fragments as f64;
    let mut text = String::new();
    let (fences_bytes, filter_bytes) = (figures.index_bytes, figures.filter_bytes);
    let (buffer_bytes, file_bytes) = (figures.buffer_bytes + figures.merge_bytes, figures.cell_file_bytes);
    let files = figures.cells.len();
    writeln!(text, "# The index of a disk with many fragments\n")?;
    writeln!(
        text,
        "`many_fragments --fragments {} --bytes {}`; one disk, the index that nodes have.\n",
        args.fragments, args.bytes
    )?;
    writeln!(text, "| | |\n|---|---|")?;
    let mut row = |what: &str, value: String| writeln!(text, "| {what} | {value} |");
    row("fragments", format!("{fragments}"))?;
    row("fences, B a fragment", format!("{:.3}", per(fences_bytes)))?;
    row("filters, B a fragment", format!("{:.3}", per(filter_bytes)))?;
    row("both, B a fragment", format!("{:.3}", per(fences_bytes + filter_bytes)))?;
    row("insert buffers and merges, MiB", format!("{:.1}", buffer_bytes as f64 / 1048576.0))?;
    row("index as `tessera status` counts it, MiB", format!("{:.1}", index_bytes as f64 / 1048576.0))?;
    row("anonymous memory of the process since its start, MiB", format!("{:.1}", memory_bytes as f64 / 1048576.0))?;
    row("pages read, look-up of one that is held", format!("{:.4} ({:.1} µs)", there.0, there.1))?;
    row("pages read, look-up of one that is not", format!("{:.4} ({:.1} µs)", not_there.0, not_there.1))?;
    row("index on disk, B a fragment", format!("{:.1} in {files} files", per(file_bytes)))?;
    row("put and sync of one fragment, p50 / p99 / most, with this index", quantiles(&puts))?;
    row("the same with an empty index in memory", quantiles(&plain_puts))?;
    row("restart after a clean end", format!("{clean_s:.2} s, {} records read", clean.records))?;
    row("restart after an unclean end", format!("{unclean_s:.2} s, {} records read", unclean.records))?;
    if loaded > 0 {
        row("appended by this run", format!("{loaded} in {load_s:.0} s"))?;
    }
    println!("{text}");
    if let Some(out) = args.out {
        std::fs::write(out, &text)?;
    }
    if !args.keep {
        std::fs::remove_dir_all(root)?;
    }
    Ok(())
}
