//! Open files: the bytes that this mount has written and not committed, and the version below them.
//!
//! All handles of an inode share one [`OpenFile`], so programs on one mount see each other's writes at once. Other
//! mounts see them after a commit: at fsync, and when a handle that wrote is closed (close-to-open). Bytes wait in
//! a write buffer until there are enough to cut into chunks, then stream into a write session. A read of bytes that
//! are in the session but in no version commits first.
//!
//! A file whose `write-mode` asks for it has a log in the spool instead of buffer and session ([`spooled`]).

mod ahead;
mod below;
mod committing;
mod pending;
mod pushing;
mod recent;
mod session;
mod spooled;
mod table;
mod uncut;

pub use ahead::ContentsAhead;
pub use recent::RecentReaders;
pub use spooled::open_version;
pub use table::{Files, IsClosed, RELEASE_WITHIN, REMOVAL_WITHIN, Removal};

use crate::backend::{Backend, Reader};
use crate::errno::{Errno, Outcome, failed};
use crate::mount::Mount;
use crate::namespace::EntryAttr;
use below::{Below, open_base, open_to_read};
use bytes::Bytes;
use futures_util::lock::{Mutex, MutexGuard};
use pending::{NextLength, Pending};
use spooled::AfterPush;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tessera_client::Times;
use tessera_failpoint as failpoint;
use tessera_policy::WriteMode;
use tessera_wire::Attr;
use uncut::Uncut;

/// Bytes that wait before a write session is opened. Smaller files are committed in one request.
const STREAM_FROM_BYTES: usize = 4 << 20;
/// Limit of the bytes that wait for the gap before them to be filled.
const HOLD_BYTES: usize = 32 << 20;
/// Bytes of the file whose extents a read fetches when it opens a version.
const FIRST_EXTENTS_BYTES: u64 = 64 << 20;

/// What an open of a file finds.
pub struct Current {
    /// The version below the changes made here.
    pub version: u64,
    /// Length as this mount shows it.
    pub size_bytes: u64,
    /// It is the length of changes that are in no version.
    pub uncommitted: bool,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte.
    Offset(u64),
    /// At the end, wherever that is.
    End,
    /// At this byte: the kernel writes back a page, and holds it until it is written.
    Page(u64),
}

/// One file and its unwritten state. See the module.
pub struct OpenFile<B: Backend> {
    pub ino: u64,
    /// Held while the spool's content of this file is brought into the store. Taken before `state`.
    pub turn: Mutex<()>,
    /// Held while a log takes a write or a length, and while it must take none. Taken before `state`, and after `turn`.
    writes: Mutex<()>,
    meter: parking_lot::Mutex<spooled::Meter>,
    /// Held while the kernel drops its pages around an old end.
    dropping: Mutex<()>,
    /// The kernel has read into its pages since the file was opened. A program may change them through a map.
    fills_pages: AtomicBool,
    /// How often its mode may have changed.
    mode_changes: AtomicU64,
    /// As many of these were over when the mode was asked for last, and no bit of it gave privileges; [`u64::MAX`]: never.
    unprivileged_since: AtomicU64,
    state: Mutex<State<B>>,
}

struct State<B: Backend> {
    ino: u64,
    /// Length as this mount shows it.
    size_bytes: u64,
    /// That is known: not before the first open has asked for it.
    has_length: bool,
    /// The least length that another mount has made greater since the kernel dropped its pages from there on.
    old_end: Option<u64>,
    /// The last version that this mount opened or committed.
    version: u64,
    /// Number of that version within the file; 0: none, or unknown.
    number: u64,
    /// The store's name of that version's content; 0: unknown.
    content: u64,
    /// The version below the written bytes; opened at the first read.
    base: Option<Arc<B::Reader>>,
    /// A version that this mount made, or read as a whole.
    known: Option<Known>,
    /// Which of the bytes of the version below belong to the file.
    below: Below,
    /// What was behind the end, until the kernel knows that it was cut off.
    uncut: Option<Uncut<B::Reader>>,
    /// The file lost its last name on this mount: only sessions keep it.
    unlinked: bool,
    /// How this file is written.
    mode: WriteMode,
    /// `close` may return before everything is durable.
    optimistic: bool,
    /// Times to commit.
    times: Times,
    /// Attributes from the create; none once there is a version.
    created: Option<EntryAttr>,
    /// Another mount's version replaced what was written here, and the kernel does not know yet: that version and its
    /// length.
    replacement: Option<(u64, u64)>,
    /// What is in no version yet.
    pending: Pending<B::Writer>,
}

