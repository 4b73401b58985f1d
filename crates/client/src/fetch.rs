//! Fetches one chunk: decides which fragments to request from which disks, until the bytes have the chunk's hash.
//!
//! A [`Fetch`] requests one copy, if the class has one and its disk answers as well as any; else k fragments of the
//! members that answer best. A copy is one request and needs no decoding, wherever the reader is. The fetch replaces a
//! missing or late fragment by another one, by the incoming disk's, or by those of the members of a newer map. When the
//! hash does not match, checksums tell which fragment was wrong. When they do not, it fetches every fragment within
//! reach and tries every combination. It ends with verified bytes (P2), or with what was missing or corrupt, and never
//! gives up while enough members answer (P12). It sends no messages: the core that owns it batches its requests.

use crate::config::{Options, ms};
use crate::error::Cause;
use crate::view::{SharedView, View};
use bytes::Bytes;
use std::sync::Arc;
use tessera_accel::hash::Hash;
use tessera_stripe::{Class, ClassLayout, DecodeJob, Decoded, Fragment};
use tessera_wire::data::{GetFragments, GetResult};
use tessera_wire::meta::FragmentRef;
use tessera_wire::rpc::Answer;
use tessera_wire::{ChunkInfo, Code, Error, PgInfo};

/// A request for a fragment from a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FragmentRequest {
    pub fragment: u32,
    pub disk_id: u64,
    pub node_id: u64,
}

/// The next step that a fetch asks of its owner.
#[derive(Debug)]
pub(crate) enum Step {
    /// Request a fragment.
    Get(FragmentRequest),
    /// Compute, then [`Fetch::on_decoded`].
    Decode(DecodeJob),
    /// Request the group's members, then [`Fetch::on_map`].
    NeedMap,
    /// The chunk.
    Done(Vec<Bytes>),
    /// The answer of this node is late.
    Late(u64),
    /// Report these fragments, which are missing or corrupt.
    Bad(Vec<FragmentRef>),
    /// Too few of its fragments are within reach, and the fetch waits for more.
    Waits(Cause),
    /// It cannot be read.
    Failed(Cause),
}

/// What a fetch sees during a step, and what the step asks of the fetch's owner.
pub(crate) struct FetchContext<'a> {
    now: i64,
    view: &'a View,
    options: &'a Options,
    out: Vec<Step>,
}

/// One item of the answer to a get: its bytes, the fragment's checksum and the chunk's group hashes.
#[derive(Debug)]
pub(crate) struct FetchedRange {
    pub bytes: Bytes,
    pub crc32c: u32,
    pub groups: Bytes,
}

/// The items of an answer to a get of `expected` items; if its lengths do not fit, nothing in it is used (P14).
pub(crate) fn split_answer(answer: Answer, expected: usize) -> Result<Vec<Result<FetchedRange, Error>>, Error> {
    let (reply, mut payload) = answer.decode::<GetFragments>()?;
    let lens = reply.results.iter().filter(|r| r.error.is_none()).map(|r| r.len_bytes as usize);
    if reply.results.len() != expected || lens.sum::<usize>() != payload.len() {
        let message = format!("{} results and {} bytes do not fit what was asked", reply.results.len(), payload.len());
        return Err(Error::new(Code::Internal, message));
    }
    let range = |result: GetResult| match result.error {
        Some(error) => Err(error),
        None => {
            let bytes = payload.split_to(result.len_bytes as usize);
            Ok(FetchedRange { bytes, crc32c: result.crc32c, groups: result.groups })
        }
    };
    Ok(reply.results.into_iter().map(range).collect())
}

#[derive(Debug)]
enum SourceState {
    Untried,
    Asked { at: i64, late: bool },
    Failed { error: Error },
}

#[derive(Debug)]
struct Source {
    disk_id: u64,
    state: SourceState,
}

