//! Value files: values of some size, apart from their keys (docs/formats.md, section 5.6).
//!
//! The writer of a cell puts large values into a file of the cell's number, in the order of their keys, and a *pointer* into
//! the page. Merges copy pointers, so a value is written once and not with every merge. A value file belongs to one cell at a
//! time: the one that was written with it, then whatever cell that one was merged into. The cell lists its value files with
//! the bytes of each that it points to; the rest is dead. `relocation.rs` decides when what lives of a file is written anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_disk::record::{Field, HeaderFormat, numbered_name};
use tessera_disk::{DiskError, DiskFile, OpenMode, layout};
use tessera_failpoint as failpoint;

use crate::cell::{StoreContext, read_exact};
use crate::error::Error;
use crate::page::{self, crc32c};

/// Bytes of a pointer on a page.
pub(crate) const POINTER_BYTES: usize = 20;
/// Encoded bytes of a value file in a cell's list.
pub(crate) const OWNED_BYTES: usize = 24;
/// Bytes before the first value.
const HEADER_BYTES: usize = 32;
const FORMAT: HeaderFormat = HeaderFormat { magic: *b"CONAVALU", version: 1, crc_at: HEADER_BYTES - 4 };
/// Bytes per write.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes between early writebacks to the medium.
const SYNC_BYTES: u64 = 32 << 20;

// docs/formats.md, section 5.6: file, offset, checksum; and file, live bytes, all bytes.
const _: () = assert!(POINTER_BYTES == 8 + 8 + 4 && OWNED_BYTES == 8 + 8 + 8);

layout! {
    struct FileHeader {
        number: u64 = 16,
    }
}

layout! {
    /// Where a value is. Its length stands before it in the record.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Place {
        pub(crate) file: u64 = 0,
        pub(crate) offset: u64 = 8,
        /// crc32c of the value, masked with its place.
        pub(crate) crc: u32 = 16,
    }
}

layout! {
    /// A value file as its cell lists it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Entry {
        pub(crate) number: u64 = 0,
        /// Bytes that the cell points to.
        pub(crate) live_bytes: u64 = 8,
        pub(crate) file_bytes: u64 = 16,
    }
}

/// A value that is apart from its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) place: Place,
    pub(crate) len: usize,
}

impl Pointer {
    /// True if `next` begins where this value ends.
    pub(crate) fn is_before(&self, next: &Pointer) -> bool {
        let end = self.place.offset.checked_add(self.len as u64);
        self.place.file == next.place.file && end == Some(next.place.offset)
    }
}

pub(crate) fn values_name(number: u64) -> String {
    numbered_name(number, ".values")
}

/// Mixed into a value's checksum, so that it is valid only where it was written.
fn mask(file: u64, offset: u64) -> u32 {
    page::place(file ^ offset.rotate_left(32), offset as u32)
}

/// An open value file.
pub(crate) struct ValueFile {
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    pub(crate) path: String,
    pub(crate) file: Arc<dyn DiskFile>,
    /// No cell lists this file any more: it is removed with the last reference.
    pub(crate) obsolete: AtomicBool,
    context: Arc<StoreContext>,
}

impl Drop for ValueFile {
    fn drop(&mut self) {
        if *self.obsolete.get_mut() {
            self.context.obsolete_files.lock().push(std::mem::take(&mut self.path));
        }
    }
}

impl ValueFile {
    /// Opens a file that a cell lists.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is gone or another one, [`Error::NewerFormat`], or the disk's.
    pub(crate) fn open(context: &Arc<StoreContext>, number: u64, file_bytes: u64) -> Result<Self, Error> {
        let path = context.path(&values_name(number));
        let file = context.disk.open(&path, OpenMode::Existing).map_err(|e| match e {
            DiskError::NotFound { .. } => Error::damaged(&path, 0, "a cell lists this value file, but it is gone"),
            other => other.into(),
        })?;
        let opened = Self::assemble(context, number, file_bytes, path, file);
        opened.check_header()?;
        Ok(opened)
    }

