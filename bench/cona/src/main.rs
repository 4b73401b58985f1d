//! One engine through YCSB's load, A to F, and deletes; prints a line of JSON a phase.

mod engines;
mod workload;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use engines::Engine;
use workload::{Histogram, Rng, Sizes, Zipf, key, value};

/// Most records of a scan (YCSB's E).
const SCAN_RECORDS: u64 = 100;
const SAMPLES: u64 = 100;

/// YCSB over one engine.
#[derive(Parser)]
struct Cli {
    /// cona, leveldb, rocksdb or fjall
    #[arg(long)]
    system: String,
    /// A new directory, or with --existing one of an earlier run
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, default_value_t = 5_000_000)]
    records: u64,
    /// Operations a phase
    #[arg(long, default_value_t = 1_000_000)]
    ops: u64,
    /// Bytes of a value, of the smallest one with --value-bytes-max
    #[arg(long, default_value_t = 200)]
    value_bytes: usize,
    /// Bytes of the largest value; sizes are drawn evenly. Default: all values have --value-bytes
    #[arg(long)]
    value_bytes_max: Option<usize>,
    /// Phases, of load, A, B, C, D, E, F, in this order; in small letters with the page cache evicted all the time. Last `delete`, which
    /// deletes two records of five, and `gone`, which looks whether they are. -: from standard input, a line each
    #[arg(long, default_value = "load,A,B,C,D,F,a,b,c,d,f")]
    phases: String,
    /// The directory has a store of so many records already: its opening is measured, then phases go on
    #[arg(long)]
    existing: Option<u64>,
    /// CONA's options, name=value,…
    #[arg(long, default_value = "")]
    variant: String,
}

fn proc_numbers(path: &str) -> HashMap<String, u64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let pair = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        Some((name.to_owned(), rest.trim().trim_end_matches(" kB").parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn io() -> (u64, u64) {
    let io = proc_numbers("/proc/self/io");
    (io.get("read_bytes").copied().unwrap_or(0), io.get("write_bytes").copied().unwrap_or(0))
}

/// Waits until the engine has stopped writing for a while; gives how long that took.
fn quiet() -> f64 {
    let begun = Instant::now();
    let (mut last, mut since) = (io().1, Instant::now());
    while since.elapsed() < Duration::from_millis(1500) {
        std::thread::sleep(Duration::from_millis(100));
        let now = io().1;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    begun.elapsed().as_secs_f64() - 1.5
}

/// Takes the engine's files out of the page cache, those it has mapped, too.
fn evict(dir: &Path) {
    let here = format!("{}/", dir.display());
    for line in std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().filter(|l| l.contains(&here)) {
        let range = line.split(' ').next().and_then(|r| r.split_once('-'));
        let Some((from, to)) = range else { continue };
        let parse = |hex: &str| usize::from_str_radix(hex, 16).unwrap_or(0);
        let (at, len) = (parse(from) as *mut libc::c_void, parse(to).saturating_sub(parse(from)));
        // SAFETY: neither advice changes what memory holds, even if something else is mapped there by now. Without the first a fault
        // would read the pages around it as well, and show the kernel's readahead instead of the engine.
        unsafe {
            libc::madvise(at, len, libc::MADV_RANDOM);
            libc::madvise(at, len, libc::MADV_PAGEOUT);
        }
    }
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                dirs.push(entry.path());
            } else if let Ok(file) = std::fs::File::open(entry.path()) {
                // SAFETY: a valid descriptor; advice only.
                unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, libc::POSIX_FADV_DONTNEED) };
            }
        }
    }
}

/// Bytes that the files of a directory take on the disk.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_bytes(&entry.path()),
        Ok(data) => std::os::unix::fs::MetadataExt::blocks(&data) * 512,
        Err(_) => 0,
    };
    entries.map(of).sum()
}

struct Run<'e> {
    engine: &'e dyn Engine,
    records: u64,
    sizes: Sizes,
    user_bytes: u64,
    rng: Rng,
    reads: Histogram,
    writes: Histogram,
    value: Vec<u8>,
    /// Records that scans gave.
    scanned: u64,
}

