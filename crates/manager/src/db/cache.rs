//! Read-through caches of the rows that nearly every command, heartbeat and tick reads: placement groups, classes, nodes,
//! disks, and members being backfilled.
//!
//! They hold rows, not soft state ([`crate::soft::stats`]). [`crate::map::tables`] writes these rows and calls
//! [`Caches::forget_pg`], [`Caches::forget_node_map`] or [`Caches::forget_all`] in the same command. After a refused or
//! rolled-back command, the core discards the rows that the command may have cached.

use crate::db::Db;
use crate::db::node_map::NodeMap;
use crate::db::rows::{self, Member};
use crate::db::sql::{TableRow, args, row};
use crate::error::{Failure, Result, corrupt_row, refuse};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tessera_stripe::XOR;
use tessera_wire::{ClassInfo, Code, Health, PgInfo};

/// A placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct Pg {
    /// Id.
    pub pg_id: u64,
    /// Grows with each change of a member.
    pub epoch: u64,
    /// Members in fragment order.
    pub members: Vec<Member>,
    /// No member is lost or unlisted: committed chunks without missing rows are durable.
    pub in_place: bool,
    /// Every fragment can be put now.
    pub puttable: bool,
}

impl Pg {
    /// The group as sent in maps.
    pub fn info(&self) -> PgInfo {
        PgInfo { pg_id: self.pg_id, epoch: self.epoch, members: self.members.iter().map(Member::to_wire).collect() }
    }
}

/// Rows that are read together; `None` until they are needed.
type Slot<T> = RefCell<Option<Arc<T>>>;

/// The caches.
#[derive(Default)]
pub struct Caches {
    pgs: RefCell<HashMap<u64, Arc<Pg>>>,
    classes: Slot<BTreeMap<u32, Arc<ClassInfo>>>,
    node_map: Slot<NodeMap>,
    backfilling: Slot<Vec<Member>>,
    dirty: Cell<bool>,
}

fn remembered<T>(slot: &Slot<T>, load: impl FnOnce() -> rusqlite::Result<T>) -> rusqlite::Result<Arc<T>> {
    if let Some(known) = &*slot.borrow() {
        return Ok(known.clone());
    }
    let fresh = Arc::new(load()?);
    *slot.borrow_mut() = Some(fresh.clone());
    Ok(fresh)
}

impl Caches {
    /// The group `pg_id`.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; its rows are damaged, or the database fails.
    pub fn pg(&self, db: &Db, pg_id: u64) -> Result<Arc<Pg>> {
        if let Some(pg) = self.pgs.borrow().get(&pg_id) {
            return Ok(pg.clone());
        }
        let Some(pg) = load_pg(db, &*self.node_map(db)?, pg_id)? else {
            return refuse(Code::NotFound, format!("there is no placement group {pg_id}"));
        };
        Ok(self.pgs.borrow_mut().entry(pg_id).or_insert(Arc::new(pg)).clone())
    }

    /// All classes, by id.
    ///
    /// # Errors
    /// The database fails.
    pub fn classes(&self, db: &Db) -> rusqlite::Result<Arc<BTreeMap<u32, Arc<ClassInfo>>>> {
        let load = || Ok(all_classes(db)?.into_iter().map(|(id, class)| (id, Arc::new(class))).collect());
        remembered(&self.classes, load)
    }

    /// The class `class_id`.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, or the database fails.
    pub fn class(&self, db: &Db, class_id: u32) -> Result<Arc<ClassInfo>> {
        let text = || format!("there is no redundancy class {class_id}");
        self.classes(db)?.get(&class_id).cloned().ok_or_else(|| Failure::refused(Code::NotFound, text()))
    }

    /// The class with this canonical text, if it has a row.
    ///
    /// # Errors
    /// The database fails.
    pub fn class_of_spec(&self, db: &Db, spec: &str) -> Result<Option<Arc<ClassInfo>>> {
        Ok(self.classes(db)?.values().find(|class| class.spec == spec).cloned())
    }

