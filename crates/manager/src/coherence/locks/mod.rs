//! Byte-range locks between clients: which clients may hold locks, for how long, and how locks survive a manager's restart.
//!
//! Locks are in memory ([`table`]). A client keeps them while it contacts the manager (`lock_session_ms`). The database records
//! only which clients may hold locks, and does so before they hold any. A manager that starts grants no new lock until all those
//! clients have asserted their locks, or the time that a client may be silent has passed. This is NFS's grace period; the
//! record tells which clients may assert locks (RFC 8881, sections 8.4.2 and 8.4.3). A client that is silent for longer loses
//! its locks and is told so; other clients get them once the loss is on record. docs/wire.md, section 7, describes the
//! protocol. Nothing here knows connections but by their numbers; `core::locking` does.

#[cfg(test)]
mod delegation_tests;
mod delegations;
mod index;
pub mod ranges;
pub mod table;
#[cfg(test)]
mod tests;
mod waits;

use crate::config::{Config, ns};
use crate::db::Db;
use crate::db::sql::{Bits, args};
use crate::error::{Result, invalid, refuse};
use crate::internal::NoteLockers;
use delegations::Recall;
use ranges::{Bytes, Held};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use table::{LockResult, LockTable, Owner, Ticket, Want};
use tessera_failpoint as failpoint;
use tessera_wire::Code;
use tessera_wire::locks::{DELEGATE, LAST_BYTE, MAX_DELEGATED_LOCKS};
use tessera_wire::meta::*;

/// The clients on record.
///
/// # Errors
/// SQLite fails.
pub fn noted(db: &Db) -> rusqlite::Result<BTreeSet<u64>> {
    let ids: Vec<Bits> = db.all("SELECT client_id FROM lock_clients", [])?;
    Ok(ids.into_iter().map(|id| id.0).collect())
}

/// Replaces the record of the clients that may hold locks.
///
/// # Errors
/// SQLite fails.
pub fn record(db: &Db, client_ids: &[u64]) -> rusqlite::Result<()> {
    db.run("DELETE FROM lock_clients", [])?;
    let insert = |id| db.exec("INSERT OR IGNORE INTO lock_clients (client_id) VALUES (?1)", args![id]);
    client_ids.iter().try_for_each(insert)
}

/// Longest time for which a reply is held back, milliseconds.
const MAX_WAIT_MS: u64 = 60_000;
/// Most ranges that one grant adds to a client's locks: a part in the middle of a held range becomes another lock.
const PIECES_PER_GRANT: usize = 2;
/// Clients that are gone and remembered, with the table that came next.
const REMOVED_KEPT: usize = 4_096;
/// Longest name of a machine, bytes.
const MACHINE_BYTES: usize = 255;
/// Cancelled requests remembered per client: a cancellation may overtake its request.
const CANCELLED_KEPT: usize = 256;

/// How a [`SetLock`] is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAnswer {
    Now(LockOutcome),
    /// Granted, with the fence of the client's locks on the file; `None`: it holds none.
    Granted(Option<LockFence>),
    /// Delegated, with that fence.
    Delegated(Option<LockFence>),
    /// When the ticket is granted, or after this many milliseconds.
    Later(Ticket, u64),
}

#[derive(Debug, Default)]
struct Client {
    /// The table that its requests name.
    table: u64,
    /// The table that it asked for.
    asked_table: u64,
    heard_ns: i64,
    /// The connection that its last request about locks came on.
    connection: u64,
    /// Set once its last connection was ended by it or reset: the client expires at this time unless it comes back.
    orphan_until_ns: Option<i64>,
    machine: String,
    /// Last request of each owner that holds or waits for a lock, by file.
    last: HashMap<(u64, u64), u64>,
    /// Highest request number of all other owners: earlier requests come too late.
    last_idle_seq: u64,
    cancelled: VecDeque<u64>,
}

