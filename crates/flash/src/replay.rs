//! Replays a trace on an SSD, request by request, and reports figures.

use crate::config::{Config, ConfigError};
use crate::device::{Counters, Ns};
use crate::ftl::CacheUse;
use crate::histogram::Histogram;
use crate::host_cache::HostCache;
use crate::ssd::{Op, Order, Ssd, Wear};
use std::ops::Range;

/// How a trace is replayed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplayOptions {
    /// Bytes of a write-back cache of the host in front of the device; 0: none.
    pub host_cache: u64,
    /// Whether requests beyond the end of the device begin again at its start.
    pub wrap: bool,
}

/// A request that ends beyond the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a request ends at byte {end} and the device at {capacity}")]
pub struct BeyondEnd {
    end: u64,
    capacity: u64,
}

/// What a replay showed.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Requests of the trace.
    pub requests: u64,
    /// Requests that reached the device.
    pub device_requests: u64,
    /// Response times of the requests that reached the device.
    pub response: Histogram,
    /// Flash operations by cause.
    pub counters: Counters,
    /// Use of the map cache.
    pub cache: CacheUse,
    /// Erases of blocks since the device was new.
    pub wear: Wear,
    /// When the last request was complete.
    pub end: Ns,
    /// Power cuts.
    pub power_cuts: u64,
    /// Time that recovery took, from the return of the power on.
    pub recovery: Ns,
    /// How often the layer learned since the device was new.
    pub lessons: u64,
}

/// What is counted of requests beside the SSD's own counters.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub requests: u64,
    pub power_cuts: u64,
    response: Histogram,
    end: Ns,
    recovery: Ns,
}

impl Tally {
    /// The device was done with a request.
    pub fn served(&mut self, at: Ns, done: Ns) {
        self.response.add(done - at);
        self.end = self.end.max(done);
    }

    /// The SSD recovered from a power cut.
    pub fn recovered(&mut self, took: Ns) {
        self.recovery += took;
    }

    /// When the last request was complete.
    pub fn end(&self) -> Ns {
        self.end
    }

    /// Figures so far.
    pub fn figures(&self, ssd: &Ssd) -> Figures {
        Figures {
            requests: self.requests,
            device_requests: self.response.len(),
            response: self.response.clone(),
            counters: *ssd.counters(),
            cache: ssd.cache(),
            wear: ssd.wear(),
            end: self.end,
            power_cuts: self.power_cuts,
            recovery: self.recovery,
            lessons: ssd.lessons,
        }
    }
}

/// A replay under way.
pub struct Replay {
    ssd: Ssd,
    cache: Option<HostCache>,
    wrap: bool,
    page_bytes: u64,
    tally: Tally,
    /// When the last request arrived, by the clock of the trace.
    clock: Ns,
}

impl Replay {
    /// Prepares an SSD.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(config: &Config, options: ReplayOptions) -> Result<Replay, ConfigError> {
        let ssd = Ssd::new(config)?;
        let page_bytes = u64::from(config.shape.page_bytes);
        let cache = (options.host_cache > 0).then(|| HostCache::new((options.host_cache / page_bytes) as usize));
        Ok(Replay { ssd, cache, wrap: options.wrap, page_bytes, tally: Tally::default(), clock: 0 })
    }

    /// Fills the device before the trace begins; see [`Ssd::preload_in`].
    pub fn preload(&mut self, order: Order, goes_on: impl FnMut(u64) -> bool) {
        self.ssd.preload_in(order, goes_on);
    }

    /// Lets the layer learn; see [`Ssd::plan_learning`].
    pub fn plan_learning(&mut self, requests: u64) -> bool {
        self.ssd.plan_learning(requests)
    }

    /// Begins to count and to measure time anew; contents, wear, what was learned and the host's cache stay.
    pub fn begin_figures(&mut self) {
        self.ssd.reset();
        self.ssd.device.schedule.begin_at(self.clock);
        self.tally = Tally::default();
    }

    /// Says which offsets and lengths follow, so that a layer may look them up together.
    pub fn ahead(&mut self, requests: impl Iterator<Item = (u64, u64)>) {
        let (wrap, capacity) = (self.wrap, self.ssd.capacity());
        self.ssd.ahead(requests.map(|(offset, bytes)| (if wrap { offset % capacity } else { offset }, bytes)));
    }

    /// Serves a request for `bytes` at `offset` that arrives at `at`.
    ///
    /// # Errors
    /// It ends beyond the device, and the replay does not wrap.
    pub fn request(&mut self, at: Ns, op: Op, offset: u64, bytes: u64) -> Result<(), BeyondEnd> {
        self.tally.requests += 1;
        self.clock = at;
        self.serve_whole(at, op, offset, bytes)?;
        self.ssd.count_request();
        Ok(())
    }

    /// Serves a request, in parts if it wraps.
    fn serve_whole(&mut self, at: Ns, op: Op, offset: u64, bytes: u64) -> Result<(), BeyondEnd> {
        let capacity = self.ssd.capacity();
        let end = offset.saturating_add(bytes);
        if end <= capacity {
            self.serve(at, op, offset, bytes);
            return Ok(());
        }
        if !self.wrap {
            return Err(BeyondEnd { end, capacity });
        }
        let (mut from, mut left) = (offset % capacity, bytes);
        while left > 0 {
            let part = left.min(capacity - from);
            self.serve(at, op, from, part);
            (from, left) = (0, left - part);
        }
        Ok(())
    }

    fn serve(&mut self, at: Ns, op: Op, offset: u64, bytes: u64) {
        let Replay { ssd, cache, tally, .. } = self;
        let mut submit = |op, offset, bytes| {
            let done = ssd.submit(at, op, offset, bytes);
            tally.served(at, done);
        };
        match cache {
            None => submit(op, offset, bytes),
            Some(cache) => {
                let page = self.page_bytes;
                let pages = pages(op, offset, bytes, page);
                cache.request(op, pages, |op, pages| {
                    submit(op, u64::from(pages.start) * page, u64::from(pages.end - pages.start) * page);
                });
            }
        }
    }

    /// Cuts the power of the device between two requests, and recovers; the clock of the trace stands still meanwhile, and the host's
    /// cache stays.
    pub fn cut_power(&mut self) {
        self.tally.power_cuts += 1;
        self.tally.recovered(self.ssd.cut_power());
        self.ssd.device.schedule.begin_at(self.clock);
    }

    /// Programs what the device's write buffer still has, so that figures count it.
    pub fn finish(&mut self) {
        self.ssd.flush(self.tally.end());
    }

    /// The SSD.
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// Figures so far.
    pub fn figures(&self) -> Figures {
        self.tally.figures(&self.ssd)
    }
}

