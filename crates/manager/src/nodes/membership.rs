//! Membership: how nodes and disks register, send heartbeats, fall silent, fail, drain and return.
//!
//! P11: a node acknowledges only while its lease runs (`node_lease_ms` after it *sent* its last answered heartbeat). The
//! manager declares it out only after a longer time without an *arriving* heartbeat. So a node that is out acknowledges
//! nothing; `must_register` tells it to register again. A disk that was out may hold chunks that were deleted in the
//! meantime: it stays `Down` until its inventory is complete ([`crate::repair::inventory`]).

use crate::chunks::garbage;
use crate::clock::Time;
use crate::config::ns;
use crate::ctx::{Ctx, View};
use crate::db::meta::draw;
use crate::db::rows::{self, DiskRow};
use crate::db::sql::args;
use crate::error::{Result, invalid, refuse};
use crate::internal::{DisksDrained, FailDisks, Internal, Proposal, SetNodeHealth, propose_all};
use crate::map::tables;
use crate::repair::backfill;
use crate::soft::Effect;
use crate::soft::stats;
use std::collections::BTreeSet;
use tessera_failpoint as failpoint;
use tessera_stripe::KEY_BYTES;
use tessera_wire::meta::{Drain, Heartbeat, RegisterNode, RegisterNodeReply};
use tessera_wire::{Ack, Code, DiskInfo, Error, Health, NodeInfo, hex};

/// Most disks of one node.
const MAX_DISKS: usize = 1024;
/// Most bytes of a name, host, address or path.
const MAX_TEXT: usize = 1024;

/// Registers a node that starts or returns. With `check_only` it only says whether it would: a node asks before it writes
/// the cluster's id onto new disks.
///
/// # Errors
/// The request is malformed (P14), another node uses the name or a disk, or the database fails.
pub fn register(ctx: &mut Ctx<'_>, request: &RegisterNode) -> Result<RegisterNodeReply> {
    let said = check_request(request)?;
    let known = request.disks.iter().map(|d| rows::disk_by_uuid(ctx.db, &d.uuid));
    let known: Vec<Option<DiskRow>> = known.collect::<rusqlite::Result<_>>()?;
    let by_name = rows::nodes(ctx.db)?.into_iter().find(|n| n.name == said.name);
    let node_id = identify(&known, by_name.as_ref(), said)?;
    if let Some(old) = node_id.map(|id| rows::node(ctx.db, id)).transpose()?.flatten() {
        let shared = known.iter().position(|d| d.as_ref().is_some_and(|d| d.node_id == old.node_id));
        check_return(ctx, &old, said, shared.map(|i| &request.disks[i]))?;
    }
    if request.check_only {
        return Ok(RegisterNodeReply { cluster_id: ctx.meta.cluster_id.to_vec(), ..RegisterNodeReply::default() });
    }
    let incarnation = draw(&mut ctx.meta.next_incarnation);
    let node_id = node_id.unwrap_or_else(|| draw(&mut ctx.meta.next_node));
    let known_key = rows::receipt_key(ctx.db, node_id)?;
    let receipt_key = if known_key.is_empty() { request.receipt_key.clone() } else { known_key };
    tables::write_node(ctx, node_id, said, incarnation, &receipt_key)?;
    let disks = request.disks.iter().zip(&known);
    let disk_ids: Vec<u64> =
        disks.map(|(said, old)| write_disk(ctx, (node_id, incarnation), said, old.as_ref())).collect::<Result<_>>()?;
    lay_aside_absent(ctx, node_id, &disk_ids)?;
    let disks = disk_ids.iter().copied().zip(request.disks.iter().cloned()).collect();
    ctx.after_commit(Effect::NodeRegistered {
        node_id,
        incarnation,
        time: Time { now_ns: ctx.now_ns, wall_ns: ctx.wall_ns },
        disks,
    });
    Ok(RegisterNodeReply {
        node_id,
        incarnation,
        disk_ids,
        heartbeat_ms: ctx.record(|_, live| Ok(live.config.heartbeat_ms))?,
        lease_ms: ctx.record(|_, live| Ok(live.config.node_lease_ms))?,
        cluster_id: ctx.meta.cluster_id.to_vec(),
        term: ctx.meta.term,
        log_seq: ctx.log_seq,
        receipt_key,
    })
}

