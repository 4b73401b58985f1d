//! A storage node: fragments on disks, rebuilds, scrubbing, and a voter that holds the log of the metadata ([`voter`]).
//!
//! The crate holds [`core::NodeCore`], which makes all decisions and does no I/O; the state machine that rebuilds one
//! chunk (`rebuild`; crate `stripe` computes); `disk_worker`, which carries out decisions on a disk, and `read`, which
//! serves reads; and the `shell` with sockets, threads and clock. It does not know how bytes are laid out on a disk
//! (crate `segment`) or sent over a socket (crate `net`), and knows nothing of files, versions or users.
//!
//! The connection's thread checks a request ([`check`]), the core fences it (lease, incarnation, epochs), the disk's
//! threads carry it out, and the core fences it again before it is acknowledged (P9, P11).
//!
//! Start reading at [`core`], then `disk_worker`, then `shell`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod check;
mod config;
pub mod core;
pub mod disk_worker;
pub mod read;
mod rebuild;
#[allow(clippy::disallowed_methods)] // The shell has the clock, threads and sockets.
mod shell;
#[cfg(test)]
mod test_chunks;
pub mod voter;

pub use config::NodeConfig;
pub use core::{NodeMetrics, Traffic};
pub use shell::{NodeOptions, NodeServer, StartError};
