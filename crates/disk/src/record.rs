//! What file formats share: fields at fixed offsets, checked headers, checksums of places, numbered files.

use std::sync::Arc;

use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::DiskError;

/// A value of a fixed length among the bytes of a header or record. Numbers are little-endian.
pub trait Field: Sized {
    /// Writes the value to the first bytes of `out`.
    ///
    /// # Panics
    /// If `out` is too short.
    fn put(&self, out: &mut [u8]);

    /// Reads the value from the first bytes of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is too short; the caller has checked the length.
    fn take(bytes: &[u8]) -> Self;
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, out: &mut [u8]) {
        out[..N].copy_from_slice(self);
    }

    fn take(bytes: &[u8]) -> Self {
        let mut field = [0; N];
        field.copy_from_slice(&bytes[..N]);
        field
    }
}

macro_rules! number_fields {
    ($($number:ty)*) => {$(
        impl Field for $number {
            #[inline]
            fn put(&self, out: &mut [u8]) {
                self.to_le_bytes().put(out);
            }

            #[inline]
            fn take(bytes: &[u8]) -> Self {
                Self::from_le_bytes(Field::take(bytes))
            }
        }
    )*};
}
number_fields!(u8 u16 u32 u64);

/// Declares a struct whose encoding has each field at a fixed offset (`name: type = offset`), and implements [`Field`]
/// for it. Bytes between the fields stay as they are.
#[macro_export]
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$doc:meta])* $field_vis:vis $field:ident: $type:ty = $at:expr,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$doc])* $field_vis $field: $type,)*
        }

        impl $crate::record::Field for $name {
            #[inline]
            fn put(&self, out: &mut [u8]) {
                $($crate::record::Field::put(&self.$field, &mut out[$at..]);)*
            }

            #[inline]
            fn take(bytes: &[u8]) -> Self {
                $name { $($field: $crate::record::Field::take(&bytes[$at..]),)* }
            }
        }
    };
}

/// What identifies the header of a file: eight bytes of magic, a version, four bytes of zeros, then the fields, then the
/// crc32c of everything before it.
#[derive(Clone, Copy, Debug)]
pub struct HeaderFormat {
    /// The first eight bytes.
    pub magic: [u8; 8],
    /// The version that this code writes and reads.
    pub version: u32,
    /// Offset of the checksum. It is the same in all versions, so this code tells a newer version from damage.
    pub crc_at: usize,
}

/// Why bytes are not a header of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// Too short, or another magic.
    Magic,
    /// The checksum `expected` in the header is not the checksum `got` of its bytes.
    Checksum {
        /// In the header.
        expected: u32,
        /// Computed here.
        got: u32,
    },
    /// An intact header of this other version.
    Version(u32),
}

impl HeaderFormat {
    /// Encodes a header of `N` bytes.
    #[must_use]
    pub fn encode<const N: usize>(&self, fields: &impl Field) -> [u8; N] {
        let mut bytes = [0; N];
        self.put(fields, &mut bytes);
        bytes
    }

    /// Writes magic, version, fields and checksum into `bytes`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn put(&self, fields: &impl Field, bytes: &mut [u8]) {
        assert!(
            self.crc_at + 4 <= bytes.len(),
            "a header of {} bytes with its checksum at {}",
            bytes.len(),
            self.crc_at
        );
        self.magic.put(bytes);
        self.version.put(&mut bytes[8..]);
        fields.put(bytes);
        crc_fast::crc32_iscsi(&bytes[..self.crc_at]).put(&mut bytes[self.crc_at..]);
    }

    /// Decodes a header whose fields end before its checksum.
    ///
    /// # Errors
    /// [`HeaderFault`].
    pub fn decode<F: Field>(&self, bytes: &[u8]) -> Result<F, HeaderFault> {
        if bytes.len() < self.crc_at + 4 || !bytes.starts_with(&self.magic) {
            return Err(HeaderFault::Magic);
        }
        let (expected, got) = (u32::take(&bytes[self.crc_at..]), crc_fast::crc32_iscsi(&bytes[..self.crc_at]));
        if got != expected {
            return Err(HeaderFault::Checksum { expected, got });
        }
        match u32::take(&bytes[8..]) {
            found if found == self.version => Ok(F::take(bytes)),
            found => Err(HeaderFault::Version(found)),
        }
    }
}

