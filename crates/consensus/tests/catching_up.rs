//! A peer that was away for long catches up in frames that a connection takes, and copies no snapshot for which there is no room.

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

/// P12.
#[test]
fn p12_a_long_log_is_sent_in_frames_that_a_connection_takes() {
    let mut group = Group::start();
    let leader = group.leader();
    let away = (leader + 1) % 3;
    group.cut = Some(away);
    for i in 0..100 {
        group.peers[leader].propose(vec![i; MIB].into()).unwrap();
        group.peers[leader].complete();
        group.deliver();
    }
    group.cut = None;
    let last = group.peers[leader].log().last_index();
    let mut ticks = 0;
    while group.peers[away].log().last_index() < last {
        ticks += 1;
        assert!(ticks < 100, "entry {} of {last}", group.peers[away].log().last_index());
        group.tick();
    }
    assert!(group.longest_bytes > 4 * MIB, "several messages travel in a frame: {}", group.longest_bytes);
}

/// P12: a process that was stopped and goes on answers every heartbeat that waited for it, and each answer asks for what it lacks.
#[test]
fn p12_a_peer_that_was_stopped_is_sent_what_it_lacks_once() {
    for (count, bytes) in [(1, 18 * MIB), (18, MIB), (100, 10)] {
        let mut group = Group::start();
        let leader = group.leader();
        group.ticks(20);
        let stopped = (leader + 1) % 3;
        group.stopped = Some(stopped);
        // The first calls time out.
        group.ticks(50);
        for i in 0..count {
            group.peers[leader].propose(vec![i; bytes].into()).unwrap();
            group.peers[leader].complete();
            group.tick();
        }
        group.ticks(60);
        group.sent_bytes[stopped] = 0;
        group.go_on();
        group.ticks(30);
        let last = group.peers[leader].log().last_index();
        assert_eq!(group.peers[stopped].log().last_index(), last);
        let most_bytes = usize::from(count) * bytes;
        assert!(group.sent_bytes[stopped] <= most_bytes, "{} of {most_bytes} bytes", group.sent_bytes[stopped]);
    }
}

/// P12: the only other peer was stopped while reads asked whether the leader still leads. Its answers confirm all of them.
#[test]
fn p12_a_peer_that_was_stopped_confirms_reads() {
    let mut group = Group::start();
    let leader = group.leader();
    group.ticks(20);
    (group.stopped, group.cut) = (Some((leader + 1) % 3), Some((leader + 2) % 3));
    for number in 1..=8 {
        assert!(group.peers[leader].confirm(number));
        group.deliver();
    }
    assert_eq!(group.confirmed, []);
    group.go_on();
    assert_eq!(group.confirmed, (1..=8).collect::<Vec<_>>());
}

/// P12: a manager that copies on a busy machine is silent for seconds.
#[test]
fn p12_a_learner_that_is_silent_for_a_while_keeps_its_place() {
    let learns = membership(&[1, 2], &[3]);
    let mut group = Group::knowing(&learns, &learns);
    group.cut = Some(2);
    let leader = group.leader();
    for i in 0..200 {
        group.peers[leader].propose(vec![i; MIB].into()).unwrap();
        group.peers[leader].complete();
        group.deliver();
    }
    (group.cut, group.cut_third_at) = (None, Some(10));
    group.ticks(500);
    let held = group.peers[2].log().last_index();
    assert!((10..100).contains(&held), "it was heard, and has not caught up: entry {held}");
    assert!(group.has_third(), "it was heard less than a minute ago");
    group.ticks(200);
    assert!(!group.has_third(), "it was silent for more than a minute");
}

