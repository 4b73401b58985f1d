//! TPFTL (Y. Zhou, F. Wu, P. Huang, X. He, C. Xie, J. Zhou: "An efficient page-level FTL to optimize address
//! translation in flash memory", EuroSys 2015).
//!
//! - *Two-level lists*: cached entries of a translation page hang on its node; nodes are ordered by the mean time of
//!   the last use of their entries, entries by their last use. Within a node an entry needs 6 bytes instead of 8.
//! - *Request-level prefetch*: a miss loads the entries of all further pages of the request, within one translation page.
//! - *Selective prefetch*: while the number of nodes falls, access is sequential, and a miss also loads as many entries
//!   after it as are cached right before it. It is switched on and off after [`SWITCH_AFTER`] nodes fewer or more.
//! - *Batch update*: when a dirty entry is replaced, all dirty entries of its node are written; they become clean, and
//!   only that one leaves the cache. So do those of a translation page that garbage collection changes.
//! - *Clean-first replacement*: of the coldest node the least recent clean entry is replaced; a dirty one only if it
//!   has none. A prefetch replaces entries of one node at most, the coldest one when it begins.

use super::{CacheUse, Directory, EntryMap, Ftl, Index, Links, List, Move, NONE, Slab, check_clean, some};
use crate::device::{Cause, Device, Ppn};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Bytes of an entry: place in its translation page, physical page.
const CACHED_BYTES: u64 = 6;
/// Bytes of a node: number of the translation page, entries.
const NODE_BYTES: u64 = 8;
/// Entries that the cache must hold at least, each with a node.
const ENTRIES_MIN: u64 = 16;
/// Nodes more or fewer after which selective prefetch is switched.
const SWITCH_AFTER: i32 = 3;

/// The least map cache that works.
pub const MIN_CACHE: u64 = ENTRIES_MIN * (CACHED_BYTES + NODE_BYTES);

#[derive(Debug, Clone, Copy)]
struct Entry {
    lpn: u32,
    ppn: u32,
    node: u32,
    used: u64,
    dirty: bool,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    page: u32,
    clean: List,
    dirty: List,
    len: u32,
    /// Sum of the last uses of the entries.
    used: u64,
}

impl Node {
    /// Mean time of the last use.
    fn heat(&self) -> u64 {
        self.used / u64::from(self.len.max(1))
    }

    fn list(&mut self, dirty: bool) -> &mut List {
        if dirty { &mut self.dirty } else { &mut self.clean }
    }
}

/// TPFTL's state.
#[derive(Debug)]
pub struct Tpftl {
    directory: Directory,
    index: Index,
    entries: Slab<Entry>,
    links: Links,
    node_of: Index,
    nodes: Slab<Node>,
    /// Nodes by their heat when they were last looked at. A node that was used since is put back when its turn comes.
    coldest: BinaryHeap<Reverse<(u64, u32)>>,
    /// Uses so far: the time of the last one.
    time: u64,
    bytes: u64,
    /// Of these, what something else than entries and nodes takes.
    taken: u64,
    budget: u64,
    /// Pages of the request under way.
    request: Range<u32>,
    /// Nodes added less nodes removed since selective prefetch was last considered.
    trend: i32,
    is_sequential: bool,
    cache: CacheUse,
}

impl Tpftl {
    /// The empty map of a device, with so many bytes of cache.
    pub fn new(device: &Device, budget: u64) -> Self {
        Tpftl::beside(device, budget, 0)
    }

    /// As [`Tpftl::new`], where so many bytes of the cache are taken by something else.
    pub(super) fn beside(device: &Device, budget: u64, taken: u64) -> Self {
        Tpftl {
            directory: Directory::new(device),
            index: Index::default(),
            entries: Slab::default(),
            links: Links::default(),
            node_of: Index::default(),
            nodes: Slab::default(),
            coldest: BinaryHeap::new(),
            time: 0,
            bytes: taken,
            taken,
            budget,
            request: 0..0,
            trend: 0,
            is_sequential: false,
            cache: CacheUse::default(),
        }
    }

    /// Whether an entry is cached.
    pub(super) fn holds(&self, lpn: u32) -> bool {
        self.index.get(lpn).is_some()
    }

    /// Caches an entry that is known without a read of its translation page.
    pub(super) fn admit(&mut self, device: &mut Device, lpn: u32) {
        let page = self.directory.page_of(lpn);
        self.make_room(device, page, 1);
        self.insert(page, lpn);
        self.cache.set_bytes(self.bytes, self.budget);
    }

