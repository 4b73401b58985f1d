//! S-FTL (S. Jiang, L. Zhang, X. Yuan, H. Hu, Y. Chen: "S-FTL: an efficient address translation for flash memory by
//! exploiting spatial locality", MSST 2011).
//!
//! - The unit of the cache is a whole translation page, *condensed*: a bitmap of where runs of consecutive physical
//!   pages begin, and the first page of each run. Sequential data makes a page small, so more pages fit.
//! - Pages are replaced in LRU order. A replaced page with many changed entries is written, without a read, because
//!   the whole page is cached.
//! - The changed entries of a page with few of them go to the *dirty buffer*, a tenth of the cache, and the page is not
//!   written. When the buffer is full, the translation page with the most entries in it is read, changed and written.

use super::condensed::{Condensed, bitmap_bytes};
use super::dirty_buffer::{DirtyBuffer, ENTRY_BYTES};
use super::{
    CacheUse, Directory, EntryMap, Ftl, Index, Links, List, Move, NONE, Slab, check_clean, entries_per_page, some,
};
use crate::device::{Cause, Device, Ppn, Shape};

/// Bytes of a cached page beside its entries: its number and its size.
const HEADER_BYTES: u64 = 8;
/// One part in so many of the cache is the dirty buffer.
const BUFFER_SHARE: u64 = 10;
/// A page with fewer changed entries than one in so many is not written but buffered.
const SPARSE: u32 = 32;

/// The least map cache that works: one page whose entries do not condense at all.
pub fn min_cache(shape: &Shape) -> u64 {
    let entries = entries_per_page(shape) as usize;
    let page = HEADER_BYTES + 2 * bitmap_bytes(entries) + 4 * entries as u64;
    (page * BUFFER_SHARE).div_ceil(BUFFER_SHARE - 1)
}

#[derive(Debug, Default)]
struct Page {
    number: u32,
    entries: Condensed,
    /// A bit for each changed entry.
    dirty: Vec<u64>,
    dirty_len: u32,
}

impl Page {
    fn bytes(&self) -> u64 {
        let marks = if self.dirty_len > 0 { 8 * self.dirty.len() as u64 } else { 0 };
        HEADER_BYTES + self.entries.bytes() + marks
    }

    fn is_dirty(&self, i: usize) -> bool {
        self.dirty[i / 64] >> (i % 64) & 1 != 0
    }

    fn set(&mut self, i: usize, ppn: u32) -> u32 {
        let before = self.entries.get(i);
        self.entries.set(i, ppn);
        let bit = 1 << (i % 64);
        if self.dirty[i / 64] & bit == 0 {
            self.dirty[i / 64] |= bit;
            self.dirty_len += 1;
        }
        before
    }
}

/// S-FTL's state.
#[derive(Debug)]
pub struct Sftl {
    directory: Directory,
    index: Index,
    pages: Slab<Page>,
    links: Links,
    recent: List,
    page_bytes: u64,
    page_budget: u64,
    buffer: DirtyBuffer,
    buffer_budget: u64,
    cache: CacheUse,
}

impl Sftl {
    /// The empty map of a device, with so many bytes of cache.
    pub fn new(device: &Device, budget: u64) -> Self {
        let buffer_budget = budget / BUFFER_SHARE;
        Sftl {
            directory: Directory::new(device),
            index: Index::default(),
            pages: Slab::default(),
            links: Links::default(),
            recent: List::default(),
            page_bytes: 0,
            page_budget: budget - buffer_budget,
            buffer: DirtyBuffer::default(),
            buffer_budget,
            cache: CacheUse::default(),
        }
    }

    fn place(&self, lpn: u32) -> (u32, usize) {
        let page = self.directory.page_of(lpn);
        (page, (lpn - self.directory.range(page).start) as usize)
    }

    /// The cached translation page, moved to the front.
    fn cached(&mut self, page: u32) -> Option<u32> {
        let slot = self.index.get(page)?;
        self.links.touch(&mut self.recent, slot);
        Some(slot)
    }

    /// Reads a translation page into the cache, with the changes that wait in the buffer.
    fn load(&mut self, device: &mut Device, page: u32) -> u32 {
        self.directory.load(device, page, Cause::Map);
        let slot = self.pages.take();
        let (range, directory) = (self.directory.range(page), &self.directory);
        let p = &mut self.pages[slot];
        p.number = page;
        p.entries.fill(range.clone().map(|lpn| directory.get(lpn)));
        p.dirty.clear();
        p.dirty.resize(range.len().div_ceil(64), 0);
        p.dirty_len = 0;
        self.buffer.drain(page, |lpn, ppn| {
            p.set((lpn - range.start) as usize, ppn);
        });
        self.page_bytes += p.bytes();
        self.index.insert(page, slot);
        self.links.push(&mut self.recent, slot);
        self.shrink(device, Cause::Map);
        slot
    }

    /// Changes an entry of a cached page; returns what it was.
    fn change(&mut self, device: &mut Device, slot: u32, i: usize, ppn: u32, cause: Cause) -> u32 {
        let page = &mut self.pages[slot];
        let bytes = page.bytes();
        let before = page.set(i, ppn);
        self.page_bytes = self.page_bytes + page.bytes() - bytes;
        self.shrink(device, cause);
        before
    }