/// P12: a manager that is started with the address of a learner by mistake, and answers nowhere, does not end the learner's copy.
#[test]
fn p12_a_manager_with_the_address_of_another_replaces_nobody() {
    let learns = membership(&[1, 2], &[3]);
    let mut group = Group::knowing(&learns, &learns);
    group.cut = Some(2);
    let leader = group.leader();
    let mistaken = Member { id: 9, host: "elsewhere".into(), ..member(3) };
    let request = JoinGroup { cluster_id: CLUSTER.into(), member: Some(mistaken) };
    let call = Call::new(Address::Address(String::new()), 0, &request, Vec::new(), 1_000);
    for _ in 0..5 {
        group.ask(leader, &call, Bytes::new()).unwrap();
        group.ticks(10);
        assert!(group.has_third());
    }
}

/// P12: a manager lost its directory, came back under another id and leads: the older id goes.
#[test]
fn p12_a_leader_replaces_its_own_older_id() {
    let mut known = membership(&[1, 2, 3, 9], &[]);
    known.members[3] = Member { id: 9, ..member(1) };
    let mut group = Group::knowing(&known, &known);
    while group.leader() != 0 {
        let leader = group.leader();
        group.peers[leader].transfer(1);
        group.ticks(20);
    }
    group.ticks(200);
    let leader = group.leader();
    assert_eq!((leader, &group.peers[0].membership().voters[..]), (0, &[1, 2, 3][..]));
}

/// P12: a manager that was removed asks to be let in by a leader that did not remove it: it learns that it was removed, and ends.
#[test]
fn p12_a_peer_that_was_removed_is_let_in_by_no_leader() {
    let mut group = Group::start();
    while group.leader() == 2 {
        group.peers[2].transfer(1);
        group.ticks(20);
    }
    let leader = group.leader();
    group.cut = Some(2);
    group.peers[leader].remove(3);
    group.ticks(20);
    assert!(!group.has_third());
    let next = 1 - leader;
    group.peers[leader].transfer(next as u64 + 1);
    group.ticks(30);
    assert_eq!(group.leader(), next);
    assert_eq!(group.peers[next].membership().expelled, [3]);
    group.cut = None;
    for _ in 0..50 {
        group.tick();
        assert!(!group.has_third());
    }
    assert_eq!(group.peers[2].stopped(), Some(&PeerError::Expelled));
}

/// P12: a manager that was told to go votes until the change is over: without it there is no majority of those who voted before.
#[test]
fn p12_a_peer_that_was_removed_votes_until_the_change_is_over() {
    let half_way = Membership {
        voters: vec![1, 2],
        voters_outgoing: vec![1, 3],
        expelled: vec![3],
        ..membership(&[1, 2, 3], &[])
    };
    let mut group = Group::knowing(&half_way, &half_way);
    let leader = group.leader();
    group.ticks(20);
    assert_eq!(group.peers[leader].membership().voters, [1, 2]);
    assert_eq!(group.peers[leader].membership().voters_outgoing, []);
}

/// P12: a new leader has not heard the learners yet.
#[test]
fn p12_a_new_leader_waits_for_learners() {
    let learns = membership(&[1, 2], &[3]);
    let mut group = Group::knowing(&learns, &learns);
    group.cut = Some(2);
    group.leader();
    group.ticks(50);
    assert!(group.has_third());
    group.ticks(150);
    assert!(!group.has_third(), "one that never answers goes");
}

/// P12: a manager that restarts while it copies may not have come to the entry that lets it in.
#[test]
fn p12_a_manager_that_knows_only_the_others_asks_them_to_let_it_in() {
    let others = membership(&[1, 2], &[]);
    let mut group = Group::knowing(&others, &others);
    group.leader();
    group.ticks(100);
    assert!(group.has_third());
}

/// P12: a leader whose disk is full leaves the lead to a peer that can write, and follows once there is room.
#[test]
fn p12_a_leader_with_a_full_disk_leads_no_more() {
    let mut group = Group::start();
    let full = group.leader();
    group.disks[full].set_capacity(1);
    group.peers[full].propose(vec![1; MIB].into()).unwrap();
    group.peers[full].complete();
    assert!(group.peers[full].is_full());
    let mut other = full;
    for _ in 0..100 {
        group.tick();
        other = (0..3).find(|&at| at != full && group.peers[at].can_propose()).unwrap_or(other);
    }
    assert!(other != full && !group.peers[full].standing().leads);
    group.peers[other].propose(vec![2; MIB].into()).unwrap();
    group.peers[other].complete();
    group.deliver();
    group.disks[full].set_capacity(u64::MAX);
    (0..50).for_each(|_| group.tick());
    let last = group.leader();
    let last = group.peers[last].log().last_index();
    assert!(group.peers.iter().all(|peer| peer.log().last_index() == last && !peer.is_full()));
}

