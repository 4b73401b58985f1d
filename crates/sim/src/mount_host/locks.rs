//! The client's side of the lock protocol (docs/wire.md, section 7), for locks on whole files: `tessera_client::locks`
//! without threads.
//!
//! Granted locks are remembered, so that they can be asserted to a manager that restarts. A task sends signs of life while
//! any is held. When it is unknown whether a lock was granted, the manager is told what the owner holds before the owner
//! gets another lock.

use super::link::{Link, TIMEOUT_MS};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use tessera_wire::meta::*;
use tessera_wire::{Code, Error};

/// How long the manager may hold a lock request back, ms.
const WAIT_MS: u64 = 400;
/// How often a manager that has just started is asked again, ms.
const GRACE_PAUSE_MS: u64 = 20;
/// How often the keeping task looks, ms.
const LOOK_MS: u64 = 25;
/// Signs of life per lease.
const SIGNS_PER_LEASE: i64 = 4;
/// A request is repeated for this long, ns.
const PATIENCE_NS: i64 = 20_000_000_000;

/// File and owner.
type Key = (u64, u64);

#[derive(Default)]
struct Owned {
    held: Option<FileLock>,
    /// Requests to withdraw: their locks may have been granted.
    doubts: Vec<u64>,
    /// The manager does not know yet what is held.
    unsaid: bool,
    saying: bool,
    /// Number of the last unlock.
    unlocked_seq: u64,
}

/// A message that tells the manager what an owner holds, or (`doubt`) that a request is withdrawn.
#[derive(Clone, Copy)]
struct Message {
    seq: u64,
    held: Option<FileLock>,
    doubt: Option<u64>,
}

enum NextMessage {
    /// The manager knows everything.
    None,
    /// Another task is sending one.
    Busy,
    Send(Message),
}

impl Owned {
    /// A message was sent. `taken`: the manager took it.
    fn said(&mut self, message: &Message, taken: bool) {
        self.saying = false;
        match message.doubt {
            Some(doubt) if taken => self.doubts.retain(|known| *known != doubt),
            None if taken && self.held == message.held && self.doubts.is_empty() => self.unsaid = false,
            _ => {}
        }
    }
}

#[derive(Default)]
struct State {
    table: u64,
    lease_ns: i64,
    /// When the last answered request was sent.
    heard_ns: Option<i64>,
    last_seq: u64,
    owners: BTreeMap<Key, Owned>,
    lost: BTreeSet<Key>,
    /// Requests in progress that wait for a lock.
    waiting: usize,
    /// Requests that name the table now in use.
    in_flight: usize,
    asserting: bool,
    cut_off: bool,
    keeps: bool,
}

/// Locks of one client. Clones share them.
#[derive(Clone)]
pub struct Locks {
    link: Link,
    state: Rc<RefCell<State>>,
}

impl Locks {
    /// No locks.
    pub fn new(link: Link) -> Locks {
        Locks { link, state: Rc::default() }
    }

