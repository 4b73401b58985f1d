//! Replays a log that an earlier mount left. The result is the file as of its last close, or that nothing is to be
//! pushed, or that the log is damaged. The only I/O is the reader's.
//!
//! Records behind the last `Closed` record were never acknowledged and do not count. An unreadable record with a
//! `Closed` record behind it is damage: an acknowledged state is lost, and an older state must not take its place (P2).

use super::overlay::Overlay;
use super::record::{HEADER_BYTES, Header, Kind, MAGIC, MAX_PAYLOAD_BYTES};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{self, Read};
use tessera_client::Times;
use thiserror::Error;

/// Length of a `Closed` record.
pub const CLOSED_BYTES: usize = HEADER_BYTES + 16;
/// Version of the format.
const FORMAT: u64 = 2;

/// The file that a log belongs to: the payload of its first record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogOrigin {
    /// The cluster.
    #[serde(with = "hex_text")]
    pub cluster_id: Vec<u8>,
    /// The file.
    pub ino: u64,
    /// Directory in which this mount last saw it; 0: unknown.
    pub parent: u64,
    /// Name under which this mount last saw it.
    #[serde(with = "hex_text")]
    pub name: Vec<u8>,
    /// The version below the log; 0: none.
    pub base_version: u64,
    /// Length of that version.
    pub base_bytes: u64,
    /// The store's name of its content ([`tessera_wire::Attr::content`]); 0: unknown.
    pub base_content: u64,
    /// Version of the cluster's map when the mount began; 0: unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub map_version: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl LogOrigin {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = json!(self);
        payload["format"] = json!(FORMAT);
        payload.to_string().into_bytes()
    }

    /// Decodes it; none: it is not valid.
    pub fn decode(payload: &[u8]) -> Option<LogOrigin> {
        let payload: Value = serde_json::from_slice(payload).ok()?;
        if payload["format"] == FORMAT { serde_json::from_value(payload).ok() } else { None }
    }
}

/// Bytes as hexadecimal text.
mod hex_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&tessera_wire::hex(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        super::unhex(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("not hexadecimal"))
    }
}

/// A pushed close that the store may have, without the log saying so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingPush {
    /// Name of the content in the store.
    pub content: u64,
    /// End of the close's record in the log.
    pub closed_end: u64,
}

/// The acknowledged part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedLog {
    /// Number of the log.
    pub log: u64,
    /// The file, and the newest version known to be below the log.
    pub origin: LogOrigin,
    /// The file as of its last close.
    pub overlay: Overlay,
    /// Times to commit.
    pub times: Times,
    /// Pushes since the version below.
    pub pushes: Vec<PendingPush>,
    /// End of the last record that changes the file's bytes.
    pub bytes_end: u64,
    /// The store has every closed state that ends here or before.
    pub stored_end: u64,
    /// End of the acknowledged part.
    pub end: u64,
    /// Records in it.
    pub records: u64,
    /// Bytes behind the acknowledged part.
    pub cut_bytes: u64,
}

/// Why nothing of a log is to be pushed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing was acknowledged, or the store has every acknowledged state.
    #[error("the file was not closed")]
    NotClosed {
        /// The file.
        origin: LogOrigin,
    },
    /// Its first record is not valid.
    #[error("its first record cannot be read")]
    NotALog,
    /// An acknowledged record cannot be read.
    #[error("the record at {position} is damaged, and one at {closed} says that the file was closed after it")]
    Damaged {
        /// The file.
        origin: LogOrigin,
        /// Position of the unreadable record.
        position: u64,
        /// Position of a `Closed` record behind it.
        closed: u64,
    },
}

/// Replays a log from its start.
///
/// # Errors
/// See [`ReplayError`].
pub fn replay(mut log: impl Read) -> Result<ReplayedLog, ReplayError> {
    let mut payload = Vec::with_capacity(MAX_PAYLOAD_BYTES);
    let mut source = Source { log: &mut log, number: 0, position: 0, unread: Vec::new() };
    let first = source.next(&mut payload)?.filter(|header| header.kind == Kind::Begin).ok_or(ReplayError::NotALog)?;
    let origin = LogOrigin::decode(&payload).ok_or(ReplayError::NotALog)?;
    source.number = first.value;
    let mut now = ReplayedLog {
        log: first.value,
        overlay: Overlay::new(origin.base_bytes),
        origin,
        times: Times::default(),
        pushes: Vec::new(),
        // What comes before the first change has no bytes that the version below lacks.
        bytes_end: source.position,
        stored_end: 0,
        end: 0,
        records: 0,
        cut_bytes: 0,
    };
    let (mut changes, mut changes_end, mut owed, mut records) = (Vec::new(), source.position, false, 1);
    loop {
        let record = source.position;
        let Some(header) = source.next(&mut payload)? else { break };
        records += 1;
        match header.kind {
            // A change counts once the file is closed.
            Kind::Write | Kind::Length => {
                changes.push((record, header));
                changes_end = source.position;
            }
            Kind::Closed => {
                changes.drain(..).for_each(|(record, header)| apply(&mut now.overlay, record, &header));
                let numbers =
                    decode_numbers(&payload).filter(|[size_bytes, _]| *size_bytes == now.overlay.size_bytes());
                let Some([_, ctime_ns]) = numbers else {
                    return Err(ReplayError::Damaged { origin: now.origin, position: record, closed: record });
                };
                now.times = Times { mtime_ns: header.value as i64, ctime_ns: ctime_ns as i64, ..Times::default() };
                (now.end, now.bytes_end, owed) = (source.position, changes_end, true);
                now.records = records;
            }
            Kind::Stored => {
                let Some([closed_end, content]) = decode_numbers(&payload) else { continue };
                (now.origin.base_version, now.origin.base_content) = (header.value, content);
                now.pushes.retain(|push| push.closed_end > closed_end);
                now.stored_end = now.stored_end.max(closed_end);
                owed &= closed_end != now.end;
            }
            Kind::Pushed => {
                let push = |[closed_end]: [u64; 1]| PendingPush { content: header.value, closed_end };
                // Each mount that takes over the log repeats them.
                now.pushes.extend(decode_numbers(&payload).map(push).filter(|push| !now.pushes.contains(push)));
            }
            Kind::Begin => break,
        }
    }
    let torn = source.position;
    let (rest, closed) = source.closed_after()?;
    if let Some(closed) = closed {
        return Err(ReplayError::Damaged { origin: now.origin, position: torn, closed });
    }
    if !owed {
        return Err(ReplayError::NotClosed { origin: now.origin });
    }
    assert!(now.end <= torn, "the last close at {} lies behind the last valid record at {torn}", now.end);
    now.cut_bytes = torn + rest - now.end;
    Ok(now)
}

