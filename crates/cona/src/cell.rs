//! A cell: an immutable file of pages in key order, followed by index, filter and footer (docs/formats.md, section
//! 5.3).
//!
//! [`Cell`] opens one, reading only what follows the pages, and looks keys up with one page read each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tessera_disk::layout;
use tessera_disk::record::{Field, HeaderFault, HeaderFormat, numbered_name};
use tessera_disk::{Disk, DiskError, DiskFile, OpenMode};
use tessera_failpoint as failpoint;

use crate::buffer::ValueOrDelete;
use crate::error::Error;
use crate::index::{Candidates, PageIndex};
use crate::options::{KEY_BYTES_MAX, PAGE_BYTES_MAX};
use crate::page::{self, Content, Page, RUN_HEADER_BYTES, crc32c};
use crate::plan::BOTTOM;
use crate::values::{self, OWNED_BYTES, Owned, Pointer};

pub(crate) const FOOTER_BYTES: usize = 96;
const FORMAT: HeaderFormat = HeaderFormat { magic: *b"CONACELL", version: 2, crc_at: FOOTER_BYTES - 4 };
/// Cells without value files.
const FORMAT_1: HeaderFormat = HeaderFormat { version: 1, ..FORMAT };

// docs/formats.md, section 5.3: magic, version, page bytes, number, pages, index, bounds, checksum, records, deletes, user bytes, value files; zeros.
const _: () = assert!(8 + 4 + 4 + 8 + 4 * 4 + 3 * 8 + 4 <= FORMAT.crc_at && FORMAT.crc_at == 92);
const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "the lengths of the bounds have 16 bits");

layout! {
    /// The footer of a cell.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Footer {
        pub(crate) page_bytes: u32 = 12,
        pub(crate) number: u64 = 16,
        pub(crate) pages: u32 = 24,
        pub(crate) index_bytes: u32 = 28,
        pub(crate) bounds_bytes: u32 = 32,
        /// crc32c of index, bounds and list of value files.
        pub(crate) index_crc: u32 = 36,
        pub(crate) records: u64 = 40,
        pub(crate) deletes: u64 = 48,
        /// Bytes of keys and values.
        pub(crate) user_bytes: u64 = 56,
        /// Number of value files.
        pub(crate) values: u32 = 64,
    }
}

impl Footer {
    pub(crate) fn encode(&self) -> [u8; FOOTER_BYTES] {
        assert!(self.deletes <= self.records, "{} deletes among {} records", self.deletes, self.records);
        FORMAT.encode(self)
    }

    pub(crate) fn decode(bytes: &[u8; FOOTER_BYTES], file: &str, at: u64) -> Result<Self, Error> {
        let decoded = match FORMAT.decode(bytes) {
            Err(HeaderFault::Version(1)) => FORMAT_1.decode(bytes),
            decoded => decoded,
        };
        decoded.map_err(|fault| Error::of_header(fault, "footer", &FORMAT, file, at))
    }

    /// What index and value files say otherwise. Merges rely on these numbers.
    fn contradiction(&self, index: &PageIndex, values: &[Owned]) -> Option<&'static str> {
        if index.keys() != self.records || index.pages() != self.pages {
            return Some("the footer counts other records or pages than the index");
        }
        if self.deletes > self.records {
            return Some("the footer counts more deletes than records");
        }
        let apart = values.iter().fold(0, |sum: u64, owned| sum.saturating_add(owned.live_bytes));
        let pages = u64::from(self.pages) * u64::from(self.page_bytes);
        let possible = apart.saturating_add(self.records)..=apart.saturating_add(pages);
        (!possible.contains(&self.user_bytes))
            .then_some("the footer counts more or fewer bytes than pages and value files have")
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.page_bytes)
            + u64::from(self.index_bytes)
            + u64::from(self.bounds_bytes)
            + u64::from(self.values) * OWNED_BYTES as u64
            + FOOTER_BYTES as u64
    }
}

pub(crate) fn cell_name(number: u64) -> String {
    numbered_name(number, ".cell")
}

