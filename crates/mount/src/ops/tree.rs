//! Names and attributes: lookup, create, remove, change.

use super::{Caller, ShownEntry, stale_if_gone, writable};
use crate::attr::node_kind;
use crate::backend::{self, Backend, NewAttr, RenameMode};
use crate::errno::{Errno, Outcome, explained};
use crate::kernel_cache::{Asked, KernelCache};
use crate::mount::Mount;
use crate::namespace::{EntryAttr, INOS, Name, NameRef, Namespace, Scope};
use crate::open_file::{OpenFile, REMOVAL_WITHIN, Removal};
use crate::race::race;
use crate::synthetic::{self, STORE_ROOT, SyntheticInode};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tessera_client::{Owner, Times};
use tessera_policy::WriteMode;
use tessera_wire::meta::{Link, MakeNode, Rename, SetAttr, Symlink};
use tessera_wire::{Attr, Error, InodeKind};

const SET_GROUP_ID: u32 = 0o2000;

/// A lookup waits so often for programs that open what they have looked up.
const MOST_WAITS: usize = 5;

/// The answer to a lookup, before the kernel has it.
pub(super) struct Answer {
    /// The store's attributes.
    known: Attr,
    /// Those that this mount shows.
    shown: Attr,
    /// A program here or the spool has the file open.
    open: bool,
    /// `shown` has the length of changes that are in no version.
    uncommitted: bool,
    asked: Asked,
}

impl Answer {
    /// The entry in a listing; none if it would tell the kernel something new of a file that it knows.
    pub(super) fn listed(&self, kernel: &KernelCache) -> Option<ShownEntry> {
        let generation = kernel.listed(&self.known, self.shown.size_bytes, self.open)?;
        Some(ShownEntry { attr: self.shown.clone(), generation })
    }

    /// Counts it as given.
    pub(super) fn give(self, kernel: &mut KernelCache, now_ns: i64) -> ShownEntry {
        let Answer { known, shown, open, uncommitted, asked } = self;
        let generation = kernel.looked_up(&known, open, uncommitted, now_ns);
        kernel.sent(&shown, asked);
        ShownEntry { attr: shown, generation }
    }
}

impl<B: Backend> Mount<B> {
    pub(crate) async fn known(&self, ino: u64) -> Outcome<EntryAttr> {
        writable(ino)?;
        self.namespace.get(ino).await.map_err(|e| explained("get", ino, &e))
    }

    pub(crate) async fn lookup_known(&self, (parent, name): NameRef<'_>) -> Outcome<EntryAttr> {
        self.namespace.lookup(parent, name).await.map_err(|e| explained("look up", parent, &e))
    }

    /// Attributes as this mount shows them, for a reply: an open file may be longer than its version. `cuts`: the request sets the
    /// length, and the kernel may hold pages until it is answered.
    pub(crate) async fn seen(&self, asked: Asked, attr: Attr, cuts: bool) -> Attr {
        let (file, attr) = self.file_and(attr).await;
        let attr = self.seen_with(file.as_deref(), attr).await;
        if let Some(file) = file.filter(|_| !cuts) {
            file.drop_old_end(self).await;
        }
        self.kernel.lock().sent(&attr, asked);
        attr
    }

    /// The open file, and attributes that are no older than what was committed here before this call.
    async fn file_and(&self, attr: Attr) -> (Option<Arc<OpenFile<B>>>, Attr) {
        // In this order: a file leaves the table after its last commit.
        let file = self.files.get(attr.ino);
        let newest = self.kernel.lock().newest_version(attr.ino);
        if attr.version >= newest {
            return (file, attr);
        }
        self.namespace.forget(&[attr.ino]);
        // On an error, the kernel shows the older attributes until it looks again.
        let Ok(known) = self.namespace.get(attr.ino).await else { return (file, attr) };
        self.kernel.lock().lost(&known.attr, newest);
        (file, known.attr)
    }

    async fn seen_with(&self, file: Option<&OpenFile<B>>, mut attr: Attr) -> Attr {
        if let Some(file) = file
            && let Some((size_bytes, changed)) = file.size().await
        {
            attr.size_bytes = size_bytes;
            if changed {
                let now_ns = self.backend.wall_ns();
                let times =
                    file.unsaved_times().await.or(Times { mtime_ns: now_ns, ctime_ns: now_ns, ..Times::default() });
                (attr.mtime_ns, attr.ctime_ns) = (times.mtime_ns, times.ctime_ns);
            }
        }
        attr
    }

