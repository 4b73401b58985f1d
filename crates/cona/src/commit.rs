//! Group commit: from batches to the log and the active buffer.
//!
//! A writer that finds no leader becomes the leader. It takes all waiting batches, writes them to the log in one write,
//! syncs once if any of them asks for it, applies them, and wakes their writers. Readers see batches in log order.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use tessera_failpoint as failpoint;

use crate::buffer::{Buffer, Change};
use crate::cell::Cell;
use crate::error::Error;
use crate::log::{Log, encode_changes, log_name};
use crate::options::{Background, Durability, Shape};
use crate::state::{Shared, State};

/// Number of cells above which writers are slowed down gradually, so that merges keep up.
const CELLS_AT_EASE: usize = 24;
/// Number of cells above which a writer that needs a new buffer waits for merges. Flushes take precedence over merges,
/// so without this bound tiny buffers could make cells faster than merges remove them.
const CELLS_MAX: usize = 128;
/// Bytes between two pauses of a slowed writer.
const PAUSE_BYTES: u64 = 64 << 10;
/// Bytes of the write buffer that outlive a group. Larger groups are rare.
const OUT_KEPT_BYTES: usize = 1 << 20;
/// Share of the oldest cell, as a divisor, that deletes in a buffer may hide before the buffer counts as full.
const HIDDEN_SHARE: u64 = 16;

/// State of the current leader: the logs.
pub(crate) struct Committer {
    /// `None` in a volatile or unlogged store.
    log: Option<Log>,
    /// Earlier logs that are written but not synced.
    older: Vec<Log>,
    pub(crate) next_seq: u64,
    /// All batches up to this sequence are durable.
    pub(crate) durable_seq: u64,
    out: Vec<u8>,
    since_pause: u64,
}

impl Committer {
    pub(crate) fn new(log: Option<Log>, next_seq: u64) -> Self {
        Committer { log, older: Vec::new(), next_seq, durable_seq: next_seq - 1, out: Vec::new(), since_pause: 0 }
    }

    /// Makes everything written so far durable.
    fn sync(&mut self, shared: &Shared) -> Result<(), Error> {
        while let Some(log) = self.older.first_mut() {
            // Syncing a log that was flushed and removed meanwhile is unnecessary but harmless.
            log.sync()?;
            self.older.remove(0);
        }
        if let Some(log) = &mut self.log {
            if log.name_dirty {
                shared.context.disk.sync_dir(&shared.context.dir)?;
                log.name_dirty = false;
            }
            if log.dirty {
                log.sync()?;
            }
        }
        assert!(self.durable_seq < self.next_seq, "batch {} is durable and was not written", self.durable_seq);
        self.durable_seq = self.next_seq - 1;
        Ok(())
    }
}

struct Request {
    changes: Vec<Change>,
    payload: Vec<u8>,
    sync: bool,
    done: Mutex<Option<Result<(), Error>>>,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<Arc<Request>>,
    busy: bool,
}

/// Waiting writers.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    turn: Condvar,
}

/// True if a delete may hide a record of the oldest cell, whose space a fold then returns. Always false for a shape that
/// folds nothing: its space has no bound that deletes could exceed.
pub(crate) fn may_hide(cells: &[Arc<Cell>], shape: Shape, key: &[u8], hash: u64) -> bool {
    matches!(shape, Shape::Folded { .. }) && cells.last().is_some_and(|oldest| oldest.may_hold(key, hash))
}

/// The turn of a leader. It ends when this is dropped. If that is because the leader panicked, nobody knows what the log
/// holds, and the store takes no more writes: the writers of its group, which find no result, lead groups without
/// their own batches and get that error.
struct Turn<'a> {
    shared: &'a Shared,
    group: usize,
    ended: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.stop(&"a thread panicked while it wrote");
        }
        self.shared.hand_on(self.group);
    }
}

impl Shared {
    /// Commits one batch: waits for its turn or leads a group.
    pub(crate) fn commit(self: &Arc<Self>, changes: Vec<Change>, durability: Durability) -> Result<(), Error> {
        let bytes: usize =
            changes.iter().map(|c| c.key.as_bytes().len() + c.value.as_ref().map_or(0, |v| v.len())).sum();
        let mut payload = Vec::with_capacity(bytes + 8 * changes.len());
        encode_changes(&changes, &mut payload);
        self.context.counters.user_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let sync = durability == Durability::Sync;
        let request = Request { changes, payload, sync, done: Mutex::new(None) };
        let mut waiting = self.queue.waiting.lock();
        if !waiting.busy && waiting.requests.is_empty() {
            waiting.busy = true;
            drop(waiting);
            return self.lead(&[&request]);
        }
        let request = Arc::new(request);
        waiting.requests.push(request.clone());
        loop {
            if let Some(result) = request.done.lock().take() {
                return result;
            }
            if !waiting.busy {
                break;
            }
            self.queue.turn.wait(&mut waiting);
        }
        waiting.busy = true;
        let group = std::mem::take(&mut waiting.requests);
        drop(waiting);
        self.lead(&group)
    }

