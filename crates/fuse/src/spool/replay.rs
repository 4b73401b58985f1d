//! What a log that was left behind says: the file as it was when it was closed last, or that nothing of it was acknowledged, or that it is
//! damaged. Here is no I/O but the reader's.
//!
//! A log ends where it was torn off: what lies behind the last `Closed` record was never acknowledged and is not looked at. A
//! record that cannot be read with a `Closed` one behind it is another thing: an acknowledged state is lost, and an older one must not be
//! taken for it (P2).

use super::overlay::Overlay;
use super::record::{HEADER_BYTES, Header, Kind, MAGIC, MAX_PAYLOAD_BYTES};
use serde_json::{Value, json};
use std::io::{self, Read};
use thiserror::Error;

/// Bytes of a `Closed` record.
const CLOSED_BYTES: usize = HEADER_BYTES + 8;
/// Version of the format.
const FORMAT: u64 = 1;

/// Whose file a log is of: the payload of its first record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The store.
    pub cluster_id: Vec<u8>,
    /// The file.
    pub ino: u64,
    /// Where it was seen last: directory and name; directory 0: not known.
    pub parent: u64,
    /// See `parent`.
    pub name: Vec<u8>,
    /// The version it is written over; 0: none.
    pub base_version: u64,
    /// Length of that.
    pub base_bytes: u64,
    /// What the store calls its content ([`tessera_wire::Attr::content`]); 0: not known.
    pub base_content: u64,
}

impl Begun {
    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        json!({
            "format": FORMAT,
            "cluster_id": hex(&self.cluster_id),
            "ino": self.ino,
            "parent": self.parent,
            "name": hex(&self.name),
            "base_version": self.base_version,
            "base_bytes": self.base_bytes,
            "base_content": self.base_content,
        })
        .to_string()
        .into_bytes()
    }

    fn decode(payload: &[u8]) -> Option<Begun> {
        let said: Value = serde_json::from_slice(payload).ok()?;
        let number = |name: &str| said.get(name)?.as_u64();
        let bytes = |name: &str| unhex(said.get(name)?.as_str()?);
        (number("format")? == FORMAT).then_some(())?;
        Some(Begun {
            cluster_id: bytes("cluster_id")?,
            ino: number("ino")?,
            parent: number("parent")?,
            name: bytes("name")?,
            base_version: number("base_version")?,
            base_bytes: number("base_bytes")?,
            base_content: number("base_content")?,
        })
    }
}

/// A closing that may be in the store without the log having heard of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Push {
    /// What the content is called there if it is.
    pub content: u64,
    /// Where in the log the record of the closing ends.
    pub closed_end: u64,
}

/// What a log holds that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// The log's number.
    pub log: u64,
    /// Whose file it is, and the newest version known to be below.
    pub begun: Begun,
    /// The file as it was closed last.
    pub overlay: Overlay,
    /// Its modification time then, ns since 1970.
    pub mtime_ns: i64,
    /// What was being pushed, since the version below.
    pub pushes: Vec<Push>,
    /// The log ends here; what is behind was not acknowledged.
    pub end: u64,
    /// Records up to the end.
    pub records: u64,
    /// Bytes behind the end.
    pub cut_bytes: u64,
}

/// Why a log says nothing.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing in it was acknowledged, or all that was is in the store.
    #[error("the file was not closed")]
    Nothing {
        /// Whose file it is.
        begun: Begun,
    },
    /// Its first record is none.
    #[error("its first record cannot be read")]
    NoLog,
    /// Something that was acknowledged cannot be read.
    #[error("the record at {position} is damaged, and one at {closed} says that the file was closed after it")]
    Damaged {
        /// Whose file it is.
        begun: Begun,
        /// The bad record.
        position: u64,
        /// The record behind it.
        closed: u64,
    },
}

/// What a record asks for; it counts when the file is closed.
enum Change {
    Write { offset: u64, len_bytes: u64, record: u64 },
    Length(u64),
}

