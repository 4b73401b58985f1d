//! The largest groups of many, without keeping all of them.

use crate::tally::Key;
use std::cmp::Ordering;

/// A group's estimate, and its key.
#[derive(Debug, Clone)]
pub struct Ranked {
    /// The estimate.
    pub value: f64,
    /// The key.
    pub key: Key,
}

impl Ranked {
    /// The largest first. Equal groups are in the order of their keys: the answer does not depend on hashing.
    fn order(&self, value: f64, key: &[u8]) -> Ordering {
        value.total_cmp(&self.value).then_with(|| self.key.as_slice().cmp(key))
    }
}

/// The largest groups that were added, and some others.
#[derive(Debug, Clone)]
pub struct Largest {
    top: usize,
    groups: Vec<Ranked>,
    /// A group that is smaller is not among the largest.
    least: Option<Ranked>,
}

impl Largest {
    /// None yet; of all that are added, the `top` largest are kept.
    pub fn new(top: usize) -> Largest {
        Largest { top, groups: Vec::new(), least: None }
    }

    /// Adds a group.
    pub fn add(&mut self, value: f64, key: &[u8]) {
        if self.top == 0 || self.least.as_ref().is_some_and(|least| least.order(value, key).is_le()) {
            return;
        }
        self.groups.push(Ranked { value, key: key.to_vec() });
        if self.groups.len() >= self.top.saturating_mul(2).max(64) {
            self.keep();
        }
    }

    fn keep(&mut self) {
        if self.groups.len() > self.top {
            self.groups.select_nth_unstable_by(self.top - 1, |a, b| a.order(b.value, &b.key));
            self.groups.truncate(self.top);
            self.least = self.groups.last().cloned();
        }
    }

    /// Adds the groups of another thread.
    #[must_use]
    pub fn merge(mut self, other: Largest) -> Largest {
        self.groups.extend(other.groups);
        self
    }

    /// The largest groups, largest first.
    pub fn sorted(mut self) -> Vec<Ranked> {
        self.keep();
        self.groups.sort_by(|a, b| a.order(b.value, &b.key));
        self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_those_of_a_sort(values in prop::collection::vec(0u8..20, 0..400), top in 0usize..30, at in 0usize..400) {
            let groups = || values.iter().zip(0u16..).map(|(value, key)| (f64::from(*value), key.to_be_bytes()));
            let mut parts = [Largest::new(top), Largest::new(top)];
            groups().enumerate().for_each(|(i, (value, key))| parts[usize::from(i < at)].add(value, &key));
            let [one, other] = parts;
            let found: Vec<Key> = one.merge(other).sorted().into_iter().map(|ranked| ranked.key).collect();
            let mut expected: Vec<_> = groups().collect();
            expected.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            prop_assert_eq!(found, expected.into_iter().take(top).map(|(_, key)| key.to_vec()).collect::<Vec<_>>());
        }
    }
}
