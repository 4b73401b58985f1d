//! Classes and placement groups: when they are opened and closed, what room there is, what maps say of them.
//!
//! Placement is choosing a group ([`crate::placement::select`]); everything else (repair, balance) works on groups. They are laid out by
//! [`crate::placement::layout`].

use crate::config::Config;
use crate::db::Db;
use crate::db::cache::{CLASS_COLUMNS, Caches};
use crate::db::meta::draw;
use crate::db::rows::{self, DiskRow, unsigned};
use crate::error::{Result, invalid};
use crate::log::internal::{NewGroup, SetGroups};
use crate::nodes::stats::ClusterStats;
use crate::placement::layout::{Layout, LayoutDisk, open_groups};
use crate::placement::select::load_open;
use crate::state::{Ctx, View};
use rusqlite::{Connection, params};
use std::collections::BTreeSet;
use std::sync::Arc;
use tessera_policy::{SCHEMES, Scheme, human_size};
use tessera_stripe::{XOR, describe};
use tessera_wire::meta::ClusterMap;
use tessera_wire::{ClassInfo, Code, Error};

/// A disk is full for new chunks when less than 1/64 of it, or this many bytes if that is less, is free:
/// compaction and repair need room to work in.
const RESERVE_CAP_BYTES: u64 = 1 << 30;

/// Most groups created by one command: so many fit a command log entry with room to spare.
const GROUPS_PER_COMMAND: usize = 256;

/// The class of a canonical or hand-written spec: `none`, `replica:3`, `ec:4+2`, `raid6:8+2`, `copy+ec:4+2`. Its row is created when the
/// class is first used, and groups of its width with it; refused when the cluster has too few hosts for it.
pub fn class_for(ctx: &mut Ctx<'_>, spec: &str) -> Result<Arc<ClassInfo>> {
    if let Some(class) = ctx.caches.class_of_spec(ctx.db, spec)? {
        return Ok(class);
    }
    let scheme: Scheme = match spec.parse() {
        Ok(scheme) => scheme,
        Err(why) => return invalid(format!("redundancy {spec:?}: {why}; allowed: {SCHEMES}")),
    };
    let canonical = scheme.to_string();
    if canonical != spec {
        return class_for(ctx, &canonical);
    }
    let width = scheme.fragments();
    if open_group_count(ctx.db.conn(), width)? == 0 {
        first_groups(ctx, &canonical, width)?;
    }
    let class_id = draw(&mut ctx.meta.next_class) as u32;
    let class = describe(class_id, scheme);
    // These columns are only read where the code is XOR.
    let (word_bits, alignment_bytes) = match class.code.as_str() {
        XOR => (class.word_bits, class.alignment_bytes),
        _ => (8, 1),
    };
    let version = ctx.next_map_version();
    ctx.db
        .stmt(
            "INSERT INTO classes (class_id, spec, k, m, code, matrix, word_bits, alignment_bytes, map_version)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            class_id,
            class.spec,
            class.k,
            class.m,
            class.code,
            class.matrix,
            word_bits,
            alignment_bytes,
            version as i64
        ])?;
    ctx.caches.forget_all();
    ctx.class(class_id)
}

/// Creates the first groups of a width. Which ones is a decision on the tape: a later release may lay them out
/// differently, and replaying an old log must still give the old groups.
fn first_groups(ctx: &mut Ctx<'_>, spec: &str, width: u32) -> Result<()> {
    let mut plan: Vec<Vec<u64>> = Vec::new();
    let count = ctx.record(|ctx| {
        let disks = rows::disks(ctx.db.conn())?;
        plan = propose_groups(&fit_for_chunks(&disks, &ctx.soft.cluster.stats), width, &[], GROUPS_PER_COMMAND);
        match plan.len() {
            0 => Err(too_few_hosts(ctx.db.conn(), spec, width)?.into()),
            n => Ok(n as u64),
        }
    })?;
    for i in 0..count as usize {
        let mut disks = Vec::with_capacity(width as usize);
        for j in 0..width as usize {
            disks.push(ctx.record(|_| Ok(plan.get(i).and_then(|group| group.get(j)).copied().unwrap_or(0)))?);
        }
        create_group(ctx, &disks)?;
    }
    Ok(())
}

