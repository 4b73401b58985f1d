//! Locks: makes programs that lock see each other's writes.
//!
//! As on NFS, writes are committed before a lock is released, and other clients' commits are visible once a lock is
//! granted. An owner's `fcntl` locks are released when it closes the file (`flush`), those of an open file with its last handle
//! (`release`; see [`crate::lockers`]). The operations wait for the kernel, so none of them may run where the kernel waits.

use crate::backend::Backend;
use crate::errno::{Errno, Outcome};
use crate::locks::{HeldBefore, Interrupted};
use crate::mount::Mount;
use crate::open_file::Current;
use crate::race::race;
use std::io::{Error as IoError, ErrorKind};
use std::pin::pin;
use std::time::Duration;
use tessera_failpoint as failpoint;
use tessera_wire::meta::{FileLock, LockFamily, LockMode, LockOutcome};
use tessera_wire::{Code, Error};

/// Longest wait for a handle that is being closed.
const CLOSING: Duration = Duration::from_secs(10);

impl<B: Backend> Mount<B> {
    /// Waits for handles with locks that are being closed: the kernel reports a close after `close` has returned, and the next
    /// caller must not find that lock. Returns whether there was such a handle and it is gone.
    async fn until_closed(&self, ino: u64) -> bool {
        self.closing.count(ino) > 0 && race(self.closing.until_none(ino), self.backend.sleep(CLOSING)).await.is_ok()
    }

    /// A handle is about to lock as this owner. If that is one of a `flock`, waits until no other one does: that one is closed. Of another
    /// caller the mount does not know whether it is an open file or a process that has many; it waits for handles that are being closed,
    /// so that it takes no lock for this caller's that one of them gives up.
    async fn begin_locking(&self, lock: &FileLock, handle: u64, wait: bool, interrupted: Interrupted<'_>) -> Outcome {
        if lock.family() != LockFamily::Flock {
            if self.locks.holds(lock.ino, lock.owner) && !self.lockers.has(lock.ino, lock.owner, handle) {
                self.until_closed(lock.ino).await;
            }
            self.lockers.add(lock.ino, lock.owner, handle);
            return Ok(());
        }
        let mut owned = pin!(self.lockers.add_alone(lock.ino, lock.owner, handle));
        let patience = || if wait { self.locks.look_every() } else { CLOSING };
        while race(owned.as_mut(), self.backend.sleep(patience())).await.is_err() {
            match wait {
                true if interrupted() => return Err(Errno::EINTR),
                true => {}
                false => return Err(Errno::EAGAIN),
            }
        }
        Ok(())
    }

    /// Sets, changes or releases a lock, for a program that names it by `handle`. `wait`: until it is granted, or until `interrupted`
    /// returns true.
    ///
    /// # Errors
    /// `EAGAIN`: another owner holds it. `EINTR`, `EDEADLK`, `ENOLCK`, and the store's.
    pub async fn set_lock(&self, lock: &FileLock, handle: u64, wait: bool, interrupted: Interrupted<'_>) -> Outcome {
        self.settle(lock.ino).await?;
        if lock.mode() != LockMode::Unlock {
            self.begin_locking(lock, handle, wait, interrupted).await?;
        }
        // Writes made under the lock are committed before another owner can get it.
        let held = self.locks.owns(lock.ino, lock.owner);
        let gives_up = lock.mode() != LockMode::Write && held;
        let written_back = if gives_up { self.write_back(lock.ino).await } else { Ok(()) };
        if lock.mode() == LockMode::Unlock {
            // A file that was removed has nobody who would read it.
            if let Err(errno) = written_back
                && errno != Errno::ENOENT
            {
                self.keep_uncommitted(lock.ino).await;
                self.unlock_failed(handle, errno);
            }
            return self.acquire(lock, wait, interrupted).await.map(drop);
        }
        written_back?;
        if !held {
            // What was closed before must not depend on a lock that may be lost.
            self.commit_open(lock.ino).await?;
        }
        // What others may have at once cannot be given back, so what can fail comes first.
        let only_shares = lock.mode() == LockMode::Read && self.locks.excludes_others(lock);
        if only_shares {
            self.revalidate(lock.ino).await?;
        }
        let before = self.acquire(lock, wait, interrupted).await?;
        // Another thread may have closed the file meanwhile. The kernel releases the handle after this request.
        self.lockers.add(lock.ino, lock.owner, handle);
        let is_shown = only_shares && before.excluded_others(lock);
        // What another program closed while this one waited is in no version yet.
        let committed = if held { Ok(()) } else { self.commit_open(lock.ino).await };
        let shown = match committed {
            Ok(()) if !is_shown => self.revalidate(lock.ino).await,
            committed => committed,
        };
        let shown = match shown {
            // While this mount was cut off, the manager may have given the lock to another one.
            Ok(()) if self.locks.is_lost(lock.ino, lock.owner).await => Err(Errno::EIO),
            shown => shown,
        };
        // A program that gets an error holds what it held before, and will not release more.
        if shown.is_err() && !failpoint::is_active("mount.failed_lock_is_held") {
            self.locks.give_back(lock, &before).await;
        }
        shown
    }

