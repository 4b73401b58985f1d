//! P9: a scripted workload runs with every fault at every I/O. Afterwards everything acknowledged as durable is there,
//! and the content is a prefix of the writes, in whole batches. Then the same with failpoints: the test must catch each
//! of them.

mod common;

use std::sync::Arc;

use common::*;
use tessera_cona::*;
use tessera_disk::{CrashKind, Fault, SimDisk, SimOptions, SplitMix64};
use tessera_failpoint as failpoint;

/// Every batch sets this to its own number.
const MARKER: &[u8] = b"marker";

/// What a user of the store knows.
#[derive(Default)]
struct Known {
    /// Acknowledged batches: the number of each, and all records after it.
    states: Vec<(u64, Model)>,
    /// Batches that failed since: the number of each, and the records if it took effect nevertheless.
    tried: Vec<(u64, Model)>,
    /// Acknowledged batches up to this number are durable.
    durable: u64,
    failures: u64,
}

impl Known {
    fn now(&self) -> Model {
        self.states.last().map(|(_, m)| m.clone()).unwrap_or_default()
    }

    fn last(&self) -> u64 {
        self.states.last().map_or(0, |(n, _)| *n)
    }
}

struct World {
    disk: SimDisk,
    options: Options,
    store: Option<Store>,
    known: Known,
    rng: SplitMix64,
    number: u64,
}

impl World {
    fn write(&mut self, durability: Durability) {
        let Some(store) = &self.store else { return };
        self.number += 1;
        let mut model = self.known.now();
        let mut batch = Batch::new();
        batch.put(MARKER, &self.number.to_le_bytes());
        model.insert(MARKER.to_vec(), self.number.to_le_bytes().to_vec());
        for _ in 0..1 + self.rng.below(4) {
            let key = key(&mut self.rng, 60);
            if self.rng.below(4) == 0 {
                batch.delete(&key);
                model.remove(&key);
            } else {
                let value = value(&mut self.rng);
                batch.put(&key, &value);
                model.insert(key, value);
            }
        }
        // Without a log, a write that fails to become durable has still been applied: two steps.
        let logged = self.options.logged;
        match store.write_with(batch, if logged { durability } else { Durability::Os }) {
            Ok(()) if !logged && durability == Durability::Sync => {
                self.known.states.push((self.number, model));
                self.known.tried.clear();
                let done = store.sync();
                self.durable_if(done);
            }
            Ok(()) => {
                self.known.states.push((self.number, model));
                self.known.tried.clear();
                if durability == Durability::Sync {
                    self.known.durable = self.number;
                }
            }
            Err(_) => {
                self.known.failures += 1;
                self.known.tried.push((self.number, model));
            }
        }
    }

    fn durable_if(&mut self, done: Result<(), Error>) {
        match done {
            Ok(()) => self.known.durable = self.known.last(),
            Err(_) => self.known.failures += 1,
        }
    }

    fn flush(&mut self) {
        if let Some(store) = &self.store {
            let done = store.flush();
            self.durable_if(done);
        }
    }

    fn sync(&mut self) {
        if let Some(store) = &self.store {
            let done = store.sync();
            self.durable_if(done);
        }
    }

    fn flush_soon(&mut self) {
        if let Some(store) = &self.store {
            self.known.failures += u64::from(store.flush_soon().is_err());
        }
    }

    fn compact(&mut self) {
        if let Some(store) = &self.store {
            let done = store.compact();
            self.known.failures += u64::from(done.is_err());
        }
    }

    fn reopen(&mut self) {
        self.store = None;
        match Store::open_on(Arc::new(self.disk.clone()), "", self.options.clone()) {
            Ok(store) => self.store = Some(store),
            Err(_) => self.known.failures += 1,
        }
    }
}

