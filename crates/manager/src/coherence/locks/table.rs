//! The lock table: the byte ranges that owners hold of each file, and the queue of requests that wait.
//!
//! Conflicting locks of different owners never cover the same byte. A request that must wait joins the file's queue, which
//! is served in order. A request that may wait queues behind conflicting requests even if its range is free, or a stream of
//! readers would starve a writer; one that may not wait takes a free range at once. One exception: if an earlier request
//! waits for a lock of this owner, directly or via other owners, this owner goes first; behind that request, neither would
//! ever be served. A request that would close a cycle, in which each owner waits for a lock that the next one *holds*, is
//! refused (POSIX, `fcntl`: EDEADLK). The table assumes that an owner waits for one thing at a time. If threads of one
//! process wait for several, a request may be refused although another thread could have gone on, as on Linux.
//!
//! A file's locks may be *delegated* to one client: it holds one lock on all bytes that excludes all others, as the owner [`DELEGATE`], and
//! decides about locks there by itself. Requests of other clients queue behind it, also those that may not wait. They go on in their order
//! once the client has returned the delegation for the locks that its owners hold.

use super::index::Index;
use super::ranges::{Bytes, Held, Ranges};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tessera_wire::locks::DELEGATE;
use tessera_wire::meta::{LockFence, LockMode};

/// The owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub client_id: u64,
    /// Chosen by the client.
    pub number: u64,
}

/// A waiting request, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    pub client_id: u64,
    /// Number of the request.
    pub seq: u64,
}

/// All bytes of a file.
const ALL: Bytes = Bytes { start: 0, end: u64::MAX };

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockResult {
    /// The range is locked or unlocked as asked.
    Granted,
    /// Other owners are in the way.
    Refused,
    /// Queued.
    Waiting,
    /// The owners in the way wait for this owner.
    Deadlock,
}

/// A lock that an owner asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    pub ino: u64,
    pub owner: Owner,
    /// Which bytes.
    pub bytes: Bytes,
    pub held: Held,
}

impl Want {
    /// The same range, shared.
    pub(super) fn shared(self) -> Want {
        Want { held: Held { mode: LockMode::Read, ..self.held }, ..self }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) want: Want,
    /// It waits for the return of a delegation only.
    may_not_wait: bool,
}

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) held: BTreeMap<Owner, Ranges>,
    /// All that is in `held`.
    pub(super) index: Index,
    pub(super) queue: Vec<Waiter>,
    /// One for each client that holds locks here. A client that releases its last one and locks again gets another.
    fences: BTreeMap<u64, LockFence>,
}

/// Locks and queues of all files. See the module.
#[derive(Debug, Default)]
pub struct LockTable {
    pub(super) files: HashMap<u64, File>,
    /// Files at which an owner waits, one entry per request.
    pub(super) waits: HashMap<Owner, Vec<u64>>,
    /// The file at which a request waits.
    tickets: HashMap<Ticket, u64>,
    /// Number of locks of each client.
    counts: HashMap<u64, usize>,
    /// Number of waiting requests of each client.
    waiting: HashMap<u64, usize>,
    /// Number of locks of each owner.
    owned: HashMap<Owner, usize>,
    /// Requests granted after a wait and not yet reported.
    granted: Vec<(Ticket, LockFence)>,
    /// Requests that ended without a lock after a wait, and are not yet reported.
    refused: Vec<(Ticket, Want, LockResult)>,
    number: u64,
    last_fence: u64,
}

impl File {
    fn is_held_by(&self, client_id: u64) -> bool {
        let owners = Owner { client_id, number: 0 }..=Owner { client_id, number: u64::MAX };
        self.held.range(owners).next().is_some()
    }

    /// The locks that are in the way, in no order.
    pub(super) fn holders(&self, want: &Want) -> impl Iterator<Item = (Owner, Bytes, &Held)> {
        let owner = want.owner;
        self.index.excluding(want.bytes, &want.held).filter(move |(other, _, _)| *other != owner)
    }

    fn is_free(&self, want: &Want) -> bool {
        self.holders(want).next().is_none()
    }

    /// The client that the file's locks are delegated to. Nobody else holds anything then.
    fn delegate(&self) -> Option<u64> {
        let (owner, _) = self.held.first_key_value()?;
        (owner.number == DELEGATE).then_some(owner.client_id)
    }

