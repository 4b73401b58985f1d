//! Address translation by a cache-oblivious lookahead array (A. Khasymski: "Accelerated Storage Systems", Virginia Tech 2015,
//! section 4.2; M. Bender et al.: "Cache-oblivious streaming B-trees", SPAA 2007).
//!
//! - The whole map is in memory, on the host or on a GPU, as *sorted levels* of which each has twice as many entries as the
//!   one above. Changes go to an *insertion buffer*. A full buffer is merged with the full levels below it into the first
//!   empty one.
//! - *Batches*: the pages of a request, and those of the requests that follow if they are known ([`Ftl::ahead`]), are
//!   searched together by the accelerator's look-up primitive, wherever it keeps the levels ([`Search`]).
//! - *Mappings are persisted at merges*, in whole pages and in order; changing a table in place would write a page for an
//!   entry, so that drivers often keep the table in memory alone, and scan the device after a power loss.
//! - The buffer has a fixed size, or one that bounds the number of levels ([`Options`]).
//!
//! The paper searches levels through sparse lookahead pointers, which a GPU's lanes compare at once. The primitive halves
//! whole levels instead, which needs no pointers.

mod levels;
mod options;
mod search;
mod written;

pub use options::Options;
pub use search::{OnCpu, Search, Searches, View};

use super::{CacheUse, Directory, Ftl, Index, Move, NONE, some};
use crate::config::Config;
use crate::device::{Cause, Device, Ppn, Shape};
use levels::{Levels, Merged};
use options::{CACHED_BYTES, entries_per_page};
use std::ops::Range;
use written::Written;

/// Most answers that are kept for requests to come.
const ANSWERS_MAX: usize = 1 << 14;

/// Translation pages that the layer may need. All levels together have at most two entries for each logical page. Those that
/// were merged into the lowest level stay until it is complete; by then those above have filled again, and the last of them
/// may not be complete either.
pub fn map_pages(shape: &Shape, logical_pages: u64) -> u32 {
    let last_pages = 64;
    (5 * logical_pages.div_ceil(u64::from(entries_per_page(shape))) + last_pages).min(u64::from(u32::MAX)) as u32
}

/// The layer's state.
pub struct Cola {
    directory: Directory,
    levels: Levels,
    written: Written,
    /// Entries that arrived since levels were last written on.
    arrived: u32,
    entries_per_page: u32,
    search: Box<dyn Search>,
    /// What the levels say of pages that were searched together.
    answers: Index,
    cache: CacheUse,
    batches: u64,
    queries: u64,
    /// Look-ups that no batch had answered.
    single: u64,
}

impl Cola {
    /// The empty map of a device.
    pub fn new(device: &Device, config: &Config) -> Self {
        let geometry = device.geometry();
        let (shape, logical) = (&geometry.shape, geometry.logical_pages);
        let levels = Levels::new(config.cola.buffer(shape, logical), logical);
        let pages = map_pages(shape, u64::from(logical));
        let mut cola = Cola {
            directory: Directory::of_pages(pages),
            written: Written::new(levels.height(), pages, entries_per_page(shape)),
            levels,
            arrived: 0,
            entries_per_page: entries_per_page(shape),
            search: config.searches.make(),
            answers: Index::default(),
            cache: CacheUse::default(),
            batches: 0,
            queries: 0,
            single: 0,
        };
        cola.note_bytes();
        cola
    }

    fn find(&mut self, lpn: u32) -> u32 {
        self.cache.count(true);
        if let Some(ppn) = self.levels.recent(lpn).or_else(|| self.answers.get(lpn)) {
            return ppn;
        }
        self.single += 1;
        self.levels.settled(lpn)
    }

    /// Searches pages together.
    fn batch(&mut self, pages: impl Iterator<Item = u32>) {
        let is_unknown = |lpn: &u32| self.levels.recent(*lpn).is_none() && self.answers.get(*lpn).is_none();
        let queries: Vec<u32> = pages.filter(is_unknown).take(ANSWERS_MAX).collect();
        if queries.is_empty() {
            return;
        }
        if self.answers.len() + queries.len() > ANSWERS_MAX {
            self.answers = Index::default();
        }
        let found = self.search.find(&self.levels.views(), &queries);
        assert_eq!(found.len(), queries.len(), "an answer for each page");
        for (lpn, place) in queries.iter().zip(found) {
            let ppn = place.map_or(NONE, |place| self.levels.at(usize::from(place.level), place.index as usize));
            self.answers.insert(*lpn, ppn);
        }
        self.batches += 1;
        self.queries += queries.len() as u64;
    }

    /// Sets an entry; a full buffer is merged.
    fn insert(&mut self, device: &mut Device, lpn: u32, ppn: u32, cause: Cause) {
        if !self.levels.insert(lpn, ppn) {
            return;
        }
        self.arrived += 1;
        if self.levels.is_full() {
            let merged = self.levels.merge();
            self.took(merged);
        }
        if self.arrived >= self.entries_per_page {
            self.arrived = 0;
            self.written.advance(device, &mut self.directory, cause);
        }
    }

    /// The levels are others: what was searched in them counts no more, and the new one has to be written.
    fn took(&mut self, merged: Merged) {
        self.answers = Index::default();
        self.written.merged(merged.level, merged.entries, self.levels.level_len(merged.level));
        self.note_bytes();
    }

    fn note_bytes(&mut self) {
        let bytes = (self.levels.entries() + self.levels.level_len(0)) * u64::from(CACHED_BYTES);
        self.cache.set_bytes(bytes, u64::MAX);
    }
}

impl Ftl for Cola {
    fn request(&mut self, pages: Range<u32>) {
        self.batch(pages);
    }

    fn ahead(&mut self, pages: &mut dyn Iterator<Item = u32>) {
        self.batch(pages);
    }

    fn lookup(&mut self, _: &mut Device, lpn: u32) -> Option<Ppn> {
        some(self.find(lpn))
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        let before = self.find(lpn);
        if (before, to) != (NONE, None) {
            self.insert(device, lpn, to.unwrap_or(NONE), Cause::Map);
        }
        some(before)
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        for m in moves {
            assert_eq!(self.peek(device, m.lpn), Some(m.from), "logical page {} was not there", m.lpn);
            self.insert(device, m.lpn, m.to, Cause::MapGc);
        }
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        some(self.levels.recent(lpn).unwrap_or_else(|| self.levels.settled(lpn)))
    }

    fn restore(&mut self, _: &Device, map: &[u32]) {
        let merged = self.levels.restore(map);
        self.took(merged);
    }

    fn checkpoint(&mut self, device: &mut Device, _: u32) {
        let lowest = self.levels.height() - 1;
        self.written.write_page(device, &mut self.directory, lowest, Cause::Recovery);
        self.written.end(device, &mut self.directory, lowest);
    }

    directory_and_cache!();

    fn reset(&mut self) {
        self.cache.reset();
        (self.batches, self.queries, self.single) = (0, 0, 0);
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let mut figures = vec![
            ("levels", self.levels.used() as u64),
            ("merges", self.levels.merges()),
            ("buffered_entries", self.levels.buffered()),
            ("pages_written", self.written.pages()),
            ("pages_to_write", self.written.left()),
            ("batches", self.batches),
            ("batch_queries", self.queries),
            ("single_queries", self.single),
        ];
        figures.extend(self.search.figures());
        figures
    }

    fn check(&self, _: &Device) -> Result<(), String> {
        self.levels.check()?;
        self.written.check(&self.directory)
    }
}
