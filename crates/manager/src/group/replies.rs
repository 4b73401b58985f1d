//! Replies that wait until the group has confirmed that their manager leads.

use crate::core::Action;
use std::collections::VecDeque;
use tessera_failpoint as failpoint;
use tessera_wire::Error;

#[derive(Default)]
pub(super) struct Unconfirmed {
    /// Replies, each with the round that confirms it: the first that begins after it was made.
    waiting: VecDeque<(u64, Action)>,
    /// The round under way.
    under_way: Option<u64>,
    /// The last round that began.
    last: u64,
}

impl Unconfirmed {
    pub(super) fn hold(&mut self, action: Action) {
        self.waiting.push_back((self.last + 1, action));
    }

    /// The number of a round to begin now, if replies wait and none is under way.
    pub(super) fn next_round(&mut self) -> Option<u64> {
        let is_due = self.under_way.is_none() && self.waiting.back().is_some_and(|(round, _)| *round > self.last);
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
