//! Maintenance jobs that an operator starts: gc, scrub, repair.

use crate::chunks::{garbage, missing};
use crate::counts::redundancy;
use crate::ctx::View;
use crate::db::rows::DiskRow;
use crate::db::sql::args;
use crate::error::{Result, invalid};
use crate::soft::ClusterState;
use crate::soft::jobs::{GcWait, JobState};
use crate::soft::stats::DiskStats;
use crate::soft::tasks::Work;
use tessera_wire::Health;
use tessera_wire::consensus::PeerKind;
use tessera_wire::meta::{Counter, Maintain, MaintainReply, MaintenanceJob, PeerStatus};

/// Starts a job if the request asks for one.
///
/// # Errors
/// `Invalid` if the job is unknown.
pub fn start(view: &mut View<'_>, request: &Maintain) -> Result<()> {
    let what = request.what();
    if what == MaintenanceJob::Unknown {
        return invalid(format!("maintain: job {} is unknown; the jobs are gc, scrub and repair", request.what));
    }
    if !request.start {
        return Ok(());
    }
    let disks: Vec<u64> = view.caches.node_map(view.db)?.readable().map(|d| d.disk_id).collect();
    let cluster = &mut view.soft.cluster;
    let fresh = JobState {
        running: true,
        disks: disks.len() as u64,
        repaired_before: cluster.repaired.fragments,
        ..JobState::default()
    };
    match what {
        MaintenanceJob::Scrub if !cluster.jobs.scrub.running => {
            cluster.jobs.scrub = fresh;
            cluster.tasks.scrub_wanted.extend(disks);
            cluster.tasks.proofs.start_pass(view.meta.next_chunk);
            let is_manager = |peer: &&PeerStatus| peer.member.as_ref().is_some_and(|m| m.kind() == PeerKind::Manager);
            view.soft.comparison.wanted = view.soft.peers.iter().filter(is_manager).count() > 1;
        }
        MaintenanceJob::Gc if !cluster.jobs.gc.running => cluster.jobs.gc = fresh,
        MaintenanceJob::Repair => {
            cluster.jobs.repair = fresh;
            cluster.jobs.hurry = true;
            cluster.tasks.missing_backoff.clear();
            cluster.tasks.backfill_backoff.clear();
        }
        _ => {}
    }
    Ok(())
}

/// Advances the running jobs.
pub fn on_tick(view: &mut View<'_>) -> Result<()> {
    let listing = view.caches.node_map(view.db)?.readable().any(|d| d.inventory_wanted > 0);
    let tasks = &view.soft.cluster.tasks;
    // The job ends only after the inventories of the scrubbed disks.
    let scrubbing = listing
        || tasks.proofs.hurry
        || !tasks.scrub_wanted.is_empty()
        || tasks.given.values().any(|g| matches!(g.work, Work::Scrub));
    let compacting = !tasks.compact_wanted.is_empty() || tasks.given.values().any(|g| matches!(g.work, Work::Compact));
    let jobs = &view.soft.cluster.jobs;
    let (gc, repair, hurry) = (jobs.gc, jobs.repair, jobs.hurry);
    let gc_ready = gc.running && !gc.compacting && has_collected(view)?;
    let may_be_over = repair.running && !hurry && !missing::any(view.db)?;
    let repair_over = may_be_over && !redundancy::backfills_wait(view.db, view.caches)?;
    let disks: Vec<u64> = match gc_ready {
        true => view.caches.node_map(view.db)?.readable().map(|d| d.disk_id).collect(),
        false => Vec::new(),
    };
    let cluster = &mut view.soft.cluster;
    cluster.jobs.scrub.running &= scrubbing;
    cluster.jobs.repair.running &= !repair_over;
    if gc_ready {
        cluster.jobs.gc.compacting = true;
        cluster.jobs.gc.disks = disks.len() as u64;
        cluster.tasks.compact_wanted.extend(disks);
    } else if gc.compacting && !compacting {
        cluster.jobs.gc.running = false;
    }
    Ok(())
}

/// A garbage collection that waits only for deletes ends when none of those that it waits for was done for this long.
const DELETE_PATIENCE_NS: i64 = 15_000_000_000;

/// Advances a garbage collection. Returns whether what was garbage when it began is collected.
fn has_collected(view: &mut View<'_>) -> Result<bool> {
    loop {
        let wait = view.soft.cluster.jobs.gc.wait;
        let next = match wait {
            GcWait::Nothing => match dropped_pages(view, "max")? {
                Some(last) => GcWait::Pages { first: dropped_pages(view, "min")?.unwrap_or(0), last },
                None => GcWait::Chunks(view.now_ns + 1),
            },
            GcWait::Pages { first, last } => match dropped_pages(view, "min")?.filter(|id| (first..=last).contains(id))
            {
                Some(first) => GcWait::Pages { first, last },
                None => GcWait::Chunks(view.now_ns + 1),
            },
            GcWait::Chunks(until_ns) => match garbage::is_due(view, until_ns)? {
                true => wait,
                // A batch that is not committed yet has the next number.
                false => GcWait::Deletes(view.meta.log_seq + 1),
            },
            GcWait::Deletes(log_seq) => return Ok(are_done(view, log_seq)? || deletes_stall(view, log_seq)?),
        };
        let left = match next {
            GcWait::Deletes(log_seq) => deletes_left(view, log_seq)?,
            _ => 0,
        };
        let gc = &mut view.soft.cluster.jobs.gc;
        (gc.wait, gc.left) = (next, (left, view.now_ns));
        if std::mem::discriminant(&next) == std::mem::discriminant(&wait) {
            return Ok(false);
        }
    }
}

