//! What follows from the digests of the managers.

use std::collections::{BTreeMap, BTreeSet};
use tessera_wire::meta::PartDigest;

/// See [`judge`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All that reported have the same.
    Equal,
    /// These differ from what a majority has.
    Minority(BTreeSet<u64>),
    /// They differ, and nobody knows which is right.
    Undecided,
}

/// Compares what the managers reported, by peer id. A majority is one of all `managers` of the group, reported or not: so no two majorities
/// contradict each other. Of two managers none is right by being more.
pub(super) fn judge(reports: &BTreeMap<u64, PartDigest>, managers: usize) -> Verdict {
    let have = |digest: &PartDigest| reports.values().filter(|other| *other == digest).count();
    let Some(most) = reports.values().max_by_key(|digest| have(digest)) else { return Verdict::Equal };
    let others: BTreeSet<u64> = reports.iter().filter(|(_, digest)| *digest != most).map(|(&id, _)| id).collect();
    match (others.is_empty(), managers >= 3 && 2 * have(most) > managers) {
        (true, _) => Verdict::Equal,
        (false, true) => Verdict::Minority(others),
        (false, false) => Verdict::Undecided,
    }
}

/// The first table in which two of them differ; empty: none.
pub(super) fn table_that_differs(reports: &BTreeMap<u64, PartDigest>) -> String {
    let Some(first) = reports.values().next() else { return String::new() };
    let differs = |at: usize| reports.values().any(|other| other.tables.get(at) != first.tables.get(at));
    let longest = reports.values().max_by_key(|digest| digest.tables.len()).unwrap_or(first);
    let at = (0..longest.tables.len()).find(|&at| differs(at));
    at.map_or(String::new(), |at| longest.tables[at].table.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::meta::TableDigest;

    fn reports(hashes: &[u8]) -> BTreeMap<u64, PartDigest> {
        let table = |name: &str, hash: u8| TableDigest { table: name.into(), hash: vec![hash] };
        let digest = |&hash: &u8| PartDigest { tables: vec![table("a", 0), table("b", hash)], ..PartDigest::default() };
        (1..).zip(hashes.iter().map(digest)).collect()
    }

    #[test]
    fn only_a_majority_of_all_managers_decides() {
        let minority = |ids: &[u64]| Verdict::Minority(ids.iter().copied().collect());
        for (hashes, managers, expected) in [
            (&[][..], 3, Verdict::Equal),
            (&[1, 1, 1], 3, Verdict::Equal),
            (&[1, 1], 2, Verdict::Equal),
            (&[1, 2], 2, Verdict::Undecided),
            (&[1, 2, 1], 3, minority(&[2])),
            (&[2, 1, 1], 3, minority(&[1])),
            // One of three does not answer: it could agree with either.
            (&[1, 2], 3, Verdict::Undecided),
            (&[1, 2, 3], 3, Verdict::Undecided),
            (&[1, 1, 2, 2], 4, Verdict::Undecided),
            (&[1, 1, 2], 5, Verdict::Undecided),
            (&[1, 1, 2, 3, 1], 5, minority(&[3, 4])),
        ] {
            assert_eq!(judge(&reports(hashes), managers), expected, "{hashes:?} of {managers}");
        }
    }

    #[test]
    fn the_table_that_differs_is_named() {
        assert_eq!(table_that_differs(&reports(&[1, 2])), "b");
        assert_eq!(table_that_differs(&reports(&[1, 1])), "");
        let mut shorter = reports(&[1, 1]);
        shorter.get_mut(&1).unwrap().tables.pop();
        assert_eq!(table_that_differs(&shorter), "b");
    }
}
