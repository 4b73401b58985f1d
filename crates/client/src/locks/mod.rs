//! File locks that hold across all clients of the cluster: `fcntl` ranges and `flock`.
//!
//! The manager keeps the lock table; this is the client's side of docs/wire.md, section 7. The client remembers the
//! locks it was granted, so that it can assert them to a manager that restarts. While it holds any, a thread sends
//! signs of life. If an answer is lost, the client does not know whether a lock was granted: it sets such a range again
//! to what the caller was told, before the same owner gets another lock. Locks that the manager gave to other clients
//! are *lost*: their owner gets an error and must stop.

mod owner;

use crate::context::Context;
use owner::{Owned, Pending};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_wire::meta::*;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error};

/// How long the manager may hold one lock request before it answers that the client must go on waiting, milliseconds.
const WAIT_MS: u64 = 2_000;
/// How often a waiting thread checks whether it must stop.
const LOOK: Duration = Duration::from_millis(50);
/// How often a manager that has just started is asked again.
const GRACE_PAUSE: Duration = Duration::from_millis(100);
/// How often a request that failed is repeated.
const RETRY: Duration = Duration::from_millis(500);
/// Signs of life per lease.
const SIGNS_PER_LEASE: u32 = 4;

/// See the module.
pub struct Locks {
    context: Weak<Context>,
    state: Mutex<State>,
    /// There is something to send or to check.
    wake: Condvar,
    /// A pending message was sent, or could not be sent.
    sent: Condvar,
    /// Requests hold it shared; asserting the held locks takes it exclusively.
    gate: RwLock<()>,
}

#[derive(Default)]
struct State {
    /// 0: none yet.
    table: u64,
    lease: Duration,
    /// When the last answered request was sent.
    heard: Option<Instant>,
    last_seq: u64,
    owners: HashMap<Key, Owned>,
    /// Owners whose locks were lost.
    lost: BTreeSet<Key>,
    waiting: usize,
    /// The connection was lost: assert the held locks at once.
    cut_off: bool,
    runs: bool,
}

/// File and owner.
type Key = (u64, u64);

impl State {
    fn next_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    fn is_busy(&self) -> bool {
        !self.owners.is_empty() || self.waiting > 0
    }
}

impl Locks {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Locks> {
        Arc::new(Locks {
            context: Arc::downgrade(context),
            state: Mutex::default(),
            wake: Condvar::new(),
            sent: Condvar::new(),
            gate: RwLock::new(()),
        })
    }