    /// Replaces pages until the others fit. The one in use is at the front and fits alone.
    fn shrink(&mut self, device: &mut Device, cause: Cause) {
        while self.page_bytes > self.page_budget {
            self.replace(device, cause);
        }
        self.cache.set_bytes(self.page_bytes + self.buffer.bytes(), self.page_budget + self.buffer_budget);
    }

    fn replace(&mut self, device: &mut Device, cause: Cause) {
        let slot = self.recent.last;
        self.links.remove(&mut self.recent, slot);
        let page = std::mem::take(&mut self.pages[slot]);
        self.index.remove(page.number);
        self.pages.release(slot);
        self.page_bytes -= page.bytes();
        let range = self.directory.range(page.number);
        let fits = u64::from(page.dirty_len) * ENTRY_BYTES <= self.buffer_budget;
        if page.dirty_len > 0 && fits && page.dirty_len * SPARSE < self.directory.per_page() {
            self.buffer_changes(device, &page, cause);
        } else if page.dirty_len > 0 {
            for (lpn, ppn) in range.zip(page.entries.iter()) {
                self.directory.set(lpn, ppn);
            }
            self.directory.store(device, page.number, cause);
        }
        self.pages[slot] = page; // Its vectors are used again.
    }

    fn buffer_changes(&mut self, device: &mut Device, page: &Page, cause: Cause) {
        while self.buffer.bytes() + u64::from(page.dirty_len) * ENTRY_BYTES > self.buffer_budget {
            let fullest = self.buffer.fullest().expect("a buffer that is full has entries");
            self.directory.load(device, fullest, cause);
            let directory = &mut self.directory;
            self.buffer.drain(fullest, |lpn, ppn| directory.set(lpn, ppn));
            self.directory.store(device, fullest, cause);
        }
        let start = self.directory.range(page.number).start;
        for (word, bits) in page.dirty.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let i = word * 64 + bits.trailing_zeros() as usize;
                self.buffer.insert(page.number, start + i as u32, page.entries.get(i));
                bits &= bits - 1;
            }
        }
    }

    /// Cached pages.
    fn live(&self) -> impl Iterator<Item = &Page> + '_ {
        self.links.slots(&self.recent).map(|slot| &self.pages[slot])
    }
}

impl EntryMap for Sftl {
    fn on_flash(&mut self) -> &mut Directory {
        &mut self.directory
    }

    fn move_cached(&mut self, device: &mut Device, m: &Move) -> Option<u32> {
        let (page, i) = self.place(m.lpn);
        match self.cached(page) {
            Some(slot) => Some(self.change(device, slot, i, m.to, Cause::MapGc)),
            None => self.buffer.replace(m.lpn, m.to),
        }
    }

    fn write_along(&mut self, page: u32) {
        let directory = &mut self.directory;
        self.buffer.drain(page, |lpn, ppn| directory.set(lpn, ppn));
    }
}

impl Ftl for Sftl {
    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn> {
        let (page, i) = self.place(lpn);
        let cached = self.cached(page);
        let buffered = if cached.is_none() { self.buffer.get(lpn) } else { None };
        self.cache.count(cached.is_some() || buffered.is_some());
        some(buffered.unwrap_or_else(|| {
            let slot = cached.unwrap_or_else(|| self.load(device, page));
            self.pages[slot].entries.get(i)
        }))
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        let ppn = to.unwrap_or(NONE);
        let (page, i) = self.place(lpn);
        let cached = self.cached(page);
        let buffered = if cached.is_none() { self.buffer.replace(lpn, ppn) } else { None };
        self.cache.count(cached.is_some() || buffered.is_some());
        some(buffered.unwrap_or_else(|| {
            let slot = cached.unwrap_or_else(|| self.load(device, page));
            self.change(device, slot, i, ppn, Cause::Map)
        }))
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        self.move_entries(device, moves);
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        let (page, i) = self.place(lpn);
        some(match self.index.get(page) {
            Some(slot) => self.pages[slot].entries.get(i),
            None => self.buffer.get(lpn).unwrap_or_else(|| self.directory.get(lpn)),
        })
    }

    directory_and_cache!();

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let dirty = self.live().map(|page| u64::from(page.dirty_len)).sum();
        vec![("cached_pages", self.index.len() as u64), ("dirty_entries", dirty)]
    }

    fn check(&self, _: &Device) -> Result<(), String> {
        let counted: u64 = self.live().map(Page::bytes).sum();
        if counted != self.page_bytes {
            return Err(format!("{} bytes of pages are in use, counted anew {counted}", self.page_bytes));
        }
        let entries = self.live().flat_map(|page| {
            let lpns = self.directory.range(page.number);
            lpns.zip(page.entries.iter()).zip(0..).filter(|(_, i)| !page.is_dirty(*i)).map(|(entry, _)| entry)
        });
        check_clean(&self.directory, entries)
    }
}
