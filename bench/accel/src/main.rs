//! GB/s of `tessera-accel` and its peers, one thread, in one run:
//! `cargo bench --manifest-path bench/accel/Cargo.toml -- [--seconds S] [--best] [--out DIR] [FILTER…]`.
//!
//! The candidates of a row take turns; each figure is a median, or with `--best` the best sample, in GB/s (10^9 bytes
//! of data). `roof` is this machine's upper bound, measured in the same run; a peer that is not installed shows as `-`.
//! With `--out`, `accel.md`, `accel.json` and `accel.svg` are written to the directory.

mod codes;
mod hashes;
mod lookups;
mod threads;

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;
use tessera_accel::Isa;
use tessera_bench_accel::report::{self, Conditions, Row};
use tessera_bench_accel::roofs::{Roof, Vectors};
use tessera_bench_accel::timing::{Clock, Timing};

/// Shared state of all groups of rows.
pub struct Bench {
    timing: Timing,
    filters: Vec<String>,
    vectors: Option<Vectors>,
    rows: RefCell<Vec<Row>>,
}

impl Bench {
    /// Whether the command line selects the row called `name`.
    pub fn wants(&self, name: &str) -> bool {
        self.filters.iter().all(|f| name.contains(f.as_str()))
    }

    /// Prints a row, and keeps it for the report.
    pub fn row(&self, row: Row) {
        let or_dash = |figure: Option<f64>| figure.map_or("-".to_owned(), |f| format!("{f:.2}"));
        println!(
            "{:<62} {:>8.2} {:>8} {:>6} {:>11} {:>8} {}",
            row.name,
            row.ours,
            or_dash(row.peer),
            or_dash(row.ratio),
            row.spread.map_or("-".to_owned(), |[low, high]| format!("{low:.2}-{high:.2}")),
            or_dash(row.roof.map(|roof| roof.rate)),
            row.roof.map_or("", |roof| roof.by),
        );
        self.rows.borrow_mut().push(row);
    }

    /// The upper bound of the vector units for Reed–Solomon with m parities.
    pub fn vectors_for_rs(&self, m: usize) -> Option<Roof> {
        self.vectors.and_then(|v| v.reed_solomon(m))
    }
}

/// The command line's options.
struct Asked {
    seconds: f64,
    best: bool,
    out: Option<String>,
    filters: Vec<String>,
}

fn asked() -> Result<Asked, &'static str> {
    let mut asked = Asked { seconds: 0.4, best: false, out: None, filters: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--best" => asked.best = true,
            "--bench" => {} // Added by cargo.
            "--seconds" => {
                let given = arguments.next().and_then(|s| s.parse::<f64>().ok()).filter(|s| *s > 0.0 && *s < 1e4);
                asked.seconds = given.ok_or("--seconds takes a number above 0")?;
            }
            "--out" => {
                let folder = arguments.next().filter(|folder| Path::new(folder).is_dir());
                asked.out = Some(folder.ok_or("--out takes a directory that exists")?);
            }
            _ => asked.filters.push(argument),
        }
    }
    Ok(asked)
}

fn main() {
    let Asked { seconds, best, out, filters } = asked().unwrap_or_else(|why| {
        eprintln!("{why}");
        std::process::exit(2);
    });
    let load = report::load();
    let timing = Timing { budget: Duration::from_secs_f64(seconds), best, clock: Clock::Wall };
    let bench = Bench { timing, filters, vectors: Vectors::measure(), rows: RefCell::default() };
    println!("instruction sets: {:?}, used: {:?}", Isa::supported(), Isa::best());
    println!(
        "{:<62} {:>8} {:>8} {:>6} {:>11} {:>8}",
        "GB/s of data, one thread", "ours", "peer", "ratio", "quartiles", "roof"
    );
    codes::reed_solomon(&bench);
    codes::xor(&bench);
    codes::xor_beside_reed_solomon(&bench);
    hashes::one_buffer(&bench);
    hashes::search(&bench);
    hashes::cuts(&bench);
    hashes::batches(&bench);
    hashes::segmented(&bench);
    hashes::windows(&bench);
    lookups::all(&bench);
    threads::all(&bench);
    let Some(folder) = out else { return };
    let conditions = Conditions {
        processor: report::processor(),
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        isa: Isa::best().name(),
        sampling: format!("{} samples of {seconds} s a row", if best { "best of" } else { "medians of" }),
        load: [load, report::load()],
    };
    if let Err(why) = report::write(Path::new(&folder), &conditions, &bench.rows.borrow()) {
        eprintln!("{folder}: {why}");
        std::process::exit(1);
    }
}
