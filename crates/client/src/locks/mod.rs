//! File locks that hold across all clients of the cluster: `fcntl` ranges and `flock`.
//!
//! The manager keeps the lock table; this is the client's side of docs/wire.md, section 7. The client remembers the
//! locks it was granted, so that it can assert them to a manager that restarts. While it holds any, a thread sends
//! signs of life. If an answer is lost, the client does not know whether a lock was granted: it sets such a range again
//! to what the caller was told, before the same owner gets another lock. Locks that the manager gave to other clients
//! are *lost*: their owner gets an error and must stop.

mod owner;

use crate::context::Context;
use owner::{Owned, Unsaid};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
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

/// Called with files whose locks were lost.
type HearLost = Box<dyn Fn(&[u64]) + Send + Sync>;

/// See the module.
pub struct Locks {
    context: Weak<Context>,
    state: Mutex<State>,
    /// There is something to send or to check.
    wake: Condvar,
    /// A request was answered.
    said: Condvar,
    /// Requests hold it shared; asserting the held locks takes it exclusively.
    gate: RwLock<()>,
    lost: OnceLock<HearLost>,
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

impl Locks {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Locks> {
        Arc::new(Locks {
            context: Arc::downgrade(context),
            state: Mutex::default(),
            wake: Condvar::new(),
            said: Condvar::new(),
            gate: RwLock::new(()),
            lost: OnceLock::new(),
        })
    }

    /// Registers a function that the client calls with files whose locks were lost; the first call wins. The function
    /// must not send requests to the cluster.
    pub fn on_lost(&self, hear: impl Fn(&[u64]) + Send + Sync + 'static) {
        let _ = self.lost.set(Box::new(hear));
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
        if self.state.lock().lost.contains(&key) {
            return Err(lost());
        }
        self.say_unsaid(key)?;
        self.state.lock().waiting += 1;
        let done = self.lock(lock, wait, interrupted);
        self.state.lock().waiting -= 1;
        done
    }

    fn lock(&self, lock: &FileLock, wait: bool, interrupted: &mut dyn FnMut() -> bool) -> Result<LockOutcome, Error> {
        let (mut seq, mut wait_ms, mut tries) = (self.seq(), 0, Tries::default());
        loop {
            let answer = self.ask_set(lock, seq, wait, wait_ms, interrupted);
            match answer {
                Ok(LockOutcome::Waiting) => (wait_ms, tries) = (WAIT_MS, Tries::default()),
                Ok(LockOutcome::Overtaken) => seq = self.seq(),
                Ok(LockOutcome::Grace) => {
                    if interrupted() {
                        return Ok(LockOutcome::Cancelled);
                    }
                    std::thread::sleep(GRACE_PAUSE);
                }
                Ok(outcome) => return Ok(outcome),
                Err(error) => {
                    if let Err(error) = tries.again(self.context()?.as_ref(), error) {
                        self.doubt(lock, seq);
                        return Err(error);
                    }
                    if interrupted() {
                        self.doubt(lock, seq);
                        return Ok(LockOutcome::Cancelled);
                    }
                }
            }
            if self.state.lock().lost.contains(&(lock.ino, lock.owner)) {
                return Err(lost());
            }
        }
    }

