//! The formats of segments and records: docs/formats.md, section 2. Only this module knows field offsets.

use tessera_disk::layout;
use tessera_disk::record::{Field, HeaderFault, HeaderFormat, RecordPlace};

use crate::index::FragmentId;

/// Bytes of a segment header.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;
/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: u64 = 128;
/// The version this code writes and reads.
pub const SEGMENT_VERSION: u32 = 1;

/// Highest offset that `synced_to` can hold; far above any segment size.
pub(crate) const OFFSET_MAX: u64 = (u32::MAX as u64) * ALIGN;
/// Sequences are below this, so that a next one always exists. No disk lives to see so many.
pub(crate) const SEQUENCES_END: u64 = 1 << 63;
/// The first bytes of each record.
pub(crate) const RECORD_MAGIC: [u8; 4] = *b"TREC";
/// Records begin at multiples of this.
pub(crate) const ALIGN: u64 = 8;
const SEGMENT: HeaderFormat = HeaderFormat { magic: *b"TESSSEGM", version: SEGMENT_VERSION, crc_at: 72 };
const RECORD_CRC_AT: usize = RECORD_HEADER_BYTES as usize - 4;

// docs/formats.md, section 2: the fields fill the headers without gaps, records are aligned, and `synced_to` can hold every offset.
const _: () =
    assert!(SEGMENT.crc_at == 8 + 4 + 4 + 16 + 16 + 8 + 8 + 8, "magic, version, zeros, ids, number, limit, sequence");
const _: () = assert!(SEGMENT.crc_at + 4 <= SEGMENT_HEADER_BYTES as usize);
const _: () = assert!(
    RECORD_HEADER_BYTES == 4 + 1 + 1 + 2 + 5 * 4 + 4 * 8 + 32 + 2 * 8 + 2 * 4 + 8 + 4,
    "docs/formats.md, section 2.2"
);
const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(ALIGN) && RECORD_HEADER_BYTES.is_multiple_of(ALIGN));
const _: () = assert!(OFFSET_MAX / ALIGN <= u32::MAX as u64, "`synced_to` has 32 bits");
const _: () = assert!(OFFSET_MAX > 2 * (RECORD_HEADER_BYTES + 2 * u32::MAX as u64), "the longest record fits twice");
const _: () = assert!(SEGMENT_VERSION == 1, "a new version needs a reader of the old one");

layout! {
    /// Header of a segment file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SegmentHeader {
        /// Cluster it was written in.
        pub cluster_id: [u8; 16] = 16,
        /// Disk it was written on.
        pub disk_uuid: [u8; 16] = 32,
        /// Segment number, never reused on this disk.
        pub number: u64 = 48,
        /// The segment is sealed before it exceeds this many bytes.
        pub size_limit_bytes: u64 = 56,
        /// All records of the segment have sequences above this.
        pub after_sequence: u64 = 64,
    }
}

impl SegmentHeader {
    /// Encodes the 4,096 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        assert!(self.number > 0, "segments are numbered from 1");
        SEGMENT.encode(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        SEGMENT.decode(bytes)
    }
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A fragment; groups and data follow.
    Fragment,
    /// A delete record of a fragment.
    Delete,
}

layout! {
    /// Properties of the record and its chunk, apart from identity and bytes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RecordMeta {
        /// Encoding of the chunk; 0: plain.
        pub encoding: u8 = 5,
        /// Placement group.
        pub pg_id: u64 = 16,
        /// Session that wrote it; 0 for repair and moves.
        pub session_id: u64 = 32,
        /// Domain of the chunk.
        pub domain: u32 = 40,
        /// Redundancy class of the chunk.
        pub class_id: u32 = 44,
        /// BLAKE3-256 of the chunk.
        pub chunk_hash: [u8; 32] = 48,
        /// Length of the chunk in bytes.
        pub chunk_len_bytes: u64 = 80,
        /// Group epoch it was written under.
        pub epoch: u64 = 88,
        /// Time of the write, in ms since 1970. For diagnosis; nothing depends on it.
        pub written_ms: u64 = 112,
    }
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Fragment or delete.
    pub kind: RecordKind,
    /// The fragment's identity.
    pub id: FragmentId,
    /// Properties of the chunk.
    pub meta: RecordMeta,
    /// Sequence number; grows with every record written on this disk.
    pub sequence: u64,
    /// Length of the data in bytes.
    pub data_len: u32,
    /// Length of the group hashes in bytes.
    pub groups_len: u32,
    /// crc32c of the data.
    pub data_crc: u32,
    /// crc32c of the groups.
    pub groups_crc: u32,
    /// Every byte of the segment before this offset was durable when this record was written. So a bad stretch before
    /// it is rot; one at or after it may be a torn write that was never acknowledged.
    pub synced_to: u64,
}

