//! One open version, read without I/O: events in, actions out.
//!
//! Reads of ranges ([`ReadRequest::Read`]) run concurrently. Each gets its bytes in order, verified (P2), and
//! at most its window of them at once. Extents are requested ahead ([`extents`]). An extent that covers much of
//! a chunk has the whole chunk fetched ([`crate::fetch`]). A small one has only the 16 KiB groups it needs fetched
//! ([`small`]), and falls back to the whole chunk on any trouble. Missing and corrupt fragments are reported.
//!
//! Start at `ReadCore::handle`.

mod chunks;
mod contents;
mod extents;
mod file_cache;
mod gets;
mod session;
mod small;
#[cfg(test)]
mod tests;

use crate::config::Options;
use crate::error::{Cause, FileError};
use crate::exchange::{Action, Core, Event};
use crate::fetch::{Fetch, FetchContext, Step};
use crate::job::{Job, Numbered, Output};
use crate::read::cache::SharedCache;
use crate::rpc_table::{JobTable, MapQueue, Reply, RpcTable, SessionLease};
use crate::view::SharedView;
use bytes::Bytes;
use contents::PackedContent;
use extents::{Pages, Place};
use file_cache::FileCache;
use gets::{GetQueue, Purpose};
use session::Session;
use small::SmallRead;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tessera_accel::hash::Hash;
use tessera_wire::meta::{
    CloseSession, FragmentRef, GetMap, OpenRead, OpenReadReply, RenewSession, ReportBad, VersionInfo,
};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Attr, ChunkInfo, Code, Error, Hint};

/// What a read session opens.
#[derive(Debug, Clone)]
pub struct ReadParams {
    /// The file's name, for messages.
    pub file: String,
    /// The version, and the range that will be read first: its extents come with the opening.
    pub open: OpenRead,
    /// What the manager would answer, if that is known: no session is opened.
    pub known: Option<Box<OpenReadReply>>,
    /// Other small files will be read, too: packs are fetched as a whole, and kept.
    pub bulk: bool,
}

/// An event of a read session.
pub type ReadEvent = Event<ReadRequest>;

/// An action of a read session.
pub type ReadAction = Action<ReadNotice>;

/// What a reader asks for.
#[derive(Debug)]
pub enum ReadRequest {
    /// Open the session now.
    Open,
    /// Read a range, clipped to the version's length. The caller chooses `id`; no other read may use it.
    Read {
        /// Identifies the read.
        id: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// All of it will be consumed in order: fetch whole chunks, cache none.
        stream: bool,
        /// Most bytes of chunks in flight or waiting for the consumer; one chunk at least.
        window_bytes: u64,
    },
    /// The consumer of read `id` took this many bytes of what was delivered.
    Consumed {
        /// The read.
        id: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Another request closes this session.
    LeaveSession {
        /// As the core has it.
        session_id: u64,
    },
    /// The consumer of read `id` stopped waiting.
    Forget {
        /// The read.
        id: u64,
    },
}

/// Bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Bytes, in order.
    Bytes(Vec<Bytes>),
    /// This many zeros (a hole).
    Zeros(u64),
}

impl Delivery {
    /// How many bytes it delivers.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Delivery::Bytes(parts) => parts.iter().map(|p| p.len() as u64).sum(),
            Delivery::Zeros(len) => *len,
        }
    }

    /// Calls `take` with the bytes in order, zeros in pieces, until it fails.
    pub(crate) fn try_for_each<E>(&self, mut take: impl FnMut(Bytes) -> Result<(), E>) -> Result<(), E> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        match self {
            Delivery::Bytes(parts) => parts.iter().cloned().try_for_each(take),
            Delivery::Zeros(len) => (0..*len)
                .step_by(ZEROS.len())
                .try_for_each(|at| take(Bytes::from_static(&ZEROS[..ZEROS.len().min((len - at) as usize)]))),
        }
    }
}

/// What a read session tells its readers.
#[derive(Debug)]
pub enum ReadNotice {
    /// The session is open.
    Opened(Box<Opened>),
    /// It could not be opened; no other action follows.
    OpenFailed(FileError),
    /// The next bytes of read `id`, verified.
    Deliver {
        /// The read.
        id: u64,
        /// The bytes.
        delivery: Delivery,
    },
    /// Read `id` has had all its bytes, or gets no more.
    Done {
        /// The read.
        id: u64,
        /// Why it ended early.
        result: Result<(), FileError>,
    },
}

