//! Writes a cell in one pass: pages in large writes, then the index built along the way, then the footer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tessera_disk::{DiskFile, OpenMode};
use tessera_failpoint as failpoint;

use crate::cell::{Cell, Footer, StoreContext, cell_name, encode_bounds};
use crate::error::Error;
use crate::index::{IndexBuilder, hash_key};
use crate::page::{self, Content, PAGE_HEADER_BYTES, RUN_HEADER_BYTES, crc32c};
use crate::values::{self, Owned, ValueFile, ValueWriter, values_name};

/// Bytes per write.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes between early writebacks to the medium, which leave little for the final sync.
const SYNC_BYTES: u64 = 32 << 20;

/// How a cell is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellShape {
    pub(crate) page_bytes: u32,
    pub(crate) filter_bits: u32,
    /// Values of at least this many bytes go to a value file.
    pub(crate) apart_bytes: u64,
}

/// A cell that is being written. Dropped unfinished, it leaves a file; [`CellWriter::abandon`] or the next opening
/// removes it.
pub(crate) struct CellWriter {
    context: Arc<StoreContext>,
    level: u32,
    path: String,
    file: Arc<dyn DiskFile>,
    out: Vec<u8>,
    /// File offset of `out`.
    out_at: u64,
    synced_at: u64,
    /// Offset of the open page in `out`.
    page_from: usize,
    slots: Vec<u16>,
    hashes: Vec<u64>,
    page_first: Vec<u8>,
    last_key: Vec<u8>,
    last_before: Vec<u8>,
    first_key: Vec<u8>,
    index: IndexBuilder,
    footer: Footer,
    /// Values of at least this many bytes go to the value file.
    apart_bytes: usize,
    values: Option<ValueWriter>,
    /// Value files of other cells that records here may point to, and bytes that they point to, in the order of numbers.
    sources: Vec<Owned>,
    /// Bytes in the value file written here.
    value_bytes: u64,
}

impl CellWriter {
    pub(crate) fn create(
        context: &Arc<StoreContext>,
        number: u64,
        level: u32,
        shape: CellShape,
    ) -> Result<Self, Error> {
        let CellShape { page_bytes, filter_bits, apart_bytes } = shape;
        let path = context.path(&cell_name(number));
        let file = context.disk.open(&path, OpenMode::CreateNew)?;
        Ok(CellWriter {
            context: context.clone(),
            level,
            path,
            file,
            out: Vec::with_capacity(WRITE_BYTES + 2 * page_bytes as usize),
            out_at: 0,
            synced_at: 0,
            page_from: 0,
            slots: Vec::new(),
            hashes: Vec::new(),
            page_first: Vec::new(),
            last_key: Vec::new(),
            last_before: Vec::new(),
            first_key: Vec::new(),
            index: IndexBuilder::new(filter_bits),
            footer: Footer { number, page_bytes, ..Footer::default() },
            apart_bytes: usize::try_from(apart_bytes).unwrap_or(usize::MAX),
            values: None,
            sources: Vec::new(),
            value_bytes: 0,
        })
    }

    /// Lets records point to value files of cells that this one replaces.
    pub(crate) fn adopt(&mut self, files: impl Iterator<Item = Arc<ValueFile>>) {
        self.sources.extend(files.map(|file| Owned { file, live_bytes: 0 }));
        self.sources.sort_unstable_by_key(|owned| owned.file.number);
    }

