//! Status and counters of a node.

use super::ops::{DiskOp, DiskReply};
use super::{DiskState, DiskStats, NodeCore, OpPurpose};
use tessera_wire::Error;
use tessera_wire::data::{DiskStatus, NodeStatus};
use tessera_wire::meta::DeviceWork;

/// Counters since the start, as shown in metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fragments acknowledged.
    pub fragments_stored: u64,
    /// Fragments refused one by one in puts.
    pub fragments_refused: u64,
    /// Puts refused as a whole (no lease, overload).
    pub puts_refused: u64,
    /// Fragments deleted.
    pub fragments_deleted: u64,
    /// Fragments rebuilt here.
    pub fragments_rebuilt: u64,
    /// Fragments that could not be rebuilt.
    pub rebuilds_failed: u64,
    /// Bytes of fragments written by rebuilds.
    pub rebuilt_bytes: u64,
    /// Fragments on other disks found missing or wrong during rebuilds.
    pub bad_sources: u64,
    /// Corrupt fragments found on this node's disks.
    pub rot_found: u64,
    /// Bytes re-read by scrubbing.
    pub scrubbed_bytes: u64,
    /// Bytes freed by compaction.
    pub compacted_bytes: u64,
    /// Heartbeats that the manager answered.
    pub heartbeats_answered: u64,
    /// Heartbeats without an answer.
    pub heartbeats_lost: u64,
    /// How often this node had to register again.
    pub rejoins: u64,
    /// Answers of managers whose metadata went backwards.
    pub manager_went_backwards: u64,
    /// Disk operations that failed.
    pub disk_errors: u64,
    /// Tasks finished.
    pub tasks_finished: u64,
}

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

impl NodeCore {
    /// Metrics of the node, without its traffic and its devices' work.
    pub fn metrics(&self) -> NodeMetrics {
        let failure = |disk: &DiskState| disk.failed.clone().unwrap_or_default();
        let disk = |d: &DiskState| (d.about.path.clone(), d.disk_id, failure(d), d.about.stats.clone());
        NodeMetrics {
            core: self.counters.clone(),
            has_lease: self.check_lease().is_ok(),
            node_id: self.membership.node_id,
            incarnation: self.membership.incarnation,
            disks: self.disks.iter().map(disk).collect(),
            ..NodeMetrics::default()
        }
    }

    pub(super) fn status(&self) -> NodeStatus {
        let disks = self.disks.iter().map(|d| DiskStatus {
            disk_id: d.disk_id,
            path: d.about.path.clone(),
            segments: d.about.stats.store.segments,
            fragments: d.about.stats.store.fragments,
            live_bytes: d.about.stats.store.live_bytes,
            dead_bytes: d.about.stats.store.dead_bytes,
            index_bytes: d.about.stats.store.index_bytes,
            poisoned: d.failed.clone().unwrap_or_default(),
            scrubbed_bytes: d.scrub.bytes,
            rot_found: d.scrub.rot_found,
        });
        NodeStatus {
            node: Some(self.node_info()),
            disks: disks.collect(),
            tasks: self.tasks.running().len() as u64,
            device: self.me.device.clone(),
        }
    }

    /// Requests statistics from the disks; the next heartbeat reports them.
    pub(super) fn refresh_stats(&mut self) {
        for disk in 0..self.disks.len() {
            if !self.disks[disk].stats_asked {
                self.disks[disk].stats_asked = true;
                self.disk_op(disk, DiskOp::Stats, OpPurpose::Stats);
            }
        }
    }

    pub(super) fn on_stats(&mut self, disk: usize, result: Result<DiskReply, Error>) {
        let state = &mut self.disks[disk];
        assert!(state.stats_asked, "disk {disk} told its state without being asked");
        state.stats_asked = false;
        if let Ok(DiskReply::Stats(stats)) = result {
            let rot = std::mem::take(&mut state.about.stats.rot);
            state.about.stats = DiskStats { rot, ..stats };
        }
    }

    /// Reports the corrupt fragments found when the disks were opened, once the disks have ids.
    pub(super) fn report_rot_of_opening(&mut self) {
        for disk in 0..self.disks.len() {
            let disk_id = self.disks[disk].disk_id;
            if disk_id != 0 {
                for key in std::mem::take(&mut self.disks[disk].about.stats.rot) {
                    self.report_bad(key.on_disk(disk_id));
                }
            }
        }
    }
}
