//! The manifest lists the cells of the store. Each change writes it whole and renames it into place (docs/formats.md,
//! section 5.5).

use tessera_disk::{DiskError, OpenMode};

use crate::cell::{StoreContext, path_in, read_exact};
use crate::error::Error;
use crate::page::crc32c;

pub(crate) const MANIFEST: &str = "MANIFEST";
/// Format version of manifests that this code writes and reads.
pub(crate) const MANIFEST_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"CONAMANI";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;

// docs/formats.md, section 5.5: magic, version, cells, next file, flushed sequence; a cell's number, length, level.
const _: () = assert!(8 + 4 + 4 + 8 + 8 <= HEADER_BYTES && ENTRY_BYTES == 8 + 8 + 4 + 4);

/// A cell as the manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    pub(crate) level: u32,
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
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&MANIFEST_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.cells.len() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.next_file.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.flushed_seq.to_le_bytes());
        for cell in &self.cells {
            bytes.extend_from_slice(&cell.number.to_le_bytes());
            bytes.extend_from_slice(&cell.file_bytes.to_le_bytes());
            bytes.extend_from_slice(&cell.level.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        assert!(bytes.len() == HEADER_BYTES + self.cells.len() * ENTRY_BYTES, "the manifest has {} bytes", bytes.len());
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], file: &str) -> Result<Self, Error> {
        let damaged = |what: String| Err(Error::damaged(file, 0, what));
        if bytes.len() < HEADER_BYTES + 4 || bytes[0..8] != MAGIC {
            return damaged("the file does not begin with CONAMANI".into());
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | (u64::from(word(at + 4)) << 32);
        let end = bytes.len() - 4;
        let (got, expected) = (crc32c(&bytes[..end]), word(end));
        if got != expected {
            return damaged(format!("checksum of the manifest is {got:#010x}, expected {expected:#010x}"));
        }
        if word(8) != MANIFEST_VERSION {
            return Err(Error::NewerFormat { file: file.into(), found: word(8), supported: MANIFEST_VERSION });
        }
        if (end - HEADER_BYTES) as u64 != u64::from(word(12)) * ENTRY_BYTES as u64 {
            return damaged("the manifest's length does not fit its cells".into());
        }
        let entry = |at: usize| Entry { number: long(at), file_bytes: long(at + 8), level: word(at + 16) };
        let cells = (0..word(12) as usize).map(|i| entry(HEADER_BYTES + i * ENTRY_BYTES)).collect();
        Ok(Manifest { next_file: long(16), flushed_seq: long(24), cells })
    }

    /// Replaces the manifest durably, and makes the other names in the directory durable with it.
    pub(crate) fn write(&self, around: &StoreContext) -> Result<u64, Error> {
        let bytes = self.encode();
        around.disk.write_durable(&path_in(&around.dir, MANIFEST), &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Reads the manifest. `None` if there is none.
    pub(crate) fn read(around: &StoreContext) -> Result<Option<Self>, Error> {
        let path = path_in(&around.dir, MANIFEST);
        let file = match around.disk.open(&path, OpenMode::Existing) {
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
