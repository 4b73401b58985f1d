//! Connections between mounts and the manager.
//!
//! A connection delivers the messages of each direction in order, after a delay, or breaks. Requests that the client sends
//! from several threads keep their order once they are sent. An answer may reach its waiting task later than a recall
//! that was sent after it reaches the recall's handler, because another thread handles it; the reverse cannot happen. Nor has the
//! answer to a recall an order with requests: the thread that sends it may be slow. Each side learns of a break at a time of its own.
//! What a mount sent before it gave a connection up may arrive long afterwards. While a mount is *cut off*, its messages wait.

use super::plan::Fault;
use super::{Event, Host, MountWorld};
use crate::manager_host::Outcome;
use crate::mount_host::executor::Owner;
use crate::mount_host::link::Outgoing;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tessera_manager::core::Event as ManagerEvent;
use tessera_net::End;
use tessera_wire::meta::{CommitReply, HoldLocks, RecallLease};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error, Kind, Role};

const MS: i64 = 1_000_000;
/// Time after a failed dial before the manager is dialled again.
const REDIAL_NS: i64 = 20 * MS;
/// A dial is given up after this long.
const DIAL_TIMEOUT_NS: i64 = 300 * MS;
/// The answer to a recall is sent late by at most this, ms.
const SLOW_RECALL_MS: u64 = 2_000;
/// What was sent over a connection before it was given up arrives late by at most this, ms: longer than locks last.
const LATE_MS: u64 = 8_000;

/// A message to the manager.
pub enum ToManager {
    /// A request.
    Request { ticket: u64, kind: Kind, body: Bytes },
    /// The answer to a recall.
    Recalled { token: u64 },
}

/// A message to a mount.
pub enum ToMount {
    /// An answer.
    Answer { ticket: u64, result: Result<Bytes, Error> },
    /// A recall.
    Recall { token: u64, recall: RecallLease },
}

/// The mount's side of its line to the manager.
pub enum Line {
    /// No connection; not dialled before this time.
    Closed(i64),
    /// These messages wait for the connection.
    Dialling(Vec<Outgoing>),
    /// The number of the connection.
    Open(u64),
}

/// A connection that a mount has opened.
pub struct Connection {
    owner: Owner,
    /// The manager process that accepted it.
    manager: u64,
    /// Neither side gets anything more over it.
    broken: bool,
    /// The mount has given it up, or will. What it sent before arrives at the manager then.
    late_ns: Option<i64>,
    /// The manager has not learned of its end.
    known: bool,
    last_to_manager_ns: i64,
    last_to_mount_ns: i64,
    /// Requests without an answer.
    open: BTreeSet<u64>,
}

impl<H: Host> MountWorld<H> {
    fn delay_ns(&mut self) -> i64 {
        let slow = self.rng.percent(self.plan.slow_percent);
        let us = self.rng.between(50, self.plan.max_delay_us) * if slow { 20 } else { 1 };
        us as i64 * 1_000
    }

    /// Sends what the mounts want to send.
    pub(super) fn send_outgoing(&mut self) {
        for index in 0..self.mounts.len() {
            let Some(link) = self.mounts[index].link.clone() else { continue };
            for message in link.take_outgoing() {
                if let Outgoing::Request { ticket, timeout_ms, .. } = &message {
                    let timeout_ns = self.now_ns + *timeout_ms as i64 * MS;
                    self.push(timeout_ns, Event::CallTimeout { owner: link.owner(), ticket: *ticket });
                }
                if matches!(message, Outgoing::Recalled { .. }) && self.rng.percent(self.plan.slow_percent) {
                    let after_ns = self.rng.between(1, SLOW_RECALL_MS) as i64 * MS;
                    self.push(self.now_ns + after_ns, Event::Send { owner: link.owner(), message });
                    continue;
                }
                self.send(index, message);
            }
        }
    }

    /// Sends what a mount was slow to send, if its process lives.
    pub(super) fn send_late(&mut self, owner: Owner, message: Outgoing) {
        if self.owner(owner.index) == owner && self.mounts[owner.index].link.is_some() {
            self.send(owner.index, message);
        }
    }

