//! Progress of the maintenance jobs (gc, scrub, repair) that an operator started.

/// A maintenance job: the running one, or the last one.
#[derive(Debug, Default, Clone, Copy)]
pub struct JobState {
    pub running: bool,
    /// Bytes re-read or reclaimed.
    pub bytes: u64,
    /// Bad fragments found; of a garbage collection, disks that could not be compacted to the end.
    pub bad: u64,
    /// Disks that are done.
    pub disks_done: u64,
    /// Disks in all.
    pub disks: u64,
    /// [`crate::repair::rebuild::RepairCounters::fragments`] when it began.
    pub repaired_before: u64,
    /// Garbage collection: what it waits for before it orders compaction.
    pub wait: GcWait,
    /// Garbage collection: compaction was ordered.
    pub compacting: bool,
    /// Garbage collection: deletes that it waited for when they were last counted, and when that was, ns.
    pub left: (u64, i64),
}

/// What a garbage collection waits for: what was garbage when it began, one after the other. What becomes garbage meanwhile is left to later
/// ones, else it would not end while files are written and removed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum GcWait {
    /// It has just begun.
    #[default]
    Nothing,
    /// That the references of the dropped pages `first` to `last` are taken off. They go in order, and ids begin anew once none is left.
    Pages { first: u64, last: u64 },
    /// That chunks without references since before this time are removed, ns.
    Chunks(i64),
    /// That disks do the deletes that were ordered up to this entry of the log.
    Deletes(u64),
}

/// State of the maintenance jobs. A restart forgets it.
#[derive(Debug, Default)]
pub struct MaintenanceJobs {
    /// The scrub job: re-reads all disks.
    pub scrub: JobState,
    pub gc: JobState,
    pub repair: JobState,
    /// Repair does not wait for nodes that are down (set by a repair job, until no node is down).
    pub hurry: bool,
}

impl JobState {
    /// Counts a report of one of the job's tasks.
    pub fn note(&mut self, bytes: u64, bad: u64, finished: bool) {
        self.bytes += bytes;
        self.bad += bad;
        self.disks_done += u64::from(finished);
    }
}
