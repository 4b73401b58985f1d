//! Three peers in one thread, whose calls are delivered, held back or dropped.

mod catching_up;
mod full_disks;
mod leading;
mod members;
mod old_copies;

use bytes::Bytes;
use prost::Message as _;
use std::collections::VecDeque;
use std::sync::Arc;
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::log::{Base, Log, LogError, LogIdentity, LogOptions};
use tessera_consensus::{Input, Output, Peer, PeerConfig, PeerError};
use tessera_disk::{Disk, OpenMode, SimDisk};
use tessera_wire::Kind;
use tessera_wire::consensus::{
    ChangeKind, Consensus, JoinGroup, Member, MemberChange, Membership, MembershipChange, MessageKind, PeerKind,
    Position, RaftMessage, SnapshotInfo,
};
use tessera_wire::frame::{MAX_BODY_BYTES, MAX_PAYLOAD_BYTES};
use tessera_wire::rpc::{Answer, Call, Peer as Address};
use tessera_wire::{Code, Error};

const CLUSTER: [u8; 16] = [7; 16];
const MIB: usize = 1 << 20;

fn member(id: u64) -> Member {
    let name = format!("{id}");
    Member { id, kind: PeerKind::Manager as i32, host: name.clone(), address: name.clone(), name }
}

fn membership(voters: &[u64], learners: &[u64]) -> Membership {
    let members = voters.iter().chain(learners).map(|id| member(*id)).collect();
    Membership { index: 1, voters: voters.to_vec(), learners: learners.to_vec(), members, ..Membership::default() }
}

fn start(id: u64, sim: &SimDisk, membership: Membership) -> Peer {
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (identity, base) = (LogIdentity { cluster_id: CLUSTER, peer_id: id }, Base { index: 1, term: 1 });
    let log = Log::create(disk.clone(), "log", identity, LogOptions::default(), base, membership).unwrap();
    Peer::start(log, SnapshotFiles::open(disk, "log").unwrap(), 1, PeerConfig::new(member(id), id)).unwrap()
}

/// A peer that was never a member.
fn start_new(id: u64, sim: &SimDisk) -> Peer {
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let identity = LogIdentity { cluster_id: CLUSTER, peer_id: id };
    let log = Log::create(disk.clone(), "log", identity, LogOptions::default(), Base::default(), Membership::default());
    Peer::start(log.unwrap(), SnapshotFiles::open(disk, "log").unwrap(), 0, PeerConfig::new(member(id), id)).unwrap()
}

/// Three peers, of which one may be cut off.
struct Group {
    now_ns: i64,
    disks: Vec<SimDisk>,
    peers: Vec<Peer>,
    cut: Option<usize>,
    /// Peer 3 is cut off once it has so many entries.
    cut_third_at: Option<u64>,
    /// Its process is stopped: calls wait for it in its socket.
    stopped: Option<usize>,
    /// Nobody can open a connection to it; its own are answered.
    unreached: Option<usize>,
    /// It can open no connection; those of others are answered.
    is_shut_in: Option<usize>,
    /// The calls that wait there, and when their senders give up.
    held: VecDeque<(usize, Call, i64)>,
    calls: VecDeque<(usize, Call)>,
    longest_bytes: usize,
    /// Bytes of entries that each peer was sent.
    sent_bytes: [usize; 3],
    /// Committed commands that each peer has passed on.
    passed_on: [usize; 3],
    /// Numbers of reads that a leader may answer.
    confirmed: Vec<u64>,
}

impl Group {
    fn start() -> Group {
        Group::knowing(&membership(&[1, 2, 3], &[]), &membership(&[1, 2, 3], &[]))
    }

    /// Peers 1 and 2 know one membership, peer 3 another.
    fn knowing(known: &Membership, third: &Membership) -> Group {
        let disks: Vec<SimDisk> = (1..=3).map(SimDisk::new).collect();
        let known = |id: u64| if id == 3 { third.clone() } else { known.clone() };
        let peers = (1..).zip(&disks).map(|(id, disk)| start(id, disk, known(id))).collect();
        Group {
            now_ns: 0,
            disks,
            peers,
            cut: None,
            cut_third_at: None,
            stopped: None,
            unreached: None,
            is_shut_in: None,
            held: VecDeque::new(),
            calls: VecDeque::new(),
            longest_bytes: 0,
            sent_bytes: [0; 3],
            passed_on: [0; 3],
            confirmed: Vec::new(),
        }
    }

