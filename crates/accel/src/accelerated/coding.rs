//! Codes of either family on devices: encode, reconstruct, update and verify of batches of chunks.
//!
//! Neighbouring jobs of one shape share operations of about [`Accelerated::job_bytes`]. The CPU repeats a group that a
//! device did not finish. An update must not be applied twice, so nothing is written before its whole group has been
//! computed.

use super::{Accelerated, parts};
use crate::coder::Coder;
use crate::device::{Device, EncodeJob, ReconstructJob, UpdateJob, VerifyJob};
use crate::erasure::CoderError;
use crate::runtime::operations::{Coding, Verify};
use crate::runtime::{Job, JobOutput};
use std::ops::Range;
use std::sync::Arc;

/// Whether data and parity of a chunk have valid counts and lengths for the code.
fn is_chunk<'a>(
    coder: &Coder,
    frag_len: usize,
    data: &[&[u8]],
    mut parity: impl ExactSizeIterator<Item = &'a [u8]>,
) -> bool {
    data.len() == coder.k()
        && parity.len() == coder.m()
        && data.iter().all(|d| d.len() <= frag_len)
        && parity.all(|p| p.len() == frag_len)
}

/// What updates must have in common to be done together: the data fragment, and the length of parity. `None` if the job
/// is invalid; the CPU then reports its error.
fn update_shape(coder: &Coder, job: &UpdateJob<'_>) -> Option<(usize, usize)> {
    let len = job.parity.first()?.len();
    let fits = job.index < coder.k()
        && job.parity.len() == coder.m()
        && job.old.len() == job.new.len()
        && job.old.len() <= len
        && job.parity.iter().all(|p| p.len() == len);
    fits.then_some((job.index, len))
}

/// What jobs must have in common to be rebuilt together.
#[derive(PartialEq, Eq)]
struct Pattern {
    /// Fragments that are read, rising.
    sources: Vec<usize>,
    /// Fragments that are rebuilt, rising.
    wanted: Vec<usize>,
    frag_len: usize,
}

impl Pattern {
    /// The pattern of a job that a device may do. `None` if the job is invalid or wants fragments that are present; the
    /// CPU then handles it.
    fn of(coder: &Coder, job: &ReconstructJob<'_>) -> Option<Pattern> {
        let fits = |index: usize, len: usize| match index < coder.k() {
            true => len <= job.frag_len,
            false => index < coder.k() + coder.m() && len == job.frag_len,
        };
        let rising = |numbers: &mut dyn Iterator<Item = usize>| {
            let mut numbers: Vec<usize> = numbers.collect();
            numbers.sort_unstable();
            numbers.windows(2).all(|pair| pair[0] < pair[1]).then_some(numbers)
        };
        let mut sources = rising(&mut job.present.iter().map(|(i, _)| *i))?;
        let wanted = rising(&mut job.wanted.iter().copied())?;
        let is_valid = job.present.iter().all(|(i, bytes)| fits(*i, bytes.len()))
            && job.wanted.len() == job.out.len()
            && job.wanted.iter().zip(&job.out).all(|(i, room)| fits(*i, room.len()) && !sources.contains(i))
            && sources.len() >= coder.k()
            && !wanted.is_empty();
        if let Coder::Rs(code) = coder {
            sources.truncate(code.k()); // Any k determine the rest; XOR codes read those that save the most XORs.
        }
        is_valid.then_some(Pattern { sources, wanted, frag_len: job.frag_len })
    }

    /// Place of fragment `number` in a list that contains it.
    fn place(list: &[usize], number: usize) -> Option<usize> {
        list.binary_search(&number).ok()
    }
}

/// Splits off the jobs at the front that share a shape, at least one, and that shape.
fn split_group<'s, J, S: PartialEq>(
    jobs: &mut &'s mut [J],
    shape_of: impl Fn(&J) -> Option<S>,
) -> Option<(&'s mut [J], Option<S>)> {
    let shape = shape_of(jobs.first()?);
    let alike = jobs.iter().take_while(|job| shape.is_some() && shape_of(job) == shape).count();
    let (group, rest) = std::mem::take(jobs).split_at_mut(alike.max(1));
    *jobs = rest;
    Some((group, shape))
}

