//! Which entries go into which correlated page.

use crate::ftl::Index;
use crate::mining::Pair;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// The logical pages of the pairs, each once, at most so many, so that pages with much support and those that are read
/// after them stand side by side: from the pair with the most support on, breadth first, followers with more support first.
pub fn in_order(pairs: &[Pair], max: usize) -> Vec<u32> {
    let mut followers = pairs.to_vec();
    followers.sort_unstable_by_key(|pair| (pair.first, Reverse(pair.support), pair.second));
    let mut seeds = pairs.to_vec();
    seeds.sort_unstable_by_key(|pair| (Reverse(pair.support), pair.first, pair.second));
    let (mut order, mut placed, mut queue) = (Vec::new(), Index::default(), VecDeque::new());
    for seed in seeds {
        queue.push_back(seed.first);
        while let Some(lpn) = queue.pop_front() {
            if placed.get(lpn).is_some() {
                continue;
            }
            if order.len() == max {
                return order;
            }
            placed.insert(lpn, 0);
            order.push(lpn);
            let start = followers.partition_point(|pair| pair.first < lpn);
            let own = followers[start..].iter().take_while(|pair| pair.first == lpn);
            queue.extend(own.map(|pair| pair.second).filter(|second| placed.get(*second).is_none()));
        }
    }
    order
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

    #[test]
    fn pages_that_are_read_together_stand_together() {
        let pair = |first, second, support| Pair { first, second, support };
        let pairs = [pair(1, 2, 3), pair(1, 9, 7), pair(2, 4, 3), pair(5, 6, 8), pair(6, 1, 2), pair(7, 8, 2)];
        assert_eq!(in_order(&pairs, 100), [5, 6, 1, 9, 2, 4, 7, 8]);
        assert_eq!(in_order(&pairs, 3), [5, 6, 1]);
        assert_eq!(in_order(&[], 3), [0; 0]);
    }

    proptest! {
        #[test]
        fn a_page_is_worthwhile_under_equation_3_2(n in 1.0..600f64, x in 0.0..0.999f64, y in 0.0..1.0f64) {
            let bound = (n - 1.0) * x / (1.0 - x);
            prop_assume!((y - bound).abs() > 1e-9);
            prop_assert_eq!(is_worthwhile(n, x, y), y < bound);
        }
    }
}
