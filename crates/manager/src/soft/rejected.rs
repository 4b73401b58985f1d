//! Nodes of other clusters that tried to register: soft, bounded, shown in `tessera status`.
//!
//! Usually the node's `--manager` is wrong. But a manager that lost its directory and was started on an empty one serves a new
//! cluster, and rejects every node of the old one. No data is lost yet: the log and its snapshots are on those nodes. Both
//! sides must point to `--restore` before an operator wipes a disk.

use std::collections::BTreeMap;
use tessera_wire::hex;
use tessera_wire::meta::RejectedNode;

/// Number of nodes kept.
const MAX_REJECTED: usize = 64;
/// A node not seen for this long is forgotten.
const FORGET_NS: i64 = 3_600_000_000_000;
/// A node is logged again after this long.
const LOG_AGAIN_NS: i64 = 60_000_000_000;
/// Longest host label kept.
const MAX_HOST: usize = 255;

#[derive(Debug, Clone, Copy)]
struct Sighting {
    last_ns: i64,
    logged_ns: i64,
    times: u64,
}

/// Rejected nodes, by cluster and host.
#[derive(Debug, Default)]
pub struct RejectedNodes(BTreeMap<(Vec<u8>, String), Sighting>);

impl RejectedNodes {
    /// This manager of cluster `own` rejected a node of cluster `other` on `host`.
    pub fn note(&mut self, now_ns: i64, own: &[u8], other: Vec<u8>, host: String) {
        self.0.retain(|_, seen| now_ns - seen.last_ns < FORGET_NS);
        let node = (other, host.chars().take(MAX_HOST).collect());
        if self.0.len() >= MAX_REJECTED && !self.0.contains_key(&node) {
            return;
        }
        let (other, host) = (hex(&node.0), node.1.clone());
        let seen = self.0.entry(node).or_insert(Sighting { last_ns: now_ns, logged_ns: i64::MIN / 2, times: 0 });
        seen.last_ns = now_ns;
        seen.times += 1;
        if now_ns - seen.logged_ns >= LOG_AGAIN_NS {
            seen.logged_ns = now_ns;
            tracing::error!(
                "a node on host {host} belongs to cluster {other} and was refused: this manager serves cluster {}. If this \
                 manager has lost its directory, stop it, move the directory away and start it with --restore --from NODE \
                 (the nodes hold its log); else correct the node's --manager",
                hex(own)
            );
        }
    }

    /// Nodes seen within the last hour.
    pub fn known(&self, now_ns: i64) -> Vec<RejectedNode> {
        let fresh = self.0.iter().filter(|(_, seen)| now_ns - seen.last_ns < FORGET_NS);
        fresh
            .map(|((cluster_id, host), seen)| RejectedNode {
                cluster_id: cluster_id.clone(),
                host: host.clone(),
                seen_ns: seen.last_ns,
                times: seen.times,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_nodes_are_bounded_and_forgotten() {
        let mut rejected_nodes = RejectedNodes::default();
        for i in 0..1_000u64 {
            rejected_nodes.note(1, &[1; 16], vec![2; 16], format!("h{i}"));
        }
        rejected_nodes.note(2, &[1; 16], vec![2; 16], "h0".into());
        assert_eq!(rejected_nodes.known(2).len(), MAX_REJECTED);
        assert_eq!(rejected_nodes.known(2)[0].times, 2);
        assert!(rejected_nodes.known(2 + FORGET_NS).is_empty());
        rejected_nodes.note(2 + FORGET_NS, &[1; 16], vec![3; 16], "x".repeat(1_000));
        assert_eq!(rejected_nodes.known(2 + FORGET_NS).iter().map(|s| s.host.len()).collect::<Vec<_>>(), [MAX_HOST]);
    }
}
