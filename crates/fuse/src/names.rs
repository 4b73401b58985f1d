//! What this mount remembers of names and attributes while the manager's leases last.
//!
//! A lease on an inode covers its attributes and the name it was reached by (a directory's times excepted). Whatever a
//! recall names is forgotten before the recall is answered, so nothing in here is ever older than a change that somebody
//! was told of.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use tessera_policy::Policy;
use tessera_wire::meta::Entry;
use tessera_wire::{Attr, Hint, InodeKind};

/// Inodes remembered; when there are more, all are forgotten.
const MAX_KEPT: usize = 200_000;
/// Names remembered beyond leases, for people to recognise files by.
const MAX_SEEN: usize = 16_384;
/// Changes remembered, for answers that were on their way meanwhile.
const MAX_CHANGES: usize = 1_024;

/// An inode under a lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Its attributes.
    pub attr: Attr,
    /// Its hints.
    pub hints: Vec<Hint>,
}

impl Known {
    /// What it asks for; none: this release does not understand it.
    pub fn policy(&self) -> Option<Policy> {
        Policy::from_hints(self.hints.iter().map(|h| (h.name.as_str(), h.value.as_str()))).ok()
    }
}

/// See the module.
#[derive(Default)]
pub struct Names(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    inodes: HashMap<u64, Leased>,
    names: HashMap<(u64, Vec<u8>), u64>,
    /// Where inodes were seen last; it need not be true any more.
    seen: HashMap<u64, (u64, Vec<u8>)>,
    /// Recalls and changes of our own, counted: answers that were on their way meanwhile, and may be about the same, are not kept.
    changes: u64,
    /// The last of them.
    changed: VecDeque<Change>,
    /// Questions that were answered from here, and that were not.
    known: u64,
    unknown: u64,
}

/// What [`Names`] count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamesFigures {
    /// Inodes under a lease that lasts.
    pub leased_inodes: u64,
    /// Questions that were answered without asking the manager.
    pub known: u64,
    /// Questions that were not.
    pub unknown: u64,
}