/// The clients that may hold locks, and their locks. See the module.
#[derive(Default)]
pub struct Lockers {
    table: LockTable,
    /// Number of the table of the clients that register next. It grows whenever a client is removed, so a client that registers again gets
    /// another one: requests of before the loss, which may arrive late, name the old one. A client that registers names a number that this
    /// manager told it after its own last loss, so what it says it holds was true then.
    number: u64,
    /// The least number that a client of which the manager knows no loss may name.
    least_number: u64,
    /// As that, of clients that were removed.
    removed: HashMap<u64, u64>,
    clients: HashMap<u64, Client>,
    /// Expired clients; their locks become free once the record no longer lists the client.
    expired: BTreeSet<u64>,
    /// Clients on record.
    noted: BTreeSet<u64>,
    /// Set when the list of clients that must be on record changes; cleared once it is known to be `noted`.
    may_differ: bool,
    /// Clients that may have held locks when this manager started, and have not come back.
    expected: BTreeSet<u64>,
    /// Those that did not come back in time and are on record still: another manager would let them assert their locks.
    missed: BTreeSet<u64>,
    /// Exclusive locks that clients asserted, and may share already ([`FileLock::may_be_shared`]), while others are expected.
    doubtful: Vec<Want>,
    grace_until_ns: i64,
    /// Number of the last change ([`SetLockReply::change`]).
    changes: u64,
    /// Delegations that others wait for, by file.
    recalls: BTreeMap<u64, Recall>,
}

impl Lockers {
    /// For a manager that starts; the clients in `noted` may hold locks. No manager before it had `number`, and its numbers grow from there.
    pub fn start(number: u64, noted: BTreeSet<u64>, now_ns: i64, config: &Config) -> Lockers {
        let grace_until_ns = now_ns.saturating_add(ns(config.lock_session_ms));
        let (table, expected) = (LockTable::new(number), noted.clone());
        Lockers { table, number, least_number: number, expected, noted, grace_until_ns, ..Default::default() }
    }

    /// Whether clients may still assert their locks.
    pub fn in_grace(&self, now_ns: i64) -> bool {
        now_ns < self.grace_until_ns && !self.expected.is_empty()
    }

    /// Whether the record may differ from what [`Lockers::note`] would put there.
    pub fn may_differ(&self) -> bool {
        self.may_differ
    }

    /// The clients to put on record, if the record differs. Takes as many steps as there are clients, if it may differ.
    pub fn note(&mut self) -> Option<NoteLockers> {
        if !self.may_differ {
            return None;
        }
        let clients: BTreeSet<u64> = self.clients.keys().chain(&self.expected).copied().collect();
        self.may_differ = clients != self.noted;
        if !self.may_differ {
            // Clients that were gone before a record listed them: no later one will leave them out.
            self.table.end(&std::mem::take(&mut self.expired));
        }
        self.may_differ.then(|| NoteLockers { client_ids: clients.into_iter().collect() })
    }

    /// The record now lists `clients`: frees the locks of expired clients that it leaves out.
    pub fn noted(&mut self, clients: BTreeSet<u64>) {
        let ended: BTreeSet<u64>;
        (self.expired, ended) =
            std::mem::take(&mut self.expired).into_iter().partition(|client_id| clients.contains(client_id));
        self.table.end(&ended);
        self.missed.retain(|client_id| clients.contains(client_id));
        (self.noted, self.may_differ) = (clients, true);
    }

