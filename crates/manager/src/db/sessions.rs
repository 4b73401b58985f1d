//! Rows of `sessions`: reading and writing them, no rules.

use crate::db::Db;
use rusqlite::{OptionalExtension, Row, params};

/// `sessions.kind` of a writer.
pub const WRITER: i64 = 1;
/// `sessions.kind` of a reader.
pub const READER: i64 = 2;
/// A row of `sessions`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Session {
    pub session_id: u64,
    /// [`WRITER`] or [`READER`].
    pub kind: i64,
    /// Client that opened it.
    pub client_id: u64,
    pub started_ns: i64,
    /// File; for a writer of a new file, its future inode; 0: session of preallocated chunks.
    pub ino: u64,
    /// The file existed at open.
    pub created: bool,
    /// Writer by name: directory, else 0.
    pub parent: u64,
    /// Writer by name: name.
    pub name: Vec<u8>,
    /// Version id at open (reader: the version read).
    pub base_version: u64,
    pub base_number: u64,
    /// Domain of its chunks.
    pub domain: u32,
    /// Encoded hints in effect.
    pub hints: Vec<u8>,
    /// Host label of the writer.
    pub host: String,
    /// Reserved at open.
    pub reserved_bytes: u64,
    /// Commit mode of the staged pages; 0: nothing is staged.
    pub staged: i64,
    /// End of the last staged extent.
    pub staged_end: u64,
    /// Bytes of chunks its partial commits made durable.
    pub staged_new: u64,
    /// Fragments its partial commits left to be stored later.
    pub staged_missing: u64,
}

const SELECT: &str = "SELECT session_id, kind, client_id, started_ns, ino, created, parent, name, base_version, base_number, domain, \
                      hints, host, reserved_bytes, staged, staged_end, staged_new, staged_missing FROM sessions";

impl Session {
    fn read(row: &Row) -> rusqlite::Result<Session> {
        let number = |i: usize| row.get::<_, i64>(i).map(|n| n as u64);
        Ok(Session {
            session_id: number(0)?,
            kind: row.get(1)?,
            client_id: number(2)?,
            started_ns: row.get(3)?,
            ino: number(4)?,
            created: row.get(5)?,
            parent: number(6)?,
            name: row.get(7)?,
            base_version: number(8)?,
            base_number: number(9)?,
            domain: row.get(10)?,
            hints: row.get(11)?,
            host: row.get(12)?,
            reserved_bytes: number(13)?,
            staged: row.get(14)?,
            staged_end: number(15)?,
            staged_new: number(16)?,
            staged_missing: number(17)?,
        })
    }

    /// Inserts or replaces the row.
    pub fn write(&self, db: &Db) -> rusqlite::Result<()> {
        db.stmt(
            "INSERT OR REPLACE INTO sessions (session_id, kind, client_id, started_ns, ino, created, parent, name, base_version,
                 base_number, domain, hints, host, reserved_bytes, staged, staged_end, staged_new, staged_missing)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
        )?
        .execute(params![
            self.session_id as i64,
            self.kind,
            self.client_id as i64,
            self.started_ns,
            self.ino as i64,
            self.created,
            self.parent as i64,
            self.name,
            self.base_version as i64,
            self.base_number as i64,
            self.domain,
            self.hints,
            self.host,
            self.reserved_bytes as i64,
            self.staged,
            self.staged_end as i64,
            self.staged_new as i64,
            self.staged_missing as i64
        ])?;
        Ok(())
    }
}

/// The session `id`, if it has a row.
pub fn find(db: &Db, id: u64) -> rusqlite::Result<Option<Session>> {
    db.stmt(&format!("{SELECT} WHERE session_id = ?1"))?.query_row([id as i64], Session::read).optional()
}

/// All sessions that have a row.
pub fn all(db: &Db) -> rusqlite::Result<Vec<Session>> {
    db.stmt(SELECT)?.query_map([], Session::read)?.collect()
}

/// Deletes the row of session `id`; returns its `staged` and `ino`, or None if there was no row.
pub fn delete(db: &Db, id: u64) -> rusqlite::Result<Option<(i64, u64)>> {
    db.stmt("DELETE FROM sessions WHERE session_id = ?1 RETURNING staged, ino")?
        .query_row([id as i64], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))
        .optional()
}
