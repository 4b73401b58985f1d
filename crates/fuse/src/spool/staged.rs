//! Incremental writes: bytes go to local files of bounded length in turn; while one fills, the ones before it are
//! pushed (stdchk; dissertation, section 3.5.3.2).
//!
//! A [`Staged`] write stands before a write session that runs on its own thread. Operations reach the session in order.
//! The bytes in the files are lost with the process; none of them was acknowledged. When the budget is used up, bytes
//! go to the session directly.

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tessera_accel::checksum::{crc32c, crc32c_append};
use tessera_client::{Cause, FileError, WriteDone, WriteHandle};
use tessera_mount::spool::budget::Budget;

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

/// Events of a staged file.
#[derive(Debug)]
pub enum Told<'a> {
    /// A local file is full or complete, and is pushed.
    Segment,
    /// Why bytes bypass the local files from here on.
    FallsBack(&'a str),
}

/// Operations of a write session.
pub trait Writes: Send + 'static {
    /// Writes at an offset.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;
    /// Leaves a hole up to `offset`.
    fn skip_to(&mut self, offset: u64) -> Result<(), FileError>;
    /// Changes the length.
    fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError>;
    /// Sets the next version's modification time.
    fn set_mtime(&mut self, mtime_ns: i64);
    /// Sets the name of the next version's content.
    fn set_content(&mut self, content: u64);
    /// Commits what was written.
    fn sync(&mut self) -> Result<WriteDone, FileError>;
    /// Length of the file as written so far.
    fn len_bytes(&self) -> u64;
    /// A handle that waits until everything written is in the session; none: it is there already.
    fn drained(&mut self) -> Option<Drained> {
        None
    }
}

impl Writes for WriteHandle {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        WriteHandle::write_at(self, offset, bytes)
    }
    fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        WriteHandle::skip_to(self, offset)
    }
    fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        WriteHandle::set_len(self, size_bytes)
    }
    fn set_mtime(&mut self, mtime_ns: i64) {
        WriteHandle::set_mtime(self, mtime_ns);
    }
    fn set_content(&mut self, content: u64) {
        WriteHandle::set_content(self, content);
    }
    fn sync(&mut self) -> Result<WriteDone, FileError> {
        WriteHandle::sync(self)
    }
    fn len_bytes(&self) -> u64 {
        WriteHandle::len_bytes(self)
    }
}

/// One local file with part of the written bytes.
struct Segment {
    file: File,
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
    fn create(dir: &Path, budget: &Arc<Budget>) -> io::Result<Segment> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = dir.join(format!("{:x}.segment", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Segment { file, pieces: Vec::new(), bytes: 0, budget: budget.clone() })
    }

    /// Appends bytes; returns why not if the disk or the budget refuses.
    fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.budget.reserve_bytes(bytes.len() as u64).map_err(|e| e.to_string())?;
        if let Err(error) = self.file.write_all_at(bytes, self.bytes) {
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

    fn push(&self, to: &mut impl Writes, abandoned: &AtomicBool) -> Result<(), FileError> {
        let (mut at, mut buffer) = (0, Vec::new());
        for piece in &self.pieces {
            if abandoned.load(Ordering::Acquire) {
                return Ok(());
            }
            buffer.resize(piece.len_bytes, 0);
            self.file.read_exact_at(&mut buffer, at).map_err(|e| lost(&e))?;
            if crc32c(&buffer) != piece.crc {
                return Err(lost(&"what is read is not what was written"));
            }
            to.write_at(piece.offset, &buffer)?;
            at += piece.len_bytes as u64;
        }
        Ok(())
    }
}

fn lost(error: &dyn std::fmt::Display) -> FileError {
    Cause::Input(error.to_string()).of("the spool")
}

type Reply<T> = Sender<Result<T, FileError>>;

enum Job {
    Segment(Segment),
    Bytes(u64, Bytes),
    Skip(u64),
    SetLen(u64, Reply<()>),
    SetMtime(i64),
    SetContent(u64),
    Sync(Reply<WriteDone>),
    /// Reply when all jobs before this one are done.
    Tell(Reply<()>),
}

/// See the module.
pub struct Staged {
    jobs: Sender<Job>,
    abandoned: Arc<AtomicBool>,
    failed: Arc<Mutex<Option<FileError>>>,
    dir: PathBuf,
    budget: Arc<Budget>,
    segment: Option<Segment>,
    size_bytes: u64,
    /// The local disk failed or is full; logged once.
    without: bool,
    tell: Box<dyn Fn(Told<'_>) + Send>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Release);
    }
}

/// Waits for the session without the file's lock.
pub struct Drained(Sender<Job>);

impl Drained {
    /// Waits until everything handed over is in the session.
    pub fn wait(&self) {
        let (reply, done) = bounded(1);
        if self.0.send(Job::Tell(reply)).is_ok() {
            let _ = done.recv();
        }
    }
}

impl Staged {
    /// Stands before `session`, with files in `dir`; `tell` hears the events.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new<W: Writes>(
        session: W,
        dir: &Path,
        budget: Arc<Budget>,
        tell: impl Fn(Told<'_>) + Send + 'static,
    ) -> io::Result<Staged> {
        let (jobs, todo) = bounded(WAITING);
        let (abandoned, failed) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Option<FileError>>>::default());
        let size_bytes = session.len_bytes();
        let (gives_up, fails) = (abandoned.clone(), failed.clone());
        std::thread::Builder::new().name("stage".into()).spawn(move || run(session, &todo, &gives_up, &fails))?;
        let (dir, tell) = (dir.to_path_buf(), Box::new(tell));
        Ok(Staged { jobs, abandoned, failed, dir, budget, segment: None, size_bytes, without: false, tell })
    }

