//! [`NodeCore`]: all decisions of a node, without socket, file, thread or clock. [`NodeCore::handle`] takes an event,
//! [`NodeCore::poll`] returns actions, [`NodeCore::next_deadline_ns`] says when to call again.
//!
//! Reading order: `event` and `ops` (the interface), `membership` (lease, heartbeats, rejoining: P11), `puts`,
//! `deletes`, `tasks` with `maintenance` (scrub, compaction), `rebuilds` and `inventory`. Reads of fragments do not
//! pass through here: fragments are immutable, so serving one needs no decision (see [`crate::read`]).

mod bucket;
mod deletes;
mod event;
mod inventory;
mod maintenance;
mod membership;
mod ops;
mod puts;
mod rebuilds;
mod status;
mod tasks;

#[cfg(test)]
mod tests;

pub use event::{Action, Event, ManagerMark};
pub(crate) use membership::Rival;
pub use ops::{AppendItem, DiskFault, DiskOp, DiskReply, DiskStats, FragmentKey, ScrubCursor, Verdict};
pub use status::{Counters, NodeMetrics, Traffic};

use crate::config::{NodeConfig, ms};
use bucket::TokenBucket;
use std::collections::{HashMap, VecDeque};
use tessera_disk::SplitMix64;
use tessera_wire::meta::DeviceWork;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{ClassInfo, NodeInfo, PgInfo, Request};

/// A disk before the manager knows it.
#[derive(Clone, Debug, Default)]
pub struct DiskDescription {
    /// From its `tessera-disk` file.
    pub uuid: [u8; 16],
    /// Directory, for messages.
    pub path: String,
    /// Its statistics, and the corrupt fragments found when it was opened.
    pub stats: DiskStats,
}

/// Identity of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeDescription {
    /// Cluster id, 16 bytes; empty while unknown.
    pub cluster_id: Vec<u8>,
    /// Name, host and addresses; the manager fills in the ids.
    pub info: NodeInfo,
    /// Name of the compute device, for status.
    pub device: String,
    /// A random number that makes op ids differ between incarnations and nodes.
    pub seed: u64,
    /// Key that it offers for its receipts, 32 random bytes; the manager decides.
    pub receipt_key: [u8; tessera_stripe::KEY_BYTES],
    /// Highest position of the manager stored when the node started.
    pub mark: ManagerMark,
}

/// The core of a node.
#[derive(Debug, Default)]
pub struct NodeCore {
    config: NodeConfig,
    me: NodeDescription,
    disks: Vec<DiskState>,
    random: SplitMix64,
    now_ns: i64,
    clock: ProcessClock,
    out: VecDeque<Action>,
    next_id: u64,
    membership: membership::Membership,
    mark: ManagerMark,
    calls: HashMap<u64, CallPurpose>,
    ops: HashMap<u64, PendingOp>,
    puts: HashMap<u64, puts::PendingPut>,
    waiting_put_bytes: u64,
    cluster: ClusterView,
    deletes: deletes::Deletes,
    bad: VecDeque<tessera_wire::meta::FragmentRef>,
    tasks: tasks::Tasks,
    rebuilds: rebuilds::Rebuilds,
    repair_bucket: TokenBucket,
    scrub_bucket: TokenBucket,
    counters: Counters,
    /// Work of the node's devices, as the shell last reported it.
    device_work: Vec<DeviceWork>,
    /// Peer id of its voter; 0: none.
    voter_id: u64,
}

/// The cluster as the manager last described it.
#[derive(Debug, Default)]
struct ClusterView {
    map_version: u64,
    pgs: HashMap<u64, PgInfo>,
    classes: HashMap<u32, ClassInfo>,
    nodes: HashMap<u64, NodeInfo>,
    disks: HashMap<u64, tessera_wire::DiskInfo>,
}

/// A disk of this node.
#[derive(Debug, Default)]
struct DiskState {
    about: DiskDescription,
    /// 0 until registered.
    disk_id: u64,
    /// Why it takes no more writes; `None` if it works.
    failed: Option<String>,
    /// Number of operations in progress.
    queue_len: u32,
    /// Number of consecutive failed writes.
    write_faults: u32,
    stats_asked: bool,
    scrub: maintenance::Scrub,
    compact: maintenance::Compaction,
}

