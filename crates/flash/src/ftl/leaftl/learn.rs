//! Greedy piecewise linear regression, from left to right. All arithmetic is in whole numbers, so the error bound holds exactly.

use super::segment::{Members, ONE, SEGMENT_BYTES, Segment, rise};
use std::ops::RangeInclusive;

/// A page of a group and where it is.
pub type Point = (u8, u32);

/// Learns the segments of points, sorted by page, that lie in one block. A place that is predicted is wrong by no more than `error`
/// pages, and one of the pages `written`. From each point on, the kind of segment is taken that needs fewer bytes for a page.
pub fn learn(points: &[Point], error: u32, written: RangeInclusive<u32>) -> Vec<(Segment, Members)> {
    let (mut segments, mut rest) = (Vec::new(), points);
    while !rest.is_empty() {
        let (strided, len) = strided(rest);
        let cost = |bytes: usize, len: usize| bytes as f64 / len as f64;
        let is_cheaper = |near: &(Segment, usize)| cost(SEGMENT_BYTES + 1 + near.1, near.1) < cost(SEGMENT_BYTES, len);
        let (segment, len) = near(rest, error, &written).filter(is_cheaper).unwrap_or((strided, len));
        segments.push((segment, rest[..len].iter().map(|point| point.0).collect()));
        rest = &rest[len..];
    }
    segments
}

/// The longest accurate segment from the first point on, and how many points it has.
fn strided(points: &[Point]) -> (Segment, usize) {
    let (first, ppn) = points[0];
    let Some(stride) = points.get(1).map(|second| second.0 - first) else { return (Segment::single(first, ppn), 1) };
    let follows = |pair: &&[Point]| pair[1].0 - pair[0].0 == stride && pair[1].1 == pair[0].1 + 1;
    match points.windows(2).take_while(follows).count() {
        0 => (Segment::single(first, ppn), 1),
        steps => (Segment::accurate(first, points[steps].0, stride, ppn), steps + 1),
    }
}

/// The longest approximate segment that a cone of slopes from the first point finds, and how many points it has.
fn near(points: &[Point], error: u32, written: &RangeInclusive<u32>) -> Option<(Segment, usize)> {
    let allowed = |ppn: u32| {
        let (low, high) =
            (ppn.saturating_sub(error).max(*written.start()), ppn.saturating_add(error).min(*written.end()));
        (i64::from(low), i64::from(high))
    };
    let (x, y) = (i64::from(points[0].0), i64::from(points[0].1));
    let (one, mut slopes, mut len) = (i64::from(ONE), (0, i64::from(ONE)), 1);
    for (page, ppn) in &points[1..] {
        let (run, (low, high)) = (i64::from(*page) - x, allowed(*ppn));
        let least = (one * (low - y) - one / 2).div_euclid(run) + 1;
        let most = (one * (high - y + 1) - one / 2 - 1).div_euclid(run);
        let narrowed = (slopes.0.max(least), slopes.1.min(most));
        if narrowed.0 > narrowed.1 {
            break;
        }
        (slopes, len) = (narrowed, len + 1);
    }
    // Lines begin at the start of the group, not at the first point, which may round some place to another page.
    (2..=len).rev().find_map(|len| {
        let points = &points[..len];
        let slopes = [(slopes.0 + slopes.1) / 2, slopes.0, slopes.1];
        let fit = |slope: i64| Some((slope as u32, base(points, slope as u32, error, allowed)?));
        let (slope, base) = slopes.into_iter().find_map(fit)?;
        Some((Segment::approximate(points[0].0, points[len - 1].0, slope, base), len))
    })
}

/// The base with which a line of that slope is right for most of the points, and allowed for all.
fn base(points: &[Point], slope: u32, error: u32, allowed: impl Fn(u32) -> (i64, i64)) -> Option<u32> {
    let start = |(page, ppn): &Point| i64::from(*ppn) - i64::from(rise(slope, *page));
    let low = points.iter().map(|point| allowed(point.1).0 - i64::from(rise(slope, point.0))).max()?;
    let high = points.iter().map(|point| allowed(point.1).1 - i64::from(rise(slope, point.0))).min()?;
    debug_assert!(high - low <= 2 * i64::from(error), "the first point alone bounds the base");
    let right = |base: &i64| points.iter().filter(|point| start(point) == *base).count();
    (low..=high).max_by_key(right).map(|base| base as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BLOCK: u32 = 4096;

    proptest! {
        #[test]
        fn every_place_is_within_the_bound(
            pages in prop::collection::btree_set(any::<u8>(), 1..200),
            swaps in prop::collection::vec((0usize..200, 0usize..200), 0..20),
            error in 0u32..20,
        ) {
            let mut places: Vec<u32> = (BLOCK..).take(pages.len()).collect();
            for (a, b) in swaps {
                places.swap(a % pages.len(), b % pages.len());
            }
            let points: Vec<Point> = pages.iter().copied().zip(places).collect();
            let written = BLOCK..=BLOCK + pages.len() as u32 - 1;
            let mut left: BTreeMap<u8, u32> = points.iter().copied().collect();
            for (segment, members) in learn(&points, error, written.clone()) {
                prop_assert_eq!(members.ends(), Some((segment.first, segment.last)));
                prop_assert!(segment.is_approximate() || segment.strided() == members, "{:?}", segment);
                for i in members.iter() {
                    let (place, predicted) = (left.remove(&i).expect("each page is in one segment"), segment.predict(i));
                    let bound = if segment.is_approximate() { error } else { 0 };
                    prop_assert!(place.abs_diff(predicted) <= bound && written.contains(&predicted), "{} {:?}", i, segment);
                }
            }
            prop_assert!(left.is_empty());
        }
    }

    #[test]
    fn runs_and_strides_need_one_segment_and_scattered_pages_one_with_a_list() {
        let learned = |pages: &[u8], error| {
            let points: Vec<Point> = pages.iter().copied().zip(100..).collect();
            learn(&points, error, 100..=100 + pages.len() as u32 - 1)
        };
        let run: Vec<u8> = (7..=200).collect();
        assert_eq!(learned(&run, 4)[0].0, Segment::accurate(7, 200, 1, 100));
        assert_eq!(
            learned(&[3, 6, 9, 12], 0),
            [(Segment::accurate(3, 12, 3, 100), [3, 6, 9, 12].into_iter().collect())]
        );
        let scattered = [0, 1, 3, 4, 20, 40, 41, 60];
        assert!(learned(&scattered, 0).len() > 1, "{:?}", learned(&scattered, 0));
        assert!(matches!(learned(&scattered, 3)[..], [(segment, _)] if segment.is_approximate()));
    }
}
