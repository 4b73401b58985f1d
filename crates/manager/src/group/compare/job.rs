//! The work of a digest beside the core: it reads the database as of one entry.

use crate::db::{self, Db};
use crate::internal::CompareMetadata;
use parking_lot::Mutex;
use rusqlite::{Connection, InterruptHandle, ffi};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tessera_wire::meta::PartDigest;

/// An interrupted job ends within this time, nearly always.
const END_WAIT: Duration = Duration::from_millis(5);

/// Computes the digest of a part of the database: whoever gets it runs it beside the manager and passes the result to
/// [`Manager::digest_done`](crate::group::Manager::digest_done). It holds a read transaction, and must be dropped before the database
/// is closed.
pub struct DigestJob {
    seq: u64,
    reader: Reader,
    part: CompareMetadata,
}

/// The connection of a [`DigestJob`].
#[derive(Clone)]
pub(super) struct Reader {
    conn: Arc<Mutex<Option<Connection>>>,
    interrupt: Arc<InterruptHandle>,
}

impl Reader {
    /// Interrupts the job, if it runs, and closes the connection.
    pub(super) fn end(&self) {
        loop {
            self.interrupt.interrupt();
            if let Some(mut conn) = self.conn.try_lock_for(END_WAIT) {
                return drop(conn.take());
            }
        }
    }
}

/// What a [`DigestJob`] did.
#[derive(Debug)]
pub struct DigestDone {
    /// The entry after which the database had this state.
    pub(super) seq: u64,
    pub(super) digest: rusqlite::Result<PartDigest>,
}

impl std::fmt::Debug for DigestJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "digest after entry {}", self.seq)
    }
}

impl DigestJob {
    /// Begins to read the database in `file` as it is now, which is after entry `seq`.
    pub(super) fn begin(file: &Path, seq: u64, part: CompareMetadata) -> rusqlite::Result<DigestJob> {
        let (conn, meta) = Db::snapshot_of(file)?;
        assert_eq!(meta.log_seq, seq, "nothing is committed between an entry and the digest that it asks for");
        let interrupt = Arc::new(conn.get_interrupt_handle());
        Ok(DigestJob { seq, reader: Reader { conn: Arc::new(Mutex::new(Some(conn))), interrupt }, part })
    }

    pub(super) fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Ends it before it is done.
    pub fn stop(&self) -> impl Fn() + Send + use<> {
        let interrupt = self.reader.interrupt.clone();
        move || interrupt.interrupt()
    }

    /// Does the work.
    #[must_use]
    pub fn run(self) -> DigestDone {
        let (seq, from) = (self.seq, self.part.from.unwrap_or_default());
        let mut conn = self.reader.conn.lock();
        let digest = match &*conn {
            Some(conn) => db::part(conn, &from, self.part.max_bytes),
            None => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_INTERRUPT), None)),
        };
        *conn = None;
        drop(conn);
        DigestDone { seq, digest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::FILE_NAME;

    fn begin(dir: &Path) -> DigestJob {
        let part = CompareMetadata { from: None, max_bytes: u64::MAX };
        DigestJob::begin(&dir.join(FILE_NAME), 0, part).unwrap()
    }

    #[test]
    fn a_digest_is_of_the_state_when_it_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        drop(Db::create(dir.path(), [1; 16]).unwrap());
        let db = Db::open(dir.path()).unwrap();
        let before = begin(dir.path()).run().digest.unwrap();
        let asked = begin(dir.path());
        db.run("UPDATE inodes SET mode = 1", []).unwrap();
        assert_eq!(asked.run().digest.unwrap(), before);
        assert_ne!(begin(dir.path()).run().digest.unwrap(), before);
    }

    #[test]
    fn a_digest_that_is_ended_reads_no_more() {
        let dir = tempfile::tempdir().unwrap();
        drop(Db::create(dir.path(), [1; 16]).unwrap());
        let _db = Db::open(dir.path()).unwrap();
        let (job, running) = (begin(dir.path()), begin(dir.path()));
        job.reader().end();
        assert!(job.run().digest.is_err());
        // One that runs is waited for.
        let reader = running.reader();
        let held = reader.conn.lock();
        let ending = std::thread::spawn({
            let reader = reader.clone();
            move || reader.end()
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!ending.is_finished());
        drop(held);
        ending.join().unwrap();
        assert!(running.run().digest.is_err());
    }
}