/// The pages that a request touches; of a TRIM, those that it covers.
fn pages(op: Op, offset: u64, bytes: u64, page: u64) -> Range<u32> {
    let end = offset + bytes;
    match op {
        Op::Trim => {
            let start = offset.div_ceil(page) as u32;
            start..((end / page) as u32).max(start)
        }
        _ => (offset / page) as u32..end.div_ceil(page) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Cause;

    fn replay(options: ReplayOptions) -> Replay {
        Replay::new(&Config::new(64 << 20, "ideal"), options).unwrap()
    }

    #[test]
    fn a_request_beyond_the_end_fails_or_wraps() {
        let end = 64 << 20;
        let error = replay(ReplayOptions::default()).request(0, Op::Write, end - 4096, 8192).unwrap_err();
        assert_eq!(error, BeyondEnd { end: end + 4096, capacity: end });
        let mut wrapping = replay(ReplayOptions { wrap: true, ..ReplayOptions::default() });
        wrapping.request(0, Op::Write, end - 4096, 8192).unwrap();
        wrapping.request(0, Op::Write, 3 * end + 4096, 4096).unwrap();
        assert_eq!([0, 1, 16_383].map(|lpn| wrapping.ssd().content(lpn).is_some()), [true; 3]);
    }

    #[test]
    fn a_host_cache_absorbs_what_is_used_again() {
        let mut cached = replay(ReplayOptions { host_cache: 1 << 20, ..ReplayOptions::default() });
        for at in 0..10 {
            cached.request(at * 1_000_000, Op::Write, 0, 512).unwrap();
            cached.request(at * 1_000_000, Op::Read, 8192, 8192).unwrap();
        }
        let figures = cached.figures();
        assert_eq!((figures.requests, figures.device_requests), (20, 1), "one read of pages that nobody wrote");
    }

    #[test]
    fn lookups_are_counted_over_power_cuts() {
        let mut replay = Replay::new(&Config::new(64 << 20, "dftl"), ReplayOptions::default()).unwrap();
        for at in 0..4 {
            replay.request(at * 1_000_000, Op::Write, 0, 4096).unwrap();
            replay.request(at * 1_000_000, Op::Read, 0, 4096).unwrap();
            replay.cut_power();
        }
        let cache = replay.figures().cache;
        assert_eq!((cache.lookups, cache.hits), (8, 4), "after each cut the first one misses");
    }

    /// A trace that leaves the device no idle time leaves it none after a cut or after training either.
    #[test]
    fn the_time_before_a_cut_is_no_idle_time_after_it() {
        let mut replay = replay(ReplayOptions::default());
        replay.preload(Order::Random, |_| true);
        let now = 100_000_000_000;
        for write in 0..4_000u64 {
            replay.request(now, Op::Write, write * 7919 % 16_384 * 4096, 4096).unwrap();
        }
        for interrupt in [Replay::cut_power, Replay::begin_figures] {
            interrupt(&mut replay);
            let before = replay.figures().counters.all_erases();
            replay.request(now, Op::Read, 0, 4096).unwrap();
            assert_eq!(replay.figures().counters.all_erases(), before, "no block was collected for a read");
        }
    }

    #[test]
    fn an_overwritten_device_collects_from_the_first_writes_on() {
        let moved = |order| {
            let config = Config { map_cache: 4096, ..Config::new(64 << 20, "dftl") };
            let (mut replay, mut pages) = (Replay::new(&config, ReplayOptions::default()).unwrap(), 0);
            replay.preload(order, |count| {
                pages += count;
                true
            });
            assert_eq!(pages, order.writes(16_384));
            for write in 0..500u64 {
                replay.request(0, Op::Write, write * 7919 % 16_384 * 4096, 4096).unwrap();
            }
            replay.ssd().check().unwrap();
            let counters = replay.figures().counters;
            assert!(counters.map_erases() > 0 && counters.map_erases() <= counters.all_erases(), "{counters:?}");
            (counters.programs(Cause::Gc), counters.all_erases() - counters.map_erases())
        };
        let (once, again) = (moved(Order::Random), moved(Order::Overwritten));
        assert_eq!(once, (0, 0), "what was written once has no garbage among data yet");
        assert!(again.0 > 500 && again.1 > 10, "pages moved, blocks of data erased: {again:?}");
    }

    #[test]
    fn a_preloaded_device_is_full_and_its_figures_begin_at_zero() {
        let (mut full, mut pages) = (replay(ReplayOptions::default()), 0);
        full.preload(Order::Random, |count| {
            pages += count;
            true
        });
        assert_eq!(pages, 16_384);
        assert_eq!((full.figures().counters.all_programs(), full.ssd().content(16_383).is_some()), (0, true));
        full.ssd().check().unwrap();
    }
}