/// The disks that take new chunks now: writable, and not full.
fn fit_for_chunks(disks: &[DiskRow], stats: &ClusterStats) -> Vec<LayoutDisk> {
    let fit = |d: &&DiskRow| d.writable() && has_room(stats, d.disk_id, d.capacity_bytes, 0);
    let disk = |d: &DiskRow| LayoutDisk { id: d.disk_id, host: d.host.clone(), weight: d.capacity_bytes };
    disks.iter().filter(fit).map(disk).collect()
}

/// Whether a disk has room for a fragment, and for what compaction and repair need beside it.
pub(crate) fn has_room(stats: &ClusterStats, disk_id: u64, capacity_bytes: u64, fragment_bytes: u64) -> bool {
    let reserve = (capacity_bytes / 64).min(RESERVE_CAP_BYTES);
    stats.available_bytes(disk_id, capacity_bytes) >= reserve.saturating_add(fragment_bytes)
}

/// Groups to open so that there are enough among the disks that take new chunks now.
fn propose_groups(fit: &[LayoutDisk], width: u32, usable: &[Vec<u64>], limit: usize) -> Vec<Vec<u64>> {
    let wanted = open_groups(fit.len(), width as usize).saturating_sub(usable.len()).min(limit);
    let mut layout = Layout::new(fit, width as usize, usable);
    (0..wanted).map_while(|_| layout.propose()).collect()
}

fn create_group(ctx: &mut Ctx<'_>, disks: &[u64]) -> Result<()> {
    let pg_id = draw(&mut ctx.meta.next_pg);
    let version = ctx.next_map_version() as i64;
    ctx.db
        .stmt("INSERT INTO pgs (pg_id, width, epoch, open, map_version) VALUES (?1, ?2, 1, 1, ?3)")?
        .execute(params![pg_id as i64, disks.len() as i64, version])?;
    let mut insert =
        ctx.db.stmt("INSERT INTO pg_members (pg_id, position, disk_id, since_epoch) VALUES (?1, ?2, ?3, 1)")?;
    for (position, &disk) in disks.iter().enumerate() {
        insert.execute(params![pg_id as i64, position as i64, disk as i64])?;
    }
    Ok(())
}

/// Opens and closes groups as the command says.
pub fn set_groups(ctx: &mut Ctx<'_>, command: &SetGroups) -> Result<()> {
    for group in &command.create {
        create_group(ctx, &group.disk_ids)?;
    }
    for &pg_id in &command.close {
        let version = ctx.next_map_version() as i64;
        ctx.db
            .stmt("UPDATE pgs SET open = 0, map_version = ?2 WHERE pg_id = ?1")?
            .execute(params![pg_id as i64, version])?;
        ctx.caches.forget_pg(pg_id);
    }
    Ok(())
}

fn open_group_count(conn: &Connection, width: u32) -> rusqlite::Result<u64> {
    conn.prepare_cached("SELECT count(*) FROM pgs WHERE open = 1 AND width = ?1")?
        .query_row([width], |row| unsigned(row, 0))
}

/// Groups to close because they are full and to open because too few are usable, for every width in use.
pub fn groups_due(view: &View<'_>) -> Result<Option<SetGroups>> {
    let conn = view.db.conn();
    let close: Vec<u64> = conn
        .prepare_cached("SELECT pg_id FROM pgs WHERE open = 1 AND bytes >= ?1 LIMIT 1000")?
        .query_map([view.config.pg_cap_bytes.min(i64::MAX as u64) as i64], |row| unsigned(row, 0))?
        .collect::<Result<_, _>>()?;
    let widths: Vec<u32> = conn
        .prepare_cached("SELECT DISTINCT k + m FROM classes ORDER BY 1")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let stats = &view.soft.cluster.stats;
    let fit = fit_for_chunks(&rows::disks(conn)?, stats);
    let mut create = Vec::new();
    for width in widths {
        let usable: Vec<Vec<u64>> = load_open(conn, width)?
            .into_iter()
            .filter(|g| g.unable == 0 && g.has_room(stats, |_| 0) && !close.contains(&g.pg_id))
            .map(|g| g.disks.iter().map(|d| d.0).collect())
            .collect();
        // Half of the wished-for number will do: a node that is down for a minute is no reason to open many more.
        // A disk that no usable group uses (it joined) is.
        let idle = fit.iter().any(|d| !usable.iter().any(|g| g.contains(&d.id)));
        let room = GROUPS_PER_COMMAND - create.len().min(GROUPS_PER_COMMAND);
        let mut proposed = Vec::new();
        if usable.len() * 2 < open_groups(fit.len(), width as usize) || idle {
            proposed = propose_groups(&fit, width, &usable, room);
            if proposed.is_empty() && idle {
                proposed = one_more_each(&fit, width, &usable, room);
            }
        }
        anchored(&fit, width, &usable, &view.soft.cluster.selector.asked_hosts(width), &mut proposed);
        create.extend(proposed.into_iter().map(|disk_ids| NewGroup { disk_ids }));
    }
    Ok((!create.is_empty() || !close.is_empty()).then_some(SetGroups { create, close }))
}