    /// Answers [`HoldLocks`].
    ///
    /// # Errors
    /// The claim is invalid: too many locks, or a malformed one.
    pub fn hold(
        &mut self,
        now_ns: i64,
        client_id: u64,
        request: &HoldLocks,
        config: &Config,
    ) -> Result<HoldLocksReply> {
        let lease_ms = config.lock_session_ms;
        let reply = |table| HoldLocksReply { table, lease_ms, ..Default::default() };
        let ask_for = |next_table| HoldLocksReply { lease_ms, next_table, ..Default::default() };
        if request.held.len() > most_pieces(config) {
            let most = most_pieces(config);
            return invalid(format!("{} locks, a client may hold {most}", request.held.len()));
        }
        if request.machine.len() > MACHINE_BYTES {
            return invalid(format!("a machine of {} bytes, at most {MACHINE_BYTES}", request.machine.len()));
        }
        let claim = |lock| Ok(want(client_id, lock)?.map(|want| (want, lock.may_be_shared)));
        let claims = request.held.iter().map(claim).collect::<Result<Vec<_>>>()?;
        if let Some(client) = self.clients.get_mut(&client_id) {
            let table = client.table;
            // Else the answer that told it of this table was lost, or the request is late.
            let is_known = request.table == table || [table, client.asked_table].contains(&request.next_table);
            if is_known {
                client.heard(now_ns);
            }
            return Ok(if is_known { reply(table) } else { ask_for(table) });
        }
        if self.expired.contains(&client_id) || self.missed.contains(&client_id) {
            // The record that leaves this client out may be on its way already. Its commit would free the client's new locks, or hide
            // them from the next manager, which would wait for no assertion of them.
            return refuse(Code::Unavailable, "this client's locks are being taken away; ask again");
        }
        if !self.was_named(client_id, request.next_table) {
            // It may have been sent before a loss, or to a manager of before, and says nothing of what the client holds by now.
            return Ok(ask_for(self.next_table()));
        }
        let may = self.may_claim(now_ns, client_id);
        // A client that is new has nothing to lose.
        let mut loses = request.table != 0 && !may;
        if may {
            loses = !claims.iter().flatten().all(|(want, may_be_shared)| self.claim(*want, *may_be_shared));
            self.may_differ |= self.expected.remove(&client_id) && loses;
            if loses {
                self.table.end(&BTreeSet::from([client_id]));
            }
        }
        if loses {
            // It begins again with table 0. So a client on record has heard of its losses, and claims no lock that it
            // lost, should this answer not arrive and the manager restart.
            return Ok(HoldLocksReply { lease_ms, lost: true, ..Default::default() });
        }
        for (fence, lock) in request.held.iter().filter_map(|lock| Some((lock.fence?, lock))) {
            self.table.keep_fence(lock.ino, client_id, fence);
        }
        let (table, machine) = (self.number, request.machine.clone());
        let asked_table = request.next_table;
        let client = Client { table, asked_table, machine, heard_ns: now_ns, ..Default::default() };
        self.clients.insert(client_id, client);
        self.may_differ |= !self.noted.contains(&client_id);
        // If it did not come back in time, it has heard of its losses.
        self.expected.remove(&client_id);
        Ok(reply(table))
    }

    /// Takes over a lock that a client asserts. Returns false if that conflicts with what others have asserted.
    fn claim(&mut self, want: Want, may_be_shared: bool) -> bool {
        if want.held.mode == LockMode::Write {
            return self.claim_exclusive(want, may_be_shared);
        }
        while self.table.lock(want, None) != LockResult::Granted {
            // Who is in the way shares it already, if it may and this client does.
            let shared = self.table.in_the_way(&want).and_then(|lock| self.doubtful_part(&want, lock));
            let Some(shared) = shared else { return false };
            self.table.lock(shared, None);
        }
        true
    }

    /// As [`Lockers::claim`]. A lock that may be shared is, where others share it.
    fn claim_exclusive(&mut self, want: Want, may_be_shared: bool) -> bool {
        let mut rest = want;
        while self.table.lock(rest, None) != LockResult::Granted {
            let shared =
                self.table.in_the_way(&rest).filter(|(_, _, held)| may_be_shared && held.mode == LockMode::Read);
            let Some(shared) = shared.and_then(|(_, bytes, _)| bytes.common(&rest.bytes)) else { return false };
            let before = Bytes { end: shared.start.saturating_sub(1), ..rest.bytes };
            let is_free = shared.start == rest.bytes.start
                || self.table.lock(Want { bytes: before, ..rest }, None) == LockResult::Granted;
            let is_shared =
                is_free && self.table.lock(Want { bytes: shared, ..rest.shared() }, None) == LockResult::Granted;
            match is_shared {
                true if shared.end == rest.bytes.end => break,
                true => rest.bytes.start = shared.end + 1,
                false => return false,
            }
        }
        self.doubtful.extend(Some(want).filter(|_| may_be_shared));
        true
    }

