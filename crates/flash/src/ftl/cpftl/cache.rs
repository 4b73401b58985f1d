//! Cached map entries: clean ones in order of use, dirty ones by translation page.
//!
//! With the dirty index an entry that changes leaves the clean entries for the node of its translation page. A node has a place in the
//! order of use as if it were one entry, by its last change. Without it all entries are in one order of use, and nodes only tell which dirty entries
//! can be written together.

use crate::ftl::{Index, Links, List, NONE, Slab};

/// Bytes of a clean entry: logical and physical page.
pub const CLEAN_BYTES: u64 = 8;
/// Bytes of the number of the correlated page that an entry came from.
pub const SOURCE_BYTES: u64 = 2;
/// Bytes of a dirty entry: place in its translation page, physical page.
pub const DIRTY_BYTES: u64 = 6;
/// Bytes of a node: number of the translation page, entries.
pub const NODE_BYTES: u64 = 8;

#[derive(Debug, Clone, Copy)]
struct Entry {
    lpn: u32,
    ppn: u32,
    /// Correlated page that it came from.
    source: u32,
    dirty: bool,
}

/// Dirty entries of a translation page.
#[derive(Debug, Clone, Copy)]
struct Node {
    page: u32,
    list: List,
    len: u32,
    /// Its place in the order of use, with the dirty index.
    place: u32,
    /// Whether it got that place without a change.
    is_spared: bool,
}

/// What was used least recently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oldest {
    /// A clean entry.
    Clean,
    /// The dirty entry of a logical page, without the dirty index.
    Dirty(u32),
    /// A node of the dirty index.
    Node,
}

/// The cache. It has no limit of its own.
#[derive(Debug)]
pub struct MapCache {
    is_indexed: bool,
    index: Index,
    entries: Slab<Entry>,
    /// Neighbours of clean entries and nodes in order of use; without the dirty index, of all entries.
    used: Links,
    recent: List,
    /// Neighbours of dirty entries in their node.
    in_node: Links,
    node_of: Index,
    nodes: Slab<Node>,
    node_links: Links,
    changed: List,
    clean_bytes: u64,
    dirty_bytes: u64,
}

