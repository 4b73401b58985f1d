//! Read-through caches of the rows that nearly every command reads: placement groups and classes (and, in
//! [`crate::db::node_map`], nodes and disks).
//!
//! A command that changes rows of `pgs` or `pg_members` calls [`Caches::forget_pg`]. After a refused or rolled-back
//! command, the core discards the rows that the command may have cached.

use crate::db::Db;
use crate::db::node_map::NodeMapCache;
use crate::db::sql::{TableRow, args, row};
use crate::error::{Result, corrupt_row, refuse};
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
        match classes(db, "WHERE class_id = ?1", args![class_id])?.pop() {
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
        let id: Option<u32> = db.first("SELECT class_id FROM classes WHERE spec = ?1", args![spec])?;
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

/// All classes, for callers without a cache.
pub fn all_classes(db: &Db) -> rusqlite::Result<BTreeMap<u32, ClassInfo>> {
    Ok(classes(db, "", [])?.into_iter().map(|class| (class.class_id, class)).collect())
}

/// The classes that the clause `which` selects.
pub(crate) fn classes(db: &Db, which: &str, args: impl rusqlite::Params) -> rusqlite::Result<Vec<ClassInfo>> {
    let rows: Vec<ClassRow> = db.all(&ClassRow::select(&format!("FROM classes {which}")), args)?;
    let class = |row: ClassRow| {
        let ClassRow { class_id, spec, k, m, code, matrix, word_bits, alignment_bytes } = row;
        let class = ClassInfo { class_id, spec, k, m, code, matrix, ..ClassInfo::default() };
        match class.code == XOR {
            true => ClassInfo { word_bits, alignment_bytes, packet_bytes: alignment_bytes / word_bits.max(1), ..class },
            false => class,
        }
    };
    Ok(rows.into_iter().map(class).collect())
}

row! {
    struct ClassRow {
        class_id: u32,
        spec: String,
        k: u32,
        m: u32,
        code: String,
        matrix: String,
        word_bits: u32,
        alignment_bytes: u32,
    }
}

fn load_pg(db: &Db, pg_id: u64) -> rusqlite::Result<Option<Pg>> {
    let head: Option<(u64, bool, u32)> =
        db.first("SELECT epoch, open, width FROM pgs WHERE pg_id = ?1", args![pg_id])?;
    let Some((epoch, open, width)) = head else { return Ok(None) };
    let rows: Vec<MemberRow> = db.all(
        &MemberRow::select(
            "FROM pg_members m
             LEFT JOIN disks d ON d.disk_id = m.disk_id LEFT JOIN nodes dn ON dn.node_id = d.node_id
             LEFT JOIN disks i ON i.disk_id = m.incoming_disk_id LEFT JOIN nodes inn ON inn.node_id = i.node_id
             WHERE m.pg_id = ?1 ORDER BY m.position",
        ),
        args![pg_id],
    )?;
    let member = |row: MemberRow| {
        let MemberRow { disk_id, incoming_disk_id, put_to_incoming, since_epoch, fill_cursor, .. } = row;
        let takes_puts = if put_to_incoming { [row.incoming, row.incoming_node] } else { [row.disk, row.disk_node] };
        Member {
            wire: PgMember { disk_id, incoming_disk_id, put_to_incoming, since_epoch },
            fill_cursor,
            in_place: [row.disk, row.disk_node].iter().all(|h| !matches!(h, Health::Out | Health::Unknown)),
            puttable: takes_puts.iter().all(|h| matches!(h, Health::Up | Health::Draining)),
        }
    };
    let members: Vec<Member> = rows.into_iter().map(member).collect();
    let damaged = |why: String| corrupt_row(format!("pgs, row {pg_id}"), why);
    if members.len() != width as usize {
        return Err(damaged(format!("{} members, its width is {width}", members.len())));
    }
    if let Some(member) = members.iter().find(|m| m.wire.since_epoch > epoch || m.wire.since_epoch == 0) {
        return Err(damaged(format!("at epoch {epoch}, a member counts since {}", member.wire.since_epoch)));
    }
    Ok(Some(Pg { pg_id, epoch, open, members }))
}

row! {
    struct MemberRow {
        disk_id: u64 = "m.disk_id",
        incoming_disk_id: u64,
        put_to_incoming: bool,
        since_epoch: u64,
        fill_cursor: u64,
        disk: Health = "ifnull(d.health, 0)",
        disk_node: Health = "ifnull(dn.health, 0)",
        incoming: Health = "ifnull(i.health, 0)",
        incoming_node: Health = "ifnull(inn.health, 0)",
    }
}