/// A version in memory.
struct Known {
    version: u64,
    bytes: Bytes,
    /// The file's attributes with it, if they are known.
    attr: Option<Attr>,
}

impl<B: Backend> State<B> {
    /// The content changes now; with its write-back cache the kernel says when it changed.
    fn date_change(&mut self, mount: &Mount<B>) {
        if !mount.kernel.lock().has_write_back() {
            self.times = spooled::now(&*mount.backend);
        }
    }

    /// As [`State::date_change`] if anything is in no version yet; returns whether it is.
    fn date_unsaved(&mut self, mount: &Mount<B>) -> bool {
        let is_unsaved = self.pending.is_unsaved();
        if is_unsaved {
            self.date_change(mount);
        }
        is_unsaved
    }

    /// A file whose length the first open will find out.
    fn unread(ino: u64) -> State<B> {
        State { has_length: false, ..State::new(ino, 0) }
    }

    fn new(ino: u64, size_bytes: u64) -> State<B> {
        State {
            ino,
            size_bytes,
            has_length: true,
            old_end: None,
            version: 0,
            number: 0,
            content: 0,
            base: None,
            known: None,
            below: Below::of(size_bytes),
            uncut: None,
            unlinked: false,
            mode: WriteMode::SlidingWindow,
            optimistic: false,
            times: Times::default(),
            created: None,
            replacement: None,
            pending: Pending::clean(),
        }
    }
}

impl<B: Backend> OpenFile<B> {
    /// Length as this mount shows it, and whether something waits to be committed. `None`: its first open has not found out
    /// its length yet, or has failed.
    pub async fn size(&self) -> Option<(u64, bool)> {
        let state = self.state.lock().await;
        state.has_length.then(|| (state.size_bytes, state.pending.is_unsaved()))
    }

    /// Opens the current version, as an open does, unless uncommitted changes wait. `writes`: a handle that writes.
    ///
    /// # Errors
    /// As the open of a version.
    pub async fn refresh(&self, mount: &Mount<B>, writes: bool) -> Outcome<Current> {
        let mut state = self.state.lock().await;
        let uncommitted = state.pending.is_unsaved();
        if !uncommitted {
            let must_keep = writes || state.needs_session(mount) || mount.files.has_writers(self.ino);
            let base = if must_keep { open_base(mount, self.ino).await } else { open_to_read(mount, self.ino).await };
            state.take_over(mount, base?);
        }
        // A commit here drops the base; what it made is below the changes then.
        let version = state.base.as_ref().map_or(state.version, |base| base.opened().version.version);
        Ok(Current { version, size_bytes: state.size_bytes, uncommitted })
    }

    /// To be called after what may bring another mount's length, and at the latest before the reply that tells the kernel of it: has
    /// the kernel drop the pages around an end that another mount has moved. They were read with the old length, and the kernel has
    /// zeros behind that. It takes over a greater length before it drops them itself, so programs that have the file open would read
    /// the zeros. It takes the length over from a request that it makes later.
    ///
    /// Without the write-back cache only: with it the kernel keeps its own length.
    pub async fn drop_old_end(&self, mount: &Mount<B>) {
        if mount.kernel.lock().has_write_back() {
            return;
        }
        let _dropping = self.dropping.lock().await;
        let old_end = self.state.lock().await.old_end.take();
        if let Some(from_bytes) = old_end
            && !mount.drop_pages_of(self.ino, from_bytes..u64::MAX).await
        {
            let mut state = self.state.lock().await;
            state.note_old_end(from_bytes);
        }
    }

    /// Whether [`OpenFile::drop_old_end`] has pages dropped.
    pub async fn has_old_end(&self, mount: &Mount<B>) -> bool {
        if mount.kernel.lock().has_write_back() {
            return false;
        }
        let _dropping = self.dropping.lock().await;
        self.state.lock().await.old_end.is_some()
    }

    /// Whether it is known that no bit of the file's mode gives privileges. Another mount may set one while it is open.
    pub fn is_unprivileged(&self) -> bool {
        self.unprivileged_since.load(Ordering::SeqCst) == self.mode_changes()
    }

