//! [`Store`]: the public API.

use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_disk::{Disk, DiskLock, RealDisk};
use tessera_failpoint as failpoint;

use crate::buffer::{Change, SmallKey};
use crate::error::Error;
use crate::index::hash_key;
use crate::open;
use crate::options::{Background, Durability, Options, check_batch, check_key, check_value};
use crate::page::record_bytes;
use crate::snapshot::{Scan, Snapshot};
use crate::state::{Failures, Shared, StopOnPanic};
use crate::stats::{self, Compaction, Stats};

/// An atomic set of changes. Of several changes of one key, the last counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    changes: Vec<Change>,
    /// Bytes of the changes in the log.
    bytes: u64,
    error: Option<Error>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key's value. The write reports a key, a value or a batch that is too long.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.push(key, check_value(value), Some(value))
    }

    /// Removes a key if it is present.
    pub fn delete(&mut self, key: &[u8]) -> &mut Self {
        self.push(key, Ok(()), None)
    }

    fn push(&mut self, key: &[u8], value_ok: Result<(), Error>, value: Option<&[u8]>) -> &mut Self {
        let bytes = self.bytes.saturating_add(record_bytes(key, value) as u64);
        match check_key(key).and(value_ok).and_then(|()| check_batch(bytes)) {
            Ok(()) => {
                self.bytes = bytes;
                self.changes.push(Change { key: SmallKey::new(key), hash: hash_key(key), value: value.map(Arc::from) })
            }
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// True if the batch has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A sorted key-value store on a disk. All methods may be called from many threads at once.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    _lock: Option<DiskLock>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("place", &self.shared.context.describe()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in a directory, or creates one there if [`Options::create`] allows it.
    ///
    /// # Errors
    /// [`Error::Locked`] if it is open elsewhere, [`Error::ReadOnly`], [`Error::NewerFormat`], [`Error::Damaged`], or the disk's.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let path = path.as_ref();
        let disk = if options.create { RealDisk::create(path) } else { RealDisk::open(path) };
        let disk = disk.map_err(|e| match e {
            tessera_disk::DiskError::Io { source, .. } if source.kind() != std::io::ErrorKind::NotADirectory => {
                Error::ReadOnly { dir: path.display().to_string(), reason: source.to_string() }
            }
            tessera_disk::DiskError::NotFound { .. } => Error::NotAStore { dir: path.display().to_string() },
            other => other.into(),
        })?;
        Self::open_on(Arc::new(disk), "", options)
    }

    /// Opens the store in directory `dir` (`""`: the root) of a disk.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn open_on(disk: Arc<dyn Disk>, dir: &str, options: Options) -> Result<Self, Error> {
        let refused = |e: tessera_disk::DiskError| match e {
            tessera_disk::DiskError::Io { source, .. } => {
                Error::ReadOnly { dir: disk.describe(), reason: source.to_string() }
            }
            other => other.into(),
        };
        let lock = if options.lock { Some(disk.lock().map_err(refused)?) } else { None };
        let background = options.background;
        let shared = open::open(disk, dir, options)?;
        let count = if let Background::Threads(count) = background { count } else { 0 };
        let mut workers = Vec::new();
        for i in 0..count {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("cona-{i}"));
            let failpoints = failpoint::inherit();
            let spawned = thread.spawn(move || {
                failpoints.enter();
                let _stop = StopOnPanic(&shared);
                shared.work_loop();
            });
            workers.push(spawned.map_err(|source| {
                let (path, op) = ("worker thread".into(), tessera_disk::DiskOp::Open);
                Error::from(tessera_disk::DiskError::Io { path, op, offset: 0, source })
            })?);
        }
        Ok(Store { shared, workers, _lock: lock })
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`Error::Damaged`] or the disk's; never a wrong value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.shared.get(key)
    }

    /// Sets a key's value with the durability of the options.
    ///
    /// # Errors
    /// [`Error::EmptyKey`], [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::NoSpace`] (nothing was written;
    /// retry when there is space), [`Error::Stopped`], or the disk's. After any error except the first three, a restart
    /// may find the write done.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.write(std::mem::take(Batch::new().put(key, value)))
    }

    /// Removes a key if it is present.
    ///
    /// # Errors
    /// As for [`Store::put`].
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.write(std::mem::take(Batch::new().delete(key)))
    }

    /// Writes a batch atomically.
    ///
    /// # Errors
    /// As for [`Store::put`], and [`Error::BatchTooLong`] (nothing was written).
    pub fn write(&self, batch: Batch) -> Result<(), Error> {
        self.write_with(batch, self.shared.options.durability)
    }

    /// Writes a batch atomically, with its own durability.
    ///
    /// # Errors
    /// As for [`Store::write`].
    pub fn write_with(&self, batch: Batch, durability: Durability) -> Result<(), Error> {
        if let Some(error) = batch.error {
            return Err(error);
        }
        if batch.changes.is_empty() {
            return Ok(());
        }
        self.shared.commit(batch.changes, durability)?;
        // Without a log only cells are durable.
        if durability == Durability::Sync && !self.shared.options.logged { self.flush() } else { Ok(()) }
    }

    /// Makes writes durable that were acknowledged without a sync.
    ///
    /// # Errors
    /// The disk's; the store then rejects further writes.
    pub fn sync(&self) -> Result<(), Error> {
        if !self.shared.options.logged {
            return self.flush();
        }
        self.shared.sync_log()
    }

    /// Takes a snapshot of the current state.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.shared)
    }

    /// All current records with keys in `range`, in key order.
    ///
    /// # Errors
    /// As for [`Store::get`], also from each step.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<Scan, Error> {
        self.snapshot().range(range)
    }

    /// The first `limit` current records with keys in `range`; see [`Snapshot::range_at_most`].
    ///
    /// # Errors
    /// As for [`Store::get`], also from each step.
    pub fn range_at_most<'k>(&self, range: impl RangeBounds<&'k [u8]>, limit: usize) -> Result<Scan, Error> {
        self.snapshot().range_at_most(range, limit)
    }

    /// All current records whose keys begin with `prefix`, in key order.
    ///
    /// # Errors
    /// As for [`Store::get`], also from each step.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Scan, Error> {
        self.snapshot().prefix(prefix)
    }

    /// Turns the insert buffers into cells.
    ///
    /// # Errors
    /// The disk's. A merge that fails is no failure of this.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.check_running()?;
        if !self.shared.current().active.is_empty() {
            let mut committer = self.shared.committer.lock();
            self.shared.rotate(&mut committer)?;
        }
        self.wait(|shared| shared.current().frozen.is_empty(), |failures| failures.flush.clone())
    }

    /// Like [`Store::flush`], but does not wait (unless the store has no threads). Does nothing if no buffer is free: a
    /// flush is then in progress.
    ///
    /// # Errors
    /// The disk's, from creating the next log. A failed flush is retried; later writes and [`Store::stats`] report it.
    pub fn flush_soon(&self) -> Result<(), Error> {
        self.shared.check_running()?;
        let mut committer = self.shared.committer.lock();
        let state = self.shared.current();
        if !state.active.is_empty() && state.frozen.len() + 1 < self.shared.options.buffers as usize {
            drop(state);
            self.shared.rotate(&mut committer)?;
        }
        drop(committer);
        if self.workers.is_empty() {
            let _ = self.shared.work_until_done();
        }
        Ok(())
    }

    /// Waits until no merge is due. One that would only write values anew is not due while the disk has no room for them.
    ///
    /// # Errors
    /// The disk's.
    pub fn settle(&self) -> Result<(), Error> {
        self.wait(Shared::is_idle, |failures| failures.flush.clone().or_else(|| failures.merge.clone()))
    }

    /// Merges everything into one cell. No deleted or overwritten byte is left of what was written before. Returns what it
    /// did.
    ///
    /// # Errors
    /// The disk's, or [`Error::Damaged`]; [`Error::NoSpace`] also if there is no room to write living values anew.
    pub fn compact(&self) -> Result<Compaction, Error> {
        self.flush()?;
        let before = self.stats();
        self.settle()?;
        // The first merge finds out which values are dead; if any are in a file that lives on, a second one removes them.
        for _ in 0..2 {
            let now = self.stats();
            if now.cells.len() as u64 + now.cell_deletes + now.value_dead_bytes <= 1 {
                break;
            }
            let mut jobs = self.shared.jobs.lock();
            (jobs.whole, jobs.whole_failure) = (true, None);
            drop(jobs);
            self.shared.notify();
            self.settle()?;
            self.shared.jobs.lock().whole_failure.take().map_or(Ok(()), Err)?;
        }
        // No merge takes a damaged cell, so one that was found before hinders this too.
        let damage = self.shared.current().cells.iter().find_map(|cell| cell.damage.get().cloned());
        let hindrance = damage.or_else(|| self.shared.lacks_room());
        hindrance.map_or_else(|| Ok(Compaction::between(&before, &self.stats())), Err)
    }

    /// Works, or waits for the threads, until `done`, or until there is a failure that `failed` looks at.
    fn wait(&self, done: fn(&Shared) -> bool, failed: fn(&Failures) -> Option<Error>) -> Result<(), Error> {
        let shared = &self.shared;
        shared.failures.lock().forget();
        shared.notify();
        loop {
            if done(shared) {
                shared.remove_obsolete_files();
                return Ok(());
            }
            shared.check_running()?;
            let worked = if self.workers.is_empty() { shared.work_until_done() } else { Ok(()) };
            let failure = failed(&shared.failures.lock());
            failure.map_or(Ok(()), Err)?;
            if self.workers.is_empty() {
                // What failed is not waited for, or the store has stopped.
                worked.or_else(|error| if done(shared) { Ok(()) } else { Err(error) })?;
                continue;
            }
            let mut signal = shared.signal.lock();
            shared.changed.wait_for(&mut signal, Duration::from_millis(20));
        }
    }

    /// Statistics of this store since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        stats::collect(&self.shared)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.notify();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        self.shared.drop_jobs();
        self.shared.remove_obsolete_files();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::BATCH_BYTES_MAX;

    /// P14: a batch that no frame of the log can hold is refused as a whole, before it is written.
    #[test]
    fn a_batch_that_is_too_long_is_refused() {
        let store = Store::open_on(Arc::new(tessera_disk::SimDisk::new(0)), "", Options::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(b"a", b"1");
        assert_eq!(batch.bytes, 4);
        // As if it had so many bytes already: to have them takes 4 GiB.
        batch.bytes = BATCH_BYTES_MAX - 4;
        batch.put(b"b", b"2");
        assert!(batch.error.is_none() && batch.bytes == BATCH_BYTES_MAX);
        batch.delete(b"c");
        let error = store.write(batch).unwrap_err();
        assert!(matches!(error, Error::BatchTooLong { len_bytes: 4_294_967_298 }), "{error}");
        assert_eq!(store.get(b"a").unwrap(), None);
    }
    /// Neither a flush nor a writer waits for a background thread that has panicked.
    #[test]
    fn a_background_thread_that_panics_stops_the_store() {
        let disk = Arc::new(tessera_disk::SimDisk::new(0));
        let options = Options { buffer_bytes: 4096, logged: false, ..Options::default() };
        let store = Store::open_on(disk.clone(), "", options).unwrap();
        store.put(b"a", b"1").unwrap();
        store.flush().unwrap();
        // The next cell gets the number of this one, as the thread finds out.
        let number = store.shared.current().cells[0].number();
        disk.remove(&crate::cell::cell_name(number)).unwrap();
        store.shared.next_file.store(number, Ordering::Relaxed);
        let store = Arc::new(store);
        let (sender, outcome) = std::sync::mpsc::channel();
        let writer = store.clone();
        std::thread::spawn(move || {
            writer.put(b"b", b"2").unwrap();
            let _ = sender.send(writer.flush());
            let _ = sender.send((0..1000_u32).try_for_each(|n| writer.put(&n.to_be_bytes(), &[1; 100])));
        });
        for _ in 0..2 {
            let done = outcome.recv_timeout(Duration::from_secs(5)).expect("a caller waits for a dead thread");
            assert!(matches!(done, Err(Error::Stopped { .. })), "{done:?}");
        }
    }
}
