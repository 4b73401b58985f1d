//! One write, from named chunks to a visible version, without I/O: events in, actions out.
//!
//! Life of a chunk: *queued* for the dedup question ([`ask`]) → *asked* → known (nothing to send), or
//! *encoding* what is missing → *sending* ([`put`]) → *settled*: its memory is free. When the input has ended
//! and all chunks are settled (with `durability=optimistic`: readable), the version is committed
//! ([`commit`]); a commit that finds acknowledgements outdated has those fragments sent again (P11).
//!
//! A fragment that its member does not take goes where a newer map says; if the map knows nothing better,
//! the whole chunk moves to another group. Requests to the manager are repeated under the same op id (P8).
//! Memory: chunks hold their bytes until settled; the shell feeds nothing while [`WriteCore::held_bytes`] has
//! reached the window.
//!
//! Start at [`WriteCore::handle`].

mod ask;
mod commit;
mod one_shot;
#[cfg(test)]
mod one_shot_tests;
mod put;
mod rechunk;
mod state;
#[cfg(test)]
mod tests;

pub use state::{ChunkReady, Owner, Target, WriteDone, WriteParams};

use crate::config::{Options, ms};
use crate::error::{WriteError, by_name};
use crate::fetch::{Fetch, Step};
use crate::job::{Job, Numbered, Output};
use crate::rpc_table::{Reply, RpcTable};
use crate::view::SharedView;
use bytes::Bytes;
use state::{Active, Chunk, ExtentQueue, Frag, FragState, NodeQueue, Purpose, Stage};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use tessera_policy::{Durability, Policy};
use tessera_wire::meta::{ChunkName, CloseSession, CommitMode, GetMap, OpenWrite, OpenWriteReply, RenewSession};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Code, Error};

/// Input of at most this many bytes is named before the session is opened, and travels with the opening or (under
/// [`crate::prealloc`]) with the commit.
pub(crate) const SMALL_BYTES: usize = 256 << 10;

/// What happens to a write.
#[derive(Debug)]
pub enum WriteEvent {
    /// Open the session now. Chunks and the end of input that came before travel along.
    Open,
    /// The next piece of input, in any order of `index`.
    Chunk(ChunkReady),
    /// Piece number `index` of the input is `len_bytes` of nothing.
    Hole {
        /// Place among the pieces.
        index: u64,
        /// Where it starts, in bytes from the start of the input.
        offset: u64,
        /// How long it is.
        len_bytes: u64,
    },
    /// An answer to a call.
    Answer(Answer),
    /// A job is done.
    Computed(Numbered<Output>),
    /// Modification time to record with the next versions, ns since 1970; 0: when they are committed.
    SetMtime {
        /// The time.
        mtime_ns: i64,
    },
    /// [`tessera_wire::meta::Commit::content`] of the next versions.
    SetContent {
        /// The number.
        content: u64,
    },
    /// No piece follows those so far: make the version visible.
    EndOfInput {
        /// Length of the file (`Append`: of what is appended), in bytes.
        size_bytes: u64,
        /// The session goes on afterwards, patching what was committed (an open file is synced).
        keep_session: bool,
    },
    /// Time passed.
    Tick,
    /// Give the write up.
    Cancel,
}

/// What a write wants done.
#[derive(Debug)]
pub enum WriteAction {
    /// Send a call; its answer comes back.
    Call(Call),
    /// Compute; the output comes back.
    Compute(Numbered<Job>),
    /// The session is open, and this is the policy in effect: chunks may be cut accordingly.
    Opened {
        /// The policy.
        policy: Box<Policy>,
        /// Length of the version that a patch starts from.
        base_size_bytes: u64,
    },
    /// The version is visible as durably as asked, or it never will be. Redundancy of an optimistic write
    /// may follow.
    Done(Result<WriteDone, WriteError>),
    /// Nothing more is to come from this core.
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