    fn send(&mut self, index: usize, message: Outgoing) {
        match &mut self.mounts[index].line {
            Line::Open(number) => {
                let number = *number;
                self.send_over(number, message);
            }
            Line::Dialling(waiting) => waiting.push(message),
            Line::Closed(not_before_ns) if *not_before_ns > self.now_ns => self.fail_message(index, &message),
            Line::Closed(_) => {
                self.mounts[index].line = Line::Dialling(vec![message]);
                let dialled_ns = 2 * self.delay_ns();
                let held_ns = (self.mounts[index].cut_until_ns - self.now_ns).max(0);
                let after_ns = (dialled_ns + held_ns).min(DIAL_TIMEOUT_NS);
                let owner = self.owner(index);
                self.push(self.now_ns + after_ns, Event::Dialled { owner });
            }
        }
    }

    fn fail_message(&mut self, index: usize, message: &Outgoing) {
        if let (Outgoing::Request { ticket, .. }, Some(link)) = (message, &self.mounts[index].link) {
            link.complete(*ticket, Err(Error::new(Code::Unavailable, "the manager cannot be reached")));
        }
    }

    /// A dial of a mount ends: with a connection, if both sides can be reached.
    pub(super) fn dialled(&mut self, owner: Owner) {
        if self.owner(owner.index) != owner {
            return;
        }
        let slot = &mut self.mounts[owner.index];
        let Line::Dialling(waiting) = &mut slot.line else { return };
        let waiting = std::mem::take(waiting);
        if slot.cut_until_ns > self.now_ns || !self.manager.is_running() {
            slot.line = Line::Closed(self.now_ns + REDIAL_NS);
            waiting.iter().for_each(|message| self.fail_message(owner.index, message));
            return;
        }
        self.last_connection += 1;
        let number = self.last_connection;
        slot.line = Line::Open(number);
        let connection = Connection {
            owner,
            manager: self.manager.incarnation,
            broken: false,
            late_ns: None,
            known: true,
            last_to_manager_ns: 0,
            last_to_mount_ns: 0,
            open: BTreeSet::new(),
        };
        self.connections.insert(number, connection);
        waiting.into_iter().for_each(|message| self.send_over(number, message));
    }

    fn send_over(&mut self, number: u64, message: Outgoing) {
        let delay_ns = self.delay_ns();
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let cut_until_ns = self.mounts[connection.owner.index].cut_until_ns;
        let at_ns = (self.now_ns + delay_ns).max(cut_until_ns + delay_ns).max(connection.last_to_manager_ns + 1);
        connection.last_to_manager_ns = at_ns;
        let message = match message {
            Outgoing::Request { ticket, kind, body, .. } => {
                connection.open.insert(ticket);
                ToManager::Request { ticket, kind, body }
            }
            // A recall that came on an earlier connection is answered on that one, which is gone.
            Outgoing::Recalled { connection: of, .. } if of != number => return,
            Outgoing::Recalled { token, .. } => ToManager::Recalled { token },
        };
        let is_claim = matches!(&message, ToManager::Request { kind: Kind::HoldLocks, body, .. } if names_table(body));
        let owner = connection.owner;
        self.push(at_ns, Event::ToManager { connection: number, message });
        if is_claim && std::mem::take(&mut self.mounts[owner.index].delays_claim) {
            self.delay_claim(owner.index);
        }
    }

