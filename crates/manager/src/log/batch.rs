//! A group commit: applies commands one by one in one transaction, which also writes the log entry and the replies.
//!
//! A refused command changes nothing. Commands check before they write, so few refusals have written anything. After one
//! that has, the whole batch is rolled back and applied again with a savepoint around each command. So the common case pays
//! for no savepoints (SQLite copies every page that a savepoint touches).

use crate::clock::Time;
use crate::ctx::{Ctx, GroupBytes, Live, RecordedChoices};
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::error::{Failure, Result, invalid};
use crate::internal::{CachedReplies, CachedReply, Internal, RecordRefusal};
use crate::log::registry::Command;
use crate::log::reply_cache::{self, Answer, ReplyCache};
use crate::map::tables;
use crate::soft::Effect;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tessera_failpoint as failpoint;
use tessera_wire::Error;
use tessera_wire::log::{LogEntry, LoggedCommand};

/// A command that waits for a batch.
#[derive(Debug, Clone)]
pub struct QueuedCommand {
    pub command: Command,
    /// Number of the command's kind.
    pub kind: u32,
    /// Encoded command as received, for the log.
    pub body: Bytes,
    /// Client that sent it; 0: the manager itself.
    pub client_id: u64,
    /// Identifies retries of the request, if the command has such a number.
    pub op_id: Option<u64>,
}

impl QueuedCommand {
    /// Queues a decoded request.
    ///
    /// # Errors
    /// `Invalid` if `body` is not the encoded command.
    pub fn new(command: Command, kind: u32, body: Bytes, client_id: u64) -> Result<QueuedCommand> {
        let op_id = command.op_id(&body)?;
        Ok(QueuedCommand { command, kind, body, client_id, op_id })
    }

    /// Decodes a logged command or a proposal.
    ///
    /// # Errors
    /// As [`Command::decode`].
    pub fn decode(kind: u32, body: &Bytes, client_id: u64) -> Result<QueuedCommand> {
        QueuedCommand::new(Command::decode(kind, body)?, kind, body.clone(), client_id)
    }

    /// Key of its reply in the reply cache: (client id, op id).
    fn op(&self) -> Option<(u64, u64)> {
        self.op_id.map(|op_id| (self.client_id, op_id))
    }
}

/// The tables and caches that a batch reads and changes.
pub struct Tables<'a> {
    pub db: &'a Db,
    /// Counters; restored if the batch fails.
    pub meta: &'a mut Meta,
    pub caches: &'a Caches,
    /// Cached replies to earlier requests.
    pub answers: &'a ReplyCache,
}

/// A batch that is applied and not yet committed.
pub struct AppliedBatch {
    /// The encoded [`LogEntry`]; `None` if the batch logs nothing.
    pub entry: Option<Bytes>,
    /// One answer per command.
    pub answers: Vec<Answer>,
    /// Positions of the commands that had been applied before: their answers are of that time.
    pub repeats: BTreeSet<usize>,
    /// Answers to add to the reply cache.
    pub kept: CachedReplies,
    /// Changes to make to soft state after the commit.
    pub effects: Vec<Effect>,
    /// Counters before the batch.
    pub before: Meta,
}

/// Applies `commands` in a new transaction, as entry `seq`, and leaves it open.
///
/// # Errors
/// The database fails; then everything is undone.
pub fn apply(
    tables: &mut Tables,
    live: Live,
    time: Time,
    seq: u64,
    commands: &[QueuedCommand],
) -> rusqlite::Result<AppliedBatch> {
    let before = *tables.meta;
    for savepoints in [false, true] {
        let attempt = attempt(tables, live, (time, seq), commands, savepoints, before);
        if let Ok(Some(applied)) = attempt {
            return Ok(applied);
        }
        *tables.meta = before;
        tables.caches.forget_all();
        tables.db.rollback()?;
        attempt?;
    }
    Err(rusqlite::Error::InvalidQuery) // The second attempt has savepoints and never asks for a third.
}

/// Returns `None` if a refused command had written something and there was no savepoint.
fn attempt(
    tables: &mut Tables,
    live: Live,
    (time, log_seq): (Time, u64),
    commands: &[QueuedCommand],
    savepoints: bool,
    before: Meta,
) -> rusqlite::Result<Option<AppliedBatch>> {
    tables.db.begin()?;
    (tables.meta.last_now_ns, tables.meta.last_wall_ns) = (time.now_ns, time.wall_ns);
    let mut batch = Batch { time, log_seq, savepoints, ..Default::default() };
    for queued in commands {
        if !batch.one(tables, live, queued)? {
            return Ok(None);
        }
    }
    tables::add_bytes(tables.db, &batch.pg_bytes)?;
    let entry = batch.log(tables)?;
    tables.meta.assert_follows(&before);
    assert_eq!(batch.answers.len(), commands.len(), "each command has one answer");
    let Batch { answers, repeats, kept, effects, .. } = batch;
    Ok(Some(AppliedBatch { entry, answers, repeats, kept, effects, before }))
}

