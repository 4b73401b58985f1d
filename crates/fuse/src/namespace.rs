//! Runs the namespace core ([`tessera_mount::namespace`]): a lock, a clock, and threads for its requests.
//!
//! The core asks for deferred creates to be sent to the manager. A thread that waits for the core sends such requests
//! meanwhile, its own or not. A background thread sends those that no thread waits for (recalls, files that are due).

use crate::attr::{errno, explained};
use crate::mount::{Stale, Store};
use bytes::Bytes;
use crossbeam_channel::Sender;
use fuser::Errno;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_client::inodes::{NewAttr, NewFile as FileToWrite, NewNode};
use tessera_client::{Client, FileError, Owner, WriteDone};
use tessera_mount::namespace::{
    Action, AttrChange, EntryAttr, Event, FirstCommit, LookupResult, Loss, Namespace, NewFile, Scope, Waiter,
};
use tessera_wire::{Attr, Code, InodeKind};

/// Interval at which the core looks for files that are due.
const TICK: Duration = Duration::from_millis(100);

/// Answers a recall.
type Answer = Box<dyn FnOnce() + Send>;

/// See the module.
pub struct NamespaceShell {
    state: Mutex<State>,
    /// There are requests to send, or an outcome for a waiter.
    changed: Condvar,
    started: Instant,
    stale: Sender<Stale>,
}

struct State {
    core: Namespace,
    /// Requests to send.
    creates: VecDeque<(u64, NewFile)>,
    outcomes: HashMap<Waiter, Outcome>,
    recalls: HashMap<u64, Answer>,
    /// Recalls to answer once the lock is released.
    answers: Vec<Answer>,
    last_number: u64,
}

enum Outcome {
    Settled(Result<(), Loss>),
    Commit(Option<Box<(Waiter, NewFile)>>),
}

/// Marks a request that creates a name as in flight, until it is dropped.
pub struct CreateInFlight<'a>(&'a NamespaceShell, u64);

impl Drop for CreateInFlight<'_> {
    fn drop(&mut self) {
        self.0.state.lock().core.end_create(self.1);
    }
}

impl NamespaceShell {
    /// `stale` receives the names that the kernel must forget.
    pub fn new(stale: Sender<Stale>) -> NamespaceShell {
        let state = State {
            core: Namespace::new(),
            creates: VecDeque::new(),
            outcomes: HashMap::new(),
            recalls: HashMap::new(),
            answers: Vec::new(),
            last_number: 0,
        };
        NamespaceShell { state: Mutex::new(state), changed: Condvar::new(), started: Instant::now(), stale }
    }

    fn now_ns(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Calls the core with the current time.
    pub fn with<T>(&self, ask: impl FnOnce(&mut Namespace, i64) -> T) -> T {
        let mut state = self.state.lock();
        let now_ns = self.now_ns();
        ask(&mut state.core, now_ns)
    }

    /// An inode, if the core knows it.
    pub fn attr(&self, ino: u64) -> Option<EntryAttr> {
        self.with(|core, now_ns| core.attr(now_ns, ino))
    }

    /// Must be called before sending a request that creates `name` in `parent`. Keep the result until the answer was
    /// handed in.
    #[must_use]
    pub fn begin_create(&self, parent: u64, name: &[u8]) -> CreateInFlight<'_> {
        self.state.lock().core.begin_create(parent, name);
        CreateInFlight(self, parent)
    }

    /// An inode, from the core or from the manager.
    ///
    /// # Errors
    /// The manager's.
    pub fn get(&self, client: &Client, ino: u64) -> Result<EntryAttr, tessera_wire::Error> {
        if let Some(entry) = self.attr(ino) {
            return Ok(entry);
        }
        let stamp = self.with(Namespace::stamp);
        let entry = client.inodes().get(ino)?;
        self.with(|core, _| core.fetched(stamp, None, &entry));
        Ok(entry.into())
    }

    /// What a name stands for, from the core or from the manager.
    ///
    /// # Errors
    /// The manager's, and `NotFound` if the core knows that the name does not exist.
    pub fn lookup(&self, client: &Client, parent: u64, name: &[u8]) -> Result<EntryAttr, tessera_wire::Error> {
        match self.with(|core, now_ns| core.lookup(now_ns, parent, name)) {
            LookupResult::Found(entry) => return Ok(entry),
            LookupResult::Absent => return Err(tessera_wire::Error::new(Code::NotFound, "no such name")),
            LookupResult::Unknown => {}
        }
        let stamp = self.with(Namespace::stamp);
        let entry = client.inodes().lookup(parent, name)?;
        self.with(|core, _| core.fetched(stamp, Some((parent, name)), &entry));
        Ok(entry.into())
    }

    /// Makes sure that the manager knows deferred creates.
    ///
    /// # Errors
    /// The error of the first file that the manager rejects.
    pub fn settle(&self, client: &Client, scope: Scope) -> Result<(), Errno> {
        let settled = match scope {
            Scope::File(ino) => self.with(|core, _| core.is_settled(ino)),
            _ => None,
        };
        let result = match settled {
            Some(result) => result,
            None => match self.wait(client, |waiter| Event::Settle(waiter, scope)) {
                Outcome::Settled(result) => result,
                Outcome::Commit(_) => unreachable!("a settlement ends as one"),
            },
        };
        result.map_err(errno)
    }

