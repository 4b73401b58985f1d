//! Plans, step by step: a tiny interpreter carries out what the plan says.

use super::*;

const MANAGER: PeerKind = PeerKind::Manager;
const VOTER: PeerKind = PeerKind::Voter;

fn candidate(id: u64, kind: PeerKind) -> Candidate {
    let name = format!("h{id}");
    let member = Member { id, kind: kind as i32, host: name.clone(), address: name.clone(), name };
    Candidate { member, is_up: true, must_go: false }
}

fn view(candidates: &[Candidate]) -> View {
    let first = candidates[0].member.clone();
    let membership = Membership { voters: vec![first.id], members: vec![first], ..Membership::default() };
    View { membership, candidates: candidates.to_vec(), voters_max: 5, ..View::default() }
}

/// Carries out a change as the library would; learners catch up at once.
fn apply(view: &mut View, change: &MembershipChange) {
    let membership = &mut view.membership;
    for MemberChange { kind, member } in &change.changes {
        let member = member.clone().unwrap();
        let id = member.id;
        membership.voters.retain(|&other| other != id);
        membership.learners.retain(|&other| other != id);
        membership.members.retain(|other| other.id != id);
        match ChangeKind::try_from(*kind).unwrap() {
            ChangeKind::AddLearner => membership.learners.push(id),
            ChangeKind::AddVoter => membership.voters.push(id),
            _ => continue,
        }
        membership.members.push(member);
        membership.members.sort_by_key(|m| m.id);
    }
    view.caught_up = membership.learners.iter().copied().collect();
}

/// Plans until nothing is left to do; returns the numbers of voters on the way.
fn settle(view: &mut View) -> Vec<usize> {
    let mut sizes = Vec::new();
    for _ in 0..100 {
        let Some(change) = next(view) else {
            return sizes;
        };
        apply(view, &change);
        sizes.push(view.membership.voters.len());
    }
    panic!("the plan does not end: {view:?}");
}

fn sorted(ids: &[u64]) -> Vec<u64> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids
}

#[test]
fn a_group_grows_to_five_by_two_at_a_time() {
    let mut all = view(&[candidate(1, MANAGER), candidate(2, VOTER), candidate(3, VOTER), candidate(4, VOTER)]);
    settle(&mut all);
    assert_eq!(all.membership.voters.len(), 3, "four hosts: three vote");
    all.candidates.extend([candidate(5, VOTER), candidate(6, VOTER), candidate(7, VOTER)]);
    let sizes = settle(&mut all);
    assert_eq!(all.membership.voters.len(), 5);
    assert!(sizes.iter().all(|size| size % 2 == 1), "{sizes:?}");
    assert_eq!(all.membership.learners, [0; 0]);
}

/// A peer that was made a learner and died takes nobody's place, and goes once the group is whole.
#[test]
fn a_learner_that_died_keeps_nobody_from_voting() {
    for kind in [MANAGER, VOTER] {
        let mut all = view(&[candidate(1, MANAGER), candidate(2, kind)]);
        apply(&mut all, &change([(ChangeKind::AddLearner, candidate(2, kind).member)]));
        all.candidates[1].is_up = false;
        all.candidates.extend([candidate(3, VOTER), candidate(4, VOTER)]);
        for _ in 0..10 {
            let Some(change) = next(&all) else { break };
            apply(&mut all, &change);
            all.caught_up.remove(&2);
        }
        assert_eq!(
            (sorted(&all.membership.voters), &all.membership.learners[..]),
            (vec![1, 3, 4], &[][..]),
            "{kind:?}"
        );
    }
}

/// The last manager is lost, three voters are left, and a voter that is to join never catches up: only a manager makes the snapshot that it
/// needs.
#[test]
fn a_manager_is_promoted_at_once_where_no_manager_votes() {
    let ids = [2, 3, 4];
    let mut all = view(&ids.map(|id| candidate(id, VOTER)));
    all.membership.voters = ids.to_vec();
    all.membership.members = ids.map(|id| candidate(id, VOTER).member).to_vec();
    all.candidates.extend([candidate(1, MANAGER), candidate(5, VOTER)]);
    for _ in 0..10 {
        let Some(change) = next(&all) else { break };
        apply(&mut all, &change);
        all.caught_up.remove(&5);
    }
    assert!(all.membership.voters.contains(&1), "{:?}", all.membership);
}

