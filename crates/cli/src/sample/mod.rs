//! `tessera sample`: answers from a part of files.

mod plot;
mod report;

use crate::args::{SampleArgs, ShareRule};
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::files::store_paths;
use crate::remote::Store;
use crate::term::{Progress, units};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tessera_client::path::SCHEME;
use tessera_sampling::Error;
use tessera_sampling::answer::{Amount, Terms, WHOLE_UNIT_BYTES, ask};
use tessera_sampling::engine::Options;
use tessera_sampling::estimate::Estimate;
use tessera_sampling::filter::Filter;
use tessera_sampling::format::{Csv, CsvOptions, Format, JsonLines, Parquet, Text};
use tessera_sampling::layout::Layout;
use tessera_sampling::plain;
use tessera_sampling::question::{Aggregate, KeyBy, Question};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::source::{LocalFiles, Source, StoreFiles, measure_speeds};
use tessera_sampling::words::FileFormat;

const STORE_UNIT_BYTES: u64 = 64 << 10;
const LOCAL_UNIT_BYTES: u64 = 16 << 10;
const DEFAULT_ERROR: f64 = 0.02;
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(200);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let exit = match &error {
            Error::NoFiles { .. } | Error::NotFound { .. } => Exit::NotFound,
            Error::Question(_) => Exit::Usage,
            Error::Changed { .. } => Exit::Conflict,
            Error::Store { code, .. } => Exit::of_code(*code),
            _ => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}

/// `tessera sample`.
///
/// # Errors
/// A file cannot be read, the question names what is not there, or a record is malformed.
pub fn sample(args: SampleArgs) -> Outcome {
    let started = Instant::now();
    let in_store = is_in_store(&args.paths)?;
    let store = if in_store { Some(Store::connect(&args.common)?) } else { None };
    let source: Arc<dyn Source> = match &store {
        Some(store) => Arc::new(StoreFiles::open((**store).clone(), &store_paths(&args.paths)?)?),
        None => Arc::new(local(&args)?),
    };
    if let Some(caution) = repeated(&source.contents().repeated) {
        args.common.output.caution(caution);
    }
    let format = args.format.map_or_else(|| FileFormat::of_files(&*source), |format| Ok(format.into()))?;
    let warning = if format == FileFormat::Parquet { None } else { plain::check(&*source)? };
    if let Some(caution) = warning {
        args.common.output.caution(caution);
    }
    let question = question(&args, format)?;
    let reader = reader(&args, format, &question, &*source)?;
    let terms = terms(&args);
    let unit_bytes = args.unit.unwrap_or(match (terms.amount, in_store) {
        (Amount::Exact, _) => WHOLE_UNIT_BYTES,
        (_, true) => STORE_UNIT_BYTES,
        (_, false) => LOCAL_UNIT_BYTES,
    });
    let layout = Layout::of(&*source, &*reader, unit_bytes);
    let all_bytes = layout.bytes();
    let seed = args.seed.unwrap_or_else(rand::random);
    let schedule = match (terms.amount, args.shares) {
        (Amount::Exact, _) => Schedule::whole(layout),
        (_, ShareRule::Equal) => Schedule::new(layout, Shares::Equal, seed),
        (_, ShareRule::Size) => Schedule::new(layout, Shares::Sizes, seed),
        (_, ShareRule::Speed) => {
            let speeds = measure_speeds(&*source, &layout, seed)?;
            Schedule::new(layout, Shares::Speeds(speeds), seed)
        }
    };
    let interrupted = catch_interrupt()?;
    let mut watch = Watch {
        progress: Progress::items(args.common.output, "sample"),
        shown: started,
        draws: args.common.output.draws(),
    };
    let asked = (&question, &terms);
    let options = Options { threads: threads(&args), keep_values: question.keeps_values(), seed, tick: TICK };
    let (answer, progress, disks) = ask(source.clone(), reader, schedule, asked, &options, &mut |progress, total| {
        watch.show(progress, total);
        !interrupted.load(Ordering::Relaxed)
    })?;
    watch.progress.finish();
    // A round that is complete does not suffice if the next one was given up.
    let is_done = progress.complete && answer.reached;
    let was_interrupted = interrupted.load(Ordering::Relaxed) && !is_done;
    let shown = report::Shown {
        question: &question,
        terms: &terms,
        answer: &answer,
        progress,
        disks: source.disks().iter().cloned().zip(disks).collect(),
        all_bytes,
        seed,
        elapsed: started.elapsed(),
        was_interrupted,
    };
    report::show(&shown, args.common.output)?;
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::page(&shown))
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot write `{}`: {error}", path.display())))?;
    }
    if was_interrupted { Err(Failure::silent(Exit::Interrupted)) } else { Ok(()) }
}