impl Run<'_> {
    fn put(&mut self, i: u64) {
        self.value.resize(self.sizes.of(i), 0);
        value(i, &mut self.value, &mut self.rng);
        let key = key(i);
        self.user_bytes += (key.len() + self.value.len()) as u64;
        let begun = Instant::now();
        self.engine.put(&key, &self.value);
        self.writes.add(begun.elapsed().as_nanos() as u64);
    }

    fn get(&mut self, i: u64) {
        let key = key(i);
        let begun = Instant::now();
        let (mut whose, len) = (u64::MAX, self.sizes.of(i));
        let found = self.engine.get(&key, &mut |v| {
            assert_eq!(v.len(), len);
            whose = u64::from_le_bytes(v[..8].try_into().unwrap());
        });
        self.reads.add(begun.elapsed().as_nanos() as u64);
        assert!(found && whose == i, "record {i}: found {found}, of {whose}");
    }

    /// Reads 1 to 100 records from record `i` on, in the order of their keys.
    fn scan(&mut self, i: u64) {
        let (from, count) = (key(i), 1 + self.rng.next() % SCAN_RECORDS);
        let begun = Instant::now();
        let (mut last, mut first_of, mut found) = ([0; 20], u64::MAX, 0);
        self.engine.scan(&from, count as usize, &mut |key, value| {
            assert!(key > &last[..], "a scan is out of order");
            last.copy_from_slice(key);
            if found == 0 {
                first_of = u64::from_le_bytes(value[..8].try_into().unwrap());
            }
            found += 1;
        });
        self.reads.add(begun.elapsed().as_nanos() as u64);
        assert!(first_of == i && found <= count, "a scan from record {i} begins with {first_of} and has {found} records");
        self.scanned += found;
    }

    /// Deletes two of five.
    fn delete(&mut self, i: u64) {
        let begun = Instant::now();
        self.engine.delete(&key(i));
        self.writes.add(begun.elapsed().as_nanos() as u64);
    }

    /// Looks whether exactly those are gone that `delete` deleted.
    fn look(&mut self, i: u64) {
        let begun = Instant::now();
        let found = self.engine.get(&key(i), &mut |_| ());
        self.reads.add(begun.elapsed().as_nanos() as u64);
        assert_eq!(found, i % 5 > 1, "record {i} after deletes");
    }

    fn operation(&mut self, phase: &str, step: u64, zipf: &Zipf) {
        // Popular records are scattered over the keys.
        let popular = |run: &mut Self| workload::mixed(zipf.next(&mut run.rng)) % run.records;
        match phase {
            "load" => self.put(step),
            "A" => {
                let i = popular(self);
                if self.rng.next() & 1 == 0 { self.get(i) } else { self.put(i) }
            }
            "B" => {
                let i = popular(self);
                if self.rng.next() % 100 < 95 { self.get(i) } else { self.put(i) }
            }
            "C" => {
                let i = popular(self);
                self.get(i);
            }
            "D" => {
                if self.rng.next() % 100 < 95 {
                    let back = zipf.next(&mut self.rng);
                    self.get(self.records - 1 - back);
                } else {
                    self.put(self.records);
                    self.records += 1;
                }
            }
            "E" => {
                if self.rng.next() % 100 < 95 {
                    let i = popular(self);
                    self.scan(i);
                } else {
                    self.put(self.records);
                    self.records += 1;
                }
            }
            "delete" => {
                // In no order, as keys are hashes of numbers.
                let (five, one) = (step / 2, step % 2);
                if five * 5 + one < self.records {
                    self.delete(five * 5 + one);
                }
            }
            "gone" => {
                let i = self.rng.next() % self.records;
                self.look(i);
            }
            "F" => {
                let i = popular(self);
                self.get(i);
                if self.rng.next() & 1 == 0 {
                    self.put(i);
                }
            }
            other => panic!("phase {other}: choose load, A, B, C, D, E, F, delete, gone"),
        }
    }
}

/// An open engine and what is known of its records.
struct Bench {
    cli: Cli,
    engine: Box<dyn Engine>,
    zipf: Zipf,
    records: u64,
}

