//! Synthetic traces have what they were fitted to, or what was stated.

use tessera_disk::SplitMix64;
use tessera_flash::Op;
use tessera_flash::synthetic::{Generator, Plan, PlanError, Profile};
use tessera_flash::trace::Request;

fn profile(requests: impl IntoIterator<Item = Request>) -> Profile {
    let mut profile = Profile::default();
    requests.into_iter().for_each(|request| profile.add(&request));
    profile
}

/// A trace on two devices: four in five requests read, one in four goes on where the last one ended, the others use one of
/// 3,000 places, half of the time one of the first 300.
fn original(count: u64) -> Vec<Request> {
    let (mut rng, mut at, mut ends, mut device) = (SplitMix64::new(11), 0, [0, 0], 0);
    let mut request = || {
        at += 50_000 + rng.below(100_000);
        let op = if rng.below(5) == 0 { Op::Write } else { Op::Read };
        let bytes = [4096, 8192, 16_384][rng.below(3) as usize];
        let mut offset: u64 = ends[device as usize];
        if rng.below(4) > 0 {
            let place = rng.below(2) * 300 + rng.below(300) * (1 + rng.below(9));
            (device, offset) = (place % 2, place * 7919 % 4096 * 65_536);
        }
        ends[device as usize] = offset + bytes;
        Request { at, op, device, offset, bytes }
    };
    (0..count).map(|_| request()).collect()
}

fn is_near(name: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance, "{name}: {found}, not {expected}");
}

fn plan(requests: u64) -> Plan {
    Plan { requests, seed: 5, ..Plan::default() }
}

#[test]
fn requests_end_within_the_footprint_whatever_their_size() {
    for (bytes, footprint) in [(1 << 20, 1 << 20), (3 << 19, 2 << 20), (700_000, 1 << 20)] {
        let plan = Plan { footprint, sizes: [Some(bytes); 2], sequential: Some(0.3), ..plan(2_000) };
        let end = Generator::new(&plan, None).unwrap().map(|request| request.end()).max();
        assert!(end <= Some(footprint), "{bytes} bytes of {footprint}: a request ends at {end:?}");
    }
    for bytes in [(1 << 20) + 1, u64::MAX - 100, u64::MAX] {
        let plan = Plan { footprint: 1 << 20, sizes: [None, Some(bytes)], ..plan(10) };
        let error = Generator::new(&plan, None).unwrap_err();
        assert_eq!(error, PlanError::Size { bytes, touched: 1 << 20 });
    }
}

#[test]
fn a_longer_trace_has_what_the_original_has() {
    let fitted = profile(original(60_000));
    let made = profile(Generator::new(&plan(240_000), Some(&fitted)).unwrap());
    assert_eq!(made.requests(), 240_000);
    is_near("reads", made.read_share(), fitted.read_share(), 0.005);
    is_near("reads of the original", fitted.read_share(), 0.8, 0.005);
    is_near("sequential", made.sequential_share(), fitted.sequential_share(), 0.01);
    is_near("sequential of the original", fitted.sequential_share(), 0.25, 0.01);
    is_near("reuse", made.reuse_share(), fitted.reuse_share(), 0.02);
    for op in [Op::Read, Op::Write] {
        is_near("size", made.mean_size(op), fitted.mean_size(op), 100.0);
    }
    is_near("gap", made.mean_gap(), fitted.mean_gap(), 1_000.0);
    // Half of the uses are of places that are used often, so quarters lie within one kind.
    for quantile in [0.1, 0.25, 0.75, 0.9] {
        let (made, fitted) = (made.reuse_distance(quantile) as f64, fitted.reuse_distance(quantile) as f64);
        is_near("reuse distance", made, fitted, fitted * 0.1);
    }
    is_near("correlated", made.correlated_share(), fitted.correlated_share(), 0.02);
}

#[test]
fn what_is_stated_replaces_what_was_measured() {
    let fitted = profile(original(20_000));
    let stated = Plan {
        reads: Some(0.5),
        sequential: Some(0.4),
        correlated: Some(0.6),
        groups: 50,
        sizes: [Some(2048), Some(20_480)],
        gap: Some(7_000),
        ..plan(100_000)
    };
    for of in [Some(&fitted), None] {
        let mut generator = Generator::new(&stated, of).unwrap();
        let made = profile(generator.by_ref());
        is_near("reads", made.read_share(), 0.5, 0.01);
        is_near("sequential", made.sequential_share(), 0.4, 0.03);
        is_near("gap", made.mean_gap(), 7_000.0, 100.0);
        is_near("size of writes", made.mean_size(Op::Write), 20_480.0, 300.0);
        is_near("correlated", generator.correlated() as f64 / 50_000.0, 0.6, 0.01);
        assert!(made.correlated_share() > 0.55, "mining finds the groups: {}", made.correlated_share());
    }
    let none = profile(Generator::new(&Plan { correlated: Some(0.0), ..stated }, None).unwrap());
    assert!(none.correlated_share() < 0.05, "nothing is correlated: {}", none.correlated_share());
}

