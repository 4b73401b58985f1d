//! Writes the tables of the cluster map: `nodes`, `disks`, `pgs`, `pg_members` and `classes`.
//!
//! Every change of a node, disk, group or class goes through this file, which raises the map version of the row. So
//! [`crate::map::delta::map_since`] never misses a change.

use crate::ctx::{Ctx, GroupBytes};
use crate::db::Db;
use crate::db::meta::draw;
use crate::db::rows::{DiskRow, Member};
use crate::db::sql::{TableRow, args};
use crate::error::{Result, corrupt_row};
use crate::internal::SetInventory;
use rusqlite::params_from_iter;
use std::collections::{BTreeMap, BTreeSet};
use tessera_policy::Scheme;
use tessera_stripe::{KEY_BYTES, XOR, describe};
use tessera_wire::meta::RESTORE_JUMP;
use tessera_wire::{DiskInfo, Health, NodeInfo};

/// Changes a disk's own health.
///
/// # Errors
/// SQLite fails.
pub fn set_disk_health(ctx: &mut Ctx<'_>, disk_id: u64, health: Health) -> rusqlite::Result<()> {
    assert!(disk_id != 0, "disks count from 1");
    assert!(health != Health::Unknown, "disk {disk_id}: every state of a disk is known");
    ctx.caches.forget_all();
    let version = ctx.next_map_version();
    ctx.db.exec(
        "UPDATE disks SET health = ?2, health_since_ns = ?3, map_version = ?4 WHERE disk_id = ?1 AND health != ?2",
        args![disk_id, health, ctx.now_ns, version],
    )
}

/// Changes a node's health. The map version of its disks rises with it: their effective health changed.
///
/// # Errors
/// SQLite fails.
pub fn set_node_health(ctx: &mut Ctx<'_>, node: &NodeInfo, health: Health) -> rusqlite::Result<()> {
    assert!(node.health() != Health::Out, "node {}: only registering ends Out", node.node_id);
    assert!(node.health() != health, "node {}: is {health:?} already", node.node_id);
    let node_id = node.node_id;
    ctx.caches.forget_all();
    let version = ctx.next_map_version();
    ctx.db.run(
        "UPDATE nodes SET health = ?2, health_since_ns = ?3, map_version = ?4 WHERE node_id = ?1",
        args![node_id, health, ctx.now_ns, version],
    )?;
    ctx.db.exec("UPDATE disks SET map_version = ?2 WHERE node_id = ?1", args![node_id, version])
}

/// Requests a new inventory of the disk; one already under way does not satisfy the request.
///
/// # Errors
/// SQLite fails.
pub fn want_inventory(ctx: &Ctx<'_>, disk_id: u64) -> rusqlite::Result<()> {
    assert!(disk_id != 0, "disks count from 1");
    ctx.caches.forget_node_map();
    ctx.db.exec("UPDATE disks SET inventory_wanted = inventory_wanted + 1 WHERE disk_id = ?1", args![disk_id])
}

/// Raises a group's epoch and returns the new one. The caller then changes a member.
///
/// # Errors
/// SQLite fails, the group has no row, or its epoch is corrupt.
pub fn raise_epoch(ctx: &mut Ctx<'_>, pg_id: u64) -> rusqlite::Result<u64> {
    assert!(pg_id != 0, "groups count from 1");
    ctx.caches.forget_pg(pg_id);
    let version = ctx.next_map_version();
    let sql = "UPDATE pgs SET epoch = epoch + 1, map_version = ?2 WHERE pg_id = ?1 RETURNING epoch";
    let epoch: u64 = ctx.db.one(sql, args![pg_id, version])?;
    match epoch {
        2.. => Ok(epoch),
        _ => Err(corrupt_row(format!("pgs, row {pg_id}"), "epochs begin at 1")),
    }
}

/// Writes a member back; the caller has raised the epoch.
///
/// # Errors
/// SQLite fails.
pub fn save_member(ctx: &Ctx<'_>, m: &Member) -> rusqlite::Result<()> {
    assert!(m.inconsistency().is_none(), "{m:?}: {:?}", m.inconsistency());
    assert!(m.fill_cursor < ctx.meta.next_chunk, "{m:?}: the cursor has passed chunks that were never drawn");
    assert!(m.fill_until <= ctx.meta.next_chunk, "{m:?}: the backfill ends behind the last chunk");
    ctx.caches.forget_pg(m.pg_id);
    let saved = ctx.db.run(&Member::update("UPDATE pg_members", 2), params_from_iter(m.values()))?;
    assert!(saved <= 1, "{m:?}: group and position are the key");
    Ok(())
}

