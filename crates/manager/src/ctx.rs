//! What commands and reads work on: the database, the counters, the caches, the soft state, the recorded choices.
//!
//! A *command* is applied through a [`Ctx`] and may write; a read, an answer to a heartbeat or a tick gets a [`View`].
//! Neither does any I/O but through the database. A command must write the same when the log is replayed: what it writes
//! depends on the database, the command, `now_ns` and its [`RecordedChoices`] only. Anything else it needs to know (free
//! space, queues, open readers) it asks through [`Ctx::record`], which logs the answer with the command.

use crate::config::Config;
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::error::{Failure, Result};
use crate::soft::{Effect, SoftState};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_wire::{ClassInfo, Code};

/// What reads, heartbeats and ticks see.
pub struct View<'a> {
    /// The manager's time.
    pub now_ns: i64,
    /// The database, outside of any transaction.
    pub db: &'a Db,
    /// Counters and totals.
    pub meta: &'a Meta,
    /// Groups and classes.
    pub caches: &'a Caches,
    /// Soft state.
    pub soft: &'a mut SoftState,
    pub config: &'a Config,
}

/// What a command sees while it is applied.
pub struct Ctx<'a> {
    /// Time of the group commit, ns since 1970; never goes backwards.
    pub now_ns: i64,
    /// The database, inside the batch's transaction.
    pub db: &'a Db,
    /// Counters and totals; put back when the command is refused.
    pub meta: &'a mut Meta,
    /// Groups and classes.
    pub caches: &'a Caches,
    /// Soft state, to be asked through [`Ctx::record`] only; nearly empty at replay.
    pub soft: &'a SoftState,
    pub config: &'a Config,
    /// What the command learned from soft state.
    pub choices: &'a mut RecordedChoices,
    /// Client that asked; 0: the manager itself.
    pub client_id: u64,
    /// Number of the log entry this command will be part of.
    pub log_seq: u64,
    /// Bytes assigned to groups by this command (pgs.bytes), written once per batch.
    pub pg_bytes: BTreeMap<u64, u64>,
    /// Changes of the soft state once the batch is committed.
    pub effects: Vec<Effect>,
    /// Files whose last name this command removed: [`crate::files::settle`] releases them at its end.
    pub orphans: Vec<u64>,
    /// Inodes whose hints this command changed: [`crate::files::settle`] notes their new lifetime at its end.
    pub hints_changed: Vec<u64>,
}

impl Ctx<'_> {
    /// A number that depends on soft state: chosen by `choose` when the command is first applied, read from the log when
    /// it is applied again.
    pub fn record(&mut self, choose: impl FnOnce(&mut Self) -> Result<u64>) -> Result<u64> {
        if let Some(recorded) = self.choices.recorded() {
            return recorded;
        }
        let value = choose(self)?;
        self.choices.values.push(value);
        Ok(value)
    }

    /// Applies `effect` to the soft state once this command is committed.
    pub fn after_commit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// A new map version: to be written into the rows that changed.
    pub fn next_map_version(&mut self) -> u64 {
        self.meta.map_version += 1;
        self.meta.map_version
    }

    /// A class by id.
    pub fn class(&self, class_id: u32) -> Result<Arc<ClassInfo>> {
        self.caches.class(self.db, class_id)
    }
}

/// What one command learned from soft state (recorded nondeterminism), in order.
#[derive(Debug, Default, Clone)]
pub struct RecordedChoices {
    pub values: Vec<u64>,
    replaying: bool,
    at: usize,
}

impl RecordedChoices {
    /// Choices that were logged, for a replay.
    pub fn replay(values: Vec<u64>) -> RecordedChoices {
        RecordedChoices { values, replaying: true, at: 0 }
    }

    fn recorded(&mut self) -> Option<Result<u64>> {
        if !self.replaying {
            return None;
        }
        let value = self.values.get(self.at).copied();
        self.at += 1;
        Some(value.ok_or_else(|| {
            Failure::refused(Code::Corrupt, "command log: a command asks for more decisions than were recorded with it")
        }))
    }
}
