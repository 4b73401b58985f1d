//! `tessera flash replay`: every combination of trace, layer and map cache, as many at a time as there are cores.

use super::device_search;
use super::input::{self, open, wrong};
use super::memory;
use super::report;
use crate::args::ReplayArgs;
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use crate::term::Progress;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tessera_flash::ftl::Layer;
use tessera_flash::trace::{Compact, Request, Span, TraceError};
use tessera_flash::{Config, Figures, Replay, ReplayOptions};

/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Requests that a layer may look up together (section 4.2 of the paper of `cola`).
const TOGETHER: usize = 32;

/// Requests between two reports of progress.
const STEP: u64 = 4096;

/// Where the requests of a trace lie on the device.
enum Layout {
    Whole(Span),
    Dense(Compact),
}

impl Layout {
    fn bytes(&self) -> u64 {
        match self {
            Layout::Whole(span) => span.bytes(),
            Layout::Dense(compact) => compact.bytes(),
        }
    }

    fn place(&self, request: &Request) -> Option<u64> {
        match self {
            Layout::Whole(span) => span.place(request),
            Layout::Dense(compact) => compact.place(request),
        }
    }
}

/// A trace and what the replays of it share.
pub struct Input {
    /// Its file.
    pub path: PathBuf,
    layout: Layout,
    requests: u64,
    capacity: u64,
}

/// One replay.
pub struct Run<'a> {
    /// The trace.
    pub input: &'a Input,
    /// The translation layer.
    pub layer: &'static Layer,
    /// The device.
    pub config: Config,
}

