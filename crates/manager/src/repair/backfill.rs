//! Backfill: a member of a group gets another disk when its own is lost, drains or is too full.
//!
//! A member is in one of three states (ARCHITECTURE.md, "Members"):
//!
//! * *in place*: `incoming` is 0.
//! * *lost*: its disk is out. Puts go to the incoming disk (`put_to_incoming`). The backfill walks the chunks drawn
//!   before the loss (`fill_until`).
//! * *moving*: its disk drains or is too full. Puts and reads stay on the old disk until the incoming disk has every
//!   fragment, so redundancy never falls (P6). A chunk committed behind the cursor gets a missing row for the incoming disk.
//!
//! Every change raises the group's epoch. When the disk that takes puts changes, `since_epoch` rises too, and older
//! acknowledgements no longer count (P11). This module changes the rows and plans moves; [`crate::repair::rebuild`] hands
//! out the work.

use crate::chunks::missing::{self, Cause};
use crate::chunks::{garbage, table};
use crate::ctx::{Ctx, View};
use crate::db::Db;
use crate::db::rows::{self, DiskRow, Member, Missing};
use crate::db::sql::args;
use crate::error::{Result, corrupt_row};
use crate::internal::{AdvanceBackfill, FinishBackfill, FinishBackfills, Move, MoveMembers};
use crate::map::tables;
use crate::placement::layout::{Layout, LayoutDisk};
use crate::placement::room::{Purpose, room_bytes};
use crate::soft::Effect;
use std::collections::{BTreeMap, BTreeSet};
use tessera_failpoint as failpoint;
use tessera_stripe::ClassLayout;
use tessera_wire::Health;

/// Most moves in one command.
const MOVES_PER_COMMAND: usize = 256;
const _: () = assert!(MOVES_PER_COMMAND > 0, "repair must move something");
/// Disks whose loads differ by less than this fraction of the mean count as balanced, because a move costs I/O.
const BALANCE_SLACK: f64 = 0.10;

/// Handles a disk that is out: its members become lost, and backfills onto it are cancelled.
pub fn disk_lost(ctx: &mut Ctx<'_>, disk_id: u64) -> Result<()> {
    for mut m in rows::members_incoming(ctx.db, disk_id)? {
        let epoch = tables::raise_epoch(ctx, m.pg_id)?;
        if m.put_to_incoming {
            m.since_epoch = epoch;
        }
        (m.incoming, m.put_to_incoming, m.fill_cursor, m.fill_until) = (0, false, 0, 0);
        save(ctx, &m)?;
        missing::delete_of_member(ctx, m.pg_id, m.position, 1)?;
    }
    for mut m in rows::members_on(ctx.db, disk_id)? {
        if m.put_to_incoming {
            continue;
        }
        let epoch = tables::raise_epoch(ctx, m.pg_id)?;
        if !failpoint::is_active("manager.stale_epoch_counts") {
            m.since_epoch = epoch;
        }
        if m.incoming != 0 {
            become_lost(ctx, &mut m)?;
        }
        save(ctx, &m)?;
    }
    Ok(())
}

/// Turns a moving member whose disk was lost into a lost member. The fragments on the incoming disk count, and the
/// backfill continues from its cursor.
fn become_lost(ctx: &mut Ctx<'_>, m: &mut Member) -> rusqlite::Result<()> {
    assert!(m.incoming != 0 && !m.put_to_incoming, "{m:?}: does not move");
    m.put_to_incoming = true;
    m.fill_until = ctx.meta.next_chunk;
    missing::incoming_takes_over(ctx, m.pg_id, m.position, m.fill_cursor)
}

/// Writes a member back; its tasks under way are void.
fn save(ctx: &mut Ctx<'_>, m: &Member) -> rusqlite::Result<()> {
    ctx.after_commit(Effect::MemberChanged((m.pg_id, m.position)));
    tables::save_member(ctx, m)
}

/// Applies moves. Skips a move that no longer fits the rows.
pub fn move_members(ctx: &mut Ctx<'_>, command: &MoveMembers) -> Result<()> {
    for change in &command.moves {
        let Some(m) = rows::member(ctx.db, change.pg_id, change.position)? else { continue };
        if m.disk_id != change.disk_id || m.incoming != change.incoming_was || m.incoming == change.incoming {
            continue;
        }
        match change.incoming {
            0 => cancel(ctx, m)?,
            incoming => start(ctx, m, incoming)?,
        }
    }
    Ok(())
}