    /// The owners of a client that hold locks.
    fn owners_of(&self, client_id: u64) -> Vec<Owner> {
        let owners = Owner { client_id, number: 0 }..=Owner { client_id, number: u64::MAX };
        self.held.range(owners).map(|(owner, _)| *owner).collect()
    }

    /// Locks or unlocks bytes of an owner. Returns how many ranges it held before, and how many it holds now.
    fn set(&mut self, owner: Owner, bytes: Bytes, held: Option<Held>) -> (usize, usize) {
        let ranges = self.held.entry(owner).or_default();
        let before = ranges.len();
        // A lock may be joined to one that ends or begins beside it.
        let touched = Bytes { start: bytes.start.saturating_sub(1), end: bytes.end.saturating_add(1) };
        ranges.over(touched).for_each(|(was, held)| self.index.set(owner, was, held, false));
        ranges.set(bytes, held);
        ranges.over(touched).for_each(|(is, held)| self.index.set(owner, is, held, true));
        let after = ranges.len();
        if ranges.is_empty() {
            self.held.remove(&owner);
        }
        (before, after)
    }

    /// Removes all locks and requests of clients. Returns whether there were any.
    fn end(&mut self, clients: &BTreeSet<u64>) -> bool {
        let before = self.held.len() + self.queue.len();
        let ended: Vec<u64> = self.fences.keys().copied().filter(|client_id| clients.contains(client_id)).collect();
        for client_id in ended {
            for owner in self.owners_of(client_id) {
                self.set(owner, ALL, None);
            }
            self.fences.remove(&client_id);
        }
        self.queue.retain(|w| !clients.contains(&w.ticket.client_id));
        self.held.len() + self.queue.len() != before
    }

    /// Owners of the requests among the first `before` that `want` may not overtake.
    fn earlier(&self, want: &Want, before: usize) -> impl Iterator<Item = Owner> {
        let want = *want;
        self.queue[..before].iter().filter(move |w| w.want.is_in_the_way(&want)).map(|w| w.want.owner)
    }
}

impl LockTable {
    /// An empty table, with a number that no other table of this cluster has.
    pub fn new(number: u64) -> LockTable {
        LockTable { number, ..LockTable::default() }
    }

    /// The fence of a client's locks on a file, if it holds any.
    pub fn fence(&self, ino: u64, client_id: u64) -> Option<LockFence> {
        self.files.get(&ino)?.fences.get(&client_id).copied()
    }

    /// The client's locks on the file were granted by an earlier table, with this fence.
    pub fn keep_fence(&mut self, ino: u64, client_id: u64, fence: LockFence) {
        if let Some(kept) = self.files.get_mut(&ino).and_then(|file| file.fences.get_mut(&client_id)) {
            *kept = fence;
        }
    }

    /// The client that a file's locks are delegated to.
    pub fn delegate(&self, ino: u64) -> Option<u64> {
        self.files.get(&ino)?.delegate()
    }

    /// Number of files whose locks are delegated to a client.
    pub fn delegations_of(&self, client_id: u64) -> usize {
        self.owned.get(&Owner { client_id, number: DELEGATE }).copied().unwrap_or(0)
    }

    /// Number of locks on a file that a client alone has locked, and where nobody waits.
    pub fn held_alone(&self, ino: u64, client_id: u64) -> Option<usize> {
        let file = self.files.get(&ino)?;
        let is_alone = file.queue.is_empty() && file.held.keys().all(|owner| owner.client_id == client_id);
        is_alone.then(|| file.held.values().map(Ranges::len).sum())
    }

