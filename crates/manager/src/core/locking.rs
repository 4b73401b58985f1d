//! Lock requests: answered at once, or held until their turn or their time has come.

use super::*;
use crate::coherence::locks::LockAnswer;
use crate::soft::Effect;
use tessera_wire::meta::{CancelLock, HoldLocks, LockFence, LockOutcome, SetLock, SetLockReply, TestLock};

impl ManagerCore {
    pub(super) fn locking(&mut self, origin: Origin, client_id: u64, body: Bytes) {
        let answer = match origin.kind {
            Kind::SetLock => self.set_lock(origin, client_id, &body),
            Kind::TestLock => registry::decode::<TestLock>("TestLock", &body).and_then(|request| {
                let reply = self.soft.locks.test(self.clock.time.now_ns, client_id, &request)?;
                Ok(Some(reply.encode_to_vec().into()))
            }),
            Kind::CancelLock => self.cancel_lock(client_id, &body),
            _ => self.hold_locks(origin, client_id, &body),
        };
        match answer {
            Ok(Some(reply)) => self.reply(origin, Ok(reply)),
            Ok(None) => {}
            Err(failure) => self.reply(origin, Err(failure.into_wire())),
        }
        self.answer_granted();
    }

    fn set_lock(&mut self, origin: Origin, client_id: u64, body: &Bytes) -> Result<Option<Bytes>> {
        let request = registry::decode::<SetLock>("SetLock", body)?;
        match self.soft.locks.set(self.clock.time.now_ns, client_id, &request, &self.config)? {
            LockAnswer::Now(outcome) => Ok(Some(encode(outcome))),
            LockAnswer::Granted(fence) => Ok(Some(self.grant_reply(fence))),
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
                let granted = self.grant_reply(Some(fence));
                self.reply(origin, Ok(granted));
            }
        }
    }

    fn grant_reply(&mut self, fence: Option<LockFence>) -> Bytes {
        let change = self.soft.locks.next_change();
        SetLockReply { outcome: LockOutcome::Granted as i32, change, fence }.encode_to_vec().into()
    }

    /// Expires silent clients, answers waits that are over, and has the clients that may hold locks recorded.
    pub(super) fn tend_locks(&mut self) {
        let unused_before_ns = self.unused_before_ns(self.config.lock_session_ms);
        self.soft.locks.expire(self.clock.time.now_ns, unused_before_ns);
        self.answer_granted();
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
