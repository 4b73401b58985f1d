//! Who should be a member: a pure function of who is, who could be, and how everybody fares.
//!
//! All managers are members. Voters on other hosts fill the group up to five where there are five hosts, because the default class
//! survives two lost hosts and so must the metadata; else up to three; else all there are. The group never shrinks because somebody is
//! silent or full: a member goes only if another takes its place in the same change, or if it was told to go.

use std::collections::{BTreeMap, BTreeSet};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{ChangeKind, Member, MemberChange, Membership, MembershipChange, PeerKind};

/// A peer that could be a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The peer.
    pub member: Member,
    /// It is heard from.
    pub is_up: bool,
    /// It was given up: it was down for long, it drains, or somebody said so.
    pub must_go: bool,
}

/// What a leader knows when it plans.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The group.
    pub membership: Membership,
    /// Every peer that the leader knows of, members included; a member that is missing here is down.
    pub candidates: Vec<Candidate>,
    /// Limit of the number of voters; more managers than this vote all the same.
    pub voters_max: usize,
    /// Learners that have all entries but the last few.
    pub caught_up: BTreeSet<u64>,
    /// Voters of nodes whose disks have been full for long: others take their places, if there are any.
    pub full: BTreeSet<u64>,
    /// Learners that are silent, but were heard not long ago: one that copies on a busy machine answers late.
    pub lingering: BTreeSet<u64>,
    /// The leader may not have heard yet of every peer that runs.
    pub is_new_leader: bool,
    /// Members that somebody told to go, for instance with `tessera manager remove`.
    pub removed: BTreeSet<u64>,
    /// Address to the member that answered a frame there last.
    pub answered_at: BTreeMap<String, u64>,
}

/// The number of voters that a cluster of so many hosts should have, if it may have this many.
#[must_use]
pub fn voters_wanted(hosts: usize, max: usize) -> usize {
    match hosts.min(max) {
        5.. => 5,
        3 | 4 => 3,
        fewer => fewer,
    }
}

/// The next change, if any. The caller proposes it unless a change is under way.
#[must_use]
pub fn next(view: &View) -> Option<MembershipChange> {
    if !view.membership.voters_outgoing.is_empty() {
        return Some(MembershipChange::default());
    }
    moved(view).or_else(|| promote(view)).or_else(|| add_learner(view)).or_else(|| shrink(view))
}

fn change(changes: impl IntoIterator<Item = (ChangeKind, Member)>) -> MembershipChange {
    let changes = changes.into_iter().map(|(kind, member)| MemberChange { kind: kind as i32, member: Some(member) });
    MembershipChange { changes: changes.collect() }
}

fn candidate(view: &View, id: u64) -> Option<&Candidate> {
    view.candidates.iter().find(|candidate| candidate.member.id == id)
}

/// A member whose address or host has changed.
fn moved(view: &View) -> Option<MembershipChange> {
    let moved = |member: &&Member| {
        candidate(view, member.id).is_some_and(|now| {
            let of = |m: &Member| (m.address.clone(), m.host.clone(), m.name.clone());
            of(&now.member) != of(member) && now.is_up
        })
    };
    let member = view.membership.members.iter().find(moved)?;
    let kind = match view.membership.voters.contains(&member.id) {
        true => ChangeKind::AddVoter,
        false => ChangeKind::AddLearner,
    };
    Some(change([(kind, candidate(view, member.id)?.member.clone())]))
}

/// The change with which a member goes.
fn departure(view: &View, member: &Member) -> (ChangeKind, Member) {
    let kind = if view.removed.contains(&member.id) { ChangeKind::Expel } else { ChangeKind::Remove };
    (kind, member.clone())
}

fn must_go(view: &View, member: &Member) -> bool {
    view.removed.contains(&member.id)
        || candidate(view, member.id).is_some_and(|c| c.must_go && !failpoint::is_active("consensus.dead_stay"))
        || is_replaced(view, member)
}

/// Whether the daemon has a new peer id: its directory was lost. Two peers at one address are never up at once, however lately both
/// were heard: the one that answered there last runs.
///
/// A manager that only names the address proves nothing, because it may have been started with the address of another one by mistake. It
/// answers frames once it is a learner. A node's voter is no learner as long as the older one keeps its place, but the node itself says
/// which voter it has.
fn is_replaced(view: &View, member: &Member) -> bool {
    let same = |other: &Member| (&other.name, other.kind) == (&member.name, member.kind) && other.id != member.id;
    let gone = candidate(view, member.id).is_none_or(|c| !c.is_up);
    let answers = |other: &Member| view.answered_at.get(&other.address) == Some(&other.id);
    let succeeds = |other: &Member| match gone {
        true => other.kind() == PeerKind::Voter || answers(other),
        false => other.address == member.address && answers(other),
    };
    let is_member = view.membership.members.iter().any(|m| m.id == member.id);
    is_member && view.candidates.iter().any(|c| c.is_up && same(&c.member) && succeeds(&c.member))
}

fn is_up(view: &View, id: u64) -> bool {
    candidate(view, id).is_some_and(|c| c.is_up)
}

fn voters(view: &View) -> impl Iterator<Item = &Member> {
    view.membership.members.iter().filter(|m| view.membership.voters.contains(&m.id))
}

