//! The mount as a core: the state and the decisions of a mounted store, without threads, locks, files, sockets or
//! clocks.
//!
//! The `fuse` crate is the shell: it takes the kernel's requests, keeps one lock around each core, calls the client
//! library on the thread of the request, and hands the answers in. docs/mount.md says what a mount promises.
//!
//! # What is a core
//!
//! | module | state | in | out |
//! |---|---|---|---|
//! | [`namespace`] | cached attributes and names, delegations, deferred creates | questions, answers of the manager with the stamp of their request, recalls, ticks | create or commit a file, settled, answer a recall, invalidate names |
//! | [`kernel_cache`] | what the kernel holds of each inode | lookups, forgets, versions | generations, "look it up again", "drop your data" |
//! | [`synthetic`] | inodes of `.tessera/versions` | versions | numbers, attributes |
//! | [`write_buffer`] | bytes that were written and not sent yet | writes, truncates | ranges to send, bytes to show |
//! | [`spool`] | the file that a spool log describes; its budget | records | slices of the log, the state after a crash |
//! | [`rewrite_queue`] | files to be rewritten | hints | progress |
//!
//! [`namespace`] completes its actions by events ([`namespace::Event`]); the other modules are plain data. Start there.
//!
//! # What is not a core yet
//!
//! Open files (`fuse/src/files.rs`: when to buffer, stream, spool, commit) and the push of spool logs
//! (`fuse/src/spool`) are state behind a mutex that calls the client while it is locked. They will become events and
//! actions here: Clean, Buffered, Streaming, Spooled, Draining and Failed files.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::await_holding_lock)]

pub mod attr;
pub mod backend;
pub mod kernel_cache;
pub mod namespace;
pub mod rewrite_queue;
pub mod spool;
pub mod synthetic;
#[cfg(test)]
mod testing;
pub mod write_buffer;
pub mod xattr;
