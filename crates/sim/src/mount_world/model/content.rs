//! What programs wrote, which versions that explains, and what a read may return.

use super::*;

impl Model {
    /// Sets how new files in a directory are written.
    pub fn rule(&mut self, ino: u64, rule: WriteRule) {
        self.rules.insert(ino, rule);
    }

    pub(super) fn local(&mut self, mount: usize, ino: u64, now_ns: i64) -> &mut Local {
        let local = self.locals.entry((mount, ino)).or_default();
        // A mount shows what it kept in a conflict copy until it hears that the copy is stored.
        if local.handles == 0 && local.writes.is_empty() && local.set_aside.is_empty() {
            (local.since_ns, local.failed) = (now_ns, false);
        }
        local
    }

    /// A program opens a file; the answer may still be out. Returns since when the file may be older than it: while a
    /// file is open, a mount shows its own length of it.
    pub fn opens(&mut self, mount: usize, ino: u64, now_ns: i64) -> i64 {
        let local = self.local(mount, ino, now_ns);
        local.handles += 1;
        if local.handles > 1 { local.since_ns } else { now_ns }
    }

    /// A handle is gone.
    pub fn closes(&mut self, mount: usize, ino: u64) {
        if let Some(local) = self.locals.get_mut(&(mount, ino)) {
            local.handles = local.handles.saturating_sub(1);
            if local.handles == 0 {
                // Bytes of a failed operation are dropped with the last handle, unless they are on their way.
                local.writes.retain(|write| write.fate != Fate::Pending);
            }
        }
    }

    /// A program changes a file; returns the number of the write.
    pub fn writes(&mut self, mount: usize, ino: u64, now_ns: i64, change: Change) -> u64 {
        self.last_write += 1;
        let number = self.last_write;
        let write = Write { number, change, fate: Fate::Pending, lock_lost: false };
        self.local(mount, ino, now_ns).writes.push(write);
        number
    }

    /// The number that the next write will have.
    pub fn next_write(&self) -> u64 {
        self.last_write + 1
    }

    /// Whether the spool may hold a file's writes.
    pub fn is_spooled(&self, ino: u64) -> bool {
        self.rules.get(&ino).is_some_and(|rule| rule.mode == "complete-local")
    }

    /// An operation on a file failed: what was written and not stored may be lost.
    pub fn fails(&mut self, mount: usize, ino: u64) {
        if let Some(local) = self.locals.get_mut(&(mount, ino)) {
            let pending = |write: &&mut Write| write.fate == Fate::Pending;
            local.writes.iter_mut().filter(pending).for_each(|write| write.fate = Fate::Doubtful);
            local.failed = true;
        }
    }

    /// `fsync` returned (`close`: `close` did) without an error: writes up to this number are stored or acknowledged.
    pub fn acknowledged(&mut self, mount: usize, ino: u64, close: bool, from_ns: i64, now_ns: i64) {
        let rule = self.rules.get(&ino).copied();
        let survives = if close { rule.and_then(WriteRule::acknowledges) } else { None };
        // What a file that was removed meanwhile becomes is not promised.
        let gone = self.history.borrow().any(from_ns, now_ns, |tree| is_gone(tree, ino));
        let bases = self.history.borrow().contents(ino, from_ns, now_ns);
        let Some(local) = self.locals.get_mut(&(mount, ino)) else { return };
        if bases.iter().any(|base| changes_nothing(&local.writes, base)) {
            local.writes.clear();
        }
        match survives {
            _ if gone => local.writes.iter_mut().for_each(|write| write.fate = Fate::Doubtful),
            Some(survives) => {
                for write in local.writes.iter_mut().filter(|write| write.fate != Fate::Doubtful) {
                    let before = if let Fate::Acknowledged(before) = write.fate { before } else { Survives::Nothing };
                    write.fate = Fate::Acknowledged(before.max(survives));
                }
            }
            None => {
                let left: Vec<u64> =
                    local.writes.iter().filter(|w| w.fate != Fate::Doubtful).map(|w| w.number).collect();
                if !left.is_empty() {
                    let what = if close { "close" } else { "fsync" };
                    let fact = format!("mount {mount}: {what} of inode {ino} returned, and no version has {left:?}");
                    self.broken("P1", ino, fact);
                }
            }
        }
    }

