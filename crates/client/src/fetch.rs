//! Fetches one chunk: decides which fragments to request from which disks, until the bytes have the chunk's hash.
//!
//! A [`Fetch`] requests one copy, if the class has one and its disk answers as well as any; else k fragments of the
//! members that answer best. A copy is one request and needs no decoding, wherever the reader is. The fetch replaces a
//! missing or late fragment by another one, by the incoming disk's, or by those of the members of a newer map. When the
//! hash does not match, checksums tell which fragment was wrong. When they do not, it fetches every fragment within
//! reach and tries every combination. It ends with verified bytes (P2), or with what was missing or corrupt, and never
//! gives up while enough members answer (P12). It sends no messages: the core that owns it batches its requests.

use crate::config::{Options, ms};
use crate::error::ReadError;
use crate::view::View;
use bytes::Bytes;
use std::sync::Arc;
use tessera_accel::hash::Hash;
use tessera_stripe::Class;
use tessera_stripe::{ClassLayout, DecodeJob, Decoded, Fragment};
use tessera_wire::data::GetFragments;
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
    /// Too few of its fragments are within reach, and the fetch waits for more. How many are needed, at hand, and what
    /// is missing.
    Waits(Fault),
    /// It cannot be read.
    Failed(Fault),
}

/// Why a chunk cannot be read. The owner knows the file's name and makes a `ReadError` of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    TooFew { needed: u32, got: u32, missing: String },
    Corrupt { bad: String },
}

impl Fault {
    pub fn into_error(self, file: &str, chunk_id: u64) -> ReadError {
        let file = file.to_string();
        match self {
            Fault::TooFew { needed, got, missing } => {
                ReadError::TooFewFragments { file, chunk_id, needed, got, missing }
            }
            Fault::Corrupt { bad } => ReadError::Corrupt { file, chunk_id, bad },
        }
    }
}

