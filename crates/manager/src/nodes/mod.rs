//! Nodes: membership, heartbeats, planning in ticks, the status report.

pub mod heartbeat;
pub mod membership;
pub mod plan;
pub mod status;
