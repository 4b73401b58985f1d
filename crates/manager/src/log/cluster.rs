//! The seam to groups, membership, repair, garbage and status: the core calls these functions and no other of theirs.
//!
//! Requests that change rows are commands ([`apply`]); heartbeats and the like change soft state at once and propose
//! commands for what must be logged ([`take_in`], then [`reply`]); time proposes the rest ([`on_tick`]).
//! The work itself is in the modules named after it.

use crate::chunks::garbage;
use crate::config::ns;
use crate::db::rows;
use crate::error::{Result, invalid, refuse};
use crate::log::internal::{DeletesDone, DisksDrained, FinishBackfills, FragmentsBad, InternalCommand, MoveMembers};
use crate::nodes::membership;
use crate::nodes::stats::ClusterStats;
use crate::nodes::status;
use crate::placement::groups;
use crate::placement::select::GroupSelector;
use crate::repair::backfill;
use crate::repair::inventory;
use crate::repair::maintenance;
use crate::repair::maintenance::MaintenanceJobs;
use crate::repair::rebuild;
use crate::repair::rebuild::RepairCounters;
use crate::repair::tasks::{Assignment, Tasks, Work};
use crate::state::{Ctx, Internal, Proposal, View};
use std::collections::BTreeMap;
use tessera_wire::meta::*;
use tessera_wire::{Ack, Code, Kind, PgInfo};

/// Fragments in one verification.
const VERIFY_AT_ONCE: usize = 256;
/// Ticks come every 100 ms or so; after a longer pause than this (or half of `down_after_ms`) the manager was stopped, and
/// must not take its own absence for the nodes'.
const MIN_GAP_NS: i64 = 1_000_000_000;
/// Groups told to a node in one answer.
const PGS_PER_ANSWER: i64 = 4_096;

/// Soft state of nodes, disks and tasks.
#[derive(Debug, Default)]
pub struct ClusterState {
    /// The open groups and their weights.
    pub selector: GroupSelector,
    /// New chunks that went elsewhere than their placement hint asked.
    pub placements_not_met: u64,
    /// What nodes say of themselves and their disks.
    pub stats: ClusterStats,
    /// Work that is handed out.
    pub tasks: Tasks,
    /// What was repaired.
    pub repaired: RepairCounters,
    /// Upkeep that was asked for.
    pub jobs: MaintenanceJobs,
    /// Group from which missing rows are loaded next.
    pub missing_from: u64,
    /// How far deletes have been handed out, by disk.
    pub deletes: BTreeMap<u64, garbage::DeleteCursor>,
    /// When each disk was last told to list itself.
    pub listed_ns: BTreeMap<u64, i64>,
    /// When each disk was last told to re-read itself.
    pub scrubbed_ns: BTreeMap<u64, i64>,
    pace: Pace,
}

/// When the parts of a tick last ran, and for which map.
#[derive(Debug, Default)]
struct Pace {
    moves: (u64, i64),
    groups: (u64, i64),
    finish_ns: i64,
    balance_ns: i64,
    missing_ns: i64,
    maintenance_ns: i64,
}

/// Requests that are logged commands applied here.
pub fn is_command(kind: Kind) -> bool {
    matches!(kind, Kind::RegisterNode | Kind::Drain)
}

/// Applies a logged request ([`is_command`]) or an internal command (0x8100 and up, internal.rs); the encoded reply.
pub fn apply(ctx: &mut Ctx, kind: u32, body: &[u8]) -> Result<Vec<u8>> {
    match u16::try_from(kind).ok().and_then(Kind::from_number) {
        Some(Kind::RegisterNode) => {
            return Ok(encode(&membership::register(ctx, &decode::<RegisterNode>(body)?)?));
        }
        Some(Kind::Drain) => {
            membership::drain(ctx, &decode::<Drain>(body)?)?;
            return Ok(encode(&Ack {}));
        }
        _ => {}
    }
    let Some(Ok(command)) = InternalCommand::decode(kind, body) else {
        return refuse(Code::Unsupported, format!("command {kind:#06x} is not known to this release"));
    };
    match &command {
        InternalCommand::SetNodeHealth(c) => {
            let (node_id, gone) = (c.node_id, c.health() != tessera_wire::Health::Up);
            membership::set_node_health(ctx, c)?;
            ctx.after_commit(move |soft| {
                if gone {
                    soft.cluster.tasks.forget_node(node_id);
                }
            });
        }
        InternalCommand::FailDisks(c) => membership::fail_disks(ctx, c)?,
        InternalCommand::MoveMembers(c) => backfill::move_members(ctx, c)?,
        InternalCommand::AdvanceBackfill(c) => backfill::advance_backfill(ctx, c)?,
        InternalCommand::FinishBackfills(c) => backfill::finish_backfills(ctx, c)?,
        InternalCommand::FragmentsDone(c) => rebuild::fragments_done(ctx, c)?,
        InternalCommand::FragmentsBad(c) => rebuild::fragments_bad(ctx, c)?,
        InternalCommand::DeletesDone(c) => garbage::deletes_done(ctx, c)?,
        InternalCommand::CollectGarbage(c) => garbage::collect(ctx, c)?,
        InternalCommand::SetInventory(c) => inventory::set_inventory(ctx, c)?,
        InternalCommand::InventoryPage(c) => inventory::apply_page(ctx, c)?,
        InternalCommand::DisksDrained(c) => membership::drained(ctx, &c.disk_ids)?,
        InternalCommand::SetGroups(c) => groups::set_groups(ctx, c)?,
    }
    Ok(encode(&Ack {}))
}

