//! Rebuild tasks: the manager finds missing fragments in rows and gives the node whose disk lacks them tasks to rebuild them.
//!
//! There are two sources of work. A *backfill* walks the chunks of a member that changes ([`crate::repair::backfill`]).
//! *Missing rows* name single fragments (not acknowledged at commit, found bad, passed by a backfill). The node reads a copy
//! or k verified fragments from other nodes, checks the chunk's hash and writes the missing fragment. `tasks_per_node` bounds
//! the tasks of a node. A bad-fragment report counts once the node that holds the fragment has verified it ([`report_bad`]).

use crate::chunks::missing;
use crate::chunks::{garbage, table};
use crate::ctx::{Ctx, View};
use crate::db::Db;
use crate::db::cache::Pg;
use crate::db::node_map::NodeMap;
use crate::db::rows::{self, Member, Missing};
use crate::db::sql::args;
use crate::error::Result;
use crate::internal::{AdvanceBackfill, FragmentsBad, FragmentsDone, Internal, Proposal, SetInventory, propose_all};
use crate::repair::proof;
use crate::soft::ClusterState;
use crate::soft::tasks::{Assignment, BackfillBatch, Tasks, Work, retry_at};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tessera_stripe::ClassLayout;
use tessera_wire::meta::{FragmentRef, RebuildTask, ReportBad, Task, TaskResult};
use tessera_wire::{ChunkInfo, ClassInfo};

/// Most missing rows in the queues.
const MAX_QUEUED: usize = 8_192;
/// Missing rows that one round reads by each of its two orders. A round delays requests, however many rows there are.
const ROWS_PER_ROUND: usize = 512;
/// A batch ends before its chunks exceed this many bytes.
const BATCH_BYTES: u64 = 64 << 20;
/// After this many batches without a success, a backfill passes the chunks and leaves missing rows.
const TRIES_BEFORE_PASSING: u32 = 3;
/// The writer of an optimistic file stores its missing fragments itself; repair takes over rows older than this.
const WRITER_GRACE_NS: i64 = 10_000_000_000;
/// A proposed cursor move that is not committed within this time is abandoned.
const PROPOSAL_PATIENCE_NS: i64 = 10_000_000_000;

/// A chunk to rebuild, with the keys that tasks are grouped by.
pub(crate) struct ChunkToRebuild {
    info: ChunkInfo,
    domain: u32,
}

impl ChunkToRebuild {
    /// Class and domain.
    fn kind(&self) -> (u32, u32) {
        (self.info.class_id, self.domain)
    }
}

/// Whether a chunk of this class can be read from the members of its group that are readable now.
fn suffices(node_map: &NodeMap, class: &ClassInfo, pg: &Pg, chunk_id: u64) -> bool {
    let readable = pg.members.iter().filter(|m| node_map.is_readable(m.serving_disk(chunk_id)));
    class.suffices(readable.map(|m| m.position))
}

/// Loads missing rows into the queues of the disks that lack the fragments: newest optimistic writes first, then by group, a
/// bounded number in each round.
pub fn queue_missing(view: &mut View<'_>) -> Result<()> {
    let tasks = &mut view.soft.cluster.tasks;
    if !missing::any(view.db)? {
        tasks.missing_backoff.clear();
        return Ok(());
    }
    if tasks.missing.values().map(VecDeque::len).sum::<usize>() >= MAX_QUEUED / 2 {
        return Ok(());
    }
    let settled_ns = view.now_ns - WRITER_GRACE_NS;
    let newest = missing::newest(view.db, settled_ns, ROWS_PER_ROUND)?;
    // The cursor gives every row its turn: irreparable ones do not starve the rest.
    let others = missing::next(view.db, &mut view.soft.cluster.missing_from, settled_ns, ROWS_PER_ROUND)?;
    let node_map = view.caches.node_map(view.db)?;
    for row in newest.into_iter().chain(others) {
        let pg = view.caches.pg(view.db, row.pg_id)?;
        let Some(m) = pg.members.get(row.fragment as usize) else { continue };
        let target = row.target(m);
        let tasks = &mut view.soft.cluster.tasks;
        let waits = tasks.missing_backoff.get(&row.key()).is_some_and(|(at, _)| *at > view.now_ns);
        if node_map.is_readable(target) && !waits && tasks.queued.insert(row.key()) {
            tasks.missing.entry(target).or_default().push_back(row);
        }
    }
    Ok(())
}

