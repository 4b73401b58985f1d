//! A simulated machine with one node: the real core, the real segment store and voter, a disk that loses unsynced bytes.

use bytes::Bytes;
use std::sync::Arc;
use tessera_consensus::Input;
use tessera_consensus::peer::TOKEN_BIT;
use tessera_disk::{CrashKind, Disk, Identity, SimDisk};
use tessera_net::BufferPool;
use tessera_node::NodeConfig;
use tessera_node::check::{self, NodeRequest};
use tessera_node::core::{
    Action, DiskDescription, DiskFault, DiskReply, Event, ManagerMark, NodeCore, NodeDescription,
};
use tessera_node::disk_worker::{self, QueuedOp};
use tessera_node::read::{self, PayloadPart};
use tessera_node::voter::{Voter, VoterAction};
use tessera_segment::{ConaIndex, FragmentId, Index, MemIndex, Options, SegmentStore};
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Error, Kind, NodeInfo};

/// A request of a node to the world.
#[derive(Debug)]
pub enum Effect {
    /// Send a call.
    Call(Call),
    /// Answer the request that was delivered under this ticket.
    Answer {
        /// Ticket of the request.
        ticket: u64,
        /// The answer.
        result: Result<(Bytes, Bytes), Error>,
    },
    /// Call [`NodeHost::write_disk`] after the time that a batch takes.
    DiskLater,
    /// Deliver this event after the time that a read or a computation takes.
    EventLater(Event),
}

struct Running {
    core: NodeCore,
    store: Arc<SegmentStore>,
    voter: Voter,
    disk_ids: Vec<u64>,
    /// Writes for the next batch. Tickets serve as the core's request numbers.
    queue: Vec<QueuedOp>,
    disk_busy: bool,
    failed: bool,
}

/// A machine with one disk and, when it runs, one node.
pub struct NodeHost {
    /// Place in the world; the node is called `n<index>`.
    pub index: usize,
    /// Grows with every start and stop; events of an earlier incarnation are dropped.
    pub incarnation: u64,
    /// The process is stopped, but not killed.
    pub paused: bool,
    /// The machine is gone for ever.
    pub lost: bool,
    /// Its power will fail in the middle of one of its next disk operations.
    pub power_fails_soon: bool,
    /// Addresses of the managers.
    pub seeds: Vec<String>,
    disk: SimDisk,
    cluster_id: [u8; 16],
    config: NodeConfig,
    seed: u64,
    running: Option<Running>,
    capacity_bytes: u64,
}

/// Small segments, so that sealing and compaction happen within a short run.
const SEGMENT_BYTES: u64 = 128 << 10;

impl NodeHost {
    /// A machine with a fresh disk of the cluster. It does not run yet.
    pub fn new(index: usize, cluster_id: [u8; 16], config: NodeConfig, disk_lies: bool, seed: u64) -> NodeHost {
        let disk = SimDisk::new(seed);
        let mut disk_uuid = [0u8; 16];
        disk_uuid[..8].copy_from_slice(&(index as u64 + 1).to_le_bytes());
        let identity = Identity { cluster_id, disk_uuid, created_ms: 0 };
        identity.create(&disk).expect("a fresh disk takes its identity");
        if disk_lies {
            disk.set_rates(tessera_disk::FaultRates { sync_lies: 1_000_000, ..Default::default() });
        }
        NodeHost {
            index,
            incarnation: 0,
            paused: false,
            lost: false,
            power_fails_soon: false,
            seeds: Vec::new(),
            disk,
            cluster_id,
            config,
            seed,
            running: None,
            capacity_bytes: 1 << 30,
        }
    }

    /// Whether the process exists; it may be paused.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether it runs and has given its disk up, for instance because of rot that it met in a segment's own records.
    pub fn has_failed_disk(&self) -> bool {
        let metrics = self.running.as_ref().map(|running| running.core.metrics());
        metrics.is_some_and(|metrics| metrics.disks.iter().any(|(_, _, failure, _)| !failure.is_empty()))
    }

    /// Its disk.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Whether it runs and holds this fragment.
    pub fn holds(&self, chunk_id: u64, fragment: u32) -> bool {
        let id = FragmentId { chunk_id, fragment: fragment as u16 };
        self.running.as_ref().is_some_and(|r| r.store.get(id).is_ok_and(|held| held.is_some()))
    }

