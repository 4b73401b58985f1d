//! The write-ahead log: batches in frames (docs/formats.md, section 5.4).
//!
//! Each frame holds its sequence, the header checksum of the previous frame, and the newest sequence that was durable
//! when it was written. The chain of checksums keeps leftovers of an earlier, failed write from passing as a
//! continuation. Replay takes a prefix of the history: it ends at the first frame that is incomplete or out of
//! sequence. If a later frame says that more was durable, replay reports damage.

use std::sync::Arc;

use tessera_disk::record::{Field, HeaderFault, HeaderFormat, numbered_name};
use tessera_disk::{DiskFile, OpenMode, layout};

use crate::buffer::{Change, SmallKey};
use crate::cell::{StoreContext, read_exact};
use crate::error::Error;
use crate::index::hash_key;
use crate::page::{self, Content, crc32c};

const FILE_HEADER_BYTES: usize = 32;
const FORMAT: HeaderFormat = HeaderFormat { magic: *b"CONAWLOG", version: 1, crc_at: FILE_HEADER_BYTES - 4 };
const FRAME_MAGIC: [u8; 4] = *b"CWFR";
const FRAME_HEADER_BYTES: usize = 40;
const FRAME_CRC_AT: usize = FRAME_HEADER_BYTES - 4;

// docs/formats.md, section 5.4: magic, length, sequence, durable sequence, chain, payload checksum, zeros, checksum.
const _: () =
    assert!(FRAME_HEADER_BYTES == 4 + 4 + 8 + 8 + 4 + 4 + 4 + 4 && FILE_HEADER_BYTES == 8 + 4 + 4 + 8 + 4 + 4);
const _: () = assert!(
    FRAME_HEADER_BYTES.is_multiple_of(8) && FILE_HEADER_BYTES.is_multiple_of(8),
    "frames begin at multiples of 8"
);

pub(crate) fn log_name(number: u64) -> String {
    numbered_name(number, ".log")
}

layout! {
    struct FileHeader {
        number: u64 = 16,
    }
}

layout! {
    /// What precedes a batch, apart from magic and checksum.
    struct Frame {
        len: u32 = 4,
        seq: u64 = 8,
        /// The newest sequence that was durable when the frame was written.
        durable_seq: u64 = 16,
        /// Header checksum of the previous frame.
        chain: u32 = 24,
        payload_crc: u32 = 28,
    }
}

/// Mixed into a frame's checksum, so that a frame is valid only at its own offset of its own log.
fn place(number: u64, offset: u64) -> u32 {
    page::place(number ^ offset.rotate_left(32), offset as u32)
}

/// The current log.
pub(crate) struct Log {
    pub(crate) number: u64,
    file: Arc<dyn DiskFile>,
    end: u64,
    /// Minimum length of the file. Writes within it rarely change file-system metadata; otherwise each batch would, and
    /// would wait for the journal's commit.
    len: u64,
    /// Bytes by which the file grows.
    step_bytes: u64,
    /// Header checksum of the last frame.
    chain: u32,
    /// Written since the last sync.
    pub(crate) dirty: bool,
    /// The file's name may not be durable.
    pub(crate) name_dirty: bool,
}

impl Log {
    /// Creates an empty log that grows by `step_bytes`.
    pub(crate) fn create(context: &StoreContext, number: u64, step_bytes: u64) -> Result<Self, Error> {
        let path = context.path(&log_name(number));
        let file = context.disk.open(&path, OpenMode::CreateNew)?;
        let header: [u8; FILE_HEADER_BYTES] = FORMAT.encode(&FileHeader { number });
        if let Err(e) = file.write_at(0, &header) {
            let _ = context.disk.remove(&path);
            return Err(e.into());
        }
        let end = FILE_HEADER_BYTES as u64;
        Ok(Log { number, file, end, len: end, step_bytes, chain: 0, dirty: true, name_dirty: true })
    }