    fn hand_over(&self, job: Job) -> Result<(), FileError> {
        if let Some(error) = self.failed.lock().clone() {
            return Err(error);
        }
        self.jobs.send(job).map_err(|_| lost(&"the thread that pushes is gone"))
    }

    fn end_segment(&mut self) -> Result<(), FileError> {
        match self.segment.take() {
            Some(segment) => {
                (self.tell)(Told::Segment);
                self.hand_over(Job::Segment(segment))
            }
            None => Ok(()),
        }
    }

    fn ask<T>(&mut self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, FileError> {
        self.end_segment()?;
        let (reply, answer) = bounded(1);
        self.hand_over(job(reply))?;
        answer.recv().unwrap_or_else(|_| Err(lost(&"the thread that pushes is gone")))
    }

    /// Writes to a local file, or to the session if the disk or the budget refuses.
    fn write_part(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        if let Err(why) = self.stage(offset, bytes) {
            if !std::mem::replace(&mut self.without, true) {
                (self.tell)(Told::FallsBack(&why));
            }
            self.end_segment()?;
            self.hand_over(Job::Bytes(offset, Bytes::copy_from_slice(bytes)))?;
        }
        self.size_bytes = self.size_bytes.max(offset + bytes.len() as u64);
        Ok(())
    }

    /// Appends to the current local file; returns why not.
    fn stage(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let mut segment = match self.segment.take() {
            Some(segment) => segment,
            None => Segment::create(&self.dir, &self.budget).map_err(|e| e.to_string())?,
        };
        let done = segment.append(offset, bytes);
        self.segment = Some(segment).filter(|segment| segment.bytes > 0);
        done
    }
}

impl Writes for Staged {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let full = SEGMENT_BYTES.min(self.budget.limit_bytes() / SEGMENTS).max(1);
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            // A local file stays within its length, so that the budget covers all files that may wait.
            let left = full - self.segment.as_ref().map_or(0, |segment| segment.bytes);
            let (now, later) = rest.split_at(rest.len().min(left as usize));
            self.write_part(offset, now)?;
            if self.segment.as_ref().is_some_and(|s| s.bytes >= full || s.pieces.len() >= MAX_PIECES) {
                self.end_segment()?;
            }
            (offset, rest) = (offset + now.len() as u64, later);
        }
        Ok(())
    }

    fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        self.end_segment()?;
        self.size_bytes = self.size_bytes.max(offset);
        self.hand_over(Job::Skip(offset))
    }

    fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        self.size_bytes = size_bytes;
        self.ask(|reply| Job::SetLen(size_bytes, reply))
    }

    fn set_mtime(&mut self, mtime_ns: i64) {
        // The next operation that returns an error reports a failure.
        let _ = self.end_segment().and_then(|()| self.hand_over(Job::SetMtime(mtime_ns)));
    }

    fn set_content(&mut self, content: u64) {
        let _ = self.end_segment().and_then(|()| self.hand_over(Job::SetContent(content)));
    }

    fn sync(&mut self) -> Result<WriteDone, FileError> {
        self.ask(Job::Sync)
    }

    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn drained(&mut self) -> Option<Drained> {
        // The commit reports a failure.
        let _ = self.end_segment();
        Some(Drained(self.jobs.clone()))
    }
}

