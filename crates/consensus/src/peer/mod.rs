//! [`Peer`]: one member of the group as a state machine.
//!
//! Every call syncs what it must before it returns, and queues outputs for [`Peer::poll`].

pub mod fencing;
mod fetch;
mod leading;

mod candidates;
mod memory;
mod reaching;
mod ready;
mod receiving;
mod sending;

pub use leading::{Progress, Refused};

use crate::log::Log;
use crate::log::fence::Fence;
use crate::log::snapshot::SnapshotFiles;
use crate::message;
use crate::storage::PeerStorage;
use bytes::Bytes;
use candidates::Candidates;
use fetch::{Fetch, Sources};
use memory::Memory;
use prost::Message as _;
use raft::{RawNode, StateRole};
use reaching::Reaching;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use tessera_disk::SplitMix64;
use tessera_wire::consensus::SnapshotInfo;
use tessera_wire::consensus::{GetPiece, Member, Membership, PeerKind, Position};
use tessera_wire::frame::decode_message;
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Code, Error, Kind};

/// Tokens of a peer's calls have this bit, so that its owner can tell them from its own.
pub const TOKEN_BIT: u64 = 1 << 63;
/// Limit of the peers that one hears of, members or not.
const PEERS_MAX: usize = 256;
/// Ticks after which a leader whose disk is full leads no more.
const FULL_TICKS: u64 = 10;
/// A peer that was not heard from for this long, in ns, is silent.
const SILENT_NS: i64 = 3_000_000_000;

/// How a peer behaves. A tick is what the owner makes it, 100 ms in production.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// The peer itself, as it introduces itself to others.
    pub member: Member,
    /// Seed of its election time-outs.
    pub seed: u64,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Ticks without a leader after which a manager campaigns at the earliest; up to twice as many are drawn. Voters wait three
    /// times as long, so that a manager that can serve comes first.
    pub election_ticks: usize,
    /// Limit of the wait for an answer in milliseconds.
    pub call_timeout_ms: u64,
    /// Bytes of entries in one frame, if there is more than one entry.
    pub frame_bytes: u64,
    /// Limit of the number of voters, when this peer leads.
    pub voters_max: usize,
}

impl PeerConfig {
    /// The defaults of production.
    #[must_use]
    pub fn new(member: Member, seed: u64) -> PeerConfig {
        PeerConfig {
            member,
            seed,
            heartbeat_ticks: 3,
            election_ticks: 10,
            call_timeout_ms: 3_000,
            frame_bytes: 4 << 20,
            voters_max: 5,
        }
    }

    fn ticks_before_campaign(&self) -> (usize, usize) {
        let factor = if self.member.kind() == PeerKind::Voter { 3 } else { 1 };
        (self.election_ticks * factor, self.election_ticks * factor * 2)
    }
}

/// Room on the disk of a peer's owner. A peer finds out by itself that its log cannot grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Room {
    /// There is enough.
    #[default]
    Enough,
    /// It is scarce: another manager had better lead.
    Scarce,
    /// The owner can store nothing.
    Missing,
}

/// Why a peer takes part no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Its log cannot be read or written.
    #[error("the log of this peer failed: {0}")]
    Log(String),
    /// Another peer knows that this one had synced more than it holds now.
    #[error(
        "peer {by:x} knows that this peer had reached term {known_term} and entry {known_index}, but its log ends at term \
         {own_term}, entry {own_index}: its directory is an older copy or lost writes; move it away and join again under a new id"
    )]
    Forgotten {
        /// The peer that knows.
        by: u64,
        /// Highest term it knows of.
        known_term: u64,
        /// Highest entry it knows of.
        known_index: u64,
        /// This peer's term.
        own_term: u64,
        /// This peer's last entry.
        own_index: u64,
    },
    /// The group has gone on without it.
    #[error(
        "the group is led, and too few of the peers that this one knows of answer: the others have been replaced since it stopped; move \
         its directory away and join again under a new id"
    )]
    Outdated,
    /// Somebody told it to go.
    #[error(
        "this peer was removed from the group (tessera manager remove) and is not let in again; delete its directory, or move it away and \
         start with --join to join under a new id"
    )]
    Expelled,
    /// A restored group has replaced the peer's.
    #[error(
        "the group of this peer lost its majority and was replaced by a restored one (term {term}); move its directory away and join \
         again under a new id"
    )]
    Replaced {
        /// A term of the restored group.
        term: u64,
    },
    /// A restore is under way.
    #[error(
        "restore {restore_id:016x} has fenced this peer: it takes no part until the restored group speaks to it; run that restore again, \
         or another one with --force"
    )]
    Fenced {
        /// The restore.
        restore_id: u64,
    },
    /// The state that the owner applied is ahead of the log.
    #[error(
        "the database holds entry {applied}, the log beside it ends at {last}: they do not belong together; move the directory away and join again"
    )]
    Ahead {
        /// Last entry applied.
        applied: u64,
        /// Last entry of the log.
        last: u64,
    },
}

