//! Allocation groups: each group of logical pages has superblocks of its own, for layers that learn where pages are.
//!
//! A superblock is a number of blocks, in different planes where possible, that are written in stripes: one page of each block
//! in turn. The pages of a group have *virtual numbers* in the order of their allocation. Pages that are written in the order of
//! logical pages so have consecutive numbers, whatever planes and blocks they lie in. The group's list of blocks translates a virtual
//! number to a physical page and back.
//!
//! A group gets a superblock only while enough blocks are free. Otherwise its pages go to the blocks that all groups share, and have no
//! virtual number. `collect.rs` collects a group as a whole, and the numbers begin anew then.

use super::blocks::{Kind, NONE};
use super::{Cause, Device, Geometry, Ns, Owner, Ppn, RESERVE_BLOCKS, Stream};
use std::cmp::Reverse;
use std::ops::Range;

/// How logical pages are divided into groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Logical pages of a group.
    pub pages: u32,
    /// Blocks of a superblock.
    pub width: u32,
    /// Superblocks that may be partly written; a group has one at most.
    pub open: u32,
    /// Blocks that stay free, beside the reserve, so that a group can be collected.
    pub reserve: u32,
}

impl Grouping {
    /// Groups of whole translation pages with `unit` logical pages each, for a device that has `translation` of them.
    ///
    /// Superblocks that are partly written and the blocks into which a group is collected are taken from what is spare. A group is as large
    /// as makes their sum least. A superblock has a block of each plane, or of fewer if they would take more than half of what is spare.
    pub fn fit(geometry: &Geometry, unit: u32, translation: u32) -> Grouping {
        let (shape, logical) = (&geometry.shape, geometry.logical_pages);
        let spare = (geometry.valid_max() * shape.units()).saturating_sub(logical + translation) / shape.pages;
        let reserve = |pages: u32, width: u32| (pages.div_ceil(shape.pages * width) + 1) * width;
        let cost = |pages: u32, width: u32| logical.div_ceil(pages) * width + reserve(pages, width);
        let sizes = || (0..).map(|power| u64::from(unit) << power).take_while(|pages| *pages < 2 * u64::from(logical));
        let best = |width| sizes().map(|pages| pages as u32).min_by_key(|pages| cost(*pages, width)).unwrap_or(unit);
        let mut width = shape.units();
        while width > 1 && 2 * cost(best(width), width) > spare {
            width = width.div_ceil(2);
        }
        let (pages, reserve) = (best(width), reserve(best(width), width));
        let open = (spare.saturating_sub(reserve) / width).saturating_sub(1).min(logical.div_ceil(pages));
        Grouping { pages, width, open, reserve: if open > 0 { reserve } else { 0 } }
    }
}

/// The blocks of a group.
#[derive(Debug, Clone, Default)]
struct Group {
    /// Blocks in the order of virtual numbers, superblock by superblock; `NONE`: the block was erased.
    blocks: Vec<u32>,
    /// Virtual number of the next page, and pages left in the superblock that is partly written.
    next: u32,
    left: u32,
    /// Blocks of the list that were not erased, and their valid pages.
    held: u32,
    valid: u32,
}

/// All groups of a device.
#[derive(Debug)]
pub(crate) struct Groups {
    grouping: Grouping,
    block_pages: u32,
    groups: Vec<Group>,
    /// The group of each block, and its place in the group's list.
    homes: Vec<(u32, u32)>,
    /// Superblocks that are partly written.
    open: u32,
}

/// A group that is worth collecting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupVictim {
    pub group: u32,
    /// Valid pages in its blocks.
    pub valid: u32,
    /// Its blocks.
    pub blocks: u32,
}

impl Groups {
    fn new(grouping: Grouping, geometry: &Geometry) -> Self {
        let groups = vec![Group::default(); geometry.logical_pages.div_ceil(grouping.pages) as usize];
        let homes = vec![(NONE, NONE); geometry.block_count() as usize];
        Groups { grouping, block_pages: geometry.shape.pages, groups, homes, open: 0 }
    }

    /// Forgets which blocks the groups have.
    pub(super) fn clear(&mut self) {
        self.groups.fill(Group::default());
        self.homes.fill((NONE, NONE));
        self.open = 0;
    }

    fn superblock_pages(&self) -> u32 {
        self.grouping.width * self.block_pages
    }

    fn group_of(&self, lpn: u32) -> u32 {
        lpn / self.grouping.pages
    }

    fn group(&mut self, group: u32) -> &mut Group {
        &mut self.groups[group as usize]
    }

    fn home(&self, block: u32) -> Option<(u32, u32)> {
        let home = self.homes[block as usize];
        (home.0 != NONE).then_some(home)
    }

    /// Place of the block of a virtual number in the list, and the page in it.
    fn split(&self, number: u32) -> (u32, u32) {
        let (width, pages) = (self.grouping.width, self.superblock_pages());
        (number / pages * width + number % width, number % pages / width)
    }