    /// Appends batches, given as sequences and encoded changes, in one write. After an error the log holds none of
    /// them, unless a crash follows before the next sync.
    pub(crate) fn append<'a>(
        &mut self,
        batches: impl Iterator<Item = (u64, &'a [u8])>,
        durable_seq: u64,
        out: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        out.clear();
        let mut chain = self.chain;
        for (seq, payload) in batches {
            let at = out.len();
            assert!(seq > durable_seq, "batch {seq} is durable before it is written");
            assert!(payload.len() <= u32::MAX as usize, "a batch of {} bytes", payload.len());
            let offset = self.end + at as u64;
            let frame = Frame { len: payload.len() as u32, seq, durable_seq, chain, payload_crc: crc32c(payload) };
            let mut header = [0; FRAME_HEADER_BYTES];
            FRAME_MAGIC.put(&mut header);
            frame.put(&mut header);
            chain = crc32c(&header[..FRAME_CRC_AT]) ^ place(self.number, offset);
            chain.put(&mut header[FRAME_CRC_AT..]);
            out.extend_from_slice(&header);
            out.extend_from_slice(payload);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        if out.is_empty() {
            return Ok(0);
        }
        assert!(out.len().is_multiple_of(8) && self.end.is_multiple_of(8), "frames begin at multiples of 8");
        assert!(self.end <= self.len, "the log ends at {}, behind its file", self.end);
        // A failed write may have left bytes: the next sync must cover their removal.
        self.dirty = true;
        let end = self.end + out.len() as u64;
        if end > self.len {
            // Replay stops at zeros, since they are no frame. If the disk has no room for them, the batch may still
            // fit.
            self.len = end + self.step_bytes;
            let _ = self.file.truncate(self.len);
        }
        if let Err(e) = self.file.write_at(self.end, out) {
            let _ = self.file.truncate(self.end);
            self.len = self.end;
            return Err(e.into());
        }
        self.end += out.len() as u64;
        self.chain = chain;
        Ok(out.len() as u64)
    }

    /// Bytes of the frames written.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }

    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.file.sync_data()?;
        self.dirty = false;
        Ok(())
    }
}

/// Encodes a batch's changes into `out`.
pub(crate) fn encode_changes(changes: &[Change], out: &mut Vec<u8>) {
    changes.iter().for_each(|c| page::put_record(out, c.key.as_bytes(), c.value.as_deref()));
}

fn decode_changes(bytes: &[u8]) -> Option<Vec<Change>> {
    let (mut changes, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let spot = page::spot(bytes, at)?;
        let key = spot.key(bytes);
        let value = match spot.content(bytes)? {
            Content::Delete => None,
            Content::Value(value) => Some(value.into()),
            Content::Apart(_) => return None,
        };
        changes.push(Change { key: SmallKey::new(key), hash: hash_key(key), value });
        at = spot.end();
    }
    Some(changes)
}

/// The frame header at `at` and its checksum, if they fit.
fn frame_at(bytes: &[u8], at: usize, number: u64) -> Option<(Frame, u32)> {
    let header: &[u8; FRAME_HEADER_BYTES] = bytes.get(at..)?.first_chunk()?;
    let crc = u32::take(&header[FRAME_CRC_AT..]);
    let sealed = crc32c(&header[..FRAME_CRC_AT]) ^ place(number, at as u64) == crc;
    (header.starts_with(&FRAME_MAGIC) && sealed).then(|| (Frame::take(header), crc))
}

/// Reads one log for replay.
pub(crate) struct LogReader {
    pub(crate) number: u64,
    pub(crate) path: String,
    /// Its header is that of this log. If not, a crash has interrupted the log's creation, or the header is damaged.
    pub(crate) has_header: bool,
    bytes: Vec<u8>,
    at: usize,
    chain: u32,
}

impl LogReader {
    /// Reads a log, and makes its content durable first: after a kill, the system's cache may hold bytes that the
    /// medium does not.
    pub(crate) fn open(context: &StoreContext, number: u64) -> Result<Self, Error> {
        let path = context.path(&log_name(number));
        let file = context.disk.open(&path, OpenMode::Existing)?;
        file.sync_data()?;
        let mut bytes = vec![0; file.len()? as usize];
        read_exact(&*file, &path, 0, &mut bytes)?;
        let has_header = match FORMAT.decode(&bytes) {
            Ok(FileHeader { number: found }) => found == number,
            Err(fault @ HeaderFault::Version(_)) => return Err(Error::of_header(fault, "log", &FORMAT, &path, 0)),
            Err(_) => false,
        };
        Ok(LogReader { number, path, has_header, bytes, at: FILE_HEADER_BYTES, chain: 0 })
    }