    /// The mount's process was killed, or its machine lost power.
    pub fn killed(&mut self, mount: usize, power_loss: bool) {
        let needs = if power_loss { Survives::PowerLoss } else { Survives::Kill };
        for (_, local) in self.locals.iter_mut().filter(|((of, _), _)| *of == mount) {
            local.handles = 0;
            for write in &mut local.writes {
                if !matches!(write.fate, Fate::Acknowledged(survives) if survives >= needs) {
                    write.fate = Fate::Doubtful;
                }
            }
        }
        self.deferred.retain(|(of, _), _| *of != mount);
        self.locks.retain(|_, (holder, _)| *holder != mount);
        for entry in self.entries.iter_mut().filter(|entry| entry.mount == mount && entry.to_ns.is_none()) {
            entry.result = "killed".into();
        }
    }

    /// The manager made a version: checks that its writer wrote it.
    pub fn version(&mut self, version: &Version, tree: &Tree) {
        let before = match self.history.borrow().version(version.before) {
            Some(before) => before.blocks.clone(),
            None => Rc::new(Vec::new()),
        };
        if is_conflict_copy(tree, version.ino) && self.set_aside(version) {
            return;
        }
        if *before == *version.blocks {
            // The same content again: a push that was repeated, or nothing but a time.
            if let Some((key, count)) = self.stored_prefix(version, &before) {
                self.stored(key, count);
            }
            return;
        }
        if let Some((key, count)) = self.stored_prefix(version, &before) {
            return self.stored(key, count);
        }
        if self.is_part(version, &before) {
            return;
        }
        let fact = format!(
            "a version of inode {} by {:?} is not what any program wrote over the version before: {}",
            version.ino,
            version.by,
            describe_version(version)
        );
        self.broken("P2", version.ino, fact);
    }

    /// The mounts that may have made a version.
    pub(super) fn writers(&self, by: Option<Owner>) -> Vec<usize> {
        let mut mounts: Vec<usize> = self.locals.keys().map(|(mount, _)| *mount).collect();
        mounts.dedup();
        mounts.sort_unstable();
        mounts.dedup();
        mounts.retain(|mount| by.is_none_or(|by| by.index == *mount));
        mounts
    }

    /// The longest prefix of a mount's writes that explains a version.
    pub(super) fn stored_prefix(&self, version: &Version, before: &[Block]) -> Option<((usize, u64), usize)> {
        for mount in self.writers(version.by) {
            let Some(local) = self.locals.get(&(mount, version.ino)) else { continue };
            let bases = self.history.borrow().contents(version.ino, local.since_ns, version.at_ns);
            for count in (0..=local.writes.len()).rev() {
                for writes in variants(&local.writes[..count]) {
                    let len = version.blocks.len();
                    let lengths = bases.iter().any(|base| apply(&writes, base).len() == len);
                    let mut over = apply(&writes, before);
                    over.resize(len, HOLE);
                    // A file that was empty when the mount opened it is replaced as a whole.
                    let replaces = bases.iter().any(|base| base.is_empty()) && apply(&writes, &[]) == *version.blocks;
                    if count > 0 && (lengths && over == *version.blocks || replaces) {
                        return Some(((mount, version.ino), count));
                    }
                }
            }
        }
        None
    }

    /// Whether a version has some of its writer's writes and nothing else. A mount commits what is in its write session
    /// before it writes a block again; writes that wait in its buffer follow with the next version.
    pub(super) fn is_part(&self, version: &Version, before: &[Block]) -> bool {
        if self.is_spooled(version.ino) {
            return false;
        }
        self.writers(version.by).iter().any(|mount| {
            let Some(local) = self.locals.get(&(*mount, version.ino)) else { return false };
            let is_cut = local.writes.iter().any(|write| matches!(write.change, Change::Cut(_)));
            let written = |at: usize, block: &Block| {
                local.writes.iter().any(|write| match &write.change {
                    Change::Write(start, blocks) => {
                        at.checked_sub(*start as usize).and_then(|at| blocks.get(at)) == Some(block)
                    }
                    Change::Cut(_) => false,
                })
            };
            let known = |(at, block): (usize, &Block)| match before.get(at) {
                Some(kept) => block == kept || written(at, block) || is_cut && *block == HOLE,
                None => *block == HOLE || written(at, block),
            };
            !local.writes.is_empty() && version.blocks.iter().enumerate().all(known)
        })
    }

