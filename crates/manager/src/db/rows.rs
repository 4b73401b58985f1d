//! Reads rows of nodes, disks, groups and members into structs. [`crate::map::tables`] writes them.

use crate::error::{Result, corrupt_row};
use rusqlite::{Connection, OptionalExtension, Row, params};
use tessera_wire::{DiskInfo, Health, NodeInfo, PgInfo, PgMember};

/// A row of `nodes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// Node id.
    pub node_id: u64,
    /// Name.
    pub name: String,
    /// Host label.
    pub host: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// Unix socket or empty.
    pub unix_socket: String,
    /// Metrics address or empty.
    pub metrics_address: String,
    /// Machine of the Unix socket or empty.
    pub machine: String,
    /// Up, down or out.
    pub health: Health,
    /// Time of the last health change, ns since 1970.
    pub health_since_ns: i64,
    /// Incarnation (P11).
    pub incarnation: u64,
}

/// A row of `disks`, with some columns of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRow {
    /// Disk id.
    pub disk_id: u64,
    /// Node that serves it.
    pub node_id: u64,
    /// 16 bytes.
    pub uuid: Vec<u8>,
    /// Directory.
    pub path: String,
    /// Health of the disk itself. `Down`: registered again after it was out, not yet listed.
    pub own_health: Health,
    /// Health of its node.
    pub node_health: Health,
    /// Host label of its node.
    pub host: String,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Greater than 0: the disk needs an inventory before it takes over members.
    pub inventory_wanted: u64,
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

    /// Whether it may take fragments of new chunks.
    pub fn writable(&self) -> bool {
        self.health() == Health::Up
    }

    /// Whether it may take over members: it is up, and holds no unlisted fragments that a delete might still hit (P3).
    pub fn may_take_members(&self) -> bool {
        self.writable() && self.inventory_wanted == 0
    }
}

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
    pub incoming: u64,
    /// New fragments go to `incoming`.
    pub put_to_incoming: bool,
    /// Older acknowledgements do not count (P11).
    pub since_epoch: u64,
    /// The backfill has passed chunk ids up to here.
    pub fill_cursor: u64,
    /// The backfill ends before this chunk id; 0: when no chunk is left.
    pub fill_until: u64,
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

const NODE_COLUMNS: &str =
    "node_id, name, host, address, unix_socket, metrics_address, health, health_since_ns, incarnation, machine";
const DISK_COLUMNS: &str = "d.disk_id, d.node_id, d.uuid, d.path, d.health, n.health, n.host, d.capacity_bytes, \
     d.inventory_wanted FROM disks d JOIN nodes n ON n.node_id = d.node_id";
const MEMBER_COLUMNS: &str =
    "pg_id, position, disk_id, incoming_disk_id, put_to_incoming, since_epoch, fill_cursor, fill_until";

/// An unsigned column; ids and sizes stay far below 2^63 (schema.sql).
pub fn unsigned(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|_| {
        let column = row.as_ref().column_name(index).unwrap_or("?");
        corrupt_row(format!("column {column}"), format!("{value} is negative"))
    })
}

fn health(row: &Row<'_>, index: usize) -> rusqlite::Result<Health> {
    row.get::<_, i32>(index).map(|v| Health::try_from(v).unwrap_or(Health::Unknown))
}

fn node_from(row: &Row<'_>) -> rusqlite::Result<NodeRow> {
    Ok(NodeRow {
        node_id: unsigned(row, 0)?,
        name: row.get(1)?,
        host: row.get(2)?,
        address: row.get(3)?,
        unix_socket: row.get(4)?,
        metrics_address: row.get(5)?,
        health: health(row, 6)?,
        health_since_ns: row.get(7)?,
        incarnation: unsigned(row, 8)?,
        machine: row.get(9)?,
    })
}

fn disk_from(row: &Row<'_>) -> rusqlite::Result<DiskRow> {
    Ok(DiskRow {
        disk_id: unsigned(row, 0)?,
        node_id: unsigned(row, 1)?,
        uuid: row.get(2)?,
        path: row.get(3)?,
        own_health: health(row, 4)?,
        node_health: health(row, 5)?,
        host: row.get(6)?,
        capacity_bytes: unsigned(row, 7)?,
        inventory_wanted: unsigned(row, 8)?,
    })
}

