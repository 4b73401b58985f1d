//! LeaFTL (J. Sun, S. Li, Y. Sun, C. Sun, D. Vucinic, J. Huang: "LeaFTL: a learning-based flash translation layer for solid-state
//! drives", ASPLOS 2023).
//!
//! - *Learned segments* of 8 bytes say where many pages are. An accurate one has every so many-th page of a range; an
//!   approximate one is a line that is wrong by no more than the error bound ([`learn`]).
//! - *Groups* of 256 logical pages have segments in *levels*: a new one goes to the top, and what it overlaps sinks. *Compaction*
//!   removes what newer segments hide, when a group has doubled, and when it is written and has gained an eighth.
//! - The *conflict resolution buffer* names the pages of approximate segments ([`group`]).
//! - *Out-of-band verification*: the out-of-band area of a page names the logical pages of its neighbours, as many on each side as
//!   the error bound, so that a place that was predicted wrongly costs one more read. They are known once the neighbours are: the model
//!   takes it that the controller holds that many pages back before it programs them.
//! - *Learning in order*: new entries wait until there is a block's worth, and those of one group are learned together, in the order of
//!   logical pages. Garbage collection writes the pages of a block in that order.
//! - Groups are cached in LRU order; small groups share a translation page ([`layout`]).
//!
//! A TRIM is a segment of one page that is nowhere. The paper gives the slope as a half-precision float; here it is a fixed-point number, or the
//! stride of an accurate segment, which is its reciprocal.

mod group;
mod layout;
mod learn;
mod segment;

use super::{CacheUse, Directory, Ftl, Links, List, Move, NONE, some};
use crate::config::{Config, ConfigError};
use crate::device::{Cause, Device, Owner, Ppn, Shape};
use group::{Group, Place};
use layout::Layout;
use learn::Point;
use segment::{GROUP_MAX, Segment};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of an entry that is not learned yet: logical and physical page.
const PENDING_BYTES: u64 = 8;
/// One part in so many of the cache is the most that such entries take.
const PENDING_SHARE: u64 = 4;
/// Out-of-band bytes for the logical page of a neighbour.
const NEIGHBOUR_BYTES: u32 = 4;
/// Translation pages that are written to make room for a group; if there is still none, it is used without being cached.
const WRITES_MAX: u32 = 4;

/// The least map cache that works.
pub const MIN_CACHE: u64 = 256;

/// Pages of a group: as many as fit into a translation page whatever was learned.
fn group_pages(shape: &Shape) -> u32 {
    GROUP_MAX.min(shape.page_bytes / 16)
}

/// Translation pages that a number of logical pages may need.
pub fn map_pages(shape: &Shape, logical_pages: u64) -> u32 {
    logical_pages.div_ceil(u64::from(group_pages(shape))) as u32
}

/// Checks the error bound: the neighbours have to fit into the out-of-band area.
///
/// # Errors
/// They do not.
pub fn check_error_bound(config: &Config) -> Result<(), ConfigError> {
    let most = config.shape.oob_bytes / NEIGHBOUR_BYTES / 2;
    match config.error_bound <= most {
        true => Ok(()),
        false => Err(ConfigError::ErrorBound { bound: config.error_bound, oob_bytes: config.shape.oob_bytes, most }),
    }
}

#[derive(Debug, Default)]
struct Cached {
    group: Group,
    is_cached: bool,
    is_dirty: bool,
}

/// LeaFTL's state.
#[derive(Debug)]
pub struct LeaFtl {
    directory: Directory,
    layout: Layout,
    groups: Vec<Cached>,
    links: Links,
    recent: List,
    /// Entries that are not learned yet.
    pending: BTreeMap<u32, u32>,
    /// The most of them.
    pending_max: usize,
    /// Where learning goes on.
    cursor: u32,
    group_pages: u32,
    error: u32,
    /// The most bytes of a group.
    limit: u64,
    /// Bytes of the cached groups.
    bytes: u64,
    budget: u64,
    /// Places that were predicted wrongly, of those that were looked up.
    mispredicted: u64,
    /// Out-of-band areas read because a page that is replaced lies only near where it is said to.
    verified: u64,
    cache: CacheUse,
}

