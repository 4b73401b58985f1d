//! A hash table from `u32` to `u32`, slots with values, and intrusive lists over slots: what caches of map
//! entries are made of. None allocates once it has grown to the size of the cache.

/// No slot, no page.
pub const NONE: u32 = u32::MAX;

/// A hash table with linear probing; the key `u32::MAX` cannot be stored.
#[derive(Debug)]
pub struct Index {
    cells: Vec<(u32, u32)>,
    len: usize,
}

const EMPTY: (u32, u32) = (NONE, NONE);

impl Default for Index {
    fn default() -> Self {
        Index { cells: vec![EMPTY; 16], len: 0 }
    }
}

impl Index {
    fn home(&self, key: u32) -> usize {
        (u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.cells.len() - 1)
    }

    /// Where the key is, or where it would be put.
    fn find(&self, key: u32) -> usize {
        let mut at = self.home(key);
        while self.cells[at].0 != key && self.cells[at].0 != NONE {
            at = (at + 1) & (self.cells.len() - 1);
        }
        at
    }

    /// The value of a key.
    pub fn get(&self, key: u32) -> Option<u32> {
        let (found, value) = self.cells[self.find(key)];
        (found == key && key != NONE).then_some(value)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: u32, value: u32) {
        assert_ne!(key, NONE, "the key of empty cells");
        if (self.len + 1) * 2 > self.cells.len() {
            let cells = vec![EMPTY; self.cells.len() * 2];
            for (key, value) in std::mem::replace(&mut self.cells, cells).into_iter().filter(|c| c.0 != NONE) {
                let at = self.find(key);
                self.cells[at] = (key, value);
            }
        }
        let at = self.find(key);
        self.len += usize::from(self.cells[at].0 == NONE);
        self.cells[at] = (key, value);
    }

    /// Removes a key; later cells of its run move up, so that none is lost.
    pub fn remove(&mut self, key: u32) -> Option<u32> {
        let mask = self.cells.len() - 1;
        let mut hole = self.find(key);
        let (found, value) = self.cells[hole];
        if found == NONE {
            return None;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell.0 == NONE {
                break;
            }
            let home = self.home(cell.0);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = EMPTY;
        self.len -= 1;
        Some(value)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Neighbours of each slot in the list that it stands in.
#[derive(Debug, Default)]
pub struct Links {
    prev: Vec<u32>,
    next: Vec<u32>,
}

/// First and last slot of a list; the first is the most recently used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// Most recently used.
    pub first: u32,
    /// Least recently used.
    pub last: u32,
}

impl Default for List {
    fn default() -> Self {
        List { first: NONE, last: NONE }
    }
}

impl Links {
    /// The slot before `slot`, which was used more recently.
    pub fn newer(&self, slot: u32) -> u32 {
        self.prev[slot as usize]
    }

    /// The slots of a list, the least recently used first.
    pub fn slots(&self, list: &List) -> impl Iterator<Item = u32> + '_ {
        let some = |slot| (slot != NONE).then_some(slot);
        std::iter::successors(some(list.last), move |slot| some(self.newer(*slot)))
    }

    /// Puts a slot at the front of a list.
    pub fn push(&mut self, list: &mut List, slot: u32) {
        let at = slot as usize;
        if self.prev.len() <= at {
            self.prev.resize(at + 1, NONE);
            self.next.resize(at + 1, NONE);
        }
        (self.prev[at], self.next[at]) = (NONE, list.first);
        match list.first {
            NONE => list.last = slot,
            first => self.prev[first as usize] = slot,
        }
        list.first = slot;
    }

    /// Takes a slot out of its list.
    pub fn remove(&mut self, list: &mut List, slot: u32) {
        let (prev, next) = (self.prev[slot as usize], self.next[slot as usize]);
        match prev {
            NONE => list.first = next,
            prev => self.next[prev as usize] = next,
        }
        match next {
            NONE => list.last = prev,
            next => self.prev[next as usize] = prev,
        }
    }

    /// Moves a slot of a list to its front.
    pub fn touch(&mut self, list: &mut List, slot: u32) {
        if list.first != slot {
            self.remove(list, slot);
            self.push(list, slot);
        }
    }
}

/// Values in numbered slots. A released slot keeps its value until it is given out again.
#[derive(Debug)]
pub struct Slab<T> {
    items: Vec<T>,
    released: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), released: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Puts a value into a slot that is not in use.
    pub fn put(&mut self, value: T) -> u32 {
        match self.released.pop() {
            Some(slot) => {
                self[slot] = value;
                slot
            }
            None => {
                self.items.push(value);
                (self.items.len() - 1) as u32
            }
        }
    }

    /// A slot that is not in use, with the value that it had last.
    pub fn take(&mut self) -> u32
    where
        T: Default,
    {
        self.released.pop().unwrap_or_else(|| self.put(T::default()))
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: u32) {
        self.released.push(slot);
    }

    /// All slots and their values, released ones included.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.items)
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        &self.items[slot as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.items[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    proptest! {
        #[test]
        fn an_index_is_a_map(steps in prop::collection::vec((0u32..60, any::<Option<u32>>()), 0..400)) {
            let (mut index, mut model) = (Index::default(), HashMap::new());
            for (key, value) in steps {
                match value {
                    Some(value) => { index.insert(key, value); model.insert(key, value); }
                    None => prop_assert_eq!(index.remove(key), model.remove(&key)),
                }
                prop_assert_eq!(index.len(), model.len());
                for key in 0..60 {
                    prop_assert_eq!(index.get(key), model.get(&key).copied());
                }
            }
        }

        #[test]
        fn a_list_is_in_order_of_use(steps in prop::collection::vec((0u32..12, any::<bool>()), 0..200)) {
            let (mut links, mut list, mut model) = (Links::default(), List::default(), VecDeque::new());
            for (slot, keep) in steps {
                let known = model.iter().position(|s| *s == slot);
                match (known, keep) {
                    (Some(at), true) => { links.touch(&mut list, slot); model.remove(at); model.push_front(slot); }
                    (Some(at), false) => { links.remove(&mut list, slot); model.remove(at); }
                    (None, _) => { links.push(&mut list, slot); model.push_front(slot); }
                }
                let from_last = links.slots(&list).collect::<Vec<_>>();
                prop_assert_eq!(from_last, model.iter().rev().copied().collect::<Vec<_>>());
                prop_assert_eq!(list.first, model.front().copied().unwrap_or(NONE));
            }
        }
    }
}