/// Counters of a store, for statistics.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lookups: AtomicU64,
    pub(crate) page_reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
    pub(crate) buffer_hits: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) cell_bytes: AtomicU64,
    pub(crate) manifest_bytes: AtomicU64,
    pub(crate) user_bytes: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) wait_us: AtomicU64,
    pub(crate) flush_us: AtomicU64,
    pub(crate) merge_us: AtomicU64,
    pub(crate) merged_records: AtomicU64,
    /// Lookups that cells of each level answered; the last entry counts [`BOTTOM`].
    pub(crate) level_hits: [AtomicU64; LEVELS],
}

/// Levels that statistics distinguish; deeper ones count as the deepest.
pub(crate) const LEVELS: usize = 32;

impl Counters {
    /// Counts a lookup that a cell of `level` answered.
    pub(crate) fn hit(&self, level: u32) {
        let at = if level == BOTTOM { LEVELS - 1 } else { (level as usize).min(LEVELS - 2) };
        self.level_hits[at].fetch_add(1, Ordering::Relaxed);
    }
}

/// An open cell.
pub(crate) struct Cell {
    pub(crate) footer: Footer,
    pub(crate) level: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) path: String,
    pub(crate) index: PageIndex,
    pub(crate) first_key: Vec<u8>,
    pub(crate) last_key: Vec<u8>,
    /// Its value files, in the order of their numbers.
    pub(crate) values: Vec<Owned>,
    /// The manifest no longer names this cell: its file is removed with the last reference.
    pub(crate) obsolete: AtomicBool,
    /// Deletes that may hide a record of an older cell; all of them if the cell was not written since the store was opened.
    pub(crate) hiding: u64,
    /// The damage or the failed read that a merge met in this cell or its value files; later merges leave it out.
    pub(crate) damage: OnceLock<Error>,
    pub(crate) context: Arc<StoreContext>,
}

impl Drop for Cell {
    fn drop(&mut self) {
        if *self.obsolete.get_mut() {
            self.context.obsolete_files.lock().push(std::mem::take(&mut self.path));
        }
    }
}

/// What all files of a store share.
pub(crate) struct StoreContext {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: String,
    /// Paths of cells that are no longer in use and can be removed.
    pub(crate) obsolete_files: Mutex<Vec<String>>,
    pub(crate) counters: Counters,
    /// Mean nanoseconds that scans waited for the first page of a cell, lately.
    pub(crate) seek_ns: AtomicU64,
    /// Files are synced. False for a volatile store.
    pub(crate) durable: bool,
}

impl StoreContext {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &str, durable: bool) -> Arc<Self> {
        let (obsolete_files, counters, seek_ns) = Default::default();
        Arc::new(StoreContext { disk, dir: dir.into(), obsolete_files, counters, seek_ns, durable })
    }

    /// A file's path in the store's directory.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.dir.is_empty() { name.into() } else { format!("{}/{name}", self.dir) }
    }

    /// The directory, for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.dir[..] {
            "" => self.disk.describe(),
            dir => format!("{}/{dir}", self.disk.describe()),
        }
    }
}

/// Reads exactly `bytes`, with one retry. The file's length is known, so a short read is damage.
pub(crate) fn read_exact(file: &dyn DiskFile, path: &str, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
    file.read_twice(offset, bytes).map_err(|e| match e {
        DiskError::ShortRead { expected, got, .. } => {
            Error::damaged(path, offset, format!("the file ends here: {got} of {expected} bytes"))
        }
        other => other.into(),
    })
}

/// Encodes the first and the last key, which follow the index in the file.
pub(crate) fn encode_bounds(first: &[u8], last: &[u8]) -> Vec<u8> {
    assert!(first <= last, "the first key of a cell is above its last");
    assert!(!first.is_empty() && last.len() <= KEY_BYTES_MAX && first.len() <= KEY_BYTES_MAX, "keys of a cell");
    let lens = [first, last].map(|key| (key.len() as u16).to_le_bytes());
    [lens.as_flattened(), first, last].concat()
}

