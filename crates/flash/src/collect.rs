//! Garbage collection and static wear levelling: which block is emptied, and when.
//!
//! Collection runs between the page operations of requests, never inside a translation layer. In the foreground it
//! runs when a plane has fewer free blocks than the reserve, and the request waits; in the background, up to twice the
//! reserve, when the device is idle for as long as a collection takes.

use crate::device::{Cause, Device, Ns, Owner, Ppn, RESERVE_BLOCKS, Stream};
use crate::ftl::{Ftl, Move};

/// How the block to collect is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The block with the fewest valid pages.
    Greedy,
    /// The highest (1 − u) / 2u × age, where u is the share of valid pages and age the time since the block changed
    /// (Kawaguchi, Nishioka, Motoda: "A flash-memory based file system", USENIX 1995). Time is counted in programs.
    CostBenefit,
}

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
}

impl Collector {
    pub fn new(device: &Device, policy: Policy, background: bool, wear_levelling: bool) -> Self {
        let geometry = device.geometry();
        let wear_check = vec![geometry.blocks; geometry.shape.units() as usize];
        Collector { policy, background, wear_levelling, wear_check, moves: Vec::new() }
    }

    /// Collects until every plane has its reserve of free blocks.
    pub fn make_room(&mut self, device: &mut Device, ftl: &mut dyn Ftl) {
        if device.blocks.short_planes() == 0 {
            return;
        }
        for plane in 0..device.geometry().shape.units() {
            while device.blocks.free(plane) < RESERVE_BLOCKS {
                let victim = self.victim(device, plane).expect("a plane that is not full has a block to collect");
                self.empty(device, ftl, victim, Cause::Gc);
                self.level_wear(device, ftl, plane);
            }
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
            }
        }
    }

    fn victim(&self, device: &mut Device, plane: u32) -> Option<u32> {
        match self.policy {
            Policy::Greedy => device.blocks.fewest_valid(plane),
            Policy::CostBenefit => best_benefit(device, plane),
        }
        .filter(|block| u32::from(device.blocks.get(*block).valid) < device.geometry().shape.pages)
    }

    /// Moves the valid pages of a block within its plane, tells the layer, and erases the block.
    fn empty(&mut self, device: &mut Device, ftl: &mut dyn Ftl, block: u32, cause: Cause) {
        device.blocks.unlist(block);
        let pages = device.geometry().shape.pages;
        self.moves.clear();
        let mut valid: Vec<Ppn> = (block * pages..(block + 1) * pages).filter(|ppn| device.is_valid(*ppn)).collect();
        if ftl.moves_in_order() {
            valid.sort_unstable_by_key(|ppn| device.owner(*ppn));
        }
        for from in valid {
            self.move_page(device, ftl, from, cause);
        }
        if !self.moves.is_empty() {
            self.moves.sort_unstable_by_key(|m| m.lpn);
            ftl.moved(device, &self.moves);
        }
        let end = device.erase(block, cause);
        device.wait(end);
    }

    fn move_page(&mut self, device: &mut Device, ftl: &mut dyn Ftl, from: u32, cause: Cause) {
        let (owner, content) = (device.owner(from), device.content(from));
        let plane = device.blocks.plane_of(from / device.geometry().shape.pages);
        let (stream, cause) = match (owner.as_translation(), cause) {
            (Some(page), Cause::Gc) => {
                let directory = ftl.directory().expect("it has translation pages");
                (directory.stream(page), Cause::GcTranslation)
            }
            (_, Cause::Wear) => (Stream::Cold, Cause::Wear),
            (_, cause) => (Stream::Moved, cause),
        };
        let arrived = device.read(from, cause);
        device.wait(arrived);
        let (to, end) = device.program_in(plane, stream, owner, cause, content);
        device.invalidate(from);
        device.wait(end);
        match owner.as_translation() {
            Some(page) => ftl.directory_mut().expect("it has translation pages").moved(page, to),
            None => self.moves.push(Move { lpn: data(owner), from, to }),
        }
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
            if device.blocks.free(plane) >= RESERVE_BLOCKS {
                self.empty(device, ftl, block, Cause::Wear);
            }
        }
    }
}

fn data(owner: Owner) -> u32 {
    owner.as_data().expect("a page that is no translation page holds data")
}

/// The block with the highest benefit. Among blocks with equally many valid pages the oldest has it, and it is the
/// first of their list.
fn best_benefit(device: &Device, plane: u32) -> Option<u32> {
    let now = device.last_order();
    let benefit = |block: &u32| {
        let b = device.blocks.get(*block);
        let used = f64::from(b.valid) / f64::from(device.geometry().shape.pages);
        if b.valid == 0 { f64::INFINITY } else { (1.0 - used) / (2.0 * used) * (now - b.changed) as f64 }
    };
    device.blocks.oldest(plane).max_by(|a, b| benefit(a).total_cmp(&benefit(b)))
}
