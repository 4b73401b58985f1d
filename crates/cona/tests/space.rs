//! Disk use at rest is bounded by what lives, whatever was overwritten and deleted (P5).

mod common;

use std::sync::Arc;

use common::*;
use tessera_cona::*;
use tessera_disk::{Disk, SimDisk, SplitMix64};
use tessera_failpoint as failpoint;

/// The fold percentage of these stores.
const FOLD_PERCENT: u64 = 50;
/// The log of the buffer that is being filled: four times a buffer, and the step by which it grows.
const LOGS_BUFFERS: u64 = 5;

fn options() -> Options {
    Options { shape: Shape::Folded { growth: 4, fold_percent: FOLD_PERCENT as u32 }, ..small() }
}

fn used(disk: &Arc<dyn Disk>) -> u64 {
    let space = disk.space().unwrap();
    space.capacity_bytes - space.free_bytes
}

/// Bytes of a store at rest must stay below: what README.md says, with a seventh for pages that are not full and the
/// indexes, a quarter for values that are dead and apart from their keys, the log, and what deletes hide that are in the
/// buffer.
fn bound(options: &Options, live: u64, stats: &Stats) -> u64 {
    let cells = (100 + FOLD_PERCENT) * live / 100;
    let waste = if stats.value_file_bytes > 0 { cells / 4 + cells / 16 } else { cells / 7 };
    let hidden = options.buffer_bytes.max((stats.cell_file_bytes + stats.value_file_bytes) / 16);
    cells + waste + hidden * (100 + FOLD_PERCENT) / 100 + LOGS_BUFFERS * options.buffer_bytes + (4 << 10)
}

/// Inserts, overwrites and deletes; after every hundred steps the store is at rest and its files are counted.
fn history(seed: u64) -> Result<(), String> {
    let mut rng = SplitMix64::new(seed);
    let (options, disk): (_, Arc<dyn Disk>) = (options(), Arc::new(SimDisk::new(0)));
    let store = open(&disk, &options);
    let (mut model, keys) = (Model::new(), 1000 + rng.below(2000));
    let value_bytes = [60, 250, 900, 3000][rng.below(4) as usize];
    // Eras that only insert, only delete, or mix: shares of deletes in percent.
    for era in 0..6 {
        let deletes = [0, 100, 50, 90][if era == 0 { 0 } else { rng.below(4) as usize }];
        for step in 0..if era == 0 { 2 * keys } else { keys / 2 } {
            let key = rng.below(keys).to_be_bytes().to_vec();
            if rng.below(100) < deletes {
                store.delete(&key).unwrap();
                model.remove(&key);
            } else {
                let value = vec![step as u8; value_bytes];
                store.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            if step % 100 == 0 {
                store.settle().unwrap();
                let live: usize = model.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
                let (stats, used) = (store.stats(), used(&disk));
                let most = bound(&options, live as u64, &stats);
                if used > most {
                    return Err(format!("seed {seed}, era {era}: {used} bytes for {live}, at most {most}: {stats:?}"));
                }
            }
        }
    }
    assert_eq!(all(store.range(..).unwrap()).unwrap(), model);
    Ok(())
}

#[test]
fn a_store_at_rest_takes_bounded_space() {
    for seed in 0..40 {
        history(seed).unwrap();
    }
}

#[test]
fn deletes_and_values_that_free_nothing_are_caught() {
    for mistake in ["cona.deletes_weigh_nothing", "cona.dead_values_stay"] {
        let _guard = failpoint::activate(mistake);
        assert!((0..10).any(|seed| history(seed).is_err()), "{mistake} was not caught");
    }
}

/// Values of a page and more take little more than their bytes, and are written few times.
#[test]
fn large_values_take_their_bytes_and_little_memory() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let options = Options { page_bytes: 4096, buffer_bytes: 64 << 10, apart_bytes: 1024, ..options() };
    let store = open(&disk, &options);
    let (count, bytes) = (2000_u32, 4096);
    let scattered = |n: u32| n.wrapping_mul(0x9e37_79b1).to_be_bytes();
    (0..count).for_each(|n| store.put(&scattered(n), &vec![n as u8; bytes]).unwrap());
    store.flush().unwrap();
    store.settle().unwrap();
    let (stats, live) = (store.stats(), u64::from(count) * (bytes as u64 + 4));
    assert!(used(&disk) < live * 103 / 100, "{} bytes for {live}", used(&disk));
    assert!(stats.bytes_per_record() < 2.0, "{} bytes of index and filter a record", stats.bytes_per_record());
    assert!(stats.write_amplification() < 3.5, "{} bytes written a byte", stats.write_amplification());
    assert!(stats.value_files < 20 && stats.value_dead_bytes == 0, "{stats:?}");
    (0..count).filter(|n| n % 3 > 0).for_each(|n| store.put(&scattered(n), b"small").unwrap());
    store.compact().unwrap();
    let stats = store.stats();
    assert!(stats.value_dead_bytes == 0 && used(&disk) < live * 2 / 5, "{stats:?}");
    assert_eq!(store.get(&scattered(3)).unwrap(), Some(vec![3; bytes]));
    assert!(store.verify().damage.is_empty());
}