    /// A request of this thread has arrived; 0: unknown.
    pub(crate) fn asked(&self, thread: u32) -> Asked {
        Asked { thread, at_ns: self.backend.now_ns() }
    }

    /// The entry to tell the kernel of in the reply to a request that makes a name; it counts as a lookup.
    pub(crate) async fn show(&self, attr: Attr) -> ShownEntry {
        self.show_to(self.asked(0), attr).await
    }

    async fn show_to(&self, asked: Asked, attr: Attr) -> ShownEntry {
        let answer = self.answer(asked, attr, false).await;
        answer.give(&mut self.kernel.lock(), self.backend.now_ns())
    }

    /// What to answer to a lookup. `held_open`: the file is open for the one that asks.
    pub(super) async fn answer(&self, asked: Asked, attr: Attr, held_open: bool) -> Answer {
        let (mut answer, file) = self.answer_before_drop(asked, attr, held_open).await;
        if let Some(file) = file {
            file.drop_old_end(self).await;
        }
        answer.open = held_open || self.files.is_open(answer.known.ino);
        answer
    }

    /// As [`Mount::answer`] for nobody; none if that would wait.
    pub(super) async fn answer_at_once(&self, asked: Asked, attr: Attr) -> Option<Answer> {
        if self.kernel.lock().has_newer(&attr) {
            return None;
        }
        // A drop of pages must not be broken off.
        let answer = async {
            let (answer, file) = self.answer_before_drop(asked, attr, false).await;
            match file {
                Some(file) if file.has_old_end(self).await => None,
                _ => Some(answer),
            }
        };
        race(answer, ready(())).await.ok().flatten()
    }

    /// As [`Mount::answer`], before the kernel drops pages of the open file.
    async fn answer_before_drop(
        &self,
        asked: Asked,
        mut attr: Attr,
        held_open: bool,
    ) -> (Answer, Option<Arc<OpenFile<B>>>) {
        let mut file;
        let mut waits = 0..MOST_WAITS;
        loop {
            // An open that is refused is none. It may have begun during the last wait.
            if !held_open && self.kernel.lock().lacks(attr.ino, attr.size_bytes) {
                self.files.until_decided(&*self.backend, attr.ino).await;
            }
            (file, attr) = self.file_and(attr).await;
            let open = held_open || self.files.is_open(attr.ino);
            let wait = self.kernel.lock().wait_for_opens(&attr, open, self.backend.now_ns());
            let Some(wait) = wait.filter(|_| waits.next().is_some()) else { break };
            self.backend.sleep(wait).await;
            attr = self.namespace.get(attr.ino).await.map_or(attr, |known| known.attr);
        }
        let uncommitted = match &file {
            Some(file) => file.size().await.is_some_and(|(_, changed)| changed),
            None => false,
        };
        let shown = self.seen_with(file.as_deref(), attr.clone()).await;
        let open = held_open || self.files.is_open(attr.ino);
        (Answer { known: attr, shown, open, uncommitted, asked }, file)
    }

    /// Looks a name up for a thread of a program; 0: the kernel cannot name it.
    ///
    /// # Errors
    /// `ENOENT`, and the store's.
    pub async fn lookup(&self, thread: u32, (parent, name): NameRef<'_>) -> Outcome<ShownEntry> {
        let asked = self.asked(thread);
        if SyntheticInode::of(parent).is_some() || (parent == STORE_ROOT && name == synthetic::ROOT_NAME) {
            let attr = self.history.lookup(self, parent, name).await?;
            return Ok(ShownEntry { attr, generation: 0 });
        }
        Ok(self.show_to(asked, self.lookup_known((parent, name)).await?.attr).await)
    }

    /// As [`Mount::lookup`], by number: for the loopback threads of the shell, which have the file open.
    ///
    /// # Errors
    /// The store's.
    pub async fn lookup_inode(&self, ino: u64) -> Outcome<ShownEntry> {
        let answer = self.answer(self.asked(0), self.known(ino).await?.attr, true).await;
        Ok(answer.give(&mut self.kernel.lock(), self.backend.now_ns()))
    }

