//! Files whose locks this client decides about by itself, because the manager has delegated them.
//!
//! The client asks for the delegation after some locks on a file that nobody was in the way of. While it has it, a lock costs no request: what
//! owners here hold is all that anybody holds. When another client wants a lock there, the manager recalls the delegation, and the client
//! returns it for the locks that its owners hold. So it does when a lock here must wait: queues, fairness and deadlocks are the manager's.
//!
//! From when a request for the delegation begins until its answer is known, and from when the delegation is to be returned until it is, no
//! other request about the file is sent. What was committed when it was unlocked or shared here needs no commit at the return.

use super::owner::{HeldBefore, Owned};
use super::{Interrupted, Key, Locks, PAUSE, State, TELLING};
use crate::backend::Backend;
use crate::mount::Mount;
use crate::race::race;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Weak;
use std::time::Duration;
use tessera_failpoint as failpoint;
use tessera_wire::locks::DELEGATE;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error};

/// Locks that the manager grants on a file in a row before the delegation is asked for. The number doubles after each request and each
/// recall, and halves with each grant, so a mount that takes turns with other clients rarely asks.
pub const REQUEST_AFTER: u32 = 4;
const MAX_REQUEST_AFTER: u32 = 1024;
/// Files whose locks are counted.
const MAX_COUNTED: usize = 4_096;
/// Files that are delegated at a time.
const MAX_FILES: usize = 1_024;
/// Most locks on a file that are decided about here: fewer than may be returned ([`tessera_wire::locks::MAX_DELEGATED_LOCKS`]).
const MAX_HERE: usize = 64;
/// A lock in the middle of another one makes so many more.
const MORE_PER_LOCK: usize = 2;
/// A delegation of a file on which nothing is locked is returned after this time without a request.
const IDLE_NS: i64 = 5_000_000_000;
/// How often the task looks for such files.
const LOOK_FOR_IDLE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// This request, for the delegation, has begun. `recalled`: the manager wants it back already.
    Asked { seq: u64, recalled: bool },
    /// Requests are decided about here, the last one at this time.
    Held { used_ns: i64 },
    /// The manager is to be told what is held.
    Returning,
}

#[derive(Debug, Default)]
struct Counter {
    /// Locks granted since the last request, or since somebody was in the way.
    locks: u32,
    /// Locks until the delegation is requested, if they are more than usual.
    request_after: u32,
}

/// See the module.
#[derive(Default)]
pub(super) struct Delegations {
    files: BTreeMap<u64, Phase>,
    counters: HashMap<u64, Counter>,
    /// Usual number of locks until a delegation is requested.
    request_after: u32,
}

impl Delegations {
    pub fn new(request_after: u32) -> Delegations {
        Delegations { request_after: request_after.clamp(1, MAX_REQUEST_AFTER), ..Delegations::default() }
    }

    fn double(&mut self, ino: u64) {
        let counter = self.counters.entry(ino).or_default();
        counter.locks = 0;
        counter.request_after = (counter.request_after.max(self.request_after) * 2).min(MAX_REQUEST_AFTER);
    }

    /// Whether locks on a file are decided about here.
    pub fn is_held(&self, ino: u64) -> bool {
        matches!(self.files.get(&ino), Some(Phase::Held { .. }))
    }

    /// The files whose locks are decided about here.
    pub fn held(&self) -> impl Iterator<Item = u64> {
        let held = self.files.iter().filter(|(_, phase)| matches!(phase, Phase::Held { .. }));
        held.map(|(ino, _)| *ino)
    }

    /// Whether nothing about a file may be sent, except by the request or the task that the others wait for.
    pub fn is_busy(&self, ino: u64) -> bool {
        matches!(self.files.get(&ino), Some(Phase::Asked { .. } | Phase::Returning))
    }

    /// Whether request `seq` is the one that asks for the delegation.
    pub fn is_asked(&self, ino: u64, seq: u64) -> bool {
        matches!(self.files.get(&ino), Some(Phase::Asked { seq: asked, .. }) if *asked == seq)
    }

    /// Whether enough locks were granted to ask for the delegation.
    pub fn is_worth_asking(&self, ino: u64) -> bool {
        let has_room = self.files.len() < MAX_FILES;
        has_room && self.counters.get(&ino).is_some_and(|c| c.locks >= c.request_after.max(self.request_after))
    }

