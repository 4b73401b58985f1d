//! Blocks and their lists: free ones by wear, full ones by how many of their pages are valid, each kind apart.

use super::RESERVE_BLOCKS;
use std::collections::BTreeSet;

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data of any logical pages.
    Data,
    /// Pages of the map.
    Map,
    /// Data of one allocation group, which is collected as a whole.
    Group,
}

/// Kinds of blocks.
const KINDS: usize = 3;

/// Kinds whose blocks are collected one by one.
const SINGLE: usize = 2;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// What is known of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Order number of the last program or invalidation in it.
    pub changed: u64,
    pub erases: u32,
    prev: u32,
    next: u32,
    /// Pages that hold what a map points to.
    pub valid: u16,
    /// Pages written since the last erase; the next one to write.
    pub written: u16,
    /// Whether it stands in a list of victims.
    listed: bool,
    kind: Kind,
}

/// Full blocks by the number of valid pages.
#[derive(Debug)]
struct Victims {
    /// First and last block of each list. The first has not changed for longest.
    ends: Vec<(u32, u32)>,
}

impl Victims {
    fn new(pages: u32) -> Self {
        Victims { ends: vec![(NONE, NONE); pages as usize + 1] }
    }

    /// The first block of each list, those with the fewest valid pages first.
    fn firsts(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().map(|ends| ends.0).filter(|block| *block != NONE)
    }
}

/// The lists of a plane.
#[derive(Debug)]
struct Plane {
    /// Erased blocks by erases.
    free: BTreeSet<(u32, u32)>,
    /// Full blocks of each kind.
    victims: [Victims; KINDS],
    valid: u32,
}

/// All blocks of a device.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    planes: Vec<Plane>,
    per_plane: u32,
    short_planes: u32,
    /// Free blocks of all planes.
    free: u32,
    /// Pages that were written in blocks which were erased since.
    erased_pages: u64,
}

impl Blocks {
    pub fn new(planes: u32, per_plane: u32, pages: u32) -> Self {
        let empty = Block {
            changed: 0,
            erases: 0,
            prev: NONE,
            next: NONE,
            valid: 0,
            written: 0,
            listed: false,
            kind: Kind::Data,
        };
        let blocks = vec![empty; (planes * per_plane) as usize];
        let mut blocks = Blocks { blocks, planes: Vec::new(), per_plane, short_planes: 0, free: 0, erased_pages: 0 };
        blocks.restore(planes, pages, |_| (0, 0));
        blocks
    }

    /// Makes the lists anew from what stays without power: how much of each block is written, and its wear. `found` says how many pages of a
    /// block are valid, and when the last of its pages was written. A block that is written in part
    /// counts as full. All count as blocks of data, because no page of the map is valid then.
    pub fn restore(&mut self, planes: u32, pages: u32, found: impl Fn(u32) -> (u32, u64)) {
        let victims = || std::array::from_fn(|_| Victims::new(pages));
        let empty = |_| Plane { free: BTreeSet::new(), victims: victims(), valid: 0 };
        self.planes = (0..planes).map(empty).collect();
        let mut oldest_first: Vec<u32> = (0..planes * self.per_plane).collect();
        oldest_first.sort_by_key(|block| found(*block).1);
        for block in oldest_first {
            let (b, (valid, changed)) = (&mut self.blocks[block as usize], found(block));
            (b.valid, b.changed, b.listed, b.kind) = (valid as u16, changed, false, Kind::Data);
            let plane = &mut self.planes[(block / self.per_plane) as usize];
            plane.valid += u32::from(b.valid);
            if b.written == 0 {
                plane.free.insert((b.erases, block));
            } else {
                self.list(block);
            }
        }
        let short = |plane: &&Plane| plane.free.len() < RESERVE_BLOCKS as usize;
        self.short_planes = self.planes.iter().filter(short).count() as u32;
        self.free = self.planes.iter().map(|plane| plane.free.len() as u32).sum();
    }

    /// Notes that the first pages of a block are written.
    pub fn set_written(&mut self, block: u32, pages: u32) {
        let written = &mut self.blocks[block as usize].written;
        *written = (*written).max(pages as u16);
    }

    /// Notes that a block was erased.
    pub fn set_erased(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        b.written = 0;
        b.erases += 1;
    }

