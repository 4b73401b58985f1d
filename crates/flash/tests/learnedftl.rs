//! Each mechanism of LearnedFTL has its effect, shown on requests that are made for it. That no place is predicted wrongly is asserted by
//! the layer at each prediction, and by `check` for all of them.

use std::collections::HashMap;
use tessera_disk::SplitMix64;
use tessera_flash::{Cause, Config, Op, Order, Ppn, Shape, Ssd};

const PAGE: u64 = 4096;
const PAGES: u64 = 16_384;
/// A translation page has 1,024 entries; a model has 64 bytes for lines, 128 for the filter, and 4 for its number.
const MODEL: u64 = 64 + 128 + 4;

/// A device of 16 translation pages.
fn config(map_cache: u64) -> Config {
    Config {
        map_cache,
        over_provisioning: 0.3,
        contents: true,
        background: false,
        ..Config::new(PAGES * PAGE, "learnedftl")
    }
}

fn ssd(map_cache: u64) -> Ssd {
    Ssd::new(&config(map_cache)).unwrap()
}

fn write(ssd: &mut Ssd, lpn: u64) {
    ssd.submit(0, Op::Write, lpn * PAGE, PAGE);
}

fn read(ssd: &mut Ssd, lpn: u64) {
    ssd.submit(0, Op::Read, lpn * PAGE, PAGE);
}

fn figure(ssd: &Ssd, name: &str) -> u64 {
    ssd.layer_figures().iter().find(|(found, _)| *found == name).map(|(_, value)| *value).unwrap()
}

fn write_randomly(ssd: &mut Ssd, pages: u64, count: u64) {
    let mut rng = SplitMix64::new(3);
    for _ in 0..count {
        write(ssd, rng.below(pages));
    }
    ssd.check().unwrap();
}

/// Where each logical page is.
fn places(ssd: &Ssd) -> HashMap<u32, Ppn> {
    let device = ssd.device();
    let valid = (0..device.geometry().pages() as u32).filter(|ppn| device.is_valid(*ppn));
    valid.filter_map(|ppn| Some((device.owner(ppn).as_data()?, ppn))).collect()
}

#[test]
fn sequential_writes_are_learned_at_once() {
    let mut ssd = ssd(16 << 10);
    ssd.preload(|_| true);
    assert_eq!((figure(&ssd, "models"), figure(&ssd, "predictable_pages")), (16, PAGES));
    let mut rng = SplitMix64::new(1);
    for _ in 0..10_000 {
        read(&mut ssd, rng.below(PAGES));
    }
    let cache = ssd.cache();
    assert_eq!((cache.lookups, cache.hits, ssd.counters().reads(Cause::Map)), (10_000, 10_000, 0));
    assert!((8_000..10_000).contains(&figure(&ssd, "model_hits")), "the other hits are of cached entries");
    ssd.check().unwrap();
}

#[test]
fn a_short_run_is_learned_from_its_eighth_page_on() {
    let learned = |pages: u64| {
        let mut ssd = ssd(16 << 10);
        ssd.submit(0, Op::Write, 100 * PAGE, pages * PAGE);
        ssd.check().unwrap();
        figure(&ssd, "predictable_pages")
    };
    assert_eq!([7, 8, 9, 500].map(learned), [0, 8, 9, 500]);
}

#[test]
fn random_writes_are_learned_by_collection() {
    let mut ssd = ssd(16 << 10);
    ssd.preload_in(Order::Random, |_| true);
    assert_eq!(figure(&ssd, "trained_by_collection"), 0);
    write_randomly(&mut ssd, PAGES, 3 * PAGES);
    let predictable = figure(&ssd, "predictable_pages");
    assert!(figure(&ssd, "trained_by_collection") > 16 && predictable > PAGES / 2, "{:?}", ssd.layer_figures());
}

#[test]
fn collection_writes_a_group_in_the_order_of_its_pages() {
    let mut ssd = ssd(16 << 10);
    ssd.preload_in(Order::Random, |_| true);
    let numbers = |ssd: &Ssd| {
        let (places, pages) = (places(ssd), ssd.device().grouping().unwrap().pages);
        let number = |lpn: u32| ssd.device().virtual_page(places[&lpn]).unwrap_or(u32::MAX);
        let groups = (0..PAGES as u32).collect::<Vec<_>>();
        groups.chunks(pages as usize).map(|lpns| lpns.iter().map(|lpn| number(*lpn)).collect()).collect()
    };
    let before: Vec<Vec<u32>> = numbers(&ssd);
    let collected = figure(&ssd, "collected_groups");
    let mut rng = SplitMix64::new(4);
    while figure(&ssd, "collected_groups") == collected {
        write(&mut ssd, rng.below(PAGES));
    }
    let after: Vec<Vec<u32>> = numbers(&ssd);
    let in_order = |numbers: &&Vec<u32>| numbers.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() > 1_000;
    assert_eq!((before.iter().filter(in_order).count(), after.iter().filter(in_order).count()), (0, 1));
}

