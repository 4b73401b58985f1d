//! What memory holds of sessions beyond their rows: last use, readers without a row, reservations.
//!
//! A writer's session has a row from the start. A reader's lives in memory first and gets a row when it is older than
//! `reader_persist_ms`, so that opening a small file costs no transaction. A manager that starts to lead therefore treats
//! every version that exists then as read until a session's lifetime has passed without a pause ([`UnknownReaders`], P4).
//!
//! A reader pins its version, whose chunks keep their references. Only writers delay the collection of other chunks: they
//! may name any chunk that a dedup query told them of.

use crate::config::{Config, ns};
use crate::db::Db;
use crate::db::sessions::{self, Session, WRITER};
use crate::db::sql::args;
use std::collections::{BTreeSet, HashMap};
use tessera_failpoint as failpoint;
use tessera_wire::manager::ReaderRow;

/// Ids of readers that began in memory: this bit, the term, a count. The persistent counter never draws such an id.
const SOFT_ID: u64 = 1 << 62;

/// A reader, whether or not it has a row yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Reader {
    /// As its row says, or will say.
    pub row: ReaderRow,
    /// Length of that version.
    pub size_bytes: u64,
    /// When it was last used.
    pub used_ns: i64,
    /// Its row exists, or a command that writes it is under way.
    pub persisted: bool,
}

#[derive(Debug, Clone)]
struct Writer {
    client_id: u64,
    started_ns: i64,
    used_ns: i64,
    /// Bytes for which it will still request places.
    reserved_bytes: u64,
}

/// What memory holds of sessions beyond their rows.
#[derive(Default)]
pub struct SoftSessions {
    writers: HashMap<u64, Writer>,
    readers: HashMap<u64, Reader>,
    by_version: HashMap<u64, u32>,
    by_ino: HashMap<u64, u32>,
    to_trim: BTreeSet<u64>,
    to_release: BTreeSet<u64>,
    count: u64,
    unknown: Option<UnknownReaders>,
}

/// What readers may hold that another manager knew and this one does not. A client whose session is gone opens its version
/// again when it renews, within a session's lifetime.
struct UnknownReaders {
    /// When this manager began to lead.
    led_since_ns: i64,
    /// They opened their versions no earlier.
    since_ns: i64,
    /// Their versions have lower ids.
    next_version: u64,
    /// Their files have lower inode numbers.
    next_ino: u64,
}