/// The workload: writes of both kinds, flushes, merges, a restart (not for an unlogged store, which would lose its
/// buffer), a compaction.
fn live(world: &mut World) {
    world.reopen();
    for i in 0..46 {
        world.write(if i % 5 == 2 { Durability::Sync } else { Durability::Os });
        match i {
            9 | 30 => world.flush(),
            15 => world.sync(),
            20 | 40 if world.options.logged => world.reopen(),
            23 => world.flush_soon(),
            36 => world.compact(),
            _ => {}
        }
    }
}

fn begin(seed: u64) -> World {
    let mut rng = SplitMix64::new(seed);
    let shape = match rng.below(3) {
        0 => Shape::Doubling { growth: 2 },
        _ => Shape::Folded { growth: 2, fold_percent: 60 },
    };
    let disk = SimDisk::with_options(&SimOptions::new(seed));
    let options = Options { shape, ..small() };
    World { disk, options, store: None, known: Known::default(), rng, number: 0 }
}

/// The same without a log.
fn begin_unlogged(seed: u64) -> World {
    let mut world = begin(seed);
    world.options.logged = false;
    world
}

/// Checks that the store on `disk` is a prefix with everything durable; returns the number of its last batch.
fn check(known: &Known, disk: &SimDisk, context: &str) -> Result<(), String> {
    let open =
        |disk: &SimDisk| Store::open_on(Arc::new(disk.clone()), "", small()).map_err(|e| format!("{context}: {e}"));
    let store = open(disk)?;
    let there = all(store.range(..).map_err(|e| e.to_string())?).map_err(|e| format!("{context}: {e}"))?;
    let last = there.get(MARKER).map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
    if last < known.durable {
        return Err(format!("{context}: batch {} was durable, {last} is the last there", known.durable));
    }
    let tried = known.tried.iter().find(|(n, _)| *n == last);
    let expected = known.states.iter().find(|(n, _)| *n == last).or(tried).map(|(_, m)| m.clone());
    let expected = if last == 0 { Some(Model::new()) } else { expected };
    if expected.as_ref() != Some(&there) {
        return Err(format!("{context}: after batch {last} the records are not those that were written"));
    }
    for (key, value) in &there {
        if store.get(key).map_err(|e| e.to_string())?.as_ref() != Some(value) {
            return Err(format!("{context}: {key:?} is found by a scan only"));
        }
    }
    // The store must accept writes.
    store.put(b"after", b"the crash").map_err(|e| format!("{context}: {e}"))?;
    drop(store);
    let store = open(disk)?;
    let after = store.get(b"after").map_err(|e| e.to_string())?;
    if after.as_deref() != Some(b"the crash") || !store.verify().damage.is_empty() {
        return Err(format!("{context}: the store does not go on after a recovery"));
    }
    Ok(())
}

const KINDS: [CrashKind; 4] = [CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn];

/// Runs the workload with one fault, then a crash, and checks what is left.
fn story(seed: u64, at: u64, fault: Fault, kind: CrashKind, mistake: Option<&str>) -> Result<(), String> {
    let guard = mistake.map(failpoint::activate);
    let mut world = begin(seed);
    world.disk.fail_at(at, fault);
    live(&mut world);
    world.store = None;
    drop(guard);
    let context = format!("seed {seed}, I/O {at}: {fault:?}, {kind:?}");
    let disk = world.disk.crash(kind);
    check(&world.known, &disk, &context)
}

fn io_count(seed: u64) -> u64 {
    let mut world = begin(seed);
    live(&mut world);
    assert_eq!(world.known.failures, 0, "a life without faults has no failures");
    let stats = world.store.as_ref().unwrap().stats();
    assert!(stats.cell_records > 0 && stats.buffer_records > 0, "{stats:?}");
    world.disk.io_count()
}

#[test]
fn power_loss_at_every_io_leaves_a_prefix_with_all_that_was_durable() {
    for seed in 0..3 {
        for at in 0..io_count(seed) {
            for kind in KINDS {
                story(seed, at, Fault::PowerLoss, kind, None).unwrap();
            }
        }
    }
}

