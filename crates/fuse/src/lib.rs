//! The mount: a store as an ordinary directory, through FUSE.
//!
//! Here live the translation of the kernel's requests into client calls ([`fs`]), what is open ([`files`], [`dirs`]), old versions (`history`), what is
//! remembered under leases ([`names`]), locks ([`locking`]), and what waits on a local disk ([`spool`]). How bytes become chunks and how they come
//! back is the client library's; nothing here knows. Start at [`Mount::new`]; docs/mount.md says what is promised.

pub mod attr;
pub mod beside;
pub mod callers;
pub mod counts;
pub mod dirs;
pub mod files;
pub mod fs;
mod history;
pub mod locking;
mod making;
mod mount;
pub mod names;
mod rewrites;
pub mod spool;
mod xattrs;

pub use counts::MountMetrics;
pub use mount::{Mount, MountError, Options, Store};
