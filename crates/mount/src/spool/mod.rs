//! The spool: files that are written to a local disk first, and pushed into the store after the close (stdchk's
//! complete local writes; dissertation, section 3.5.3.2), or through a few bounded local files while they are written
//! ([`staged`], its incremental writes).
//!
//! A waiting file is a [`log::Log`]. Its records ([`record`]) describe a file ([`overlay`]); [`replay`] reads what an
//! earlier mount left, [`recover`] takes it over, and [`budget`] limits all logs together. [`push`] brings logs into the
//! store in the background; [`crate::open_file`] decides which file has a log, and reads through it.

pub(crate) mod budget;
pub(crate) mod log;
pub(crate) mod logfile;
pub(crate) mod overlay;
pub mod push;
pub(crate) mod record;
mod recover;
pub(crate) mod replay;
pub mod speed;
pub mod staged;
#[cfg(feature = "testing")]
pub mod testing;

use budget::Budget;
use log::{Log, LogError};
use parking_lot::Mutex;
use replay::LogOrigin;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use tessera_disk::Disk;
use tokio::sync::mpsc;

/// Where a mount spools, and how much.
#[derive(Clone)]
pub struct SpoolConfig {
    /// The disk. No other mount uses it.
    pub disk: Arc<dyn Disk>,
    /// Limit of the bytes of all files in the spool.
    pub limit_bytes: u64,
    /// The cluster, to which the files in the spool belong.
    pub cluster_id: Vec<u8>,
}

/// State of a spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpoolStats {
    /// Limit in bytes.
    pub limit_bytes: u64,
    /// Bytes used.
    pub used_bytes: u64,
    /// Files that wait.
    pub waiting_files: u64,
    /// Versions pushed, since the mount began.
    pub pushed: u64,
    /// Local files of incremental writes.
    pub segments: u64,
    /// Files written by sliding window although their policy asks for the spool.
    pub fallbacks: u64,
    /// Files kept under another name because another client replaced them.
    pub conflicts: u64,
    /// Files removed before they were pushed.
    pub dropped: u64,
    /// Logs that cannot be read.
    pub set_aside: u64,
    /// Files of incremental writes that were closed and cannot be stored.
    pub lost: u64,
    /// Failed pushes that are retried.
    pub retries: u64,
}

/// See the module.
pub struct Spool {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) budget: Arc<Budget>,
    /// The cluster.
    pub cluster_id: Vec<u8>,
    /// Version of the cluster's map when the mount began, or when it found out that the managers were restored; 0: unknown.
    pub(crate) map_version: AtomicU64,
    /// The counts since the mount began; the rest is filled in by [`Spool::stats`].
    pub(crate) counts: Mutex<SpoolStats>,
    queue: mpsc::UnboundedSender<u64>,
    stopping: AtomicBool,
    segments: AtomicU64,
}

impl Spool {
    /// A spool on a disk. The receiver yields the inodes to push.
    pub fn new(config: SpoolConfig) -> (Spool, mpsc::UnboundedReceiver<u64>) {
        let SpoolConfig { disk, limit_bytes, cluster_id } = config;
        let (queue, queued) = mpsc::unbounded_channel();
        let budget = Arc::new(Budget::new(limit_bytes));
        let (map_version, counts, stopping, segments) = Default::default();
        (Spool { disk, budget, cluster_id, map_version, counts, queue, stopping, segments }, queued)
    }

    /// Begins a log. `number`: a random number, which makes the log's name unique. `emptied`: the file was truncated to
    /// length 0.
    ///
    /// # Errors
    /// As [`Log::create`].
    pub(crate) fn begin(&self, number: u64, origin: LogOrigin, emptied: bool) -> Result<Log, LogError> {
        let map_version = self.map_version.load(Relaxed);
        let origin = LogOrigin { cluster_id: self.cluster_id.clone(), map_version, ..origin };
        let mut log = Log::create(self.disk.clone(), number, self.budget.clone(), origin)?;
        if emptied && let Err(error) = log.set_len(0) {
            log.remove();
            return Err(error);
        }
        Ok(log)
    }

    /// Queues a file for a push.
    pub fn push(&self, ino: u64) {
        // Fails if the tasks that push have ended; then the next mount pushes.
        let _ = self.queue.send(ino);
    }

    /// Counts a file that is written by sliding window instead.
    pub(crate) fn falls_back(&self, ino: u64, why: &dyn std::fmt::Display) {
        self.counts.lock().fallbacks += 1;
        tracing::warn!(ino, %why, "a file is written without the spool");
    }

    pub(crate) fn next_segment(&self) -> String {
        format!("{:x}.segment", self.segments.fetch_add(1, Relaxed))
    }

    /// Stops retries of failed pushes.
    pub fn stop(&self) {
        self.stopping.store(true, Release);
    }

    /// Whether [`Spool::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// The spool's state; `waiting`: number of files that wait.
    pub fn stats(&self, waiting: usize) -> SpoolStats {
        let (limit_bytes, used_bytes) = (self.budget.limit_bytes(), self.budget.used_bytes());
        SpoolStats { limit_bytes, used_bytes, waiting_files: waiting as u64, ..*self.counts.lock() }
    }

    /// As [`Spool::stats`], in JSON.
    pub fn shown(&self, waiting: usize) -> Value {
        let mut shown = json!(self.stats(waiting));
        shown["directory"] = json!(self.disk.describe());
        shown
    }
}
