//! Conflict copies: what the spool keeps beside a file that another mount has changed.

use super::content::{apply, windows};
use super::*;

impl Model {
    /// What a mount wrote and the spool may hold; none: what any mount wrote.
    pub(super) fn spooled_by(&self, by: Option<Owner>) -> Vec<Key> {
        let of_writer = |key: &&Key| self.is_spooled(key.1) && by.is_none_or(|by| by.index == key.0);
        self.locals.keys().filter(of_writer).copied().collect()
    }

    /// Whether a conflict copy holds what its mount wrote over some version of another file.
    pub(super) fn set_aside(&mut self, copy: &Version, tree: &Tree) -> bool {
        let counts = self.spooled_by(copy.by).into_iter();
        let counts = counts.filter_map(|key| Some((key, self.kept_prefix(key, copy)?)));
        // A copy of nothing but holes may be that of any file; its name says of which.
        let of = original(tree, copy.ino);
        // Files have been renamed since; what was acknowledged must be kept.
        let counts =
            counts.map(|(key, count)| (self.is_replaced(key), self.is_owed(key, count), of == Some(key.1), count, key));
        let Some((is_replaced, _, _, count, key)) = counts.max() else { return false };
        // The record of a push may be lost: the next mount then takes its own version for another mount's.
        if !is_replaced && !self.damaged_spools.contains(&key.0) {
            let fact = format!("mount {} kept a conflict copy, and no other mount changed the file", key.0);
            self.broken("P1", key.1, fact);
        }
        self.keep_aside(key, count);
        true
    }

    /// Whether the spool of a mount may have left what it has acknowledged of a file to something else: to a conflict copy that has
    /// it already, to another mount's version that has it, or to nothing, if the file is gone. From here on these writes count as left.
    /// To be asked only where nothing else explains what the mount did: it may also wait with them.
    pub(super) fn leaves(&mut self, key: Key, now_ns: i64) -> bool {
        let count = self.count_in_version(key);
        if count > 0 {
            self.forget(key, count, now_ns);
            return true;
        }
        let count = self.count_in_copy(key).max(self.count_of_gone(key));
        self.keep_aside(key, count);
        count > 0
    }

    /// How many writes of a file in no version another mount's version has: a push makes no copy of what is there.
    pub(super) fn count_in_version(&self, key: Key) -> usize {
        let history = self.history.borrow();
        let others = history.versions_of(key.1).filter(|version| version.by.is_none_or(|by| by.index != key.0));
        let counts = others.filter_map(|version| Some((self.kept_prefix(key, version)?, version.until_ns)));
        let was_seen = |count: usize, until_ns: i64| {
            let last = count.checked_sub(1).and_then(|last| self.locals[&key].writes[last].done_ns);
            last.is_some_and(|done_ns| done_ns <= until_ns)
        };
        let seen = counts.filter(|(count, until_ns)| was_seen(*count, *until_ns)).map(|(count, _)| count);
        seen.filter(|count| self.is_owed(key, *count)).max().unwrap_or(0)
    }

    /// How many writes of a file in no version a conflict copy has: a mount that is to make a copy makes no second one, whichever mount
    /// made the first.
    pub(super) fn count_in_copy(&self, key: Key) -> usize {
        let history = self.history.borrow();
        let tree = history.now();
        let is_replaced = self.is_replaced(key);
        let is_copy = |version: &&Version| is_replaced && is_conflict_copy_of(&history, &tree, version.ino, key.1);
        let copies = history.versions().filter(is_copy);
        let counts = copies.filter_map(|copy| self.kept_prefix(key, copy));
        counts.filter(|count| self.is_owed(key, *count)).max().unwrap_or(0)
    }

    /// How many writes a push drops because the manager does not have the file any more: all that was acknowledged.
    fn count_of_gone(&self, key: Key) -> usize {
        let Some(local) = self.locals.get(&key) else { return 0 };
        let is_gone = self.history.borrow().existed(key.1) && !self.history.borrow().now().inodes.contains_key(&key.1);
        let acknowledged = |write: &Write| matches!(write.fate, Fate::Acknowledged(_));
        let last = local.writes.iter().rposition(acknowledged).filter(|_| is_gone && self.is_spooled(key.1));
        last.map_or(0, |last| last + 1)
    }

    /// Whether another mount has changed a file since this one has it open, or writes of it waiting.
    fn is_replaced(&self, key: Key) -> bool {
        let since_ns = self.locals.get(&key).map_or(i64::MAX, |local| local.since_ns - UNHEARD_NS);
        self.has_other_since(key, since_ns)
    }

    /// Whether another mount made a version of a file after this time.
    fn has_other_since(&self, (mount, ino): Key, since_ns: i64) -> bool {
        let history = self.history.borrow();
        let is_other = |version: &Version| version.by.is_none_or(|by| by.index != mount);
        history.versions_of(ino).any(|version| version.at_ns > since_ns && is_other(version))
    }

    /// Whether another process made a version over this one, perhaps at the same time.
    fn has_other_over(&self, below: &Version) -> bool {
        let history = self.history.borrow();
        let is_other = |version: &Version| version.by.map(|by| by.index) != below.by.map(|by| by.index);
        history.versions_of(below.ino).any(|version| version.id > below.id && is_other(version))
    }

