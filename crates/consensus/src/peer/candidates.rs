//! Who could be a member, as a leader hears of it, and the plan that follows.

use super::fencing::is_replaced;
use super::{Output, Peer, PeerError, Sent};
use crate::message;
use crate::plan::{self, Candidate, View};
use std::collections::{BTreeMap, BTreeSet};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{ChangeKind, JoinGroup, JoinGroupReply, Member, MembershipChange, PeerKind};
use tessera_wire::rpc::{Answer, Call, Peer as Address};
use tessera_wire::{Code, Error};

/// A learner that lacks no more entries than this has caught up.
const CAUGHT_UP_ENTRIES: u64 = 100;
/// A peer that asks to join is up for this many ticks; it asks again before they are over.
const JOIN_TICKS: u64 = 50;

/// A peer that could not be reached where it said is let in again after this many ticks.
const UNREACHABLE_TICKS: u64 = 600;

/// A learner keeps its place for this long after it was last heard, in ns.
const LINGERS_NS: i64 = 60_000_000_000;
/// A node's voter whose disk has been full for this long, in ns, is replaced.
const FULL_NS: i64 = 30_000_000_000;
/// For this long after a peer has begun to lead, in ns, it may not have heard of every peer that runs: all learners keep their places, and
/// the group does not become smaller.
const UNHEARD_NS: i64 = 10_000_000_000;

/// Peers that could be members.
#[derive(Default)]
pub(super) struct Candidates {
    known: BTreeMap<u64, Candidate>,
    /// When a peer asked to join, in ticks.
    asked: BTreeMap<u64, u64>,
    removed: BTreeSet<u64>,
    /// Learners that never answered, and until when they are not let in again, in ticks.
    unreachable: BTreeMap<u64, u64>,
    /// Why this peer was not let in, as last logged.
    refusal: String,
    /// Addresses where this peer introduces itself.
    seeds: Vec<String>,
    /// Leaders that others named.
    named: BTreeSet<String>,
    ticks_sought: u64,
}

/// Ticks between two introductions.
const SEEK_TICKS: u64 = 10;
/// Limit of leaders named by others that a peer asks.
const NAMED_MAX: usize = 16;

impl Peer {
    /// Replaces what is known of the peers in node daemons: who runs, who was given up.
    pub fn set_candidates(&mut self, candidates: impl IntoIterator<Item = Candidate>) {
        let joining = |id: &u64| self.candidates.asked.contains_key(id);
        self.candidates.known.retain(|id, _| joining(id));
        self.candidates.known.extend(candidates.into_iter().map(|candidate| (candidate.member.id, candidate)));
    }

    /// From now on this leader takes the peer out of the group; the members remember that it is never let in again.
    pub fn remove(&mut self, id: u64) {
        self.candidates.removed.insert(id);
    }

    /// Addresses of managers, or of nodes with voters, where this peer introduces itself, beside those of the members: a manager until it is a member, and every
    /// peer while it hears no leader, because the others may have moved, or let it go. If they are set before the first tick, the only voter
    /// asks there whether its log is old.
    pub fn set_seeds(&mut self, seeds: Vec<String>) {
        let is_other = |address: &&String| !address.is_empty() && **address != self.config.member.address;
        let others = seeds.iter().filter(is_other).cloned().collect();
        self.candidates.seeds = seeds;
        if self.candidates.ticks_sought == 0 {
            self.ask_at_addresses(others);
        }
    }

    /// Whether a leader is known and was heard lately. A learner never campaigns, so it knows its last leader for ever.
    fn hears_leader(&self) -> bool {
        self.standing.leader.is_some_and(|leader| self.is_heard(leader))
    }

    /// Whether the group goes on without this peer, which asks nobody to be let in: nothing is due at its ticks.
    #[must_use]
    pub fn is_spare(&self) -> bool {
        let is_member = message::member(self.membership(), self.id()).is_some();
        !is_member && self.config.member.kind() == PeerKind::Voter && !self.memory.asks()
    }

    /// Introduces this peer, if it should.
    pub(super) fn seek(&mut self) {
        let is_member = message::member(self.membership(), self.id()).is_some();
        let joins = !is_member && self.config.member.kind() == PeerKind::Manager;
        let is_lost = is_member && (!self.hears_leader() || self.memory.asks());
        self.candidates.ticks_sought += 1;
        if !(joins || is_lost)
            || failpoint::is_active("consensus.seeks_nobody")
            || self.candidates.ticks_sought % SEEK_TICKS != 1
        {
            return;
        }
        let named = std::mem::take(&mut self.candidates.named);
        let members = self.others().into_iter().map(|member| member.address);
        let mut addresses: BTreeSet<String> =
            self.candidates.seeds.iter().cloned().chain(named).chain(members).collect();
        addresses.remove(&self.config.member.address);
        addresses.remove("");
        let cluster_id = self.log().identity().cluster_id.to_vec();
        let request = JoinGroup { cluster_id, member: Some(self.config.member.clone()) };
        for address in addresses {
            let token = self.draw_token(Sent::Introduction(address.clone()));
            let to = Address::Address(address);
            let call = Call::new(to, token, &request, Vec::new(), self.config.call_timeout_ms);
            self.outputs.push_back(Output::Call(call));
        }
    }

