//! Placement hints: the host that a chunk should be on.
//!
//! A hint selects among groups: those in which the host holds plain bytes of the chunk (a copy, or a slice if there is no
//! copy; `ClassInfo::hinted_fragments` gives their number). Repair and balancing ignore hints. The host depends on rows only (the
//! session's hints and host, the nodes that are up), so a replay of the log finds the same host. Whether a group there
//! has space depends on soft state; that answer is recorded with the command.

use crate::db::node_map::NodeMap;
use crate::db::sessions::Session;
use crate::placement::layout::mix;
use std::collections::BTreeSet;
use tessera_policy::{Placement, Policy};

/// The hosts that a file's chunks should be on.
#[derive(Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The policy asks for hosts, which the cluster may not have.
    pub asked: bool,
    /// Region i goes to host `i % hosts.len()`.
    hosts: Vec<String>,
}

impl Affinity {
    /// Resolves the file's policy to hosts that take chunks.
    pub fn of(policy: &Policy, session: &Session, node_map: &NodeMap) -> Affinity {
        let hosts = match &policy.placement {
            Placement::Spread => return Affinity { asked: false, hosts: Vec::new() },
            Placement::Local => {
                let there = writable_hosts(node_map).contains(session.host.as_str());
                if there { vec![session.host.clone()] } else { Vec::new() }
            }
            Placement::Collocate { group } => ranked(node_map, group.as_bytes()).into_iter().take(1).collect(),
            Placement::Scatter(_) => ranked(node_map, &session.ino.to_le_bytes()),
        };
        assert!(!matches!(policy.placement, Placement::Spread), "a file that is spread asks for no host");
        Affinity { asked: true, hosts }
    }

    /// The host that the policy asks for chunks of `region`; `None`: any, or one that the cluster does not have.
    pub fn host(&self, region: u64) -> Option<&str> {
        let at = region.checked_rem(self.hosts.len() as u64)?;
        self.hosts.get(at as usize).map(String::as_str)
    }
}

fn writable_hosts(node_map: &NodeMap) -> BTreeSet<&str> {
    node_map.disks.values().filter(|d| d.writable()).map(|d| d.host.as_str()).collect()
}

/// The hosts, ordered by the preference of `key`: highest random weight (Thaler and Ravishankar, 1998). A host that
/// comes or goes changes the first choice only of the keys that prefer it.
fn ranked(node_map: &NodeMap, key: &[u8]) -> Vec<String> {
    let key = hash(key);
    let mut hosts: Vec<(u64, &str)> =
        writable_hosts(node_map).into_iter().map(|host| (mix(key ^ hash(host.as_bytes())), host)).collect();
    hosts.sort_unstable_by(|a, b| b.cmp(a));
    hosts.into_iter().map(|(_, host)| host.to_string()).collect()
}

/// FNV-1a, 64 bits. Must not change: the replay of old commands depends on it.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::rows::DiskRow;
    use std::collections::BTreeMap;
    use tessera_wire::Health;

    fn node_map(hosts: std::ops::Range<u64>) -> NodeMap {
        let disk = |id: u64| DiskRow {
            disk_id: id,
            node_id: id,
            uuid: vec![id as u8; 16],
            path: String::new(),
            own_health: Health::Up,
            node_health: Health::Up,
            host: format!("h{id}"),
            capacity_bytes: 1,
            inventory_wanted: 0,
            unlisted: 0,
            listed_incarnation: 0,
            receipt_key: Vec::new(),
        };
        let mut node_map = NodeMap::default();
        node_map.disks.extend(hosts.map(|id| (id, disk(id))));
        node_map
    }

    fn affinity(placement: &str, session: &Session, node_map: &NodeMap) -> Affinity {
        Affinity::of(&Policy::from_hints([("placement", placement)]).unwrap(), session, node_map)
    }

    #[test]
    fn local_is_the_writer_and_no_other() {
        let session = Session { host: "h3".into(), ..Default::default() };
        let asked = |placement: &str, node_map: &NodeMap| {
            let affinity = affinity(placement, &session, node_map);
            (affinity.asked, affinity.host(7).map(String::from))
        };
        assert_eq!(asked("local", &node_map(1..9)), (true, Some("h3".into())));
        assert_eq!(asked("local", &node_map(4..9)), (true, None));
        assert_eq!(asked("spread", &node_map(1..9)), (false, None));
    }

    #[test]
    fn a_group_has_one_host_and_keeps_it_when_another_goes() {
        let session = Session::default();
        let mut counts = BTreeMap::<String, u32>::new();
        for group in 0..400 {
            let group = format!("collocate:g{group}");
            let before = affinity(&group, &session, &node_map(1..9));
            let after = affinity(&group, &session, &node_map(2..9));
            *counts.entry(before.hosts[0].clone()).or_default() += 1;
            assert!(before == after || before.hosts == ["h1"], "{group}: {before:?} {after:?}");
        }
        assert!(counts.len() == 8 && counts.values().all(|n| (25..=80).contains(n)), "{counts:?}");
    }

    #[test]
    fn regions_go_round_all_hosts() {
        let session = Session { ino: 77, ..Default::default() };
        let affinity = affinity("scatter:1M", &session, &node_map(1..9));
        let first: BTreeSet<_> = (0..8).map(|region| affinity.host(region)).collect();
        assert_eq!(first.len(), 8);
        assert_eq!(affinity.host(3), affinity.host(11));
    }
}
