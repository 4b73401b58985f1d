//! Digests of files whose parts are hashed side by side: by the CPU's threads, or on a device. The digests are the
//! standard ones, whatever the parts (P10).

use super::{PIECE_BYTES, fill, open_file, read_more};
use crate::exit::{At, Outcome};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tessera_accel::hash::{self, GROUP_BYTES, HASH_BYTES};
use tessera_accel::runtime::operations::HashBatch;
use tessera_accel::runtime::{Buffer, Job, JobError, Operation};
use tessera_accel::{Accelerated, RunError};
use tessera_hashgpu::digest::{Digest, Function, Hasher, digest};
use tessera_hashgpu::operations::DigestBatch;

/// Maximum bytes of a job. For BLAKE3 a part is a subtree, so this is a power of two of groups.
pub const PART_BYTES: usize = 2 << 20;
/// Minimum buffers of a job, for functions whose lanes are filled by the buffers of one job.
const LANES: usize = 64;
/// Maximum jobs in flight: with a piece each they hold half a gigabyte.
const MOST_AT_ONCE: usize = 32;

/// Jobs in flight, whose results come in their order: enough jobs to keep every thread busy.
pub struct JobQueue<'a, T> {
    device: &'a Accelerated,
    at_once: usize,
    running: VecDeque<(Job, Reader<T>)>,
    results: Vec<T>,
}

type Reader<T> = Box<dyn FnOnce(&[u8]) -> T>;

impl<'a, T> JobQueue<'a, T> {
    pub fn new(device: &'a Accelerated) -> JobQueue<'a, T> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let at_once = (threads + 2).min(MOST_AT_ONCE);
        JobQueue { device, at_once, running: VecDeque::new(), results: Vec::new() }
    }

    /// A buffer for a job's input.
    fn buffer(&self, bytes: usize) -> Result<Buffer, RunError> {
        Ok(self.device.runtime().buffer(bytes).map_err(JobError::NoMemory)?)
    }

    /// Submits a job; `read` makes its result when it ends. If there are many jobs, waits for the first one.
    ///
    /// # Errors
    /// A job is refused or fails.
    pub fn start(
        &mut self,
        operation: &(impl Operation + Clone + 'static),
        input: Buffer,
        read: impl FnOnce(&[u8]) -> T + 'static,
    ) -> Result<(), RunError> {
        while self.running.len() >= self.at_once {
            self.end_first()?;
        }
        self.running.push_back((self.device.start(operation, input)?, Box::new(read)));
        Ok(())
    }

    /// Adds a result that needed no job.
    fn add(&mut self, result: T) -> Result<(), RunError> {
        while !self.running.is_empty() {
            self.end_first()?;
        }
        self.results.push(result);
        Ok(())
    }

    fn end_first(&mut self) -> Result<(), RunError> {
        if let Some((job, read)) = self.running.pop_front() {
            self.results.push(read(&job.wait()?.output));
        }
        Ok(())
    }

    /// The results that are new since the last call.
    fn take(&mut self) -> Vec<T> {
        std::mem::take(&mut self.results)
    }

    /// Waits for all jobs and returns the remaining results.
    ///
    /// # Errors
    /// A job failed.
    pub fn finish(mut self) -> Result<Vec<T>, RunError> {
        while !self.running.is_empty() {
            self.end_first()?;
        }
        Ok(self.results)
    }
}

/// Digests of buffers.
///
/// # Errors
/// A job is refused or fails.
pub fn digests(device: &Accelerated, function: Function, buffers: &[&[u8]]) -> Result<Vec<Digest>, RunError> {
    // BLAKE3 fills its lanes with one buffer.
    let least = if function == Function::Blake3 { 1 } else { LANES };
    let (mut queue, mut rest) = (JobQueue::new(device), buffers);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |buffer: &&&[u8]| {
            bytes += buffer.len();
            bytes <= PART_BYTES
        };
        let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(least).min(rest.len()));
        start_batch(&mut queue, function, now)?;
        rest = later;
    }
    Ok(queue.finish()?.concat())
}

