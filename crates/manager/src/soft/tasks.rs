//! The table of tasks that nodes work on. It is soft: after a restart the manager plans them again from the rows.
//!
//! A task belongs to the node that serves its disk. The manager hands it out with the answer to a heartbeat, and again with each
//! later one until the node lists it as running or reports its end. So a lost answer costs only one heartbeat. When the node
//! dies or the member changes, the manager forgets the task and plans its work again; it ignores results of unknown tasks.
//! [`crate::repair::rebuild`] creates rebuild tasks and handles their results.

use crate::db::rows::{Missing, MissingKey};
use crate::soft::proofs::Proofs;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use tessera_wire::meta::FragmentRef;
use tessera_wire::meta::Task;

/// Attempts to re-read a disk; after the last, the manager waits for the next pass.
const SCRUB_TRIES: u32 = 8;

/// A member of a group: (group, position).
pub type MemberKey = (u64, u32);

/// Most suspect fragments per disk that wait for verification.
const MAX_SUSPECTS: usize = 65_536;

/// The purpose of a task.
#[derive(Debug, Clone)]
pub enum Work {
    /// Part of a batch of a backfill.
    Backfill {
        /// Chunks not yet reported.
        left: BTreeSet<u64>,
    },
    /// Missing fragments of one member.
    Missing {
        /// Their chunks, less those already reported.
        left: BTreeSet<u64>,
        /// 1: for the incoming disk of a moving member.
        incoming: u8,
    },
    /// Fragments of one member are compared with what the others give.
    Proof {
        /// Their chunks, less those already reported.
        left: BTreeSet<u64>,
        /// An operator waits for it.
        hurry: bool,
    },
    /// Suspect fragments are re-read.
    Verify,
    /// The whole disk is re-read.
    Scrub,
    /// The disk is listed.
    Inventory(Listing),
    /// Segments are compacted.
    Compact,
}

/// Progress of a disk's inventory.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// `disks.inventory_wanted` when the listing began.
    pub wanted: u64,
    /// Incarnation of the node that lists.
    pub incarnation: u64,
    /// Chunks below this id had been issued when the listing began.
    pub bound: u64,
    /// Chunks among them that were not yet committed.
    pub pending: BTreeSet<u64>,
    /// Last fragment of the last page.
    pub at: (u64, u32),
    /// The last page has arrived.
    pub complete: bool,
}

/// A task and the node that works on it.
#[derive(Debug, Clone)]
pub struct Assignment {
    pub node_id: u64,
    /// Disk it works on.
    pub disk_id: u64,
    /// Member whose fragments it rebuilds (rebuild tasks).
    pub member: MemberKey,
    /// Epoch of the group when the task was created.
    pub epoch: u64,
    /// Purpose.
    pub work: Work,
    /// The task as sent to the node.
    pub wire: Task,
}

/// The batch of a backfill that is under way.
#[derive(Debug, Clone, Default)]
pub struct BackfillBatch {
    /// Disk being backfilled.
    pub incoming: u64,
    /// Cursor before the batch.
    pub from: u64,
    /// Cursor once the whole batch is done.
    pub to: u64,
    pub done: Vec<u64>,
    /// Tasks not yet finished.
    pub open: BTreeSet<u64>,
    /// When the cursor's move was proposed; 0: not yet.
    pub proposed_ns: i64,
}

/// Tasks handed out, and the work that waits for one.
#[derive(Debug, Default)]
pub struct Tasks {
    /// The manager's term; part of each id, so that ids differ between terms.
    pub term: u64,
    next: u64,
    /// By task id.
    pub given: BTreeMap<u64, Assignment>,
    /// Batches of backfills under way.
    pub backfills: HashMap<MemberKey, BackfillBatch>,
    /// Backfills that failed: (not before, tries).
    pub backfill_backoff: HashMap<MemberKey, (i64, u32)>,
    /// Missing fragments to rebuild, by the disk that lacks them.
    pub missing: BTreeMap<u64, VecDeque<Missing>>,
    /// Missing fragments in `missing` or in a task.
    pub queued: HashSet<MissingKey>,
    /// Missing fragments whose rebuild failed: (not before, tries).
    pub missing_backoff: HashMap<MissingKey, (i64, u32)>,
    /// Fragments to verify, by disk.
    pub suspects: BTreeMap<u64, BTreeSet<(u64, u32)>>,
    /// Disks to re-read.
    pub scrub_wanted: BTreeSet<u64>,
    /// Consecutive incomplete attempts to re-read each disk.
    pub scrub_cut_short: BTreeMap<u64, u32>,
    /// Disks to compact.
    pub compact_wanted: BTreeSet<u64>,
    /// Chunks to prove.
    pub proofs: Proofs,
}

impl Tasks {
    /// Draws a task id; ids never repeat across terms.
    fn draw(&mut self) -> u64 {
        self.next += 1;
        assert!(self.next < 1 << 40, "tasks of one term are numbered within 40 bits");
        (self.term << 40) | self.next
    }

    /// Adds a task for a node and numbers it; returns the message to send.
    pub fn give(&mut self, mut given: Assignment) -> Task {
        given.wire.task_id = self.draw();
        assert!(given.node_id != 0 && given.disk_id != 0, "a task is for a disk of a node: {given:?}");
        let wire = given.wire.clone();
        let before = self.given.insert(wire.task_id, given);
        assert!(before.is_none(), "task {}: ids are unique", wire.task_id);
        wire
    }

