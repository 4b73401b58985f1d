//! The index on flash answers as the one in memory does, in a store's whole life, on a full disk, and in little memory.

mod common;

use std::sync::Arc;

use common::*;
use tessera_disk::{Disk, MemDisk, SimDisk, SplitMix64};
use tessera_segment::*;

fn entry(id: FragmentId, rng: &mut SplitMix64) -> Entry {
    Entry {
        id,
        pg_id: rng.below(100),
        sequence: rng.next_u64(),
        segment: rng.below(1 << 40),
        offset: rng.below(1 << 30),
        groups_len: rng.below(4096) as u32,
        data_len: rng.below(1 << 24) as u32,
        groups_crc: rng.next_u64() as u32,
        data_crc: rng.next_u64() as u32,
    }
}

fn same(flash: &ConaIndex, memory: &MemIndex, rng: &mut SplitMix64) {
    assert_eq!(flash.len(), memory.len());
    let after = (rng.below(3) > 0).then(|| FragmentId { chunk_id: rng.below(400), fragment: rng.below(4) as u16 });
    let limit = [1, 7, 100, usize::MAX][rng.below(4) as usize];
    assert_eq!(flash.list(after, limit), memory.list(after, limit));
}

fn step(flash: &ConaIndex, memory: &MemIndex, rng: &mut SplitMix64) {
    let id = FragmentId { chunk_id: rng.below(400), fragment: rng.below(4) as u16 };
    match rng.below(10) {
        0..=2 => assert_eq!(flash.remove(id), memory.remove(id)),
        3 | 4 => assert_eq!(flash.get(id), memory.get(id)),
        _ => {
            let entry = entry(id, rng);
            assert_eq!(flash.insert(entry), memory.insert(entry));
        }
    }
}

#[test]
fn it_answers_as_the_index_in_memory_does() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let (flash, memory) = (ConaIndex::create_inline(disk, 8192).unwrap(), MemIndex::default());
    let mut rng = SplitMix64::new(1);
    for n in 0..20_000 {
        step(&flash, &memory, &mut rng);
        if n % 50 == 0 {
            same(&flash, &memory, &mut rng);
        }
    }
    assert!(flash.stats().merges > 5);
}

/// A full disk refuses the index's writes too: nothing is forgotten.
#[test]
fn a_full_disk_loses_no_entry() {
    let disk = SimDisk::new(2);
    let (flash, memory) = (ConaIndex::create_inline(Arc::new(disk.clone()), 8192).unwrap(), MemIndex::default());
    let mut rng = SplitMix64::new(3);
    for n in 0..6_000_u64 {
        disk.set_capacity(if n / 500 % 2 == 1 { 10_000 } else { 1 << 30 });
        step(&flash, &memory, &mut rng);
        if n % 25 == 0 {
            same(&flash, &memory, &mut rng);
        }
    }
}

/// Losing the index costs a scan: what an earlier one left is removed, and the segments tell all.
#[test]
fn it_is_made_anew_from_the_segments() {
    let disk = sim(4);
    let options = || Options { segment_size_bytes: 100_000, reserve_bytes: 0, ..Options::default() };
    let mut expected = Vec::new();
    for round in 0..3_u64 {
        let handle: Arc<dyn Disk> = Arc::new(disk.clone());
        let index = Box::new(ConaIndex::create_inline(handle.clone(), 8192).unwrap());
        let (store, report) = SegmentStore::open_with_index(handle, options(), index, &mut |_| {}).unwrap();
        assert!(report.findings.is_empty() && store.list(None, usize::MAX) == expected, "round {round}");
        for chunk in round * 200..round * 200 + 200 {
            put(&store, id(chunk + 1, 0), 300).unwrap();
        }
        store.sync().unwrap();
        for chunk in (round * 200..round * 200 + 200).step_by(3) {
            delete(&store, id(chunk + 1, 0)).unwrap();
        }
        store.sync().unwrap();
        expected = store.list(None, usize::MAX);
        assert_eq!(expected.len() as u64, (round + 1) * 133);
        assert!(store.stats().index_bytes > 0);
    }
}

#[test]
fn a_fragment_takes_about_a_byte_of_memory() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let index = ConaIndex::create(disk).unwrap();
    let mut rng = SplitMix64::new(5);
    for n in 0..150_000_u64 {
        index.insert(entry(FragmentId { chunk_id: n / 2, fragment: (n % 2) as u16 * 3 }, &mut rng));
    }
    index.settle().unwrap();
    let before = index.stats();
    for n in (0..150_000_u64).step_by(7) {
        assert!(index.get(FragmentId { chunk_id: n / 2, fragment: (n % 2) as u16 * 3 }).is_some());
    }
    let after = index.stats();
    let reads = (after.page_reads - before.page_reads) as f64 / (after.lookups - before.lookups) as f64;
    let bytes = index.memory_bytes() as f64 / 150_000.0;
    assert!(bytes < 1.5 && reads <= 1.02, "{bytes} B a fragment, {reads} reads a look-up");
}
