//! Selects the group of a new chunk: one whose members all take puts, at random with weights by free space and queue length
//! ([`select_group`]); with a placement hint, among those in which the asked host holds plain bytes ([`select_group_near`]).

use crate::ctx::{Ctx, Live};
use crate::db::Db;
use crate::db::cache::{Caches, Pg};
use crate::db::rows::{self, DiskRow, Member};
use crate::error::Result;
use crate::placement::layout::mix;
use crate::placement::refusal::{Wanted, why_no_group};
use crate::placement::room::{Purpose, has_room};
use crate::soft::selector::{GroupSelector, OpenGroup, WeightedGroups};
use crate::soft::stats::ClusterStats;
use tessera_stripe::ClassLayout;
use tessera_wire::{ClassInfo, Code};

/// Whether the group's disks have space for the missing fragments of a chunk. Depends on soft state: commands ask through
/// [`Ctx::record`].
pub fn pg_has_space(live: Live<'_>, class: &ClassInfo, len_bytes: u64, pg: &Pg) -> bool {
    let stats = &live.soft.cluster.stats;
    (0..).zip(&pg.members).all(|(i, m)| {
        let disk = stats.disks.get(&m.put_disk());
        disk.is_none_or(|d| d.available_bytes() >= class.room_bytes(len_bytes, i))
    })
}

/// The chunk that needs a group.
#[derive(Debug, Clone, Copy)]
pub struct ChunkSpec<'a> {
    /// Class of the chunk.
    pub class: &'a ClassInfo,
    pub len_bytes: u64,
    /// Groups in which a write of this client just failed.
    pub avoid: &'a [u64],
    /// The policy allows groups in which at least k+1 members, but not all, take puts.
    pub degraded: bool,
    /// How much of the disks it may use.
    pub purpose: Purpose,
}

/// Chooses the group for a new chunk: open, not in `avoid`, all members able to take puts (with `degraded`, at least
/// k+1 of them). Depends on soft state: commands ask through [`Ctx::record`].
///
/// # Errors
/// No group fits (the error says why), or the database fails.
pub fn select_group(ctx: &Ctx<'_>, live: Live<'_>, wanted: &ChunkSpec<'_>) -> Result<u64> {
    match select(ctx, live, wanted, None)? {
        Some(pg_id) => Ok(pg_id),
        None => {
            let ChunkSpec { class, len_bytes, purpose, .. } = *wanted;
            let room_bytes = class.room_bytes(len_bytes, 0);
            let wanted = Wanted { spec: &class.spec, width: class.fragments(), len_bytes, room_bytes, purpose };
            let error = why_no_group(&rows::disks(ctx.db)?, &live.soft.cluster.stats, &wanted);
            if error.code() == Code::Unavailable {
                live.soft.cluster.selector.lacking.borrow_mut().insert(wanted.width, room_bytes);
            }
            Err(error.into())
        }
    }
}

/// A placement hint, resolved to hosts.
#[derive(Debug, Clone, Copy)]
pub struct HostWish<'a> {
    /// The group holds plain bytes of the chunk on this host.
    pub host: &'a str,
    /// A group that also contains this host is preferred: the writer need not send what its own host stores.
    pub writer: &'a str,
}

/// Like [`select_group`], but only groups in which the asked host holds plain bytes of the chunk. `None` if there is no such
/// group.
///
/// # Errors
/// The database fails.
pub fn select_group_near(
    ctx: &Ctx<'_>,
    live: Live<'_>,
    wanted: &ChunkSpec<'_>,
    near: HostWish<'_>,
) -> Result<Option<u64>> {
    let asked = (wanted.class.fragments(), near.host.to_string());
    live.soft.cluster.selector.asked.borrow_mut().insert(asked);
    select(ctx, live, wanted, Some(near))
}

fn select(ctx: &Ctx<'_>, live: Live<'_>, wanted: &ChunkSpec<'_>, near: Option<HostWish<'_>>) -> Result<Option<u64>> {
    let selector = &live.soft.cluster.selector;
    for _ in 0..2 {
        match selector.choose(ctx, &live.soft.cluster.stats, wanted, near)? {
            Some(pg_id) if ctx.caches.pg(ctx.db, pg_id).is_ok() => return Ok(Some(pg_id)),
            // The group is from a command that was rolled back.
            Some(_) => selector.widths.borrow_mut().clear(),
            None => break,
        }
    }
    Ok(None)
}

impl GroupSelector {
    /// Hosts that placement hints have asked for: groups of `width` should begin on each.
    pub fn asked_hosts(&self, width: u32) -> Vec<String> {
        self.asked.borrow().iter().filter(|(w, _)| *w == width).map(|(_, host)| host.clone()).collect()
    }

    /// Room on each disk that groups of `width` to be opened should have, because a fragment found none with it; 0: none is known.
    pub fn lacking_bytes(&self, width: u32) -> u64 {
        self.lacking.borrow().get(&width).copied().unwrap_or(0)
    }

