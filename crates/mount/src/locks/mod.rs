//! File locks that hold across all clients of the cluster: `fcntl` ranges and `flock`.
//!
//! The manager keeps the lock table; this is the client's side of docs/wire.md, section 7. The client remembers the
//! locks it was granted, so that it can assert them to a manager that restarts. Once it has asked for one, a task
//! ([`work`]) sends signs of life. If an answer is lost, the client does not know whether a lock was granted: it sets such a range
//! again to what the caller was told, before the same owner gets another lock. Locks that the manager gave to other
//! clients are *lost*: their owner gets an error and must stop. Commits name the *fence* of the locks on their file, so that
//! the manager refuses a commit that arrives after the locks were lost. Of a file that no other client locks it decides by itself
//! ([`delegated`]).

mod asked;
mod delegated;
mod owner;
mod sending;

use crate::backend::Backend;
use crate::mount::Mount;
use crate::race::race;
use asked::Begun;
use delegated::Delegations;
pub use delegated::{REQUEST_AFTER, return_delegations};
pub(crate) use owner::HeldBefore;
use owner::{Owned, Pending};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Request};
use tokio::sync::{Mutex as AsyncMutex, Notify, RwLock};

/// How long the manager may hold one lock request before it answers that the client must go on waiting, milliseconds.
const WAIT_MS: u64 = 2_000;
/// How often a waiting request checks whether it must stop, while no more than [`LOOKERS`] wait.
const LOOK: Duration = Duration::from_millis(50);
/// Requests that may check so often. Where more wait, each checks less often, so that a thousand checks a second take a twentieth of a CPU.
const LOOKERS: usize = 50;
/// The least often that a waiting request checks.
const LOOK_RARELY: Duration = Duration::from_millis(WAIT_MS / 4);
/// How long one that gives locks up waits until the manager has received that, which a mount that is cut off need not see.
pub(crate) const TELLING: Duration = Duration::from_secs(2);
/// How long a request that must stop waits for the answer, which a mount that is cut off does not get.
const STOPPING: Duration = Duration::from_secs(1);
/// How often a request is repeated that was not answered, or that a manager did not carry out because it has just
/// started.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the task tries to send what the manager has not received.
const RETRY: Duration = Duration::from_millis(500);
/// Signs of life per lease.
const SIGNS_PER_LEASE: i64 = 4;

/// See the module.
pub(crate) struct Locks<B> {
    backend: Arc<B>,
    state: Mutex<State>,
    /// There is something to send or to check.
    wake: Notify,
    /// A pending message was sent, or could not be sent.
    sent: Notify,
    /// There may be a delegation to return.
    returns: Notify,
    /// Held by the task that returns delegations.
    returning: AsyncMutex<()>,
    /// Requests hold it shared; asserting the held locks takes it exclusively.
    gate: RwLock<()>,
}

#[derive(Default)]
struct State {
    /// 0: none yet.
    table: u64,
    lease_ns: i64,
    /// When the last answered request was sent.
    heard_ns: Option<i64>,
    last_seq: u64,
    owners: BTreeMap<Key, Owned>,
    /// The manager's fence for the locks on each file.
    fences: BTreeMap<u64, LockFence>,
    /// Owners whose locks were lost.
    lost: BTreeSet<Key>,
    /// How often locks were lost. A message from before a loss must not be sent after it: it would be about other locks.
    losses: u64,
    waiting: usize,
    /// The connection was lost: assert the held locks at once.
    cut_off: bool,
    /// When it was lost, unless a request was answered that was sent since.
    cut_off_ns: Option<i64>,
    delegations: Delegations,
}

/// Whether a waiting request must stop.
pub type Interrupted<'a> = &'a mut dyn FnMut() -> bool;

/// File and owner.
type Key = (u64, u64);