impl LeaFtl {
    /// The empty map of a device.
    pub fn new(device: &Device, config: &Config) -> Self {
        let Shape { pages, page_bytes, .. } = config.shape;
        let group_pages = group_pages(&config.shape);
        let count = map_pages(&config.shape, u64::from(device.geometry().logical_pages));
        LeaFtl {
            directory: Directory::of_pages(count),
            layout: Layout::new(count, u64::from(page_bytes)),
            groups: (0..count).map(|_| Cached::default()).collect(),
            links: Links::default(),
            recent: List::default(),
            pending: BTreeMap::new(),
            pending_max: (config.map_cache / PENDING_SHARE / PENDING_BYTES).clamp(1, u64::from(pages)) as usize,
            cursor: 0,
            group_pages,
            error: config.error_bound,
            limit: u64::from(page_bytes),
            bytes: 0,
            budget: config.map_cache,
            mispredicted: 0,
            verified: 0,
            cache: CacheUse::default(),
        }
    }

    fn group_of(&self, lpn: u32) -> u32 {
        lpn / self.group_pages
    }

    /// The group of a logical page, and its number in it.
    fn split(&self, lpn: u32) -> (u32, u8) {
        (self.group_of(lpn), (lpn % self.group_pages) as u8)
    }

    fn bytes(&self) -> u64 {
        self.bytes + self.pending.len() as u64 * PENDING_BYTES
    }

    fn entry(&mut self, group: u32) -> &mut Cached {
        &mut self.groups[group as usize]
    }

    /// What the map says of a page. Counts whether that was in memory.
    fn find(&mut self, device: &mut Device, lpn: u32) -> Option<Place> {
        if let Some(ppn) = self.pending.get(&lpn).copied() {
            self.cache.count(true);
            return Some(Place::Exact(ppn));
        }
        let (number, i) = self.split(lpn);
        let is_cached = self.entry(number).is_cached;
        self.cache.count(is_cached);
        self.bring(device, number);
        self.entry(number).group.find(i)
    }

    /// Where a page is whose place is only nearly known. The out-of-band area there names its neighbours; of two that claim to be
    /// the page, the one that is `not` counted or not valid is an old one.
    fn nearby(&self, device: &Device, lpn: u32, ppn: u32, not: Option<Ppn>) -> Ppn {
        let block = device.block_pages(ppn);
        let is_it = |at: &Ppn| Some(*at) != not && device.is_valid(*at) && device.owner(*at) == Owner::data(lpn);
        let around = (0..=self.error).flat_map(|d| [ppn.checked_sub(d), ppn.checked_add(d)]).flatten();
        let found = around.filter(|at| block.contains(at)).find(is_it);
        found.unwrap_or_else(|| panic!("logical page {lpn} is not within {} pages of {ppn}", self.error))
    }

    /// Makes a group the last used one of the cache; if there is no room, it has only been read.
    fn bring(&mut self, device: &mut Device, number: u32) {
        if self.entry(number).is_cached {
            return self.links.touch(&mut self.recent, number);
        }
        let bytes = self.entry(number).group.bytes();
        let has_room = self.make_room(device, bytes, Cause::Map);
        self.directory.load(device, self.layout.page_of(number), Cause::Map);
        if has_room {
            self.bytes += bytes;
            self.links.push(&mut self.recent, number);
            self.entry(number).is_cached = true;
            self.cache.set_bytes(self.bytes(), self.budget);
        }
    }

    /// Frees so many bytes; `false`: that would take too many writes.
    fn make_room(&mut self, device: &mut Device, bytes: u64, cause: Cause) -> bool {
        let mut writes = 0;
        while self.bytes() + bytes > self.budget {
            let last = self.recent.last;
            if last == NONE || self.entry(last).is_dirty && writes == WRITES_MAX {
                return false;
            }
            writes += u32::from(self.entry(last).is_dirty);
            self.drop_last(device, cause);
        }
        true
    }

    /// Removes the group that was not used for longest.
    fn drop_last(&mut self, device: &mut Device, cause: Cause) {
        let last = self.recent.last;
        if self.entry(last).is_dirty {
            self.write(device, last, cause);
        }
        self.links.remove(&mut self.recent, last);
        self.bytes -= self.groups[last as usize].group.bytes();
        self.entry(last).is_cached = false;
    }

    fn shrink(&mut self, device: &mut Device, cause: Cause) {
        while self.bytes() > self.budget {
            self.drop_last(device, cause);
        }
        self.cache.set_bytes(self.bytes(), self.budget);
    }

