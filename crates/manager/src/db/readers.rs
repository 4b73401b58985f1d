//! Connections beside the owner's, in other threads: each sees only what is committed. They read the file that the owner has open, or
//! fail if it is not in its place any more.
//!
//! They must be closed before the file is replaced by another database, because the connections of a process share what is known
//! about the write-ahead log of a path (`tessera_pagesum::Watch`).

use super::{Db, FILE_NAME};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use rusqlite::InterruptHandle;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Interval at which readers are interrupted that must end.
const INTERRUPT_EVERY: Duration = Duration::from_millis(5);

/// Opens connections to the database in a directory.
#[derive(Clone)]
pub struct DbReaders(Arc<Inner>);

struct Inner {
    path: PathBuf,
    /// Read by each connection while it is open.
    gate: RwLock<()>,
    /// How many want all connections closed.
    closing: AtomicUsize,
    open: Mutex<Handles>,
}

#[derive(Default)]
struct Handles {
    by_number: BTreeMap<u64, InterruptHandle>,
    next: u64,
}

/// No connection is open while this lives.
pub struct Closed<'a>(#[expect(dead_code, reason = "held, not used")] RwLockWriteGuard<'a, ()>);

impl DbReaders {
    /// For the database in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> DbReaders {
        DbReaders(Arc::new(Inner {
            path: dir.join(FILE_NAME),
            gate: RwLock::new(()),
            closing: AtomicUsize::new(0),
            open: Mutex::default(),
        }))
    }

    /// Runs `read` with a new connection.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn with<T>(&self, read: impl FnOnce(&Db) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let _open = self.0.gate.read();
        let conn = Db::reader(&self.0.path)?;
        let number = self.0.open.lock().add(conn.get_interrupt_handle());
        let db = Db { watch: tessera_pagesum::watch(&conn), ..Db::around(conn, None) };
        let result = read(&db);
        self.0.open.lock().by_number.remove(&number);
        result
    }

    /// Runs `reads` with a new connection for several reads, one after the other. It asks [`Reads::must_end`] between them, since others
    /// wait until the connection is closed.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn several<T>(&self, reads: impl FnOnce(&Reads<'_>) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        self.with(|db| reads(&Reads { db, closing: &self.0.closing }))
    }

    /// Interrupts all reads, and waits until they have ended.
    #[must_use]
    pub fn close(&self) -> Closed<'_> {
        self.0.closing.fetch_add(1, Ordering::SeqCst);
        let guard = loop {
            self.0.open.lock().by_number.values().for_each(InterruptHandle::interrupt);
            if let Some(guard) = self.0.gate.try_write_for(INTERRUPT_EVERY) {
                break guard;
            }
        };
        self.0.closing.fetch_sub(1, Ordering::SeqCst);
        Closed(guard)
    }
}

/// A connection for several reads.
pub struct Reads<'a> {
    db: &'a Db,
    closing: &'a AtomicUsize,
}

impl Reads<'_> {
    /// Whether another thread waits until this connection is closed.
    #[must_use]
    pub fn must_end(&self) -> bool {
        self.closing.load(Ordering::SeqCst) > 0
    }

    /// Runs `read` in a transaction of its own: it sees the last committed state.
    ///
    /// # Errors
    /// SQLite fails; the connection is not fit for more reads.
    pub fn in_one_state<T>(&self, read: impl FnOnce(&Db) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        self.db.exec("BEGIN", [])?;
        let result = read(self.db)?;
        self.db.exec("COMMIT", [])?;
        Ok(result)
    }
}

impl std::fmt::Debug for DbReaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DbReaders({})", self.0.path.display())
    }
}

