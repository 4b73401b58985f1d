//! What the self-describing records of append-only files share: place checksums, little-endian numbers, file names.

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

/// The number in such a file name; `None` for any other name.
#[must_use]
pub fn parse_numbered_name(name: &str, extension: &str) -> Option<u64> {
    let hex = name.strip_suffix(extension)?;
    let lower = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (hex.len() == 16 && lower).then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

/// The `N` bytes at `at`.
///
/// # Panics
/// If `bytes` is too short; the caller has checked the length.
#[must_use]
pub fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// The little-endian number of four bytes at `at`.
///
/// # Panics
/// As [`bytes_at`].
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

/// The little-endian number of eight bytes at `at`.
///
/// # Panics
/// As [`bytes_at`].
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
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
        for bad in ["1f.seg", "000000000000001F.seg", "000000000000001f.log", "+00000000000001f.seg"] {
            assert_eq!(parse_numbered_name(bad, ".seg"), None);
        }
    }
}
