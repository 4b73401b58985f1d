//! The cluster: map, status, upkeep, membership, heartbeats and the tasks they carry, inventories.

use super::FragmentRef;
use crate::class::ClassInfo;
use crate::common::*;

/// Ask for the map: everything that changed since `known_version`, or just these groups.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMap {
    /// What the asker has; 0: nothing.
    #[prost(uint64, tag = "1")]
    pub known_version: u64,
    /// Groups wanted whatever their age.
    #[prost(uint64, repeated, tag = "2")]
    pub pg_ids: Vec<u64>,
    /// All nodes and disks whatever their age.
    #[prost(bool, tag = "3")]
    pub all_nodes: bool,
}

/// Nodes, disks and groups: complete or what changed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClusterMap {
    /// Grows with each change of any node, disk or group.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Nodes.
    #[prost(message, repeated, tag = "2")]
    pub nodes: Vec<NodeInfo>,
    /// Disks.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
    /// Placement groups.
    #[prost(message, repeated, tag = "4")]
    pub pgs: Vec<PgInfo>,
    /// Redundancy classes.
    #[prost(message, repeated, tag = "5")]
    pub classes: Vec<ClassInfo>,
}

/// Ask for the state of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetStatus {}

/// The state of the cluster at a glance.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClusterStatus {
    /// Cluster id, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub cluster_id: Vec<u8>,
    /// Nodes.
    #[prost(message, repeated, tag = "2")]
    pub nodes: Vec<NodeInfo>,
    /// Disks.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
    /// Regular files.
    #[prost(uint64, tag = "4")]
    pub files: u64,
    /// Directories.
    #[prost(uint64, tag = "5")]
    pub directories: u64,
    /// Versions kept.
    #[prost(uint64, tag = "6")]
    pub versions: u64,
    /// Chunks committed.
    #[prost(uint64, tag = "7")]
    pub chunks: u64,
    /// Bytes of all kept versions, holes left out, every use of a chunk counted.
    #[prost(uint64, tag = "8")]
    pub logical_bytes: u64,
    /// Bytes of distinct chunks.
    #[prost(uint64, tag = "9")]
    pub unique_bytes: u64,
    /// Bytes of all their fragments.
    #[prost(uint64, tag = "10")]
    pub stored_bytes: u64,
    /// Chunks with every fragment in place.
    #[prost(uint64, tag = "11")]
    pub chunks_full: u64,
    /// Chunks that can be read but miss fragments.
    #[prost(uint64, tag = "12")]
    pub chunks_reduced: u64,
    /// Chunks with fewer than k fragments reachable.
    #[prost(uint64, tag = "13")]
    pub chunks_lost: u64,
    /// Group members being rebuilt or moved.
    #[prost(uint64, tag = "14")]
    pub members_backfilling: u64,
    /// Fragments still to be rebuilt or moved, as far as known.
    #[prost(uint64, tag = "15")]
    pub fragments_to_repair: u64,
    /// Fragments repaired since the manager started.
    #[prost(uint64, tag = "16")]
    pub fragments_repaired: u64,
    /// Bytes repaired since the manager started.
    #[prost(uint64, tag = "17")]
    pub repaired_bytes: u64,
    /// Chunks at zero references, waiting for older sessions to end.
    #[prost(uint64, tag = "18")]
    pub garbage_chunks: u64,
    /// Their bytes.
    #[prost(uint64, tag = "19")]
    pub garbage_bytes: u64,
    /// Deletes not yet confirmed by nodes.
    #[prost(uint64, tag = "20")]
    pub deletes_pending: u64,
    /// Live sessions.
    #[prost(uint64, tag = "21")]
    pub sessions: u64,
    /// Bytes reserved by them.
    #[prost(uint64, tag = "22")]
    pub reserved_bytes: u64,
    /// Manager's term.
    #[prost(uint64, tag = "23")]
    pub term: u64,
    /// Last command log entry.
    #[prost(uint64, tag = "24")]
    pub log_seq: u64,
    /// Nodes that hold a replica of the log up to date.
    #[prost(uint64, repeated, tag = "25")]
    pub log_replicas: Vec<u64>,
    /// Replicas asked for.
    #[prost(uint32, tag = "26")]
    pub log_copies: u32,
    /// Placement groups.
    #[prost(uint64, tag = "27")]
    pub pgs: u64,
    /// Release of the manager.
    #[prost(string, tag = "28")]
    pub release: String,
    /// Fragments scrubbed, rot found and so on, by name.
    #[prost(message, repeated, tag = "29")]
    pub counters: Vec<Counter>,
    /// Map version.
    #[prost(uint64, tag = "30")]
    pub map_version: u64,
    /// Nodes of other clusters that tried to join within the last hour.
    #[prost(message, repeated, tag = "31")]
    pub rejected_nodes: Vec<RejectedNode>,
    /// What devices computed: of each node since it started, of all clients together since the manager did.
    #[prost(message, repeated, tag = "32")]
    pub device_work: Vec<DeviceWork>,
}

