//! One write, from hashed chunks to a visible version, without I/O: events in, actions out.
//!
//! States of a chunk: *queued* for the dedup question ([`dedup`]) → *asked* → known (nothing to send), or encoded and
//! *storing* ([`placer`] decides where, [`sender`] batches the puts) → *settled*: its memory is free. When the input
//! has ended and all chunks are settled (with `durability=optimistic`: readable), [`committer`] commits the version. If
//! a commit finds outdated acknowledgements, the write sends those fragments again (P11).
//!
//! A fragment that its member refuses goes where a newer map says; if the map shows no better place, the whole chunk
//! moves to another group. Requests to the manager are repeated under the same op id (P8). Memory: chunks hold their
//! bytes until settled; the shell feeds no input while [`WriteCore::held_bytes`] is at the window. Chunks that are stored are reported
//! to the manager on the way ([`reports`]), so that the same write, repeated, finds what an interrupted one had stored.
//!
//! Start at `WriteCore::handle`.

mod chunk;
mod committer;
mod dedup;
mod extents;
#[cfg(test)]
mod late_tests;
mod one_shot;
#[cfg(test)]
mod one_shot_tests;
mod params;
mod placer;
mod rechunk;
mod refetch;
mod reports;
#[cfg(test)]
mod reports_tests;
mod sender;
mod session;
#[cfg(test)]
mod tests;

pub use params::{ChunkReady, Owner, PackParams, Target, Times, WriteDone, WriteParams};

use crate::config::{Options, ms};
use crate::error::{Cause, FileError};
use crate::exchange::{Action, Core, Event};
use crate::fetch::{Fetch, FragmentRequest, Step};
use crate::job::{Job, Numbered, Output};
use crate::rpc_table::{JobTable, MapQueue, Reply, RpcTable, SessionLease, Timers};
use crate::view::SharedView;
use bytes::Bytes;
use chunk::{Active, ChunkTable, Frag, FragState, Stage};
use committer::{Committer, Ending};
use dedup::{Asked, Dedup};
use extents::{ExtentQueue, PendingExtent};
use one_shot::OneShotState;
use placer::Placer;
use reports::Reports;
use sender::{FragmentPut, Sender};
use session::{Phase, Session};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use tessera_policy::{Durability, Policy};
use tessera_wire::meta::{
    AllocateChunksReply, ChunkName, CloseSession, CommitMode, FragmentRef, GetMap, LockFence, OpenWrite,
    OpenWriteReply, RenewSession,
};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Code, Error, Extent};

/// Input of at most this many bytes is hashed before the session is opened, and is sent with the opening or (under
/// [`crate::prealloc`]) with the commit.
pub(crate) const SMALL_BYTES: usize = 256 << 10;

/// An event of a write.
pub type WriteEvent = Event<WriteRequest>;

/// An action of a write.
pub type WriteAction = Action<WriteNotice>;

/// What a write's owner asks for.
#[derive(Debug)]
pub enum WriteRequest {
    /// Open the session now. The opening includes the chunks and the end of input that came before.
    Open,
    /// The next chunk of input; they come in any order of `index`.
    Chunk(ChunkReady),
    /// Piece number `index` of the input is a hole of `len_bytes`.
    Hole {
        /// Index among the pieces.
        index: u64,
        /// Where it starts, in bytes from the start of the input.
        offset: u64,
        /// How long it is.
        len_bytes: u64,
    },
    /// The file is this long with the pieces that follow: `redundancy=auto` chooses their class by it. Without it, a stream of unknown
    /// length counts as long.
    Length {
        /// Length of the file, in bytes.
        size_bytes: u64,
    },
    /// Sets the times to record with the next commits.
    SetTimes {
        /// The times.
        times: Times,
    },
    /// Sets [`tessera_wire::meta::Commit::content`] of the next versions.
    SetContent {
        /// The number.
        content: u64,
    },
    /// Sets [`tessera_wire::meta::Commit::lock_fence`] of the next commits.
    SetLockFence {
        /// The fence.
        fence: Option<LockFence>,
    },
    /// The input ends here: make the version visible.
    EndOfInput {
        /// Length of the file (`Append`: of what is appended), in bytes.
        size_bytes: u64,
        /// `Patch`: the length was set, so what other writers appended meanwhile goes.
        cuts: bool,
        /// The session continues afterwards and patches what was committed (an open file is synced).
        keep_session: bool,
    },
}