    pub(super) fn stored(&mut self, key: (usize, u64), count: usize) {
        let Some(local) = self.locals.get_mut(&key) else { return };
        let stored: Vec<Write> = local.writes.drain(..count).collect();
        if let Some(write) = stored.iter().find(|write| write.lock_lost) {
            let fact =
                format!("mount {}: write {} was made under a lock that was lost, and is stored", key.0, write.number);
            self.broken("P7", key.1, fact);
        }
    }

    /// Whether a conflict copy holds what some mount wrote over some version of another file.
    pub(super) fn set_aside(&mut self, copy: &Version) -> bool {
        let mut found = None;
        for (key, local) in self.locals.iter().filter(|(key, _)| copy.by.is_none_or(|by| by.index == key.0)) {
            let mut bases: Vec<Rc<Vec<Block>>> = vec![Rc::default()];
            bases.extend(self.history.borrow().versions_of(key.1).map(|version| version.blocks.clone()));
            for count in (0..=local.writes.len()).rev() {
                let all: Vec<Write> = local.set_aside.iter().chain(&local.writes[..count]).cloned().collect();
                let explains = |writes: &Vec<&Change>| bases.iter().any(|base| apply(writes, base) == *copy.blocks);
                if !all.is_empty() && variants(&all).iter().any(explains) {
                    found = Some((*key, count));
                    break;
                }
            }
            if found.is_some_and(|(_, count)| count > 0) {
                break;
            }
        }
        let Some((key, count)) = found else { return false };
        if let Some(local) = self.locals.get_mut(&key) {
            let moved: Vec<Write> = local.writes.drain(..count).collect();
            local.set_aside.extend(moved);
        }
        true
    }

    /// Checks what a read of the whole file through a handle returned.
    pub fn reads(&mut self, mount: usize, ino: u64, opened_ns: i64, now_ns: i64, found: &[u8]) {
        let local = self.locals.entry((mount, ino)).or_default();
        // With writes in no version, the base is that of the first open.
        let waits = !local.writes.is_empty() || !local.set_aside.is_empty();
        let from_ns = if waits { local.since_ns.min(opened_ns) } else { opened_ns };
        let blocks: Vec<Block> =
            found.chunks(BLOCK_BYTES as usize).map(|block| block.try_into().unwrap_or([0xff; 32])).collect();
        let bases = self.history.borrow().contents(ino, from_ns, now_ns);
        let mut allowed = BTreeSet::new();
        for base in &bases {
            for writes in variants(&local.writes) {
                allowed.insert(apply(&writes, base));
            }
        }
        if allowed.contains(&blocks) {
            local.set_aside.clear();
            return;
        }
        for base in &bases {
            if !local.set_aside.is_empty() {
                let all: Vec<Write> = local.set_aside.iter().chain(&local.writes).cloned().collect();
                allowed.extend(variants(&all).iter().map(|writes| apply(writes, base)));
            }
        }
        // A handle that was open while another mount committed may see parts of both versions.
        let others = self.history.borrow().versions_of(ino).any(|version| {
            version.at_ns > opened_ns && version.at_ns <= now_ns && version.by.is_none_or(|by| by.index != mount)
        });
        let from_any = |(at, block): (usize, &Block)| {
            *block == HOLE || allowed.iter().any(|content| content.get(at) == Some(block))
        };
        // So may a handle on which an operation failed.
        let mixed = (others || local.failed) && blocks.iter().enumerate().all(from_any);
        if !allowed.contains(&blocks) && !mixed {
            let allowed: Vec<String> = allowed.iter().map(|blocks| describe_blocks(blocks)).collect();
            let fact = format!(
                "mount {mount} read {} from inode {ino}; allowed since {}: {}",
                describe_blocks(&blocks),
                self.at(from_ns),
                allowed.join(" or ")
            );
            self.broken("P3", ino, fact);
        }
    }