/// What a device did of one primitive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceWork {
    /// The node; 0: clients. In heartbeats 0.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Device, as `tessera accel list` names it, or the CPU with its instruction set.
    #[prost(string, tag = "2")]
    pub device: String,
    /// Primitive: `tree`, `encode`, …
    #[prost(string, tag = "3")]
    pub primitive: String,
    /// Chunks, or jobs of several.
    #[prost(uint64, tag = "4")]
    pub jobs: u64,
    /// Input bytes.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
}

impl DeviceWork {
    /// What a device of the process that says it did; whose process that is, the hearer knows.
    pub fn of_process(device: String, primitive: &str, jobs: u64, bytes: u64) -> DeviceWork {
        DeviceWork { node_id: 0, device, primitive: primitive.to_owned(), jobs, bytes }
    }
}

/// What a client's devices computed since it last said so.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReportWork {
    /// By device and primitive.
    #[prost(message, repeated, tag = "1")]
    pub device_work: Vec<DeviceWork>,
}

/// Nodes of another cluster on one host, that tried to join this one and were refused.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RejectedNode {
    /// The cluster they belong to, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub cluster_id: Vec<u8>,
    /// Their host label.
    #[prost(string, tag = "2")]
    pub host: String,
    /// When last, ns since 1970.
    #[prost(sint64, tag = "3")]
    pub seen_ns: i64,
    /// How often.
    #[prost(uint64, tag = "4")]
    pub times: u64,
}

/// A named count.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Counter {
    /// Name, as in metrics.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Value.
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

/// Empty a node or a disk, or stop doing so.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Drain {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Node; 0 when a disk is named.
    #[prost(uint64, tag = "2")]
    pub node_id: u64,
    /// Disk; 0 for all of the node's.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Take it back.
    #[prost(bool, tag = "4")]
    pub undo: bool,
}

/// Kinds of upkeep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum MaintenanceJob {
    /// Not set.
    Unknown = 0,
    /// Collect garbage now: expire sessions, drop old versions, delete what nothing reaches, compact.
    Gc = 1,
    /// Re-read everything on every disk now.
    Scrub = 2,
    /// Look for missing fragments and rebuild them now (down nodes are not waited for).
    Repair = 3,
}

/// Start a pass of upkeep, or look at the one that runs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Maintain {
    /// Which.
    #[prost(enumeration = "MaintenanceJob", tag = "1")]
    pub what: i32,
    /// Start a new pass (else only report).
    #[prost(bool, tag = "2")]
    pub start: bool,
}

/// State of a pass.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MaintainReply {
    /// It still runs.
    #[prost(bool, tag = "1")]
    pub running: bool,
    /// Work done so far, in the pass's own unit (fragments; bytes for scrub).
    #[prost(uint64, tag = "2")]
    pub done: u64,
    /// All of it, as far as known.
    #[prost(uint64, tag = "3")]
    pub total: u64,
    /// `freed_bytes`, `rot_found`, `fragments_repaired`, ….
    #[prost(message, repeated, tag = "4")]
    pub counters: Vec<Counter>,
}

