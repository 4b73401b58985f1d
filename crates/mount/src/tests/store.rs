//! A store in memory for one test: files with versions, whose commits can lose their answer, and requests that wait.

use crate::backend::{Backend, Drain, Reader, Writer};
use crate::namespace::Name;
use bytes::Bytes;
use prost::Message;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::ops::{Bound, Range};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tessera_client::inodes::{NewFile, OnlyIf};
use tessera_client::locate::Located;
use tessera_client::{Cancel, Cause, FileError, Opened, Owner, ProgressFn, Times, WriteDone};
use tessera_policy::Policy;
use tessera_wire::meta::*;
use tessera_wire::{Ack, Attr, Code, Error, Hint, InodeKind, Kind, Request};

/// The lifetime of a delegation, ms.
const DELEGATION_MS: u64 = 10_000;

/// A version of a file.
#[derive(Debug, Clone, Default)]
pub struct Version {
    pub id: u64,
    pub content: u64,
    pub bytes: Vec<u8>,
}

/// Number of the only table.
const TABLE: u64 = 1;

/// The manager's side of locks, for one client and whole files.
#[derive(Default)]
pub struct LockTable {
    /// Holders by file.
    pub held: BTreeMap<u64, u64>,
    /// Modes of the locks on a file's first 64 bytes, by file and byte.
    pub modes: BTreeMap<(u64, u64), LockMode>,
    /// Number of times that the client asserted its locks.
    pub assertions: u32,
    /// While set, no request is answered.
    pub is_silent: bool,
    /// The client was silent for too long: its locks are gone, and it must assert them.
    pub has_expired: bool,
    /// Another client has a shared lock on every file: an exclusive one is refused.
    pub is_shared: bool,
    /// While set, requests that may wait do so.
    pub waits: bool,
    /// Numbers of the requests that wait.
    pub queued: BTreeSet<u64>,
    /// While set, the client gets the delegations that it asks for.
    pub delegates: bool,
    /// While set, requests are carried out, and their answers lost.
    pub loses_answers: bool,
    /// Lease of the client's locks, ms.
    pub lease_ms: u64,
    /// Number of requests for locks.
    pub requests: u32,
    /// What the client told last when it returned a delegation, or asserted its locks.
    pub told: Vec<FileLock>,
    /// Number of returned delegations.
    pub returns: u32,
    delegated: BTreeSet<u64>,
}

impl LockTable {
    fn answer(&mut self, kind: Kind, request: &[u8]) -> Result<Vec<u8>, Error> {
        if self.is_silent {
            return Err(Error::new(Code::Unavailable, "silent"));
        }
        if kind == Kind::HoldLocks {
            if HoldLocks::decode(request).unwrap().next_table != TABLE {
                return Ok(HoldLocksReply { next_table: TABLE, ..HoldLocksReply::default() }.encode_to_vec());
            }
            self.assertions += 1;
            self.told = HoldLocks::decode(request).unwrap().held;
            let lost = std::mem::take(&mut self.has_expired);
            let (table, lease_ms) = (TABLE, self.lease_ms);
            return Ok(HoldLocksReply { table, lost, lease_ms, ..HoldLocksReply::default() }.encode_to_vec());
        }
        if self.has_expired {
            return Err(Error::new(Code::SessionExpired, "expired"));
        }
        let answer = self.carry_out(kind, request);
        match self.loses_answers {
            true => Err(Error::new(Code::Timeout, "no answer")),
            false => Ok(answer),
        }
    }

