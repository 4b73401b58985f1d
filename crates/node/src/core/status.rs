//! Status and counters of a node.

use super::ops::{DiskOp, DiskReply};
use super::{NodeCore, OpPurpose};
use tessera_wire::Error;
use tessera_wire::data::{DiskStatus, NodeStatus};

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

impl NodeCore {
    pub(super) fn status(&self) -> NodeStatus {
        let disks = self.disks.iter().map(|d| DiskStatus {
            disk_id: d.disk_id,
            path: d.about.path.clone(),
            segments: d.about.stats.segments,
            fragments: d.about.stats.fragments,
            live_bytes: d.about.stats.live_bytes,
            dead_bytes: d.about.stats.dead_bytes,
            index_bytes: d.about.stats.index_bytes,
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
            state.about.stats = super::DiskStats { rot, ..stats };
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