/// A group that begins on each of `hosts`, where there is none.
fn anchored(fit: &[LayoutDisk], width: u32, usable: &[Vec<u64>], hosts: &[String], proposed: &mut Vec<Vec<u64>>) {
    for host in hosts {
        let on_host = |id: &u64| fit.iter().any(|d| d.id == *id && d.host == *host);
        let begins = |group: &Vec<u64>| group.first().is_some_and(on_host);
        if proposed.len() >= GROUPS_PER_COMMAND || usable.iter().chain(proposed.iter()).any(begins) {
            continue;
        }
        let counted: Vec<Vec<u64>> = usable.iter().chain(proposed.iter()).cloned().collect();
        proposed.extend(Layout::new(fit, width as usize, &counted).propose_at(host));
    }
}

/// Groups until every disk that takes chunks is in one, though there are enough: for disks that joined.
fn one_more_each(fit: &[LayoutDisk], width: u32, usable: &[Vec<u64>], limit: usize) -> Vec<Vec<u64>> {
    let mut idle: BTreeSet<u64> = fit.iter().map(|d| d.id).collect();
    let mut layout = Layout::new(fit, width as usize, usable);
    usable.iter().flatten().for_each(|d| {
        idle.remove(d);
    });
    let mut groups = Vec::new();
    while !idle.is_empty() && groups.len() < limit {
        let Some(group) = layout.propose() else { break };
        let before = idle.len();
        group.iter().for_each(|d| {
            idle.remove(d);
        });
        if idle.len() == before {
            break;
        }
        groups.push(group);
    }
    groups
}

/// The error that says which hosts are there, which are wanting, and what to do.
pub fn too_few_hosts(conn: &Connection, spec: &str, width: u32) -> rusqlite::Result<Error> {
    let disks = rows::disks(conn)?;
    let up: BTreeSet<&str> = disks.iter().filter(|d| d.writable()).map(|d| d.host.as_str()).collect();
    let all: BTreeSet<&str> = disks.iter().map(|d| d.host.as_str()).collect();
    let away: Vec<&str> = all.difference(&up).copied().collect();
    let way_out = match away.is_empty() {
        true => "add nodes on further hosts, or choose a class with fewer fragments".to_string(),
        false => {
            let shown = away.iter().take(8).copied().collect::<Vec<_>>().join(", ");
            format!("start or return {shown} (not up, or draining), add nodes, or choose a class with fewer fragments")
        }
    };
    Ok(Error::new(
        Code::TooFewHosts,
        format!("{spec} needs {width} hosts, {} {} up; {way_out}", up.len(), if up.len() == 1 { "is" } else { "are" }),
    ))
}

/// Space of the disks that take new chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Disks.
    pub disks: usize,
    /// Their capacity.
    pub capacity_bytes: u64,
    /// What may still be put on them.
    pub free_bytes: u64,
}

impl Space {
    fn of<'a>(disks: impl Iterator<Item = &'a DiskRow>, stats: &ClusterStats) -> Space {
        disks.filter(|d| d.writable()).fold(Space::default(), |s, d| Space {
            disks: s.disks + 1,
            capacity_bytes: s.capacity_bytes.saturating_add(d.capacity_bytes),
            free_bytes: s.free_bytes.saturating_add(
                stats
                    .available_bytes(d.disk_id, d.capacity_bytes)
                    .saturating_sub((d.capacity_bytes / 64).min(RESERVE_CAP_BYTES)),
            ),
        })
    }
}

/// Room for data of a class, in bytes before coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// On all disks that take new chunks.
    pub bytes: u64,
    /// Of it reserved by (other) sessions.
    pub reserved_bytes: u64,
}