#[derive(Debug)]
struct Slot {
    sources: Vec<Source>,
    held: Option<Fragment>,
    /// It does not match its checksum: used only if no other fragment can be read.
    suspect: bool,
    /// The manager says it is not there (yet): requested last.
    known_missing: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Fetch {
    chunk: ChunkInfo,
    name: Hash,
    class: Arc<Class>,
    pg: Option<Arc<PgInfo>>,
    slots: Vec<Slot>,
    started_ns: i64,
    attempts: u32,
    decoding: bool,
    /// No checksum told which fragment was wrong: fetch all, then search.
    search: bool,
    searched: bool,
    waits_for_map: bool,
    retry_at: Option<i64>,
    bad: Vec<FragmentRef>,
    finished: bool,
}

impl Fetch {
    /// A fetch of `chunk`; it requests nothing before [`Fetch::start`].
    ///
    /// # Errors
    /// The chunk's description is invalid; one line says how.
    pub fn new(chunk: ChunkInfo, class: Arc<Class>, now: i64) -> Result<Self, String> {
        let name = Hash::try_from(&chunk.hash[..]).map_err(|e| format!("chunk {}: {e}", chunk.chunk_id))?;
        if chunk.len_bytes > tessera_policy::MAX_CHUNK_BYTES {
            return Err(format!("chunk {} is said to have {} bytes", chunk.chunk_id, chunk.len_bytes));
        }
        Ok(Fetch {
            chunk,
            name,
            class,
            pg: None,
            slots: Vec::new(),
            started_ns: now,
            attempts: 0,
            decoding: false,
            search: false,
            searched: false,
            waits_for_map: false,
            retry_at: None,
            bad: Vec::new(),
            finished: false,
        })
    }

    /// The chunk.
    pub fn chunk(&self) -> &ChunkInfo {
        &self.chunk
    }

    /// Length in bytes of a stored fragment.
    pub fn stored_len(&self, fragment: u32) -> usize {
        self.class.stored_len(self.chunk.len_bytes, fragment)
    }

