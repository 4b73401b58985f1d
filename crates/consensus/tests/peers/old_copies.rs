//! Directories that were taken back to an earlier time: what their peers have forgotten, others know.

use super::*;

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
    // Each entry says that the ones before it are committed, which a peer then knows after a restart, too.
    (0..10).for_each(|_| group.propose_from(leader));
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