/// What a peer is at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Its term.
    pub term: u64,
    /// The leader of that term, if known.
    pub leader: Option<u64>,
    /// It leads. It may have been deposed without knowing: what it answers must be confirmed.
    pub leads: bool,
}

/// An input.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an input is handled at once")]
pub enum Input {
    /// Time passes.
    Tick,
    /// A request of another peer arrived: `Consensus`, `GetPiece` or `JoinGroup`. An [`Output::Answer`] with this token answers it.
    Request {
        /// The owner's number for it.
        token: u64,
        /// Its kind.
        kind: Kind,
        /// The encoded message.
        body: Bytes,
        /// Its payload.
        payload: Bytes,
    },
    /// The answer to a call.
    Answer(Answer),
}

/// An output.
#[derive(Debug)]
pub enum Output {
    /// Send a request.
    Call(Call),
    /// Answer a request.
    Answer {
        /// The request's.
        token: u64,
        /// The encoded answer and its payload.
        result: Result<(Bytes, Vec<Bytes>), Error>,
    },
    /// An entry is committed; they come in order. Empty data: the first entry of a leader.
    Committed {
        /// Its index.
        index: u64,
        /// Its term.
        term: u64,
        /// The command.
        data: Bytes,
    },
    /// Replace the state by the content of the snapshot held; later entries follow.
    Restore(SnapshotInfo),
    /// The standing changed.
    Standing(Standing),
    /// The peer led when [`Peer::confirm`] was called with this number, or later.
    Confirmed(u64),
    /// The members changed.
    Members,
    /// The peer takes part no more.
    Stopped(PeerError),
}

enum Sent {
    /// To this peer, at this address.
    Frame(u64, String),
    Piece,
    /// To whoever is at this address.
    Introduction(String),
    /// A word to a peer of a group that this one replaces.
    Told(u64),
}

/// A member of the group.
pub struct Peer {
    config: PeerConfig,
    node: RawNode<PeerStorage>,
    outputs: VecDeque<Output>,
    lines: BTreeMap<u64, sending::Line>,
    /// Peers that did not get what was sent, for the library; true: a snapshot.
    unsent: Vec<(u64, bool)>,
    /// Where peers were heard from last, members or not.
    heard: BTreeMap<u64, Member>,
    /// When they were heard from last, ns.
    heard_ns: BTreeMap<u64, i64>,
    /// Address to the member that answered a frame there last.
    answered_at: BTreeMap<String, u64>,
    /// When they last said that they have just started, ns.
    started_ns: BTreeMap<u64, i64>,
    /// Bytes of committed entries among the outputs.
    queued_bytes: usize,
    /// Since when others say that their disks are full, and when they last said so, ns.
    full_ns: BTreeMap<u64, (i64, i64)>,
    /// To whom it handed leadership last, as the leader that it is.
    handed_to: Option<u64>,
    /// Since when it leads, if it does.
    leads_since_ns: Option<i64>,
    sent: HashMap<u64, Sent>,
    next_token: u64,
    memory: Memory,
    fetch: Option<Fetch>,
    sources: Sources,
    /// What must be written before anything else.
    unwritten: Option<raft::Ready>,
    /// The library was asked during this input what it wants.
    has_begun: bool,
    /// Committed entries that are not applied yet, and members that are not written yet: both wait for room on the disk.
    unapplied: VecDeque<raft::eraftpb::Entry>,
    unsaved: Option<Membership>,
    /// The disk had no room for it.
    is_full: bool,
    /// Ticks since it has none.
    full_ticks: u64,
    standing: Standing,
    /// Term, role and leader for which the time-out was drawn.
    drawn_for: (u64, u8, u64),
    rng: SplitMix64,
    may_lead: bool,
    /// Committed entries that the owner has yet to apply.
    unapplied_here: u64,
    /// Their bytes.
    unapplied_bytes: usize,
    /// Entries that other members have yet to apply, as they said last.
    unapplied_there: BTreeMap<u64, u64>,
    room: Room,
    /// The tick of the next attempt to hand leadership over because room is scarce.
    offers_at: u64,
    candidates: Candidates,
    reaching: Reaching,
    ticks: u64,
    /// The frame that is being answered comes from this peer: messages for it go with the answer.
    answering: Option<u64>,
    /// The log begins anew after this snapshot, whose owner has not heard of it yet.
    restoring: Option<SnapshotInfo>,
    /// Frames of a leader's tick name the snapshot that it holds.
    announces: bool,
    stopped: Option<PeerError>,
    fence: Option<Fence>,
    told: fencing::Told,
    now_ns: i64,
}

