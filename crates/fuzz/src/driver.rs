//! Runs targets: first their seeds and the corpus, then mutations of inputs that behaved in a new way.
//!
//! `FUZZ_SECONDS` runs a target for a time instead of a number of mutations, `FUZZ_SEED` sets the random numbers, `FUZZ_KEEP=1` adds
//! the inputs that behaved in a new way to the corpus.

use crate::input::{Parts, join, split};
use crate::{Target, mutate};
use peak_alloc::PeakAlloc;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tessera_disk::SplitMix64;

/// Counts the bytes that the process holds.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Targets run one after another: they share the allocator's counters and the panic hook.
static TURN: Mutex<()> = Mutex::new(());
/// What the last panic said.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Inputs kept because they behaved in a new way; an old one makes room.
const KEPT_MAX: usize = 2_000;
/// Attempts to make a failing input smaller.
const SMALLER_TRIES: usize = 400;

/// What a run of a target did.
#[derive(Debug, Default)]
pub struct Report {
    /// Executions.
    pub runs: u64,
    /// Inputs that behaved in a new way.
    pub kept: usize,
    /// The longest execution.
    pub slowest: Duration,
    /// Most bytes held at once.
    pub peak_bytes: usize,
}

/// Runs a target.
///
/// # Panics
/// An input fails. The message names the file it was written to, in `failures`.
pub fn fuzz(target: &Target, failures: &Path) -> Report {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        *PANIC.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = info.to_string();
    }));
    let result = Run::new(target).all();
    std::panic::set_hook(hook);
    drop(turn);
    match result {
        Ok(report) => report,
        Err((parts, why)) => {
            let path = failures.join(format!("{}-{:08x}", target.name, crc_fast::crc32_iscsi(&join(&parts))));
            std::fs::create_dir_all(failures).and_then(|()| std::fs::write(&path, join(&parts))).expect("a file");
            panic!(
                "{}: {why}\nthe input is {}; once it is understood, move it to crates/fuzz/corpus/{}",
                target.name,
                path.display(),
                target.name
            );
        }
    }
}

/// The folder of a target's corpus.
#[must_use]
pub fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

struct Run<'a> {
    target: &'a Target,
    seen: HashSet<String>,
    kept: Vec<Parts>,
    report: Report,
}

type Failure = (Parts, String);

impl Run<'_> {
    fn new(target: &Target) -> Run<'_> {
        Run { target, seen: HashSet::new(), kept: Vec::new(), report: Report::default() }
    }

    fn all(mut self) -> Result<Report, Failure> {
        let files = std::fs::read_dir(corpus(self.target)).into_iter().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.expect("the corpus").path()).collect();
        files.sort();
        let stored = files.iter().map(|file| split(&std::fs::read(file).expect("the corpus")));
        for parts in (self.target.seeds)().into_iter().chain(stored) {
            self.offer(&parts)?;
            self.kept.push(parts);
        }
        let stored = self.kept.len();
        self.mutations()?;
        if variable("FUZZ_KEEP").is_some() {
            self.save(&self.kept[stored..]);
        }
        Ok(self.report)
    }

    fn mutations(&mut self) -> Result<(), Failure> {
        let mut rng = SplitMix64::new(variable("FUZZ_SEED").unwrap_or(1));
        let until = variable("FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut left = self.target.runs;
        while until.map_or(left > 0, |until| Instant::now() < until) {
            left = left.saturating_sub(1);
            let at = mutate::index(&mut rng, self.kept.len());
            let mut parts = self.kept[at].clone();
            let other = &self.kept[mutate::index(&mut rng, self.kept.len())];
            if mutate::one_in(&mut rng, 2) {
                mutate::mutate(&mut parts, other, &mut rng);
            }
            (self.target.adapt)(&mut parts, &mut rng);
            if self.offer(&parts)? {
                match self.kept.len() < KEPT_MAX {
                    true => self.kept.push(parts),
                    false => self.kept[at] = parts,
                }
                self.report.kept += 1;
            }
        }
        Ok(())
    }

    /// Runs an input; returns whether it behaved in a new way.
    fn offer(&mut self, parts: &Parts) -> Result<bool, Failure> {
        let begun = Instant::now();
        let done = run(self.target, parts);
        self.report.runs += 1;
        self.report.slowest = self.report.slowest.max(begun.elapsed());
        match done {
            Ok((what, peak_bytes)) => {
                self.report.peak_bytes = self.report.peak_bytes.max(peak_bytes);
                Ok(self.seen.insert(what))
            }
            Err(why) => Err(smaller(self.target, parts, why)),
        }
    }

    fn save(&self, kept: &[Parts]) {
        let folder = corpus(self.target);
        std::fs::create_dir_all(&folder).expect("the corpus");
        for input in kept.iter().map(|parts| join(parts)) {
            let name = format!("{:08x}", crc_fast::crc32_iscsi(&input));
            std::fs::write(folder.join(name), input).expect("the corpus");
        }
    }
}

/// Runs a target once. Returns what became of the input, and the bytes that were held.
fn run(target: &Target, parts: &Parts) -> Result<(String, usize), String> {
    let input = join(parts);
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let done = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
    let held = ALLOCATOR.peak_usage().saturating_sub(before);
    let limit = target.base_bytes + target.bytes_per_byte * input.len();
    match done {
        Err(_) => Err(PANIC.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()),
        Ok(_) if held > limit => {
            Err(format!("{held} bytes were held for an input of {} bytes, {limit} are allowed", input.len()))
        }
        Ok(what) => Ok((what, held)),
    }
}

/// Removes parts and bytes of a failing input as long as it fails.
fn smaller(target: &Target, parts: &Parts, why: String) -> Failure {
    let (mut best, mut why, mut rng) = (parts.clone(), why, SplitMix64::new(1));
    for _ in 0..SMALLER_TRIES {
        let mut tried = best.clone();
        let at = mutate::index(&mut rng, tried.len());
        let Some(part) = tried.get_mut(at) else { break };
        let from = mutate::index(&mut rng, part.len());
        match rng.below(3) {
            0 => _ = tried.remove(at),
            1 => part.truncate(from),
            _ => _ = part.drain(from..(from + 1 + mutate::index(&mut rng, 64)).min(part.len())),
        }
        if join(&tried).len() < join(&best).len()
            && let Err(still) = run(target, &tried)
        {
            (best, why) = (tried, still);
        }
    }
    (best, why)
}
