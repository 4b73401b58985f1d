//! The index on flash answers like the one in memory: throughout a store's life, on a full disk, with little memory.
//! Damage to it causes an error or a scan, never a wrong entry.

mod common;

use std::sync::Arc;

use common::*;
use tessera_disk::{Disk, OpenMode, SimDisk, SplitMix64};
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

/// An empty index on `disk`.
fn empty(disk: &Arc<dyn Disk>, buffer_bytes: u64) -> ConaIndex {
    let mut index = ConaIndex::open_inline(disk.clone(), buffer_bytes);
    index.reset(&IDENTITY).unwrap();
    index
}

/// One to eight random changes at once.
fn changes(index: &dyn Index, rng: &mut SplitMix64) -> Changes {
    let mut changes = Changes::default();
    for _ in 0..1 + rng.below(8) {
        let id = FragmentId { chunk_id: rng.below(400), fragment: rng.below(4) as u16 };
        let new = (rng.below(10) > 2).then(|| entry(id, rng));
        let old = changes.entries.get(&id).copied().unwrap_or(index.get(id).unwrap());
        changes.added += i64::from(new.is_some()) - i64::from(old.is_some());
        changes.entries.insert(id, new);
        if rng.below(4) == 0 {
            let delete = (rng.below(2) == 0).then(|| entry(id, rng));
            let tombstone = (rng.below(3) > 0).then_some(Tombstone { dead_copies: rng.below(5) as u32, delete });
            changes.tombstones.insert(id, tombstone);
        }
        let row = SegmentRow { end: rng.below(9), live_bytes: rng.below(9), damaged: rng.below(2) == 0, sealed: true };
        changes.segments.insert(rng.below(20), (rng.below(5) > 0).then_some(row));
    }
    changes.point =
        (rng.below(3) > 0).then(|| Point { segment: 3, offset: rng.below(99), next_sequence: rng.below(99) });
    changes
}

fn same(flash: &ConaIndex, memory: &MemIndex, rng: &mut SplitMix64) {
    assert_eq!(flash.list(None, usize::MAX).unwrap(), memory.list(None, usize::MAX).unwrap());
    let after = (rng.below(3) > 0).then(|| FragmentId { chunk_id: rng.below(400), fragment: rng.below(4) as u16 });
    let limit = [1, 7, 100, usize::MAX][rng.below(4) as usize];
    assert_eq!(flash.list(after, limit).unwrap(), memory.list(after, limit).unwrap());
    let ids: Vec<FragmentId> = (0..20).map(|_| id(rng.below(400), rng.below(4) as u16)).collect();
    assert_eq!(flash.get_many(&ids).unwrap(), memory.get_many(&ids).unwrap());
    assert_eq!(flash.len(), memory.len());
}

/// Applies changes to the state that a recovery must return.
fn note(expected: &mut IndexState, changes: &Changes) {
    expected.point = changes.point.unwrap_or(expected.point);
    for (number, row) in &changes.segments {
        match row {
            Some(row) => expected.segments.insert(*number, *row),
            None => expected.segments.remove(number),
        };
    }
    for (id, tombstone) in &changes.tombstones {
        match tombstone {
            Some(tombstone) => expected.tombstones.insert(*id, *tombstone),
            None => expected.tombstones.remove(id),
        };
    }
}

#[test]
fn it_answers_as_the_index_in_memory_does_and_comes_back() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let (mut flash, memory) = (empty(&disk, 8192), MemIndex::default());
    let (mut rng, mut expected, mut merges) = (SplitMix64::new(1), IndexState::default(), 0);
    for n in 0..6_000 {
        let changes = changes(&memory, &mut rng);
        flash.apply(&changes).unwrap();
        memory.apply(&changes).unwrap();
        note(&mut expected, &changes);
        if n % 50 == 0 {
            same(&flash, &memory, &mut rng);
        }
        if n % 500 == 499 {
            flash.persist(true).unwrap();
            merges += flash.stats().merges;
            drop(flash);
            flash = ConaIndex::open_inline(disk.clone(), 8192);
            assert_eq!(flash.recover(&IDENTITY).unwrap().as_ref(), Some(&expected), "change {n}");
            same(&flash, &memory, &mut rng);
        }
    }
    assert!(merges > 5);
    // The index of another disk is not used.
    drop(flash);
    let other = tessera_disk::Identity { disk_uuid: [8; 16], ..IDENTITY };
    assert_eq!(ConaIndex::open_inline(disk, 8192).recover(&other).unwrap(), None);
}

