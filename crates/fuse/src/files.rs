//! Open files: what this mount has written and not committed yet, and the version under it.
//!
//! All handles of an inode share one [`OpenFile`], so programs on one mount see each other's writes at once. Other mounts
//! see them when they are committed: at fsync, and when a handle that wrote is closed (close-to-open). Bytes wait in
//! [`WriteBuffer`] until there are enough to be cut, then stream into a write session. A read of bytes that are in the
//! session but in no version yet commits first.
//!
//! A file whose `write-mode` asks for it has a log in the spool instead of buffer and a session ([`local`]).

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

/// Bytes that wait before a write session is opened: smaller files are committed as a whole, in one go.
const STREAM_FROM_BYTES: usize = 4 << 20;
/// Bytes that may wait for the gap before them to be filled.
const HOLD_BYTES: usize = 32 << 20;
/// A read opens a version with the extents of this many bytes.
const FIRST_EXTENTS_BYTES: u64 = 64 << 20;

/// Open files by inode.
#[derive(Default)]
pub struct Files(Mutex<HashMap<u64, Slot>>);

struct Slot {
    file: Arc<OpenFile>,
    handles: usize,
    writers: usize,
}

/// See the module.
pub struct OpenFile {
    ino: u64,
    /// Held while what is in the spool is brought into the store; taken before `state`.
    turn: Mutex<()>,
    meter: Mutex<local::Meter>,
    state: Mutex<State>,
}

struct State {
    /// Length as it is seen here.
    size_bytes: u64,
    /// The version that was looked at, or made here, last.
    version: u64,
    /// What the store calls the content of that; 0: not known.
    content: u64,
    /// The version under what was written; opened when it is read.
    base: Option<Arc<ReadHandle>>,
    /// Nothing of the version under it is part of the file any more.
    replaced: bool,
    /// It has lost its last name here: sessions alone keep it.
    unlinked: bool,
    buffer: WriteBuffer,
    session: Option<Session>,
    /// Where what is written goes instead of those two.
    log: Option<Log>,
    /// A log whose content is in the session, until that is committed.
    poured: Option<Log>,
    /// How it is written.
    mode: WriteMode,
    /// `close` may return before all is durable.
    optimistic: bool,
    /// It was closed, and what is in the session is to be committed.
    owes_commit: bool,
    /// It was made shorter, and no version says so yet: nothing may go behind its end before one does, or what was cut off
    /// would show through.
    cut: bool,
    /// There is something to commit.
    changed: bool,
    /// Modification time to commit, ns since 1970; 0: when it happens.
    mtime_ns: i64,
    /// What it was made as, until there is a version.
    made: Option<EntryAttr>,
    /// Another mount's version stands instead of what was written here, and the kernel does not know: that version, and its length.
    gave_way: Option<(u64, u64)>,
    /// A write failed: what was acknowledged to the kernel is lost, and whoever asks hears of it.
    failed: Option<Errno>,
}

/// An open write session.
struct Session {
    handle: Box<dyn Writes>,
    /// Where the next byte of the stream goes.
    position: u64,
    /// Everything handed over since the last commit lies in here.
    uncommitted: Option<Range<u64>>,
    /// It patches; else it replaces and can only go forward.
    patches: bool,
}

impl Files {
    /// Whether somebody has the file open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// Whether somebody has it open for writing.
    pub fn has_writers(&self, ino: u64) -> bool {
        self.0.lock().get(&ino).is_some_and(|slot| slot.writers > 0)
    }

