//! Requests to the replica of the manager's command log.

use crate::check::message;
use bytes::Bytes;
use tessera_wire::log::{AppendLog, GetSnapshot, PutSnapshot, ReadLog};
use tessera_wire::{Code, Error, Kind};

/// A request to the log replica.
#[derive(Debug)]
pub enum LogRequest {
    /// Entries, with the bytes they are cut from.
    Append(AppendLog, Bytes),
    /// Read entries back.
    Read(ReadLog),
    /// A piece of a snapshot.
    PutSnapshot(PutSnapshot, Bytes),
    /// Read a piece.
    GetSnapshot(GetSnapshot),
}

impl LogRequest {
    /// Decodes a request of one of the four kinds, and checks its lengths (P14).
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
