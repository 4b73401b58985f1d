//! Garbage collection and static wear levelling: which block is emptied, and when.
//!
//! Collection runs between the page operations of requests, never inside a translation layer. In the foreground it
//! runs when a plane has fewer free blocks than the reserve, and the request waits; one block at a time after writes, up to twice the
//! reserve; and in the background, up to that too, when the device is idle for as long as a collection takes.
//!
//! The collection of a block of data may write more pages than it frees, because a layer may write a translation page, or more, for each
//! page that moved. Several such collections in a row would use up any fixed reserve. So when free blocks are few, the map makes its
//! own room: [`Directory::store`] first collects a block of the map, which changes no translation page and always frees
//! more than it takes. [`RESERVE_BLOCKS`] says why that suffices.

use crate::device::{Cause, Device, KEPT_BLOCKS, Kind, Ns, Owner, Ppn, RESERVE_BLOCKS, Stream};
use crate::ftl::{Directory, Ftl, Move};
use std::ops::Range;

/// How the block to collect is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The block with the fewest valid pages; blocks of the map wait until they have fewer than those of data.
    Greedy,
    /// The highest (1 − u) / 2u × age, where u is the share of valid pages and age the time since the block changed
    /// (Kawaguchi, Nishioka, Motoda: "A flash-memory based file system", USENIX 1995). Time is counted in programs.
    CostBenefit,
}

/// How many times a move of a page of the map counts when a block is chosen. The map is a thousandth of the data, and its pages change
/// as often as all data together: collected late, its blocks are nearly empty, for few spare blocks more.
const MAP_WEIGHT: u64 = 8;

/// A plane has up to as many free blocks again as its reserve before writes, but only one for so many of its spare blocks: a free block
/// holds no garbage, so others hold more valid pages.
const PACE_SHARE: u32 = 64;

/// Difference of erases within a plane from which static wear levelling moves the least worn block.
const WEAR_GAP: u32 = 64;

/// One block in so many is levelled each time that wear is looked at.
const WEAR_SHARE: u32 = 16;

/// Collects garbage.
#[derive(Debug)]
pub(crate) struct Collector {
    policy: Policy,
    background: bool,
    wear_levelling: bool,
    /// For each plane, erases until wear is looked at again: looking goes through all blocks.
    wear_check: Vec<u32>,
    moves: Vec<Move>,
    /// Pages of data that were moved since figures began, and pages of the map that wear levelling moved.
    pub moved: u64,
    /// Whether every plane had its reserve since the start: a power cut leaves less.
    had_reserve: bool,
}

impl Collector {
    pub fn new(device: &Device, policy: Policy, background: bool, wear_levelling: bool) -> Self {
        let geometry = device.geometry();
        let wear_check = vec![geometry.blocks; geometry.shape.units() as usize];
        Collector { policy, background, wear_levelling, wear_check, moves: Vec::new(), moved: 0, had_reserve: false }
    }

    /// Collects until every plane has its reserve of free blocks, and all together have those for translation pages that were
    /// never written.
    pub fn make_room(&mut self, device: &mut Device, ftl: &mut dyn Ftl) {
        while let Some(planes) = short_planes(device, ftl, 0) {
            let valid = |block: &u32| device.blocks.get(*block).valid;
            let mut victim = planes.clone().filter_map(|plane| self.victim(device, plane)).min_by_key(valid);
            if let Some(group) = device.victim_group()
                && victim.is_none_or(|block| group.valid <= u32::from(valid(&block)) * group.blocks)
            {
                if self.empty_group(device, ftl, group.group) {
                    continue;
                }
                let valid = |block: &u32| device.blocks.get(*block).valid;
                victim = victim.into_iter().chain(device.victim_in_groups(planes.clone())).min_by_key(valid);
            }
            let victim = victim.or_else(|| {
                device.close_groups();
                device.victim_in_groups(planes)
            });
            let victim = victim.expect("a plane that is not full has a block to collect");
            self.empty(device, ftl, victim, Cause::Gc);
            self.level_wear(device, ftl, device.blocks.plane_of(victim));
        }
        self.had_reserve = true;
    }

    /// Collects a block after a page that the host wrote, if a plane has fewer free blocks than twice its reserve. So the work is
    /// spread over writes: to gain one block, several of data and of the map have to be collected, and a request would wait for all of
    /// them. Groups are collected as a whole, when they must be.
    pub fn keep_pace(&mut self, device: &mut Device, ftl: &mut dyn Ftl) {
        let ahead = (device.geometry().spare_blocks() / PACE_SHARE).min(RESERVE_BLOCKS);
        if !self.background || ahead == 0 || device.grouping().is_some() {
            return;
        }
        let Some(planes) = short_planes(device, ftl, ahead) else { return };
        let valid = |block: &u32| device.blocks.get(*block).valid;
        if let Some(victim) = planes.filter_map(|plane| self.victim(device, plane)).min_by_key(valid) {
            self.empty(device, ftl, victim, Cause::Gc);
            self.level_wear(device, ftl, device.blocks.plane_of(victim));
        }
    }

