//! Bringing logs into the store: in the background after a file was closed, and at unmounting.
//!
//! A log is pushed over the version it was written over, and no other: if somebody else has committed one meanwhile, nothing of theirs is
//! overwritten, and what the log has is kept beside it under another name. What fails is tried again until the mount ends; the log
//! stays for the next one.

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
use tessera_client::{Owner, ReadHandle, WriteDone, WriteError};
use tessera_wire::{Attr, Code, InodeKind};
use thiserror::Error;

/// Files pushed at a time.
pub const THREADS: usize = 2;
/// Bytes handled at once.
const STEP_BYTES: u64 = 1 << 20;
/// What failed is tried again after this long, and then twice, … of it.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Between two lines about how far unmounting has come.
const REPORT_EVERY: Duration = Duration::from_secs(5);
const ROOT: u64 = 1;

/// Why a log is not in the store.
#[derive(Debug, Error)]
pub enum PushError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store does not take it.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The store cannot be asked.
    #[error("{0}")]
    Store(#[from] tessera_wire::Error),
    /// The version below cannot be read.
    #[error(transparent)]
    Read(#[from] tessera_client::ReadError),
}

impl PushError {
    /// The refusal's code.
    pub fn code(&self) -> Code {
        match self {
            PushError::Log(_) => Code::Internal,
            PushError::Write(error) => error.code(),
            PushError::Store(error) => error.kind(),
            PushError::Read(error) => error.code(),
        }
    }
}

/// Pushes what is wanted until the mount is gone.
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

/// Pushes all that waits, once; how many files stay.
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
                // Nobody answers: the others would wait as long, each.
                failed = all - done;
                break;
            }
        }
    }
    spool.stop();
    failed
}

/// Pushes what a file was when it was closed last.
///
/// # Errors
/// Why it is not in the store; it can be tried again.
pub fn push(store: &Store, file: &OpenFile) -> Result<(), PushError> {
    let done = {
        let _turn = file.turn();
        file.finish_staged(store);
        push_closed(store, file)
    };
    // Out of its turn: an fsync may wait for that, the kernel for the fsync, and this waits for the kernel.
    file.show_theirs(store);
    done
}

/// For who commits a file at once, and has its turn: what was acknowledged earlier is pushed as that before, so that it is not
/// written over what others committed meanwhile. Programs that have it open then see theirs when they open it anew: the kernel, which waits
/// for this, cannot be told. Whether another's version stands now instead of what was written here.
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

/// Whether it is the file itself that is not there: a version that goes while it is looked at is not there either, nor is a name that
/// somebody takes away.
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
        Err(PushError::Write(WriteError::VersionConflict { .. })) => {
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

/// Writes what a log has over what the handle was opened over: what is kept of that stays as it is, and is not sent.
///
/// # Errors
/// The log's, and the handle's.
pub fn pour(view: &View, handle: &mut dyn Writes) -> Result<(), PushError> {
    let (overlay, below) = (&view.overlay, handle.len_bytes());
    let size_bytes = overlay.size_bytes();
    if size_bytes < below {
        handle.set_len(size_bytes)?;
    }
    // From here on what was below must not show where nothing was written.
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

/// Zeros, which cost no space.
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

/// Another version is in the store than the one below the log.
fn other_version(store: &Store, file: &OpenFile, view: &View, attr: &Attr) -> Result<(), PushError> {
    match file.knows(store, attr, view) {
        true => Ok(()),
        false => step_aside(store, file, view, attr),
    }
}

/// Somebody else committed it.
fn step_aside(store: &Store, file: &OpenFile, view: &View, attr: &Attr) -> Result<(), PushError> {
    let ino = file.ino();
    let current = Arc::new(store.client.inodes().open_read(ino, attr.version, 0..u64::MAX)?);
    let below = match view.origin.base_version {
        _ if view.overlay.kept_bytes() == 0 => None,
        0 => None,
        // What it was written over may be gone by now.
        version => Some(store.client.inodes().open_read(ino, version, 0..u64::MAX).map_or(current.clone(), Arc::new)),
    };
    let ours = Content { view, below };
    if ours.is(&current)? {
        // Theirs is the same.
        file.stored(store, attr.version, attr.content, view);
        return Ok(());
    }
    let (parent, name, other) = make_beside(store, view, attr)?;
    if let Err(error) = ours.keep_as(store, other) {
        // It is tried again, under a name of its own: nobody is to find all those that were not written.
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

/// A file as its log has it, over the version that it was written over.
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

    /// All of it, in pieces: where each is, and its bytes.
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

    /// Whether a version has the same.
    fn is(&self, version: &ReadHandle) -> Result<bool, PushError> {
        let mut theirs = Vec::new();
        let same = |at, ours: &[u8]| {
            theirs.resize(ours.len(), 0);
            version.read_at(at, &mut theirs)?;
            Ok(ours == theirs)
        };
        Ok(version.len_bytes() == self.view.overlay.size_bytes() && self.each(same)?)
    }

    /// Makes it the content of a file.
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

/// A new file beside the one that was changed, or in the root directory if where it was is not known: its directory, name, inode.
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
