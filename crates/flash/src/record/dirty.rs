//! Pages that the page cache holds and the device does not.

use super::space::PAGE_BYTES;
use std::collections::BTreeMap;
use std::ops::Range;

/// Byte ranges of whole pages that do not touch each other.
#[derive(Debug, Default)]
pub struct Dirty {
    ranges: BTreeMap<u64, u64>,
}

impl Dirty {
    /// Adds the pages of a range; returns the bytes that were not dirty before.
    pub fn add(&mut self, bytes: Range<u64>) -> u64 {
        let Range { mut start, mut end } = pages(bytes);
        let mut before = 0;
        while let Some((from, to)) = self.ranges.range(..=end).next_back().map(|(from, to)| (*from, *to)) {
            if to < start {
                break;
            }
            before += to - from;
            self.ranges.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.ranges.insert(start, end);
        end - start - before
    }

    /// The pages of a range that are not dirty.
    pub fn others(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        let Range { start, end } = pages(bytes);
        let (mut others, mut at) = (Vec::new(), start);
        let first = self.ranges.range(..=start).next_back().map_or(start, |(from, _)| *from);
        for (from, to) in self.ranges.range(first..end) {
            others.push(at..(*from).max(at));
            at = at.max(*to);
        }
        others.push(at..end.max(at));
        others.retain(|range| !range.is_empty());
        others
    }

    /// Forgets the pages from byte `from` on that keep no earlier byte; returns how many bytes that were.
    pub fn cut(&mut self, from: u64) -> u64 {
        let from = from.next_multiple_of(PAGE_BYTES);
        let mut cut: u64 = self.ranges.split_off(&from).iter().map(|(start, end)| end - start).sum();
        if let Some(mut last) = self.ranges.last_entry()
            && *last.get() > from
        {
            cut += *last.get() - from;
            last.insert(from);
        }
        cut
    }

    /// Takes all of them, in order.
    pub fn take(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.ranges).into_iter().map(|(start, end)| start..end).collect()
    }
}

/// The whole pages that a range touches.
fn pages(bytes: Range<u64>) -> Range<u64> {
    bytes.start / PAGE_BYTES * PAGE_BYTES..bytes.end.next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tessera_disk::SplitMix64;

    #[test]
    fn ranges_are_those_of_a_plain_set_of_pages() {
        let (mut rng, mut dirty, mut set) = (SplitMix64::new(7), Dirty::default(), BTreeSet::new());
        for _ in 0..5_000 {
            let start = rng.below(64 * PAGE_BYTES);
            let end = start + 1 + rng.below(9 * PAGE_BYTES);
            let touched = start / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
            match rng.below(8) {
                0 => {
                    let kept = start.div_ceil(PAGE_BYTES);
                    assert_eq!(dirty.cut(start), set.split_off(&kept).len() as u64 * PAGE_BYTES);
                }
                1 => {
                    let taken: Vec<u64> = dirty.take().into_iter().flat_map(numbers).collect();
                    assert!(taken.into_iter().eq(std::mem::take(&mut set)));
                }
                2..5 => {
                    let others: Vec<u64> = dirty.others(start..end).into_iter().flat_map(numbers).collect();
                    assert!(others.into_iter().eq(touched.filter(|page| !set.contains(page))));
                }
                _ => {
                    let added = dirty.add(start..end);
                    let new = touched.filter(|page| set.insert(*page)).count() as u64;
                    assert_eq!(added, new * PAGE_BYTES);
                }
            }
        }
    }

    fn numbers(range: Range<u64>) -> Range<u64> {
        range.start / PAGE_BYTES..range.end / PAGE_BYTES
    }
}
