//! The reserve of free blocks suffices for any number of translation pages that a layer writes. Collecting blocks of data takes more pages than
//! it frees, block after block, when each moved page lies in another translation page. The collector asserts the reserve.

mod common;

use common::PAGE;
use tessera_disk::SplitMix64;
use tessera_flash::ftl::{CacheUse, CpftlOptions, Directory, Ftl, LAYERS, Layer, Move, NONE, some, translation_pages};
use tessera_flash::{Cause, Config, Device, Op, Order, Policy, Ppn, Shape, Ssd};

const PARALLEL: Shape = Shape { channels: 2, planes: 2, ..Shape::ONE_DIE };

/// A device with 128 translation pages and 8 pages in a block: each page of a block lies in another translation page.
fn config(ftl: &str, shape: Shape, policy: Policy) -> Config {
    let small = Shape { pages: 8, page_bytes: PAGE as u32, ..shape };
    Config { shape: small, policy, map_cache: 1024, ..Config::new(8 << 20, ftl) }
}

/// Writes all pages in random order, and then random ones.
fn overwrite(mut ssd: Ssd, rounds: u64) -> Ssd {
    ssd.preload_in(Order::Random, |_| true);
    let (mut rng, pages) = (SplitMix64::new(1), ssd.capacity() / PAGE);
    for _ in 0..rounds * pages {
        ssd.submit(0, Op::Write, rng.next_u64() % pages * PAGE, PAGE);
    }
    ssd.check().unwrap();
    ssd
}

/// Translation pages that are written because of each page that collection moves, on average.
fn writes_per_move(ssd: &Ssd) -> f64 {
    let programs = |cause| ssd.counters().programs(cause) as f64;
    programs(Cause::MapGc) / programs(Cause::Gc)
}

#[test]
fn layers_that_write_a_translation_page_for_each_moved_page_keep_the_reserve() {
    for layer in LAYERS.iter().filter(|layer| layer.min_cache.is_some()) {
        for shape in [Shape::ONE_DIE, PARALLEL] {
            // Cost-benefit collects old data rather than blocks of the map, which change often.
            for policy in [Policy::Greedy, Policy::CostBenefit] {
                let ssd = overwrite(Ssd::new(&config(layer.name, shape, policy)).unwrap(), 4);
                // A layer that allocates by group collects all pages of a translation page at once.
                let is_grouped = ssd.device().grouping().is_some();
                assert!(is_grouped || writes_per_move(&ssd) > 0.5, "{}: {}", layer.name, writes_per_move(&ssd));
            }
        }
    }
}

#[test]
fn cpftl_keeps_the_reserve_with_all_mechanisms_and_with_any_off() {
    for off in ["keep=16", "no-skew", "no-correlation", "no-dirty-index", "no-sequential,keep=0"] {
        let cpftl = CpftlOptions::parse(off).unwrap();
        for map_cache in [1024, 65_536] {
            let config = Config { cpftl, map_cache, ..config("cpftl", Shape::ONE_DIE, Policy::CostBenefit) };
            overwrite(Ssd::new(&config).unwrap(), 4);
        }
    }
}

/// Translation pages that [`Wasteful`] writes for each page that collection moves.
const WASTE: u32 = 20;
/// Those that it writes each time that it writes any for an update.
const BURST: u32 = 300;

/// Pages of its own.
const OWN: u32 = 64;

/// A layer with the map in memory, which writes many translation pages of all kinds, one after the other: for each page that is moved,
/// and, once collection has begun, now and then for an update. Before that it writes only its own pages.
struct Wasteful {
    directory: Directory,
    map: Vec<u32>,
    /// The translation page to write next; its own ones come last.
    next: u32,
    has_moved: bool,
    cache: CacheUse,
}

impl Wasteful {
    fn new(device: &Device) -> Self {
        let (mut directory, map) = (Directory::new(device), vec![NONE; device.geometry().logical_pages as usize]);
        directory.set_hot(|page| page % 2 == 0);
        directory.set_own_pages(OWN);
        Wasteful { next: directory.pages(), directory, map, has_moved: false, cache: CacheUse::default() }
    }

    fn write(&mut self, device: &mut Device, pages: u32, cause: Cause) {
        for _ in 0..pages {
            self.directory.store(device, self.next, cause);
            self.next = (self.next + 1) % (self.directory.pages() + OWN);
        }
    }
}

impl Ftl for Wasteful {
    fn lookup(&mut self, _: &mut Device, lpn: u32) -> Option<Ppn> {
        some(self.map[lpn as usize])
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        match self.has_moved {
            false if self.next >= self.directory.pages() => self.write(device, 1, Cause::Map),
            true if lpn.is_multiple_of(32) => self.write(device, BURST, Cause::Map),
            _ => {}
        }
        some(std::mem::replace(&mut self.map[lpn as usize], to.unwrap_or(NONE)))
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        self.has_moved = true;
        for m in moves {
            self.map[m.lpn as usize] = m.to;
            self.write(device, WASTE, Cause::MapGc);
        }
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        some(self.map[lpn as usize])
    }

    tessera_flash::directory_and_cache!();
}

const WASTEFUL: Layer = Layer {
    name: "wasteful",
    about: "writes far more of the map than it has to",
    min_cache: None,
    map_pages: |shape, logical| translation_pages(shape, logical) + OWN,
    make: |device, _| Box::new(Wasteful::new(device)),
};

#[test]
fn a_layer_that_writes_any_number_of_translation_pages_keeps_the_reserve() {
    for shape in [Shape::ONE_DIE, PARALLEL] {
        for policy in [Policy::Greedy, Policy::CostBenefit] {
            let config = Config { capacity: 4 << 20, over_provisioning: 0.3, ..config("wasteful", shape, policy) };
            let ssd = overwrite(Ssd::with_layer(&config, &WASTEFUL).unwrap(), 1);
            assert!(writes_per_move(&ssd) > 19.0, "{}", writes_per_move(&ssd));
        }
    }
}