/// Starts one job for all these buffers.
fn start_batch(queue: &mut JobQueue<'_, Vec<Digest>>, function: Function, buffers: &[&[u8]]) -> Result<(), RunError> {
    let lens: Vec<usize> = buffers.iter().map(|b| b.len()).collect();
    if let Some(batch) = DigestBatch::new(function, &lens) {
        let mut input = queue.buffer(batch.input_bytes())?;
        buffers.iter().enumerate().for_each(|(i, b)| batch.pack(i, b, &mut input));
        return queue.start(&batch.clone(), input, move |output| batch.read(output));
    }
    match HashBatch::names(&lens).filter(|_| function == Function::Blake3) {
        Some(batch) => {
            let mut input = queue.buffer(batch.input_bytes())?;
            buffers.iter().enumerate().for_each(|(i, b)| batch.pack(i, b, &mut input));
            let read = move |names: Vec<hash::Hash>| names.into_iter().map(Digest::from).collect();
            queue.start(&batch.clone(), input, move |output| read(batch.read_names(output)))
        }
        None => queue.add(buffers.iter().map(|bytes| digest(function, bytes)).collect()),
    }
}

/// Length and BLAKE3 digest of a file.
///
/// # Errors
/// The file cannot be read, or a job fails.
pub fn blake3_file(device: &Accelerated, path: &Path) -> Outcome<(u64, Digest)> {
    let (mut file, mut bytes) = (open_file(path)?, Vec::new());
    if read_more(&mut file, path, PART_BYTES + 1, &mut bytes)? > PART_BYTES {
        return blake3_by_parts(device, PART_BYTES, &bytes, &mut file, path);
    }
    let found = digests(device, Function::Blake3, &[&bytes])?;
    Ok((bytes.len() as u64, found.into_iter().next().unwrap_or_else(|| digest(Function::Blake3, &bytes))))
}

/// Length and BLAKE3 digest of a file of which `before`, more than `part_bytes`, has been read. Parts are subtrees of
/// BLAKE3's tree, each a power of two of groups.
///
/// # Errors
/// The file cannot be read, or a job fails.
pub fn blake3_by_parts(
    device: &Accelerated,
    part_bytes: usize,
    before: &[u8],
    file: &mut File,
    path: &Path,
) -> Outcome<(u64, Digest)> {
    let mut source = before.chain(file);
    let (mut queue, mut total) = (JobQueue::new(device), 0u64);
    // A value per part: 16 MB per terabyte.
    let mut values: Vec<[u8; HASH_BYTES]> = Vec::new();
    loop {
        let mut input = queue.buffer(part_bytes)?;
        let len = fill(&mut source, &mut input).at(path)?;
        if len == 0 {
            break;
        }
        let first_group = total / GROUP_BYTES as u64;
        match HashBatch::part(first_group, len) {
            Some(part) => {
                let end = part.input_bytes();
                input[len..end].fill(0);
                input.resize(end).map_err(|e| RunError::Job(e.into()))?;
                queue.start(&part.clone(), input, move |output| hash::join(&part.read_part(output)))?;
            }
            // Beyond the range of the device's counters.
            None => queue.add(hash::join(&hash::group_values(first_group, &input[..len])))?,
        }
        values.extend(queue.take().into_iter().flatten());
        total += len as u64;
        if len < part_bytes {
            break;
        }
    }
    values.extend(queue.finish()?.into_iter().flatten());
    let name = hash::join_to_name(&values).unwrap_or_default();
    Ok((total, Digest::from(name)))
}

/// Length, and the digest of the digests of the segments ([`tessera_hashgpu::digest::segmented`]).
///
/// # Errors
/// The file cannot be read, or a job fails.
pub fn segmented(device: &Accelerated, function: Function, segment: usize, path: &Path) -> Outcome<(u64, Digest)> {
    let (mut file, mut all, mut bytes) = (open_file(path)?, Hasher::new(function), 0);
    let (mut queue, mut piece) = (JobQueue::new(device), Vec::new());
    let several = segment.saturating_mul(LANES).clamp(PART_BYTES, PIECE_BYTES) / segment * segment;
    if segment > PIECE_BYTES {
        while let Some((len, digest)) = long_segment(function, segment, &mut file, path)? {
            bytes += len;
            all.update(digest.as_bytes());
        }
        return Ok((bytes, all.finish()));
    }
    while read_more(&mut file, path, several, &mut piece)? > 0 {
        bytes += piece.len() as u64;
        start_batch(&mut queue, function, &piece.chunks(segment).collect::<Vec<_>>())?;
        queue.take().iter().flatten().for_each(|digest| all.update(digest.as_bytes()));
        piece.clear();
    }
    queue.finish()?.iter().flatten().for_each(|digest| all.update(digest.as_bytes()));
    Ok((bytes, all.finish()))
}

