//! Brings logs into the store: in the background after a close, and at unmount.
//!
//! A log is pushed only over the version it was written over. If another client has committed a version meanwhile, that
//! version stays, and the log's content is kept beside it under another name. A failed push is retried until the mount
//! ends; the log then stays for the next mount.

use super::log::LogError;
use super::logfile::View;
use crate::files::OpenFile;
use crate::mount::Store;
use crate::spool::staged::Writes;
use crossbeam_channel::Receiver;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_client::inodes::NewNode;
use tessera_client::{FileError, Owner, ReadHandle, WriteDone};
use tessera_wire::{Attr, Code, InodeKind};
use thiserror::Error;

/// Number of push threads.
pub const THREADS: usize = 2;
/// Bytes handled at once.
const STEP_BYTES: u64 = 1 << 20;
/// First wait before a retry; it doubles with each failure.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Time between two log lines about the progress of unmounting.
const REPORT_EVERY: Duration = Duration::from_secs(5);
const ROOT: u64 = 1;

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
            PushError::Store(error) => error.kind(),
        }
    }
}

/// Pushes the files in `wanted` until the mount is gone.
pub fn work(store: &Weak<Store>, wanted: &Receiver<u64>) {
    let mut pause = RETRY;
    for ino in wanted {
        let Some(store) = store.upgrade() else { return };
        let (Some(spool), Some(file)) = (&store.spool, store.files.get(ino)) else { continue };
        if spool.is_stopping() {
            return;
        }
        match push(&store, &file) {
            Ok(()) => pause = RETRY,
            Err(error) => {
                spool.counts.retries.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(ino, %error, "a file stays in the spool, and is pushed later");
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_RETRY);
                spool.push(ino);
            }
        }
    }
}

/// Pushes every waiting file once. Returns how many stay in the spool.
pub fn push_all(store: &Store) -> usize {
    let Some(spool) = &store.spool else { return 0 };
    let waiting = store.files.spooled();
    let (all, mut failed, mut said) = (waiting.len(), 0, Instant::now());
    if all > 0 {
        tracing::info!(files = all, bytes = spool.budget.used_bytes(), "pushing what waits in the spool");
    }
    for (done, file) in waiting.iter().enumerate() {
        if said.elapsed() > REPORT_EVERY {
            said = Instant::now();
            tracing::info!(done, all, left_bytes = spool.budget.used_bytes(), "pushing what waits in the spool");
        }
        if let Err(error) = push(store, file) {
            failed += 1;
            tracing::error!(ino = file.ino(), %error, "a file stays in the spool; the next mount with it pushes it");
            if matches!(error.code(), Code::Unavailable | Code::Timeout) {
                // The manager does not answer: each remaining push would wait just as long.
                failed = all - done;
                break;
            }
        }
    }
    spool.stop();
    failed
}

/// Pushes the state of the file at its last close.
///
/// # Errors
/// [`PushError`]; the push can be retried.
pub fn push(store: &Store, file: &OpenFile) -> Result<(), PushError> {
    let done = {
        let _turn = file.turn();
        file.finish_staged(store);
        push_closed(store, file)
    };
    // After the turn is released: an fsync may wait for the turn, the kernel for that fsync, and this call waits for
    // the kernel.
    file.show_theirs(store);
    done
}

/// Prepares a commit by a caller that holds the turn: pushes the state that was acknowledged earlier, so that this
/// state does not overwrite another client's commit. If another client's version now stands instead, returns true.
/// Programs that have the file open then see that version when they open it again: the kernel waits for this call, so
/// it cannot be told.
///
/// # Errors
/// As [`push`].
pub fn make_way(store: &Store, file: &OpenFile) -> Result<bool, PushError> {
    push_closed(store, file)?;
    while let Some(view) = file.owed_view() {
        let attr = store.client.inodes().get(file.ino())?.attr.unwrap_or_default();
        if attr.version == view.origin.base_version {
            break;
        }
        other_version(store, file, &view, &attr)?;
    }
    Ok(file.keeps_showing_ours())
}

