//! A cache of nodes, disks and members being backfilled: every heartbeat and tick reads them, and they seldom change.
//!
//! It holds rows, not soft state ([`crate::soft::stats`]). [`crate::map::tables`] writes these rows and calls
//! [`Caches::forget_node_map`] and [`Caches::forget_pg`] in the same command.

use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::rows::{self, DiskRow, Member, NodeRow};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All nodes and disks.
#[derive(Debug, Default)]
pub struct NodeMap {
    /// By node id.
    pub nodes: BTreeMap<u64, NodeRow>,
    /// By disk id.
    pub disks: BTreeMap<u64, DiskRow>,
    by_node: BTreeMap<u64, Vec<u64>>,
}

impl NodeMap {
    fn load(db: &Db) -> rusqlite::Result<NodeMap> {
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

    /// Whether the disk belongs to the node.
    pub fn owns(&self, node_id: u64, disk_id: u64) -> bool {
        self.disks.get(&disk_id).is_some_and(|d| d.node_id == node_id)
    }

    /// Disks that can be read now, by id.
    pub fn readable(&self) -> impl Iterator<Item = &DiskRow> {
        self.disks.values().filter(|d| d.readable())
    }
}

/// The cached rows.
#[derive(Default)]
pub(crate) struct NodeMapCache {
    node_map: RefCell<Option<Arc<NodeMap>>>,
    backfilling: RefCell<Option<Arc<Vec<Member>>>>,
}

impl NodeMapCache {
    pub(crate) fn forget(&self) {
        *self.node_map.borrow_mut() = None;
    }

    pub(crate) fn forget_backfilling(&self) {
        *self.backfilling.borrow_mut() = None;
    }
}

fn remembered<T>(
    slot: &RefCell<Option<Arc<T>>>,
    load: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<Arc<T>> {
    if let Some(known) = &*slot.borrow() {
        return Ok(known.clone());
    }
    let fresh = Arc::new(load()?);
    *slot.borrow_mut() = Some(fresh.clone());
    Ok(fresh)
}

impl Caches {
    /// All nodes and disks.
    pub fn node_map(&self, db: &Db) -> rusqlite::Result<Arc<NodeMap>> {
        remembered(&self.node_map.node_map, || NodeMap::load(db))
    }

    /// Members that are being backfilled, by group and position.
    pub fn backfilling(&self, db: &Db) -> rusqlite::Result<Arc<Vec<Member>>> {
        remembered(&self.node_map.backfilling, || rows::members_backfilling(db))
    }
}
