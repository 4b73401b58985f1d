//! Concurrent readers, writers and scans, while the store's own threads flush and merge.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::*;
use tessera_cona::*;
use tessera_disk::{Disk, SimDisk};

fn threaded(threads: u32) -> Options {
    Options { background: Background::Threads(threads), buffer_bytes: 16 << 10, cache_bytes: 64 << 10, ..small() }
}

fn pair(n: u64) -> ([u8; 9], [u8; 9]) {
    let key = |side: u8| {
        let mut key = [side; 9];
        key[1..].copy_from_slice(&(n * 7919 % 400).to_be_bytes());
        key
    };
    (key(b'a'), key(b'b'))
}

/// The two keys of a pair are always written together with one value. No reader may see them differ, and no reader may
/// see an older value than before.
#[test]
fn readers_see_whole_batches_and_never_go_back() {
    for threads in [1, 3] {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
        let store = Arc::new(open(&disk, &threaded(threads)));
        let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let number = |v: Option<Vec<u8>>| v.map_or(0, |v| u64::from_le_bytes(v[..8].try_into().unwrap()));
        std::thread::scope(|scope| {
            for reader in 0..2_u64 {
                let (store, written, stop) = (store.clone(), written.clone(), stop.clone());
                scope.spawn(move || {
                    let mut n = reader;
                    while !stop.load(Ordering::Acquire) {
                        n += 1;
                        let (a, b) = pair(n);
                        let before = written.load(Ordering::Acquire);
                        let snapshot = store.snapshot();
                        let (left, right) = (number(snapshot.get(&a).unwrap()), number(snapshot.get(&b).unwrap()));
                        assert_eq!(left, right, "half a batch of pair {n}");
                        let now = number(store.get(&a).unwrap());
                        assert!(now >= left, "pair {n} went back from {left} to {now}");
                        let mut scan = snapshot.range_at_most(&a[..].., 3).unwrap();
                        if let Some((key, value)) = scan.next_record().unwrap().filter(|(key, _)| *key == a) {
                            assert_eq!(
                                number(Some(value.to_vec())),
                                left,
                                "a scan of {key:?} differs from its snapshot"
                            );
                        } else {
                            assert_eq!(left, 0, "a scan misses pair {n}");
                        }
                        if n.is_multiple_of(64) {
                            let all = all(snapshot.range(..).unwrap()).unwrap();
                            assert_eq!(all.len() % 2, 0, "half a batch in a scan");
                            assert!(all.len() as u64 >= before.min(300), "{} of {before}", all.len());
                        }
                    }
                });
            }
            for n in 1..12_000_u64 {
                let (a, b) = pair(n);
                let value = [&n.to_le_bytes()[..], &[7; 60]].concat();
                let mut batch = Batch::new();
                batch.put(&a, &value).put(&b, &value);
                store.write(batch).unwrap();
                written.store(n, Ordering::Release);
            }
            stop.store(true, Ordering::Release);
        });
        store.settle().unwrap();
        let stats = store.stats();
        assert!(stats.flushes > 20 && stats.merges > 3, "{stats:?}");
        assert!(store.verify().damage.is_empty());
        assert_eq!(all(store.range(..).unwrap()).unwrap().len(), 800);
    }
}

/// Many writers with `Durability::Sync` share syncs, and each finds its own write complete.
#[test]
fn writers_together_lose_nothing() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let store = Arc::new(open(&disk, &Options { durability: Durability::Sync, ..threaded(1) }));
    std::thread::scope(|scope| {
        for writer in 0..6_u32 {
            let store = store.clone();
            scope.spawn(move || {
                for n in 0..600_u32 {
                    let key = [writer.to_be_bytes(), n.to_be_bytes()].concat();
                    store.put(&key, &[writer as u8; 50]).unwrap();
                    assert!(store.get(&key).unwrap().is_some());
                }
            });
        }
    });
    drop(store);
    let store = open(&disk, &small());
    assert_eq!(all(store.range(..).unwrap()).unwrap().len(), 3600);
}