    fn carry_out(&mut self, kind: Kind, request: &[u8]) -> Vec<u8> {
        let fence = Some(LockFence { table: 1, number: 1 });
        if kind == Kind::ReturnLocks {
            let returned = ReturnLocks::decode(request).unwrap();
            self.delegated.remove(&returned.ino);
            self.modes.retain(|(ino, _), _| *ino != returned.ino);
            returned.held.iter().for_each(|lock| self.set(lock));
            self.told = returned.held;
            self.returns += 1;
            return SetLockReply { outcome: LockOutcome::Granted as i32, fence, ..SetLockReply::default() }
                .encode_to_vec();
        }
        if kind == Kind::SetLock {
            let asked = SetLock::decode(request).unwrap();
            let lock = asked.lock.unwrap();
            self.requests += 1;
            assert!(!self.delegated.contains(&lock.ino), "the client decides about {lock:?}");
            self.queued.remove(&asked.seq);
            let outcome = match lock.mode() {
                LockMode::Write if self.is_shared => LockOutcome::Refused,
                LockMode::Write if self.waits && asked.wait => LockOutcome::Waiting,
                _ => LockOutcome::Granted,
            };
            if outcome == LockOutcome::Waiting {
                self.queued.insert(asked.seq);
            }
            if outcome != LockOutcome::Granted {
                return SetLockReply { outcome: outcome as i32, ..SetLockReply::default() }.encode_to_vec();
            }
            let delegated = asked.want_delegation && self.delegates;
            match delegated {
                true => _ = self.delegated.insert(lock.ino),
                false => self.set(&lock),
            }
            let outcome = LockOutcome::Granted as i32;
            return SetLockReply { outcome, change: 0, fence, delegated }.encode_to_vec();
        }
        if kind == Kind::CancelLock {
            self.queued.remove(&CancelLock::decode(request).unwrap().seq);
        }
        Ack {}.encode_to_vec()
    }

    fn set(&mut self, lock: &FileLock) {
        for byte in (lock.start..=lock.end).take_while(|byte| *byte < 64) {
            match lock.mode() {
                LockMode::Unlock => drop(self.modes.remove(&(lock.ino, byte))),
                mode => drop(self.modes.insert((lock.ino, byte), mode)),
            }
        }
        match lock.mode() {
            LockMode::Unlock => drop(self.held.remove(&lock.ino)),
            _ => drop(self.held.insert(lock.ino, lock.owner)),
        }
    }

    /// The manager takes the locks of the client away.
    pub fn expire(&mut self) {
        self.held.clear();
        self.modes.clear();
        self.queued.clear();
        self.delegated.clear();
        self.has_expired = true;
    }
}