/// The purpose of a call.
#[derive(Debug)]
enum CallPurpose {
    Register { sent_ns: i64, mark: ManagerMark },
    Heartbeat(membership::PendingHeartbeat),
    Inventory { task: u64, mark: ManagerMark },
    Fetch(rebuilds::SourceFetch),
    ReportBad,
}

/// A disk operation in progress.
#[derive(Debug)]
struct PendingOp {
    disk: usize,
    /// When a thread of the disk began it, on the [`ProcessClock`]; `None` while it is queued.
    begun_ns: Option<i64>,
    purpose: OpPurpose,
}

#[derive(Debug)]
enum OpPurpose {
    Put { put_id: u64, slots: Vec<usize>, bytes: u64 },
    Delete { keys: Vec<FragmentKey> },
    RebuildCheck { rebuild_id: u64 },
    RebuildFetch(rebuilds::SourceFetch),
    RebuildCompare { rebuild_id: u64 },
    RebuildAppend { rebuild_id: u64 },
    Verify { task: u64, items: Vec<tessera_wire::meta::FragmentRef> },
    List { task: u64 },
    Scrub,
    Compact,
    Stats,
}

/// Time during which this process ran. A pause (SIGSTOP, a suspended machine) must not make disks look stuck.
#[derive(Debug, Default)]
struct ProcessClock {
    last_ns: i64,
    running_ns: i64,
}

impl ProcessClock {
    fn advance(&mut self, now_ns: i64) {
        self.running_ns += (now_ns - self.last_ns).clamp(0, ms(1_000));
        self.last_ns = now_ns;
    }
}

impl NodeCore {
    /// Creates a node that has just opened its disks. The first [`Event::Tick`] makes it register.
    pub fn new(config: NodeConfig, me: NodeDescription, disks: Vec<DiskDescription>) -> Self {
        let disks = disks.into_iter().map(|about| DiskState { about, ..DiskState::default() }).collect();
        NodeCore {
            random: SplitMix64::new(me.seed),
            membership: membership::Membership::new(&config),
            mark: me.mark,
            repair_bucket: TokenBucket::new(config.repair_bytes_per_s),
            scrub_bucket: TokenBucket::new(config.scrub_bytes_per_s),
            config,
            me,
            disks,
            now_ns: i64::MIN,
            next_id: 1,
            ..NodeCore::default()
        }
    }

    /// Stores what the next heartbeat reports: the work that this node's devices have done since it started, and the peer id of its
    /// voter (0: none).
    pub fn tell(&mut self, work: Vec<DeviceWork>, voter_id: u64) {
        (self.device_work, self.voter_id) = (work, voter_id);
    }

    /// Notes that a disk's thread begins these operations: only from now on do they count for `disk_stuck_ms`.
    pub fn begin_ops(&mut self, now_ns: i64, op_ids: impl IntoIterator<Item = u64>) {
        self.advance_time(now_ns);
        for op_id in op_ids {
            if let Some(op) = self.ops.get_mut(&op_id) {
                op.begun_ns = Some(self.clock.running_ns);
            }
        }
    }

    /// Handles an event at `now_ns` (ns since 1970, of a clock that continues while the process is stopped).
    pub fn handle(&mut self, now_ns: i64, event: Event) {
        self.advance_time(now_ns);
        match event {
            Event::Tick => {}
            Event::Put { request, put } => self.on_put(request, put),
            Event::Status { request } => {
                let status = self.status();
                self.reply(request, &status);
            }
            Event::Answer(answer) => self.on_answer(answer),
            Event::DiskDone { op_id, result } => self.on_disk_done(op_id, result),
            Event::Computed { op_id, result } => self.on_computed(op_id, result),
            Event::FoundBad(fragment) => self.report_bad(fragment),
            Event::ManagerSeen { term } => self.see_term(term),
        }
        self.run();
    }