    /// The last handle of a file is closed: creates the file if needed, even if none of its content could be stored.
    pub fn closed(&self, client: &Client, ino: u64) {
        if self.with(|core, _| core.is_settled(ino)) != Some(Ok(())) {
            self.wait(client, |waiter| Event::Closed(waiter, ino));
        }
    }

    /// Reports whether a deferred create is lost.
    ///
    /// # Errors
    /// The loss.
    pub fn check(&self, ino: u64) -> Result<(), Errno> {
        self.with(|core, _| core.check(ino)).map_err(errno)
    }

    /// Changes a deferred create's attributes, if the core takes the change.
    pub fn set_deferred_attr(&self, ino: u64, new: &NewAttr) -> Option<EntryAttr> {
        let NewAttr { mode, uid, gid, mtime_ns: None, atime_ns: None } = *new else { return None };
        self.with(|core, _| core.set_deferred_attr(ino, AttrChange { mode, uid, gid }))
    }

    /// Writes a deferred create's first version, which also creates the file. None: the manager knows the file already.
    pub fn first_commit(
        &self,
        client: &Client,
        ino: u64,
        mtime_ns: i64,
        bytes: &Bytes,
    ) -> Option<Result<WriteDone, FileError>> {
        if self.with(|core, _| core.is_settled(ino)).is_some() {
            return None;
        }
        let Outcome::Commit(file) = self.wait(client, |waiter| Event::Commit(waiter, ino)) else {
            unreachable!("a commit begins as one");
        };
        let (waiter, NewFile { parent, name, entry, inos, .. }) = *file?;
        let stamp = self.with(Namespace::stamp);
        let (owner, policy) = (owner_of(&entry.attr), entry.policy());
        let new = FileToWrite { parent, name: &name, ino, owner, policy, inos };
        let done = client.inodes().write_new(new, bytes.clone(), mtime_ns);
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
    /// waiting for this mount.
    pub fn recalled(&self, inos: Option<&[u64]>) {
        self.handle(&mut self.state.lock(), Event::Recalled(inos.map(<[u64]>::to_vec)));
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
        let now_ns = self.now_ns();
        state.core.handle(now_ns, event);
        let mut wakes = false;
        while let Some(action) = state.core.poll() {
            wakes |= matches!(action, Action::Create { .. } | Action::Commit(..) | Action::Settled(..));
            match action {
                Action::Create { group, file } => state.creates.push_back((group, file)),
                Action::Commit(waiter, file) => {
                    state.outcomes.insert(waiter, Outcome::Commit(file.map(|file| Box::new((waiter, file)))));
                }
                Action::Settled(waiter, result) => drop(state.outcomes.insert(waiter, Outcome::Settled(result))),
                Action::AnswerRecall(recall) => {
                    let answer = state.recalls.remove(&recall);
                    state.answers.extend(answer);
                }
                // Fails if the receiver is gone; then there is no kernel to tell.
                Action::InvalidateNames(names) => drop(self.stale.send(Stale::Names(names))),
            }
        }
        if wakes {
            self.changed.notify_all();
        }
        let answers = std::mem::take(&mut state.answers);
        if !answers.is_empty() {
            MutexGuard::unlocked(state, || answers.into_iter().for_each(|answer| answer()));
        }
    }

    /// Hands an event in, and sends requests until its outcome is there.
    fn wait(&self, client: &Client, event: impl FnOnce(Waiter) -> Event) -> Outcome {
        let mut state = self.state.lock();
        let waiter = Waiter(state.number());
        self.handle(&mut state, event(waiter));
        loop {
            if let Some(outcome) = state.outcomes.remove(&waiter) {
                return outcome;
            }
            match state.creates.pop_front() {
                Some((group, file)) => self.create(client, &mut state, group, &file),
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn create(&self, client: &Client, state: &mut MutexGuard<'_, State>, group: u64, file: &NewFile) {
        let result = MutexGuard::unlocked(state, || {
            let owner = owner_of(&file.entry.attr);
            let node = NewNode { kind: InodeKind::File, owner, ino: file.ino, ..NewNode::default() };
            client.inodes().make_node(file.parent, &file.name, node).map(drop).map_err(|error| match error.kind() {
                Code::Exists => {
                    say_taken(file.ino, file.parent);
                    Code::VersionConflict
                }
                code => {
                    explained("create", file.parent, &error);
                    code
                }
            })
        });
        self.handle(state, Event::Created { group, ino: file.ino, result });
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

fn say_taken(ino: u64, parent: u64) {
    tracing::error!(ino, parent, "another client's file has the name of a new file, which is lost");
}

fn owner_of(attr: &Attr) -> Owner {
    Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid }
}

/// Sends the requests that no thread waits for, until the store is gone.
pub fn work(shell: &NamespaceShell, store: &Weak<Store>) {
    let mut ticked = Instant::now();
    loop {
        let mut state = shell.state.lock();
        if state.creates.is_empty() {
            shell.changed.wait_for(&mut state, TICK);
        }
        let Some(store) = store.upgrade() else { return };
        if ticked.elapsed() >= TICK {
            ticked = Instant::now();
            shell.handle(&mut state, Event::Tick);
        }
        if let Some((group, file)) = state.creates.pop_front() {
            shell.create(&store.client, &mut state, group, &file);
        }
        drop(state);
        drop::<Arc<Store>>(store);
    }
}
