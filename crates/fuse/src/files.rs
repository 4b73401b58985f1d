//! Open files: the bytes that this mount has written and not committed, and the version below them.
//!
//! All handles of an inode share one [`OpenFile`], so programs on one mount see each other's writes at once. Other
//! mounts see them after a commit: at fsync, and when a handle that wrote is closed (close-to-open). Bytes wait in
//! [`WriteBuffer`] until there are enough to cut into chunks, then stream into a write session. A read of bytes that
//! are in the session but in no version commits first.
//!
//! A file whose `write-mode` asks for it has a log in the spool instead of buffer and session ([`local`]).

mod local;
mod pushing;

use crate::attr;
use crate::mount::Store;
use crate::spool::log::Log;
use crate::spool::staged::Writes;
use bytes::Bytes;
use fuser::Errno;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tessera_client::{ReadHandle, WriteDone};
use tessera_mount::namespace::{EntryAttr, Namespace, Stamp};
use tessera_mount::write_buffer::WriteBuffer;
use tessera_policy::WriteMode;

/// Bytes that wait before a write session is opened. Smaller files are committed in one request.
const STREAM_FROM_BYTES: usize = 4 << 20;
/// Limit of the bytes that wait for the gap before them to be filled.
const HOLD_BYTES: usize = 32 << 20;
/// Bytes of the file whose extents a read fetches when it opens a version.
const FIRST_EXTENTS_BYTES: u64 = 64 << 20;

/// Open files by inode.
#[derive(Default)]
pub struct Files(Mutex<HashMap<u64, Slot>>);

struct Slot {
    file: Arc<OpenFile>,
    handles: usize,
    writers: usize,
}

/// One file and its unwritten state. See the module.
pub struct OpenFile {
    ino: u64,
    /// Held while the spool's content of this file is brought into the store. Taken before `state`.
    turn: Mutex<()>,
    meter: Mutex<local::Meter>,
    state: Mutex<State>,
}

struct State {
    /// Length as this mount shows it.
    size_bytes: u64,
    /// The last version that this mount opened or committed.
    version: u64,
    /// The store's name of that version's content; 0: unknown.
    content: u64,
    /// The version below the written bytes; opened at the first read.
    base: Option<Arc<ReadHandle>>,
    /// No byte of the version below belongs to the file any longer.
    replaced: bool,
    /// The file lost its last name on this mount: only sessions keep it.
    unlinked: bool,
    buffer: WriteBuffer,
    session: Option<Session>,
    /// Takes the writes instead of `buffer` and `session`.
    log: Option<Log>,
    /// A log whose content is in the session; kept until the session is committed.
    poured: Option<Log>,
    /// How this file is written.
    mode: WriteMode,
    /// `close` may return before everything is durable.
    optimistic: bool,
    /// The file was closed, and the session's content still needs a commit.
    owes_commit: bool,
    /// The file was shortened and no version says so yet. No write behind the end is allowed before a commit, or the
    /// bytes that were cut off would show through.
    cut: bool,
    /// There is something to commit.
    changed: bool,
    /// Modification time to commit, ns since 1970; 0: the time of the commit.
    mtime_ns: i64,
    /// Attributes from the create; none once there is a version.
    made: Option<EntryAttr>,
    /// Another mount's version replaced what was written here, and the kernel does not know yet: that version and its
    /// length.
    gave_way: Option<(u64, u64)>,
    /// A write failed: bytes that the kernel was told are written are lost. Every later caller gets this error.
    failed: Option<Errno>,
}

/// An open write session.
struct Session {
    handle: Box<dyn Writes>,
    /// Offset of the next byte of the stream.
    position: u64,
    /// Range that covers everything handed over since the last commit.
    uncommitted: Option<Range<u64>>,
    /// True: the session patches. False: it replaces the file and can only go forward.
    patches: bool,
}

