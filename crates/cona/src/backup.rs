//! Verifies a store, and copies its state at one moment.

use std::sync::Arc;

use tessera_disk::Disk;

use crate::cell::{Cell, StoreContext, read_exact};
use crate::cell_writer::CellWriter;
use crate::error::Error;
use crate::index::hash_key;
use crate::manifest::{Entry, MANIFEST, Manifest};
use crate::merge::CellCursor;
use crate::plan::BOTTOM;
use crate::store::Store;

/// Bytes per copy step.
const COPY_BYTES: usize = 1 << 20;

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
    /// Reads every page of every cell from the medium, bypassing the system's cache. Checks checksums, key order, and
    /// that index and filter lead to each record.
    #[must_use]
    pub fn verify(&self) -> VerifyReport {
        let mut report = VerifyReport::default();
        for cell in self.shared.current().cells.iter() {
            report.cells += 1;
            report.bytes += cell.footer.file_bytes();
            cell.file.drop_cache(0, cell.footer.file_bytes());
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
        let to = StoreContext { disk: disk.clone(), dir: dir.into(), ..self.shared.around.clone() };
        let to = StoreContext { trash: Default::default(), counters: Default::default(), durable: true, ..to };
        if disk.list(dir)?.iter().any(|name| name == MANIFEST) {
            return Err(Error::AlreadyThere { dir: crate::open::place_name(&to) });
        }
        let snapshot = self.snapshot();
        let mut number = 1;
        let mut cells = Vec::new();
        if let Some(entry) = self.copy_buffers(&to, &snapshot, number)? {
            cells.push(entry);
            number += 1;
        }
        for cell in snapshot.state.cells.iter() {
            cells.push(rewrite_cell(&to, cell, number, &self.shared.options)?);
            number += 1;
        }
        disk.sync_dir(dir)?;
        Manifest { next_file: number, flushed_seq: 0, cells }.write(&to)?;
        Ok(())
    }

    /// Writes the records in the insert buffers as one cell, the newest of the copy.
    fn copy_buffers(&self, to: &StoreContext, snapshot: &crate::Snapshot, number: u64) -> Result<Option<Entry>, Error> {
        let mut writer = CellWriter::create(to, number, 0, self.shared.options.page_bytes, 10)?;
        let mut merger = snapshot.buffers();
        while let Some((key, value)) = merger.current(false) {
            writer.add(key, value)?;
            merger.advance()?;
        }
        if writer.records() == 0 {
            writer.abandon();
            return Ok(None);
        }
        let cell = writer.finish(true)?;
        Ok(Some(Entry { number, file_bytes: cell.footer.file_bytes(), level: 0 }))
    }
}

/// Writes the cell's records into a new cell with another number. The number is part of the checksums, so the pages
/// cannot be copied as they are. Checks every record on the way.
fn rewrite_cell(to: &StoreContext, cell: &Arc<Cell>, number: u64, options: &crate::Options) -> Result<Entry, Error> {
    let bits = options.filter_bits_of(cell.level, cell.level == BOTTOM);
    let mut writer = CellWriter::create(to, number, cell.level, cell.footer.page_bytes, bits)?;
    let ahead = (COPY_BYTES as u32 / cell.footer.page_bytes).max(1);
    let mut cursor = CellCursor::seek(cell.clone(), &[], ahead, ahead)?;
    while let Some((key, value)) = cursor.current() {
        writer.add(key, value)?;
        cursor.advance()?;
    }
    let copy = writer.finish(true)?;
    Ok(Entry { number, file_bytes: copy.footer.file_bytes(), level: cell.level })
}

fn verify_cell(cell: &Arc<Cell>, records: &mut u64) -> Result<(), Error> {
    // Reads footer, index and bounds from the disk again: the copies in memory say nothing about the medium.
    let file = &*cell.file;
    let mut tail =
        vec![0; (cell.footer.file_bytes() - u64::from(cell.footer.pages) * u64::from(cell.footer.page_bytes)) as usize];
    read_exact(file, &cell.path, cell.footer.file_bytes() - tail.len() as u64, &mut tail)?;
    let section = cell.footer.index_bytes as usize + cell.footer.bounds_bytes as usize;
    if crate::page::crc32c(&tail[..section]) != cell.footer.index_crc || tail[section..] != cell.footer.encode() {
        let at = cell.footer.file_bytes() - tail.len() as u64;
        return Err(Error::damaged(&cell.path, at, "index or footer are not what they were when the store was opened"));
    }
    let ahead = (COPY_BYTES as u32 / cell.footer.page_bytes).max(1);
    let mut cursor = CellCursor::seek(cell.clone(), &[], ahead, ahead)?;
    let mut last: Vec<u8> = Vec::new();
    let mut found = 0;
    while let Some((key, _)) = cursor.current() {
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
        cursor.advance()?;
    }
    *records += found;
    if found != cell.footer.records {
        let what = format!("the cell has {found} records, its footer says {}", cell.footer.records);
        return Err(Error::damaged(&cell.path, 0, what));
    }
    Ok(())
}
