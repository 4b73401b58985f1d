//! Metrics of a running node, for `/metrics`.

use crate::core::{Counters, DiskStats};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tessera_wire::meta::DeviceWork;

/// Counters kept outside the core.
#[derive(Debug, Default)]
pub(super) struct ShellCounters {
    pub(super) puts: AtomicU64,
    pub(super) gets: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) far_received_bytes: AtomicU64,
    pub(super) far_sent_bytes: AtomicU64,
    pub(super) log_received_bytes: AtomicU64,
}

impl ShellCounters {
    /// Counts received payload bytes; `far`: from another host.
    pub(super) fn received(&self, bytes: u64, far: bool) {
        self.received_bytes.fetch_add(bytes, Relaxed);
        self.far_received_bytes.fetch_add(if far { bytes } else { 0 }, Relaxed);
    }

    /// Counts received payload bytes of the manager's log: traffic of the cluster, not of users' data.
    pub(super) fn received_log(&self, bytes: u64) {
        self.received(bytes, false);
        self.log_received_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts sent payload bytes; `far`: to another host.
    pub(super) fn sent(&self, bytes: u64, far: bool) {
        self.sent_bytes.fetch_add(bytes, Relaxed);
        self.far_sent_bytes.fetch_add(if far { bytes } else { 0 }, Relaxed);
    }
}

/// A snapshot of a node's metrics.
#[derive(Clone, Debug, Default)]
pub struct NodeMetrics {
    /// The core's counters.
    pub core: Counters,
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
    /// Bytes of the manager's command log and snapshots; part of `received_bytes`.
    pub log_received_bytes: u64,
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