/// What a write tells its owner.
#[derive(Debug)]
pub enum WriteNotice {
    /// The session is open, with this policy: cut the input accordingly.
    Opened {
        /// The policy.
        policy: Box<Policy>,
        /// Length of the version that a patch starts from.
        base_size_bytes: u64,
    },
    /// The version is visible and as durable as requested, or the write failed. The redundancy of an optimistic write
    /// may still follow.
    Done(Result<WriteDone, FileError>),
    /// No other action follows.
    Finished,
}

/// See the module.
pub struct WriteCore {
    params: WriteParams,
    options: Arc<Options>,
    view: SharedView,
    now: i64,
    rpcs: RpcTable<Purpose>,
    actions: VecDeque<WriteAction>,

    session: Session,
    /// Bytes of chunks that arrived since the shell last looked.
    pub(crate) taken_bytes: u64,
    /// Bytes of input so far, holes included.
    input_bytes: u64,
    chunks: ChunkTable,
    extents: ExtentQueue,
    dedup: Dedup,
    reports: Reports,
    placer: Placer,
    sender: Sender,
    jobs: JobTable<usize>,
    /// Chunks that are being read back, by index.
    fetches: BTreeMap<usize, Fetch>,
    committer: Committer,
    one_shot: OneShotState,
}

/// What a call is for.
#[derive(Debug)]
enum Purpose {
    Open { first: Vec<usize> },
    Ask(Asked),
    Put { node_id: u64, items: Vec<FragmentPut> },
    Map { chunks: Vec<usize> },
    Renew,
    Commit { partial: usize },
    Complete,
    Refetch { chunk: usize, want: FragmentRequest },
    Close,
}

impl WriteCore {
    /// A write that has not begun. `op_seed`: random, different for every core of a client.
    pub fn new(params: WriteParams, options: Arc<Options>, view: SharedView, op_seed: u64) -> Self {
        WriteCore {
            params,
            options,
            view,
            now: i64::MIN,
            rpcs: RpcTable::new(op_seed),
            actions: VecDeque::new(),
            session: Session::default(),
            taken_bytes: 0,
            input_bytes: 0,
            chunks: ChunkTable::default(),
            extents: ExtentQueue::default(),
            dedup: Dedup::default(),
            reports: Reports::default(),
            placer: Placer::default(),
            sender: Sender::default(),
            jobs: JobTable::default(),
            fetches: BTreeMap::new(),
            committer: Committer::default(),
            one_shot: OneShotState::default(),
        }
    }

    /// Bytes of chunks held in memory until they are settled.
    pub fn held_bytes(&self) -> u64 {
        self.chunks.held_bytes
    }

    /// Sends what can be sent now.
    fn pump(&mut self) {
        if self.session.phase() == Phase::Open {
            self.pump_asks();
            self.pump_reports();
            self.pump_maps();
            self.pump_puts();
            self.pump_commit();
        }
        if self.session.phase() == Phase::Open {
            self.pump_reserve();
        }
    }

    /// Region of the file for input at `offset`: by the policy, or by the expected one before the opening.
    fn region(&self, offset: u64) -> u64 {
        let opened = self.session.phase() == Phase::Open;
        let policy = if opened { Some(&self.session.policy) } else { self.params.expect_policy.as_ref() };
        let Some(region_bytes) = policy.and_then(Policy::region_bytes) else { return 0 };
        let base = if self.params.mode == CommitMode::Append { self.session.base_bytes } else { 0 };
        base.saturating_add(offset) / region_bytes
    }

    fn take_hole(&mut self, index: u64, offset: u64, len_bytes: u64) {
        // A session may clear the longest file any number of times.
        self.input_bytes = self.input_bytes.saturating_add(len_bytes);
        self.session.note_asked(len_bytes);
        self.extents.put(index, PendingExtent { offset, len_bytes, chunk: None });
    }

    fn take_chunk(&mut self, ready: ChunkReady) {
        let len_bytes = ready.data.len() as u64;
        self.input_bytes = self.input_bytes.saturating_add(len_bytes);
        let (index, is_new) = self.chunks.add(&ready, self.region(ready.offset));
        match is_new {
            true => self.dedup.queue.push_back(index),
            // This write has the same content already: nothing to ask, nothing to send.
            false => self.session.note_asked(len_bytes),
        }
        assert_eq!(self.chunks[index].len_bytes, len_bytes, "two chunks of one hash differ in length");
        self.extents.put(ready.index, PendingExtent { offset: ready.offset, len_bytes, chunk: Some(index) });
    }

