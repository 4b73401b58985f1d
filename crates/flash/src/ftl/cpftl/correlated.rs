//! Correlated pages, and the directory in memory that predicts which of them has an entry.
//!
//! A correlated page on flash holds groups of entries, and a load brings in the rest of a group. An entry may be in several groups. The
//! directory notes which entries are outdated, because their logical page was written or moved since; the others say what the map
//! says. A page that would have too many outdated entries is dropped (algorithm 1), or written again if data were moved. A page is also
//! dropped when its loads are of less use than those of the regular map: hits of entries that it brought in, for each load.

use super::filter::{self, Filter};
use crate::device::{Cause, Device};
use crate::ftl::{Directory, Move};

/// Bytes of a directory entry beside its filter: place on flash, hits, loads.
const HEADER_BYTES: u64 = 8;
/// Bytes of an entry in a correlated page: logical and physical page.
const ENTRY_BYTES: u32 = 8;
/// Bytes of the number of an outdated logical page.
const OUTDATED_BYTES: u64 = 4;
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

/// An entry of a correlated page.
#[derive(Debug, Clone, Copy)]
struct Entry {
    lpn: u32,
    ppn: u32,
    /// Whether a group ends here. On flash it is the highest bit of the logical page, of which there are fewer than 2^31.
    is_last: bool,
}

#[derive(Debug)]
struct Page {
    filter: Filter,
    /// What the page on flash says: groups, each in the order in which it is read.
    entries: Vec<Entry>,
    /// Places of the entries in order of their logical pages: how the simulation finds them.
    by_lpn: Vec<u16>,
    /// Logical pages that were written or moved since.
    outdated: Vec<u32>,
    worth: Worth,
}

impl Page {
    fn new(entries: Vec<Entry>, bits: u32) -> Self {
        let mut by_lpn: Vec<u16> = (0..entries.len() as u16).collect();
        by_lpn.sort_unstable_by_key(|at| (entries[*at as usize].lpn, *at));
        let filter = Filter::new(entries.iter().map(|entry| entry.lpn), bits);
        Page { filter, entries, by_lpn, outdated: Vec::new(), worth: Worth::default() }
    }

    /// Places of a logical page, one for each group that it is in.
    fn places(&self, lpn: u32) -> impl Iterator<Item = usize> + '_ {
        let start = self.by_lpn.partition_point(|at| self.entries[*at as usize].lpn < lpn);
        let own = self.by_lpn[start..].iter().map(|at| *at as usize);
        own.take_while(move |at| self.entries[*at].lpn == lpn)
    }

    /// Where the first valid entry of a logical page is.
    fn place(&self, lpn: u32) -> Option<usize> {
        self.places(lpn).next().filter(|_| !self.outdated.contains(&lpn))
    }
}

/// What became of correlated pages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    /// Correlated pages that were written.
    pub built: u64,
    /// Entries of these.
    pub entries: u64,
    /// Reads of pages for a request.
    pub loads: u64,
    /// Those that had the entry.
    pub found: u64,
    /// Times that a page noted an entry as outdated.
    pub outdated: u64,
    /// Pages dropped because a logical page of theirs was written, and they had no room to note it.
    pub written: u64,
    /// Pages dropped because their loads were of less use than others.
    pub stale: u64,
    /// Pages written again because garbage collection moved what they point to, and they had no room to note it.
    pub followed: u64,
    /// Pages dropped then, because free blocks were short.
    pub short: u64,
}

/// All correlated pages.
#[derive(Debug)]
pub struct Correlated {
    pages: Vec<Option<Page>>,
    /// Bits of a filter for each entry.
    bits: u32,
    full_search: bool,
    /// Outdated entries that a page may have.
    outdated_max: usize,
    bytes: u64,
    /// The most bytes that it may have.
    bytes_max: u64,
    per_page: u32,
    /// What became of them.
    pub fate: Fate,
}

/// A correlated page and a place in it.
type Place = (u32, usize);