    /// Replaces all that a client holds on a file, which takes no time in between, and gives the owners that held something. False: others
    /// hold conflicting locks, and the client holds nothing now. It keeps its fence. Those that waited for a delegation go on.
    pub fn replace(&mut self, ino: u64, client_id: u64, wants: &[Want]) -> (bool, Vec<Owner>) {
        let was_delegated = self.delegate(ino) == Some(client_id);
        let fence = self.fence(ino, client_id);
        let before = self.files.get(&ino).map_or_else(Vec::new, |file| file.owners_of(client_id));
        before.iter().for_each(|owner| self.change(ino, *owner, ALL, None));
        let is_free = |table: &LockTable, want: &Want| table.files.get(&ino).is_none_or(|file| file.is_free(want));
        let mut fits = true;
        for want in wants {
            fits = fits && is_free(self, want);
            if fits {
                self.change(ino, want.owner, want.bytes, Some(want.held));
            }
        }
        if !fits {
            wants.iter().for_each(|want| self.change(ino, want.owner, ALL, None));
        }
        if let Some(fence) = fence {
            self.keep_fence(ino, client_id, fence);
        }
        self.settle(ino);
        if was_delegated {
            self.refuse_deadlocks(ino);
        }
        (fits, before)
    }

    /// The owners that hold a file's locks have just become known: refuses requests that wait there for owners that wait for them.
    fn refuse_deadlocks(&mut self, ino: u64) {
        let waiting = |table: &LockTable| -> Vec<Waiter> {
            table.files.get(&ino).map_or_else(Vec::new, |file| file.queue.clone())
        };
        for waiter in waiting(self) {
            if self.tickets.contains_key(&waiter.ticket) && self.waits_for_itself(&waiter.want) {
                self.cancel(waiter.ticket);
                self.refused.push((waiter.ticket, waiter.want, LockResult::Deadlock));
            }
        }
        for waiter in waiting(self) {
            self.circle(waiter.want.owner).into_iter().for_each(|ino| self.settle(ino));
        }
    }

    /// Whether the holders in the way of a request wait for its owner. Only `fcntl` locks are checked for deadlock.
    fn waits_for_itself(&self, want: &Want) -> bool {
        let looks = want.held.families & 1 != 0 && self.holds_somewhere(want.owner);
        let holders = || self.files.get(&want.ino).into_iter().flat_map(|file| file.holders(want));
        looks && self.wait_for(holders().map(|(owner, _, _)| owner), want.owner, false)
    }

    /// Queues a request that may not wait, until the delegation is returned.
    pub fn hold_back(&mut self, want: Want, ticket: Ticket) {
        self.queue(Waiter { ticket, want, may_not_wait: true });
    }

    /// Locks the range. If it must wait, queues with a `ticket`, and refuses without one.
    pub fn lock(&mut self, want: Want, ticket: Option<Ticket>) -> LockResult {
        let file = self.files.entry(want.ino).or_default();
        let is_free = file.is_free(&want);
        let Some(ticket) = ticket else {
            if is_free {
                self.take(want);
                return LockResult::Granted;
            }
            return LockResult::Refused;
        };
        let file = &self.files[&want.ino];
        let earlier: BTreeSet<Owner> = file.earlier(&want, file.queue.len()).collect();
        let is_waited_for = || self.holds_somewhere(want.owner) || self.waits.contains_key(&want.owner);
        if is_free && (earlier.is_empty() || is_waited_for() && self.wait_for(earlier, want.owner, true)) {
            self.take(want);
            return LockResult::Granted;
        }
        if self.waits_for_itself(&want) {
            return LockResult::Deadlock;
        }
        self.queue(Waiter { ticket, want, may_not_wait: false });
        LockResult::Waiting
    }

    fn queue(&mut self, waiter: Waiter) {
        let Waiter { ticket, want, .. } = waiter;
        self.files.entry(want.ino).or_default().queue.push(waiter);
        self.waits.entry(want.owner).or_default().push(want.ino);
        if self.tickets.insert(ticket, want.ino).is_none() {
            *self.waiting.entry(ticket.client_id).or_default() += 1;
        }
        // A request that only queues behind another may now wait for itself.
        self.circle(want.owner).into_iter().for_each(|ino| self.settle(ino));
    }

    /// Unlocks a range of an owner.
    pub fn unlock(&mut self, ino: u64, owner: Owner, bytes: Bytes) {
        self.change(ino, owner, bytes, None);
        self.settle(ino);
    }

    fn take(&mut self, want: Want) {
        self.change(want.ino, want.owner, want.bytes, Some(want.held));
        // The lock may have become shared, so waiting readers may be next.
        self.settle(want.ino);
    }

