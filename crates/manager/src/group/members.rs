//! Who the peers are: the leader's view of the nodes' voters, and what others are told of the group.

use super::{Manager, State};
use crate::core::ManagerCore;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;
use tessera_consensus::plan::Candidate;
use tessera_consensus::{Peer, PeerError};
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::meta::{ChangePeer, PeerChange, PeerStatus};
use tessera_wire::{Ack, Code, Error, Health, NodeInfo};

impl Manager {
    /// Tells the peer which voters the nodes have, and the core what becomes of the peers.
    pub(super) fn follow_nodes(&mut self) {
        let surplus = self.surplus_managers().unwrap_or_default();
        let State::Leading(core) = &mut self.state else { return };
        match candidates(core, &self.peer) {
            Ok(found) => {
                core.soft.log_keepers = log_keepers(&found, &self.peer);
                if !found.is_empty() {
                    self.peer.set_candidates(found.into_iter().map(|(_, candidate)| candidate));
                }
            }
            Err(error) => tracing::error!(%error, "reading the nodes"),
        }
        (core.soft.peers, core.soft.surplus_managers) = (peers(&self.peer), surplus);
    }
}

impl Manager {
    /// What to know if more managers vote than `max_voters` allows. A manager that does not vote could not take over, so all of them do.
    pub(super) fn surplus_managers(&self) -> Option<String> {
        let (membership, max) = (self.peer.membership(), self.config.max_voters as usize);
        let votes = |member: &&Member| member.kind() == PeerKind::Manager && membership.voters.contains(&member.id);
        let managers = membership.members.iter().filter(votes).count();
        (managers > max).then(|| {
            let majority = managers / 2 + 1;
            format!(
                "{managers} managers vote, although max_voters is {max}: every change waits for {majority} of them; remove what is not \
                 needed (tessera manager remove NAME), or raise max_voters"
            )
        })
    }

    /// Has a manager lead, or leave the group.
    pub(super) fn change_peer(&mut self, body: &[u8]) -> Result<Bytes, Error> {
        let refuse = |code, text: String| Err(Error::new(code, text));
        let request = match ChangePeer::decode(body) {
            Ok(request) => request,
            Err(error) => return refuse(Code::Invalid, error.to_string()),
        };
        let (id, membership) = (request.peer_id, self.peer.membership());
        let Some(member) = membership.members.iter().find(|member| member.id == id) else {
            return refuse(
                Code::NotFound,
                format!("no member of the group has id {id:016x}; see tessera manager list"),
            );
        };
        let name = member.name.clone();
        match request.change() {
            PeerChange::Transfer if id == self.peer.id() => {}
            PeerChange::Transfer if member.kind() != PeerKind::Manager || !membership.voters.contains(&id) => {
                return refuse(Code::Invalid, format!("{name} is no manager that votes; only one of those can lead"));
            }
            PeerChange::Transfer if !self.peer.progress().iter().any(|p| p.id == id && p.is_active) => {
                return refuse(Code::Unavailable, format!("{name} does not answer; start it first"));
            }
            PeerChange::Transfer if !self.peer.has_caught_up(id) => {
                return refuse(Code::Unavailable, format!("{name} still catches up; ask again"));
            }
            // It would not take over, and this manager would propose nothing for a second.
            PeerChange::Transfer if self.peer.unapplied(id) > 0 => {
                let text = format!(
                    "{name} has {} committed entries left to apply before it can lead; tessera manager list shows how many are left, ask again \
                     when there are none",
                    self.peer.unapplied(id)
                );
                return refuse(Code::Unavailable, text);
            }
            PeerChange::Transfer => self.peer.transfer(id),
            PeerChange::Remove if member.kind() != PeerKind::Manager => {
                return refuse(Code::Invalid, format!("{name} is the voter of a node; drain the node instead"));
            }
            PeerChange::Remove if id == self.peer.id() => {
                return refuse(
                    Code::Invalid,
                    format!("{name} leads; have another one lead first (tessera manager transfer)"),
                );
            }
            PeerChange::Remove => self.peer.remove(id),
            PeerChange::Unknown => return refuse(Code::Invalid, "the change is not named".into()),
        }
        Ok(Ack {}.encode_to_vec().into())
    }
}

/// Nodes whose voter is a member, or may become one before the next look.
fn log_keepers(found: &[(u64, Candidate)], peer: &Peer) -> BTreeSet<u64> {
    // A node whose directory was replaced has a new id, and the group may still count the old one.
    let is_of = |node: &Member, member: &Member| {
        member.id == node.id || (member.kind() == PeerKind::Voter && member.name == node.name)
    };
    let is_member = |node: &Member| peer.membership().members.iter().any(|member| is_of(node, member));
    let keeps = |(_, found): &&(u64, Candidate)| !found.must_go || is_member(&found.member);
    found.iter().filter(keeps).map(|(node_id, _)| *node_id).collect()
}