fn start(ctx: &mut Ctx<'_>, mut m: Member, incoming: u64) -> Result<()> {
    let (Some(new), Some(old)) = (rows::disk(ctx.db, incoming)?, rows::disk(ctx.db, m.disk_id)?) else { return Ok(()) };
    if m.incoming != 0 || !new.may_take_members() || !host_is_free(ctx.db, &m, &new)? {
        return Ok(());
    }
    assert_eq!((m.incoming, m.put_to_incoming), (0, false), "{m:?}: a move begins while another is under way");
    assert_ne!(incoming, m.disk_id, "{m:?}: moves to where it is");
    let epoch = tables::raise_epoch(ctx, m.pg_id)?;
    check_epoch(&m, epoch)?;
    let lost = old.health() == Health::Out;
    (m.incoming, m.put_to_incoming, m.fill_cursor) = (incoming, lost, 0);
    m.fill_until = if lost { ctx.meta.next_chunk } else { 0 };
    if lost && !failpoint::is_active("manager.stale_epoch_counts") {
        m.since_epoch = epoch;
    }
    Ok(save(ctx, &m)?)
}

/// A member's epoch is at most its group's, which has just risen to `epoch`.
fn check_epoch(m: &Member, epoch: u64) -> Result<()> {
    match epoch > m.since_epoch {
        true => Ok(()),
        false => {
            let row = format!("pg_members, row ({}, {})", m.pg_id, m.position);
            Err(corrupt_row(row, format!("since_epoch is {}, the group is at {epoch}", m.since_epoch)).into())
        }
    }
}