/// A full disk refuses the index's writes, too; no change is lost.
#[test]
fn a_full_disk_loses_no_entry() {
    let sim = SimDisk::new(2);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (flash, memory) = (empty(&disk, 8192), MemIndex::default());
    let (mut rng, mut expected) = (SplitMix64::new(3), IndexState::default());
    for n in 0..3_000_u64 {
        sim.set_capacity(if n / 250 % 2 == 1 { 10_000 } else { 1 << 30 });
        let changes = changes(&memory, &mut rng);
        flash.apply(&changes).unwrap();
        memory.apply(&changes).unwrap();
        note(&mut expected, &changes);
        if n % 25 == 0 {
            same(&flash, &memory, &mut rng);
            flash.persist(n % 50 == 0).unwrap();
        }
    }
    sim.set_capacity(1 << 30);
    flash.persist(true).unwrap();
    drop(flash);
    let flash = ConaIndex::open_inline(disk, 8192);
    assert_eq!(flash.recover(&IDENTITY).unwrap(), Some(expected));
    same(&flash, &memory, &mut rng);
}

/// Changes that arrive while another thread writes the pending rows are kept.
#[test]
fn changes_during_a_write_of_pending_rows_are_kept() {
    let sim = SimDisk::new(2);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (flash, memory) = (empty(&disk, 8192), MemIndex::default());
    let mut rng = SplitMix64::new(5);
    let mut put = |chunks: std::ops::Range<u64>| {
        let entries = chunks.map(|chunk| (id(chunk, 0), Some(entry(id(chunk, 0), &mut rng))));
        let changes = Changes { entries: entries.collect(), ..Changes::default() };
        flash.apply(&changes).unwrap();
        memory.apply(&changes).unwrap();
    };
    for _ in 0..20 {
        sim.set_capacity(10_000);
        // So many that only some changes attempt to write what is pending.
        (0..10).for_each(|_| put(0..6000));
        sim.set_capacity(1 << 30);
        std::thread::scope(|scope| {
            let persist = scope.spawn(|| flash.persist(true).unwrap());
            (6000..6020).for_each(|chunk| put(chunk..chunk + 1));
            persist.join().unwrap();
        });
        assert_eq!(flash.list(None, usize::MAX).unwrap(), memory.list(None, usize::MAX).unwrap());
    }
}

/// A sector that only a merge reads is found out when the index is persisted.
#[test]
fn a_bad_sector_that_a_merge_meets_fails_the_index() {
    let sim = SimDisk::new(5);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (flash, memory, mut rng) = (empty(&disk, 8192), MemIndex::default(), SplitMix64::new(5));
    let mut round = || {
        for _ in 0..500 {
            let changes = changes(&memory, &mut rng);
            flash.apply(&changes).unwrap();
            memory.apply(&changes).unwrap();
        }
        // With the store's work on this thread a failed merge may show here, or not.
        let _ = flash.persist(true);
        flash.failed()
    };
    assert!(!round());
    let mut cells = sim.paths().into_iter().filter(|path| path.starts_with(INDEX_DIR) && path.ends_with(".cell"));
    assert!(cells.all(|path| sim.break_sector(&path, 4096)));
    assert!((0..4).any(|_| round()), "{:?}", flash.stats());
}

