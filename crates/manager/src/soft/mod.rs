//! Soft state: kept in memory only and lost with the process. A command may depend on it only through
//! [`crate::ctx::Ctx::record`].
//!
//! The modules here hold data and know neither [`crate::ctx::Ctx`] nor [`crate::ctx::View`]. Commands change soft state by
//! [`Effect`]s, which run once the command is committed and do not run at replay.

pub mod jobs;
pub mod proofs;
pub mod rejected;
pub mod selector;
pub mod sessions;
pub mod stats;
pub mod tasks;

use crate::clock::Time;
use crate::coherence::leases::Leases;
use crate::coherence::locks::Lockers;
use crate::db::rows::MissingCursor;
use crate::internal::CompareMetadata;
use jobs::MaintenanceJobs;
use rejected::RejectedNodes;
use selector::GroupSelector;
use sessions::SoftSessions;
use stats::{ClusterStats, NodeStats};
use std::collections::{BTreeMap, BTreeSet};
use tasks::{MemberKey, Tasks};
use tessera_wire::DiskInfo;
use tessera_wire::meta::{MembersWaiting, MetadataComparison, PeerStatus, WaitReason};

/// State that is neither logged nor in the database; it is lost with the process.
#[derive(Default)]
pub struct SoftState {
    /// When this manager started.
    pub started_ns: i64,
    /// Last entry that is committed. Deletes of later entries are not handed out.
    pub committed_seq: u64,
    /// The peers that keep the metadata, as of the last tick.
    pub peers: Vec<PeerStatus>,
    /// Nodes whose voter is one of the peers, or may become one of them, as of the last tick.
    pub log_keepers: BTreeSet<u64>,
    /// What to tell people if more managers vote than `max_voters` allows; empty: no more do.
    pub surplus_managers: String,
    /// Why requests are refused that make the metadata grow: the disk of this manager. Empty: none are.
    pub no_room: String,
    /// Comparisons of the managers' databases.
    pub comparison: ComparisonState,
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

/// Comparisons of the managers' databases.
#[derive(Debug, Default)]
pub struct ComparisonState {
    /// A person asked for one.
    pub wanted: bool,
    /// The part that the last entry asked for.
    pub asked: Option<CompareMetadata>,
    /// The last one, for `status`.
    pub last: MetadataComparison,
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
    /// Members of lost and draining disks that wait for another disk, as of the last round of planning.
    pub members_waiting: Vec<MembersWaiting>,
    /// Repair counts.
    pub repaired: RepairCounters,
    /// Maintenance jobs that an operator started.
    pub jobs: MaintenanceJobs,
    /// Behind this one, missing rows are loaded next.
    pub missing_from: MissingCursor,
    /// How far deletes have been handed out, by disk.
    pub deletes: BTreeMap<u64, DeleteCursor>,
    /// When each disk was last told to list its fragments.
    pub listed_ns: BTreeMap<u64, i64>,
    /// When each disk was last told to re-read its fragments.
    pub scrubbed_ns: BTreeMap<u64, i64>,
    /// When the parts of a tick last ran.
    pub(crate) pace: Pace,
}

impl ClusterState {
    /// Number of members that wait for another disk for this reason.
    pub(crate) fn waiting(&self, reason: WaitReason) -> u64 {
        self.members_waiting.iter().filter(|it| it.reason() == reason).map(|it| it.members).sum()
    }
}

/// When the parts of a tick last ran, and for which map.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    pub(crate) moves: (u64, i64),
    pub(crate) groups: (u64, i64),
    pub(crate) finish_ns: i64,
    pub(crate) balance_ns: i64,
    pub(crate) missing_ns: i64,
    pub(crate) proof_ns: i64,
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
    /// Deletes that nodes confirmed.
    pub deletes: u64,
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
    /// A writer got places for this many bytes of its reservation.
    ReservationUsed { session_id: u64, bytes: u64 },
    /// A session has ended.
    SessionEnded { session_id: u64 },
    /// This file may have lost its last name and its last session: the next tick checks it.
    CheckOrphan { ino: u64 },
    /// Only a reader keeps a version of this file: the next tick checks it.
    TrimLater { ino: u64 },
    /// A file was committed that may be a checkpoint image.
    StepFileCommitted { ino: u64 },
    /// A name was removed because its file's lifetime ended.
    FileExpired,
    /// A new chunk could not be placed where its hint asked.
    PlacementNotMet,
    /// A member of a group changed: its tasks under way are void.
    MemberChanged(MemberKey),
    /// A disk was lost.
    DiskLost { disk_id: u64 },
    /// A node is down or out: other nodes take over its tasks.
    NodeGone { node_id: u64 },
    /// A node has registered.
    NodeRegistered {
        node_id: u64,
        /// Its new incarnation.
        incarnation: u64,
        time: Time,
        /// Its disks, as it described them.
        disks: Vec<(u64, DiskInfo)>,
    },
    /// The managers compare this part of their databases.
    Compare(CompareMetadata),
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
            Effect::NodeRegistered { node_id, incarnation, time, disks } => {
                let now_ns = time.now_ns;
                cluster.tasks.forget_node(node_id);
                let stats = NodeStats { heard_ns: now_ns, incarnation, registered_ns: now_ns, ..NodeStats::default() };
                cluster.stats.nodes.insert(node_id, stats);
                for (disk_id, said) in &disks {
                    cluster.stats.hear_disk(time, *disk_id, said, 0);
                }
            }
            Effect::Compare(part) => soft.comparison.asked = Some(part),
            Effect::LockClientsRecorded(clients) => soft.locks.noted(clients),
        }
    }
}