/// A node starts, or comes back after it was fenced.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterNode {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Name, host, addresses (`node_id` 0 on first contact: it follows from the disks afterwards).
    #[prost(message, optional, tag = "2")]
    pub node: Option<NodeInfo>,
    /// Its disks by uuid, with capacity and free bytes.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
}

/// Welcome.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterNodeReply {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Its life: grows with every registration (P11).
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Ids of its disks, in the order given.
    #[prost(uint64, repeated, tag = "3")]
    pub disk_ids: Vec<u64>,
    /// Beat this often.
    #[prost(uint64, tag = "4")]
    pub heartbeat_ms: u64,
    /// Without an answered heartbeat for this long the node stops acknowledging (P11).
    #[prost(uint64, tag = "5")]
    pub lease_ms: u64,
    /// Cluster, 16 bytes.
    #[prost(bytes = "vec", tag = "6")]
    pub cluster_id: Vec<u8>,
    /// Manager's term and last log entry: a node refuses deletes and tasks from one that went backwards.
    #[prost(uint64, tag = "7")]
    pub term: u64,
    /// See `term`.
    #[prost(uint64, tag = "8")]
    pub log_seq: u64,
}

/// Outcome of a task.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskResult {
    /// Task.
    #[prost(uint64, tag = "1")]
    pub task_id: u64,
    /// Fragments now in place and synced.
    #[prost(message, repeated, tag = "2")]
    pub done: Vec<FragmentRef>,
    /// Fragments that could not be rebuilt, or (verify, scrub) were found bad.
    #[prost(message, repeated, tag = "3")]
    pub failed: Vec<FragmentRef>,
    /// Why, in one line.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// Bytes written or re-read.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    /// Nothing more will come of this task.
    #[prost(bool, tag = "6")]
    pub finished: bool,
}

/// A node is alive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Heartbeat {
    /// Who.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Which life of it.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Its disks: free bytes, fragments, queue.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
    /// What came of tasks since the last answered heartbeat; repeated until answered.
    #[prost(message, repeated, tag = "4")]
    pub results: Vec<TaskResult>,
    /// Deletes that are on disk now; repeated until answered.
    #[prost(message, repeated, tag = "5")]
    pub deleted: Vec<FragmentRef>,
    /// Fragments the node found bad by itself (scrub, failed reads): already verified by it.
    #[prost(message, repeated, tag = "6")]
    pub bad: Vec<FragmentRef>,
    /// Disks that failed (poisoned): treated as lost.
    #[prost(uint64, repeated, tag = "7")]
    pub failed_disks: Vec<u64>,
    /// Number of this heartbeat in this life.
    #[prost(uint64, tag = "8")]
    pub number: u64,
    /// Running tasks (so that a restarted manager need not hand them out twice).
    #[prost(uint64, repeated, tag = "9")]
    pub running_tasks: Vec<u64>,
    /// Bytes re-read by the current scrub pass, per disk in the order of `disks`; and rot found.
    #[prost(uint64, repeated, tag = "10")]
    pub scrubbed_bytes: Vec<u64>,
    /// Map the node has (see [`ClusterMap::version`]): the answer brings what changed since. 0: nothing.
    #[prost(uint64, tag = "11")]
    pub known_map_version: u64,
    /// What this node's devices computed since it started.
    #[prost(message, repeated, tag = "12")]
    pub device_work: Vec<DeviceWork>,
}

