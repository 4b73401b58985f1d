//! Power cuts after every flash operation: what was acknowledged is there, for every layer, and the SSD works on.

mod common;

use common::{PAGE, config};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use tessera_disk::SplitMix64;
use tessera_flash::ftl::LAYERS;
use tessera_flash::{Cause, Config, Op, Operation, Policy, Shape, Ssd};

const PAGES: u64 = 2048;

/// What a logical page may hold after a cut.
#[derive(Debug, Clone, Default)]
struct Allowed {
    /// What it was last known to hold; `None`: nothing was written.
    durable: Option<u32>,
    /// What was written and not flushed since.
    volatile: Vec<u32>,
    /// It was trimmed since it was last written, so it may also hold nothing, or what it ever held.
    is_trimmed: bool,
    /// Everything that it ever held.
    ever: HashSet<u32>,
}

impl Allowed {
    fn permits(&self, found: Option<u32>) -> bool {
        match found {
            None => self.durable.is_none() || self.is_trimmed,
            Some(content) if self.is_trimmed => self.ever.contains(&content),
            Some(content) => self.durable == Some(content) || self.volatile.contains(&content),
        }
    }

    fn write(&mut self, content: u32, is_durable: bool) {
        self.ever.insert(content);
        if is_durable {
            (self.durable, self.is_trimmed) = (Some(content), false);
            self.volatile.clear();
        } else {
            self.volatile.push(content);
        }
    }

    /// What waits in a buffer is dropped.
    fn trim(&mut self) {
        self.is_trimmed = true;
        self.volatile.clear();
    }

    fn flush(&mut self) {
        if let Some(content) = self.volatile.pop() {
            self.write(content, true);
        }
    }
}

/// A request of the tests, and how many flash operations there were when it was complete.
struct Done {
    operations: usize,
    /// What the map of allowed contents was then, for pages that the request touched.
    changed: Vec<(u64, Allowed)>,
}

/// Writes every page and does random requests; returns the SSD with what each of them made durable.
fn run(config: &Config, seed: u64, requests: usize) -> (Ssd, Vec<Done>) {
    let mut ssd = Ssd::new(config).unwrap();
    ssd.record();
    let (mut rng, mut written, mut done) = (SplitMix64::new(seed), 0, Vec::new());
    let mut pages: HashMap<u64, Allowed> = HashMap::new();
    for number in 0..PAGES as usize / 8 + requests {
        let is_filling = (number as u64) < PAGES / 8;
        let first = if is_filling {
            number as u64 * 8
        } else if rng.below(2) == 0 {
            rng.below(PAGES)
        } else {
            rng.below(PAGES / 8)
        };
        let count = if is_filling { 8 } else { (1 + rng.below(8)).min(PAGES - first) };
        let mut touched: Vec<u64> = (first..first + count).collect();
        let submit = |ssd: &mut Ssd, op| _ = ssd.submit(number as u64 * 1000, op, first * PAGE, count * PAGE);
        match if is_filling { 3 } else { rng.below(12) } {
            0 => submit(&mut ssd, Op::Read),
            1 => {
                submit(&mut ssd, Op::Trim);
                touched.iter().for_each(|page| pages.entry(*page).or_default().trim());
            }
            2 => {
                ssd.flush(number as u64 * 1000);
                touched = pages.iter().filter(|(_, page)| !page.volatile.is_empty()).map(|(page, _)| *page).collect();
                touched.iter().for_each(|page| pages.entry(*page).or_default().flush());
            }
            _ => {
                submit(&mut ssd, Op::Write);
                for page in &touched {
                    written += 1;
                    pages.entry(*page).or_default().write(written, config.write_buffer == 0);
                }
            }
        }
        let changed = touched.iter().filter_map(|page| Some((*page, pages.get(page)?.clone()))).collect();
        done.push(Done { operations: ssd.recorded().len(), changed });
    }
    (ssd, done)
}

