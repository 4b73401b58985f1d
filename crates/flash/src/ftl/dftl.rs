//! DFTL (A. Gupta, Y. Kim, B. Urgaonkar: "DFTL: a flash translation layer employing demand-based selective caching of
//! page-level address mappings", ASPLOS 2009).
//!
//! - The *cached mapping table* holds single entries in a segmented LRU: a new entry is on probation, a second use
//!   protects it, and the least recent entry on probation is replaced. A page that is written in part is looked up for what it held, and
//!   again when its place changes; that is one use.
//! - The *global translation directory* locates translation pages.
//! - *Lazy copying*: when garbage collection moves a page whose entry is cached, only the cached entry changes; it
//!   reaches its translation page when it is replaced.
//! - *Batch update*: moved pages whose entries are not cached and lie in one translation page share one update of it.
//!
//! The replacement of a dirty entry reads and writes its translation page for that entry alone, as the paper's
//! comparisons with DFTL assume.

use super::{CacheUse, Directory, EntryMap, Ftl, Index, Links, List, Move, NONE, Slab, check_clean, some};
use crate::device::{Cause, Device, Ppn};
use std::ops::Range;

/// Bytes of a cached entry: logical and physical page number.
const CACHED_BYTES: u64 = 8;

/// Entries that the cache must hold at least.
const ENTRIES_MIN: u64 = 16;

/// The least map cache that works.
pub const MIN_CACHE: u64 = ENTRIES_MIN * CACHED_BYTES;

#[derive(Debug, Clone, Copy)]
struct Entry {
    lpn: u32,
    ppn: u32,
    dirty: bool,
    protected: bool,
}

/// DFTL's state.
#[derive(Debug)]
pub struct Dftl {
    directory: Directory,
    index: Index,
    entries: Slab<Entry>,
    links: Links,
    probation: List,
    protected: List,
    protected_len: usize,
    /// The logical page that was looked up last in the request under way.
    looked_up: Option<u32>,
    /// Entries that the budget allows.
    capacity: usize,
    budget: u64,
    cache: CacheUse,
}

impl Dftl {
    /// The empty map of a device, with so many bytes of cache.
    pub fn new(device: &Device, budget: u64) -> Self {
        Dftl {
            directory: Directory::new(device),
            index: Index::default(),
            entries: Slab::default(),
            links: Links::default(),
            probation: List::default(),
            protected: List::default(),
            protected_len: 0,
            looked_up: None,
            capacity: (budget / CACHED_BYTES) as usize,
            budget,
            cache: CacheUse::default(),
        }
    }

    /// The slot of an entry, which is loaded if it is not cached.
    fn entry(&mut self, device: &mut Device, lpn: u32) -> u32 {
        let cached = self.index.get(lpn);
        self.cache.count(cached.is_some());
        let is_same_use = self.looked_up == Some(lpn);
        match cached {
            Some(slot) => {
                if !is_same_use {
                    self.used_again(slot);
                }
                slot
            }
            None => self.load(device, lpn),
        }
    }

    /// Protects an entry; the least recent protected one goes back on probation if there are too many.
    fn used_again(&mut self, slot: u32) {
        if self.entries[slot].protected {
            return self.links.touch(&mut self.protected, slot);
        }
        self.links.remove(&mut self.probation, slot);
        self.links.push(&mut self.protected, slot);
        self.entries[slot].protected = true;
        self.protected_len += 1;
        if self.protected_len > self.capacity / 2 {
            let last = self.protected.last;
            self.links.remove(&mut self.protected, last);
            self.links.push(&mut self.probation, last);
            self.entries[last].protected = false;
            self.protected_len -= 1;
        }
    }