/// Rebuild fragments of one group onto one disk of this node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RebuildTask {
    /// The group as it is now (epoch for the puts, members to read from).
    #[prost(message, optional, tag = "1")]
    pub pg: Option<PgInfo>,
    /// Fragment number to rebuild.
    #[prost(uint32, tag = "2")]
    pub fragment: u32,
    /// Disk to put it on.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Class of the chunks.
    #[prost(message, optional, tag = "4")]
    pub class: Option<ClassInfo>,
    /// The chunks.
    #[prost(message, repeated, tag = "5")]
    pub chunks: Vec<ChunkInfo>,
    /// Domain of the chunks.
    #[prost(uint32, tag = "6")]
    pub domain: u32,
}

/// Re-read these fragments and say which are bad.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VerifyTask {
    /// The fragments, with the disk that should hold each.
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Re-read all of a disk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScrubTask {
    /// The disk.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
}

/// List what a disk holds ([`Inventory`] pages), and remove what the manager does not know any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InventoryTask {
    /// The disk.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
}

/// Compact a disk's segments now, however little is dead.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CompactTask {
    /// The disk.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
}

/// Work for a node: one of its fields is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Task {
    /// Never reused within a term.
    #[prost(uint64, tag = "1")]
    pub task_id: u64,
    /// Rebuild.
    #[prost(message, optional, tag = "2")]
    pub rebuild: Option<RebuildTask>,
    /// Verify.
    #[prost(message, optional, tag = "3")]
    pub verify: Option<VerifyTask>,
    /// Scrub.
    #[prost(message, optional, tag = "4")]
    pub scrub: Option<ScrubTask>,
    /// Inventory.
    #[prost(message, optional, tag = "5")]
    pub inventory: Option<InventoryTask>,
    /// Compact.
    #[prost(message, optional, tag = "6")]
    pub compact: Option<CompactTask>,
}

/// Answer to a heartbeat.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeartbeatReply {
    /// The lease runs for this long from when the heartbeat was sent.
    #[prost(uint64, tag = "1")]
    pub lease_ms: u64,
    /// The node was declared out, or is unknown: acknowledge nothing, register again (P11).
    #[prost(bool, tag = "2")]
    pub must_register: bool,
    /// Manager's term.
    #[prost(uint64, tag = "3")]
    pub term: u64,
    /// Last log entry.
    #[prost(uint64, tag = "4")]
    pub log_seq: u64,
    /// Work.
    #[prost(message, repeated, tag = "5")]
    pub tasks: Vec<Task>,
    /// Fragments to delete.
    #[prost(message, repeated, tag = "6")]
    pub deletes: Vec<FragmentRef>,
    /// Current epochs of groups with members here that changed lately.
    #[prost(message, repeated, tag = "7")]
    pub pgs: Vec<PgInfo>,
    /// Nodes and disks, when they changed (tasks read from them).
    #[prost(message, optional, tag = "8")]
    pub map: Option<ClusterMap>,
    /// Upper bound for all repair traffic this node reads and writes, bytes per second; 0: none.
    #[prost(uint64, tag = "9")]
    pub repair_bytes_per_s: u64,
    /// Upper bound for background scrubbing, bytes per second; 0: none.
    #[prost(uint64, tag = "10")]
    pub scrub_bytes_per_s: u64,
}

/// A page of what a disk holds, in order of (chunk id, fragment).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Inventory {
    /// Node.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Its life.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Disk.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Everything held from (chunk id, fragment) `after` to the last of `held`, and to the end if `last`.
    #[prost(message, optional, tag = "4")]
    pub after: Option<FragmentRef>,
    /// What is held.
    #[prost(message, repeated, tag = "5")]
    pub held: Vec<FragmentRef>,
    /// This is the last page.
    #[prost(bool, tag = "6")]
    pub last: bool,
}

/// What to do about it. What should be there and is not is noted as missing and repaired.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InventoryReply {
    /// Ids this manager issued and has since dropped, or that belong elsewhere now: remove them.
    #[prost(message, repeated, tag = "1")]
    pub remove: Vec<FragmentRef>,
    /// As in [`HeartbeatReply`].
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// As in [`HeartbeatReply`].
    #[prost(uint64, tag = "3")]
    pub log_seq: u64,
}