/// An open version.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// The file.
    pub attr: Attr,
    /// The version.
    pub version: VersionInfo,
    /// The file's policy.
    pub policy: Vec<Hint>,
}

/// Fragments that a read had to do without. Others replaced them, and every byte was verified all the same (P2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Missing on their disk, or corrupt; reported for repair.
    pub bad: u64,
    /// On nodes that could not be reached.
    pub unreachable: u64,
    /// Requested, and not waited for.
    pub late: u64,
}

/// See the module.
pub struct ReadCore {
    params: ReadParams,
    options: Arc<Options>,
    view: SharedView,
    cache: FileCache,
    /// Length of the regions of a file whose regions are on different hosts (`placement=scatter`): no read-ahead
    /// crosses into the next one.
    region_bytes: Option<u64>,
    now: i64,
    rpcs: RpcTable<Purpose>,
    actions: VecDeque<ReadAction>,

    session: Session,
    opened: Option<Opened>,

    pages: Pages,
    reads: BTreeMap<u64, Read>,
    next_segment: u64,
    fetches: BTreeMap<u64, ChunkRead>,
    /// Packs that the file's extents have named.
    packs_seen: BTreeSet<u64>,
    /// Chunks that could not be read although the manager said again that the bytes lie there.
    looked_again: BTreeSet<u64>,
    displaced: Vec<Displaced>,
    smalls: BTreeMap<u64, SmallRead>,
    next_small: u64,
    get_queue: GetQueue,
    jobs: JobTable<JobOwner>,
    maps: MapQueue<u64>,
    last_end: u64,
    pub(crate) report: ReadReport,
    /// Whether the wait for fragments was already logged.
    wait_logged: bool,
}

/// A read in progress.
#[derive(Debug)]
struct Read {
    /// Where the next segment starts.
    cursor: u64,
    /// Where the next delivery starts.
    delivered_to: u64,
    end: u64,
    stream: bool,
    segments: VecDeque<Segment>,
    /// Where the consumer goes on.
    consumed_to: u64,
    /// Bytes requested that the consumer has not taken, and what their chunks have besides.
    outstanding: u64,
    /// What chunks have besides the requested bytes, and where these end.
    besides: VecDeque<(u64, u64)>,
    last_chunk: u64,
    window_bytes: u64,
}

impl Read {
    fn new(offset: u64, end: u64, stream: bool, window_bytes: u64) -> Read {
        Read {
            cursor: offset,
            delivered_to: offset,
            end,
            stream,
            segments: VecDeque::new(),
            consumed_to: offset,
            outstanding: 0,
            besides: VecDeque::new(),
            last_chunk: 0,
            window_bytes,
        }
    }

    /// Moves on over requested bytes of a chunk, or of a hole.
    fn request(&mut self, len_bytes: u64, chunk: Option<&ChunkInfo>) {
        self.cursor += len_bytes;
        self.outstanding = self.outstanding.saturating_add(len_bytes);
        // A stream fetches all of each chunk, and keeps it until its last byte is consumed.
        if let Some(chunk) = chunk.filter(|chunk| self.stream && chunk.chunk_id != self.last_chunk) {
            let besides = chunk.len_bytes.saturating_sub(len_bytes);
            self.last_chunk = chunk.chunk_id;
            self.outstanding = self.outstanding.saturating_add(besides);
            self.besides.push_back((self.cursor, besides));
        }
    }

    fn consume(&mut self, bytes: u64) {
        let outstanding = self.outstanding;
        assert!(bytes <= outstanding, "{bytes} bytes consumed, {outstanding} outstanding");
        self.consumed_to += bytes;
        self.outstanding -= bytes;
        while let Some((end, besides)) = self.besides.front().copied()
            && end <= self.consumed_to
        {
            self.besides.pop_front();
            self.outstanding -= besides;
        }
    }
}

#[derive(Debug)]
struct Segment {
    number: u64,
    len_bytes: u64,
    ready: Option<Delivery>,
}