    /// Takes in the answer to an introduction.
    pub(super) fn introduced(&mut self, address: &str, answer: Answer) {
        let reply = match answer.decode::<JoinGroup>() {
            Ok((reply, _)) if reply.cluster_id == self.log().identity().cluster_id => reply,
            Ok(_) => return self.heard_at(address),
            Err(error) if error.code() == Code::Invalid => return self.note_refusal(error.message),
            Err(error) => {
                tracing::debug!(%error, "an introduction failed");
                if !error.is_retryable() {
                    self.heard_at(address);
                }
                return;
            }
        };
        let by = reply.receiver.as_ref().map_or(0, |receiver| receiver.id);
        if reply.known.is_some_and(|known| self.has_forgotten(by, &known)) {
            return;
        }
        if reply.expelled && by != self.id() {
            return self.stop(PeerError::Expelled);
        }
        if self.memory.asks() {
            self.learn_from_introduction(&reply);
            if self.stopped.is_some() {
                return;
            }
            self.heard_at(address);
        }
        let named = reply.receiver.iter().chain(&reply.leader).chain(&reply.members);
        for member in named.filter(|member| !member.address.is_empty()) {
            if self.sources.introduced.len() < super::PEERS_MAX {
                self.sources.introduced.insert(member.id, member.clone());
            }
        }
        if let Some(leader) = reply.leader.filter(|_| self.candidates.named.len() < NAMED_MAX) {
            self.candidates.named.insert(leader.address.clone());
            self.hear_of(leader);
        }
        reply.receiver.into_iter().for_each(|receiver| self.hear_of(receiver));
        // What a peer says of itself counts more than what others say of it.
        let silent: BTreeSet<u64> = self.silent().iter().map(|member| member.id).collect();
        let members = reply.members.into_iter().filter(|member| silent.contains(&member.id));
        members.for_each(|member| self.hear_of(member));
    }

    fn note_refusal(&mut self, why: String) {
        if self.candidates.refusal != why {
            tracing::warn!("the leader does not let this peer in: {why}");
            self.candidates.refusal = why;
        }
    }

    /// Notes where a member is. A peer that knows no members yet notes everyone: it may be the only one whose address the others still
    /// know after all of them have moved, so it tells them of each other.
    fn hear_of(&mut self, member: Member) {
        let is_other = member.id != self.id() && !member.address.is_empty();
        let is_known = message::member(self.membership(), member.id).is_some();
        let introduces = self.membership().members.is_empty() && self.heard.len() < super::PEERS_MAX;
        if is_other && (is_known || introduces) {
            self.heard.insert(member.id, member);
        }
    }

    /// Answers a peer that introduces itself, and notes a manager that asks to become a member.
    pub(super) fn join(&mut self, request: JoinGroup) -> Result<JoinGroupReply, Error> {
        let own = self.log().identity().cluster_id;
        let leads = self.standing().leads;
        let leader = self.leader().cloned().filter(|_| !leads);
        let receiver = Some(self.config.member.clone());
        let (position, commit) = (Some(self.position()), self.log().state().commit);
        let cluster_id = own.to_vec();
        let mut reply = JoinGroupReply { cluster_id, leader, receiver, position, commit, ..JoinGroupReply::default() };
        if request.cluster_id.is_empty() {
            return Ok(reply);
        }
        if request.cluster_id != own {
            let text = format!("this peer belongs to cluster {}", tessera_wire::hex(&own));
            return Err(Error::new(Code::WrongCluster, text));
        }
        let member = request.member.unwrap_or_default();
        if member.id == 0 || member.address.is_empty() || member.host.is_empty() {
            return Err(Error::new(Code::Invalid, "a peer has an id, a host and an address"));
        }
        self.hear_of(member.clone());
        reply.members = self.others();
        reply.known = self.memory.known(member.id);
        // One of the voters before a change still votes until the change is over.
        let membership = self.membership();
        reply.expelled = membership.expelled.contains(&member.id) && !message::contains(membership, member.id);
        if reply.expelled {
            return Ok(reply);
        }
        let is_replaced = is_replaced(self.membership(), member.id);
        if is_replaced {
            self.heard.insert(member.id, member.clone());
        }
        let has_room = self.candidates.known.len() < super::PEERS_MAX;
        let may_try_at = self.candidates.unreachable.get(&member.id).copied().unwrap_or(0);
        if leads && self.ticks < may_try_at {
            let text = format!(
                "it does not answer at {}; give it an address that the others reach (--advertise)",
                member.address
            );
            return Err(Error::new(Code::Invalid, text));
        }
        if leads && !is_replaced && member.kind() == PeerKind::Manager && has_room {
            self.candidates.asked.insert(member.id, self.ticks);
            self.candidates.known.insert(member.id, Candidate { member, is_up: true, must_go: false });
            reply.noted = true;
        }
        Ok(reply)
    }

