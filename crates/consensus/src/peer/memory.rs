//! What peers remember of each other, so that one whose directory was rolled back is found out before it votes.
//!
//! Raft relies on every peer keeping its term, its vote and its entries. A restored copy of a directory, or a disk that lied about a
//! sync, breaks that. Every frame therefore says what its sender has synced, others remember the highest, and a peer that starts asks
//! the others what they remember before it takes part: all of them for two seconds, then a majority of the voters must do. The others
//! are the members that its own, perhaps old, log names, and peers that write to it meanwhile. A peer to which it introduces itself
//! tells it as well, and so does one that later sees it in an earlier term. A rollback that no answering peer remembers counts as a
//! lost peer: the group survives one such peer as it survives any, but no more.
//!
//! An old log may name a voter of today as a learner. So a learner asks as well, and counts itself as a voter. The voters that its log
//! names may all be gone, so it also asks those that others name, and is content with a majority of all if it is led, or after ten
//! seconds: others may need its vote to have a leader. An old log may also name
//! its peer as the only voter: such a peer would be elected by itself and serve an old state. It asks the addresses that it was told,
//! if there are any, for ten seconds or until everybody has answered. Its log holds everything that the group has committed, so a peer
//! that knows of a later committed entry proves that the log is old.

use super::sending::Line;
use super::{PEERS_MAX, Peer, PeerError};
use crate::message::MAX_TERM_AHEAD;
use std::collections::{BTreeMap, BTreeSet};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{JoinGroupReply, Membership, Position};

#[derive(Default)]
pub(super) struct Memory {
    positions: BTreeMap<u64, Position>,
    /// Addresses that a peer was told that knows no member, where nobody has answered yet.
    silent: BTreeSet<String>,
    /// Peers that must still answer: empty once the peer takes part.
    asked: BTreeSet<u64>,
    answered: BTreeSet<u64>,
    /// Ticks for which it has asked, and for which others were led without it.
    asked_ticks: u64,
    led_ticks: u64,
}

/// After this many ticks a majority of answers is enough, …
const ALL_TICKS: u64 = 20;
/// … or after this many, if the peer alone is a majority, or those that its log names as voters do not answer.
const ALONE_TICKS: u64 = 100;
/// A peer that still asks after it was led for this many ticks asks peers that are gone.
const OUTDATED_TICKS: u64 = 50;

impl Memory {
    /// A peer asks all members that its log names. Those that were learners may vote by now.
    pub(super) fn new(membership: &Membership, id: u64) -> Memory {
        let voters = membership.voters.iter().chain(&membership.voters_outgoing).copied();
        let members = voters.chain(membership.members.iter().map(|member| member.id));
        let asked = members.filter(|&other| other != id && !failpoint::is_active("consensus.asks_nobody")).collect();
        Memory { asked, ..Memory::default() }
    }

    pub(super) fn asks(&self) -> bool {
        !self.silent.is_empty() || !self.asked.is_empty()
    }

    /// Asks a peer as well that writes to this one while it asks.
    pub(super) fn ask_too(&mut self, id: u64) {
        if self.asks() {
            self.asked.insert(id);
        }
    }

    pub(super) fn known(&self, id: u64) -> Option<Position> {
        self.positions.get(&id).copied()
    }

    /// Remembers what a peer says it has synced.
    pub(super) fn note(&mut self, id: u64, position: Position) {
        let known = self.positions.entry(id).or_default();
        if (position.term, position.voted) > (known.term, known.voted) {
            (known.term, known.voted) = (position.term, position.voted);
        }
        if (position.last_term, position.last_index) > (known.last_term, known.last_index) {
            (known.last_term, known.last_index) = (position.last_term, position.last_index);
        }
    }
}

/// Whether a peer with this position has not forgotten the term and the vote that are `known` of it.
pub(super) fn keeps_vote(own: &Position, known: &Position) -> bool {
    (own.term, own.voted) >= (known.term, known.voted)
}

/// Whether a peer with this position, which has just started, has forgotten nothing of what is `known` of it. Entries of the present
/// term are never replaced; those of earlier terms may have been, by entries that are older still.
fn keeps_all(own: &Position, known: &Position) -> bool {
    let is_final = own.term == known.term && known.last_term == known.term;
    keeps_vote(own, known) && (!is_final || (own.last_term, own.last_index) >= (known.last_term, known.last_index))
}

impl Peer {
    /// Asks the peers that have not answered yet what they know of this one.
    pub(super) fn ask_known(&mut self) {
        let open: Vec<u64> = self.memory.asked.difference(&self.memory.answered).copied().collect();
        for to in open {
            if self.lines.get(&to).is_none_or(Line::is_idle) {
                self.send_frame(to, Vec::new(), Vec::new());
            }
        }
    }

    /// Takes in what a peer knows.
    pub(super) fn learn_known(&mut self, by: u64, known: Option<Position>) {
        if known.is_some_and(|known| self.has_forgotten(by, &known)) {
            return;
        }
        if self.memory.asks() {
            self.memory.answered.insert(by);
            self.end_asking();
        }
    }

