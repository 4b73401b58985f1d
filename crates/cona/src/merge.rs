//! Cursors over cells and buffers, and a merger of several cursors: the newest record of each key wins.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::buffer::BufferCursor;
use crate::cell::Cell;
use crate::error::Error;
use crate::index::{common_prefix, head};
use crate::page::{self, Content, PAGE_HEADER_BYTES, Page, RUN_HEADER_BYTES, Spot};
use crate::values::Pointer;

/// Walks a cell's records in order, reading ahead.
pub(crate) struct CellCursor {
    cell: Arc<Cell>,
    /// Pages read ahead, from page `chunk_page` on.
    chunk: Vec<u8>,
    chunk_page: u32,
    /// Pages to read next time and the time after, and the maximum.
    ahead: u32,
    ahead_next: u32,
    ahead_max: u32,
    page: u32,
    /// Offset of the current page in `chunk`.
    page_from: usize,
    /// Records of the page after the current one, and the offset of the next.
    left: usize,
    next_at: usize,
    run: Option<Vec<u8>>,
    spot: Option<Spot>,
}

/// How many pages a cursor reads at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// At first.
    pub(crate) first: u32,
    /// The second time; doubles each time.
    pub(crate) then: u32,
    /// At most.
    pub(crate) max: u32,
}

impl Ahead {
    /// The same number each time.
    pub(crate) fn steady(pages: u32) -> Self {
        Ahead { first: pages, then: pages, max: pages }
    }
}

/// Pages a chunk must have for the next one to be asked for while this one is read: a scan that reads so many goes on.
const PREFETCH_PAGES: u32 = 8;
/// Most bytes of values that are asked for at once.
const VALUES_AHEAD_BYTES: usize = 1 << 20;

impl CellCursor {
    /// Positions the cursor at the first record whose key is not below `from`.
    pub(crate) fn seek(cell: Arc<Cell>, from: &[u8], ahead: Ahead) -> Result<Self, Error> {
        let first_page = cell.pages_from(from).0;
        Self::seek_at(cell, first_page, from, ahead)
    }

