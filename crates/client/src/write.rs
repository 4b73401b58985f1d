//! Writing: whole sources ([`put`]) and open files ([`WriteHandle`]).

use crate::error::WriteError;
use crate::job::{Numbered, Output};
use crate::pipeline::{CutRule, Cutting, Input, Source, Stretch, is_hole};
use crate::session::{Core, Session, Sorted};
use crate::shell::Context;
use crate::write_core::{ChunkReady, SMALL_BYTES, WriteAction, WriteCore, WriteDone, WriteEvent, WriteParams};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tessera_net::{BufferPool, PooledBuf};
use tessera_policy::Policy;
use tessera_wire::meta::CommitMode;
use tessera_wire::rpc::Answer;

/// How far something has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes (or entries) done.
    pub done: u64,
    /// All of them, if known.
    pub total: Option<u64>,
}

/// Hears of progress, on the caller's thread.
pub type ProgressFn<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// Stops an operation from another thread or a signal handler. Clones share.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the operation to stop; it ends with `Cancelled` in a moment.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How often a waiting operation looks whether it was cancelled.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A write core with what its shell has to count.
pub(crate) struct WriteDriver {
    core: WriteCore,
    taken_bytes: u64,
}

/// What the writer sees.
#[derive(Default)]
pub(crate) struct WriteFront {
    opened: Option<(Policy, u64)>,
    done: Option<Result<WriteDone, WriteError>>,
    held_bytes: u64,
    hashing_bytes: u64,
}

impl Core for WriteDriver {
    type Event = WriteEvent;
    type Action = WriteAction;
    type Front = WriteFront;

    fn handle(&mut self, now: i64, event: WriteEvent) {
        if let WriteEvent::Chunk(chunk) = &event {
            self.taken_bytes += chunk.data.len() as u64;
        }
        self.core.handle(now, event);
    }
    fn poll(&mut self) -> Option<WriteAction> {
        self.core.poll()
    }
    fn next_due(&self) -> Option<i64> {
        self.core.next_due()
    }
    fn is_over(&self) -> bool {
        self.core.is_finished()
    }
    fn answer(answer: Answer) -> WriteEvent {
        WriteEvent::Answer(answer)
    }
    fn computed(output: Numbered<Output>) -> WriteEvent {
        WriteEvent::Computed(output)
    }
    fn tick() -> WriteEvent {
        WriteEvent::Tick
    }
    fn give_up() -> WriteEvent {
        WriteEvent::Cancel
    }
    fn sort(action: WriteAction) -> Sorted<WriteAction> {
        match action {
            WriteAction::Call(call) => Sorted::Call(call),
            WriteAction::Compute(job) => Sorted::Compute(job),
            other => Sorted::Show(other),
        }
    }
    fn show(action: WriteAction, front: &mut WriteFront) {
        match action {
            WriteAction::Opened { policy, base_size_bytes } => front.opened = Some((*policy, base_size_bytes)),
            WriteAction::Done(result) => front.done = Some(result),
            WriteAction::Call(_) | WriteAction::Compute(_) | WriteAction::Finished => {}
        }
    }
    fn refresh(&mut self, front: &mut WriteFront) -> bool {
        let before = (front.held_bytes, front.hashing_bytes);
        front.held_bytes = self.core.held_bytes();
        front.hashing_bytes = front.hashing_bytes.saturating_sub(std::mem::take(&mut self.taken_bytes));
        before != (front.held_bytes, front.hashing_bytes)
    }
}

/// Pieces of input on their way into a session.
struct Writer {
    session: Arc<Session<WriteDriver>>,
    file: String,
    index: u64,
    cancel: Cancel,
    /// Committed for good: nothing is left to be given up.
    over: bool,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.over {
            self.session.push_here([WriteEvent::Cancel]);
        }
    }
}

impl Writer {
    fn new(context: &Arc<Context>, params: WriteParams, cancel: Cancel) -> Self {
        let file = params.file.clone();
        let core = WriteCore::new(params, context.options.clone(), context.view.clone(), context.seed());
        let session = Session::new(WriteDriver { core, taken_bytes: 0 }, context.clone());
        Writer { session, file, index: 0, cancel, over: false }
    }

    /// Waits for something in the front; a write that ended, or is cancelled, ends the wait with its error.
    fn wait<T>(&self, mut look: impl FnMut(&mut WriteFront) -> Option<T>) -> Result<T, WriteError> {
        loop {
            let found = self.session.wait(LOOK, |front| match &front.done {
                Some(Err(error)) => Some(Err(error.clone())),
                _ => look(front).map(Ok),
            });
            if let Some(found) = found {
                return found;
            }
            if self.cancel.is_cancelled() {
                self.session.push_here([WriteEvent::Cancel]);
                return Err(WriteError::Cancelled { file: self.file.clone() });
            }
        }
    }

    /// Names a piece here and now, without sending anything.
    fn name(&mut self, offset: u64, data: Bytes) -> WriteEvent {
        let index = self.index;
        self.index += 1;
        match is_hole(&data) {
            true => WriteEvent::Hole { index, offset, len_bytes: data.len() as u64 },
            false => {
                self.session.with_front(|front| front.hashing_bytes += data.len() as u64);
                WriteEvent::Chunk(ChunkReady::new(index, offset, data))
            }
        }
    }