/// Cuts after `cut` operations and compares every page. A request that was under way may have come to any part.
fn check_cut(config: &Config, operations: &[Operation], done: &[Done], cut: usize, is_torn: bool) -> Ssd {
    let mut ssd = Ssd::after_cut(config, &operations[..cut], is_torn).unwrap();
    ssd.check().unwrap();
    let certain = if is_torn { cut - 1 } else { cut };
    let mut expected: HashMap<u64, Allowed> = HashMap::new();
    for request in done {
        for (page, allowed) in &request.changed {
            if request.operations <= certain {
                expected.insert(*page, allowed.clone());
            } else {
                // What is not complete may be there already.
                let earlier = expected.entry(*page).or_default();
                earlier.volatile.extend(allowed.durable.iter().chain(&allowed.volatile));
                earlier.ever.extend(&allowed.ever);
                earlier.is_trimmed |= allowed.is_trimmed;
            }
        }
        if request.operations > certain {
            break;
        }
    }
    for page in 0..PAGES {
        let (found, allowed) = (ssd.content(page as u32), expected.get(&page).cloned().unwrap_or_default());
        let name = &config.ftl;
        assert!(
            allowed.permits(found),
            "{name}, cut at {cut}, torn {is_torn}: page {page} holds {found:?}, not {allowed:?}"
        );
    }
    // It works on: writes are served and garbage is collected.
    for page in 0..32 {
        ssd.submit(0, Op::Write, page * 61 % PAGES * PAGE, PAGE);
    }
    ssd.check().unwrap();
    ssd
}

#[test]
fn a_cut_after_any_flash_operation_loses_nothing_that_was_acknowledged() {
    for layer in LAYERS {
        let config = config(layer.name, Policy::Greedy, Shape::ONE_DIE);
        let (ssd, done) = run(&config, 7, 600);
        let (operations, counters) = (ssd.recorded(), ssd.counters());
        assert!(counters.programs(Cause::Gc) > 100 && counters.all_erases() > 100, "{}: {counters:?}", layer.name);
        // Until the device is full, cuts are like each other.
        for cut in operations.len() - 250..=operations.len() {
            check_cut(&config, operations, &done, cut, false);
            check_cut(&config, operations, &done, cut, true);
        }
    }
}

#[test]
fn a_cut_during_recovery_is_recovered_from_too() {
    for layer in LAYERS {
        let config = config(layer.name, Policy::Greedy, Shape { planes: 2, ..Shape::ONE_DIE });
        let (mut ssd, _) = run(&config, 3, 600);
        let before: Vec<Option<u32>> = (0..PAGES).map(|page| ssd.content(page as u32)).collect();
        let running = ssd.recorded().len();
        ssd.cut_power();
        let operations = ssd.recorded();
        assert!(
            layer.min_cache.is_none() || operations.len() > running + 10,
            "{}: recovery writes the map",
            layer.name
        );
        for cut in running..=operations.len() {
            // Each time the power fails again after one operation more.
            let again = Ssd::after_cut(&config, &operations[..cut], cut > running).unwrap();
            again.check().unwrap();
            for (page, content) in before.iter().enumerate().filter(|(_, content)| content.is_some()) {
                assert_eq!(again.content(page as u32), *content, "{}: page {page}, cut at {cut}", layer.name);
            }
        }
    }
}

#[test]
fn the_power_may_fail_again_and_again() {
    for layer in LAYERS {
        let mut ssd = Ssd::new(&config(layer.name, Policy::Greedy, Shape::ONE_DIE)).unwrap();
        let (mut rng, mut pages, mut written) = (SplitMix64::new(5), HashMap::new(), 0);
        for _ in 0..300 {
            for _ in 0..rng.below(40) {
                let page = rng.below(PAGES);
                ssd.submit(0, Op::Write, page * PAGE, PAGE);
                written += 1;
                pages.insert(page, ssd.content(page as u32));
            }
            ssd.cut_power();
            ssd.check().unwrap();
        }
        assert!(written > 4_000);
        for page in 0..PAGES {
            assert_eq!(ssd.content(page as u32), pages.get(&page).copied().flatten(), "{}: page {page}", layer.name);
        }
    }
}

