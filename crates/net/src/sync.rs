//! What the outbox needs of threads: locks, and the wake-up of a thread that waits in `poll`. Tests compile the same outbox with the locks
//! of `tessera_interleave`.

pub(crate) use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes a thread that waits in `poll`.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    /// # Errors
    /// No file descriptor is free.
    pub fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Ends the wait under way, or else the next one.
    pub fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// The wait has ended.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    /// Readable once signalled.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