/// A backup taken during writes is the store at one moment.
#[test]
fn a_checkpoint_is_one_moment() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let store = Arc::new(open(&disk, &threaded(1)));
    let write = |n: u64| {
        let (a, b) = pair(n);
        let mut batch = Batch::new();
        batch.put(&a, &[n as u8; 90]).put(&b, &[n as u8; 90]);
        store.write(batch).unwrap();
    };
    (0..3000).for_each(write);
    let copies: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    std::thread::scope(|scope| {
        let (store, copies) = (store.clone(), copies.clone());
        let copier = scope.spawn(move || (0..3).for_each(|i| store.checkpoint(&copies, &format!("copy{i}")).unwrap()));
        (3000..6000).for_each(write);
        copier.join().unwrap();
    });
    for i in 0..3 {
        let copy = Store::open_on(copies.clone(), &format!("copy{i}"), small()).unwrap();
        let records = all(copy.range(..).unwrap()).unwrap();
        assert_eq!(records.len(), 800);
        for n in 0..400 {
            let (a, b) = pair(n);
            assert_eq!(records[&a[..]], records[&b[..]], "half a batch in copy {i}");
        }
        assert!(copy.verify().damage.is_empty());
    }
    let error = store.checkpoint(&copies, "copy0").unwrap_err();
    assert!(matches!(error, Error::AlreadyThere { .. }), "{error}");
}

/// A buffer that gets writes of one key never fills; its log must not grow without bound.
#[test]
fn one_key_overwritten_for_ever_takes_bounded_space() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let store = open(&disk, &small());
    let most = (0..3000_u32).map(|n| {
        store.put(b"counter", &[n as u8; 100]).unwrap();
        let space = disk.space().unwrap();
        space.capacity_bytes - space.free_bytes
    });
    let (most, log_bytes) = (most.max().unwrap(), store.stats().log_bytes);
    assert!(most < 64 << 10 && log_bytes > 400 << 10, "{most} bytes were used, {log_bytes} written");
    drop(store);
    assert_eq!(open(&disk, &small()).get(b"counter").unwrap(), Some(vec![2999_u32 as u8; 100]));
}

/// Tiny buffers make cells faster than one thread merges them. Writers then wait, and cells do not pile up.
#[test]
fn cells_stay_few_whatever_the_buffers() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let shape = Shape::Doubling { growth: 2 };
    let store = open(&disk, &Options { buffer_bytes: 4096, shape, volatile: true, ..threaded(1) });
    let most = (0..30_000_u64).map(|n| {
        store.put(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &[1; 100]).unwrap();
        if n.is_multiple_of(64) { store.stats().cells.len() } else { 0 }
    });
    let most = most.max().unwrap();
    assert!(most <= 140, "{most} cells");
    store.flush().unwrap();
    store.settle().unwrap();
    let stats = store.stats();
    assert!(stats.cells.len() < 16 && stats.merged_records > 30_000 && stats.merge_us > 0, "{stats:?}");
}

/// A snapshot keeps the files of its cells. Dropping it frees them, and disk use stays within what the README says.
#[test]
fn space_comes_back_when_readers_let_go() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let store = open(&disk, &small());
    let used = || {
        let s = disk.space().unwrap();
        s.capacity_bytes - s.free_bytes
    };
    let fill = |round: u8| (0..2000_u32).for_each(|n| store.put(&n.to_be_bytes(), &[round; 100]).unwrap());
    fill(1);
    let snapshot = store.snapshot();
    (2..6).for_each(fill);
    store.compact().unwrap();
    let held = used();
    assert_eq!(snapshot.get(&7_u32.to_be_bytes()).unwrap().as_deref(), Some(&[1; 100][..]));
    drop(snapshot);
    store.compact().unwrap();
    let live = 2000 * 104;
    assert!(held > live * 2 && used() < live * 5 / 4, "{held} held, {} used for {live}", used());
    let mut most = 0;
    for round in 0..10 {
        fill(round);
        most = most.max(used());
    }
    assert!(most < live * 4, "{most} bytes were used for {live}");
    (0..2000_u32).for_each(|n| store.delete(&n.to_be_bytes()).unwrap());
    store.flush().unwrap();
    store.settle().unwrap();
    assert!(used() < live / 2, "{} bytes are used after everything was deleted", used());
}
