//! Every translation layer, under any requests and garbage collection, equals a plain map, and its counters balance.

mod common;

use common::{CPFTL, PAGE, Step, config, step};
use proptest::prelude::*;
use tessera_flash::ftl::{ColaOptions, CpftlOptions, LAYERS};
use tessera_flash::{Cause, Config, Op, Policy, Shape, Ssd};

/// Runs the steps on a new SSD beside a map, `rounds` times.
fn run(config: &Config, steps: &[Step], rounds: usize) -> Ssd {
    common::run(Ssd::new(config).unwrap(), steps, rounds)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_layer_equals_a_plain_map(
        steps in prop::collection::vec(step(), 1..300),
        greedy in any::<bool>(),
        parallel in any::<bool>(),
    ) {
        let policy = if greedy { Policy::Greedy } else { Policy::CostBenefit };
        let shape = if parallel { Shape { channels: 2, planes: 2, ..Shape::ONE_DIE } } else { Shape::ONE_DIE };
        for layer in LAYERS {
            run(&config(layer.name, policy, shape), &steps, 8);
        }
    }

    #[test]
    fn cpftl_equals_a_plain_map_with_any_mechanism_off(steps in prop::collection::vec(step(), 1..300)) {
        for off in ["no-correlation", "full-mining,no-sequential", "full-search", "no-dirty-index", "no-skew", "keep=0,hot=1,dirty=80"] {
            let options = CpftlOptions::parse(&format!("{CPFTL},{off}")).unwrap();
            run(&Config { cpftl: options, ..config("cpftl", Policy::Greedy, Shape::ONE_DIE) }, &steps, 8);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn leaftl_equals_a_plain_map_with_any_error_bound_and_cache(
        steps in prop::collection::vec(step(), 1..300),
        bound in 0u32..=16,
        map_cache in 256u64..4096,
        parallel in any::<bool>(),
    ) {
        let shape = if parallel { Shape { channels: 2, planes: 2, ..Shape::ONE_DIE } } else { Shape::ONE_DIE };
        run(&Config { error_bound: bound, map_cache, ..config("leaftl", Policy::Greedy, shape) }, &steps, 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn learnedftl_equals_a_plain_map_with_any_spare_blocks_and_cache(
        steps in prop::collection::vec(step(), 1..300),
        spare in prop_oneof![0.2f64..0.35, 0.35..2.0],
        map_cache in 448u64..8192,
        planes in 1u32..=4,
    ) {
        let shape = Shape { channels: 2, planes, ..Shape::ONE_DIE };
        let over_provisioning = spare + 0.1 * f64::from(planes - 1);
        run(&Config { over_provisioning, map_cache, ..config("learnedftl", Policy::Greedy, shape) }, &steps, 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn cola_equals_a_plain_map_with_any_buffer(
        steps in prop::collection::vec(step(), 1..300),
        options in prop_oneof![(64u32..3000).prop_map(ColaOptions::Buffer), (1u32..8).prop_map(ColaOptions::Height)],
        parallel in any::<bool>(),
    ) {
        let shape = if parallel { Shape { channels: 2, planes: 2, ..Shape::ONE_DIE } } else { Shape::ONE_DIE };
        run(&Config { cola: options, ..config("cola", Policy::Greedy, shape) }, &steps, 8);
    }
}

/// A generator of the tests' own requests.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut rng = tessera_disk::SplitMix64::new(seed);
    move |below| rng.next_u64() % below
}

#[test]
fn the_steps_collect_garbage_and_replace_dirty_entries() {
    let mut next = random(3);
    let steps: Vec<Step> = (0..20_000).map(|_| Step::Write(next(2048), 1)).collect();
    for layer in LAYERS {
        let ssd = run(&config(layer.name, Policy::Greedy, Shape::ONE_DIE), &steps, 1);
        let c = ssd.counters();
        assert!(c.programs(Cause::Gc) > 1_000, "{}: {c:?}", layer.name);
        if layer.min_cache.is_some() {
            assert!(c.programs(Cause::Map) > 100 && c.programs(Cause::MapGc) > 100, "{}: {c:?}", layer.name);
            assert!(ssd.cache().peak > 512, "{}: {:?}", layer.name, ssd.cache());
        }
    }
}

/// The first request asks for more entries than the cache holds.
#[test]
fn the_smallest_map_cache_serves_the_largest_request() {
    for layer in LAYERS {
        let smallest = layer.min_cache.map_or(1024, |min| min(&config(layer.name, Policy::Greedy, Shape::ONE_DIE)));
        for map_cache in [smallest, 2 * smallest, 1024] {
            let small = Config { map_cache, ..config(layer.name, Policy::Greedy, Shape::ONE_DIE) };
            run(&small, &[Step::Write(0, 2048), Step::Read(0, 2048), Step::Trim(0, 2048), Step::Read(0, 2048)], 2);
        }
    }
}

#[test]
fn a_trim_of_pages_without_contents_changes_no_entry() {
    for layer in LAYERS {
        let mut ssd = Ssd::new(&config(layer.name, Policy::Greedy, Shape::ONE_DIE)).unwrap();
        for _ in 0..3 {
            ssd.submit(0, Op::Trim, 0, 2048 * PAGE);
        }
        ssd.check().unwrap();
        assert_eq!(ssd.counters().programs(Cause::Map), 0, "{}: {:?}", layer.name, ssd.counters());
        assert_eq!(ssd.cache().lookups, 3 * 2048, "{}", layer.name);
    }
}

#[test]
fn entries_that_were_only_read_follow_collection() {
    let mut next = random(11);
    // Reads of 41 pages, which are never written again, between writes of all others.
    let steps: Vec<Step> = (0..20_000)
        .map(|i| if i % 2 == 0 { Step::Read(next(41) * 50, 1) } else { Step::Write(next(40) * 50 + 1 + next(49), 1) })
        .collect();
    let filled: Vec<Step> = (0..2048).map(|lpn| Step::Write(lpn, 1)).chain(steps).collect();
    for layer in LAYERS {
        let ssd = run(&config(layer.name, Policy::Greedy, Shape::ONE_DIE), &filled, 1);
        assert!(ssd.counters().programs(Cause::Gc) > 500, "{}: {:?}", layer.name, ssd.counters());
    }
}

#[test]
fn layers_with_a_purpose_for_locality_need_fewer_translation_reads() {
    let reads = |ftl: &str| {
        let mut ssd = Ssd::new(&config(ftl, Policy::Greedy, Shape::ONE_DIE)).unwrap();
        ssd.preload(|_| true);
        let mut next = random(5);
        for _ in 0..2_000 {
            ssd.submit(0, Op::Read, next(2040) * PAGE, 8 * PAGE);
        }
        ssd.counters().reads(Cause::Map)
    };
    let (dftl, sftl, tpftl) = (reads("dftl"), reads("sftl"), reads("tpftl"));
    assert!(sftl * 3 < dftl && tpftl * 3 < dftl * 2, "dftl {dftl}, sftl {sftl}, tpftl {tpftl}");
}

#[test]
fn a_tpftl_prefetch_replaces_as_many_entries_as_a_node_holds() {
    let mut ssd = Ssd::new(&Config { map_cache: 2048, ..Config::new(64 << 20, "tpftl") }).unwrap();
    ssd.preload(|_| true);
    let mut next = random(5);
    for _ in 0..2_000 {
        ssd.submit(0, Op::Read, next(2_048) << 15, 8 << 12);
    }
    let cache = ssd.cache();
    assert!(4 * cache.hits > 3 * cache.lookups, "a miss brings in the seven other entries of its request: {cache:?}");
}

/// Gap between two requests that is long enough to collect a block.
const IDLE_NS: u64 = 100_000_000;

#[test]
fn static_wear_levelling_bounds_the_difference_of_wear() {
    let spread = |levelled, gap_ns| {
        let levelling = Config { wear_levelling: levelled, ..config("ideal", Policy::Greedy, Shape::ONE_DIE) };
        let mut ssd = Ssd::new(&levelling).unwrap();
        ssd.preload(|_| true);
        let mut next = random(9);
        for at in 0..400_000 {
            ssd.submit(at * gap_ns, Op::Write, next(64) * PAGE, PAGE);
        }
        ssd.check().unwrap();
        ssd.erases().max().unwrap() - ssd.erases().min().unwrap()
    };
    for gap_ns in [0, IDLE_NS] {
        let (levelled, free) = (spread(true, gap_ns), spread(false, gap_ns));
        assert!(levelled < 200 && free > 2 * levelled, "gaps of {gap_ns} ns: {levelled} with, {free} without");
    }
}
