//! LearnedFTL (S. Wang, Z. Lin, S. Wu, H. Jiang, J. Zhang, B. Mao: "LearnedFTL: a learning-based page-level FTL for reducing double reads in
//! flash-based SSDs", HPCA 2024).
//!
//! - *Cached entries* are those of TPFTL, with its prefetch and replacement; the paper builds on it too.
//! - *In-place-update models*: a translation page has a model of at most eight lines, and a bitmap filter with a bit for each logical page
//!   that says whether its line is right ([`model`]). A miss of the cache whose bit is set costs no read of flash, and no place is
//!   ever predicted wrongly. A write clears the bit of its page, and changes nothing else.
//! - *Virtual page numbers*: lines lead to the order of allocation in a group, which is consecutive over channels, planes and blocks
//!   (`device/groups.rs`).
//! - *Group-based allocation*: the logical pages of some neighbouring translation pages have superblocks of their own. A group that gets
//!   none writes to blocks that all groups share; the paper lets it borrow superblocks of others.
//! - *Training by collection*: a group is collected as a whole, its pages are written in the order of logical pages, and its models are
//!   learned anew.
//! - *Sequential initialization*: the model also learns pages that the host writes one after the other.
//!
//! The paper keeps all models in memory. Here they take at most half of the map cache, and the ones that were used least recently leave
//! if that does not suffice ([`models`]). Such a model is learned again when a miss reads its translation page, if it would predict half
//! of the pages there. The old place of a page that is written may be predicted as well; the paper does not count what
//! it takes to know it.

mod model;
mod models;

use super::{CacheUse, Directory, Ftl, Move, tpftl::Tpftl};
use crate::config::Config;
use crate::device::{Device, Geometry, Grouping, Ppn};
use model::Point;
use models::Models;
use std::ops::Range;

/// One part in so many of the map cache is the most that models take.
const MODEL_SHARE: u64 = 2;
/// Pages that are written one after the other from which on they are learned.
const RUN_MIN: u32 = 8;

/// The least map cache that works.
pub const MIN_CACHE: u64 = MODEL_SHARE * super::tpftl::MIN_CACHE;

/// Pages of one translation page that were written one after the other.
#[derive(Debug, Default, Clone, Copy)]
struct Run {
    lpn: u32,
    number: u32,
    len: u32,
}

impl Run {
    /// Whether the next page of the run is this one.
    fn goes_on(&self, lpn: u32, number: u32) -> bool {
        self.len > 0 && (self.lpn + self.len, self.number + self.len) == (lpn, number)
    }
}

/// LearnedFTL's state.
#[derive(Debug)]
pub struct LearnedFtl {
    entries: Tpftl,
    models: Models,
    run: Run,
    /// Entries that were not cached and that a model knew.
    model_hits: u64,
    /// Of the request under way, the logical page that was looked up last, if a model knew it: an update of it is no other hit.
    looked_up: Option<u32>,
    /// Models that were trained by collection, by sequential writes, and because they had left.
    trained: [u64; 3],
    /// Groups that were collected.
    collected: u64,
}

impl LearnedFtl {
    /// The empty map of a device.
    pub fn new(device: &Device, config: &Config) -> Self {
        let shape = &config.shape;
        let pages = super::translation_pages(shape, u64::from(device.geometry().logical_pages));
        let models = Models::new(pages, super::entries_per_page(shape), config.map_cache / MODEL_SHARE);
        LearnedFtl {
            entries: Tpftl::beside(device, config.map_cache, models.bytes()),
            models,
            run: Run::default(),
            model_hits: 0,
            looked_up: None,
            trained: [0; 3],
            collected: 0,
        }
    }

    fn map(&self) -> &Directory {
        self.entries.directory().expect("it has translation pages")
    }

    /// The translation page of a logical page, and its place there.
    fn split(&self, lpn: u32) -> (u32, u16) {
        (self.map().page_of(lpn), (lpn % self.map().per_page()) as u16)
    }

    /// Where a logical page is, if its entry is not cached and a model knows it.
    fn predict(&mut self, device: &Device, lpn: u32) -> Option<Ppn> {
        let looked_up = self.looked_up.take();
        if self.entries.holds(lpn) {
            return None;
        }
        let (page, place) = self.split(lpn);
        let number = self.models.predict(page, place)?;
        let predicted = device.physical_page(lpn, number);
        assert_eq!(predicted, self.entries.peek(device, lpn), "the model has another place of logical page {lpn}");
        self.model_hits += u64::from(looked_up != Some(lpn));
        predicted
    }