/// P7: a directory that was taken back to a time when a voter of today was a learner, or not known at all: only that one remembers.
#[test]
fn p7_a_peer_asks_all_who_may_know_what_it_has_forgotten() {
    for learners in [&[3][..], &[]] {
        let known = membership(&[1, 2], learners);
        let mut group = Group::knowing(&known, &known);
        let position = Position { term: 9, voted: true, last_term: 9, last_index: 50 };
        let frame = Consensus {
            cluster_id: CLUSTER.into(),
            from: Some(member(1)),
            to: 3,
            position: Some(position),
            ..Consensus::default()
        };
        let body = frame.encode_to_vec().into();
        group.peers[2].handle(0, Input::Request { token: 1, kind: Kind::Consensus, body, payload: Bytes::new() });
        group.peers[0].set_seeds(vec!["2".into(), "3".into()]);
        (0..5).for_each(|_| group.tick());
        let why = group.peers[0].stopped();
        assert!(matches!(why, Some(PeerError::Forgotten { by: 3, known_term: 9, .. })), "{learners:?}: {why:?}");
    }
}

/// Peer 1 has an older copy of its directory, which names these members; the others are a group of three that has gone on, and of
/// which they were told. What the others remember of peer 1 is gone if `restarted`.
fn with_old_copy(known: &Membership, restarted: bool, seeds: &[&str]) -> Group {
    let mut group = Group::knowing(&membership(&[1, 2, 3], &[]), &membership(&[1, 2, 3], &[]));
    let leader = group.leader();
    for i in 0..10 {
        group.peers[leader].propose(vec![i; 10].into()).unwrap();
        group.peers[leader].complete();
    }
    group.ticks(10);
    if restarted {
        for at in 1..3 {
            let disk: Arc<dyn Disk> = Arc::new(group.disks[at].clone());
            let log = Log::open(disk.clone(), "log", LogOptions::default()).unwrap().unwrap();
            let (files, config) =
                (SnapshotFiles::open(disk, "log").unwrap(), PeerConfig::new(member(at as u64 + 1), 9));
            group.peers[at] = Peer::start(log, files, 1, config).unwrap();
        }
    }
    group.peers[0] = start(1, &SimDisk::new(1), known.clone());
    group.peers[0].set_seeds(seeds.iter().map(ToString::to_string).collect());
    group
}

/// Peer 3 asks peer 1 for its vote.
fn vote_for_third() -> Input {
    let vote = RaftMessage { kind: MessageKind::Vote as i32, term: 20, log_term: 20, index: 99, ..Default::default() };
    let frame = Consensus {
        cluster_id: CLUSTER.into(),
        from: Some(member(3)),
        to: 1,
        position: Some(Position { term: 20, ..Position::default() }),
        messages: vec![vote],
        ..Consensus::default()
    };
    let body = frame.encode_to_vec().into();
    Input::Request { token: 1, kind: Kind::Consensus, body, payload: Bytes::new() }
}

/// P7: the log of the copy names its peer as a learner, which votes by now: it gives no second vote before it has asked.
#[test]
fn p7_a_copy_of_a_learner_that_votes_by_now_is_found_out() {
    let mut group = with_old_copy(&membership(&[2, 3], &[1]), false, &[]);
    group.peers[0].handle(0, vote_for_third());
    assert!(!group.peers[0].position().voted);
    group.ticks(5);
    let why = group.peers[0].stopped();
    assert!(matches!(why, Some(PeerError::Forgotten { .. })), "{why:?}");
}

