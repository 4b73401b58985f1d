//! Deferred creates: files that were created here under a delegation, and that the manager does not know yet.
//!
//! The manager learns of a file by the first commit of its content (one request instead of three). A separate create
//! comes earlier if another operation needs the file at the manager, a third of the delegation's lifetime has passed,
//! or the delegation is recalled.
//!
//! One request at a time tells the manager of a file. Other claimants wait in a queue:
//!
//! ```text
//!            claim                     answer: created, or refused for good
//!   Idle ───────────► Claimed ─────────────────────────────────────────────► (gone)
//!     ▲                  │  answer: try again
//!     └──────────────────┘  (the next in the queue claims it, if there is one)
//! ```

use super::{Claimant, EntryAttr, Name, NewFile};
use crate::backend::NewAttr;
use std::collections::{HashMap, VecDeque};
use tessera_client::Times;
use tessera_wire::{Attr, Code};

/// Why a file does not exist after all: the manager's refusal. [`Code::VersionConflict`]: another client took the name.
pub type Loss = Code;

#[derive(Debug)]
struct Deferred {
    entry: EntryAttr,
    /// Access time that a program set; 0: none did.
    atime_ns: i64,
    name: Name,
    settle_at_ns: i64,
    state: State,
    /// The last handle is closed: a claimant that fails to create the file now drops it.
    closed: bool,
}

#[derive(Debug)]
enum State {
    Idle,
    /// A request about the file is in flight.
    Claimed {
        by: Claimant,
        queue: VecDeque<Claimant>,
        /// Leases were recalled or lost since: the manager may have carried it out, and another client moved or removed the file.
        in_doubt: bool,
    },
}

/// What to do after an answer.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Send the claimant's request about the file.
    Send(Claimant, u64),
    /// The claimant's wait for the file is over.
    Done(Claimant, Result<(), Loss>),
}

/// See the module.
#[derive(Debug, Default)]
pub struct DeferredCreates {
    files: HashMap<u64, Deferred>,
    by_name: HashMap<Name, u64>,
    /// Files that do not exist after all, and are still open.
    lost: HashMap<u64, Loss>,
}

impl DeferredCreates {
    pub fn insert(&mut self, ino: u64, name: Name, entry: EntryAttr, settle_at_ns: i64) {
        let named = self.by_name.insert(name.clone(), ino);
        assert!(named.is_none(), "{named:?} and {ino} would have one name");
        let file = Deferred { entry, atime_ns: 0, name, settle_at_ns, state: State::Idle, closed: false };
        let replaced = self.files.insert(ino, file);
        assert!(replaced.is_none(), "inode number {ino} was drawn twice");
    }

    pub fn entry(&self, ino: u64) -> Option<&EntryAttr> {
        self.files.get(&ino).map(|file| &file.entry)
    }

    /// As [`DeferredCreates::entry`], unless the file is in doubt.
    pub fn shown(&self, ino: u64) -> Option<&EntryAttr> {
        if self.is_in_doubt(ino) { None } else { self.entry(ino) }
    }

    /// Whether only the answer to a request can say where the file is.
    pub fn is_in_doubt(&self, ino: u64) -> bool {
        self.files.get(&ino).is_some_and(|file| matches!(file.state, State::Claimed { in_doubt: true, .. }))
    }

    /// Leases on these inodes were recalled; none: all are lost.
    pub fn recalled(&mut self, inos: Option<&[u64]>) {
        for (_, file) in self.files.iter_mut().filter(|(ino, _)| inos.is_none_or(|inos| inos.contains(ino))) {
            if let State::Claimed { in_doubt, .. } = &mut file.state {
                *in_doubt = true;
            }
        }
    }

    pub fn by_name(&self, name: &Name) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    pub fn name(&self, ino: u64) -> Option<&Name> {
        self.files.get(&ino).map(|file| &file.name)
    }

    /// Files in a directory; none: all.
    pub fn in_directory(&self, directory: Option<u64>) -> VecDeque<u64> {
        self.inos(|file| directory.is_none_or(|wanted| wanted == file.name.0))
    }

    fn inos(&self, wanted: impl Fn(&Deferred) -> bool) -> VecDeque<u64> {
        let mut inos: Vec<u64> = self.files.iter().filter(|(_, file)| wanted(file)).map(|(ino, _)| *ino).collect();
        inos.sort_unstable();
        inos.into()
    }