    /// As [`CellCursor::seek`], with the page given at which such records begin or before which none is.
    pub(crate) fn seek_at(cell: Arc<Cell>, page: u32, from: &[u8], ahead: Ahead) -> Result<Self, Error> {
        let mut cursor = CellCursor {
            cell,
            chunk: Vec::new(),
            chunk_page: 0,
            ahead: ahead.first,
            ahead_next: ahead.then,
            ahead_max: ahead.max,
            page,
            page_from: 0,
            left: 0,
            next_at: 0,
            run: None,
            spot: None,
        };
        if from > &cursor.cell.last_key[..] {
            return Ok(cursor);
        }
        cursor.load_page(from)?;
        while cursor.current().is_some_and(|(key, _)| key < from) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    /// File page of the current record.
    pub(crate) fn page(&self) -> u32 {
        self.page
    }

    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.page) * u64::from(self.cell.footer.page_bytes)
    }

    fn page_bytes(&self) -> usize {
        self.cell.footer.page_bytes as usize
    }

    pub(crate) fn current(&self) -> Option<(&[u8], Content<'_>)> {
        let spot = self.spot?;
        let bytes = match &self.run {
            Some(run) => &run[..],
            None => &self.chunk[self.page_from..self.page_from + self.page_bytes()],
        };
        Some((spot.key(bytes), spot.content(bytes)?))
    }

    /// Tells the disk that the wanted values of the `count` records from the current one on are read soon, of this page's
    /// if fewer are left. Takes their bytes from `bytes_left` and stops where it does not suffice.
    fn will_read_values(&self, count: usize, bytes_left: &mut usize, wanted: &impl Fn(&[u8], &Pointer) -> bool) {
        let (end, mut at) = (self.page_from + self.page_bytes(), self.next_at);
        let Some(bytes) = self.chunk.get(self.page_from..end).filter(|_| self.run.is_none()) else { return };
        // Neighbours in the file are one range: values lie in the order of their keys.
        let mut range: Option<Pointer> = None;
        let mut next = self.spot;
        for left in (0..count.min(self.left + 1)).rev() {
            let Some(spot) = next else { break };
            if let Some(Content::Apart(pointer)) = spot.content(bytes)
                && wanted(spot.key(bytes), &pointer)
            {
                let Some(rest) = bytes_left.checked_sub(pointer.len) else { break };
                *bytes_left = rest;
                match &mut range {
                    Some(range) if range.is_before(&pointer) => range.len += pointer.len,
                    _ => range.replace(pointer).iter().for_each(|range| self.cell.will_read_values(range)),
                }
            }
            next = if left > 0 { page::spot(bytes, at) } else { None };
            at = next.map_or(at, |spot| spot.end());
        }
        range.iter().for_each(|range| self.cell.will_read_values(range));
    }

    pub(crate) fn advance(&mut self) -> Result<(), Error> {
        if self.left > 0 {
            let end = self.page_from + self.page_bytes();
            let bytes = &self.chunk[self.page_from..end];
            let spot = page::spot(bytes, self.next_at).filter(|s| s.end() <= bytes.len());
            let spot = spot.ok_or_else(|| self.cell.malformed(self.page))?;
            self.left -= 1;
            self.next_at = spot.end();
            self.spot = Some(spot);
            return Ok(());
        }
        let run_bytes = self.run.take().map_or(0, |run| run.len() + RUN_HEADER_BYTES);
        self.page += run_bytes.div_ceil(self.page_bytes()).max(1) as u32;
        self.load_page(&[])
    }

    /// Reads the chunk that begins with page `self.page`.
    fn read_chunk(&mut self) -> Result<(), Error> {
        let pages = self.ahead.min(self.cell.footer.pages - self.page);
        self.chunk.resize(pages as usize * self.page_bytes(), 0);
        self.chunk_page = self.page;
        if let Err(e) = self.cell.read_pages(self.page, &mut self.chunk) {
            self.chunk.clear();
            return Err(e);
        }
        self.ahead = self.ahead_next;
        self.ahead_next = (self.ahead * 2).min(self.ahead_max);
        if pages >= PREFETCH_PAGES {
            self.cell.will_read(self.page + pages, self.ahead);
        }
        Ok(())
    }

    /// Makes the first record of page `self.page` current whose key is not below `from`, or the page's last one.
    fn load_page(&mut self, from: &[u8]) -> Result<(), Error> {
        self.spot = None;
        if self.page >= self.cell.footer.pages {
            return Ok(());
        }
        let size = self.page_bytes();
        let pages = (self.chunk.len() / size) as u32;
        if self.page < self.chunk_page || self.page >= self.chunk_page + pages {
            self.read_chunk()?;
        }
        self.page_from = (self.page - self.chunk_page) as usize * size;
        let bytes = &self.chunk[self.page_from..self.page_from + size];
        match self.cell.parse(bytes, self.page)? {
            Page::Records(records) => {
                if records.len() == 0 {
                    return Err(self.cell.malformed(self.page));
                }
                (self.left, self.next_at) = (records.len(), PAGE_HEADER_BYTES);
                if !from.is_empty() {
                    let first = records.search(from).map(|(at, _)| at.min(records.len() - 1));
                    let spot = first.and_then(|at| Some((at, records.spot(at)?)));
                    let (at, spot) = spot.ok_or_else(|| self.cell.malformed(self.page))?;
                    (self.left, self.next_at) = (records.len() - at - 1, spot.end());
                    self.spot = Some(spot);
                    return Ok(());
                }
                self.advance()
            }
            Page::Run { record_bytes, rest_crc } => {
                let record = self.cell.read_run(self.page, bytes, record_bytes, rest_crc)?;
                let spot = page::spot(&record, 0).filter(|s| s.end() == record.len());
                self.spot = Some(spot.ok_or_else(|| self.cell.malformed(self.page))?);
                self.left = 0;
                self.run = Some(record);
                Ok(())
            }
        }
    }
}

/// One of several sorted sources.
pub(crate) enum Cursor {
    Cell(Box<CellCursor>),
    Buffer(BufferCursor),
}

impl Cursor {
    pub(crate) fn current(&self) -> Option<(&[u8], Content<'_>)> {
        match self {
            Cursor::Cell(cursor) => cursor.current(),
            Cursor::Buffer(cursor) => cursor.current(),
        }
    }

    fn advance(&mut self) -> Result<(), Error> {
        match self {
            Cursor::Cell(cursor) => cursor.advance(),
            Cursor::Buffer(cursor) => {
                cursor.advance();
                Ok(())
            }
        }
    }
}

/// Merges several sources, newest first. For equal keys, the record of the first source wins.
pub(crate) struct Merger {
    sources: Vec<Cursor>,
    /// The eight bytes after `skip` of each source's key, compared first. `None` at the end of a source.
    heads: Vec<Option<u64>>,
    /// Length of the prefix that all keys of all sources share.
    skip: usize,
    /// Sources whose current key is the smallest; the first of them wins.
    winners: Vec<usize>,
    /// The smallest head of the other sources.
    second: Option<u64>,
}

impl Merger {
    pub(crate) fn new(sources: Vec<Cursor>) -> Self {
        Self::with_prefix(sources, 0)
    }

    /// A merger of sources whose keys share their first `skip` bytes.
    fn with_prefix(sources: Vec<Cursor>, skip: usize) -> Self {
        let mut merger = Merger { heads: vec![None; sources.len()], sources, skip, winners: Vec::new(), second: None };
        (0..merger.sources.len()).for_each(|i| merger.note(i));
        merger.choose();
        merger
    }

