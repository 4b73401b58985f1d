//! Incremental writes: bytes go to local files of bounded length in turn; while one fills, the ones before it are
//! pushed (stdchk; dissertation, section 3.5.3.2).
//!
//! A [`Staged`] write stands before a write session that a task of its own holds ([`Drain`]). Operations reach the
//! session in order. The bytes in the files are lost with the process; none of them was acknowledged. When the budget
//! is used up, bytes go to the session directly.

use super::Spool;
use crate::backend::Writer;
use crate::spool::budget::Budget;
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tessera_accel::checksum::{crc32c, crc32c_append};
use tessera_client::{Cause, FileError, Times, WriteDone};
use tessera_disk::{DiskError, DiskFile, OpenMode};
use tessera_wire::meta::LockFence;
use tokio::sync::{mpsc, oneshot};

/// Length at which a local file is pushed; less in a small spool.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Full files that wait, besides the one being pushed and the one being filled.
const WAITING: usize = 2;
/// A spool has budget for at least this many files.
const SEGMENTS: u64 = 4;

/// Pieces in one file; each is kept in memory.
const MAX_PIECES: usize = 1 << 16;
/// Bytes that are read and checked at once.
const MAX_PIECE_BYTES: usize = 128 << 10;

/// One local file with part of the written bytes.
struct Segment {
    file: Arc<dyn DiskFile>,
    pieces: Vec<Piece>,
    bytes: u64,
    budget: Arc<Budget>,
}

struct Piece {
    offset: u64,
    len_bytes: usize,
    crc: u32,
}

impl Piece {
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len_bytes as u64)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.budget.release_bytes(self.bytes);
    }
}

impl Segment {
    /// Creates a file and unlinks it at once, so that it goes with the process.
    fn create(spool: &Spool) -> Result<Segment, DiskError> {
        let path = spool.next_segment();
        let file = spool.disk.open(&path, OpenMode::Create)?;
        spool.disk.remove(&path)?;
        file.truncate(0)?;
        Ok(Segment { file, pieces: Vec::new(), bytes: 0, budget: spool.budget.clone() })
    }

    /// Appends bytes; returns why not if the disk or the budget refuses.
    fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.budget.reserve_bytes(bytes.len() as u64).map_err(|e| e.to_string())?;
        if let Err(error) = self.file.write_at(self.bytes, bytes) {
            self.budget.release_bytes(bytes.len() as u64);
            return Err(error.to_string());
        }
        self.bytes += bytes.len() as u64;
        match self.pieces.last_mut() {
            // Small writes usually follow each other; they become one piece.
            Some(last) if last.end() == Some(offset) && last.len_bytes + bytes.len() <= MAX_PIECE_BYTES => {
                last.len_bytes += bytes.len();
                last.crc = crc32c_append(last.crc, bytes);
            }
            _ => self.pieces.push(Piece { offset, len_bytes: bytes.len(), crc: crc32c(bytes) }),
        }
        Ok(())
    }

    async fn push(&self, to: &mut impl Writer, abandoned: &AtomicBool) -> Result<(), FileError> {
        let (mut at, mut buffer) = (0, Vec::new());
        for piece in &self.pieces {
            if abandoned.load(Ordering::Acquire) {
                return Ok(());
            }
            buffer.resize(piece.len_bytes, 0);
            self.file.read_at(at, &mut buffer).map_err(|e| lost(&e))?;
            if crc32c(&buffer) != piece.crc {
                return Err(lost(&"what is read is not what was written"));
            }
            to.write_at(piece.offset, &buffer).await?;
            at += piece.len_bytes as u64;
        }
        Ok(())
    }
}

fn lost(error: &dyn std::fmt::Display) -> FileError {
    Cause::Input(error.to_string()).of("the spool")
}

fn task_ended() -> FileError {
    lost(&"the task that pushes has ended")
}

/// The fence that commits of the session name.
type SharedFence = Arc<Mutex<Option<LockFence>>>;

type Reply<T> = oneshot::Sender<Result<T, FileError>>;

enum Job {
    Segment(Segment),
    Bytes(u64, Bytes),
    Clear(Range<u64>),
    Skip(u64),
    SetLen(u64, Reply<()>),
    /// Modification time and content of the commit.
    Sync(Times, u64, Reply<WriteDone>),
    /// Reply when all jobs before this one are done.
    Confirm(Reply<()>),
}

