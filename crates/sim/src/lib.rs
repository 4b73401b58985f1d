//! Whole clusters of the real cores, in one thread, from one seed.
//!
//! Here live the simulated world (network, disks that forget, machines that stop), the clients that use the
//! store in it, the oracle that knows what they were promised, and the plans that say what goes wrong when.
//! The cores, the segment and log stores and the SQL are the ones of production; nothing is mocked. Nothing in
//! production knows of this crate. The same seed gives the same trace (docs/promises.md names the fault model).
//!
//! Start at [`plan`] (what a seed may draw), then [`world`] (how events flow), then [`oracle`] (what is judged).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod client_host;
pub mod clock;
pub mod manager_host;
pub mod mutants;
pub mod network;
pub mod node_host;
pub mod oracle;
pub mod plan;
pub mod world;
