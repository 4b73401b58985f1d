//! A simulated SSD: what a host's request does to the translation layer and the device.

use crate::collect::Collector;
use crate::config::{Config, ConfigError};
use crate::device::{Cause, Counters, Device, Ns, Owner, Ppn, Stream};
use crate::ftl::{CacheUse, Ftl, Layer, entries_per_page, translation_pages};
use crate::mining::History;
use crate::permutation::Permutation;
use crate::write_buffer::{WriteBuffer, run_of};
use std::ops::Range;
use tessera_disk::SplitMix64;

/// Pages between two reports of [`Ssd::preload`].
const PRELOAD_STEP: usize = 4096;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Says that the contents are not needed any more.
    Trim,
}

/// In which order all pages are written before a trace begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// That of the logical pages: neighbours lie together on flash.
    Sequential,
    /// A random one, always the same: no layer finds runs.
    Random,
    /// A random one, and then as many pages again, drawn at random: garbage collection is in its steady state.
    Overwritten,
}

impl Order {
    /// Pages that are written on a device of so many logical pages.
    pub fn writes(self, pages: u64) -> u64 {
        if self == Order::Overwritten { 2 * pages } else { pages }
    }
}

/// What the layer learns from: the next requests, so many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lesson {
    requests: u64,
    /// Those of them that are still to come; 0: the layer has learned.
    left: u64,
}

/// Erases of the blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wear {
    /// Erases of the least worn block.
    pub min: u32,
    /// Erases of a block on average.
    pub mean: f64,
    /// Erases of the most worn block.
    pub max: u32,
}

/// An SSD.
pub struct Ssd {
    pub(crate) device: Device,
    pub(crate) ftl: Box<dyn Ftl>,
    pub(crate) collector: Collector,
    pub(crate) capacity: u64,
    /// Logical pages with contents.
    pub(crate) mapped: u64,
    /// Pages that the host wrote to flash since figures began.
    host_pages: u64,
    /// The number that the last write stored as its contents.
    pub(crate) content: u32,
    /// Lookups and hits of updates that follow a look-up of the same entry (of a page that is written in part, or trimmed), which
    /// count as neither.
    pub(crate) second_lookups: u64,
    pub(crate) second_hits: u64,
    /// What the map cache counted before power cuts.
    pub(crate) cache_before: CacheUse,
    /// Requests to learn from, while the layer still has to.
    pub(crate) history: Option<History>,
    pub(crate) lesson: Option<Lesson>,
    /// How often the layer learned.
    pub(crate) lessons: u64,
    pub(crate) buffer: Option<WriteBuffer>,
    pub(crate) config: Config,
    pub(crate) make: fn(&Device, &Config) -> Box<dyn Ftl>,
}

impl Ssd {
    /// An erased SSD with the layer that the configuration names.
    ///
    /// # Errors
    /// What is asked for cannot be made.
    pub fn new(config: &Config) -> Result<Ssd, ConfigError> {
        Ssd::with_layer(config, crate::ftl::find(&config.ftl)?)
    }

    /// An erased SSD with a layer that need not be one of [`crate::ftl::LAYERS`].
    ///
    /// # Errors
    /// What is asked for cannot be made.
    pub fn with_layer(config: &Config, layer: &Layer) -> Result<Ssd, ConfigError> {
        let device = Device::new(config.geometry(layer)?, config.timing, config.contents);
        Ok(Ssd::of(device, config, layer.make))
    }

    /// An SSD without a map whose device is as given.
    pub(crate) fn of(mut device: Device, config: &Config, make: fn(&Device, &Config) -> Box<dyn Ftl>) -> Ssd {
        let ftl = make(&device, config);
        if let Some(grouping) = ftl.grouping(device.geometry()) {
            device.set_groups(grouping);
        }
        let half = config.write_buffer / u64::from(config.shape.page_bytes) / 2;
        Ssd {
            ftl,
            collector: Collector::new(&device, config.policy, config.background, config.wear_levelling),
            device,
            capacity: config.capacity,
            mapped: 0,
            host_pages: 0,
            content: 0,
            second_lookups: 0,
            second_hits: 0,
            cache_before: CacheUse::default(),
            history: None,
            lesson: None,
            lessons: 0,
            buffer: (half > 0).then(|| WriteBuffer::new(half as usize)),
            config: config.clone(),
            make,
        }
    }