    pub fn ask(&mut self, ino: u64, seq: u64) {
        let before = self.files.insert(ino, Phase::Asked { seq, recalled: false });
        assert_eq!(before, None, "inode {ino}: its delegation is asked for, or was granted");
        self.double(ino);
    }

    /// Request `seq` has ended. `is_granted`: not known without an answer; then the manager is told what is held.
    pub fn answered(&mut self, ino: u64, seq: u64, now_ns: i64, is_granted: Option<bool>) {
        let Some(Phase::Asked { seq: asked, recalled }) = self.files.get(&ino).copied() else { return };
        if asked != seq {
            return;
        }
        match is_granted {
            Some(false) => _ = self.files.remove(&ino),
            Some(true) if !recalled => {
                if let Some(counter) = self.counters.get_mut(&ino) {
                    counter.request_after /= 2;
                }
                self.files.insert(ino, Phase::Held { used_ns: now_ns });
            }
            _ => _ = self.files.insert(ino, Phase::Returning),
        }
    }

    /// The manager answered a request for a lock.
    pub fn count(&mut self, ino: u64, outcome: LockOutcome) {
        if self.counters.len() >= MAX_COUNTED && !self.counters.contains_key(&ino) {
            self.counters.clear();
        }
        let counter = self.counters.entry(ino).or_default();
        match outcome {
            LockOutcome::Granted => counter.locks = counter.locks.saturating_add(1),
            LockOutcome::Overtaken | LockOutcome::Grace => {}
            _ => counter.locks = 0,
        }
    }

    /// The manager recalls the delegation.
    fn recall(&mut self, ino: u64) {
        match self.files.get_mut(&ino) {
            Some(Phase::Asked { recalled, .. }) => *recalled = true,
            Some(phase @ Phase::Held { .. }) => *phase = Phase::Returning,
            Some(Phase::Returning) | None => return,
        }
        self.double(ino);
    }

    /// The delegation is to be returned.
    pub fn give_up(&mut self, ino: u64) {
        if let Some(phase @ Phase::Held { .. }) = self.files.get_mut(&ino) {
            *phase = Phase::Returning;
        }
    }

    /// A lock there was decided about here.
    pub fn used(&mut self, ino: u64, now_ns: i64) {
        if let Some(Phase::Held { used_ns }) = self.files.get_mut(&ino) {
            *used_ns = now_ns;
        }
    }

    /// All locks of this client are lost.
    pub fn clear(&mut self) {
        self.files.clear();
    }

    /// A new manager was told of these locks. Of a delegation that was to be returned they are each lock.
    pub fn asserted(&mut self, locks: &[FileLock]) {
        let delegated: BTreeSet<u64> =
            locks.iter().filter(|lock| lock.owner == DELEGATE).map(|lock| lock.ino).collect();
        self.files.retain(|ino, phase| *phase != Phase::Returning || delegated.contains(ino));
    }

    fn returning(&self) -> Vec<u64> {
        self.files.iter().filter(|(_, phase)| **phase == Phase::Returning).map(|(ino, _)| *ino).collect()
    }

    fn idle(&self, now_ns: i64) -> Vec<u64> {
        let is_idle = |phase: &Phase| matches!(phase, Phase::Held { used_ns } if now_ns - used_ns >= IDLE_NS);
        self.files.iter().filter(|(_, phase)| is_idle(phase)).map(|(ino, _)| *ino).collect()
    }
}

impl State {
    fn owners_of(&self, ino: u64) -> impl Iterator<Item = (&Key, &Owned)> {
        self.owners.range((ino, 0)..=(ino, u64::MAX))
    }

    /// Whether a request for a lock may ask for the delegation too: no other one about the file is on its way, and few locks are held.
    pub(super) fn may_ask_for_delegation(&self, ino: u64) -> bool {
        let is_quiet = || self.owners_of(ino).all(|(_, owned)| owned.is_quiet());
        self.delegations.is_worth_asking(ino) && is_quiet() && 2 * self.count_locks(ino) <= MAX_HERE
    }

    /// The manager has delegated the file in its answer to request `seq`: what is held here is what the manager need not be told.
    pub(super) fn delegated(&mut self, ino: u64, seq: u64, now_ns: i64) {
        self.delegations.answered(ino, seq, now_ns, Some(true));
        if self.delegations.is_held(ino) {
            for (_, owned) in self.owners.range_mut((ino, 0)..=(ino, u64::MAX)) {
                owned.pending.clear();
                owned.forget_changes();
            }
        }
    }