    session_id: u64,
    /// The session that puts name: this one, or that of preallocated.
    put_session_id: u64,
    session_ns: i64,
    renewed_ns: i64,
    /// Bytes of input for which room is asked for.
    reserved_to: u64,
    /// Bytes of input that need no reservation any more: holes, repetitions, and what was asked places for.
    asked_bytes: u64,
    policy: Policy,
    scheme: String,
    domain: u32,
    /// Length of the version that was current at the opening.
    base_bytes: u64,
    opened: bool,

    chunks: Vec<Chunk>,
    /// By hash, length and region.
    by_name: HashMap<([u8; 32], u64, u64), usize>,
    extents: ExtentQueue,
    input_bytes: u64,
    held_bytes: u64,
    unsettled: usize,
    sent_bytes: u64,

    ask: VecDeque<usize>,
    asks_in_flight: usize,
    avoid: BTreeMap<u64, i64>,
    nodes: BTreeMap<u64, NodeQueue>,
    puts_in_flight: usize,
    map_wanted: BTreeMap<u64, Vec<usize>>,
    map_asked: bool,
    put_again: BTreeSet<(i64, usize)>,
    /// When to ask for another group for which chunk.
    ask_again: BTreeSet<(i64, usize)>,
    jobs: HashMap<u64, usize>,
    next_job: u64,
    fetches: BTreeMap<usize, Fetch>,

    ending: Option<Ending>,
    committing: bool,
    /// Chunks that a commit asked to have stored again.
    restoring: BTreeSet<usize>,
    /// Bytes that earlier commits of this session made visible.
    committed_bytes: u64,
    committed: Option<WriteDone>,
    completed: Vec<tessera_wire::meta::FragmentRef>,
    /// There is no session, and the commit is to open the file.
    one_shot: Option<one_shot::OneShot>,
    /// That did not go well.
    one_shot_failed: bool,
    /// The session is being opened.
    opening: bool,
    /// It is given up; that the session opens is all that is still waited for, to close it.
    given_up: bool,
    finished: bool,
}