    /// A message arrives at the manager.
    pub(super) fn arrive_at_manager(&mut self, number: u64, message: ToManager) {
        let Some(connection) = self.connections.get(&number) else { return };
        let serves = self.manager.is_running() && self.manager.incarnation == connection.manager;
        if connection.broken || !serves {
            return;
        }
        let is_late = connection.late_ns.is_some();
        if let Some(late_ns) = connection.late_ns.filter(|late_ns| *late_ns > self.now_ns) {
            return self.push(late_ns, Event::ToManager { connection: number, message });
        }
        let (owner, mut dies) = (connection.owner, None);
        match message {
            ToManager::Recalled { token } => {
                self.record(|| format!("{owner:?} recalled {token}"));
                let answer = Answer { token, result: Ok(Default::default()) };
                self.manager.answer(self.now_ns, answer);
            }
            ToManager::Request { ticket, kind, body } => {
                if kind == Kind::Commit && !is_late {
                    dies = self.mounts[owner.index].dies_at_commit.take();
                }
                if let Some((false, power_loss, back_ms)) = dies {
                    self.record(|| format!("mount {} dies before its commit", owner.index));
                    return self.kill_mount(owner.index, power_loss, back_ms);
                }
                self.record(|| format!("mount {} -> {} {ticket}", owner.index, describe(kind, &body)));
                self.tickets.insert(ticket, (number, kind));
                let is_of_locks = matches!(
                    kind,
                    Kind::SetLock | Kind::TestLock | Kind::CancelLock | Kind::HoldLocks | Kind::ReturnLocks
                );
                // A late one may name locks that are lost: then the manager has heard nothing.
                if is_of_locks && !is_late {
                    self.shared.heard_of_locks(owner.index, self.now_ns);
                }
                let client_id = client_id(owner);
                // No node exists: its receipts are made here.
                let body = match kind {
                    Kind::Commit => self.manager.with_receipts(body),
                    _ => body,
                };
                let event = ManagerEvent::Request {
                    connection: number,
                    role: Role::Client,
                    client_id,
                    request_id: ticket,
                    kind,
                    body,
                };
                self.manager.event(self.now_ns, event);
            }
        }
        self.pump_manager();
        if let Some((_, power_loss, back_ms)) = dies {
            self.record(|| format!("mount {} dies at its commit", owner.index));
            self.kill_mount(owner.index, power_loss, back_ms);
        }
    }

    /// Commits what the manager has to commit, records each state, and sends the manager's messages.
    pub(super) fn pump_manager(&mut self) {
        let (now_ns, tickets, connections, mut new) = (self.now_ns, &self.tickets, &self.connections, Vec::new());
        let history = self.history.clone();
        let (calls, answers) = self.manager.pump_each(now_ns, |db, answers| {
            let commits = answers.iter().filter_map(|(ticket, result)| {
                let (connection, _) = tickets.get(ticket).filter(|(_, kind)| *kind == Kind::Commit)?;
                let reply = CommitReply::decode(result.as_ref().ok()?.0.clone()).ok()?;
                Some((reply.version, connections.get(connection)?.owner))
            });
            let commits: BTreeMap<u64, Owner> = commits.collect();
            new.extend(history.borrow_mut().record(now_ns, db, &commits));
        });
        self.new_versions.extend(new);
        // The manager keeps holders and waiting requests in hash maps: their order must not decide a run.
        let (mut calls, mut answers) = (calls, answers);
        calls.sort_by(|a, b| a.peer.cmp(&b.peer));
        answers.sort_by_key(|(ticket, _)| *ticket);
        for call in calls {
            self.send_call(call);
        }
        for (ticket, result) in answers {
            self.send_answer(ticket, result);
        }
    }

    fn send_call(&mut self, call: Call) {
        let Peer::Connection(number) = call.peer else { return };
        let Ok(recall) = RecallLease::decode(&call.body[..]) else { return };
        self.record(|| format!("manager -> connection {number}: recall {} {recall:?}", call.token));
        self.send_to_mount(number, ToMount::Recall { token: call.token, recall });
    }

    fn send_answer(&mut self, ticket: u64, result: Outcome) {
        let result = result.map(|(body, _)| body);
        match self.tickets.remove(&ticket) {
            Some((number, _)) => self.send_to_mount(number, ToMount::Answer { ticket, result }),
            None => self.node_answered(ticket, result),
        }
    }

    fn send_to_mount(&mut self, number: u64, message: ToMount) {
        let (delay_ns, handled_ns) = (self.delay_ns(), self.delay_ns());
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let cut_until_ns = self.mounts[connection.owner.index].cut_until_ns;
        let at_ns = (self.now_ns + delay_ns).max(cut_until_ns + delay_ns).max(connection.last_to_mount_ns + 1);
        connection.last_to_mount_ns = at_ns;
        let handled_ns = if matches!(message, ToMount::Answer { .. }) { handled_ns } else { 0 };
        self.push(at_ns + handled_ns, Event::ToMount { connection: number, message });
    }

