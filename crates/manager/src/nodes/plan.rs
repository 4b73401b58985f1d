//! Planning in ticks: each part runs at its own interval and proposes commands.

use crate::chunks::garbage;
use crate::config::{Config, ns};
use crate::ctx::View;
use crate::error::Result;
use crate::internal::{DisksDrained, FinishBackfills, Internal, MoveMembers, propose_all};
use crate::nodes::membership;
use crate::placement::groups;
use crate::repair::{backfill, inventory, maintenance, moves, proof, rebuild};
use tessera_wire::{Health, NodeInfo};

/// Ticks come every 100 ms or so. After a longer pause than this (or half of `down_after_ms`) the manager itself was
/// stopped, so the silence says nothing about the nodes.
const MIN_GAP_NS: i64 = 1_000_000_000;
/// Proposes changes that are due: nodes that are down or out, moves of members, garbage, groups to open and close.
pub fn on_tick(view: &mut View) {
    if let Err(failure) = tick(view) {
        tracing::warn!(%failure, "planning failed; it is tried again at the next tick");
    }
}

/// Longest normal time between ticks. A longer gap means that the manager was stopped or its clock set forward.
pub fn gap_ns(config: &Config) -> i64 {
    ns(config.down_after_ms / 2).max(MIN_GAP_NS)
}

fn tick(view: &mut View) -> Result<()> {
    let now = view.now_ns;
    let hurry = view.soft.cluster.jobs.hurry;
    membership::silence(view, hurry)?;
    if hurry {
        let node_map = view.caches.node_map(view.db)?;
        let is_away = |node: &NodeInfo| match node.health() {
            Health::Down => true,
            Health::Up => membership::is_silent(view, node),
            _ => false,
        };
        let is_awaited = node_map.nodes.values().any(is_away) || node_map.disks.values().any(membership::is_absent);
        view.soft.cluster.jobs.hurry = is_awaited;
    }
    plan_members(view)?;
    if due(&mut view.soft.cluster.pace.groups, view.meta.map_version, now, 2_000) {
        view.proposals.extend(groups::groups_due(view)?.map(|groups| groups.propose()));
    }
    view.proposals.extend(garbage::due(view)?.map(|collect| collect.propose()));
    if elapsed(&mut view.soft.cluster.pace.missing_ns, now, 200) {
        rebuild::queue_missing(view)?;
    }
    if elapsed(&mut view.soft.cluster.pace.proof_ns, now, 500) {
        proof::queue_unproven(view)?;
    }
    if elapsed(&mut view.soft.cluster.pace.maintenance_ns, now, 1_000) {
        let inventory = inventory::due(view)?;
        view.proposals.extend(inventory.map(|want| want.propose()));
        scrub_due(view)?;
        maintenance::on_tick(view)?;
    }
    Ok(())
}

/// Plans moves of members, ends complete backfills, finds emptied disks.
fn plan_members(view: &mut View) -> Result<()> {
    let now = view.now_ns;
    let room_is_known = room_is_known(view)?;
    if room_is_known && due(&mut view.soft.cluster.pace.moves, view.meta.map_version, now, 5_000) {
        let due = moves::moves_due(view)?;
        view.soft.cluster.members_waiting = due.waiting;
        view.proposals.extend(propose_all(due.moves, |moves| MoveMembers { moves }));
        view.proposals.extend(propose_all(membership::emptied(view)?, |disk_ids| DisksDrained { disk_ids }));
    }
    if elapsed(&mut view.soft.cluster.pace.finish_ns, now, 200) {
        let finished = backfill::finished_backfills(view, 256)?;
        view.proposals.extend(propose_all(finished, |backfills| FinishBackfills { backfills }));
    }
    if room_is_known && elapsed(&mut view.soft.cluster.pace.balance_ns, now, 5_000) {
        let disks = view.caches.node_map(view.db)?.disks.len();
        let moves = moves::rebalance(view, (disks / 2).max(2))?;
        view.proposals.extend(propose_all(moves, |moves| MoveMembers { moves }));
    }
    Ok(())
}

/// Whether each disk that could take members has reported its free bytes since this manager began to lead. A node that does not
/// report soon counts as down.
fn room_is_known(view: &View) -> Result<bool> {
    let reports = &view.soft.cluster.stats.disks;
    let node_map = view.caches.node_map(view.db)?;
    Ok(node_map.disks.values().filter(|d| d.may_take_members()).all(|d| reports.contains_key(&d.disk_id)))
}

/// Whether planning that looks at every group is due: soon after a map change, else every `every_ms` (a disk may have been
/// emptied or filled). If so, sets `last` to this map version and time.
fn due(last: &mut (u64, i64), map_version: u64, now_ns: i64, every_ms: u64) -> bool {
    let (planned, at) = *last;
    let due = (planned != map_version && now_ns - at >= ns(100)) || now_ns - at >= ns(every_ms);
    if due {
        *last = (map_version, now_ns);
    }
    due
}

/// Starts the scrub of disks that are due.
fn scrub_due(view: &mut View) -> Result<()> {
    let every = ns(view.config.scrub_every_ms);
    if every == 0 {
        return Ok(());
    }
    let started = view.soft.started_ns;
    let node_map = view.caches.node_map(view.db)?;
    for disk in node_map.readable() {
        let cluster = &mut view.soft.cluster;
        let last = cluster.scrubbed_ns.entry(disk.disk_id).or_insert(started);
        if view.now_ns - *last >= every {
            *last = view.now_ns;
            cluster.tasks.scrub_wanted.insert(disk.disk_id);
        }
    }
    Ok(())
}

/// Whether `every_ms` have passed since `last`; if so, sets `last` to now.
fn elapsed(last: &mut i64, now_ns: i64, every_ms: u64) -> bool {
    let due = now_ns - *last >= ns(every_ms);
    if due {
        *last = now_ns;
    }
    due
}