/// New rebuild tasks for a node, as many as it may still have.
pub fn hand_out(view: &mut View<'_>, node_id: u64) -> Result<Vec<Task>> {
    let mut given = Vec::new();
    let limit = view.config.tasks_per_node;
    if view.soft.cluster.tasks.rebuilding(node_id) >= limit {
        return Ok(given);
    }
    let node_map = view.caches.node_map(view.db)?;
    let own: Vec<u64> = node_map.disks_of(node_id).filter(|d| d.readable()).map(|d| d.disk_id).collect();
    for &disk_id in &own {
        while view.soft.cluster.tasks.rebuilding(node_id) < limit {
            let Some(task) = next_missing(view, &node_map, node_id, disk_id)? else { break };
            given.push(task);
        }
    }
    for m in backfills_onto(view, &own)? {
        if view.soft.cluster.tasks.rebuilding(node_id) >= limit {
            break;
        }
        given.extend(next_batch(view, &node_map, node_id, &m)?);
    }
    if given.is_empty() {
        given.extend(proof::hand_out(view, node_id, &own)?);
    }
    Ok(given)
}

/// Backfills onto these disks: groups that lost most first, then lost members before moving ones.
fn backfills_onto(view: &View<'_>, disks: &[u64]) -> Result<Vec<Member>> {
    let backfilling = view.caches.backfilling(view.db)?;
    let lost_of = |pg: u64| {
        let group = &backfilling[backfilling.partition_point(|m| m.pg_id < pg)..];
        group.iter().take_while(|m| m.pg_id == pg).filter(|m| m.put_to_incoming).count()
    };
    let mut onto: Vec<Member> = backfilling.iter().filter(|m| disks.contains(&m.incoming)).copied().collect();
    onto.sort_by_cached_key(|m| (std::cmp::Reverse((lost_of(m.pg_id), m.put_to_incoming)), m.pg_id));
    Ok(onto)
}

/// A task for missing fragments of a disk that share group, position, class and domain.
fn next_missing(view: &mut View<'_>, node_map: &NodeMap, node_id: u64, disk_id: u64) -> Result<Option<Task>> {
    loop {
        let limit = view.config.task_chunks;
        let tasks = &mut view.soft.cluster.tasks;
        let Some(queue) = tasks.missing.get_mut(&disk_id) else { return Ok(None) };
        let Some(first) = queue.front().copied() else { return Ok(None) };
        let same = |r: &Missing| (r.pg_id, r.fragment, r.incoming) == (first.pg_id, first.fragment, first.incoming);
        let mut rows_of_task: Vec<Missing> = Vec::new();
        let mut rest = VecDeque::new();
        for row in queue.drain(..) {
            if rows_of_task.len() < limit && same(&row) { rows_of_task.push(row) } else { rest.push_back(row) }
        }
        *queue = rest;
        let release =
            |tasks: &mut Tasks, rows: &[Missing]| rows.iter().for_each(|row| _ = tasks.queued.remove(&row.key()));
        let pg = view.caches.pg(view.db, first.pg_id)?;
        if pg.members.get(first.fragment as usize).is_none_or(|m| first.target(m) != disk_id) {
            release(&mut view.soft.cluster.tasks, &rows_of_task);
            continue;
        }
        let mut wanted: Vec<ChunkToRebuild> = Vec::new();
        for row in &rows_of_task {
            match still_missing(view.db, row)? {
                Some(chunk) if wanted.first().is_none_or(|first| first.kind() == chunk.kind()) => wanted.push(chunk),
                _ => release(&mut view.soft.cluster.tasks, std::slice::from_ref(row)),
            }
        }
        let Some(class_id) = wanted.first().map(|w| w.info.class_id) else { continue };
        let class = view.caches.class(view.db, class_id)?;
        if !suffices(node_map, &class, &pg, first.chunk_id) {
            let tasks = &mut view.soft.cluster.tasks;
            release(tasks, &rows_of_task);
            let later = (retry_at(view.now_ns, 2), 0);
            tasks.missing_backoff.extend(rows_of_task.iter().map(|row| (row.key(), later)));
            continue;
        }
        let left = wanted.iter().map(|w| w.info.chunk_id).collect();
        let work = Work::Missing { left, incoming: first.incoming };
        return rebuild(view, node_id, disk_id, (first.pg_id, first.fragment), wanted, work).map(Some);
    }
}

