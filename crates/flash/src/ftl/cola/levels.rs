//! The map as sorted levels in memory, newest first: an insertion buffer, and below it levels of which each holds twice as many
//! entries as the one above. The lowest has no bound but the number of logical pages.

use super::search::View;
use crate::ftl::{Index, NONE};

/// Entries in the order of their logical pages, which rise strictly.
#[derive(Debug, Default)]
struct Level {
    lpns: Vec<u32>,
    ppns: Vec<u32>,
    /// The number of merges when it was made.
    version: u64,
}

impl Level {
    fn is_empty(&self) -> bool {
        self.lpns.is_empty()
    }

    fn push(&mut self, lpn: u32, ppn: u32) {
        self.lpns.push(lpn);
        self.ppns.push(ppn);
    }

    /// The entries of both, of at most so many logical pages; where both have one, that of `self`, which is newer.
    fn over(self, older: Level, logical_pages: usize) -> Level {
        let mut merged = Level::default();
        let entries_max = (self.lpns.len() + older.lpns.len()).min(logical_pages);
        merged.lpns.reserve_exact(entries_max);
        merged.ppns.reserve_exact(entries_max);
        let mut below = older.lpns.iter().copied().zip(older.ppns.iter().copied()).peekable();
        for (lpn, ppn) in self.lpns.into_iter().zip(self.ppns) {
            while let Some((older, place)) = below.next_if(|entry| entry.0 < lpn) {
                merged.push(older, place);
            }
            below.next_if(|entry| entry.0 == lpn);
            merged.push(lpn, ppn);
        }
        below.for_each(|(lpn, ppn)| merged.push(lpn, ppn));
        merged
    }
}

/// The map.
#[derive(Debug)]
pub struct Levels {
    /// Entries that are in no level, in the order of arrival.
    buffer: Vec<(u32, u32)>,
    /// Where in the buffer a logical page is.
    slots: Index,
    /// Entries of a full buffer.
    buffer_len: usize,
    /// Level i has at most `buffer_len << i` entries; the last one any number.
    levels: Vec<Level>,
    logical_pages: usize,
    merges: u64,
}

/// A merge: where its result is, and how many entries that has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// Index of the level.
    pub level: usize,
    /// Its entries.
    pub entries: u64,
}

impl Levels {
    /// The empty map of so many logical pages.
    pub fn new(buffer_len: u32, logical_pages: u32) -> Self {
        // The levels above the lowest have fewer entries together than there are logical pages.
        let above = (logical_pages / buffer_len.max(1)).max(1).ilog2();
        Levels {
            buffer: Vec::with_capacity(buffer_len as usize),
            slots: Index::default(),
            buffer_len: buffer_len as usize,
            levels: (0..=above).map(|_| Level::default()).collect(),
            logical_pages: logical_pages as usize,
            merges: 0,
        }
    }

    /// Number of levels.
    pub fn height(&self) -> usize {
        self.levels.len()
    }

    /// Entries that a level takes between two merges into it or through it.
    pub fn level_len(&self, level: usize) -> u64 {
        (self.buffer_len as u64) << level
    }

    /// Merges so far.
    pub fn merges(&self) -> u64 {
        self.merges
    }

    /// What the buffer says of a logical page.
    pub fn recent(&self, lpn: u32) -> Option<u32> {
        self.slots.get(lpn).map(|slot| self.buffer[slot as usize].1)
    }

    /// What the levels say of a logical page, searched one after the other.
    pub fn settled(&self, lpn: u32) -> u32 {
        let of_level = |level: &Level| level.lpns.binary_search(&lpn).ok().map(|at| level.ppns[at]);
        self.levels.iter().find_map(of_level).unwrap_or(NONE)
    }