    /// No bit of the mode gave privileges. It was asked for after this number of [`OpenFile::mode_changes`].
    pub fn set_unprivileged(&self, mode_changes: u64) {
        self.unprivileged_since.store(mode_changes, Ordering::SeqCst);
    }

    /// How often the mode may have changed.
    pub fn mode_changes(&self) -> u64 {
        self.mode_changes.load(Ordering::SeqCst)
    }

    /// The mode may have changed.
    pub fn mode_may_change(&self) {
        self.mode_changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Sets the attributes from the create: this mount created the file just now. None: they changed since.
    pub async fn set_created(&self, entry: Option<EntryAttr>) {
        self.state.lock().await.created = entry;
    }

    /// The file's hints changed: what is written next follows them.
    pub async fn hints_changed(&self) {
        let mut state = self.state.lock().await;
        state.created = None;
        if let Some(session) = state.pending.session_mut() {
            session.is_outdated = true;
        }
    }

    /// Attributes from the create, if this mount created the file and it has no version yet.
    pub async fn created(&self) -> Option<EntryAttr> {
        self.state.lock().await.created.clone()
    }

    /// Makes sure that a read session keeps the file when its last name is removed.
    ///
    /// # Errors
    /// As the open of a version.
    pub async fn pin(&self, mount: &Mount<B>) -> Outcome {
        let mut state = self.state.lock().await;
        state.base(mount).await?;
        state.keep_base(mount).await
    }

    /// The file's attributes when its version was opened, if that is in memory: the store need not have the file any more.
    pub async fn kept_attr(&self) -> Option<Attr> {
        let state = self.state.lock().await;
        let of_base = state.base.as_ref().filter(|base| base.is_in_memory()).map(|base| base.opened().attr.clone());
        let of_known = || state.known.as_ref().filter(|known| known.version == state.version)?.attr.clone();
        Some(Attr { nlink: 0, ..of_base.or_else(of_known)? })
    }

    /// The last name may be gone: from now on the file always has a session that keeps it.
    pub async fn set_unlinked(&self) {
        self.state.lock().await.unlinked = true;
    }

    /// The kernel reads into its pages. To be called before the look at the bytes: who writes later sees it.
    pub fn page_is_filled(&self) {
        self.fills_pages.store(true, Ordering::SeqCst);
    }

    /// Whether the kernel may have pages that programs have changed through a map, where handles for writing bypass its pages: a map of such a
    /// handle begins without pages, and the kernel reads each before a program changes it.
    pub fn may_be_mapped(&self) -> bool {
        self.fills_pages.load(Ordering::SeqCst)
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file. `fills_pages`: for the kernel's pages, by a handle that
    /// was opened at that time.
    ///
    /// # Errors
    /// Those of the read, and of the commit that it may need first. If bytes are lost that were written here, the error with which
    /// they were: what is below them is not what the file had.
    pub async fn read(&self, mount: &Mount<B>, offset: u64, len: usize, fills_pages: Option<i64>) -> Outcome<Vec<u8>> {
        let mut state = self.state.lock().await;
        state.pending.check()?;
        let end = offset.saturating_add(len as u64);
        let known = state.begin_read(mount, offset..end).await?;
        let before = fills_pages.map_or_else(Vec::new, |opened_ns| state.uncut(mount, end, opened_ns));
        let mut read = self.read_now(state, mount, (offset..end, known)).await?;
        uncut::read_behind(&before, offset..end, &mut read).await?;
        Ok(read)
    }

    /// Reads the file as it is, after [`State::begin_read`], which has returned `known`.
    async fn read_now(
        &self,
        mut state: MutexGuard<'_, State<B>>,
        mount: &Mount<B>,
        (wanted, known): (Range<u64>, Option<Bytes>),
    ) -> Outcome<Vec<u8>> {
        let (offset, end) = (wanted.start, wanted.end.min(state.size_bytes));
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut out = vec![0; (end - offset) as usize];
        if state.pending.log().is_some() {
            spooled::read(state, mount, offset, &mut out).await?;
            return Ok(out);
        }
        if state.below != Below::Kept {
            state.overlay(offset, &mut out);
            return Ok(out);
        }
        if let Some(known) = known {
            let there = known.get(offset as usize..).unwrap_or_default();
            let count = there.len().min(out.len());
            out[..count].copy_from_slice(&there[..count]);
            state.overlay(offset, &mut out);
            return Ok(out);
        }
        let version = state.version;
        let base = state.base(mount).await?;
        if base.opened().version.version != version && failpoint::is_active("mount.replaced_reads_zeros") {
            mount.kernel.lock().has_older_pages(self.ino);
            return Ok(out);
        }
        if state.pending.written().is_none_or(|written| written.buffer.is_empty()) {
            drop(state);
            read_base(&*base, offset, &mut out).await?;
        } else {
            read_base(&*base, offset, &mut out).await?;
            state.overlay(offset, &mut out);
        }
        Ok(out)
    }

    /// Writes, and returns where. What the kernel read meanwhile through other handles, or through maps, is dropped.
    ///
    /// # Errors
    /// Those of the session or of the log; an earlier failure is returned again.
    pub async fn write(&self, mount: &Mount<B>, at: WriteAt, bytes: &[u8]) -> Outcome<u64> {
        let offset = self.write_bytes(mount, at, bytes).await?;
        let is_page = matches!(at, WriteAt::Page(_));
        if !is_page && mount.bypasses_pages() {
            // The kernel makes the file longer when it gets the answer.
            self.drop_old_end(mount).await;
            let has_pages = self.fills_pages.load(Ordering::SeqCst) || mount.files.has_fillers(self.ino);
            if has_pages && !mount.drop_pages_of(self.ino, offset..offset + bytes.len() as u64).await {
                mount.kernel.lock().holds_uncommitted(self.ino);
            }
        }
        Ok(offset)
    }

    async fn write_bytes(&self, mount: &Mount<B>, at: WriteAt, bytes: &[u8]) -> Outcome<u64> {
        let writes = self.writes.lock().await;
        let mut state = self.state.lock().await;
        state.pending.check()?;
        self.meter.lock().wrote(bytes.len());
        state.before_write(mount, at).await;
        let (offset, placed) = state.place(mount, at, bytes);
        if placed.is_empty() && !bytes.is_empty() {
            return Ok(offset);
        }
        if state.begin_log(mount).await {
            let (offset, bytes) = state.place(mount, at, bytes);
            match state.change_log(mount, |log| log.write(offset, bytes)) {
                Ok(()) => return Ok(offset),
                Err(error) => state = self.go_on_without_log(mount, (writes, state), &error).await?,
            }
        }
        let (offset, placed) = state.place(mount, at, bytes);
        if state.must_commit_before(offset, offset + placed.len() as u64) {
            state.commit(mount).await?;
        }
        // A commit brings what another mount has appended or cut off.
        let (offset, bytes) = state.place(mount, at, bytes);
        if bytes.is_empty() {
            return Ok(offset);
        }
        let end = offset + bytes.len() as u64;
        state.date_change(mount);
        state.size_bytes = state.size_bytes.max(end);
        let done = match state.continues(offset, end) {
            true => state.stream(mount, offset, bytes).await,
            false => {
                state.pending.write().buffer.write(offset, bytes);
                state.feed(mount, false).await
            }
        };
        // A commit on the way took the times.
        state.date_unsaved(mount);
        state.note(done.map(|()| offset))
    }

    /// Sets the length. Returns false if there is nothing to commit: the file is as long already.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub async fn truncate(&self, mount: &Mount<B>, size_bytes: u64) -> Outcome<bool> {
        let writes = self.writes.lock().await;
        let mut state = self.state.lock().await;
        state.before_cut(mount, size_bytes).await;
        let is_new = size_bytes != state.size_bytes;
        if (is_new || state.pending.log().is_some()) && state.begin_log(mount).await {
            match state.change_log(mount, |log| log.set_len(size_bytes)) {
                Ok(()) => return Ok(true),
                Err(error) => state = self.go_on_without_log(mount, (writes, state), &error).await?,
            }
        }
        let done = state.truncate(mount, size_bytes).await;
        let changed = state.date_unsaved(mount);
        state.note(done).map(|()| changed)
    }

    /// Makes the file at least so long. Unlike [`OpenFile::truncate`], keeps what another mount wrote behind that.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub async fn extend(&self, mount: &Mount<B>, size_bytes: u64) -> Outcome {
        let writes = self.writes.lock().await;
        let mut state = self.state.lock().await;
        if size_bytes <= state.size_bytes {
            return Ok(());
        }
        if state.begin_log(mount).await {
            match state.change_log(mount, |log| log.extend(size_bytes)) {
                Ok(()) => return Ok(()),
                Err(error) => state = self.go_on_without_log(mount, (writes, state), &error).await?,
            }
        }
        let done = state.extend(mount, size_bytes).await;
        state.date_unsaved(mount);
        state.note(done)
    }