/// The chunk to rebuild, if its missing row still exists.
fn still_missing(db: &Db, row: &Missing) -> Result<Option<ChunkToRebuild>> {
    let sql = "SELECT 1 FROM missing_fragments WHERE chunk_id = ?1 AND fragment = ?2 AND incoming = ?3";
    match db.any(sql, args![row.chunk_id, row.fragment, row.incoming])? {
        true => load_chunk(db, row.chunk_id),
        false => Ok(None),
    }
}

pub(crate) fn load_chunk(db: &Db, chunk_id: u64) -> Result<Option<ChunkToRebuild>> {
    Ok(load_chunks(db, "chunk_id = ?1", args![chunk_id])?.pop())
}

/// The committed chunks that the condition `which` selects, with their missing fragments.
fn load_chunks(db: &Db, which: &str, args: impl rusqlite::Params) -> Result<Vec<ChunkToRebuild>> {
    let sql =
        format!("SELECT chunk_id, hash, len_bytes, class_id, pg_id, domain FROM chunks WHERE state = 2 AND {which}");
    let rows: Vec<(ChunkInfo, u32)> = db.all(&sql, args)?;
    let chunks = rows.into_iter().map(|(info, domain)| {
        let missing = missing::of_chunk(db, info.chunk_id)?;
        Ok(ChunkToRebuild { info: ChunkInfo { missing, ..info }, domain })
    });
    chunks.collect()
}

/// The next batch of a backfill, one task per class and domain; empty while a batch is running or the backfill must wait.
fn next_batch(view: &mut View<'_>, node_map: &NodeMap, node_id: u64, m: &Member) -> Result<Vec<Task>> {
    let key = (m.pg_id, m.position);
    let tasks = &mut view.soft.cluster.tasks;
    if let Some(run) = tasks.backfills.get(&key) {
        let over =
            run.open.is_empty() && (m.fill_cursor >= run.to || view.now_ns - run.proposed_ns > PROPOSAL_PATIENCE_NS);
        if !over {
            return Ok(Vec::new());
        }
        tasks.backfills.remove(&key);
    }
    if tasks.backfill_backoff.get(&key).is_some_and(|(at, _)| *at > view.now_ns) {
        return Ok(Vec::new());
    }
    let batch = load_batch(view.db, m, view.config.task_chunks)?;
    let Some(last) = batch.last().map(|w| w.info.chunk_id) else { return Ok(Vec::new()) };
    let pg = view.caches.pg(view.db, m.pg_id)?;
    let mut parts: BTreeMap<(u32, u32), Vec<ChunkToRebuild>> = BTreeMap::new();
    batch.into_iter().for_each(|chunk| parts.entry(chunk.kind()).or_default().push(chunk));
    for (class_id, _) in parts.keys() {
        if !suffices(node_map, &*view.caches.class(view.db, *class_id)?, &pg, last) {
            let tasks = &mut view.soft.cluster.tasks;
            tasks.backfill_backoff.insert(key, (retry_at(view.now_ns, 0), 0));
            return Ok(Vec::new());
        }
    }
    assert!(last > m.fill_cursor, "{m:?}: the batch ends at {last}, before the cursor");
    assert!(!parts.is_empty(), "{m:?}: a batch of no chunks");
    let run = BackfillBatch { incoming: m.incoming, from: m.fill_cursor, to: last, ..BackfillBatch::default() };
    view.soft.cluster.tasks.backfills.insert(key, run);
    let mut given = Vec::new();
    for wanted in parts.into_values() {
        let left = wanted.iter().map(|w| w.info.chunk_id).collect();
        let task = rebuild(view, node_id, m.incoming, key, wanted, Work::Backfill { left })?;
        if let Some(run) = view.soft.cluster.tasks.backfills.get_mut(&key) {
            run.open.insert(task.task_id);
        }
        given.push(task);
    }
    Ok(given)
}