    /// Returns the next action, oldest first.
    pub fn poll(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// When to call [`Self::handle`] with [`Event::Tick`] if no other event comes first.
    pub fn next_deadline_ns(&self) -> i64 {
        let mut deadline = self.timer_deadline_ns();
        if !self.ops.is_empty() {
            deadline = deadline.min(self.now_ns.saturating_add(ms(1_000)));
        }
        deadline.min(self.tasks_deadline_ns()).min(self.maintenance_deadline_ns())
    }

    /// A node of the map; `None` if unknown.
    pub fn node(&self, node_id: u64) -> Option<&NodeInfo> {
        self.cluster.nodes.get(&node_id)
    }

    /// Advances the core's clock, which never runs backwards, even if the caller's does.
    fn advance_time(&mut self, now_ns: i64) {
        if self.now_ns == i64::MIN {
            self.clock.last_ns = now_ns;
            self.now_ns = now_ns;
            self.start_maintenance();
        }
        let before_ns = self.clock.running_ns;
        self.now_ns = self.now_ns.max(now_ns);
        self.clock.advance(self.now_ns);
        assert!(self.clock.running_ns >= before_ns, "the core's clock runs backwards");
    }

    /// Starts everything that is due or has become possible.
    fn run(&mut self) {
        self.find_stuck_disks();
        self.run_tasks();
        self.run_maintenance();
        self.run_membership();
    }

    fn on_answer(&mut self, answer: Answer) {
        // An unknown token belongs to an earlier incarnation or to dropped work.
        let Some(purpose) = self.calls.remove(&answer.token) else { return };
        match purpose {
            CallPurpose::Register { sent_ns, mark } => self.on_registered(sent_ns, mark, answer),
            CallPurpose::Heartbeat(sent) => self.on_heartbeat_answered(sent, answer),
            CallPurpose::Inventory { task, mark } => self.on_inventory_answered(task, mark, answer),
            CallPurpose::Fetch(what) => self.on_fetched(what, answer),
            CallPurpose::ReportBad => {}
        }
    }

    fn on_disk_done(&mut self, op_id: u64, result: Result<DiskReply, DiskFault>) {
        let Some(PendingOp { disk, purpose, .. }) = self.ops.remove(&op_id) else { return };
        assert!(self.disks[disk].queue_len > 0, "disk {disk} ended an operation that it was not given");
        self.disks[disk].queue_len -= 1;
        let wrote =
            matches!(purpose, OpPurpose::Put { .. } | OpPurpose::Delete { .. } | OpPurpose::RebuildAppend { .. });
        self.judge_disk(disk, wrote, result.as_ref().err());
        let result = result.map_err(|fault| fault.error);
        match purpose {
            OpPurpose::Put { put_id, slots, bytes } => self.on_put_stored(put_id, &slots, bytes, result),
            OpPurpose::Delete { keys } => self.on_deleted(disk, keys, result),
            OpPurpose::RebuildCheck { rebuild_id } => self.on_local_check(rebuild_id, result),
            OpPurpose::RebuildFetch(what) => self.on_read_here(what, result),
            OpPurpose::RebuildCompare { rebuild_id } => self.on_compared(rebuild_id, result),
            OpPurpose::RebuildAppend { rebuild_id } => self.on_rebuild_stored(rebuild_id, result),
            OpPurpose::Verify { task, items } => self.on_verified(task, items, result),
            OpPurpose::List { task } => self.on_listed(task, result),
            OpPurpose::Scrub => self.on_scrubbed(disk, result),
            OpPurpose::Compact => self.on_compacted(disk, result),
            OpPurpose::Stats => self.on_stats(disk, result),
        }
    }

    // --- shared by the modules ------------------------------------------------------------------------------

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn call<R: Request>(&mut self, peer: Peer, message: &R, timeout_ms: u64, purpose: CallPurpose) -> u64 {
        let token = self.fresh_id();
        let before = self.calls.insert(token, purpose);
        assert!(before.is_none(), "call token {token} is used twice");
        self.out.push_back(Action::Call(Call::new(peer, token, message, Vec::new(), timeout_ms)));
        token
    }

    fn disk_op(&mut self, disk: usize, op: DiskOp, purpose: OpPurpose) {
        let op_id = self.fresh_id();
        let before = self.ops.insert(op_id, PendingOp { disk, begun_ns: None, purpose });
        assert!(before.is_none(), "disk operation {op_id} is used twice");
        self.disks[disk].queue_len += 1;
        self.out.push_back(Action::Disk { disk, op_id, op });
    }

    fn reply(&mut self, request: u64, message: &impl prost::Message) {
        self.out.push_back(Action::Reply { request, result: Ok(message.encode_to_vec().into()) });
    }

    fn disk_index(&self, disk_id: u64) -> Option<usize> {
        self.disks.iter().position(|d| d.disk_id == disk_id && disk_id != 0)
    }

    /// Reports a corrupt fragment of this node in heartbeats until one is answered.
    fn report_bad(&mut self, fragment: tessera_wire::meta::FragmentRef) {
        if fragment.disk_id != 0 && !self.bad.contains(&fragment) && self.bad.len() < 1_000_000 {
            self.counters.rot_found += 1;
            self.bad.push_back(fragment);
        }
    }

    /// Marks a disk as failed: it takes no more writes, and the manager has its fragments rebuilt elsewhere.
    fn fail_disk(&mut self, disk: usize, reason: &str) {
        let state = &mut self.disks[disk];
        if state.failed.is_none() {
            tracing::error!(
                disk = state.about.path,
                reason,
                "disk failed: it takes no more writes and is reported lost"
            );
            state.failed = Some(reason.to_string());
            self.heartbeat_soon();
        }
    }

    /// Fails a disk after one failed sync, or after several failed writes in a row.
    fn judge_disk(&mut self, disk: usize, wrote: bool, fault: Option<&DiskFault>) {
        let Some(fault) = fault else {
            self.disks[disk].write_faults *= u32::from(!wrote);
            return;
        };
        self.counters.disk_errors += 1;
        let failing = wrote && fault.error.code() == tessera_wire::Code::Io;
        self.disks[disk].write_faults += u32::from(failing);
        if fault.poisoned || self.disks[disk].write_faults >= self.config.disk_write_faults.max(1) {
            self.fail_disk(disk, &fault.error.message);
        }
    }

    /// Fails disks with an operation that does not end. The time before the disk's thread began it does not count: the
    /// queue may be long, and the disk well.
    fn find_stuck_disks(&mut self) {
        let limit = ms(self.config.disk_stuck_ms);
        let now = self.clock.running_ns;
        let is_stuck = |op: &&PendingOp| op.begun_ns.is_some_and(|begun_ns| now - begun_ns > limit);
        let stuck: Vec<usize> = self.ops.values().filter(is_stuck).map(|op| op.disk).collect();
        for disk in stuck {
            let reason = format!("an operation has not finished for {} ms", self.config.disk_stuck_ms);
            self.fail_disk(disk, &reason);
        }
    }

    /// Stores a newer term of the manager, from any source.
    fn see_term(&mut self, term: u64) {
        if term > self.mark.term {
            self.mark = ManagerMark { term, log_seq: 0 };
            // A restored manager may number its maps differently.
            self.cluster.map_version = 0;
            self.out.push_back(Action::KeepTerm(term));
        }
    }

    /// Stores a manager's position. Returns false if it is behind the one known when the manager was asked
    /// (`asked_at`): the manager lost metadata or was superseded, and none of its orders is carried out.
    fn admit_manager(&mut self, mark: ManagerMark, asked_at: ManagerMark) -> bool {
        if mark < asked_at || mark.term < self.mark.term {
            self.counters.manager_went_backwards += 1;
            tracing::error!(
                term = mark.term,
                log_seq = mark.log_seq,
                known_term = self.mark.term,
                known_log_seq = self.mark.log_seq,
                "the manager's metadata went backwards: its deletes and tasks are refused; stop it, and start it with an empty directory and --join"
            );
            return false;
        }
        self.see_term(mark.term);
        self.mark = self.mark.max(mark);
        assert!(self.mark >= asked_at, "the known manager {:?} went behind {asked_at:?}", self.mark);
        assert_eq!(self.mark.term, mark.term, "a manager of another term was admitted");
        true
    }
}