    /// Number of rebuild tasks that a node has.
    pub fn rebuilding(&self, node_id: u64) -> usize {
        self.given
            .values()
            .filter(|g| g.node_id == node_id && matches!(g.work, Work::Backfill { .. } | Work::Missing { .. }))
            .count()
    }

    /// Whether a disk has a task whose work satisfies `which`.
    pub fn has(&self, disk_id: u64, which: impl Fn(&Work) -> bool) -> bool {
        self.given.values().any(|g| g.disk_id == disk_id && which(&g.work))
    }

    /// Tasks of the node that it does not list as running: it never got them, or lost them.
    pub fn unheard(&self, node_id: u64, running: &[u64]) -> Vec<Task> {
        let running: HashSet<u64> = running.iter().copied().collect();
        self.given
            .iter()
            .filter(|(id, g)| g.node_id == node_id && !running.contains(id))
            .map(|(_, g)| g.wire.clone())
            .collect()
    }

    /// Removes a finished task. Work that it did not do can be planned again.
    pub fn close(&mut self, task_id: u64) -> Option<Assignment> {
        let given = self.given.remove(&task_id)?;
        if let Work::Missing { left, incoming } = &given.work {
            for chunk in left {
                self.queued.remove(&(*chunk, given.member.1, *incoming));
            }
        }
        if let Work::Proof { left, .. } = &given.work {
            left.iter().for_each(|chunk| self.proofs.forget(*chunk));
        }
        Some(given)
    }

    /// Forgets the tasks of a node that died or registered again.
    pub fn forget_node(&mut self, node_id: u64) {
        self.forget(|g| g.node_id == node_id);
    }

    /// Forgets the work of a disk that is gone.
    pub fn forget_disk(&mut self, disk_id: u64) {
        self.forget(|g| g.disk_id == disk_id);
        for row in self.missing.remove(&disk_id).unwrap_or_default() {
            self.queued.remove(&row.key());
        }
        self.suspects.remove(&disk_id);
        self.proofs.forget_disk(disk_id);
        self.scrub_wanted.remove(&disk_id);
        self.scrub_cut_short.remove(&disk_id);
        self.compact_wanted.remove(&disk_id);
    }

    /// A pass over a disk ended. If it was cut short (`reason`: e.g. the node rebuilds its damaged index), the disk is re-read
    /// again, up to `SCRUB_TRIES` times.
    pub fn scrubbed(&mut self, disk_id: u64, reason: &str) {
        let tries = self.scrub_cut_short.remove(&disk_id).unwrap_or(0) + 1;
        if reason.is_empty() {
            return;
        }
        tracing::warn!(disk_id, reason, tries, "a disk was not re-read to its end");
        if tries < SCRUB_TRIES {
            self.scrub_cut_short.insert(disk_id, tries);
            self.scrub_wanted.insert(disk_id);
        }
    }

    /// Forgets the work of a member that changed.
    pub fn forget_member(&mut self, member: MemberKey) {
        self.forget(|g| g.member == member);
        self.backfills.remove(&member);
        self.backfill_backoff.remove(&member);
        for queue in self.missing.values_mut() {
            queue.retain(|row| {
                let stays = (row.pg_id, row.fragment) != member;
                if !stays {
                    self.queued.remove(&row.key());
                }
                stays
            });
        }
    }

    fn forget(&mut self, which: impl Fn(&Assignment) -> bool) {
        let gone: Vec<u64> = self.given.iter().filter(|(_, g)| which(g)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(given) = self.close(id) {
                match given.work {
                    Work::Backfill { .. } => {
                        self.backfills.remove(&given.member);
                        // Other tasks of the same batch are void with it.
                        self.given.retain(|_, g| g.member != given.member || !matches!(g.work, Work::Backfill { .. }));
                    }
                    Work::Scrub => {
                        self.scrub_wanted.insert(given.disk_id);
                    }
                    Work::Compact => {
                        self.compact_wanted.insert(given.disk_id);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Queues a fragment for verification on its disk.
    pub fn suspect(&mut self, fragment: &FragmentRef) {
        let suspects = self.suspects.entry(fragment.disk_id).or_default();
        if suspects.len() < MAX_SUSPECTS {
            suspects.insert((fragment.chunk_id, fragment.fragment));
        }
    }

    /// Removes and returns up to `limit` suspect fragments of a disk.
    pub fn take_suspects(&mut self, disk_id: u64, limit: usize) -> Vec<FragmentRef> {
        let Some(suspects) = self.suspects.get_mut(&disk_id) else { return Vec::new() };
        let taken: Vec<(u64, u32)> = suspects.iter().take(limit).copied().collect();
        taken.iter().for_each(|t| _ = suspects.remove(t));
        taken.into_iter().map(|(chunk_id, fragment)| FragmentRef { chunk_id, fragment, epoch: 0, disk_id }).collect()
    }
}

/// When to try again after `tries` failures: 1 s, 2 s, … up to a minute.
pub fn retry_at(now_ns: i64, tries: u32) -> i64 {
    now_ns + 1_000_000_000i64 * i64::from(1u32 << tries.min(6)).min(60)
}
