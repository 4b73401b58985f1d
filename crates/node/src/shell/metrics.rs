//! Metrics of a running node, for `/metrics`.

use crate::core::{Counters, DiskStats};
use tessera_wire::meta::DeviceWork;

/// Payloads since the start.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Put requests received.
    pub puts: u64,
    /// Get requests served.
    pub gets: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Bytes of fragments received from peers with another host label; part of `received_bytes`.
    pub far_received_bytes: u64,
    /// Bytes sent to peers with another host label; part of `sent_bytes`.
    pub far_sent_bytes: u64,
    /// Bytes of the manager's command log and snapshots: traffic of the cluster, not of users' data; part of
    /// `received_bytes`.
    pub log_received_bytes: u64,
}

/// A snapshot of a node's metrics.
#[derive(Clone, Debug, Default)]
pub struct NodeMetrics {
    /// The core's counters.
    pub core: Counters,
    /// Payloads received and sent.
    pub traffic: Traffic,
    /// True if puts are acknowledged now.
    pub has_lease: bool,
    /// Node id; 0 before the first registration.
    pub node_id: u64,
    /// The node's incarnation.
    pub incarnation: u64,
    /// Disks: directory, id, failure (empty if it works), statistics.
    pub disks: Vec<(String, u64, String, DiskStats)>,
    /// Work done by the process's devices.
    pub device_work: Vec<DeviceWork>,
}

/// Work done by the process's devices since it started, for heartbeats and metrics.
pub(super) fn device_work() -> Vec<DeviceWork> {
    let done = tessera_accel::work_done().into_iter();
    done.map(|(device, primitive, work)| DeviceWork::of_process(device, primitive, work.jobs, work.bytes)).collect()
}