/// The first (`min`) or last (`max`) page whose references wait to be taken off.
fn dropped_pages(view: &View<'_>, which: &str) -> Result<Option<u64>> {
    let id: Option<i64> = view.db.one(&format!("SELECT {which}(id) FROM dropped_pages"), [])?;
    Ok(id.map(|id| id as u64))
}

/// Whether nothing is left but deletes that no disk carries out: a full disk has no room for their records. The deletes stay
/// ordered.
fn deletes_stall(view: &mut View<'_>, log_seq: u64) -> Result<bool> {
    let (before, since_ns) = view.soft.cluster.jobs.gc.left;
    if view.now_ns - since_ns < DELETE_PATIENCE_NS {
        return Ok(false);
    }
    let left = deletes_left(view, log_seq)?;
    view.soft.cluster.jobs.gc.left = (left, view.now_ns);
    Ok(left >= before)
}

/// Deletes that were ordered up to entry `log_seq` and are not done. Looks at all orders.
fn deletes_left(view: &View<'_>, log_seq: u64) -> Result<u64> {
    Ok(view.db.one("SELECT count(*) FROM deletes WHERE log_seq <= ?1", args![log_seq])?)
}

/// Whether the reachable disks have done the deletes that were ordered up to entry `log_seq`.
fn are_done(view: &View<'_>, log_seq: u64) -> Result<bool> {
    for disk in view.caches.node_map(view.db)?.readable() {
        let sql = "SELECT 1 FROM deletes WHERE disk_id = ?1 AND log_seq <= ?2 LIMIT 1";
        if view.db.any(sql, args![disk.disk_id, log_seq])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a disk that was out is back, and serves as soon as it is listed.
fn disks_return(view: &View<'_>) -> Result<bool> {
    let returns =
        |disk: &DiskRow| (disk.own_health, disk.node_health) == (Health::Down, Health::Up) && disk.inventory_wanted > 0;
    Ok(view.caches.node_map(view.db)?.disks.values().any(returns))
}

/// Bytes that a running scrub has re-read, and those of all disks. Of each disk, those that are left count: compaction moves
/// records to where the scrub reads them again, so a cycle reads more than the disk holds.
fn scrub_progress(cluster: &ClusterState) -> (u64, u64) {
    let left = |disk_id: &u64, disk: &DiskStats| {
        let used_bytes = disk.said.used_bytes;
        match cluster.tasks.scrub_wanted.contains(disk_id) {
            true => used_bytes,
            false if cluster.tasks.has(*disk_id, |work| matches!(work, Work::Scrub)) => {
                used_bytes.saturating_sub(disk.scrubbed_bytes)
            }
            false => 0,
        }
    };
    let disks = &cluster.stats.disks;
    let total: u64 = disks.values().map(|disk| disk.said.used_bytes).sum();
    let left: u64 = disks.iter().map(|(disk_id, disk)| left(disk_id, disk)).sum();
    (total - left, total)
}

/// State of the requested job.
pub fn report(view: &View<'_>, request: &Maintain) -> Result<MaintainReply> {
    let (cluster, term) = (&view.soft.cluster, view.meta.term);
    let counter = |name: &str, value: u64| Counter { name: name.to_string(), value };
    Ok(match request.what() {
        MaintenanceJob::Scrub => {
            let pass = cluster.jobs.scrub;
            let comparison = &view.soft.comparison;
            let compares = comparison.wanted || comparison.last.running;
            let (done, total) = if pass.running { scrub_progress(cluster) } else { (pass.bytes, pass.bytes) };
            let counters = vec![
                counter("rot_found", pass.bad),
                counter("disks_done", pass.disks_done),
                counter("disks", pass.disks),
                counter("chunks_unproven", view.counts()?.chunks_unproven),
            ];
            MaintainReply { running: pass.running || compares, done, total, counters, term }
        }
        MaintenanceJob::Gc => {
            let (pass, counts) = (cluster.jobs.gc, view.counts()?);
            let counters = vec![
                counter("freed_bytes", pass.bytes),
                counter("garbage_chunks", counts.garbage_chunks),
                counter("deletes_pending", counts.deletes_pending),
                counter("disks_uncompacted", pass.bad),
            ];
            MaintainReply { running: pass.running, done: pass.disks_done, total: pass.disks, counters, term }
        }
        _ => {
            let pass = cluster.jobs.repair;
            let redundancy = view.counts()?.redundancy;
            let done = cluster.repaired.fragments - pass.repaired_before.min(cluster.repaired.fragments);
            let counters = vec![
                counter("fragments_repaired", done),
                counter("chunks_reduced", redundancy.reduced),
                counter("chunks_lost", redundancy.lost),
            ];
            let running = redundancy.to_repair > 0 || cluster.jobs.hurry || disks_return(view)?;
            MaintainReply { running, done, total: done + redundancy.to_repair, counters, term }
        }
    })
}
