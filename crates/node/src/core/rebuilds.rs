//! Drives the rebuild machines ([`crate::rebuild`]): passes their actions to peers, disks and compute threads, and
//! returns the results.

use super::event::Action;
use super::ops::{DiskOp, DiskReply, FragmentKey, Verdict, reply, wrong_reply};
use super::tasks::{TaskState, Work};
use super::{CallPurpose, NodeCore, OpPurpose};
use crate::rebuild::{ChunkRebuild, RebuildAction, RebuildReport, Source, SourceAt};
use bytes::Bytes;
use std::collections::HashMap;
use tessera_stripe::Rebuilt;
use tessera_wire::data::{GetFragments, GetItem};
use tessera_wire::meta::FragmentRef;
use tessera_wire::meta::ReportBad;
use tessera_wire::rpc::{Answer, Peer};
use tessera_wire::{Code, Error, Health};

#[derive(Debug, Default)]
pub(super) struct Rebuilds {
    active: HashMap<u64, ActiveRebuild>,
    /// Bytes that the active rebuilds are expected to hold.
    held_bytes: u64,
    /// Computations in progress: rebuild by operation.
    computing: HashMap<u64, u64>,
    /// Fetches in progress per node.
    loads: HashMap<u64, usize>,
}

#[derive(Debug)]
pub(super) struct ActiveRebuild {
    pub(super) task: u64,
    disk: usize,
    cost_bytes: u64,
    machine: ChunkRebuild,
}

/// A fetch from a source, and the rebuild it serves.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceFetch {
    rebuild_id: u64,
    at: SourceAt,
    node_id: u64,
}

impl Rebuilds {
    /// Releases the memory of a rebuild that has ended.
    fn release(&mut self, bytes: u64) {
        assert!(self.held_bytes >= bytes, "{bytes} bytes released of {}", self.held_bytes);
        self.held_bytes -= bytes;
        assert!(!self.active.is_empty() || self.held_bytes == 0, "{} bytes held by no rebuild", self.held_bytes);
    }
}

impl NodeCore {
    /// True if another chunk may start.
    pub(super) fn may_rebuild(&self) -> bool {
        self.rebuilds.active.len() < self.config.rebuild_parallel.max(1)
            && self.rebuilds.held_bytes < self.config.rebuild_memory_bytes.max(1)
    }

    /// Starts rebuilding the next chunk of a task.
    pub(super) fn start_rebuild(&mut self, task: u64) -> bool {
        let Some(TaskState { work: Work::Rebuild(work), failed, reason, .. }) = self.tasks.get(task) else {
            return false;
        };
        let index = work.next;
        assert!(index < work.task.chunks.len(), "a task has no chunk {index}");
        work.next += 1;
        let chunk_id = work.task.chunks[index].chunk_id;
        if work.skip.contains(&chunk_id) {
            return true;
        }
        match ChunkRebuild::new(&work.task, index) {
            Ok(machine) => {
                work.active += 1;
                let disk = work.disk;
                let cost_bytes = machine.cost_bytes();
                let spares_disks = work.task.prove && !work.task.hurry;
                let rebuild_id = self.fresh_id();
                let bucket = if spares_disks { &mut self.scrub_bucket } else { &mut self.repair_bucket };
                bucket.take(cost_bytes);
                self.rebuilds.held_bytes += cost_bytes;
                self.rebuilds.active.insert(rebuild_id, ActiveRebuild { task, disk, cost_bytes, machine });
                self.drive(rebuild_id, Vec::new());
            }
            Err(why) => {
                let (fragment, disk_id) = (work.task.fragment, work.task.disk_id);
                failed.push(FragmentRef { chunk_id, fragment, disk_id, epoch: 0 });
                *reason = why;
                self.counters.rebuilds_failed += 1;
            }
        }
        true
    }

    /// A disk as a source of fragments; `None` if no known node serves it.
    fn source(&self, disk_id: u64) -> Option<Source> {
        // This node's disks may not be in the map yet.
        let (node_id, up) = match self.disk_index(disk_id) {
            Some(disk) => (self.membership.node_id, self.disks[disk].failed.is_none()),
            None => {
                let disk = self.cluster.disks.get(&disk_id)?;
                let node = self.cluster.nodes.get(&disk.node_id)?;
                let serves = |health: i32| matches!(Health::try_from(health), Ok(Health::Up | Health::Draining));
                (disk.node_id, serves(disk.health) && serves(node.health))
            }
        };
        Some(Source { up, load: self.rebuilds.loads.get(&node_id).copied().unwrap_or(0) })
    }

    /// Gives a machine the result of its last action, and carries on.
    fn advance(&mut self, rebuild_id: u64, step: impl FnOnce(&mut ChunkRebuild) -> Vec<RebuildAction>) {
        if let Some(active) = self.rebuilds.active.get_mut(&rebuild_id) {
            let actions = step(&mut active.machine);
            self.drive(rebuild_id, actions);
        }
    }

