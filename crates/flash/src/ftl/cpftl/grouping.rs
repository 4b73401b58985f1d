//! Which entries go into which correlated page.
//!
//! Pairs of pages make a graph whose edges have the support of both directions. A *group* is a page with the pages whose
//! support with it is at least half of its strongest: what is read with it by chance has less. A page that is read with two
//! sequences is in the groups of both, as in the paper, which stores a sequence for each page that begins one ({a, bc} and {b, c}).

use crate::mining::Pair;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// What is known of a page and another one.
#[derive(Debug, Clone, Copy)]
struct Edge {
    page: u32,
    other: u32,
    /// Windows in which the page is read first, and those in which it is read after.
    before: u32,
    after: u32,
}

impl Edge {
    fn support(&self) -> u32 {
        self.before + self.after
    }
}

/// The edges of all pages, those of one page side by side.
struct Graph {
    edges: Vec<Edge>,
    of_page: HashMap<u32, Range<usize>>,
}

impl Graph {
    fn new(pairs: &[Pair]) -> Self {
        let both = |pair: &Pair| {
            let Pair { first, second, support } = *pair;
            [
                Edge { page: first, other: second, before: support, after: 0 },
                Edge { page: second, other: first, before: 0, after: support },
            ]
        };
        let mut edges: Vec<Edge> = pairs.iter().flat_map(both).collect();
        edges.sort_unstable_by_key(|edge| (edge.page, edge.other));
        edges.dedup_by(|next, edge| {
            let is_same = (next.page, next.other) == (edge.page, edge.other);
            if is_same {
                (edge.before, edge.after) = (edge.before + next.before, edge.after + next.after);
            }
            is_same
        });
        let (mut of_page, mut start) = (HashMap::new(), 0);
        for own in edges.chunk_by(|a, b| a.page == b.page) {
            of_page.insert(own[0].page, start..start + own.len());
            start += own.len();
        }
        Graph { edges, of_page }
    }

    fn edges(&self, page: u32) -> &[Edge] {
        &self.edges[self.of_page[&page].clone()]
    }

    fn strongest(&self, page: u32) -> u32 {
        self.edges(page).iter().map(Edge::support).max().unwrap_or(0)
    }

    /// A page, and the pages whose support with it is at least half of its strongest.
    fn near(&self, page: u32) -> HashSet<u32> {
        let strongest = self.strongest(page);
        let near = self.edges(page).iter().filter(|edge| 2 * edge.support() >= strongest);
        near.map(|edge| edge.other).chain([page]).collect()
    }

    /// The pages of a group in the order in which they are read.
    fn in_order(&self, group: &HashSet<u32>) -> Vec<u32> {
        let lead = |page: u32| -> i64 {
            let inside = self.edges(page).iter().filter(|edge| group.contains(&edge.other));
            inside.map(|edge| i64::from(edge.before) - i64::from(edge.after)).sum()
        };
        let mut ordered: Vec<(Reverse<i64>, u32)> = group.iter().map(|page| (Reverse(lead(*page)), *page)).collect();
        ordered.sort_unstable();
        ordered.into_iter().map(|(_, page)| page).collect()
    }
}

/// Groups of pages that are read together, those with most support first. Each page of a pair is in at least one.
pub fn groups(pairs: &[Pair]) -> Vec<Vec<u32>> {
    let graph = Graph::new(pairs);
    let mut seeds: Vec<(Reverse<u32>, u32)> =
        graph.of_page.keys().map(|page| (Reverse(graph.strongest(*page)), *page)).collect();
    seeds.sort_unstable();
    let mut groups = Groups::default();
    for (_, seed) in seeds {
        if !groups.of_page.contains_key(&seed) {
            groups.add(graph.near(seed));
        }
    }
    groups.all.iter().filter(|group| !group.is_empty()).map(|group| graph.in_order(group)).collect()
}

/// Groups so far.
#[derive(Default)]
struct Groups {
    all: Vec<HashSet<u32>>,
    of_page: HashMap<u32, Vec<usize>>,
}

impl Groups {
    /// Adds a group, and unites it with those that share more than half of the smaller one's pages.
    fn add(&mut self, mut group: HashSet<u32>) {
        let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
        for number in group.iter().filter_map(|page| self.of_page.get(page)).flatten() {
            *shared.entry(*number).or_default() += 1;
        }
        shared.retain(|number, count| 2 * *count > group.len().min(self.all[*number].len()));
        let number = shared.keys().next().copied().unwrap_or(self.all.len());
        for like in shared.into_keys() {
            for page in std::mem::take(&mut self.all[like]) {
                self.of_page.entry(page).or_default().retain(|of| *of != like);
                group.insert(page);
            }
        }
        for page in &group {
            self.of_page.entry(*page).or_default().push(number);
        }
        if number == self.all.len() {
            self.all.push(group)
        } else {
            self.all[number] = group;
        }
    }
}

