//! Open files: bytes come in order or at any offset, and are cut into chunks run by run.

use super::core::{WriteDone, WriteEvent, WriteParams};
use super::input::{CutRule, Cutting, Stretch};
use super::{Cancel, Writer};
use crate::context::Context;
use crate::error::WriteError;
use bytes::Bytes;
use std::sync::Arc;
use tessera_net::{BufferPool, PooledBuf};
use tessera_wire::meta::CommitMode;

/// An open file: bytes come in order or at any offset, and become visible at [`WriteHandle::sync`] and
/// [`WriteHandle::finish`]. Dropped without either, nothing of what was written since is kept.
pub struct WriteHandle {
    writer: Writer,
    rule: CutRule,
    /// Where in the file offset 0 is (`Append`: as long as the file was at the opening).
    base: u64,
    mode: CommitMode,
    /// Bytes not handed over yet, and where they start.
    run: Run,
    run_at: u64,
    /// Ranges written since the last commit: start → end.
    written: std::collections::BTreeMap<u64, u64>,
    size_bytes: u64,
}

impl WriteHandle {
    pub(crate) fn open(context: &Arc<Context>, params: WriteParams, cancel: Cancel) -> Result<Self, WriteError> {
        let (mode, file) = (params.mode, params.file.clone());
        let writer = Writer::new(context, params, cancel);
        writer.driver.post_and_drive([WriteEvent::Open]);
        let (policy, base_size) = writer.wait(|status| status.opened.take())?;
        let rule = CutRule::of(&policy).map_err(|message| WriteError::Policy { file, message })?;
        Ok(WriteHandle {
            writer,
            rule,
            base: if mode == CommitMode::Append { base_size } else { 0 },
            mode,
            run: Run::new(context.pool.clone()),
            run_at: 0,
            written: Default::default(),
            size_bytes: if mode == CommitMode::Patch { base_size } else { 0 },
        })
    }

