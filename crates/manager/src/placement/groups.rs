//! Classes and placement groups: opens and closes groups, and computes the space for each class.
//!
//! [`crate::placement::select`] chooses a group for a chunk; repair and balancing work on whole groups.
//! [`crate::placement::layout`] lays groups out over disks.

use crate::config::Config;
use crate::ctx::{Ctx, View};
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::rows::{self, DiskRow};
use crate::db::sql::args;
use crate::error::{Result, invalid};
use crate::internal::{NewGroup, SetGroups};
use crate::map::tables;
use crate::placement::layout::{Layout, LayoutDisk, open_groups};
use crate::placement::refusal::{Wanted, why_no_group};
use crate::placement::room::{Purpose, has_room, room_bytes};
use crate::placement::select::load_open;
use crate::soft::stats::ClusterStats;
use std::collections::BTreeSet;
use std::sync::Arc;
use tessera_policy::{MAX_CHUNK_BYTES, SCHEMES, Scheme, human_size};
use tessera_wire::{ClassInfo, Code, Error};

/// Most groups that one command creates. So many fit into one log entry.
const GROUPS_PER_COMMAND: usize = 256;
const _: () = assert!(GROUPS_PER_COMMAND > 0, "a class needs a group");

/// The class of a spec, canonical or not: `none`, `replica:3`, `ec:4+2`, `raid6:8+2`, `copy+ec:4+2`. The first use of a
/// class creates its row, and groups of its width.
///
/// # Errors
/// The spec is invalid, the cluster has too few hosts for it, or the database fails.
pub fn class_for(ctx: &mut Ctx<'_>, spec: &str) -> Result<Arc<ClassInfo>> {
    if let Some(class) = ctx.caches.class_of_spec(ctx.db, spec)? {
        return Ok(class);
    }
    let refused = |why| invalid(format!("redundancy {spec:?}: {why}; allowed: {SCHEMES}"));
    let scheme: Scheme = spec.parse().or_else(refused)?;
    let canonical = scheme.to_string();
    if canonical != spec {
        return class_for(ctx, &canonical);
    }
    let width = scheme.fragments();
    if !ctx.db.any("SELECT 1 FROM pgs WHERE open = 1 AND width = ?1 LIMIT 1", args![width])? {
        first_groups(ctx, &canonical, width)?;
    }
    assert!(width >= 1, "class {canonical}: without fragments");
    let class_id = tables::insert_class(ctx, &scheme)?;
    ctx.class(class_id)
}

/// Creates the first groups of a width. The groups are recorded with the command, because a later release may lay them
/// out differently and the replay of an old log must give the old groups.
fn first_groups(ctx: &mut Ctx<'_>, spec: &str, width: u32) -> Result<()> {
    let mut plan: Vec<Vec<u64>> = Vec::new();
    let count = ctx.record(|ctx, live| {
        let disks = rows::disks(ctx.db)?;
        let fit = Fit::new(&disks, &live.soft.cluster.stats, width, 0);
        plan = propose_groups(&fit.disks, width, &[], GROUPS_PER_COMMAND);
        match plan.len() {
            0 => Err(why_no_group(
                &disks,
                &live.soft.cluster.stats,
                &Wanted { spec, width, len_bytes: 0, room_bytes: 0, purpose: Purpose::NewChunks },
            )
            .into()),
            n => Ok(n as u64),
        }
    })?;
    for i in 0..count as usize {
        let mut disks = Vec::with_capacity(width as usize);
        for j in 0..width as usize {
            disks.push(ctx.record(|_, _| Ok(plan.get(i).and_then(|group| group.get(j)).copied().unwrap_or(0)))?);
        }
        tables::insert_group(ctx, &disks)?;
    }
    Ok(())
}

/// The disks that groups are opened on.
struct Fit {
    disks: Vec<LayoutDisk>,
    /// Room that each of them has.
    room_bytes: u64,
}