    /// Lengths in blocks that the mount may show.
    pub fn lengths(&self, mount: usize, ino: u64, from_ns: i64, now_ns: i64) -> BTreeSet<u64> {
        let none = Local { since_ns: from_ns, ..Local::default() };
        let local = self.locals.get(&(mount, ino)).unwrap_or(&none);
        let open = local.handles > 0 || !local.writes.is_empty();
        let from_ns = if open { local.since_ns.min(from_ns) } else { from_ns };
        let mut lengths = BTreeSet::new();
        for base in self.history.borrow().contents(ino, from_ns, now_ns) {
            lengths.extend(variants(&local.writes).iter().map(|writes| apply(writes, &base).len() as u64));
            let all: Vec<Write> = local.set_aside.iter().chain(&local.writes).cloned().collect();
            lengths.extend(variants(&all).iter().map(|writes| apply(writes, &base).len() as u64));
        }
        lengths
    }
}

/// Whether an inode has no name or is gone.
pub(super) fn is_gone(tree: &Tree, ino: u64) -> bool {
    tree.inodes.get(&ino).is_none_or(|inode| inode.nlink == 0)
}

pub(super) fn is_conflict_copy(tree: &Tree, ino: u64) -> bool {
    let of = |name: &[u8]| String::from_utf8_lossy(name).contains(".tessera-conflict-");
    tree.names.iter().any(|((_, name), named)| *named == ino && of(name))
}

/// The changes with all doubtful writes, and without them.
pub(super) fn variants(writes: &[Write]) -> Vec<Vec<&Change>> {
    let all: Vec<&Change> = writes.iter().map(|write| &write.change).collect();
    let sure: Vec<&Change> =
        writes.iter().filter(|write| write.fate != Fate::Doubtful).map(|write| &write.change).collect();
    let mut variants = vec![all];
    if sure.len() < writes.len() {
        // A failed operation may have stored the writes before it.
        let first = writes.iter().position(|write| write.fate == Fate::Doubtful).unwrap_or(0);
        for end in first + 1..writes.len() {
            let kept = writes.iter().enumerate().filter(|(at, w)| *at < end || w.fate != Fate::Doubtful);
            variants.push(kept.map(|(_, write)| &write.change).collect());
        }
        variants.push(sure);
    }
    variants
}

/// Whether all writes together leave a content as it is, as a truncate to the same length does.
pub(super) fn changes_nothing(writes: &[Write], content: &[Block]) -> bool {
    variants(writes).iter().any(|changes| apply(changes, content) == content)
}

/// A file's content after some changes.
pub(super) fn apply(changes: &[&Change], base: &[Block]) -> Vec<Block> {
    let mut blocks = base.to_vec();
    for change in changes {
        match change {
            Change::Cut(len) => blocks.resize(*len as usize, HOLE),
            Change::Write(at, new) => {
                let end = *at as usize + new.len();
                blocks.resize(blocks.len().max(end), HOLE);
                blocks[*at as usize..end].copy_from_slice(new);
            }
        }
    }
    blocks
}

/// The block that write `number` of a mount puts at place `at` of its blocks.
pub fn block(mount: usize, number: u64, at: u64) -> Block {
    let mut block = [0; BLOCK_BYTES as usize];
    let text = format!("m{mount}w{number}.{at}");
    block[..text.len()].copy_from_slice(text.as_bytes());
    block[31] = 1;
    block
}

pub(super) fn list(writes: &[Write]) -> String {
    let one = |write: &Write| {
        let lost = if write.lock_lost { ", under a lost lock" } else { "" };
        format!("{} ({:?}{lost})", write.change, write.fate)
    };
    writes.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) fn describe_blocks(blocks: &[Block]) -> String {
    let name = |block: &Block| match *block {
        HOLE => "-".to_string(),
        _ => String::from_utf8_lossy(&block[..31]).trim_end_matches('\0').to_string(),
    };
    format!("[{}]", blocks.iter().map(name).collect::<Vec<_>>().join(" "))
}

pub(super) fn describe_version(version: &Version) -> String {
    let by = version.by.map_or("nobody known".into(), |by| format!("mount {} ({})", by.index, by.incarnation));
    format!("version {} after {} by {by}: {}", version.id, version.before, describe_blocks(&version.blocks))
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Write(at, blocks) => write!(f, "write {} at {at}", describe_blocks(blocks)),
            Change::Cut(len) => write!(f, "truncate to {len}"),
        }
    }
}