/// See the module.
pub struct Staged {
    jobs: mpsc::Sender<Job>,
    abandoned: Arc<AtomicBool>,
    failed: Arc<Mutex<Option<FileError>>>,
    spool: Arc<Spool>,
    ino: u64,
    segment: Option<Segment>,
    size_bytes: u64,
    /// The local disk failed or is full; logged once.
    without: bool,
    fence: SharedFence,
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Release);
    }
}

impl Staged {
    /// Stands before `session`, with files in the spool. The task must run until it ends.
    pub fn new<W: Writer>(session: W, spool: Arc<Spool>, ino: u64) -> (Staged, Drain<W>) {
        let (jobs, todo) = mpsc::channel(WAITING);
        let (abandoned, failed) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Option<FileError>>>::default());
        let size_bytes = session.len_bytes();
        let fence = SharedFence::default();
        let task =
            Drain { session, jobs: todo, abandoned: abandoned.clone(), failed: failed.clone(), fence: fence.clone() };
        (Staged { jobs, abandoned, failed, spool, ino, segment: None, size_bytes, without: false, fence }, task)
    }

    async fn hand_over(&self, job: Job) -> Result<(), FileError> {
        if let Some(error) = self.failed.lock().clone() {
            return Err(error);
        }
        self.jobs.send(job).await.map_err(|_| task_ended())
    }

    async fn end_segment(&mut self) -> Result<(), FileError> {
        match self.segment.take() {
            Some(segment) => {
                self.spool.counts.lock().segments += 1;
                self.hand_over(Job::Segment(segment)).await
            }
            None => Ok(()),
        }
    }

    async fn ask<T>(&mut self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, FileError> {
        self.end_segment().await?;
        let (reply, answer) = oneshot::channel();
        self.hand_over(job(reply)).await?;
        answer.await.unwrap_or_else(|_| Err(self.failed.lock().clone().unwrap_or_else(task_ended)))
    }

    /// Writes to a local file, or to the session if the disk or the budget refuses.
    async fn write_part(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        if let Err(why) = self.stage(offset, bytes) {
            if !std::mem::replace(&mut self.without, true) {
                self.spool.falls_back(self.ino, &why);
            }
            self.end_segment().await?;
            self.hand_over(Job::Bytes(offset, Bytes::copy_from_slice(bytes))).await?;
        }
        self.size_bytes = self.size_bytes.max(offset + bytes.len() as u64);
        Ok(())
    }

    /// Appends to the current local file; returns why not.
    fn stage(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let mut segment = match self.segment.take() {
            Some(segment) => segment,
            None => Segment::create(&self.spool).map_err(|e| e.to_string())?,
        };
        let done = segment.append(offset, bytes);
        self.segment = Some(segment).filter(|segment| segment.bytes > 0);
        done
    }

    /// Returns a future that waits until everything written is in the session; it needs no lock of the file.
    pub async fn drained(&mut self) -> impl Future<Output = ()> + use<> {
        // The commit reports a failure.
        let _ = self.end_segment().await;
        let jobs = self.jobs.clone();
        async move {
            let (reply, done) = oneshot::channel();
            if jobs.send(Job::Confirm(reply)).await.is_ok() {
                let _ = done.await;
            }
        }
    }
}

impl Writer for Staged {
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let full = SEGMENT_BYTES.min(self.spool.budget.limit_bytes() / SEGMENTS).max(1);
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            // A local file stays within its length, so that the budget covers all files that may wait.
            let left = full - self.segment.as_ref().map_or(0, |segment| segment.bytes);
            let (now, later) = rest.split_at(rest.len().min(left as usize));
            self.write_part(offset, now).await?;
            if self.segment.as_ref().is_some_and(|s| s.bytes >= full || s.pieces.len() >= MAX_PIECES) {
                self.end_segment().await?;
            }
            (offset, rest) = (offset + now.len() as u64, later);
        }
        Ok(())
    }

    async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        self.end_segment().await?;
        self.size_bytes = self.size_bytes.max(range.end);
        self.hand_over(Job::Clear(range)).await
    }

    async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        self.end_segment().await?;
        self.size_bytes = self.size_bytes.max(offset);
        self.hand_over(Job::Skip(offset)).await
    }

    async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        self.size_bytes = size_bytes;
        self.ask(|reply| Job::SetLen(size_bytes, reply)).await
    }

    fn set_lock_fence(&mut self, fence: Option<LockFence>) {
        *self.fence.lock() = fence;
    }

    async fn sync(&mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        self.ask(|reply| Job::Sync(times, content, reply)).await
    }

    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }
}

