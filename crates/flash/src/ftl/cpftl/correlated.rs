//! Correlated pages, and the directory in memory that predicts which of them has an entry.
//!
//! An entry is in one correlated page at most, and says what the map says: a page is dropped when one of its logical
//! pages is written, and follows what garbage collection moves. A page is also dropped when its loads are of less use than those of the
//! regular map: hits of entries that it brought in, for each load.

use super::filter::{self, Filter};
use crate::device::{Cause, Device};
use crate::ftl::{Directory, Index, Move};

/// Bytes of a directory entry beside its filter: place on flash, hits, loads.
const HEADER_BYTES: u64 = 8;
/// Bytes of an entry in a correlated page: logical and physical page.
const ENTRY_BYTES: u32 = 8;
/// Loads before a page is judged.
const LOADS_MIN: u32 = 16;
/// Hits and loads are halved from here on, so that new ones count.
const COUNT_MAX: u32 = u16::MAX as u32;

/// Hits of entries that loads brought in, and the loads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Worth {
    hits: u32,
    loads: u32,
}

impl Worth {
    /// Counts a hit.
    pub fn hit(&mut self) {
        self.hits += 1;
        self.halve();
    }

    /// Counts a load.
    pub fn load(&mut self) {
        self.loads += 1;
        self.halve();
    }

    fn halve(&mut self) {
        if self.hits.max(self.loads) >= COUNT_MAX {
            (self.hits, self.loads) = (self.hits / 2, self.loads / 2);
        }
    }

    /// Whether enough loads have shown fewer hits each than others have.
    pub fn is_less_than(&self, other: &Worth) -> bool {
        let each = |a: &Worth, b: &Worth| u64::from(a.hits) * u64::from(b.loads);
        self.loads >= LOADS_MIN && each(self, other) < each(other, self)
    }
}

#[derive(Debug)]
struct Page {
    filter: Filter,
    /// What the page on flash says: logical and physical pages, in correlated order.
    entries: Vec<(u32, u32)>,
    worth: Worth,
}

/// What became of correlated pages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    /// Pages that were written.
    pub built: u64,
    /// Reads of pages for a request.
    pub loads: u64,
    /// Those that had the entry.
    pub found: u64,
    /// Pages dropped because one of theirs was written.
    pub written: u64,
    /// Pages dropped because their loads were of less use than others.
    pub stale: u64,
    /// Pages written again because garbage collection moved what they point to.
    pub followed: u64,
    /// Pages dropped then, because free blocks were short.
    pub short: u64,
}

/// All correlated pages.
#[derive(Debug)]
pub struct Correlated {
    pages: Vec<Option<Page>>,
    /// Where the entry of a logical page is: page and place in it.
    places: Index,
    full_search: bool,
    bytes: u64,
    per_page: u32,
    /// What became of them.
    pub fate: Fate,
}

/// A correlated page and a place in it.
type Place = (u32, usize);

impl Correlated {
    /// None.
    pub fn new(page_bytes: u32, full_search: bool) -> Self {
        Correlated {
            pages: Vec::new(),
            places: Index::default(),
            full_search,
            bytes: 0,
            per_page: page_bytes / ENTRY_BYTES,
            fate: Fate::default(),
        }
    }

    /// Entries of a page.
    pub fn per_page(&self) -> usize {
        self.per_page as usize
    }