fn load_batch(db: &Db, m: &Member, limit: usize) -> Result<Vec<ChunkToRebuild>> {
    let mut batch = load_chunks(
        db,
        "pg_id = ?1 AND chunk_id > ?2 AND chunk_id < ?3 ORDER BY chunk_id LIMIT ?4",
        args![m.pg_id, m.fill_cursor, m.fill_end(), limit],
    )?;
    let mut bytes = 0u64;
    let fits = batch.iter().take_while(|w| {
        bytes = bytes.saturating_add(w.info.len_bytes);
        bytes <= BATCH_BYTES
    });
    let keep = fits.count().max(1);
    batch.truncate(keep);
    assert!(batch.windows(2).all(|w| w[0].info.chunk_id < w[1].info.chunk_id), "a batch is in order of chunks");
    Ok(batch)
}

/// Whether a chunk fits into a task with those that are in it.
pub(crate) fn is_of_one_kind(wanted: &[ChunkToRebuild], chunk: &ChunkToRebuild) -> bool {
    wanted.first().is_none_or(|first| first.kind() == chunk.kind())
}

/// Ids of chunks.
pub(crate) fn ids(wanted: &[ChunkToRebuild]) -> BTreeSet<u64> {
    wanted.iter().map(|chunk| chunk.info.chunk_id).collect()
}

/// Creates and registers a rebuild task.
pub(crate) fn rebuild(
    view: &mut View<'_>,
    node_id: u64,
    disk_id: u64,
    member: (u64, u32),
    wanted: Vec<ChunkToRebuild>,
    work: Work,
) -> Result<Task> {
    assert!(!wanted.is_empty(), "a rebuild task without chunks");
    let (class_id, domain) = wanted[0].kind();
    assert!(wanted.iter().all(|w| w.info.class_id == class_id), "a rebuild task is of one class");
    let class = view.caches.class(view.db, class_id)?;
    let pg = view.caches.pg(view.db, member.0)?;
    let (epoch, pg) = (pg.epoch, Some(pg.info()));
    let chunks = wanted.into_iter().map(|w| w.info).collect();
    let class = Some((*class).clone());
    let (prove, hurry) = if let Work::Proof { hurry, .. } = &work { (true, *hurry) } else { (false, false) };
    let rebuild = Some(RebuildTask { pg, fragment: member.1, disk_id, class, chunks, domain, prove, hurry });
    let wire = Task { rebuild, ..Task::default() };
    Ok(view.soft.cluster.tasks.give(Assignment { node_id, disk_id, member, epoch, work, wire }))
}