    /// Lets the layer learn from the next requests, so many, and write what it learned. A power cut loses what was noted and what was
    /// learned, and the lesson begins again. Returns whether the layer learns at all.
    pub fn plan_learning(&mut self, requests: u64) -> bool {
        let requests = requests.max(1);
        self.observe();
        self.lesson = self.history.as_ref().map(|_| Lesson { requests, left: requests });
        self.lesson.is_some()
    }

    /// Counts a request of the host; after the last of a lesson the layer learns.
    pub(crate) fn count_request(&mut self) {
        let Some(lesson) = self.lesson.as_mut().filter(|lesson| lesson.left > 0) else { return };
        lesson.left -= 1;
        if lesson.left == 0 {
            self.learn();
        }
    }

    /// Begins the lesson again, if there is one.
    pub(crate) fn repeat_lesson(&mut self) {
        self.history = None;
        if let Some(lesson) = &mut self.lesson {
            lesson.left = lesson.requests;
            self.observe();
        }
    }

    /// Begins to note requests, if the layer has a use for it, until [`Ssd::learn`].
    pub fn observe(&mut self) {
        let geometry = self.device.geometry();
        let pages = translation_pages(&geometry.shape, u64::from(geometry.logical_pages));
        let history = History::new(pages, entries_per_page(&geometry.shape));
        self.history = self.ftl.trainee().map(|_| history);
    }

    /// Lets the layer learn from the requests since [`Ssd::observe`] and write what it learned.
    pub fn learn(&mut self) {
        let Some(history) = self.history.take() else { return };
        self.lessons += 1;
        self.collector.make_room(&mut self.device, &mut *self.ftl);
        if let Some(trainee) = self.ftl.trainee() {
            trainee.learn(&mut self.device, history);
        }
        while self.ftl.trainee().is_some_and(|trainee| trainee.build(&mut self.device)) {
            self.collector.make_room(&mut self.device, &mut *self.ftl);
        }
    }

    /// Further figures of the layer, by name.
    pub fn layer_figures(&self) -> Vec<(&'static str, u64)> {
        self.ftl.figures()
    }

    /// Bytes that can be addressed.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The device, for its figures.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Flash operations so far.
    pub fn counters(&self) -> &Counters {
        self.device.counters()
    }

    /// Figures of the map cache.
    pub fn cache(&self) -> CacheUse {
        let (cache, before) = (self.ftl.cache(), &self.cache_before);
        CacheUse {
            lookups: before.lookups + cache.lookups - self.second_lookups,
            hits: before.hits + cache.hits - self.second_hits,
            bytes: cache.bytes,
            peak: before.peak.max(cache.peak),
        }
    }

