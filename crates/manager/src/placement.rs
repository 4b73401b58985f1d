//! Classes, placement groups, and the choice of a group for a new chunk.
//!
//! Placement is choosing a group; everything else (repair, balance) works on groups. Groups are laid out by
//! [`crate::layout`]; here is when they are opened and closed, and which one a chunk goes to: one whose members all
//! take puts, at random with weights by free space and queue length ([`choose_pg`]).

use crate::cache::Caches;
use crate::config::Config;
use crate::db::Db;
use crate::error::{Outcome, invalid};
use crate::figures::Figures;
use crate::internal::{NewGroup, SetGroups};
use crate::layout::{Layout, LayoutDisk, mix, open_groups};
use crate::meta::draw;
use crate::rows::{self, DiskRow, unsigned};
use crate::state::{Ctx, View};
use rusqlite::{Connection, params};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_policy::{Scheme, human_size};
use tessera_wire::meta::ClusterMap;
use tessera_wire::{ClassInfo, Code, Error, Health};

/// A disk is full for new chunks when less than 1/64 of it, or this many bytes if that is less, is free:
/// compaction and repair need room to work in.
const RESERVE_CAP_BYTES: u64 = 1 << 30;

/// Most groups created by one command: so many fit a command log entry with room to spare.
const GROUPS_PER_COMMAND: usize = 256;

/// The open groups and their weights, remembered between choices.
#[derive(Debug, Default)]
pub struct Chooser {
    widths: RefCell<BTreeMap<u32, Choices>>,
    dice: Cell<u64>,
}

#[derive(Debug)]
struct Choices {
    map_version: u64,
    generation: u64,
    groups: Vec<OpenGroup>,
    /// Running sums of the weights of `groups`.
    sums: Vec<f64>,
}

#[derive(Debug)]
struct OpenGroup {
    pg_id: u64,
    /// (disk that takes puts, its capacity) per member.
    disks: Vec<(u64, u64)>,
    /// Members that take no puts now.
    unable: u32,
}

