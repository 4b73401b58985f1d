//! The places that were touched last, by recency: the distance of each, and the place at a distance.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

/// Places that are remembered; what was not touched for longer counts as new.
pub const PLACES_MAX: usize = 1 << 20;

/// Distinct places in the order of their last use. A place stands in the slot of its last use, and a Fenwick tree counts
/// the slots in use, so both questions take logarithmic time. Slots are renumbered when they run out.
#[derive(Debug)]
pub struct Recency<K> {
    slots: Vec<Option<K>>,
    /// Fenwick tree over the slots in use.
    tree: Vec<u32>,
    slot_of: HashMap<K, usize, BuildHasherDefault<DefaultHasher>>,
    max: usize,
}

impl<K: Hash + Eq + Copy> Recency<K> {
    /// No place; at most `max` will be remembered.
    pub fn new(max: usize) -> Self {
        Recency { slots: Vec::new(), tree: vec![0; 2 * max + 1], slot_of: HashMap::default(), max }
    }

    /// Places that are remembered.
    pub fn len(&self) -> usize {
        self.slot_of.len()
    }

    fn add(&mut self, slot: usize, change: i32) {
        let mut at = slot + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add_signed(change);
            at += at & at.wrapping_neg();
        }
    }

    /// Slots in use up to one, without it.
    fn used_before(&self, slot: usize) -> usize {
        let (mut at, mut sum) = (slot, 0);
        while at > 0 {
            sum += self.tree[at] as usize;
            at -= at & at.wrapping_neg();
        }
        sum
    }

    /// Makes a place the last one; returns how many others were touched since it was, if it is remembered.
    pub fn touch(&mut self, place: K) -> Option<usize> {
        let before = self.slot_of.get(&place).copied();
        let distance = before.map(|slot| self.len() - 1 - self.used_before(slot));
        if let Some(slot) = before {
            self.slots[slot] = None;
            self.add(slot, -1);
        }
        if self.slots.len() == 2 * self.max {
            self.renumber();
        }
        let slot = self.slots.len();
        self.slots.push(Some(place));
        self.slot_of.insert(place, slot);
        self.add(slot, 1);
        distance
    }

    /// The place at a distance: 0 is the last one.
    pub fn at(&self, distance: usize) -> Option<K> {
        // The slot with so many in use before it.
        let mut rest = self.len().checked_sub(distance + 1)?;
        let mut slot = 0;
        let mut step = self.tree.len().next_power_of_two() / 2;
        while step > 0 {
            if slot + step < self.tree.len() && self.tree[slot + step] as usize <= rest {
                slot += step;
                rest -= self.tree[slot] as usize;
            }
            step /= 2;
        }
        self.slots[slot]
    }

    /// Keeps the last places only, in the first slots.
    fn renumber(&mut self) {
        let mut places: Vec<K> = std::mem::take(&mut self.slots).into_iter().flatten().collect();
        places.drain(..places.len().saturating_sub(self.max - 1));
        self.tree.fill(0);
        self.slot_of.clear();
        for place in places {
            let slot = self.slots.len();
            self.slots.push(Some(place));
            self.slot_of.insert(place, slot);
            self.add(slot, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_equals_a_list_that_is_searched(places in prop::collection::vec(0u8..40, 1..400), max in 1usize..60) {
            let (mut recency, mut list) = (Recency::new(max), Vec::new());
            for place in places {
                let distance = list.iter().rev().position(|other| *other == place);
                let found = recency.touch(place);
                if let Some(found) = found {
                    prop_assert_eq!(Some(found), distance);
                } else {
                    prop_assert!(distance.is_none_or(|distance| distance + 1 >= max), "{:?} of {}", distance, max);
                }
                list.retain(|other| *other != place);
                list.push(place);
                prop_assert!(recency.len() <= 2 * max && recency.len() >= list.len().min(max));
                for (distance, place) in list.iter().rev().take(recency.len()).enumerate() {
                    prop_assert_eq!(recency.at(distance), Some(*place));
                }
                prop_assert_eq!(recency.at(recency.len()), None);
            }
        }
    }
}
