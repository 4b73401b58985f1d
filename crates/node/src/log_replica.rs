//! Requests to the replica of the manager's command log: the protocol in front of [`LogStore`].
//!
//! They need neither lease nor registration: terms fence them (P11), and a manager that restores itself reads the
//! replicas of nodes that do not know it yet.

use crate::check::message;
use bytes::Bytes;
use prost::Message;
use tessera_logstore::{LogEntry, LogError, LogStore, Snapshot};
use tessera_wire::frame::MAX_PAYLOAD_BYTES;
use tessera_wire::log::{AppendLog, AppendLogReply, GetSnapshot, GetSnapshotReply, PutSnapshot, ReadLog, ReadLogReply};
use tessera_wire::{Code, Error, Kind};

/// An encoded reply and its payload.
pub type LogAnswer = (Bytes, Vec<Bytes>);

/// A request to the log replica.
#[derive(Debug)]
pub enum LogRequest {
    /// Append entries; the payload holds their bytes.
    Append(AppendLog, Bytes),
    /// Read entries.
    Read(ReadLog),
    /// Store a piece of a snapshot.
    PutSnapshot(PutSnapshot, Bytes),
    /// Read a piece of a snapshot.
    GetSnapshot(GetSnapshot),
}

impl LogRequest {
    /// Decodes a request of one of the four kinds, and checks its lengths (P14).
    ///
    /// # Errors
    /// The message or its lengths are invalid, or [`Code::Unsupported`] for another kind.
    pub fn decode(kind: Kind, body: &[u8], payload: Bytes) -> Result<Self, Error> {
        let number = kind as u16;
        match kind {
            Kind::AppendLog => {
                let append: AppendLog = message(number, body)?;
                check_append(&append, payload.len())?;
                Ok(LogRequest::Append(append, payload))
            }
            Kind::ReadLog => Ok(LogRequest::Read(message(number, body)?)),
            Kind::PutSnapshot => {
                let put: PutSnapshot = message(number, body)?;
                check_snapshot(&put, payload.len())?;
                Ok(LogRequest::PutSnapshot(put, payload))
            }
            Kind::GetSnapshot => Ok(LogRequest::GetSnapshot(message(number, body)?)),
            other => Err(Error::new(Code::Unsupported, format!("{} is not for a log replica", other.name()))),
        }
    }
}

/// Carries out a request. Everything that an answer reports as held is durable (P9).
///
/// # Errors
/// [`Code::Fenced`] if the sender's term is over; otherwise the disk's, or an invalid request's.
pub fn serve(store: &mut LogStore, cluster_id: &[u8; 16], request: LogRequest) -> Result<LogAnswer, Error> {
    match request {
        LogRequest::Append(append, payload) => append_log(store, &append, &payload),
        LogRequest::Read(read) => read_log(store, cluster_id, &read),
        LogRequest::PutSnapshot(put, payload) => put_snapshot(store, &put, &payload),
        LogRequest::GetSnapshot(get) => get_snapshot(store, &get),
    }
}

/// The replica's state, up to the first gap in the log.
pub fn state(store: &LogStore) -> AppendLogReply {
    let state = store.state();
    let snapshot_seq = state.snapshot.map_or(0, |s| s.seq);
    // Nothing after a gap counts: the manager resends from the gap on.
    let (last_seq, last_term) = match state.missing_seq {
        Some(missing) => (missing.saturating_sub(1), 0),
        None => (state.last_seq, state.last_term),
    };
    AppendLogReply { term: state.term, last_seq, snapshot_seq, last_term }
}

fn append_log(store: &mut LogStore, append: &AppendLog, payload: &Bytes) -> Result<LogAnswer, Error> {
    let mut entries = Vec::with_capacity(append.lengths.len());
    let mut at = 0;
    for ((seq, &term), &len) in (append.first_seq..).zip(&append.terms).zip(&append.lengths) {
        entries.push(LogEntry { term, seq, bytes: payload.slice(at..at + len as usize) });
        at += len as usize;
    }
    match store.append(append.term, append.prev_term, &entries) {
        // The answer says what the replica holds; the sender continues from there.
        Ok(()) | Err(LogError::Gap { .. }) => {}
        // From this entry on the replica holds another branch; the sender goes back to before it.
        Err(LogError::PrevTerm { seq, .. }) => {
            let reply = AppendLogReply { last_seq: seq - 1, last_term: 0, ..state(store) };
            return Ok((reply.encode_to_vec().into(), Vec::new()));
        }
        Err(error) => return Err(log_error(&error)),
    }
    if append.drop_to_seq > 0 {
        store.drop_to(append.drop_to_seq).map_err(|e| log_error(&e))?;
    }
    Ok((state(store).encode_to_vec().into(), Vec::new()))
}

