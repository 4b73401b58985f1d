//! A storage node: fragments on disks, rebuilds, scrubbing, and a replica of the manager's command log.
//!
//! What lives here: [`core::NodeCore`], which decides everything and does no I/O; the machine of one chunk's rebuild
//! (`rebuild`; crate `stripe` computes); what carries decisions out on a disk (`disk_worker`) and serves reads;
//! and the `shell` around all of it: sockets, threads, clock. What may not live here: how bytes lie on a disk (crate
//! `segment`), how they cross a socket (crate `net`), and any knowledge of files, versions or users.
//!
//! A request is checked on its connection's thread ([`check`]), fenced by the core (lease, incarnation,
//! epochs), carried out by the disk's own threads, and fenced again before it is acknowledged (P9, P11).
//!
//! Start reading at [`core`], then `disk_worker`, then `shell`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod check;
mod config;
pub mod core;
pub mod disk_worker;
pub mod log_replica;
pub mod read;
mod rebuild;
#[allow(clippy::disallowed_methods)] // The shell has the clock, threads and sockets.
mod shell;
#[cfg(test)]
mod test_chunks;

pub use config::NodeConfig;
pub use shell::{NodeMetrics, NodeOptions, NodeServer, StartError};
