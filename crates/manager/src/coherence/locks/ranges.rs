//! The locks of one owner on one file: byte ranges that do not overlap. Adjacent ranges with the same lock are joined (POSIX,
//! `fcntl`).

use rangemap::RangeInclusiveMap;
pub use tessera_wire::locks::{Bytes, Held};

/// Disjoint locked ranges. See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(RangeInclusiveMap<u64, Held>);

impl Ranges {
    /// Locks `bytes`, or unlocks them if `held` is `None`; replaces all earlier locks on them.
    pub fn set(&mut self, bytes: Bytes, held: Option<Held>) {
        let Bytes { start, end } = bytes;
        assert!(start <= end, "bytes {start} to {end} are no range");
        match held {
            Some(held) => self.0.insert(start..=end, held),
            None => self.0.remove(start..=end),
        }
    }

    /// Locks on any of `bytes`, in order.
    pub fn over(&self, bytes: Bytes) -> impl Iterator<Item = (Bytes, &Held)> {
        let over = self.0.overlapping(bytes.start..=bytes.end);
        over.map(|(range, held)| (Bytes { start: *range.start(), end: *range.end() }, held))
    }

    /// All locks, in order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (Bytes, &Held)> {
        self.over(Bytes { start: 0, end: u64::MAX })
    }

    /// Whether all of `bytes` is locked exactly as `held`.
    pub fn covers(&self, bytes: Bytes, held: &Held) -> bool {
        let like = |was: &Held| (was.mode, was.families) == (held.mode, held.families);
        let mut next = Some(bytes.start);
        for (range, was) in self.over(bytes) {
            match next {
                Some(at) if range.start <= at && like(was) => next = range.end.checked_add(1),
                _ => return false,
            }
        }
        next.is_none_or(|at| at > bytes.end)
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tessera_wire::meta::LockMode;

    const BYTES: u64 = 24;

    fn held(mode: u8) -> Option<Held> {
        let mode = [None, Some(LockMode::Read), Some(LockMode::Write)][mode as usize];
        mode.map(|mode| Held { mode, families: 1, pid: 7 })
    }

    #[test]
    fn the_last_byte_there_can_be_is_a_byte() {
        let mut ranges = Ranges::default();
        ranges.set(Bytes { start: 5, end: u64::MAX }, held(2));
        ranges.set(Bytes { start: 0, end: 4 }, held(2));
        assert_eq!(ranges.len(), 1);
        assert!(ranges.covers(Bytes { start: 0, end: u64::MAX }, &held(2).unwrap()));
        ranges.set(Bytes { start: u64::MAX, end: u64::MAX }, None);
        assert_eq!(ranges.iter().next().unwrap().0, Bytes { start: 0, end: u64::MAX - 1 });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The model: the mode of each byte.
        #[test]
        fn ranges_are_what_each_byte_is(
            sets in proptest::collection::vec((0..BYTES, 0..BYTES, 0u8..3), 1..30),
        ) {
            let (mut ranges, mut model) = (Ranges::default(), vec![None; BYTES as usize]);
            for (a, b, mode) in sets {
                let bytes = Bytes { start: a.min(b), end: a.max(b) };
                ranges.set(bytes, held(mode));
                model[bytes.start as usize..=bytes.end as usize].fill(held(mode));
                let mut seen = vec![None; BYTES as usize];
                for (b, h) in ranges.iter() {
                    seen[b.start as usize..=b.end as usize].fill(Some(*h));
                }
                prop_assert_eq!(&seen, &model);
                let runs = model.chunk_by(|x, y| x == y).filter(|run| run[0].is_some()).count();
                prop_assert_eq!(ranges.len(), runs, "neighbours that are alike are one");
                for start in 0..BYTES {
                    for end in start..BYTES {
                        let all = model[start as usize..=end as usize].iter().all(|h| *h == held(mode));
                        if let Some(h) = held(mode) {
                            prop_assert_eq!(ranges.covers(Bytes { start, end }, &h), all);
                        }
                    }
                }
            }
        }
    }
}
