//! The mount's view of the namespace: the attribute cache, delegations and deferred creates, as one state machine.
//!
//! *Questions* ([`Namespace::lookup`], [`Namespace::attr`]) are answered from memory or not at all. In the second case
//! the shell asks the manager and hands the answer in ([`EntryCache::fetched`] and similar), with the [`Stamp`] that it
//! took before the request. Work that needs requests of the core's own goes through [`Namespace::handle`] and
//! [`Namespace::poll`]:
//!
//! | event | what happens | actions | completed by |
//! |---|---|---|---|
//! | [`Event::Settle`] | the manager must know some deferred creates | `Create` one after another, then `Settled` | [`Event::Created`] |
//! | [`Event::Commit`] | a file's first version is to be written | `Commit`, with the file if it is a deferred create | [`Event::Committed`], if it is |
//! | [`Event::Closed`] | the last handle is gone | `Create` if still needed, then `Settled` | [`Event::Created`] |
//! | [`Event::Recalled`] | leases end | `InvalidateNames` | |
//! | [`Event::DelegationRecalled`] | delegations end | `Create`, then `AnswerRecall` | [`Event::Created`] |
//! | [`Event::Tick`] | time passes | `Create` | [`Event::Created`] |
//!
//! If this client was cut off for longer than a lease lasts, the manager may have given a name to another client's
//! file. The deferred create is then *lost*: the program gets `ESTALE` from `close` or `fsync`.

mod ahead;
mod deferred;
mod delegations;
pub mod driver;
mod entry_cache;
mod following;
mod listings;
mod shared;
#[cfg(test)]
mod tests;

pub(crate) use deferred::Loss;
pub(crate) use delegations::INOS;
pub use entry_cache::{CacheStats, Name, NameRef};
pub(crate) use entry_cache::{EntryAttr, Stamp};
pub(crate) use following::Batch;
pub use listings::KeptNames;
pub(crate) use listings::{ListingLease, TOLD_NS};

use crate::backend::NewAttr;
use ahead::LookAhead;
use deferred::{DeferredCreates, Next};
use delegations::Delegations;
use entry_cache::EntryCache;
use following::FollowingFiles;
use std::collections::{HashMap, VecDeque};
use tessera_client::Times;
use tessera_failpoint as failpoint;
use tessera_wire::meta::{Entry, InoRange};
use tessera_wire::{Attr, Code};

const MS: i64 = 1_000_000;
/// The manager rejects longer names.
const MAX_NAME_BYTES: usize = 255;

/// A thread that waits for an [`Action::Settled`] or [`Action::Commit`]; the shell chooses the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Waiter(pub u64);

/// The sender of the request that tells the manager of a deferred create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimant {
    /// A group of files to be settled.
    Settle(u64),
    /// A first commit.
    Commit(Waiter),
}

/// A set of deferred creates that the manager must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This file.
    File(u64),
    /// All files in this directory.
    Directory(u64),
    /// The file of this name.
    Name(u64, Vec<u8>),
    /// All files in the directory of this name; in any directory, if it is unknown what the name stands for.
    Below(u64, Vec<u8>),
}

/// An event. See the module.
#[derive(Debug)]
pub(crate) enum Event {
    /// Deferred creates are to be settled.
    Settle(Waiter, Scope),
    /// The first version of this file is to be committed.
    Commit(Waiter, u64),
    /// The last handle of this file is closed.
    Closed(Waiter, u64),
    /// An [`Action::Create`] was carried out.
    Created {
        /// Of the action.
        group: u64,
        /// Of the action.
        ino: u64,
        /// [`Code::VersionConflict`]: another file has the name.
        result: Result<(), Code>,
    },
    /// An [`Action::Commit`] of a deferred create was carried out.
    Committed {
        /// Of the action.
        waiter: Waiter,
        /// The file.
        ino: u64,
        /// When the request was sent.
        stamp: Stamp,
        /// The answer.
        result: Result<FirstCommit, Code>,
    },
    /// The manager recalls leases on these inodes; none: the connection and all leases are lost.
    Recalled(Option<Vec<u64>>),
    /// The manager recalls delegations.
    DelegationRecalled {
        /// Comes back with [`Action::AnswerRecall`].
        recall: u64,
        /// The directories.
        directories: Vec<u64>,
    },
    /// Time passed.
    Tick,
}

/// A request to the shell.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "actions are few, and taken at once")]
pub(crate) enum Action {
    /// Create the file at the manager, then hand in [`Event::Created`].
    Create {
        /// Goes back with the event.
        group: u64,
        /// The file.
        file: NewFile,
    },
    /// Write the file's first version. For a deferred create: together with the file, then hand in
    /// [`Event::Committed`].
    Commit(Waiter, Option<NewFile>),
    /// The waiter's files are settled. An error is that of the first file that failed.
    Settled(Waiter, Result<(), Loss>),
    /// Answer the recall.
    AnswerRecall(u64),
    /// The kernel must forget these names.
    InvalidateNames(Vec<Name>),
}

