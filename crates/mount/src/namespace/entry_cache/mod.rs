//! Names and attributes, cached under the manager's leases.
//!
//! A lease on an inode covers its attributes (but not a directory's times) and the name it was reached by. A recall
//! removes an entry before the recall is answered, so the cache never shows a state older than an acknowledged change.
//!
//! An answer of the manager may be older than a recall, or than a change made here, that arrived while the answer was
//! in flight. Each request therefore carries a [`Stamp`], and an answer is cached only if nothing it describes changed
//! since its stamp.

use super::listings::{KeptNames, ListingLease, Listings, TOLD_NS};
use super::ms_to_ns;
use super::shared::SharedDirectories;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;
use tessera_failpoint as failpoint;
use tessera_policy::Policy;
use tessera_wire::meta::Entry;
use tessera_wire::{Attr, Hint, InodeKind};

/// Limit of cached inodes; beyond it the cache is emptied.
const MAX_INODES: usize = 200_000;
/// So many inodes' last known names are kept, at least: those that were seen last. They are kept beyond leases, so that people recognise files
/// by them.
const MAX_LAST_NAMES: usize = 16_384;
/// Limit of the last known names of one inode.
const MAX_NAMES_OF_INODE: usize = 4;
/// Number of recent changes against which answers are checked.
const MAX_CHANGES: usize = 1_024;

/// A directory and a name in it.
pub type Name = (u64, Vec<u8>);
/// As [`Name`], borrowed.
pub type NameRef<'a> = (u64, &'a [u8]);

/// Attributes and hints of an inode.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EntryAttr {
    /// Attributes.
    pub attr: Attr,
    /// Hints.
    pub hints: Vec<Hint>,
}

impl EntryAttr {
    /// The policy that the hints describe; none: this release does not understand them.
    pub fn policy(&self) -> Option<Policy> {
        Policy::from_hints(self.hints.iter().map(|h| (h.name.as_str(), h.value.as_str()))).ok()
    }
}

impl From<Entry> for EntryAttr {
    fn from(entry: Entry) -> EntryAttr {
        EntryAttr { attr: entry.attr.unwrap_or_default(), hints: entry.hints }
    }
}

/// The moment a request was sent; handed in with the answer.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    pub(super) at_ns: i64,
    pub(super) changes: u64,
    pub(super) recalls: u64,
}

/// Counters of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Inodes under a valid lease.
    pub leased_inodes: u64,
    /// Lookups that the cache answered.
    pub hits: u64,
    /// Lookups that the cache could not answer.
    pub misses: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct EntryCache {
    inodes: HashMap<u64, Leased>,
    names: HashMap<Name, u64>,
    /// Names under which an inode was seen, the last one last; they may be outdated.
    last_names: HashMap<u64, Vec<Name>>,
    /// Names for which `last_names` has no room any more, and which the kernel may keep: it must forget them now.
    pub evicted: Vec<Name>,
    /// As `last_names`, of before that was full: the kernel may still keep these names, and a recall must tell them.
    last_names_before: HashMap<u64, Vec<Name>>,
    /// Until when the manager recalls inodes that have several names, which are not cached.
    several_names: HashMap<u64, i64>,
    /// Directories in which other mounts change something.
    shared: SharedDirectories,
    /// Directories whose names the kernel keeps.
    pub listings: Listings,
    /// The kernel keeps no name longer, ns.
    kept_ns: i64,
    /// Until when it may keep names of which it was not told.
    untold_until_ns: i64,
    /// Number of recalls and changes so far: part of a [`Stamp`].
    pub changes: u64,
    /// The most recent of them.
    recent: VecDeque<Change>,
    hits: u64,
    misses: u64,
    /// The latest time that the cache heard of.
    pub now_ns: i64,
}

#[derive(Debug, PartialEq)]
enum Change {
    Inode(u64),
    Name(Name),
    /// Unknown changes: any entry may be affected.
    Anything,
}