    /// Commits a group in this writer's turn.
    fn lead<R: Deref<Target = Request>>(self: &Arc<Self>, group: &[R]) -> Result<(), Error> {
        let mut turn = Turn { shared: self, group: group.len(), ended: false };
        let result = self.commit_group(group);
        for done in group {
            *done.done.lock() = Some(result.clone());
        }
        turn.ended = true;
        result
    }

    /// Ends the leader's turn and wakes the writers of its group and the next leader.
    fn hand_on(&self, group: usize) {
        let mut waiting = self.queue.waiting.lock();
        waiting.busy = false;
        if group > 1 || !waiting.requests.is_empty() {
            self.queue.turn.notify_all();
        }
    }

    fn commit_group<R: Deref<Target = Request>>(self: &Arc<Self>, group: &[R]) -> Result<(), Error> {
        self.check_running()?;
        let mut committer = self.committer.lock();
        let state = self.make_room(&mut committer)?;
        let result = self.log_and_apply(&mut committer, &state, group);
        let pause = self.pause_due(&mut committer, state.cells.len(), group);
        drop((committer, state));
        if let Err(error) = &result {
            self.note_failure(error);
        }
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        result
    }

    fn log_and_apply<R: Deref<Target = Request>>(
        &self,
        committer: &mut Committer,
        state: &State,
        group: &[R],
    ) -> Result<(), Error> {
        let first = committer.next_seq;
        let numbered = || (first..).zip(group.iter().filter(|r| !r.changes.is_empty()));
        let Committer { log, out, durable_seq, .. } = &mut *committer;
        if let Some(log) = log {
            let written = log.append(numbered().map(|(seq, r)| (seq, &r.payload[..])), *durable_seq, out);
            out.clear();
            out.shrink_to(OUT_KEPT_BYTES);
            self.context.counters.log_bytes.fetch_add(written?, Ordering::Relaxed);
        }
        assert!(state.active.last_seq() < first, "batch {first} is in the buffer before it is written");
        committer.next_seq = first + numbered().count() as u64;
        if group.iter().any(|r| r.sync) && !failpoint::is_active("cona.ack_before_sync") {
            committer.sync(self)?;
        }
        let batches = numbered().map(|(seq, r)| (seq, &r.changes[..]));
        let hides = |key: &[u8], hash| may_hide(&state.cells, self.options.shape, key, hash);
        state.active.apply(batches, &self.snapshots.newest, &self.visible_seq, hides);
        Ok(())
    }

    /// While many cells wait for merges, returns a pause for the writer once per [`PAUSE_BYTES`] written.
    fn pause_due<R: Deref<Target = Request>>(
        &self,
        committer: &mut Committer,
        cells: usize,
        group: &[R],
    ) -> Option<Duration> {
        if cells <= CELLS_AT_EASE || self.options.background == Background::Inline {
            return None;
        }
        committer.since_pause += group.iter().map(|r| r.payload.len() as u64).sum::<u64>();
        if committer.since_pause < PAUSE_BYTES {
            return None;
        }
        committer.since_pause = 0;
        let pause = Duration::from_micros(100 * (cells - CELLS_AT_EASE).min(100) as u64);
        self.context.counters.wait_us.fetch_add(pause.as_micros() as u64, Ordering::Relaxed);
        Some(pause)
    }

    /// Begins a new buffer if the active one is full, and waits if no buffer is free. Returns the state to write to.
    /// Only the holder of the committer changes its active buffer.
    fn make_room(self: &Arc<Self>, committer: &mut Committer) -> Result<Arc<State>, Error> {
        let state = self.current();
        let log_full = committer.log.as_ref().is_some_and(|log| log.bytes() >= self.options.log_bytes_max());
        if state.active.bytes() < self.options.buffer_bytes && !log_full && !self.hides_much(&state) {
            return Ok(state);
        }
        drop(state);
        let begun = Instant::now();
        let free = self.options.buffers as usize - 1;
        while self.current().frozen.len() >= free {
            self.check_running()?;
            if self.options.background == Background::Inline {
                let done = self.work_until_done();
                if self.current().frozen.len() >= free {
                    done?;
                }
                continue;
            }
            let mut signal = self.signal.lock();
            if self.current().frozen.len() >= free && self.failures.lock().flush.is_none() {
                self.changed.wait_for(&mut signal, Duration::from_millis(100));
            }
            drop(signal);
            if self.current().frozen.len() >= free
                && let Some(error) = self.failures.lock().flush.clone()
            {
                return Err(error);
            }
        }
        while self.current().cells.len() > CELLS_MAX && self.merges_go_on() {
            self.check_running()?;
            let mut signal = self.signal.lock();
            self.changed.wait_for(&mut signal, Duration::from_millis(5));
        }
        self.context.counters.wait_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.rotate(committer)?;
        if self.options.background == Background::Inline {
            // The batch at hand does not depend on this work. Work that fails is retried when a buffer is needed.
            let _ = self.work_until_done();
        }
        Ok(self.current())
    }

