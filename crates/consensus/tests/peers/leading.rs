//! Who leads, and who hands leadership over.

use super::*;

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