/// Answers a read (GetMap, GetStatus) from the committed state.
pub fn read(view: &mut View, kind: Kind, body: &[u8]) -> Result<Vec<u8>> {
    match kind {
        Kind::GetMap => Ok(encode(&get_map(view, &decode::<GetMap>(body)?)?)),
        Kind::GetStatus => Ok(encode(&status::get_status(view)?)),
        _ => refuse(Code::Unsupported, format!("{} is not known to this release", kind.name())),
    }
}

fn get_map(view: &View, request: &GetMap) -> Result<ClusterMap> {
    let (db, version, caches) = (view.db, view.meta.map_version, view.caches);
    let known = request.known_version;
    let mut map = match request.pg_ids.is_empty() && !request.all_nodes {
        true => groups::whole_map_since(db, version, caches, known)?,
        false => {
            let known = if request.all_nodes { 0 } else { known };
            groups::map_since(db, version, caches, known, &request.pg_ids)?
        }
    };
    for disk in &mut map.disks {
        if let Some(stats) = view.soft.cluster.stats.disks.get(&disk.disk_id) {
            disk.free_bytes = stats.free_bytes;
            disk.fragments = stats.fragments;
            disk.queue_len = stats.queue_len;
            disk.verified_ns = stats.verified_ns;
        }
    }
    Ok(map)
}

/// Heartbeat, Inventory, ReportBad, ReportWork, Maintain: takes in what is soft, and proposes what must be logged. The answer
/// ([`reply`]) is composed once the proposals are committed (at once when there are none).
pub fn take_in(view: &mut View, kind: Kind, body: &[u8]) -> Result<Vec<Proposal>> {
    match kind {
        Kind::Heartbeat => take_heartbeat(view, &decode::<Heartbeat>(body)?),
        Kind::Inventory => {
            let page = decode::<Inventory>(body)?;
            check_current(view, page.node_id, page.incarnation)?;
            check_own(view, page.node_id, page.disk_id)?;
            Ok(vec![inventory::take_page(view, &page)?.propose()])
        }
        Kind::ReportBad => {
            rebuild::report_bad(view, &decode::<ReportBad>(body)?.fragments)?;
            Ok(Vec::new())
        }
        Kind::ReportWork => {
            view.soft.cluster.stats.hear_work(&decode::<ReportWork>(body)?.device_work);
            Ok(Vec::new())
        }
        Kind::Maintain => {
            maintenance::start(view, &decode::<Maintain>(body)?)?;
            Ok(Vec::new())
        }
        _ => refuse(Code::Unsupported, format!("{} is not known to this release", kind.name())),
    }
}

/// The answer to a request that [`take_in`] accepted.
pub fn reply(view: &mut View, kind: Kind, body: &[u8]) -> Result<Vec<u8>> {
    match kind {
        Kind::Heartbeat => Ok(encode(&answer_heartbeat(view, &decode::<Heartbeat>(body)?)?)),
        Kind::Inventory => Ok(encode(&inventory::reply(view, &decode::<Inventory>(body)?)?)),
        Kind::ReportBad | Kind::ReportWork => Ok(encode(&Ack {})),
        Kind::Maintain => Ok(encode(&maintenance::report(view, &decode::<Maintain>(body)?)?)),
        _ => refuse(Code::Unsupported, format!("{} is not known to this release", kind.name())),
    }
}

