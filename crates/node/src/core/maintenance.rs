//! Background maintenance of disks: scrubbing (P13) and compaction (P5). The manager's tasks only start it sooner.

use super::ops::{DiskOp, DiskReply, ScrubCursor, reply};
use super::{NodeCore, OpPurpose};
use crate::config::ms;
use tessera_wire::Error;

/// Delay after a cycle that ended with a disk error.
const RETRY_MS: u64 = 60_000;

/// The scrub of one disk. A cycle reads every record once.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    running: bool,
    cursor: Option<ScrubCursor>,
    in_flight: bool,
    /// The cycle restarted while a step was in progress; that step's cursor belongs to the old cycle.
    restarted: bool,
    pub(super) tasks: Vec<u64>,
    pub(super) bytes: u64,
    pub(super) rot_found: u64,
    /// Start time of the running cycle.
    began_ns: i64,
    /// Start time of the last completed cycle; 0 if there is none.
    pub(super) verified_ns: i64,
    next_ns: i64,
}

/// The compaction of one disk.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    in_flight: bool,
    pub(super) tasks: Vec<u64>,
    /// A task arrived after the last step began: the next step seals the open segment.
    pub(super) seal_next: bool,
    freed_bytes: u64,
    /// The last step failed, and the log says so.
    failing: bool,
    next_ns: i64,
}

impl Scrub {
    /// Starts a cycle now, on behalf of a task.
    pub(super) fn start_for(&mut self, task: u64, now_ns: i64) {
        self.tasks.push(task);
        self.start(now_ns);
    }

    fn start(&mut self, now_ns: i64) {
        assert!(now_ns >= self.began_ns, "a scrub cycle starts before the last one did");
        self.running = true;
        self.began_ns = now_ns;
        self.cursor = None;
        self.restarted = self.in_flight;
        self.bytes = 0;
    }
}

impl Compaction {
    /// Compacts the current dead records, on behalf of a task.
    pub(super) fn start_for(&mut self, task: u64) {
        self.tasks.push(task);
        self.seal_next = true;
    }
}

impl NodeCore {
    /// Schedules the first scrubs at random times, so that disks and nodes that start together do not scrub together.
    pub(super) fn start_maintenance(&mut self) {
        for disk in &mut self.disks {
            let first_ms = self.random.below(self.config.scrub_every_s.saturating_mul(1_000));
            disk.scrub.next_ns = self.now_ns.saturating_add(ms(first_ms));
            disk.compact.next_ns = self.now_ns.saturating_add(ms(self.config.compact_every_ms));
        }
    }

    pub(super) fn run_maintenance(&mut self) {
        for disk in 0..self.disks.len() {
            if self.disks[disk].disk_id != 0 && self.disks[disk].failed.is_none() {
                self.run_scrub(disk);
                self.run_compaction(disk);
            } else if self.disks[disk].failed.is_some() {
                self.end_maintenance(disk);
            }
        }
    }

    pub(super) fn maintenance_deadline_ns(&self) -> i64 {
        let of = |disk: &super::DiskState| {
            if disk.disk_id == 0 || disk.failed.is_some() {
                return i64::MAX;
            }
            let scrub = match &disk.scrub {
                Scrub { in_flight: true, .. } => i64::MAX,
                Scrub { running: true, tasks, .. } if tasks.is_empty() => self.scrub_bucket.ready_at_ns(),
                Scrub { running: true, .. } => self.repair_bucket.ready_at_ns(),
                idle if self.config.scrub_every_s > 0 => idle.next_ns,
                _ => i64::MAX,
            };
            let compact = match &disk.compact {
                Compaction { in_flight: true, .. } => i64::MAX,
                idle if self.config.compact_every_ms > 0 => idle.next_ns,
                _ => i64::MAX,
            };
            scrub.min(compact)
        };
        self.disks.iter().map(of).min().unwrap_or(i64::MAX)
    }

    fn run_scrub(&mut self, disk: usize) {
        let every_s = self.config.scrub_every_s;
        let scrub = &mut self.disks[disk].scrub;
        if scrub.in_flight {
            return;
        }
        if !scrub.running && every_s > 0 && self.now_ns >= scrub.next_ns {
            scrub.start(self.now_ns);
        }
        if !scrub.running {
            return;
        }
        // A requested scrub runs at the repair rate, a background scrub at its own.
        let bucket = if scrub.tasks.is_empty() { &mut self.scrub_bucket } else { &mut self.repair_bucket };
        if bucket.is_ready(self.now_ns) {
            scrub.in_flight = true;
            let op = DiskOp::Scrub { cursor: scrub.cursor, max_bytes: self.config.scrub_step_bytes.max(1) };
            self.disk_op(disk, op, OpPurpose::Scrub);
        }
    }

