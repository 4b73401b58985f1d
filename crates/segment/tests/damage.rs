//! Damaged bytes: every flipped bit is found (P13), nothing wrong is ever returned (P2), nothing panics, and one
//! damaged record costs one fragment. Also the formats' fixtures.

mod common;
#[path = "common/harm.rs"]
mod harm;

use std::sync::Arc;

use common::*;
use harm::*;
use proptest::prelude::*;
use tessera_disk::{Disk, Fault, OpenMode, SimDisk};
use tessera_failpoint as failpoint;
use tessera_segment::*;

/// Three segments with live, dead and delete records; the last is open.
fn filled() -> (SimDisk, SegmentStore) {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    for chunk in 0..16 {
        put(&store, id(chunk, 1), 700).unwrap();
        store.sync().unwrap();
    }
    for chunk in [2, 5, 6] {
        delete(&store, id(chunk, 1)).unwrap();
        store.sync().unwrap();
    }
    put(&store, id(99, 0), 0).unwrap();
    store.sync().unwrap();
    assert_eq!(store.stats().segments, 4);
    (disk, store)
}

/// P13: one cycle finds a flipped bit anywhere in a live record, with steps of any size.
#[test]
fn the_scrubber_finds_every_flipped_bit_of_live_records() {
    let (disk, store) = filled();
    assert!(scrub_all(&store, 1).is_empty());
    for entry in store.list(None, 100).unwrap() {
        let path = format!("segments/{:016x}.seg", entry.segment);
        let payload = 128 + u64::from(entry.groups_len) + u64::from(entry.data_len);
        for at in (0..payload).step_by(37).chain([0, 3, 4, 127, payload - 1]) {
            assert!(disk.rot(&path, entry.offset + at, 1 << (at % 8)));
            let findings = scrub_all(&store, 1000 + at);
            let live: Vec<_> = findings.iter().filter(|f| f.live).collect();
            assert!(live.len() == 1 && live[0].id == Some(entry.id), "byte {at} of {}: {findings:?}", entry.id);
            assert_eq!((live[0].segment, live[0].offset), (entry.segment, entry.offset));
            assert!(store.get(entry.id).unwrap().unwrap().verify().is_err());
            assert!(disk.rot(&path, entry.offset + at, 1 << (at % 8)));
        }
    }
    assert!(scrub_all(&store, 1 << 20).is_empty());
    disk.rot("segments/0000000000000002.seg", 20, 1);
    assert!(matches!(scrub_all(&store, 1 << 20)[..], [Finding { damage: Damage::SegmentHeader, segment: 2, .. }]));
}

#[test]
fn unreadable_sectors_are_findings_not_failures() {
    let (disk, store) = filled();
    let entry = *store.get(id(3, 1)).unwrap().unwrap().entry();
    let path = format!("segments/{:016x}.seg", entry.segment);
    disk.break_sector(&path, entry.offset + 300);
    let findings = scrub_all(&store, 500);
    assert!(findings.iter().any(|f| f.live && f.id == Some(entry.id)), "{findings:?}");
    let (again, report) = opened(&disk.reopen());
    assert!(report.torn_tail.is_none());
    assert!(again.get(id(4, 1)).unwrap().is_some() && again.get(id(99, 0)).unwrap().is_some());
}

/// P8, P13: the put that repairs a damaged fragment is not mistaken for a retry.
#[test]
fn a_repair_of_rot_is_written() {
    let repaired = |mistake: Option<&str>| {
        let _guard = mistake.map(failpoint::activate);
        let disk = sim(1);
        let (store, _) = open(&disk, small()).unwrap();
        put(&store, id(1, 0), 100).unwrap();
        store.sync().unwrap();
        disk.rot("segments/0000000000000001.seg", 4096 + 128 + 32 + 50, 4);
        let handle = store.get(id(1, 0)).unwrap().unwrap();
        assert!(matches!(
            handle.read_verified(),
            Err(StoreError::Damaged(Finding { damage: Damage::Data { .. }, .. }))
        ));
        put_session(&store, id(1, 0), 100, 0).unwrap();
        store.sync().unwrap();
        store.get(id(1, 0)).unwrap().unwrap().read_verified().is_ok()
    };
    assert!(repaired(None));
    assert!(!repaired(Some("segment.trust_duplicates")), "the failpoint survived");
}

