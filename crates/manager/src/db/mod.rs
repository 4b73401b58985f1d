//! The database: opening, creating, migrating, transactions, images.
//!
//! SQLite in WAL mode with full synchronisation (a commit is an fsync), or in memory for the simulator. Both run the same
//! statements. One thread owns a [`Db`].

pub mod cache;
mod digest;
mod error;
mod files;
pub mod meta;
pub(crate) mod node_map;
pub mod pages;
pub mod readers;
pub mod rows;
mod schema;
pub(crate) mod sessions;
pub(crate) mod sql;

pub use digest::{digest, part};
pub use error::DbError;
pub(crate) use error::{describe, is_full, is_full_file};

use crate::db::meta::Meta;
use error::{io, sqlite};
use rusqlite::config::DbConfig;
use rusqlite::{CachedStatement, Connection, OpenFlags, OptionalExtension, Params};
use schema::{APPLICATION_ID, check_schema};
use sql::FromRow;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tessera_pagesum::page::{self, PAGE_BYTES};
use tessera_pagesum::{Damage, Watch};

/// Version of the schema this build writes.
pub const SCHEMA_VERSION: i64 = 3;
const SCHEMA: &str = include_str!("schema.sql");
/// Name of the database in the manager's directory.
pub const FILE_NAME: &str = "manager.db";
/// Directory of the group's log, beside the database.
pub const LOG_DIR: &str = "log";
/// Locked by the manager that serves the directory.
pub(crate) const LOCK_NAME: &str = "lock";
/// The database beside this file is damaged.
const DAMAGED_NAME: &str = "manager.db-damaged";
/// The database beside this file differs from those of the other managers. It holds the index of the entry after which that was found.
const DIFFERS_NAME: &str = "manager.db-differs";
/// Present while a restore fills the directory.
pub(crate) const RESTORING_NAME: &str = "restoring";
/// A database that is being built.
const BUILDING_NAME: &str = "manager.db.new";

/// How long a statement waits for another connection.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages in the write-ahead log at which a commit checkpoints it.
const CHECKPOINT_PAGES: u64 = 8192;
/// Bytes that the write-ahead log keeps when it begins anew: a long read makes it longer.
pub(crate) const LOG_KEPT_BYTES: u64 = 2 * CHECKPOINT_PAGES * PAGE_BYTES as u64;

/// Steps from schema version `i + 1` to `i + 2`.
const MIGRATIONS: &[&str] = &[
    "CREATE TABLE unpacked (ino INTEGER PRIMARY KEY, since_ns INTEGER NOT NULL)",
    "CREATE TABLE inlined (content_id INTEGER PRIMARY KEY, domain INTEGER NOT NULL, class_id INTEGER NOT NULL, since_ns INTEGER NOT NULL,
                           bytes BLOB NOT NULL);
     CREATE INDEX contents_inlined ON contents (hash, len_bytes) WHERE chunk_id = 0;
     ALTER TABLE meta ADD COLUMN inlined_bytes INTEGER NOT NULL DEFAULT 0",
];
const _: () = assert!(MIGRATIONS.len() as i64 == SCHEMA_VERSION - 1);

/// A failure that a test injects into the next [`Db::commit`].
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailPoint {
    /// Nothing is written: the transaction is lost.
    CommitLost,
    /// The disk is full: the transaction is lost, later ones may succeed.
    CommitFull,
    /// The commit reports a failure although it is on disk (a failed sync whose bytes arrived).
    CommitUnknown,
}

/// The manager's database.
pub struct Db {
    conn: Connection,
    #[cfg(test)]
    fail: std::cell::Cell<Option<FailPoint>>,
    /// `None`: in memory.
    watch: Option<Arc<Watch>>,
    /// Why SQLite cannot read the database any more.
    malformed: RefCell<Option<String>>,
    /// `None`: in memory.
    lock: Option<DirLock>,
}

/// The lock of a manager's directory: one process serves it. Released when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct DirLock(Arc<std::fs::File>);

impl DirLock {
    /// The lock file.
    pub fn file(&self) -> &std::fs::File {
        &self.0
    }
}