fn push_closed(store: &Store, file: &OpenFile) -> Result<(), PushError> {
    while let Some(view) = file.closed_view() {
        match push_view(store, file, &view) {
            Ok(()) => {}
            Err(PushError::Log(error)) => file.spool_is_lost(store, &error),
            Err(error) if error.code() == Code::NotFound && is_gone(store, file.ino()) => {
                file.spool_is_gone(store, &view);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the file itself is gone. `NotFound` may also mean that a version or a name went away during the push.
fn is_gone(store: &Store, ino: u64) -> bool {
    matches!(store.client.inodes().get(ino), Err(error) if error.kind() == Code::NotFound)
}

fn push_view(store: &Store, file: &OpenFile, view: &View) -> Result<(), PushError> {
    let ino = file.ino();
    let attr = store.client.inodes().get(ino)?.attr.unwrap_or_default();
    if attr.nlink == 0 && store.files.is_open_once(ino) {
        file.spool_is_gone(store, view);
        return Ok(());
    }
    if attr.version != view.origin.base_version {
        return other_version(store, file, view, &attr);
    }
    let content = file.is_pushed(view);
    match upload(store, ino, view, content) {
        Ok(done) => {
            file.stored(store, done.version, content, view);
            Ok(())
        }
        Err(PushError::File(error)) if error.code() == Code::VersionConflict => {
            let attr = store.client.inodes().get(ino)?.attr.unwrap_or_default();
            other_version(store, file, view, &attr)
        }
        Err(error) => Err(error),
    }
}

fn upload(store: &Store, ino: u64, view: &View, content: u64) -> Result<WriteDone, PushError> {
    let patches = view.overlay.kept_bytes() > 0;
    let mut handle = store.client.inodes().open_write_if(ino, patches, view.origin.base_version)?;
    pour(view, &mut handle)?;
    handle.set_mtime(view.mtime_ns);
    handle.set_content(content);
    Ok(handle.finish()?)
}

/// Writes a log's content over the version below the handle. Bytes kept from that version are not sent.
///
/// # Errors
/// [`PushError::Log`] and [`PushError::File`].
pub fn pour(view: &View, handle: &mut dyn Writes) -> Result<(), PushError> {
    let (overlay, below) = (&view.overlay, handle.len_bytes());
    let size_bytes = overlay.size_bytes();
    if size_bytes < below {
        handle.set_len(size_bytes)?;
    }
    // From here on, bytes of the version below that were not written over must read as zeros.
    let mut hidden = overlay.kept_bytes();
    let mut buffer = Vec::new();
    for piece in overlay.slices(0..size_bytes) {
        blank(handle, hidden..piece.offset.min(below))?;
        buffer.resize(piece.len_bytes as usize, 0);
        view.file.read(&piece, &mut buffer)?;
        handle.write_at(piece.offset, &buffer)?;
        hidden = hidden.max(piece.end());
    }
    blank(handle, hidden..size_bytes.min(below))?;
    if handle.len_bytes() < size_bytes {
        handle.skip_to(size_bytes)?;
    }
    Ok(())
}

/// Writes zeros; they take no space in the store.
fn blank(handle: &mut dyn Writes, range: std::ops::Range<u64>) -> Result<(), PushError> {
    let zeros = vec![0; if range.is_empty() { 0 } else { STEP_BYTES as usize }];
    let mut at = range.start;
    while at < range.end {
        let now = (range.end - at).min(STEP_BYTES);
        handle.write_at(at, &zeros[..now as usize])?;
        at += now;
    }
    Ok(())
}

/// The store has another version than the one below the log.
fn other_version(store: &Store, file: &OpenFile, view: &View, attr: &Attr) -> Result<(), PushError> {
    match file.knows(store, attr, view) {
        true => Ok(()),
        false => step_aside(store, file, view, attr),
    }
}

/// Another client committed that version: keeps the log's content beside it, unless the contents are equal.
fn step_aside(store: &Store, file: &OpenFile, view: &View, attr: &Attr) -> Result<(), PushError> {
    let ino = file.ino();
    let current = Arc::new(store.client.inodes().open_read(ino, attr.version, 0..u64::MAX)?);
    let below = match view.origin.base_version {
        _ if view.overlay.kept_bytes() == 0 => None,
        0 => None,
        // The version below the log may no longer exist.
        version => Some(store.client.inodes().open_read(ino, version, 0..u64::MAX).map_or(current.clone(), Arc::new)),
    };
    let ours = Content { view, below };
    if ours.is(&current)? {
        // Both versions have the same content.
        file.stored(store, attr.version, attr.content, view);
        return Ok(());
    }
    let (parent, name, other) = make_beside(store, view, attr)?;
    if let Err(error) = ours.keep_as(store, other) {
        // The retry takes a new name; remove this file, which is incomplete.
        let _ = store.client.inodes().unlink(parent, &name, false);
        return Err(error);
    }
    if let Some(spool) = &store.spool {
        spool.counts.conflicts.fetch_add(1, Ordering::Relaxed);
    }
    store.namespace.with(|core, _| core.forget(&[parent]));
    tracing::error!(
        ino,
        parent,
        kept_as = %String::from_utf8_lossy(&name),
        "another mount changed a file while it waited in the spool; what was written here is kept beside it"
    );
    file.gives_way(store, attr, view);
    Ok(())
}

/// The file that a log describes, over the version below it.
struct Content<'a> {
    view: &'a View,
    below: Option<Arc<ReadHandle>>,
}

impl Content<'_> {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), PushError> {
        out.fill(0);
        if let Some(below) = &self.below {
            let kept = self.view.overlay.kept_bytes().min(below.len_bytes());
            let there = kept.saturating_sub(at).min(out.len() as u64) as usize;
            below.read_at(at, &mut out[..there])?;
        }
        Ok(self.view.read_over(at, out)?)
    }

    /// Calls `take` with each piece (its offset and bytes) until it returns false. Returns whether it took them all.
    fn each(&self, mut take: impl FnMut(u64, &[u8]) -> Result<bool, PushError>) -> Result<bool, PushError> {
        let (size_bytes, mut at) = (self.view.overlay.size_bytes(), 0);
        let mut piece = Vec::new();
        while at < size_bytes {
            piece.resize((size_bytes - at).min(STEP_BYTES) as usize, 0);
            self.read(at, &mut piece)?;
            if !take(at, &piece)? {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    /// Whether `version` has the same content.
    fn is(&self, version: &ReadHandle) -> Result<bool, PushError> {
        let mut theirs = Vec::new();
        let same = |at, ours: &[u8]| {
            theirs.resize(ours.len(), 0);
            version.read_at(at, &mut theirs)?;
            Ok(ours == theirs)
        };
        Ok(version.len_bytes() == self.view.overlay.size_bytes() && self.each(same)?)
    }

    /// Writes the content to file `ino`.
    fn keep_as(&self, store: &Store, ino: u64) -> Result<(), PushError> {
        let mut handle = store.client.inodes().open_write(ino, false)?;
        self.each(|at, ours| {
            handle.write_at(at, ours)?;
            Ok(true)
        })?;
        handle.set_mtime(self.view.mtime_ns);
        handle.finish()?;
        Ok(())
    }
}

/// Creates a file beside the changed one, or in the root directory if the changed file's name is unknown. Returns its
/// directory, name and inode.
fn make_beside(store: &Store, view: &View, attr: &Attr) -> Result<(u64, Vec<u8>, u64), PushError> {
    let owner = Owner { mode: attr.mode & 0o7777, uid: attr.uid, gid: attr.gid };
    let unnamed = format!("inode-{}", attr.ino).into_bytes();
    let places = [(view.origin.parent, view.origin.name.clone()), (ROOT, unnamed)];
    let mut refusal = tessera_wire::Error::new(Code::NotFound, "there is no place for it");
    for (parent, name) in places.into_iter().filter(|(parent, _)| *parent != 0) {
        for number in 1..1000 {
            let end = format!(".tessera-conflict-{number}").into_bytes();
            let mut name = name.clone();
            name.truncate(255 - end.len());
            name.extend_from_slice(&end);
            let _in_flight = store.namespace.begin_create(parent, &name);
            match store.client.inodes().make_node(
                parent,
                &name,
                NewNode { kind: InodeKind::File, owner, ..NewNode::default() },
            ) {
                Ok(made) => return Ok((parent, name, made.attr.unwrap_or_default().ino)),
                Err(error) if error.kind() == Code::Exists => {}
                Err(error) => {
                    refusal = error;
                    break;
                }
            }
        }
    }
    Err(refusal.into())
}
