//! The moments of groups over the units that are complete, by stratum.
//!
//! Moments lie in the order in which groups were first seen in a stratum; an index of four bytes each finds them. As in
//! `keys`, look-ups come in batches: [`ClosedUnits::touch_index`], then [`ClosedUnits::touch`], then [`ClosedUnits::add`].

use crate::estimate::{GroupMoments, Moments};

/// No number of an entry.
const NONE: u32 = u32::MAX;
const FIRST_BITS: u32 = 10;

/// A group's moments in a stratum.
#[derive(Debug, Clone)]
struct Entry {
    /// The group: the number of its first entry.
    group: u32,
    stratum: u32,
    /// The entry of the group's stratum before this one.
    before: u32,
    /// The last unit that was added.
    unit: u32,
    moments: GroupMoments,
}

/// Moments of groups in strata. Those of a group are a list.
#[derive(Debug, Clone)]
pub(super) struct ClosedUnits {
    entries: Vec<Entry>,
    /// Numbers of entries, and 1, at the places of their hashes or behind them.
    index: Vec<u32>,
    bits: u32,
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

impl ClosedUnits {
    pub fn new() -> ClosedUnits {
        ClosedUnits { entries: Vec::new(), index: vec![0; 1 << FIRST_BITS], bits: FIRST_BITS }
    }

    /// Adds what a group has in a unit of `size` of a stratum.
    pub fn add(&mut self, list: &mut List, (unit, stratum): (u32, u32), moments: Moments, size: f64) {
        let at = self.entry(list, stratum);
        self.entries[at].unit = unit;
        self.entries[at].moments.add_unit(moments, size);
    }

    /// The last unit that was added to a group.
    pub fn last_unit(&self, list: List) -> Option<u32> {
        self.entries.get(list.last as usize).map(|entry| entry.unit)
    }

    fn entry(&mut self, list: &mut List, stratum: u32) -> usize {
        let new = u32::try_from(self.entries.len()).expect("2^32 moments do not fit into memory");
        if list.first == NONE {
            *list = List { first: new, last: NONE };
        }
        let group = list.first;
        let mut place = self.home(group, stratum);
        while let Some(at) = self.index[place].checked_sub(1) {
            let entry = &self.entries[at as usize];
            if entry.group == group && entry.stratum == stratum {
                return at as usize;
            }
            place = (place + 1) % self.index.len();
        }
        self.index[place] = new + 1;
        self.entries.push(Entry { group, stratum, before: list.last, unit: NONE, moments: GroupMoments::default() });
        list.last = new;
        if self.entries.len() * 2 > self.index.len() {
            self.grow();
        }
        new as usize
    }

    fn home(&self, group: u32, stratum: u32) -> usize {
        let key = (u64::from(group) << 32) | u64::from(stratum);
        // Fibonacci hashing twice: strata are few, and groups follow each other.
        let mixed = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 32) ^ u64::from(stratum)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.bits)) as usize
    }

    fn grow(&mut self) {
        self.bits += 1;
        self.index.clear();
        self.index.resize(1 << self.bits, 0);
        for number in 0..self.entries.len() {
            let mut place = self.home(self.entries[number].group, self.entries[number].stratum);
            while self.index[place] > 0 {
                place = (place + 1) % self.index.len();
            }
            self.index[place] = number as u32 + 1;
        }
    }

    /// Reads the place of the index at which a group's moments in a stratum are looked for first.
    #[inline(always)]
    pub fn touch_index(&self, list: List, stratum: u32) -> u32 {
        self.index[self.home(list.first, stratum)]
    }

    /// Reads the first and the last bytes of the moments at that place.
    #[inline(always)]
    pub fn touch(&self, list: List, stratum: u32) -> u32 {
        self.touch_entry(self.touch_index(list, stratum).wrapping_sub(1))
    }

    /// Reads from a group's last entry.
    #[inline(always)]
    pub fn touch_last(&self, list: List) -> u32 {
        self.touch_entry(list.last)
    }

    #[inline(always)]
    fn touch_entry(&self, number: u32) -> u32 {
        self.entries.get(number as usize).map_or(0, |entry| entry.group ^ entry.moments.sum_size.to_bits() as u32)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn moments_are_those_of_a_map(units in prop::collection::vec((0usize..900, 0u32..5), 0..4000)) {
            let (mut closed, mut lists) = (ClosedUnits::new(), vec![List::default(); 900]);
            let mut expected: BTreeMap<usize, BTreeMap<usize, GroupMoments>> = BTreeMap::new();
            for (number, (group, stratum)) in units.iter().enumerate() {
                let unit = Moments { count: 1.0, sum: number as f64, squares: 0.0 };
                closed.touch(lists[*group], *stratum);
                closed.add(&mut lists[*group], (number as u32, *stratum), unit, 2.0);
                expected.entry(*group).or_default().entry(*stratum as usize).or_default().add_unit(unit, 2.0);
            }
            for (group, list) in lists.iter().enumerate() {
                let found: BTreeMap<usize, GroupMoments> = closed.of(*list).map(|(h, moments)| (h, *moments)).collect();
                prop_assert_eq!(closed.of(*list).count(), found.len());
                prop_assert_eq!(found, expected.remove(&group).unwrap_or_default());
            }
        }
    }
}
