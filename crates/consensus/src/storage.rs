//! The log as the library reads it.

use crate::log::snapshot::SnapshotFiles;
use crate::log::{Log, LogError};
use crate::message;
use raft::eraftpb::{Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use std::cell::{Cell, RefCell};

/// The log and the snapshot of a peer.
pub(crate) struct PeerStorage {
    pub(crate) log: Log,
    pub(crate) files: SnapshotFiles,
    /// A peer needs a snapshot, and none that it could continue from is held.
    pub(crate) lacks_snapshot: Cell<bool>,
    /// The library gets no committed entries to apply: the owner has enough of them.
    pub(crate) holds_back: Cell<bool>,
    /// The first failure of a read; the peer stops at it.
    pub(crate) failure: RefCell<Option<LogError>>,
}

impl Storage for PeerStorage {
    fn initial_state(&self) -> Result<RaftState> {
        let state = self.log.state();
        let hard_state = HardState { term: state.term, vote: state.vote, commit: state.commit, ..HardState::default() };
        Ok(RaftState { hard_state, conf_state: message::conf_state(self.log.membership()) })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        // Entries for other peers are read in a context that may be asynchronous.
        if self.holds_back.get() && !context.can_async() {
            return Ok(Vec::new());
        }
        if low <= self.log.base().index {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.log.read(low, high, max_size.into().unwrap_or(u64::MAX)) {
            Ok(entries) => Ok(entries.iter().map(message::to_library).collect()),
            Err(error) => {
                // The library would panic at an error. Without entries it waits, and the peer stops at the failure.
                self.failure.borrow_mut().get_or_insert(error);
                Ok(Vec::new())
            }
        }
    }

    fn term(&self, index: u64) -> Result<u64> {
        let below = StorageError::Compacted;
        let beyond = StorageError::Unavailable;
        let why = if index < self.log.base().index { below } else { beyond };
        self.log.term(index).ok_or(Error::Store(why))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.log.base().index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.log.last_index())
    }

    fn snapshot(&self, request_index: u64, _: u64) -> Result<Snapshot> {
        let from = self.log.base().index.max(request_index);
        let held = self.files.held().filter(|held| held.index >= from);
        // A snapshot may be ahead of the log that it was copied beside.
        let held = held.filter(|held| self.log.term(held.index) == Some(held.term));
        match held.and_then(|held| message::snapshot(held).ok()) {
            Some(snapshot) => Ok(snapshot),
            None => {
                self.lacks_snapshot.set(true);
                Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}
