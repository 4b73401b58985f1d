//! Locks: serves the kernel's requests, and makes programs that lock see each other's writes.
//!
//! As on NFS, writes are committed before a lock is released, and other clients' commits are visible once a lock is
//! granted. Each request has a thread of its own, because it may wait long, and because the kernel must be asked
//! meanwhile ([`crate::beside`]). An owner's `fcntl` locks are released when it closes the file (`flush`), `flock`
//! locks with the last handle of that open (`release`).

use crate::attr;
use crate::callers::{self, LockCall, Signals};
use crate::mount::Store;
use fuser::{Errno, ReplyEmpty, ReplyLock};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tessera_wire::meta::{FileLock, LockFamily, LockMode, LockOutcome};
use tessera_wire::{Code, Error};

/// The kernel's types of lock (`fcntl.h`).
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;
/// Last byte of the longest range.
const LAST_BYTE: u64 = i64::MAX as u64;
/// Limit of requests in progress, including those that wait.
const MAX_REQUESTS: usize = 2_048;
const STACK_BYTES: usize = 512 << 10;
/// Longest wait for a handle that is being closed.
const LEAVING: Duration = Duration::from_secs(10);

/// A lock request of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The file.
    pub ino: u64,
    /// The kernel's number of the lock owner.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process id that `F_GETLK` shows.
    pub pid: u32,
    /// The calling thread.
    pub tid: u32,
    /// Whether to wait for the lock.
    pub wait: bool,
}

/// State of locks on this mount beyond the client library's.
#[derive(Default)]
pub struct Locking {
    requests: AtomicUsize,
    /// Number of handles under `flock` that are being closed, by file.
    leaving: Mutex<HashMap<u64, usize>>,
    left: Condvar,
}

impl Asked {
    fn lock(&self) -> Result<FileLock, Errno> {
        let mode = match self.kind {
            F_RDLCK => LockMode::Read,
            F_WRLCK => LockMode::Write,
            F_UNLCK => LockMode::Unlock,
            _ => return Err(Errno::EINVAL),
        };
        let family = match (self.start, self.end) {
            _ if mode == LockMode::Unlock => LockFamily::Either,
            (0, LAST_BYTE) => match callers::lock_call(self.tid) {
                LockCall::Flock => LockFamily::Flock,
                LockCall::Fcntl => LockFamily::Posix,
                LockCall::Unknown => LockFamily::Either,
            },
            _ => LockFamily::Posix,
        };
        let (family, mode) = (family as i32, mode as i32);
        Ok(FileLock { ino: self.ino, owner: self.owner, family, mode, start: self.start, end: self.end, pid: self.pid })
    }
}

/// Serves a request on a thread of its own.
pub fn set(store: &Arc<Store>, asked: Asked, reply: ReplyEmpty) {
    let under_way = store.locking.requests.fetch_add(1, Ordering::AcqRel);
    if under_way >= MAX_REQUESTS {
        store.locking.requests.fetch_sub(1, Ordering::AcqRel);
        return reply.error(Errno::ENOLCK);
    }
    // The thread takes the reply; if there is no thread, the reply stays here.
    let (sender, receiver) = crossbeam_channel::bounded::<ReplyEmpty>(1);
    let theirs = store.clone();
    let thread = std::thread::Builder::new().name("lock".into()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || {
        if let Ok(reply) = receiver.recv() {
            match theirs.settle(asked.ino).and_then(|()| carry_out(&theirs, &asked)) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        }
        theirs.locking.requests.fetch_sub(1, Ordering::AcqRel);
    });
    match spawned {
        Ok(_) => drop(sender.send(reply)),
        Err(error) => {
            tracing::warn!(%error, "no thread for a lock");
            store.locking.requests.fetch_sub(1, Ordering::AcqRel);
            reply.error(Errno::ENOLCK);
        }
    }
}

fn carry_out(store: &Store, asked: &Asked) -> Result<(), Errno> {
    let lock = asked.lock()?;
    // Writes made under the lock are committed before another owner can get it.
    let gives_up = lock.mode() != LockMode::Write && store.client.locks().holds(asked.ino, asked.owner);
    let flushed = if gives_up { flush(store, asked.ino) } else { Ok(()) };
    if lock.mode() == LockMode::Unlock {
        return acquire(store, &lock, asked);
    }
    flushed?;
    acquire(store, &lock, asked)?;
    revalidate(store, asked.ino)
}