    /// The kernel forgot `lookups` lookups of an inode.
    pub fn forget(&self, ino: u64, lookups: u64) {
        self.kernel.lock().forgot(ino, lookups);
    }

    /// Attributes of an inode, for a thread of a program; 0: the kernel cannot name it.
    ///
    /// # Errors
    /// `ESTALE` if it is gone, and the store's.
    pub async fn attributes(&self, thread: u32, ino: u64) -> Outcome<Attr> {
        let asked = self.asked(thread);
        match SyntheticInode::of(ino) {
            Some(_) => self.history.attr(self, ino).await,
            None => {
                let attr = match self.known(ino).await {
                    Err(Errno::ENOENT) => self.kept_attr(ino).await.ok_or(Errno::ESTALE)?,
                    known => known?.attr,
                };
                Ok(self.seen(asked, attr, false).await)
            }
        }
    }

    /// Attributes of a file that the store does not have any more, and that programs here have open all the same.
    async fn kept_attr(&self, ino: u64) -> Option<Attr> {
        self.files.get(ino)?.kept_attr().await
    }

    /// Changes attributes, and the length if `size_bytes` is given. Returns the attributes after that.
    ///
    /// # Errors
    /// `EROFS` for an old version, `ESTALE` if the inode is gone, and the store's.
    pub async fn set_attributes(&self, ino: u64, new: NewAttr, size_bytes: Option<u64>) -> Outcome<Attr> {
        let asked = self.asked(0);
        let attr = self.change_attributes(ino, new, size_bytes).await.map_err(stale_if_gone)?;
        Ok(self.seen(asked, attr, size_bytes.is_some()).await)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if the inode is none, `ESTALE` if it is gone, and the store's.
    pub async fn read_link(&self, ino: u64) -> Outcome<Vec<u8>> {
        let attr = self.known(ino).await.map_err(stale_if_gone)?.attr;
        if attr.kind() == InodeKind::Symlink { Ok(attr.symlink_target) } else { Err(Errno::EINVAL) }
    }

    /// Makes an empty file, named pipe, socket or device.
    ///
    /// # Errors
    /// `EINVAL` for another kind in `mode`, and the store's.
    pub async fn make_node(&self, caller: Caller, at: NameRef<'_>, mode: u32, rdev: u32) -> Outcome<ShownEntry> {
        let entry = self.create_node(caller, at, mode, rdev).await?;
        Ok(self.show(entry.attr).await)
    }

    /// Makes a directory. The reply delegates it to this mount.
    ///
    /// # Errors
    /// The store's.
    pub async fn make_directory(&self, caller: Caller, at: NameRef<'_>, mode: u32) -> Outcome<ShownEntry> {
        let (parent, name) = at;
        let attr = {
            let owner = self.owner(parent, caller, mode, true).await?;
            let namespace = &self.namespace;
            let _in_flight = namespace.begin_create(parent, name);
            let stamp = namespace.with(Namespace::stamp);
            let mut made = self.backend.make_directory(parent, name, owner, INOS).await.map_err(|error| {
                namespace.forget_name(parent, name);
                explained("make directory", parent, &error)
            })?;
            let attr = made.attr.clone().ok_or(Errno::EIO)?;
            namespace.with(|core, _| {
                // The parent has one more link.
                core.cache.forget(Some(&[parent]));
                core.created_here(stamp, parent, name, &mut made, attr.ino);
            });
            attr
        };
        Ok(self.show(attr).await)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The store's.
    pub async fn make_symlink(&self, caller: Caller, at: NameRef<'_>, target: &[u8]) -> Outcome<ShownEntry> {
        let (parent, name) = at;
        let Owner { uid, gid, .. } = self.owner(parent, caller, 0o777, false).await?;
        let made = {
            let _in_flight = self.namespace.begin_create(parent, name);
            let (op_id, new_name, target) = (self.backend.op_id(), name.to_vec(), target.to_vec());
            let request = Symlink { op_id, parent, name: new_name, target, uid, gid };
            let made = self.backend.ask(&request).await.and_then(backend::attr);
            self.namespace.forget_name(parent, name);
            made.map_err(|e| explained("make symbolic link", parent, &e))?
        };
        Ok(self.show(made).await)
    }

    /// Adds a name to a file.
    ///
    /// # Errors
    /// `EROFS` for an old version, and the store's.
    pub async fn link(&self, ino: u64, (parent, name): NameRef<'_>) -> Outcome<ShownEntry> {
        writable(ino).and(writable(parent))?;
        self.settle(ino).await?;
        let made = {
            let _in_flight = self.namespace.begin_create(parent, name);
            let request = Link { op_id: self.backend.op_id(), ino, parent, name: name.to_vec() };
            self.namespace.with(|core, _| core.cache.note_last_name(ino, (parent, name.to_vec())));
            let made = self.backend.ask(&request).await.and_then(backend::attr);
            self.namespace.forget(&[ino, parent]);
            made.map_err(|e| explained("link", ino, &e))?
        };
        Ok(self.show(made).await)
    }

    /// Owner of a new inode. In a directory with the set-group-id bit it gets the directory's group, and a new
    /// directory inherits the bit.
    pub(crate) async fn owner(&self, parent: u64, caller: Caller, mode: u32, directory: bool) -> Outcome<Owner> {
        let above = self.known(parent).await?.attr;
        let inherits = above.mode & SET_GROUP_ID != 0;
        let gid = if inherits { above.gid } else { caller.gid };
        let bit = if inherits && directory { SET_GROUP_ID } else { 0 };
        Ok(Owner { mode: mode & 0o7777 | bit, uid: caller.uid, gid })
    }

    /// To be called before a name is removed: an open file must outlive its last name, also if it is opened or committed meanwhile.
    /// None: the name is unknown.
    pub(crate) async fn begin_removal(&self, name: NameRef<'_>) -> Option<Removal<'_, B>> {
        let ino = self.lookup_known(name).await.ok()?.attr.ino;
        let removal = self.files.begin_removal(ino);
        // One that was closed a moment ago needs no session.
        self.files.until_released(&self.backend, ino, REMOVAL_WITHIN).await;
        // What is kept here must not keep the content.
        self.recent.forget(Some(&[ino]));
        self.ahead.forget(Some(&[ino]));
        if let Some(file) = self.files.get(ino)
            && let Err(errno) = file.pin(self).await
        {
            tracing::warn!(ino, ?errno, "a file that is open cannot be kept beyond its name");
        }
        Some(removal)
    }

    pub(super) async fn create_node(
        &self,
        caller: Caller,
        (parent, name): NameRef<'_>,
        mode: u32,
        rdev: u32,
    ) -> Outcome<EntryAttr> {
        let kind = node_kind(mode).ok_or(Errno::EINVAL)?;
        let owner = self.owner(parent, caller, mode, false).await?;
        let namespace = &self.namespace;
        let _in_flight = namespace.begin_create(parent, name);
        let delegates = kind == InodeKind::File && self.may_defer_creates(parent).await?;
        let inos = if delegates { namespace.with(|core, _| core.delegations.request(parent)) } else { None };
        let (want_delegation, inos) = (inos.is_some(), inos.unwrap_or(0));
        let new = MakeNode { rdev, want_delegation, inos, ..backend::new_node((parent, name), kind, owner) };
        let stamp = namespace.with(Namespace::stamp);
        match self.backend.make_node(new).await {
            Ok(mut entry) => {
                namespace.with(|core, _| core.created_here(stamp, parent, name, &mut entry, parent));
                Ok(entry.into())
            }
            Err(error) => {
                namespace.forget_name(parent, name);
                Err(explained("create", parent, &error))
            }
        }
    }

    /// Whether this mount may defer creates in a directory.
    async fn may_defer_creates(&self, parent: u64) -> Outcome<bool> {
        // A spooled file has a log under its inode number, so the manager must know that number.
        if !self.defers_creates || self.spool.is_none() {
            return Ok(self.defers_creates);
        }
        let above = self.known(parent).await?;
        Ok(above.policy().is_some_and(|policy| policy.write_mode == WriteMode::SlidingWindow))
    }

    /// Creates a file for writing without asking the manager, if this mount holds a delegation of the directory.
    pub(crate) async fn create_deferred(
        &self,
        caller: Caller,
        at: NameRef<'_>,
        mode: u32,
    ) -> Outcome<Option<EntryAttr>> {
        let (parent, namespace) = (at.0, &self.namespace);
        if !namespace.with(|core, _| core.delegations.is_delegated(parent)) || !self.may_defer_creates(parent).await? {
            return Ok(None);
        }
        let Owner { mode, uid, gid } = self.owner(parent, caller, mode, false).await?;
        let above = self.known(parent).await?;
        let (kind, now) = (InodeKind::File as i32, self.backend.wall_ns());
        let times = Attr { mtime_ns: now, ctime_ns: now, atime_ns: now, ..Attr::default() };
        let attr = Attr { kind, mode, uid, gid, nlink: 1, ..times };
        Ok(namespace.with(|core, now_ns| core.create_deferred(now_ns, at, attr, &above)))
    }

    pub(super) async fn change_attributes(&self, ino: u64, mut new: NewAttr, size: Option<u64>) -> Outcome<Attr> {
        writable(ino)?;
        if let Some(size) = size {
            let changed = self.truncate(ino, size).await?;
            if !changed && !self.kernel.lock().has_write_back() && new.mtime_ns.is_none() {
                // A length that is set counts as a change, also if it is the same one (POSIX, ftruncate and O_TRUNC).
                let now_ns = self.backend.wall_ns();
                (new.mtime_ns, new.ctime_ns) = (Some(now_ns), Some(now_ns));
            }
        }
        if let Some(attr) = self.kernel.lock().unlinked(ino)
            && !self.files.is_open(ino)
        {
            return Ok(attr);
        }
        let file = self.files.get(ino);
        if let Some(file) = file.as_ref().filter(|_| new.mode.is_some()) {
            file.mode_may_change();
        }
        let now_ns = if new == NewAttr::default() { 0 } else { self.backend.wall_ns() };
        new.atime_ns = new.atime_ns.map(not_zero);
        let mtime_ns = new.mtime_ns.map_or(0, not_zero);
        let times = Times { mtime_ns, ctime_ns: new.ctime_ns.unwrap_or(now_ns), ..Times::default() };
        if let Some(file) = &file
            && times != Times::default()
            && file.set_times(times).await
        {
            new.mtime_ns = None;
            // The next commit brings the change time, unless this request changes more.
            if (NewAttr { ctime_ns: None, ..new }) == NewAttr::default() {
                new.ctime_ns = None;
            }
        }
        let of_create = NewAttr { ctime_ns: (now_ns != 0).then_some(times.ctime_ns), ..new };
        if let Some(known) = self.namespace.with(|core, _| core.set_deferred_attr(ino, &of_create)) {
            if let Some(file) = file {
                file.set_created(Some(known.clone())).await;
            }
            return Ok(known.attr);
        }
        self.settle(ino).await?;
        if new == NewAttr::default() {
            if let Some(file) = file
                && let Some(created) = file.created().await
            {
                return Ok(created.attr);
            }
            return Ok(self.known(ino).await?.attr);
        }
        if let Some(file) = file {
            file.set_created(None).await;
        }
        let stamp = self.namespace.with(Namespace::stamp);
        let (op_id, NewAttr { mode, uid, gid, mtime_ns, ctime_ns, atime_ns }) = (self.backend.op_id(), new);
        let request = SetAttr { op_id, ino, mode, uid, gid, mtime_ns, ctime_ns, atime_ns, want_lease: true };
        let changed = self.backend.ask(&request).await;
        if let Some(file) = self.files.get(ino).filter(|_| mode.is_some()) {
            // What was asked for meanwhile may be from before.
            file.mode_may_change();
        }
        if changed.is_err() {
            self.namespace.forget(&[ino]);
        }
        let entry = changed.map_err(|e| explained("set attributes", ino, &e))?;
        if !self.namespace.with(|core, _| core.cache.changed_here(stamp, &entry)) {
            // The kernel may know newer ones, and asks again.
            self.kernel.lock().changed_elsewhere(ino, self.backend.now_ns());
        }
        entry.attr.ok_or(Errno::EIO)
    }

    /// Moves a name.
    ///
    /// # Errors
    /// `EROFS` for an old version, and the store's.
    pub async fn rename(&self, from: NameRef<'_>, to: NameRef<'_>, mode: RenameMode) -> Outcome {
        writable(from.0).and(writable(to.0))?;
        self.namespace.settle(Scope::Name(from.0, from.1.to_vec())).await?;
        self.namespace.settle(Scope::Name(to.0, to.1.to_vec())).await?;
        self.namespace.settle(Scope::Below(to.0, to.1.to_vec())).await?;
        let _in_flight = self.namespace.begin_create(to.0, to.1);
        let replaced = if mode == RenameMode::Replace { self.begin_removal(to).await } else { None };
        let request = Rename {
            op_id: self.backend.op_id(),
            from_parent: from.0,
            from_name: from.1.to_vec(),
            to_parent: to.0,
            to_name: to.1.to_vec(),
            no_replace: mode == RenameMode::NoReplace,
            exchange: mode == RenameMode::Exchange,
        };
        let moves = [(from, to), (to, from)];
        let moves = &moves[..if mode == RenameMode::Exchange { 2 } else { 1 }];
        let begin_moves =
            |core: &mut Namespace, _| moves.iter().map(|(from, to)| core.cache.begin_move(*from, *to)).collect();
        let told: Vec<bool> = self.namespace.with(begin_moves);
        let (before, stamp, moved) = self.namespace.with(|core, now_ns| {
            (core.delegations.state(from.0), core.stamp(now_ns), core.cache.lookup(now_ns, from.0, from.1))
        });
        let done = self.backend.ask(&request).await;
        // A move of one name of a file to another one of it changes nothing. Only a lease tells that it had no other.
        if let Some(moved) = moved.filter(|_| done.is_ok() && mode != RenameMode::Exchange) {
            self.namespace.with(|core, _| {
                if !core.cache.may_be_outdated(stamp, moved.attr.ino, None) {
                    core.delegations.name_removed(from.0, from.1, before);
                }
            });
        }
        self.namespace.forget_name(from.0, from.1);
        self.namespace.forget_name(to.0, to.1);
        // The kernel keeps the name for as long as the old one, though nothing may tell when another mount changes it.
        let untold = moves.iter().zip(told).filter(|(_, told)| !told).map(|((_, to), _)| (to.0, to.1.to_vec()));
        let untold: Vec<Name> = untold.collect();
        let kept_for = if untold.is_empty() { Duration::ZERO } else { self.namespace.invalidate_names(untold) };
        end_removal(replaced, &done, |_| true).await;
        if !kept_for.is_zero() {
            // No recall need come that would wait for it.
            self.backend.sleep(kept_for).await;
        }
        done.map(drop).map_err(|e| explained("rename", from.0, &e))
    }

    /// Removes a name (`directory`: that of a directory).
    ///
    /// # Errors
    /// `EROFS` for an old version, and the store's.
    pub async fn remove(&self, (parent, name): NameRef<'_>, directory: bool) -> Outcome {
        writable(parent)?;
        match directory {
            true => self.namespace.settle(Scope::Below(parent, name.to_vec())).await?,
            false => self.namespace.settle(Scope::Name(parent, name.to_vec())).await?,
        }
        let removal = if directory { None } else { self.begin_removal((parent, name)).await };
        let before = self.namespace.with(|core, _| core.delegations.state(parent));
        let done = self.backend.unlink(parent, name, directory).await;
        match &done {
            Ok(left) if !directory => {
                self.namespace.with(|core, _| core.cache.name_changed(parent, name, left));
                self.kernel.lock().name_removed(left.clone());
            }
            _ => self.namespace.forget_name(parent, name),
        }
        if done.is_ok() {
            self.namespace.with(|core, _| core.delegations.name_removed(parent, name, before));
        }
        end_removal(removal, &done, |left| left.nlink == 0).await;
        done.map(drop).map_err(|e| explained("remove", parent, &e))
    }
}

/// The nearest time that the store and a commit do not take for none.
fn not_zero(time_ns: i64) -> i64 {
    if time_ns == 0 { 1 } else { time_ns }
}

/// A removal was answered, or its answer is lost: then the name may be gone, too. `is_last`: it may have been the last one.
async fn end_removal<B: Backend, T>(
    removal: Option<Removal<'_, B>>,
    answer: &Result<T, Error>,
    is_last: impl Fn(&T) -> bool,
) {
    if let Some(removal) = removal
        && answer.as_ref().map_or_else(Error::is_retryable, is_last)
    {
        removal.done().await;
    }
}