/// Refuses a request that no correct node sends (P14).
fn check_request(request: &RegisterNode) -> Result<&NodeInfo> {
    let Some(node) = &request.node else { return invalid("register: the request has no description of the node") };
    for (what, text) in [("name", &node.name), ("host", &node.host), ("address", &node.address)] {
        if text.is_empty() || text.len() > MAX_TEXT {
            return invalid(format!("register: {what} has {} bytes; 1 to {MAX_TEXT} are allowed", text.len()));
        }
    }
    if request.disks.is_empty() || request.disks.len() > MAX_DISKS {
        let (name, count) = (&node.name, request.disks.len());
        return invalid(format!(
            "node {name}: brings {count} disks; 1 to {MAX_DISKS} are allowed, give them with --disk"
        ));
    }
    if request.receipt_key.len() != KEY_BYTES {
        let (name, got) = (&node.name, request.receipt_key.len());
        return invalid(format!("node {name}: its receipt key has {got} bytes, it needs {KEY_BYTES}; update the node"));
    }
    let mut uuids = BTreeSet::new();
    for disk in &request.disks {
        if disk.uuid.len() != 16 || disk.path.len() > MAX_TEXT || disk.capacity_bytes > i64::MAX as u64 {
            return invalid(format!("node {}: disk {:?} has no valid identity", node.name, disk.path));
        }
        if !uuids.insert(&disk.uuid) {
            let (name, uuid, path) = (&node.name, hex(&disk.uuid), &disk.path);
            return invalid(format!("node {name}: disk {uuid} ({path:?}) is named twice; each directory once"));
        }
    }
    Ok(node)
}

/// The registered node that this is: the owner of its disks, or the node of its name (its disks were replaced).
fn identify(known: &[Option<DiskRow>], by_name: Option<&NodeInfo>, said: &NodeInfo) -> Result<Option<u64>> {
    let mut owners = known.iter().flatten().map(|d| d.node_id);
    let owner = owners.next();
    if let (Some(a), Some(b)) = (owner, owners.find(|n| Some(*n) != owner)) {
        let text = format!("its disks belong to two nodes, {a} and {b}; start each node with its own disks");
        return refuse(Code::Exists, format!("node {}: {text}", said.name));
    }
    match (owner, by_name) {
        (Some(owner), Some(NodeInfo { name, node_id, address, .. })) if *node_id != owner => {
            let text = format!("name {name} belongs to node {node_id} at {address}, these disks to node {owner}");
            refuse(Code::Exists, format!("{text}; choose the name this node had"))
        }
        (owner, named) => Ok(owner.or(named.map(|n| n.node_id))),
    }
}

/// Checks that the node may return: no other process serves the same disks, and it is on the same host.
/// `shared`: a disk of the registered node that it brings; `None`: only the name is the same.
fn check_return(ctx: &mut Ctx<'_>, old: &NodeInfo, said: &NodeInfo, shared: Option<&DiskInfo>) -> Result<()> {
    if old.host != said.host {
        for disk in rows::disks_of(ctx.db, old.node_id)? {
            if !rows::members_on(ctx.db, disk.disk_id)?.is_empty() {
                let (name, was, now) = (&said.name, &old.host, &said.host);
                return invalid(format!(
                    "node {name} was registered on host {was:?} and says {now:?} now; its groups rely on distinct hosts: start it \
                     with --host {was}, or drain it first"
                ));
            }
        }
    }
    if old.address == said.address {
        return Ok(());
    }
    // Time of the other node's last heartbeat, 0 if it is not alive. The refused node can see whether it advances.
    let current = ctx.record(|ctx, live| {
        let heard_ns = live.soft.cluster.stats.nodes.get(&old.node_id).map(|node| node.heard_ns);
        let since_ns = ctx.now_ns.saturating_sub(ns(live.config.heartbeat_ms.saturating_mul(MISSED_HEARTBEATS)));
        Ok(heard_ns.filter(|heard_ns| *heard_ns > since_ns).map_or(0, |heard_ns| heard_ns.max(1) as u64))
    })?;
    if current == 0 {
        return Ok(());
    }
    let (name, address, here) = (&old.name, &old.address, &said.address);
    let text = match shared.map(|disk| (hex(&disk.uuid), &disk.path)) {
        Some((uuid, path)) => format!(
            "node {name} at {address} is alive and serves disk {uuid}, which the one at {here} brings as {path}; remove the copied \
             directory and give this node one of its own, or stop the other node first"
        ),
        None => format!(
            "node {name} at {address} is alive, and the one at {here} has the same name; start another node on this host with \
             --name, or stop the other one first"
        ),
    };
    Err(Error { current, ..Error::new(Code::Exists, text) }.into())
}

