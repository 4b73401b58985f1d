//! Sampling sort: the load of a thread depends on the content, and a sample of the rows tells how to share it out.
//!
//! A balanced sample gives splitters, elements go into a bucket between two splitters each, and a thread sorts a bucket
//! (ArchSampler, section on load balancing, which names it as a content-dependent case).

use super::file::Architecture;
use super::partition::{Partitions, Placement};
use super::select::{Assignment, select};
use super::threads::fold;
use crate::Error;
use std::ops::Range;
use std::thread;

/// What a sort did.
#[derive(Debug, Clone, PartialEq)]
pub struct SortReport {
    /// Elements that were sampled.
    pub sampled: usize,
    /// Elements of each bucket.
    pub buckets: Vec<usize>,
}

impl SortReport {
    /// Largest bucket compared with the mean: the share of time for which the last thread works alone.
    pub fn skew(&self) -> f64 {
        let all: usize = self.buckets.iter().sum();
        *self.buckets.iter().max().unwrap_or(&0) as f64 * self.buckets.len() as f64 / all.max(1) as f64
    }
}

/// Sorts data by `threads` threads, with splitters from a sample of `ratio` of its rows.
///
/// # Errors
/// As [`Partitions::of`] and [`select`].
pub fn sampling_sort<T: Ord + Copy + Send + Sync>(
    data: &mut [T],
    memory: &Architecture,
    threads: usize,
    ratio: f64,
    seed: u64,
) -> Result<SortReport, Error> {
    let sample = sorted_sample(data, memory, threads, ratio, seed)?;
    let splitters = Splitters::of(&sample, threads);
    let parts = distribute(data, &splitters, threads);
    let buckets: Vec<usize> = (0..threads).map(|b| parts.iter().map(|part| part[b].len()).sum()).collect();
    let mut rest = data;
    thread::scope(|scope| {
        for (bucket, len) in buckets.iter().enumerate() {
            let (own, after) = rest.split_at_mut(*len);
            rest = after;
            let parts = &parts;
            scope.spawn(move || {
                let elements = parts.iter().flat_map(|part| &part[bucket]);
                own.iter_mut().zip(elements).for_each(|(place, element)| *place = *element);
                own.sort_unstable();
            });
        }
    });
    Ok(SortReport { sampled: sample.len(), buckets })
}

fn sorted_sample<T: Ord + Copy + Send + Sync>(
    data: &[T],
    memory: &Architecture,
    threads: usize,
    ratio: f64,
    seed: u64,
) -> Result<Vec<T>, Error> {
    let partitions = Partitions::of(data, memory, Placement::Blocks)?;
    let rows = (partitions.rows() as f64 * ratio).ceil() as u64;
    let selection = select(&partitions, memory, rows, Assignment::ContentionFree, threads, seed)?;
    let read = fold(data, &partitions, memory, &selection, Vec::new, |all: &mut Vec<T>, _, row| all.extend(row));
    let mut sample: Vec<T> = read.into_iter().flatten().collect();
    sample.sort_unstable();
    Ok(sample)
}

/// Elements of the sample at which buckets begin.
struct Splitters<T> {
    values: Vec<T>,
    /// Where each lies in the sorted sample.
    positions: Vec<usize>,
    /// Positions of the sample's elements that equal each.
    equal: Vec<Range<usize>>,
}

impl<T: Ord + Copy> Splitters<T> {
    fn of(sample: &[T], buckets: usize) -> Splitters<T> {
        let positions: Vec<usize> = (1..buckets).map(|i| i * sample.len() / buckets).collect();
        let values: Vec<T> = positions.iter().map(|at| sample[*at]).collect();
        let equal = |value: &T| sample.partition_point(|s| s < value)..sample.partition_point(|s| s <= value);
        Splitters { equal: values.iter().map(equal).collect(), values, positions }
    }

    /// The bucket of an element. One that equals splitters may go into several buckets. They get as much of it as they
    /// have in the sample, so that a frequent element makes no bucket large; `turn` differs from element to element.
    fn bucket(&self, element: &T, turn: usize) -> usize {
        let below = self.values.partition_point(|splitter| splitter < element);
        if self.values.get(below) != Some(element) {
            return below;
        }
        let equal = &self.equal[below];
        let position = equal.start + turn.wrapping_mul(SCATTER) % equal.len();
        self.positions.partition_point(|splitter| *splitter <= position)
    }
}

/// A large prime: elements that follow each other go to distant positions.
const SCATTER: usize = 2_147_483_647;

/// Each thread's part of the data, by bucket.
fn distribute<T: Ord + Copy + Send + Sync>(data: &[T], splitters: &Splitters<T>, threads: usize) -> Vec<Vec<Vec<T>>> {
    let part = |elements: &[T]| {
        let mut buckets = vec![Vec::new(); threads];
        for (turn, element) in elements.iter().enumerate() {
            buckets[splitters.bucket(element, turn)].push(*element);
        }
        buckets
    };
    let part = &part;
    thread::scope(|scope| {
        let chunks = data.chunks(data.len().div_ceil(threads));
        let running: Vec<_> = chunks.map(|chunk| scope.spawn(move || part(chunk))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory() -> Architecture {
        let mut memory = Architecture::preset("pcm").unwrap();
        (memory.banks, memory.row_bytes) = (4, 64);
        memory.bank_weights = vec![1.0; 4];
        memory
    }

    proptest! {
        #[test]
        fn it_sorts(mut data in prop::collection::vec(0u32..50, 1..2000), threads in 1usize..9, seed: u64) {
            let mut expected = data.clone();
            expected.sort_unstable();
            sampling_sort(&mut data, &memory(), threads, 0.1, seed).unwrap();
            prop_assert_eq!(data, expected);
        }
    }

    #[test]
    fn buckets_are_balanced_whatever_the_content_is() {
        let zipf = |i: u32| 1_000_000 / (i.wrapping_mul(2_654_435_761) % 1_000_000 + 1);
        for content in [zipf, |i| i, |_| 7, |i: u32| (i % 1009).pow(2) % 1009] {
            let mut data: Vec<u32> = (0..100_000).map(content).collect();
            let report = sampling_sort(&mut data, &memory(), 8, 0.2, 3).unwrap();
            assert!(report.skew() < 1.4, "{:?}", report.buckets);
            assert!(data.is_sorted());
        }
    }
}
