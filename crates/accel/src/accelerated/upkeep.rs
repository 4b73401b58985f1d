//! Parity that follows a changed fragment, and its check, of whichever family of codes. Nothing is written before all of a
//! batch has been computed: an update that was written once must not be done again.

use super::{Accelerated, copy_rows, parts};
use crate::device::{Device, UpdateJob, VerifyJob};
use crate::erasure::{Code, EncodeError, UpdateError};
use crate::runtime::Done;
use crate::runtime::operations::{Multiply, Verify, XorFragments};
use crate::xorcode::{XorCallError, XorCode};
use std::ops::Range;
use std::sync::Arc;

/// Whether the code will take the job.
fn is_update(code: &Code, job: &UpdateJob<'_>) -> bool {
    job.index < code.k()
        && job.parity.len() == code.m()
        && job.new.len() == job.old.len()
        && job.parity.iter().all(|p| p.len() == job.old.len())
}

/// The same of a check.
fn is_check(code: &Code, job: &VerifyJob<'_>) -> bool {
    job.data.len() == code.k()
        && job.parity.len() == code.m()
        && job.data.iter().all(|d| d.len() <= job.frag_len)
        && job.parity.iter().all(|p| p.len() == job.frag_len)
}

impl Accelerated {
    pub(super) fn update_jobs(&self, code: &Code, jobs: &mut [UpdateJob<'_>]) -> Result<(), UpdateError> {
        let mut rest = jobs;
        while let Some(first) = rest.first() {
            let shape = (first.index, first.old.len());
            let like = |job: &&UpdateJob<'_>| (job.index, job.old.len()) == shape && is_update(code, job);
            let alike = rest.iter().take_while(like).count();
            let (now, later) = rest.split_at_mut(alike.max(1));
            rest = later;
            let worth_it = alike > 0 && self.is_for_device("update", alike * (2 + code.m()) * shape.1);
            if !worth_it || self.update_on_devices(code, now).is_none() {
                self.cpu.update(code, now)?;
            }
        }
        Ok(())
    }

    /// Updates of jobs that are all right and alike. None if nothing was written.
    fn update_on_devices(&self, code: &Code, jobs: &mut [UpdateJob<'_>]) -> Option<()> {
        let (index, len) = jobs.first().map(|job| (job.index, job.old.len()))?;
        let sizes = vec![(2 + code.m()) * len; jobs.len()];
        let mut running = Vec::new();
        for range in parts(&sizes, self.job_bytes) {
            let operation = Multiply::update(code, index, len, range.len())?;
            let pack = |input: &mut [u8]| {
                for (stripe, job) in jobs[range.clone()].iter().enumerate() {
                    let parity = job.parity.iter().map(|p| &**p);
                    let sources = [job.old, job.new].into_iter().chain(parity);
                    sources.enumerate().for_each(|(c, bytes)| operation.pack(stripe, c, bytes, input));
                }
            };
            running.push((self.submit(&operation, pack)?, operation, range));
        }
        let done = running.into_iter().map(|(job, operation, range)| Some((job.wait().ok()?, operation, range)));
        for (done, operation, range) in done.collect::<Option<Vec<(Done, Multiply, Range<usize>)>>>()? {
            for (stripe, job) in jobs[range].iter_mut().enumerate() {
                copy_rows(&operation, &done.output, stripe, job.parity.iter_mut().map(|p| &mut **p));
            }
        }
        Some(())
    }

    pub(super) fn verify_jobs(&self, code: &Arc<Code>, jobs: &[VerifyJob<'_>]) -> Result<Vec<Vec<usize>>, EncodeError> {
        let (mut wrong, mut rest) = (Vec::with_capacity(jobs.len()), jobs);
        while let Some(first) = rest.first() {
            let frag_len = first.frag_len;
            let alike = rest.iter().take_while(|job| job.frag_len == frag_len && is_check(code, job)).count();
            let (now, later) = rest.split_at(alike.max(1));
            rest = later;
            let worth_it = alike > 0 && self.is_for_device("verify", alike * (code.k() + code.m()) * frag_len);
            match worth_it.then(|| self.verify_on_devices(code, now)).flatten() {
                Some(found) => wrong.extend(found),
                None => wrong.extend(self.cpu.verify(code, now)?),
            }
        }
        Ok(wrong)
    }

    /// Checks of jobs that are all right and alike.
    fn verify_on_devices(&self, code: &Arc<Code>, jobs: &[VerifyJob<'_>]) -> Option<Vec<Vec<usize>>> {
        let frag_len = jobs.first()?.frag_len;
        let sizes = vec![(code.k() + code.m()) * frag_len; jobs.len()];
        let mut running = Vec::new();
        for range in parts(&sizes, self.job_bytes) {
            let operation = Verify::rs(code, frag_len, range.len());
            let pack = |input: &mut [u8]| {
                for (chunk, job) in jobs[range.clone()].iter().enumerate() {
                    let all = job.data.iter().chain(&job.parity).enumerate();
                    all.for_each(|(number, bytes)| operation.pack(chunk, number, bytes, input));
                }
            };
            running.push((self.submit(&operation, pack)?, operation, range.len()));
        }
        let mut wrong = Vec::with_capacity(jobs.len());
        for (job, operation, chunks) in running {
            let done = job.wait().ok()?;
            wrong.extend((0..chunks).map(|chunk| operation.read(&done.output, chunk)));
        }
        Some(wrong)
    }

    pub(super) fn update_xor_job(&self, code: &Arc<XorCode>, job: &mut UpdateJob<'_>) -> Result<(), XorCallError> {
        let len = job.old.len();
        let sound = job.new.len() == len && job.parity.len() == code.m() && job.parity.iter().all(|p| p.len() == len);
        let worth_it = sound && self.is_for_device("xor-update", len * (2 + code.m()));
        let done = || {
            let operation = XorFragments::update(code, job.index, len, 1)?;
            let pack = |input: &mut [u8]| {
                let parity = job.parity.iter().map(|p| &**p);
                for (slot, bytes) in [job.old, job.new].into_iter().chain(parity).enumerate() {
                    input[operation.source_range(0, slot)].copy_from_slice(bytes);
                }
            };
            Some((self.submit(&operation, pack)?.wait().ok()?, operation))
        };
        match worth_it.then(done).flatten() {
            Some((done, operation)) => {
                let rooms = job.parity.iter_mut().enumerate();
                rooms.for_each(|(i, room)| room.copy_from_slice(&done.output[operation.target_range(0, i)]));
                Ok(())
            }
            None => self.cpu.update_xor(code, job),
        }
    }

    pub(super) fn verify_xor_job(
        &self,
        code: &Arc<XorCode>,
        data: &[&[u8]],
        parity: &[&[u8]],
    ) -> Result<Vec<usize>, XorCallError> {
        let len = data.first().map_or(0, |d| d.len());
        let sound =
            data.len() == code.k() && parity.len() == code.m() && data.iter().chain(parity).all(|f| f.len() == len);
        let worth_it = sound && self.is_for_device("xor-verify", len * (code.k() + code.m()));
        let done = || {
            let operation = Verify::xor(code, len, 1)?;
            let pack = |input: &mut [u8]| {
                let all = data.iter().chain(parity).enumerate();
                all.for_each(|(number, bytes)| operation.pack(0, number, bytes, input));
            };
            Some(operation.read(&self.submit(&operation, pack)?.wait().ok()?.output, 0))
        };
        match worth_it.then(done).flatten() {
            Some(wrong) => Ok(wrong),
            None => self.cpu.verify_xor(code, data, parity),
        }
    }
}