impl State {
    fn next_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// The manager gave all locks of this client to others, or will. The client begins again without a table.
    fn lose_all(&mut self) {
        let owners = std::mem::take(&mut self.owners);
        self.fences.clear();
        self.delegations.clear();
        self.table = 0;
        let before = self.lost.len();
        self.lost.extend(owners.into_iter().filter(|(_, owned)| owned.holds_any()).map(|(key, _)| key));
        self.losses += 1;
        let locks = self.lost.len() - before;
        if locks > 0 {
            tracing::error!(
                locks,
                "the manager did not hear of this client for too long and gave its locks to others: what was done under them fails"
            );
        }
    }

    /// The manager does not let an owner have again what it held: another request of the owner gave it up, whose answer was lost.
    fn lose(&mut self, lock: &FileLock) {
        let key = (lock.ino, lock.owner);
        if let Some(owned) = self.owners.get_mut(&key) {
            let free = FileLock { mode: LockMode::Unlock as i32, ..*lock };
            owned.set(&free);
            owned.pending.push(Pending::Set(free));
            self.lost.insert(key);
            tracing::error!(
                ino = lock.ino,
                "another client has a lock that a program here held: what was done under it fails"
            );
        }
    }

    fn is_locked(&self, ino: u64) -> bool {
        self.owners.range((ino, 0)..=(ino, u64::MAX)).any(|(_, owned)| owned.holds_any())
    }

    /// The manager granted a lock on the file. An answer may arrive after a later one.
    fn granted(&mut self, ino: u64, fence: Option<LockFence>) {
        let Some(fence) = fence else { return };
        let kept = self.fences.entry(ino).or_insert(fence);
        if (fence.table, fence.number) > (kept.table, kept.number) {
            *kept = fence;
        }
    }

    /// How often a waiting request checks whether it must stop.
    fn look_every(&self) -> Duration {
        LOOK.mul_f64((self.waiting as f64 / LOOKERS as f64).max(1.0)).min(LOOK_RARELY)
    }

    fn are_lost(&self, ino: u64) -> bool {
        self.lost.iter().any(|(of, _)| *of == ino)
    }

    /// The manager answered a request that was sent then.
    fn heard(&mut self, sent_ns: i64) {
        self.heard_ns = self.heard_ns.max(Some(sent_ns));
        self.cut_off_ns = self.cut_off_ns.filter(|cut_off_ns| sent_ns < *cut_off_ns);
    }

    /// Whether no lock of this client is lost.
    fn is_fresh(&self, now_ns: i64) -> bool {
        self.cut_off_ns.is_none() && self.heard_ns.is_some_and(|heard_ns| now_ns - heard_ns < self.lease_ns)
    }

    /// Forgets the fence of a file on which this client holds nothing.
    fn forget_fence(&mut self, ino: u64) {
        if !self.is_locked(ino) && !self.delegations.is_held(ino) {
            self.fences.remove(&ino);
        }
    }

    /// The table to send a sign of life for, the owners whose messages to send, and after how long to look again,
    /// unless woken.
    fn due(&mut self, now_ns: i64) -> (Option<u64>, Vec<Key>, Duration) {
        let every_ns = self.lease_ns / SIGNS_PER_LEASE;
        let wait_ns = self.heard_ns.map_or(0, |heard_ns| every_ns - (now_ns - heard_ns));
        let cut_off = std::mem::take(&mut self.cut_off);
        // Also without locks: a manager that begins to lead waits for each client on record, until that says what it holds.
        let sign = (self.table != 0 && (cut_off || wait_ns <= 0)).then_some(self.table);
        let unsent: Vec<Key> = self.owners.iter().filter(|(_, o)| o.has_unsent()).map(|(key, _)| *key).collect();
        let until_sign = Duration::from_nanos(u64::try_from(wait_ns).unwrap_or(0)).clamp(LOOK, Duration::from_secs(1));
        let next = if self.table != 0 && unsent.is_empty() { until_sign } else { RETRY };
        (sign, unsent, next)
    }
}