#[derive(Debug, Clone, Copy)]
struct Ending {
    size_bytes: u64,
    keep_session: bool,
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
            session_id: 0,
            put_session_id: 0,
            session_ns: 0,
            renewed_ns: 0,
            reserved_to: 0,
            asked_bytes: 0,
            policy: Policy::default(),
            scheme: String::new(),
            domain: 0,
            base_bytes: 0,
            opened: false,
            chunks: Vec::new(),
            by_name: HashMap::new(),
            extents: ExtentQueue::default(),
            input_bytes: 0,
            held_bytes: 0,
            unsettled: 0,
            sent_bytes: 0,
            ask: VecDeque::new(),
            asks_in_flight: 0,
            avoid: BTreeMap::new(),
            nodes: BTreeMap::new(),
            puts_in_flight: 0,
            map_wanted: BTreeMap::new(),
            map_asked: false,
            put_again: BTreeSet::new(),
            ask_again: BTreeSet::new(),
            jobs: HashMap::new(),
            next_job: 1,
            fetches: BTreeMap::new(),
            ending: None,
            committing: false,
            restoring: BTreeSet::new(),
            committed_bytes: 0,
            committed: None,
            completed: Vec::new(),
            one_shot: None,
            one_shot_failed: false,
            opening: false,
            given_up: false,
            finished: false,
        }
    }

    /// Bytes of chunks held in memory until they are settled.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Where its unsettled chunks are, for messages.
    pub fn describe(&self) -> String {
        let open = self.chunks.iter().enumerate().filter(|(_, c)| c.active.is_some());
        let say = |(index, chunk): (usize, &Chunk)| {
            let frags = chunk.active.iter().flat_map(|a| &a.frags).map(|f| format!("{}:{:?}", f.number, f.state));
            let frags = frags.collect::<Vec<_>>().join(" ");
            let said = chunk.active.as_ref().map_or("", |a| &a.last_error);
            let (id, stage, missing) = (chunk.chunk_id, chunk.stage, &chunk.missing);
            format!("chunk {index} (id {id}, {stage:?}, missing {missing:?}): {frags}, last refused: {said:?}")
        };
        let chunks = open.map(say).collect::<Vec<_>>().join("; ");
        let (asks, puts, jobs) = (self.asks_in_flight, self.puts_in_flight, self.jobs.len());
        let (committed, map) = (self.committed.is_some(), self.map_asked);
        let queued = self.nodes.iter().filter(|(_, q)| q.in_flight + q.urgent.len() + q.later.len() > 0);
        let queues = queued.map(|(id, q)| {
            format!("node {id}: {} in flight, {} urgent, {} later; ", q.in_flight, q.urgent.len(), q.later.len())
        });
        let queues: String = queues.collect();
        format!("{asks} asks, {puts} puts, {jobs} jobs, committed {committed}, map asked {map}; {queues}{chunks}")
    }

    /// Whether nothing more will come of it.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<WriteAction> {
        if let Some(call) = self.rpcs.poll() {
            return Some(WriteAction::Call(call));
        }
        self.actions.pop_front()
    }

    /// When a [`WriteEvent::Tick`] has something to do, ns since 1970.
    pub fn next_due(&self) -> Option<i64> {
        if self.finished {
            return None;
        }
        if self.given_up {
            return self.rpcs.next_due();
        }
        let again = self.put_again.first().into_iter().chain(self.ask_again.first()).map(|(at, _)| *at).min();
        let renew = (self.session_id != 0 && self.committed.is_none())
            .then(|| self.renewed_ns.saturating_add(self.session_ns / 3));
        let view = self.view.read();
        let fetch = self.fetches.values().filter_map(|f| f.next_due(&view, &self.options)).min();
        [again, renew, fetch, self.rpcs.next_due()].into_iter().flatten().min()
    }

    /// Takes an event in. `now`: ns since 1970; time that runs backwards stands still.
    pub fn handle(&mut self, now: i64, event: WriteEvent) {
        self.now = self.now.max(now);
        if self.finished {
            return;
        }
        if self.given_up {
            return self.handle_given_up(event);
        }
        match event {
            WriteEvent::Open => self.open(),
            WriteEvent::Chunk(chunk) => self.take_chunk(chunk),
            WriteEvent::Hole { index, offset, len_bytes } => self.take_hole(index, offset, len_bytes),
            WriteEvent::Answer(answer) => {
                if let Some(reply) = self.rpcs.on_answer(self.now, answer, &self.options) {
                    self.on_reply(reply);
                }
            }
            WriteEvent::Computed(done) => self.computed(done),
            WriteEvent::SetMtime { mtime_ns } => self.params.mtime_ns = mtime_ns,
            WriteEvent::SetContent { content } => self.params.content = content,
            WriteEvent::EndOfInput { size_bytes, keep_session } => {
                self.ending = Some(Ending { size_bytes, keep_session });
            }
            WriteEvent::Tick => self.tick(),
            WriteEvent::Cancel => self.fail(WriteError::Cancelled { file: self.params.file.clone() }),
        }
        self.pump();
    }

    /// Sends what can be sent.
    fn pump(&mut self) {
        if self.finished || !self.opened {
            return;
        }
        self.pump_asks();
        self.pump_maps();
        self.pump_puts();
        self.pump_commit();
        self.pump_reserve();
    }

    fn open(&mut self) {
        let whole = self.ending.is_some() && self.ask.len() <= self.options.ask_chunks;
        let first: Vec<usize> = match whole && self.params.expect_policy.is_some() {
            true => self.ask.drain(..).collect(),
            false => Vec::new(),
        };
        let mut request = self.open_request(&first);
        if whole && self.may_be_one_shot() {
            if self.start_one_shot(&request.redundancy, &first) {
                return self.close_exhausted_sessions();
            }
            request.preallocate = self.view.write().preallocated.wanted(&request.redundancy, self.now, &self.options);
        }
        for &i in &first {
            self.chunks[i].stage = Stage::Asked;
            self.asked_bytes += self.chunks[i].len_bytes;
        }
        request.op_id = self.rpcs.op_id();
        self.reserved_to = request.size_hint_bytes;
        self.opening = true;
        self.rpcs.ask_manager(self.now, &request, Purpose::Open { first }, &self.options);
        self.close_exhausted_sessions();
    }

    /// What opening the file and asking about these chunks takes.
    fn open_request(&self, chunks: &[usize]) -> OpenWrite {
        let expected = self.params.expect_policy.as_ref();
        let scheme = expected.map(|p| p.scheme(self.file_bytes(0)).to_string());
        let (parent, name, ino, inos) = match &self.params.target {
            Target::Name { parent, name } => (*parent, name.clone(), 0, 0),
            Target::Inode(ino) => (0, Vec::new(), *ino, 0),
            Target::New { parent, name, ino, inos } => (*parent, name.clone(), *ino, *inos),
        };
        OpenWrite {
            op_id: 0,
            parent,
            name,
            ino,
            hints: self.params.hints.clone(),
            size_hint_bytes: self.params.size_hint_bytes.unwrap_or(0).max(self.input_bytes),
            chunks: chunks.iter().map(|i| self.chunks[*i].wire_name()).collect(),
            redundancy: scheme.unwrap_or_default(),
            known_map_version: self.view.read().known_version(),
            host: self.options.host.clone(),
            preallocate: 0,
            inos,
            chunking: expected.map(|p| p.chunking.to_string()).unwrap_or_default(),
        }
    }

    /// Length the file will have, as far as known: what `redundancy=auto` goes by. A stream of unknown length
    /// that did not end within the first buffer counts as large.
    fn file_bytes(&self, base: u64) -> u64 {
        let input = match (self.ending, self.params.size_hint_bytes) {
            (Some(ending), _) => ending.size_bytes,
            (None, Some(hint)) => hint.max(self.input_bytes),
            (None, None) => u64::MAX,
        };
        match self.params.mode {
            CommitMode::Append => base.saturating_add(input),
            CommitMode::Patch => base.max(input),
            _ => input,
        }
    }

    /// Region of the file in which a piece of input at `offset` will be: by the policy, or the one that is expected.
    fn region(&self, offset: u64) -> u64 {
        let policy = if self.opened { Some(&self.policy) } else { self.params.expect_policy.as_ref() };
        let Some(region_bytes) = policy.and_then(Policy::region_bytes) else { return 0 };
        let base = if self.params.mode == CommitMode::Append { self.base_bytes } else { 0 };
        base.saturating_add(offset) / region_bytes
    }

    fn on_opened(&mut self, mut reply: OpenWriteReply, first: Vec<usize>) {
        self.take_preallocated(reply.preallocated.take());
        let hints = reply.policy.iter().map(|h| (h.name.as_str(), h.value.as_str()));
        match Policy::from_hints(hints) {
            Ok(policy) => self.policy = policy,
            Err(error) => {
                let message =
                    format!("the manager knows a policy that this client does not ({error}); upgrade the client");
                self.session_id = reply.session_id;
                return self.fail(WriteError::Policy { file: self.params.file.clone(), message });
            }
        }
        self.opened = true;
        self.session_id = reply.session_id;
        self.put_session_id = reply.session_id;
        self.domain = reply.domain;
        self.base_bytes = reply.base_size_bytes;
        let rechunked = match self.rechunk_if_needed() {
            Ok(rechunked) => rechunked,
            Err(error) => return self.fail(error),
        };
        for index in 0..self.chunks.len() {
            self.chunks[index].region = self.region(self.chunks[index].offset);
        }
        self.session_ns = ms(reply.session_ms.max(1));
        self.renewed_ns = self.now;
        self.scheme = self.policy.scheme(self.file_bytes(reply.base_size_bytes)).to_string();
        let policy = Box::new(self.policy.clone());
        self.actions.push_back(WriteAction::Opened { policy, base_size_bytes: reply.base_size_bytes });
        let fits = |a: &tessera_wire::meta::AllocateChunksReply| {
            a.class.as_ref().is_some_and(|c| c.spec == self.scheme) && a.answers.len() == first.len()
        };
        match reply.allocated.filter(fits) {
            // They are in the queue already, cut anew; what was asked about goes with the session.
            _ if rechunked => {}
            Some(allocated) => self.on_allocated(allocated, first),
            // Asked for another class than the file turned out to have: ask again for the right one.
            None => self.ask.extend(first),
        }
    }

    fn take_hole(&mut self, index: u64, offset: u64, len_bytes: u64) {
        self.input_bytes += len_bytes;
        self.asked_bytes += len_bytes;
        self.extents.put(index, state::PendingExtent { offset, len_bytes, chunk: None });
    }

    fn take_chunk(&mut self, ready: ChunkReady) {
        let len_bytes = ready.data.len() as u64;
        self.input_bytes += len_bytes;
        let region = self.region(ready.offset);
        let key = (ready.hash, len_bytes, region);
        let index = match self.by_name.get(&key) {
            // The same content again in this write: nothing to ask, nothing to send.
            Some(&known) => {
                self.asked_bytes += len_bytes;
                known
            }
            None => {
                let index = self.chunks.len();
                self.held_bytes += len_bytes;
                self.unsettled += 1;
                self.by_name.insert(key, index);
                self.chunks.push(Chunk::new(&ready, region));
                self.ask.push_back(index);
                index
            }
        };
        self.extents.put(ready.index, state::PendingExtent { offset: ready.offset, len_bytes, chunk: Some(index) });
    }

    fn on_reply(&mut self, reply: Reply<Purpose>) {
        let Reply { purpose, waited_ms, answer, .. } = reply;
        match purpose {
            Purpose::Open { first } => {
                self.opening = false;
                match answer.decode::<OpenWrite>() {
                    Ok((reply, _)) => self.on_opened(reply, first),
                    Err(error) => self.refused("OpenWrite", error, waited_ms),
                }
            }
            Purpose::Ask { chunks, avoided } => self.on_asked(answer, chunks, avoided, waited_ms),
            Purpose::Put { node_id, items } => self.on_put(node_id, items, answer),
            Purpose::Map { chunks } => self.on_map(answer, chunks),
            Purpose::Renew => self.on_renewed(answer, waited_ms),
            Purpose::Commit { partial } => self.on_committed(answer, partial, waited_ms),
            Purpose::Complete => self.on_completed(),
            Purpose::Refetch { chunk, want } => self.on_refetched(chunk, want, answer),
            Purpose::Close => {}
        }
    }

    fn on_renewed(&mut self, answer: Answer, waited_ms: u64) {
        match answer.decode::<RenewSession>() {
            Ok((reply, _)) => {
                // Space that could not be reserved is found missing, or not, when it is needed.
                self.session_ns = ms(reply.session_ms.max(1));
            }
            // The commit has ended the session meanwhile.
            Err(_) if self.committed.is_some() => {}
            Err(error) => self.refused("RenewSession", error, waited_ms),
        }
    }

    fn tick(&mut self) {
        self.rpcs.tick(self.now);
        while let Some(&(at, chunk)) = self.put_again.first().filter(|(at, _)| *at <= self.now) {
            self.put_again.remove(&(at, chunk));
            self.want_map(chunk);
        }
        while let Some(&(at, chunk)) = self.ask_again.first().filter(|(at, _)| *at <= self.now) {
            self.ask_again.remove(&(at, chunk));
            self.ask.push_back(chunk);
        }
        let due = self.renewed_ns.saturating_add(self.session_ns / 3) <= self.now;
        if self.session_id != 0 && self.committed.is_none() && due {
            self.renew();
        }
        self.tick_fetches();
    }

    fn renew(&mut self) {
        self.renewed_ns = self.now;
        let reserve_bytes = self.reserved_to.saturating_sub(self.asked_bytes);
        let request = RenewSession { session_id: self.session_id, reserve_bytes };
        self.rpcs.ask_manager(self.now, &request, Purpose::Renew, &self.options);
    }

    /// Space for a stream of unknown length is reserved ahead: as much again as it has had, within bounds.
    fn pump_reserve(&mut self) {
        if self.params.size_hint_bytes.is_some() || self.ending.is_some() || self.committed.is_some() {
            return;
        }
        let ahead = self.input_bytes.clamp(64 << 20, 1 << 30);
        if self.reserved_to < self.input_bytes.saturating_add(ahead / 2) {
            self.reserved_to = self.input_bytes.saturating_add(ahead);
            self.renew();
        }
    }

    /// The chunk needs nothing more: its memory is free.
    fn settle(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        if chunk.stage == Stage::Settled {
            return;
        }
        chunk.stage = Stage::Settled;
        // Without a session the bytes may be needed once more.
        if self.one_shot.is_none() && chunk.active.take().is_some() {
            self.held_bytes -= chunk.len_bytes;
        }
        self.unsettled -= 1;
    }

    /// The manager refused something without which there is no write.
    fn refused(&mut self, request: &'static str, error: Error, waited_ms: u64) {
        let file = self.params.file.clone();
        let message = error.message.clone();
        self.fail(match error.kind() {
            Code::TooFewHosts => WriteError::TooFewHosts { file, message },
            Code::NoSpace => WriteError::NoSpace { file, message },
            Code::SessionExpired => WriteError::SessionExpired { file, message },
            Code::VersionConflict => {
                let expected = self.params.if_version.unwrap_or(0);
                WriteError::VersionConflict { file, expected, current: error.current }
            }
            Code::Unavailable | Code::Timeout => WriteError::ManagerSilent { file, request, waited_ms, last: message },
            _ => WriteError::Refused { file, error: by_name(error) },
        });
    }

    fn fail(&mut self, error: WriteError) {
        if self.finished {
            return;
        }
        if !self.opening {
            self.rpcs.abandon();
            while self.rpcs.poll().is_some() {}
        }
        if self.committed.is_none() || !matches!(error, WriteError::Cancelled { .. }) {
            tracing::debug!(%error, "write ends");
        }
        if self.committed.is_none() {
            self.actions.push_back(WriteAction::Done(Err(error)));
        }
        match self.opening {
            true => self.give_up(),
            false => self.close(),
        }
    }

    /// The session is on its way: it must not stay open, and keep space reserved, for as long as sessions last.
    fn give_up(&mut self) {
        self.given_up = true;
        self.drop_data();
    }

    fn handle_given_up(&mut self, event: WriteEvent) {
        match event {
            WriteEvent::Tick => self.rpcs.tick(self.now),
            WriteEvent::Answer(answer) => {
                let Some(done) = self.rpcs.on_answer(self.now, answer, &self.options) else { return };
                let opened = done.answer.decode::<OpenWrite>().map(|(reply, _)| reply).unwrap_or_default();
                self.session_id = opened.session_id;
                self.take_preallocated(opened.preallocated);
                self.close();
            }
            _ => {}
        }
    }

    /// Tells the manager that nothing more will come of the session; whether it hears is not waited for.
    fn close(&mut self) {
        if self.session_id != 0 && self.committed.is_none() {
            let close = CloseSession { session_id: self.session_id };
            self.rpcs.ask_manager(self.now, &close, Purpose::Close, &self.options);
        }
        self.finish();
    }

    fn finish(&mut self) {
        self.drop_preallocated();
        self.finished = true;
        self.drop_data();
        self.actions.push_back(WriteAction::Finished);
    }

    fn drop_data(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.active = None);
        self.nodes.clear();
        self.fetches.clear();
        self.held_bytes = 0;
    }

    fn optimistic(&self) -> bool {
        self.policy.durability == Durability::Optimistic
    }
}

impl std::fmt::Debug for WriteCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (file, session, chunks) = (&self.params.file, self.session_id, self.chunks.len());
        write!(f, "WriteCore({file}, session {session}, {chunks} chunks, {} unsettled)", self.unsettled)
    }
}