/// Room for data stored by `scheme`, of which `reserved_bytes` are reserved. Soft state decides: commands ask through `Ctx::record`.
pub fn room((db, caches): (&Db, &Caches), stats: &ClusterStats, scheme: Scheme, reserved_bytes: u64) -> Result<Room> {
    let space = Space::of(caches.node_map(db)?.disks.values(), stats);
    let (data, stored) = scheme.expansion();
    let bytes = (u128::from(space.free_bytes) * u128::from(data) / u128::from(stored.max(1))) as u64;
    Ok(Room { bytes, reserved_bytes })
}

impl Room {
    /// What nobody has reserved.
    pub fn unreserved_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.reserved_bytes)
    }

    /// Why `want_bytes` cannot be had.
    pub fn refusal(&self, spec: &str, want_bytes: u64) -> Error {
        Error::new(
            Code::NoSpace,
            format!(
                "no room for {}: as {spec} there is room for {}, of which other sessions have reserved {}; \
                 delete files and run `tessera gc`, or add disks",
                human_size(want_bytes),
                human_size(self.bytes),
                human_size(self.reserved_bytes),
            ),
        )
    }
}

/// What changed of nodes, disks and classes since `known_version`, and the groups `pg_ids` whatever their age.
pub fn map_since(db: &Db, map_version: u64, caches: &Caches, known_version: u64, pg_ids: &[u64]) -> Result<ClusterMap> {
    let mut map = ClusterMap { version: map_version, ..ClusterMap::default() };
    // A map from the future was learnt from a manager whose last entries were never acknowledged.
    let known_version = if known_version > map_version { 0 } else { known_version };
    if known_version != map_version {
        add_changed(db.conn(), known_version, &mut map)?;
    }
    let wanted: BTreeSet<u64> = pg_ids.iter().copied().collect();
    for pg_id in wanted {
        map.pgs.push(caches.pg(db, pg_id)?.info());
    }
    Ok(map)
}

/// Everything that changed since `known_version`, groups too.
pub fn whole_map_since(db: &Db, map_version: u64, caches: &Caches, known_version: u64) -> Result<ClusterMap> {
    let pgs: Vec<u64> = db
        .stmt("SELECT pg_id FROM pgs WHERE map_version > ?1")?
        .query_map([known_version as i64], |row| unsigned(row, 0))?
        .collect::<Result<_, _>>()?;
    map_since(db, map_version, caches, known_version, &pgs)
}

fn add_changed(conn: &Connection, known_version: u64, map: &mut ClusterMap) -> Result<()> {
    let known = known_version as i64;
    let changed = |sql: &str| -> rusqlite::Result<BTreeSet<u64>> {
        conn.prepare_cached(sql)?.query_map([known], |row| unsigned(row, 0))?.collect()
    };
    let nodes = changed(
        "SELECT node_id FROM nodes WHERE map_version > ?1 UNION SELECT node_id FROM disks WHERE map_version > ?1",
    )?;
    if !nodes.is_empty() {
        let disks = rows::disks(conn)?;
        let fresh = changed("SELECT disk_id FROM disks WHERE map_version > ?1")?;
        for node in rows::nodes(conn)?.iter().filter(|n| nodes.contains(&n.node_id)) {
            map.nodes.push(rows::node_to_wire(node, &disks));
        }
        map.disks.extend(disks.iter().filter(|d| fresh.contains(&d.disk_id)).map(rows::disk_to_wire));
    }
    map.classes = conn
        .prepare_cached(&format!("SELECT {CLASS_COLUMNS} FROM classes WHERE map_version > ?1 ORDER BY class_id"))?
        .query_map([known], crate::db::cache::read_class)?
        .collect::<Result<_, _>>()?;
    Ok(())
}

/// Whether the knobs make sense together; the shell refuses to start otherwise (P14).
pub fn check_config(config: &Config) -> Result<(), Error> {
    if config.out_after_ms <= config.node_lease_ms.saturating_add(config.node_lease_ms / 4) {
        return Err(Error::new(
            Code::Invalid,
            format!(
                "out-after {} ms must exceed the node lease of {} ms by a quarter: else a node could be given up while it still \
                 acknowledges (P11); raise out-after or lower the lease",
                config.out_after_ms, config.node_lease_ms
            ),
        ));
    }
    Ok(())
}