/// What changed.
#[derive(PartialEq)]
enum Change {
    Inode(u64),
    Name(u64, Vec<u8>),
    /// Nobody knows.
    Anything,
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
        let mut kept = self.0.lock();
        let known = kept.names.get(&(parent, name.to_vec())).and_then(|ino| kept.get(*ino));
        kept.counted(known)
    }

    /// An inode, if it is known.
    pub fn get(&self, ino: u64) -> Option<Known> {
        let mut kept = self.0.lock();
        let known = kept.get(ino);
        kept.counted(known)
    }

    /// What was counted.
    pub fn figures(&self) -> NamesFigures {
        let (kept, now) = (self.0.lock(), Instant::now());
        let leased_inodes = kept.inodes.values().filter(|leased| leased.until > now).count() as u64;
        NamesFigures { leased_inodes, known: kept.known, unknown: kept.unknown }
    }

    /// Directory and name that an inode was seen under last.
    pub fn seen(&self, ino: u64) -> Option<(u64, Vec<u8>)> {
        self.0.lock().seen.get(&ino).cloned()
    }

    /// Keeps an answer as far as its lease allows; `name` is how it was reached.
    pub fn keep(&self, asked: Asked, name: Option<(u64, &[u8])>, entry: &Entry) {
        let mut kept = self.0.lock();
        if let (Some(attr), Some((parent, name))) = (&entry.attr, name) {
            kept.saw(attr.ino, (parent, name.to_vec()));
        }
        let Some(attr) = &entry.attr else { return };
        if entry.lease_ms > 0 && !kept.may_have_changed(asked, attr.ino, name) {
            kept.put(asked, name, entry, attr);
        }
    }

    /// This mount changed an inode, and that is how it is now: what was leased stays so, and what the answer leases is kept.
    pub fn changed(&self, asked: Asked, entry: &Entry) {
        let Some(attr) = &entry.attr else { return };
        let mut kept = self.0.lock();
        // Another change of ours, perhaps, that was answered first: which came first is not known.
        let doubtful = kept.may_have_changed(asked, attr.ino, None);
        kept.note(Change::Inode(attr.ino));
        let there = kept.inodes.get(&attr.ino).is_some_and(|leased| leased.until > asked.at);
        match doubtful || !(there || entry.lease_ms > 0) {
            true => drop(kept.inodes.remove(&attr.ino)),
            false => kept.put(asked, None, entry, attr),
        }
    }

    /// This mount made something of this name in `parent`.
    pub fn made(&self, asked: Asked, parent: u64, name: &[u8], entry: &Entry) {
        let Some(attr) = &entry.attr else { return };
        let mut kept = self.0.lock();
        let overtaken = kept.may_have_changed(asked, attr.ino, Some((parent, name)));
        kept.renamed(parent, name, attr);
        if entry.lease_ms > 0 && !overtaken {
            kept.put(asked, Some((parent, name)), entry, attr);
        }
    }

    /// Forgets inodes and the names they were reached by; none: everything. The names, for the kernel to forget too.
    pub fn forget(&self, inos: Option<&[u64]>) -> Vec<(u64, Vec<u8>)> {
        let mut kept = self.0.lock();
        match inos {
            None => {
                kept.note(Change::Anything);
                let names = kept.names.drain().map(|(key, _)| key).collect();
                kept.inodes.clear();
                names
            }
            Some(inos) => {
                let mut gone = Vec::new();
                for ino in inos {
                    kept.note(Change::Inode(*ino));
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
        self.0.lock().forget_name(parent, name, None);
    }

    /// Something was given this name in `parent`, or (no directory) lost it, and is like this now. The directory's new times are
    /// known by that.
    pub fn renamed(&self, parent: u64, name: &[u8], attr: &Attr) {
        self.0.lock().renamed(parent, name, attr);
    }
}

impl Kept {
    fn counted(&mut self, known: Option<Known>) -> Option<Known> {
        self.known += u64::from(known.is_some());
        self.unknown += u64::from(known.is_none());
        known
    }

    fn saw(&mut self, ino: u64, place: (u64, Vec<u8>)) {
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        self.seen.insert(ino, place);
    }

    fn renamed(&mut self, parent: u64, name: &[u8], attr: &Attr) {
        self.forget_name(parent, name, Some(attr.ino));
        self.note(Change::Inode(parent));
        if attr.nlink > 0 {
            self.saw(attr.ino, (parent, name.to_vec()));
        }
        if let Some(directory) = self.inodes.get_mut(&parent) {
            let times = &mut directory.known.attr;
            // Of two changes the later may be heard of first.
            times.mtime_ns = times.mtime_ns.max(attr.ctime_ns);
            times.ctime_ns = times.ctime_ns.max(attr.ctime_ns);
        }
    }

    /// What has several names is not kept: one may be removed here without it being known which inode that was.
    fn put(&mut self, asked: Asked, name: Option<(u64, &[u8])>, entry: &Entry, attr: &Attr) {
        if attr.nlink > 1 && attr.kind() != InodeKind::Directory {
            self.inodes.remove(&attr.ino);
            return;
        }
        if self.inodes.len() >= MAX_KEPT {
            (self.inodes, self.names) = Default::default();
        }
        // Between two leases nobody would have said that it lost a name.
        if self.inodes.get(&attr.ino).is_some_and(|leased| leased.until <= asked.at) {
            self.inodes.remove(&attr.ino).into_iter().flat_map(|leased| leased.names).for_each(|key| {
                if self.names.get(&key) == Some(&attr.ino) {
                    self.names.remove(&key);
                }
            });
        }
        let (ino, known) = (attr.ino, Known { attr: attr.clone(), hints: entry.hints.clone() });
        // The lease runs from when the manager granted it, which was not before we asked.
        let until = asked.at + Duration::from_millis(entry.lease_ms);
        let fresh = || Leased { known: known.clone(), until, names: HashSet::new() };
        let leased = self.inodes.entry(ino).or_insert_with(fresh);
        (leased.known, leased.until) = (known, leased.until.max(until));
        if let Some((parent, name)) = name {
            let key = (parent, name.to_vec());
            leased.names.insert(key.clone());
            self.names.insert(key, ino);
        }
    }

    fn note(&mut self, change: Change) {
        self.changes += 1;
        self.changed.push_back(change);
        if self.changed.len() > MAX_CHANGES {
            self.changed.pop_front();
        }
    }

    /// Whether what an answer says of an inode may have changed since it was asked for.
    fn may_have_changed(&self, asked: Asked, ino: u64, name: Option<(u64, &[u8])>) -> bool {
        let since = (self.changes - asked.changes) as usize;
        let same = |change: &Change| match change {
            Change::Anything => true,
            Change::Inode(changed) => *changed == ino,
            Change::Name(parent, changed) => name == Some((*parent, changed)),
        };
        since > self.changed.len() || self.changed.iter().rev().take(since).any(same)
    }

    /// `ino`: what the name means or meant, if that is known.
    fn forget_name(&mut self, parent: u64, name: &[u8], ino: Option<u64>) {
        let key = (parent, name.to_vec());
        let meant = self.names.remove(&key);
        self.note(Change::Name(parent, key.1));
        // Its attributes changed with it.
        for ino in meant.into_iter().chain(ino) {
            self.inodes.remove(&ino);
            self.note(Change::Inode(ino));
        }
        if meant.or(ino).is_none() {
            self.note(Change::Anything);
        }
    }

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
    fn a_name_does_not_outlive_its_lease_though_its_inode_is_leased_again() {
        let names = Names::default();
        let mut asked = names.asking();
        asked.at -= Duration::from_secs(10);
        names.keep(asked, Some((1, b"a")), &entry(7, 5_000));
        names.keep(names.asking(), None, &entry(7, 5_000));
        assert!(names.get(7).is_some() && names.lookup(1, b"a").is_none());
    }

    #[test]
    fn what_is_changed_here_stays_known() {
        let names = Names::default();
        names.keep(names.asking(), Some((1, b"a")), &entry(7, 60_000));
        let changed = |mode, lease_ms| Entry {
            attr: Some(Attr { ino: 7, mode, ..Attr::default() }),
            lease_ms,
            ..Entry::default()
        };
        names.changed(names.asking(), &changed(0o600, 0));
        assert_eq!(names.lookup(1, b"a").unwrap().attr.mode, 0o600, "under the lease of before");
        let (first, second) = (names.asking(), names.asking());
        names.changed(second, &changed(0o640, 60_000));
        names.changed(first, &changed(0o644, 60_000));
        assert!(names.get(7).is_none(), "which of two came first is not known");
        let asked = names.asking();
        names.forget(Some(&[7]));
        names.changed(asked, &changed(0o600, 60_000));
        assert!(names.get(7).is_none(), "a recall overtook it");
        names.changed(names.asking(), &changed(0o600, 0));
        assert!(names.get(7).is_none(), "no lease");
        names.changed(names.asking(), &changed(0o600, 60_000));
        assert_eq!(names.get(7).unwrap().attr.mode, 0o600);
        names.made(names.asking(), 1, b"new", &entry(9, 60_000));
        assert_eq!(names.lookup(1, b"new").unwrap().attr.ino, 9);
        let asked = names.asking();
        names.forget(Some(&[10]));
        names.made(asked, 1, b"other", &entry(10, 60_000));
        assert!(names.lookup(1, b"other").is_none());
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
    fn an_answer_about_something_else_is_kept() {
        let names = Names::default();
        let asked = names.asking();
        names.forget(Some(&[8]));
        names.renamed(1, b"new", &Attr { ino: 9, ..Attr::default() });
        names.keep(asked, Some((1, b"a")), &entry(7, 60_000));
        assert!(names.lookup(1, b"a").is_some());
        names.keep(asked, Some((1, b"new")), &entry(9, 60_000));
        assert!(names.lookup(1, b"new").is_none());
        // Which inode lost this name is not known: it may be any.
        names.forget_name(2, b"x");
        names.keep(asked, Some((1, b"b")), &entry(10, 60_000));
        assert!(names.lookup(1, b"b").is_none());
        let asked = names.asking();
        (0..2 * MAX_CHANGES as u64).for_each(|ino| drop(names.forget(Some(&[1_000 + ino]))));
        names.keep(asked, Some((1, b"b")), &entry(10, 60_000));
        assert!(names.lookup(1, b"b").is_none(), "more has changed than is remembered");
    }

    #[test]
    fn a_directory_is_known_though_its_times_change() {
        let names = Names::default();
        names.keep(names.asking(), None, &entry(1, 60_000));
        names.renamed(1, b"b", &Attr { ino: 8, ctime_ns: 20, ..Attr::default() });
        names.renamed(1, b"a", &Attr { ino: 7, ctime_ns: 10, ..Attr::default() });
        let attr = names.get(1).unwrap().attr;
        assert_eq!((attr.mtime_ns, attr.ctime_ns), (20, 20));
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