fn member_from(row: &Row<'_>) -> rusqlite::Result<Member> {
    let member = Member {
        pg_id: unsigned(row, 0)?,
        position: row.get(1)?,
        disk_id: unsigned(row, 2)?,
        incoming: unsigned(row, 3)?,
        put_to_incoming: row.get(4)?,
        since_epoch: unsigned(row, 5)?,
        fill_cursor: unsigned(row, 6)?,
        fill_until: unsigned(row, 7)?,
    };
    match member.inconsistency() {
        None => Ok(member),
        Some(why) => Err(corrupt_row(format!("pg_members, row ({}, {})", member.pg_id, member.position), why)),
    }
}

fn list<T>(
    conn: &Connection,
    sql: &str,
    args: impl rusqlite::Params,
    from: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    conn.prepare_cached(sql)?.query_map(args, from)?.collect()
}

/// All nodes, by id.
pub fn nodes(conn: &Connection) -> rusqlite::Result<Vec<NodeRow>> {
    list(conn, &format!("SELECT {NODE_COLUMNS} FROM nodes ORDER BY node_id"), [], node_from)
}

/// A node.
pub fn node(conn: &Connection, node_id: u64) -> rusqlite::Result<Option<NodeRow>> {
    let sql = format!("SELECT {NODE_COLUMNS} FROM nodes WHERE node_id = ?1");
    conn.prepare_cached(&sql)?.query_row([node_id as i64], node_from).optional()
}

/// All disks, by id.
pub fn disks(conn: &Connection) -> rusqlite::Result<Vec<DiskRow>> {
    list(conn, &format!("SELECT {DISK_COLUMNS} ORDER BY d.disk_id"), [], disk_from)
}

/// Disks of a node, by id.
pub fn disks_of(conn: &Connection, node_id: u64) -> rusqlite::Result<Vec<DiskRow>> {
    let sql = format!("SELECT {DISK_COLUMNS} WHERE d.node_id = ?1 ORDER BY d.disk_id");
    list(conn, &sql, [node_id as i64], disk_from)
}

/// A disk.
pub fn disk(conn: &Connection, disk_id: u64) -> rusqlite::Result<Option<DiskRow>> {
    let sql = format!("SELECT {DISK_COLUMNS} WHERE d.disk_id = ?1");
    conn.prepare_cached(&sql)?.query_row([disk_id as i64], disk_from).optional()
}

/// A disk by the uuid in its `tessera-disk` file.
pub fn disk_by_uuid(conn: &Connection, uuid: &[u8]) -> rusqlite::Result<Option<DiskRow>> {
    let sql = format!("SELECT {DISK_COLUMNS} WHERE d.uuid = ?1");
    conn.prepare_cached(&sql)?.query_row([uuid], disk_from).optional()
}

/// Members of a group, in order of position.
pub fn members(conn: &Connection, pg_id: u64) -> rusqlite::Result<Vec<Member>> {
    let sql = format!("SELECT {MEMBER_COLUMNS} FROM pg_members WHERE pg_id = ?1 ORDER BY position");
    list(conn, &sql, [pg_id as i64], member_from)
}

/// One member.
pub fn member(conn: &Connection, pg_id: u64, position: u32) -> rusqlite::Result<Option<Member>> {
    let sql = format!("SELECT {MEMBER_COLUMNS} FROM pg_members WHERE pg_id = ?1 AND position = ?2");
    conn.prepare_cached(&sql)?.query_row(params![pg_id as i64, position], member_from).optional()
}

/// Members that a disk holds, by group.
pub fn members_on(conn: &Connection, disk_id: u64) -> rusqlite::Result<Vec<Member>> {
    let sql = format!("SELECT {MEMBER_COLUMNS} FROM pg_members WHERE disk_id = ?1 ORDER BY pg_id, position");
    list(conn, &sql, [disk_id as i64], member_from)
}