/// Processes a node's task report.
pub fn take_result(view: &mut View<'_>, node_id: u64, result: &TaskResult) {
    let of_node = view.soft.cluster.tasks.given.get(&result.task_id).filter(|g| g.node_id == node_id);
    if of_node.is_some_and(|given| matches!(given.work, Work::Proof { .. })) {
        return proof::take_result(view, result);
    }
    let (now_ns, proposals) = (view.now_ns, &mut view.proposals);
    let ClusterState { tasks, repaired, jobs, .. } = &mut view.soft.cluster;
    let Some(given) = tasks.given.get_mut(&result.task_id).filter(|g| g.node_id == node_id) else {
        return;
    };
    let (member, disk_id, epoch) = (given.member, given.disk_id, given.epoch);
    let scrubbed = matches!(given.work, Work::Scrub);
    let (mut over, mut done, mut failed) = (result.finished, Vec::new(), Vec::new());
    if let Work::Backfill { left } | Work::Missing { left, .. } = &mut given.work {
        let mut reported = |refs: &[FragmentRef]| -> Vec<u64> {
            refs.iter().map(|f| f.chunk_id).filter(|chunk| left.remove(chunk)).collect()
        };
        (done, failed) = (reported(&result.done), reported(&result.failed));
        over |= left.is_empty();
        repaired.bytes += result.bytes;
    }
    if let Work::Missing { left, .. } = &mut given.work
        && over
    {
        failed.extend(std::mem::take(left));
    }
    repaired.fragments += done.len() as u64;
    repaired.failed += failed.len() as u64;
    match &mut given.work {
        Work::Backfill { .. } => {
            if let Some(run) = tasks.backfills.get_mut(&member) {
                run.done.extend(done);
            }
            if over {
                proposals.extend(end_of_batch(tasks, now_ns, member, result.task_id));
            }
        }
        Work::Missing { incoming, .. } => {
            let incoming = *incoming;
            for chunk in failed {
                let key = (chunk, member.1, incoming);
                let tries = tasks.missing_backoff.get(&key).map_or(0, |(_, t)| t + 1);
                tasks.missing_backoff.insert(key, (retry_at(now_ns, tries), tries));
                tasks.queued.remove(&key);
            }
            done.iter().for_each(|chunk| _ = tasks.queued.remove(&(*chunk, member.1, incoming)));
            let fragment = |chunk_id| FragmentRef { chunk_id, fragment: member.1, epoch, disk_id };
            let done = done.into_iter().map(fragment).collect();
            proposals.extend(propose_all(done, |fragments| FragmentsDone { fragments }));
        }
        Work::Verify | Work::Scrub => {
            let fragments: Vec<FragmentRef> = result.failed.iter().map(|f| FragmentRef { disk_id, ..*f }).collect();
            repaired.bad += fragments.len() as u64;
            if scrubbed {
                jobs.scrub.note(result.bytes, fragments.len() as u64, over);
            }
            if scrubbed && over {
                // A record with a corrupt header cannot be identified; an inventory will find the missing fragment (P13).
                proposals.push(SetInventory { want: vec![disk_id], ..Default::default() }.propose());
            }
            proposals.extend(propose_all(fragments, |fragments| FragmentsBad { fragments }));
        }
        Work::Inventory(listing) if over && listing.complete && result.reason.is_empty() => {
            let (done_disk_id, done_wanted, done_incarnation) = (disk_id, listing.wanted, listing.incarnation);
            proposals.push(SetInventory { want: Vec::new(), done_disk_id, done_wanted, done_incarnation }.propose());
        }
        Work::Compact if over => jobs.gc.note(result.bytes, u64::from(!result.reason.is_empty()), true),
        Work::Inventory(_) | Work::Compact | Work::Proof { .. } => {}
    }
    if over {
        tasks.close(result.task_id);
    }
    if scrubbed && over {
        tasks.scrubbed(disk_id, &result.reason);
    }
}

/// Ends one task of a backfill's batch. The last task moves the cursor, unless no chunk succeeded.
fn end_of_batch(tasks: &mut Tasks, now_ns: i64, member: (u64, u32), task_id: u64) -> Option<Proposal> {
    let run = tasks.backfills.get_mut(&member)?;
    run.open.remove(&task_id);
    if !run.open.is_empty() {
        return None;
    }
    if run.done.is_empty() {
        let tries = tasks.backfill_backoff.get(&member).map_or(1, |(_, t)| t + 1);
        tasks.backfill_backoff.insert(member, (retry_at(now_ns, tries), tries));
        if tries < TRIES_BEFORE_PASSING {
            tasks.backfills.remove(&member);
            return None;
        }
    } else {
        tasks.backfill_backoff.remove(&member);
    }
    run.proposed_ns = now_ns;
    assert!(run.to > run.from, "member {member:?}: the cursor goes from {} to {}", run.from, run.to);
    let advance = AdvanceBackfill {
        pg_id: member.0,
        position: member.1,
        incoming: run.incoming,
        from: run.from,
        to: run.to,
        done: std::mem::take(&mut run.done),
    };
    Some(advance.propose())
}