    fn change(&mut self, ino: u64, owner: Owner, bytes: Bytes, held: Option<Held>) {
        let file = self.files.entry(ino).or_default();
        if let Some(held) = held {
            let is_free = file.is_free(&Want { ino, owner, bytes, held });
            assert!(is_free, "inode {ino}: {owner:?} is granted {bytes:?} that another owner has locked");
        }
        let (before, after) = file.set(owner, bytes, held);
        let count = self.counts.entry(owner.client_id).or_default();
        assert!(*count >= before, "client {}: {before} ranges of {count} counted locks", owner.client_id);
        *count = *count + after - before;
        if *count == 0 {
            self.counts.remove(&owner.client_id);
        }
        let owned = self.owned.entry(owner).or_default();
        *owned = *owned + after - before;
        if *owned == 0 {
            self.owned.remove(&owner);
        }
        match file.is_held_by(owner.client_id) {
            false => _ = file.fences.remove(&owner.client_id),
            true => {
                file.fences.entry(owner.client_id).or_insert_with(|| {
                    self.last_fence += 1;
                    LockFence { table: self.number, number: self.last_fence }
                });
            }
        }
    }

    /// Grants the requests of a file's queue whose turn has come, and refuses those that waited for the return of a delegation only.
    fn settle(&mut self, ino: u64) {
        loop {
            let file = self.files.get(&ino).filter(|file| file.delegate().is_none());
            let Some(at) = file.and_then(|file| file.queue.iter().position(|waiter| waiter.may_not_wait)) else {
                self.serve(ino, usize::MAX);
                break;
            };
            // In the order in which they came: each gets what it would have got then.
            if self.serve(ino, at) > 0 {
                continue;
            }
            let Some(file) = self.files.get_mut(&ino) else { break };
            let Waiter { ticket, want, .. } = file.queue.remove(at);
            let is_free = file.is_free(&want);
            self.leave(ticket, want.owner, ino);
            match is_free {
                true => self.grant(ino, ticket, &want),
                false => self.refused.push((ticket, want, LockResult::Refused)),
            }
        }
        if self.files.get(&ino).is_some_and(|file| file.held.is_empty() && file.queue.is_empty()) {
            self.files.remove(&ino);
        }
    }

    /// Grants what may be granted of the first `most` requests that wait. Returns how many.
    fn serve(&mut self, ino: u64, most: usize) -> usize {
        let mut served = 0;
        while let Some(at) = self.next_served(ino, most - served) {
            let Some(file) = self.files.get_mut(&ino) else { break };
            let Waiter { ticket, want, .. } = file.queue.remove(at);
            self.leave(ticket, want.owner, ino);
            self.grant(ino, ticket, &want);
            served += 1;
        }
        served
    }

    fn grant(&mut self, ino: u64, ticket: Ticket, want: &Want) {
        self.change(ino, want.owner, want.bytes, Some(want.held));
        self.granted.extend(self.fence(ino, ticket.client_id).map(|fence| (ticket, fence)));
    }

    fn next_served(&self, ino: u64, most: usize) -> Option<usize> {
        let file = self.files.get(&ino)?;
        let may_be_in_circles = LazyCell::new(|| self.may_be_in_circles());
        (0..file.queue.len().min(most)).find(|&at| {
            let Waiter { want, .. } = &file.queue[at];
            if !file.is_free(want) {
                return false;
            }
            let mut earlier = file.earlier(want, at).peekable();
            earlier.peek().is_none()
                || may_be_in_circles.contains(&want.owner) && self.wait_for(earlier, want.owner, true)
        })
    }

    fn leave(&mut self, ticket: Ticket, owner: Owner, ino: u64) {
        if self.tickets.remove(&ticket).is_some() {
            let waiting = self.waiting.get_mut(&ticket.client_id).expect("each request that waits is counted");
            *waiting -= 1;
            if *waiting == 0 {
                self.waiting.remove(&ticket.client_id);
            }
        }
        if let Some(inos) = self.waits.get_mut(&owner) {
            if let Some(at) = inos.iter().position(|&i| i == ino) {
                inos.swap_remove(at);
            }
            if inos.is_empty() {
                self.waits.remove(&owner);
            }
        }
    }

    /// Whether a request waits.
    pub fn is_waiting(&self, ticket: Ticket) -> bool {
        self.tickets.contains_key(&ticket)
    }

