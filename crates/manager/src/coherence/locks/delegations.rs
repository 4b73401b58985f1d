//! Delegations of a file's locks: when a client gets one, and how it is recalled and returned.
//!
//! A delegation is a lock in the table ([`super::table`]), so that it is asserted, lost and counted as any lock. It stands for as many as the
//! client may return for it.

use super::table::{LockResult, Owner, Ticket, Want};
use super::{LockAnswer, Lockers, MAX_DELEGATED_LOCKS, program_want, want};
use crate::config::Config;
use crate::error::{Result, invalid};
use std::collections::{BTreeMap, BTreeSet};
use tessera_wire::meta::*;

/// A client that does not return a delegation is asked again after this time.
const ASK_AGAIN_NS: i64 = 1_000_000_000;

/// A delegation that others wait for.
#[derive(Debug, Default)]
pub struct Recall {
    asked: Option<Asked>,
}

/// A client was asked for a delegation.
#[derive(Debug, Clone, Copy)]
struct Asked {
    connection: u64,
    /// The first time on this connection.
    first_ns: i64,
    last_ns: i64,
}

impl Lockers {
    /// Number of locks for which a client needs room.
    pub(super) fn held_by(&self, client_id: u64) -> usize {
        self.table.held_by(client_id) + (MAX_DELEGATED_LOCKS - 1) * self.table.delegations_of(client_id)
    }

    /// A client that asked for the delegation of a file was granted a lock there. It gets the delegation if it alone holds locks on the
    /// file, nobody waits or may still assert a lock, and at most half the locks that it may have would be for delegations.
    pub(super) fn delegate(
        &mut self,
        ino: u64,
        client_id: u64,
        fence: Option<LockFence>,
        config: &Config,
    ) -> LockAnswer {
        let reserved = MAX_DELEGATED_LOCKS * (self.table.delegations_of(client_id) + 1);
        let most = self.held_by(client_id) + MAX_DELEGATED_LOCKS;
        let has_room = reserved <= config.max_locks_per_client / 2 && most <= config.max_locks_per_client;
        let all_are_known = self.expected.is_empty() && self.missed.is_empty();
        let held = self.table.held_alone(ino, client_id);
        let may = has_room && all_are_known && held.is_some_and(|held| held <= MAX_DELEGATED_LOCKS);
        let delegation = want(client_id, &FileLock::delegation(ino)).ok().flatten();
        let Some(delegation) = delegation.filter(|_| may) else {
            return LockAnswer::Granted(fence);
        };
        let (fits, owners) = self.table.replace(ino, client_id, &[delegation]);
        assert!(fits, "inode {ino}: another client holds a lock, and client {client_id} is alone");
        self.forget_owners(ino, client_id, &owners);
        LockAnswer::Delegated(self.table.fence(ino, client_id))
    }

    fn forget_owners(&mut self, ino: u64, client_id: u64, owners: &[Owner]) {
        owners.iter().for_each(|owner| self.forget_idle(client_id, (ino, owner.number)));
    }

