//! The thread that runs long reads: one of each connection in turn, on connections to the database of its own.

use super::{In, spawn};
use crate::config::Config;
use crate::core::Event;
use crate::core::reading::{KnownCounts, ReadJob};
use crate::db::readers::DbReaders;
use crate::inbox::Inbox;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tessera_wire::{Code, Error};

/// Interval at which the thread looks up although nothing wakes it.
const IDLE: Duration = Duration::from_secs(3600);

/// A connection without a job is closed after this time: whoever replaces the database waits for it.
const STAY: Duration = Duration::from_millis(5);

/// `None`: the thread ends.
type Jobs = Inbox<Option<ReadJob>>;

/// The running thread.
pub(super) struct Reading {
    jobs: Arc<Jobs>,
    thread: JoinHandle<()>,
}

impl Reading {
    /// Starts the thread; results go to `inbox`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(readers: DbReaders, config: Config, inbox: Arc<Inbox<In>>) -> std::io::Result<Reading> {
        let jobs = Arc::new(Jobs::default());
        let mine = jobs.clone();
        let thread = spawn("reader".into(), move || serve(&mine, &readers, &config, &inbox))?;
        Ok(Reading { jobs, thread })
    }

    pub fn push(&self, job: ReadJob) {
        self.jobs.push(Some(job.connection()), Some(job));
    }

    /// Tells the thread to end after what it reads now; jobs that wait are lost.
    pub fn end(self) -> JoinHandle<()> {
        self.jobs.push(None, None);
        self.thread
    }
}

fn serve(jobs: &Jobs, readers: &DbReaders, config: &Config, inbox: &Inbox<In>) {
    let mut known = KnownCounts::default();
    let mut next = None;
    loop {
        match next.take().or_else(|| jobs.take_within(IDLE)) {
            Some(Some(job)) => next = run_several(job, jobs, readers, (config, &mut known), inbox),
            Some(None) => return,
            None => {}
        }
    }
}

/// Runs a job, and those that come soon after it on the same connection: to open one costs more than to list a small directory. Returns
/// what came last.
fn run_several(
    mut job: ReadJob,
    jobs: &Jobs,
    readers: &DbReaders,
    (config, known): (&Config, &mut KnownCounts),
    inbox: &Inbox<In>,
) -> Option<Option<ReadJob>> {
    let ran = readers.several(|reads| {
        loop {
            let done = reads.in_one_state(|db| Ok(job.clone().run(db, config, known)))?;
            let failed = done.failed();
            inbox.push(None, In::Event(Event::Read(done)));
            if failed {
                return Ok(None);
            }
            match jobs.take_within(STAY) {
                Some(Some(next)) if !reads.must_end() => job = next,
                last => return Ok(last),
            }
        }
    });
    ran.unwrap_or_else(|error| {
        let text = format!("the manager's database cannot be read: {error}");
        inbox.push(None, In::Event(Event::Read(job.failed(Error::new(Code::Unavailable, text)))));
        None
    })
}