    /// The slot of an entry, which is loaded if it is not cached.
    fn entry(&mut self, device: &mut Device, lpn: u32) -> u32 {
        let cached = self.index.get(lpn);
        self.cache.count(cached.is_some());
        match cached {
            Some(slot) => {
                self.touch(slot);
                slot
            }
            None => self.load(device, lpn),
        }
    }

    fn touch(&mut self, slot: u32) {
        self.time += 1;
        let entry = &mut self.entries[slot];
        let node = &mut self.nodes[entry.node];
        node.used += self.time - entry.used;
        entry.used = self.time;
        self.links.touch(node.list(entry.dirty), slot);
    }

    /// Loads an entry and those that are prefetched with it, by one read.
    fn load(&mut self, device: &mut Device, lpn: u32) -> u32 {
        let page = self.directory.page_of(lpn);
        let range = lpn..self.prefetch_end(lpn, page);
        let wanted = range.clone().filter(|lpn| self.index.get(*lpn).is_none()).count() as u64;
        let wanted = self.make_room(device, page, wanted);
        self.directory.load(device, page, Cause::Map);
        let missing = range.filter(|lpn| self.index.get(*lpn).is_none()).take(wanted as usize);
        let last = missing.last().expect("the entry itself is missing");
        for other in (lpn..=last).rev() {
            if self.index.get(other).is_none() {
                self.insert(page, other);
            }
        }
        self.cache.set_bytes(self.bytes, self.budget);
        self.index.get(lpn).expect("the entry was just loaded")
    }

    /// Where prefetching ends: the rest of the request, or as many entries as precede this one, within its page.
    fn prefetch_end(&self, lpn: u32, page: u32) -> u32 {
        let range = self.directory.range(page);
        let requested = if self.request.contains(&lpn) { self.request.end } else { lpn + 1 };
        let mut before = lpn;
        while self.is_sequential && before > range.start && self.index.get(before - 1).is_some() {
            before -= 1;
        }
        requested.max(lpn + 1 + (lpn - before)).min(range.end)
    }

    /// Frees the bytes for entries of a page, of which one is needed; returns for how many. Prefetched entries take no
    /// more than is free and what one node holds.
    fn make_room(&mut self, device: &mut Device, page: u32, wanted: u64) -> u64 {
        let needed = |this: &Self, entries| {
            let node = if this.node_of.get(page).is_some() { 0 } else { NODE_BYTES };
            this.bytes + entries * CACHED_BYTES + node
        };
        let (mut victim, mut emptied) = (NONE, false);
        while needed(self, 1) > self.budget {
            victim = self.replace(device, NONE);
            emptied = victim == NONE;
        }
        while wanted > 1 && !emptied && needed(self, wanted) > self.budget && self.node_of.len() > 0 {
            victim = self.replace(device, victim);
            emptied = victim == NONE;
        }
        let node = needed(self, 0);
        wanted.min((self.budget - node) / CACHED_BYTES)
    }

    /// Removes an entry of the node `only`, or of the coldest one if that is `NONE`; returns the node while it has more.
    fn replace(&mut self, device: &mut Device, only: u32) -> u32 {
        let number = if only == NONE { self.coldest_node() } else { only };
        if self.nodes[number].clean.last == NONE {
            let page = self.nodes[number].page;
            self.directory.load(device, page, Cause::Map);
            self.clean_all(number);
            self.directory.store(device, page, Cause::Map);
        }
        self.remove(number);
        if self.nodes[number].len > 0 { number } else { NONE }
    }

    /// The node with the least heat. Heats are brought up to date when a node comes to the top.
    fn coldest_node(&mut self) -> u32 {
        loop {
            let Reverse((heat, number)) = self.coldest.peek().copied().expect("a cache that is full has nodes");
            let node = &self.nodes[number];
            if node.len > 0 && node.heat() == heat {
                return number;
            }
            self.coldest.pop();
            if node.len > 0 && node.heat() > heat {
                self.coldest.push(Reverse((node.heat(), number)));
            }
        }
    }

    /// Removes the least recent clean entry of a node.
    fn remove(&mut self, number: u32) {
        let node = &mut self.nodes[number];
        let heat = node.heat();
        let slot = node.clean.last;
        self.links.remove(&mut node.clean, slot);
        let entry = self.entries[slot];
        node.len -= 1;
        node.used -= entry.used;
        self.index.remove(entry.lpn);
        self.entries.release(slot);
        self.bytes -= CACHED_BYTES;
        if node.len == 0 {
            self.node_of.remove(node.page);
            self.nodes.release(number);
            self.bytes -= NODE_BYTES;
            self.consider_prefetch(-1);
        } else if node.heat() < heat {
            let entry = Reverse((node.heat(), number));
            self.push_node(entry);
        }
    }

