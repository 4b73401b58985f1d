//! The simulator against arithmetic and against the mean-field theory of garbage collection.

use tessera_disk::SplitMix64;
use tessera_flash::theory::greedy_write_amplification;
use tessera_flash::{Config, Op, Shape, Ssd, Timing};

#[test]
fn a_single_stream_on_the_ideal_layer_is_arithmetic() {
    let mut config = Config::new(64 << 20, "ideal");
    config.timing = Timing { transfer: 10_000, ..Timing::SIMULATION };
    let mut ssd = Ssd::new(&config).unwrap();
    for i in 0..1_000u64 {
        let now = i * 1_000_000;
        assert_eq!(ssd.submit(now, Op::Write, i * 8192, 8192) - now, 2 * 210_000);
        assert_eq!(ssd.submit(now + 500_000, Op::Read, i * 8192, 4096) - now, 500_000 + 35_000);
    }
    config = Config { capacity: 256 << 20, shape: Shape::FOUR_CHANNELS, ..config };
    let mut parallel = Ssd::new(&config).unwrap();
    assert_eq!(parallel.submit(0, Op::Write, 0, 32 << 10), 2 * 210_000, "eight pages on four channels");
}

/// Write amplification of a full device under uniform random writes, once it has settled.
fn simulate(pages: u32, spare: f64) -> (f64, f64) {
    let shape = Shape { pages, ..Shape::ONE_DIE };
    let config = Config {
        shape,
        over_provisioning: spare,
        background: false,
        wear_levelling: false,
        ..Config::new(u64::from(pages) * 4096 * 4096, "ideal")
    };
    let mut ssd = Ssd::new(&config).unwrap();
    let logical = u64::from(ssd.device().geometry().logical_pages);
    let used = logical as f64 / ssd.device().geometry().pages() as f64;
    let mut rng = SplitMix64::new(1);
    ssd.preload(|_| true);
    for round in 0..12 {
        if round == 8 {
            ssd.reset();
        }
        for _ in 0..logical {
            ssd.submit(0, Op::Write, rng.next_u64() % logical * 4096, 4096);
        }
    }
    (ssd.counters().write_amplification(), greedy_write_amplification(pages, used))
}

#[test]
fn greedy_collection_matches_the_mean_field_result() {
    for spare in [0.07, 0.1, 0.15, 0.28, 0.5] {
        let (found, expected) = simulate(32, spare);
        println!("over-provisioning {spare}: simulated {found:.3}, mean field {expected:.3}");
        assert!((found / expected - 1.0).abs() < 0.03, "{spare}: {found} against {expected}");
    }
}
