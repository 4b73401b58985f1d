//! Random workloads of a store against a map. At any time the store may restart or lose power. Everything synced is
//! there, and everything deleted stays deleted (P3, P8, P9).

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use proptest::prelude::*;
use tessera_disk::{CrashKind, SimDisk};
use tessera_failpoint as failpoint;
use tessera_segment::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Put { chunk: u64, fragment: u16, len: usize, session: u64 },
    Delete { chunk: u64, fragment: u16 },
    Sync,
    Seal,
    Compact { budget: u64 },
    Restart,
    Crash(CrashKind),
    Get { chunk: u64, fragment: u16 },
}

fn op() -> impl Strategy<Value = Op> {
    let chunk = 0..8u64;
    prop_oneof![
        10 => (chunk.clone(), 0..2u16, 0..300usize, 0..3u64)
            .prop_map(|(chunk, fragment, len, session)| Op::Put { chunk, fragment, len, session }),
        6 => (chunk.clone(), 0..2u16).prop_map(|(chunk, fragment)| Op::Delete { chunk, fragment }),
        6 => Just(Op::Sync),
        3 => (1..2000u64).prop_map(|budget| Op::Compact { budget }),
        1 => Just(Op::Seal),
        1 => Just(Op::Restart),
        1 => prop_oneof![Just(CrashKind::KeepNone), Just(CrashKind::KeepAll), Just(CrashKind::KeepSome), Just(CrashKind::Torn)]
            .prop_map(Op::Crash),
        2 => (chunk, 0..2u16).prop_map(|(chunk, fragment)| Op::Get { chunk, fragment }),
    ]
}

/// Length of each fragment present.
type Held = BTreeMap<FragmentId, usize>;

struct Model {
    disk: SimDisk,
    store: SegmentStore,
    /// State at the last sync.
    synced: Held,
    /// State with the appends and deletes since.
    newest: Held,
    /// The states of each fragment since the last sync: a power loss may leave any of them.
    since: BTreeMap<FragmentId, Vec<Option<usize>>>,
    /// Every fragment ever deleted.
    deleted: BTreeSet<FragmentId>,
}

fn options() -> Options {
    Options { segment_size_bytes: 5500, reserve_bytes: 0, compact_buffer_bytes: 400 }
}

impl Model {
    fn new(seed: u64) -> Self {
        let disk = sim(seed);
        let (store, _) = open(&disk, options()).unwrap();
        Model {
            disk,
            store,
            synced: Held::new(),
            newest: Held::new(),
            since: BTreeMap::new(),
            deleted: BTreeSet::new(),
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Put { chunk, fragment, len, session } => self.put(id(chunk, fragment), len, session),
            Op::Delete { chunk, fragment } => self.delete(id(chunk, fragment)),
            Op::Sync => {
                self.store.sync().unwrap();
                self.settle();
            }
            Op::Compact { budget } => {
                let report = self.store.compact_step(50, budget).unwrap();
                assert!(report.findings.is_empty());
            }
            Op::Seal => {
                self.store.seal_dead(0).unwrap();
            }
            Op::Restart => {
                // The cache survives, so the appended records are there, and opening has synced them.
                self.reopen(self.disk.reopen());
                self.settle();
            }
            Op::Crash(kind) => {
                self.reopen(self.disk.crash(kind));
                self.accept_survivors();
            }
            Op::Get { chunk, fragment } => {
                let id = id(chunk, fragment);
                // A rotation or a compaction may have synced more than the model knows.
                let found = self.store.get(id).unwrap().map(|handle| handle.entry().data_len as usize);
                assert!(self.may_be(id, found));
            }
        }
    }

    fn put(&mut self, id: FragmentId, len: usize, session: u64) {
        let got = put_session(&self.store, id, len, session).unwrap();
        match (self.newest.get(&id), got) {
            (Some(&held), AppendOutcome::AlreadyHeld(_)) if held == len => {}
            (Some(&held), AppendOutcome::Conflict { .. }) if held != len => {}
            // Compaction forgets a delete once no older record is left; until then only a repair passes.
            (None, AppendOutcome::Written(_)) => {
                self.newest.insert(id, len);
                self.since.entry(id).or_default().push(Some(len));
            }
            (None, AppendOutcome::Deleted) if session != 0 && self.deleted.contains(&id) => {}
            other => panic!("{other:?}"),
        }
    }

    fn delete(&mut self, id: FragmentId) {
        let expected = if self.newest.remove(&id).is_some() { DeleteOutcome::Removed } else { DeleteOutcome::NotHeld };
        assert_eq!(delete(&self.store, id).unwrap(), expected);
        if expected == DeleteOutcome::Removed {
            self.deleted.insert(id);
            self.since.entry(id).or_default().push(None);
        }
    }

    fn reopen(&mut self, disk: SimDisk) {
        let (store, report) = open(&disk, options()).unwrap();
        assert!(report.findings.is_empty(), "a torn tail was taken for rot: {report:?}");
        (self.disk, self.store) = (disk, store);
    }

    fn may_be(&self, id: FragmentId, state: Option<usize>) -> bool {
        let since = self.since.get(&id).is_some_and(|states| states.contains(&state));
        since || self.synced.get(&id).copied() == state
    }

    /// Everything is durable now: the store must show exactly that.
    fn settle(&mut self) {
        let there: Held = held(&self.store).into_iter().collect();
        assert_eq!(there, self.newest);
        self.synced.clone_from(&self.newest);
        self.since.clear();
    }

    /// After a power loss, each fragment is as last synced, or in a state it had since.
    fn accept_survivors(&mut self) {
        let there: Held = held(&self.store).into_iter().collect();
        for chunk in 0..8 {
            for fragment in 0..2 {
                let id = id(chunk, fragment);
                let state = there.get(&id).copied();
                assert!(self.may_be(id, state), "{id}: {state:?}, but was synced as {:?}", self.synced.get(&id));
            }
        }
        self.newest = there;
        self.settle();
    }
}

fn live(seed: u64, ops: &[Op]) {
    let mut model = Model::new(seed);
    ops.iter().for_each(|op| model.step(*op));
    model.step(Op::Sync);
    model.step(Op::Crash(CrashKind::KeepNone));
}

/// One case takes about 50 operations. `TESSERA_CASES` asks for more than the default of 10,000.
fn cases() -> u32 {
    std::env::var("TESSERA_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn random_lives_agree_with_a_map() {
    proptest!(config(cases()), |(seed: u64, ops in prop::collection::vec(op(), 50))| {
        live(seed, &ops);
    });
}

/// The model can fail: it catches these bugs within a few hundred cases.
#[test]
fn failpoints_do_not_agree() {
    for mistake in
        ["segment.ack_before_sync", "segment.keep_torn_tail", "segment.drop_deletes_early", "segment.skip_data_check"]
    {
        let _guard = failpoint::activate(mistake);
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { max_shrink_iters: 0, ..config(2000) });
        let result = runner.run(&(any::<u64>(), prop::collection::vec(op(), 50)), |(seed, ops)| {
            live(seed, &ops);
            Ok(())
        });
        assert!(result.is_err(), "{mistake} survived");
    }
}
