//! What a leader does, besides what the library does: proposals, confirmations of reads, ends of changes, hand-overs.

use super::{Output, Peer, Room};
use crate::message;
use bytes::Bytes;
use raft::StateRole;
use std::cmp::Reverse;
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{Member, MembershipChange, PeerKind, SnapshotInfo};

/// Ticks between two plans of the membership.
const PLAN_TICKS: u64 = 2;
/// Ticks between two attempts of a leader whose room is scarce to hand leadership over. One that nobody takes stops proposals for a second.
const SCARCE_TICKS: u64 = 100;

/// Why a proposal was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The peer does not lead, or is handing leadership over.
    #[error("this peer does not lead")]
    NotLeader,
    /// A change of members is under way.
    #[error("a change of members is under way")]
    Changing,
}

/// How far a member is, as the leader knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Its id.
    pub id: u64,
    /// Last entry that it holds.
    pub matched: u64,
    /// It was heard from within the election time-out.
    pub is_active: bool,
}

impl Peer {
    /// Proposes an entry; returns its index. The entry is committed once [`Output::Committed`] says so with this index and the
    /// current term. The outputs so far carry it to the other peers: the owner sends them, and then calls [`Peer::complete`], which
    /// writes it here. So all write at the same time.
    ///
    /// # Errors
    /// [`Refused::NotLeader`].
    pub fn propose(&mut self, data: Bytes) -> Result<u64, Refused> {
        self.complete();
        self.proposable()?;
        let index = self.node.raft.raft_log.last_index() + 1;
        self.node.propose(Vec::new(), data.to_vec()).map_err(|_| Refused::NotLeader)?;
        assert_eq!(self.node.raft.raft_log.last_index(), index, "a proposal is one entry");
        self.begin();
        Ok(index)
    }

    /// Writes and sends what [`Peer::propose`] left.
    pub fn complete(&mut self) {
        if self.stopped.is_none() && (self.unwritten.is_some() || self.has_unapplied()) {
            self.process();
        }
    }

    fn proposable(&self) -> Result<(), Refused> {
        let leads = self.node.raft.state == StateRole::Leader && self.node.raft.lead_transferee.is_none();
        match leads && !self.is_full && self.stopped.is_none() && self.may_lead {
            true => Ok(()),
            false => Err(Refused::NotLeader),
        }
    }

