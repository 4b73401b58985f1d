//! Rebuilds a manager from the replicas of its command log after the manager's disk is lost.
//!
//! [`Restore`] asks all named replicas for their state. The replica whose last entry has the highest (term, sequence) holds
//! every acknowledged entry, provided that at least one of the nodes that held the log has answered. Its snapshot and the
//! replayed entries after it give the database. [`Restore`] is pure: the caller sends its calls and passes it the answers;
//! [`Restored::into_db`] and then [`ManagerCore::start_with`](crate::core::ManagerCore::start_with) do the rest.

use crate::config::Config;
use crate::db::cache::Caches;
use crate::db::{Db, DbError};
use crate::log::batch::{self, ReplayError};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use tessera_wire::log::{AppendLogReply, GetSnapshot, LogEntry, ReadLog};
use tessera_wire::rpc::{Answer, Call, Peer};
use thiserror::Error;

/// Most bytes of one read.
const PIECE_BYTES: u32 = 4 << 20;
const TIMEOUT_MS: u64 = 30_000;

/// Why nothing could be restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// No node answered with a log.
    #[error("none of {asked} addresses holds a command log ({why}); name nodes that held it, with their addresses")]
    NoReplica {
        /// Addresses asked.
        asked: usize,
        /// Their answers.
        why: String,
    },
    /// Some addresses did not answer and may hold newer entries.
    #[error(
        "{silent} did not answer ({why}) and may hold newer entries; bring them back, or restore without them \
         (--without-missing) if that many log copies cannot be lost: every acknowledged change is on {copies} nodes"
    )]
    Silent {
        /// Addresses.
        silent: String,
        /// Why.
        why: String,
        /// Log copies configured.
        copies: u32,
    },
    /// The replicas are of two clusters.
    #[error("{a} belongs to another cluster than {b}; name nodes of one cluster only")]
    TwoClusters {
        /// An address.
        a: String,
        /// Another.
        b: String,
    },
    /// The best replica cannot be read.
    #[error(
        "replica {address}: {why}; it alone has the newest entries (term {term}, {seq}): mend its disk, or restore from \
         the others (--without-missing) if that many log copies cannot be lost"
    )]
    Replica {
        /// Its address.
        address: String,
        /// What went wrong.
        why: String,
        /// Term of its last entry.
        term: u64,
        /// Sequence number of its last entry.
        seq: u64,
    },
    /// The log could not be applied.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The new database could not be written.
    #[error(transparent)]
    Db(#[from] DbError),
}

/// One replica's answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ReplicaState {
    state: AppendLogReply,
    cluster_id: [u8; 16],
}

/// Phase of a restore.
enum Phase {
    /// Waiting for states.
    States,
    /// Reading the best replica's snapshot.
    Snapshot(Vec<u8>),
    /// Reading entries.
    Entries,
    Done,
}

/// A restore under way.
pub struct Restore {
    addresses: Vec<String>,
    without_missing: bool,
    copies: u32,
    states: BTreeMap<usize, Result<ReplicaState, String>>,
    /// The replica that is read.
    best: usize,
    best_state: AppendLogReply,
    phase: Phase,
    restored: Restored,
    calls: VecDeque<Call>,
}

/// The result of a restore.
#[derive(Default)]
pub struct Restored {
    /// Cluster id.
    pub cluster_id: [u8; 16],
    /// The snapshot, if there is one.
    pub image: Option<Bytes>,
    /// The entries after the snapshot.
    pub entries: Vec<LogEntry>,
    /// Highest term of any replica, damaged ones included: the new manager must exceed it.
    pub highest_term: u64,
    /// Address of the replica that was read.
    pub from: String,
}

impl Restore {
    /// Restores from the nodes at these addresses. With `without_missing`, continues if some do not answer.
    pub fn new(addresses: Vec<String>, without_missing: bool, config: &Config) -> Restore {
        let calls = addresses.iter().enumerate().map(|(i, address)| {
            let state = ReadLog { from_seq: 0, max_bytes: 0 };
            Call::new(Peer::Address(address.clone()), i as u64, &state, Vec::new(), TIMEOUT_MS)
        });
        Restore {
            calls: calls.collect(),
            addresses,
            without_missing,
            copies: config.log_copies,
            states: BTreeMap::new(),
            best: 0,
            best_state: AppendLogReply::default(),
            phase: Phase::States,
            restored: Restored::default(),
        }
    }