/// Writes the row of a disk of a registering node (id, incarnation); returns the disk id.
fn write_disk(ctx: &mut Ctx<'_>, node: (u64, u64), said: &DiskInfo, old: Option<&DiskRow>) -> Result<u64> {
    let Some(old) = old else { return tables::insert_disk(ctx, node, said) };
    tables::update_disk(ctx, old, said)?;
    match old.own_health {
        // The disk missed deletes and may have lost content: it serves again after an inventory.
        Health::Out if failpoint::is_active("manager.returns_unlisted") => {
            tables::set_disk_health(ctx, old.disk_id, Health::Up)?
        }
        Health::Out => {
            tables::want_inventory(ctx, old.disk_id)?;
            tables::set_disk_health(ctx, old.disk_id, Health::Down)?;
        }
        Health::Down if old.inventory_wanted == 0 => tables::set_disk_health(ctx, old.disk_id, Health::Up)?,
        _ => {}
    }
    Ok(old.disk_id)
}

/// Marks the node's disks that it did not bring as down; they become out if they stay away.
fn lay_aside_absent(ctx: &mut Ctx<'_>, node_id: u64, present: &[u64]) -> Result<()> {
    for disk in rows::disks_of(ctx.db, node_id)? {
        let serving = matches!(disk.own_health, Health::Up | Health::Draining);
        if serving && !present.contains(&disk.disk_id) {
            tables::set_disk_health(ctx, disk.disk_id, Health::Down)?;
        }
    }
    Ok(())
}

/// Whether a heartbeat or inventory page is from the node's current incarnation. If not, the node must register (P11).
///
/// # Errors
/// The database fails.
pub fn is_current(view: &View<'_>, node_id: u64, incarnation: u64) -> Result<bool> {
    let node_map = view.caches.node_map(view.db)?;
    Ok(node_map.nodes.get(&node_id).is_some_and(|n| n.incarnation == incarnation && n.health() != Health::Out))
}

/// Records a heartbeat in soft state. Proposes what must be logged: the node is up again, disks failed.
///
/// # Errors
/// The database fails.
pub fn hear(view: &mut View<'_>, beat: &Heartbeat) -> Result<()> {
    let node_map = view.caches.node_map(view.db)?;
    let Some(node) = node_map.nodes.get(&beat.node_id) else { return Ok(()) };
    let time = Time { now_ns: view.now_ns, wall_ns: view.wall_ns };
    let stats = &mut view.soft.cluster.stats;
    let heard = stats.nodes.entry(beat.node_id).or_default();
    let repeated = heard.incarnation == beat.incarnation && beat.number != 0 && beat.number <= heard.number;
    if repeated {
        return Ok(());
    }
    *heard = stats::NodeStats {
        heard_ns: view.now_ns,
        incarnation: beat.incarnation,
        number: beat.number,
        device_work: stats::sensible_work(beat.node_id, &beat.device_work),
        registered_ns: heard.registered_ns,
        voter_id: beat.voter_id,
    };
    for (i, disk) in beat.disks.iter().enumerate().filter(|(_, d)| node_map.owns(node.node_id, d.disk_id)) {
        stats.hear_disk(time, disk.disk_id, disk, beat.scrubbed_bytes.get(i).copied().unwrap_or(0));
    }
    if node.health() == Health::Down {
        view.proposals.push(set_health(node, Health::Up));
    }
    let failed =
        |d: &&DiskRow| beat.failed_disks.contains(&d.disk_id) && !matches!(d.own_health, Health::Out | Health::Drained);
    view.proposals.extend(fail_all(node_map.disks_of(node.node_id).filter(failed)));
    Ok(())
}

fn fail_all<'a>(disks: impl Iterator<Item = &'a DiskRow>) -> Option<Proposal> {
    propose_all(disks.map(|d| d.disk_id).collect(), |disk_ids| FailDisks { disk_ids })
}

fn set_health(node: &NodeInfo, health: Health) -> Proposal {
    SetNodeHealth { node_id: node.node_id, incarnation: node.incarnation, health: health as i32 }.propose()
}

/// A node that has missed so many heartbeats is silent.
const MISSED_HEARTBEATS: u64 = 2;