    /// Requests the lock once, and records it if granted. A table that is no longer the manager's is replaced first.
    fn ask_set(
        &self,
        lock: &FileLock,
        seq: u64,
        wait: bool,
        wait_ms: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<LockOutcome, Error> {
        let table = self.table()?;
        let shared = self.gate.read();
        if self.state.lock().table != table {
            return Ok(LockOutcome::Overtaken);
        }
        let request = SetLock { seq, table, lock: Some(*lock), wait, wait_ms };
        let sent = Instant::now();
        let answer = self.call(&request, wait_ms, || interrupted().then_some(CancelLock { seq, table }));
        match answer {
            Ok(reply) => {
                let outcome = reply.outcome();
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
            Err(error) if error.kind() == Code::SessionExpired => {
                drop(shared);
                self.assert_held(table)?;
                Ok(LockOutcome::Overtaken)
            }
            Err(error) => Err(error),
        }
    }

    /// A call that may take `wait_ms` longer; when `cancel` returns a request, sends it to withdraw the call.
    fn call(
        &self,
        request: &SetLock,
        wait_ms: u64,
        mut cancel: impl FnMut() -> Option<CancelLock>,
    ) -> Result<SetLockReply, Error> {
        let context = self.context()?;
        let timeout_ms = context.options.manager_timeout_ms + wait_ms;
        let (sender, receiver) = sync_channel::<Answer>(1);
        let call = Call::new(Peer::Manager, 0, request, Vec::new(), timeout_ms);
        context.transport.call(call, Box::new(move |answer| drop(sender.send(answer))));
        let mut cancelled = false;
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(answer) => return Ok(answer.decode::<SetLock>()?.0),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(Code::Unavailable, "the call was dropped"));
                }
                Err(RecvTimeoutError::Timeout) if !cancelled && request.wait => {
                    if let Some(request) = cancel() {
                        cancelled = true;
                        let call = Call::new(Peer::Manager, 0, &request, Vec::new(), timeout_ms);
                        context.transport.call(call, Box::new(drop));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
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
            state.last_seq += 1;
            let seq = state.last_seq;
            let Some(owned) = state.owners.get_mut(&key) else { return Ok(LockOutcome::Granted) };
            owned.set(lock);
            owned.unlocked_seq = seq;
            owned.unsaid.push(Unsaid::Set(*lock));
        }
        if let Err(error) = self.say_unsaid(key) {
            tracing::warn!(ino = lock.ino, %error, "the manager will be told later that a lock was given up");
            self.wake.notify_all();
        }
        Ok(LockOutcome::Granted)
    }

    /// Releases all locks of an owner on a file.
    pub fn release(self: &Arc<Self>, ino: u64, owner: u64) {
        if self.holds(ino, owner) {
            let all = FileLock { ino, owner, end: i64::MAX as u64, ..whole() };
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
        self.say_unsaid((lock.ino, lock.owner))?;
        loop {
            let table = self.table()?;
            match self.context()?.ask(&TestLock { table, lock: Some(*lock) }) {
                Err(error) if error.kind() == Code::SessionExpired => self.assert_held(table)?,
                answer => return Ok(answer?.lock),
            }
        }
    }

    /// Whether locks on a file were lost. Asks the manager if they may have been.
    pub fn are_lost(&self, ino: u64) -> bool {
        let table = {
            let state = self.state.lock();
            if state.lost.iter().any(|(i, _)| *i == ino) {
                return true;
            }
            let fresh = state.heard.is_some_and(|heard| heard.elapsed() < state.lease);
            if fresh || !state.owners.keys().any(|(i, _)| *i == ino) {
                return false;
            }
            state.table
        };
        // Nothing may be done under a lock that another client may hold by now.
        let mut tries = Tries::default();
        while let Err(error) = self.sign_of_life(table, 0) {
            // Without a manager nothing can be committed either.
            if self.context().and_then(|context| tries.again(&context, error)).is_err() {
                break;
            }
        }
        self.state.lock().lost.iter().any(|(i, _)| *i == ino)
    }

    /// Number of locks held.
    pub fn len(&self) -> usize {
        self.state.lock().owners.values().map(|owned| owned.locks.len()).sum()
    }

    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn context(&self) -> Result<Arc<Context>, Error> {
        self.context.upgrade().ok_or_else(|| Error::new(Code::Unavailable, "the client is closed"))
    }

    fn seq(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_seq += 1;
        state.last_seq
    }

    /// The table; registers one if there is none.
    fn table(&self) -> Result<u64, Error> {
        let table = self.state.lock().table;
        if table == 0 {
            self.assert_held(0)?;
        }
        Ok(self.state.lock().table)
    }

    fn doubt(&self, lock: &FileLock, seq: u64) {
        self.state.lock().owners.entry((lock.ino, lock.owner)).or_default().doubt(lock, seq);
        self.wake.notify_all();
    }

    /// Sends the owner's pending messages to the manager.
    fn say_unsaid(&self, key: Key) -> Result<(), Error> {
        while let Some(next) = self.next_unsaid(key) {
            let said = self.say_for_long(&next);
            let mut state = self.state.lock();
            if let Some(owned) = state.owners.get_mut(&key) {
                owned.saying = false;
                if said.is_ok() && !owned.unsaid.is_empty() {
                    owned.unsaid.remove(0);
                }
            }
            drop(state);
            self.said.notify_all();
            said?;
        }
        Ok(())
    }

    /// The owner's next pending message, for the calling thread to send.
    fn next_unsaid(&self, key: Key) -> Option<Unsaid> {
        let mut state = self.state.lock();
        loop {
            let owned = state.owners.get_mut(&key)?;
            if owned.saying {
                self.said.wait(&mut state);
                continue;
            }
            let next = owned.unsaid.first().cloned();
            owned.saying = next.is_some();
            if owned.is_idle() {
                state.owners.remove(&key);
            }
            return next;
        }
    }

    fn say_for_long(&self, unsaid: &Unsaid) -> Result<(), Error> {
        let mut tries = Tries::default();
        loop {
            match self.say(unsaid) {
                Ok(()) => return Ok(()),
                Err(error) => tries.again(self.context()?.as_ref(), error)?,
            }
        }
    }

    fn say(&self, unsaid: &Unsaid) -> Result<(), Error> {
        let table = self.table()?;
        let lock = match unsaid {
            // The table is another one, so that request waits no more.
            Unsaid::Cancel(seq) => return self.sign_of_life(table, *seq),
            Unsaid::Set(lock) => lock,
        };
        let shared = self.gate.read();
        let (seq, sent) = (self.seq(), Instant::now());
        let request = SetLock { seq, table, lock: Some(*lock), wait: false, wait_ms: 0 };
        match self.call(&request, 0, || None) {
            Err(error) if error.kind() == Code::SessionExpired => {
                drop(shared);
                self.assert_held(table)?;
                Err(Error::new(Code::Unavailable, error.message))
            }
            Ok(reply) if matches!(reply.outcome(), LockOutcome::Overtaken | LockOutcome::Grace) => {
                Err(Error::new(Code::Unavailable, "the manager is not ready for it"))
            }
            answer => {
                answer?;
                let mut state = self.state.lock();
                state.heard = state.heard.max(Some(sent));
                Ok(())
            }
        }
    }

    /// Asserts all held locks, unless another thread did so after `table`.
    fn assert_held(&self, table: u64) -> Result<(), Error> {
        let context = self.context()?;
        let alone = self.gate.write();
        let held = {
            let state = self.state.lock();
            if state.table != table {
                return Ok(());
            }
            state.owners.values().flat_map(|owned| owned.locks.iter().cloned()).collect()
        };
        let sent = Instant::now();
        let reply = context.ask(&HoldLocks { table, held, machine: tessera_net::machine() })?;
        let gone = {
            let mut state = self.state.lock();
            state.heard = Some(sent);
            (state.table, state.lease) = (reply.table, Duration::from_millis(reply.lease_ms));
            match reply.lost {
                true => {
                    let owners = std::mem::take(&mut state.owners);
                    let had = owners.into_iter().filter(|(_, owned)| !owned.locks.is_empty()).map(|(key, _)| key);
                    let had: Vec<Key> = had.collect();
                    state.lost.extend(had.iter().copied());
                    had
                }
                false => Vec::new(),
            }
        };
        drop(alone);
        if !gone.is_empty() {
            tracing::error!(
                locks = gone.len(),
                "the manager did not hear of this client for too long and gave its locks to others: what was done under them fails"
            );
            let inos: Vec<u64> = gone.iter().map(|(ino, _)| *ino).collect();
            if let Some(hear) = self.lost.get() {
                hear(&inos);
            }
        }
        Ok(())
    }

    /// Tells the manager that this client lives, and that request `seq` (0: none) waits no more. Asserts the held locks
    /// to a manager that does not know them.
    fn sign_of_life(&self, table: u64, seq: u64) -> Result<(), Error> {
        let context = self.context()?;
        let sent = Instant::now();
        match context.ask_once(Peer::Manager, &CancelLock { seq, table }, context.options.manager_timeout_ms) {
            Err(error) if error.kind() == Code::SessionExpired => self.assert_held(table),
            answer => {
                answer?;
                let mut state = self.state.lock();
                state.heard = state.heard.max(Some(sent));
                Ok(())
            }
        }
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
        let (table, unsaid) = {
            let mut state = self.state.lock();
            let busy = !state.owners.is_empty() || state.waiting > 0;
            let every = state.lease / SIGNS_PER_LEASE;
            let unsaid = |state: &State| state.owners.values().any(Owned::has_news);
            let due = if unsaid(&state) {
                RETRY
            } else {
                state.heard.map_or(every, |heard| every.saturating_sub(heard.elapsed())).max(LOOK)
            };
            if !(state.cut_off && busy) {
                self.wake.wait_for(&mut state, due.clamp(LOOK, Duration::from_secs(1)));
            }
            let busy = !state.owners.is_empty() || state.waiting > 0;
            let late = state.heard.is_none_or(|heard| heard.elapsed() >= every);
            let says = busy && state.table != 0 && (state.cut_off || late);
            state.cut_off = false;
            let keys: Vec<Key> = state.owners.iter().filter(|(_, o)| o.has_news()).map(|(k, _)| *k).collect();
            (says.then_some(state.table), keys)
        };
        if let Some(Err(error)) = table.map(|table| self.sign_of_life(table, 0)) {
            tracing::debug!(%error, "the manager does not hear that locks are held");
            std::thread::sleep(GRACE_PAUSE);
            self.state.lock().cut_off = true;
            return;
        }
        for key in unsaid {
            let _ = self.say_unsaid(key);
        }
    }
}

fn keep(locks: &Weak<Locks>) {
    while let Some(locks) = locks.upgrade().filter(|locks| locks.context.strong_count() > 0) {
        locks.tend();
    }
}

fn whole() -> FileLock {
    let (family, mode) = (LockFamily::Either as i32, LockMode::Unlock as i32);
    FileLock { ino: 0, owner: 0, family, mode, start: 0, end: i64::MAX as u64, pid: 0 }
}

fn lost() -> Error {
    Error::new(
        Code::SessionExpired,
        "the locks on this file were lost: the manager did not hear of this client for too long; close the file and open it again",
    )
}

/// How long and how often an operation was tried.
#[derive(Default)]
struct Tries {
    since: Option<Instant>,
    count: u32,
}

impl Tries {
    /// Pauses before the next try; returns the error if trying again is useless.
    fn again(&mut self, context: &Context, error: Error) -> Result<(), Error> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !error.is_retryable() || since.elapsed() >= Duration::from_millis(context.options.manager_deadline_ms) {
            return Err(error);
        }
        self.count += 1;
        std::thread::sleep(Duration::from_nanos(context.options.backoff_ns(self.count) as u64));
        Ok(())
    }
}
