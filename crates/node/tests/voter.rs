//! The node's log voter when its group is replaced (P11).

use bytes::Bytes;
use prost::Message;
use std::sync::Arc;
use tessera_consensus::Input;
use tessera_consensus::log::{Base, Log, LogIdentity, LogOptions};
use tessera_disk::{CrashKind, Disk, RealDisk, SimDisk};
use tessera_node::voter::{VOTER_DIR, Voter, VoterAction};
use tessera_wire::consensus::{Consensus, FencePeer, Member, Membership, PeerKind, Position};
use tessera_wire::{Code, Error, Request};

const CLUSTER: [u8; 16] = [7; 16];
const LATER: u64 = 1 << 22;

fn member(id: u64) -> Member {
    let name = format!("h{id}");
    Member { id, kind: PeerKind::Voter as i32, host: name.clone(), address: name.clone(), name }
}

fn open(disk: &SimDisk) -> Voter {
    Voter::open(Arc::new(disk.clone()), CLUSTER, member(0), Vec::new(), 5).unwrap()
}

/// A voter that is a member of a group of two, in term 3.
fn voting(disk: &SimDisk) -> Voter {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (identity, base) = (LogIdentity { cluster_id: CLUSTER, peer_id: 1 }, Base { index: 9, term: 3 });
    let membership =
        Membership { index: 9, voters: vec![1, 2], members: vec![member(1), member(2)], ..Membership::default() };
    Log::create(shared, VOTER_DIR, identity, LogOptions::default(), base, membership).unwrap();
    let voter = open(disk);
    assert_eq!(voter.id(), 1);
    voter
}

fn ask<R: Request>(voter: &mut Voter, request: &R) -> Result<R::Reply, Error> {
    let body = request.encode_to_vec().into();
    voter.handle(0, Input::Request { token: 3, kind: R::KIND, body, payload: Bytes::new() });
    let actions = std::iter::from_fn(|| voter.poll());
    let answers =
        actions.filter_map(|it| if let VoterAction::Answer { result, .. } = it { Some(result) } else { None });
    answers.last().expect("an answer").map(|(body, _)| R::Reply::decode(body).unwrap())
}

fn frame(term: u64, to: u64) -> Consensus {
    let position = Some(Position { term, ..Position::default() });
    Consensus { cluster_id: CLUSTER.to_vec(), from: Some(member(7)), to, position, ..Consensus::default() }
}

#[test]
fn p11_a_voter_whose_group_is_replaced_begins_anew_and_never_goes_back() {
    let disk = SimDisk::new(1);
    let mut voter = voting(&disk);
    let fence = FencePeer { cluster_id: CLUSTER.to_vec(), peer_id: 1, restore_id: 4, term: LATER, force: false };
    assert_eq!(ask(&mut voter, &fence).unwrap().fence_restore_id, 4);
    assert_eq!(voter.id(), 1, "what it holds is still to be read");
    assert_eq!(ask(&mut voter, &frame(LATER, 1)).unwrap_err().code(), Code::Fenced);
    let id = voter.id();
    assert!(id > 1, "a new id");
    assert!(voter.peer().fence().is_none() && voter.peer().membership().members.is_empty());
    // Whoever leads the new group may let it in; the old one may not, after a crash either.
    assert!(ask(&mut voter, &frame(LATER + 1, id)).is_ok());
    drop(voter);
    let mut voter = open(&disk.crash(CrashKind::KeepNone));
    assert_eq!(voter.id(), id);
    assert!(voter.term_min() > 1_000_000 && voter.term_min() < LATER);
    assert_eq!(ask(&mut voter, &frame(4, id)).unwrap_err().code(), Code::Fenced);
}

/// The node hears of a restored group from the manager that it obeys.
#[test]
fn p11_a_voter_remembers_the_managers_term() {
    for is_member in [false, true] {
        let disk = SimDisk::new(2);
        let mut voter = if is_member { voting(&disk) } else { open(&disk) };
        let id = voter.id();
        voter.meet_term(900_000);
        assert_eq!((voter.id(), voter.term_min()), (id, 0), "elections reach that");
        voter.meet_term(LATER);
        assert_eq!(voter.id() == id, !is_member);
        drop(voter);
        let voter = open(&disk.crash(CrashKind::KeepNone));
        assert!(voter.term_min() > 1_000_000);
    }
}

/// P11: what a voter promises in a directory that is gone would be forgotten by its next start, so it promises nothing.
#[test]
fn p11_a_voter_whose_directory_is_gone_stops() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::create(dir.path().join("disk")).unwrap());
    let mut voter = Voter::open(disk, CLUSTER, member(0), Vec::new(), 5).unwrap();
    assert_ne!(voter.id(), 0);
    std::fs::rename(dir.path().join("disk"), dir.path().join("away")).unwrap();
    voter.meet_term(LATER);
    voter.handle(0, Input::Tick);
    assert_eq!(voter.id(), 0);
    assert!(!dir.path().join("disk").exists(), "it does not begin anew there");
}

/// Its thread leaves a spare voter's ticks for later, so none may be due. A member has votes and elections to tend.
#[test]
fn a_spare_voter_asks_for_nothing_and_a_member_does() {
    let mut spare = open(&SimDisk::new(6));
    assert!(spare.peer().is_spare());
    for second in 0..60 {
        (0..10).for_each(|_| spare.handle(second * 1_000_000_000, Input::Tick));
        assert!(spare.poll().is_none(), "after {second} s");
    }
    let mut member = voting(&SimDisk::new(7));
    assert!(!member.peer().is_spare());
    (0..60).for_each(|_| member.handle(0, Input::Tick));
    assert!(member.poll().is_some(), "it asks who else there is");
}
