//! The metadata service: namespace, versions, chunk directory, placement groups, repair plan, on SQL.
//!
//! [`core::ManagerCore`] is the whole of it as a state machine: it takes events and a time and gives actions, owns the
//! database and knows no socket, thread or clock; [`shell`] puts it on the network. A mutating request becomes a
//! command, is applied in one group commit with others, written to the command log and answered when enough replicas
//! hold it (ARCHITECTURE.md, "The manager"). Bulk data never comes here.
//!
//! Start with `schema.sql`, the data model; then [`state`] (what a command may look at), [`core`] (how commands flow),
//! and the modules named after what they do. Modules called by the seam in [`cluster`] know groups, nodes and disks.

pub mod allocate;
pub mod anchors;
pub mod answers;
pub mod audit;
pub mod batch;
pub mod cache;
pub mod choose;
pub mod cluster;
pub mod command;
pub mod command_log;
pub mod commit;
pub mod config;
pub mod core;
pub mod db;
pub mod error;
pub mod expiry;
pub mod figures;
pub mod fills;
pub mod garbage;
pub mod hints;
pub mod inodes;
pub mod internal;
pub mod inventory;
pub mod layout;
pub mod leases;
pub mod locks;
pub mod membership;
pub mod meta;
pub mod metrics;
pub mod namespace;
pub mod pages;
pub mod passes;
pub mod placement;
pub mod planted;
mod preallocated;
pub mod reads;
pub mod refs;
pub mod rejected_nodes;
pub mod repair;
pub mod restore;
pub mod roster;
pub mod rows;
pub mod sessions;
pub mod shell;
pub mod state;
pub mod status;
pub mod tasks;
pub mod upkeep;
pub mod versions;

#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod fake_cluster;

#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
