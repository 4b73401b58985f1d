//! Each mechanism of LeaFTL has its effect, shown on requests that are made for it.

use tessera_disk::SplitMix64;
use tessera_flash::{Cause, Config, ConfigError, Op, Order, Shape, Ssd};

const PAGE: u64 = 4096;

/// A device of 16,384 pages with 64 groups, all of which fit into the cache.
fn ssd(error_bound: u32) -> Ssd {
    let config = Config {
        error_bound,
        over_provisioning: 0.3,
        contents: true,
        background: false,
        ..Config::new(16_384 * PAGE, "leaftl")
    };
    Ssd::new(&config).unwrap()
}

fn write(ssd: &mut Ssd, lpn: u64) {
    ssd.submit(0, Op::Write, lpn * PAGE, PAGE);
}

fn figure(ssd: &Ssd, name: &str) -> u64 {
    ssd.layer_figures().iter().find(|(found, _)| *found == name).map(|(_, value)| *value).unwrap()
}

/// Writes every page with a random gap of up to four pages after it.
fn write_with_gaps(ssd: &mut Ssd) {
    let (mut rng, mut lpn) = (SplitMix64::new(7), 0);
    while lpn < 16_384 {
        write(ssd, lpn);
        lpn += 1 + rng.next_u64() % 5;
    }
    ssd.check().unwrap();
}

#[test]
fn runs_need_a_hundredth_of_the_bytes_of_entries() {
    let mut ssd = ssd(0);
    ssd.preload(|_| true);
    let entries = 16_384 * 8;
    assert!(figure(&ssd, "map_bytes") * 100 < 2 * entries, "{:?}", ssd.layer_figures());
    assert_eq!((figure(&ssd, "groups"), figure(&ssd, "approximate_segments")), (64, 0));
    assert!(ssd.cache().bytes < 5_000, "{:?}", ssd.cache());
}

#[test]
fn pages_that_were_preloaded_in_random_order_have_no_runs() {
    let mut ssd = ssd(0);
    ssd.preload_in(Order::Random, |_| true);
    ssd.check().unwrap();
    assert!(figure(&ssd, "segments") > 12_000, "{:?}", ssd.layer_figures());
}

/// A group of random places does not fit: the read and the update of a page that is written in part both miss.
#[test]
fn a_group_that_does_not_fit_is_counted_as_one_miss() {
    let config = Config { map_cache: 1024, background: false, ..Config::new(16_384 * PAGE, "leaftl") };
    let mut ssd = Ssd::new(&config).unwrap();
    ssd.preload_in(Order::Random, |_| true);
    for lpn in 0..20 {
        ssd.submit(0, Op::Write, lpn * 300 * PAGE, 512);
    }
    assert_eq!((ssd.cache().lookups, ssd.cache().hits), (20, 0));
}

#[test]
fn an_error_bound_trades_memory_for_reads_of_wrong_places() {
    let learned = |bound| {
        let mut ssd = ssd(bound);
        write_with_gaps(&mut ssd);
        ssd.reset();
        for lpn in 0..16_384 {
            ssd.submit(0, Op::Read, lpn * PAGE, PAGE);
        }
        assert_eq!(ssd.counters().reads(Cause::Map), figure(&ssd, "mispredictions"), "the whole map is in memory");
        (figure(&ssd, "map_bytes"), figure(&ssd, "segments"), figure(&ssd, "mispredictions"))
    };
    let (exact, near) = (learned(0), learned(8));
    assert_eq!(exact.2, 0);
    assert!(near.0 < exact.0 && near.1 * 2 < exact.1 && near.2 > 500, "{exact:?}, {near:?}");
}

