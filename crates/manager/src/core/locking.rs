//! Lock requests: answered at once, or held until their turn or their time has come.

use super::*;
use crate::coherence::locks::LockAnswer;
use crate::db::meta::draw;
use crate::error::refuse;
use crate::soft::Effect;
use tessera_wire::meta::{
    CancelLock, HoldLocks, LockFence, LockOutcome, RecallLease, ReturnLocks, SetLock, SetLockReply, TestLock,
};

/// Longest time for which the answer to a [`TestLock`] waits for the return of a delegation, milliseconds. Then the client asks again.
const TEST_WAIT_MS: u64 = 2_000;
/// Most answers to [`TestLock`] that wait.
const MAX_HELD_TESTS: usize = 4_096;

/// A [`TestLock`] whose answer waits for the return of a delegation.
pub(super) struct HeldTest {
    origin: Origin,
    client_id: u64,
    request: TestLock,
    until_ns: i64,
}

impl ManagerCore {
    pub(super) fn locking(&mut self, origin: Origin, client_id: u64, body: Bytes) {
        let answer = match origin.kind {
            Kind::SetLock => self.set_lock(origin, client_id, &body),
            Kind::TestLock => self.test_lock(origin, client_id, &body),
            Kind::CancelLock => self.cancel_lock(client_id, &body),
            Kind::ReturnLocks => self.return_locks(client_id, &body),
            _ => self.hold_locks(origin, client_id, &body),
        };
        match answer {
            Ok(Some(reply)) => self.reply(origin, Ok(reply)),
            Ok(None) => {}
            Err(failure) => self.reply(origin, Err(failure.into_wire())),
        }
        self.soft.locks.reached_on(client_id, origin.connection);
        self.answer_granted();
        self.recall_locks();
    }

    fn set_lock(&mut self, origin: Origin, client_id: u64, body: &Bytes) -> Result<Option<Bytes>> {
        let request = registry::decode::<SetLock>("SetLock", body)?;
        match self.soft.locks.set(self.clock.time.now_ns, client_id, &request, &self.config)? {
            LockAnswer::Now(outcome) => Ok(Some(encode(outcome))),
            LockAnswer::Granted(fence) => Ok(Some(self.grant_reply(fence, false))),
            LockAnswer::Delegated(fence) => Ok(Some(self.grant_reply(fence, true))),
            LockAnswer::Later(ticket, wait_ms) => {
                let until_ns = self.clock.time.now_ns.saturating_add(ns(wait_ms));
                // A client that asks again on another connection gets no answer on the first.
                if let Some((before, _)) = self.lock_waits.insert(ticket, (origin, until_ns)) {
                    self.reply(before, Ok(encode(LockOutcome::Waiting)));
                }
                Ok(None)
            }
        }
    }

    fn test_lock(&mut self, origin: Origin, client_id: u64, body: &Bytes) -> Result<Option<Bytes>> {
        let request = registry::decode::<TestLock>("TestLock", body)?;
        let now_ns = self.clock.time.now_ns;
        if let Some(reply) = self.soft.locks.test(now_ns, client_id, &request)? {
            return Ok(Some(reply.encode_to_vec().into()));
        }
        if self.held_tests.len() >= MAX_HELD_TESTS {
            return refuse(Code::Unavailable, "too many requests wait for other clients; ask again");
        }
        self.held_tests.push(HeldTest {
            origin,
            client_id,
            request,
            until_ns: now_ns.saturating_add(ns(TEST_WAIT_MS)),
        });
        Ok(None)
    }

    /// The origins of the tests that wait, which wait no more.
    pub(super) fn take_tests(&mut self) -> Vec<Origin> {
        std::mem::take(&mut self.held_tests).into_iter().map(|test| test.origin).collect()
    }

    /// Answers the tests that wait, of which the locks are known by now or whose time is over.
    fn answer_tests(&mut self) {
        let now_ns = self.clock.time.now_ns;
        for test in std::mem::take(&mut self.held_tests) {
            // As it came, it is no sign of life any more.
            let answer = match self.soft.locks.test_again(test.client_id, &test.request) {
                Ok(None) if now_ns < test.until_ns => {
                    self.held_tests.push(test);
                    continue;
                }
                Ok(Some(reply)) => Ok(reply.encode_to_vec().into()),
                Ok(None) => {
                    Err(Error::new(Code::Unavailable, "another client decides about the locks of that file; ask again"))
                }
                Err(failure) => Err(failure.into_wire()),
            };
            self.reply(test.origin, answer);
        }
    }