impl MapCache {
    /// An empty cache, with or without the dirty index.
    pub fn new(is_indexed: bool) -> Self {
        MapCache {
            is_indexed,
            index: Index::default(),
            entries: Slab::default(),
            used: Links::default(),
            recent: List::default(),
            in_node: Links::default(),
            node_of: Index::default(),
            nodes: Slab::default(),
            node_links: Links::default(),
            changed: List::default(),
            clean_bytes: 0,
            dirty_bytes: 0,
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.clean_bytes + self.dirty_bytes
    }

    /// Bytes of dirty entries and their nodes.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Whether an entry is here.
    pub fn contains(&self, lpn: u32) -> bool {
        self.index.get(lpn).is_some()
    }

    /// An entry's physical page, without using it.
    pub fn peek(&self, lpn: u32) -> Option<u32> {
        self.index.get(lpn).map(|slot| self.entries[slot].ppn)
    }

    /// Uses an entry; returns its physical page and the correlated page that it came from.
    pub fn get(&mut self, lpn: u32) -> Option<(u32, u32)> {
        let slot = self.index.get(lpn)?;
        let entry = self.entries[slot];
        if !(self.is_indexed && entry.dirty) {
            self.used.touch(&mut self.recent, slot);
        }
        Some((entry.ppn, entry.source))
    }

    /// Adds a clean entry that is not here.
    pub fn insert(&mut self, lpn: u32, ppn: u32, source: u32) {
        let entry = Entry { lpn, ppn, source, dirty: false };
        let slot = self.entries.put(entry);
        self.index.insert(lpn, slot);
        self.used.push(&mut self.recent, slot);
        self.clean_bytes += clean_bytes(&entry);
    }

    /// Changes an entry of a translation page; it is dirty then. Returns what it was, if it is here.
    pub fn change(&mut self, page: u32, lpn: u32, ppn: u32) -> Option<u32> {
        let slot = self.index.get(lpn)?;
        if !self.entries[slot].dirty {
            self.make_dirty(page, slot);
        }
        if let Some(node) = self.node_of.get(page) {
            self.touch_node(node);
            self.nodes[node].is_spared = false;
        }
        Some(std::mem::replace(&mut self.entries[slot].ppn, ppn))
    }

    fn make_dirty(&mut self, page: u32, slot: u32) {
        let entry = &mut self.entries[slot];
        self.clean_bytes -= clean_bytes(entry);
        self.dirty_bytes += self.entry_bytes();
        (self.entries[slot].dirty, self.entries[slot].source) = (true, NONE);
        if self.is_indexed {
            self.used.remove(&mut self.recent, slot);
        }
        let number = self.node_of.get(page).unwrap_or_else(|| self.add_node(page));
        let node = &mut self.nodes[number];
        self.in_node.push(&mut node.list, slot);
        node.len += 1;
    }

    fn entry_bytes(&self) -> u64 {
        if self.is_indexed { DIRTY_BYTES } else { CLEAN_BYTES }
    }

    fn touch_node(&mut self, number: u32) {
        self.node_links.touch(&mut self.changed, number);
        if self.is_indexed {
            self.used.touch(&mut self.recent, self.nodes[number].place);
        }
    }

    fn add_node(&mut self, page: u32) -> u32 {
        let mut place = NONE;
        if self.is_indexed {
            place = self.entries.put(Entry { lpn: NONE, ppn: NONE, source: NONE, dirty: true });
            self.used.push(&mut self.recent, place);
        }
        let number = self.nodes.put(Node { page, list: List::default(), len: 0, place, is_spared: false });
        self.node_of.insert(page, number);
        self.node_links.push(&mut self.changed, number);
        self.dirty_bytes += NODE_BYTES;
        number
    }

    /// What was used least recently.
    pub fn oldest(&self) -> Option<Oldest> {
        let slot = self.recent.last;
        (slot != NONE).then(|| match self.entries[slot] {
            Entry { dirty: false, .. } => Oldest::Clean,
            Entry { lpn: NONE, .. } => Oldest::Node,
            Entry { lpn, .. } => Oldest::Dirty(lpn),
        })
    }

    /// Spares the node that was changed least recently, unless it was spared since its last change: it counts as used now. To write it
    /// costs more than to load an entry.
    pub fn spare_node(&mut self) -> bool {
        let number = self.changed.last;
        let spares = number != NONE && !std::mem::replace(&mut self.nodes[number].is_spared, true);
        if spares {
            self.touch_node(number);
        }
        spares
    }

    /// Removes the clean entry that was used least recently.
    pub fn remove_oldest(&mut self) {
        let slot = self.recent.last;
        let entry = self.entries[slot];
        assert!(!entry.dirty, "the entry of logical page {} would be lost", entry.lpn);
        self.used.remove(&mut self.recent, slot);
        self.clean_bytes -= clean_bytes(&entry);
        self.index.remove(entry.lpn);
        self.entries.release(slot);
    }

    /// The translation page to write next: the one that was changed least recently among the last `tries` that are not
    /// `kept`; if all of them are, the one that was changed least recently. Kept ones wait anew.
    pub fn dirty_page(&mut self, tries: usize, kept: impl Fn(u32, u32) -> bool) -> Option<u32> {
        let first = self.changed.last;
        for _ in 0..tries {
            let number = self.changed.last;
            if number == NONE {
                return None;
            }
            let node = &self.nodes[number];
            if !kept(node.page, node.len) {
                return Some(node.page);
            }
            self.touch_node(number);
        }
        (first != NONE).then(|| self.nodes[first].page)
    }

    /// Dirty entries of a translation page.
    pub fn dirty_len(&self, page: u32) -> u32 {
        self.node_of.get(page).map_or(0, |number| self.nodes[number].len)
    }

    /// Passes each dirty entry (logical page, physical page) of a translation page, which is to be written, to `take`. With the
    /// dirty index they leave the cache; without it they stay as clean ones.
    pub fn clean(&mut self, page: u32, mut take: impl FnMut(u32, u32)) {
        let Some(number) = self.node_of.remove(page) else { return };
        self.node_links.remove(&mut self.changed, number);
        if self.is_indexed {
            let place = self.nodes[number].place;
            self.used.remove(&mut self.recent, place);
            self.entries.release(place);
        }
        self.dirty_bytes -= NODE_BYTES + u64::from(self.nodes[number].len) * self.entry_bytes();
        let mut slot = self.nodes[number].list.last;
        while slot != NONE {
            let entry = &mut self.entries[slot];
            take(entry.lpn, entry.ppn);
            entry.dirty = false;
            if self.is_indexed {
                self.index.remove(entry.lpn);
                self.entries.release(slot); // Keeps its value, and its neighbours, for now.
            } else {
                self.clean_bytes += clean_bytes(entry);
            }
            slot = self.in_node.newer(slot);
        }
        self.nodes.release(number);
    }

    /// Forgets which correlated pages entries came from.
    pub fn forget_sources(&mut self) {
        let mut slot = self.recent.last;
        while slot != NONE {
            let entry = &mut self.entries[slot];
            if entry.source != NONE {
                entry.source = NONE;
                self.clean_bytes -= SOURCE_BYTES;
            }
            slot = self.used.newer(slot);
        }
    }

    fn listed<'a>(&'a self, links: &'a Links, list: List) -> impl Iterator<Item = Entry> + 'a {
        let step = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(step(list.last), move |slot| step(links.newer(*slot))).map(|slot| self.entries[slot])
    }

    /// Clean entries (logical page, physical page).
    pub fn clean_entries(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.listed(&self.used, self.recent).filter(|entry| !entry.dirty).map(|entry| (entry.lpn, entry.ppn))
    }

    /// Bytes in use, counted anew.
    pub fn counted_bytes(&self) -> u64 {
        let step = |number: u32| (number != NONE).then_some(number);
        let nodes = std::iter::successors(step(self.changed.last), |number| step(self.node_links.newer(*number)));
        let dirty = nodes.map(|number| {
            let entries = self.listed(&self.in_node, self.nodes[number].list).count() as u64;
            NODE_BYTES + entries * self.entry_bytes()
        });
        let clean = self.listed(&self.used, self.recent).filter(|entry| !entry.dirty);
        dirty.sum::<u64>() + clean.map(|entry| clean_bytes(&entry)).sum::<u64>()
    }
}

fn clean_bytes(entry: &Entry) -> u64 {
    CLEAN_BYTES + if entry.source == NONE { 0 } else { SOURCE_BYTES }
}
