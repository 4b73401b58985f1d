//! The metadata service: namespace, versions, chunk directory, placement groups, repair plan, on SQL.
//!
//! [`core::ManagerCore`] is a state machine: it takes events and a time and returns actions. It owns the
//! database and knows no socket, thread or clock; [`shell`] puts it on the network. A mutating request becomes a
//! command, is applied in one group commit with other commands, and answered when the [`group`] has committed their log entry
//! (ARCHITECTURE.md, "The manager"). Bulk data never passes through the manager.
//!
//! Start with `db/schema.sql`, the data model; then `ctx.rs` (what a command may look at), `log/registry.rs` (all requests, one a
//! row) and [`core`] (how commands flow). Folders import each other in one direction: `db`, `coherence`, `soft`, `ctx`,
//! `map`, `placement`, `chunks`, `namespace`, `files`, `repair`, `nodes`, `log`, `core`, [`shell`].
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod chunks;
mod clock;
mod coherence;
pub mod config;
pub mod core;
mod counts;
mod ctx;
#[allow(clippy::disallowed_methods)] // SQLite has files of its own; the simulator opens it in memory.
pub mod db;
pub mod error;
mod files;
pub mod group;
#[allow(clippy::disallowed_methods)] // Part of the shell.
mod inbox;
mod internal;
mod log;
mod map;
#[allow(clippy::disallowed_methods)] // It has the clock.
mod metadata_scrub;
pub mod metrics;
mod namespace;
mod nodes;
mod placement;
mod repair;
#[allow(clippy::disallowed_methods)] // The shell has the clock, threads and sockets.
pub mod shell;
mod soft;
mod sync;

pub use crate::db::pages::{decode as page_extents, for_each_chunk};
pub use crate::log::batch::{ReplayError, replay_all};

#[cfg(test)]
mod rig;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