fn decode_bounds(bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (lens, keys) = bytes.split_at_checked(4)?;
    let (first, last) = (u16::take(lens), u16::take(&lens[2..]));
    let (first, last) = keys.split_at_checked(first.into()).filter(|(_, rest)| rest.len() == usize::from(last))?;
    Some((first.to_vec(), last.to_vec()))
}

impl Cell {
    /// Opens a cell that the manifest names. Reads footer, index and bounds.
    ///
    /// # Errors
    /// [`Error::Damaged`] with file and offset, [`Error::NewerFormat`], or the disk's.
    pub(crate) fn open(context: &Arc<StoreContext>, number: u64, level: u32, file_bytes: u64) -> Result<Self, Error> {
        let path = context.path(&cell_name(number));
        let file = context.disk.open(&path, OpenMode::Existing).map_err(|e| match e {
            DiskError::NotFound { .. } => Error::damaged(&path, 0, "the manifest names this cell, but it is gone"),
            other => other.into(),
        })?;
        let len = file.len()?;
        let damaged = |at, what: String| Error::damaged(&path, at, what);
        if len != file_bytes || len < FOOTER_BYTES as u64 {
            return Err(damaged(len, format!("the cell has {len} bytes, the manifest says {file_bytes}")));
        }
        let at = len - FOOTER_BYTES as u64;
        let mut bytes = [0; FOOTER_BYTES];
        read_exact(&*file, &path, at, &mut bytes)?;
        let footer = Footer::decode(&bytes, &path, at)?;
        // The page size comes first: with this bound no sum passes 64 bits.
        let page_fits = (RUN_HEADER_BYTES as u32..=PAGE_BYTES_MAX).contains(&footer.page_bytes);
        if footer.number != number || !page_fits || footer.file_bytes() != len {
            return Err(damaged(at, "the footer is of another cell or does not fit the file's length".into()));
        }
        let index_at = u64::from(footer.pages) * u64::from(footer.page_bytes);
        let (index_bytes, bounds_bytes) = (footer.index_bytes as usize, footer.bounds_bytes as usize);
        let mut section = vec![0; index_bytes + bounds_bytes + footer.values as usize * OWNED_BYTES];
        read_exact(&*file, &path, index_at, &mut section)?;
        let (got, expected) = (crc32c(&section), footer.index_crc);
        if got != expected {
            return Err(damaged(index_at, format!("checksum of the index is {got:#010x}, expected {expected:#010x}")));
        }
        let (index, rest) = section.split_at(index_bytes);
        let (bounds, list) = rest.split_at(bounds_bytes);
        let index = PageIndex::decode(index).map_err(|what| damaged(index_at, what.into()))?;
        let bounds = decode_bounds(bounds).ok_or_else(|| damaged(index_at, "the bounds are malformed".into()))?;
        let values = values::open_list(context, list)?;
        if !values.is_sorted_by(|a, b| a.file.number < b.file.number) {
            return Err(damaged(index_at, "the value files are out of order".into()));
        }
        if let Some(what) = footer.contradiction(&index, &values) {
            return Err(damaged(at, what.into()));
        }
        Ok(Self::assemble(context, footer, level, file, path, (index, bounds, values)))
    }