/// Carries out the jobs until the sender is gone. After a failure nothing more is written.
fn run<W: Writes>(mut session: W, jobs: &Receiver<Job>, abandoned: &AtomicBool, failed: &Mutex<Option<FileError>>) {
    for job in jobs {
        let before = failed.lock().clone();
        if abandoned.load(Ordering::Acquire) {
            // Dropping the job tells a waiting caller that there is no answer.
            continue;
        }
        let refused = |error: &FileError| Err(error.clone());
        let done = match (job, &before) {
            (Job::SetLen(_, reply) | Job::Tell(reply), Some(error)) => reply.send(refused(error)).or(Ok(())),
            (Job::Sync(reply), Some(error)) => reply.send(Err(error.clone())).or(Ok(())),
            (_, Some(_)) => Ok(()),
            (Job::Segment(segment), None) => segment.push(&mut session, abandoned),
            (Job::Bytes(offset, bytes), None) => session.write_at(offset, &bytes),
            (Job::Skip(offset), None) => session.skip_to(offset),
            (Job::SetMtime(mtime_ns), None) => {
                session.set_mtime(mtime_ns);
                Ok(())
            }
            (Job::SetContent(content), None) => {
                session.set_content(content);
                Ok(())
            }
            (Job::SetLen(size_bytes, reply), None) => answer(session.set_len(size_bytes), &reply),
            (Job::Sync(reply), None) => answer(session.sync(), &reply),
            (Job::Tell(reply), None) => answer(Ok(()), &reply),
        };
        if let Err(error) = done {
            *failed.lock() = Some(error);
        }
    }
}