/// A deferred create, in the form that the manager needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NewFile {
    /// Its number.
    pub ino: u64,
    /// Its directory.
    pub parent: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// Owner, mode, hints.
    pub entry: EntryAttr,
    /// Its times, unless a commit has others.
    pub times: Times,
    /// Inode numbers to ask for along with it.
    pub inos: u32,
}

/// The manager's answer to a first commit.
#[derive(Debug, Clone, Default)]
pub(crate) struct FirstCommit {
    /// The file.
    pub entry: Option<Box<Entry>>,
    /// Inode numbers for later creates.
    pub inos: Option<InoRange>,
    /// Lifetime of the directory's delegation, counted from the request, ms; 0: none.
    pub delegation_ms: u64,
}

/// Answer to a lookup.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LookupResult {
    /// The name stands for this inode.
    Found(EntryAttr),
    /// The name does not exist.
    Absent,
    /// Ask the manager.
    Unknown,
}

/// Files that are settled one after another.
#[derive(Debug)]
struct Group {
    rest: VecDeque<u64>,
    result: Result<(), Loss>,
    then: Then,
}

/// What follows once a group is done.
#[derive(Debug, Clone, Copy)]
enum Then {
    Reply(Waiter),
    Close(Waiter, u64),
    AnswerRecall(u64),
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Namespace {
    pub cache: EntryCache,
    pub ahead: LookAhead,
    pub following: FollowingFiles,
    pub delegations: Delegations,
    pub deferred: DeferredCreates,
    groups: HashMap<u64, Group>,
    last_group: u64,
    actions: VecDeque<Action>,
}

impl Namespace {
    /// Nothing is known. The kernel keeps names for `kept_ns` at most.
    pub fn new(kept_ns: i64) -> Namespace {
        Namespace { cache: EntryCache::new(kept_ns), ..Namespace::default() }
    }

    fn advance(&mut self, now_ns: i64) -> i64 {
        self.cache.advance(now_ns)
    }

    // --- questions --------------------------------------------------------------------------------------------

    /// The stamp of a request that is about to be sent.
    pub fn stamp(&mut self, now_ns: i64) -> Stamp {
        let at_ns = self.advance(now_ns);
        Stamp { at_ns, changes: self.cache.changes, recalls: self.delegations.recalls }
    }

    /// An inode, if it is cached or a deferred create.
    pub fn attr(&mut self, now_ns: i64, ino: u64) -> Option<EntryAttr> {
        let now_ns = self.advance(now_ns);
        let found = self.cache.get(now_ns, ino);
        self.cache.count(found.is_some());
        found.or_else(|| self.deferred.shown(ino).cloned())
    }

    /// What a name stands for.
    pub fn lookup(&mut self, now_ns: i64, parent: u64, name: &[u8]) -> LookupResult {
        let found = self.find(now_ns, parent, name);
        if let LookupResult::Found(entry) = &found {
            self.cache.note_seen(&entry.attr, (parent, name));
        }
        self.cache.count(matches!(&found, LookupResult::Found(entry) if self.deferred.entry(entry.attr.ino).is_none()));
        found
    }

    fn find(&mut self, now_ns: i64, parent: u64, name: &[u8]) -> LookupResult {
        let now_ns = self.advance(now_ns);
        if let Some(entry) = self.cache.lookup(now_ns, parent, name) {
            return LookupResult::Found(entry);
        }
        if name.len() > MAX_NAME_BYTES {
            return LookupResult::Unknown;
        }
        let deferred = self.deferred.by_name(&(parent, name.to_vec()));
        match deferred.and_then(|ino| self.deferred.shown(ino)) {
            Some(entry) => LookupResult::Found(entry.clone()),
            None if deferred.is_some() => LookupResult::Unknown,
            None if self.delegations.is_absent(now_ns, parent, name) => LookupResult::Absent,
            None => LookupResult::Unknown,
        }
    }

    /// How much longer a kernel that is told of recalls may keep a name in `parent` that stands for this inode, ns; none: it is a deferred
    /// create, whose directory is recalled. The manager grants no lease on what it is about to change. The kernel hears of a recall a
    /// moment after it is answered; where mounts take turns, a program could look up the name within that moment.
    pub fn recalled_for_ns(&self, now_ns: i64, parent: u64, ino: u64) -> Option<i64> {
        match self.cache.lease_left_ns(now_ns, ino) {
            _ if self.cache.is_shared(now_ns, parent) => Some(0),
            None if self.deferred.entry(ino).is_some() => None,
            left_ns => Some(left_ns.unwrap_or(0)),
        }
    }