/// What clients of the store see and tests arrange.
#[derive(Default)]
pub struct Store {
    files: RefCell<BTreeMap<u64, Vec<Version>>>,
    pub names: RefCell<BTreeMap<Name, u64>>,
    hints: RefCell<Vec<Hint>>,
    last: Cell<u64>,
    /// Names of which the kernel was told.
    pub invalidated: RefCell<Vec<Name>>,
    /// Names that each file has elsewhere.
    pub links: Cell<u32>,
    /// The kernel is not told of names: too many wait.
    pub takes_no_notices: Cell<bool>,
    /// Lease on a listing, ms; 0: none.
    pub list_lease_ms: Cell<u64>,
    /// Commits that happen although their answers are lost.
    pub lost_answers: Cell<u32>,
    /// While set, no create is answered.
    pub holds_creates: Cell<bool>,
    /// While set, no request about locks is answered.
    pub holds_lock_answers: Cell<bool>,
    /// While set, no lock request that unlocks arrives at the manager.
    pub holds_unlocks: Cell<bool>,
    /// While set, the store has no room: it takes no bytes and no commit.
    pub is_full: Cell<bool>,
    /// Sessions that were opened before this number rose are over.
    pub ended_sessions: Cell<u32>,
    /// While set, no version can be opened.
    pub refuses_opens: Cell<bool>,
    /// So many opens of older versions get no answer.
    pub silent_old_opens: Cell<u32>,
    /// An open for reading takes so many rounds.
    pub open_rounds: Cell<u32>,
    /// The manager removes a name after so many rounds.
    pub unlink_rounds: Cell<u32>,
    /// So many removals of names happen although their answers are lost.
    pub lost_removals: Cell<u32>,
    /// A file has so many names besides the one that is removed.
    pub other_names: Cell<u32>,
    /// Files without a name: only open versions and sessions keep them.
    unnamed: RefCell<BTreeSet<u64>>,
    /// A request that sets attributes reaches the store after so many rounds.
    pub set_attr_rounds: Cell<u32>,
    /// Number of the requests that set attributes.
    pub set_attrs: Cell<u32>,
    /// Owner and times of the last file that came to be by its number.
    pub made: Cell<Option<(Owner, Times)>>,
    /// So many creates by number find no manager.
    pub silent_creates: Cell<u32>,
    /// The access time that was set last, ns.
    pub atime_ns: Cell<Option<i64>>,
    /// Most chunks that a session had written when it committed.
    pub most_chunks: Cell<u64>,
    /// Number of write sessions that were opened.
    pub sessions: Cell<u32>,
    /// The times of the last commit.
    pub times: Cell<Times>,
    /// The mode of every file.
    pub mode: Cell<u32>,
    /// The kernel takes so long to drop pages.
    pub drop_rounds: Cell<u32>,
    /// The kernel does not drop pages in time.
    pub pages_stay: Cell<bool>,
    /// Inodes whose pages the kernel dropped, and the first byte of them.
    pub dropped_from: RefCell<Vec<(u64, u64)>>,
    /// Number of the requests for attributes, and for names.
    pub gets: Cell<u32>,
    pub lookups: Cell<u32>,
    /// Number of the versions that were opened.
    pub opens: Cell<u32>,
    /// Number of the requests that described files, and of the files that were described.
    pub descriptions: Cell<(u32, u32)>,
    /// An answer to such a request takes so many rounds.
    pub describe_rounds: Cell<u32>,
    /// While set, the chunks of files that were described are gone.
    pub chunks_are_gone: Cell<bool>,
    /// An answer of attributes takes so many rounds.
    pub get_rounds: Cell<u32>,
    /// A page of a listing has so many names at most; 0: any number.
    pub list_names: Cell<usize>,
    /// The answer to a listing takes so many rounds.
    pub list_rounds: Cell<u32>,
    /// While set, no page but the first one of a listing is answered.
    pub refuses_next_pages: Cell<bool>,
    /// Files whose attributes the kernel was told to ask for again.
    pub forgotten: RefCell<Vec<u64>>,
    /// Is called when the kernel is told of a recall.
    pub on_recall: RefCell<Option<Box<dyn Fn()>>>,
    /// Time, ns.
    pub clock: Cell<i64>,
    /// For how long clients have slept.
    pub slept: Cell<Duration>,
    /// The answer to a commit takes so many rounds.
    pub commit_rounds: Cell<u32>,
    /// A commit reaches the store after so many rounds.
    pub commit_waits: Cell<u32>,
    /// How long the answer to a lock request is on its way.
    pub lock_rounds: Cell<u32>,
    /// Lifetime of the lease on what a client looks up, ms.
    pub lease_ms: Cell<u64>,
    /// Locks of the client.
    pub locks: RefCell<LockTable>,
    /// Version of the cluster's map; 0: clients cannot tell.
    pub map_version: Cell<u64>,
    /// Drains that were started and do not run yet.
    pub drains: RefCell<Vec<Drain<Client>>>,
}

