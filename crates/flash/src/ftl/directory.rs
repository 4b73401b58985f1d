//! The map as it lies on flash: translation pages with an entry for each logical page, and the global translation
//! directory in memory that says where each of them is.

use super::index::NONE;
use crate::device::{Cause, Device, MapRoom, Owner, Ppn, Shape, Stream};

/// Bytes of a physical page number in a translation page.
pub const ENTRY_BYTES: u32 = 4;

/// Entries of a translation page.
pub fn entries_per_page(shape: &Shape) -> u32 {
    shape.page_bytes / ENTRY_BYTES
}

/// Translation pages for a number of logical pages.
pub fn translation_pages(shape: &Shape, logical_pages: u64) -> u32 {
    logical_pages.div_ceil(u64::from(entries_per_page(shape))).min(u64::from(u32::MAX)) as u32
}

/// Translation pages and where they are.
#[derive(Debug)]
pub struct Directory {
    /// What the translation pages say.
    entries: Vec<u32>,
    /// Physical page of each translation page; `NONE`: never written, all entries are unmapped.
    places: Vec<u32>,
    per_page: u32,
    /// Translation pages; further places are those of a layer's own pages.
    pages: u32,
    /// Translation pages that were never written.
    unwritten: u32,
    /// Translation pages that change often.
    hot: Vec<bool>,
}

impl Directory {
    /// The empty map of a device.
    pub fn new(device: &Device) -> Self {
        let geometry = device.geometry();
        let logical = geometry.logical_pages;
        let pages = translation_pages(&geometry.shape, u64::from(logical));
        Directory {
            entries: vec![NONE; logical as usize],
            places: vec![NONE; pages as usize],
            per_page: entries_per_page(&geometry.shape),
            pages,
            unwritten: pages,
            hot: vec![false; pages as usize],
        }
    }

    /// Translation pages whose contents the layer keeps itself; they have no entries here.
    pub fn of_pages(pages: u32) -> Self {
        let (places, hot) = (vec![NONE; pages as usize], vec![false; pages as usize]);
        Directory { entries: Vec::new(), places, per_page: 0, pages, unwritten: pages, hot }
    }

    /// The translation page with the entry of a logical page.
    pub fn page_of(&self, lpn: u32) -> u32 {
        lpn / self.per_page
    }

    /// Logical pages with entries in a translation page.
    pub fn range(&self, page: u32) -> std::ops::Range<u32> {
        let start = page * self.per_page;
        start..(start + self.per_page).min(self.entries.len() as u32)
    }

    /// Entries of a translation page.
    pub fn per_page(&self) -> u32 {
        self.per_page
    }

    /// What the translation page says of a logical page; the page must have been read ([`Directory::load`]).
    pub fn get(&self, lpn: u32) -> u32 {
        self.entries[lpn as usize]
    }

    /// Changes an entry; the page must be written then ([`Directory::store`]).
    pub fn set(&mut self, lpn: u32, ppn: u32) {
        self.entries[lpn as usize] = ppn;
    }

    /// Changes an entry as [`Directory::set`]; returns what it was.
    pub fn replace(&mut self, lpn: u32, ppn: u32) -> u32 {
        std::mem::replace(&mut self.entries[lpn as usize], ppn)
    }

    /// Sets all entries, for translation pages that are to be written anew.
    pub fn restore(&mut self, map: &[u32]) {
        self.entries.copy_from_slice(map);
    }

    /// Reads a translation page; the request waits for it.
    pub fn load(&self, device: &mut Device, page: u32, cause: Cause) {
        if self.places[page as usize] != NONE {
            let end = device.read(self.places[page as usize], cause);
            device.wait(end);
        }
    }

    /// Writes a translation page; the request waits for it. If free blocks are few, a block of the map is collected first, so that
    /// a layer may write as many pages as it has to.
    pub fn store(&mut self, device: &mut Device, page: u32, cause: Cause) {
        let stream = self.stream(page);
        let plane = match device.map_room(stream) {
            MapRoom::Plane(plane) => plane,
            MapRoom::After(block) => self.collect(device, block),
        };
        let (ppn, end) = device.program_in(plane, stream, Owner::translation(page), cause, 0);
        match std::mem::replace(&mut self.places[page as usize], ppn) {
            NONE => self.unwritten -= u32::from(page < self.pages),
            place => device.invalidate(place),
        }
        device.wait(end);
    }

    /// Empties and erases a block of the map; returns its plane.
    fn collect(&mut self, device: &mut Device, block: u32) -> u32 {
        device.blocks.unlist(block);
        for ppn in device.pages_of(block).filter(|ppn| device.is_valid(*ppn)).collect::<Vec<_>>() {
            self.relocate(device, ppn, Cause::GcTranslation);
        }
        let end = device.erase(block, Cause::Gc);
        device.wait(end);
        device.blocks.plane_of(block)
    }

    /// Moves a translation page within its plane; the request waits for it.
    pub(crate) fn relocate(&mut self, device: &mut Device, from: Ppn, cause: Cause) {
        let (owner, plane) = (device.owner(from), device.plane_of(from));
        let page = owner.as_translation().expect("a block of the map has pages of the map");
        let arrived = device.read(from, cause);
        device.wait(arrived);
        let (to, end) = device.program_in(plane, self.stream(page), owner, cause, 0);
        device.invalidate(from);
        device.wait(end);
        self.places[page as usize] = to;
    }

    /// Translation pages that were never written. They may have to be at any time, and leave no garbage then.
    pub fn unwritten(&self) -> u32 {
        self.unwritten
    }

    /// The number of translation pages; numbers from here on are those of [`Directory::set_own_pages`].
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Gives a layer places for so many pages of its own, numbered from [`Directory::pages`] on; they have no entries here.
    pub fn set_own_pages(&mut self, count: u32) {
        debug_assert!(self.places[self.pages as usize..].iter().all(|place| *place == NONE), "own pages are in use");
        self.places.resize((self.pages + count) as usize, NONE);
    }

    /// Forgets a page: it is garbage, and the page counts as one that was never written.
    pub fn discard(&mut self, device: &mut Device, page: u32) {
        let place = std::mem::replace(&mut self.places[page as usize], NONE);
        if place != NONE {
            self.unwritten += u32::from(page < self.pages);
            device.invalidate(place);
        }
    }

    /// Says which translation pages change often; they get blocks of their own.
    pub fn set_hot(&mut self, is_hot: impl Fn(u32) -> bool) {
        (0u32..).zip(&mut self.hot).for_each(|(page, hot)| *hot = is_hot(page));
    }

    /// Whether a translation page changes often.
    pub fn is_hot(&self, page: u32) -> bool {
        self.hot[page as usize]
    }

    /// Where a page is written.
    pub fn stream(&self, page: u32) -> Stream {
        match self.hot.get(page as usize) {
            None => Stream::Correlated,
            Some(true) => Stream::HotTranslation,
            Some(false) => Stream::Translation,
        }
    }

    /// Where each written translation page is.
    pub fn places(&self) -> impl Iterator<Item = (u32, Ppn)> + '_ {
        (0u32..).zip(&self.places).filter(|(_, ppn)| **ppn != NONE).map(|(page, ppn)| (page, *ppn))
    }
}