    /// The part of a lock in the way of `want` that its client may share already, shared.
    fn doubtful_part(&self, want: &Want, (owner, bytes, held): (Owner, Bytes, Held)) -> Option<Want> {
        let asked = Want { ino: want.ino, owner, bytes: bytes.common(&want.bytes)?, held };
        let bytes = self.doubtful_parts(&asked).next()?;
        Some(Want { bytes, ..asked.shared() })
    }

    /// The bytes of an exclusive lock that its client may share already.
    fn doubtful_parts(&self, want: &Want) -> impl Iterator<Item = Bytes> {
        let (want, is_exclusive) = (*want, want.held.mode == LockMode::Write);
        let of_owner = move |other: &&Want| is_exclusive && (other.ino, other.owner) == (want.ino, want.owner);
        self.doubtful.iter().filter(of_owner).filter_map(move |other| other.bytes.common(&want.bytes))
    }

    /// Whether a client may share already what it holds of this exclusively, as far as is known before all clients are back.
    fn is_doubtful(&self, want: &Want) -> bool {
        !self.expected.is_empty() && self.doubtful_parts(want).next().is_some()
    }

    /// Whether this manager has named that table to the client since it was removed last.
    fn was_named(&self, client_id: u64, table: u64) -> bool {
        if failpoint::is_active("manager.late_claims_count") && table != 0 {
            return true;
        }
        let least = self.removed.get(&client_id).copied().unwrap_or(self.least_number);
        (least..=self.number).contains(&table)
    }

    /// Its locks become free once the record no longer lists it.
    fn remove(&mut self, client_id: u64) {
        self.clients.remove(&client_id);
        self.expired.insert(client_id);
        self.may_differ = true;
        if !failpoint::is_active("manager.lock_table_number_stays") {
            self.number += 1;
        }
        if self.removed.len() >= REMOVED_KEPT {
            self.removed.clear();
            self.least_number = self.number;
        }
        self.removed.insert(client_id, self.number);
    }

    /// Whether this client may still assert the locks that the manager before this one granted.
    pub fn may_claim(&self, now_ns: i64, client_id: u64) -> bool {
        self.in_grace(now_ns) && self.expected.contains(&client_id)
    }

    /// The table that a client which registers now asks for.
    pub fn next_table(&self) -> u64 {
        self.number
    }

    /// Whether a client has held locks on a file without a gap since it got `fence`.
    pub fn is_held(&self, client_id: u64, ino: u64, fence: LockFence) -> bool {
        self.table.fence(ino, client_id) == Some(fence)
    }

    fn client(&mut self, now_ns: i64, client_id: u64, table: u64) -> Result<&mut Client> {
        match self.clients.get_mut(&client_id).filter(|client| client.table == table) {
            Some(client) => {
                client.heard(now_ns);
                Ok(client)
            }
            None => {
                let text = format!("this client has no locks in table {table}; assert what it holds (HoldLocks)");
                refuse(Code::SessionExpired, text)
            }
        }
    }