impl Peer {
    /// A peer on its log. `applied` is the last entry in its owner's state; a voter has none and passes the log's base.
    ///
    /// # Errors
    /// [`PeerError::Ahead`]: the log does not hold what was applied.
    pub fn start(log: Log, files: SnapshotFiles, applied: u64, config: PeerConfig) -> Result<Peer, PeerError> {
        assert_eq!(log.identity().peer_id, config.member.id, "a peer has one id");
        let (base, last) = (log.base().index, log.last_index());
        if applied > last {
            return Err(PeerError::Ahead { applied, last });
        }
        let fence = Fence::load(&**log.disk(), &fencing::fence_path(log.dir()))
            .map_err(|error| PeerError::Log(error.to_string()))?;
        let mut log = log;
        log.note_committed(applied);
        let (min, max) = config.ticks_before_campaign();
        let library = raft::Config {
            id: config.member.id,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            min_election_tick: min,
            max_election_tick: max,
            applied: applied.max(base),
            max_size_per_msg: config.frame_bytes,
            max_inflight_msgs: sending::MESSAGES_IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            max_committed_size_per_ready: config.frame_bytes,
            // Followers learn what is committed from the next entries, or from a heartbeat. To tell them at once would double the messages
            // of a client that waits for each of its commands.
            skip_bcast_commit: true,
            ..raft::Config::default()
        };
        let memory = Memory::new(log.membership(), config.member.id);
        let storage = PeerStorage {
            log,
            files,
            lacks_snapshot: Cell::new(false),
            holds_back: Cell::new(false),
            failure: RefCell::new(None),
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&library, storage, &logger).map_err(|error| PeerError::Log(error.to_string()))?;
        let mut rng = SplitMix64::new(config.seed);
        let mut peer = Peer {
            config,
            node,
            outputs: VecDeque::new(),
            lines: BTreeMap::new(),
            unsent: Vec::new(),
            heard: BTreeMap::new(),
            heard_ns: BTreeMap::new(),
            answered_at: BTreeMap::new(),
            started_ns: BTreeMap::new(),
            queued_bytes: 0,
            full_ns: BTreeMap::new(),
            handed_to: None,
            leads_since_ns: None,
            sent: HashMap::new(),
            // Answers to calls of an earlier peer in this process must not match.
            next_token: rng.next_u64() >> 16,
            memory,
            fetch: None,
            sources: Sources::default(),
            unwritten: None,
            has_begun: false,
            unapplied: VecDeque::new(),
            unsaved: None,
            is_full: false,
            full_ticks: 0,
            standing: Standing::default(),
            drawn_for: (0, 0, 0),
            may_lead: true,
            unapplied_here: 0,
            unapplied_there: BTreeMap::new(),
            unapplied_bytes: 0,
            room: Room::Enough,
            offers_at: 0,
            candidates: Candidates::default(),
            reaching: Reaching::default(),
            ticks: 0,
            answering: None,
            restoring: None,
            announces: false,
            stopped: None,
            fence,
            told: fencing::Told::default(),
            now_ns: 0,
            rng,
        };
        peer.draw_timeout();
        peer.standing.term = peer.node.raft.term;
        Ok(peer)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.config.member.id
    }

    /// The time of the last input, ns.
    #[must_use]
    pub fn now_ns(&self) -> i64 {
        self.now_ns
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.node.store().log
    }

    /// Snapshot files.
    #[must_use]
    pub fn files(&self) -> &SnapshotFiles {
        &self.node.store().files
    }

