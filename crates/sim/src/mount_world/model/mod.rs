//! What programs may see: a POSIX tree under close-to-open consistency.
//!
//! The operations of one mount follow each other; those of different mounts overlap. For each mount and file the model
//! keeps the *writes* that are in no version yet. A version is right if a prefix of its writer's writes over the version
//! before explains every block of it; those writes are then stored. A read is right if one version, current at some time
//! since the handle was opened, together with the mount's own writes explains every block that it returned.
//!
//! | write | what must become of it |
//! |---|---|
//! | pending | the mount shows it; it is lost if the mount is killed |
//! | acknowledged | it ends in a version or a kept conflict copy; it survives what its write mode says |
//! | doubtful | an operation failed or the mount was killed: it may be stored or lost |

mod content;
mod copies;

pub use content::block;
use content::{apply, changes_nothing, describe_version, is_gone, list, variants};
use copies::{is_conflict_copy, is_conflict_copy_of};

use super::history::{History, Tree, Version};
use crate::mount_host::executor::Owner;
use crate::mount_host::store::{BLOCK_BYTES, Block, HOLE};
use crate::oracle::Violation;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

/// A mount may not hear for so long that its commit is done, ns: the answer may be slow, and the request repeated.
const UNHEARD_NS: i64 = 1_000_000_000;

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Survives {
    /// Not even a kill of the mount's process.
    Nothing,
    /// A kill.
    Kill,
    /// A power loss, too.
    PowerLoss,
}

/// How far a write has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pending,
    Acknowledged(Survives),
    Doubtful,
}

/// A change of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These blocks from this one on.
    Write(u64, Vec<Block>),
    /// So many blocks, whatever another mount writes behind them before the commit.
    Length(u64),
}

#[derive(Debug, Clone)]
struct Write {
    number: u64,
    change: Change,
    fate: Fate,
    /// When the program heard that it is done.
    done_ns: Option<i64>,
    /// Written under a lock: the next mount that gets it finds it in a version.
    under_lock: bool,
    /// Written under a lock that was lost since.
    lock_lost: bool,
    /// The blocks of it that some version had, which perhaps had not all of what was written before: a bit for each.
    stored_blocks: u64,
    /// It is in a log that the mount could perhaps not read when it started. The next mount may.
    unread: bool,
}

impl Write {
    /// Whether the mount has it, and does not know of a version that has it.
    fn is_sure(&self) -> bool {
        self.fate != Fate::Doubtful && !self.unread
    }

    /// Notes the blocks of it that a version has.
    fn note_stored(&mut self, version: &[Block]) {
        let Change::Write(at, blocks) = &self.change else { return };
        assert!(blocks.len() <= 64, "a bit for each block");
        for (i, block) in blocks.iter().enumerate() {
            let is_there = version.get(*at as usize + i) == Some(block);
            self.stored_blocks |= u64::from(is_there) << i;
        }
    }

    /// Whether some version had every block of it.
    fn was_whole(&self) -> bool {
        self.unstored().is_empty()
    }

    /// What of it no version had.
    fn unstored(&self) -> Vec<Write> {
        let Change::Write(at, blocks) = &self.change else { return vec![self.clone()] };
        let is_left = |i: &usize| self.stored_blocks >> i & 1 == 0;
        let left: Vec<usize> = (0..blocks.len()).filter(is_left).collect();
        let runs = left.chunk_by(|a, b| a + 1 == *b);
        let part = |run: &[usize]| Change::Write(at + run[0] as u64, run.iter().map(|i| blocks[*i]).collect());
        runs.map(|run| Write { change: part(run), ..self.clone() }).collect()
    }
}

/// What one mount wrote to one file.
#[derive(Debug, Default)]
struct Local {
    /// In no version yet, in order.
    writes: Vec<Write>,
    /// Kept in a conflict copy.
    set_aside: Vec<Write>,
    /// Stored by a push; the log that the spool goes on with may still have them.
    stays_in_log: Vec<Write>,
    handles: usize,
    /// Lengths that the mount's own writes gave the file since it was opened, blocks.
    shown: BTreeSet<u64>,
    /// The number of the last write.
    last_write: u64,
    /// Since when a handle was open when the last one was closed, and when that was.
    closed: Option<(i64, i64)>,
    /// Since when they had waited when the last of them were stored, and when the mount could hear of that at the earliest.
    stored: Option<(i64, i64)>,
    /// An operation failed since the first handle was opened.
    failed: bool,
    /// Since when the mount has the file open, or writes of it waiting.
    since_ns: i64,
}

