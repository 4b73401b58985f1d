//! Replies that wait until the group has confirmed that their manager leads.
//!
//! A round is a message to every peer and its answer. Others wait for most replies, so a round begins at once. The heartbeats of nodes at
//! rest are the exception: of a large cluster they alone would ask for a hundred rounds a second, so they wait for the next round, or some ticks for their own.

use crate::core::Action;
use prost::Message;
use std::collections::VecDeque;
use tessera_failpoint as failpoint;
use tessera_wire::meta::HeartbeatReply;
use tessera_wire::{Error, Kind};

/// Interval of ticks.
const TICK_MS: u64 = 100;
/// Ticks of half a second.
const MOST_PATIENT_TICKS: u64 = 5;

pub(super) struct Unconfirmed {
    /// Replies, each with the round that confirms it: the first that begins after it was made.
    waiting: VecDeque<(u64, Action)>,
    /// The round under way.
    under_way: Option<u64>,
    /// The last round that began.
    last: u64,
    /// The last round that should wait for no tick.
    urgent: u64,
    /// Ticks that a reply waits at most.
    patient_ticks: u64,
    /// Ticks since the first of the replies that wait came.
    waited_ticks: u64,
}

/// Whether a reply may wait for some ticks: it lets a node at rest go on as it does, whose lease is much longer.
pub(super) fn is_patient(action: &Action) -> bool {
    let Action::Reply { kind: Kind::Heartbeat, result: Ok(body), .. } = action else { return false };
    let says_nothing = |reply: HeartbeatReply| {
        reply.tasks.is_empty() && reply.deletes.is_empty() && reply.pgs.is_empty() && !reply.must_register
    };
    HeartbeatReply::decode(&body[..]).is_ok_and(says_nothing)
}

impl Unconfirmed {
    /// For nodes that send a heartbeat every `heartbeat_ms`: a reply may wait for half of that, or half a second.
    pub(super) fn new(heartbeat_ms: u64) -> Unconfirmed {
        let patient_ticks = (heartbeat_ms / 2 / TICK_MS).clamp(1, MOST_PATIENT_TICKS);
        Unconfirmed { waiting: VecDeque::new(), under_way: None, last: 0, urgent: 0, patient_ticks, waited_ticks: 0 }
    }

    /// Holds a reply; with `waits` the round need not begin at once.
    pub(super) fn hold(&mut self, action: Action, waits: bool) {
        self.waiting.push_back((self.last + 1, action));
        if !waits {
            self.urgent = self.last + 1;
        }
    }

    /// A tick: what has waited for long enough is due.
    pub(super) fn tick(&mut self) {
        if !self.wants_round() {
            return;
        }
        self.waited_ticks += 1;
        if self.waited_ticks >= self.patient_ticks {
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
        self.waited_ticks = 0;
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
    fn nodes_at_rest_wait_for_some_ticks_and_nobody_else_does() {
        let rest = HeartbeatReply { lease_ms: 5_000, ..HeartbeatReply::default() };
        let work = HeartbeatReply { deletes: vec![Default::default()], ..rest.clone() };
        assert!(is_patient(&reply(Kind::Heartbeat, &rest)));
        assert!(!is_patient(&reply(Kind::Heartbeat, &work)) && !is_patient(&reply(Kind::GetStatus, &rest)));
        let mut held = Unconfirmed::new(600);
        // Ticks before the reply came do not count.
        (0..9).for_each(|_| held.tick());
        held.hold(reply(Kind::Heartbeat, &rest), true);
        for _ in 0..2 {
            held.tick();
            assert_eq!(held.next_round(), None);
        }
        held.tick();
        assert_eq!(held.next_round(), Some(1));
        // What comes while a round is under way needs the next one, and waits for it as long.
        held.hold(reply(Kind::Heartbeat, &rest), true);
        assert_eq!(held.confirmed(1).len(), 1);
        held.tick();
        assert_eq!(held.next_round(), None);
        held.hold(reply(Kind::GetStatus, &rest), false);
        assert_eq!(held.next_round(), Some(2));
        // A round that could not begin is tried again, without a tick.
        held.take_back();
        assert_eq!(held.next_round(), Some(2));
        assert_eq!(held.confirmed(2).len(), 2);
    }

    #[test]
    fn a_reply_waits_for_half_a_heartbeat_at_most() {
        let ticks = |heartbeat_ms| Unconfirmed::new(heartbeat_ms).patient_ticks;
        assert_eq!([1, 200, 1_000, 60_000].map(ticks), [1, 1, 5, 5]);
    }
}