/// A payload of exactly `N` numbers.
fn decode_numbers<const N: usize>(payload: &[u8]) -> Option<[u64; N]> {
    let (numbers, rest) = payload.as_chunks::<8>();
    let numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
    numbers.try_into().ok().filter(|_| rest.is_empty())
}

fn apply(overlay: &mut Overlay, record: u64, header: &Header) {
    match header.kind {
        Kind::Write => overlay.write(header.value, u64::from(header.len_bytes), record),
        _ => overlay.set_len(header.value, record),
    }
}

/// A log that is being read.
struct Source<'a, R: Read> {
    log: &'a mut R,
    number: u64,
    /// Position of the next record.
    position: u64,
    /// Bytes read of the first invalid record.
    unread: Vec<u8>,
}

impl<R: Read> Source<'_, R> {
    /// The next record; none at the end, or if the record is not valid.
    fn next(&mut self, payload: &mut Vec<u8>) -> io::Result<Option<Header>> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        self.log.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
        let header = bytes.first_chunk().and_then(|bytes| Header::decode(bytes, self.number, self.position));
        self.unread = bytes;
        let Some(header) = header else { return Ok(None) };
        payload.clear();
        self.log.by_ref().take(u64::from(header.len_bytes)).read_to_end(payload)?;
        let end = header.kind == Kind::Write && header.value.checked_add(u64::from(header.len_bytes)).is_none();
        if !header.fits(payload) || end {
            self.unread.extend_from_slice(payload);
            return Ok(None);
        }
        self.unread.clear();
        self.position += header.record_bytes();
        Ok(Some(header))
    }

    /// Whether `bytes` are a `Closed` record that was written at `position`.
    fn is_closed(&self, bytes: &[u8], position: u64) -> bool {
        let (header, payload) = bytes.split_at(HEADER_BYTES);
        let header = header.try_into().ok().filter(|header: &&[u8; HEADER_BYTES]| header[..4] == MAGIC);
        let header = header.and_then(|header| Header::decode(header, self.number, position));
        header.is_some_and(|header| header.kind == Kind::Closed && header.fits(payload))
    }

    /// Number of bytes from the first invalid record on, and the position of a `Closed` record among them.
    fn closed_after(mut self) -> io::Result<(u64, Option<u64>)> {
        const STEP_BYTES: u64 = 1 << 20;
        let mut window = std::mem::take(&mut self.unread);
        let mut start = self.position;
        loop {
            let got = self.log.by_ref().take(STEP_BYTES).read_to_end(&mut window)? as u64;
            let last = window.len().saturating_sub(CLOSED_BYTES - 1);
            let found = (0..last).find(|&at| self.is_closed(&window[at..at + CLOSED_BYTES], start + at as u64));
            let end = start + window.len() as u64;
            if let Some(at) = found {
                return Ok((end - self.position, Some(start + at as u64)));
            }
            if got < STEP_BYTES {
                return Ok((end - self.position, None));
            }
            let keep = window.len() - (CLOSED_BYTES - 1);
            start += keep as u64;
            window.drain(..keep);
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |at: usize| (text.as_bytes()[at] as char).to_digit(16);
    text.len().is_multiple_of(2).then_some(())?;
    (0..text.len()).step_by(2).map(|at| Some((digit(at)? << 4 | digit(at + 1)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arbitrary_bytes_are_not_a_log() {
        for len in [0, 1, 31, 32, 33, 5000] {
            for byte in [0, 1, b'T', 255] {
                assert!(matches!(replay(&vec![byte; len][..]), Err(ReplayError::NotALog)), "{len} times {byte}");
            }
        }
        for text in ["", "{}", "null", r#"{"format":1}"#, r#"{"format":2,"cluster_id":"0","ino":1}"#] {
            assert!(LogOrigin::decode(text.as_bytes()).is_none(), "{text}");
        }
        let origin = LogOrigin {
            cluster_id: vec![0, 255, 7],
            ino: 42,
            parent: 1,
            name: b"a \xff".to_vec(),
            base_version: 9,
            base_bytes: 3,
            base_content: 5,
            map_version: 7,
        };
        assert_eq!(LogOrigin::decode(&origin.encode()), Some(origin));
        assert_eq!(unhex("é0"), None);
    }
}