#[derive(Debug)]
struct Leased {
    entry: EntryAttr,
    /// When the latest request was sent whose answer this is.
    asked_ns: i64,
    until_ns: i64,
    /// Names by which it was reached.
    names: HashSet<Name>,
}

impl EntryCache {
    /// Knows nothing. The kernel keeps names for `kept_ns` at most.
    pub fn new(kept_ns: i64) -> EntryCache {
        EntryCache { kept_ns, ..EntryCache::default() }
    }

    /// Time passes. Returns the latest time: threads read the clock before they take the lock.
    pub fn advance(&mut self, now_ns: i64) -> i64 {
        self.now_ns = self.now_ns.max(now_ns);
        self.now_ns
    }

    /// What `name` in `parent` stands for, if a lease covers it.
    pub fn lookup(&self, now_ns: i64, parent: u64, name: &[u8]) -> Option<EntryAttr> {
        self.names.get(&(parent, name.to_vec())).and_then(|ino| self.get(now_ns, *ino))
    }

    /// An inode, if a lease covers it.
    pub fn get(&self, now_ns: i64, ino: u64) -> Option<EntryAttr> {
        self.inodes.get(&ino).filter(|leased| leased.until_ns > now_ns).map(|leased| leased.entry.clone())
    }

    /// How much longer the lease on an inode lasts, ns; none: nothing is known of one.
    pub fn lease_left_ns(&self, now_ns: i64, ino: u64) -> Option<i64> {
        let until_ns = self.inodes.get(&ino).map(|leased| leased.until_ns).or(self.several_names.get(&ino).copied());
        until_ns.map(|until_ns| until_ns.saturating_sub(now_ns).max(0))
    }

    /// Another mount changes something in these directories.
    pub fn note_shared(&mut self, directories: impl IntoIterator<Item = u64>) {
        directories.into_iter().for_each(|directory| self.shared.note(self.now_ns, directory, self.kept_ns));
    }

    /// Whether another mount changed something in a directory lately.
    pub fn is_shared(&self, now_ns: i64, directory: u64) -> bool {
        self.shared.since_ns(now_ns, directory).is_some()
    }

    /// How long the kernel may keep names of these inodes, and names that it got when these directories were listed. Of a directory that is
    /// shared it keeps none, but for those that it got before.
    pub fn kept_names(&self, now_ns: i64, inos: &[u64]) -> KeptNames {
        let kept_ns = if self.kept_ns == 0 { 0 } else { self.kept_ns.saturating_add(TOLD_NS) };
        let left_ns = |(parent, _): &Name| match self.shared.since_ns(now_ns, *parent) {
            Some(since_ns) => since_ns.saturating_add(kept_ns).saturating_sub(now_ns),
            None => kept_ns,
        };
        let names = inos.iter().flat_map(|ino| {
            let leased = self.inodes.get(ino).into_iter().flat_map(|leased| &leased.names);
            leased.chain(self.seen_names(*ino))
        });
        let (has_listed, untold_until_ns) = self.listings.kept(now_ns, inos);
        let listed_ns = if has_listed { kept_ns } else { 0 };
        let untold_ns = untold_until_ns.saturating_add(TOLD_NS).saturating_sub(now_ns);
        let duration = |ns: i64| Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
        KeptNames {
            until_told: duration(names.map(left_ns).fold(listed_ns, i64::max)),
            untold: duration(if untold_until_ns == i64::MIN { 0 } else { untold_ns }),
        }
    }

    /// The kernel must forget names, and is not told so.
    pub fn names_untold(&mut self) {
        if self.kept_ns > 0 {
            self.untold_until_ns = self.now_ns.saturating_add(self.kept_ns).saturating_add(TOLD_NS);
        }
    }