impl Store {
    fn number(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    /// Sets a hint of every file.
    pub fn set_hint(&self, name: &str, value: &str) {
        self.hints.borrow_mut().push(Hint { name: name.into(), value: value.into() });
    }

    /// Creates a file.
    pub fn create(&self, parent: u64, name: &[u8], ino: u64) -> Result<u64, Error> {
        if self.names.borrow().contains_key(&(parent, name.to_vec())) {
            return Err(Error::new(Code::Exists, "the name is taken"));
        }
        let ino = if ino == 0 { 1000 + self.number() } else { ino };
        self.names.borrow_mut().insert((parent, name.to_vec()), ino);
        self.files.borrow_mut().insert(ino, Vec::new());
        Ok(ino)
    }

    /// Another client renames a file over another one, which is gone.
    pub fn replace(&self, (from_parent, from): (u64, &[u8]), (to_parent, to): (u64, &[u8])) {
        let ino = self.names.borrow_mut().remove(&(from_parent, from.to_vec())).unwrap();
        let replaced = self.names.borrow_mut().insert((to_parent, to.to_vec()), ino);
        self.files.borrow_mut().remove(&replaced.unwrap());
    }

    /// Commits a version as some client.
    pub fn commit(&self, ino: u64, bytes: &[u8], content: u64) -> u64 {
        let id = self.number();
        let content = if content == 0 { id } else { content };
        let version = Version { id, content, bytes: bytes.to_vec() };
        self.files.borrow_mut().get_mut(&ino).unwrap().push(version);
        id
    }

    /// The manager was restored from a state before the current version.
    pub fn lose_current(&self, ino: u64) {
        self.files.borrow_mut().get_mut(&ino).unwrap().pop();
    }

    /// Another client removes a file.
    pub fn remove(&self, ino: u64) {
        self.files.borrow_mut().remove(&ino);
        self.names.borrow_mut().retain(|_, named| *named != ino);
    }

    /// The manager was restored from a state before the file was created.
    pub fn lose_file(&self, ino: u64) {
        self.remove(ino);
        self.map_version.update(|version| version + RESTORE_JUMP - 1_000);
    }

    /// The current version.
    pub fn current(&self, ino: u64) -> Version {
        self.files.borrow()[&ino].last().cloned().unwrap_or_default()
    }

    /// Number of versions.
    pub fn versions(&self, ino: u64) -> usize {
        self.files.borrow()[&ino].len()
    }

    /// Names in a directory, with inodes.
    pub fn list(&self, parent: u64) -> Vec<(String, u64)> {
        let names = self.names.borrow();
        let here = names.iter().filter(|((directory, _), _)| *directory == parent);
        here.map(|((_, name), ino)| (String::from_utf8(name.clone()).unwrap(), *ino)).collect()
    }

    fn entry(&self, ino: u64) -> Result<Entry, Error> {
        let files = self.files.borrow();
        let attr = match files.get(&ino) {
            Some(versions) => {
                let Version { id, content, bytes } = versions.last().cloned().unwrap_or_default();
                let (kind, size_bytes) = (InodeKind::File as i32, bytes.len() as u64);
                Attr {
                    ino,
                    kind,
                    mode: self.mode.get(),
                    nlink: 1 + self.links.get(),
                    version: id,
                    content,
                    size_bytes,
                    ..Attr::default()
                }
            }
            None if ino == 1 => Attr { ino, kind: InodeKind::Directory as i32, nlink: 2, ..Attr::default() },
            None => return Err(Error::new(Code::NotFound, "no such inode")),
        };
        let (hints, lease_ms) = (self.hints.borrow().clone(), self.lease_ms.get());
        Ok(Entry { attr: Some(attr), hints, lease_ms, ..Entry::default() })
    }
}

/// One client of a store.
pub struct Client {
    pub store: Rc<Store>,
    numbers: Cell<u64>,
}

impl Client {
    pub fn new(store: &Rc<Store>, seed: u64) -> Client {
        Client { store: store.clone(), numbers: Cell::new(seed) }
    }
}

impl Client {
    async fn rename(&self, Rename { from_parent, from_name, to_parent, to_name, .. }: Rename) -> Result<Ack, Error> {
        for _ in 0..self.store.unlink_rounds.get() {
            super::tasks::pause().await;
        }
        let mut names = self.store.names.borrow_mut();
        let stands_for = |parent, name: &[u8]| names.get(&(parent, name.to_vec())).copied();
        let (moved, there) = (stands_for(from_parent, &from_name), stands_for(to_parent, &to_name));
        if moved.is_some() && moved == there {
            // Two names of one file: POSIX rename does nothing.
            return Ok(Ack {});
        }
        let ino = names.remove(&(from_parent, from_name)).ok_or_else(|| Error::new(Code::NotFound, "no such name"))?;
        if let Some(replaced) = names.insert((to_parent, to_name), ino) {
            self.store.unnamed.borrow_mut().insert(replaced);
        }
        self.removed().map(|()| Ack {})
    }

    /// Loses the answer to a removal if it is to be lost.
    fn removed(&self) -> Result<(), Error> {
        let Some(left) = self.store.lost_removals.get().checked_sub(1) else { return Ok(()) };
        self.store.lost_removals.set(left);
        Err(Error::new(Code::Timeout, "lost"))
    }