    /// The keys of the levels, newest first, for a search of many at once.
    pub fn views(&self) -> Vec<View<'_>> {
        self.levels.iter().map(|level| View { keys: &level.lpns, version: level.version }).collect()
    }

    /// The entry at a place that such a search found.
    pub fn at(&self, level: usize, index: usize) -> u32 {
        self.levels[level].ppns[index]
    }

    /// Sets an entry in the buffer; returns whether it had none of that page.
    pub fn insert(&mut self, lpn: u32, ppn: u32) -> bool {
        if let Some(slot) = self.slots.get(lpn) {
            self.buffer[slot as usize].1 = ppn;
            return false;
        }
        self.slots.insert(lpn, self.buffer.len() as u32);
        self.buffer.push((lpn, ppn));
        true
    }

    /// Whether the buffer has to be merged before another entry is inserted.
    pub fn is_full(&self) -> bool {
        self.buffer.len() == self.buffer_len
    }

    /// Merges the buffer and the full levels below it into the first empty level, or the lowest one.
    pub fn merge(&mut self) -> Merged {
        let lowest = self.levels.len() - 1;
        let target = self.levels[..lowest].iter().position(Level::is_empty).unwrap_or(lowest);
        self.merges += 1;
        let mut entries = std::mem::take(&mut self.buffer);
        self.slots = Index::default();
        entries.sort_unstable_by_key(|entry| entry.0);
        let mut merged = Level::default();
        entries.iter().for_each(|(lpn, ppn)| merged.push(*lpn, *ppn));
        entries.clear();
        self.buffer = entries;
        for level in &mut self.levels[..=target] {
            merged = merged.over(std::mem::take(level), self.logical_pages);
            level.version = self.merges;
        }
        if target == lowest {
            // There, an entry that unmaps a page hides nothing.
            let mut is_mapped = merged.ppns.iter().map(|ppn| *ppn != NONE);
            merged.lpns.retain(|_| is_mapped.next().expect("as many places as pages"));
            merged.ppns.retain(|ppn| *ppn != NONE);
        }
        let count = merged.lpns.len() as u64;
        assert!(target == lowest || count <= self.level_len(target), "level {target} has {count} entries");
        merged.version = self.merges;
        self.levels[target] = merged;
        Merged { level: target, entries: count }
    }

    /// Takes over a whole map; all of it is in the lowest level.
    pub fn restore(&mut self, map: &[u32]) -> Merged {
        let lowest = self.levels.len() - 1;
        let mut level = Level { version: self.merges, ..Level::default() };
        (0u32..).zip(map).filter(|entry| *entry.1 != NONE).for_each(|(lpn, ppn)| level.push(lpn, *ppn));
        let entries = level.lpns.len() as u64;
        self.levels[lowest] = level;
        Merged { level: lowest, entries }
    }

    /// Entries in the buffer.
    pub fn buffered(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Entries in all levels.
    pub fn entries(&self) -> u64 {
        self.levels.iter().map(|level| level.lpns.len() as u64).sum()
    }

    /// Levels that have entries.
    pub fn used(&self) -> usize {
        self.levels.iter().filter(|level| !level.is_empty()).count()
    }

    /// Checks the order of every level.
    ///
    /// # Errors
    /// The first level that is not in order.
    pub fn check(&self) -> Result<(), String> {
        let is_sorted = |level: &Level| level.lpns.windows(2).all(|pair| pair[0] < pair[1]);
        match self.levels.iter().position(|level| !is_sorted(level)) {
            Some(level) => Err(format!("level {level} is not in the order of logical pages")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn levels_equal_a_plain_map(changes in prop::collection::vec((0u32..200, any::<bool>()), 1..2000), buffer in 1u32..40) {
            let (mut levels, mut map) = (Levels::new(buffer, 200), vec![NONE; 200]);
            for (number, (lpn, trims)) in (0u32..).zip(changes) {
                if levels.is_full() {
                    let merged = levels.merge();
                    prop_assert!(merged.level < levels.height());
                }
                let ppn = if trims { NONE } else { number };
                levels.insert(lpn, ppn);
                map[lpn as usize] = ppn;
            }
            levels.check().unwrap();
            for lpn in 0..200 {
                prop_assert_eq!(levels.recent(lpn).unwrap_or_else(|| levels.settled(lpn)), map[lpn as usize]);
            }
            prop_assert!(levels.entries() <= 3 * 200 + 40);
        }
    }

    #[test]
    fn each_level_is_merged_half_as_often_as_the_one_above() {
        let mut levels = Levels::new(4, 64);
        let mut into = vec![0; levels.height()];
        for lpn in (0..64).cycle().take(64 * 8) {
            levels.insert(lpn, lpn);
            if levels.is_full() {
                into[levels.merge().level] += 1;
            }
        }
        assert_eq!(into, [64, 32, 16, 8, 8]);
    }
}
