//! A NAND flash device: pages that are programmed once and in order, blocks that are erased whole, dies and channels
//! with simulated time. It knows nothing of logical addresses beyond the owner in a page's out-of-band area.

mod blocks;
mod counters;
mod geometry;
mod groups;
mod power;
mod timing;

pub(crate) use blocks::Blocks;
pub use counters::{Cause, Counters};
pub(crate) use geometry::KEPT_BLOCKS;
pub use geometry::{Geometry, PAGES_MAX, RESERVE_BLOCKS, STREAMS, Shape};
pub use groups::Grouping;
pub(crate) use groups::Groups;
pub use power::Operation;
pub(crate) use timing::Schedule;
pub use timing::{Ns, Timing, parse_duration};

pub(crate) use blocks::Kind;
use blocks::NONE;

/// Number of a physical page.
pub type Ppn = u32;

/// What a page belongs to, as its out-of-band area says: a logical page, or a translation page (top bit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(u32);

const TRANSLATION: u32 = 1 << 31;

/// Free blocks of a plane below which it is short.
const SHORT_BLOCKS: u32 = 3;

impl Owner {
    /// A logical page.
    pub fn data(lpn: u32) -> Owner {
        assert!(lpn < TRANSLATION, "logical page {lpn} has the mark of translation pages");
        Owner(lpn)
    }

    /// A page of the map.
    pub fn translation(page: u32) -> Owner {
        Owner(page | TRANSLATION)
    }

    /// The number of the translation page, if it is one.
    pub fn as_translation(self) -> Option<u32> {
        (self.0 & TRANSLATION != 0).then_some(self.0 & !TRANSLATION)
    }

    /// The logical page, if it is one.
    pub fn as_data(self) -> Option<u32> {
        (self.0 & TRANSLATION == 0).then_some(self.0)
    }
}

/// Writes that go to blocks of their own, so that pages of like lifetimes lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// What the host writes.
    Host,
    /// What garbage collection moves.
    Moved,
    /// Pages of the map.
    Translation,
    /// Pages of the map that change often, where a layer tells them apart.
    HotTranslation,
    /// Pages of the map with entries that are read together, where a layer has them.
    Correlated,
    /// Data that static wear levelling moves to worn blocks.
    Cold,
}

/// The streams with pages of the map.
const MAP_STREAMS: [Stream; 3] = [Stream::Translation, Stream::HotTranslation, Stream::Correlated];

/// Where the next page of the map goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapRoom {
    /// To this plane.
    Plane(u32),
    /// To the plane of this block, which is to be collected first.
    After(u32),
}

/// A flash device.
#[derive(Debug)]
pub struct Device {
    geometry: Geometry,
    /// Out-of-band area: what a page belongs to.
    owners: Vec<Owner>,
    /// Out-of-band area: order number of the program, low 32 and high 8 bits.
    order_low: Vec<u32>,
    order_high: Vec<u8>,
    /// A bit for each page that a map points to.
    valid: Vec<u64>,
    /// What a page holds, as a number that a shell gives each write; empty unless asked for.
    contents: Vec<u32>,
    pub(crate) blocks: Blocks,
    /// The block being written, for each plane and stream.
    open: Vec<[u32; STREAMS]>,
    /// The plane of the next write of each stream.
    turn: [u32; STREAMS],
    /// Blocks that belong to groups of logical pages, for layers that allocate by group.
    groups: Option<Groups>,
    pub(crate) schedule: Schedule,
    /// Programs so far: the order number of the last one.
    order: u64,
    /// When the operation that is under way reached its current step.
    now: Ns,
    pub(crate) counters: Counters,
    /// Pages written and blocks erased before counting began.
    uncounted: [u64; 2],
    /// What changed flash, if somebody is to see it.
    pub(crate) journal: Option<Vec<Operation>>,
}

