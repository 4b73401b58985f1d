//! Writing: whole sources ([`put`]), many small files at once ([`pack`]) and open files ([`WriteHandle`]).

pub mod compact;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
pub mod core;
mod handle;
pub mod inlined;
pub(crate) mod input;
pub mod moving;
pub mod pack;

pub use handle::WriteHandle;

use crate::context::Context;
use crate::driver::{Driven, Driver};
use crate::error::{Cause, FileError};
use crate::exchange::Event;
use crate::memory::Means;
use crate::write::core::{ChunkReady, SMALL_BYTES, WriteCore, WriteDone, WriteNotice, WriteParams, WriteRequest};
use bytes::Bytes;
use input::{CutRule, Cutting, Input, Source, Stretch, is_hole};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tessera_policy::Policy;
use tessera_wire::meta::CommitMode;

/// How far an operation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes (or entries) done.
    pub done: u64,
    /// The total, if known.
    pub total: Option<u64>,
}

/// Called with progress, on the caller's thread.
pub type ProgressFn<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// Stops an operation from another thread or a signal handler. Clones share one flag.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the operation to stop; it ends with `Cancelled` shortly after.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How often a waiting operation checks whether it was cancelled.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// What the writer sees.
#[derive(Default)]
pub(crate) struct WriteStatus {
    opened: Option<(Policy, u64)>,
    done: Option<Result<WriteDone, FileError>>,
    held_bytes: u64,
    hashing_bytes: u64,
}

impl Driven for WriteCore {
    type Status = WriteStatus;

    fn notify(notice: WriteNotice, status: &mut WriteStatus) {
        match notice {
            WriteNotice::Opened { policy, base_size_bytes } => status.opened = Some((*policy, base_size_bytes)),
            WriteNotice::Done(result) => status.done = Some(result),
            WriteNotice::Finished => {}
        }
    }
    fn update_status(&mut self, status: &mut WriteStatus) -> bool {
        let before = (status.held_bytes, status.hashing_bytes);
        let taken_bytes = std::mem::take(&mut self.taken_bytes);
        assert!(status.hashing_bytes >= taken_bytes, "{taken_bytes} bytes hashed of {}", status.hashing_bytes);
        status.hashing_bytes -= taken_bytes;
        status.held_bytes = self.held_bytes();
        before != (status.held_bytes, status.hashing_bytes)
    }

    fn background_bytes(&self) -> u64 {
        self.held_bytes()
    }
}

/// Feeds pieces of input into a session.
struct Writer {
    driver: Arc<Driver<WriteCore>>,
    file: String,
    index: u64,
    cancel: Cancel,
    means: Means,
    /// The final commit is done: there is nothing to give up.
    over: bool,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.over {
            self.driver.post_and_drive([Event::Cancel]);
            self.driver.context().run_in_background(self.driver.clone());
        }
    }
}

impl Writer {
    fn new(context: &Arc<Context>, params: WriteParams, cancel: Cancel, means: Means) -> Self {
        let file = params.file.clone();
        let core = WriteCore::new(params, context.options.clone(), context.view.clone(), context.seed());
        let driver = Driver::with_pool(core, context.clone(), means.pool.clone());
        Writer { driver, file, index: 0, cancel, means, over: false }
    }

    /// The next stretch of input; `rest` is the uncut end of the last one.
    fn read(&self, input: &mut Input<'_>, rest: Bytes) -> Result<Stretch, FileError> {
        let buffer = |len| self.means.buffer(len, &self.cancel).ok_or(Cause::Cancelled);
        input.next(rest, self.means.buffer_bytes, buffer).map_err(|cause| cause.of(&self.file))
    }

    /// Cuts a file from its start, as its policy says.
    fn cutting(&self, policy: &Policy) -> Result<Cutting, FileError> {
        let rule = CutRule::of(policy).map_err(|message| Cause::Policy(message).of(&self.file))?;
        Ok(Cutting::new(rule, 0))
    }

    /// Waits for `look` to find something in the status. If the write ends or is cancelled, returns its error.
    fn wait<T>(&self, mut look: impl FnMut(&mut WriteStatus) -> Option<T>) -> Result<T, FileError> {
        loop {
            let found = self.driver.wait_for(LOOK, |status| match &status.done {
                Some(Err(error)) => Some(Err(error.clone())),
                _ => look(status).map(Ok),
            });
            if let Some(found) = found {
                return found;
            }
            if self.cancel.is_cancelled() {
                self.driver.post_and_drive([Event::Cancel]);
                return Err(Cause::Cancelled.of(&self.file));
            }
        }
    }

