//! Each mechanism of CPFTL has its effect, shown on requests that are made for it.

use tessera_disk::SplitMix64;
use tessera_flash::ftl::CpftlOptions;
use tessera_flash::{Cause, Config, Op, Shape, Ssd};

const PAGE: u64 = 512;
/// Translation pages have 128 entries, so pages in steps of this lie in different ones.
const STEP: u32 = 131;
/// Groups of pages that are read together.
const GROUPS: u32 = 56;
/// Pages of a group, and reads of a mining window.
const GROUP: u32 = 8;

/// A full device of 2,048 pages, which learns from what follows. A correlated page has 64 entries.
fn ssd(map_cache: u64, options: &str) -> Ssd {
    ssd_with_spare(map_cache, options, 0.3)
}

fn ssd_with_spare(map_cache: u64, options: &str, over_provisioning: f64) -> Ssd {
    let config = Config {
        shape: Shape { pages: 8, page_bytes: PAGE as u32, ..Shape::ONE_DIE },
        map_cache,
        over_provisioning,
        contents: true,
        cpftl: CpftlOptions::parse(&format!("window={GROUP},predictor=40,{options}")).unwrap(),
        ..Config::new(1 << 20, "cpftl")
    };
    let mut ssd = Ssd::new(&config).unwrap();
    ssd.preload(|_| true);
    ssd.observe();
    ssd
}

fn learn(ssd: &mut Ssd) {
    ssd.learn();
    ssd.reset();
    ssd.check().unwrap();
}

fn random(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut rng = SplitMix64::new(seed);
    move |below| (rng.next_u64() % u64::from(below)) as u32
}

fn request(ssd: &mut Ssd, op: Op, lpn: u32, pages: u64) {
    ssd.submit(0, op, u64::from(lpn) * PAGE, pages * PAGE);
}

/// A page of a group; no two pages of a group are in one translation page.
fn page_of(group: u32, i: u32) -> u32 {
    (group + i * STEP * 2) % 2048
}

fn read_groups(ssd: &mut Ssd, count: u32, next: &mut impl FnMut(u32) -> u32) {
    for _ in 0..count {
        let group = next(GROUPS);
        (0..GROUP).for_each(|i| request(ssd, Op::Read, page_of(group, i), 1));
    }
}

/// An SSD that has learned the groups.
fn trained(options: &str) -> Ssd {
    let mut ssd = ssd(2048, options);
    read_groups(&mut ssd, 1_000, &mut random(1));
    learn(&mut ssd);
    ssd
}

fn figure(ssd: &Ssd, name: &str) -> u64 {
    ssd.layer_figures().iter().find(|(found, _)| *found == name).map(|(_, value)| *value).unwrap()
}

#[test]
fn correlated_pages_that_were_mined_save_translation_reads() {
    let reads = |options: &str| {
        let mut ssd = trained(options);
        read_groups(&mut ssd, 1_000, &mut random(2));
        ssd.check().unwrap();
        (ssd.counters().reads(Cause::Map), ssd)
    };
    let ((without, _), (predicted, ssd)) = (reads("no-correlation"), reads("support=1"));
    let ((searched, exact), (full, _)) = (reads("full-search"), reads("full-mining"));
    assert!(predicted * 3 < without, "{predicted} of {without}");
    assert!(searched <= predicted, "a search without mistakes is the bound: {searched}, {predicted}");
    assert_eq!(full, predicted, "regions lose no pair here");
    let (found, loads) = ("correlated_page_reads_with_the_entry", "correlated_page_reads");
    assert_eq!(figure(&exact, found), figure(&exact, loads));
    assert_eq!(figure(&ssd, "correlated_pages_dropped_by_ratio"), 0);
    assert_eq!(figure(&ssd, "correlated_pages_live"), u64::from(GROUPS * GROUP).div_ceil(64));
}

#[test]
fn a_threshold_above_the_support_leaves_nothing() {
    let ssd = trained("support=100");
    assert_eq!((figure(&ssd, "mined_pairs"), figure(&ssd, "correlated_pages_built")), (0, 0));
    assert_eq!(figure(&trained("support=1"), "mined_pairs"), u64::from(GROUPS * GROUP * (GROUP - 1) / 2));
}

