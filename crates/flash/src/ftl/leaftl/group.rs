//! The segments of a group of logical pages: levels, of which a higher one is newer, and the conflict resolution buffer.

use super::segment::{GROUP_MAX, Members, SEGMENT_BYTES, Segment};
use std::ops::Range;

/// Bytes of a group beside its segments, its levels and its buffer.
pub const HEADER_BYTES: usize = 4;
/// Bytes that a group gains before it is compacted, beside as many as it has.
const GROWTH: usize = 64;

/// What a group says of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is there.
    Exact(u32),
    /// It is there or near it.
    Near(u32),
}

/// A group.
#[derive(Debug, Default)]
pub struct Group {
    /// Segments by level, within a level in order. Those of a level do not overlap.
    segments: Vec<Segment>,
    /// Where each level ends in `segments`.
    ends: Vec<u16>,
    /// Conflict resolution buffer: for each approximate segment the number of its pages less one, and the pages. No page is in two lists,
    /// so the first page of a list says whose it is.
    lists: Vec<u8>,
    /// Bytes after the last compaction.
    compacted: u16,
}

impl Group {
    /// Bytes in memory and on flash.
    pub fn bytes(&self) -> u64 {
        (HEADER_BYTES + self.segments.len() * SEGMENT_BYTES + self.ends.len() + self.lists.len()) as u64
    }

    /// Whether it has no segment.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Its segments, the newest first.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Levels.
    pub fn levels(&self) -> usize {
        self.ends.len()
    }

    fn level(&self, level: usize) -> Range<usize> {
        let start = if level == 0 { 0 } else { self.ends[level - 1] };
        usize::from(start)..usize::from(self.ends[level])
    }

    /// What it says of a page: the newest segment that has it does.
    pub fn find(&self, i: u8) -> Option<Place> {
        (0..self.levels()).find_map(|level| {
            let segments = &self.segments[self.level(level)];
            let at = segments.partition_point(|segment| segment.first <= i).checked_sub(1)?;
            let segment = &segments[at];
            let has = segment.last >= i && self.has(segment, i);
            has.then(|| {
                if segment.is_approximate() {
                    Place::Near(segment.predict(i))
                } else {
                    Place::Exact(segment.predict(i))
                }
            })
        })
    }

    fn has(&self, segment: &Segment, i: u8) -> bool {
        if segment.is_approximate() { self.list(segment.first).contains(&i) } else { segment.is_on_stride(i) }
    }

    /// The pages of a segment, those that a newer one has included if it is accurate.
    fn members(&self, segment: &Segment) -> Members {
        if segment.is_approximate() { self.list(segment.first).iter().copied().collect() } else { segment.strided() }
    }

    /// Where the list that begins with a page is in the buffer, without its length.
    fn list_range(&self, first: u8) -> Range<usize> {
        let mut at = 0;
        while self.lists[at + 1] != first {
            at += usize::from(self.lists[at]) + 2;
        }
        at + 1..at + 2 + usize::from(self.lists[at])
    }

    fn list(&self, first: u8) -> &[u8] {
        &self.lists[self.list_range(first)]
    }

    fn remove_list(&mut self, first: u8) {
        let range = self.list_range(first);
        self.lists.drain(range.start - 1..range.end);
    }

    fn add_list(&mut self, members: &Members) {
        let start = self.lists.len();
        self.lists.push(0);
        self.lists.extend(members.iter());
        self.lists[start] = (self.lists.len() - start - 2) as u8;
    }

    /// Adds a segment that is newer than all others. `limit` is the most bytes that the group may have.
    pub fn insert(&mut self, segment: Segment, members: &Members, limit: u64) {
        self.forget(members);
        let older = self.remove_overlapped(&segment, members);
        if self.ends.is_empty() {
            self.ends.push(0);
        }
        self.insert_at(0, segment);
        if segment.is_approximate() {
            self.add_list(members);
        }
        for segment in older {
            let is_free =
                self.levels() > 1 && !self.segments[self.level(1)].iter().any(|other| other.overlaps(&segment));
            if !is_free {
                self.ends.insert(1, self.ends[0]);
            }
            self.insert_at(1, segment);
        }
        self.drop_empty_levels();
        if self.bytes() > limit.min(2 * u64::from(self.compacted) + GROWTH as u64) {
            self.compact();
        }
    }