    /// The bytes of a fragment, if the node runs and they match their checksum.
    pub fn sound_bytes(&self, chunk_id: u64, fragment: u32) -> Option<Vec<u8>> {
        let id = FragmentId { chunk_id, fragment: fragment as u16 };
        let held = self.running.as_ref()?.store.get(id).ok()??;
        held.verify().ok()?;
        let mut bytes = vec![0; held.entry().data_len as usize];
        held.read_data(0, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Whether it holds this fragment with all bytes as they were written.
    pub fn holds_sound(&self, chunk_id: u64, fragment: u32) -> bool {
        let id = FragmentId { chunk_id, fragment: fragment as u16 };
        self.running.as_ref().and_then(|r| r.store.get(id).ok().flatten()).is_some_and(|held| held.verify().is_ok())
    }

    /// Starts the node on its disk. The node stays down if its disk cannot be opened.
    pub fn start(&mut self) {
        if self.running.is_some() || self.lost {
            return;
        }
        self.incarnation += 1;
        self.paused = false;
        self.disk.set_capacity(self.capacity_bytes);
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let options = Options { segment_size_bytes: SEGMENT_BYTES, reserve_bytes: 64 << 10, ..Options::default() };
        // One node of four has the index of real nodes, with buffers so small that it is on the disk.
        let index: Box<dyn Index> = match self.index % 4 {
            1 => Box::new(ConaIndex::open_inline(disk.clone(), 4096)),
            _ => Box::<MemIndex>::default(),
        };
        let (store, report) = match SegmentStore::open_with_index(disk.clone(), options, index, &mut |_| {}) {
            Ok(opened) => opened,
            Err(error) => return debug_log(&format!("n{} cannot open its segments: {error}", self.index)),
        };
        let name = format!("n{}", self.index);
        let (host, address, kind) = (name.clone(), format!("{name}:1"), PeerKind::Voter as i32);
        let member = Member { id: 0, kind, host, address, name: name.clone() };
        let seed = self.seed ^ self.incarnation << 16;
        let voter = match Voter::open(disk, self.cluster_id, member, self.seeds.clone(), seed) {
            Ok(voter) => voter,
            Err(error) => return debug_log(&format!("n{} cannot open its voter: {error}", self.index)),
        };
        let mut stats = disk_worker::stats(&store).unwrap_or_default();
        stats.rot = disk_worker::rot_of_opening(&report);
        let info =
            NodeInfo { name: name.clone(), host: name.clone(), address: format!("{name}:1"), ..Default::default() };
        let about = DiskDescription { uuid: store.identity().disk_uuid, path: name, stats };
        let me = NodeDescription {
            cluster_id: self.cluster_id.to_vec(),
            info,
            device: "sim".into(),
            seed: self.seed ^ self.incarnation << 32,
            receipt_key: std::array::from_fn(|i| (self.seed >> (i % 8 * 8)) as u8),
            mark: ManagerMark::default(),
        };
        let core = NodeCore::new(self.config.clone(), me, vec![about]);
        self.running = Some(Running {
            core,
            store: Arc::new(store),
            voter,
            disk_ids: Vec::new(),
            queue: Vec::new(),
            disk_busy: false,
            failed: false,
        });
    }

    /// Kills the process; the kernel keeps its page cache.
    pub fn kill(&mut self) {
        if self.running.take().is_some() {
            self.power_fails_soon = false;
            self.incarnation += 1;
            self.disk = self.disk.reopen();
        }
    }

    /// Powers the machine off; `kind` decides about unsynced bytes.
    pub fn power_off(&mut self, kind: CrashKind) {
        self.power_fails_soon = false;
        if !self.lost {
            self.running = None;
            self.incarnation += 1;
            self.disk = self.disk.crash(kind);
        }
    }

    /// Loses the machine for ever.
    pub fn lose(&mut self) {
        self.kill();
        self.lost = true;
    }

    /// Changes the disk's capacity.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity_bytes = bytes;
        self.disk.set_capacity(bytes);
    }

    /// Time has passed; also the first event after a start.
    pub fn tick(&mut self, now_ns: i64) -> Vec<Effect> {
        if let Some(running) = &mut self.running {
            running.core.tell(Vec::new(), running.voter.id());
        }
        self.event(now_ns, Event::Tick)
    }

    /// Time of the next tick.
    pub fn next_deadline_ns(&self) -> Option<i64> {
        self.running.as_ref().map(|r| r.core.next_deadline_ns())
    }

    /// Time has passed for the voter: every 100 ms.
    pub fn tick_voter(&mut self, now_ns: i64) -> Vec<Effect> {
        self.vote(now_ns, Input::Tick)
    }

    /// The voter, if the node runs.
    #[must_use]
    pub fn voter(&self) -> Option<&Voter> {
        self.running.as_ref().map(|running| &running.voter)
    }

    fn vote(&mut self, now_ns: i64, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(running) = &mut self.running else { return effects };
        running.voter.handle(now_ns, input);
        while let Some(action) = running.voter.poll() {
            effects.push(match action {
                VoterAction::Call(call) => Effect::Call(call),
                VoterAction::Answer { token: ticket, result } => {
                    Effect::Answer { ticket, result: result.map(|(body, payload)| (body, payload.concat().into())) }
                }
            });
        }
        effects
    }

    /// Delivers an answer to one of its calls, or of its voter's.
    pub fn answer(&mut self, now_ns: i64, answer: Answer) -> Vec<Effect> {
        match answer.token & TOKEN_BIT {
            0 => self.event(now_ns, Event::Answer(answer)),
            _ => self.vote(now_ns, Input::Answer(answer)),
        }
    }

    /// Delivers an event that the node scheduled.
    pub fn event(&mut self, now_ns: i64, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(running) = &mut self.running {
            running.core.handle(now_ns, event);
            running.drain(&mut effects);
        }
        effects
    }

    /// Delivers a request.
    pub fn request(&mut self, now_ns: i64, ticket: u64, kind: Kind, body: &[u8], payload: Bytes) -> Vec<Effect> {
        if matches!(kind, Kind::Consensus | Kind::GetPiece | Kind::JoinGroup) {
            let body = Bytes::copy_from_slice(body);
            return self.vote(now_ns, Input::Request { token: ticket, kind, body, payload });
        }
        let mut effects = Vec::new();
        let Some(running) = &mut self.running else { return effects };
        match check::decode(&self.config, kind as u16, body, payload, &[]) {
            Err(error) => effects.push(Effect::Answer { ticket, result: Err(error) }),
            Ok(NodeRequest::Put(put)) => running.core.handle(now_ns, Event::Put { request: ticket, put }),
            Ok(NodeRequest::Status) => running.core.handle(now_ns, Event::Status { request: ticket }),
            Ok(NodeRequest::Get(get)) => running.get(now_ns, ticket, &get, &mut effects),
        }
        running.drain(&mut effects);
        effects
    }

    /// Writes all queued operations as one batch: append, one sync, then the completions.
    pub fn write_disk(&mut self, now_ns: i64) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(running) = &mut self.running else { return effects };
        running.disk_busy = false;
        let batch = std::mem::take(&mut running.queue);
        let mut done: Vec<(u64, Result<DiskReply, DiskFault>)> = Vec::new();
        disk_worker::write_batch(&running.store, (now_ns / 1_000_000) as u64, batch, &mut |some| done.extend(some));
        if self.disk.is_off() {
            // The power failed during the batch: no process receives the completions.
            return Vec::new();
        }
        for (op_id, result) in done {
            running.core.handle(now_ns, Event::DiskDone { op_id, result });
        }
        running.drain(&mut effects);
        effects
    }
}

