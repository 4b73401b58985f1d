//! What other peers send to a peer of the metadata service: requests, and answers to its own calls (docs/wire.md). A peer answers each
//! request once, never takes back a term or an entry that is committed, and holds on its disk what it said it had (P7, P9, P14).

use crate::Target;
use crate::input::{Parts, split};
use crate::mutate::{index, one_in};
use crate::proto;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tessera_consensus::log::snapshot::{SnapshotFiles, seal};
use tessera_consensus::log::{Base, Log, LogIdentity, LogOptions};
use tessera_consensus::{Input, Output, Peer, PeerConfig};
use tessera_disk::{Disk, OpenMode, SimDisk, SplitMix64};
use tessera_wire::consensus::{Member, Membership, PeerKind, Position, SnapshotInfo};
use tessera_wire::rpc::{Answer, Call, Peer as Address};
use tessera_wire::{Code, Error, Kind};

/// See the module.
pub const TARGET: Target =
    Target { name: "peer", run, seeds, adapt, runs: 3_000, base_bytes: 8 << 20, bytes_per_byte: 2_000 };

const CLUSTER: [u8; 16] = [7; 16];
const DIR: &str = "log";
const TICK_NS: i64 = 100_000_000;
/// The requests that a peer answers, by the first byte of a part. More first bytes follow.
const KINDS: [Kind; 6] =
    [Kind::Consensus, Kind::GetPiece, Kind::JoinGroup, Kind::DescribePeer, Kind::FencePeer, Kind::GetEntries];
/// The answer to the oldest call.
const ANSWER: u8 = 6;
/// The oldest call fails.
const FAILURE: u8 = 7;
const TICK: u8 = 8;
const PROPOSE: u8 = 9;

fn member(id: u64) -> Member {
    let name = format!("h{id}");
    Member { id, kind: PeerKind::Manager as i32, host: name.clone(), address: name.clone(), name }
}

/// Peers 1 to 3 are a group, and have a snapshot of its first entry; others are new.
fn new_peer(id: u64) -> (SimDisk, Peer) {
    let disk = SimDisk::new(id);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let identity = LogIdentity { cluster_id: CLUSTER, peer_id: id };
    let members = (1..=3).map(member).collect();
    let group = Membership { index: 1, voters: vec![1, 2, 3], members, ..Membership::default() };
    let (base, membership) = match id {
        1..=3 => (Base { index: 1, term: 1 }, group.clone()),
        _ => (Base::default(), Membership::default()),
    };
    let log =
        Log::create(shared.clone(), DIR, identity, LogOptions::default(), base, membership).expect("an empty disk");
    if base.index > 0 {
        let part = format!("{DIR}/made.part");
        disk.open(&part, OpenMode::Create).and_then(|file| file.write_at(0, &[3; 100])).expect("room");
        let info = SnapshotInfo { index: 1, term: 1, membership: Some(group), ..SnapshotInfo::default() };
        seal(&disk, DIR, &part, info).expect("room");
    }
    let files = SnapshotFiles::open(shared, DIR).expect("a healthy disk");
    let mut peer = Peer::start(log, files, base.index, PeerConfig::new(member(id), id)).expect("a new log");
    peer.set_seeds((1..=3).filter(|other| *other != id).map(|other| format!("h{other}")).collect());
    (disk, peer)
}

/// The first part names the peer; each other one is an event.
#[must_use]
pub fn run(input: &[u8]) -> String {
    let parts = split(input);
    let id = parts.first().and_then(|part| part.first()).map_or(1, |byte| 1 + u64::from(byte % 4));
    let (disk, peer) = new_peer(id);
    let mut subject = Subject { peer, calls: VecDeque::new(), answered: 0, committed: None, done: String::new() };
    let mut said = subject.peer.position();
    for (number, part) in (0_i64..).zip(parts.iter().skip(1)) {
        subject.event(number, part);
        let now = subject.peer.position();
        assert!(now.term >= said.term, "a term is taken back: {said:?}, {now:?}");
        let acts_in = subject.peer.standing().term;
        assert!(now.term >= acts_in, "it acts in term {acts_in}, which is not on its disk: {now:?}");
        said = now;
    }
    let Subject { peer, done, .. } = subject;
    drop(peer);
    check_disk(&disk, said);
    done
}