#[test]
fn one_host_is_alone_and_two_are_two() {
    let mut one = view(&[candidate(1, MANAGER)]);
    assert_eq!(settle(&mut one), [0; 0]);
    one.candidates.push(candidate(2, VOTER));
    settle(&mut one);
    assert_eq!(sorted(&one.membership.voters), [1, 2]);
    // A voter on the manager's own host would add nothing.
    let mut same = view(&[candidate(1, MANAGER)]);
    let mut voter = candidate(2, VOTER);
    voter.member.host = "h1".into();
    same.candidates.push(voter);
    assert_eq!(settle(&mut same), [0; 0]);
}

#[test]
fn silence_changes_nothing() {
    let all: Vec<_> = (1..=6).map(|id| candidate(id, if id == 1 { MANAGER } else { VOTER })).collect();
    let mut view = view(&all);
    settle(&mut view);
    let before = view.membership.clone();
    for down in view.candidates.iter_mut().filter(|c| c.member.kind() == VOTER) {
        down.is_up = false;
    }
    assert_eq!(settle(&mut view), [0; 0]);
    view.candidates.truncate(1);
    assert_eq!(settle(&mut view), [0; 0]);
    assert_eq!(view.membership, before);
}

#[test]
fn a_voter_that_is_given_up_is_replaced_in_one_change() {
    let all: Vec<_> = (1..=6).map(|id| candidate(id, if id == 1 { MANAGER } else { VOTER })).collect();
    let mut view = view(&all);
    settle(&mut view);
    let gone = view.membership.voters.iter().copied().find(|&id| id != 1).unwrap();
    view.candidates.iter_mut().filter(|c| c.member.id == gone).for_each(|c| (c.is_up, c.must_go) = (false, true));
    let sizes = settle(&mut view);
    assert!(sizes.iter().all(|&size| size == 5), "{sizes:?}");
    assert!(!view.membership.voters.contains(&gone));
}

#[test]
fn a_directory_that_was_lost_is_replaced_by_the_same_daemon() {
    let all: Vec<_> = (1..=5).map(|id| candidate(id, if id == 1 { MANAGER } else { VOTER })).collect();
    let mut view = view(&all);
    settle(&mut view);
    let mut again = candidate(3, VOTER);
    again.member.id = 30;
    view.candidates.retain(|c| c.member.id != 3);
    view.candidates.push(again);
    settle(&mut view);
    assert_eq!(sorted(&view.membership.voters), [1, 2, 4, 5, 30]);
}

/// A host that lost its directory comes back within the time in which its old peer still counts as heard. Its new peer takes the old
/// one's place, and no other's: with one voter gone for good, a second such loss would be one too many.
#[test]
fn a_peer_at_the_same_address_is_the_one_that_is_replaced() {
    let mut view = view(&[candidate(1, MANAGER), candidate(2, MANAGER), candidate(3, VOTER)]);
    settle(&mut view);
    let mut again = candidate(2, MANAGER);
    again.member.id = 20;
    view.candidates.push(again.clone());
    apply(&mut view, &change([(ChangeKind::AddLearner, again.member.clone())]));
    view.answered_at.insert("h2".into(), 20);
    let change = next(&view).unwrap();
    let changed = |kind| change.changes.iter().find(|c| c.kind() == kind).and_then(|c| c.member.as_ref()).unwrap().id;
    assert_eq!((changed(ChangeKind::AddVoter), changed(ChangeKind::Remove)), (20, 2));
    let mut third = again;
    third.member.id = 21;
    view.candidates.push(third);
    let wants = |view: &View| [2, 20, 21].map(|id| wanted(view).iter().any(|member| member.id == id));
    assert_eq!(wants(&view), [false, true, true], "the third one only names the address so far");
    view.answered_at.insert("h2".into(), 21);
    assert_eq!(wants(&view), [false, false, true]);
}

/// A manager is started with the address of another one by mistake. The other one stays, down or not, and whatever waits for its place.
#[test]
fn a_manager_that_only_names_an_address_replaces_nobody() {
    for is_up in [true, false] {
        let mut view = view(&[candidate(1, MANAGER), candidate(2, MANAGER), candidate(3, VOTER)]);
        settle(&mut view);
        view.answered_at = (1..=3).map(|id| (format!("h{id}"), id)).collect();
        view.candidates[1].is_up = is_up;
        let mut mistaken = candidate(20, MANAGER);
        (mistaken.member.address, mistaken.member.name) = ("h2".into(), "h2".into());
        view.candidates.extend([mistaken, candidate(4, VOTER)]);
        apply(&mut view, &change([(ChangeKind::AddLearner, candidate(4, VOTER).member)]));
        for _ in 0..10 {
            let Some(change) = next(&view) else { break };
            apply(&mut view, &change);
            view.caught_up.remove(&20);
        }
        assert_eq!(sorted(&view.membership.voters), [1, 2, 3], "{is_up}");
    }
}

