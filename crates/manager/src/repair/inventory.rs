//! Inventories: a node lists the fragments on a disk, page by page. The manager orders the removal of fragments that do
//! not belong there, and records absent ones as missing.
//!
//! A disk is listed when it returns after it was out (before it serves again, because it missed deletes: P3), after members
//! have left it (their fragments remain), after its daemon restarted (its directory may have lost files), and periodically
//! (late puts of dead writers: P5). A disk that waits for its inventory takes over no members: otherwise the inventory
//! could remove a fragment that a backfill has just put.
//!
//! Fragments with ids above the issue counter are never removed: this manager's database does not know those chunks.

use crate::chunks::missing;
use crate::chunks::table;
use crate::config::ns;
use crate::ctx::{Ctx, View};
use crate::db::node_map::NodeMap;
use crate::db::rows::{self, Missing};
use crate::db::sql::args;
use crate::error::{Result, invalid};
use crate::internal::{InventoryPage, SetInventory};
use crate::map::tables;
use crate::repair::rebuild::lacking_where;
use crate::soft::tasks::{Assignment, Listing, Work};
use std::collections::BTreeSet;
use tessera_wire::Health;
use tessera_wire::meta::{FragmentRef, Inventory, InventoryReply, InventoryTask, Task};

/// Most fragments in one page.
const MAX_PAGE: usize = 65_536;

/// Starts the inventories that are wanted of a node's disks.
pub fn hand_out(view: &mut View<'_>, node_id: u64) -> Result<Vec<Task>> {
    let mut given = Vec::new();
    let node_map = view.caches.node_map(view.db)?;
    for disk in node_map.disks_of(node_id) {
        let serving = matches!(disk.own_health, Health::Up | Health::Draining | Health::Down);
        let running = view.soft.cluster.tasks.has(disk.disk_id, |w| matches!(w, Work::Inventory(_)));
        if disk.inventory_wanted == 0 || !serving || running {
            continue;
        }
        // Fragments of uncommitted chunks may still be put behind the position of the listing. Those of committed chunks
        // were put before it starts.
        let pending = view.db.all("SELECT chunk_id FROM chunks WHERE refs = 0 AND state = 1", [])?;
        let bound = view.meta.next_chunk;
        let disk_id = disk.disk_id;
        let wire = Task { inventory: Some(InventoryTask { disk_id }), ..Task::default() };
        let (wanted, incarnation) = (disk.inventory_wanted, incarnation_of(&node_map, node_id));
        let work = Work::Inventory(Listing { wanted, incarnation, bound, pending, ..Listing::default() });
        let task = Assignment { node_id, disk_id, member: (0, 0), epoch: 0, work, wire };
        given.push(view.soft.cluster.tasks.give(task));
    }
    Ok(given)
}

/// Processes a page. The changes to rows are logged first, so that the reply orders only removals that are committed (P3).
pub fn take_page(view: &mut View<'_>, page: &Inventory) -> Result<InventoryPage> {
    if page.held.len() > MAX_PAGE {
        let (disk, len) = (page.disk_id, page.held.len());
        return invalid(format!("inventory of disk {disk}: {len} fragments in a page, at most {MAX_PAGE}"));
    }
    let after = page.after.as_ref().map_or((0, 0), key);
    let keys: Vec<(u64, u32)> = page.held.iter().map(key).collect();
    let begins_after = page.after.is_none() || keys.first().is_none_or(|first| *first > after);
    let sorted = begins_after && keys.windows(2).all(|w| w[0] < w[1]);
    if !sorted || (keys.is_empty() && !page.last) {
        return invalid(format!("inventory of disk {}: the page is empty or out of order", page.disk_id));
    }
    let (mut bound, mut pending) = (0, Vec::new());
    let listing = view.soft.cluster.tasks.given.values_mut().find_map(|g| match &mut g.work {
        Work::Inventory(listing) if g.disk_id == page.disk_id && g.node_id == page.node_id => Some(listing),
        _ => None,
    });
    if let Some(listing) = listing {
        // After a gap the page does not prove that a fragment is missing: restart the listing.
        if after <= listing.at {
            bound = listing.bound;
            let end = if page.last { bound } else { keys.last().map_or(after.0, |key| key.0) };
            pending = listing.pending.range(after.0..=end.max(after.0)).copied().collect();
            listing.at = keys.last().copied().unwrap_or(after).max(listing.at);
            listing.complete |= page.last;
        }
    }
    assert!(bound <= view.meta.next_chunk, "disk {}: listed up to chunk {bound}", page.disk_id);
    let Inventory { disk_id, after, held, last, .. } = page.clone();
    Ok(InventoryPage { disk_id, after, held, last, bound, pending })
}

fn key(fragment: &FragmentRef) -> (u64, u32) {
    (fragment.chunk_id, fragment.fragment)
}

