//! The mount: a store as a directory, without threads, sockets, blocking calls or clocks.
//!
//! [`mount::Mount`] has one method for each operation that a kernel asks for. They are `async fn`s over
//! [`backend::Backend`], which is everything that a mount needs from outside. The `fuse` crate runs them on threads over
//! the client library; the simulator runs them as tasks. ARCHITECTURE.md says why; docs/mount.md says what a mount
//! promises.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ops`] | the operations: names and attributes, handles, extended attributes, locks, old versions |
//! | [`open_file`] | written bytes that are in no version yet: buffered, in a write session, in the spool |
//! | [`namespace`] | cached attributes and names, delegations, deferred creates: a state machine, and its driver |
//! | [`spool`] | logs on a local disk, their pushes into the store, recovery after a crash |
//! | [`kernel_cache`] | what the kernel holds of each inode |
//! | [`synthetic`] | inodes of `.tessera/versions` |
//! | [`write_buffer`], [`rewrite_queue`], [`under_way`], [`xattr`], [`attr`], [`errno`] | plain data |
//!
//! Start at [`mount`] and [`ops`]. The clippy lints at the top of this file keep blocking calls and locks across an
//! `.await` out.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::await_holding_lock)]

pub mod attr;
pub mod backend;
pub mod errno;
mod kernel_cache;
mod lockers;
pub mod locks;
pub mod mount;
pub mod namespace;
mod open_file;
pub mod ops;
mod race;
mod rewrite_queue;
pub mod spool;
mod synthetic;
#[cfg(test)]
mod tests;
mod under_way;
mod write_buffer;
mod xattr;
