//! Handles: opens files and directories, and reads and writes through them.

use super::directories::{self, FetchedEntry, OpenDirectory};
use super::history;
use super::{Caller, ListedEntry, Opened, ShownEntry};
use crate::backend::Backend;
use crate::errno::{Errno, Outcome, explained};
use crate::mount::Mount;
use crate::namespace::{NameRef, Scope, TOLD_NS};
use crate::open_file::{Current, IsClosed, OpenFile, RELEASE_WITHIN, WriteAt, read_version};
use crate::synthetic::SyntheticInode;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tessera_wire::meta::{ClusterStatus, GetStatus, MAX_LISTINGS_RECALLED};
use tessera_wire::{Attr, InodeKind};

/// Bytes that one request copies at most: a program that is asked to stop does not wait long.
const COPY_BYTES: u64 = 16 << 20;
/// Bytes that a copy reads and writes at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Attributes of a listing that were asked for longer ago tell the kernel nothing: a program may read a directory slowly.
const LISTED_FOR: Duration = Duration::from_secs(1);

/// What an unlock could not commit. Programs do not expect an error of it, so the next sync or close through the handle returns that.
#[derive(Default)]
pub(crate) struct UnlockFailed(parking_lot::Mutex<Option<Errno>>);

impl UnlockFailed {
    fn take(&self) -> Outcome {
        self.0.lock().take().map_or(Ok(()), Err)
    }
}

/// What a handle stands for.
pub(crate) enum Handle<B: Backend> {
    File {
        file: Arc<OpenFile<B>>,
        writes: bool,
        /// When it was opened, if programs read through the kernel's pages.
        fills_pages: Option<i64>,
        closed: IsClosed,
        unlock_failed: UnlockFailed,
    },
    Directory(tokio::sync::Mutex<OpenDirectory>),
    /// One old version of a file.
    Version(Arc<B::Reader>),
    /// A directory of old versions, with its entries.
    Versions(Vec<history::Entry>),
}

impl<B: Backend> Mount<B> {
    fn add_handle(&self, handle: Handle<B>) -> u64 {
        let number = self.last_handle.fetch_add(1, Ordering::Relaxed) + 1;
        self.handles.lock().insert(number, Arc::new(handle));
        number
    }

