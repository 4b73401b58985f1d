//! All nodes and disks: every heartbeat and tick reads them, and they seldom change ([`crate::db::cache`]).

use crate::db::Db;
use crate::db::rows::{self, DiskRow};
use std::collections::BTreeMap;
use tessera_wire::{Health, NodeInfo};

/// All nodes and disks.
#[derive(Debug, Default)]
pub struct NodeMap {
    /// By node id.
    pub nodes: BTreeMap<u64, NodeInfo>,
    /// By disk id.
    pub disks: BTreeMap<u64, DiskRow>,
    by_node: BTreeMap<u64, Vec<u64>>,
}

impl NodeMap {
    pub(crate) fn load(db: &Db) -> rusqlite::Result<NodeMap> {
        let mut node_map = NodeMap::default();
        node_map.nodes.extend(rows::nodes(db)?.into_iter().map(|n| (n.node_id, n)));
        for disk in rows::disks(db)? {
            node_map.by_node.entry(disk.node_id).or_default().push(disk.disk_id);
            node_map.disks.insert(disk.disk_id, disk);
        }
        Ok(node_map)
    }

    /// Disks of a node, by id.
    pub fn disks_of(&self, node_id: u64) -> impl Iterator<Item = &DiskRow> {
        self.by_node.get(&node_id).into_iter().flatten().filter_map(|id| self.disks.get(id))
    }

    /// Whether every disk of the node is on its way out, or out: nothing may be placed on the node, and it is about to go.
    pub fn is_leaving(&self, node_id: u64) -> bool {
        let leaves = |disk: &DiskRow| matches!(disk.own_health, Health::Draining | Health::Drained | Health::Out);
        self.disks_of(node_id).all(leaves)
    }

    /// Whether the disk belongs to the node.
    pub fn owns(&self, node_id: u64, disk_id: u64) -> bool {
        self.disks.get(&disk_id).is_some_and(|d| d.node_id == node_id)
    }

    /// Whether fragments on the disk can be read now.
    pub fn is_readable(&self, disk_id: u64) -> bool {
        self.disks.get(&disk_id).is_some_and(DiskRow::readable)
    }

    /// Disks that can be read now, by id.
    pub fn readable(&self) -> impl Iterator<Item = &DiskRow> {
        self.disks.values().filter(|d| d.readable())
    }
}
