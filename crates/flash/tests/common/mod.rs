//! A small device beside a plain map of what each page holds.

#![allow(dead_code, reason = "not every test uses all of it")]

use proptest::prelude::*;
use std::collections::HashMap;
use tessera_flash::ftl::CpftlOptions;
use tessera_flash::{Cause, Config, Op, Policy, Shape, Ssd};

pub const PAGE: u64 = 512;

/// Much of the small map cache is for the prediction directory, so that there are correlated pages.
pub const CPFTL: &str = "predictor=40,region=256,window=8";

/// A small device with small blocks and pages, so that a few thousand requests collect every block several times and
/// the map has many more translation pages than the cache holds.
pub fn config(ftl: &str, policy: Policy, shape: Shape) -> Config {
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

/// Something that the host does.
#[derive(Debug, Clone)]
pub enum Step {
    Write(u64, u64),
    Part(u64),
    Read(u64, u64),
    Trim(u64, u64),
    Idle,
}

/// Any step.
pub fn step() -> impl Strategy<Value = Step> {
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

/// Runs the steps on an SSD beside a map, `rounds` times. It has no write buffer: every write is a program.
pub fn run(ssd: Ssd, steps: &[Step], rounds: usize) -> Ssd {
    let (ssd, writes) = run_counting(ssd, steps, rounds);
    assert_eq!(ssd.counters().programs(Cause::Host), u64::from(writes));
    ssd
}

/// As [`run`], with any write buffer; returns how many pages were written.
pub fn run_counting(mut ssd: Ssd, steps: &[Step], rounds: usize) -> (Ssd, u32) {
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
    balance(&ssd);
    (ssd, writes)
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

/// Every program has a cause, as order numbers tell, and each moved page was read.
fn balance(ssd: &Ssd) {
    use Cause::*;
    let c = ssd.counters();
    let (host, moved, map) = (c.programs(Host), [Gc, GcTranslation, Wear], [Map, MapGc]);
    let sum = |causes: &[Cause]| causes.iter().map(|cause| c.programs(*cause)).sum::<u64>();
    let pages = 0..ssd.device().geometry().pages() as u32;
    let newest = pages.map(|ppn| ssd.device().order(ppn)).max();
    assert_eq!(newest, Some(host + sum(&moved) + sum(&map)), "each program has the next order number");
    for cause in moved {
        assert_eq!(c.reads(cause), c.programs(cause), "{cause:?}");
    }
    assert_eq!(c.all_erases(), ssd.erases().map(u64::from).sum::<u64>());
}
