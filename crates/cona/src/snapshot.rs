//! Snapshots and scans. A reader keeps its buffers and cells alive while writes and merges continue.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::buffer::BufferCursor;
use crate::error::Error;
use crate::index::hash_key;
use crate::merge::{CellCursor, Cursor, Merger};
use crate::state::{Shared, State};

/// Pages that a scan reads ahead: initially, and at most.
const SCAN_AHEAD: (u32, u32) = (2, 64);

/// Sequences that open snapshots need.
#[derive(Default)]
pub(crate) struct Registry {
    live: Mutex<BTreeMap<u64, u64>>,
    /// The newest of them. Versions up to it must be kept.
    pub(crate) newest: AtomicU64,
}

impl Registry {
    fn add(&self, seq: u64) {
        let mut live = self.live.lock();
        *live.entry(seq).or_default() += 1;
        self.newest.store(live.last_key_value().map_or(0, |(seq, _)| *seq), Ordering::Release);
    }

    fn remove(&self, seq: u64) {
        let mut live = self.live.lock();
        let count = live.get_mut(&seq);
        assert!(count.as_ref().is_some_and(|count| **count > 0), "snapshot {seq} is dropped twice");
        if let Some(count) = count {
            *count -= 1;
            if *count == 0 {
                live.remove(&seq);
            }
        }
        self.newest.store(live.last_key_value().map_or(0, |(seq, _)| *seq), Ordering::Release);
    }
}

/// The state of the store at one moment. Keeps the files it needs until it is dropped.
pub struct Snapshot {
    pub(crate) state: Arc<State>,
    seq: u64,
    /// Must be dropped after `state`.
    registration: Arc<Registration>,
}

/// Keeps the versions that a snapshot and its scans need.
struct Registration {
    shared: Arc<Shared>,
    seq: u64,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.snapshots.remove(self.seq);
        self.shared.remove_obsolete_files();
    }
}

impl Snapshot {
    pub(crate) fn take(shared: &Arc<Shared>) -> Self {
        let state = shared.current();
        // No batch is being applied here, so no version that this snapshot needs can be dropped before the snapshot is
        // registered. If the buffer was frozen just now, later batches are in a buffer that this state does not have;
        // the state is still a prefix.
        let seq = state.active.quietly(|| {
            let seq = shared.visible_seq.load(Ordering::Acquire);
            shared.snapshots.add(seq);
            seq
        });
        Snapshot { state, seq, registration: Arc::new(Registration { shared: shared.clone(), seq }) }
    }

    /// The value of a key at that moment.
    ///
    /// # Errors
    /// [`Error::Damaged`] or the disk's.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let hash = hash_key(key);
        match self.state.in_buffers(key, hash, self.seq) {
            Some(value) => Ok(value.map(|v| v.to_vec())),
            None => self.state.in_cells(key, hash),
        }
    }

    fn buffer_cursors(&self, from: &[u8]) -> Vec<Cursor> {
        let buffers = std::iter::once(&self.state.active).chain(&self.state.frozen);
        buffers.map(|b| Cursor::Buffer(BufferCursor::seek(b.clone(), self.seq, from))).collect()
    }

    /// A merger over the buffers, deletes included.
    pub(crate) fn buffers(&self) -> Merger {
        Merger::new(self.buffer_cursors(&[]))
    }

    /// All records with keys in `range`, in bytewise key order.
    ///
    /// # Errors
    /// As for [`Snapshot::get`], also from each step.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<Scan, Error> {
        let (from, skip) = match range.start_bound() {
            Bound::Included(key) => (key.to_vec(), None),
            Bound::Excluded(key) => (key.to_vec(), Some(key.to_vec())),
            Bound::Unbounded => (Vec::new(), None),
        };
        let end = range.end_bound().map(|key| key.to_vec());
        let mut sources = self.buffer_cursors(&from);
        for cell in self.state.cells.iter() {
            let cursor = CellCursor::seek(cell.clone(), &from, SCAN_AHEAD.0, SCAN_AHEAD.1)?;
            sources.push(Cursor::Cell(Box::new(cursor)));
        }
        let _registration = self.registration.clone();
        Ok(Scan { merger: Merger::new(sources), skip, end, failed: false, _registration })
    }

    /// All records whose keys begin with `prefix`, in key order.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn prefix(&self, prefix: &[u8]) -> Result<Scan, Error> {
        match after_prefix(prefix) {
            Some(end) => self.range((Bound::Included(prefix), Bound::Excluded(&end[..]))),
            None => self.range((Bound::Included(prefix), Bound::Unbounded)),
        }
    }
}

/// The smallest key above all keys that begin with `prefix`.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&byte| byte < 255)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end)
}

/// An iterator over records in key order. After an error it ends. It sees its snapshot even once that is dropped.
pub struct Scan {
    merger: Merger,
    skip: Option<Vec<u8>>,
    end: Bound<Vec<u8>>,
    failed: bool,
    /// Must be dropped after `merger`.
    _registration: Arc<Registration>,
}

impl Iterator for Scan {
    type Item = Result<crate::store::Pair, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let (key, value) = self.merger.current(false)?;
            let end = self.end.as_ref().map(|end| &end[..]);
            if !(Bound::Unbounded, end).contains(key) {
                return None;
            }
            let skipped = self.skip.as_deref() == Some(key);
            let item = value.filter(|_| !skipped).map(|value| (key.to_vec(), value.to_vec()));
            if let Err(error) = self.merger.advance() {
                // Return the error first, and no record after it: a record could be missing in between.
                self.failed = true;
                return Some(Err(error));
            }
            if let Some(item) = item {
                return Some(Ok(item));
            }
        }
        None
    }
}
