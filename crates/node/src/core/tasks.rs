//! Tasks from the manager: queued, bounded, paced, and reported until a heartbeat is answered.
//!
//! A task belongs to an incarnation of the node. When the node must rejoin it drops its tasks, because the manager may
//! have given them to other nodes (P11).

use super::inventory::InventoryWork;
use super::ops::{DiskOp, DiskReply, FragmentKey, Verdict, reply};
use super::{NodeCore, OpPurpose};
use std::collections::HashSet;
use tessera_wire::Error;
use tessera_wire::meta::{FragmentRef, RebuildTask, Task, TaskResult};

#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) list: Vec<TaskState>,
    /// A task waits for tokens of the repair bucket.
    wait_for_bucket: bool,
    /// A proof waits for tokens of the scrub bucket.
    wait_for_scrub_bucket: bool,
}

/// A task and those of its results that no answered heartbeat has reported.
#[derive(Debug, Default)]
pub(super) struct TaskState {
    /// Identifies the task on this node. Unlike `task_id` it is never used again, so what a dropped task has in progress
    /// cannot count for another.
    number: u64,
    pub(super) task_id: u64,
    term: u64,
    pub(super) work: Work,
    pub(super) done: Vec<FragmentRef>,
    pub(super) failed: Vec<FragmentRef>,
    pub(super) reason: String,
    pub(super) bytes: u64,
    /// Fragments that a proof replaced.
    pub(super) replaced: u64,
    pub(super) finished: bool,
}

#[derive(Debug, Default)]
pub(super) enum Work {
    Rebuild(RebuildWork),
    Verify {
        items: Vec<FragmentRef>,
        next: usize,
        in_flight: bool,
    },
    Inventory(InventoryWork),
    /// The disk's scrub or compaction does the work and finishes the task.
    Maintenance,
    /// The task was refused; only its result remains.
    #[default]
    Nothing,
}

#[derive(Debug)]
pub(super) struct RebuildWork {
    pub(super) task: RebuildTask,
    pub(super) disk: usize,
    pub(super) next: usize,
    pub(super) active: usize,
    /// Chunks deleted before their turn.
    pub(super) skip: HashSet<u64>,
}

impl Tasks {
    pub(super) fn running(&self) -> Vec<u64> {
        self.list.iter().map(|t| t.task_id).collect()
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut TaskState> {
        self.list.iter_mut().find(|t| t.number == number)
    }
}

impl NodeCore {
    pub(super) fn add_task(&mut self, task: Task) {
        let term = self.mark.term;
        let task_id = task.task_id;
        match self.tasks.list.iter().find(|t| t.task_id == task_id) {
            Some(known) if known.term == term => return,
            // Task ids are unique only within a term: this is another task.
            Some(known) => self.drop_tasks(Some(known.number)),
            None => {}
        }
        if self.tasks.list.len() >= 2 * self.config.max_tasks {
            return;
        }
        let number = self.fresh_id();
        let work = match self.tasks.list.len() >= self.config.max_tasks {
            true => Err(format!("this node has {} tasks already; hand it out later", self.config.max_tasks)),
            false => self.work_of(number, task),
        };
        let state = TaskState { number, task_id, term, ..TaskState::default() };
        self.tasks.list.push(match work {
            Ok(work) => TaskState { work, ..state },
            Err(reason) => TaskState { reason, finished: true, ..state },
        });
    }

    /// Returns the work of a task, or what is wrong with the task (P14).
    fn work_of(&mut self, number: u64, task: Task) -> Result<Work, String> {
        match task {
            Task { rebuild: Some(rebuild), .. } => {
                let disk = self.task_disk(rebuild.disk_id)?;
                let (Some(pg), Some(class)) = (&rebuild.pg, &rebuild.class) else {
                    return Err("the task names no group or no class".into());
                };
                self.learn_pg(pg.clone());
                self.cluster.classes.insert(class.class_id, class.clone());
                Ok(Work::Rebuild(RebuildWork { task: rebuild, disk, next: 0, active: 0, skip: HashSet::new() }))
            }
            Task { verify: Some(verify), .. } => {
                Ok(Work::Verify { items: verify.fragments, next: 0, in_flight: false })
            }
            Task { inventory: Some(it), .. } => {
                Ok(Work::Inventory(InventoryWork::new(self.task_disk(it.disk_id)?, it.disk_id)))
            }
            Task { scrub: Some(it), .. } => {
                let disk = self.task_disk(it.disk_id)?;
                self.disks[disk].scrub.start_for(number, self.now_ns);
                Ok(Work::Maintenance)
            }
            Task { compact: Some(it), .. } => {
                let disk = self.task_disk(it.disk_id)?;
                self.disks[disk].compact.start_for(number);
                Ok(Work::Maintenance)
            }
            _ => Err("the task is of a kind this release does not know".into()),
        }
    }