impl Files {
    /// Whether a handle of the file is open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// Whether a handle is open for writing.
    pub fn has_writers(&self, ino: u64) -> bool {
        self.0.lock().get(&ino).is_some_and(|slot| slot.writers > 0)
    }

    /// Whether exactly one handle is open.
    pub fn is_open_once(&self, ino: u64) -> bool {
        self.0.lock().get(&ino).is_some_and(|slot| slot.handles == 1)
    }

    /// Whether no file is open.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Number of open files, and number of those with uncommitted changes.
    pub fn figures(&self) -> (u64, u64) {
        let all: Vec<Arc<OpenFile>> = self.0.lock().values().map(|slot| slot.file.clone()).collect();
        (all.len() as u64, all.iter().filter(|file| file.size().1).count() as u64)
    }

    /// The file, if a handle of it is open.
    pub fn get(&self, ino: u64) -> Option<Arc<OpenFile>> {
        self.0.lock().get(&ino).map(|slot| slot.file.clone())
    }

    /// Adds a handle. `size_bytes`: the file's length, used if no handle is open yet.
    pub fn open(&self, ino: u64, size_bytes: u64, writes: bool) -> Arc<OpenFile> {
        let mut files = self.0.lock();
        let slot = files.entry(ino).or_insert_with(|| Slot {
            file: Arc::new(OpenFile::new(ino, size_bytes)),
            handles: 0,
            writers: 0,
        });
        slot.handles += 1;
        slot.writers += usize::from(writes);
        if writes {
            slot.file.meter.lock().opened();
        }
        slot.file.clone()
    }

    /// Drops a handle. The last handle, and the last one that writes, commits what is left.
    pub fn release(&self, store: &Store, file: &OpenFile, writes: bool) {
        let leaves = |slot: &mut Slot| {
            slot.handles -= 1;
            slot.writers -= usize::from(writes);
            slot.handles == 0 || (writes && slot.writers == 0)
        };
        // The handle is counted off before the commit: if two close at once, exactly one is the last.
        if !self.0.lock().get_mut(&file.ino).is_some_and(leaves) {
            return;
        }
        // Flush already reported failures to the program that closed. A program that opens the file meanwhile shares
        // and keeps this `OpenFile`.
        let _ = file.close_session(store);
        let failed = file.state.lock().failed.is_some();
        let mut files = self.0.lock();
        if files.get(&file.ino).is_some_and(|slot| slot.handles == 0) {
            files.remove(&file.ino);
            drop(files);
            if failed {
                store.kernel.lock().holds_uncommitted(file.ino);
                store.namespace.with(|core, _| core.forget(&[file.ino]));
            }
            store.namespace.closed(&store.client, file.ino);
        }
    }

    /// Adds the spool's handle: a file that waits in the spool stays open.
    fn hold(&self, ino: u64) {
        if let Some(slot) = self.0.lock().get_mut(&ino) {
            slot.handles += 1;
        }
    }

    /// Drops the spool's handle.
    fn let_go(&self, ino: u64) {
        let mut files = self.0.lock();
        if let Some(slot) = files.get_mut(&ino) {
            slot.handles -= 1;
            if slot.handles == 0 {
                files.remove(&ino);
            }
        }
    }

    /// Commits all open files that are not safe in the spool. Returns how many failed.
    pub fn commit_all(&self, store: &Store) -> usize {
        self.unsafe_now().iter().filter(|file| file.commit(store).is_err()).count()
    }

    /// All open files that are not safe in the spool.
    pub fn unsafe_now(&self) -> Vec<Arc<OpenFile>> {
        let all: Vec<Arc<OpenFile>> = self.0.lock().values().map(|slot| slot.file.clone()).collect();
        all.into_iter().filter(|file| !file.is_safe()).collect()
    }
}