    /// None if the file is a deferred create; otherwise the result that [`Event::Settle`] would give at once.
    pub fn is_settled(&self, ino: u64) -> Option<Result<(), Loss>> {
        if self.deferred.entry(ino).is_some() { None } else { Some(self.deferred.check(ino)) }
    }

    // --- answers of the manager -------------------------------------------------------------------------------

    /// This mount created `name` in `parent`. `delegated`: the directory whose delegation the answer may grant.
    pub fn created_here(&mut self, stamp: Stamp, parent: u64, name: &[u8], entry: &mut Entry, delegated: u64) {
        self.cache.created_here(stamp, parent, name, entry);
        self.delegations.add_inos(entry.inos);
        // Names created in a new directory before this answer came are in no list.
        if delegated != parent && self.delegations.has_created_in(delegated) {
            return;
        }
        let (names, lifetime_ms) = (std::mem::take(&mut entry.names), entry.delegation_ms);
        let deferred = self.deferred.names_in(delegated);
        self.delegations.grant(self.cache.now_ns, delegated, stamp, lifetime_ms, names, deferred);
    }

    // --- creates ----------------------------------------------------------------------------------------------

    /// Creates a file without the manager, if the directory is delegated for long enough and the name is free. `attr`:
    /// its attributes except the number; `hints_of`: its directory.
    pub fn create_deferred(
        &mut self,
        now_ns: i64,
        (parent, name): NameRef<'_>,
        attr: Attr,
        hints_of: &EntryAttr,
    ) -> Option<EntryAttr> {
        let now_ns = self.advance(now_ns);
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
        let settle_at_ns = self.delegations.claim_name(now_ns, parent, name)?;
        let ino = self.delegations.draw_ino().expect("a claim makes sure that there is a number");
        // A restored manager may have given out a number twice.
        if self.deferred.entry(ino).is_some() {
            return None;
        }
        let entry = EntryAttr { attr: Attr { ino, ..attr }, hints: hints_of.hints.clone() };
        self.deferred.insert(ino, (parent, name.to_vec()), entry.clone(), settle_at_ns);
        self.cache.name_changed(parent, name, &entry.attr);
        Some(entry)
    }

    /// Changes a deferred create's attributes. None: the file is not a deferred create, or a request about it is in flight.
    pub fn set_deferred_attr(&mut self, ino: u64, new: &NewAttr) -> Option<EntryAttr> {
        self.deferred.set_attr(ino, new)
    }

    // --- events and actions -----------------------------------------------------------------------------------

    /// The next action for the shell.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Handles an event.
    pub fn handle(&mut self, now_ns: i64, event: Event) {
        let now_ns = self.advance(now_ns);
        match event {
            Event::Settle(waiter, scope) => {
                let files = self.in_scope(now_ns, scope);
                self.settle(files, Then::Reply(waiter));
            }
            Event::Commit(waiter, ino) => {
                let next = self.deferred.claim(ino, Claimant::Commit(waiter));
                self.go_on(next);
            }
            Event::Closed(waiter, ino) => self.settle([ino].into(), Then::Close(waiter, ino)),
            Event::Created { group, ino, result } => self.answered(ino, Claimant::Settle(group), result),
            Event::Committed { waiter, ino, stamp, result } => self.committed(waiter, ino, stamp, result),
            Event::Recalled(inos) => self.recalled(inos),
            Event::DelegationRecalled { recall, directories } => {
                if failpoint::is_active("mount.delegation_recall_ignored") {
                    return self.actions.push_back(Action::AnswerRecall(recall));
                }
                self.cache.note_shared(directories.iter().copied());
                directories.iter().for_each(|directory| self.delegations.recall(Some(*directory)));
                let files = directories.iter().flat_map(|directory| self.deferred.in_directory(Some(*directory)));
                let files = files.collect();
                if failpoint::is_active("mount.recall_answered_early") {
                    self.actions.push_back(Action::AnswerRecall(recall));
                    return self.settle(files, Then::Nothing);
                }
                self.settle(files, Then::AnswerRecall(recall));
            }
            Event::Tick => {
                for ino in self.deferred.due(now_ns) {
                    self.settle([ino].into(), Then::Nothing);
                }
            }
        }
    }

