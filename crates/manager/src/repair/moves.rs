//! Plans which members move, and where: off lost and draining disks, and from full disks to empty ones.
//!
//! It reads rows and reports and proposes; [`crate::repair::backfill`] carries the moves out.

use crate::ctx::View;
use crate::db::Db;
use crate::db::rows::{self, DiskRow, Member};
use crate::error::Result;
use crate::internal::Move;
use crate::placement::layout::{Layout, LayoutDisk};
use crate::placement::room::{Purpose, room_bytes};
use std::collections::BTreeMap;
use tessera_failpoint as failpoint;
use tessera_wire::Health;
use tessera_wire::meta::{MembersWaiting, WaitReason};

/// Most moves in one command.
const MOVES_PER_COMMAND: usize = 256;
const _: () = assert!(MOVES_PER_COMMAND > 0, "repair must move something");
/// Disks whose loads differ by less than this fraction of the mean count as balanced, because a move costs I/O.
const BALANCE_SLACK: f64 = 0.10;

/// The input of the move planner for the groups of one width.
struct Plan<'a> {
    disks: &'a BTreeMap<u64, DiskRow>,
    groups: BTreeMap<u64, Vec<Member>>,
    layout: Layout,
}

impl<'a> Plan<'a> {
    fn new(view: &View<'_>, disks: &'a BTreeMap<u64, DiskRow>, width: u32) -> Result<Plan<'a>> {
        let groups = rows::groups(view.db, width)?;
        let specs: Vec<LayoutDisk> = disks
            .values()
            .map(|d| LayoutDisk { id: d.disk_id, host: d.host.clone(), weight: d.capacity_bytes })
            .collect();
        let planned: Vec<Vec<u64>> = groups.values().map(|g| planned_disks(g)).collect();
        let layout = Layout::new(&specs, width as usize, &planned);
        Ok(Plan { disks, groups, layout })
    }

    /// Finds a disk for a member and counts it; else says why there is none.
    fn replace(&mut self, m: &Member, room: &mut Room) -> std::result::Result<Move, WaitReason> {
        let group = self.groups.get(&m.pg_id).cloned().unwrap_or_default();
        let others = group.iter().filter(|o| o.position != m.position);
        let (mut before, mut used) = (planned_disks(&group), Vec::new());
        match failpoint::is_active("manager.shared_host") {
            true => before.fill(m.disk_id),
            false => used.extend(others.flat_map(|o| [o.disk_id, o.incoming]).filter(|d| *d != 0)),
        }
        let (position, bytes) = (m.position as usize, room.bytes_of(m));
        let is_able = |d: &LayoutDisk| self.disks.get(&d.id).is_some_and(DiskRow::may_take_members);
        let fits = |d: &LayoutDisk| is_able(d) && room.has(d.id, bytes);
        let Some(incoming) = self.layout.replacement(&before, position, &used, fits) else {
            return Err(match self.layout.replacement(&before, position, &used, is_able) {
                Some(_) => WaitReason::NoRoom,
                None => WaitReason::NoHost,
            });
        };
        assert!(incoming != 0 && incoming != m.disk_id, "{m:?}: replaced by {incoming}");
        self.take(m, incoming, room);
        Ok(move_of(m, incoming))
    }

    fn take(&mut self, m: &Member, incoming: u64, room: &mut Room) {
        let Some(group) = self.groups.get_mut(&m.pg_id) else { return };
        self.layout.remove(&planned_disks(group));
        if let Some(member) = group.iter_mut().find(|o| o.position == m.position) {
            member.incoming = incoming;
        }
        self.layout.add(&planned_disks(group));
        room.take(incoming, room.bytes_of(m));
    }
}

/// The change of a member's incoming disk to `incoming`.
fn move_of(m: &Member, incoming: u64) -> Move {
    Move { pg_id: m.pg_id, position: m.position, disk_id: m.disk_id, incoming_was: m.incoming, incoming }
}

/// The disks of a group after its backfills.
fn planned_disks(group: &[Member]) -> Vec<u64> {
    group.iter().map(|m| if m.incoming != 0 { m.incoming } else { m.disk_id }).collect()
}

/// Room for members on each disk.
struct Room {
    /// Bytes of each disk that may still be planned.
    free_bytes: BTreeMap<u64, u64>,
    /// Bytes that the first member of a group holds, and that each other member holds.
    member_bytes: BTreeMap<u64, (u64, u64)>,
}