    pub fn get(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    /// What a block that is in use holds.
    pub fn kind(&self, block: u32) -> Kind {
        self.blocks[block as usize].kind
    }

    pub fn plane_of(&self, block: u32) -> u32 {
        block / self.per_plane
    }

    /// All blocks of a plane.
    pub fn of_plane(&self, plane: u32) -> std::ops::Range<u32> {
        plane * self.per_plane..(plane + 1) * self.per_plane
    }

    pub fn free(&self, plane: u32) -> u32 {
        self.planes[plane as usize].free.len() as u32
    }

    /// Free blocks of all planes.
    pub fn all_free(&self) -> u32 {
        self.free
    }

    pub fn valid(&self, plane: u32) -> u32 {
        self.planes[plane as usize].valid
    }

    /// Planes whose free blocks are fewer than the reserve.
    pub fn short_planes(&self) -> u32 {
        self.short_planes
    }

    /// Takes a block: the least worn free one (dynamic wear levelling), or the most worn one for
    /// data that does not change.
    pub fn take(&mut self, plane: u32, most_worn: bool, kind: Kind) -> u32 {
        let free = &mut self.planes[plane as usize].free;
        let taken = if most_worn { free.pop_last() } else { free.pop_first() };
        self.short_planes += u32::from(free.len() + 1 == RESERVE_BLOCKS as usize);
        let (_, block) =
            taken.unwrap_or_else(|| panic!("plane {plane} has no free block: the reserve did not suffice"));
        assert_eq!(self.blocks[block as usize].written, 0, "block {block} is written without an erase");
        self.blocks[block as usize].kind = kind;
        self.free -= 1;
        block
    }

    /// Counts a program of the next page of a block; returns the page's number in it.
    pub fn program(&mut self, block: u32, now: u64) -> u16 {
        let b = &mut self.blocks[block as usize];
        let page = b.written;
        b.written += 1;
        b.valid += 1;
        b.changed = now;
        self.planes[(block / self.per_plane) as usize].valid += 1;
        page
    }

    /// A page of the block became garbage.
    pub fn invalidate(&mut self, block: u32, now: u64) {
        let listed = self.blocks[block as usize].listed;
        if listed {
            self.unlist(block);
        }
        let b = &mut self.blocks[block as usize];
        b.valid -= 1;
        b.changed = now;
        self.planes[(block / self.per_plane) as usize].valid -= 1;
        if listed {
            self.list(block);
        }
    }

    /// Makes a full block a candidate for collection.
    pub fn list(&mut self, block: u32) {
        let Block { valid, kind, .. } = self.blocks[block as usize];
        let victims = &mut self.planes[(block / self.per_plane) as usize].victims[kind as usize];
        let (first, last) = victims.ends[valid as usize];
        victims.ends[valid as usize] = (if first == NONE { block } else { first }, block);
        if last != NONE {
            self.blocks[last as usize].next = block;
        }
        let b = &mut self.blocks[block as usize];
        assert!(!b.listed, "block {block} stands in two lists");
        (b.prev, b.next, b.listed) = (last, NONE, true);
    }

    /// Takes a block out of its list.
    pub fn unlist(&mut self, block: u32) {
        let b = self.blocks[block as usize];
        assert!(b.listed, "block {block} stands in no list");
        let victims = &mut self.planes[(block / self.per_plane) as usize].victims[b.kind as usize];
        let ends = &mut victims.ends[b.valid as usize];
        match b.prev {
            NONE => ends.0 = b.next,
            prev => self.blocks[prev as usize].next = b.next,
        }
        match b.next {
            NONE => ends.1 = b.prev,
            next => self.blocks[next as usize].prev = b.prev,
        }
        self.blocks[block as usize].listed = false;
    }

    /// The full block of a kind with the fewest valid pages.
    pub fn fewest_valid_of(&self, plane: u32, kind: Kind) -> Option<u32> {
        self.planes[plane as usize].victims[kind as usize].firsts().next()
    }

    /// The blocks that have not changed for longest, for each number of valid pages, of those that are collected one by one.
    pub fn oldest(&self, plane: u32) -> impl Iterator<Item = u32> + '_ {
        self.planes[plane as usize].victims[..SINGLE].iter().flat_map(Victims::firsts)
    }

    /// Whether a block is full and may be collected.
    pub fn is_listed(&self, block: u32) -> bool {
        self.blocks[block as usize].listed
    }

    /// Counts the erase of a block without valid pages; it is free then.
    pub fn erase(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        assert!(b.valid == 0 && !b.listed, "block {block} is erased with {} valid pages", b.valid);
        self.erased_pages += u64::from(b.written);
        b.written = 0;
        b.erases += 1;
        let free = &mut self.planes[(block / self.per_plane) as usize].free;
        free.insert((b.erases, block));
        self.short_planes -= u32::from(free.len() == RESERVE_BLOCKS as usize);
        self.free += 1;
    }

    /// Pages that were ever written, by what is written in blocks and what was when they were erased.
    pub fn written_pages(&self) -> u64 {
        self.erased_pages + self.blocks.iter().map(|b| u64::from(b.written)).sum::<u64>()
    }

    /// Erases of each block.
    pub fn erases(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().map(|b| b.erases)
    }
}