/// Compaction copies no damaged record; its segment stays until the record is repaired.
#[test]
fn compaction_leaves_rotten_records_where_they_are() {
    let (disk, store) = filled();
    let entry = *store.get(id(1, 1)).unwrap().unwrap().entry();
    for chunk in [0, 3, 4] {
        delete(&store, id(chunk, 1)).unwrap();
    }
    store.sync().unwrap();
    let path = format!("segments/{:016x}.seg", entry.segment);
    disk.rot(&path, entry.data_offset() + 9, 1);
    let mut findings = Vec::new();
    for _ in 0..10 {
        findings.extend(store.compact_step(50, 10_000).unwrap().findings);
    }
    assert!(findings.len() == 1 && findings[0].id == Some(id(1, 1)), "{findings:?}");
    assert_eq!(store.get(id(1, 1)).unwrap().unwrap().entry(), &entry);
    put_session(&store, id(1, 1), 700, 0).unwrap();
    store.sync().unwrap();
    compact_all(&store).unwrap();
    assert!(!disk.paths().contains(&path));
    store.get(id(1, 1)).unwrap().unwrap().verify().unwrap();
}

/// Compaction rewrites and removes a segment with a damaged header.
#[test]
fn a_damaged_segment_header_loses_nothing() {
    let (disk, store) = filled();
    let want = held(&store);
    disk.rot("segments/0000000000000001.seg", 1, 1);
    let disk = disk.reopen();
    let (store, report) = opened(&disk);
    assert!(matches!(report.findings[..], [Finding { damage: Damage::SegmentHeader, .. }]));
    assert_eq!(held(&store), want);
    compact_all(&store).unwrap();
    assert_eq!(held(&store), want);
    assert_eq!(opened(&disk.reopen()).1.findings, []);
}

/// P3: a delete record is kept while a damaged stretch may hide a record that it deletes.
#[test]
fn a_delete_outlives_a_record_that_could_not_be_read() {
    let (disk, store) = filled();
    let header_of_2 = store.get(id(1, 1)).unwrap().unwrap().entry().offset
        + store.get(id(1, 1)).unwrap().unwrap().entry().record_bytes();
    disk.rot("segments/0000000000000001.seg", header_of_2, 1);
    let disk = disk.reopen();
    let (store, report) = opened(&disk);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(store.stats().deletes, 3);
    // The bit flips back, as after a bad cable is replaced. The deleted fragment must not come back.
    disk.rot("segments/0000000000000001.seg", header_of_2, 1);
    let (store, _) = opened(&disk.reopen());
    assert!(store.get(id(2, 1)).unwrap().is_none());
}

/// Damage among synced records of the open segment is distinguished from a torn tail.
#[test]
fn rot_before_the_tail_is_not_cut() {
    let (disk, store) = filled();
    let last =
        *store.list(None, 100).unwrap().iter().filter(|e| e.id.chunk_id < 99).max_by_key(|e| e.sequence).unwrap();
    let path = format!("segments/{:016x}.seg", last.segment);
    disk.rot(&path, last.data_offset() + 1, 1);
    let (store, report) = opened(&disk.reopen());
    assert_eq!(report.torn_tail, None);
    assert!(report.findings.len() == 1 && report.findings[0].id == Some(last.id) && report.findings[0].live);
    assert!(store.get(id(99, 0)).unwrap().is_some() && store.get(last.id).unwrap().unwrap().verify().is_err());
}

/// P1: a batch was synced, its first record rots, and the put after it is torn. Only that put says that the batch was durable. Were it cut,
/// the next opening would cut the rest of the batch.
#[test]
fn a_torn_put_behind_rot_takes_no_older_record_with_it() {
    let disk = sim(1);
    let (store, _) = opened(&disk);
    put(&store, id(1, 0), 200).unwrap();
    store.sync().unwrap();
    for chunk in 2..5 {
        put(&store, id(chunk, 0), 200).unwrap();
    }
    store.sync().unwrap();
    put(&store, id(5, 0), 200).unwrap();
    store.sync().unwrap();
    let entry = |chunk| *store.get(id(chunk, 0)).unwrap().unwrap().entry();
    let path = "segments/0000000000000001.seg";
    disk.rot(path, entry(2).offset, 1);
    disk.rot(path, entry(5).data_offset() + 9, 1);
    let mut disk = disk;
    for _ in 0..3 {
        disk = disk.reopen();
        let (store, _) = opened(&disk);
        for chunk in [1, 3, 4] {
            store.get(id(chunk, 0)).unwrap().unwrap().verify().unwrap();
        }
    }
    let disk = disk.reopen();
    let (store, _) = opened(&disk);
    put(&store, id(6, 0), 200).unwrap();
    store.sync().unwrap();
    drop(store);
    assert!(opened(&disk.reopen()).0.get(id(6, 0)).unwrap().is_some());
}