impl Device {
    /// An erased device. With `contents` it remembers what each page holds.
    pub fn new(geometry: Geometry, timing: Timing, contents: bool) -> Self {
        let pages = geometry.pages() as usize;
        let units = geometry.shape.units();
        Device {
            geometry,
            owners: vec![Owner(0); pages],
            order_low: vec![0; pages],
            order_high: vec![0; pages],
            valid: vec![0; pages.div_ceil(64)],
            contents: if contents { vec![0; pages] } else { Vec::new() },
            blocks: Blocks::new(units, geometry.blocks, geometry.shape.pages),
            open: vec![[NONE; STREAMS]; units as usize],
            turn: [0; STREAMS],
            groups: None,
            schedule: Schedule::new(&geometry.shape, timing, geometry.block_count()),
            order: 0,
            now: 0,
            counters: Counters::default(),
            uncounted: [0; 2],
            journal: None,
        }
    }

    /// The device's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Operations so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The time that the request under way has reached.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// Sets the time at which the next operation is issued.
    pub(crate) fn set_now(&mut self, now: Ns) {
        self.now = now;
    }

    /// Waits until `end`: what follows is issued then.
    pub fn wait(&mut self, end: Ns) {
        self.now = self.now.max(end);
    }

    fn block_of(&self, ppn: Ppn) -> u32 {
        ppn / self.geometry.shape.pages
    }

    pub(crate) fn plane_of(&self, ppn: Ppn) -> u32 {
        self.blocks.plane_of(self.block_of(ppn))
    }

    /// Whether a map points to the page.
    pub fn is_valid(&self, ppn: Ppn) -> bool {
        self.valid[ppn as usize / 64] >> (ppn % 64) & 1 != 0
    }

    /// The owner in the page's out-of-band area.
    pub fn owner(&self, ppn: Ppn) -> Owner {
        self.owners[ppn as usize]
    }

    /// The order number in the page's out-of-band area: a later program has a higher one.
    pub fn order(&self, ppn: Ppn) -> u64 {
        u64::from(self.order_high[ppn as usize]) << 32 | u64::from(self.order_low[ppn as usize])
    }

    /// What the page holds; 0 where the device was made without contents.
    pub fn content(&self, ppn: Ppn) -> u32 {
        self.contents.get(ppn as usize).copied().unwrap_or(0)
    }

    /// Valid pages of the device.
    pub fn valid_pages(&self) -> u64 {
        (0..self.geometry.shape.units()).map(|plane| u64::from(self.blocks.valid(plane))).sum()
    }

    /// Reads a page; returns when it has arrived.
    pub fn read(&mut self, ppn: Ppn, cause: Cause) -> Ns {
        assert!(self.is_valid(ppn), "page {ppn} is read, but no map should point to it");
        self.counters.reads[cause as usize] += 1;
        self.schedule.read(self.plane_of(ppn), self.block_of(ppn), self.now)
    }

    /// Reads a page, whatever it holds, for its out-of-band area; the request waits for it.
    pub fn read_out_of_band(&mut self, ppn: Ppn, cause: Cause) {
        assert!(self.is_written(ppn), "page {ppn} is read, but was not written since its block was erased");
        self.counters.reads[cause as usize] += 1;
        let end = self.schedule.read(self.plane_of(ppn), self.block_of(ppn), self.now);
        self.wait(end);
    }

    fn is_written(&self, ppn: Ppn) -> bool {
        ppn % self.geometry.shape.pages < u32::from(self.blocks.get(self.block_of(ppn)).written)
    }

    /// The pages of the block that has a page.
    pub fn block_pages(&self, ppn: Ppn) -> std::ops::Range<Ppn> {
        self.pages_of(self.block_of(ppn))
    }

    /// The pages of a block.
    pub(crate) fn pages_of(&self, block: u32) -> std::ops::Range<Ppn> {
        block * self.geometry.shape.pages..(block + 1) * self.geometry.shape.pages
    }

