//! A cache of the host in front of the device: LRU, write-back. The CPFTL paper replays what such a cache lets through,
//! because that is what a drive sees.

use crate::ftl::{Index, Links, List, NONE, Slab};
use crate::ssd::Op;
use std::ops::Range;

/// Cached pages of the host. A page that is written in part counts as wholly cached.
#[derive(Debug)]
pub(crate) struct HostCache {
    index: Index,
    /// Page and whether it is dirty, by slot.
    pages: Slab<(u32, bool)>,
    links: Links,
    recent: List,
    capacity: usize,
}

impl HostCache {
    /// A cache of so many pages, at least one.
    pub fn new(capacity: usize) -> Self {
        HostCache {
            index: Index::default(),
            pages: Slab::default(),
            links: Links::default(),
            recent: List::default(),
            capacity: capacity.max(1),
        }
    }

    /// Serves a request for pages; `device` gets what the cache cannot absorb: reads of runs of missing pages, and
    /// writes of dirty pages that are replaced.
    pub fn request(&mut self, op: Op, pages: Range<u32>, mut device: impl FnMut(Op, Range<u32>)) {
        match op {
            Op::Trim => {
                pages.clone().for_each(|page| self.forget(page));
                device(Op::Trim, pages);
            }
            Op::Write => pages.for_each(|page| self.use_page(page, true, &mut device)),
            Op::Read => {
                let mut missing = pages.start..pages.start;
                for page in pages {
                    if self.index.get(page).is_none() {
                        if missing.end != page {
                            flush(&mut missing, page, &mut device);
                        }
                        missing.end = page + 1;
                    }
                    self.use_page(page, false, &mut device);
                }
                flush(&mut missing, 0, &mut device);
            }
        }
    }

    fn use_page(&mut self, page: u32, dirty: bool, device: &mut impl FnMut(Op, Range<u32>)) {
        if let Some(slot) = self.index.get(page) {
            self.links.touch(&mut self.recent, slot);
            self.pages[slot].1 |= dirty;
            return;
        }
        if self.index.len() == self.capacity {
            let (old, dirty) = self.pages[self.recent.last];
            if dirty {
                device(Op::Write, old..old + 1);
            }
            self.forget(old);
        }
        let slot = self.pages.put((page, dirty));
        self.index.insert(page, slot);
        self.links.push(&mut self.recent, slot);
    }

    fn forget(&mut self, page: u32) {
        if let Some(slot) = self.index.remove(page) {
            self.links.remove(&mut self.recent, slot);
            self.pages.release(slot);
        }
        debug_assert!(self.index.len() > 0 || self.recent.first == NONE);
    }
}

fn flush(missing: &mut Range<u32>, next: u32, device: &mut impl FnMut(Op, Range<u32>)) {
    if missing.start < missing.end {
        device(Op::Read, missing.clone());
    }
    *missing = next..next;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_misses_and_replaced_writes_reach_the_device() {
        let (mut cache, mut seen) = (HostCache::new(3), Vec::new());
        for (op, pages) in [
            (Op::Read, 0..2),
            (Op::Read, 0..3),  // 2 alone is missing
            (Op::Write, 1..2), // absorbed
            (Op::Read, 5..7),  // replaces 0 and 2, which are clean
            (Op::Read, 9..10), // replaces 1, which is dirty
            (Op::Trim, 5..6),
            (Op::Read, 5..6),
        ] {
            cache.request(op, pages, |op, pages| seen.push((op, pages)));
        }
        let read = |pages| (Op::Read, pages);
        let expected =
            [read(0..2), read(2..3), read(5..7), (Op::Write, 1..2), read(9..10), (Op::Trim, 5..6), read(5..6)];
        assert_eq!(seen, expected);
    }
}
