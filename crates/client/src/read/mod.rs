//! Reading: whole versions into a sink ([`get`]) and open files ([`ReadHandle`]).

pub mod cache;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
pub mod core;
pub(crate) mod describe;
pub(crate) mod whole;

use crate::client::Client;
use crate::config::Options;
use crate::context::Context;
use crate::driver::{Driven, Driver};
use crate::error::{Cause, FileError};
use crate::exchange::Event;
use crate::memory;
use crate::read::core::{Delivery, Opened, ReadCore, ReadNotice, ReadParams, ReadReport, ReadRequest};
use crate::write::{Progress, ProgressFn};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_wire::meta::CloseSession;

/// Sessions that one request closes.
const MOST_CLOSED: usize = 1_024;

/// Where a read puts its bytes, in order.
pub enum Sink<'a> {
    /// A stream or a file.
    Writer(&'a mut (dyn Write + Send)),
    /// Memory, filled from its start; the read must fit.
    Slice(&'a mut [u8]),
    /// Takes verified parts as they lie in the library's buffers, without a copy. A part that the callee keeps keeps
    /// its whole buffer in memory. Holes come as zeros.
    Lend(&'a mut (dyn FnMut(Bytes) -> std::io::Result<()> + Send)),
    /// A file that can have holes: they are not written, and cost no time.
    Sparse(&'a mut (dyn WriteHoles + Send)),
}

/// A writer of bytes and holes, in order.
pub trait WriteHoles: Write {
    /// Leaves a hole of `len_bytes`, which reads as zeros.
    ///
    /// # Errors
    /// The system's error.
    fn hole(&mut self, len_bytes: u64) -> std::io::Result<()>;
}

/// What readers see.
#[derive(Default)]
pub(crate) struct ReadStatus {
    opened: Option<Result<Opened, FileError>>,
    reads: HashMap<u64, ReadProgress>,
    report: ReadReport,
    pack_to_fetch: Option<u64>,
    session_id: u64,
}

#[derive(Default)]
struct ReadProgress {
    deliveries: VecDeque<Delivery>,
    done: Option<Result<(), FileError>>,
}

impl Driven for ReadCore {
    type Status = ReadStatus;

    fn notify(notice: ReadNotice, status: &mut ReadStatus) {
        match notice {
            ReadNotice::Opened(opened) => status.opened = Some(Ok(*opened)),
            ReadNotice::OpenFailed(error) => status.opened = Some(Err(error)),
            // A forgotten read has no entry here.
            ReadNotice::Deliver { id, delivery } => {
                if let Some(read) = status.reads.get_mut(&id) {
                    read.deliveries.push_back(delivery);
                }
            }
            ReadNotice::Done { id, result } => {
                if let Some(read) = status.reads.get_mut(&id) {
                    read.done = Some(result);
                }
            }
        }
    }
    fn update_status(&mut self, status: &mut ReadStatus) -> bool {
        status.report = self.report;
        status.pack_to_fetch = self.pack_to_fetch();
        status.session_id = self.session_id();
        false
    }
}

/// How much is read.
pub(crate) struct How {
    len_bytes: u64,
    /// All of it is consumed in order.
    stream: bool,
    /// Most bytes in flight or waiting for the consumer.
    window_bytes: u64,
}

/// An open version. It stays readable while the handle lives, even if its name is removed. Threads may share it.
pub struct ReadHandle {
    driver: Arc<Driver<ReadCore>>,
    file: String,
    opened: Opened,
    next_read: AtomicU64,
}

impl ReadHandle {
    pub(crate) fn open(context: &Arc<Context>, params: ReadParams) -> Result<Self, FileError> {
        let options = context.options.clone();
        Self::open_with(context, params, options)
    }

    /// As [`ReadHandle::open`], with other options than the client has.
    fn open_with(context: &Arc<Context>, params: ReadParams, options: Arc<Options>) -> Result<Self, FileError> {
        let file = params.file.clone();
        let (view, cache) = (context.view.clone(), context.cache.clone());
        let core = ReadCore::new(params, options, view, cache, context.seed());
        let driver = Driver::new(core, context.clone());
        driver.post_and_drive([ReadRequest::Open]);
        let opened = driver.wait(|status| status.opened.take())?;
        Ok(ReadHandle { driver, file, opened, next_read: AtomicU64::new(1) })
    }

    /// The version that is open, the file's attributes and policy.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Length of the version in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.opened.version.size_bytes
    }

    /// Fragments that the reads of this handle so far had to do without.
    pub fn report(&self) -> ReadReport {
        self.driver.with_status(|status| status.report)
    }

    /// Reads at `offset` as many bytes as there are and fit; returns how many. Verified (P2).
    ///
    /// # Errors
    /// Too few fragments of a chunk can be read, or the manager does not answer.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FileError> {
        self.read_within(offset, out, self.driver.context().options.read_window_bytes)
    }

    /// As [`ReadHandle::read_at`], with at most `window_bytes` in flight.
    pub(crate) fn read_within(&self, offset: u64, out: &mut [u8], window_bytes: u64) -> Result<usize, FileError> {
        let how = How { len_bytes: out.len() as u64, stream: false, window_bytes };
        let mut sink = Sink::Slice(out);
        self.read_range(offset, how, &mut sink, None).map(|n| n as usize)
    }

    pub(crate) fn read_range(
        &self,
        offset: u64,
        How { len_bytes, stream, window_bytes }: How,
        sink: &mut Sink<'_>,
        mut progress: Option<ProgressFn<'_>>,
    ) -> Result<u64, FileError> {
        let total = len_bytes.min(self.len_bytes().saturating_sub(offset));
        if total == 0 {
            return Ok(0);
        }
        let id = self.next_read.fetch_add(1, Ordering::Relaxed);
        self.driver.with_status(|status| status.reads.insert(id, ReadProgress::default()));
        self.driver.post_and_drive([ReadRequest::Read { id, offset, len_bytes: total, stream, window_bytes }]);
        let mut done = 0;
        let result = loop {
            match self.next(id) {
                Ok(None) => break Ok(done),
                Err(error) => break Err(error),
                Ok(Some(delivery)) => {
                    if let Err(error) = sink.take(done, &delivery) {
                        break Err(Cause::Output(error.to_string()).of(&self.file));
                    }
                    let bytes = delivery.len_bytes();
                    drop(delivery);
                    done += bytes;
                    if done < total {
                        self.driver.post_and_drive([ReadRequest::Consumed { id, bytes }]);
                    }
                    if let Some(progress) = progress.as_mut() {
                        progress(Progress { done, total: Some(total) });
                    }
                }
            }
        };
        self.driver.with_status(|status| status.reads.remove(&id));
        if result.is_err() {
            self.driver.post_and_drive([ReadRequest::Forget { id }]);
        }
        result
    }

    /// The handle's session, which nobody closes any more; 0: none.
    fn leave_session(self) -> u64 {
        let session_id = self.driver.with_status(|status| status.session_id);
        self.driver.post_and_drive([ReadRequest::LeaveSession { session_id }]);
        session_id
    }

    /// The next bytes of a read; `None` when it is complete.
    fn next(&self, id: u64) -> Result<Option<Delivery>, FileError> {
        self.driver.wait(|status| {
            let read = status.reads.get_mut(&id)?;
            match read.deliveries.pop_front() {
                Some(delivery) => Some(Ok(Some(delivery))),
                None => read.done.take().map(|result| result.map(|()| None)),
            }
        })
    }
}

impl Client {
    /// Closes many handles, whose sessions end by one request.
    pub fn close_reads(&self, handles: Vec<ReadHandle>) {
        let sessions: Vec<u64> = handles.into_iter().map(ReadHandle::leave_session).filter(|id| *id != 0).collect();
        for some in sessions.chunks(MOST_CLOSED) {
            let close = CloseSession { session_id: some[0], readers: some[1..].to_vec(), ..CloseSession::default() };
            self.ask_manager(&close, 0, drop);
        }
    }
}

impl Drop for ReadHandle {
    fn drop(&mut self) {
        self.driver.context().note_read(self.report());
        self.driver.post_and_drive([Event::Cancel]);
    }
}

impl Sink<'_> {
    /// Takes a delivery that starts `at` bytes from the start of the read.
    fn take(&mut self, at: u64, delivery: &Delivery) -> std::io::Result<()> {
        if let (Sink::Sparse(file), Delivery::Zeros(len)) = (&mut *self, delivery) {
            return file.hole(*len);
        }
        let mut at = at as usize;
        delivery.try_for_each(|part| {
            let from = at;
            at += part.len();
            match self {
                Sink::Slice(out) => {
                    let len = out.len();
                    let no_room = || std::io::Error::other(format!("no room for {at} bytes in {len}"));
                    out.get_mut(from..at).ok_or_else(no_room)?.copy_from_slice(&part);
                    Ok(())
                }
                Sink::Lend(take) => take(part),
                Sink::Writer(writer) => writer.write_all(&part),
                Sink::Sparse(file) => file.write_all(&part),
            }
        })
    }
}

/// Reads a range of a version into a sink, in order.
pub(crate) fn get(
    context: &Arc<Context>,
    params: ReadParams,
    sink: &mut Sink<'_>,
    progress: Option<ProgressFn<'_>>,
) -> Result<(Opened, u64), FileError> {
    let (offset, len_bytes, bulk) = (params.open.offset, params.open.len_bytes, params.bulk);
    let handle = ReadHandle::open(context, params)?;
    let pack = handle.driver.with_status(|status| status.pack_to_fetch);
    // One thread fetches a pack, the others take it from the cache.
    let _turn = pack.map(|pack| context.pack_turns[pack as usize % context.pack_turns.len()].lock());
    let there = handle.len_bytes().saturating_sub(offset).min(len_bytes);
    let (_share, window_bytes) = memory::of_read(context, there, bulk);
    let how = How { len_bytes, stream: true, window_bytes };
    let read = handle.read_range(offset, how, sink, progress)?;
    Ok((handle.opened.clone(), read))
}
