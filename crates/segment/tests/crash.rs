//! P9: whatever fails at whatever I/O of a scripted life of a store, what was acknowledged is there afterwards, what was
//! deleted stays deleted (P3), and nothing is there that was not written. Then the same with planted bugs: each must be caught.

mod common;

use std::collections::BTreeMap;

use common::*;
use planted::PlantedBug;
use tessera_disk::{CrashKind, Fault, SimDisk};
use tessera_segment::*;

/// What the outside world knows of one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Put, not acknowledged: may be there or not.
    PutTried,
    /// Acknowledged: must be there.
    Held,
    /// A delete is under way: may be there or not.
    DeleteTried,
    /// Its delete was acknowledged: must not be there.
    Deleted,
    /// Its append failed: may be there after a crash now.
    PutFailed,
    /// Its append failed, and a later sync succeeded: must not be there.
    Refused,
    /// Its delete failed: may be there or not after a crash now; must be there once a later sync succeeded.
    DeleteFailed,
}

struct World {
    store: SegmentStore,
    known: BTreeMap<FragmentId, Known>,
    /// After a failed operation the script goes on, unless the disk is gone.
    failures: u64,
    /// Records that compaction could not read.
    unreadable: usize,
}

impl World {
    fn put(&mut self, chunk: u64, len: usize) {
        let id = id(chunk, (chunk % 3) as u16);
        match put(&self.store, id, len) {
            Ok(Appended::Written(_)) => {
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
            Ok(Deleted::Removed) => {
                self.known.insert(id, Known::DeleteTried);
            }
            Ok(Deleted::NotHeld) => panic!("{id} was acknowledged and is not held"),
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
        self.failures += u64::from(self.store.seal_dead().is_err());
    }

    fn compact(&mut self) {
        for _ in 0..6 {
            match self.store.compact_step(1500) {
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

/// A life: puts of many sizes, deletes of most, compaction, puts again. Chunk ids are never used twice.
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

fn options(planted: PlantedBug) -> Options {
    Options { segment_size_bytes: 7000, reserve_bytes: 0, compact_buffer_bytes: 1000, planted, ..Options::default() }
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
    let live: u64 = store.list(None, usize::MAX).iter().map(Entry::record_bytes).sum();
    assert!(stats.live_bytes >= live && stats.live_bytes <= live + stats.deletes * 128, "{context}: {stats:?}");
}

fn begin(seed: u64, planted: PlantedBug) -> (SimDisk, World) {
    let disk = sim(seed);
    let (store, _) = open(&disk, options(planted)).unwrap();
    (disk, World { store, known: BTreeMap::new(), failures: 0, unreadable: 0 })
}

/// Runs the life with a fault at I/O `at`, then looks at what every kind of crash leaves, and lives on.
fn one(at: u64, fault: Fault, seed: u64, planted: PlantedBug) {
    let context = format!("{fault:?} at {at}, seed {seed}, {planted:?}");
    let (disk, mut world) = begin(seed.wrapping_mul(1_000_003) ^ at, planted);
    disk.fail_at(at, fault);
    live(&mut world, 1);
    assert!(world.unreadable == 0 || disk.is_off(), "{context}: a single failing read is tried again");
    let mut known = world.known;
    for kind in [CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn] {
        let (store, report) = open(&disk.crash(kind), options(planted)).unwrap();
        assert!(report.findings.is_empty(), "{context}, {kind:?}: {report:?}");
        check(&known, &store, &format!("{context}, {kind:?}"));
    }
    // The process restarts on the same machine, settles what was in doubt, lives on, and then the power fails.
    let disk = disk.reopen();
    let (store, report) = open(&disk, options(planted)).unwrap();
    assert!(report.findings.is_empty(), "{context}, reopened: {report:?}");
    check(&known, &store, &format!("{context}, reopened"));
    let there: BTreeMap<_, _> = held(&store).into_iter().collect();
    known.iter_mut().for_each(|(id, k)| *k = if there.contains_key(id) { Known::Held } else { Known::Deleted });
    let mut world = World { store, known, failures: 0, unreadable: 0 };
    live(&mut world, 101);
    assert_eq!(world.failures, 0, "{context}");
    check(&world.known, &world.store, &format!("{context}, second life"));
    let (store, _) = open(&disk.crash(CrashKind::KeepNone), options(planted)).unwrap();
    check(&world.known, &store, &format!("{context}, second life, crashed"));
}

fn every_io(planted: PlantedBug, faults: &[Fault], seeds: u64, step: usize) -> u64 {
    let (disk, mut world) = begin(0, PlantedBug::None);
    live(&mut world, 1);
    assert_eq!(world.failures, 0);
    let total = disk.io_count();
    for at in (0..total).step_by(step) {
        for &fault in faults {
            (0..seeds).for_each(|seed| one(at, fault, seed, planted));
        }
    }
    total
}

#[test]
fn power_loss_at_every_io() {
    let total = every_io(PlantedBug::None, &[Fault::PowerLoss], 4, 1);
    assert!(total > 100, "the life has only {total} I/Os");
}

#[test]
fn an_io_error_at_every_io() {
    every_io(PlantedBug::None, &[Fault::Eio], 2, 1);
}

#[test]
fn no_space_at_every_io() {
    every_io(PlantedBug::None, &[Fault::NoSpace], 2, 1);
}

#[test]
fn a_failed_sync_at_every_io() {
    every_io(PlantedBug::None, &[Fault::SyncFails], 2, 1);
}

/// Trust no test that cannot fail: each of these bugs is caught by the tests above.
#[test]
fn planted_bugs_are_caught() {
    let faults = [Fault::PowerLoss, Fault::Eio];
    let caught = |planted| std::panic::catch_unwind(|| every_io(planted, &faults, 2, 1)).is_err();
    assert!(!caught(PlantedBug::None));
    for planted in [
        PlantedBug::AckBeforeSync,
        PlantedBug::KeepTornTail,
        PlantedBug::DropDeletesEarly,
        PlantedBug::SkipDataCheck,
        PlantedBug::RemoveBeforeSync,
        PlantedBug::KeepFailedAppend,
    ] {
        assert!(caught(planted), "{planted:?} survived");
    }
}