#[test]
fn a_write_clears_the_bit_of_its_page_only() {
    let mut ssd = ssd(16 << 10);
    ssd.preload(|_| true);
    for (count, lpn) in (1..).zip([77, 5_000, 10_000]) {
        write(&mut ssd, lpn);
        assert_eq!(figure(&ssd, "predictable_pages"), PAGES - count);
    }
    ssd.submit(0, Op::Trim, 20 * PAGE, 10 * PAGE);
    assert_eq!(figure(&ssd, "predictable_pages"), PAGES - 13);
    ssd.check().unwrap();
}

#[test]
fn a_page_whose_place_is_predicted_is_replaced_without_a_read() {
    let mut ssd = ssd(64 << 10);
    ssd.preload_in(Order::Sequential, |_| true);
    let mut rng = SplitMix64::new(5);
    for _ in 0..1_000 {
        write(&mut ssd, rng.below(PAGES));
    }
    assert_eq!((ssd.counters().reads(Cause::Map), ssd.cache().hits), (0, 1_000));
}

/// A page that is written in part is looked up for what it held, and once more when its place changes.
#[test]
fn a_page_that_is_written_in_part_or_trimmed_is_one_hit_of_its_model() {
    for (op, offset, bytes) in [(Op::Write, 512, 512), (Op::Trim, 0, PAGE)] {
        let mut ssd = ssd(64 << 10);
        ssd.preload(|_| true);
        for lpn in 0..1_000 {
            ssd.submit(0, op, lpn * PAGE + offset, bytes);
        }
        assert_eq!((ssd.cache().hits, figure(&ssd, "model_hits")), (1_000, 1_000), "{op:?}");
        read(&mut ssd, 2_000);
        write(&mut ssd, 2_000);
        assert_eq!((ssd.cache().hits, figure(&ssd, "model_hits")), (1_002, 1_002), "two requests are two hits");
        ssd.check().unwrap();
    }
}

#[test]
fn models_take_at_most_half_of_the_map_cache_and_are_counted() {
    for (map_cache, models) in [(64 << 10, 16), (6_400, 16), (6_200, 15), (2_000, 5), (448, 1)] {
        let mut ssd = ssd(map_cache);
        ssd.preload(|_| true);
        write_randomly(&mut ssd, PAGES, 4_000);
        assert_eq!((figure(&ssd, "model_bytes"), figure(&ssd, "models")), (models * MODEL, models), "{map_cache}");
        let cache = ssd.cache();
        assert!(cache.peak <= map_cache && cache.peak > models * MODEL, "{cache:?}");
    }
}

#[test]
fn models_leave_if_there_are_too_many_and_are_learned_again_when_they_are_missed() {
    let mut ssd = ssd(2_000);
    ssd.preload(|_| true);
    assert_eq!(figure(&ssd, "predictable_pages"), 5 * 1024, "the last five translation pages");
    for page in (0..16u64).rev() {
        read(&mut ssd, page * 1024 + 500);
    }
    assert_eq!((ssd.counters().reads(Cause::Map), figure(&ssd, "model_hits")), (11, 5));
    for lpn in 0..5 * 1024 {
        read(&mut ssd, lpn);
    }
    assert_eq!((ssd.counters().reads(Cause::Map), figure(&ssd, "trained_again")), (11, 11));
    ssd.check().unwrap();
}

#[test]
fn a_model_that_left_is_not_learned_again_if_its_pages_lie_in_no_order() {
    let mut ssd = ssd(2_000);
    ssd.preload_in(Order::Random, |_| true);
    // A model of eight pages each.
    for lpn in (0..PAGES).step_by(1024) {
        ssd.submit(0, Op::Write, lpn * PAGE, 8 * PAGE);
    }
    assert_eq!(figure(&ssd, "models"), 5);
    for lpn in (0..PAGES).step_by(1024) {
        read(&mut ssd, lpn + 500);
    }
    assert_eq!((figure(&ssd, "trained_again"), figure(&ssd, "models")), (0, 5));
}