/// A segment that was cut within a record takes no more records when the segment after it has lost its header: a record
/// after the cut would begin where no scan looks, and the next rebuild of the index would lose it.
#[test]
fn the_segment_before_an_unborn_one_takes_no_records() {
    let (disk, store) = filled();
    let files = files(&disk);
    drop(store);
    let mut segments: Vec<&String> = files.keys().filter(|p| p.ends_with(".seg")).collect();
    let (last, before) = (segments.pop().unwrap(), segments.pop().unwrap());
    let disk = copy(&files);
    disk.open(last, OpenMode::Existing).unwrap().truncate(7).unwrap();
    let cut = files[before].len() as u64 - 1;
    disk.open(before, OpenMode::Existing).unwrap().truncate(cut).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let (store, report) = SegmentStore::open(disk.clone(), small(), &mut |_| {}).unwrap();
    assert!(report.removed_unborn.is_some());
    put(&store, id(500, 0), 300).unwrap();
    store.sync().unwrap();
    drop(store);
    let (store, _) = SegmentStore::open(disk, small(), &mut |_| {}).unwrap();
    store.get(id(500, 0)).unwrap().unwrap().verify().unwrap();
}

#[test]
fn lost_and_misdirected_writes_are_found() {
    for fault in [Fault::LostWrite, Fault::Misdirected { sectors: 2 }] {
        let disk = sim(1);
        let (store, _) = opened(&disk);
        put(&store, id(1, 0), 2000).unwrap();
        store.sync().unwrap();
        disk.fail_at(disk.io_count(), fault);
        put(&store, id(2, 0), 700).unwrap();
        store.sync().unwrap();
        put(&store, id(3, 0), 700).unwrap();
        store.sync().unwrap();
        let findings = scrub_all(&store, 1 << 20);
        assert!(findings.iter().any(|f| f.live && f.id == Some(id(2, 0))), "{fault:?}: {findings:?}");
        assert!(store.get(id(2, 0)).unwrap().unwrap().verify().is_err());
        let (store, _) = opened(&disk.reopen());
        store.get(id(1, 0)).unwrap().unwrap().verify().unwrap();
        store.get(id(3, 0)).unwrap().unwrap().verify().unwrap();
    }
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() }
}

/// P2: with any damage to the files, opening does not panic, and verified reads return what was written.
#[test]
fn no_damage_makes_a_store_return_wrong_bytes() {
    let (disk, store) = filled();
    let (files, written) = (files(&disk), held(&store));
    let segments: Vec<String> = files.keys().filter(|p| p.ends_with(".seg")).cloned().collect();
    proptest!(config(), |(harms in prop::collection::vec((0..4usize, harm()), 1..4))| {
        let disk = copy(&files);
        for (which, harm) in harms {
            apply(&disk, &segments[which % segments.len()], harm);
        }
        let Ok((store, _)) = SegmentStore::open(Arc::new(disk), small(), &mut |_| {}) else { return Ok(()) };
        for entry in store.list(None, 100).unwrap() {
            let known = written.iter().any(|(id, len)| *id == entry.id && *len == entry.data_len as usize);
            // A cut may remove a delete record along with later records: the fragment it deleted is genuine.
            prop_assert!(known || [2, 5, 6].contains(&entry.id.chunk_id));
            if let Ok(data) = store.get(entry.id).unwrap().unwrap().read_verified() {
                prop_assert_eq!(data, data_of(entry.id, entry.data_len as usize));
            }
        }
        let mut cursor = ScrubCursor::default();
        while let Some(next) = store.scrub_step(cursor, 3000).unwrap().next {
            cursor = next;
        }
        put(&store, id(500, 0), 300).unwrap();
        store.sync().unwrap();
        compact_all(&store).unwrap();
        prop_assert!(store.get(id(500, 0)).unwrap().unwrap().verify().is_ok());
    });
}

/// Version 1 as first written; must remain readable. `TESSERA_WRITE_FIXTURES=1` writes missing fixtures.
#[test]
fn fixtures_of_version_1() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/v1");
    if std::env::var_os("TESSERA_WRITE_FIXTURES").is_some() {
        let (disk, _) = filled();
        for (path, bytes) in files(&disk) {
            let path = std::path::Path::new(dir).join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
    let disk = SimDisk::new(0);
    for sub in ["", "segments"] {
        if !sub.is_empty() {
            disk.create_dir(sub).unwrap();
        }
        for file in std::fs::read_dir(std::path::Path::new(dir).join(sub)).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_file() {
                let path = format!("{sub}/{}", file.file_name().into_string().unwrap());
                let bytes = std::fs::read(file.path()).unwrap();
                disk.open(path.trim_start_matches('/'), OpenMode::Create).unwrap().write_at(0, &bytes).unwrap();
            }
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let (store, report) = SegmentStore::open(disk, small(), &mut |_| {}).unwrap();
    assert_eq!((report.records, report.fragments, report.findings.len(), report.torn_tail), (20, 14, 0, None));
    let chunks: Vec<u64> = held(&store).iter().map(|(id, _)| id.chunk_id).collect();
    assert_eq!(chunks, [0, 1, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 99]);
    assert_eq!(store.get(id(3, 1)).unwrap().unwrap().read_header().unwrap().meta, meta(8));
    assert_eq!(store.stats().deletes, 3);
}