    fn handle(&self, number: u64) -> Outcome<Arc<Handle<B>>> {
        self.handles.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    pub(super) fn open_file(&self, handle: u64) -> Outcome<Arc<OpenFile<B>>> {
        match &*self.handle(handle)? {
            Handle::File { file, writes, closed, .. } => {
                self.files.set_closed(file.ino, closed, *writes, false);
                Ok(file.clone())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// Opens a file for a thread of a program; 0: the kernel cannot name it. [`Mount::read_ahead`] follows.
    ///
    /// # Errors
    /// `ESTALE`: the kernel must look the name up again. `EROFS` for an old version, and the store's.
    pub async fn open(&self, thread: u32, ino: u64, writes: bool) -> Outcome<Opened> {
        if SyntheticInode::of(ino).is_some() {
            if writes {
                return Err(Errno::EROFS);
            }
            let version = self.history.open(self, ino).await?;
            return Ok(Opened { handle: self.add_handle(Handle::Version(version)), keep_cache: true, direct: false });
        }
        let (file, opening) = self.files.begin_open(ino, writes, self.backend.now_ns());
        let Current { version, size_bytes, uncommitted } = match file.refresh(self, writes).await {
            Ok(found) => found,
            Err(errno) => {
                self.namespace.forget(&[ino]);
                drop(opening);
                self.files.release(self, &file, writes).await;
                if errno != Errno::ENOENT {
                    return Err(errno);
                }
                // The inode that the kernel had cached for the name is gone. `ESTALE` makes the kernel look the name up
                // again.
                self.kernel.lock().refused_as_gone(ino, thread);
                return Err(Errno::ESTALE);
            }
        };
        file.drop_old_end(self).await;
        // With its write-back cache the kernel keeps its length while a program has the file open.
        let has_write_back = self.kernel.lock().has_write_back();
        if has_write_back && self.kernel.lock().lacks(ino, size_bytes) {
            self.files.until_released(&*self.backend, ino, RELEASE_WITHIN).await;
        }
        // Without it, its length is right while a program here has written what is in no version yet.
        let can_show = if has_write_back { self.files.is_only_opening(ino) } else { !uncommitted };
        if can_show && self.kernel.lock().must_look_up_again(ino, size_bytes, thread) {
            self.namespace.forget(&[ino]);
            if !has_write_back {
                // If the program opened no name (`/proc/self/fd/3`), the kernel looks none up. It then asks for the attributes, to check
                // the permissions.
                self.forget_attributes(ino);
            }
            drop(opening);
            self.files.release(self, &file, writes).await;
            return Err(Errno::ESTALE);
        }
        let older_fills = self.kernel.lock().older_fills(ino);
        let has_pages = self.kernel.lock().has_version(ino, version);
        // Before the version counts as the kernel's: it drops its older pages again when it gets the answer to this open, and
        // another open that is answered meanwhile must not read them.
        let mut are_current = has_write_back || has_pages || self.drop_pages_of(ino, 0..u64::MAX).await;
        let now_ns = self.backend.now_ns();
        let keep_cache = {
            let mut kernel = self.kernel.lock();
            are_current &= kernel.older_fills(ino) == older_fills;
            let keep_cache = kernel.opens(ino, version, size_bytes, uncommitted, now_ns);
            if !are_current {
                kernel.holds_uncommitted(ino);
            }
            keep_cache && are_current
        };
        if !has_write_back && !keep_cache && has_pages {
            // Whatever length it has, it asks for the attributes before it shows the end, as after a drop of pages.
            self.forget_attributes(ino);
        }
        let direct = self.is_direct(ino, writes) || !are_current && self.bypasses_pages();
        if !writes {
            self.plan_ahead(ino);
        }
        Ok(Opened { handle: self.add_file(file, writes, !direct), keep_cache, direct })
    }

    /// Whether handles of files that may change bypass the kernel's pages. Not with the write-back cache: it may have bytes that
    /// only it shows.
    pub fn bypasses_pages(&self) -> bool {
        self.backend.maps_direct() && !self.kernel.lock().has_write_back()
    }

    /// Whether programs read and write through a new handle without the kernel's pages: wherever the file may change. The kernel
    /// fills pages again at any time, from before a change as well, and a write through its pages gives them up before it arrives
    /// here.
    fn is_direct(&self, ino: u64, writes: bool) -> bool {
        let now_ns = self.backend.now_ns();
        let changes_elsewhere = || self.kernel.lock().changes_elsewhere(ino, now_ns);
        self.bypasses_pages()
            && (writes || self.files.is_written(ino) || self.files.is_being_cut(ino) || changes_elsewhere())
    }

    /// As [`Backend::forget_attributes`].
    pub(super) fn forget_attributes(&self, ino: u64) {
        self.backend.forget_attributes(ino);
        self.kernel.lock().noticed(ino, self.backend.now_ns());
    }

    /// As [`Backend::drop_pages_of`].
    pub(crate) async fn drop_pages_of(&self, ino: u64, bytes: Range<u64>) -> bool {
        self.kernel.lock().noticed(ino, self.backend.now_ns());
        let dropped = self.backend.drop_pages_of(ino, bytes).await;
        self.kernel.lock().noticed(ino, self.backend.now_ns());
        dropped
    }

    /// As [`Backend::drop_pages`]. From then on the kernel has this version.
    ///
    /// # Errors
    /// As [`Backend::drop_pages`].
    pub(crate) async fn refresh_kernel(&self, ino: u64, version: u64, size_bytes: u64) -> io::Result<()> {
        loop {
            let older_fills = self.kernel.lock().older_fills(ino);
            self.backend.drop_pages(ino, size_bytes).await?;
            let mut kernel = self.kernel.lock();
            // It knows the length now, so it is sent no older pages any more, unless a program here sets the length.
            kernel.holds(ino, version, size_bytes);
            if kernel.older_fills(ino) == older_fills {
                return Ok(());
            }
        }
    }

    /// Whether programs have a file open through the kernel's pages, while handles of a file that may change bypass them.
    pub(crate) fn fills_pages_of(&self, ino: u64) -> bool {
        self.files.has_fillers(ino) && self.bypasses_pages()
    }

    fn add_file(&self, file: Arc<OpenFile<B>>, writes: bool, fills_pages: bool) -> u64 {
        if fills_pages {
            self.files.set_fills(file.ino, true);
        }
        let fills_pages = fills_pages.then(|| self.backend.now_ns());
        self.add_handle(Handle::File {
            file,
            writes,
            fills_pages,
            closed: IsClosed::default(),
            unlock_failed: UnlockFailed::default(),
        })
    }

    /// Opens a file for a loopback thread of the shell, without looking for a newer version. Returns the handle.
    pub async fn open_loopback(&self, ino: u64) -> u64 {
        let size_bytes = self.known(ino).await.map_or(0, |known| known.attr.size_bytes);
        let file = self.files.open(ino, size_bytes, false, self.backend.now_ns());
        self.add_file(file, false, false)
    }

    /// Creates a file and opens it. An existing file is opened, unless `exclusive`. [`Mount::read_ahead`] follows.
    ///
    /// # Errors
    /// `EEXIST`, and the store's.
    pub async fn create(
        &self,
        caller: Caller,
        at: NameRef<'_>,
        mode: u32,
        writes: bool,
        exclusive: bool,
    ) -> Outcome<(ShownEntry, Opened)> {
        let deferred = match writes {
            true => self.create_deferred(caller, at, mode).await?,
            false => None,
        };
        let created = match deferred {
            Some(entry) => Ok(entry),
            None => self.create_node(caller, at, mode, 0).await,
        };
        let entry = match created {
            // Another client created it between the kernel's lookup and its create.
            Err(Errno::EEXIST) if !exclusive => return self.open_existing(caller.thread, at, writes).await,
            created => created?,
        };
        let attr = entry.attr.clone();
        let file = self.files.open(attr.ino, 0, writes, self.backend.now_ns());
        file.set_created(Some(entry)).await;
        let shown = self.show(attr).await;
        let direct = self.is_direct(shown.attr.ino, writes);
        Ok((shown, Opened { handle: self.add_file(file, writes, !direct), keep_cache: true, direct }))
    }

    async fn open_existing(&self, thread: u32, at: NameRef<'_>, writes: bool) -> Outcome<(ShownEntry, Opened)> {
        self.namespace.forget_name(at.0, at.1);
        let known = self.lookup_known(at).await?;
        let opened = self.open(thread, known.attr.ino, writes).await?;
        Ok((self.show(known.attr).await, opened))
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// The store's, and the spool's.
    pub async fn read(&self, handle: u64, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        self.read_for(handle, (offset, len), false).await
    }

    /// As [`Mount::read`], for a page of the kernel.
    ///
    /// # Errors
    /// As [`Mount::read`].
    pub async fn read_page(&self, handle: u64, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        self.page_is_filled(handle)?;
        self.read(handle, offset, len).await
    }

    fn page_is_filled(&self, handle: u64) -> Outcome {
        if let Handle::File { file, .. } = &*self.handle(handle)? {
            file.page_is_filled();
        }
        Ok(())
    }

    /// As [`Mount::read`], for a read around the kernel's pages (`O_DIRECT`, a copy): nobody but this mount then looks whether the
    /// file ends before that. `fills_page`: the kernel reads a page of a map after all.
    ///
    /// # Errors
    /// As [`Mount::read`].
    pub async fn read_direct(&self, handle: u64, offset: u64, len: usize, fills_page: bool) -> Outcome<Vec<u8>> {
        if fills_page {
            self.page_is_filled(handle)?;
        }
        self.read_for(handle, (offset, len), true).await
    }

    async fn read_for(&self, handle: u64, (offset, len): (u64, usize), direct: bool) -> Outcome<Vec<u8>> {
        match &*self.handle(handle)? {
            Handle::Version(version) => read_version(&**version, offset, len).await,
            Handle::File { fills_pages, .. } => {
                let fills_pages = fills_pages.filter(|_| !direct);
                self.open_file(handle)?.read(self, offset, len, fills_pages).await
            }
            Handle::Directory(_) | Handle::Versions(_) => Err(Errno::EBADF),
        }
    }

    /// Writes at `offset`.
    ///
    /// # Errors
    /// The store's, and the spool's. A failure that lost bytes is reported again.
    pub async fn write(&self, handle: u64, offset: u64, bytes: &[u8]) -> Outcome {
        self.open_file(handle)?.write(self, WriteAt::Offset(offset), bytes).await.map(drop)
    }

    /// The kernel writes back a page that a program has changed through a map, or that waited in its write-back cache.
    ///
    /// # Errors
    /// As [`Mount::write`].
    pub async fn write_page(&self, handle: u64, offset: u64, bytes: &[u8]) -> Outcome {
        self.open_file(handle)?.write(self, WriteAt::Page(offset), bytes).await.map(drop)
    }

    /// Writes at the end, for a handle that reads and writes without the kernel's pages; `offset`: where the end is for the kernel.
    ///
    /// # Errors
    /// As [`Mount::write`].
    pub async fn append(&self, handle: u64, offset: u64, bytes: &[u8]) -> Outcome {
        let file = self.open_file(handle)?;
        let written_at = file.write(self, WriteAt::End, bytes).await?;
        if written_at != offset {
            self.kernel.lock().appended_behind(file.ino);
        }
        Ok(())
    }

    /// Copies up to `len` bytes from one open file to another; returns how many: fewer at the end, and at most
    /// [`COPY_BYTES`]. The kernel would copy through its pages, and only up to the length that it knows.
    ///
    /// # Errors
    /// `EOPNOTSUPP` with the write-back cache: the kernel then copies what only it has. Those of reads and writes, unless
    /// something was copied before.
    pub async fn copy(&self, (from, offset): (u64, u64), (to, to_offset): (u64, u64), len: u64) -> Outcome<u64> {
        if !self.bypasses_pages() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (len, mut done) = (len.min(COPY_BYTES), 0);
        while done < len {
            let piece = async {
                let bytes =
                    self.read_direct(from, offset + done, (len - done).min(PIECE_BYTES) as usize, false).await?;
                self.write(to, to_offset + done, &bytes).await.map(|()| bytes.len() as u64)
            };
            match piece.await {
                Ok(0) => break,
                Ok(copied) => done += copied,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// A process closes the file: commits what was written, or acknowledges it from the spool, and releases the
    /// `fcntl` locks of `owner`.
    ///
    /// # Errors
    /// Those of the commit; the locks are released anyway.
    pub async fn flush(&self, ino: u64, handle: u64, owner: u64) -> Outcome {
        let handle = self.handle(handle);
        // At the start: once this is answered, the kernel may release the handle.
        if let Ok(Handle::File { writes, closed, .. }) = handle.as_deref() {
            self.files.set_closed(ino, closed, *writes, true);
        }
        let flushed = match handle.as_deref() {
            Ok(Handle::File { file, writes: true, .. }) => {
                let closed = file.close(self).await;
                file.drop_old_end(self).await;
                closed
            }
            _ => Ok(()),
        };
        let unlocked = self.close_locks(ino, owner).await;
        let unlocked_before = match handle.as_deref() {
            Ok(Handle::File { unlock_failed, .. }) => unlock_failed.take(),
            _ => Ok(()),
        };
        flushed.and(unlocked).and(unlocked_before)
    }

    /// Commits the file.
    ///
    /// # Errors
    /// Those of the commit.
    pub async fn fsync(&self, handle: u64) -> Outcome {
        let file = self.open_file(handle)?;
        let committed = file.commit(self).await;
        file.drop_old_end(self).await;
        committed.and(match &*self.handle(handle)? {
            Handle::File { unlock_failed, .. } => unlock_failed.take(),
            _ => Ok(()),
        })
    }

    /// An unlock through a handle could not commit the file.
    pub(super) fn unlock_failed(&self, handle: u64, errno: Errno) {
        if let Ok(handle) = self.handle(handle)
            && let Handle::File { unlock_failed, .. } = &*handle
        {
            *unlock_failed.0.lock() = Some(errno);
        }
    }

    /// The last reference to a handle is gone.
    pub async fn release(&self, ino: u64, number: u64) {
        let handle = self.handles.lock().remove(&number);
        let owners = self.lockers.owners(ino, number);
        // Nobody waits for a handle whose owners have unlocked.
        let holds = owners.iter().any(|owner| self.locks.holds(ino, *owner));
        let closing = holds.then(|| self.closing.begin(ino));
        self.commit_before_unlock(ino, &owners).await;
        if let Some(Handle::File { file, writes, fills_pages, closed, .. }) = handle.as_deref() {
            self.files.set_closed(ino, closed, *writes, false);
            if fills_pages.is_some() {
                self.files.set_fills(ino, false);
            }
            self.files.release(self, file, *writes).await;
        }
        self.unlock_released(ino, number).await;
        drop(closing);
    }

    /// Makes the file at least `offset + len` bytes long. Blocks cannot be allocated in advance.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another `mode` than 0, and those of a change of the length.
    pub async fn allocate(&self, handle: u64, offset: u64, len: u64, mode: i32) -> Outcome {
        let file = self.open_file(handle)?;
        match (mode, offset.checked_add(len)) {
            (0, Some(end)) => {
                let extended = file.extend(self, end).await;
                file.drop_old_end(self).await;
                extended
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Sets the length through a handle of its own, and closes that as a program does, unless a program writes the file:
    /// its close follows. Returns false if the file is as long already.
    pub(super) async fn truncate(&self, ino: u64, size_bytes: u64) -> Outcome<bool> {
        let open = self.files.get(ino);
        let shown = match &open {
            Some(file) => file.size().await,
            None => None,
        };
        let there = match shown {
            Some((size_bytes, _)) => size_bytes,
            None => self.known(ino).await?.attr.size_bytes,
        };
        let file = self.files.open(ino, there, true, self.backend.now_ns());
        let change = async {
            // Another mount may have changed the length that this one shows.
            let size = file.size().await;
            let is_shown =
                size == Some((size_bytes, false)) && self.namespace.with(|core, _| core.is_settled(ino)).is_some();
            let is_unknown = size.is_none();
            if is_unknown || open.is_some() && (is_shown || self.files.has_one_writer(ino)) {
                self.refresh_open(&file).await?;
            }
            let changed = file.truncate(self, size_bytes).await?;
            if self.files.has_one_writer(ino) {
                file.close(self).await?;
            }
            Ok(changed)
        };
        let done = change.await;
        self.files.release(self, &file, true).await;
        done
    }

    /// As an open: what other mounts wrote since a program opened the file belongs to it.
    async fn refresh_open(&self, file: &OpenFile<B>) -> Outcome {
        let Current { version, size_bytes, uncommitted } = file.refresh(self, true).await?;
        let mut kernel = self.kernel.lock();
        if !uncommitted && !kernel.shows(file.ino, version, size_bytes) {
            // Its pages are older, and a commit over this version does not bring the others.
            kernel.holds_uncommitted(file.ino);
        }
        Ok(())
    }

    /// Opens a directory. Returns the handle.
    ///
    /// # Errors
    /// The store's, for a directory of old versions.
    pub async fn open_directory(&self, ino: u64) -> Outcome<u64> {
        let handle = match SyntheticInode::of(ino) {
            Some(_) => Handle::Versions(self.history.entries(self, ino).await?),
            None => Handle::Directory(Default::default()),
        };
        Ok(self.add_handle(handle))
    }

    /// Lists a directory from `position` on, until `add` returns that the reply is full, or the next entry would have to wait. Only the end of
    /// the directory gives no entry. `full`: with attributes. [`Mount::read_ahead`] follows.
    ///
    /// # Errors
    /// The manager's.
    pub async fn read_directory(
        &self,
        ino: u64,
        handle: u64,
        position: u64,
        full: bool,
        mut add: impl FnMut(&ListedEntry<'_>) -> bool,
    ) -> Outcome {
        let handle = self.handle(handle)?;
        let directory = match &*handle {
            Handle::Directory(directory) => directory,
            Handle::Versions(entries) => {
                for (next, entry) in (1u64..).zip(entries.iter()).skip(position as usize) {
                    let (ino, kind) = (entry.attr.ino, entry.attr.kind());
                    let shown = Some(ShownEntry { attr: entry.attr.clone(), generation: 0 });
                    // What the mount computes has no lease.
                    let (age, kept_for) = (Duration::ZERO, Duration::MAX);
                    if add(&ListedEntry { ino, name: &entry.name, kind, next, age, kept_for, shown }) {
                        break;
                    }
                }
                return Ok(());
            }
            Handle::File { .. } | Handle::Version(_) => return Err(Errno::EBADF),
        };
        let mut directory = directory.lock().await;
        if position == 0 {
            self.namespace.settle(Scope::Directory(ino)).await?;
            // The program reads from the start: fetch again.
            *directory = OpenDirectory::default();
        }
        // The kernel keeps what it gets for so long from the reply on, and its changes are not recalled for longer: no entry waits in the reply.
        let mut first_kept_ns = None;
        for at in position.. {
            let next = at + 1;
            if at < directories::DOTS {
                let name: &[u8] = if at == 0 { b"." } else { b".." };
                let (kind, age, kept_for) = (InodeKind::Directory, Duration::ZERO, Duration::ZERO);
                if add(&ListedEntry { ino, name, kind, next, age, kept_for, shown: None }) {
                    return Ok(());
                }
                continue;
            }
            let has_entries = at > position.max(directories::DOTS);
            let is_late = |first_ns: i64| self.backend.now_ns().saturating_sub(first_ns) > TOLD_NS;
            if has_entries && directory.must_fetch(at) || first_kept_ns.is_some_and(is_late) {
                return Ok(());
            }
            let entry = match directory.entry(self, ino, at).await {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(()),
                // The kernel gets what there is, and the error when it asks for the rest.
                Err(_) if at > position => return Ok(()),
                Err(error) => return Err(explained("list", ino, &error)),
            };
            let FetchedEntry { entry, asked_ns, stamp, lease } = entry;
            let (child, kind) = entry.attr.as_ref().map_or((0, InodeKind::Unknown), |attr| (attr.ino, attr.kind()));
            let age = Duration::from_nanos(self.backend.now_ns().saturating_sub(*asked_ns).max(0) as u64);
            let listed =
                |shown, kept_for| ListedEntry { ino: child, name: &entry.name, kind, next, age, kept_for, shown };
            let name_only = |add: &mut dyn FnMut(&ListedEntry<'_>) -> bool| {
                let is_full = add(&listed(None, Duration::ZERO));
                if full && child != 0 && !is_full {
                    self.kernel.lock().named(child);
                }
                is_full
            };
            // Nothing waits for a file of which the entry would tell something new, and of old attributes the kernel learns nothing, nor
            // of those that programs here have changed since: it would show again a name that is gone. An entry that is older than a
            // commit here is renewed.
            let (is_renamed, is_changed) = self.namespace.with(|core, _| {
                let name = (ino, &entry.name[..]);
                (core.cache.may_be_outdated(*stamp, 0, Some(name)), core.cache.may_be_outdated(*stamp, child, None))
            });
            let may_tell = |attr: &Attr| {
                let kernel = self.kernel.lock();
                let is_open = self.files.is_open(attr.ino);
                kernel.has_newer(attr) || !is_changed && kernel.listed(attr, attr.size_bytes, is_open).is_some()
            };
            let is_current = age <= LISTED_FOR && !is_renamed && !self.was_recalled_since(child, *asked_ns);
            let is_full = match entry.attr.clone().filter(|attr| full && is_current && may_tell(attr)) {
                Some(attr) => {
                    // No recall of this listing may tell that a file with more names changes.
                    let is_told = attr.nlink <= MAX_LISTINGS_RECALLED || attr.kind() == InodeKind::Directory;
                    let answer = match has_entries {
                        true => self.answer_at_once(self.asked(0), attr).await,
                        false => Some(self.answer(self.asked(0), attr, false).await),
                    };
                    let Some(answer) = answer else { return Ok(()) };
                    let kept_for = self.keeps_listed(lease.filter(|_| is_told), (ino, &entry.name));
                    if !kept_for.is_zero() {
                        first_kept_ns.get_or_insert_with(|| self.backend.now_ns());
                    }
                    let mut kernel = self.kernel.lock();
                    match answer.listed(&kernel) {
                        Some(shown) => {
                            let is_full = add(&listed(Some(shown), kept_for));
                            if !is_full {
                                answer.give(&mut kernel, self.backend.now_ns());
                            }
                            is_full
                        }
                        None => {
                            drop(kernel);
                            name_only(&mut add)
                        }
                    }
                }
                None => name_only(&mut add),
            };
            if is_full {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Closes a directory.
    pub fn release_directory(&self, handle: u64) {
        self.handles.lock().remove(&handle);
    }

    /// Makes the names in a directory durable. The request that makes a name also makes it durable; only deferred
    /// creates must be settled here.
    ///
    /// # Errors
    /// The manager's.
    pub async fn sync_directory(&self, ino: u64) -> Outcome {
        self.namespace.settle(Scope::Directory(ino)).await
    }

    /// Capacity, free space and contents of the store.
    ///
    /// # Errors
    /// The manager does not answer.
    pub async fn status(&self) -> Outcome<ClusterStatus> {
        self.backend.ask(&GetStatus {}).await.map_err(|error| error.code().into())
    }
}