type Running = Vec<(Job, Arc<dyn Coding>, Range<usize>)>;
type Computed = Vec<(JobOutput, Arc<dyn Coding>, Range<usize>)>;

/// Waits for all jobs; `None` if one of them failed.
fn wait_for_all(running: Running) -> Option<Computed> {
    running.into_iter().map(|(job, operation, range)| Some((job.wait().ok()?, operation, range))).collect()
}

/// Copies row `row` of a chunk's result to `room`, which may be shorter.
fn copy_row(operation: &dyn Coding, output: &[u8], chunk: usize, row: usize, room: &mut [u8]) {
    room.copy_from_slice(&output[operation.target_range(chunk, row)][..room.len()]);
}

impl Accelerated {
    /// Submits `jobs`, of `bytes` of input each, as operations of several chunks; `fill` writes a chunk's input.
    fn submit_chunks<J>(
        &self,
        jobs: &[J],
        bytes: usize,
        make: impl Fn(usize) -> Option<Arc<dyn Coding>>,
        fill: impl Fn(&dyn Coding, usize, &J, &mut [u8]),
    ) -> Option<Running> {
        let mut running = Vec::new();
        for range in parts(&vec![bytes; jobs.len()], self.job_bytes) {
            let operation = make(range.len())?;
            let job = self.submit(operation.clone(), |input| {
                let chunks = jobs[range.clone()].iter().enumerate();
                chunks.for_each(|(chunk, job)| fill(operation.as_ref(), chunk, job, input));
            })?;
            running.push((job, operation, range));
        }
        Some(running)
    }

    pub(super) fn encode_jobs(&self, coder: &Coder, jobs: &mut [EncodeJob<'_>]) -> Result<(), CoderError> {
        let mut rest = jobs;
        let shape_of = |job: &EncodeJob<'_>| {
            is_chunk(coder, job.frag_len, &job.data, job.parity.iter().map(|p| &**p)).then_some(job.frag_len)
        };
        while let Some((group, shape)) = split_group(&mut rest, shape_of) {
            let bytes = |len: usize| group.len() * coder.k() * len;
            let on_device = shape.filter(|len| self.is_for_device(coder.encoding(), bytes(*len)));
            if on_device.and_then(|len| self.encode_on_devices(coder, len, group)).is_none() {
                self.cpu.encode(coder, group)?;
            }
        }
        Ok(())
    }