/// Whether no other member of the group is on, or moves to, the host of `new` (P6: distinct hosts).
fn host_is_free(db: &Db, m: &Member, new: &DiskRow) -> Result<bool> {
    for other in rows::members(db, m.pg_id)?.iter().filter(|o| o.position != m.position) {
        for disk_id in [other.disk_id, other.incoming] {
            if failpoint::is_active("manager.shared_host") {
                continue;
            }
            if disk_id != 0 && rows::disk(db, disk_id)?.is_some_and(|d| d.host == new.host) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Cancels the move of a member whose old disk still serves.
fn cancel(ctx: &mut Ctx<'_>, mut m: Member) -> Result<()> {
    if m.put_to_incoming {
        return Ok(());
    }
    assert!(m.incoming != 0, "{m:?}: no move to give up");
    tables::raise_epoch(ctx, m.pg_id)?;
    // The inventory removes the backfilled fragments before that disk may take over members again (P3).
    tables::want_inventory(ctx, m.incoming)?;
    (m.incoming, m.fill_cursor, m.fill_until) = (0, 0, 0);
    save(ctx, &m)?;
    Ok(missing::delete_of_member(ctx, m.pg_id, m.position, 1)?)
}

/// Cancels all moves away from a disk whose drain was cancelled.
pub fn cancel_moves_from(ctx: &mut Ctx<'_>, disk_id: u64) -> Result<()> {
    for m in rows::members_on(ctx.db, disk_id)? {
        if m.incoming != 0 {
            cancel(ctx, m)?;
        }
    }
    Ok(())
}

/// Advances the cursor of a backfill. Committed chunks that it passed and that are not in `done` become missing rows: chunks
/// that failed and, for a moving member, chunks committed to the old disk during the batch (P6).
pub fn advance_backfill(ctx: &mut Ctx<'_>, command: &AdvanceBackfill) -> Result<()> {
    let Some(mut m) = rows::member(ctx.db, command.pg_id, command.position)? else { return Ok(()) };
    if m.incoming != command.incoming || m.incoming == 0 || m.fill_cursor != command.from || command.to < command.from {
        return Ok(());
    }
    let done: BTreeSet<u64> = command.done.iter().copied().collect();
    let incoming = u8::from(!m.put_to_incoming);
    let fragment = |chunk_id| Missing { chunk_id, fragment: m.position, incoming, pg_id: m.pg_id };
    done.iter().try_for_each(|&chunk_id| missing::delete_in_group(ctx, fragment(chunk_id)))?;
    let passed: BTreeSet<u64> = ctx.db.all(
        "SELECT chunk_id FROM chunks WHERE pg_id = ?1 AND chunk_id > ?2 AND chunk_id <= ?3 AND chunk_id < ?4 AND state = 2",
        args![m.pg_id, command.from, command.to, m.fill_end()],
    )?;
    // The chunk was collected during its rebuild: delete the fragment (P5).
    for chunk in done.difference(&passed) {
        if table::group_of(ctx.db, *chunk)?.is_none() {
            garbage::order_delete(ctx, m.incoming, *chunk, m.position)?;
        }
    }
    for &chunk_id in passed.difference(&done).filter(|_| !failpoint::is_active("manager.passed_chunks_forgotten")) {
        missing::insert(ctx, fragment(chunk_id), Cause::Passed)?;
    }
    assert!(command.to >= m.fill_cursor, "{m:?}: the cursor moves back to {}", command.to);
    // The cursor is not part of the map, so it raises no epoch.
    m.fill_cursor = command.to;
    Ok(tables::save_member(ctx, &m)?)
}

/// Whether a member's backfill is complete: no committed chunk is ahead of the cursor, and the incoming disk has no
/// missing row.
pub fn is_complete(db: &Db, m: &Member) -> Result<bool> {
    let sql = "SELECT 1 FROM chunks WHERE pg_id = ?1 AND chunk_id > ?2 AND chunk_id < ?3 AND state = 2";
    let ahead = db.any(sql, args![m.pg_id, m.fill_cursor, m.fill_end()])?;
    let sql = "SELECT 1 FROM missing_fragments WHERE pg_id = ?1 AND fragment = ?2 AND incoming = ?3";
    let lacking = db.any(sql, args![m.pg_id, m.position, !m.put_to_incoming])?;
    Ok(!ahead && (!lacking || failpoint::is_active("manager.move_ends_early")))
}

/// Members whose backfill is complete, at most `limit`.
pub fn finished_backfills(view: &View<'_>, limit: usize) -> Result<Vec<FinishBackfill>> {
    let mut through = Vec::new();
    for m in view.caches.backfilling(view.db)?.iter() {
        if through.len() < limit && is_complete(view.db, m)? {
            through.push(FinishBackfill { pg_id: m.pg_id, position: m.position, incoming: m.incoming });
        }
    }
    Ok(through)
}

/// Lets incoming disks take over. Checks completeness again, because chunks may have been committed since the proposal (P6).
pub fn finish_backfills(ctx: &mut Ctx<'_>, command: &FinishBackfills) -> Result<()> {
    for done in &command.backfills {
        let Some(m) = rows::member(ctx.db, done.pg_id, done.position)? else { continue };
        if m.incoming == 0 || m.incoming != done.incoming || !is_complete(ctx.db, &m)? {
            continue;
        }
        finish(ctx, m)?;
    }
    Ok(())
}

fn finish(ctx: &mut Ctx<'_>, mut m: Member) -> Result<()> {
    assert!(m.incoming != 0, "{m:?}: a move ends that never began");
    let epoch = tables::raise_epoch(ctx, m.pg_id)?;
    check_epoch(&m, epoch)?;
    let old = m.disk_id;
    if !m.put_to_incoming {
        // Puts go to the new disk from now on: a writer must repeat its puts to the old disk (P11).
        m.since_epoch = epoch;
        // These rows are about the old disk; the incoming disk has the fragments.
        missing::delete_of_member(ctx, m.pg_id, m.position, 0)?;
    }
    m.disk_id = m.incoming;
    (m.incoming, m.put_to_incoming, m.fill_cursor, m.fill_until) = (0, false, 0, 0);
    save(ctx, &m)?;
    // An inventory of the old disk finds and removes the group's fragments there.
    if rows::disk(ctx.db, old)?.is_some_and(|d| !matches!(d.own_health, Health::Draining | Health::Drained)) {
        tables::want_inventory(ctx, old)?;
    }
    Ok(())
}

/// The input of the move planner for the groups of one width.
struct Plan<'a> {
    disks: &'a BTreeMap<u64, DiskRow>,
    groups: BTreeMap<u64, Vec<Member>>,
    layout: Layout,
    /// Room of each disk for the plan's purpose, less the bytes planned here.
    free_bytes: BTreeMap<u64, u64>,
    /// Estimated bytes that the first member of a group holds, and that each other member holds.
    member_bytes: BTreeMap<u64, (u64, u64)>,
}

impl<'a> Plan<'a> {
    fn new(view: &View<'_>, disks: &'a BTreeMap<u64, DiskRow>, width: u32, purpose: Purpose) -> Result<Plan<'a>> {
        let groups = rows::groups(view.db, width)?;
        let specs: Vec<LayoutDisk> = disks
            .values()
            .map(|d| LayoutDisk { id: d.disk_id, host: d.host.clone(), weight: d.capacity_bytes })
            .collect();
        let planned: Vec<Vec<u64>> = groups.values().map(|g| planned_disks(g)).collect();
        let stats = &view.soft.cluster.stats;
        let room = |d: &DiskRow| (d.disk_id, room_bytes(stats, d.disk_id, d.capacity_bytes, purpose));
        let free_bytes = disks.values().map(room).collect();
        let layout = Layout::new(&specs, width as usize, &planned);
        Ok(Plan { disks, groups, layout, free_bytes, member_bytes: member_bytes(view, width)? })
    }

    /// Estimated bytes that a member holds.
    fn bytes_of(&self, m: &Member) -> u64 {
        let (first, other) = self.member_bytes.get(&m.pg_id).copied().unwrap_or_default();
        if m.position == 0 { first } else { other }
    }

    /// Finds a disk for a member and counts it.
    fn replace(&mut self, m: &Member) -> Option<Move> {
        let group = self.groups.get(&m.pg_id)?.clone();
        let others = group.iter().filter(|o| o.position != m.position);
        let (mut before, mut used) = (planned_disks(&group), Vec::new());
        match failpoint::is_active("manager.shared_host") {
            true => before.fill(m.disk_id),
            false => used.extend(others.flat_map(|o| [o.disk_id, o.incoming]).filter(|d| *d != 0)),
        }
        let bytes = self.bytes_of(m);
        let fits = |d: &LayoutDisk| {
            self.disks.get(&d.id).is_some_and(DiskRow::may_take_members)
                && self.free_bytes.get(&d.id).is_some_and(|free| *free > bytes)
        };
        let incoming = self.layout.replacement(&before, m.position as usize, &used, fits)?;
        assert!(incoming != 0 && incoming != m.disk_id, "{m:?}: replaced by {incoming}");
        self.take(m, incoming, bytes);
        Some(move_of(m, incoming))
    }

    fn take(&mut self, m: &Member, incoming: u64, bytes: u64) {
        let Some(group) = self.groups.get_mut(&m.pg_id) else { return };
        self.layout.remove(&planned_disks(group));
        if let Some(member) = group.iter_mut().find(|o| o.position == m.position) {
            member.incoming = incoming;
        }
        self.layout.add(&planned_disks(group));
        self.free_bytes.entry(incoming).and_modify(|free| *free = free.saturating_sub(bytes));
    }
}

/// The change of a member's incoming disk to `incoming`.
fn move_of(m: &Member, incoming: u64) -> Move {
    Move { pg_id: m.pg_id, position: m.position, disk_id: m.disk_id, incoming_was: m.incoming, incoming }
}

/// The disks of a group after its backfills.
fn planned_disks(group: &[Member]) -> Vec<u64> {
    group.iter().map(|m| if m.incoming != 0 { m.incoming } else { m.disk_id }).collect()
}

/// Estimated bytes that the first member, and each other member, of each group of a width holds: the bytes of all chunks ever
/// assigned, times the largest share that a class of this width puts there.
fn member_bytes(view: &View<'_>, width: u32) -> rusqlite::Result<BTreeMap<u64, (u64, u64)>> {
    let classes = view.caches.classes(view.db)?;
    let of_width: Vec<_> = classes.values().filter(|class| class.fragments() == width).collect();
    let most = |bytes: u64, position: u32| {
        of_width.iter().map(|class| class.room_bytes(bytes, position)).max().unwrap_or(bytes)
    };
    let groups: Vec<(u64, u64)> = view.db.all("SELECT pg_id, bytes FROM pgs WHERE width = ?1", args![width])?;
    Ok(groups.into_iter().map(|(pg_id, bytes)| (pg_id, (most(bytes, 0), most(bytes, 1)))).collect())
}

fn widths(db: &Db) -> rusqlite::Result<Vec<u32>> {
    db.all("SELECT DISTINCT width FROM pgs ORDER BY width", [])
}

/// Moves that losses and drains require: lost members first, in the groups that lost most before the others.
pub fn moves_due(view: &View<'_>) -> Result<Vec<Move>> {
    let node_map = view.caches.node_map(view.db)?;
    let disks = &node_map.disks;
    let health = |disk: u64| disks.get(&disk).map_or(Health::Unknown, DiskRow::health);
    let mut moves = Vec::new();
    if !disks.values().any(|d| matches!(d.health(), Health::Out | Health::Draining)) {
        return Ok(moves);
    }
    for width in widths(view.db)? {
        let mut due: Vec<(bool, usize, Member)> = Vec::new();
        let mut plan = Plan::new(view, disks, width, Purpose::Repair)?;
        for group in plan.groups.values() {
            let lost = group.iter().filter(|m| health(m.disk_id) == Health::Out).count();
            for m in group {
                match (health(m.disk_id), m.incoming) {
                    (Health::Out, 0) => due.push((true, lost, *m)),
                    (Health::Draining, 0) => due.push((false, lost, *m)),
                    // The incoming disk drains too: choose another.
                    (_, e) if e != 0 && !m.put_to_incoming && health(e) == Health::Draining => {
                        moves.push(move_of(m, 0))
                    }
                    _ => {}
                }
            }
        }
        due.sort_by_key(|(lost, in_group, m)| (!lost, std::cmp::Reverse(*in_group), m.pg_id, m.position));
        for (_, _, m) in due {
            if moves.len() >= MOVES_PER_COMMAND {
                return Ok(moves);
            }
            moves.extend(plan.replace(&m));
        }
    }
    Ok(moves)
}

/// Moves from the fullest disks to the emptiest, while a move improves the balance and fewer than `limit` moves run.
/// Empty while a member is lost or a disk drains: repair comes first.
pub fn rebalance(view: &View<'_>, limit: usize) -> Result<Vec<Move>> {
    let node_map = view.caches.node_map(view.db)?;
    let disks = &node_map.disks;
    let busy = view.caches.backfilling(view.db)?;
    let upset = disks.values().any(|d| matches!(d.health(), Health::Draining | Health::Down));
    if upset || busy.len() >= limit || busy.iter().any(|m| m.put_to_incoming) {
        return Ok(Vec::new());
    }
    let mut moves = Vec::new();
    let widths = widths(view.db)?;
    let mut plans =
        widths.iter().map(|w| Plan::new(view, disks, *w, Purpose::Balance)).collect::<Result<Vec<Plan<'_>>>>()?;
    let mut load: BTreeMap<u64, u64> = node_map.readable().map(|d| (d.disk_id, 0)).collect();
    for plan in &plans {
        for group in plan.groups.values() {
            for (m, disk) in group.iter().zip(planned_disks(group)) {
                load.entry(disk).and_modify(|l| *l += plan.bytes_of(m));
            }
        }
    }
    while busy.len() + moves.len() < limit {
        let Some(found) = best_move(&mut plans, disks, &mut load) else { break };
        moves.push(found);
    }
    Ok(moves)
}

/// The move from the fullest possible source to the emptiest possible target.
fn best_move(plans: &mut [Plan<'_>], disks: &BTreeMap<u64, DiskRow>, load: &mut BTreeMap<u64, u64>) -> Option<Move> {
    let ratio = |load: &BTreeMap<u64, u64>, d: u64, more: i64| {
        let held = load.get(&d).copied().unwrap_or(0) as f64 + more as f64;
        held / disks.get(&d).map_or(1.0, |d| d.capacity_bytes.max(1) as f64)
    };
    let mut order: Vec<u64> = load.keys().copied().collect();
    order.sort_by(|a, b| ratio(load, *a, 0).total_cmp(&ratio(load, *b, 0)).then(a.cmp(b)));
    let mean = order.iter().map(|d| ratio(load, *d, 0)).sum::<f64>() / order.len().max(1) as f64;
    for &from in order.iter().rev() {
        for &to in &order {
            if ratio(load, from, 0) - ratio(load, to, 0) <= BALANCE_SLACK * mean {
                break;
            }
            let target = disks.get(&to).filter(|d| d.may_take_members());
            let Some(target) = target else { continue };
            for plan in plans.iter_mut() {
                let improves =
                    |bytes: u64| bytes > 0 && ratio(load, from, -(bytes as i64)) >= ratio(load, to, bytes as i64);
                let Some(m) = plan.movable(from, target, &improves) else { continue };
                let bytes = plan.bytes_of(&m);
                plan.take(&m, to, bytes);
                load.entry(from).and_modify(|l| *l -= bytes.min(*l));
                load.entry(to).and_modify(|l| *l += bytes);
                return Some(move_of(&m, to));
            }
        }
    }
    None
}

impl Plan<'_> {
    /// The largest member on `from` that can move to `to` and whose move improves the balance.
    fn movable(&self, from: u64, to: &DiskRow, improves: &dyn Fn(u64) -> bool) -> Option<Member> {
        let host = |d: u64| self.disks.get(&d).map(|d| d.host.as_str());
        let free = self.free_bytes.get(&to.disk_id).copied().unwrap_or(0);
        self.groups
            .values()
            .filter(|g| g.iter().all(|m| m.incoming == 0))
            .filter_map(|g| g.iter().find(|m| m.disk_id == from).map(|m| (g, m)))
            .filter(|(g, m)| {
                let bytes = self.bytes_of(m);
                let elsewhere =
                    g.iter().filter(|o| o.position != m.position).all(|o| host(o.disk_id) != Some(to.host.as_str()));
                bytes < free && improves(bytes) && elsewhere
            })
            .max_by_key(|(_, m)| (self.bytes_of(m), std::cmp::Reverse(m.pg_id)))
            .map(|(_, m)| *m)
    }
}