#[derive(Default)]
struct Batch {
    time: Time,
    log_seq: u64,
    savepoints: bool,
    logged: Vec<LoggedCommand>,
    answers: Vec<Answer>,
    repeats: BTreeSet<usize>,
    kept: CachedReplies,
    by_op: HashMap<(u64, u64), usize>,
    effects: Vec<Effect>,
    pg_bytes: BTreeMap<u64, GroupBytes>,
}

impl Batch {
    /// Applies one command. Returns false if it was refused after it had written and there is no savepoint.
    fn one(&mut self, tables: &mut Tables, live: Live, queued: &QueuedCommand) -> rusqlite::Result<bool> {
        let op = queued.op();
        let known = op.filter(|_| !failpoint::is_active("manager.repeats_apply"));
        if let Some(answer) = known.map_or(Ok(None), |op| self.given(tables, op))? {
            self.repeats.insert(self.answers.len());
            self.answers.push(answer);
            return Ok(true);
        }
        let (meta, changes) = (*tables.meta, tables.db.changes());
        if self.savepoints {
            tables.db.run("SAVEPOINT command", [])?;
        }
        let outcome = run(tables, queued, RecordedChoices::live(live), self.time, self.log_seq);
        let outcome = match outcome {
            Err(Failure::Database(error)) => return Err(error),
            Err(Failure::Refused(error)) => Err(error),
            Ok(done) => Ok(done),
        };
        tables.caches.end_command(outcome.is_err());
        if self.savepoints {
            if outcome.is_err() {
                tables.db.run("ROLLBACK TO command", [])?;
            }
            tables.db.run("RELEASE command", [])?;
        } else if outcome.is_err() && tables.db.changes() != changes {
            return Ok(false);
        }
        match outcome {
            Ok(done) => self.accepted(queued, op, done),
            Err(error) => {
                *tables.meta = meta;
                self.refused(op, error);
            }
        }
        Ok(true)
    }

    fn given(&self, tables: &Tables, op: (u64, u64)) -> rusqlite::Result<Option<Answer>> {
        match self.by_op.get(&op) {
            Some(&at) => Ok(Some(answer(&self.kept.answers[at]))),
            None => tables.answers.get(tables.db, op.0, op.1),
        }
    }

    fn accepted(&mut self, queued: &QueuedCommand, op: Option<(u64, u64)>, done: Done) {
        if let Command::RecordRefusal(refusal) = &queued.command {
            let op = (refusal.client_id, refusal.op_id);
            self.keep(op, Err(refusal.error.clone().unwrap_or_default()));
        } else if let Some(op) = op.filter(|_| !queued.command.is_stale_answer(&done.reply)) {
            self.keep(op, Ok(done.reply.clone()));
        }
        self.logged.push(LoggedCommand {
            kind: queued.kind,
            body: queued.body.clone(),
            client_id: queued.client_id,
            decisions: done.choices,
        });
        self.answers.push(Ok(done.reply));
        self.effects.extend(done.effects);
        for (pg_id, bytes) in done.pg_bytes {
            *self.pg_bytes.entry(pg_id).or_default() += bytes;
        }
    }

    /// Logs a refusal as a refusal, because a replay may not see the same reasons.
    fn refused(&mut self, op: Option<(u64, u64)>, error: Error) {
        if let Some(op) = op.filter(|op| op.1 != 0 && is_final(&error)) {
            let refusal = RecordRefusal { client_id: op.0, op_id: op.1, error: Some(error.clone()) };
            self.logged.push(LoggedCommand {
                kind: RecordRefusal::KIND,
                body: refusal.encode_to_vec().into(),
                client_id: 0,
                decisions: Vec::new(),
            });
            self.keep(op, Err(error.clone()));
        }
        self.answers.push(Err(error));
    }

    fn keep(&mut self, op: (u64, u64), given: Answer) {
        let (reply, error) = match given {
            Ok(reply) => (reply, None),
            Err(error) => (Bytes::new(), Some(error)),
        };
        self.by_op.insert(op, self.kept.answers.len());
        self.kept.answers.push(CachedReply { client_id: op.0, op_id: op.1, reply, error });
    }

    /// Writes the entry, the answers and the counters.
    fn log(&mut self, tables: &mut Tables) -> rusqlite::Result<Option<Bytes>> {
        if self.logged.is_empty() {
            return Ok(None);
        }
        let seq = self.log_seq;
        assert!(seq > tables.meta.log_seq, "entry {seq} follows {}", tables.meta.log_seq);
        tables.meta.log_seq = seq;
        let entry = LogEntry {
            term: tables.meta.term,
            seq,
            now_ns: self.time.now_ns,
            wall_ns: self.time.wall_ns,
            commands: std::mem::take(&mut self.logged),
        };
        if !self.kept.answers.is_empty() && !failpoint::is_active("manager.replies_not_stored") {
            reply_cache::insert(tables.db, seq, self.time.now_ns, &self.kept)?;
        }
        tables.meta.store(tables.db)?;
        Ok(Some(entry.encode_to_vec().into()))
    }
}

fn answer(kept: &CachedReply) -> Answer {
    match &kept.error {
        Some(error) => Err(error.clone()),
        None => Ok(kept.reply.clone()),
    }
}