/// Reads of the map for one read of each group, with a cache that holds a few of them.
fn reads_for_each_group(ssd: &mut Ssd) -> u64 {
    let before = ssd.counters().reads(Cause::Map);
    (0..GROUPS).for_each(|group| (0..GROUP).for_each(|i| request(ssd, Op::Read, page_of(group, i), 1)));
    ssd.counters().reads(Cause::Map) - before
}

#[test]
fn one_read_of_the_map_brings_in_a_group() {
    let mut ssd = trained("full-search");
    let reads = reads_for_each_group(&mut ssd);
    assert!(reads <= u64::from(GROUPS), "{reads}");
    let reads = reads_for_each_group(&mut trained("support=1"));
    assert!(reads <= u64::from(GROUPS) * 11 / 10, "filters are seldom wrong: {reads}");
}

#[test]
fn a_page_of_two_groups_is_brought_in_with_both() {
    // The third page of each group is the first one of the group before.
    let page = |group: u32, i: u32| if i == 2 { page_of((group + GROUPS - 1) % GROUPS, 0) } else { page_of(group, i) };
    let read = |ssd: &mut Ssd, group| (0..GROUP).for_each(|i| request(ssd, Op::Read, page(group, i), 1));
    let (mut ssd, mut next) = (ssd(2048, "full-search"), random(1));
    (0..1_000).for_each(|_| read(&mut ssd, next(GROUPS)));
    learn(&mut ssd);
    let groups = || (0..GROUPS).map(|group| group * 5 % GROUPS);
    groups().for_each(|group| read(&mut ssd, group));
    // Each group is read once for its first page, or twice if that brings in the group after, of which it is a page too.
    let reads = ssd.counters().reads(Cause::Map);
    assert!(reads <= u64::from(2 * GROUPS), "{reads} reads of the map for {GROUPS} groups");
    ssd.check().unwrap();
}

#[test]
fn a_write_leaves_the_other_entries_of_a_correlated_page() {
    let mut ssd = trained("support=1");
    let live = figure(&ssd, "correlated_pages_live");
    // One page of every second group.
    (0..GROUPS / 2).for_each(|group| request(&mut ssd, Op::Write, page_of(2 * group, 5), 1));
    let noted = figure(&ssd, "correlated_entries_outdated");
    assert!((28..35).contains(&noted), "a few more may note them, because a filter was wrong: {noted}");
    (0..GROUPS / 2).for_each(|group| request(&mut ssd, Op::Write, page_of(2 * group, 5), 1));
    assert_eq!(figure(&ssd, "correlated_entries_outdated"), noted, "once each");
    assert_eq!(figure(&ssd, "correlated_pages_live"), live);
    reads_for_each_group(&mut ssd);
    let reads = reads_for_each_group(&mut ssd);
    assert!(reads <= u64::from(GROUPS + GROUPS / 2) * 11 / 10, "one more for each page that was written: {reads}");
    ssd.check().unwrap();
}

#[test]
fn a_write_drops_a_correlated_page_that_can_note_no_more_and_only_that() {
    let mut ssd = trained("outdated=1");
    let live = figure(&ssd, "correlated_pages_live");
    request(&mut ssd, Op::Write, page_of(3, 4), 1);
    assert_eq!((figure(&ssd, "correlated_pages_live"), figure(&ssd, "correlated_entries_outdated")), (live, 1));
    request(&mut ssd, Op::Write, page_of(3, 5), 1);
    assert_eq!(figure(&ssd, "correlated_pages_live"), live - 1);
    assert_eq!(figure(&ssd, "correlated_pages_dropped_by_writes"), 1);
    // No group has this page.
    request(&mut ssd, Op::Write, GROUPS + 1, 1);
    assert_eq!(figure(&ssd, "correlated_pages_dropped_by_writes"), 1);
    ssd.check().unwrap();
}

#[test]
fn correlated_pages_that_bring_fewer_hits_than_others_are_dropped() {
    let mut ssd = trained("support=1");
    let mut next = random(3);
    for _ in 0..4_000 {
        // One page of a group alone, and other pages that are read again at once.
        request(&mut ssd, Op::Read, page_of(next(GROUPS), 0), 1);
        let other = 900 + next(100);
        (0..4).for_each(|_| request(&mut ssd, Op::Read, other, 1));
    }
    assert!(figure(&ssd, "correlated_pages_dropped_by_ratio") > 0, "{:?}", ssd.layer_figures());
    ssd.check().unwrap();
}