    /// Answers [`SetLock`], or says until when the reply waits.
    ///
    /// # Errors
    /// The client must assert its locks first, or the request is invalid.
    pub fn set(&mut self, now_ns: i64, client_id: u64, request: &SetLock, config: &Config) -> Result<LockAnswer> {
        let ticket = Ticket { client_id, seq: request.seq };
        let Some(lock) = &request.lock else { return invalid("a lock is missing") };
        let (want, bytes) = (program_want(client_id, lock)?, range(lock)?);
        let waits = self.table.is_waiting(ticket);
        let client = self.client(now_ns, client_id, request.table)?;
        let key = (lock.ino, lock.owner);
        // A request that waits keeps its place, whatever other threads of its owner have asked for since.
        if waits {
            return Ok(park(ticket, request));
        }
        let last = client.last.get(&key).copied().unwrap_or(client.last_idle_seq);
        if request.seq < last || client.cancelled.contains(&request.seq) {
            return Ok(LockAnswer::Now(LockOutcome::Overtaken));
        }
        client.last.insert(key, request.seq);
        let answer = match want {
            None => self.unlock((lock.ino, owner(client_id, lock)), bytes, config),
            Some(want) => match self.want(want, ticket, request, config) {
                LockAnswer::Granted(fence) if request.want_delegation => {
                    self.delegate(lock.ino, client_id, fence, config)
                }
                answer => answer,
            },
        };
        self.forget_idle(client_id, key);
        Ok(answer)
    }

    fn unlock(&mut self, (ino, owner): (u64, Owner), bytes: Bytes, config: &Config) -> LockAnswer {
        let divides = self.table.pieces_beside(ino, owner, bytes) > 0;
        if divides && self.most_held_by(owner.client_id) >= most_pieces(config) {
            return LockAnswer::Now(LockOutcome::TooMany);
        }
        self.table.unlock(ino, owner, bytes);
        LockAnswer::Granted(self.table.fence(ino, owner.client_id))
    }

    fn want(&mut self, want: Want, ticket: Ticket, request: &SetLock, config: &Config) -> LockAnswer {
        let (ino, client_id) = (want.ino, ticket.client_id);
        let delegate = self.table.delegate(ino);
        if delegate == Some(client_id) {
            // Repeated, or late: from before the client returned a delegation, or got this one.
            return match request.want_delegation {
                true => LockAnswer::Delegated(self.table.fence(ino, client_id)),
                false => LockAnswer::Now(LockOutcome::Overtaken),
            };
        }
        if self.table.holds(&want) && !self.is_doubtful(&want) {
            return LockAnswer::Granted(self.table.fence(ino, client_id));
        }
        if !self.expected.is_empty() || !self.missed.is_empty() {
            return LockAnswer::Now(LockOutcome::Grace);
        }
        let more = 1 + self.table.pieces_beside(ino, want.owner, want.bytes);
        let most = self.most_held_by(client_id);
        // A request for which there is no place in the queue is granted at once or not at all.
        let (too_many, may_wait) = match self.table.holds_some(ino, want.owner, want.bytes) {
            // A change of what is held may divide it.
            true => {
                let too_many = more > 0 && most.saturating_add_signed(more) > most_pieces(config);
                (too_many, most + PIECES_PER_GRANT <= most_pieces(config))
            }
            false => {
                let count = self.held_by(client_id) + self.table.waiting_of(client_id);
                (count >= config.max_locks_per_client, true)
            }
        };
        if too_many {
            return LockAnswer::Now(LockOutcome::TooMany);
        }
        if delegate.is_some() && !may_wait {
            return LockAnswer::Now(LockOutcome::TooMany);
        }
        if delegate.is_some() {
            self.recall(ino);
        }
        if delegate.is_some() && !request.wait {
            self.table.hold_back(want, ticket);
            return park(ticket, request);
        }
        match self.table.lock(want, (request.wait && may_wait).then_some(ticket)) {
            LockResult::Granted => LockAnswer::Granted(self.table.fence(ino, client_id)),
            LockResult::Refused if request.wait => LockAnswer::Now(LockOutcome::TooMany),
            LockResult::Refused => LockAnswer::Now(LockOutcome::Refused),
            LockResult::Deadlock => LockAnswer::Now(LockOutcome::Deadlock),
            LockResult::Waiting => park(ticket, request),
        }
    }