#[test]
fn blocks_of_a_group_without_valid_pages_are_erased_and_nothing_moves() {
    let mut ssd = ssd(16 << 10);
    for _ in 0..6 {
        for first in (0..PAGES).step_by(64) {
            ssd.submit(0, Op::Write, first * PAGE, 64 * PAGE);
        }
    }
    ssd.check().unwrap();
    let moved = ssd.counters().programs(Cause::Gc);
    assert!(moved < PAGES / 10, "{moved} pages moved, {:?}", ssd.layer_figures());
    assert_eq!(figure(&ssd, "predictable_pages"), PAGES);
}

#[test]
fn fewer_double_reads_than_tpftl_with_the_same_memory() {
    let map_reads = |ftl: &str| {
        let mut ssd = Ssd::new(&Config { ftl: ftl.into(), ..config(16 << 10) }).unwrap();
        ssd.preload_in(Order::Random, |_| true);
        write_randomly(&mut ssd, PAGES, 2 * PAGES);
        ssd.reset();
        let mut rng = SplitMix64::new(6);
        for _ in 0..10_000 {
            read(&mut ssd, rng.below(PAGES));
        }
        ssd.counters().reads(Cause::Map)
    };
    let (learned, tpftl) = (map_reads("learnedftl"), map_reads("tpftl"));
    assert!(2 * learned < tpftl, "{learned} and {tpftl}");
}

#[test]
fn a_superblock_lies_in_all_planes_and_numbers_are_consecutive_over_them() {
    let shape = Shape { channels: 2, planes: 2, ..Shape::ONE_DIE };
    let capacity = 16 * PAGES * PAGE;
    let mut ssd = Ssd::new(&Config { shape, capacity, ..config(1 << 20) }).unwrap();
    let grouping = *ssd.device().grouping().unwrap();
    assert_eq!((grouping.width, grouping.pages % 1024), (4, 0), "{grouping:?}");
    ssd.submit(0, Op::Write, 0, 1000 * PAGE);
    let (places, plane_pages) = (places(&ssd), ssd.device().geometry().pages() as u32 / 4);
    for lpn in 0..1000 {
        let ppn = places[&lpn];
        assert_eq!((ssd.device().virtual_page(ppn), ppn / plane_pages), (Some(lpn), lpn % 4));
        assert_eq!(ssd.device().physical_page(lpn, lpn), Some(ppn));
    }
    assert_eq!(figure(&ssd, "predictable_pages"), 1000);
}

#[test]
fn without_spare_blocks_for_groups_pages_go_to_shared_blocks() {
    // 13 spare blocks: the streams and the reserve need 12.
    let over_provisioning = 14.0 / 256.0;
    let mut ssd = Ssd::new(&Config { over_provisioning, ..config(16 << 10) }).unwrap();
    assert_eq!((ssd.device().grouping().unwrap().open, ssd.device().grouping().unwrap().reserve), (0, 0));
    ssd.preload(|_| true);
    write_randomly(&mut ssd, PAGES, 2 * PAGES);
    assert_eq!((figure(&ssd, "models"), figure(&ssd, "collected_groups")), (0, 0));
    assert!(places(&ssd).values().all(|ppn| ssd.device().virtual_page(*ppn).is_none()));
}

#[test]
fn groups_that_are_not_collected_as_a_whole_give_their_blocks_back() {
    // Room for some superblocks; writes go to few groups, and to all at times.
    for spare in [15u32, 20, 30, 35, 40, 60] {
        let mut ssd = Ssd::new(&Config { over_provisioning: f64::from(spare) / 256.0, ..config(8 << 10) }).unwrap();
        let mut rng = SplitMix64::new(spare.into());
        for round in 0..6 * PAGES {
            let most = if round / 5_000 % 2 == 0 { PAGES } else { PAGES / 16 };
            write(&mut ssd, rng.below(most));
        }
        ssd.check().unwrap();
    }
}

#[test]
fn a_power_cut_leaves_no_model_and_collection_learns_anew() {
    let mut ssd = ssd(16 << 10);
    ssd.preload(|_| true);
    ssd.cut_power();
    assert_eq!(figure(&ssd, "models"), 0);
    write_randomly(&mut ssd, PAGES, 3 * PAGES);
    assert!(figure(&ssd, "predictable_pages") > PAGES / 4, "{:?}", ssd.layer_figures());
}
