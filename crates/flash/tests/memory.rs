//! Memory is bounded by the capacity and the map cache, and does not grow with the trace.

use peak_alloc::PeakAlloc;
use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tessera_disk::SplitMix64;
use tessera_flash::ftl::LAYERS;
use tessera_flash::trace::Reader;
use tessera_flash::{Config, Op, Order, Replay, ReplayOptions, Ssd};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// The allocator counts for all threads.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

const PAGE: u64 = 4096;

/// The most bytes for each page of the capacity: out-of-band areas, blocks, and the map on flash.
const PAGE_BYTES: u64 = 16;
/// The same, if segments were learned from pages that are written in random order: one of 8 bytes for each.
const LEARNED_PAGE_BYTES: u64 = 18;
/// The same, if the whole map is in memory: all levels, and another copy of them while they are merged.
const LEVELS_PAGE_BYTES: u64 = 40;
/// The most bytes for each byte of map cache: its entries stand in hash tables and lists.
const CACHE_BYTES: u64 = 16;
const MAP_CACHE: u64 = 8 << 10;

fn config(ftl: &str, capacity: u64) -> Config {
    Config { map_cache: MAP_CACHE, ..Config::new(capacity, ftl) }
}

#[test]
fn memory_is_bounded_by_the_capacity_and_the_map_cache() {
    let _lock = one_at_a_time();
    let pages = 1 << 17;
    for layer in LAYERS {
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        let mut ssd = Ssd::new(&config(layer.name, pages * PAGE)).unwrap();
        let empty = HEAP.current_usage() - before;
        assert!(empty as u64 > 9 * pages, "{}: {empty} bytes are fewer than out-of-band areas need", layer.name);
        ssd.preload(|_| true);
        let mut rng = SplitMix64::new(1);
        for _ in 0..pages {
            ssd.submit(0, Op::Write, rng.next_u64() % pages * PAGE, PAGE);
        }
        let peak = (HEAP.peak_usage() - before) as u64;
        let most = match layer.name {
            "leaftl" => LEARNED_PAGE_BYTES,
            "cola" => LEVELS_PAGE_BYTES,
            _ => PAGE_BYTES,
        };
        let most = most * pages + CACHE_BYTES * MAP_CACHE;
        assert!(peak <= most, "{}: {peak} bytes for {pages} pages", layer.name);
        let said = config(layer.name, pages * PAGE).memory_bytes().unwrap();
        // Gaps in the heap are not counted here.
        let gaps = if layer.name == "leaftl" { 14 * pages } else { 0 };
        assert!(peak <= said && said <= most + 2 * pages + gaps, "{}: {peak} bytes, {said} are said", layer.name);
    }
}

#[test]
fn what_a_write_buffer_takes_is_said() {
    let _lock = one_at_a_time();
    let pages = 1 << 17;
    for write_buffer in [pages / 8, pages, 4 * pages] {
        let config = Config { write_buffer: write_buffer * PAGE, ..config("ideal", pages * PAGE) };
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        Ssd::new(&config).unwrap().preload_in(Order::Random, |_| true);
        let (peak, said) = ((HEAP.peak_usage() - before) as u64, config.memory_bytes().unwrap());
        assert!(peak <= said && said < peak * 5 / 4, "a buffer of {write_buffer} pages: {peak} bytes, {said} are said");
    }
}

#[test]
fn recovery_takes_no_more_than_it_says() {
    let _lock = one_at_a_time();
    let pages = 1 << 16;
    for layer in LAYERS {
        let config = config(layer.name, pages * PAGE);
        let before = HEAP.current_usage();
        let mut ssd = Ssd::new(&config).unwrap();
        ssd.preload(|_| true);
        HEAP.reset_peak_usage();
        ssd.cut_power();
        let (peak, said) = ((HEAP.peak_usage() - before) as u64, config.memory_bytes().unwrap());
        assert!(peak <= said + config.recovery_bytes().unwrap(), "{}: {peak} bytes, {said} are said", layer.name);
    }
}

/// Lines of a trace that never lies in memory.
struct Lines {
    rng: SplitMix64,
    left: u64,
    line: Vec<u8>,
}

impl Read for Lines {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.line.is_empty() && self.left > 0 {
            self.left -= 1;
            let (page, op) = (self.rng.next_u64() % 16_384, if self.left.is_multiple_of(3) { 'R' } else { 'W' });
            self.line = format!("0,{},4096,{op},{}.0\n", page * 8, u64::MAX / 2_000_000_000 - self.left).into_bytes();
        }
        let count = self.line.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.line[..count]);
        self.line.drain(..count);
        Ok(count)
    }
}

#[test]
fn a_longer_trace_needs_no_more_memory() {
    let _lock = one_at_a_time();
    for layer in LAYERS {
        let mut replay = Replay::new(&config(layer.name, 16_384 * PAGE), ReplayOptions::default()).unwrap();
        let trace = Reader::new(Lines { rng: SplitMix64::new(2), left: 400_000, line: Vec::new() }, None, false);
        let (mut early, mut requests) = (0, 0);
        HEAP.reset_peak_usage();
        for request in trace.unwrap() {
            let request = request.unwrap();
            replay.request(request.at, request.op, request.offset, request.bytes).unwrap();
            requests += 1;
            if requests == 100_000 {
                early = HEAP.peak_usage();
            }
        }
        let grown = HEAP.peak_usage() - early;
        assert_eq!(requests, 400_000);
        assert!(grown < 64 << 10, "{}: {grown} bytes more after four times as many requests", layer.name);
    }
}