    /// Where the pages of a translation page are, as far as they have virtual numbers.
    fn points(&self, device: &Device, page: u32) -> Vec<Point> {
        let range = self.map().range(page);
        let number = |lpn: u32| device.virtual_page(self.entries.peek(device, lpn)?);
        let point = |lpn: u32| Some(((lpn - range.start) as u16, number(lpn)?));
        range.clone().filter_map(point).collect()
    }

    /// A miss read the translation page of a logical page: learns a model again that had left.
    fn relearn(&mut self, device: &Device, lpn: u32) {
        let page = self.map().page_of(lpn);
        if self.models.has_left(page) {
            let points = self.points(device, page);
            let half = points.len().div_ceil(2) as u32;
            self.trained[2] += u64::from(self.models.train(page, &points, half));
        }
    }

    /// Notes that the host wrote a page or trimmed it. If many were written one after the other, they are learned.
    fn note(&mut self, lpn: u32, number: Option<u32>) {
        let (page, place) = self.split(lpn);
        let is_predicted = self.models.change(page, place, number);
        let Some(number) = number else { return self.run = Run::default() };
        if place > 0 && self.run.goes_on(lpn, number) {
            self.run.len += 1;
        } else {
            self.run = Run { lpn, number, len: 1 };
        }
        let Run { lpn, number, len } = self.run;
        // At each doubling of the run, if its line was not kept because others have more pages.
        if !is_predicted && len >= RUN_MIN && len.is_power_of_two() {
            let first = self.split(lpn).1;
            self.trained[1] += u64::from(self.models.train_run(page, first, number..number + len));
        }
    }
}

impl Ftl for LearnedFtl {
    fn request(&mut self, pages: Range<u32>) {
        self.looked_up = None;
        self.entries.request(pages);
    }

    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn> {
        let predicted = self.predict(device, lpn);
        if predicted.is_some() {
            self.looked_up = Some(lpn);
            self.entries.cache_mut().count(true);
            return predicted;
        }
        let is_miss = !self.entries.holds(lpn);
        let found = self.entries.lookup(device, lpn);
        if is_miss {
            self.relearn(device, lpn);
        }
        found
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        if self.predict(device, lpn).is_some() {
            self.entries.admit(device, lpn);
        }
        let is_miss = !self.entries.holds(lpn);
        let before = self.entries.update(device, lpn, to);
        if is_miss {
            self.relearn(device, lpn);
        }
        self.note(lpn, to.and_then(|ppn| device.virtual_page(ppn)));
        before
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        for m in moves {
            let (page, place) = self.split(m.lpn);
            self.models.change(page, place, None);
        }
        // Its pages may be among them.
        self.run = Run::default();
        self.entries.moved(device, moves);
    }

    fn grouping(&self, geometry: &Geometry) -> Option<Grouping> {
        Some(Grouping::fit(geometry, self.map().per_page(), self.map().pages()))
    }

    fn collected(&mut self, device: &Device, pages: Range<u32>) {
        self.collected += 1;
        self.run = Run::default();
        for page in self.map().page_of(pages.start)..=self.map().page_of(pages.end - 1) {
            let points = self.points(device, page);
            self.trained[0] += u64::from(self.models.train(page, &points, 1));
        }
    }

    fn peek(&self, device: &Device, lpn: u32) -> Option<Ppn> {
        self.entries.peek(device, lpn)
    }

    fn directory(&self) -> Option<&Directory> {
        self.entries.directory()
    }

    fn directory_mut(&mut self) -> Option<&mut Directory> {
        self.entries.directory_mut()
    }

    fn cache(&self) -> &CacheUse {
        self.entries.cache()
    }

    fn cache_mut(&mut self) -> &mut CacheUse {
        self.entries.cache_mut()
    }

    fn reset(&mut self) {
        self.entries.reset();
        (self.model_hits, self.trained, self.collected) = (0, [0; 3], 0);
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let predictable = self.models.live().map(|(_, model)| u64::from(model.exact())).sum();
        let own = [
            ("model_hits", self.model_hits),
            ("models", self.models.len() as u64),
            ("model_bytes", self.models.bytes()),
            ("predictable_pages", predictable),
            ("trained_by_collection", self.trained[0]),
            ("trained_by_runs", self.trained[1]),
            ("trained_again", self.trained[2]),
            ("collected_groups", self.collected),
        ];
        self.entries.figures().into_iter().chain(own).collect()
    }

    fn check(&self, device: &Device) -> Result<(), String> {
        self.models.check()?;
        for (page, model) in self.models.live() {
            let first = self.map().range(page).start;
            for (place, number) in model.points() {
                let lpn = first + u32::from(place);
                let (predicted, is) = (device.physical_page(lpn, number), self.entries.peek(device, lpn));
                if predicted != is {
                    return Err(format!("logical page {lpn} is in page {is:?}, and its model says {predicted:?}"));
                }
            }
        }
        self.entries.check(device)
    }
}