    /// The group as of the last applied change.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        self.log().membership()
    }

    /// What the peer is.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The leader as a member, if it is known.
    #[must_use]
    pub fn leader(&self) -> Option<&Member> {
        self.standing.leader.and_then(|id| self.find(id))
    }

    /// Voters that this peer has not heard from lately. While nobody leads, all that are well are heard: they ask for votes.
    #[must_use]
    pub fn silent(&self) -> Vec<Member> {
        let membership = self.membership();
        let silent = membership.voters.iter().filter(|id| !self.is_heard(**id));
        silent.filter_map(|&id| self.find(id)).cloned().collect()
    }

    /// Whether this peer has heard from another lately, or is it itself.
    #[must_use]
    pub fn is_heard(&self, id: u64) -> bool {
        let since_ns = self.now_ns.saturating_sub(SILENT_NS);
        id == self.id() || self.heard_ns.get(&id).is_some_and(|at| *at >= since_ns)
    }

    /// Whether another peer has started at this time or later: what it was asked before, it may have forgotten.
    #[must_use]
    pub fn has_started_since(&self, id: u64, ns: i64) -> bool {
        self.started_ns.get(&id).is_some_and(|at| *at >= ns)
    }

    /// Whether another peer said lately that its disk is full. It takes no part until there is room.
    #[must_use]
    pub fn says_full(&self, id: u64) -> bool {
        let since_ns = self.now_ns.saturating_sub(SILENT_NS);
        self.full_ns.get(&id).is_some_and(|(_, last)| *last >= since_ns)
    }

    /// Whether it has just started, and asks others what they remember of it before it takes part.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.memory.asks()
    }

    /// Why the peer takes part no more, if so.
    #[must_use]
    pub fn stopped(&self) -> Option<&PeerError> {
        self.stopped.as_ref()
    }

    /// Whether its disk is too full to take entries.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// A peer that must not lead, because its owner could not apply entries, hands leadership over and does not campaign.
    pub fn set_may_lead(&mut self, may_lead: bool) {
        self.may_lead = may_lead;
    }

    /// A peer whose owner has yet to apply committed entries does not campaign: one that has applied them serves sooner. If it leads, it
    /// goes on. It gets no more entries while it has too many bytes of them.
    pub fn set_unapplied(&mut self, entries: u64, bytes: usize) {
        (self.unapplied_here, self.unapplied_bytes) = (entries, bytes);
    }

    /// Committed entries that another member has yet to apply, as it said last. Until then it takes no leadership over.
    #[must_use]
    pub fn unapplied(&self, id: u64) -> u64 {
        self.unapplied_there.get(&id).copied().unwrap_or(0)
    }

    /// A leader whose owner lacks room hands leadership to another manager, if one takes it, and takes it from none.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    fn may_campaign(&self) -> bool {
        self.may_lead && self.unapplied_here == 0
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        if let Some(Output::Committed { data, .. }) = &output {
            self.queued_bytes -= data.len();
        }
        output
    }

    /// Handles an input.
    pub fn handle(&mut self, now_ns: i64, input: Input) {
        self.now_ns = now_ns;
        if !self.is_full {
            self.complete();
        }
        match input {
            Input::Request { token, kind, body, payload } => {
                let result = self.request(kind, &body, payload);
                self.outputs.push_back(Output::Answer { token, result });
                self.fetch_more();
            }
            _ if self.stopped.is_some() => {}
            Input::Tick => self.tick(),
            Input::Answer(answer) => self.answer(answer),
        }
    }

    fn tick(&mut self) {
        self.complete();
        if self.is_full {
            return self.stand_down_if_full_for_long();
        }
        self.full_ticks = 0;
        if self.fence.is_some() {
            return;
        }
        self.seek();
        if self.memory.asks() {
            return self.go_on_asking();
        }
        match self.may_campaign() || self.node.raft.state == StateRole::Leader {
            true => _ = self.node.tick(),
            // It does not campaign, but once it has not heard of the leader for long enough, it votes for another.
            false => self.node.raft.election_elapsed += 1,
        }
        self.ticks += 1;
        self.probe_leader();
        self.lead();
        self.announces = self.node.raft.state == StateRole::Leader;
        self.process();
        self.announces = false;
        self.fetch_more();
    }

    /// A leader that can write nothing serves nobody, and no message of another peer reaches it: it gives way to one that can.
    fn stand_down_if_full_for_long(&mut self) {
        self.full_ticks += 1;
        if self.full_ticks >= FULL_TICKS && self.node.raft.state == StateRole::Leader {
            tracing::warn!("this peer leads no more: its disk is full");
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, 0);
            self.note_standing();
        }
    }

    /// Leads no more, without choosing who does.
    pub fn resign(&mut self) {
        self.complete();
        if self.node.raft.state == StateRole::Leader && self.stopped.is_none() {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, 0);
            self.note_standing();
        }
    }

    /// Campaigns at once, if nobody leads: a manager that is the only one need not wait for its time-out.
    pub fn campaign(&mut self) {
        self.complete();
        let idle = !self.is_full && self.stopped.is_none() && self.fence.is_none() && !self.memory.asks();
        let waits = self.node.raft.state == StateRole::Follower;
        if idle && waits && self.may_campaign() && self.standing.leader.is_none() {
            let _ = self.node.campaign();
            self.process();
        }
    }

    fn request(&mut self, kind: Kind, body: &[u8], payload: Bytes) -> Result<(Bytes, Vec<Bytes>), Error> {
        let invalid = |error: tessera_wire::FrameError| Error::new(Code::Invalid, error.to_string());
        let number = kind as u16;
        match kind {
            Kind::Consensus => {
                let (reply, payload) = self.frame(decode_message(number, body).map_err(invalid)?, payload)?;
                Ok((reply.encode_to_vec().into(), payload))
            }
            Kind::GetPiece => {
                let piece = self.serve_piece(&decode_message(number, body).map_err(invalid)?)?;
                Ok((Bytes::new(), vec![piece.into()]))
            }
            Kind::JoinGroup => {
                let reply = self.join(decode_message(number, body).map_err(invalid)?)?;
                Ok((reply.encode_to_vec().into(), Vec::new()))
            }
            Kind::DescribePeer => {
                let reply = self.describe_for(&decode_message(number, body).map_err(invalid)?)?;
                Ok((reply.encode_to_vec().into(), Vec::new()))
            }
            Kind::FencePeer => {
                let reply = self.fence_for(&decode_message(number, body).map_err(invalid)?)?;
                Ok((reply.encode_to_vec().into(), Vec::new()))
            }
            Kind::GetEntries => {
                let (reply, payload) = self.serve_entries(&decode_message(number, body).map_err(invalid)?)?;
                Ok((reply.encode_to_vec().into(), payload))
            }
            _ => Err(Error::new(Code::Unsupported, format!("{} is not for a peer", kind.name()))),
        }
    }

    fn answer(&mut self, answer: Answer) {
        match self.sent.remove(&answer.token) {
            Some(Sent::Frame(to, address)) => self.frame_answered(to, address, answer),
            Some(Sent::Piece) => self.piece_answered(answer),
            Some(Sent::Introduction(address)) => self.introduced(&address, answer),
            Some(Sent::Told(id)) => self.told(id, &answer),
            None => {}
        }
        self.fetch_more();
    }

    fn stop(&mut self, error: PeerError) {
        tracing::error!(%error, "this peer stops");
        self.stopped = Some(error.clone());
        self.outputs.push_back(Output::Stopped(error));
    }

    /// What this peer has synced.
    #[must_use]
    pub fn position(&self) -> Position {
        let (log, state) = (self.log(), self.log().state());
        Position { term: state.term, voted: state.vote != 0, last_term: log.last_term(), last_index: log.last_index() }
    }

    fn find(&self, id: u64) -> Option<&Member> {
        self.heard.get(&id).or_else(|| message::member(self.membership(), id))
    }

    fn draw_token(&mut self, sent: Sent) -> u64 {
        self.next_token += 1;
        let token = TOKEN_BIT | self.next_token;
        self.sent.insert(token, sent);
        token
    }

    /// The library draws time-outs from the thread's random numbers; a simulation needs them from its seed.
    fn draw_timeout(&mut self) {
        let (min, max) = self.config.ticks_before_campaign();
        let ticks = min + self.rng.below((max - min) as u64) as usize;
        self.node.raft.set_randomized_election_timeout(ticks);
    }

    /// Tells the owner about a change of standing.
    fn note_standing(&mut self) {
        let raft = &self.node.raft;
        let leader = (raft.leader_id != 0).then_some(raft.leader_id);
        let standing = Standing { term: raft.term, leader, leads: raft.state == StateRole::Leader };
        if standing != self.standing {
            self.standing = standing;
            (self.leads_since_ns, self.handed_to) = (standing.leads.then_some(self.now_ns), None);
            self.outputs.push_back(Output::Standing(standing));
        }
    }
}