    /// True if the deletes in the active buffer hide so many bytes that it should become a cell, which a fold can count:
    /// deletes of large records are small, so many fit a buffer.
    fn hides_much(&self, state: &State) -> bool {
        let count = state.active.hidden();
        let Some(oldest) = state.cells.last().filter(|_| count > 0) else { return false };
        let hidden = count.saturating_mul(oldest.usual_bytes());
        hidden >= self.options.buffer_bytes.max(oldest.footer.user_bytes / HIDDEN_SHARE)
    }

    /// Freezes the active buffer and begins a new one with its own log.
    pub(crate) fn rotate(&self, committer: &mut Committer) -> Result<(), Error> {
        let logged = self.options.logged && self.context.durable;
        let log = if logged {
            Some(Log::create(&self.context, self.new_file(), self.options.log_step_bytes())?)
        } else {
            None
        };
        let active = Arc::new(Buffer::new(self.options.buffer_bytes));
        active.logs.lock().extend(log.as_ref().map(|log| log.number));
        let old = std::mem::replace(&mut committer.log, log);
        let number = |log: &Option<Log>| log.as_ref().map_or(0, |log| log.number);
        assert!(!logged || number(&committer.log) > number(&old), "log {} is used again", number(&committer.log));
        committer.older.extend(old);
        self.change_state(|state| {
            let mut frozen = vec![state.active.clone()];
            frozen.extend_from_slice(&state.frozen);
            State { active, frozen, ..state.clone() }
        });
        // Logs whose batches are all in cells need no sync.
        let needed: Vec<u64> = self.current().frozen.iter().flat_map(|b| b.logs.lock().clone()).collect();
        committer.older.retain(|log| log.dirty && needed.contains(&log.number));
        self.notify();
        Ok(())
    }

    /// Makes batches durable that were acknowledged without a sync.
    pub(crate) fn sync_log(&self) -> Result<(), Error> {
        self.check_running()?;
        let mut committer = self.committer.lock();
        let result = committer.sync(self);
        if let Err(error) = &result {
            self.note_failure(error);
        }
        result
    }

    /// Removes logs whose batches are all in cells.
    pub(crate) fn remove_logs(&self, numbers: &[u64]) {
        for number in numbers {
            let _ = self.context.disk.remove(&self.context.path(&log_name(*number)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::OUT_KEPT_BYTES;
    use crate::{Error, Options, Store};

    fn store() -> Arc<Store> {
        Arc::new(Store::open_on(Arc::new(tessera_disk::SimDisk::new(0)), "", Options::default()).unwrap())
    }

    /// Writers behind a leader that panicked get an error. None of them waits for ever.
    #[test]
    fn a_leader_that_panics_leaves_no_writer_waiting() {
        let store = store();
        store.put(b"a", b"1").unwrap();
        // No batch may have this sequence again, as the leader finds out.
        let mut committer = store.shared.committer.lock();
        committer.next_seq = 0;
        let (sender, outcomes) = mpsc::channel();
        let writers = (0..4_u8).map(|n| {
            let (store, sender) = (store.clone(), sender.clone());
            std::thread::spawn(move || {
                let done = store.put(&[n], b"2");
                sender.send(done).unwrap();
            })
        });
        let writers: Vec<_> = writers.collect();
        std::thread::sleep(Duration::from_millis(50));
        drop((committer, sender));
        let written: Vec<_> = std::iter::from_fn(|| outcomes.recv_timeout(Duration::from_secs(5)).ok()).collect();
        assert!(
            written.len() == 3 && written.iter().all(|done| matches!(done, Err(Error::Stopped { .. }))),
            "{written:?}"
        );
        assert_eq!(writers.into_iter().filter_map(|writer| writer.join().err()).count(), 1);
        assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    }

    /// The memory of a large group is given back.
    #[test]
    fn a_large_group_leaves_no_large_buffer() {
        let store = store();
        store.put(b"a", &vec![1; 8 << 20]).unwrap();
        let kept = store.shared.committer.lock().out.capacity();
        assert!(kept <= OUT_KEPT_BYTES, "{kept} bytes");
    }
}