    /// Sets times of the next commit; those that are 0 stay. Returns false if nothing waits to be committed.
    pub async fn set_times(&self, times: Times) -> bool {
        let mut state = self.state.lock().await;
        let is_unsaved = state.pending.is_unsaved();
        if is_unsaved {
            state.times = times.or(state.times);
            state.time_log();
        }
        is_unsaved
    }

    /// Commits what is left and drops the write session.
    async fn close_session(&self, mount: &Mount<B>) -> Outcome {
        let (mut state, done) = self.acknowledge(mount, self.state.lock().await).await;
        if !state.pending.is_draining() {
            state.pending.drop_session();
        }
        self.meter.lock().ends();
        if state.pending.check().is_err() {
            mount.forget_unstored(self.ino);
        }
        state.leave_to_spool(mount);
        state.forget_lost(mount).await;
        done
    }

    /// Commits everything written so far as a version, as durable as the policy asks.
    ///
    /// # Errors
    /// Those of the commit; an earlier failed write is reported again.
    pub async fn commit(&self, mount: &Mount<B>) -> Outcome {
        let mut state = self.state.lock().await;
        if state.pending.log().is_none() {
            return state.commit(mount).await;
        }
        drop(state);
        self.in_turn(mount, AfterPush::Commit).await.1
    }
}