    pub(crate) fn assemble(
        context: &Arc<StoreContext>,
        footer: Footer,
        level: u32,
        file: Arc<dyn DiskFile>,
        path: String,
        (index, (first_key, last_key), values): (PageIndex, (Vec<u8>, Vec<u8>), Vec<Owned>),
    ) -> Self {
        // Cursors and lookups know what they read next; the system's guess reads up to 128 KiB around it.
        file.expect_random_reads();
        Cell {
            footer,
            level,
            file,
            path,
            index,
            first_key,
            last_key,
            values,
            obsolete: AtomicBool::new(false),
            hiding: footer.deletes,
            damage: OnceLock::new(),
            context: context.clone(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.footer.number
    }

    fn value_file(&self, number: u64) -> Option<&Owned> {
        let at = self.values.binary_search_by_key(&number, |owned| owned.file.number).ok()?;
        Some(&self.values[at])
    }

    /// True if a value file belongs to this cell.
    pub(crate) fn owns(&self, value_file: u64) -> bool {
        self.value_file(value_file).is_some()
    }

    /// Bytes of all its value files, and bytes of them that it does not point to.
    pub(crate) fn value_bytes(&self) -> (u64, u64) {
        let all = self.values.iter().map(|owned| (owned.file.file_bytes, owned.dead_bytes()));
        all.fold((0, 0), |(bytes, dead), (more, more_dead)| (bytes + more, dead + more_dead))
    }

    /// Tells the disk that a value, or values one after the other, are read soon.
    pub(crate) fn will_read_values(&self, range: &Pointer) {
        if let Some(owned) = self.value_file(range.place.file) {
            owned.file.file.will_read(range.place.offset, range.len as u64);
        }
    }

    /// Reads a value that a record of this cell points to.
    pub(crate) fn read_value(&self, pointer: &Pointer, value: &mut Vec<u8>) -> Result<(), Error> {
        let Some(owned) = self.value_file(pointer.place.file) else {
            let what =
                format!("a record points to value file {:016x}, which the cell does not list", pointer.place.file);
            return Err(Error::damaged(&self.path, 0, what));
        };
        owned.file.read(pointer, value)
    }

    /// Mean bytes of a record.
    pub(crate) fn usual_bytes(&self) -> u64 {
        self.footer.user_bytes / self.footer.records.max(1)
    }

    fn page_at(&self, page: u32) -> u64 {
        u64::from(page) * u64::from(self.footer.page_bytes)
    }

    pub(crate) fn parse<'a>(&self, bytes: &'a [u8], page: u32) -> Result<Page<'a>, Error> {
        page::parse(bytes, self.footer.number, page)
            .map_err(|what| Error::damaged(&self.path, self.page_at(page), what))
    }

    pub(crate) fn malformed(&self, page: u32) -> Error {
        Error::damaged(&self.path, self.page_at(page), "a record reaches beyond its page")
    }

    /// Pages of the file of which the first may hold the first key that is not below `from`, the last one too.
    pub(crate) fn pages_from(&self, from: &[u8]) -> (u32, u32) {
        if from <= &self.first_key[..] {
            return (0, 0);
        }
        let pages = |c: Candidates| (self.index.physical(c.block, c.from), self.index.physical(c.block, c.to));
        self.index.candidates(from).map_or((0, 0), pages)
    }

    /// False if the cell certainly has no record of this key. Reads nothing.
    pub(crate) fn may_hold(&self, key: &[u8], hash: u64) -> bool {
        let within = key >= &self.first_key[..] && key <= &self.last_key[..];
        let holds = |c: Candidates| (c.from..=c.to).any(|page| self.index.may_hold(c.block, page, hash));
        within && self.index.candidates(key).is_some_and(holds)
    }

    /// Tells the disk that pages are read soon.
    pub(crate) fn will_read(&self, page: u32, pages: u32) {
        if page < self.footer.pages {
            let pages = pages.min(self.footer.pages - page);
            self.file.will_read(self.page_at(page), u64::from(pages) * u64::from(self.footer.page_bytes));
        }
    }

    pub(crate) fn read_pages(&self, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        self.context.counters.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        read_exact(&*self.file, &self.path, self.page_at(page), bytes)
    }

    /// Reads the record of a run whose first page is in `head`.
    pub(crate) fn read_run(&self, page: u32, head: &[u8], record_bytes: u32, rest_crc: u32) -> Result<Vec<u8>, Error> {
        let total = record_bytes as usize + RUN_HEADER_BYTES;
        let pages = total.div_ceil(head.len());
        if pages < 2 || page as usize + pages > self.footer.pages as usize {
            return Err(self.malformed(page));
        }
        let mut record = vec![0; record_bytes as usize];
        let here = head.len() - RUN_HEADER_BYTES;
        record[..here].copy_from_slice(&head[RUN_HEADER_BYTES..]);
        self.read_pages(page + 1, &mut record[here..])?;
        let got = crc32c(&record[here..]) ^ page::place(self.footer.number, page + 1);
        if got != rest_crc && !failpoint::is_active("cona.skip_page_check") {
            let what = format!("checksum of the value is {got:#010x}, expected {rest_crc:#010x}");
            return Err(Error::damaged(&self.path, self.page_at(page + 1), what));
        }
        Ok(record)
    }