    /// Whether one handle alone has it open.
    pub fn is_open_once(&self, ino: u64) -> bool {
        self.0.lock().get(&ino).is_some_and(|slot| slot.handles == 1)
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Files that are open, and those of them with something that is in no version.
    pub fn figures(&self) -> (u64, u64) {
        let all: Vec<Arc<OpenFile>> = self.0.lock().values().map(|slot| slot.file.clone()).collect();
        (all.len() as u64, all.iter().filter(|file| file.size().1).count() as u64)
    }

    /// The open file, if somebody has it open.
    pub fn get(&self, ino: u64) -> Option<Arc<OpenFile>> {
        self.0.lock().get(&ino).map(|slot| slot.file.clone())
    }

    /// One more handle. `size_bytes`: the length it has if nobody has it open yet.
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

    /// One handle less. The last one, and the last that writes, commits what is left.
    pub fn release(&self, store: &Store, file: &OpenFile, writes: bool) {
        let leaves = |slot: &mut Slot| {
            slot.handles -= 1;
            slot.writers -= usize::from(writes);
            slot.handles == 0 || (writes && slot.writers == 0)
        };
        // Counted before it is committed: of two that leave at once, one is the last.
        if !self.0.lock().get_mut(&file.ino).is_some_and(leaves) {
            return;
        }
        // Who closed has heard of failures at flush. Whoever opens it meanwhile shares this file, and keeps it.
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

    /// One handle of the spool's: a file that waits in there stays open.
    fn hold(&self, ino: u64) {
        if let Some(slot) = self.0.lock().get_mut(&ino) {
            slot.handles += 1;
        }
    }

    /// That one goes.
    fn let_go(&self, ino: u64) {
        let mut files = self.0.lock();
        if let Some(slot) = files.get_mut(&ino) {
            slot.handles -= 1;
            if slot.handles == 0 {
                files.remove(&ino);
            }
        }
    }

    /// Commits everything that is open, and is not in the spool; how many failed.
    pub fn commit_all(&self, store: &Store) -> usize {
        self.unsafe_now().iter().filter(|file| file.commit(store).is_err()).count()
    }

    /// All that are open, and not safe in the spool.
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
    /// Length as it is seen here, and whether something waits to be committed.
    pub fn size(&self) -> (u64, bool) {
        let state = self.state.lock();
        (state.size_bytes, state.changed)
    }

    /// Looks at the version that is current now, as an open does, unless something written here waits; the version under
    /// it and its length.
    pub fn refresh(&self, store: &Store) -> Result<(u64, u64), Errno> {
        let mut state = self.state.lock();
        if !state.changed {
            let base = open_base(store, self.ino)?;
            if base.opened().version.version != state.version {
                // Somebody else changed it: the session would go on from what it was.
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

    /// It was made here just now.
    pub fn made(&self, known: EntryAttr) {
        self.state.lock().made = Some(known);
    }

    /// What it was made as, if that was here and there is no version yet.
    pub fn made_as(&self) -> Option<EntryAttr> {
        self.state.lock().made.clone()
    }

    /// Attributes were changed: what it was made as is past.
    pub fn forget_made(&self) {
        self.state.lock().made = None;
    }

    /// Keeps the file alive: its last name is about to go.
    pub fn pin(&self, store: &Store) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.base.is_none() {
            state.base = Some(open_base(store, self.ino)?);
        }
        Ok(())
    }

    /// Its last name may have gone: from now on there is always a session that keeps it.
    pub fn unlinked(&self) {
        self.state.lock().unlinked = true;
    }

    /// Reads at `offset`, as much as there is of `len`.
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

    /// Changes the length.
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

    /// Takes a modification time along with what waits to be committed; false if nothing does.
    pub fn set_mtime(&self, mtime_ns: i64) -> bool {
        let mut state = self.state.lock();
        if state.changed {
            state.mtime_ns = mtime_ns;
            state.time_log();
        }
        state.changed
    }

    /// Closes it, and gives the write session back.
    fn close_session(&self, store: &Store) -> Result<(), Errno> {
        let (mut state, done) = self.acknowledge(store, self.state.lock());
        if !state.owes_commit {
            state.session = None;
        }
        self.meter.lock().ends();
        state.leave_to_spool(store, self.ino);
        done
    }

    /// Makes everything written so far a version, durable as its policy says.
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
    /// Remembers a failure.
    fn note<T>(&mut self, result: Result<T, Errno>) -> Result<T, Errno> {
        if let Err(errno) = &result {
            self.failed = Some(*errno);
            self.session = None;
        }
        result
    }

    /// Whether these bytes come next in the open session's stream, and nothing of them waits in buffer.
    fn continues(&self, offset: u64, end: u64) -> bool {
        self.session.as_ref().is_some_and(|s| s.position == offset) && !self.buffer.overlaps(offset, end)
    }

    /// Hands over what continues the stream, without a copy of its own, and the buffer that come next.
    fn stream(&mut self, store: &Store, ino: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.hand_over(store, ino, offset, bytes)?;
        while let Some((at, piece)) =
            self.session.as_ref().map(|s| s.position).and_then(|at| Some((at, self.buffer.take_at(at)?)))
        {
            self.hand_over(store, ino, at, &piece)?;
        }
        Ok(())
    }

    /// Hands over what can be cut; `all` of it, in order, or what continues the stream.
    fn feed(&mut self, store: &Store, ino: u64, all: bool) -> Result<(), Errno> {
        while all || self.buffer.len_bytes() >= STREAM_FROM_BYTES {
            let follows = self.session.as_ref().map(|s| s.position).and_then(|at| Some((at, self.buffer.take_at(at)?)));
            // The kernel's writes of one flush come in any order. What replaces a file must begin with its first byte: going
            // back would commit what there is, for all to see.
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
        // Also if what came before has just been committed to make way.
        self.changed = true;
        Ok(())
    }

    /// The write session, opened if there is none.
    fn session(&mut self, store: &Store, ino: u64) -> Result<&mut Session, Errno> {
        match self.session {
            Some(ref mut session) => Ok(session),
            None => self.open_session(store, ino, None),
        }
    }

    /// A new one; with `if_version` it commits only over that.
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

    /// Commits what the session has, and keeps it.
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
            // What was handed over and is in no version is given up with the session.
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
            // An expectation: whoever is wrong about it has asked in vain, and asks again.
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

    /// The whole content, if it is all here and no session has been opened for it.
    fn whole(&mut self) -> Option<Vec<u8>> {
        match (&self.session, self.size_bytes) {
            (Some(_), _) => None,
            (None, _) if self.cut => None,
            (None, 0) => Some(Vec::new()),
            (None, size) => self.buffer.take_whole(size),
        }
    }

    /// A version was made; `stamp`: of the request, unless the namespace has the answer by now.
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
        // A file without a name lives by its sessions: the new one first.
        self.base = if self.unlinked { Some(open_base(store, ino)?) } else { None };
        Ok(())
    }
}

fn open_base(store: &Store, ino: u64) -> Result<Arc<ReadHandle>, Errno> {
    store.settle(ino)?;
    let opened = store.client.inodes().open_read(ino, 0, 0..FIRST_EXTENTS_BYTES);
    Ok(Arc::new(opened.map_err(|e| failed("open", ino, e.code(), &e))?))
}

/// Reads at `offset` of a version, as much as there is of `len`.
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