#[test]
fn a_manager_that_joins_takes_the_place_of_a_voter() {
    let all: Vec<_> = (1..=6).map(|id| candidate(id, if id == 1 { MANAGER } else { VOTER })).collect();
    let mut view = view(&all);
    settle(&mut view);
    view.candidates.push(candidate(7, MANAGER));
    settle(&mut view);
    assert_eq!(view.membership.voters.len(), 5);
    assert!(view.membership.voters.contains(&7));
}

#[test]
fn whoever_is_told_to_go_goes() {
    let mut view = view(&[candidate(1, MANAGER), candidate(2, VOTER), candidate(3, VOTER)]);
    settle(&mut view);
    view.removed.insert(3);
    settle(&mut view);
    assert_eq!(sorted(&view.membership.voters), [1, 2]);
    view.removed.insert(2);
    settle(&mut view);
    assert_eq!(view.membership.voters, [1], "the last one stays");
}

/// A host of five is given up. A new leader does not know yet that there are more hosts than voters; later, the dead voter goes first.
#[test]
fn a_new_leader_makes_no_group_smaller() {
    let all: Vec<_> = (1..=5).map(|id| candidate(id, if id == 3 { VOTER } else { MANAGER })).collect();
    let mut view = view(&all);
    settle(&mut view);
    view.candidates.iter_mut().filter(|c| c.member.id == 4).for_each(|c| (c.is_up, c.must_go) = (false, true));
    view.is_new_leader = true;
    assert_eq!(next(&view), None);
    view.is_new_leader = false;
    assert_eq!(next(&view), Some(change([(ChangeKind::Remove, candidate(4, MANAGER).member)])));
}

#[test]
fn a_peer_that_moves_is_known_by_its_new_address() {
    let mut view = view(&[candidate(1, MANAGER), candidate(2, VOTER)]);
    settle(&mut view);
    view.candidates[1].member.address = "elsewhere".into();
    settle(&mut view);
    assert!(view.membership.members.iter().any(|m| m.address == "elsewhere"));
    assert_eq!(sorted(&view.membership.voters), [1, 2]);
}

#[test]
fn a_manager_that_copies_keeps_its_place_while_it_may_return() {
    let mut all = view(&[candidate(1, MANAGER), candidate(2, MANAGER)]);
    let added = next(&all).unwrap();
    apply(&mut all, &added);
    assert_eq!(all.membership.learners, [2]);
    all.caught_up.clear();
    all.candidates[1].is_up = false;
    all.lingering.insert(2);
    assert_eq!(next(&all), None);
    all.lingering.clear();
    assert_eq!(next(&all), Some(change([(ChangeKind::Remove, candidate(2, MANAGER).member)])));
}

/// A voter whose disk is full takes no entries, so the group tolerates one loss fewer until another votes in its place.
#[test]
fn a_voter_whose_disk_is_full_goes_once_another_takes_its_place() {
    let mut all = view(&[candidate(1, MANAGER), candidate(2, VOTER), candidate(3, VOTER)]);
    settle(&mut all);
    all.full.insert(3);
    all.candidates[2].is_up = false;
    assert_eq!(next(&all), None, "nobody else can have its place");
    all.candidates.push(candidate(4, VOTER));
    assert_eq!(settle(&mut all), [3, 3], "a learner, then the exchange");
    assert_eq!(sorted(&all.membership.voters), [1, 2, 4]);
    all.full.insert(4);
    assert_eq!(next(&all), None, "one that is full takes no place");
}

/// Five hosts with a full voter are no four hosts: the group stays as large as it is.
#[test]
fn a_group_does_not_shrink_because_a_disk_is_full() {
    let mut all = view(&[1, 2, 3, 4, 5].map(|id| candidate(id, if id == 1 { MANAGER } else { VOTER })));
    settle(&mut all);
    for id in [5, 4] {
        all.full.insert(id);
        all.candidates[id as usize - 1].is_up = false;
        assert_eq!((next(&all), all.membership.voters.len()), (None, 5));
    }
}
