//! Behaviour of a segment store, one behaviour per test.

mod common;

use common::*;
use tessera_disk::{CrashKind, Disk, DiskError, Fault, Identity, OpenMode, RealDisk, SimDisk};
use tessera_segment::*;

#[test]
fn fragments_are_held_once_synced_and_found_again_after_a_restart() {
    let disk = sim(1);
    let (store, report) = opened(&disk);
    assert_eq!(report, OpenReport::default());
    for chunk in 0..20 {
        assert!(matches!(put(&store, id(chunk, 1), 100 * chunk as usize).unwrap(), AppendOutcome::Written(_)));
    }
    assert!(store.get(id(19, 1)).unwrap().is_none(), "not synced, not visible");
    store.sync().unwrap();
    let want: Vec<_> = (0..20).map(|c| (id(c, 1), 100 * c as usize)).collect();
    assert_eq!(held(&store), want);
    assert!(store.stats().segments > 2);
    let (store, report) = opened(&disk.crash(CrashKind::KeepNone));
    assert_eq!(held(&store), want);
    assert_eq!((report.records, report.fragments, report.findings.len()), (20, 20, 0));
    assert_eq!(report.torn_tail, None);
}

#[test]
fn the_header_tells_everything_about_the_chunk() {
    let (store, _) = opened(&sim(1));
    put(&store, id(1, 2), 10).unwrap();
    store.sync().unwrap();
    let header = store.get(id(1, 2)).unwrap().unwrap().read_header().unwrap();
    assert_eq!((header.kind, header.meta), (RecordKind::Fragment, meta(8)));
    assert_eq!((header.data_len, header.groups_len), (10, 32));
}

#[test]
fn ranges_are_read_and_those_past_the_end_refused() {
    let (store, _) = opened(&sim(1));
    put(&store, id(1, 0), 100).unwrap();
    store.sync().unwrap();
    let handle = store.get(id(1, 0)).unwrap().unwrap();
    let mut buf = [0; 10];
    handle.read_data(90, &mut buf).unwrap();
    assert_eq!(buf[..], data_of(id(1, 0), 100)[90..]);
    for offset in [91, u64::MAX] {
        assert!(matches!(handle.read_data(offset, &mut buf), Err(StoreError::Range { .. })));
    }
}

/// P8: a put that is sent twice takes effect once.
#[test]
fn the_same_fragment_twice_is_written_once() {
    let (store, _) = opened(&sim(1));
    let first = put(&store, id(1, 0), 100).unwrap();
    let AppendOutcome::Written(entry) = first else { panic!("{first:?}") };
    assert_eq!(put(&store, id(1, 0), 100).unwrap(), AppendOutcome::AlreadyHeld(entry));
    store.sync().unwrap();
    assert_eq!(put(&store, id(1, 0), 100).unwrap(), AppendOutcome::AlreadyHeld(entry));
    assert!(matches!(put(&store, id(1, 0), 101).unwrap(), AppendOutcome::Conflict { .. }));
    assert_eq!(store.stats().unsynced_records, 0);
    let data = data_of(id(2, 0), 5);
    let record = Record {
        id: id(2, 0),
        meta: meta(1),
        groups: &[],
        data: &data,
        data_crc: tessera_accel::checksum::crc32c(&data),
    };
    let other = Record { data: &data[1..], ..record };
    let outcomes = store.append(&[record, record, other]).unwrap();
    assert!(
        matches!(outcomes[..], [AppendOutcome::Written(a), AppendOutcome::AlreadyHeld(b), AppendOutcome::Conflict { .. }] if a == b)
    );
}

/// P2: bytes with the same checksum, but of a chunk of another name, are not the fragment that is held.
#[test]
fn a_checksum_alone_does_not_make_the_same_fragment() {
    let (store, _) = opened(&sim(1));
    let data = data_of(id(1, 0), 5);
    let data_crc = tessera_accel::checksum::crc32c(&data);
    let record = Record { id: id(1, 0), meta: meta(1), groups: &[], data: &data, data_crc };
    let named = RecordMeta { chunk_hash: [9; 32], ..meta(1) };
    let renamed = Record { meta: named, ..record };
    let is_conflict = |outcome: &AppendOutcome| matches!(outcome, AppendOutcome::Conflict { .. });
    assert!(is_conflict(&store.append(&[record, renamed]).unwrap()[1]), "in one batch");
    assert!(is_conflict(&store.append(&[renamed]).unwrap()[0]), "before the sync");
    store.sync().unwrap();
    assert!(is_conflict(&store.append(&[renamed]).unwrap()[0]), "after the sync");
    assert!(!is_conflict(&store.append(&[record]).unwrap()[0]));
}