/// Only the life of a node that counts may speak for it (P11).
fn check_current(view: &View, node_id: u64, incarnation: u64) -> Result<()> {
    match membership::is_current(view, node_id, incarnation)? {
        true => Ok(()),
        false => refuse(
            Code::NotRegistered,
            format!(
                "node {node_id}, life {incarnation}: was declared out or has registered anew since; register again"
            ),
        ),
    }
}

fn check_own(view: &View, node_id: u64, disk_id: u64) -> Result<()> {
    match view.caches.node_map(view.db)?.owns(node_id, disk_id) {
        true => Ok(()),
        false => invalid(format!("disk {disk_id} is not one of node {node_id}")),
    }
}

fn take_heartbeat(view: &mut View, beat: &Heartbeat) -> Result<Vec<Proposal>> {
    if !membership::is_current(view, beat.node_id, beat.incarnation)? {
        return Ok(Vec::new());
    }
    let mut proposals = membership::hear(view, beat)?;
    for result in &beat.results {
        proposals.extend(rebuild::take_result(view, beat.node_id, result)?);
    }
    let node_map = view.caches.node_map(view.db)?;
    let of_own = |refs: &[FragmentRef]| -> Vec<FragmentRef> {
        refs.iter().filter(|r| node_map.owns(beat.node_id, r.disk_id)).cloned().collect()
    };
    let (deleted, bad) = (of_own(&beat.deleted), of_own(&beat.bad));
    if !deleted.is_empty() {
        proposals.push(DeletesDone { fragments: deleted }.propose());
    }
    if !bad.is_empty() {
        view.soft.cluster.repaired.bad += bad.len() as u64;
        proposals.push(FragmentsBad { fragments: bad }.propose());
    }
    Ok(proposals)
}

