//! Replication of the command log: the nodes that hold it, the entries that each lacks, and the last entry that enough
//! nodes have.
//!
//! The manager first asks a replica for its state under the current term, which fences every older manager. Then it sends
//! all accumulated entries in one call at a time, or a snapshot if the replica lacks entries that the manager has deleted.
//! An entry counts as held once the replica reports a last entry of the same position and term as the manager's. Position
//! and term identify an entry and all entries before it, also in snapshots. Snapshots need this check too: they may hold
//! entries that were never acknowledged, and a snapshot from a lost manager may differ.

use crate::config::{Config, ns};
use crate::db::Db;
use crate::db::sql::{FromRow, args, row};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use tessera_failpoint as failpoint;
use tessera_wire::log::{AppendLog, AppendLogReply, LogEntry, PutSnapshot};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Health};

/// Entries kept in memory, in bytes; older ones are read from table `command_log`.
const RECENT_BYTES: usize = 32 << 20;

row! {
    /// An entry in memory.
    #[derive(Debug, Clone)]
    struct RecentEntry {
        seq: u64,
        term: u64,
        bytes: Bytes = "entry",
    }
}

/// A snapshot of the database, sent to replicas.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Last entry that it contains.
    pub seq: u64,
    /// Term of that entry.
    pub term: u64,
    /// The database image.
    pub image: Bytes,
    /// BLAKE3-256 of the image.
    pub hash: [u8; 32],
}

impl Snapshot {
    /// Makes a snapshot of an image that contains the entries up to `seq`, whose term is `term`.
    pub fn new(seq: u64, term: u64, image: Vec<u8>) -> Snapshot {
        Snapshot { seq, term, hash: *blake3::hash(&image).as_bytes(), image: image.into() }
    }
}

/// State of one replica as far as the manager knows it.
#[derive(Debug, Default)]
struct Replica {
    /// Whether it has reported its state under the current term.
    known: bool,
    /// Last entry it holds that matches the manager's log.
    matched: u64,
    /// Next entry to send.
    next: u64,
    /// Its newest complete snapshot.
    snapshot_seq: u64,
    /// Position of its newest snapshot if that belongs to another history, which only a later snapshot can replace; else 0.
    foreign_seq: u64,
    /// Token of the AppendLog in flight.
    append: Option<u64>,
    /// Token of the PutSnapshot in flight.
    piece: Option<u64>,
    /// Snapshot being sent, and the offset reached.
    sending: Option<(u64, usize)>,
    /// Time of the next call after a failed one.
    retry_ns: i64,
    failures: u32,
}

/// Appends an entry to table `command_log`.
///
/// # Errors
/// The database fails.
pub fn append(db: &Db, entry: &LogEntry, encoded: &[u8]) -> rusqlite::Result<()> {
    assert!(entry.seq > 0, "entries count from 1");
    assert!(!encoded.is_empty() && !entry.commands.is_empty(), "entry {}: without commands", entry.seq);
    let sql = "INSERT INTO command_log (seq, term, entry) VALUES (?1, ?2, ?3)";
    db.exec(sql, args![entry.seq, entry.term, encoded])
}

/// Deletes the entries up to `seq`, which a snapshot on enough replicas contains.
///
/// # Errors
/// The database fails.
pub fn delete_to(db: &Db, seq: u64) -> rusqlite::Result<()> {
    db.exec("DELETE FROM command_log WHERE seq <= ?1", args![seq])
}

/// The command log and its replicas.
#[derive(Default)]
pub struct CommandLog {
    term: u64,
    last_seq: u64,
    recent: VecDeque<RecentEntry>,
    recent_bytes: usize,
    replicas: BTreeMap<u64, Replica>,
    tokens: HashMap<u64, u64>,
    /// Nodes that are up, with their hosts, in order of id.
    nodes: Vec<(u64, String)>,
    /// Node to the time until which it holds the log only if too few other nodes can.
    shunned: HashMap<u64, i64>,
    needed: usize,
    snapshot: Option<Snapshot>,
    /// Bytes of entries since the last snapshot.
    since_snapshot: u64,
    /// First entry that can be sent. The entry before it is kept too, for its term, unless this is 1.
    oldest_kept: u64,
    dropped_to: u64,
}

