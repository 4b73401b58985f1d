//! Reads rows of nodes, disks, groups and members into structs. [`crate::map::tables`] writes them.

use crate::db::Db;
use crate::db::sql::{TableRow, args, row};
use crate::error::{Failure, Result, corrupt_row};
use std::collections::BTreeMap;
use tessera_wire::{ChunkInfo, Code, DiskInfo, Health, NodeInfo, PgMember};

row! { for ChunkInfo { chunk_id, hash, len_bytes, class_id, pg_id } }
row! { for NodeInfo { node_id, name, host, address, unix_socket, metrics_address, machine, health, incarnation } }

row! {
    /// A row of `disks`, with some columns of its node.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DiskRow {
        /// Disk id.
        pub disk_id: u64 = "d.disk_id",
        /// Node that serves it.
        pub node_id: u64 = "d.node_id",
        /// 16 bytes.
        pub uuid: Vec<u8>,
        /// Directory.
        pub path: String,
        /// Health of the disk itself. `Down`: registered again after it was out, not yet listed.
        pub own_health: Health = "d.health",
        /// Health of its node.
        pub node_health: Health = "n.health",
        /// Host label of its node.
        pub host: String,
        /// Bytes.
        pub capacity_bytes: u64,
        /// Greater than 0: the disk needs an inventory before it takes over members.
        pub inventory_wanted: u64,
        /// 1: what it holds is not known since a restore, until its inventory ends.
        pub unlisted: u64,
        /// Incarnation of its node when it was last listed. Another one: the node's daemon has restarted since.
        pub listed_incarnation: u64,
        /// Key of its node's receipts.
        pub receipt_key: Vec<u8>,
    }
}

impl DiskRow {
    /// Health of disk and node together.
    pub fn health(&self) -> Health {
        match (self.own_health, self.node_health) {
            (Health::Drained, _) => Health::Drained,
            (Health::Out, _) | (_, Health::Out) => Health::Out,
            (Health::Down, _) | (_, Health::Down) => Health::Down,
            (own, _) => own,
        }
    }

    /// Whether its fragments can be read now.
    pub fn readable(&self) -> bool {
        matches!(self.health(), Health::Up | Health::Draining)
    }

    /// Whether the disk and its node are up.
    pub fn writable(&self) -> bool {
        self.health() == Health::Up
    }

    /// Whether it may take over members: it is up, and holds no unlisted fragments that a delete might still hit (P3).
    pub fn may_take_members(&self) -> bool {
        self.writable() && self.inventory_wanted == 0
    }
}

row! {
    /// A row of `pg_members`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Member {
        /// Group.
        pub pg_id: u64,
        /// Fragment number.
        pub position: u32,
        /// Disk that holds the fragments.
        pub disk_id: u64,
        /// Disk being backfilled; 0: none.
        pub incoming: u64 = "incoming_disk_id",
        /// New fragments go to `incoming`.
        pub put_to_incoming: bool,
        /// Older acknowledgements do not count (P11).
        pub since_epoch: u64,
        /// The backfill has passed chunk ids up to here.
        pub fill_cursor: u64,
        /// The backfill ends before this chunk id; 0: when no chunk is left.
        pub fill_until: u64,
    }
}

impl Member {
    /// The violated invariant of the row, if any. Checked before a row is written and after it is read.
    pub fn inconsistency(&self) -> Option<&'static str> {
        let at_rest = self.incoming == 0;
        match self {
            m if m.pg_id == 0 || m.disk_id == 0 => Some("it names no group or no disk"),
            m if m.incoming == m.disk_id => Some("its incoming disk is the one it leaves"),
            m if m.since_epoch == 0 => Some("epochs begin at 1"),
            m if at_rest && m.put_to_incoming => Some("puts go to an incoming disk, and there is none"),
            m if at_rest && (m.fill_cursor, m.fill_until) != (0, 0) => {
                Some("nothing is backfilled, yet there is a cursor")
            }
            _ => None,
        }
    }

    /// The backfill ends before this chunk id.
    pub fn fill_end(&self) -> u64 {
        if self.fill_until == 0 { i64::MAX as u64 } else { self.fill_until }
    }

    /// Disk that takes new fragments.
    pub fn put_disk(&self) -> u64 {
        if self.put_to_incoming { self.incoming } else { self.disk_id }
    }

    /// The disk that serves fragment `position` of `chunk_id`, missing rows aside. A lost member: the incoming disk once the
    /// backfill has passed the chunk, or if the chunk was put there. Otherwise the old disk.
    pub fn serving_disk(&self, chunk_id: u64) -> u64 {
        let filled = self.incoming != 0
            && self.put_to_incoming
            && (chunk_id <= self.fill_cursor || (self.fill_until != 0 && chunk_id >= self.fill_until));
        if filled { self.incoming } else { self.disk_id }
    }

    /// The member as sent on the wire.
    pub fn to_wire(&self) -> PgMember {
        PgMember {
            disk_id: self.disk_id,
            incoming_disk_id: self.incoming,
            since_epoch: self.since_epoch,
            put_to_incoming: self.put_to_incoming,
        }
    }
}