    fn on_reply(&mut self, reply: Reply<Purpose>) {
        let Reply { purpose, waited_ms, answer, .. } = reply;
        match purpose {
            Purpose::Open { first } => self.on_open_reply(answer, first, waited_ms),
            Purpose::Ask(asked) => self.on_asked(answer, asked, waited_ms),
            Purpose::Put { node_id, items } => self.on_put(node_id, items, answer),
            Purpose::Map { chunks } => self.on_map(answer, chunks),
            Purpose::Renew => self.on_renewed(answer, waited_ms),
            Purpose::Commit { partial } => self.on_committed(answer, partial, waited_ms),
            Purpose::Complete => self.on_completed(),
            Purpose::Refetch { chunk, want } => self.on_refetched(chunk, want, answer),
            Purpose::Close => {}
        }
    }

    fn tick(&mut self) {
        self.rpcs.tick(self.now);
        self.tick_placer();
        self.dedup.tick(self.now);
        self.renew_if_due();
        self.tick_fetches();
        self.tick_late();
    }
}

impl Core for WriteCore {
    type Request = WriteRequest;
    type Notice = WriteNotice;

    fn is_finished(&self) -> bool {
        self.session.phase() == Phase::Finished
    }

    fn poll(&mut self) -> Option<WriteAction> {
        if let Some(call) = self.rpcs.poll() {
            return Some(Action::Call(call));
        }
        self.actions.pop_front()
    }

    fn next_due(&self) -> Option<i64> {
        match self.session.phase() {
            Phase::Finished => return None,
            Phase::Cancelled => return self.rpcs.next_due(),
            _ => {}
        }
        let renew = self.session.lease.renew_due().filter(|_| self.committer.done.is_none());
        let view = self.view.read();
        let fetch = self.fetches.values().filter_map(|f| f.next_due(&view, &self.options)).min();
        let retry = self.placer.retries.next_due();
        [retry, self.dedup.retries.next_due(), renew, fetch, self.rpcs.next_due(), self.late_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle(&mut self, now: i64, event: impl Into<WriteEvent>) {
        let event = event.into();
        self.now = self.now.max(now);
        if let Event::Request(WriteRequest::Chunk(chunk)) = &event {
            self.taken_bytes += chunk.data.len() as u64;
        }
        match self.session.phase() {
            Phase::Finished => return,
            Phase::Cancelled => return self.handle_cancelled(event),
            _ => {}
        }
        match event {
            Event::Request(WriteRequest::Open) => self.open(),
            // The owner has dropped the file.
            Event::Request(_) if self.committer.done.is_some() => {}
            Event::Request(WriteRequest::Chunk(chunk)) => self.take_chunk(chunk),
            Event::Request(WriteRequest::Hole { index, offset, len_bytes }) => self.take_hole(index, offset, len_bytes),
            Event::Answer(answer) => {
                if let Some(reply) = self.rpcs.on_answer(self.now, answer, &self.options) {
                    self.on_reply(reply);
                }
            }
            Event::Computed(done) => self.on_computed(done),
            Event::Request(WriteRequest::Length { size_bytes }) => self.set_length(size_bytes),
            Event::Request(WriteRequest::SetTimes { times }) => self.params.times = times,
            Event::Request(WriteRequest::SetContent { content }) => self.params.content = content,
            Event::Request(WriteRequest::SetLockFence { fence }) => self.params.lock_fence = fence,
            Event::Request(WriteRequest::EndOfInput { size_bytes, cuts, keep_session }) => {
                self.committer.ending = Some(Ending { size_bytes, cuts, keep_session });
            }
            Event::Tick => self.tick(),
            Event::Cancel if self.is_saved() => self.end_with_last_version(),
            Event::Cancel => self.fail(Cause::Cancelled),
        }
        self.pump();
    }
}

/// The state of its unsettled chunks, for messages.
impl std::fmt::Debug for WriteCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let describe = |(index, chunk): (usize, &chunk::Chunk)| {
            let active = chunk.active.as_ref()?;
            let frags =
                active.frags.iter().map(|f| format!("{}:{:?}", f.number, f.state)).collect::<Vec<_>>().join(" ");
            let (id, stage, missing, error) = (chunk.chunk_id, chunk.stage(), &chunk.missing, &active.last_error);
            Some(format!("chunk {index} (id {id}, {stage:?}, missing {missing:?}): {frags}, last refused: {error:?}"))
        };
        let chunks = self.chunks.iter().enumerate().filter_map(describe).collect::<Vec<_>>().join("; ");
        let (asks, jobs, puts) = (self.dedup.in_flight, self.jobs.pending.len(), self.sender.describe());
        let (committed, map) = (self.committer.done.is_some(), self.placer.maps.is_asked());
        let (file, session) = (&self.params.file, self.session.lease.id);
        write!(
            f,
            "{file}, session {session}: {asks} asks, {jobs} jobs, committed {committed}, map asked {map}, {puts}{chunks}"
        )
    }
}
