//! Graph sampling: the load of a vertex is its degree, and a sample of the edges tells how to share it out.
//!
//! Edges are an array of (source, target) in any order. A balanced sample of its rows estimates degrees, with intervals,
//! and cuts the vertices into ranges that have about as many edges each (ArchSampler, section on load balancing, which
//! names graph sampling as a content-dependent case).

use super::answer::RowSample;
use super::file::Architecture;
use super::partition::{Partitions, Placement};
use super::select::{Assignment, Selection, select};
use super::threads::fold;
use crate::Error;
use crate::estimate::{Estimate, Moments, Quantity};
use std::collections::BTreeMap;
use std::ops::Range;

/// An edge: source and target.
pub type Edge = (u32, u32);

/// A sample of the edges of a graph.
#[derive(Debug)]
pub struct GraphSample<'a> {
    edges: &'a [Edge],
    memory: &'a Architecture,
    partitions: Partitions,
    selection: Selection,
    /// Sampled edges of each source that was seen.
    seen: BTreeMap<u32, u64>,
}

impl<'a> GraphSample<'a> {
    /// Reads `ratio` of the rows of the edges by `threads` threads.
    ///
    /// # Errors
    /// As [`Partitions::of`] and [`select`].
    pub fn read(
        edges: &'a [Edge],
        memory: &'a Architecture,
        threads: usize,
        ratio: f64,
        seed: u64,
    ) -> Result<GraphSample<'a>, Error> {
        let partitions = Partitions::of(edges, memory, Placement::Blocks)?;
        let rows = (partitions.rows() as f64 * ratio).ceil() as u64;
        let selection = select(&partitions, memory, rows, Assignment::ContentionFree, threads, seed)?;
        let count = |seen: &mut BTreeMap<u32, u64>, _, row: &[Edge]| {
            row.iter().for_each(|(source, _)| *seen.entry(*source).or_default() += 1);
        };
        let mut seen = BTreeMap::new();
        for part in fold(edges, &partitions, memory, &selection, BTreeMap::new, count) {
            part.into_iter().for_each(|(source, edges)| *seen.entry(source).or_default() += edges);
        }
        Ok(GraphSample { edges, memory, partitions, selection, seen })
    }

    /// Edges that were read.
    pub fn sampled(&self) -> u64 {
        self.seen.values().sum()
    }

    /// The out-degree of a vertex, with an interval. Reads the sampled rows again.
    ///
    /// # Errors
    /// None: the selection is a random sample.
    pub fn degree(&self, vertex: u32, confidence: f64) -> Result<Estimate, Error> {
        let measure = |row: &[Edge]| Moments {
            count: row.iter().filter(|(source, _)| *source == vertex).count() as f64,
            ..Default::default()
        };
        let sample = RowSample::read(self.edges, &self.partitions, self.memory, &self.selection, measure)?;
        Ok(sample.estimate(Quantity::Count, confidence))
    }

    /// The `most` vertices with the most sampled edges.
    pub fn hubs(&self, most: usize) -> Vec<u32> {
        let mut seen: Vec<(u32, u64)> = self.seen.iter().map(|(vertex, edges)| (*vertex, *edges)).collect();
        seen.sort_by_key(|(vertex, edges)| (std::cmp::Reverse(*edges), *vertex));
        seen.into_iter().take(most).map(|(vertex, _)| vertex).collect()
    }

    /// Cuts the vertices below `vertices` into `parts` ranges with about as many sampled edges each. A vertex is never
    /// divided, so one with more edges than a part's share has a part for itself.
    pub fn ranges(&self, vertices: u32, parts: usize) -> Vec<Range<u32>> {
        let mut ranges = Vec::with_capacity(parts);
        let (mut first, mut left, mut edges) = (0, self.sampled(), 0);
        for (vertex, seen) in &self.seen {
            let share = left as f64 / (parts - ranges.len()) as f64;
            // The vertex goes where it errs less.
            let is_full = edges > 0 && (edges + seen) as f64 - share > share - edges as f64;
            if is_full && ranges.len() + 1 < parts && *vertex > first {
                ranges.push(first..*vertex);
                (first, left, edges) = (*vertex, left - edges, 0);
            }
            edges += seen;
        }
        ranges.push(first..vertices.max(first));
        ranges.resize(parts, vertices.max(first)..vertices.max(first));
        ranges
    }
}

/// Edges of the range that has most, compared with the mean.
pub fn skew(edges: &[Edge], ranges: &[Range<u32>]) -> f64 {
    let mut load = vec![0u64; ranges.len()];
    for (source, _) in edges {
        let at = ranges.partition_point(|range| range.end <= *source);
        load[at] += 1;
    }
    *load.iter().max().unwrap_or(&0) as f64 * ranges.len() as f64 / edges.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    const VERTICES: u32 = 2000;

    /// Vertices whose degrees fall as a power law does, edges in random order.
    fn graph() -> Vec<Edge> {
        let mut rng = StdRng::seed_from_u64(5);
        let source = |rng: &mut StdRng| (f64::from(VERTICES).powf(rng.random_range(0.0..1.0)) - 1.0) as u32;
        (0..200_000).map(|_| (source(&mut rng), rng.random_range(0..VERTICES))).collect()
    }

    fn memory() -> Architecture {
        let mut memory = Architecture::preset("pcm").unwrap();
        (memory.banks, memory.row_bytes) = (8, 256);
        memory.bank_weights = vec![1.0; 8];
        memory
    }

    #[test]
    fn degrees_of_hubs_are_inside_their_intervals() {
        let (edges, memory) = (graph(), memory());
        let sample = GraphSample::read(&edges, &memory, 2, 0.1, 1).unwrap();
        assert_eq!(sample.hubs(1), [0], "the vertex with most edges");
        let mut inside = 0;
        for vertex in sample.hubs(20) {
            let truth = edges.iter().filter(|(source, _)| *source == vertex).count() as f64;
            let degree = sample.degree(vertex, 0.95).unwrap();
            assert!(degree.claimed && degree.high - degree.low < truth, "{degree:?}");
            inside += u32::from(degree.low <= truth && truth <= degree.high);
        }
        assert!(inside >= 15, "{inside} of 20");
    }

    #[test]
    fn sampled_ranges_are_balanced_where_equal_ranges_are_not() {
        let (edges, memory) = (graph(), memory());
        let sample = GraphSample::read(&edges, &memory, 2, 0.05, 1).unwrap();
        let sampled = sample.ranges(VERTICES, 8);
        assert_eq!((sampled.len(), sampled[0].start, sampled[7].end), (8, 0, VERTICES));
        assert!(sampled.windows(2).all(|pair| pair[0].end == pair[1].start));
        let equal: Vec<Range<u32>> = (0..8).map(|i| i * VERTICES / 8..(i + 1) * VERTICES / 8).collect();
        let (sampled, equal) = (skew(&edges, &sampled), skew(&edges, &equal));
        assert!(sampled < 1.2 && equal > 3.0, "{sampled} {equal}");
    }

    #[test]
    fn more_parts_than_vertices_leave_some_empty() {
        let edges = vec![(0, 1); 1000];
        let memory = memory();
        let ranges = GraphSample::read(&edges, &memory, 1, 0.5, 1).unwrap().ranges(2, 4);
        assert_eq!((ranges.len(), ranges[0].clone()), (4, 0..2));
        assert_eq!(skew(&edges, &ranges), 4.0);
    }
}