    /// Runs one step, and returns what it asks for.
    pub fn run(
        &mut self,
        now: i64,
        view: &SharedView,
        options: &Options,
        step: impl FnOnce(&mut Self, &mut FetchContext<'_>),
    ) -> Vec<Step> {
        let mut cx = FetchContext { now, view: &view.read(), options, out: Vec::new() };
        step(self, &mut cx);
        if !self.bad.is_empty() {
            cx.out.insert(0, Step::Bad(std::mem::take(&mut self.bad)));
        }
        cx.out
    }

    /// Requests the first fragments.
    pub fn start(&mut self, cx: &mut FetchContext<'_>) {
        match cx.view.pg(self.chunk.pg_id) {
            Some(pg) => self.take_members(pg),
            None => self.waits_for_map = true,
        }
        if self.waits_for_map { cx.out.push(Step::NeedMap) } else { self.advance(cx) }
    }

    /// Tells the fetch that the group may have other members now.
    pub fn on_map(&mut self, cx: &mut FetchContext<'_>) {
        if !std::mem::take(&mut self.waits_for_map) || self.finished {
            return;
        }
        match cx.view.pg(self.chunk.pg_id) {
            Some(pg) if self.pg.as_ref().is_none_or(|old| old.epoch < pg.epoch) => self.take_members(pg),
            _ if self.pg.is_some() => self.reconsider(cx),
            _ => {
                let missing = format!("nothing is known of group {}", self.chunk.pg_id);
                self.fail(self.too_few(missing), cx);
            }
        }
        self.advance(cx);
    }

    /// Takes new members: fragments at hand stay, and all disks are asked again.
    fn take_members(&mut self, pg: Arc<PgInfo>) {
        assert!(self.pg.as_ref().is_none_or(|old| old.epoch < pg.epoch), "group {} goes back", pg.pg_id);
        let count = self.class.fragments() as usize;
        let mut held: Vec<_> = self.slots.drain(..).map(|slot| (slot.held, slot.suspect)).collect();
        held.resize_with(count, || (None, false));
        let sources = |i: usize| {
            let disks = pg.members.get(i).map(|m| [m.disk_id, m.incoming_disk_id]).unwrap_or_default();
            let used = disks.into_iter().filter(|d| *d != 0);
            used.map(|disk_id| Source { disk_id, state: SourceState::Untried }).collect()
        };
        let missing = &self.chunk.missing;
        let slot = |(i, (held, suspect))| {
            let known_missing = missing.contains(&(i as u32));
            Slot { sources: sources(i), held, suspect, known_missing }
        };
        self.slots = held.into_iter().enumerate().map(slot).collect();
        self.pg = Some(pg);
    }

    /// Takes a fragment, or the failure to get it.
    pub fn on_fragment(
        &mut self,
        want: &FragmentRequest,
        result: Result<FetchedRange, Error>,
        cx: &mut FetchContext<'_>,
    ) {
        if self.finished {
            return;
        }
        let expected = self.stored_len(want.fragment);
        let result = result.and_then(|got| match got.bytes.len() {
            len if len == expected => Ok(Fragment { number: want.fragment, bytes: got.bytes, crc32c: got.crc32c }),
            len => Err(Error::new(Code::Corrupt, format!("{len} bytes instead of {expected}"))),
        });
        let chunk_id = self.chunk.chunk_id;
        let Some(slot) = self.slots.get_mut(want.fragment as usize) else { return };
        let source = slot.sources.iter_mut().find(|s| s.disk_id == want.disk_id);
        match result {
            Ok(fragment) => {
                if let Some(source) = source {
                    source.state = SourceState::Failed { error: Error::new(Code::Exists, "used") };
                }
                if !slot.is_sound() {
                    self.searched = false;
                    slot.held = Some(fragment);
                    slot.suspect = false;
                }
            }
            Err(error) => {
                if matches!(error.code(), Code::NotFound | Code::Corrupt | Code::Io) {
                    let (fragment, disk_id) = (want.fragment, want.disk_id);
                    self.bad.push(FragmentRef { chunk_id, fragment, epoch: 0, disk_id });
                }
                if let Some(source) = source {
                    source.state = SourceState::Failed { error };
                }
            }
        }
        self.advance(cx);
    }

    /// The result of decoding.
    pub fn on_decoded(&mut self, result: Decoded, cx: &mut FetchContext<'_>) {
        assert!(self.decoding, "chunk {}: a result that was not asked for", self.chunk.chunk_id);
        self.decoding = false;
        if self.finished {
            return;
        }
        match result {
            Decoded::Verified { parts, wrong } => {
                self.finished = true;
                wrong.into_iter().for_each(|fragment| self.accuse(fragment));
                cx.out.push(Step::Done(parts));
                return;
            }
            Decoded::Mismatch { wrong } => {
                self.searched = self.search;
                // If every fragment matches its checksum, only a search can tell which is wrong.
                self.search |= wrong.is_empty();
                for fragment in wrong {
                    self.accuse(fragment);
                    self.slots[fragment as usize].suspect = true;
                }
            }
        }
        self.advance(cx);
    }

    /// Notes a wrong fragment, with the disk it came from (the last one used).
    fn accuse(&mut self, fragment: u32) {
        let Some(slot) = self.slots.get(fragment as usize) else { return };
        let used = |s: &&Source| matches!(&s.state, SourceState::Failed { error } if error.code() == Code::Exists);
        let disk_id = slot.sources.iter().rev().find(used).map_or(0, |s| s.disk_id);
        let bad = FragmentRef { chunk_id: self.chunk.chunk_id, fragment, epoch: 0, disk_id };
        if !self.bad.contains(&bad) {
            self.bad.push(bad);
        }
    }

    /// Acts on late fragments, and retries what is due.
    pub fn tick(&mut self, cx: &mut FetchContext<'_>) {
        if self.finished {
            return;
        }
        let hedge_ns = cx.view.hedge_after_ns(cx.options);
        for source in self.slots.iter_mut().flat_map(|s| s.sources.iter_mut()) {
            if let SourceState::Asked { at, late: late @ false } = &mut source.state {
                *late = cx.now.saturating_sub(*at) >= hedge_ns;
                if *late {
                    cx.out.extend(cx.view.node_of(source.disk_id).map(Step::Late));
                }
            }
        }
        if self.retry_at.is_some_and(|at| at <= cx.now) {
            self.retry_at = None;
            self.waits_for_map = true;
            cx.out.push(Step::NeedMap);
        }
        self.advance(cx);
    }

    /// When [`Fetch::tick`] has something to do.
    pub fn next_due(&self, view: &View, options: &Options) -> Option<i64> {
        let hedge_ns = view.hedge_after_ns(options);
        let asked = self.slots.iter().flat_map(|s| &s.sources).filter_map(|s| match s.state {
            SourceState::Asked { at, late: false } => Some(at.saturating_add(hedge_ns)),
            _ => None,
        });
        asked.chain(self.retry_at).min().filter(|_| !self.finished)
    }

    /// Decodes if enough fragments are at hand, and requests more if not.
    fn advance(&mut self, cx: &mut FetchContext<'_>) {
        if self.finished || self.decoding || self.waits_for_map || self.retry_at.is_some() {
            return;
        }
        if self.suffices(Slot::is_sound) && !self.search {
            return self.decode(false, cx);
        }
        while self.search || !self.suffices(|slot| slot.is_sound() || slot.is_coming()) {
            let Some((i, j, node_id)) = self.choose(cx) else { break };
            let source = &mut self.slots[i].sources[j];
            source.state = SourceState::Asked { at: cx.now, late: false };
            cx.out.push(Step::Get(FragmentRequest { fragment: i as u32, disk_id: source.disk_id, node_id }));
        }
        if self.slots.iter().any(Slot::is_asked) {
            return;
        }
        // Nothing is in flight and nothing is left to request.
        if self.suffices(|slot| slot.held.is_some()) && !self.searched {
            self.search = true;
            return self.decode(true, cx);
        }
        self.waits_for_map = true;
        cx.out.push(Step::NeedMap);
    }

    /// Whether the fragments whose slots satisfy `so` suffice to read the chunk.
    fn suffices(&self, so: impl Fn(&Slot) -> bool) -> bool {
        let numbers = self.slots.iter().enumerate().filter(|(_, slot)| so(slot)).map(|(i, _)| i as u32);
        self.class.suffices(numbers)
    }

    fn decode(&mut self, search: bool, cx: &mut FetchContext<'_>) {
        assert!(!self.decoding && !self.finished, "chunk {} is decoded twice at a time", self.chunk.chunk_id);
        assert!(self.suffices(|slot| slot.held.is_some()), "chunk {} is decoded from too little", self.chunk.chunk_id);
        self.decoding = true;
        let usable = self.slots.iter().filter(|slot| search || slot.is_sound());
        cx.out.push(Step::Decode(DecodeJob {
            class: self.class.clone(),
            chunk_len: self.chunk.len_bytes,
            name: self.name,
            fragments: usable.filter_map(|slot| slot.held.clone()).collect(),
            search,
        }));
    }

    /// The best fragment that is neither at hand nor in flight, from its best source: the index of both, and the node.
    fn choose(&self, cx: &FetchContext<'_>) -> Option<(usize, usize, u64)> {
        let count = self.slots.len() as u64;
        let candidates = self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_sound() && !slot.is_coming());
        let sources = candidates.flat_map(|(i, slot)| {
            let untried = |(_, source): &(usize, &Source)| matches!(source.state, SourceState::Untried);
            slot.sources.iter().enumerate().filter(untried).map(move |(j, source)| (i, j, slot, source))
        });
        let rated = sources.filter_map(|(i, j, slot, source)| {
            let node_id = cx.view.node_of(source.disk_id)?;
            let remote = !cx.view.is_local(source.disk_id, &cx.options.host);
            // Copies are equal: each chunk starts at another one, so the load spreads.
            let turn = match self.class.coder() {
                Some(_) => i as u64,
                None => (i as u64 + self.chunk.chunk_id) % count,
            };
            let (copy, plain) = (self.class.is_copy(i as u32), self.class.is_plain(i as u32));
            let readiness = cx.view.readiness(source.disk_id, cx.now);
            Some(((slot.known_missing, readiness, !copy, !plain, remote, turn, j), (i, j, node_id)))
        });
        rated.min_by_key(|(cost, _)| *cost).map(|(_, choice)| choice)
    }

