//! What heartbeats report of nodes and disks: in memory only.
//!
//! A manager that has just started has heard no node. It counts silence from its own start, so that its own downtime makes no
//! node down or out.

use crate::clock::Time;
use std::cell::Cell;
use std::collections::BTreeMap;
use tessera_wire::DiskInfo;
use tessera_wire::meta::DeviceWork;

/// A node's last heartbeat.
#[derive(Debug, Clone, Default)]
pub struct NodeStats {
    /// When it arrived, ns since 1970.
    pub heard_ns: i64,
    /// Incarnation of the node that sent it.
    pub incarnation: u64,
    /// Number of the heartbeat in this incarnation.
    pub number: u64,
    /// What its devices computed since it started.
    pub device_work: Vec<DeviceWork>,
    /// When it registered, ns since 1970; 0: not since this manager started.
    pub registered_ns: i64,
    /// Peer id of its log voter; 0: none.
    pub voter_id: u64,
}

/// Most (device, primitive) pairs kept for each node, and for all clients together: messages set no bound.
const MOST_WORK: usize = 64;
/// Longest name of a device or primitive that is kept, bytes.
const LONGEST_NAME: usize = 200;

fn is_sensible(work: &DeviceWork) -> bool {
    work.device.len() <= LONGEST_NAME && work.primitive.len() <= LONGEST_NAME
}

/// The valid part of a node's device report (P14).
pub fn sensible_work(node_id: u64, said: &[DeviceWork]) -> Vec<DeviceWork> {
    let of_node = |work: &DeviceWork| DeviceWork { node_id, ..work.clone() };
    said.iter().filter(|w| is_sensible(w)).take(MOST_WORK).map(of_node).collect()
}

/// A node's last report on one of its disks.
#[derive(Debug, Clone, Default)]
pub struct DiskStats {
    /// When it arrived, ns since 1970.
    pub heard_ns: i64,
    /// What the node said of it.
    pub said: DiskInfo,
    /// Bytes re-read by the running scrub pass.
    pub scrubbed_bytes: u64,
    /// Bytes of fragments assigned to the disk since that heartbeat.
    assigned: Cell<u64>,
    /// The same for the interval before that heartbeat: `said.free_bytes` may not show them yet.
    assigned_before: u64,
}

impl DiskStats {
    /// Free bytes less those already assigned.
    pub fn available_bytes(&self) -> u64 {
        self.said.free_bytes.saturating_sub(self.assigned.get()).saturating_sub(self.assigned_before)
    }

    /// Counts a fragment of this size as assigned to the disk.
    pub fn assign(&self, bytes: u64) {
        self.assigned.set(self.assigned.get().saturating_add(bytes));
    }
}

/// Reports of all nodes and disks.
#[derive(Debug, Default)]
pub struct ClusterStats {
    /// By node id.
    pub nodes: BTreeMap<u64, NodeStats>,
    /// By disk id.
    pub disks: BTreeMap<u64, DiskStats>,
    /// Rises with each heartbeat: weights computed from older reports are recomputed.
    pub generation: u64,
    /// When the manager started, or last resumed after a pause or a clock jump. Older heartbeats and requests may still wait in
    /// sockets, so silence counts from here.
    pub awake_ns: i64,
    /// Work of clients' devices since this manager started, by device and primitive.
    pub client_work: BTreeMap<(String, String), DeviceWork>,
    /// Last tick.
    ticked_ns: i64,
}

impl ClusterStats {
    /// Adds a client's report of device work.
    pub fn hear_work(&mut self, said: &[DeviceWork]) {
        for work in said.iter().filter(|w| is_sensible(w)) {
            let name = (work.device.clone(), work.primitive.clone());
            if self.client_work.len() < MOST_WORK || self.client_work.contains_key(&name) {
                let none = || DeviceWork { node_id: 0, jobs: 0, bytes: 0, ..work.clone() };
                let sum = self.client_work.entry(name).or_insert_with(none);
                (sum.jobs, sum.bytes) = (sum.jobs.saturating_add(work.jobs), sum.bytes.saturating_add(work.bytes));
            }
        }
    }

    /// Device work: clients' (node 0), then nodes'.
    pub fn work(&self) -> Vec<DeviceWork> {
        self.client_work.values().chain(self.nodes.values().flat_map(|n| &n.device_work)).cloned().collect()
    }

    /// Stores the disk report of a heartbeat or registration.
    pub fn hear_disk(&mut self, time: Time, disk_id: u64, said: &DiskInfo, scrubbed_bytes: u64) {
        self.generation += 1;
        let disk = self.disks.entry(disk_id).or_default();
        *disk = DiskStats {
            heard_ns: time.now_ns,
            said: DiskInfo { verified_ns: said.verified_ns.clamp(0, time.wall_ns.max(0)), ..said.clone() },
            scrubbed_bytes,
            assigned: Cell::new(0),
            assigned_before: disk.assigned.get(),
        };
    }

    /// Notes a tick. If it comes more than `gap_ns` after the last, the manager was paused in between.
    pub fn tick(&mut self, now_ns: i64, gap_ns: i64) {
        if self.ticked_ns != 0 && now_ns - self.ticked_ns > gap_ns {
            self.awake_ns = now_ns;
        }
        self.ticked_ns = now_ns;
    }

    /// When the node's last heartbeat came; never before `started_ns` (the manager's start) or `awake_ns`.
    pub fn node_heard_ns(&self, node_id: u64, started_ns: i64) -> i64 {
        self.nodes.get(&node_id).map_or(started_ns, |n| n.heard_ns.max(started_ns)).max(self.awake_ns)
    }

    /// When the node registered; 0: not since this manager started.
    pub fn registered_ns(&self, node_id: u64) -> i64 {
        self.nodes.get(&node_id).map_or(0, |n| n.registered_ns)
    }

    /// When the disk's last report came; never before `started_ns` or `awake_ns`.
    pub fn disk_heard_ns(&self, disk_id: u64, started_ns: i64) -> i64 {
        self.disks.get(&disk_id).map_or(started_ns, |d| d.heard_ns.max(started_ns)).max(self.awake_ns)
    }

    /// Bytes that can still be placed on a disk. A disk without a report counts with a part of its capacity.
    pub fn available_bytes(&self, disk_id: u64, capacity_bytes: u64) -> u64 {
        self.disks.get(&disk_id).map_or(capacity_bytes / 16, DiskStats::available_bytes)
    }
}
