//! Frames of every kind of message: what is accepted encodes to the same again, and nothing is believed before its checksum fits
//! (docs/wire.md, section 1).

use crate::Target;
use crate::input::{Parts, split};
use crate::proto;
use prost::Message;
use std::fmt::Debug;
use tessera_disk::SplitMix64;
use tessera_wire::consensus::*;
use tessera_wire::data::*;
use tessera_wire::frame::*;
use tessera_wire::meta::*;
use tessera_wire::{Error, Frame, Hello, Kind, Request};

/// See the module.
pub const TARGET: Target = Target {
    name: "frames",
    run,
    seeds,
    adapt,
    runs: 25_000,
    base_bytes: 64 << 10,
    // The smallest field of a message takes two bytes, and becomes a struct of about 200.
    bytes_per_byte: 400,
};

/// Reads each part as a frame.
#[must_use]
pub fn run(input: &[u8]) -> String {
    split(input)
        .iter()
        .map(|part| read(part).unwrap_or_else(|error| format!("{};", shape(&error.to_string()))))
        .collect()
}

fn shape(text: &str) -> String {
    text.chars().filter(char::is_ascii_lowercase).take(60).collect()
}

fn read(bytes: &[u8]) -> Result<String, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok("short;".into()) };
    let header = FrameHeader::decode(head)?;
    assert_eq!(header.encode(), *head, "a header encodes to what it was");
    let Some((body, payload)) = rest.split_at_checked(header.body_len as usize) else { return Ok("cut;".into()) };
    header.check_body(body)?;
    let frame = Frame { header, body: body.to_vec().into(), payload: payload.to_vec().into(), sums: Vec::new() };
    match (Kind::from_number(header.kind), header.flags & FLAG_ERROR) {
        (_, FLAG_ERROR) => again::<Error>(&frame),
        (Some(kind), _) => message(kind, &frame),
        (None, _) => Ok("unknown;".into()),
    }
}

/// Decodes a body, encodes it, and decodes that.
fn again<M: Message + Default + PartialEq + Debug>(frame: &Frame) -> Result<String, FrameError> {
    let message: M = decode_message(frame.header.kind, &frame.body)?;
    let FrameHeader { kind, flags, request_id, payload_len, .. } = frame.header;
    let encoded = encode_message(kind, flags, request_id, &message, payload_len);
    let (head, body) = encoded.split_first_chunk().expect("a whole frame");
    let header = FrameHeader::decode(head)?;
    header.check_body(body)?;
    assert_eq!(decode_message::<M>(kind, body)?, message, "a message returns from its encoding");
    Ok(format!("{kind:?} {};", Kind::from_number(kind).map_or("", Kind::name)))
}

fn either<R: Request + PartialEq + Debug>(frame: &Frame) -> Result<String, FrameError>
where
    R::Reply: PartialEq + Debug,
{
    match frame.header.flags & FLAG_REPLY {
        FLAG_REPLY => again::<R::Reply>(frame),
        _ => again::<R>(frame),
    }
}

macro_rules! kinds {
    ($($name:ident)*) => {
        /// Reads the body as a request of its kind, or as the answer. The compiler checks that no kind is missing.
        fn message(kind: Kind, frame: &Frame) -> Result<String, FrameError> {
            match kind { $(Kind::$name => either::<$name>(frame),)* }
        }

        /// The kind of which a message of this name is a request.
        fn kind_of(name: &str) -> Option<Kind> {
            match name { $(stringify!($name) => Some(Kind::$name),)* _ => None }
        }
    };
}

kinds! {
    Hello Resolve Lookup GetAttr List ListMany MakeDir MakeEntries SetAttrs Unlink RemoveNames Rename Link Symlink SetAttr SetXattr ListXattrs RemoveXattr ListVersions
    RecallLease MakeNode OpenWrite AllocateChunks RenewSession Commit CloseSession OpenRead ListExtents CompleteFragments ReportBad
    ReportWork ListPacks ListUnpacked ListInlined DescribeReads CompareFiles GetMap GetStatus Drain Maintain ChangePeer RegisterNode Heartbeat Inventory PutFragments GetFragments GetNodeStatus
    Consensus GetPiece JoinGroup DescribePeer FencePeer GetEntries ReportDigest SetLock TestLock CancelLock HoldLocks ReturnLocks
}

/// The messages of the golden file, each with every field set.
pub(crate) fn golden() -> Vec<(&'static str, Vec<u8>)> {
    let lines = include_str!("../../../wire/tests/golden.txt").lines().step_by(2);
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap_or_default(), 16).unwrap_or_default();
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(name, hex)| (name, hex.as_bytes().chunks(2).map(byte).collect()))
        .collect()
}

/// A frame for each of them.
fn seeds() -> Vec<Parts> {
    let frame = |(name, body): (&str, Vec<u8>)| {
        let reply = name.strip_suffix("Reply").and_then(kind_of).map(|kind| (kind, FLAG_REPLY));
        let (kind, flags) = kind_of(name).map(|kind| (kind, 0)).or(reply).unwrap_or((Kind::Hello, FLAG_ERROR));
        vec![encode_raw(kind as u16, flags, 7, &body, 0)]
    };
    golden().into_iter().map(frame).collect()
}

/// Changes messages as messages, then restores lengths and checksums, mostly.
fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    for part in parts {
        let Some(head) = part.first_chunk::<HEADER_BYTES>() else { continue };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (flags, kind, request_id, payload_len) = (head[5], word(4) >> 16, u64::from(word(8)), word(20));
        let mut body = part[HEADER_BYTES..].to_vec();
        if rng.below(4) > 0 {
            proto::mutate(&mut body, rng);
        }
        match rng.below(16) {
            0 => {}
            // The header's own checksum only: its lengths and the body's checksum stay wrong.
            1 => {
                let sum = crc_fast::crc32_iscsi(&part[..28]);
                part[28..32].copy_from_slice(&sum.to_le_bytes());
            }
            2 => *part = encode_raw(rng.next_u64() as u16 & 0x7ff, flags, request_id, &body, payload_len),
            _ => *part = encode_raw(kind as u16, flags, request_id, &body, payload_len),
        }
    }
}