    /// Merges whole cells, newest first.
    pub(crate) fn of_cells(cells: &[Arc<Cell>], ahead: u32) -> Result<Self, Error> {
        let ahead = Ahead::steady(ahead);
        let cursor = |cell: &Arc<Cell>| Ok(Cursor::Cell(Box::new(CellCursor::seek(cell.clone(), &[], ahead)?)));
        let sources = cells.iter().map(cursor).collect::<Result<_, Error>>()?;
        let one = cells.first().map_or(&[][..], |c| &c.first_key);
        let bounds = cells.iter().flat_map(|c| [&c.first_key, &c.last_key]);
        Ok(Self::with_prefix(sources, bounds.map(|key| common_prefix(one, key)).min().unwrap_or(0)))
    }

    fn note(&mut self, source: usize) {
        self.heads[source] = self.sources[source].current().map(|(key, _)| head(key, self.skip));
    }

    fn choose(&mut self) {
        self.winners.clear();
        self.second = None;
        let mut best: Option<(u64, usize)> = None;
        for (i, head) in self.heads.iter().enumerate() {
            let Some(head) = *head else { continue };
            let order = match best {
                None => Ordering::Less,
                Some((least, _)) if head != least => head.cmp(&least),
                Some((_, at)) => self.key(i).cmp(self.key(at)),
            };
            match order {
                Ordering::Less => {
                    self.second = best.map(|(least, _)| least).or(self.second);
                    best = Some((head, i));
                    self.winners.clear();
                    self.winners.push(i);
                }
                Ordering::Equal => self.winners.push(i),
                Ordering::Greater => self.second = Some(self.second.map_or(head, |second| second.min(head))),
            }
        }
    }

    /// True if the only winner remains the winner after it moved, which its head alone shows.
    fn wins_again(&self) -> bool {
        let [winner] = self.winners[..] else { return false };
        self.heads[winner].is_some_and(|head| self.second.is_none_or(|second| head < second))
    }

    fn key(&self, source: usize) -> &[u8] {
        self.sources[source].current().map_or(&[], |(key, _)| key)
    }

    /// Tells the disk that the wanted values of the `count` records from the current one on are read soon: of each cell as
    /// many as it is likely to have among them, at least the current one of the cell that has it, together at most
    /// [`VALUES_AHEAD_BYTES`]. A larger value gains nothing: its read alone keeps the disk busy.
    pub(crate) fn will_read_values(&self, count: usize, wanted: impl Fn(&[u8], &Pointer) -> bool) {
        let of = |source: &Cursor| if let Cursor::Cell(cursor) = source { cursor.cell.footer.records } else { 0 };
        let records: u64 = self.sources.iter().map(of).sum();
        let mut bytes_left = VALUES_AHEAD_BYTES;
        for (at, source) in self.sources.iter().enumerate() {
            let Cursor::Cell(cursor) = source else { continue };
            let share = (count as u64 * cursor.cell.footer.records / records.max(1)) as usize;
            let share = share.max(usize::from(self.winners.first() == Some(&at)));
            cursor.will_read_values(share, &mut bytes_left, &wanted);
        }
    }

    /// Reads a value that the current record points to.
    ///
    /// # Errors
    /// [`Error::Damaged`] or the disk's.
    pub(crate) fn read(&self, pointer: &Pointer, value: &mut Vec<u8>) -> Result<(), Error> {
        let sources = self.winners.iter().map(|&winner| &self.sources[winner]);
        let cells =
            sources.filter_map(|source| if let Cursor::Cell(cursor) = source { Some(&cursor.cell) } else { None });
        let (mut owners, mut first) = (cells.clone().filter(|cell| cell.owns(pointer.place.file)), cells);
        let cell = owners.next().or_else(|| first.next());
        cell.ok_or_else(|| Error::damaged("insert buffer", 0, "a record points to a value file"))?
            .read_value(pointer, value)
    }

    /// The smallest key and its newest version. With the failpoint `keep_older`, its oldest
    /// version.
    pub(crate) fn current(&self, keep_older: bool) -> Option<(&[u8], Content<'_>)> {
        let winner = if keep_older { self.winners.last() } else { self.winners.first() };
        self.sources[*winner?].current()
    }

    /// File and offset of the page that the current record is from, for messages.
    pub(crate) fn origin(&self) -> (String, u64) {
        match self.winners.first().map(|&winner| &self.sources[winner]) {
            Some(Cursor::Cell(cursor)) => (cursor.cell.path.clone(), cursor.offset()),
            _ => ("insert buffer".into(), 0),
        }
    }

    /// Moves all sources past the current key. Returns how many held it.
    pub(crate) fn advance(&mut self) -> Result<u64, Error> {
        assert!(!self.winners.is_empty(), "a merge goes on behind its end");
        assert!(self.winners.is_sorted(), "of equal keys the newest source comes first");
        for at in 0..self.winners.len() {
            let source = self.winners[at];
            self.sources[source].advance()?;
            self.note(source);
        }
        let moved = self.winners.len() as u64;
        if !self.wins_again() {
            self.choose();
        }
        Ok(moved)
    }
}