    fn begin_session(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<Session, FileError> {
        self.store.entry(ino).map_err(|error| failed(Cause::Refused(error)))?;
        let bytes = if patch { self.store.current(ino).bytes } else { Vec::new() };
        let patch = patch.then(Vec::new);
        let ended_sessions = self.store.ended_sessions.get();
        Ok(Session { store: self.store.clone(), ino, bytes, patch, if_version, chunks: 0, ended_sessions })
    }

    async fn set_attr(&self, new: SetAttr) -> Result<Entry, Error> {
        for _ in 0..self.store.set_attr_rounds.get() {
            super::tasks::pause().await;
        }
        self.store.mode.set(new.mode.unwrap_or(self.store.mode.get()));
        self.store.atime_ns.set(new.atime_ns);
        self.store.set_attrs.update(|requests| requests + 1);
        self.store.entry(new.ino)
    }
}

/// A write session of a [`Client`].
pub struct Session {
    store: Rc<Store>,
    ino: u64,
    /// The file as the session knows it.
    bytes: Vec<u8>,
    /// What to do to the current version at a commit; none: the session's bytes replace it.
    patch: Option<Vec<Change>>,
    if_version: Option<u64>,
    /// The store's number when the session was opened.
    ended_sessions: u32,
    /// Number of the chunks that it has written.
    chunks: u64,
}

/// What a session does to a file.
#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Grow(usize),
    SetLen(usize),
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Change::Write(start, bytes) => {
                let end = start + bytes.len();
                file.resize(file.len().max(end), 0);
                file[*start..end].copy_from_slice(bytes);
            }
            Change::Grow(len) => file.resize(file.len().max(*len), 0),
            Change::SetLen(len) => file.resize(*len, 0),
        }
    }
}

impl Session {
    fn check(&self) -> Result<(), FileError> {
        if self.ended_sessions != self.store.ended_sessions.get() {
            return Err(failed(Cause::Refused(Error::new(Code::SessionExpired, "the session is over"))));
        }
        if !self.store.files.borrow().contains_key(&self.ino) {
            return Err(failed(Cause::Refused(Error::new(Code::NotFound, "no such inode"))));
        }
        match self.store.is_full.get() {
            true => Err(failed(Cause::Refused(Error::new(Code::NoSpace, "no room")))),
            false => Ok(()),
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.bytes);
        self.patch.iter_mut().for_each(|changes| changes.push(change.clone()));
    }
}

fn failed(cause: Cause) -> FileError {
    cause.of("a file of the test")
}

impl Writer for Session {
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.check()?;
        self.chunks += 1;
        self.change(Change::Write(offset as usize, bytes.to_vec()));
        Ok(())
    }

    async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        self.write_at(range.start, &vec![0; (range.end - range.start) as usize]).await
    }

    async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        self.change(Change::Grow(offset as usize));
        Ok(())
    }

    // As the client's, commits the bytes that it has before it changes the length.
    async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        let has_bytes = self.patch.iter().flatten().any(|change| matches!(change, Change::Write(..)));
        if has_bytes && size_bytes != self.len_bytes() {
            self.sync(Times::default(), 0).await?;
        }
        self.change(Change::SetLen(size_bytes as usize));
        Ok(())
    }

    fn set_lock_fence(&mut self, _: Option<LockFence>) {}

    async fn sync(&mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        self.check()?;
        self.store.times.set(times);
        for _ in 0..self.store.commit_waits.get() {
            super::tasks::pause().await;
        }
        let current = self.store.current(self.ino).id;
        if let Some(expected) = self.if_version.filter(|expected| *expected != current) {
            return Err(failed(Cause::VersionConflict { expected, current }));
        }
        if let Some(changes) = self.patch.replace(Vec::new()) {
            self.bytes = self.store.current(self.ino).bytes;
            changes.iter().for_each(|change| change.apply(&mut self.bytes));
        }
        let version = self.store.commit(self.ino, &self.bytes, content);
        self.if_version = self.if_version.map(|_| version);
        for _ in 0..self.store.commit_rounds.get() {
            super::tasks::pause().await;
        }
        if let Some(left) = self.store.lost_answers.get().checked_sub(1) {
            self.store.lost_answers.set(left);
            return Err(failed(Cause::ManagerSilent { request: "Commit", waited_ms: 1, last: "lost".into() }));
        }
        let entry = self.store.entry(self.ino).ok().map(Box::new);
        let number = self.store.versions(self.ino) as u64;
        self.store.most_chunks.set(self.store.most_chunks.get().max(self.chunks));
        Ok(WriteDone { ino: self.ino, version, number, entry, chunks: self.chunks, ..WriteDone::default() })
    }

    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A version that a [`Client`] has open.
pub struct OpenVersion {
    opened: Opened,
    bytes: Vec<u8>,
    is_in_memory: bool,
}

impl Reader for OpenVersion {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FileError> {
        let there = &self.bytes[(offset as usize).min(self.bytes.len())..];
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }

    fn opened(&self) -> &Opened {
        &self.opened
    }

    fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }
}