    /// All nodes and disks.
    ///
    /// # Errors
    /// The database fails.
    pub fn node_map(&self, db: &Db) -> rusqlite::Result<Arc<NodeMap>> {
        remembered(&self.node_map, || NodeMap::load(db))
    }

    /// Members that are being backfilled, by group and position.
    ///
    /// # Errors
    /// The database fails, or a row is damaged.
    pub fn backfilling(&self, db: &Db) -> rusqlite::Result<Arc<Vec<Member>>> {
        remembered(&self.backfilling, || rows::members_backfilling(db))
    }

    /// Forgets a group whose rows the running command changed.
    pub fn forget_pg(&self, pg_id: u64) {
        self.dirty.set(true);
        self.pgs.borrow_mut().remove(&pg_id);
        self.backfilling.take();
    }

    /// Forgets nodes and disks: the running command changed columns of their rows that groups do not depend on.
    pub fn forget_node_map(&self) {
        self.dirty.set(true);
        self.node_map.take();
    }

    /// Forgets everything: the running command changed rows of nodes, disks or classes, or of many groups.
    pub fn forget_all(&self) {
        self.forget_node_map();
        self.pgs.borrow_mut().clear();
        self.classes.take();
        self.backfilling.take();
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
///
/// # Errors
/// The database fails.
pub fn all_classes(db: &Db) -> rusqlite::Result<BTreeMap<u32, ClassInfo>> {
    Ok(classes(db, "", [])?.into_iter().map(|class| (class.class_id, class)).collect())
}

/// The classes that the clause `which` selects.
pub(crate) fn classes(db: &Db, which: &str, args: impl rusqlite::Params) -> rusqlite::Result<Vec<ClassInfo>> {
    let rows: Vec<ClassInfo> = db.all(&ClassInfo::select(&format!("FROM classes {which}")), args)?;
    let class = |class: ClassInfo| match class.code == XOR {
        true => ClassInfo { packet_bytes: class.alignment_bytes / class.word_bits.max(1), ..class },
        false => ClassInfo { word_bits: 0, alignment_bytes: 0, ..class },
    };
    Ok(rows.into_iter().map(class).collect())
}

row! { for ClassInfo { class_id, spec, k, m, code, matrix, word_bits, alignment_bytes } }

fn load_pg(db: &Db, node_map: &NodeMap, pg_id: u64) -> rusqlite::Result<Option<Pg>> {
    let Some((epoch, width)) = db.first("SELECT epoch, width FROM pgs WHERE pg_id = ?1", args![pg_id])? else {
        return Ok(None);
    };
    let members = rows::members(db, pg_id)?;
    let damaged = |why: String| Err(corrupt_row(format!("pgs, row {pg_id}"), why));
    if members.len() as u64 != width {
        return damaged(format!("{} members, its width is {width}", members.len()));
    }
    if let Some(member) = members.iter().find(|m| m.since_epoch > epoch) {
        return damaged(format!("at epoch {epoch}, a member counts since {}", member.since_epoch));
    }
    // Health of a disk and of its node.
    let health = |id: u64| node_map.disks.get(&id).map_or([Health::Unknown; 2], |d| [d.own_health, d.node_health]);
    let counts = |id: u64| health(id).iter().all(|h| !matches!(h, Health::Out | Health::Unknown));
    let takes_puts = |id: u64| health(id).iter().all(|h| matches!(h, Health::Up | Health::Draining));
    let is_listed = |id: u64| node_map.disks.get(&id).is_some_and(|disk| disk.unlisted == 0);
    let in_place = members.iter().all(|m| !m.put_to_incoming && counts(m.disk_id) && is_listed(m.disk_id));
    let puttable = members.iter().all(|m| takes_puts(m.put_disk()));
    Ok(Some(Pg { pg_id, epoch, members, in_place, puttable }))
}
