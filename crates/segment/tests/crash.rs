//! P9: a scripted workload runs with every fault at every I/O. Afterwards everything acknowledged is there, everything
//! deleted stays deleted (P3), and nothing is there that was not written. Then the same with failpoints: the test must
//! catch each of them. All of it runs with either index: the one on flash must restore exactly what a scan of all
//! segments would.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use tessera_disk::{CrashKind, Disk, Fault, SimDisk};
use tessera_failpoint as failpoint;
use tessera_segment::*;

/// What a user of the store knows of one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Put but not acknowledged: may be there or not.
    PutTried,
    /// Acknowledged: must be there.
    Held,
    /// Delete in progress: may be there or not.
    DeleteTried,
    /// Delete acknowledged: must not be there.
    Deleted,
    /// Append failed: may be there after a crash now.
    PutFailed,
    /// Append failed, and a later sync succeeded: must not be there.
    Refused,
    /// Delete failed: may be there or not after a crash now; must be there once a later sync succeeds.
    DeleteFailed,
}

/// The kind of index of the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Memory,
    Flash,
}

fn open_kept(disk: &SimDisk, options: Options, kept: Kept) -> Result<(SegmentStore, OpenReport), OpenError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let index: Box<dyn Index> = match kept {
        Kept::Memory => Box::<MemIndex>::default(),
        Kept::Flash => Box::new(ConaIndex::open_inline(disk.clone(), 4096)),
    };
    SegmentStore::open_with_index(disk, options, index, &mut |_| {})
}

thread_local! {
    /// How many openings rebuilt the index, and how many used it.
    static OPENED: RefCell<[u64; 2]> = const { RefCell::new([0; 2]) };
}

/// Opens the store. If the index was used, compares it with the result of a scan.
fn open_checked(disk: &SimDisk, kept: Kept, context: &str) -> (SegmentStore, OpenReport) {
    let (store, report) = open_kept(disk, options(), kept).unwrap_or_else(|e| panic!("{context}: {e}"));
    if kept == Kept::Flash {
        let (scanned, _) = open(disk, options()).unwrap();
        assert_eq!(store.list(None, usize::MAX).unwrap(), scanned.list(None, usize::MAX).unwrap(), "{context}");
        let figures = |store: &SegmentStore| Stats { index_bytes: 0, ..store.stats() };
        assert_eq!(figures(&store), figures(&scanned), "{context}, {report:?}");
        OPENED.with_borrow_mut(|opened| opened[usize::from(report.resumed)] += 1);
    }
    (store, report)
}

struct World {
    store: SegmentStore,
    known: BTreeMap<FragmentId, Known>,
    /// The workload continues after a failed operation, unless the disk is gone.
    failures: u64,
    /// Records that compaction could not read.
    unreadable: usize,
}