    /// The first lock of another owner that is in the way.
    fn in_the_way(&self, lock: &FileLock) -> Option<FileLock> {
        let others = self.owners_of(lock.ino).filter(|((_, owner), _)| *owner != lock.owner);
        let locks = others.flat_map(|((ino, owner), owned)| owned.locks(*ino, *owner));
        let conflicts = |other: &FileLock| other.bytes().overlaps(&lock.bytes()) && other.held().excludes(&lock.held());
        locks.filter(conflicts).min_by_key(|other| (other.start, other.owner))
    }

    fn count_locks(&self, ino: u64) -> usize {
        self.owners_of(ino).map(|(_, owned)| owned.len()).sum()
    }

    /// Decides about a lock if the file is delegated. `None`: the manager decides; a delegation is returned before.
    pub(super) fn decide(
        &mut self,
        lock: &FileLock,
        wait: bool,
        now_ns: i64,
        before: &mut HeldBefore,
    ) -> Option<LockOutcome> {
        if !self.delegations.is_held(lock.ino) {
            return None;
        }
        let is_free = self.in_the_way(lock).is_none();
        if !is_free && !wait {
            return Some(LockOutcome::Refused);
        }
        if !is_free || self.count_locks(lock.ino) + MORE_PER_LOCK > MAX_HERE {
            self.delegations.give_up(lock.ino);
            return None;
        }
        let owned = self.owners.entry((lock.ino, lock.owner)).or_default();
        *before = owned.held(lock);
        owned.set(lock);
        self.delegations.used(lock.ino, now_ns);
        Some(LockOutcome::Granted)
    }

    /// An owner has given something up. Returns whether the manager need not be told.
    pub(super) fn gives_up_here(&mut self, ino: u64, now_ns: i64) -> bool {
        if self.delegations.is_held(ino) && self.count_locks(ino) > MAX_HERE {
            self.delegations.give_up(ino);
        }
        self.delegations.used(ino, now_ns);
        self.delegations.is_held(ino)
    }

    /// All that owners here hold on a file.
    fn held_on(&self, ino: u64) -> Vec<FileLock> {
        self.owners_of(ino).flat_map(|((ino, owner), owned)| owned.locks(*ino, *owner)).collect()
    }
}

impl<B: Backend> Locks<B> {
    /// The manager recalls the delegations of these files.
    pub fn recalled(&self, files: &[u64]) {
        let mut state = self.state.lock();
        files.iter().for_each(|ino| state.delegations.recall(*ino));
        self.returns.notify_one();
    }

    /// Decides about a lock on a file that is delegated.
    pub(super) async fn decide_here(
        &self,
        lock: &FileLock,
        wait: bool,
        interrupted: Interrupted<'_>,
        before: &mut HeldBefore,
    ) -> Result<LockOutcome, Error> {
        match self.unless_interrupted(interrupted, self.check_lease()).await {
            Some(checked) => checked?,
            None => return Ok(LockOutcome::Cancelled),
        }
        self.check_lost((lock.ino, lock.owner))?;
        let decided = self.state.lock().decide(lock, wait, self.backend.now_ns(), before);
        // Else the manager is asked, under a number of after the return.
        Ok(decided.unwrap_or(LockOutcome::Overtaken))
    }

    /// The first lock that conflicts with `lock`.
    ///
    /// # Errors
    /// The manager cannot be reached, or refused.
    pub async fn test(&self, lock: &FileLock) -> Result<Option<FileLock>, Error> {
        self.send_pending((lock.ino, lock.owner)).await?;
        self.retry(async || self.test_once(lock).await).await
    }

    async fn test_once(&self, lock: &FileLock) -> Result<Option<FileLock>, Error> {
        self.until_not_busy(lock.ino).await;
        if self.state.lock().delegations.is_held(lock.ino) {
            self.check_lease().await?;
        }
        if let Some(in_the_way) = self.test_here(lock) {
            return Ok(in_the_way);
        }
        let table = self.table().await?;
        match self.ask_once(&TestLock { table, lock: Some(*lock) }).await {
            Err(error) if error.code() == Code::SessionExpired => {
                self.assert_held(table).await?;
                Err(Error::new(Code::Unavailable, error.message))
            }
            answer => Ok(answer?.lock),
        }
    }

