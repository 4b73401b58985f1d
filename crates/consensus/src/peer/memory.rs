//! What peers remember of each other, so that one whose directory was rolled back is found out before it votes.
//!
//! Raft relies on every peer keeping its term, its vote and its entries. A restored copy of a directory, or a disk that lied about a
//! sync, breaks that. Every frame therefore says what its sender has synced, others remember the highest, and a peer that starts asks
//! the others what they remember before it takes part: all of them for two seconds, then a majority of the voters must do. The others
//! are the members that its own, perhaps old, log names, and peers that write to it meanwhile. A peer to which it introduces itself
//! tells it as well, and so does one that later sees it in an earlier term. A rollback that no answering peer remembers counts as a
//! lost peer: the group survives one such peer as it survives any, but no more.

use super::{Peer, PeerError};
use std::collections::{BTreeMap, BTreeSet};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{Membership, Position};

#[derive(Default)]
pub(super) struct Memory {
    positions: BTreeMap<u64, Position>,
    /// Peers that must still answer: empty once the peer takes part.
    asked: BTreeSet<u64>,
    answered: BTreeSet<u64>,
    /// Ticks for which it has asked, and for which others were led without it.
    asked_ticks: u64,
    led_ticks: u64,
}

/// After this many ticks a majority of answers is enough.
const ALL_TICKS: u64 = 20;
/// A peer that still asks after it was led for this many ticks asks peers that are gone.
const OUTDATED_TICKS: u64 = 50;

impl Memory {
    /// A peer that votes with others asks them; one that is alone, or not a voter yet, has promised nothing.
    pub(super) fn new(membership: &Membership, id: u64) -> Memory {
        let voters = || membership.voters.iter().chain(&membership.voters_outgoing).copied();
        let votes = voters().any(|voter| voter == id) && !failpoint::is_active("consensus.asks_nobody");
        // A log that is older than the group names learners that vote by now.
        let members = membership.members.iter().map(|member| member.id);
        let asked = voters().chain(members).filter(|&other| other != id && votes).collect();
        Memory { asked, ..Memory::default() }
    }

    pub(super) fn asks(&self) -> bool {
        !self.asked.is_empty()
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
            if self.lines.get(&to).is_none_or(|line| line.in_flight == 0) {
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

    /// A tick while it asks.
    pub(super) fn go_on_asking(&mut self) {
        self.memory.asked_ticks += 1;
        if self.memory.led_ticks >= OUTDATED_TICKS {
            return self.stop(PeerError::Outdated);
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
        let membership = self.log().membership();
        let own = self.id();
        let is_majority = |voters: &[u64]| {
            let answered = voters.iter().filter(|id| **id == own || self.memory.answered.contains(id)).count();
            voters.is_empty() || answered > voters.len() / 2
        };
        let enough = self.memory.asked.is_subset(&self.memory.answered)
            || self.memory.asked_ticks >= ALL_TICKS
                && is_majority(&membership.voters)
                && is_majority(&membership.voters_outgoing);
        if enough {
            self.memory.asked.clear();
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