impl<B: Backend> Locks<B> {
    /// `delegates_after`: locks that are granted on a file in a row before its delegation is requested.
    pub fn new(backend: Arc<B>, delegates_after: u32) -> Locks<B> {
        let (gate, returning) = Default::default();
        let state = State { delegations: Delegations::new(delegates_after), ..State::default() };
        let state = Mutex::new(state);
        let (wake, sent, returns) = Default::default();
        Locks { backend, state, wake, sent, returns, returning, gate }
    }

    /// Sets, changes or releases a lock. `wait`: waits until it is granted, or until `interrupted` returns true (then
    /// [`LockOutcome::Cancelled`]). Returns [`LockOutcome::Granted`], `Refused`, `Deadlock`, `TooMany` or `Cancelled`.
    /// A lock of mode `Unlock` is released here even if the manager cannot be reached. `before`: set to what the owner held of the range when
    /// a lock is granted.
    ///
    /// # Errors
    /// The manager cannot be reached, or refused; [`Code::SessionExpired`]: the owner's locks on this file were lost.
    pub async fn set(
        &self,
        lock: &FileLock,
        wait: bool,
        interrupted: Interrupted<'_>,
        before: &mut HeldBefore,
    ) -> Result<LockOutcome, Error> {
        let key = (lock.ino, lock.owner);
        if lock.mode() == LockMode::Unlock {
            return Ok(self.unlock(lock).await);
        }
        self.check_lost(key)?;
        match self.unless_interrupted(interrupted, self.send_pending(key)).await {
            Some(sent) => sent?,
            None => return Ok(LockOutcome::Cancelled),
        }
        {
            let mut state = self.state.lock();
            state.waiting += 1;
            state.owners.entry(key).or_default().begin(lock);
        }
        self.wake.notify_one();
        let done = self.lock(lock, wait, interrupted, before).await;
        let mut state = self.state.lock();
        assert!(state.waiting > 0, "a lock request ends that did not begin");
        state.waiting -= 1;
        if let Some(owned) = state.owners.get_mut(&key) {
            owned.end(lock);
            if owned.is_idle() {
                state.owners.remove(&key);
            }
        }
        done
    }

    async fn lock(
        &self,
        lock: &FileLock,
        wait: bool,
        interrupted: Interrupted<'_>,
        before: &mut HeldBefore,
    ) -> Result<LockOutcome, Error> {
        let key = (lock.ino, lock.owner);
        let (mut seq, mut wait_ms, mut until_ns) = (self.state.lock().next_seq(), 0, self.deadline_ns());
        loop {
            let answer = self.request(lock, seq, (wait, wait_ms), interrupted, before).await;
            if let Err(lost) = self.check_lost(key) {
                self.may_be_granted(lock, seq);
                return Err(lost);
            }
            match answer {
                // The attempt that failed may have been granted.
                Err(error) => {
                    let gives_up = interrupted();
                    if gives_up || !error.is_retryable() || self.backend.now_ns() >= until_ns {
                        self.may_be_granted(lock, seq);
                        return if gives_up { Ok(LockOutcome::Cancelled) } else { Err(error) };
                    }
                    self.backend.sleep(PAUSE).await;
                    continue;
                }
                Ok(LockOutcome::Waiting) => wait_ms = WAIT_MS,
                Ok(LockOutcome::Overtaken) => seq = self.state.lock().next_seq(),
                Ok(LockOutcome::Grace) if interrupted() => return Ok(LockOutcome::Cancelled),
                Ok(LockOutcome::Grace) => self.backend.sleep(PAUSE).await,
                Ok(outcome) => return Ok(outcome),
            }
            until_ns = self.deadline_ns();
        }
    }

    /// Nobody waits for the answer to request `seq` any more: the manager will be told what the owner holds.
    fn may_be_granted(&self, lock: &FileLock, seq: u64) {
        let mut state = self.state.lock();
        if !state.delegations.is_held(lock.ino) {
            state.owners.entry((lock.ino, lock.owner)).or_default().set_again(lock, seq);
        }
        self.wake.notify_one();
    }