    /// Whether the spool has acknowledged something of the first writes.
    fn is_owed(&self, key: Key, count: usize) -> bool {
        let acknowledged = |write: &Write| matches!(write.fate, Fate::Acknowledged(_));
        self.is_spooled(key.1) && self.locals[&key].writes[..count].iter().any(acknowledged)
    }

    /// The first writes are in a version.
    fn forget(&mut self, key: Key, count: usize, now_ns: i64) {
        let heard_ns = self.heard_ns(key.0, now_ns);
        if let Some(local) = self.locals.get_mut(&key) {
            local.writes.drain(..count);
            local.stored = Some((local.since_ns, heard_ns));
        }
    }

    fn keep_aside(&mut self, key: Key, count: usize) {
        if let Some(local) = self.locals.get_mut(&key) {
            local.set_aside.extend(local.writes.drain(..count));
        }
    }

    /// How many writes of a file in no version a conflict copy has, after those that an earlier copy has.
    fn kept_prefix(&self, key: Key, copy: &Version) -> Option<usize> {
        let local = self.locals.get(&key)?;
        let history = self.history.borrow();
        let versions = history.versions_of(key.1).map(|version| &version.blocks[..]);
        let bases: Vec<&[Block]> = versions.chain([&[][..]]).collect();
        let longest = bases.iter().map(|base| base.len()).max().unwrap_or_default();
        // If the version below the log is gone, the copy takes as much of the current one as the log keeps, and zeros
        // where the version below was longer. What the log still has of what is stored then shows over another version.
        let explains = |writes: &Vec<&Write>| {
            let parts = bases.iter().flat_map(|base| (0..=longest).map(|len| resized(base, len)));
            parts.into_iter().any(|base| apply(writes, &base) == *copy.blocks)
        };
        // What an earlier copy has belongs to this one too, unless the mount showed the other version in between.
        let kept = |count: &usize, aside: &[Write]| {
            let begins = (0..=local.stays_in_log.len()).map(|from| &local.stays_in_log[from..]);
            (*count > 0 || !aside.is_empty())
                && begins.into_iter().any(|begin| {
                    let all: Vec<Write> = begin.iter().chain(aside).chain(&local.writes[..*count]).cloned().collect();
                    windows(&all).iter().any(explains)
                })
        };
        (0..=local.writes.len()).rev().find(|count| kept(count, &local.set_aside) || kept(count, &[]))
    }

    /// Whether a conflict copy repeats what its mount has pushed: a mount that dies before it hears of its commit pushes
    /// the log again, and cannot recognize the commit below another mount's version. So does one that dies before it
    /// removes the log of which it made a copy.
    pub(super) fn is_pushed_again(&self, copy: &Version, tree: &Tree) -> bool {
        let Some(by) = copy.by.filter(|by| self.killed.contains(&by.index)) else { return false };
        let history = self.history.borrow();
        let made = |version: &&Version| version.by.is_some_and(|maker| maker.index == by.index);
        let of_file = |version: &Version| {
            let key = (by.index, version.ino);
            self.locals.contains_key(&key) && self.is_spooled(version.ino) && self.has_other_over(version)
        };
        let of_copy = |version: &Version| version.ino != copy.ino && is_conflict_copy(tree, version.ino);
        let mut versions = history.versions().filter(made);
        versions.any(|version| version.blocks == copy.blocks && (of_file(version) || of_copy(version)))
    }
}

/// The name of the file of which this name's file is a conflict copy.
fn copied_name(name: &[u8]) -> Option<&[u8]> {
    const MARK: &[u8] = b".tessera-conflict-";
    name.windows(MARK.len()).position(|part| part == MARK).map(|end| &name[..end])
}

pub(super) fn is_conflict_copy(tree: &Tree, ino: u64) -> bool {
    tree.names.iter().any(|((_, name), named)| *named == ino && copied_name(name).is_some())
}

/// Whether an inode is a conflict copy of a file: it is called as the file was once, or by the file's number.
pub(super) fn is_conflict_copy_of(history: &History, tree: &Tree, copy: u64, ino: u64) -> bool {
    let unnamed = format!("inode-{ino}").into_bytes();
    let mut names = tree.names.iter().filter(|(_, named)| **named == copy).map(|(name, _)| name);
    names.any(|(parent, name)| {
        copied_name(name).is_some_and(|of| {
            of == unnamed || history.any(i64::MIN, i64::MAX, |tree| tree.lookup(*parent, of) == Some(ino))
        })
    })
}

/// The file beside which a conflict copy was made, if it still has its name.
fn original(tree: &Tree, copy: u64) -> Option<u64> {
    let ((parent, name), _) = tree.names.iter().find(|(_, named)| **named == copy)?;
    let at = name.windows(9).position(|part| part == b".tessera-")?;
    tree.names.get(&(*parent, name[..at].to_vec())).copied()
}

fn resized(base: &[Block], len: usize) -> Vec<Block> {
    let mut blocks = base.to_vec();
    blocks.resize(len, HOLE);
    blocks
}