impl Room {
    /// The room of all disks. Members that are on their way to a disk count there in full until they have arrived: its free bytes do
    /// not show yet what will come, and a node refuses fragments for which a disk has no room.
    fn new(view: &View<'_>, disks: &BTreeMap<u64, DiskRow>, purpose: Purpose) -> Result<Room> {
        let stats = &view.soft.cluster.stats;
        let free = |d: &DiskRow| (d.disk_id, room_bytes(stats, d.disk_id, d.capacity_bytes, purpose));
        let mut room = Room { free_bytes: disks.values().map(free).collect(), member_bytes: member_bytes(view.db)? };
        for m in view.caches.backfilling(view.db)?.iter() {
            room.take(m.incoming, room.bytes_of(m));
        }
        Ok(room)
    }

    /// Bytes that a member holds.
    fn bytes_of(&self, m: &Member) -> u64 {
        let (first, other) = self.member_bytes.get(&m.pg_id).copied().unwrap_or_default();
        if m.position == 0 { first } else { other }
    }

    fn has(&self, disk_id: u64, bytes: u64) -> bool {
        self.free_bytes.get(&disk_id).is_some_and(|free| *free > bytes)
    }

    fn take(&mut self, disk_id: u64, bytes: u64) {
        self.free_bytes.entry(disk_id).and_modify(|free| *free = free.saturating_sub(bytes));
    }
}

/// Bytes that the first member, and each other member, of each group holds.
fn member_bytes(db: &Db) -> rusqlite::Result<BTreeMap<u64, (u64, u64)>> {
    let groups: Vec<(u64, u64, u64)> = db.all("SELECT pg_id, first_bytes, other_bytes FROM pgs", [])?;
    Ok(groups.into_iter().map(|(pg_id, first, other)| (pg_id, (first, other))).collect())
}

fn widths(db: &Db) -> rusqlite::Result<Vec<u32>> {
    db.all("SELECT DISTINCT width FROM pgs ORDER BY width", [])
}

/// What losses and drains require.
#[derive(Debug, Default)]
pub struct DueMoves {
    /// The moves that can begin.
    pub moves: Vec<Move>,
    /// The members for which no disk was found.
    pub waiting: Vec<MembersWaiting>,
}

/// Moves that losses and drains require: lost members first, in the groups that lost most before the others.
pub fn moves_due(view: &View<'_>) -> Result<DueMoves> {
    let node_map = view.caches.node_map(view.db)?;
    let disks = &node_map.disks;
    let mut moves = Vec::new();
    if !disks.values().any(|d| matches!(d.health(), Health::Out | Health::Draining)) {
        return Ok(DueMoves::default());
    }
    let mut waiting: BTreeMap<(u64, WaitReason), u64> = BTreeMap::new();
    let mut room = Room::new(view, disks, Purpose::Repair)?;
    for width in widths(view.db)? {
        let mut plan = Plan::new(view, disks, width)?;
        for m in plan.members_due(&mut moves) {
            if moves.len() >= MOVES_PER_COMMAND {
                break;
            }
            match plan.replace(&m, &mut room) {
                Ok(found) => moves.push(found),
                Err(reason) => *waiting.entry((m.disk_id, reason)).or_default() += 1,
            }
        }
    }
    let waiting = waiting.into_iter().map(|((disk_id, reason), members)| MembersWaiting {
        disk_id,
        reason: reason.into(),
        members,
    });
    Ok(DueMoves { moves, waiting: waiting.collect() })
}

impl Plan<'_> {
    /// Members that need another disk, in the order in which they get one. Adds moves to `moves` that must be cancelled first,
    /// because the incoming disk drains too.
    fn members_due(&self, moves: &mut Vec<Move>) -> Vec<Member> {
        let health = |disk: u64| self.disks.get(&disk).map_or(Health::Unknown, DiskRow::health);
        let mut due: Vec<(bool, usize, Member)> = Vec::new();
        for group in self.groups.values() {
            let lost = group.iter().filter(|m| health(m.disk_id) == Health::Out).count();
            for m in group {
                match (health(m.disk_id), m.incoming) {
                    (Health::Out, 0) => due.push((true, lost, *m)),
                    (Health::Draining, 0) => due.push((false, lost, *m)),
                    (_, e) if e != 0 && !m.put_to_incoming && health(e) == Health::Draining => {
                        moves.push(move_of(m, 0))
                    }
                    _ => {}
                }
            }
        }
        due.sort_by_key(|(lost, in_group, m)| (!lost, std::cmp::Reverse(*in_group), m.pg_id, m.position));
        due.into_iter().map(|(_, _, m)| m).collect()
    }
}