    /// Compares length and header with what the cell says.
    ///
    /// # Errors
    /// As for [`ValueFile::open`].
    pub(crate) fn check_header(&self) -> Result<(), Error> {
        let (path, len) = (&self.path, self.file.len()?);
        if len != self.file_bytes || len < HEADER_BYTES as u64 {
            let what = format!("the value file has {len} bytes, its cell says {}", self.file_bytes);
            return Err(Error::damaged(path, len, what));
        }
        let mut header = [0; HEADER_BYTES];
        read_exact(&*self.file, path, 0, &mut header)?;
        match FORMAT.decode(&header) {
            Ok(FileHeader { number }) if number == self.number => Ok(()),
            Ok(_) => Err(Error::damaged(path, 0, "the header is of another value file")),
            Err(fault) => Err(Error::of_header(fault, "value file", &FORMAT, path, 0)),
        }
    }

    fn assemble(
        context: &Arc<StoreContext>,
        number: u64,
        file_bytes: u64,
        path: String,
        file: Arc<dyn DiskFile>,
    ) -> Self {
        // Scans and merges ask for what they read next; the system would read several times as much.
        file.expect_random_reads();
        ValueFile { number, file_bytes, path, file, obsolete: AtomicBool::new(false), context: context.clone() }
    }

    /// Reads a value into `value` and compares its checksum.
    ///
    /// # Errors
    /// [`Error::Damaged`] with file and offset, or the disk's.
    pub(crate) fn read(&self, pointer: &Pointer, value: &mut Vec<u8>) -> Result<(), Error> {
        let Place { offset, crc, .. } = pointer.place;
        if offset.checked_add(pointer.len as u64).is_none_or(|end| end > self.file_bytes) {
            return Err(Error::damaged(&self.path, offset, "a record points beyond the value file"));
        }
        value.resize(pointer.len, 0);
        self.context.counters.read_bytes.fetch_add(pointer.len as u64, Ordering::Relaxed);
        read_exact(&*self.file, &self.path, offset, value)?;
        let got = crc32c(value) ^ mask(self.number, offset);
        if got != crc && !failpoint::is_active("cona.skip_page_check") {
            let what = format!("checksum of the value is {got:#010x}, expected {crc:#010x}");
            return Err(Error::damaged(&self.path, offset, what));
        }
        Ok(())
    }
}

/// A value file and how much of it its cell points to.
#[derive(Clone)]
pub(crate) struct Owned {
    pub(crate) file: Arc<ValueFile>,
    pub(crate) live_bytes: u64,
}

impl Owned {
    /// Bytes of values that nothing points to.
    pub(crate) fn dead_bytes(&self) -> u64 {
        (self.file.file_bytes - HEADER_BYTES as u64).saturating_sub(self.live_bytes)
    }
}

/// Encodes a cell's list of value files.
pub(crate) fn encode_list(owned: &[Owned]) -> Vec<u8> {
    let mut bytes = vec![0; owned.len() * OWNED_BYTES];
    for (bytes, Owned { file, live_bytes }) in bytes.chunks_exact_mut(OWNED_BYTES).zip(owned) {
        assert!(*live_bytes <= file.file_bytes, "{} live bytes of {}", live_bytes, file.file_bytes);
        Entry { number: file.number, live_bytes: *live_bytes, file_bytes: file.file_bytes }.put(bytes);
    }
    bytes
}

/// Opens the value files of a list.
pub(crate) fn open_list(context: &Arc<StoreContext>, bytes: &[u8]) -> Result<Vec<Owned>, Error> {
    let entries = bytes.chunks_exact(OWNED_BYTES).map(Entry::take);
    let open = |e: Entry| {
        let file = Arc::new(ValueFile::open(context, e.number, e.file_bytes)?);
        Ok(Owned { file, live_bytes: e.live_bytes.min(e.file_bytes) })
    };
    entries.map(open).collect()
}

/// A value file that is being written.
pub(crate) struct ValueWriter {
    context: Arc<StoreContext>,
    number: u64,
    path: String,
    file: Arc<dyn DiskFile>,
    out: Vec<u8>,
    /// File offset of `out`.
    out_at: u64,
    synced_at: u64,
}

