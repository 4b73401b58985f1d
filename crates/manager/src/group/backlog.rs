//! Committed entries that a standby has yet to apply.
//!
//! A manager that was away gets thousands of them at once. They are applied in portions, so that whoever runs the manager serves ticks,
//! frames and clients between two of them ([`Manager::catch_up`]). A portion is one transaction: a crash leaves the database after an
//! entry, and the log has the others.

use super::compare::asked_by;
use super::{Manager, State};
use crate::internal::CompareMetadata;
use crate::log::batch::{self, ReplayError};
use bytes::Bytes;
use prost::Message;
use std::collections::VecDeque;
use tessera_failpoint as failpoint;
use tessera_wire::log::LogEntry;
use tessera_wire::{Code, Error};

/// Most entries of a portion, …
const PORTION_ENTRIES: usize = 64;
/// … which takes no further one after this many bytes: an entry may hold thousands of commands.
const PORTION_BYTES: usize = 256 << 10;

/// Above so many bytes, entries are applied before anything else is answered: a manager that is slower than the group slows what it is sent.
pub(super) const BACKLOG_BYTES: usize = 64 << 20;

/// Entries in the order in which they are applied.
#[derive(Default)]
pub(super) struct Backlog {
    entries: VecDeque<Committed>,
    bytes: usize,
}

#[derive(Clone)]
struct Committed {
    index: u64,
    term: u64,
    /// Empty: the first entry of a leader.
    data: Bytes,
}

/// Entries that are applied in one transaction.
#[derive(Default)]
struct Portion {
    /// As they came.
    taken: Vec<Committed>,
    entries: Vec<LogEntry>,
    /// What follows from the last one.
    then: Option<Then>,
}

enum Then {
    /// A digest of the state after this entry.
    Digest(u64, CompareMetadata),
    /// Everything before the first entry of this term is applied.
    Term(u64),
}

impl Backlog {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn push(&mut self, committed: Committed) {
        self.bytes += committed.data.len();
        self.entries.push_back(committed);
    }

    /// Bytes of its entries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts a portion back that could not be applied.
    fn give_back(&mut self, portion: Portion) {
        for committed in portion.taken.into_iter().rev() {
            self.bytes += committed.data.len();
            self.entries.push_front(committed);
        }
    }

    /// Whether it is so long that the leader has to wait for this manager.
    pub(super) fn is_long(&self) -> bool {
        self.bytes > BACKLOG_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn clear(&mut self) {
        (self.entries, self.bytes) = (VecDeque::new(), 0);
    }

    /// Takes the next portion from the entries after `applied`. It ends where something follows from the state after an entry.
    fn take_portion(&mut self, applied: u64) -> Result<Portion, String> {
        let (mut portion, mut bytes) = (Portion::default(), 0);
        while portion.then.is_none() && portion.entries.len() < PORTION_ENTRIES && bytes < PORTION_BYTES {
            let Some(committed) = self.entries.pop_front() else { break };
            self.bytes -= committed.data.len();
            portion.taken.push(committed.clone());
            let Committed { index, term, data } = committed;
            if data.is_empty() {
                portion.then = Some(Then::Term(term));
                continue;
            }
            if index <= applied || index.is_multiple_of(16) && failpoint::is_active("manager.standby_skips_entry") {
                continue; // Applied before a restart.
            }
            let entry = LogEntry::decode(&data[..]).map_err(|error| format!("entry {index}: {error}"))?;
            assert_eq!(entry.seq, index, "an entry knows its index");
            portion.then = asked_by(&entry).map(|part| Then::Digest(index, part));
            portion.entries.push(entry);
            bytes += data.len();
        }
        Ok(portion)
    }
}

impl Manager {
    /// Whether committed entries wait to be applied, and there is room for them: whoever runs the manager calls [`Manager::catch_up`] until none do.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.backlog.is_empty() && !self.room.waits()
    }

    /// Whether so much waits that it is applied before anything else is answered.
    pub(super) fn is_far_behind(&self) -> bool {
        self.backlog.is_long()
    }

    /// Applies a portion of the entries that wait.
    pub fn catch_up(&mut self, now_ns: i64) {
        self.settle(now_ns);
    }

    /// An entry is committed: a batch of this leader, or an entry for a standby's database.
    pub(super) fn committed(&mut self, index: u64, term: u64, data: Bytes) {
        if let State::Leading(core) = &mut self.state
            && self.proposed == Some((index, term))
        {
            self.proposed = None;
            core.finish_batch();
            if core.is_full() {
                self.depose();
                self.backlog.push(Committed { index, term, data });
                return self.wait_for_room();
            }
            return self.follow_asked(index);
        }
        self.follow_standing();
        match &self.state {
            State::Standby { .. } => self.backlog.push(Committed { index, term, data }),
            State::Leading(_) => assert!(data.is_empty(), "entry {index} of term {term} is not this leader's"),
            State::Nothing => {}
        }
    }

    /// Applies the next portion to a standby's database.
    pub(super) fn apply_portion(&mut self, now_ns: i64) {
        assert!(self.core().is_none() || self.backlog.is_empty(), "a leader has applied everything before its term");
        let State::Standby { db, meta, caches } = &mut self.state else { return };
        let applied = self.backlog.take_portion(meta.log_seq).and_then(|portion| {
            match batch::replay(db, meta, caches, &portion.entries) {
                Ok(()) => Ok(Some(portion.then)),
                Err(ReplayError::Full) => {
                    self.backlog.give_back(portion);
                    Ok(None)
                }
                Err(error) => Err(error.to_string()),
            }
        });
        match applied {
            Ok(None) => self.wait_for_room(),
            Ok(Some(Some(Then::Digest(index, part)))) => self.begin_digest(index, part),
            Ok(Some(Some(Then::Term(term)))) => {
                let standing = self.peer.standing();
                if standing.leads && standing.term == term {
                    self.lead(now_ns, term);
                }
            }
            Ok(Some(None)) => {}
            Err(why) => self.fail(Error::new(Code::Unavailable, format!("what is committed cannot be applied: {why}"))),
        }
    }
}