    /// Most ranges that a client holds once all its waiting requests are granted. It is never above [`most_pieces`], because the client
    /// may claim no more at the next manager.
    fn most_held_by(&self, client_id: u64) -> usize {
        self.held_by(client_id) + PIECES_PER_GRANT * self.table.waiting_of(client_id)
    }

    /// Forgets an owner that holds nothing and waits for nothing; `last_idle_seq` keeps its last request number.
    fn forget_idle(&mut self, client_id: u64, key: (u64, u64)) {
        let owner = Owner { client_id, number: key.1 };
        if self.table.holds_any(key.0, owner) || self.table.is_queued(key.0, owner) {
            return;
        }
        if let Some(client) = self.clients.get_mut(&client_id)
            && let Some(seq) = client.last.remove(&key)
        {
            client.last_idle_seq = client.last_idle_seq.max(seq);
        }
    }

    /// Answers [`TestLock`]; `None`: the answer waits until a delegation is returned.
    ///
    /// # Errors
    /// As [`Lockers::set`].
    pub fn test(&mut self, now_ns: i64, client_id: u64, request: &TestLock) -> Result<Option<TestLockReply>> {
        self.client(now_ns, client_id, request.table)?;
        self.test_again(client_id, request)
    }

    /// As [`Lockers::test`], for a request whose answer waits.
    ///
    /// # Errors
    /// As [`Lockers::test`].
    pub fn test_again(&mut self, client_id: u64, request: &TestLock) -> Result<Option<TestLockReply>> {
        let Some(lock) = &request.lock else { return invalid("a lock is missing") };
        let want = program_want(client_id, lock)?;
        let Some(want) = want else { return invalid("no lock can be in the way of unlocking") };
        match self.table.delegate(want.ino) {
            None => {}
            Some(delegate) if delegate == client_id => {
                return refuse(Code::Unavailable, "this client decides about the locks of that file; ask again");
            }
            Some(_) => {
                self.recall(want.ino);
                return Ok(None);
            }
        }
        let machine = |client_id| self.clients.get(&client_id).map_or("", |client| client.machine.as_str());
        let told = |(owner, bytes, held): (Owner, Bytes, Held)| {
            let here = machine(client_id);
            FileLock {
                ino: lock.ino,
                owner: 0,
                family: i32::from(held.families),
                mode: held.mode as i32,
                start: bytes.start,
                end: bytes.end,
                fence: None,
                may_be_shared: false,
                pid: if !here.is_empty() && machine(owner.client_id) == here { held.pid } else { 0 },
            }
        };
        Ok(Some(TestLockReply { lock: self.table.in_the_way(&want).map(told) }))
    }

    /// Takes a request out of its queue, if it waits.
    ///
    /// # Errors
    /// As [`Lockers::set`].
    pub fn cancel(&mut self, now_ns: i64, client_id: u64, request: &CancelLock) -> Result<Option<Ticket>> {
        let client = self.client(now_ns, client_id, request.table)?;
        if request.seq == 0 {
            return Ok(None);
        }
        client.cancelled.push_back(request.seq);
        if client.cancelled.len() > CANCELLED_KEPT {
            client.cancelled.pop_front();
        }
        let ticket = Ticket { client_id, seq: request.seq };
        let Some(want) = self.table.cancel(ticket) else { return Ok(None) };
        self.forget_idle(client_id, (want.ino, want.owner.number));
        Ok(Some(ticket))
    }

    /// A client ended its last connection, or its machine reset it. A process that ended uses nothing, but one that lives may come back.
    pub fn orphan(&mut self, now_ns: i64, client_id: u64, config: &Config) {
        if let Some(client) = self.clients.get_mut(&client_id) {
            client.orphan_until_ns = Some(now_ns.saturating_add(ns(config.lock_orphan_ms)));
        }
    }