/// A read that waits for bytes of a chunk.
#[derive(Debug, Clone)]
struct Waiter {
    read: u64,
    segment: u64,
    /// Where the bytes are in the file.
    at: u64,
    /// Where they are in the chunk.
    from: u64,
    len_bytes: u64,
    /// The content that they are, or are a part of, if its bytes are to be compared with its name.
    content: Option<PackedContent>,
}

impl Waiter {
    /// What is fetched of the chunk.
    fn fetched(&self) -> Range<u64> {
        self.content.as_ref().map_or(self.from..self.from + self.len_bytes, |content| content.range.clone())
    }
}

#[derive(Debug)]
struct ChunkRead {
    fetch: Fetch,
    waiters: Vec<Waiter>,
    keep: bool,
    /// Bad fragments that are not reported before the chunk was read: nothing keeps it, so it may be gone altogether.
    bad: Vec<FragmentRef>,
}

/// Reads whose chunk cannot be read, and which may find their bytes elsewhere.
#[derive(Debug)]
struct Displaced {
    chunk_id: u64,
    /// Why the chunk cannot be read; `None`: it is fetched still, and waits for fragments.
    failed: Option<Cause>,
    waiters: Vec<Waiter>,
}

#[derive(Debug, Clone, Copy)]
enum JobOwner {
    Whole(u64),
    Small(u64),
}

/// A chunk of at most this many bytes is always fetched whole.
const SMALL_CHUNK_BYTES: u64 = 64 << 10;
/// Longer files do not move into packs.
const MOVING_FILE_BYTES: u64 = 128 << 10;
/// Bytes fetched ahead of sequential reads.
const AHEAD_BYTES: u64 = 8 << 20;

impl ReadCore {
    /// A session that is not open yet. `op_seed`: random, different for every core of a client.
    pub fn new(params: ReadParams, options: Arc<Options>, view: SharedView, cache: SharedCache, op_seed: u64) -> Self {
        ReadCore {
            params,
            options,
            view,
            cache: FileCache::new(cache),
            region_bytes: None,
            now: i64::MIN,
            rpcs: RpcTable::new(op_seed),
            actions: VecDeque::new(),
            session: Session::default(),
            opened: None,
            pages: Pages::default(),
            reads: BTreeMap::new(),
            next_segment: 1,
            fetches: BTreeMap::new(),
            packs_seen: BTreeSet::new(),
            looked_again: BTreeSet::new(),
            displaced: Vec::new(),
            smalls: BTreeMap::new(),
            next_small: 1,
            get_queue: GetQueue::default(),
            jobs: JobTable::default(),
            maps: MapQueue::default(),
            last_end: u64::MAX,
            report: ReadReport::default(),
            wait_logged: false,
        }
    }

    /// In a bulk read, the pack that holds the first bytes of the file, unless the cache has it.
    pub(crate) fn pack_to_fetch(&mut self) -> Option<u64> {
        if !self.params.bulk {
            return None;
        }
        let (extent, Place::Chunk(chunk)) = self.pages.find(0)? else { return None };
        self.pages.content_of(&extent)?;
        Some(chunk.chunk_id).filter(|chunk_id| !self.cache.shared.chunks.contains_key(chunk_id))
    }

    /// The session, as the manager knows it; 0: none.
    pub(crate) fn session_id(&self) -> u64 {
        self.session.lease.id
    }

    fn close(&mut self) {
        self.session.closed = true;
        self.rpcs.abandon();
        if self.session.lease.id != 0 {
            let close = CloseSession { session_id: self.session.lease.id, ..Default::default() };
            self.rpcs.ask_manager(self.now, &close, Purpose::Close, &self.options);
        }
        self.reads.clear();
        self.fetches.clear();
        self.smalls.clear();
        self.cache.close();
    }

    fn fail_all(&mut self, cause: Cause) {
        let ids: Vec<u64> = self.reads.keys().copied().collect();
        ids.into_iter().for_each(|id| self.fail(id, cause.clone()));
    }

    fn fail(&mut self, id: u64, cause: Cause) {
        if self.reads.remove(&id).is_some() {
            self.actions.push_back(Action::Notify(ReadNotice::Done { id, result: Err(cause.of(&self.params.file)) }));
        }
    }

    fn begin(&mut self, id: u64, offset: u64, len_bytes: u64, stream: bool, window_bytes: u64) {
        let end = offset.saturating_add(len_bytes);
        self.reads.insert(id, Read::new(offset, end, stream, window_bytes));
        if self.opened.is_some() {
            self.clip(id);
        }
    }