/// Whether a refusal is final and is cached. Reasons that may pass (hosts, space, load) are checked again on a retry.
fn is_final(error: &Error) -> bool {
    use tessera_wire::Code::*;
    !matches!(error.code(), Unavailable | Timeout | NoSpace | TooFewHosts | NotRegistered | Io | Internal)
}

struct Done {
    reply: Bytes,
    choices: Vec<u64>,
    effects: Vec<Effect>,
    pg_bytes: BTreeMap<u64, GroupBytes>,
}

fn run(
    tables: &mut Tables,
    queued: &QueuedCommand,
    choices: RecordedChoices,
    time: Time,
    log_seq: u64,
) -> Result<Done> {
    let mut ctx = Ctx {
        now_ns: time.now_ns,
        wall_ns: time.wall_ns,
        db: tables.db,
        meta: tables.meta,
        caches: tables.caches,
        choices,
        client_id: queued.client_id,
        log_seq,
        pg_bytes: BTreeMap::new(),
        effects: Vec::new(),
        orphans: Vec::new(),
        hints_changed: Vec::new(),
    };
    if queued.op_id == Some(0) {
        return invalid("op_id is 0; choose a random number per request, and keep it when repeating the request");
    }
    let reply = queued.command.apply(&mut ctx)?;
    Ok(Done { reply, choices: ctx.choices.into_values(), effects: ctx.effects, pg_bytes: ctx.pg_bytes })
}

/// Why a log entry could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The entry does not come after the last one applied.
    #[error("command log: entry {got} comes after {at}; it was applied before, or the log is of another group")]
    Order {
        /// Last entry applied.
        at: u64,
        /// The entry.
        got: u64,
    },
    /// A command failed that had succeeded when it was first applied.
    #[error("command log: entry {seq}, command {index}: {why}; the log was written by another release or is damaged")]
    Command {
        /// The entry.
        seq: u64,
        /// Index of the command in the entry.
        index: usize,
        /// The failure.
        why: String,
    },
    /// The database cannot grow.
    #[error("the manager's disk is full; make room in its directory: it then goes on by itself")]
    Full,
    /// SQLite failed.
    #[error("command log: {0}")]
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for ReplayError {
    fn from(error: rusqlite::Error) -> Self {
        match crate::db::is_full(&error) {
            true => ReplayError::Full,
            false => ReplayError::Database(error),
        }
    }
}

/// Applies entries that the group has committed to a database with the recorded choices, in one transaction (P7). Between two entries of
/// commands may be others of the group's own.
///
/// # Errors
/// An entry does not come after the last one, a command fails, or the database fails; then everything is undone.
pub fn replay(db: &Db, meta: &mut Meta, caches: &Caches, entries: &[LogEntry]) -> Result<(), ReplayError> {
    if entries.is_empty() {
        return Ok(());
    }
    let (answers, before) = (ReplyCache::default(), *meta);
    let mut tables = Tables { db, meta, caches, answers: &answers };
    let result = replay_in(&mut tables, entries);
    if result.is_err() {
        *tables.meta = before;
        caches.forget_all();
        db.rollback()?;
    }
    result
}

/// Applies entries one after another to a database that nothing else uses.
///
/// # Errors
/// As [`replay`]; the entries before stay applied.
pub fn replay_all<'a>(db: &Db, entries: impl IntoIterator<Item = &'a LogEntry>) -> Result<(), ReplayError> {
    let (mut meta, caches) = (db.meta()?, Caches::default());
    entries.into_iter().try_for_each(|entry| replay(db, &mut meta, &caches, std::slice::from_ref(entry)))
}

fn replay_in(tables: &mut Tables, entries: &[LogEntry]) -> Result<(), ReplayError> {
    tables.db.begin()?;
    entries.iter().try_for_each(|entry| replay_entry(tables, entry))?;
    tables.db.commit()?;
    Ok(())
}

fn replay_entry(tables: &mut Tables, entry: &LogEntry) -> Result<(), ReplayError> {
    if entry.seq <= tables.meta.log_seq {
        return Err(ReplayError::Order { at: tables.meta.log_seq, got: entry.seq });
    }
    let time = Time { now_ns: entry.now_ns, wall_ns: entry.wall_ns };
    (tables.meta.last_now_ns, tables.meta.last_wall_ns) = (time.now_ns, time.wall_ns);
    let mut batch = Batch { time, log_seq: entry.seq, ..Default::default() };
    for (index, logged) in entry.commands.iter().enumerate() {
        let wrong = |failure: Failure| match failure {
            Failure::Database(error) => error.into(),
            Failure::Refused(error) => ReplayError::Command { seq: entry.seq, index, why: error.message },
        };
        let queued = QueuedCommand::decode(logged.kind, &logged.body, logged.client_id).map_err(wrong)?;
        let op = queued.op();
        let choices = RecordedChoices::replay(logged.decisions.clone());
        let done = run(tables, &queued, choices, time, entry.seq).map_err(wrong)?;
        tables.caches.end_command(false);
        batch.accepted(&queued, op, done);
    }
    tables::add_bytes(tables.db, &batch.pg_bytes)?;
    batch.log(tables)?;
    Ok(())
}