    /// Carries out a machine's actions; if there are none, asks it for the next.
    fn drive(&mut self, rebuild_id: u64, mut actions: Vec<RebuildAction>) {
        if actions.is_empty() {
            let Some(mut active) = self.rebuilds.active.remove(&rebuild_id) else { return };
            actions = active.machine.next(|disk_id| self.source(disk_id));
            self.rebuilds.active.insert(rebuild_id, active);
        }
        let Some(active) = self.rebuilds.active.get(&rebuild_id) else { return };
        let (disk, key) = (active.disk, active.machine.key());
        for action in actions {
            match action {
                RebuildAction::CheckLocal => {
                    self.disk_op(disk, DiskOp::Verify(vec![key]), OpPurpose::RebuildCheck { rebuild_id })
                }
                RebuildAction::Fetch(at) => self.fetch(rebuild_id, key, at),
                RebuildAction::Compute(job) => {
                    let op_id = self.fresh_id();
                    assert_eq!(job.wanted, key.fragment, "a rebuild computes the fragment that its task names");
                    self.rebuilds.computing.insert(op_id, rebuild_id);
                    self.out.push_back(Action::Compute { op_id, job });
                }
                RebuildAction::ReadLocal => {
                    self.disk_op(disk, DiskOp::Read(key), OpPurpose::RebuildCompare { rebuild_id })
                }
                RebuildAction::Append(item) => {
                    assert_eq!(item.key, key, "a rebuild stores the fragment that its task names");
                    let op = DiskOp::Append { sync: true, items: vec![item] };
                    self.disk_op(disk, op, OpPurpose::RebuildAppend { rebuild_id });
                }
                RebuildAction::Finished(outcome) => self.rebuild_finished(rebuild_id, outcome),
            }
        }
    }

    fn fetch(&mut self, rebuild_id: u64, key: FragmentKey, at: SourceAt) {
        let SourceAt { fragment, disk_id } = at;
        let own_disk = self.disk_index(disk_id);
        let node_id = match own_disk {
            Some(_) => self.membership.node_id,
            None => self.cluster.disks.get(&disk_id).map_or(0, |disk| disk.node_id),
        };
        let what = SourceFetch { rebuild_id, at, node_id };
        *self.rebuilds.loads.entry(node_id).or_default() += 1;
        if let Some(disk) = own_disk {
            return self.disk_op(disk, DiskOp::Read(FragmentKey { fragment, ..key }), OpPurpose::RebuildFetch(what));
        }
        let item = GetItem { chunk_id: key.chunk_id, fragment, disk_id, whole: true, ..GetItem::default() };
        let message = GetFragments { items: vec![item], hints: Vec::new() };
        self.call(Peer::Node(node_id), &message, self.config.rebuild_fetch_timeout_ms, CallPurpose::Fetch(what));
    }

    pub(super) fn on_fetched(&mut self, what: SourceFetch, answer: Answer) {
        let result = answer.decode::<GetFragments>().and_then(|(mut reply, payload)| {
            let (Some(result), true) = (reply.results.pop(), reply.results.is_empty()) else {
                return Err(Error::new(Code::Internal, "a peer answered for another number of fragments"));
            };
            if let Some(error) = result.error {
                return Err(error);
            }
            let whole = result.len_bytes as usize == payload.len() && result.len_bytes == result.fragment_len_bytes;
            match whole {
                true => Ok((payload, result.crc32c)),
                false => Err(Error::new(Code::Internal, "a peer sent part of a fragment")),
            }
        });
        self.fetched(what, result);
    }

    pub(super) fn on_read_here(&mut self, what: SourceFetch, result: Result<DiskReply, Error>) {
        self.fetched(what, reply!(result, DiskReply::Read { data, crc32c } => (data, crc32c)));
    }

    fn fetched(&mut self, what: SourceFetch, result: Result<(Bytes, u32), Error>) {
        let load = self.rebuilds.loads.entry(what.node_id).or_default();
        assert!(*load > 0, "node {} answered a fetch that was not counted", what.node_id);
        *load -= 1;
        self.advance(what.rebuild_id, |machine| {
            machine.on_fetched(what.at, result);
            Vec::new()
        });
    }

    pub(super) fn on_local_check(&mut self, rebuild_id: u64, result: Result<DiskReply, Error>) {
        let verdicts = reply!(result, DiskReply::Verified(verdicts) => verdicts);
        let verdict = verdicts.map_or_else(|e| Verdict::Bad(e.message), |mut v| v.pop().unwrap_or(Verdict::Missing));
        self.advance(rebuild_id, |machine| machine.on_local_check(&verdict));
    }

    pub(super) fn on_compared(&mut self, rebuild_id: u64, result: Result<DiskReply, Error>) {
        let local = reply!(result, DiskReply::Read { data, crc32c } => (data, crc32c));
        self.advance(rebuild_id, |machine| machine.on_local_read(local));
    }

