//! Reads the pages of the database that nobody asks for, in a thread of its own, and compares their checksums. What it finds
//! stops the core at its next tick ([`crate::db::Db::damage`]).

use crate::config::Config;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tessera_pagesum::Watch;
use tessera_pagesum::scrub::{Scrub, Step};

/// Bytes of one step of a pass.
const STEP_BYTES: u64 = 1 << 20;
/// A page that does not match may be one that a checkpoint writes: it is read again after this pause.
const AGAIN: Duration = Duration::from_millis(100);

/// The running thread; it ends when this is dropped.
pub(crate) struct MetadataScrub {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetadataScrub {
    /// Starts to scrub the database's pages, unless the configuration turns it off.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(watch: Arc<Watch>, config: &Config) -> std::io::Result<MetadataScrub> {
        if config.metadata_scrub_every_ms == 0 {
            return Ok(MetadataScrub { stop: None, thread: None });
        }
        let every = Duration::from_millis(config.metadata_scrub_every_ms);
        let pause = Duration::from_millis(1000 * STEP_BYTES / config.metadata_scrub_bytes_per_s.max(1));
        let (stop, stopped) = channel();
        let run = move || while pass(&watch, &stopped, pause) && goes_on(&stopped, every) {};
        let thread = std::thread::Builder::new().name("metadata-scrub".into()).spawn(run)?;
        Ok(MetadataScrub { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for MetadataScrub {
    fn drop(&mut self) {
        self.stop = None;
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

/// Waits; false: the manager ends.
fn goes_on(stopped: &Receiver<()>, wait: Duration) -> bool {
    stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
}

/// Reads all pages once; false: the manager ends, or a page is damaged.
fn pass(watch: &Watch, stopped: &Receiver<()>, pause: Duration) -> bool {
    let mut pass = match Scrub::start(watch.path()) {
        Ok(pass) => pass,
        Err(error) => {
            tracing::error!(%error, "the database's pages cannot be scrubbed");
            return true;
        }
    };
    loop {
        let wait = match pass.step() {
            Step::More => pause,
            Step::Again => AGAIN,
            Step::Done(pages) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                watch.note_scrub(pages, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
                return true;
            }
            Step::Damaged(number) => {
                watch.note_page(number);
                return false;
            }
        };
        if !goes_on(stopped, wait) {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Db, FILE_NAME};
    use std::os::unix::fs::FileExt;

    fn scrubbed(db: &Db) -> bool {
        let config = Config { metadata_scrub_bytes_per_s: u64::MAX, ..Config::default() };
        let watch = db.watch().unwrap().clone();
        let _scrub = MetadataScrub::start(watch.clone(), &config).unwrap();
        while watch.last_scrub().1 == 0 && watch.damage().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        watch.damage().is_none()
    }

    /// P2: a page that nobody reads is found when it rots.
    #[test]
    fn a_rotten_page_that_nobody_reads_is_found() {
        let dir = tempfile::tempdir().unwrap();
        drop(Db::create(dir.path(), [1; 16]).unwrap());
        let db = Db::open(dir.path()).unwrap();
        assert!(scrubbed(&db) && db.damage().is_none());
        drop(db);
        let db = Db::open(dir.path()).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(FILE_NAME)).unwrap();
        file.write_all_at(&[0xa5; 8], 4 * 4096 + 2000).unwrap();
        file.sync_all().unwrap();
        assert!(!scrubbed(&db));
        assert!(db.damage().unwrap().contains("page 5 "), "{:?}", db.damage());
    }
}
