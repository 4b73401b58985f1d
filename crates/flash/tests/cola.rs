//! Each mechanism of cola has its effect, shown on requests that are made for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_disk::SplitMix64;
use tessera_flash::ftl::{ColaOptions, OnCpu, Search, Searches, View};
use tessera_flash::{Cause, Config, Op, Order, Ssd};
use tessera_hashgpu::lookup::KeyPosition;

const PAGE: u64 = 4096;
const PAGES: u64 = 65_536;
/// Entries in a page of a level.
const PER_PAGE: u64 = 512;

fn config(cola: ColaOptions) -> Config {
    Config { cola, over_provisioning: 0.3, contents: true, background: false, ..Config::new(PAGES * PAGE, "cola") }
}

fn ssd(cola: ColaOptions) -> Ssd {
    Ssd::new(&config(cola)).unwrap()
}

fn figure(ssd: &Ssd, name: &str) -> u64 {
    ssd.layer_figures().iter().find(|(found, _)| *found == name).map(|(_, value)| *value).unwrap()
}

#[test]
fn a_write_costs_an_entry_for_each_level_and_no_page() {
    let mut ssd = ssd(ColaOptions::Buffer(1024));
    let mut rng = SplitMix64::new(1);
    for _ in 0..PAGES / 2 {
        ssd.submit(0, Op::Write, rng.next_u64() % PAGES * PAGE, PAGE);
    }
    ssd.check().unwrap();
    let (programs, reads) = (ssd.counters().programs(Cause::Map), ssd.counters().reads(Cause::Map));
    // 65,536 pages over a buffer of 1,024 make seven levels.
    let most = 7 * PAGES / 2 / PER_PAGE;
    assert!((most / 3..most).contains(&programs), "{programs} of {most}: {:?}", ssd.layer_figures());
    assert_eq!(reads, 0, "look-ups read no flash");
}

#[test]
fn no_write_waits_for_a_whole_level() {
    let mut ssd = ssd(ColaOptions::Buffer(1024));
    ssd.preload_in(Order::Random, |_| true);
    let (mut rng, mut now, mut longest) = (SplitMix64::new(2), 0, 0);
    for _ in 0..40_000 {
        let done = ssd.submit(now, Op::Write, rng.next_u64() % 64 * PAGE, PAGE);
        longest = done.saturating_sub(now).max(longest);
        now = done;
    }
    let lowest = PAGES / PER_PAGE;
    assert!(longest < lowest / 4 * 200_000, "a write took {longest} ns, and the lowest level has {lowest} pages");
}

#[test]
fn a_bounded_height_makes_fewer_levels_of_a_larger_buffer() {
    let levels = |cola| {
        let mut ssd = ssd(cola);
        ssd.preload_in(Order::Random, |_| true);
        let mut rng = SplitMix64::new(3);
        let mut most = 0;
        for _ in 0..PAGES {
            ssd.submit(0, Op::Write, rng.next_u64() % PAGES * PAGE, PAGE);
            most = most.max(figure(&ssd, "levels"));
        }
        ssd.check().unwrap();
        (most, ssd.counters().programs(Cause::Map))
    };
    let (fixed, bounded) = (levels(ColaOptions::Buffer(512)), levels(ColaOptions::Height(3)));
    assert_eq!((fixed.0, bounded.0), (8, 3));
    assert!(bounded.1 < fixed.1, "{bounded:?} {fixed:?}: fewer levels, fewer writes of each entry");
}

/// Counts what is searched, and in how many calls.
struct Counting(Arc<AtomicU64>);

impl Search for Counting {
    fn find(&mut self, levels: &[View<'_>], queries: &[u32]) -> Vec<Option<KeyPosition>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        OnCpu.find(levels, queries)
    }
}

#[test]
fn requests_that_are_known_ahead_are_searched_together() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let searches = Searches::new(move || Box::new(Counting(counted.clone())));
    let mut ssd = Ssd::new(&Config { searches, ..config(ColaOptions::Buffer(1024)) }).unwrap();
    ssd.preload(|_| true);
    let mut rng = SplitMix64::new(4);
    let before = calls.load(Ordering::Relaxed);
    for _ in 0..100 {
        let offsets: Vec<u64> = (0..32).map(|_| rng.next_u64() % PAGES * PAGE).collect();
        ssd.ahead(offsets.iter().map(|offset| (*offset, PAGE)));
        for offset in offsets {
            ssd.submit(0, Op::Read, offset, PAGE);
        }
    }
    assert_eq!(calls.load(Ordering::Relaxed) - before, 100, "a search for 32 requests");
    assert_eq!(figure(&ssd, "single_queries"), 0);
}

#[test]
fn answers_that_were_searched_ahead_are_not_used_once_they_are_wrong() {
    let mut ssd = ssd(ColaOptions::Buffer(512));
    ssd.preload(|_| true);
    let mut rng = SplitMix64::new(5);
    for round in 0..200u32 {
        let pages: Vec<u64> = (0..32).map(|_| rng.next_u64() % PAGES).collect();
        ssd.ahead(pages.iter().map(|page| (page * PAGE, PAGE)));
        // Between the search and the use the pages are written, trimmed, or moved by collection.
        for (i, page) in pages.iter().enumerate() {
            match (i as u32 + round) % 3 {
                0 => ssd.submit(0, Op::Write, page * PAGE, PAGE),
                1 => ssd.submit(0, Op::Trim, page * PAGE, PAGE),
                _ => (0..40).map(|_| ssd.submit(0, Op::Write, rng.next_u64() % PAGES * PAGE, PAGE)).sum(),
            };
        }
        // The SSD asserts that each page that is read says itself whose it is.
        for page in pages {
            ssd.submit(0, Op::Read, page * PAGE, PAGE);
        }
    }
    ssd.check().unwrap();
}