    /// Proposes a change of members. Without changes it ends a joint configuration.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose_change(&mut self, change: &MembershipChange) -> Result<(), Refused> {
        use prost::Message as _;
        self.complete();
        self.proposable().or(if self.leads_as_voter() { Ok(()) } else { Err(Refused::NotLeader) })?;
        if self.node.raft.has_pending_conf() {
            return Err(Refused::Changing);
        }
        let library = message::conf_change(change);
        self.node.propose_conf_change(change.encode_to_vec(), library).map_err(|_| Refused::NotLeader)?;
        self.process();
        Ok(())
    }

    /// Asks for a confirmation that this peer leads: [`Output::Confirmed`] follows once a majority has answered a message that was
    /// sent after this call (Raft dissertation, section 6.4). Without a majority it never follows.
    /// False: nothing was asked, because the disk is full or the peer has stopped.
    pub fn confirm(&mut self, number: u64) -> bool {
        self.complete();
        let can_ask = !self.is_full && self.stopped.is_none();
        if can_ask {
            self.node.read_index(number.to_le_bytes().to_vec());
            self.process();
        }
        can_ask
    }

    /// Whether [`Peer::propose`] would be taken: the peer leads, hands leadership to nobody, and has room.
    #[must_use]
    pub fn can_propose(&self) -> bool {
        self.proposable().is_ok() && !(failpoint::is_active("consensus.waits_for_all") && self.has_laggard())
    }

    fn has_laggard(&self) -> bool {
        let last = self.log().last_index();
        self.node.raft.prs().iter().any(|(_, progress)| progress.matched < last)
    }

    pub(super) fn confirmed(&mut self, state: &raft::ReadState) {
        if let Ok(number) = state.request_ctx[..].try_into().map(u64::from_le_bytes) {
            self.outputs.push_back(Output::Confirmed(number));
        }
    }

    /// Hands leadership to a member. It leads once it has all entries.
    pub fn transfer(&mut self, to: u64) {
        self.complete();
        if self.node.raft.state == StateRole::Leader && !self.is_full {
            self.handed_to = Some(to);
            self.node.transfer_leader(to);
            self.process();
        }
    }

    /// How far every member is; empty unless this peer leads.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        if self.node.raft.state != StateRole::Leader {
            return Vec::new();
        }
        let own = self.id();
        let mut all: Vec<Progress> = self
            .node
            .raft
            .prs()
            .iter()
            .map(|(&id, progress)| Progress {
                id,
                matched: progress.matched,
                is_active: progress.recent_active || id == own,
            })
            .collect();
        all.sort_by_key(|progress| progress.id);
        all
    }

    /// Whether a change of members is under way.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        !self.membership().voters_outgoing.is_empty() || self.node.raft.has_pending_conf()
    }

    fn leads_as_voter(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.config.member.kind() == PeerKind::Voter
    }

    /// A leader that finds a joint configuration ends it: until then both sets of voters are needed.
    pub(super) fn end_joint(&mut self) -> bool {
        let leads = self.node.raft.state == StateRole::Leader && self.stopped.is_none() && !self.is_full;
        if !leads
            || failpoint::is_active("consensus.stays_joint")
            || self.membership().voters_outgoing.is_empty()
            || self.node.raft.has_pending_conf()
        {
            return false;
        }
        let end = MembershipChange::default();
        self.node.propose_conf_change(prost::Message::encode_to_vec(&end), message::conf_change(&end)).is_ok()
    }

    /// Whether the group has gone on without this peer. The library lets it lead on, and refuses every proposal (Raft dissertation,
    /// section 4.2.2: it steps down).
    fn has_left(&self) -> bool {
        let (id, membership) = (self.id(), self.membership());
        let votes = membership.voters.contains(&id) || membership.voters_outgoing.contains(&id);
        !votes && !failpoint::is_active("consensus.leads_others")
    }

    /// A leader's chores at a tick.
    pub(super) fn lead(&mut self) {
        if self.node.raft.state != StateRole::Leader || self.is_full {
            return;
        }
        if self.has_left() {
            return self.node.raft.become_follower(self.node.raft.term, 0);
        }
        if self.ticks.is_multiple_of(PLAN_TICKS) {
            self.plan();
        }
        self.tell_replaced();
        let lacks_room = match self.room {
            Room::Enough => false,
            Room::Scarce => self.ticks >= self.offers_at,
            Room::Missing => true,
        };
        let is_unreached = self.is_unreached();
        let must_go = self.leads_as_voter() || !self.may_lead || lacks_room || is_unreached;
        if must_go
            && !failpoint::is_active("consensus.voter_keeps_leading")
            && self.node.raft.lead_transferee.is_none()
            && let Some(manager) = self.best_manager()
        {
            if is_unreached {
                self.gives_way();
            }
            self.handed_to = Some(manager);
            self.offers_at = self.ticks + SCARCE_TICKS;
            self.node.transfer_leader(manager);
        }
    }

    /// Whether this peer leads, and another manager could.
    #[must_use]
    pub fn has_other_manager(&self) -> bool {
        self.best_manager().is_some()
    }

    /// The manager that could lead soonest.
    fn best_manager(&self) -> Option<u64> {
        let membership = self.membership();
        let votes = |id: u64| membership.voters.contains(&id);
        let is_manager = |id: u64| message::member(membership, id).is_some_and(|m| m.kind() == PeerKind::Manager);
        let progress = self.progress().into_iter();
        let able = progress.filter(|p| p.id != self.id() && p.is_active && votes(p.id) && is_manager(p.id));
        // One that was chosen and did not take over must not lead: the next in turn comes first.
        let turn = |id: u64| Reverse(id.wrapping_sub(self.handed_to.unwrap_or(0).wrapping_add(1)));
        able.max_by_key(|p| (self.unapplied(p.id) == 0, p.matched, turn(p.id))).map(|p| p.id)
    }

    /// Where a snapshot of the state after entry `index` would stand, for whoever makes it. `None`: the log does not reach there.
    #[must_use]
    pub fn snapshot_at(&self, index: u64) -> Option<SnapshotInfo> {
        let log = self.log();
        let (term, membership) = (log.term(index)?, log.membership_at(index).clone());
        Some(SnapshotInfo { index, term, membership: Some(membership), ..SnapshotInfo::default() })
    }

    /// Whether another peer waits for a snapshot that is not held. Asking clears it.
    pub fn take_lacks_snapshot(&mut self) -> bool {
        self.node.store().lacks_snapshot.take()
    }

    /// Changes how this peer introduces itself.
    pub fn set_member(&mut self, member: Member) {
        assert_eq!(member.id, self.id(), "a peer has one id");
        self.config.member = member;
    }

    /// Takes over a snapshot that was made here, and drops entries that an older one holds.
    ///
    /// # Errors
    /// The disk's.
    pub fn adopt(&mut self, info: SnapshotInfo) -> Result<(), crate::log::LogError> {
        let older = self.files().held().map_or(0, |held| held.index);
        self.node.mut_store().files.adopt(info)?;
        self.drop_entries(older)
    }

    /// Drops all entries that the held snapshot has, unless a peer that is heard lacks some of them.
    ///
    /// # Errors
    /// The disk's.
    pub fn drop_held_entries(&mut self) -> Result<(), crate::log::LogError> {
        let held = self.files().held().map_or(0, |held| held.index);
        match self.progress().iter().any(|peer| peer.is_active && peer.matched < held) {
            true => Ok(()),
            false => self.drop_entries(held),
        }
    }

    /// Drops entries up to the snapshot before the one held: those after it help peers that lag a little.
    pub(super) fn drop_entries(&mut self, older: u64) -> Result<(), crate::log::LogError> {
        let applied = self.node.raft.raft_log.applied();
        let to = if failpoint::is_active("consensus.drops_too_much") { applied } else { older.min(applied) };
        self.node.mut_store().log.drop_to(to)
    }
}