impl World {
    fn put(&mut self, chunk: u64, len: usize) {
        let id = id(chunk, (chunk % 3) as u16);
        match put(&self.store, id, len) {
            Ok(AppendOutcome::Written(_)) => {
                self.known.insert(id, Known::PutTried);
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => {
                self.failures += 1;
                self.known.insert(id, Known::PutFailed);
            }
        }
    }

    fn delete(&mut self, chunk: u64) {
        let id = id(chunk, (chunk % 3) as u16);
        if !matches!(self.known.get(&id), Some(Known::Held)) {
            return;
        }
        match delete(&self.store, id) {
            Ok(DeleteOutcome::Removed) => {
                self.known.insert(id, Known::DeleteTried);
            }
            Ok(DeleteOutcome::NotHeld) => panic!("{id} was acknowledged and is not held"),
            Err(_) => {
                self.failures += 1;
                self.known.insert(id, Known::DeleteFailed);
            }
        }
    }

    fn sync(&mut self) {
        if self.store.sync().is_err() {
            self.failures += 1;
            return;
        }
        for known in self.known.values_mut() {
            *known = match *known {
                Known::PutTried => Known::Held,
                Known::DeleteTried => Known::Deleted,
                Known::PutFailed => Known::Refused,
                Known::DeleteFailed => Known::Held,
                other => other,
            };
        }
    }

    fn seal(&mut self) {
        self.failures += u64::from(self.store.seal_dead(0).is_err());
    }

    fn compact(&mut self) {
        for _ in 0..6 {
            match self.store.compact_step(50, 1500) {
                Ok(report) => {
                    let unreadable = |f: &Finding| matches!(f.damage, Damage::Unreadable { .. });
                    assert!(report.findings.iter().all(unreadable), "{report:?}");
                    self.unreadable += report.findings.len();
                }
                Err(_) => self.failures += 1,
            }
        }
    }
}

/// The workload: puts of many sizes, deletes of most, compaction, more puts. Chunk ids are never reused.
fn live(world: &mut World, from: u64) {
    for chunk in from..from + 12 {
        world.put(chunk, (chunk as usize * 397) % 1500);
        if chunk % 3 == 0 {
            world.sync();
        }
    }
    world.sync();
    (from..from + 12).filter(|c| c % 4 != 1).for_each(|chunk| world.delete(chunk));
    world.sync();
    world.compact();
    world.put(from + 12, 700);
    world.delete(from + 1);
    world.sync();
    world.seal();
    world.compact();
}

fn options() -> Options {
    Options { segment_size_bytes: 7000, reserve_bytes: 0, compact_buffer_bytes: 1000 }
}

fn check(known: &BTreeMap<FragmentId, Known>, store: &SegmentStore, context: &str) {
    let there: BTreeMap<_, _> = held(store).into_iter().collect();
    for (id, known) in known {
        let is = there.contains_key(id);
        match known {
            Known::Held => assert!(is, "{context}: acknowledged {id} is lost"),
            Known::Deleted => assert!(!is, "{context}: deleted {id} is back"),
            Known::Refused => assert!(!is, "{context}: refused {id} is there"),
            Known::PutTried | Known::PutFailed | Known::DeleteTried | Known::DeleteFailed => {}
        }
    }
    for id in there.keys() {
        assert!(known.contains_key(id), "{context}: {id} was never written");
    }
    let stats = store.stats();
    let live: u64 = store.list(None, usize::MAX).unwrap().iter().map(Entry::record_bytes).sum();
    assert!(stats.live_bytes >= live && stats.live_bytes <= live + stats.deletes * 128, "{context}: {stats:?}");
}

fn begin(seed: u64, kept: Kept) -> (SimDisk, World) {
    let disk = sim(seed);
    let (store, _) = open_kept(&disk, options(), kept).unwrap();
    (disk, World { store, known: BTreeMap::new(), failures: 0, unreadable: 0 })
}

/// Runs the workload with a fault at I/O `at`, checks the result of every kind of crash, and continues.
fn one(at: u64, fault: Fault, seed: u64, kept: Kept) {
    let context = format!("{fault:?} at {at}, seed {seed}, {kept:?}");
    let (disk, mut world) = begin(seed.wrapping_mul(1_000_003) ^ at, kept);
    disk.fail_at(at, fault);
    live(&mut world, 1);
    assert!(world.unreadable == 0 || disk.is_off(), "{context}: a single failing read is tried again");
    let mut known = world.known;
    for kind in [CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn] {
        let (store, report) = open_checked(&disk.crash(kind), kept, &format!("{context}, {kind:?}"));
        assert!(report.findings.is_empty(), "{context}, {kind:?}: {report:?}");
        check(&known, &store, &format!("{context}, {kind:?}"));
    }
    // The process restarts on the same machine, settles uncertain states and continues; then the power fails.
    let disk = disk.reopen();
    let (store, report) = open_checked(&disk, kept, &format!("{context}, reopened"));
    assert!(report.findings.is_empty(), "{context}, reopened: {report:?}");
    check(&known, &store, &format!("{context}, reopened"));
    let there: BTreeMap<_, _> = held(&store).into_iter().collect();
    known.iter_mut().for_each(|(id, k)| *k = if there.contains_key(id) { Known::Held } else { Known::Deleted });
    let mut world = World { store, known, failures: 0, unreadable: 0 };
    live(&mut world, 101);
    assert_eq!(world.failures, 0, "{context}");
    check(&world.known, &world.store, &format!("{context}, second life"));
    let (store, _) = open_checked(&disk.crash(CrashKind::KeepNone), kept, &format!("{context}, the end"));
    check(&world.known, &store, &format!("{context}, second life, crashed"));
}

fn every_io(faults: &[Fault], seeds: u64, step: usize, kept: Kept) -> u64 {
    let (disk, mut world) = begin(0, kept);
    live(&mut world, 1);
    assert_eq!(world.failures, 0);
    let total = disk.io_count();
    for at in (0..total).step_by(step) {
        for &fault in faults {
            (0..seeds).for_each(|seed| one(at, fault, seed, kept));
        }
    }
    total
}

#[test]
fn power_loss_at_every_io() {
    let total = every_io(&[Fault::PowerLoss], 4, 1, Kept::Memory);
    assert!(total > 100, "the life has only {total} I/Os");
}

#[test]
fn an_io_error_at_every_io() {
    every_io(&[Fault::Eio], 2, 1, Kept::Memory);
}

#[test]
fn no_space_at_every_io() {
    every_io(&[Fault::NoSpace], 2, 1, Kept::Memory);
}

#[test]
fn a_failed_sync_at_every_io() {
    every_io(&[Fault::SyncFails], 2, 1, Kept::Memory);
}

/// Covers the index's own I/Os and the scan that rebuilds a lost index.
#[test]
fn power_loss_at_every_io_with_the_index_on_flash() {
    let total = every_io(&[Fault::PowerLoss], 3, 1, Kept::Flash);
    assert!(total > 200, "the life has only {total} I/Os");
    let [anew, used] = OPENED.take();
    println!("{anew} made anew, {used} used");
    assert!(used > anew && anew > 0, "{anew} made anew, {used} used");
}

#[test]
fn a_failing_io_at_every_io_with_the_index_on_flash() {
    every_io(&[Fault::Eio, Fault::NoSpace, Fault::SyncFails], 1, 1, Kept::Flash);
}

/// A power loss at every I/O of a scan that builds the index: the next scan restarts or resumes.
#[test]
fn power_loss_at_every_io_while_the_index_is_made() {
    let mut at = 0;
    loop {
        let (disk, mut world) = begin(9, Kept::Memory);
        live(&mut world, 1);
        live(&mut world, 101);
        drop(world.store);
        let disk = disk.reopen();
        let before = disk.io_count();
        disk.fail_at(before + at, Fault::PowerLoss);
        let opened = open_kept(&disk, options(), Kept::Flash);
        if let Ok((store, _)) = &opened {
            let _ = store.close();
        }
        drop(opened);
        let done = !disk.is_off();
        for (n, kind) in [CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::Torn].into_iter().enumerate() {
            let (store, report) = open_checked(&disk.crash(kind), Kept::Flash, &format!("I/O {at}, {kind:?}"));
            assert!(report.findings.is_empty());
            check(&world.known, &store, &format!("I/O {at}, {kind:?}"));
            assert!(n > 0 || !done || report.resumed);
        }
        if done {
            break;
        }
        at += 1;
    }
    assert!(at > 30, "making the index took only {at} I/Os");
}

/// More segments than one index buffer has rows for. After a crash while an opening resumes from the index, the next
/// opening can resume, too. It must not enter the records of any segment twice.
#[test]
fn power_loss_at_every_io_while_an_index_of_many_segments_is_resumed() {
    let mut at = 0;
    loop {
        let (disk, world) = begin(3, Kept::Flash);
        for chunk in 0..100 {
            put(&world.store, id(1000 + chunk, 0), 3000).unwrap();
            world.store.sync().unwrap();
        }
        assert!(world.store.stats().segments > 40);
        world.store.close().unwrap();
        drop(world);
        let disk = disk.reopen();
        disk.fail_at(disk.io_count() + at, Fault::PowerLoss);
        let opened = open_kept(&disk, options(), Kept::Flash);
        let done = opened.as_ref().is_ok_and(|(store, _)| store.close().is_ok());
        drop(opened);
        for kind in [CrashKind::KeepNone, CrashKind::KeepAll] {
            open_checked(&disk.crash(kind), Kept::Flash, &format!("I/O {at}, {kind:?}"));
        }
        if done {
            break;
        }
        at += 1;
    }
    assert!(at > 100, "opening took only {at} I/Os");
}

/// The tests can fail: they catch each of these bugs.
#[test]
fn failpoints_are_caught() {
    let faults = [Fault::PowerLoss, Fault::Eio];
    let caught = |mistake: Option<&str>, kept| {
        std::panic::catch_unwind(|| {
            let _guard = mistake.map(failpoint::activate);
            every_io(&faults, 2, 1, kept)
        })
        .is_err()
    };
    assert!(!caught(None, Kept::Memory));
    for mistake in ["segment.index_forgets_tombstones", "segment.index_forgets_entries", "segment.ack_before_sync"] {
        assert!(caught(Some(mistake), Kept::Flash), "{mistake} survived");
    }
    for mistake in [
        "segment.ack_before_sync",
        "segment.keep_torn_tail",
        "segment.drop_deletes_early",
        "segment.skip_data_check",
        "segment.remove_before_sync",
        "segment.keep_failed_append",
    ] {
        assert!(caught(Some(mistake), Kept::Memory), "{mistake} survived");
    }
}
