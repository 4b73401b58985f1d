//! Read-through caches of the rows that nearly every command reads: placement groups and classes (and, in
//! [`crate::db::node_map`], nodes and disks).
//!
//! A command that changes rows of `pgs` or `pg_members` calls [`Caches::forget_pg`]. After a refused or rolled-back
//! command, the core discards the rows that the command may have cached.

use crate::db::Db;
use crate::db::node_map::NodeMapCache;
use crate::error::{Result, corrupt_row, refuse};
use rusqlite::{Connection, OptionalExtension};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tessera_stripe::XOR;
use tessera_wire::{ClassInfo, Code, Health, PgInfo, PgMember};

/// A member of a group, with the manager's own state of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The member as sent in maps.
    pub wire: PgMember,
    /// The backfill of the incoming disk has passed chunk ids up to this one.
    pub fill_cursor: u64,
    /// Fragments on `wire.disk_id` count: neither that disk nor its node is out.
    pub in_place: bool,
    /// The disk that takes puts is up, and so is its node.
    pub puttable: bool,
}

/// A placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct Pg {
    /// Id.
    pub pg_id: u64,
    /// Grows with each change of a member.
    pub epoch: u64,
    /// Takes new chunks.
    pub open: bool,
    /// Members in fragment order.
    pub members: Vec<Member>,
}

impl Pg {
    /// The group as sent in maps.
    pub fn info(&self) -> PgInfo {
        PgInfo { pg_id: self.pg_id, epoch: self.epoch, members: self.members.iter().map(|m| m.wire).collect() }
    }

    /// Whether no member is lost: committed chunks without missing rows are durable.
    pub fn is_in_place(&self) -> bool {
        self.members.iter().all(|m| m.in_place && !m.wire.put_to_incoming)
    }

    /// Whether every fragment can be put now.
    pub fn is_puttable(&self) -> bool {
        self.members.iter().all(|m| m.puttable)
    }
}

/// The caches.
#[derive(Default)]
pub struct Caches {
    pgs: RefCell<HashMap<u64, Arc<Pg>>>,
    classes: RefCell<HashMap<u32, Arc<ClassInfo>>>,
    specs: RefCell<HashMap<String, u32>>,
    pub(crate) node_map: NodeMapCache,
    dirty: Cell<bool>,
}

impl Caches {
    /// The group `pg_id`.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn pg(&self, db: &Db, pg_id: u64) -> Result<Arc<Pg>> {
        if let Some(pg) = self.pgs.borrow().get(&pg_id) {
            return Ok(pg.clone());
        }
        match load_pg(db, pg_id)? {
            Some(pg) => {
                let pg = Arc::new(pg);
                self.pgs.borrow_mut().insert(pg_id, pg.clone());
                Ok(pg)
            }
            None => refuse(Code::NotFound, format!("there is no placement group {pg_id}")),
        }
    }

    /// The class `class_id`.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn class(&self, db: &Db, class_id: u32) -> Result<Arc<ClassInfo>> {
        if let Some(class) = self.classes.borrow().get(&class_id) {
            return Ok(class.clone());
        }
        let class = db
            .stmt(&format!("SELECT {CLASS_COLUMNS} FROM classes WHERE class_id = ?1"))?
            .query_row([class_id], read_class)
            .optional()?;
        match class {
            Some(class) => {
                let class = Arc::new(class);
                self.specs.borrow_mut().insert(class.spec.clone(), class_id);
                self.classes.borrow_mut().insert(class_id, class.clone());
                Ok(class)
            }
            None => refuse(Code::NotFound, format!("there is no redundancy class {class_id}")),
        }
    }

    /// The class with this canonical text, if it has a row.
    pub fn class_of_spec(&self, db: &Db, spec: &str) -> Result<Option<Arc<ClassInfo>>> {
        if let Some(&id) = self.specs.borrow().get(spec) {
            return self.class(db, id).map(Some);
        }
        let id = db.stmt("SELECT class_id FROM classes WHERE spec = ?1")?.query_row([spec], |r| r.get(0)).optional()?;
        id.map(|id| self.class(db, id)).transpose()
    }

    /// Forgets a group whose rows the running command changed.
    pub fn forget_pg(&self, pg_id: u64) {
        self.dirty.set(true);
        self.pgs.borrow_mut().remove(&pg_id);
        self.node_map.forget_backfilling();
    }

    /// Forgets nodes and disks: the running command changed columns of their rows that groups do not depend on.
    pub fn forget_node_map(&self) {
        self.dirty.set(true);
        self.node_map.forget();
    }

    /// Forgets everything: the running command changed rows of nodes, disks or classes, or of many groups.
    pub fn forget_all(&self) {
        self.dirty.set(true);
        self.pgs.borrow_mut().clear();
        self.classes.borrow_mut().clear();
        self.specs.borrow_mut().clear();
        self.node_map.forget();
        self.node_map.forget_backfilling();
    }

    /// Ends a command; `undone` if its changes were rolled back.
    pub(crate) fn end_command(&self, undone: bool) {
        if undone && self.dirty.get() {
            self.forget_all();
        }
        self.dirty.set(false);
    }
}