#[test]
fn a_stated_mean_is_kept_where_the_trace_has_nothing_of_the_kind() {
    let at_once = |op| profile((0..100).map(|i| Request { at: 0, op, device: 0, offset: i * 65_536, bytes: 4096 }));
    for (op, other) in [(Op::Read, Op::Write), (Op::Write, Op::Read)] {
        let stated = Plan { reads: Some(0.5), sizes: [Some(8192); 2], gap: Some(1_000_000), ..plan(20_000) };
        let made = profile(Generator::new(&stated, Some(&at_once(op))).unwrap());
        is_near("mean size", made.mean_size(op), 8192.0, 100.0);
        is_near("mean size of what the trace has not", made.mean_size(other), 8192.0, 100.0);
        is_near("mean gap", made.mean_gap(), 1e6, 2e4);
    }
    let one = profile(original(1));
    let made = profile(Generator::new(&Plan { gap: Some(30_000), ..plan(100) }, Some(&one)).unwrap());
    is_near("mean gap after a single request", made.mean_gap(), 3e4, 1e3);
    let at_one_time = |i: u64| Request { at: i / 99, op: Op::Read, device: 0, offset: i * 65_536, bytes: 4096 };
    let nearly_at_once = profile((0..100).map(at_one_time));
    let made = profile(Generator::new(&Plan { gap: Some(1_000_000), ..plan(200_000) }, Some(&nearly_at_once)).unwrap());
    is_near("mean gap where it was below one ns", made.mean_gap(), 1e6, 1e5);
}

#[test]
fn a_skewed_trace_uses_few_pages_often_and_stays_in_its_footprint() {
    let share_of_the_first = |skew| {
        let skewed = Plan { skew: Some(skew), footprint: 64 << 20, ..plan(50_000) };
        let mut counts = std::collections::HashMap::new();
        for request in Generator::new(&skewed, None).unwrap() {
            assert!(request.device == 0 && request.end() <= 64 << 20, "{request:?}");
            *counts.entry(request.offset).or_insert(0u64) += 1;
        }
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts[..163].iter().sum::<u64>() as f64 / 50_000.0
    };
    // A hundredth of 16,384 pages: ln(163) / ln(16384) plus what Euler's constant adds to both.
    is_near("zipf", share_of_the_first(1.0), (163f64.ln() + 0.577) / (16_384f64.ln() + 0.577), 0.02);
    assert!(share_of_the_first(0.0) < 0.03);
}

#[test]
fn groups_lie_in_a_cluster_if_one_is_asked_for() {
    let clustered = Plan {
        reads: Some(1.0),
        correlated: Some(1.0),
        groups: 100,
        cluster: Some(4 << 20),
        footprint: 1 << 30,
        ..plan(5_000)
    };
    let offsets: Vec<u64> = Generator::new(&clustered, None).unwrap().map(|request| request.offset).collect();
    let (first, last) = (offsets.iter().min().unwrap(), offsets.iter().max().unwrap());
    assert!((3 << 20..4 << 20).contains(&(last - first)), "{first} to {last}");
}

#[test]
fn no_request_ends_beyond_the_footprint_whatever_its_size() {
    let large = Plan {
        correlated: Some(0.5),
        sequential: Some(0.3),
        footprint: 2 << 20,
        sizes: [Some(20_480), Some(100_000)],
        ..plan(20_000)
    };
    let last = Generator::new(&large, None).unwrap().map(|request| request.end()).max();
    assert_eq!(last, Some(2 << 20), "the last pages are used too");
}

#[test]
fn groups_can_be_read_unequally_often() {
    let most = |group_skew| {
        let skewed = Plan { reads: Some(1.0), correlated: Some(1.0), groups: 100, group_skew, ..plan(80_000) };
        let mut counts = std::collections::HashMap::new();
        Generator::new(&skewed, None).unwrap().for_each(|request| *counts.entry(request.offset).or_insert(0) += 1);
        counts.into_values().max().unwrap()
    };
    let (equal, skewed) = (most(0.0), most(1.0));
    assert!(equal < 200 && skewed > 1_500, "{equal} and {skewed} of 10,000");
}

#[test]
fn equal_seeds_give_equal_traces() {
    let fitted = profile(original(5_000));
    let made = |seed| Generator::new(&Plan { seed, ..plan(5_000) }, Some(&fitted)).unwrap().collect::<Vec<_>>();
    assert_eq!(made(1), made(1));
    assert_ne!(made(1), made(2));
}

#[test]
fn plans_that_cannot_be_followed_are_refused() {
    let refused = |plan: Plan, of: Option<&Profile>| Generator::new(&plan, of).err();
    assert_eq!(refused(plan(1), Some(&Profile::default())), Some(PlanError::Empty));
    let too_much = Plan { reads: Some(1.0), sequential: Some(0.5), correlated: Some(0.6), ..plan(1) };
    assert_eq!(refused(too_much, None), Some(PlanError::Shares { sequential: 50.0, correlated: 60.0 }));
    let single = Plan { correlated: Some(0.1), group: 1, ..plan(1) };
    assert_eq!(refused(single, None), Some(PlanError::Groups { group: 1, groups: 1000 }));
}