    fn clip(&mut self, id: u64) {
        let size = self.opened.as_ref().map_or(0, |o| o.version.size_bytes);
        if let Some(read) = self.reads.get_mut(&id) {
            read.end = read.end.min(size).max(read.cursor);
        }
    }

    fn tick(&mut self) {
        self.rpcs.tick(self.now);
        if self.session.lease.renew_due().is_some_and(|at| at <= self.now) {
            self.session.lease.renewed_ns = self.now;
            let request = RenewSession { session_id: self.session.lease.id, reserve_bytes: 0 };
            self.rpcs.ask_manager(self.now, &request, Purpose::Renew, &self.options);
        }
        let chunks: Vec<u64> = self.fetches.keys().copied().collect();
        for chunk_id in chunks {
            self.step(chunk_id, Fetch::tick);
        }
        self.tick_smalls();
    }

    fn pump(&mut self) {
        if self.opened.is_some() && !self.session.closed {
            self.follow_extents();
            let ids: Vec<u64> = self.reads.keys().copied().collect();
            for id in ids {
                self.schedule(id);
                self.deliver(id);
            }
        }
        self.pump_maps();
        self.flush_wants();
    }

    /// Starts the segments of a read that fit its window.
    fn schedule(&mut self, id: u64) {
        let Some(read) = self.reads.get(&id) else { return };
        let window = read.window_bytes;
        // Starts many at a time, so that gets to one node travel together.
        if read.outstanding > window - window / 8 {
            return;
        }
        while let Some(read) = self.reads.get(&id).filter(|r| r.cursor < r.end && r.outstanding < window) {
            let (cursor, end, stream) = (read.cursor, read.end, read.stream);
            let Some((extent, place)) = self.pages.find(cursor) else {
                return self.ask_extents(cursor, end);
            };
            assert!(extent.offset <= cursor, "the extent at {} does not hold byte {cursor}", extent.offset);
            let from = cursor - extent.offset;
            let len_bytes = (extent.len_bytes - from).min(end - cursor);
            let number = self.next_segment;
            self.next_segment += 1;
            let (chunk, ready) = match place {
                Place::Chunk(chunk) => (Some(chunk), None),
                Place::Hole => (None, Some(Delivery::Zeros(len_bytes))),
                Place::Inlined(bytes) => {
                    let from = extent.chunk_offset + from;
                    (None, Some(Delivery::Bytes(slice_parts(&[bytes], from, len_bytes))))
                }
            };
            if let Some(read) = self.reads.get_mut(&id) {
                read.request(len_bytes, chunk.as_ref());
                read.segments.push_back(Segment { number, len_bytes, ready });
            }
            if let Some(chunk) = chunk {
                let packed = self.pages.content_of(&extent);
                let is_packed = packed.is_some();
                let content = packed.filter(|content| !content.is_compared).cloned();
                let from = extent.chunk_offset + from;
                let waiter = Waiter { read: id, segment: number, at: cursor, from, len_bytes, content };
                let in_order = (stream || cursor == self.last_end) && (!is_packed || self.params.bulk);
                self.want_segment(chunk, waiter, in_order, !stream || is_packed);
                if in_order && !stream {
                    self.read_ahead(cursor + len_bytes, window / 2);
                }
            }
            self.last_end = cursor + len_bytes;
            if self.pages.is_near_end(cursor) {
                self.ask_extents(cursor, end);
            }
        }
    }

    /// Delivers the segments that are ready, in order.
    fn deliver(&mut self, id: u64) {
        let Some(read) = self.reads.get_mut(&id) else { return };
        while read.segments.front().is_some_and(|p| p.ready.is_some()) {
            if let Some(Segment { number, len_bytes, ready: Some(delivery) }) = read.segments.pop_front() {
                let got = delivery.len_bytes();
                assert_eq!(got, len_bytes, "read {id}: segment {number} has {got} bytes, not {len_bytes}");
                read.delivered_to += len_bytes;
                assert!(read.delivered_to <= read.cursor, "read {id} delivers more than it asked for");
                self.actions.push_back(Action::Notify(ReadNotice::Deliver { id, delivery }));
            }
        }
        if read.cursor >= read.end && read.segments.is_empty() {
            assert_eq!(read.delivered_to, read.end, "read {id} ends before its range does");
            self.reads.remove(&id);
            self.actions.push_back(Action::Notify(ReadNotice::Done { id, result: Ok(()) }));
        }
    }

