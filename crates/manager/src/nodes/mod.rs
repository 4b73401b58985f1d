//! Nodes: membership, heartbeats, what time brings them, the status report.

pub mod heartbeat;
pub mod membership;
pub mod plan;
pub mod status;
