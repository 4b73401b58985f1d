//! Changed map entries without the translation page that they belong to, grouped by that page.

use super::{Index, Links, List, NONE, Slab};
use std::collections::BinaryHeap;

/// Bytes of an entry: logical and physical page number.
pub(crate) const ENTRY_BYTES: u64 = 8;

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    list: List,
    len: u32,
}

/// Changed entries.
#[derive(Debug, Default)]
pub(crate) struct DirtyBuffer {
    index: Index,
    entries: Slab<(u32, u32)>,
    links: Links,
    /// Group number of a translation page.
    pages: Index,
    groups: Slab<Group>,
    /// Groups by size when they grew last; sizes that do not hold any more are skipped.
    largest: BinaryHeap<(u32, u32)>,
}

impl DirtyBuffer {
    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.index.len() as u64 * ENTRY_BYTES
    }

    /// An entry, if it is here.
    pub fn get(&self, lpn: u32) -> Option<u32> {
        self.index.get(lpn).map(|slot| self.entries[slot].1)
    }

    /// Changes an entry that is here; returns what it was.
    pub fn replace(&mut self, lpn: u32, ppn: u32) -> Option<u32> {
        let slot = self.index.get(lpn)?;
        Some(std::mem::replace(&mut self.entries[slot].1, ppn))
    }

    /// Adds an entry of a translation page.
    pub fn insert(&mut self, page: u32, lpn: u32, ppn: u32) {
        let slot = self.entries.put((lpn, ppn));
        self.index.insert(lpn, slot);
        let group = self.pages.get(page).unwrap_or_else(|| self.add_group(page));
        let g = &mut self.groups[group];
        self.links.push(&mut g.list, slot);
        g.len += 1;
        if self.largest.len() > 4 * self.index.len() + 64 {
            self.largest
                .retain(|(len, page)| self.pages.get(*page).is_some_and(|group| self.groups[group].len == *len));
        }
        self.largest.push((self.groups[group].len, page));
    }

    fn add_group(&mut self, page: u32) -> u32 {
        let group = self.groups.put(Group::default());
        self.pages.insert(page, group);
        group
    }

    /// The translation page with the most entries here.
    pub fn fullest(&mut self) -> Option<u32> {
        while let Some((len, page)) = self.largest.peek().copied() {
            if self.pages.get(page).is_some_and(|group| self.groups[group].len == len) {
                return Some(page);
            }
            self.largest.pop();
        }
        None
    }

    /// Removes the entries of a translation page and passes each (logical page, physical page) to `take`.
    pub fn drain(&mut self, page: u32, mut take: impl FnMut(u32, u32)) {
        let Some(group) = self.pages.remove(page) else { return };
        let mut slot = self.groups[group].list.last;
        while slot != NONE {
            let (lpn, ppn) = self.entries[slot];
            take(lpn, ppn);
            self.index.remove(lpn);
            self.entries.release(slot);
            slot = self.links.newer(slot);
        }
        self.groups.release(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_by_page_the_fullest_first() {
        let mut buffer = DirtyBuffer::default();
        for (page, lpn) in [(0, 1), (1, 11), (1, 12), (0, 2), (1, 13)] {
            buffer.insert(page, lpn, lpn + 100);
        }
        assert_eq!((buffer.replace(12, 5), buffer.get(12), buffer.get(3)), (Some(112), Some(5), None));
        assert_eq!(buffer.fullest(), Some(1));
        let mut taken = Vec::new();
        buffer.drain(1, |lpn, ppn| taken.push((lpn, ppn)));
        assert_eq!(taken, [(11, 111), (12, 5), (13, 113)]);
        assert_eq!((buffer.fullest(), buffer.bytes()), (Some(0), 16));
    }
}
