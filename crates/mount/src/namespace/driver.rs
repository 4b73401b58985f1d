//! Runs the namespace core ([`super::Namespace`]): a lock, a clock, and the requests that it asks for.
//!
//! The core asks for deferred creates to be sent to the manager. An operation that waits for the core sends such
//! requests meanwhile, its own or not. A background task ([`work`]) sends those that no operation waits for (recalls,
//! files that are due).

use super::{Action, EntryAttr, Event, FirstCommit, KeptNames, LookupResult, Name, Namespace, NewFile, Scope, Waiter};
use crate::backend::{Backend, new_node};
use crate::errno::{Errno, Outcome, explained};
use crate::mount::Mount;
use crate::race::race;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_client::inodes::NewFile as FileToWrite;
use tessera_client::{FileError, Owner, Times, WriteDone};
use tessera_wire::meta::{MakeNode, NamedEntry};
use tessera_wire::{Attr, Code, InodeKind};
use tokio::sync::Notify;

/// Interval at which the core looks for files that are due.
const TICK: Duration = Duration::from_millis(100);

/// Answers a recall.
type Answer = Box<dyn FnOnce() + Send>;

/// See the module.
pub struct NamespaceDriver<B> {
    backend: Arc<B>,
    state: Mutex<State>,
    /// There are requests to send, or an outcome for a waiter.
    changed: Notify,
}

#[derive(Default)]
struct State {
    core: Namespace,
    /// Requests to send.
    creates: VecDeque<(u64, NewFile)>,
    /// What waiters wait for: `Settled` or `Commit`.
    outcomes: HashMap<Waiter, Action>,
    recalls: HashMap<u64, Answer>,
    /// Recalls to answer once the lock is released.
    answers: Vec<Answer>,
    last_number: u64,
    ticked_ns: i64,
}

/// Marks a request that creates a name as in flight, until it is dropped.
pub(crate) struct CreateInFlight<'a>(&'a Mutex<State>, u64);

impl Drop for CreateInFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().core.delegations.end_create(self.1);
    }
}

