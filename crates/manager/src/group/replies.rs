//! Replies that wait until the group has confirmed that their manager leads.
//!
//! A round is a message to every peer and its answer. Others wait for most replies, so a round begins at once. The heartbeats of nodes at
//! rest are the exception: of a large cluster they alone would ask for a hundred rounds a second, so they wait for the next tick or the next round.

use crate::core::Action;
use prost::Message;
use std::collections::VecDeque;
use tessera_failpoint as failpoint;
use tessera_wire::meta::HeartbeatReply;
use tessera_wire::{Error, Kind};

#[derive(Default)]
pub(super) struct Unconfirmed {
    /// Replies, each with the round that confirms it: the first that begins after it was made.
    waiting: VecDeque<(u64, Action)>,
    /// The round under way.
    under_way: Option<u64>,
    /// The last round that began.
    last: u64,
    /// The last round that should not wait for the next tick.
    urgent: u64,
}

/// Whether a reply may wait for a tick: it lets a node at rest go on as it does, whose lease is much longer.
pub(super) fn is_patient(action: &Action) -> bool {
    let Action::Reply { kind: Kind::Heartbeat, result: Ok(body), .. } = action else { return false };
    let says_nothing = |reply: HeartbeatReply| {
        reply.tasks.is_empty() && reply.deletes.is_empty() && reply.pgs.is_empty() && !reply.must_register
    };
    HeartbeatReply::decode(&body[..]).is_ok_and(says_nothing)
}

impl Unconfirmed {
    /// Holds a reply; with `waits` the round need not begin before the next tick.
    pub(super) fn hold(&mut self, action: Action, waits: bool) {
        self.waiting.push_back((self.last + 1, action));
        if !waits {
            self.urgent = self.last + 1;
        }
    }

    /// A tick: what waits now is due.
    pub(super) fn tick(&mut self) {
        if self.wants_round() {
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

    fn reply(kind: Kind, body: &HeartbeatReply) -> Action {
        let result = Ok(body.encode_to_vec().into());
        Action::Reply { connection: 1, request_id: 1, kind, result, is_settled: false }
    }

    #[test]
    fn nodes_at_rest_wait_for_a_tick_and_nobody_else_does() {
        let rest = HeartbeatReply { lease_ms: 5_000, ..HeartbeatReply::default() };
        let work = HeartbeatReply { deletes: vec![Default::default()], ..rest.clone() };
        assert!(is_patient(&reply(Kind::Heartbeat, &rest)));
        assert!(!is_patient(&reply(Kind::Heartbeat, &work)) && !is_patient(&reply(Kind::GetStatus, &rest)));
        let mut held = Unconfirmed::default();
        held.tick();
        held.hold(reply(Kind::Heartbeat, &rest), true);
        assert_eq!(held.next_round(), None);
        held.tick();
        assert_eq!(held.next_round(), Some(1));
        // What comes while a round is under way needs the next one.
        held.hold(reply(Kind::Heartbeat, &rest), true);
        assert_eq!(held.confirmed(1).len(), 1);
        assert_eq!(held.next_round(), None);
        held.hold(reply(Kind::GetStatus, &rest), false);
        assert_eq!(held.next_round(), Some(2));
        // A round that could not begin is tried again, without a tick.
        held.take_back();
        assert_eq!(held.next_round(), Some(2));
        assert_eq!(held.confirmed(2).len(), 2);
    }
}