    /// Erases of each block.
    pub fn erases(&self) -> impl Iterator<Item = u32> + '_ {
        self.device.blocks.erases()
    }

    /// Erases of the blocks since the device was new.
    pub fn wear(&self) -> Wear {
        let (mut wear, mut sum, mut blocks) = (Wear { min: u32::MAX, ..Wear::default() }, 0, 0);
        for erases in self.erases() {
            (wear.min, wear.max) = (wear.min.min(erases), wear.max.max(erases));
            sum += u64::from(erases);
            blocks += 1;
        }
        wear.mean = sum as f64 / f64::from(blocks);
        wear
    }

    /// Serves a request for `bytes` at `offset` that arrives at `now`; returns when it is complete. Arrivals never go
    /// back in time. A page that is written in part is read first; one that is trimmed in part is left as it is.
    ///
    /// # Panics
    /// The request ends beyond the capacity.
    pub fn submit(&mut self, now: Ns, op: Op, offset: u64, bytes: u64) -> Ns {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.capacity).expect("a request within the capacity");
        self.collector.use_idle_time(&mut self.device, &mut *self.ftl, now);
        self.device.set_now(now);
        if bytes == 0 {
            return now;
        }
        let page = u64::from(self.device.geometry().shape.page_bytes);
        let touched = (offset / page) as u32..end.div_ceil(page) as u32;
        let whole = offset.div_ceil(page) as u32..(end / page) as u32;
        let pages = if op == Op::Trim { whole.clone() } else { touched };
        self.ftl.request(pages.clone());
        let mut done = now;
        for lpn in pages {
            // A read may replace a changed map entry, and so write a translation page.
            self.collector.make_room(&mut self.device, &mut *self.ftl);
            let end = match op {
                Op::Read => self.read(lpn),
                Op::Write => self.write(lpn, &whole),
                Op::Trim => self.trim(lpn),
            };
            done = done.max(end);
        }
        done
    }

    /// Says which offsets and lengths the host will read or write soon, so that the layer may look them up together. No time
    /// passes; what lies beyond the capacity is left out.
    pub fn ahead(&mut self, requests: impl Iterator<Item = (u64, u64)>) {
        let (page, capacity) = (u64::from(self.device.geometry().shape.page_bytes), self.capacity);
        let within = |(offset, bytes): (u64, u64)| {
            let (start, end) = (offset.min(capacity), offset.saturating_add(bytes).min(capacity));
            (start / page) as u32..end.div_ceil(page) as u32
        };
        self.ftl.ahead(&mut requests.flat_map(within));
    }

    fn read(&mut self, lpn: u32) -> Ns {
        if let Some(history) = &mut self.history {
            history.read(lpn);
        }
        if self.buffered(lpn).is_some() {
            return self.device.now();
        }
        let ppn = self.ftl.lookup(&mut self.device, lpn);
        self.assert_owner(ppn, lpn);
        let translated = self.device.now();
        ppn.map_or(translated, |ppn| self.device.read(ppn, Cause::Host))
    }

    fn write(&mut self, lpn: u32, whole: &Range<u32>) -> Ns {
        let is_in_part = !whole.contains(&lpn) && self.buffered(lpn).is_none();
        let is_read_first = is_in_part && self.ftl.peek(&self.device, lpn).is_some();
        if is_read_first {
            let arrived = self.read(lpn);
            self.device.wait(arrived);
        }
        self.content = self.content.wrapping_add(1);
        let Some(buffer) = &mut self.buffer else {
            let content = self.content;
            return match is_read_first {
                true => self.update_again(|ssd| ssd.program(lpn, content)),
                false => self.program(lpn, content),
            };
        };
        buffer.insert(lpn, self.content);
        if buffer.is_full() {
            self.drain();
        }
        self.device.now()
    }

    /// Lookups and hits of the layer since figures began or power returned.
    fn looked_up(&self) -> (u64, u64) {
        let cache = self.ftl.cache();
        (cache.lookups, cache.hits)
    }

    fn program(&mut self, lpn: u32, content: u32) -> Ns {
        let (ppn, end) = self.device.program(Stream::Host, Owner::data(lpn), Cause::Host, content);
        self.update(lpn, Some(ppn));
        self.mapped += 1;
        self.host_pages += 1;
        let done = end.max(self.device.now());
        self.collector.keep_pace(&mut self.device, &mut *self.ftl);
        done
    }

    /// What the write buffer has of a page.
    fn buffered(&self, lpn: u32) -> Option<u32> {
        self.buffer.as_ref()?.get(lpn)
    }

    /// Whether there is a write buffer.
    pub(crate) fn has_write_buffer(&self) -> bool {
        self.buffer.is_some()
    }

    /// Pages that the write buffer has.
    pub(crate) fn buffered_pages(&self) -> usize {
        self.buffer.as_ref().map_or(0, WriteBuffer::len)
    }

    /// Whether the write buffer has a page.
    pub(crate) fn is_buffered(&self, lpn: u32) -> bool {
        self.buffered(lpn).is_some()
    }

    /// Begins to program what the write buffer has, once the half before is on flash.
    fn drain(&mut self) {
        let Some(buffer) = &mut self.buffer else { return };
        self.device.wait(buffer.drained);
        let (start, pages) = (self.device.now(), buffer.take());
        let mut end = start;
        for run in pages.chunk_by(|a, b| a.0 + 1 == b.0) {
            self.ftl.request(run_of(run));
            for (lpn, content) in run {
                self.collector.make_room(&mut self.device, &mut *self.ftl);
                end = end.max(self.program(*lpn, *content));
            }
        }
        if let Some(buffer) = &mut self.buffer {
            buffer.drained = end;
        }
        self.device.set_now(start);
    }

    /// Programs what the write buffer has; returns when all of it is on flash.
    pub fn flush(&mut self, now: Ns) -> Ns {
        self.collector.use_idle_time(&mut self.device, &mut *self.ftl, now);
        self.device.set_now(now);
        self.drain();
        self.buffer.as_ref().map_or(now, |buffer| buffer.drained)
    }

    fn trim(&mut self, lpn: u32) -> Ns {
        if let Some(buffer) = &mut self.buffer {
            buffer.remove(lpn);
        }
        // What has no contents is looked up, but its entry does not change: it must not count as dirty.
        if self.ftl.lookup(&mut self.device, lpn).is_some() {
            self.update_again(|ssd| ssd.update(lpn, None));
        }
        self.device.now()
    }

    /// Does an update of an entry that was looked up before.
    fn update_again<T>(&mut self, update: impl FnOnce(&mut Self) -> T) -> T {
        let (lookups, hits) = self.looked_up();
        let done = update(self);
        let after = self.looked_up();
        self.second_lookups += after.0 - lookups;
        self.second_hits += after.1 - hits;
        done
    }

    /// Maps a logical page anew; the page that held it is garbage.
    fn update(&mut self, lpn: u32, to: Option<Ppn>) {
        if let Some(history) = &mut self.history {
            history.update(lpn);
        }
        let before = self.ftl.update(&mut self.device, lpn, to);
        self.assert_owner(before, lpn);
        if let Some(ppn) = before {
            self.device.invalidate(ppn);
            self.mapped -= 1;
        }
    }

    /// A map entry names the page that says itself whose it is.
    fn assert_owner(&self, ppn: Option<Ppn>, lpn: u32) {
        let is_its_own = ppn.is_none_or(|ppn| self.device.owner(ppn) == Owner::data(lpn));
        assert!(is_its_own, "the map says that page {ppn:?} holds logical page {lpn}, which it does not");
    }

    /// What a logical page holds: the number of the write, counted in pages from 1; for devices with contents.
    pub fn content(&self, lpn: u32) -> Option<u32> {
        self.buffered(lpn).or_else(|| self.ftl.peek(&self.device, lpn).map(|ppn| self.device.content(ppn)))
    }

    /// Writes every page once, in order; see [`Ssd::preload_in`].
    pub fn preload(&mut self, goes_on: impl FnMut(u64) -> bool) {
        self.preload_in(Order::Sequential, goes_on);
    }

    /// Writes every page, and then begins to count and to measure time anew. After every few thousand pages
    /// `goes_on` gets their number; `false` ends it early.
    pub fn preload_in(&mut self, order: Order, mut goes_on: impl FnMut(u64) -> bool) {
        let page = u64::from(self.device.geometry().shape.page_bytes);
        let pages = u64::from(self.device.geometry().logical_pages);
        let (random, mut drawn) = (Permutation::new(pages, 1), SplitMix64::new(2));
        let writes = order.writes(pages);
        for first in (0..writes).step_by(PRELOAD_STEP) {
            let step = first..writes.min(first + PRELOAD_STEP as u64);
            let count = step.end - step.start;
            for place in step {
                let lpn = match order {
                    Order::Sequential => place,
                    _ if place < pages => random.at(place),
                    _ => drawn.below(pages),
                };
                self.submit(0, Op::Write, lpn * page, page);
            }
            if !goes_on(count) {
                break;
            }
        }
        self.flush(0);
        self.reset();
    }

    /// Begins to count and to measure time anew; contents and wear stay.
    pub fn reset(&mut self) {
        self.device.reset();
        self.ftl.reset();
        (self.second_lookups, self.second_hits) = (0, 0);
        (self.host_pages, self.collector.moved) = (0, 0);
        self.cache_before = CacheUse::default();
        if let Some(buffer) = &mut self.buffer {
            buffer.drained = 0;
        }
    }

    /// Checks that the parts agree: each mapped page is valid and belongs to its logical page, each translation page
    /// to its place, and nothing else is valid.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn check(&self) -> Result<(), String> {
        let holds = |ppn, owner| self.device.is_valid(ppn) && self.device.owner(ppn) == owner;
        let mut mapped = 0;
        for lpn in 0..self.device.geometry().logical_pages {
            let Some(ppn) = self.ftl.peek(&self.device, lpn) else { continue };
            mapped += 1;
            if !holds(ppn, Owner::data(lpn)) {
                return Err(format!("logical page {lpn} is mapped to page {ppn}, which does not hold it"));
            }
        }
        let mut translation = 0;
        for (page, ppn) in self.ftl.directory().into_iter().flat_map(|d| d.places()) {
            translation += 1;
            if !holds(ppn, Owner::translation(page)) {
                return Err(format!("translation page {page} is not in page {ppn}"));
            }
        }
        let valid = self.device.valid_pages();
        match (mapped == self.mapped, valid == mapped + translation) {
            (false, _) => Err(format!("{mapped} logical pages are mapped, {} were written", self.mapped)),
            (_, false) => Err(format!("{valid} pages are valid, {mapped} are mapped and {translation} are the map's")),
            _ => self.check_counters().and_then(|()| self.ftl.check(&self.device)),
        }
    }

    /// Compares what was counted by cause with what the host wrote, what was moved, and what the blocks tell.
    fn check_counters(&self) -> Result<(), String> {
        let c = self.counters();
        let programs = |causes: &[Cause]| causes.iter().map(|cause| c.programs(*cause)).sum::<u64>();
        let map = programs(&[Cause::Map, Cause::MapGc, Cause::GcTranslation, Cause::Recovery]);
        let [written, erased] = self.device.found_in_blocks();
        for (what, counted, found) in [
            ("pages that the host wrote", programs(&[Cause::Host]), self.host_pages),
            ("moved pages", programs(&[Cause::Gc, Cause::Wear]), self.collector.moved),
            ("pages of all causes", self.host_pages + self.collector.moved + map, written),
            ("erased blocks", c.all_erases(), erased),
        ] {
            if counted != found {
                return Err(format!("{counted} {what} are counted, and there were {found}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_or_erase_that_is_counted_wrongly_is_found() {
        let mut ssd = Ssd::new(&Config { map_cache: 4096, ..Config::new(64 << 20, "dftl") }).unwrap();
        ssd.preload_in(Order::Overwritten, |_| true);
        let mut random = SplitMix64::new(1);
        for _ in 0..2_000 {
            ssd.submit(0, Op::Write, random.below(16_384) * 4096, 4096);
        }
        ssd.check().unwrap();
        let right = *ssd.counters();
        for cause in [Cause::Host, Cause::Gc, Cause::GcTranslation, Cause::Map, Cause::MapGc] {
            assert!(right.programs(cause) > 0, "{cause:?}");
            ssd.device.counters.programs[cause as usize] -= 1;
            assert!(ssd.check().is_err(), "a program for {cause:?} is missing");
            ssd.device.counters.programs[Cause::Wear as usize] += 1;
            assert_eq!(ssd.check().is_err(), cause != Cause::Gc, "wear levelling and collection are counted together");
            ssd.device.counters = right;
        }
        ssd.device.counters.erases[Cause::Gc as usize] += 1;
        assert!(ssd.check().unwrap_err().contains("erased blocks"));
    }
}