impl<B: Backend> NamespaceDriver<B> {
    /// Nothing is cached, delegated or deferred. The kernel keeps names for `kept_for` at most.
    pub(crate) fn new(backend: Arc<B>, kept_for: Duration) -> NamespaceDriver<B> {
        let kept_ns = i64::try_from(kept_for.as_nanos()).unwrap_or(i64::MAX);
        let state = State { core: Namespace::new(kept_ns), ..State::default() };
        NamespaceDriver { backend, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Calls the core with the current time.
    pub(crate) fn with<T>(&self, ask: impl FnOnce(&mut Namespace, i64) -> T) -> T {
        let mut state = self.state.lock();
        let now_ns = state.core.advance(self.backend.now_ns());
        let answer = ask(&mut state.core, now_ns);
        self.tell_evicted(&mut state.core);
        answer
    }

    /// The kernel must forget names that are not remembered any more.
    fn tell_evicted(&self, core: &mut Namespace) {
        let names = std::mem::take(&mut core.cache.evicted);
        if !names.is_empty() {
            self.tell(core, names);
        }
    }

    /// Until the kernel has forgotten by itself a name of which it is not told, all recalls wait. Returns false if there is one.
    fn tell(&self, core: &mut Namespace, names: Vec<Name>) -> bool {
        let are_told = self.backend.invalidate_names(names);
        if !are_told {
            core.cache.names_untold();
        }
        are_told
    }

    /// The kernel must forget these names. Returns for how long it may keep them if it is not told.
    pub(crate) fn invalidate_names(&self, names: Vec<Name>) -> Duration {
        self.with(|core, _| if self.tell(core, names) { Duration::ZERO } else { core.cache.untold_for() })
    }

    /// An inode, if the core knows it.
    pub(crate) fn attr(&self, ino: u64) -> Option<EntryAttr> {
        self.with(|core, now_ns| core.attr(now_ns, ino))
    }

    /// Forgets inodes that this mount changed in a way that the core does not know.
    pub(crate) fn forget(&self, inos: &[u64]) {
        self.with(|core, _| core.cache.forget(Some(inos)));
    }

    /// Forgets a name that this mount created, removed or moved, and its directory's attributes.
    pub(crate) fn forget_name(&self, parent: u64, name: &[u8]) {
        self.with(|core, _| core.cache.forget_name(parent, name));
    }

    /// Must be called before sending a request that creates `name` in `parent`. Keep the result until the answer was
    /// handed in.
    #[must_use]
    pub(crate) fn begin_create(&self, parent: u64, name: &[u8]) -> CreateInFlight<'_> {
        self.state.lock().core.delegations.begin_create(parent, name);
        CreateInFlight(&self.state, parent)
    }

    /// An inode, from the core or from the manager.
    ///
    /// # Errors
    /// The manager's.
    pub(crate) async fn get(&self, ino: u64) -> Result<EntryAttr, tessera_wire::Error> {
        if let Some(entry) = self.attr(ino) {
            return Ok(entry);
        }
        if self.end_doubt(Some(ino)).await
            && let Some(entry) = self.attr(ino)
        {
            return Ok(entry);
        }
        let stamp = self.with(Namespace::stamp);
        let entry = self.backend.get(ino).await?;
        self.with(|core, _| core.cache.fetched(stamp, None, &entry));
        Ok(entry.into())
    }

    /// What a name stands for, from the core or from the manager.
    ///
    /// # Errors
    /// The manager's, and `NotFound` if the core knows that the name does not exist.
    pub(crate) async fn lookup(&self, parent: u64, name: &[u8]) -> Result<EntryAttr, tessera_wire::Error> {
        loop {
            match self.with(|core, now_ns| core.lookup(now_ns, parent, name)) {
                LookupResult::Found(entry) => return Ok(entry),
                LookupResult::Absent => return Err(tessera_wire::Error::new(Code::NotFound, "no such name")),
                LookupResult::Unknown => {}
            }
            let deferred = self.with(|core, _| core.deferred.by_name(&(parent, name.to_vec())));
            if !self.end_doubt(deferred).await {
                break;
            }
        }
        let (stamp, ahead) = self.with(|core, now_ns| (core.stamp(now_ns), core.ahead.asks(now_ns, (parent, name))));
        let entry = self.backend.lookup(parent, name, ahead).await?;
        self.with(|core, _| {
            core.cache.fetched(stamp, Some((parent, name)), &entry);
            for NamedEntry { name, entry } in &entry.ahead {
                entry.iter().for_each(|entry| core.cache.fetched_ahead(stamp, (parent, name), entry));
            }
            core.following.note(parent, entry.attr.iter().map(|attr| (name, attr)));
            core.following.note(parent, entry.ahead.iter().filter_map(named_attr));
        });
        Ok(entry.into())
    }

    /// Before the manager is asked about a file: waits for the answer to the request that creates it, if it is in doubt. The manager may not
    /// have got it yet. Returns whether it waited.
    async fn end_doubt(&self, ino: Option<u64>) -> bool {
        let Some(ino) = ino.filter(|ino| self.with(|core, _| core.deferred.is_in_doubt(*ino))) else { return false };
        // What is lost is not there, or another client's.
        let _ = self.settle(Scope::File(ino)).await;
        true
    }

    /// Makes sure that the manager knows deferred creates.
    ///
    /// # Errors
    /// The error of the first file that the manager rejects.
    pub(crate) async fn settle(&self, scope: Scope) -> Outcome {
        let settled = match scope {
            Scope::File(ino) => self.with(|core, _| core.is_settled(ino)),
            _ => None,
        };
        let result = match settled {
            Some(result) => result,
            None => match self.wait(|waiter| Event::Settle(waiter, scope)).await {
                Action::Settled(_, result) => result,
                _ => unreachable!("a settlement ends as one"),
            },
        };
        result.map_err(Errno::from)
    }

    /// The last handle of a file is closed: creates the file if needed, even if none of its content could be stored.
    pub(crate) async fn closed(&self, ino: u64) {
        if self.with(|core, _| core.is_settled(ino)) != Some(Ok(())) {
            self.wait(|waiter| Event::Closed(waiter, ino)).await;
        }
    }

    /// Reports whether a deferred create is lost.
    ///
    /// # Errors
    /// The loss.
    pub(crate) fn check(&self, ino: u64) -> Outcome {
        self.with(|core, _| core.deferred.check(ino)).map_err(Errno::from)
    }

    /// Writes a deferred create's first version, which also creates the file. None: the manager knows the file already.
    pub(crate) async fn first_commit(
        &self,
        ino: u64,
        times: Times,
        bytes: &Bytes,
    ) -> Option<Result<WriteDone, FileError>> {
        if self.with(|core, _| core.is_settled(ino)).is_some() {
            return None;
        }
        let Action::Commit(waiter, file) = self.wait(|waiter| Event::Commit(waiter, ino)).await else {
            unreachable!("a commit begins as one");
        };
        let NewFile { parent, name, entry, times: created, inos, .. } = file?;
        let stamp = self.with(Namespace::stamp);
        let (owner, policy) = (owner_of(&entry.attr), entry.policy());
        let new = FileToWrite { parent, name: &name, ino, owner, policy, inos };
        let done = self.backend.write_new(new, bytes.clone(), times.or(created)).await;
        let result = match &done {
            Ok(done) => {
                Ok(FirstCommit { entry: done.entry.clone(), inos: done.inos, delegation_ms: done.delegation_ms })
            }
            Err(error) => Err(error.code()),
        };
        if result.as_ref().err() == Some(&Code::VersionConflict) {
            say_taken(ino, parent);
        }
        let mut state = self.state.lock();
        self.handle(&mut state, Event::Committed { waiter, ino, stamp, result });
        Some(done)
    }

    /// Leases on these inodes end; none: all leases and delegations end. Does not wait for the kernel, which may be
    /// waiting for this mount. Returns how long that may keep their names.
    pub(crate) fn recalled(&self, inos: Option<&[u64]>) -> KeptNames {
        let mut state = self.state.lock();
        let now_ns = self.backend.now_ns();
        let kept = state.core.cache.kept_names(now_ns, inos.unwrap_or_default());
        self.handle(&mut state, Event::Recalled(inos.map(<[u64]>::to_vec)));
        KeptNames { untold: kept.untold.max(state.core.cache.untold_for()), ..kept }
    }

    /// Delegations end. Calls `answer` once the manager knows the files that were created in these directories.
    pub fn delegation_recalled(&self, directories: Vec<u64>, answer: Answer) {
        let mut state = self.state.lock();
        let recall = state.number();
        state.recalls.insert(recall, answer);
        self.handle(&mut state, Event::DelegationRecalled { recall, directories });
    }

    /// Hands an event in, and carries out or queues the core's actions.
    fn handle(&self, state: &mut MutexGuard<'_, State>, event: Event) {
        self.handle_for(None, state, event);
    }

    /// As [`NamespaceDriver::handle`], by a waiter that looks for its outcome at once.
    fn handle_for(&self, caller: Option<Waiter>, state: &mut MutexGuard<'_, State>, event: Event) {
        let now_ns = self.backend.now_ns();
        state.core.handle(now_ns, event);
        self.tell_evicted(&mut state.core);
        let mut wakes = false;
        while let Some(action) = state.core.poll() {
            wakes |= match &action {
                Action::Create { .. } => true,
                Action::Commit(waiter, _) | Action::Settled(waiter, _) => Some(*waiter) != caller,
                Action::AnswerRecall(_) | Action::InvalidateNames(_) => false,
            };
            match action {
                Action::Create { group, file } => state.creates.push_back((group, file)),
                Action::Commit(waiter, _) | Action::Settled(waiter, _) => drop(state.outcomes.insert(waiter, action)),
                Action::AnswerRecall(recall) => {
                    let answer = state.recalls.remove(&recall);
                    state.answers.extend(answer);
                }
                Action::InvalidateNames(names) => {
                    self.tell(&mut state.core, names);
                }
            }
        }
        if wakes {
            self.changed.notify_waiters();
        }
        let answers = std::mem::take(&mut state.answers);
        if !answers.is_empty() {
            MutexGuard::unlocked(state, || answers.into_iter().for_each(|answer| answer()));
        }
    }

    /// Hands an event in, and sends requests until its outcome is there.
    async fn wait(&self, event: impl FnOnce(Waiter) -> Event) -> Action {
        let waiter = {
            let mut state = self.state.lock();
            let waiter = Waiter(state.number());
            self.handle_for(Some(waiter), &mut state, event(waiter));
            waiter
        };
        loop {
            // Made before the look, so that no change is missed.
            let changed = self.changed.notified();
            let create = {
                let mut state = self.state.lock();
                if let Some(outcome) = state.outcomes.remove(&waiter) {
                    return outcome;
                }
                state.creates.pop_front()
            };
            match create {
                Some((group, file)) => self.create(group, &file).await,
                None => changed.await,
            }
        }
    }

    async fn create(&self, group: u64, file: &NewFile) {
        let new = new_node((file.parent, &file.name), InodeKind::File, owner_of(&file.entry.attr));
        let Times { mtime_ns, ctime_ns, atime_ns } = file.times;
        let new = MakeNode { ino: file.ino, mtime_ns, ctime_ns, atime_ns, ..new };
        let made = self.backend.make_node(new).await;
        let result = made.map(drop).map_err(|error| match error.code() {
            Code::Exists => {
                say_taken(file.ino, file.parent);
                Code::VersionConflict
            }
            code => {
                explained("create", file.parent, &error);
                code
            }
        });
        self.handle(&mut self.state.lock(), Event::Created { group, ino: file.ino, result });
    }

    /// Waits a tick for a request to send, and sends it.
    async fn next_create(&self) -> Option<(u64, NewFile)> {
        let changed = self.changed.notified();
        if let Some(create) = self.state.lock().creates.pop_front() {
            return Some(create);
        }
        let _ = race(changed, self.backend.sleep(TICK)).await;
        self.state.lock().creates.pop_front()
    }

    /// Looks for files that are due, once a tick.
    fn tick(&self) {
        let now_ns = self.backend.now_ns();
        let mut state = self.state.lock();
        if now_ns.saturating_sub(state.ticked_ns) >= TICK.as_nanos() as i64 {
            state.ticked_ns = now_ns;
            self.handle(&mut state, Event::Tick);
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

fn named_attr(NamedEntry { name, entry }: &NamedEntry) -> Option<(&[u8], &Attr)> {
    Some((name, entry.as_ref()?.attr.as_ref()?))
}

fn say_taken(ino: u64, parent: u64) {
    tracing::error!(ino, parent, "another client's file has the name of a new file, which is lost");
}

fn owner_of(attr: &Attr) -> Owner {
    Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid }
}

/// Sends the requests that no operation waits for, until the mount is gone.
pub async fn work<B: Backend>(mount: Weak<Mount<B>>) {
    let Some(driver) = mount.upgrade().map(|mount| mount.namespace.clone()) else { return };
    loop {
        let create = driver.next_create().await;
        let Some(mount) = mount.upgrade() else { return };
        driver.tick();
        mount.recent.expire(&driver.backend);
        mount.ahead.expire(driver.backend.now_ns());
        if let Some((group, file)) = create {
            driver.create(group, &file).await;
        }
    }
}