#[test]
fn a_fragment_takes_about_a_byte_of_memory() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let mut index = ConaIndex::open(disk);
    index.reset(&IDENTITY).unwrap();
    let mut rng = SplitMix64::new(5);
    let id_of = |n: u64| FragmentId { chunk_id: n / 2, fragment: (n % 2) as u16 * 3 };
    for from in (0..150_000_u64).step_by(100) {
        let entries = (from..from + 100).map(|n| (id_of(n), Some(entry(id_of(n), &mut rng)))).collect();
        index.apply(&Changes { entries, added: 100, ..Changes::default() }).unwrap();
    }
    index.settle().unwrap();
    let before = index.stats();
    for n in (0..150_000_u64).step_by(7) {
        assert!(index.get(id_of(n)).unwrap().is_some());
    }
    let after = index.stats();
    let reads = (after.page_reads - before.page_reads) as f64 / (after.lookups - before.lookups) as f64;
    let bytes = index.memory_bytes() as f64 / 150_000.0;
    println!("{bytes} B a fragment, {reads} reads a look-up");
    assert!(bytes < 1.5 && reads <= 1.02, "{bytes} B a fragment, {reads} reads a look-up");
}

// --- in a store's life ----------------------------------------------------------------------------------------------

fn options() -> Options {
    Options { segment_size_bytes: 100_000, reserve_bytes: 0, ..Options::default() }
}

fn open_on_flash(disk: &SimDisk) -> (SegmentStore, OpenReport) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let index = Box::new(ConaIndex::open_inline(disk.clone(), 8192));
    SegmentStore::open_with_index(disk, options(), index, &mut |_| {}).unwrap()
}

/// The same files on another disk.
fn copy_of(disk: &SimDisk) -> SimDisk {
    let copy = SimDisk::new(1);
    for dir in ["", "segments", INDEX_DIR] {
        copy.create_dir(if dir.is_empty() { INDEX_DIR } else { dir }).unwrap();
        for name in disk.list(dir).unwrap() {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let from = disk.open(&path, OpenMode::Existing).unwrap();
            let mut bytes = vec![0; from.len().unwrap() as usize];
            from.read_at(0, &mut bytes).unwrap();
            copy.write_durable(&path, &bytes).unwrap();
        }
    }
    copy
}

/// The result of a scan of all segments.
fn scanned(disk: &SimDisk) -> (Vec<Entry>, Stats) {
    let (store, _) = open(disk, options()).unwrap();
    (store.list(None, usize::MAX).unwrap(), Stats { index_bytes: 0, ..store.stats() })
}

fn agrees_with_a_scan(store: &SegmentStore, disk: &SimDisk) {
    let held = store.list(None, usize::MAX).unwrap();
    assert_eq!((held, Stats { index_bytes: 0, ..store.stats() }), scanned(disk));
}

fn round(store: &SegmentStore, round: u64) {
    for chunk in round * 200..round * 200 + 200 {
        put(store, id(chunk + 1, 0), 300).unwrap();
        if chunk % 20 == 19 {
            store.sync().unwrap();
        }
    }
    for chunk in (round * 200..round * 200 + 200).step_by(3) {
        delete(store, id(chunk + 1, 0)).unwrap();
    }
    store.sync().unwrap();
}

/// A clean shutdown leaves nothing to scan; a kill leaves what was written after the index last became durable. In both
/// cases the restarted store equals the result of a full scan.
#[test]
fn a_restart_goes_on_from_the_index() {
    let disk = sim(4);
    for n in 0..6_u64 {
        let (store, report) = open_on_flash(&disk);
        assert_eq!((report.resumed, report.index_lost), (n > 0, None), "round {n}");
        agrees_with_a_scan(&store, &disk);
        round(&store, n);
        if n == 3 {
            while store.compact_step(50, 50_000).unwrap().more {}
        }
        agrees_with_a_scan(&store, &disk);
        if n % 2 == 0 {
            store.close().unwrap();
            drop(store);
            let (store, report) = open_on_flash(&disk);
            assert_eq!((report.resumed, report.records), (true, 0), "round {n}: {report:?}");
            agrees_with_a_scan(&store, &disk);
        }
    }
    let total = open(&disk, options()).unwrap().1.records;
    let (_, report) = open_on_flash(&disk);
    assert!(report.resumed && report.records < total / 4, "{} of {total} records read", report.records);
}

