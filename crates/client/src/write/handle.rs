//! Open files: bytes come in order or at any offset; each run of them is cut into chunks.

use super::core::{Times, WriteDone, WriteParams, WriteRequest};
use super::input::{CutRule, Cutting, Stretch};
use super::{Cancel, Writer};
use crate::context::Context;
use crate::error::{Cause, FileError};
use crate::memory::Means;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tessera_net::PooledBuf;
use tessera_wire::meta::{CommitMode, LockFence};

/// An open file: bytes come in order or at any offset, and become visible at [`WriteHandle::sync`] and
/// [`WriteHandle::finish`]. Dropping it discards everything written since the last of these.
pub struct WriteHandle {
    writer: Writer,
    rule: CutRule,
    mode: CommitMode,
    /// Bytes not handed over yet, and their offset.
    run: Run,
    run_at: u64,
    /// Ranges written since the last commit: start → end.
    written: std::collections::BTreeMap<u64, u64>,
    /// Some of these ranges lie before ones that were written earlier.
    goes_back: bool,
    size_bytes: u64,
    /// Where what was written or left out since the last commit ends.
    end_bytes: u64,
    /// The length was set since the last commit: it holds even if another writer made the file longer.
    cuts: bool,
    lock_fence: Option<LockFence>,
}

impl WriteHandle {
    pub(crate) fn open(
        context: &Arc<Context>,
        params: WriteParams,
        cancel: Cancel,
        means: Means,
    ) -> Result<Self, FileError> {
        let (mode, file) = (params.mode, params.file.clone());
        assert!(mode != CommitMode::Append, "a handle begins at offset 0 or over the version below");
        let mut writer = Writer::new(context, params, cancel, means);
        writer.driver.post_and_drive([WriteRequest::Open]);
        let (policy, base_size) = writer.wait(|status| status.opened.take())?;
        let rule = CutRule::of(&policy).map_err(|message| Cause::Policy(message).of(file))?;
        writer.means.fit(&policy);
        let run = Run { buffer: writer.means.empty_buffer(), len: 0 };
        Ok(WriteHandle {
            writer,
            rule,
            mode,
            run,
            run_at: 0,
            written: Default::default(),
            goes_back: false,
            size_bytes: if mode == CommitMode::Patch { base_size } else { 0 },
            end_bytes: 0,
            cuts: false,
            lock_fence: None,
        })
    }