    /// Requests the lock once, and records it if granted. A table that is no longer the manager's is replaced first.
    /// A request that waits is withdrawn when `interrupted` returns true, and none waits much longer for its answer.
    async fn request(
        &self,
        lock: &FileLock,
        seq: u64,
        (wait, wait_ms): (bool, u64),
        interrupted: Interrupted<'_>,
        before: &mut HeldBefore,
    ) -> Result<LockOutcome, Error> {
        let mut asked = match self.begin_asking(lock, seq, wait_ms == 0, interrupted).await? {
            Begun::Asked(asked) => asked,
            Begun::Here => return self.decide_here(lock, wait, interrupted, before).await,
            Begun::Interrupted => {
                // It may wait at the manager already.
                self.may_be_granted(lock, seq);
                return Ok(LockOutcome::Cancelled);
            }
        };
        let begun = async {
            let table = self.table().await?;
            Ok((table, self.gate.read().await))
        };
        let Some(begun) = self.unless_interrupted(interrupted, begun).await else {
            self.may_be_granted(lock, seq);
            return Ok(LockOutcome::Cancelled);
        };
        let (table, shared) = begun?;
        if self.state.lock().table != table {
            return Ok(LockOutcome::Overtaken);
        }
        // Nothing is lost while this request is on its way.
        self.check_lost((lock.ino, lock.owner))?;
        let want_delegation = self.state.lock().delegations.is_asked(lock.ino, seq);
        let request = SetLock { seq, table, lock: Some(*lock), wait, wait_ms, want_delegation };
        let sent_ns = self.backend.now_ns();
        asked.is_sent = true;
        let mut answer = pin!(self.backend.ask_manager(&request, wait_ms));
        let mut is_stopping = false;
        let answer = loop {
            let every = if is_stopping { STOPPING } else { self.look_every() };
            match race(answer.as_mut(), self.backend.sleep(every)).await {
                Ok(answer) => break answer,
                Err(()) if is_stopping => {
                    self.may_be_granted(lock, seq);
                    return Ok(LockOutcome::Cancelled);
                }
                Err(()) if interrupted() => {
                    if wait || wait_ms > 0 {
                        self.backend.tell_manager(&CancelLock { seq, table });
                    }
                    is_stopping = true;
                }
                Err(()) => {}
            }
        };
        if matches!(&answer, Err(error) if error.code() == Code::SessionExpired) {
            asked.is_sent = false;
            drop(shared);
            self.assert_held(table).await?;
            return Ok(LockOutcome::Overtaken);
        }
        let reply = answer?;
        let now_ns = self.backend.now_ns();
        let mut state = self.state.lock();
        state.heard(sent_ns);
        if reply.delegated && want_delegation {
            state.granted(lock.ino, reply.fence);
            state.delegated(lock.ino, seq, now_ns);
            return Ok(state.decide(lock, wait, now_ns, before).unwrap_or(LockOutcome::Overtaken));
        }
        state.delegations.answered(lock.ino, seq, now_ns, Some(false));
        state.delegations.count(lock.ino, reply.outcome());
        if reply.outcome() == LockOutcome::Granted {
            state.granted(lock.ino, reply.fence);
            let owned = state.owners.entry((lock.ino, lock.owner)).or_default();
            *before = owned.held(lock);
            owned.changed(lock, reply.change);
        }
        Ok(reply.outcome())
    }