impl SoftSessions {
    /// Loads the sessions that have rows. A restart counts as use of each.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn load(db: &Db, now_ns: i64, config: &Config) -> rusqlite::Result<SoftSessions> {
        let mut soft = SoftSessions::default();
        let size_of = |session: &Session| {
            let sql = "SELECT size_bytes FROM versions WHERE ino = ?1 AND version_id = ?2";
            Ok::<u64, rusqlite::Error>(db.first(sql, args![session.ino, session.base_version])?.unwrap_or(0))
        };
        for session in sessions::all(db)? {
            if session.kind == WRITER {
                // The writer reports what it still needs when it renews.
                soft.insert_writer(session.session_id, session.client_id, session.started_ns, now_ns, 0);
                continue;
            }
            let size_bytes = size_of(&session)?;
            let Session { session_id, client_id, started_ns, ino, base_version, base_number, .. } = session;
            let row = ReaderRow { session_id, client_id, started_ns, ino, version: base_version, number: base_number };
            soft.insert_reader(Reader { row, size_bytes, used_ns: now_ns, persisted: true });
        }
        soft.to_release = db.all("SELECT ino FROM inodes WHERE nlink = 0", [])?;
        soft.to_trim = db.all("SELECT ino FROM overdue", [])?;
        let meta = db.meta()?;
        if meta.log_seq > 0 {
            soft.unknown = Some(UnknownReaders {
                led_since_ns: now_ns,
                since_ns: meta.last_now_ns.saturating_sub(ns(config.reader_persist_ms)),
                next_version: meta.next_version,
                next_ino: meta.next_ino,
            });
        }
        Ok(soft)
    }

    /// Adds a writer.
    pub fn insert_writer(&mut self, id: u64, client_id: u64, started_ns: i64, used_ns: i64, reserved_bytes: u64) {
        assert!(id != 0 && id & SOFT_ID == 0, "session {id}: a writer's id is drawn from the counter");
        assert!(started_ns <= used_ns, "session {id}: used before it began");
        self.writers.insert(id, Writer { client_id, started_ns, used_ns, reserved_bytes });
    }

    /// A writer got places for this many bytes; they need no reservation now.
    pub fn took(&mut self, id: u64, bytes: u64) {
        if let Some(writer) = self.writers.get_mut(&id) {
            writer.reserved_bytes = writer.reserved_bytes.saturating_sub(bytes);
        }
    }

    /// Whether `id` is an open writer.
    pub fn is_writer(&self, id: u64) -> bool {
        self.writers.contains_key(&id)
    }

    /// Bytes reserved for one writer.
    pub fn reserved_by(&self, id: u64) -> u64 {
        self.writers.get(&id).map_or(0, |w| w.reserved_bytes)
    }

    /// Drops the reservations of the writers of these clients.
    pub fn release_reservations(&mut self, clients: &BTreeSet<u64>) {
        if !clients.is_empty() {
            let of_them = self.writers.values_mut().filter(|w| clients.contains(&w.client_id));
            of_them.for_each(|w| w.reserved_bytes = 0);
        }
    }

    /// Opens a reader in memory and returns its id.
    pub fn open_reader(&mut self, term: u64, mut reader: Reader) -> u64 {
        self.count += 1;
        assert!(self.count <= 0xff_ffff_ffff, "readers of one term are numbered within 40 bits");
        let id = SOFT_ID | (term & 0x3f_ffff) << 40 | self.count & 0xff_ffff_ffff;
        reader.row.session_id = id;
        self.insert_reader(reader);
        id
    }

    fn insert_reader(&mut self, reader: Reader) {
        let id = reader.row.session_id;
        *self.by_version.entry(reader.row.version).or_default() += 1;
        *self.by_ino.entry(reader.row.ino).or_default() += 1;
        let before = self.readers.insert(id, reader);
        assert!(before.is_none(), "session {id}: ids are unique");
    }

    /// The reader, if it lives. Counts as use.
    pub fn reader(&mut self, id: u64, now_ns: i64) -> Option<&Reader> {
        let reader = self.readers.get_mut(&id)?;
        reader.used_ns = now_ns;
        Some(reader)
    }

    /// Marks a session as used; `reserve_bytes` replaces its writer's reservation. Returns the bytes reserved, or `None` if the
    /// session is gone.
    pub fn renew(&mut self, id: u64, now_ns: i64, reserve_bytes: Option<u64>) -> Option<u64> {
        if let Some(writer) = self.writers.get_mut(&id) {
            writer.used_ns = now_ns;
            writer.reserved_bytes = reserve_bytes.unwrap_or(writer.reserved_bytes);
            return Some(writer.reserved_bytes);
        }
        self.reader(id, now_ns).map(|_| 0)
    }

    /// Removes a session that has ended.
    pub fn forget(&mut self, id: u64) {
        self.writers.remove(&id);
        if let Some(reader) = self.readers.remove(&id) {
            uncount(&mut self.by_version, reader.row.version);
            uncount(&mut self.by_ino, reader.row.ino);
        }
    }

    /// Whether `id` is a reader without a row.
    pub fn is_soft_reader(&self, id: u64) -> bool {
        self.readers.get(&id).is_some_and(|reader| !reader.persisted)
    }

    /// Whether a reader holds this version, or may hold it.
    pub fn is_read(&self, version_id: u64) -> bool {
        let unknown = self.unknown.as_ref().is_some_and(|unknown| version_id < unknown.next_version);
        (unknown || self.by_version.contains_key(&version_id)) && !failpoint::is_active("manager.readers_pin_nothing")
    }

    /// Whether a reader holds any version of this file, or may hold one.
    pub fn is_file_read(&self, ino: u64) -> bool {
        let unknown = self.unknown.as_ref().is_some_and(|unknown| ino < unknown.next_ino);
        (unknown || self.by_ino.contains_key(&ino)) && !failpoint::is_active("manager.readers_pin_nothing")
    }

    /// Only a reader keeps a version of this file: trim it once no reader holds the file.
    pub fn trim_later(&mut self, ino: u64) {
        self.to_trim.insert(ino);
    }

    /// This file may have no names and sessions left: release it once no reader holds it.
    pub fn release_later(&mut self, ino: u64) {
        self.to_release.insert(ino);
    }

    /// Files that no reader holds now: (versions to trim, orphans to release), at most `max` of each. Returns each once.
    pub fn take_overdue(&mut self, max: usize) -> (Vec<u64>, Vec<u64>) {
        // Those that unknown readers may hold can be many.
        let from = self.unknown.as_ref().map_or(0, |unknown| unknown.next_ino);
        let free = |ino: &u64| !self.is_file_read(*ino);
        let trim = self.to_trim.range(from..).copied().filter(free).take(max).collect::<Vec<_>>();
        let release = self.to_release.range(from..).copied().filter(free).take(max).collect::<Vec<_>>();
        trim.iter().for_each(|ino| _ = self.to_trim.remove(ino));
        release.iter().for_each(|ino| _ = self.to_release.remove(ino));
        (trim, release)
    }

    /// Chunks that have had zero references since before this time may be removed: no session can reach them (P4). It is the
    /// start of the oldest writer, but at most `hold_ns` ago, or `now_ns`.
    pub fn garbage_before(&self, now_ns: i64, hold_ns: i64) -> i64 {
        let writers = self.writers.values().map(|w| w.started_ns.max(now_ns.saturating_sub(hold_ns)));
        let holds = failpoint::is_active("manager.readers_hold_garbage");
        let readers = self.readers.values().filter(|_| holds).map(|r| r.row.started_ns);
        let unknown = self.unknown.as_ref().map(|unknown| unknown.since_ns);
        writers.chain(readers).chain(unknown).chain([now_ns]).min().unwrap_or(now_ns)
    }

    /// Readers of an earlier manager have had the time to open their versions again, if this one began to lead at or before `before_ns`.
    pub fn end_unknown(&mut self, before_ns: i64) {
        self.unknown.take_if(|unknown| unknown.led_since_ns <= before_ns);
    }

    /// Sessions last used before `before_ns`: (those with rows, readers in memory).
    pub fn expired(&self, before_ns: i64) -> (Vec<u64>, Vec<u64>) {
        let writers = self.writers.iter().filter(|(_, w)| w.used_ns < before_ns).map(|(&id, _)| id);
        let old = |persisted: bool| {
            let readers = self.readers.iter().filter(move |(_, r)| r.used_ns < before_ns && r.persisted == persisted);
            readers.map(|(&id, _)| id)
        };
        let mut rows: Vec<u64> = writers.chain(old(true)).collect();
        rows.sort_unstable();
        (rows, old(false).collect())
    }

    /// Readers without a row that opened before `before_ns`; they count as persisted from now on.
    pub fn take_unpersisted(&mut self, before_ns: i64) -> Vec<ReaderRow> {
        let mut found = Vec::new();
        for reader in self.readers.values_mut().filter(|r| !r.persisted && r.row.started_ns < before_ns) {
            reader.persisted = true;
            found.push(reader.row);
        }
        found.sort_unstable_by_key(|row| row.session_id);
        found
    }

    /// The rows of these readers were not written.
    pub fn persist_later(&mut self, rows: &[ReaderRow]) {
        for row in rows {
            if let Some(reader) = self.readers.get_mut(&row.session_id) {
                reader.persisted = false;
            }
        }
    }

    /// Number of live sessions.
    pub fn len(&self) -> usize {
        self.writers.len() + self.readers.len()
    }

    /// Logical bytes reserved by writers.
    pub fn reserved_bytes(&self) -> u64 {
        self.writers.values().map(|w| w.reserved_bytes).fold(0, u64::saturating_add)
    }
}

fn uncount(counts: &mut HashMap<u64, u32>, key: u64) {
    let count = counts.get_mut(&key).unwrap_or_else(|| panic!("{key}: a reader ends that was not counted"));
    *count -= 1;
    if *count == 0 {
        counts.remove(&key);
    }
}