    /// For how long it may keep such names.
    pub fn untold_for(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.untold_until_ns.saturating_sub(self.now_ns)).unwrap_or(0))
    }

    /// A page of `directory` came; `lease_ms`: with a lease on its names for so long. Returns the lease that covers it.
    pub fn listed(&mut self, stamp: Stamp, directory: u64, lease_ms: u64) -> Option<ListingLease> {
        match lease_ms > 0 && !self.may_be_outdated(stamp, directory, None) {
            true => self.listings.granted(self.now_ns, stamp, directory, lease_ms),
            false => self.listings.held(self.now_ns, stamp, directory),
        }
    }

    /// The kernel gets a name of a page that `lease` covers. Returns for how long it may keep it, ns.
    pub fn keep_listed(&mut self, now_ns: i64, lease: ListingLease, name: NameRef<'_>) -> u64 {
        match self.is_shared(now_ns, name.0) {
            true => 0,
            false => self.listings.keep(now_ns, lease, name, self.kept_ns),
        }
    }

    /// Counts a lookup as a hit or a miss.
    pub fn count(&mut self, hit: bool) {
        self.hits += u64::from(hit);
        self.misses += u64::from(!hit);
    }

    /// The counters.
    pub fn stats(&self, now_ns: i64) -> CacheStats {
        let leased_inodes = self.inodes.values().filter(|leased| leased.until_ns > now_ns).count() as u64;
        CacheStats { leased_inodes, hits: self.hits, misses: self.misses }
    }

    /// Directory and name under which an inode was last seen.
    pub fn last_name(&self, ino: u64) -> Option<Name> {
        self.seen_names(ino).last().cloned()
    }

    fn seen_names(&self, ino: u64) -> &[Name] {
        self.last_names.get(&ino).or_else(|| self.last_names_before.get(&ino)).map_or(&[], Vec::as_slice)
    }

    /// The manager answered a question; `name`: how the inode was reached.
    pub fn fetched(&mut self, stamp: Stamp, name: Option<NameRef<'_>>, entry: &Entry) {
        let Some(attr) = &entry.attr else { return };
        if let Some((parent, name)) = name {
            self.note_name(attr, (parent, name.to_vec()));
        }
        if entry.lease_ms > 0 && !self.may_be_outdated(stamp, attr.ino, name) {
            self.put(stamp, name, entry, attr);
        }
    }

    /// As [`EntryCache::fetched`], of a name that nobody has asked for: the kernel does not know it.
    pub fn fetched_ahead(&mut self, stamp: Stamp, name: NameRef<'_>, entry: &Entry) {
        if let Some(attr) = entry.attr.as_ref().filter(|attr| entry.lease_ms > 0 && attr.nlink == 1)
            && !self.may_be_outdated(stamp, attr.ino, Some(name))
        {
            self.put(stamp, Some(name), entry, attr);
        }
    }

    /// The kernel gets a name that stands for this inode.
    pub fn note_seen(&mut self, attr: &Attr, (parent, name): NameRef<'_>) {
        let is_known = |known: &Name| known.0 == parent && known.1 == name;
        if !self.seen_names(attr.ino).last().is_some_and(is_known) {
            self.note_name(attr, (parent, name.to_vec()));
        }
    }

    /// This mount changed an inode, and the manager answered with its new attributes. An entry under a lease stays cached, and the answer may
    /// grant a lease.
    /// Returns whether these attributes are known to be the newest.
    pub fn changed_here(&mut self, stamp: Stamp, entry: &Entry) -> bool {
        let Some(attr) = &entry.attr else { return true };
        // Answers to two changes of this mount may arrive in either order, and so may one to a question that was asked later. Then it is
        // unknown which attributes are newer.
        let cached = self.inodes.get(&attr.ino);
        let overtaken = cached.is_some_and(|leased| leased.asked_ns > stamp.at_ns);
        let leased = cached.is_some_and(|leased| leased.until_ns > stamp.at_ns);
        let outdated = overtaken || self.may_be_outdated(stamp, attr.ino, None);
        self.note(Change::Inode(attr.ino));
        match !outdated && (leased || entry.lease_ms > 0) {
            true => self.put(stamp, None, entry, attr),
            false => drop(self.remove(attr.ino)),
        }
        !outdated
    }

    /// This mount created something as `name` in `parent`.
    pub fn created_here(&mut self, stamp: Stamp, parent: u64, name: &[u8], entry: &Entry) {
        let Some(attr) = &entry.attr else { return };
        let outdated = self.may_be_outdated(stamp, attr.ino, Some((parent, name)));
        self.name_changed(parent, name, attr);
        if entry.lease_ms > 0 && !outdated {
            self.put(stamp, Some((parent, name)), entry, attr);
        }
    }

    /// Removes inodes and the names by which they were reached; none: everything. Returns the names, in order, which the
    /// kernel must forget too. The kernel may know a name of an inode that is not cached here any more.
    pub fn forget(&mut self, inos: Option<&[u64]>) -> Vec<Name> {
        let Some(inos) = inos else {
            self.note(Change::Anything);
            self.inodes.clear();
            let mut forgotten: Vec<Name> = self.names.drain().map(|(name, _)| name).collect();
            forgotten.sort_unstable();
            return forgotten;
        };
        let mut forgotten = BTreeSet::new();
        for ino in inos {
            self.note(Change::Inode(*ino));
            forgotten.extend(self.remove(*ino));
            let means_another = |name: &&Name| self.names.get(*name).is_some_and(|other| other != ino);
            let seen = self.seen_names(*ino).iter();
            forgotten.extend(seen.filter(|name| !means_another(name)).cloned());
        }
        forgotten.into_iter().collect()
    }

    /// Removes a name that was created, removed or moved, and its directory's attributes.
    pub fn forget_name(&mut self, parent: u64, name: &[u8]) {
        self.forget(Some(&[parent]));
        self.remove_name(parent, name, None);
    }

    /// An inode got the name `name` in `parent`, or (`nlink` 0) lost it. `attr`: the inode's attributes now; their
    /// change time is the directory's new modification time.
    pub fn name_changed(&mut self, parent: u64, name: &[u8], attr: &Attr) {
        self.remove_name(parent, name, Some(attr.ino));
        self.note(Change::Inode(parent));
        if attr.nlink > 0 {
            self.note_name(attr, (parent, name.to_vec()));
        }
        if let Some(directory) = self.inodes.get_mut(&parent) {
            let times = &mut directory.entry.attr;
            // Answers to two changes may arrive in either order.
            times.mtime_ns = times.mtime_ns.max(attr.ctime_ns);
            times.ctime_ns = times.ctime_ns.max(attr.ctime_ns);
        }
    }

    /// This mount is about to give the inode that `from` stands for, if that is known, the name `to`: the kernel keeps what it knows of the old name for
    /// the new one, and a recall must tell it. Returns whether one does. None does for what a listing told: its lease may last longer than that on
    /// the inode, and where it was recalled, the kernel may hear that after the move.
    pub fn begin_move(&mut self, from: NameRef<'_>, to: NameRef<'_>) -> bool {
        let ino = self.names.get(&(from.0, from.1.to_vec())).copied();
        if let Some(ino) = ino {
            self.note_last_name(ino, (to.0, to.1.to_vec()));
        }
        ino.is_some() && !self.listings.keeps(from) && !self.shared.may_keep(self.now_ns, from.0)
    }

    /// An inode is seen under a name. One with more names than a recall would tell has no lease, so the kernel does not keep them; those that it
    /// got before stay remembered.
    fn note_name(&mut self, attr: &Attr, name: Name) {
        if has_too_many_names(attr) {
            self.several_names.remove(&attr.ino);
        }
        if !has_too_many_names(attr) || self.seen_names(attr.ino).is_empty() {
            self.note_last_name(attr.ino, name);
        }
    }

    /// An inode is seen under a name, or will be.
    pub fn note_last_name(&mut self, ino: u64, name: Name) {
        let before = self.last_names_before.remove(&ino);
        if self.last_names.len() >= MAX_LAST_NAMES && !self.last_names.contains_key(&ino) {
            self.last_names_before = std::mem::take(&mut self.last_names);
        }
        let names = self.last_names.entry(ino).or_insert_with(|| before.unwrap_or_default());
        names.retain(|known| *known != name);
        if names.len() == MAX_NAMES_OF_INODE {
            self.evicted.push(names.remove(0));
        }
        names.push(name);
    }

    /// Caches an inode, unless it has several names: a removed name would not say which inode changed.
    fn put(&mut self, stamp: Stamp, name: Option<NameRef<'_>>, entry: &Entry, attr: &Attr) {
        // The manager granted the lease no earlier than the request was sent.
        let until_ns = stamp.at_ns.saturating_add(ms_to_ns(entry.lease_ms));
        if attr.nlink > 1 && attr.kind() != InodeKind::Directory {
            self.remove(attr.ino);
            if self.several_names.len() >= MAX_LAST_NAMES {
                self.several_names.clear();
            }
            if !has_too_many_names(attr) {
                self.several_names.insert(attr.ino, until_ns);
            }
            return;
        }
        if self.inodes.len() >= MAX_INODES {
            (self.inodes, self.names) = Default::default();
            // No recall will name what the kernel knows of these.
            self.names_untold();
        }
        // Between the end of the lease and this answer, no recall would have reported that the inode lost a name.
        if let Some(leased) = self.inodes.get(&attr.ino)
            && leased.until_ns <= self.now_ns
        {
            self.remove(attr.ino);
        }
        let known = EntryAttr { attr: attr.clone(), hints: entry.hints.clone() };
        let asked_ns = stamp.at_ns;
        let fresh = || Leased { entry: EntryAttr::default(), asked_ns, until_ns, names: HashSet::new() };
        let leased = self.inodes.entry(attr.ino).or_insert_with(fresh);
        leased.entry = known;
        (leased.asked_ns, leased.until_ns) = (leased.asked_ns.max(asked_ns), leased.until_ns.max(until_ns));
        if let Some((parent, name)) = name {
            let name = (parent, name.to_vec());
            leased.names.insert(name.clone());
            self.names.insert(name, attr.ino);
        }
    }

    /// Removes an inode, and those of its names that still stand for it. Returns all its names.
    fn remove(&mut self, ino: u64) -> HashSet<Name> {
        self.several_names.remove(&ino);
        let names = self.inodes.remove(&ino).map(|leased| leased.names).unwrap_or_default();
        for name in &names {
            if self.names.get(name) == Some(&ino) {
                self.names.remove(name);
            }
        }
        names
    }

    fn note(&mut self, change: Change) {
        self.changes += 1;
        self.recent.push_back(change);
        if self.recent.len() > MAX_CHANGES {
            self.recent.pop_front();
        }
    }

    /// Whether an inode, or the name it was reached by, may have changed since the answer's stamp.
    pub fn may_be_outdated(&self, stamp: Stamp, ino: u64, name: Option<NameRef<'_>>) -> bool {
        assert!(stamp.changes <= self.changes, "a stamp of {} is from the future of {}", stamp.changes, self.changes);
        if failpoint::is_active("mount.stamps_are_ignored") {
            return false;
        }
        let since = (self.changes - stamp.changes) as usize;
        let same = |change: &Change| match change {
            Change::Anything => true,
            Change::Inode(changed) => *changed == ino,
            Change::Name((parent, changed)) => name == Some((*parent, changed)),
        };
        since > self.recent.len() || self.recent.iter().rev().take(since).any(same)
    }

    /// `ino`: the inode behind the name before or after the change, if known; its attributes changed too.
    fn remove_name(&mut self, parent: u64, name: &[u8], ino: Option<u64>) {
        let name = (parent, name.to_vec());
        let meant = self.names.remove(&name);
        self.note(Change::Name(name));
        for ino in meant.into_iter().chain(ino) {
            self.remove(ino);
            self.note(Change::Inode(ino));
        }
        if meant.or(ino).is_none() {
            self.note(Change::Anything);
        }
    }
}

/// Whether a recall of a file would not tell all its names.
fn has_too_many_names(attr: &Attr) -> bool {
    attr.nlink as usize > MAX_NAMES_OF_INODE && attr.kind() != InodeKind::Directory
}

#[cfg(test)]
mod tests;
