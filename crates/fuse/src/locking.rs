//! The kernel's lock requests. Each runs on a thread of its own: it may wait long, and it waits for the loopback threads,
//! which a thread that serves the kernel must not do ([`crate::loopback`]).

use crate::attr::errno;
use crate::backend::FuseBackend;
use crate::block_on::block_on;
use crate::callers::{self, LockCall, Signals};
use fuser::{ReplyEmpty, ReplyLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tessera_mount::errno::Errno;
use tessera_mount::mount::Mount;
use tessera_wire::meta::{FileLock, LockFamily, LockMode};

/// The kernel's types of lock (`fcntl.h`).
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;
/// Last byte of the longest range.
const LAST_BYTE: u64 = i64::MAX as u64;
/// Limit of requests in progress, including those that wait. Unlocking is never refused: they would wait for it.
const MAX_REQUESTS: usize = 2_048;
const STACK_BYTES: usize = 512 << 10;

/// A lock request of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct LockRequest {
    /// The file.
    pub ino: u64,
    /// The handle that names the file.
    pub handle: u64,
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

impl LockRequest {
    fn lock(&self) -> Result<FileLock, Errno> {
        let mode = match self.kind {
            F_RDLCK => LockMode::Read,
            F_WRLCK => LockMode::Write,
            F_UNLCK => LockMode::Unlock,
            _ => return Err(Errno::EINVAL),
        };
        if self.start > self.end || self.end > LAST_BYTE {
            return Err(Errno::EINVAL);
        }
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
        Ok(FileLock {
            ino: self.ino,
            owner: self.owner,
            family,
            mode,
            start: self.start,
            end: self.end,
            pid: self.pid,
            fence: None,
            may_be_shared: false,
        })
    }
}

/// The lock requests in progress.
#[derive(Default)]
pub struct Locking(Arc<AtomicUsize>);

impl Locking {
    /// Serves a request on a thread of its own.
    pub fn set(&self, mount: &Arc<Mount<FuseBackend>>, request: LockRequest, reply: ReplyEmpty) {
        let in_progress = self.0.clone();
        if in_progress.fetch_add(1, Ordering::AcqRel) >= MAX_REQUESTS && request.kind != F_UNLCK {
            in_progress.fetch_sub(1, Ordering::AcqRel);
            return reply.error(errno(Errno::ENOLCK));
        }
        // The thread takes the reply; if there is no thread, the reply stays here.
        let (sender, receiver) = crossbeam_channel::bounded::<ReplyEmpty>(1);
        let mount = mount.clone();
        let thread = std::thread::Builder::new().name("lock".into()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            if let Ok(reply) = receiver.recv() {
                match request.carry_out(&mount) {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(errno(error)),
                }
            }
            in_progress.fetch_sub(1, Ordering::AcqRel);
        });
        match spawned {
            Ok(_) => drop(sender.send(reply)),
            Err(error) => {
                tracing::warn!(%error, "no thread for a lock");
                self.0.fetch_sub(1, Ordering::AcqRel);
                reply.error(errno(Errno::ENOLCK));
            }
        }
    }
}

impl LockRequest {
    fn carry_out(&self, mount: &Mount<FuseBackend>) -> Result<(), Errno> {
        let mut signals = Signals::of(self.tid);
        block_on(mount.set_lock(&self.lock()?, self.handle, self.wait, &mut || signals.wait()))
    }

    /// Answers `F_GETLK`.
    pub fn test(&self, mount: &Mount<FuseBackend>, reply: ReplyLock) {
        match self.lock().and_then(|lock| block_on(mount.test_lock(&lock))) {
            Ok(None) => reply.locked(self.start, self.end, F_UNLCK, 0),
            Ok(Some(lock)) => {
                let kind = if lock.mode() == LockMode::Write { F_WRLCK } else { F_RDLCK };
                reply.locked(lock.start, lock.end, kind, lock.pid);
            }
            Err(error) => reply.error(errno(error)),
        }
    }
}
