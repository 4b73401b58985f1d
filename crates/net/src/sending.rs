//! Writes frames: gathered, from memory or straight from a file. The first thread that sends also writes what other
//! threads queue meanwhile.

use crate::endpoint::Stream;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Bytes of frames that may wait for a slow peer; beyond this, senders block.
const QUEUE_LIMIT_BYTES: usize = 32 << 20;
/// Slices per `writev` (POSIX allows 1,024).
const MAX_SLICES: usize = 512;

/// A range of an open file, sent without passing through user space.
#[derive(Clone)]
pub struct FileRange {
    /// The file; stays open while queued even if its name is removed.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileRange({}+{})", self.offset, self.len)
    }
}

/// A piece of a payload.
#[derive(Debug, Clone)]
pub enum Part {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes of a file.
    File(FileRange),
}

impl Part {
    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::File(range) => range.len as usize,
        }
    }
}

#[derive(Default)]
struct Queue {
    parts: VecDeque<Part>,
    bytes: usize,
    writing: bool,
    failed: bool,
}

/// The sending half of a connection.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    room: Condvar,
}

impl Outbox {
    /// Queues a frame, and writes the queue unless another thread is writing it.
    ///
    /// # Errors
    /// The stream failed, now or before.
    pub(crate) fn send(&self, stream: &Stream, parts: impl IntoIterator<Item = Part>) -> io::Result<()> {
        let mut queue = self.queue.lock();
        while queue.writing && queue.bytes > QUEUE_LIMIT_BYTES && !queue.failed {
            self.room.wait(&mut queue);
        }
        if queue.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for part in parts.into_iter().filter(|part| part.len_bytes() > 0) {
            queue.bytes += part.len_bytes();
            queue.parts.push_back(part);
        }
        if queue.writing {
            return Ok(());
        }
        queue.writing = true;
        while !queue.parts.is_empty() {
            let batch = std::mem::take(&mut queue.parts);
            queue.bytes = 0;
            self.room.notify_all();
            let written = parking_lot::MutexGuard::unlocked(&mut queue, || write_all(stream, batch));
            if let Err(error) = written {
                queue.failed = true;
                queue.writing = false;
                self.room.notify_all();
                return Err(error);
            }
        }
        queue.writing = false;
        Ok(())
    }

    /// Makes waiting senders fail.
    pub(crate) fn close(&self) {
        self.queue.lock().failed = true;
        self.room.notify_all();
    }
}

fn write_all(stream: &Stream, mut parts: VecDeque<Part>) -> io::Result<()> {
    while let Some(first) = parts.front_mut() {
        let written = match first {
            Part::File(range) => {
                let mut offset = range.offset;
                let count = usize::try_from(range.len).unwrap_or(usize::MAX).min(1 << 30);
                match rustix::fs::sendfile(&stream.0, range.file.as_fd(), Some(&mut offset), count)? {
                    0 => {
                        return Err(io::Error::new(
                            io::ErrorKind::UnexpectedEof,
                            "the file became shorter while it was sent",
                        ));
                    }
                    n => n,
                }
            }
            Part::Bytes(_) => {
                let in_memory = |part: &'_ Part| match part {
                    Part::Bytes(bytes) => Some(bytes.clone()),
                    Part::File(_) => None,
                };
                let held: Vec<Bytes> = parts.iter().map_while(in_memory).take(MAX_SLICES).collect();
                let slices: Vec<IoSlice<'_>> = held.iter().map(|b| IoSlice::new(b)).collect();
                match rustix::io::writev(&stream.0, &slices) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => n,
                    Err(rustix::io::Errno::INTR) => 0,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        advance(&mut parts, written);
    }
    Ok(())
}

fn advance(parts: &mut VecDeque<Part>, mut written: usize) {
    while written > 0 {
        let Some(first) = parts.front_mut() else { panic!("{written} bytes more were written than queued") };
        let step = written.min(first.len_bytes());
        match first {
            Part::Bytes(bytes) => drop(bytes.split_to(step)),
            Part::File(range) => {
                range.offset += step as u64;
                range.len -= step as u64;
            }
        }
        written -= step;
        if first.len_bytes() == 0 {
            parts.pop_front();
        }
    }
}
