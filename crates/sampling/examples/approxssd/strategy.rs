//! Runs of one job: the baseline, which does not know disks, and Tessera's engine.

use crate::data::{App, DISKS, Data, FILES_OF_DISK, Repeated};
use crossbeam_channel::bounded;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_sampling::answer::{Amount, Answer, Terms, ask};
use tessera_sampling::engine::{Options, Progress};
use tessera_sampling::estimate::Estimate;
use tessera_sampling::format::Format;
use tessera_sampling::layout::{Layout, Run, Unit};
use tessera_sampling::schedule::{Issue, Schedule, Shares};
use tessera_sampling::source::{DiskSpeed, PlayedDisks, PlayedRead, SlowPhases, Source};
use tessera_sampling::tally::{Tally, Totals};

/// A read of 8 KiB and the KiB behind it takes 12.0 ms: slow enough that neither the processor nor its other work is the
/// bound.
pub const SPEED: DiskSpeed = DiskSpeed { bytes_per_s: 4.6e6, latency: Duration::from_millis(10) };
pub const UNIT_BYTES: u64 = 8192;
/// Bytes that are read behind a unit to end its last record.
pub const MARGIN_BYTES: u64 = 1024;
/// Threads that compute, in each strategy.
const THREADS: usize = 2;
const CONFIDENCE: f64 = 0.95;
/// Groups that are reported.
const TOP: usize = 1000;

/// What is asked, and of which disks.
pub struct Job<'a> {
    pub data: &'a Data,
    pub app: App,
    pub repeats: u64,
    pub unit_bytes: u64,
    pub ratio: f64,
    pub speeds: Vec<DiskSpeed>,
    pub slow: Option<SlowPhases>,
}

/// Which units are read, and by which threads.
#[derive(Debug, Clone, PartialEq)]
pub enum Strategy {
    /// Units at random, dealt to as many threads as there are disks.
    Random,
    /// So many of each disk by weight, dealt to threads in the same way.
    Dealt(Vec<f64>),
    /// Tessera: so many of each disk by weight, a thread for each disk, stragglers dropped.
    Own(Vec<f64>, f64),
}

impl Strategy {
    pub fn balanced() -> Strategy {
        Strategy::Dealt(vec![1.0; DISKS])
    }

    pub fn tessera(drop: f64) -> Strategy {
        Strategy::Own(vec![1.0; DISKS], drop)
    }
}

/// What a run found, and what it took.
pub struct Outcome {
    pub seconds: f64,
    /// Of this, from when everything was read and counted: making the answer.
    pub answer_s: f64,
    pub answer: Answer,
    /// Reads of each disk that were asked for before the end.
    pub reads: Vec<Vec<PlayedRead>>,
}

impl Outcome {
    /// Mean load of a disk compared with the largest, in bytes.
    pub fn balance(&self) -> f64 {
        let loads = self.reads.iter().map(|disk| disk.iter().map(|read| read.len_bytes).sum::<u64>() as f64);
        let loads: Vec<f64> = loads.collect();
        loads.iter().sum::<f64>() / DISKS as f64 / loads.iter().copied().fold(0.0, f64::max)
    }

    /// Share of the I/O threads' time in which the disk served the read of another thread.
    pub fn waiting(&self) -> f64 {
        let waits = self.reads.iter().flatten().map(|read| read.began_at - read.asked_at);
        waits.sum::<Duration>().as_secs_f64() / (DISKS as f64 * self.seconds)
    }

    /// Share of the disks' time in which they serve nothing.
    pub fn idle(&self) -> f64 {
        let served = self.reads.iter().flatten().map(|read| read.done_at - read.began_at).sum::<Duration>();
        1.0 - served.as_secs_f64() / (DISKS as f64 * self.seconds)
    }

    /// From request to answer, in seconds, with the time of the request.
    pub fn latencies(&self) -> Vec<(f64, f64)> {
        let of = |read: &PlayedRead| (read.asked_at.as_secs_f64(), (read.done_at - read.asked_at).as_secs_f64());
        self.reads.iter().flatten().map(of).collect()
    }
}