impl Handles {
    fn add(&mut self, handle: InterruptHandle) -> u64 {
        self.next += 1;
        self.by_number.insert(self.next, handle);
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::LOG_KEPT_BYTES;
    use std::sync::mpsc::channel;

    fn files(db: &Db) -> rusqlite::Result<u64> {
        db.one("SELECT files FROM meta", [])
    }

    fn in_one_state<T>(readers: &DbReaders, read: impl FnOnce(&Db) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        readers.several(|reads| reads.in_one_state(read))
    }

    #[test]
    fn a_reader_sees_one_committed_state_while_the_owner_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (owner, readers) = (Db::create(dir.path(), [1; 16]).unwrap(), DbReaders::new(dir.path()));
        owner.begin().unwrap();
        owner.exec("UPDATE meta SET files = 1", []).unwrap();
        assert_eq!(readers.with(files).unwrap(), 0);
        owner.commit().unwrap();
        let seen = in_one_state(&readers, |db| {
            let before = files(db)?;
            owner.exec("UPDATE meta SET files = 2", [])?;
            Ok((before, files(db)?))
        });
        assert_eq!(seen.unwrap(), (1, 1));
        assert_eq!(readers.with(files).unwrap(), 2);
    }

    /// While a read is under way the log cannot begin anew, however often it is checkpointed.
    #[test]
    fn the_write_ahead_log_shrinks_after_a_long_read() {
        let dir = tempfile::tempdir().unwrap();
        let (owner, readers) = (Db::create(dir.path(), [1; 16]).unwrap(), DbReaders::new(dir.path()));
        owner.rely_on_log().unwrap();
        let log_bytes = || dir.path().join("manager.db-wal").metadata().unwrap().len();
        let write_mib = |mib: usize| {
            (0..mib)
                .for_each(|_| owner.exec("REPLACE INTO xattrs VALUES (1, 'user.x', randomblob(1 << 20))", []).unwrap());
        };
        write_mib(100);
        assert!(log_bytes() < LOG_KEPT_BYTES, "{} bytes without a read", log_bytes());
        let read = in_one_state(&readers, |db| {
            files(db)?;
            write_mib(100);
            Ok(log_bytes())
        });
        let during = read.unwrap();
        assert!(during > LOG_KEPT_BYTES, "{during} bytes during the read");
        write_mib(2);
        assert!(log_bytes() <= LOG_KEPT_BYTES, "{} bytes after the read", log_bytes());
    }

    #[test]
    fn a_connection_for_several_reads_sees_each_newer_state_and_ends_when_it_must() {
        let dir = tempfile::tempdir().unwrap();
        let (owner, readers) = (Db::create(dir.path(), [1; 16]).unwrap(), DbReaders::new(dir.path()));
        let ((read, found), (changed, changes)) = (channel(), channel::<()>());
        std::thread::scope(|scope| {
            let readers = &readers;
            let reading = scope.spawn(move || {
                readers.several(|reads| {
                    read.send(reads.in_one_state(files)?).unwrap();
                    changes.recv().unwrap();
                    read.send(reads.in_one_state(files)?).unwrap();
                    while !reads.must_end() {
                        std::thread::yield_now();
                    }
                    Ok(())
                })
            });
            assert_eq!(found.recv().unwrap(), 0);
            owner.exec("UPDATE meta SET files = 2", []).unwrap();
            changed.send(()).unwrap();
            assert_eq!(found.recv().unwrap(), 2);
            let closed = readers.close();
            reading.join().unwrap().unwrap();
            drop(closed);
            assert!(!readers.several(|reads| Ok(reads.must_end())).unwrap());
        });
    }

    #[test]
    fn closing_interrupts_what_is_read_and_keeps_others_out() {
        let dir = tempfile::tempdir().unwrap();
        let (_owner, readers) = (Db::create(dir.path(), [1; 16]).unwrap(), DbReaders::new(dir.path()));
        const ENDLESS: &str = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";
        let (begun, begins) = channel();
        std::thread::scope(|scope| {
            let endless = scope.spawn(|| {
                readers.with(|db| {
                    begun.send(()).unwrap();
                    db.one::<u64>(ENDLESS, [])
                })
            });
            begins.recv().unwrap();
            let closed = readers.close();
            assert_eq!(
                endless.join().unwrap().unwrap_err().sqlite_error_code(),
                Some(rusqlite::ErrorCode::OperationInterrupted)
            );
            let later = scope.spawn(|| readers.with(files));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!later.is_finished());
            drop(closed);
            assert_eq!(later.join().unwrap().unwrap(), 0);
        });
    }
}
