//! CPFTL, a correlation-aware page-level translation layer (J. Zhou: "Bridging the gap between application and
//! solid-state-drives", University of Central Florida 2018, chapter 3).
//!
//! - *Correlated pages*: entries whose pages are read one soon after the other ([`crate::mining`]) are copied into translation pages
//!   of their own, so that one read brings them all in. The regular translation pages keep the whole map.
//! - *Prediction directory*: for each correlated page a Bloom filter with the smallest and largest logical page, counters
//!   of hits and loads, and the logical pages that were written or moved since. A lookup that misses reads the pages that it
//!   predicts, then the regular one (algorithm 1).
//! - *Upkeep*: a correlated page is dropped when many of its entries are outdated, or when its ratio of hits to loads is below that
//!   of the regular map.
//! - *Sequential prefetch*: a miss loads the entries of the rest of the request, or as many as are cached right before it, within one translation page.
//! - *Dirty entry index*: dirty entries are apart from clean ones, by translation page. When the cache is full, and they have more than
//!   their share or those of a translation page were changed before any clean entry was used, all those of the page are written and leave.
//! - *Skew*: translation pages that change often are not written before they have a number of dirty entries, and have their own blocks.

mod cache;
mod correlated;
mod filter;
mod grouping;
mod options;

use super::{CacheUse, Directory, EntryMap, Ftl, Move, NONE, Trainee, check_clean, some, translation_pages};
use crate::config::Config;
use crate::device::{Cause, Device, Ppn};
use crate::mining::{History, Mined, Pair};
use cache::{CLEAN_BYTES, DIRTY_BYTES, MapCache, NODE_BYTES, Oldest, SOURCE_BYTES};
use correlated::{Correlated, Fate, Worth};
pub use options::Options;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Entries that the cache must hold at least, each with a node.
const ENTRIES_MIN: u64 = 16;
/// Translation pages that are looked at for one to write.
const TRIES: usize = 64;

/// The least map cache that works.
pub fn min_cache(config: &Config) -> u64 {
    let pages = translation_pages(&config.shape, config.capacity / u64::from(config.shape.page_bytes));
    let entries = ENTRIES_MIN * (CLEAN_BYTES + SOURCE_BYTES + NODE_BYTES);
    (entries + table_bytes(&config.cpftl, pages)) * 100 / u64::from(100 - config.cpftl.predictor)
}

/// Bytes of the table of translation pages that change often, a bit for each.
fn table_bytes(options: &Options, pages: u32) -> u64 {
    if options.is_skew_aware() { u64::from(pages.div_ceil(8)) } else { 0 }
}

/// CPFTL's state.
#[derive(Debug)]
pub struct Cpftl {
    options: Options,
    directory: Directory,
    map: MapCache,
    correlated: Correlated,
    /// Groups of each correlated page that is still to be written, the first page last.
    plan: Vec<Vec<Vec<u32>>>,
    /// Hits and loads of the regular map.
    regular: Worth,
    table_bytes: u64,
    dirty_budget: u64,
    /// A translation page that changes often is not written while it has fewer dirty entries.
    keep: u32,
    budget: u64,
    /// Pages of the request under way.
    request: Range<u32>,
    mined_pairs: u64,
    /// What mining took and dropped, without the pairs.
    mined: Mined,
    cache: CacheUse,
}

impl Cpftl {
    /// The empty map of a device.
    pub fn new(device: &Device, config: &Config) -> Self {
        let (options, directory) = (config.cpftl, Directory::new(device));
        let mut layer = Cpftl {
            map: MapCache::new(options.dirty_index),
            correlated: Correlated::new(config.shape.page_bytes, options.full_search, options.outdated),
            plan: Vec::new(),
            regular: Worth::default(),
            table_bytes: table_bytes(&options, directory.pages()),
            dirty_budget: config.map_cache * u64::from(options.dirty) / 100,
            keep: options.keep,
            budget: config.map_cache,
            request: 0..0,
            mined_pairs: 0,
            mined: Mined::default(),
            cache: CacheUse::default(),
            options,
            directory,
        };
        layer.cache.set_bytes(layer.bytes(), layer.budget);
        layer
    }

    /// The entry of a logical page.
    fn place(&self, lpn: u32) -> u32 {
        self.map.peek(lpn).unwrap_or_else(|| self.directory.get(lpn))
    }

    fn bytes(&self) -> u64 {
        self.table_bytes + self.correlated.bytes() + self.map.bytes()
    }

    /// The most entries that one load may bring in.
    fn prefetch_max(&self) -> usize {
        ((self.budget - self.table_bytes - self.correlated.bytes()) / 2 / (CLEAN_BYTES + SOURCE_BYTES)) as usize
    }

    /// Uses a cached entry, and counts whether there is one.
    fn cached(&mut self, lpn: u32) -> Option<u32> {
        let found = self.map.get(lpn);
        self.cache.count(found.is_some());
        let (ppn, source) = found?;
        match source {
            NONE => self.regular.hit(),
            source => self.correlated.hit(source),
        }
        Some(ppn)
    }