    /// Expires clients silent since `unused_before_ns`, orphans whose time has come, and clients that did not come back within
    /// the grace period. Their locks become free once [`Lockers::note`] is on record.
    pub fn expire(&mut self, now_ns: i64, unused_before_ns: i64) {
        let over = |client: &Client| {
            client.heard_ns < unused_before_ns || client.orphan_until_ns.is_some_and(|until_ns| until_ns <= now_ns)
        };
        let ended: Vec<u64> = self.clients.iter().filter(|(_, client)| over(client)).map(|(id, _)| *id).collect();
        for client_id in ended {
            let (held, waiting) = (self.table.held_by(client_id), self.table.waiting_of(client_id));
            if held + waiting > 0 {
                tracing::info!(client_id, held, waiting, "a client is gone, and its locks with it");
            }
            self.remove(client_id);
        }
        self.expire_recalls(now_ns, unused_before_ns);
        if now_ns >= self.grace_until_ns && !self.expected.is_empty() {
            tracing::info!(clients = self.expected.len(), "clients that held locks did not come back in time");
            self.missed.append(&mut self.expected);
            self.may_differ = true;
        }
        if self.expected.is_empty() {
            self.doubtful.clear();
        }
    }

    /// Numbers the change that is answered next.
    pub fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// See [`LockTable::take_granted`].
    pub fn take_granted(&mut self) -> Vec<(Ticket, LockFence)> {
        self.table.take_granted()
    }

    /// Whether a request still waits.
    pub fn is_waiting(&self, ticket: Ticket) -> bool {
        self.table.is_waiting(ticket)
    }

    /// Locks held, requests that wait, clients that may hold locks.
    pub fn stats(&self) -> (usize, usize, usize) {
        (self.table.len(), self.table.waiting(), self.clients.len())
    }
}

impl Client {
    fn heard(&mut self, now_ns: i64) {
        self.heard_ns = now_ns;
        self.orphan_until_ns = None;
    }
}

/// Most ranges that one client may hold. What it unlocks and changes may divide its locks.
fn most_pieces(config: &Config) -> usize {
    config.max_locks_per_client.saturating_mul(2)
}

fn park(ticket: Ticket, request: &SetLock) -> LockAnswer {
    match request.wait_ms {
        0 => LockAnswer::Now(LockOutcome::Waiting),
        wait_ms => LockAnswer::Later(ticket, wait_ms.min(MAX_WAIT_MS)),
    }
}

fn owner(client_id: u64, lock: &FileLock) -> Owner {
    Owner { client_id, number: lock.owner }
}

fn range(lock: &FileLock) -> Result<Bytes> {
    match lock.start <= lock.end && lock.end <= LAST_BYTE {
        true => Ok(Bytes { start: lock.start, end: lock.end }),
        false => invalid(format!("bytes {} to {} are no range of a file", lock.start, lock.end)),
    }
}

/// As [`want`], for a lock of a program.
fn program_want(client_id: u64, lock: &FileLock) -> Result<Option<Want>> {
    match lock.owner {
        DELEGATE => invalid("a lock of the owner that stands for delegations"),
        _ => want(client_id, lock),
    }
}

/// The lock that a message asks for; `None`: unlock (P14).
fn want(client_id: u64, lock: &FileLock) -> Result<Option<Want>> {
    let bytes = range(lock)?;
    let families = match lock.family() {
        LockFamily::Unknown => return invalid(format!("a lock of family {}", lock.family)),
        family => family as u8,
    };
    let mode = match lock.mode() {
        LockMode::Unlock => return Ok(None),
        LockMode::Unknown => return invalid(format!("a lock of mode {}", lock.mode)),
        mode => mode,
    };
    let held = Held { mode, families, pid: lock.pid };
    let is_whole =
        lock.held() == FileLock::delegation(lock.ino).held() && bytes == FileLock::delegation(lock.ino).bytes();
    if lock.owner == DELEGATE && !is_whole {
        return invalid("a delegation that is no exclusive lock on all bytes");
    }
    Ok(Some(Want { ino: lock.ino, owner: owner(client_id, lock), bytes, held }))
}
