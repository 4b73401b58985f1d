//! Brings logs into the store: in the background after a close, and at unmount.
//!
//! A log is pushed only over the version it was written over. If another client has committed a version meanwhile, that
//! version stays, and the log's content is kept beside it under another name. A failed push is retried until the mount
//! ends; the log then stays for the next mount.

use super::log::LogError;
use super::logfile::View;
use super::replay::LogOrigin;
use crate::backend::{Backend, Reader, Writer, new_node};
use crate::mount::{Mount, Queue};
use crate::open_file::OpenFile;
use crate::synthetic::STORE_ROOT;
use futures_util::lock::MutexGuard;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_client::{FileError, Owner, WriteDone};
use tessera_failpoint as failpoint;
use tessera_wire::meta::RESTORE_JUMP;
use tessera_wire::{Attr, Code, InodeKind};
use thiserror::Error;

/// Number of tasks that push at the same time.
pub const TASKS: usize = 2;
/// Bytes handled at once.
const STEP_BYTES: u64 = 1 << 20;
/// First wait before a retry; it doubles with each failure.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Time between two log lines about the progress of unmounting.
const REPORT_EVERY_NS: i64 = 5_000_000_000;

/// Why a log is not in the store.
#[derive(Debug, Error)]
pub enum PushError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store rejects the write, or the version below cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store does not answer.
    #[error("{0}")]
    Store(#[from] tessera_wire::Error),
}

impl PushError {
    /// The error's code.
    pub fn code(&self) -> Code {
        match self {
            PushError::Log(_) => Code::Internal,
            PushError::File(error) => error.code(),
            PushError::Store(error) => error.code(),
        }
    }
}

/// The result of a push, or of a part of it.
pub type Pushed<T = ()> = Result<T, PushError>;

/// Pushes the queued files until the mount is gone.
pub async fn work<B: Backend>(mount: Weak<Mount<B>>, queue: Queue) {
    let mut pause = RETRY;
    while let Some(ino) = queue.next().await {
        let Some(mount) = mount.upgrade() else { return };
        let (Some(spool), Some(file)) = (&mount.spool, mount.files.get(ino)) else { continue };
        if spool.is_stopping() {
            return;
        }
        match push(&mount, &file).await {
            Ok(()) => pause = RETRY,
            Err(error) => {
                spool.counts.lock().retries += 1;
                tracing::warn!(ino, %error, "a file stays in the spool, and is pushed later");
                mount.backend.sleep(pause).await;
                pause = (pause * 2).min(LONGEST_RETRY);
                spool.push(ino);
            }
        }
    }
}

impl<B: Backend> Mount<B> {
    /// Pushes every waiting file once, and stops the tasks that push. Returns how many stay in the spool.
    pub async fn push_all(&self) -> usize {
        let Some(spool) = &self.spool else { return 0 };
        let waiting = self.files.spooled().await;
        let (all, mut failed, mut said_ns) = (waiting.len(), 0, self.backend.now_ns());
        if all > 0 {
            tracing::info!(files = all, bytes = spool.budget.used_bytes(), "pushing what waits in the spool");
        }
        for (done, file) in waiting.iter().enumerate() {
            if self.backend.now_ns() > said_ns + REPORT_EVERY_NS {
                said_ns = self.backend.now_ns();
                tracing::info!(done, all, left_bytes = spool.budget.used_bytes(), "pushing what waits in the spool");
            }
            if let Err(error) = push(self, file).await {
                failed += 1;
                tracing::error!(ino = file.ino, %error, "a file stays in the spool; the next mount with it pushes it");
                if error.code().is_retryable() {
                    // The manager does not answer: each remaining push would wait just as long.
                    failed = all - done;
                    break;
                }
            }
        }
        spool.stop();
        failed
    }
}

/// Pushes the state of the file at its last close.
///
/// # Errors
/// [`PushError`]; the push can be retried.
pub async fn push<B: Backend>(mount: &Mount<B>, file: &OpenFile<B>) -> Pushed {
    let done = {
        let _turn = file.turn.lock().await;
        file.finish_staged(mount).await;
        push_closed(mount, file).await.map(drop)
    };
    // After the turn is released: an fsync may wait for the turn, the kernel for that fsync, and this call waits for
    // the kernel.
    file.show_replacement(mount).await;
    done
}

/// Prepares a commit by a caller that holds the turn: pushes the state that was acknowledged earlier, so that this
/// state does not overwrite another client's commit. If another client's version now stands instead, returns true.
/// Programs that have the file open then see that version when they open it again: the kernel waits for this call, so
/// it cannot be told.
///
/// # Errors
/// As [`push`].
pub async fn push_acknowledged<B: Backend>(mount: &Mount<B>, file: &OpenFile<B>) -> Pushed<bool> {
    let mut writes = push_closed(mount, file).await?;
    while let Some(view) = file.owed_view().await {
        let attr = mount.backend.get(file.ino).await?.attr.unwrap_or_default();
        if attr.version == view.origin.base_version {
            break;
        }
        if !other_version(mount, file, &view, &attr).await? && writes.is_none() {
            writes = Some(file.hold_writes().await);
        }
    }
    Ok(file.forget_replacement().await)
}

