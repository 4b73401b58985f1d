//! The report of `tessera status`, from the rows and the last heartbeats.

use crate::counts::StoreCounts;
use crate::ctx::View;
use crate::db::rows::{self, DiskRow};
use crate::error::Result;
use std::collections::BTreeSet;
use tessera_consensus::plan::voters_wanted as voters_of;
use tessera_wire::consensus::PeerKind;
use tessera_wire::meta::{ClusterStatus, Counter};
use tessera_wire::{Health, NodeInfo};

/// Answers GetStatus.
///
/// # Errors
/// The database fails.
pub fn get_status(view: &View<'_>) -> Result<ClusterStatus> {
    let (db, meta) = (view.db, view.meta);
    let (nodes, disks) = (rows::nodes(db)?, rows::disks(db)?);
    let counts = view.counts()?;
    let redundancy = counts.redundancy;
    let repaired = view.soft.cluster.repaired;
    let stats = &view.soft.cluster.stats.disks;
    let said = |disk: &DiskRow| stats.get(&disk.disk_id).map(|stats| stats.said.clone()).unwrap_or_default();
    Ok(ClusterStatus {
        cluster_id: meta.cluster_id.to_vec(),
        nodes: nodes.iter().map(|n| rows::node_to_wire(n, &disks)).collect(),
        disks: disks.iter().map(|d| rows::disk_to_wire(d, said(d))).collect(),
        files: meta.files,
        directories: meta.directories,
        versions: meta.versions,
        chunks: meta.chunks,
        logical_bytes: meta.logical_bytes,
        unique_bytes: meta.unique_bytes + meta.inlined_bytes,
        stored_bytes: meta.stored_bytes,
        chunks_full: redundancy.full,
        chunks_reduced: redundancy.reduced,
        chunks_lost: redundancy.lost,
        members_backfilling: redundancy.backfilling,
        fragments_to_repair: redundancy.to_repair,
        fragments_repaired: repaired.fragments,
        repaired_bytes: repaired.bytes,
        garbage_chunks: counts.garbage_chunks,
        garbage_bytes: counts.garbage_bytes,
        deletes_pending: counts.deletes_pending,
        sessions: view.soft.sessions.len() as u64,
        reserved_bytes: view.soft.sessions.reserved_bytes(),
        term: meta.term,
        log_seq: meta.log_seq,
        pgs: counts.pgs,
        release: env!("CARGO_PKG_VERSION").to_string(),
        counters: counters(view, &counts),
        map_version: meta.map_version,
        rejected_nodes: view.soft.rejected_nodes.known(view.wall_ns),
        device_work: view.soft.cluster.stats.work(),
        peers: view.soft.peers.clone(),
        voters_wanted: voters_wanted(view, &nodes),
        surplus_managers: view.soft.surplus_managers.clone(),
        comparison: Some(view.soft.comparison.last.clone()),
        members_waiting: view.soft.cluster.members_waiting.clone(),
        inlined_bytes: meta.inlined_bytes,
        no_room: view.soft.no_room.clone(),
    })
}

/// How many peers should vote, given the hosts of the managers and of the nodes that are up; 0: this manager is in no group.
fn voters_wanted(view: &View<'_>, nodes: &[NodeInfo]) -> u32 {
    let members = || view.soft.peers.iter().filter_map(|peer| peer.member.as_ref());
    let managers = || members().filter(|member| member.kind() == PeerKind::Manager);
    if managers().next().is_none() {
        return 0;
    }
    let up = nodes.iter().filter(|node| node.health() == Health::Up);
    let hosts: BTreeSet<&String> = managers().map(|member| &member.host).chain(up.map(|node| &node.host)).collect();
    voters_of(hosts.len(), view.config.max_voters as usize).max(managers().count()) as u32
}

fn counters(view: &View<'_>, counts: &StoreCounts) -> Vec<Counter> {
    let cluster = &view.soft.cluster;
    let (scrubbed_ns, pages_scrubbed) = view.db.watch().map_or((0, 0), |watch| watch.last_scrub());
    let counters = [
        ("bad_fragments_found", cluster.repaired.bad),
        ("bad_fragments_reported", cluster.repaired.reports),
        ("rebuilds_failed", cluster.repaired.failed),
        ("files_expired", view.soft.files_expired),
        ("placements_not_met", cluster.placements_not_met),
        ("chunks_unproven", counts.chunks_unproven),
        ("wrong_fragments_replaced", cluster.tasks.proofs.replaced),
        ("tasks_out", cluster.tasks.given.len() as u64),
        ("metadata_scrubbed_ms", scrubbed_ns / 1_000_000),
        ("metadata_pages_scrubbed", pages_scrubbed),
        ("scrubbed_bytes", cluster.stats.disks.values().map(|d| d.scrubbed_bytes).sum()),
    ];
    counters.into_iter().map(|(name, value)| Counter { name: name.to_string(), value }).collect()
}