    /// Returns what the owner held of the range before.
    async fn acquire(&self, lock: &FileLock, wait: bool, interrupted: Interrupted<'_>) -> Outcome<HeldBefore> {
        let mut before = HeldBefore::default();
        // A waiting `flock` that converts a lock releases the old one first. Otherwise two shared holders that both ask
        // for an exclusive lock would deadlock.
        let converts = lock.family() == LockFamily::Flock && wait && self.locks.holds(lock.ino, lock.owner);
        let mut outcome = self.request_lock(lock, wait && !converts, interrupted, &mut before).await?;
        if outcome == LockOutcome::Refused && converts {
            self.write_back(lock.ino).await?;
            // What is lost meanwhile stays so, and the request fails.
            self.locks.give_back(lock, &HeldBefore::default()).await;
            outcome = self.request_lock(lock, true, interrupted, &mut before).await?;
        }
        if outcome == LockOutcome::Refused && self.until_closed(lock.ino).await {
            outcome = self.request_lock(lock, wait, interrupted, &mut before).await?;
        }
        match outcome {
            LockOutcome::Granted => Ok(before),
            LockOutcome::Refused => Err(Errno::EAGAIN),
            LockOutcome::Deadlock => Err(Errno::EDEADLK),
            LockOutcome::Cancelled => Err(Errno::EINTR),
            LockOutcome::TooMany => Err(Errno::ENOLCK),
            _ => Err(Errno::EIO),
        }
    }

    async fn request_lock(
        &self,
        lock: &FileLock,
        wait: bool,
        interrupted: Interrupted<'_>,
        before: &mut HeldBefore,
    ) -> Outcome<LockOutcome> {
        self.locks.set(lock, wait, interrupted, before).await.map_err(|error| refused(lock.ino, &error))
    }

    /// The first `fcntl` lock that conflicts with `lock`.
    ///
    /// # Errors
    /// The store's.
    pub async fn test_lock(&self, lock: &FileLock) -> Outcome<Option<FileLock>> {
        // Only `fcntl` asks.
        let lock = FileLock { family: LockFamily::Posix as i32, ..*lock };
        self.locks.test(&lock).await.map_err(|error| refused(lock.ino, &error))
    }

    /// A process closes the file: commits the writes and releases its `fcntl` locks.
    pub(super) async fn close_locks(&self, ino: u64, owner: u64) -> Outcome {
        // Before the release: a lock that another thread gets after it counts.
        self.lockers.forget(ino, owner);
        if !self.locks.holds(ino, owner) {
            return Ok(());
        }
        let committed = self.commit_open(ino).await;
        if committed.is_err() {
            self.keep_uncommitted(ino).await;
        }
        self.locks.release(ino, owner).await;
        committed
    }

    /// A handle goes, and with it the locks of owners that have no other one: commits the writes. `flush` may have acknowledged them
    /// from the spool, because it does not know whose locks these are.
    pub(super) async fn commit_before_unlock(&self, ino: u64, owners: &[u64]) {
        let holds = owners.iter().any(|owner| self.locks.holds(ino, *owner));
        if holds && !failpoint::is_active("mount.close_gives_up_flock_early") {
            // The log has the error: nobody waits for this answer. Others wait for the lock, so it goes all the same.
            if self.commit_open(ino).await.is_err() {
                self.keep_uncommitted(ino).await;
            }
        }
    }

    /// A lock goes, though what was written could not be committed: that is not written over the next owner's version.
    async fn keep_uncommitted(&self, ino: u64) {
        if let Some(file) = self.files.get(ino) {
            file.keep_in_spool(self).await;
        }
    }

    /// A handle is gone: gives up the locks of owners that have no other one.
    pub(super) async fn unlock_released(&self, ino: u64, handle: u64) {
        let mut gone = Vec::new();
        self.lockers.released(ino, handle, |owners| {
            owners.iter().for_each(|owner| self.locks.give_up(ino, *owner));
            gone = owners.to_vec();
        });
        for owner in gone {
            self.locks.tell(ino, owner).await;
        }
    }

    async fn commit_open(&self, ino: u64) -> Outcome {
        match self.files.get(ino) {
            Some(file) => file.commit(self).await,
            None => Ok(()),
        }
    }

    /// Commits the file's writes, including the kernel's dirty pages. Without a writer there are none, and yet a file that was closed may
    /// wait in the spool.
    async fn write_back(&self, ino: u64) -> Outcome {
        let may_be_dirty = !self.bypasses_pages() || self.files.get(ino).is_some_and(|file| file.may_be_mapped());
        if may_be_dirty
            && self.files.has_writers(ino)
            && let Err(error) = self.backend.write_back_pages(ino).await
            && !is_gone(&error)
        {
            tracing::warn!(ino, %error, "what the kernel holds of a file cannot be written back before its lock is given up");
            return Err(Errno::EIO);
        }
        self.commit_open(ino).await
    }

    /// Shows everything that was committed before the lock was granted: recalled names, and this file's bytes and
    /// length.
    async fn revalidate(&self, ino: u64) -> Outcome {
        self.backend.names_invalidated().await;
        let Some(file) = self.files.get(ino) else { return Ok(()) };
        let attr = self.namespace.get(ino).await.map_err(|e| refused(ino, &e))?.attr;
        if self.kernel.lock().shows(ino, attr.version, attr.size_bytes) {
            return Ok(());
        }
        self.write_back(ino).await?;
        let Current { version, size_bytes, .. } = file.refresh(self, true).await?;
        match self.refresh_kernel(ino, version, size_bytes).await {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                tracing::warn!(ino, %error, "the kernel cannot be told what another mount changed of a file that is open");
                self.kernel.lock().holds_uncommitted(ino);
                return Err(Errno::EIO);
            }
        }
        Ok(())
    }
}

/// The mount or the file is gone.
fn is_gone(error: &IoError) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotConnected | ErrorKind::BrokenPipe)
}

fn refused(ino: u64, error: &Error) -> Errno {
    tracing::warn!(ino, %error, "a lock was refused");
    match error.code() {
        Code::SessionExpired => Errno::EIO,
        code => code.into(),
    }
}
