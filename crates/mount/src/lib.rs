//! The mount as a core: what a mounted store remembers and decides, without threads, locks, files, sockets or clocks.
//!
//! Here live what the kernel was told ([`kernel_cache`], [`synthetic`]), bytes that were written and not sent yet ([`write_buffer`]), the
//! format and replay of spool logs ([`spool`]), and files to be rewritten ([`rewrite_queue`]). How bytes become chunks is the client
//! library's; how the kernel is talked to is the `fuse` crate's. docs/mount.md says what a mount promises.

pub mod attr;
pub mod kernel_cache;
pub mod rewrite_queue;
pub mod spool;
pub mod synthetic;
pub mod write_buffer;
pub mod xattr;