    /// Takes pages out of the lists of approximate segments; a segment without pages goes.
    fn forget(&mut self, members: &Members) {
        let mut changed = Vec::new();
        let mut rest = &self.lists[..];
        while let [len, first, ..] = rest {
            let (list, after) = rest[1..].split_at(usize::from(*len) + 1);
            if list.iter().any(|i| members.contains(*i)) {
                changed.push((*first, list.iter().copied().filter(|i| !members.contains(*i)).collect::<Members>()));
            }
            rest = after;
        }
        for (first, rest) in changed {
            let is_its_own = |segment: &Segment| segment.is_approximate() && segment.first == first;
            let at = self.segments.iter().position(is_its_own).expect("a list has a segment");
            self.remove_list(first);
            match rest.ends() {
                None => self.remove(at),
                Some(ends) => {
                    self.segments[at].narrow(ends);
                    self.add_list(&rest);
                }
            }
        }
    }

    /// Removes from the first level what overlaps a new segment with these members; returns what of it still has pages.
    fn remove_overlapped(&mut self, new: &Segment, members: &Members) -> Vec<Segment> {
        let mut older = Vec::new();
        let range = if self.ends.is_empty() { 0..0 } else { self.level(0) };
        for at in range.rev().filter(|at| new.overlaps(&self.segments[*at])).collect::<Vec<_>>() {
            let mut segment = self.segments[at];
            let ends = self.members(&segment).without(members).ends();
            if let Some(ends) = ends {
                segment.narrow(ends);
            }
            match ends {
                Some(_) if !segment.overlaps(new) => self.segments[at] = segment,
                _ => self.remove(at),
            }
            older.extend(ends.filter(|_| segment.overlaps(new)).map(|_| segment));
        }
        older
    }

    fn remove(&mut self, at: usize) {
        self.segments.remove(at);
        self.ends.iter_mut().filter(|end| usize::from(**end) > at).for_each(|end| *end -= 1);
    }

    fn insert_at(&mut self, level: usize, segment: Segment) {
        let range = self.level(level);
        let at = range.start + self.segments[range].partition_point(|other| other.first < segment.first);
        self.segments.insert(at, segment);
        self.ends[level..].iter_mut().for_each(|end| *end += 1);
    }

    fn drop_empty_levels(&mut self) {
        self.ends.dedup();
        self.ends.retain(|end| *end > 0);
    }

    /// Compacts it if it has gained an eighth since it last was, and keeps no room to grow.
    pub fn tidy(&mut self) {
        if self.bytes() > u64::from(self.compacted) * 9 / 8 {
            self.compact();
        }
        self.segments.shrink_to_fit();
        self.lists.shrink_to_fit();
    }

    /// Removes what newer segments hide, and gives each segment the highest level that it can have.
    pub fn compact(&mut self) {
        let (mut hidden, mut kept) = (Members::default(), Vec::<(usize, Segment, Members)>::new());
        for segment in &self.segments {
            let rest = self.members(segment).without(&hidden);
            let Some(ends) = rest.ends() else { continue };
            hidden = hidden.with(&rest);
            let mut segment = *segment;
            segment.narrow(ends);
            kept.push((0, segment, rest));
        }
        drop_needless_tombstones(&mut kept);
        // For each page, the level below the lowest segment that covers it.
        let mut free = [0; GROUP_MAX as usize];
        for (level, segment, _) in &mut kept {
            let covered = &mut free[usize::from(segment.first)..=usize::from(segment.last)];
            *level = covered.iter().copied().max().unwrap_or(0);
            covered.fill(*level + 1);
        }
        kept.sort_unstable_by_key(|(level, segment, _)| (*level, segment.first));
        let levels = kept.last().map_or(0, |(level, ..)| level + 1);
        self.ends = (0..levels).map(|level| kept.partition_point(|k| k.0 <= level) as u16).collect();
        self.segments = kept.iter().map(|(_, segment, _)| *segment).collect();
        self.lists = Vec::new();
        for (_, _, members) in kept.iter().filter(|(_, segment, _)| segment.is_approximate()) {
            self.add_list(members);
        }
        self.compacted = self.bytes() as u16;
    }

