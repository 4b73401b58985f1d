//! Levels that stay on a device: asked from the host they answer as the CPU does, and only queries travel.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use tessera_accel::RunError;
use tessera_accel::device::Work;
use tessera_accel::emulated::Emulated;
use tessera_accel::runtime::{Backend, Fault, Options, Runtime, SubmitError};
use tessera_accel::testing::{Faulty, Handle, Plan};
use tessera_hashgpu::lookup::{Levels, Sorted};
use tessera_hashgpu::{ResidentError, ResidentLevels};

fn runtime(backend: impl Backend + 'static) -> Runtime {
    Runtime::new(vec![Arc::new(backend)], Options { cpu_threads: 1, ..Options::default() }).unwrap()
}

/// Some levels, with keys in several of them, and queries of which many hit.
fn some(rng: &mut StdRng, levels: usize) -> (Vec<Vec<u64>>, Vec<u64>) {
    let mut level = |_| {
        let span = if rng.random() { 200 } else { u64::MAX };
        let mut keys: Vec<u64> = (0..rng.random_range(0..60)).map(|_| rng.random_range(0..=span)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    let arrays: Vec<Vec<u64>> = (0..levels).map(&mut level).collect();
    let known = arrays.iter().flatten().copied();
    let queries = known.chain((0..100).map(|i| 2 * i)).chain([0, u64::MAX]).collect();
    (arrays, queries)
}

fn levels(arrays: &[Vec<u64>]) -> Levels<'_, u64> {
    Levels::new(arrays.iter().map(|keys| Sorted::new(keys).unwrap()).collect()).unwrap()
}

#[test]
fn levels_that_stay_on_a_device_answer_from_several_threads() {
    let (mut rng, runtime) = (StdRng::seed_from_u64(31), runtime(Emulated::new(0)));
    let (mut asked, mut hits) = (0, 0);
    for case in 0..60 {
        let (arrays, queries) = some(&mut rng, case % 6);
        let levels = levels(&arrays);
        let (kept, expected) = (ResidentLevels::new(&runtime, 0, &levels).unwrap(), levels.find_reference(&queries));
        assert!(kept.find(&runtime, &[]).unwrap().is_empty());
        std::thread::scope(|scope| {
            for queries in [&queries[..], &queries[..queries.len() / 2], &queries[..1]] {
                let (runtime, kept, expected) = (&runtime, &kept, &expected[..queries.len()]);
                scope.spawn(move || assert_eq!(kept.find(runtime, queries).unwrap(), expected));
            }
        });
        asked += queries.len() + queries.len() / 2 + 1;
        hits += expected.iter().flatten().count();
    }
    assert!(hits > 2_000, "{hits}");
    // The device answered all of it, and was sent nothing else.
    let state = &runtime.devices()[0];
    assert_eq!((state.retired.clone(), state.done["lookup"]), (None, Work { jobs: 180, bytes: 8 * asked as u64 }));
    assert!(runtime.done_on_cpu().is_empty());
}

#[test]
fn a_device_that_is_lost_loses_no_answers() {
    let mut rng = StdRng::seed_from_u64(32);
    for plan in [Plan::LaunchFails(1), Plan::DiesRunning(1), Plan::Panics(1)] {
        let runtime = runtime(Handle(Faulty::new(0, plan)));
        let (arrays, queries) = some(&mut rng, 4);
        let levels = levels(&arrays);
        let kept = ResidentLevels::new(&runtime, 0, &levels).unwrap();
        for _ in 0..4 {
            match (plan, kept.find(&runtime, &queries)) {
                (_, Ok(found)) => assert_eq!(found, levels.find_reference(&queries), "{plan:?}"),
                (Plan::Panics(_), Err(RunError::Job(_))) => {}
                (_, Err(error)) => panic!("{plan:?}: {error}"),
            }
        }
    }
}

/// P14.
#[test]
fn levels_that_cannot_be_kept_or_are_kept_elsewhere_are_refused() {
    let (arrays, queries) = some(&mut StdRng::seed_from_u64(33), 5);
    let levels = levels(&arrays);
    let (one, other) = (runtime(Emulated::new(0)), runtime(Emulated::new(0)));
    let kept = ResidentLevels::new(&one, 0, &levels).unwrap();
    let refused = kept.find(&other, &queries);
    assert!(matches!(refused, Err(RunError::Submit(SubmitError::Elsewhere))), "{refused:?}");
    assert!(matches!(
        ResidentLevels::new(&one, 1, &levels).err(),
        Some(ResidentError::NoSuchDevice { index: 1, count: 1 })
    ));
    let tiny = ResidentLevels::new(&runtime(Emulated::new(0).with_memory(64)), 0, &levels).err();
    assert!(matches!(tiny, Some(ResidentError::Device(Fault::NoMemory { .. }))), "{tiny:?}");
}
