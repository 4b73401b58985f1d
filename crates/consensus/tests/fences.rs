//! A peer that was fenced, or whose group was replaced, takes part no more, whatever comes (P7, P11).

use bytes::Bytes;
use prost::Message;
use std::sync::Arc;
use tessera_consensus::log::fence::{FENCE_FILE, Fence};
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::log::{Base, Log, LogIdentity, LogOptions};
use tessera_consensus::peer::fencing::{TERMS_BETWEEN_GROUPS, read_entries};
use tessera_consensus::{Input, Output, Peer, PeerConfig, PeerError};
use tessera_disk::{CrashKind, Disk, OpenMode, SimDisk};
use tessera_wire::consensus::{
    Consensus, DescribePeer, DescribePeerReply, FencePeer, GetEntries, Member, Membership, PeerKind, Position,
};
use tessera_wire::{Code, Error, Request};

const CLUSTER: [u8; 16] = [7; 16];

fn member(id: u64) -> Member {
    let name = format!("h{id}");
    Member { id, kind: PeerKind::Manager as i32, host: name.clone(), address: name.clone(), name }
}

fn start(disk: &SimDisk) -> Result<Peer, PeerError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = match Log::open(disk.clone(), "log", LogOptions::default()).unwrap() {
        Some(log) => log,
        None => {
            let membership =
                Membership { index: 1, voters: vec![1], members: vec![member(1)], ..Membership::default() };
            let identity = LogIdentity { cluster_id: CLUSTER, peer_id: 1 };
            let base = Base { index: 1, term: 1 };
            Log::create(disk.clone(), "log", identity, LogOptions::default(), base, membership).unwrap()
        }
    };
    let files = SnapshotFiles::open(disk, "log").unwrap();
    Peer::start(log, files, 1, PeerConfig::new(member(1), 5))
}

fn ask<R: Request>(peer: &mut Peer, request: &R) -> Result<(R::Reply, Bytes), Error> {
    let body = request.encode_to_vec().into();
    peer.handle(0, Input::Request { token: 3, kind: R::KIND, body, payload: Bytes::new() });
    let outputs = std::iter::from_fn(|| peer.poll());
    let answers =
        outputs.filter_map(|output| if let Output::Answer { result, .. } = output { Some(result) } else { None });
    let (body, payload) = answers.last().expect("an answer")?;
    Ok((R::Reply::decode(body).unwrap(), payload.concat().into()))
}

fn fence(term: u64, restore_id: u64) -> FencePeer {
    FencePeer { cluster_id: CLUSTER.to_vec(), peer_id: 1, restore_id, term, force: false }
}

/// A peer that leads a group of one, with ten entries.
fn leading(disk: &SimDisk) -> Peer {
    let mut peer = start(disk).unwrap();
    peer.campaign();
    for i in 0..10 {
        peer.propose(vec![i; 1_000].into()).unwrap();
        peer.complete();
    }
    peer
}

fn never_leads(peer: &mut Peer) {
    for _ in 0..200 {
        peer.handle(0, Input::Tick);
        peer.campaign();
    }
    assert!(!peer.standing().leads && peer.propose(Bytes::from_static(b"x")).is_err());
}