impl Fit {
    /// The writable disks that have room for any chunk. If these are on fewer than `width` hosts, those with `lacking_bytes`,
    /// which the last fragment without a group needed; if these are too few, too, those that take new chunks at all.
    fn new(disks: &[DiskRow], stats: &ClusterStats, width: u32, lacking_bytes: u64) -> Fit {
        let with_room = |room_bytes: u64| {
            let fit = |d: &&DiskRow| {
                d.writable() && has_room(stats, d.disk_id, d.capacity_bytes, room_bytes, Purpose::NewChunks)
            };
            let disk = |d: &DiskRow| LayoutDisk { id: d.disk_id, host: d.host.clone(), weight: d.capacity_bytes };
            Fit { disks: disks.iter().filter(fit).map(disk).collect(), room_bytes }
        };
        let suffices = |fit: &Fit| {
            let hosts: BTreeSet<&str> = fit.disks.iter().map(|d| d.host.as_str()).collect();
            hosts.len() >= width as usize
        };
        [MAX_CHUNK_BYTES, lacking_bytes].map(with_room).into_iter().find(suffices).unwrap_or_else(|| with_room(0))
    }
}

/// Groups to open so that enough of them use only disks in `fit`.
fn propose_groups(fit: &[LayoutDisk], width: u32, usable: &[Vec<u64>], limit: usize) -> Vec<Vec<u64>> {
    let wanted = open_groups(fit.len(), width as usize).saturating_sub(usable.len()).min(limit);
    let mut layout = Layout::new(fit, width as usize, usable);
    (0..wanted).map_while(|_| layout.propose()).collect()
}

/// Opens and closes the command's groups.
///
/// # Errors
/// The database fails.
pub fn set_groups(ctx: &mut Ctx<'_>, command: &SetGroups) -> Result<()> {
    for group in &command.create {
        tables::insert_group(ctx, &group.disk_ids)?;
    }
    command.close.iter().try_for_each(|&pg_id| tables::close_group(ctx, pg_id))
}

/// For every width in use, the groups to close because they are full, and the groups to open because too few are usable.
///
/// # Errors
/// The database fails.
pub fn groups_due(view: &View<'_>) -> Result<Option<SetGroups>> {
    let sql = "SELECT pg_id FROM pgs WHERE open = 1 AND bytes >= ?1 LIMIT 1000";
    let close: Vec<u64> = view.db.all(sql, args![view.config.pg_cap_bytes.min(i64::MAX as u64)])?;
    let widths: Vec<u32> = view.db.all("SELECT DISTINCT k + m FROM classes ORDER BY 1", [])?;
    let (stats, selector) = (&view.soft.cluster.stats, &view.soft.cluster.selector);
    let disks = rows::disks(view.db)?;
    let mut create = Vec::new();
    for width in widths {
        let Fit { disks: fit, room_bytes } = Fit::new(&disks, stats, width, selector.lacking_bytes(width));
        let usable: Vec<Vec<u64>> = load_open(view.db, view.caches, width)?
            .into_iter()
            .filter(|g| {
                g.unable == 0 && g.has_space(stats, Purpose::NewChunks, |_| room_bytes) && !close.contains(&g.pg_id)
            })
            .map(|g| g.disks.iter().map(|d| d.0).collect())
            .collect();
        // Half of the target is enough: a node that is down for a minute is no reason to open many groups.
        // A disk that no usable group uses (a new disk) is a reason.
        let idle = fit.iter().any(|d| !usable.iter().any(|g| g.contains(&d.id)));
        let limit = GROUPS_PER_COMMAND - create.len().min(GROUPS_PER_COMMAND);
        let mut proposed = Vec::new();
        if usable.len() * 2 < open_groups(fit.len(), width as usize) || idle {
            proposed = propose_groups(&fit, width, &usable, limit);
            if proposed.is_empty() && idle {
                proposed = one_more_each(&fit, width, &usable, limit);
            }
        }
        groups_starting_on(&fit, width, &usable, &selector.asked_hosts(width), &mut proposed);
        create.extend(proposed.into_iter().map(|disk_ids| NewGroup { disk_ids }));
    }
    Ok((!create.is_empty() || !close.is_empty()).then_some(SetGroups { create, close }))
}