    /// Reads an entry of the regular map, and those that are prefetched with it.
    fn load(&mut self, device: &mut Device, lpn: u32) -> u32 {
        let page = self.directory.page_of(lpn);
        self.directory.load(device, page, Cause::Map);
        self.regular.load();
        for other in (lpn..self.prefetch_end(lpn, page)).rev() {
            if !self.map.contains(other) {
                self.map.insert(other, self.directory.get(other), NONE);
            }
        }
        self.directory.get(lpn)
    }

    /// Where sequential prefetch ends.
    fn prefetch_end(&self, lpn: u32, page: u32) -> u32 {
        if !self.options.sequential {
            return lpn + 1;
        }
        let (range, most) = (self.directory.range(page), self.prefetch_max().max(1) as u32);
        let requested = if self.request.contains(&lpn) { self.request.end } else { lpn + 1 };
        let before = (range.start..lpn).rev().take_while(|before| self.map.contains(*before)).take(most as usize);
        requested.max(lpn + 1 + before.count() as u32).min(range.end).min(lpn.saturating_add(most))
    }

    /// Reads an entry from a correlated page, with the entries after it in its group.
    fn load_correlated(&mut self, device: &mut Device, lpn: u32) -> Option<u32> {
        let place = self.correlated.find(device, &mut self.directory, lpn, &self.regular)?;
        let most = self.prefetch_max().clamp(1, self.options.bring as usize);
        let brought: Vec<(u32, u32)> = self.correlated.entries_from(place).take(most).collect();
        for (other, ppn) in brought.iter().rev() {
            if !self.map.contains(*other) {
                self.map.insert(*other, *ppn, place.0);
            }
        }
        self.correlated.drop_if_stale(device, &mut self.directory, place.0, &self.regular);
        Some(brought[0].1)
    }

    /// Replaces entries until the others fit.
    fn shrink(&mut self, device: &mut Device, cause: Cause) {
        while self.bytes() > self.budget {
            let has_many_dirty = self.options.dirty_index && self.map.dirty_bytes() > self.dirty_budget;
            match self.map.oldest().filter(|_| !has_many_dirty) {
                Some(Oldest::Clean) => self.map.remove_oldest(),
                Some(Oldest::Dirty(lpn)) => self.write(device, self.directory.page_of(lpn), cause),
                Some(Oldest::Node) if self.map.spare_node() => {}
                Some(Oldest::Node) | None => self.write_oldest(device, cause),
            }
        }
        self.cache.set_bytes(self.bytes(), self.budget);
    }

    fn write_oldest(&mut self, device: &mut Device, cause: Cause) {
        let (directory, keep) = (&self.directory, self.keep);
        let page = self.map.dirty_page(TRIES, |page, len| directory.is_hot(page) && len < keep);
        self.write(device, page.expect("a dirty cache that is full has pages"), cause);
    }

    /// Writes the dirty entries of a translation page; it is read first unless all its entries are dirty.
    fn write(&mut self, device: &mut Device, page: u32, cause: Cause) {
        if self.map.dirty_len(page) < self.directory.range(page).len() as u32 {
            self.directory.load(device, page, cause);
        }
        self.write_along(page);
        self.directory.store(device, page, cause);
    }

    /// Learns which translation pages change often. What is kept of them takes at most half of the dirty entries' share, so
    /// that others can gather entries too.
    fn learn_skew(&mut self, updates: &[u32]) {
        let changed = updates.iter().filter(|count| **count > 0).count() as u64;
        let least = updates.iter().map(|count| u64::from(*count)).sum::<u64>() * u64::from(self.options.hot);
        let is_hot = |page: u32| u64::from(updates[page as usize]) * changed > least;
        let hot = (0..self.directory.pages()).filter(|page| is_hot(*page)).count() as u64;
        self.directory.set_hot(is_hot);
        let room = (self.dirty_budget / 2 / hot.max(1)).saturating_sub(NODE_BYTES) / DIRTY_BYTES;
        self.keep = self.options.keep.min(room as u32);
    }

    /// Plans the correlated pages that pay: the groups of each.
    fn plan(&mut self, device: &Device, reads: &[u32], pairs: &[Pair]) -> Vec<Vec<Vec<u32>>> {
        let geometry = device.geometry();
        let used = u64::from(geometry.logical_pages) + u64::from(self.directory.pages());
        let room = (u64::from(geometry.valid_max()) * u64::from(geometry.shape.units())).saturating_sub(used);
        let groups = grouping::groups(pairs);
        let mut plan = grouping::pack(&groups, self.correlated.per_page(), room as usize);
        let bytes = self.budget * u64::from(self.options.predictor) / 100;
        plan.truncate(self.correlated.set_pages(plan.len(), bytes));
        let wrong = self.correlated.false_positives();
        let mut counts: HashMap<u32, u64> = HashMap::new();
        reads.iter().for_each(|lpn| *counts.entry(*lpn).or_default() += 1);
        plan.retain(|groups| {
            let lpns: BTreeSet<u32> = groups.iter().flat_map(|group| *group).copied().collect();
            let count: u64 = lpns.iter().filter_map(|lpn| counts.get(lpn)).sum();
            grouping::is_worthwhile(lpns.len() as f64, count as f64 / reads.len() as f64, wrong)
        });
        let owned = |groups: &Vec<&[u32]>| groups.iter().map(|group| group.to_vec()).collect();
        plan.iter().rev().map(owned).collect()
    }
}

