//! P5: a disk that is full gets its garbage back. Compaction copies before it frees, so it needs room.

mod common;

use common::*;
use tessera_disk::{Disk, SimDisk};
use tessera_segment::*;

fn free_bytes(disk: &SimDisk) -> u64 {
    disk.space().unwrap().free_bytes
}

/// Takes all space but this, as another program would.
fn leave(disk: &SimDisk, bytes: u64) {
    let space = disk.space().unwrap();
    disk.set_capacity(space.capacity_bytes - space.free_bytes + bytes);
}

/// Deletes fragments and makes that durable.
fn delete_all(store: &SegmentStore, chunks: impl Iterator<Item = u64>) {
    chunks.for_each(|chunk| assert_eq!(delete(store, id(chunk, 0)).unwrap(), DeleteOutcome::Removed));
    store.sync().unwrap();
}

/// Compacts as a garbage collection does, until nothing more is due.
fn collect(store: &SegmentStore) -> Result<CompactReport, StoreError> {
    store.seal_dead(10)?;
    let mut sum = CompactReport::default();
    loop {
        let step = store.compact_step(10, 20_000)?;
        sum.moved_records += step.moved_records;
        sum.removed_segments += step.removed_segments;
        if !step.more {
            return Ok(sum);
        }
    }
}

/// Segments are no longer than the reserve allows, so the garbage of a disk that was filled is freed.
#[test]
fn a_disk_that_is_full_gives_its_garbage_back() {
    const RESERVE: u64 = 400_000;
    let disk = sim(1);
    disk.set_capacity(4_000_000);
    let store = open(&disk, Options { reserve_bytes: RESERVE, ..Options::default() }).unwrap().0;
    let mut full = 0;
    while put(&store, id(full, 0), 5_000).is_ok() {
        full += 1;
    }
    store.sync().unwrap();
    delete_all(&store, (0..full).step_by(2));
    let dead_bytes = store.stats().dead_bytes;
    assert!(dead_bytes > 1_700_000, "{dead_bytes}");
    collect(&store).unwrap();
    assert!(free_bytes(&disk) > RESERVE + dead_bytes * 8 / 10, "{} free of {dead_bytes} dead", free_bytes(&disk));
    assert_eq!(held(&store).len() as u64, full / 2);
    put(&store, id(full, 0), 1_000_000).unwrap();
}

/// A store whose segments are longer than what is free, as with a reserve that was smaller when they were written.
#[test]
fn what_does_not_fit_is_not_begun_and_goes_once_it_fits() {
    let disk = sim(1);
    let store = open(&disk, Options { segment_size_bytes: 100_000, ..small() }).unwrap().0;
    // Two segments, and the open one.
    (0..40).for_each(|chunk| assert!(put(&store, id(chunk, 0), 4_500).is_ok()));
    store.sync().unwrap();
    assert_eq!(store.stats().segments, 2);
    leave(&disk, 30_000);
    delete_all(&store, (0..40).step_by(2));
    for _ in 0..3 {
        let before = free_bytes(&disk);
        let error = collect(&store).unwrap_err();
        assert!(matches!(error, StoreError::NoRoomToCompact { .. }) && error.is_no_space(), "{error}");
        assert!(free_bytes(&disk) + SEGMENT_HEADER_BYTES >= before, "no copies that free nothing");
    }
    // The first segment gets few live fragments, so it fits; what it frees lets the other go.
    delete_all(&store, (5..20).step_by(2));
    assert!(collect(&store).unwrap().removed_segments >= 2);
    assert_eq!(held(&store).len(), 12);
    assert!(free_bytes(&disk) > 120_000, "{}", free_bytes(&disk));
}

/// Space that runs out between two copies stops that segment, not the others, and no record is copied twice.
#[test]
fn space_that_runs_out_in_mid_copy_does_not_block_what_needs_none() {
    let disk = sim(1);
    let options = Options { segment_size_bytes: 60_000, compact_buffer_bytes: 1, ..small() };
    let store = open(&disk, options).unwrap().0;
    (0..10).for_each(|chunk| assert!(put(&store, id(chunk, 0), 5_000).is_ok()));
    put(&store, id(10, 0), 50_000).unwrap();
    put(&store, id(11, 0), 10_000).unwrap();
    store.sync().unwrap();
    delete_all(&store, (0..10).step_by(2));
    let step = store.compact_step(10, 1).unwrap();
    assert_eq!((step.moved_records, step.removed_segments, step.more), (1, 0, true));

    leave(&disk, 500);
    for _ in 0..2 {
        assert!(store.compact_step(10, u64::MAX).unwrap_err().is_no_space());
    }
    delete_all(&store, std::iter::once(10));
    let step = store.compact_step(10, u64::MAX).unwrap();
    assert_eq!((step.moved_records, step.removed_segments), (4, 2), "the dead one, then the rest of the other");
    assert_eq!(held(&store).len(), 6);
    assert!(free_bytes(&disk) > 75_000, "{}", free_bytes(&disk));
}