impl State {
    fn new(size_bytes: u64) -> State {
        State {
            size_bytes,
            version: 0,
            content: 0,
            base: None,
            replaced: size_bytes == 0,
            unlinked: false,
            buffer: WriteBuffer::default(),
            session: None,
            log: None,
            poured: None,
            mode: WriteMode::SlidingWindow,
            optimistic: false,
            owes_commit: false,
            cut: false,
            changed: false,
            mtime_ns: 0,
            made: None,
            gave_way: None,
            failed: None,
        }
    }
}

impl OpenFile {
    /// Length as this mount shows it, and whether something waits to be committed.
    pub fn size(&self) -> (u64, bool) {
        let state = self.state.lock();
        (state.size_bytes, state.changed)
    }

    /// Opens the current version, as an open does, unless uncommitted changes wait. Returns the version below and its
    /// length.
    ///
    /// # Errors
    /// As the open of a version.
    pub fn refresh(&self, store: &Store) -> Result<(u64, u64), Errno> {
        let mut state = self.state.lock();
        if !state.changed {
            let base = open_base(store, self.ino)?;
            if base.opened().version.version != state.version {
                // Another client changed the file; the session builds on the old version.
                state.session = None;
                state.version = base.opened().version.version;
            }
            let attr = &base.opened().attr;
            state.content = if attr.version == state.version { attr.content } else { 0 };
            state.size_bytes = base.len_bytes();
            state.replaced = state.size_bytes == 0;
            state.base = Some(base);
        }
        let version = state.base.as_ref().map_or(0, |base| base.opened().version.version);
        Ok((version, state.size_bytes))
    }

    /// This mount created the file just now.
    pub fn made(&self, known: EntryAttr) {
        self.state.lock().made = Some(known);
    }

    /// Attributes from the create, if this mount created the file and it has no version yet.
    pub fn made_as(&self) -> Option<EntryAttr> {
        self.state.lock().made.clone()
    }

    /// Drops the attributes from the create, because they changed.
    pub fn forget_made(&self) {
        self.state.lock().made = None;
    }

    /// Makes sure that a read session keeps the file when its last name is removed.
    ///
    /// # Errors
    /// As the open of a version.
    pub fn pin(&self, store: &Store) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.base.is_none() {
            state.base = Some(open_base(store, self.ino)?);
        }
        Ok(())
    }

    /// The last name may be gone: from now on the file always has a session that keeps it.
    pub fn unlinked(&self) {
        self.state.lock().unlinked = true;
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// Those of the read, and of the commit that it may need first.
    pub fn read(&self, store: &Store, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut state = self.state.lock();
        let end = offset.saturating_add(len as u64).min(state.size_bytes);
        if offset >= end {
            return Ok(Vec::new());
        }
        let under_way = |r: &Range<u64>| r.start < end && r.end > offset;
        if state.session.as_ref().and_then(|s| s.uncommitted.as_ref()).is_some_and(under_way) {
            state.commit(store, self.ino)?;
        }
        let mut out = vec![0; (end - offset) as usize];
        if state.log.is_some() {
            local::read(state, store, self.ino, offset, &mut out)?;
            return Ok(out);
        }
        if state.replaced {
            state.buffer.overlay(offset, &mut out);
            return Ok(out);
        }
        let base = match &state.base {
            Some(base) => base.clone(),
            None => {
                let base = open_base(store, self.ino)?;
                state.base = Some(base.clone());
                base
            }
        };
        if state.buffer.is_empty() {
            MutexGuard::unlocked(&mut state, || read_base(&base, offset, &mut out))?;
        } else {
            read_base(&base, offset, &mut out)?;
            state.buffer.overlay(offset, &mut out);
        }
        Ok(out)
    }

    /// Writes at `offset`.
    ///
    /// # Errors
    /// Those of the session or of the log; an earlier failure is returned again.
    pub fn write(&self, store: &Store, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if let Some(errno) = state.failed {
            return Err(errno);
        }
        self.meter.lock().wrote(bytes.len());
        if state.begin_log(store, self.ino) {
            match state.change_log(|log| log.write(offset, bytes)) {
                Ok(()) => return Ok(()),
                Err(error) => state = self.go_on_without_log(store, state, &error)?,
            }
        }
        let end = offset + bytes.len() as u64;
        if state.cut && end > state.size_bytes {
            state.commit(store, self.ino)?;
        }
        state.size_bytes = state.size_bytes.max(end);
        state.changed = true;
        let done = match state.continues(offset, end) {
            true => state.stream(store, self.ino, offset, bytes),
            false => {
                state.buffer.write(offset, bytes);
                state.feed(store, self.ino, false)
            }
        };
        state.note(done)
    }

    /// Sets the length.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub fn truncate(&self, store: &Store, size_bytes: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if size_bytes != state.size_bytes && state.begin_log(store, self.ino) {
            match state.change_log(|log| log.set_len(size_bytes)) {
                Ok(()) => return self.truncated_log(store, state),
                Err(error) => state = self.go_on_without_log(store, state, &error)?,
            }
        }
        let done = state.truncate(store, self.ino, size_bytes);
        state.note(done)
    }

    /// Sets the modification time of the next commit. Returns false if nothing waits to be committed.
    pub fn set_mtime(&self, mtime_ns: i64) -> bool {
        let mut state = self.state.lock();
        if state.changed {
            state.mtime_ns = mtime_ns;
            state.time_log();
        }
        state.changed
    }

    /// Commits what is left and drops the write session.
    fn close_session(&self, store: &Store) -> Result<(), Errno> {
        let (mut state, done) = self.acknowledge(store, self.state.lock());
        if !state.owes_commit {
            state.session = None;
        }
        self.meter.lock().ends();
        state.leave_to_spool(store, self.ino);
        done
    }

    /// Commits everything written so far as a version, as durable as the policy asks.
    ///
    /// # Errors
    /// Those of the commit; an earlier failed write is reported again.
    pub fn commit(&self, store: &Store) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.log.is_none() {
            return state.commit(store, self.ino);
        }
        drop(state);
        self.in_turn(store, |state, _| state.commit(store, self.ino)).1
    }
}