    fn encode_on_devices(&self, coder: &Coder, len: usize, jobs: &mut [EncodeJob<'_>]) -> Option<()> {
        let make = |chunks| crate::runtime::operations::encode(coder, len, chunks);
        let running = self.submit_chunks(jobs, coder.k() * len, make, |operation, chunk, job, input| {
            job.data.iter().enumerate().for_each(|(i, bytes)| operation.pack(chunk, i, bytes, input));
        })?;
        for (job, operation, range) in running {
            let done = job.wait().ok()?;
            for (chunk, job) in jobs[range].iter_mut().enumerate() {
                let rows = job.parity.iter_mut().enumerate();
                rows.for_each(|(row, room)| copy_row(operation.as_ref(), &done.output, chunk, row, room));
            }
        }
        Some(())
    }

    pub(super) fn reconstruct_jobs(&self, coder: &Coder, jobs: &mut [ReconstructJob<'_>]) -> Result<(), CoderError> {
        let mut rest = jobs;
        while let Some((group, pattern)) = split_group(&mut rest, |job| Pattern::of(coder, job)) {
            let bytes = |p: &Pattern| group.len() * p.sources.len() * p.frag_len;
            let on_device = pattern.filter(|p| self.is_for_device(coder.reconstruction(), bytes(p)));
            if on_device.and_then(|pattern| self.reconstruct_on_devices(coder, &pattern, group)).is_none() {
                self.cpu.reconstruct(coder, group)?;
            }
        }
        Ok(())
    }

    fn reconstruct_on_devices(&self, coder: &Coder, pattern: &Pattern, jobs: &mut [ReconstructJob<'_>]) -> Option<()> {
        let Pattern { sources, wanted, frag_len } = pattern;
        let make = |chunks| crate::runtime::operations::reconstruct(coder, sources, wanted, *frag_len, chunks);
        let running = self.submit_chunks(jobs, sources.len() * frag_len, make, |operation, chunk, job, input| {
            for (number, bytes) in &job.present {
                let place = Pattern::place(sources, *number);
                place.into_iter().for_each(|place| operation.pack(chunk, place, bytes, input));
            }
        })?;
        for (job, operation, range) in running {
            let done = job.wait().ok()?;
            for (chunk, job) in jobs[range].iter_mut().enumerate() {
                for (number, room) in job.wanted.iter().zip(&mut job.out) {
                    let row = Pattern::place(wanted, *number)?;
                    copy_row(operation.as_ref(), &done.output, chunk, row, room);
                }
            }
        }
        Some(())
    }

    pub(super) fn update_jobs(&self, coder: &Coder, jobs: &mut [UpdateJob<'_>]) -> Result<(), CoderError> {
        let mut rest = jobs;
        while let Some((group, shape)) = split_group(&mut rest, |job| update_shape(coder, job)) {
            let bytes = |len: usize| group.len() * (2 + coder.m()) * len;
            let on_device = shape.filter(|(_, len)| self.is_for_device(coder.updating(), bytes(*len)));
            if on_device.and_then(|(index, len)| self.update_on_devices(coder, index, len, group)).is_none() {
                self.cpu.update(coder, group)?;
            }
        }
        Ok(())
    }

    fn update_on_devices(&self, coder: &Coder, index: usize, len: usize, jobs: &mut [UpdateJob<'_>]) -> Option<()> {
        let make = |chunks| crate::runtime::operations::update(coder, index, len, chunks);
        let running = self.submit_chunks(jobs, (2 + coder.m()) * len, make, |operation, chunk, job, input| {
            let sources = [job.old, job.new].into_iter().chain(job.parity.iter().map(|p| &**p));
            sources.enumerate().for_each(|(i, bytes)| operation.pack(chunk, i, bytes, input));
        })?;
        for (done, operation, range) in wait_for_all(running)? {
            for (chunk, job) in jobs[range].iter_mut().enumerate() {
                let rows = job.parity.iter_mut().enumerate();
                rows.for_each(|(row, room)| copy_row(operation.as_ref(), &done.output, chunk, row, room));
            }
        }
        Some(())
    }

    pub(super) fn verify_jobs(&self, coder: &Coder, jobs: &[VerifyJob<'_>]) -> Result<Vec<Vec<usize>>, CoderError> {
        let (mut wrong, mut rest) = (Vec::with_capacity(jobs.len()), jobs);
        let fits = |job: &VerifyJob<'_>| is_chunk(coder, job.frag_len, &job.data, job.parity.iter().copied());
        while let Some(first) = rest.first() {
            let len = first.frag_len;
            let alike = rest.iter().take_while(|job| job.frag_len == len && fits(job)).count();
            let (group, later) = rest.split_at(alike.max(1));
            rest = later;
            let bytes = alike * (coder.k() + coder.m()) * len;
            let on_device = alike > 0 && self.is_for_device(coder.verification(), bytes);
            match on_device.then(|| self.verify_on_devices(coder, len, group)).flatten() {
                Some(found) => wrong.extend(found),
                None => wrong.extend(self.cpu.verify(coder, group)?),
            }
        }
        assert_eq!(wrong.len(), jobs.len(), "a verdict for each job");
        Ok(wrong)
    }

    fn verify_on_devices(&self, coder: &Coder, len: usize, jobs: &[VerifyJob<'_>]) -> Option<Vec<Vec<usize>>> {
        let sizes = vec![(coder.k() + coder.m()) * len; jobs.len()];
        let mut running = Vec::new();
        for range in parts(&sizes, self.job_bytes) {
            let operation = Arc::new(Verify::new(coder, len, range.len())?);
            let job = self.submit(operation.clone(), |input| {
                for (chunk, job) in jobs[range.clone()].iter().enumerate() {
                    let all = job.data.iter().chain(&job.parity).enumerate();
                    all.for_each(|(number, bytes)| operation.pack(chunk, number, bytes, input));
                }
            })?;
            running.push((job, operation, range.len()));
        }
        let mut wrong = Vec::with_capacity(jobs.len());
        for (job, operation, chunks) in running {
            let done = job.wait().ok()?;
            wrong.extend((0..chunks).map(|chunk| operation.read(&done.output, chunk)));
        }
        Some(wrong)
    }
}
