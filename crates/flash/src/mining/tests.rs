use super::*;
use proptest::prelude::*;

fn mining(window: usize, method: Method) -> Mining {
    Mining { window, per_mille: 1, method, pairs_max: PAIRS_MAX }
}

fn pair(first: u32, second: u32, support: u32) -> Pair {
    Pair { first, second, support }
}

#[test]
fn pairs_are_counted_once_in_a_window_and_not_across_windows() {
    let full = mining(4, Method::Full);
    // Windows 1 2 1 2 | 1 2 9 8 | 3 1 2 7 | 7 4 5 6: (2, 1) is in one window, (7, 4) and (2, 7) too.
    let reads = [1, 2, 1, 2, 1, 2, 9, 8, 3, 1, 2, 7, 7, 4, 5, 6];
    assert_eq!(full.mine(&reads).pairs, [pair(1, 2, 3)]);
    // The order counts, and a page is no pair with itself.
    assert_eq!(full.mine(&[5, 5, 6, 6, 5, 6, 6, 6, 6, 5, 5, 5]).pairs, [pair(5, 6, 2)]);
    assert_eq!(full.mine(&[]).pairs, []);
}

#[test]
fn the_threshold_is_a_share_of_the_windows() {
    let mut full = mining(10, Method::Full);
    assert_eq!([0, 100, 20_000, 20_001].map(|reads| full.threshold(reads)), [2, 2, 2, 3]);
    full.per_mille = 9;
    assert_eq!(full.threshold(10_000), 9);
    let reads: Vec<u32> = (0..1000).map(|i| if i % 250 < 2 { i % 250 } else { 1000 + i }).collect();
    full.per_mille = 40;
    assert_eq!(full.mine(&reads).pairs, [pair(0, 1, 4)], "4 of 100 windows");
    full.per_mille = 41;
    assert_eq!(full.mine(&reads).pairs, []);
}

#[test]
fn clustered_mining_finds_the_pairs_of_hot_regions_in_less_memory() {
    // Each window of 8 reads: a pair of pages of the first region, and noise in the hundred others.
    let mut state = 7u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % 100_000 + 1_000
    };
    let mut reads = Vec::new();
    for i in 0..4_000 {
        let at = i % 40;
        reads.extend([100 + at, noise(), noise(), 300 + at, noise(), noise(), noise(), noise()]);
    }
    let (full, clustered) = (mining(8, Method::Full).mine(&reads), mining(8, Method::Clustered(1_000)).mine(&reads));
    let expected: Vec<Pair> = (0..40).map(|at| pair(100 + at, 300 + at, 100)).collect();
    assert!(expected.iter().all(|pair| clustered.pairs.contains(pair)), "{:?}", clustered.pairs);
    assert_eq!(clustered.pairs, full.pairs);
    assert!(clustered.peak_bytes * 4 < full.peak_bytes, "{} of {}", clustered.peak_bytes, full.peak_bytes);
}

/// Reads at random make a new pair each, and a table of 4,000 pairs finds those that return all the same.
#[test]
fn mining_drops_the_rarest_pairs_when_there_are_too_many() {
    let mut rng = tessera_disk::SplitMix64::new(5);
    let reads: Vec<u32> = (0..64_000u32)
        .map(|i| match i % 32 {
            at @ (3 | 19) => at,
            _ => 100 + rng.below(1 << 30) as u32,
        })
        .collect();
    for method in [Method::Full, Method::Clustered(1)] {
        let bounded = Mining { pairs_max: 4_000, ..mining(32, method) };
        let mined = bounded.mine(&reads);
        assert!(mined.peak_bytes < 4_000 * 2 * 48, "{} bytes", mined.peak_bytes);
        assert!(mined.dropped > 900_000 && mined.missed > 0, "{} dropped, {} missed", mined.dropped, mined.missed);
        assert!(mined.pairs.contains(&pair(3, 19, 2_000)), "it is in every window: {:?}", mined.pairs);
    }
    let all = mining(32, Method::Full).mine(&reads);
    assert_eq!((all.dropped, all.missed), (0, 0), "so many pairs fit");
}

#[test]
fn of_too_many_frequent_pairs_the_most_frequent_are_kept() {
    // The pair (0, 1) is in three windows, and 300 others of three pairs of regions in two.
    let others = (0..300).chain(0..300).flat_map(|i| [1_000 + i, 2_000 + i]);
    let reads: Vec<u32> = others.chain([0, 1, 0, 1, 0, 1]).collect();
    let mined = Mining { pairs_max: 150, ..mining(2, Method::Clustered(100)) }.mine(&reads);
    assert_eq!((mined.pairs.len(), mined.pairs[0]), (150, pair(0, 1, 3)), "{mined:?}");
    assert_eq!((mined.dropped, mined.missed), (50 + 100 + 1, 2));
}

proptest! {
    #[test]
    fn bounded_mining_misses_no_more_than_it_says(
        reads in prop::collection::vec(prop_oneof![0u32..12, 0u32..400], 0..2_000),
        window in 2usize..20,
        pairs_max in 1usize..400,
    ) {
        let mine = |pairs_max| Mining { pairs_max, ..mining(window, Method::Full) };
        let (full, mined) = (mine(PAIRS_MAX).mine(&reads), mine(pairs_max).mine(&reads));
        let least = mine(1).threshold(reads.len()) + mined.missed;
        prop_assert!(mined.pairs.len() <= pairs_max && full.missed == 0);
        for pair in &mined.pairs {
            let all = full.pairs.iter().find(|other| (other.first, other.second) == (pair.first, pair.second));
            prop_assert!(all.is_some_and(|all| pair.support <= all.support && all.support <= pair.support + mined.missed));
        }
        for pair in full.pairs.iter().filter(|pair| pair.support >= least) {
            prop_assert!(mined.pairs.iter().any(|other| (other.first, other.second) == (pair.first, pair.second)));
        }
    }

    #[test]
    fn clustered_mining_gives_a_part_of_the_full_result_with_equal_supports(
        reads in prop::collection::vec(prop_oneof![0u32..40, 0u32..4_000], 0..2_000),
        window in 2usize..40,
        region in 1u32..600,
        per_mille in 1u32..100,
    ) {
        let mine = |method| Mining { window, per_mille, method, pairs_max: PAIRS_MAX }.mine(&reads);
        let (full, clustered) = (mine(Method::Full), mine(Method::Clustered(region)));
        prop_assert!(clustered.pairs.iter().all(|pair| full.pairs.binary_search(pair).is_ok()));
        // 31 regions make no more pairs than are looked into.
        if region >= 130 {
            prop_assert_eq!(clustered.pairs, full.pairs);
        }
    }
}