#[test]
fn a_page_that_is_replaced_is_verified_where_its_place_is_not_exact() {
    let verified = |bound| {
        let mut ssd = ssd(bound);
        write_with_gaps(&mut ssd);
        ssd.reset();
        write_with_gaps(&mut ssd);
        assert_eq!(ssd.counters().reads(Cause::Map), figure(&ssd, "verifications"), "the whole map is in memory");
        figure(&ssd, "verifications")
    };
    assert_eq!(verified(0), 0, "what is approximate only because its pages are listed is exact");
    assert!(verified(8) > 1_000);
}

#[test]
fn counters_begin_anew_after_preloading() {
    let mut ssd = ssd(8);
    write_with_gaps(&mut ssd);
    write_with_gaps(&mut ssd);
    assert!(figure(&ssd, "verifications") > 1_000);
    let segments = figure(&ssd, "segments");
    ssd.reset();
    assert_eq!(["verifications", "mispredictions"].map(|name| figure(&ssd, name)), [0, 0]);
    assert_eq!(figure(&ssd, "segments"), segments, "what it holds stays");
}

#[test]
fn an_older_copy_nearby_is_not_taken_for_the_page() {
    for map_cache in [256, 512, 1024, 4096] {
        let config =
            Config { map_cache, error_bound: 16, over_provisioning: 0.3, ..Config::new(16_384 * PAGE, "leaftl") };
        let mut ssd = Ssd::new(&config).unwrap();
        let mut rng = SplitMix64::new(map_cache);
        // A window of pages moves on, and each is written and read several times in it.
        for i in 0..60_000 {
            let lpn = (i / 4 + rng.next_u64() % 24) % 16_384;
            write(&mut ssd, lpn);
            ssd.submit(0, Op::Read, (i / 4 + rng.next_u64() % 24) % 16_384 * PAGE, PAGE);
        }
        ssd.check().unwrap();
        assert!(figure(&ssd, "verifications") > 1_000, "{:?}", ssd.layer_figures());
    }
}

#[test]
fn collection_gathers_scattered_pages_into_runs() {
    let mut ssd = ssd(0);
    ssd.preload(|_| true);
    let mut rng = SplitMix64::new(3);
    // Each block gets 32 neighbours, from the last to the first, and pages that are soon written again.
    for round in 0..24_576 {
        write(&mut ssd, (round / 32 * 32 + 31 - round % 32) % 8_192);
        write(&mut ssd, 8_192 + rng.next_u64() % 512);
    }
    ssd.check().unwrap();
    let (moved, segments) = (ssd.counters().programs(Cause::Gc), figure(&ssd, "segments"));
    assert!(moved > 8_000, "{moved}");
    // Those that were not collected yet have a segment each.
    assert!(segments < 7_000 && figure(&ssd, "levels_max") > 1, "{:?}", ssd.layer_figures());
}

#[test]
fn a_map_larger_than_the_cache_is_written_and_read_again() {
    let small =
        Config { map_cache: 2048, over_provisioning: 0.3, contents: true, ..Config::new(16_384 * PAGE, "leaftl") };
    let mut ssd = Ssd::new(&small).unwrap();
    let mut rng = SplitMix64::new(5);
    for _ in 0..40_000 {
        write(&mut ssd, rng.next_u64() % 16_384);
    }
    ssd.check().unwrap();
    let (programs, reads) = (ssd.counters().programs(Cause::Map), ssd.counters().reads(Cause::Map));
    assert!(figure(&ssd, "map_bytes") > 20 * 2048 && programs > 10_000 && reads > 10_000, "{:?}", ssd.counters());
}

#[test]
fn an_error_bound_beyond_the_out_of_band_area_is_refused() {
    let with = |error_bound, oob_bytes| {
        let shape = Shape { oob_bytes, ..Shape::ONE_DIE };
        Ssd::new(&Config { error_bound, shape, over_provisioning: 0.3, ..Config::new(64 << 20, "leaftl") }).err()
    };
    assert_eq!((with(16, 128), with(2, 16)), (None, None));
    assert_eq!(with(17, 128), Some(ConfigError::ErrorBound { bound: 17, oob_bytes: 128, most: 16 }));
}
