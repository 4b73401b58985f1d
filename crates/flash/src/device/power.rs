//! What a power cut leaves of a device, and what its out-of-band areas tell afterwards.
//!
//! Pages, their out-of-band areas and the wear of blocks stay. Which pages count, lists of blocks, open blocks and the schedule are
//! lost. Open blocks are closed: their last page may be torn, and the rest of them is erased when they are collected.

use super::blocks::NONE;
use super::{Cause, Device, Owner, Ppn};

/// An operation that changes flash, for tests that cut the power after each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A page was programmed, with its out-of-band area.
    Program {
        /// The page.
        ppn: Ppn,
        /// What it belongs to.
        owner: Owner,
        /// Its order number.
        order: u64,
        /// What it holds.
        content: u32,
    },
    /// A block was erased.
    Erase {
        /// The block.
        block: u32,
    },
}

/// The order number of a page whose out-of-band area cannot be read: its program or the erase of its block was cut.
const UNREADABLE: u64 = 0;

impl Device {
    /// Does operations again on the cells of a new device; if `is_torn`, the last one only half. It has to recover then.
    pub(crate) fn replay(&mut self, operations: &[Operation], is_torn: bool) {
        let pages = self.geometry.shape.pages;
        for (number, operation) in (1..).zip(operations) {
            let is_torn = is_torn && number == operations.len();
            match *operation {
                Operation::Program { ppn, owner, order, content } => {
                    self.blocks.set_written(ppn / pages, ppn % pages + 1);
                    self.set_page(ppn, owner, if is_torn { UNREADABLE } else { order }, content);
                }
                Operation::Erase { block } if is_torn => {
                    let all = block * pages..(block + 1) * pages;
                    all.for_each(|ppn| self.set_page(ppn, Owner(0), UNREADABLE, 0));
                }
                Operation::Erase { block } => self.blocks.set_erased(block),
            }
        }
        self.uncounted = self.in_blocks();
    }

    /// Forgets what is in no flash cell, and reads every out-of-band area. Of the pages of a logical page the newest counts. No
    /// translation page does: it may lag behind, and is to be written anew. Returns where each logical page is.
    pub(crate) fn recover(&mut self) -> Vec<u32> {
        self.open.fill([NONE; super::STREAMS]);
        self.turn = [0; super::STREAMS];
        if let Some(groups) = &mut self.groups {
            groups.clear();
        }
        self.schedule.reset();
        (self.order, self.now) = (0, 0);
        self.valid.fill(0);
        let mut map = vec![NONE; self.geometry.logical_pages as usize];
        let (pages, count) = (self.geometry.shape.pages, self.geometry.block_count() as usize);
        let (mut counts, mut changed) = (vec![0; count], vec![0; count]);
        for ppn in 0..self.geometry.pages() as u32 {
            if !self.is_written(ppn) {
                continue;
            }
            let (end, order) = (self.schedule.read(self.plane_of(ppn), self.block_of(ppn), 0), self.order(ppn));
            self.counters.reads[Cause::Recovery as usize] += 1;
            self.order = self.order.max(order);
            let block = &mut changed[(ppn / pages) as usize];
            *block = order.max(*block);
            self.wait(end);
            let lpn = self.owner(ppn).as_data().filter(|_| order != UNREADABLE);
            if let Some(newest) = lpn.map(|lpn| &mut map[lpn as usize]) {
                let is_newer = *newest == NONE || self.order(*newest) < order;
                *newest = if is_newer { ppn } else { *newest };
            }
        }
        for ppn in map.iter().copied().filter(|ppn| *ppn != NONE) {
            self.valid[ppn as usize / 64] |= 1 << (ppn % 64);
            counts[(ppn / pages) as usize] += 1;
        }
        self.blocks
            .restore(self.geometry.shape.units(), pages, |block| (counts[block as usize], changed[block as usize]));
        map
    }
}