/// The columns that [`read_class`] reads.
pub const CLASS_COLUMNS: &str = "class_id, spec, k, m, code, matrix, word_bits, alignment_bytes";

/// All classes, for callers without a cache.
pub fn all_classes(conn: &Connection) -> rusqlite::Result<BTreeMap<u32, ClassInfo>> {
    conn.prepare_cached(&format!("SELECT {CLASS_COLUMNS} FROM classes"))?
        .query_map([], |row| read_class(row).map(|class| (class.class_id, class)))?
        .collect()
}

/// Reads [`CLASS_COLUMNS`] of a row of `classes`.
pub fn read_class(row: &rusqlite::Row) -> rusqlite::Result<ClassInfo> {
    let class = ClassInfo {
        class_id: row.get(0)?,
        spec: row.get(1)?,
        k: row.get(2)?,
        m: row.get(3)?,
        code: row.get(4)?,
        matrix: row.get(5)?,
        ..ClassInfo::default()
    };
    if class.code != XOR {
        return Ok(class);
    }
    let (word_bits, alignment_bytes): (u32, u32) = (row.get(6)?, row.get(7)?);
    Ok(ClassInfo { word_bits, alignment_bytes, packet_bytes: alignment_bytes / word_bits.max(1), ..class })
}

fn load_pg(db: &Db, pg_id: u64) -> rusqlite::Result<Option<Pg>> {
    let head = db
        .stmt("SELECT epoch, open, width FROM pgs WHERE pg_id = ?1")?
        .query_row([pg_id as i64], |r| Ok((r.get::<_, i64>(0)? as u64, r.get::<_, bool>(1)?, r.get::<_, u32>(2)?)))
        .optional()?;
    let Some((epoch, open, width)) = head else { return Ok(None) };
    let mut members = db.stmt(
        "SELECT m.disk_id, m.incoming_disk_id, m.put_to_incoming, m.since_epoch, m.fill_cursor,
                d.health, dn.health, i.health, inn.health
         FROM pg_members m
         LEFT JOIN disks d ON d.disk_id = m.disk_id LEFT JOIN nodes dn ON dn.node_id = d.node_id
         LEFT JOIN disks i ON i.disk_id = m.incoming_disk_id LEFT JOIN nodes inn ON inn.node_id = i.node_id
         WHERE m.pg_id = ?1 ORDER BY m.position",
    )?;
    let members = members
        .query_map([pg_id as i64], |r| {
            let health = |disk: usize| -> rusqlite::Result<[i32; 2]> {
                Ok([r.get::<_, Option<i32>>(disk)?.unwrap_or(0), r.get::<_, Option<i32>>(disk + 1)?.unwrap_or(0)])
            };
            let (disk, incoming) = (health(5)?, health(7)?);
            let wire = PgMember {
                disk_id: r.get::<_, i64>(0)? as u64,
                incoming_disk_id: r.get::<_, i64>(1)? as u64,
                put_to_incoming: r.get(2)?,
                since_epoch: r.get::<_, i64>(3)? as u64,
            };
            let takes_puts = if wire.put_to_incoming { incoming } else { disk };
            Ok(Member {
                fill_cursor: r.get::<_, i64>(4)? as u64,
                in_place: disk.iter().all(|&h| h != Health::Out as i32 && h != 0),
                puttable: takes_puts.iter().all(|&h| h == Health::Up as i32 || h == Health::Draining as i32),
                wire,
            })
        })?
        .collect::<Result<Vec<_>, _>>()?;
    let damaged = |why: String| corrupt_row(format!("pgs, row {pg_id}"), why);
    if members.len() != width as usize {
        return Err(damaged(format!("{} members, its width is {width}", members.len())));
    }
    if let Some(member) = members.iter().find(|m| m.wire.since_epoch > epoch || m.wire.since_epoch == 0) {
        return Err(damaged(format!("at epoch {epoch}, a member counts since {}", member.wire.since_epoch)));
    }
    Ok(Some(Pg { pg_id, epoch, open, members }))
}