/// What a replay showed, with what it took to simulate.
pub struct Done {
    /// Figures of the device.
    pub figures: Figures,
    /// Figures of the layer's own.
    pub layer: Vec<(&'static str, u64)>,
    /// CPU time of the measured part.
    pub cpu: Duration,
    /// Lines of the trace that were left out.
    pub skipped: u64,
}

/// Replays every combination.
pub fn replay(args: &ReplayArgs) -> Outcome {
    report::check_page(args)?;
    input::spool(&args.reading)?;
    let inputs = read_layouts(args)?;
    let searches = device_search::searches(args.ssd.device, &args.ftl)?;
    let mut runs = Vec::new();
    for input in &inputs {
        for &layer in &args.ftl {
            let caches = if layer.min_cache.is_none() { &args.map_cache[..1] } else { &args.map_cache[..] };
            runs.extend(caches.iter().map(|map_cache| Run {
                input,
                layer,
                config: Config { searches: searches.clone(), ..config(args, input.capacity, layer, *map_cache) },
            }));
        }
    }
    let results = run_all(args, &runs)?;
    report::show(args, &runs, &results)
}

fn config(args: &ReplayArgs, capacity: u64, layer: &Layer, map_cache: u64) -> Config {
    Config { shape: args.geometry, timing: args.timing, ..args.ssd.config(capacity, layer, map_cache) }
}

/// The span of a trace, or if that is too little for the device the least that every layer can have.
fn default_capacity(args: &ReplayArgs, span: u64) -> u64 {
    let least = |layer: &&'static Layer| config(args, span, layer, args.map_cache[0]).enough_capacity();
    args.ftl.iter().map(least).max().unwrap_or(span)
}

/// Reads each trace once, to see what it touches.
fn read_layouts(args: &ReplayArgs) -> Outcome<Vec<Input>> {
    let total = args.reading.traces.iter().map(|path| input::bytes(path)).sum::<Outcome<u64>>()?;
    let (progress, read) = (Progress::bytes(args.output, "read", Some(total)), Arc::default());
    let layout = |path: &PathBuf| read_layout(path, args, &read, || progress.set(read.load(Ordering::Relaxed), total));
    let inputs = args.reading.traces.iter().map(layout).collect();
    progress.finish();
    inputs
}

fn read_layout(path: &Path, args: &ReplayArgs, read: &Arc<AtomicU64>, show: impl Fn()) -> Outcome<Input> {
    let mut compact = Compact::new(args.geometry.capacity_max(args.ssd.over_provisioning));
    let (mut span, mut requests, mut trace) = (Span::default(), 0, open(path, args.reading.lines, read.clone())?);
    while let Some(request) = trace.next() {
        let request = request.map_err(|e| wrong(path, &e))?;
        if args.compact {
            compact.add(&request).map_err(|e| {
                let (path, line) = (path.display(), trace.line());
                failure!(Exit::Usage, "{path}: line {line}: {e}; choose larger pages, as with --geometry page=64K, or set --capacity with --wrap in place of --compact")
            })?;
        } else {
            span.add(&request);
        }
        requests += 1;
        if requests % STEP == 0 {
            show();
        }
    }
    let layout = match args.compact {
        true => Layout::Dense(compact.lay()),
        false => Layout::Whole(
            span.lay(u64::from(args.geometry.page_bytes)).map_err(|e| Failure::usage(e).of(path.display()))?,
        ),
    };
    if requests == 0 {
        bail!(
            Exit::Usage,
            "{}: the trace has no requests; see `tessera flash trace info`, or name a --format",
            path.display()
        );
    }
    let capacity = args.capacity.unwrap_or_else(|| default_capacity(args, layout.bytes()));
    if capacity == 0 {
        bail!(Exit::Usage, "{}: the requests of the trace have no bytes; set --capacity", path.display());
    }
    Ok(Input { path: path.into(), layout, requests, capacity })
}

/// Runs all replays on threads; the first failure ends them.
fn run_all(args: &ReplayArgs, runs: &[Run<'_>]) -> Outcome<Vec<Done>> {
    let results: Vec<Mutex<Option<Outcome<Done>>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    let (next, served, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let page_bytes = u64::from(args.geometry.page_bytes);
    let preloaded = |run: &Run<'_>| args.preload.map_or(0, |order| order.writes(run.input.capacity / page_bytes));
    let total = runs.iter().map(|run| run.input.requests + preloaded(run)).sum();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = memory::at_once(args, runs, cores.min(runs.len()))?;
    let progress = Progress::items(args.output, "replay");
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = runs.get(at) else { return };
            let done = run_one(args, run, &served, &stop);
            stop.fetch_or(done.is_err(), Ordering::Relaxed);
            *results[at].lock() = Some(done);
        }
    };
    std::thread::scope(|scope| -> Outcome {
        let named = |i| std::thread::Builder::new().name(format!("replay-{i}")).spawn_scoped(scope, work);
        let workers = (0..threads).map(named).collect::<std::io::Result<Vec<_>>>().at("a thread")?;
        while workers.iter().any(|worker| !worker.is_finished()) {
            progress.set(served.load(Ordering::Relaxed), total);
            std::thread::sleep(
                PROGRESS_EVERY.min(Duration::from_millis(5 + progress.elapsed().as_millis() as u64 / 10)),
            );
        }
        Ok(())
    })?;
    progress.finish();
    let results: Vec<_> = results.into_iter().filter_map(Mutex::into_inner).collect();
    results.into_iter().collect()
}

/// Runs a replay; counts the requests and the preloaded pages in `served`.
fn run_one(args: &ReplayArgs, run: &Run<'_>, served: &AtomicU64, stop: &AtomicBool) -> Outcome<Done> {
    let path = &run.input.path;
    let options = ReplayOptions { host_cache: args.host_cache, wrap: args.wrap };
    let mut replay = Replay::new(&run.config, options).map_err(Failure::usage)?;
    let goes_on = |count| {
        served.fetch_add(count, Ordering::Relaxed);
        !stop.load(Ordering::Relaxed)
    };
    if let Some(order) = args.preload {
        replay.preload(order, goes_on);
    }
    let lesson = lesson(args, run.input);
    let learns = lesson > 0 && replay.plan_learning(lesson);
    if let Some(every) = args.cut_every.filter(|every| learns && *every <= lesson) {
        let path = path.display();
        args.output.caution(format!(
            "{path}: {} never learns: a lesson takes {lesson} requests, and each power cut, every {every} requests, begins it again; raise --cut-every or lower --train",
            run.layer.name
        ));
    }
    let mut start = cpu_time(ClockId::ThreadCPUTime);
    let mut trace = open(path, args.reading.lines, Arc::default())?;
    let mut ahead = VecDeque::with_capacity(TOGETHER);
    for number in 1u64.. {
        if ahead.is_empty() {
            for request in trace.by_ref().take(TOGETHER) {
                ahead.push_back(place(run, request)?);
            }
            replay.ahead(ahead.iter().map(|(offset, request)| (*offset, request.bytes)));
        }
        let Some((offset, request)) = ahead.pop_front() else { break };
        let done = replay.request(request.at, request.op, offset, request.bytes);
        done.map_err(|e| failure!(Exit::Usage, "{}: {e}; {}", path.display(), way_out(args, run)))?;
        if args.cut_every.is_some_and(|every| number.is_multiple_of(every)) {
            replay.cut_power();
        }
        if number == lesson {
            replay.begin_figures();
            start = cpu_time(ClockId::ThreadCPUTime);
        }
        if number % STEP == 0 && !goes_on(STEP) {
            break;
        }
    }
    replay.finish();
    let cpu = cpu_time(ClockId::ThreadCPUTime) - start;
    let agree = replay.ssd().check();
    agree.map_err(|e| failure!(Exit::Failed, "{} of {}: {e}; this is a defect", run.layer.name, path.display()))?;
    let layer = replay.ssd().layer_figures();
    Ok(Done { figures: replay.figures(), layer, cpu, skipped: trace.skipped() })
}

/// Requests that layers learn from.
fn lesson(args: &ReplayArgs, input: &Input) -> u64 {
    (input.requests as f64 * args.train) as u64
}

/// What to do about a request that ends beyond the device.
fn way_out(args: &ReplayArgs, run: &Run<'_>) -> String {
    let least = run.input.layout.bytes();
    match args.compact {
        true => {
            format!("the regions that are touched take {least} bytes: set --capacity {least} or more, or use --wrap")
        }
        false => format!("set --capacity {least} or more, or use --wrap or --compact"),
    }
}

/// Where a request of the trace lies on the device.
fn place(run: &Run<'_>, request: Result<Request, TraceError>) -> Outcome<(u64, Request)> {
    let path = &run.input.path;
    let request = request.map_err(|e| wrong(path, &e))?;
    let changed = || failure!(Exit::Failed, "{}: the trace changed while it was replayed; run again", path.display());
    Ok((run.input.layout.place(&request).ok_or_else(changed)?, request))
}

/// CPU time of a thread or process.
pub fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
