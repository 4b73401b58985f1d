//! What a trace is like.

use super::PAGE;
use super::recency::{PLACES_MAX, Recency};
use crate::histogram::Histogram;
use crate::mining::{HISTORY_READS_MAX, Method, Mining, PAIRS_MAX, Pair};
use crate::ssd::Op;
use crate::trace::{REGION_BYTES, Request};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Sizes that are counted one by one; further ones count as the next power of two.
const SIZES_MAX: usize = 4096;

/// How pairs are mined: a pair counts if two in a thousand windows of 32 reads have it.
const MINING: Mining = Mining { window: 32, per_mille: 2, method: Method::Clustered(4096), pairs_max: PAIRS_MAX };

/// Whether a pair comes more often than two pages would meet by chance that come so often in so many windows: by more than
/// six deviations of a Poisson distribution, because there are millions of pairs.
fn is_no_chance(support: u32, counts: [u64; 2], windows: u64) -> bool {
    let expected = counts[0] as f64 * counts[1] as f64 / windows as f64;
    f64::from(support) > expected + 6.0 * expected.sqrt() + 3.0
}

/// What was measured of a trace. Memory grows with its regions and devices, not with its length.
#[derive(Debug)]
pub struct Profile {
    /// Reads, and writes.
    pub(super) counts: [u64; 2],
    /// How often each size was read, and written.
    pub(super) sizes: [BTreeMap<u64, u64>; 2],
    /// Times between arrivals.
    pub(super) gaps: Histogram,
    /// Requests that begin where the one before them on their device ended.
    pub(super) sequential: u64,
    /// Distinct places between two uses of one, where the second is not sequential.
    pub(super) reuse: Histogram,
    /// Requests that are neither sequential nor a reuse.
    pub(super) new: u64,
    /// Requests in each touched region of each device.
    pub(super) regions: BTreeMap<(u64, u64), u64>,
    /// Requests that begin at a multiple of a page.
    aligned: u64,
    places: Recency<(u64, u64)>,
    ends: HashMap<u64, u64>,
    last: u64,
    /// The first pages that were read other than in order, for mining.
    reads: Vec<u32>,
    numbers: HashMap<(u64, u64), u32>,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            counts: [0; 2],
            sizes: Default::default(),
            gaps: Histogram::default(),
            sequential: 0,
            reuse: Histogram::default(),
            new: 0,
            regions: BTreeMap::new(),
            aligned: 0,
            places: Recency::new(PLACES_MAX),
            ends: HashMap::new(),
            last: 0,
            reads: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl Profile {
    /// Adds the next request of the trace. TRIMs and requests for no bytes are left out.
    pub fn add(&mut self, request: &Request) {
        if request.op == Op::Trim || request.bytes == 0 {
            return;
        }
        if self.requests() > 0 {
            self.gaps.add(request.at - self.last);
        }
        self.last = request.at;
        self.counts[request.op as usize] += 1;
        self.add_size(request.op, request.bytes);
        let is_sequential = self.add_place(request);
        // What follows in order is sequential, and needs no pair to say so.
        if request.op == Op::Read && !is_sequential {
            self.add_read(request);
        }
    }

    fn add_size(&mut self, op: Op, bytes: u64) {
        let sizes = &mut self.sizes[op as usize];
        let is_new = !sizes.contains_key(&bytes);
        let bytes = if is_new && sizes.len() >= SIZES_MAX { bytes.next_power_of_two() } else { bytes };
        *sizes.entry(bytes).or_default() += 1;
    }

    /// Notes where a request goes; returns whether that is where the one before it ended.
    fn add_place(&mut self, request: &Request) -> bool {
        let place = (request.device, request.offset);
        let is_sequential = self.ends.insert(request.device, request.end()) == Some(request.offset);
        match (is_sequential, self.places.touch(place)) {
            (true, _) => self.sequential += 1,
            (false, Some(distance)) => self.reuse.add(distance as u64),
            (false, None) => self.new += 1,
        }
        *self.regions.entry((request.device, request.offset / REGION_BYTES)).or_default() += 1;
        self.aligned += u64::from(request.offset.is_multiple_of(PAGE));
        is_sequential
    }

    fn add_read(&mut self, request: &Request) {
        if self.reads.len() < HISTORY_READS_MAX {
            let next = self.numbers.len() as u32;
            let number = *self.numbers.entry((request.device, request.offset / PAGE)).or_insert(next);
            self.reads.push(number);
        }
    }

    /// Reads and writes.
    pub fn requests(&self) -> u64 {
        self.counts[0] + self.counts[1]
    }

    fn share(&self, part: u64) -> f64 {
        part as f64 / self.requests().max(1) as f64
    }

    /// Share of reads.
    pub fn read_share(&self) -> f64 {
        self.share(self.counts[Op::Read as usize])
    }

    /// Share of requests that begin where the one before them ended.
    pub fn sequential_share(&self) -> f64 {
        self.share(self.sequential)
    }

    /// Share of requests that use a place again, in other than sequential order.
    pub fn reuse_share(&self) -> f64 {
        self.share(self.reuse.len())
    }

    /// Share of reads whose first page is in a frequent pair. Pages that are merely read often meet by chance; such pairs do
    /// not count.
    pub fn correlated_share(&self) -> f64 {
        let mut counts = vec![0u64; self.numbers.len()];
        self.reads.iter().for_each(|page| counts[*page as usize] += 1);
        let windows = self.reads.len().div_ceil(MINING.window) as u64;
        let count = |page: u32| counts[page as usize];
        let mined = MINING.mine(&self.reads);
        let is_meant = |pair: &&Pair| is_no_chance(pair.support, [count(pair.first), count(pair.second)], windows);
        let pairs = mined.pairs.iter().filter(is_meant);
        let pages: HashSet<u32> = pairs.flat_map(|pair| [pair.first, pair.second]).collect();
        let correlated: u64 = pages.iter().map(|page| count(*page)).sum();
        correlated as f64 / self.counts[Op::Read as usize].max(1) as f64
    }

    /// Mean bytes of a read or a write.
    pub fn mean_size(&self, op: Op) -> f64 {
        let sizes = &self.sizes[op as usize];
        let bytes: u64 = sizes.iter().map(|(bytes, count)| bytes * count).sum();
        bytes as f64 / self.counts[op as usize].max(1) as f64
    }

    /// The operation whose sizes requests have: a trace of reads alone says of writes only that they are like its reads.
    pub(super) fn sized_as(&self, op: Op) -> Op {
        match (op, self.sizes[op as usize].is_empty()) {
            (_, false) => op,
            (Op::Read, true) => Op::Write,
            _ => Op::Read,
        }
    }

    /// Mean time between arrivals, in ns.
    pub fn mean_gap(&self) -> f64 {
        self.gaps.mean()
    }

    /// A quantile of the reuse distances.
    pub fn reuse_distance(&self, quantile: f64) -> u64 {
        self.reuse.quantile(quantile)
    }

    /// Bytes at a multiple of which requests begin: a page if nine in ten do.
    pub(super) fn alignment(&self) -> u64 {
        if self.share(self.aligned) >= 0.9 { PAGE } else { 512 }
    }
}
