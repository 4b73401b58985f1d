//! The context of commands and reads: the database, the counters, the caches, the soft state, the recorded choices.
//!
//! A *command* is applied through a [`Ctx`] and may write. Reads, replies to heartbeats and ticks get a [`View`]. Neither
//! does I/O except through the database. A command must write the same rows when the log is replayed, so its writes depend
//! only on the database, the command, `now_ns`, `wall_ns` and its [`RecordedChoices`]. It asks for anything else (free space, queues,
//! open readers, the configuration) through [`Ctx::record`], which logs the answer with the command. A replay has nothing else.

use crate::config::Config;
use crate::counts::StoreCounts;
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::error::{Failure, Result};
use crate::internal::Proposal;
use crate::soft::{Effect, SoftState};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;
use tessera_wire::{ClassInfo, Code};

/// The context of reads, heartbeats and ticks.
pub struct View<'a> {
    /// The cluster clock.
    pub now_ns: i64,
    /// The time of day, ns since 1970.
    pub wall_ns: i64,
    /// The database, outside of any transaction.
    pub db: &'a Db,
    /// Counters and totals.
    pub meta: &'a Meta,
    /// Groups and classes.
    pub caches: &'a Caches,
    /// Soft state.
    pub soft: &'a mut SoftState,
    pub config: &'a Config,
    /// Counts over all chunks; `None`: they are taken when they are needed.
    pub counts: Option<StoreCounts>,
    /// Commands to log, as far as they are known.
    pub proposals: Vec<Proposal>,
}

impl View<'_> {
    /// Counts over all chunks.
    ///
    /// # Errors
    /// The database fails, or a row is damaged.
    pub fn counts(&self) -> Result<StoreCounts> {
        self.counts.map_or_else(|| StoreCounts::of(self.db, self.caches), Ok)
    }
}

/// The context of a command while it is applied.
pub struct Ctx<'a> {
    /// The cluster clock at the group commit, ns: for deadlines and ages.
    pub now_ns: i64,
    /// The time of day of the group commit, ns since 1970: dates files; never goes back.
    pub wall_ns: i64,
    /// The database, inside the batch's transaction.
    pub db: &'a Db,
    /// Counters and totals; restored if the command is refused.
    pub meta: &'a mut Meta,
    /// Groups and classes.
    pub caches: &'a Caches,
    /// What the command chose by more than the database.
    pub choices: RecordedChoices<'a>,
    /// Client that sent the request; 0: the manager itself.
    pub client_id: u64,
    /// Number of the log entry this command will be part of.
    pub log_seq: u64,
    /// Bytes of chunks that this command assigned to groups, less those that it removed, written once per batch.
    pub pg_bytes: BTreeMap<u64, GroupBytes>,
    /// Changes to make to soft state once the batch is committed.
    pub effects: Vec<Effect>,
    /// Files whose last name this command removed: [`crate::files::settle`] releases them at its end.
    pub orphans: Vec<u64>,
    /// Inodes whose hints this command changed: [`crate::files::settle`] records their new lifetime at its end.
    pub hints_changed: Vec<u64>,
}

/// A change of the bytes of a group's chunks (`pgs.bytes`) and of what its members hold.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct GroupBytes {
    pub chunks: i64,
    /// On the first member.
    pub first: i64,
    /// On each other member.
    pub other: i64,
}

impl AddAssign for GroupBytes {
    fn add_assign(&mut self, more: GroupBytes) {
        self.chunks += more.chunks;
        self.first += more.first;
        self.other += more.other;
    }
}

impl Ctx<'_> {
    /// A time that the client chose, ns since 1970; 0: now.
    pub fn or_now(&self, time_ns: i64) -> i64 {
        if time_ns == 0 { self.wall_ns } else { time_ns }
    }

    /// A number that depends on soft state or the configuration. `choose` computes it when the command is first applied; a
    /// replay reads it from the log.
    ///
    /// # Errors
    /// `choose` fails, or (`Corrupt`) the log holds too few choices.
    pub fn record(&mut self, choose: impl FnOnce(&Self, Live<'_>) -> Result<u64>) -> Result<u64> {
        let Source::Live(live) = self.choices.source else { return self.choices.recorded() };
        let value = choose(self, live)?;
        self.choices.values.push(value);
        Ok(value)
    }

    /// Applies `effect` to the soft state once this command is committed.
    pub fn after_commit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Draws a new map version, which the caller writes into the rows that it changes.
    pub fn next_map_version(&mut self) -> u64 {
        self.meta.map_version += 1;
        self.meta.map_version
    }

    /// A class by id.
    pub fn class(&self, class_id: u32) -> Result<Arc<ClassInfo>> {
        self.caches.class(self.db, class_id)
    }
}

/// What only the manager that first applies a command has.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    /// Soft state.
    pub soft: &'a SoftState,
    pub config: &'a Config,
}

/// The choices that one command made from soft state and configuration (recorded nondeterminism), in order.
pub struct RecordedChoices<'a> {
    values: Vec<u64>,
    source: Source<'a>,
}

/// Where choices come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    Live(Live<'a>),
    /// The log; the next one has this index.
    Log(usize),
}

impl<'a> RecordedChoices<'a> {
    /// For a command that is applied for the first time.
    pub fn live(live: Live<'a>) -> RecordedChoices<'a> {
        RecordedChoices { values: Vec::new(), source: Source::Live(live) }
    }

    /// Choices that were logged, for a replay.
    pub fn replay(values: Vec<u64>) -> RecordedChoices<'a> {
        RecordedChoices { values, source: Source::Log(0) }
    }

    /// The choices, for the log.
    pub fn into_values(self) -> Vec<u64> {
        self.values
    }

    fn recorded(&mut self) -> Result<u64> {
        let Source::Log(at) = &mut self.source else { unreachable!("a live command chooses") };
        let value = self.values.get(*at).copied();
        *at += 1;
        value.ok_or_else(|| {
            Failure::refused(Code::Corrupt, "command log: a command asks for more decisions than were recorded with it")
        })
    }
}
