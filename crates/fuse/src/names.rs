//! What this mount remembers of names and attributes while the manager's leases last.
//!
//! A lease on an inode covers its attributes and the name it was reached by (a directory's times excepted). Whatever a
//! recall names is forgotten before the recall is answered, so nothing in here is ever older than a change that somebody
//! was told of.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tessera_wire::meta::Entry;
use tessera_wire::{Attr, Hint, InodeKind};

/// Inodes remembered; when there are more, all are forgotten.
const MAX_KEPT: usize = 200_000;

/// An inode under a lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Its attributes.
    pub attr: Attr,
    /// Its hints.
    pub hints: Vec<Hint>,
}

/// See the module.
#[derive(Default)]
pub struct Names(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    inodes: HashMap<u64, Leased>,
    names: HashMap<(u64, Vec<u8>), u64>,
    /// Grows with every recall and every change of our own: answers that were on their way meanwhile are not kept.
    changes: u64,
}

struct Leased {
    known: Known,
    until: Instant,
    /// Names it was reached by.
    names: HashSet<(u64, Vec<u8>)>,
}

/// What a question was asked under: goes back with its answer.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    at: Instant,
    changes: u64,
}

impl Names {
    /// Before the manager is asked.
    pub fn asking(&self) -> Asked {
        Asked { at: Instant::now(), changes: self.0.lock().changes }
    }

    /// The inode `name` in `parent` means, if that is known.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Option<Known> {
        let kept = self.0.lock();
        let ino = *kept.names.get(&(parent, name.to_vec()))?;
        kept.get(ino)
    }

    /// An inode, if it is known.
    pub fn get(&self, ino: u64) -> Option<Known> {
        self.0.lock().get(ino)
    }

    /// Keeps an answer as far as its lease allows; `name` is how it was reached. What has several names is not kept: one
    /// may be removed here without it being known which inode that was.
    pub fn keep(&self, asked: Asked, name: Option<(u64, &[u8])>, entry: &Entry) {
        let keeps = |attr: &Attr| entry.lease_ms > 0 && (attr.nlink <= 1 || attr.kind() == InodeKind::Directory);
        let Some(attr) = entry.attr.clone().filter(keeps) else { return };
        let mut kept = self.0.lock();
        if kept.changes != asked.changes {
            return;
        }
        if kept.inodes.len() >= MAX_KEPT {
            *kept = Kept { changes: kept.changes, ..Kept::default() };
        }
        let (ino, known) = (attr.ino, Known { attr, hints: entry.hints.clone() });
        // The lease runs from when the manager granted it, which was not before we asked.
        let until = asked.at + Duration::from_millis(entry.lease_ms);
        let leased =
            kept.inodes.entry(ino).or_insert_with(|| Leased { known: known.clone(), until, names: HashSet::new() });
        (leased.known, leased.until) = (known, until);
        if let Some((parent, name)) = name {
            let key = (parent, name.to_vec());
            leased.names.insert(key.clone());
            kept.names.insert(key, ino);
        }
    }

    /// Forgets inodes and the names they were reached by; none: everything. The names, for the kernel to forget too.
    pub fn forget(&self, inos: Option<&[u64]>) -> Vec<(u64, Vec<u8>)> {
        let mut kept = self.0.lock();
        kept.changes += 1;
        match inos {
            None => {
                let names = kept.names.drain().map(|(key, _)| key).collect();
                kept.inodes.clear();
                names
            }
            Some(inos) => {
                let mut gone = Vec::new();
                for ino in inos {
                    let names = kept.inodes.remove(ino).map(|l| l.names).unwrap_or_default();
                    for key in names {
                        // The name may mean another inode by now.
                        if kept.names.get(&key) == Some(ino) {
                            kept.names.remove(&key);
                        }
                        gone.push(key);
                    }
                }
                gone
            }
        }
    }

    /// Forgets a name that was made, removed or given to another inode, and its directory's times.
    pub fn forget_name(&self, parent: u64, name: &[u8]) {
        self.forget(Some(&[parent]));
        let mut kept = self.0.lock();
        let key = (parent, name.to_vec());
        if let Some(ino) = kept.names.remove(&key) {
            // Its attributes changed with it.
            kept.inodes.remove(&ino);
        }
    }
}

impl Kept {
    fn get(&self, ino: u64) -> Option<Known> {
        self.inodes.get(&ino).filter(|leased| leased.until > Instant::now()).map(|leased| leased.known.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ino: u64, lease_ms: u64) -> Entry {
        Entry { attr: Some(Attr { ino, ..Attr::default() }), lease_ms, ..Entry::default() }
    }

    #[test]
    fn what_is_recalled_is_forgotten_by_every_name() {
        let names = Names::default();
        let asked = names.asking();
        names.keep(asked, Some((1, b"a")), &entry(7, 60_000));
        names.keep(asked, Some((2, b"b")), &entry(7, 60_000));
        names.keep(asked, Some((1, b"c")), &entry(8, 60_000));
        assert_eq!(names.lookup(1, b"a").unwrap().attr.ino, 7);
        let mut gone = names.forget(Some(&[7]));
        gone.sort();
        assert_eq!(gone, [(1, b"a".to_vec()), (2, b"b".to_vec())]);
        assert!(names.lookup(1, b"a").is_none() && names.lookup(2, b"b").is_none() && names.get(7).is_none());
        assert!(names.lookup(1, b"c").is_some());
    }

    #[test]
    fn an_answer_that_a_recall_overtook_is_not_kept() {
        let names = Names::default();
        let asked = names.asking();
        names.forget(Some(&[7]));
        names.keep(asked, Some((1, b"a")), &entry(7, 60_000));
        assert!(names.lookup(1, b"a").is_none());
        names.keep(names.asking(), Some((1, b"a")), &entry(7, 0));
        assert!(names.lookup(1, b"a").is_none(), "no lease");
    }

    #[test]
    fn a_name_that_moved_to_another_inode_outlives_the_first_ones_recall() {
        let names = Names::default();
        names.keep(names.asking(), Some((1, b"a")), &entry(7, 60_000));
        names.keep(names.asking(), Some((1, b"a")), &entry(8, 60_000));
        names.forget(Some(&[7]));
        assert_eq!(names.lookup(1, b"a").unwrap().attr.ino, 8);
        names.forget_name(1, b"a");
        assert!(names.lookup(1, b"a").is_none() && names.get(8).is_none());
    }
}
