//! The mount: a store as an ordinary directory, through FUSE.
//!
//! The shell of the mount core (`tessera_mount`): it translates the kernel's requests ([`fs`]), runs the core's requests ([`namespace`]), and holds open
//! files ([`files`], [`dirs`]), old versions (`history`), locks ([`locking`]) and files on a local disk ([`spool`]). The client library turns bytes into
//! chunks and back. Start at [`Mount::new`]; docs/mount.md says what a mount promises.

pub mod attr;
pub mod beside;
pub mod callers;
pub mod counts;
pub mod dirs;
pub mod files;
pub mod fs;
mod history;
pub mod locking;
mod mount;
pub mod namespace;
mod rewrites;
pub mod spool;
mod xattrs;

pub use counts::MountMetrics;
pub use mount::{Mount, MountError, Options, Store};
