//! A peer that was away for long catches up in frames that a connection takes, and nobody waits for it meanwhile.

use super::*;

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