    /// Length of the file as written so far (`Append`: of what is appended), in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.size_bytes == 0
    }

    /// Writes behind what was written last.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.write_at(self.run_at + self.run.len() as u64, bytes)
    }

    /// Writes at an offset. Only a handle that patches may go back or leave gaps; what is behind the file's end and not
    /// written is a hole.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let here = self.run_at + self.run.len() as u64;
        if offset != here {
            if self.mode != CommitMode::Patch && offset < here {
                let message = format!("write at {offset} after {here}: open the file to patch it");
                return Err(WriteError::Source { file: self.writer.file.clone(), message });
            }
            self.end_run()?;
            if self.mode != CommitMode::Patch {
                self.hole(here, offset)?;
            }
            self.run_at = offset;
        }
        let end = offset + bytes.len() as u64;
        // Pieces of one commit may not overlap: what is there is committed first.
        let overlaps = |(start, stop): (&u64, &u64)| *start < end && *stop > offset;
        if self.written.range(..end).next_back().is_some_and(overlaps) {
            self.sync()?;
            self.run_at = offset;
        }
        self.size_bytes = self.size_bytes.max(end);
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = RUN_BYTES - self.run.len();
            let (now, later) = rest.split_at(rest.len().min(room));
            self.run.push(now);
            rest = later;
            if now.len() == room {
                self.cut_run(false)?;
            }
        }
        Ok(())
    }

    /// Leaves a hole up to `offset`: the next write goes there, and a file that ends here is that long. Holes cost
    /// neither space nor time.
    pub fn skip_to(&mut self, offset: u64) -> Result<(), WriteError> {
        let here = self.run_at + self.run.len() as u64;
        if offset == here {
            return Ok(());
        }
        self.write_at(offset, &[])
    }

    /// Changes the file's length; what is added is a hole.
    pub fn set_len(&mut self, size_bytes: u64) -> Result<(), WriteError> {
        if self.mode != CommitMode::Patch {
            let message = "only a handle that patches can change the length".to_string();
            return Err(WriteError::Source { file: self.writer.file.clone(), message });
        }
        if size_bytes == self.size_bytes {
            return Ok(());
        }
        if self.run.len() > 0 || !self.written.is_empty() {
            self.sync()?;
        }
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// Records this modification time (ns since 1970) with the next version, instead of when it is committed.
    pub fn set_mtime(&mut self, mtime_ns: i64) {
        self.writer.driver.post_and_drive([WriteEvent::SetMtime { mtime_ns }]);
    }

    /// Names what the next version holds ([`tessera_wire::meta::Commit::content`]).
    pub fn set_content(&mut self, content: u64) {
        self.writer.driver.post_and_drive([WriteEvent::SetContent { content }]);
    }

    /// Makes what was written visible and durable, and goes on.
    pub fn sync(&mut self) -> Result<WriteDone, WriteError> {
        self.end_run()?;
        let done = self.writer.finish(self.size_bytes, true)?;
        self.set_mtime(0);
        self.set_content(0);
        self.written.clear();
        if self.mode == CommitMode::Replace {
            self.mode = CommitMode::Patch;
        }
        Ok(done)
    }

    /// Makes what was written visible and durable, and closes the file.
    pub fn finish(mut self) -> Result<WriteDone, WriteError> {
        self.end_run()?;
        self.writer.finish(self.size_bytes, false)
    }

    fn hole(&mut self, from: u64, to: u64) -> Result<(), WriteError> {
        let index = self.writer.index;
        self.writer.index += 1;
        self.writer.driver.post_and_drive([WriteEvent::Hole { index, offset: from, len_bytes: to - from }]);
        self.written.insert(from, to);
        Ok(())
    }

    fn end_run(&mut self) -> Result<(), WriteError> {
        self.cut_run(true)
    }

    /// Hands over what is cut of the run; all of it if it ends here.
    fn cut_run(&mut self, last: bool) -> Result<(), WriteError> {
        if self.run.len() == 0 {
            return Ok(());
        }
        // Cut from its start each time: a run is cut as a stream of its own, wherever it lies in the file.
        let bytes = self.run.take();
        let mut cutting = Cutting::new(self.rule, self.base + self.run_at);
        let (chunks, rest) = cutting.feed(&Stretch { bytes, fresh: 0, last });
        let start = self.run_at;
        for (offset, data) in chunks {
            let (from, to) = (start + offset, start + offset + data.len() as u64);
            self.written.insert(from, to);
            self.writer.add(from, data)?;
            self.run_at = to;
        }
        self.run.push(&rest);
        Ok(())
    }
}

/// A run is cut when it is this long: more than the longest chunk, so that there is always something to be cut.
const RUN_BYTES: usize = 2 * tessera_policy::MAX_CHUNK_BYTES as usize;
/// A run that has not grown beyond this has a short buffer.
const SHORT_RUN_BYTES: usize = 256 << 10;

/// Bytes one after the other, in pooled memory: fresh pages cost more than copying into them.
struct Run {
    pool: BufferPool,
    buffer: Option<PooledBuf>,
    len: usize,
}

impl Run {
    fn new(pool: BufferPool) -> Run {
        Run { pool, buffer: None, len: 0 }
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Puts bytes behind those that are there; [`RUN_BYTES`] at most in all.
    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        let room = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if end > room {
            let mut larger = self.pool.get(if end <= SHORT_RUN_BYTES { SHORT_RUN_BYTES } else { RUN_BYTES.max(end) });
            if let Some(buffer) = &self.buffer {
                larger[..self.len].copy_from_slice(&buffer[..self.len]);
            }
            self.buffer = Some(larger);
        }
        if let Some(buffer) = &mut self.buffer {
            buffer[self.len..end].copy_from_slice(bytes);
            self.len = end;
        }
    }

    /// All of them; none are left.
    fn take(&mut self) -> Bytes {
        let len = std::mem::take(&mut self.len);
        self.buffer.take().map_or_else(Bytes::new, |mut buffer| {
            buffer.truncate(len);
            buffer.freeze()
        })
    }
}

impl std::io::Write for WriteHandle {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        WriteHandle::write(self, bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