    fn task_disk(&self, disk_id: u64) -> Result<usize, String> {
        let disk = self.disk_index(disk_id).ok_or_else(|| format!("disk {disk_id} is not served by this node"))?;
        match &self.disks[disk].failed {
            None => Ok(disk),
            Some(reason) => Err(format!("disk {disk_id} has failed: {reason}")),
        }
    }

    /// Drops a task, or all of them. Later results for them are ignored.
    pub(super) fn drop_tasks(&mut self, only: Option<u64>) {
        let kept = |number: u64| only.is_some_and(|dropped| dropped != number);
        self.tasks.list.retain(|t| kept(t.number));
        self.drop_rebuilds(|rebuild| !kept(rebuild.task));
        for disk in &mut self.disks {
            disk.scrub.tasks.retain(|number| kept(*number));
            disk.compact.tasks.retain(|number| kept(*number));
            disk.compact.seal_next &= only.is_some();
        }
    }

    /// Ends a task; the next heartbeat reports it.
    pub(super) fn finish_task(&mut self, number: u64, reason: &str) {
        let Some(task) = self.tasks.get(number) else { return };
        if let Work::Rebuild(work) = &task.work {
            assert!(work.active == 0 && work.next == work.task.chunks.len(), "task {} has chunks left", task.task_id);
        }
        if !std::mem::replace(&mut task.finished, true) {
            if !reason.is_empty() {
                task.reason = reason.to_string();
            }
            self.counters.tasks_finished += 1;
            self.heartbeat_soon();
        }
    }

    /// Starts all work that can start.
    pub(super) fn run_tasks(&mut self) {
        (self.tasks.wait_for_bucket, self.tasks.wait_for_scrub_bucket) = (false, false);
        let numbers: Vec<u64> = self.tasks.list.iter().filter(|t| !t.finished).map(|t| t.number).collect();
        for number in numbers {
            while self.run_task(number) {}
        }
    }

    /// Runs one step of a task. Returns false if no step is possible now.
    fn run_task(&mut self, number: u64) -> bool {
        let Some(task) = self.tasks.get(number) else { return false };
        match &task.work {
            Work::Rebuild(work) if work.next >= work.task.chunks.len() => {
                if work.active == 0 {
                    self.finish_task(number, "");
                }
                false
            }
            Work::Rebuild(RebuildWork { task: RebuildTask { prove: true, hurry: false, .. }, .. }) => {
                self.may_rebuild() && self.may_scrub() && self.start_rebuild(number)
            }
            Work::Rebuild(_) => self.may_rebuild() && self.may_repair() && self.start_rebuild(number),
            Work::Verify { items, next, in_flight: false } if *next >= items.len() => {
                self.finish_task(number, "");
                false
            }
            Work::Verify { in_flight: false, .. } => self.may_repair() && self.start_verify(number),
            Work::Inventory(_) => self.run_inventory(number),
            Work::Verify { .. } | Work::Maintenance | Work::Nothing => false,
        }
    }

    /// True if repair traffic may flow now.
    pub(super) fn may_repair(&mut self) -> bool {
        let ready = self.repair_bucket.is_ready(self.now_ns);
        self.tasks.wait_for_bucket |= !ready;
        ready
    }

    fn may_scrub(&mut self) -> bool {
        let ready = self.scrub_bucket.is_ready(self.now_ns);
        self.tasks.wait_for_scrub_bucket |= !ready;
        ready
    }

    pub(super) fn tasks_deadline_ns(&self) -> i64 {
        let repair = if self.tasks.wait_for_bucket { self.repair_bucket.ready_at_ns() } else { i64::MAX };
        let scrub = if self.tasks.wait_for_scrub_bucket { self.scrub_bucket.ready_at_ns() } else { i64::MAX };
        let bucket = repair.min(scrub);
        let inventories = self.tasks.list.iter().filter_map(|t| match &t.work {
            Work::Inventory(work) if !t.finished => work.retry_at_ns(),
            _ => None,
        });
        inventories.min().unwrap_or(i64::MAX).min(bucket)
    }