    /// Writes the translation page of a group, with all groups in it that have changed; it is read first if some are not in memory.
    fn write(&mut self, device: &mut Device, number: u32, cause: Cause) {
        let page = self.layout.page_of(number);
        let absent = |entry: &Cached| !entry.is_cached && !entry.group.is_empty();
        if self.of_page(page).iter().any(absent) {
            self.directory.load(device, page, cause);
        }
        self.store(device, page, cause);
    }

    fn of_page(&mut self, page: u32) -> &mut [Cached] {
        let Range { start, end } = self.layout.groups(page);
        &mut self.groups[start as usize..end as usize]
    }

    fn store(&mut self, device: &mut Device, page: u32, cause: Cause) {
        let mut saved = 0;
        for entry in self.of_page(page).iter_mut().filter(|entry| entry.is_dirty) {
            let before = entry.group.bytes();
            entry.group.tidy();
            entry.is_dirty = false;
            saved += if entry.is_cached { before - entry.group.bytes() } else { 0 };
        }
        self.bytes -= saved;
        let groups = &self.groups;
        let size = |number: u32| &groups[number as usize].group;
        let added = self.layout.divide(page, |number| if size(number).is_empty() { 0 } else { size(number).bytes() });
        for page in added.chain([page]) {
            self.directory.store(device, page, cause);
        }
    }

    /// Learns where pages of a group are now; the points are sorted. The group is in memory or has just been read.
    fn absorb(&mut self, device: &Device, number: u32, points: &[Point]) {
        let (error, limit) = (self.error, self.limit);
        let entry = self.entry(number);
        let before = entry.group.bytes();
        for (i, _) in points.iter().filter(|point| point.1 == NONE) {
            entry.group.insert(Segment::single(*i, NONE), &[*i].into_iter().collect(), limit);
        }
        let mut by_block: BTreeMap<u32, Vec<Point>> = BTreeMap::new();
        for point in points.iter().filter(|point| point.1 != NONE) {
            by_block.entry(device.block_pages(point.1).start).or_default().push(*point);
        }
        for (start, points) in by_block {
            let last = points.iter().map(|point| point.1).max().expect("a block with points");
            for (segment, members) in learn::learn(&points, error, start..=last) {
                entry.group.insert(segment, &members, limit);
            }
        }
        entry.is_dirty = true;
        if entry.is_cached {
            self.bytes = self.bytes + self.groups[number as usize].group.bytes() - before;
        }
    }

    /// Learns the entries of the next group that wait.
    fn learn_next(&mut self, device: &mut Device) {
        let next = self.pending.range(self.cursor..).chain(&self.pending).next();
        let number = self.group_of(*next.expect("entries wait").0);
        let (start, end) = (number * self.group_pages, (number + 1) * self.group_pages);
        self.bring(device, number);
        let points: Vec<Point> = self.pending.range(start..end).map(|(lpn, ppn)| ((lpn - start) as u8, *ppn)).collect();
        for (i, _) in &points {
            self.pending.remove(&(start + u32::from(*i)));
        }
        self.cursor = end;
        self.absorb(device, number, &points);
        if !self.entry(number).is_cached {
            self.store(device, self.layout.page_of(number), Cause::Map);
        }
    }

    /// Follows moved pages of one group; returns whether its translation page has to be written.
    fn follow(&mut self, device: &mut Device, number: u32, moves: &[Move], is_read: bool) -> bool {
        let mut points = Vec::new();
        for m in moves {
            match self.pending.get_mut(&m.lpn) {
                Some(ppn) => assert_eq!(std::mem::replace(ppn, m.to), m.from, "logical page {} was not there", m.lpn),
                None => points.push(((m.lpn % self.group_pages) as u8, m.to)),
            }
            if points.last().is_some_and(|point| point.1 == m.to) {
                let place = self.groups[number as usize].group.find((m.lpn % self.group_pages) as u8);
                let is_there = match place {
                    Some(Place::Exact(ppn)) => ppn == m.from,
                    Some(Place::Near(ppn)) => ppn.abs_diff(m.from) <= self.error,
                    None => false,
                };
                assert!(is_there, "logical page {} was not there: {place:?}", m.lpn);
            }
        }
        if points.is_empty() {
            return false;
        }
        let is_cached = self.entry(number).is_cached;
        if !is_cached && !is_read {
            self.directory.load(device, self.layout.page_of(number), Cause::MapGc);
        }
        self.absorb(device, number, &points);
        self.shrink(device, Cause::MapGc);
        !is_cached
    }
}