/// Peers that should vote: voters that stay, then managers, then voters on further hosts.
fn wanted(view: &View) -> Vec<Member> {
    let stay = voters(view).filter(|m| !must_go(view, m)).cloned();
    let (full, mut wanted): (Vec<Member>, Vec<Member>) = stay.partition(|m| view.full.contains(&m.id));
    let mut fitting: Vec<&Candidate> = view.candidates.iter().filter(|c| !must_go(view, &c.member)).collect();
    let hosts = fitting.iter().map(|c| &c.member.host).chain(full.iter().chain(&wanted).map(|m| &m.host));
    let size = voters_wanted(hosts.collect::<BTreeSet<_>>().len(), view.voters_max);
    // Those that run, and of them learners, first: they have been copying. A learner that is down keeps its place if nobody else can have it, a
    // manager only for a while.
    let is_learner = |c: &Candidate| view.membership.learners.contains(&c.member.id);
    let may_return = |c: &Candidate| c.member.kind() == PeerKind::Voter || view.lingering.contains(&c.member.id);
    let waits = |c: &Candidate| is_learner(c) && may_return(c);
    fitting.sort_by_key(|c| (c.member.kind() != PeerKind::Manager, !c.is_up, !is_learner(c), c.member.id));
    let has_room = |c: &&Candidate| !view.full.contains(&c.member.id);
    for Candidate { member, .. } in fitting.into_iter().filter(has_room).filter(|c| c.is_up || waits(c)) {
        let is_manager = member.kind() == PeerKind::Manager;
        let host_taken = wanted.iter().any(|w| w.host == member.host);
        if wanted.iter().all(|w| w.id != member.id) && (is_manager || wanted.len() < size && !host_taken) {
            wanted.push(member.clone());
        }
    }
    // A full one keeps its place until another takes it.
    let vacant = size.saturating_sub(wanted.len());
    wanted.extend(full.into_iter().take(vacant));
    // A manager that joins takes the place of a voter.
    let managers = wanted.iter().filter(|m| m.kind() == PeerKind::Manager).count();
    while wanted.len() > size.max(managers) {
        let Some(surplus) = wanted.iter().rposition(|m| m.kind() == PeerKind::Voter) else { break };
        wanted.remove(surplus);
    }
    wanted
}

fn add_learner(view: &View) -> Option<MembershipChange> {
    let known = |id: u64| view.membership.voters.contains(&id) || view.membership.learners.contains(&id);
    let new = wanted(view).into_iter().find(|member| !known(member.id) && is_up(view, member.id))?;
    Some(change([(ChangeKind::AddLearner, new)]))
}

/// Learners that have caught up vote; in the same change voters go whose places they take. An even number of voters tolerates no more
/// losses than one fewer, so the group grows by two where it can.
fn promote(view: &View) -> Option<MembershipChange> {
    let wanted = wanted(view);
    let is_ready = |m: &&Member| view.membership.learners.contains(&m.id) && view.caught_up.contains(&m.id);
    let mut new: Vec<&Member> = wanted.iter().filter(is_ready).collect();
    let mut leaving: Vec<&Member> = voters(view).filter(|m| wanted.iter().all(|w| w.id != m.id)).collect();
    // The dead first: then the group is whole again.
    leaving.sort_by_key(|m| is_up(view, m.id));
    let votes = view.membership.voters.len();
    if let (Some(first), Some(gone)) = (new.first(), leaving.first()) {
        return Some(change([(ChangeKind::AddVoter, (*first).clone()), departure(view, gone)]));
    }
    // Nobody serves before a manager votes, so it waits for no second one to be ready.
    let is_manager = |m: &Member| m.kind() == PeerKind::Manager;
    if let Some(manager) = new.iter().find(|m| is_manager(m)).filter(|_| !voters(view).any(is_manager)) {
        return Some(change([(ChangeKind::AddVoter, (*manager).clone())]));
    }
    let step = if votes % 2 == 1 && wanted.len() > votes + 1 { 2 } else { 1 };
    if new.len() < step {
        return None;
    }
    new.truncate(step);
    Some(change(new.into_iter().map(|m| (ChangeKind::AddVoter, m.clone()))))
}

/// Removes learners that nobody wants, and voters that were told to go although nobody takes their place.
fn shrink(view: &View) -> Option<MembershipChange> {
    let wanted = wanted(view);
    let is_wanted = |m: &&Member| wanted.iter().any(|w| w.id == m.id);
    let members = || view.membership.members.iter();
    let is_whole = wanted.iter().all(|w| view.membership.voters.contains(&w.id) && is_up(view, w.id));
    let idle =
        members().find(|m| view.membership.learners.contains(&m.id) && !is_wanted(m) && (is_whole || must_go(view, m)));
    let told = voters(view).find(|m| view.removed.contains(&m.id) && view.membership.voters.len() > 1);
    // One too many, while all others are well: a manager has joined, or a host has left for good. The dead first.
    let surplus = voters(view).filter(|m| !is_wanted(m) && view.membership.voters.len() > wanted.len());
    let surplus = surplus.filter(|_| is_whole && !view.is_new_leader).min_by_key(|m| is_up(view, m.id));
    idle.or(told).or(surplus).map(|m| change([departure(view, m)]))
}

#[cfg(test)]
mod tests;