row! {
    /// A row of `missing_fragments`: a fragment that is not on the disk that should hold it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Missing {
        /// Chunk.
        pub chunk_id: u64,
        /// Position in the group.
        pub fragment: u32,
        /// 0: the disk that readers use lacks it; 1: only the incoming disk of a moving member does.
        pub incoming: u8,
        /// Group of the chunk.
        pub pg_id: u64,
    }
}

/// A missing fragment: (chunk, fragment, 1 if only the incoming disk lacks it).
pub type MissingKey = (u64, u32, u8);
/// A place in the order of missing fragments: (group, fragment, chunk, incoming).
pub type MissingCursor = (u64, u32, u64, u8);

impl Missing {
    /// The disk of the member that lacks the fragment.
    pub fn target(&self, member: &Member) -> u64 {
        if self.incoming == 1 { member.incoming } else { member.put_disk() }
    }

    /// What identifies the row.
    pub fn key(&self) -> MissingKey {
        (self.chunk_id, self.fragment, self.incoming)
    }
}

const DISKS: &str = "FROM disks d JOIN nodes n ON n.node_id = d.node_id";

/// Members, in order of group and position.
fn list_members(db: &Db, which: &str, args: impl rusqlite::Params) -> rusqlite::Result<Vec<Member>> {
    let members: Vec<Member> =
        db.all(&Member::select(&format!("FROM pg_members {which} ORDER BY pg_id, position")), args)?;
    for member in &members {
        if let Some(why) = member.inconsistency() {
            return Err(corrupt_row(format!("pg_members, row ({}, {})", member.pg_id, member.position), why));
        }
    }
    Ok(members)
}

/// All nodes, by id.
///
/// # Errors
/// SQLite fails.
pub fn nodes(db: &Db) -> rusqlite::Result<Vec<NodeInfo>> {
    db.all(&NodeInfo::select("FROM nodes ORDER BY node_id"), [])
}

/// A node.
///
/// # Errors
/// SQLite fails.
pub fn node(db: &Db, node_id: u64) -> rusqlite::Result<Option<NodeInfo>> {
    db.first(&NodeInfo::select("FROM nodes WHERE node_id = ?1"), args![node_id])
}

/// Key of a node's receipts; empty if the node is new.
///
/// # Errors
/// SQLite fails.
pub fn receipt_key(db: &Db, node_id: u64) -> rusqlite::Result<Vec<u8>> {
    Ok(db.first("SELECT receipt_key FROM nodes WHERE node_id = ?1", args![node_id])?.unwrap_or_default())
}

/// All disks, by id.
///
/// # Errors
/// SQLite fails.
pub fn disks(db: &Db) -> rusqlite::Result<Vec<DiskRow>> {
    db.all(&DiskRow::select(&format!("{DISKS} ORDER BY d.disk_id")), [])
}

/// Disks of a node, by id.
///
/// # Errors
/// SQLite fails.
pub fn disks_of(db: &Db, node_id: u64) -> rusqlite::Result<Vec<DiskRow>> {
    db.all(&DiskRow::select(&format!("{DISKS} WHERE d.node_id = ?1 ORDER BY d.disk_id")), args![node_id])
}

/// A disk.
///
/// # Errors
/// SQLite fails.
pub fn disk(db: &Db, disk_id: u64) -> rusqlite::Result<Option<DiskRow>> {
    db.first(&DiskRow::select(&format!("{DISKS} WHERE d.disk_id = ?1")), args![disk_id])
}