/// Applies [`FragmentsDone`]: deletes the missing rows of puts that count (right disk, recent enough epoch, not lost since: P11).
/// Orders the deletion of fragments whose chunk is gone (P5).
pub fn fragments_done(ctx: &mut Ctx<'_>, command: &FragmentsDone) -> Result<()> {
    for done in &command.fragments {
        let Some(pg) = table::group_of(ctx.db, done.chunk_id)? else {
            garbage::order_delete(ctx, done.disk_id, done.chunk_id, done.fragment)?;
            continue;
        };
        let Some(m) = rows::member(ctx.db, pg, done.fragment)? else { continue };
        let lacking = if m.put_disk() == done.disk_id && m.to_wire().accepts(done.epoch) {
            0
        } else if !m.put_to_incoming && m.incoming == done.disk_id && m.incoming != 0 {
            1
        } else {
            continue;
        };
        missing::delete_put(ctx, (done.chunk_id, done.fragment), lacking, done.epoch)?;
    }
    Ok(())
}

/// Writes missing rows for fragments that a node has found bad, so that they are rebuilt.
pub fn fragments_bad(ctx: &mut Ctx<'_>, command: &FragmentsBad) -> Result<()> {
    let mut lost = Vec::new();
    for bad in &command.fragments {
        let Some(pg) = table::group_of(ctx.db, bad.chunk_id)? else { continue };
        let Some(m) = rows::member(ctx.db, pg, bad.fragment)? else { continue };
        if let Some(lacking) = lacking_where(&m, bad.disk_id, bad.chunk_id) {
            lost.push(Missing { chunk_id: bad.chunk_id, fragment: bad.fragment, incoming: lacking, pg_id: pg });
        }
    }
    Ok(missing::lose(ctx, &lost)?)
}

/// The value of `incoming` in a missing row for `disk_id`, this member and `chunk_id`; `None` if the disk need not hold the
/// fragment.
pub fn lacking_where(m: &Member, disk_id: u64, chunk_id: u64) -> Option<u8> {
    let filled = chunk_id <= m.fill_cursor || (m.fill_until != 0 && chunk_id >= m.fill_until);
    match m.put_to_incoming {
        // A lost disk that is back serves the chunks that the backfill has not reached. A fragment it lacks gets a row
        // now: it must not count as a source until the backfill arrives (P6).
        true => (disk_id == if filled { m.incoming } else { m.disk_id }).then_some(0),
        false if disk_id == m.disk_id => Some(0),
        false => (m.incoming != 0 && disk_id == m.incoming && filled).then_some(1),
    }
}

/// Asks the nodes that should hold these fragments to verify them: a reader could not use them.
pub fn report_bad(view: &mut View<'_>, report: &ReportBad) -> Result<()> {
    proof::report_unreadable(view, report)?;
    let mut seen = BTreeSet::new();
    for reported in report.fragments.iter().take(4_096) {
        if !seen.insert((reported.chunk_id, reported.fragment, reported.disk_id)) {
            continue;
        }
        let Some(wanted) = load_chunk(view.db, reported.chunk_id)? else { continue };
        let Some(m) = rows::member(view.db, wanted.info.pg_id, reported.fragment)? else { continue };
        let disk_id = match reported.disk_id {
            0 => m.serving_disk(reported.chunk_id),
            named => named,
        };
        if lacking_where(&m, disk_id, reported.chunk_id).is_some() && !wanted.info.missing.contains(&reported.fragment)
        {
            view.soft.cluster.repaired.reports += 1;
            view.soft.cluster.tasks.suspect(&FragmentRef { disk_id, ..*reported });
        }
    }
    Ok(())
}