/// Reads a log from its start.
///
/// # Errors
/// See [`ReplayError`].
pub fn replay(mut log: impl Read) -> Result<Replayed, ReplayError> {
    let mut payload = vec![0; MAX_PAYLOAD_BYTES];
    let mut source = Source { log: &mut log, number: 0, position: 0, taken: Vec::new() };
    let first = source.next(&mut payload)?.filter(|header| header.kind == Kind::Begin).ok_or(ReplayError::NoLog)?;
    let begun = Begun::decode(&payload[..first.len_bytes as usize]).ok_or(ReplayError::NoLog)?;
    source.number = first.value;
    let mut now = Replayed {
        log: first.value,
        overlay: Overlay::new(begun.base_bytes),
        begun,
        mtime_ns: 0,
        pushes: Vec::new(),
        end: 0,
        records: 0,
        cut_bytes: 0,
    };
    let (mut changes, mut waits, mut records) = (Vec::new(), false, 1);
    loop {
        let record = source.position;
        let Some(header) = source.next(&mut payload)? else { break };
        records += 1;
        match header.kind {
            Kind::Write => {
                changes.push(Change::Write { offset: header.value, len_bytes: u64::from(header.len_bytes), record });
            }
            Kind::Length => changes.push(Change::Length(header.value)),
            Kind::Closed => {
                changes.drain(..).for_each(|change| apply(&mut now.overlay, &change));
                if numbers(&payload, &header) != Some([now.overlay.size_bytes()]) {
                    return Err(ReplayError::Damaged { begun: now.begun, position: record, closed: record });
                }
                (now.mtime_ns, now.end, waits) = (header.value as i64, source.position, true);
                now.records = records;
            }
            Kind::Stored => {
                let Some([closed_end, content]) = numbers(&payload, &header) else { continue };
                (now.begun.base_version, now.begun.base_content) = (header.value, content);
                now.pushes.retain(|push| push.closed_end > closed_end);
                waits &= closed_end != now.end;
            }
            Kind::Pushed => {
                let push = numbers(&payload, &header).map(|[closed_end]| Push { content: header.value, closed_end });
                now.pushes.extend(push);
            }
            Kind::Begin => break,
        }
    }
    let torn = source.position;
    let (rest, closed) = source.closed_behind()?;
    if let Some(closed) = closed {
        return Err(ReplayError::Damaged { begun: now.begun, position: torn, closed });
    }
    if !waits {
        return Err(ReplayError::Nothing { begun: now.begun });
    }
    now.cut_bytes = torn + rest - now.end;
    Ok(now)
}

/// A payload that is so many numbers.
fn numbers<const N: usize>(payload: &[u8], header: &Header) -> Option<[u64; N]> {
    let (numbers, rest) = payload[..header.len_bytes as usize].as_chunks::<8>();
    let numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
    numbers.try_into().ok().filter(|_| rest.is_empty())
}

fn apply(overlay: &mut Overlay, change: &Change) {
    match *change {
        Change::Write { offset, len_bytes, record } => overlay.write(offset, len_bytes, record),
        Change::Length(size_bytes) => overlay.set_len(size_bytes),
    }
}

/// A log being read.
struct Source<'a, R: Read> {
    log: &'a mut R,
    number: u64,
    /// Where the next record starts.
    position: u64,
    /// What was read of a record that is none.
    taken: Vec<u8>,
}

impl<R: Read> Source<'_, R> {
    /// The next record; none if there is none, or it is not whole.
    fn next(&mut self, payload: &mut [u8]) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER_BYTES];
        let got = fill(self.log, &mut bytes)?;
        self.taken = bytes[..got].to_vec();
        let header = (got == HEADER_BYTES).then(|| Header::decode(&bytes, self.number, self.position)).flatten();
        let Some(header) = header else { return Ok(None) };
        let payload = &mut payload[..header.len_bytes as usize];
        let got = fill(self.log, payload)?;
        let end = header.kind == Kind::Write && header.value.checked_add(u64::from(header.len_bytes)).is_none();
        if !header.fits(&payload[..got]) || end {
            self.taken.extend_from_slice(&payload[..got]);
            return Ok(None);
        }
        self.taken.clear();
        self.position += header.record_bytes();
        Ok(Some(header))
    }

    /// Whether these are a whole `Closed` record, written there.
    fn is_closed(&self, bytes: &[u8], position: u64) -> bool {
        let (header, payload) = bytes.split_at(HEADER_BYTES);
        let header = header.try_into().ok().filter(|header: &&[u8; HEADER_BYTES]| header[..4] == MAGIC);
        let header = header.and_then(|header| Header::decode(header, self.number, position));
        header.is_some_and(|header| header.kind == Kind::Closed && header.fits(payload))
    }

    /// How many bytes are left from the record that is none, and where among them a `Closed` record is.
    fn closed_behind(mut self) -> io::Result<(u64, Option<u64>)> {
        const STEP_BYTES: usize = 1 << 20;
        let mut window = std::mem::take(&mut self.taken);
        let mut start = self.position;
        loop {
            let kept = window.len();
            window.resize(kept + STEP_BYTES, 0);
            let got = fill(self.log, &mut window[kept..])?;
            window.truncate(kept + got);
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

/// Reads until the buffer is full or there is no more.
fn fill(from: &mut impl Read, out: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < out.len() {
        match from.read(&mut out[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |at: usize| (text.as_bytes()[at] as char).to_digit(16);
    text.len().is_multiple_of(2).then_some(())?;
    (0..text.len()).step_by(2).map(|at| Some((digit(at)? << 4 | digit(at + 1)?) as u8)).collect()
}

#[cfg(test)]
mod tests;
