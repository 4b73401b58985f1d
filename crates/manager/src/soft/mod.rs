//! Soft state: what the manager keeps in memory only. It is gone with the process, and a command may depend on it through [`crate::ctx::Ctx::record`] only.
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
use std::collections::{BTreeMap, BTreeSet};
use tasks::{MemberKey, Tasks};
use tessera_wire::DiskInfo;

/// State that is not logged and not in the database: gone with the process.
#[derive(Default)]
pub struct SoftState {
    /// When this manager started.
    pub started_ns: i64,
    /// Entries up to here are held by enough log replicas. Deletes of later ones are not handed out.
    pub replicated_seq: u64,
    /// Nodes that hold all of the log that was acknowledged. As of the last tick or question for the status.
    pub log_replicas: Vec<u64>,
    /// Nodes of other clusters that tried to join this one.
    pub rejected_nodes: RejectedNodes,
    /// Sessions: when last used, young readers.
    pub sessions: SoftSessions,
    /// Files committed since the last tick that may be checkpoint images in a directory where time steps replace each other.
    pub step_files: Vec<u64>,
    /// Names removed because the lifetime of their file was over.
    pub files_expired: u64,
    /// Leases on inodes.
    pub leases: Leases,
    /// Locks on files.
    pub locks: Lockers,
    /// Everything about nodes, disks and tasks.
    pub cluster: ClusterState,
}

/// Soft state of nodes, disks and tasks.
#[derive(Debug, Default)]
pub struct ClusterState {
    /// The open groups and their weights.
    pub selector: GroupSelector,
    /// New chunks that went elsewhere than their placement hint asked.
    pub placements_not_met: u64,
    /// What nodes say of themselves and their disks.
    pub stats: ClusterStats,
    /// Work that is handed out.
    pub tasks: Tasks,
    /// What was repaired.
    pub repaired: RepairCounters,
    /// Maintenance jobs that an operator started.
    pub jobs: MaintenanceJobs,
    /// Group from which missing rows are loaded next.
    pub missing_from: u64,
    /// How far deletes have been handed out, by disk.
    pub deletes: BTreeMap<u64, DeleteCursor>,
    /// When each disk was last told to list itself.
    pub listed_ns: BTreeMap<u64, i64>,
    /// When each disk was last told to re-read itself.
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

/// Counts of what was repaired since the manager started.
#[derive(Debug, Default, Clone, Copy)]
pub struct RepairCounters {
    /// Fragments put in place.
    pub fragments: u64,
    /// Their bytes, as nodes reported.
    pub bytes: u64,
    /// Fragments found bad by scrub, verification or failed reads.
    pub bad: u64,
    /// Reports of readers.
    pub reports: u64,
    /// Fragments that could not be rebuilt (and are tried again).
    pub failed: u64,
}

/// How far a disk's delete orders have been handed out.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeleteCursor {
    /// Last (chunk, fragment) handed out.
    pub(crate) at: (u64, u32),
    /// Not before this time, from the start.
    pub(crate) again_ns: i64,
}

/// A change of soft state that follows from a committed command.
#[derive(Debug)]
pub enum Effect {
    /// A write session was opened.
    SessionOpened {
        session_id: u64,
        /// Client that opened it.
        client_id: u64,
        now_ns: i64,
        /// Bytes reserved for it.
        reserved_bytes: u64,
    },
    /// A writer got places for so many bytes of its reservation.
    ReservationUsed { session_id: u64, bytes: u64 },
    /// A session has ended.
    SessionEnded { session_id: u64 },
    /// This file may have lost its last name and its last session: look at the next tick.
    CheckOrphan { ino: u64 },
    /// A version of this file is kept for a reader only: look at the next tick.
    TrimLater { ino: u64 },
    /// A file was committed that may be a checkpoint image.
    StepFileCommitted { ino: u64 },
    /// A name was removed because the lifetime of its file was over.
    FileExpired,
    /// A new chunk could not be placed where its hint asked.
    PlacementNotMet,
    /// A member of a group changed: work under way for it is void.
    MemberChanged(MemberKey),
    /// A disk was lost.
    DiskLost { disk_id: u64 },
    /// A node is down or out: its tasks go to others.
    NodeGone { node_id: u64 },
    /// A node has registered.
    NodeRegistered {
        node_id: u64,
        /// Its new incarnation.
        incarnation: u64,
        now_ns: i64,
        /// Its disks, as it described them.
        disks: Vec<(u64, DiskInfo)>,
    },
    /// The clients that may hold locks are on record.
    LockClientsRecorded(BTreeSet<u64>),
}

impl Effect {
    /// Changes the soft state.
    pub fn apply(self, soft: &mut SoftState) {
        let cluster = &mut soft.cluster;
        match self {
            Effect::SessionOpened { session_id, client_id, now_ns, reserved_bytes } => {
                soft.sessions.insert_writer(session_id, client_id, now_ns, now_ns, reserved_bytes);
            }
            Effect::ReservationUsed { session_id, bytes } => soft.sessions.took(session_id, bytes),
            Effect::SessionEnded { session_id } => soft.sessions.forget(session_id),
            Effect::CheckOrphan { ino } => soft.sessions.release_later(ino),
            Effect::TrimLater { ino } => soft.sessions.trim_later(ino),
            Effect::StepFileCommitted { ino } => soft.step_files.push(ino),
            Effect::FileExpired => soft.files_expired += 1,
            Effect::PlacementNotMet => cluster.placements_not_met += 1,
            Effect::MemberChanged(member) => cluster.tasks.forget_member(member),
            Effect::DiskLost { disk_id } => cluster.tasks.forget_disk(disk_id),
            Effect::NodeGone { node_id } => cluster.tasks.forget_node(node_id),
            Effect::NodeRegistered { node_id, incarnation, now_ns, disks } => {
                cluster.tasks.forget_node(node_id);
                let stats = NodeStats { heard_ns: now_ns, incarnation, ..NodeStats::default() };
                cluster.stats.nodes.insert(node_id, stats);
                for (disk_id, said) in &disks {
                    cluster.stats.hear_disk(now_ns, *disk_id, said, 0);
                }
            }
            Effect::LockClientsRecorded(clients) => soft.locks.noted(clients),
        }
    }
}
