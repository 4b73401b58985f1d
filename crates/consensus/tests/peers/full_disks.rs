//! Peers whose disks are full.

use super::*;

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