impl ValueWriter {
    pub(crate) fn create(context: &Arc<StoreContext>, number: u64) -> Result<Self, Error> {
        let path = context.path(&values_name(number));
        let file = context.disk.open(&path, OpenMode::CreateNew)?;
        let header: [u8; HEADER_BYTES] = FORMAT.encode(&FileHeader { number });
        let out = header.to_vec();
        Ok(ValueWriter { context: context.clone(), number, path, file, out, out_at: 0, synced_at: 0 })
    }

    /// Appends a value. Returns where it is.
    pub(crate) fn put(&mut self, value: &[u8]) -> Result<Pointer, Error> {
        let offset = self.out_at + self.out.len() as u64;
        let crc = crc32c(value) ^ mask(self.number, offset);
        self.out.extend_from_slice(value);
        self.write_out(WRITE_BYTES)?;
        Ok(Pointer { place: Place { file: self.number, offset, crc }, len: value.len() })
    }

    fn write_out(&mut self, at_least: usize) -> Result<(), Error> {
        if self.out.len() < at_least || self.out.is_empty() {
            return Ok(());
        }
        self.file.write_at(self.out_at, &self.out)?;
        self.context.counters.cell_bytes.fetch_add(self.out.len() as u64, Ordering::Relaxed);
        self.out_at += self.out.len() as u64;
        self.out.clear();
        if self.context.durable && self.out_at - self.synced_at >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced_at = self.out_at;
        }
        Ok(())
    }

    /// Heap memory held while writing.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.out.capacity()
    }

    /// Writes what is left, and syncs if `sync`. The name of the file is not durable yet.
    pub(crate) fn finish(mut self, sync: bool) -> Result<ValueFile, Error> {
        self.write_out(1)?;
        if sync {
            self.file.sync_data()?;
        }
        let ValueWriter { context, number, path, file, out_at, .. } = self;
        Ok(ValueFile::assemble(&context, number, out_at, path, file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P2: a value that was changed, or that another pointer asks for, is an error.
    #[test]
    fn only_what_was_written_is_read() {
        let disk: Arc<dyn tessera_disk::Disk> = Arc::new(tessera_disk::SimDisk::new(0));
        let context = StoreContext::new(disk.clone(), "", true);
        let mut writer = ValueWriter::create(&context, 7).unwrap();
        let pointers: Vec<Pointer> = (0..9_u8).map(|n| writer.put(&vec![n; 100 * usize::from(n)]).unwrap()).collect();
        let bytes = writer.finish(true).unwrap().file_bytes;
        let file = ValueFile::open(&context, 7, bytes).unwrap();
        let mut value = Vec::new();
        for (n, pointer) in (0..9_u8).zip(&pointers) {
            file.read(pointer, &mut value).unwrap();
            assert_eq!(value, vec![n; 100 * usize::from(n)]);
        }
        let mut other = pointers[4];
        other.place.offset = pointers[5].place.offset;
        assert!(file.read(&other, &mut value).unwrap_err().is_damage());
        other.place.offset = u64::MAX;
        assert!(file.read(&other, &mut value).unwrap_err().is_damage());
        assert!(ValueFile::open(&context, 7, bytes - 1).err().unwrap().is_damage());
        assert!(ValueFile::open(&context, 8, bytes).err().unwrap().to_string().contains("it is gone"));
    }

    /// P14: an unknown version gives an error with both numbers, not damage.
    #[test]
    fn a_newer_value_file_is_told_from_damage() {
        let disk: Arc<dyn tessera_disk::Disk> = Arc::new(tessera_disk::SimDisk::new(0));
        let context = StoreContext::new(disk.clone(), "", true);
        drop(ValueWriter::create(&context, 7).unwrap().finish(true).unwrap());
        let file = disk.open(&values_name(7), OpenMode::Existing).unwrap();
        let mut header: [u8; HEADER_BYTES] = FORMAT.encode(&FileHeader { number: 7 });
        header[8] = 2;
        let crc = crc32c(&header[..FORMAT.crc_at]);
        header[FORMAT.crc_at..].copy_from_slice(&crc.to_le_bytes());
        file.write_at(0, &header).unwrap();
        let error = ValueFile::open(&context, 7, HEADER_BYTES as u64).err().unwrap();
        assert!(error.to_string().contains("format version 2, but this program knows 1"), "{error}");
    }
}