/// Proposes nodes that fell silent as down, later out, and disks that their nodes run without as out.
/// With `hurry` (an operator asked for repair) a down node is out once its lease has surely ended.
///
/// # Errors
/// The database fails.
pub fn silence(view: &mut View<'_>, hurry: bool) -> Result<()> {
    let stats = &view.soft.cluster.stats;
    let started = view.soft.started_ns;
    let config = view.config;
    let lease_over = ns(config.node_lease_ms.saturating_add(config.node_lease_ms / 4));
    let out_after = match hurry {
        true => lease_over,
        false => ns(config.down_after_ms.saturating_add(config.out_after_ms)).max(lease_over),
    };
    let node_map = view.caches.node_map(view.db)?;
    for node in node_map.nodes.values() {
        let silent_ns = view.now_ns - stats.node_heard_ns(node.node_id, started);
        match node.health() {
            Health::Up if silent_ns >= ns(config.down_after_ms) => view.proposals.push(set_health(node, Health::Down)),
            Health::Down if silent_ns >= out_after => view.proposals.push(set_health(node, Health::Out)),
            _ => {}
        }
    }
    // Such a disk is not merely silent: its node says that it has it no more. Its lease ended with the node's process.
    let gone_after = if hurry { lease_over } else { ns(config.disk_gone_after_ms).max(lease_over).min(out_after) };
    let since = |d: &DiskRow| stats.disk_heard_ns(d.disk_id, started).max(stats.registered_ns(d.node_id));
    let gone = |d: &&DiskRow| is_absent(d) && view.now_ns - since(d) >= gone_after;
    let gone: Vec<&DiskRow> = node_map.disks.values().filter(gone).collect();
    for disk in &gone {
        let node = node_map.nodes.get(&disk.node_id).map_or("", |node| &node.name);
        let (disk, path) = (disk.disk_id, &disk.path);
        tracing::warn!(disk, path, node, "its node runs without this disk: it counts as lost, and is rebuilt");
    }
    view.proposals.extend(fail_all(gone.into_iter()));
    Ok(())
}

/// Whether a node has missed heartbeats, so that it may be about to count as down.
pub fn is_silent(view: &View<'_>, node: &NodeInfo) -> bool {
    let heard_ns = view.soft.cluster.stats.node_heard_ns(node.node_id, view.soft.started_ns);
    view.now_ns - heard_ns >= ns(view.config.heartbeat_ms.saturating_mul(MISSED_HEARTBEATS))
}

/// Whether a node that is up runs without this disk.
pub fn is_absent(disk: &DiskRow) -> bool {
    (disk.node_health, disk.own_health, disk.inventory_wanted) == (Health::Up, Health::Down, 0)
}

/// Applies a change of a node's health, unless the node has a later incarnation.
///
/// # Errors
/// The database fails.
pub fn set_node_health(ctx: &mut Ctx<'_>, command: &SetNodeHealth) -> Result<()> {
    let wanted = command.health();
    if wanted != Health::Up {
        ctx.after_commit(Effect::NodeGone { node_id: command.node_id });
    }
    let Some(node) = rows::node(ctx.db, command.node_id)? else { return Ok(()) };
    // Only a registration ends `Out`.
    if node.incarnation != command.incarnation || node.health() == wanted || node.health() == Health::Out {
        return Ok(());
    }
    tables::set_node_health(ctx, &node, wanted)?;
    if wanted == Health::Out {
        let disks = rows::disks_of(ctx.db, node.node_id)?;
        give_up_disks(ctx, disks.iter().map(|d| d.disk_id))?;
    }
    Ok(())
}

/// Applies the loss of disks.
///
/// # Errors
/// The database fails.
pub fn fail_disks(ctx: &mut Ctx<'_>, command: &FailDisks) -> Result<()> {
    give_up_disks(ctx, command.disk_ids.iter().copied())
}

/// Marks disks as out: their groups get other members, and their pending deletes are dropped (a returning disk is listed).
fn give_up_disks(ctx: &mut Ctx<'_>, disks: impl Iterator<Item = u64>) -> Result<()> {
    for disk_id in disks {
        let Some(disk) = rows::disk(ctx.db, disk_id)? else { continue };
        if matches!(disk.own_health, Health::Out | Health::Drained) {
            continue;
        }
        tables::set_disk_health(ctx, disk_id, Health::Out)?;
        garbage::forget_orders(ctx, disk_id)?;
        backfill::disk_lost(ctx, disk_id)?;
        ctx.after_commit(Effect::DiskLost { disk_id });
    }
    Ok(())
}

