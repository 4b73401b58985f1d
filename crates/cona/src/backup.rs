//! Verifies a store, and copies its state at one moment.

use std::sync::Arc;

use tessera_disk::Disk;

use crate::cell::{Cell, FOOTER_BYTES, Footer, StoreContext, read_exact};
use crate::cell_writer::{CellShape, CellWriter};
use crate::error::Error;
use crate::index::hash_key;
use crate::manifest::{Entry, MANIFEST, Manifest};
use crate::merge::{Ahead, CellCursor, Merger};
use crate::page::Content;
use crate::plan::BOTTOM;
use crate::store::Store;

/// Bytes per copy step.
const COPY_BYTES: u32 = 1 << 20;

/// What [`Store::verify`] found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Cells read.
    pub cells: u64,
    /// Records read.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// All damage found.
    pub damage: Vec<Error>,
}

impl Store {
    /// Reads every page of every cell from the medium, bypassing the system's cache, and every value that lives. Checks
    /// checksums, headers, key order, and that index and filter lead to each record.
    #[must_use]
    pub fn verify(&self) -> VerifyReport {
        let mut report = VerifyReport::default();
        for cell in self.shared.current().cells.iter() {
            report.cells += 1;
            report.bytes += cell.footer.file_bytes();
            cell.file.drop_cache(0, cell.footer.file_bytes());
            for owned in &cell.values {
                report.bytes += owned.file.file_bytes;
                owned.file.file.drop_cache(0, owned.file.file_bytes);
                report.damage.extend(owned.file.check_header().err());
            }
            if let Err(error) = verify_cell(cell, &mut report.records) {
                report.damage.push(error);
            }
        }
        report
    }

    /// Copies the current state of the store to directory `dir` of another disk, as a store that can be opened. Writes
    /// continue meanwhile.
    ///
    /// # Errors
    /// [`Error::AlreadyThere`]; [`Error::Damaged`] for a damaged cell, which is not copied; or an error of either disk.
    pub fn checkpoint(&self, disk: &Arc<dyn Disk>, dir: &str) -> Result<(), Error> {
        if !dir.is_empty() {
            disk.create_dir(dir)?;
        }
        let to = StoreContext::new(disk.clone(), dir, true);
        if disk.list(dir)?.iter().any(|name| name == MANIFEST) {
            return Err(Error::AlreadyThere { dir: to.describe() });
        }
        let (snapshot, options) = (self.snapshot(), &self.shared.options);
        let mut cells = Vec::new();
        let shape = CellShape { filter_bits: 10, ..options.cell_shape(0, false) };
        let buffers = CellWriter::create(&to, 1, 0, shape)?;
        cells.extend(write_copy(buffers, snapshot.buffers(), 0)?);
        // A cell's number is part of its checksums, so its pages cannot be copied as they are. Reading checks them.
        for cell in snapshot.state.cells.iter() {
            let (level, page_bytes) = (cell.level, cell.footer.page_bytes);
            let shape = CellShape { page_bytes, ..options.cell_shape(level, level == BOTTOM) };
            let writer = CellWriter::create(&to, cells.len() as u64 + 1, level, shape)?;
            let merger = Merger::of_cells(std::slice::from_ref(cell), (COPY_BYTES / page_bytes).max(1))?;
            cells.extend(write_copy(writer, merger, level)?);
        }
        disk.sync_dir(dir)?;
        Manifest { next_file: cells.len() as u64 + 1, flushed_seq: 0, cells }.write(&to)?;
        Ok(())
    }
}

/// Writes all records of `merger` as a cell; `None` if there are none.
fn write_copy(mut writer: CellWriter, mut merger: Merger, level: u32) -> Result<Option<Entry>, Error> {
    let mut value = Vec::new();
    while let Some((key, content)) = merger.current(false) {
        let content = match content {
            Content::Apart(pointer) => {
                merger.read(&pointer, &mut value)?;
                Content::Value(&value)
            }
            content => content,
        };
        writer.add(key, content, || merger.origin())?;
        merger.advance()?;
    }
    if writer.records() == 0 {
        writer.abandon();
        return Ok(None);
    }
    let footer = writer.finish(true)?.footer;
    Ok(Some(Entry { number: footer.number, file_bytes: footer.file_bytes(), level }))
}

/// Reads all of a cell and compares it with what index, filter and footer say. Adds its records to `records`.
///
/// # Errors
/// [`Error::Damaged`] with file and offset, or the disk's.
pub(crate) fn verify_cell(cell: &Arc<Cell>, records: &mut u64) -> Result<(), Error> {
    // Reads footer, index and bounds from the disk again: the copies in memory say nothing about the medium.
    let file = &*cell.file;
    let mut tail =
        vec![0; (cell.footer.file_bytes() - u64::from(cell.footer.pages) * u64::from(cell.footer.page_bytes)) as usize];
    read_exact(file, &cell.path, cell.footer.file_bytes() - tail.len() as u64, &mut tail)?;
    let section = tail.len() - FOOTER_BYTES;
    let at = cell.footer.file_bytes() - tail.len() as u64;
    let footer = tail[section..].first_chunk().map(|bytes| Footer::decode(bytes, &cell.path, at + section as u64));
    if crate::page::crc32c(&tail[..section]) != cell.footer.index_crc || footer.transpose()? != Some(cell.footer) {
        return Err(Error::damaged(&cell.path, at, "index or footer are not what they were when the store was opened"));
    }
    let ahead = (COPY_BYTES / cell.footer.page_bytes).max(1);
    let mut cursor = CellCursor::seek(cell.clone(), &[], Ahead::steady(ahead))?;
    let mut last: Vec<u8> = Vec::new();
    let (mut found, mut bytes, mut value) = (0, 0, Vec::new());
    while let Some((key, content)) = cursor.current() {
        if let Content::Apart(pointer) = content {
            cell.read_value(&pointer, &mut value)?;
        }
        let wrong = |what: &str| Error::damaged(&cell.path, cursor.offset(), what.to_owned());
        if found > 0 && key <= &last[..] {
            return Err(wrong("keys do not ascend"));
        }
        let page = cursor.page();
        let reached = cell.index.candidates(key).is_some_and(|c| {
            (c.from..=c.to)
                .any(|p| cell.index.physical(c.block, p) == page && cell.index.may_hold(c.block, p, hash_key(key)))
        });
        if !reached {
            return Err(wrong("the index does not lead to a record of this page"));
        }
        last.clear();
        last.extend_from_slice(key);
        found += 1;
        bytes += (key.len() + content.len()) as u64;
        cursor.advance()?;
    }
    *records += found;
    let Footer { records: of_records, user_bytes: of_bytes, .. } = cell.footer;
    if (found, bytes) != (of_records, of_bytes) {
        let what = format!("the cell has {found} records of {bytes} bytes, its footer says {of_records} of {of_bytes}");
        return Err(Error::damaged(&cell.path, 0, what));
    }
    Ok(())
}