#[test]
fn p11_a_fenced_peer_tells_what_it_holds_and_does_nothing_else() {
    let disk = SimDisk::new(1);
    let mut peer = leading(&disk);
    let (before, _) = ask(&mut peer, &DescribePeer::default()).unwrap();
    let term = before.position.unwrap().term;
    assert_eq!(ask(&mut peer, &fence(term, 9)).unwrap_err().code(), Code::Invalid, "a term that the group may reach");
    let other = FencePeer { peer_id: 2, ..fence(1 << 30, 9) };
    assert_eq!(ask(&mut peer, &other).unwrap_err().code(), Code::NotFound);
    let other = FencePeer { cluster_id: vec![8; 16], ..fence(1 << 30, 9) };
    assert_eq!(ask(&mut peer, &other).unwrap_err().code(), Code::WrongCluster);
    let (held, _) = ask(&mut peer, &fence(1 << 30, 9)).unwrap();
    assert_eq!(DescribePeerReply { fence_restore_id: 9, fence_term: 1 << 30, ..before.clone() }, held);
    never_leads(&mut peer);
    // Synced before the answer.
    drop(peer);
    let disk = disk.crash(CrashKind::KeepNone);
    let mut peer = start(&disk).unwrap();
    never_leads(&mut peer);
    let position = Some(Position { term: term + 1, ..Position::default() });
    let frame =
        Consensus { cluster_id: CLUSTER.to_vec(), from: Some(member(2)), to: 1, position, ..Consensus::default() };
    assert_eq!(ask(&mut peer, &frame).unwrap_err().code(), Code::Fenced);
    // The same restore, another one, and one that insists.
    assert_eq!(ask(&mut peer, &fence(1 << 30, 9)).unwrap().0.fence_restore_id, 9);
    assert_eq!(ask(&mut peer, &fence(1 << 30, 8)).unwrap_err().code(), Code::Fenced);
    assert_eq!(ask(&mut peer, &FencePeer { force: true, ..fence(1 << 31, 8) }).unwrap().0.fence_restore_id, 8);
    // The entries, a few at a time.
    let (mut next, mut read) = (2, 0);
    while next <= before.position.unwrap().last_index {
        let request = GetEntries { cluster_id: CLUSTER.to_vec(), peer_id: 1, first_index: next, max_bytes: 2_500 };
        let (reply, payload) = ask(&mut peer, &request).unwrap();
        assert!(payload.len() <= 2_500);
        let entries = read_entries(&reply, (next - 1, 1), term, payload.clone()).unwrap();
        assert!(read_entries(&reply, (next, 1), term, payload.clone()).is_err(), "a gap");
        assert!(
            payload.is_empty() || read_entries(&reply, (next - 1, 1), term, payload.slice(1..)).is_err(),
            "too short"
        );
        (next, read) = (next + entries.len() as u64, read + entries.len());
    }
    assert_eq!(read, 11, "the entry that begins the term, and ten commands");
    let beyond = GetEntries { cluster_id: CLUSTER.to_vec(), peer_id: 1, first_index: next, max_bytes: 1 };
    assert_eq!(ask(&mut peer, &beyond).unwrap_err().code(), Code::NotFound);
}

#[test]
fn p11_a_later_group_ends_an_earlier_one_and_is_not_disturbed_by_it() {
    let disk = SimDisk::new(2);
    let mut peer = leading(&disk);
    let term = peer.standing().term;
    let frame = |term, to| Consensus {
        cluster_id: CLUSTER.to_vec(),
        from: Some(member(2)),
        to,
        position: Some(Position { term, ..Position::default() }),
        ..Consensus::default()
    };
    // A term that elections reach changes nothing.
    ask(&mut peer, &frame(term + 900_000, 1)).unwrap();
    assert_eq!(
        ask(&mut peer, &frame(term + TERMS_BETWEEN_GROUPS, 9)).unwrap_err().code(),
        Code::Invalid,
        "another receiver"
    );
    assert!(peer.standing().leads && peer.stopped().is_none());
    assert_eq!(ask(&mut peer, &frame(term + TERMS_BETWEEN_GROUPS, 1)).unwrap_err().code(), Code::Fenced);
    assert!(matches!(peer.stopped(), Some(PeerError::Replaced { .. })));
    drop(peer);
    let mut peer = start(&disk.crash(CrashKind::KeepNone)).unwrap();
    never_leads(&mut peer);
    assert_eq!(peer.fence().map(|fence| fence.restore_id), Some(0));

    // A group that was restored, and a peer of an earlier one.
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(3));
    let membership = Membership { index: 1, voters: vec![1], members: vec![member(1)], ..Membership::default() };
    let (identity, base) =
        (LogIdentity { cluster_id: CLUSTER, peer_id: 1 }, Base { index: 1, term: TERMS_BETWEEN_GROUPS });
    let log = Log::create(disk.clone(), "log", identity, LogOptions::default(), base, membership).unwrap();
    let files = SnapshotFiles::open(disk, "log").unwrap();
    let mut later = Peer::start(log, files, 1, PeerConfig::new(member(1), 5)).unwrap();
    assert_eq!(ask(&mut later, &frame(term, 1)).unwrap_err().code(), Code::Fenced);
    assert!(later.stopped().is_none() && later.fence().is_none());
}

/// P14: a fence that cannot be read counts as damage, never as none.
#[test]
fn p14_a_damaged_fence_is_an_error() {
    let disk = SimDisk::new(4);
    drop(leading(&disk));
    let path = format!("log/{FENCE_FILE}");
    let fence = Fence { cluster_id: CLUSTER, peer_id: 1, term: 5, restore_id: 6 };
    fence.store(&disk, &path).unwrap();
    assert_eq!(Fence::load(&disk, &path).unwrap(), Some(fence));
    let file = disk.open(&path, OpenMode::Existing).unwrap();
    assert_eq!(file.len().unwrap(), 64);
    file.write_at(40, &[1]).unwrap();
    assert!(Fence::load(&disk, &path).is_err());
    assert!(matches!(start(&disk), Err(PeerError::Log(_))));
    file.truncate(10).unwrap();
    assert!(Fence::load(&disk, &path).is_err());
}