fn answer_heartbeat(view: &mut View, beat: &Heartbeat) -> Result<HeartbeatReply> {
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
        reply.map = Some(groups::map_since(view.db, view.meta.map_version, view.caches, known, &[])?);
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

/// Groups with members on the node's disks that changed since the map it has: their epochs fence old puts (P11).
fn groups_of(view: &View, node_id: u64, known: u64) -> Result<Vec<PgInfo>> {
    let ids: Vec<u64> = view
        .db
        .stmt(
            "SELECT DISTINCT p.pg_id FROM pgs p JOIN pg_members m ON m.pg_id = p.pg_id
             JOIN disks d ON d.disk_id IN (m.disk_id, m.incoming_disk_id)
             WHERE d.node_id = ?1 AND p.map_version > ?2 LIMIT ?3",
        )?
        .query_map([node_id as i64, known as i64, PGS_PER_ANSWER], |row| rows::unsigned(row, 0))?
        .collect::<Result<_, _>>()?;
    ids.into_iter().map(|id| Ok(view.caches.pg(view.db, id)?.info())).collect()
}

/// Verification, scrub and compaction of one disk, one of each at a time.
fn disk_maintenance(view: &mut View, node_id: u64, disk_id: u64) -> Vec<Task> {
    let tasks = &mut view.soft.cluster.tasks;
    let mut given = Vec::new();
    let mut give = |tasks: &mut Tasks, work: Work, mut wire: Task| {
        wire.task_id = tasks.draw();
        given.push(tasks.give(Assignment { node_id, disk_id, member: (0, 0), epoch: 0, work, wire }));
    };
    if !tasks.has(disk_id, |w| matches!(w, Work::Verify)) {
        let fragments = tasks.take_suspects(disk_id, VERIFY_AT_ONCE);
        if !fragments.is_empty() {
            give(tasks, Work::Verify, Task { verify: Some(VerifyTask { fragments }), ..Task::default() });
        }
    }
    if tasks.scrub_wanted.contains(&disk_id) && !tasks.has(disk_id, |w| matches!(w, Work::Scrub)) {
        tasks.scrub_wanted.remove(&disk_id);
        give(tasks, Work::Scrub, Task { scrub: Some(ScrubTask { disk_id }), ..Task::default() });
    }
    if tasks.compact_wanted.contains(&disk_id) && !tasks.has(disk_id, |w| matches!(w, Work::Compact)) {
        tasks.compact_wanted.remove(&disk_id);
        give(tasks, Work::Compact, Task { compact: Some(CompactTask { disk_id }), ..Task::default() });
    }
    given
}

/// Proposals that time brings: nodes down and out, fills, garbage, groups to open and close.
pub fn on_tick(view: &mut View) -> Vec<Proposal> {
    let mut proposals = Vec::new();
    if let Err(failure) = tick(view, &mut proposals) {
        tracing::warn!(%failure, "upkeep of nodes and groups could not be planned; it is tried again");
    }
    proposals
}

/// Ticks further apart than this say that the manager was stopped, or its clock set forward.
pub fn gap_ns(config: &crate::config::Config) -> i64 {
    ns(config.down_after_ms / 2).max(MIN_GAP_NS)
}

fn tick(view: &mut View, proposals: &mut Vec<Proposal>) -> Result<()> {
    let now = view.now_ns;
    view.soft.cluster.stats.tick(now, gap_ns(view.config));
    let hurry = view.soft.cluster.jobs.hurry;
    proposals.extend(membership::silence(view, hurry)?);
    if hurry {
        let waits = view.caches.node_map(view.db)?.nodes.values().any(|n| n.health == tessera_wire::Health::Down);
        view.soft.cluster.jobs.hurry = waits;
    }
    plan_members(view, proposals)?;
    plan_groups(view, proposals)?;
    if let Some(collect) = garbage::due(view)? {
        proposals.push(collect.propose());
    }
    if elapsed(&mut view.soft.cluster.pace.missing_ns, now, 200) {
        rebuild::queue_missing(view)?;
    }
    if elapsed(&mut view.soft.cluster.pace.maintenance_ns, now, 1_000) {
        if let Some(want) = inventory::due(view)? {
            proposals.push(want.propose());
        }
        scrub_due(view)?;
        maintenance::on_tick(view)?;
    }
    Ok(())
}

/// Moves of members, fills that are through, disks that are empty.
fn plan_members(view: &mut View, proposals: &mut Vec<Proposal>) -> Result<()> {
    let (now, map_version) = (view.now_ns, view.meta.map_version);
    let (planned, at) = view.soft.cluster.pace.moves;
    // Planning looks at every group: at once when the map has changed, now and then otherwise (a disk was emptied).
    if (planned != map_version && now - at >= ns(100)) || now - at >= ns(5_000) {
        view.soft.cluster.pace.moves = (map_version, now);
        let moves = backfill::moves_due(view)?;
        if !moves.is_empty() {
            proposals.push(MoveMembers { moves }.propose());
        }
        let disk_ids = membership::emptied(view)?;
        if !disk_ids.is_empty() {
            proposals.push(DisksDrained { disk_ids }.propose());
        }
    }
    if elapsed(&mut view.soft.cluster.pace.finish_ns, now, 200) {
        let fills = backfill::finished_backfills(view, 256)?;
        if !fills.is_empty() {
            proposals.push(FinishBackfills { fills }.propose());
        }
    }
    if elapsed(&mut view.soft.cluster.pace.balance_ns, now, 5_000) {
        let disks = view.caches.node_map(view.db)?.disks.len();
        let moves = backfill::rebalance(view, (disks / 2).max(2))?;
        if !moves.is_empty() {
            proposals.push(MoveMembers { moves }.propose());
        }
    }
    Ok(())
}

fn plan_groups(view: &mut View, proposals: &mut Vec<Proposal>) -> Result<()> {
    let (now, map_version) = (view.now_ns, view.meta.map_version);
    let (planned, at) = view.soft.cluster.pace.groups;
    if (planned != map_version && now - at >= ns(100)) || now - at >= ns(2_000) {
        view.soft.cluster.pace.groups = (map_version, now);
        if let Some(groups) = groups::groups_due(view)? {
            proposals.push(groups.propose());
        }
    }
    Ok(())
}

/// Disks whose regular re-reading is due.
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

/// Whether `every_ms` have passed since `last`, which then becomes now.
fn elapsed(last: &mut i64, now_ns: i64, every_ms: u64) -> bool {
    let due = now_ns - *last >= ns(every_ms);
    if due {
        *last = now_ns;
    }
    due
}

/// The manager has started: its tasks have numbers of its own term.
pub fn after_start(view: &mut View) {
    view.soft.cluster.tasks.term = view.meta.term;
}

fn decode<M: prost::Message + Default>(body: &[u8]) -> Result<M> {
    match M::decode(body) {
        Ok(message) => Ok(message),
        Err(why) => invalid(format!("the request cannot be read: {why}")),
    }
}

fn encode(message: &impl prost::Message) -> Vec<u8> {
    message.encode_to_vec()
}
