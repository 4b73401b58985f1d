//! What must hold, whatever happens.

use std::collections::BTreeMap;

/// How often something happened, so that a test can see that it does.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Counts(pub BTreeMap<&'static str, u64>);

impl Counts {
    pub fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Counts) {
        other.0.iter().for_each(|(what, n)| *self.0.entry(what).or_default() += n);
    }

    /// Every kind of event occurs among many seeds.
    pub fn assert_reached(&self) {
        for what in [
            "acknowledged",
            "confirmed",
            "power loss",
            "restart",
            "partition",
            "rollback",
            "rollback found out",
            "snapshot made",
            "snapshot copied",
            "restored",
            "members changed",
            "voter led",
            "full disk",
        ] {
            assert!(self.0.get(what).is_some_and(|&n| n > 0), "no seed reaches: {what}; {self:?}");
        }
    }
}

/// The history that all peers must agree on.
#[derive(Default)]
pub struct Oracle {
    /// Entry to its term and command.
    chosen: BTreeMap<u64, (u64, Vec<u8>)>,
    /// Highest entry whose proposer was told that it is committed.
    pub acknowledged: u64,
    /// Term to its leader.
    leaders: BTreeMap<u64, u64>,
    pub counts: Counts,
}

impl Oracle {
    /// A peer says that an entry is committed.
    pub fn committed(&mut self, peer: u64, index: u64, term: u64, data: &[u8]) {
        let chosen = self.chosen.entry(index).or_insert_with(|| (term, data.to_vec()));
        assert_eq!(*chosen, (term, data.to_vec()), "entry {index} at peer {peer:x} is not what another peer committed");
    }

    /// The proposer of an entry is told that it is committed.
    pub fn acknowledge(&mut self, index: u64) {
        self.acknowledged = self.acknowledged.max(index);
        self.counts.note("acknowledged");
    }

    /// A peer leads.
    pub fn leads(&mut self, peer: u64, term: u64) {
        let leader = *self.leaders.entry(term).or_insert(peer);
        assert_eq!(leader, peer, "two leaders in term {term}");
    }

    /// The state that a peer holds at an entry is the one that the history gives.
    pub fn state(&self, peer: u64, index: u64, values: &[(u64, Vec<u8>)]) {
        let expected = self.chosen.range(..=index).filter(|(_, (_, data))| !data.is_empty());
        let expected: Vec<(u64, Vec<u8>)> = expected.map(|(&index, (_, data))| (index, data.clone())).collect();
        assert_eq!(values, expected, "the state of peer {peer:x} at entry {index}");
    }
}