    /// The other members, where they were heard last; all peers heard if no members are known.
    fn others(&self) -> Vec<Member> {
        let members = &self.membership().members;
        if members.is_empty() {
            return self.heard.values().cloned().collect();
        }
        let others = members.iter().filter(|other| other.id != self.id());
        others.filter_map(|other| self.find(other.id)).cloned().collect()
    }

    /// Proposes the next change of the membership, if one is due.
    pub(super) fn plan(&mut self) {
        if self.is_changing() {
            return;
        }
        let oldest = self.ticks.saturating_sub(JOIN_TICKS);
        let Candidates { known, asked, .. } = &mut self.candidates;
        asked.retain(|id, at| {
            let is_fresh = *at >= oldest;
            if !is_fresh {
                known.remove(id);
            }
            is_fresh
        });
        let view = self.view();
        if let Some(change) = plan::next(&view) {
            // Refused while leadership moves: the next plan finds it again.
            if self.propose_change(&change).is_ok() {
                self.note_unreachable(&change);
            }
        }
    }

    /// Notes the learners that a change removes and that never answered.
    fn note_unreachable(&mut self, change: &MembershipChange) {
        let until = self.ticks + UNREACHABLE_TICKS;
        self.candidates.unreachable.retain(|_, at| *at > self.ticks);
        let gone = change.changes.iter().filter(|change| change.kind() == ChangeKind::Remove);
        for id in gone.filter_map(|change| change.member.as_ref()).map(|member| member.id) {
            let never_answered = self.progress().iter().any(|progress| progress.id == id && progress.matched == 0);
            if never_answered && !self.is_heard(id) && self.candidates.unreachable.len() < super::PEERS_MAX {
                self.candidates.unreachable.insert(id, until);
            }
        }
    }

    /// Whether it leads for so short a time that it may not have heard of every peer that runs.
    fn is_new_leader(&self) -> bool {
        self.leads_since_ns.is_some_and(|at| self.now_ns.saturating_sub(at) < UNHEARD_NS)
    }

    /// Voters of nodes whose disks have been full for long.
    fn full_for_long(&self) -> BTreeSet<u64> {
        let is_long = |(since, _): &(i64, i64)| self.now_ns.saturating_sub(*since) >= FULL_NS;
        let is_full = |m: &&Member| self.says_full(m.id) && self.full_ns.get(&m.id).is_some_and(is_long);
        let voters = self.membership().members.iter().filter(|m| m.kind() == PeerKind::Voter);
        voters.filter(is_full).map(|m| m.id).collect()
    }

    /// Learners that keep their place although they may be silent.
    fn lingering(&self) -> BTreeSet<u64> {
        let is_recent = |at: Option<i64>, ns: i64| at.is_some_and(|at| self.now_ns.saturating_sub(at) < ns);
        let lingers = |id: &u64| self.is_new_leader() || is_recent(self.heard_ns.get(id).copied(), LINGERS_NS);
        self.membership().learners.iter().copied().filter(lingers).collect()
    }

    /// Whether a member lacks no more than the last entries, as a leader knows it.
    #[must_use]
    pub fn has_caught_up(&self, id: u64) -> bool {
        self.view().caught_up.contains(&id)
    }

    fn view(&self) -> View {
        let (last, progress) = (self.log().last_index(), self.progress());
        // The library begins to count anew every second or so.
        let active = |id: u64| self.is_heard(id) || progress.iter().any(|p| p.id == id && p.is_active);
        let membership = self.membership().clone();
        // The leader sends itself no frames.
        let mut answered_at = self.answered_at.clone();
        answered_at.insert(self.config.member.address.clone(), self.id());
        let mut candidates = self.candidates.known.clone();
        candidates.retain(|id, _| !is_replaced(&membership, *id) && !membership.expelled.contains(id));
        for member in &membership.members {
            // Whether a member runs, the group knows best; a node's health says when it is given up.
            let found =
                || if member.id == self.id() { &self.config.member } else { self.find(member.id).unwrap_or(member) };
            let found = || Candidate { member: found().clone(), is_up: true, must_go: false };
            candidates.entry(member.id).or_insert_with(found).is_up = active(member.id);
        }
        // One that has never answered counts as active for a while, and in a short log lacks few entries: it holds none.
        let holds_some = |matched: u64| matched > 0 || failpoint::is_active("consensus.promotes_unheard");
        View {
            candidates: candidates.into_values().collect(),
            caught_up: progress
                .iter()
                .filter(|p| p.is_active && holds_some(p.matched) && p.matched + CAUGHT_UP_ENTRIES >= last)
                .map(|p| p.id)
                .collect(),
            full: self.full_for_long(),
            lingering: self.lingering(),
            is_new_leader: self.is_new_leader(),
            removed: self.candidates.removed.clone(),
            answered_at,
            voters_max: self.config.voters_max,
            membership,
        }
    }
}
