//! Whole translation pages, replaced in the order in which they came.

use std::collections::VecDeque;
use tessera_flash::ftl::{CacheUse, Directory, EntryMap, Ftl, Layer, Move, NONE, some, translation_pages};
use tessera_flash::{Cause, Config, Device, Ppn};

/// Its row of `LAYERS`.
pub const FIFO: Layer = Layer {
    name: "fifo",
    about: "whole translation pages in a queue",
    min_cache: Some(|config| u64::from(config.shape.page_bytes)),
    map_pages: translation_pages,
    make: |device, config| Box::new(Fifo::new(device, config)),
};

struct Page {
    number: u32,
    dirty: bool,
}

/// The layer's state.
struct Fifo {
    directory: Directory,
    pages: VecDeque<Page>,
    page_bytes: u64,
    budget: u64,
    cache: CacheUse,
}

impl Fifo {
    fn new(device: &Device, config: &Config) -> Self {
        Fifo {
            directory: Directory::new(device),
            pages: VecDeque::new(),
            page_bytes: u64::from(config.shape.page_bytes),
            budget: config.map_cache,
            cache: CacheUse::default(),
        }
    }

    fn cached(&mut self, page: u32) -> Option<&mut Page> {
        self.pages.iter_mut().find(|cached| cached.number == page)
    }

    /// Reads the translation page of a logical page, unless it is cached.
    fn bring(&mut self, device: &mut Device, lpn: u32) -> &mut Page {
        let number = self.directory.page_of(lpn);
        let hit = self.cached(number).is_some();
        self.cache.count(hit);
        if !hit {
            if (self.pages.len() as u64 + 1) * self.page_bytes > self.budget {
                let oldest = self.pages.pop_front().expect("the cache holds a page");
                if oldest.dirty {
                    self.directory.store(device, oldest.number, Cause::Map);
                }
            }
            self.directory.load(device, number, Cause::Map);
            self.pages.push_back(Page { number, dirty: false });
            self.cache.set_bytes(self.pages.len() as u64 * self.page_bytes, self.budget);
        }
        self.cached(number).expect("it is cached now")
    }
}

impl Ftl for Fifo {
    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn> {
        self.bring(device, lpn);
        some(self.directory.get(lpn))
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        self.bring(device, lpn).dirty = true;
        some(self.directory.replace(lpn, to.unwrap_or(NONE)))
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        self.move_entries(device, moves);
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        some(self.directory.get(lpn))
    }

    tessera_flash::directory_and_cache!();

    fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![("dirty_pages", self.pages.iter().filter(|page| page.dirty).count() as u64)]
    }

    fn check(&self, _: &Device) -> Result<(), String> {
        let twice = |at: usize| self.pages.range(..at).any(|page| page.number == self.pages[at].number);
        match (0..self.pages.len()).find(|at| twice(*at)) {
            Some(at) => Err(format!("translation page {} is cached twice", self.pages[at].number)),
            None => Ok(()),
        }
    }
}

impl EntryMap for Fifo {
    fn on_flash(&mut self) -> &mut Directory {
        &mut self.directory
    }

    fn move_cached(&mut self, _: &mut Device, m: &Move) -> Option<u32> {
        let number = self.directory.page_of(m.lpn);
        self.cached(number)?.dirty = true;
        Some(self.directory.replace(m.lpn, m.to))
    }
}