/// P3: a late put does not bring back a deleted fragment; a move that the manager ordered does.
#[test]
fn deleted_stays_deleted_but_a_repair_may_write_again() {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    put(&store, id(1, 0), 100).unwrap();
    store.sync().unwrap();
    assert_eq!(delete(&store, id(1, 0)).unwrap(), DeleteOutcome::Removed);
    assert_eq!(delete(&store, id(1, 0)).unwrap(), DeleteOutcome::NotHeld);
    assert_eq!(delete(&store, id(2, 0)).unwrap(), DeleteOutcome::NotHeld);
    assert!(store.get(id(1, 0)).unwrap().is_some(), "a delete, too, counts once it is synced");
    store.sync().unwrap();
    assert!(store.get(id(1, 0)).unwrap().is_none());
    let (store, _) = opened(&disk.crash(CrashKind::KeepNone));
    assert!(held(&store).is_empty());
    assert_eq!(put(&store, id(1, 0), 100).unwrap(), AppendOutcome::Deleted);
    assert!(matches!(put_session(&store, id(1, 0), 100, 0).unwrap(), AppendOutcome::Written(_)));
    store.sync().unwrap();
    assert_eq!(held(&store), [(id(1, 0), 100)]);
    assert_eq!(store.stats().deletes, 0);
}

/// P4, P11: a fragment that moved away and was removed may be put again under a newer epoch (otherwise no client could
/// complete a write into that group), and a late removal does not affect it.
#[test]
fn what_moved_away_comes_back_under_a_newer_epoch_only() {
    let disk = sim(1);
    let (mut store, _) = opened(&disk);
    let put = |store: &SegmentStore, epoch: u64| {
        let (data, id) = (data_of(id(1, 0), 100), id(1, 0));
        let record = Record {
            id,
            meta: RecordMeta { epoch, ..meta(8) },
            groups: &[],
            data: &data,
            data_crc: tessera_accel::checksum::crc32c(&data),
        };
        let outcome = store.append(&[record]).unwrap()[0];
        store.sync().unwrap();
        outcome
    };
    let remove = |store: &SegmentStore, epoch: u64| {
        let outcome = store.delete(&[DeleteOrder { id: id(1, 0), epoch }], 0).unwrap()[0];
        store.sync().unwrap();
        outcome
    };
    assert!(matches!(put(&store, 5), AppendOutcome::Written(_)));
    assert_eq!(remove(&store, 4), DeleteOutcome::NotHeld, "put again since");
    assert_eq!(remove(&store, 5), DeleteOutcome::Removed);
    for _ in 0..2 {
        assert_eq!(put(&store, 5), AppendOutcome::Deleted, "a late put");
        drop(store);
        store = opened(&disk.reopen()).0;
    }
    assert!(matches!(put(&store, 6), AppendOutcome::Written(_)));
    assert_eq!(remove(&store, 5), DeleteOutcome::NotHeld, "a late removal");
    assert_eq!(remove(&store, 0), DeleteOutcome::Removed);
    assert_eq!(put(&store, 7), AppendOutcome::Deleted, "the chunk is gone for good");
}

#[test]
fn a_handle_reads_on_while_compaction_removes_its_segment() {
    let (store, _) = opened(&sim(1));
    for chunk in 0..30 {
        put(&store, id(chunk, 0), 900).unwrap();
    }
    store.sync().unwrap();
    let handle = store.get(id(3, 0)).unwrap().unwrap();
    for chunk in (0..30).filter(|c| c % 10 != 3) {
        delete(&store, id(chunk, 0)).unwrap();
    }
    store.sync().unwrap();
    let before = store.stats();
    assert!(compact_all(&store).unwrap() >= 3);
    assert_ne!(store.get(id(3, 0)).unwrap().unwrap().entry(), handle.entry());
    assert_eq!(handle.read_verified().unwrap(), data_of(id(3, 0), 900));
    assert_eq!(held(&store).len(), 3);
    let after = store.stats();
    assert!(after.file_bytes < before.file_bytes / 2, "{before:?} {after:?}");
    assert_eq!(after.live_bytes, after.live_bytes.min(before.live_bytes));
}