/// Moves from the fullest disks to the emptiest, while a move improves the balance and fewer than `limit` moves run.
/// Empty while a member is lost or a disk drains: repair comes first.
pub fn rebalance(view: &View<'_>, limit: usize) -> Result<Vec<Move>> {
    let node_map = view.caches.node_map(view.db)?;
    let disks = &node_map.disks;
    let busy = view.caches.backfilling(view.db)?;
    let upset = disks.values().any(|d| matches!(d.health(), Health::Draining | Health::Down));
    if upset || busy.len() >= limit || busy.iter().any(|m| m.put_to_incoming) {
        return Ok(Vec::new());
    }
    let mut moves = Vec::new();
    let widths = widths(view.db)?;
    let mut room = Room::new(view, disks, Purpose::Balance)?;
    let mut plans = widths.iter().map(|w| Plan::new(view, disks, *w)).collect::<Result<Vec<Plan<'_>>>>()?;
    let mut load: BTreeMap<u64, u64> = node_map.readable().map(|d| (d.disk_id, 0)).collect();
    for plan in &plans {
        for group in plan.groups.values() {
            for (m, disk) in group.iter().zip(planned_disks(group)) {
                load.entry(disk).and_modify(|l| *l += room.bytes_of(m));
            }
        }
    }
    while busy.len() + moves.len() < limit {
        let Some(found) = best_move(&mut plans, disks, &mut room, &mut load) else { break };
        moves.push(found);
    }
    Ok(moves)
}

/// The move from the fullest possible source to the emptiest possible target.
fn best_move(
    plans: &mut [Plan<'_>],
    disks: &BTreeMap<u64, DiskRow>,
    room: &mut Room,
    load: &mut BTreeMap<u64, u64>,
) -> Option<Move> {
    let ratio = |load: &BTreeMap<u64, u64>, d: u64, more: i64| {
        let held = load.get(&d).copied().unwrap_or(0) as f64 + more as f64;
        held / disks.get(&d).map_or(1.0, |d| d.capacity_bytes.max(1) as f64)
    };
    let mut order: Vec<u64> = load.keys().copied().collect();
    order.sort_by(|a, b| ratio(load, *a, 0).total_cmp(&ratio(load, *b, 0)).then(a.cmp(b)));
    let mean = order.iter().map(|d| ratio(load, *d, 0)).sum::<f64>() / order.len().max(1) as f64;
    for &from in order.iter().rev() {
        for &to in &order {
            if ratio(load, from, 0) - ratio(load, to, 0) <= BALANCE_SLACK * mean {
                break;
            }
            let target = disks.get(&to).filter(|d| d.may_take_members());
            let Some(target) = target else { continue };
            for plan in plans.iter_mut() {
                let improves =
                    |bytes: u64| bytes > 0 && ratio(load, from, -(bytes as i64)) >= ratio(load, to, bytes as i64);
                let Some(m) = plan.movable(from, target, room, &improves) else { continue };
                let bytes = room.bytes_of(&m);
                plan.take(&m, to, room);
                load.entry(from).and_modify(|l| *l -= bytes.min(*l));
                load.entry(to).and_modify(|l| *l += bytes);
                return Some(move_of(&m, to));
            }
        }
    }
    None
}

impl Plan<'_> {
    /// The largest member on `from` that can move to `to` and whose move improves the balance.
    fn movable(&self, from: u64, to: &DiskRow, room: &Room, improves: &dyn Fn(u64) -> bool) -> Option<Member> {
        let host = |d: u64| self.disks.get(&d).map(|d| d.host.as_str());
        self.groups
            .values()
            .filter(|g| g.iter().all(|m| m.incoming == 0))
            .filter_map(|g| g.iter().find(|m| m.disk_id == from).map(|m| (g, m)))
            .filter(|(g, m)| {
                let bytes = room.bytes_of(m);
                let elsewhere =
                    g.iter().filter(|o| o.position != m.position).all(|o| host(o.disk_id) != Some(to.host.as_str()));
                room.has(to.disk_id, bytes) && improves(bytes) && elsewhere
            })
            .max_by_key(|(_, m)| (room.bytes_of(m), std::cmp::Reverse(m.pg_id)))
            .map(|(_, m)| *m)
    }
}