    /// Programs a page on the stream's next plane; returns it, and when it is done. What the host writes goes to the blocks of its group,
    /// if the layer allocates by group and the group has room.
    pub fn program(&mut self, stream: Stream, owner: Owner, cause: Cause, content: u32) -> (Ppn, Ns) {
        if stream == Stream::Host
            && let Some(placed) = self.program_grouped(owner, cause, content)
        {
            return placed;
        }
        let most = self.geometry.valid_max();
        let plane = self.next_plane(stream, |device, plane| device.blocks.valid(plane) <= most);
        let plane = plane.expect("a geometry has planes that are not full of valid pages");
        self.program_in(plane, stream, owner, cause, content)
    }

    /// Planes take turns; those that do not suit are left out.
    fn next_plane(&mut self, stream: Stream, suits: impl Fn(&Self, u32) -> bool) -> Option<u32> {
        let (units, turn) = (self.geometry.shape.units(), self.turn[stream as usize]);
        let plane = (turn..units).chain(0..turn).find(|plane| suits(self, *plane))?;
        self.turn[stream as usize] = if plane + 1 == units { 0 } else { plane + 1 };
        Some(plane)
    }

    /// Where the next page of the map goes, so that [`KEPT_BLOCKS`] stay free. Planes that are full of valid pages come last.
    pub(crate) fn map_room(&mut self, stream: Stream) -> MapRoom {
        let most = self.geometry.valid_max();
        for is_full in [false, true] {
            let suits = |device: &Self, plane| (device.blocks.valid(plane) > most) == is_full;
            if let Some(plane) = self.next_plane(stream, |d, plane| suits(d, plane) && d.has_map_room(plane)) {
                return MapRoom::Plane(plane);
            }
            let planes = (0..self.geometry.shape.units()).filter(|plane| suits(self, *plane));
            let victims = planes.filter_map(|plane| self.blocks.fewest_valid_of(plane, Kind::Map));
            let fewest = victims.min_by_key(|block| self.blocks.get(*block).valid);
            if let Some(block) = fewest.filter(|block| self.has_garbage(*block)) {
                return MapRoom::After(block);
            }
        }
        // Only after a power cut is there so little: open blocks were closed.
        let most_free = (0..self.geometry.shape.units()).max_by_key(|plane| self.blocks.free(*plane));
        MapRoom::Plane(most_free.expect("a device has planes"))
    }

    /// Whether a plane has room for a page of the map without the blocks that are kept.
    fn has_map_room(&self, plane: u32) -> bool {
        self.blocks.free(plane) > KEPT_BLOCKS || MAP_STREAMS.into_iter().any(|stream| self.is_open(plane, stream))
    }

    fn is_open(&self, plane: u32, stream: Stream) -> bool {
        self.open[plane as usize][stream as usize] != NONE
    }

    /// Whether a full block has pages that do not count.
    pub(crate) fn has_garbage(&self, block: u32) -> bool {
        u32::from(self.blocks.get(block).valid) < self.geometry.shape.pages
    }

    /// The stream whose block a page is written to. When no free block can be spared, streams of the map share what is open.
    fn shared(&self, plane: u32, stream: Stream) -> Stream {
        if !MAP_STREAMS.contains(&stream) || self.is_open(plane, stream) || self.blocks.free(plane) > KEPT_BLOCKS {
            return stream;
        }
        MAP_STREAMS.into_iter().find(|other| self.is_open(plane, *other)).unwrap_or(stream)
    }

    /// Programs a page in a plane.
    pub(crate) fn program_in(
        &mut self,
        plane: u32,
        stream: Stream,
        owner: Owner,
        cause: Cause,
        content: u32,
    ) -> (Ppn, Ns) {
        let stream = self.shared(plane, stream);
        let open = &mut self.open[plane as usize][stream as usize];
        if *open == NONE {
            let kind = if MAP_STREAMS.contains(&stream) { Kind::Map } else { Kind::Data };
            *open = self.blocks.take(plane, stream == Stream::Cold, kind);
        }
        let block = *open;
        if u32::from(self.blocks.get(block).written) + 1 == self.geometry.shape.pages {
            *open = NONE;
        }
        self.program_next(block, owner, cause, content)
    }

