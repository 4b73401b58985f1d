//! The moments of groups over the units that are complete, by stratum.

use crate::estimate::{GroupMoments, Moments};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;

/// No number of a group.
pub(super) const NONE: u32 = u32::MAX;

/// A group's moments in a stratum.
#[derive(Debug)]
struct Entry {
    /// The group: the number of its first entry.
    group: u32,
    stratum: u32,
    /// The entry of the group's stratum before this one.
    before: u32,
    moments: GroupMoments,
}

/// Moments of groups in strata. Those of a group are a list.
#[derive(Debug, Default)]
pub(super) struct ClosedUnits {
    entries: Vec<Entry>,
    /// Entries by group and stratum, but for the first one of each group.
    by_stratum: HashTable<u32>,
}

/// The ends of a group's list.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> List {
        List { first: NONE, last: NONE }
    }
}

fn hash_of(group: u32, stratum: u32) -> u64 {
    ((u64::from(group) << 32) | u64::from(stratum)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

impl ClosedUnits {
    /// Adds a unit of `size` of a stratum to a group.
    pub fn add(&mut self, list: &mut List, stratum: u32, unit: Moments, size: f64) {
        let at = self.entry(list, stratum);
        self.entries[at].moments.add_unit(unit, size);
    }

    fn entry(&mut self, list: &mut List, stratum: u32) -> usize {
        let entries = &mut self.entries;
        let is_of = |at: u32| at != NONE && entries[at as usize].stratum == stratum;
        // Most groups are in one stratum only: the first one needs no table.
        if let Some(at) = [list.last, list.first].into_iter().find(|at| is_of(*at)) {
            return at as usize;
        }
        let new =
            u32::try_from(entries.len()).ok().filter(|new| *new < NONE).expect("2^32 moments do not fit into memory");
        if list.first == NONE {
            entries.push(Entry { group: new, stratum, before: NONE, moments: GroupMoments::default() });
            *list = List { first: new, last: new };
            return new as usize;
        }
        let group = list.first;
        let is_it = |at: &u32| entries[*at as usize].group == group && entries[*at as usize].stratum == stratum;
        let hash = |at: &u32| hash_of(entries[*at as usize].group, entries[*at as usize].stratum);
        match self.by_stratum.entry(hash_of(group, stratum), is_it, hash) {
            Place::Occupied(found) => *found.get() as usize,
            Place::Vacant(place) => {
                place.insert(new);
                entries.push(Entry { group, stratum, before: list.last, moments: GroupMoments::default() });
                list.last = new;
                new as usize
            }
        }
    }

    /// A group's strata and its moments in them, in no order.
    pub fn of(&self, list: List) -> impl Iterator<Item = (usize, &GroupMoments)> {
        let mut at = list.last;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.before;
            Some((entry.stratum as usize, &entry.moments))
        })
    }
}
