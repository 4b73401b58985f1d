//! Snapshots and scans. A reader keeps its buffers and cells alive while writes and merges continue.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::buffer::BufferCursor;
use crate::cell::Cell;
use crate::error::Error;
use crate::index::hash_key;
use crate::merge::{Ahead, CellCursor, Cursor, Merger};
use crate::page::Content;
use crate::state::{Shared, State};

/// Most pages that a scan reads at once from a cell.
const SCAN_AHEAD_MAX: u32 = 64;
/// Values that a scan asks for at once where reads are slow.
const VALUES_AHEAD: usize = 16;
/// Nanoseconds that scans wait for the first page of a cell above which they ask for the pages of all cells before they
/// read the first: pages of memory come faster, and a flash reads several pages at once in little more time than one.
const SEEK_SLOW_NS: u64 = 10_000;

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
        self.range_at_most(range, usize::MAX)
    }

    /// The first `limit` records with keys in `range`. Reads no more pages than so many records are likely to need, so
    /// short scans read less than with [`Snapshot::range`].
    ///
    /// # Errors
    /// As for [`Snapshot::get`], also from each step.
    pub fn range_at_most<'k>(&self, range: impl RangeBounds<&'k [u8]>, limit: usize) -> Result<Scan, Error> {
        let (from, skip) = match range.start_bound() {
            Bound::Included(key) => (*key, None),
            Bound::Excluded(key) => (*key, Some(key.to_vec())),
            Bound::Unbounded => (&[][..], None),
        };
        let end = range.end_bound().map(|key| key.to_vec());
        let mut sources = self.buffer_cursors(from);
        sources.retain(|source| source.current().is_some());
        let slow = self.registration.shared.context.seek_ns.load(Ordering::Relaxed) > SEEK_SLOW_NS;
        self.seek_cells(from, end.as_ref().map(|end| &end[..]), limit, &mut sources)?;
        let _registration = self.registration.clone();
        Ok(Scan {
            merger: Merger::new(sources),
            skip,
            end,
            value: Vec::new(),
            slow,
            asked: 0,
            left: limit,
            moved: true,
            failed: false,
            _registration,
        })
    }

    /// Adds cursors over the cells that reach into `from..end`.
    fn seek_cells(&self, from: &[u8], end: Bound<&[u8]>, limit: usize, sources: &mut Vec<Cursor>) -> Result<(), Error> {
        let cells = || {
            let reach = |cell: &&Arc<Cell>| from <= &cell.last_key[..] && begins_before(&cell.first_key, end);
            self.state.cells.iter().filter(reach)
        };
        let count = cells().count() as u64;
        if count == 0 {
            return Ok(());
        }
        let records: u64 = cells().map(|cell| cell.footer.records).sum();
        let seek_ns = &self.registration.shared.context.seek_ns;
        let mean = seek_ns.load(Ordering::Relaxed);
        let slow = mean > SEEK_SLOW_NS;
        if slow && count > 1 {
            for cell in cells() {
                let (page, first) = first_read(cell, from, limit, records, slow);
                cell.will_read(page, first);
            }
        }
        let begun = Instant::now();
        for cell in cells() {
            let (page, first) = first_read(cell, from, limit, records, slow);
            let ahead = Ahead { first, then: 1, max: SCAN_AHEAD_MAX };
            sources.push(Cursor::Cell(Box::new(CellCursor::seek_at(cell.clone(), page, from, ahead)?)));
        }
        let now = begun.elapsed().as_nanos() as u64 / count;
        seek_ns.store(mean - mean / 4 + now / 4, Ordering::Relaxed);
        Ok(())
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

fn begins_before(first_key: &[u8], end: Bound<&[u8]>) -> bool {
    match end {
        Bound::Included(end) => first_key <= end,
        Bound::Excluded(end) => first_key < end,
        Bound::Unbounded => true,
    }
}

/// The page at which a scan of at most `limit` records from `from` on begins in a cell, and the pages that it will read
/// there if the `records` of all cells are mixed well: on average, or, where reads are slow, at most.
fn first_read(cell: &Cell, from: &[u8], limit: usize, records: u64, slow: bool) -> (u32, u32) {
    let (page, last) = cell.pages_from(from);
    let records = records.max(1);
    let pages = (limit as u64).saturating_mul(u64::from(cell.footer.pages));
    let share = pages.saturating_add(if slow { records - 1 } else { records / 2 }) / records;
    let share = if limit == usize::MAX { 0 } else { share.min(u64::from(SCAN_AHEAD_MAX)) as u32 };
    (page, (last - page + 1 + share).min(SCAN_AHEAD_MAX))
}

/// The smallest key above all keys that begin with `prefix`.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&byte| byte < 255)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end)
}

/// The records of a range in key order. After an error it ends. It sees its snapshot even once that is dropped.
///
/// As an iterator it copies each record; [`Scan::next_record`] lends it.
pub struct Scan {
    merger: Merger,
    skip: Option<Vec<u8>>,
    end: Bound<Vec<u8>>,
    /// The current value, if it was read from a value file.
    value: Vec<u8>,
    /// Reads were slow when the scan began: it asks for several values before it reads the first of them.
    slow: bool,
    /// Records until it asks again.
    asked: usize,
    /// Records that may still be returned.
    left: usize,
    /// The current record of the merger was not returned yet.
    moved: bool,
    failed: bool,
    /// Must be dropped after `merger`.
    _registration: Arc<Registration>,
}

/// A key and its value, lent by a scan until its next step.
pub type Record<'a> = (&'a [u8], &'a [u8]);

impl Scan {
    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Damaged`] or the disk's. The scan has then ended: a record could be missing.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, Error> {
        if self.failed || self.left == 0 || !self.find().inspect_err(|_| self.failed = true)? {
            return Ok(None);
        }
        if self.slow && self.asked == 0 {
            self.asked = VALUES_AHEAD.min(self.left);
            let end = self.end.as_ref().map(|end| &end[..]);
            self.merger.will_read_values(self.asked, |key, _| begins_before(key, end));
        }
        self.asked = self.asked.saturating_sub(1);
        self.left -= 1;
        self.moved = false;
        Ok(match self.merger.current(false) {
            None | Some((_, Content::Delete)) => None,
            Some((key, Content::Value(value))) => Some((key, value)),
            Some((key, Content::Apart(pointer))) => {
                self.merger.read(&pointer, &mut self.value).inspect_err(|_| self.failed = true)?;
                Some((key, &self.value))
            }
        })
    }

    /// Moves the merger to the next record that is to be returned. False if there is none.
    fn find(&mut self) -> Result<bool, Error> {
        loop {
            if !std::mem::replace(&mut self.moved, true) {
                self.merger.advance()?;
            }
            let Some((key, content)) = self.merger.current(false) else { return self.ended() };
            if !begins_before(key, self.end.as_ref().map(|end| &end[..])) {
                return self.ended();
            }
            if !content.is_delete() && self.skip.as_deref() != Some(key) {
                return Ok(true);
            }
            self.moved = false;
        }
    }

    fn ended(&mut self) -> Result<bool, Error> {
        self.left = 0;
        Ok(false)
    }
}

impl Iterator for Scan {
    type Item = Result<crate::store::Pair, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.next_record().transpose()?;
        Some(record.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }
}
