//! The reply cache (completion records, RIFL): a retried request takes effect once and gets the same reply (P8).
//!
//! Lookups use the replies in memory. Restarts load them from table `ops`, one row per group commit.

use crate::db::Db;
use crate::db::sql::args;
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, VecDeque};
use tessera_wire::Error;
use tessera_wire::manager::CachedReplies;

/// The reply to a request.
pub type Answer = Result<Bytes, Error>;

/// The replies in memory.
#[derive(Default)]
pub struct ReplyCache {
    by_op: HashMap<(u64, u64), Answer>,
    /// Oldest first.
    batches: VecDeque<CachedBatch>,
}

/// Stores the replies of a group commit.
///
/// # Errors
/// The database fails.
pub fn insert(db: &Db, log_seq: u64, now_ns: i64, replies: &CachedReplies) -> rusqlite::Result<()> {
    let sql = "INSERT INTO ops (log_seq, now_ns, answers) VALUES (?1, ?2, ?3)";
    db.exec(sql, args![log_seq, now_ns, replies.encode_to_vec()])
}

/// Deletes the replies of group commits up to `log_seq`.
///
/// # Errors
/// The database fails.
pub fn delete_to(db: &Db, log_seq: u64) -> rusqlite::Result<()> {
    db.exec("DELETE FROM ops WHERE log_seq <= ?1", args![log_seq])
}

/// Keys of the replies of one group commit.
struct CachedBatch {
    log_seq: u64,
    now_ns: i64,
    /// (client id, op id).
    keys: Vec<(u64, u64)>,
}

impl ReplyCache {
    /// Loads the stored replies.
    ///
    /// # Errors
    /// The database fails.
    pub fn load(db: &Db) -> rusqlite::Result<ReplyCache> {
        let mut answers = ReplyCache::default();
        let rows: Vec<(u64, i64, Bytes)> = db.all("SELECT log_seq, now_ns, answers FROM ops ORDER BY log_seq", [])?;
        for (log_seq, now_ns, batch) in rows {
            answers.remember(log_seq, now_ns, CachedReplies::decode(batch).unwrap_or_default());
        }
        Ok(answers)
    }

    /// The cached reply, if there is one.
    pub fn get(&self, client_id: u64, op_id: u64) -> Option<&Answer> {
        self.by_op.get(&(client_id, op_id))
    }

    /// Adds the replies of a committed batch.
    pub fn remember(&mut self, log_seq: u64, now_ns: i64, batch: CachedReplies) {
        let mut keys = Vec::with_capacity(batch.answers.len());
        for answer in batch.answers {
            let key = (answer.client_id, answer.op_id);
            keys.push(key);
            self.by_op.insert(key, answer.error.map_or(Ok(answer.reply), Err));
        }
        if !keys.is_empty() {
            let before = self.batches.back().map_or(0, |batch| batch.log_seq);
            assert!(log_seq > before, "replies of entry {log_seq} after those of entry {before}");
            self.batches.push_back(CachedBatch { log_seq, now_ns, keys });
        }
    }

    /// Removes replies older than `before_ns`; returns the last group commit removed, if any.
    pub fn prune(&mut self, before_ns: i64) -> Option<u64> {
        let mut last = None;
        while self.batches.front().is_some_and(|cached| cached.now_ns < before_ns) {
            let cached = self.batches.pop_front()?;
            cached.keys.iter().for_each(|key| _ = self.by_op.remove(key));
            last = Some(cached.log_seq);
        }
        last
    }

    /// Replies cached.
    pub fn len(&self) -> usize {
        self.by_op.len()
    }
}