/// What a peer says of itself is on its disk.
fn check_disk(disk: &SimDisk, said: Position) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = Log::open(disk, DIR, LogOptions::default()).expect("a healthy disk").expect("a log");
    let state = log.state();
    let held =
        Position { term: state.term, voted: state.vote != 0, last_term: log.last_term(), last_index: log.last_index() };
    assert_eq!(held, said, "the log is not what the peer said");
}

struct Subject {
    peer: Peer,
    calls: VecDeque<u64>,
    answered: u64,
    /// The last entry that was committed or restored.
    committed: Option<u64>,
    done: String,
}

impl Subject {
    fn event(&mut self, number: i64, part: &[u8]) {
        let Some((kind, body, payload)) = parse(part) else { return };
        let (token, now_ns) = (number as u64, number * TICK_NS);
        match (kind, KINDS.get(usize::from(kind))) {
            (_, Some(&kind)) => {
                let before = self.answered;
                self.peer.handle(now_ns, Input::Request { token, kind, body, payload });
                self.drain(token);
                assert_eq!(self.answered, before + 1, "a request is answered once");
            }
            (ANSWER | FAILURE, _) => {
                let Some(token) = self.calls.pop_front() else { return };
                let failure = Err(Error::new(Code::Unavailable, "lost"));
                let result = if kind == ANSWER { Ok((body, payload)) } else { failure };
                self.peer.handle(now_ns, Input::Answer(Answer { token, result }));
            }
            (PROPOSE, _) => _ = self.peer.propose(body),
            _ => self.peer.handle(now_ns, Input::Tick),
        }
        self.drain(token);
        self.peer.complete();
        self.drain(token);
    }

    fn drain(&mut self, request: u64) {
        while let Some(output) = self.peer.poll() {
            match output {
                Output::Call(call) => self.calls.push_back(call.token),
                Output::Answer { token, result } => {
                    assert_eq!(token, request, "an answer to another request");
                    self.answered += 1;
                    self.note(
                        &result.map_or_else(
                            |error| format!("{:?} {}", error.code(), shape(&error.message)),
                            |_| "ok".into(),
                        ),
                    );
                }
                Output::Committed { index, .. } => {
                    // Entries that change the members are not told.
                    assert!(self.committed.is_none_or(|before| index > before), "{:?}, then {index}", self.committed);
                    self.committed = Some(index);
                    self.note("committed");
                }
                Output::Restore(info) => {
                    assert!(self.committed.is_none_or(|before| info.index > before), "a snapshot takes back entries");
                    self.committed = Some(info.index);
                    self.note("restored");
                }
                Output::Standing(standing) => self.note(if standing.leads { "leads" } else { "follows" }),
                Output::Stopped(error) => self.note(&shape(&error.to_string())),
                Output::Confirmed(_) | Output::Members => self.note("more"),
            }
        }
    }

    /// Notes what is new, so that equal runs look equal.
    fn note(&mut self, what: &str) {
        if !self.done.contains(what) {
            self.done += what;
            self.done += ";";
        }
    }
}

fn shape(text: &str) -> String {
    text.chars().filter(char::is_ascii_lowercase).take(50).collect()
}

/// First byte, body and payload of a part: the payload's length follows the first byte, then comes the payload.
fn parse(part: &[u8]) -> Option<(u8, Bytes, Bytes)> {
    let (&kind, rest) = part.split_first()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (payload, body) = rest.split_at((u32::from_le_bytes(*len) as usize).min(rest.len()));
    Some((kind, body.to_vec().into(), payload.to_vec().into()))
}