    /// Hashes a piece on this thread, without sending anything.
    fn name(&mut self, offset: u64, data: Bytes) -> WriteRequest {
        let index = self.index;
        self.index += 1;
        match is_hole(&data) {
            true => WriteRequest::Hole { index, offset, len_bytes: data.len() as u64 },
            false => {
                self.driver.with_status(|status| status.hashing_bytes += data.len() as u64);
                WriteRequest::Chunk(ChunkReady::new(index, offset, data))
            }
        }
    }

    /// Writes a pack, which is one chunk also if all of it is zeros.
    fn write_pack(mut self, bytes: Bytes) -> Result<WriteDone, FileError> {
        assert_eq!(self.index, 0, "a pack is all of its input");
        let size_bytes = bytes.len() as u64;
        self.driver.with_status(|status| status.hashing_bytes += size_bytes);
        let chunk = WriteRequest::Chunk(ChunkReady::new(0, 0, bytes));
        let end = WriteRequest::EndOfInput { size_bytes, cuts: false, keep_session: false };
        self.driver.post_and_drive([chunk, end, WriteRequest::Open]);
        self.await_version(false)
    }

    /// Hands a piece to another thread to be hashed; waits while the window is full.
    fn add(&mut self, offset: u64, data: Bytes) -> Result<(), FileError> {
        if is_hole(&data) {
            let event = self.name(offset, data);
            self.driver.post_and_drive([event]);
            return Ok(());
        }
        let window = self.means.window_bytes;
        let len = data.len() as u64;
        self.wait(|status| {
            let fits = status.held_bytes + status.hashing_bytes < window;
            fits.then(|| status.hashing_bytes += len)
        })?;
        let (driver, index) = (self.driver.clone(), self.index);
        self.index += 1;
        self.driver.context().workers.submit(move || {
            let chunk = ChunkReady::new(index, offset, data);
            driver.post_and_drive([WriteRequest::Chunk(chunk)]);
        });
        Ok(())
    }

    /// Ends the input and waits for the version. Waits first for pieces that are still being hashed.
    fn finish(&mut self, size_bytes: u64, cuts: bool, keep_session: bool) -> Result<WriteDone, FileError> {
        self.wait(|status| (status.hashing_bytes == 0).then_some(()))?;
        self.driver.post_and_drive([WriteRequest::EndOfInput { size_bytes, cuts, keep_session }]);
        self.await_version(keep_session)
    }

    fn await_version(&mut self, keep_session: bool) -> Result<WriteDone, FileError> {
        let done = self.wait(|status| status.done.take())??;
        if !keep_session {
            self.over = true;
            self.driver.context().run_in_background(self.driver.clone());
        }
        Ok(done)
    }
}

/// Writes all of a source as one version, which replaces the file's content.
pub(crate) fn put(
    context: &Arc<Context>,
    params: WriteParams,
    source: Source<'_>,
    mut progress: Option<ProgressFn<'_>>,
    cancel: Cancel,
    means: Means,
) -> Result<WriteDone, FileError> {
    let total = source.len_bytes();
    assert_eq!(params.mode, CommitMode::Replace, "a whole source replaces the content");
    let expected = params.expect_policy.clone().unwrap_or_default();
    let mut input = Input::new(source);
    let mut writer = Writer::new(context, params, cancel, means);
    let first = writer.read(&mut input, Bytes::new())?;
    let mut report = |done: u64| {
        if let Some(progress) = progress.as_mut() {
            progress(Progress { done, total });
        }
    };

    if first.last && first.bytes.len() <= SMALL_BYTES {
        let len = first.bytes.len() as u64;
        let (chunks, _) = writer.cutting(&expected)?.feed(&first);
        let mut events: Vec<_> = chunks.into_iter().map(|(offset, data)| writer.name(offset, data)).collect();
        events.push(WriteRequest::EndOfInput { size_bytes: len, cuts: false, keep_session: false });
        events.push(WriteRequest::Open);
        writer.driver.post_and_drive(events);
        let done = writer.await_version(false)?;
        report(len);
        return Ok(done);
    }

    writer.driver.post_and_drive([WriteRequest::Open]);
    let (policy, _) = writer.wait(|status| status.opened.take())?;
    let mut cutting = writer.cutting(&policy)?;
    writer.means.fit(&policy);
    let (mut stretch, mut at) = (first, 0);
    loop {
        let (chunks, rest) = cutting.feed(&stretch);
        for (offset, data) in chunks {
            at += data.len() as u64;
            writer.add(offset, data)?;
            report(at);
        }
        if stretch.last {
            return writer.finish(at, false, false);
        }
        drop(stretch);
        stretch = writer.read(&mut input, rest)?;
    }
}