impl EntryMap for Cpftl {
    fn on_flash(&mut self) -> &mut Directory {
        &mut self.directory
    }

    fn move_cached(&mut self, device: &mut Device, m: &Move) -> Option<u32> {
        let before = self.map.change(self.directory.page_of(m.lpn), m.lpn, m.to)?;
        self.shrink(device, Cause::MapGc);
        Some(before)
    }

    fn write_along(&mut self, page: u32) {
        let directory = &mut self.directory;
        self.map.clean(page, |lpn, ppn| directory.set(lpn, ppn));
    }
}

impl Ftl for Cpftl {
    fn request(&mut self, pages: Range<u32>) {
        self.request = pages;
    }

    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn> {
        if let Some(ppn) = self.cached(lpn) {
            return some(ppn);
        }
        let ppn = self.load_correlated(device, lpn).unwrap_or_else(|| self.load(device, lpn));
        self.shrink(device, Cause::Map);
        some(ppn)
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        let correlated = self.correlated.write(device, &mut self.directory, lpn);
        if self.cached(lpn).is_none() {
            match correlated {
                Some(ppn) => self.map.insert(lpn, ppn, NONE),
                None => _ = self.load(device, lpn),
            }
        }
        let page = self.directory.page_of(lpn);
        let before = self.map.change(page, lpn, to.unwrap_or(NONE)).expect("the entry was just loaded");
        self.shrink(device, Cause::Map);
        some(before)
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        some(self.place(lpn))
    }

    directory_and_cache!();

    fn reset(&mut self) {
        self.cache.reset();
        let Fate { built, entries, .. } = self.correlated.fate;
        self.correlated.fate = Fate { built, entries, ..Fate::default() };
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        self.move_entries(device, moves);
        self.correlated.moved(device, &mut self.directory, moves);
        self.shrink(device, Cause::MapGc);
    }

    fn trainee(&mut self) -> Option<&mut dyn Trainee> {
        let learns = self.options.correlation || self.options.is_skew_aware();
        if learns { Some(self) } else { None }
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let fate = &self.correlated.fate;
        vec![
            ("mined_pairs", self.mined_pairs),
            ("mining_peak_bytes", self.mined.peak_bytes),
            ("mining_pairs_dropped", self.mined.dropped),
            ("mining_windows_missed", self.mined.missed.into()),
            ("correlated_pages_built", fate.built),
            ("correlated_entries_built", fate.entries),
            ("correlated_pages_live", self.correlated.live() as u64),
            ("correlated_page_reads", fate.loads),
            ("correlated_page_reads_with_the_entry", fate.found),
            ("correlated_entries_outdated", fate.outdated),
            ("correlated_pages_dropped_by_writes", fate.written),
            ("correlated_pages_dropped_by_ratio", fate.stale),
            ("correlated_pages_dropped_for_space", fate.short),
            ("correlated_pages_rewritten_by_gc", fate.followed),
            ("prediction_directory_bytes", self.correlated.bytes()),
        ]
    }

    fn check(&self, _: &Device) -> Result<(), String> {
        let copies = self.correlated.entries().chain(self.map.clean_entries());
        let stale = copies.filter(|(lpn, ppn)| self.place(*lpn) != *ppn).map(|(lpn, _)| lpn).next();
        let (bytes, counted) = (self.bytes(), self.correlated.counted_bytes() + self.map.counted_bytes());
        match stale {
            _ if bytes != self.table_bytes + counted => {
                Err(format!("{bytes} bytes of map cache are in use, counted anew {counted}"))
            }
            Some(lpn) => Err(format!("a correlated page is stale for logical page {lpn}")),
            None => check_clean(&self.directory, self.map.clean_entries()),
        }
    }
}

impl Trainee for Cpftl {
    fn learn(&mut self, device: &mut Device, history: History) {
        if self.options.is_skew_aware() {
            self.learn_skew(history.updates());
        }
        if self.options.correlation {
            self.correlated.clear(device, &mut self.directory);
            self.map.forget_sources();
            let reads = history.into_reads();
            let mut mined = self.options.mining().mine(&reads);
            let pairs = std::mem::take(&mut mined.pairs);
            (self.mined_pairs, self.mined) = (pairs.len() as u64, mined);
            self.plan = self.plan(device, &reads, &pairs);
            self.directory.set_own_pages(self.plan.len() as u32);
        }
    }

    fn build(&mut self, device: &mut Device) -> bool {
        let Some(groups) = self.plan.pop() else { return false };
        let entries = |group: &Vec<u32>| group.iter().map(|lpn| (*lpn, self.place(*lpn))).collect();
        let groups: Vec<Vec<(u32, u32)>> = groups.iter().map(entries).collect();
        self.correlated.build(device, &mut self.directory, &groups);
        self.shrink(device, Cause::Map);
        true
    }
}
