//! The layer that docs/flash.md adds as an example compiles, is the one in the page, and equals a plain map.

#[path = "../common/mod.rs"]
mod common;
mod fifo;

use common::{config, run, step};
use fifo::FIFO;
use proptest::prelude::*;
use tessera_flash::{Cause, Config, ConfigError, Policy, Shape, Ssd};

fn small() -> Config {
    Config { map_cache: 1600, ..config(FIFO.name, Policy::Greedy, Shape::ONE_DIE) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_example_equals_a_plain_map(steps in prop::collection::vec(step(), 100..300)) {
        let ssd = run(Ssd::with_layer(&small(), &FIFO).unwrap(), &steps, 8);
        prop_assert!(ssd.counters().programs(Cause::Map) > 100, "pages were replaced: {:?}", ssd.counters());
        prop_assert_eq!(ssd.cache().peak, 3 * 512);
    }
}

#[test]
fn a_cache_of_less_than_a_page_is_refused() {
    let error = Ssd::with_layer(&Config { map_cache: 511, ..small() }, &FIFO).err();
    assert_eq!(error, Some(ConfigError::MapCache { ftl: "fifo", bytes: 511, min: 512 }));
}

#[test]
fn the_page_shows_this_file() {
    let page = include_str!("../../../../docs/flash.md");
    assert!(page.contains(include_str!("fifo.rs")), "docs/flash.md and tests/new_layer/fifo.rs differ");
}