fn read_log(store: &LogStore, cluster_id: &[u8; 16], read: &ReadLog) -> Result<LogAnswer, Error> {
    let max_bytes = u64::from(read.max_bytes.min(MAX_PAYLOAD_BYTES / 2));
    let entries = match max_bytes {
        0 => Vec::new(),
        _ => store.entries(read.from_seq.max(1), max_bytes).map_err(|e| log_error(&e))?,
    };
    let reply = ReadLogReply {
        state: Some(state(store)),
        first_seq: entries.first().map_or(0, |e| e.seq),
        lengths: entries.iter().map(|e| e.bytes.len() as u32).collect(),
        cluster_id: cluster_id.to_vec(),
    };
    Ok((reply.encode_to_vec().into(), entries.into_iter().map(|e| e.bytes.into()).collect()))
}

fn put_snapshot(store: &mut LogStore, put: &PutSnapshot, payload: &Bytes) -> Result<LogAnswer, Error> {
    let Ok(hash) = <[u8; 32]>::try_from(&put.hash[..]) else {
        return Err(Error::new(Code::Invalid, "a snapshot's hash has 32 bytes"));
    };
    let snapshot = Snapshot { seq: put.seq, term: put.seq_term, total_bytes: put.total_bytes, hash };
    store.put_snapshot(put.term, snapshot, put.offset, payload).map_err(|e| log_error(&e))?;
    Ok((state(store).encode_to_vec().into(), Vec::new()))
}

fn get_snapshot(store: &LogStore, get: &GetSnapshot) -> Result<LogAnswer, Error> {
    let piece = store.read_snapshot(get.seq, get.offset, get.max_bytes.min(MAX_PAYLOAD_BYTES));
    let piece = piece.map_err(|e| log_error(&e))?;
    let (total_bytes, hash) = store.state().snapshot.map_or((0, Vec::new()), |s| (s.total_bytes, s.hash.to_vec()));
    Ok((GetSnapshotReply { total_bytes, hash }.encode_to_vec().into(), vec![piece.into()]))
}

fn log_error(error: &LogError) -> Error {
    let code = match error {
        LogError::StaleTerm { .. } | LogError::Conflict { .. } => Code::Fenced,
        LogError::NotHeld { .. } | LogError::NoSnapshot { .. } => Code::NotFound,
        LogError::Damaged { .. } | LogError::SnapshotHash { .. } => Code::Corrupt,
        LogError::Disk(e) if e.is_no_space() => Code::NoSpace,
        LogError::Disk(_) => Code::Io,
        _ => Code::Invalid,
    };
    let current = if let LogError::StaleTerm { highest, .. } = error { *highest } else { 0 };
    Error { current, ..Error::new(code, error.to_string()) }
}

fn check_append(append: &AppendLog, payload: usize) -> Result<(), Error> {
    let announced: u64 = append.lengths.iter().map(|&len| u64::from(len)).sum();
    let wrong = if announced != payload as u64 {
        format!("its entries have {announced} bytes together, its payload has {payload}")
    } else if append.lengths.len() != append.terms.len() {
        format!("{} lengths for {} terms", append.lengths.len(), append.terms.len())
    } else if append.first_seq == 0 || append.first_seq.checked_add(append.terms.len() as u64).is_none() {
        format!("entries {}.. do not exist, they are numbered from 1", append.first_seq)
    } else if append.terms.iter().any(|&term| term > append.term) {
        format!("an entry of a later term than the sender's, {}", append.term)
    } else {
        return Ok(());
    };
    Err(Error::new(Code::Invalid, format!("log append: {wrong}")))
}

fn check_snapshot(put: &PutSnapshot, payload: usize) -> Result<(), Error> {
    let end = put.offset.checked_add(payload as u64);
    let wrong = if put.hash.len() != 32 {
        format!("its hash has {} bytes, not 32", put.hash.len())
    } else if end.is_none_or(|end| end > put.total_bytes) {
        format!("{payload} bytes at {} pass its end at {}", put.offset, put.total_bytes)
    } else if put.seq == 0 {
        "it covers no log entry".to_string()
    } else {
        return Ok(());
    };
    Err(Error::new(Code::Invalid, format!("snapshot of the metadata: {wrong}")))
}
