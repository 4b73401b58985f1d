//! Deletes: ordered by the manager, made durable by the disks, reported until a heartbeat is answered (P3, P5).

use super::ops::{DiskOp, DiskReply, FragmentKey};
use super::{NodeCore, OpPurpose};
use std::collections::{BTreeMap, HashSet, VecDeque};
use tessera_wire::Error;
use tessera_wire::meta::FragmentRef;

/// Maximum number of deletes in one disk operation.
const BATCH: usize = 4_096;

/// Deletes in progress and done.
#[derive(Debug, Default)]
pub(super) struct Deletes {
    /// Deletes in progress or not yet reported: the manager repeats an order until its report arrives.
    unreported: HashSet<(u64, FragmentKey)>,
    pub(super) done: VecDeque<FragmentRef>,
}

impl Deletes {
    /// Removes the first `count` deletes: the manager has received them.
    pub(super) fn reported(&mut self, count: usize) {
        assert!(count <= self.done.len(), "{count} deletes were reported of {}", self.done.len());
        for it in self.done.drain(..count) {
            self.unreported.remove(&(it.disk_id, FragmentKey::from(&it)));
        }
    }
}

impl NodeCore {
    /// Carries out the deletes of a manager that `admit_manager` accepted.
    pub(super) fn delete_all(&mut self, deletes: &[FragmentRef]) {
        let mut by_disk: BTreeMap<usize, Vec<FragmentRef>> = BTreeMap::new();
        for it in deletes {
            let Some(disk) = self.disk_index(it.disk_id) else {
                tracing::warn!(disk = it.disk_id, "a delete for a disk that is not here is left alone");
                continue;
            };
            let key = FragmentKey::from(it);
            if self.disks[disk].failed.is_none() && self.deletes.unreported.insert((it.disk_id, key)) {
                // Stops a rebuild of the fragment, which must not bring it back (P3).
                self.forget_rebuild(disk, key);
                by_disk.entry(disk).or_default().push(*it);
            }
        }
        for (disk, doomed) in by_disk {
            for doomed in doomed.chunks(BATCH).map(<[_]>::to_vec) {
                let keys = doomed.iter().map(FragmentKey::from).collect();
                self.disk_op(disk, DiskOp::Delete(doomed), OpPurpose::Delete { keys });
            }
        }
    }

    pub(super) fn on_deleted(&mut self, disk: usize, keys: Vec<FragmentKey>, result: Result<DiskReply, Error>) {
        let disk_id = self.disks[disk].disk_id;
        if let Err(error) = result {
            tracing::warn!(disk = disk_id, %error, "deletes failed; the manager will send them again");
            for key in keys {
                self.deletes.unreported.remove(&(disk_id, key));
            }
            return;
        }
        self.counters.fragments_deleted += keys.len() as u64;
        self.deletes.done.extend(keys.iter().map(|key| key.on_disk(disk_id)));
        self.heartbeat_soon();
    }
}