    /// Everything failed under the newest map: retries later what may come back, or gives up.
    fn reconsider(&mut self, cx: &mut FetchContext<'_>) {
        if self.choose(cx).is_some() {
            return;
        }
        let may_return = |s: &Source| matches!(&s.state, SourceState::Failed { error } if error.is_retryable());
        let hope = self.slots.iter().any(|slot| !slot.is_sound() && slot.sources.iter().any(may_return));
        if hope && cx.now.saturating_sub(self.started_ns) < ms(cx.options.get_deadline_ms) {
            self.attempts += 1;
            if self.attempts == 1 {
                cx.out.push(Step::Waits(self.too_few(self.describe())));
            }
            for source in self.slots.iter_mut().flat_map(|s| s.sources.iter_mut()).filter(|s| may_return(s)) {
                source.state = SourceState::Untried;
            }
            self.searched = false;
            self.retry_at = Some(cx.now.saturating_add(cx.options.backoff_ns(self.attempts)));
            return;
        }
        let cause = match self.suffices(|slot| slot.held.is_some()) {
            true => Cause::Corrupt { chunk_id: self.chunk.chunk_id, bad: self.describe() },
            false => self.too_few(self.describe()),
        };
        self.fail(cause, cx);
    }

    fn too_few(&self, missing: String) -> Cause {
        let got = self.slots.iter().filter(|s| s.held.is_some()).count() as u32;
        Cause::TooFewFragments { chunk_id: self.chunk.chunk_id, needed: self.class.k, got, missing }
    }

