//! What programs wrote, which versions that explains, and what a read may return.

use super::*;
use std::ops::Range;

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

    /// A program opens a file; the answer may still be out. Returns since when the file may be older than it: while a file
    /// is open, or waits, a mount shows its own length and content of it.
    pub fn opens(&mut self, mount: usize, ino: u64, now_ns: i64) -> i64 {
        let local = self.local(mount, ino, now_ns);
        local.handles += 1;
        local.since_ns
    }

    /// A handle is gone.
    pub fn closes(&mut self, mount: usize, ino: u64, now_ns: i64) {
        if let Some(local) = self.locals.get_mut(&(mount, ino)) {
            local.handles = local.handles.saturating_sub(1);
            if local.handles == 0 {
                local.closed = Some((local.since_ns, now_ns));
                local.shown.clear();
                // Bytes of a failed operation are dropped with the last handle, unless they are on their way.
                local.writes.retain(|write| write.fate != Fate::Pending);
            }
        }
    }

    /// A program changes a file; returns the number of the write.
    pub fn writes(&mut self, mount: usize, ino: u64, now_ns: i64, change: Change) -> u64 {
        self.last_write += 1;
        let number = self.last_write;
        let write = Write {
            number,
            change,
            fate: Fate::Pending,
            done_ns: None,
            under_lock: self.locks.get(&ino).is_some_and(|(holder, _)| *holder == mount),
            lock_lost: false,
            stored_blocks: 0,
            unread: false,
        };
        let local = self.local(mount, ino, now_ns);
        if local.begins_log(now_ns) {
            local.stays_in_log.clear();
        }
        local.writes.push(write);
        local.last_write = number;
        let lengths = self.lengths(mount, ino, now_ns, now_ns);
        self.local(mount, ino, now_ns).shown.extend(lengths);
        number
    }

    /// A program heard that its last write is done. A truncate to the length of a version that the mount may show changes nothing, and
    /// may never be stored.
    pub fn wrote(&mut self, mount: usize, ino: u64, now_ns: i64) {
        let Some(local) = self.locals.get_mut(&(mount, ino)) else { return };
        local.writes.iter_mut().for_each(|write| _ = write.done_ns.get_or_insert(now_ns));
        if let Some((write, earlier)) = local.writes.split_last_mut()
            && !earlier.iter().any(Write::is_sure)
            && let Change::Length(len) = write.change
            && self.history.borrow().contents(ino, local.since_ns, now_ns).iter().any(|base| base.len() as u64 == len)
        {
            write.fate = Fate::Doubtful;
        }
    }

    /// If all of a mount's writes to a file are in versions, and the mount knows it: the number of the last one, and that of
    /// the mount's creates. (It may not have heard yet that what the spool held is stored; a file that it is creating is open.)
    pub fn quiet(&self, mount: usize, ino: u64) -> Option<(u64, u64)> {
        let creates = self.creates.get(&mount).copied().unwrap_or(0);
        let last_write = match self.locals.get(&(mount, ino)) {
            None => 0,
            Some(local) if local.writes.is_empty() && local.set_aside.is_empty() => local.last_write,
            Some(_) => return None,
        };
        let is_known = last_write == 0 || !self.is_spooled(ino);
        (is_known && !self.creating.contains(&mount)).then_some((last_write, creates))
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
            // An unlock, or the commit before it, may be what failed.
            local.writes.iter_mut().for_each(|write| write.under_lock = false);
            local.failed = true;
        }
    }

    /// A mount learned that it lost the locks of a file: what was written under them is not committed (docs/mount.md), even if a close
    /// was acknowledged before the push. A log keeps what it has.
    pub fn locks_lost(&mut self, mount: usize, ino: u64) {
        if let Some(local) = self.locals.get_mut(&(mount, ino)) {
            let unpushed = |write: &&mut Write| write.fate == Fate::Acknowledged(Survives::Nothing);
            local.writes.iter_mut().filter(unpushed).for_each(|write| write.fate = Fate::Doubtful);
        }
    }

    /// `fsync` returned (`close`: `close` did) without an error: writes up to this number are stored or acknowledged.
    pub fn acknowledged(&mut self, mount: usize, ino: u64, close: bool, from_ns: i64, now_ns: i64) {
        let rule = self.rules.get(&ino).copied();
        let survives = if close { rule.and_then(WriteRule::acknowledges) } else { None };
        // What a file that was removed meanwhile becomes is not promised.
        let gone = self.history.borrow().any(from_ns, now_ns, |tree| is_gone(tree, ino));
        let bases = self.history.borrow().contents(ino, from_ns, now_ns);
        let is_spooled = self.is_spooled(ino);
        let Some(local) = self.locals.get_mut(&(mount, ino)) else { return };
        if bases.iter().any(|base| changes_nothing(&local.writes, base)) {
            if is_spooled {
                // Its log may still become a conflict copy.
                local.writes.iter_mut().filter(|write| write.is_sure()).for_each(|write| write.fate = Fate::Doubtful);
            }
            local.writes.retain(|write| !write.is_sure());
        }
        match survives {
            _ if gone => local.writes.iter_mut().for_each(|write| write.fate = Fate::Doubtful),
            Some(survives) => {
                for write in local.writes.iter_mut().filter(|write| write.is_sure()) {
                    let before = if let Fate::Acknowledged(before) = write.fate { before } else { Survives::Nothing };
                    write.fate = Fate::Acknowledged(before.max(survives));
                }
            }
            None => {
                let what = if close { "close" } else { "fsync" };
                self.must_be_stored((mount, ino), what, |_| true, now_ns);
            }
        }
    }

    /// A mount got a lock that others had: what they wrote under it is in a version, unless they have lost a lock.
    pub(super) fn finds_what_others_wrote_under_the_lock(
        &mut self,
        mount: usize,
        ino: u64,
        now_ns: i64,
        may_have_lost: impl Fn(usize) -> bool,
    ) {
        let others: Vec<Key> = self.locals.keys().copied().filter(|key| key.1 == ino && key.0 != mount).collect();
        for key in others.into_iter().filter(|key| !may_have_lost(key.0)) {
            self.must_be_stored(key, "the lock", |write| write.under_lock && !write.lock_lost, now_ns);
        }
    }

    /// What a mount wrote to a file must be in a version, or in a conflict copy.
    fn must_be_stored(&mut self, key: Key, what: &str, concerns: impl Fn(&Write) -> bool, now_ns: i64) {
        let left = |model: &Model| -> Vec<u64> {
            let writes = &model.locals[&key].writes;
            writes.iter().filter(|write| write.is_sure() && concerns(write)).map(|write| write.number).collect()
        };
        let mut missing = left(self);
        while !missing.is_empty() && self.leaves(key, now_ns) {
            missing = left(self);
        }
        if !missing.is_empty() {
            let fact = format!("mount {}: {what} of inode {} returned, and no version has {missing:?}", key.0, key.1);
            self.broken("P1", key.1, fact);
        }
    }

    /// The mount's process was killed, or its machine lost power.
    pub fn killed(&mut self, mount: usize, power_loss: bool) {
        let needs = if power_loss { Survives::PowerLoss } else { Survives::Kill };
        self.killed.insert(mount);
        self.creating.remove(&mount);
        if power_loss {
            self.damaged_spools.insert(mount);
        }
        for (_, local) in self.locals.iter_mut().filter(|((of, _), _)| *of == mount) {
            local.handles = 0;
            for write in &mut local.writes {
                write.under_lock = false;
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

    /// The disk of a mount's spool fails while the mount starts: it may leave what it finds there to the next one.
    pub fn spool_unread(&mut self, mount: usize) {
        for (_, local) in self.locals.iter_mut().filter(|((of, _), _)| *of == mount) {
            let acknowledged = local.writes.iter_mut().filter(|write| matches!(write.fate, Fate::Acknowledged(_)));
            acknowledged.for_each(|write| write.unread = true);
        }
    }

    /// A mount starts on a spool that it can read: it shows what the last one left there. (Of a file of which it has written more
    /// since, there are two logs. It takes over one of them, and leaves the other one to the next mount.)
    pub fn spool_read(&mut self, mount: usize) {
        for (_, local) in self.locals.iter_mut().filter(|((of, _), _)| *of == mount) {
            if !local.writes.iter().any(Write::is_sure) {
                local.writes.iter_mut().for_each(|write| write.unread = false);
            }
        }
    }

    /// The disk of a mount's spool failed.
    pub fn spool_failed(&mut self, mount: usize) {
        self.damaged_spools.insert(mount);
    }

    /// The manager made a version: checks that its writer wrote it.
    pub fn version(&mut self, version: &Version, tree: &Tree) {
        let before = match self.history.borrow().version(version.before) {
            Some(before) => before.blocks.clone(),
            None => Rc::new(Vec::new()),
        };
        // It may bring back a log that was removed after its content was stored.
        let may_return = version.by.is_some_and(|by| self.damaged_spools.contains(&by.index));
        let is_copy = is_conflict_copy(tree, version.ino);
        if is_copy && (self.set_aside(version, tree) || self.is_pushed_again(version, tree) || may_return) {
            return;
        }
        if *before == *version.blocks {
            // The same content again: a push that was repeated, or nothing but a time.
            if let Some((key, numbers)) = self.stored_prefix(version, &before) {
                self.stored(key, &numbers, version.at_ns);
            }
            return;
        }
        if let Some((key, mut numbers)) = self.stored_prefix(version, &before) {
            self.check_push(version, key, &numbers);
            self.without_idle_cuts(version, &before, key, &mut numbers);
            return self.stored(key, &numbers, version.at_ns);
        }
        if let Some(key) = self.part_of(version, &before) {
            // Another mount may write over these before the rest is stored.
            return self.note_stored_blocks(version, key);
        }
        let keys = match is_copy {
            true => self.spooled_by(version.by),
            false => self.writers(version.by).into_iter().map(|mount| (mount, version.ino)).collect(),
        };
        if keys.into_iter().any(|key| self.leaves(key, version.at_ns)) {
            return self.version(version, tree);
        }
        let mut fact = format!(
            "a version of inode {} by {:?} is not what any program wrote over the version before: {}",
            version.ino,
            version.by,
            describe_version(version)
        );
        if is_copy {
            for key in self.spooled_by(version.by) {
                fact += &format!("\n{}", self.describe_local(key));
            }
        }
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

    /// The longest prefix of a mount's writes that explains a version: the numbers of these writes.
    pub(super) fn stored_prefix(&self, version: &Version, before: &[Block]) -> Option<(Key, BTreeSet<u64>)> {
        for mount in self.writers(version.by) {
            let Some(local) = self.locals.get(&(mount, version.ino)) else { continue };
            for count in (0..=local.writes.len()).rev() {
                let explains = |writes: &[&Write]| {
                    apply(writes, before) == *version.blocks || apply_keeping(writes, before) == *version.blocks
                };
                for mut writes in variants(&local.writes[..count]) {
                    if count > 0 && explains(&writes) {
                        // A write under a lost lock that changes nothing need not be in it.
                        let under_locks: Vec<&Write> = writes.iter().copied().filter(|w| !w.lock_lost).collect();
                        if explains(&under_locks) {
                            writes = under_locks;
                        }
                        return Some(((mount, version.ino), writes.iter().map(|write| write.number).collect()));
                    }
                    // Another mount may have written over what an earlier version had of them.
                    let rest: Vec<Write> = writes.iter().flat_map(|write| write.unstored()).collect();
                    let had_some = writes.iter().any(|write| write.stored_blocks != 0);
                    if had_some && explains(&rest.iter().collect::<Vec<_>>()) {
                        return Some(((mount, version.ino), writes.iter().map(|write| write.number).collect()));
                    }
                }
            }
        }
        None
    }

    /// What was acknowledged from the spool may not replace a version that another mount committed since it was written.
    fn check_push(&mut self, version: &Version, key: Key, numbers: &BTreeSet<u64>) {
        let Some(local) = self.locals.get(&key).filter(|_| self.is_spooled(version.ino)) else { return };
        let writes: Vec<&Write> = local.writes.iter().filter(|write| numbers.contains(&write.number)).collect();
        let is_push = writes.iter().all(|write| matches!(write.fate, Fate::Acknowledged(_)));
        let history = self.history.borrow();
        let Some(before) = history.version(version.before).filter(|_| is_push) else { return };
        // Those that came to the same content as the version before had nothing to store.
        let is_equal = |count: &usize, base: &Version| apply(&writes[..*count], &base.blocks) == *before.blocks;
        let bases = || history.versions_of(version.ino);
        let first = (1..writes.len()).rev().find(|count| bases().any(|base| is_equal(count, base))).unwrap_or(0);
        let since_ns = writes.get(first).and_then(|write| write.done_ns);
        let by_another = before.by.is_some_and(|by| by.index != key.0);
        // A push that finds what it has in the other version goes on from there, with what was written since.
        let was_found =
            (1..writes.len()).any(|count| bases().any(|base| base.at_ns < before.at_ns && is_equal(&count, base)));
        let newer = by_another && !was_found && since_ns.is_some_and(|since_ns| before.at_ns > since_ns);
        drop(history);
        if newer {
            let fact = format!("a push of mount {} replaced a newer version: {}", key.0, describe_version(version));
            self.broken("P1", version.ino, fact);
        }
    }

    /// Whether a version has some of its writer's writes and nothing else. A mount commits what is in its write session
    /// before it writes a block again; writes that wait in its buffer follow with the next version. What the spool
    /// acknowledged is committed as a whole; a file that the spool does not take is written like any other.
    pub(super) fn part_of(&self, version: &Version, before: &[Block]) -> Option<Key> {
        let is_spooled = self.is_spooled(version.ino);
        let mount = self.writers(version.by).into_iter().find(|mount| {
            let Some(local) = self.locals.get(&(*mount, version.ino)) else { return false };
            if is_spooled && local.writes.iter().any(|write| matches!(write.fate, Fate::Acknowledged(_))) {
                return false;
            }
            let is_cut = local.writes.iter().any(|write| !matches!(write.change, Change::Write(..)));
            let written = |at: usize, block: &Block| {
                local.writes.iter().any(|write| match &write.change {
                    Change::Write(start, blocks) => {
                        at.checked_sub(*start as usize).and_then(|at| blocks.get(at)) == Some(block)
                    }
                    Change::Length(_) => false,
                })
            };
            let known = |(at, block): (usize, &Block)| match before.get(at) {
                Some(kept) => block == kept || written(at, block) || is_cut && *block == HOLE,
                None => *block == HOLE || written(at, block),
            };
            let ends = local.writes.iter().map(|write| match &write.change {
                Change::Write(start, blocks) => *start as usize + blocks.len(),
                Change::Length(len) => *len as usize,
            });
            let end = ends.chain([before.len()]).max().unwrap_or_default();
            let reaches = version.blocks.len() <= end && (is_cut || version.blocks.len() >= before.len());
            !local.writes.is_empty() && reaches && version.blocks.iter().enumerate().all(known)
        });
        mount.map(|mount| (mount, version.ino))
    }

    /// The writes that a version stores, without the last ones that set the length to what it was by then: the spool may still owe
    /// them, and keep them in a conflict copy. From here on they are doubtful.
    fn without_idle_cuts(&mut self, version: &Version, before: &[Block], key: Key, stored: &mut BTreeSet<u64>) {
        let is_spooled = self.is_spooled(version.ino);
        let Some(local) = self.locals.get_mut(&key).filter(|_| is_spooled) else { return };
        while let Some(last) = stored.pop_last() {
            let rest: Vec<&Write> = local.writes.iter().filter(|write| stored.contains(&write.number)).collect();
            let is_idle = !rest.is_empty() && apply(&rest, before) == *version.blocks;
            let write = local.writes.iter_mut().find(|write| write.number == last);
            match write.filter(|write| is_idle && matches!(write.change, Change::Length(_))) {
                Some(write) => write.fate = Fate::Doubtful,
                None => {
                    stored.insert(last);
                    return;
                }
            }
        }
    }

    /// Notes the blocks of a mount's writes that a version has.
    fn note_stored_blocks(&mut self, version: &Version, key: Key) {
        if let Some(local) = self.locals.get_mut(&key) {
            local.writes.iter_mut().for_each(|write| write.note_stored(&version.blocks));
        }
    }

    /// A mount hears nothing until then.
    pub fn cut_off(&mut self, mount: usize, now_ns: i64, until_ns: i64) {
        self.cut_until_ns.insert(mount, until_ns);
        let locals = self.locals.iter_mut().filter(|((of, _), _)| *of == mount);
        for (_, stored_ns) in locals.filter_map(|(_, local)| local.stored.as_mut()) {
            if *stored_ns >= now_ns - UNHEARD_NS {
                *stored_ns = until_ns.max(*stored_ns);
            }
        }
    }

    /// When a mount may hear at the earliest of what happens now.
    pub(super) fn heard_ns(&self, mount: usize, now_ns: i64) -> i64 {
        self.cut_until_ns.get(&mount).map_or(now_ns, |until_ns| now_ns.max(*until_ns))
    }

    pub(super) fn stored(&mut self, key: Key, numbers: &BTreeSet<u64>, now_ns: i64) {
        let heard_ns = self.heard_ns(key.0, now_ns);
        let Some(local) = self.locals.get_mut(&key) else { return };
        let lost = local.writes.iter().find(|write| write.lock_lost && numbers.contains(&write.number));
        let lost = lost.map(|write| write.number);
        local.stays_in_log.extend(local.writes.extract_if(.., |write| numbers.contains(&write.number)));
        local.stored = Some((local.since_ns, heard_ns));
        if let Some(number) = lost {
            let fact = format!("mount {}: write {number} was made under a lock that was lost, and is stored", key.0);
            self.broken("P7", key.1, fact);
        }
    }

    /// Checks what a read of the whole file through a handle returned.
    pub fn reads(&mut self, mount: usize, ino: u64, opened_ns: i64, now_ns: i64, found: &[u8]) {
        let blocks = blocks_of(found);
        while let Err(fact) = self.explain_read((mount, ino), opened_ns, now_ns, &blocks) {
            if !self.leaves((mount, ino), now_ns) {
                return self.broken("P3", ino, fact);
            }
        }
    }

    /// As [`Model::reads`]; says what is wrong.
    fn explain_read(&mut self, (mount, ino): Key, opened_ns: i64, now_ns: i64, blocks: &[Block]) -> Result<(), String> {
        let is_spooled = self.is_spooled(ino);
        let local = self.locals.entry((mount, ino)).or_default();
        // With writes in no version, the base is that of the first open.
        let waits = !local.writes.is_empty() || !local.set_aside.is_empty();
        let from_ns =
            if waits { local.since_ns.min(opened_ns) } else { opened_ns }.min(local.shown_since(is_spooled, opened_ns));
        let bases = self.history.borrow().contents(ino, from_ns, now_ns);
        let mut allowed = BTreeSet::new();
        for base in &bases {
            for writes in shown(&local.writes) {
                allowed.insert(apply(&writes, base));
            }
        }
        if allowed.contains(blocks) {
            local.set_aside.clear();
            return Ok(());
        }
        for base in &bases {
            if !local.set_aside.is_empty() {
                let all: Vec<Write> = local.set_aside.iter().chain(&local.writes).cloned().collect();
                allowed.extend(shown(&all).iter().map(|writes| apply(writes, base)));
            }
        }
        // A handle that was open while another mount committed, or while the mount turned from what it kept in a conflict
        // copy to the other version, may see parts of both.
        let turned = !local.set_aside.is_empty();
        let others = self.history.borrow().versions_of(ino).any(|version| {
            version.at_ns > opened_ns && version.at_ns <= now_ns && version.by.is_none_or(|by| by.index != mount)
        });
        // A hole may be where one of them ends.
        let from_any =
            |(at, block): (usize, &Block)| allowed.iter().any(|content| content.get(at).unwrap_or(&HOLE) == block);
        // So may a handle on which an operation failed, or of a file that another mount removed: its log is dropped, and the
        // kernel may keep the length.
        let dropped = is_spooled && is_gone(&self.history.borrow().now(), ino);
        // While a length is being set, the kernel fills what it reads behind the new end up to the old one.
        let under_way = |write: &Write| write.done_ns.is_none() && matches!(write.change, Change::Length(_));
        let is_cut = local.writes.iter().chain(&local.stays_in_log).any(under_way);
        // The version with the new length may be there, and the kernel not have heard that it is done.
        let before_cut = local.shown.iter().filter(|_| is_cut).map(|len| *len as usize);
        let lengths: Vec<usize> = allowed.iter().map(Vec::len).chain(before_cut).collect();
        let is_between = lengths.iter().min() <= Some(&blocks.len()) && Some(&blocks.len()) <= lengths.iter().max();
        let mixed = (others || turned || dropped || is_cut || local.failed)
            && is_between
            && blocks.iter().enumerate().all(from_any);
        if allowed.contains(blocks) || mixed {
            return Ok(());
        }
        let allowed: Vec<String> = allowed.iter().map(|blocks| describe_blocks(blocks)).collect();
        Err(format!(
            "mount {mount} read {} from inode {ino}; allowed since {}: {}",
            describe_blocks(blocks),
            self.at(from_ns),
            allowed.join(" or ")
        ))
    }

    /// Checks the length that a mount showed, in blocks.
    pub fn shows_length(&mut self, mount: usize, ino: u64, from_ns: i64, now_ns: i64, blocks: u64) {
        loop {
            let lengths = self.lengths(mount, ino, from_ns, now_ns);
            if lengths.contains(&blocks) {
                return;
            }
            if !self.leaves((mount, ino), now_ns) {
                let fact = format!("mount {mount}: shows a length of {blocks} blocks, allowed: {lengths:?}");
                return self.broken("P3", ino, fact);
            }
        }
    }

    /// Lengths in blocks that the mount may show.
    pub fn lengths(&self, mount: usize, ino: u64, from_ns: i64, now_ns: i64) -> BTreeSet<u64> {
        let none = Local { since_ns: from_ns, ..Local::default() };
        let local = self.locals.get(&(mount, ino)).unwrap_or(&none);
        let open = local.handles > 0 || !local.writes.is_empty() || !local.set_aside.is_empty();
        let from_ns = if open { local.since_ns.min(from_ns) } else { from_ns };
        let from_ns = local.shown_since(self.is_spooled(ino), from_ns);
        // While a file is open, a mount shows its own length of it.
        let mut lengths = if local.handles > 0 { local.shown.clone() } else { BTreeSet::new() };
        for base in self.history.borrow().contents(ino, from_ns, now_ns) {
            lengths.extend(shown(&local.writes).iter().map(|writes| apply(writes, &base).len() as u64));
            let all: Vec<Write> = local.set_aside.iter().chain(&local.writes).cloned().collect();
            lengths.extend(shown(&all).iter().map(|writes| apply(writes, &base).len() as u64));
        }
        lengths
    }
}

/// Bytes that a program read. A part of a block is no block that anybody wrote.
pub(super) fn blocks_of(bytes: &[u8]) -> Vec<Block> {
    bytes.chunks(BLOCK_BYTES as usize).map(|block| block.try_into().unwrap_or([0xff; 32])).collect()
}

/// Whether an inode has no name or is gone.
pub(super) fn is_gone(tree: &Tree, ino: u64) -> bool {
    tree.inodes.get(&ino).is_none_or(|inode| inode.nlink == 0)
}

/// The writes with all doubtful ones, with the first of them, and without them.
pub(super) fn variants(writes: &[Write]) -> Vec<Vec<&Write>> {
    let mut variants = vec![writes.iter().collect()];
    let Some(first) = writes.iter().position(|write| !write.is_sure()) else { return variants };
    // A failed operation may have stored the writes before it.
    for end in first..writes.len() {
        let kept = writes.iter().enumerate().filter(|(at, write)| *at < end || write.is_sure());
        variants.push(kept.map(|(_, write)| write).collect());
    }
    variants
}

/// What a mount may show of its writes. Those before a kill may be gone, and a later one be doubtful for another reason.
fn shown(writes: &[Write]) -> Vec<Vec<&Write>> {
    let mut all = variants(writes);
    all.extend(windows(writes));
    all
}

/// The writes without doubtful ones before and after some place: what was dropped as a log before, and what failed.
pub(super) fn windows(writes: &[Write]) -> Vec<Vec<&Write>> {
    let doubtful = |write: &Write| !write.is_sure();
    let first = writes.iter().position(doubtful).unwrap_or_default();
    let last = writes.iter().rposition(doubtful).map_or(first, |last| last + 1);
    let ranges = (first..=last).flat_map(|from| (from..=last).map(move |to| from..to));
    let kept = |range: &Range<usize>, at: usize| range.contains(&at) || !doubtful(&writes[at]);
    let pick =
        |range: Range<usize>| writes.iter().enumerate().filter(|(at, _)| kept(&range, *at)).map(|(_, w)| w).collect();
    ranges.map(pick).collect()
}

/// Whether all writes together leave a content as it is, as a truncate to the same length does.
pub(super) fn changes_nothing(writes: &[Write], content: &[Block]) -> bool {
    let sure: Vec<&Write> = writes.iter().filter(|write| write.is_sure()).collect();
    let all: Vec<&Write> = writes.iter().collect();
    apply(&all, content) == content || !sure.is_empty() && apply(&sure, content) == content
}

/// A file's content after some writes.
pub(super) fn apply(writes: &[&Write], base: &[Block]) -> Vec<Block> {
    let mut blocks = base.to_vec();
    for write in writes {
        match &write.change {
            Change::Length(len) => blocks.resize(*len as usize, HOLE),
            Change::Write(at, new) => {
                let end = *at as usize + new.len();
                blocks.resize(blocks.len().max(end), HOLE);
                blocks[*at as usize..end].copy_from_slice(new);
            }
        }
    }
    blocks
}

/// As [`apply`], but a file that is made longer again shows what another mount wrote there.
fn apply_keeping(writes: &[&Write], base: &[Block]) -> Vec<Block> {
    let mut blocks = base.to_vec();
    for write in writes {
        let len = blocks.len();
        blocks = apply(&[write], &blocks);
        if let Change::Length(_) = write.change {
            blocks.iter_mut().zip(base).skip(len).for_each(|(block, below)| *block = *below);
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
            Change::Length(len) => write!(f, "truncate to {len}"),
        }
    }
}
