//! Whole clusters of the real cores, in one thread, from one seed.
//!
//! This crate holds the simulated world (network, disks that lose unsynced bytes, machines that stop), the clients that use
//! the store in it, the oracle that knows which contents the promises allow, and the plans that schedule faults.
//! The cores, the consensus, the stores and the SQL are those of production; nothing is mocked. No production crate
//! depends on this crate. The same seed gives the same trace (docs/promises.md names the fault model).
//!
//! Start at [`plan`] (what a seed may draw), then [`world`] (how events flow), then [`oracle`] (what is checked).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod client_host;
pub mod clock;
pub mod manager_host;
pub mod mount_host;
pub mod mount_world;
pub mod mutants;
pub mod network;
pub mod node_host;
pub mod oracle;
pub mod plan;
pub mod routes;
pub mod world;
