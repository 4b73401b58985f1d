//! The device's write buffer: what it absorbs, what it delays, and that every layer stays a plain map behind it.

mod common;

use common::{config, step};
use proptest::prelude::*;
use tessera_flash::ftl::LAYERS;
use tessera_flash::{Cause, Config, ConfigError, Ns, Op, Policy, Shape, Ssd};

const PAGE: u64 = 4096;

/// A device of 4,096 pages with a buffer of two halves of four pages.
fn ssd(ftl: &str) -> Ssd {
    let config =
        Config { write_buffer: 8 * PAGE, over_provisioning: 0.5, contents: true, ..Config::new(4096 * PAGE, ftl) };
    Ssd::new(&config).unwrap()
}

fn write(ssd: &mut Ssd, now: Ns, lpn: u64) -> Ns {
    ssd.submit(now, Op::Write, lpn * PAGE, PAGE) - now
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_layer_behind_a_buffer_equals_a_plain_map(steps in prop::collection::vec(step(), 1..300), pages in 2u64..80) {
        for layer in LAYERS {
            let buffered = Config { write_buffer: pages * common::PAGE, ..config(layer.name, Policy::Greedy, Shape::ONE_DIE) };
            let (ssd, writes) = common::run_counting(Ssd::new(&buffered).unwrap(), &steps, 8);
            prop_assert!(ssd.counters().programs(Cause::Host) <= u64::from(writes), "{}", layer.name);
        }
    }
}

#[test]
fn pages_that_are_written_again_in_the_buffer_are_programmed_once() {
    let mut ssd = ssd("dftl");
    for i in 0..300 {
        assert_eq!(write(&mut ssd, i, i % 3), 0, "three pages do not fill a half");
    }
    ssd.submit(300, Op::Trim, PAGE, PAGE);
    assert_eq!((ssd.counters().all_programs(), ssd.content(0), ssd.content(1)), (0, Some(298), None));
    assert_eq!(ssd.submit(301, Op::Read, 0, PAGE), 301, "the buffer has it");
    let end = ssd.flush(400);
    assert_eq!((ssd.counters().programs(Cause::Host), end > 400), (2, true));
    ssd.check().unwrap();
}

#[test]
fn a_write_waits_once_both_halves_are_full() {
    let mut ssd = ssd("ideal");
    let times: Vec<Ns> = (0..16).map(|lpn| write(&mut ssd, lpn, lpn)).collect();
    assert_eq!(times[..7], [0; 7], "one half is programmed, and the other one has room");
    // Four programs of 200 us; the eighth write fills the second half.
    assert_eq!((times[7], times[11]), (800_000 + 3 - 7, 1_600_000 + 3 - 11));
    assert_eq!(ssd.flush(2_000_000), 3_200_003, "the last half begins when the one before it ends");
}

#[test]
fn a_page_that_waits_is_completed_without_a_read() {
    let mut ssd = ssd("ideal");
    write(&mut ssd, 0, 9);
    assert_eq!(ssd.submit(0, Op::Write, 9 * PAGE + 512, 512), 0);
    ssd.flush(0);
    assert_eq!(ssd.counters().all_reads(), 0);
    let read = ssd.submit(10_000_000, Op::Write, 9 * PAGE + 512, 512);
    assert_eq!((ssd.counters().reads(Cause::Host), read), (1, 10_025_000));
}

#[test]
fn sorted_pages_become_runs_for_leaftl() {
    let segments = |write_buffer| {
        let config =
            Config { write_buffer, over_provisioning: 0.5, map_cache: 512, ..Config::new(4096 * PAGE, "leaftl") };
        let mut ssd = Ssd::new(&config).unwrap();
        for i in 0..4096 {
            write(&mut ssd, i, i / 64 * 64 + i * 37 % 64);
        }
        ssd.flush(4096);
        ssd.check().unwrap();
        ssd.layer_figures().iter().find(|(name, _)| *name == "segments").unwrap().1
    };
    let (without, with) = (segments(0), segments(128 * PAGE));
    assert!(with * 4 < without, "{with} of {without}");
}

#[test]
fn a_buffer_of_less_than_two_pages_is_refused() {
    let config = Config { write_buffer: 2 * PAGE - 1, ..Config::new(4096 * PAGE, "ideal") };
    assert!(matches!(Ssd::new(&config), Err(ConfigError::Key { .. })));
}
