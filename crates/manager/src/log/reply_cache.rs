//! The reply cache (completion records, RIFL): a retried request takes effect once and gets the same reply (P8).
//!
//! Table `ops` has all replies, one row per group commit. Short ones are in memory, too; of long ones, which name thousands of files or
//! chunks, memory has only the place: a client that stores much gets hundreds of megabytes of them before the first is too old to be
//! asked for again, and hardly any request is repeated. Restarts load the table.

use crate::db::Db;
use crate::db::sql::args;
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, VecDeque};
use tessera_failpoint as failpoint;
use tessera_wire::Error;
use tessera_wire::manager::CachedReplies;

/// The reply to a request.
pub type Answer = Result<Bytes, Error>;

/// Longer replies are read from the table.
const SHORT_BYTES: usize = 1024;

/// A reply, or the row that has it.
enum Cached {
    Here(Answer),
    InRow { log_seq: u64 },
}

/// Which requests have replies.
#[derive(Default)]
pub struct ReplyCache {
    by_op: HashMap<(u64, u64), Cached>,
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
        const NEXT: &str = "SELECT log_seq, now_ns, answers FROM ops WHERE log_seq > ?1 ORDER BY log_seq LIMIT 1";
        let (mut answers, mut last) = (ReplyCache::default(), 0);
        while let Some((log_seq, now_ns, batch)) = db.first::<(u64, i64, Bytes)>(NEXT, args![last])? {
            let mut replies = CachedReplies::decode(batch).unwrap_or_default();
            // What is decoded shares the memory of its row.
            for kept in &mut replies.answers {
                kept.reply = Bytes::copy_from_slice(&kept.reply);
            }
            answers.remember(log_seq, now_ns, replies);
            last = log_seq;
        }
        Ok(answers)
    }

    /// The cached reply, if there is one.
    ///
    /// # Errors
    /// The database fails.
    pub fn get(&self, db: &Db, client_id: u64, op_id: u64) -> rusqlite::Result<Option<Answer>> {
        match self.by_op.get(&(client_id, op_id)) {
            None => Ok(None),
            Some(Cached::Here(answer)) => Ok(Some(answer.clone())),
            Some(Cached::InRow { log_seq }) => {
                let row: Bytes = db.one("SELECT answers FROM ops WHERE log_seq = ?1", args![*log_seq])?;
                let replies = CachedReplies::decode(row).unwrap_or_default().answers.into_iter();
                let found = replies.rev().find(|kept| (kept.client_id, kept.op_id) == (client_id, op_id));
                found.map(|kept| Some(Ok(kept.reply))).ok_or(rusqlite::Error::QueryReturnedNoRows)
            }
        }
    }

    /// Adds the replies of a committed batch.
    pub fn remember(&mut self, log_seq: u64, now_ns: i64, batch: CachedReplies) {
        let mut keys = Vec::with_capacity(batch.answers.len());
        for answer in batch.answers {
            let key = (answer.client_id, answer.op_id);
            keys.push(key);
            let is_long = answer.error.is_none() && answer.reply.len() > SHORT_BYTES;
            let cached = match is_long && !failpoint::is_active("manager.replies_not_stored") {
                true => Cached::InRow { log_seq },
                false => Cached::Here(answer.error.map_or(Ok(answer.reply), Err)),
            };
            self.by_op.insert(key, cached);
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

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::manager::CachedReply;

    fn reply(op_id: u64, len: usize) -> CachedReply {
        CachedReply { client_id: 7, op_id, reply: vec![op_id as u8; len].into(), error: None }
    }

    fn store(db: &Db, cache: &mut ReplyCache, log_seq: u64, answers: Vec<CachedReply>) {
        let replies = CachedReplies { answers };
        insert(db, log_seq, 1, &replies).unwrap();
        cache.remember(log_seq, 1, replies);
    }

    /// P8: a repeated request gets its reply, however long that is, before and after a restart, until it is pruned.
    #[test]
    fn long_replies_are_found_and_take_no_memory() {
        let (db, mut cache) = (Db::in_memory([1; 16]).unwrap(), ReplyCache::default());
        store(&db, &mut cache, 5, vec![reply(1, SHORT_BYTES), reply(2, SHORT_BYTES + 1), reply(3, 0)]);
        store(&db, &mut cache, 6, vec![reply(4, 100_000)]);
        for cache in [&cache, &ReplyCache::load(&db).unwrap()] {
            for (op_id, len) in [(1, SHORT_BYTES), (2, SHORT_BYTES + 1), (3, 0), (4, 100_000)] {
                let found = cache.get(&db, 7, op_id).unwrap().unwrap().unwrap();
                assert_eq!(found, vec![op_id as u8; len], "reply {op_id}");
            }
            assert!(cache.get(&db, 8, 1).unwrap().is_none());
            let bytes = |cached: &Cached| match cached {
                Cached::Here(Ok(reply)) => reply.len(),
                _ => 0,
            };
            assert_eq!(cache.by_op.values().map(bytes).sum::<usize>(), SHORT_BYTES);
        }
        assert_eq!(cache.prune(2), Some(6));
        delete_to(&db, 6).unwrap();
        assert!(cache.get(&db, 7, 4).unwrap().is_none() && cache.len() == 0);
    }
}