/// Pages that are written `times` the device's number of pages: nine of ten go to a tenth of the device. Returns what the pages hold.
fn overwrite_skewed(ssd: &mut Ssd, rng: &mut SplitMix64, times: u64) -> HashMap<u64, Option<u32>> {
    let mut pages = HashMap::new();
    for _ in 0..times * PAGES {
        let is_cold = rng.below(10) == 0;
        let page = rng.below(if is_cold { PAGES } else { PAGES / 10 });
        ssd.submit(0, Op::Write, page * PAGE, PAGE);
        pages.insert(page, ssd.content(page as u32));
    }
    pages
}

#[test]
fn cost_benefit_collects_after_a_cut_by_what_flash_tells_of_ages() {
    for layer in LAYERS {
        let config = config(layer.name, Policy::CostBenefit, Shape::ONE_DIE);
        let mut ssd = Ssd::new(&config).unwrap();
        ssd.record();
        overwrite_skewed(&mut ssd, &mut SplitMix64::new(1), 4);
        // One device loses its power, one is made of the same cells, so that nothing else can count, and one loses nothing.
        let same = Ssd::after_cut(&config, ssd.recorded(), false).unwrap();
        let mut uncut = Ssd::new(&config).unwrap();
        overwrite_skewed(&mut uncut, &mut SplitMix64::new(1), 4);
        ssd.cut_power();
        let [cut, same, uncut] = [ssd, same, uncut].map(|mut ssd| {
            let counts = |ssd: &Ssd| (ssd.counters().programs(Cause::Gc), ssd.counters().all_erases());
            let before = counts(&ssd);
            let pages = overwrite_skewed(&mut ssd, &mut SplitMix64::new(2), 4);
            ssd.check().unwrap();
            for (page, content) in pages {
                assert_eq!(ssd.content(page as u32), content, "{}: page {page}", layer.name);
            }
            (counts(&ssd).0 - before.0, counts(&ssd).1 - before.1)
        });
        assert_eq!(cut, same, "{}: moved pages and erased blocks", layer.name);
        assert!(cut.1 > 200 && cut.0 <= uncut.0 * 3 / 2, "{}: {cut:?}, without a cut {uncut:?}", layer.name);
    }
}

#[test]
fn what_a_write_buffer_has_is_lost_unless_it_was_flushed() {
    let buffered = Config { write_buffer: 64 * PAGE, ..config("dftl", Policy::Greedy, Shape::ONE_DIE) };
    let mut ssd = Ssd::new(&buffered).unwrap();
    ssd.submit(0, Op::Write, 0, PAGE);
    ssd.flush(0);
    ssd.submit(0, Op::Write, 0, 2 * PAGE);
    assert_eq!((ssd.content(0), ssd.content(1)), (Some(2), Some(3)));
    ssd.cut_power();
    assert_eq!((ssd.content(0), ssd.content(1)), (Some(1), None));
}

#[test]
fn recovery_takes_the_time_of_its_reads_and_programs() {
    let mut ssd = Ssd::new(&config("dftl", Policy::Greedy, Shape::ONE_DIE)).unwrap();
    for page in 0..256 {
        ssd.submit(0, Op::Write, page * PAGE, PAGE);
    }
    let written = ssd.counters().all_programs();
    ssd.reset();
    // Each written page is read, and two translation pages of 128 entries are written.
    assert_eq!(ssd.cut_power(), written * 25_000 + 2 * 200_000);
    assert_eq!((ssd.counters().reads(Cause::Recovery), ssd.counters().programs(Cause::Recovery)), (written, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_layer_and_buffer_survives_a_cut_anywhere(
        seed in any::<u64>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 8),
        buffer in prop_oneof![Just(0u64), 2u64..64],
        bound in 0u32..=16,
        parallel in any::<bool>(),
    ) {
        let shape = if parallel { Shape { channels: 2, planes: 2, ..Shape::ONE_DIE } } else { Shape::ONE_DIE };
        for layer in LAYERS {
            let config = Config { write_buffer: buffer * PAGE, error_bound: bound, ..config(layer.name, Policy::CostBenefit, shape) };
            let (ssd, done) = run(&config, seed, 600);
            let operations = ssd.recorded();
            for cut in &cuts {
                let cut = 1 + cut.index(operations.len());
                check_cut(&config, operations, &done, cut, cut % 2 == 0);
            }
        }
    }
}
