//! Framing: a 32-byte header, a message (Protocol Buffers), a payload of raw bytes (docs/wire.md, section 1).
//!
//! A receiver checks magic, version, lengths and checksums before it allocates memory for what follows (P14).

use bytes::Bytes;
use thiserror::Error;

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 32;
/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TSRA";
/// Version of the frame layout.
pub const FRAME_VERSION: u8 = 1;
/// Bytes at the start of a frame that are the same in every version: magic and version.
pub const START_BYTES: usize = MAGIC.len() + 1;
/// Limit of the message body, in bytes.
pub const MAX_BODY_BYTES: u32 = 16 << 20;
/// Limit of the payload, in bytes.
pub const MAX_PAYLOAD_BYTES: u32 = 64 << 20;

/// Flag: this frame answers the request with the same request id.
pub const FLAG_REPLY: u8 = 1;
/// Flag, with [`FLAG_REPLY`]: the body is an [`crate::Error`].
pub const FLAG_ERROR: u8 = 2;

/// Bytes of the header that its own checksum, the last field, covers.
const CHECKED_BYTES: usize = HEADER_BYTES - size_of::<u32>();

// The header: magic, version, flags, kind, request id, body length, payload length, two checksums.
const _: () = assert!(HEADER_BYTES == MAGIC.len() + 1 + 1 + 2 + 8 + 4 + 4 + 4 + 4);
const _: () = assert!(FLAG_REPLY & FLAG_ERROR == 0);
// The length of a whole frame fits 32 bits.
const _: () = assert!(MAX_BODY_BYTES.checked_add(MAX_PAYLOAD_BYTES).is_some());

/// The header of a frame. All integers are little-endian on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// [`FLAG_REPLY`] | [`FLAG_ERROR`].
    pub flags: u8,
    /// Message kind, see [`crate::message`].
    pub kind: u16,
    /// Chosen by the sender of the request, echoed by the answer. Each direction numbers its own requests.
    pub request_id: u64,
    /// Length of the message in bytes.
    pub body_len: u32,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// crc32c of the message.
    pub body_crc: u32,
}

/// Why a peer's bytes are not a frame. After any of these errors the receiver closes the connection.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// Another protocol.
    #[error(
        "not a tessera frame: starts with {got:02x?}, expected {MAGIC:02x?}; is the address that of a tessera daemon?"
    )]
    Magic {
        /// The first bytes.
        got: [u8; 4],
    },
    /// Another version of the frame layout.
    #[error("frame version {got}, this build speaks {FRAME_VERSION}; run the same release on both sides")]
    Version {
        /// The peer's version.
        got: u8,
    },
    /// The header does not match its checksum.
    #[error("frame header checksum {got:#010x}, expected {expected:#010x}")]
    HeaderChecksum {
        /// In the frame.
        got: u32,
        /// Computed here.
        expected: u32,
    },
    /// The body does not match its checksum.
    #[error("message checksum {got:#010x}, expected {expected:#010x} (kind {kind:#06x})")]
    BodyChecksum {
        /// In the frame.
        got: u32,
        /// Computed here.
        expected: u32,
        /// Message kind.
        kind: u16,
    },
    /// Body or payload exceed their limit.
    #[error("frame of kind {kind:#06x} announces {len} bytes of {part}, at most {limit} are accepted")]
    TooLong {
        /// Message kind.
        kind: u16,
        /// "body" or "payload".
        part: &'static str,
        /// Announced length.
        len: u32,
        /// The limit.
        limit: u32,
    },
    /// The body is not a message of its kind.
    #[error("message of kind {kind:#06x} cannot be decoded: {why}")]
    Body {
        /// Message kind.
        kind: u16,
        /// The decoder's error.
        why: String,
    },
}