    /// A message arrives at a mount.
    pub(super) fn arrive_at_mount(&mut self, number: u64, message: ToMount) {
        let Some(connection) = self.connections.get_mut(&number).filter(|c| !c.broken && c.late_ns.is_none()) else {
            return;
        };
        let owner = connection.owner;
        if let ToMount::Answer { ticket, .. } = &message {
            connection.open.remove(ticket);
        }
        if self.owner(owner.index) != owner {
            return;
        }
        let Some(link) = self.mounts[owner.index].link.clone() else { return };
        match message {
            ToMount::Answer { ticket, result } => {
                if let Err(error) = &result {
                    self.record(|| format!("mount {} <- {ticket}: {:?}", owner.index, error.code()));
                }
                link.complete(ticket, result);
            }
            ToMount::Recall { token, recall } => {
                link.recall(number, token, recall);
            }
        }
    }

    /// A request of a mount has waited long enough.
    pub(super) fn call_timeout(&mut self, owner: Owner, ticket: u64) {
        if self.owner(owner.index) == owner
            && let Some(link) = &self.mounts[owner.index].link
        {
            link.complete(ticket, Err(Error::new(Code::Timeout, "the manager did not answer in time")));
        }
    }

    // --- ends of connections --------------------------------------------------------------------------------------

    /// The connection of a mount breaks. Each side learns of it later. What is on its way to the manager is lost, or arrives late.
    pub(super) fn break_connection(&mut self, index: usize) {
        let is_late = self.rng.percent(40);
        let after_ms = self.rng.between(0, if is_late { LATE_MS } else { 2_000 });
        self.break_line(index, after_ms, is_late);
    }

    /// As [`MountWorld::break_connection`]; the manager learns of it after so long, and then gets what `is_late`. Returns when that is.
    fn break_line(&mut self, index: usize, after_ms: u64, is_late: bool) -> i64 {
        let cut_ns = (self.mounts[index].cut_until_ns - self.now_ns).max(0);
        let mut manager_ns = self.now_ns + after_ms as i64 * MS + cut_ns;
        let Line::Open(number) = self.mounts[index].line else { return manager_ns };
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.broken |= !is_late;
            if is_late {
                manager_ns = manager_ns.max(connection.last_to_manager_ns);
                (connection.late_ns, connection.last_to_manager_ns) = (Some(manager_ns), manager_ns);
            }
        }
        let mount_ms = self.rng.between(0, 400);
        self.push(self.now_ns + mount_ms as i64 * MS, Event::MountNotices { connection: number });
        self.push(manager_ns + 1, Event::ManagerNotices { connection: number, end: End::Broken });
        manager_ns
    }

    /// What a mount says of its locks is stuck in its connection, which breaks. It arrives just after the manager leads anew.
    fn delay_claim(&mut self, index: usize) {
        let (late_ms, before_ms) = (self.rng.between(50, LATE_MS), self.rng.between(1, 50));
        let late_ns = self.break_line(index, late_ms, true);
        self.push(late_ns - before_ms as i64 * MS, Event::Fault(Fault::LeadAnew));
    }

    /// A mount learns that its connection is gone.
    pub(super) fn mount_notices(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.broken |= connection.late_ns.is_none();
        let owner = connection.owner;
        let open: Vec<u64> = std::mem::take(&mut connection.open).into_iter().collect();
        if self.owner(owner.index) != owner {
            return;
        }
        self.record(|| format!("mount {} notices that its connection is gone", owner.index));
        let slot = &mut self.mounts[owner.index];
        if matches!(slot.line, Line::Open(current) if current == number) {
            slot.line = Line::Closed(self.now_ns);
        }
        slot.losses += 1;
        if let Some(link) = slot.link.clone() {
            link.connection_lost(&open);
        }
    }

    /// The manager learns that a connection is gone.
    pub(super) fn manager_notices(&mut self, number: u64, end: End) {
        let Some(connection) = self.connections.get_mut(&number).filter(|c| c.known) else { return };
        connection.broken = true;
        connection.known = false;
        let (owner, manager) = (connection.owner, connection.manager);
        if !self.manager.is_running() || self.manager.incarnation != manager {
            return;
        }
        let others = self
            .connections
            .iter()
            .any(|(other, c)| *other != number && c.owner == owner && c.known && c.manager == manager);
        let client_gone = if others { 0 } else { client_id(owner) };
        self.record(|| format!("the manager notices that connection {number} is gone: {end:?}"));
        let event = ManagerEvent::ConnectionClosed { connection: number, end, client_gone };
        self.manager.event(self.now_ns, event);
        self.pump_manager();
    }

    /// The manager leads anew in the same process: who waits for an answer is told to ask again.
    pub(super) fn lead_anew(&mut self) {
        if !self.manager.is_running() {
            return;
        }
        self.manager.lead_anew().expect("a manager starts on its own disk");
        for ticket in self.tickets.keys().copied().collect::<Vec<_>>() {
            self.send_answer(ticket, Err(Error::new(Code::Unavailable, "this manager does not lead")));
        }
        self.lead();
    }

    /// The manager's process is gone, and all connections with it.
    pub(super) fn manager_gone(&mut self) {
        let numbers: Vec<u64> = self.connections.iter().filter(|(_, c)| !c.broken).map(|(n, _)| *n).collect();
        for number in numbers {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.broken = true;
            }
            let after_ns = self.rng.between(0, 100) as i64 * MS;
            self.push(self.now_ns + after_ns, Event::MountNotices { connection: number });
        }
        self.tickets.clear();
    }

    /// The process of a mount is gone. Its kernel closes the connection, unless the machine is gone too. It resets it if the process has
    /// not read everything.
    pub(super) fn mount_gone(&mut self, owner: Owner, with_machine: bool) {
        let numbers: Vec<u64> =
            self.connections.iter().filter(|(_, c)| c.owner == owner && c.known).map(|(n, _)| *n).collect();
        for number in numbers {
            let mut after_ns = self.delay_ns();
            if with_machine {
                after_ns = self.rng.between(500, 3_000) as i64 * MS;
            }
            // Requests that were sent before still arrive, as long as the machine lives.
            if let Some(connection) = self.connections.get_mut(&number) {
                after_ns = after_ns.max(connection.last_to_manager_ns - self.now_ns + 1);
                connection.broken |= with_machine;
            }
            let end = match number % 2 {
                _ if with_machine => End::Broken,
                0 => End::ByPeer,
                _ => End::Reset,
            };
            self.push(self.now_ns + after_ns, Event::ManagerNotices { connection: number, end });
        }
    }
}

