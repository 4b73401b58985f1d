//! The manifest lists the cells of the store. Each change writes it whole and renames it into place (docs/formats.md,
//! section 5.5).

use tessera_disk::record::{FILE_NUMBERS_END, Field, HeaderFormat};
use tessera_disk::{DiskError, OpenMode, layout};

use crate::cell::{StoreContext, read_exact};
use crate::error::Error;

pub(crate) const MANIFEST: &str = "MANIFEST";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;

// docs/formats.md, section 5.5: magic, version, cells, next file, flushed sequence; a cell's number, length, level.
const _: () = assert!(8 + 4 + 4 + 8 + 8 <= HEADER_BYTES && ENTRY_BYTES == 8 + 8 + 4 + 4);

layout! {
    struct Header {
        cells: u32 = 12,
        next_file: u64 = 16,
        flushed_seq: u64 = 24,
    }
}

layout! {
    /// A cell as the manifest names it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Entry {
        pub(crate) number: u64 = 0,
        pub(crate) file_bytes: u64 = 8,
        pub(crate) level: u32 = 16,
    }
}

/// The format of a manifest whose cells end at `end`; its checksum follows them.
fn format(end: usize) -> HeaderFormat {
    HeaderFormat { magic: *b"CONAMANI", version: 1, crc_at: end }
}

/// The content of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// File numbers from this one on are unused.
    pub(crate) next_file: u64,
    /// All batches up to this sequence are in cells.
    pub(crate) flushed_seq: u64,
    /// Newest first.
    pub(crate) cells: Vec<Entry>,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        for (at, cell) in self.cells.iter().enumerate() {
            assert!(cell.number < self.next_file, "cell {} is not below file {}", cell.number, self.next_file);
            assert!(
                self.cells[..at].iter().all(|other| other.number != cell.number),
                "cell {} is named twice",
                cell.number
            );
        }
        let end = HEADER_BYTES + self.cells.len() * ENTRY_BYTES;
        let mut bytes = vec![0; end + 4];
        let table = bytes[HEADER_BYTES..end].chunks_exact_mut(ENTRY_BYTES);
        table.zip(&self.cells).for_each(|(bytes, cell)| cell.put(bytes));
        let Manifest { next_file, flushed_seq, ref cells } = *self;
        format(end).put(&Header { cells: cells.len() as u32, next_file, flushed_seq }, &mut bytes);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], file: &str) -> Result<Self, Error> {
        let format = format(bytes.len().saturating_sub(4).max(HEADER_BYTES));
        let header = format.decode(bytes).map_err(|fault| Error::of_header(fault, "manifest", &format, file, 0))?;
        let Header { cells, next_file, flushed_seq } = header;
        let table = &bytes[HEADER_BYTES..format.crc_at];
        if table.len() as u64 != u64::from(cells) * ENTRY_BYTES as u64 {
            return Err(Error::damaged(file, 0, "the manifest's length does not fit its cells"));
        }
        let cells: Vec<Entry> = table.chunks_exact(ENTRY_BYTES).map(Entry::take).collect();
        if next_file >= FILE_NUMBERS_END || cells.iter().any(|cell| cell.number >= next_file) {
            return Err(Error::damaged(file, 0, "the manifest names files that cannot exist"));
        }
        Ok(Manifest { next_file, flushed_seq, cells })
    }

    /// Replaces the manifest durably, and makes the other names in the directory durable with it.
    pub(crate) fn write(&self, context: &StoreContext) -> Result<u64, Error> {
        let bytes = self.encode();
        context.disk.write_durable(&context.path(MANIFEST), &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Reads the manifest. `None` if there is none.
    pub(crate) fn read(context: &StoreContext) -> Result<Option<Self>, Error> {
        let path = context.path(MANIFEST);
        let file = match context.disk.open(&path, OpenMode::Existing) {
            Err(DiskError::NotFound { .. }) => return Ok(None),
            opened => opened?,
        };
        let mut bytes = vec![0; file.len()? as usize];
        read_exact(&*file, &path, 0, &mut bytes)?;
        Self::decode(&bytes, &path).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::crc32c;
    use proptest::prelude::*;

    fn example() -> Manifest {
        let cells = (0..5).map(|i| Entry { number: 100 - i, file_bytes: i * 4096, level: i as u32 }).collect();
        Manifest { next_file: 101, flushed_seq: 7, cells }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Manifest::decode(&example().encode(), "m").unwrap(), example());
    }

    #[test]
    fn file_numbers_that_cannot_exist_are_damage() {
        let end = format(HEADER_BYTES);
        let mut bytes = Manifest { next_file: 1, ..Manifest::default() }.encode();
        end.put(&Header { cells: 0, next_file: u64::MAX, flushed_seq: 0 }, &mut bytes);
        assert!(Manifest::decode(&bytes, "m").unwrap_err().is_damage());
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut bytes = example().encode();
        bytes[8] = 2;
        let end = bytes.len() - 4;
        let crc = crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        let error = Manifest::decode(&bytes, "MANIFEST").unwrap_err();
        assert!(error.to_string().contains("format version 2, but this program knows 1"), "{error}");
    }

    proptest! {
        /// P14: flipped bits and truncation give an error, never a panic.
        #[test]
        fn any_flip_is_an_error(at in any::<prop::sample::Index>(), bit in 0_u8..8, cut in any::<prop::sample::Index>()) {
            let mut bytes = example().encode();
            let i = at.index(bytes.len());
            bytes[i] ^= 1 << bit;
            prop_assert!(Manifest::decode(&bytes, "m").is_err());
            bytes[i] ^= 1 << bit;
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(Manifest::decode(&bytes, "m").is_err());
        }
    }
}
