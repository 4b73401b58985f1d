//! Every translation layer, under any requests and garbage collection, equals a plain map, and its counters balance.

use proptest::prelude::*;
use std::collections::HashMap;
use tessera_flash::ftl::{CpftlOptions, LAYERS};
use tessera_flash::{Cause, Config, Op, Policy, Shape, Ssd};

const PAGE: u64 = 512;

/// Much of the small map cache is for the prediction directory, so that there are correlated pages.
const CPFTL: &str = "predictor=40,region=256,window=8";

/// A small device with small blocks and pages, so that a few thousand requests collect every block several times and
/// the map has many more translation pages than the cache holds.
fn config(ftl: &str, policy: Policy, shape: Shape) -> Config {
    let small = Shape { pages: 8, page_bytes: PAGE as u32, ..shape };
    Config {
        shape: small,
        policy,
        map_cache: 1024,
        over_provisioning: 0.3,
        contents: true,
        cpftl: CpftlOptions::parse(CPFTL).unwrap(),
        ..Config::new(1 << 20, ftl)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, u64),
    Part(u64),
    Read(u64, u64),
    Trim(u64, u64),
    Idle,
}

fn step() -> impl Strategy<Value = Step> {
    // Half of the requests go to an eighth of the device.
    let page = || prop_oneof![0u64..256, 0u64..2048];
    prop_oneof![
        8 => (page(), 1u64..9).prop_map(|(page, count)| Step::Write(page, count)),
        1 => page().prop_map(Step::Part),
        4 => (page(), 1u64..17).prop_map(|(page, count)| Step::Read(page, count)),
        1 => (page(), 1u64..17).prop_map(|(page, count)| Step::Trim(page, count)),
        1 => Just(Step::Idle),
    ]
}

/// Runs the steps on an SSD beside a map, `rounds` times.
fn run(config: &Config, steps: &[Step], rounds: usize) -> Ssd {
    let mut ssd = Ssd::new(config).unwrap();
    let (mut model, mut writes, mut now) = (HashMap::new(), 0u32, 0);
    ssd.observe();
    for (number, step) in steps.iter().cycle().take(steps.len() * rounds).enumerate() {
        if number == 2 * steps.len() {
            ssd.learn();
            ssd.check().unwrap();
        }
        now += if matches!(step, Step::Idle) { 1_000_000_000 } else { 1_000 };
        let clipped = |page: u64, count: u64| (page * PAGE, count.min(2048 - page) * PAGE);
        match *step {
            Step::Write(page, count) => {
                let (offset, bytes) = clipped(page, count);
                ssd.submit(now, Op::Write, offset, bytes);
                for lpn in page..page + bytes / PAGE {
                    writes += 1;
                    model.insert(lpn, writes);
                }
            }
            Step::Part(page) => {
                ssd.submit(now, Op::Write, page * PAGE + 1, 100);
                writes += 1;
                model.insert(page, writes);
            }
            Step::Read(page, count) => {
                let (offset, bytes) = clipped(page, count);
                ssd.submit(now, Op::Read, offset, bytes);
            }
            Step::Trim(page, count) => {
                let (offset, bytes) = clipped(page, count);
                ssd.submit(now, Op::Trim, offset, bytes);
                model.retain(|lpn, _| !(page..page + bytes / PAGE).contains(lpn));
            }
            Step::Idle => {}
        }
    }
    ssd.check().unwrap();
    valid_pages_are_the_newest(&ssd);
    for lpn in 0..2048 {
        assert_eq!(ssd.content(lpn as u32), model.get(&lpn).copied(), "page {lpn}");
    }
    assert_eq!(ssd.counters().programs(Cause::Host), u64::from(writes));
    balance(&ssd);
    ssd
}

/// Out-of-band areas alone tell which page of an owner counts, unless it was trimmed.
fn valid_pages_are_the_newest(ssd: &Ssd) {
    let device = ssd.device();
    let pages = 0..device.geometry().pages() as u32;
    let mut newest = HashMap::new();
    for ppn in pages.clone().filter(|ppn| device.order(*ppn) > 0) {
        let order = newest.entry(device.owner(ppn)).or_insert(0);
        *order = device.order(ppn).max(*order);
    }
    for ppn in pages.filter(|ppn| device.is_valid(*ppn)) {
        assert_eq!(device.order(ppn), newest[&device.owner(ppn)], "page {ppn} is not the newest of its owner");
    }
}

/// Every program has a cause, and each moved page was read.
fn balance(ssd: &Ssd) {
    use Cause::*;
    let c = ssd.counters();
    let (host, moved, map) = (c.programs(Host), [Gc, GcTranslation, Wear], [Map, MapGc]);
    let sum = |causes: &[Cause]| causes.iter().map(|cause| c.programs(*cause)).sum::<u64>();
    assert_eq!(c.all_programs(), host + sum(&moved) + sum(&map));
    for cause in moved {
        assert_eq!(c.reads(cause), c.programs(cause), "{cause:?}");
    }
    assert_eq!(c.all_erases(), ssd.erases().map(u64::from).sum::<u64>());
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
fn static_wear_levelling_bounds_the_difference_of_wear() {
    let spread = |levelled| {
        let levelling = Config { wear_levelling: levelled, ..config("ideal", Policy::Greedy, Shape::ONE_DIE) };
        let mut ssd = Ssd::new(&levelling).unwrap();
        ssd.preload(|_| true);
        let mut next = random(9);
        for _ in 0..400_000 {
            ssd.submit(0, Op::Write, next(64) * PAGE, PAGE);
        }
        ssd.check().unwrap();
        ssd.erases().max().unwrap() - ssd.erases().min().unwrap()
    };
    let (levelled, free) = (spread(true), spread(false));
    assert!(levelled < 200 && free > 2 * levelled, "{levelled} with, {free} without");
}