/// Adds a group that begins on each of `hosts` on which no group begins.
fn groups_starting_on(
    fit: &[LayoutDisk],
    width: u32,
    usable: &[Vec<u64>],
    hosts: &[String],
    proposed: &mut Vec<Vec<u64>>,
) {
    for host in hosts {
        let on_host = |id: &u64| fit.iter().any(|d| d.id == *id && d.host == *host);
        let begins = |group: &Vec<u64>| group.first().is_some_and(on_host);
        if proposed.len() >= GROUPS_PER_COMMAND || usable.iter().chain(proposed.iter()).any(begins) {
            continue;
        }
        let counted: Vec<Vec<u64>> = usable.iter().chain(proposed.iter()).cloned().collect();
        proposed.extend(Layout::new(fit, width as usize, &counted).propose_at(host));
    }
}

/// Adds groups until each disk that takes chunks is in one, so that new disks are used although there are enough groups.
fn one_more_each(fit: &[LayoutDisk], width: u32, usable: &[Vec<u64>], limit: usize) -> Vec<Vec<u64>> {
    let mut idle: BTreeSet<u64> = fit.iter().map(|d| d.id).collect();
    let mut layout = Layout::new(fit, width as usize, usable);
    usable.iter().flatten().for_each(|d| _ = idle.remove(d));
    let mut groups = Vec::new();
    while !idle.is_empty() && groups.len() < limit {
        let Some(group) = layout.propose() else { break };
        let before = idle.len();
        group.iter().for_each(|d| _ = idle.remove(d));
        if idle.len() == before {
            break;
        }
        groups.push(group);
    }
    groups
}

/// Space for data of a class, in bytes before coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// On all disks that take new chunks.
    pub bytes: u64,
    /// The part of `bytes` that (other) sessions have reserved.
    pub reserved_bytes: u64,
}

/// Space for data stored by `scheme`, with `reserved_bytes` of it reserved. Depends on soft state: commands ask through
/// [`Ctx::record`].
///
/// # Errors
/// The database fails.
pub fn space((db, caches): (&Db, &Caches), stats: &ClusterStats, scheme: Scheme, reserved_bytes: u64) -> Result<Space> {
    let node_map = caches.node_map(db)?;
    let room = |d: &DiskRow| room_bytes(stats, d.disk_id, d.capacity_bytes, Purpose::NewChunks);
    let free_bytes = node_map.disks.values().filter(|d| d.writable()).map(room).fold(0, u64::saturating_add);
    let (data, stored) = scheme.expansion();
    let bytes = (u128::from(free_bytes) * u128::from(data) / u128::from(stored.max(1))) as u64;
    Ok(Space { bytes, reserved_bytes })
}

impl Space {
    /// Bytes that no session has reserved.
    pub fn unreserved_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.reserved_bytes)
    }

    /// The error for a request of `want_bytes` that do not fit.
    pub fn refusal(&self, spec: &str, want_bytes: u64) -> Error {
        Error::new(
            Code::NoSpace,
            format!(
                "no space for {}: as {spec} there is space for {}, of which other sessions have reserved {}; \
                 delete files and run `tessera gc`, or add disks",
                human_size(want_bytes),
                human_size(self.bytes),
                human_size(self.reserved_bytes),
            ),
        )
    }
}

/// Checks that the knobs are consistent (P14); the shell refuses to start otherwise.
///
/// # Errors
/// Two knobs contradict each other.
pub fn check_config(config: &Config) -> Result<()> {
    if config.out_after_ms <= config.node_lease_ms.saturating_add(config.node_lease_ms / 4) {
        return invalid(format!(
            "out-after {} ms must exceed the node lease of {} ms by a quarter: else a node could be given up while it still \
             acknowledges (P11); raise out-after or lower the lease",
            config.out_after_ms, config.node_lease_ms
        ));
    }
    Ok(())
}