    pub fn names_in(&self, directory: u64) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.files.values().filter(move |file| file.name.0 == directory).map(|file| file.name.1.clone())
    }

    /// Files that are due and have no request in flight.
    pub fn due(&self, now_ns: i64) -> VecDeque<u64> {
        self.inos(|file| file.settle_at_ns <= now_ns && matches!(file.state, State::Idle))
    }

    /// Changes attributes, unless a request with the old ones is in flight.
    pub fn set_attr(&mut self, ino: u64, new: &NewAttr) -> Option<EntryAttr> {
        let file = self.files.get_mut(&ino).filter(|file| matches!(file.state, State::Idle))?;
        let NewAttr { mode, uid, gid, mtime_ns, ctime_ns, atime_ns } = *new;
        let attr = &mut file.entry.attr;
        (attr.mode, attr.uid, attr.gid) = (mode.unwrap_or(attr.mode), uid.unwrap_or(attr.uid), gid.unwrap_or(attr.gid));
        (attr.mtime_ns, attr.ctime_ns) = (mtime_ns.unwrap_or(attr.mtime_ns), ctime_ns.unwrap_or(attr.ctime_ns));
        if let Some(atime_ns) = atime_ns {
            (attr.atime_ns, file.atime_ns) = (atime_ns, atime_ns);
        }
        Some(file.entry.clone())
    }

    /// Reports whether the file is lost.
    ///
    /// # Errors
    /// The loss.
    pub fn check(&self, ino: u64) -> Result<(), Loss> {
        self.lost.get(&ino).map_or(Ok(()), |loss| Err(*loss))
    }

    /// A claimant needs the manager to know the file: it may send its request, must wait its turn, or is done.
    pub fn claim(&mut self, ino: u64, by: Claimant) -> Option<Next> {
        let Some(file) = self.files.get_mut(&ino) else { return Some(Next::Done(by, self.check(ino))) };
        match &mut file.state {
            State::Idle => {
                file.state = State::Claimed { by, queue: VecDeque::new(), in_doubt: false };
                Some(Next::Send(by, ino))
            }
            State::Claimed { queue, .. } => {
                queue.push_back(by);
                None
            }
        }
    }

    /// The claimant's request was answered. Returns what to do next.
    pub fn answered(&mut self, ino: u64, by: Claimant, result: Result<(), Code>) -> Vec<Next> {
        let file = self.files.get_mut(&ino).expect("a file stays while a request about it is on its way");
        let State::Claimed { by: holder, mut queue, .. } = std::mem::replace(&mut file.state, State::Idle) else {
            panic!("an answer about {ino}, which nobody asked about");
        };
        assert_eq!(holder, by, "the answer about {ino} belongs to its claimant");
        let gone = match (result, by) {
            (Ok(()), _) => true,
            // After a failed commit, the next request creates the file without content.
            (Err(_), Claimant::Commit(_)) => false,
            (Err(code), Claimant::Settle(_)) => !code.is_retryable(),
        };
        let closed = file.closed;
        let loss = result.err().filter(|code| gone || *code == Code::VersionConflict);
        if let Some(loss) = loss.filter(|_| !closed) {
            self.lost.insert(ino, loss);
        }
        let mut next = match by {
            Claimant::Settle(_) => vec![Next::Done(by, result)],
            // The commit's caller has the answer already.
            Claimant::Commit(_) => Vec::new(),
        };
        if gone {
            self.remove(ino);
            let loss = self.check(ino);
            next.extend(queue.into_iter().map(|claimant| Next::Done(claimant, loss)));
        } else if let Some(claimant) = queue.pop_front() {
            let file = self.files.get_mut(&ino).expect("it is not gone");
            file.state = State::Claimed { by: claimant, queue, in_doubt: false };
            next.push(Next::Send(claimant, ino));
        } else if closed {
            self.remove(ino);
        }
        next
    }

    /// Forgets the files that no request is about. Only a mistake made on request does so.
    pub fn forget_idle(&mut self) {
        let idle = self.inos(|file| matches!(file.state, State::Idle));
        idle.into_iter().for_each(|ino| self.remove(ino));
    }

    /// The last handle is closed, and the attempt to create the file is over.
    pub fn closed(&mut self, ino: u64) {
        self.lost.remove(&ino);
        match self.files.get_mut(&ino) {
            Some(file) if matches!(file.state, State::Claimed { .. }) => file.closed = true,
            Some(_) => self.remove(ino),
            None => {}
        }
    }

    /// The request that creates the file together with its content.
    pub fn new_file(&self, ino: u64, inos: u32) -> NewFile {
        let file = &self.files[&ino];
        let (parent, name) = file.name.clone();
        let Attr { mtime_ns, ctime_ns, .. } = file.entry.attr;
        let times = Times { mtime_ns, ctime_ns, atime_ns: file.atime_ns };
        NewFile { ino, parent, name, entry: file.entry.clone(), times, inos }
    }

    fn remove(&mut self, ino: u64) {
        let file = self.files.remove(&ino).expect("removed once");
        let named = self.by_name.remove(&file.name);
        assert_eq!(named, Some(ino), "a deferred create has one name");
    }
}
