//! The threads: one reads each disk, others compute, and the caller decides when it is enough.
//!
//! Reading and computing meet in one bounded queue (ApproxSSD, section on decoupled threads). No two threads read one
//! disk, so a slow disk delays only what it holds. A read that is under way when the sample is complete is not waited
//! for: the threads own what they use, and end by themselves.

use crate::error::Error;
use crate::format::{Block, Format};
use crate::schedule::Schedule;
use crate::source::{DiskIndex, Source};
use crate::tally::{Tally, Totals};
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of longer blocks is not kept for the next ones.
const MAX_BUFFER_BYTES: usize = 16 << 20;

/// How a sample is read.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads that compute.
    pub threads: usize,
    /// Values are kept for quantiles.
    pub keep_values: bool,
    /// Equal seeds keep equal values.
    pub seed: u64,
    /// How often the caller is asked, at most.
    pub tick: Duration,
}

/// How far a sample is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Units that arrived and were counted.
    pub units: u64,
    /// Units that the sample is to have.
    pub needed_units: u64,
    /// Units of everything.
    pub all_units: u64,
    /// Bytes read, what was needed beyond units included.
    pub read_bytes: u64,
    /// The sample has what it was to have.
    pub complete: bool,
}

/// What the caller wants next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// Read on.
    Go,
    /// Extend the sample to so many units, and drop a share of stragglers.
    Need(u64, f64),
    /// It is enough, complete or not.
    Stop,
}

struct Shared {
    source: Arc<dyn Source>,
    format: Arc<dyn Format>,
    state: Mutex<State>,
    changed: Condvar,
    tallies: Vec<Mutex<Tally>>,
    /// Memory of blocks that were counted; the next ones are read into it. New memory costs a page fault for each 4 KiB.
    buffers: Mutex<Vec<Vec<u8>>>,
}

struct State {
    schedule: Schedule,
    counted: u64,
    read_bytes: u64,
    closed: bool,
    error: Option<Error>,
}

/// A sample that is being read. Dropping it ends the threads.
pub struct Engine {
    shared: Arc<Shared>,
    tick: Duration,
}

impl Engine {
    /// Starts the threads.
    pub fn start(source: Arc<dyn Source>, format: Arc<dyn Format>, schedule: Schedule, options: &Options) -> Engine {
        let (disks, threads) = (schedule.layout().disks, options.threads.max(1));
        let tally = |i| match schedule.is_whole() {
            true => Tally::whole(schedule.layout(), options.keep_values),
            false => Tally::new(schedule.layout(), options.keep_values, options.seed.wrapping_add(i as u64)),
        };
        let tallies = (0..threads).map(|i| Mutex::new(tally(i))).collect();
        let state = State { schedule, counted: 0, read_bytes: 0, closed: false, error: None };
        let (state, changed, buffers) = (Mutex::new(state), Condvar::new(), Mutex::default());
        let shared = Arc::new(Shared { source, format, state, changed, tallies, buffers });
        let (send, receive) = bounded(2 * (disks + threads));
        for disk in 0..disks {
            let send = send.clone();
            spawn(format!("disk-{disk}"), &shared, move |shared| shared.read_disk(disk as DiskIndex, &send));
        }
        for thread in 0..threads {
            let receive = receive.clone();
            spawn(format!("count-{thread}"), &shared, move |shared| shared.count(thread, &receive));
        }
        Engine { shared, tick: options.tick }
    }

    /// Reads until `next` says stop. It is asked every tick, and whenever the sample is complete.
    ///
    /// # Errors
    /// A file cannot be read, or a record is malformed.
    pub fn run(&self, mut next: impl FnMut(&Engine, Progress) -> Next) -> Result<Progress, Error> {
        let mut asked = Instant::now();
        loop {
            let progress = self.wait(asked + self.tick)?;
            asked = Instant::now();
            match next(self, progress) {
                Next::Go if progress.complete => return Ok(progress),
                Next::Go => {}
                Next::Need(units, drop) => {
                    self.shared.state.lock().schedule.need(units, drop);
                    self.shared.changed.notify_all();
                }
                Next::Stop => return Ok(progress),
            }
        }
    }