    /// The sequence of the next frame, if it is complete.
    pub(crate) fn peek(&self) -> Option<u64> {
        self.complete().map(|(frame, _)| frame.seq)
    }

    /// The next frame, if it is complete, and its header's checksum.
    fn complete(&self) -> Option<(Frame, u32)> {
        let (frame, crc) = frame_at(&self.bytes, self.at, self.number).filter(|(f, _)| f.chain == self.chain)?;
        let payload = self.bytes[self.at + FRAME_HEADER_BYTES..].get(..frame.len as usize)?;
        (crc32c(payload) == frame.payload_crc).then_some((frame, crc))
    }

    /// The next batch and its sequence; `None` if no complete frame follows.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Vec<Change>)>, Error> {
        let Some((frame, crc)) = self.complete() else { return Ok(None) };
        let from = self.at + FRAME_HEADER_BYTES;
        let end = from + frame.len as usize;
        let changes = decode_changes(&self.bytes[from..end]).ok_or_else(|| {
            Error::damaged(&self.path, self.at as u64, "a batch is malformed although its checksum fits")
        })?;
        self.at = end.next_multiple_of(8);
        self.chain = crc;
        Ok(Some((frame.seq, changes)))
    }

    pub(crate) fn offset(&self) -> u64 {
        self.at as u64
    }

    /// The newest durable sequence that any frame from here on names.
    pub(crate) fn durable_later(&self) -> u64 {
        let from = self.at.next_multiple_of(8);
        (from..self.bytes.len())
            .step_by(8)
            .filter_map(|at| frame_at(&self.bytes, at, self.number))
            .map(|(frame, _)| frame.durable_seq)
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// P14: an unknown version gives an error with both numbers, not damage.
    #[test]
    fn a_newer_log_is_told_from_a_torn_one() {
        let disk: Arc<dyn tessera_disk::Disk> = Arc::new(tessera_disk::SimDisk::new(0));
        let context = StoreContext::new(disk.clone(), "", true);
        drop(Log::create(&context, 7, 64).unwrap());
        let file = disk.open(&log_name(7), OpenMode::Existing).unwrap();
        let mut header = [0; FILE_HEADER_BYTES];
        file.read_at(0, &mut header).unwrap();
        header[8] = 2;
        let crc = crc32c(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        file.write_at(0, &header).unwrap();
        let error = LogReader::open(&context, 7).err().unwrap();
        assert!(error.to_string().contains("format version 2, but this program knows 1"), "{error}");
    }

    proptest! {
        /// P14: flipped bits end the replay or give an error. They never cause a panic or a wrong batch.
        #[test]
        fn damaged_logs_give_a_prefix(flips in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 0..4)) {
            let disk: Arc<dyn tessera_disk::Disk> = Arc::new(tessera_disk::SimDisk::new(0));
            let context = StoreContext::new(disk.clone(), "", true);
            let mut log = Log::create(&context, 7, 64).unwrap();
            let mut out = Vec::new();
            let payloads: Vec<Vec<u8>> = (1..20_u8).map(|i| {
                let mut payload = Vec::new();
                page::put_record(&mut payload, &[b'k', i], Some(&vec![i; usize::from(i) * 3]));
                payload
            }).collect();
            log.append(payloads.iter().enumerate().map(|(i, p)| (i as u64 + 1, &p[..])), 0, &mut out).unwrap();
            let file = disk.open(&log_name(7), OpenMode::Existing).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_at(0, &mut bytes).unwrap();
            for (index, bit) in flips {
                let at = index.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            file.write_at(0, &bytes).unwrap();
            if let Ok(mut reader) = LogReader::open(&context, 7)
                && reader.has_header
            {
                let mut expected = 1;
                while let Ok(Some((seq, changes))) = reader.next() {
                    prop_assert_eq!(seq, expected);
                    prop_assert_eq!(changes[0].value.as_deref(), Some(&vec![seq as u8; seq as usize * 3][..]));
                    expected += 1;
                }
                let _ = reader.durable_later();
            }
        }
    }
}