/// Two records of five are deleted, in no order: the store returns their space although the deletes are few bytes.
#[test]
fn deleting_two_fifths_returns_their_space() {
    let (options, disk): (_, Arc<dyn Disk>) = (options(), Arc::new(SimDisk::new(0)));
    let store = open(&disk, &options);
    let count = 4000_u32;
    let scattered = |n: u32| n.wrapping_mul(0x9e37_79b1).to_be_bytes();
    (0..count).for_each(|n| store.put(&scattered(n), &[n as u8; 200]).unwrap());
    store.compact().unwrap();
    let full = used(&disk);
    (0..count).filter(|n| n % 5 < 2).for_each(|n| store.delete(&scattered(n)).unwrap());
    store.settle().unwrap();
    assert!(used(&disk) < full * 3 / 5 * 3 / 2 * 9 / 10, "{} of {full} bytes are used", used(&disk));
}

/// Deletes of keys that are not there free nothing and make no cells, however large the values are that are there. Under
/// a shape without a bound on space no deletes do.
#[test]
fn deletes_that_hide_nothing_do_not_flush() {
    for (shape, present) in
        [(options().shape, false), (Shape::Doubling { growth: 2 }, false), (Shape::Doubling { growth: 2 }, true)]
    {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
        let options = Options { buffer_bytes: 64 << 10, shape, ..options() };
        let store = open(&disk, &options);
        let key = |n: u32| [&n.wrapping_mul(0x9e37_79b1).to_be_bytes()[..], b"key"].concat();
        (0..200).for_each(|n| store.put(&key(n), &vec![n as u8; 16 << 10]).unwrap());
        store.compact().unwrap();
        let before = store.stats().flushes;
        (0..200).for_each(|n| store.delete(&key(if present { n } else { 1000 + n })).unwrap());
        let flushes = store.stats().flushes - before;
        assert!(flushes <= 1, "{flushes} flushes with {shape:?}, keys present: {present}");
    }
}

/// Deletes of keys that are not there bring on no fold: they free nothing. Those of keys that are there do, in whatever
/// cell the records are.
#[test]
fn deletes_that_hide_nothing_bring_on_no_fold() {
    for present in [false, true] {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
        let store = open(&disk, &Options { buffer_bytes: 64 << 10, ..options() });
        let key = |n: u32| n.wrapping_mul(0x9e37_79b1).to_be_bytes();
        (0..4000).for_each(|n| store.put(&key(n), &[n as u8; 200]).unwrap());
        store.compact().unwrap();
        let full = used(&disk);
        (4000..5000).for_each(|n| store.put(&key(n), &[n as u8; 200]).unwrap());
        store.flush().unwrap();
        store.settle().unwrap();
        let before = store.stats();
        assert!(before.cells.len() > 1, "{before:?}");
        (0..3000).for_each(|n| store.delete(&key(if present { 2500 + n } else { 10_000 + n })).unwrap());
        store.flush().unwrap();
        store.settle().unwrap();
        let stats = store.stats();
        let written = stats.written_cell_bytes - before.written_cell_bytes;
        assert_eq!(written > before.cell_file_bytes / 2, present, "{written} bytes were written: {stats:?}");
        assert!(!present || used(&disk) < full, "{} of {full} bytes are used", used(&disk));
    }
}

/// A few dead values among many small records do not have the pages written anew once more after every fold.
#[test]
fn few_dead_values_bring_on_no_merge_of_all_pages() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let store = open(&disk, &Options { buffer_bytes: 64 << 10, page_bytes: 4096, apart_bytes: 1024, ..options() });
    let key = |n: u32| n.wrapping_mul(0x9e37_79b1).to_be_bytes();
    (0..4000).for_each(|n| store.put(&key(n), &[n as u8; 200]).unwrap());
    (4000..4004).for_each(|n| store.put(&key(n), &[n as u8; 2000]).unwrap());
    store.compact().unwrap();
    let before = store.stats();
    (4000..4002).for_each(|n| store.put(&key(n), &[1; 2000]).unwrap());
    (0..2200).for_each(|n| store.put(&key(n), &[1; 200]).unwrap());
    store.settle().unwrap();
    let stats = store.stats();
    assert!(stats.cells.len() == 1 && stats.value_dead_bytes == 4000, "a fold has left dead values: {stats:?}");
    let written = stats.written_cell_bytes - before.written_cell_bytes;
    let most = before.cell_file_bytes * 5 / 2;
    assert!(written < most, "{written} bytes were written, at most {most}");
    store.compact().unwrap();
    assert_eq!(store.stats().value_dead_bytes, 0);
}