/// The task that holds the session of a [`Staged`] write.
pub struct Drain<W> {
    session: W,
    jobs: mpsc::Receiver<Job>,
    abandoned: Arc<AtomicBool>,
    failed: Arc<Mutex<Option<FileError>>>,
    fence: SharedFence,
}

impl<W: Writer> Drain<W> {
    /// Carries out the operations until the [`Staged`] is dropped. After a failure nothing more is written.
    pub async fn run(mut self) {
        while let Some(job) = self.jobs.recv().await {
            if self.abandoned.load(Ordering::Acquire) {
                // Dropping the job tells a waiting caller that there is no answer.
                continue;
            }
            // After a failure, dropping the job tells a waiting caller to look for the error.
            let failed = self.failed.lock().is_some();
            if !failed && let Err(error) = self.carry_out(job).await {
                *self.failed.lock() = Some(error);
            }
        }
    }

    async fn carry_out(&mut self, job: Job) -> Result<(), FileError> {
        let session = &mut self.session;
        session.set_lock_fence(*self.fence.lock());
        match job {
            Job::Segment(segment) => segment.push(session, &self.abandoned).await,
            Job::Bytes(offset, bytes) => session.write_at(offset, &bytes).await,
            Job::Clear(range) => session.clear(range).await,
            Job::Skip(offset) => session.skip_to(offset).await,
            Job::SetLen(size_bytes, reply) => answer(session.set_len(size_bytes).await, reply),
            Job::Sync(times, content, reply) => answer(session.sync(times, content).await, reply),
            Job::Confirm(reply) => answer(Ok(()), reply),
        }
    }
}