    /// Programs the next page of a block; one that is full then may be collected.
    fn program_next(&mut self, block: u32, owner: Owner, cause: Cause, content: u32) -> (Ppn, Ns) {
        self.order += 1;
        let pages = self.geometry.shape.pages;
        let page = u32::from(self.blocks.program(block, self.order));
        assert!(page < pages, "block {block} has no page {page}");
        if page + 1 == pages {
            self.blocks.list(block);
        }
        let ppn = block * pages + page;
        self.store(ppn, owner, content);
        self.counters.programs[cause as usize] += 1;
        (ppn, self.schedule.program(self.blocks.plane_of(block), block, self.now))
    }

    fn store(&mut self, ppn: Ppn, owner: Owner, content: u32) {
        self.set_page(ppn, owner, self.order, content);
        self.valid[ppn as usize / 64] |= 1 << (ppn % 64);
        if let Some(journal) = &mut self.journal {
            journal.push(Operation::Program { ppn, owner, order: self.order, content });
        }
    }

    /// Sets what the cells of a page hold.
    fn set_page(&mut self, ppn: Ppn, owner: Owner, order: u64, content: u32) {
        let at = ppn as usize;
        self.owners[at] = owner;
        self.order_low[at] = order as u32;
        self.order_high[at] = u8::try_from(order >> 32).expect("order numbers have 40 bits");
        if let Some(slot) = self.contents.get_mut(at) {
            *slot = content;
        }
    }

    /// Notes that no map points to the page any more.
    pub fn invalidate(&mut self, ppn: Ppn) {
        assert!(self.is_valid(ppn), "page {ppn} is invalidated twice");
        self.valid[ppn as usize / 64] &= !(1 << (ppn % 64));
        let block = self.block_of(ppn);
        self.blocks.invalidate(block, self.order);
        if let Some(groups) = &mut self.groups {
            groups.invalidate(block);
        }
    }

    /// Whether a plane has so few free blocks that nothing should be written that can be done without.
    pub(crate) fn is_short(&self) -> bool {
        self.blocks.short_planes() > 0 && (0..self.geometry.shape.units()).any(|p| self.blocks.free(p) < SHORT_BLOCKS)
    }

    /// Erases a block without valid pages; returns when it is done.
    pub(crate) fn erase(&mut self, block: u32, cause: Cause) -> Ns {
        self.counters.erases[cause as usize] += 1;
        self.counters.map_erases += u64::from(self.blocks.kind(block) == Kind::Map);
        if let Some(journal) = &mut self.journal {
            journal.push(Operation::Erase { block });
        }
        self.blocks.erase(block);
        if let Some(groups) = &mut self.groups {
            groups.erase(block);
        }
        self.schedule.erase(self.blocks.plane_of(block), block, self.now)
    }

    /// The order number of the last program.
    pub(crate) fn last_order(&self) -> u64 {
        self.order
    }

    /// Begins to count and to measure time anew.
    pub(crate) fn reset(&mut self) {
        self.counters = Counters::default();
        self.uncounted = self.in_blocks();
        self.schedule.reset();
        self.now = 0;
    }

    /// Pages written and blocks erased, as the blocks tell.
    fn in_blocks(&self) -> [u64; 2] {
        [self.blocks.written_pages(), self.blocks.erases().map(u64::from).sum()]
    }

    /// Pages written and blocks erased since counting began, as the blocks tell.
    pub(crate) fn found_in_blocks(&self) -> [u64; 2] {
        let (now, before) = (self.in_blocks(), self.uncounted);
        [now[0] - before[0], now[1] - before[1]]
    }
}