/// A disk by the uuid in its `tessera-disk` file.
///
/// # Errors
/// SQLite fails.
pub fn disk_by_uuid(db: &Db, uuid: &[u8]) -> rusqlite::Result<Option<DiskRow>> {
    db.first(&DiskRow::select(&format!("{DISKS} WHERE d.uuid = ?1")), args![uuid])
}

/// Members of a group, in order of position.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn members(db: &Db, pg_id: u64) -> rusqlite::Result<Vec<Member>> {
    list_members(db, "WHERE pg_id = ?1", args![pg_id])
}

/// One member.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn member(db: &Db, pg_id: u64, position: u32) -> rusqlite::Result<Option<Member>> {
    Ok(list_members(db, "WHERE pg_id = ?1 AND position = ?2", args![pg_id, position])?.pop())
}

/// Members that a disk holds, by group.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn members_on(db: &Db, disk_id: u64) -> rusqlite::Result<Vec<Member>> {
    list_members(db, "WHERE disk_id = ?1", args![disk_id])
}

/// Members whose incoming disk is this one, by group.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn members_incoming(db: &Db, disk_id: u64) -> rusqlite::Result<Vec<Member>> {
    list_members(db, "WHERE incoming_disk_id = ?1 AND incoming_disk_id != 0", args![disk_id])
}

/// Whether no member is on the disk or moves to it.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn is_unused(db: &Db, disk_id: u64) -> rusqlite::Result<bool> {
    Ok(members_on(db, disk_id)?.is_empty() && members_incoming(db, disk_id)?.is_empty())
}

/// All members that are being backfilled, by group.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn members_backfilling(db: &Db) -> rusqlite::Result<Vec<Member>> {
    list_members(db, "WHERE incoming_disk_id != 0", [])
}

/// The groups of a width (0: of any), with their members by position.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn groups(db: &Db, width: u32) -> rusqlite::Result<BTreeMap<u64, Vec<Member>>> {
    Ok(match width {
        0 => by_group(list_members(db, "", [])?),
        _ => by_group(list_members(db, "WHERE pg_id IN (SELECT pg_id FROM pgs WHERE width = ?1)", args![width])?),
    })
}

/// As [`groups`], but only those that take new chunks.
///
/// # Errors
/// SQLite fails, or a row is damaged.
pub fn open_groups(db: &Db, width: u32) -> rusqlite::Result<BTreeMap<u64, Vec<Member>>> {
    let which = "WHERE pg_id IN (SELECT pg_id FROM pgs WHERE open = 1 AND width = ?1)";
    Ok(by_group(list_members(db, which, args![width])?))
}

fn by_group(members: Vec<Member>) -> BTreeMap<u64, Vec<Member>> {
    let mut groups: BTreeMap<u64, Vec<Member>> = BTreeMap::new();
    members.into_iter().for_each(|m| groups.entry(m.pg_id).or_default().push(m));
    groups
}

/// A node as sent on the wire. If all its disks drain (or are drained), so does the node.
pub fn node_to_wire(node: &NodeInfo, disks: &[DiskRow]) -> NodeInfo {
    let own: Vec<Health> = disks.iter().filter(|d| d.node_id == node.node_id).map(|d| d.own_health).collect();
    let all = |of: &[Health]| !own.is_empty() && own.iter().all(|h| of.contains(h));
    let health = match node.health() {
        Health::Up if all(&[Health::Drained]) => Health::Drained,
        Health::Up if all(&[Health::Draining, Health::Drained]) => Health::Draining,
        other => other,
    };
    NodeInfo { health: health as i32, ..node.clone() }
}

/// A disk as sent on the wire; `said`: what its node reported (free space, fragments, queue).
pub fn disk_to_wire(disk: &DiskRow, said: DiskInfo) -> DiskInfo {
    DiskInfo {
        disk_id: disk.disk_id,
        node_id: disk.node_id,
        uuid: disk.uuid.clone(),
        health: disk.health() as i32,
        capacity_bytes: disk.capacity_bytes,
        path: disk.path.clone(),
        ..said
    }
}

/// The disk `disk_id`.
///
/// # Errors
/// `NotFound` if it does not exist.
pub fn need_disk(db: &Db, disk_id: u64) -> Result<DiskRow> {
    let text = || format!("there is no disk {disk_id}; `tessera node list` shows all");
    disk(db, disk_id)?.ok_or_else(|| Failure::refused(Code::NotFound, text()))
}