impl State {
    /// On an error, records it in `failed` and drops the session.
    fn note<T>(&mut self, result: Result<T, Errno>) -> Result<T, Errno> {
        if let Err(errno) = &result {
            self.failed = Some(*errno);
            self.session = None;
        }
        result
    }

    /// Whether these bytes come next in the session's stream and none of them overlaps the buffer.
    fn continues(&self, offset: u64, end: u64) -> bool {
        self.session.as_ref().is_some_and(|s| s.position == offset) && !self.buffer.overlaps(offset, end)
    }

    /// Hands over bytes that continue the stream without copying them, then the buffered bytes that follow.
    fn stream(&mut self, store: &Store, ino: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.hand_over(store, ino, offset, bytes)?;
        while let Some((at, piece)) =
            self.session.as_ref().map(|s| s.position).and_then(|at| Some((at, self.buffer.take_at(at)?)))
        {
            self.hand_over(store, ino, at, &piece)?;
        }
        Ok(())
    }

    /// Hands over buffered bytes while [`STREAM_FROM_BYTES`] or more wait; with `all`, every byte. Bytes that continue
    /// the stream go first.
    fn feed(&mut self, store: &Store, ino: u64, all: bool) -> Result<(), Errno> {
        while all || self.buffer.len_bytes() >= STREAM_FROM_BYTES {
            let follows = self.session.as_ref().map(|s| s.position).and_then(|at| Some((at, self.buffer.take_at(at)?)));
            // The kernel writes the pages of one flush in any order. A session that replaces must begin with byte 0: to
            // go back it would have to commit, and other clients would see the part.
            let begins = self.session.is_none() && (!self.replaced || self.buffer.first() == Some(0));
            let jumps = all || begins || self.buffer.len_bytes() > HOLD_BYTES;
            let next = match follows {
                None if jumps => self.buffer.pop_first(),
                follows => follows,
            };
            let Some((offset, bytes)) = next else { return Ok(()) };
            self.hand_over(store, ino, offset, &bytes)?;
        }
        Ok(())
    }

