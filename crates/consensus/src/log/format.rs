//! The format of log files: docs/formats.md, section 4.

use tessera_disk::layout;
use tessera_disk::record::{Field, HeaderFormat, RecordPlace};

pub(crate) const LOG_VERSION: u32 = 1;
pub(crate) const FILE_HEADER_BYTES: u64 = 64;
pub(crate) const RECORD_HEADER_BYTES: u64 = 48;

const CRC_AT: usize = 56;
pub(crate) const FILE: HeaderFormat = HeaderFormat { magic: *b"TESSRAFT", version: LOG_VERSION, crc_at: CRC_AT };
const RECORD_MAGIC: [u8; 4] = *b"TRFT";
const SEAL_AT: usize = 44;

const _: () = assert!(8 + 4 + 4 + 16 + 8 + 8 <= CRC_AT && CRC_AT + 4 <= FILE_HEADER_BYTES as usize);
const _: () = assert!(4 + 1 + 3 + 3 * 8 + 4 + 4 <= SEAL_AT && SEAL_AT + 4 == RECORD_HEADER_BYTES as usize);
const _: () = assert!(FILE_HEADER_BYTES.is_multiple_of(8) && RECORD_HEADER_BYTES.is_multiple_of(8));

layout! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct FileHeader {
        pub(crate) cluster_id: [u8; 16] = 16,
        pub(crate) peer_id: u64 = 32,
        pub(crate) number: u64 = 40,
    }
}

impl FileHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_BYTES as usize] {
        assert!(self.peer_id > 0 && self.number > 0, "log file {} of peer {}", self.number, self.peer_id);
        FILE.encode(self)
    }

    /// What the seals of the file's records cover besides their bytes.
    pub(crate) fn place(&self) -> RecordPlace {
        let mut owner = self.cluster_id;
        owner.iter_mut().zip(self.peer_id.to_le_bytes()).for_each(|(byte, of_peer)| *byte ^= of_peer);
        RecordPlace { disk_uuid: owner, file: self.number }
    }
}

/// An entry that holds a command.
pub(crate) const COMMAND: u8 = 1;
/// An entry that changes the membership.
pub(crate) const MEMBERSHIP: u8 = 2;
/// Term, vote (its eight bytes) and, as its index, the last entry known as committed.
pub(crate) const STATE: u8 = 3;
/// The membership as of the entry `index`.
pub(crate) const CONFIGURATION: u8 = 4;
/// The log begins after the entry `index` of `term`.
pub(crate) const BASE: u8 = 5;

layout! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct RecordHeader {
        pub(crate) kind: u8 = 4,
        pub(crate) term: u64 = 8,
        pub(crate) index: u64 = 16,
        /// Every byte of the file before this offset was durable when this record was written. So a bad stretch before it is
        /// rot; one at or after it may be a torn write that nobody was told of.
        pub(crate) synced_to: u64 = 24,
        pub(crate) len_bytes: u32 = 32,
        pub(crate) crc: u32 = 36,
    }
}

pub(crate) fn padded(len_bytes: u64) -> u64 {
    len_bytes.next_multiple_of(8)
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

impl RecordHeader {
    pub(crate) fn total_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES + padded(u64::from(self.len_bytes))
    }

    pub(crate) fn encode(&self, place: RecordPlace, offset: u64) -> [u8; RECORD_HEADER_BYTES as usize] {
        assert!(offset.is_multiple_of(8) && offset >= FILE_HEADER_BYTES, "no record begins at {offset}");
        assert!(self.synced_to <= offset, "{} is durable before it is written", self.synced_to);
        let mut b = [0; RECORD_HEADER_BYTES as usize];
        RECORD_MAGIC.put(&mut b);
        self.put(&mut b);
        place.seal(&b[..SEAL_AT], offset).put(&mut b[SEAL_AT..]);
        b
    }

    /// Decodes the record at `offset` of a file's bytes. `None` unless it is complete and valid.
    pub(crate) fn decode(file: &[u8], place: RecordPlace, offset: u64) -> Option<(Self, &[u8])> {
        let bytes = file.get(usize::try_from(offset).ok()?..)?;
        let b: &[u8; RECORD_HEADER_BYTES as usize] = bytes.first_chunk()?;
        let sealed = u32::take(&b[SEAL_AT..]) == place.seal(&b[..SEAL_AT], offset);
        if !b.starts_with(&RECORD_MAGIC) || !sealed || !(COMMAND..=BASE).contains(&b[4]) {
            return None;
        }
        let header = RecordHeader::take(b);
        let data = bytes.get(RECORD_HEADER_BYTES as usize..)?.get(..header.len_bytes as usize)?;
        let whole = bytes.len() as u64 >= header.total_bytes();
        (whole && crc32c(data) == header.crc).then_some((header, data))
    }
}