impl Ftl for LeaFtl {
    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn> {
        match self.find(device, lpn)? {
            Place::Exact(ppn) => some(ppn),
            Place::Near(predicted) => {
                let ppn = self.nearby(device, lpn, predicted, None);
                if ppn != predicted {
                    self.mispredicted += 1;
                    device.read_out_of_band(predicted, Cause::Map);
                }
                Some(ppn)
            }
        }
    }

    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        let before = match self.find(device, lpn) {
            None => None,
            Some(Place::Exact(ppn)) => some(ppn),
            Some(Place::Near(predicted)) => {
                if self.error > 0 {
                    self.verified += 1;
                    device.read_out_of_band(predicted, Cause::Map);
                }
                Some(self.nearby(device, lpn, predicted, to))
            }
        };
        self.pending.insert(lpn, to.unwrap_or(NONE));
        if self.pending.len() >= self.pending_max {
            self.learn_next(device);
        }
        self.shrink(device, Cause::Map);
        before
    }

    fn moved(&mut self, device: &mut Device, moves: &[Move]) {
        let group_pages = self.group_pages;
        // A group whose translation page was read and has to be written.
        let mut open: Option<u32> = None;
        for moves in moves.chunk_by(|a, b| a.lpn / group_pages == b.lpn / group_pages) {
            let number = self.group_of(moves[0].lpn);
            let mut is_read = false;
            if let Some(other) = open {
                is_read = self.layout.page_of(other) == self.layout.page_of(number);
                if !is_read {
                    self.store(device, self.layout.page_of(other), Cause::MapGc);
                    open = None;
                }
            }
            if self.follow(device, number, moves, is_read) {
                open = Some(number);
            }
        }
        if let Some(number) = open {
            self.store(device, self.layout.page_of(number), Cause::MapGc);
        }
    }

    fn moves_in_order(&self) -> bool {
        true
    }

    fn peek(&self, device: &Device, lpn: u32) -> Option<Ppn> {
        if let Some(ppn) = self.pending.get(&lpn) {
            return some(*ppn);
        }
        let (number, i) = self.split(lpn);
        match self.groups[number as usize].group.find(i)? {
            Place::Exact(ppn) => some(ppn),
            Place::Near(predicted) => Some(self.nearby(device, lpn, predicted, None)),
        }
    }

    directory_and_cache!();

    fn restore(&mut self, device: &Device, map: &[u32]) {
        for (number, places) in (0..).zip(map.chunks(self.group_pages as usize)) {
            let points = places.iter().enumerate().filter(|(_, ppn)| **ppn != NONE);
            let points: Vec<Point> = points.map(|(i, ppn)| (i as u8, *ppn)).collect();
            if !points.is_empty() {
                self.absorb(device, number, &points);
            }
        }
    }

    fn checkpoint(&mut self, device: &mut Device, page: u32) {
        // Pages that dividing adds are written with the page that was divided.
        if page < self.layout.pages() && self.of_page(page).iter().any(|entry| entry.is_dirty) {
            self.store(device, page, Cause::Recovery);
        }
    }

    fn reset(&mut self) {
        self.cache.reset();
        (self.mispredicted, self.verified) = (0, 0);
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let groups = || self.groups.iter().map(|entry| &entry.group).filter(|group| !group.is_empty());
        let segments = || groups().flat_map(|group| group.segments());
        vec![
            ("groups", groups().count() as u64),
            ("segments", segments().count() as u64),
            ("approximate_segments", segments().filter(|segment| segment.is_approximate()).count() as u64),
            ("levels_max", groups().map(Group::levels).max().unwrap_or(0) as u64),
            ("map_bytes", groups().map(Group::bytes).sum()),
            ("mispredictions", self.mispredicted),
            ("verifications", self.verified),
        ]
    }

    fn check(&self, _: &Device) -> Result<(), String> {
        let cached = self.groups.iter().filter(|entry| entry.is_cached);
        let (count, bytes) = cached.fold((0, 0), |(n, bytes), entry| (n + 1, bytes + entry.group.bytes()));
        if (bytes, count) != (self.bytes, self.links.slots(&self.recent).count()) {
            return Err(format!("{} bytes of groups are in use, counted anew {bytes}", self.bytes));
        }
        if self.groups.iter().any(|entry| entry.is_dirty && !entry.is_cached) {
            return Err("a group that is not in memory has changes that are not written".into());
        }
        self.groups.iter().try_for_each(|entry| entry.group.check())
    }
}