/// P7: the copy is from before its peer was a member, and holds nothing: it gives no second vote.
#[test]
fn p7_a_copy_that_holds_nothing_gives_no_vote() {
    let mut group = with_old_copy(&membership(&[1], &[]), false, &[]);
    group.peers[0] = start_new(1, &SimDisk::new(5));
    group.peers[0].handle(0, vote_for_third());
    assert!(!group.peers[0].position().voted);
}

/// P12: the log of a learner ends before the voters changed that lead by now, and those that it names are gone. It was never a voter.
#[test]
fn p12_a_learner_whose_log_names_voters_that_are_gone_goes_on() {
    let mut third = membership(&[9], &[3]);
    third.members[1] = member(3);
    let mut group = Group::knowing(&membership(&[1, 2], &[3]), &third);
    group.ticks(300);
    assert_eq!(group.peers[2].stopped(), None);
    assert!(!group.peers[2].asks());
}

/// P12: a learner became a voter, and its host lost power before it heard of that. Then the only other voter of its log is lost for
/// good: the third one needs its vote.
#[test]
fn p12_a_learner_that_became_a_voter_unheard_helps_to_elect() {
    let mut group = Group::knowing(&membership(&[1, 2, 3], &[]), &membership(&[1], &[2, 3]));
    group.cut = Some(0);
    group.ticks(400);
    assert_eq!(group.peers[2].stopped(), None);
    assert!(group.peers[1].standing().leads);
}

/// P12: a learner that nobody remembers takes part again, with a majority of the voters it knows and itself.
#[test]
fn p12_a_learner_goes_on_although_a_voter_is_away() {
    let learns = membership(&[1, 2], &[3]);
    let mut group = Group::knowing(&learns, &learns);
    group.cut = Some(0);
    group.ticks(15);
    assert!(group.peers[2].asks());
    group.ticks(10);
    assert!(!group.peers[2].asks());
}

/// P7: the log of the copy names its peer as the only voter. It asks before it is elected by itself, and others know better: what
/// they remember, or what they hold.
#[test]
fn p7_a_copy_of_a_peer_that_was_alone_is_found_out() {
    for (restarted, seeds) in [(false, &["2"][..]), (true, &["3"]), (true, &["9", "1", "2"])] {
        let mut group = with_old_copy(&membership(&[1], &[]), restarted, seeds);
        for _ in 0..20 {
            group.peers[0].campaign();
            assert!(!group.peers[0].standing().leads, "{restarted}, {seeds:?}");
            group.tick();
        }
        let why = group.peers[0].stopped();
        assert!(matches!(why, Some(PeerError::Forgotten { .. })), "{restarted}, {seeds:?}: {why:?}");
    }
}

/// P7: a spare manager that nobody has let in yet answers first, and knows nothing. The copy waits for the others.
#[test]
fn p7_a_copy_of_a_peer_that_was_alone_asks_at_all_addresses() {
    let mut group = with_old_copy(&membership(&[1], &[]), true, &["0004", "3"]);
    group.peers.push(start_new(4, &SimDisk::new(4)));
    group.cut = Some(2);
    for ticks in 0..40 {
        group.cut = group.cut.filter(|_| ticks < 5);
        group.peers[0].campaign();
        assert!(!group.peers[0].standing().leads);
        group.tick();
    }
    let why = group.peers[0].stopped();
    assert!(matches!(why, Some(PeerError::Forgotten { .. })), "{why:?}");
}

/// P12: a peer that is alone leads at once; one that was told of others, which do not answer, after a while.
#[test]
fn p12_a_peer_that_is_alone_leads() {
    for (seeds, ticks) in [(&[][..], 1), (&["1"], 1), (&["2"], 100)] {
        let mut peer = start(1, &SimDisk::new(1), membership(&[1], &[]));
        peer.set_seeds(seeds.iter().map(ToString::to_string).collect());
        let mut ticked = 0;
        while !peer.standing().leads {
            ticked += 1;
            peer.handle(ticked * 100_000_000, Input::Tick);
            peer.campaign();
        }
        assert_eq!(ticked, ticks, "{seeds:?}");
    }
}