impl<B: Backend> State<B> {
    /// The last program that wrote has closed the file, and was told of what is lost: the file is its newest version for those that
    /// keep it open. If that cannot be asked for, they get the error until the next time.
    async fn forget_lost(&mut self, mount: &Mount<B>) {
        if self.pending.check().is_ok() || self.pending.is_draining() || self.pending.log().is_some() {
            return;
        }
        if let Ok(base) = open_base(mount, self.ino).await {
            self.pending = Pending::clean();
            self.take_over(mount, base);
        }
    }

    /// Brings what is to be read where it can be read: returns the version below if it is in memory, else opens it. The file may have a
    /// length then that another mount has set.
    async fn begin_read(&mut self, mount: &Mount<B>, wanted: Range<u64>) -> Outcome<Option<Bytes>> {
        let wanted = wanted.start..wanted.end.min(self.size_bytes);
        if wanted.is_empty() {
            return Ok(None);
        }
        let under_way = |r: &Range<u64>| r.start < wanted.end && r.end > wanted.start;
        if self.pending.session().and_then(|s| s.uncommitted.as_ref()).is_some_and(under_way) {
            self.commit(mount).await?;
        }
        if self.pending.log().is_some() || self.below != Below::Kept {
            return Ok(None);
        }
        if let Some(known) = self.known_current(mount) {
            return Ok(Some(known));
        }
        match self.base(mount).await {
            // Another mount has removed the file, which no session keeps.
            Err(Errno::ENOENT) if self.known_below().is_some() => Ok(self.known_below()),
            opened => opened.map(|_| None),
        }
    }

    /// A page may have waited for long: another mount may have cut the file off meanwhile, and this one not asked since.
    async fn before_write(&mut self, mount: &Mount<B>, at: WriteAt) {
        let may_wait = matches!(at, WriteAt::Page(_)) && !mount.kernel.lock().has_write_back();
        if may_wait
            && self.pending.is_clean()
            && self.below != Below::Dropped
            && !self.needs_session(mount)
            && let Ok(base) = open_base(mount, self.ino).await
            && base.len_bytes() < self.size_bytes
        {
            self.take_over(mount, base);
        }
    }

