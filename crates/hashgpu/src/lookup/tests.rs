//! Batches against single look-ups (P10), filters without false negatives, misuse (P14).

use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Rising keys with gaps, so that some queries hit and some miss.
fn keys(rng: &mut StdRng, count: usize) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..count).map(|_| rng.random_range(0..count as u64 * 3 + 2)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[test]
fn unsorted_arrays_are_refused() {
    assert_eq!(Sorted::new(&[1u32, 2, 2]).map(|_| ()), Err(LookupError::Unsorted { index: 2 }));
    assert_eq!(Sorted::new(&[5u64, 4]).map(|_| ()), Err(LookupError::Unsorted { index: 1 }));
    assert!(Sorted::new(&[] as &[u32]).is_ok());
    let too_many = Levels::new(vec![Sorted::new(&[1u8]).unwrap(); 65_536]).map(|_| ());
    assert_eq!(too_many, Err(LookupError::TooManyLevels { got: 65_536 }));
}

/// More than 100,000 queries: every array length up to 40 and some beyond, every batch size around sixteen.
#[test]
fn batches_equal_the_reference() {
    let mut rng = StdRng::seed_from_u64(11);
    for case in 0..4000usize {
        let keys = keys(&mut rng, if case % 4 == 0 { case % 1000 } else { case % 41 });
        let queries: Vec<u64> =
            (0..case % 64).map(|_| rng.random_range(0..keys.len() as u64 * 3 + 4)).chain([0, u64::MAX]).collect();
        let sorted = Sorted::new(&keys).unwrap();
        assert_eq!(sorted.lower_bounds(&queries), sorted.lower_bounds_reference(&queries), "{} keys", keys.len());
        let narrow: Vec<u32> = keys.iter().map(|key| *key as u32).collect();
        let asked: Vec<u32> = queries.iter().map(|query| *query as u32).collect();
        let sorted = Sorted::new(&narrow).unwrap();
        assert_eq!(sorted.lower_bounds(&asked), sorted.lower_bounds_reference(&asked));
        let found: Vec<_> = asked.iter().map(|query| narrow.binary_search(query).ok().map(|i| i as u32)).collect();
        assert_eq!(sorted.find(&asked), found);
    }
    let strings: Vec<[u8; 20]> = (0..100u8).map(|i| [2 * i; 20]).collect();
    let sorted = Sorted::new(&strings).unwrap();
    let queries: Vec<[u8; 20]> = (0..200u8).map(|i| [i; 20]).collect();
    assert_eq!(sorted.lower_bounds(&queries), sorted.lower_bounds_reference(&queries));
}

#[test]
fn the_newest_level_that_has_a_key_answers() {
    let mut rng = StdRng::seed_from_u64(12);
    for case in 0..500 {
        let arrays: Vec<Vec<u64>> = (0..case % 7).map(|level| keys(&mut rng, 4 << level)).collect();
        let levels = Levels::new(arrays.iter().map(|keys| Sorted::new(keys).unwrap()).collect()).unwrap();
        let queries: Vec<u64> = (0..100).map(|_| rng.random_range(0..800)).collect();
        assert_eq!(levels.find(&queries), levels.find_reference(&queries));
    }
    let (new, old) = ([3u64, 7], [1u64, 3, 9]);
    let levels = Levels::new(vec![Sorted::new(&new).unwrap(), Sorted::new(&old).unwrap()]).unwrap();
    let at = |level, index| Some(KeyPosition { level, index });
    assert_eq!(levels.find(&[1, 3, 7, 8, 9]), [at(1, 0), at(0, 0), at(0, 1), None, at(1, 2)]);
}

#[test]
fn fragments_pass_every_key_at_its_place_and_few_others() {
    let mut rng = StdRng::seed_from_u64(13);
    let mut keys: Vec<u64> = (0..20_000).map(|_| rng.random()).collect();
    keys.sort_unstable();
    let positions: Vec<u32> = (0..keys.len() as u32).collect();
    let filter = Fragments::<u16>::new(&keys);
    assert!(filter.may_hold(&positions, &keys).unwrap().into_iter().all(|held| held));
    let small = Fragments::<u8>::new(&keys);
    let others: Vec<u64> = (0..keys.len()).map(|_| rng.random()).collect();
    let passed = |held: Vec<bool>| held.into_iter().filter(|held| *held).count();
    // 20,000 / 65,536 and 20,000 / 256 are expected.
    assert!(passed(filter.may_hold(&positions, &others).unwrap()) < 6);
    assert!((40..130).contains(&passed(small.may_hold(&positions, &others).unwrap())));
    assert_eq!(filter.may_hold(&[u32::MAX], &[0]), Ok(vec![false]));
    assert_eq!(filter.may_hold(&[1], &[]), Err(FragmentsError::Count { positions: 1, keys: 0 }));
    assert!(Fragments::<u8>::new(&[]).is_empty() && filter.len() == 20_000);
}

#[test]
fn a_bloom_filter_forgets_nothing_and_claims_few() {
    let mut rng = StdRng::seed_from_u64(14);
    for (count, bits, most) in [(0, 8, 0), (1, 8, 400), (1000, 8, 4000), (20_000, 16, 300)] {
        let hashes: Vec<u64> = (0..count).map(|_| rng.random()).collect();
        let mut filter = BlockedBloom::new(count, bits).unwrap();
        filter.insert(&hashes);
        assert!(filter.may_hold(&hashes).into_iter().all(|held| held));
        let others: Vec<u64> = (0..100_003).map(|_| rng.random()).collect();
        let held = filter.may_hold(&others);
        assert_eq!(held, filter.may_hold_reference(&others));
        let passed = held.into_iter().filter(|held| *held).count();
        assert!(passed <= most, "{passed} of 100,003 with {count} keys at {bits} bits");
        assert!(filter.bytes() >= (count * bits / 8).max(32));
    }
    assert_eq!(BlockedBloom::new(usize::MAX, 0).map(|filter| filter.bytes()), Ok(32));
    for keys in [usize::MAX, usize::MAX / 8, 1 << 50] {
        assert_eq!(BlockedBloom::new(keys, 8), Err(BloomError::Memory { keys, bits_per_key: 8 }));
    }
}