impl Db {
    /// A new database in memory.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn in_memory(cluster_id: [u8; 16]) -> Result<Db, DbError> {
        let conn = Connection::open_in_memory().map_err(sqlite(":memory:"))?;
        make_room_for_sums(&conn).map_err(sqlite(":memory:"))?;
        let db = Db::wrap(conn, None, ":memory:")?;
        db.create_schema(cluster_id).map_err(sqlite(":memory:"))?;
        Ok(db)
    }

    /// A database in memory from an image ([`Db::image`]).
    ///
    /// # Errors
    /// The image is damaged, or SQLite fails.
    pub fn from_image(image: &[u8]) -> Result<Db, DbError> {
        let path = "database image";
        page::check_image(image).map_err(io(Path::new(path)))?;
        let mut conn = Connection::open_in_memory().map_err(sqlite(path))?;
        conn.deserialize_read_exact("main", image, image.len(), false).map_err(sqlite(path))?;
        let db = Db::wrap(conn, None, path)?;
        db.check_version(path)?;
        Ok(db)
    }

    /// Creates `dir` and `dir`/manager.db for a new cluster.
    ///
    /// # Errors
    /// A database exists already, the write-ahead log of a lost one does, or the file system or SQLite fails.
    pub fn create(dir: &Path, cluster_id: [u8; 16]) -> Result<Db, DbError> {
        Db::create_with(dir, Db::lock(dir)?, cluster_id)
    }

    /// As [`Db::create`], in a directory that the caller has locked. The database is built in another file and renamed into place: a
    /// crash leaves no database, never a part of one (P9). Therefore nothing is synced before the end.
    ///
    /// # Errors
    /// As [`Db::create`].
    pub fn create_with(dir: &Path, lock: DirLock, cluster_id: [u8; 16]) -> Result<Db, DbError> {
        let path = dir.join(FILE_NAME);
        files::refuse_log_alone(&path)?;
        if path.exists() {
            return Err(DbError::Exists(path.display().to_string()));
        }
        files::refuse_foreign(dir)?;
        let building = dir.join(BUILDING_NAME);
        let name = building.display().to_string();
        files::remove_database(&building)?;
        let conn = tessera_pagesum::open(&building, OpenFlags::default()).map_err(sqlite(&name))?;
        make_room_for_sums(&conn).map_err(sqlite(&name))?;
        let db = Db::wrap(conn, None, &name)?;
        db.conn.pragma_update(None, "synchronous", "OFF").map_err(sqlite(&name))?;
        db.create_schema(cluster_id).map_err(sqlite(&name))?;
        db.conn.flush_prepared_statement_cache();
        // Closing the last connection moves the write-ahead log into the file.
        db.conn.close().map_err(|(_, e)| sqlite(&name)(e))?;
        files::publish(dir, &building, &path)?;
        Db::open_locked(&path, lock)
    }

    /// Whether a manager has served `dir`.
    #[must_use]
    pub fn is_in(dir: &Path) -> bool {
        dir.join(FILE_NAME).exists() || dir.join(LOG_DIR).exists()
    }

    /// Creates `dir` if need be, and locks it.
    ///
    /// # Errors
    /// [`DbError::Locked`], or the file system's.
    pub fn lock(dir: &Path) -> Result<DirLock, DbError> {
        files::make_directory(dir)?;
        files::lock(dir).map(|file| DirLock(Arc::new(file)))
    }

    /// Refuses a directory that holds what no manager wrote.
    ///
    /// # Errors
    /// [`DbError::Foreign`], [`DbError::LogAlone`], or the file system's.
    pub fn check_empty(dir: &Path) -> Result<(), DbError> {
        files::refuse_log_alone(&dir.join(FILE_NAME))?;
        files::refuse_foreign(dir)
    }

    /// Removes a database, and what belongs to it, from a locked directory.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn remove(dir: &Path) -> Result<(), DbError> {
        [FILE_NAME, BUILDING_NAME].iter().try_for_each(|name| files::remove_database(&dir.join(name)))?;
        Db::forget_difference(dir)
    }

    /// Replaces the database in a locked directory, if there is one, by what `content` gives. After a crash on the way there is either
    /// the old one, none, or the new one. The note of [`Db::mark_differing`] stays: the new one may be wrong, too.
    ///
    /// # Errors
    /// As [`Db::open`], or those of `content`.
    pub fn replace(dir: &Path, lock: DirLock, content: &mut dyn std::io::Read) -> Result<Db, DbError> {
        let (path, building) = (dir.join(FILE_NAME), dir.join(BUILDING_NAME));
        files::remove_database(&building)?;
        let mut file = std::fs::File::create(&building).map_err(io(&building))?;
        std::io::copy(content, &mut file).map_err(io(&building))?;
        file.sync_all().map_err(io(&building))?;
        drop(file);
        // An old write-ahead log must not meet the new database.
        files::remove_database(&path)?;
        files::publish(dir, &building, &path)?;
        Db::open_locked(&path, lock)
    }

    /// Leaves a note that the database in `dir` is damaged: it is not opened again, but replaced.
    ///
    /// # Errors
    /// The file system's.
    pub fn mark_damaged(dir: &Path) -> Result<(), DbError> {
        let mark = dir.join(DAMAGED_NAME);
        std::fs::File::create(&mark).and_then(|file| file.sync_all()).map_err(io(&mark))
    }

    /// Whether [`Db::mark_damaged`] was called for the database in `dir`.
    #[must_use]
    pub fn is_marked_damaged(dir: &Path) -> bool {
        dir.join(DAMAGED_NAME).exists()
    }

    /// Leaves a note that the database in `dir` differs from those of the other managers after entry `seq`: it is not opened again once
    /// there is a snapshot that holds this entry, but replaced.
    ///
    /// # Errors
    /// The file system's.
    pub fn mark_differing(dir: &Path, seq: u64) -> Result<(), DbError> {
        let mark = dir.join(DIFFERS_NAME);
        let write = |mut file: std::fs::File| {
            std::io::Write::write_all(&mut file, seq.to_string().as_bytes())?;
            file.sync_all()
        };
        std::fs::File::create(&mark).and_then(write).map_err(io(&mark))?;
        std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(io(dir))
    }

    /// The entry that [`Db::mark_differing`] was called with for the database in `dir`. A note that a crash cut short does not count:
    /// the difference is found again.
    ///
    /// # Errors
    /// The file system's.
    pub fn differs_since(dir: &Path) -> Result<Option<u64>, DbError> {
        let mark = dir.join(DIFFERS_NAME);
        match std::fs::read_to_string(&mark) {
            Ok(text) => Ok(text.parse().ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io(&mark)(error)),
        }
    }

    /// Removes the note of [`Db::mark_differing`], if there is one: the database in `dir` is right.
    ///
    /// # Errors
    /// The file system's.
    pub fn forget_difference(dir: &Path) -> Result<(), DbError> {
        let mark = dir.join(DIFFERS_NAME);
        match std::fs::remove_file(&mark) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(&mark)(error)),
            _ => Ok(()),
        }
    }

    /// Closes the database; its directory stays locked.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn close(self) -> Result<Option<DirLock>, DbError> {
        self.conn.flush_prepared_statement_cache();
        self.conn.close().map_err(|(_, error)| sqlite("manager.db")(error))?;
        Ok(self.lock)
    }

    /// Opens `dir`/manager.db. Migrates an older schema and rejects a newer one (P14).
    ///
    /// # Errors
    /// There is no database, another process serves it, it is of a later release or of another program, it is damaged, or
    /// SQLite fails.
    pub fn open(dir: &Path) -> Result<Db, DbError> {
        files::find(dir)?;
        let lock = files::lock(dir)?;
        Db::open_with(dir, DirLock(Arc::new(lock)))
    }

    /// As [`Db::open`], in a directory that the caller has locked.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_with(dir: &Path, lock: DirLock) -> Result<Db, DbError> {
        Db::open_locked(&files::find(dir)?, lock)
    }

    fn open_locked(path: &Path, lock: DirLock) -> Result<Db, DbError> {
        let name = path.display().to_string();
        files::check(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = tessera_pagesum::open(path, flags).map_err(sqlite(&name))?;
        let watch = tessera_pagesum::watch(&conn);
        let opened = Db::open_connection(conn, lock, &name);
        match watch.as_ref().and_then(|watch| watch.damage()) {
            Some(damage) => Err(DbError::Damaged(describe(damage))),
            None => Ok(Db { watch, ..opened? }),
        }
    }

    fn open_connection(conn: Connection, lock: DirLock, name: &str) -> Result<Db, DbError> {
        // Check before the first write, WAL mode included: a foreign file stays unchanged.
        check_schema(&conn, name)?;
        let db = Db::wrap(conn, Some(lock), name)?;
        db.check_version(name)?;
        schema::look_at_tables(&db.conn).map_err(sqlite(name))?;
        // From here on every page of the file is whole, and scrub may read it.
        let busy: bool =
            db.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).map_err(sqlite(name))?;
        assert!(!busy, "{name}: another connection reads the database of a locked directory");
        Ok(db)
    }

    /// Moves the write-ahead log into the database file, synced, and gives its bytes back. Returns whether all of it moved: a reader may
    /// need it still.
    ///
    /// # Errors
    /// SQLite fails, or a transaction is open.
    pub fn shrink_log(&self) -> rusqlite::Result<bool> {
        self.conn.busy_timeout(Duration::ZERO)?;
        let is_busy = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
        self.conn.busy_timeout(BUSY_TIMEOUT)?;
        Ok(!is_busy?)
    }

    fn wrap(conn: Connection, lock: Option<DirLock>, path: &str) -> Result<Db, DbError> {
        conn.set_prepared_statement_cache_capacity(512);
        conn.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;
             PRAGMA cache_size = -131072; PRAGMA foreign_keys = OFF;
             PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}; PRAGMA journal_size_limit = {LOG_KEPT_BYTES};"
        ))
        .map_err(sqlite(path))?;
        // Plans must not depend on bound values: without this, SQLite prepares some statements again at every use.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(sqlite(path))?;
        Ok(Db::around(conn, lock))
    }

    fn around(conn: Connection, lock: Option<DirLock>) -> Db {
        Db {
            conn,
            #[cfg(test)]
            fail: std::cell::Cell::default(),
            watch: None,
            malformed: RefCell::default(),
            lock,
        }
    }

    fn create_schema(&self, cluster_id: [u8; 16]) -> rusqlite::Result<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        self.conn.execute_batch(SCHEMA)?;
        self.conn.execute("INSERT INTO meta (one, cluster_id) VALUES (1, ?1)", [cluster_id.as_slice()])?;
        self.conn.execute(
            "INSERT INTO inodes (ino, kind, mode, uid, gid, nlink, parent, mtime_ns, ctime_ns)
             VALUES (1, 2, 493, 0, 0, 2, 1, 0, 0)",
            [],
        )?;
        self.conn.pragma_update(None, "application_id", APPLICATION_ID)?;
        self.conn.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        self.conn.execute_batch("COMMIT")
    }

    fn check_version(&self, path: &str) -> Result<(), DbError> {
        let got = check_schema(&self.conn, path)?;
        for (step, version) in MIGRATIONS.iter().zip(2..).skip(got as usize - 1) {
            let step = format!("BEGIN IMMEDIATE; {step}; PRAGMA user_version = {version}; COMMIT;");
            self.conn.execute_batch(&step).map_err(sqlite(path))?;
        }
        Ok(())
    }

    /// The connection, for statements that run once.
    pub fn conn(&self) -> &Connection {
        &self.conn
    }

    /// A prepared statement from the cache.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn stmt(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.conn.prepare_cached(sql)
    }

    /// Runs a statement; returns the number of rows it changed.
    pub(crate) fn run(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.noted(self.stmt(sql).and_then(|mut statement| statement.execute(params)))
    }

    /// Runs a statement whose number of changed rows nobody needs.
    pub(crate) fn exec(&self, sql: &str, params: impl Params) -> rusqlite::Result<()> {
        self.run(sql, params).map(|_| ())
    }

    /// All rows of a query.
    pub(crate) fn all<T: FromRow, C: FromIterator<T>>(&self, sql: &str, params: impl Params) -> rusqlite::Result<C> {
        self.noted(self.stmt(sql).and_then(|mut statement| statement.query_map(params, T::of)?.collect()))
    }

    /// The first row of a query, which has one.
    pub(crate) fn one<T: FromRow>(&self, sql: &str, params: impl Params) -> rusqlite::Result<T> {
        self.noted(self.stmt(sql).and_then(|mut statement| statement.query_row(params, T::of)))
    }

    /// The first row of a query, if it has any.
    pub(crate) fn first<T: FromRow>(&self, sql: &str, params: impl Params) -> rusqlite::Result<Option<T>> {
        self.one(sql, params).optional()
    }

    /// Whether a query has rows.
    pub(crate) fn any(&self, sql: &str, params: impl Params) -> rusqlite::Result<bool> {
        self.noted(self.stmt(sql).and_then(|mut statement| statement.exists(params)))
    }

    /// Remembers that SQLite found the database malformed.
    fn noted<T>(&self, result: rusqlite::Result<T>) -> rusqlite::Result<T> {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        if let Err(error) = &result
            && matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
        {
            self.malformed.borrow_mut().get_or_insert_with(|| error.to_string());
        }
        result
    }

    /// Why the database must not be served any more, with the way out.
    pub fn damage(&self) -> Option<String> {
        let damage = self.watch.as_ref().and_then(|watch| watch.damage()).map(describe);
        let malformed = || {
            let why = self.malformed.borrow();
            let way_out = "start the manager again: it then rebuilds the database from the log beside it";
            why.as_ref().map(|why| format!("the manager's database is damaged ({why}); {way_out}"))
        };
        damage.or_else(malformed)
    }

    /// Whether pages are damaged; not so if the disk merely failed to sync them.
    pub(crate) fn damage_of_pages(&self) -> bool {
        let unsynced = self.watch.as_ref().and_then(|watch| watch.damage()).is_some_and(Damage::is_unsynced);
        self.damage().is_some() && !unsynced
    }

    /// What is known about the database's files; `None` for a database in memory.
    pub fn watch(&self) -> Option<&Arc<Watch>> {
        self.watch.as_ref()
    }

    /// Rows changed since the database was opened. Used to check that a refused command changed nothing.
    pub fn changes(&self) -> u64 {
        self.conn.total_changes()
    }

    /// Starts a write transaction.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn begin(&self) -> rusqlite::Result<()> {
        self.exec("BEGIN IMMEDIATE", [])
    }

    /// Commits: returns once the transaction is synced.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn commit(&self) -> rusqlite::Result<()> {
        #[cfg(test)]
        if let Some(point) = self.fail.take() {
            return self.fail_commit(point);
        }
        self.exec("COMMIT", [])
    }

    #[cfg(test)]
    fn fail_commit(&self, point: FailPoint) -> rusqlite::Result<()> {
        let code = match point {
            FailPoint::CommitUnknown => {
                self.exec("COMMIT", [])?;
                rusqlite::ffi::SQLITE_IOERR_FSYNC
            }
            FailPoint::CommitFull => rusqlite::ffi::SQLITE_FULL,
            FailPoint::CommitLost => rusqlite::ffi::SQLITE_IOERR_WRITE,
        };
        Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some("injected failure".into())))
    }

    /// Undoes the open transaction, if there is one.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn rollback(&self) -> rusqlite::Result<()> {
        match self.conn.is_autocommit() {
            true => Ok(()),
            false => self.conn.execute_batch("ROLLBACK"),
        }
    }

    /// Makes the next commit fail.
    #[cfg(test)]
    pub fn fail_next_commit(&self, point: FailPoint) {
        self.fail.set(Some(point));
    }

    /// The whole database as bytes, for a database in memory. Must not run inside a transaction.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn image(&mut self) -> rusqlite::Result<Vec<u8>> {
        let mut image = self.conn.serialize("main")?.to_vec();
        // Bytes 18 and 19 are the read and write versions of the file format. 2 requires a WAL, and an image has none
        // (https://www.sqlite.org/fileformat.html, section 1.3.3).
        if let Some(versions) = image.get_mut(18..20) {
            versions.fill(1);
        }
        page::seal_image(&mut image);
        Ok(image)
    }

    /// The file; `None` for a database in memory.
    pub fn file(&self) -> Option<&Path> {
        self.watch.as_ref().map(|watch| watch.path())
    }

    /// From now on a commit is not synced: the log beside the database has what a power loss takes from it.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn rely_on_log(&self) -> rusqlite::Result<()> {
        self.conn.pragma_update(None, "synchronous", "NORMAL")
    }

    /// Copies the database to `to`, without free pages. Returns the counters of the copy, which has the state of one moment. Nothing
    /// is synced. `to` must not exist.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn copy_to(&self, to: &Path) -> rusqlite::Result<Meta> {
        self.conn.execute("VACUUM INTO ?1", [to.display().to_string()])?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Meta::load(&tessera_pagesum::open(to, flags)?)
    }

    /// A connection that reads the database in `file`, from any thread, while its owner continues to write.
    fn reader(file: &Path) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = tessera_pagesum::open(file, flags)?;
        conn.busy_timeout(std::time::Duration::from_secs(10))?;
        Ok(conn)
    }

    /// A connection that reads the database in `file` as it is now, whatever its owner commits later. While it is open, the write-ahead
    /// log does not begin anew. Returns also the counters.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn snapshot_of(file: &Path) -> rusqlite::Result<(Connection, Meta)> {
        let conn = Db::reader(file)?;
        conn.execute_batch("BEGIN")?;
        let meta = Meta::load(&conn)?;
        Ok((conn, meta))
    }

    /// Reads the row of counters.
    ///
    /// # Errors
    /// The row is damaged, or SQLite fails.
    pub fn meta(&self) -> rusqlite::Result<Meta> {
        Meta::load(&self.conn)
    }
}

/// Makes an empty database one with pages of the right size, and with room for their sums.
fn make_room_for_sums(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "page_size", PAGE_BYTES as i64)?;
    tessera_pagesum::reserve(conn)
}