/// The voters of nodes, with the nodes' ids. A node is known to have one by its heartbeats, or because its voter is a member. A voter whose disk failed has
/// stopped while its node goes on: the node says that it has none, and another takes its place.
fn candidates(core: &ManagerCore, peer: &Peer) -> rusqlite::Result<Vec<(u64, Candidate)>> {
    let (node_map, membership) = (core.node_map()?, peer.membership());
    let candidate = |node: &NodeInfo| {
        let said = core.soft.cluster.stats.nodes.get(&node.node_id).map(|stats| stats.voter_id);
        let is_same = |m: &&Member| m.kind() == PeerKind::Voter && m.name == node.name;
        let known = || membership.members.iter().find(is_same).map(|member| member.id);
        let id = said.filter(|id| *id != 0).or_else(known)?;
        let has_stopped = said == Some(0) && !peer.is_heard(id);
        let (name, host, address) = (node.name.clone(), node.host.clone(), node.address.clone());
        let candidate = Candidate {
            member: Member { id, kind: PeerKind::Voter as i32, host, address, name },
            is_up: node.health() == Health::Up && !has_stopped,
            must_go: node.health() == Health::Out || has_stopped || node_map.is_leaving(node.node_id),
        };
        Some((node.node_id, candidate))
    };
    Ok(node_map.nodes.values().filter_map(candidate).collect())
}

/// The members as the leader sees them.
fn peers(peer: &Peer) -> Vec<PeerStatus> {
    let (membership, progress) = (peer.membership(), peer.progress());
    let status = |member: &Member| {
        let progress = progress.iter().find(|progress| progress.id == member.id);
        PeerStatus {
            votes: membership.voters.contains(&member.id) && membership.voters_outgoing.is_empty(),
            leads: member.id == peer.id(),
            is_up: peer.is_heard(member.id),
            is_full: peer.says_full(member.id),
            log_seq: progress.map_or(0, |progress| progress.matched),
            unapplied: peer.unapplied(member.id),
            member: Some(member.clone()),
        }
    };
    membership.members.iter().map(status).collect()
}

/// The error that sends a client to the leader, or tells why there is none.
pub(super) fn not_leading(peer: &Peer) -> Error {
    // A voter that leads hands over to a manager as soon as it can.
    let leader = peer.leader().filter(|leader| leader.kind() == PeerKind::Manager && leader.id != peer.id());
    let text = match leader {
        Some(leader) => format!("this manager does not lead; the one at {} does", leader.address),
        None => leaderless(peer),
    };
    let leader = leader.map(|leader| leader.address.clone()).unwrap_or_default();
    Error { leader, ..Error::new(Code::NotLeader, text) }
}

fn leaderless(peer: &Peer) -> String {
    if let Some(fence) = peer.fence() {
        return PeerError::of_fence(fence).to_string();
    }
    if peer.standing().leads {
        return "this manager is elected, and applies the last entries of the log before it serves; ask again".into();
    }
    if peer.is_full() {
        return "the disk of this manager's log is full: make room in its directory; another manager leads meanwhile, if there is one".into();
    }
    let membership = peer.membership();
    if !membership.voters.contains(&peer.id()) {
        return "this manager is not a member of the group yet: it waits for the leader to let it in".into();
    }
    if peer.asks() && membership.voters == [peer.id()] {
        return "this manager has just started, and asks at the addresses of --join whether its directory is an old copy; ask again".into();
    }
    let silent = peer.silent();
    let is_majority = silent.len() * 2 < membership.voters.len();
    if silent.is_empty() || is_majority {
        return "no manager leads at the moment: an election is under way; ask again".into();
    }
    let (full, silent): (Vec<_>, Vec<_>) = silent.iter().partition(|member| peer.says_full(member.id));
    let why = [("have full disks", "make room there", full), ("do not answer", "start them again", silent)];
    let why = why.iter().filter(|(_, _, members)| !members.is_empty()).map(|(fact, way_out, members)| {
        let names = members.iter().map(|member| format!("{} at {}", member.name, member.address));
        format!("{} {fact} ({}): {way_out}", members.len(), names.collect::<Vec<_>>().join(", "))
    });
    format!(
        "no manager can lead, for lack of a majority of the {} peers that keep the metadata; {}",
        membership.voters.len(),
        why.collect::<Vec<_>>().join("; ")
    )
}
