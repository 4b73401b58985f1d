//! In how many windows each pair is, in bounded memory.
//!
//! When the table is full, the quarter of its pairs with the lowest supports is dropped: lossy counting (Manku, Motwani: "Approximate
//! frequency counts over data streams", VLDB 2002), by the size of the table in place of a share of the windows. A pair that comes
//! after that may have been dropped before, so its support may be too low by as many windows as the most that a dropped pair may have
//! been in. Supports are never too high.

use super::Pair;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// What is known of a pair.
#[derive(Debug, Clone, Copy)]
struct Count {
    /// Windows that were counted.
    support: u32,
    /// The most windows before them that were not.
    missed: u32,
}

impl Count {
    /// The most windows that the pair may be in.
    fn most(&self) -> u32 {
        self.support + self.missed
    }
}

/// Pairs and their numbers of windows.
#[derive(Debug)]
pub(super) struct Counts {
    table: HashMap<u64, Count, BuildHasherDefault<PairHasher>>,
    /// Pairs that the table may have.
    max: usize,
    /// The most windows that a pair which is not in the table may be in.
    missed: u32,
    dropped: u64,
    /// The most bytes that choosing what to drop took.
    choice_bytes: u64,
    /// Pairs of the window under way; a pair counts once in a window.
    window: Vec<u64>,
}

impl Counts {
    /// No pairs; the table has at most `max`, at least one.
    pub fn new(max: usize) -> Self {
        let (table, max) = (HashMap::default(), max.max(1));
        Counts { table, max, missed: 0, dropped: 0, choice_bytes: 0, window: Vec::new() }
    }

    /// Counts the pairs of a window; `key` says what a pair of pages counts for, if for anything.
    pub fn add_window(&mut self, window: &[u32], key: impl Fn(u32, u32) -> Option<(u32, u32)>) {
        self.window.clear();
        for (i, first) in window.iter().enumerate() {
            let later = window[i + 1..].iter().filter(|second| *second != first);
            self.window.extend(later.filter_map(|second| key(*first, *second)).map(joined));
        }
        self.window.sort_unstable();
        self.window.dedup();
        for at in 0..self.window.len() {
            let pair = self.window[at];
            if self.table.len() >= self.max && !self.table.contains_key(&pair) {
                self.drop_rarest();
            }
            let new = Count { support: 0, missed: self.missed };
            self.table.entry(pair).or_insert(new).support += 1;
        }
    }

    /// Drops a quarter of the pairs, and those that may be in no more windows than the last of them.
    fn drop_rarest(&mut self) {
        let before = self.table.len();
        let mut most: Vec<u32> = self.table.values().map(Count::most).collect();
        self.missed = *most.select_nth_unstable(before / 4).1;
        self.table.retain(|_, count| count.most() > self.missed);
        self.dropped += (before - self.table.len()) as u64;
        self.choice_bytes = size_of_val(&most[..]) as u64;
    }

    /// Pairs that were dropped; one counts each time.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Windows by which a support may be too low.
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// Pairs in at least so many windows.
    pub fn at_least(&self, threshold: u32) -> impl Iterator<Item = Pair> + '_ {
        let frequent = self.table.iter().filter(move |(_, count)| count.support >= threshold);
        frequent.map(|(pair, count)| Pair { first: (pair >> 32) as u32, second: *pair as u32, support: count.support })
    }

    /// The most bytes of the table and of the window: an entry, and a byte of control for each.
    pub fn bytes(&self) -> u64 {
        let table = self.table.capacity() * (size_of::<(u64, Count)>() + 1);
        (table + self.window.capacity() * size_of::<u64>()) as u64 + self.choice_bytes
    }
}

fn joined((first, second): (u32, u32)) -> u64 {
    u64::from(first) << 32 | u64::from(second)
}

/// Spreads a `u64` over all bits: the counts need speed, not protection against chosen keys.
#[derive(Debug, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
