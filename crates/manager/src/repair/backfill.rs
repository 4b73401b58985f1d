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
//! acknowledgements no longer count (P11). This module changes the rows; [`crate::repair::moves`] plans the moves, and
//! [`crate::repair::rebuild`] hands out the work.

use crate::chunks::missing::{self, Cause};
use crate::chunks::{garbage, table};
use crate::ctx::{Ctx, View};
use crate::db::Db;
use crate::db::rows::{self, DiskRow, Member, Missing};
use crate::db::sql::args;
use crate::error::{Result, corrupt_row};
use crate::internal::{AdvanceBackfill, FinishBackfill, FinishBackfills, MoveMembers};
use crate::map::tables;
use crate::soft::Effect;
use std::collections::BTreeSet;
use tessera_failpoint as failpoint;
use tessera_wire::Health;

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
