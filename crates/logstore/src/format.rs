//! The formats of log files and snapshots: docs/formats.md, section 4.

use tessera_disk::record::{RecordPlace, bytes_at, u32_at, u64_at};

pub(crate) const LOG_VERSION: u32 = 1;
/// Bytes of the header of a log file and of a snapshot file.
pub(crate) const FILE_HEADER_BYTES: u64 = 128;
pub(crate) const ENTRY_HEADER_BYTES: u64 = 48;

const FILE_MAGIC: [u8; 8] = *b"TESSCLOG";
const SNAPSHOT_MAGIC: [u8; 8] = *b"TESSSNAP";
const ENTRY_MAGIC: [u8; 4] = *b"TLOG";
const CRC_AT: usize = 104;
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

/// Why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Damaged,
    Version(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) cluster_id: [u8; 16],
    pub(crate) disk_uuid: [u8; 16],
    pub(crate) number: u64,
    /// Highest term seen when the file was created.
    pub(crate) term: u64,
    /// Entries of older files with this or a higher sequence number are void.
    pub(crate) resume_seq: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotHeader {
    pub(crate) cluster_id: [u8; 16],
    pub(crate) disk_uuid: [u8; 16],
    pub(crate) seq: u64,
    pub(crate) term: u64,
    pub(crate) total_bytes: u64,
    pub(crate) hash: [u8; 32],
}

/// Writes magic, version, cluster and disk, which both headers share; [`seal`] sets the checksum.
fn begin(magic: [u8; 8], cluster_id: &[u8; 16], disk_uuid: &[u8; 16]) -> [u8; FILE_HEADER_BYTES as usize] {
    let mut b = [0; FILE_HEADER_BYTES as usize];
    b[0..8].copy_from_slice(&magic);
    b[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
    b[16..32].copy_from_slice(cluster_id);
    b[32..48].copy_from_slice(disk_uuid);
    b
}

fn seal(mut b: [u8; FILE_HEADER_BYTES as usize]) -> [u8; FILE_HEADER_BYTES as usize] {
    let crc = tessera_accel::checksum::crc32c(&b[..CRC_AT]);
    b[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    b
}

fn open(bytes: &[u8], magic: [u8; 8]) -> Result<&[u8; FILE_HEADER_BYTES as usize], Fault> {
    let b: &[u8; FILE_HEADER_BYTES as usize] = bytes.first_chunk().ok_or(Fault::Damaged)?;
    if b[0..8] != magic || u32_at(b, CRC_AT) != tessera_accel::checksum::crc32c(&b[..CRC_AT]) {
        return Err(Fault::Damaged);
    }
    match u32_at(b, 8) {
        LOG_VERSION => Ok(b),
        other => Err(Fault::Version(other)),
    }
}

impl FileHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_BYTES as usize] {
        assert!(self.number > 0 && self.resume_seq > 0, "log file {} from entry {}", self.number, self.resume_seq);
        let mut b = begin(FILE_MAGIC, &self.cluster_id, &self.disk_uuid);
        b[48..56].copy_from_slice(&self.number.to_le_bytes());
        b[56..64].copy_from_slice(&self.term.to_le_bytes());
        b[64..72].copy_from_slice(&self.resume_seq.to_le_bytes());
        seal(b)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let b = open(bytes, FILE_MAGIC)?;
        Ok(FileHeader {
            cluster_id: bytes_at(b, 16),
            disk_uuid: bytes_at(b, 32),
            number: u64_at(b, 48),
            term: u64_at(b, 56),
            resume_seq: u64_at(b, 64),
        })
    }
}

impl SnapshotHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_BYTES as usize] {
        let mut b = begin(SNAPSHOT_MAGIC, &self.cluster_id, &self.disk_uuid);
        b[48..56].copy_from_slice(&self.seq.to_le_bytes());
        b[56..64].copy_from_slice(&self.term.to_le_bytes());
        b[64..72].copy_from_slice(&self.total_bytes.to_le_bytes());
        b[72..104].copy_from_slice(&self.hash);
        seal(b)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let b = open(bytes, SNAPSHOT_MAGIC)?;
        Ok(SnapshotHeader {
            cluster_id: bytes_at(b, 16),
            disk_uuid: bytes_at(b, 32),
            seq: u64_at(b, 48),
            term: u64_at(b, 56),
            total_bytes: u64_at(b, 64),
            hash: bytes_at(b, 72),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Entry,
    /// Records that the replica saw a term; holds no entry.
    Term,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    pub(crate) kind: EntryKind,
    pub(crate) term: u64,
    pub(crate) seq: u64,
    /// Every byte of the file before this offset was durable when this entry was written. So a bad stretch before it is
    /// rot; one at or after it may be a torn write that was never acknowledged.
    pub(crate) synced_to: u64,
    pub(crate) len: u32,
    pub(crate) crc: u32,
}

impl EntryHeader {
    pub(crate) fn total_bytes(&self) -> u64 {
        ENTRY_HEADER_BYTES + padded(u64::from(self.len))
    }

    pub(crate) fn encode(&self, place: RecordPlace, offset: u64) -> [u8; ENTRY_HEADER_BYTES as usize] {
        assert!(offset.is_multiple_of(8) && offset >= FILE_HEADER_BYTES, "no entry begins at {offset}");
        assert!(self.synced_to <= offset, "{} is durable before it is written", self.synced_to);
        assert!((self.kind == EntryKind::Term) == (self.seq == 0), "entries are numbered from 1");
        assert!(self.term > 0 && (self.kind == EntryKind::Entry || self.len == 0), "a term has no bytes");
        let mut b = [0; ENTRY_HEADER_BYTES as usize];
        b[0..4].copy_from_slice(&ENTRY_MAGIC);
        b[4] = match self.kind {
            EntryKind::Entry => 1,
            EntryKind::Term => 2,
        };
        b[8..16].copy_from_slice(&self.term.to_le_bytes());
        b[16..24].copy_from_slice(&self.seq.to_le_bytes());
        b[24..32].copy_from_slice(&self.synced_to.to_le_bytes());
        b[32..36].copy_from_slice(&self.len.to_le_bytes());
        b[36..40].copy_from_slice(&self.crc.to_le_bytes());
        let crc = place.seal(&b[..ENTRY_CRC_AT], offset);
        b[ENTRY_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Decodes the entry at `offset` of a file's bytes. `None` unless it is complete and valid.
    pub(crate) fn decode(file: &[u8], place: RecordPlace, offset: u64) -> Option<Self> {
        let bytes = file.get(offset as usize..)?;
        let b: &[u8; ENTRY_HEADER_BYTES as usize] = bytes.first_chunk()?;
        if b[0..4] != ENTRY_MAGIC || u32_at(b, ENTRY_CRC_AT) != place.seal(&b[..ENTRY_CRC_AT], offset) {
            return None;
        }
        let kind = match b[4] {
            1 => EntryKind::Entry,
            2 => EntryKind::Term,
            _ => return None,
        };
        let header = EntryHeader {
            kind,
            term: u64_at(b, 8),
            seq: u64_at(b, 16),
            synced_to: u64_at(b, 24),
            len: u32_at(b, 32),
            crc: u32_at(b, 36),
        };
        let data = bytes.get(ENTRY_HEADER_BYTES as usize..)?.get(..header.len as usize)?;
        let whole = bytes.len() as u64 >= header.total_bytes();
        (whole && tessera_accel::checksum::crc32c(data) == header.crc).then_some(header)
    }
}