/// Starts or cancels the drain of a node or disk.
///
/// # Errors
/// The node or disk is unknown, or the database fails.
pub fn drain(ctx: &mut Ctx<'_>, request: &Drain) -> Result<Ack> {
    let disks = match (request.node_id, request.disk_id) {
        (0, 0) => return invalid("drain: name a node or a disk; `tessera node list` shows them"),
        (_, disk_id @ 1..) => vec![rows::need_disk(ctx.db, disk_id)?],
        (node_id, 0) => {
            if rows::node(ctx.db, node_id)?.is_none() {
                return refuse(Code::NotFound, format!("there is no node {node_id}; `tessera node list` shows all"));
            }
            rows::disks_of(ctx.db, node_id)?
        }
    };
    match request.undo {
        true => undrain(ctx, &disks)?,
        false => start_drain(ctx, &disks)?,
    }
    Ok(Ack {})
}

fn start_drain(ctx: &mut Ctx<'_>, disks: &[DiskRow]) -> Result<()> {
    // A drain that has begun goes on, however few hosts are left: the command that asks again may follow it.
    if disks.iter().all(|d| matches!(d.own_health, Health::Draining | Health::Drained)) {
        return Ok(());
    }
    let leaving: BTreeSet<u64> = disks.iter().map(|d| d.disk_id).collect();
    let all = rows::disks(ctx.db)?;
    let hosts: BTreeSet<&str> =
        all.iter().filter(|d| d.writable() && !leaving.contains(&d.disk_id)).map(|d| d.host.as_str()).collect();
    let sql = "SELECT coalesce(max(p.width), 0) FROM pg_members m JOIN pgs p ON p.pg_id = m.pg_id WHERE m.disk_id = ?1";
    let widths = leaving.iter().map(|d| ctx.db.one::<u32>(sql, args![d]));
    let widest = widths.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
    if (hosts.len() as u32) < widest {
        let text =
            format!("groups of {widest} members have fragments here, and only {} other hosts are up", hosts.len());
        return refuse(Code::TooFewHosts, format!("cannot drain: {text}; add nodes first"));
    }
    for disk in disks.iter().filter(|d| matches!(d.own_health, Health::Up | Health::Down)) {
        tables::set_disk_health(ctx, disk.disk_id, Health::Draining)?;
    }
    Ok(())
}

fn undrain(ctx: &mut Ctx<'_>, disks: &[DiskRow]) -> Result<()> {
    for disk in disks.iter().filter(|d| matches!(d.own_health, Health::Draining | Health::Drained)) {
        if disk.own_health == Health::Drained {
            // Fragments that its groups left behind must be gone before the disk may become a member again.
            tables::want_inventory(ctx, disk.disk_id)?;
        }
        tables::set_disk_health(ctx, disk.disk_id, Health::Up)?;
        backfill::cancel_moves_from(ctx, disk.disk_id)?;
    }
    Ok(())
}

/// Draining disks without members. If all disks of a node drain, they are not among them while its voter keeps the log: whoever switched the
/// node off would take a vote from the managers.
///
/// # Errors
/// The database fails.
pub fn emptied(view: &View<'_>) -> Result<Vec<u64>> {
    let mut empty = Vec::new();
    let node_map = view.caches.node_map(view.db)?;
    let keeps_log = |node_id: u64| {
        let keeps = view.soft.log_keepers.contains(&node_id) && node_map.is_leaving(node_id);
        keeps && !failpoint::is_active("manager.drained_with_log")
    };
    for disk in node_map.disks.values().filter(|d| d.own_health == Health::Draining) {
        if !keeps_log(disk.node_id) && rows::is_unused(view.db, disk.disk_id)? {
            empty.push(disk.disk_id);
        }
    }
    Ok(empty)
}

/// Marks emptied disks as drained, except those that got members after a cancelled drain.
///
/// # Errors
/// The database fails.
pub fn drained(ctx: &mut Ctx<'_>, command: &DisksDrained) -> Result<()> {
    for &disk_id in &command.disk_ids {
        let Some(disk) = rows::disk(ctx.db, disk_id)? else { continue };
        if disk.own_health == Health::Draining && rows::is_unused(ctx.db, disk_id)? {
            tables::set_disk_health(ctx, disk_id, Health::Drained)?;
            garbage::forget_orders(ctx, disk_id)?;
        }
    }
    Ok(())
}