    fn collect(&mut self) {
        for at in 0..self.peers.len() {
            while let Some(output) = self.peers[at].poll() {
                match output {
                    Output::Call(call) => self.calls.push_back((at, call)),
                    Output::Committed { .. } => self.passed_on[at] += 1,
                    Output::Confirmed(number) => self.confirmed.push(number),
                    _ => {}
                }
            }
        }
    }

    fn deliver(&mut self) {
        self.collect();
        while let Some((from, call)) = self.calls.pop_front() {
            let Address::Address(to) = &call.peer else { panic!("{call:?}") };
            let to = to.parse::<usize>().unwrap() - 1;
            let payload: Bytes = call.payload.concat().into();
            assert!(payload.len() <= MAX_PAYLOAD_BYTES as usize && call.body.len() <= MAX_BODY_BYTES as usize);
            self.longest_bytes = self.longest_bytes.max(payload.len());
            if self.cut_third_at.is_some_and(|entries| self.peers[2].log().last_index() >= entries) {
                self.cut = Some(2);
            }
            if let Some(sent_bytes) = self.sent_bytes.get_mut(to) {
                *sent_bytes += payload.len();
            }
            if self.stopped == Some(to) {
                let until_ns = self.now_ns + call.timeout_ms as i64 * 1_000_000;
                self.held.push_back((from, call, until_ns));
                continue;
            }
            let is_away = to >= self.peers.len()
                || self.unreached == Some(to)
                || self.is_shut_in == Some(from)
                || self.cut.is_some_and(|cut| from == cut || to == cut);
            let result = match is_away {
                true => Err(Error::new(Code::Unavailable, "cut")),
                false => self.ask(to, &call, payload),
            };
            self.peers[from].handle(self.now_ns, Input::Answer(Answer { token: call.token, result }));
            self.collect();
        }
    }

    fn ask(&mut self, to: usize, call: &Call, payload: Bytes) -> Result<(Bytes, Bytes), Error> {
        self.peers[to]
            .handle(self.now_ns, Input::Request { token: 1, kind: call.kind, body: call.body.clone(), payload });
        let mut answer = None;
        while let Some(output) = self.peers[to].poll() {
            match output {
                Output::Answer { result, .. } => answer = Some(result),
                Output::Call(call) => self.calls.push_back((to, call)),
                Output::Committed { .. } => self.passed_on[to] += 1,
                _ => {}
            }
        }
        answer.expect("an answer").map(|(body, payload)| (body, payload.concat().into()))
    }

    fn tick(&mut self) {
        self.now_ns += 100_000_000;
        let running = |at: &usize| Some(*at) != self.stopped;
        (0..self.peers.len()).filter(running).for_each(|at| self.peers[at].handle(self.now_ns, Input::Tick));
        for (from, call, until_ns) in &self.held {
            if *until_ns == self.now_ns {
                let result = Err(Error::new(Code::Timeout, "stopped"));
                self.peers[*from].handle(self.now_ns, Input::Answer(Answer { token: call.token, result }));
            }
        }
        self.deliver();
    }

    /// The stopped peer goes on, and takes all calls that wait for it. Answers that come too late reach nobody.
    fn go_on(&mut self) {
        let to = self.stopped.take().unwrap();
        for (from, call, until_ns) in std::mem::take(&mut self.held) {
            let result = self.ask(to, &call, call.payload.concat().into());
            if until_ns > self.now_ns {
                self.peers[from].handle(self.now_ns, Input::Answer(Answer { token: call.token, result }));
            }
            self.collect();
        }
        self.deliver();
    }

    fn leader(&mut self) -> usize {
        for _ in 0..200 {
            self.tick();
            if let Some(leader) = self.peers.iter().position(|peer| peer.can_propose()) {
                return leader;
            }
        }
        panic!("no peer leads");
    }

    fn propose_from(&mut self, leader: usize) {
        self.peers[leader].propose(Bytes::from_static(b"entry")).unwrap();
        self.deliver();
        self.peers[leader].complete();
    }

    fn ticks(&mut self, count: usize) {
        (0..count).for_each(|_| self.tick());
    }

    /// Whether peer 3 is a member, as the leader knows it.
    fn has_third(&mut self) -> bool {
        let leader = self.leader();
        self.peers[leader].membership().members.iter().any(|member| member.id == 3)
    }
}