/// Returns what keeps programs from writing, if they have written while a conflict file was made: it may need one more, which then has
/// everything. There might be another one after each write else.
async fn push_closed<'a, B: Backend>(mount: &Mount<B>, file: &'a OpenFile<B>) -> Pushed<Option<MutexGuard<'a, ()>>> {
    let mut writes = None;
    while let Some(view) = file.closed_view().await {
        match push_view(mount, file, &view).await {
            Ok(false) if writes.is_none() => writes = Some(file.hold_writes().await),
            Ok(_) => {}
            Err(PushError::Log(error)) => file.spool_is_lost(mount, &error).await,
            Err(error) if error.code() == Code::NotFound && is_gone(mount, file.ino).await => {
                if !was_restored(mount, &view.origin).await? {
                    file.spool_is_gone(mount, &view).await;
                } else if !keep_lost(mount, file, &view).await? && writes.is_none() {
                    writes = Some(file.hold_writes().await);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(writes)
}

/// Whether the file itself is gone. `NotFound` may also mean that a version or a name went away during the push.
async fn is_gone<B: Backend>(mount: &Mount<B>, ino: u64) -> bool {
    matches!(mount.backend.get(ino).await, Err(error) if error.code() == Code::NotFound)
}

/// Whether the group of managers was restored since the log began, or before it and since its mount began. Then it may never have known
/// the file: only lost managers did.
pub(super) async fn was_restored<B: Backend>(mount: &Mount<B>, origin: &LogOrigin) -> Pushed<bool> {
    if origin.map_version == 0 {
        return Ok(false);
    }
    // Lost managers may have known some later versions of the map. A cluster that lives for long may have as many itself: then what was
    // removed is kept.
    let now = mount.backend.map_version().await?;
    let is_restored = now >= origin.map_version + RESTORE_JUMP / 2;
    if let Some(spool) = mount.spool.as_ref().filter(|_| is_restored) {
        // What is removed from now on, before a log that begins now is pushed, stays removed.
        spool.map_version.store(now, Ordering::Relaxed);
    }
    Ok(is_restored)
}

/// As [`other_version`].
async fn push_view<B: Backend>(mount: &Mount<B>, file: &OpenFile<B>, view: &View) -> Pushed<bool> {
    let ino = file.ino;
    let attr = mount.backend.get(ino).await?.attr.unwrap_or_default();
    if attr.nlink == 0 && mount.files.is_open_once(ino) {
        file.spool_is_gone(mount, view).await;
        return Ok(true);
    }
    let over = match failpoint::is_active("mount.push_over_newer") {
        true => attr.version,
        false => view.origin.base_version,
    };
    if attr.version != over {
        return other_version(mount, file, view, &attr).await;
    }
    let content = file.is_pushed(mount, view).await;
    match upload(mount, ino, view, over, content).await {
        Ok(done) => {
            file.stored(mount, done.version, (content, view.overlay.size_bytes()), view).await;
            Ok(true)
        }
        Err(PushError::File(error)) if error.code() == Code::VersionConflict => {
            let attr = mount.backend.get(ino).await?.attr.unwrap_or_default();
            other_version(mount, file, view, &attr).await
        }
        Err(error) => Err(error),
    }
}

async fn upload<B: Backend>(mount: &Mount<B>, ino: u64, view: &View, over: u64, content: u64) -> Pushed<WriteDone> {
    let patches = view.overlay.kept_bytes() > 0;
    let mut handle = mount.backend.open_write(ino, patches, Some(over)).await?;
    pour(view, 0, &mut handle).await?;
    Ok(handle.finish(view.times, content).await?)
}

/// Writes what the log's records from `since` on changed over the version below the handle. Bytes kept from that version
/// are not sent. If it is another one than the log was written over, its bytes stay that were not written over or cut
/// off here.
///
/// # Errors
/// [`PushError::Log`] and [`PushError::File`].
pub async fn pour<W: Writer>(view: &View, since: u64, handle: &mut W) -> Pushed {
    let (overlay, below) = (&view.overlay, handle.len_bytes());
    let (size_bytes, shortest_set) = (overlay.size_bytes(), overlay.shortest_set(since));
    if size_bytes < below && shortest_set.is_some() {
        handle.set_len(size_bytes).await?;
    }
    // From here on, bytes that were not written over must read as zeros, whatever others commit before this.
    let mut hidden = shortest_set.unwrap_or(u64::MAX);
    let mut buffer = Vec::new();
    for piece in overlay.slices(0..size_bytes).filter(|piece| piece.record >= since) {
        clear(handle, hidden..piece.offset).await?;
        buffer.resize(piece.len_bytes as usize, 0);
        view.file.read(&piece, &mut buffer)?;
        handle.write_at(piece.offset, &buffer).await?;
        hidden = hidden.max(piece.end());
    }
    clear(handle, hidden..size_bytes).await?;
    // Another mount may have made the file shorter than it is here, and than what a version had from this log: that stays, unless a
    // program set the length.
    let end = if shortest_set.is_some() { size_bytes } else { overlay.writes_end(since) };
    // Whatever length the handle knows: it may be shorter when this is committed.
    if end > 0 {
        handle.skip_to(end).await?;
    }
    Ok(())
}

async fn clear<W: Writer>(handle: &mut W, range: Range<u64>) -> Pushed {
    match range.is_empty() || failpoint::is_active("mount.cut_bytes_not_blanked") {
        true => Ok(()),
        false => Ok(handle.clear(range).await?),
    }
}

/// The store has another version than the one below the log. Returns false if the log's content was kept beside it, and the log has
/// more by then.
async fn other_version<B: Backend>(mount: &Mount<B>, file: &OpenFile<B>, view: &View, attr: &Attr) -> Pushed<bool> {
    if file.recognizes(mount, attr, view).await {
        return Ok(true);
    }
    if view.is_in_version_below() {
        // A program has closed the file again, and written nothing since that version.
        return Ok(file.replaced_by(mount, attr, view).await);
    }
    keep_beside(mount, file, view, attr).await
}

/// Another client committed that version: keeps the log's content beside it, unless the contents are equal. As [`other_version`].
async fn keep_beside<B: Backend>(mount: &Mount<B>, file: &OpenFile<B>, view: &View, attr: &Attr) -> Pushed<bool> {
    let ino = file.ino;
    let current = match mount.backend.open_read(ino, attr.version, 0..u64::MAX).await {
        // Yet another version replaced it; the caller looks again, and finds out if the file itself is gone.
        Err(error) if error.code() == Code::NotFound => return Ok(true),
        current => Arc::new(current?),
    };
    let below = match view.origin.base_version {
        _ if view.overlay.kept_bytes() == 0 => None,
        0 => None,
        version => Some(match mount.backend.open_read(ino, version, 0..u64::MAX).await {
            // The version below the log no longer exists.
            Err(error) if error.code() == Code::NotFound => current.clone(),
            below => Arc::new(below?),
        }),
    };
    let content = Content { view, below };
    if content.is(&current).await? {
        // Both versions have the same content.
        file.stored(mount, attr.version, (attr.content, attr.size_bytes), view).await;
        return Ok(true);
    }
    let Some((parent, name, other)) = make_conflict_file(mount, &content, attr).await? else {
        // A mount before this one made the copy, and was killed before it removed the log.
        return Ok(file.replaced_by(mount, attr, view).await);
    };
    write_conflict_file(mount, &content, (parent, &name, other)).await?;
    tracing::error!(
        ino,
        parent,
        kept_as = %String::from_utf8_lossy(&name),
        "another mount changed a file while it waited in the spool; what was written here is kept beside it"
    );
    Ok(file.replaced_by(mount, attr, view).await)
}

async fn write_conflict_file<B: Backend>(
    mount: &Mount<B>,
    content: &Content<'_, B::Reader>,
    (parent, name, ino): (u64, &[u8], u64),
) -> Pushed {
    let written = match mount.backend.open_write(ino, false, None).await {
        Ok(handle) => content.write_to(handle).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = written {
        // The retry takes a new name; remove this file, which is incomplete.
        let _ = mount.backend.unlink(parent, name, false).await;
        return Err(error);
    }
    mount.count(|counts| counts.conflicts += 1);
    mount.namespace.forget(&[parent]);
    Ok(())
}

/// A restored group of managers does not know the file: keeps the log's content where the file was, or sets the log aside if the rest of
/// the content is lost with the file. As [`other_version`].
async fn keep_lost<B: Backend>(mount: &Mount<B>, file: &OpenFile<B>, view: &View) -> Pushed<bool> {
    let ino = file.ino;
    if view.overlay.kept_bytes() > 0 {
        file.spool_is_lost(mount, &"the managers were restored, and know neither the file nor the version below").await;
        return Ok(true);
    }
    let content = Content { view, below: None };
    let made = make_conflict_file(mount, &content, &lost_attr(mount, view).await?).await?;
    if let Some((parent, name, other)) = made {
        write_conflict_file(mount, &content, (parent, &name, other)).await?;
        tracing::error!(
            ino,
            parent,
            kept_as = %String::from_utf8_lossy(&name),
            "the managers were restored, and do not know a file that waited in the spool; what was written is kept under another name"
        );
    }
    Ok(file.spool_is_kept(mount, view).await)
}

/// Attributes for what is kept of a file that nobody knows: only the owner of the directory may read it.
async fn lost_attr<B: Backend>(mount: &Mount<B>, view: &View) -> Pushed<Attr> {
    let directory = match mount.backend.get(view.origin.parent).await {
        Err(error) if error.code() == Code::NotFound => mount.backend.get(STORE_ROOT).await,
        found => found,
    };
    let Attr { uid, gid, .. } = directory?.attr.unwrap_or_default();
    Ok(Attr { ino: view.origin.ino, mode: 0o600, uid, gid, ..Attr::default() })
}

/// The file that a log describes, over the version below it.
struct Content<'a, R> {
    view: &'a View,
    below: Option<Arc<R>>,
}

impl<R: Reader> Content<'_, R> {
    /// Reads the next bytes at `at` into `out`. Returns false at the end.
    async fn read(&self, at: u64, out: &mut Vec<u8>) -> Pushed<bool> {
        out.clear();
        out.resize(self.view.overlay.size_bytes().saturating_sub(at).min(STEP_BYTES) as usize, 0);
        if let Some(below) = &self.below {
            let kept = self.view.overlay.kept_bytes().min(below.len_bytes());
            let there = kept.saturating_sub(at).min(out.len() as u64) as usize;
            below.read_at(at, &mut out[..there]).await?;
        }
        self.view.read_over(at, out)?;
        Ok(!out.is_empty())
    }

    /// Whether `version` has the same content.
    async fn is(&self, version: &R) -> Pushed<bool> {
        if version.len_bytes() != self.view.overlay.size_bytes() {
            return Ok(false);
        }
        let (mut at, mut here, mut there) = (0, Vec::new(), Vec::new());
        while self.read(at, &mut here).await? {
            there.resize(here.len(), 0);
            version.read_at(at, &mut there).await?;
            if here != there {
                return Ok(false);
            }
            at += here.len() as u64;
        }
        Ok(true)
    }

    /// Writes the content through `handle`, and commits it.
    async fn write_to<W: Writer>(&self, mut handle: W) -> Pushed {
        let (mut at, mut piece) = (0, Vec::new());
        while self.read(at, &mut piece).await? {
            handle.write_at(at, &piece).await?;
            at += piece.len() as u64;
        }
        handle.finish(self.view.times, 0).await?;
        Ok(())
    }
}

/// Creates a file beside the changed one, or in the root directory if the changed file's name is unknown. Returns its
/// directory, name and inode; none: an earlier copy has the same content.
async fn make_conflict_file<B: Backend>(
    mount: &Mount<B>,
    content: &Content<'_, B::Reader>,
    attr: &Attr,
) -> Pushed<Option<(u64, Vec<u8>, u64)>> {
    let view = content.view;
    let owner = Owner { mode: attr.mode & 0o7777, uid: attr.uid, gid: attr.gid };
    let unnamed = format!("inode-{}", attr.ino).into_bytes();
    let places = [(view.origin.parent, view.origin.name.clone()), (STORE_ROOT, unnamed)];
    let mut refusal = tessera_wire::Error::new(Code::NotFound, "there is no place for it");
    for (parent, name) in places.into_iter().filter(|(parent, _)| *parent != 0) {
        for number in 1..1000 {
            let end = format!(".tessera-conflict-{number}").into_bytes();
            let mut name = name.clone();
            name.truncate(255 - end.len());
            name.extend_from_slice(&end);
            let _in_flight = mount.namespace.begin_create(parent, &name);
            match mount.backend.make_node(new_node((parent, &name), InodeKind::File, owner)).await {
                Ok(made) => return Ok(Some((parent, name, made.attr.unwrap_or_default().ino))),
                Err(error) if error.code() == Code::Exists => {
                    if is_copy(mount, content, parent, &name).await? {
                        return Ok(None);
                    }
                }
                Err(error) => {
                    refusal = error;
                    break;
                }
            }
        }
    }
    Err(refusal.into())
}

/// Whether a file has this content.
async fn is_copy<B: Backend>(
    mount: &Mount<B>,
    content: &Content<'_, B::Reader>,
    parent: u64,
    name: &[u8],
) -> Pushed<bool> {
    let there = match mount.backend.lookup(parent, name, 0).await {
        Err(error) if error.code() == Code::NotFound => return Ok(false),
        there => there?.attr.unwrap_or_default(),
    };
    if there.version == 0 || there.kind() != InodeKind::File || there.size_bytes != content.view.overlay.size_bytes() {
        return Ok(false);
    }
    match mount.backend.open_read(there.ino, there.version, 0..u64::MAX).await {
        Err(error) if error.code() == Code::NotFound => Ok(false),
        there => content.is(&there?).await,
    }
}