    pub(super) fn on_scrubbed(&mut self, disk: usize, result: Result<DiskReply, Error>) {
        let now_ns = self.now_ns;
        let disk_id = self.disks[disk].disk_id;
        let scrub = &mut self.disks[disk].scrub;
        assert!(scrub.in_flight, "disk {disk} ended a scrub step that was not started");
        scrub.in_flight = false;
        let (next, bytes, bad) = match reply!(result, DiskReply::Scrubbed { next, bytes, bad } => (next, bytes, bad)) {
            Ok(step) => step,
            Err(error) => return self.end_scrub(disk, RETRY_MS, &error.message),
        };
        scrub.rot_found += bad.len() as u64;
        self.counters.scrubbed_bytes += bytes;
        let bucket = if scrub.tasks.is_empty() { &mut self.scrub_bucket } else { &mut self.repair_bucket };
        bucket.is_ready(now_ns);
        bucket.take(bytes);
        let whole_cycle = !std::mem::take(&mut scrub.restarted);
        if whole_cycle {
            scrub.cursor = next;
            scrub.bytes += bytes;
        }
        let tasks = scrub.tasks.clone();
        for task in tasks {
            if let Some(task) = self.tasks.get(task) {
                task.failed.extend(bad.iter().map(|key| key.on_disk(disk_id)));
                task.bytes += bytes;
            }
        }
        for key in bad {
            self.report_bad(key.on_disk(disk_id));
            self.heartbeat_soon();
        }
        if whole_cycle && next.is_none() {
            // Corrupt fragments were reported and count as missing; all others were verified.
            let scrub = &mut self.disks[disk].scrub;
            assert!(scrub.began_ns >= scrub.verified_ns, "a scrub cycle began before the last one");
            scrub.verified_ns = scrub.began_ns;
            self.end_scrub(disk, self.config.scrub_every_s.saturating_mul(1_000), "");
        }
    }

    fn end_scrub(&mut self, disk: usize, again_ms: u64, reason: &str) {
        let scrub = &mut self.disks[disk].scrub;
        scrub.running = false;
        scrub.restarted = false;
        scrub.next_ns = self.now_ns.saturating_add(ms(again_ms));
        for task in std::mem::take(&mut scrub.tasks) {
            self.finish_task(task, reason);
        }
    }

    fn run_compaction(&mut self, disk: usize) {
        let (every_ms, dead_percent) = (self.config.compact_every_ms, self.config.compact_dead_percent);
        let anything_dead = self.disks[disk].about.stats.store.dead_bytes > 0;
        let compact = &mut self.disks[disk].compact;
        let hurried = !compact.tasks.is_empty();
        let due = every_ms > 0 && self.now_ns >= compact.next_ns;
        if compact.in_flight || !(hurried || due) {
            return;
        }
        if !hurried && !anything_dead {
            compact.next_ns = self.now_ns.saturating_add(ms(every_ms));
            return;
        }
        compact.in_flight = true;
        let dead_percent = if hurried { self.config.gc_dead_percent.min(dead_percent) } else { dead_percent };
        let seal = std::mem::take(&mut compact.seal_next);
        let op = DiskOp::Compact { dead_percent, seal, max_bytes: self.config.compact_step_bytes.max(1) };
        self.disk_op(disk, op, OpPurpose::Compact);
    }

    pub(super) fn on_compacted(&mut self, disk: usize, result: Result<DiskReply, Error>) {
        let now_ns = self.now_ns;
        let compact = &mut self.disks[disk].compact;
        assert!(compact.in_flight, "disk {disk} ended a compaction step that was not started");
        compact.in_flight = false;
        let step = reply!(result, DiskReply::Compacted { freed_bytes, more } => (freed_bytes, more, String::new()));
        let failed = step.is_err();
        let (freed_bytes, more, reason) = step.unwrap_or_else(|error| (0, false, error.message));
        if failed && !compact.failing {
            tracing::warn!(error = reason, "compaction cannot go on; it is tried again");
        }
        compact.failing = failed;
        compact.freed_bytes += freed_bytes;
        self.counters.compacted_bytes += freed_bytes;
        if more || compact.seal_next {
            compact.next_ns = now_ns;
            return;
        }
        compact.next_ns = now_ns.saturating_add(ms(self.config.compact_every_ms));
        let freed_bytes = std::mem::take(&mut compact.freed_bytes);
        for task in std::mem::take(&mut compact.tasks) {
            if let Some(task) = self.tasks.get(task) {
                task.bytes = freed_bytes;
            }
            self.finish_task(task, &reason);
        }
    }

    fn end_maintenance(&mut self, disk: usize) {
        let state = &mut self.disks[disk];
        let mut tasks = std::mem::take(&mut state.scrub.tasks);
        tasks.append(&mut state.compact.tasks);
        let reason = state.failed.clone().unwrap_or_default();
        tasks.into_iter().for_each(|task| self.finish_task(task, &reason));
    }
}
