//! Records of a spool log, byte by byte (docs/formats.md, section 7). This module does no I/O.
//!
//! Nothing read back is trusted. A header is valid only if its checksum covers its position and its log, a payload only
//! if it has the checksum in its header (P14).

use tessera_accel::checksum::{crc32c, crc32c_append};

/// Bytes of a record before its payload.
pub const HEADER_BYTES: usize = 32;
/// Longest payload: the bytes to read and check for any byte of it.
pub const MAX_PAYLOAD_BYTES: usize = 128 << 10;
/// First bytes of every record.
pub const MAGIC: [u8; 4] = *b"TSPL";

// magic 4, kind 1, zeros 3, value 8, length 4, crc 4, zeros 4, seal 4
const _: () = assert!(HEADER_BYTES == 4 + 1 + 3 + 8 + 4 + 4 + 4 + 4);

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// First record of a log. Value: the log's number; payload: [`super::replay::LogOrigin`].
    Begin,
    /// Bytes of the file. Value: their offset; payload: the bytes.
    Write,
    /// The file's length changed. Value: the new length.
    Length,
    /// The file was closed, so everything before this record is acknowledged. Value: modification time, ns since 1970;
    /// payload: the file's length.
    Closed,
    /// The store has the file as of an earlier close. Value: the version; payload: end of that close's record in the
    /// log, and the store's name of the content ([`tessera_wire::Attr::content`]).
    Stored,
    /// From here on, the store may have the file as of an earlier close. Value: the content's name in the store;
    /// payload: end of that close's record in the log.
    Pushed,
}

const KINDS: [Kind; 6] = [Kind::Begin, Kind::Write, Kind::Length, Kind::Closed, Kind::Stored, Kind::Pushed];

/// A record without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind.
    pub kind: Kind,
    /// See [`Kind`].
    pub value: u64,
    /// Length of the payload.
    pub len_bytes: u32,
    /// Checksum of the payload.
    pub crc: u32,
}

impl Header {
    /// Header of a record with this payload.
    pub fn new(kind: Kind, value: u64, payload: &[u8]) -> Header {
        Header { kind, value, len_bytes: payload.len() as u32, crc: crc32c(payload) }
    }

    /// Length of the whole record.
    pub fn record_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.len_bytes)
    }

    /// Encodes it for `position` in log number `log`.
    pub fn encode(&self, log: u64, position: u64) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        assert!(
            self.len_bytes as usize <= MAX_PAYLOAD_BYTES,
            "a record of {} bytes cannot be read back",
            self.len_bytes
        );
        assert!((self.kind == Kind::Begin) == (position == 0), "a log has one first record");
        out[4] = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u8 + 1;
        out[8..16].copy_from_slice(&self.value.to_le_bytes());
        out[16..20].copy_from_slice(&self.len_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.crc.to_le_bytes());
        let seal = seal(&out, log, position);
        out[28..].copy_from_slice(&seal.to_le_bytes());
        out
    }

    /// Decodes it; none: it was not written at `position` of log number `log`.
    pub fn decode(bytes: &[u8; HEADER_BYTES], log: u64, position: u64) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let value = u64::from(word(8)) | u64::from(word(12)) << 32;
        let kind = *KINDS.get(usize::from(bytes[4]).checked_sub(1)?)?;
        // A log's first record names the log.
        let log = if kind == Kind::Begin { value } else { log };
        let header = Header { kind, value, len_bytes: word(16), crc: word(20) };
        let good = bytes[..4] == MAGIC
            && word(28) == seal(bytes, log, position)
            && header.len_bytes as usize <= MAX_PAYLOAD_BYTES
            && (kind == Kind::Begin) == (position == 0);
        good.then_some(header)
    }

    /// Whether `payload` matches the header's length and checksum.
    pub fn fits(&self, payload: &[u8]) -> bool {
        payload.len() == self.len_bytes as usize && crc32c(payload) == self.crc
    }
}

/// Binds a header to its position: a record of another log, or file content that looks like a record, does not pass.
fn seal(header: &[u8; HEADER_BYTES], log: u64, position: u64) -> u32 {
    crc32c_append(crc32c_append(crc32c(&header[..28]), &position.to_le_bytes()), &log.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_valid_at_one_position_of_one_log_and_with_every_bit_intact() {
        for kind in KINDS {
            let (log, position) = (7, if kind == Kind::Begin { 0 } else { 96 });
            let value = if kind == Kind::Begin { log } else { u64::MAX - 3 };
            let header = Header::new(kind, value, b"payload");
            let bytes = header.encode(log, position);
            assert_eq!(Header::decode(&bytes, log, position), Some(header));
            assert!(header.fits(b"payload") && !header.fits(b"payloae") && !header.fits(b"payloa"));
            assert_eq!(Header::decode(&bytes, log, position + 1), None, "another position");
            assert!(kind == Kind::Begin || Header::decode(&bytes, 8, position).is_none(), "another log");
            for bit in 0..HEADER_BYTES * 8 {
                let mut bent = bytes;
                bent[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Header::decode(&bent, log, position), None, "bit {bit} of {kind:?}");
            }
        }
    }
}