/// Without a log, everything flushed or written with `Sync` survives, and the content is a prefix.
#[test]
fn power_loss_at_every_io_of_an_unlogged_store_leaves_a_prefix() {
    for seed in 20..22 {
        let mut world = begin_unlogged(seed);
        live(&mut world);
        assert_eq!(world.known.failures, 0);
        assert_eq!(world.store.as_ref().unwrap().stats().log_bytes, 0);
        for at in 0..world.disk.io_count() {
            for kind in KINDS {
                let mut world = begin_unlogged(seed);
                world.disk.fail_at(at, Fault::PowerLoss);
                live(&mut world);
                world.store = None;
                let disk = world.disk.crash(kind);
                check(&world.known, &disk, &format!("unlogged, seed {seed}, I/O {at}, {kind:?}")).unwrap();
            }
        }
    }
}

#[test]
fn a_failing_io_harms_nothing() {
    for seed in 3..5 {
        for at in 0..io_count(seed) {
            for fault in [Fault::Eio, Fault::NoSpace, Fault::SyncFails] {
                let kind = KINDS[(at % 4) as usize];
                story(seed, at, fault, kind, None).unwrap();
            }
        }
    }
}

/// After a failed sync, the process restarts on the same machine.
#[test]
fn a_restart_after_a_failed_sync_shows_what_the_medium_has() {
    for seed in 5..7 {
        for at in 0..io_count(seed) {
            let mut world = begin(seed);
            world.disk.fail_at(at, Fault::SyncFails);
            live(&mut world);
            world.store = None;
            let disk = world.disk.reopen();
            check(&world.known, &disk, &format!("seed {seed}, I/O {at}, restart")).unwrap();
        }
    }
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    for capacity in (2_000..60_000).step_by(3_700) {
        let mut world = begin(11);
        world.reopen();
        world.disk.set_capacity(capacity);
        for _ in 0..40 {
            world.write(Durability::Os);
        }
        let refused = world.known.failures;
        world.disk.set_capacity(1 << 30);
        for _ in 0..20 {
            world.write(Durability::Sync);
        }
        assert_eq!(world.known.failures, refused, "with {capacity} bytes: there is room again");
        assert!(capacity > 20_000 || refused > 0, "{capacity} bytes were enough");
        world.store = None;
        let disk = world.disk.crash(CrashKind::KeepNone);
        check(&world.known, &disk, &format!("full at {capacity}")).unwrap();
    }
}

/// A lying sync loses data. The rest must still be a prefix or a clear error, never a wrong value.
#[test]
fn a_lying_sync_never_gives_wrong_values() {
    let mut errors = 0;
    for at in 0..io_count(8) {
        let mut world = begin(8);
        world.disk.fail_at(at, Fault::SyncLies);
        live(&mut world);
        world.store = None;
        world.known.durable = 0;
        let disk = world.disk.crash(KINDS[(at % 4) as usize]);
        let opened = Store::open_on(Arc::new(disk.clone()), "", small());
        match opened.and_then(|s| all(s.range(..)?)) {
            Ok(_) => check(&world.known, &disk, &format!("I/O {at}: lie")).unwrap(),
            Err(error) => {
                assert!(error.is_damage(), "{error}");
                errors += 1;
            }
        }
    }
    println!("{errors} errors");
}

#[test]
fn failpoints_of_durability_are_caught() {
    for mistake in ["cona.ack_before_sync", "cona.cell_not_synced", "cona.values_not_synced", "cona.remove_log_early"] {
        let caught = (0..40).any(|seed| {
            (seed % 7..io_count(seed))
                .step_by(7)
                .any(|at| story(seed, at, Fault::PowerLoss, KINDS[(at % 4) as usize], Some(mistake)).is_err())
        });
        assert!(caught, "{mistake} was not caught");
    }
}