fn acquire(store: &Store, lock: &FileLock, asked: &Asked) -> Result<(), Errno> {
    let locks = store.client.locks();
    let mut signals = Signals::of(asked.tid);
    let mut interrupted = || signals.wait();
    let mut ask = |wait: bool| {
        let outcome = locks.set(lock, wait, &mut interrupted);
        outcome.map_err(|error| refused(lock.ino, &error))
    };
    // A waiting `flock` that converts a lock releases the old one first. Otherwise two shared holders that both ask for
    // an exclusive lock would deadlock.
    let converts = lock.family() == LockFamily::Flock && asked.wait && locks.holds(lock.ino, lock.owner);
    let mut outcome = ask(asked.wait && !converts)?;
    if outcome == LockOutcome::Refused && converts {
        locks.release(lock.ino, lock.owner);
        outcome = ask(true)?;
    }
    if outcome == LockOutcome::Refused && store.locking.wait_for_leaving(lock.ino) {
        outcome = ask(asked.wait)?;
    }
    match outcome {
        LockOutcome::Granted => Ok(()),
        LockOutcome::Refused => Err(Errno::EAGAIN),
        LockOutcome::Deadlock => Err(Errno::EDEADLK),
        LockOutcome::Cancelled => Err(Errno::EINTR),
        LockOutcome::TooMany => Err(Errno::ENOLCK),
        _ => Err(Errno::EIO),
    }
}

/// Answers `F_GETLK`.
pub fn test(store: &Store, asked: &Asked, reply: ReplyLock) {
    let found = asked.lock().and_then(|lock| {
        // Only `fcntl` sends `F_GETLK`.
        let lock = FileLock { family: LockFamily::Posix as i32, ..lock };
        let found = store.client.locks().test(&lock);
        found.map_err(|error| refused(asked.ino, &error))
    });
    match found {
        Ok(None) => reply.locked(asked.start, asked.end, F_UNLCK, 0),
        Ok(Some(lock)) => {
            let kind = if lock.mode() == LockMode::Write { F_WRLCK } else { F_RDLCK };
            reply.locked(lock.start, lock.end, kind, lock.pid);
        }
        Err(errno) => reply.error(errno),
    }
}

/// A process closes the file: commits the writes and releases its `fcntl` locks.
///
/// # Errors
/// Those of the commit; the locks are released anyway.
pub fn closes(store: &Store, ino: u64, owner: u64) -> Result<(), Errno> {
    if !store.client.locks().holds(ino, owner) {
        return Ok(());
    }
    let committed = store.files.get(ino).map_or(Ok(()), |file| file.commit(store));
    store.client.locks().release(ino, owner);
    committed
}

/// The last handle of an open that used `flock` is closed: releases its lock.
pub fn leaves(store: &Store, ino: u64, owner: u64, release: impl FnOnce()) {
    *store.locking.leaving.lock().entry(ino).or_default() += 1;
    release();
    store.client.locks().release(ino, owner);
    let mut leaving = store.locking.leaving.lock();
    if let Some(count) = leaving.get_mut(&ino) {
        *count -= 1;
        if *count == 0 {
            leaving.remove(&ino);
        }
    }
    store.locking.left.notify_all();
}

impl Locking {
    /// Waits for handles that are being closed: the kernel reports a close after `close` has returned, and the next
    /// caller must not find that lock. Returns whether there was such a handle and it is gone.
    fn wait_for_leaving(&self, ino: u64) -> bool {
        let mut leaving = self.leaving.lock();
        if !leaving.contains_key(&ino) {
            return false;
        }
        !self.left.wait_while_for(&mut leaving, |leaving| leaving.contains_key(&ino), LEAVING).timed_out()
    }
}

/// Commits the file's writes, including the kernel's dirty pages.
fn flush(store: &Store, ino: u64) -> Result<(), Errno> {
    if !store.files.has_writers(ino) {
        return Ok(());
    }
    if let Some(error) = store.beside.flush(ino).err().filter(|error| !is_gone(error)) {
        tracing::warn!(ino, %error, "what the kernel holds of a file cannot be written back before its lock is given up");
        return Err(Errno::EIO);
    }
    store.files.get(ino).map_or(Ok(()), |file| file.commit(store))
}

/// Shows everything that was committed before the lock was granted: recalled names, and this file's bytes and length.
fn revalidate(store: &Store, ino: u64) -> Result<(), Errno> {
    store.wait_for_kernel();
    let Some(file) = store.files.get(ino) else { return Ok(()) };
    let attr = store.namespace.get(&store.client, ino).map_err(|e| refused(ino, &e))?.attr;
    if store.kernel.lock().shows(ino, attr.version, attr.size_bytes) {
        return Ok(());
    }
    flush(store, ino)?;
    let (version, size_bytes) = file.refresh(store)?;
    match store.beside.refresh(ino, size_bytes) {
        Ok(()) => store.kernel.lock().holds(ino, version, size_bytes),
        Err(error) if is_gone(&error) => {}
        Err(error) => {
            tracing::warn!(ino, %error, "the kernel cannot be told what another mount changed of a file that is open");
            return Err(Errno::EIO);
        }
    }
    Ok(())
}

/// The mount or the file is gone.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotConnected | std::io::ErrorKind::BrokenPipe
    )
}

fn refused(ino: u64, error: &Error) -> Errno {
    tracing::warn!(ino, %error, "a lock was refused");
    match error.kind() {
        Code::SessionExpired => Errno::EIO,
        code => attr::errno(code),
    }
}
