//! Soft state: kept in memory only and lost with the process. A command may depend on it only through
//! [`crate::ctx::Ctx::record`].
//!
//! The modules here hold data and know neither [`crate::ctx::Ctx`] nor [`crate::ctx::View`]. Commands change soft state by
//! [`Effect`]s, which run once the command is committed and do not run at replay.

pub mod jobs;
pub mod rejected;
pub mod selector;
pub mod sessions;
pub mod stats;
pub mod tasks;

use crate::coherence::leases::Leases;
use crate::coherence::locks::Lockers;
use jobs::MaintenanceJobs;
use rejected::RejectedNodes;
use selector::GroupSelector;
use sessions::SoftSessions;
use stats::{ClusterStats, NodeStats};
use std::collections::BTreeMap;
use tasks::Tasks;
use tessera_wire::DiskInfo;

/// State that is neither logged nor in the database; it is lost with the process.
#[derive(Default)]
pub struct SoftState {
    /// When this manager started.
    pub started_ns: i64,
    /// Enough log replicas hold the entries up to this one. Deletes of later entries are not handed out.
    pub replicated_seq: u64,
    /// Nodes that hold every acknowledged entry of the log, as of the last tick or status request.
    pub log_replicas: Vec<u64>,
    /// Nodes of other clusters that tried to join this one.
    pub rejected_nodes: RejectedNodes,
    /// Sessions: last use, readers, reservations.
    pub sessions: SoftSessions,
    /// Files committed since the last tick that may be checkpoint images where time steps replace each other.
    pub step_files: Vec<u64>,
    /// Number of names removed because their file's lifetime ended.
    pub files_expired: u64,
    /// Leases and delegations.
    pub leases: Leases,
    /// Byte-range locks.
    pub locks: Lockers,
    /// Everything about nodes, disks and tasks.
    pub cluster: ClusterState,
}

/// Soft state of nodes, disks and tasks.
#[derive(Debug, Default)]
pub struct ClusterState {
    /// The open groups and their weights.
    pub selector: GroupSelector,
    /// New chunks placed elsewhere than their placement hint asked.
    pub placements_not_met: u64,
    /// What nodes report of themselves and their disks.
    pub stats: ClusterStats,
    /// Tasks that are planned or handed out.
    pub tasks: Tasks,
    /// Repair counts.
    pub repaired: RepairCounters,
    /// Maintenance jobs that an operator started.
    pub jobs: MaintenanceJobs,
    /// Group from which missing rows are loaded next.
    pub missing_from: u64,
    /// How far deletes have been handed out, by disk.
    pub deletes: BTreeMap<u64, DeleteCursor>,
    /// When each disk was last told to list its fragments.
    pub listed_ns: BTreeMap<u64, i64>,
    /// When each disk was last told to re-read its fragments.
    pub scrubbed_ns: BTreeMap<u64, i64>,
    /// When the parts of a tick last ran.
    pub(crate) pace: Pace,
}

/// When the parts of a tick last ran, and for which map.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    pub(crate) moves: (u64, i64),
    pub(crate) groups: (u64, i64),
    pub(crate) finish_ns: i64,
    pub(crate) balance_ns: i64,
    pub(crate) missing_ns: i64,
    pub(crate) maintenance_ns: i64,
}

/// Repair counts since the manager started.
#[derive(Debug, Default, Clone, Copy)]
pub struct RepairCounters {
    /// Fragments put in place.
    pub fragments: u64,
    /// Bytes of those fragments, as nodes reported.
    pub bytes: u64,
    /// Fragments found bad by scrub, verification or failed reads.
    pub bad: u64,
    /// Bad fragments that readers reported.
    pub reports: u64,
    /// Fragments that could not be rebuilt; they are tried again.
    pub failed: u64,
}

/// How far a disk's delete orders have been handed out.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeleteCursor {
    /// Last (chunk, fragment) handed out.
    pub(crate) at: (u64, u32),
    /// Starts over from the first fragment, but not before this time.
    pub(crate) again_ns: i64,
}

/// A change of soft state that follows from a committed command.
pub type Effect = Box<dyn FnOnce(&mut SoftState) + Send>;

impl ClusterState {
    /// A node has registered, with these disks as it described them.
    pub fn node_registered(&mut self, node_id: u64, incarnation: u64, now_ns: i64, disks: &[(u64, DiskInfo)]) {
        self.tasks.forget_node(node_id);
        let stats = NodeStats { heard_ns: now_ns, incarnation, ..NodeStats::default() };
        self.stats.nodes.insert(node_id, stats);
        disks.iter().for_each(|(disk_id, said)| self.stats.hear_disk(now_ns, *disk_id, said, 0));
    }
}