/// Members whose incoming disk is this one, by group.
pub fn members_incoming(conn: &Connection, disk_id: u64) -> rusqlite::Result<Vec<Member>> {
    let sql = format!(
        "SELECT {MEMBER_COLUMNS} FROM pg_members WHERE incoming_disk_id = ?1 AND incoming_disk_id != 0 \
         ORDER BY pg_id, position"
    );
    list(conn, &sql, [disk_id as i64], member_from)
}

/// All members that are being backfilled, by group.
pub fn members_backfilling(conn: &Connection) -> rusqlite::Result<Vec<Member>> {
    let sql = format!("SELECT {MEMBER_COLUMNS} FROM pg_members WHERE incoming_disk_id != 0 ORDER BY pg_id, position");
    list(conn, &sql, [], member_from)
}

/// All members of all groups of a width (0: of any), by group and position.
pub fn all_members(conn: &Connection, width: u32) -> rusqlite::Result<Vec<Member>> {
    match width {
        0 => list(conn, &format!("SELECT {MEMBER_COLUMNS} FROM pg_members ORDER BY pg_id, position"), [], member_from),
        _ => {
            let sql = format!(
                "SELECT {MEMBER_COLUMNS} FROM pg_members WHERE pg_id IN (SELECT pg_id FROM pgs WHERE width = ?1) \
                 ORDER BY pg_id, position"
            );
            list(conn, &sql, [width], member_from)
        }
    }
}

/// Epoch of a group; `None` if the id is unknown.
pub fn epoch(conn: &Connection, pg_id: u64) -> rusqlite::Result<Option<u64>> {
    conn.prepare_cached("SELECT epoch FROM pgs WHERE pg_id = ?1")?
        .query_row([pg_id as i64], |row| unsigned(row, 0))
        .optional()
}

/// A group as sent on the wire; `None` if the id is unknown.
pub fn pg_info(conn: &Connection, pg_id: u64) -> rusqlite::Result<Option<PgInfo>> {
    let Some(epoch) = epoch(conn, pg_id)? else { return Ok(None) };
    let members = members(conn, pg_id)?.iter().map(Member::to_wire).collect();
    Ok(Some(PgInfo { pg_id, epoch, members }))
}

/// A node as sent on the wire. If all its disks drain (or are drained), so does the node.
pub fn node_to_wire(node: &NodeRow, disks: &[DiskRow]) -> NodeInfo {
    let own: Vec<Health> = disks.iter().filter(|d| d.node_id == node.node_id).map(|d| d.own_health).collect();
    let all = |of: &[Health]| !own.is_empty() && own.iter().all(|h| of.contains(h));
    let health = match node.health {
        Health::Up if all(&[Health::Drained]) => Health::Drained,
        Health::Up if all(&[Health::Draining, Health::Drained]) => Health::Draining,
        other => other,
    };
    NodeInfo {
        node_id: node.node_id,
        name: node.name.clone(),
        host: node.host.clone(),
        address: node.address.clone(),
        unix_socket: node.unix_socket.clone(),
        health: health as i32,
        incarnation: node.incarnation,
        metrics_address: node.metrics_address.clone(),
        machine: node.machine.clone(),
    }
}

/// A disk as sent on the wire. The caller fills in its stats (free space, fragments, queue).
pub fn disk_to_wire(disk: &DiskRow) -> DiskInfo {
    DiskInfo {
        disk_id: disk.disk_id,
        node_id: disk.node_id,
        uuid: disk.uuid.clone(),
        health: disk.health() as i32,
        capacity_bytes: disk.capacity_bytes,
        path: disk.path.clone(),
        ..DiskInfo::default()
    }
}

/// The disk `disk_id`.
///
/// # Errors
/// `NotFound` if it does not exist.
pub fn need_disk(conn: &Connection, disk_id: u64) -> Result<DiskRow> {
    match disk(conn, disk_id)? {
        Some(disk) => Ok(disk),
        None => crate::error::refuse(
            tessera_wire::Code::NotFound,
            format!("there is no disk {disk_id}; `tessera node list` shows all"),
        ),
    }
}