/// Adds the bytes that one batch assigned to groups; what it removed is less than 0.
///
/// # Errors
/// SQLite fails.
pub fn add_bytes(db: &Db, sums: &BTreeMap<u64, GroupBytes>) -> rusqlite::Result<()> {
    let sql = "UPDATE pgs SET bytes = bytes + ?2, first_bytes = first_bytes + ?3, other_bytes = other_bytes + ?4
               WHERE pg_id = ?1";
    for (&pg_id, bytes) in sums {
        db.run(sql, args![pg_id, bytes.chunks, bytes.first, bytes.other])?;
    }
    Ok(())
}

/// Raises all epochs, versions, incarnations and counters of ids beyond any value that a lost manager may have told others after the last
/// entry that is left (P11). Fragments may have been deleted or moved since: no chunk answers a dedup query before the inventories of
/// its disks, and no receipt of before counts (P1).
///
/// # Errors
/// The database fails.
pub fn jump_past_lost_entries(ctx: &mut Ctx<'_>) -> Result<()> {
    // What these named in entries that are lost, nodes, clients and mounts may still hold.
    let meta = &mut *ctx.meta;
    let of_files = [&mut meta.next_ino, &mut meta.next_version, &mut meta.next_chunk, &mut meta.next_session];
    let of_map = [&mut meta.next_pg, &mut meta.next_node, &mut meta.next_disk, &mut meta.next_class];
    let others = [&mut meta.map_version, &mut meta.next_incarnation, &mut meta.next_content];
    of_files.into_iter().chain(of_map).chain(others).for_each(|counter| *counter += RESTORE_JUMP);
    meta.leases_granted = 1;
    let version = ctx.next_map_version();
    ctx.db.run("UPDATE pgs SET epoch = epoch + ?1, map_version = ?2", args![RESTORE_JUMP, version])?;
    let since = "UPDATE pg_members SET since_epoch = (SELECT epoch FROM pgs WHERE pgs.pg_id = pg_members.pg_id)";
    ctx.db.run(since, [])?;
    ctx.db.run("UPDATE nodes SET map_version = ?1", args![version])?;
    ctx.db.run("UPDATE classes SET map_version = ?1", args![version])?;
    let unlisted = "UPDATE disks SET inventory_wanted = inventory_wanted + 1, unlisted = 1, map_version = ?1";
    ctx.db.run(unlisted, args![version])?;
    ctx.caches.forget_all();
    Ok(())
}

/// Creates an open group of these disks, in order of position.
///
/// # Errors
/// The database fails.
pub fn insert_group(ctx: &mut Ctx<'_>, disks: &[u64]) -> Result<()> {
    assert!(!disks.is_empty(), "a group needs members");
    assert!(!disks.contains(&0), "group of {disks:?}: 0 is no disk");
    assert_eq!(disks.iter().collect::<BTreeSet<_>>().len(), disks.len(), "group of {disks:?}: a disk is listed twice");
    let pg_id = draw(&mut ctx.meta.next_pg);
    let version = ctx.next_map_version();
    let sql = "INSERT INTO pgs (pg_id, width, epoch, open, map_version) VALUES (?1, ?2, 1, 1, ?3)";
    ctx.db.run(sql, args![pg_id, disks.len(), version])?;
    for (position, &disk) in disks.iter().enumerate() {
        let sql = "INSERT INTO pg_members (pg_id, position, disk_id, since_epoch) VALUES (?1, ?2, ?3, 1)";
        ctx.db.run(sql, args![pg_id, position, disk])?;
    }
    Ok(())
}

/// Closes a group: it takes no new chunks from now on.
///
/// # Errors
/// The database fails.
pub fn close_group(ctx: &mut Ctx<'_>, pg_id: u64) -> Result<()> {
    let version = ctx.next_map_version();
    ctx.db.run("UPDATE pgs SET open = 0, map_version = ?2 WHERE pg_id = ?1", args![pg_id, version])?;
    ctx.caches.forget_pg(pg_id);
    Ok(())
}