impl Local {
    /// Whether the spool begins a log with what is written now: all before is in a version, and the mount has heard so.
    fn begins_log(&self, now_ns: i64) -> bool {
        let is_heard = self.stored.is_none_or(|(_, stored_ns)| stored_ns < now_ns - UNHEARD_NS);
        self.writes.is_empty() && self.set_aside.is_empty() && is_heard
    }

    /// Since when the mount may show its own length and content at `from_ns`: a handle was still open then, or the mount may not
    /// have heard yet that what its spool held is stored.
    fn shown_since(&self, is_spooled: bool, from_ns: i64) -> i64 {
        let closed = self.closed.filter(|(_, closed_ns)| *closed_ns >= from_ns);
        let stored = self.stored.filter(|(_, stored_ns)| is_spooled && *stored_ns >= from_ns - UNHEARD_NS);
        closed.into_iter().chain(stored).map(|(since_ns, _)| since_ns).fold(from_ns, i64::min)
    }
}

/// How the files of a directory are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRule {
    /// What the write mode is called.
    pub mode: &'static str,
    /// `close` may return before everything is durable.
    pub optimistic: bool,
}

impl WriteRule {
    /// What a close acknowledges; none: the content is in a version then.
    fn acknowledges(self) -> Option<Survives> {
        match (self.mode, self.optimistic) {
            ("complete-local", false) => Some(Survives::PowerLoss),
            ("complete-local", true) => Some(Survives::Kill),
            ("incremental", true) => Some(Survives::Nothing),
            _ => None,
        }
    }
}

/// An operation in the record.
#[derive(Debug, Clone)]
struct Entry {
    mount: usize,
    from_ns: i64,
    to_ns: Option<i64>,
    text: String,
    result: String,
    inos: Vec<u64>,
}

/// A mount and a file.
type Key = (usize, u64);

/// See the module.
pub struct Model {
    history: Rc<RefCell<History>>,
    locals: BTreeMap<Key, Local>,
    /// Mounts whose spool may lack its last changes, and have what was removed: the machine lost power, or the spool's disk failed.
    damaged_spools: BTreeSet<usize>,
    /// Mounts that were killed.
    killed: BTreeSet<usize>,
    /// Until when a mount hears nothing, ns.
    cut_until_ns: BTreeMap<usize, i64>,
    /// Write rules by inode: those of the directory in which the file was first seen.
    rules: BTreeMap<u64, WriteRule>,
    /// Mounts that are creating a file, and the number of each mount's creates.
    creating: BTreeSet<usize>,
    creates: BTreeMap<usize, u64>,
    /// Deferred creates: the mount showed them, and the manager may not know them.
    deferred: BTreeMap<Key, (u64, Vec<u8>)>,
    /// Lock holders by file: mount, and since when.
    locks: BTreeMap<u64, (usize, i64)>,
    entries: Vec<Entry>,
    last_write: u64,
    violation: Option<Violation>,
    /// Reads and other answers that were checked.
    pub checked: u64,
    start_ns: i64,
}

/// The last so many operations stand in a failure's text, and all that name its file.
const SHOWN: usize = 40;

impl Model {
    /// Nothing was done yet.
    pub fn new(history: Rc<RefCell<History>>, start_ns: i64) -> Model {
        Model {
            history,
            locals: BTreeMap::new(),
            damaged_spools: BTreeSet::new(),
            killed: BTreeSet::new(),
            cut_until_ns: BTreeMap::new(),
            rules: BTreeMap::new(),
            creating: BTreeSet::new(),
            creates: BTreeMap::new(),
            deferred: BTreeMap::new(),
            locks: BTreeMap::new(),
            entries: Vec::new(),
            last_write: 0,
            violation: None,
            checked: 0,
            start_ns,
        }
    }

    /// The first broken promise, with the operations around it.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Records a broken promise about `ino` (0: about no file).
    pub fn broken(&mut self, promise: &'static str, ino: u64, fact: String) {
        if self.violation.is_none() {
            let fact = format!("{fact}\n{}", self.describe(ino));
            self.violation = Some(Violation { promise, fact });
        }
    }

    // --- the record ---------------------------------------------------------------------------------------------

    /// An operation begins; returns its number.
    pub fn begin(&mut self, mount: usize, now_ns: i64, text: String) -> usize {
        let (to_ns, result) = (None, String::new());
        self.entries.push(Entry { mount, from_ns: now_ns, to_ns, text, result, inos: Vec::new() });
        self.entries.len() - 1
    }

