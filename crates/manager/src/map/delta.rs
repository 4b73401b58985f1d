//! The cluster map as clients and nodes get it: changes since the version they have.

use crate::ctx::View;
use crate::db::Db;
use crate::db::cache::{self, Caches};
use crate::db::rows;
use crate::db::sql::args;
use crate::error::Result;
use std::collections::BTreeSet;
use tessera_wire::DiskInfo;
use tessera_wire::meta::{ClusterMap, GetMap};

/// Answers [`GetMap`].
///
/// # Errors
/// The database fails, or a requested group does not exist.
pub fn get_map(view: &View, request: &GetMap) -> Result<ClusterMap> {
    let (db, version, caches) = (view.db, view.meta.map_version, view.caches);
    let known = request.known_version;
    let mut map = match request.pg_ids.is_empty() && !request.all_nodes {
        true => {
            let pgs: Vec<u64> = db.all("SELECT pg_id FROM pgs WHERE map_version > ?1", args![known])?;
            map_since(db, version, caches, known, pgs)?
        }
        false => {
            let known = if request.all_nodes { 0 } else { known };
            map_since(db, version, caches, known, request.pg_ids.iter().copied())?
        }
    };
    for disk in &mut map.disks {
        if let Some(stats) = view.soft.cluster.stats.disks.get(&disk.disk_id) {
            disk.free_bytes = stats.said.free_bytes;
            disk.fragments = stats.said.fragments;
            disk.queue_len = stats.said.queue_len;
            disk.verified_ns = stats.said.verified_ns;
        }
    }
    Ok(map)
}

/// Changes of nodes, disks and classes since `known_version`, and the groups `pg_ids` whatever their age.
///
/// # Errors
/// The database fails, or a group does not exist.
pub fn map_since(
    db: &Db,
    map_version: u64,
    caches: &Caches,
    known_version: u64,
    pg_ids: impl IntoIterator<Item = u64>,
) -> Result<ClusterMap> {
    let mut map = ClusterMap { version: map_version, ..ClusterMap::default() };
    // A newer map came from a manager whose last entries were never acknowledged.
    let known_version = if known_version > map_version { 0 } else { known_version };
    if known_version != map_version {
        add_changed(db, known_version, &mut map)?;
    }
    for pg_id in BTreeSet::from_iter(pg_ids) {
        map.pgs.push(caches.pg(db, pg_id)?.info());
    }
    Ok(map)
}

fn add_changed(db: &Db, known: u64, map: &mut ClusterMap) -> Result<()> {
    let nodes: BTreeSet<u64> = db.all(
        "SELECT node_id FROM nodes WHERE map_version > ?1 UNION SELECT node_id FROM disks WHERE map_version > ?1",
        args![known],
    )?;
    if !nodes.is_empty() {
        let disks = rows::disks(db)?;
        let fresh: BTreeSet<u64> = db.all("SELECT disk_id FROM disks WHERE map_version > ?1", args![known])?;
        for node in rows::nodes(db)?.iter().filter(|n| nodes.contains(&n.node_id)) {
            map.nodes.push(rows::node_to_wire(node, &disks));
        }
        map.disks.extend(
            disks.iter().filter(|d| fresh.contains(&d.disk_id)).map(|d| rows::disk_to_wire(d, DiskInfo::default())),
        );
    }
    map.classes = cache::classes(db, "WHERE map_version > ?1 ORDER BY class_id", args![known])?;
    Ok(())
}