/// With any damage to the index's files, all fragments are found: through the index if it is intact, otherwise through
/// the segments.
#[test]
fn a_damaged_or_lost_index_is_made_anew() {
    let begun = sim(5);
    let (store, _) = open_on_flash(&begun);
    (0..3).for_each(|n| round(&store, n));
    store.close().unwrap();
    drop(store);
    let (expected, _) = scanned(&begun);
    let names = begun.list(INDEX_DIR).unwrap();
    assert!(names.len() >= 2, "{names:?}");
    let mut remade = 0;
    for name in &names {
        let path = format!("{INDEX_DIR}/{name}");
        let len = begun.open(&path, OpenMode::Existing).unwrap().len().unwrap();
        for harm in 0..24_u64 {
            let disk = copy_of(&begun);
            match harm {
                0 => disk.remove(&path).unwrap(),
                1 => disk.open(&path, OpenMode::Existing).unwrap().truncate(len / 2).unwrap(),
                2 => disk.open(&path, OpenMode::Existing).unwrap().truncate(0).unwrap(),
                3 => disk.open(&path, OpenMode::Existing).unwrap().truncate(len + 100).unwrap(),
                4 => assert!(disk.break_sector(&path, 0)),
                5 => assert!(disk.break_sector(&path, len - 1)),
                _ => assert!(disk.rot(&path, (harm * 7919) % len, 1 << (harm % 8))),
            }
            let (store, report) = open_on_flash(&disk);
            remade += u64::from(report.index_lost.is_some());
            // Look-ups may find damage that opening did not read: an error, and the next opening rebuilds the index.
            let listed = store.list(None, usize::MAX);
            let lost = expected.iter().any(|e| store.get(e.id).is_err());
            if let (Ok(listed), false) = (&listed, lost) {
                assert_eq!(listed, &expected, "{name}, {harm}");
            } else {
                assert!(report.resumed, "{name}, {harm}");
                drop(store);
                let (store, report) = open_on_flash(&disk);
                assert!(!report.resumed && report.index_lost.is_some(), "{name}, {harm}: {report:?}");
                agrees_with_a_scan(&store, &disk);
                remade += 1;
            }
        }
    }
    println!("made anew {remade} times");
    assert!(remade > 24, "{remade}");
}

/// If the segments differ from what the index knows, in any way, the index is not used.
#[test]
fn an_index_that_does_not_fit_the_segments_is_not_believed() {
    let begun = sim(6);
    let (store, _) = open_on_flash(&begun);
    (0..3).for_each(|n| round(&store, n));
    store.close().unwrap();
    drop(store);
    let segments = begun.list("segments").unwrap();
    assert!(segments.len() > 2);
    for (n, name) in segments.iter().enumerate() {
        let path = format!("segments/{name}");
        let len = begun.open(&path, OpenMode::Existing).unwrap().len().unwrap();
        for harm in 0..4 {
            let disk = copy_of(&begun);
            let last = n + 1 == segments.len();
            match harm {
                0 => disk.remove(&path).unwrap(),
                1 => disk.open(&path, OpenMode::Existing).unwrap().truncate(len - 8).unwrap(),
                2 => disk.open(&path, OpenMode::Existing).unwrap().truncate(len + 8).unwrap(),
                _ => assert!(disk.rot(&path, 30, 1)),
            }
            let (store, report) = open_on_flash(&disk);
            // Any bytes may follow the last point.
            let torn = last && harm == 2;
            assert_eq!(report.resumed, torn, "{name}, {harm}: {report:?}");
            assert_eq!(report.index_lost.is_none(), torn);
            agrees_with_a_scan(&store, &disk);
        }
    }
}

fn damage_cells(disk: &SimDisk) {
    for name in disk.list(INDEX_DIR).unwrap().iter().filter(|name| name.ends_with(".cell")) {
        for page in 0..2 {
            disk.rot(&format!("{INDEX_DIR}/{name}"), page * 4096 + 100, 4);
        }
    }
}

