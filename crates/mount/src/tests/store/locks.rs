//! The manager's side of locks.

use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tessera_wire::meta::*;
use tessera_wire::{Ack, Code, Error, Kind};

/// Number of the only table.
const TABLE: u64 = 1;

/// The manager's side of locks, for one client and whole files.
#[derive(Default)]
pub struct LockTable {
    /// Holders by file.
    pub held: BTreeMap<u64, u64>,
    /// Modes of the locks on a file's first 64 bytes, by file and byte.
    pub modes: BTreeMap<(u64, u64), LockMode>,
    /// Number of times that the client asserted its locks.
    pub assertions: u32,
    /// While set, no request is answered.
    pub is_silent: bool,
    /// The client was silent for too long: its locks are gone, and it must assert them.
    pub has_expired: bool,
    /// Another client has a shared lock on every file: an exclusive one is refused.
    pub is_shared: bool,
    /// While set, requests that may wait do so.
    pub waits: bool,
    /// Numbers of the requests that wait.
    pub queued: BTreeSet<u64>,
    /// While set, the client gets the delegations that it asks for.
    pub delegates: bool,
    /// While set, requests are carried out, and their answers lost.
    pub loses_answers: bool,
    /// Lease of the client's locks, ms.
    pub lease_ms: u64,
    /// Number of requests for locks.
    pub requests: u32,
    /// What the client told last when it returned a delegation, or asserted its locks.
    pub told: Vec<FileLock>,
    /// Number of returned delegations.
    pub returns: u32,
    delegated: BTreeSet<u64>,
}

impl LockTable {
    pub(super) fn answer(&mut self, kind: Kind, request: &[u8]) -> Result<Vec<u8>, Error> {
        if self.is_silent {
            return Err(Error::new(Code::Unavailable, "silent"));
        }
        if kind == Kind::HoldLocks {
            if HoldLocks::decode(request).unwrap().next_table != TABLE {
                return Ok(HoldLocksReply { next_table: TABLE, ..HoldLocksReply::default() }.encode_to_vec());
            }
            self.assertions += 1;
            self.told = HoldLocks::decode(request).unwrap().held;
            let lost = std::mem::take(&mut self.has_expired);
            let (table, lease_ms) = (TABLE, self.lease_ms);
            return Ok(HoldLocksReply { table, lost, lease_ms, ..HoldLocksReply::default() }.encode_to_vec());
        }
        if self.has_expired {
            return Err(Error::new(Code::SessionExpired, "expired"));
        }
        let answer = self.carry_out(kind, request);
        match self.loses_answers {
            true => Err(Error::new(Code::Timeout, "no answer")),
            false => Ok(answer),
        }
    }

    fn carry_out(&mut self, kind: Kind, request: &[u8]) -> Vec<u8> {
        let fence = Some(LockFence { table: 1, number: 1 });
        if kind == Kind::ReturnLocks {
            let returned = ReturnLocks::decode(request).unwrap();
            self.delegated.remove(&returned.ino);
            self.modes.retain(|(ino, _), _| *ino != returned.ino);
            returned.held.iter().for_each(|lock| self.set(lock));
            self.told = returned.held;
            self.returns += 1;
            return SetLockReply { outcome: LockOutcome::Granted as i32, fence, ..SetLockReply::default() }
                .encode_to_vec();
        }
        if kind == Kind::SetLock {
            let asked = SetLock::decode(request).unwrap();
            let lock = asked.lock.unwrap();
            self.requests += 1;
            assert!(!self.delegated.contains(&lock.ino), "the client decides about {lock:?}");
            self.queued.remove(&asked.seq);
            let outcome = match lock.mode() {
                LockMode::Write if self.is_shared => LockOutcome::Refused,
                LockMode::Write if self.waits && asked.wait => LockOutcome::Waiting,
                _ => LockOutcome::Granted,
            };
            if outcome == LockOutcome::Waiting {
                self.queued.insert(asked.seq);
            }
            if outcome != LockOutcome::Granted {
                return SetLockReply { outcome: outcome as i32, ..SetLockReply::default() }.encode_to_vec();
            }
            let delegated = asked.want_delegation && self.delegates;
            match delegated {
                true => _ = self.delegated.insert(lock.ino),
                false => self.set(&lock),
            }
            let outcome = LockOutcome::Granted as i32;
            return SetLockReply { outcome, change: 0, fence, delegated }.encode_to_vec();
        }
        if kind == Kind::CancelLock {
            self.queued.remove(&CancelLock::decode(request).unwrap().seq);
        }
        Ack {}.encode_to_vec()
    }

    fn set(&mut self, lock: &FileLock) {
        for byte in (lock.start..=lock.end).take_while(|byte| *byte < 64) {
            match lock.mode() {
                LockMode::Unlock => drop(self.modes.remove(&(lock.ino, byte))),
                mode => drop(self.modes.insert((lock.ino, byte), mode)),
            }
        }
        match lock.mode() {
            LockMode::Unlock => drop(self.held.remove(&lock.ino)),
            _ => drop(self.held.insert(lock.ino, lock.owner)),
        }
    }

    /// The manager takes the locks of the client away.
    pub fn expire(&mut self) {
        self.held.clear();
        self.modes.clear();
        self.queued.clear();
        self.delegated.clear();
        self.has_expired = true;
    }
}