    /// Sets or releases a lock. `wait`: until it is granted, or until `interrupted` returns true.
    ///
    /// # Errors
    /// The manager cannot be reached or refuses; [`Code::SessionExpired`]: the owner's locks were lost.
    pub async fn set(
        &self,
        lock: &FileLock,
        wait: bool,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<LockOutcome, Error> {
        self.keep();
        let key = (lock.ino, lock.owner);
        if lock.mode() == LockMode::Unlock {
            return self.unlock(lock).await;
        }
        if self.state.borrow().lost.contains(&key) {
            return Err(lost());
        }
        self.say(key).await?;
        self.state.borrow_mut().waiting += 1;
        let done = self.lock(lock, wait, interrupted).await;
        self.state.borrow_mut().waiting -= 1;
        done
    }

    async fn lock(
        &self,
        lock: &FileLock,
        wait: bool,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<LockOutcome, Error> {
        let (mut seq, mut wait_ms, started_ns) = (self.seq(), 0, self.link.env().now_ns());
        loop {
            match self.request(lock, seq, wait, wait_ms).await {
                Ok(LockOutcome::Waiting) => wait_ms = WAIT_MS,
                Ok(LockOutcome::Overtaken) => seq = self.seq(),
                Ok(LockOutcome::Grace) => self.link.env().sleep_ms(GRACE_PAUSE_MS).await,
                Ok(outcome) => return Ok(outcome),
                Err(error) if error.is_retryable() && self.link.env().now_ns() - started_ns < PATIENCE_NS => {
                    self.link.env().sleep_ms(GRACE_PAUSE_MS).await;
                }
                Err(error) => {
                    self.doubt(lock, seq);
                    return Err(error);
                }
            }
            if self.state.borrow().lost.contains(&(lock.ino, lock.owner)) {
                return Err(lost());
            }
            if wait && interrupted() {
                self.doubt(lock, seq);
                return Ok(LockOutcome::Cancelled);
            }
        }
    }

    /// Requests a lock once, and records it if granted.
    async fn request(&self, lock: &FileLock, seq: u64, wait: bool, wait_ms: u64) -> Result<LockOutcome, Error> {
        let table = self.table().await?;
        let sent_ns = self.link.env().now_ns();
        let request = SetLock { seq, table, lock: Some(*lock), wait, wait_ms };
        self.state.borrow_mut().in_flight += 1;
        let answer = self.link.ask_once(request, TIMEOUT_MS + wait_ms).await;
        self.state.borrow_mut().in_flight -= 1;
        match answer {
            Ok(reply) => {
                let mut state = self.state.borrow_mut();
                state.heard(sent_ns);
                if reply.outcome() == LockOutcome::Granted {
                    let owned = state.owners.entry((lock.ino, lock.owner)).or_default();
                    if seq > owned.unlocked_seq {
                        owned.held = Some(*lock);
                    }
                }
                Ok(reply.outcome())
            }
            Err(error) if error.code() == Code::SessionExpired => {
                self.assert_held(table).await?;
                Ok(LockOutcome::Overtaken)
            }
            Err(error) => Err(error),
        }
    }

    async fn unlock(&self, lock: &FileLock) -> Result<LockOutcome, Error> {
        let key = (lock.ino, lock.owner);
        {
            let mut state = self.state.borrow_mut();
            if state.lost.remove(&key) {
                return Ok(LockOutcome::Granted);
            }
            state.last_seq += 1;
            let seq = state.last_seq;
            let Some(owned) = state.owners.get_mut(&key) else { return Ok(LockOutcome::Granted) };
            (owned.held, owned.unlocked_seq, owned.unsaid) = (None, seq, true);
        }
        // The keeping task tells the manager later if it cannot be reached now.
        let _ = self.say(key).await;
        Ok(LockOutcome::Granted)
    }

    /// Releases all locks of an owner on a file.
    pub async fn release(&self, ino: u64, owner: u64) {
        if self.holds(ino, owner) {
            let _ = self.unlock(&FileLock { ino, owner, ..whole() }).await;
        }
    }

    /// Whether an owner holds or lost a lock on a file.
    pub fn holds(&self, ino: u64, owner: u64) -> bool {
        let state = self.state.borrow();
        state.owners.contains_key(&(ino, owner)) || state.lost.contains(&(ino, owner))
    }

    /// The lock that conflicts with `lock`.
    ///
    /// # Errors
    /// The manager cannot be reached or refuses.
    pub async fn test(&self, lock: &FileLock) -> Result<Option<FileLock>, Error> {
        loop {
            let table = self.table().await?;
            match self.link.ask(TestLock { table, lock: Some(*lock) }).await {
                Err(error) if error.code() == Code::SessionExpired => self.assert_held(table).await?,
                answer => return Ok(answer?.lock),
            }
        }
    }

    /// Whether locks on a file were lost. Asks the manager if they may have been.
    pub async fn are_lost(&self, ino: u64) -> bool {
        let started_ns = self.link.env().now_ns();
        loop {
            let table = {
                let state = self.state.borrow();
                if state.lost.iter().any(|(of, _)| *of == ino) {
                    return true;
                }
                let now_ns = self.link.env().now_ns();
                let fresh = state.heard_ns.is_some_and(|heard_ns| now_ns - heard_ns < state.lease_ns);
                if fresh || !state.owners.keys().any(|(of, _)| *of == ino) || now_ns - started_ns > PATIENCE_NS {
                    return false;
                }
                state.table
            };
            if self.sign_of_life(table, 0).await.is_err() {
                self.link.env().sleep_ms(GRACE_PAUSE_MS).await;
            }
        }
    }

    /// The connection is lost: what is held is asserted at once.
    pub fn cut_off(&self) {
        self.state.borrow_mut().cut_off = true;
    }

    /// Number of locks held.
    pub fn count(&self) -> usize {
        self.state.borrow().owners.values().filter(|owned| owned.held.is_some()).count()
    }

    fn seq(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.last_seq += 1;
        state.last_seq
    }

    async fn table(&self) -> Result<u64, Error> {
        while self.state.borrow().asserting {
            self.link.env().sleep_ms(1).await;
        }
        if self.state.borrow().table == 0 {
            self.assert_held(0).await?;
        }
        Ok(self.state.borrow().table)
    }

    fn doubt(&self, lock: &FileLock, seq: u64) {
        let mut state = self.state.borrow_mut();
        let owned = state.owners.entry((lock.ino, lock.owner)).or_default();
        owned.doubts.push(seq);
        owned.unsaid = true;
    }

    /// Tells the manager what the owner holds, if it may not know.
    async fn say(&self, key: Key) -> Result<(), Error> {
        loop {
            let message = match self.next_message(key) {
                NextMessage::None => return Ok(()),
                NextMessage::Busy => {
                    self.link.env().sleep_ms(1).await;
                    continue;
                }
                NextMessage::Send(message) => message,
            };
            let said = self.say_once(key, &message).await;
            if let Some(owned) = self.state.borrow_mut().owners.get_mut(&key) {
                owned.said(&message, said == Ok(true));
            }
            if !said? {
                self.link.env().sleep_ms(GRACE_PAUSE_MS).await;
            }
        }
    }

    /// The owner's next message, for the calling task to send.
    fn next_message(&self, key: Key) -> NextMessage {
        let mut state = self.state.borrow_mut();
        state.last_seq += 1;
        let seq = state.last_seq;
        let Some(owned) = state.owners.get_mut(&key) else { return NextMessage::None };
        if owned.saying {
            return NextMessage::Busy;
        }
        if owned.unsaid {
            owned.saying = true;
            return NextMessage::Send(Message { seq, held: owned.held, doubt: owned.doubts.first().copied() });
        }
        if owned.held.is_none() {
            state.owners.remove(&key);
        }
        NextMessage::None
    }

    /// Returns whether the manager took it.
    async fn say_once(&self, key: Key, message: &Message) -> Result<bool, Error> {
        let Message { seq, held, doubt } = *message;
        let table = self.table().await?;
        if let Some(doubt) = doubt {
            return self.sign_of_life(table, doubt).await.map(|()| true);
        }
        let lock = held.unwrap_or(FileLock { ino: key.0, owner: key.1, ..whole() });
        let sent_ns = self.link.env().now_ns();
        let request = SetLock { seq, table, lock: Some(lock), wait: false, wait_ms: 0 };
        match self.link.ask_once(request, TIMEOUT_MS).await {
            Err(error) if error.code() == Code::SessionExpired => self.assert_held(table).await.map(|()| false),
            Ok(reply) => {
                self.state.borrow_mut().heard(sent_ns);
                Ok(!matches!(reply.outcome(), LockOutcome::Overtaken | LockOutcome::Grace))
            }
            Err(error) => Err(error),
        }
    }

    /// Asserts all held locks, unless another task did so after `table`.
    async fn assert_held(&self, table: u64) -> Result<(), Error> {
        while !self.may_assert(table) {
            if self.state.borrow().table != table {
                return Ok(());
            }
            self.link.env().sleep_ms(1).await;
        }
        let done = self.hold(table).await;
        self.state.borrow_mut().asserting = false;
        done
    }

    /// Begins to assert, unless requests are under way or another task did so.
    fn may_assert(&self, table: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let may = state.table == table && !state.asserting && state.in_flight == 0;
        state.asserting |= may;
        may
    }

    async fn hold(&self, table: u64) -> Result<(), Error> {
        let held = self.state.borrow().owners.values().filter_map(|owned| owned.held).collect();
        let sent_ns = self.link.env().now_ns();
        let machine = format!("machine {}", self.link.owner().index);
        let reply = self.link.ask(HoldLocks { table, held, machine }).await?;
        let mut state = self.state.borrow_mut();
        state.heard_ns = Some(sent_ns);
        (state.table, state.lease_ns) = (reply.table, reply.lease_ms as i64 * 1_000_000);
        if reply.lost {
            let owners = std::mem::take(&mut state.owners);
            state.lost.extend(owners.into_iter().filter(|(_, owned)| owned.held.is_some()).map(|(key, _)| key));
        }
        Ok(())
    }

    async fn sign_of_life(&self, table: u64, seq: u64) -> Result<(), Error> {
        let sent_ns = self.link.env().now_ns();
        match self.link.ask_once(CancelLock { seq, table }, TIMEOUT_MS).await {
            Err(error) if error.code() == Code::SessionExpired => self.assert_held(table).await,
            answer => {
                answer?;
                self.state.borrow_mut().heard(sent_ns);
                Ok(())
            }
        }
    }

    /// Starts the task that keeps the locks, if it does not run.
    fn keep(&self) {
        if std::mem::replace(&mut self.state.borrow_mut().keeps, true) {
            return;
        }
        let (link, weak) = (self.link.clone(), Rc::downgrade(&self.state));
        self.link.env().spawn(self.link.owner(), async move {
            while let Some(locks) = alive(&link, &weak) {
                locks.tend().await;
                drop(locks);
                link.env().sleep_ms(LOOK_MS).await;
            }
        });
    }

    async fn tend(&self) {
        let (table, keys) = {
            let mut state = self.state.borrow_mut();
            let now_ns = self.link.env().now_ns();
            let busy = !state.owners.is_empty() || state.waiting > 0;
            let every_ns = state.lease_ns / SIGNS_PER_LEASE;
            let late = state.heard_ns.is_none_or(|heard_ns| now_ns - heard_ns >= every_ns);
            let says = busy && state.table != 0 && (state.cut_off || late);
            state.cut_off = false;
            let unsaid = |(key, owned): (&Key, &Owned)| (owned.unsaid && !owned.saying).then_some(*key);
            (says.then_some(state.table), state.owners.iter().filter_map(unsaid).collect::<Vec<_>>())
        };
        if let Some(table) = table
            && self.sign_of_life(table, 0).await.is_err()
        {
            return self.cut_off();
        }
        for key in keys {
            let _ = self.say(key).await;
        }
    }
}

fn alive(link: &Link, state: &Weak<RefCell<State>>) -> Option<Locks> {
    Some(Locks { link: link.clone(), state: state.upgrade()? })
}

impl State {
    fn heard(&mut self, sent_ns: i64) {
        self.heard_ns = self.heard_ns.max(Some(sent_ns));
    }
}

/// The release of a whole file.
pub fn whole() -> FileLock {
    let (family, mode) = (LockFamily::Either as i32, LockMode::Unlock as i32);
    FileLock { ino: 0, owner: 0, family, mode, start: 0, end: i64::MAX as u64, pid: 0 }
}

fn lost() -> Error {
    Error::new(Code::SessionExpired, "the locks on this file were lost")
}