    /// Stops this peer if it has forgotten something that another knows. Once it takes part, entries that a leader replaces may leave
    /// its log, but it never goes back to an earlier term.
    pub(super) fn has_forgotten(&mut self, by: u64, known: &Position) -> bool {
        let own = self.position();
        let keeps = if self.memory.asks() { keeps_all(&own, known) } else { keeps_vote(&own, known) };
        if !keeps {
            self.forgotten(by, known.term, known.last_index);
        }
        !keeps
    }

    /// A peer that has just started was told addresses of others. The only voter asks there before it takes part.
    pub(super) fn ask_at_addresses(&mut self, addresses: BTreeSet<String>) {
        if self.is_only_voter() && !failpoint::is_active("consensus.asks_nobody") {
            self.memory.silent = addresses;
        }
    }

    /// Whoever is at this address has answered, and knows more of this peer only if it is of the group.
    pub(super) fn heard_at(&mut self, address: &str) {
        if self.memory.silent.remove(address) {
            self.end_asking();
        }
    }

    fn is_only_voter(&self) -> bool {
        let membership = self.membership();
        membership.voters == [self.id()] && membership.voters_outgoing.is_empty()
    }

    /// Whether its log names it as a voter.
    fn is_voter(&self) -> bool {
        let (membership, own) = (self.membership(), self.id());
        membership.voters.contains(&own) || membership.voters_outgoing.contains(&own)
    }

    /// Takes in what a peer at an address that it was told says of itself and of others, while this one asks.
    pub(super) fn learn_from_introduction(&mut self, reply: &JoinGroupReply) {
        let (by, own) = (reply.receiver.as_ref().map_or(0, |receiver| receiver.id), self.position());
        let term = reply.position.map_or(0, |position| position.term);
        if term > own.term.saturating_add(MAX_TERM_AHEAD) {
            return self.meet_term(term);
        }
        let is_of_group = own.term <= term.saturating_add(MAX_TERM_AHEAD);
        if self.is_only_voter() && is_of_group && reply.commit > own.last_index {
            return self.forgotten(by, term, reply.commit);
        }
        if self.is_only_voter() || !self.is_voter() {
            // Its log does not name them all.
            let named = reply.receiver.iter().chain(&reply.leader).chain(&reply.members);
            for member in named.filter(|member| member.id != self.config.member.id && !member.address.is_empty()) {
                if self.heard.len() < PEERS_MAX {
                    self.heard.entry(member.id).or_insert_with(|| member.clone());
                    self.memory.asked.insert(member.id);
                }
            }
        }
    }

    /// A tick while it asks.
    pub(super) fn go_on_asking(&mut self) {
        self.memory.asked_ticks += 1;
        let is_outdated = self.memory.led_ticks >= OUTDATED_TICKS;
        if is_outdated || self.memory.asked_ticks >= ALONE_TICKS {
            let Memory { asked, answered, .. } = &self.memory;
            match !self.is_voter() && asked.intersection(answered).count() + 1 > asked.len().div_ceil(2) {
                true => self.memory.asked.clear(),
                false if is_outdated => return self.stop(PeerError::Outdated),
                false => {}
            }
        }
        self.end_asking();
        self.ask_known();
    }

    /// A leader wrote to this peer while it still asks.
    pub(super) fn note_led(&mut self) {
        // At most once a tick.
        if self.memory.led_ticks < self.memory.asked_ticks {
            self.memory.led_ticks += 1;
        }
    }

    /// Takes part once everybody has answered, or a majority after a while.
    fn end_asking(&mut self) {
        let (membership, own) = (self.log().membership(), self.id());
        let is_majority = |voters: &BTreeSet<u64>| {
            let answered = voters.iter().filter(|id| **id == own || self.memory.answered.contains(id)).count();
            voters.is_empty() || answered > voters.len() / 2
        };
        // A peer that its log names as a learner may be a voter by now.
        let voters = membership.voters.iter().copied().chain([own]).collect();
        let outgoing = membership.voters_outgoing.iter().copied().collect();
        let patience_ticks = if self.is_only_voter() { ALONE_TICKS } else { ALL_TICKS };
        let have_all_answered = self.memory.silent.is_empty() && self.memory.asked.is_subset(&self.memory.answered);
        let is_enough = self.memory.asked_ticks >= patience_ticks && is_majority(&voters) && is_majority(&outgoing);
        if is_enough && !have_all_answered && self.is_only_voter() {
            tracing::warn!(
                "not every peer that this one knows of answers; it is the only voter that its log names, and goes on"
            );
        }
        if is_enough || have_all_answered {
            self.memory.asked.clear();
            self.memory.silent.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of term 5 was replaced by an older one of term 4, and those of term 6 are still to come.
    #[test]
    fn p7_entries_that_were_replaced_are_not_forgotten() {
        let at = |term, last_term, last_index| Position { term, voted: true, last_term, last_index };
        assert!(keeps_all(&at(6, 4, 91), &at(6, 5, 91)));
        assert!(keeps_all(&at(6, 6, 92), &at(6, 6, 92)));
        for forgotten in [at(6, 4, 91), at(6, 6, 91), at(5, 5, 91), Position { voted: false, ..at(6, 6, 92) }] {
            assert!(!keeps_all(&forgotten, &at(6, 6, 92)), "{forgotten:?}");
        }
    }
}
