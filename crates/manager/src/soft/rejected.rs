//! Nodes of other clusters that tried to register: soft, bounded, shown in `tessera status`.
//!
//! Usually the node's `--manager` is wrong. But a manager that lost its directory and was started on an empty one serves a new
//! cluster, and rejects every node of the old one. No data is lost yet: the log and its snapshots are on those nodes. Both
//! sides must point to `--join` before an operator wipes a disk.

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

/// Rejected nodes, by cluster and host, and when each was last logged.
#[derive(Debug, Default)]
pub struct RejectedNodes(BTreeMap<(Vec<u8>, String), (RejectedNode, i64)>);

impl RejectedNodes {
    /// This manager of cluster `own` rejected a node of cluster `other` on `host`.
    pub fn note(&mut self, now_ns: i64, own: &[u8], other: Vec<u8>, host: String) {
        self.0.retain(|_, (node, _)| now_ns - node.seen_ns < FORGET_NS);
        let host: String = host.chars().take(MAX_HOST).collect();
        let key = (other.clone(), host.clone());
        if self.0.len() >= MAX_REJECTED && !self.0.contains_key(&key) {
            return;
        }
        let new = || (RejectedNode { cluster_id: other, host, ..RejectedNode::default() }, i64::MIN / 2);
        let (node, logged_ns) = self.0.entry(key).or_insert_with(new);
        node.seen_ns = now_ns;
        node.times += 1;
        if now_ns - *logged_ns >= LOG_AGAIN_NS {
            *logged_ns = now_ns;
            let (host, other) = (&node.host, hex(&node.cluster_id));
            tracing::error!(
                "a node on host {host} belongs to cluster {other} and was refused: this manager serves cluster {}. If this \
                 manager has lost its directory, stop it, move the directory away and start it with --join NODE \
                 (the nodes hold its log); else correct the node's --manager",
                hex(own)
            );
        }
    }

    /// Nodes seen within the last hour.
    pub fn known(&self, now_ns: i64) -> Vec<RejectedNode> {
        let known = self.0.values().map(|(node, _)| node);
        known.filter(|node| now_ns - node.seen_ns < FORGET_NS).cloned().collect()
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