/// P12: a leader that must not lead, and another manager that must not either, whichever it is: the third leads.
#[test]
fn p12_leadership_goes_round_until_somebody_takes_it() {
    for refuses in 1..3 {
        let mut group = Group::start();
        let leader = group.leader();
        let (refusing, third) = ((leader + refuses) % 3, (leader + 3 - refuses) % 3);
        [leader, refusing].iter().for_each(|at| group.peers[*at].set_may_lead(false));
        (0..100).for_each(|_| group.tick());
        assert!(group.peers[third].can_propose(), "{leader} leads, {refusing} refuses");
    }
}

/// P12: a leader reaches the others, which cannot open a connection to it: clients cannot either.
#[test]
fn p12_a_leader_that_nobody_reaches_hands_over() {
    let mut group = Group::start();
    let first = group.leader();
    let is_led = |group: &Group| (0..3).find(|at| *at != first && group.peers[*at].can_propose());
    group.ticks(100);
    assert_eq!((group.leader(), is_led(&group)), (first, None), "nothing is wrong");
    group.unreached = Some(first);
    group.ticks(100);
    let second = is_led(&group).expect("another leader");
    group.ticks(300);
    assert_eq!(is_led(&group), Some(second), "which leads on");
    group.unreached = None;
    group.ticks(100);
    group.propose_from(second);
    group.ticks(20);
    assert_eq!(group.peers[first].log().last_index(), group.peers[second].log().last_index(), "the first one follows");
    let _mistake = tessera_failpoint::activate("consensus.leads_unreached");
    let mut group = Group::start();
    group.unreached = Some(group.leader());
    let first = group.unreached;
    group.ticks(300);
    assert_eq!(group.peers.iter().position(Peer::can_propose), first, "the mistake is one");
}

/// P12: one peer that does not reach the leader is no reason to change it, nor is a group of two.
#[test]
fn p12_a_leader_that_a_majority_reaches_leads_on() {
    let mut group = Group::start();
    let first = group.leader();
    group.is_shut_in = Some((first + 1) % 3);
    group.ticks(300);
    assert_eq!(group.leader(), first);
}

/// P12: committed entries that the owner has not taken stay in the log beyond 64 MiB of them, and come once it takes them.
#[test]
fn p12_an_owner_that_takes_nothing_fills_no_memory() {
    let mut peer = start(1, &SimDisk::new(1), membership(&[1], &[]));
    let tick = |peer: &mut Peer, at: i64| peer.handle(at * 100_000_000, Input::Tick);
    (0..50).for_each(|at| tick(&mut peer, at));
    for _ in 0..80 {
        peer.propose(vec![1; MIB].into()).unwrap();
        peer.complete();
    }
    (50..60).for_each(|at| tick(&mut peer, at));
    let take = |peer: &mut Peer| {
        let outputs = std::iter::from_fn(|| peer.poll());
        outputs.filter(|output| matches!(output, Output::Committed { data, .. } if data.len() == MIB)).count()
    };
    let first = take(&mut peer);
    assert!((64..=72).contains(&first), "{first}");
    (60..70).for_each(|at| tick(&mut peer, at));
    assert_eq!(first + take(&mut peer), 80);
}

/// P12: a peer remembers for a while which others have said that their disks are full.
#[test]
fn p12_a_peer_knows_who_has_said_that_its_disk_is_full() {
    let mut group = Group::start();
    let leader = group.leader();
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    others.iter().for_each(|at| group.disks[*at].set_capacity(1));
    group.peers[leader].propose(vec![1; MIB].into()).unwrap();
    group.peers[leader].complete();
    let says_full = |group: &Group| others.iter().filter(|at| group.peers[leader].says_full(**at as u64 + 1)).count();
    (0..10).for_each(|_| group.tick());
    assert_eq!(says_full(&group), 2);
    others.iter().for_each(|at| group.disks[*at].set_capacity(u64::MAX));
    (0..100).for_each(|_| group.tick());
    assert_eq!(says_full(&group), 0);
}