/// Groups in as many correlated pages as they need, at most `pages` of `per_page` entries. A group that fits into a page
/// is not divided.
pub fn pack(groups: &[Vec<u32>], per_page: usize, pages: usize) -> Vec<Vec<&[u32]>> {
    let (mut packed, mut free): (Vec<Vec<&[u32]>>, usize) = (Vec::new(), 0);
    for part in groups.iter().flat_map(|group| group.chunks(per_page)) {
        if part.len() > free {
            if packed.len() == pages {
                break;
            }
            packed.push(Vec::new());
            free = per_page;
        }
        free -= part.len();
        packed.last_mut().expect("a page was begun").push(part);
    }
    packed
}

/// Page reads that a read of a page is expected to cost (equation 3.1): `correlated` is the share of reads that a
/// correlated page serves, `together` the number of entries that are read together, `wrong` the share of others that its filter takes for its own.
pub fn expected_reads(together: f64, correlated: f64, wrong: f64) -> f64 {
    correlated + (1.0 - correlated) * ((together + 1.0) * wrong + together * (1.0 - wrong))
}

/// Whether a correlated page saves page reads: without it, `together` entries cost as many.
pub fn is_worthwhile(together: f64, correlated: f64, wrong: f64) -> bool {
    expected_reads(together, correlated, wrong) < together
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(first: u32, second: u32, support: u32) -> Pair {
        Pair { first, second, support }
    }

    /// The pairs of a sequence that was read so many times.
    fn sequence(pages: &[u32], support: u32) -> Vec<Pair> {
        let after = |i: usize| pages[i + 1..].iter().map(move |second| pair(pages[i], *second, support));
        (0..pages.len()).flat_map(after).collect()
    }

    #[test]
    fn a_group_is_what_is_read_together_in_the_order_of_reading() {
        let pairs = [sequence(&[9, 2, 7], 6), sequence(&[3, 1, 8, 4], 20)].concat();
        assert_eq!(groups(&pairs), [vec![3, 1, 8, 4], vec![9, 2, 7]]);
        assert_eq!(groups(&[]), [[0; 0]; 0]);
    }

    #[test]
    fn pages_that_are_read_together_by_chance_are_in_groups_of_their_own() {
        let pairs = [sequence(&[1, 2, 3], 20), sequence(&[5, 6], 18), vec![pair(2, 5, 8), pair(6, 3, 8)]].concat();
        assert_eq!(groups(&pairs), [vec![1, 2, 3], vec![5, 6]]);
    }

    #[test]
    fn a_page_of_two_sequences_is_in_the_groups_of_both() {
        let pairs = [sequence(&[1, 2, 3], 20), sequence(&[5, 2, 6], 6)].concat();
        assert_eq!(groups(&pairs), [vec![1, 2, 3], vec![5, 2, 6]]);
    }

    #[test]
    fn only_groups_larger_than_a_page_are_divided() {
        let groups = [vec![1, 2, 3], vec![4, 5], vec![6], vec![7, 8, 9, 10, 11, 12]];
        let packed = |pages| pack(&groups, 4, pages).iter().map(|page| page.concat()).collect::<Vec<_>>();
        assert_eq!(packed(9), [vec![1, 2, 3], vec![4, 5, 6], vec![7, 8, 9, 10], vec![11, 12]]);
        assert_eq!(packed(2), [vec![1, 2, 3], vec![4, 5, 6]]);
    }

    proptest! {
        #[test]
        fn a_page_is_worthwhile_under_equation_3_2(n in 1.0..600f64, x in 0.0..0.999f64, y in 0.0..1.0f64) {
            let bound = (n - 1.0) * x / (1.0 - x);
            prop_assume!((y - bound).abs() > 1e-9);
            prop_assert_eq!(is_worthwhile(n, x, y), y < bound);
        }

        #[test]
        fn every_page_of_a_pair_is_in_a_group(ends in prop::collection::vec((0u32..50, 0u32..50, 1u32..20), 0..200)) {
            let pairs: Vec<Pair> = ends.into_iter().filter(|(a, b, _)| a != b).map(|(a, b, s)| pair(a, b, s)).collect();
            let placed: HashSet<u32> = groups(&pairs).concat().into_iter().collect();
            prop_assert!(pairs.iter().all(|pair| placed.contains(&pair.first) && placed.contains(&pair.second)));
        }
    }
}