    fn number(&self, place: u32, page: u32) -> u32 {
        let width = self.grouping.width;
        place / width * self.superblock_pages() + page * width + place % width
    }

    /// Adds a superblock, in place of one whose blocks were all erased if there is one.
    fn add_superblock(&mut self, number: u32, blocks: &[u32]) {
        let (width, pages) = (self.grouping.width, self.superblock_pages());
        let group = self.group(number);
        let erased = group.blocks.chunks(width as usize).position(|blocks| blocks.iter().all(|block| *block == NONE));
        let first = erased.unwrap_or(group.blocks.len() / width as usize) as u32;
        let end = ((first + 1) * width) as usize;
        group.blocks.resize(group.blocks.len().max(end), NONE);
        group.blocks[end - width as usize..end].copy_from_slice(blocks);
        (group.next, group.left) = (first * pages, pages);
        group.held += width;
        for (place, block) in (first * width..).zip(blocks) {
            self.homes[*block as usize] = (number, place);
        }
        self.open += 1;
    }

    /// The block of the next page, if the group has a superblock that is partly written.
    fn next_block(&self, group: u32) -> Option<u32> {
        let found = &self.groups[group as usize];
        (found.left > 0).then(|| found.blocks[self.split(found.next).0 as usize])
    }

    fn advance(&mut self, group: u32) {
        let group = self.group(group);
        group.next += 1;
        group.left -= 1;
        group.valid += 1;
        self.open -= u32::from(group.left == 0);
    }

    /// A page of a block became garbage.
    pub(super) fn invalidate(&mut self, block: u32) {
        if let Some((group, _)) = self.home(block) {
            self.group(group).valid -= 1;
        }
    }

    /// A block was erased.
    pub(super) fn erase(&mut self, block: u32) {
        if let Some((group, place)) = self.home(block) {
            self.homes[block as usize] = (NONE, NONE);
            let group = self.group(group);
            group.blocks[place as usize] = NONE;
            group.held -= 1;
        }
    }

    /// Takes all blocks from a group; it has none then.
    fn detach(&mut self, group: u32) -> Vec<u32> {
        let Group { mut blocks, left, .. } = std::mem::take(self.group(group));
        self.open -= u32::from(left > 0);
        blocks.retain(|block| *block != NONE);
        for block in &blocks {
            self.homes[*block as usize] = (NONE, NONE);
        }
        blocks
    }

    /// Gives up the rest of the superblock that is partly written; returns its blocks.
    fn close(&mut self, group: u32) -> Vec<u32> {
        let (width, place) = (self.grouping.width, self.split(self.groups[group as usize].next).0);
        let group = self.group(group);
        if std::mem::replace(&mut group.left, 0) == 0 {
            return Vec::new();
        }
        let first = (place / width * width) as usize;
        let blocks = group.blocks[first..first + width as usize].to_vec();
        self.open -= 1;
        blocks
    }

    /// Of the groups whose collection frees a superblock, the one with the least share of valid pages.
    fn victim(&self) -> Option<GroupVictim> {
        let pages = self.superblock_pages();
        let gains = |group: &Group| group.held > group.valid.div_ceil(pages) * self.grouping.width;
        let share = |group: &Group| (u64::from(group.valid) << 32) / u64::from(group.held);
        let (number, group) = (0u32..).zip(&self.groups).filter(|(_, g)| gains(g)).min_by_key(|(_, g)| share(g))?;
        Some(GroupVictim { group: number, valid: group.valid, blocks: group.held })
    }
}

impl Device {
    /// Divides logical pages into groups; nothing is written yet.
    pub(crate) fn set_groups(&mut self, grouping: Grouping) {
        self.groups = Some(Groups::new(grouping, &self.geometry));
    }

    /// How logical pages are divided into groups, if they are.
    pub fn grouping(&self) -> Option<&Grouping> {
        self.groups.as_ref().map(|groups| &groups.grouping)
    }

    /// The virtual number of a page in its group; `None`: no group has its block.
    pub fn virtual_page(&self, ppn: Ppn) -> Option<u32> {
        let (groups, block) = (self.groups.as_ref()?, self.block_of(ppn));
        groups.home(block).map(|(_, place)| groups.number(place, ppn % self.geometry.shape.pages))
    }

    /// The page with a virtual number in the group of a logical page.
    pub fn physical_page(&self, lpn: u32, number: u32) -> Option<Ppn> {
        let groups = self.groups.as_ref()?;
        let (place, page) = groups.split(number);
        let block = *groups.groups[groups.group_of(lpn) as usize].blocks.get(place as usize)?;
        (block != NONE).then(|| block * self.geometry.shape.pages + page)
    }

    /// Logical pages of a group.
    pub(crate) fn pages_of_group(&self, group: u32) -> Range<u32> {
        let pages = self.grouping().map_or(0, |grouping| grouping.pages);
        group * pages..((group + 1) * pages).min(self.geometry.logical_pages)
    }

