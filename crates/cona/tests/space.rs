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
/// indexes, logs of four buffers, and what deletes hide that are in a buffer.
fn bound(options: &Options, live: u64, store: &Stats) -> u64 {
    let cells = (100 + FOLD_PERCENT) * live / 100 * 8 / 7;
    let hidden = options.buffer_bytes.max(store.cell_file_bytes / 16);
    cells + hidden * (100 + FOLD_PERCENT) / 100 + LOGS_BUFFERS * options.buffer_bytes + (4 << 10)
}

/// Inserts, overwrites and deletes; after every hundred steps the store is at rest and its files are counted.
fn history(seed: u64) -> Result<(), String> {
    let mut rng = SplitMix64::new(seed);
    let (options, disk): (_, Arc<dyn Disk>) = (options(), Arc::new(SimDisk::new(0)));
    let store = open(&disk, &options);
    let (mut model, keys) = (Model::new(), 1000 + rng.below(2000));
    let value_bytes = [60, 250][rng.below(2) as usize];
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
fn deletes_that_free_nothing_are_caught() {
    let _guard = failpoint::activate("cona.deletes_weigh_nothing");
    assert!((0..10).any(|seed| history(seed).is_err()), "cona.deletes_weigh_nothing was not caught");
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
