//! Pieces of frames on their way out: from memory, gathered, or straight from a file. Nothing here waits.

use crate::endpoint::Stream;
use bytes::Bytes;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

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

/// What a frame is for; its request's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A request of this side.
    Call(u64),
    /// The answer to a request of the peer.
    Answer(u64),
}

/// A frame on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub purpose: Purpose,
    /// Some of its bytes are written: the rest must follow.
    pub has_begun: bool,
    /// What is left of it; none is empty.
    pub parts: VecDeque<Part>,
}

impl Outgoing {
    pub fn new(purpose: Purpose, parts: impl IntoIterator<Item = Part>) -> Outgoing {
        let parts = parts.into_iter().filter(|part| part.len_bytes() > 0).collect();
        Outgoing { purpose, has_begun: false, parts }
    }

    pub fn len_bytes(&self) -> usize {
        self.parts.iter().map(Part::len_bytes).sum()
    }

    /// Takes so many bytes off that were written, as far as it has them. Returns how many.
    fn advance(&mut self, written: usize) -> usize {
        let mut left = written;
        self.has_begun = true;
        while left > 0
            && let Some(first) = self.parts.front_mut()
        {
            let step = left.min(first.len_bytes());
            match first {
                Part::Bytes(bytes) => drop(bytes.split_to(step)),
                Part::File(range) => {
                    range.offset += step as u64;
                    range.len -= step as u64;
                }
            }
            left -= step;
            if first.len_bytes() == 0 {
                self.parts.pop_front();
            }
        }
        written - left
    }
}

/// Which parts a thread may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writable {
    /// All: the thread serves this connection alone, and may wait for the file's disk.
    All,
    /// Those in memory.
    Memory,
}

/// Writes what the socket takes at once, about `most_bytes` at most, and removes it from `frames`. Returns the bytes
/// written and whether it may go on now: not if the socket is full, or if the next part is a file that it may not send.
///
/// # Errors
/// The stream failed, or a file became shorter.
pub(crate) fn write_some(
    stream: &Stream,
    frames: &mut VecDeque<Outgoing>,
    most_bytes: usize,
    what: Writable,
) -> io::Result<(usize, bool)> {
    let mut total = 0;
    while total < most_bytes {
        let written = match frames.front().and_then(|frame| frame.parts.front()) {
            None => break,
            Some(Part::File(_)) if what == Writable::Memory => return Ok((total, false)),
            Some(Part::File(range)) => send_file(stream, range, most_bytes - total),
            Some(Part::Bytes(_)) => send_memory(stream, frames),
        };
        match written {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                advance(frames, n);
                total += n;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((total, false)),
            Err(error) => return Err(error),
        }
    }
    Ok((total, true))
}

fn send_file(stream: &Stream, range: &FileRange, most_bytes: usize) -> io::Result<usize> {
    let mut offset = range.offset;
    let count = usize::try_from(range.len).unwrap_or(usize::MAX).min(most_bytes);
    match rustix::fs::sendfile(&stream.0, range.file.as_fd(), Some(&mut offset), count) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was sent")),
        Ok(n) => Ok(n),
        Err(error) => Err(error.into()),
    }
}

fn send_memory(stream: &Stream, frames: &VecDeque<Outgoing>) -> io::Result<usize> {
    let in_memory = |part: &Part| match part {
        Part::Bytes(bytes) => Some(bytes.clone()),
        Part::File(_) => None,
    };
    let parts = frames.iter().flat_map(|frame| &frame.parts);
    let held: Vec<Bytes> = parts.map_while(in_memory).take(MAX_SLICES).collect();
    let slices: Vec<IoSlice<'_>> = held.iter().map(|b| IoSlice::new(b)).collect();
    rustix::io::writev(&stream.0, &slices).map_err(|error: Errno| error.into())
}

/// Takes so many bytes off that were written.
pub(crate) fn advance(frames: &mut VecDeque<Outgoing>, mut written: usize) {
    while written > 0 {
        let Some(first) = frames.front_mut() else { panic!("{written} bytes more were written than queued") };
        written -= first.advance(written);
        if first.parts.is_empty() {
            frames.pop_front();
        }
    }
}