/// The one fragment of a reply to a get of one.
pub(crate) fn single_fragment(answer: Answer) -> Result<(Bytes, u32), Error> {
    let (reply, payload) = answer.decode::<GetFragments>()?;
    let nonsense = || Error::new(Code::Corrupt, "the node's answer does not fit what was asked");
    let result = reply.results.into_iter().next().ok_or_else(nonsense)?;
    match result.error {
        Some(error) => Err(error),
        None if payload.len() == result.len_bytes as usize => Ok((payload, result.crc32c)),
        None => Err(nonsense()),
    }
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
    late_nodes: Vec<u64>,
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
            late_nodes: Vec::new(),
            finished: false,
        })
    }

    /// The chunk.
    pub fn chunk(&self) -> &ChunkInfo {
        &self.chunk
    }

    /// Fragments found missing or corrupt since the last call.
    pub fn take_bad(&mut self) -> Vec<FragmentRef> {
        std::mem::take(&mut self.bad)
    }

    /// Nodes whose answer became late since the last call.
    pub fn take_late(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.late_nodes)
    }

    /// Length in bytes of a stored fragment.
    pub fn stored_len(&self, fragment: u32) -> usize {
        self.class.stored_len(self.chunk.len_bytes, fragment)
    }

    /// Requests the first fragments.
    pub fn start(&mut self, now: i64, view: &View, options: &Options, out: &mut Vec<Step>) {
        match view.pg(self.chunk.pg_id) {
            Some(pg) => self.take_members(pg),
            None => self.waits_for_map = true,
        }
        if self.waits_for_map { out.push(Step::NeedMap) } else { self.advance(now, view, options, out) }
    }

    /// Tells the fetch that the group may have other members now.
    pub fn on_map(&mut self, now: i64, view: &View, options: &Options, out: &mut Vec<Step>) {
        if !std::mem::take(&mut self.waits_for_map) || self.finished {
            return;
        }
        match view.pg(self.chunk.pg_id) {
            Some(pg) if self.pg.as_ref().is_none_or(|old| old.epoch < pg.epoch) => self.take_members(pg),
            _ if self.pg.is_some() => self.reconsider(now, view, options, out),
            _ => {
                let missing = format!("nothing is known of group {}", self.chunk.pg_id);
                self.fail(Fault::TooFew { needed: self.class.k, got: 0, missing }, out);
            }
        }
        self.advance(now, view, options, out);
    }

    /// Takes new members: fragments at hand stay, and all disks are asked again.
    fn take_members(&mut self, pg: Arc<PgInfo>) {
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
        result: Result<(Bytes, u32), Error>,
        now: i64,
        view: &View,
        options: &Options,
        out: &mut Vec<Step>,
    ) {
        if self.finished {
            return;
        }
        let expected = self.class.stored_len(self.chunk.len_bytes, want.fragment);
        let result = result.and_then(|(bytes, crc32c)| match bytes.len() == expected {
            true => Ok((bytes, crc32c)),
            false => Err(Error::new(Code::Corrupt, format!("{} bytes instead of {expected}", bytes.len()))),
        });
        let chunk_id = self.chunk.chunk_id;
        let Some(slot) = self.slots.get_mut(want.fragment as usize) else { return };
        let source = slot.sources.iter_mut().find(|s| s.disk_id == want.disk_id);
        match result {
            Ok((bytes, crc32c)) => {
                if let Some(source) = source {
                    source.state = SourceState::Failed { error: Error::new(Code::Exists, "used") };
                }
                if !slot.is_sound() {
                    self.searched = false;
                    slot.held = Some(Fragment { number: want.fragment, bytes, crc32c });
                    slot.suspect = false;
                }
            }
            Err(error) => {
                if matches!(error.kind(), Code::NotFound | Code::Corrupt | Code::Io) {
                    let (fragment, disk_id) = (want.fragment, want.disk_id);
                    self.bad.push(FragmentRef { chunk_id, fragment, epoch: 0, disk_id });
                }
                if let Some(source) = source {
                    source.state = SourceState::Failed { error };
                }
            }
        }
        self.advance(now, view, options, out);
    }

    /// The result of decoding.
    pub fn on_decoded(&mut self, result: Decoded, now: i64, view: &View, options: &Options, out: &mut Vec<Step>) {
        self.decoding = false;
        if self.finished {
            return;
        }
        match result {
            Decoded::Verified { parts, wrong } => {
                self.finished = true;
                wrong.into_iter().for_each(|fragment| self.accuse(fragment));
                out.push(Step::Done(parts));
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
        self.advance(now, view, options, out);
    }

    /// Notes a wrong fragment, with the disk it came from (the last one used).
    fn accuse(&mut self, fragment: u32) {
        let Some(slot) = self.slots.get(fragment as usize) else { return };
        let used = |s: &&Source| matches!(&s.state, SourceState::Failed { error } if error.kind() == Code::Exists);
        let disk_id = slot.sources.iter().rev().find(used).map_or(0, |s| s.disk_id);
        let bad = FragmentRef { chunk_id: self.chunk.chunk_id, fragment, epoch: 0, disk_id };
        if !self.bad.contains(&bad) {
            self.bad.push(bad);
        }
    }

    /// Acts on late fragments, and retries what is due.
    pub fn tick(&mut self, now: i64, view: &View, options: &Options, out: &mut Vec<Step>) {
        if self.finished {
            return;
        }
        let hedge_ns = view.hedge_after_ns(options);
        for source in self.slots.iter_mut().flat_map(|s| s.sources.iter_mut()) {
            if let SourceState::Asked { at, late: late @ false } = &mut source.state {
                *late = now.saturating_sub(*at) >= hedge_ns;
                if *late {
                    self.late_nodes.extend(view.node_of(source.disk_id));
                }
            }
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.waits_for_map = true;
            out.push(Step::NeedMap);
        }
        self.advance(now, view, options, out);
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
    fn advance(&mut self, now: i64, view: &View, options: &Options, out: &mut Vec<Step>) {
        if self.finished || self.decoding || self.waits_for_map || self.retry_at.is_some() {
            return;
        }
        if self.suffices(Slot::is_sound) && !self.search {
            return self.decode(false, out);
        }
        while self.search || !self.suffices(|slot| slot.is_sound() || slot.is_coming()) {
            let Some((i, j, node_id)) = self.choose(now, view, options) else { break };
            let source = &mut self.slots[i].sources[j];
            source.state = SourceState::Asked { at: now, late: false };
            out.push(Step::Get(FragmentRequest { fragment: i as u32, disk_id: source.disk_id, node_id }));
        }
        if self.slots.iter().any(Slot::is_asked) {
            return;
        }
        // Nothing is in flight and nothing is left to request.
        if self.suffices(|slot| slot.held.is_some()) && !self.searched {
            self.search = true;
            return self.decode(true, out);
        }
        self.waits_for_map = true;
        out.push(Step::NeedMap);
    }

    /// Whether the fragments whose slots satisfy `so` suffice to read the chunk.
    fn suffices(&self, so: impl Fn(&Slot) -> bool) -> bool {
        let numbers = self.slots.iter().enumerate().filter(|(_, slot)| so(slot)).map(|(i, _)| i as u32);
        self.class.suffices(numbers)
    }

    fn decode(&mut self, search: bool, out: &mut Vec<Step>) {
        self.decoding = true;
        let usable = self.slots.iter().filter(|slot| search || slot.is_sound());
        out.push(Step::Decode(DecodeJob {
            class: self.class.clone(),
            chunk_len: self.chunk.len_bytes,
            name: self.name,
            fragments: usable.filter_map(|slot| slot.held.clone()).collect(),
            search,
        }));
    }

    /// The best fragment that is neither at hand nor in flight, from its best source: the index of both, and the node.
    fn choose(&self, now: i64, view: &View, options: &Options) -> Option<(usize, usize, u64)> {
        let count = self.slots.len() as u64;
        let candidates = self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_sound() && !slot.is_coming());
        let sources = candidates.flat_map(|(i, slot)| {
            let untried = |(_, source): &(usize, &Source)| matches!(source.state, SourceState::Untried);
            slot.sources.iter().enumerate().filter(untried).map(move |(j, source)| (i, j, slot, source))
        });
        let rated = sources.filter_map(|(i, j, slot, source)| {
            let node_id = view.node_of(source.disk_id)?;
            let local = !options.host.is_empty() && view.node(node_id).is_some_and(|n| n.host == options.host);
            // Copies are equal: each chunk starts at another one, so the load spreads.
            let turn = match self.class.coder() {
                Some(_) => i as u64,
                None => (i as u64 + self.chunk.chunk_id) % count,
            };
            let (copy, plain) = (self.class.is_copy(i as u32), self.class.is_plain(i as u32));
            let cost = (slot.known_missing, view.readiness(source.disk_id, now), !copy, !plain, !local, turn, j);
            Some((cost, (i, j, node_id)))
        });
        rated.min_by_key(|(cost, _)| *cost).map(|(_, choice)| choice)
    }

    /// Everything failed under the newest map: retries later what may come back, or gives up.
    fn reconsider(&mut self, now: i64, view: &View, options: &Options, out: &mut Vec<Step>) {
        if self.choose(now, view, options).is_some() {
            return;
        }
        let held = self.slots.iter().filter(|s| s.held.is_some()).count() as u32;
        let may_return = |s: &Source| matches!(&s.state, SourceState::Failed { error } if error.is_retryable());
        let hope = self.slots.iter().any(|slot| !slot.is_sound() && slot.sources.iter().any(may_return));
        if hope && now.saturating_sub(self.started_ns) < ms(options.get_deadline_ms) {
            self.attempts += 1;
            if self.attempts == 1 {
                let needed = self.class.k;
                out.push(Step::Waits(Fault::TooFew { needed, got: held, missing: self.describe() }));
            }
            for source in self.slots.iter_mut().flat_map(|s| s.sources.iter_mut()).filter(|s| may_return(s)) {
                source.state = SourceState::Untried;
            }
            self.searched = false;
            self.retry_at = Some(now.saturating_add(options.backoff_ns(self.attempts)));
            return;
        }
        let needed = self.class.k;
        let fault = match self.suffices(|slot| slot.held.is_some()) {
            true => Fault::Corrupt { bad: self.describe() },
            false => Fault::TooFew { needed, got: held, missing: self.describe() },
        };
        self.fail(fault, out);
    }

    fn fail(&mut self, fault: Fault, out: &mut Vec<Step>) {
        self.finished = true;
        out.push(Step::Failed(fault));
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