fn part(kind: u8, body: &[u8], payload: &[u8]) -> Vec<u8> {
    [&[kind], &(payload.len() as u32).to_le_bytes()[..], payload, body].concat()
}

/// What happens to a member, and to a new peer, while a group elects a leader, takes entries and lets the new peer in.
fn seeds() -> Vec<Parts> {
    [1, 2, 3, 4].map(record).to_vec()
}

fn record(subject: u64) -> Parts {
    let mut peers: Vec<Peer> = (1..=4).map(|id| new_peer(id).1).collect();
    let mut parts = vec![vec![subject as u8 - 1]];
    for tick in 0..45_u64 {
        for id in 1..=4 {
            input(&mut peers, id, Input::Tick, part(TICK, &[], &[]), &mut parts, subject);
            let data = vec![tick as u8; 30];
            if tick % 7 == 3 && peers[id as usize - 1].standing().leads {
                peers[id as usize - 1].propose(data.clone().into()).expect("it leads");
                peers[id as usize - 1].complete();
                parts.extend((id == subject).then(|| part(PROPOSE, &data, &[])));
            }
        }
        deliver(&mut peers, &mut parts, subject);
    }
    parts
}

fn input(peers: &mut [Peer], id: u64, input: Input, recorded: Vec<u8>, parts: &mut Parts, subject: u64) {
    parts.extend((id == subject).then_some(recorded));
    // The same times as in a run of the recorded parts: the subject's clock counts its events.
    let now_ns = parts.len() as i64 * TICK_NS;
    peers[id as usize - 1].handle(now_ns, input);
}

/// Delivers calls and their answers until there are none.
fn deliver(peers: &mut [Peer], parts: &mut Parts, subject: u64) {
    loop {
        let mut calls: Vec<(u64, Call)> = Vec::new();
        for id in 1..=4_u64 {
            while let Some(output) = peers[id as usize - 1].poll() {
                calls.extend(if let Output::Call(call) = output { Some((id, call)) } else { None });
            }
        }
        if calls.is_empty() {
            return;
        }
        for (from, call) in calls {
            carry(peers, from, &call, parts, subject);
        }
    }
}

fn carry(peers: &mut [Peer], from: u64, call: &Call, parts: &mut Parts, subject: u64) {
    let Address::Address(address) = &call.peer else { return };
    let to: u64 = address[1..].parse().expect("an address of this group");
    let (body, payload): (Bytes, Bytes) = (call.body.clone(), call.payload.concat().into());
    let kind = KINDS.iter().position(|kind| *kind == call.kind).expect("a request of peers") as u8;
    let recorded = part(kind, &body, &payload);
    input(peers, to, Input::Request { token: 0, kind: call.kind, body, payload }, recorded, parts, subject);
    let (mut result, mut others) = (None, Vec::new());
    while let Some(output) = peers[to as usize - 1].poll() {
        match output {
            Output::Answer { result: answer, .. } => result = Some(answer),
            Output::Call(call) => others.push(call),
            _ => {}
        }
    }
    let result = result.expect("an answer").map(|(body, payload)| (body, Bytes::from(payload.concat())));
    let recorded = match &result {
        Ok((body, payload)) => part(ANSWER, body, payload),
        Err(_) => part(FAILURE, &[], &[]),
    };
    input(peers, from, Input::Answer(Answer { token: call.token, result }), recorded, parts, subject);
    others.iter().for_each(|call| carry(peers, to, call, parts, subject));
}

/// Changes messages as messages; the end of a recording may be missing.
fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    if one_in(rng, 4) {
        parts.truncate(2 + index(rng, parts.len()));
    }
    for _ in 0..1 + rng.below(3) {
        let at = 1 + index(rng, parts.len().saturating_sub(1));
        let Some((kind, body, payload)) = parts.get(at).and_then(|part| parse(part)) else { continue };
        let mut body = body.to_vec();
        proto::mutate(&mut body, rng);
        parts[at] = part(kind, &body, &payload);
    }
}