/// The place of a record. A record's checksum also covers its place. So a record written on another disk, inside
/// another record's data, or at the wrong offset fails the check.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlace {
    /// The disk.
    pub disk_uuid: [u8; 16],
    /// Number of the file.
    pub file: u64,
}

impl RecordPlace {
    /// crc32c of `bytes`, disk uuid, file number and offset.
    #[must_use]
    pub fn seal(&self, bytes: &[u8], offset: u64) -> u32 {
        let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let mut place = [0; 32];
        place[..16].copy_from_slice(&self.disk_uuid);
        place[16..24].copy_from_slice(&self.file.to_le_bytes());
        place[24..].copy_from_slice(&offset.to_le_bytes());
        crc.update(bytes);
        crc.update(&place);
        crc.finalize() as u32
    }
}

/// Name of file `number` with an `extension` (`.seg`): the number in sixteen hexadecimal digits.
#[must_use]
pub fn numbered_name(number: u64, extension: &str) -> String {
    format!("{number:016x}{extension}")
}

/// Numbers of files are below this, so that a next number always exists. No store writes so many files.
pub const FILE_NUMBERS_END: u64 = 1 << 63;

/// The number in such a file name; `None` for any other name.
#[must_use]
pub fn parse_numbered_name(name: &str, extension: &str) -> Option<u64> {
    let hex = name.strip_suffix(extension)?;
    let lower = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let number = (hex.len() == 16 && lower).then(|| u64::from_str_radix(hex, 16).ok()).flatten();
    number.filter(|&number| number < FILE_NUMBERS_END)
}

/// Creates file `path` of directory `dir` durably, with a header and nothing else. A file that is already there can only
/// come from a failed attempt.
///
/// # Errors
/// The disk's; the file is then removed if possible.
pub fn create_file(disk: &dyn Disk, dir: &str, path: &str, header: &[u8]) -> Result<Arc<dyn DiskFile>, DiskError> {
    let file = disk.open(path, OpenMode::Create)?;
    if let Err(e) = file.truncate(0).and_then(|()| file.write_at(0, header)) {
        let _ = disk.remove(path);
        return Err(e);
    }
    file.sync_data()?;
    disk.sync_dir(dir)?;
    Ok(file)
}

/// Bytes skipped around an unreadable sector.
const BLOCK_BYTES: usize = 4 << 10;

/// Fills `bytes` from `offset`. A block of 4,096 bytes that cannot be read in two attempts becomes zeros; returns its
/// error.
///
/// # Errors
/// None of several blocks is readable: the disk is dead, not a sector.
pub fn read_blocks(file: &dyn DiskFile, offset: u64, bytes: &mut [u8]) -> Result<Option<DiskError>, DiskError> {
    if file.read_at(offset, bytes).is_ok() {
        return Ok(None);
    }
    let several = bytes.len() > BLOCK_BYTES;
    let (mut failure, mut readable) = (None, false);
    for (n, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
        match file.read_twice(offset + (n * BLOCK_BYTES) as u64, block) {
            Ok(()) => readable = true,
            Err(e) => {
                block.fill(0);
                failure = Some(e);
            }
        }
    }
    match failure {
        Some(e) if several && !readable => Err(e),
        failure => Ok(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_the_checksum_of_bytes_and_place_together() {
        let place = RecordPlace { disk_uuid: [7; 16], file: 0x0102 };
        let together = [&b"record"[..], &[7; 16], &0x0102_u64.to_le_bytes(), &40_u64.to_le_bytes()].concat();
        assert_eq!(place.seal(b"record", 40), crc_fast::crc32_iscsi(&together));
        assert_ne!(place.seal(b"record", 40), place.seal(b"record", 48));
    }

    #[test]
    fn names_and_numbers() {
        assert_eq!(numbered_name(0x1f, ".seg"), "000000000000001f.seg");
        assert_eq!(parse_numbered_name("000000000000001f.seg", ".seg"), Some(0x1f));
        for bad in [
            "ffffffffffffffff.seg",
            "8000000000000000.seg",
            "1f.seg",
            "000000000000001F.seg",
            "000000000000001f.log",
            "+00000000000001f.seg",
        ] {
            assert_eq!(parse_numbered_name(bad, ".seg"), None);
        }
    }
}