/// Writes that collection follows, to pages of no group, and reads of groups.
fn collect(options: &str) -> Ssd {
    let mut ssd = trained(options);
    let mut next = random(4);
    let is_grouped = |lpn| (0..GROUPS).any(|group| (0..GROUP).any(|i| page_of(group, i) == lpn));
    for i in 0..8_000 {
        let lpn = next(2048);
        if !is_grouped(lpn) {
            request(&mut ssd, Op::Write, lpn, 1);
        }
        if i % 4 == 0 {
            read_groups(&mut ssd, 1, &mut next);
        }
    }
    ssd.check().unwrap();
    ssd
}

#[test]
fn what_garbage_collection_moves_is_noted_as_outdated() {
    let ssd = collect("outdated=16");
    assert!(figure(&ssd, "correlated_entries_outdated") > 16, "{:?}", ssd.layer_figures());
}

#[test]
fn correlated_pages_that_can_note_no_more_follow_what_garbage_collection_moves() {
    let ssd = collect("outdated=0");
    assert!(figure(&ssd, "correlated_pages_rewritten_by_gc") > 10, "{:?}", ssd.layer_figures());
    assert!(figure(&ssd, "correlated_pages_live") > 0);
}

#[test]
fn sequential_prefetch_saves_translation_reads() {
    let reads = |options: &str| {
        let (mut ssd, mut next) = (ssd(2048, options), random(5));
        (0..2_000).for_each(|_| request(&mut ssd, Op::Read, next(2040), 8));
        ssd.counters().reads(Cause::Map)
    };
    let (with, without) = (reads("no-correlation"), reads("no-correlation,no-sequential"));
    assert!(with * 3 < without, "{with} of {without}");
}

/// Translation pages that are written for requests which repeat, of which the first half is learned from.
fn translation_writes(options: &str, over_provisioning: f64, mut round: impl FnMut(&mut Ssd)) -> u64 {
    let mut ssd = ssd_with_spare(768, options, over_provisioning);
    for i in 0..1_000 {
        if i == 500 {
            learn(&mut ssd);
        }
        round(&mut ssd);
    }
    ssd.check().unwrap();
    assert!(over_provisioning < 1.0 || ssd.counters().programs(Cause::Gc) == 0, "nothing is collected");
    ssd.counters().programs(Cause::Map)
}

#[test]
fn the_dirty_index_keeps_reads_from_replacing_dirty_entries() {
    let writes = |options: &str| {
        let mut next = random(6);
        translation_writes(options, 0.3, |ssd| {
            request(ssd, Op::Write, next(256), 1);
            (0..8).for_each(|_| request(ssd, Op::Read, next(2048), 1));
        })
    };
    let (mixed, indexed) = (writes("no-correlation,no-dirty-index"), writes("no-correlation,no-skew"));
    assert!(indexed * 4 < mixed * 3, "{indexed} of {mixed}");
}

#[test]
fn dirty_entries_that_no_write_changes_leave_their_place_to_reads() {
    let (mut ssd, mut next) = (ssd_with_spare(2048, "no-correlation", 10.0), random(8));
    ssd.reset();
    (0..64).for_each(|i| request(&mut ssd, Op::Write, i * 32, 1));
    let written = ssd.counters().programs(Cause::Map);
    (0..4_000).for_each(|_| request(&mut ssd, Op::Read, next(2048), 1));
    assert_eq!(ssd.counters().programs(Cause::Map) - written, 16, "each translation page once");
    ssd.check().unwrap();
}

#[test]
fn translation_pages_that_change_often_are_written_less_often() {
    let writes = |options: &str| {
        let mut next = random(7);
        // So many spare blocks that nothing is collected, which would write translation pages too.
        translation_writes(options, 10.0, |ssd| {
            // Two translation pages change twice in a round. Fourteen more change once, and would replace them.
            (0..2).for_each(|page| (0..2).for_each(|_| request(ssd, Op::Write, page * 128 + next(4), 1)));
            (2..16).for_each(|page| request(ssd, Op::Write, page * 128 + next(128), 1));
            request(ssd, Op::Read, next(2048), 1);
        })
    };
    let (plain, aware) = (writes("no-correlation,no-skew"), writes("no-correlation,hot=1"));
    assert!(aware * 20 < plain * 19, "{aware} of {plain}");
}