/// P5: after everything is deleted and compacted, only the open segment is left.
#[test]
fn all_space_comes_back() {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    for round in 0..5 {
        for chunk in 0..30 {
            put(&store, id(round * 100 + chunk, 0), 900).unwrap();
        }
        store.sync().unwrap();
        for chunk in 0..30 {
            delete(&store, id(round * 100 + chunk, 0)).unwrap();
        }
        store.sync().unwrap();
        while compact_all(&store).unwrap() > 0 {}
    }
    let stats = store.stats();
    assert!(stats.segments <= 2, "{stats:?}");
    let reopened = opened(&disk.crash(CrashKind::KeepNone)).0;
    let again = reopened.stats();
    assert_eq!(
        (stats.live_bytes, stats.dead_bytes, stats.deletes),
        (again.live_bytes, again.dead_bytes, again.deletes)
    );
}

/// P5: a segment that is far from full frees its dead bytes on request, and without one once most of it is dead. Its
/// live records, and those that wait for a sync, stay.
#[test]
fn the_open_segment_is_sealed_when_it_is_asked_for_or_mostly_dead() {
    let disk = sim(1);
    let (store, _) = open(&disk, Options { segment_size_bytes: 1 << 20, ..small() }).unwrap();
    assert!(!store.seal_dead(0).unwrap(), "there is no segment yet");
    (0..10).for_each(|chunk| assert!(put(&store, id(chunk, 0), 1000).is_ok()));
    assert!(!store.seal_dead(0).unwrap(), "what waits for its sync is not dead");
    store.sync().unwrap();
    delete(&store, id(0, 0)).unwrap();
    store.sync().unwrap();
    assert_eq!(compact_all(&store).unwrap(), 0, "a tenth is not worth copying the rest unasked");

    assert!(!store.seal_dead(20).unwrap(), "a tenth is less than a fifth");
    assert!(store.seal_dead(0).unwrap());
    assert!(!store.compact_step(20, u64::MAX).unwrap().more);
    let report = store.compact_step(0, u64::MAX).unwrap();
    assert_eq!((report.removed_segments, report.moved_records), (1, 10), "nine fragments and the delete record");
    assert_eq!(held(&store).len(), 9);
    let stats = store.stats();
    assert_eq!((stats.segments, stats.dead_bytes), (1, 128), "the delete record died with what it deleted");
    assert!(store.compact_step(0, u64::MAX).unwrap().removed_segments == 0, "not over and over for its sake");

    (1..9).for_each(|chunk| assert!(delete(&store, id(chunk, 0)).is_ok()));
    put(&store, id(10, 0), 100).unwrap();
    store.sync().unwrap();
    assert!(compact_all(&store).unwrap() >= 1, "mostly dead");
    assert_eq!(held(&store), [(id(9, 0), 1000), (id(10, 0), 100)]);
    for chunk in [9, 10] {
        delete(&store, id(chunk, 0)).unwrap();
    }
    store.sync().unwrap();
    compact_all(&store).unwrap();
    let stats = store.stats();
    assert_eq!((stats.segments, stats.file_bytes), (1, SEGMENT_HEADER_BYTES), "{stats:?}");
    // Numbering continues: a segment never gets the number of an earlier one.
    put(&store, id(11, 0), 10).unwrap();
    store.sync().unwrap();
    let segment = store.get(id(11, 0)).unwrap().unwrap().entry().segment;
    assert!(segment > 3, "segment {segment}");
    assert_eq!(held(&opened(&disk.crash(CrashKind::KeepNone)).0), [(id(11, 0), 10)]);
}

/// A full disk refuses fragments, keeps what it has, and can be emptied.
#[test]
fn a_full_disk_refuses_fragments_and_can_still_be_emptied() {
    let disk = sim(1);
    let options = Options { reserve_bytes: 16 << 10, ..small() };
    let (store, _) = open(&disk, options).unwrap();
    disk.set_capacity(100_000);
    let mut stored = 0;
    let refused = loop {
        match put(&store, id(stored, 0), 1000) {
            Ok(_) => stored += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, StoreError::Full { .. }) && refused.is_no_space(), "{refused}");
    store.sync().unwrap();
    assert_eq!(held(&store).len() as u64, stored);
    for chunk in 0..stored - 1 {
        delete(&store, id(chunk, 0)).unwrap();
    }
    store.sync().unwrap();
    while compact_all(&store).unwrap() > 0 {}
    assert_eq!(held(&store), [(id(stored - 1, 0), 1000)]);
    assert!(matches!(put(&store, id(9999, 0), 1000), Ok(AppendOutcome::Written(_))));
}

