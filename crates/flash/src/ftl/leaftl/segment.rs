//! Learned segments: 8 bytes that say where a range of logical pages is.

use crate::ftl::NONE;

/// The most pages of a group: numbers within it have 8 bits.
pub const GROUP_MAX: u32 = 256;
/// Bytes of a segment.
pub const SEGMENT_BYTES: usize = 8;
/// Mark of an approximate segment's slope; the bits below are its value, [`ONE`] for 1.
const APPROXIMATE: u16 = 1 << 15;
/// A slope of one.
pub const ONE: u32 = 1 << 14;

/// A set of pages of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Members([u64; 4]);

impl Members {
    /// Adds a page.
    pub fn insert(&mut self, i: u8) {
        self.0[usize::from(i) / 64] |= 1 << (i % 64);
    }

    /// Whether it has a page.
    pub fn contains(&self, i: u8) -> bool {
        self.0[usize::from(i) / 64] >> (i % 64) & 1 != 0
    }

    /// Its pages that `other` has not.
    pub fn without(&self, other: &Members) -> Members {
        Members(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The pages of both.
    pub fn with(&self, other: &Members) -> Members {
        Members(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Its pages, in order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let bits = |word: u64| {
            std::iter::successors((word != 0).then_some(word), |bits| Some(bits & (bits - 1)).filter(|bits| *bits != 0))
        };
        (0..4).flat_map(move |word| bits(self.0[word]).map(move |bits| word as u8 * 64 + bits.trailing_zeros() as u8))
    }

    /// The first and the last page, if it has any.
    pub fn ends(&self) -> Option<(u8, u8)> {
        let first = (0..4).find(|word| self.0[*word] != 0)?;
        let last = (0..4).rfind(|word| self.0[*word] != 0)?;
        let (low, high) = (self.0[first].trailing_zeros(), 63 - self.0[last].leading_zeros());
        Some((first as u8 * 64 + low as u8, last as u8 * 64 + high as u8))
    }
}

impl FromIterator<u8> for Members {
    fn from_iter<I: IntoIterator<Item = u8>>(pages: I) -> Self {
        let mut members = Members::default();
        pages.into_iter().for_each(|i| members.insert(i));
        members
    }
}

/// A segment. An accurate one has every `stride`-th page of its range, and they lie one after the other on flash; an
/// approximate one has pages that the conflict resolution buffer names, near a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The first page of the group in it.
    pub first: u8,
    /// The last page.
    pub last: u8,
    /// Stride; 0: a single page. Or a slope, marked.
    slope: u16,
    /// Where the first page is, [`NONE`]: nowhere; or where the line meets the start of the group.
    base: u32,
}

impl Segment {
    /// Pages in steps of `stride` that lie one after the other from `base` on.
    pub fn accurate(first: u8, last: u8, stride: u8, base: u32) -> Segment {
        Segment { first, last, slope: u16::from(stride), base }
    }

    /// A single page; `NONE`: it is not mapped.
    pub fn single(page: u8, ppn: u32) -> Segment {
        Segment::accurate(page, page, 0, ppn)
    }

    /// Pages near a line with a slope of `slope` 16,384ths.
    pub fn approximate(first: u8, last: u8, slope: u32, base: u32) -> Segment {
        debug_assert!(slope <= ONE, "physical pages grow no faster than logical ones");
        Segment { first, last, slope: APPROXIMATE | slope as u16, base }
    }

    /// Whether places are near what it says, and the buffer names its pages.
    pub fn is_approximate(&self) -> bool {
        self.slope & APPROXIMATE != 0
    }

    /// Whether it says that a page is not mapped.
    pub fn is_tombstone(&self) -> bool {
        !self.is_approximate() && self.base == NONE
    }

    /// Whether two ranges have a page in common.
    pub fn overlaps(&self, other: &Segment) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether a page in the range of an accurate segment is in it.
    pub fn is_on_stride(&self, i: u8) -> bool {
        let offset = u16::from(i - self.first);
        if self.slope == 0 { offset == 0 } else { offset.is_multiple_of(self.slope) }
    }

    /// The pages of an accurate segment.
    pub fn strided(&self) -> Members {
        let mut members = Members::default();
        let mut page = u16::from(self.first);
        while page <= u16::from(self.last) {
            members.insert(page as u8);
            page += self.slope.max(1);
        }
        members
    }

    /// Where it says that a page of it is.
    pub fn predict(&self, i: u8) -> u32 {
        match self.slope {
            0 => self.base,
            slope if self.is_approximate() => self.base.wrapping_add(rise(u32::from(slope & !APPROXIMATE), i)),
            stride => self.base + u32::from(i - self.first) / u32::from(stride),
        }
    }

    /// Narrows the range to the pages that remain of it.
    pub fn narrow(&mut self, (first, last): (u8, u8)) {
        if !self.is_approximate() {
            self.base = self.predict(first);
            self.slope = if first == last { 0 } else { self.slope };
        }
        (self.first, self.last) = (first, last);
    }
}

/// How far a line has risen at a page of the group, to the nearest whole number.
pub fn rise(slope: u32, i: u8) -> u32 {
    (slope * u32::from(i) + ONE / 2) / ONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn members_are_a_set(a in prop::collection::btree_set(any::<u8>(), 0..40), b in prop::collection::btree_set(any::<u8>(), 0..40)) {
            let [left, right] = [&a, &b].map(|set| set.iter().copied().collect::<Members>());
            prop_assert_eq!(left.iter().collect::<BTreeSet<u8>>(), a.clone());
            prop_assert_eq!(left.without(&right).iter().collect::<BTreeSet<u8>>(), &a - &b);
            prop_assert_eq!(left.with(&right).iter().collect::<BTreeSet<u8>>(), &a | &b);
            prop_assert_eq!(left.ends(), a.first().copied().zip(a.last().copied()));
        }

        #[test]
        fn an_accurate_segment_says_the_same_when_it_is_narrowed(first in 0u8..100, stride in 1u8..50, len in 1u8..4, cut in 0u8..4) {
            let segment = Segment::accurate(first, first + stride * len, stride, 1000);
            let mut rest = segment;
            let cut = cut.min(len);
            rest.narrow((first + stride * cut, segment.last));
            for i in rest.strided().iter() {
                prop_assert_eq!(rest.predict(i), segment.predict(i));
            }
            prop_assert_eq!(rest.strided().iter().count(), usize::from(len - cut) + 1);
        }
    }

    #[test]
    fn a_segment_has_eight_bytes() {
        assert_eq!(size_of::<Segment>(), SEGMENT_BYTES);
    }
}