/// Records fragments that are absent from the page as missing.
pub fn apply_page(ctx: &mut Ctx<'_>, page: &InventoryPage) -> Result<()> {
    let after = page.after.as_ref().map_or((0, 0), key);
    let end = match (page.last, page.held.last()) {
        (true, _) => (page.bound, 0),
        (false, Some(last)) => key(last),
        (false, None) => return Ok(()),
    };
    let pending: BTreeSet<u64> = page.pending.iter().copied().collect();
    let held: BTreeSet<(u64, u32)> = page.held.iter().map(key).collect();
    let mut lost = Vec::new();
    let members = rows::members_on(ctx.db, page.disk_id)?.into_iter();
    for m in members.chain(rows::members_incoming(ctx.db, page.disk_id)?) {
        let expected: Vec<u64> = ctx.db.all(
            "SELECT chunk_id FROM chunks WHERE pg_id = ?1 AND chunk_id >= ?2 AND chunk_id <= ?3 AND chunk_id < ?4 AND state = 2",
            args![m.pg_id, after.0, end.0, page.bound],
        )?;
        for chunk in expected {
            let key = (chunk, m.position);
            let in_page = (page.after.is_none() || key > after) && (page.last || key <= end);
            if !in_page || held.contains(&key) || pending.contains(&chunk) {
                continue;
            }
            if let Some(incoming) = lacking_where(&m, page.disk_id, chunk) {
                lost.push(Missing { chunk_id: chunk, fragment: m.position, incoming, pg_id: m.pg_id });
            }
        }
    }
    Ok(missing::lose(ctx, &lost)?)
}

/// The fragments of a page to remove: those of dropped chunks, and those that now belong on another disk. A fragment that is
/// missing on its proper disk, or on one that waits for its own inventory, stays, because a rebuild may need it.
pub fn reply(view: &View<'_>, page: &Inventory) -> Result<InventoryReply> {
    let (mut remove, node_map) = (Vec::new(), view.caches.node_map(view.db)?);
    let waits = |disk: u64| node_map.disks.get(&disk).is_some_and(|disk| disk.inventory_wanted > 0);
    for held in &page.held {
        if held.chunk_id >= view.meta.next_chunk {
            tracing::warn!(disk = page.disk_id, chunk = held.chunk_id, "a disk holds a chunk id that was never issued");
            continue;
        }
        let pg = table::group_of(view.db, held.chunk_id)?.map(|pg_id| view.caches.pg(view.db, pg_id)).transpose()?;
        // Epoch 0: the chunk is gone. Otherwise the fragment does not belong here in this epoch, and may return later (P11).
        let epoch = pg.as_ref().map_or(0, |pg| pg.epoch);
        let sql = "SELECT 1 FROM missing_fragments WHERE chunk_id = ?1 AND fragment = ?2";
        let wanted = match pg.as_ref().and_then(|pg| pg.members.get(held.fragment as usize)) {
            None => false,
            Some(m) if m.disk_id == page.disk_id || m.incoming == page.disk_id => true,
            // What the member's own disk holds is not known yet: this may be the only one.
            Some(m) if waits(m.disk_id) => true,
            Some(_) => view.db.any(sql, args![held.chunk_id, held.fragment])?,
        };
        if !wanted {
            remove.push(FragmentRef { chunk_id: held.chunk_id, fragment: held.fragment, epoch, disk_id: page.disk_id });
        }
    }
    Ok(InventoryReply { remove, term: view.meta.term, log_seq: view.meta.log_seq })
}

/// Requests inventories, or ends one. A disk that returned after it was out serves again once its inventory ends.
pub fn set_inventory(ctx: &mut Ctx<'_>, command: &SetInventory) -> Result<()> {
    for &disk in &command.want {
        tables::want_inventory(ctx, disk)?;
    }
    if command.done_disk_id == 0 {
        return Ok(());
    }
    let done = tables::inventory_done(ctx, command)?;
    let disk = rows::disk(ctx.db, command.done_disk_id)?;
    if done && disk.is_some_and(|d| d.own_health == Health::Down) {
        tables::set_disk_health(ctx, command.done_disk_id, Health::Up)?;
    }
    Ok(())
}

/// The disk whose periodic inventory is due: also after a restart of its daemon, because its directory may be an older
/// one, or have lost files. One begins at a time, to spread the load.
pub fn due(view: &mut View<'_>) -> Result<Option<SetInventory>> {
    let every = ns(view.config.inventory_every_ms);
    if every == 0 {
        return Ok(None);
    }
    let (started, now) = (view.soft.started_ns, view.now_ns);
    let node_map = view.caches.node_map(view.db)?;
    for disk in node_map.disks.values() {
        let restarted = disk.listed_incarnation != incarnation_of(&node_map, disk.node_id);
        let listed_ns = view.soft.cluster.listed_ns.entry(disk.disk_id).or_insert(started);
        if disk.readable() && disk.inventory_wanted == 0 && (now - *listed_ns >= every || restarted) {
            *listed_ns = now;
            return Ok(Some(SetInventory { want: vec![disk.disk_id], ..Default::default() }));
        }
    }
    Ok(None)
}

fn incarnation_of(node_map: &NodeMap, node_id: u64) -> u64 {
    node_map.nodes.get(&node_id).map_or(0, |node| node.incarnation)
}