    fn in_scope(&mut self, now_ns: i64, scope: Scope) -> VecDeque<u64> {
        match scope {
            Scope::File(ino) => [ino].into(),
            Scope::Directory(directory) => self.deferred.in_directory(Some(directory)),
            Scope::Name(parent, name) => self.deferred.by_name(&(parent, name)).into_iter().collect(),
            Scope::Below(parent, name) => {
                if let Some(entry) = self.cache.lookup(now_ns, parent, &name) {
                    return self.deferred.in_directory(Some(entry.attr.ino));
                }
                match self.find(now_ns, parent, &name) {
                    LookupResult::Unknown => self.deferred.in_directory(None),
                    // A deferred create is a file, so no other file is below it.
                    LookupResult::Found(_) | LookupResult::Absent => VecDeque::new(),
                }
            }
        }
    }

    fn recalled(&mut self, inos: Option<Vec<u64>>) {
        if inos.is_none() {
            if failpoint::is_active("mount.reconnect_loses_creates") {
                self.deferred.forget_idle();
            }
            self.delegations.recall(None);
        }
        self.deferred.recalled(inos.as_deref());
        if failpoint::is_active("mount.recall_keeps_entries") && inos.is_some() {
            return;
        }
        if let Some(inos) = &inos {
            let listed = self.cache.listings.kept_of(self.cache.now_ns, inos);
            self.cache.note_shared(listed);
        }
        let mut names = self.cache.forget(inos.as_deref());
        names.extend(self.cache.listings.recalled(self.cache.now_ns, inos.as_deref()));
        if inos.is_some() {
            self.cache.note_shared(names.iter().map(|(parent, _)| *parent));
        }
        if !names.is_empty() {
            self.actions.push_back(Action::InvalidateNames(names));
        }
    }

    fn settle(&mut self, rest: VecDeque<u64>, then: Then) {
        self.last_group += 1;
        self.groups.insert(self.last_group, Group { rest, result: Ok(()), then });
        self.next_of(self.last_group);
    }

    /// Continues with the next file of a group, or ends the group.
    fn next_of(&mut self, number: u64) {
        loop {
            let group = self.groups.get_mut(&number).expect("a group lives until its last file is settled");
            let Some(ino) = group.rest.pop_front() else { break };
            match self.deferred.claim(ino, Claimant::Settle(number)) {
                Some(Next::Done(_, result)) => group.result = group.result.and(result),
                next => return self.go_on(next),
            }
        }
        let Some(Group { result, then, .. }) = self.groups.remove(&number) else { return };
        match then {
            Then::Reply(waiter) => self.actions.push_back(Action::Settled(waiter, result)),
            Then::Close(waiter, ino) => {
                self.deferred.closed(ino);
                self.actions.push_back(Action::Settled(waiter, result));
            }
            Then::AnswerRecall(recall) => self.actions.push_back(Action::AnswerRecall(recall)),
            Then::Nothing => {}
        }
    }

    fn go_on(&mut self, next: impl IntoIterator<Item = Next>) {
        for next in next {
            match next {
                Next::Send(Claimant::Settle(group), ino) => {
                    self.actions.push_back(Action::Create { group, file: self.deferred.new_file(ino, 0) });
                }
                Next::Send(Claimant::Commit(waiter), ino) => {
                    let file = self.deferred.new_file(ino, self.delegations.inos_wanted());
                    self.actions.push_back(Action::Commit(waiter, Some(file)));
                }
                Next::Done(Claimant::Settle(number), result) => {
                    let group = self.groups.get_mut(&number).expect("a group lives until its last file is settled");
                    group.result = group.result.and(result);
                    self.next_of(number);
                }
                Next::Done(Claimant::Commit(waiter), _) => self.actions.push_back(Action::Commit(waiter, None)),
            }
        }
    }

    fn answered(&mut self, ino: u64, by: Claimant, result: Result<(), Code>) {
        let (parent, name) =
            self.deferred.name(ino).cloned().expect("a file stays while a request about it is on its way");
        let next = self.deferred.answered(ino, by, result);
        if self.deferred.entry(ino).is_none() {
            self.delegations.settled(parent, &name);
        }
        self.go_on(next);
    }

    fn committed(&mut self, waiter: Waiter, ino: u64, stamp: Stamp, result: Result<FirstCommit, Code>) {
        let (parent, name) =
            self.deferred.name(ino).cloned().expect("a file stays while a request about it is on its way");
        if let Ok(FirstCommit { entry, inos, delegation_ms }) = &result {
            if let Some(entry) = entry {
                self.cache.created_here(stamp, parent, &name, entry);
            }
            self.delegations.add_inos(*inos);
            self.delegations.renew(self.cache.now_ns, parent, stamp.at_ns, *delegation_ms);
        }
        self.answered(ino, Claimant::Commit(waiter), result.map(drop));
    }
}

fn ms_to_ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(MS)
}