    /// Does this, unless `interrupted` returns true.
    async fn unless_interrupted<T>(&self, interrupted: Interrupted<'_>, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            match race(work.as_mut(), self.backend.sleep(self.look_every())).await {
                Ok(done) => return Some(done),
                Err(()) if interrupted() => return None,
                Err(()) => {}
            }
        }
    }

    /// Releases the locks here at once, and tells the manager, later if it cannot be reached now.
    async fn unlock(&self, lock: &FileLock) -> LockOutcome {
        self.unlock_here(lock);
        self.tell(lock.ino, lock.owner).await;
        LockOutcome::Granted
    }

    /// Releases the locks here; the manager is to be told.
    fn unlock_here(&self, lock: &FileLock) {
        let key = (lock.ino, lock.owner);
        let mut state = self.state.lock();
        let whole = lock.start == 0 && lock.end >= i64::MAX as u64;
        if whole {
            state.lost.remove(&key);
        }
        let Some(owned) = state.owners.get_mut(&key) else { return };
        owned.set(lock);
        let is_known = state.gives_up_here(lock.ino, self.backend.now_ns());
        if let Some(owned) = state.owners.get_mut(&key).filter(|_| !is_known) {
            owned.tell(lock);
        }
        state.forget_fence(lock.ino);
    }

    /// Tells the manager what an owner gave up, later if it cannot be reached now.
    pub async fn tell(&self, ino: u64, owner: u64) {
        let error = match race(pin!(self.send_pending((ino, owner))), self.backend.sleep(TELLING)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(()) => format!("it has not answered for {} s", TELLING.as_secs()),
        };
        tracing::warn!(ino, error, "the manager will be told later that a lock was given up");
        self.wake.notify_one();
    }

    /// Releases all locks of an owner on a file here. The caller calls [`Locks::tell`].
    pub fn give_up(&self, ino: u64, owner: u64) {
        let (family, mode) = (LockFamily::Either as i32, LockMode::Unlock as i32);
        self.unlock_here(&FileLock { ino, owner, family, mode, start: 0, end: i64::MAX as u64, ..FileLock::default() });
    }

    /// Gives up what a request got: the owner holds what it held `before`, and what other threads of its process got meanwhile beside it. If
    /// its locks are all lost, they stay so until the file is closed: other threads must learn of it.
    pub async fn give_back(&self, lock: &FileLock, before: &HeldBefore) {
        {
            let (mut state, key) = (self.state.lock(), (lock.ino, lock.owner));
            if state.lost.contains(&key) {
                return;
            }
            let Some(owned) = state.owners.get_mut(&key) else { return };
            owned.give_back(lock, before);
            let is_known = state.gives_up_here(lock.ino, self.backend.now_ns());
            if let Some(owned) = state.owners.get_mut(&key).filter(|_| is_known) {
                owned.pending.clear();
            }
            state.forget_fence(lock.ino);
        }
        self.tell(lock.ino, lock.owner).await;
    }

    /// Whether an owner excludes all others from a range.
    pub fn excludes_others(&self, range: &FileLock) -> bool {
        let state = self.state.lock();
        state.owners.get(&(range.ino, range.owner)).is_some_and(|owned| owned.excludes_others(range))
    }

    /// Releases all locks of an owner on a file.
    pub async fn release(&self, ino: u64, owner: u64) {
        if self.knows(ino, owner) {
            self.give_up(ino, owner);
            self.tell(ino, owner).await;
        }
    }

    /// Whether an owner holds or lost any lock on a file, or may for the manager.
    pub fn holds(&self, ino: u64, owner: u64) -> bool {
        let state = self.state.lock();
        let holds = |owned: &Owned| owned.holds_any() || !owned.pending.is_empty();
        state.owners.get(&(ino, owner)).is_some_and(holds) || state.lost.contains(&(ino, owner))
    }

    /// How often a request that waits for a lock checks whether it must stop.
    pub fn look_every(&self) -> Duration {
        self.state.lock().look_every()
    }

    /// Whether any owner holds a lock on a file.
    pub fn is_locked(&self, ino: u64) -> bool {
        self.state.lock().is_locked(ino)
    }

    /// Whether an owner holds or lost any lock on a file, as far as it was told: the manager may not have heard that it gave one up.
    pub fn owns(&self, ino: u64, owner: u64) -> bool {
        let state = self.state.lock();
        state.owners.get(&(ino, owner)).is_some_and(Owned::holds_any) || state.lost.contains(&(ino, owner))
    }

    /// Whether an owner holds or lost any lock on a file, or has asked for one.
    fn knows(&self, ino: u64, owner: u64) -> bool {
        let state = self.state.lock();
        state.owners.contains_key(&(ino, owner)) || state.lost.contains(&(ino, owner))
    }

    /// Whether the owner's locks on a file were lost. Asks the manager if they may have been.
    pub async fn is_lost(&self, ino: u64, owner: u64) -> bool {
        self.are_lost(ino).await && self.state.lock().lost.contains(&(ino, owner))
    }

    /// Whether locks on a file were lost. Asks the manager if they may have been.
    pub async fn are_lost(&self, ino: u64) -> bool {
        let now_ns = self.backend.now_ns();
        let table = {
            let state = self.state.lock();
            let fresh = state.heard_ns.is_some_and(|heard_ns| now_ns - heard_ns < state.lease_ns);
            if state.are_lost(ino) || fresh || !state.owners.keys().any(|(of, _)| *of == ino) {
                return state.are_lost(ino);
            }
            state.table
        };
        // Nothing may be done under a lock that another client may hold by now. Without a manager nothing can be
        // committed either.
        let _ = self.retry(async || self.sign_of_life(table, 0).await).await;
        self.state.lock().are_lost(ino)
    }

    /// Whether the manager said that locks on a file are lost. A sign of life asks for what it has not said yet.
    pub async fn look_for_loss(&self, ino: u64) -> bool {
        let table = self.state.lock().table;
        if !self.knows_lost(ino) && table != 0 {
            let _ = self.sign_of_life(table, 0).await;
        }
        self.knows_lost(ino)
    }

    /// Whether locks on a file were lost, as far as the manager said.
    pub fn knows_lost(&self, ino: u64) -> bool {
        self.state.lock().are_lost(ino)
    }

    /// The fence of the locks that this client holds on a file; none without locks.
    pub fn fence(&self, ino: u64) -> Option<LockFence> {
        let state = self.state.lock();
        if !state.is_locked(ino) {
            return None;
        }
        // A manager that granted a lock without a fence will refuse this one.
        Some(state.fences.get(&ino).copied().unwrap_or_default())
    }

    fn check_lost(&self, key: Key) -> Result<(), Error> {
        let lost = "the locks on this file were lost: the manager did not hear of this client for too long; close the file and open it again";
        match self.state.lock().lost.contains(&key) {
            true => Err(Error::new(Code::SessionExpired, lost)),
            false => Ok(()),
        }
    }

    /// The table; registers one if there is none.
    async fn table(&self) -> Result<u64, Error> {
        let table = self.state.lock().table;
        if table == 0 {
            self.assert_held(0).await?;
        }
        Ok(self.state.lock().table)
    }

    /// Asserts all held locks, unless another task did so after `table`.
    async fn assert_held(&self, table: u64) -> Result<(), Error> {
        let _alone = self.gate.write().await;
        let held = {
            let state = self.state.lock();
            if state.table != table {
                return Ok(());
            }
            // Of a delegation that may have been returned each lock is asserted: that is part of it.
            let alone = state.owners.iter().filter(|((ino, _), _)| !state.delegations.is_held(*ino));
            let held = alone.flat_map(|((ino, owner), owned)| owned.asserted(*ino, *owner));
            let delegations = state.delegations.held().map(FileLock::delegation);
            held.chain(delegations)
                .map(|lock| FileLock { fence: state.fences.get(&lock.ino).copied(), ..lock })
                .collect()
        };
        let claim = HoldLocks { table, held, machine: self.backend.machine(), next_table: 0 };
        let told = self.claim(&claim).await;
        let mut state = self.state.lock();
        let (reply, sent_ns) = told.inspect_err(|error| {
            if !error.is_retryable() && !claim.held.is_empty() {
                state.lose_all();
            }
        })?;
        state.heard_ns = Some(sent_ns);
        state.cut_off_ns = state.cut_off_ns.filter(|cut_off_ns| sent_ns < *cut_off_ns);
        let lease_ms = i64::try_from(reply.lease_ms).unwrap_or(i64::MAX);
        if state.table != reply.table {
            state.owners.values_mut().for_each(Owned::forget_changes);
            state.delegations.asserted(&claim.held);
        }
        (state.table, state.lease_ns) = (reply.table, lease_ms.saturating_mul(1_000_000));
        if reply.lost {
            state.lose_all();
        }
        Ok(())
    }

    /// The manager's answer to a claim, and when that was sent. First the manager names a table: another one after a loss, and each manager
    /// its own.
    async fn claim(&self, claim: &HoldLocks) -> Result<(HoldLocksReply, i64), Error> {
        let until_ns = self.deadline_ns();
        let mut request = HoldLocks { held: Vec::new(), ..claim.clone() };
        loop {
            let sent_ns = self.backend.now_ns();
            let reply = self.retry_until(until_ns, async || self.backend.ask_manager(&request, 0).await).await?;
            match reply.next_table {
                0 => return Ok((reply, sent_ns)),
                _ if sent_ns >= until_ns => {
                    let text = "the manager names another table of locks each time that it is asked for one";
                    return Err(Error::new(Code::Unavailable, text));
                }
                next_table => request = HoldLocks { next_table, ..claim.clone() },
            }
        }
    }

    /// Tells the manager that this client lives, and that request `seq` (0: none) waits no more. Asserts the held locks
    /// to a manager that does not know them.
    async fn sign_of_life(&self, table: u64, seq: u64) -> Result<(), Error> {
        match self.ask_once(&CancelLock { seq, table }).await {
            // The table is another one, so that request waits no more.
            Err(error) if error.code() == Code::SessionExpired => self.assert_held(table).await,
            answer => answer.map(drop),
        }
    }

    /// Sends a request once; notes that the manager heard of this client.
    async fn ask_once<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let sent_ns = self.backend.now_ns();
        let reply = self.backend.ask_manager(request, 0).await?;
        self.state.lock().heard(sent_ns);
        Ok(reply)
    }

    /// Repeats an attempt until it succeeds, repeating is useless, or the manager's deadline passes.
    async fn retry<T>(&self, attempt: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
        self.retry_until(self.deadline_ns(), attempt).await
    }

    /// As [`Locks::retry`], until that time.
    async fn retry_until<T>(&self, until_ns: i64, attempt: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
        loop {
            match attempt().await {
                Err(error) if error.is_retryable() && self.backend.now_ns() < until_ns => {}
                done => return done,
            }
            self.backend.sleep(PAUSE).await;
        }
    }

    /// A request that begins now is repeated until then.
    fn deadline_ns(&self) -> i64 {
        let patience_ns = i64::try_from(self.backend.manager_deadline().as_nanos()).unwrap_or(i64::MAX);
        self.backend.now_ns().saturating_add(patience_ns)
    }

    /// The connection to the manager, and perhaps the manager, is gone.
    pub fn cut_off(&self) {
        let now_ns = self.backend.now_ns();
        let mut state = self.state.lock();
        (state.cut_off, state.cut_off_ns) = (true, Some(now_ns));
        drop(state);
        self.wake.notify_one();
    }

    /// Does what is due. Returns after how long to look again, unless woken.
    async fn tend(&self) -> Duration {
        let (sign, unsent, next) = self.state.lock().due(self.backend.now_ns());
        if let Some(table) = sign
            && let Err(error) = self.sign_of_life(table, 0).await
        {
            tracing::debug!(%error, "the manager does not hear that locks are held");
            self.state.lock().cut_off = true;
            return PAUSE;
        }
        for key in unsent {
            let _ = self.send_pending(key).await;
        }
        next
    }
}

/// Keeps the locks alive while the mount exists.
pub async fn work<B: Backend>(mount: Weak<Mount<B>>) {
    let Some(locks) = mount.upgrade().map(|mount| mount.locks.clone()) else { return };
    while mount.strong_count() > 0 {
        let next = locks.tend().await;
        let _ = race(locks.wake.notified(), locks.backend.sleep(next)).await;
    }
}
