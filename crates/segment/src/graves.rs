//! The fragments of which dead records are still on the disk, and their delete records.
//!
//! A delete record must outlive every older record of its fragment (P3): it is needed while there are copies, or
//! while a damaged stretch somewhere may hide a copy.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::index::{Entry, FragmentId, Grave};

/// Bytes of memory that a grave takes, roughly.
const GRAVE_BYTES: u64 = 110;

/// All graves of a disk, and which of them the index does not know as they are now.
#[derive(Default)]
pub(crate) struct Graves {
    all: HashMap<FragmentId, Grave>,
    changed: BTreeSet<FragmentId>,
}

impl Graves {
    /// As an index kept them.
    pub(crate) fn recovered(all: HashMap<FragmentId, Grave>) -> Self {
        Graves { all, changed: BTreeSet::new() }
    }

    pub(crate) fn delete_records(&self) -> u64 {
        self.all.values().filter(|g| g.tombstone.is_some()).count() as u64
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.all.len() as u64 * GRAVE_BYTES
    }

    fn changing(&mut self, id: FragmentId) -> &mut Grave {
        self.changed.insert(id);
        self.all.entry(id).or_default()
    }

    pub(crate) fn add_copy(&mut self, id: FragmentId) {
        self.changing(id).copies += 1;
    }

    /// One dead record is gone from the disk.
    pub(crate) fn drop_copy(&mut self, id: FragmentId) {
        if self.all.contains_key(&id) {
            let grave = self.changing(id);
            grave.copies = grave.copies.saturating_sub(1);
        }
    }

    /// The delete record is no longer needed, for the fragment lives again.
    pub(crate) fn take_tombstone(&mut self, id: FragmentId) -> Option<Entry> {
        self.tombstone(id)?;
        self.changing(id).tombstone.take()
    }

    /// Sets the delete record; gives the one it replaces.
    pub(crate) fn bury(&mut self, tombstone: Entry) -> Option<Entry> {
        self.changing(tombstone.id).tombstone.replace(tombstone)
    }

    pub(crate) fn tombstone(&self, id: FragmentId) -> Option<&Entry> {
        self.all.get(&id)?.tombstone.as_ref()
    }

    /// True if it was at `from` and is at `to` now.
    pub(crate) fn move_tombstone(&mut self, to: Entry, from: (u64, u64)) -> bool {
        let there = self.tombstone(to.id).is_some_and(|t| (t.segment, t.offset) == from);
        if there {
            self.bury(to);
        }
        there
    }

    /// Forgets graves without copies, of these fragments or of all; gives their delete records, which are dead now.
    pub(crate) fn close_empty(&mut self, ids: Option<&[FragmentId]>) -> Vec<Entry> {
        let empty = |(id, grave): (&FragmentId, &Grave)| (grave.copies == 0).then_some(*id);
        let doomed: Vec<FragmentId> = match ids {
            Some(ids) => ids.iter().filter_map(|id| self.all.get_key_value(id)).filter_map(empty).collect(),
            None => self.all.iter().filter_map(empty).collect(),
        };
        self.changed.extend(&doomed);
        doomed.iter().filter_map(|id| self.all.remove(id)).filter_map(|grave| grave.tombstone).collect()
    }

    /// What has changed since the last call; `None`: gone.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<FragmentId, Option<Grave>> {
        std::mem::take(&mut self.changed).into_iter().map(|id| (id, self.all.get(&id).copied())).collect()
    }
}
