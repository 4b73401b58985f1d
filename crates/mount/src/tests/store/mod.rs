//! A store in memory for one test: files with versions, whose commits can lose their answer, and requests that wait.

mod backend;
mod locks;
mod sessions;

pub use backend::Client;
pub use locks::LockTable;

use crate::backend::Drain;
use crate::namespace::Name;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tessera_client::{Owner, Times};
use tessera_wire::meta::*;
use tessera_wire::{Attr, Code, Error, Hint, InodeKind};

/// A version of a file.
#[derive(Debug, Clone, Default)]
pub struct Version {
    pub id: u64,
    pub content: u64,
    pub bytes: Vec<u8>,
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