    /// Where a write goes, and which of its bytes. A page makes no file longer: another mount has cut off what lies behind the end.
    fn place<'b>(&self, mount: &Mount<B>, at: WriteAt, bytes: &'b [u8]) -> (u64, &'b [u8]) {
        match at {
            WriteAt::Offset(offset) => (offset, bytes),
            WriteAt::End => (self.size_bytes, bytes),
            // With its write-back cache the kernel writes what programs have appended in pages, too.
            WriteAt::Page(offset) if mount.kernel.lock().has_write_back() => (offset, bytes),
            WriteAt::Page(offset) => {
                let kept_bytes = self.size_bytes.saturating_sub(offset).min(bytes.len() as u64);
                (offset, &bytes[..kept_bytes as usize])
            }
        }
    }

    /// On an error, the file fails.
    fn note<T>(&mut self, result: Outcome<T>) -> Outcome<T> {
        if let Err(errno) = &result {
            self.pending.fail(*errno);
        }
        result
    }

    /// Whether these bytes come next in the session's stream and none of them overlaps the buffer.
    fn continues(&self, offset: u64, end: u64) -> bool {
        let overlaps = self.pending.written().is_some_and(|written| written.buffer.overlaps(offset, end));
        self.pending.session().is_some_and(|session| session.position == offset) && !overlaps
    }

    /// Whether a version must have the file's length before these bytes are written behind it.
    fn must_commit_before(&self, offset: u64, end: u64) -> bool {
        match self.pending.length() {
            NextLength::AtLeast => false,
            // Nothing below a file that is replaced can show.
            NextLength::Exact => offset > self.size_bytes && self.below != Below::Dropped,
            NextLength::Cut => end > self.size_bytes,
        }
    }

    /// Copies the buffered bytes from `offset` on over `out`.
    fn overlay(&self, offset: u64, out: &mut [u8]) {
        if let Some(written) = self.pending.written() {
            written.buffer.overlay(offset, out);
        }
    }

    async fn truncate(&mut self, mount: &Mount<B>, size_bytes: u64) -> Outcome {
        if size_bytes == self.size_bytes && self.pending.is_clean() {
            // What is written from here on replaces what another mount may have written since this one looked.
            if size_bytes == 0 {
                self.pending.drop_session();
                self.below = Below::Dropped;
            }
            return Ok(());
        }
        let (shrinks, grows) = (size_bytes < self.size_bytes, size_bytes > self.size_bytes);
        let written = self.pending.write();
        written.buffer.remove(size_bytes, u64::MAX);
        written.grown_bytes = written.grown_bytes.min(size_bytes);
        if size_bytes == 0 {
            // Uncommitted bytes in the session are abandoned with it.
            (written.session, written.length) = (None, NextLength::AtLeast);
            self.below = Below::Dropped;
        } else if shrinks && !(self.below == Below::Dropped && written.session.is_none()) {
            if written.session.as_ref().is_some_and(|s| s.uncommitted.is_some() || !s.patches) {
                self.sync_session(mount).await?;
            }
            self.pending.write().length = NextLength::Cut;
        } else if grows {
            self.extend(mount, size_bytes).await?;
        }
        let written = self.pending.write();
        written.length = written.length.max(NextLength::Exact);
        self.size_bytes = size_bytes;
        Ok(())
    }

    async fn extend(&mut self, mount: &Mount<B>, size_bytes: u64) -> Outcome {
        if self.must_commit_before(size_bytes, size_bytes) {
            self.commit(mount).await?;
        }
        let written = self.pending.write();
        written.grown_bytes = written.grown_bytes.max(size_bytes);
        self.size_bytes = self.size_bytes.max(size_bytes);
        Ok(())
    }
}

/// Reads up to `len` bytes of a version at `offset`; fewer at its end.
///
/// # Errors
/// As the read; logged.
pub async fn read_version<R: Reader>(version: &R, offset: u64, len: usize) -> Outcome<Vec<u8>> {
    let mut out = vec![0; version.len_bytes().saturating_sub(offset).min(len as u64) as usize];
    read_base(version, offset, &mut out).await?;
    Ok(out)
}

async fn read_base<R: Reader>(base: &R, offset: u64, out: &mut [u8]) -> Outcome {
    let there = base.len_bytes().saturating_sub(offset).min(out.len() as u64) as usize;
    let ino = base.opened().attr.ino;
    base.read_at(offset, &mut out[..there]).await.map_err(|e| failed("read", ino, e.code(), &e))?;
    Ok(())
}
