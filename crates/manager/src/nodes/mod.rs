//! Nodes and disks: membership, the cluster map, their statistics, the status report.

pub mod map;
pub mod membership;
pub mod rejected;
pub mod stats;
pub mod status;