impl CommandLog {
    /// Loads the log from the database.
    ///
    /// # Errors
    /// The database fails.
    pub fn load(db: &Db, term: u64, last_seq: u64) -> rusqlite::Result<CommandLog> {
        let sql = "SELECT ifnull(min(seq), ?1), ifnull(sum(length(entry)), 0) FROM command_log";
        let (first, since_snapshot): (u64, u64) = db.one(sql, args![last_seq + 1])?;
        // An entry cannot be sent if the term of the entry before it is unknown: the replica's entry there might differ.
        let oldest_kept = if first == 1 { 1 } else { first + 1 };
        Ok(CommandLog { term, last_seq, oldest_kept, since_snapshot, ..Default::default() })
    }

    /// The highest term that a replica may have seen from this manager.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Sets a new term, under which every replica must report its state again.
    pub fn set_term(&mut self, term: u64) {
        assert!(term >= self.term, "term {term} after {}", self.term);
        self.term = term;
        for replica in self.replicas.values_mut() {
            *replica = Replica { retry_ns: replica.retry_ns, ..Default::default() };
        }
        self.tokens.clear();
    }

    /// Adds an entry that was written; its transaction may still be open.
    pub fn push(&mut self, seq: u64, term: u64, bytes: Bytes) {
        assert_eq!(seq, self.last_seq + 1, "entries of the log follow each other without gaps");
        assert_eq!(term, self.term, "entry {seq}: new entries are of the current term");
        self.since_snapshot += bytes.len() as u64;
        self.recent_bytes += bytes.len();
        self.last_seq = seq;
        self.recent.push_back(RecentEntry { seq, term, bytes });
        while self.recent_bytes > RECENT_BYTES && self.recent.len() > 1 {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |kept| kept.bytes.len());
        }
    }

    /// Removes the last entry, whose transaction failed. A replica may have it, so the next entry at its position needs a new
    /// term.
    pub fn pop(&mut self, seq: u64) {
        assert_eq!(seq, self.last_seq, "only the last entry can be taken back");
        while self.recent.back().is_some_and(|kept| kept.seq >= seq) {
            self.recent_bytes -= self.recent.pop_back().map_or(0, |kept| kept.bytes.len());
        }
        self.last_seq = seq - 1;
    }

    /// Reads which nodes are up, after a change of nodes.
    ///
    /// # Errors
    /// The database fails.
    pub fn read_nodes(&mut self, db: &Db) -> rusqlite::Result<()> {
        let sql = "SELECT node_id, host FROM nodes WHERE health IN (?1, ?2) ORDER BY node_id";
        self.nodes = db.all(sql, args![Health::Up, Health::Draining])?;
        Ok(())
    }

    /// Selects the nodes that hold the log: current holders, then new hosts, then any node; nodes that failed come last.
    fn choose(&mut self, now_ns: i64, copies: usize) {
        self.needed = copies.min(self.nodes.len());
        self.shunned.retain(|_, until| *until > now_ns);
        let mut chosen: Vec<(u64, &str)> = Vec::new();
        let mut ranked: Vec<&(u64, String)> = self.nodes.iter().collect();
        ranked.sort_by_key(|(id, _)| (self.shunned.contains_key(id), !self.replicas.contains_key(id), *id));
        for distinct in [true, false] {
            for (id, host) in &ranked {
                let taken = chosen.iter().any(|(node, h)| node == id || distinct && *h == host.as_str());
                if chosen.len() < copies && !taken {
                    chosen.push((*id, host));
                }
            }
        }
        let chosen: Vec<u64> = chosen.into_iter().map(|(id, _)| id).collect();
        self.replicas.retain(|id, _| chosen.contains(id));
        chosen.into_iter().for_each(|id| _ = self.replicas.entry(id).or_default());
    }

    /// Last entry that enough replicas hold, at most `committed`, the last entry in the local database.
    pub fn replicated(&self, committed: u64) -> u64 {
        if self.needed == 0 {
            return committed;
        }
        let mut matched: Vec<u64> = self.replicas.values().map(|replica| replica.matched).collect();
        matched.sort_unstable_by(|a, b| b.cmp(a));
        let enough =
            if failpoint::is_active("manager.one_replica_too_few") { self.needed.max(2) - 1 } else { self.needed };
        matched.get(enough - 1).copied().unwrap_or(0).min(committed)
    }

    /// Nodes that hold all entries up to `committed`.
    pub fn up_to_date(&self, committed: u64) -> Vec<u64> {
        self.replicas.iter().filter(|(_, r)| r.known && r.matched >= committed).map(|(&id, _)| id).collect()
    }

    /// Calls to send now. `token` draws tokens.
    ///
    /// # Errors
    /// The database fails.
    pub fn pump(
        &mut self,
        db: &Db,
        now_ns: i64,
        config: &Config,
        mut token: impl FnMut() -> u64,
    ) -> rusqlite::Result<Vec<Call>> {
        self.choose(now_ns, config.log_copies as usize);
        let mut calls = Vec::new();
        let ids: Vec<u64> = self.replicas.keys().copied().collect();
        let timeout_ms = config.log_call_timeout_ms;
        for id in ids {
            let replica = &self.replicas[&id];
            if replica.retry_ns > now_ns {
                continue;
            }
            if replica.append.is_none()
                && let Some((request, payload)) = self.next_append(db, replica, config)?
            {
                let token = token();
                calls.push(Call::new(Peer::Node(id), token, &request, payload, timeout_ms));
                self.tokens.insert(token, id);
                self.replicas.entry(id).and_modify(|replica| replica.append = Some(token));
            }
            if let Some((request, piece)) = self.next_piece(id, config) {
                let token = token();
                calls.push(Call::new(Peer::Node(id), token, &request, vec![piece], timeout_ms));
                self.tokens.insert(token, id);
                self.replicas.entry(id).and_modify(|replica| replica.piece = Some(token));
            }
        }
        Ok(calls)
    }

    fn next_append(
        &self,
        db: &Db,
        replica: &Replica,
        config: &Config,
    ) -> rusqlite::Result<Option<(AppendLog, Vec<Bytes>)>> {
        let mut request = AppendLog { term: self.term, first_seq: self.last_seq + 1, ..Default::default() };
        if !replica.known {
            return Ok(Some((request, Vec::new())));
        }
        request.drop_to_seq = self.dropped_to.min(replica.snapshot_seq);
        if replica.next > self.last_seq || replica.next < self.oldest_kept {
            return Ok(None);
        }
        let entries = self.entries(db, replica.next, config.log_call_bytes)?;
        request.first_seq = replica.next;
        request.prev_term = self.term_of(db, replica.next - 1)?.unwrap_or(0);
        request.terms = entries.iter().map(|kept| kept.term).collect();
        request.lengths = entries.iter().map(|kept| kept.bytes.len() as u32).collect();
        Ok((!entries.is_empty()).then(|| (request, entries.into_iter().map(|kept| kept.bytes).collect())))
    }

    /// Entries from `from` on, about `max_bytes` of them, at least one.
    fn entries(&self, db: &Db, from: u64, max_bytes: usize) -> rusqlite::Result<Vec<RecentEntry>> {
        let mut bytes = 0;
        let mut fits = |len: usize| {
            let fits = bytes == 0 || bytes + len <= max_bytes;
            bytes += len;
            fits
        };
        if self.recent.front().is_some_and(|kept| kept.seq <= from) {
            let skip = self.recent.partition_point(|kept| kept.seq < from);
            return Ok(self.recent.iter().skip(skip).take_while(|kept| fits(kept.bytes.len())).cloned().collect());
        }
        let mut rows = db.stmt("SELECT seq, term, entry FROM command_log WHERE seq >= ?1 ORDER BY seq LIMIT 4096")?;
        let entries = rows.query_map(args![from], RecentEntry::of)?;
        entries.take_while(|entry| entry.as_ref().map_or(true, |entry| fits(entry.bytes.len()))).collect()
    }

    fn next_piece(&mut self, id: u64, config: &Config) -> Option<(PutSnapshot, Bytes)> {
        let snapshot = self.snapshot.as_ref()?;
        let replica = self.replicas.get_mut(&id)?;
        if !replica.known || replica.piece.is_some() || replica.snapshot_seq >= snapshot.seq {
            return None;
        }
        let offset = match replica.sending {
            Some((seq, offset)) if seq == snapshot.seq => offset,
            _ => 0,
        };
        let end = (offset + config.snapshot_piece_bytes).min(snapshot.image.len());
        replica.sending = Some((snapshot.seq, end));
        let request = PutSnapshot {
            term: self.term,
            seq: snapshot.seq,
            offset: offset as u64,
            total_bytes: snapshot.image.len() as u64,
            hash: snapshot.hash.to_vec(),
            seq_term: snapshot.term,
        };
        Some((request, snapshot.image.slice(offset..end)))
    }

    /// Handles a replica's answer. A failed call is no error: the manager retries it. Returns the term of a newer manager
    /// if one serves this cluster: this one must stop (P11).
    ///
    /// # Errors
    /// The database fails.
    pub fn hear(&mut self, db: &Db, now_ns: i64, config: &Config, answer: Answer) -> rusqlite::Result<Option<u64>> {
        let token = answer.token;
        let Some(id) = self.tokens.remove(&token) else { return Ok(None) };
        let reply = answer.decode::<AppendLog>().map(|(reply, _)| reply);
        let Some(replica) = self.replicas.get_mut(&id) else { return Ok(None) };
        let was_piece = replica.piece == Some(token);
        match was_piece {
            true => replica.piece = None,
            false => replica.append = None,
        }
        match reply {
            Ok(reply) if reply.term > self.term => return Ok(Some(reply.term)),
            Ok(reply) => {
                // A probe writes nothing, so it also succeeds on a replica whose disk fails every write.
                if replica.known {
                    replica.failures = 0;
                }
                self.take_in(db, id, &reply, was_piece)?;
            }
            Err(error) if error.code() == Code::Fenced && error.current > self.term => return Ok(Some(error.current)),
            Err(error) => {
                tracing::warn!(node_id = id, %error, "log replica");
                let (retry_ns, failures) = (now_ns + ns(config.log_retry_ms), replica.failures + 1);
                *replica = Replica { retry_ns, failures, ..Default::default() };
                if failures >= 3 {
                    self.shunned.insert(id, now_ns + ns(config.log_retry_ms.saturating_mul(20)));
                }
            }
        }
        Ok(None)
    }

    fn take_in(&mut self, db: &Db, id: u64, reply: &AppendLogReply, was_piece: bool) -> rusqlite::Result<()> {
        let own_term = self.term_of(db, reply.last_seq)?;
        let last_seq = self.last_seq;
        let Some(replica) = self.replicas.get_mut(&id) else { return Ok(()) };
        replica.snapshot_seq = reply.snapshot_seq;
        let is_whole = replica.sending.is_some_and(|(seq, _)| reply.snapshot_seq >= seq);
        if is_whole {
            replica.sending = None;
        }
        if was_piece && (!is_whole || replica.snapshot_seq < replica.next) {
            return Ok(()); // A snapshot changes nothing for entries until it is complete.
        }
        replica.known = true;
        replica.foreign_seq = 0;
        if reply.last_seq == 0 || own_term == Some(reply.last_term) {
            replica.matched = reply.last_seq;
            replica.next = reply.last_seq + 1;
        } else if is_snapshot_foreign(reply, own_term, last_seq) {
            replica.foreign_seq = reply.snapshot_seq;
            replica.matched = 0;
            replica.next = 0;
        } else {
            // The replica has different entries or a gap. Entries sent from its snapshot on replace them; the replica
            // refuses them if its snapshot belongs to another history.
            replica.matched = replica.matched.min(reply.snapshot_seq);
            replica.next = reply.snapshot_seq + 1;
        }
        Ok(())
    }

    fn term_of(&self, db: &Db, seq: u64) -> rusqlite::Result<Option<u64>> {
        if let Some(front) = self.recent.front().filter(|front| front.seq <= seq) {
            return Ok(self.recent.get((seq - front.seq) as usize).map(|kept| kept.term));
        }
        if seq > self.last_seq {
            return Ok(None);
        }
        db.first("SELECT term FROM command_log WHERE seq = ?1", args![seq])
    }

    /// Whether the log is long enough that a snapshot should shorten it.
    pub fn has_grown(&self, config: &Config) -> bool {
        let newest = self.snapshot.as_ref();
        self.since_snapshot > config.snapshot_log_bytes
            && newest.is_none_or(|s| self.since_snapshot > s.image.len() as u64 * config.snapshot_log_percent / 100)
    }

    /// Position of the newest snapshot in memory; 0: none.
    pub fn snapshot_seq(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |s| s.seq)
    }

    /// Whether a replica needs a snapshot newer than the one in memory.
    pub fn needs_snapshot(&self) -> bool {
        let held = self.snapshot_seq();
        self.replicas.values().filter(|r| r.known).any(|r| match r.foreign_seq {
            0 => r.next < self.oldest_kept && held + 1 < self.oldest_kept,
            // Replicas keep the newer of two snapshots.
            foreign => held <= foreign && foreign < self.last_seq,
        })
    }

    /// Stores a new snapshot of the state after the last entry or an earlier one.
    pub fn set_snapshot(&mut self, snapshot: Snapshot) {
        assert!(snapshot.seq <= self.last_seq, "snapshot of entry {}, the last is {}", snapshot.seq, self.last_seq);
        assert!(!snapshot.image.is_empty(), "a database has an image");
        let since = self.recent.iter().rev().take_while(|kept| kept.seq > snapshot.seq);
        self.since_snapshot = since.map(|kept| kept.bytes.len() as u64).sum();
        self.snapshot = Some(snapshot);
    }

    /// Last entry that may be deleted from table `command_log`: every replica has the snapshot that covers it. The entry at the
    /// snapshot's position stays: its term tells, also after a restart, whether a replica's snapshot matches.
    pub fn droppable(&mut self) -> Option<u64> {
        let snapshot = self.snapshot.as_ref()?;
        let enough = self.replicas.len() >= self.needed && !self.replicas.is_empty();
        let lacks = |r: &Replica| r.snapshot_seq < snapshot.seq || r.matched < snapshot.seq;
        if !enough || self.replicas.values().any(lacks) || self.oldest_kept > snapshot.seq {
            return None;
        }
        assert!(snapshot.seq >= self.dropped_to, "the log is dropped forward only");
        self.oldest_kept = snapshot.seq + 1;
        self.dropped_to = snapshot.seq;
        while self.recent.front().is_some_and(|kept| kept.seq < snapshot.seq) {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |kept| kept.bytes.len());
        }
        Some(snapshot.seq - 1)
    }
}

/// Whether a replica's snapshot certainly belongs to another history. `own_term` is the term of the manager's entry at the
/// position of the replica's last one, if known. A replica that rejected the manager's term reports
/// `last_seq < snapshot_seq`.
fn is_snapshot_foreign(reply: &AppendLogReply, own_term: Option<u64>, last_seq: u64) -> bool {
    let is_last = reply.last_seq == reply.snapshot_seq && reply.last_term != 0;
    reply.snapshot_seq > last_seq || reply.last_seq < reply.snapshot_seq || is_last && own_term.is_some()
}