    /// It ended.
    pub fn end(&mut self, number: usize, now_ns: i64, inos: &[u64], result: String) {
        let entry = &mut self.entries[number];
        (entry.to_ns, entry.result, entry.inos) = (Some(now_ns), result, inos.to_vec());
        self.checked += 1;
    }

    fn at(&self, ns: i64) -> String {
        format!("{:.3}", (ns - self.start_ns) as f64 / 1e6)
    }

    /// The last operations, and the versions of a file.
    fn describe(&self, ino: u64) -> String {
        let mut text = String::from("operations (ms):\n");
        let from = self.entries.len().saturating_sub(SHOWN);
        for (at, entry) in self.entries.iter().enumerate() {
            if at < from && !entry.inos.contains(&ino) {
                continue;
            }
            let to = entry.to_ns.map_or("…".into(), |to_ns| self.at(to_ns));
            let mark = if ino != 0 && entry.inos.contains(&ino) { '*' } else { ' ' };
            let Entry { mount, text: what, result, .. } = entry;
            let _ = writeln!(text, "{mark} {:>9}–{to:<9} mount {mount}: {what} = {result}", self.at(entry.from_ns));
        }
        if ino != 0 {
            let _ = writeln!(text, "inode {ino}, {:?}; its versions:", self.rules.get(&ino));
            for version in self.history.borrow().versions_of(ino) {
                let _ = writeln!(text, "  {}: {}", self.at(version.at_ns), describe_version(version));
            }
            for key in self.locals.keys().filter(|(_, of)| *of == ino) {
                let _ = writeln!(text, "  {}", self.describe_local(*key));
            }
        }
        text
    }

    /// What a mount wrote to a file and no version has.
    fn describe_local(&self, (mount, ino): Key) -> String {
        let Some(local) = self.locals.get(&(mount, ino)) else { return String::new() };
        let (handles, waits, aside) = (local.handles, list(&local.writes), list(&local.set_aside));
        let stays = list(&local.stays_in_log);
        format!(
            "mount {mount}, inode {ino}: {handles} handles; in no version: {waits}; in conflict copies: {aside}; \
             stored, and perhaps still in the log: {stays}"
        )
    }

    // --- names --------------------------------------------------------------------------------------------------

    /// A program creates a file, or has been answered.
    pub fn creates(&mut self, mount: usize, begins: bool) {
        match begins {
            true => _ = self.creating.insert(mount),
            false => _ = self.creating.remove(&mount),
        }
        *self.creates.entry(mount).or_default() += 1;
    }

    /// A create was answered; the manager may not know the file yet.
    pub fn created(&mut self, mount: usize, ino: u64, at: (u64, Vec<u8>)) {
        if let Some(rule) = self.rules.get(&at.0).copied() {
            self.rules.entry(ino).or_insert(rule);
        }
        if !self.history.borrow().existed(ino) {
            self.deferred.insert((mount, ino), at);
        }
    }

    /// Learns the write rules of what was made since: those of the directory.
    pub fn learn(&mut self, tree: &Tree) {
        for ((parent, _), ino) in &tree.names {
            if let Some(rule) = self.rules.get(parent).copied() {
                self.rules.entry(*ino).or_insert(rule);
            }
        }
    }

    /// Whether a mount made a file that the manager may not know yet.
    pub fn is_deferred(&self, mount: usize, ino: u64) -> bool {
        self.deferred.contains_key(&(mount, ino)) && !self.history.borrow().existed(ino)
    }

    /// Deferred creates of a mount in a directory that the manager does not know.
    pub fn deferred_in(&self, mount: usize, directory: u64) -> Vec<(Vec<u8>, u64)> {
        let of = self.deferred.iter().filter(|((of, ino), (parent, _))| {
            *of == mount && *parent == directory && !self.history.borrow().existed(*ino)
        });
        of.map(|((_, ino), (_, name))| (name.clone(), *ino)).collect()
    }

    /// The name under which a mount made a file that the manager does not know.
    pub fn deferred_name(&self, mount: usize, ino: u64) -> Option<(u64, Vec<u8>)> {
        self.deferred.get(&(mount, ino)).cloned()
    }

    /// A file was closed without an error: the manager must have heard of it.
    pub fn closed(&mut self, mount: usize, ino: u64) {
        let lost = self.deferred.remove(&(mount, ino)).is_some() && !self.history.borrow().existed(ino);
        if lost {
            self.broken("P1", ino, format!("mount {mount}: inode {ino} was created and closed, and never existed"));
        }
    }

    // --- locks --------------------------------------------------------------------------------------------------

