//! A disk without room: background work waits before it tries again, frees what it can, and begins nothing that cannot
//! end.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use tessera_cona::*;
use tessera_disk::{Disk, SimDisk};

fn used(sim: &SimDisk) -> u64 {
    let space = sim.space().unwrap();
    space.capacity_bytes - space.free_bytes
}

fn open_sim(sim: &SimDisk, options: &Options) -> Store {
    open(&(Arc::new(sim.clone()) as Arc<dyn Disk>), options)
}

/// Puts so many keys of one kind, with values of 1,000 bytes.
fn fill(store: &Store, kind: u8, keys: u16, round: u8) {
    (0..keys).for_each(|n| store.put(&[&[kind][..], &n.to_be_bytes()].concat(), &[round; 1000]).unwrap());
}

/// Nothing of this is logged, so that only cells take room; nothing is flushed unasked.
fn unlogged(shape: Shape, apart_bytes: u64) -> Options {
    Options { logged: false, buffer_bytes: 1 << 20, shape, apart_bytes, ..small() }
}

/// Two cells of one level are merged in the second shape, not in the first.
const FEW_MERGES: Shape = Shape::Doubling { growth: 8 };
const MANY_MERGES: Shape = Shape::Doubling { growth: 2 };

/// A flush or a merge that fails is tried again after some time, not at once, and at once if a caller asks.
#[test]
fn failed_work_is_not_tried_without_pause() {
    let threads = Options { background: Background::Threads(2), ..unlogged(FEW_MERGES, u64::MAX) };
    for flush in [true, false] {
        let sim = SimDisk::new(0);
        let store = open_sim(&sim, &threads);
        for round in 0..3 {
            fill(&store, b'a', 48, round);
            store.flush().unwrap();
        }
        drop(store);
        sim.set_capacity(used(&sim) + 100);
        let store = open_sim(&sim, &Options { shape: if flush { FEW_MERGES } else { MANY_MERGES }, ..threads.clone() });
        if flush {
            fill(&store, b'b', 48, 9);
            store.flush_soon().unwrap();
        }
        while store.stats().failure.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = sim.io_count();
        std::thread::sleep(Duration::from_millis(300));
        let tried = sim.io_count() - before;
        assert!(tried < 400, "{tried} disk operations in 0.3 s, flush: {flush}");
        assert!(store.settle().is_err_and(|error| error.is_no_space()));
        sim.set_capacity(1 << 30);
        store.settle().unwrap();
        let stats = store.stats();
        assert!(stats.failure.is_none() && stats.cells.len() == if flush { 4 } else { 2 }, "{stats:?}");
    }
}

/// A merge frees the space that a flush lacks.
#[test]
fn merges_go_on_while_a_flush_fails() {
    for background in [Background::Inline, Background::Threads(1)] {
        let sim = SimDisk::new(0);
        let store = open_sim(&sim, &unlogged(FEW_MERGES, u64::MAX));
        for round in 0..4 {
            fill(&store, b'a', 48, round);
            store.flush().unwrap();
        }
        drop(store);
        // Cells of 48 records become one, two at a time; 190 records have room only after all of that.
        sim.set_capacity(used(&sim) + (60 << 10));
        let store = open_sim(&sim, &Options { background, ..unlogged(MANY_MERGES, u64::MAX) });
        fill(&store, b'b', 190, 9);
        store.flush_soon().unwrap();
        let begun = Instant::now();
        while store.stats().buffer_records > 0 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        store.flush().unwrap();
        assert_eq!(store.stats().cells.len(), 2);
    }
}

/// Values are not written anew without room for them; the merge of the pages goes on without.
#[test]
fn no_relocation_begins_without_room() {
    let sim = SimDisk::new(0);
    let store = open_sim(&sim, &unlogged(Options::default().shape, 64));
    fill(&store, b'a', 200, 1);
    store.compact().unwrap();
    sim.set_capacity(used(&sim) + (150 << 10));
    fill(&store, b'a', 120, 2);
    store.settle().unwrap();
    store.flush().unwrap();
    store.settle().unwrap();
    let (stats, free) = (store.stats(), sim.space().unwrap().free_bytes);
    assert!(stats.cells.len() == 1 && stats.value_dead_bytes == 120_000 && free < 80_000, "{stats:?}");
    assert!(store.compact().is_err_and(|error| error.is_no_space()), "dead values are left");
    sim.set_capacity(1 << 30);
    store.settle().unwrap();
    let stats = store.stats();
    assert!(stats.value_dead_bytes == 0 && stats.cells.len() == 1, "{stats:?}");
    assert!(store.verify().damage.is_empty());
}

/// Compacting fails if the merge fails that is to leave one cell, wherever that runs.
#[test]
fn a_compaction_without_room_says_so() {
    for background in [Background::Inline, Background::Threads(1), Background::Threads(3)] {
        let sim = SimDisk::new(0);
        let store = open_sim(&sim, &Options { background, ..unlogged(FEW_MERGES, u64::MAX) });
        for round in 0..2 {
            fill(&store, b'a', 48, round);
            store.flush().unwrap();
        }
        sim.set_capacity(used(&sim) + 100);
        for _ in 0..3 {
            let done = store.compact();
            assert!(done.as_ref().is_err_and(Error::is_no_space), "{done:?}, {:?}", store.stats());
        }
        sim.set_capacity(1 << 30);
        assert_eq!(store.compact().unwrap().cells, (2, 1));
    }
}

/// Only what a flush itself lacks fails it, and a failure of a merge is forgotten once a merge ends well.
#[test]
fn a_failed_merge_fails_no_flush_and_is_forgotten() {
    for background in [Background::Inline, Background::Threads(1)] {
        let sim = SimDisk::new(0);
        let store = open_sim(&sim, &unlogged(FEW_MERGES, u64::MAX));
        for round in 0..3 {
            fill(&store, b'a', 48, round);
            store.flush().unwrap();
        }
        drop(store);
        // There is room for 8 records, but not for a merge.
        sim.set_capacity(used(&sim) + (20 << 10));
        let store = open_sim(&sim, &Options { background, ..unlogged(MANY_MERGES, u64::MAX) });
        fill(&store, b'b', 8, 9);
        store.flush().unwrap();
        assert!(store.settle().is_err_and(|error| error.is_no_space()));
        assert_eq!((store.stats().failure.is_some(), store.stats().buffer_records), (true, 0));
        sim.set_capacity(1 << 30);
        if background == Background::Inline {
            fill(&store, b'c', 1, 9);
            store.flush_soon().unwrap();
        }
        let begun = Instant::now();
        while store.stats().failure.is_some() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(store.stats().failure, None);
    }
}