fn answer<T>(result: Result<T, FileError>, reply: &Reply<T>) -> Result<(), FileError> {
    let failed = result.as_ref().err().cloned();
    let _ = reply.send(result);
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that records its operations and waits at a gate before each write.
    #[derive(Clone)]
    struct Kept {
        file: Arc<Mutex<Vec<u8>>>,
        gate: Receiver<()>,
        fails_at: u64,
    }

    impl Writes for Kept {
        fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
            let _ = self.gate.recv();
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
        fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
            let mut file = self.file.lock();
            let len = file.len().max(offset as usize);
            file.resize(len, 0);
            Ok(())
        }
        fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
            self.file.lock().resize(size_bytes as usize, 0);
            Ok(())
        }
        fn set_mtime(&mut self, _: i64) {}
        fn set_content(&mut self, _: u64) {}
        fn sync(&mut self) -> Result<WriteDone, FileError> {
            Ok(WriteDone { version: self.file.lock().len() as u64, ..WriteDone::default() })
        }
        fn len_bytes(&self) -> u64 {
            0
        }
    }

    struct Bench {
        staged: Staged,
        file: Arc<Mutex<Vec<u8>>>,
        open_gate: Sender<()>,
        budget: Arc<Budget>,
        fallbacks: Arc<Mutex<Vec<String>>>,
        _dir: tempfile::TempDir,
    }

    fn bench(limit_bytes: u64, fails_at: u64) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let (open_gate, gate) = crossbeam_channel::unbounded();
        let file = Arc::<Mutex<Vec<u8>>>::default();
        let budget = Arc::new(Budget::new(limit_bytes));
        let fallbacks = Arc::<Mutex<Vec<String>>>::default();
        let hears = fallbacks.clone();
        let kept = Kept { file: file.clone(), gate, fails_at };
        let tell = move |told: Told<'_>| match told {
            Told::FallsBack(why) => hears.lock().push(why.into()),
            Told::Segment => {}
        };
        let staged = Staged::new(kept, dir.path(), budget.clone(), tell).unwrap();
        Bench { staged, file, open_gate, budget, fallbacks, _dir: dir }
    }

    #[test]
    fn what_is_written_waits_in_files_of_bounded_length_and_arrives_in_order() {
        let mut b = bench(4000, u64::MAX);
        // The gate stays shut: one file is being pushed, two wait.
        for i in 0..3u64 {
            b.staged.write_at(i * 1000, &[i as u8 + 1; 1000]).unwrap();
        }
        b.staged.write_at(500, &[9; 700]).unwrap();
        assert_eq!((b.budget.used_bytes(), b.file.lock().len()), (3700, 0));
        assert!(b.fallbacks.lock().is_empty());
        drop(std::mem::replace(&mut b.open_gate, bounded(1).0));
        b.staged.skip_to(3500).unwrap();
        assert_eq!(b.staged.sync().unwrap().version, 3500);
        let mut wanted = [[1; 1000], [2; 1000], [3; 1000]].concat();
        wanted[500..1200].fill(9);
        wanted.resize(3500, 0);
        assert_eq!((&*b.file.lock(), b.budget.used_bytes()), (&wanted, 0));
        b.staged.set_len(10).unwrap();
        assert_eq!((b.staged.len_bytes(), b.staged.sync().unwrap().version), (10, 10));
    }

    /// Each piece costs memory.
    #[test]
    fn bytes_that_follow_each_other_are_one_piece_however_they_come() {
        let mut b = bench(1 << 30, u64::MAX);
        drop(std::mem::replace(&mut b.open_gate, bounded(1).0));
        let wanted: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        for (i, bytes) in wanted.chunks(1000).enumerate() {
            b.staged.write_at(i as u64 * 1000, bytes).unwrap();
        }
        assert_eq!(b.staged.segment.as_ref().unwrap().pieces.len(), 3);
        b.staged.write_at(7, b"apart").unwrap();
        assert_eq!(b.staged.segment.as_ref().unwrap().pieces.len(), 4);
        b.staged.sync().unwrap();
        let there = b.file.lock().clone();
        assert_eq!((&there[..7], &there[7..12], &there[12..]), (&wanted[..7], &b"apart"[..], &wanted[12..]));
        for i in 0..=MAX_PIECES as u64 {
            b.staged.write_at(i * 2, b"x").unwrap();
        }
        assert_eq!(b.staged.segment.as_ref().unwrap().pieces.len(), 1, "the next file");
    }

    #[test]
    fn without_room_bytes_go_by_themselves() {
        let mut b = bench(1000, u64::MAX);
        drop(std::mem::replace(&mut b.open_gate, bounded(1).0));
        b.staged.write_at(0, &[1; 200]).unwrap();
        b.budget.reserve_bytes(700).unwrap();
        b.staged.write_at(200, &[2; 5000]).unwrap();
        b.staged.write_at(5200, &[3; 5000]).unwrap();
        assert_eq!(b.staged.sync().unwrap().version, 10_200);
        assert_eq!(*b.file.lock(), [vec![1; 200], vec![2; 5000], vec![3; 5000]].concat());
        assert_eq!(b.fallbacks.lock().len(), 1, "said once");
    }

    /// The budget covers all waiting files, however long the written pieces are.
    #[test]
    fn what_comes_in_long_pieces_fits_too() {
        let mut b = bench(4000, u64::MAX);
        drop(std::mem::replace(&mut b.open_gate, bounded(1).0));
        for i in 0..20u64 {
            b.staged.write_at(i * 2900, &vec![i as u8; 2900]).unwrap();
        }
        assert_eq!((b.staged.sync().unwrap().version, b.budget.used_bytes()), (58_000, 0));
        assert_eq!((b.file.lock()[57_999], b.fallbacks.lock().len()), (19, 0));
    }

    #[test]
    fn a_failure_is_everybodys_from_then_on() {
        let mut b = bench(1 << 20, 100);
        drop(std::mem::replace(&mut b.open_gate, bounded(1).0));
        b.staged.write_at(0, &[1; 50]).unwrap();
        b.staged.write_at(100, &[2; 50]).unwrap();
        assert!(b.staged.sync().unwrap_err().to_string().contains("full"));
        assert!(b.staged.sync().is_err() && b.staged.set_len(5).is_err());
        let budget = b.budget.clone();
        drop(b);
        assert_eq!(budget.used_bytes(), 0);
    }
}