/// Damage found by a running store is an error of that call, and the next opening rebuilds the index.
#[test]
fn damage_under_a_running_store_is_an_error() {
    let disk = sim(7);
    let (store, _) = open_on_flash(&disk);
    round(&store, 0);
    store.close().unwrap();
    let expected = store.list(None, usize::MAX).unwrap();
    damage_cells(&disk);
    let failed = expected.iter().filter(|e| store.get(e.id).is_err()).count();
    assert!(failed > 0 && store.list(None, usize::MAX).is_err());
    let error = store.get(expected[0].id).unwrap_err();
    assert!(error.to_string().contains("rebuilds the index"), "{error}");
    drop(store);
    let (store, report) = open_on_flash(&disk);
    assert!(!report.resumed && report.index_lost.is_some());
    assert_eq!(store.list(None, usize::MAX).unwrap(), expected);
}

/// Or the store rebuilds it itself, including records that are written but not synced, and continues.
#[test]
fn a_running_store_makes_its_index_anew() {
    let disk = sim(8);
    let (store, _) = open_on_flash(&disk);
    round(&store, 0);
    store.close().unwrap();
    let expected = store.list(None, usize::MAX).unwrap();
    put(&store, id(1000, 0), 300).unwrap();
    assert!(!store.index_failed());
    damage_cells(&disk);
    assert!(store.list(None, usize::MAX).is_err() && store.index_failed());
    let report = store.rebuild_index().unwrap();
    assert!(!report.resumed && report.records > 0 && !store.index_failed());
    let listed = store.list(None, usize::MAX).unwrap();
    assert_eq!((&listed[..expected.len()], listed.len()), (&expected[..], expected.len() + 1));
    agrees_with_a_scan(&store, &disk);
    store.sync().unwrap();
    round(&store, 1);
    while store.compact_step(50, 50_000).unwrap().more {}
    agrees_with_a_scan(&store, &disk);
    store.close().unwrap();
    drop(store);
    let (store, report) = open_on_flash(&disk);
    assert!(report.resumed && report.records == 0, "{report:?}");
    agrees_with_a_scan(&store, &disk);
}

/// A store with many small fragments: its index stays within 1.3 bytes per fragment besides its buffers, a look-up
/// reads one page, and a restart reads almost nothing. `examples/many_fragments.rs` does it with 20 million
/// (bench/results/index.md).
#[test]
fn many_fragments_take_little_memory_and_one_read_each() {
    const COUNT: u64 = 200_000;
    let disk = SimDisk::new(0);
    IDENTITY.create(&disk).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let open = || {
        let index = Box::new(ConaIndex::open(disk.clone()));
        let options = Options { reserve_bytes: 0, segment_size_bytes: 8 << 20, ..Options::default() };
        SegmentStore::open_with_index(disk.clone(), options, index, &mut |_| {}).unwrap()
    };
    let (store, _) = open();
    let (data, id_of) = ([7; 40], |nth: u64| id(1 + nth / 2, (nth % 2) as u16));
    let data_crc = tessera_accel::checksum::crc32c(&data);
    for from in (0..COUNT).step_by(1000) {
        let record = |nth| Record { id: id_of(nth), meta: meta(1), groups: &[], data: &data, data_crc };
        let batch: Vec<Record<'_>> = (from..from + 1000).map(record).collect();
        store.append(&batch).unwrap();
        store.sync().unwrap();
    }
    let (buffers, stats) = (2 * (4 << 20) + (4 << 20), store.stats());
    assert!(stats.index_bytes < COUNT * 13 / 10 + buffers, "{stats:?}");
    store.close().unwrap();
    drop(store);
    let (store, report) = open();
    assert_eq!((report.resumed, report.records, report.fragments), (true, 0, COUNT));
    let before = store.index_stats();
    assert!((0..COUNT).step_by(11).all(|nth| store.get(id_of(nth)).unwrap().is_some()));
    assert!((0..COUNT).step_by(11).all(|nth| store.get(id(1 + nth, 5)).unwrap().is_none()));
    let after = store.index_stats();
    let rate = (after.page_reads - before.page_reads) as f64 / ((after.lookups - before.lookups) as f64 / 2.0);
    let bytes = (after.index_bytes + after.filter_bytes) as f64 / COUNT as f64;
    println!("{bytes:.3} B a fragment, {rate:.4} reads a look-up of one held and one not");
    assert!(bytes < 1.4 && rate < 1.1, "{bytes} B a fragment, {rate} reads");
}
