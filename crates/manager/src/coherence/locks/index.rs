//! The locks of all owners on one file, found by their bytes.
//!
//! Locks that are shared overlap, so the last one that begins before a byte need not be the one that reaches it. Therefore each lock is
//! filed under its fork: the byte of its range that the highest power of two divides (every power divides byte 0). There is one such
//! byte, or one between two of them would be divided by a higher power. The exponent is the lock's level. A lock of level `l` lies within
//! less than 2^l bytes of its fork, and forks of a level are 2^(l+1) apart: only the last fork before some bytes and the first one
//! behind them can have locks that reach in, and each of these locks has to be asked only where it ends or begins. This is the relational
//! interval tree (VLDB 2000, pages 407 to 418) with one pair of maps for each level in use.

use super::ranges::{Bytes, Held};
use super::table::Owner;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// The first and the last owner that there can be.
const FIRST: Owner = Owner { client_id: 0, number: 0 };
const LAST: Owner = Owner { client_id: u64::MAX, number: u64::MAX };

#[cfg(test)]
thread_local! {
    /// Number of map entries that searches on this thread have looked at.
    pub static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts a map entry that a search looks at.
fn look<T>(entry: T) -> T {
    #[cfg(test)]
    LOOKED_AT.set(LOOKED_AT.get() + 1);
    entry
}

/// Locks by kind (a lock of no process) and level. See the module. The ranges of one owner do not overlap.
#[derive(Debug, Default)]
pub struct Index(BTreeMap<(Held, u32), Level>);

/// The locks of one kind and level: fork, first or last byte, and owner; other end of the range.
#[derive(Debug, Default)]
struct Level {
    by_start: BTreeMap<(u64, u64, Owner), (u64, Held)>,
    by_end: BTreeMap<(u64, u64, Owner), (u64, Held)>,
}

/// The byte that the highest power of two divides.
fn fork(bytes: Bytes) -> u64 {
    let Some(before) = bytes.start.checked_sub(1) else { return 0 };
    // Above the highest bit in which they differ, all numbers behind `before` up to `end` are alike.
    let level = (before ^ bytes.end).ilog2();
    bytes.end >> level << level
}

fn kind(held: &Held) -> Held {
    Held { pid: 0, ..*held }
}

impl Index {
    /// Adds a lock, or removes it.
    pub fn set(&mut self, owner: Owner, bytes: Bytes, held: &Held, is_held: bool) {
        let at = fork(bytes);
        let key = (kind(held), at.trailing_zeros());
        let level = self.0.entry(key).or_default();
        let (start, end) = ((at, bytes.start, owner), (at, bytes.end, owner));
        let was_held = match is_held {
            true => level.by_start.insert(start, (bytes.end, *held)).or(level.by_end.insert(end, (bytes.start, *held))),
            false => level.by_start.remove(&start).and(level.by_end.remove(&end)),
        };
        assert!(was_held.is_some() != is_held, "{owner:?}: {bytes:?} is added once and removed once");
        if level.by_start.is_empty() {
            self.0.remove(&key);
        }
    }

    /// The locks on any of `bytes` that exclude `held`, whoever has them, in no order.
    pub fn excluding(&self, bytes: Bytes, held: &Held) -> impl Iterator<Item = (Owner, Bytes, &Held)> {
        let held = *held;
        let levels = self.0.iter().map(look).filter(move |((kind, _), _)| kind.excludes(&held));
        levels.flat_map(move |(_, level)| level.over(bytes))
    }
}

impl Level {
    fn over(&self, bytes: Bytes) -> impl Iterator<Item = (Owner, Bytes, &Held)> {
        let Bytes { start, end } = bytes;
        let within = (start, 0, FIRST)..=(end, u64::MAX, LAST);
        let fork_before = self.by_end.range(..(start, 0, FIRST)).next_back().map(|((at, ..), _)| *at);
        let behind = (Excluded((end, u64::MAX, LAST)), Unbounded);
        let fork_behind = self.by_start.range(behind).next().map(|((at, ..), _)| *at);
        let before =
            fork_before.into_iter().flat_map(move |at| self.by_end.range((at, start, FIRST)..=(at, u64::MAX, LAST)));
        let behind = fork_behind.into_iter().flat_map(move |at| self.by_start.range((at, 0, FIRST)..=(at, end, LAST)));
        let by_start = self.by_start.range(within).chain(behind).map(look);
        let by_start = by_start.map(|(&(_, start, owner), (end, held))| (owner, Bytes { start, end: *end }, held));
        let by_end = before.map(look);
        by_start.chain(by_end.map(|(&(_, end, owner), (start, held))| (owner, Bytes { start: *start, end }, held)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LAST_BYTE, Lockers};
    use super::*;
    use crate::config::Config;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use tessera_wire::meta::{FileLock, HoldLocks, LockFamily, LockMode};

    #[test]
    fn a_range_has_one_fork() {
        for (start, end, expected) in [
            (0, 0, 0),
            (0, u64::MAX, 0),
            (1, 1, 1),
            (1, u64::MAX, 1 << 63),
            (5, 7, 6),
            (7, 9, 8),
            (12, 15, 12),
            (u64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!(fork(Bytes { start, end }), expected, "{start} to {end}");
        }
        for start in 0..70u64 {
            for end in start..70 {
                let best = (start..=end).max_by_key(|byte| byte.trailing_zeros()).unwrap();
                assert_eq!(fork(Bytes { start, end }), best, "{start} to {end}");
            }
        }
    }

    /// Bytes that are often close to each other, to powers of two or to the last one.
    fn bytes() -> impl Strategy<Value = Bytes> {
        let byte = || {
            prop_oneof![
                0u64..40,
                (0u32..64, 0u64..3).prop_map(|(bit, less)| (1u64 << bit).wrapping_sub(less)),
                any::<u64>()
            ]
        };
        (byte(), byte()).prop_map(|(a, b)| Bytes { start: a.min(b), end: a.max(b) })
    }

    fn held() -> impl Strategy<Value = Held> {
        (any::<bool>(), 1u8..4, 0u32..3).prop_map(|(is_write, families, pid)| {
            let mode = if is_write { LockMode::Write } else { LockMode::Read };
            Held { mode, families, pid }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// The model: a list of all locks.
        #[test]
        fn the_index_finds_what_a_list_has(
            steps in proptest::collection::vec((0u64..5, bytes(), held(), 0usize..60), 1..80),
            asked in proptest::collection::vec((bytes(), held()), 20),
        ) {
            let (mut index, mut list) = (Index::default(), Vec::<(Owner, Bytes, Held)>::new());
            for (number, bytes, held, gone) in steps {
                let owner = Owner { client_id: number % 2, number };
                if list.iter().all(|(other, at, _)| *other != owner || !at.overlaps(&bytes)) {
                    index.set(owner, bytes, &held, true);
                    list.push((owner, bytes, held));
                }
                if gone < list.len() {
                    let (owner, bytes, held) = list.swap_remove(gone);
                    index.set(owner, bytes, &held, false);
                }
                for (bytes, held) in &asked {
                    let mut found: Vec<_> = index.excluding(*bytes, held).map(|(owner, at, held)| (owner, at, *held)).collect();
                    let over = list.iter().filter(|(_, at, other)| at.overlaps(bytes) && other.excludes(held));
                    let mut expected: Vec<_> = over.copied().collect();
                    found.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                }
            }
            list.iter().for_each(|(owner, bytes, held)| index.set(*owner, *bytes, held, false));
            prop_assert!(index.0.is_empty());
        }
    }

    fn lock(owner: u64, start: u64, end: u64, mode: LockMode) -> FileLock {
        let (family, mode) = (LockFamily::Posix as i32, mode as i32);
        FileLock { ino: 5, owner, family, mode, start, end, ..FileLock::default() }
    }

    /// How many locks are looked at while two clients assert what `owners` owners hold of one file.
    fn looked_at(owners: u64, held: impl Fn(u64) -> FileLock) -> u64 {
        let (config, clients) = (Config::default(), BTreeSet::from([1, 2]));
        let mut lockers = Lockers::start(9, clients.clone(), 0, &config);
        let before = LOOKED_AT.get();
        for client in clients {
            let held = (1..=owners / 2).map(|at| held(2 * at + client)).collect();
            let claim = HoldLocks { table: 8, held, next_table: 9, ..HoldLocks::default() };
            assert!(!lockers.hold(0, client, &claim, &config).unwrap().lost);
        }
        (LOOKED_AT.get() - before) as u64
    }

    /// P12: the manager answers nobody while it takes in what a client asserts after a failover.
    #[test]
    fn many_owners_of_one_file_are_asserted_in_few_steps() {
        const OWNERS: u64 = 4_000;
        let each = |name: &str, held: &dyn Fn(u64) -> FileLock| {
            let looked_at = looked_at(OWNERS, held);
            assert!(looked_at <= 100 * OWNERS, "{name}: {OWNERS} owners hold locks, and {looked_at} were looked at");
        };
        each("a byte each", &|at| lock(at, 10 * at, 10 * at, LockMode::Write));
        each("parts side by side", &|at| lock(at, 1_000_000 * at, 1_000_000 * at + 999_999, LockMode::Write));
        each("all share all bytes", &|at| lock(at, 0, LAST_BYTE, LockMode::Read));
        each("shared from each byte on", &|at| lock(at, 10 * at, LAST_BYTE - at, LockMode::Read));
        each("shared, one in another", &|at| lock(at, 10 * at, 1_000_000 - 10 * at, LockMode::Read));
        each("writers behind readers", &|at| match at <= OWNERS / 2 {
            true => lock(at, at, 10_000 + at, LockMode::Read),
            false => lock(at, 20_000 + at, 20_000 + at, LockMode::Write),
        });
    }
}