    /// Collects ahead while the device would be idle until `until`.
    pub fn use_idle_time(&mut self, device: &mut Device, ftl: &mut dyn Ftl, until: Ns) {
        if !self.background || device.schedule.busy_until() >= until {
            return;
        }
        for plane in 0..device.geometry().shape.units() {
            while device.blocks.free(plane) < 2 * RESERVE_BLOCKS {
                let Some(victim) = self.victim(device, plane) else { break };
                let valid = u32::from(device.blocks.get(victim).valid);
                let start = device.schedule.busy_until();
                let is_worth_it = 2 * valid <= device.geometry().shape.pages;
                if !is_worth_it || start + 2 * device.schedule.collection(valid) > until {
                    break;
                }
                device.set_now(start);
                self.empty(device, ftl, victim, Cause::Gc);
                self.level_wear(device, ftl, plane);
            }
        }
        let (pages, ahead) = (device.geometry().shape.pages, device.geometry().shape.units() * RESERVE_BLOCKS);
        while let Some(group) = device.victim_group() {
            let start = device.schedule.busy_until();
            let is_worth_it = 2 * group.valid <= group.blocks * pages
                && device.blocks.all_free() < reserve(device, ftl) + ahead
                && start + 2 * device.schedule.collection(group.valid) <= until;
            device.set_now(start);
            if !is_worth_it || !self.empty_group(device, ftl, group.group) {
                break;
            }
        }
    }

    /// A block of a group without valid pages, or the block that the policy chooses among those of no group.
    fn victim(&self, device: &Device, plane: u32) -> Option<u32> {
        let in_groups = device.victim_in_groups(plane..plane + 1);
        if in_groups.is_some_and(|block| device.blocks.get(block).valid == 0) {
            return in_groups;
        }
        match self.policy {
            Policy::Greedy => greedy(device, plane),
            Policy::CostBenefit => best_benefit(device, plane),
        }
        .filter(|block| device.has_garbage(*block))
    }

    /// Moves the valid pages of a block within its plane, tells the layer, and erases the block.
    fn empty(&mut self, device: &mut Device, ftl: &mut dyn Ftl, block: u32, cause: Cause) {
        let (plane, free) = (device.blocks.plane_of(block), device.blocks.free(device.blocks.plane_of(block)));
        assert!(
            free >= KEPT_BLOCKS || !self.had_reserve,
            "a collection begins in plane {plane} with {free} free blocks"
        );
        device.blocks.unlist(block);
        self.moves.clear();
        let mut valid: Vec<Ppn> = device.pages_of(block).filter(|ppn| device.is_valid(*ppn)).collect();
        if ftl.moves_in_order() {
            valid.sort_unstable_by_key(|ppn| device.owner(*ppn));
        }
        for from in valid {
            self.move_page(device, ftl, from, cause);
        }
        self.moved += self.moves.len() as u64;
        if !self.moves.is_empty() {
            self.moves.sort_unstable_by_key(|m| m.lpn);
            ftl.moved(device, &self.moves);
        }
        let end = device.erase(block, cause);
        device.wait(end);
    }

    /// Moves all valid pages of a group, in the order of logical pages, to new blocks of it, tells the layer, and erases the old ones;
    /// `false`: free blocks do not suffice. Pages of the group that lie in blocks which all groups share move as well.
    fn empty_group(&mut self, device: &mut Device, ftl: &mut dyn Ftl, group: u32) -> bool {
        let pages = device.pages_of_group(group);
        let valid: Vec<Ppn> = pages.clone().filter_map(|lpn| ftl.peek(device, lpn)).collect();
        let Some(blocks) = device.begin_group(group, valid.len() as u32) else { return false };
        self.moves.clear();
        let mut end = device.now();
        for from in valid {
            let (owner, content) = (device.owner(from), device.content(from));
            let arrived = device.read(from, Cause::Gc);
            device.wait(arrived);
            let (to, written) = device.program_collected(owner, content);
            device.invalidate(from);
            end = end.max(written);
            self.moves.push(Move { lpn: data(owner), from, to });
        }
        device.wait(end);
        self.moved += self.moves.len() as u64;
        ftl.moved(device, &self.moves);
        ftl.collected(device, pages);
        device.end_group(group);
        let erased = blocks.iter().map(|block| device.erase(*block, Cause::Gc)).max();
        device.wait(erased.unwrap_or(0));
        for block in blocks {
            self.level_wear(device, ftl, device.blocks.plane_of(block));
        }
        true
    }