    fn hand_over(&mut self, store: &Store, ino: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let goes_back = self.session.as_ref().is_some_and(|s| !s.patches && offset < s.position);
        if goes_back {
            self.sync_session(store, ino)?;
        }
        let session = self.session(store, ino)?;
        session.handle.write_at(offset, bytes).map_err(|e| failed("write", ino, e.code(), &e))?;
        session.position = offset + bytes.len() as u64;
        let hull = session.uncommitted.get_or_insert(offset..offset);
        *hull = hull.start.min(offset)..hull.end.max(session.position);
        // Set here, because the commit above may have cleared it.
        self.changed = true;
        Ok(())
    }

    /// The write session; opens one if there is none.
    fn session(&mut self, store: &Store, ino: u64) -> Result<&mut Session, Errno> {
        match self.session {
            Some(ref mut session) => Ok(session),
            None => self.open_session(store, ino, None),
        }
    }

    /// Opens a session; with `if_version` it commits only over that version.
    fn open_session(&mut self, store: &Store, ino: u64, if_version: Option<u64>) -> Result<&mut Session, Errno> {
        let (patches, inodes) = (!self.replaced, store.client.inodes());
        store.settle(ino)?;
        let opened = match if_version {
            Some(version) => inodes.open_write_if(ino, patches, version),
            None => inodes.open_write(ino, patches),
        };
        let handle = opened.map_err(|e| failed("open for writing", ino, e.code(), &e))?;
        let handle = self.staged(store, ino, handle)?;
        Ok(self.session.insert(Session { handle, position: 0, uncommitted: None, patches }))
    }

    /// Commits the session's content and keeps the session.
    fn sync_session(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        if self.mtime_ns != 0 {
            session.handle.set_mtime(self.mtime_ns);
        }
        let stamp = store.namespace.with(Namespace::stamp);
        let done = session.handle.sync().map_err(|e| failed("commit", ino, e.code(), &e))?;
        session.patches = true;
        session.uncommitted = None;
        self.committed(store, ino, &done, Some(stamp))
    }

    fn truncate(&mut self, store: &Store, ino: u64, size_bytes: u64) -> Result<(), Errno> {
        if size_bytes == self.size_bytes {
            return Ok(());
        }
        let shrinks = size_bytes < self.size_bytes;
        self.buffer.remove(size_bytes, u64::MAX);
        if size_bytes == 0 {
            // Uncommitted bytes in the session are abandoned with it.
            self.session = None;
            self.replaced = true;
            self.cut = false;
        } else if shrinks && !(self.replaced && self.session.is_none()) {
            if self.session.as_ref().is_some_and(|s| s.uncommitted.is_some() || !s.patches) {
                self.sync_session(store, ino)?;
            }
            self.cut = true;
        } else if self.cut {
            self.commit(store, ino)?;
        }
        self.size_bytes = size_bytes;
        self.changed = true;
        Ok(())
    }

    fn commit(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        if let Some(errno) = self.failed {
            return Err(errno);
        }
        if self.changed {
            if store.client.locks().are_lost(ino) {
                tracing::error!(ino, "what was written under a lock that was lost is not committed");
                return self.note(Err(Errno::EIO));
            }
            let done = store.namespace.check(ino).and_then(|()| self.commit_changes(store, ino));
            if done.is_err() && self.take_log_back() {
                return done;
            }
            return self.note(done);
        }
        store.settle(ino)
    }