    fn choose(
        &self,
        ctx: &Ctx<'_>,
        stats: &ClusterStats,
        wanted: &ChunkSpec<'_>,
        near: Option<HostWish<'_>>,
    ) -> Result<Option<u64>> {
        let ChunkSpec { class, len_bytes, avoid, degraded, purpose } = *wanted;
        let width = class.fragments();
        let mut widths = self.widths.borrow_mut();
        let stale = widths.get(&width).is_none_or(|c| c.map_version != ctx.meta.map_version);
        if stale {
            let groups = load_open(ctx.db, ctx.caches, width)?;
            let groups_of_width =
                WeightedGroups { map_version: ctx.meta.map_version, generation: u64::MAX, groups, sums: Vec::new() };
            widths.insert(width, groups_of_width);
        }
        let Some(groups_of_width) = widths.get_mut(&width) else { return Ok(None) };
        if groups_of_width.generation != stats.generation {
            groups_of_width.weigh(stats);
            groups_of_width.generation = stats.generation;
        }
        let spare = if degraded { class.m.saturating_sub(1) } else { 0 };
        let hinted = class.hinted_fragments() as usize;
        let is_near = |g: &OpenGroup| near.is_none_or(|n| g.hosts.iter().take(hinted).any(|h| **h == *n.host));
        let has_space = |g: &OpenGroup| g.has_space(stats, purpose, |i| class.room_bytes(len_bytes, i));
        let fits = |g: &OpenGroup, unable: u32| g.unable <= unable && has_space(g) && is_near(g);
        let is_wanted = |g: &OpenGroup, unable: u32| fits(g, unable) && !avoid.contains(&g.pg_id);
        // Full redundancy first, whatever the policy allows. A group that failed this client a moment ago is better than
        // none: it may have recovered, and P12 says that writes finish.
        let at_writer = |near: HostWish<'_>| {
            let in_it = |g: &OpenGroup| g.hosts.iter().any(|h| **h == *near.writer);
            groups_of_width.pick(self.next(), |g| is_wanted(g, 0) && in_it(g))
        };
        let chosen = near.and_then(at_writer).or_else(|| groups_of_width.pick(self.next(), |g| is_wanted(g, 0)));
        let chosen = chosen
            .or_else(|| if spare > 0 { groups_of_width.pick(self.next(), |g| is_wanted(g, spare)) } else { None });
        // A hint does not justify a group that just failed.
        let chosen =
            chosen.or_else(|| near.is_none().then(|| groups_of_width.pick(self.next(), |g| fits(g, spare))).flatten());
        if let Some(group) = chosen {
            for (i, (disk, _)) in (0..).zip(&group.disks) {
                if let Some(disk) = stats.disks.get(disk) {
                    disk.assign(class.room_bytes(len_bytes, i));
                }
            }
        }
        Ok(chosen.map(|g| g.pg_id))
    }

    fn next(&self) -> u64 {
        self.random.set(self.random.get().wrapping_add(1));
        mix(self.random.get())
    }
}

impl OpenGroup {
    /// Whether each disk has space for the bytes that its position needs.
    pub(crate) fn has_space(&self, stats: &ClusterStats, purpose: Purpose, bytes: impl Fn(u32) -> u64) -> bool {
        (0..).zip(&self.disks).all(|(i, &(disk, capacity))| has_room(stats, disk, capacity, bytes(i), purpose))
    }

    /// Free space of the fullest disk, divided by a factor that grows with the longest queue.
    fn weight(&self, stats: &ClusterStats) -> f64 {
        let free = self.disks.iter().map(|&(d, capacity)| stats.available_bytes(d, capacity)).min().unwrap_or(0);
        let queue =
            self.disks.iter().filter_map(|(d, _)| stats.disks.get(d)).map(|d| d.said.queue_len).max().unwrap_or(0);
        free as f64 / (1.0 + f64::from(queue) / 8.0)
    }
}

impl WeightedGroups {
    fn weigh(&mut self, stats: &ClusterStats) {
        let mut sum = 0.0;
        self.sums.clear();
        for group in &self.groups {
            sum += group.weight(stats).max(1.0);
            self.sums.push(sum);
        }
        assert_eq!(self.sums.len(), self.groups.len(), "each group has a weight");
    }

    /// A random group by weight among those that fit: four random tries, then the next group that fits.
    fn pick(&self, random: u64, fits: impl Fn(&OpenGroup) -> bool) -> Option<&OpenGroup> {
        let total = *self.sums.last()?;
        assert!(total >= 1.0, "every group weighs something");
        let mut random = random;
        let mut at = 0;
        for _ in 0..4 {
            let point = (random >> 11) as f64 / (1u64 << 53) as f64 * total;
            at = self.sums.partition_point(|s| *s <= point).min(self.groups.len() - 1);
            if fits(&self.groups[at]) {
                return Some(&self.groups[at]);
            }
            random = mix(random);
        }
        (0..self.groups.len()).map(|i| &self.groups[(at + i) % self.groups.len()]).find(|g| fits(g))
    }
}

/// Open groups of a width, with the disks that take their puts. A member that is moving away counts as unable, because
/// the group's new chunks would have to move too.
pub(crate) fn load_open(db: &Db, caches: &Caches, width: u32) -> rusqlite::Result<Vec<OpenGroup>> {
    let node_map = caches.node_map(db)?;
    let takes_puts = |m: &Member| node_map.disks.get(&m.put_disk());
    let unable = |m: &&Member| (m.incoming != 0 && !m.put_to_incoming) || !takes_puts(m).is_some_and(DiskRow::writable);
    let group = |(pg_id, members): (u64, Vec<Member>)| OpenGroup {
        pg_id,
        disks: members.iter().filter_map(takes_puts).map(|d| (d.disk_id, d.capacity_bytes)).collect(),
        hosts: members.iter().filter_map(takes_puts).map(|d| d.host.as_str().into()).collect(),
        unable: members.iter().filter(unable).count() as u32,
    };
    Ok(rows::open_groups(db, width)?.into_iter().map(group).collect())
}
