//! What must hold among the peers of the group, and which losses it must survive.

use super::*;
use crate::plan::Family;
use std::collections::BTreeSet;
use tessera_consensus::Peer;
use tessera_wire::Health;
use tessera_wire::consensus::{Member, PeerKind};

/// One entry of so many is compared among the managers while faults happen.
const COMPARED: u64 = 16;

/// What the simulator remembers of the group.
#[derive(Default)]
pub(super) struct Watch {
    /// Term to the peer that led it.
    leaders: BTreeMap<u64, u64>,
    /// Digest of the database after an entry.
    digests: BTreeMap<u64, [u8; 32]>,
    /// Last entry that each manager was seen to hold.
    seen: BTreeMap<usize, u64>,
    /// Peers whose disks are lost or damaged.
    lost: BTreeSet<u64>,
    /// Until then a manager whose directory was taken back finds out that it forgot something: the others must answer it.
    asks_until_ns: i64,
    /// A database was damaged on purpose: the managers differ from now on.
    pub(super) is_rotten: bool,
    /// How often something happened, so that a test can see that it does.
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl Watch {
    pub(super) fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

impl World {
    /// Checks what a manager has become.
    pub(super) fn watch_manager(&mut self, manager: usize) -> Result<(), Violation> {
        let Some(running) = self.managers[manager].manager() else { return Ok(()) };
        let (id, standing) = (running.peer().id(), running.peer().standing());
        let applied = running.applied();
        if standing.leads {
            self.led(id, standing.term)?;
            self.check_drained(manager)?;
        }
        let is_due = |at: &u64| at.is_multiple_of(COMPARED) && !self.plan.many_chunks && !self.group.is_rotten;
        let Some(at) = applied.filter(is_due) else { return Ok(()) };
        if self.group.seen.insert(manager, at) == Some(at) {
            return Ok(());
        }
        self.compare(manager)
    }

    /// Whoever is told that a node is drained may switch it off: its voter keeps no part of the metadata (P6).
    fn check_drained(&self, manager: usize) -> Result<(), Violation> {
        if !self.plan.drains() {
            return Ok(());
        }
        let drained = self.managers[manager].nodes_in(Health::Drained);
        let membership = self.managers[manager].manager().map(|manager| manager.peer().membership());
        let is_drained = |member: &&Member| member.kind() == PeerKind::Voter && drained.contains(&member.name);
        match membership.and_then(|membership| membership.members.iter().find(is_drained)) {
            Some(member) => broken("P6", format!("{} is drained, and its voter keeps the metadata", member.name)),
            None => Ok(()),
        }
    }

    /// Compares a manager's database with the others' after the same entry (P7).
    fn compare(&mut self, manager: usize) -> Result<(), Violation> {
        let Some((at, digest)) = self.managers[manager].digest() else { return Ok(()) };
        let known = self.group.digests.insert(at, digest);
        if known.is_some() {
            self.group.note("states compared");
        }
        match known.is_none_or(|known| known == digest) {
            true => Ok(()),
            false => broken("P7", format!("m{manager} holds another state after entry {at} than another manager")),
        }
    }

    /// Checks what a node's voter has become.
    pub(super) fn watch_voter(&mut self, node: usize) -> Result<(), Violation> {
        let Some(voter) = self.nodes[node].voter() else { return Ok(()) };
        let (id, standing) = (voter.peer().id(), voter.peer().standing());
        if !standing.leads {
            return Ok(());
        }
        self.group.note("voter led");
        self.led(id, standing.term)
    }

    fn led(&mut self, id: u64, term: u64) -> Result<(), Violation> {
        if !self.group.leaders.contains_key(&term) {
            self.group.note("elections");
        }
        let leader = *self.group.leaders.entry(term).or_insert(id);
        if leader == id { Ok(()) } else { broken("P7", format!("peers {leader:x} and {id:x} lead in term {term}")) }
    }

    // --- losses -----------------------------------------------------------------------------------------------

    /// Whether a fault would destroy what a majority of the voters needs. A group that has lost its majority is no longer one.
    pub(super) fn is_too_much(&mut self, fault: &Fault) -> bool {
        if self.now_ns < self.group.asks_until_ns && keeps_from_answering(fault) {
            return true;
        }
        if let Fault::Manager { who, what: ManagerFault::RollBack, .. } = fault
            && !self.managers[self.index_of(*who)].has_backup()
        {
            return false;
        }
        let actor = match fault {
            Fault::LoseNode(node) | Fault::FailSync(node) | Fault::Rot(node) | Fault::RotMuch(node) => {
                Actor::Node(*node)
            }
            Fault::Manager { who, what: ManagerFault::Lose | ManagerFault::RollBack | ManagerFault::Rot, .. } => {
                Actor::Manager(self.index_of(*who))
            }
            _ => return false,
        };
        if self.quiesced || !self.may_lose(actor) {
            self.group.note("losses put off");
            return true;
        }
        self.group.note(if matches!(actor, Actor::Node(_)) { "nodes' disks harmed" } else { "managers lost" });
        if self.log.is_some() {
            let group = self.describe_group();
            self.record(&format!("{actor:?} is harmed; before:\n{group}"));
        }
        self.note_lost(actor);
        false
    }

    /// A manager's directory is taken back: a lost peer that knows it only once the others have told it. Until then nothing else
    /// happens to them (docs/promises.md).
    pub(super) fn roll_back(&mut self, manager: usize, back_ms: u64) {
        if !self.managers[manager].has_backup() {
            return;
        }
        self.group.note("managers rolled back");
        self.network.heal_partitions();
        self.slow.clear();
        (0..self.nodes.len())
            .filter(|node| !self.nodes[*node].lost)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|node| self.resume(node));
        self.group.asks_until_ns = self.now_ns + (back_ms as i64 + 8_000) * MS;
        self.managers[manager].roll_back();
    }

    /// The disk of a peer is lost or damaged.
    pub(super) fn note_lost(&mut self, actor: Actor) {
        let id = self.peer(actor).map(Peer::id);
        self.group.lost.extend(id);
    }

    fn peer(&self, actor: Actor) -> Option<&Peer> {
        match actor {
            Actor::Manager(manager) => self.managers[manager].manager().map(|manager| manager.peer()),
            Actor::Node(node) => self.nodes[node].voter().map(|voter| voter.peer()),
            Actor::Client(_) => None,
        }
    }

    /// Whether the voters that remain are a majority. Unknown while leadership or the members change, and for a process that does
    /// not run: then not.
    fn may_lose(&self, actor: Actor) -> bool {
        let Some(id) = self.peer(actor).map(Peer::id) else { return false };
        let everybody = self.all_actors();
        let leads = |peer: &&Peer| peer.standing().leads;
        let leader = everybody.iter().filter_map(|actor| self.peer(*actor)).filter(leads);
        let Some(leader) = leader.max_by_key(|peer| peer.standing().term) else { return false };
        if leader.is_changing() {
            return false;
        }
        // A change of members counts once it is applied: the others may still need a majority of those before.
        let views = everybody.iter().filter_map(|actor| self.peer(*actor)).map(Peer::membership);
        let views = views.filter(|view| leader.membership().voters.iter().any(|voter| view.voters.contains(voter)));
        let suffices = |voters: &[u64]| {
            let left = voters.iter().filter(|voter| **voter != id && !self.group.lost.contains(voter)).count();
            voters.is_empty() || 2 * left > voters.len()
        };
        views.into_iter().all(|view| suffices(&view.voters) && suffices(&view.voters_outgoing))
    }

    // --- the end ----------------------------------------------------------------------------------------------

    /// All managers hold the same, or the reason why not.
    pub(super) fn check_group(&mut self, deadline: i64) -> Result<(), Violation> {
        self.run_until(deadline, |world| world.have_caught_up())?;
        if !self.have_caught_up() {
            let at: Vec<_> = self.managers.iter().map(|host| host.manager().and_then(|m| m.applied())).collect();
            return broken("P12", format!("the managers hold entries {at:?} long after faults ended"));
        }
        match self.plan.harms_metadata {
            true => self.check_equal(deadline)?,
            false => (0..self.managers.len()).try_for_each(|manager| self.compare(manager))?,
        }
        self.run_until(deadline, |world| world.is_group_whole())?;
        if !self.is_group_whole() {
            let group = self.describe_group();
            return broken("P12", format!("the group is not whole long after faults ended:\n{group}"));
        }
        let drain = |world: &World| world.leader().nodes_in(Health::Draining);
        self.run_until(deadline, |world| drain(world).is_empty())?;
        match &drain(self)[..] {
            [] => Ok(()),
            names => {
                let group = self.describe_group();
                broken("P12", format!("{names:?} still drain long after faults ended:\n{group}"))
            }
        }
    }

    /// The managers have found the one whose database was changed, and hold the same (P7).
    fn check_equal(&mut self, deadline: i64) -> Result<(), Violation> {
        self.run_until(deadline, |world| world.are_equal())?;
        match self.are_equal() {
            true => Ok(()),
            false => {
                let group = self.describe_group();
                broken("P7", format!("the managers' databases still differ long after one was changed:\n{group}"))
            }
        }
    }

    fn are_equal(&self) -> bool {
        let first = self.managers[0].digest();
        first.is_some() && self.managers.iter().all(|host| host.digest() == first) && self.have_caught_up()
    }

    /// The peers in a line each, for messages.
    pub(super) fn describe_group(&self) -> String {
        let line = |actor: &Actor| {
            let peer = self.peer(*actor)?;
            let (standing, log, members) = (peer.standing(), peer.log(), peer.membership());
            let short = |ids: &[u64]| ids.iter().map(|id| format!("{:x}", id >> 48)).collect::<Vec<_>>().join(" ");
            Some(format!(
                "{actor:?} {:x}: term {}, leader {:x}, log {}..{} committed {}, snapshot {}, members of {}: {} ({}) learners {}, {}",
                peer.id() >> 48,
                standing.term,
                standing.leader.unwrap_or(0) >> 48,
                log.base().index,
                log.last_index(),
                log.state().commit,
                peer.files().held().map_or(0, |held| held.index),
                members.index,
                short(&members.voters),
                short(&members.voters_outgoing),
                short(&members.learners),
                peer.stopped().map_or("runs".into(), ToString::to_string)
            ))
        };
        self.all_actors().iter().filter_map(line).collect::<Vec<_>>().join("\n")
    }

    /// No change of members is under way, and every voter runs, or nobody could take its place.
    fn is_group_whole(&self) -> bool {
        let Some(leader) = self.leading().and_then(|leader| self.managers[leader].manager()) else { return false };
        let everybody = self.all_actors();
        let peers = everybody.iter().filter_map(|actor| self.peer(*actor)).filter(|peer| peer.stopped().is_none());
        let running: BTreeSet<u64> = peers.map(Peer::id).collect();
        let membership = leader.peer().membership();
        let has_spare = running.iter().any(|id| membership.members.iter().all(|member| member.id != *id));
        let all_run = !has_spare || membership.voters.iter().all(|voter| running.contains(voter));
        membership.voters_outgoing.is_empty() && (all_run || self.plan.family == Family::Beyond)
    }

    /// Every manager runs and holds what the one that leads holds.
    fn have_caught_up(&self) -> bool {
        let last = self.leader().manager().and_then(|manager| manager.applied());
        let holds = |host: &ManagerHost| host.manager().and_then(|manager| manager.applied()) == last;
        last.is_some() && self.leading().is_some() && self.managers.iter().all(holds)
    }
}

/// Whether a fault keeps peers from answering, or from answering in time.
fn keeps_from_answering(fault: &Fault) -> bool {
    use Fault::*;
    matches!(
        fault,
        KillNode(_)
            | PowerOffNode(_)
            | PauseNode(_)
            | LoseNode(_)
            | RotMuch(_)
            | Rot(_)
            | FailSync(_)
            | Manager { .. }
            | Partition { .. }
            | Cut { .. }
            | Isolate(_)
            | Slow(..)
    )
}
