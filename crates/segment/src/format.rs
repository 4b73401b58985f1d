//! The formats of segments and records: docs/formats.md, section 2. Only this module knows field offsets.

use tessera_disk::record::{RecordPlace, bytes_at, u32_at, u64_at};

use crate::index::FragmentId;

/// Bytes of a segment header.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;
/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: u64 = 128;
/// The version this code writes and reads.
pub const SEGMENT_VERSION: u32 = 1;

const SEGMENT_MAGIC: [u8; 8] = *b"TESSSEGM";
/// Highest offset that `synced_to` can hold; far above any segment size.
pub(crate) const OFFSET_MAX: u64 = (u32::MAX as u64) * ALIGN;
/// The first bytes of each record.
pub(crate) const RECORD_MAGIC: [u8; 4] = *b"TREC";
/// Records begin at multiples of this.
pub(crate) const ALIGN: u64 = 8;
const SEGMENT_CRC_AT: usize = 72;

// docs/formats.md, section 2: the fields fill the headers without gaps, records are aligned, and `synced_to` can hold every offset.
const _: () =
    assert!(SEGMENT_CRC_AT == 8 + 4 + 4 + 16 + 16 + 8 + 8 + 8, "magic, version, zeros, ids, number, limit, sequence");
const _: () = assert!(SEGMENT_CRC_AT + 4 <= SEGMENT_HEADER_BYTES as usize);
const _: () = assert!(
    RECORD_HEADER_BYTES == 4 + 1 + 1 + 2 + 5 * 4 + 4 * 8 + 32 + 2 * 8 + 2 * 4 + 8 + 4,
    "docs/formats.md, section 2.2"
);
const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(ALIGN) && RECORD_HEADER_BYTES.is_multiple_of(ALIGN));
const _: () = assert!(OFFSET_MAX / ALIGN <= u32::MAX as u64, "`synced_to` has 32 bits");
const _: () = assert!(OFFSET_MAX > 2 * (RECORD_HEADER_BYTES + 2 * u32::MAX as u64), "the longest record fits twice");
const _: () = assert!(SEGMENT_VERSION == 1, "a new version needs a reader of the old one");

/// Header of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Cluster it was written in.
    pub cluster_id: [u8; 16],
    /// Disk it was written on.
    pub disk_uuid: [u8; 16],
    /// Segment number, never reused on this disk.
    pub number: u64,
    /// The segment is sealed before it exceeds this many bytes.
    pub size_limit_bytes: u64,
    /// All records of the segment have sequences above this.
    pub after_sequence: u64,
}

/// Why a segment header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    Damaged,
    Version(u32),
}