/// The class of a canonical or hand-written spec: `none`, `replica:3`, `ec:4+2`. Its row is created when the
/// class is first used, and groups of its width with it; refused when the cluster has too few hosts for it.
pub fn class_for(ctx: &mut Ctx<'_>, spec: &str) -> Outcome<Arc<ClassInfo>> {
    if let Some(class) = ctx.caches.class_of_spec(ctx.db, spec)? {
        return Ok(class);
    }
    let scheme: Scheme = match spec.parse() {
        Ok(scheme) => scheme,
        Err(why) => return invalid(format!("redundancy {spec:?}: {why}; allowed: none, replica:N, ec:K+M")),
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
    let (code, matrix) = match scheme {
        Scheme::Copies { .. } => ("copy", ""),
        Scheme::Code { .. } => ("rs", "cauchy1"),
    };
    let version = ctx.next_map_version();
    ctx.db
        .stmt(
            "INSERT INTO classes (class_id, spec, k, m, code, matrix, map_version) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![class_id, canonical, scheme.needed(), scheme.losses(), code, matrix, version as i64])?;
    ctx.caches.forget_all();
    ctx.class(class_id)
}

/// Creates the first groups of a width. Which ones is a decision on the tape: a later release may lay them out
/// differently, and replaying an old log must still give the old groups.
fn first_groups(ctx: &mut Ctx<'_>, spec: &str, width: u32) -> Outcome<()> {
    let mut plan: Vec<Vec<u64>> = Vec::new();
    let count = ctx.decide(|ctx| {
        let disks = rows::disks(ctx.db.conn())?;
        plan = propose_groups(&fit_for_chunks(&disks, &ctx.soft.cluster.figures), width, &[], GROUPS_PER_COMMAND);
        match plan.len() {
            0 => Err(too_few_hosts(ctx.db.conn(), spec, width)?.into()),
            n => Ok(n as u64),
        }
    })?;
    for i in 0..count as usize {
        let mut disks = Vec::with_capacity(width as usize);
        for j in 0..width as usize {
            disks.push(ctx.decide(|_| Ok(plan.get(i).and_then(|group| group.get(j)).copied().unwrap_or(0)))?);
        }
        create_group(ctx, &disks)?;
    }
    Ok(())
}

/// The disks that take new chunks now: writable, and not full.
fn fit_for_chunks(disks: &[DiskRow], figures: &Figures) -> Vec<LayoutDisk> {
    let fit = |d: &&DiskRow| d.writable() && has_room(figures, d.disk_id, d.capacity_bytes, 0);
    let disk = |d: &DiskRow| LayoutDisk { id: d.disk_id, host: d.host.clone(), weight: d.capacity_bytes };
    disks.iter().filter(fit).map(disk).collect()
}

/// Whether a disk has room for a fragment, and for what compaction and repair need beside it.
fn has_room(figures: &Figures, disk_id: u64, capacity_bytes: u64, fragment_bytes: u64) -> bool {
    let reserve = (capacity_bytes / 64).min(RESERVE_CAP_BYTES);
    figures.available_bytes(disk_id, capacity_bytes) >= reserve.saturating_add(fragment_bytes)
}

/// Groups to open so that there are enough among the disks that take new chunks now.
fn propose_groups(fit: &[LayoutDisk], width: u32, usable: &[Vec<u64>], limit: usize) -> Vec<Vec<u64>> {
    let wanted = open_groups(fit.len(), width as usize).saturating_sub(usable.len()).min(limit);
    let mut layout = Layout::new(fit, width as usize, usable);
    (0..wanted).map_while(|_| layout.propose()).collect()
}

fn create_group(ctx: &mut Ctx<'_>, disks: &[u64]) -> Outcome<()> {
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
pub fn set_groups(ctx: &mut Ctx<'_>, command: &SetGroups) -> Outcome<()> {
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
pub fn groups_due(view: &View<'_>) -> Outcome<Option<SetGroups>> {
    let conn = view.db.conn();
    let close: Vec<u64> = conn
        .prepare_cached("SELECT pg_id FROM pgs WHERE open = 1 AND bytes >= ?1 LIMIT 1000")?
        .query_map([view.config.pg_cap_bytes.min(i64::MAX as u64) as i64], |row| unsigned(row, 0))?
        .collect::<Result<_, _>>()?;
    let widths: Vec<u32> = conn
        .prepare_cached("SELECT DISTINCT k + m FROM classes ORDER BY 1")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let figures = &view.soft.cluster.figures;
    let fit = fit_for_chunks(&rows::disks(conn)?, figures);
    let mut create = Vec::new();
    for width in widths {
        let usable: Vec<Vec<u64>> = load_open(conn, width)?
            .into_iter()
            .filter(|g| g.unable == 0 && g.has_room(figures, 0) && !close.contains(&g.pg_id))
            .map(|g| g.disks.iter().map(|d| d.0).collect())
            .collect();
        // Half of the wished-for number will do: a node that is down for a minute is no reason to open many more.
        // A disk that no usable group uses (it joined) is.
        let idle = fit.iter().any(|d| !usable.iter().any(|g| g.contains(&d.id)));
        if usable.len() * 2 >= open_groups(fit.len(), width as usize) && !idle {
            continue;
        }
        let room = GROUPS_PER_COMMAND - create.len().min(GROUPS_PER_COMMAND);
        let mut proposed = propose_groups(&fit, width, &usable, room);
        if proposed.is_empty() && idle {
            proposed = one_more_each(&fit, width, &usable, room);
        }
        create.extend(proposed.into_iter().map(|disk_ids| NewGroup { disk_ids }));
    }
    Ok((!create.is_empty() || !close.is_empty()).then_some(SetGroups { create, close }))
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

/// Whether the group's disks have room for fragments of a chunk that was begun there. Soft state decides: commands ask
/// through `Ctx::decide`.
pub fn pg_has_room(ctx: &Ctx<'_>, class: &ClassInfo, len_bytes: u64, pg: &crate::cache::Pg) -> bool {
    let figures = &ctx.soft.cluster.figures;
    let fragment = len_bytes.div_ceil(u64::from(class.k.max(1)));
    pg.members.iter().all(|m| figures.disks.get(&m.wire.put_disk_id()).is_none_or(|d| d.available_bytes() >= fragment))
}

/// Chooses the group for a new chunk of `len_bytes`: open, not among `avoid`, all members able to take puts (with
/// `degraded`, at least k+1 of them). Soft state weighs in: commands ask through `Ctx::decide`.
pub fn choose_pg(ctx: &Ctx<'_>, class: &ClassInfo, len_bytes: u64, avoid: &[u64], degraded: bool) -> Outcome<u64> {
    let chooser = &ctx.soft.cluster.chooser;
    for _ in 0..2 {
        match chooser.choose(ctx, class, len_bytes, avoid, degraded)? {
            Some(pg_id) if ctx.caches.pg(ctx.db, pg_id).is_ok() => return Ok(pg_id),
            // Remembered from a command that was undone after all.
            Some(_) => chooser.widths.borrow_mut().clear(),
            None => break,
        }
    }
    Err(why_none(ctx, class, len_bytes)?.into())
}

impl Chooser {
    fn choose(
        &self,
        ctx: &Ctx<'_>,
        class: &ClassInfo,
        len_bytes: u64,
        avoid: &[u64],
        degraded: bool,
    ) -> Outcome<Option<u64>> {
        let width = class.fragments();
        let figures = &ctx.soft.cluster.figures;
        let mut widths = self.widths.borrow_mut();
        let stale = widths.get(&width).is_none_or(|c| c.map_version != ctx.meta.map_version);
        if stale {
            let groups = load_open(ctx.db.conn(), width)?;
            let choices = Choices { map_version: ctx.meta.map_version, generation: u64::MAX, groups, sums: Vec::new() };
            widths.insert(width, choices);
        }
        let Some(choices) = widths.get_mut(&width) else { return Ok(None) };
        if choices.generation != figures.generation {
            choices.weigh(figures);
            choices.generation = figures.generation;
        }
        let fragment = len_bytes.div_ceil(u64::from(class.k.max(1)));
        let spare = if degraded { class.m.saturating_sub(1) } else { 0 };
        let fits = |g: &OpenGroup, unable: u32| g.unable <= unable && g.has_room(figures, fragment);
        let wanted = |g: &OpenGroup, unable: u32| fits(g, unable) && !avoid.contains(&g.pg_id);
        // Full redundancy first, whatever the policy allows. Better a group that failed this client a moment ago than
        // none: it may have recovered, and P12 wants writes to finish.
        let chosen = choices.roll(self.next(), |g| wanted(g, 0));
        let chosen = chosen.or_else(|| if spare > 0 { choices.roll(self.next(), |g| wanted(g, spare)) } else { None });
        let chosen = chosen.or_else(|| choices.roll(self.next(), |g| fits(g, spare)));
        if let Some(group) = chosen {
            for (disk, _) in &group.disks {
                if let Some(disk) = figures.disks.get(disk) {
                    disk.assign(fragment);
                }
            }
        }
        Ok(chosen.map(|g| g.pg_id))
    }

    fn next(&self) -> u64 {
        self.dice.set(self.dice.get().wrapping_add(1));
        mix(self.dice.get())
    }
}

impl OpenGroup {
    fn has_room(&self, figures: &Figures, fragment: u64) -> bool {
        self.disks.iter().all(|&(disk, capacity)| has_room(figures, disk, capacity, fragment))
    }

    /// As much as its fullest disk has free, less when one of them has a long queue.
    fn weight(&self, figures: &Figures) -> f64 {
        let free = self.disks.iter().map(|&(d, capacity)| figures.available_bytes(d, capacity)).min().unwrap_or(0);
        let queue = self.disks.iter().filter_map(|(d, _)| figures.disks.get(d)).map(|d| d.queue_len).max().unwrap_or(0);
        free as f64 / (1.0 + f64::from(queue) / 8.0)
    }
}

impl Choices {
    fn weigh(&mut self, figures: &Figures) {
        let mut sum = 0.0;
        self.sums.clear();
        for group in &self.groups {
            sum += group.weight(figures).max(1.0);
            self.sums.push(sum);
        }
    }

    /// A group at random by weight among those that fit: a few throws, then the next that fits.
    fn roll(&self, random: u64, fits: impl Fn(&OpenGroup) -> bool) -> Option<&OpenGroup> {
        let total = *self.sums.last()?;
        let mut random = random;
        let mut at = 0;
        for _ in 0..4 {
            let point = (random >> 11) as f64 / (1u64 << 53) as f64 * total;
            at = self.sums.partition_point(|s| *s <= point).min(self.groups.len() - 1);
            if fits(&self.groups[at]) {
                return Some(&self.groups[at]);
            }
            random = mix(random);
        }
        (0..self.groups.len()).map(|i| &self.groups[(at + i) % self.groups.len()]).find(|g| fits(g))
    }
}

/// Open groups of a width with the disks that take their puts. A group with a member that is being moved away
/// is not able: its new chunks would have to move too.
fn load_open(conn: &Connection, width: u32) -> rusqlite::Result<Vec<OpenGroup>> {
    let mut groups: Vec<OpenGroup> = Vec::new();
    let mut query = conn.prepare_cached(
        "SELECT p.pg_id, d.disk_id, d.capacity_bytes, d.health, n.health, m.incoming_disk_id != 0 AND NOT m.put_to_incoming
         FROM pgs p JOIN pg_members m ON m.pg_id = p.pg_id
         JOIN disks d ON d.disk_id = CASE WHEN m.put_to_incoming THEN m.incoming_disk_id ELSE m.disk_id END
         JOIN nodes n ON n.node_id = d.node_id
         WHERE p.open = 1 AND p.width = ?1 ORDER BY p.pg_id, m.position",
    )?;
    let mut rows = query.query([width])?;
    while let Some(row) = rows.next()? {
        let pg_id = unsigned(row, 0)?;
        if groups.last().is_none_or(|g| g.pg_id != pg_id) {
            groups.push(OpenGroup { pg_id, disks: Vec::with_capacity(width as usize), unable: 0 });
        }
        let up = Health::Up as i32;
        let able = row.get::<_, i32>(3)? == up && row.get::<_, i32>(4)? == up && !row.get::<_, bool>(5)?;
        if let Some(group) = groups.last_mut() {
            group.disks.push((unsigned(row, 1)?, unsigned(row, 2)?));
            group.unable += u32::from(!able);
        }
    }
    Ok(groups)
}

/// Why no group could be chosen.
fn why_none(ctx: &Ctx<'_>, class: &ClassInfo, len_bytes: u64) -> Outcome<Error> {
    let conn = ctx.db.conn();
    let disks = rows::disks(conn)?;
    let hosts: BTreeSet<&str> = disks.iter().filter(|d| d.writable()).map(|d| d.host.as_str()).collect();
    if (hosts.len() as u32) < class.fragments() {
        return Ok(too_few_hosts(conn, &class.spec, class.fragments())?);
    }
    let groups = load_open(conn, class.fragments())?;
    let able = groups.iter().filter(|g| g.unable == 0).count();
    if able == 0 {
        return Ok(Error::new(
            Code::Unavailable,
            format!("{}: no open group has all its members up; new ones are being opened, try again", class.spec),
        ));
    }
    let figures = &ctx.soft.cluster.figures;
    let fragment = len_bytes.div_ceil(u64::from(class.k.max(1)));
    let roomy = |d: &&DiskRow| d.writable() && has_room(figures, d.disk_id, d.capacity_bytes, fragment);
    let hosts: BTreeSet<&str> = disks.iter().filter(roomy).map(|d| d.host.as_str()).collect();
    if hosts.len() as u32 >= class.fragments() {
        return Ok(Error::new(
            Code::Unavailable,
            format!("{}: each of {able} open groups has a full disk; new ones are being opened, try again", class.spec),
        ));
    }
    let full: BTreeSet<&str> = disks
        .iter()
        .filter(|d| d.writable() && !roomy(d))
        .map(|d| d.host.as_str())
        .filter(|h| !hosts.contains(h))
        .collect();
    let shown = full.iter().take(8).copied().collect::<Vec<_>>().join(", ");
    Ok(Error::new(
        Code::NoSpace,
        format!(
            "{}: a chunk of {} needs room on {} hosts, {} have it; full: {shown}; \
             delete files and run `tessera gc`, or add disks",
            class.spec,
            human_size(len_bytes),
            class.fragments(),
            hosts.len(),
        ),
    ))
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
    fn of<'a>(disks: impl Iterator<Item = &'a DiskRow>, figures: &Figures) -> Space {
        disks.filter(|d| d.writable()).fold(Space::default(), |s, d| Space {
            disks: s.disks + 1,
            capacity_bytes: s.capacity_bytes.saturating_add(d.capacity_bytes),
            free_bytes: s.free_bytes.saturating_add(
                figures
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

/// Room for a class of `k` and `m`, of which `reserved_bytes` are reserved. Soft state decides: commands ask through `Ctx::decide`.
pub fn room((db, caches): (&Db, &Caches), figures: &Figures, (k, m): (u32, u32), reserved_bytes: u64) -> Outcome<Room> {
    let space = Space::of(caches.roster(db)?.disks.values(), figures);
    let bytes = (u128::from(space.free_bytes) * u128::from(k) / u128::from((k + m).max(1))) as u64;
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
pub fn map_since(
    db: &Db,
    map_version: u64,
    caches: &Caches,
    known_version: u64,
    pg_ids: &[u64],
) -> Outcome<ClusterMap> {
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
pub fn whole_map_since(db: &Db, map_version: u64, caches: &Caches, known_version: u64) -> Outcome<ClusterMap> {
    let pgs: Vec<u64> = db
        .stmt("SELECT pg_id FROM pgs WHERE map_version > ?1")?
        .query_map([known_version as i64], |row| unsigned(row, 0))?
        .collect::<Result<_, _>>()?;
    map_since(db, map_version, caches, known_version, &pgs)
}

fn add_changed(conn: &Connection, known_version: u64, map: &mut ClusterMap) -> Outcome<()> {
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
        .prepare_cached(
            "SELECT class_id, spec, k, m, code, matrix FROM classes WHERE map_version > ?1 ORDER BY class_id",
        )?
        .query_map([known], crate::cache::read_class)?
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
