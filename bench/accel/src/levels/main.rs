//! Look-ups in the sorted levels of the flash translation layer `cola`: figures 4.12 to 4.14 of A. Khasymski: "Accelerated
//! Storage Systems", Virginia Tech 2015, section 4.2, on this machine:
//! `cargo run --release --manifest-path bench/accel/Cargo.toml --bin tessera-bench-levels -- [--seconds S] [--trace FILE]
//! [--out DIR]`.
//!
//! One thread; the ways take turns ([`ways`]). Before a comparison is timed, the answers of all ways are compared. With
//! `--out`, `flash_levels.md` and `flash_levels.json` are written to the directory. `map.rs` makes levels and queries,
//! `cola.rs` is the array with lookahead pointers that the paper compares with.

mod cola;
mod map;
mod report;
mod ways;

use cola::Cola;
use map::{Map, Workload};
use report::{Point, Report, Spaced};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tessera_accel::{Isa, Spec};
use tessera_bench_accel::report::{Conditions, load, processor};
use tessera_bench_accel::timing::{Clock, Noise, Timing};
use tessera_flash::ftl::ColaOptions;
use ways::{Gpu, Time, Way};

/// The trace that is used if there is one and none is named.
const TRACE: &str = "../shared/traces/financial1-10k.ascii";

/// Logical pages of the maps, as powers of two.
const PAGES: [u32; 6] = [14, 16, 18, 20, 22, 24];

/// Entries from one pointer to the next.
const SPACING: usize = 8;

/// Those of figure 4.13, as powers of two, and the map's pages.
const SPACINGS: std::ops::RangeInclusive<u32> = 1..=10;
const SPACED_PAGES: u32 = 1 << 20;

/// Queries of a comparison, and those whose answers are compared before.
const QUERIES: usize = 1 << 22;
const CHECKED: usize = 1 << 16;

/// The command line's options.
struct Asked {
    seconds: f64,
    trace: Option<PathBuf>,
    out: Option<PathBuf>,
}

fn asked() -> Result<Asked, String> {
    let default = Path::new(TRACE);
    let mut asked = Asked { seconds: 2.0, trace: default.exists().then(|| default.into()), out: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        match argument.as_str() {
            "--seconds" => {
                let given = value.and_then(|s| s.parse::<f64>().ok()).filter(|s| *s > 0.0 && *s < 1e4);
                asked.seconds = given.ok_or("--seconds takes a number above 0")?;
            }
            "--trace" => asked.trace = Some(value.ok_or("--trace takes a file")?.into()),
            "--out" => {
                let folder = value.map(PathBuf::from).filter(|folder| folder.is_dir());
                asked.out = Some(folder.ok_or("--out takes a directory that exists")?);
            }
            _ => return Err(format!("{argument} is no option; there are --seconds S, --trace FILE and --out DIR")),
        }
    }
    Ok(asked)
}

/// What all comparisons share.
struct Bench {
    timing: Timing,
    workloads: Vec<Workload>,
    gpu: Result<Gpu, String>,
}