    /// Looks a key up; `None` if the cell has no record of it. Reads each page that may hold it once, the most likely first.
    pub(crate) fn get(
        &self,
        key: &[u8],
        hash: u64,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<ValueOrDelete<Vec<u8>>>, Error> {
        if key < &self.first_key[..] || key > &self.last_key[..] {
            return Ok(None);
        }
        let Some(candidates) = self.index.candidates(key) else { return Ok(None) };
        for page in (candidates.from..=candidates.to).rev() {
            if self.index.may_hold(candidates.block, page, hash)
                && let Some(found) = self.get_in_page(self.index.physical(candidates.block, page), key, scratch)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn get_in_page(
        &self,
        page: u32,
        key: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<Option<ValueOrDelete<Vec<u8>>>, Error> {
        scratch.resize(self.footer.page_bytes as usize, 0);
        self.context.counters.page_reads.fetch_add(1, Ordering::Relaxed);
        self.read_pages(page, scratch)?;
        match self.parse(scratch, page)? {
            Page::Records(records) => {
                let (at, equal) = records.search(key).ok_or_else(|| self.malformed(page))?;
                if !equal {
                    return Ok(None);
                }
                let spot = records.spot(at).ok_or_else(|| self.malformed(page))?;
                match spot.content(scratch).ok_or_else(|| self.malformed(page))? {
                    Content::Delete => Ok(Some(None)),
                    Content::Value(value) => Ok(Some(Some(value.to_vec()))),
                    Content::Apart(pointer) => {
                        let mut value = Vec::new();
                        self.read_value(&pointer, &mut value)?;
                        Ok(Some(Some(value)))
                    }
                }
            }
            Page::Run { record_bytes, rest_crc } => {
                let spot = page::spot(scratch, RUN_HEADER_BYTES).ok_or_else(|| self.malformed(page))?;
                if spot.key(scratch) != key {
                    return Ok(None);
                }
                let mut record = self.read_run(page, scratch, record_bytes, rest_crc)?;
                let spot = page::spot(&record, 0).ok_or_else(|| self.malformed(page))?;
                if !matches!(spot.content(&record), Some(Content::Value(_))) {
                    return Err(self.malformed(page));
                }
                record.truncate(spot.end());
                record.drain(..spot.value_at);
                Ok(Some(Some(record)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// P14: an unknown version gives an error with both numbers, not damage.
    #[test]
    fn a_newer_footer_is_told_from_damage() {
        let mut bytes = Footer { number: 7, page_bytes: 4096, ..Footer::default() }.encode();
        bytes[8] = 3;
        let crc = crc32c(&bytes[..FORMAT.crc_at]);
        bytes[FORMAT.crc_at..].copy_from_slice(&crc.to_le_bytes());
        let error = Footer::decode(&bytes, "7.cell", 4096).unwrap_err();
        assert_eq!(error.to_string(), "7.cell: format version 3, but this program knows 2; use a newer release");
    }

    proptest! {
        /// P14: arbitrary bytes after the pages give an error or a cell, never a panic.
        #[test]
        fn any_footer_and_bounds_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), FOOTER_BYTES), bit in 0_usize..FOOTER_BYTES * 8) {
            let mut footer: [u8; FOOTER_BYTES] = bytes[..].try_into().unwrap();
            prop_assert!(Footer::decode(&footer, "c", 0).is_err());
            footer = Footer { number: 3, records: 9, ..Footer::default() }.encode();
            footer[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Footer::decode(&footer, "c", 0).is_err());
            if let Some((first, last)) = decode_bounds(&bytes) {
                prop_assert_eq!(first.len() + last.len() + 4, bytes.len());
            }
            prop_assert_eq!(decode_bounds(&encode_bounds(&bytes[..5], &bytes[..9])), Some((bytes[..5].to_vec(), bytes[..9].to_vec())));
        }
    }
}