    /// The next call to make.
    pub fn poll(&mut self) -> Option<Call> {
        self.calls.pop_front()
    }

    /// Processes an answer; returns the result once everything is read.
    ///
    /// # Errors
    /// Nothing can be restored; the error says why.
    pub fn handle(&mut self, answer: Answer) -> Result<Option<Restored>, RestoreError> {
        let taken = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::States => self.state(answer),
            Phase::Snapshot(image) => self.piece(image, answer),
            Phase::Entries => self.more(answer),
            Phase::Done => return Ok(None),
        };
        match taken {
            Err(RestoreError::Replica { address, why, term, seq }) => self.try_another(address, why, term, seq)?,
            taken => taken?,
        }
        Ok(matches!(self.phase, Phase::Done).then(|| std::mem::take(&mut self.restored)))
    }

    fn state(&mut self, answer: Answer) -> Result<(), RestoreError> {
        let from = answer.token as usize;
        let state = answer.decode::<ReadLog>().map_err(|e| e.message).and_then(|(reply, _)| {
            let cluster_id =
                <[u8; 16]>::try_from(&reply.cluster_id[..]).map_err(|_| "answers without a cluster id".to_string())?;
            Ok(ReplicaState { state: reply.state.unwrap_or_default(), cluster_id })
        });
        if let Ok(ReplicaState { state, .. }) = &state {
            self.restored.highest_term = self.restored.highest_term.max(state.term).max(state.last_term);
        }
        self.states.insert(from, state);
        self.phase = Phase::States;
        if self.states.len() == self.addresses.len() {
            self.choose()?;
        }
        Ok(())
    }

    fn choose(&mut self) -> Result<(), RestoreError> {
        let silent = self.states.iter().filter_map(|(&i, s)| Some((self.addresses[i].as_str(), s.as_ref().err()?)));
        let (silent, whys): (Vec<&str>, Vec<&String>) = silent.unzip();
        let why = whys.first().map_or(String::new(), |why| why.to_string());
        if !silent.is_empty() && !self.without_missing {
            return Err(RestoreError::Silent { silent: silent.join(", "), why, copies: self.copies });
        }
        self.choose_best(why)
    }

    /// Handles damage of the best replica. A replica with the same last entry replaces it. A replica with an earlier last
    /// entry replaces it only with `without_missing`: the entries that only the damaged replica held were never
    /// acknowledged, unless too many other replicas are lost.
    fn try_another(&mut self, address: String, why: String, term: u64, seq: u64) -> Result<(), RestoreError> {
        let as_far = |s: &ReplicaState| (s.state.last_term, s.state.last_seq) == (term, seq);
        self.states.insert(self.best, Err(why.clone()));
        if !self.without_missing && !self.states.values().flatten().any(as_far) {
            return Err(RestoreError::Replica { address, why, term, seq });
        }
        tracing::warn!(%address, %why, "a damaged log replica is passed over");
        self.restored.image = None;
        self.restored.entries.clear();
        self.choose_best(why)
    }

    fn choose_best(&mut self, why: String) -> Result<(), RestoreError> {
        let name = |i: usize| self.addresses[i].clone();
        let answered = self.states.iter().filter_map(|(&i, s)| Some((i, s.as_ref().ok()?)));
        let good: Vec<(usize, &ReplicaState)> = answered.filter(|(_, s)| s.state.last_seq > 0).collect();
        let best = good.iter().max_by_key(|(_, s)| (s.state.last_term, s.state.last_seq));
        let Some(&(best, state)) = best else {
            return Err(RestoreError::NoReplica { asked: self.addresses.len(), why });
        };
        if let Some((other, _)) = good.iter().find(|(_, s)| s.cluster_id != state.cluster_id) {
            return Err(RestoreError::TwoClusters { a: name(*other), b: name(best) });
        }
        (self.best, self.best_state) = (best, state.state);
        (self.restored.from, self.restored.cluster_id) = (name(best), state.cluster_id);
        match state.state.snapshot_seq {
            0 => self.ask_entries(),
            _ => self.ask_piece(Vec::new()),
        }
        Ok(())
    }

    fn ask<R: tessera_wire::Request>(&mut self, request: &R) {
        let peer = Peer::Address(self.addresses[self.best].clone());
        self.calls.push_back(Call::new(peer, self.best as u64, request, Vec::new(), TIMEOUT_MS));
    }

    fn ask_entries(&mut self) {
        let from_seq = self.next_entry();
        if from_seq > self.best_state.last_seq {
            self.phase = Phase::Done;
            return;
        }
        self.phase = Phase::Entries;
        self.ask(&ReadLog { from_seq, max_bytes: PIECE_BYTES });
    }

    fn next_entry(&self) -> u64 {
        self.best_state.snapshot_seq + 1 + self.restored.entries.len() as u64
    }

    /// Asks for the part of the snapshot that follows `image`.
    fn ask_piece(&mut self, image: Vec<u8>) {
        let (seq, offset) = (self.best_state.snapshot_seq, image.len() as u64);
        self.ask(&GetSnapshot { seq, offset, max_bytes: PIECE_BYTES });
        self.phase = Phase::Snapshot(image);
    }

    fn broken(&self, why: impl Into<String>) -> RestoreError {
        let AppendLogReply { last_term: term, last_seq: seq, .. } = self.best_state;
        RestoreError::Replica { address: self.addresses[self.best].clone(), why: why.into(), term, seq }
    }

    fn piece(&mut self, mut image: Vec<u8>, answer: Answer) -> Result<(), RestoreError> {
        let (reply, piece) = answer.decode::<GetSnapshot>().map_err(|e| self.broken(e.message))?;
        if piece.is_empty() || (image.len() + piece.len()) as u64 > reply.total_bytes {
            return Err(self.broken("its snapshot ends too early or too late"));
        }
        image.extend_from_slice(&piece);
        if (image.len() as u64) < reply.total_bytes {
            self.ask_piece(image);
            return Ok(());
        }
        if blake3::hash(&image).as_bytes()[..] != reply.hash[..] {
            return Err(self.broken("its snapshot does not have the hash it was stored under"));
        }
        self.restored.image = Some(image.into());
        self.ask_entries();
        Ok(())
    }

    fn more(&mut self, answer: Answer) -> Result<(), RestoreError> {
        let (reply, payload) = answer.decode::<ReadLog>().map_err(|e| self.broken(e.message))?;
        let expected = self.next_entry();
        let total: u64 = reply.lengths.iter().map(|&len| u64::from(len)).sum();
        if reply.first_seq != expected || reply.lengths.is_empty() || total != payload.len() as u64 {
            return Err(self.broken(format!("asked for entries from {expected} on, it answered otherwise")));
        }
        let mut at = 0;
        for &len in &reply.lengths {
            let bytes = payload.slice(at..at + len as usize);
            at += len as usize;
            let entry =
                LogEntry::decode(bytes).map_err(|why| self.broken(format!("an entry cannot be decoded: {why}")))?;
            self.restored.entries.push(entry);
        }
        self.ask_entries();
        Ok(())
    }
}

impl Restored {
    /// Builds the database, in `dir` or (`None`) in memory. `progress` gets the entries applied and their total.
    ///
    /// # Errors
    /// The directory or the log is bad; the directory then holds no database.
    pub fn into_db(self, dir: Option<&Path>, progress: &mut dyn FnMut(usize, usize)) -> Result<Db, RestoreError> {
        let image = self.image.as_deref();
        let mut apply = |db: &Db| -> Result<(), RestoreError> {
            let caches = Caches::default();
            let mut meta = db.meta().map_err(ReplayError::from)?;
            for (done, entry) in self.entries.iter().enumerate() {
                batch::replay(db, &mut meta, &caches, entry)?;
                progress(done + 1, self.entries.len());
            }
            Ok(())
        };
        if let Some(dir) = dir {
            return Db::build(dir, self.cluster_id, image, apply);
        }
        let db = image.map_or_else(|| Db::in_memory(self.cluster_id), Db::from_image)?;
        apply(&db)?;
        Ok(db)
    }
}