    /// Bytes of the directory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn page_bytes(&self, entries: usize) -> u64 {
        HEADER_BYTES + if self.full_search { 0 } else { filter::bytes(entries) }
    }

    /// Entries that a directory of so many bytes can predict, in at most so many pages.
    pub fn capacity(&self, bytes: u64, pages: u64) -> usize {
        (pages.min(bytes / self.page_bytes(self.per_page())) * u64::from(self.per_page)) as usize
    }

    /// Pages that are not dropped.
    pub fn live(&self) -> usize {
        self.pages.iter().flatten().count()
    }

    /// Whether the directory takes the logical page for one of the page's.
    fn may_contain(&self, number: u32, lpn: u32) -> bool {
        self.pages[number as usize].as_ref().is_some_and(|page| match self.full_search {
            true => self.place(lpn).is_some_and(|(own, _)| own == number),
            false => page.filter.may_contain(lpn),
        })
    }

    fn place(&self, lpn: u32) -> Option<Place> {
        self.places.get(lpn).map(|place| (place / self.per_page, (place % self.per_page) as usize))
    }

    /// Reads the pages that the directory predicts, until one has the entry.
    pub fn find(&mut self, device: &mut Device, directory: &mut Directory, lpn: u32, regular: &Worth) -> Option<Place> {
        for number in 0..self.pages.len() as u32 {
            if !self.may_contain(number, lpn) {
                continue;
            }
            directory.load(device, directory.pages() + number, Cause::Map);
            self.fate.loads += 1;
            if let Some(page) = &mut self.pages[number as usize] {
                page.worth.load();
            }
            if let Some(place) = self.place(lpn).filter(|place| place.0 == number) {
                self.fate.found += 1;
                return Some(place);
            }
            self.drop_if_stale(device, directory, number, regular);
        }
        None
    }

    /// The entries of a page from a place on, in correlated order; after the last comes the first.
    pub fn entries_from(&self, (number, at): Place) -> impl Iterator<Item = (u32, u32)> + '_ {
        let entries = self.pages[number as usize].as_ref().map_or(&[][..], |page| &page.entries);
        entries[at..].iter().chain(&entries[..at]).copied()
    }

    /// Counts a hit of an entry that a page brought in.
    pub fn hit(&mut self, number: u32) {
        if let Some(page) = &mut self.pages[number as usize] {
            page.worth.hit();
        }
    }

    /// Drops a page whose loads are of less use than those of the regular map.
    pub fn drop_if_stale(&mut self, device: &mut Device, directory: &mut Directory, number: u32, regular: &Worth) {
        if self.pages[number as usize].as_ref().is_some_and(|page| page.worth.is_less_than(regular)) {
            self.fate.stale += 1;
            self.discard(device, directory, number);
        }
    }

    /// Drops a page.
    pub fn discard(&mut self, device: &mut Device, directory: &mut Directory, number: u32) {
        let Some(page) = self.pages[number as usize].take() else { return };
        self.bytes -= self.page_bytes(page.entries.len());
        for (lpn, _) in page.entries {
            self.places.remove(lpn);
        }
        directory.discard(device, directory.pages() + number);
    }

    /// Drops all pages.
    pub fn clear(&mut self, device: &mut Device, directory: &mut Directory) {
        for number in 0..self.pages.len() as u32 {
            self.discard(device, directory, number);
        }
        self.pages.clear();
    }

    /// Writes a page of entries.
    pub fn build(&mut self, device: &mut Device, directory: &mut Directory, entries: Vec<(u32, u32)>) {
        let number = self.pages.len() as u32;
        for (at, (lpn, _)) in (number * self.per_page..).zip(&entries) {
            self.places.insert(*lpn, at);
        }
        self.bytes += self.page_bytes(entries.len());
        self.fate.built += 1;
        let filter = Filter::new(entries.iter().map(|(lpn, _)| *lpn));
        self.pages.push(Some(Page { filter, entries, worth: Worth::default() }));
        directory.store(device, directory.pages() + number, Cause::Map);
    }

    /// Follows the data pages that garbage collection moved: a page with one of them is written again, or dropped if free
    /// blocks are short.
    pub fn moved(&mut self, device: &mut Device, directory: &mut Directory, moves: &[Move]) {
        for number in 0..self.pages.len() as u32 {
            if !moves.iter().any(|m| self.may_contain(number, m.lpn)) {
                continue;
            }
            directory.load(device, directory.pages() + number, Cause::MapGc);
            if !self.point_to(number, moves) {
                continue;
            }
            if device.is_short() {
                self.fate.short += 1;
                self.discard(device, directory, number);
            } else {
                self.fate.followed += 1;
                directory.store(device, directory.pages() + number, Cause::MapGc);
            }
        }
    }

    /// Changes the entries of a page that were moved; returns whether it has any.
    fn point_to(&mut self, number: u32, moves: &[Move]) -> bool {
        let mut is_changed = false;
        for m in moves {
            let Some((own, at)) = self.place(m.lpn) else { continue };
            let Some(page) = self.pages[own as usize].as_mut().filter(|_| own == number) else { continue };
            let before = std::mem::replace(&mut page.entries[at].1, m.to);
            assert_eq!(before, m.from, "a correlated page has a stale place of logical page {}", m.lpn);
            is_changed = true;
        }
        is_changed
    }

    /// All entries of pages that are not dropped.
    pub fn entries(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.pages.iter().flatten().flat_map(|page| page.entries.iter().copied())
    }

    /// The bytes of the directory, counted anew.
    pub fn counted_bytes(&self) -> u64 {
        self.pages.iter().flatten().map(|page| self.page_bytes(page.entries.len())).sum()
    }
}