    fn fail(&mut self, cause: Cause, cx: &mut FetchContext<'_>) {
        assert!(!self.finished, "chunk {} fails after its end", self.chunk.chunk_id);
        self.finished = true;
        cx.out.push(Step::Failed(cause));
    }

    /// The state of each fragment that is not sound, for people.
    fn describe(&self) -> String {
        let mut clauses = Vec::new();
        for (i, slot) in self.slots.iter().enumerate() {
            match &slot.held {
                Some(_) if slot.suspect => clauses.push(format!("fragment {i} does not have its checksum")),
                Some(_) => {}
                None if slot.sources.is_empty() => clauses.push(format!("fragment {i} is nowhere")),
                None => clauses.extend(slot.sources.iter().map(|s| {
                    let why = match &s.state {
                        SourceState::Failed { error } => error.message.as_str(),
                        SourceState::Asked { .. } => "no answer",
                        SourceState::Untried => "its node is not known",
                    };
                    format!("fragment {i} on disk {}: {why}", s.disk_id)
                })),
            }
        }
        match clauses.is_empty() {
            true => "all fragments have their checksums, no choice of them has the name".to_string(),
            false => clauses.join("; "),
        }
    }
}

impl Slot {
    /// At hand, and not known to be wrong.
    fn is_sound(&self) -> bool {
        self.held.is_some() && !self.suspect
    }

    /// Requested and not late: the fetch counts on it.
    fn is_coming(&self) -> bool {
        !self.is_sound() && self.sources.iter().any(|s| matches!(s.state, SourceState::Asked { late: false, .. }))
    }

    /// Requested and still needed: a late one may still come.
    fn is_asked(&self) -> bool {
        !self.is_sound() && self.sources.iter().any(|s| matches!(s.state, SourceState::Asked { .. }))
    }
}