/// The length and digest of the next segment of a file, for segments longer than a piece; `None` at the end.
fn long_segment(function: Function, segment: usize, file: &mut File, path: &Path) -> Outcome<Option<(u64, Digest)>> {
    let mut next = Read::take(&mut *file, segment as u64);
    let (len, digest) = digest_rest(function, &[], &mut next, path)?;
    Ok((len > 0).then_some((len, digest)))
}

/// Length and digest of a source whose first bytes, `before`, have been read already; reads the rest.
///
/// # Errors
/// The file cannot be read.
pub fn digest_rest(function: Function, before: &[u8], rest: &mut impl Read, path: &Path) -> Outcome<(u64, Digest)> {
    let (mut hasher, mut bytes, mut piece) = (Hasher::new(function), 0, Vec::new());
    let mut source = before.chain(rest);
    while source.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece).at(path)? > 0 {
        hasher.update(&piece);
        bytes += piece.len() as u64;
        piece.clear();
    }
    Ok((bytes, hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_accel::runtime::Options;
    use tessera_accel::testing::Meeting;
    use tessera_accel::{Cpu, Isa, Spec};

    fn device(spec: Spec, cpu_threads: usize) -> Accelerated {
        let (runtime, target) = spec.runtime(Options { cpu_threads, ..Options::default() }).unwrap();
        Accelerated::new(runtime, target, Cpu::with(Isa::best()))
    }

    /// P10: a file that the device hashes part by part has the same digest as in one piece.
    #[test]
    fn a_file_in_parts_has_the_digest_of_the_whole() {
        let (emulated, cpu) = (device(Spec::Emulated(1), 1), device(Spec::Cpu, 3));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        for len in [32_769, 65_536, 65_537, 98_304, 98_305, 131_072, 200_001] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            for device in [&emulated, &cpu] {
                let mut file = open_file(&path).unwrap();
                let mut read = Vec::new();
                read_more(&mut file, &path, 32_769, &mut read).unwrap();
                let (total, found) = blake3_by_parts(device, 32_768, &read, &mut file, &path).unwrap();
                assert_eq!((total, found), (len as u64, digest(Function::Blake3, &bytes)), "{len}");
            }
        }
        let done = emulated.runtime().devices().iter().map(|d| d.done["tree"].jobs).sum::<u64>();
        assert!(done >= 7 * 2, "{done} parts");
    }

    /// Files around the length of a part, alone and in batches of any size.
    #[test]
    fn digests_are_those_of_each_buffer_however_they_are_split() {
        let cpu = device(Spec::Cpu, 2);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let bytes: Vec<u8> = (0..2 * PART_BYTES + 5).map(|i| (i % 251) as u8).collect();
        for len in [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 2 * PART_BYTES + 5] {
            std::fs::write(&path, &bytes[..len]).unwrap();
            let expected = (len as u64, digest(Function::Blake3, &bytes[..len]));
            assert_eq!(blake3_file(&cpu, &path).unwrap(), expected);
        }
        let buffers: Vec<&[u8]> = (0..200).map(|i| &bytes[i..i + 1 + i * 37 % 40_000]).chain([&bytes[..]]).collect();
        for function in [Function::Blake3, Function::Md5] {
            let expected: Vec<Digest> = buffers.iter().map(|bytes| digest(function, bytes)).collect();
            assert_eq!(digests(&cpu, function, &buffers).unwrap(), expected);
        }
        assert!(digests(&cpu, Function::Sha1, &[]).unwrap().is_empty());
    }

    /// Several threads hash parts at once.
    #[test]
    fn two_jobs_run_side_by_side() {
        let cpu = device(Spec::Cpu, 2);
        let (mut queue, meeting) = (JobQueue::new(&cpu), Meeting::default());
        for _ in 0..2 {
            let input = queue.buffer(1).unwrap();
            queue.start(&meeting, input, |output| output[0]).unwrap();
        }
        assert_eq!(queue.finish().unwrap(), [1, 1]);
    }
}