    /// Removes a request from its queue; returns what it asked for, if it was queued.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Want> {
        let ino = *self.tickets.get(&ticket)?;
        let file = self.files.get_mut(&ino)?;
        let at = file.queue.iter().position(|w| w.ticket == ticket)?;
        let want = file.queue.remove(at).want;
        self.leave(ticket, want.owner, ino);
        self.settle(ino);
        Some(want)
    }

    /// Removes all locks and waiting requests of clients, in as many steps as there are locks of all.
    pub fn end(&mut self, clients: &BTreeSet<u64>) {
        if clients.is_empty() {
            return;
        }
        let mut touched = Vec::new();
        for (&ino, file) in &mut self.files {
            if file.end(clients) {
                touched.push(ino);
            }
        }
        self.waits.retain(|owner, _| !clients.contains(&owner.client_id));
        self.tickets.retain(|ticket, _| !clients.contains(&ticket.client_id));
        self.waiting.retain(|client_id, _| !clients.contains(client_id));
        self.counts.retain(|client_id, _| !clients.contains(client_id));
        self.owned.retain(|owner, _| !clients.contains(&owner.client_id));
        touched.into_iter().for_each(|ino| self.settle(ino));
    }

    /// The first lock that is in the way.
    pub fn in_the_way(&self, want: &Want) -> Option<(Owner, Bytes, Held)> {
        let found = self.files.get(&want.ino)?.holders(want).min_by_key(|(owner, bytes, _)| (bytes.start, *owner));
        found.map(|(owner, bytes, held)| (owner, bytes, *held))
    }

    /// Whether an owner holds exactly this lock on the whole range.
    pub fn holds(&self, want: &Want) -> bool {
        let ranges = self.files.get(&want.ino).and_then(|file| file.held.get(&want.owner));
        ranges.is_some_and(|ranges| ranges.covers(want.bytes, &want.held))
    }

    /// Whether an owner holds a lock on any of these bytes.
    pub fn holds_some(&self, ino: u64, owner: Owner, bytes: Bytes) -> bool {
        let ranges = self.files.get(&ino).and_then(|file| file.held.get(&owner));
        ranges.is_some_and(|ranges| ranges.over(bytes).next().is_some())
    }

    /// How many more ranges an owner holds once these bytes are unlocked; below 0: fewer.
    pub fn pieces_beside(&self, ino: u64, owner: Owner, bytes: Bytes) -> isize {
        let Some(ranges) = self.files.get(&ino).and_then(|file| file.held.get(&owner)) else { return 0 };
        let left = |held: &Bytes| isize::from(held.start < bytes.start) + isize::from(bytes.end < held.end);
        ranges.over(bytes).map(|(held, _)| left(&held) - 1).sum()
    }

    /// Whether an owner holds any lock on a file.
    pub fn holds_any(&self, ino: u64, owner: Owner) -> bool {
        self.files.get(&ino).is_some_and(|file| file.held.contains_key(&owner))
    }

    /// Whether an owner holds any lock.
    pub(super) fn holds_somewhere(&self, owner: Owner) -> bool {
        self.owned.contains_key(&owner)
    }

    /// Whether an owner waits for any lock on a file.
    pub fn is_queued(&self, ino: u64, owner: Owner) -> bool {
        self.waits.get(&owner).is_some_and(|inos| inos.contains(&ino))
    }

    /// Requests granted after a wait since the last call, each with the fence of its client's locks on the file.
    pub fn take_granted(&mut self) -> Vec<(Ticket, LockFence)> {
        std::mem::take(&mut self.granted)
    }

    /// Requests that ended without a lock after a wait, since the last call.
    pub fn take_refused(&mut self) -> Vec<(Ticket, Want, LockResult)> {
        std::mem::take(&mut self.refused)
    }

    /// Number of locks that a client holds.
    pub fn held_by(&self, client_id: u64) -> usize {
        self.counts.get(&client_id).copied().unwrap_or(0)
    }

    /// Number of locks held.
    pub fn len(&self) -> usize {
        self.counts.values().sum()
    }

    /// Whether no lock is held.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Number of waiting requests of a client.
    pub fn waiting_of(&self, client_id: u64) -> usize {
        self.waiting.get(&client_id).copied().unwrap_or(0)
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.tickets.len()
    }
}