impl Bench {
    /// Checks and times the ways with the queries of a workload.
    fn compare(&self, ways: &[Way<'_>], queries: &[u32]) -> Result<Vec<Time>, String> {
        ways::check(ways, &queries[..CHECKED])?;
        let times = ways::measure(self.timing, ways, queries);
        self.gpu.as_ref().map_or(Ok(()), Gpu::did_all)?;
        let line: Vec<String> = times.iter().map(|time| format!("{} {:.1}", time.way, time.median)).collect();
        println!("    {}", line.join(" | "));
        Ok(times)
    }

    /// Figures 4.12 and 4.14: all ways in a map.
    fn size(&self, options: ColaOptions, pages: u32) -> Result<Vec<Point>, String> {
        let mut noise = Noise::default();
        let map = Map::full(pages, options, &mut noise);
        let (table, cola) = (map.table(), Cola::new(&map, SPACING));
        let resident = self.gpu.as_ref().ok().map(|gpu| gpu.put(&map).map(|levels| (gpu, levels))).transpose()?;
        let mut ways = vec![Way::table(&table), Way::cola(&cola, "pointers".into()), Way::halving(&map)];
        ways.extend([1, 32, 4096].map(|len| Way::batches(&map, len)));
        if let Some((gpu, levels)) = &resident {
            ways.extend([32, 4096].map(|len| Way::gpu(&map, gpu, levels, len)));
        }
        let mut points = Vec::new();
        for workload in &self.workloads {
            println!("{options:?}, {pages} pages, {}: ns a look-up", workload.name());
            let queries = workload.queries(QUERIES, pages, &mut noise);
            let (times, touched) = (self.compare(&ways, &queries)?, map.touched(SPACING));
            points.push(Point {
                options,
                workload: workload.name(),
                pages,
                levels: map.levels().len(),
                touched,
                times,
            });
        }
        Ok(points)
    }

    /// Figure 4.13: the same map with sparser and sparser pointers.
    fn spacings(&self) -> Result<Vec<Spaced>, String> {
        let mut noise = Noise::default();
        let map = Map::full(SPACED_PAGES, ColaOptions::default(), &mut noise);
        let entries: usize = map.levels().iter().map(|level| level.keys.len()).sum();
        let colas: Vec<(usize, Cola)> = SPACINGS.map(|log| (1 << log, Cola::new(&map, 1 << log))).collect();
        let mut ways: Vec<Way<'_>> = colas.iter().map(|(spacing, cola)| Way::cola(cola, spacing.to_string())).collect();
        ways.push(Way::batches(&map, 32));
        let mut times = Vec::new();
        for workload in &self.workloads {
            println!("{SPACED_PAGES} pages, {}: ns a look-up by entries from pointer to pointer", workload.name());
            times.push(self.compare(&ways, &workload.queries(QUERIES, SPACED_PAGES, &mut noise))?);
        }
        let pointers = colas.iter().map(|(_, cola)| Some(cola.pointers() as f64 / entries as f64)).chain([None]);
        let of_way = |(way, pointers): (usize, Option<f64>)| {
            let times = times.iter().map(|times| times[way].clone()).collect();
            Spaced { pointers, times }
        };
        Ok(pointers.enumerate().map(of_way).collect())
    }
}

fn what_counts(clock: Clock) -> &'static str {
    match clock {
        Clock::Wall => "real time",
        Clock::Thread => "the time that the thread ran, without that of other programs on the same processor",
    }
}

fn run() -> Result<(), String> {
    let Asked { seconds, trace, out } = asked()?;
    let started = load();
    let mut workloads = vec![Workload::Uniform];
    workloads.extend(trace.as_deref().map(Workload::read).transpose()?);
    let gpu = Gpu::open(Spec::Cuda(Some(0)));
    // A GPU's time is not the thread's.
    let clock = if gpu.is_ok() { Clock::Wall } else { Clock::Thread };
    let timing = Timing { budget: Duration::from_secs_f64(seconds), best: false, clock };
    let bench = Bench { timing, workloads, gpu };
    let mut points = Vec::new();
    for options in [ColaOptions::Buffer(4096), ColaOptions::Height(8)] {
        for log in PAGES {
            points.extend(bench.size(options, 1 << log)?);
        }
    }
    let spaced = bench.spacings()?;
    let conditions = Conditions {
        processor: processor(),
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        isa: Isa::best().name(),
        sampling: format!("medians of {seconds} s a comparison, {}", what_counts(clock)),
        load: [started, load()],
    };
    let trace = trace.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let gpu = bench.gpu.as_ref().map(Gpu::name).map_err(String::clone);
    let report = Report { conditions, trace, gpu, spacing: SPACING, points, spaced };
    let Some(folder) = out else { return Ok(()) };
    report.write(&folder).map_err(|why| format!("{}: {why}", folder.display()))
}

fn main() {
    if let Err(why) = run() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}
