//! The locks of the queues between threads: tests compile the same queues with the locks of `tessera_interleave`.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
