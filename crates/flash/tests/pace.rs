//! Collection keeps pace with writes: a request waits for a block, and not for all those that it takes to gain one.

use tessera_disk::SplitMix64;
use tessera_flash::ftl::LAYERS;
use tessera_flash::{Cause, Config, Ns, Op, Order, Ssd, Timing};

const CAPACITY: u64 = 256 << 20;
const PAGE: u64 = 4096;
/// Time between requests in ns: less than the collection of a block takes, so that none is collected while the device is idle.
const GAP: Ns = 10_000_000;

/// A device whose collection is in its steady state, and the longest time that one of many random requests took on it.
fn run(ftl: &str, background: bool) -> (Ssd, Ns) {
    let config = Config { map_cache: 8 << 10, over_provisioning: 0.3, background, ..Config::new(CAPACITY, ftl) };
    let mut ssd = Ssd::new(&config).unwrap();
    ssd.preload_in(Order::Overwritten, |_| true);
    let (mut rng, mut longest) = (SplitMix64::new(1), 0);
    for i in 0..8_000 {
        let op = if i % 2 == 0 { Op::Write } else { Op::Read };
        let done = ssd.submit(i * GAP, op, rng.below(CAPACITY / PAGE) * PAGE, PAGE);
        longest = longest.max(done - i * GAP);
    }
    ssd.check().unwrap();
    (ssd, longest)
}

/// The time to move a block of valid pages.
fn block() -> Ns {
    let Timing { read, program, erase, .. } = Timing::SIMULATION;
    64 * (read + program) + erase
}

#[test]
fn a_request_waits_for_one_block_at_most() {
    // `learnedftl` collects groups of blocks as a whole.
    for layer in LAYERS.iter().filter(|layer| layer.name != "learnedftl") {
        let (mut ssd, longest) = run(layer.name, true);
        assert!(longest < block(), "{}: {longest} ns, a block takes {}", layer.name, block());
        ssd.cut_power();
        ssd.check().unwrap();
    }
}

#[test]
fn without_it_one_waits_for_several() {
    assert!(run("tpftl", false).1 > 5 * block());
}

#[test]
fn it_moves_hardly_more_pages() {
    let programs = |background| run("tpftl", background).0.counters().all_programs();
    let (with, without) = (programs(true), programs(false));
    assert!(with * 100 < without * 103, "{with} against {without}");
}

#[test]
fn blocks_of_the_map_are_collected_when_they_are_nearly_empty() {
    let (ssd, _) = run("tpftl", true);
    let counters = ssd.counters();
    let (moved, erased) = (counters.programs(Cause::GcTranslation), counters.map_erases());
    assert!(erased > 50, "{erased} blocks of the map were collected");
    assert!(moved < 24 * erased, "{moved} valid pages of {erased} blocks with 64 pages");
}