    /// Answers [`ReturnLocks`].
    ///
    /// # Errors
    /// As [`Lockers::set`]; too many locks, or locks of another file.
    pub fn take_back(&mut self, now_ns: i64, client_id: u64, request: &ReturnLocks) -> Result<LockAnswer> {
        let (ino, seq) = (request.ino, request.seq);
        if request.held.len() > MAX_DELEGATED_LOCKS {
            return invalid(format!("{} locks for a delegation, at most {MAX_DELEGATED_LOCKS}", request.held.len()));
        }
        let mut wants = Vec::with_capacity(request.held.len());
        for lock in &request.held {
            match program_want(client_id, lock)?.filter(|want| want.ino == ino) {
                Some(want) => wants.push(want),
                None => return invalid(format!("no lock on inode {ino}")),
            }
        }
        let is_delegate = self.table.delegate(ino) == Some(client_id);
        let holds_all = wants.iter().all(|want| self.table.holds(want));
        let client = self.client(now_ns, client_id, request.table)?;
        let of_file = client.last.iter().filter(|((of, _), _)| *of == ino).map(|(_, last)| *last);
        if of_file.chain([client.last_idle_seq]).any(|last| seq < last) {
            return Ok(LockAnswer::Now(LockOutcome::Overtaken));
        }
        client.last_idle_seq = seq;
        // Whoever has no delegation of the file returns it again, and holds there what it says, or has lost it.
        if !is_delegate && !holds_all {
            return Ok(LockAnswer::Now(LockOutcome::Refused));
        }
        wants.iter().for_each(|want| _ = client.last.insert((ino, want.owner.number), seq));
        let (fits, mut owners) = self.table.replace(ino, client_id, &wants);
        owners.extend(wants.iter().map(|want| want.owner));
        self.forget_owners(ino, client_id, &owners);
        Ok(match fits {
            true => LockAnswer::Granted(self.table.fence(ino, client_id)),
            false => LockAnswer::Now(LockOutcome::Refused),
        })
    }

    /// Others wait for the delegation of a file.
    pub(super) fn recall(&mut self, ino: u64) {
        self.recalls.entry(ino).or_default();
    }

    /// The client's requests come on this connection. Recalls are sent over it.
    pub fn reached_on(&mut self, client_id: u64, connection: u64) {
        if let Some(client) = self.clients.get_mut(&client_id) {
            client.connection = connection;
        }
    }

    /// Files whose delegation is to be recalled now, by connection of the client.
    pub fn take_recalls(&mut self, now_ns: i64) -> BTreeMap<u64, Vec<u64>> {
        let mut due: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let (table, clients) = (&self.table, &self.clients);
        self.recalls.retain(|ino, recall| {
            let Some(delegate) = table.delegate(*ino) else { return false };
            let connection = clients.get(&delegate).map_or(0, |client| client.connection);
            let asked = recall.asked.filter(|asked| asked.connection == connection);
            if connection != 0 && asked.is_none_or(|asked| now_ns - asked.last_ns >= ASK_AGAIN_NS) {
                let first_ns = asked.map_or(now_ns, |asked| asked.first_ns);
                recall.asked = Some(Asked { connection, first_ns, last_ns: now_ns });
                due.entry(connection).or_default().push(*ino);
            }
            true
        });
        due
    }

    /// A client that keeps a delegation for twice as long as it may be silent, though it was asked for it, loses its locks.
    pub(super) fn expire_recalls(&mut self, now_ns: i64, unused_before_ns: i64) {
        let asked_before_ns = unused_before_ns.saturating_sub(now_ns.saturating_sub(unused_before_ns));
        let is_over = |recall: &Recall| recall.asked.is_some_and(|asked| asked.first_ns < asked_before_ns);
        let kept = self.recalls.iter().filter(|(_, recall)| is_over(recall));
        let delegates = kept.filter_map(|(ino, _)| self.table.delegate(*ino));
        let ended: BTreeSet<u64> = delegates.filter(|client_id| self.clients.contains_key(client_id)).collect();
        for client_id in ended {
            tracing::info!(
                client_id,
                "a client does not return the locks of a file that others wait for, and loses its locks"
            );
            self.remove(client_id);
        }
    }

    /// Requests that ended without a lock after a wait, since the last call.
    pub fn take_refused(&mut self) -> Vec<(Ticket, LockOutcome)> {
        let refused = self.table.take_refused();
        let mut outcome = |(ticket, want, result): (Ticket, Want, LockResult)| {
            self.forget_idle(ticket.client_id, (want.ino, want.owner.number));
            let is_deadlock = result == LockResult::Deadlock;
            (ticket, if is_deadlock { LockOutcome::Deadlock } else { LockOutcome::Refused })
        };
        refused.into_iter().map(&mut outcome).collect()
    }
}