impl<'a> Job<'a> {
    pub fn new(data: &'a Data, app: App, repeats: u64, ratio: f64) -> Job<'a> {
        Job { data, app, repeats, unit_bytes: UNIT_BYTES, ratio, speeds: vec![SPEED; DISKS], slow: None }
    }

    pub fn layout(&self) -> Layout {
        Layout::of(&self.data.source(self.app, self.repeats), &*self.app.format(), self.unit_bytes)
    }

    /// Units that the ratio asks for.
    pub fn needed(&self) -> u64 {
        ((self.layout().units() as f64 * self.ratio).ceil() as u64).max(1)
    }

    /// How long equal disks take for equal shares of the units that are needed.
    pub fn floor_s(&self) -> f64 {
        let read = SPEED.time_of(self.unit_bytes + MARGIN_BYTES);
        self.needed().div_ceil(DISKS as u64) as f64 * read.as_secs_f64()
    }

    pub fn run(&self, strategy: &Strategy, seed: u64) -> Outcome {
        let mut disks = PlayedDisks::new(self.data.source(self.app, self.repeats), &self.speeds);
        if let Some(slow) = self.slow {
            disks = disks.with_slow_phases(SlowPhases { seed: slow.seed + seed, ..slow });
        }
        let (disks, format, layout) = (Arc::new(disks), self.app.format(), self.layout());
        let start = Instant::now();
        let (answer, counted_at) = match strategy {
            Strategy::Own(weights, drop) => self.own(&disks, format, layout, weights, *drop, seed),
            Strategy::Random => {
                let (pool, units) = random(&layout, self.needed(), seed);
                self.dealt(&disks, &*format, &pool, units, seed)
            }
            Strategy::Dealt(weights) => {
                let units = balanced(layout.clone(), weights, self.needed(), seed);
                self.dealt(&disks, &*format, &layout, units, seed)
            }
        };
        let (seconds, answer_s) = (start.elapsed().as_secs_f64(), counted_at.elapsed().as_secs_f64());
        Outcome { seconds, answer_s, answer, reads: disks.reads() }
    }

    fn terms(&self, drop: f64) -> Terms {
        let amount = if self.ratio < 1.0 { Amount::Ratio(self.ratio) } else { Amount::Exact };
        Terms { amount, confidence: CONFIDENCE, top: TOP, drop }
    }

    fn own(
        &self,
        disks: &Arc<PlayedDisks<Repeated>>,
        format: Arc<dyn Format>,
        layout: Layout,
        weights: &[f64],
        drop: f64,
        seed: u64,
    ) -> (Answer, Instant) {
        let schedule = match self.ratio < 1.0 {
            true => Schedule::new(layout, Shares::Speeds(weights.to_vec()), seed),
            false => Schedule::whole(layout),
        };
        let options = Options { threads: THREADS, keep_values: false, seed, tick: Duration::from_secs(1) };
        let (question, terms) = (self.app.question(), self.terms(drop));
        let source: Arc<dyn Source> = disks.clone();
        let mut counted_at = None;
        let mut observe = |progress: Progress, _: &dyn Fn() -> Option<Estimate>| {
            if progress.complete {
                counted_at = Some(Instant::now());
            }
            true
        };
        let found =
            ask(source, format, schedule, (&question, &terms), &options, &mut observe).expect("the data is sound");
        (found.0, counted_at.expect("the sample is complete"))
    }

    /// The baseline's threads: task i goes to thread i modulo their number, whichever disk it is on; all are waited for.
    fn dealt(
        &self,
        disks: &PlayedDisks<Repeated>,
        format: &dyn Format,
        tallied: &Layout,
        units: Vec<Issue>,
        seed: u64,
    ) -> (Answer, Instant) {
        let (send, receive) = bounded(2 * (DISKS + THREADS));
        let mut tallies: Vec<Tally> = (0..THREADS).map(|_| Tally::new(tallied, false, seed)).collect();
        std::thread::scope(|scope| {
            for thread in 0..DISKS {
                let (send, units) = (send.clone(), &units);
                scope.spawn(move || {
                    for issue in units.iter().skip(thread).step_by(DISKS) {
                        let block = format.load(disks, issue.unit).expect("the file can be read");
                        send.send((issue.stratum, block)).expect("a thread computes");
                    }
                });
            }
            drop(send);
            for tally in &mut tallies {
                let receive = receive.clone();
                scope.spawn(move || {
                    for (stratum, block) in receive {
                        let mut unit = tally.unit(stratum, block.unit.size as f64);
                        format.tally(&block, "", &mut unit).expect("records are well-formed");
                    }
                });
            }
        });
        let counted_at = Instant::now();
        (Answer::of(&self.app.question(), &self.terms(0.0), &Totals::of(&tallies), seed), counted_at)
    }
}

/// `needed` of all units, each set equally likely, and the layout in which they are one stratum.
pub fn random(layout: &Layout, needed: u64, seed: u64) -> (Layout, Vec<Issue>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let all = layout.units();
    let mut first = 0;
    let firsts: Vec<u64> = layout.strata.iter().map(|s| (first += s.units, first - s.units).1).collect();
    let unit = |index: usize| {
        let h = firsts.partition_point(|first| *first <= index as u64) - 1;
        layout.unit(h, index as u64 - firsts[h])
    };
    let mut units: Vec<Unit> =
        rand::seq::index::sample(&mut rng, all as usize, needed as usize).into_iter().map(unit).collect();
    units.sort_by_key(striped);
    // Parts of one file are one stratum.
    let mut offset = 0;
    let part = |stratum: &tessera_sampling::layout::Stratum| {
        let run = Run { file: 0, offset, len_bytes: stratum.bytes, disk: 0, rows: None };
        offset += stratum.bytes;
        run
    };
    let runs: Vec<Run> = layout.strata.iter().map(part).collect();
    let pool = Layout::new(&runs, 1, layout.unit_bytes);
    assert_eq!((pool.strata.len(), pool.units()), (1, all), "each file is a stratum of its disk");
    (pool, units.into_iter().map(|unit| Issue { stratum: 0, unit }).collect())
}

/// So many units of each disk as its weight says, without what a sample always has of each disk.
pub fn balanced(layout: Layout, weights: &[f64], needed: u64, seed: u64) -> Vec<Issue> {
    let mut schedule = Schedule::new(layout, Shares::Speeds(weights.to_vec()), seed);
    schedule.need(needed, 0.0);
    let disks = 0..schedule.layout().disks as u32;
    let mut units: Vec<Issue> = Vec::new();
    for disk in disks {
        units.extend(std::iter::from_fn(|| schedule.next(disk)));
    }
    units.sort_by_key(|issue| striped(&issue.unit));
    units
}

pub fn disk_of(unit: &Unit) -> usize {
    unit.file as usize / FILES_OF_DISK
}

/// The order that units have on a volume that is striped over all disks.
fn striped(unit: &Unit) -> (usize, u64, usize) {
    let file = unit.file as usize;
    (file % FILES_OF_DISK, unit.offset, disk_of(unit))
}