impl Running {
    fn drain(&mut self, effects: &mut Vec<Effect>) {
        while let Some(action) = self.core.poll() {
            match action {
                Action::Reply { request, result } => {
                    effects.push(Effect::Answer { ticket: request, result: result.map(|body| (body, Bytes::new())) });
                }
                Action::Call(call) => effects.push(Effect::Call(call)),
                Action::Disk { op_id, op, .. } if op.is_write() => {
                    self.queue.push(QueuedOp { op_id, op });
                    if !std::mem::replace(&mut self.disk_busy, true) {
                        effects.push(Effect::DiskLater);
                    }
                }
                Action::Disk { op_id, op, .. } => {
                    let result = disk_worker::read(&self.store, &op);
                    effects.push(Effect::EventLater(Event::DiskDone { op_id, result }));
                }
                Action::Compute { op_id, job } => {
                    let result = job.run(&BufferPool::new(0));
                    effects.push(Effect::EventLater(Event::Computed { op_id, result }));
                }
                Action::DisksNamed { disk_ids } => self.disk_ids = disk_ids,
                Action::KeepTerm(_) => {}
                Action::Fatal(error) => {
                    debug_log(&format!("a node stops for ever: {error}"));
                    self.failed = true;
                }
            }
        }
    }

    fn get(&mut self, now_ns: i64, ticket: u64, get: &tessera_wire::data::GetFragments, effects: &mut Vec<Effect>) {
        let (store, disk_ids) = (&self.store, &self.disk_ids);
        let served = read::serve(get, u64::MAX, &|disk_id| disk_ids.contains(&disk_id).then(|| store.clone()));
        let mut payload = Vec::new();
        for piece in served.payload {
            match piece {
                PayloadPart::Bytes(bytes) => payload.extend_from_slice(&bytes),
                PayloadPart::File { .. } => unreachable!("a simulated disk has no descriptors"),
            }
        }
        let body = prost::Message::encode_to_vec(&served.reply);
        effects.push(Effect::Answer { ticket, result: Ok((body.into(), payload.into())) });
        for fragment in served.bad {
            self.core.handle(now_ns, Event::FoundBad(fragment));
        }
    }
}

fn debug_log(line: &str) {
    #[allow(clippy::disallowed_methods)] // A switch for debugging a seed; it changes no event.
    if std::env::var_os("SIM_LOG").is_some() {
        println!("{line}");
    }
}