    /// Programs the next page of the owner's group; `None`: the group has no superblock and gets none, or the plane of its next page is full
    /// of valid pages.
    pub(crate) fn program_grouped(&mut self, owner: Owner, cause: Cause, content: u32) -> Option<(Ppn, Ns)> {
        let groups = self.groups.as_ref()?;
        let group = groups.group_of(owner.as_data()?);
        if groups.next_block(group).is_none() {
            // Collection may open one superblock more than the host's writes.
            let may_open = groups.open < groups.grouping.open || cause == Cause::Gc && groups.grouping.open > 0;
            self.open_superblock(group, may_open)?;
        }
        let block = self.groups.as_ref()?.next_block(group)?;
        if self.blocks.valid(self.blocks.plane_of(block)) > self.geometry.valid_max() {
            return None;
        }
        self.groups.as_mut()?.advance(group);
        Some(self.program_next(block, owner, cause, content))
    }

    fn open_superblock(&mut self, group: u32, may_open: bool) -> Option<()> {
        let planes = if may_open { self.superblock_planes()? } else { return None };
        let take = |plane: &u32| self.blocks.take(*plane, false, Kind::Group);
        let blocks: Vec<u32> = planes.iter().map(take).collect();
        self.groups.as_mut()?.add_superblock(group, &blocks);
        Some(())
    }

    /// Free blocks of a plane that superblocks may take: each plane keeps one block less than the reserve, as for any write of data.
    fn group_room(&self, plane: u32) -> u32 {
        let is_full = self.blocks.valid(plane) > self.geometry.valid_max();
        if is_full { 0 } else { self.blocks.free(plane).saturating_sub(RESERVE_BLOCKS - 1) }
    }

    /// Planes for a superblock: each once if possible, those with the most free blocks first.
    fn superblock_planes(&self) -> Option<Vec<u32>> {
        let units = self.geometry.shape.units();
        let mut taken = vec![0; units as usize];
        for _ in 0..self.grouping()?.width {
            let room = |plane: u32| self.group_room(plane).saturating_sub(taken[plane as usize]);
            let suits = (0..units).filter(|plane| room(*plane) > 0);
            let plane = suits.min_by_key(|plane| (taken[*plane as usize], Reverse(room(*plane))))?;
            taken[plane as usize] += 1;
        }
        Some((0u32..).zip(taken).flat_map(|(plane, count)| (0..count).map(move |_| plane)).collect())
    }

    /// The group that is best collected.
    pub(crate) fn victim_group(&self) -> Option<GroupVictim> {
        self.groups.as_ref()?.victim()
    }

    /// Takes all blocks from a group, so that so many valid pages can be written to new ones; `None`: free blocks do not suffice for them.
    /// The blocks are no victims any more, and are to be erased once they are empty.
    pub(crate) fn begin_group(&mut self, group: u32, pages: u32) -> Option<Vec<u32>> {
        let groups = self.groups.as_ref()?;
        let needed = pages.div_ceil(groups.superblock_pages()) * groups.grouping.width;
        let room: u32 = (0..self.geometry.shape.units()).map(|plane| self.group_room(plane)).sum();
        if needed > room {
            return None;
        }
        let blocks = self.groups.as_mut()?.detach(group);
        for block in blocks.iter().copied() {
            if self.blocks.is_listed(block) {
                self.blocks.unlist(block);
            }
        }
        Some(blocks)
    }

    /// A group was collected. Its superblock that is partly written is closed if there are too many.
    pub(crate) fn end_group(&mut self, group: u32) {
        if self.groups.as_ref().is_some_and(|groups| groups.open > groups.grouping.open) {
            self.close_group(group);
        }
    }

    fn close_group(&mut self, group: u32) {
        let blocks = self.groups.as_mut().map(|groups| groups.close(group)).unwrap_or_default();
        for block in blocks.into_iter().filter(|block| *block != NONE) {
            if !self.blocks.is_listed(block) {
                self.blocks.list(block);
            }
        }
    }

    /// The block of a group with the fewest valid pages in some planes, to be collected alone because no group can be.
    pub(crate) fn victim_in_groups(&self, planes: Range<u32>) -> Option<u32> {
        let blocks = planes.filter_map(|plane| self.blocks.fewest_valid_of(plane, Kind::Group));
        blocks.filter(|block| self.has_garbage(*block)).min_by_key(|block| self.blocks.get(*block).valid)
    }

    /// Closes the superblocks of all groups, so that each of their blocks may be collected.
    pub(crate) fn close_groups(&mut self) {
        let count = self.groups.as_ref().map_or(0, |groups| groups.groups.len() as u32);
        (0..count).for_each(|group| self.close_group(group));
    }

    /// Programs a page of data that collection moves: in its group, or in the blocks that all share.
    pub(crate) fn program_collected(&mut self, owner: Owner, content: u32) -> (Ppn, Ns) {
        match self.program_grouped(owner, Cause::Gc, content) {
            Some(placed) => placed,
            None => self.program(Stream::Moved, owner, Cause::Gc, content),
        }
    }
}
