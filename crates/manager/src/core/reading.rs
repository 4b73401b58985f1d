//! Reads that may take long: lists of many entries, and counts over all chunks. The core hands them out, so that they delay
//! nothing else, and answers once they are done.
//!
//! Each runs on a state that was committed after its request arrived, and its reply then waits until the group confirms that the
//! manager still leads in the same term (P7).

use super::{ManagerCore, Origin};
use crate::config::Config;
use crate::counts::StoreCounts;
use crate::ctx::View;
use crate::db::Db;
use crate::db::cache::Caches;
use crate::error::{Failure, Result};
use crate::log::registry;
use bytes::Bytes;
use prost::Message;
use tessera_wire::meta::ListReply;
use tessera_wire::{Code, Error, Kind};

/// A read. Whoever gets it runs it and passes the result to the core as [`super::Event::Read`].
#[derive(Debug, Clone)]
pub struct ReadJob {
    pub(super) origin: Origin,
    /// In which the request arrived.
    term: u64,
    body: Bytes,
    /// Duration of the lease that comes with the reply, a [`ListReply`]; 0: none does.
    lease_ms: u64,
}

/// A read that is done.
#[derive(Debug, Clone)]
pub struct ReadDone {
    pub(super) job: ReadJob,
    found: Result<Found, Error>,
}

#[derive(Debug, Clone)]
enum Found {
    Reply(Bytes),
    Counts(StoreCounts),
}

/// The last counts, and the number of the entry behind which they were taken.
#[derive(Debug, Default)]
pub struct KnownCounts(Option<(u64, StoreCounts)>);

impl KnownCounts {
    fn count(&mut self, db: &Db) -> Result<StoreCounts> {
        let log_seq = db.meta()?.log_seq;
        match self.0 {
            Some((at, counts)) if at == log_seq => Ok(counts),
            _ => Ok(self.0.insert((log_seq, StoreCounts::of(db, &Caches::default())?)).1),
        }
    }
}

impl ReadJob {
    /// The connection that waits for the reply.
    #[must_use]
    pub fn connection(&self) -> u64 {
        self.origin.connection
    }

    /// Reads in one state of `db`.
    #[must_use]
    pub fn run(self, db: &Db, config: &Config, known: &mut KnownCounts) -> ReadDone {
        let found = match registry::read_committed(db, config, self.origin.kind, &self.body) {
            Some(reply) => reply.map(Found::Reply),
            None => known.count(db).map(Found::Counts),
        };
        self.done(found.map_err(Failure::into_wire))
    }

    /// Nothing was read, because of `error`.
    #[must_use]
    pub fn failed(self, error: Error) -> ReadDone {
        self.done(Err(error))
    }

    fn done(self, found: Result<Found, Error>) -> ReadDone {
        ReadDone { job: self, found }
    }
}

impl ReadDone {
    /// Whether there is nothing to reply but an error.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.found.is_err()
    }

    /// The reply of a manager that leads no more.
    pub(crate) fn refused(self, error: Error) -> super::Action {
        self.job.origin.reply(Err(error))
    }
}

impl ManagerCore {
    pub(super) fn read_beside(&mut self, origin: Origin, body: Bytes, lease_ms: u64) {
        let job = ReadJob { origin, term: self.term(), body, lease_ms };
        self.actions.push_back(super::Action::Read(job));
    }

    pub(super) fn read_done(&mut self, done: ReadDone) {
        let ReadDone { job: ReadJob { origin, term, body, lease_ms }, found } = done;
        let result = match (self.stopped.clone(), found) {
            (Some(error), _) | (None, Err(error)) => Err(error),
            _ if term != self.term() => Err(Error::new(Code::Unavailable, "another manager led meanwhile; ask again")),
            (None, Ok(Found::Reply(reply))) if lease_ms == 0 => Ok(reply),
            // Protobuf lets a message's fields come in several parts.
            (None, Ok(Found::Reply(reply))) => {
                let more = ListReply { lease_ms, ..ListReply::default() }.encode_to_vec();
                Ok([&reply[..], &more[..]].concat().into())
            }
            (None, Ok(Found::Counts(counts))) => {
                self.composed(origin.kind, &body, Some(counts)).map_err(Failure::into_wire)
            }
        };
        self.reply(origin, result);
    }

    /// The reply to a read or a report, composed now. Without `counts` they are taken now.
    pub(super) fn composed(&mut self, kind: Kind, body: &Bytes, counts: Option<StoreCounts>) -> Result<Bytes> {
        let mut view = View { counts, ..view!(self) };
        match registry::read(&mut view, 0, kind, body) {
            Some(reply) => reply.map(registry::ReadReply::encode),
            None => registry::reply(&mut view, kind, body),
        }
    }

    /// Replies to a read or a report without leases, for tests and the simulator's checkers.
    ///
    /// # Errors
    /// A refusal, or a failure of the database.
    pub fn inspect(&mut self, kind: Kind, body: &Bytes) -> Result<Bytes> {
        match registry::read_committed(&self.db, &self.config, kind, body) {
            Some(reply) => reply,
            None => self.composed(kind, body, None),
        }
    }
}