impl Bench {
    fn phase(&mut self, phase: &str) -> serde_json::Value {
        let cold = phase.len() == 1 && phase.chars().all(char::is_lowercase);
        let name = if phase.len() == 1 { phase.to_uppercase() } else { phase.to_owned() };
        let quarter = if cold { 4 } else { 1 } * if name == "E" { 4 } else { 1 };
        let ops = match phase {
            "load" => self.cli.records,
            "delete" => self.records.div_ceil(5) * 2,
            _ => self.cli.ops / quarter,
        };
        let evictor = cold.then(|| Evictor::start(&self.cli.dir));
        let (reads, writes, value) = (Histogram::default(), Histogram::default(), Vec::new());
        let (records, rng) = (self.records, Rng(1 + self.records + u64::from(cold)));
        let sizes = Sizes { min: self.cli.value_bytes, max: self.cli.value_bytes_max.unwrap_or(self.cli.value_bytes) };
        let mut run = Run { engine: &*self.engine, records, sizes, user_bytes: 0, rng, reads, writes, value, scanned: 0 };
        let watch = Watch::start(&self.cli.dir);
        let (before, figures_before) = (io(), self.engine.figures());
        let (mut series, mut inside) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        let mut sampled = begun;
        for step in 0..ops {
            run.operation(&name, step, &self.zipf);
            if (step + 1) % (ops / SAMPLES).max(1) == 0 {
                series.push((ops / SAMPLES) as f64 / sampled.elapsed().as_secs_f64());
                inside.push(self.engine.moment());
                sampled = Instant::now();
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let (read_bytes, at_end) = (io().0 - before.0, self.engine.figures());
        drop(evictor);
        let anonymous = anonymous();
        let Run { records, reads, writes, user_bytes, scanned, .. } = run;
        let settle = quiet();
        let disk_peak = watch.stop();
        self.records = records;
        serde_json::json!({
            "system": self.cli.system, "variant": self.cli.variant, "phase": name, "cold": cold, "records": records, "ops": ops, "seconds": seconds,
            "ops_per_s": ops as f64 / seconds, "reads": reads.json(), "writes": writes.json(),
            "disk_read_bytes": read_bytes, "disk_written_bytes": io().1 - before.1, "settle_s": settle, "user_bytes": user_bytes,
            "scanned": scanned, "disk_bytes": disk_bytes(&self.cli.dir), "disk_peak_bytes": disk_peak, "anonymous_bytes": anonymous,
            "series": series, "inside": inside, "before": figures_before, "at_end": at_end, "after": self.engine.figures(),
        })
    }
}

fn anonymous() -> u64 {
    proc_numbers("/proc/self/status").get("RssAnon").copied().unwrap_or(0) * 1024
}

/// Looks every 200 ms how many bytes the files of a directory take.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Watch {
    fn start(dir: &Path) -> Self {
        let (stop, dir) = (Arc::new(AtomicBool::new(false)), dir.to_path_buf());
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !seen.load(Ordering::Acquire) {
                most = most.max(disk_bytes(&dir));
                std::thread::sleep(Duration::from_millis(200));
            }
            most
        });
        Watch { stop, thread }
    }

    /// The most bytes seen.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// Evicts all the time, until it is dropped.
struct Evictor {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Evictor {
    fn start(dir: &Path) -> Self {
        let (stop, dir) = (Arc::new(AtomicBool::new(false)), dir.to_path_buf());
        evict(&dir);
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Acquire) {
                evict(&dir);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Evictor { stop, thread: Some(thread) }
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn main() {
    let cli = Cli::parse();
    std::fs::create_dir_all(&cli.dir).unwrap();
    // Opening is measured with nothing in the page cache.
    evict(&cli.dir);
    let (before, begun) = (io(), Instant::now());
    let engine = engines::open(&cli.system, &cli.dir, &cli.variant);
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(records) = cli.existing {
        let line = serde_json::json!({
            "system": cli.system, "variant": cli.variant, "phase": "open", "cold": true, "records": records, "ops": 1, "seconds": seconds,
            "ops_per_s": 1.0 / seconds, "reads": null, "writes": null, "disk_read_bytes": io().0 - before.0, "disk_written_bytes": 0,
            "anonymous_bytes": anonymous(), "series": [], "after": engine.figures(),
        });
        println!("{line}");
    }
    let (zipf, phases) = (Zipf::new(cli.records), cli.phases.clone());
    let records = cli.existing.unwrap_or(cli.records);
    let mut bench = Bench { cli, engine, zipf, records };
    // From standard input a phase at a time, so that several engines can take turns.
    if phases == "-" {
        for phase in std::io::stdin().lines() {
            println!("{}", bench.phase(phase.unwrap().trim()));
        }
    } else {
        phases.split(',').for_each(|phase| println!("{}", bench.phase(phase)));
    }
}