    fn load(&mut self, device: &mut Device, lpn: u32) -> u32 {
        if self.index.len() == self.capacity {
            self.replace(device);
        }
        self.directory.load(device, self.directory.page_of(lpn), Cause::Map);
        let entry = Entry { lpn, ppn: self.directory.get(lpn), dirty: false, protected: false };
        let slot = self.entries.put(entry);
        self.index.insert(lpn, slot);
        self.links.push(&mut self.probation, slot);
        self.cache.set_bytes(self.index.len() as u64 * CACHED_BYTES, self.budget);
        slot
    }

    /// Removes the least recent entry on probation, and writes it if it is dirty.
    fn replace(&mut self, device: &mut Device) {
        let slot = self.probation.last;
        let victim = self.entries[slot];
        if victim.dirty {
            let page = self.directory.page_of(victim.lpn);
            self.directory.load(device, page, Cause::Map);
            self.directory.set(victim.lpn, victim.ppn);
            self.directory.store(device, page, Cause::Map);
        }
        self.links.remove(&mut self.probation, slot);
        self.index.remove(victim.lpn);
        self.entries.release(slot);
    }

    /// Cached entries.
    fn live(&self) -> impl Iterator<Item = &Entry> + '_ {
        let lists = [&self.probation, &self.protected];
        lists.into_iter().flat_map(|list| self.links.slots(list)).map(|slot| &self.entries[slot])
    }
}

impl EntryMap for Dftl {
    fn on_flash(&mut self) -> &mut Directory {
        &mut self.directory
    }

    fn move_cached(&mut self, _: &mut Device, m: &Move) -> Option<u32> {
        let entry = &mut self.entries[self.index.get(m.lpn)?];
        entry.dirty = true;
        Some(std::mem::replace(&mut entry.ppn, m.to))
    }
}

impl Ftl for Dftl {
    fn request(&mut self, _: Range<u32>) {
        self.looked_up = None;
    }

    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn> {
        let slot = self.entry(device, lpn);
        self.looked_up = Some(lpn);
        some(self.entries[slot].ppn)
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        let slot = self.entry(device, lpn);
        let entry = &mut self.entries[slot];
        entry.dirty = true;
        some(std::mem::replace(&mut entry.ppn, to.unwrap_or(NONE)))
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        self.move_entries(device, moves);
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        some(self.index.get(lpn).map_or_else(|| self.directory.get(lpn), |slot| self.entries[slot].ppn))
    }

    directory_and_cache!();

    fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![("dirty_entries", self.live().filter(|entry| entry.dirty).count() as u64)]
    }

    fn check(&self, _: &Device) -> Result<(), String> {
        let (listed, protected) = (self.live().count(), self.live().filter(|entry| entry.protected).count());
        if (listed, protected) != (self.index.len(), self.protected_len) {
            return Err(format!("{listed} entries are listed, {protected} protected, of {}", self.index.len()));
        }
        let clean = self.live().filter(|entry| !entry.dirty);
        check_clean(&self.directory, clean.map(|entry| (entry.lpn, entry.ppn)))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Op, Order, Ssd};
    use tessera_disk::SplitMix64;

    /// A page that is written in part is looked up for what it held, and again when its place changes: that is one use of its entry.
    #[test]
    fn pages_that_are_written_in_part_are_as_often_in_the_cache_as_those_that_are_written_whole() {
        let (capacity, map_cache) = (64 << 20, 8 << 10);
        let hits = |bytes: u64| {
            let mut ssd = Ssd::new(&Config { map_cache, ..Config::new(capacity, "dftl") }).unwrap();
            ssd.preload_in(Order::Random, |_| true);
            let mut random = SplitMix64::new(1);
            for _ in 0..20_000 {
                let pages = if random.below(10) < 7 { 1_000 } else { capacity / 4096 };
                ssd.submit(0, Op::Write, random.below(pages) * 4096, bytes);
            }
            ssd.check().unwrap();
            (ssd.cache().lookups, ssd.cache().hits)
        };
        let whole = hits(4096);
        assert!(whole.1 > 5_000, "{whole:?}");
        assert_eq!(hits(512), whole);
    }
}
