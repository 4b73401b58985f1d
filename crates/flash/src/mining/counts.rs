//! In how many windows each pair is.

use super::Pair;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Pairs and their numbers of windows.
#[derive(Debug, Default)]
pub(super) struct Counts {
    table: HashMap<u64, u32, BuildHasherDefault<PairHasher>>,
    /// Pairs of the window under way; a pair counts once in a window.
    window: Vec<u64>,
}

impl Counts {
    /// Counts the pairs of a window; `key` says what a pair of pages counts for, if for anything.
    pub fn add_window(&mut self, window: &[u32], key: impl Fn(u32, u32) -> Option<(u32, u32)>) {
        self.window.clear();
        for (i, first) in window.iter().enumerate() {
            let later = window[i + 1..].iter().filter(|second| *second != first);
            self.window.extend(later.filter_map(|second| key(*first, *second)).map(joined));
        }
        self.window.sort_unstable();
        self.window.dedup();
        for pair in &self.window {
            *self.table.entry(*pair).or_insert(0) += 1;
        }
    }

    /// Pairs in at least so many windows.
    pub fn at_least(&self, threshold: u32) -> impl Iterator<Item = Pair> + '_ {
        let frequent = self.table.iter().filter(move |(_, support)| **support >= threshold);
        frequent.map(|(pair, support)| Pair { first: (pair >> 32) as u32, second: *pair as u32, support: *support })
    }

    /// Bytes of the table and of the window: an entry, and a byte of control for each.
    pub fn bytes(&self) -> u64 {
        (self.table.capacity() * (size_of::<(u64, u32)>() + 1) + self.window.capacity() * size_of::<u64>()) as u64
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