#[test]
fn no_space_in_mid_append_leaves_the_store_intact_and_usable() {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    put(&store, id(1, 0), 1000).unwrap();
    store.sync().unwrap();
    for nth in 0..3 {
        disk.fail_at(disk.io_count(), Fault::NoSpace);
        let error = put(&store, id(2, 0), 2000).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        put(&store, id(3 + nth, 0), 500).unwrap();
        store.sync().unwrap();
    }
    let want = vec![(id(1, 0), 1000), (id(3, 0), 500), (id(4, 0), 500), (id(5, 0), 500)];
    assert_eq!(held(&store), want);
    let (store, report) = opened(&disk.crash(CrashKind::KeepNone));
    assert_eq!(held(&store), want);
    assert!(report.findings.is_empty() && report.torn_tail.is_none(), "{report:?}");
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_own() {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    for (chunk, len) in [(1, 100), (2, 50_000), (3, 100)] {
        put(&store, id(chunk, 0), len).unwrap();
    }
    store.sync().unwrap();
    assert_eq!(store.stats().segments, 3);
    assert_eq!(held(&opened(&disk.reopen()).0).len(), 3);
}

/// P9: after a failed sync nothing is acknowledged until the store is reopened.
#[test]
fn a_failed_sync_makes_nothing_visible_and_refuses_more() {
    let disk = sim(4);
    let (store, _) = opened(&disk);
    put(&store, id(1, 0), 100).unwrap();
    store.sync().unwrap();
    put(&store, id(2, 0), 100).unwrap();
    disk.fail_at(disk.io_count(), Fault::SyncFails);
    assert!(store.sync().is_err());
    assert!(matches!(store.sync(), Err(StoreError::Disk(DiskError::Poisoned { .. }))));
    assert!(matches!(put(&store, id(2, 0), 100), Ok(AppendOutcome::AlreadyHeld(_))));
    assert!(matches!(put(&store, id(3, 0), 100), Err(StoreError::Disk(DiskError::Poisoned { .. }))));
    assert!(store.sync().is_err(), "and that must not be acknowledged either");
    assert_eq!(held(&store), [(id(1, 0), 100)]);
    let (store, _) = opened(&disk.reopen());
    assert!(held(&store).contains(&(id(1, 0), 100)));
}

/// P14: files of other disks, clusters or versions are refused by name and stay unchanged.
#[test]
fn segments_from_elsewhere_and_from_the_future_are_refused() {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    put(&store, id(1, 0), 100).unwrap();
    store.sync().unwrap();
    let path = "segments/0000000000000001.seg";
    let good = disk.contents(path).unwrap();
    let header = |change: &dyn Fn(&mut [u8])| {
        let again = disk.reopen();
        let mut bytes = good.clone();
        change(&mut bytes);
        let crc = tessera_accel::checksum::crc32c(&bytes[..72]);
        bytes[72..76].copy_from_slice(&crc.to_le_bytes());
        again.open(path, OpenMode::Existing).unwrap().write_at(0, &bytes).unwrap();
        let result = open(&again, small()).map(drop);
        assert_eq!(again.contents(path).unwrap(), bytes, "changed by a refused open");
        result
    };
    assert!(matches!(header(&|b| b[8] = 2), Err(OpenError::Version { found: 2, supported: 1, .. })));
    assert!(matches!(header(&|b| b[16] = 1), Err(OpenError::Foreign { field: "cluster id", .. })));
    assert!(matches!(header(&|b| b[32] = 1), Err(OpenError::Foreign { field: "disk uuid", .. })));
    assert!(matches!(header(&|b| b[48] = 2), Err(OpenError::Foreign { field: "segment number", .. })));
    assert!(header(&|_| ()).is_ok());
    let empty = SimDisk::new(1);
    assert!(matches!(open(&empty, small()), Err(OpenError::Identity(_))));
    assert!(empty.paths().is_empty());
}

/// P3, P9: bytes inside a fragment that look like a record do not count as one.
#[test]
fn a_segment_stored_as_a_fragment_is_only_a_fragment() {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    put(&store, id(1, 0), 1000).unwrap();
    store.sync().unwrap();
    let inner = disk.contents("segments/0000000000000001.seg").unwrap();
    let record = Record {
        id: id(2, 0),
        meta: meta(1),
        groups: &[],
        data: &inner,
        data_crc: tessera_accel::checksum::crc32c(&inner),
    };
    store.append(&[record]).unwrap();
    store.sync().unwrap();
    put(&store, id(3, 0), 10).unwrap();
    store.sync().unwrap();
    let again = disk.reopen();
    let entry = *store.get(id(2, 0)).unwrap().unwrap().entry();
    assert!(again.rot(&format!("segments/{:016x}.seg", entry.segment), entry.offset + 9, 1));
    let (store, report) = opened(&again);
    assert_eq!(held(&store), [(id(1, 0), 1000), (id(3, 0), 10)]);
    assert_eq!(report.records, 2);
    assert_eq!(report.findings.len(), 1);
}

#[test]
fn real_and_memory_disks_hold_fragments_too() {
    let dir = tempfile::tempdir().unwrap();
    let real = RealDisk::open(dir.path()).unwrap();
    let mem = SimDisk::new(0);
    for disk in [&real as &dyn Disk, &mem] {
        IDENTITY.create(disk).unwrap();
    }
    for round in 0..2 {
        for store in [on(real.clone(), small()), on(mem.clone(), small())] {
            for chunk in 0..30 {
                put(&store, id(round * 100 + chunk, 0), 3000).unwrap();
            }
            store.sync().unwrap();
            assert_eq!(held(&store).len() as u64, (round + 1) * 30);
            let (file, offset, len) = store.get(id(0, 0)).unwrap().unwrap().source();
            let mut data = vec![0; len as usize];
            file.read_at(offset, &mut data).unwrap();
            assert_eq!(data, data_of(id(0, 0), 3000));
        }
    }
    assert_eq!(Identity::load(&real).unwrap(), Some(IDENTITY));
}

/// Readers find every fragment at all times while one thread appends, deletes and compacts.
#[test]
fn readers_go_on_while_the_writer_writes_and_compacts() {
    let store = on(
        {
            let disk = SimDisk::new(0);
            IDENTITY.create(&disk).unwrap();
            disk
        },
        small(),
    );
    for chunk in 0..50 {
        put(&store, id(chunk, 0), 200).unwrap();
    }
    store.sync().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    for chunk in 0..50 {
                        let data = store
                            .get(id(chunk, 0))
                            .unwrap()
                            .expect("a kept fragment is missing")
                            .read_verified()
                            .unwrap();
                        assert_eq!(data, data_of(id(chunk, 0), 200));
                    }
                }
            });
        }
        for round in 1..150 {
            for chunk in 0..30 {
                put(&store, id(round * 100 + chunk, 0), 300).unwrap();
            }
            store.sync().unwrap();
            for chunk in 0..30 {
                delete(&store, id(round * 100 + chunk, 0)).unwrap();
            }
            store.sync().unwrap();
            compact_all(&store).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(held(&store).len(), 50);
}

/// The bytes that a compaction reports as freed equal the space the disk gains, in any number of steps.
#[test]
fn what_compaction_frees_is_what_the_files_lose() {
    for budget in [2_500, u64::MAX] {
        let disk = sim(1);
        let (store, _) = open(&disk, Options { segment_size_bytes: 1 << 20, ..small() }).unwrap();
        (0..20).for_each(|chunk| assert!(put(&store, id(chunk, 0), 1000).is_ok()));
        store.sync().unwrap();
        (0..4).for_each(|chunk| _ = delete(&store, id(chunk, 0)).unwrap());
        store.sync().unwrap();
        let before = store.stats().file_bytes;
        assert!(store.seal_dead(10).unwrap());
        let mut freed = 0;
        loop {
            let report = store.compact_step(10, budget).unwrap();
            freed += report.freed_bytes;
            if !report.more {
                break;
            }
        }
        // The old file's segment header goes, the new file's comes.
        let lost = before - store.stats().file_bytes;
        assert!(freed >= lost && freed - lost <= 4_096, "{freed} freed, {lost} less, steps of {budget}");
    }
}