impl FrameHeader {
    /// The 32 bytes of this header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0u8; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4] = FRAME_VERSION;
        out[5] = self.flags;
        out[6..8].copy_from_slice(&self.kind.to_le_bytes());
        out[8..16].copy_from_slice(&self.request_id.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.payload_len.to_le_bytes());
        out[24..28].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&out[..CHECKED_BYTES]);
        out[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Checks the first [`START_BYTES`] of a frame. What follows them depends on the version.
    ///
    /// # Errors
    /// [`FrameError::Magic`] or [`FrameError::Version`].
    pub fn check_start(start: &[u8]) -> Result<(), FrameError> {
        let [a, b, c, d, version] = *start else {
            panic!("{} bytes of a frame's {START_BYTES} first ones", start.len())
        };
        match ([a, b, c, d], version) {
            (magic, _) if magic != MAGIC => Err(FrameError::Magic { got: magic }),
            (_, FRAME_VERSION) => Ok(()),
            (_, got) => Err(FrameError::Version { got }),
        }
    }

    /// Reads a header.
    ///
    /// # Errors
    /// Wrong magic, version or checksum, or lengths beyond the limits.
    pub fn decode(raw: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        FrameHeader::check_start(&raw[..START_BYTES])?;
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let (got, expected) = (word(CHECKED_BYTES), crc_fast::crc32_iscsi(&raw[..CHECKED_BYTES]));
        if got != expected {
            return Err(FrameError::HeaderChecksum { got, expected });
        }
        let header = FrameHeader {
            flags: raw[5],
            kind: u16::from_le_bytes([raw[6], raw[7]]),
            request_id: u64::from(word(8)) | u64::from(word(12)) << 32,
            body_len: word(16),
            payload_len: word(20),
            body_crc: word(24),
        };
        let limit = |part, len, limit| match len > limit {
            true => Err(FrameError::TooLong { kind: header.kind, part, len, limit }),
            false => Ok(()),
        };
        limit("body", header.body_len, MAX_BODY_BYTES)?;
        limit("payload", header.payload_len, MAX_PAYLOAD_BYTES)?;
        Ok(header)
    }

    /// Checks a body against the header's checksum.
    ///
    /// # Errors
    /// [`FrameError::BodyChecksum`].
    pub fn check_body(&self, body: &[u8]) -> Result<(), FrameError> {
        let expected = crc_fast::crc32_iscsi(body);
        match expected == self.body_crc {
            true => Ok(()),
            false => Err(FrameError::BodyChecksum { got: self.body_crc, expected, kind: self.kind }),
        }
    }
}

/// A frame as received. The checksums of header and body are verified; the payload's reader verifies the payload, with
/// checksums that the message carries.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The header.
    pub header: FrameHeader,
    /// The encoded message.
    pub body: Bytes,
    /// The payload.
    pub payload: Bytes,
    /// crc32c of the payload's pieces, if the receiver computes them while the bytes arrive; else empty.
    pub sums: Vec<u32>,
}

/// Header and body of a frame in one buffer, to be written before `payload_len` bytes of payload.
pub fn encode_message(
    kind: u16,
    flags: u8,
    request_id: u64,
    message: &impl prost::Message,
    payload_len: u32,
) -> Vec<u8> {
    encode_raw(kind, flags, request_id, &message.encode_to_vec(), payload_len)
}

/// As [`encode_message`], for an encoded message.
pub fn encode_raw(kind: u16, flags: u8, request_id: u64, body: &[u8], payload_len: u32) -> Vec<u8> {
    assert!(body.len() <= u32::MAX as usize, "message of kind {kind:#06x} has {} bytes", body.len());
    let body_crc = crc_fast::crc32_iscsi(body);
    let header = FrameHeader { flags, kind, request_id, body_len: body.len() as u32, payload_len, body_crc };
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(body);
    out
}

/// Decodes a message body.
///
/// # Errors
/// [`FrameError::Body`], naming the kind.
pub fn decode_message<M: prost::Message + Default>(kind: u16, body: &[u8]) -> Result<M, FrameError> {
    M::decode(body).map_err(|e| FrameError::Body { kind, why: e.to_string() })
}
