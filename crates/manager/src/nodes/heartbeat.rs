//! Heartbeats and inventories of nodes. Their content changes soft state at once; changes that must be logged are
//! proposed. The reply carries the map, deletes and tasks.

use crate::chunks::garbage;
use crate::ctx::View;
use crate::db::sql::args;
use crate::error::{Result, invalid, refuse};
use crate::internal::{DeletesDone, FragmentsBad, Internal, propose_all};
use crate::map::delta;
use crate::nodes::membership;
use crate::repair::{inventory, rebuild};
use crate::soft::ClusterState;
use crate::soft::tasks::{Assignment, Work};
use prost::Message;
use tessera_wire::meta::*;
use tessera_wire::{Code, PgInfo};

/// Most fragments in one verification task.
const VERIFY_AT_ONCE: usize = 256;
/// Most groups in one reply.
const PGS_PER_ANSWER: i64 = 4_096;

/// Refuses a message of an older incarnation of the node (P11).
fn check_current(view: &View, node_id: u64, incarnation: u64) -> Result<()> {
    if membership::is_current(view, node_id, incarnation)? {
        return Ok(());
    }
    let node = format!("node {node_id}, incarnation {incarnation}");
    refuse(Code::NotRegistered, format!("{node}: was declared out or has registered again since; register again"))
}

/// Processes a page of an inventory.
///
/// # Errors
/// The incarnation is old (P11), the disk is not the node's, or the database fails.
pub fn take_inventory(view: &mut View, page: &Inventory) -> Result<()> {
    check_current(view, page.node_id, page.incarnation)?;
    if !view.caches.node_map(view.db)?.owns(page.node_id, page.disk_id) {
        return invalid(format!("disk {} is not one of node {}", page.disk_id, page.node_id));
    }
    let page = inventory::take_page(view, page)?;
    view.proposals.push(page.propose());
    Ok(())
}

/// Adds a client's device work to the statistics. It never fails; the table of requests wants a `Result`.
pub fn take_work(view: &mut View, request: &ReportWork) -> Result<()> {
    view.soft.cluster.stats.hear_work(&request.device_work);
    Ok(())
}

/// Processes a heartbeat.
///
/// # Errors
/// The database fails.
pub fn take_in(view: &mut View, beat: &Heartbeat) -> Result<()> {
    if !membership::is_current(view, beat.node_id, beat.incarnation)? {
        return Ok(());
    }
    membership::hear(view, beat)?;
    beat.results.iter().for_each(|result| rebuild::take_result(view, beat.node_id, result));
    let node_map = view.caches.node_map(view.db)?;
    let of_own = |refs: &[FragmentRef]| -> Vec<FragmentRef> {
        refs.iter().filter(|r| node_map.owns(beat.node_id, r.disk_id)).cloned().collect()
    };
    view.soft.cluster.repaired.deletes += beat.deleted.len() as u64;
    view.proposals.extend(propose_all(of_own(&beat.deleted), |fragments| DeletesDone { fragments }));
    let bad = of_own(&beat.bad);
    view.soft.cluster.repaired.bad += bad.len() as u64;
    view.proposals.extend(propose_all(bad, |fragments| FragmentsBad { fragments }));
    Ok(())
}

/// Replies to a processed heartbeat with the map, deletes and tasks for the node.
///
/// # Errors
/// The database fails.
pub fn reply(view: &mut View, beat: &Heartbeat) -> Result<HeartbeatReply> {
    let mut reply = HeartbeatReply { term: view.meta.term, log_seq: view.meta.log_seq, ..HeartbeatReply::default() };
    if !membership::is_current(view, beat.node_id, beat.incarnation)? {
        reply.must_register = true;
        return Ok(reply);
    }
    reply.lease_ms = view.config.node_lease_ms;
    reply.repair_bytes_per_s = view.config.repair_bytes_per_s;
    reply.scrub_bytes_per_s = view.config.scrub_bytes_per_s;
    let known = if beat.known_map_version > view.meta.map_version { 0 } else { beat.known_map_version };
    if known != view.meta.map_version {
        reply.map = Some(delta::map_since(view.db, view.meta.map_version, view.caches, known, [])?);
        reply.pgs = groups_of(view, beat.node_id, known)?;
    }
    let node_map = view.caches.node_map(view.db)?;
    let disks: Vec<u64> = node_map.disks_of(beat.node_id).filter(|d| d.readable()).map(|d| d.disk_id).collect();
    reply.deletes = garbage::orders(view, &disks)?;
    reply.tasks = view.soft.cluster.tasks.unheard(beat.node_id, &beat.running_tasks);
    reply.tasks.extend(inventory::hand_out(view, beat.node_id)?);
    for disk_id in disks {
        reply.tasks.extend(disk_maintenance(view, beat.node_id, disk_id));
    }
    reply.tasks.extend(rebuild::hand_out(view, beat.node_id)?);
    Ok(reply)
}