    fn move_page(&mut self, device: &mut Device, ftl: &mut dyn Ftl, from: u32, cause: Cause) {
        let (owner, content) = (device.owner(from), device.content(from));
        if owner.as_translation().is_some() {
            let cause = if cause == Cause::Gc { Cause::GcTranslation } else { cause };
            self.moved += u64::from(cause == Cause::Wear);
            // Also for wear levelling it stays in blocks of the map, which are collected when free blocks are few.
            return ftl.directory_mut().expect("it has translation pages").relocate(device, from, cause);
        }
        let plane = device.plane_of(from);
        let stream = if cause == Cause::Wear { Stream::Cold } else { Stream::Moved };
        let arrived = device.read(from, cause);
        device.wait(arrived);
        let (to, end) = device.program_in(plane, stream, owner, cause, content);
        device.invalidate(from);
        device.wait(end);
        self.moves.push(Move { lpn: data(owner), from, to });
    }

    /// Static wear levelling: from time to time, data that does not change leaves blocks that are worn least, so that
    /// they are worn as others are. It goes to blocks that are worn most.
    fn level_wear(&mut self, device: &mut Device, ftl: &mut dyn Ftl, plane: u32) {
        let left = &mut self.wear_check[plane as usize];
        *left -= 1;
        if *left > 0 {
            return;
        }
        *left = device.geometry().blocks;
        if !self.wear_levelling {
            return;
        }
        let erases = |device: &Device, block| device.blocks.get(block).erases;
        let most = device.blocks.of_plane(plane).map(|b| erases(device, b)).max().unwrap_or(0);
        let lags = |block: &u32| device.blocks.is_listed(*block) && most - erases(device, *block) > WEAR_GAP;
        let mut lagging: Vec<u32> = device.blocks.of_plane(plane).filter(lags).collect();
        // A block that changed lately will be collected soon anyway.
        lagging.sort_unstable_by_key(|block| device.blocks.get(*block).changed);
        lagging.truncate(device.geometry().blocks.div_ceil(WEAR_SHARE) as usize);
        for block in lagging {
            // Emptying the blocks before this one may have collected it.
            if device.blocks.free(plane) >= RESERVE_BLOCKS && device.blocks.is_listed(block) {
                self.empty(device, ftl, block, Cause::Wear);
            }
        }
    }
}

/// Planes of which a block is to be collected: the first one without its reserve and so many blocks more, or all if they have too few
/// free blocks together.
fn short_planes(device: &Device, ftl: &dyn Ftl, ahead: u32) -> Option<Range<u32>> {
    let units = device.geometry().shape.units();
    if ahead > 0 || device.blocks.short_planes() > 0 {
        let short = (0..units).find(|plane| device.blocks.free(*plane) < RESERVE_BLOCKS + ahead);
        if let Some(plane) = short {
            return Some(plane..plane + 1);
        }
    }
    (device.blocks.all_free() < reserve(device, ftl) + units * ahead).then_some(0..units)
}

/// Free blocks of all planes below which garbage is collected.
fn reserve(device: &Device, ftl: &dyn Ftl) -> u32 {
    let shape = &device.geometry().shape;
    let unwritten = ftl.directory().map_or(0, Directory::unwritten).div_ceil(shape.pages);
    shape.units() * RESERVE_BLOCKS + unwritten + device.grouping().map_or(0, |grouping| grouping.reserve)
}

fn data(owner: Owner) -> u32 {
    owner.as_data().expect("a page that is no translation page holds data")
}

/// The block whose pages cost the fewest moves for each that is freed, v / (n - v), where those of a block of the map count several times.
fn greedy(device: &Device, plane: u32) -> Option<u32> {
    let pages = device.geometry().shape.pages;
    let cost = |kind: Kind, weight: u64| {
        let block = device.blocks.fewest_valid_of(plane, kind).filter(|block| device.has_garbage(*block))?;
        let valid = u32::from(device.blocks.get(block).valid);
        Some((weight * u64::from(valid) * (1 << 16) / u64::from(pages - valid), block))
    };
    let (data, map) = (cost(Kind::Data, 1), cost(Kind::Map, MAP_WEIGHT));
    data.into_iter().chain(map).min().map(|(_, block)| block)
}

/// The block with the highest benefit. Among blocks with equally many valid pages the oldest has it, and it is the
/// first of their list.
fn best_benefit(device: &Device, plane: u32) -> Option<u32> {
    // After a power cut the last order may be an older one: numbers of pages that were erased since are used again.
    let now = device.last_order();
    let benefit = |block: &u32| {
        let b = device.blocks.get(*block);
        let used = f64::from(b.valid) / f64::from(device.geometry().shape.pages);
        if b.valid == 0 { f64::INFINITY } else { (1.0 - used) / (2.0 * used) * now.saturating_sub(b.changed) as f64 }
    };
    device.blocks.oldest(plane).max_by(|a, b| benefit(a).total_cmp(&benefit(b)))
}