    /// Sets, changes or releases a lock. `wait`: waits until it is granted, or until `interrupted` returns true (then
    /// [`LockOutcome::Cancelled`]). Returns [`LockOutcome::Granted`], `Refused`, `Deadlock`, `TooMany` or `Cancelled`.
    ///
    /// # Errors
    /// The manager cannot be reached, or refused; [`Code::SessionExpired`]: the owner's locks on this file were lost.
    pub fn set(
        self: &Arc<Self>,
        lock: &FileLock,
        wait: bool,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<LockOutcome, Error> {
        self.start();
        let key = (lock.ino, lock.owner);
        if lock.mode() == LockMode::Unlock {
            return self.unlock(lock);
        }
        self.check_lost(key)?;
        self.send_pending(key)?;
        self.state.lock().waiting += 1;
        let done = self.lock(lock, wait, interrupted);
        let mut state = self.state.lock();
        assert!(state.waiting > 0, "a lock request ends that did not begin");
        state.waiting -= 1;
        done
    }

    fn lock(&self, lock: &FileLock, wait: bool, interrupted: &mut dyn FnMut() -> bool) -> Result<LockOutcome, Error> {
        let (mut seq, mut wait_ms) = (self.state.lock().next_seq(), 0);
        loop {
            let mut asked = false;
            let answer = self.context()?.retry(|| {
                // An attempt that failed may have been granted.
                if std::mem::replace(&mut asked, true) && interrupted() {
                    return Ok(None);
                }
                self.check_lost((lock.ino, lock.owner))?;
                self.ask_set(lock, seq, wait, wait_ms, interrupted).map(Some)
            });
            match answer {
                Ok(Some(LockOutcome::Waiting)) => wait_ms = WAIT_MS,
                Ok(Some(LockOutcome::Overtaken)) => seq = self.state.lock().next_seq(),
                Ok(Some(LockOutcome::Grace)) if interrupted() => return Ok(LockOutcome::Cancelled),
                Ok(Some(LockOutcome::Grace)) => std::thread::sleep(GRACE_PAUSE),
                Ok(Some(outcome)) => return Ok(outcome),
                unknown => {
                    self.check_lost((lock.ino, lock.owner))?;
                    let mut state = self.state.lock();
                    state.owners.entry((lock.ino, lock.owner)).or_default().set_again(lock, seq);
                    self.wake.notify_all();
                    return unknown.map(|_| LockOutcome::Cancelled);
                }
            }
        }
    }

    /// Requests the lock once, and records it if granted. A table that is no longer the manager's is replaced first.
    /// A request that waits is withdrawn when `interrupted` returns true.
    fn ask_set(
        &self,
        lock: &FileLock,
        seq: u64,
        wait: bool,
        wait_ms: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<LockOutcome, Error> {
        let (context, table) = (self.context()?, self.table()?);
        let shared = self.gate.read();
        if self.state.lock().table != table {
            return Ok(LockOutcome::Overtaken);
        }
        let timeout_ms = context.options.manager_timeout_ms + wait_ms;
        let (sender, receiver) = sync_channel::<Answer>(1);
        let request = SetLock { seq, table, lock: Some(*lock), wait, wait_ms };
        let call = Call::new(Peer::Manager, 0, &request, Vec::new(), timeout_ms);
        let sent = Instant::now();
        context.transport.call(call, Box::new(move |answer| drop(sender.send(answer))));
        let mut withdrawn = !wait;
        let answer = loop {
            match receiver.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) if !withdrawn && interrupted() => {
                    withdrawn = true;
                    let call = Call::new(Peer::Manager, 0, &CancelLock { seq, table }, Vec::new(), timeout_ms);
                    context.transport.call(call, Box::new(drop));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(Code::Unavailable, "the call was dropped"));
                }
                Ok(answer) => break answer.decode::<SetLock>(),
            }
        };
        if matches!(&answer, Err(error) if error.code() == Code::SessionExpired) {
            drop(shared);
            self.assert_held(table)?;
            return Ok(LockOutcome::Overtaken);
        }
        let outcome = answer?.0.outcome();
        let mut state = self.state.lock();
        state.heard = state.heard.max(Some(sent));
        if outcome == LockOutcome::Granted {
            let owned = state.owners.entry((lock.ino, lock.owner)).or_default();
            if seq > owned.unlocked_seq {
                owned.set(lock);
            }
        }
        Ok(outcome)
    }

    /// Releases the locks here at once, and tells the manager, later if it cannot be reached now.
    fn unlock(&self, lock: &FileLock) -> Result<LockOutcome, Error> {
        let key = (lock.ino, lock.owner);
        {
            let mut state = self.state.lock();
            let whole = lock.start == 0 && lock.end >= i64::MAX as u64;
            if whole && state.lost.remove(&key) {
                return Ok(LockOutcome::Granted);
            }
            let seq = state.next_seq();
            let Some(owned) = state.owners.get_mut(&key) else { return Ok(LockOutcome::Granted) };
            owned.set(lock);
            owned.unlocked_seq = seq;
            owned.pending.push(Pending::Set(*lock));
        }
        if let Err(error) = self.send_pending(key) {
            tracing::warn!(ino = lock.ino, %error, "the manager will be told later that a lock was given up");
            self.wake.notify_all();
        }
        Ok(LockOutcome::Granted)
    }

    /// Releases all locks of an owner on a file.
    pub fn release(self: &Arc<Self>, ino: u64, owner: u64) {
        if self.holds(ino, owner) {
            let (family, mode) = (LockFamily::Either as i32, LockMode::Unlock as i32);
            let all = FileLock { ino, owner, family, mode, start: 0, end: i64::MAX as u64, pid: 0 };
            let _ = self.set(&all, false, &mut || false);
        }
    }

    /// Whether an owner holds or lost any lock on a file.
    pub fn holds(&self, ino: u64, owner: u64) -> bool {
        let state = self.state.lock();
        state.owners.contains_key(&(ino, owner)) || state.lost.contains(&(ino, owner))
    }

    /// The first lock that conflicts with `lock`.
    ///
    /// # Errors
    /// The manager cannot be reached, or refused.
    pub fn test(self: &Arc<Self>, lock: &FileLock) -> Result<Option<FileLock>, Error> {
        self.start();
        self.send_pending((lock.ino, lock.owner))?;
        loop {
            let table = self.table()?;
            match self.context()?.ask(&TestLock { table, lock: Some(*lock) }) {
                Err(error) if error.code() == Code::SessionExpired => self.assert_held(table)?,
                answer => return Ok(answer?.lock),
            }
        }
    }

    /// Whether locks on a file were lost. Asks the manager if they may have been.
    pub fn are_lost(&self, ino: u64) -> bool {
        let is_lost = |state: &State| state.lost.iter().any(|(i, _)| *i == ino);
        let table = {
            let state = self.state.lock();
            let fresh = state.heard.is_some_and(|heard| heard.elapsed() < state.lease);
            if is_lost(&state) || fresh || !state.owners.keys().any(|(i, _)| *i == ino) {
                return is_lost(&state);
            }
            state.table
        };
        // Nothing may be done under a lock that another client may hold by now. Without a manager nothing can be
        // committed either.
        let _ = self.context().and_then(|context| context.retry(|| self.sign_of_life(table, 0)));
        is_lost(&self.state.lock())
    }

    fn context(&self) -> Result<Arc<Context>, Error> {
        self.context.upgrade().ok_or_else(|| Error::new(Code::Unavailable, "the client is closed"))
    }

    fn check_lost(&self, key: Key) -> Result<(), Error> {
        let lost = "the locks on this file were lost: the manager did not hear of this client for too long; close the file and open it again";
        match self.state.lock().lost.contains(&key) {
            true => Err(Error::new(Code::SessionExpired, lost)),
            false => Ok(()),
        }
    }

    /// The table; registers one if there is none.
    fn table(&self) -> Result<u64, Error> {
        let table = self.state.lock().table;
        if table == 0 {
            self.assert_held(0)?;
        }
        Ok(self.state.lock().table)
    }

    /// Sends the owner's pending messages to the manager.
    fn send_pending(&self, key: Key) -> Result<(), Error> {
        while let Some(next) = self.next_pending(key) {
            let sent = self.context().and_then(|context| context.retry(|| self.send(next)));
            if let Some(owned) = self.state.lock().owners.get_mut(&key) {
                owned.sending = false;
                if sent.is_ok() && !owned.pending.is_empty() {
                    owned.pending.remove(0);
                }
            }
            self.sent.notify_all();
            sent?;
        }
        Ok(())
    }

    /// The owner's next pending message, for the calling thread to send.
    fn next_pending(&self, key: Key) -> Option<Pending> {
        let mut state = self.state.lock();
        while state.owners.get(&key)?.sending {
            self.sent.wait(&mut state);
        }
        let owned = state.owners.get_mut(&key)?;
        assert!(!owned.sending, "two threads send an owner's messages");
        let next = owned.pending.first().copied();
        owned.sending = next.is_some();
        if owned.is_idle() {
            state.owners.remove(&key);
        }
        next
    }

    fn send(&self, message: Pending) -> Result<(), Error> {
        let table = self.table()?;
        let lock = match message {
            Pending::Withdraw(seq) => return self.sign_of_life(table, seq),
            Pending::Set(lock) => Some(lock),
        };
        let shared = self.gate.read();
        let request = SetLock { seq: self.state.lock().next_seq(), table, lock, wait: false, wait_ms: 0 };
        match self.ask_once(&request) {
            Err(error) if error.code() == Code::SessionExpired => {
                drop(shared);
                self.assert_held(table)?;
                Err(Error::new(Code::Unavailable, error.message))
            }
            Ok(reply) if matches!(reply.outcome(), LockOutcome::Overtaken | LockOutcome::Grace) => {
                Err(Error::new(Code::Unavailable, "the manager is not ready for it"))
            }
            answer => answer.map(drop),
        }
    }

    /// Asserts all held locks, unless another thread did so after `table`.
    fn assert_held(&self, table: u64) -> Result<(), Error> {
        let context = self.context()?;
        let _alone = self.gate.write();
        let held = {
            let state = self.state.lock();
            if state.table != table {
                return Ok(());
            }
            state.owners.values().flat_map(|owned| owned.locks.iter().copied()).collect()
        };
        let sent = Instant::now();
        let reply = context.ask(&HoldLocks { table, held, machine: tessera_net::machine() })?;
        let mut state = self.state.lock();
        state.heard = Some(sent);
        (state.table, state.lease) = (reply.table, Duration::from_millis(reply.lease_ms));
        if reply.lost {
            let owners = std::mem::take(&mut state.owners);
            let holders = owners.into_iter().filter(|(_, owned)| !owned.locks.is_empty()).map(|(key, _)| key);
            let before = state.lost.len();
            state.lost.extend(holders);
            tracing::error!(
                locks = state.lost.len() - before,
                "the manager did not hear of this client for too long and gave its locks to others: what was done under them fails"
            );
        }
        Ok(())
    }

    /// Tells the manager that this client lives, and that request `seq` (0: none) waits no more. Asserts the held locks
    /// to a manager that does not know them.
    fn sign_of_life(&self, table: u64, seq: u64) -> Result<(), Error> {
        match self.ask_once(&CancelLock { seq, table }) {
            // The table is another one, so that request waits no more.
            Err(error) if error.code() == Code::SessionExpired => self.assert_held(table),
            answer => answer.map(drop),
        }
    }

    /// Sends a request once; notes that the manager heard of this client.
    fn ask_once<R: tessera_wire::Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let (context, sent) = (self.context()?, Instant::now());
        let reply = context.ask_once(Peer::Manager, request, context.options.manager_timeout_ms)?;
        let mut state = self.state.lock();
        state.heard = state.heard.max(Some(sent));
        Ok(reply)
    }

    /// Reports that the connection to the manager, and perhaps the manager, is gone.
    pub(crate) fn cut_off(&self) {
        self.state.lock().cut_off = true;
        self.wake.notify_all();
    }

    /// Starts the thread that keeps the locks alive, if it does not run.
    fn start(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !state.runs {
            let weak = Arc::downgrade(self);
            let thread = std::thread::Builder::new().name("locks".into());
            match thread.spawn(move || keep(&weak)) {
                Ok(_) => state.runs = true,
                Err(error) => tracing::warn!(%error, "no thread to keep locks with"),
            }
        }
    }

    /// Waits until something is due, and does it.
    fn tend(&self) {
        let mut state = self.state.lock();
        let every = state.lease / SIGNS_PER_LEASE;
        let due = match state.owners.values().any(Owned::has_unsent) {
            true => RETRY,
            false => state.heard.map_or(every, |heard| every.saturating_sub(heard.elapsed())),
        };
        if !(state.cut_off && state.is_busy()) {
            self.wake.wait_for(&mut state, due.clamp(LOOK, Duration::from_secs(1)));
        }
        let late = state.heard.is_none_or(|heard| heard.elapsed() >= every);
        let cut_off = std::mem::take(&mut state.cut_off);
        let signs = state.is_busy() && state.table != 0 && (cut_off || late);
        let table = state.table;
        let unsent: Vec<Key> = state.owners.iter().filter(|(_, o)| o.has_unsent()).map(|(key, _)| *key).collect();
        drop(state);
        if signs && let Err(error) = self.sign_of_life(table, 0) {
            tracing::debug!(%error, "the manager does not hear that locks are held");
            std::thread::sleep(GRACE_PAUSE);
            self.state.lock().cut_off = true;
            return;
        }
        for key in unsent {
            let _ = self.send_pending(key);
        }
    }
}

fn keep(locks: &Weak<Locks>) {
    while let Some(locks) = locks.upgrade().filter(|locks| locks.context.strong_count() > 0) {
        locks.tend();
    }
}