    fn return_locks(&mut self, client_id: u64, body: &Bytes) -> Result<Option<Bytes>> {
        let request = registry::decode::<ReturnLocks>("ReturnLocks", body)?;
        match self.soft.locks.take_back(self.clock.time.now_ns, client_id, &request)? {
            LockAnswer::Granted(fence) => Ok(Some(self.grant_reply(fence, false))),
            LockAnswer::Now(outcome) => Ok(Some(encode(outcome))),
            answer => panic!("{answer:?} to the return of a delegation"),
        }
    }

    /// Recalls the delegations that others wait for.
    fn recall_locks(&mut self) {
        for (connection, delegated_files) in self.soft.locks.take_recalls(self.clock.time.now_ns) {
            let recall = RecallLease { delegated_files, ..RecallLease::default() };
            let token = draw(&mut self.next_token);
            let call = Call::new(Peer::Connection(connection), token, &recall, Vec::new(), self.config.lease_entry_ms);
            self.actions.push_back(Action::Call(call));
        }
    }

    fn cancel_lock(&mut self, client_id: u64, body: &Bytes) -> Result<Option<Bytes>> {
        let request = registry::decode::<CancelLock>("CancelLock", body)?;
        let cancelled = self.soft.locks.cancel(self.clock.time.now_ns, client_id, &request)?;
        if let Some((waiting, _)) = cancelled.and_then(|ticket| self.lock_waits.remove(&ticket)) {
            self.reply(waiting, Ok(encode(LockOutcome::Cancelled)));
        }
        Ok(Some(Ack {}.encode_to_vec().into()))
    }

    fn hold_locks(&mut self, origin: Origin, client_id: u64, body: &Bytes) -> Result<Option<Bytes>> {
        let request = registry::decode::<HoldLocks>("HoldLocks", body)?;
        let told = self.soft.locks.hold(self.clock.time.now_ns, client_id, &request, &self.config)?;
        let reply: Bytes = told.encode_to_vec().into();
        if told.next_table != 0 {
            return Ok(Some(reply));
        }
        // The record must list the client before it holds locks, so that a restarted manager knows. Each batch begins with the record of
        // that time, if it differs; one that is on its way may be of before the client came.
        if !self.soft.locks.may_differ() && !self.is_noting_lockers() {
            return Ok(Some(reply));
        }
        self.reply_once_logged(origin, reply);
        Ok(None)
    }

    /// Answers the requests that were granted.
    pub(super) fn answer_granted(&mut self) {
        for (ticket, fence) in self.soft.locks.take_granted() {
            if let Some((origin, _)) = self.lock_waits.remove(&ticket) {
                let granted = self.grant_reply(Some(fence), false);
                self.reply(origin, Ok(granted));
            }
        }
        for (ticket, outcome) in self.soft.locks.take_refused() {
            if let Some((origin, _)) = self.lock_waits.remove(&ticket) {
                self.reply(origin, Ok(encode(outcome)));
            }
        }
        if !self.held_tests.is_empty() {
            self.answer_tests();
        }
    }

    fn grant_reply(&mut self, fence: Option<LockFence>, delegated: bool) -> Bytes {
        let change = self.soft.locks.next_change();
        SetLockReply { outcome: LockOutcome::Granted as i32, change, fence, delegated }.encode_to_vec().into()
    }

    /// Expires silent clients, answers waits that are over, and has the clients that may hold locks recorded.
    pub(super) fn tend_locks(&mut self) {
        let unused_before_ns = self.unused_before_ns(self.config.lock_session_ms);
        self.soft.locks.expire(self.clock.time.now_ns, unused_before_ns);
        self.answer_granted();
        self.recall_locks();
        let (now_ns, locks) = (self.clock.time.now_ns, &self.soft.locks);
        let over = |(ticket, (_, until_ns)): (&Ticket, &(Origin, i64))| {
            (*until_ns <= now_ns || !locks.is_waiting(*ticket)).then_some(*ticket)
        };
        let over: Vec<Ticket> = self.lock_waits.iter().filter_map(over).collect();
        for ticket in over {
            if let Some((origin, _)) = self.lock_waits.remove(&ticket) {
                self.reply(origin, Ok(encode(LockOutcome::Waiting)));
            }
        }
        // What the one on its way lacks is for a later tick.
        let is_noted = !self.soft.locks.may_differ() || self.is_noting_lockers();
        self.head_due = self.has_room() && !(is_noted && self.meta.term == self.term());
    }

    /// Whether a record of the clients that may hold locks is on its way to the group.
    fn is_noting_lockers(&self) -> bool {
        let records = |effect: &Effect| matches!(effect, Effect::LockClientsRecorded(_));
        self.open.as_ref().is_some_and(|open| open.applied.effects.iter().any(records))
    }
}

fn encode(outcome: LockOutcome) -> Bytes {
    SetLockReply { outcome: outcome as i32, ..SetLockReply::default() }.encode_to_vec().into()
}