    /// Length of the file as written so far, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Writes after the last written byte.
    ///
    /// # Errors
    /// As [`WriteHandle::write_at`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.write_at(self.run_at + self.run.len as u64, bytes)
    }

    /// Writes at an offset. Only a handle that patches may go back or leave gaps; bytes past the file's end that are
    /// not written are a hole.
    ///
    /// # Errors
    /// The write failed; bytes written since the last sync are lost.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let end = self.end_of(offset, bytes.len() as u64)?;
        self.go_to(offset, end)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.run_bytes() - self.run.len;
            let (now, later) = rest.split_at(rest.len().min(room));
            self.push(now)?;
            rest = later;
            if now.len() == room {
                self.cut_run(false)?;
            }
        }
        Ok(())
    }

    /// Makes bytes zeros, also those that another writer has committed there by then. Costs neither space nor time.
    ///
    /// # Errors
    /// As [`WriteHandle::write_at`].
    pub fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        if range.is_empty() {
            return Ok(());
        }
        self.end_of(range.end, 0)?;
        self.go_to(range.start, range.end)?;
        self.cut_run(true)?;
        self.hole(range.start, range.end)?;
        self.run_at = range.end;
        Ok(())
    }

    /// Where bytes at an offset end.
    ///
    /// # Errors
    /// No file is so long. Nothing has changed.
    fn end_of(&self, offset: u64, len_bytes: u64) -> Result<u64, FileError> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= MAX_FILE_BYTES);
        end.ok_or_else(|| {
            let message = format!("{len_bytes} bytes at {offset}: a file has at most {MAX_FILE_BYTES} bytes");
            Cause::Input(message).of(&self.writer.file)
        })
    }

    /// Prepares for bytes from `offset` to `end`.
    fn go_to(&mut self, offset: u64, end: u64) -> Result<(), FileError> {
        let here = self.run_at + self.run.len as u64;
        if offset != here {
            if self.mode != CommitMode::Patch && offset < here {
                let message = format!("write at {offset} after {here}: open the file to patch it");
                return Err(Cause::Input(message).of(&self.writer.file));
            }
            self.cut_run(true)?;
            if self.mode != CommitMode::Patch {
                self.hole(here, offset)?;
            }
            self.run_at = offset;
        }
        // Extents of one commit may not overlap: commit the earlier bytes first.
        if self.overlaps(offset..end) || self.is_behind_staged(offset) {
            self.sync()?;
            self.run_at = offset;
        }
        self.blank_cut(offset)?;
        (self.size_bytes, self.end_bytes) = (self.size_bytes.max(end), self.end_bytes.max(end));
        Ok(())
    }

    fn overlaps(&self, range: Range<u64>) -> bool {
        self.written.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Whether extents behind `offset` may have been staged, as those of a long commit are while they come in order.
    fn is_behind_staged(&self, offset: u64) -> bool {
        let is_long = self.written.len() >= self.writer.driver.context().options.commit_extents;
        is_long && !self.goes_back && offset < self.written_to()
    }

    /// Where the ranges written since the last commit end.
    fn written_to(&self) -> u64 {
        self.written.last_key_value().map_or(0, |(_, end)| *end)
    }

    fn note_written(&mut self, from: u64, to: u64) {
        self.goes_back |= from < self.written_to();
        self.written.insert(from, to);
    }

    /// The file goes on at `offset`. What a length has cut off since the last commit does not come back below it.
    fn blank_cut(&mut self, offset: u64) -> Result<(), FileError> {
        match self.cuts && offset > self.size_bytes {
            true => self.hole(self.size_bytes, offset),
            false => Ok(()),
        }
    }

    /// Leaves a hole up to `offset`, where the next write goes; a file that ends here has that length. Holes cost
    /// neither space nor time.
    ///
    /// # Errors
    /// As [`WriteHandle::write_at`].
    pub fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        // Also if the handle is there: another writer, or `set_len`, may have made the file shorter.
        self.write_at(offset, &[])
    }

    /// Changes the file's length; growing it adds a hole.
    ///
    /// # Errors
    /// As [`WriteHandle::write_at`]; or the handle does not patch.
    pub fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        if self.mode != CommitMode::Patch {
            let message = "only a handle that patches can change the length".to_string();
            return Err(Cause::Input(message).of(&self.writer.file));
        }
        self.end_of(size_bytes, 0)?;
        if size_bytes != self.size_bytes && (self.run.len > 0 || !self.written.is_empty()) {
            self.sync()?;
        }
        self.blank_cut(size_bytes)?;
        // The file may be longer than this handle knows.
        self.cuts = true;
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// Sets the times that commits record from now on.
    pub fn set_times(&mut self, times: Times) {
        self.writer.driver.post_and_drive([WriteRequest::SetTimes { times }]);
    }

    /// Sets [`tessera_wire::meta::Commit::content`] of the next version.
    pub fn set_content(&mut self, content: u64) {
        self.writer.driver.post_and_drive([WriteRequest::SetContent { content }]);
    }

    /// Sets the fence of the locks held on the file, which commits name from now on.
    pub fn set_lock_fence(&mut self, fence: Option<LockFence>) {
        if std::mem::replace(&mut self.lock_fence, fence) != fence {
            self.writer.driver.post_and_drive([WriteRequest::SetLockFence { fence }]);
        }
    }

    /// Makes the written bytes visible and durable; the file stays open.
    ///
    /// # Errors
    /// The write failed; bytes written since the last sync are lost.
    pub fn sync(&mut self) -> Result<WriteDone, FileError> {
        self.cut_run(true)?;
        let done = self.writer.finish(self.commit_bytes(), self.cuts, true)?;
        (self.cuts, self.end_bytes) = (false, 0);
        self.set_times(Times::default());
        self.set_content(0);
        self.written.clear();
        self.goes_back = false;
        if self.mode == CommitMode::Replace {
            self.mode = CommitMode::Patch;
        }
        Ok(done)
    }

    /// Makes the written bytes visible and durable, and closes the file.
    ///
    /// # Errors
    /// As [`WriteHandle::sync`].
    pub fn finish(mut self) -> Result<WriteDone, FileError> {
        self.cut_run(true)?;
        self.writer.finish(self.commit_bytes(), self.cuts, false)
    }

    /// Length that the next version has at least, and at most if the length was set. Of a patch it is where its bytes end: the
    /// version below may be shorter by now than it was when the session began.
    fn commit_bytes(&self) -> u64 {
        match self.mode {
            CommitMode::Patch if !self.cuts => self.end_bytes,
            _ => self.size_bytes,
        }
    }

    fn hole(&mut self, from: u64, to: u64) -> Result<(), FileError> {
        let index = self.writer.index;
        self.writer.index += 1;
        self.writer.driver.post_and_drive([WriteRequest::Hole { index, offset: from, len_bytes: to - from }]);
        self.note_written(from, to);
        Ok(())
    }

    /// Hands over the finished chunks of the run; all of it if it ends here.
    fn cut_run(&mut self, last: bool) -> Result<(), FileError> {
        if self.run.len == 0 {
            return Ok(());
        }
        self.writer.driver.post_and_drive([WriteRequest::Length { size_bytes: self.size_bytes }]);
        // Each run is cut as its own stream, from its start, wherever it is in the file.
        let bytes = self.run.take(self.writer.means.empty_buffer());
        let mut cutting = Cutting::new(self.rule, self.run_at);
        let (chunks, rest) = cutting.feed(&Stretch { bytes, fresh: 0, last });
        let start = self.run_at;
        for (offset, data) in chunks {
            let (from, to) = (start + offset, start + offset + data.len() as u64);
            let before = self.written.range(..to).next_back().filter(|(_, end)| **end > from);
            assert!(before.is_none(), "bytes {from} to {to} are cut again, after {before:?}");
            self.note_written(from, to);
            self.writer.add(from, data)?;
            self.run_at = to;
        }
        self.push(&rest)
    }

    /// A run is cut when it is this long. It exceeds the longest chunk, so there is always a chunk to cut.
    fn run_bytes(&self) -> usize {
        self.writer.means.buffer_bytes.min(RUN_BYTES)
    }

    /// Appends bytes to the run, which holds at most [`WriteHandle::run_bytes`].
    fn push(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let (end, most) = (self.run.len + bytes.len(), self.run_bytes());
        assert!(end <= most, "a run of {end} bytes");
        if end > self.run.buffer.len() {
            let Writer { means, cancel, file, .. } = &self.writer;
            let larger = means.buffer(if end <= SHORT_RUN_BYTES { SHORT_RUN_BYTES.min(most) } else { most }, cancel);
            self.run.grow(larger.ok_or_else(|| Cause::Cancelled.of(file))?);
        }
        self.run.push(bytes);
        Ok(())
    }
}

/// The manager refuses longer files.
const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// Most bytes of a run.
const RUN_BYTES: usize = 2 * tessera_policy::MAX_CHUNK_BYTES as usize;
/// Up to this length, a run has a short buffer.
const SHORT_RUN_BYTES: usize = 256 << 10;

/// Consecutive bytes in pooled memory: fresh pages cost more than copying into used ones.
struct Run {
    buffer: PooledBuf,
    len: usize,
}

impl Run {
    /// Goes on in a longer buffer.
    fn grow(&mut self, mut longer: PooledBuf) {
        longer[..self.len].copy_from_slice(&self.buffer[..self.len]);
        self.buffer = longer;
    }

    /// Appends bytes that fit.
    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.buffer[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// Takes all bytes and leaves the run empty.
    fn take(&mut self, empty: PooledBuf) -> Bytes {
        let mut buffer = std::mem::replace(&mut self.buffer, empty);
        buffer.truncate(std::mem::take(&mut self.len));
        buffer.freeze()
    }
}
