//! State shared by the parts of an open store: the current view, the files, the counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::buffer::{Buffer, ValueOrDelete};
use crate::cache::RecordCache;
use crate::cell::{Cell, StoreContext};
use crate::commit::Committer;
use crate::error::Error;
use crate::index::hash_key;
use crate::merge_job::Jobs;
use crate::options::{Background, Options};

/// What a reader holds: buffers and cells that stay alive while it holds them.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) active: Arc<Buffer>,
    /// Full buffers, newest first.
    pub(crate) frozen: Vec<Arc<Buffer>>,
    /// Newest first.
    pub(crate) cells: Arc<Vec<Arc<Cell>>>,
    /// Grows with every flush. The cache accepts insertions only from readers of the newest version.
    pub(crate) version: u64,
}

/// Remembered failures.
#[derive(Default)]
pub(crate) struct Failures {
    /// The failure that stopped all writes.
    pub(crate) stopped: Option<Error>,
    /// The last failure to turn a buffer into a cell; cleared by the next success. Returned to writers that need room.
    pub(crate) flush: Option<Error>,
    /// The last failure of a merge; cleared by the next merge that ends well.
    pub(crate) merge: Option<Error>,
    pub(crate) flush_retry: Retry,
    pub(crate) merge_retry: Retry,
}

impl Failures {
    /// Forgets failures that may have passed, so that threads try again now.
    pub(crate) fn forget(&mut self) {
        (self.flush, self.merge) = (None, None);
        (self.flush_retry, self.merge_retry) = Default::default();
    }

    /// How long a thread without work sleeps at most.
    pub(crate) fn pause(&self) -> Duration {
        let retries = [&self.flush_retry, &self.merge_retry].into_iter().filter(|retry| retry.failures > 0);
        // A time that has just come may have come after the look at the work.
        let left = retries.map(|retry| match retry.time_left() {
            Duration::ZERO => RETRY_MAX,
            left => left,
        });
        left.fold(PAUSE_MAX, Duration::min)
    }
}

/// Longest sleep of a thread without work: whatever makes work signals, and a store at rest should not wake its machine.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time after the first failure until threads try again; doubles with each further failure.
const RETRY_FIRST: Duration = Duration::from_millis(10);
/// Longest time until threads try again.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// When threads try failed work again. Work on the caller's thread is tried whenever the caller asks for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retry {
    failures: u32,
    at: Option<Instant>,
}

impl Retry {
    pub(crate) fn time_left(&self) -> Duration {
        self.at.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Notes one more failure without a success.
    pub(crate) fn failed(&mut self) {
        let pause = RETRY_FIRST.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.at = Some(Instant::now() + pause);
    }
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) context: Arc<StoreContext>,
    pub(crate) state: RwLock<Arc<State>>,
    pub(crate) cache: RecordCache,
    pub(crate) committer: Mutex<Committer>,
    pub(crate) queue: crate::commit::Queue,
    /// Locked while the manifest changes. All batches up to this sequence are in cells.
    pub(crate) flushed_seq: Mutex<u64>,
    pub(crate) next_file: AtomicU64,
    /// The newest batch visible to readers.
    pub(crate) visible_seq: AtomicU64,
    pub(crate) snapshots: crate::snapshot::Registry,
    pub(crate) jobs: Mutex<Jobs>,
    pub(crate) failures: Mutex<Failures>,
    /// Signalled to workers and to writers that wait for a buffer.
    pub(crate) changed: Condvar,
    pub(crate) signal: Mutex<u64>,
    pub(crate) stopping: AtomicBool,
}

/// Stops the store if the thread that holds this panics: what it was about will never end, and others wait for it.
pub(crate) struct StopOnPanic<'a>(pub(crate) &'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(&"a background thread panicked");
        }
    }
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Shared {
    pub(crate) fn current(&self) -> Arc<State> {
        self.state.read().clone()
    }

    pub(crate) fn new_file(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// Wakes workers and waiting writers.
    pub(crate) fn notify(&self) {
        *self.signal.lock() += 1;
        self.changed.notify_all();
    }

    /// Stops all writes until the store is reopened.
    pub(crate) fn stop(&self, reason: &dyn std::fmt::Display) {
        let mut failures = self.failures.lock();
        failures.stopped.get_or_insert_with(|| Error::Stopped { reason: reason.to_string() });
        drop(failures);
        self.notify();
    }

    pub(crate) fn check_running(&self) -> Result<(), Error> {
        self.failures.lock().stopped.clone().map_or(Ok(()), Err)
    }

    /// Records a failed write. A failed sync is permanent.
    pub(crate) fn note_failure(&self, error: &Error) {
        if self.context.disk.is_poisoned() {
            self.stop(error);
        }
    }

    /// True if work may be tried that `retry` is about.
    pub(crate) fn may_try(&self, retry: fn(&Failures) -> &Retry) -> bool {
        self.options.background == Background::Inline || retry(&self.failures.lock()).time_left().is_zero()
    }

    /// Removes the files of cells that are no longer in use.
    pub(crate) fn remove_obsolete_files(&self) {
        let paths = std::mem::take(&mut *self.context.obsolete_files.lock());
        for path in paths {
            // If this fails, the next opening removes the file.
            let _ = self.context.disk.remove(&path);
        }
    }

    /// Looks up the current value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let counters = &self.context.counters;
        counters.lookups.fetch_add(1, Ordering::Relaxed);
        let state = self.current();
        let hash = hash_key(key);
        if let Some(value) = state.in_buffers(key, hash, u64::MAX) {
            counters.buffer_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(value.map(|v| v.to_vec()));
        }
        if let Some(value) = self.cache.get(key) {
            counters.cache_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(value.to_vec()));
        }
        let found = state.in_cells(key, hash)?;
        if let Some(value) = &found {
            self.cache.insert(state.version, key, value);
        }
        Ok(found)
    }

    /// Replaces the current state.
    pub(crate) fn change_state(&self, change: impl FnOnce(&State) -> State) {
        let mut state = self.state.write();
        let new = Arc::new(change(&state));
        assert!(new.version >= state.version, "state {} follows state {}", new.version, state.version);
        let old = std::mem::replace(&mut *state, new);
        drop(state);
        // Outside the lock: this may drop the last reference to a cell.
        drop(old);
    }
}

impl State {
    pub(crate) fn in_buffers(&self, key: &[u8], hash: u64, upto: u64) -> Option<ValueOrDelete> {
        self.active.get(key, hash, upto).or_else(|| self.frozen.iter().find_map(|b| b.get(key, hash, upto)))
    }

    pub(crate) fn in_cells(&self, key: &[u8], hash: u64) -> Result<Option<Vec<u8>>, Error> {
        SCRATCH.with_borrow_mut(|scratch| {
            for cell in self.cells.iter() {
                if let Some(value) = cell.get(key, hash, scratch)? {
                    cell.context.counters.hit(cell.level);
                    return Ok(value);
                }
            }
            Ok(None)
        })
    }
}