    /// Waits until the sample is complete and counted, or a time.
    fn wait(&self, until: Instant) -> Result<Progress, Error> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let progress = state.progress();
            if progress.complete || self.shared.changed.wait_until(&mut state, until).timed_out() {
                return Ok(progress);
            }
        }
    }

    /// Calls `with` with what was counted so far. The threads wait meanwhile.
    pub fn with_totals<R>(&self, with: impl FnOnce(&Totals<'_>) -> R) -> R {
        let tallies: Vec<MutexGuard<'_, Tally>> = self.shared.tallies.iter().map(Mutex::lock).collect();
        with(&Totals::of(tallies.iter().map(|tally| &**tally)))
    }

    /// How far it is now. After an interrupt this is further than `next` was told.
    pub fn progress(&self) -> Progress {
        self.shared.state.lock().progress()
    }

    /// Units that arrived from each disk.
    pub fn units_of_disks(&self) -> Vec<u64> {
        let state = self.shared.state.lock();
        let mut units = vec![0; state.schedule.layout().disks];
        for (h, stratum) in state.schedule.layout().strata.iter().enumerate() {
            units[stratum.disk as usize] += state.schedule.arrived_of(h);
        }
        units
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.close(None);
    }
}

impl State {
    fn progress(&self) -> Progress {
        Progress {
            units: self.counted,
            needed_units: self.schedule.needed(),
            all_units: self.schedule.layout().units(),
            read_bytes: self.read_bytes,
            complete: self.schedule.is_complete() && self.counted == self.schedule.arrived_units(),
        }
    }
}

impl Shared {
    /// A disk's thread.
    fn read_disk(&self, disk: DiskIndex, send: &Sender<(usize, Block)>) {
        while let Some(issue) = self.next_issue(disk) {
            let buffer = self.buffers.lock().pop().unwrap_or_default();
            match self.format.load_into(&*self.source, issue.unit, buffer) {
                Ok(block) if self.arrived(issue.stratum, &block) => {
                    if send.send((issue.stratum, block)).is_err() {
                        return;
                    }
                }
                // It came too late: the sample is complete without it.
                Ok(_) => {}
                Err(error) => return self.close(Some(error)),
            }
        }
    }

    /// The next unit of a disk. Waits while nothing is planned; `None` when the sample is closed.
    fn next_issue(&self, disk: DiskIndex) -> Option<crate::schedule::Issue> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if !state.schedule.is_complete()
                && let Some(issue) = state.schedule.next(disk)
            {
                return Some(issue);
            }
            self.changed.wait(&mut state);
        }
    }

    fn arrived(&self, stratum: usize, block: &Block) -> bool {
        let mut state = self.state.lock();
        state.read_bytes += (block.bytes.len() as u64).max(block.unit.len_bytes);
        // What comes after the end is not counted, unless the sample is extended.
        while state.schedule.is_complete() && !state.closed {
            self.changed.wait(&mut state);
        }
        if state.closed {
            return false;
        }
        state.schedule.arrived(stratum);
        true
    }

    /// A computing thread.
    fn count(&self, thread: usize, receive: &Receiver<(usize, Block)>) {
        for (stratum, block) in receive {
            if self.state.lock().closed {
                return;
            }
            let file = &self.source.files()[block.unit.file as usize].name;
            let counted = {
                let mut tally = self.tallies[thread].lock();
                let mut unit = tally.unit(stratum, block.unit.size as f64);
                self.format.tally(&block, file, &mut unit)
            };
            if let Err(error) = counted {
                return self.close(Some(error));
            }
            if block.bytes.capacity() <= MAX_BUFFER_BYTES {
                self.buffers.lock().push(block.bytes);
            }
            let mut state = self.state.lock();
            state.counted += 1;
            if state.counted == state.schedule.arrived_units() && state.schedule.is_complete() {
                self.changed.notify_all();
            }
        }
    }

    fn close(&self, error: Option<Error>) {
        let mut state = self.state.lock();
        state.closed = true;
        if state.error.is_none() {
            state.error = error;
        }
        self.changed.notify_all();
    }
}

/// Ends the sample when a thread panics, so that nobody waits for it.
struct EndOnPanic(Arc<Shared>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close(Some(Error::Panic { message: "its message stands above".to_string() }));
        }
    }
}

fn spawn(name: String, shared: &Arc<Shared>, work: impl FnOnce(&Shared) + Send + 'static) {
    let guard = EndOnPanic(shared.clone());
    let work = move || work(&guard.0);
    std::thread::Builder::new().name(name).spawn(work).expect("the system has room for a thread");
}