    fn compute(&mut self, job: Job, what: JobOwner) {
        let job = self.jobs.start(what, job);
        self.actions.push_back(Action::Compute(job));
    }

    fn computed(&mut self, done: Numbered<Output>) {
        match (self.jobs.finish(done.id), done.value) {
            (Some(JobOwner::Whole(chunk_id)), Output::Decoded(decoded)) => {
                self.step(chunk_id, |fetch, cx| fetch.on_decoded(decoded, cx));
            }
            (Some(JobOwner::Small(key)), Output::Range(bytes)) => self.small_computed(key, bytes),
            _ => {}
        }
    }

    fn want_map(&mut self, chunk_id: u64) {
        let Some(whole) = self.fetches.get(&chunk_id) else { return };
        self.maps.add(whole.fetch.chunk().pg_id, chunk_id);
    }

    fn pump_maps(&mut self) {
        if let Some((request, chunks)) = self.maps.next_request(&self.view) {
            self.rpcs.ask_manager(self.now, &request, Purpose::Map { chunks }, &self.options);
        }
    }

    fn on_map(&mut self, answer: Answer, chunks: Vec<u64>) {
        self.maps.on_answer();
        // Without a reply the fetches use the map they have.
        if let Ok((map, _)) = answer.decode::<GetMap>() {
            self.view.write().merge(&map, false);
        }
        for chunk_id in chunks {
            self.step(chunk_id, Fetch::on_map);
        }
    }
}

impl Core for ReadCore {
    type Request = ReadRequest;
    type Notice = ReadNotice;

    fn poll(&mut self) -> Option<ReadAction> {
        if let Some(call) = self.rpcs.poll() {
            return Some(Action::Call(call));
        }
        self.actions.pop_front()
    }

    fn is_finished(&self) -> bool {
        self.session.closed
    }

    fn next_due(&self) -> Option<i64> {
        if self.session.closed {
            return None;
        }
        let renew = self.session.lease.renew_due();
        let view = self.view.read();
        let fetch = self.fetches.values().filter_map(|w| w.fetch.next_due(&view, &self.options)).min();
        let hedge_ns = view.hedge_after_ns(&self.options);
        let small = self.smalls.values().filter_map(|s| s.next_due(hedge_ns)).min();
        [renew, fetch, small, self.rpcs.next_due()].into_iter().flatten().min()
    }

    fn handle(&mut self, now: i64, event: impl Into<ReadEvent>) {
        self.now = self.now.max(now);
        if self.session.closed {
            return;
        }
        match event.into() {
            Event::Request(ReadRequest::Open) => self.open(),
            Event::Request(ReadRequest::Read { id, offset, len_bytes, stream, window_bytes }) => {
                self.begin(id, offset, len_bytes, stream, window_bytes)
            }
            Event::Request(ReadRequest::Consumed { id, bytes }) => {
                if let Some(read) = self.reads.get_mut(&id) {
                    read.consume(bytes);
                }
            }
            Event::Request(ReadRequest::LeaveSession { session_id }) => {
                if self.session.lease.id == session_id {
                    self.session.lease.id = 0;
                }
            }
            Event::Request(ReadRequest::Forget { id }) => drop(self.reads.remove(&id)),
            Event::Answer(answer) => {
                if let Some(reply) = self.rpcs.on_answer(self.now, answer, &self.options) {
                    self.on_reply(reply);
                }
            }
            Event::Computed(done) => self.computed(done),
            Event::Tick => self.tick(),
            Event::Cancel => return self.close(),
        }
        self.pump();
    }
}

/// Bytes `from .. from + len` of the concatenated parts.
fn slice_parts(parts: &[Bytes], from: u64, len: u64) -> Vec<Bytes> {
    let (mut skip, mut left) = (from as usize, len as usize);
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        let start = skip.min(part.len());
        let take = left.min(part.len() - start);
        skip -= start;
        left -= take;
        if take > 0 {
            out.push(part.slice(start..start + take));
        }
    }
    out
}