/// P12: a peer whose disk has room for an entry, but not for the members that it makes, waits and goes on. All amounts of room are tried.
#[test]
fn p12_a_disk_that_is_full_at_a_change_of_members_stops_nobody() {
    let mut half_way = 0;
    for room_bytes in (0..1_000).step_by(10) {
        let sim = SimDisk::new(1);
        let mut peer = start(1, &sim, membership(&[1], &[]));
        let tick =
            |peer: &mut Peer, from: i64| (from..from + 50).for_each(|at| peer.handle(at * 100_000_000, Input::Tick));
        tick(&mut peer, 0);
        assert!(peer.can_propose());
        let space = sim.space().unwrap();
        sim.set_capacity(space.capacity_bytes - space.free_bytes + room_bytes);
        let last = peer.log().last_index();
        let add = MemberChange { kind: ChangeKind::AddLearner as i32, member: Some(member(2)) };
        peer.propose_change(&MembershipChange { changes: vec![add] }).unwrap();
        half_way += u32::from(peer.is_full() && peer.log().last_index() > last);
        sim.set_capacity(u64::MAX);
        tick(&mut peer, 50);
        assert!(
            peer.stopped().is_none() && !peer.is_full() && peer.can_propose(),
            "{room_bytes}: {:?}",
            peer.stopped()
        );
        assert_eq!(peer.membership().learners, [2], "{room_bytes}");
    }
    assert!(half_way > 0);
}

/// P12: a snapshot leaves room for the log and for deletes, and what was copied of it does not stay.
#[test]
fn p12_a_snapshot_without_room_leaves_the_disk_as_it_was() {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    disk.create_dir("log").unwrap();
    let mut files = SnapshotFiles::open(disk.clone(), "log").unwrap();
    let content = vec![5; 10 * MIB];
    let hash = blake3::hash(&content).as_bytes().to_vec();
    let info = SnapshotInfo { index: 9, term: 1, len_bytes: content.len() as u64, hash, ..SnapshotInfo::default() };
    sim.set_capacity(16 * MIB as u64);
    assert!(!files.receive(&info, 0, &content[..MIB]).unwrap());
    // Other files take the room meanwhile.
    disk.open("other", OpenMode::Create).unwrap().write_at(0, &vec![1; 6 * MIB]).unwrap();
    let refused = files.receive(&info, MIB as u64, &content[MIB..2 * MIB]).unwrap_err();
    assert!(matches!(refused, LogError::NoRoom { .. }) && refused.is_no_space(), "{refused}");
    assert!(disk.list("log").unwrap().is_empty(), "{:?}", disk.list("log"));
    disk.remove("other").unwrap();
    for at in 0..10 {
        let piece = &content[at * MIB..(at + 1) * MIB];
        assert_eq!(files.receive(&info, (at * MIB) as u64, piece).unwrap(), at == 9);
    }
    assert!(files.holds(&info));
}

/// P12: a manager with much to apply keeps its vote: the group has no majority without it.
#[test]
fn p12_a_manager_with_a_long_backlog_answers_and_votes() {
    let mut group = Group::start();
    let leader = group.leader();
    group.ticks(20);
    let (away, behind) = ((leader + 1) % 3, (leader + 2) % 3);
    group.cut = Some(away);
    group.ticks(30);
    group.peers[behind].set_unapplied(1_000, 64 << 20);
    let before = group.passed_on[behind];
    for _ in 0..60 {
        group.peers[leader].propose(Bytes::from_static(b"entry")).unwrap();
        group.tick();
    }
    assert_eq!(group.passed_on[leader], before + 60, "two of three voted");
    assert_eq!(group.passed_on[behind], before, "it has enough to apply");
    group.peers[behind].set_unapplied(0, 0);
    group.ticks(10);
    assert_eq!(group.passed_on[behind], before + 60);
}