    /// A mount got a lock. `may_be_lost`: whether the manager may have taken the locks that another mount had at a
    /// time.
    pub fn locked(&mut self, mount: usize, ino: u64, now_ns: i64, may_be_lost: impl Fn(usize, i64) -> bool) {
        self.finds_what_others_wrote_under_the_lock(mount, ino, now_ns, |other| may_be_lost(other, i64::MIN));
        let Some((holder, since_ns)) = self.locks.insert(ino, (mount, now_ns)).filter(|(of, _)| *of != mount) else {
            return;
        };
        if !may_be_lost(holder, since_ns) {
            let since = self.at(since_ns);
            let fact = format!("mount {mount} got the lock of inode {ino}, which mount {holder} holds since {since}");
            return self.broken("P7", ino, fact);
        }
        // The fence of a commit that is under way has lapsed, too.
        if let Some(local) = self.locals.get_mut(&(holder, ino)) {
            local.writes.iter_mut().for_each(|write| write.lock_lost = true);
        }
    }

    /// A lock was given up, or found lost.
    pub fn unlocked(&mut self, mount: usize, ino: u64) {
        if self.locks.get(&ino).is_some_and(|(holder, _)| *holder == mount) {
            self.locks.remove(&ino);
        }
    }

    // --- the end ------------------------------------------------------------------------------------------------

    /// Whether some mount has writes to a file that may be in no version yet.
    pub fn waits(&self, ino: u64) -> bool {
        let mut locals = self.locals.iter().filter(|((_, of), _)| *of == ino);
        locals.any(|(_, local)| local.handles > 0 || local.writes.iter().any(Write::is_sure))
    }

    /// Checks what a mount read once nothing waits: the content of a version that was current meanwhile, and nothing else.
    pub fn last_read(&mut self, mount: usize, ino: u64, from_ns: i64, now_ns: i64, found: &[u8]) {
        let blocks = content::blocks_of(found);
        let contents = self.history.borrow().contents(ino, from_ns, now_ns);
        self.checked += 1;
        if !contents.iter().any(|content| **content == blocks) {
            let there: Vec<String> = contents.iter().map(|content| content::describe_blocks(content)).collect();
            let shown = content::describe_blocks(&blocks);
            let fact =
                format!("mount {mount} reads {shown} at the end from inode {ino}; there is {}", there.join(" or "));
            self.broken("P3", ino, fact);
        }
    }

    /// Everything has settled: what was acknowledged must be in a version or a conflict copy.
    pub fn settled(&mut self) {
        // The last mounts could read all logs.
        self.locals.values_mut().flat_map(|local| &mut local.writes).for_each(|write| write.unread = false);
        let tree = self.history.borrow().now();
        let mut missing = None;
        for ((mount, ino), local) in &self.locals {
            let acknowledged = |write: &Write| matches!(write.fate, Fate::Acknowledged(_)) && !write.was_whole();
            let Some(last) = local.writes.iter().rposition(acknowledged) else { continue };
            let key = (*mount, *ino);
            let is_left = self.count_in_copy(key).max(self.count_in_version(key)) > last;
            if is_left || is_gone(&tree, *ino) || self.is_stored_elsewhere(*ino, &local.writes[..=last]) {
                continue;
            }
            missing = Some((*mount, *ino, local.writes[last].number));
        }
        if let Some((mount, ino, write)) = missing {
            let fact = format!("mount {mount}: write {write} to inode {ino} was acknowledged, and is nowhere");
            self.broken("P1", ino, fact);
        }
    }

    /// Whether a version that was current since the last of these writes has the same content, or a conflict copy of the file.
    fn is_stored_elsewhere(&self, ino: u64, writes: &[Write]) -> bool {
        let history = self.history.borrow();
        let tree = history.now();
        let versions: Vec<&Version> = history.versions_of(ino).collect();
        let done_ns = writes.last().and_then(|write| write.done_ns).unwrap_or(i64::MIN);
        let since = versions.iter().filter(|version| version.until_ns >= done_ns);
        let copies = history.versions().filter(|version| is_conflict_copy_of(&history, &tree, version.ino, ino));
        let kept: Vec<&Version> = since.copied().chain(copies).collect();
        let empty = Rc::new(Vec::new());
        if changes_nothing(writes, &history.contents(ino, i64::MAX, i64::MAX).pop().unwrap_or_default()) {
            return true;
        }
        let bases = || versions.iter().map(|version| &version.blocks).chain([&empty]);
        let explained = |writes: &Vec<&Write>| {
            bases().any(|base| {
                let content = apply(writes, base);
                kept.iter().any(|version| *version.blocks == content)
            })
        };
        variants(writes).iter().any(explained)
    }
}
