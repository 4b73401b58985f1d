//! Who could be a member, as a leader hears of it, and the plan that follows.

use super::Peer;
use crate::plan::{self, Candidate, View};
use std::collections::{BTreeMap, BTreeSet};
use tessera_wire::consensus::{JoinGroup, JoinGroupReply, Member, PeerKind};
use tessera_wire::{Code, Error};

/// A learner that lacks no more entries than this has caught up.
const CAUGHT_UP_ENTRIES: u64 = 100;
/// A peer that asks to join is up for this many ticks; it asks again before they are over.
const JOIN_TICKS: u64 = 50;

/// Peers that could be members.
#[derive(Default)]
pub(super) struct Candidates {
    known: BTreeMap<u64, Candidate>,
    /// When a peer asked to join, in ticks.
    asked: BTreeMap<u64, u64>,
    removed: BTreeSet<u64>,
}

impl Peer {
    /// Replaces what is known of the peers in node daemons: who runs, who was given up.
    pub fn set_candidates(&mut self, candidates: impl IntoIterator<Item = Candidate>) {
        let joining = |id: &u64| self.candidates.asked.contains_key(id);
        self.candidates.known.retain(|id, _| joining(id));
        self.candidates.known.extend(candidates.into_iter().map(|candidate| (candidate.member.id, candidate)));
    }

    /// From now on a leader takes this peer out of the group, and never lets it in again.
    pub fn remove(&mut self, id: u64) {
        self.candidates.removed.insert(id);
    }

    /// Notes a manager that asks to become a member.
    pub(super) fn join(&mut self, request: JoinGroup) -> Result<JoinGroupReply, Error> {
        let own = self.log().identity().cluster_id;
        let leads = self.standing().leads;
        let leader = self.leader().cloned().filter(|_| !leads);
        let mut reply = JoinGroupReply { cluster_id: own.to_vec(), leader, noted: false };
        if request.cluster_id.is_empty() {
            return Ok(reply);
        }
        if request.cluster_id != own {
            let text = format!("this peer belongs to cluster {}", tessera_wire::hex(&own));
            return Err(Error::new(Code::WrongCluster, text));
        }
        let member = request.member.unwrap_or_default();
        if member.id == 0 || member.kind() != PeerKind::Manager || member.address.is_empty() || member.host.is_empty() {
            return Err(Error::new(Code::Invalid, "a manager that joins has an id, a host and an address"));
        }
        if leads {
            self.candidates.asked.insert(member.id, self.ticks);
            self.candidates.known.insert(member.id, Candidate { member, is_up: true, must_go: false });
            reply.noted = true;
        }
        Ok(reply)
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
            let _ = self.propose_change(&change);
        }
    }

    fn view(&self) -> View {
        let (last, progress) = (self.log().last_index(), self.progress());
        let active = |id: u64| progress.iter().any(|p| p.id == id && p.is_active);
        let membership = self.membership().clone();
        let mut candidates = self.candidates.known.clone();
        for member in &membership.members {
            // Whether a member runs, the group knows best; a node's health says when it is given up.
            let own = |member: &Member| Candidate { member: member.clone(), is_up: true, must_go: false };
            candidates.entry(member.id).or_insert_with(|| own(member)).is_up = active(member.id);
        }
        View {
            candidates: candidates.into_values().collect(),
            caught_up: progress
                .iter()
                .filter(|p| p.is_active && p.matched + CAUGHT_UP_ENTRIES >= last)
                .map(|p| p.id)
                .collect(),
            removed: self.candidates.removed.clone(),
            membership,
        }
    }
}