fn answer<T>(result: Result<T, FileError>, reply: Reply<T>) -> Result<(), FileError> {
    let failed = result.as_ref().err().cloned();
    let _ = reply.send(result);
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::spool::SpoolConfig;
    use crate::tests::tasks::Tasks;
    use tessera_disk::SimDisk;
    use tokio::sync::Semaphore;

    /// A session that records its operations and waits at a gate before each write.
    #[derive(Clone)]
    struct Recorder {
        file: Arc<Mutex<Vec<u8>>>,
        gate: Arc<Semaphore>,
        fails_at: u64,
    }

    impl Writer for Recorder {
        async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
            // A gate that is open is a semaphore that is closed.
            let _ = self.gate.acquire().await;
            if offset >= self.fails_at {
                return Err(lost(&"full"));
            }
            let end = offset as usize + bytes.len();
            let mut file = self.file.lock();
            let len = file.len().max(end);
            file.resize(len, 0);
            file[offset as usize..end].copy_from_slice(bytes);
            Ok(())
        }
        async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
            self.write_at(range.start, &vec![0; (range.end - range.start) as usize]).await
        }
        async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
            let mut file = self.file.lock();
            let len = file.len().max(offset as usize);
            file.resize(len, 0);
            Ok(())
        }
        async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
            self.file.lock().resize(size_bytes as usize, 0);
            Ok(())
        }
        fn set_lock_fence(&mut self, _: Option<LockFence>) {}
        async fn sync(&mut self, _: Times, _: u64) -> Result<WriteDone, FileError> {
            Ok(WriteDone { version: self.file.lock().len() as u64, ..WriteDone::default() })
        }
        fn len_bytes(&self) -> u64 {
            0
        }
    }

    struct Bench {
        staged: Staged,
        file: Arc<Mutex<Vec<u8>>>,
        gate: Arc<Semaphore>,
        spool: Arc<Spool>,
        tasks: Tasks,
    }

    impl Bench {
        fn write(&mut self, offset: u64, bytes: &[u8]) {
            self.tasks.run(self.staged.write_at(offset, bytes)).unwrap();
        }

        fn sync(&mut self) -> Result<WriteDone, FileError> {
            self.tasks.run(self.staged.sync(Times::default(), 0))
        }

        fn used_bytes(&self) -> u64 {
            self.spool.budget.used_bytes()
        }
    }

    fn bench(limit_bytes: u64, fails_at: u64) -> Bench {
        let config = SpoolConfig { disk: Arc::new(SimDisk::new(0)), limit_bytes, cluster_id: Vec::new() };
        let (spool, _) = Spool::new(config);
        let (spool, gate) = (Arc::new(spool), Arc::new(Semaphore::new(0)));
        let file = Arc::<Mutex<Vec<u8>>>::default();
        let session = Recorder { file: file.clone(), gate: gate.clone(), fails_at };
        let (staged, task) = Staged::new(session, spool.clone(), 1);
        let mut tasks = Tasks::default();
        tasks.spawn(task.run());
        Bench { staged, file, gate, spool, tasks }
    }

    #[test]
    fn what_is_written_waits_in_files_of_bounded_length_and_arrives_in_order() {
        let mut b = bench(4000, u64::MAX);
        // The gate stays shut: one file is being pushed, two wait.
        for i in 0..3u64 {
            b.write(i * 1000, &[i as u8 + 1; 1000]);
        }
        b.write(500, &[9; 700]);
        assert_eq!((b.used_bytes(), b.file.lock().len()), (3700, 0));
        assert!(b.spool.stats(0).fallbacks == 0);
        b.gate.close();
        b.tasks.run(b.staged.skip_to(3500)).unwrap();
        assert_eq!(b.sync().unwrap().version, 3500);
        let mut wanted = [[1; 1000], [2; 1000], [3; 1000]].concat();
        wanted[500..1200].fill(9);
        wanted.resize(3500, 0);
        assert_eq!((&*b.file.lock(), b.used_bytes()), (&wanted, 0));
        b.tasks.run(b.staged.set_len(10)).unwrap();
        assert_eq!((b.staged.len_bytes(), b.sync().unwrap().version), (10, 10));
    }

    /// Each piece costs memory.
    #[test]
    fn bytes_that_follow_each_other_are_one_piece_however_they_come() {
        let mut b = bench(1 << 30, u64::MAX);
        b.gate.close();
        let wanted: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        for (i, bytes) in wanted.chunks(1000).enumerate() {
            b.write(i as u64 * 1000, bytes);
        }
        assert_eq!(b.staged.segment.as_ref().unwrap().pieces.len(), 3);
        b.write(7, b"apart");
        assert_eq!(b.staged.segment.as_ref().unwrap().pieces.len(), 4);
        b.sync().unwrap();
        let there = b.file.lock().clone();
        assert_eq!((&there[..7], &there[7..12], &there[12..]), (&wanted[..7], &b"apart"[..], &wanted[12..]));
        for i in 0..=MAX_PIECES as u64 {
            b.write(i * 2, b"x");
        }
        assert_eq!(b.staged.segment.as_ref().unwrap().pieces.len(), 1, "the next file");
    }

    #[test]
    fn without_room_bytes_go_by_themselves() {
        let mut b = bench(1000, u64::MAX);
        b.gate.close();
        b.write(0, &[1; 200]);
        b.spool.budget.reserve_bytes(700).unwrap();
        b.write(200, &[2; 5000]);
        b.write(5200, &[3; 5000]);
        assert_eq!(b.sync().unwrap().version, 10_200);
        assert_eq!(*b.file.lock(), [vec![1; 200], vec![2; 5000], vec![3; 5000]].concat());
        assert_eq!(b.spool.stats(0).fallbacks, 1, "said once");
    }

    /// The budget covers all waiting files, however long the written pieces are.
    #[test]
    fn what_comes_in_long_pieces_fits_too() {
        let mut b = bench(4000, u64::MAX);
        b.gate.close();
        for i in 0..20u64 {
            b.write(i * 2900, &vec![i as u8; 2900]);
        }
        assert_eq!((b.sync().unwrap().version, b.used_bytes()), (58_000, 0));
        assert_eq!((b.file.lock()[57_999], b.spool.stats(0).fallbacks), (19, 0));
    }

    #[test]
    fn a_failure_is_everybodys_from_then_on() {
        let mut b = bench(1 << 20, 100);
        b.gate.close();
        b.write(0, &[1; 50]);
        b.write(100, &[2; 50]);
        assert!(b.sync().unwrap_err().to_string().contains("full"));
        assert!(b.sync().is_err() && b.tasks.run(b.staged.set_len(5)).is_err());
        let spool = b.spool.clone();
        drop(b);
        assert_eq!(spool.budget.used_bytes(), 0);
    }
}