    /// Hands a piece over to be named by another thread; waits while the window is full.
    fn add(&mut self, offset: u64, data: Bytes) -> Result<(), WriteError> {
        if is_hole(&data) {
            let event = self.name(offset, data);
            self.session.push_here([event]);
            return Ok(());
        }
        let window = self.session.context().options.write_window_bytes;
        let len = data.len() as u64;
        self.wait(|front| {
            let fits = front.held_bytes + front.hashing_bytes < window;
            fits.then(|| front.hashing_bytes += len)
        })?;
        let (session, index) = (self.session.clone(), self.index);
        self.index += 1;
        self.session.context().workers.submit(move || {
            let chunk = ChunkReady::new(index, offset, data);
            session.push_here([WriteEvent::Chunk(chunk)]);
        });
        Ok(())
    }

    /// Ends the input and waits for the version. Pieces still being named are waited for first.
    fn finish(&mut self, size_bytes: u64, keep_session: bool) -> Result<WriteDone, WriteError> {
        self.wait(|front| (front.hashing_bytes == 0).then_some(()))?;
        self.session.push_here([WriteEvent::EndOfInput { size_bytes, keep_session }]);
        self.await_version(keep_session)
    }

    fn await_version(&mut self, keep_session: bool) -> Result<WriteDone, WriteError> {
        let done = self.wait(|front| front.done.take())??;
        if !keep_session {
            self.over = true;
            if done.missing_fragments > 0 {
                self.session.context().keep(self.session.clone());
            }
        }
        Ok(done)
    }
}

/// Writes all of a source as one version; offsets in the source start at `base` of the file (`Patch`).
pub(crate) fn put(
    context: &Arc<Context>,
    params: WriteParams,
    source: Source<'_>,
    base: u64,
    mut progress: Option<ProgressFn<'_>>,
    cancel: Cancel,
) -> Result<WriteDone, WriteError> {
    let total = source.len_bytes();
    let (mode, expected) = (params.mode, params.expect_policy.clone().unwrap_or_default());
    let file = params.file.clone();
    let mut input = Input::new(source, context.pool.clone(), &context.options);
    let read_failed = |e: std::io::Error| WriteError::Source { file: file.clone(), message: e.to_string() };
    let first = input.next(Bytes::new()).map_err(read_failed)?;
    let mut writer = Writer::new(context, params, cancel);
    let size_of = |input_bytes: u64, base_size: u64| match mode {
        CommitMode::Patch => base_size.max(base + input_bytes),
        _ => input_bytes,
    };
    let mut report = |done: u64| {
        if let Some(progress) = progress.as_mut() {
            progress(Progress { done, total });
        }
    };

    if first.last && first.bytes.len() <= SMALL_BYTES && mode != CommitMode::Patch {
        let len = first.bytes.len() as u64;
        let mut events = cut_small(&mut writer, &first, &expected)?;
        events.push(WriteEvent::EndOfInput { size_bytes: len, keep_session: false });
        events.push(WriteEvent::Open);
        writer.session.push_here(events);
        let done = writer.await_version(false)?;
        report(len);
        return Ok(done);
    }

    writer.session.push_here([WriteEvent::Open]);
    let (policy, base_size) = writer.wait(|front| front.opened.take())?;
    let rule = CutRule::of(&policy).map_err(|message| WriteError::Policy { file: file.clone(), message })?;
    let start = if mode == CommitMode::Append { base_size } else { base };
    let mut cutting = Cutting::new(rule, start);
    let (mut stretch, mut at) = (first, 0);
    loop {
        let (chunks, rest) = cutting.feed(&stretch);
        for (offset, data) in chunks {
            at += data.len() as u64;
            writer.add(base + offset, data)?;
            report(at);
        }
        if stretch.last {
            return writer.finish(size_of(at, base_size), false);
        }
        drop(stretch);
        stretch = input.next(rest).map_err(read_failed)?;
    }
}

fn cut_small(writer: &mut Writer, stretch: &Stretch, policy: &Policy) -> Result<Vec<WriteEvent>, WriteError> {
    let rule = CutRule::of(policy).map_err(|message| WriteError::Policy { file: writer.file.clone(), message })?;
    let (chunks, _) = Cutting::new(rule, 0).feed(stretch);
    Ok(chunks.into_iter().map(|(offset, data)| writer.name(offset, data)).collect())
}

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
        writer.session.push_here([WriteEvent::Open]);
        let (policy, base_size) = writer.wait(|front| front.opened.take())?;
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
        self.writer.session.push_here([WriteEvent::SetMtime { mtime_ns }]);
    }

    /// Names what the next version holds ([`tessera_wire::meta::Commit::content`]).
    pub fn set_content(&mut self, content: u64) {
        self.writer.session.push_here([WriteEvent::SetContent { content }]);
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
        self.writer.session.push_here([WriteEvent::Hole { index, offset: from, len_bytes: to - from }]);
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
