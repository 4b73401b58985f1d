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
/// contradict each other. Of two managers none is right by being more. Without a majority, those in `known_wrong` are wrong, which an earlier
/// one found, if all others agree.
pub(super) fn judge(reports: &BTreeMap<u64, PartDigest>, known_wrong: &BTreeSet<u64>, managers: usize) -> Verdict {
    let have = |digest: &PartDigest| reports.values().filter(|other| *other == digest).count();
    let others_than = |digest: &PartDigest| -> BTreeSet<u64> {
        reports.iter().filter(|(_, other)| *other != digest).map(|(&id, _)| id).collect()
    };
    let Some(most) = reports.values().max_by_key(|digest| have(digest)) else { return Verdict::Equal };
    let others = others_than(most);
    if others.is_empty() {
        return Verdict::Equal;
    }
    if managers >= 3 && 2 * have(most) > managers {
        return Verdict::Minority(others);
    }
    let trusted = reports.iter().find(|(id, _)| !known_wrong.contains(id)).map(|(_, digest)| others_than(digest));
    trusted.filter(|others| others.is_subset(known_wrong)).map_or(Verdict::Undecided, Verdict::Minority)
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
            assert_eq!(judge(&reports(hashes), &[].into(), managers), expected, "{hashes:?} of {managers}");
        }
    }

    #[test]
    fn without_a_majority_what_an_earlier_one_found_counts() {
        let minority = |ids: &[u64]| Verdict::Minority(ids.iter().copied().collect());
        for (hashes, known_wrong, expected) in [
            (&[1, 2][..], &[2][..], minority(&[2])),
            (&[1, 2], &[1], minority(&[1])),
            (&[1, 1], &[2], Verdict::Equal),
            // Managers that nobody found wrong differ.
            (&[1, 2, 3], &[3], Verdict::Undecided),
            (&[1, 2], &[1, 2], Verdict::Undecided),
            // The majority of now counts more than an earlier one.
            (&[1, 2, 2], &[2, 3], minority(&[1])),
        ] {
            let known_wrong = known_wrong.iter().copied().collect();
            assert_eq!(judge(&reports(hashes), &known_wrong, 3), expected, "{hashes:?}");
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
