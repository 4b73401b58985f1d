//! Logs in a mount's spool (docs/formats.md, section 7): a mount that starts takes over what was acknowledged, or says that the log is
//! damaged, and the next mount finds the same (P2, P9).

use crate::Target;
use crate::input::{Parts, split};
use crate::mutate::{index, number, one_in};
use tessera_disk::SplitMix64;
use tessera_mount::spool::testing::take_over;

/// See the module.
pub const TARGET: Target =
    Target { name: "spool-log", run, seeds, adapt, runs: 15_000, base_bytes: 4 << 20, bytes_per_byte: 200 };

/// Each part is a log.
#[must_use]
pub fn run(input: &[u8]) -> String {
    split(input).iter().map(|part| check(part)).collect()
}

fn check(log: &[u8]) -> String {
    let found = match take_over(log) {
        Ok(found) => found,
        Err(why) => return why,
    };
    let size_bytes = found.overlay.size_bytes();
    assert!(found.overlay.kept_bytes() <= size_bytes, "the version below shows behind the end");
    for (offset, piece) in &found.pieces {
        let piece = piece.as_ref().unwrap_or_else(|| panic!("the piece at {offset} was replayed, and cannot be read"));
        assert!(offset + piece.len() as u64 <= size_bytes, "a piece at {offset} is behind the end at {size_bytes}");
    }
    let mut again = take_over(&found.after).expect("a log that was taken over is taken over again");
    // Each mount adds a note of the version below, so that only the bytes grow.
    again.after.clone_from(&found.after);
    assert_eq!(again, found, "the next mount finds the same");
    format!(
        "{} {} {};",
        found.pieces.len(),
        found.pushes.len(),
        found.overlay.size_bytes() > found.overlay.kept_bytes()
    )
}

const LOG_NUMBER: u64 = 0x1122_3344_5566_7788;
const BEGIN: u8 = 1;
const WRITE: u8 = 2;
const LENGTH: u8 = 3;
const CLOSED: u8 = 4;
const STORED: u8 = 5;
const PUSHED: u8 = 6;

/// A record for `position`.
fn record(kind: u8, value: u64, payload: &[u8], position: u64) -> Vec<u8> {
    let mut record = vec![0; 32];
    record[..4].copy_from_slice(b"TSPL");
    record[4] = kind;
    record[8..16].copy_from_slice(&value.to_le_bytes());
    record[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    record.extend_from_slice(payload);
    seal(&mut record, 0, position);
    record
}

/// Restores the checksums of the record at `at`, for `position`.
fn seal(bytes: &mut [u8], at: usize, position: u64) {
    let len = u32::from_le_bytes([bytes[at + 16], bytes[at + 17], bytes[at + 18], bytes[at + 19]]) as usize;
    if let Some(payload) = bytes.get(at + 32..).and_then(|rest| rest.get(..len)) {
        let sum = crc_fast::crc32_iscsi(payload);
        bytes[at + 20..at + 24].copy_from_slice(&sum.to_le_bytes());
    }
    let log = if bytes[at + 4] == BEGIN { bytes[at + 8..at + 16].to_vec() } else { LOG_NUMBER.to_le_bytes().to_vec() };
    let sum = crc_fast::crc32_iscsi(&[&bytes[at..at + 28], &position.to_le_bytes(), &log[..]].concat());
    bytes[at + 28..at + 32].copy_from_slice(&sum.to_le_bytes());
}

fn log_of(records: &[(u8, u64, Vec<u8>)]) -> Vec<u8> {
    let origin = r#"{"format":2,"cluster_id":"0707","ino":42,"parent":1,"name":"6162","base_version":9,"base_bytes":500,"base_content":5}"#;
    let mut log = record(BEGIN, LOG_NUMBER, origin.as_bytes(), 0);
    for (kind, value, payload) in records {
        let next = record(*kind, *value, payload, log.len() as u64);
        log.extend(next);
    }
    log
}

fn pair(a: u64, b: u64) -> Vec<u8> {
    [a.to_le_bytes(), b.to_le_bytes()].concat()
}

fn seeds() -> Vec<Parts> {
    let write = |offset: u64, len: usize| (WRITE, offset, vec![offset as u8; len]);
    let closed = |size: u64| (CLOSED, 1_000, pair(size, 2_000));
    let begin = log_of(&[]).len() as u64;
    let first_close = begin + 32 + 40 + 48;
    [
        log_of(&[]),
        log_of(&[write(0, 40), closed(500)]),
        log_of(&[write(600, 40), closed(640), write(0, 10), (LENGTH, 300, vec![]), closed(300), write(7, 9)]),
        log_of(&[
            write(0, 40),
            closed(500),
            (PUSHED, 1 << 62, first_close.to_le_bytes().to_vec()),
            write(100, 100),
            (STORED, 10, pair(first_close, 1 << 62)),
            closed(500),
            (PUSHED, (1 << 62) + 1, first_close.to_le_bytes().to_vec()),
        ]),
    ]
    .map(|log| vec![log])
    .to_vec()
}

/// Offsets and lengths of the fields of a record, without its checksums.
const FIELDS: [(usize, usize); 5] = [(4, 1), (8, 8), (16, 4), (32, 8), (40, 8)];

/// Changes a field of a record, removes or repeats records, and restores checksums.
fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    for bytes in parts {
        let starts: Vec<usize> =
            (0..bytes.len().saturating_sub(31)).filter(|&at| bytes[at..].starts_with(b"TSPL")).collect();
        let at = starts.get(index(rng, starts.len())).copied().unwrap_or(0);
        match rng.below(4) {
            0 if at > 0 => {
                let end = starts.iter().find(|next| **next > at).copied().unwrap_or(bytes.len());
                let moved = bytes[at..end].to_vec();
                let to = starts[index(rng, starts.len())];
                if one_in(rng, 2) {
                    bytes.drain(at..end);
                } else {
                    bytes.splice(to..to, moved);
                }
            }
            1..=2 if bytes.len() >= at + 32 => {
                let (field, width) = FIELDS[index(rng, FIELDS.len())];
                let Some(now) = bytes.get(at + field..).and_then(|rest| rest.get(..width)) else { continue };
                let mut value = [0; 8];
                value[..width].copy_from_slice(now);
                let next = number(rng, u64::from_le_bytes(value), bytes.len() as u64).to_le_bytes();
                bytes[at + field..][..width].copy_from_slice(&next[..width]);
            }
            _ => {}
        }
        for at in 0..bytes.len().saturating_sub(31) {
            if bytes[at..].starts_with(b"TSPL") && !one_in(rng, 32) {
                seal(bytes, at, at as u64);
            }
        }
    }
}
