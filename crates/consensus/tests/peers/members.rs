//! Who is let in, who has to go, and who votes meanwhile.

use super::*;

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