/// What this store does not have.
macro_rules! absent {
    ($($name:ident($($kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, $(_: $kind),*) -> $answer {
            panic!(concat!("these tests' store has no ", stringify!($name)))
        })*
    };
}

impl Backend for Client {
    type Writer = Session;
    type Reader = OpenVersion;

    absent! {
        locate(u64) -> Result<Located, Error>;
        rewrite(u64, ProgressFn<'_>, &Cancel) -> Result<WriteDone, tessera_client::Error>;
    }

    // There is no kernel that holds names or pages: what a program writes has reached the mount.
    async fn names_invalidated(&self) {}

    async fn write_back_pages(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    async fn lookup(&self, parent: u64, name: &[u8], ahead: u32) -> Result<Entry, Error> {
        self.store.lookups.update(|lookups| lookups + 1);
        let names = self.store.names.borrow();
        let ino = names.get(&(parent, name.to_vec())).copied();
        let entry = self.store.entry(ino.ok_or_else(|| Error::new(Code::NotFound, "no such name"))?)?;
        let behind = (Bound::Excluded((parent, name.to_vec())), Bound::Excluded((parent + 1, Vec::new())));
        let following = names.range(behind).take(ahead as usize);
        let named = |((_, name), ino): (&(u64, Vec<u8>), &u64)| {
            Ok(NamedEntry { name: name.clone(), entry: Some(self.store.entry(*ino)?) })
        };
        Ok(Entry { ahead: following.map(named).collect::<Result<_, Error>>()?, ..entry })
    }

    async fn get(&self, ino: u64) -> Result<Entry, Error> {
        self.store.gets.update(|gets| gets + 1);
        for _ in 0..self.store.get_rounds.get() {
            super::tasks::pause().await;
        }
        self.store.entry(ino)
    }

    async fn list(&self, parent: u64, after: &[u8]) -> Result<ListReply, Error> {
        for _ in 0..self.store.list_rounds.get() {
            super::tasks::pause().await;
        }
        if self.store.refuses_next_pages.get() && !after.is_empty() {
            return Err(Error::new(Code::Unavailable, "no answer"));
        }
        let names = self.store.list(parent).into_iter().filter(|(name, _)| name.as_bytes() > after);
        let mut names: Vec<_> = names.collect();
        let limit = self.store.list_names.get();
        let more = limit != 0 && names.len() > limit;
        if more {
            names.truncate(limit);
        }
        let entry =
            |(name, ino): (String, u64)| Ok(Dirent { name: name.into_bytes(), attr: self.store.entry(ino)?.attr });
        let entries = names.into_iter().map(entry).collect::<Result<_, Error>>()?;
        Ok(ListReply { entries, more, lease_ms: self.store.list_lease_ms.get() })
    }

    async fn make_directory(&self, _: u64, _: &[u8], _: Owner, inos: u32) -> Result<Entry, Error> {
        let (ino, kind) = (1000 + self.store.number(), InodeKind::Directory as i32);
        let attr = Some(Attr { ino, kind, nlink: 2, ..Attr::default() });
        let inos = Some(InoRange { first: 5000, count: inos });
        let hints = self.store.hints.borrow().clone();
        Ok(Entry { attr, hints, lease_ms: DELEGATION_MS, delegation_ms: DELEGATION_MS, inos, ..Entry::default() })
    }

    async fn make_node(&self, new: MakeNode) -> Result<Entry, Error> {
        let waits = || if self.store.holds_creates.get() { Poll::Pending } else { Poll::Ready(()) };
        poll_fn(|_| waits()).await;
        if let Some(left) = self.store.silent_creates.get().checked_sub(1) {
            self.store.silent_creates.set(left);
            return Err(Error::new(Code::Unavailable, "no manager"));
        }
        let MakeNode { mode, uid, gid, mtime_ns, ctime_ns, atime_ns, .. } = new;
        self.store.made.set(Some((Owner { mode, uid, gid }, Times { mtime_ns, ctime_ns, atime_ns })));
        self.store.entry(self.store.create(new.parent, &new.name, new.ino)?)
    }

    async fn unlink(&self, parent: u64, name: &[u8], _: bool) -> Result<Attr, Error> {
        for _ in 0..self.store.unlink_rounds.get() {
            super::tasks::pause().await;
        }
        let ino = self.store.names.borrow_mut().remove(&(parent, name.to_vec())).unwrap_or_default();
        let nlink = self.store.other_names.get();
        if nlink == 0 {
            self.store.unnamed.borrow_mut().insert(ino);
        }
        self.removed()?;
        Ok(Attr { ino, nlink, ..Attr::default() })
    }

    async fn open_read(&self, ino: u64, version: u64, _: Range<u64>) -> Result<OpenVersion, FileError> {
        self.store.opens.update(|opens| opens + 1);
        for _ in 0..self.store.open_rounds.get() {
            super::tasks::pause().await;
        }
        if self.store.unnamed.borrow().contains(&ino) {
            return Err(failed(Cause::Refused(Error::new(Code::NotFound, "no such inode"))));
        }
        if self.store.refuses_opens.get() {
            return Err(failed(Cause::Refused(Error::new(Code::Io, "no version can be opened"))));
        }
        if version != 0
            && version != self.store.current(ino).id
            && let Some(left) = self.store.silent_old_opens.get().checked_sub(1)
        {
            self.store.silent_old_opens.set(left);
            return Err(failed(Cause::ManagerSilent { request: "OpenRead", waited_ms: 1, last: "lost".into() }));
        }
        let attr = self.store.entry(ino).map_err(|error| failed(Cause::Refused(error)))?.attr.unwrap();
        let files = self.store.files.borrow();
        let wanted = |v: &&Version| version == 0 || v.id == version;
        let number = files[&ino].iter().rposition(|v| wanted(&v)).map_or(0, |at| at as u64 + 1);
        let Version { id, bytes, .. } = files[&ino].iter().rev().find(wanted).cloned().unwrap_or_default();
        let version = VersionInfo { version: id, number, size_bytes: bytes.len() as u64, ..VersionInfo::default() };
        Ok(OpenVersion { opened: Opened { attr, version, policy: Vec::new() }, bytes, is_in_memory: false })
    }

    async fn describe(&self, directory: u64, names: &[Vec<u8>]) -> Result<Vec<OpenReadReply>, Error> {
        let (requests, files) = self.store.descriptions.get();
        self.store.descriptions.set((requests + 1, files + names.len() as u32));
        let describe = |name: &Vec<u8>| {
            let ino = *self.store.names.borrow().get(&(directory, name.clone()))?;
            let Entry { attr, hints, lease_ms, .. } = self.store.entry(ino).ok()?;
            let Version { id, bytes, .. } = self.store.current(ino);
            let (number, size_bytes) = (self.store.versions(ino) as u64, bytes.len() as u64);
            let version = Some(VersionInfo { version: id, number, size_bytes, ..VersionInfo::default() });
            Some(OpenReadReply { attr, version, policy: hints, lease_ms, ..OpenReadReply::default() })
        };
        let described = names.iter().map(|name| describe(name).unwrap_or_default()).collect();
        for _ in 0..self.store.describe_rounds.get() {
            super::tasks::pause().await;
        }
        Ok(described)
    }

    async fn read_described(&self, files: Vec<OpenReadReply>) -> Vec<Option<OpenVersion>> {
        let read = |file: OpenReadReply| {
            let (attr, version) = (file.attr?, file.version?);
            let files = self.store.files.borrow();
            let kept = files.get(&attr.ino)?.iter().find(|kept| kept.id == version.version)?;
            let opened = Opened { attr, version, policy: file.policy };
            let is_there = !self.store.chunks_are_gone.get();
            is_there.then(|| OpenVersion { opened, bytes: kept.bytes.clone(), is_in_memory: true })
        };
        files.into_iter().map(read).collect()
    }

    async fn open_write(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<Session, FileError> {
        self.store.sessions.update(|opened| opened + 1);
        self.begin_session(ino, patch, if_version)
    }

    async fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        _: Option<Policy>,
        times: Times,
        only_if: OnlyIf,
    ) -> Result<WriteDone, FileError> {
        let mut session = self.begin_session(ino, false, only_if.version)?;
        session.write_at(0, &bytes).await?;
        session.finish(times, 0).await
    }

    async fn write_new(&self, new: NewFile<'_>, bytes: Bytes, times: Times) -> Result<WriteDone, FileError> {
        let waits = || if self.store.holds_creates.get() { Poll::Pending } else { Poll::Ready(()) };
        poll_fn(|_| waits()).await;
        if let Some(left) = self.store.silent_creates.get().checked_sub(1) {
            self.store.silent_creates.set(left);
            return Err(failed(Cause::ManagerSilent { request: "Commit", waited_ms: 1, last: "no manager".into() }));
        }
        let made = self.store.create(new.parent, new.name, new.ino);
        made.map_err(|_| failed(Cause::VersionConflict { expected: 0, current: 1 }))?;
        self.store.made.set(Some((new.owner, times)));
        self.write_whole(new.ino, bytes, None, times, OnlyIf::default()).await
    }

    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let bytes = request.encode_to_vec();
        let reply = match R::KIND {
            Kind::Rename => self.rename(Rename::decode(&bytes[..]).unwrap()).await?.encode_to_vec(),
            Kind::SetAttr => self.set_attr(SetAttr::decode(&bytes[..]).unwrap()).await?.encode_to_vec(),
            kind => panic!("these tests' store takes no {kind:?}"),
        };
        Ok(R::Reply::decode(&reply[..]).unwrap())
    }

    async fn map_version(&self) -> Result<u64, Error> {
        Ok(self.store.map_version.get())
    }

    fn op_id(&self) -> u64 {
        self.random()
    }

    async fn ask_manager<R: Request>(&self, request: &R, _: u64) -> Result<R::Reply, Error> {
        let is_of_locks =
            matches!(R::KIND, Kind::HoldLocks | Kind::SetLock | Kind::TestLock | Kind::CancelLock | Kind::ReturnLocks);
        while self.store.holds_lock_answers.get() && is_of_locks {
            super::tasks::pause().await;
        }
        let unlocks = |lock: FileLock| lock.mode() == LockMode::Unlock;
        let asked = SetLock::decode(&request.encode_to_vec()[..]).ok().filter(|_| R::KIND == Kind::SetLock);
        while self.store.holds_unlocks.get() && asked.as_ref().and_then(|asked| asked.lock).is_some_and(unlocks) {
            super::tasks::pause().await;
        }
        // Other requests have time to queue up behind an assertion.
        for _ in 0..if R::KIND == Kind::HoldLocks { 8 } else { 1 } {
            super::tasks::pause().await;
        }
        let reply = self.store.locks.borrow_mut().answer(R::KIND, &request.encode_to_vec())?;
        for _ in 0..if R::KIND == Kind::SetLock { self.store.lock_rounds.get() } else { 0 } {
            super::tasks::pause().await;
        }
        Ok(R::Reply::decode(&reply[..]).unwrap())
    }

    fn tell_manager<R: Request>(&self, _: &R) {}

    fn manager_deadline(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn machine(&self) -> String {
        "machine".into()
    }

    fn invalidate_names(&self, names: Vec<Name>) -> bool {
        self.store.invalidated.borrow_mut().extend(names);
        if let Some(look) = &*self.store.on_recall.borrow() {
            look();
        }
        !self.store.takes_no_notices.get()
    }

    fn forget_attributes(&self, ino: u64) {
        self.store.forgotten.borrow_mut().push(ino);
    }

    async fn drop_pages_of(&self, ino: u64, bytes: Range<u64>) -> bool {
        for _ in 0..self.store.drop_rounds.get() {
            super::tasks::pause().await;
        }
        self.store.dropped_from.borrow_mut().push((ino, bytes.start));
        !self.store.pages_stay.get()
    }

    fn maps_direct(&self) -> bool {
        true
    }

    async fn drop_pages(&self, ino: u64, _: u64) -> io::Result<()> {
        self.store.dropped_from.borrow_mut().push((ino, 0));
        for _ in 0..self.store.drop_rounds.get() {
            super::tasks::pause().await;
        }
        Ok(())
    }

    fn now_ns(&self) -> i64 {
        self.store.clock.get()
    }

    fn wall_ns(&self) -> i64 {
        1_700_000_000_000_000_000
    }

    /// Takes longer than a request.
    async fn sleep(&self, time: Duration) {
        self.store.slept.update(|slept| slept + time);
        for _ in 0..if time == crate::locks::TELLING { 600 } else { 12 } {
            super::tasks::pause().await;
        }
    }

    fn random(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    fn start_drain(&self, drain: Drain<Client>) -> io::Result<()> {
        self.store.drains.borrow_mut().push(drain);
        Ok(())
    }
}