impl RecordHeader {
    /// Bytes from the start of this record to the start of the next.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        record_bytes(u64::from(self.groups_len), u64::from(self.data_len))
    }

    pub(crate) fn encode(&self, place: RecordPlace, offset: u64) -> [u8; RECORD_HEADER_BYTES as usize] {
        assert!(
            offset.is_multiple_of(ALIGN) && offset >= SEGMENT_HEADER_BYTES,
            "{}: no record begins at {offset}",
            self.id
        );
        assert!(
            self.synced_to <= offset && self.synced_to.is_multiple_of(ALIGN),
            "{}: {} is durable",
            self.id,
            self.synced_to
        );
        assert!(self.synced_to <= OFFSET_MAX, "{}: the segment is too long", self.id);
        assert!(self.groups_len.is_multiple_of(32), "{}: {} bytes of group hashes", self.id, self.groups_len);
        assert!(
            self.kind == RecordKind::Fragment || self.groups_len + self.data_len == 0,
            "{}: a delete has no payload",
            self.id
        );
        assert!(self.sequence > 0, "{}: sequences begin at 1", self.id);
        let mut b = [0; RECORD_HEADER_BYTES as usize];
        RECORD_MAGIC.put(&mut b);
        b[4] = match self.kind {
            RecordKind::Fragment => 1,
            RecordKind::Delete => 2,
        };
        self.id.fragment.put(&mut b[6..]);
        self.id.chunk_id.put(&mut b[8..]);
        self.meta.put(&mut b);
        self.sequence.put(&mut b[24..]);
        self.data_len.put(&mut b[96..]);
        self.groups_len.put(&mut b[100..]);
        self.data_crc.put(&mut b[104..]);
        self.groups_crc.put(&mut b[108..]);
        ((self.synced_to / ALIGN) as u32).put(&mut b[120..]);
        place.seal(&b[..RECORD_CRC_AT], offset).put(&mut b[RECORD_CRC_AT..]);
        b
    }

    /// Decodes a header and checks that it was written at this place. Does not compare its lengths with the file's.
    pub(crate) fn decode(bytes: &[u8], place: RecordPlace, offset: u64) -> Option<Self> {
        let b: &[u8; RECORD_HEADER_BYTES as usize] = bytes.first_chunk()?;
        let sealed = u32::take(&b[RECORD_CRC_AT..]) == place.seal(&b[..RECORD_CRC_AT], offset);
        if !b.starts_with(&RECORD_MAGIC) || !sealed {
            return None;
        }
        let kind = match b[4] {
            1 => RecordKind::Fragment,
            2 => RecordKind::Delete,
            _ => return None,
        };
        let header = RecordHeader {
            kind,
            id: FragmentId { chunk_id: u64::take(&b[8..]), fragment: u16::take(&b[6..]) },
            meta: RecordMeta::take(b),
            sequence: u64::take(&b[24..]),
            data_len: u32::take(&b[96..]),
            groups_len: u32::take(&b[100..]),
            data_crc: u32::take(&b[104..]),
            groups_crc: u32::take(&b[108..]),
            synced_to: u64::from(u32::take(&b[120..])) * ALIGN,
        };
        let empty = header.data_len == 0 && header.groups_len == 0;
        (header.sequence < SEQUENCES_END
            && header.groups_len.is_multiple_of(32)
            && (kind == RecordKind::Fragment || empty))
            .then_some(header)
    }
}

/// Bytes of a record with groups and data of these lengths.
pub(crate) fn record_bytes(groups_len: u64, data_len: u64) -> u64 {
    (RECORD_HEADER_BYTES + groups_len + data_len).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P14: the record after one with the last sequence could have none.
    #[test]
    fn a_record_with_the_last_sequence_is_none() {
        let place = RecordPlace { disk_uuid: [9; 16], file: 1 };
        let with = |sequence| RecordHeader {
            kind: RecordKind::Delete,
            id: FragmentId { chunk_id: 1, fragment: 0 },
            meta: RecordMeta::default(),
            sequence,
            data_len: 0,
            groups_len: 0,
            data_crc: 0,
            groups_crc: 0,
            synced_to: 0,
        };
        let read = |sequence| RecordHeader::decode(&with(sequence).encode(place, 4096), place, 4096);
        assert_eq!(read(SEQUENCES_END - 1), Some(with(SEQUENCES_END - 1)));
        assert_eq!((read(SEQUENCES_END), read(u64::MAX)), (None, None));
    }
}
