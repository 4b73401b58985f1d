//! Correlation mining: which pages are read one soon after the other.
//!
//! The reads are cut into windows that do not overlap. Two different pages of a window form an ordered pair, the page that is
//! read first before the other; the *support* of a pair is the number of windows with it. Mining keeps the pairs with at
//! least a threshold of support. These are the subsequences of two pages that C-Miner finds (Li, Chen, Srinivasan, Zhou: "C-Miner:
//! mining block correlations in storage systems", FAST 2004). There are two ways to count:
//!
//! - [`Method::Full`] counts all pairs at once.
//! - [`Method::Clustered`] (the CPFTL paper's clustering-aware mining) first counts pairs of regions, and then the pairs of
//!   pages of one frequent pair of regions at a time. A pair of pages is in no more windows than the pair of its regions, so it finds
//!   what the full count finds as long as [`REGION_PAIRS_MAX`] pairs of regions suffice.
//!
//! Memory is bounded: at most [`Mining::pairs_max`] pairs are counted at a time, and as many kept. When there are more, the rarest are
//! dropped, and [`Mined`] says how many and what that may have cost. Memory is counted, not measured: the bytes of tables and results, without the log of reads that both ways go through.

mod counts;
mod history;

use counts::Counts;
pub use history::{HISTORY_READS_MAX, History};

/// The most pairs of regions that clustering-aware mining looks into, those with the most support first: each costs a pass
/// over the reads.
pub const REGION_PAIRS_MAX: usize = 1024;

/// Pairs that are counted at a time unless something else is asked for: 7/8 of 2^24, whose table has 272 MiB.
pub const PAIRS_MAX: usize = 7 << 21;

/// The least threshold: a pair that is seen once is no correlation.
const SUPPORT_MIN: u32 = 2;

/// How pairs are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// All pairs at once.
    Full,
    /// Pairs of regions of so many pages first, then the pairs of one frequent pair of regions at a time.
    Clustered(u32),
}

/// How reads are mined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mining {
    /// Reads of a window.
    pub window: usize,
    /// Least support, in windows per mille; never fewer than two windows.
    pub per_mille: u32,
    /// How pairs are counted.
    pub method: Method,
    /// The most pairs that are counted at a time, and the most that are kept.
    pub pairs_max: usize,
}

/// Two pages that are read in this order, and the number of windows with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// The page that is read first.
    pub first: u32,
    /// The page that is read after it.
    pub second: u32,
    /// Windows with the pair.
    pub support: u32,
}

/// What mining found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mined {
    /// Pairs with enough support, in order of their pages.
    pub pairs: Vec<Pair>,
    /// The most bytes that counting needed at any time.
    pub peak_bytes: u64,
    /// Pairs that were dropped because there were too many; one counts each time.
    pub dropped: u64,
    /// Windows by which a support may be too low, because its pair was dropped before. A pair whose support is so far above the threshold
    /// is among the pairs.
    pub missed: u32,
}

impl Mined {
    /// Takes the frequent pairs of a count; of more than `max` the most frequent stay.
    fn add(&mut self, counts: &Counts, threshold: u32, max: usize, other_bytes: u64) {
        self.pairs.extend(counts.at_least(threshold));
        self.peak_bytes = self.peak_bytes.max(counts.bytes() + other_bytes + bytes(&self.pairs));
        self.dropped += counts.dropped();
        self.missed = self.missed.max(counts.missed());
        if self.pairs.len() > max {
            let most_first = |pair: &Pair| (std::cmp::Reverse(pair.support), pair.first, pair.second);
            let most = self.pairs.select_nth_unstable_by_key(max, most_first).1.support;
            self.dropped += (self.pairs.len() - max) as u64;
            self.missed = self.missed.max(most + counts.missed());
            self.pairs.truncate(max);
        }
    }
}

impl Mining {
    /// The least number of windows for a number of reads.
    pub fn threshold(&self, reads: usize) -> u32 {
        let windows = reads.div_ceil(self.window) as u64;
        ((windows * u64::from(self.per_mille)).div_ceil(1000) as u32).max(SUPPORT_MIN)
    }

    /// Mines reads, given by their logical pages in order.
    pub fn mine(&self, reads: &[u32]) -> Mined {
        let threshold = self.threshold(reads.len());
        let mut mined = match self.method {
            Method::Full => self.mine_all(reads, threshold),
            Method::Clustered(region) => self.mine_regions(reads, region, threshold),
        };
        mined.pairs.sort_unstable();
        mined
    }

    fn mine_all(&self, reads: &[u32], threshold: u32) -> Mined {
        let mut counts = Counts::new(self.pairs_max);
        for window in reads.chunks(self.window) {
            counts.add_window(window, |first, second| Some((first, second)));
        }
        let mut mined = Mined::default();
        mined.add(&counts, threshold, self.pairs_max, 0);
        mined
    }

    fn mine_regions(&self, reads: &[u32], region: u32, threshold: u32) -> Mined {
        let mut counts = Counts::new(self.pairs_max);
        for window in reads.chunks(self.window) {
            counts.add_window(window, |first, second| Some((first / region, second / region)));
        }
        let mut regions: Vec<Pair> = counts.at_least(threshold).collect();
        let mut mined = Mined {
            pairs: Vec::new(),
            peak_bytes: counts.bytes() + bytes(&regions),
            dropped: counts.dropped(),
            missed: counts.missed(),
        };
        drop(counts);
        regions.sort_unstable_by_key(|r| (std::cmp::Reverse(r.support), r.first, r.second));
        regions.truncate(REGION_PAIRS_MAX);
        for pair in &regions {
            let counts = self.count_pair(reads, region, pair);
            mined.add(&counts, threshold, self.pairs_max, bytes(&regions));
        }
        mined
    }

    /// Counts the pairs from one region to another.
    fn count_pair(&self, reads: &[u32], region: u32, pair: &Pair) -> Counts {
        let pages = |of: u32| of * region..(of + 1).saturating_mul(region);
        let (from, to) = (pages(pair.first), pages(pair.second));
        let (mut counts, mut inside) = (Counts::new(self.pairs_max), Vec::with_capacity(self.window));
        for window in reads.chunks(self.window) {
            inside.clear();
            inside.extend(window.iter().copied().filter(|page| from.contains(page) || to.contains(page)));
            let is_of_pair = |first, second| from.contains(&first) && to.contains(&second);
            counts.add_window(&inside, |first, second| is_of_pair(first, second).then_some((first, second)));
        }
        counts
    }
}

fn bytes(pairs: &[Pair]) -> u64 {
    size_of_val(pairs) as u64
}

#[cfg(test)]
mod tests;