    // --- verifying what a reader reported -------------------------------------------------------------------

    fn start_verify(&mut self, number: u64) -> bool {
        let batch = self.config.verify_batch.max(1);
        let Some(TaskState { work: Work::Verify { items, next, in_flight }, .. }) = self.tasks.get(number) else {
            return false;
        };
        let disk_id = items[*next].disk_id;
        let same: Vec<_> = items[*next..].iter().take_while(|it| it.disk_id == disk_id).take(batch).cloned().collect();
        assert!(!same.is_empty() && !*in_flight, "a verification of nothing, or a second one at a time");
        *next += same.len();
        *in_flight = true;
        let Some(disk) = self.disk_index(disk_id) else {
            // The disk is not on this node, so the fragment is not where the manager expects it.
            let verdicts = vec![Verdict::Missing; same.len()];
            self.on_verified(number, same, Ok(DiskReply::Verified(verdicts)));
            return true;
        };
        let keys = same.iter().map(FragmentKey::from).collect();
        self.disk_op(disk, DiskOp::Verify(keys), OpPurpose::Verify { task: number, items: same });
        false
    }

    pub(super) fn on_verified(&mut self, number: u64, items: Vec<FragmentRef>, result: Result<DiskReply, Error>) {
        let verdicts = reply!(result, DiskReply::Verified(verdicts) => verdicts);
        let verdicts = verdicts.unwrap_or_else(|error| vec![Verdict::Bad(error.message); items.len()]);
        assert_eq!(verdicts.len(), items.len(), "each fragment has its verdict");
        let Some(task) = self.tasks.get(number) else { return };
        let mut bytes = 0;
        let mut rot = 0;
        for (item, verdict) in items.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Good { len_bytes, .. } => {
                    bytes += u64::from(len_bytes);
                    task.done.push(item);
                }
                Verdict::Missing => task.failed.push(item),
                Verdict::Bad(why) => {
                    rot += 1;
                    task.reason = why;
                    task.failed.push(item);
                }
            }
        }
        task.bytes += bytes;
        if let Work::Verify { in_flight, .. } = &mut task.work {
            *in_flight = false;
        }
        self.counters.rot_found += rot;
        self.repair_bucket.take(bytes);
    }

    // --- reporting ------------------------------------------------------------------------------------------

    /// Unreported results, at most `most` fragments; an answered heartbeat takes them off the lists.
    pub(super) fn task_results(&mut self, most: usize) -> Vec<TaskResult> {
        let mut results = Vec::new();
        let mut room = most;
        for task in &self.tasks.list {
            let done = task.done.len().min(room);
            room -= done;
            let failed = task.failed.len().min(room);
            room -= failed;
            let finished = task.finished && done == task.done.len() && failed == task.failed.len();
            if done + failed > 0 || finished {
                results.push(TaskResult {
                    task_id: task.task_id,
                    done: task.done[..done].to_vec(),
                    failed: task.failed[..failed].to_vec(),
                    reason: task.reason.clone(),
                    bytes: task.bytes,
                    finished,
                    replaced: task.replaced,
                });
            }
        }
        let sent: usize = results.iter().map(|it| it.done.len() + it.failed.len()).sum();
        assert!(sent <= most, "{sent} results in a heartbeat of at most {most}");
        results
    }

    /// Takes the results of a heartbeat off the lists. No task was added or dropped since it was sent.
    pub(super) fn tasks_reported(&mut self, reported: &[TaskResult]) {
        for it in reported {
            let task = self.tasks.list.iter_mut().find(|task| task.task_id == it.task_id);
            let task = task.expect("a reported task is kept until the heartbeat is answered");
            let (done, failed) = (it.done.len(), it.failed.len());
            assert!(done <= task.done.len() && failed <= task.failed.len(), "{it:?} of {task:?}");
            assert!(it.bytes <= task.bytes, "{} bytes were reported of {}", it.bytes, task.bytes);
            task.done.drain(..done);
            task.failed.drain(..failed);
            task.bytes -= it.bytes;
            task.replaced -= it.replaced;
            assert!(
                !it.finished || (task.finished && task.done.is_empty() && task.failed.is_empty()),
                "task {} was reported finished and has more results",
                task.task_id
            );
        }
        self.tasks.list.retain(|task| !reported.iter().any(|it| it.finished && it.task_id == task.task_id));
    }
}