/// Whether a `HoldLocks` may be taken: it names a table that the manager named to its client.
fn names_table(body: &Bytes) -> bool {
    HoldLocks::decode(body.clone()).is_ok_and(|claim| claim.next_table != 0)
}

/// The id that a mount's process greets with.
pub fn client_id(owner: Owner) -> u64 {
    1_000 + owner.index as u64 + owner.incarnation * 1_000_000
}

/// A request in a line.
fn describe(kind: Kind, body: &Bytes) -> String {
    use tessera_wire::meta::*;
    fn shown<M: Message + Default + std::fmt::Debug>(body: &Bytes) -> String {
        M::decode(body.clone()).map_or_else(|_| "?".into(), |message| format!("{message:?}"))
    }
    match kind {
        Kind::Lookup => shown::<Lookup>(body),
        Kind::GetAttr => shown::<GetAttr>(body),
        Kind::MakeNode => shown::<MakeNode>(body),
        Kind::MakeDir => shown::<MakeDir>(body),
        Kind::Unlink => shown::<Unlink>(body),
        Kind::Rename => shown::<Rename>(body),
        Kind::Link => shown::<Link>(body),
        Kind::SetAttr => shown::<SetAttr>(body),
        Kind::OpenRead => shown::<OpenRead>(body),
        Kind::SetLock => shown::<SetLock>(body),
        Kind::OpenWrite => match OpenWrite::decode(body.clone()) {
            Ok(r) => format!("OpenWrite {{ parent: {}, name: {:?}, ino: {} }}", r.parent, r.name, r.ino),
            Err(_) => "?".into(),
        },
        Kind::Commit => match Commit::decode(body.clone()) {
            Ok(r) => format!(
                "Commit {{ session: {}, if: {:?}, mode: {}, size: {}, extents: {:?}, partial: {}, one-shot: {} }}",
                r.session_id,
                r.if_version,
                r.mode,
                r.size_bytes,
                r.extents.iter().map(|e| (e.offset, e.len_bytes, e.chunk_id)).collect::<Vec<_>>(),
                r.partial,
                r.open.is_some()
            ),
            Err(_) => "?".into(),
        },
        kind => kind.name().into(),
    }
}
