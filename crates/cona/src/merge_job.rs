//! Flushes and merges. A flush turns a full buffer into a cell; a merge turns neighbouring cells into one. Merges run
//! slice by slice, so a flush never waits for a long merge.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tessera_failpoint as failpoint;

use crate::backup::verify_cell;
use crate::buffer::Buffer;
use crate::cell::Cell;
use crate::cell_writer::CellWriter;
use crate::error::Error;
use crate::index::hash_key;
use crate::merge::Merger;
use crate::options::{Background, Shape};
use crate::page::Content;
use crate::plan::{self, Plan, View};
use crate::publish::discard;
use crate::relocation::{relocation_bytes, values_due, values_to_relocate};
use crate::state::Shared;
use crate::values::Pointer;

/// Bytes that a merge reads ahead from each cell.
const AHEAD_BYTES: u32 = 512 << 10;

/// Records after which a merge asks for the values of as many that it writes anew.
const VALUES_AHEAD: usize = 64;

/// Work in progress.
#[derive(Default)]
pub(crate) struct Jobs {
    waiting: Vec<MergeJob>,
    flushing: bool,
    /// Numbers of the cells that are being merged.
    busy: HashSet<u64>,
    /// Merge everything into one cell once no cell is busy.
    pub(crate) whole: bool,
    /// Why the last merge failed that was to leave one cell.
    pub(crate) whole_failure: Option<Error>,
}

/// A merge that can pause and resume.
struct MergeJob {
    /// Newest first.
    inputs: Vec<Arc<Cell>>,
    merger: Merger,
    writer: CellWriter,
    oldest: bool,
    /// It is to leave one cell.
    whole: bool,
    /// Numbers of the value files whose values are written anew.
    relocate: HashSet<u64>,
    /// A value that is written anew.
    value: Vec<u8>,
    /// Records until the merge asks for values again.
    asked: usize,
    done_bytes: u64,
    total_bytes: u64,
}