    fn push_node(&mut self, entry: Reverse<(u64, u32)>) {
        if self.coldest.len() > 4 * self.node_of.len() + 64 {
            let live = self.nodes.iter().filter(|(_, node)| node.len > 0);
            self.coldest = live.map(|(number, node)| Reverse((node.heat(), number))).collect();
        }
        self.coldest.push(entry);
    }

    /// Puts the dirty entries of a node into their translation page, which is to be written.
    fn clean_all(&mut self, number: u32) {
        let node = &mut self.nodes[number];
        while node.dirty.last != NONE {
            let slot = node.dirty.last;
            let entry = &mut self.entries[slot];
            self.directory.set(entry.lpn, entry.ppn);
            entry.dirty = false;
            self.links.remove(&mut node.dirty, slot);
            self.links.push(&mut node.clean, slot);
        }
    }

    fn insert(&mut self, page: u32, lpn: u32) {
        let number = self.node_of.get(page).unwrap_or_else(|| self.add_node(page));
        self.time += 1;
        let entry = Entry { lpn, ppn: self.directory.get(lpn), node: number, used: self.time, dirty: false };
        let slot = self.entries.put(entry);
        self.index.insert(lpn, slot);
        let node = &mut self.nodes[number];
        self.links.push(&mut node.clean, slot);
        node.len += 1;
        node.used += self.time;
        self.bytes += CACHED_BYTES;
        if node.len == 1 {
            let heat = node.heat();
            self.push_node(Reverse((heat, number)));
        }
    }

    fn add_node(&mut self, page: u32) -> u32 {
        let number = self.nodes.put(Node { page, clean: List::default(), dirty: List::default(), len: 0, used: 0 });
        self.node_of.insert(page, number);
        self.bytes += NODE_BYTES;
        self.consider_prefetch(1);
        number
    }

    fn consider_prefetch(&mut self, change: i32) {
        self.trend += change;
        if self.trend.abs() >= SWITCH_AFTER {
            self.is_sequential = self.trend < 0;
            self.trend = 0;
        }
    }

    fn change(&mut self, slot: u32, ppn: u32) -> u32 {
        let entry = &mut self.entries[slot];
        let node = &mut self.nodes[entry.node];
        if !entry.dirty {
            entry.dirty = true;
            self.links.remove(&mut node.clean, slot);
            self.links.push(&mut node.dirty, slot);
        }
        std::mem::replace(&mut entry.ppn, ppn)
    }

    /// Cached entries.
    fn live(&self) -> impl Iterator<Item = &Entry> + '_ {
        let nodes = self.nodes.iter().filter(|(_, node)| node.len > 0);
        let lists = nodes.flat_map(|(_, node)| [&node.clean, &node.dirty]);
        lists.flat_map(|list| self.links.slots(list)).map(|slot| &self.entries[slot])
    }
}

impl EntryMap for Tpftl {
    fn on_flash(&mut self) -> &mut Directory {
        &mut self.directory
    }

    fn move_cached(&mut self, _: &mut Device, m: &Move) -> Option<u32> {
        let slot = self.index.get(m.lpn)?;
        Some(self.change(slot, m.to))
    }

    fn write_along(&mut self, page: u32) {
        if let Some(number) = self.node_of.get(page) {
            self.clean_all(number);
        }
    }
}

impl Ftl for Tpftl {
    fn request(&mut self, pages: Range<u32>) {
        self.request = pages;
    }

    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn> {
        let slot = self.entry(device, lpn);
        some(self.entries[slot].ppn)
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        let slot = self.entry(device, lpn);
        some(self.change(slot, to.unwrap_or(NONE)))
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        self.move_entries(device, moves);
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        some(self.index.get(lpn).map_or_else(|| self.directory.get(lpn), |slot| self.entries[slot].ppn))
    }

    directory_and_cache!();

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let nodes = self.node_of.len() as u64;
        vec![("nodes", nodes), ("dirty_entries", self.live().filter(|entry| entry.dirty).count() as u64)]
    }

    fn check(&self, _: &Device) -> Result<(), String> {
        let (entries, nodes) = (self.live().count() as u64, self.node_of.len() as u64);
        if self.bytes != self.taken + entries * CACHED_BYTES + nodes * NODE_BYTES || entries != self.index.len() as u64
        {
            return Err(format!("{} bytes are in use, by {entries} entries of {nodes} nodes", self.bytes));
        }
        let clean = self.live().filter(|entry| !entry.dirty);
        check_clean(&self.directory, clean.map(|entry| (entry.lpn, entry.ppn)))
    }
}