    fn commit_changes(&mut self, store: &Store, ino: u64) -> Result<(), Errno> {
        self.pour_log(store, ino)?;
        if let Some(bytes) = self.whole() {
            // The cached policy may be outdated: the manager rejects a wrong one, and the client then asks for the
            // current one.
            let policy = store.namespace.attr(ino).or_else(|| self.made.clone()).and_then(|known| known.policy());
            let bytes = Bytes::from(bytes);
            let stamp = store.namespace.with(Namespace::stamp);
            let (done, stamp) = match store.namespace.first_commit(&store.client, ino, self.mtime_ns, &bytes) {
                Some(done) => (done, None),
                None => (store.client.inodes().write_whole(ino, bytes, policy, self.mtime_ns), Some(stamp)),
            };
            let done = done.map_err(|e| {
                let errno = failed("commit", ino, e.code(), &e);
                store.namespace.check(ino).err().unwrap_or(errno)
            })?;
            return self.committed(store, ino, &done, stamp);
        }
        let size_bytes = self.size_bytes;
        if self.cut {
            let session = self.session(store, ino)?;
            session.handle.set_len(size_bytes).map_err(|e| failed("truncate", ino, e.code(), &e))?;
        }
        self.feed(store, ino, true)?;
        let session = self.session(store, ino)?;
        if session.handle.len_bytes() < size_bytes {
            session.handle.skip_to(size_bytes).map_err(|e| failed("extend", ino, e.code(), &e))?;
            session.position = size_bytes;
        }
        self.cut = false;
        self.sync_session(store, ino)
    }

    /// The whole content, if all of it is in the buffer and no session was opened.
    fn whole(&mut self) -> Option<Vec<u8>> {
        match (&self.session, self.size_bytes) {
            (Some(_), _) => None,
            (None, _) if self.cut => None,
            (None, 0) => Some(Vec::new()),
            (None, size) => self.buffer.take_whole(size),
        }
    }

    /// Updates the state after a commit. `stamp`: the request's, unless the namespace already has the answer.
    fn committed(&mut self, store: &Store, ino: u64, done: &WriteDone, stamp: Option<Stamp>) -> Result<(), Errno> {
        self.changed = !self.buffer.is_empty() || self.cut;
        self.version = done.version;
        let attr = done.entry.as_ref().and_then(|entry| entry.attr.as_ref());
        self.content = attr.filter(|attr| attr.version == done.version).map_or(0, |attr| attr.content);
        self.made = None;
        self.mtime_ns = 0;
        self.replaced = false;
        match (stamp, &done.entry) {
            (Some(stamp), Some(entry)) => store.namespace.with(|core, _| core.changed_here(stamp, entry)),
            (Some(_), None) => store.namespace.with(|core, _| core.forget(&[ino])),
            (None, _) => {}
        }
        store.kernel.lock().holds(ino, done.version, self.size_bytes);
        self.is_committed(store, ino);
        // Only sessions keep a file without a name: open the new one before dropping the old.
        self.base = if self.unlinked { Some(open_base(store, ino)?) } else { None };
        Ok(())
    }
}

fn open_base(store: &Store, ino: u64) -> Result<Arc<ReadHandle>, Errno> {
    store.settle(ino)?;
    let opened = store.client.inodes().open_read(ino, 0, 0..FIRST_EXTENTS_BYTES);
    Ok(Arc::new(opened.map_err(|e| failed("open", ino, e.code(), &e))?))
}

/// Reads up to `len` bytes of a version at `offset`; fewer at its end.
///
/// # Errors
/// As the read; logged.
pub fn read_version(version: &ReadHandle, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; version.len_bytes().saturating_sub(offset).min(len as u64) as usize];
    read_base(version, offset, &mut out)?;
    Ok(out)
}

fn read_base(base: &ReadHandle, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
    let there = base.len_bytes().saturating_sub(offset).min(out.len() as u64) as usize;
    let ino = base.opened().attr.ino;
    base.read_at(offset, &mut out[..there]).map_err(|e| failed("read", ino, e.code(), &e))?;
    Ok(())
}

fn failed(what: &str, ino: u64, code: tessera_wire::Code, error: &dyn std::fmt::Display) -> Errno {
    tracing::warn!(what, ino, %error, "failed");
    attr::errno(code)
}
