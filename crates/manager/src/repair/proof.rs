//! Proofs: nodes compare what no node could check on arrival with what the rest of the chunk gives.
//!
//! Copies and slices are proven when they arrive ([`crate::files::receipts`]); a client's parity is not. The manager goes
//! through the chunks whose `proof` is open, newest first, and asks the node of each such fragment to compute it from others
//! that lead to the chunk's name, to compare, and to replace a wrong one. A chunk that a reader found unreadable is proven in
//! the same way, all fragments of it; until then it answers no dedup question.

use crate::chunks::missing;
use crate::chunks::table::{self, CONTENT_PROVEN, PROVEN, UNPROVEN};
use crate::config::ns;
use crate::ctx::{Ctx, View};
use crate::db::sql::{TableRow, args, row};
use crate::error::Result;
use crate::internal::{ChunksProven, ChunksUnreadable, ProvenChunk, propose_all};
use crate::repair::rebuild;
use crate::soft::tasks::Work;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::{ReportBad, Task, TaskResult};

/// Most rows that one look reads.
const LOOK_AT_ROWS: usize = 512;

row! {
    struct Unproven {
        chunk_id: u64,
        pg_id: u64,
        class_id: u32,
        proof: i64,
        proof_epoch: u64,
    }
}

/// Looks at the next unproven chunks and queues their fragments. Chunks that lack fragments or whose group changes wait.
///
/// # Errors
/// The database fails.
pub fn queue_unproven(view: &mut View<'_>) -> Result<()> {
    let (now_ns, age_ns) = (view.now_ns, ns(view.config.prove_after_ms));
    let bound = view.soft.cluster.tasks.proofs.bound(now_ns, view.meta.next_chunk, age_ns);
    if !view.soft.cluster.tasks.proofs.has_room() {
        return Ok(());
    }
    let sql =
        Unproven::select("FROM chunks WHERE state = 2 AND proof < 2 AND chunk_id < ?1 ORDER BY chunk_id DESC LIMIT ?2");
    let rows: Vec<Unproven> = view.db.all(&sql, args![bound, LOOK_AT_ROWS])?;
    let below = if rows.len() < LOOK_AT_ROWS { 0 } else { rows.last().map_or(0, |row| row.chunk_id) };
    let node_map = view.caches.node_map(view.db)?;
    for row in rows {
        if view.soft.cluster.tasks.proofs.waits(row.chunk_id, now_ns) {
            continue;
        }
        let (pg, class) = (view.caches.pg(view.db, row.pg_id)?, view.caches.class(view.db, row.class_id)?);
        let at_rest = pg.members.iter().all(|m| m.incoming == 0 && node_map.is_readable(m.disk_id));
        if !at_rest || !missing::of_chunk(view.db, row.chunk_id)?.is_empty() {
            continue;
        }
        let wanted = |fragment: u32| row.proof == UNPROVEN || !class.is_plain(fragment);
        let members = pg.members.iter().filter(|m| wanted(m.position));
        let fragments: Vec<(u64, u32)> = members.map(|m| (m.disk_id, m.position)).collect();
        view.soft.cluster.tasks.proofs.add((row.chunk_id, row.proof_epoch), row.pg_id, &fragments);
    }
    view.soft.cluster.tasks.proofs.looked_at(below, now_ns);
    Ok(())
}

/// The next proof for a node; one at a time.
///
/// # Errors
/// The database fails.
pub fn hand_out(view: &mut View<'_>, node_id: u64, disks: &[u64]) -> Result<Option<Task>> {
    if view.soft.cluster.tasks.given.values().any(|g| g.node_id == node_id && matches!(g.work, Work::Proof { .. })) {
        return Ok(None);
    }
    for &disk_id in disks {
        let items = view.soft.cluster.tasks.proofs.take(disk_id, view.config.task_chunks);
        let Some(first) = items.first().copied() else { continue };
        let mut wanted = Vec::new();
        for item in items {
            match rebuild::load_chunk(view.db, item.chunk_id)? {
                Some(chunk) if rebuild::is_of_one_kind(&wanted, &chunk) => wanted.push(chunk),
                _ => view.soft.cluster.tasks.proofs.forget(item.chunk_id),
            }
        }
        if wanted.is_empty() {
            continue;
        }
        let hurry = view.soft.cluster.tasks.proofs.hurry;
        let work = Work::Proof { left: rebuild::ids(&wanted), hurry };
        return rebuild::rebuild(view, node_id, disk_id, (first.pg_id, first.fragment), wanted, work).map(Some);
    }
    Ok(None)
}

/// Processes a node's report about a proof.
pub fn take_result(view: &mut View<'_>, result: &TaskResult) {
    let now_ns = view.now_ns;
    let tasks = &mut view.soft.cluster.tasks;
    let Some(given) = tasks.given.get_mut(&result.task_id) else { return };
    let fragment = given.member.1;
    let Work::Proof { left, .. } = &mut given.work else { return };
    let done: Vec<u64> = result.done.iter().map(|f| f.chunk_id).filter(|chunk| left.remove(chunk)).collect();
    let mut failed: Vec<u64> = result.failed.iter().map(|f| f.chunk_id).filter(|chunk| left.remove(chunk)).collect();
    let over = result.finished || left.is_empty();
    if over {
        failed.extend(std::mem::take(left));
    }
    tasks.proofs.replaced += result.replaced;
    view.soft.cluster.jobs.scrub.bad += result.replaced;
    let whole =
        |chunk_id| tasks.proofs.done(chunk_id, fragment).map(|proof_epoch| ProvenChunk { chunk_id, proof_epoch });
    let proven: Vec<ProvenChunk> = done.into_iter().filter_map(whole).collect();
    failed.into_iter().for_each(|chunk| tasks.proofs.failed(chunk, now_ns));
    if over {
        tasks.close(result.task_id);
    }
    view.proposals.extend(propose_all(proven, |chunks| ChunksProven { chunks }));
}

/// A client could not read these chunks: they answer no dedup question until they are proven.
///
/// # Errors
/// The database fails.
pub fn report_unreadable(view: &mut View<'_>, report: &ReportBad) -> Result<()> {
    let mut chunk_ids = Vec::new();
    for chunk_id in report.unreadable.iter().copied().take(LOOK_AT_ROWS) {
        if view.db.any("SELECT 1 FROM chunks WHERE chunk_id = ?1 AND state = 2 AND proof > 0", args![chunk_id])? {
            chunk_ids.push(chunk_id);
        }
    }
    view.proposals.extend(propose_all(chunk_ids, |chunk_ids| ChunksUnreadable { chunk_ids }));
    Ok(())
}

/// Applies [`ChunksProven`]. A chunk that lacks fragments by now is not whole. A proof is void if a client has supplied parity or could
/// not read the chunk since the proof began.
///
/// # Errors
/// The database fails.
pub fn chunks_proven(ctx: &mut Ctx<'_>, command: &ChunksProven) -> Result<()> {
    for &ProvenChunk { chunk_id, proof_epoch } in &command.chunks {
        let whole = missing::of_chunk(ctx.db, chunk_id)?.is_empty();
        table::raise_proof(ctx, chunk_id, if whole { PROVEN } else { CONTENT_PROVEN }, proof_epoch)?;
    }
    Ok(())
}

/// Applies [`ChunksUnreadable`].
///
/// # Errors
/// The database fails.
pub fn chunks_unreadable(ctx: &mut Ctx<'_>, command: &ChunksUnreadable) -> Result<()> {
    Ok(command.chunk_ids.iter().try_for_each(|&chunk_id| table::lower_proof(ctx, chunk_id, UNPROVEN))?)
}