    /// The lock that is in the way of `lock`, if locks on the file are decided about here.
    fn test_here(&self, lock: &FileLock) -> Option<Option<FileLock>> {
        let mut state = self.state.lock();
        let now_ns = self.backend.now_ns();
        if !state.delegations.is_held(lock.ino) {
            return None;
        }
        state.delegations.used(lock.ino, now_ns);
        Some(state.in_the_way(lock).map(|other| FileLock { owner: 0, ..other }))
    }

    /// Makes sure that the locks of this client are not lost, before it decides about one by itself.
    ///
    /// # Errors
    /// The manager does not answer.
    async fn check_lease(&self) -> Result<(), Error> {
        let (is_fresh, table) = {
            let state = self.state.lock();
            (state.is_fresh(self.backend.now_ns()), state.table)
        };
        if is_fresh { Ok(()) } else { self.sign_of_life(table, 0).await }
    }

    /// Waits while a file's delegation is asked for or returned.
    async fn until_not_busy(&self, ino: u64) {
        loop {
            let sent = self.sent.notified();
            if !self.state.lock().delegations.is_busy(ino) {
                return;
            }
            self.returns.notify_one();
            let _ = race(sent, self.backend.sleep(self.look_every())).await;
        }
    }

    /// Returns the delegations that are to be returned. Returns after how long to look again, unless woken.
    async fn return_due(&self) -> Duration {
        let _alone = self.returning.lock().await;
        let due = {
            let mut state = self.state.lock();
            for ino in state.delegations.idle(self.backend.now_ns()) {
                if !state.is_locked(ino) {
                    state.delegations.give_up(ino);
                }
            }
            state.delegations.returning()
        };
        let mut next = LOOK_FOR_IDLE;
        for ino in due {
            match self.return_delegation(ino).await {
                Ok(()) => {
                    self.sent.notify_waiters();
                    self.wake.notify_one();
                }
                Err(error) => {
                    tracing::debug!(ino, %error, "the manager does not take the locks of a file back");
                    // Those who wait for it wake this task at once.
                    self.backend.sleep(PAUSE).await;
                    next = PAUSE;
                }
            }
        }
        next
    }

    /// Returns all delegations, so that nobody waits for the end of a mount. Without a manager they end by themselves.
    pub async fn return_all(&self) {
        {
            let mut state = self.state.lock();
            let held: Vec<u64> = state.delegations.held().collect();
            held.into_iter().for_each(|ino| state.delegations.give_up(ino));
        }
        let _ = race(self.return_due(), self.backend.sleep(TELLING)).await;
    }

    /// Tells the manager what owners here hold on a file, once.
    async fn return_delegation(&self, ino: u64) -> Result<(), Error> {
        let table = self.table().await?;
        let shared = self.gate.read().await;
        let (request, losses) = {
            let mut state = self.state.lock();
            if state.table != table || state.delegations.files.get(&ino) != Some(&Phase::Returning) {
                return Ok(());
            }
            let held = state.held_on(ino);
            (ReturnLocks { seq: state.next_seq(), table, ino, held }, state.losses)
        };
        let reply = match self.ask_once(&request).await {
            Err(error) if error.code() == Code::SessionExpired => {
                drop(shared);
                return self.assert_held(table).await;
            }
            answer => answer?,
        };
        let mut state = self.state.lock();
        if state.losses != losses {
            return Ok(());
        }
        match reply.outcome() {
            LockOutcome::Granted => state.granted(ino, reply.fence),
            LockOutcome::Overtaken => return Err(Error::new(Code::Unavailable, "a later request arrived first")),
            _ => request.held.iter().for_each(|lock| state.lose(lock)),
        }
        match failpoint::is_active("mount.returned_locks_decided") {
            true => _ = state.delegations.files.insert(ino, Phase::Held { used_ns: self.backend.now_ns() }),
            false => _ = state.delegations.files.remove(&ino),
        }
        Ok(())
    }
}

/// Returns delegations of files' locks while the mount exists.
pub async fn return_delegations<B: Backend>(mount: Weak<Mount<B>>) {
    let Some(locks) = mount.upgrade().map(|mount| mount.locks.clone()) else { return };
    while mount.strong_count() > 0 {
        let next = locks.return_due().await;
        let _ = race(locks.returns.notified(), locks.backend.sleep(next)).await;
    }
}