impl Correlated {
    /// None.
    pub fn new(page_bytes: u32, full_search: bool, outdated_max: u32) -> Self {
        Correlated {
            pages: Vec::new(),
            bits: 0,
            full_search,
            outdated_max: outdated_max as usize,
            bytes: 0,
            bytes_max: 0,
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

    fn page_bytes(&self, entries: usize, outdated: usize) -> u64 {
        let filter = if self.full_search { 0 } else { filter::bytes(entries, self.bits) };
        HEADER_BYTES + filter + outdated as u64 * OUTDATED_BYTES
    }

    /// Prepares for as many of so many pages as a directory of so many bytes can predict, and returns their number: more pages
    /// need more bits for each entry.
    pub fn set_pages(&mut self, wanted: usize, bytes: u64) -> usize {
        let fits = |this: &Self, pages: u64| pages * this.page_bytes(this.per_page(), 0) <= bytes;
        self.bytes_max = bytes;
        let mut pages = wanted as u64;
        self.bits = filter::bits_for(pages);
        while !fits(self, pages) {
            pages -= 1;
            self.bits = filter::bits_for(pages);
        }
        pages as usize
    }

    /// The share of reads that a filter wrongly takes for its own.
    pub fn false_positives(&self) -> f64 {
        filter::false_positives(self.bits)
    }

    /// Pages that are not dropped.
    pub fn live(&self) -> usize {
        self.pages.iter().flatten().count()
    }

    /// Whether the directory takes the logical page for one of the page's that is not outdated.
    fn may_contain(&self, number: u32, lpn: u32) -> bool {
        self.pages[number as usize].as_ref().is_some_and(|page| match self.full_search {
            true => page.place(lpn).is_some(),
            false => page.filter.may_contain(lpn) && !page.outdated.contains(&lpn),
        })
    }

    fn place(&self, number: u32, lpn: u32) -> Option<usize> {
        self.pages[number as usize].as_ref()?.place(lpn)
    }

    /// Reads the pages that the directory predicts, until one has the entry.
    pub fn find(&mut self, device: &mut Device, directory: &mut Directory, lpn: u32, regular: &Worth) -> Option<Place> {
        for number in 0..self.pages.len() as u32 {
            if !self.may_contain(number, lpn) {
                continue;
            }
            self.load(device, directory, number);
            if let Some(at) = self.place(number, lpn) {
                self.fate.found += 1;
                return Some((number, at));
            }
            self.drop_if_stale(device, directory, number, regular);
        }
        None
    }

    fn load(&mut self, device: &mut Device, directory: &mut Directory, number: u32) {
        directory.load(device, directory.pages() + number, Cause::Map);
        self.fate.loads += 1;
        if let Some(page) = &mut self.pages[number as usize] {
            page.worth.load();
        }
    }

    /// A logical page is written: the pages that the directory predicts note that it is outdated. One without room for that is
    /// read, and dropped if it has the entry (algorithm 1); returns what it said.
    pub fn write(&mut self, device: &mut Device, directory: &mut Directory, lpn: u32) -> Option<u32> {
        let mut before = None;
        for number in 0..self.pages.len() as u32 {
            if !self.may_contain(number, lpn) || self.note_outdated(number, &[lpn]) {
                continue;
            }
            self.load(device, directory, number);
            if let Some(at) = self.place(number, lpn) {
                before = before.or_else(|| self.entries_from((number, at)).next().map(|(_, ppn)| ppn));
                self.fate.written += 1;
                self.discard(device, directory, number);
            }
        }
        before
    }

    /// Notes that what a page says of some logical pages is outdated; `false`: it has no room to note them.
    fn note_outdated(&mut self, number: u32, lpns: &[u32]) -> bool {
        let bytes = self.bytes + lpns.len() as u64 * OUTDATED_BYTES;
        let Some(page) = &mut self.pages[number as usize] else { return false };
        let has_room = page.outdated.len() + lpns.len() <= self.outdated_max && bytes <= self.bytes_max;
        if has_room {
            page.outdated.extend_from_slice(lpns);
            self.fate.outdated += lpns.len() as u64;
            self.bytes = bytes;
        }
        has_room
    }

    /// The valid entries of a group from a place on.
    pub fn entries_from(&self, (number, at): Place) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.pages[number as usize].iter().flat_map(move |page| {
            let rest = &page.entries[at..];
            let end = rest.iter().position(|entry| entry.is_last).map_or(rest.len(), |last| last + 1);
            let valid = rest[..end].iter().filter(|entry| !page.outdated.contains(&entry.lpn));
            valid.map(|entry| (entry.lpn, entry.ppn))
        })
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
        self.bytes -= self.page_bytes(page.entries.len(), page.outdated.len());
        directory.discard(device, directory.pages() + number);
    }

    /// Drops all pages.
    pub fn clear(&mut self, device: &mut Device, directory: &mut Directory) {
        for number in 0..self.pages.len() as u32 {
            self.discard(device, directory, number);
        }
        self.pages.clear();
    }

    /// Writes a page of groups of entries.
    pub fn build(&mut self, device: &mut Device, directory: &mut Directory, groups: &[Vec<(u32, u32)>]) {
        let number = self.pages.len() as u32;
        let mut entries: Vec<Entry> = Vec::with_capacity(self.per_page());
        for group in groups {
            entries.extend(group.iter().map(|&(lpn, ppn)| Entry { lpn, ppn, is_last: false }));
            entries.last_mut().expect("a group has pages").is_last = true;
        }
        self.bytes += self.page_bytes(entries.len(), 0);
        self.fate.built += 1;
        self.fate.entries += entries.len() as u64;
        self.pages.push(Some(Page::new(entries, self.bits)));
        directory.store(device, directory.pages() + number, Cause::Map);
    }

    /// Follows the data pages that garbage collection moved: the pages that the directory predicts note that they are outdated. One
    /// without room for that is written again with their new places, or dropped if free blocks are short.
    pub fn moved(&mut self, device: &mut Device, directory: &mut Directory, moves: &[Move]) {
        for number in 0..self.pages.len() as u32 {
            let lpns = moves.iter().map(|m| m.lpn);
            let predicted: Vec<u32> = lpns.filter(|lpn| self.may_contain(number, *lpn)).collect();
            if predicted.is_empty() || self.note_outdated(number, &predicted) {
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

    /// Changes the valid entries of a page that were moved; returns whether it has any.
    fn point_to(&mut self, number: u32, moves: &[Move]) -> bool {
        let Some(page) = &mut self.pages[number as usize] else { return false };
        let mut is_changed = false;
        for m in moves.iter().filter(|m| !page.outdated.contains(&m.lpn)) {
            for at in page.places(m.lpn).collect::<Vec<_>>() {
                let before = std::mem::replace(&mut page.entries[at].ppn, m.to);
                assert_eq!(before, m.from, "a correlated page has a stale place of logical page {}", m.lpn);
                is_changed = true;
            }
        }
        is_changed
    }

    /// All valid entries of pages that are not dropped.
    pub fn entries(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.pages.iter().flatten().flat_map(|page| {
            let valid = page.entries.iter().filter(|entry| !page.outdated.contains(&entry.lpn));
            valid.map(|entry| (entry.lpn, entry.ppn))
        })
    }

    /// The bytes of the directory, counted anew.
    pub fn counted_bytes(&self) -> u64 {
        self.pages.iter().flatten().map(|page| self.page_bytes(page.entries.len(), page.outdated.len())).sum()
    }
}