/// Shows how the interval shrinks.
struct Watch {
    progress: Progress,
    shown: Instant,
    draws: bool,
}

impl Watch {
    fn show(&mut self, progress: tessera_sampling::engine::Progress, total: &dyn Fn() -> Option<Estimate>) {
        self.progress.set(progress.units, progress.needed_units);
        // Threads wait while the total is estimated; twice a second is enough for eyes.
        if self.draws && self.shown.elapsed() > Duration::from_millis(500) {
            let total = total().map_or_else(String::new, |total| format!("; {}", report::brief(&total)));
            self.progress.message(format!("units{total}"));
            self.shown = Instant::now();
        }
    }
}

/// What is said of files that were named more than once.
fn repeated(names: &[String]) -> Option<String> {
    let first = names.first()?;
    Some(match names.len() {
        1 => format!("`{first}` is named more than once; it counts once"),
        n => {
            format!("`{first}` and {} are named more than once; each counts once", units::plural(n as u64 - 1, "other"))
        }
    })
}

fn is_in_store(paths: &[OsString]) -> Outcome<bool> {
    let in_store = |path: &&OsString| path.as_bytes().starts_with(SCHEME.as_bytes());
    match paths.iter().filter(in_store).count() {
        0 => Ok(false),
        n if n == paths.len() => Ok(true),
        _ => bail!(Exit::Usage, "some paths are in the store and some are local; sample them one after the other"),
    }
}

fn local(args: &SampleArgs) -> Outcome<LocalFiles> {
    let paths: Vec<PathBuf> = args.paths.iter().map(PathBuf::from).collect();
    let disk_of = |path: &Path| {
        let named = paths.iter().filter(|named| path.starts_with(named)).max_by_key(|named| named.as_os_str().len());
        named.unwrap_or(&paths[0]).display().to_string()
    };
    Ok(LocalFiles::open(&paths, args.path_is_disk.then_some(&disk_of as &dyn Fn(&Path) -> String))?)
}

fn question(args: &SampleArgs, format: FileFormat) -> Outcome<Question> {
    let key = args.count_by.as_ref().or(args.distinct.as_ref()).or(args.by.as_ref());
    let (aggregate, value) = match args {
        SampleArgs { sum: Some(field), .. } => (Aggregate::Sum, Some(field)),
        SampleArgs { avg: Some(field), .. } => (Aggregate::Mean, Some(field)),
        SampleArgs { quantile: Some((share, field)), .. } => (Aggregate::Quantile(*share), Some(field)),
        SampleArgs { distinct: Some(_), .. } => (Aggregate::Distinct, None),
        SampleArgs { by: Some(_), .. } => bail!(Exit::Usage, "--by goes with --sum or --avg; --count-by counts"),
        _ => (Aggregate::Count, None),
    };
    let is_text = format == FileFormat::Text;
    let key = key.map(|key| KeyBy::parse(key, is_text)).transpose()?;
    if !is_text && matches!(key, Some(KeyBy::Match(_))) {
        bail!(Exit::Usage, "/EXPRESSION/ is a key of text; add --format text, or name a field");
    }
    let filter = args.condition.as_deref().map(Filter::parse).transpose()?;
    Ok(Question { aggregate, key, value: value.cloned(), filter })
}

fn reader(args: &SampleArgs, format: FileFormat, question: &Question, source: &dyn Source) -> Outcome<Arc<dyn Format>> {
    let bound = question.clone().bind();
    Ok(match format {
        FileFormat::Text => Arc::new(Text::new(bound)?),
        FileFormat::Json => Arc::new(JsonLines::new(bound)),
        FileFormat::Parquet => Arc::new(Parquet::open(source, bound)?),
        FileFormat::Csv => {
            let options = CsvOptions { delimiter: args.delimiter, header: !args.no_header };
            Arc::new(Csv::open(source, bound, options)?)
        }
    })
}

fn terms(args: &SampleArgs) -> Terms {
    let amount = match (args.exact, args.ratio, args.error) {
        (true, ..) => Amount::Exact,
        (_, Some(ratio), _) => Amount::Ratio(ratio),
        (_, _, error) => Amount::Error(error.unwrap_or(DEFAULT_ERROR)),
    };
    Terms { amount, confidence: args.confidence, top: args.top, drop: args.drop }
}

fn threads(args: &SampleArgs) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    args.threads.map_or_else(cpus, usize::from)
}

/// The first Ctrl-C ends the sample, and what is known is printed; the second ends the program.
fn catch_interrupt() -> Outcome<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered =
            signal_hook::flag::register_conditional_shutdown(signal, Exit::Interrupted as i32, flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()));
        registered.map_err(|error| Failure::new(Exit::Failed, format!("cannot catch Ctrl-C: {error}")))?;
    }
    Ok(flag)
}