    pub(super) fn on_computed(&mut self, op_id: u64, result: Rebuilt) {
        if let Some(rebuild_id) = self.rebuilds.computing.remove(&op_id) {
            self.advance(rebuild_id, |machine| machine.on_computed(result));
        }
    }

    pub(super) fn on_rebuild_stored(&mut self, rebuild_id: u64, result: Result<DiskReply, Error>) {
        let fates = reply!(result, DiskReply::Appended(fates) => fates);
        let fate = fates.and_then(|mut fates| fates.pop().unwrap_or_else(|| Err(wrong_reply())));
        self.advance(rebuild_id, |machine| machine.on_appended(fate));
    }

    fn rebuild_finished(&mut self, rebuild_id: u64, outcome: RebuildReport) {
        let Some(active) = self.rebuilds.active.remove(&rebuild_id) else { return };
        self.rebuilds.release(active.cost_bytes);
        self.report_bad_sources(outcome.bad);
        let key = active.machine.key();
        let Some(TaskState { work: Work::Rebuild(work), finished, .. }) = self.tasks.get(active.task) else {
            return;
        };
        assert!(work.active > 0 && !*finished, "a chunk of a task ended after the task");
        work.active -= 1;
        let epoch = work.task.pg.as_ref().map_or(0, |pg| pg.epoch);
        let (pg_id, disk_id) = (work.task.pg.as_ref().map_or(0, |pg| pg.pg_id), work.task.disk_id);
        let proven = work.task.prove;
        let result = outcome.result.and_then(|()| self.still_wanted(pg_id, key, disk_id));
        let Some(task) = self.tasks.get(active.task) else { return };
        task.bytes += outcome.written_bytes;
        task.replaced += u64::from(outcome.replaced);
        let it = FragmentRef { epoch, ..key.on_disk(disk_id) };
        match result {
            Ok(()) => {
                self.counters.fragments_rebuilt += u64::from(outcome.written_bytes > 0 || !proven);
                self.counters.rebuilt_bytes += outcome.written_bytes;
                task.done.push(it);
            }
            Err(why) => {
                self.counters.rebuilds_failed += 1;
                task.failed.push(it);
                task.reason = why;
            }
        }
    }

    /// Checks that the group still needs this fragment on this disk (P11).
    fn still_wanted(&self, pg_id: u64, key: FragmentKey, disk_id: u64) -> Result<(), String> {
        let member = self.cluster.pgs.get(&pg_id).and_then(|pg| pg.members.get(key.fragment as usize));
        match member {
            Some(m) if m.disk_id != disk_id && m.incoming_disk_id != disk_id => {
                Err(format!("group {pg_id} no longer has disk {disk_id} as member {}", key.fragment))
            }
            _ => Ok(()),
        }
    }

    /// Reports bad sources. Those on this node are certain; for others, the manager first asks their node to verify
    /// them.
    fn report_bad_sources(&mut self, bad: Vec<FragmentRef>) {
        self.counters.bad_sources += bad.len() as u64;
        let is_local = |it: &FragmentRef| self.disk_index(it.disk_id).is_some();
        let (local, remote): (Vec<_>, Vec<_>) = bad.into_iter().partition(is_local);
        local.into_iter().for_each(|it| self.report_bad(it));
        if !remote.is_empty() {
            let message = ReportBad { fragments: remote, unreadable: Vec::new() };
            self.call(Peer::Manager, &message, self.config.heartbeat_timeout_ms, CallPurpose::ReportBad);
        }
    }

    /// Stops the rebuild of a deleted fragment in any state (P3).
    pub(super) fn forget_rebuild(&mut self, disk: usize, key: FragmentKey) {
        let of_it = |a: &mut ActiveRebuild| a.disk == disk && a.machine.key() == key;
        let hit: Vec<(u64, ActiveRebuild)> = self.rebuilds.active.extract_if(|_, a| of_it(a)).collect();
        self.rebuilds.release(hit.iter().map(|(_, active)| active.cost_bytes).sum());
        for (_, active) in hit {
            if let Some(TaskState { work: Work::Rebuild(work), .. }) = self.tasks.get(active.task) {
                work.active -= 1;
            }
        }
        for task in &mut self.tasks.list {
            if let Work::Rebuild(work) = &mut task.work
                && work.disk == disk
                && work.task.fragment == key.fragment
            {
                work.skip.insert(key.chunk_id);
            }
        }
    }

    /// Drops rebuilds. Later results for them are ignored.
    pub(super) fn drop_rebuilds(&mut self, mut dropped: impl FnMut(&ActiveRebuild) -> bool) {
        let freed = self.rebuilds.active.extract_if(|_, rebuild| dropped(rebuild)).map(|(_, a)| a.cost_bytes).sum();
        self.rebuilds.release(freed);
    }
}
