//! Rows of `sessions`: reading and writing them, no rules.

use crate::db::Db;
use crate::db::sql::{TableRow, args, row};

/// `sessions.kind` of a writer.
pub const WRITER: i64 = 1;
/// `sessions.kind` of a reader.
pub const READER: i64 = 2;
row! {
    /// A row of `sessions`.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct Session {
        pub session_id: u64,
        /// [`WRITER`] or [`READER`].
        pub kind: i64,
        /// Client that opened it.
        pub client_id: u64 as Bits,
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
        pub reserved_bytes: u64 as Bits,
        /// Writer of a pack like an older one, whose space comes back by that.
        pub rewrites: bool,
        /// Commit mode of the staged pages; 0: nothing is staged.
        pub staged: i64,
        /// End of the last staged extent.
        pub staged_end: u64,
        /// Bytes of chunks its partial commits made durable.
        pub staged_new: u64,
        /// Fragments its partial commits left to be stored later.
        pub staged_missing: u64,
    }
}

impl Session {
    /// Inserts or replaces the row.
    pub fn write(&self, db: &Db) -> rusqlite::Result<()> {
        self.add(db, "INSERT OR REPLACE INTO sessions")
    }
}

/// The session `id`, if it has a row.
pub fn find(db: &Db, id: u64) -> rusqlite::Result<Option<Session>> {
    db.first(&Session::select("FROM sessions WHERE session_id = ?1"), args![id])
}

/// All sessions that have a row.
pub fn all(db: &Db) -> rusqlite::Result<Vec<Session>> {
    db.all(&Session::select("FROM sessions"), [])
}

/// Deletes the row of session `id`; returns its `staged` and `ino`, or None if there was no row.
pub fn delete(db: &Db, id: u64) -> rusqlite::Result<Option<(i64, u64)>> {
    db.first("DELETE FROM sessions WHERE session_id = ?1 RETURNING staged, ino", args![id])
}