impl SegmentHeader {
    /// Encodes the 4,096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.number > 0, "segments are numbered from 1");
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES as usize];
        bytes[0..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.cluster_id);
        bytes[32..48].copy_from_slice(&self.disk_uuid);
        bytes[48..56].copy_from_slice(&self.number.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.size_limit_bytes.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.after_sequence.to_le_bytes());
        let crc = tessera_accel::checksum::crc32c(&bytes[..SEGMENT_CRC_AT]);
        bytes[SEGMENT_CRC_AT..SEGMENT_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        if bytes.len() < SEGMENT_CRC_AT + 4 || bytes[0..8] != SEGMENT_MAGIC {
            return Err(HeaderFault::Damaged);
        }
        if u32_at(bytes, SEGMENT_CRC_AT) != tessera_accel::checksum::crc32c(&bytes[..SEGMENT_CRC_AT]) {
            return Err(HeaderFault::Damaged);
        }
        match u32_at(bytes, 8) {
            SEGMENT_VERSION => Ok(SegmentHeader {
                cluster_id: bytes_at(bytes, 16),
                disk_uuid: bytes_at(bytes, 32),
                number: u64_at(bytes, 48),
                size_limit_bytes: u64_at(bytes, 56),
                after_sequence: u64_at(bytes, 64),
            }),
            other => Err(HeaderFault::Version(other)),
        }
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

/// Properties of the record and its chunk, apart from identity and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordMeta {
    /// Encoding of the chunk; 0: plain.
    pub encoding: u8,
    /// Placement group.
    pub pg_id: u64,
    /// Session that wrote it; 0 for repair and moves.
    pub session_id: u64,
    /// Domain of the chunk.
    pub domain: u32,
    /// Redundancy class of the chunk.
    pub class_id: u32,
    /// BLAKE3-256 of the chunk.
    pub chunk_hash: [u8; 32],
    /// Length of the chunk in bytes.
    pub chunk_len_bytes: u64,
    /// Group epoch it was written under.
    pub epoch: u64,
    /// Time of the write, in ms since 1970. For diagnosis; nothing depends on it.
    pub written_ms: u64,
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
        b[0..4].copy_from_slice(&RECORD_MAGIC);
        b[4] = match self.kind {
            RecordKind::Fragment => 1,
            RecordKind::Delete => 2,
        };
        b[5] = self.meta.encoding;
        b[6..8].copy_from_slice(&self.id.fragment.to_le_bytes());
        b[8..16].copy_from_slice(&self.id.chunk_id.to_le_bytes());
        b[16..24].copy_from_slice(&self.meta.pg_id.to_le_bytes());
        b[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        b[32..40].copy_from_slice(&self.meta.session_id.to_le_bytes());
        b[40..44].copy_from_slice(&self.meta.domain.to_le_bytes());
        b[44..48].copy_from_slice(&self.meta.class_id.to_le_bytes());
        b[48..80].copy_from_slice(&self.meta.chunk_hash);
        b[80..88].copy_from_slice(&self.meta.chunk_len_bytes.to_le_bytes());
        b[88..96].copy_from_slice(&self.meta.epoch.to_le_bytes());
        b[96..100].copy_from_slice(&self.data_len.to_le_bytes());
        b[100..104].copy_from_slice(&self.groups_len.to_le_bytes());
        b[104..108].copy_from_slice(&self.data_crc.to_le_bytes());
        b[108..112].copy_from_slice(&self.groups_crc.to_le_bytes());
        b[112..120].copy_from_slice(&self.meta.written_ms.to_le_bytes());
        b[120..124].copy_from_slice(&((self.synced_to / ALIGN) as u32).to_le_bytes());
        let crc = place.seal(&b[..124], offset);
        b[124..128].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Decodes a header and checks that it was written at this place. Does not compare its lengths with the file's.
    pub(crate) fn decode(bytes: &[u8], place: RecordPlace, offset: u64) -> Option<Self> {
        let b: &[u8; RECORD_HEADER_BYTES as usize] = bytes.first_chunk()?;
        if b[0..4] != RECORD_MAGIC || u32_at(b, 124) != place.seal(&b[..124], offset) {
            return None;
        }
        let kind = match b[4] {
            1 => RecordKind::Fragment,
            2 => RecordKind::Delete,
            _ => return None,
        };
        let header = RecordHeader {
            kind,
            id: FragmentId { chunk_id: u64_at(b, 8), fragment: u16::from_le_bytes(bytes_at(b, 6)) },
            meta: RecordMeta {
                encoding: b[5],
                pg_id: u64_at(b, 16),
                session_id: u64_at(b, 32),
                domain: u32_at(b, 40),
                class_id: u32_at(b, 44),
                chunk_hash: bytes_at(b, 48),
                chunk_len_bytes: u64_at(b, 80),
                epoch: u64_at(b, 88),
                written_ms: u64_at(b, 112),
            },
            sequence: u64_at(b, 24),
            data_len: u32_at(b, 96),
            groups_len: u32_at(b, 100),
            data_crc: u32_at(b, 104),
            groups_crc: u32_at(b, 108),
            synced_to: u64::from(u32_at(b, 120)) * ALIGN,
        };
        let empty = header.data_len == 0 && header.groups_len == 0;
        (header.groups_len.is_multiple_of(32) && (kind == RecordKind::Fragment || empty)).then_some(header)
    }
}

/// Bytes of a record with groups and data of these lengths.
pub(crate) fn record_bytes(groups_len: u64, data_len: u64) -> u64 {
    (RECORD_HEADER_BYTES + groups_len + data_len).next_multiple_of(ALIGN)
}
