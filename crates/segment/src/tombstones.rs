//! Tombstones: fragments with dead records on the disk, and their delete records.
//!
//! A delete record must outlive every older record of its fragment (P3). It is needed while dead copies are on the
//! disk, or while a damaged stretch may hide one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::index::{Entry, FragmentId, Tombstone};

/// Approximate memory of one tombstone in bytes.
const TOMBSTONE_BYTES: u64 = 110;

/// All tombstones of a disk, and the set of those whose index rows are out of date.
#[derive(Default)]
pub(crate) struct Tombstones {
    all: HashMap<FragmentId, Tombstone>,
    changed: BTreeSet<FragmentId>,
}

impl Tombstones {
    /// The tombstones that an index kept.
    pub(crate) fn recovered(all: HashMap<FragmentId, Tombstone>) -> Self {
        Tombstones { all, changed: BTreeSet::new() }
    }

    pub(crate) fn delete_records(&self) -> u64 {
        self.all.values().filter(|t| t.delete.is_some()).count() as u64
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.all.len() as u64 * TOMBSTONE_BYTES
    }

    fn changing(&mut self, id: FragmentId) -> &mut Tombstone {
        self.changed.insert(id);
        self.all.entry(id).or_default()
    }

    /// Counts one more dead record on the disk.
    pub(crate) fn add_copy(&mut self, id: FragmentId) {
        self.changing(id).dead_copies += 1;
    }

    /// Counts one dead record less on the disk.
    pub(crate) fn drop_copy(&mut self, id: FragmentId) {
        if self.all.contains_key(&id) {
            let tombstone = self.changing(id);
            tombstone.dead_copies = tombstone.dead_copies.saturating_sub(1);
        }
    }

    /// The delete record of a fragment, if it is deleted.
    pub(crate) fn delete_of(&self, id: FragmentId) -> Option<&Entry> {
        self.all.get(&id)?.delete.as_ref()
    }

    /// Removes the delete record: the fragment is live again.
    pub(crate) fn take_delete(&mut self, id: FragmentId) -> Option<Entry> {
        self.delete_of(id)?;
        self.changing(id).delete.take()
    }

    /// Sets the delete record; returns the one it replaces.
    pub(crate) fn set_delete(&mut self, delete: Entry) -> Option<Entry> {
        assert!(delete.groups_len == 0 && delete.data_len == 0, "{}: a delete record has no payload", delete.id);
        self.changing(delete.id).delete.replace(delete)
    }

    /// Moves the delete record from `from` to `to`. Returns false if it was not at `from`.
    pub(crate) fn move_delete(&mut self, to: Entry, from: (u64, u64)) -> bool {
        assert!((to.segment, to.offset) > from, "{}: a record moves to a higher place", to.id);
        let there = self.delete_of(to.id).is_some_and(|delete| (delete.segment, delete.offset) == from);
        if there {
            self.set_delete(to);
        }
        there
    }

    /// Removes tombstones without dead copies, of these fragments or of all. Returns their delete records, which are
    /// now dead.
    pub(crate) fn remove_unneeded(&mut self, ids: Option<&[FragmentId]>) -> Vec<Entry> {
        let unneeded = |(id, tombstone): (&FragmentId, &Tombstone)| (tombstone.dead_copies == 0).then_some(*id);
        let ids: Vec<FragmentId> = match ids {
            Some(ids) => ids.iter().filter_map(|id| self.all.get_key_value(id)).filter_map(unneeded).collect(),
            None => self.all.iter().filter_map(unneeded).collect(),
        };
        self.changed.extend(&ids);
        ids.iter().filter_map(|id| self.all.remove(id)).filter_map(|tombstone| tombstone.delete).collect()
    }

    /// The changes since the last call; `None`: removed.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<FragmentId, Option<Tombstone>> {
        std::mem::take(&mut self.changed).into_iter().map(|id| (id, self.all.get(&id).copied())).collect()
    }
}
