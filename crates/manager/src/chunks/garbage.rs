//! Garbage collection: removes chunks without references and orders nodes to delete their fragments. An order stays until
//! the node has synced the delete.
//!
//! A chunk may be removed only if it has had no references since before the oldest live writer began (P4), because a dedup
//! query may have told the writer of it. This also holds for pending chunks, which have no references from the time they are
//! drawn. Readers need no such time: the version that a reader pins keeps its references. A writer that stays open delays
//! garbage for `garbage_hold_ms` at most (P5); a commit that names a removed chunk is refused. The manager sends an order only once
//! the log entry that wrote it is committed, so that no later leader needs a fragment that was already deleted (P3).
//!
//! Chunks that a writer stored and did not commit (`chunks.kept`) stay for `unfinished_keep_ms` longer, so that the same write finds them
//! when it is repeated. They go at once while a disk is nearly full or a garbage collection was asked for (P5).

use crate::chunks::missing;
use crate::chunks::refs::forget_chunk;
use crate::chunks::table::{self, COMMITTED};
use crate::config::ns;
use crate::ctx::{Ctx, View};
use crate::db::Db;
use crate::db::cache::Pg;
use crate::db::sessions::WRITER;
use crate::db::sql::{TableRow, args, row};
use crate::error::Result;
use crate::internal::{CollectGarbage, DeletesDone};
use crate::placement::room;
use crate::soft::DeleteCursor;
use std::collections::BTreeSet;
use tessera_failpoint as failpoint;
use tessera_wire::Health;
use tessera_wire::meta::FragmentRef;

/// Most chunks that one command removes, so that garbage collection does not delay other commands for long.
pub const CHUNKS_PER_COMMAND: u32 = 1_024;
/// Time in ns after which unconfirmed orders are sent again, once all orders of a disk have been sent.
const REPEAT_AFTER_NS: i64 = 5_000_000_000;

/// The command that collects garbage, if a chunk is collectable now.
///
/// # Errors
/// The database fails.
pub fn due(view: &View<'_>) -> Result<Option<CollectGarbage>> {
    due_until(view, i64::MAX)
}

/// Whether a chunk is collectable that has been without references since before `until_ns`.
///
/// # Errors
/// The database fails.
pub fn is_due(view: &View<'_>, until_ns: i64) -> Result<bool> {
    Ok(due_until(view, until_ns)?.is_some())
}

fn due_until(view: &View<'_>, until_ns: i64) -> Result<Option<CollectGarbage>> {
    let hold_ns = ns(view.config.garbage_hold_ms);
    let before_ns = match failpoint::is_active("manager.no_grace") {
        true => view.now_ns,
        false => view.soft.sessions.garbage_before(view.now_ns, hold_ns),
    };
    let before_ns = before_ns.min(until_ns);
    let keep_ns = match view.soft.cluster.jobs.gc.running || room::is_nearly_full(view)? {
        true => 0,
        false => ns(view.config.unfinished_keep_ms),
    };
    let kept_before_ns = before_ns.min(view.now_ns.saturating_sub(keep_ns));
    let sql = "SELECT 1 FROM chunks WHERE refs = 0 AND kept = ?1 AND zero_since_ns < ?2 LIMIT 1";
    let any = view.db.any(sql, args![false, before_ns])? || view.db.any(sql, args![true, kept_before_ns])?;
    let held_from_ns = view.now_ns.saturating_sub(hold_ns);
    let limit = CHUNKS_PER_COMMAND;
    Ok(any.then_some(CollectGarbage { before_ns, limit, held_from_ns, kept_before_ns }))
}

row! {
    struct GarbageChunk {
        chunk_id: u64,
        pg_id: u64,
        class_id: u32,
        len_bytes: u64,
        state: i64,
    }
}

/// Removes collectable chunks.
pub fn collect(ctx: &mut Ctx<'_>, command: &CollectGarbage) -> Result<()> {
    // Checks the writers again by their rows, because soft state may have missed one (P4).
    let oldest: Option<i64> = ctx.db.one("SELECT min(started_ns) FROM sessions WHERE kind = ?1", args![WRITER])?;
    let oldest = oldest.filter(|_| !failpoint::is_active("manager.no_grace"));
    let before_ns = oldest.map_or(command.before_ns, |o| o.max(command.held_from_ns).min(command.before_ns));
    let limit = command.limit.min(CHUNKS_PER_COMMAND) as usize;
    let mut dead = oldest_garbage(ctx.db, false, before_ns, limit)?;
    dead.extend(oldest_garbage(ctx.db, true, command.kept_before_ns.min(before_ns), limit - dead.len())?);
    let disks = disks_with_orders(ctx)?;
    dead.iter().try_for_each(|chunk| remove(ctx, chunk, &*ctx.caches.pg(ctx.db, chunk.pg_id)?, &disks))
}

