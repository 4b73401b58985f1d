//! What heartbeats report of nodes and disks: in memory only.
//!
//! A manager that has just started has heard no node. Silence then counts from its own start, so that no node is
//! declared down or out for the time the manager itself was away.

use std::cell::Cell;
use std::collections::BTreeMap;
use tessera_wire::DiskInfo;
use tessera_wire::meta::DeviceWork;

/// What a node's last heartbeat said.
#[derive(Debug, Clone, Default)]
pub struct NodeStats {
    /// When it arrived, ns since 1970.
    pub heard_ns: i64,
    /// Incarnation of the node that sent it.
    pub incarnation: u64,
    /// Its number in this incarnation.
    pub number: u64,
    /// Map version the node has.
    pub known_map_version: u64,
    /// Tasks it runs.
    pub running: Vec<u64>,
    /// What its devices computed since it started.
    pub device_work: Vec<DeviceWork>,
}

/// Devices times primitives that are remembered of a node, and of all clients: what is sent is not bounded otherwise.
const MOST_WORK: usize = 64;
/// Bytes of a device's or primitive's name that are remembered.
const LONGEST_NAME: usize = 200;

fn is_sensible(work: &DeviceWork) -> bool {
    work.device.len() <= LONGEST_NAME && work.primitive.len() <= LONGEST_NAME
}

/// What a node says of its devices, as far as it is sensible (P14).
pub fn sensible_work(node_id: u64, said: &[DeviceWork]) -> Vec<DeviceWork> {
    let of_node = |work: &DeviceWork| DeviceWork { node_id, ..work.clone() };
    said.iter().filter(|w| is_sensible(w)).take(MOST_WORK).map(of_node).collect()
}

/// What a node's last heartbeat said of one of its disks.
#[derive(Debug, Clone, Default)]
pub struct DiskStats {
    /// When, ns since 1970.
    pub heard_ns: i64,
    /// Bytes still to be had, as the node sees it.
    pub free_bytes: u64,
    /// Bytes of its segment files.
    pub used_bytes: u64,
    /// Fragments held.
    pub fragments: u64,
    /// Memory of the node's index of them, bytes.
    pub index_bytes: u64,
    /// Operations waiting.
    pub queue_len: u32,
    /// Bytes re-read by the running scrub pass.
    pub scrubbed_bytes: u64,
    /// All that was on it then has been re-read, ns since 1970; 0: unknown.
    pub verified_ns: i64,
    /// Bytes of fragments that were assigned to it since that heartbeat.
    assigned: Cell<u64>,
    /// … and between that one and the one before: they may not show in `free_bytes` yet.
    assigned_before: u64,
}

impl DiskStats {
    /// Free bytes less what is on its way to the disk.
    pub fn available_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.assigned.get()).saturating_sub(self.assigned_before)
    }

    /// A fragment of so many bytes was assigned to the disk.
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
    /// Grows with each heartbeat: weights computed from older reports are recomputed.
    pub generation: u64,
    /// When the manager started, or last came to itself after it had been stopped (or its clock had jumped): heartbeats
    /// and requests of the time before may still wait in sockets, so that silence counts from here.
    pub awake_ns: i64,
    /// What clients' devices computed since this manager started, by device and primitive.
    pub client_work: BTreeMap<(String, String), (u64, u64)>,
    /// Last tick.
    ticked_ns: i64,
}

impl ClusterStats {
    /// Adds what a client's devices computed.
    pub fn hear_work(&mut self, said: &[DeviceWork]) {
        for work in said.iter().filter(|w| is_sensible(w)) {
            let name = (work.device.clone(), work.primitive.clone());
            if self.client_work.len() < MOST_WORK || self.client_work.contains_key(&name) {
                let (jobs, bytes) = self.client_work.entry(name).or_default();
                (*jobs, *bytes) = (jobs.saturating_add(work.jobs), bytes.saturating_add(work.bytes));
            }
        }
    }

    /// What devices computed: clients' (node 0), then nodes'.
    pub fn work(&self) -> Vec<DeviceWork> {
        let of_clients = self.client_work.iter().map(|((device, primitive), (jobs, bytes))| DeviceWork {
            node_id: 0,
            device: device.clone(),
            primitive: primitive.clone(),
            jobs: *jobs,
            bytes: *bytes,
        });
        of_clients.chain(self.nodes.values().flat_map(|n| n.device_work.iter().cloned())).collect()
    }

    /// Takes in what a heartbeat (or a registration) says of a disk.
    pub fn hear_disk(&mut self, now_ns: i64, disk_id: u64, said: &DiskInfo, scrubbed_bytes: u64) {
        self.generation += 1;
        let disk = self.disks.entry(disk_id).or_default();
        *disk = DiskStats {
            heard_ns: now_ns,
            free_bytes: said.free_bytes,
            used_bytes: said.used_bytes,
            fragments: said.fragments,
            index_bytes: said.index_bytes,
            queue_len: said.queue_len,
            scrubbed_bytes,
            verified_ns: said.verified_ns.clamp(0, now_ns.max(0)),
            assigned: Cell::new(0),
            assigned_before: disk.assigned.get(),
        };
    }

    /// A tick; one that comes more than `gap_ns` after the last says that the manager was away in between.
    pub fn tick(&mut self, now_ns: i64, gap_ns: i64) {
        if self.ticked_ns != 0 && now_ns - self.ticked_ns > gap_ns {
            self.awake_ns = now_ns;
        }
        self.ticked_ns = now_ns;
    }

    /// When the node was last heard; `started_ns` (the manager's start) if it never was.
    pub fn node_heard_ns(&self, node_id: u64, started_ns: i64) -> i64 {
        self.nodes.get(&node_id).map_or(started_ns, |n| n.heard_ns.max(started_ns)).max(self.awake_ns)
    }

    /// When the disk was last spoken of.
    pub fn disk_heard_ns(&self, disk_id: u64, started_ns: i64) -> i64 {
        self.disks.get(&disk_id).map_or(started_ns, |d| d.heard_ns.max(started_ns)).max(self.awake_ns)
    }

    /// Bytes that may still be put on a disk. A disk without a report yet counts with a part of its capacity.
    pub fn available_bytes(&self, disk_id: u64, capacity_bytes: u64) -> u64 {
        self.disks.get(&disk_id).map_or(capacity_bytes / 16, DiskStats::available_bytes)
    }
}