    /// Checks order and levels, and that lists are those of the approximate segments.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn check(&self) -> Result<(), String> {
        let mut listed = Members::default();
        let mut lists = 0;
        for level in 0..self.levels() {
            let segments = &self.segments[self.level(level)];
            if segments.is_empty() || segments.windows(2).any(|pair| pair[0].last >= pair[1].first) {
                return Err(format!("level {level} is empty or has segments that overlap: {segments:?}"));
            }
            for segment in segments.iter().filter(|segment| segment.is_approximate()) {
                let members = self.members(segment);
                if members.ends() != Some((segment.first, segment.last)) || members.without(&listed) != members {
                    return Err(format!("the list of {segment:?} is not its own"));
                }
                listed = listed.with(&members);
                lists += 1;
            }
        }
        match listed.iter().count() + lists == self.lists.len() {
            true => Ok(()),
            false => Err(format!("{} bytes are listed for {lists} segments", self.lists.len())),
        }
    }
}

/// Drops tombstones that hide nothing.
fn drop_needless_tombstones(kept: &mut Vec<(usize, Segment, Members)>) {
    let mut claimed = Members::default();
    kept.reverse();
    kept.retain(|(_, segment, rest)| {
        let is_needless = segment.is_tombstone() && !claimed.contains(segment.first);
        claimed = claimed.with(&if segment.is_approximate() { *rest } else { segment.strided() });
        !is_needless
    });
    kept.reverse();
}

#[cfg(test)]
mod tests {
    use super::super::learn::{Point, learn};
    use super::*;
    use crate::ftl::NONE;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const LIMIT: u64 = 4096;

    proptest! {
        #[test]
        fn a_group_says_where_each_page_was_written_last(
            writes in prop::collection::vec((prop::collection::btree_set(any::<u8>(), 1..40), any::<bool>()), 1..60),
            error in 0u32..9,
        ) {
            let (mut group, mut model, mut next) = (Group::default(), BTreeMap::new(), 1000);
            for (pages, trim) in writes {
                if trim && pages.len() < 8 {
                    for i in pages {
                        group.insert(Segment::single(i, NONE), &[i].into_iter().collect(), LIMIT);
                        model.insert(i, NONE);
                    }
                } else {
                    let points: Vec<Point> = pages.iter().copied().zip(next..).collect();
                    let end = next + points.len() as u32;
                    for (segment, members) in learn(&points, error, next..=end - 1) {
                        group.insert(segment, &members, LIMIT);
                    }
                    (next, _) = (end, model.extend(points));
                }
                group.check().unwrap();
                prop_assert!(group.bytes() <= LIMIT);
            }
            for compacted in [false, true] {
                for i in 0..=u8::MAX {
                    let place = model.get(&i).copied().filter(|ppn| *ppn != NONE);
                    match group.find(i) {
                        Some(Place::Near(ppn)) => prop_assert!(place.is_some_and(|place| place.abs_diff(ppn) <= error)),
                        Some(Place::Exact(ppn)) if ppn != NONE => prop_assert_eq!(place, Some(ppn)),
                        _ => prop_assert_eq!(place, None),
                    }
                }
                if !compacted {
                    group.compact();
                    group.check().unwrap();
                    prop_assert!(group.segments().len() <= 256 && group.bytes() <= 9 * 256);
                }
            }
        }
    }

    #[test]
    fn a_new_segment_pushes_what_it_overlaps_down_and_compaction_lifts_it_again() {
        let mut group = Group::default();
        let mut write = |first, last, ppn| {
            let segment = Segment::accurate(first, last, 1, ppn);
            group.insert(segment, &segment.strided(), LIMIT);
            (group.levels(), group.segments().len())
        };
        assert_eq!(write(0, 99, 1000), (1, 1));
        assert_eq!(write(40, 49, 2000), (2, 2), "the first has pages on both sides");
        assert_eq!(write(30, 59, 3000), (2, 2), "the second is hidden, and the first has its level");
        assert_eq!(write(0, 59, 4000), (2, 2));
        group.compact();
        assert_eq!((group.levels(), group.segments().len()), (1, 2), "{group:?}");
        assert_eq!((group.find(59), group.find(60)), (Some(Place::Exact(4059)), Some(Place::Exact(1060))));
    }
}
