//! The formats of log files and snapshots: docs/formats.md, section 4.

use tessera_disk::layout;
use tessera_disk::record::{Field, HeaderFormat, RecordPlace};

use crate::snapshot::Snapshot;

pub(crate) const LOG_VERSION: u32 = 1;
/// Bytes of the header of a log file and of a snapshot file.
pub(crate) const FILE_HEADER_BYTES: u64 = 128;
pub(crate) const ENTRY_HEADER_BYTES: u64 = 48;

const CRC_AT: usize = 104;
pub(crate) const FILE: HeaderFormat = HeaderFormat { magic: *b"TESSCLOG", version: LOG_VERSION, crc_at: CRC_AT };
pub(crate) const SNAPSHOT: HeaderFormat = HeaderFormat { magic: *b"TESSSNAP", version: LOG_VERSION, crc_at: CRC_AT };
const ENTRY_MAGIC: [u8; 4] = *b"TLOG";
const ENTRY_CRC_AT: usize = ENTRY_HEADER_BYTES as usize - 4;

// docs/formats.md, section 4: magic, version, zeros, cluster, disk; a log file adds number, term, position; a snapshot adds position, term,
// length, hash; an entry has magic, kind, zeros, term, position, synced offset, length, checksum, zeros, header checksum.
const _: () = assert!(8 + 4 + 4 + 16 + 16 + 3 * 8 <= CRC_AT && 8 + 4 + 4 + 16 + 16 + 3 * 8 + 32 == CRC_AT);
const _: () = assert!(CRC_AT + 4 <= FILE_HEADER_BYTES as usize && ENTRY_CRC_AT == 44);
const _: () = assert!(4 + 1 + 3 + 3 * 8 + 4 + 4 + 4 == ENTRY_CRC_AT);
const _: () = assert!(
    FILE_HEADER_BYTES.is_multiple_of(8) && ENTRY_HEADER_BYTES.is_multiple_of(8),
    "entries begin at multiples of 8"
);
const _: () = assert!(LOG_VERSION == 1, "a new version needs a reader of the old one");

pub(crate) fn padded(len: u64) -> u64 {
    len.next_multiple_of(8)
}

layout! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct FileHeader {
        pub(crate) cluster_id: [u8; 16] = 16,
        pub(crate) disk_uuid: [u8; 16] = 32,
        pub(crate) number: u64 = 48,
        /// Highest term seen when the file was created.
        pub(crate) term: u64 = 56,
        /// Entries of older files with this or a higher sequence number are void.
        pub(crate) resume_seq: u64 = 64,
    }
}

layout! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SnapshotHeader {
        pub(crate) cluster_id: [u8; 16] = 16,
        pub(crate) disk_uuid: [u8; 16] = 32,
        pub(crate) snapshot: Snapshot = 48,
    }
}

impl FileHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_BYTES as usize] {
        assert!(self.number > 0 && self.resume_seq > 0, "log file {} from entry {}", self.number, self.resume_seq);
        FILE.encode(self)
    }
}

/// [`EntryHeader::kind`] of an entry.
pub(crate) const ENTRY: u8 = 1;
/// [`EntryHeader::kind`] of the record that the replica saw a term; it holds no entry.
pub(crate) const TERM: u8 = 2;

layout! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct EntryHeader {
        pub(crate) kind: u8 = 4,
        pub(crate) term: u64 = 8,
        pub(crate) seq: u64 = 16,
        /// Every byte of the file before this offset was durable when this entry was written. So a bad stretch before it is
        /// rot; one at or after it may be a torn write that was never acknowledged.
        pub(crate) synced_to: u64 = 24,
        pub(crate) len: u32 = 32,
        pub(crate) crc: u32 = 36,
    }
}

impl EntryHeader {
    pub(crate) fn total_bytes(&self) -> u64 {
        ENTRY_HEADER_BYTES + padded(u64::from(self.len))
    }

    pub(crate) fn encode(&self, place: RecordPlace, offset: u64) -> [u8; ENTRY_HEADER_BYTES as usize] {
        assert!(offset.is_multiple_of(8) && offset >= FILE_HEADER_BYTES, "no entry begins at {offset}");
        assert!(self.synced_to <= offset, "{} is durable before it is written", self.synced_to);
        assert!((self.kind == TERM) == (self.seq == 0), "entries are numbered from 1");
        assert!(self.term > 0 && (self.kind == ENTRY || self.len == 0), "a term has no bytes");
        let mut b = [0; ENTRY_HEADER_BYTES as usize];
        ENTRY_MAGIC.put(&mut b);
        self.put(&mut b);
        place.seal(&b[..ENTRY_CRC_AT], offset).put(&mut b[ENTRY_CRC_AT..]);
        b
    }

    /// Decodes the entry at `offset` of a file's bytes. `None` unless it is complete and valid.
    pub(crate) fn decode(file: &[u8], place: RecordPlace, offset: u64) -> Option<Self> {
        let bytes = file.get(offset as usize..)?;
        let b: &[u8; ENTRY_HEADER_BYTES as usize] = bytes.first_chunk()?;
        let sealed = u32::take(&b[ENTRY_CRC_AT..]) == place.seal(&b[..ENTRY_CRC_AT], offset);
        if !b.starts_with(&ENTRY_MAGIC) || !sealed || !matches!(b[4], ENTRY | TERM) {
            return None;
        }
        let header = EntryHeader::take(b);
        let data = bytes.get(ENTRY_HEADER_BYTES as usize..)?.get(..header.len as usize)?;
        let whole = bytes.len() as u64 >= header.total_bytes();
        (whole && tessera_accel::checksum::crc32c(data) == header.crc).then_some(header)
    }
}