/// Creates the class of a scheme; returns its id.
///
/// # Errors
/// The database fails.
pub fn insert_class(ctx: &mut Ctx<'_>, scheme: &Scheme) -> Result<u32> {
    let class_id = draw(&mut ctx.meta.next_class) as u32;
    let class = describe(class_id, *scheme);
    // Only XOR classes use these columns.
    let (word_bits, alignment_bytes) = match class.code.as_str() {
        XOR => (class.word_bits, class.alignment_bytes),
        _ => (8, 1),
    };
    assert!(class.k >= 1, "class {scheme}: no fragment is needed to read it");
    assert_eq!(class.k + class.m, scheme.fragments(), "class {scheme}: k + m must be its width");
    let version = ctx.next_map_version();
    ctx.db.run(
        "INSERT INTO classes (class_id, spec, k, m, code, matrix, word_bits, alignment_bytes, map_version)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        args![class_id, class.spec, class.k, class.m, class.code, class.matrix, word_bits, alignment_bytes, version],
    )?;
    ctx.caches.forget_all();
    Ok(class_id)
}

/// Marks a disk's inventory as complete. Returns false if the disk must be listed again.
///
/// # Errors
/// The database fails.
pub fn inventory_done(ctx: &mut Ctx<'_>, command: &SetInventory) -> Result<bool> {
    ctx.caches.forget_all();
    let sql = "UPDATE disks SET inventory_wanted = 0, unlisted = 0, listed_incarnation = ?3
               WHERE disk_id = ?1 AND inventory_wanted = ?2";
    let SetInventory { done_disk_id: disk_id, done_wanted, done_incarnation, .. } = *command;
    let changed = ctx.db.run(sql, args![disk_id, done_wanted, done_incarnation])?;
    assert!(changed <= 1, "disk {disk_id}: ids are unique");
    Ok(changed == 1)
}

/// Inserts or replaces the row of a node that registers; it keeps its first key.
///
/// # Errors
/// The database fails.
pub fn write_node(
    ctx: &mut Ctx<'_>,
    node_id: u64,
    said: &NodeInfo,
    incarnation: u64,
    receipt_key: &[u8],
) -> rusqlite::Result<()> {
    assert_eq!(receipt_key.len(), KEY_BYTES, "the registration was checked");
    ctx.caches.forget_all();
    let version = ctx.next_map_version();
    let NodeInfo { name, host, address, unix_socket, metrics_address, machine, .. } = said;
    let (up, now_ns) = (Health::Up, ctx.now_ns);
    ctx.db.run(
        "INSERT INTO nodes (node_id, name, host, address, unix_socket, metrics_address, health, health_since_ns, incarnation, map_version, machine, receipt_key)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT (node_id) DO UPDATE SET name = ?2, host = ?3, address = ?4, unix_socket = ?5, metrics_address = ?6,
            health_since_ns = CASE WHEN health = ?7 THEN health_since_ns ELSE ?8 END, health = ?7, incarnation = ?9, map_version = ?10, machine = ?11",
        args![
            node_id,
            name,
            host,
            address,
            unix_socket,
            metrics_address,
            up,
            now_ns,
            incarnation,
            version,
            machine,
            receipt_key
        ],
    )?;
    ctx.db.exec("UPDATE disks SET map_version = ?2 WHERE node_id = ?1", args![node_id, version])
}

/// Inserts a new disk of a node (id, incarnation); returns its id.
///
/// # Errors
/// The database fails.
pub fn insert_disk(ctx: &mut Ctx<'_>, node: (u64, u64), said: &DiskInfo) -> Result<u64> {
    assert_eq!(said.uuid.len(), 16, "the registration was checked");
    ctx.caches.forget_all();
    let version = ctx.next_map_version();
    let disk_id = draw(&mut ctx.meta.next_disk);
    let (node_id, incarnation) = node;
    ctx.db.run(
        "INSERT INTO disks (disk_id, node_id, uuid, path, health, health_since_ns, capacity_bytes, listed_incarnation, map_version)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        args![disk_id, node_id, said.uuid, said.path, Health::Up, ctx.now_ns, said.capacity_bytes, incarnation, version],
    )?;
    Ok(disk_id)
}

/// Updates the path and capacity of a known disk.
///
/// # Errors
/// The database fails.
pub fn update_disk(ctx: &mut Ctx<'_>, disk: &DiskRow, said: &DiskInfo) -> rusqlite::Result<()> {
    assert_eq!(disk.uuid, said.uuid, "disk {} was found by its uuid", disk.disk_id);
    ctx.caches.forget_all();
    let version = ctx.next_map_version();
    let sql = "UPDATE disks SET path = ?2, capacity_bytes = ?3, map_version = ?4 WHERE disk_id = ?1";
    ctx.db.exec(sql, args![disk.disk_id, said.path, said.capacity_bytes, version])
}