/// Chunks without references since before `before_ns`; `kept`: those of writers that did not commit, else all others.
fn oldest_garbage(db: &Db, kept: bool, before_ns: i64, limit: usize) -> rusqlite::Result<Vec<GarbageChunk>> {
    let sql = GarbageChunk::select(
        "FROM chunks WHERE refs = 0 AND kept = ?1 AND zero_since_ns < ?2 ORDER BY zero_since_ns, chunk_id LIMIT ?3",
    );
    db.all(&sql, args![kept, before_ns, limit])
}

fn remove(ctx: &mut Ctx<'_>, chunk: &GarbageChunk, pg: &Pg, disks: &BTreeSet<u64>) -> Result<()> {
    assert!(!disks.contains(&0), "0 is no disk");
    for (position, member) in (0..).zip(&pg.members) {
        for disk in [member.disk_id, member.incoming] {
            if disks.contains(&disk) {
                insert_order(ctx, disk, chunk.chunk_id, position)?;
            }
        }
    }
    missing::delete_of_chunk(ctx, chunk.chunk_id)?;
    table::delete(ctx, chunk.chunk_id, (chunk.pg_id, chunk.class_id), chunk.len_bytes)?;
    if chunk.state == COMMITTED {
        forget_chunk(ctx, chunk.len_bytes, chunk.class_id)?;
    }
    Ok(())
}

/// Disks that get delete orders. A disk that is out needs none, because an inventory lists it when it returns.
fn disks_with_orders(ctx: &Ctx<'_>) -> rusqlite::Result<BTreeSet<u64>> {
    let node_map = ctx.caches.node_map(ctx.db)?;
    let gone = |h: Health| matches!(h, Health::Out | Health::Drained);
    Ok(node_map.disks.values().filter(|d| !gone(d.own_health)).map(|d| d.disk_id).collect())
}

fn insert_order(ctx: &Ctx<'_>, disk: u64, chunk: u64, fragment: u32) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO deletes (disk_id, chunk_id, fragment, log_seq) VALUES (?1, ?2, ?3, ?4)";
    ctx.db.exec(sql, args![disk, chunk, fragment, ctx.log_seq])
}

/// Orders the delete of one fragment of a removed chunk from a disk.
///
/// # Errors
/// The database fails.
pub fn order_delete(ctx: &Ctx<'_>, disk: u64, chunk: u64, fragment: u32) -> rusqlite::Result<()> {
    match disks_with_orders(ctx)?.contains(&disk) {
        true => insert_order(ctx, disk, chunk, fragment),
        false => Ok(()),
    }
}

/// Deletes the orders for a disk that is lost or emptied: an inventory lists the disk before it serves again.
///
/// # Errors
/// The database fails.
pub fn forget_orders(ctx: &Ctx<'_>, disk_id: u64) -> rusqlite::Result<()> {
    ctx.db.exec("DELETE FROM deletes WHERE disk_id = ?1", args![disk_id])
}

/// Removes the orders whose deletes nodes have synced.
///
/// # Errors
/// The database fails.
pub fn deletes_done(ctx: &mut Ctx<'_>, command: &DeletesDone) -> Result<()> {
    for done in &command.fragments {
        let sql = "DELETE FROM deletes WHERE disk_id = ?1 AND chunk_id = ?2 AND fragment = ?3";
        ctx.db.run(sql, args![done.disk_id, done.chunk_id, done.fragment])?;
    }
    Ok(())
}

/// Orders for the disks of a node, as many as one reply may carry.
///
/// # Errors
/// The database fails.
pub fn orders(view: &mut View<'_>, disks: &[u64]) -> Result<Vec<FragmentRef>> {
    let mut orders = Vec::new();
    let limit = view.config.deletes_per_heartbeat;
    for &disk_id in disks {
        let space = limit.saturating_sub(orders.len());
        let cursor = view.soft.cluster.deletes.entry(disk_id).or_default();
        if space == 0 || cursor.again_ns > view.now_ns {
            continue;
        }
        let found: Vec<(u64, u32)> = view.db.all(
            "SELECT chunk_id, fragment FROM deletes WHERE disk_id = ?1 AND (chunk_id, fragment) > (?2, ?3) AND log_seq <= ?4
             ORDER BY chunk_id, fragment LIMIT ?5",
            args![disk_id, cursor.at.0, cursor.at.1, view.soft.committed_seq, space],
        )?;
        assert!(found.len() <= space, "{} orders, {space} fit the answer", found.len());
        assert!(found.first().is_none_or(|first| *first > cursor.at), "orders are handed out in order");
        *cursor = match found.last() {
            Some(last) => DeleteCursor { at: *last, again_ns: 0 },
            // All orders were sent. Those still unconfirmed at `again_ns` are sent again.
            None if cursor.at != (0, 0) => DeleteCursor { at: (0, 0), again_ns: view.now_ns + REPEAT_AFTER_NS },
            None => *cursor,
        };
        let order = |(chunk_id, fragment)| FragmentRef { chunk_id, fragment, epoch: 0, disk_id };
        orders.extend(found.into_iter().map(order));
    }
    Ok(orders)
}