/// Whether a node, by its heartbeat and the reply, has nothing to do, and nothing to tell.
pub fn is_at_rest(beat: &[u8], reply: &[u8]) -> bool {
    let (Ok(beat), Ok(reply)) = (Heartbeat::decode(beat), HeartbeatReply::decode(reply)) else { return false };
    let works = !beat.running_tasks.is_empty() || !beat.results.is_empty();
    let tells = !beat.deleted.is_empty() || !beat.bad.is_empty();
    let gets = reply.map.is_some()
        || !reply.tasks.is_empty()
        || !reply.deletes.is_empty()
        || !reply.pgs.is_empty()
        || reply.must_register;
    !(works || tells || gets)
}

/// Groups on the node's disks that changed since map version `known`: their epochs fence old puts (P11).
fn groups_of(view: &View, node_id: u64, known: u64) -> Result<Vec<PgInfo>> {
    let ids: Vec<u64> = view.db.all(
        "SELECT DISTINCT p.pg_id FROM pgs p JOIN pg_members m ON m.pg_id = p.pg_id
         JOIN disks d ON d.disk_id IN (m.disk_id, m.incoming_disk_id)
         WHERE d.node_id = ?1 AND p.map_version > ?2 LIMIT ?3",
        args![node_id, known, PGS_PER_ANSWER],
    )?;
    ids.into_iter().map(|id| Ok(view.caches.pg(view.db, id)?.info())).collect()
}

/// Verification, scrub and compaction of one disk; at most one task of each kind runs.
fn disk_maintenance(view: &mut View, node_id: u64, disk_id: u64) -> Vec<Task> {
    let ClusterState { tasks, stats, .. } = &mut view.soft.cluster;
    let mut due = Vec::new();
    if !tasks.has(disk_id, |w| matches!(w, Work::Verify)) {
        let fragments = tasks.take_suspects(disk_id, VERIFY_AT_ONCE);
        if !fragments.is_empty() {
            due.push((Work::Verify, Task { verify: Some(VerifyTask { fragments }), ..Task::default() }));
        }
    }
    if !tasks.has(disk_id, |w| matches!(w, Work::Scrub)) && tasks.scrub_wanted.remove(&disk_id) {
        // What the node has said is of the cycle before.
        stats.disks.entry(disk_id).or_default().scrubbed_bytes = 0;
        due.push((Work::Scrub, Task { scrub: Some(ScrubTask { disk_id }), ..Task::default() }));
    }
    if !tasks.has(disk_id, |w| matches!(w, Work::Compact)) && tasks.compact_wanted.remove(&disk_id) {
        due.push((Work::Compact, Task { compact: Some(CompactTask { disk_id }), ..Task::default() }));
    }
    let give = |(work, wire)| tasks.give(Assignment { node_id, disk_id, member: (0, 0), epoch: 0, work, wire });
    due.into_iter().map(give).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_works_or_gets_work_is_not_at_rest() {
        let rests =
            |beat: &Heartbeat, reply: &HeartbeatReply| is_at_rest(&beat.encode_to_vec(), &reply.encode_to_vec());
        let (beat, reply) = (Heartbeat::default(), HeartbeatReply { lease_ms: 5_000, ..HeartbeatReply::default() });
        assert!(rests(&beat, &reply));
        let fragment = || vec![FragmentRef::default()];
        for busy in [
            Heartbeat { running_tasks: vec![1], ..beat.clone() },
            Heartbeat { results: vec![TaskResult::default()], ..beat.clone() },
            Heartbeat { deleted: fragment(), ..beat.clone() },
            Heartbeat { bad: fragment(), ..beat.clone() },
        ] {
            assert!(!rests(&busy, &reply), "{busy:?}");
        }
        for work in [
            HeartbeatReply { map: Some(ClusterMap::default()), ..reply.clone() },
            HeartbeatReply { tasks: vec![Task::default()], ..reply.clone() },
            HeartbeatReply { deletes: vec![Default::default()], ..reply.clone() },
            HeartbeatReply { pgs: vec![PgInfo::default()], ..reply.clone() },
            HeartbeatReply { must_register: true, ..reply.clone() },
        ] {
            assert!(!rests(&beat, &work), "{work:?}");
        }
    }
}