    /// Appends a record; keys must ascend. A large value goes to the value file. `origin` gives file and offset that the
    /// record is from.
    ///
    /// # Errors
    /// [`Error::Damaged`] of its origin if the key is not above the last one or points to no file of this cell, or the
    /// disk's.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        content: Content<'_>,
        origin: impl Fn() -> (String, u64),
    ) -> Result<(), Error> {
        match content {
            Content::Value(value) if value.len() >= self.apart_bytes => {
                if self.values.is_none() {
                    self.values = Some(ValueWriter::create(&self.context, self.footer.number)?);
                }
                let Some(values) = &mut self.values else { return Ok(()) };
                let pointer = values.put(value)?;
                self.value_bytes += value.len() as u64;
                self.add_record(key, Content::Apart(pointer), origin)
            }
            Content::Apart(pointer) => {
                let Ok(at) = self.sources.binary_search_by_key(&pointer.place.file, |owned| owned.file.number) else {
                    let what = format!("a record points to value file {:016x} of no merged cell", pointer.place.file);
                    let (file, offset) = origin();
                    return Err(Error::damaged(&file, offset, what));
                };
                let source = &mut self.sources[at];
                source.live_bytes += pointer.len as u64;
                if source.live_bytes > source.file.file_bytes {
                    return Err(Error::damaged(
                        &source.file.path,
                        0,
                        "records point to more bytes than the value file has",
                    ));
                }
                self.add_record(key, content, origin)
            }
            _ => self.add_record(key, content, origin),
        }
    }

    fn add_record(
        &mut self,
        key: &[u8],
        content: Content<'_>,
        origin: impl Fn() -> (String, u64),
    ) -> Result<(), Error> {
        if self.footer.records > 0 && key <= &self.last_key[..] {
            // Buffers are sorted, and so are sound cells. Only damage that no checksum shows can get here.
            let (file, offset) = origin();
            return Err(Error::damaged(&file, offset, "keys do not ascend"));
        }
        let record = page::content_bytes(key, &content);
        if !self.slots.is_empty() && self.used() + record + 2 > self.page_bytes() {
            self.finish_page()?;
        }
        if self.footer.records == 0 {
            self.first_key = key.to_vec();
        }
        self.footer.records += 1;
        self.footer.deletes += u64::from(content.is_delete());
        self.footer.user_bytes += (key.len() + content.len()) as u64;
        if PAGE_HEADER_BYTES + record + 2 > self.page_bytes() {
            return self.add_run(key, &content, record);
        }
        if self.slots.is_empty() {
            self.out.resize(self.page_from + PAGE_HEADER_BYTES, 0);
            self.page_first.clear();
            self.page_first.extend_from_slice(key);
        }
        self.slots.push((self.out.len() - self.page_from) as u16);
        page::put_content(&mut self.out, key, &content);
        self.hashes.push(hash_key(key));
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(())
    }

    /// Number of the cell.
    pub(crate) fn number(&self) -> u64 {
        self.footer.number
    }

    fn page_bytes(&self) -> usize {
        self.footer.page_bytes as usize
    }

    /// Bytes used in the open page, its slots included.
    fn used(&self) -> usize {
        self.out.len() - self.page_from + 2 * self.slots.len()
    }

    fn finish_page(&mut self) -> Result<(), Error> {
        assert!(!self.slots.is_empty() && self.hashes.len() == self.slots.len(), "a page has a hash for each record");
        assert!(self.used() <= self.page_bytes(), "{} bytes on a page of {}", self.used(), self.page_bytes());
        assert!(self.slots.is_sorted_by(|a, b| a < b), "the records of a page overlap");
        let end = self.page_from + self.page_bytes();
        self.out.resize(end, 0);
        for (i, slot) in self.slots.iter().enumerate() {
            let at = end - 2 * (i + 1);
            self.out[at..at + 2].copy_from_slice(&slot.to_le_bytes());
        }
        page::seal_records(&mut self.out[self.page_from..end], self.slots.len(), self.footer.number, self.footer.pages);
        self.index.page(&self.page_first, &self.last_before, &self.hashes, 1);
        self.footer.pages += 1;
        self.end_page();
        self.write_out(WRITE_BYTES)
    }

    /// Updates the state after a page of either kind.
    fn end_page(&mut self) {
        self.page_from = self.out.len();
        self.slots.clear();
        self.hashes.clear();
        self.last_before.clear();
        self.last_before.extend_from_slice(&self.last_key);
    }

    /// Writes a record that is longer than a page as a run of pages.
    fn add_run(&mut self, key: &[u8], content: &Content<'_>, record: usize) -> Result<(), Error> {
        let pages = (RUN_HEADER_BYTES + record).div_ceil(self.page_bytes());
        assert!(pages >= 2 && self.slots.is_empty(), "a run begins on a page of its own and passes it");
        let from = self.page_from;
        self.out.resize(from + RUN_HEADER_BYTES, 0);
        page::put_content(&mut self.out, key, content);
        let rest =
            crc32c(&self.out[from + self.page_bytes()..]) ^ page::place(self.footer.number, self.footer.pages + 1);
        self.out.resize(from + pages * self.page_bytes(), 0);
        let end = from + self.page_bytes();
        page::seal_run(&mut self.out[from..end], record as u32, rest, self.footer.number, self.footer.pages);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.index.page(key, &self.last_before, &[hash_key(key)], pages as u32);
        self.footer.pages += pages as u32;
        self.end_page();
        self.write_out(WRITE_BYTES)
    }

    fn write_out(&mut self, at_least: usize) -> Result<(), Error> {
        if self.out.len() < at_least || self.out.is_empty() {
            return Ok(());
        }
        assert!(self.synced_at <= self.out_at, "synced beyond what was written");
        self.file.write_at(self.out_at, &self.out)?;
        self.context.counters.cell_bytes.fetch_add(self.out.len() as u64, Ordering::Relaxed);
        self.out_at += self.out.len() as u64;
        self.out.clear();
        self.page_from = 0;
        if self.context.durable && self.out_at - self.synced_at >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced_at = self.out_at;
        }
        Ok(())
    }

    pub(crate) fn records(&self) -> u64 {
        self.footer.records
    }

    /// Heap memory held while writing.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.out.capacity() + self.index.heap_bytes() + self.values.as_ref().map_or(0, ValueWriter::heap_bytes)
    }

    /// Writes index, bounds and footer, syncs if `sync`, and opens the cell. The name of its file is not durable yet.
    pub(crate) fn finish(mut self, sync: bool) -> Result<Cell, Error> {
        if !self.slots.is_empty() {
            self.finish_page()?;
        }
        assert!(self.footer.records > 0 && self.footer.pages > 0, "an empty cell is finished");
        let pages_bytes = u64::from(self.footer.pages) * self.page_bytes() as u64;
        assert!(self.out_at + self.out.len() as u64 == pages_bytes, "{} pages do not end here", self.footer.pages);
        let index = std::mem::take(&mut self.index).finish();
        assert!(
            index.pages() == self.footer.pages && index.keys() == self.footer.records,
            "the index is of other pages"
        );
        let mut section = index.encode();
        self.footer.index_bytes = section.len() as u32;
        let bounds = encode_bounds(&self.first_key, &self.last_key);
        self.footer.bounds_bytes = bounds.len() as u32;
        section.extend_from_slice(&bounds);
        let values = self.finish_values(sync)?;
        self.footer.values = values.len() as u32;
        section.extend_from_slice(&values::encode_list(&values));
        self.footer.index_crc = crc32c(&section);
        self.out.extend_from_slice(&section);
        self.out.extend_from_slice(&self.footer.encode());
        self.write_out(1)?;
        assert!(
            self.out_at == self.footer.file_bytes(),
            "a cell of {} bytes, by its footer {}",
            self.out_at,
            self.footer.file_bytes()
        );
        if sync {
            self.file.sync_data()?;
        }
        let bounds = (self.first_key, self.last_key);
        Ok(Cell::assemble(&self.context, self.footer, self.level, self.file, self.path, (index, bounds, values)))
    }

    /// The value files that records of this cell point to, the one written here last.
    fn finish_values(&mut self, sync: bool) -> Result<Vec<Owned>, Error> {
        let mut owned = std::mem::take(&mut self.sources);
        owned.retain(|o| o.live_bytes > 0);
        if let Some(values) = self.values.take() {
            owned.push(Owned {
                file: Arc::new(values.finish(sync && !failpoint::is_active("cona.values_not_synced"))?),
                live_bytes: self.value_bytes,
            });
        }
        assert!(owned.is_sorted_by(|a, b| a.file.number < b.file.number), "a new cell has the highest number");
        Ok(owned)
    }

    /// Removes the unfinished files.
    pub(crate) fn abandon(self) {
        if self.values.is_some() {
            let _ = self.context.disk.remove(&self.context.path(&values_name(self.footer.number)));
        }
        let _ = self.context.disk.remove(&self.path);
    }
}
