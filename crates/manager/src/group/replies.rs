//! Replies that wait until the group has confirmed that their manager leads.
//!
//! A round is a message to every peer and its answer. Others wait for most replies, so a round begins at once. The heartbeats of nodes at
//! rest are the exception: of a large cluster they alone would ask for a hundred rounds a second, so they wait for the next round, or half a second for their own.

use crate::config::ns;
use crate::core::Action;
use std::collections::VecDeque;
use tessera_failpoint as failpoint;
use tessera_wire::Error;

/// A reply waits no longer for a round of its own.
const MOST_PATIENT_NS: i64 = 500_000_000;

pub(super) struct Unconfirmed {
    /// Replies, each with the round that confirms it: the first that begins after it was made.
    waiting: VecDeque<(u64, Action)>,
    /// The round under way.
    under_way: Option<u64>,
    /// The last round that began.
    last: u64,
    /// The last round that is due at once.
    urgent: u64,
    /// How long a reply may wait.
    patient_ns: i64,
    /// The tick before the first of the replies that wait came.
    since_ns: i64,
    ticked_ns: i64,
}

impl Unconfirmed {
    /// For nodes that send a heartbeat every `heartbeat_ms`: a reply may wait for half of that, or half a second.
    pub(super) fn new(heartbeat_ms: u64) -> Unconfirmed {
        let patient_ns = (ns(heartbeat_ms) / 2).min(MOST_PATIENT_NS);
        let (waiting, under_way, last, urgent) = Default::default();
        Unconfirmed { waiting, under_way, last, urgent, patient_ns, since_ns: 0, ticked_ns: 0 }
    }

    /// Holds a reply; with `waits` the round need not begin at once.
    pub(super) fn hold(&mut self, action: Action, waits: bool) {
        if !self.wants_round() {
            self.since_ns = self.ticked_ns;
        }
        self.waiting.push_back((self.last + 1, action));
        if !waits {
            self.urgent = self.last + 1;
        }
    }

    /// A tick: what has waited for long enough is due. Ticks may come late.
    pub(super) fn tick(&mut self, now_ns: i64) {
        self.ticked_ns = now_ns;
        if self.wants_round() && now_ns - self.since_ns >= self.patient_ns {
            self.urgent = self.last + 1;
        }
    }

    /// Whether replies wait that the round under way does not confirm.
    fn wants_round(&self) -> bool {
        self.waiting.back().is_some_and(|(round, _)| *round > self.last)
    }

    /// The number of a round to begin now, if replies wait that are due and none is under way.
    pub(super) fn next_round(&mut self) -> Option<u64> {
        let is_due = self.under_way.is_none() && self.wants_round() && self.urgent > self.last;
        if !is_due {
            return None;
        }
        self.last += 1;
        self.under_way = Some(self.last);
        self.under_way
    }

    /// The round that [`Unconfirmed::next_round`] gave has not begun.
    pub(super) fn take_back(&mut self) {
        assert_eq!(self.under_way, Some(self.last), "the last round is taken back");
        self.under_way = None;
        self.last -= 1;
    }

    /// The replies that a round confirms.
    pub(super) fn confirmed(&mut self, round: u64) -> Vec<Action> {
        if self.under_way.is_some_and(|under_way| under_way <= round) {
            self.under_way = None;
        }
        let count = self.waiting.partition_point(|(needed, _)| *needed <= round);
        self.waiting.drain(..count).map(|(_, action)| action).collect()
    }

    /// Refuses all: another manager may lead by now.
    pub(super) fn refuse(&mut self, error: &Error) -> Vec<Action> {
        self.under_way = None;
        let refused = self.waiting.drain(..).map(|(_, mut action)| {
            if let Action::Reply { result, .. } = &mut action
                && !failpoint::is_active("manager.deposed_answers_reads")
            {
                *result = Err(error.clone());
            }
            action
        });
        refused.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Confirm;
    use bytes::Bytes;
    use tessera_wire::Kind;

    const MS: i64 = 1_000_000;

    fn reply() -> Action {
        let (kind, result) = (Kind::Heartbeat, Ok(Bytes::new()));
        Action::Reply { connection: 1, request_id: 1, kind, result, confirm: Confirm::Soon }
    }

    #[test]
    fn nodes_at_rest_wait_for_half_a_heartbeat_and_nobody_else_does() {
        let mut held = Unconfirmed::new(600);
        held.tick(900 * MS);
        held.hold(reply(), true);
        for now_ns in [1_000 * MS, 1_100 * MS] {
            held.tick(now_ns);
            assert_eq!(held.next_round(), None);
        }
        held.tick(1_200 * MS);
        assert_eq!(held.next_round(), Some(1));
        // What comes while a round is under way needs the next one, and waits for it as long.
        held.hold(reply(), true);
        assert_eq!(held.confirmed(1).len(), 1);
        held.tick(1_300 * MS);
        assert_eq!(held.next_round(), None);
        held.hold(reply(), false);
        assert_eq!(held.next_round(), Some(2));
        // A round that could not begin is tried again, without a tick.
        held.take_back();
        assert_eq!(held.next_round(), Some(2));
        assert_eq!(held.confirmed(2).len(), 2);
    }

    /// The disk of a manager may hold it up between two ticks.
    #[test]
    fn a_late_tick_makes_what_waits_due() {
        let mut held = Unconfirmed::new(60_000);
        held.tick(100 * MS);
        held.hold(reply(), true);
        held.tick(599 * MS);
        assert_eq!(held.next_round(), None);
        held.tick(9_000 * MS);
        assert_eq!(held.next_round(), Some(1));
    }
}