/// Adds the duration of `work` to `us` if it did anything.
fn timed(us: &AtomicU64, work: impl FnOnce() -> Result<bool, Error>) -> Result<bool, Error> {
    let begun = Instant::now();
    let done = work();
    if !matches!(done, Ok(false)) {
        us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
    done
}

impl Shared {
    /// Does one piece of the work that is due. Returns false if nothing is due.
    pub(crate) fn work_step(&self) -> Result<bool, Error> {
        self.check_running()?;
        let counters = &self.context.counters;
        let may_flush = self.may_try(|failures| &failures.flush_retry);
        let flushed = if may_flush { timed(&counters.flush_us, || self.flush_one()) } else { Ok(false) };
        // After a failed flush, too: a merge may free the space that it lacked.
        let merge = || timed(&counters.merge_us, || self.merge_slice());
        let merged = if matches!(flushed, Ok(true)) { Ok(false) } else { merge() };
        self.remove_obsolete_files();
        self.note_outcome(&flushed, &merged);
        if matches!(merged, Ok(true)) { merged } else { flushed.and_then(|done| Ok(done | merged?)) }
    }

    fn note_outcome(&self, flushed: &Result<bool, Error>, merged: &Result<bool, Error>) {
        let mut failures = self.failures.lock();
        match flushed {
            Ok(true) => (failures.flush, failures.flush_retry) = Default::default(),
            Ok(false) => {}
            Err(error) => {
                failures.flush = Some(error.clone());
                failures.flush_retry.failed();
            }
        }
        drop(failures);
        for error in [flushed, merged].into_iter().filter_map(|done| done.as_ref().err()) {
            self.note_failure(error);
            self.notify();
        }
    }

    /// Notes how a merge ended, before anybody can see that it did.
    fn note_merge(&self, outcome: &Result<(), Error>) {
        let mut failures = self.failures.lock();
        match outcome {
            Ok(()) => (failures.merge, failures.merge_retry) = Default::default(),
            Err(error) => {
                failures.merge = Some(error.clone());
                failures.merge_retry.failed();
            }
        }
    }

    /// Does all the work that is due.
    pub(crate) fn work_until_done(&self) -> Result<(), Error> {
        while self.work_step()? {}
        Ok(())
    }

    /// The loop of a background thread.
    pub(crate) fn work_loop(&self) {
        loop {
            let seen = *self.signal.lock();
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            if matches!(self.work_step(), Ok(true)) {
                continue;
            }
            // Nothing to do, or a failure that may pass: wait for a signal, with a timeout. What failed is not tried
            // before its time, whatever signals come.
            let pause = self.failures.lock().pause();
            let mut signal = self.signal.lock();
            if *signal == seen && !self.stopping.load(Ordering::Acquire) {
                self.changed.wait_for(&mut signal, pause);
            }
        }
    }

    /// Turns the oldest full buffer into a cell.
    fn flush_one(&self) -> Result<bool, Error> {
        let state = self.current();
        let Some(buffer) = state.frozen.last().cloned() else { return Ok(false) };
        if std::mem::replace(&mut self.jobs.lock().flushing, true) {
            return Ok(false);
        }
        let result = if self.current().frozen.last().is_some_and(|b| Arc::ptr_eq(b, &buffer)) {
            self.flush(&buffer)
        } else {
            Ok(())
        };
        self.jobs.lock().flushing = false;
        self.notify();
        result.map(|()| true)
    }

    fn flush(&self, buffer: &Arc<Buffer>) -> Result<(), Error> {
        let logs = buffer.logs.lock().clone();
        if failpoint::is_active("cona.remove_log_early") {
            self.remove_logs(&logs);
        }
        // Without cells below and merges that will produce one, deletes hide nothing and can be dropped.
        let oldest = self.current().cells.is_empty();
        let cell = if buffer.is_empty() { None } else { self.write_buffer(buffer, oldest)? };
        self.context.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.publish(&[], cell, Some(buffer))?;
        self.remove_logs(&logs);
        Ok(())
    }

    fn write_buffer(&self, buffer: &Buffer, oldest: bool) -> Result<Option<Cell>, Error> {
        let mut writer = self.new_cell(0, oldest)?;
        // All that is older is in these cells, whatever is merged meanwhile.
        let cells = self.current().cells.clone();
        let may_hide = |key: &[u8]| {
            let hash = hash_key(key);
            cells.iter().any(|cell| cell.may_hold(key, hash))
        };
        // Other shapes do not weigh deletes.
        let weighed = matches!(self.options.shape, Shape::Folded { .. });
        let mut hiding = 0;
        let written = buffer.for_each(|key, value| {
            if value.is_none() && oldest {
                return Ok(());
            }
            hiding += u64::from(value.is_none() && weighed && may_hide(key));
            writer.add(key, Content::of(value), || ("insert buffer".into(), 0))
        });
        let mut cell = self.finish_cell(writer, written)?;
        if let Some(cell) = cell.as_mut().filter(|_| weighed) {
            cell.hiding = hiding;
        }
        Ok(cell)
    }

    fn new_cell(&self, level: u32, oldest: bool) -> Result<CellWriter, Error> {
        CellWriter::create(&self.context, self.new_file(), level, self.options.cell_shape(level, oldest))
    }

    /// Completes a cell. Removes it if it is empty or a write failed.
    fn finish_cell(&self, writer: CellWriter, written: Result<(), Error>) -> Result<Option<Cell>, Error> {
        if let Err(error) = written {
            writer.abandon();
            return Err(error);
        }
        if writer.records() == 0 {
            writer.abandon();
            return Ok(None);
        }
        let names = [crate::cell::cell_name(writer.number()), crate::values::values_name(writer.number())];
        let sync = self.context.durable && !failpoint::is_active("cona.cell_not_synced");
        let cell = writer.finish(sync).inspect_err(|_| {
            names.iter().for_each(|name| drop(self.context.disk.remove(&self.context.path(name))));
        })?;
        Ok(Some(cell))
    }

    fn due(&self, jobs: &Jobs, cells: &[Arc<Cell>]) -> Option<Plan> {
        let usual = cells.last().map_or(0, |c| c.usual_bytes());
        let delete = if failpoint::is_active("cona.deletes_weigh_nothing") {
            0
        } else {
            plan::delete_weight(usual, self.options.shape)
        };
        let views: Vec<View> = cells
            .iter()
            .map(|c| View {
                level: c.level,
                weight: c.footer.user_bytes.saturating_add(c.hiding.saturating_mul(delete)),
                busy: jobs.busy.contains(&c.number()),
                damaged: c.damage.get().is_some(),
            })
            .collect();
        let merge = if jobs.whole { plan::whole(&views) } else { plan::next(&views, self.options.shape) };
        merge.or_else(|| {
            let full = |at: &usize| {
                let inputs = std::slice::from_ref(&cells[*at]);
                views[*at].is_free() && values_due(&cells[*at], jobs.whole) && {
                    let relocate = values_to_relocate(inputs, self.options.buffer_bytes, jobs.whole);
                    self.has_room(relocation_bytes(inputs, &relocate))
                }
            };
            let at = (0..cells.len()).find(full)?;
            Some(Plan { from: at, to: at, level: cells[at].level })
        })
    }

    /// True if the disk has room for so many bytes, as far as it tells.
    fn has_room(&self, bytes: u64) -> bool {
        self.context.disk.space().map_or(true, |space| space.free_bytes >= bytes)
    }

    /// The failure that keeps dead values if the disk has no room to write those anew that live.
    pub(crate) fn lacks_room(&self) -> Option<Error> {
        let lacks = |cell: &Arc<Cell>| {
            let inputs = std::slice::from_ref(cell);
            let relocate = values_to_relocate(inputs, self.options.buffer_bytes, true);
            values_due(cell, true) && !self.has_room(relocation_bytes(inputs, &relocate))
        };
        let lacking = self.current().cells.iter().any(lacks);
        lacking.then(|| Error::NoSpace {
            what: format!("{}: values that are to be written anew", self.context.describe()),
        })
    }

    fn plan(&self, jobs: &mut Jobs) -> Result<Option<MergeJob>, Error> {
        let state = self.current();
        let cells = &state.cells;
        let (plan, whole) = (self.due(jobs, cells), jobs.whole);
        jobs.whole &= plan.is_none() && !jobs.busy.is_empty();
        let Some(plan) = plan else { return Ok(None) };
        let inputs = cells[plan.from..=plan.to].to_vec();
        assert!(inputs.iter().all(|c| !jobs.busy.contains(&c.number())), "a cell is in two merges");
        let job = self.begin_merge(inputs, plan.level, plan.to + 1 == cells.len(), whole);
        match &job {
            Ok(job) => jobs.busy.extend(job.inputs.iter().map(|c| c.number())),
            Err(error) => {
                self.note_merge(&Err(error.clone()));
                if whole {
                    jobs.whole_failure = Some(error.clone());
                }
            }
        }
        job.map(Some)
    }

    fn begin_merge(&self, inputs: Vec<Arc<Cell>>, level: u32, oldest: bool, whole: bool) -> Result<MergeJob, Error> {
        let ahead = (AHEAD_BYTES / self.options.page_bytes).max(1);
        let merger = Merger::of_cells(&inputs, ahead).inspect_err(|e| mark_damaged(&inputs, e))?;
        let mut writer = self.new_cell(level, oldest)?;
        let mut relocate = values_to_relocate(&inputs, self.options.buffer_bytes, whole);
        if !relocate.is_empty() && !self.has_room(relocation_bytes(&inputs, &relocate)) {
            relocate.clear();
        }
        writer.adopt(inputs.iter().flat_map(|c| &c.values).map(|owned| owned.file.clone()));
        let total_bytes = inputs.iter().map(|c| c.footer.user_bytes).sum();
        Ok(MergeJob {
            inputs,
            merger,
            writer,
            oldest,
            whole,
            relocate,
            value: Vec::new(),
            asked: 0,
            done_bytes: 0,
            total_bytes,
        })
    }

    /// Advances the merge with the least work left by one slice.
    fn merge_slice(&self) -> Result<bool, Error> {
        let may_begin = self.may_try(|failures| &failures.merge_retry);
        let mut jobs = self.jobs.lock();
        while may_begin && let Some(job) = self.plan(&mut jobs)? {
            jobs.waiting.push(job);
        }
        let left = |job: &MergeJob| job.total_bytes.saturating_sub(job.done_bytes);
        let Some(soonest) = (0..jobs.waiting.len()).min_by_key(|&i| left(&jobs.waiting[i])) else { return Ok(false) };
        let mut job = jobs.waiting.swap_remove(soonest);
        drop(jobs);
        match self.advance_merge(&mut job) {
            Ok(false) => {
                self.jobs.lock().waiting.push(job);
                Ok(true)
            }
            Ok(true) => self.finish_merge(job, Ok(())).map(|()| true),
            Err(error) => self.finish_merge(job, Err(error)).map(|()| true),
        }
    }

    /// Advances a merge by one slice. Returns true once it is complete.
    fn advance_merge(&self, job: &mut MergeJob) -> Result<bool, Error> {
        let mut moved = 0;
        let done = self.merge_records(job, &mut moved);
        self.context.counters.merged_records.fetch_add(moved, Ordering::Relaxed);
        done
    }

    fn merge_records(&self, job: &mut MergeJob, moved: &mut u64) -> Result<bool, Error> {
        let (mut bytes, limit) = (0, self.options.merge_slice_bytes);
        let limit = if self.options.background == Background::Inline { u64::MAX } else { limit };
        let keep_older = failpoint::is_active("cona.keep_older");
        let drop_deletes = job.oldest || failpoint::is_active("cona.drop_deletes_early");
        while let Some((key, content)) = job.merger.current(keep_older) {
            if job.asked == 0 && !job.relocate.is_empty() {
                let wanted = |_: &[u8], pointer: &Pointer| job.relocate.contains(&pointer.place.file);
                job.merger.will_read_values(VALUES_AHEAD, wanted);
                job.asked = VALUES_AHEAD;
            }
            job.asked = job.asked.saturating_sub(1);
            let content = match content {
                Content::Apart(pointer) if job.relocate.contains(&pointer.place.file) => {
                    job.merger.read(&pointer, &mut job.value)?;
                    Content::Value(&job.value)
                }
                content => content,
            };
            bytes += (key.len() + content.stored_bytes()) as u64;
            if !content.is_delete() || !drop_deletes {
                job.writer.add(key, content, || job.merger.origin())?;
            }
            *moved += job.merger.advance()?;
            if bytes >= limit {
                job.done_bytes += bytes;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn finish_merge(&self, job: MergeJob, merged: Result<(), Error>) -> Result<(), Error> {
        let MergeJob { inputs, merger, writer, whole, .. } = job;
        drop(merger);
        let result = self.finish_cell(writer, merged).and_then(|mut cell| {
            if let Some(cell) = &mut cell {
                cell.hiding = cell.hiding.min(inputs.iter().map(|input| input.hiding).sum());
            }
            check_inputs(&inputs, cell.as_ref()).inspect_err(|_| cell.iter().for_each(discard))?;
            self.publish(&inputs, cell, None)
        });
        if let Err(error) = &result {
            mark_damaged(&inputs, error);
        }
        self.note_merge(&result);
        let mut jobs = self.jobs.lock();
        inputs.iter().for_each(|c| {
            jobs.busy.remove(&c.number());
        });
        // Under the lock that tells whether anything is going on: whoever waits for this merge sees how it ended.
        if let (true, Err(error)) = (whole, &result) {
            jobs.whole_failure = Some(error.clone());
        }
        drop(jobs);
        drop(inputs);
        self.context.counters.merges.fetch_add(1, Ordering::Relaxed);
        self.notify();
        result
    }

    /// Abandons unfinished merges. The next opening removes their files.
    pub(crate) fn drop_jobs(&self) {
        let waiting = std::mem::take(&mut self.jobs.lock().waiting);
        waiting.into_iter().for_each(|job| job.writer.abandon());
    }

    /// Bytes of memory that merges hold.
    pub(crate) fn jobs_bytes(&self) -> u64 {
        self.jobs.lock().waiting.iter().map(|job| job.writer.heap_bytes() as u64).sum()
    }

    /// True if merges are running or due and the last one did not fail, so waiting for fewer cells ends.
    pub(crate) fn merges_go_on(&self) -> bool {
        let jobs = self.jobs.lock();
        let threads = self.options.background != Background::Inline && self.failures.lock().merge.is_none();
        threads && (!jobs.busy.is_empty() || self.due(&jobs, &self.current().cells).is_some())
    }

    /// True if nothing is running or due.
    pub(crate) fn is_idle(&self) -> bool {
        let jobs = self.jobs.lock();
        let state = self.current();
        let quiet = jobs.waiting.is_empty() && !jobs.flushing && jobs.busy.is_empty() && state.frozen.is_empty();
        quiet && !jobs.whole && self.due(&jobs, &state.cells).is_none()
    }
}

/// A merge makes no records and no bytes. If it seems so, the footer of an input is wrong although its checksum fits.
///
/// # Errors
/// [`Error::Damaged`] of that input, or the disk's.
fn check_inputs(inputs: &[Arc<Cell>], cell: Option<&Cell>) -> Result<(), Error> {
    let of_inputs = |count: fn(&Cell) -> u64| inputs.iter().map(|c| count(c)).sum::<u64>();
    let sound = cell.is_none_or(|cell| {
        cell.footer.records <= of_inputs(|c| c.footer.records)
            && cell.footer.user_bytes <= of_inputs(|c| c.footer.user_bytes)
    });
    if sound { Ok(()) } else { inputs.iter().try_for_each(|input| verify_cell(input, &mut 0)) }
}

/// Marks inputs that are damaged or cannot be read, so that no merge takes them. Their other records stay readable, and no
/// merge hides the damage.
fn mark_damaged(inputs: &[Arc<Cell>], error: &Error) {
    let Some(file) = error.unreadable_file() else { return };
    let of = |c: &&Arc<Cell>| c.path == file || c.values.iter().any(|owned| owned.file.path == file);
    inputs.iter().filter(of).for_each(|c| drop(c.damage.set(error.clone())));
}
